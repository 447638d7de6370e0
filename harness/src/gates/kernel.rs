//! Gate 1: the ternary matrix product equals a reference, bit for bit.
//!
//! Every I2_S entry point of the engine runs on random inputs for the model's shapes and a standard list, against
//! the i64 reference of [`reference::i2s`]. The AVX2 kernel adds products in 16-bit lanes; so the gate also
//! computes the lane sums on the model's real activations, and shows the inputs where the lanes wrap, with the
//! domain in which they cannot.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use bitnet_rs::kernels::{self, DotKernel};
use bitnet_rs::{Batch, Context, ContextParams, Model, ModelParams, Pos, Probe, ProbedTensor, SeqId, Special};
use files::mapped::MappedFile;
use gguf::{GgmlType, ModelFile};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use super::recorder::{Recorder, finding};
use super::{GateError, GateId, GateInputs, fault};
use crate::report::{FaultReport, Finding, Severity};
use reference::i2s::{self, I2sMatrix, PackedFault, Packing, QuantizedRow};
use reference::lanes;

/// Text whose activations are measured where the tokenizer allows; any vocabulary can spell it.
const PROBE_TEXT: &str = "The lamp in the kitchen is on. Turn it off when everyone has left the room, please. \
                          把客厅的灯调到百分之三十。 1234567 {\"action\":\"turn_on\"}";

/// Runs the gate.
///
/// # Errors
/// When the model cannot be opened or decoded.
pub fn run(inputs: &GateInputs, rec: &mut Recorder) -> Result<(), GateError> {
    let t = &inputs.thresholds.kernel;
    let path = inputs.model.path()?;
    let file = ModelFile::open(path.as_path(), &Default::default()).map_err(bitnet_rs::Error::from)?;
    layout(rec)?;
    let mut shapes: BTreeSet<(usize, usize)> = t.shapes.iter().copied().collect();
    let own: BTreeSet<(usize, usize)> = file
        .gguf()
        .tensors()
        .iter()
        .filter(|t| t.ggml_type() == GgmlType::I2_S)
        .map(|t| (t.row_len() as usize, t.rows() as usize))
        .collect();
    if own.is_empty() {
        rec.unmeasured("no-ternary-tensor", "the model has no I2_S tensor: its kernel is not the one under test");
    }
    shapes.extend(&own);
    if inputs.quick {
        shapes.retain(|s| own.contains(s) || s.0 * s.1 <= 1 << 18);
    }
    for (i, &(k, n)) in shapes.iter().enumerate() {
        rec.progress(&format!("kernel {k} × {n} ({} of {})", i + 1, shapes.len()));
        let case = Case::random(k, n, *t.columns.iter().max().unwrap_or(&1), i as u64)?;
        entry_points(&case, case.packed(), rec)?;
        for &threads in &t.threads {
            for &columns in &t.columns {
                product(&case, case.packed(), case.scale, columns, threads, rec)?;
            }
        }
    }
    refusals(rec);
    adversarial(&shapes, rec)?;
    rec.metric("shapes", shapes.iter().map(|(k, n)| format!("{k}x{n}")).collect::<Vec<_>>());
    rec.say(format!("bit-identical on {} shapes", shapes.len()));
    if !own.is_empty() {
        headroom(inputs, path.as_path(), rec)?;
    }
    Ok(())
}

/// Random weights and activations of one shape, with the exact sums.
struct Case {
    k: usize,
    n: usize,
    scale: f32,
    /// Codes, scale and padding as in a file.
    tensor: Vec<u8>,
    activations: Vec<f32>,
    quantized: Vec<QuantizedRow>,
    /// `[column][row]`: Σ code · a.
    raw: Vec<i64>,
    /// `[column][row]`: the finished floats.
    finished: Vec<f32>,
}

impl Case {
    fn packed(&self) -> &[u8] {
        &self.tensor[..self.k * self.n / 4]
    }

