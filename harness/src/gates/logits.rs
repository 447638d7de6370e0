//! Gate 2: the engine's logits match the HuggingFace reference.
//!
//! Hashes first (another model's reference is refused by name), then the scales of the ternary tensors, then token
//! ids, then logits: first token, KL divergence, |Δ|, order of the best. Beside that the engine's tensors are
//! compared with a forward pass of our own on the same file, step by step, so that a step that goes wrong has a name.
//! Without a reference that comparison is all there is: a second opinion, and the gate says UNKNOWN.

use std::collections::BTreeMap;
use std::path::Path;

use bitnet_rs::{Batch, Context, ContextParams, Model, ModelParams, Pos, SeqId, Special, TokenId};
use files::mapped::MappedFile;
use gguf::{Gguf, GgufFile, ModelFile, ModelInfo, TokenizerModel};
use serde_json::json;

use super::first_light::PASSAGE;
use super::recorder::{Recorder, finding};
use super::{GateError, GateId, GateInputs, fault, not_planted};
use crate::gates::engine_trace::{engine_trace, forced_comparison, origin};
use crate::report::{FaultReport, Finding, Severity};
use models::faults::{self, FaultError, FileFault};
use models::source::ModelSource;
use reference::agreement::{Agreement, RowAgreement, first, shift_hint};
use reference::identity::{self, IdentityError, ScaleVerdict, TernaryWeights};
use reference::likelihood;
use reference::reference_file::{ReferenceFile, StoredPrompt};
use reference::trace::{Comparison, Departure};

/// The embedded model's reference (docs/formats/reference.md).
pub static EMBEDDED_REFERENCE: &[u8] = include_bytes!("../../../gates/references/bitnet-harness-home.safetensors");

/// Positions decoded at once: a row has the size of the vocabulary.
const CHUNK: usize = 128;

/// Every how manyth prompt `--quick` takes.
const QUICK_STEP: usize = 4;

/// Faults that the self-check plants into a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// None.
    None,
    /// Every token is decoded this many positions late.
    Positions(usize),
    /// Rows are read one position off.
    Rows,
    /// The model file is a faulty copy; this is the intact one.
    File(std::path::PathBuf),
}

