//! The checked blob.

use super::layout::CELL_BYTES;
use super::transpose::{Extents, Order};
use super::{BlobError, BlobLayout, KvTensor, LayerGeometry, NonFinite, StateGeometry, ValueLayout, first_non_finite};
use std::sync::Arc;

/// The state of one sequence, checked and borrowed.
///
/// Holds the bytes of `llama_state_seq_get_data` and knows where each piece lies; nothing is
/// copied, so it works on mapped memory. It can only be made by [`StateBlob::parse`] (or from a
/// [`SequenceState`]), so a value of this type matches the geometry it was checked against in
/// every byte that carries meaning for the engine's reader.
///
/// ```
/// use kv::{BlobWriter, KvTensor, KvType, StateBlob, StateGeometry, ValueLayout};
///
/// let geometry =
///     StateGeometry::uniform(1, 1, 2, KvType::F16, KvType::F16, ValueLayout::Rows, 8, 8)?;
/// let mut writer = BlobWriter::new(Vec::new(), &geometry, &[0, 1])?;
/// writer.payload(&[0; 8])?; // keys: 2 cells of 2 f16
/// writer.payload(&[0; 8])?; // values
/// let bytes = writer.finish()?;
/// let blob = StateBlob::parse(&bytes, &geometry)?;
/// assert_eq!(blob.positions().collect::<Vec<_>>(), [0, 1]);
/// assert_eq!(blob.payload(0, KvTensor::Keys).len(), 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct StateBlob<'a> {
    bytes: &'a [u8],
    layout: Arc<BlobLayout>,
}

