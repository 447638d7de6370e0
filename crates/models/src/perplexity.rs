//! Perplexity of a text, with the windows and the counting of llama.cpp's `llama-perplexity`.
//!
//! The text is tokenized once, with `bos` where the model asks for it, and cut into windows of `n_ctx` tokens; what
//! is left at the end is dropped. Each window starts in an empty cache, its first token replaced by `bos` if the
//! model asks for one. Only the second half of a window is counted: token j for j in n_ctx/2 + 1 … n_ctx − 1, given
//! all tokens before it in the window. The result is exp of the mean negative log-likelihood; its uncertainty is
//! that of the mean, taken through the exponential. (`perplexity()` in `examples/perplexity/perplexity.cpp`.)

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bitnet_rs::{Batch, Context, ContextParams, Model, Pos, SeqId, Special, TokenId, greedy};
use serde::Serialize;

/// Most tokens decoded by one call. The default micro-batch, which the context shrinks where stacks are small.
const SCORED_AT_ONCE: usize = 512;

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PerplexityError {
    /// The window is too small or larger than the model's context.
    #[error("--n-ctx is {n_ctx}: 8 to {limit} tokens, the context the model was trained for, make a window")]
    Window {
        /// Tokens in a window.
        n_ctx: u32,
        /// The model's limit.
        limit: u32,
    },
    /// The text gives less than two windows.
    #[error(
        "the text has {tokens} tokens; {needed} (two windows of {n_ctx}) are needed: take a longer text or a smaller --n-ctx"
    )]
    TextTooShort {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens needed.
        needed: usize,
        /// Tokens in a window.
        n_ctx: u32,
    },
    /// The model gives NaN or infinity.
    #[error("window {window}, position {position}: the logits are not finite; the model or its weights are damaged")]
    NotFinite {
        /// Which window.
        window: usize,
        /// Which position in it.
        position: u32,
    },
    /// The cancel flag was set.
    #[error("cancelled")]
    Cancelled,
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] bitnet_rs::Error),
}

/// How to measure.
#[derive(Debug, Clone)]
pub struct PerplexityOptions {
    /// Tokens in a window.
    pub n_ctx: u32,
    /// Windows at most; all of them without.
    pub windows: Option<usize>,
    /// Compute threads.
    pub threads: u32,
}

/// A measured perplexity.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Perplexity {
    /// exp of the mean negative log-likelihood.
    pub perplexity: f64,
    /// One standard error of it.
    pub uncertainty: f64,
    /// Tokens in a window.
    pub n_ctx: u32,
    /// Windows measured.
    pub windows: usize,
    /// Tokens of the text.
    pub tokens: usize,
    /// Tokens whose likelihood was counted.
    pub counted: u64,
    /// Tokens a second through the engine, whole windows.
    pub tokens_per_second: f64,
}

/// Sums of negative log-likelihoods.
#[derive(Debug, Default, Clone, Copy)]
struct Sums {
    nll: f64,
    squares: f64,
    count: u64,
}

impl Sums {
    fn add(&mut self, nll: f64) {
        self.nll += nll;
        self.squares += nll * nll;
        self.count += 1;
    }

    /// Perplexity and its uncertainty.
    fn result(&self) -> (f64, f64) {
        let n = self.count.max(1) as f64;
        let mean = self.nll / n;
        let perplexity = mean.exp();
        let variance = self.squares / n - mean * mean;
        let error = if variance > 0.0 && self.count > 1 { (variance / (n - 1.0)).sqrt() } else { 0.0 };
        (perplexity, error * perplexity)
    }
}

/// Negative log-likelihood of a token under a row of logits; `None` if they are not finite.
fn nll(logits: &[f32], token: usize) -> Option<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from((x - max).exp())).sum();
    let nll = f64::from(max) + sum.ln() - f64::from(*logits.get(token)?);
    nll.is_finite().then_some(nll)
}

