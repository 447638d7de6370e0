//! Model tools: synthetic models, planted faults, the GGUF writer they share.

pub mod convert;
pub mod faults;
pub mod gguf_writer;
pub mod hf_folder;
pub mod hf_tensors;
pub mod hf_tokenizer;
pub mod inspect;
pub mod packing_evidence;
pub mod perplexity;
pub mod pull;
pub mod recording;
pub mod repack;
pub mod source;
pub mod staging;
pub mod synth;
pub mod ternary;
pub mod vocabulary;

pub use crate::atomic_file;
