//! One hostile input: how it is fed, what must come of it, and the process it runs in.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Address space of a child, KiB: what a refusal needs is small whatever the input claims, and a child that takes
/// more dies, which is a failure. Not under sanitizers (`make sanitize`): their shadow memory wants terabytes.
fn address_space() -> &'static str {
    if is_sanitized() { "unlimited" } else { "1048576" }
}

fn is_sanitized() -> bool {
    !bitnet_rs::engine_info::SANITIZE.is_empty()
}
/// Time for one input: what hangs, hangs for ever, and what is only slow on a busy machine must not be taken for it.
const LIMIT: Duration = Duration::from_secs(300);

/// What must come of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Exit code 4, or 2 for what is wrong with the command line; a message on stderr, nothing on stdout.
    Refused(i32),
    /// Exit code 4 with the decision on stdout: the agent denies by saying so.
    Denied,
    /// It works, or ends in a documented other way.
    Ends(i32),
    /// Any documented ending: the input may or may not make sense.
    Any,
    /// Refused, wrong usage or tried in vain: which of them is not the point.
    NotWell,
    /// It works, or is refused with one of these words on stderr.
    WorksOrNames(Vec<String>),
}

/// Changes the folder of the input before it is run.
type Prepare = Box<dyn Fn(&Path) + Send + Sync>;

/// The program that is fed.
enum Program {
    Harness(Vec<OsString>),
    /// A library call in a child of this test binary (calls.rs).
    Call(&'static str),
}

/// One input.
pub(crate) struct Attempt {
    pub(crate) area: &'static str,
    pub(crate) name: String,
    program: Program,
    files: Vec<(String, Vec<u8>)>,
    prepare: Option<Prepare>,
    stdin: Vec<u8>,
    limits: String,
    stderr_to: Option<&'static str>,
    stdout_to: Option<&'static str>,
    environment: Vec<(&'static str, OsString)>,
    outcome: Outcome,
    says: Vec<String>,
    creates: Option<&'static str>,
    may_leave: Option<&'static str>,
}

/// `harness` with arguments; it is to be accepted unless something else is said.
pub(crate) fn harness<I: IntoIterator<Item: AsRef<OsStr>>>(
    area: &'static str,
    name: impl Into<String>,
    args: I,
) -> Attempt {
    let args = args.into_iter().map(|a| a.as_ref().to_owned()).collect();
    Attempt::new(area, name.into(), Program::Harness(args))
}

/// A library call by its name.
pub(crate) fn call(name: &'static str) -> Attempt {
    Attempt::new("calls", name.into(), Program::Call(name))
}

impl Attempt {
    fn new(area: &'static str, name: String, program: Program) -> Self {
        Self {
            area,
            name,
            program,
            files: Vec::new(),
            prepare: None,
            stdin: Vec::new(),
            limits: String::new(),
            stderr_to: None,
            stdout_to: None,
            environment: Vec::new(),
            outcome: Outcome::Ends(0),
            says: Vec::new(),
            creates: None,
            may_leave: None,
        }
    }

    /// A file in the folder that the child works in.
    pub(crate) fn file(mut self, name: &str, bytes: impl Into<Vec<u8>>) -> Self {
        self.files.push((name.into(), bytes.into()));
        self
    }

    /// Its files.
    pub(crate) fn files(&self) -> &[(String, Vec<u8>)] {
        &self.files
    }

    /// Links, pipes and the like, made before the child starts.
    pub(crate) fn prepare(mut self, make: impl Fn(&Path) + Send + Sync + 'static) -> Self {
        self.prepare = Some(Box::new(make));
        self
    }

    pub(crate) fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = bytes.into();
        self
    }

    /// Shell commands before the child, such as `ulimit -f 8`.
    pub(crate) fn limits(mut self, shell: &str) -> Self {
        self.limits = shell.into();
        self
    }

    pub(crate) fn stderr_to(mut self, path: &'static str) -> Self {
        self.stderr_to = Some(path);
        self
    }

    pub(crate) fn stdout_to(mut self, path: &'static str) -> Self {
        self.stdout_to = Some(path);
        self
    }