/// Measures the perplexity of `text`. `progress` gets windows done, windows in total and the perplexity so far.
///
/// # Errors
/// See [`PerplexityError`].
pub fn measure(
    model: &Model,
    text: &str,
    options: &PerplexityOptions,
    progress: &mut dyn FnMut(usize, usize, f64),
    cancel: &AtomicBool,
) -> Result<Perplexity, PerplexityError> {
    let limit = model.info().hyperparameters().n_ctx_train;
    if options.n_ctx < 8 || options.n_ctx > limit {
        return Err(PerplexityError::Window { n_ctx: options.n_ctx, limit });
    }
    let n_ctx = options.n_ctx as usize;
    let tokens = model.tokenize(text, Special::ContentWithBos)?;
    if tokens.len() < 2 * n_ctx {
        return Err(PerplexityError::TextTooShort { tokens: tokens.len(), needed: 2 * n_ctx, n_ctx: options.n_ctx });
    }
    let bos = if model.adds_bos() { model.bos() } else { None };
    let total = (tokens.len() / n_ctx).min(options.windows.unwrap_or(usize::MAX)).max(1);
    let params = ContextParams { n_ctx: options.n_ctx, n_threads: options.threads, ..ContextParams::default() };
    let mut context = Context::new(model, &params)?;
    let mut sums = Sums::default();
    let first = n_ctx / 2;
    let start = Instant::now();
    // A window's logits are half a gigabyte for two thousand tokens of a large vocabulary, so they are taken one
    // micro-batch at a time: the engine computes the same either way.
    let at_once = (context.params().n_ubatch as usize).clamp(1, SCORED_AT_ONCE);
    for (window, chunk) in tokens.chunks_exact(n_ctx).take(total).enumerate() {
        context.clear()?;
        // Logits of position j predict token j + 1; the last position predicts nothing of this window.
        let scored = |j: usize| j >= first && j + 1 < n_ctx;
        for start in (0..n_ctx).step_by(at_once) {
            if cancel.load(Ordering::Relaxed) {
                return Err(PerplexityError::Cancelled);
            }
            let part = start..n_ctx.min(start + at_once);
            let mut batch = Batch::new();
            for j in part.clone() {
                let token = if j == 0 { bos.unwrap_or(chunk[0]) } else { chunk[j] };
                batch.push(token, Pos::new(j as i32)?, &[SeqId::ZERO], scored(j));
            }
            let logits = context.decode(&batch)?;
            for j in part.filter(|&j| scored(j)) {
                let row = logits.at(SeqId::ZERO, Pos::new(j as i32)?)?;
                let not_finite = PerplexityError::NotFinite { window, position: j as u32 };
                sums.add(nll(row, chunk[j + 1].index()).ok_or(not_finite)?);
            }
        }
        progress(window + 1, total, sums.result().0);
    }
    let seconds = start.elapsed().as_secs_f64();
    let (perplexity, uncertainty) = sums.result();
    Ok(Perplexity {
        perplexity,
        uncertainty,
        n_ctx: options.n_ctx,
        windows: total,
        tokens: tokens.len(),
        counted: sums.count,
        tokens_per_second: (total * n_ctx) as f64 / seconds.max(1e-9),
    })
}

/// Tokens a second when decoding one at a time after a short prompt: the median of three runs of `n` tokens, or of as
/// many as the model's context holds.
///
/// # Errors
/// What the engine returns.
pub fn decode_speed(model: &Model, threads: u32, n: usize) -> Result<f64, bitnet_rs::Error> {
    let n_ctx_train = model.info().hyperparameters().n_ctx_train;
    let prompt = model.tokenize("The", Special::ContentWithBos)?;
    let n = n.min((n_ctx_train as usize).saturating_sub(prompt.len())).max(1);
    let n_ctx = u32::try_from(n + prompt.len()).unwrap_or(n_ctx_train).min(n_ctx_train);
    let mut context = Context::new(model, &ContextParams { n_ctx, n_threads: threads, ..ContextParams::default() })?;
    let mut speeds = Vec::new();
    for _ in 0..3 {
        context.clear()?;
        let mut next: TokenId = {
            let logits = context.decode(&Batch::prompt(&prompt, Pos::ZERO, SeqId::ZERO)?)?;
            greedy(logits.last()?).unwrap_or(prompt[0])
        };
        let start = Instant::now();
        for _ in 0..n {
            let pos = context.next_pos(SeqId::ZERO)?;
            let logits = context.decode(&Batch::prompt(&[next], pos, SeqId::ZERO)?)?;
            next = greedy(logits.last()?).unwrap_or(next);
        }
        speeds.push(n as f64 / start.elapsed().as_secs_f64().max(1e-9));
    }
    speeds.sort_by(f64::total_cmp);
    Ok(speeds[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn likelihoods_and_their_mean_by_hand() {
        // Probabilities 1/8, 2/8, 5/8.
        let logits = [100.0, 100.0 + 2f32.ln(), 100.0 + 5f32.ln()];
        let mut sums = Sums::default();
        for (token, p) in [(0, 0.125f64), (1, 0.25), (2, 0.625)] {
            let got = nll(&logits, token).unwrap();
            assert!((got + p.ln()).abs() < 1e-5, "{got}");
            sums.add(-p.ln());
        }
        // (8 · 4 · 8/5)^(1/3); the logarithms 2.0794, 1.3863, 0.4700 have the variance 0.43447 (population), hence
        // √(0.43447/2) = 0.46609 for the mean.
        let (perplexity, uncertainty) = sums.result();
        assert!((perplexity - 51.2f64.cbrt()).abs() < 1e-9, "{perplexity}");
        assert!((uncertainty / perplexity - 0.46609).abs() < 1e-5, "{}", uncertainty / perplexity);
        assert_eq!(nll(&[f32::NAN, 0.0], 1), None);
        assert_eq!(nll(&[f32::INFINITY, 0.0], 1), None);
        assert_eq!(nll(&[0.0], 1), None);
    }
}
