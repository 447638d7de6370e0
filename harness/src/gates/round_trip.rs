//! Gate 3a: a restored sequence state decodes as the live one.
//!
//! Save, fresh context, restore, continue: against the live context with the same split of micro-batches the
//! logits must be equal bit for bit. Against one pass over everything they are bounded. A neighbour sequence must
//! not notice, wrong settings must be refused by name, and decoding at a shifted position must show.

use bitnet_rs::{Batch, Context, ContextParams, Error, Model, ModelParams, Pos, SeqId, TokenId};
use gguf::Hyperparameters;
use kv::{KvTensor, KvType, SequenceState, StateBlob};
use serde_json::json;

use super::recorder::{Recorder, SHORTAGE, finding};
use super::thresholds::RoundTrip;
use super::{GateError, GateId, GateInputs, fault, not_applicable};
use crate::report::{FaultReport, Finding, Severity};

const NEIGHBOUR_TOKENS: usize = 7;
/// Tokens of the neighbour after the restore.
const NEIGHBOUR_REST: usize = 2;

/// The longest prefix: `near_n_ctx` cells of the smaller context stay free at the end.
fn longest(t: &RoundTrip, small: u32) -> usize {
    (small as usize).saturating_sub(t.near_n_ctx + t.continuation + NEIGHBOUR_TOKENS + NEIGHBOUR_REST)
}

/// Settings of one comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Case {
    prefix: usize,
    n_ctx: u32,
    n_ctx_restored: u32,
    flash_attn: bool,
    type_k: KvType,
    type_v: KvType,
    threads: u32,
}

impl Case {
    fn params(&self, n_ctx: u32) -> ContextParams {
        ContextParams {
            n_ctx,
            n_ubatch: 256,
            n_seq_max: 3,
            n_threads: self.threads,
            type_k: self.type_k,
            type_v: self.type_v,
            flash_attn: self.flash_attn,
            ..Default::default()
        }
    }

    fn name(&self) -> String {
        format!(
            "prefix {}, n_ctx {}→{}, flash attention {}, K {}, V {}, {} threads",
            self.prefix,
            self.n_ctx,
            self.n_ctx_restored,
            if self.flash_attn { "on" } else { "off" },
            self.type_k,
            self.type_v,
            self.threads
        )
    }
}

/// Combinations of types and flash attention that the engine can compute with heads of this size: the quantized types
/// come in blocks, which must divide it.
fn settings(head_dim: u32) -> Vec<(bool, KvType, KvType)> {
    use KvType::{F16, F32, Q8_0};
    let all = [
        (false, F16, F16),
        (true, F16, F16),
        (false, F32, F16),
        (false, Q8_0, F16),
        (true, Q8_0, F16),
        (true, F16, Q8_0),
        (true, Q8_0, Q8_0),
    ];
    let fits = |kv: KvType| head_dim.is_multiple_of(kv.block_len());
    all.into_iter().filter(|&(_, type_k, type_v)| fits(type_k) && fits(type_v)).collect()
}

/// Every setting with every prefix on a small model. On a large one each setting, each prefix, each context size
/// and each thread count occurs, but not their whole product; the count is in the report.
fn cases(t: &RoundTrip, threads: u32, h: &Hyperparameters, large: bool) -> Vec<Case> {
    let [small, big] = t.n_ctx.map(|n| n.min(h.n_ctx_train));
    let mut prefixes = t.prefixes.clone();
    prefixes.push(longest(t, small));
    prefixes.retain(|p| *p > 0 && *p <= longest(t, small));
    let settings = settings(h.head_dim);
    let mut cases = Vec::new();
    for (i, &(flash_attn, type_k, type_v)) in settings.iter().enumerate() {
        for (j, &prefix) in prefixes.iter().enumerate() {
            let both = [threads.clamp(1, 2), 1];
            for (l, &threads) in both.iter().enumerate().take(if threads > 1 { 2 } else { 1 }) {
                // Large models: a diagonal through settings × prefixes × threads.
                if large && ((i + j) % settings.len() != 0 || (j + l) % 2 != 0) {
                    continue;
                }
                let swap = (i + j + l) % 2 == 1;
                let (n_ctx, n_ctx_restored) = if swap { (big, small) } else { (small, big) };
                cases.push(Case { prefix, n_ctx, n_ctx_restored, flash_attn, type_k, type_v, threads });
            }
        }
    }
    cases
}

