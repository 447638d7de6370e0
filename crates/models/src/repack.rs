//! Rewrites a model's tensors in other types: ternary formats into each other without loss, floats through ggml's
//! quantizers. Streams tensor by tensor; metadata is carried over.

use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use bitnet_rs::quantize;
use gguf::{GgmlType, Gguf, GgufError, GgufFile, Limits, TensorInfo, Value};
use half::{bf16, f16};
use serde::Serialize;

use super::faults::encoded;
use super::ternary::{self, TQ_BLOCK, TQ1_BYTES, TQ2_BYTES};
use files::atomic_file::{self, AtomicFileError};
use files::staging::Staging;
use gguf::writer::{self as gguf_writer, DataWriter, FilePlan, TensorPlan};
use reference::i2s::{self, Packing};

/// Weights handled at once; a multiple of every block.
const PIECE: usize = 1 << 18;

/// Longest row that is converted, weights: a row is held at once, several times over, and a file with holes claims any
/// length. Sixteen times the longest of a real model.
pub(super) const MAX_ROW: u64 = 1 << 20;

/// Key that names the packing of a file's I2_S tensors; only files written here have it.
pub const PACKING_KEY: &str = "bitnet_harness.i2_s_packing";

/// The engine's name for the rule that cuts text.
const PRE_KEY: &str = "tokenizer.ggml.pre";

/// Why no file was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RepackError {
    /// A tensor cannot take the type.
    #[error("tensor '{tensor}' ({from}, rows of {row_len}) cannot become {to}: {reason}")]
    Tensor {
        /// The tensor.
        tensor: String,
        /// Its type.
        from: &'static str,
        /// Its row length.
        row_len: u64,
        /// The type asked for.
        to: &'static str,
        /// Why not.
        reason: String,
    },
    /// A value that the target cannot hold.
    #[error("tensor '{tensor}', row {row}, column {column}: {problem}")]
    Value {
        /// The tensor.
        tensor: String,
        /// Row.
        row: u64,
        /// Column.
        column: u64,
        /// What is wrong.
        problem: String,
    },
    /// Nothing in the file matches what was asked for.
    #[error("{what}; the file was not written")]
    NothingToDo {
        /// What is missing.
        what: String,
    },
    /// The file holds codes packed for other CPUs, or says so.
    #[error("the file says its I2_S tensors are packed {found}; pass --from-packing {found} to convert them")]
    Packing {
        /// `x86` or `arm`.
        found: String,
    },
    /// What was written does not decode to what was read.
    #[error("verification failed: tensor '{tensor}' {problem}; nothing was put in place")]
    Verify {
        /// The tensor.
        tensor: String,
        /// What differs.
        problem: String,
    },
    /// The cancel flag was set.
    #[error("cancelled; nothing was written to the output file")]
    Cancelled,
    /// The input was refused or could not be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// ggml's quantizer refused.
    #[error(transparent)]
    Engine(#[from] bitnet_rs::Error),
    /// The output file could not be made.
    #[error(transparent)]
    File(#[from] AtomicFileError),
    /// The data could not be written.
    #[error("cannot write the model: {0}")]
    Write(#[from] io::Error),
}

/// What to do.
#[derive(Debug, Clone, Default)]
pub struct Targets {
    /// Type of `token_embd.weight`.
    pub embedding: Option<GgmlType>,
    /// Type of `output.weight`.
    pub output: Option<GgmlType>,
    /// Type of the matrices of the blocks.
    pub matrices: Option<GgmlType>,
    /// How I2_S tensors of the input are packed; unstated, the file's own word, else x86.
    pub from_packing: Option<Packing>,
    /// How I2_S tensors of the output are packed; x86 unless stated.
    pub to_packing: Option<Packing>,
    /// `tokenizer.ggml.pre` of the output.
    pub pre: Option<String>,
}

/// What happened to a tensor that was not copied.
#[derive(Debug, Clone, Serialize)]
pub struct Changed {
    /// Name.
    pub tensor: String,
    /// Type before.
    pub from: &'static str,
    /// Type after.
    pub to: &'static str,
    /// Bytes before.
    pub bytes_from: u64,
    /// Bytes after.
    pub bytes_to: u64,
    /// Largest |after − before| of a decoded value over the largest |before|; codes never differ, so for ternary
    /// types this is the rounding of the scale.
    pub max_relative_error: f64,
    /// Root mean square of the differences over that of the values.
    pub rms_relative_error: f64,
}

/// What was written.
#[derive(Debug, Clone, Serialize)]
pub struct Repacked {
    /// Bytes of the new file.
    pub bytes: u64,
    /// Tensors that changed.
    pub changed: Vec<Changed>,
    /// Tensors copied byte for byte.
    pub copied: usize,
}

/// Name of a packing on the command line and in [`PACKING_KEY`].
pub fn packing_name(packing: Packing) -> &'static str {
    match packing {
        Packing::X86 => "x86",
        Packing::Neon => "arm",
    }
}

/// The packing that a file states about itself, if it does.
pub fn stated_packing(gguf: &Gguf) -> Option<Packing> {
    let name = gguf.get(PACKING_KEY)?.as_str()?;
    Packing::ALL.into_iter().find(|&p| packing_name(p) == name)
}

fn is_block_matrix(tensor: &TensorInfo) -> bool {
    tensor.name().starts_with("blk.") && tensor.name().ends_with(".weight") && tensor.rows() > 1
}

fn is_ternary(ty: GgmlType) -> bool {
    matches!(ty, GgmlType::I2_S | GgmlType::TQ1_0 | GgmlType::TQ2_0)
}

struct Job<'g> {
    source: &'g TensorInfo,
    to: GgmlType,
    /// I2_S on either side changes its packing.
    repacked: bool,
}

