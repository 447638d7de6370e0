//! I2_S, the ternary weight format, in exact integer arithmetic.
//!
//! A weight w ∈ {−1, 0, 1} is stored as the two-bit code w + 1. The kernel multiplies codes (not
//! weights) with int8 activations and corrects afterwards: `Σ w·a = Σ code·a − Σ a`. The sums here
//! are `i64`; only the last step, scaling back to `f32`, is floating point, and it repeats the
//! engine's operations one by one so that results can be compared bit for bit.
//!
//! Mirrors `src/ggml-bitnet-mad.cpp` (packing, dot products), `quantize_row_i8_s` in
//! `ggml-quants.c` (activations) and the I2_S branches of `ggml_compute_forward_mul_mat` in
//! `ggml.c` (scaling).

use std::thread;

use files::threads::in_parallel;

/// Weights in one packed block of the x86 layout, and the divisor of every legal row length.
///
/// The kernels divide the row length by this number and drop the rest without a word.
pub const BLOCK: usize = 128;

/// Divisor of every legal row count: threads are handed rows in fours
/// (`.ncols = 4` of the I2_S type traits) and the last one runs past the end otherwise.
pub const ROW_MULTIPLE: usize = 4;

/// Bytes after the codes: one little-endian `f32` scale and 28 bytes of padding.
pub const TRAILER: usize = 32;

/// Smallest absolute maximum of an activation row; shorter rows are scaled as if they had it.
pub const MIN_ABS_MAX: f64 = 1e-5;

/// Below this magnitude a float weight becomes zero (`quantize_i2_s`).
pub const ZERO_WEIGHT: f64 = 1e-6;

/// Why a matrix, a row or an activation vector was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum I2sError {
    /// The kernel would drop the tail of each row.
    #[error(
        "row length {cols} is not a multiple of {BLOCK}: the I2_S kernel would drop the last {} weights of each row; pad the tensor",
        cols % BLOCK
    )]
    RowLength {
        /// Weights per row.
        cols: usize,
    },
    /// The kernel would compute rows past the end of the matrix.
    #[error("row count {rows} is not a multiple of {ROW_MULTIPLE}: threads take rows in fours; pad the tensor")]
    RowCount {
        /// Rows of the matrix.
        rows: usize,
    },
    /// The byte string is not `rows·cols/4 + 32` long.
    #[error("an I2_S tensor of {rows} rows of {cols} weights takes {expected} bytes, got {actual}")]
    ByteLength {
        /// Rows of the matrix.
        rows: usize,
        /// Weights per row.
        cols: usize,
        /// Bytes the shape needs.
        expected: usize,
        /// Bytes given.
        actual: usize,
    },
    /// The shape does not fit the address space.
    #[error("an I2_S tensor of {rows} rows of {cols} weights is too large for this machine")]
    TooLarge {
        /// Rows of the matrix.
        rows: usize,
        /// Weights per row.
        cols: usize,
    },
    /// A weight to be packed is not −1, 0 or 1.
    #[error("weight {value} at index {index} is not ternary: expected -1, 0 or 1")]
    NotTernary {
        /// Flat index, row-major.
        index: usize,
        /// The value found.
        value: i8,
    },
    /// The two-bit code 3 has no weight; the kernel would count it as +2.
    #[error(
        "row {row}, column {col} holds the code 3, which no I2_S writer produces: the tensor is damaged or packed otherwise"
    )]
    ForbiddenCode {
        /// Row of the code.
        row: usize,
        /// Column of the code under the assumed packing.
        col: usize,
    },
    /// The tensor's scale is not a finite number.
    #[error("the I2_S scale is {scale}: expected a finite number")]
    Scale {
        /// The scale read.
        scale: f32,
    },
    /// An activation is NaN or infinite; the engine's result would depend on the instruction set.
    #[error("activation {index} is {value}: only finite activations can be quantized")]
    NotFinite {
        /// Index in the row.
        index: usize,
        /// The value found.
        value: f32,
    },
    /// Two lengths that have to agree do not.
    #[error("{what}: expected length {expected}, got {actual}")]
    Length {
        /// Which argument.
        what: &'static str,
        /// Length needed.
        expected: usize,
        /// Length given.
        actual: usize,
    },
}

