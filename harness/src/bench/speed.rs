//! Prefill and decode, tokens per second, row by row as llama-bench reports them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bitnet_rs::{Batch, Context, ContextParams, Model, Pos, SeqId, TokenId};
use kv::KvType;
use serde::Serialize;

use super::{BenchError, Samples, ordinary_tokens, rotated};

/// What to measure: every combination of the lists.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeedOptions {
    /// Prompt lengths; 0 measures none.
    pub n_prompt: Vec<u32>,
    /// Numbers of decoded tokens; 0 measures none.
    pub n_gen: Vec<u32>,
    /// Thread counts.
    pub threads: Vec<u32>,
    /// Most tokens handed to one decode call.
    pub n_batch: Vec<u32>,
    /// Most tokens per micro-batch.
    pub n_ubatch: Vec<u32>,
    /// Type of cached keys.
    pub type_k: KvType,
    /// Type of cached values.
    pub type_v: KvType,
    /// Flash attention.
    pub flash_attn: bool,
    /// Timed runs of each row.
    pub repetitions: u32,
}

impl Default for SpeedOptions {
    /// llama-bench's.
    fn default() -> Self {
        Self {
            n_prompt: vec![512],
            n_gen: vec![128],
            threads: vec![bitnet_rs::threads::available()],
            n_batch: vec![2048],
            n_ubatch: vec![512],
            type_k: KvType::F16,
            type_v: KvType::F16,
            flash_attn: false,
            repetitions: 5,
        }
    }
}

/// One row to measure: a prompt, or decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpeedCase {
    /// Tokens of the prompt, or 0.
    pub n_prompt: u32,
    /// Tokens decoded one by one, or 0.
    pub n_gen: u32,
    /// Threads.
    pub threads: u32,
    /// Most tokens per call.
    pub n_batch: u32,
    /// Most tokens per micro-batch asked for.
    pub n_ubatch: u32,
}

impl SpeedCase {
    /// `pp512`, `tg128`.
    pub fn name(&self) -> String {
        if self.n_gen == 0 { format!("pp{}", self.n_prompt) } else { format!("tg{}", self.n_gen) }
    }
}

/// Most rows of one measurement. Lists of a few hundred values each would make billions.
pub const MAX_ROWS: usize = 1000;

impl SpeedOptions {
    /// Refuses more than [`MAX_ROWS`] rows before they are made.
    ///
    /// # Errors
    /// [`BenchError::Option`].
    pub fn check_rows(&self) -> Result<(), BenchError> {
        let tests = self.n_prompt.len().saturating_add(self.n_gen.len());
        let lists = [tests, self.threads.len(), self.n_batch.len(), self.n_ubatch.len()];
        let rows = lists.into_iter().fold(1, usize::saturating_mul);
        if rows <= MAX_ROWS {
            return Ok(());
        }
        let limit = format!("with the other lists it makes {rows} rows; at most {MAX_ROWS} are measured");
        let (n, field) = [
            (tests, "n-prompt"),
            (self.threads.len(), "threads"),
            (self.n_batch.len(), "batch-size"),
            (self.n_ubatch.len(), "ubatch-size"),
        ]
        .into_iter()
        .max_by_key(|list| list.0)
        .unwrap_or((tests, "n-prompt"));
        Err(BenchError::Option { field, value: format!("a list of {n}"), limit })
    }

    /// The rows in the order of llama-bench: for each setting prompts first, then decoding. Equal rows occur once.
    pub fn cases(&self) -> Vec<SpeedCase> {
        let mut cases: Vec<SpeedCase> = Vec::new();
        for &threads in &self.threads {
            for &n_batch in &self.n_batch {
                for &n_ubatch in &self.n_ubatch {
                    let case = |n_prompt, n_gen| SpeedCase { n_prompt, n_gen, threads, n_batch, n_ubatch };
                    let prompts = self.n_prompt.iter().map(|&n| case(n, 0));
                    let decodes = self.n_gen.iter().map(|&n| case(0, n));
                    for c in prompts.chain(decodes).filter(|c| c.n_prompt + c.n_gen > 0) {
                        if !cases.contains(&c) {
                            cases.push(c);
                        }
                    }
                }
            }
        }
        cases
    }
}

/// One measured row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SpeedRow {
    /// `pp512`, `tg128`.
    pub test: String,
    /// Tokens of the prompt, or 0.
    pub n_prompt: u32,
    /// Tokens decoded one by one, or 0.
    pub n_gen: u32,
    /// Threads that took effect.
    pub threads: u32,
    /// Most tokens per call.
    pub n_batch: u32,
    /// Most tokens per micro-batch that took effect: the kernels' stack use bounds it.
    pub n_ubatch: u32,
    /// Type of cached keys.
    pub type_k: String,
    /// Type of cached values.
    pub type_v: String,
    /// Flash attention.
    pub flash_attn: bool,
    /// Tokens per second.
    pub tokens_per_second: Samples,
}