/// Writes `output` with the tensors of `input` in the types of `targets`; the file is put in place after every
/// changed tensor was decoded from it and compared with the original, and after it opens as a GGUF file.
///
/// `progress` gets bytes of the output written and in total.
///
/// # Errors
/// See [`RepackError`]; an existing output file is only replaced with `force`.
pub fn write(
    input: &GgufFile,
    output: &Path,
    targets: &Targets,
    force: bool,
    progress: &mut dyn FnMut(u64, u64),
    cancel: &AtomicBool,
) -> Result<Repacked, RepackError> {
    let gguf = input.gguf();
    let stated = stated_packing(gguf);
    let from = match (targets.from_packing, stated) {
        (Some(asked), _) => asked,
        (None, Some(Packing::Neon)) => return Err(RepackError::Packing { found: packing_name(Packing::Neon).into() }),
        (None, _) => Packing::X86,
    };
    let to = targets.to_packing.unwrap_or(Packing::X86);
    let jobs = plan(gguf, targets, from, to)?;
    let mut metadata = metadata(gguf, &jobs, to);
    if let Some(pre) = &targets.pre {
        metadata.retain(|(key, _)| key != PRE_KEY);
        metadata.push((PRE_KEY.to_owned(), gguf_writer::Value::from(pre.as_str())));
    }
    let plans = jobs
        .iter()
        .map(|job| {
            let bytes = job.to.tensor_bytes(job.source.elements()).ok_or_else(|| refuse(job, "its size overflows"))?;
            Ok(TensorPlan {
                name: job.source.name().to_owned(),
                dims: job.source.dims().to_vec(),
                kind: job.to.number(),
                bytes,
            })
        })
        .collect::<Result<Vec<_>, RepackError>>()?;
    let plan = FilePlan::new(&metadata, plans)?;
    let total = plan.total_bytes();
    let mut changed = Vec::new();
    let staged = Staging::beside(output, force)?;
    atomic_file::write(staged.path(), true, |out| -> Result<(), RepackError> {
        let mut written = plan.header_bytes();
        let mut data = plan.start(out)?;
        let mut step = |bytes: u64| {
            written += bytes;
            progress(written, total);
            if cancel.load(Ordering::Relaxed) { Err(RepackError::Cancelled) } else { Ok(()) }
        };
        for job in &jobs {
            if job.to == job.source.ggml_type() && !job.repacked {
                copy(input, job.source, &mut data, &mut step)?;
            } else {
                changed.push(convert(input, job, from, to, &mut data, &mut step)?);
            }
        }
        Ok(data.finish()?)
    })?;
    // The writer's plan is not the judge of its own work: the reader is. Only what was a model has to be one still.
    let opened = GgufFile::open(staged.path(), &Limits::default())?;
    if to == Packing::X86 && (from == Packing::Neon || input.model(&Limits::default()).is_ok()) {
        opened.model(&Limits::default())?;
    }
    staged.put(output, force)?;
    Ok(Repacked { bytes: total, copied: jobs.len() - changed.len(), changed })
}

