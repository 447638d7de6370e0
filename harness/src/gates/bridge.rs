//! Gate 3b: KV that lay outside the engine reproduces (Path A of cartridges).
//!
//! Another process prefills a text, captures the state as a cartridge and records the logits that follow. This one
//! mounts the file and must continue bit for bit; so must the file after a foreign library rewrote it, and in the
//! head-major layout. KV that HuggingFace transformers computed is mounted too, with a bound. Where something
//! departs, [`cartridge::diagnose`] says where first and why.

use session::{Mount as _, MountError};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use bitnet_rs::{Batch, Context, ContextParams, Model, ModelParams, Pos, SeqId, TokenId};
use half::{bf16, f16};
use kv::KvType;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;

use super::recorder::{Recorder, finding};
use super::{GateError, GateId, GateInputs, fault, not_applicable};
use crate::report::{FaultReport, Severity};
use cartridge::{
    Cartridge, CartridgeError, ConvertTo, Level, ModelLock, Overwrite, Provenance, Rope, RopeType, Rounding, convert,
    diagnose, write_native,
};
use files::children::{self, Ending, Input, was_interrupted};
use models::faults::other_rope_base;
use models::source::ModelSource;
use reference::likelihood;

/// Keys and values of a fixed prefix as HuggingFace transformers computed them for the embedded model
/// (`scripts/hf_cartridge.py`; recipe and hashes in `gates/cartridges/README.md`).
static FOREIGN: &[u8] = include_bytes!("../../../gates/cartridges/hf-prefix.safetensors");
/// The logits that transformers predicts after that prefix.
static FOREIGN_LOGITS: &[u8] = include_bytes!("../../../gates/cartridges/hf-prefix-logits.safetensors");

const CARTRIDGE: &str = "prefix.safetensors";
const BLOB: &str = "prefix.blob";
const LOGITS: &str = "continuation.f32";

impl From<MountError> for GateError {
    fn from(e: MountError) -> Self {
        match e {
            // Transparent: as a cause it would be skipped.
            MountError::Engine(e) => Self::Engine(e),
            e => Self::cause(e),
        }
    }
}

impl From<CartridgeError> for GateError {
    fn from(e: CartridgeError) -> Self {
        Self::cause(e)
    }
}

fn params(inputs: &GateInputs) -> ContextParams {
    ContextParams { n_ctx: 512, n_threads: inputs.threads, ..Default::default() }
}

fn lock_of(model: &Model) -> Result<ModelLock, GateError> {
    Ok(session::lock_of(model, &mut |_, _| ControlFlow::Continue(()))?)
}

/// Ordinary tokens, the same in both processes.
fn text(model: &Model, n: usize) -> Result<Vec<TokenId>, GateError> {
    let mut found = Vec::with_capacity(n);
    let mut id = 17u64;
    while found.len() < n {
        id = id.wrapping_mul(48_271) % 2_147_483_647;
        let token = model.token((id % u64::from(model.n_vocab())) as i32)?;
        if !model.is_control(token) {
            found.push(token);
        }
    }
    Ok(found)
}

fn ids(tokens: &[TokenId]) -> Vec<i32> {
    tokens.iter().map(|t| t.get()).collect()
}

fn go_on(context: &mut Context, tokens: &[TokenId]) -> Result<Vec<f32>, GateError> {
    let first = context.next_pos(SeqId::ZERO)?;
    let logits = context.decode(&Batch::scored(tokens, first, SeqId::ZERO)?)?;
    let mut all = Vec::new();
    for i in 0..tokens.len() {
        all.extend_from_slice(logits.row(i)?);
    }
    Ok(all)
}

/// Positions that the fault "first position labelled wrong" moves a file by.
const MOVED: usize = 5;

/// The shortest context in which a prefix shows what each fault does to it.
const LEAST_CONTEXT: usize = 24;

