//! Safe wrapper over the pinned bitnet.cpp engine (llama.cpp fork with I2_S kernels).
//!
//! What would make the engine abort, read foreign memory or run unconstrained is refused here first, with an
//! error that names the argument, its value and the limit. `unsafe` lives in the few files that call
//! `bitnet-sys`, each block with its argument.
//!
//! ```no_run
//! use bitnet_rs::{Batch, Context, ContextParams, Model, ModelParams, Pos, SeqId, Special, greedy};
//!
//! # fn main() -> Result<(), bitnet_rs::Error> {
//! let model = Model::load("model.gguf", ModelParams::default())?;
//! let mut context = Context::new(&model, &ContextParams { n_ctx: 512, ..Default::default() })?;
//! let prompt = model.tokenize("Turn on the kitchen light.", Special::ContentWithBos)?;
//! let logits = context.decode(&Batch::prompt(&prompt, Pos::ZERO, SeqId::ZERO)?)?;
//! let next = greedy(logits.last()?);
//! # let _ = next;
//! # Ok(())
//! # }
//! ```

pub mod backend;
mod batch;
mod cancel;
mod constraint;
mod context;
mod context_params;
mod cpu;
mod engine_log;
mod error;
mod ids;
pub mod kernels;
mod logits;
pub mod memory;
mod model;
mod positions;
mod probe;
pub mod quantize;
mod sampler;
mod status;
pub mod threads;
mod tokenizer;

pub use batch::Batch;
// What the wrapper's own signatures speak of.
pub use {gguf, grammar, kv as state};

/// What was built: commits, compiler, flags, instruction sets.
pub use bitnet_sys::engine_info;
pub use cancel::CancelHandle;
pub use constraint::{Constraint, vocabulary_trie};
pub use context::Context;
pub use context_params::{ContextParams, EffectiveParams, MAX_SEQUENCES, MAX_UBATCH};
pub use cpu::CpuFeatures;
pub use error::Error;
pub use ids::{Pos, SeqId, TokenId};
pub use logits::{Logits, greedy};
pub use model::{Model, ModelParams};
pub use positions::PositionSet;
pub use probe::{Probe, ProbedTensor};
pub use sampler::{Sampler, SamplingParams};
pub use tokenizer::{MAX_TEXT, Special, TextStream};

/// What safe code must not compile to; each is a test of its own.
///
/// Rows of logits lie in the engine's buffer, which the next decode overwrites:
/// ```compile_fail
/// # use bitnet_rs::{Batch, Context, Error};
/// fn two(context: &mut Context, batch: &Batch) -> Result<f32, Error> {
///     let first = context.decode(batch)?;
///     let second = context.decode(batch)?;
///     Ok(first.last()?[0] + second.last()?[0])
/// }
/// ```
/// One after the other is fine:
/// ```
/// # use bitnet_rs::{Batch, Context, Error};
/// fn two(context: &mut Context, batch: &Batch) -> Result<f32, Error> {
///     let first = context.decode(batch)?.last()?[0];
///     let second = context.decode(batch)?.last()?[0];
///     Ok(first + second)
/// }
/// ```
/// Ids exist only if they were checked:
/// ```compile_fail
/// let _ = bitnet_rs::SeqId(-1);
/// ```
/// ```compile_fail
/// let _ = bitnet_rs::TokenId(7);
/// ```
/// A context is not shared between threads:
/// ```compile_fail
/// fn share(context: &bitnet_rs::Context) {
///     std::thread::scope(|s| {
///         s.spawn(|| context.free_cells());
///     });
/// }
/// ```
/// A state cannot be made of raw bytes without being parsed:
/// ```compile_fail
/// fn forge(context: &mut bitnet_rs::Context) {
///     let _ = context.restore(bitnet_rs::SeqId::ZERO, &[0u8; 64][..]);
/// }
/// ```
#[cfg(doctest)]
pub struct CompileFail;