fn refuse(job: &Job<'_>, reason: &str) -> RepackError {
    RepackError::Tensor {
        tensor: job.source.name().to_owned(),
        from: job.source.ggml_type().name(),
        row_len: job.source.row_len(),
        to: job.to.name(),
        reason: reason.to_owned(),
    }
}

fn plan<'g>(gguf: &'g Gguf, targets: &Targets, from: Packing, to: Packing) -> Result<Vec<Job<'g>>, RepackError> {
    let mut jobs = Vec::new();
    let mut any = false;
    for source in gguf.tensors() {
        let asked = match source.name() {
            "token_embd.weight" => targets.embedding,
            "output.weight" => targets.output,
            _ if is_block_matrix(source) => targets.matrices,
            _ => None,
        };
        let to_type = asked.unwrap_or(source.ggml_type());
        let repacked = source.ggml_type() == GgmlType::I2_S && to_type == GgmlType::I2_S && from != to;
        any |= repacked || to_type != source.ggml_type();
        let job = Job { source, to: to_type, repacked };
        check(&job)?;
        jobs.push(job);
    }
    let renamed = targets.pre.as_deref().is_some_and(|pre| gguf.string(PRE_KEY).ok().flatten() != Some(pre));
    if !any && !renamed {
        let what = "every tensor has the type that was asked for already".to_owned();
        return Err(RepackError::NothingToDo { what });
    }
    Ok(jobs)
}

fn check(job: &Job<'_>) -> Result<(), RepackError> {
    let (from, to) = (job.source.ggml_type(), job.to);
    if from == to && !job.repacked {
        return Ok(());
    }
    if job.source.row_len() > MAX_ROW {
        return Err(refuse(job, &format!("rows of at most {MAX_ROW} are converted")));
    }
    if !job.source.row_len().is_multiple_of(to.block_len()) {
        return Err(refuse(job, &format!("rows must be a multiple of {} long", to.block_len())));
    }
    if !job.source.rows().is_multiple_of(to.row_group()) {
        return Err(refuse(job, &format!("the number of rows must be a multiple of {}", to.row_group())));
    }
    let readable = matches!(from, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16)
        || is_ternary(from)
        || quantize::TYPES.contains(&from);
    if !readable {
        return Err(refuse(job, "values of this type cannot be read"));
    }
    let writable =
        matches!(to, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 | GgmlType::I2_S) || quantize::TYPES.contains(&to);
    if !writable {
        return Err(refuse(job, "no quantizer makes this type without an importance matrix"));
    }
    Ok(())
}

