//! Measurements: tokens per second, memory bandwidth, cartridges against prefill, grammar masks against decoding.
//!
//! Everything that is compared is measured in one process, in rounds that begin at another candidate each time, so that
//! a machine that slows down meanwhile slows all of them. Raw samples are kept. `docs/formats/bench.md` describes the
//! JSON, `docs/how-to/bench.md` the commands.

pub mod bandwidth;
pub mod cartridge;
pub mod grammar;
pub mod memory;
pub mod profile;
mod samples;
pub mod schemas;
pub mod speed;
pub mod table;

use session::MountError;

pub use samples::Samples;

/// Name and version of the JSON form.
pub const SCHEMA: &str = "bitnet-harness.bench/1";

/// Why a measurement stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The engine or its wrapper refused.
    #[error(transparent)]
    Engine(#[from] bitnet_rs::Error),
    /// A cartridge could not be written, read or mounted.
    #[error(transparent)]
    Cartridge(#[from] MountError),
    /// A cartridge file of the measurement.
    #[error(transparent)]
    CartridgeFile(#[from] ::cartridge::CartridgeError),
    /// A file of the measurement.
    #[error("{what}: {source}")]
    Io {
        /// Which.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A request that cannot be measured on this model.
    #[error("{field} = {value}: {limit}")]
    Option {
        /// The option.
        field: &'static str,
        /// Its value.
        value: String,
        /// What is possible.
        limit: String,
    },
    /// The grammar refused a token that its own mask allowed, or left nothing to choose.
    #[error("grammar: {0}")]
    Grammar(String),
    /// A file of schemas that is not one JSON document a line.
    #[error("{path}, line {line}: {problem}")]
    Schemas {
        /// The file.
        path: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// A clock that did not move.
    #[error("{0}: the clock shows no time between start and end")]
    NoTime(String),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

/// The model that was measured.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct MeasuredModel {
    /// Its name.
    pub name: String,
    /// Path, or `embedded`.
    pub source: String,
    /// `sha256:…` of the file.
    pub hash: String,
    /// Bytes of the file.
    pub bytes: u64,
    /// Layers.
    pub n_layer: u32,
    /// Width.
    pub n_embd: u32,
    /// Tokens of the vocabulary.
    pub n_vocab: u32,
}

/// Ordinary tokens, the same for every run.
fn ordinary_tokens(model: &bitnet_rs::Model, n: usize) -> Result<Vec<bitnet_rs::TokenId>, bitnet_rs::Error> {
    let mut found = Vec::with_capacity(n);
    // Lehmer's generator (Park and Miller 1988): no two vocabularies get a pattern that repeats soon.
    let mut x = 20_261_129u64;
    // A vocabulary of nothing but control tokens is used as it is.
    let only_control =
        (0..model.n_vocab().min(4096) as i32).all(|id| model.token(id).is_ok_and(|t| model.is_control(t)));
    while found.len() < n {
        x = x.wrapping_mul(48_271) % 2_147_483_647;
        let token = model.token((x % u64::from(model.n_vocab().max(1))) as i32)?;
        if only_control || !model.is_control(token) {
            found.push(token);
        }
    }
    Ok(found)
}

/// The round's order: every round begins one further.
fn rotated(n: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..n).map(move |i| (i + round) % n)
}

#[cfg(test)]
mod tests {
    use super::rotated;

    #[test]
    fn every_round_has_all_and_begins_elsewhere() {
        assert_eq!(rotated(3, 0).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(rotated(3, 1).collect::<Vec<_>>(), [1, 2, 0]);
        assert_eq!(rotated(3, 5).collect::<Vec<_>>(), [2, 0, 1]);
        assert_eq!(rotated(0, 5).count(), 0);
    }
}