fn tokens(model: &Model, n: usize, salt: u64) -> Result<Vec<TokenId>, Error> {
    // Ordinary tokens, spread over the vocabulary by a multiplicative hash.
    let n_vocab = u64::from(model.n_vocab());
    let mut found = Vec::with_capacity(n);
    let mut state = salt;
    while found.len() < n {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let token = model.token(((state >> 33) % n_vocab) as i32)?;
        if !model.is_control(token) {
            found.push(token);
        }
    }
    Ok(found)
}

fn go_on(context: &mut Context, seq: SeqId, tokens: &[TokenId], shift: usize) -> Result<Vec<f32>, Error> {
    let first = context.next_pos(seq)?.forward(shift)?;
    let batch = Batch::scored(tokens, first, seq)?;
    let logits = context.decode(&batch)?;
    let mut all = Vec::new();
    for i in 0..tokens.len() {
        all.extend_from_slice(logits.row(i)?);
    }
    Ok(all)
}

/// The texts of one comparison.
struct Texts {
    prefix: Vec<TokenId>,
    rest: Vec<TokenId>,
    neighbour: Vec<TokenId>,
    neighbour_rest: Vec<TokenId>,
}

struct Live {
    state: SequenceState,
    logits: Vec<f32>,
    neighbour_logits: Vec<f32>,
}

const MAIN: SeqId = SeqId::ZERO;

fn neighbour() -> Result<SeqId, Error> {
    SeqId::new(1)
}

fn live(model: &Model, case: &Case, texts: &Texts) -> Result<Live, Error> {
    let mut context = Context::new(model, &case.params(case.n_ctx))?;
    context.decode(&Batch::prompt(&texts.neighbour, Pos::ZERO, neighbour()?)?)?;
    context.decode(&Batch::prompt(&texts.prefix, Pos::ZERO, MAIN)?)?;
    let state = context.save(MAIN)?;
    let logits = go_on(&mut context, MAIN, &texts.rest, 0)?;
    let neighbour_logits = go_on(&mut context, neighbour()?, &texts.neighbour_rest, 0)?;
    Ok(Live { state, logits, neighbour_logits })
}

/// A fresh context with the neighbour in it and `blob` restored beside.
fn restored(model: &Model, case: &Case, texts: &Texts, blob: &StateBlob<'_>) -> Result<Context, Error> {
    let mut context = Context::new(model, &case.params(case.n_ctx_restored))?;
    context.decode(&Batch::prompt(&texts.neighbour, Pos::ZERO, neighbour()?)?)?;
    context.restore(MAIN, blob)?;
    Ok(context)
}

/// Where two stretches of logits differ first, and by how much at most.
struct Difference {
    first: usize,
    max_abs: f32,
    count: usize,
}

fn difference(a: &[f32], b: &[f32]) -> Option<Difference> {
    let mut found: Option<Difference> = None;
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        if x.to_bits() != y.to_bits() {
            let delta = (x - y).abs();
            let d = found.get_or_insert(Difference { first: i, max_abs: 0.0, count: 0 });
            d.count += 1;
            d.max_abs = if delta.is_nan() { f32::INFINITY } else { d.max_abs.max(delta) };
        }
    }
    if a.len() != b.len() {
        found.get_or_insert(Difference { first: a.len().min(b.len()), max_abs: f32::INFINITY, count: 1 });
    }
    found
}

fn deviation(x: &[f32]) -> f64 {
    let n = x.len() as f64;
    let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
    (x.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n).sqrt()
}

