//! What goes into a scheduler and what comes out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bitnet_rs::{ContextParams, SamplingParams, TokenId};
use cartridge::{Cartridge, ModelLock};
use grammar::Language;

use crate::Ending;

/// Cells kept free for rows that only fill a micro-batch up.
pub(crate) const SPARE_CELLS: usize = 3;

/// Which micro-batches are filled up to a multiple of four rows.
///
/// The ternary matrices take four rows in one pass over the weights and each of the one to three left over in a pass of
/// its own. A row that fills up costs the rest of the network, so how many left-over rows are worth it is a matter of
/// the model and the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Padding {
    /// None.
    Off,
    /// Those with three rows left over.
    Three,
    /// Those with two or three rows left over.
    Two,
    /// Those with any rows left over, but never a lone row.
    Any,
}

impl Padding {
    /// How many rows to add to `rows`.
    #[must_use]
    pub fn rows(self, rows: usize) -> usize {
        let rest = rows % 4;
        let from = match self {
            Self::Off => return 0,
            Self::Three => 3,
            Self::Two => 2,
            Self::Any => 1,
        };
        if rest >= from && rows > 1 { 4 - rest } else { 0 }
    }
}

/// How to serve.
#[derive(Clone, Debug)]
pub struct SchedulerParams {
    /// The context; `n_seq_max` is set by the scheduler.
    pub context: ContextParams,
    /// Most answers that are decoded at once, 1 to 256.
    pub parallel: u32,
    /// Most requests that wait.
    pub queue: usize,
    /// Most cartridges that are mounted at once.
    pub mounts: u32,
    /// Most tokens of prompts in a micro-batch beside answers on their way. Without any, a micro-batch is as large as
    /// the context allows.
    pub prefill_budget: usize,
    /// Answer's length where a request has no limit of its own.
    pub default_max_tokens: usize,
    /// Which micro-batches are filled up.
    pub padding: Padding,
    /// One request at a time, from an empty cache, split as a [`Session`](crate::Session) splits: the same bits.
    pub deterministic: bool,
}

impl Default for SchedulerParams {
    fn default() -> Self {
        Self {
            context: ContextParams::default(),
            parallel: 4,
            queue: 64,
            mounts: 4,
            prefill_budget: 32,
            default_max_tokens: 512,
            padding: Padding::Three,
            deterministic: false,
        }
    }
}

/// A cartridge that requests can name, with the lock of the model that it is mounted under. Two requests share its
/// cells if they name the same value (`Arc::ptr_eq`).
#[derive(Debug)]
pub struct SharedCartridge {
    /// The file.
    pub cartridge: Cartridge,
    /// The model's lock.
    pub lock: ModelLock,
}

/// What to answer.
#[derive(Clone, Debug)]
pub struct Request {
    /// Whose request it is: waiting is fair between owners, and prompts are only shared within one.
    pub owner: u64,
    /// Tokens behind the cartridge, or from the start.
    pub prompt: Vec<TokenId>,
    /// What is mounted under the prompt.
    pub cartridge: Option<Arc<SharedCartridge>>,
    /// How many answers; the n-th has the seed of the first plus n.
    pub choices: u32,
    /// How to choose tokens.
    pub sampling: SamplingParams,
    /// Most tokens of each answer. More than fit are cut to what fits.
    pub max_tokens: Option<usize>,
    /// Texts that end an answer; they are not part of it.
    pub stop: Vec<String>,
    /// Each answer is a sentence of this grammar or a value of this schema, or incomplete. A schema that its grammar does
    /// not decide alone is judged at the end: there is no second try.
    pub grammar: Option<Language>,
    /// The grammar binds only an answer whose first byte is this one; any other answer is free text. Stop texts do not
    /// cut an answer that is bound.
    pub grammar_behind: Option<u8>,
    /// Log-probabilities of each token, and of so many of the likeliest ones in its place.
    pub logprobs: Option<usize>,
    /// When to give up.
    pub deadline: Option<Instant>,
}

impl Request {
    /// One greedy answer to `prompt`.
    #[must_use]
    pub fn new(prompt: Vec<TokenId>) -> Self {
        Self {
            owner: 0,
            prompt,
            cartridge: None,
            choices: 1,
            sampling: SamplingParams::default(),
            max_tokens: None,
            stop: Vec::new(),
            grammar: None,
            grammar_behind: None,
            logprobs: None,
            deadline: None,
        }
    }
}

/// Log-probabilities in the place of one token, under the model, before masks and samplers.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Of the token itself.
    pub chosen: f64,
    /// The likeliest tokens, best first.
    pub top: Vec<(TokenId, f64)>,
}

