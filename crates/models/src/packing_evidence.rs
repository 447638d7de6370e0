//! Which CPU family packed a file's I2_S tensors, as far as the weights themselves can tell.
//!
//! Both packings ([`Packing`]) are permutations of each row's blocks of 128: every sum over a whole row is the same
//! under both, no code is forbidden under either, and the file has no field for it. What differs is which *column*
//! a weight belongs to. In a trained model the share of non-zero weights in a column goes with other numbers of the
//! same channel that are not packed: the norm weight that multiplies the channel, and for `ffn_down` the shares in
//! the rows of `ffn_up` and `ffn_gate` that compute it. Read with the right packing these correlate; with the wrong
//! one mostly not. Random or untrained weights have no such correlation, and then nothing can be told.

use gguf::{GgmlType, GgufError, GgufFile, TensorInfo};
use serde::Serialize;

use super::repack::MAX_ROW;
use super::ternary;
use reference::i2s::Packing;

/// Blocks of the model that are looked at, spread evenly.
const MAX_BLOCKS: u32 = 4;

/// The winning packing's evidence must reach this many standard deviations …
const MIN_DEVIATIONS: f64 = 8.0;

/// … and be this much stronger than the other's.
const MIN_RATIO: f64 = 2.0;

/// Most weights of a matrix that is looked at, ten times a large model's. A file with holes claims any number.
const MAX_WEIGHTS: u64 = 1 << 32;

/// Weights decoded at once.
const PIECE: usize = 1 << 18;

/// What the weights say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PackingVerdict {
    /// 128 weights in 32 bytes.
    X86,
    /// 64 weights in 16 bytes.
    Arm,
    /// Neither stands out: untrained weights, too few channels, or nothing to compare with.
    CannotTell,
    /// The file has no I2_S matrix.
    NoTernary,
}

/// The evidence in numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PackingEvidence {
    /// What follows from it.
    pub verdict: PackingVerdict,
    /// Pairs of channel statistics compared.
    pub comparisons: usize,
    /// Joint correlation in standard deviations if the file is packed the x86 way.
    pub deviations_x86: f64,
    /// The same for the ARM way.
    pub deviations_arm: f64,
}

/// Share of non-zero weights by row and by column, the latter under both packings.
struct Shares {
    rows: Vec<f64>,
    columns: [Vec<f64>; 2],
}

/// Gathers the evidence; reads up to four blocks of the model.
///
/// # Errors
/// What reading the file returns.
pub fn gather(file: &GgufFile) -> Result<PackingEvidence, GgufError> {
    let gguf = file.gguf();
    let within = |t: &&TensorInfo| t.row_len() <= MAX_ROW && t.rows() <= MAX_ROW && t.elements() <= MAX_WEIGHTS;
    let ternary = |name: String| gguf.tensor(&name).filter(|t| t.ggml_type() == GgmlType::I2_S).filter(within);
    let blocks: Vec<u32> = (0..512).filter(|b| ternary(format!("blk.{b}.ffn_down.weight")).is_some()).collect();
    if gguf.tensors().iter().all(|t| t.ggml_type() != GgmlType::I2_S) {
        return Ok(PackingEvidence {
            verdict: PackingVerdict::NoTernary,
            comparisons: 0,
            deviations_x86: 0.0,
            deviations_arm: 0.0,
        });
    }
    let stride = (blocks.len() as u32).div_ceil(MAX_BLOCKS).max(1);
    let mut sums = [0.0f64; 2];
    let mut comparisons = 0;
    for block in blocks.iter().step_by(stride as usize) {
        let name = |part: &str| format!("blk.{block}.{part}.weight");
        let mut compare = |channel: &[f64], shares: &Shares| {
            let [x86, arm] = [0, 1].map(|p| deviations(channel, &shares.columns[p]));
            if let (Some(x86), Some(arm)) = (x86, arm) {
                sums[0] += x86;
                sums[1] += arm;
                comparisons += 1;
            }
        };
        let mut up_rows = Vec::new();
        for (matrix, norm) in [
            ("ffn_up", "ffn_norm"),
            ("ffn_gate", "ffn_norm"),
            ("attn_q", "attn_norm"),
            ("attn_output", "attn_sub_norm"),
            ("ffn_down", "ffn_sub_norm"),
        ] {
            let Some(matrix_tensor) = ternary(name(matrix)) else { continue };
            let shares = shares(file, matrix_tensor)?;
            if let Some(norm) = gguf.tensor(&name(norm)).filter(|t| t.ggml_type() == GgmlType::F32)
                && norm.elements() == matrix_tensor.row_len()
            {
                let bytes = file.read_tensor(norm)?;
                let values = bytes.as_chunks::<4>().0.iter().map(|&b| f64::from(f32::from_le_bytes(b)).abs());
                compare(&values.collect::<Vec<_>>(), &shares);
            }
            if matrix == "ffn_down" && up_rows.len() == shares.columns[0].len() {
                compare(&up_rows, &shares);
            }
            if matrix == "ffn_up" {
                up_rows = shares.rows;
            }
        }
    }
    // Independent comparisons add up like standard deviations do.
    let scale = (comparisons.max(1) as f64).sqrt();
    let [x86, arm] = sums.map(|s| s / scale);
    let verdict = match (x86.abs(), arm.abs()) {
        (x, a) if x >= MIN_DEVIATIONS && x >= MIN_RATIO * a => PackingVerdict::X86,
        (x, a) if a >= MIN_DEVIATIONS && a >= MIN_RATIO * x => PackingVerdict::Arm,
        _ => PackingVerdict::CannotTell,
    };
    Ok(PackingEvidence { verdict, comparisons, deviations_x86: x86, deviations_arm: arm })
}