/// Runs the gate.
///
/// # Errors
/// When the model cannot be loaded or decoded.
pub fn run(inputs: &GateInputs, rec: &mut Recorder, planted: &Fault) -> Result<(), GateError> {
    let path = inputs.model.path()?;
    let file = ModelFile::open(path.as_path(), &Default::default()).map_err(bitnet_rs::Error::from)?;
    let bytes = MappedFile::open(path.as_path()).map_err(GateError::file(path.as_path()))?;
    let ternary = TernaryWeights::of(file.gguf(), &bytes, file.info().hyperparameters().n_layer);

    let Some(reference) = reference(inputs, rec)? else { return Ok(()) };
    let planted_file = matches!(planted, Fault::File(_));
    let asked_for = inputs.reference.is_some() || inputs.model == ModelSource::Embedded || planted_file;
    let strangers = strangers(&reference, &file, path.as_path(), &ternary)?;
    if !strangers.is_empty() && !asked_for {
        rec.unmeasured(
            "no-reference",
            "no reference for this model: write one with scripts/hf_reference.py and pass it with --reference",
        );
        return second_opinion(path.as_path(), file.gguf(), &bytes, inputs, rec);
    }
    rec.plan(1);
    let verdict = scales(&reference, &ternary, inputs);
    let own = rec.check(strangers.is_empty(), || {
        let why = strangers.join("; ");
        let where_ = verdict.as_ref().filter(|v| !matches!(v, ScaleVerdict::Equal(_)));
        let where_ = where_.map_or(String::new(), |v| format!(" ({v})"));
        finding(
            Severity::Failure,
            "reference-of-another-model",
            format!("the reference of '{}' is not this model's: {why}{where_}", reference.model_name),
            [("differs", json!(strangers))],
        )
    });
    if !own && !planted_file {
        rec.say("reference of another model");
        return Ok(());
    }
    if let Some(verdict) = &verdict {
        rec.plan(1);
        if let ScaleVerdict::Equal(worst) = verdict {
            rec.metric("max_scale_error", *worst);
        }
        rec.check(matches!(verdict, ScaleVerdict::Equal(_)), || {
            finding(Severity::Failure, "scales-differ", verdict.to_string(), [])
        });
    }
    let model = Model::load(path.as_path(), ModelParams::default())?;
    let prompts = tokens(&model, &reference, inputs, planted_file, rec)?;
    logits(&model, &reference, &prompts, inputs, planted, rec)?;

    let traced = prompts
        .iter()
        .map(|(_, ids)| ids)
        .max_by_key(|ids| (ids.len().min(inputs.thresholds.logits.traced_tokens), std::cmp::Reverse(ids.len())));
    if let Some(ids) = traced {
        let ids = &ids[..ids.len().min(inputs.thresholds.logits.traced_tokens)];
        rec.progress("tensor by tensor against our own forward pass");
        match planted {
            Fault::File(intact) => {
                let intact_bytes = MappedFile::open(intact).map_err(GateError::file(intact))?;
                let intact = GgufFile::open(intact, &Default::default()).map_err(bitnet_rs::Error::from)?;
                localise(&model, intact.gguf(), &intact_bytes, ids, 0, rec)?;
            }
            Fault::Positions(shift) => localise(&model, file.gguf(), &bytes, ids, *shift, rec)?,
            Fault::None | Fault::Rows => localise(&model, file.gguf(), &bytes, ids, 0, rec)?,
        }
    }
    Ok(())
}

/// The reference asked for, or the embedded one. `None` after a refusal, which is recorded.
fn reference(inputs: &GateInputs, rec: &mut Recorder) -> Result<Option<ReferenceFile>, GateError> {
    let parsed = match &inputs.reference {
        Some(path) => {
            let bytes = MappedFile::open(path).map_err(GateError::file(path))?;
            rec.input("reference", &path.display().to_string(), super::sha256(&bytes));
            ReferenceFile::parse(&bytes)
        }
        None => {
            rec.input("reference", "embedded", super::sha256(EMBEDDED_REFERENCE));
            ReferenceFile::parse(EMBEDDED_REFERENCE)
        }
    };
    match parsed {
        Ok(reference) => {
            rec.metric("reference_model", reference.model_name.as_str());
            rec.metric("reference_versions", json!(reference.versions));
            rec.metric("reference_command", reference.command.as_str());
            rec.metric("reference_runs", json!(reference.runs));
            rec.metric("prompts_sha256", reference.prompts_sha256.as_str());
            Ok(Some(reference))
        }
        Err(e) => {
            rec.say("the reference was refused");
            rec.finding(finding(Severity::Failure, "reference-refused", e.to_string(), []));
            Ok(None)
        }
    }
}

/// Why the reference is another model's; empty if it is this one's.
fn strangers(
    reference: &ReferenceFile,
    file: &ModelFile,
    path: &Path,
    ternary: &Result<TernaryWeights<'_>, IdentityError>,
) -> Result<Vec<String>, GateError> {
    let mut why: Vec<String> = identity::arch_mismatches(&reference.arch, file.info().hyperparameters())
        .iter()
        .map(ToString::to_string)
        .collect();
    if let Some(expected) = &reference.gguf_sha256
        && why.is_empty()
    {
        let whole = GgufFile::open(path, &Default::default()).map_err(bitnet_rs::Error::from)?;
        let hash = whole.file_hash(&mut |_, _| std::ops::ControlFlow::Continue(())).map_err(bitnet_rs::Error::from)?;
        if identity::hex(hash) == *expected {
            return Ok(why);
        }
    }
    match ternary {
        Ok(ternary) => {
            let found = ternary.sha256();
            if found != reference.ternary_sha256 {
                let of = |hash: &str| hash.get(..12).unwrap_or(hash).to_owned();
                let (ours, theirs) = (of(&found), of(&reference.ternary_sha256));
                why.push(format!("ternary_sha256 is {theirs}… in the reference and {ours}… in the model"));
            }
        }
        Err(e) => why.push(e.to_string()),
    }
    Ok(why)
}

