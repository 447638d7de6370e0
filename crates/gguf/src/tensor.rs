//! Entries of the tensor table.

use std::ops::Range;

use super::GgmlType;

/// A tensor: what it is called, its shape and type, and where its bytes lie.
///
/// Exists only for tensors whose bytes lie inside the file, aligned and not shared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    name: String,
    dims: [u64; 4],
    n_dims: u32,
    ty: GgmlType,
    offset: u64,
    size: u64,
}

impl TensorInfo {
    pub(super) fn new(name: String, dims: [u64; 4], n_dims: u32, ty: GgmlType, offset: u64, size: u64) -> Self {
        Self { name, dims, n_dims, ty, offset, size }
    }

    pub(super) fn set_offset(&mut self, offset: u64) {
        self.offset = offset;
    }

    /// Name, at most 63 bytes.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Dimensions in ggml's order: `dims()[0]` is the length of a row, the fastest index.
    /// One to four, as stored.
    #[must_use]
    pub fn dims(&self) -> &[u64] {
        &self.dims[..self.n_dims as usize]
    }

    /// All four dimensions, those not stored being 1.
    #[must_use]
    pub fn dims4(&self) -> [u64; 4] {
        self.dims
    }

    /// Elements in a row.
    #[must_use]
    pub fn row_len(&self) -> u64 {
        self.dims[0]
    }

    /// Rows, over all other dimensions.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.dims[1] * self.dims[2] * self.dims[3]
    }

    /// Number of elements (below `i64::MAX`).
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.row_len() * self.rows()
    }

    /// Type of the elements.
    #[must_use]
    pub fn ggml_type(&self) -> GgmlType {
        self.ty
    }

    /// First byte in the file, absolute.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes, as `ggml_nbytes` has it (an I2_S tensor: a quarter byte a weight, and 32).
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The bytes in the file, absolute.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.size
    }
}