    fn random(k: usize, n: usize, columns: usize, seed: u64) -> Result<Self, GateError> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x0b17_ae70);
        let weights: Vec<i8> = (0..k * n).map(|_| rng.random_range(-1..=1)).collect();
        let scale = rng.random_range(0.005f32..3.0);
        let tensor = i2s::pack(&weights, n, k, scale, Packing::X86)?;
        let activations: Vec<f32> = (0..columns * k)
            .map(|i| {
                // Columns of different character: plain, tiny, one outlier, exact halves, all zero.
                let x: f32 = rng.random_range(-1.0..1.0);
                match i / k % 5 {
                    0 => x,
                    1 => x * 1e-6,
                    2 if i % k == 7 => 40.0,
                    3 => (x * 254.0).round() / 254.0,
                    4 if i / k > 8 => 0.0,
                    _ => x * x * x,
                }
            })
            .collect();
        let quantized: Vec<QuantizedRow> = activations.chunks(k).map(i2s::quantize_row).collect::<Result<_, _>>()?;
        let matrix = I2sMatrix::new(&tensor, n, k, Packing::X86)?;
        let raw = matrix.raw_matmul(&quantized)?;
        let finished = matrix.matmul(&quantized)?;
        Ok(Self { k, n, scale, tensor, activations, quantized, raw, finished })
    }
}

fn mismatch(what: &str, case: &Case, columns: usize, threads: u32, at: usize, expected: f64, found: f64) -> Finding {
    finding(
        Severity::Failure,
        "kernel-mismatch",
        format!(
            "{what}: K = {}, N = {}, {columns} columns, {threads} threads: result {at} is {found}, expected {expected}",
            case.k, case.n
        ),
        [
            ("entry_point", json!(what)),
            ("k", json!(case.k)),
            ("n", json!(case.n)),
            ("columns", json!(columns)),
            ("threads", json!(threads)),
            ("column", json!(at / case.n)),
            ("row", json!(at % case.n)),
            ("expected", json!(expected)),
            ("found", json!(found)),
        ],
    )
}

/// First index where the kernel's sums differ from the exact ones.
fn differs(expected: impl Iterator<Item = i64>, found: &[f32]) -> Option<(usize, i64, f32)> {
    expected.zip(found).enumerate().find(|(_, (e, f))| **f as i64 != *e).map(|(i, (e, f))| (i, e, *f))
}

fn sums(
    what: &str,
    case: &Case,
    columns: usize,
    expected: impl Iterator<Item = i64>,
    found: &[f32],
    rec: &mut Recorder,
) {
    rec.plan(1);
    let first = differs(expected, found);
    rec.check(first.is_none(), || {
        let (i, e, f) = first.unwrap_or_default();
        mismatch(what, case, columns, 1, i, e as f64, f64::from(f))
    });
}

/// Quantizers and every dot product that the engine can call, apart from the whole product.
fn entry_points(case: &Case, packed: &[u8], rec: &mut Recorder) -> Result<(), GateError> {
    let (k, n) = (case.k, case.n);
    for (column, expected) in case.quantized.iter().enumerate().take(8) {
        let x = &case.activations[column * k..(column + 1) * k];
        for (what, found) in [
            ("quantize_row_i8_s", kernels::quantize_activations(x)?),
            ("quantize_row_i8_s_4x1", kernels::quantize_activations_4x1(x)?),
        ] {
            rec.plan(1);
            let same = found.values == expected.values
                && found.scale.to_bits() == expected.scale.to_bits()
                && found.sum == expected.sum;
            rec.check(same, || {
                let at = found.values.iter().zip(&expected.values).position(|(a, b)| a != b).unwrap_or(0);
                let (e, f) = (f64::from(expected.values[at]), f64::from(found.values[at]));
                mismatch(what, case, 1, 1, at, e, f)
            });
        }
    }
    let rows = n.min(64);
    let matrix = I2sMatrix::new(&case.tensor, n, k, Packing::X86)?;
    let weights: Vec<f32> = (0..rows).flat_map(|row| matrix.dequantize_row(row)).collect();
    let (quantized, scale) = kernels::quantize_weights(&weights, rows, k)?;
    rec.plan(2);
    let byte = quantized.iter().zip(packed).position(|(a, b)| a != b);
    rec.check(byte.is_none() && scale.to_bits() == case.scale.to_bits(), || match byte {
        Some(i) => mismatch("quantize_i2_s (packed byte)", case, 0, 1, i, packed[i].into(), quantized[i].into()),
        None => mismatch("quantize_i2_s (scale)", case, 0, 1, 0, f64::from(case.scale), f64::from(scale)),
    });
    let row = kernels::dequantize_row(&packed[..k / 4], case.scale)?;
    let first = row.iter().zip(&weights).position(|(a, b)| a.to_bits() != b.to_bits() && (*a != 0.0 || *b != 0.0));
    rec.check(first.is_none(), || {
        let i = first.unwrap_or(0);
        mismatch("dequantize_row_i2_s", case, 0, 1, i, f64::from(weights[i]), f64::from(row[i]))
    });

    let column = |c: usize| case.quantized[c].values.as_slice();
    let first_column = |r: std::ops::Range<usize>| case.raw[r].iter().copied();
    let rows4 = (rows / 4 * 4).max(4);
    let found = kernels::dot(DotKernel::OneByOne, &packed[..rows * k / 4], k, column(0))?;
    sums("ggml_vec_dot_i2_i8_s_1x1", case, 1, first_column(0..rows), &found, rec);
    let found = kernels::dot(DotKernel::OneByN, &packed[..rows4 * k / 4], k, column(0))?;
    sums("ggml_vec_dot_i2_i8_s_1xN", case, 1, first_column(0..rows4), &found, rec);
    for columns in [4, 16] {
        let together: Vec<i8> = (0..columns).flat_map(|c| column(c).iter().copied()).collect();
        let found = kernels::dot(DotKernel::NByOne, &packed[..k / 4], k, &together)?;
        sums("ggml_vec_dot_i2_i8_s_Nx1", case, columns, (0..columns).map(|c| case.raw[c * n]), &found, rec);
        let found = kernels::vec_dot(&packed[..k / 4], k, &together)?;
        sums("ggml_vec_dot_i2_i8_s", case, columns, (0..columns).map(|c| case.raw[c * n]), &found, rec);
        let found = kernels::gemm(packed, k, &together)?;
        sums("ggml_gemm_i2_i8_s", case, columns, case.raw[..columns * n].iter().copied(), &found, rec);
    }
    let found = kernels::vec_dot(&packed[..k / 4], k, column(0))?;
    sums("ggml_vec_dot_i2_i8_s", case, 1, first_column(0..1), &found, rec);
    let found = kernels::gemv(packed, k, column(1))?;
    sums("ggml_gemv_i2_i8_s", case, 1, first_column(n..2 * n), &found, rec);
    Ok(())
}