/// How the codes of a block are laid out in its bytes; decided by the machine that packed the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Packing {
    /// 128 weights in 32 bytes: weight j sits in byte `j mod 32` at bit `6 − 2·(j div 32)`.
    X86,
    /// 64 weights in 16 bytes: weight j sits in byte `j mod 16` at bit `6 − 2·(j div 16)`.
    Neon,
}

impl Packing {
    /// Both layouts, ours first.
    pub const ALL: [Packing; 2] = [Packing::X86, Packing::Neon];

    /// Bytes of one block; a block holds four weights a byte.
    pub const fn block_bytes(self) -> usize {
        match self {
            Packing::X86 => 32,
            Packing::Neon => 16,
        }
    }

    /// Byte and bit shift of the weight with flat (row-major) index `index`.
    pub const fn position(self, index: usize) -> (usize, u32) {
        let bytes = self.block_bytes();
        let within = index % (4 * bytes);
        let byte = index / (4 * bytes) * bytes + within % bytes;
        (byte, 6 - 2 * (within / bytes) as u32)
    }
}

impl std::fmt::Display for Packing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Packing::X86 => "128 weights in 32 bytes (x86)",
            Packing::Neon => "64 weights in 16 bytes (ARM)",
        })
    }
}

/// Refuses shapes that the engine accepts and computes wrongly.
///
/// # Errors
/// [`I2sError::RowLength`] and [`I2sError::RowCount`]; a zero dimension counts as not a multiple.
pub fn check_shape(rows: usize, cols: usize) -> Result<(), I2sError> {
    if cols == 0 || !cols.is_multiple_of(BLOCK) {
        return Err(I2sError::RowLength { cols });
    }
    if rows == 0 || !rows.is_multiple_of(ROW_MULTIPLE) {
        return Err(I2sError::RowCount { rows });
    }
    Ok(())
}

/// Bytes of an I2_S tensor: codes, scale and padding (`ggml_nbytes`).
///
/// # Errors
/// [`I2sError::TooLarge`] on overflow.
pub fn tensor_bytes(rows: usize, cols: usize) -> Result<usize, I2sError> {
    rows.checked_mul(cols).and_then(|n| (n / 4).checked_add(TRAILER)).ok_or(I2sError::TooLarge { rows, cols })
}

/// Packs `rows × cols` ternary weights (row-major) with their scale into tensor bytes.
///
/// # Errors
/// Shapes that [`check_shape`] refuses, a wrong number of weights, a weight outside {−1, 0, 1}, a
/// scale that is not finite.
pub fn pack(weights: &[i8], rows: usize, cols: usize, scale: f32, packing: Packing) -> Result<Vec<u8>, I2sError> {
    check_shape(rows, cols)?;
    let total = tensor_bytes(rows, cols)?;
    if weights.len() != rows * cols {
        return Err(I2sError::Length { what: "weights", expected: rows * cols, actual: weights.len() });
    }
    if !scale.is_finite() {
        return Err(I2sError::Scale { scale });
    }
    let mut bytes = vec![0_u8; total];
    for (index, &value) in weights.iter().enumerate() {
        if !(-1..=1).contains(&value) {
            return Err(I2sError::NotTernary { index, value });
        }
        let (byte, shift) = packing.position(index);
        bytes[byte] |= ((value + 1) as u8) << shift;
    }
    let scale_at = weights.len() / 4;
    bytes[scale_at..scale_at + 4].copy_from_slice(&scale.to_le_bytes());
    Ok(bytes)
}