fn scales(
    reference: &ReferenceFile,
    ternary: &Result<TernaryWeights<'_>, IdentityError>,
    inputs: &GateInputs,
) -> Option<ScaleVerdict> {
    let model = ternary.as_ref().ok()?.scales();
    identity::compare_scales(&reference.scales, &model, inputs.thresholds.logits.max_scale_error)
}

/// Compares token ids prompt by prompt; returns the prompts whose ids are the reference's.
///
/// With a planted file, prompts that differ are kept with the reference's ids, to see the fault in the logits too.
fn tokens<'r>(
    model: &Model,
    reference: &'r ReferenceFile,
    inputs: &GateInputs,
    planted_file: bool,
    rec: &mut Recorder,
) -> Result<Vec<(&'r StoredPrompt, Vec<TokenId>)>, GateError> {
    let bos = match model.bos() {
        Some(bos) => model.token_bytes(bos, true)?,
        None => Vec::new(),
    };
    let step = if inputs.quick { QUICK_STEP } else { 1 };
    let mut equal = Vec::new();
    let (mut compared, mut differing) = (0, 0);
    for prompt in reference.prompts.iter().step_by(step) {
        // A chat prompt is stored as rendered, its text beginning with the text of BOS; no other prompt may.
        let rendered = !bos.is_empty() && prompt.text.as_bytes().starts_with(&bos);
        let special = if rendered { Special::Markup } else { Special::ContentWithBos };
        let ids = model.tokenize(&prompt.text, special)?;
        let found: Vec<i32> = ids.iter().map(|t| t.get()).collect();
        rec.plan(1);
        compared += 1;
        let same = rec.check(found == prompt.tokens, || tokens_differ(model, prompt, &found));
        if same {
            equal.push((prompt, ids));
        } else {
            differing += 1;
            if planted_file {
                let ids = prompt.tokens.iter().map(|&t| model.token(t)).collect::<Result<Vec<_>, _>>()?;
                equal.push((prompt, ids));
            }
        }
    }
    rec.metric("prompts", compared);
    rec.metric("prompts_with_other_tokens", differing);
    rec.say(format!("token ids of {} of {compared} prompts equal", compared - differing));
    Ok(equal)
}

fn tokens_differ(model: &Model, prompt: &StoredPrompt, found: &[i32]) -> Finding {
    let at = found.iter().zip(&prompt.tokens).take_while(|(f, e)| f == e).count();
    let piece = |ids: &[i32]| match ids.get(at) {
        None => "nothing".to_owned(),
        Some(&id) => match model.token(id).and_then(|t| model.token_bytes(t, true)) {
            Ok(bytes) => format!("{id} {:?}", String::from_utf8_lossy(&bytes)),
            Err(_) => id.to_string(),
        },
    };
    finding(
        Severity::Failure,
        "tokens-differ",
        format!(
            "{}: token {at} is {} here and {} in the reference; its logits are not compared",
            prompt.id,
            piece(found),
            piece(&prompt.tokens)
        ),
        [
            ("prompt", json!(prompt.id)),
            ("index", json!(at)),
            ("found", json!(found.get(at))),
            ("expected", json!(prompt.tokens.get(at))),
            ("pre_tokenizer", json!(model.file().gguf().string("tokenizer.ggml.pre").ok().flatten())),
        ],
    )
}

