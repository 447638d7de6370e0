//! Between cartridges and the engine: identity of a loaded model, capture, mount.

use std::ops::ControlFlow;
use std::path::Path;

use bitnet_rs::{Context, Model, SeqId, TokenId, engine_info};
use cartridge::{Cartridge, CartridgeError, CartridgeState, ModelLock, Overwrite, Provenance, Rounding, write_native};
use files::stamps::{Stamp, StampStore};

/// Why a cartridge was not captured or mounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The file, or what it does not fit.
    #[error(transparent)]
    Cartridge(#[from] CartridgeError),
    /// A sequence that is not empty.
    #[error("sequence {seq} holds positions up to {last}; a cartridge mounts into an empty sequence, remove it first")]
    Occupied {
        /// Sequence.
        seq: i32,
        /// Its last position.
        last: i32,
    },
    /// The engine or its wrapper refused.
    #[error(transparent)]
    Engine(#[from] bitnet_rs::Error),
}

/// The lock of a loaded model.
///
/// Hashes all weights, which takes a second or two per gigabyte; keep it for as long as the model. `progress` gets
/// bytes done and in total, and can stop.
///
/// # Errors
/// [`CartridgeError::Model`] if the file cannot be read, or `progress` stopped.
pub fn lock_of(
    model: &Model,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<ModelLock, CartridgeError> {
    let weights = model.file().file().weights_hash(progress)?;
    Ok(ModelLock::of(model.info(), weights, engine_info::ENGINE_COMMIT))
}

/// What [`files::stamps`] calls the hash of the weights.
const WEIGHTS: &str = "weights";

/// As [`lock_of`], but the weights are not hashed where `known` remembers the hash of the very file that is loaded.
/// `anew` hashes whatever it remembers. Returns whether the hash was remembered.
///
/// For what starts often and decides nothing about the file: a gate or a verification uses [`lock_of`].
///
/// # Errors
/// As [`lock_of`].
pub fn known_lock(
    model: &Model,
    known: &StampStore,
    anew: bool,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<(ModelLock, bool), CartridgeError> {
    let file = model.file().file().file();
    // Without a stamp nothing is remembered, and the hash is what it always was.
    let before = Stamp::of(file).ok();
    let remembered = before.as_ref().filter(|_| !anew).and_then(|s| known.find(WEIGHTS, s)?.parse().ok());
    if let Some(weights) = remembered {
        return Ok((ModelLock::of(model.info(), weights, engine_info::ENGINE_COMMIT), true));
    }
    let weights = model.file().file().weights_hash(progress)?;
    if let (Some(before), Ok(after)) = (before, Stamp::of(file))
        && let Err(e) = known.keep(WEIGHTS, &before, &after, &weights.to_string())
    {
        tracing::debug!("the hash of the weights is not kept: {e}");
    }
    Ok((ModelLock::of(model.info(), weights, engine_info::ENGINE_COMMIT), false))
}

/// Captures what a sequence holds (`llama_state_seq_get_data`) into a native file and opens it.
///
/// `tokens` are the ids that were decoded into the sequence, from its first position on. Beside the engine's own
/// memory there is one copy of the state, from which the file is streamed; the result maps the file.
///
/// # Errors
/// [`MountError::Engine`] for an empty sequence or a failed capture, and those of [`write_native`] and
/// [`Cartridge::open`].
pub fn capture(
    path: impl AsRef<Path>,
    context: &mut Context,
    seq: SeqId,
    tokens: &[TokenId],
    model: &ModelLock,
    provenance: &Provenance,
    overwrite: Overwrite,
) -> Result<Cartridge, MountError> {
    let path = path.as_ref();
    let state = context.save(seq)?;
    let ids: Vec<i32> = tokens.iter().map(|t| t.get()).collect();
    write_native(path, &state.blob(), &ids, model, provenance, overwrite)?;
    Ok(Cartridge::open(path)?)
}

/// What can be mounted instead of being prefilled.
pub trait Mount {
    /// Mounts into an empty sequence: lock, fit, restore.
    ///
    /// Decoding goes on at [`Cartridge::next_position`]. Where the file holds the engine's blob in one piece, the engine
    /// reads the mapped file and nothing is copied in between. Values are looked at here unless
    /// [`Cartridge::validate`] has looked at them.
    ///
    /// # Errors
    /// [`CartridgeError::Lock`] with every field that differs, [`MountError::Occupied`] if the sequence holds something,
    /// the errors of [`Cartridge::state`], and [`MountError::Engine`]; in all but the last case nothing has changed.
    fn mount(
        &self,
        context: &mut Context,
        seq: SeqId,
        model: &ModelLock,
        rounding: Rounding,
    ) -> Result<Mounted, MountError>;
}

impl Mount for Cartridge {
    fn mount(
        &self,
        context: &mut Context,
        seq: SeqId,
        model: &ModelLock,
        rounding: Rounding,
    ) -> Result<Mounted, MountError> {
        self.lock_check(model).map_err(CartridgeError::Lock)?;
        if let Some(last) = context.positions(seq)?.last() {
            return Err(MountError::Occupied { seq: seq.get(), last });
        }
        let state: CartridgeState<'_> = self.state(context.geometry(), model.rope_type, rounding)?;
        match self.values_are_checked() {
            true => context.restore_with_unchecked_values(seq, &state.blob())?,
            false => context.restore(seq, &state.blob())?,
        }
        Ok(Mounted { next_pos: self.next_position(), copied: !state.is_borrowed() })
    }
}

/// What [`Mount::mount`] has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mounted {
    /// Position of the next token.
    pub next_pos: u32,
    /// Whether the state had to be put together or converted in memory.
    pub copied: bool,
}
