//! GGUF reader: bounds the whole header and tensor table before the engine sees the file.
//!
//! The engine's loader trusts its input: key lengths, counts, types and dimensions of a damaged
//! or hostile file end the process or ask for gigabytes, and some files load and decode nonsense.
//! Two steps stand before it, in pure Rust:
//!
//! 1. [`Gguf`]: the container is sound. Every count and length fits the file, every tensor lies
//!    inside it. [`Gguf::parse`] works on bytes, [`GgufFile::open`] reads only the header.
//! 2. [`ModelInfo`]: the engine can load this model and computes what the file means.
//!    Architecture, hyperparameters, tensor shapes and types, tokenizer.
//!    [`ModelFile::open`] does both.
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>; the engine's reading of
//! it: `gguf_init_from_file` in `ggml.c`, `llama_model_loader` in `llama.cpp`.
//!
//! ```no_run
//! use gguf::{Limits, ModelFile};
//!
//! let model = ModelFile::open("model.gguf", &Limits::default())?;
//! println!("{} layers", model.info().hyperparameters().n_layer);
//! println!("{}", model.info().arch_hash());
//! # Ok::<(), gguf::GgufError>(())
//! ```
#![forbid(unsafe_code)]

mod container;
mod data;
mod error;
mod file;
mod ggml_type;
mod hash;
mod header;
mod limits;
mod memory;
mod model;
mod sha256;
mod tensor;
mod tokenizer;
mod value;
pub mod writer;

#[cfg(any(test, feature = "fixtures"))]
pub mod fixture;
#[cfg(test)]
mod tests;

pub use container::Gguf;
pub use data::{DataSource, TernaryData};
pub use error::{GgufError, GgufWarning};
pub use file::{GgufFile, ModelFile};
pub use ggml_type::{GgmlType, I2_S_BLOCK, I2_S_ROWS, I2_S_TAIL};
pub use limits::Limits;
pub use model::{Architecture, Hyperparameters, ModelInfo, RopeInfo, RopeKind, RopeScaling};
pub use sha256::{ParseHashError, Sha256Hash};
pub use tensor::TensorInfo;
pub use tokenizer::{SpecialTokens, TokenizerInfo, TokenizerModel};
pub use value::{Array, Strings, Value, ValueType};
