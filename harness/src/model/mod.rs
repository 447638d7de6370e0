//! Model tools: synthetic models, planted faults, the GGUF writer they share.

pub mod faults;
pub mod gguf_writer;
pub mod inspect;
pub mod recording;
pub mod source;
pub mod synth;
pub mod vocabulary;

pub use crate::atomic_file;