fn departs(code: &str, what: &str, case: &Case, d: &Difference, n_vocab: usize) -> Finding {
    let (row, token) = (d.first / n_vocab, d.first % n_vocab);
    finding(
        Severity::Failure,
        code,
        format!("{what} ({}): logits differ from continuation token {row} on, up to {:.3e}", case.name(), d.max_abs),
        [
            ("position", json!(case.prefix + row)),
            ("logit", json!(token)),
            ("max_abs", json!(d.max_abs)),
            ("differing", json!(d.count)),
        ],
    )
}

/// Runs the gate.
///
/// # Errors
/// When the model cannot be loaded or decoded.
pub fn run(inputs: &GateInputs, rec: &mut Recorder) -> Result<(), GateError> {
    let t = &inputs.thresholds.round_trip;
    let path = inputs.model.path()?;
    let model = Model::load(path.as_path(), ModelParams::default())?;
    let large = is_large(&model);
    let mut cases = cases(t, inputs.threads, model.info().hyperparameters(), large);
    if inputs.quick {
        cases.retain(|c| [1, 33, 256].contains(&c.prefix));
    }
    if cases.is_empty() {
        let n_ctx = model.info().hyperparameters().n_ctx_train;
        rec.unmeasured(
            "short-context",
            format!("a context of {n_ctx} has no room for a prefix, a neighbour and what follows"),
        );
    }
    let n_vocab = model.n_vocab() as usize;
    rec.plan(cases.len() as u64 * 5);
    let (mut worst_one_pass, mut identical_one_pass, mut least_shift) = (0f64, 0, f32::INFINITY);
    for (i, case) in cases.iter().enumerate() {
        rec.progress(&format!("{} ({} of {})", case.name(), i + 1, cases.len()));
        let texts = texts(&model, case.prefix, t.continuation)?;
        let live = live(&model, case, &texts)?;
        let mut context = restored(&model, case, &texts, &live.state.blob())?;
        let recaptured = context.save(MAIN)?;
        rec.check(recaptured.as_bytes() == live.state.as_bytes(), || {
            finding(
                Severity::Failure,
                "recapture",
                format!("a restored sequence is saved as other bytes ({})", case.name()),
                [],
            )
        });
        let found = go_on(&mut context, MAIN, &texts.rest, 0)?;
        let d = difference(&live.logits, &found);
        rec.check(d.as_ref().is_none_or(|d| d.max_abs <= t.max_abs_restored), || match &d {
            Some(d) => departs("restored-differs", "restored against live", case, d, n_vocab),
            None => finding(Severity::Failure, "restored-differs", "", []),
        });
        let neighbour_found = go_on(&mut context, neighbour()?, &texts.neighbour_rest, 0)?;
        let d = difference(&live.neighbour_logits, &neighbour_found);
        rec.check(d.is_none(), || match &d {
            Some(d) => departs("neighbour-touched", "the neighbour sequence", case, d, n_vocab),
            None => finding(Severity::Failure, "neighbour-touched", "", []),
        });

        // The control that shows that logits would tell: the same state, decoded one position further on.
        context.restore(MAIN, &live.state.blob())?;
        let shifted = go_on(&mut context, MAIN, &texts.rest, 1)?;
        let d = difference(&live.logits, &shifted);
        least_shift = least_shift.min(d.as_ref().map_or(0.0, |d| d.max_abs));
        rec.check(d.is_some(), || {
            let message =
                format!("decoding one position further on changes nothing ({}): this comparison is blind", case.name());
            finding(Severity::Failure, "control-blind", message, [])
        });

        let whole: Vec<TokenId> = texts.prefix.iter().chain(&texts.rest).copied().collect();
        let mut one = Context::new(&model, &case.params(case.n_ctx))?;
        one.decode(&Batch::prompt(&texts.neighbour, Pos::ZERO, neighbour()?)?)?;
        // Logits of the same tokens as in the live run: one output row goes through other float paths than three.
        let mut batch = Batch::new();
        for (i, &token) in whole.iter().enumerate() {
            batch.push(token, Pos::ZERO.forward(i)?, &[MAIN], i >= texts.prefix.len());
        }
        let last = one.decode(&batch)?.last()?.to_vec();
        let expected = &live.logits[live.logits.len() - n_vocab..];
        let d = difference(expected, &last);
        let share = d.as_ref().map_or(0.0, |d| f64::from(d.max_abs) / deviation(expected).max(1e-9));
        worst_one_pass = worst_one_pass.max(share);
        identical_one_pass += u64::from(d.is_none());
        rec.check(share <= t.max_one_pass_share, || {
            let message = format!(
                "one pass differs by {share:.3} standard deviations ({}), {} are allowed",
                case.name(),
                t.max_one_pass_share
            );
            finding(Severity::Failure, "one-pass", message, [("share", json!(share))])
        });
    }
    refusals(&model, rec)?;
    rec.metric("cases", cases.len());
    rec.metric("one_pass_identical", identical_one_pass);
    rec.metric("one_pass_worst_share", worst_one_pass);
    if least_shift.is_finite() {
        rec.metric("shift_control_least_max_abs", f64::from(least_shift));
    }
    rec.metric("full_product_of_settings", !large && !inputs.quick);
    if cases.is_empty() {
        rec.say("no comparison fits the model's context; refusals hold");
        return Ok(());
    }
    let worst = rec.findings().iter().filter(|f| f.code == "restored-differs").count();
    rec.say(match worst {
        0 => format!("restored = live bit for bit in {} settings", cases.len()),
        n => format!("restored differs from live in {n} of {} settings", cases.len()),
    });
    rec.say(format!("one pass identical in {identical_one_pass}, worst {worst_one_pass:.1e} σ"));
    rec.say(format!("position + 1 shows by ≥ {least_shift:.3}"));
    Ok(())
}