    pub(crate) fn env(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// Refused as input (4), with this on stderr.
    pub(crate) fn refused(self, says: &str) -> Self {
        self.outcome(Outcome::Refused(4), says)
    }

    /// Refused as usage (2), with this on stderr.
    pub(crate) fn usage(self, says: &str) -> Self {
        self.outcome(Outcome::Refused(2), says)
    }

    /// The agent's refusal: exit code 4 and a decision on stdout.
    pub(crate) fn denied(self) -> Self {
        self.outcome(Outcome::Denied, "")
    }

    /// Ends with this code and says this on stderr.
    pub(crate) fn ends(self, code: i32, says: &str) -> Self {
        self.outcome(Outcome::Ends(code), says)
    }

    /// Ends in any documented way; only a signal, a panic or a leftover is wrong.
    pub(crate) fn ends_any(self) -> Self {
        self.outcome(Outcome::Any, "")
    }

    /// Does not do what was asked, and says why.
    pub(crate) fn ends_not_well(self) -> Self {
        self.outcome(Outcome::NotWell, "error: ")
    }

    /// Works, or is refused by a name: stderr has one of `names`.
    pub(crate) fn works_or_names(self, names: Vec<String>) -> Self {
        self.outcome(Outcome::WorksOrNames(names), "")
    }

    /// Another name than that of the fixture.
    pub(crate) fn named(mut self, name: String) -> Self {
        self.name = name;
        self
    }

    /// May leave, change or take this file.
    pub(crate) fn may_leave(mut self, name: &'static str) -> Self {
        self.may_leave = Some(name);
        self
    }

    /// Leaves this file.
    pub(crate) fn creates(mut self, name: &'static str) -> Self {
        self.creates = Some(name);
        self
    }

    fn outcome(mut self, outcome: Outcome, says: &str) -> Self {
        self.outcome = outcome;
        if !says.is_empty() {
            self.says.push(says.into());
        }
        self
    }

    /// Can it be tried in this build? A process that bounds its own address space does not start under sanitizers.
    pub(crate) fn can_run(&self) -> bool {
        let renders = matches!(&self.program, Program::Harness(args) if args.iter().any(|a| a == "--chat-template"));
        !is_sanitized() || !renders && !self.limits.contains("ulimit -v")
    }

    /// Was it meant to be refused?
    pub(crate) fn is_refusal(&self) -> bool {
        !matches!(self.outcome, Outcome::Ends(0) | Outcome::Any | Outcome::WorksOrNames(_))
    }

    fn command(&self, folder: &Path, temporary: &Path) -> Command {
        let mut command = Command::new("/bin/sh");
        let script = format!("ulimit -c 0; ulimit -v {}; {}\nexec \"$@\"", address_space(), self.limits);
        command.arg("-c").arg(script).arg("sh");
        match &self.program {
            Program::Harness(args) => {
                command.arg(env!("CARGO_BIN_EXE_harness")).args(args);
            }
            Program::Call(name) => {
                command.arg(std::env::current_exe().unwrap());
                command.args(["--ignored", "--exact", "calls::child", "--nocapture"]).env("HOSTILE_CALL", name);
            }
        }
        command.current_dir(folder).env("TMPDIR", temporary).env("HOME", folder).env_remove("XDG_STATE_HOME");
        command.env_remove("BITNET_LOG").env("RUST_BACKTRACE", "0");
        for (name, value) in &self.environment {
            command.env(name, value);
        }
        command
    }

    /// Runs it; `Err` says what is wrong, `Ok` is what it said on stderr.
    pub(crate) fn run(&self) -> Result<String, String> {
        let scratch = tempfile::tempdir().map_err(|e| e.to_string())?;
        let (folder, temporary) = (scratch.path().join("work"), scratch.path().join("tmp"));
        for made in [&folder, &temporary] {
            std::fs::create_dir(made).map_err(|e| e.to_string())?;
        }
        for (name, bytes) in &self.files {
            std::fs::write(folder.join(name), bytes).map_err(|e| e.to_string())?;
        }
        if let Some(make) = &self.prepare {
            make(&folder);
        }
        let mut before = listing(&folder);
        let ended = self.spawn_and_wait(&folder, &temporary, scratch.path())?;
        self.judge(&ended)?;
        let mut after = listing(&folder);
        if let Some(name) = self.creates {
            let old = before.remove(Path::new(name));
            match after.remove(Path::new(name)) {
                Some(new) if old.as_ref() != Some(&new) => {}
                _ => return Err(format!("{name} was not written")),
            }
        }
        if let Some(name) = self.may_leave {
            before.remove(Path::new(name));
            after.remove(Path::new(name));
        }
        if before != after {
            return Err(format!("the folder changed: {before:?} is now {after:?}"));
        }
        let left = listing(&temporary);
        if left.is_empty() { Ok(ended.stderr) } else { Err(format!("left in TMPDIR: {left:?}")) }
    }

    fn spawn_and_wait(&self, folder: &Path, temporary: &Path, scratch: &Path) -> Result<Ended, String> {
        // Files, not pipes: nothing blocks however much is said.
        let open = |path: &Path| std::fs::File::create(path).map_err(|e| e.to_string());
        let (out, err) = (scratch.join("stdout"), scratch.join("stderr"));
        let device = |path: &'static str| std::fs::OpenOptions::new().write(true).open(path).map_err(|e| e.to_string());
        let mut command = self.command(folder, temporary);
        command.stdin(Stdio::piped());
        command.stdout(self.stdout_to.map_or_else(|| open(&out), device)?);
        command.stderr(self.stderr_to.map_or_else(|| open(&err), device)?);
        let mut child = command.spawn().map_err(|e| e.to_string())?;
        let stdin = child.stdin.take();
        let feed = self.stdin.clone();
        // A child that refuses early does not read: the pipe breaks, and that is fine.
        let feeder = std::thread::spawn(move || stdin.map(|mut pipe| pipe.write_all(&feed)));
        let started = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
                break status;
            }
            if started.elapsed() > LIMIT {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("no end after {} s", LIMIT.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(3));
        };
        let _ = feeder.join();
        let text = |path: &Path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
        Ok(Ended { code: status.code(), signal: status.signal(), stdout: text(&out), stderr: text(&err) })
    }

