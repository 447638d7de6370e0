//! Parameters of a context, checked before the engine sees them.

use crate::model::Model;
use crate::{Error, threads};
use kv::{KvType, StateGeometry, ValueLayout};

/// Most sequences of one context. The engine keeps a set per cell; far more than an agent needs.
pub const MAX_SEQUENCES: u32 = 1024;
/// Largest accepted micro-batch.
pub const MAX_UBATCH: u32 = 8192;

/// What to ask for. [`EffectiveParams`] says what came of it.
#[derive(Clone, Debug)]
pub struct ContextParams {
    /// Cells of the KV cache; 0 takes the model's context length. Rounded up to the engine's padding.
    pub n_ctx: u32,
    /// Most tokens per micro-batch, 1 to [`MAX_UBATCH`].
    pub n_ubatch: u32,
    /// Sequences, 1 to [`MAX_SEQUENCES`].
    pub n_seq_max: u32,
    /// Compute threads; clamped to the CPUs that the process may use. 0 is refused.
    pub n_threads: u32,
    /// Type of cached keys.
    pub type_k: KvType,
    /// Type of cached values; other than f16 needs flash attention.
    pub type_v: KvType,
    /// Flash attention: values are cached untransposed, prefill is slower, results do not depend on how a
    /// batch is split.
    pub flash_attn: bool,
    /// Make the context even if the estimate does not fit the available memory.
    pub allow_overcommit: bool,
}

impl Default for ContextParams {
    fn default() -> Self {
        Self {
            n_ctx: 0,
            n_ubatch: 512,
            n_seq_max: 1,
            n_threads: threads::available(),
            type_k: KvType::F16,
            type_v: KvType::F16,
            flash_attn: false,
            allow_overcommit: false,
        }
    }
}

/// The values that took effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectiveParams {
    /// Cells of the KV cache.
    pub n_ctx: u32,
    /// Most tokens per micro-batch: the request, bounded by the context and by the worker threads' stacks.
    pub n_ubatch: u32,
    /// Sequences.
    pub n_seq_max: u32,
    /// Compute threads.
    pub n_threads: u32,
    /// Type of cached keys.
    pub type_k: KvType,
    /// Type of cached values.
    pub type_v: KvType,
    /// Flash attention.
    pub flash_attn: bool,
}

impl ContextParams {
    pub(crate) fn check(&self, model: &Model) -> Result<EffectiveParams, Error> {
        let n_ctx_train = model.info().hyperparameters().n_ctx_train;
        let n_ctx = if self.n_ctx == 0 { n_ctx_train } else { self.n_ctx };
        in_range("n_ctx", n_ctx, 1, 1 << 24)?;
        in_range("n_ubatch", self.n_ubatch, 1, MAX_UBATCH)?;
        in_range("n_seq_max", self.n_seq_max, 1, MAX_SEQUENCES)?;
        let n_threads = threads::clamp(self.n_threads)?;
        self.check_types(model)?;
        let bounded = threads::max_columns(model.widest_rows(), self.n_ubatch.min(n_ctx), n_threads);
        if bounded < self.n_ubatch.min(n_ctx) {
            tracing::info!(
                "micro-batch bounded to {bounded} tokens: the kernels keep their results on the stacks of the {n_threads} threads"
            );
        }
        Ok(EffectiveParams {
            n_ctx,
            n_ubatch: bounded,
            n_seq_max: self.n_seq_max,
            n_threads,
            type_k: self.type_k,
            type_v: self.type_v,
            flash_attn: self.flash_attn,
        })
    }

    fn check_types(&self, model: &Model) -> Result<(), Error> {
        let refuse = |field, found: KvType, limit: String| Err(Error::KvType { field, found: found.name(), limit });
        if self.type_k == KvType::Bf16 || self.type_v == KvType::Bf16 {
            let field = if self.type_k == KvType::Bf16 { "type_k" } else { "type_v" };
            return refuse(field, KvType::Bf16, "this engine cannot compute attention over bf16; use f16".into());
        }
        if self.type_v != KvType::F16 && !self.flash_attn {
            return refuse(
                "type_v",
                self.type_v,
                "without flash attention values are cached as f16 only; turn flash attention on".into(),
            );
        }
        if self.flash_attn && self.type_k == KvType::F32 {
            return refuse(
                "type_k",
                KvType::F32,
                "flash attention faults on f32 keys; use f16, or turn flash attention off".into(),
            );
        }
        if self.flash_attn && self.type_v == KvType::F32 {
            return refuse("type_v", KvType::F32, "flash attention cannot read f32 values; use f16".into());
        }
        let dim = model.info().hyperparameters().head_dim;
        for (field, kv) in [("type_k", self.type_k), ("type_v", self.type_v)] {
            if !dim.is_multiple_of(kv.block_len()) {
                let limit = format!("its blocks of {} do not divide the head size {dim}", kv.block_len());
                return refuse(field, kv, limit);
            }
        }
        Ok(())
    }
}

impl EffectiveParams {
    /// What a context of these parameters expects of a sequence state.
    pub(crate) fn geometry(&self, model: &Model) -> Result<StateGeometry, Error> {
        let layers = model.layer_geometry();
        let layout = ValueLayout::from_flash_attention(self.flash_attn);
        let n_ctx_train = model.info().hyperparameters().n_ctx_train;
        StateGeometry::new(layers, self.type_k, self.type_v, layout, self.n_ctx, n_ctx_train)
            .map_err(|e| Error::ContextCreate { reason: e.to_string() })
    }
}

fn in_range(field: &'static str, value: u32, min: u32, max: u32) -> Result<(), Error> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(Error::ContextParam { field, value: value.to_string(), limit: format!("must be {min} to {max}") })
}
