//! What can be wrong with a geometry or a blob.

use super::{KvTensor, KvType, ValueLayout};

/// A geometry that no context of the pinned engine can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GeometryError {
    /// No layers, or more than the engine's limit.
    #[error("n_layer is {found}; it must be 1 to {limit}")]
    LayerCount {
        /// Layers asked for.
        found: usize,
        /// The engine's limit (`LLAMA_MAX_LAYERS`).
        limit: usize,
    },
    /// A layer without heads, with an empty head, or wider than 2^31 - 1 elements.
    #[error(
        "layer {layer}: {n_head_kv} KV heads of {head_dim} elements; both must be at least 1 and their product at most {limit}"
    )]
    Heads {
        /// Layer.
        layer: usize,
        /// KV heads.
        n_head_kv: u32,
        /// Elements of a head.
        head_dim: u32,
        /// Largest product.
        limit: u32,
    },
    /// A head that is not a whole number of the type's blocks (the engine asserts this when a
    /// context is created).
    #[error(
        "layer {layer}: a head of {head_dim} elements is not a whole number of {kv_type} blocks of {block}; use f16 for the {tensor}"
    )]
    HeadBlocks {
        /// Layer.
        layer: usize,
        /// Keys or values.
        tensor: KvTensor,
        /// Elements of a head.
        head_dim: u32,
        /// The type.
        kv_type: KvType,
        /// Elements of a block.
        block: u32,
    },
    /// Transposed values of another type than f16.
    #[error(
        "values of type {type_v} need flash attention; without it the engine keeps values transposed and in f16 only"
    )]
    TransposedType {
        /// Type of the values.
        type_v: KvType,
    },
    /// A context without cells.
    #[error("n_ctx is 0; a context needs at least one cell")]
    NoCells,
}