fn shares(file: &GgufFile, tensor: &TensorInfo) -> Result<Shares, GgufError> {
    let columns = tensor.row_len() as usize;
    let n_rows = tensor.rows();
    let at_once = (PIECE / columns.max(1)).max(1);
    let mut rows = Vec::with_capacity(n_rows as usize);
    let mut counts = [vec![0u32; columns], vec![0u32; columns]];
    let mut bytes = vec![0; at_once * columns / 4];
    let mut codes = vec![0; at_once * columns];
    let mut row = 0;
    while row < n_rows {
        let n = (n_rows - row).min(at_once as u64) as usize;
        let bytes = &mut bytes[..n * columns / 4];
        let codes = &mut codes[..n * columns];
        file.read_tensor_part(tensor, row * tensor.row_len() / 4, bytes)?;
        for (packing, counts) in Packing::ALL.into_iter().zip(&mut counts) {
            ternary::unpack_i2s(bytes, packing, codes);
            for codes in codes.chunks_exact(columns) {
                for (count, &code) in counts.iter_mut().zip(codes) {
                    *count += u32::from(code != 1);
                }
            }
        }
        for codes in codes.chunks_exact(columns) {
            rows.push(codes.iter().filter(|&&c| c != 1).count() as f64 / columns as f64);
        }
        row += n as u64;
    }
    let share = |counts: &Vec<u32>| counts.iter().map(|&c| f64::from(c) / n_rows as f64).collect();
    Ok(Shares { rows, columns: [share(&counts[0]), share(&counts[1])] })
}

/// Correlation of two series in standard deviations (Fisher's transformation); `None` when one is constant.
fn deviations(a: &[f64], b: &[f64]) -> Option<f64> {
    let n = a.len() as f64;
    if a.len() != b.len() || a.len() < 16 {
        return None;
    }
    let mean = |x: &[f64]| x.iter().sum::<f64>() / n;
    let (ma, mb) = (mean(a), mean(b));
    let (mut ab, mut aa, mut bb) = (0.0, 0.0, 0.0);
    for (x, y) in a.iter().zip(b) {
        ab += (x - ma) * (y - mb);
        aa += (x - ma).powi(2);
        bb += (y - mb).powi(2);
    }
    let r = ab / (aa * bb).sqrt();
    if !r.is_finite() {
        return None;
    }
    Some(r.clamp(-0.999_999, 0.999_999).atanh() * (n - 3.0).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn correlation_by_hand() {
        let a: Vec<f64> = (0..19).map(f64::from).collect();
        let b: Vec<f64> = a.iter().map(|x| 2.0 * x + if *x as i32 % 2 == 0 { 1.0 } else { -1.0 }).collect();
        // Means 9 and 18 + 1/19; r = 1140/√(570 · (2280 + 19 − 1/19)) = 0.99588…: atanh 3.0934, times √16.
        let got = deviations(&a, &b).unwrap();
        assert!((got - 12.37).abs() < 0.05, "{got}");
        assert_eq!(deviations(&a, &[1.0; 19]), None);
        assert_eq!(deviations(&a[..5], &b[..5]), None);
    }
}
