//! Where each piece of a blob lies.

use super::{BlobError, KvTensor, StateGeometry, ValueLayout};
use std::ops::Range;

/// Bytes of `cell_count`.
const COUNT_BYTES: u64 = 4;
/// Bytes of a cell's entry: i32 position, u32 n_seq_id.
pub(super) const CELL_BYTES: u64 = 8;
/// Bytes of `v_trans` and `n_layer`.
const DATA_HEAD_BYTES: u64 = 8;
/// Bytes of a layer's head, alike for keys (i32 type, u64 row size), value rows (the same) and
/// transposed values (i32 type, u32 element size, u32 channels).
const LAYER_HEAD_BYTES: u64 = 12;

/// What a piece of a blob is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SegmentKind {
    /// `cell_count`, the cells' positions, `v_trans` and `n_layer`.
    Head,
    /// Type and row size of a layer's keys or values.
    LayerHead {
        /// Layer.
        layer: usize,
        /// Keys or values.
        tensor: KvTensor,
    },
    /// A layer's keys or values.
    Payload {
        /// Layer.
        layer: usize,
        /// Keys or values.
        tensor: KvTensor,
    },
}

/// A piece of a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// What it is.
    pub kind: SegmentKind,
    /// Its bytes in the blob.
    pub range: Range<usize>,
}

/// Byte ranges of a blob of a given geometry and cell count.
///
/// The layout is fully determined by these two; every size is computed with checked arithmetic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobLayout {
    geometry: StateGeometry,
    cells: u32,
    /// Start of each layer's key head.
    key_heads: Vec<u64>,
    /// Start of each layer's value head.
    value_heads: Vec<u64>,
    len: u64,
}

impl BlobLayout {
    /// The layout of a blob with `cells` cells.
    ///
    /// # Errors
    /// [`BlobError::Empty`] for no cells, [`BlobError::TooBig`] for more than the geometry's
    /// n_ctx, [`BlobError::SizeOverflow`] where the blob could not be addressed.
    pub fn new(geometry: &StateGeometry, cells: u32) -> Result<BlobLayout, BlobError> {
        if cells == 0 {
            return Err(BlobError::Empty);
        }
        if cells > geometry.n_ctx() {
            return Err(BlobError::TooBig { cells, limit: geometry.n_ctx() });
        }
        let overflow = BlobError::SizeOverflow { cells };
        let count = u64::from(cells);
        // cells < 2^32 and a cell's entry is 8 bytes: no overflow.
        let mut at = COUNT_BYTES + count * CELL_BYTES + DATA_HEAD_BYTES;
        let mut advance = |row: u64| -> Option<u64> {
            let start = at;
            let payload = row.checked_mul(count)?;
            at = at.checked_add(LAYER_HEAD_BYTES)?.checked_add(payload)?;
            Some(start)
        };
        let n_layer = geometry.n_layer();
        let key_heads: Option<Vec<u64>> = (0..n_layer).map(|l| advance(geometry.key_row_bytes(l))).collect();
        let key_heads = key_heads.ok_or_else(|| overflow.clone())?;
        let value_heads: Option<Vec<u64>> = (0..n_layer).map(|l| advance(geometry.value_row_bytes(l))).collect();
        let value_heads = value_heads.ok_or_else(|| overflow.clone())?;
        // Slices are at most isize::MAX long; below it every range converts to usize.
        if isize::try_from(at).is_err() {
            return Err(overflow);
        }
        Ok(BlobLayout { geometry: geometry.clone(), cells, key_heads, value_heads, len: at })
    }

    /// The geometry.
    pub fn geometry(&self) -> &StateGeometry {
        &self.geometry
    }

    /// Number of cells.
    pub fn cells(&self) -> u32 {
        self.cells
    }

    /// Exact length of the blob in bytes; never 0.
    #[allow(clippy::len_without_is_empty)] // a blob is never empty
    pub fn len(&self) -> usize {
        self.len as usize // checked against isize::MAX in `new`
    }

    /// Bytes of the head: cell count, cells, `v_trans`, `n_layer`.
    pub fn head(&self) -> Range<usize> {
        0..(self.key_heads[0] as usize)
    }

    /// Bytes of a layer's head (type and sizes).
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn layer_head(&self, layer: usize, tensor: KvTensor) -> Range<usize> {
        let start = self.layer_start(layer, tensor);
        start as usize..(start + LAYER_HEAD_BYTES) as usize
    }

    /// Bytes of a layer's keys (cell-major rows) or values (in the geometry's layout).
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn payload(&self, layer: usize, tensor: KvTensor) -> Range<usize> {
        let start = self.layer_start(layer, tensor) + LAYER_HEAD_BYTES;
        let row = match tensor {
            KvTensor::Keys => self.geometry.key_row_bytes(layer),
            KvTensor::Values => self.geometry.value_row_bytes(layer),
        };
        start as usize..(start + row * u64::from(self.cells)) as usize
    }

    /// All pieces in the order of the blob; they cover it without a gap.
    pub fn segments(&self) -> impl Iterator<Item = Segment> + '_ {
        let layers = |tensor| {
            (0..self.geometry.n_layer()).flat_map(move |layer| {
                [
                    Segment { kind: SegmentKind::LayerHead { layer, tensor }, range: self.layer_head(layer, tensor) },
                    Segment { kind: SegmentKind::Payload { layer, tensor }, range: self.payload(layer, tensor) },
                ]
            })
        };
        std::iter::once(Segment { kind: SegmentKind::Head, range: self.head() })
            .chain(layers(KvTensor::Keys))
            .chain(layers(KvTensor::Values))
    }

    /// The head's bytes for these positions, one per cell (not checked here).
    pub fn encode_head(&self, positions: &[i32]) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.head().len());
        out.extend_from_slice(&self.cells.to_le_bytes());
        for position in positions {
            out.extend_from_slice(&position.to_le_bytes());
            out.extend_from_slice(&0u32.to_le_bytes()); // n_seq_id
        }
        out.extend_from_slice(&self.geometry.value_layout().v_trans().to_le_bytes());
        out.extend_from_slice(&(self.geometry.n_layer() as u32).to_le_bytes());
        out
    }

    /// The bytes of a layer's head.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn encode_layer_head(&self, layer: usize, tensor: KvTensor) -> [u8; 12] {
        let mut out = [0u8; LAYER_HEAD_BYTES as usize];
        let g = &self.geometry;
        match (tensor, g.value_layout()) {
            (KvTensor::Values, ValueLayout::Transposed) => {
                out[..4].copy_from_slice(&g.type_v().ggml_id().to_le_bytes());
                out[4..8].copy_from_slice(&g.type_v().block_bytes().to_le_bytes());
                out[8..].copy_from_slice(&g.layers()[layer].n_embd_v().to_le_bytes());
            }
            (KvTensor::Values, ValueLayout::Rows) => {
                out[..4].copy_from_slice(&g.type_v().ggml_id().to_le_bytes());
                out[4..].copy_from_slice(&g.value_row_bytes(layer).to_le_bytes());
            }
            (KvTensor::Keys, _) => {
                out[..4].copy_from_slice(&g.type_k().ggml_id().to_le_bytes());
                out[4..].copy_from_slice(&g.key_row_bytes(layer).to_le_bytes());
            }
        }
        out
    }

    fn layer_start(&self, layer: usize, tensor: KvTensor) -> u64 {
        match tensor {
            KvTensor::Keys => self.key_heads[layer],
            KvTensor::Values => self.value_heads[layer],
        }
    }
}