/// The original's keys; the file type follows the block matrices.
fn metadata(gguf: &Gguf, jobs: &[Job<'_>], to: Packing) -> Vec<(String, gguf_writer::Value)> {
    let mut metadata: Vec<(String, gguf_writer::Value)> = gguf
        .entries()
        // The writer aligns to the default.
        .filter(|(key, _)| !["general.alignment", PACKING_KEY].contains(key))
        .map(|(key, value)| (key.to_owned(), encoded(value)))
        .collect();
    let ternary = jobs.iter().find(|job| is_block_matrix(job.source)).map(|job| job.to);
    if let Some(file_type) = ternary.and_then(file_type)
        && matches!(gguf.get("general.file_type"), None | Some(Value::U32(_)))
    {
        match metadata.iter_mut().find(|(key, _)| key == "general.file_type") {
            Some((_, value)) => *value = gguf_writer::Value::U32(file_type),
            None => metadata.push(("general.file_type".to_owned(), gguf_writer::Value::U32(file_type))),
        }
    }
    if jobs.iter().any(|job| job.to == GgmlType::I2_S) {
        metadata.push((PACKING_KEY.to_owned(), gguf_writer::Value::from(packing_name(to))));
    }
    metadata
}

/// `LLAMA_FTYPE_…` of files whose matrices have this type.
pub fn file_type(ty: GgmlType) -> Option<u32> {
    Some(match ty {
        GgmlType::F32 => 0,
        GgmlType::F16 => 1,
        GgmlType::Q4_0 => 2,
        GgmlType::Q8_0 => 7,
        GgmlType::Q6_K => 18,
        GgmlType::BF16 => 32,
        GgmlType::TQ1_0 => 36,
        GgmlType::TQ2_0 => 37,
        GgmlType::I2_S => 40,
        _ => return None,
    })
}

type Step<'s> = dyn FnMut(u64) -> Result<(), RepackError> + 's;

fn copy<W: Write + ?Sized>(
    input: &GgufFile,
    tensor: &TensorInfo,
    data: &mut DataWriter<'_, W>,
    step: &mut Step<'_>,
) -> Result<(), RepackError> {
    let mut piece = vec![0; 4 * PIECE];
    let mut at = 0;
    while at < tensor.size() {
        let piece = &mut piece[..(4 * PIECE as u64).min(tensor.size() - at) as usize];
        input.read_tensor_part(tensor, at, piece)?;
        data.write(piece)?;
        at += piece.len() as u64;
        step(piece.len() as u64)?;
    }
    Ok(())
}

/// Weights of a tensor, decoded.
enum Decoded {
    /// Codes w + 1.
    Ternary(Vec<u8>),
    Floats(Vec<f32>),
}

/// Decodes `len` weights from weight `first` on (both whole blocks) of bytes laid out as `ty`.
///
/// Codes are decoded with the layout's own bit positions, which the writers above do not share with the readers:
/// this is what verification stands on.
fn decode(
    input: &GgufFile,
    tensor: &TensorInfo,
    packing: Packing,
    scale: f32,
    first: u64,
    len: usize,
) -> Result<Decoded, RepackError> {
    let ty = tensor.ggml_type();
    let start = ty.row_bytes(first);
    let size = ty.row_bytes(len as u64).and_then(|n| usize::try_from(n).ok());
    let (Some(start), Some(size)) = (start, size) else {
        return Err(bad_value(tensor, first, "the piece is no whole number of blocks".into()));
    };
    let mut bytes = vec![0; size];
    input.read_tensor_part(tensor, start, &mut bytes)?;
    decode_bytes(tensor, ty, &bytes, packing, scale, first, len)
}

fn decode_bytes(
    tensor: &TensorInfo,
    ty: GgmlType,
    bytes: &[u8],
    packing: Packing,
    scale: f32,
    first: u64,
    len: usize,
) -> Result<Decoded, RepackError> {
    Ok(match ty {
        GgmlType::I2_S => {
            let mut codes = vec![0; len];
            ternary::unpack_i2s(bytes, packing, &mut codes);
            forbid_code_3(tensor, first, &codes)?;
            Decoded::Ternary(codes)
        }
        GgmlType::TQ1_0 | GgmlType::TQ2_0 => {
            let mut codes = Vec::with_capacity(len);
            let block_bytes = ty.block_bytes() as usize;
            for (index, block) in bytes.chunks_exact(block_bytes).enumerate() {
                let (block_codes, d) = unpack_block(ty, block);
                let at = first + (index * TQ_BLOCK) as u64;
                // All-zero blocks may carry any scale: ggml writes 0 there.
                if d.to_f32() != scale && block_codes.iter().any(|&c| c != 1) {
                    let problem = format!(
                        "its block has the scale {d}, the tensor's first one {scale}: I2_S and this command know one scale a tensor"
                    );
                    return Err(bad_value(tensor, at, problem));
                }
                codes.extend_from_slice(&block_codes);
            }
            forbid_code_3(tensor, first, &codes)?;
            Decoded::Ternary(codes)
        }
        GgmlType::F32 => Decoded::Floats(bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect()),
        GgmlType::F16 => {
            Decoded::Floats(bytes.as_chunks::<2>().0.iter().map(|&b| f16::from_le_bytes(b).to_f32()).collect())
        }
        GgmlType::BF16 => {
            Decoded::Floats(bytes.as_chunks::<2>().0.iter().map(|&b| bf16::from_le_bytes(b).to_f32()).collect())
        }
        other => Decoded::Floats(quantize::floats(other, bytes)?),
    })
}

fn unpack_block(ty: GgmlType, block: &[u8]) -> ([u8; TQ_BLOCK], f16) {
    let mut two = [0; TQ2_BYTES];
    let mut one = [0; TQ1_BYTES];
    if ty == GgmlType::TQ2_0 {
        two.copy_from_slice(block);
        ternary::unpack_tq2(&two)
    } else {
        one.copy_from_slice(block);
        ternary::unpack_tq1(&one)
    }
}

fn bad_value(tensor: &TensorInfo, index: u64, problem: String) -> RepackError {
    let row_len = tensor.row_len().max(1);
    RepackError::Value { tensor: tensor.name().to_owned(), row: index / row_len, column: index % row_len, problem }
}

fn forbid_code_3(tensor: &TensorInfo, first: u64, codes: &[u8]) -> Result<(), RepackError> {
    match codes.iter().position(|&c| c > 2) {
        None => Ok(()),
        Some(at) => {
            Err(bad_value(tensor, first + at as u64, "the code 3 is no ternary weight: the tensor is damaged".into()))
        }
    }
}

/// The one scale of a ternary tensor; for the block types that of the first block that is not all zero.
fn scale_of(input: &GgufFile, tensor: &TensorInfo) -> Result<f32, RepackError> {
    let ty = tensor.ggml_type();
    let scale = match ty {
        GgmlType::I2_S => {
            let mut bytes = [0; 4];
            input.read_tensor_part(tensor, tensor.elements() / 4, &mut bytes)?;
            f32::from_le_bytes(bytes)
        }
        GgmlType::TQ1_0 | GgmlType::TQ2_0 => {
            let block_bytes = ty.block_bytes();
            let mut block = vec![0; block_bytes as usize];
            let mut found = 0.0;
            for index in 0..tensor.elements() / TQ_BLOCK as u64 {
                input.read_tensor_part(tensor, index * block_bytes, &mut block)?;
                let (codes, d) = unpack_block(ty, &block);
                if codes.iter().any(|&c| c != 1) {
                    found = d.to_f32();
                    break;
                }
            }
            found
        }
        _ => 0.0,
    };
    if !scale.is_finite() || scale < 0.0 {
        return Err(bad_value(tensor, 0, format!("the scale is {scale}; a finite number, zero or above, is needed")));
    }
    Ok(scale)
}

/// The one magnitude of a float tensor that is to become ternary.
fn magnitude_of(input: &GgufFile, tensor: &TensorInfo) -> Result<f32, RepackError> {
    let mut magnitude = 0.0f32;
    for_each_piece(tensor, |first, len| {
        if let Decoded::Floats(values) = decode(input, tensor, Packing::X86, 0.0, first, len)? {
            for (at, &value) in values.iter().enumerate() {
                let size = value.abs();
                if f64::from(size) < i2s::ZERO_WEIGHT {
                    continue;
                }
                if magnitude == 0.0 && size.is_finite() {
                    magnitude = size;
                } else if size != magnitude {
                    let problem = format!(
                        "{value} is neither 0 nor ±{magnitude}: the tensor is not ternary. Master weights are \
                         rounded by `harness model convert`"
                    );
                    return Err(bad_value(tensor, first + at as u64, problem));
                }
            }
        }
        Ok(())
    })?;
    Ok(magnitude)
}

/// Calls `each` with first weight and length of pieces of whole rows (a piece of a row for very long ones).
fn for_each_piece(
    tensor: &TensorInfo,
    mut each: impl FnMut(u64, usize) -> Result<(), RepackError>,
) -> Result<(), RepackError> {
    let row = tensor.row_len().max(1);
    let len = if row >= PIECE as u64 { row } else { PIECE as u64 / row * row };
    let mut first = 0;
    while first < tensor.elements() {
        let n = len.min(tensor.elements() - first);
        let n =
            usize::try_from(n).map_err(|_| bad_value(tensor, first, "a row is too long for this machine".into()))?;
        each(first, n)?;
        first += n as u64;
    }
    Ok(())
}

fn convert<W: Write + ?Sized>(
    input: &GgufFile,
    job: &Job<'_>,
    from: Packing,
    to: Packing,
    data: &mut DataWriter<'_, W>,
    step: &mut Step<'_>,
) -> Result<Changed, RepackError> {
    let tensor = job.source;
    let row_len = tensor.row_len() as usize;
    let ternary_source = is_ternary(tensor.ggml_type());
    let ternary_target = is_ternary(job.to);
    let scale = if ternary_source {
        scale_of(input, tensor)?
    } else if ternary_target {
        magnitude_of(input, tensor)?
    } else {
        0.0
    };
    let d = f16::from_f32(scale);
    if matches!(job.to, GgmlType::TQ1_0 | GgmlType::TQ2_0) && !(d.is_finite() && (d.to_f32() > 0.0 || scale == 0.0)) {
        return Err(bad_value(tensor, 0, format!("the scale {scale} does not fit the f16 of {}", job.to)));
    }
    let written_scale = match job.to {
        GgmlType::TQ1_0 | GgmlType::TQ2_0 => d.to_f32(),
        _ => scale,
    };
    let (mut worst, mut largest, mut noise, mut power) = (0.0f64, 0.0f64, 0.0f64, 0.0f64);
    let mut bytes_to = 0;
    for_each_piece(tensor, |first, len| {
        let before = decode(input, tensor, from, scale, first, len)?;
        let before_floats = |code: u8| (f32::from(code) - 1.0) * scale;
        let written = |values: &[f32]| {
            floats_as(values, job.to, row_len).map_err(|e| match e {
                bitnet_rs::Error::KernelArgument { field: "element", value, limit } => {
                    bad_value(tensor, first + value.unsigned_abs(), limit)
                }
                e => e.into(),
            })
        };
        let bytes = match (&before, ternary_target) {
            (Decoded::Ternary(codes), true) => pack(codes, job.to, to, d),
            (Decoded::Floats(values), true) => {
                let codes: Vec<u8> = values
                    .iter()
                    .map(|&v| match v {
                        v if f64::from(v.abs()) < i2s::ZERO_WEIGHT => 1,
                        v if v > 0.0 => 2,
                        _ => 0,
                    })
                    .collect();
                pack(&codes, job.to, to, d)
            }
            (Decoded::Ternary(codes), false) => {
                let values: Vec<f32> = codes.iter().map(|&c| before_floats(c)).collect();
                written(&values)?
            }
            (Decoded::Floats(values), false) => written(values)?,
        };
        // Decode what is about to be written and hold it against what was read.
        let after = decode_bytes(tensor, job.to, &bytes, to, written_scale, first, len)?;
        let values = |decoded: &Decoded, scale: f32| -> Vec<f32> {
            match decoded {
                Decoded::Ternary(codes) => codes.iter().map(|&c| (f32::from(c) - 1.0) * scale).collect(),
                Decoded::Floats(values) => values.clone(),
            }
        };
        if let (Decoded::Ternary(a), Decoded::Ternary(b)) = (&before, &after)
            && let Some(at) = a.iter().zip(b).position(|(a, b)| a != b)
        {
            let problem = format!("weight {} became {}", i16::from(a[at]) - 1, i16::from(b[at]) - 1);
            return Err(RepackError::Verify { tensor: tensor.name().to_owned(), problem });
        }
        for (at, (a, b)) in (first..).zip(values(&before, scale).iter().zip(&values(&after, written_scale))) {
            let (a, b) = (f64::from(*a), f64::from(*b));
            if !b.is_finite() {
                return Err(bad_value(tensor, at, format!("{a} became {b} in {}", job.to)));
            }
            worst = worst.max((a - b).abs());
            largest = largest.max(a.abs());
            noise += (a - b).powi(2);
            power += a * a;
        }
        data.write(&bytes)?;
        bytes_to += bytes.len() as u64;
        step(bytes.len() as u64)
    })?;
    if job.to == GgmlType::I2_S {
        let mut trailer = [0; i2s::TRAILER];
        trailer[..4].copy_from_slice(&scale.to_le_bytes());
        data.write(&trailer)?;
        bytes_to += trailer.len() as u64;
        step(trailer.len() as u64)?;
    }
    let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
    Ok(Changed {
        tensor: tensor.name().to_owned(),
        from: tensor.ggml_type().name(),
        to: job.to.name(),
        bytes_from: tensor.size(),
        bytes_to,
        max_relative_error: ratio(worst, largest),
        rms_relative_error: ratio(noise.sqrt(), power.sqrt()),
    })
}

/// Packs codes as a ternary type; `d` is the scale of the block types.
pub(super) fn pack(codes: &[u8], ty: GgmlType, packing: Packing, d: f16) -> Vec<u8> {
    match ty {
        GgmlType::TQ1_0 => {
            codes.as_chunks::<TQ_BLOCK>().0.iter().flat_map(|block| ternary::pack_tq1(block, d)).collect()
        }
        GgmlType::TQ2_0 => {
            codes.as_chunks::<TQ_BLOCK>().0.iter().flat_map(|block| ternary::pack_tq2(block, d)).collect()
        }
        _ => {
            let mut out = vec![0; codes.len() / 4];
            ternary::pack_i2s(codes, packing, &mut out);
            out
        }
    }
}

/// Floats as a float or block type.
pub(super) fn floats_as(values: &[f32], ty: GgmlType, row_len: usize) -> Result<Vec<u8>, bitnet_rs::Error> {
    Ok(match ty {
        GgmlType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        GgmlType::F16 => values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
        GgmlType::BF16 => values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
        other => quantize::rows(other, values, row_len)?,
    })
}