fn texts(model: &Model, prefix: usize, continuation: usize) -> Result<Texts, Error> {
    Ok(Texts {
        prefix: tokens(model, prefix, 11 + prefix as u64)?,
        rest: tokens(model, continuation, 22)?,
        neighbour: tokens(model, NEIGHBOUR_TOKENS, 33)?,
        neighbour_rest: tokens(model, NEIGHBOUR_REST, 44)?,
    })
}

/// Above this, the whole product of settings would take hours.
fn is_large(model: &Model) -> bool {
    model.file().gguf().tensor_bytes() > 64 << 20
}

/// What must be refused, and by which name.
fn refusals(model: &Model, rec: &mut Recorder) -> Result<(), GateError> {
    rec.progress("refusals");
    let base = ContextParams { n_ctx: 64, n_threads: 1, ..Default::default() };
    let text = tokens(model, 5.min(model.info().hyperparameters().n_ctx_train as usize), 1)?;
    let mut context = Context::new(model, &base)?;
    context.decode(&Batch::prompt(&text, Pos::ZERO, MAIN)?)?;
    let control = context.save(MAIN)?;
    // Another type than the base's f16 that heads of this size can have.
    let other_type = if settings(model.info().hyperparameters().head_dim).iter().any(|s| s.1 == KvType::Q8_0) {
        KvType::Q8_0
    } else {
        KvType::F32
    };
    let other_name = other_type.to_string();
    let others = [
        ("flash attention", ContextParams { flash_attn: true, ..base.clone() }, "flash attention"),
        ("key type", ContextParams { type_k: other_type, ..base.clone() }, other_name.as_str()),
    ];
    for (what, params, named) in others {
        let mut other = Context::new(model, &params)?;
        other.decode(&Batch::prompt(&text, Pos::ZERO, MAIN)?)?;
        let state = other.save(MAIN)?;
        refused(what, named, context.restore(MAIN, &state.blob()), rec);
    }
    let geometry = context.geometry().clone();
    let bytes = control.as_bytes();
    let mut broken = vec![
        ("a byte too few", bytes[..bytes.len() - 1].to_vec(), "truncated"),
        ("a byte too many", [bytes, &[0]].concat(), "trailing"),
    ];
    let n_layer_at = 4 + 8 * control.cells() as usize + 4;
    let mut layers = bytes.to_vec();
    layers[n_layer_at] ^= 1;
    broken.push(("layer count", layers, "layer"));
    let mut position = bytes.to_vec();
    position[4..8].copy_from_slice(&(-3i32).to_le_bytes());
    broken.push(("negative position", position, "position"));
    for (what, bytes, named) in broken {
        refused(what, named, StateBlob::parse(&bytes, &geometry).map(|_| ()).map_err(Error::from), rec);
    }
    rec.plan(1);
    let untouched = context.save(MAIN)?;
    rec.check(untouched.as_bytes() == control.as_bytes(), || {
        finding(Severity::Failure, "refusal-touched", "a refused restore changed the destination sequence", [])
    });
    Ok(())
}

