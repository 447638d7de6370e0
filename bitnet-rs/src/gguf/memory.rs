//! How much memory a model and its KV cache take.

use super::{GgmlType, Hyperparameters};

/// Types of the keys and values in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvTypes {
    /// Type of the keys.
    pub k: GgmlType,
    /// Type of the values.
    pub v: GgmlType,
}

impl Default for KvTypes {
    /// f16 for both, the engine's default.
    fn default() -> Self {
        Self { k: GgmlType::F16, v: GgmlType::F16 }
    }
}

impl Hyperparameters {
    /// Elements of one token's keys in one layer, and of its values (`n_embd_k_gqa`).
    #[must_use]
    pub fn n_embd_kv(&self) -> u64 {
        u64::from(self.head_dim) * u64::from(self.n_head_kv)
    }

    /// Bytes one token takes in the KV cache, over all layers (`llama_kv_cache_init`).
    /// `None` if a head is not a whole number of blocks of a type, or if the engine has no
    /// such cache.
    #[must_use]
    pub fn kv_bytes_per_token(&self, types: KvTypes) -> Option<u64> {
        let side = |ty: GgmlType| {
            // The engine asserts whole blocks per head; ternary and integer caches do not exist.
            let usable = ty.is_matrix_type() && ty.row_group() == 1;
            if !usable || u64::from(self.head_dim) % ty.block_len() != 0 {
                return None;
            }
            ty.row_bytes(self.n_embd_kv())
        };
        side(types.k)?.checked_add(side(types.v)?)?.checked_mul(u64::from(self.n_layer))
    }

    /// Bytes of a KV cache of `n_ctx` tokens. The engine rounds `n_ctx` up to a multiple of 32,
    /// or of 256 with flash attention (`llama_kv_cache_get_padding`); so does this.
    #[must_use]
    pub fn kv_bytes(&self, n_ctx: u32, types: KvTypes, flash_attention: bool) -> Option<u64> {
        let padding = if flash_attention { 256 } else { 32 };
        let cells = u64::from(n_ctx).next_multiple_of(padding);
        self.kv_bytes_per_token(types)?.checked_mul(cells)
    }
}
