//! Copies of a model file with a fault planted in it, for the self-checks of the gates.

use std::io::{self, Write};
use std::path::Path;

use gguf::{Array, GgmlType, GgufError, GgufFile, Limits, Strings, TensorInfo, Value};
use half::f16;

use files::atomic_file::{self, AtomicFileError};
use gguf::writer::{self as gguf_writer, FilePlan, TensorPlan};
use reference::i2s;

/// Four zero weights: code 1 in each pair of bits.
const ZERO_WEIGHTS: u8 = 0b01_01_01_01;

/// Data handled at once; a multiple of every element size.
const PIECE: usize = 1 << 20;

/// A fault in a model file.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum FileFault {
    /// A tensor is multiplied: the scale of an I2_S tensor, every element of an f32 or f16 one.
    ScaleTensor {
        /// Such as `blk.1.ffn_up.weight`.
        name: String,
        /// The factor.
        factor: f32,
    },
    /// Two blocks change places.
    SwapLayers(u32, u32),
    /// Every ternary weight of a block becomes zero; norms stay.
    ZeroLayer(u32),
    /// Another RoPE base in the metadata.
    RopeBase(f32),
    /// Another pre-tokenizer name, or none.
    PreTokenizer(Option<String>),
}

/// Why no faulty copy was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FaultError {
    /// The file lacks what the fault is about.
    #[error("cannot plant the fault: {what}")]
    NotThere {
        /// What is missing.
        what: String,
    },
    /// The fault cannot be planted in a tensor of this type.
    #[error("cannot plant the fault: tensor '{name}' has type {kind}")]
    Type {
        /// The tensor.
        name: String,
        /// Its type.
        kind: &'static str,
    },
    /// Two tensors to be swapped differ.
    #[error("cannot swap '{first}' and '{second}': they differ in type or shape")]
    Unlike {
        /// One tensor.
        first: String,
        /// The other.
        second: String,
    },
    /// The copy would be equal to the original.
    #[error("the fault changes nothing: {what}")]
    NoChange {
        /// What is as it was.
        what: String,
    },
    /// The original could not be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The output file could not be made.
    #[error(transparent)]
    File(#[from] AtomicFileError),
    /// The copy could not be written.
    #[error("cannot write the copy: {0}")]
    Write(#[from] io::Error),
}

impl FaultError {
    /// This model has no place for the fault; nothing went wrong.
    pub fn has_no_place(&self) -> bool {
        matches!(self, Self::NotThere { .. } | Self::Type { .. } | Self::Unlike { .. } | Self::NoChange { .. })
    }
}

/// A RoPE base that is surely not the given one, and far enough from it that every rotated pair but the first turns
/// visibly faster or slower. Never below 1, where frequencies would rise with the pair, and never above 10,000 for a
/// large one: with few pairs, those of 10^9 and of a fiftieth of it both stand still over a short text.
pub fn other_rope_base(base: f32) -> f32 {
    const APART: f32 = 50.0;
    if base >= 1000.0 { (base / APART).min(10_000.0) } else { base * APART }
}

/// A pre-tokenizer that splits otherwise than the given one: the engine knows some rules under several names
/// (`llama-vocab.cpp`), and another name of the same rule would be no fault.
pub fn other_pre_tokenizer(name: Option<&str>) -> &'static str {
    const AS_LLAMA_BPE: [&str; 6] = ["llama3", "llama-v3", "llama-bpe", "dbrx", "smaug-bpe", "chatglm-bpe"];
    if name.is_some_and(|n| AS_LLAMA_BPE.contains(&n)) { "gpt-2" } else { "llama-bpe" }
}

/// What happens to a tensor's bytes on the way.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Change {
    None,
    Scale(f32),
    Zero,
}

/// Copies a model file with faults planted; metadata and tensors keep their order. Returns the bytes
/// written.
///
/// # Errors
/// See [`FaultError`]; an existing output file is only replaced with `force`.
pub fn rewrite(original: &Path, copy: &Path, faults: &[FileFault], force: bool) -> Result<u64, FaultError> {
    let file = GgufFile::open(original, &Limits::default())?;
    atomic_file::write(copy, force, |out| write_with_faults(&file, out, faults))
}

