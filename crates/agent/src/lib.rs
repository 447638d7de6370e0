//! Agent boundary: model output is never a command.
//!
//! Text from a model is a *candidate*. It becomes a command only by passing deterministic stages,
//! and a plan acts only through an opt-in that no text can forge. The types say the order:
//!
//! ```text
//! UserInput ─guard→ GuardedInput ─source→ Candidate (untrusted)
//!   ─normalize→ NormalizedCommand ─ten gates→ GatedCommand ─planner→ ExecutionPlan (dry-run)
//!   ─recorded; gated again; ExecutePermit + Confirmation of its hash→ AuthorizedPlan ─→ Executor
//! ```
//!
//! Nothing to the right of `Candidate` can be deserialized, and no constructor is public.
//! `docs/agent-boundary.md` describes the stages and answers the weak points W1–W21 of the design
//! that this one improves on; `docs/how-to/agent.md` shows how to use it.
//!
//! ```
//! use std::sync::Arc;
//! use agent::{clock::SystemClock, freshness::SimulatedStates, guard::UserInput,
//!     pipeline::{Agent, AgentOptions, AgentParts}, policy::Policy, registry::Registry,
//!     source::RuleSource, store::Store, vocabulary::Decision};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut agent = Agent::new(
//!     AgentParts {
//!         registry: Registry::embedded()?,
//!         policy: Policy::embedded()?,
//!         store: Store::in_memory()?,
//!         clock: Arc::new(SystemClock),
//!         states: Arc::new(SimulatedStates::default()),
//!         source: Box::new(RuleSource),
//!     },
//!     AgentOptions::default(),
//! );
//! let output = agent.run(UserInput::new("turn off the kitchen light"))?;
//! assert_eq!(output.decision, Decision::Allow);
//! assert!(!output.executable, "a run executes nothing");
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod candidate;
pub mod cleaner;
pub mod clock;
pub mod command;
pub mod evaluation;
pub mod execute;
pub mod executor;
pub mod freshness;
pub mod gate_engine;
pub mod governor;
pub mod guard;
pub mod permit;
pub mod pipeline;
pub mod plan;
pub mod policy;
pub mod registry;
pub mod replay;
pub mod source;
pub mod store;
pub mod strict_json;
pub mod time_of_day;
pub mod vocabulary;

pub(crate) mod assess;
pub(crate) mod capability;
pub(crate) mod command_params;
pub(crate) mod fault;
pub(crate) mod grounding;
pub(crate) mod lexicon;
pub(crate) mod memory_write;
pub(crate) mod names;
pub(crate) mod numeral;
pub(crate) mod quantity;
pub(crate) mod reading;
pub(crate) mod recent_command;
pub(crate) mod rules;
pub(crate) mod sentence;
pub(crate) mod spans;
pub(crate) mod spoken_name;
pub mod text;
pub(crate) mod words;

#[cfg(test)]
mod weak_points;