/// Why a blob is refused.
///
/// Offsets, sizes and limits are in bytes unless the field says otherwise.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BlobError {
    /// The blob ends before a field that its own header announces.
    #[error("blob is truncated at {field}: {needed} bytes are needed, {actual} are there")]
    Truncated {
        /// The first field that does not fit.
        field: String,
        /// Bytes needed up to and including that field; the whole blob's length where known.
        needed: u64,
        /// Length of the blob.
        actual: u64,
    },
    /// Bytes after the last value.
    #[error("blob has {} trailing bytes: {expected} are used of {actual}", .actual - .expected)]
    Trailing {
        /// Exact length of the blob its header describes.
        expected: u64,
        /// Length of the blob.
        actual: u64,
    },
    /// A blob of no cells, on which the engine aborts (`GGML_ASSERT` in `read_kv_cache_meta`).
    #[error("cell_count is 0; an empty sequence has no state to restore, remove the sequence instead")]
    Empty,
    /// More cells than the context has.
    #[error(
        "too big: the state holds {cells} cells and the context {limit}; create the context with n_ctx of at least {cells}"
    )]
    TooBig {
        /// Cells in the blob.
        cells: u32,
        /// Cells of the context (n_ctx).
        limit: u32,
    },
    /// A size that does not fit this machine's address space.
    #[error("a state of {cells} cells of this geometry does not fit the address space")]
    SizeOverflow {
        /// Cells in the blob.
        cells: u32,
    },
    /// A cell that lists sequence ids; a blob of one sequence has none.
    #[error(
        "cell {cell}: n_seq_id is {n_seq_id} and must be 0; this is the state of a whole context, not of one sequence"
    )]
    SequenceIds {
        /// Index of the cell.
        cell: usize,
        /// Ids announced.
        n_seq_id: u32,
    },
    /// A negative position.
    #[error("cell {cell}: position is {position} and must not be negative")]
    NegativePosition {
        /// Index of the cell.
        cell: usize,
        /// Its position.
        position: i32,
    },
    /// A position that does not come after the one before it.
    #[error("cell {cell}: position {position} does not follow {previous}; positions must increase from cell to cell")]
    PositionOrder {
        /// Index of the cell.
        cell: usize,
        /// Its position.
        position: i32,
        /// Position of the cell before.
        previous: i32,
    },
    /// Two cells at one position (reported where another order than increasing is allowed).
    #[error("position {position} occurs twice")]
    DuplicatePosition {
        /// The position.
        position: i32,
    },
    /// A position past the model's training length.
    #[error("cell {cell}: position {position} is not below the model's n_ctx_train of {limit}")]
    PositionLimit {
        /// Index of the cell.
        cell: usize,
        /// Its position.
        position: i32,
        /// First position that is not allowed.
        limit: u32,
    },
    /// A flag that is neither 0 nor 1.
    #[error("v_trans is {found} and must be 0 or 1")]
    Flag {
        /// Value of the flag.
        found: u32,
    },
    /// State saved under the other flash-attention setting.
    #[error(
        "setting mismatch: the state was saved with flash attention {} and the context has it {}; create the context with the same setting",
        .found.flash_attention(), .expected.flash_attention()
    )]
    ValueLayoutMismatch {
        /// Layout in the blob.
        found: ValueLayout,
        /// Layout of the context.
        expected: ValueLayout,
    },
    /// Another number of layers.
    #[error("n_layer is {found}, the context's model has {expected}: the state is of another model")]
    LayerCountMismatch {
        /// Layers in the blob.
        found: u32,
        /// Layers of the context.
        expected: u32,
    },
    /// Another element type.
    #[error(
        "layer {layer}: {tensor} have type {} and the context keeps {expected}; create the context with the same KV types",
        type_name(*.found)
    )]
    TypeMismatch {
        /// Layer.
        layer: usize,
        /// Keys or values.
        tensor: KvTensor,
        /// ggml type number in the blob.
        found: i32,
        /// Type of the context.
        expected: KvType,
    },
    /// Another row size.
    #[error(
        "layer {layer}: a row of {tensor} has {found} bytes, the context's has {expected}: other KV heads or head size"
    )]
    RowSizeMismatch {
        /// Layer.
        layer: usize,
        /// Keys or values.
        tensor: KvTensor,
        /// Row size in the blob.
        found: u64,
        /// Row size of the context.
        expected: u64,
    },
    /// Another element size of transposed values.
    #[error("layer {layer}: an element of the values has {found} bytes, the context's has {expected}")]
    ElementSizeMismatch {
        /// Layer.
        layer: usize,
        /// Element size in the blob.
        found: u32,
        /// Element size of the context.
        expected: u32,
    },
    /// Another number of channels of transposed values.
    #[error(
        "layer {layer}: the values have {found} channels, the context's have {expected}: other KV heads or head size"
    )]
    ChannelCountMismatch {
        /// Layer.
        layer: usize,
        /// n_embd_v_gqa in the blob.
        found: u32,
        /// n_embd_v_gqa of the context.
        expected: u32,
    },
    /// An infinite or not-a-number value.
    #[error(transparent)]
    NonFinite(#[from] NonFinite),
}

/// The first value of a state that is not finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "layer {layer}: {tensor} of head {head}, channel {channel}, position {position} are not finite (bits {bits:#x}); a state with such a value makes every later logit NaN"
)]
pub struct NonFinite {
    /// Layer.
    pub layer: usize,
    /// Keys or values.
    pub tensor: KvTensor,
    /// KV head.
    pub head: u32,
    /// Element within the head (for quantized types, the first of the block).
    pub channel: u32,
    /// Position of the cell.
    pub position: i32,
    /// The value's bits (for quantized types, the scale's or minimum's).
    pub bits: u32,
}

/// Name of a ggml type number for messages.
fn type_name(id: i32) -> String {
    match KvType::from_ggml_id(id) {
        Some(t) => t.name().to_owned(),
        None => format!("{id} (no KV type)"),
    }
}
