//! Gate 0: the model loads and speaks at a sane speed.
//!
//! Load time, prefill and decode are timed apart. Coherence: the embedded model must repeat its recorded greedy
//! continuations; any other model must not degenerate and must give a plain English passage a sane perplexity.
//! A synthetic model (random weights) says nothing about coherence: UNKNOWN.

use std::path::Path;
use std::time::Instant;

use bitnet_rs::{Batch, Context, ContextParams, CpuFeatures, Model, ModelParams, Pos, SeqId, Special, TokenId, greedy};
use gguf::ModelFile;
use serde_json::json;

use super::recorder::{Recorder, finding};
use super::thresholds::FirstLight;
use super::{GateError, GateId, GateInputs, fault, not_applicable, not_planted};
use crate::report::{FaultReport, Severity};
use models::faults::{self, FaultError, FileFault};
use models::recording::Recording;
use models::source::ModelSource;
use reference::likelihood;

/// Plain English that no model's training data need contain.
pub const PASSAGE: &str = include_str!("../../../gates/prompts/passage.txt");

/// Prompts for models without a recording.
const PROMPTS: [&str; 3] =
    ["The quick brown fox", "In the kitchen there is a lamp. The lamp", "Once there was a small house near a river."];

const DECODED: usize = 48;

/// A context from which prompts, their continuations and most of the passage fit.
const COHERENCE_CONTEXT: usize = 160;

/// Faults that the self-check plants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// None.
    None,
    /// A sampler that always gives the same token.
    ConstantToken,
    /// A NaN among the logits.
    NanLogits,
}

/// Runs the gate.
///
/// # Errors
/// When the model cannot be loaded or decoded.
pub fn run(inputs: &GateInputs, rec: &mut Recorder, planted: Fault) -> Result<(), GateError> {
    let t = &inputs.thresholds.first_light;
    let path = inputs.model.path()?;
    let started = Instant::now();
    let model = Model::load(path.as_path(), ModelParams::default())?;
    let load_ms = started.elapsed().as_secs_f64() * 1e3;
    rec.metric("load_ms", load_ms);
    rec.metric("threads", inputs.threads);
    rec.metric("cpu_features", CpuFeatures::detect().present);

    let synthetic = is_synthetic(model.file());
    let recording = recording_for(&inputs.model, path.as_path())?;
    coherence(&model, inputs, recording.as_ref(), synthetic, planted, rec)?;
    if planted == Fault::None {
        speed(&model, inputs, t, rec)?;
    }
    Ok(())
}

fn is_synthetic(file: &ModelFile) -> bool {
    matches!(file.gguf().bool("bitnet_harness.synthetic"), Ok(Some(true)))
}

/// The embedded recording if it is this very model's.
fn recording_for(source: &ModelSource, path: &Path) -> Result<Option<Recording>, GateError> {
    let recording = Recording::embedded().map_err(|e| GateError::Other(format!("recording: {e}")))?;
    let hash = match source {
        ModelSource::Embedded => super::sha256(models::source::EMBEDDED),
        ModelSource::File(_) => {
            let file = gguf::GgufFile::open(path, &Default::default()).map_err(bitnet_rs::Error::from)?;
            if file.gguf().file_len() != models::source::EMBEDDED.len() as u64 {
                return Ok(None);
            }
            super::sha256(&std::fs::read(path)?)
        }
    };
    Ok((recording.model == hash).then_some(recording))
}

fn params(inputs: &GateInputs, n_ctx: u32) -> ContextParams {
    ContextParams { n_ctx, n_threads: inputs.threads, ..Default::default() }
}

/// Tokens that a sequence may have.
fn room(context: &Context) -> usize {
    context.params().n_ctx.min(context.model().info().hyperparameters().n_ctx_train) as usize
}