impl<'a> StateBlob<'a> {
    /// Checks `bytes` against what the receiving context expects.
    ///
    /// Reads the cell count and heads only, allocates nothing that depends on them before they
    /// are bounded, and accepts exactly: 1 to n_ctx cells without sequence ids; positions that
    /// are non-negative, strictly increasing and below n_ctx_train; equal value layout, layer
    /// count, types and sizes; and not one byte more or less. Values themselves are not looked
    /// at: see [`StateBlob::check_finite`].
    ///
    /// # Errors
    /// The first difference as a [`BlobError`].
    pub fn parse(bytes: &'a [u8], geometry: &StateGeometry) -> Result<StateBlob<'a>, BlobError> {
        let blob = StateBlob::parse_any_order(bytes, geometry)?;
        blob.check_order()?;
        Ok(blob)
    }

    /// As [`StateBlob::parse`], but lets positions come in any order as long as none repeats.
    ///
    /// The engine writes cells in the order of the cache, and a sequence that was decoded into a
    /// fragmented cache lies there out of order. [`SequenceState::from_capture`] uses this and
    /// sorts.
    ///
    /// # Errors
    /// The first difference as a [`BlobError`].
    pub(super) fn parse_any_order(bytes: &'a [u8], geometry: &StateGeometry) -> Result<StateBlob<'a>, BlobError> {
        let mut reader = Reader { bytes, at: 0 };
        let cells = u32::from_le_bytes(reader.take("cell_count")?);
        // Refuses 0 (native assert) and more than the context holds (native allocation of any
        // size) before the count is used for anything.
        let layout = BlobLayout::new(geometry, cells)?;
        let head = layout.head();
        if bytes.len() < head.end {
            return Err(BlobError::Truncated {
                field: "the cells".to_owned(),
                needed: head.end as u64,
                actual: bytes.len() as u64,
            });
        }
        for cell in 0..cells as usize {
            let position = i32::from_le_bytes(reader.take("position")?);
            let n_seq_id = u32::from_le_bytes(reader.take("n_seq_id")?);
            if n_seq_id != 0 {
                return Err(BlobError::SequenceIds { cell, n_seq_id });
            }
            if position < 0 {
                return Err(BlobError::NegativePosition { cell, position });
            }
            if position as u32 >= geometry.n_ctx_train() {
                return Err(BlobError::PositionLimit { cell, position, limit: geometry.n_ctx_train() });
            }
        }
        let found = match u32::from_le_bytes(reader.take("v_trans")?) {
            0 => ValueLayout::Rows,
            1 => ValueLayout::Transposed,
            found => return Err(BlobError::Flag { found }),
        };
        let expected = geometry.value_layout();
        if found != expected {
            return Err(BlobError::ValueLayoutMismatch { found, expected });
        }
        let n_layer = u32::from_le_bytes(reader.take("n_layer")?);
        if n_layer as usize != geometry.n_layer() {
            return Err(BlobError::LayerCountMismatch { found: n_layer, expected: geometry.n_layer() as u32 });
        }
        for tensor in [KvTensor::Keys, KvTensor::Values] {
            for layer in 0..geometry.n_layer() {
                let range = layout.layer_head(layer, tensor);
                let Some(head) = bytes.get(range.clone()) else {
                    return Err(BlobError::Truncated {
                        field: format!("the head of layer {layer}'s {tensor}"),
                        needed: layout.len() as u64,
                        actual: bytes.len() as u64,
                    });
                };
                check_layer_head(head, layer, tensor, geometry)?;
                if bytes.len() < layout.payload(layer, tensor).end {
                    return Err(BlobError::Truncated {
                        field: format!("layer {layer}'s {tensor}"),
                        needed: layout.len() as u64,
                        actual: bytes.len() as u64,
                    });
                }
            }
        }
        if bytes.len() != layout.len() {
            return Err(BlobError::Trailing { expected: layout.len() as u64, actual: bytes.len() as u64 });
        }
        Ok(StateBlob { bytes, layout: Arc::new(layout) })
    }

    /// Refuses positions that do not strictly increase.
    pub(super) fn check_order(&self) -> Result<(), BlobError> {
        let mut previous = None;
        for (cell, position) in self.positions().enumerate() {
            if let Some(previous) = previous
                && position <= previous
            {
                return Err(BlobError::PositionOrder { cell, position, previous });
            }
            previous = Some(position);
        }
        Ok(())
    }

    /// A blob whose bytes were checked before.
    pub(super) fn from_parts(bytes: &'a [u8], layout: Arc<BlobLayout>) -> StateBlob<'a> {
        debug_assert_eq!(bytes.len(), layout.len());
        StateBlob { bytes, layout }
    }

    pub(super) fn shared_layout(&self) -> &Arc<BlobLayout> {
        &self.layout
    }

    /// Checks the blob once more against another geometry, such as that of the context about to
    /// receive it. Reads heads only.
    ///
    /// # Errors
    /// As [`StateBlob::parse`].
    pub fn check_against(&self, geometry: &StateGeometry) -> Result<(), BlobError> {
        StateBlob::parse(self.bytes, geometry).map(drop)
    }

    /// The whole blob, as the engine reads it.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Where the pieces lie.
    pub fn layout(&self) -> &BlobLayout {
        &self.layout
    }

    /// The geometry the blob was checked against.
    pub fn geometry(&self) -> &StateGeometry {
        self.layout.geometry()
    }

    /// Number of cells, at least 1.
    pub fn cells(&self) -> u32 {
        self.layout.cells()
    }

    /// Positions of the cells, in the order of the cells.
    pub fn positions(&self) -> impl ExactSizeIterator<Item = i32> + DoubleEndedIterator + 'a {
        let table = &self.bytes[4..4 + self.layout.cells() as usize * CELL_BYTES as usize];
        table.chunks_exact(CELL_BYTES as usize).map(|cell| i32::from_le_bytes([cell[0], cell[1], cell[2], cell[3]]))
    }

    /// Position of the first cell.
    pub fn first_position(&self) -> i32 {
        self.positions().next().unwrap_or(0) // never empty
    }

    /// Position of the last cell; decoding goes on at the next one.
    pub fn last_position(&self) -> i32 {
        self.positions().next_back().unwrap_or(0) // never empty
    }

    /// Whether the positions follow one another without a gap.
    pub fn is_contiguous(&self) -> bool {
        let first = i64::from(self.first_position());
        self.positions().zip(first..).all(|(p, expected)| i64::from(p) == expected)
    }

    /// A layer's keys (`[cells][row]`) or values (`[cells][row]`, or `[n_embd_v][cells]` where
    /// transposed), as stored.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn payload(&self, layer: usize, tensor: KvTensor) -> &'a [u8] {
        &self.bytes[self.layout.payload(layer, tensor)]
    }

    /// Heads of a layer.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn layer(&self, layer: usize) -> &LayerGeometry {
        &self.geometry().layers()[layer]
    }

