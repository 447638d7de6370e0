//! Runs gates in child processes with a time limit: a native abort or a hang is that gate's FAIL, and the others
//! still run. Ctrl-C reaches the whole process group, so a child may end by it before this process has noticed: however
//! the two race, that is an interruption and never the gate's FAIL. Nor is what the host lacks: that gate is UNKNOWN.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::child::{Answer, PROGRESS};
use super::recorder::{SHORTAGE, finding};
use super::{GateId, GateInputs};
use crate::report::{Checks, FaultReport, GateReport, Severity, Verdict};
use files::children::{self, Ending, Input, Outcome, was_interrupted};
use files::scratch::Scratch;
use files::{process, shortage};
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
    /// The host lacks what the planted faults need, so that nothing is known of them.
    #[error("{0}")]
    Shortage(String),
}

impl RunnerError {
    /// Whether the host lacks something.
    fn is_shortage(&self) -> bool {
        match self {
            Self::Interrupted => false,
            Self::Shortage(_) => true,
            Self::Scratch(e) | Self::Start(e) => shortage::is_shortage(e),
        }
    }
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
        let (code, message, data) = match self.run(gate, inputs, false, progress) {
            Ok(done) => match parse(&done.output) {
                Some(Answer::Gate(report)) => return Ok(*report),
                _ => describe(&done, inputs),
            },
            Err(e) if e.is_shortage() => (SHORTAGE, e.to_string(), [("stderr", Value::from(Vec::<String>::new()))]),
            Err(e) => return Err(e),
        };
        let unmeasured = code == SHORTAGE;
        let severity = if unmeasured { Severity::Unmeasured } else { Severity::Failure };
        Ok(GateReport {
            id: gate.id().into(),
            title: gate.title().into(),
            verdict: if unmeasured { Verdict::Unknown } else { Verdict::Fail },
            summary: message.clone(),
            metrics: BTreeMap::new(),
            findings: vec![finding(severity, code, message, data)],
            checks: Checks { planned: 1, executed: u64::from(!unmeasured), failed: u64::from(!unmeasured) },
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
        match (parse(&done.output), describe(&done, inputs)) {
            (Some(Answer::Faults(faults)), _) => Ok(faults),
            (_, (SHORTAGE, message, _)) => Err(RunnerError::Shortage(message)),
            (_, (_, message, _)) => Ok(vec![super::fault(gate, "(all)", false, message)]),
        }
    }

    fn run(
        &self,
        gate: GateId,
        inputs: &GateInputs,
        plant: bool,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Outcome, RunnerError> {
        // What the child leaves when it is killed goes with this folder.
        let scratch = Scratch::new().map_err(RunnerError::Scratch)?;
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
        Ending::Exited(status) => {
            let how = match status.signal() {
                Some(signal) => format!("the process died of signal {signal} ({})", signal_name(signal)),
                None => format!("the process ended with code {} and no report", status.code().unwrap_or(-1)),
            };
            // The last words say why, in the process's own message or in the engine's.
            let why = inputs.shortage_in(&done.said);
            match (why, status.signal()) {
                (Some(why), _) => (SHORTAGE, format!("{how}: {why}"), data),
                // Nothing here sends it: the kernel does, where memory runs out, and people do.
                (None, Some(SIGKILL)) => {
                    (SHORTAGE, format!("{how}: it was killed from outside, as for want of memory"), data)
                }
                (None, Some(_)) => ("signal", how, data),
                (None, None) if status.code() == Some(process::SHORTAGE) => (SHORTAGE, how, data),
                (None, None) => ("no-answer", how, data),
            }
        }
    }
}

const SIGKILL: i32 = 9;

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
