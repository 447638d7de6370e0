//! Recorded greedy continuations of the embedded model: what gate 0 compares with.

use serde::{Deserialize, Serialize};

/// The recording of the embedded model, made by `harness model record`.
pub const EMBEDDED: &str = include_str!("../../../gates/prompts/continuations.json");

/// A model's recorded behaviour.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    /// `sha256:…` of the model file; the recording is only used for it.
    pub model: String,
    /// Perplexity of the fixed passage.
    pub perplexity: f64,
    /// Prompts with their greedy continuations.
    pub prompts: Vec<Continuation>,
}

/// One prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Continuation {
    /// The text, markers allowed.
    pub prompt: String,
    /// The greedy tokens after it, up to and without the end of generation.
    pub tokens: Vec<i32>,
    /// Their text, for people.
    pub text: String,
}

impl Recording {
    /// The compiled-in recording.
    ///
    /// # Errors
    /// The JSON error; a test keeps the file readable.
    pub fn embedded() -> serde_json::Result<Self> {
        serde_json::from_str(EMBEDDED)
    }
}