/// Greedy tokens after `prompt`, up to the end of generation. `None` where a row of logits is not finite.
fn continue_greedily(
    context: &mut Context,
    prompt: &[TokenId],
    n: usize,
    planted: Fault,
) -> Result<Option<Vec<TokenId>>, GateError> {
    context.clear()?;
    // A short context gets the prompt's beginning and a shorter continuation.
    let room = room(context);
    let prompt = &prompt[..prompt.len().min((room / 2).max(1))];
    let n = n.min(room.saturating_sub(prompt.len()));
    let mut row = context.decode(&Batch::prompt(prompt, Pos::ZERO, SeqId::ZERO)?)?.last()?.to_vec();
    let mut out = Vec::new();
    // One that goes on: the end of generation would only end it.
    let model = context.model();
    let goes_on = |t: &TokenId| !model.is_end_of_generation(*t) && !model.is_control(*t);
    let constant = (0..model.n_vocab() as i32).filter_map(|id| model.token(id).ok()).find(goes_on);
    while out.len() < n {
        match planted {
            Fault::NanLogits => row.iter_mut().for_each(|logit| *logit = f32::NAN),
            Fault::ConstantToken => {
                row.fill(0.0);
                if let Some(constant) = constant {
                    row[constant.index()] = 1.0;
                }
            }
            Fault::None => {}
        }
        if !row.iter().all(|x| x.is_finite()) {
            return Ok(None);
        }
        let Some(token) = greedy(&row) else { return Ok(None) };
        if context.model().is_end_of_generation(token) {
            break;
        }
        out.push(token);
        let next = context.next_pos(SeqId::ZERO)?;
        row = context.decode(&Batch::prompt(&[token], next, SeqId::ZERO)?)?.last()?.to_vec();
    }
    Ok(Some(out))
}

fn coherence(
    model: &Model,
    inputs: &GateInputs,
    recording: Option<&Recording>,
    synthetic: bool,
    planted: Fault,
    rec: &mut Recorder,
) -> Result<(), GateError> {
    let t = &inputs.thresholds.first_light;
    let mut context = Context::new(model, &params(inputs, 512.min(model.info().hyperparameters().n_ctx_train)))?;
    let prompts: Vec<(&str, Option<&[i32]>)> = match recording {
        Some(r) => r.prompts.iter().map(|p| (p.prompt.as_str(), Some(p.tokens.as_slice()))).collect(),
        None => PROMPTS.iter().map(|p| (*p, None)).collect(),
    };
    let (mut matched, mut compared) = (0, 0);
    for (i, (prompt, expected)) in prompts.iter().enumerate() {
        rec.progress(&format!("speaking ({} of {})", i + 1, prompts.len()));
        let tokens = model.tokenize(prompt, Special::MarkupWithBos)?;
        let n = expected.map_or(DECODED, |e| e.len().max(1));
        rec.plan(1);
        let Some(spoken) = continue_greedily(&mut context, &tokens, n, planted)? else {
            rec.check(false, || {
                let data = [("prompt", json!(prompt))];
                finding(Severity::Failure, "not-finite", "the logits hold NaN or infinity", data)
            });
            continue;
        };
        rec.check(true, || finding(Severity::Failure, "not-finite", "", []));
        let text = String::from_utf8_lossy(&model.detokenize(&spoken, true)?).into_owned();
        if let Some(expected) = expected {
            let same = spoken.iter().zip(*expected).take_while(|(s, e)| s.get() == **e).count();
            matched += spoken.iter().zip(*expected).filter(|(s, e)| s.get() == **e).count();
            compared += expected.len().max(spoken.len());
            if same < expected.len() {
                rec.finding(finding(
                    Severity::Note,
                    "continuation-differs",
                    format!("{prompt:?}: differs from the recording at token {same}"),
                    [("spoken", json!(text))],
                ));
            }
        } else if !synthetic {
            rec.plan(1);
            let (run, distinct) = repetition(&spoken);
            rec.check(run <= t.max_equal_run && (spoken.len() < 16 || distinct >= t.min_distinct_trigrams), || {
                finding(
                    Severity::Failure,
                    "degenerate",
                    format!("{prompt:?}: one token {run} times in a row, {:.0} % distinct 3-grams", distinct * 100.0),
                    [("spoken", json!(text)), ("run", json!(run)), ("distinct_trigrams", json!(distinct))],
                )
            });
        }
    }
    if compared > 0 {
        let share = f64::from(matched as u32) / f64::from(compared as u32);
        rec.metric("token_match", share);
        rec.say(format!("{:.1} % of {compared} tokens as recorded", share * 100.0));
        rec.plan(1);
        rec.check(share >= t.min_token_match, || {
            let message = format!(
                "{:.1} % of the tokens equal the recording, {:.0} % are needed",
                share * 100.0,
                t.min_token_match * 100.0
            );
            finding(Severity::Failure, "not-as-recorded", message, [("token_match", json!(share))])
        });
    }
    rec.progress("perplexity");
    let perplexity = perplexity(&mut context)?;
    rec.metric("perplexity", perplexity);
    let limit = recording.map_or(t.max_perplexity_any, |r| r.perplexity * t.perplexity_factor);
    if synthetic {
        rec.say(format!("perplexity {perplexity:.0}"));
        rec.unmeasured("coherence", "synthetic weights: speed and finiteness only, nothing to say about coherence");
        return Ok(());
    }
    if room(&context) < COHERENCE_CONTEXT {
        let message = format!(
            "the model's context of {} tokens is too short to judge what it says: {COHERENCE_CONTEXT} are needed",
            room(&context)
        );
        rec.say(format!("perplexity {perplexity:.2}"));
        rec.unmeasured("short-context", message);
        return Ok(());
    }
    rec.say(format!("perplexity {perplexity:.2} (bound {limit:.2})"));
    rec.plan(1);
    rec.check(perplexity <= limit, || {
        let message = format!("perplexity of the passage is {perplexity:.2}, at most {limit:.2} is expected");
        finding(Severity::Failure, "perplexity", message, [("perplexity", json!(perplexity)), ("limit", json!(limit))])
    });
    Ok(())
}

