//! What runs inside a gate's child process.
//!
//! The child writes one JSON document to stdout and progress lines to stderr. It ends when its stdin closes, so
//! that no gate outlives the runner, however that one ends.

use std::io::{Read, Write};

use serde::{Deserialize, Serialize};

use super::{GateError, GateId, GateInputs, run_gate, self_check};
use crate::exit::Exit;
use crate::report::{FaultReport, GateReport};

/// The child's answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// A gate's report.
    Gate(Box<GateReport>),
    /// Its planted faults.
    Faults(Vec<FaultReport>),
}

/// Runs the gate, or plants its faults, and returns the answer.
///
/// # Errors
/// [`GateError::Interrupted`], [`GateError::Io`] where no thread can be made.
pub fn answer(gate: GateId, inputs: &GateInputs, plant: bool) -> Result<Answer, GateError> {
    die_with_parent()?;
    // Nobody may be reading any more: that is no reason to panic on the way out.
    let say = move |what: &str| drop(writeln!(std::io::stderr(), "{PROGRESS}{what}"));
    if plant {
        self_check(gate, inputs, &mut |what| say(what)).map(Answer::Faults)
    } else {
        run_gate(gate, inputs, Box::new(say)).map(|report| Answer::Gate(Box::new(report)))
    }
}

/// Starts every progress line, so that the runner can tell it from other output.
pub const PROGRESS: &str = "\u{1}progress ";

/// Ends this process when its stdin closes.
///
/// # Errors
/// Where no thread can be made to watch it: a gate that might outlive its runner is not run.
pub fn die_with_parent() -> std::io::Result<()> {
    let watch = || {
        let mut sink = [0u8; 64];
        while std::io::stdin().read(&mut sink).is_ok_and(|n| n > 0) {}
        files::process::leave(Exit::Interrupted as i32);
    };
    std::thread::Builder::new().spawn(watch).map(drop)
}
