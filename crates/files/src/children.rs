//! Work in processes of its own: one protocol for whatever may die, hang or grow beyond its memory.
//!
//! A child is this program again, with a hidden command as its first argument. It answers on stdout and reports on
//! stderr, a line at a time. Its stdin is either the question, or a lifeline: a pipe that closes when the parent is
//! gone, however it ended.

use std::ffi::OsStr;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Lines of stderr that are kept for an explanation.
const TAIL: usize = 20;

/// The program that is started for work in a process of its own. A library does not guess it: who made the process
/// hands it in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Children {
    program: PathBuf,
}

/// What a child finds on its stdin.
#[derive(Debug)]
pub enum Input {
    /// These bytes, then the end.
    Bytes(Vec<u8>),
    /// Nothing, and the end only when this process ends.
    Lifeline,
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// By itself, or by a signal.
    Exited(ExitStatus),
    /// It was killed at the time limit.
    TimedOut,
    /// It was killed because the caller wanted to stop.
    Stopped,
}

/// What a child did.
#[derive(Debug)]
pub struct Outcome {
    /// How it ended.
    pub ending: Ending,
    /// What it wrote to stdout; text that is not UTF-8 ends it.
    pub output: String,
    /// Its last lines on stderr, without those that were taken.
    pub said: Vec<String>,
}

impl Children {
    /// Children that are started from `program`.
    pub fn of(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into() }
    }

    /// The program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// A command of the program, to be completed and given to [`run`].
    pub fn command(&self, name: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(name);
        command
    }
}

/// Signals by which a user ends a program: SIGHUP, SIGINT and SIGTERM.
const INTERRUPTS: [i32; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM];
/// What a program ends with that was interrupted in an orderly way: 128 and SIGINT's number, as shells count.
pub const INTERRUPTED: i32 = 130;

/// Did a process end because the user ended it? By the signal itself, where it came before a handler was there, or by
/// the handler's exit code.
pub fn was_interrupted(status: ExitStatus) -> bool {
    status.code() == Some(INTERRUPTED) || status.signal().is_some_and(|s| INTERRUPTS.contains(&s))
}

/// Runs a child to its end, or kills it at the time limit or as soon as `stop` says so.
///
/// Each line on stderr is offered to `take`; one that it does not take is kept for [`Outcome::said`].
///
/// # Errors
/// The system's, when the child, or a thread that serves it, cannot be started or waited for.
pub fn run(
    command: &mut Command,
    input: Input,
    limit: Option<Duration>,
    stop: &dyn Fn() -> bool,
    take: &mut dyn FnMut(&str) -> bool,
) -> io::Result<Outcome> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let stdin = child.stdin.take();
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();
    let (lines, incoming) = mpsc::channel();
    let served = serve(input, stdin, stdout, stderr, lines);
    let (lifeline, output, errors) = match served {
        Ok(served) => served,
        Err(e) => {
            // Nobody would hear it.
            let _ = child.kill();
            child.wait()?;
            return Err(e);
        }
    };
    let mut said = Vec::new();
    let mut line = |line: String| {
        if !take(&line) {
            if said.len() == TAIL {
                said.remove(0);
            }
            said.push(line);
        }
    };
    let ending = wait(&mut child, limit, stop, &incoming, &mut line);
    drop(lifeline);
    let output = output.join().unwrap_or_default();
    let _ = errors.join();
    incoming.try_iter().for_each(&mut line);
    Ok(Outcome { ending: ending?, output, said })
}

/// The threads that hold a child's pipes: its input is fed, or held open, and its outputs are read.
type Served = (Option<ChildStdin>, JoinHandle<String>, JoinHandle<()>);

fn serve(
    input: Input,
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    lines: mpsc::Sender<String>,
) -> io::Result<Served> {
    let lifeline = match input {
        Input::Lifeline => stdin,
        Input::Bytes(bytes) => {
            // A child that dies before it has read everything says so by its ending; the broken pipe is the lesser news.
            thread::Builder::new().spawn(move || stdin.map(|mut pipe| pipe.write_all(&bytes)))?;
            None
        }
    };
    let output = thread::Builder::new().spawn(move || {
        let mut text = String::new();
        // What was read up to an error is enough to show that it is not an answer.
        let _ = stdout.map(|mut s| s.read_to_string(&mut text));
        text
    })?;
    let errors = thread::Builder::new().spawn(move || {
        for line in stderr.map(BufReader::new).into_iter().flat_map(|s| s.split(b'\n')).map_while(Result::ok) {
            // Nobody listens only once the child is given up.
            let _ = lines.send(String::from_utf8_lossy(&line).into_owned());
        }
    })?;
    Ok((lifeline, output, errors))
}