/// Perplexity of the fixed passage, in nats per token, exponentiated; infinite where a logit is not finite.
fn perplexity(context: &mut Context) -> Result<f64, GateError> {
    context.clear()?;
    let mut tokens = context.model().tokenize(PASSAGE, Special::ContentWithBos)?;
    tokens.truncate(room(context));
    let logits = context.decode(&Batch::scored(&tokens, Pos::ZERO, SeqId::ZERO)?)?;
    let mut rows = Vec::new();
    for i in 0..tokens.len() {
        rows.extend_from_slice(logits.row(i)?);
    }
    let ids: Vec<i32> = tokens.iter().map(|t| t.get()).collect();
    let n_vocab = context.model().n_vocab() as usize;
    Ok(likelihood::perplexity(&rows, &ids, n_vocab).filter(|p| p.is_finite()).unwrap_or(f64::MAX))
}

/// Longest run of one token, and the share of distinct 3-grams.
fn repetition(tokens: &[TokenId]) -> (usize, f64) {
    let (mut longest, mut run) = (0, 0);
    for (i, token) in tokens.iter().enumerate() {
        run = if i > 0 && tokens[i - 1] == *token { run + 1 } else { 1 };
        longest = longest.max(run);
    }
    let all: Vec<_> = tokens.windows(3).collect();
    let distinct: std::collections::HashSet<_> = all.iter().collect();
    let share = if all.is_empty() { 1.0 } else { distinct.len() as f64 / all.len() as f64 };
    (longest, share)
}

