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
mod gate;
pub mod grammar;
pub mod kernel;
pub mod logits;
pub mod recorder;
pub mod round_trip;
pub mod runner;
pub mod thresholds;

use crate::report::{FaultReport, Finding, GateReport, Severity};
use recorder::{Recorder, finding};

pub use gate::{GateError, GateId, GateInputs};
pub(crate) use gate::{fault, not_applicable, not_planted, sha256};

impl GateId {
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
            // A text of this gate is longer than the model's context: a property of the model, and no fault of it.
            GateError::Engine(bitnet_rs::Error::PositionPastTraining { .. }) => (Severity::Unmeasured, "short-context"),
            GateError::Unmeasurable { code, .. } => (Severity::Unmeasured, *code),
            e if e.is_host_shortage() => (Severity::Unmeasured, recorder::SHORTAGE),
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
