//! The gate suite: each gate measures one part of the premise and says PASS, FAIL or UNKNOWN.
//!
//! | gate | module | proves |
//! |---|---|---|
//! | 0 | [`first_light`] | the model loads and speaks at a sane speed |
//! | 1 | [`kernel`] | the ternary matrix product equals a reference |
//! | 2 | [`logits`] | logits match the HuggingFace reference |
//! | 3a | [`round_trip`] | a restored state decodes as the live one |
//! | 3b | [`bridge`] | KV that lay outside the engine reproduces |
//! | 4 | [`grammar`] | constrained output is always a valid tool call |
//! | 5 | [`agent`] | no side effect without opt-in |
//!
//! [`runner`] runs each in a child process with a time limit; thresholds are data ([`thresholds`]).

pub mod agent;
pub mod bridge;
pub mod child;
mod engine_trace;
pub mod first_light;
pub mod grammar;
pub mod kernel;
pub mod logits;
pub mod recorder;
pub mod round_trip;
pub mod runner;
pub mod thresholds;

use std::path::PathBuf;

use crate::report::{FaultReport, Finding, GateReport, Severity};
use files::children::Children;
use models::faults::FaultError;
use models::source::ModelSource;
use recorder::{Recorder, finding};
use thresholds::Thresholds;

/// A gate of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GateId {
    /// 0.
    FirstLight,
    /// 1.
    Kernel,
    /// 2.
    Model,
    /// 3a.
    RoundTrip,
    /// 3b.
    Bridge,
    /// 4.
    Grammar,
    /// 5.
    Agent,
}

impl GateId {
    /// In the order in which they run.
    pub const ALL: [Self; 7] =
        [Self::FirstLight, Self::Kernel, Self::Model, Self::RoundTrip, Self::Bridge, Self::Grammar, Self::Agent];

    /// As users name it.
    pub fn id(self) -> &'static str {
        match self {
            Self::FirstLight => "0",
            Self::Kernel => "1",
            Self::Model => "2",
            Self::RoundTrip => "3a",
            Self::Bridge => "3b",
            Self::Grammar => "4",
            Self::Agent => "5",
        }
    }

    /// What it proves, in a few words.
    pub fn title(self) -> &'static str {
        match self {
            Self::FirstLight => "first light",
            Self::Kernel => "ternary kernel exact",
            Self::Model => "model logits",
            Self::RoundTrip => "native state round trip",
            Self::Bridge => "external bridge",
            Self::Grammar => "tool grammar",
            Self::Agent => "agent boundary",
        }
    }

    /// The gate with that name.
    pub fn from_id(id: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|g| g.id() == id)
    }

    fn run(self, inputs: &GateInputs, rec: &mut Recorder) -> Result<(), GateError> {
        match self {
            Self::FirstLight => first_light::run(inputs, rec, first_light::Fault::None),
            Self::Kernel => kernel::run(inputs, rec),
            Self::Model => logits::run(inputs, rec, &logits::Fault::None),
            Self::RoundTrip => round_trip::run(inputs, rec),
            Self::Bridge => bridge::run(inputs, rec),
            Self::Grammar => grammar::run(inputs, rec),
            Self::Agent => agent::run(inputs, rec),
        }
    }

    fn self_check(self, inputs: &GateInputs, progress: &mut dyn FnMut(&str)) -> Result<Vec<FaultReport>, GateError> {
        Ok(match self {
            Self::FirstLight => first_light::self_check(inputs, progress),
            Self::Kernel => kernel::self_check(progress),
            Self::Model => logits::self_check(inputs, progress),
            Self::RoundTrip => round_trip::self_check(inputs, progress),
            Self::Bridge => bridge::self_check(inputs, progress)?,
            Self::Grammar => grammar::self_check(inputs, progress),
            Self::Agent => agent::self_check(progress),
        })
    }
}

/// What a gate run is given.
#[derive(Clone, Debug)]
pub struct GateInputs {
    /// The model under test.
    pub model: ModelSource,
    /// What starts processes of its own.
    pub children: Children,
    /// Compute threads.
    pub threads: u32,
    /// Plan a stated subset.
    pub quick: bool,
    /// Reference logits for gate 2, if not the embedded model's.
    pub reference: Option<PathBuf>,
    /// More agent cases for gate 5.
    pub cases: Option<PathBuf>,
    /// Thresholds.
    pub thresholds: Thresholds,
}

/// Why a gate could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GateError {
    /// The engine refused or failed.
    #[error(transparent)]
    Engine(#[from] bitnet_rs::Error),
    /// A file could not be read or written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The user interrupted a process of the gate; nothing is known about the model.
    #[error("interrupted")]
    Interrupted,
    /// Something that the gate's own arithmetic refused.
    #[error("{0}")]
    Other(String),
}

impl From<reference::i2s::I2sError> for GateError {
    fn from(e: reference::i2s::I2sError) -> Self {
        Self::Other(e.to_string())
    }
}

/// Runs one gate in this process. An error is that gate's FAIL, except where only the host lacks the means.
///
/// # Errors
/// [`GateError::Interrupted`]: there is nothing to report.
pub fn run_gate(gate: GateId, inputs: &GateInputs, progress: Box<dyn FnMut(&str)>) -> Result<GateReport, GateError> {
    let mut rec = Recorder::new(progress);
    rec.input("thresholds", "embedded", sha256(thresholds::TEXT.as_bytes()));
    if let Err(e) = gate.run(inputs, &mut rec) {
        let (severity, code) = match &e {
            GateError::Interrupted => return Err(e),
            GateError::Engine(bitnet_rs::Error::ContextMemory { .. }) => (Severity::Unmeasured, "not-enough-memory"),
            _ => (Severity::Failure, "error"),
        };
        rec.say(e.to_string());
        rec.finding(Finding { severity, ..finding(severity, code, e.to_string(), []) });
    }
    Ok(rec.finish(gate.id(), gate.title()))
}

/// Plants each of a gate's faults and reports which were caught. Each is derived from the model it is planted in, so
/// that it never coincides with what the model has anyway.
///
/// # Errors
/// [`GateError::Interrupted`].
pub fn self_check(
    gate: GateId,
    inputs: &GateInputs,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<FaultReport>, GateError> {
    gate.self_check(inputs, progress)
}

pub(crate) fn fault(gate: GateId, fault: &str, caught: bool, evidence: impl Into<String>) -> FaultReport {
    FaultReport {
        gate: gate.id().into(),
        fault: fault.into(),
        caught,
        not_applicable: false,
        evidence: evidence.into(),
    }
}

/// A fault that this model has no place for.
pub(crate) fn not_applicable(gate: GateId, name: &str, why: impl Into<String>) -> FaultReport {
    FaultReport { not_applicable: true, ..fault(gate, name, false, why) }
}

/// A copy with the fault could not be made: the model has no place for it, or something went wrong.
pub(crate) fn not_planted(gate: GateId, name: &str, e: &FaultError) -> FaultReport {
    if e.has_no_place() { not_applicable(gate, name, e.to_string()) } else { fault(gate, name, false, e.to_string()) }
}

/// `sha256:…` of bytes in memory.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    gguf::Sha256Hash::of(bytes).to_string()
}