/// Ternary weights and scale from float weights, as `quantize_i2_s` makes them: the sign of each
/// weight, zero below 1e-6, and the largest magnitude of the tensor as scale.
pub fn quantize_weights(weights: &[f32]) -> (Vec<i8>, f32) {
    let max = weights.iter().fold(0.0_f64, |max, &w| max.max(f64::from(w).abs()));
    let ternary = weights
        .iter()
        .map(|&w| {
            if f64::from(w).abs() < ZERO_WEIGHT {
                0
            } else if f64::from(w) * max > 0.0 {
                1
            } else {
                -1
            }
        })
        .collect();
    (ternary, max as f32)
}

/// One token's activations as the kernel sees them.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizedRow {
    /// Quantized values, at most 127 in magnitude for a finite row.
    pub values: Vec<i8>,
    /// The factor applied, `127 / max|x|`; results are divided by it.
    pub scale: f32,
    /// Sum of [`values`](Self::values).
    pub sum: i32,
}

/// Quantizes one row of activations (`quantize_row_i8_s`).
///
/// The scale is computed in f64 and rounded to f32 once; values are multiplied in f32 and rounded
/// half to even.
///
/// # Errors
/// [`I2sError::NotFinite`].
pub fn quantize_row(x: &[f32]) -> Result<QuantizedRow, I2sError> {
    let mut max = MIN_ABS_MAX;
    for (index, &value) in x.iter().enumerate() {
        if !value.is_finite() {
            return Err(I2sError::NotFinite { index, value });
        }
        max = max.max(f64::from(value).abs());
    }
    let scale = (127.0 / max) as f32;
    let values: Vec<i8> = x.iter().map(|&v| (v * scale).round_ties_even().clamp(-128.0, 127.0) as i8).collect();
    let sum = values.iter().map(|&v| i32::from(v)).sum();
    Ok(QuantizedRow { values, scale, sum })
}

/// Places one quantized row in the interleaved buffer that `quantize_row_i8_s_4x1` writes: blocks of
/// 128 values, four blocks apart. Bytes between them belong to three other rows and stay zero here.
///
/// # Errors
/// [`I2sError::RowLength`] when the row is no whole number of blocks.
pub fn interleave_4x1(row: &QuantizedRow) -> Result<Vec<i8>, I2sError> {
    if row.values.is_empty() || !row.values.len().is_multiple_of(BLOCK) {
        return Err(I2sError::RowLength { cols: row.values.len() });
    }
    let mut out = vec![0_i8; (row.values.len() / BLOCK - 1) * BLOCK * 4 + BLOCK];
    for (i, block) in row.values.chunks_exact(BLOCK).enumerate() {
        out[i * BLOCK * 4..][..BLOCK].copy_from_slice(block);
    }
    Ok(out)
}

/// `Σ code·a`, what the dot kernels return before any correction.
pub fn dot_codes(codes: &[u8], activations: &[i8]) -> i64 {
    codes.iter().zip(activations).map(|(&c, &a)| i64::from(c) * i64::from(a)).sum()
}

/// Scales a raw kernel sum back: `(Σ code·a − Σ a) / s · scale`, three f32 operations in the
/// engine's order (`ggml_compute_forward_mul_mat`, gemm, gemv and chunk paths alike).
pub fn finish(raw: i64, row: &QuantizedRow, weight_scale: f32) -> f32 {
    (raw as f32 - row.sum as f32) / row.scale * weight_scale
}

/// A view of a packed I2_S tensor.
#[derive(Debug, Clone, Copy)]
pub struct I2sMatrix<'a> {
    rows: usize,
    cols: usize,
    packing: Packing,
    codes: &'a [u8],
    scale: f32,
}

impl<'a> I2sMatrix<'a> {
    /// Wraps tensor bytes (`rows` output features of `cols` input features each).
    ///
    /// # Errors
    /// A shape the kernels get wrong, a byte length that does not fit, a scale that is not finite.
    /// Codes are not looked at: see [`check_codes`](Self::check_codes).
    pub fn new(bytes: &'a [u8], rows: usize, cols: usize, packing: Packing) -> Result<Self, I2sError> {
        check_shape(rows, cols)?;
        let expected = tensor_bytes(rows, cols)?;
        if bytes.len() != expected {
            return Err(I2sError::ByteLength { rows, cols, expected, actual: bytes.len() });
        }
        let (codes, trailer) = bytes.split_at(rows * cols / 4);
        let scale = f32::from_le_bytes([trailer[0], trailer[1], trailer[2], trailer[3]]);
        if !scale.is_finite() {
            return Err(I2sError::Scale { scale });
        }
        Ok(Self { rows, cols, packing, codes, scale })
    }