fn speed(model: &Model, inputs: &GateInputs, t: &FirstLight, rec: &mut Recorder) -> Result<(), GateError> {
    let n_ctx = 512.min(model.info().hyperparameters().n_ctx_train);
    let mut context = Context::new(model, &params(inputs, n_ctx))?;
    rec.metric("n_ubatch", context.params().n_ubatch);
    let prompt_len = (n_ctx as usize / 2).max(1);
    let decode_len = (if inputs.quick { 16 } else { 32 }).min(n_ctx as usize - prompt_len);
    if decode_len == 0 {
        rec.unmeasured("short-context", format!("a context of {n_ctx} has no room to decode behind a prompt"));
        return Ok(());
    }
    let tokens: Vec<TokenId> = model.tokenize(&PASSAGE.repeat(8), Special::ContentWithBos)?;
    let tokens: Vec<TokenId> = tokens.into_iter().cycle().take(prompt_len).collect();
    let (mut prefill, mut decode) = (Vec::new(), Vec::new());
    rec.plan(t.runs as u64);
    for i in 0..=t.runs {
        rec.progress(&format!("speed ({} of {})", i, t.runs));
        context.clear()?;
        let started = Instant::now();
        context.decode(&Batch::prompt(&tokens, Pos::ZERO, SeqId::ZERO)?)?;
        let prefilled = started.elapsed().as_secs_f64();
        let started = Instant::now();
        let mut finite = true;
        for _ in 0..decode_len {
            let row = context.logits()?.last()?;
            finite &= row.iter().all(|x| x.is_finite());
            let token = greedy(row).map_or_else(|| model.token(0), Ok)?;
            let next = context.next_pos(SeqId::ZERO)?;
            context.decode(&Batch::prompt(&[token], next, SeqId::ZERO)?)?;
        }
        let decoded = started.elapsed().as_secs_f64();
        // The first round warms caches and is not counted.
        if i > 0 {
            prefill.push(prompt_len as f64 / prefilled);
            decode.push(decode_len as f64 / decoded);
            rec.check(finite, || finding(Severity::Failure, "not-finite", "a timed run gave NaN or infinity", []));
        }
    }
    let (p, d) = (Spread::of(&prefill), Spread::of(&decode));
    rec.metric("prefill_tokens", prompt_len);
    rec.metric("decode_tokens", decode_len);
    rec.metric("prefill_tokens_per_second", p.json());
    rec.metric("decode_tokens_per_second", d.json());
    rec.say(format!("prefill {:.1} t/s, decode {:.1} t/s (median of {})", p.median, d.median, t.runs));
    Ok(())
}

/// Median and range of a few samples.
struct Spread {
    median: f64,
    min: f64,
    max: f64,
    samples: Vec<f64>,
}

