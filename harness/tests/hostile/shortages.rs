//! A host that lacks something: limits on memory, threads, descriptors, stack and file size, in steps over every command.
//! A command works, or ends with 2 and says what is lacking; a gate is UNKNOWN. Nothing else is allowed: no signal, no
//! hang, no refusal of the input, no FAIL, no file that is half written, nothing that stays after the next run.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::flips::Random;
use crate::number_options::commands;

/// A limit by its shell command, from roomy to nothing.
struct Limit {
    shell: &'static str,
    steps: &'static [u64],
    /// Steps of the short form of this test.
    few: &'static [u64],
}

const LIMITS: [Limit; 5] = [
    // KiB of address space. Below 20 MB the dynamic loader cannot map the program.
    Limit {
        shell: "ulimit -v",
        steps: &[
            1_000_000, 700_000, 500_000, 400_000, 350_000, 300_000, 270_000, 251_000, 237_000, 220_000, 205_000,
            190_000, 180_000, 167_000, 155_000, 145_000, 135_000, 125_000, 118_000, 110_000, 100_000, 90_000, 80_000,
            70_000, 60_000, 50_000,
        ],
        few: &[251_000, 167_000, 118_000, 80_000],
    },
    // Processes and threads of a user that has no others.
    Limit { shell: "ulimit -u", steps: &[20, 10, 8, 7, 6, 5, 4, 3, 2, 1], few: &[4, 1] },
    Limit { shell: "ulimit -n", steps: &[64, 32, 20, 16, 14, 12, 11, 10, 9, 8, 7, 6, 5, 4], few: &[10, 6, 4] },
    // KiB of stack.
    Limit { shell: "ulimit -s", steps: &[8192, 4096, 1024, 512, 256, 128, 100, 80, 64], few: &[512, 100] },
    // Blocks of 512 bytes or of 1 KiB, as the shell has it.
    Limit { shell: "ulimit -f", steps: &[100_000, 10_000, 4000, 2000, 500, 64, 8, 1, 0], few: &[500, 0] },
];

/// Files that [`with_inputs`](crate::number_options::with_inputs) lays out, by the same table.
fn lay_out(folder: &Path) {
    let attempt = crate::number_options::with_inputs("shortages", String::new(), &[]);
    for (name, bytes) in attempt.files() {
        std::fs::write(folder.join(name), bytes).unwrap();
    }
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Root has no limit on its processes: where the tests run as root, that one needs another user.
fn other_user() -> Option<Vec<&'static str>> {
    let is_root = std::fs::read_to_string("/proc/self/status").unwrap().lines().any(|l| l.starts_with("Uid:\t0\t"));
    if !is_root {
        return Some(Vec::new());
    }
    let prefix = vec!["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let mut probe = Command::new(prefix[0]);
    probe.args(&prefix[1..]).arg(env!("CARGO_BIN_EXE_harness")).arg("--version");
    probe.output().is_ok_and(|o| o.status.success()).then_some(prefix)
}

/// Runs it under a limit, in `folder`, with a bound on how long anything may hang.
fn run(folder: &Path, limit: &str, args: &[&str]) -> Result<Output, String> {
    let mut command;
    if limit.starts_with("ulimit -u") {
        let Some(prefix) = other_user() else { return Err("no other user".into()) };
        // Not every sh knows this limit.
        let script = format!("ulimit -c 0; {limit}; exec \"$@\"");
        let words = prefix.into_iter().chain(["/bin/bash", "-c", &script, "bash"]);
        command = Command::new("/usr/bin/env");
        command.args(words);
    } else {
        command = Command::new("/bin/sh");
        command.arg("-c").arg(format!("ulimit -c 0; {limit}\nexec \"$@\"")).arg("sh");
    }
    command.arg(env!("CARGO_BIN_EXE_harness")).args(args).current_dir(folder);
    let temporary = folder.join("tmp");
    command.env("TMPDIR", &temporary).env("HOME", folder.join("home")).env("BITNET_PROFILE", "off");
    // With a backtrace wanted, a panic without memory would hang.
    command.env_remove("XDG_STATE_HOME").env_remove("BITNET_LOG").env("RUST_BACKTRACE", "1");
    // Files, not pipes: nothing blocks however much is said.
    let open = |name: &str| std::fs::File::create(folder.join("home").join(name)).unwrap();
    let stdin = std::fs::File::open(folder.join("t")).unwrap();
    let mut child = command
        .stdin(stdin)
        .stdout(Stdio::from(open("stdout")))
        .stderr(Stdio::from(open("stderr")))
        .spawn()
        .map_err(|e| e.to_string())?;
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if started.elapsed() > Duration::from_secs(300) {
            let _ = child.kill();
            let _ = child.wait();
            return Err("HANGS".into());
        }
        std::thread::sleep(Duration::from_millis(3));
    };
    let read = |name: &str| std::fs::read(folder.join("home").join(name)).unwrap();
    Ok(Output { status, stdout: read("stdout"), stderr: read("stderr") })
}