/// The whole `ggml_mul_mat`.
fn product(
    case: &Case,
    packed: &[u8],
    scale: f32,
    columns: usize,
    threads: u32,
    rec: &mut Recorder,
) -> Result<(), GateError> {
    rec.plan(1);
    let found = kernels::mul_mat(packed, scale, case.n, case.k, &case.activations[..columns * case.k], threads)?;
    let first = found.iter().zip(&case.finished).position(|(f, e)| f.to_bits() != e.to_bits());
    rec.check(first.is_none(), || {
        let i = first.unwrap_or(0);
        mismatch("ggml_mul_mat", case, columns, threads, i, f64::from(case.finished[i]), f64::from(found[i]))
    });
    Ok(())
}

/// Which of the two packings does this build compute?
fn layout(rec: &mut Recorder) -> Result<(), GateError> {
    let config = kernels::config();
    // Four equal rows: tensors have rows in fours.
    let weights: Vec<i8> = (0..4 * 128).map(|j| ((j % 128 * 7) % 3) as i8 - 1).collect();
    let activations: Vec<i8> = (0..128).map(|j| (j % 120) as i8 - 50).collect();
    let x86 = i2s::pack(&weights, 4, 128, 1.0, Packing::X86)?;
    let found = kernels::dot(DotKernel::OneByOne, &x86[..32], 128, &activations)?[0] as i64;
    let packing = i2s::identify_packing(&x86[..32], &activations, found)?;
    rec.plan(1);
    rec.check(packing == Some(Packing::X86) && config.block == 128, || {
        let message = format!("layout: the kernel reads {packing:?}, expected 128 weights in 32 bytes");
        finding(Severity::Failure, "layout", message, [("block", json!(config.block)), ("sum", json!(found))])
    });
    rec.metric("packing", "128 weights in 32 bytes");
    rec.metric(
        "gemm_config",
        format!("{} rows, {} columns, {} at once", config.row_block, config.col_block, config.parallel),
    );
    Ok(())
}