impl Spread {
    fn of(samples: &[f64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let median = match sorted.len() {
            0 => f64::NAN,
            n if n % 2 == 1 => sorted[n / 2],
            n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
        };
        let (min, max) = (sorted.first().copied().unwrap_or(f64::NAN), sorted.last().copied().unwrap_or(f64::NAN));
        Self { median, min, max, samples: samples.to_vec() }
    }

    fn json(&self) -> serde_json::Value {
        json!({"median": self.median, "min": self.min, "max": self.max, "samples": self.samples})
    }
}

/// Plants the gate's faults.
pub fn self_check(inputs: &GateInputs, progress: &mut dyn FnMut(&str)) -> Vec<FaultReport> {
    plant(inputs, progress).unwrap_or_else(|e| vec![fault(GateId::FirstLight, "(set-up)", false, e.to_string())])
}

fn plant(inputs: &GateInputs, progress: &mut dyn FnMut(&str)) -> Result<Vec<FaultReport>, GateError> {
    let path = inputs.model.path()?;
    let file = ModelFile::open(path.as_path(), &Default::default()).map_err(bitnet_rs::Error::from)?;
    let random = is_synthetic(&file);
    let recording = recording_for(&inputs.model, path.as_path())?;
    let n_layer = file.info().hyperparameters().n_layer;
    let mut reports = Vec::new();
    progress("NaN logits");
    reports.push(judge("NaN logits", inputs, Fault::NanLogits));
    // Against a recording one layer shows. Without one the gate only says that the model speaks sanely, which a trained
    // model of many layers may go on to do without one of them: what it claims to see is a model without any.
    let (zeroed, layers) = match &recording {
        Some(_) => ("weights of one layer zeroed", n_layer / 2..n_layer / 2 + 1),
        None => ("weights of every layer zeroed", 0..n_layer),
    };
    let short = (file.info().hyperparameters().n_ctx_train as usize) < COHERENCE_CONTEXT;
    if random || short {
        let why = match random {
            true => "random weights: the gate says nothing about coherence",
            false => "the context is too short: the gate says nothing about coherence",
        };
        reports.extend(["constant-token sampler", zeroed].map(|name| not_applicable(GateId::FirstLight, name, why)));
        return Ok(reports);
    }
    progress("constant-token sampler");
    reports.push(judge("constant-token sampler", inputs, Fault::ConstantToken));
    progress(zeroed);
    let copied = tempfile::tempdir().map_err(FaultError::from).and_then(|folder| {
        let target = folder.path().join("zeroed.gguf");
        let faults: Vec<FileFault> = layers.map(FileFault::ZeroLayer).collect();
        faults::rewrite(path.as_path(), &target, &faults, false)?;
        Ok((folder, target))
    });
    reports.push(match copied {
        Ok((_folder, target)) => judge_file(zeroed, inputs, recording.as_ref(), &target),
        Err(e) => not_planted(GateId::FirstLight, zeroed, &e),
    });
    Ok(reports)
}

fn judge(name: &str, inputs: &GateInputs, planted: Fault) -> FaultReport {
    let mut rec = Recorder::new(Box::new(|_| {}));
    match run(inputs, &mut rec, planted) {
        Ok(()) => verdict(name, &rec),
        Err(e) => fault(GateId::FirstLight, name, false, e.to_string()),
    }
}

/// `recording` belongs to the intact file: the faulty one is compared as if it were that.
fn judge_file(name: &str, inputs: &GateInputs, recording: Option<&Recording>, path: &Path) -> FaultReport {
    let mut rec = Recorder::new(Box::new(|_| {}));
    let outcome = Model::load(path, ModelParams::default())
        .map_err(GateError::from)
        .and_then(|model| coherence(&model, inputs, recording, false, Fault::None, &mut rec));
    match outcome {
        Ok(()) => verdict(name, &rec),
        Err(e) => fault(GateId::FirstLight, name, false, e.to_string()),
    }
}

fn verdict(name: &str, rec: &Recorder) -> FaultReport {
    let failure = rec.findings().iter().find(|f| f.severity == Severity::Failure);
    let evidence = failure.map_or("nothing failed".to_owned(), |f| f.message.clone());
    fault(GateId::FirstLight, name, rec.failed(), evidence)
}

/// Records the greedy continuations of a model for the prompts given.
///
/// # Errors
/// When the model cannot be loaded or decoded.
pub fn record(inputs: &GateInputs, prompts: &[String], max_tokens: usize) -> Result<Recording, GateError> {
    let path = inputs.model.path()?;
    let model = Model::load(path.as_path(), ModelParams::default())?;
    let mut context = Context::new(&model, &params(inputs, 512.min(model.info().hyperparameters().n_ctx_train)))?;
    let mut continuations = Vec::new();
    for prompt in prompts {
        let tokens = model.tokenize(prompt, Special::MarkupWithBos)?;
        let spoken = continue_greedily(&mut context, &tokens, max_tokens, Fault::None)?
            .ok_or_else(|| GateError::Other(format!("{prompt:?}: the logits are not finite")))?;
        continuations.push(models::recording::Continuation {
            prompt: prompt.clone(),
            text: String::from_utf8_lossy(&model.detokenize(&spoken, true)?).into_owned(),
            tokens: spoken.iter().map(|t| t.get()).collect(),
        });
    }
    let perplexity = perplexity(&mut context)?;
    let hash = super::sha256(&std::fs::read(path.as_path())?);
    Ok(Recording { model: hash, perplexity, prompts: continuations })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetition_by_hand() {
        let ids = |v: &[i32]| v.iter().map(|&i| TokenId::new(i, 100).unwrap()).collect::<Vec<_>>();
        assert_eq!(repetition(&ids(&[1, 1, 1, 2])), (3, 1.0));
        let (run, distinct) = repetition(&ids(&[5; 12]));
        assert_eq!(run, 12);
        assert!((distinct - 0.1).abs() < 1e-12);
        assert_eq!(repetition(&[]), (0, 1.0));
    }

    #[test]
    fn median_of_even_and_odd_counts() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]).median, 2.0);
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 3.0]).median, 2.5);
    }
}
