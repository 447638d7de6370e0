//! How much memory a KV cache takes.

use super::Hyperparameters;
use kv::KvType;

impl Hyperparameters {
    /// Elements of one token's keys in one layer, and of its values (`n_embd_k_gqa`).
    #[must_use]
    pub fn n_embd_kv(&self) -> u64 {
        u64::from(self.head_dim) * u64::from(self.n_head_kv)
    }

    /// Bytes one token takes in the KV cache, over all layers. `None` if a head is not a whole
    /// number of blocks of a type: the engine asserts that it is.
    #[must_use]
    pub fn kv_bytes_per_token(&self, k: KvType, v: KvType) -> Option<u64> {
        let head = k.row_bytes(self.head_dim)?.checked_add(v.row_bytes(self.head_dim)?)?;
        head.checked_mul(u64::from(self.n_head_kv))?.checked_mul(u64::from(self.n_layer))
    }

    /// Bytes of a KV cache of `n_ctx` tokens (`llama_kv_cache_init`). The engine rounds `n_ctx`
    /// up to a multiple of 32, or of 256 with flash attention (`llama_kv_cache_get_padding`), and
    /// so does this.
    #[must_use]
    pub fn kv_bytes(&self, n_ctx: u32, k: KvType, v: KvType, flash_attention: bool) -> Option<u64> {
        let padding = if flash_attention { 256 } else { 32 };
        let cells = u64::from(n_ctx).next_multiple_of(padding);
        self.kv_bytes_per_token(k, v)?.checked_mul(cells)
    }
}