/// Agreement with one run.
#[derive(Default)]
struct RunAgreement {
    all: Agreement,
    /// Σ of −log-probabilities of the next token under reference and engine, and their count.
    next: (f64, f64, usize),
}

/// Decodes all prompts and compares every position with every run.
fn logits(
    model: &Model,
    reference: &ReferenceFile,
    prompts: &[(&StoredPrompt, Vec<TokenId>)],
    inputs: &GateInputs,
    planted: &Fault,
    rec: &mut Recorder,
) -> Result<(), GateError> {
    let t = &inputs.thresholds.logits;
    let Some(longest) = prompts.iter().map(|(_, ids)| ids.len()).max() else { return Ok(()) };
    let shift = if let Fault::Positions(shift) = planted { *shift } else { 0 };
    let n_ctx = u32::try_from((longest + shift).next_multiple_of(64)).unwrap_or(u32::MAX);
    let n_ctx = n_ctx.min(model.info().hyperparameters().n_ctx_train);
    let mut context = Context::new(model, &ContextParams { n_ctx, n_threads: inputs.threads, ..Default::default() })?;
    let mut runs: Vec<RunAgreement> = reference.runs.iter().map(|_| RunAgreement::default()).collect();
    let mut firsts = Vec::new();
    let mut per_prompt = BTreeMap::new();
    for (at, (prompt, ids)) in prompts.iter().enumerate() {
        rec.progress(&format!("logits of {} ({} of {})", prompt.id, at + 1, prompts.len()));
        rec.plan(1);
        context.clear()?;
        let mut own: Vec<Agreement> = vec![Agreement::default(); runs.len()];
        let mut engine_firsts = Vec::new();
        let mut unusable = None;
        let mut start = 0;
        for size in chunks(ids.len(), CHUNK) {
            let first_pos = Pos::ZERO.forward(start + shift)?;
            let rows = context.decode(&Batch::scored(&ids[start..start + size], first_pos, SeqId::ZERO)?)?;
            for i in 0..size {
                let position = start + i;
                let engine = rows.row(i)?;
                engine_firsts.push(first(engine).and_then(|i| i32::try_from(i).ok()).unwrap_or(-1));
                let log_q = likelihood::log_softmax(engine);
                // The planted fault reads the row of one position as that of the one before.
                let stored = if *planted == Fault::Rows { position.saturating_sub(1) } else { position };
                for ((run, own), total) in prompt.runs.iter().zip(&mut own).zip(&mut runs) {
                    match RowAgreement::of(run, stored, engine, &log_q) {
                        Some(row) => own.push(row),
                        None => unusable = unusable.or(Some(position)),
                    }
                    let next = ids.get(position + 1).and_then(|t| log_q.get(t.index()).copied());
                    if let (Some(found), Some(expected)) = (next, run.next.get(position)) {
                        total.next.0 -= f64::from(*expected);
                        total.next.1 -= found;
                        total.next.2 += 1;
                    }
                }
            }
            start += size;
        }
        rec.check(unusable.is_none(), || {
            let position = unusable.unwrap_or(0);
            finding(
                Severity::Failure,
                "not-finite",
                format!("{}: the logits at position {position} hold NaN or infinity", prompt.id),
                [("prompt", json!(prompt.id)), ("position", json!(position))],
            )
        });
        let figures: serde_json::Map<String, serde_json::Value> =
            reference.runs.iter().zip(&own).map(|(name, a)| (name.clone(), figures(a, t.near_tie))).collect();
        per_prompt.insert(prompt.id.clone(), figures);
        for (total, own) in runs.iter_mut().zip(&own) {
            total.all.extend(own);
        }
        if let Some(judged) = prompt.runs.first() {
            let stored: Vec<i32> = (0..ids.len()).filter_map(|i| judged.top(i)?.0.first().copied()).collect();
            if *planted == Fault::Rows {
                // As if read one position early, like the rows above.
                engine_firsts.remove(0);
            }
            firsts.push((engine_firsts, stored));
        }
    }
    rec.metric("per_prompt", json!(per_prompt));
    for (name, run) in reference.runs.iter().zip(&runs) {
        rec.metric(name, figures(&run.all, t.near_tie));
        if run.next.2 > 0 {
            let n = run.next.2 as f64;
            rec.metric(
                &format!("{name}_perplexity"),
                json!({"reference": (run.next.0 / n).exp(), "engine": (run.next.1 / n).exp()}),
            );
        }
        let a = &run.all;
        rec.say(format!(
            "{name}: top-1 {:.2} %, KL mean {:.1e} max {:.1e}, max |Δ| {:.2}",
            a.top1() * 100.0,
            a.mean_kl(),
            a.max_kl(),
            a.max_abs()
        ));
    }
    judge(reference, &runs, &firsts, prompts, &per_prompt, inputs, rec);
    Ok(())
}