fn wait(
    child: &mut Child,
    limit: Option<Duration>,
    stop: &dyn Fn() -> bool,
    incoming: &mpsc::Receiver<String>,
    line: &mut dyn FnMut(String),
) -> io::Result<Ending> {
    let started = Instant::now();
    loop {
        match incoming.recv_timeout(Duration::from_millis(50)) {
            Ok(text) => line(text),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            // stderr is closed: the child is about to be gone.
            Err(mpsc::RecvTimeoutError::Disconnected) => thread::sleep(Duration::from_millis(5)),
        }
        if let Some(status) = child.try_wait()? {
            return Ok(Ending::Exited(status));
        }
        let stopped = stop();
        if stopped || limit.is_some_and(|limit| started.elapsed() >= limit) {
            // It may have ended by itself in between.
            let _ = child.kill();
            child.wait()?;
            return Ok(if stopped { Ending::Stopped } else { Ending::TimedOut });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn shell(script: &str, input: Input, limit: Option<Duration>, stop: &dyn Fn() -> bool) -> Outcome {
        let mut command = Children::of("/bin/sh").command("-c");
        run(command.arg(script), input, limit, stop, &mut |line| line.starts_with("take")).unwrap()
    }

    #[test]
    fn it_answers_what_it_was_asked_and_its_reports_are_sorted() {
        let done =
            shell("cat; echo take this >&2; echo why >&2; exit 3", Input::Bytes(b"question".to_vec()), None, &|| false);
        assert_eq!((done.output.as_str(), done.said), ("question", vec!["why".to_owned()]));
        assert!(matches!(done.ending, Ending::Exited(status) if status.code() == Some(3)));
    }

    /// More than a pipe holds, in both directions.
    #[test]
    fn large_questions_and_answers_do_not_block_each_other() {
        let question = vec![b'q'; 4 << 20];
        let done = shell("cat", Input::Bytes(question.clone()), None, &|| false);
        assert_eq!(done.output.into_bytes(), question);
    }

    #[test]
    fn a_child_that_does_not_read_is_judged_by_how_it_ended() {
        let done = shell("kill -SEGV $$", Input::Bytes(vec![0; 1 << 20]), None, &|| false);
        assert!(matches!(done.ending, Ending::Exited(status) if status.signal() == Some(11)));
    }

    #[test]
    fn only_the_last_lines_are_kept() {
        let done = shell("for i in $(seq 1 50); do echo $i >&2; done", Input::Lifeline, None, &|| false);
        assert_eq!(done.said, (31..=50).map(|i| i.to_string()).collect::<Vec<_>>());
    }

    /// Each script would go on for ever.
    #[test]
    fn a_hang_ends_at_the_limit_and_at_a_stop() {
        let hang = "echo part; exec sleep 1000";
        let done = shell(hang, Input::Lifeline, Some(Duration::from_millis(200)), &|| false);
        assert_eq!((done.ending, done.output.as_str()), (Ending::TimedOut, "part\n"));
        let stopped = AtomicBool::new(false);
        let done = shell(hang, Input::Lifeline, None, &|| stopped.swap(true, Ordering::SeqCst));
        assert_eq!(done.ending, Ending::Stopped);
    }

    /// By a shell that ends itself so.
    #[test]
    fn a_crash_is_no_interruption() {
        let of = |script: &str| match shell(script, Input::Lifeline, None, &|| false).ending {
            Ending::Exited(status) => was_interrupted(status),
            other => panic!("{other:?}"),
        };
        assert!(of("exit 130"));
        for signal in ["HUP", "INT", "TERM"] {
            // Who started the tests may ignore it, as nohup and a shell's background jobs do, and a shell cannot undo that.
            let script = format!("exec env --default-signal={signal} sh -c 'kill -{signal} $$'");
            assert!(of(&script), "{script}");
        }
        for script in ["exit 0", "exit 1", "exit 101", "kill -ABRT $$", "kill -SEGV $$", "kill -KILL $$"] {
            assert!(!of(script), "{script}");
        }
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        let mut command = Children::of("/nowhere/program").command("x");
        let error = run(&mut command, Input::Lifeline, None, &|| false, &mut |_| false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