/// Tokens of the prefix and of what follows: those of `gates.toml`, or as many as a short context has room for.
fn lengths(model: &Model, inputs: &GateInputs) -> Option<(usize, usize)> {
    let t = &inputs.thresholds.bridge;
    let n_ctx = model.info().hyperparameters().n_ctx_train as usize;
    (n_ctx >= LEAST_CONTEXT).then(|| (t.prefix.min(n_ctx - t.continuation - MOVED), t.continuation))
}

fn short_context(model: &Model) -> String {
    let n_ctx = model.info().hyperparameters().n_ctx_train;
    format!("a context of {n_ctx} is too short for a prefix that shows anything: {LEAST_CONTEXT} are needed")
}

/// What the first process does: prefill, capture, write, continue.
///
/// # Errors
/// When the engine or the folder refuses.
pub fn capture(inputs: &GateInputs, folder: &Path) -> Result<(), GateError> {
    let path = inputs.model.path()?;
    let model = Model::load(path.as_path(), ModelParams::default())?;
    let Some((prefix_len, continuation)) = lengths(&model, inputs) else {
        return Err(GateError::Unmeasurable { code: "short-context", message: short_context(&model) });
    };
    let all = text(&model, prefix_len + continuation)?;
    let (prefix, rest) = all.split_at(prefix_len);
    let mut context = Context::new(&model, &params(inputs))?;
    context.decode(&Batch::prompt(prefix, Pos::ZERO, SeqId::ZERO)?)?;
    let state = context.save(SeqId::ZERO)?;
    let lock = lock_of(&model)?;
    let target = folder.join(CARTRIDGE);
    write_native(target, &state.blob(), &ids(prefix), &lock, &Provenance::default(), Overwrite::Refuse)?;
    std::fs::write(folder.join(BLOB), state.as_bytes())?;
    let logits = go_on(&mut context, rest)?;
    std::fs::write(folder.join(LOGITS), logits.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())?;
    Ok(())
}

/// Runs [`capture`] in a process of its own.
fn capture_elsewhere(inputs: &GateInputs, folder: &Path) -> Result<(), GateError> {
    let mut command = inputs.children.command("gate-child");
    command.args(["--gate", "3b", "--threads", &inputs.threads.to_string(), "--capture"]).arg(folder);
    if let ModelSource::File(path) = &inputs.model {
        command.arg("--model").arg(path);
    }
    let done = children::run(&mut command, Input::Lifeline, None, &|| false, &mut |_| false)?;
    match done.ending {
        Ending::Exited(status) if status.success() => Ok(()),
        Ending::Exited(status) if was_interrupted(status) => Err(GateError::Interrupted),
        ending => {
            let ending = match ending {
                Ending::Exited(status) => status.to_string(),
                other => format!("{other:?}"),
            };
            let message = format!("the capturing process ended with {ending}: {}", done.said.join("\n").trim());
            Err(if inputs.shortage_in(&done.said).is_some() {
                GateError::Shortage(message)
            } else {
                GateError::Other(message)
            })
        }
    }
}

/// A mounted cartridge's continuation, compared with what is expected.
struct Outcome {
    max_abs: f32,
    differing: usize,
    first: Option<usize>,
    logits: Vec<f32>,
}

fn mount_and_continue(
    model: &Model,
    inputs: &GateInputs,
    cartridge: &Cartridge,
    lock: &ModelLock,
    rest: &[TokenId],
    expected: &[f32],
) -> Result<Outcome, GateError> {
    let mut context = Context::new(model, &params(inputs))?;
    cartridge.mount(&mut context, SeqId::ZERO, lock, Rounding::Exact)?;
    let logits = go_on(&mut context, rest)?;
    let mut outcome = Outcome { max_abs: 0.0, differing: 0, first: None, logits };
    for (i, (a, b)) in outcome.logits.iter().zip(expected).enumerate() {
        if a.to_bits() != b.to_bits() {
            outcome.differing += 1;
            outcome.first.get_or_insert(i);
            let delta = (a - b).abs();
            outcome.max_abs = if delta.is_nan() { f32::INFINITY } else { outcome.max_abs.max(delta) };
        }
    }
    Ok(outcome)
}