/// Measures `cases` in rounds. Contexts are made, warmed and emptied outside of the timed part.
///
/// # Errors
/// [`BenchError::Option`] where a row does not fit the model's context, the engine's errors, and
/// [`BenchError::Interrupted`] when `stop` is set.
pub fn measure(
    model: &Model,
    options: &SpeedOptions,
    cases: &[SpeedCase],
    progress: &mut dyn FnMut(&str),
    stop: &AtomicBool,
) -> Result<Vec<SpeedRow>, BenchError> {
    let n_ctx_train = model.info().hyperparameters().n_ctx_train;
    for case in cases {
        let n = case.n_prompt.max(case.n_gen);
        if n > n_ctx_train {
            let limit = format!("the model's context holds {n_ctx_train} tokens");
            let field = if case.n_gen > 0 { "n-gen" } else { "n-prompt" };
            return Err(BenchError::Option { field, value: n.to_string(), limit });
        }
        if case.n_batch == 0 {
            return Err(BenchError::Option { field: "batch-size", value: "0".into(), limit: "at least 1".into() });
        }
    }
    let longest = cases.iter().map(|c| c.n_prompt.max(c.n_gen)).max().unwrap_or(0) as usize;
    let tokens = ordinary_tokens(model, longest)?;
    let rounds = options.repetitions.max(1) as usize;
    let mut found: Vec<(Vec<f64>, u32, u32)> = vec![Default::default(); cases.len()];
    for round in 0..rounds {
        for i in rotated(cases.len(), round) {
            let case = &cases[i];
            progress(&format!("{} on {} threads, run {} of {rounds}", case.name(), case.threads, round + 1));
            let params = ContextParams {
                n_ctx: case.n_prompt.max(case.n_gen),
                n_ubatch: case.n_ubatch,
                n_threads: case.threads,
                type_k: options.type_k,
                type_v: options.type_v,
                flash_attn: options.flash_attn,
                ..Default::default()
            };
            let mut context = Context::new(model, &params)?;
            (found[i].1, found[i].2) = (context.params().n_threads, context.params().n_ubatch);
            // The first run of a row warms weights, code and buffers; later ones only wake the threads.
            if round == 0 && case.n_prompt > 0 {
                run(&mut context, case, &tokens, stop)?;
            } else {
                context.decode(&Batch::prompt(&tokens[..1], Pos::ZERO, SeqId::ZERO)?)?;
            }
            context.clear()?;
            let started = Instant::now();
            run(&mut context, case, &tokens, stop)?;
            let seconds = started.elapsed().as_secs_f64();
            if seconds <= 0.0 {
                return Err(BenchError::NoTime(case.name()));
            }
            found[i].0.push(f64::from(case.n_prompt.max(case.n_gen)) / seconds);
        }
    }
    let mut rows = Vec::with_capacity(cases.len());
    for (case, (samples, threads, n_ubatch)) in cases.iter().zip(found) {
        rows.push(SpeedRow {
            test: case.name(),
            n_prompt: case.n_prompt,
            n_gen: case.n_gen,
            threads,
            n_batch: case.n_batch,
            n_ubatch,
            type_k: options.type_k.name().to_owned(),
            type_v: options.type_v.name().to_owned(),
            flash_attn: options.flash_attn,
            tokens_per_second: Samples::of(samples).ok_or_else(|| BenchError::NoTime(case.name()))?,
        });
    }
    Ok(rows)
}

fn run(context: &mut Context, case: &SpeedCase, tokens: &[TokenId], stop: &AtomicBool) -> Result<(), BenchError> {
    let (n, step) = match case.n_gen {
        0 => (case.n_prompt as usize, case.n_batch as usize),
        n => (n as usize, 1),
    };
    let mut at = Pos::ZERO;
    for chunk in tokens[..n].chunks(step) {
        if stop.load(Ordering::Relaxed) {
            return Err(BenchError::Interrupted);
        }
        context.decode(&Batch::prompt(chunk, at, SeqId::ZERO)?)?;
        at = at.forward(chunk.len())?;
    }
    Ok(())
}

/// Thread counts worth trying: all up to eight, then the halves down from all.
pub fn thread_counts(available: u32) -> Vec<u32> {
    let mut counts: Vec<u32> = (1..=available.min(8)).collect();
    let mut n = available;
    while n > 8 {
        counts.push(n);
        n = n.div_ceil(2);
    }
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// Micro-batches worth trying for a prompt of `n_prompt` tokens.
pub fn ubatch_sizes(n_prompt: u32) -> Vec<u32> {
    [16, 32, 64, 128, 256, 512].into_iter().filter(|&n| n <= n_prompt.max(16)).collect()
}

/// Settings that a sweep found best.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Best {
    /// Threads.
    pub threads: u32,
    /// Micro-batch.
    pub n_ubatch: u32,
    /// Median prefill at these settings, tokens per second.
    pub prefill: f64,
    /// Median decode at these threads, tokens per second.
    pub decode: f64,
}

/// Medians this close to the best count as equal: runs on a shared machine differ by as much.
pub const EQUAL_WITHIN: f64 = 0.02;