    fn judge(&self, ended: &Ended) -> Result<(), String> {
        let Ended { code, signal, stdout, stderr } = ended;
        let tail = || stderr.chars().take(600).collect::<String>();
        if let Some(signal) = signal {
            return Err(format!("SIGNAL {signal}: {}", tail()));
        }
        if stderr.contains("panicked at") || stdout.contains("panicked at") {
            return Err(format!("panic: {}", tail()));
        }
        let expected: &[i32] = match &self.outcome {
            Outcome::Refused(code) | Outcome::Ends(code) => std::slice::from_ref(code),
            Outcome::Denied => &[4],
            Outcome::Any => &[0, 1, 2, 3, 4, 5],
            Outcome::NotWell => &[1, 2, 4],
            Outcome::WorksOrNames(_) => &[0, 2, 3, 4, 5],
        };
        if !code.is_some_and(|code| expected.contains(&code)) {
            return Err(format!("exit code {code:?}, expected {expected:?}: {}", tail()));
        }
        if let Outcome::WorksOrNames(names) = &self.outcome
            && matches!(code, Some(2 | 4))
            && !names.iter().any(|name| stderr.contains(name))
        {
            return Err(format!("exit code {code:?} without any of {names:?}: {}", tail()));
        }
        // The limit of this suite, reached without having been asked for.
        if !self.limits.contains("ulimit -v") && stderr.contains("error: out of memory") {
            return Err(format!("memory ran out: {}", tail()));
        }
        if let Some(missing) = self.says.iter().find(|s| !stderr.contains(s.as_str())) {
            return Err(format!("stderr does not say {missing:?}: {}", tail()));
        }
        if matches!(self.outcome, Outcome::Refused(_)) && matches!(self.program, Program::Harness(_)) {
            if !stdout.is_empty() {
                return Err(format!("stdout is not clean: {}", stdout.chars().take(200).collect::<String>()));
            }
            // A refusal is for a person to read: bounded, one paragraph, no terminal control.
            if stderr.len() > 6000 || stderr.chars().any(|c| c.is_control() && c != '\n') {
                return Err(format!("the message has {} bytes or control characters: {}", stderr.len(), tail()));
            }
        }
        Ok(())
    }
}

struct Ended {
    code: Option<i32>,
    signal: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Names and contents of a folder; of special files only the kind.
fn listing(folder: &Path) -> BTreeMap<PathBuf, String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return BTreeMap::new() };
    entries
        .flatten()
        .map(|entry| {
            let (path, name) = (entry.path(), PathBuf::from(entry.file_name()));
            let content = match path.symlink_metadata() {
                Ok(m) if m.is_file() && m.len() < 1 << 26 => {
                    format!("{} {}", m.len(), blake3::hash(&std::fs::read(&path).unwrap_or_default()))
                }
                Ok(m) => format!("{:?} {}", m.file_type(), m.len()),
                Err(e) => e.to_string(),
            };
            (name, content)
        })
        .collect()
}

/// What came of all of them.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) tried: u64,
    pub(crate) refused: u64,
    pub(crate) accepted: u64,
    pub(crate) signals: u64,
    pub(crate) failures: Vec<String>,
}

/// Runs all, two at a time or as many as there are CPUs.
pub(crate) fn run_all(attempts: &[Attempt]) -> BTreeMap<&'static str, Tally> {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let tallies = std::sync::Mutex::new(BTreeMap::<&'static str, Tally>::new());
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(attempt) = attempts.get(next.fetch_add(1, std::sync::atomic::Ordering::SeqCst)) {
                    let result = attempt.run();
                    let mut tallies = tallies.lock().unwrap();
                    let tally = tallies.entry(attempt.area).or_default();
                    tally.tried += 1;
                    match result {
                        Ok(_) if attempt.is_refusal() => tally.refused += 1,
                        Ok(_) => tally.accepted += 1,
                        Err(why) => {
                            tally.signals += u64::from(why.starts_with("SIGNAL"));
                            tally.failures.push(format!("{} / {}: {why}", attempt.area, attempt.name));
                        }
                    }
                }
            });
        }
    });
    tallies.into_inner().unwrap()
}