/// Runs the gate.
///
/// # Errors
/// When a process, file or the engine fails outside of what is measured.
pub fn run(inputs: &GateInputs, rec: &mut Recorder) -> Result<(), GateError> {
    let t = &inputs.thresholds.bridge;
    let folder = tempfile::tempdir()?;
    let path = inputs.model.path()?;
    let model = Model::load(path.as_path(), ModelParams::default())?;
    let Some((prefix, continuation)) = lengths(&model, inputs) else {
        return Err(GateError::Unmeasurable { code: "short-context", message: short_context(&model) });
    };
    rec.progress("capturing in another process");
    capture_elsewhere(inputs, folder.path())?;
    rec.progress("hashing the model");
    let lock = lock_of(&model)?;
    let all = text(&model, prefix + continuation)?;
    let rest = &all[prefix..];
    let expected: Vec<f32> = std::fs::read(folder.path().join(LOGITS))?
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    let native = Cartridge::open(folder.path().join(CARTRIDGE))?;
    native.validate(Level::Full)?;

    rec.plan(2);
    let blob = std::fs::read(folder.path().join(BLOB))?;
    let back = native.to_blob()?.blob().as_bytes() == blob;
    rec.check(back, || finding(Severity::Failure, "blob-identity", "blob → file → blob is not the identity", []));
    rec.check(native.holds_blob(), || {
        finding(Severity::Failure, "not-contiguous", "the native file does not hold the blob in one piece", [])
    });

    let head_major = folder.path().join("head-major.safetensors");
    let to = ConvertTo::HeadMajor { type_k: KvType::F16, type_v: KvType::F16 };
    convert(&native, &head_major, &to, Rounding::Exact, Overwrite::Refuse)?;
    let rewritten = rewrite_like_python(&std::fs::read(folder.path().join(CARTRIDGE))?)?;
    let rewritten = Cartridge::from_bytes(rewritten)?;
    rec.plan(1);
    rec.check(!rewritten.holds_blob(), || {
        finding(
            Severity::Failure,
            "rewrite-blind",
            "the foreign library left the order as it was: nothing was tested",
            [],
        )
    });
    let head_major = Cartridge::open(&head_major)?;
    let mut mounted = Vec::new();
    for (what, cartridge) in [("native", &native), ("rewritten", &rewritten), ("head-major", &head_major)] {
        rec.progress(&format!("mounting {what}"));
        rec.plan(1);
        let outcome = mount_and_continue(&model, inputs, cartridge, &lock, rest, &expected)?;
        rec.metric(&format!("{}_max_abs", what.replace('-', "_")), f64::from(outcome.max_abs));
        let same = outcome.differing == 0 || outcome.max_abs <= t.max_abs_native;
        if rec.check(same, || departure(what, &outcome, &model, prefix)) {
            mounted.push(what);
        } else {
            explain(&model, inputs, cartridge, &native, &lock, rec)?;
        }
    }
    rec.say(format!("{} continue bit for bit after {} tokens from another process", mounted.join(", "), prefix));
    refusals(&native, &lock, rec);
    foreign(&model, inputs, &lock, rec)?;
    rec.metric("cartridge_bytes", native.file_bytes());
    Ok(())
}

fn departure(what: &str, outcome: &Outcome, model: &Model, prefix: usize) -> crate::report::Finding {
    let n_vocab = model.n_vocab() as usize;
    let first = outcome.first.unwrap_or(0);
    finding(
        Severity::Failure,
        "mounted-differs",
        format!(
            "{what}: {} logits differ, first at position {}, up to {:.3e}",
            outcome.differing,
            prefix + first / n_vocab,
            outcome.max_abs
        ),
        [
            ("position", json!(prefix + first / n_vocab)),
            ("logit", json!(first % n_vocab)),
            ("max_abs", json!(outcome.max_abs)),
        ],
    )
}

fn rope(lock: &ModelLock) -> Rope {
    Rope { rope_type: lock.rope_type, theta: lock.rope_theta, dim: lock.rope_dim as usize }
}

