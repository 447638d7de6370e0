//! The owned state.

use super::transpose::{Order, pick_cells};
use super::{BlobError, BlobLayout, KvTensor, StateBlob, StateGeometry};
use std::sync::Arc;

/// The state of one sequence, checked and owned.
///
/// Made by a context when it captures a sequence, or from a parsed [`StateBlob`]; never from
/// unchecked bytes. Borrow it as a blob with [`SequenceState::blob`].
#[derive(Clone)]
pub struct SequenceState {
    bytes: Vec<u8>,
    layout: Arc<BlobLayout>,
}

impl SequenceState {
    /// Takes over what `llama_state_seq_get_data` wrote for a context of this geometry.
    ///
    /// The engine writes cells in the order of its cache. Where a sequence lies there out of
    /// order (it was decoded into a fragmented cache), the cells are sorted by position, which
    /// costs a second copy; a later restore of that state attends to the same values in another
    /// order of summation.
    ///
    /// # Errors
    /// A [`BlobError`] if the bytes are not a state of this geometry.
    pub fn from_capture(bytes: Vec<u8>, geometry: &StateGeometry) -> Result<SequenceState, BlobError> {
        let blob = StateBlob::parse_any_order(&bytes, geometry)?;
        if blob.check_order().is_ok() {
            let layout = Arc::clone(blob.shared_layout());
            return Ok(SequenceState { bytes, layout });
        }
        sorted(&blob)
    }

    /// Takes over the bytes of a blob, checking them.
    ///
    /// # Errors
    /// As [`StateBlob::parse`].
    pub fn parse(bytes: Vec<u8>, geometry: &StateGeometry) -> Result<SequenceState, BlobError> {
        let layout = Arc::clone(StateBlob::parse(&bytes, geometry)?.shared_layout());
        Ok(SequenceState { bytes, layout })
    }

    /// The state as a blob.
    pub fn blob(&self) -> StateBlob<'_> {
        StateBlob::from_parts(&self.bytes, Arc::clone(&self.layout))
    }

    /// Number of cells, at least 1.
    pub fn cells(&self) -> u32 {
        self.layout.cells()
    }

    /// The geometry it was checked against.
    pub fn geometry(&self) -> &StateGeometry {
        self.layout.geometry()
    }

    /// The whole blob, as the engine reads it.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Gives the bytes up.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

impl StateBlob<'_> {
    /// A copy that owns its bytes.
    pub fn to_owned(&self) -> SequenceState {
        SequenceState { bytes: self.as_bytes().to_vec(), layout: Arc::clone(self.shared_layout()) }
    }
}

impl std::fmt::Debug for SequenceState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The payload is megabytes of numbers; its size is what helps.
        f.debug_struct("SequenceState")
            .field("cells", &self.cells())
            .field("bytes", &self.bytes.len())
            .finish_non_exhaustive()
    }
}

/// A copy of `blob` with its cells in the order of their positions.
fn sorted(blob: &StateBlob<'_>) -> Result<SequenceState, BlobError> {
    let positions: Vec<i32> = blob.positions().collect();
    let mut order: Vec<usize> = (0..positions.len()).collect();
    order.sort_by_key(|&cell| positions[cell]);
    if let Some(pair) = order.windows(2).find(|pair| positions[pair[0]] == positions[pair[1]]) {
        return Err(BlobError::DuplicatePosition { position: positions[pair[0]] });
    }
    let layout = blob.layout();
    let geometry = blob.geometry();
    let in_order: Vec<i32> = order.iter().map(|&cell| positions[cell]).collect();
    let mut bytes = Vec::with_capacity(layout.len());
    bytes.extend_from_slice(&layout.encode_head(&in_order));
    for tensor in [KvTensor::Keys, KvTensor::Values] {
        for layer in 0..geometry.n_layer() {
            bytes.extend_from_slice(&layout.encode_layer_head(layer, tensor));
            let kv_type = match tensor {
                KvTensor::Keys => geometry.type_k(),
                KvTensor::Values => geometry.type_v(),
            };
            let stored = Order::in_blob(tensor, geometry.value_layout());
            pick_cells(blob.payload(layer, tensor), stored, kv_type.block_bytes() as usize, &order, &mut bytes);
        }
    }
    debug_assert_eq!(bytes.len(), layout.len());
    Ok(SequenceState { bytes, layout: Arc::clone(blob.shared_layout()) })
}