fn write_with_faults(file: &GgufFile, out: &mut dyn Write, faults: &[FileFault]) -> Result<u64, FaultError> {
    let gguf = file.gguf();
    let mut metadata: Vec<(String, gguf_writer::Value)> = gguf
        .entries()
        // The writer aligns to the default.
        .filter(|(key, _)| *key != "general.alignment")
        .map(|(key, value)| (key.to_owned(), encoded(value)))
        .collect();
    let mut set = |key: &str, value: Option<gguf_writer::Value>| {
        let at = metadata.iter().position(|(k, _)| k == key);
        match (at, value) {
            (Some(at), Some(value)) => metadata[at].1 = value,
            (Some(at), None) => {
                metadata.remove(at);
            }
            (None, Some(value)) => metadata.push((key.to_owned(), value)),
            (None, None) => {}
        }
    };
    let mut sources: Vec<(&TensorInfo, Change)> = gguf.tensors().iter().map(|t| (t, Change::None)).collect();
    for fault in faults {
        match fault {
            FileFault::ScaleTensor { name, factor } => {
                let at = gguf.tensors().iter().position(|t| t.name() == name);
                let Some(at) = at else {
                    return Err(FaultError::NotThere { what: format!("no tensor '{name}'") });
                };
                let tensor = sources[at].0;
                match tensor.ggml_type() {
                    GgmlType::I2_S | GgmlType::F32 | GgmlType::F16 => {
                        sources[at].1 = Change::Scale(*factor);
                    }
                    other => {
                        return Err(FaultError::Type { name: name.clone(), kind: other.name() });
                    }
                }
            }
            FileFault::SwapLayers(a, b) if a == b => {
                return Err(FaultError::NoChange { what: format!("layer {a} would be swapped with itself") });
            }
            FileFault::SwapLayers(a, b) => {
                let mut swapped = 0;
                for (at, tensor) in gguf.tensors().iter().enumerate() {
                    let Some((layer, part)) = layer_of(tensor.name()) else {
                        continue;
                    };
                    let other = match layer {
                        l if l == *a => *b,
                        l if l == *b => *a,
                        _ => continue,
                    };
                    let other = format!("blk.{other}.{part}");
                    let Some(source) = gguf.tensor(&other) else {
                        return Err(FaultError::NotThere { what: format!("no tensor '{other}'") });
                    };
                    if source.dims() != tensor.dims() || source.ggml_type() != tensor.ggml_type() {
                        return Err(FaultError::Unlike { first: tensor.name().to_owned(), second: other });
                    }
                    sources[at].0 = source;
                    swapped += 1;
                }
                if swapped == 0 {
                    return Err(FaultError::NotThere { what: format!("no tensors of layers {a} and {b}") });
                }
            }
            FileFault::ZeroLayer(layer) => {
                let mut zeroed = 0;
                for (tensor, change) in &mut sources {
                    let of_layer = layer_of(tensor.name()).is_some_and(|(l, _)| l == *layer);
                    if of_layer && tensor.ggml_type() == GgmlType::I2_S {
                        *change = Change::Zero;
                        zeroed += 1;
                    }
                }
                if zeroed == 0 {
                    return Err(FaultError::NotThere { what: format!("no ternary tensors in layer {layer}") });
                }
            }
            FileFault::RopeBase(base) => {
                let Some(arch) = gguf.string("general.architecture")? else {
                    return Err(FaultError::NotThere { what: "no key 'general.architecture'".to_owned() });
                };
                let key = format!("{arch}.rope.freq_base");
                if gguf.f32(&key)? == Some(*base) {
                    return Err(FaultError::NoChange { what: format!("{key} is {base} already") });
                }
                set(&key, Some(gguf_writer::Value::F32(*base)));
            }
            FileFault::PreTokenizer(name) if gguf.string("tokenizer.ggml.pre")? == name.as_deref() => {
                let is = name.as_deref().unwrap_or("missing");
                return Err(FaultError::NoChange { what: format!("tokenizer.ggml.pre is {is} already") });
            }
            FileFault::PreTokenizer(name) => set("tokenizer.ggml.pre", name.as_deref().map(gguf_writer::Value::from)),
        }
    }
    let plans = gguf
        .tensors()
        .iter()
        .map(|tensor| TensorPlan {
            name: tensor.name().to_owned(),
            dims: tensor.dims().to_vec(),
            kind: tensor.ggml_type().number(),
            bytes: tensor.size(),
        })
        .collect();
    let plan = FilePlan::new(&metadata, plans)?;
    let mut data = plan.start(out)?;
    let mut piece = vec![0; PIECE];
    for (tensor, change) in sources {
        let mut at = 0;
        while at < tensor.size() {
            let piece = &mut piece[..(PIECE as u64).min(tensor.size() - at) as usize];
            file.read_tensor_part(tensor, at, piece)?;
            apply(change, tensor, at, piece);
            data.write(piece)?;
            at += piece.len() as u64;
        }
    }
    data.finish()?;
    Ok(plan.total_bytes())
}