    /// Looks at every value (for quantized types, at every block's scale and minimum) and
    /// refuses infinities and not-a-numbers, which would turn every later logit into NaN.
    ///
    /// One pass over the payload at memory speed; no allocation.
    ///
    /// # Errors
    /// [`NonFinite`] with layer, tensor, head, channel and position of the first one.
    pub fn check_finite(&self) -> Result<(), NonFinite> {
        let geometry = self.geometry();
        for tensor in [KvTensor::Keys, KvTensor::Values] {
            for (layer, heads) in geometry.layers().iter().enumerate() {
                let (kv_type, dim) = match tensor {
                    KvTensor::Keys => (geometry.type_k(), heads.head_dim_k),
                    KvTensor::Values => (geometry.type_v(), heads.head_dim_v),
                };
                let Some((element, bits)) = first_non_finite(kv_type, self.payload(layer, tensor)) else { continue };
                let extents =
                    Extents { heads: heads.n_head_kv as usize, cells: self.cells() as usize, dim: dim as usize };
                let (head, cell, channel) = extents.place(Order::in_blob(tensor, geometry.value_layout()), element);
                return Err(NonFinite {
                    layer,
                    tensor,
                    head: head as u32,
                    channel: channel as u32,
                    position: self.positions().nth(cell).unwrap_or(-1),
                    bits,
                });
            }
        }
        Ok(())
    }
}

/// Compares a layer's head with the geometry, field by field for the message's sake.
fn check_layer_head(head: &[u8], layer: usize, tensor: KvTensor, geometry: &StateGeometry) -> Result<(), BlobError> {
    let mut reader = Reader { bytes: head, at: 0 };
    let found = i32::from_le_bytes(reader.take("type")?);
    let (expected, row) = match tensor {
        KvTensor::Keys => (geometry.type_k(), geometry.key_row_bytes(layer)),
        KvTensor::Values => (geometry.type_v(), geometry.value_row_bytes(layer)),
    };
    if found != expected.ggml_id() {
        return Err(BlobError::TypeMismatch { layer, tensor, found, expected });
    }
    if tensor == KvTensor::Values && geometry.value_layout() == ValueLayout::Transposed {
        let found = u32::from_le_bytes(reader.take("element size")?);
        if found != expected.block_bytes() {
            return Err(BlobError::ElementSizeMismatch { layer, found, expected: expected.block_bytes() });
        }
        let found = u32::from_le_bytes(reader.take("n_embd_v_gqa")?);
        let expected = geometry.layers()[layer].n_embd_v();
        if found != expected {
            return Err(BlobError::ChannelCountMismatch { layer, found, expected });
        }
    } else {
        let found = u64::from_le_bytes(reader.take("row size")?);
        if found != row {
            return Err(BlobError::RowSizeMismatch { layer, tensor, found, expected: row });
        }
    }
    Ok(())
}

/// A cursor that knows the name of what it reads.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self, field: &str) -> Result<[u8; N], BlobError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        match rest.first_chunk::<N>() {
            Some(chunk) => {
                self.at += N;
                Ok(*chunk)
            }
            None => Err(BlobError::Truncated {
                field: field.to_owned(),
                needed: (self.at + N) as u64,
                actual: self.bytes.len() as u64,
            }),
        }
    }
}
