//! Between cartridges and the engine.

use super::{
    Cartridge, CartridgeError, CartridgeState, ModelLock, Overwrite, Provenance, RopeType, Rounding, write_native,
};
use bitnet_rs::gguf::RopeKind;
use bitnet_rs::{Context, Model, SeqId, TokenId, engine_info};
use std::ops::ControlFlow;
use std::path::Path;

impl ModelLock {
    /// The lock of a loaded model.
    ///
    /// Hashes all weights, which takes a second or two per gigabyte; keep it for as long as the
    /// model. `progress` gets bytes done and in total, and can stop.
    ///
    /// # Errors
    /// [`CartridgeError::Model`] if the file cannot be read, or `progress` stopped.
    pub fn of(
        model: &Model,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<ModelLock, CartridgeError> {
        let info = model.info();
        let h = info.hyperparameters();
        Ok(ModelLock {
            // Many files carry no name; the architecture is then the best there is, and the
            // hashes do the locking.
            model_id: info.name().unwrap_or(info.architecture().name()).to_owned(),
            model_arch_hash: info.arch_hash().to_string(),
            model_weights_hash: model.file().file().weights_hash(progress)?.to_string(),
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
            engine: engine_info::ENGINE_COMMIT.to_owned(),
        })
    }
}

impl Cartridge {
    /// Captures what a sequence holds (`llama_state_seq_get_data`) into a native file and opens it.
    ///
    /// `tokens` are the ids that were decoded into the sequence, from its first position on. Beside the engine's own
    /// memory there is one copy of the state, from which the file is streamed; the result maps the file.
    ///
    /// # Errors
    /// [`CartridgeError::Engine`] for an empty sequence or a failed capture, and those of [`write_native`] and
    /// [`Cartridge::open`].
    pub fn capture(
        path: impl AsRef<Path>,
        context: &mut Context,
        seq: SeqId,
        tokens: &[TokenId],
        model: &ModelLock,
        provenance: &Provenance,
        overwrite: Overwrite,
    ) -> Result<Cartridge, CartridgeError> {
        let path = path.as_ref();
        let state = context.save(seq)?;
        let ids: Vec<i32> = tokens.iter().map(|t| t.get()).collect();
        write_native(path, &state.blob(), &ids, model, provenance, overwrite)?;
        Cartridge::open(path)
    }

    /// Mounts the cartridge into an empty sequence: lock, fit, restore.
    ///
    /// Decoding goes on at [`Cartridge::next_position`]. Where the file holds the engine's blob
    /// in one piece, the engine reads the mapped file and nothing is copied in between. Values
    /// are not looked at here; see [`Cartridge::validate`].
    ///
    /// # Errors
    /// [`CartridgeError::Lock`] with every field that differs, [`CartridgeError::Occupied`] if
    /// the sequence holds something, the errors of [`Cartridge::state`], and
    /// [`CartridgeError::Engine`]; in all but the last case nothing has changed.
    pub fn mount(
        &self,
        context: &mut Context,
        seq: SeqId,
        model: &ModelLock,
        rounding: Rounding,
    ) -> Result<Mounted, CartridgeError> {
        self.lock_check(model).map_err(CartridgeError::Lock)?;
        if let Some(last) = context.positions(seq)?.last() {
            return Err(CartridgeError::Occupied { seq: seq.get(), last });
        }
        let state: CartridgeState<'_> = self.state(context.geometry(), model.rope_type, rounding)?;
        context.restore(seq, &state.blob())?;
        Ok(Mounted { next_pos: self.next_position(), copied: !state.is_borrowed() })
    }
}

/// What [`Cartridge::mount`] has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mounted {
    /// Position of the next token.
    pub next_pos: u32,
    /// Whether the state had to be put together or converted in memory.
    pub copied: bool,
}