/// Layer and rest of a name such as `blk.3.attn_q.weight`.
fn layer_of(name: &str) -> Option<(u32, &str)> {
    let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((layer.parse().ok()?, part))
}

/// Changes a piece of a tensor that begins at byte `at` of its data.
fn apply(change: Change, tensor: &TensorInfo, at: u64, piece: &mut [u8]) {
    let scale_f32 = |bytes: &mut [u8], factor: f32| {
        let value = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        bytes.copy_from_slice(&(value * factor).to_le_bytes());
    };
    let codes = tensor.size().saturating_sub(i2s::TRAILER as u64);
    match (change, tensor.ggml_type()) {
        (Change::None, _) => {}
        (Change::Scale(factor), GgmlType::I2_S) => {
            // Codes are a multiple of 128 bytes long for any shape the kernels take, so the four
            // bytes of the scale never straddle two pieces.
            if let Some(from) = codes.checked_sub(at)
                && let Ok(from) = usize::try_from(from)
                && let Some(scale) = piece.get_mut(from..from + 4)
            {
                scale_f32(scale, factor);
            }
        }
        (Change::Scale(factor), GgmlType::F16) => {
            for bytes in piece.chunks_exact_mut(2) {
                let value = f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
                bytes.copy_from_slice(&f16::from_f32(value * factor).to_le_bytes());
            }
        }
        (Change::Scale(factor), _) => {
            for bytes in piece.chunks_exact_mut(4) {
                scale_f32(bytes, factor);
            }
        }
        (Change::Zero, _) => {
            let end = codes.saturating_sub(at).min(piece.len() as u64) as usize;
            piece[..end].fill(ZERO_WEIGHTS);
        }
    }
}

/// A value in the file's own encoding, so that kinds the writer has no name for survive.
pub(super) fn encoded(value: &Value) -> gguf_writer::Value {
    let mut bytes = Vec::new();
    match value {
        Value::U8(v) => bytes.push(*v),
        Value::I8(v) => bytes.extend(v.to_le_bytes()),
        Value::U16(v) => bytes.extend(v.to_le_bytes()),
        Value::I16(v) => bytes.extend(v.to_le_bytes()),
        Value::U32(v) => bytes.extend(v.to_le_bytes()),
        Value::I32(v) => bytes.extend(v.to_le_bytes()),
        Value::F32(v) => bytes.extend(v.to_le_bytes()),
        Value::U64(v) => bytes.extend(v.to_le_bytes()),
        Value::I64(v) => bytes.extend(v.to_le_bytes()),
        Value::F64(v) => bytes.extend(v.to_le_bytes()),
        Value::Bool(v) => bytes.push(u8::from(*v)),
        Value::String(v) => string(v, &mut bytes),
        Value::Array(array) => {
            bytes.extend((array.element_type() as u32).to_le_bytes());
            bytes.extend((array.len() as u64).to_le_bytes());
            match array {
                Array::U8(v) => bytes.extend(v),
                Array::I8(v) => v.iter().for_each(|v| bytes.extend(v.to_le_bytes())),
                Array::U16(v) => v.iter().for_each(|v| bytes.extend(v.to_le_bytes())),
                Array::I16(v) => v.iter().for_each(|v| bytes.extend(v.to_le_bytes())),
                Array::U32(v) => v.iter().for_each(|v| bytes.extend(v.to_le_bytes())),
                Array::I32(v) => v.iter().for_each(|v| bytes.extend(v.to_le_bytes())),
                Array::F32(v) => v.iter().for_each(|v| bytes.extend(v.to_le_bytes())),
                Array::U64(v) => v.iter().for_each(|v| bytes.extend(v.to_le_bytes())),
                Array::I64(v) => v.iter().for_each(|v| bytes.extend(v.to_le_bytes())),
                Array::F64(v) => v.iter().for_each(|v| bytes.extend(v.to_le_bytes())),
                Array::Bool(v) => bytes.extend(v.iter().map(|&v| u8::from(v))),
                Array::String(v) => strings(v, &mut bytes),
            }
        }
    }
    gguf_writer::Value::Raw { kind: value.value_type() as u32, bytes }
}

