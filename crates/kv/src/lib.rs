//! Sequence state: the validated form of `llama_state_seq_get_data` blobs.
//!
//! The engine writes the KV cache of one sequence as a flat little-endian blob without magic,
//! version or identity, and its reader (`llama_state_seq_set_data`) aborts on some malformed
//! blobs, swallows others and empties the destination sequence before it notices the rest. So no
//! byte reaches it before [`StateBlob::parse`] has compared all of them that carry meaning with
//! what the receiving context expects, its [`StateGeometry`].
//!
//! * [`KvType`]: the element types a KV cache of the pinned engine can have;
//! * [`StateGeometry`]: layers, heads, types and value layout of a context's cache;
//! * [`BlobLayout`]: where each piece of a blob lies, for a geometry and a cell count;
//! * [`StateBlob`]: a checked blob, borrowed (works on mapped memory, copies nothing);
//! * [`SequenceState`]: the same, owned;
//! * [`BlobWriter`]: writes a blob from positions, key rows and values, streaming;
//! * [`transpose`]: the orders in which keys and values lie, and every way from one to another.
//!
//! The byte layout is described in `docs/formats/state-blob.md`.
#![forbid(unsafe_code)]

mod blob;
mod error;
mod finite;
mod geometry;
mod kv_type;
mod layout;
mod sequence;
mod tensor;
pub mod transpose;
mod writer;

#[cfg(test)]
mod tests;

pub use blob::StateBlob;
pub use error::{BlobError, GeometryError, NonFinite};
pub use finite::first_non_finite;
pub use geometry::{LayerGeometry, MAX_LAYERS, StateGeometry};
pub use kv_type::{KvType, UnknownKvType};
pub use layout::{BlobLayout, Segment, SegmentKind};
pub use sequence::SequenceState;
pub use tensor::{KvTensor, ValueLayout};
pub use writer::BlobWriter;
