//! A model at work: chat templates, generation, mounted cartridges.
//!
//! ```no_run
//! use bitnet_rs::{Context, ContextParams, Model, ModelParams, SamplingParams, SeqId};
//! use session::{ChatTemplate, Event, Generator, GeneratorParams, Message, TemplateSandbox};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Model::load("model.gguf", ModelParams::default())?;
//! let mut context = Context::new(&model, &ContextParams::default())?;
//! let prompt = ChatTemplate::of_model(&model, &TemplateSandbox::InProcess)?.tokens(&model, &[Message::new("user", "Hello!")], true)?;
//! for event in Generator::new(&mut context, SeqId::ZERO, &prompt, GeneratorParams::default())? {
//!     if let Event::Token { text, .. } = event? {
//!         print!("{text}");
//!     }
//! }
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod draft;
mod generator;
mod mount;
pub mod scheduler;
mod selector;
mod session;
mod template;
pub mod template_process;

pub use draft::DraftCounts;
pub use generator::{Ending, Event, Generator, GeneratorParams, Validation};
pub use mount::{Mount, MountError, Mounted, capture, known_lock, lock_of};
pub use selector::{Selected, TokenSelector};
pub use session::{Answer, Conversation, Said, Session, SessionError, SessionParams};
pub use template::{ChatTemplate, Message};
pub use template_process::TemplateSandbox;

/// Texts up to this length are simply tokenized.
const SMALL: usize = 256 << 10;

/// Refuses a text that cannot fit the model's context however it is tokenized, before the engine spends a hundred
/// bytes of memory on each of its characters.
///
/// # Errors
/// [`GenerateError::TooLong`].
pub fn fits_context(model: &bitnet_rs::Model, bytes: usize) -> Result<(), GenerateError> {
    if bytes <= SMALL {
        return Ok(());
    }
    let mut longest = 1;
    for id in 0..model.n_vocab() {
        let token = model.token(i32::try_from(id).unwrap_or(i32::MAX))?;
        longest = longest.max(model.token_bytes(token, true)?.len());
    }
    let n_ctx_train = model.info().hyperparameters().n_ctx_train;
    if bytes > longest.saturating_mul(n_ctx_train as usize) {
        return Err(GenerateError::TooLong { bytes, n_ctx_train, longest });
    }
    Ok(())
}

/// Why nothing, or nothing more, was generated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// The engine refused or failed.
    #[error(transparent)]
    Engine(#[from] bitnet_rs::Error),
    /// The model carries no chat template and none was given.
    #[error("the model has no chat template; give one with --chat-template, or generate from a plain prompt")]
    NoTemplate,
    /// The chat template does not work.
    #[error("chat template: {0}")]
    Template(String),
    /// More text than any choice of tokens brings into the model's context.
    #[error("{bytes} bytes do not fit the model's context: {n_ctx_train} tokens of at most {longest} bytes each")]
    TooLong {
        /// Length of the text.
        bytes: usize,
        /// The model's context length.
        n_ctx_train: u32,
        /// Bytes of the vocabulary's longest token.
        longest: usize,
    },
    /// Drafts are verified in batches, and only with flash attention does the cache not depend on how a batch is split.
    #[error(
        "prompt-lookup drafts need flash attention, since without it the cache depends on the batch: create the context \
         with it, or draft nothing"
    )]
    DraftNeedsFlashAttention,
    /// A draft is verified by comparing it with the one token that greedy choice takes.
    #[error("prompt-lookup drafts need greedy choice: temperature 0 and no repeat penalty, or draft nothing")]
    DraftNeedsGreedy,
    /// The prompt is empty.
    #[error("empty prompt")]
    EmptyPrompt,
}