/// Where the mounted state departs from the captured one, and the likely cause.
fn explain(
    model: &Model,
    inputs: &GateInputs,
    mounted: &Cartridge,
    captured: &Cartridge,
    lock: &ModelLock,
    rec: &mut Recorder,
) -> Result<(), GateError> {
    let mut context = Context::new(model, &params(inputs))?;
    mounted.mount(&mut context, SeqId::ZERO, lock, Rounding::Exact)?;
    let found = context.save(SeqId::ZERO)?;
    let message = match diagnose(&captured.to_blob()?.blob(), &found.blob(), &rope(lock))? {
        Some(d) => d.to_string(),
        None => "keys and values are equal: the difference lies in the decoding after them".to_owned(),
    };
    rec.finding(finding(Severity::Failure, "divergence", message, []));
    Ok(())
}

/// Each wrong lock field is refused by name.
fn refusals(native: &Cartridge, lock: &ModelLock, rec: &mut Recorder) {
    let other = |change: &dyn Fn(&mut ModelLock)| {
        let mut changed = lock.clone();
        change(&mut changed);
        changed
    };
    let zero = format!("sha256:{}", "0".repeat(64));
    // Whatever this model's is, it is no longer.
    let scaling = format!("not {}", lock.rope_scaling);
    let cases: [(&str, ModelLock); 6] = [
        ("model_arch_hash", other(&|l| l.model_arch_hash.clone_from(&zero))),
        ("model_weights_hash", other(&|l| l.model_weights_hash.clone_from(&zero))),
        ("tokenizer_hash", other(&|l| l.tokenizer_hash.clone_from(&zero))),
        ("rope_theta", other(&|l| l.rope_theta = other_rope_base(lock.rope_theta))),
        ("rope_scaling", other(&|l| l.rope_scaling.clone_from(&scaling))),
        ("engine", other(&|l| l.engine = "0".repeat(40))),
    ];
    for (field, changed) in cases {
        rec.plan(1);
        let named = native.lock_check(&changed).err().is_some_and(|m| m.iter().any(|m| m.field == field));
        rec.check(named, || {
            finding(
                Severity::Failure,
                "lock",
                format!("a cartridge of another {field} is not refused by that name"),
                [],
            )
        });
    }
}

/// KV that another implementation computed.
fn foreign(model: &Model, inputs: &GateInputs, lock: &ModelLock, rec: &mut Recorder) -> Result<(), GateError> {
    rec.progress("mounting KV from transformers");
    let cartridge = Cartridge::from_bytes(FOREIGN.to_vec())?;
    if let Err(mismatches) = cartridge.lock_check(lock) {
        if inputs.model == ModelSource::Embedded {
            // The two travel together: on the embedded model a fixture that does not fit is a fault, not a circumstance.
            let fields: Vec<String> = mismatches.iter().map(|m| m.field.to_string()).collect();
            return Err(GateError::Other(format!(
                "the stored KV from transformers does not fit the embedded model: {}",
                fields.join(", ")
            )));
        }
        rec.finding(finding(
            Severity::Note,
            "no-foreign-fixture",
            "the stored KV from transformers belongs to the embedded model; scripts/hf_cartridge.py makes one for this model",
            [],
        ));
        return Ok(());
    }
    cartridge.validate(Level::Full)?;
    let t = &inputs.thresholds.bridge;
    let tokens: Vec<TokenId> = cartridge.tokens().map(|id| model.token(id)).collect::<Result<_, _>>()?;
    let n_vocab = model.n_vocab() as usize;

    // The last token is decoded by the engine on top of the foreign cells before it.
    let mut context = Context::new(model, &params(inputs))?;
    cartridge.mount(&mut context, SeqId::ZERO, lock, Rounding::Exact)?;
    let last = Pos::new(i32::try_from(tokens.len()).unwrap_or(i32::MAX) - 1)?;
    context.remove(SeqId::ZERO, last..last.forward(1)?)?;
    let more = text(model, t.continuation)?;
    let mut tail = vec![tokens[tokens.len() - 1]];
    tail.extend_from_slice(&more);
    let mounted = go_on(&mut context, &tail)?;

    let mut own = Context::new(model, &params(inputs))?;
    own.decode(&Batch::prompt(&tokens[..tokens.len() - 1], Pos::ZERO, SeqId::ZERO)?)?;
    let prefilled = go_on(&mut own, &tail)?;
    let rows = mounted.chunks(n_vocab).zip(prefilled.chunks(n_vocab));
    let kls: Vec<f64> = rows.map(|(m, p)| likelihood::kl_divergence(p, m)).collect();
    let mean = kls.iter().sum::<f64>() / kls.len() as f64;
    rec.metric("foreign_kl_to_engine", mean);
    rec.plan(2);
    rec.check(mean <= t.max_kl_foreign, || {
        let message = format!(
            "KV from transformers: mean KL to the engine's own prefill is {mean:.2e}, at most {:.0e} is allowed",
            t.max_kl_foreign
        );
        finding(Severity::Failure, "foreign-engine", message, [("kl", json!(mean))])
    });
    let theirs = foreign_logits()?;
    let kl = likelihood::kl_divergence(&theirs, &mounted[..n_vocab]);
    rec.metric("foreign_kl_to_transformers", kl);
    rec.check(theirs.len() == n_vocab && kl <= t.max_kl_foreign, || {
        let message = format!(
            "KV from transformers: KL to its own prediction is {kl:.2e}, at most {:.0e} is allowed",
            t.max_kl_foreign
        );
        finding(Severity::Failure, "foreign-transformers", message, [("kl", json!(kl))])
    });
    rec.say(format!("KV from transformers: KL {mean:.1e} to the engine's prefill, {kl:.1e} to transformers"));
    Ok(())
}