/// Tokens that a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Cells that the cartridge stands for.
    pub cartridge_tokens: usize,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of those, the ones that were in the cache already.
    pub reused_tokens: usize,
    /// Tokens of all answers.
    pub completion_tokens: usize,
}

/// What happens to a request.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum StreamEvent {
    /// It has left the queue.
    Begun {
        /// With no tokens of an answer yet.
        usage: Usage,
    },
    /// One token of one answer.
    Token {
        /// Which answer.
        choice: u32,
        /// The token.
        id: TokenId,
        /// The text that it completes; may be empty.
        text: String,
        /// Where they were asked for.
        logprobs: Option<TokenLogprobs>,
    },
    /// One answer has ended.
    End {
        /// Which answer.
        choice: u32,
        /// Why.
        ending: Ending,
        /// With a grammar: is it a sentence of it? Without: `true` unless it was cut.
        complete: bool,
        /// Text that was held back because a stop text might have begun.
        text: String,
    },
    /// All answers have ended; the last event.
    Done {
        /// What it took.
        usage: Usage,
    },
    /// It ends without an answer; the last event.
    Failed(Failure),
}

/// Why a request that was taken was not answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// Its deadline passed before its first token.
    #[error("the deadline passed before the answer began")]
    Deadline,
    /// The scheduler was stopped, or the request was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// The cartridge was not mounted.
    #[error("the cartridge was not mounted: {0}")]
    Mount(String),
    /// The engine failed; its cache was emptied, and the next request finds it sound.
    #[error("the engine failed: {0}")]
    Engine(String),
    /// The answer could not go on: a dead end of its grammar, or logits that are no numbers.
    #[error("no token can be chosen: {0}")]
    Choice(String),
}

/// Why a request was not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// As many requests wait as may.
    #[error("{waiting} requests are waiting, as many as may; try again later")]
    QueueFull {
        /// How many.
        waiting: usize,
    },
    /// The scheduler is stopping.
    #[error("the server is stopping")]
    Stopping,
    /// The prompt is empty.
    #[error("empty prompt")]
    EmptyPrompt,
    /// Prompt and cartridge leave no room for an answer.
    #[error("{tokens} tokens of prompt and cartridge; at most {limit} leave room for the answer")]
    TooLong {
        /// What they need.
        tokens: usize,
        /// What may be needed.
        limit: usize,
    },
    /// More answers than the scheduler decodes at once.
    #[error("{asked} answers at once; at most {limit} are decoded beside each other")]
    TooManyChoices {
        /// Asked for.
        asked: u32,
        /// Possible.
        limit: u32,
    },
    /// A parameter of the sampler, or a grammar.
    #[error(transparent)]
    Engine(#[from] bitnet_rs::Error),
}

/// What a step of the scheduler did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Rows of answers.
    pub decode_rows: usize,
    /// Tokens of prompts.
    pub prefill_rows: usize,
    /// Rows that only fill up.
    pub padding_rows: usize,
    /// How long the engine took.
    pub time: Duration,
}

/// Sees what the scheduler does. Called from its thread: it should only count.
pub trait Observer: Send + Sync {
    /// One micro-batch was decoded.
    fn step(&self, _step: &Step) {}
    /// A request began so long after it was submitted.
    fn waited(&self, _time: Duration) {}
    /// The first token of a request came so long after it was submitted.
    fn first_token(&self, _time: Duration) {}
    /// A further token came so long after the one before.
    fn next_token(&self, _time: Duration) {}
    /// A request with a cartridge began, which was mounted already or not.
    fn cartridge(&self, _mounted_already: bool) {}
    /// A request has ended.
    fn ended(&self, _usage: &Usage) {}
}

pub(crate) struct Silent;
impl Observer for Silent {}

/// How the scheduler stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests that wait.
    pub waiting: usize,
    /// Answers on their way.
    pub running: usize,
    /// Sequences that keep an ended conversation for its next turn; they are taken when others need them.
    pub kept: usize,
    /// Mounted cartridges.
    pub mounted: usize,
    /// Free cells.
    pub free_cells: usize,
    /// Cells in all.
    pub n_ctx: usize,
}

#[cfg(test)]
mod tests {
    use super::Padding;

    #[test]
    fn padding_fills_fours_and_never_a_lone_row() {
        let rows = |p: Padding| (0..9).map(|n| p.rows(n)).collect::<Vec<_>>();
        assert_eq!(rows(Padding::Off), [0; 9]);
        assert_eq!(rows(Padding::Three), [0, 0, 0, 1, 0, 0, 0, 1, 0]);
        assert_eq!(rows(Padding::Two), [0, 0, 2, 1, 0, 0, 2, 1, 0]);
        assert_eq!(rows(Padding::Any), [0, 0, 2, 1, 0, 3, 2, 1, 0]);
    }
}
