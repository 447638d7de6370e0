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
mod context;
mod context_params;
mod cpu;
mod engine_log;
mod error;
pub mod gguf;
pub mod grammar;
mod ids;
pub mod kernels;
mod logits;
pub mod mapped;
pub mod memory;
mod model;
mod positions;
mod probe;
pub mod state;
mod status;
pub mod threads;
mod tokenizer;

pub use batch::Batch;
/// What was built: commits, compiler, flags, instruction sets.
pub use bitnet_sys::engine_info;
pub use cancel::CancelHandle;
pub use context::Context;
pub use context_params::{ContextParams, EffectiveParams, MAX_SEQUENCES, MAX_UBATCH};
pub use cpu::CpuFeatures;
pub use error::Error;
pub use ids::{Pos, SeqId, TokenId};
pub use logits::{Logits, greedy};
pub use model::{Model, ModelParams};
pub use positions::PositionSet;
pub use probe::{Probe, ProbedTensor};
pub use tokenizer::{MAX_TEXT, Special, TextStream};
