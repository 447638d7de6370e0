//! What a context expects of a state.

use super::{GeometryError, KvTensor, KvType, ValueLayout};

/// Most layers the pinned engine supports (`LLAMA_MAX_LAYERS`).
pub const MAX_LAYERS: usize = 512;

/// Widest layer accepted, in elements: the engine computes row indices with 32-bit integers.
const MAX_WIDTH: u32 = i32::MAX as u32;

/// Heads of one layer's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LayerGeometry {
    /// KV heads.
    pub n_head_kv: u32,
    /// Elements of a key head.
    pub head_dim_k: u32,
    /// Elements of a value head.
    pub head_dim_v: u32,
}

impl LayerGeometry {
    /// Elements of a key row (`n_embd_k_gqa`).
    pub const fn n_embd_k(&self) -> u32 {
        self.n_head_kv * self.head_dim_k
    }

    /// Elements of a value row (`n_embd_v_gqa`).
    pub const fn n_embd_v(&self) -> u32 {
        self.n_head_kv * self.head_dim_v
    }
}

/// Shape, types and limits of a context's KV cache: what a state must match to be restored.
///
/// Made by the context that will receive the state (or by a reader of a cartridge from the
/// cartridge's own fields); a value of this type is one the pinned engine can have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateGeometry {
    layers: Vec<LayerGeometry>,
    type_k: KvType,
    type_v: KvType,
    value_layout: ValueLayout,
    n_ctx: u32,
    n_ctx_train: u32,
}

impl StateGeometry {
    /// Checks and makes a geometry.
    ///
    /// * `layers`: heads of each layer, 1 to [`MAX_LAYERS`] of them;
    /// * `type_k`, `type_v`: element types, one for all layers (as the engine's are);
    /// * `value_layout`: from the flash-attention setting;
    /// * `n_ctx`: cells available to the state, at least 1;
    /// * `n_ctx_train`: first position that is refused.
    ///
    /// # Errors
    /// A [`GeometryError`] where no context of the pinned engine could have this geometry.
    pub fn new(
        layers: Vec<LayerGeometry>,
        type_k: KvType,
        type_v: KvType,
        value_layout: ValueLayout,
        n_ctx: u32,
        n_ctx_train: u32,
    ) -> Result<StateGeometry, GeometryError> {
        if layers.is_empty() || layers.len() > MAX_LAYERS {
            return Err(GeometryError::LayerCount { found: layers.len(), limit: MAX_LAYERS });
        }
        if value_layout == ValueLayout::Transposed && type_v != KvType::F16 {
            return Err(GeometryError::TransposedType { type_v });
        }
        if n_ctx == 0 {
            return Err(GeometryError::NoCells);
        }
        for (layer, l) in layers.iter().enumerate() {
            for (tensor, head_dim, kv_type) in
                [(KvTensor::Keys, l.head_dim_k, type_k), (KvTensor::Values, l.head_dim_v, type_v)]
            {
                let width = l.n_head_kv.checked_mul(head_dim);
                if !matches!(width, Some(1..=MAX_WIDTH)) {
                    return Err(GeometryError::Heads { layer, n_head_kv: l.n_head_kv, head_dim, limit: MAX_WIDTH });
                }
                if !head_dim.is_multiple_of(kv_type.block_len()) {
                    return Err(GeometryError::HeadBlocks {
                        layer,
                        tensor,
                        head_dim,
                        kv_type,
                        block: kv_type.block_len(),
                    });
                }
            }
        }
        Ok(StateGeometry { layers, type_k, type_v, value_layout, n_ctx, n_ctx_train })
    }

    /// A geometry whose layers are all alike, with `head_dim` for keys and values.
    ///
    /// # Errors
    /// As [`StateGeometry::new`].
    #[allow(clippy::too_many_arguments)] // the fields of a hyperparameter table, all plain numbers
    pub fn uniform(
        n_layer: usize,
        n_head_kv: u32,
        head_dim: u32,
        type_k: KvType,
        type_v: KvType,
        value_layout: ValueLayout,
        n_ctx: u32,
        n_ctx_train: u32,
    ) -> Result<StateGeometry, GeometryError> {
        if n_layer == 0 || n_layer > MAX_LAYERS {
            return Err(GeometryError::LayerCount { found: n_layer, limit: MAX_LAYERS });
        }
        let layer = LayerGeometry { n_head_kv, head_dim_k: head_dim, head_dim_v: head_dim };
        StateGeometry::new(vec![layer; n_layer], type_k, type_v, value_layout, n_ctx, n_ctx_train)
    }

    /// Number of layers.
    pub fn n_layer(&self) -> usize {
        self.layers.len()
    }

    /// Heads of each layer.
    pub fn layers(&self) -> &[LayerGeometry] {
        &self.layers
    }

    /// Element type of the keys.
    pub fn type_k(&self) -> KvType {
        self.type_k
    }

    /// Element type of the values.
    pub fn type_v(&self) -> KvType {
        self.type_v
    }

    /// Memory layout of the values.
    pub fn value_layout(&self) -> ValueLayout {
        self.value_layout
    }

    /// Cells available to a state.
    pub fn n_ctx(&self) -> u32 {
        self.n_ctx
    }

    /// First position that is refused.
    pub fn n_ctx_train(&self) -> u32 {
        self.n_ctx_train
    }

    /// Bytes of one key row of `layer`.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn key_row_bytes(&self, layer: usize) -> u64 {
        row_bytes(self.type_k, self.layers[layer].n_embd_k())
    }

    /// Bytes of the values of one cell of `layer`, in either layout.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn value_row_bytes(&self, layer: usize) -> u64 {
        row_bytes(self.type_v, self.layers[layer].n_embd_v())
    }
}

/// Row size of a width that [`StateGeometry::new`] has checked to be whole blocks.
fn row_bytes(kv_type: KvType, width: u32) -> u64 {
    u64::from(width / kv_type.block_len()) * u64::from(kv_type.block_bytes())
}
