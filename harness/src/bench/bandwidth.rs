//! What decoding reads per second, against what the machine can read.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bitnet_rs::{Batch, Context, ContextParams, Model, Pos, SeqId};
use serde::Serialize;

use super::table::Table;
use super::{BenchError, Samples, ordinary_tokens};

/// Bytes that all threads read together in one pass: many times the largest cache of a desktop or server CPU.
const BUFFER: usize = 512 << 20;
/// Values that are summed side by side, so that the compiler may use the widest loads it has.
const LANES: usize = 16;
/// Passes of one run: a fifth of a second, beside which the start of the threads is nothing.
const PASSES: usize = 8;

/// What to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BandwidthOptions {
    /// Thread counts.
    pub threads: Vec<u32>,
    /// Decoded tokens of a run.
    pub n_gen: u32,
    /// Timed runs.
    pub repetitions: u32,
}

/// One thread count.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BandwidthRow {
    /// Threads.
    pub threads: u32,
    /// Bytes of weights that each token reads.
    pub bytes_per_token: u64,
    /// Plain sequential reading of memory, 10⁹ bytes per second.
    pub read_gb_per_second: Samples,
    /// Decoding, tokens per second.
    pub tokens_per_second: Samples,
    /// Weights that decoding reads, 10⁹ bytes per second, at the median.
    pub decode_gb_per_second: f64,
    /// Of what plain reading reaches.
    pub share: f64,
}

/// Bytes of the weights that one token reads: all but an embedding that is only looked up.
fn bytes_per_token(model: &Model) -> u64 {
    let gguf = model.file().gguf();
    let only_looked_up = gguf.tensor("output.weight").and_then(|_| gguf.tensor("token_embd.weight"));
    gguf.tensor_bytes() - only_looked_up.map_or(0, |t| t.size())
}

/// `words` times `value`; an error where there is no memory for them.
fn filled(words: usize, value: u64) -> Result<Vec<u64>, BenchError> {
    let mut part = Vec::new();
    part.try_reserve_exact(words).map_err(|e| BenchError::Io {
        what: format!("{} bytes to read", words * size_of::<u64>()),
        source: std::io::Error::new(std::io::ErrorKind::OutOfMemory, e),
    })?;
    part.resize(words, value);
    Ok(part)
}

/// Reads all parts [`PASSES`] times, each on its own thread; seconds.
fn read(parts: &[Vec<u64>]) -> Result<f64, BenchError> {
    let started = Instant::now();
    std::thread::scope(|scope| {
        for part in parts {
            let sum = move || {
                for _ in 0..PASSES {
                    let mut sums = [0u64; LANES];
                    for chunk in black_box(part).chunks_exact(LANES) {
                        for (sum, x) in sums.iter_mut().zip(chunk) {
                            *sum = sum.wrapping_add(*x);
                        }
                    }
                    black_box(sums);
                }
            };
            let spawned = std::thread::Builder::new().spawn_scoped(scope, sum);
            spawned.map_err(|source| BenchError::Io { what: "a thread to read with".into(), source })?;
        }
        Ok::<(), BenchError>(())
    })?;
    Ok(started.elapsed().as_secs_f64())
}

/// Measures every thread count; reading and decoding take turns.
///
/// # Errors
/// [`BenchError::Option`] for a length that the model cannot hold, and whatever fails.
pub fn measure(
    model: &Model,
    options: &BandwidthOptions,
    progress: &mut dyn FnMut(&str),
    stop: &AtomicBool,
) -> Result<Vec<BandwidthRow>, BenchError> {
    let n_ctx_train = model.info().hyperparameters().n_ctx_train;
    if options.n_gen == 0 || options.n_gen > n_ctx_train {
        let limit = format!("1 to {n_ctx_train}, the model's context");
        return Err(BenchError::Option { field: "n-gen", value: options.n_gen.to_string(), limit });
    }
    let tokens = ordinary_tokens(model, options.n_gen as usize)?;
    let mut rows = Vec::new();
    for &threads in &options.threads {
        let words = BUFFER / size_of::<u64>() / threads.max(1) as usize;
        // Not zeros: pages that were never written are all the same one.
        let parts = (1..=u64::from(threads.max(1))).map(|i| filled(words, i)).collect::<Result<Vec<_>, _>>()?;
        let bytes = (words * size_of::<u64>() * parts.len() * PASSES) as f64;
        let params = ContextParams { n_ctx: options.n_gen, n_threads: threads, ..Default::default() };
        let (mut speeds, mut reads) = (Vec::new(), Vec::new());
        // The first round warms and is not counted.
        for round in 0..=options.repetitions {
            progress(&format!("{threads} threads, run {round} of {}", options.repetitions));
            let seconds = read(&parts)?;
            // Gone before the next read: a pool's threads spin for a while behind each decode, on the same cores.
            let mut context = Context::new(model, &params)?;
            context.decode(&Batch::prompt(&tokens[..1], Pos::ZERO, SeqId::ZERO)?)?;
            context.clear()?;
            let started = Instant::now();
            for (i, &token) in (0i32..).zip(&tokens) {
                if stop.load(Ordering::Relaxed) {
                    return Err(BenchError::Interrupted);
                }
                context.decode(&Batch::prompt(&[token], Pos::new(i)?, SeqId::ZERO)?)?;
            }
            if round > 0 {
                reads.push(bytes / 1e9 / seconds);
                speeds.push(tokens.len() as f64 / started.elapsed().as_secs_f64());
            }
        }
        let samples = |s, what: &str| Samples::of(s).ok_or_else(|| BenchError::NoTime(what.into()));
        let (read_gb_per_second, tokens_per_second) = (samples(reads, "reading")?, samples(speeds, "decoding")?);
        let bytes_per_token = bytes_per_token(model);
        let decode_gb_per_second = tokens_per_second.median * bytes_per_token as f64 / 1e9;
        rows.push(BandwidthRow {
            threads,
            bytes_per_token,
            share: decode_gb_per_second / read_gb_per_second.median,
            read_gb_per_second,
            tokens_per_second,
            decode_gb_per_second,
        });
    }
    Ok(rows)
}

/// The table of a run.
pub fn table(rows: &[BandwidthRow]) -> Table {
    let mut table = Table::new(["threads", "decode t/s", "MB/token", "decode GB/s", "read GB/s", "share"]);
    for r in rows {
        table.row([
            r.threads.to_string(),
            r.tokens_per_second.text(2),
            format!("{:.1}", r.bytes_per_token as f64 / 1e6),
            format!("{:.1}", r.decode_gb_per_second),
            r.read_gb_per_second.text(1),
            format!("{:.0} %", r.share * 100.0),
        ]);
    }
    table
}