fn refused(what: &str, named: &str, outcome: Result<(), Error>, rec: &mut Recorder) {
    rec.plan(1);
    let unmeasured = outcome.as_ref().err().is_some_and(Error::is_host_shortage);
    let message = outcome.err().map_or("accepted".to_owned(), |e| e.to_string());
    rec.check(message.to_lowercase().contains(named), || {
        let text = format!("a state with another {what} must be refused by name ({named}); got: {message}");
        match unmeasured {
            true => finding(Severity::Unmeasured, SHORTAGE, text, []),
            false => finding(Severity::Failure, "not-refused", text, []),
        }
    });
}

const FAULTS: [&str; 3] = ["position + 1", "one byte flipped", "V not transposed"];

/// Plants faults into a captured state; each must show as a difference of logits.
pub fn self_check(inputs: &GateInputs, progress: &mut dyn FnMut(&str)) -> Vec<FaultReport> {
    plant(inputs, progress)
        .unwrap_or_else(|e| FAULTS.iter().map(|n| fault(GateId::RoundTrip, n, false, e.to_string())).collect())
}

fn plant(inputs: &GateInputs, progress: &mut dyn FnMut(&str)) -> Result<Vec<FaultReport>, GateError> {
    let path = inputs.model.path()?;
    let model = Model::load(path.as_path(), ModelParams::default())?;
    let t = &inputs.thresholds.round_trip;
    let n_ctx_train = model.info().hyperparameters().n_ctx_train;
    let prefix = longest(t, n_ctx_train.min(128)).min(33);
    if prefix == 0 {
        let why = format!("a context of {n_ctx_train} has no room for a prefix, a neighbour and what follows");
        return Ok(FAULTS.map(|name| not_applicable(GateId::RoundTrip, name, why.as_str())).to_vec());
    }
    let case = Case {
        prefix,
        n_ctx: 128,
        n_ctx_restored: 128,
        flash_attn: false,
        type_k: KvType::F16,
        type_v: KvType::F16,
        threads: inputs.threads.min(2),
    };
    let texts = texts(&model, case.prefix, t.continuation)?;
    let live = live(&model, &case, &texts)?;
    let n_vocab = model.n_vocab() as usize;
    let mut reports = Vec::new();
    let mut judge = |name: &str, bytes: &[u8], shift: usize| -> Result<(), GateError> {
        progress(name);
        let blob = StateBlob::parse(bytes, live.state.geometry()).map_err(Error::from)?;
        let mut context = restored(&model, &case, &texts, &blob)?;
        let found = go_on(&mut context, MAIN, &texts.rest, shift)?;
        let d = difference(&live.logits, &found);
        let evidence = d.as_ref().map_or("no difference seen".into(), |d| departs("", name, &case, d, n_vocab).message);
        reports.push(fault(GateId::RoundTrip, name, d.is_some(), evidence));
        Ok(())
    };
    let good = live.state.as_bytes();
    judge("position + 1", good, 1)?;

    let blob = live.state.blob();
    let layer = live.state.geometry().n_layer() / 2;
    let keys = blob.layout().payload(layer, KvTensor::Keys);
    let mut flipped = good.to_vec();
    // The high byte of an f16 in the middle: the exponent's highest bit, or the sign where that would give infinity or
    // NaN (values from 1 to 2), which is another fault than this one.
    let at = keys.start + ((keys.len() / 2) & !1) + 1;
    let exponent = 0x7c;
    flipped[at] ^= if (flipped[at] ^ 0x40) & exponent == exponent { 0x80 } else { 0x40 };
    judge("one byte flipped", &flipped, 0)?;

    if case.prefix == 1 {
        let why = "one row of values is its own transpose";
        reports.push(not_applicable(GateId::RoundTrip, "V not transposed", why));
        return Ok(reports);
    }
    let mut rows = good.to_vec();
    for layer in 0..live.state.geometry().n_layer() {
        let range = blob.layout().payload(layer, KvTensor::Values);
        let channels = live.state.geometry().layers()[layer].n_embd_v() as usize;
        let cells = case.prefix;
        let source = &good[range.clone()];
        for channel in 0..channels {
            for cell in 0..cells {
                let (from, to) = ((channel * cells + cell) * 2, (cell * channels + channel) * 2);
                rows[range.start + to..range.start + to + 2].copy_from_slice(&source[from..from + 2]);
            }
        }
    }
    judge("V not transposed", &rows, 0)?;
    Ok(reports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_models_still_see_every_setting_prefix_and_thread_count() {
        let t = crate::gates::thresholds::Thresholds::embedded().unwrap().round_trip;
        let h = hyperparameters();
        assert_eq!((h.n_ctx_train >= 1024, h.head_dim), (true, 64));
        let large = cases(&t, 2, &h, true);
        for setting in settings(64) {
            assert!(large.iter().any(|c| (c.flash_attn, c.type_k, c.type_v) == setting), "{setting:?}");
        }
        for prefix in t.prefixes.iter().chain(&[512 - 8 - 3 - 7 - 2]) {
            assert!(large.iter().any(|c| c.prefix == *prefix), "{prefix}");
        }
        assert!(large.iter().any(|c| c.threads == 1) && large.iter().any(|c| c.threads == 2));
        assert!(large.iter().any(|c| c.n_ctx == 512) && large.iter().any(|c| c.n_ctx == 1024));
        assert_eq!(cases(&t, 2, &h, false).len(), 7 * 9 * 2);
    }

    /// The embedded model's.
    fn hyperparameters() -> Hyperparameters {
        let path = models::source::ModelSource::Embedded.path().unwrap();
        let file = gguf::ModelFile::open(path.as_path(), &Default::default()).unwrap();
        file.info().hyperparameters().clone()
    }

    /// Q8_0 has blocks of 32.
    #[test]
    fn heads_that_no_block_divides_have_no_quantized_setting() {
        let floats =
            [(false, KvType::F16, KvType::F16), (true, KvType::F16, KvType::F16), (false, KvType::F32, KvType::F16)];
        for head_dim in [2, 16, 48] {
            assert_eq!(settings(head_dim), floats, "{head_dim}");
        }
        for head_dim in [32, 96, 128] {
            assert_eq!(settings(head_dim).len(), 7, "{head_dim}");
        }
    }

    #[test]
    fn a_nan_counts_as_infinitely_far() {
        let d = difference(&[1.0, f32::NAN], &[1.0, 2.0]).unwrap();
        assert_eq!((d.first, d.max_abs, d.count), (1, f32::INFINITY, 1));
        assert!(difference(&[1.0], &[1.0]).is_none());
        assert!(difference(&[1.0], &[]).is_some());
    }
}