    /// Rows (output features).
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Weights per row (input features).
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The tensor's one scale.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// The same weights with the scale multiplied.
    #[must_use]
    pub fn scaled(self, factor: f32) -> Self {
        Self { scale: self.scale * factor, ..self }
    }

    /// Writes the two-bit codes of a row into `out`.
    ///
    /// # Panics
    /// When `row` is out of range or `out` is not [`cols`](Self::cols) long.
    pub fn row_codes(&self, row: usize, out: &mut [u8]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        assert_eq!(out.len(), self.cols, "length of the code buffer");
        let bytes = self.packing.block_bytes();
        let packed = &self.codes[row * self.cols / 4..][..self.cols / 4];
        for (block, out) in packed.chunks_exact(bytes).zip(out.chunks_exact_mut(4 * bytes)) {
            for (group, out) in out.chunks_exact_mut(bytes).enumerate() {
                let shift = 6 - 2 * group;
                for (code, byte) in out.iter_mut().zip(block) {
                    *code = (byte >> shift) & 3;
                }
            }
        }
    }

    /// Looks for the code 3 in the whole tensor.
    ///
    /// # Errors
    /// [`I2sError::ForbiddenCode`] with the first place.
    pub fn check_codes(&self) -> Result<(), I2sError> {
        // A byte holds a 3 where both bits of a pair are set.
        let Some(byte) = self.codes.iter().position(|b| b & (b >> 1) & 0x55 != 0) else {
            return Ok(());
        };
        let row = byte / (self.cols / 4);
        let mut codes = vec![0; self.cols];
        self.row_codes(row, &mut codes);
        let col = codes.iter().position(|&c| c == 3).unwrap_or(0);
        Err(I2sError::ForbiddenCode { row, col })
    }

    /// Weights of a row, scaled, as the engine's `get_rows` gives them.
    ///
    /// # Panics
    /// When `row` is out of range.
    pub fn dequantize_row(&self, row: usize) -> Vec<f32> {
        let mut codes = vec![0; self.cols];
        self.row_codes(row, &mut codes);
        codes
            .iter()
            .map(|&c| {
                // The engine's table has 0 for the code 3.
                self.scale * [-1.0, 0.0, 1.0, 0.0][usize::from(c)]
            })
            .collect()
    }

    /// Exact raw sums `Σ code·a` for every activation row: `[token][row]`.
    ///
    /// # Errors
    /// [`I2sError::Length`] when an activation row has another length than [`cols`](Self::cols).
    pub fn raw_matmul(&self, activations: &[QuantizedRow]) -> Result<Vec<i64>, I2sError> {
        for row in activations {
            if row.values.len() != self.cols {
                return Err(I2sError::Length { what: "activations", expected: self.cols, actual: row.values.len() });
            }
        }
        let wide: Vec<Vec<i16>> =
            activations.iter().map(|row| row.values.iter().map(|&v| i16::from(v)).collect()).collect();
        let mut by_row = vec![0_i64; self.rows * wide.len()];
        if wide.is_empty() {
            return Ok(by_row);
        }
        let tokens = wide.len();
        let run = |first_row: usize, out: &mut [i64]| {
            let mut codes = vec![0_u8; self.cols];
            let mut wide_codes = vec![0_i16; self.cols];
            for (i, out) in out.chunks_exact_mut(tokens).enumerate() {
                self.row_codes(first_row + i, &mut codes);
                for (wide, &code) in wide_codes.iter_mut().zip(&codes) {
                    *wide = i16::from(code);
                }
                for (out, activation) in out.iter_mut().zip(&wide) {
                    *out = dot_wide(&wide_codes, activation);
                }
            }
        };
        let threads = worth_threads(self.rows * self.cols * tokens).min(self.rows);
        let share = self.rows.div_ceil(threads);
        if threads == 1 {
            run(0, &mut by_row);
        } else {
            let parts = by_row.chunks_mut(share * tokens).enumerate();
            in_parallel(parts.map(|(i, out)| {
                let run = &run;
                move || run(i * share, out)
            }));
        }
        let mut sums = vec![0_i64; by_row.len()];
        for (row, of_row) in by_row.chunks_exact(tokens).enumerate() {
            for (token, &sum) in of_row.iter().enumerate() {
                sums[token * self.rows + row] = sum;
            }
        }
        Ok(sums)
    }