/// The first run decides.
fn judge(
    reference: &ReferenceFile,
    runs: &[RunAgreement],
    firsts: &[(Vec<i32>, Vec<i32>)],
    prompts: &[(&StoredPrompt, Vec<TokenId>)],
    per_prompt: &BTreeMap<String, serde_json::Map<String, serde_json::Value>>,
    inputs: &GateInputs,
    rec: &mut Recorder,
) {
    let t = &inputs.thresholds.logits;
    let (Some(name), Some(run)) = (reference.runs.first(), runs.first()) else { return };
    let a = &run.all;
    let (top1, decided) = a.top1_decided(t.near_tie);
    let worst = prompts
        .iter()
        .map(|(p, _)| p.id.as_str())
        .max_by(|x, y| {
            let kl = |id: &str| per_prompt.get(id).and_then(|m| m.get(name)?.get("mean_kl")?.as_f64()).unwrap_or(0.0);
            kl(x).total_cmp(&kl(y))
        })
        .unwrap_or("none");
    let hint = shift_hint(firsts);
    rec.plan(3);
    let mut good = rec.check(top1 >= t.min_top1, || {
        let message = format!(
            "{name}: the first token agrees at {:.2} % of {decided} positions that are no near-tie, {:.0} % are needed (worst prompt by KL: {worst})",
            top1 * 100.0,
            t.min_top1 * 100.0
        );
        finding(Severity::Failure, "top1", message, [("top1", json!(top1)), ("limit", json!(t.min_top1))])
    });
    for (what, found, limit) in [("mean", a.mean_kl(), t.max_mean_kl), ("99th percentile", a.p99_kl(), t.max_p99_kl)] {
        // Not `found > limit`: what is not a number is no agreement.
        good &= rec.check(found <= limit, || {
            let message = format!("{name}: the {what} of the KL divergence is {found:.3e} nats, at most {limit:.0e} is expected (worst prompt: {worst})");
            finding(Severity::Failure, "kl", message, [("found", json!(found)), ("limit", json!(limit))])
        });
    }
    if let (false, Some(shift)) = (good, hint) {
        rec.finding(finding(
            Severity::Failure,
            "shifted-rows",
            format!("the logits look shifted by one position: row i agrees with the reference's row i{shift:+}"),
            [("shift", json!(shift))],
        ));
    }
}

fn figures(a: &Agreement, near_tie: f64) -> serde_json::Value {
    let (decided, n_decided) = a.top1_decided(near_tie);
    json!({
        "positions": a.len(),
        "top1": a.top1(),
        "top1_decided": decided,
        "positions_decided": n_decided,
        "mean_kl": a.mean_kl(),
        "p99_kl": a.p99_kl(),
        "max_kl": a.max_kl(),
        "max_abs": a.max_abs(),
        "rank_agreement": a.rank_agreement(),
        "max_rest": a.max_rest(),
        "max_top_k_error": a.max_top_k_error(),
    })
}

