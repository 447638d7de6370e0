//! Matrices of the floating-point and block-quantized types that embeddings and outputs come in.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Element types that are turned into f32 here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FloatType {
    /// 32-bit floats.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    Bf16,
    /// Blocks of 32 signed bytes with an f16 scale (`block_q8_0`).
    Q8_0,
    /// Blocks of 256 six-bit values in sixteen scaled groups (`block_q6_K`).
    Q6K,
}

impl FloatType {
    /// The type with this ggml number.
    pub const fn from_ggml(number: u32) -> Option<Self> {
        Some(match number {
            0 => FloatType::F32,
            1 => FloatType::F16,
            8 => FloatType::Q8_0,
            14 => FloatType::Q6K,
            30 => FloatType::Bf16,
            _ => return None,
        })
    }

    /// Elements and bytes of a block.
    pub const fn block(self) -> (usize, usize) {
        match self {
            FloatType::F32 => (1, 4),
            FloatType::F16 | FloatType::Bf16 => (1, 2),
            FloatType::Q8_0 => (32, 34),
            FloatType::Q6K => (256, 210),
        }
    }
}

/// A view of `rows` rows of `cols` elements each.
#[derive(Debug, Clone, Copy)]
pub struct FloatMatrix<'a> {
    kind: FloatType,
    rows: usize,
    cols: usize,
    bytes: &'a [u8],
}

impl<'a> FloatMatrix<'a> {
    /// Wraps tensor bytes; `None` when a row is no whole number of blocks or the length differs
    /// from what the shape needs.
    pub fn new(kind: FloatType, rows: usize, cols: usize, bytes: &'a [u8]) -> Option<Self> {
        let (elements, size) = kind.block();
        if cols == 0 || !cols.is_multiple_of(elements) {
            return None;
        }
        let expected = (cols / elements).checked_mul(size)?.checked_mul(rows)?;
        (bytes.len() == expected).then_some(Self { kind, rows, cols, bytes })
    }

    /// Type of the elements.
    pub fn kind(&self) -> FloatType {
        self.kind
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements per row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Writes a row as f32 into `out`.
    ///
    /// # Panics
    /// When `row` is out of range or `out` is not [`cols`](Self::cols) long.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        assert_eq!(out.len(), self.cols, "length of the row buffer");
        let (elements, size) = self.kind.block();
        let row_bytes = self.cols / elements * size;
        let bytes = &self.bytes[row * row_bytes..][..row_bytes];
        match self.kind {
            FloatType::F32 => {
                for (out, b) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                    *out = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
                }
            }
            FloatType::F16 => {
                let values: Vec<f16> = bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]])).collect();
                values.convert_to_f32_slice(out);
            }
            FloatType::Bf16 => {
                for (out, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                    *out = bf16::from_le_bytes([b[0], b[1]]).to_f32();
                }
            }
            FloatType::Q8_0 => {
                for (out, b) in out.chunks_exact_mut(32).zip(bytes.chunks_exact(34)) {
                    let scale = f16::from_le_bytes([b[0], b[1]]).to_f32();
                    for (out, &q) in out.iter_mut().zip(&b[2..]) {
                        *out = scale * f32::from(q as i8);
                    }
                }
            }
            FloatType::Q6K => {
                for (out, b) in out.chunks_exact_mut(256).zip(bytes.chunks_exact(210)) {
                    q6_k_block(b, out);
                }
            }
        }
    }
}

/// One `block_q6_K`: 128 bytes of lower nibbles, 64 of upper pairs of bits, sixteen group scales,
/// one f16 scale. Element j of each half of 128 has its nibble in byte j mod 64 and its two bits in
/// byte j mod 32; groups are sixteen elements long.
fn q6_k_block(block: &[u8], out: &mut [f32]) {
    let (low, rest) = block.split_at(128);
    let (high, rest) = rest.split_at(64);
    let (scales, scale) = rest.split_at(16);
    let scale = f16::from_le_bytes([scale[0], scale[1]]).to_f32();
    for (i, out) in out.iter_mut().enumerate() {
        let (half, j) = (i / 128, i % 128);
        let nibble = low[64 * half + j % 64] >> (4 * (j / 64)) & 0xf;
        let pair = high[32 * half + j % 32] >> (2 * (j / 32)) & 3;
        let value = i32::from(nibble | pair << 4) - 32;
        *out = scale * f32::from(scales[i / 16] as i8) * value as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only_row(kind: FloatType, cols: usize, bytes: &[u8]) -> Vec<f32> {
        let mut out = vec![0.0; cols];
        FloatMatrix::new(kind, 1, cols, bytes).unwrap().row(0, &mut out);
        out
    }

    #[test]
    fn plain_types_by_hand() {
        // 1.5 and −2 in each type.
        assert_eq!(only_row(FloatType::F32, 2, &[0, 0, 0xc0, 0x3f, 0, 0, 0, 0xc0]), [1.5, -2.0]);
        assert_eq!(only_row(FloatType::F16, 2, &[0, 0x3e, 0, 0xc0]), [1.5, -2.0]);
        assert_eq!(only_row(FloatType::Bf16, 2, &[0xc0, 0x3f, 0, 0xc0]), [1.5, -2.0]);
    }

    #[test]
    fn q8_0_by_hand() {
        let mut block = vec![0, 0x38]; // f16 0.5
        block.extend((0..32).map(|i| (i as i8 - 16) as u8));
        let out = only_row(FloatType::Q8_0, 32, &block);
        assert_eq!(out[0], -8.0);
        assert_eq!(out[31], 7.5);
    }

    #[test]
    fn q6_k_by_hand() {
        let mut block = vec![0_u8; 210];
        block[208..].copy_from_slice(&[0, 0x38]); // f16 0.5
        block[192..208].fill(1);
        // Element 0: nibble 15, bits 3 → 63 − 32 = 31.
        block[0] |= 0x0f;
        block[128] |= 0b11;
        // Element 64 + 5: upper nibble of byte 5, bits 5..4 of high byte 5 → (7 | 2<<4) − 32 = 7.
        block[5] |= 0x70;
        block[128 + 5] |= 0b10_0000;
        // Element 128 + 96 + 31, the last: upper nibble of byte 64 + 63, bits 7..6 of byte 32 + 31.
        block[127] |= 0x10;
        block[128 + 63] |= 0b0100_0000;
        block[192 + 15] = (-2_i8) as u8; // (1 | 1<<4) − 32 = −15, times −2
        let out = only_row(FloatType::Q6K, 256, &block);
        assert_eq!(out[0], 15.5);
        assert_eq!(out[69], 3.5);
        assert_eq!(out[255], 15.0);
        assert_eq!(out[1], -16.0); // code 0
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused() {
        assert!(FloatMatrix::new(FloatType::F16, 2, 3, &[0; 11]).is_none());
        assert!(FloatMatrix::new(FloatType::Q6K, 1, 128, &[0; 105]).is_none());
        assert!(FloatMatrix::new(FloatType::F32, usize::MAX, 2, &[]).is_none());
        assert!(FloatMatrix::new(FloatType::F32, 1, 0, &[]).is_none());
    }
}