fn new_folder() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    for name in ["tmp", "home"] {
        std::fs::create_dir(folder.path().join(name)).unwrap();
    }
    lay_out(folder.path());
    // Another user works here, too.
    for path in [folder.path().to_owned(), folder.path().join("tmp"), folder.path().join("home")] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    folder
}

/// What is wrong with how it ended, if anything.
fn judge(unlimited: i32, ended: &Output, limit: &str, name: &str) -> Result<(), String> {
    let is_gates = name.starts_with("gate");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    let tail = || said.chars().rev().take(700).collect::<Vec<_>>().into_iter().rev().collect::<String>();
    if let Some(signal) = ended.status.signal() {
        return Err(format!("SIGNAL {signal}: {}", tail()));
    }
    if said.contains("panicked at") {
        return Err(format!("panic: {}", tail()));
    }
    let code = ended.status.code().unwrap_or(-1);
    // To find what the host lacks is what `doctor` is for.
    let found_it = name == "doctor" && code == 1 && String::from_utf8_lossy(&ended.stdout).contains("BAD");
    if code != unlimited && code != 2 && !found_it && !(is_gates && code == 3) {
        return Err(format!("exit code {code}, where without a limit it is {unlimited}: {}", tail()));
    }
    // What is said goes to a file, which has a limit, too.
    if code == 2 && !said.contains("error: ") && !limit.starts_with("ulimit -f") {
        return Err(format!("exit code 2 without a word: {}", tail()));
    }
    if is_gates && let Ok(report) = serde_json::from_slice::<Value>(&ended.stdout) {
        let verdicts = report["gates"].as_array().into_iter().flatten().map(|gate| &gate["verdict"]);
        if verdicts.into_iter().any(|verdict| verdict == "FAIL") {
            return Err(format!("a FAIL that is the host's: {report}"));
        }
    }
    Ok(())
}

/// Commands that are tried: those of the number grid, and all gates at once.
fn tried() -> Vec<(String, Vec<&'static str>)> {
    let mut all: Vec<(String, Vec<&str>)> =
        commands().filter(|(name, _)| *name != "completions").map(|(name, args)| (name.to_owned(), args)).collect();
    all.push(("long text".into(), vec!["generate", "--file=l2", "--max-tokens=1", "--threads=2"]));
    all.push(("two threads".into(), vec!["generate", "ab", "--max-tokens=2", "--threads=2"]));
    all.push(("quantize".into(), vec!["model", "quantize", "--embedding=q8_0", "--out=o"]));
    all.push(("repack".into(), vec!["model", "repack", "--to=tq2_0", "--out=o"]));
    all.push(("export-blob".into(), vec!["cartridge", "export-blob", "e", "--out=o"]));
    all.push(("cartridge convert".into(), vec!["cartridge", "convert", "e", "--to=head-major", "--out=o"]));
    for gate in harness::gates::GateId::ALL {
        let args = vec!["gates", "--quick", "--format=json", "--threads=2", "--only", gate.id()];
        all.push((format!("gate {}", gate.id()), args));
    }
    all
}

/// All limits with their steps over commands; what is wrong.
fn campaign(commands: &[(String, Vec<&'static str>)], all_steps: bool) -> Vec<String> {
    let mut jobs = Vec::new();
    for command in commands {
        for limit in &LIMITS {
            jobs.push((command, limit));
        }
    }
    let codes: BTreeMap<&str, i32> = commands
        .iter()
        .map(|(name, args)| {
            let folder = new_folder();
            let ended = run(folder.path(), "true", args).unwrap();
            let code = ended.status.code().unwrap_or(-1);
            assert!([0, 3, 4].contains(&code), "{name}: {code} {}", String::from_utf8_lossy(&ended.stderr));
            (name.as_str(), code)
        })
        .collect();
    let next = std::sync::atomic::AtomicUsize::new(0);
    let failures = std::sync::Mutex::new(Vec::new());
    let tried = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while let Some(((name, args), limit)) = jobs.get(next.fetch_add(1, std::sync::atomic::Ordering::SeqCst))
                {
                    for step in if all_steps { limit.steps } else { limit.few } {
                        let shell = format!("{} {step}", limit.shell);
                        tried.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                        if let Err(why) = one(codes[name.as_str()], &shell, name, args) {
                            // A long run may be cut off before its end.
                            println!("{name} / {shell}: {why}");
                            failures.lock().unwrap().push(format!("{name} / {shell}: {why}"));
                        }
                    }
                }
            });
        }
    });
    println!("{} runs under limits", tried.into_inner());
    failures.into_inner().unwrap()
}