/// Sizes of the pieces of `n` tokens, at most `max` each; none of one token behind others, whose float paths differ.
fn chunks(n: usize, max: usize) -> Vec<usize> {
    let mut sizes = vec![max; n / max];
    match (n % max, sizes.last_mut()) {
        (0, _) => {}
        (1, Some(last)) => {
            *last -= 1;
            sizes.push(2);
        }
        (rest, _) => sizes.push(rest),
    }
    sizes
}

/// Compares the engine's tensors with our own forward pass and names the first that departs.
fn localise(
    model: &Model,
    gguf: &Gguf,
    bytes: &[u8],
    ids: &[TokenId],
    shift: usize,
    rec: &mut Recorder,
) -> Result<(), GateError> {
    let trace = engine_trace(model, ids, Pos::ZERO.forward(shift)?)?;
    rec.plan(1);
    let comparison = match forced_comparison(gguf, bytes, ids, &trace) {
        Ok(comparison) => comparison,
        Err(e) => {
            rec.unmeasured("no-forward-pass", format!("our own forward pass cannot run this model: {e}"));
            return Ok(());
        }
    };
    report_comparison(&comparison, ids.len(), rec);
    Ok(())
}

fn report_comparison(comparison: &Comparison, n_tokens: usize, rec: &mut Recorder) {
    rec.metric("traced_tokens", n_tokens);
    rec.metric("traced_tensors", comparison.compared);
    if let Some((key, worst)) = &comparison.worst {
        rec.metric(
            "traced_worst",
            json!({"tensor": key.to_string(), "relative": worst.relative, "position": worst.position}),
        );
    }
    rec.check(comparison.agrees(), || match comparison.first_departure() {
        Some(departure) => departs(departure),
        None => {
            let missing: Vec<String> =
                comparison.missing.iter().chain(&comparison.reshaped).take(8).map(ToString::to_string).collect();
            let message = format!(
                "{} tensors compared; the engine shows no such tensors: {}",
                comparison.compared,
                missing.join(", ")
            );
            finding(Severity::Failure, "tensors-missing", message, [])
        }
    });
    if comparison.agrees() {
        rec.say(format!("{} tensors as our own forward pass has them", comparison.compared));
    }
}

fn departs(departure: &Departure) -> Finding {
    finding(
        Severity::Failure,
        "tensor-departs",
        format!("first tensor that departs from our own forward pass: {} ({})", departure, origin(&departure.key)),
        [
            ("tensor", json!(departure.key.to_string())),
            ("origin", json!(origin(&departure.key))),
            ("layer", json!(departure.key.layer)),
            ("position", json!(departure.first.position)),
            ("relative", json!(departure.first.relative)),
        ],
    )
}

/// Without a reference: our own forward pass, forced and free.
fn second_opinion(
    path: &Path,
    gguf: &Gguf,
    bytes: &[u8],
    inputs: &GateInputs,
    rec: &mut Recorder,
) -> Result<(), GateError> {
    rec.progress("second opinion: our own forward pass");
    let model = Model::load(path, ModelParams::default())?;
    let mut ids = model.tokenize(PASSAGE, Special::ContentWithBos)?;
    let room = model.info().hyperparameters().n_ctx_train as usize;
    ids.truncate(room.min(inputs.thresholds.logits.traced_tokens));
    localise(&model, gguf, bytes, &ids, 0, rec)?;
    let Ok(own) = reference::forward::ReferenceModel::load(gguf, bytes) else { return Ok(()) };
    let raw: Vec<i32> = ids.iter().map(|t| t.get()).collect();
    let output = own.forward(&raw, &Default::default(), None, &mut |_| ()).map_err(GateError::cause)?;
    let n_ctx = u32::try_from(ids.len().next_multiple_of(64)).unwrap_or(u32::MAX);
    let mut context = Context::new(&model, &ContextParams { n_ctx, n_threads: inputs.threads, ..Default::default() })?;
    let rows = context.decode(&Batch::scored(&ids, Pos::ZERO, SeqId::ZERO)?)?;
    let (mut same, mut kl) = (0, 0.0);
    for i in 0..ids.len() {
        let (Some(ours), engine) = (output.row(i), rows.row(i)?) else { continue };
        same += u32::from(first(ours) == first(engine));
        kl += likelihood::kl_divergence(ours, engine);
    }
    let n = ids.len().max(1) as f64;
    rec.metric("second_opinion", json!({"positions": ids.len(), "top1": f64::from(same) / n, "mean_kl": kl / n}));
    rec.say(format!(
        "second opinion (our own forward pass, not HuggingFace's): top-1 {same} of {}, mean KL {:.1e}",
        ids.len(),
        kl / n
    ));
    Ok(())
}

