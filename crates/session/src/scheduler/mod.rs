//! Many requests on one context: continuous batching.
//!
//! One thread owns the context. Each step is one micro-batch: first the next token of every answer on its way, then a
//! piece of the prompts that wait. Requests come in through a bounded queue that is fair between their owners, and an
//! answer goes out as events while it is decoded.
//!
//! * A cartridge is mounted once; whoever uses it shares its cells (`llama_kv_cache_seq_cp`).
//! * A prompt that begins like an earlier one of the same owner is decoded from where the two part.
//! * Whoever cancels is gone within one micro-batch, in the queue, in the prompt and in the answer.
//! * An answer decoded beside others has other last digits than one decoded alone: float sums of several rows run in
//!   another order (up to 2e-4 in a log-probability of the embedded model). [`SchedulerParams::deterministic`] serves one
//!   request at a time with the bits of a [`Session`](crate::Session).
//!
//! ```no_run
//! use bitnet_rs::{Model, ModelParams, Special};
//! use session::scheduler::{Request, Scheduler, SchedulerParams, StreamEvent};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Model::load("model.gguf", ModelParams::default())?;
//! let scheduler = Scheduler::start(&model, SchedulerParams::default(), None)?;
//! let prompt = model.tokenize("The lamp", Special::ContentWithBos)?;
//! let (_ticket, events) = scheduler.submit_to_channel(Request::new(prompt))?;
//! for event in events {
//!     if let StreamEvent::Token { text, .. } = event {
//!         print!("{text}");
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod engine;
mod handle;
mod job;
mod output;
mod queue;
mod shared;
mod types;

pub use handle::{Scheduler, Ticket};
pub use job::Sink;
pub use types::{
    Failure, Observer, Padding, Refusal, Request, SchedulerParams, SharedCartridge, Stats, Step, StreamEvent,
    TokenLogprobs, Usage,
};