    /// The matrix product as the engine returns it wherever no 16-bit lane wraps:
    /// `[token][row]` in f32.
    ///
    /// # Errors
    /// As [`raw_matmul`](Self::raw_matmul).
    pub fn matmul(&self, activations: &[QuantizedRow]) -> Result<Vec<f32>, I2sError> {
        let raw = self.raw_matmul(activations)?;
        Ok(activations
            .iter()
            .zip(raw.chunks_exact(self.rows))
            .flat_map(|(row, raw)| raw.iter().map(|&r| finish(r, row, self.scale)))
            .collect())
    }
}

/// Threads that pay off for `products` multiplications; results do not depend on it.
pub(crate) fn worth_threads(products: usize) -> usize {
    const PRODUCTS_PER_THREAD: usize = 1 << 22;
    let available = thread::available_parallelism().map_or(1, usize::from);
    (products / PRODUCTS_PER_THREAD).clamp(1, available)
}

/// `Σ code·a` over widened values. A block of 128 products stays below 2^17, so `i32` partial sums
/// are exact; blocks are added in `i64`.
fn dot_wide(codes: &[i16], activations: &[i16]) -> i64 {
    codes
        .chunks(BLOCK)
        .zip(activations.chunks(BLOCK))
        .map(|(c, a)| {
            let block: i32 = c.iter().zip(a).map(|(&c, &a)| i32::from(c) * i32::from(a)).sum();
            i64::from(block)
        })
        .sum()
}

/// Which packing explains a raw sum that a kernel returned for one packed row.
///
/// Both packings of a valid file hold valid codes, so bytes alone cannot tell them apart: only a
/// product with known activations can. `None` when neither explains it, `Some(X86)` first when
/// both do.
///
/// # Errors
/// [`I2sError::Length`] when `packed_row` is not a quarter of the activations' length,
/// [`I2sError::RowLength`] when that is no multiple of [`BLOCK`].
pub fn identify_packing(packed_row: &[u8], activations: &[i8], observed: i64) -> Result<Option<Packing>, I2sError> {
    let cols = activations.len();
    if cols == 0 || !cols.is_multiple_of(BLOCK) {
        return Err(I2sError::RowLength { cols });
    }
    if packed_row.len() != cols / 4 {
        return Err(I2sError::Length { what: "packed row", expected: cols / 4, actual: packed_row.len() });
    }
    Ok(Packing::ALL.into_iter().find(|packing| {
        let sum: i64 = activations
            .iter()
            .enumerate()
            .map(|(j, &a)| {
                let (byte, shift) = packing.position(j);
                i64::from((packed_row[byte] >> shift) & 3) * i64::from(a)
            })
            .sum();
        sum == observed
    }))
}

/// Faults that a kernel gate plants in a packed tensor and must catch.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum PackedFault {
    /// One non-zero weight, the first at or after this flat index, gets the other sign.
    SignFlip {
        /// Flat index at which the search starts.
        from: usize,
    },
    /// The tensor's scale is multiplied.
    Scale {
        /// The factor.
        factor: f32,
    },
    /// The codes are laid out the ARM way.
    OtherPacking,
    /// The last block of each row contributes nothing to `Σ code·a`, as when a kernel drops it.
    DroppedTail,
}