/// A fault in the file, and what must be named for it to count as caught.
struct Expected {
    name: &'static str,
    planted: FileFault,
    /// Each must occur in a failure's message.
    named: Vec<String>,
}

/// Plants the gate's faults. A model without a reference is stood in for by the embedded one.
pub fn self_check(inputs: &GateInputs, progress: &mut dyn FnMut(&str)) -> Vec<FaultReport> {
    let mut inputs = inputs.clone();
    if inputs.reference.is_none() {
        inputs.model = ModelSource::Embedded;
    }
    let mut reports = Vec::new();
    for (name, planted, needed) in [
        ("shifted positions", Fault::Positions(1), "rotation (RoPE) in layer 0"),
        ("rows read one position off", Fault::Rows, "shifted by one position"),
    ] {
        progress(name);
        reports.push(plant(name, &inputs, &planted, &[needed.to_owned()]));
    }
    let path = match inputs.model.path() {
        Ok(path) => path,
        Err(e) => {
            reports.push(fault(GateId::Model, "faulty files", false, e.to_string()));
            return reports;
        }
    };
    let file = match ModelFile::open(path.as_path(), &Default::default()) {
        Ok(file) => file,
        Err(e) => {
            reports.push(fault(GateId::Model, "faulty files", false, e.to_string()));
            return reports;
        }
    };
    for expected in file_faults(file.info()) {
        progress(expected.name);
        reports.push(plant_file(&expected, &inputs, path.as_path()));
    }
    reports
}

/// The faults of a model's file, each another value than this model's own.
fn file_faults(model: &ModelInfo) -> [Expected; 4] {
    let h = model.hyperparameters();
    let last = h.n_layer.saturating_sub(1);
    let middle = h.n_layer / 2;
    let scaled = format!("blk.{middle}.ffn_down.weight");
    let tokenizer = model.tokenizer();
    // SentencePiece has no pre-tokenizer: the key means nothing there.
    let pre = (tokenizer.model == TokenizerModel::Bpe).then(|| faults::other_pre_tokenizer(tokenizer.pre.as_deref()));
    [
        Expected {
            name: "other pre-tokenizer",
            planted: FileFault::PreTokenizer(pre.or(tokenizer.pre.as_deref()).map(str::to_owned)),
            named: vec!["in the reference; its logits are not compared".into()],
        },
        Expected {
            name: "one tensor scaled by 2 %",
            planted: FileFault::ScaleTensor { name: scaled.clone(), factor: 1.02 },
            named: vec![format!("{scaled}: scale is 1.0200"), format!("({scaled})")],
        },
        Expected {
            name: "other RoPE base",
            planted: FileFault::RopeBase(faults::other_rope_base(h.rope.freq_base)),
            named: vec!["rope_theta is".into(), "rotation (RoPE) in layer 0".into()],
        },
        Expected {
            name: "two layers swapped",
            planted: FileFault::SwapLayers(0, last),
            named: vec![format!("layers 0 and {last} are swapped"), "(blk.0.".into()],
        },
    ]
}

