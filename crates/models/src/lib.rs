//! Model tools: fetch, convert, quantize, repack, inspect, measure, and plant faults.
#![forbid(unsafe_code)]

pub mod convert;
pub mod faults;
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
pub mod ternary;

pub use files::atomic_file;