fn foreign_logits() -> Result<Vec<f32>, GateError> {
    let file = safetensors::SafeTensors::deserialize(FOREIGN_LOGITS).map_err(GateError::cause)?;
    let name = file.names().first().map(|n| (*n).to_owned()).unwrap_or_default();
    let tensor = file.tensor(&name).map_err(GateError::cause)?;
    Ok(tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

/// Reads and writes a file with the `safetensors` crate, whose code the Python library of that name calls: tensors
/// come out in its own order.
fn rewrite_like_python(bytes: &[u8]) -> Result<Vec<u8>, GateError> {
    let other = |e: safetensors::SafeTensorError| GateError::cause(e);
    let (_, header) = safetensors::SafeTensors::read_metadata(bytes).map_err(other)?;
    let file = safetensors::SafeTensors::deserialize(bytes).map_err(other)?;
    safetensors::serialize(file.tensors(), header.metadata().clone()).map_err(other)
}

/// A head-major cartridge in memory that faults are planted in.
#[derive(Clone)]
struct Draft {
    metadata: HashMap<String, String>,
    /// name → dtype, shape, bytes.
    tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)>,
}

impl Draft {
    fn read(bytes: &[u8]) -> Result<Self, GateError> {
        let other = |e: safetensors::SafeTensorError| GateError::cause(e);
        let (_, header) = safetensors::SafeTensors::read_metadata(bytes).map_err(other)?;
        let mut metadata = header.metadata().clone().unwrap_or_default();
        // A foreign writer need not state it; a fault would only be caught by the hash.
        metadata.remove("payload_hash");
        let file = safetensors::SafeTensors::deserialize(bytes).map_err(other)?;
        let tensors = file
            .tensors()
            .into_iter()
            .map(|(name, v)| (name, v.dtype(), v.shape().to_vec(), v.data().to_vec()))
            .collect();
        Ok(Self { metadata, tensors })
    }

    fn bytes(&mut self, name: &str) -> Result<&mut Vec<u8>, GateError> {
        let found = self.tensors.iter_mut().find(|t| t.0 == name).map(|t| &mut t.3);
        found.ok_or_else(|| GateError::Other(format!("no tensor {name}")))
    }

    fn swap(&mut self, a: &str, b: &str) -> Result<(), GateError> {
        let first = std::mem::take(self.bytes(a)?);
        let second = std::mem::replace(self.bytes(b)?, first);
        *self.bytes(a)? = second;
        Ok(())
    }

    fn cartridge(&self) -> Result<Cartridge, GateError> {
        let views = self
            .tensors
            .iter()
            .map(|(name, dtype, shape, bytes)| Ok((name.clone(), TensorView::new(*dtype, shape.clone(), bytes)?)))
            .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()
            .map_err(GateError::cause)?;
        let bytes = safetensors::serialize(views, Some(self.metadata.clone())).map_err(GateError::cause)?;
        Ok(Cartridge::from_bytes(bytes)?)
    }

    /// Moves the keys of the first layer's heads one head on. `None` where there is only one.
    fn permute_heads(mut self) -> Result<Option<Self>, GateError> {
        let name = "layer.0.k";
        let heads = self.tensors.iter().find(|t| t.0 == name).map_or(0, |t| t.2[0]);
        if heads < 2 {
            return Ok(None);
        }
        let bytes = self.bytes(name)?;
        // Whole heads: half of the bytes is none of an odd number of heads.
        let head = bytes.len() / heads;
        bytes.rotate_left(head);
        Ok(Some(self))
    }

    /// Exchanges the first layer with the second. `None` where there is none.
    fn swap_layers(mut self) -> Result<Option<Self>, GateError> {
        if !self.tensors.iter().any(|t| t.0 == "layer.1.k") {
            return Ok(None);
        }
        for tensor in ["k", "v"] {
            self.swap(&format!("layer.0.{tensor}"), &format!("layer.1.{tensor}"))?;
        }
        Ok(Some(self))
    }

    /// Applies `change` to every key: `(position, row of head_dim values)`.
    fn keys(&mut self, mut change: impl FnMut(usize, &mut [f32])) -> Result<(), GateError> {
        for (name, _, shape, bytes) in &mut self.tensors {
            if !name.ends_with(".k") {
                continue;
            }
            let (cells, dim) = (shape[1], shape[2]);
            for (row, chunk) in bytes.chunks_exact_mut(dim * 2).enumerate() {
                let mut values: Vec<f32> =
                    chunk.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect();
                change(row % cells, &mut values);
                for (b, v) in chunk.chunks_exact_mut(2).zip(values) {
                    b.copy_from_slice(&f16::from_f32(v).to_le_bytes());
                }
            }
        }
        Ok(())
    }
}

/// Turns each rotated pair of a row by `angle(exponent)`; the base to that power is the pair's frequency. Elements behind
/// the rotated ones stay.
fn turn(row: &mut [f32], rope: &Rope, angle: impl Fn(f64) -> f64) {
    let dim = rope.dim.min(row.len());
    let half = dim / 2;
    for i in 0..half {
        let (a, b) = match rope.rope_type {
            RopeType::Neox => (i, i + half),
            RopeType::Norm => (2 * i, 2 * i + 1),
            RopeType::None => return,
        };
        let (sin, cos) = angle(-2.0 * i as f64 / dim as f64).sin_cos();
        let (x, y) = (f64::from(row[a]), f64::from(row[b]));
        row[a] = (x * cos - y * sin) as f32;
        row[b] = (x * sin + y * cos) as f32;
    }
}

const FAULTS: [&str; 8] = [
    "K/V swapped",
    "heads permuted",
    "layers swapped",
    "wrong RoPE base",
    "keys of another first position",
    "bf16-rounded keys",
    "first position labelled wrong",
    "wrong model",
];

/// Plants the gate's faults: each must change the logits, and the diagnosis must name its cause.
///
/// # Errors
/// [`GateError::Interrupted`].
pub fn self_check(inputs: &GateInputs, progress: &mut dyn FnMut(&str)) -> Result<Vec<FaultReport>, GateError> {
    let mut reports = Vec::new();
    match plant(inputs, progress, &mut reports) {
        Err(e @ GateError::Interrupted) => return Err(e),
        Err(e) => reports.push(fault(GateId::Bridge, "(set-up)", false, e.to_string())),
        Ok(()) => {}
    }
    Ok(reports)
}

fn plant(inputs: &GateInputs, progress: &mut dyn FnMut(&str), reports: &mut Vec<FaultReport>) -> Result<(), GateError> {
    let folder = tempfile::tempdir()?;
    let path = inputs.model.path()?;
    let model = Model::load(path.as_path(), ModelParams::default())?;
    let Some((prefix, continuation)) = lengths(&model, inputs) else {
        reports.extend(FAULTS.map(|name| not_applicable(GateId::Bridge, name, short_context(&model))));
        return Ok(());
    };
    capture_elsewhere(inputs, folder.path())?;
    let lock = lock_of(&model)?;
    let rest = text(&model, prefix + continuation)?.split_off(prefix);
    let expected: Vec<f32> = std::fs::read(folder.path().join(LOGITS))?
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    let native = Cartridge::open(folder.path().join(CARTRIDGE))?;
    let file: PathBuf = folder.path().join("head-major.safetensors");
    let to = ConvertTo::HeadMajor { type_k: KvType::F16, type_v: KvType::F16 };
    convert(&native, &file, &to, Rounding::Exact, Overwrite::Refuse)?;
    let intact = Draft::read(&std::fs::read(&file)?)?;

    let rope = rope(&lock);
    let base = f64::from(rope.theta);
    let rotated = rope.rope_type != RopeType::None && rope.dim >= 2;
    let with_keys = |change: &dyn Fn(usize, &mut [f32])| {
        let mut faulty = intact.clone();
        faulty.keys(change).map(|()| faulty)
    };
    let last = native.layers().len().saturating_sub(1);
    let mut swapped = intact.clone();
    swapped.swap(&format!("layer.{last}.k"), &format!("layer.{last}.v"))?;
    // The first pair turns by one radian a position under every base.
    let other_base = if rotated && rope.dim >= 4 {
        let other = f64::from(other_rope_base(rope.theta));
        Some(with_keys(&|position, row| turn(row, &rope, |e| position as f64 * (other.powf(e) - base.powf(e))))?)
    } else {
        None
    };
    let moved = if rotated { Some(with_keys(&|_, row| turn(row, &rope, |e| 5.0 * base.powf(e)))?) } else { None };
    let rounded = with_keys(&|_, row| row.iter_mut().for_each(|v| *v = bf16::from_f32(*v).to_f32()))?;
    let cases = [
        ("K/V swapped", Some(swapped), "keys and values are swapped", ""),
        ("heads permuted", intact.clone().permute_heads()?, "heads of", "there is one KV head"),
        ("layers swapped", intact.clone().swap_layers()?, "layers are out of order", "there is one layer"),
        ("wrong RoPE base", other_base, "RoPE base", "no rotated pair depends on the base"),
        ("keys of another first position", moved, "another first position", "keys are not rotated"),
        ("bf16-rounded keys", Some(rounded), "rounded to bf16", ""),
    ];
    for (name, draft, cause, why_not) in cases {
        progress(name);
        let Some(draft) = draft else {
            reports.push(not_applicable(GateId::Bridge, name, why_not));
            continue;
        };
        let cartridge = draft.cartridge()?;
        let outcome = mount_and_continue(&model, inputs, &cartridge, &lock, &rest, &expected)?;
        let mut context = Context::new(&model, &params(inputs))?;
        cartridge.mount(&mut context, SeqId::ZERO, &lock, Rounding::Exact)?;
        let found = context.save(SeqId::ZERO)?;
        let said = diagnose(&native.to_blob()?.blob(), &found.blob(), &rope)?
            .map_or("no difference in keys and values".to_owned(), |d| d.cause.to_string());
        let caught = outcome.differing > 0 && said.contains(cause);
        let evidence = format!("{} logits differ, up to {:.2e}; cause: {said}", outcome.differing, outcome.max_abs);
        reports.push(fault(GateId::Bridge, name, caught, evidence));
    }

    let name = "first position labelled wrong";
    progress(name);
    let mut faulty = intact.clone();
    faulty.metadata.insert("first_pos".into(), MOVED.to_string());
    for chunk in faulty.bytes("positions")?.chunks_exact_mut(4) {
        let moved = i32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]) + MOVED as i32;
        chunk.copy_from_slice(&moved.to_le_bytes());
    }
    let outcome = mount_and_continue(&model, inputs, &faulty.cartridge()?, &lock, &rest, &expected)?;
    let evidence = format!("{} logits differ, up to {:.2e}", outcome.differing, outcome.max_abs);
    reports.push(fault(GateId::Bridge, name, outcome.differing > 0, evidence));

    let name = "wrong model";
    progress(name);
    let mut faulty = intact.clone();
    let wrong = format!("sha256:{}", "ab".repeat(32));
    faulty.metadata.insert("model_weights_hash".into(), wrong);
    let refused = faulty.cartridge()?.lock_check(&lock).err().unwrap_or_default();
    let fields: Vec<String> = refused.iter().map(|m| m.field.to_string()).collect();
    let caught = fields == ["model_weights_hash"];
    reports.push(fault(GateId::Bridge, name, caught, format!("refused for {}", fields.join(", "))));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(rope_type: RopeType, dim: usize) -> Rope {
        Rope { rope_type, theta: 500_000.0, dim }
    }

    #[test]
    fn turning_and_back_is_the_identity_and_a_quarter_swaps_the_halves() {
        let row: Vec<f32> = (0..64).map(|i| (i as f32 * 0.37).sin()).collect();
        for rope_type in [RopeType::Neox, RopeType::Norm] {
            let mut turned = row.clone();
            turn(&mut turned, &rope(rope_type, 64), |e| 41.0 * 500_000f64.powf(e));
            assert!(row.iter().zip(&turned).any(|(a, b)| (a - b).abs() > 0.1));
            turn(&mut turned, &rope(rope_type, 64), |e| -41.0 * 500_000f64.powf(e));
            assert!(row.iter().zip(&turned).all(|(a, b)| (a - b).abs() < 1e-5));
        }
        let mut quarter = row.clone();
        turn(&mut quarter, &rope(RopeType::Neox, 64), |_| std::f64::consts::FRAC_PI_2);
        assert!(row[..32].iter().zip(&quarter[32..]).all(|(a, b)| (a - b).abs() < 1e-6));
        assert!(row[32..].iter().zip(&quarter[..32]).all(|(a, b)| (a + b).abs() < 1e-6));
    }

    /// By hand: a quarter turns (x, y) into (−y, x).
    #[test]
    fn pairs_are_neighbours_or_halves_and_the_rest_stays() {
        let turned = |rope_type, dim| {
            let mut row = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
            turn(&mut row, &rope(rope_type, dim), |_| std::f64::consts::FRAC_PI_2);
            row.map(f32::round)
        };
        assert_eq!(turned(RopeType::Norm, 4), [-2.0, 1.0, -4.0, 3.0, 5.0, 6.0]);
        assert_eq!(turned(RopeType::Neox, 4), [-3.0, -4.0, 1.0, 2.0, 5.0, 6.0]);
        assert_eq!(turned(RopeType::None, 4), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    }

    fn draft(heads: usize, layers: usize) -> Draft {
        let tensor = |name: String| (name, Dtype::F16, vec![heads, 2, 1], (0..4 * heads as u8).collect());
        let names = (0..layers).flat_map(|l| ["k", "v"].map(|t| format!("layer.{l}.{t}")));
        Draft { metadata: HashMap::new(), tensors: names.map(tensor).collect() }
    }

    #[test]
    fn three_heads_move_as_whole_heads_and_one_cannot() {
        let moved = draft(3, 1).permute_heads().unwrap().unwrap();
        assert_eq!(moved.tensors[0].3, [4, 5, 6, 7, 8, 9, 10, 11, 0, 1, 2, 3]);
        assert!(draft(1, 1).permute_heads().unwrap().is_none());
        assert!(draft(1, 2).swap_layers().unwrap().is_some() && draft(2, 1).swap_layers().unwrap().is_none());
    }
}
