//! The lock between a cartridge and its model.

use super::{Cartridge, Layout, LockMismatch, RopeType};
use gguf::{ModelInfo, RopeKind, Sha256Hash};
use serde::{Deserialize, Serialize};

/// Identity of a model, as a cartridge is locked to it.
///
/// Computed from a GGUF by the model reader; serialised, it is what `harness model inspect`
/// prints for writers outside the engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelLock {
    /// Name of the model.
    pub model_id: String,
    /// Hash of architecture and hyperparameters, `sha256:<hex>`.
    pub model_arch_hash: String,
    /// Hash of the weights.
    pub model_weights_hash: String,
    /// Hash of the tokenizer.
    pub tokenizer_hash: String,
    /// Layers.
    pub n_layer: u32,
    /// KV heads of each layer.
    pub n_head_kv: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Size of the vocabulary.
    pub n_vocab: u32,
    /// Training length; positions of a cartridge lie below it.
    pub n_ctx_train: u32,
    /// Pairing of rotated elements.
    pub rope_type: RopeType,
    /// Base frequency.
    pub rope_theta: f32,
    /// Frequency scaling, `none` if there is none.
    pub rope_scaling: String,
    /// Rotated elements of a head.
    pub rope_dim: u32,
    /// Commit of the engine that runs the model; a native cartridge is an engine's blob.
    pub engine: String,
}

impl ModelLock {
    /// The lock of a model that was read: what its header says, the hash of its weights, and the commit of the engine
    /// that runs it.
    pub fn of(info: &ModelInfo, weights: Sha256Hash, engine: &str) -> Self {
        let h = info.hyperparameters();
        Self {
            // Many files carry no name; the architecture is then the best there is, and the hashes do the locking.
            model_id: info.name().unwrap_or(info.architecture().name()).to_owned(),
            model_arch_hash: info.arch_hash().to_string(),
            model_weights_hash: weights.to_string(),
            tokenizer_hash: info.tokenizer_hash().to_string(),
            n_layer: h.n_layer,
            n_head_kv: h.n_head_kv,
            head_dim: h.head_dim,
            n_vocab: h.n_vocab,
            n_ctx_train: h.n_ctx_train,
            rope_type: match h.rope.kind {
                RopeKind::Norm => RopeType::Norm,
                RopeKind::Neox => RopeType::Neox,
            },
            rope_theta: h.rope.freq_base,
            rope_scaling: h.rope.scaling_text(),
            rope_dim: h.rope.dimension_count,
            engine: engine.to_owned(),
        }
    }
}

impl Cartridge {
    /// Compares every lock field with the model's.
    ///
    /// The one difference let through is a head-major file whose `rope_type` is the other of neox
    /// and norm: [`Cartridge::state`] permutes its keys.
    ///
    /// # Errors
    /// Every field that differs, in the order of the format's description.
    pub fn lock_check(&self, model: &ModelLock) -> Result<(), Vec<LockMismatch>> {
        let f = self.fields();
        let mut found = Vec::new();
        let mut compare = |field, file: String, ours: String, equal: bool| {
            if !equal {
                found.push(LockMismatch { field, file: file.chars().take(120).collect(), ours });
            }
        };
        for (field, file, ours) in [
            ("model_id", &f.model_id, &model.model_id),
            ("model_arch_hash", &f.model_arch_hash, &model.model_arch_hash),
            ("model_weights_hash", &f.model_weights_hash, &model.model_weights_hash),
            ("tokenizer_hash", &f.tokenizer_hash, &model.tokenizer_hash),
        ] {
            compare(field, file.clone(), ours.clone(), file == ours);
        }
        let n_layer = self.layers().len();
        compare("n_layer", n_layer.to_string(), model.n_layer.to_string(), n_layer as u64 == u64::from(model.n_layer));
        for (layer, l) in self.layers().iter().enumerate() {
            // One line per kind is enough; the first layer that differs tells it.
            if (l.n_head_kv, l.head_dim_k, l.head_dim_v) != (model.n_head_kv, model.head_dim, model.head_dim) {
                let shape = format!("{} x {}/{} (layer {layer})", l.n_head_kv, l.head_dim_k, l.head_dim_v);
                let ours = format!("{} x {}", model.n_head_kv, model.head_dim);
                compare("n_head_kv x head_dim", shape, ours, false);
                break;
            }
        }
        let end = u64::from(f.first_pos) + u64::from(f.n_tokens);
        compare(
            "first_pos + n_tokens",
            end.to_string(),
            format!("at most {} (n_ctx_train)", model.n_ctx_train),
            end <= u64::from(model.n_ctx_train),
        );
        let bridged = f.layout == Layout::HeadMajor
            && matches!(
                (f.rope_type, model.rope_type),
                (RopeType::Neox, RopeType::Norm) | (RopeType::Norm, RopeType::Neox)
            );
        compare(
            "rope_type",
            f.rope_type.to_string(),
            model.rope_type.to_string(),
            f.rope_type == model.rope_type || bridged,
        );
        compare("rope_theta", f.rope_theta.to_string(), model.rope_theta.to_string(), f.rope_theta == model.rope_theta);
        compare(
            "rope_scaling",
            f.rope_scaling.clone(),
            model.rope_scaling.clone(),
            f.rope_scaling == model.rope_scaling,
        );
        let rope_dim = f.rope_dim.unwrap_or(model.head_dim);
        compare("rope_dim", rope_dim.to_string(), model.rope_dim.to_string(), rope_dim == model.rope_dim);
        if f.layout == Layout::Native {
            let engine = f.engine.clone().unwrap_or_default();
            let equal = engine == model.engine;
            compare("engine", engine, model.engine.clone(), equal);
        }
        if let Some((index, token)) = self.tokens().enumerate().find(|(_, t)| i64::from(*t) >= i64::from(model.n_vocab))
        {
            compare("tokens", format!("{token} (at {index})"), format!("below {} (n_vocab)", model.n_vocab), false);
        }
        if found.is_empty() { Ok(()) } else { Err(found) }
    }
}
