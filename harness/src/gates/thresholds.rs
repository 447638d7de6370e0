//! The numbers that decide verdicts, from `gates/gates.toml`.

use serde::Deserialize;

/// The file, as compiled in.
pub const TEXT: &str = include_str!("../../../gates/gates.toml");

/// All thresholds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Thresholds {
    /// Time limits.
    pub limits: Limits,
    /// Gate 0.
    pub first_light: FirstLight,
    /// Gate 1.
    pub kernel: Kernel,
    /// Gate 2.
    pub logits: Logits,
    /// Gate 3a.
    pub round_trip: RoundTrip,
    /// Gate 3b.
    pub bridge: Bridge,
    /// Gate 4.
    pub grammar: GrammarGate,
}

/// Time limits.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Seconds per gate.
    pub gate_seconds: u64,
}

/// Gate 0.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FirstLight {
    /// Timed repetitions.
    pub runs: usize,
    /// Share of tokens that must equal the recorded continuation.
    pub min_token_match: f64,
    /// Longest run of equal tokens.
    pub max_equal_run: usize,
    /// Least share of distinct 3-grams.
    pub min_distinct_trigrams: f64,
    /// Bound on the recorded perplexity, as a factor.
    pub perplexity_factor: f64,
    /// Bound on any other model's perplexity.
    pub max_perplexity_any: f64,
}

/// Gate 1.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    /// Differing results allowed.
    pub max_mismatches: u64,
    /// Column counts of the whole product.
    pub columns: Vec<usize>,
    /// Thread counts of the whole product.
    pub threads: Vec<u32>,
    /// K × N beside the model's own.
    pub shapes: Vec<(usize, usize)>,
    /// Tokens of real activations.
    pub activation_tokens: usize,
}

/// Gate 2.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Logits {
    /// Least share of decided positions with the same first token.
    pub min_top1: f64,
    /// Lead of the reference's first logit from which a position is decided.
    pub near_tie: f64,
    /// Bound on the mean KL divergence, nats.
    pub max_mean_kl: f64,
    /// Bound on its 99th percentile, nats.
    pub max_p99_kl: f64,
    /// Bound on a scale's relative difference.
    pub max_scale_error: f64,
    /// Tokens whose tensors are compared.
    pub traced_tokens: usize,
}

/// Gate 3a.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoundTrip {
    /// Prefix lengths in tokens.
    pub prefixes: Vec<usize>,
    /// Context sizes.
    pub n_ctx: [u32; 2],
    /// Distance of the longest prefix from the smaller context's end.
    pub near_n_ctx: usize,
    /// Tokens after the restore.
    pub continuation: usize,
    /// Bound on |restored − live|.
    pub max_abs_restored: f32,
    /// Bound on |restored − one pass| as a share of the logits' standard deviation.
    pub max_one_pass_share: f64,
}

/// Gate 3b.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bridge {
    /// Tokens of the captured prefix.
    pub prefix: usize,
    /// Tokens after it.
    pub continuation: usize,
    /// Bound on |mounted − live| for KV that the engine made.
    pub max_abs_native: f32,
    /// Bound on the mean KL divergence for KV made elsewhere, in nats.
    pub max_kl_foreign: f64,
}

/// Gate 4.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrammarGate {
    /// Generations in all.
    pub generations: usize,
    /// Generations of a quick run.
    pub quick_generations: usize,
    /// How many of them the model says.
    pub from_model: usize,
    /// How many a large model says.
    pub from_large_model: usize,
    /// How many of them go over plain schemas.
    pub over_schemas: usize,
    /// Temperatures of the model.
    pub temperatures: Vec<f32>,
    /// Most tokens of one generation.
    pub max_tokens: usize,
    /// Sequences that the model continues in one batch.
    pub lanes: u32,
    /// Least share of generations that finish.
    pub min_complete_share: f64,
}

impl Thresholds {
    /// The compiled-in thresholds.
    ///
    /// # Errors
    /// The TOML error; a test keeps the file readable.
    pub fn embedded() -> Result<Self, toml::de::Error> {
        toml::from_str(TEXT)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_file_is_readable() {
        assert!(super::Thresholds::embedded().is_ok());
    }
}
