//! Generation: chat templates, and the generator that an agent embeds.
//!
//! ```no_run
//! use bitnet_rs::{Context, ContextParams, Model, ModelParams, SamplingParams, SeqId};
//! use harness::generate::{ChatTemplate, Event, Generator, GeneratorParams, Message};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Model::load("model.gguf", ModelParams::default())?;
//! let mut context = Context::new(&model, &ContextParams::default())?;
//! let prompt = ChatTemplate::of_model(&model)?.tokens(&model, &[Message::new("user", "Hello!")], true)?;
//! for event in Generator::new(&mut context, SeqId::ZERO, &prompt, GeneratorParams::default())? {
//!     if let Event::Token { text, .. } = event? {
//!         print!("{text}");
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod candidate_source;
mod generator;
mod template;

pub use candidate_source::{Answers, CANDIDATE_SCHEMA, EngineSource};
pub use generator::{Ending, Event, Generator, GeneratorParams};
pub use template::{ChatTemplate, Message};

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
    /// The prompt is empty.
    #[error("empty prompt")]
    EmptyPrompt,
}
