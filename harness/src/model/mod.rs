//! Model tools: synthetic models, inspection.

pub mod gguf_writer;
pub mod synth;
pub mod vocabulary;
