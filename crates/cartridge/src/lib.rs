//! Cartridges: KV prefixes as safetensors files.
//!
//! A cartridge holds the keys and values of a token prefix, locked to the model they were
//! computed with, and is mounted instead of prefilling the prefix. The format is described in
//! `docs/formats/cartridge.md`; this module reads, checks, writes, converts and compares it:
//!
//! * [`Cartridge`]: an opened file, its structure checked; [`Cartridge::validate`] adds hashes and
//!   finiteness, [`Cartridge::lock_check`] compares it with a [`ModelLock`],
//!   [`Cartridge::state`] gives the blob to restore;
//! * [`Cartridge::capture`]: from a sequence of the engine into a file; [`write_native`], [`write_head_major`],
//!   [`convert`]: the atomic, streaming writers;
//! * [`import_parts`]: keys and values trained elsewhere, joined into a cartridge;
//! * [`diff`]: two cartridges compared field by field and value by value;
//! * [`diagnose`]: where two KV prefixes depart, and the likely cause;
//! * [`Inspection`]: what a file holds, for people and as JSON.
//!
//! Files come from anywhere, so nothing in one is believed before it is checked, and no length in
//! one sizes an allocation.
#![forbid(unsafe_code)]

mod container;
mod convert;
mod diagnose;
mod diff;
mod error;
mod file;
mod format;
mod hash;
mod import;
mod inspect;
mod layout;
mod lock;
mod state;
mod transcribe;
mod values;
mod write;

#[cfg(test)]
mod tests;

pub use container::{ContainerError, HEADER_LIMIT};
pub use convert::{ConvertTo, convert};
pub use files::atomic_file::{AtomicFile, Overwrite};

pub use diagnose::{Cause, Departure, Diagnosis, Rope, diagnose};
pub use diff::{Difference, FieldDifference, TensorDifference, diff};
pub use error::{CartridgeError, ConversionError, LockMismatch, Place};
pub use file::{Cartridge, Level};
pub use format::{FORMAT, Fields};
pub use hash::{Digest, HashAlgorithm, tokens_hash};
pub use import::import_parts;
pub use inspect::{Inspection, LayerNorms};
pub use layout::{Layout, RopeType};
pub use lock::ModelLock;
pub use state::CartridgeState;
pub use transcribe::Rounding;
pub use values::{KvSource, Values};
pub use write::{Provenance, write_head_major, write_native};