fn one(unlimited: i32, shell: &str, name: &str, args: &[&str]) -> Result<(), String> {
    let folder = new_folder();
    let before = names(folder.path());
    let ended = match run(folder.path(), shell, args) {
        Err(e) if e == "no other user" => return Ok(()),
        ended => ended?,
    };
    judge(unlimited, &ended, shell, name)?;
    let whole = |names: Vec<String>| names.into_iter().filter(|n| n != "o").collect::<Vec<_>>();
    if whole(names(folder.path())) == before && names(&folder.path().join("tmp")).is_empty() {
        return Ok(());
    }
    // What it could not remove goes with the next run.
    let mut args = args.to_vec();
    if args.contains(&"--out=o") {
        args.push("--force");
    }
    run(folder.path(), "true", &args)?;
    let (now, temporary) = (whole(names(folder.path())), names(&folder.path().join("tmp")));
    if now == before && temporary.is_empty() { Ok(()) } else { Err(format!("left: {now:?}, in TMPDIR {temporary:?}")) }
}

/// The members of each kind that were seen to fail once; `make nightly` has all steps and all commands.
#[test]
fn what_a_host_lacks_is_said_and_never_the_models_fault() {
    let some = ["two threads", "long text", "chat", "cartridge create", "gate 3b", "gate 1"];
    let commands: Vec<_> = tried().into_iter().filter(|(name, _)| some.contains(&name.as_str())).collect();
    assert_eq!(commands.len(), some.len());
    let failures = campaign(&commands, false);
    assert!(failures.is_empty(), "{}:\n{}", failures.len(), failures.join("\n"));
}

#[test]
#[ignore = "half an hour; `make shortages`"]
fn every_command_under_every_limit() {
    let only = std::env::var("SHORTAGES_ONLY").unwrap_or_default();
    let commands: Vec<_> = tried().into_iter().filter(|(name, _)| name.contains(&only)).collect();
    let failures = campaign(&commands, true);
    assert!(failures.is_empty(), "{}:\n{}", failures.len(), failures.join("\n"));
}

/// The processes of a group that have not ended.
fn alive_in_group(leader: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        fields.first().is_some_and(|state| *state != "Z")
            && fields.get(2).is_some_and(|group| *group == leader.to_string())
    })
    .collect()
}

/// Signals to the whole group at seeded moments of every gate, the one that cannot be answered included. The old report
/// stays whole, nothing lives on, and the next run removes what was left.
fn signals(rounds: usize) -> Vec<String> {
    use std::os::unix::process::CommandExt as _;
    let mut random = Random::new(20_261_201);
    let mut failures = Vec::new();
    for round in 0..rounds {
        let gates = harness::gates::GateId::ALL;
        let gate = gates[round % gates.len()].id();
        let signal = ["-INT", "-TERM", "-HUP", "-KILL"][round / gates.len() % 4];
        let folder = new_folder();
        std::fs::write(folder.path().join("r"), "old").unwrap();
        let args = ["gates", "--only", gate, "--self-check", "--quick", "--format", "json", "--out", "r"];
        let command = |args: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_harness"));
            command.args(args).current_dir(folder.path()).env("TMPDIR", folder.path().join("tmp"));
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
            command
        };
        let mut child = command(&args).spawn().unwrap();
        let leader = child.id();
        std::thread::sleep(Duration::from_millis(random.below(4000)));
        let _ = Command::new("/bin/kill").args([signal, "--", &format!("-{leader}")]).stderr(Stdio::null()).status();
        let status = child.wait().unwrap();
        let at = format!("round {round}, gate {gate}, {signal}");
        let report = std::fs::read(folder.path().join("r")).unwrap();
        let is_whole = serde_json::from_slice::<Value>(&report).is_ok_and(|r| r["gates"][0]["verdict"] != "FAIL");
        let ended_well = match (status.code(), status.signal()) {
            // It was faster than the signal.
            (Some(0 | 3), _) => is_whole,
            (Some(130), _) => report == b"old",
            (None, Some(9)) => signal == "-KILL" && (report == b"old" || is_whole),
            _ => false,
        };
        if !ended_well {
            failures.push(format!("{at}: {status}, report {}", String::from_utf8_lossy(&report)));
        }
        let started = Instant::now();
        while !alive_in_group(leader).is_empty() {
            if started.elapsed() > Duration::from_secs(60) {
                failures.push(format!("{at}: lives on"));
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let next = command(&["gates", "--only", "3a", "--quick", "--out", "r"]).status().unwrap();
        let (left, temporary) = (names(folder.path()), names(&folder.path().join("tmp")));
        let extra: Vec<_> = left.iter().filter(|n| n.starts_with('.') || n.ends_with(".part")).collect();
        if next.code() != Some(3) || !extra.is_empty() || !temporary.is_empty() {
            failures.push(format!("{at}: the next run {next}, left {extra:?}, in TMPDIR {temporary:?}"));
        }
    }
    failures
}

#[test]
#[ignore = "half an hour; `make shortages`"]
fn signals_at_any_moment_of_any_gate() {
    let failures = signals(140);
    assert!(failures.is_empty(), "{}:\n{}", failures.len(), failures.join("\n"));
}
