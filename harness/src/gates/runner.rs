//! Runs gates in child processes with a time limit: a native abort or a hang is that gate's FAIL, and the others
//! still run. Ctrl-C reaches the whole process group, so a child may end by it before this process has noticed: however
//! the two race, that is an interruption and never the gate's FAIL.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::child::{Answer, PROGRESS};
use super::recorder::finding;
use super::{GateId, GateInputs};
use crate::report::{Checks, FaultReport, GateReport, Severity, Verdict};
use files::children::{self, Ending, Input, Outcome, was_interrupted};
use models::source::ModelSource;

/// How to start a child.
#[derive(Clone, Debug)]
pub struct Launcher {
    /// Set when the user interrupts.
    pub interrupted: Arc<AtomicBool>,
}

/// Why no report could be had at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunnerError {
    /// The user interrupted; children are gone.
    #[error("interrupted")]
    Interrupted,
    /// There is no place for its temporary files.
    #[error("cannot make a temporary folder for a gate (TMPDIR names another place): {0}")]
    Scratch(std::io::Error),
    /// A child could not be started.
    #[error("cannot start a gate process: {0}")]
    Start(std::io::Error),
}

impl Launcher {
    /// Runs a gate; always a report unless interrupted.
    ///
    /// # Errors
    /// [`RunnerError`].
    pub fn gate(
        &self,
        gate: GateId,
        inputs: &GateInputs,
        progress: &mut dyn FnMut(&str),
    ) -> Result<GateReport, RunnerError> {
        let started = Instant::now();
        let done = self.run(gate, inputs, false, progress)?;
        if let Some(Answer::Gate(report)) = parse(&done.output) {
            return Ok(*report);
        }
        let (code, message, data) = describe(&done, inputs);
        Ok(GateReport {
            id: gate.id().into(),
            title: gate.title().into(),
            verdict: Verdict::Fail,
            summary: message.clone(),
            metrics: BTreeMap::new(),
            findings: vec![finding(Severity::Failure, code, message, data)],
            checks: Checks { planned: 1, executed: 1, failed: 1 },
            inputs: Vec::new(),
            duration_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        })
    }

    /// Plants a gate's faults.
    ///
    /// # Errors
    /// [`RunnerError`].
    pub fn self_check(
        &self,
        gate: GateId,
        inputs: &GateInputs,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Vec<FaultReport>, RunnerError> {
        let done = self.run(gate, inputs, true, progress)?;
        Ok(match parse(&done.output) {
            Some(Answer::Faults(faults)) => faults,
            _ => vec![super::fault(gate, "(all)", false, describe(&done, inputs).1)],
        })
    }

    fn run(
        &self,
        gate: GateId,
        inputs: &GateInputs,
        plant: bool,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Outcome, RunnerError> {
        // What the child leaves when it is killed goes with this folder.
        let scratch = tempfile::Builder::new().prefix("bitnet-harness-").tempdir().map_err(RunnerError::Scratch)?;
        let _leftover = files::leftovers::remove_when_interrupted(scratch.path());
        let mut command = inputs.children.command("gate-child");
        command.env("TMPDIR", scratch.path());
        command.args(["--gate", gate.id(), "--threads", &inputs.threads.to_string()]);
        if let ModelSource::File(path) = &inputs.model {
            command.arg("--model").arg(path);
        }
        if let Some(path) = &inputs.reference {
            command.arg("--reference").arg(path);
        }
        if let Some(path) = &inputs.cases {
            command.arg("--cases").arg(path);
        }
        if inputs.quick {
            command.arg("--quick");
        }
        if plant {
            command.arg("--plant-faults");
        }
        let limit = Duration::from_secs(inputs.thresholds.limits.gate_seconds);
        let stop = || self.interrupted.load(Ordering::SeqCst);
        let mut take = |line: &str| line.strip_prefix(PROGRESS).map(&mut *progress).is_some();
        let done =
            children::run(&mut command, Input::Lifeline, Some(limit), &stop, &mut take).map_err(RunnerError::Start)?;
        match done.ending {
            Ending::Stopped => Err(RunnerError::Interrupted),
            // No signal of the kind was sent from here: only a kill, and a child's stdin ends with this process only.
            Ending::Exited(status) if was_interrupted(status) && parse(&done.output).is_none() => {
                Err(RunnerError::Interrupted)
            }
            _ => Ok(done),
        }
    }
}

fn parse(output: &str) -> Option<Answer> {
    serde_json::from_str(output).ok()
}

fn describe(done: &Outcome, inputs: &GateInputs) -> (&'static str, String, [(&'static str, Value); 1]) {
    let data = [("stderr", Value::from(done.said.clone()))];
    match done.ending {
        Ending::TimedOut | Ending::Stopped => {
            let seconds = inputs.thresholds.limits.gate_seconds;
            ("time-limit", format!("ended after {seconds} s without an answer (hang)"), data)
        }
        Ending::Exited(status) => match status.signal() {
            Some(signal) => ("signal", format!("the process died of signal {signal} ({})", signal_name(signal)), data),
            None => {
                let code = status.code().unwrap_or(-1);
                ("no-answer", format!("the process ended with code {code} and no report"), data)
            }
        },
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        15 => "SIGTERM",
        _ => "unnamed",
    }
}