impl PackedFault {
    /// The tensor's bytes (x86 packing) with the fault planted.
    ///
    /// # Errors
    /// As [`I2sMatrix::new`]; [`I2sError::Length`] when no weight is left to flip.
    pub fn apply(self, bytes: &[u8], rows: usize, cols: usize) -> Result<Vec<u8>, I2sError> {
        let matrix = I2sMatrix::new(bytes, rows, cols, Packing::X86)?;
        let mut out = bytes.to_vec();
        match self {
            PackedFault::SignFlip { from } => {
                let found = (from..rows * cols).find(|&index| {
                    let (byte, shift) = Packing::X86.position(index);
                    (bytes[byte] >> shift) & 1 == 0
                });
                let Some(index) = found else {
                    return Err(I2sError::Length {
                        what: "non-zero weights after the given index",
                        expected: 1,
                        actual: 0,
                    });
                };
                let (byte, shift) = Packing::X86.position(index);
                // Codes 0 and 2 differ in their upper bit only.
                out[byte] ^= 2 << shift;
            }
            PackedFault::Scale { factor } => {
                let at = rows * cols / 4;
                out[at..at + 4].copy_from_slice(&(matrix.scale * factor).to_le_bytes());
            }
            PackedFault::OtherPacking => {
                out[..rows * cols / 4].fill(0);
                let mut codes = vec![0; cols];
                for row in 0..rows {
                    matrix.row_codes(row, &mut codes);
                    for (col, &code) in codes.iter().enumerate() {
                        let (byte, shift) = Packing::Neon.position(row * cols + col);
                        out[byte] |= code << shift;
                    }
                }
            }
            PackedFault::DroppedTail => {
                for row in 0..rows {
                    let end = (row + 1) * cols / 4;
                    out[end - BLOCK / 4..end].fill(0);
                }
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    fn ternary(rng: &mut ChaCha8Rng, n: usize) -> Vec<i8> {
        (0..n).map(|_| rng.random_range(-1..=1)).collect()
    }

    #[test]
    fn first_block_bytes_by_hand() {
        // Weights 0, 32, 64 and 96 share byte 0, from the top bits down.
        let mut weights = vec![-1_i8; 4 * 128];
        weights[0] = 1; // code 2 in bits 7..6
        weights[32] = 0; // code 1 in bits 5..4
        weights[64] = -1; // code 0
        weights[96] = 1; // code 2 in bits 1..0
        weights[128 + 33] = 0; // second block, byte 32 + 1, bits 5..4
        let bytes = pack(&weights, 4, 128, 0.5, Packing::X86).unwrap();
        assert_eq!(bytes.len(), 4 * 32 + 32);
        assert_eq!(bytes[0], 0b10_01_00_10);
        assert_eq!(bytes[33], 0b00_01_00_00);
        assert_eq!(bytes[128..132], [0, 0, 0, 0x3f]); // 0.5 as little-endian f32
        assert!(bytes[132..].iter().all(|&b| b == 0));
    }

    #[test]
    fn arm_block_bytes_by_hand() {
        let mut weights = vec![-1_i8; 4 * 128];
        weights[0] = 1;
        weights[16] = 0;
        weights[63] = 1; // byte 15, bits 1..0
        weights[64] = 1; // second block of 64: byte 16, bits 7..6
        let bytes = pack(&weights, 4, 128, 1.0, Packing::Neon).unwrap();
        assert_eq!(bytes[0], 0b10_01_00_00);
        assert_eq!(bytes[15], 0b00_00_00_10);
        assert_eq!(bytes[16], 0b10_00_00_00);
    }

    #[test]
    fn activations_by_hand() {
        // max 4 → s = 31.75; 1 → 31.75 → 32, 0.5 → 15.875 → 16, −4 → −127.
        let row = quantize_row(&[1.0, -4.0, 0.5, 0.0]).unwrap();
        assert_eq!(row.scale, 31.75);
        assert_eq!(row.values, [32, -127, 16, 0]);
        assert_eq!(row.sum, -79);
        // With max 127 the scale is 1: halves go to the even neighbour.
        let row = quantize_row(&[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5]).unwrap();
        assert_eq!(row.values, [127, 0, 2, 2, 0, -2, -2]);
        // Below the floor of 1e-5 the scale stays 127e5 = 12,700,000.
        let row = quantize_row(&[1e-6, 0.0]).unwrap();
        assert_eq!(row.scale, 12_700_000.0);
        assert_eq!(row.values, [13, 0]);
    }

    #[test]
    fn non_finite_activations_are_named() {
        let err = quantize_row(&[0.0, f32::NEG_INFINITY]).unwrap_err();
        assert_eq!(err, I2sError::NotFinite { index: 1, value: f32::NEG_INFINITY });
        assert!(quantize_row(&[f32::NAN]).is_err());
    }

    #[test]
    fn float_weights_by_hand() {
        let (weights, scale) = quantize_weights(&[0.5, -0.25, 9e-7, -2e-6, 0.0]);
        assert_eq!(weights, [1, -1, 0, -1, 0]);
        assert_eq!(scale, 0.5);
    }

    #[test]
    fn product_by_hand() {
        // Row 0 adds every activation, row 1 takes the first minus the second, rows 2 and 3 are 0.
        let mut weights = vec![0_i8; 4 * 128];
        weights[..128].fill(1);
        weights[128] = 1;
        weights[129] = -1;
        let bytes = pack(&weights, 4, 128, 0.5, Packing::X86).unwrap();
        let matrix = I2sMatrix::new(&bytes, 4, 128, Packing::X86).unwrap();
        let mut x = vec![1.0_f32; 128];
        x[0] = 127.0;
        x[1] = -3.0;
        let row = quantize_row(&x).unwrap();
        // 127 − 3 + 126 = 250; 127 + 3 = 130; scale 0.5, s = 1.
        assert_eq!(matrix.matmul(&[row]).unwrap(), [125.0, 65.0, 0.0, 0.0]);
    }

    #[test]
    fn shapes_the_kernel_gets_wrong_are_refused() {
        for cols in [0, 64, 127, 129, 2592] {
            assert_eq!(check_shape(4, cols), Err(I2sError::RowLength { cols }));
        }
        for rows in [0, 1, 258] {
            assert_eq!(check_shape(rows, 128), Err(I2sError::RowCount { rows }));
        }
        assert_eq!(check_shape(4, 128), Ok(()));
        assert!(matches!(tensor_bytes(usize::MAX, 128), Err(I2sError::TooLarge { .. })));
        assert!(matches!(
            I2sMatrix::new(&[0; 159], 4, 128, Packing::X86),
            Err(I2sError::ByteLength { expected: 160, actual: 159, .. })
        ));
    }

    #[test]
    fn code_three_is_found() {
        let mut bytes = pack(&vec![0; 8 * 256], 8, 256, 1.0, Packing::X86).unwrap();
        assert!(I2sMatrix::new(&bytes, 8, 256, Packing::X86).unwrap().check_codes().is_ok());
        // Row 2, second block, byte 5, third group: column 128 + 64 + 5.
        bytes[2 * 64 + 32 + 5] |= 0b00_00_11_00;
        let matrix = I2sMatrix::new(&bytes, 8, 256, Packing::X86).unwrap();
        assert_eq!(matrix.check_codes(), Err(I2sError::ForbiddenCode { row: 2, col: 197 }));
    }

    #[test]
    fn interleaved_rows_by_hand() {
        let row = QuantizedRow { values: (0..256).map(|i| (i % 100) as i8).collect(), scale: 1.0, sum: 0 };
        let out = interleave_4x1(&row).unwrap();
        assert_eq!(out.len(), 512 + 128);
        assert_eq!(out[127], 27);
        assert_eq!(out[128], 0);
        assert_eq!(out[512], 28); // value 128 of the row
    }

    #[test]
    fn the_packing_is_told_from_a_product() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let weights = ternary(&mut rng, 4 * 256);
        let activations: Vec<i8> = (0..256).map(|_| rng.random_range(-127..=127)).collect();
        let truth: i64 =
            weights[..256].iter().zip(&activations).map(|(&w, &a)| (i64::from(w) + 1) * i64::from(a)).sum();
        for packing in Packing::ALL {
            let bytes = pack(&weights, 4, 256, 1.0, packing).unwrap();
            let found = identify_packing(&bytes[..64], &activations, truth).unwrap();
            assert_eq!(found, Some(packing));
        }
        let bytes = pack(&weights, 4, 256, 1.0, Packing::X86).unwrap();
        assert_eq!(identify_packing(&bytes[..64], &activations, truth + 1).unwrap(), None);
    }

    #[test]
    fn every_planted_fault_changes_the_product() {
        let mut rng = ChaCha8Rng::seed_from_u64(11);
        let (rows, cols) = (8, 384);
        let weights = ternary(&mut rng, rows * cols);
        let bytes = pack(&weights, rows, cols, 0.25, Packing::X86).unwrap();
        let x: Vec<f32> = (0..cols).map(|_| rng.random_range(-1.0..1.0)).collect();
        let row = quantize_row(&x).unwrap();
        let clean =
            I2sMatrix::new(&bytes, rows, cols, Packing::X86).unwrap().matmul(std::slice::from_ref(&row)).unwrap();
        for (fault, rows_hit) in [
            (PackedFault::SignFlip { from: 0 }, 1),
            (PackedFault::Scale { factor: 1.01 }, rows),
            (PackedFault::OtherPacking, rows),
            (PackedFault::DroppedTail, rows),
        ] {
            let faulty = fault.apply(&bytes, rows, cols).unwrap();
            let product =
                I2sMatrix::new(&faulty, rows, cols, Packing::X86).unwrap().matmul(std::slice::from_ref(&row)).unwrap();
            let hit = clean.iter().zip(&product).filter(|(a, b)| a != b).count();
            assert_eq!(hit, rows_hit, "{fault:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn unpacking_undoes_packing(seed: u64, blocks in 1_usize..5, quads in 1_usize..4) {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let (rows, cols) = (4 * quads, BLOCK * blocks);
            let weights = ternary(&mut rng, rows * cols);
            for packing in Packing::ALL {
                let bytes = pack(&weights, rows, cols, 0.75, packing).unwrap();
                let matrix = I2sMatrix::new(&bytes, rows, cols, packing).unwrap();
                prop_assert_eq!(matrix.scale(), 0.75);
                matrix.check_codes().unwrap();
                let mut codes = vec![0; cols];
                for row in 0..rows {
                    matrix.row_codes(row, &mut codes);
                    let expected: Vec<u8> = weights[row * cols..][..cols]
                        .iter()
                        .map(|w| (w + 1) as u8)
                        .collect();
                    prop_assert_eq!(&codes, &expected);
                }
            }
        }

        #[test]
        fn products_equal_plain_sums(seed: u64, blocks in 1_usize..9, tokens in 1_usize..4) {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let (rows, cols) = (4, BLOCK * blocks);
            let weights = ternary(&mut rng, rows * cols);
            let bytes = pack(&weights, rows, cols, 1.0, Packing::X86).unwrap();
            let matrix = I2sMatrix::new(&bytes, rows, cols, Packing::X86).unwrap();
            let acts: Vec<QuantizedRow> = (0..tokens)
                .map(|_| {
                    let values: Vec<i8> = (0..cols).map(|_| rng.random_range(-127..=127)).collect();
                    let sum = values.iter().map(|&v| i32::from(v)).sum();
                    QuantizedRow { values, scale: 1.0, sum }
                })
                .collect();
            let products = matrix.matmul(&acts).unwrap();
            for (token, act) in acts.iter().enumerate() {
                for row in 0..rows {
                    let exact: i64 = weights[row * cols..][..cols]
                        .iter()
                        .zip(&act.values)
                        .map(|(&w, &a)| i64::from(w) * i64::from(a))
                        .sum();
                    prop_assert_eq!(products[token * rows + row], exact as f32);
                }
            }
        }
    }
}
