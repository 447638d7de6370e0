//! Runs gates in child processes with a time limit: a native abort or a hang is that gate's FAIL, and the others
//! still run. Ctrl-C reaches the whole process group, so a child may end by it before this process has noticed: however
//! the two race, that is an interruption and never the gate's FAIL.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::child::{Answer, PROGRESS, was_interrupted};
use super::recorder::finding;
use super::{GateId, GateInputs};
use crate::report::{Checks, FaultReport, GateReport, Severity, Verdict};
use models::source::ModelSource;

/// How to start a child.
#[derive(Clone, Debug)]
pub struct Launcher {
    /// This program.
    pub program: PathBuf,
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

enum Ending {
    Exited(ExitStatus),
    TimedOut,
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
        let (ending, output, tail) = self.run(gate, inputs, false, progress)?;
        if let Some(Answer::Gate(report)) = parse(&output) {
            return Ok(*report);
        }
        let (code, message, data) = describe(&ending, inputs, &tail);
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
        let (ending, output, tail) = self.run(gate, inputs, true, progress)?;
        Ok(match parse(&output) {
            Some(Answer::Faults(faults)) => faults,
            _ => vec![super::fault(gate, "(all)", false, describe(&ending, inputs, &tail).1)],
        })
    }

    fn run(
        &self,
        gate: GateId,
        inputs: &GateInputs,
        plant: bool,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(Ending, String, Vec<String>), RunnerError> {
        // What the child leaves when it is killed goes with this folder.
        let scratch = tempfile::Builder::new().prefix("bitnet-harness-").tempdir().map_err(RunnerError::Scratch)?;
        let _leftover = files::leftovers::remove_when_interrupted(scratch.path());
        let mut command = Command::new(&self.program);
        command.env("TMPDIR", scratch.path());
        command.args(["gate-child", "--gate", gate.id(), "--threads", &inputs.threads.to_string()]);
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
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(RunnerError::Start)?;
        let stdout = child.stdout.take();
        let output = std::thread::spawn(move || {
            let mut text = String::new();
            // A document that is no text is no answer; what was read is enough to say so.
            let _ = stdout.map(|mut s| s.read_to_string(&mut text));
            text
        });
        let (lines, incoming) = mpsc::channel();
        let stderr = child.stderr.take();
        let errors = std::thread::spawn(move || {
            for line in stderr.map(BufReader::new).into_iter().flat_map(|s| s.split(b'\n')).map_while(Result::ok) {
                let _ = lines.send(String::from_utf8_lossy(&line).into_owned());
            }
        });
        let limit = Duration::from_secs(inputs.thresholds.limits.gate_seconds);
        let mut tail = Vec::new();
        let ending = self.wait(&mut child, limit, &incoming, &mut tail, progress);
        let output = output.join().unwrap_or_default();
        let _ = errors.join();
        incoming.try_iter().for_each(|line| take_line(line, &mut tail, progress));
        let ending = ending?;
        // No signal of the kind was sent from here: `wait` kills, and a child's stdin ends with this process only.
        if let Ending::Exited(status) = &ending
            && was_interrupted(*status)
            && parse(&output).is_none()
        {
            return Err(RunnerError::Interrupted);
        }
        Ok((ending, output, tail))
    }

    fn wait(
        &self,
        child: &mut Child,
        limit: Duration,
        incoming: &mpsc::Receiver<String>,
        tail: &mut Vec<String>,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Ending, RunnerError> {
        let deadline = Instant::now() + limit;
        loop {
            match incoming.recv_timeout(Duration::from_millis(50)) {
                Ok(line) => take_line(line, tail, progress),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                // stderr is closed: the child is about to be gone.
                Err(mpsc::RecvTimeoutError::Disconnected) => std::thread::sleep(Duration::from_millis(5)),
            }
            if let Some(status) = child.try_wait().map_err(RunnerError::Start)? {
                return Ok(Ending::Exited(status));
            }
            let interrupted = self.interrupted.load(Ordering::SeqCst);
            if interrupted || Instant::now() >= deadline {
                let _ = child.kill();
                child.wait().map_err(RunnerError::Start)?;
                return if interrupted { Err(RunnerError::Interrupted) } else { Ok(Ending::TimedOut) };
            }
        }
    }
}

fn take_line(line: String, tail: &mut Vec<String>, progress: &mut dyn FnMut(&str)) {
    if let Some(what) = line.strip_prefix(PROGRESS) {
        progress(what);
    } else {
        if tail.len() == 20 {
            tail.remove(0);
        }
        tail.push(line);
    }
}

fn parse(output: &str) -> Option<Answer> {
    serde_json::from_str(output).ok()
}

fn describe(
    ending: &Ending,
    inputs: &GateInputs,
    tail: &[String],
) -> (&'static str, String, [(&'static str, Value); 1]) {
    let data = [("stderr", Value::from(tail.to_vec()))];
    match ending {
        Ending::TimedOut => {
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