fn plant_file(expected: &Expected, inputs: &GateInputs, intact: &Path) -> FaultReport {
    let copied = tempfile::tempdir().map_err(FaultError::from).and_then(|folder| {
        let target = folder.path().join("faulty.gguf");
        faults::rewrite(intact, &target, std::slice::from_ref(&expected.planted), false)?;
        Ok((folder, target))
    });
    match copied {
        Ok((_folder, target)) => {
            // The embedded reference belongs to the intact file: it is asked for as such.
            let inputs = GateInputs { model: ModelSource::File(target), ..inputs.clone() };
            plant(expected.name, &inputs, &Fault::File(intact.to_owned()), &expected.named)
        }
        Err(e) => not_planted(GateId::Model, expected.name, &e),
    }
}

/// Runs the gate with a fault; caught if it fails and the failures name all that is `needed`.
fn plant(name: &str, inputs: &GateInputs, planted: &Fault, needed: &[String]) -> FaultReport {
    let mut rec = Recorder::new(Box::new(|_| {}));
    // Every fourth prompt shows each of these faults.
    let inputs = GateInputs { quick: true, ..inputs.clone() };
    if let Err(e) = run(&inputs, &mut rec, planted) {
        return fault(GateId::Model, name, false, e.to_string());
    }
    let failures: Vec<&Finding> = rec.findings().iter().filter(|f| f.severity == Severity::Failure).collect();
    let says = |what: &String| failures.iter().find(|f| f.message.contains(what));
    let named: Vec<&str> = needed.iter().filter_map(says).map(|f| f.message.as_str()).collect();
    let caught = rec.failed() && named.len() == needed.len();
    let evidence = if caught {
        named.join(" | ")
    } else {
        let all: Vec<&str> = failures.iter().take(6).map(|f| f.message.as_str()).collect();
        if all.is_empty() { "nothing failed".into() } else { format!("not named as it should be: {}", all.join(" | ")) }
    };
    fault(GateId::Model, name, caught, evidence)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each fault changes a model whose own values are those that other models get as a fault.
    #[test]
    fn the_faults_of_a_file_differ_from_the_file() {
        use synth::{SynthSpec, write_synth_file};
        let folder = tempfile::tempdir().unwrap();
        let (intact, faulty) = (folder.path().join("m.gguf"), folder.path().join("f.gguf"));
        let tiny = SynthSpec { n_embd: 128, n_ff: 128, n_vocab: 300, ..SynthSpec::preset("tiny").unwrap() };
        for (rope_base, pre, n_layer) in
            [(500_000.0, Some("llama-bpe"), 2), (10_000.0, Some("gpt-2"), 3), (200.0, None, 1)]
        {
            let spec = SynthSpec { rope_base, pre_tokenizer: pre.map(str::to_owned), n_layer, ..tiny.clone() };
            write_synth_file(&spec, 1, &intact, true, &mut |_| (), &Default::default()).unwrap();
            let file = ModelFile::open(&intact, &Default::default()).unwrap();
            for expected in file_faults(file.info()) {
                let planted = faults::rewrite(&intact, &faulty, std::slice::from_ref(&expected.planted), true);
                if n_layer == 1 && expected.name == "two layers swapped" {
                    assert!(planted.unwrap_err().has_no_place());
                    continue;
                }
                planted.unwrap();
                let differs = std::fs::read(&intact).unwrap() != std::fs::read(&faulty).unwrap();
                assert!(differs, "{} in {rope_base}, {pre:?}", expected.name);
            }
        }
    }

    #[test]
    fn no_chunk_of_one_token_behind_others() {
        assert_eq!(chunks(1, 128), [1]);
        assert_eq!(chunks(128, 128), [128]);
        assert_eq!(chunks(129, 128), [127, 2]);
        assert_eq!(chunks(300, 128), [128, 128, 44]);
        assert_eq!(chunks(0, 128), [] as [usize; 0]);
    }
}