/// The thread count: of those that decode best (within [`EQUAL_WITHIN`]), the one with the fastest prefill; the fewer
/// of equals. `None` unless some count has both rows.
pub fn best_threads(rows: &[SpeedRow]) -> Option<u32> {
    let median = |threads: u32, prompt: bool| {
        let of = rows.iter().find(|r| r.threads == threads && (r.n_prompt > 0) == prompt);
        of.map(|r| r.tokens_per_second.median)
    };
    let mut counts: Vec<u32> = rows.iter().map(|r| r.threads).collect();
    counts.sort_unstable();
    counts.dedup();
    let both: Vec<(u32, f64, f64)> =
        counts.iter().filter_map(|&t| Some((t, median(t, true)?, median(t, false)?))).collect();
    let decode = both.iter().map(|b| b.2).fold(f64::NEG_INFINITY, f64::max);
    let good: Vec<_> = both.into_iter().filter(|b| b.2 >= decode * (1.0 - EQUAL_WITHIN)).collect();
    let prefill = good.iter().map(|b| b.1).fold(f64::NEG_INFINITY, f64::max);
    good.into_iter().find(|b| b.1 >= prefill * (1.0 - EQUAL_WITHIN)).map(|b| b.0)
}

/// The micro-batch with the fastest prefill; the smaller of equals, since it needs less memory.
pub fn best_ubatch(rows: &[SpeedRow]) -> Option<&SpeedRow> {
    let prompts = || rows.iter().filter(|r| r.n_prompt > 0);
    let best = prompts().map(|r| r.tokens_per_second.median).fold(f64::NEG_INFINITY, f64::max);
    prompts().filter(|r| r.tokens_per_second.median >= best * (1.0 - EQUAL_WITHIN)).min_by_key(|r| r.n_ubatch)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(n_prompt: u32, n_gen: u32, threads: u32, n_ubatch: u32, speed: f64) -> SpeedRow {
        SpeedRow {
            test: String::new(),
            n_prompt,
            n_gen,
            threads,
            n_batch: 2048,
            n_ubatch,
            type_k: "f16".into(),
            type_v: "f16".into(),
            flash_attn: false,
            tokens_per_second: Samples::of(vec![speed]).unwrap(),
        }
    }

    #[test]
    fn rows_are_all_combinations_in_order_without_doubles() {
        let options = SpeedOptions {
            n_prompt: vec![512, 0],
            n_gen: vec![128, 128],
            threads: vec![1, 2],
            n_ubatch: vec![64],
            ..Default::default()
        };
        let names: Vec<String> = options.cases().iter().map(|c| format!("{} {}", c.name(), c.threads)).collect();
        assert_eq!(names, ["pp512 1", "tg128 1", "pp512 2", "tg128 2"]);
        assert!(options.check_rows().is_ok());
        let many = vec![1; 10_000];
        let all =
            SpeedOptions { n_prompt: many.clone(), threads: many.clone(), n_batch: many.clone(), ..options.clone() };
        let refused = SpeedOptions { n_ubatch: many, ..all }.check_rows().unwrap_err().to_string();
        assert!(refused.contains("a list of 10002") && refused.contains("at most 1000"), "{refused}");
        let none = SpeedOptions { n_prompt: vec![0], n_gen: vec![], ..options };
        assert!(none.cases().is_empty());
    }

    #[test]
    fn few_counts_are_tried_on_any_machine() {
        assert_eq!(thread_counts(1), [1]);
        assert_eq!(thread_counts(2), [1, 2]);
        assert_eq!(thread_counts(16), [1, 2, 3, 4, 5, 6, 7, 8, 16]);
        assert_eq!(thread_counts(96), [1, 2, 3, 4, 5, 6, 7, 8, 12, 24, 48, 96]);
        assert_eq!(ubatch_sizes(100), [16, 32, 64]);
        assert_eq!(ubatch_sizes(1), [16]);
    }

    #[test]
    fn decode_decides_the_threads_and_prefill_among_equals() {
        // Decode: 40, 50, 49.5, 30. Two and three are equal; three prefills faster.
        let mut rows = Vec::new();
        for (t, pp, tg) in [(1, 30.0, 40.0), (2, 50.0, 50.0), (3, 70.0, 49.5), (4, 90.0, 30.0)] {
            rows.extend([row(512, 0, t, 64, pp), row(0, 64, t, 64, tg)]);
        }
        assert_eq!(best_threads(&rows), Some(3));
        // Equal in both: the fewer.
        let rows = [row(9, 0, 2, 1, 10.0), row(0, 9, 2, 1, 5.0), row(9, 0, 1, 1, 9.9), row(0, 9, 1, 1, 5.0)];
        assert_eq!(best_threads(&rows), Some(1));
        assert_eq!(best_threads(&rows[..1]), None, "decode was not measured");
    }

    #[test]
    fn the_smaller_of_equal_micro_batches() {
        let rows = [row(512, 0, 2, 512, 70.0), row(512, 0, 2, 128, 69.5), row(512, 0, 2, 32, 60.0)];
        assert_eq!(best_ubatch(&rows).unwrap().n_ubatch, 128);
        assert_eq!(best_ubatch(&[]), None);
    }
}