/// Shapes that the engine would take and compute wrongly are refused by name.
fn refusals(rec: &mut Recorder) {
    for k in [64, 127, 129, 2592] {
        rec.plan(1);
        let refused = kernels::mul_mat(&vec![0; k], 1.0, 4, k, &vec![0.0; k], 1);
        let by_name = matches!(refused, Err(bitnet_rs::Error::KernelArgument { field: "row length", .. }));
        rec.check(by_name, || {
            finding(Severity::Failure, "not-refused", format!("row length {k} is no multiple of 128 and was taken"), [])
        });
    }
    for n in [258, 3, 6913] {
        rec.plan(1);
        let refused = kernels::mul_mat(&vec![0; n * 32], 1.0, n, 128, &[0.0; 128], 1);
        let by_name = matches!(refused, Err(bitnet_rs::Error::KernelArgument { field: "rows", .. }));
        rec.check(by_name, || {
            finding(Severity::Failure, "not-refused", format!("{n} rows are no multiple of 4 and were taken"), [])
        });
    }
}

/// The input that makes the 16-bit lanes wrap, per row length, predicted to the bit; and the safe domain.
fn adversarial(shapes: &BTreeSet<(usize, usize)>, rec: &mut Recorder) -> Result<(), GateError> {
    let lengths: BTreeSet<usize> = shapes.iter().map(|s| s.0).collect();
    let mut domains = serde_json::Map::new();
    let mut wrapping = Vec::new();
    for k in lengths {
        let safe = lanes::safe_domain(k)?;
        domains.insert(k.to_string(), json!(safe));
        let packed = vec![0b1010_1010u8; k / 4];
        let codes = vec![2u8; k];
        for amplitude in [127i8, 64, i8::try_from(safe).unwrap_or(127)] {
            let activations = vec![amplitude; k];
            let exact = i2s::dot_codes(&codes, &activations);
            let predicted = i64::from(lanes::wrapped_dot(&codes, &activations)?);
            let found = kernels::dot(DotKernel::OneByOne, &packed, k, &activations)?[0] as i64;
            rec.plan(1);
            rec.check(found == predicted, || {
                let message = format!("K = {k}, activations {amplitude}: the kernel gives {found}, the lane model {predicted}, exact is {exact}");
                finding(Severity::Failure, "lane-model", message, [("k", json!(k)), ("activation", json!(amplitude))])
            });
            if u8::try_from(amplitude) == Ok(safe) {
                rec.plan(1);
                rec.check(found == exact, || {
                    let message = format!("K = {k}: activations of {safe} were said to be safe and are not");
                    finding(Severity::Failure, "safe-domain", message, [("k", json!(k))])
                });
            }
            // What the engine returns has Σ a taken off: the weights are code − 1.
            let sum: i64 = activations.iter().map(|&a| i64::from(a)).sum();
            if found != exact && amplitude == 127 {
                wrapping.push(format!("K = {k}: {} for {}", found - sum, exact - sum));
            }
        }
    }
    if !wrapping.is_empty() {
        rec.finding(finding(
            Severity::Warning,
            "lane-wrap",
            format!(
                "all weights +1 and all activations 127 wrap the kernel's 16-bit lanes ({}); exact for |activation| ≤ the safe value per K in metrics.safe_activation",
                wrapping.join("; ")
            ),
            [("wrapping", json!(wrapping))],
        ));
    }
    rec.metric("safe_activation", serde_json::Value::Object(domains));
    Ok(())
}

/// Name of the weight, row length, values of the activations that it is multiplied with.
type Seen = Vec<(String, usize, Vec<f32>)>;

/// Captures the input of every ternary product.
struct Activations {
    seen: Arc<Mutex<Seen>>,
}

impl Probe for Activations {
    fn wants(&mut self, tensor: &ProbedTensor<'_>) -> bool {
        tensor.is_i2s_product()
    }

    fn observe(&mut self, tensor: &ProbedTensor<'_>) {
        let (Some(weight), Some(input)) = (tensor.source(0), tensor.source(1)) else { return };
        if let (Some(values), Ok(mut seen)) = (input.values(), self.seen.lock()) {
            seen.push((weight.name(), input.shape()[0], values));
        }
    }
}

