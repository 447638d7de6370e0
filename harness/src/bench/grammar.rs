//! What a grammar costs beside decoding.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bitnet_rs::{
    Batch, Constraint, Context, ContextParams, Model, Pos, Sampler, SamplingParams, SeqId, vocabulary_trie,
};
use grammar::{GrammarState, Language};
use serde::Serialize;

use super::table::Table;
use super::{BenchError, Samples, ordinary_tokens};

/// What to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct GrammarOptions {
    /// Outputs; the first one starts with cold tables.
    pub outputs: u32,
    /// Most tokens of one output.
    pub max_tokens: u32,
    /// Threads of decoding.
    pub threads: u32,
    /// Seed of the random choice.
    pub seed: u32,
}

/// The measurement. Times per token in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GrammarRow {
    /// Tokens of the vocabulary.
    pub n_vocab: u32,
    /// Distinct prefixes of their texts.
    pub trie_nodes: usize,
    /// Building the tree, once per model, in milliseconds.
    pub trie_ms: f64,
    /// Outputs.
    pub outputs: u32,
    /// Of those, the ones that ended as sentences of the grammar.
    pub complete: u32,
    /// Tokens in all.
    pub tokens: u32,
    /// Masks of the first output.
    pub mask_first_us: Samples,
    /// Masks of all later ones; absent for a single output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask_later_us: Option<Samples>,
    /// Accepting the token, by our matcher and the engine's.
    pub accept_us: Samples,
    /// Decoding the token.
    pub decode_us: Samples,
    /// All mask time over all decode time.
    pub mask_to_decode: f64,
    /// All mask and accept time over all decode time.
    pub constraint_to_decode: f64,
}

/// Generates constrained outputs and times each part. The text is the model's own: sampled at temperature 1.
///
/// # Errors
/// The engine's, and [`BenchError::Grammar`].
pub fn measure(
    model: &Model,
    grammar: &Language,
    options: &GrammarOptions,
    progress: &mut dyn FnMut(&str),
    stop: &AtomicBool,
) -> Result<GrammarRow, BenchError> {
    let started = Instant::now();
    let trie = vocabulary_trie(model)?;
    let trie_ms = started.elapsed().as_secs_f64() * 1e3;
    let n_ctx_train = model.info().hyperparameters().n_ctx_train;
    let prompt = ordinary_tokens(model, 8)?;
    let room = n_ctx_train.saturating_sub(prompt.len() as u32);
    if options.max_tokens == 0 || options.max_tokens > room {
        let limit = format!("1 to {room}");
        return Err(BenchError::Option { field: "max-tokens", value: options.max_tokens.to_string(), limit });
    }
    let n_ctx = options.max_tokens + prompt.len() as u32;
    let mut context = Context::new(model, &ContextParams { n_ctx, n_threads: options.threads, ..Default::default() })?;
    let (mut first, mut later, mut accept, mut decode) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut complete = 0;
    let us = |started: Instant| started.elapsed().as_secs_f64() * 1e6;
    for output in 0..options.outputs.max(1) {
        progress(&format!("output {} of {}", output + 1, options.outputs.max(1)));
        let sampling =
            SamplingParams { temperature: 1.0, seed: options.seed.wrapping_add(output), ..Default::default() };
        let mut sampler = Sampler::new(model, &sampling)?;
        let mut constraint = Constraint::new(model, grammar, &trie)?;
        context.clear()?;
        context.decode(&Batch::prompt(&prompt, Pos::ZERO, SeqId::ZERO)?)?;
        for _ in 0..options.max_tokens {
            if stop.load(Ordering::Relaxed) {
                return Err(BenchError::Interrupted);
            }
            let started = Instant::now();
            let mask = constraint.mask()?;
            if output == 0 {
                first.push(us(started))
            } else {
                later.push(us(started))
            }
            if mask.is_empty() {
                return Err(BenchError::Grammar("no token of this vocabulary may come next".into()));
            }
            let token = sampler.sample(context.logits()?.last()?, Some(&mask))?;
            let started = Instant::now();
            let state = constraint.accept(token)?;
            accept.push(us(started));
            if model.is_end_of_generation(token) || state == GrammarState::Complete {
                complete += 1;
                break;
            }
            sampler.accept(token)?;
            let at = context.next_pos(SeqId::ZERO)?;
            let started = Instant::now();
            context.decode(&Batch::prompt(&[token], at, SeqId::ZERO)?)?;
            decode.push(us(started));
        }
    }
    row(model.n_vocab(), trie.node_count(), trie_ms, options.outputs.max(1), complete, [first, later, accept, decode])
}

/// Sums up the times of masks (first output, later ones), accepts and decodes.
fn row(
    n_vocab: u32,
    trie_nodes: usize,
    trie_ms: f64,
    outputs: u32,
    complete: u32,
    [first, later, accept, decode]: [Vec<f64>; 4],
) -> Result<GrammarRow, BenchError> {
    let sum = |v: &[f64]| v.iter().sum::<f64>();
    let (masks, accepts, decodes) = (sum(&first) + sum(&later), sum(&accept), sum(&decode));
    let tokens = accept.len() as u32;
    let samples = |v, what: &str| Samples::of(v).ok_or_else(|| BenchError::NoTime(what.to_owned()));
    if decode.is_empty() {
        return Err(BenchError::Grammar("every output ended with its first token, so nothing was decoded".into()));
    }
    if decodes <= 0.0 {
        return Err(BenchError::NoTime("decode".into()));
    }
    Ok(GrammarRow {
        n_vocab,
        trie_nodes,
        trie_ms,
        outputs,
        complete,
        tokens,
        mask_first_us: samples(first, "mask")?,
        mask_later_us: Samples::of(later),
        accept_us: samples(accept, "accept")?,
        decode_us: samples(decode, "decode")?,
        mask_to_decode: masks / decodes,
        constraint_to_decode: (masks + accepts) / decodes,
    })
}

/// The table of a run.
pub fn table(row: &GrammarRow) -> Table {
    let mut table = Table::new(["per token", "median us", "99 % us", "max us"]);
    let mut line = |name: &str, s: &Samples| {
        table.row([
            name.to_owned(),
            format!("{:.1}", s.median),
            format!("{:.1}", s.quantile(0.99)),
            format!("{:.1}", s.max),
        ]);
    };
    line("mask, first output", &row.mask_first_us);
    if let Some(later) = &row.mask_later_us {
        line("mask, later outputs", later);
    }
    line("accept", &row.accept_us);
    line("decode", &row.decode_us);
    table
}

#[cfg(test)]
mod tests {
    use super::row;

    #[test]
    fn shares_are_sums_over_sums() {
        let times = [vec![30.0, 10.0], vec![5.0, 5.0], vec![1.0, 1.0, 1.0, 2.0], vec![100.0, 100.0]];
        let r = row(9, 4, 1.5, 2, 2, times).unwrap();
        assert_eq!((r.tokens, r.mask_to_decode, r.constraint_to_decode), (4, 0.25, 0.275));
        assert_eq!((r.mask_first_us.median, r.mask_later_us.unwrap().median), (20.0, 5.0));
        assert!(row(9, 4, 1.5, 1, 1, [vec![1.0], vec![], vec![1.0], vec![]]).is_err(), "nothing was decoded");
    }
}