fn string(text: &[u8], out: &mut Vec<u8>) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text);
}

fn strings(texts: &Strings, out: &mut Vec<u8>) {
    texts.iter().for_each(|text| string(text, out));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;
    use std::sync::atomic::AtomicBool;
    use synth::{SynthSpec, write_synth_file};

    struct Model {
        folder: tempfile::TempDir,
        path: PathBuf,
        bytes: Vec<u8>,
    }

    fn model() -> Model {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        let spec = SynthSpec { n_layer: 3, n_embd: 128, n_ff: 256, n_vocab: 300, ..SynthSpec::preset("tiny").unwrap() };
        write_synth_file(&spec, 5, &path, false, &mut |_| (), &AtomicBool::new(false)).unwrap();
        let bytes = fs::read(&path).unwrap();
        Model { folder, path, bytes }
    }

    fn faulty(model: &Model, faults: &[FileFault]) -> Result<Vec<u8>, FaultError> {
        let copy = model.folder.path().join("copy.gguf");
        rewrite(&model.path, &copy, faults, true)?;
        Ok(fs::read(copy).unwrap())
    }

    fn tensor(bytes: &[u8], name: &str) -> Vec<u8> {
        let gguf = gguf::Gguf::parse(bytes, &Limits::default()).unwrap();
        let range = gguf.tensor(name).unwrap().range();
        bytes[range.start as usize..range.end as usize].to_vec()
    }

    /// Names of tensors whose bytes differ.
    fn changed(before: &[u8], after: &[u8]) -> Vec<String> {
        let gguf = gguf::Gguf::parse(before, &Limits::default()).unwrap();
        gguf.tensors()
            .iter()
            .map(|t| t.name().to_owned())
            .filter(|name| tensor(before, name) != tensor(after, name))
            .collect()
    }

    #[test]
    fn no_fault_is_the_identity() {
        let model = model();
        assert_eq!(faulty(&model, &[]).unwrap(), model.bytes);
    }

    #[test]
    fn scaling_changes_four_bytes_of_a_ternary_tensor() {
        let model = model();
        let name = "blk.1.ffn_up.weight";
        let fault = FileFault::ScaleTensor { name: name.into(), factor: 1.02 };
        let copy = faulty(&model, &[fault]).unwrap();
        assert_eq!(changed(&model.bytes, &copy), [name]);
        let (before, after) = (tensor(&model.bytes, name), tensor(&copy, name));
        let codes = 128 * 256 / 4;
        assert_eq!(before[..codes], after[..codes]);
        let scale = |bytes: &[u8]| f32::from_le_bytes(bytes[codes..codes + 4].try_into().unwrap());
        assert_eq!(scale(&after), scale(&before) * 1.02);
        assert_eq!(before[codes + 4..], after[codes + 4..]);
    }

    #[test]
    fn scaling_a_float_tensor_changes_each_element() {
        let model = model();
        let name = "blk.0.attn_norm.weight";
        let fault = FileFault::ScaleTensor { name: name.into(), factor: 2.0 };
        let copy = faulty(&model, &[fault]).unwrap();
        assert_eq!(changed(&model.bytes, &copy), [name]);
        let floats = |bytes: Vec<u8>| -> Vec<f32> {
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
        };
        let doubled: Vec<f32> = floats(tensor(&model.bytes, name)).iter().map(|v| v * 2.0).collect();
        assert_eq!(floats(tensor(&copy, name)), doubled);
    }

    #[test]
    fn swapping_twice_is_the_identity() {
        let model = model();
        let copy = faulty(&model, &[FileFault::SwapLayers(0, 2)]).unwrap();
        for part in ["attn_q", "ffn_down", "ffn_norm"] {
            let name = |layer| format!("blk.{layer}.{part}.weight");
            assert_eq!(tensor(&copy, &name(0)), tensor(&model.bytes, &name(2)));
            assert_eq!(tensor(&copy, &name(2)), tensor(&model.bytes, &name(0)));
            assert_eq!(tensor(&copy, &name(1)), tensor(&model.bytes, &name(1)));
        }
        let once = model.folder.path().join("once.gguf");
        fs::write(&once, &copy).unwrap();
        let twice = model.folder.path().join("twice.gguf");
        rewrite(&once, &twice, &[FileFault::SwapLayers(0, 2)], false).unwrap();
        assert_eq!(fs::read(twice).unwrap(), model.bytes);
    }

    #[test]
    fn a_zeroed_layer_keeps_its_norms() {
        let model = model();
        let copy = faulty(&model, &[FileFault::ZeroLayer(1)]).unwrap();
        let changed = changed(&model.bytes, &copy);
        assert_eq!(changed.len(), 7);
        assert!(changed.iter().all(|name| name.starts_with("blk.1.")));
        let codes = tensor(&copy, "blk.1.attn_v.weight");
        assert!(codes[..codes.len() - 32].iter().all(|&b| b == 0x55));
        assert!(codes[codes.len() - 32..].iter().any(|&b| b != 0x55));
    }

    #[test]
    fn metadata_faults() {
        let model = model();
        let faults = [FileFault::RopeBase(10_000.0), FileFault::PreTokenizer(Some("default".into()))];
        let copy = faulty(&model, &faults).unwrap();
        assert!(changed(&model.bytes, &copy).is_empty());
        let gguf = gguf::Gguf::parse(&copy, &Limits::default()).unwrap();
        assert_eq!(gguf.f32("bitnet-b1.58.rope.freq_base").unwrap(), Some(10_000.0));
        assert_eq!(gguf.string("tokenizer.ggml.pre").unwrap(), Some("default"));
        let copy = faulty(&model, &[FileFault::PreTokenizer(None)]).unwrap();
        let gguf = gguf::Gguf::parse(&copy, &Limits::default()).unwrap();
        assert_eq!(gguf.string("tokenizer.ggml.pre").unwrap(), None);
    }

    #[test]
    fn what_is_derived_differs_from_what_it_is_derived_from() {
        // Bases of published models, and what a config may hold at the least and the most.
        for base in [1.0, 2.0, 49.0, 50.0, 100.0, 999.0, 1000.0, 10_000.0, 500_000.0, 1e6, 1.6e7, f32::MAX] {
            let other = other_rope_base(base);
            let ratio = f64::from(other.max(base)) / f64::from(other.min(base));
            assert!(other.is_finite() && other >= 1.0 && ratio > 40.0, "{base} and {other}");
        }
        // Names of one rule in llama-vocab.cpp (`case` labels that share a regular expression).
        let one_rule: [&[&str]; 2] = [
            &["llama3", "llama-v3", "llama-bpe", "dbrx", "smaug-bpe", "chatglm-bpe"],
            &["gpt-2", "phi-2", "mpt", "olmo"],
        ];
        for rule in one_rule {
            for name in rule {
                assert!(!rule.contains(&other_pre_tokenizer(Some(name))), "{name}");
            }
        }
        assert_eq!(other_pre_tokenizer(None), "llama-bpe");
    }

    #[test]
    fn a_fault_that_would_change_nothing_is_refused() {
        let model = model();
        // The tiny preset's base and pre-tokenizer.
        for fault in [
            FileFault::RopeBase(500_000.0),
            FileFault::PreTokenizer(Some("llama-bpe".into())),
            FileFault::SwapLayers(1, 1),
        ] {
            let err = faulty(&model, std::slice::from_ref(&fault)).unwrap_err();
            assert!(matches!(err, FaultError::NoChange { .. }) && err.has_no_place(), "{fault:?}: {err}");
        }
    }

    #[test]
    fn faults_without_a_target_are_refused() {
        let model = model();
        for fault in [
            FileFault::SwapLayers(0, 3),
            FileFault::SwapLayers(7, 8),
            FileFault::ZeroLayer(3),
            FileFault::ScaleTensor { name: "nope".into(), factor: 1.0 },
        ] {
            let err = faulty(&model, std::slice::from_ref(&fault)).unwrap_err();
            assert!(matches!(err, FaultError::NotThere { .. }) && err.has_no_place(), "{fault:?}");
        }
        assert!(!model.folder.path().join("copy.gguf").exists());
    }
}