/// Lane sums on the model's real activations.
fn headroom(inputs: &GateInputs, path: &std::path::Path, rec: &mut Recorder) -> Result<(), GateError> {
    rec.progress("lane headroom on real activations");
    let model = Model::load(path, ModelParams::default())?;
    let mut tokens = model.tokenize(PROBE_TEXT, Special::ContentWithBos)?;
    let wanted = inputs.thresholds.kernel.activation_tokens;
    let room = model.info().hyperparameters().n_ctx_train as usize;
    tokens.truncate(room.min(if inputs.quick { wanted / 4 } else { wanted }));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let params = ContextParams { n_ctx: 256, n_threads: inputs.threads, ..Default::default() };
    let probe = Box::new(Activations { seen: Arc::clone(&seen) });
    Context::with_probe(&model, &params, probe)?.decode(&Batch::prompt(&tokens, Pos::ZERO, SeqId::ZERO)?)?;
    let seen = std::mem::take(&mut *seen.lock().map_err(|_| GateError::Other("the probe panicked".into()))?);

    let mapped = MappedFile::open(path).map_err(GateError::file(path))?;
    let gguf = model.file().gguf();
    let ternary = gguf.tensors().iter().filter(|t| t.ggml_type() == GgmlType::I2_S).count();
    rec.plan(ternary as u64);
    let mut worst: Option<(String, lanes::LaneHeadroom)> = None;
    for (i, (name, width, values)) in seen.iter().enumerate() {
        if i % 16 == 0 {
            rec.progress(&format!("lane headroom {i} of {}", seen.len()));
        }
        let rows: Vec<QuantizedRow> = values.chunks(*width).map(i2s::quantize_row).collect::<Result<_, _>>()?;
        let Some(tensor) = gguf.tensor(name) else {
            return Err(GateError::Other(format!("the engine multiplies {name}, which is not in the file")));
        };
        let range = tensor.range();
        let bytes = &mapped[range.start as usize..range.end as usize];
        let matrix = I2sMatrix::new(bytes, tensor.rows() as usize, *width, Packing::X86)?;
        let bound = rows.iter().try_fold(None::<lanes::LaneHeadroom>, |acc, row| {
            let one = lanes::lane_bound(&row.values)?;
            Ok::<_, i2s::I2sError>(Some(acc.map_or(one, |a| a.merge(one))))
        })?;
        // Where no ternary weights at all could wrap these activations, the bound is the answer.
        let measured = match bound {
            Some(bound) if !bound.wraps() && inputs.quick => bound,
            _ => lanes::lane_headroom(&matrix, &rows)?,
        };
        rec.check(!measured.wraps(), || {
            finding(
                Severity::Failure,
                "lane-wrap-on-model",
                format!(
                    "{name}: {} of {} lane sums leave 16 bits on real activations",
                    measured.wrapped, measured.lanes
                ),
                [
                    ("tensor", json!(name)),
                    ("token", json!(measured.at.token)),
                    ("row", json!(measured.at.row)),
                    ("lane", json!(measured.at.lane)),
                    ("max", json!(measured.max)),
                    ("min", json!(measured.min)),
                ],
            )
        });
        if worst.as_ref().is_none_or(|(_, w)| measured.used() > w.used()) {
            worst = Some((name.clone(), measured));
        }
    }
    if let Some((name, worst)) = worst {
        rec.metric("headroom_used", worst.used());
        rec.metric("headroom_tensor", name.as_str());
        rec.metric("headroom_tokens", tokens.len());
        rec.say(format!(
            "16-bit lanes used to {:.1} % on {} tokens of real activations ({name})",
            worst.used() * 100.0,
            tokens.len()
        ));
    }
    Ok(())
}

/// Plants one fault after the other into the weights that the kernel gets.
pub fn self_check(progress: &mut dyn FnMut(&str)) -> Vec<FaultReport> {
    let mut reports = Vec::new();
    for (name, planted) in [
        ("one sign flipped", PackedFault::SignFlip { from: 5 * 640 + 300 }),
        ("scale off by 1 %", PackedFault::Scale { factor: 1.01 }),
        ("the other packing", PackedFault::OtherPacking),
        ("dropped tail", PackedFault::DroppedTail),
    ] {
        progress(name);
        reports.push(plant(name, planted).unwrap_or_else(|e| fault(GateId::Kernel, name, false, e.to_string())));
    }
    reports
}

fn plant(name: &str, planted: PackedFault) -> Result<FaultReport, GateError> {
    let (k, n) = (640, 256);
    let case = Case::random(k, n, 16, 77)?;
    let faulty = planted.apply(&case.tensor, n, k)?;
    let (packed, rest) = faulty.split_at(case.packed().len());
    let scale = f32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]);
    let mut rec = Recorder::new(Box::new(|_| {}));
    // The entry points work on codes; only the whole product sees the scale.
    entry_points(&case, packed, &mut rec)?;
    product(&case, packed, scale, 8, 2, &mut rec)?;
    let evidence = rec.findings().first().map_or("nothing differed".to_owned(), |f| f.message.clone());
    Ok(fault(GateId::Kernel, name, rec.failed(), evidence))
}
