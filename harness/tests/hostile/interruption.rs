//! Ctrl-C and SIGTERM: exit code 130, no half-written file, no orphan. Links at the target, with the binary.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::hub;

fn harness(folder: &Path, args: &[&str]) -> Command {
    let temporary = folder.join("tmp");
    std::fs::create_dir_all(&temporary).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_harness"));
    command.args(args).current_dir(folder).env("TMPDIR", temporary);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("/bin/kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

/// Waits until `seen`, or the child's end.
fn until(child: &mut Child, mut seen: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(300) {
        if seen() {
            return true;
        }
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    false
}

/// The exit code, if it comes before anybody would give up.
fn ended(child: &mut Child) -> Option<i32> {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(300) {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Children of a process, by /proc.
fn children(pid: u32) -> Vec<u32> {
    let of = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    of.split_whitespace().filter_map(|p| p.parse().ok()).collect()
}

fn is_alive(pid: u32) -> bool {
    // A zombie has ended; its parent only has not asked yet.
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| !s.contains(") Z "))
}

/// The fields of `/proc/PID/stat` from the state on.
fn stat(pid: u32) -> Vec<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit(") ").next().unwrap_or_default();
    fields.split_whitespace().map(str::to_owned).collect()
}

/// User time of a process, in hundredths of a second.
fn processor_time(pid: u32) -> u64 {
    stat(pid).get(11).and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
}

/// Waits until all have ended. An orphan would go on with its gate, whose matrices take several seconds of processor
/// time: that is what is bounded, however long it waits for a core.
fn leave_without_work(processes: &[u32]) {
    let before: Vec<u64> = processes.iter().map(|p| processor_time(*p)).collect();
    while processes.iter().any(|p| is_alive(*p)) {
        for (process, before) in processes.iter().zip(&before) {
            assert!(processor_time(*process) <= before + 150, "an orphan goes on with its gate");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_interrupted_synth_leaves_the_old_file_and_nothing_else() {
    for name in ["-INT", "-TERM", "-HUP"] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("m.gguf"), "old").unwrap();
        let args = ["model", "synth", "--preset", "2b", "--out", "m.gguf", "--force"];
        let mut child = harness(folder.path(), &args).spawn().unwrap();
        let writing = until(&mut child, || names(folder.path()).iter().any(|n| n.ends_with(".part")));
        assert!(writing, "the temporary file was seen");
        signal(&child, name);
        assert_eq!(ended(&mut child), Some(130), "{name}");
        assert_eq!(names(folder.path()), ["m.gguf", "tmp"], "{name}");
        assert_eq!(std::fs::read(folder.path().join("m.gguf")).unwrap(), b"old");
        assert!(names(&folder.path().join("tmp")).is_empty());
    }
}

/// A command that has no orderly stop: the handler removes what is half-written.
#[test]
fn an_interrupted_export_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    // A report opened before the run; the gate takes long enough to be interrupted.
    let args = ["gates", "--only", "1", "--threads", "1", "--out", "report.txt"];
    let mut child = harness(folder.path(), &args).spawn().unwrap();
    let pid = child.id();
    assert!(until(&mut child, || !children(pid).is_empty()), "a gate was started");
    let gate_processes = children(pid);
    signal(&child, "-INT");
    assert_eq!(ended(&mut child), Some(130));
    let files: Vec<_> = names(folder.path()).into_iter().filter(|name| name != "report.txt.partial").collect();
    assert_eq!(files, ["tmp"]);
    assert!(names(&folder.path().join("tmp")).is_empty(), "{:?}", names(&folder.path().join("tmp")));
    leave_without_work(&gate_processes);
}

/// Sends a signal to a process group, as a terminal does.
fn signal_group(leader: u32, name: &str) {
    // The whole group: a negative number, which `--` keeps from being an option.
    let status = Command::new("/bin/kill").args([name, "--", &format!("-{leader}")]).status().unwrap();
    assert!(status.success());
}

/// Ctrl-C reaches the runner, its gate and the gate's own child at once, and any of them may be the first to end. None
/// of that is the model's FAIL, and the report of an earlier run stays. Gate 3b has a child of its own.
#[test]
fn an_interrupt_to_the_whole_group_is_never_a_failed_gate() {
    for (round, name) in ["-INT", "-TERM", "-HUP"].into_iter().cycle().take(24).enumerate() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("report.json"), "old").unwrap();
        let gate = if round % 2 == 0 { "3b" } else { "1" };
        let args =
            ["gates", "--only", gate, "--self-check", "--threads", "1", "--format", "json", "--out", "report.json"];
        let mut child = harness(folder.path(), &args).process_group(0).spawn().unwrap();
        let pid = child.id();
        assert!(until(&mut child, || !children(pid).is_empty()), "a gate was started");
        // From the gate's first instant, before it has a handler, to the middle of its work.
        std::thread::sleep(Duration::from_millis(7 * round as u64));
        let gates = children(pid);
        signal_group(pid, name);
        let code = ended(&mut child);
        let report = std::fs::read(folder.path().join("report.json")).unwrap();
        assert_eq!(code, Some(130), "round {round}, gate {gate}, {name}: {}", String::from_utf8_lossy(&report));
        assert_eq!(report, b"old", "round {round}");
        // A gate that was faster than the signal stands in a report of its own.
        let files: Vec<_> = names(folder.path()).into_iter().filter(|name| name != "report.json.partial").collect();
        assert_eq!(files, ["report.json", "tmp"]);
        leave_without_work(&gates);
    }
}

/// Only the gate's process is ended, not the runner: nothing was measured all the same.
#[test]
fn a_gate_that_somebody_ends_has_not_failed() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("report.json"), "old").unwrap();
    let args = ["gates", "--only", "1", "--threads", "1", "--format", "json", "--out", "report.json"];
    for name in ["-INT", "-TERM", "-HUP"] {
        let mut child = harness(folder.path(), &args).spawn().unwrap();
        let pid = child.id();
        assert!(until(&mut child, || !children(pid).is_empty()), "a gate was started");
        let gate = children(pid)[0];
        assert!(Command::new("/bin/kill").args([name, &gate.to_string()]).status().unwrap().success());
        assert_eq!(ended(&mut child), Some(130), "{name}");
        assert_eq!(std::fs::read(folder.path().join("report.json")).unwrap(), b"old");
    }
}

/// Killed outright, the runner cannot clean up; its gates end by themselves.
#[test]
fn a_killed_runner_leaves_no_orphan() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = harness(folder.path(), &["gates", "--only", "1", "--threads", "1"]).spawn().unwrap();
    let pid = child.id();
    assert!(until(&mut child, || !children(pid).is_empty()));
    let gate_processes = children(pid);
    child.kill().unwrap();
    child.wait().unwrap();
    leave_without_work(&gate_processes);
}

/// One pull at a time writes to a folder, a stopped one included; a killed one holds it no longer.
#[test]
fn a_folder_is_one_pulls_until_that_one_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let pull = |manner: &str| {
        let mut command = harness(folder.path(), &["model", "pull", &format!("h/{manner}"), "--out", "."]);
        command.env("HF_ENDPOINT", hub::endpoint()).env("HF_TOKEN", "").env_remove("HF_HUB_DOWNLOAD_TIMEOUT");
        command
    };
    let second = || {
        let output = pull("sound").output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    // Some bytes come, and then nothing for as long as the first one waits.
    let mut first = pull("file-silent-body").spawn().unwrap();
    let part = folder.path().join(hub::PART);
    assert!(until(&mut first, || std::fs::metadata(&part).is_ok_and(|m| m.len() > 0)));
    let refused = |(code, said): (Option<i32>, String)| code == Some(1) && said.contains("another `model pull`");
    assert!(refused(second()));
    signal(&first, "-STOP");
    assert!(refused(second()));
    assert_eq!(names(folder.path()), [hub::PART, "tmp"]);
    first.kill().unwrap();
    first.wait().unwrap();
    assert_eq!(second().0, Some(0));
    assert_eq!(std::fs::read(folder.path().join("m.gguf")).unwrap(), hub::BODY);
    assert_eq!(names(folder.path()), ["m.gguf", "tmp"]);
}

/// The process has a handler for SIGINT (the second bit of `SigCgt`).
fn handles_interrupt(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|l| l.strip_prefix("SigCgt:")).map(str::trim);
    caught.and_then(|hex| u64::from_str_radix(hex, 16).ok()).is_some_and(|bits| bits & 2 != 0)
}

#[test]
fn generate_interrupted_while_it_waits_for_its_prompt_ends_with_130() {
    let folder = tempfile::tempdir().unwrap();
    // Waits on stdin: nothing cooperative is running yet.
    let mut child = harness(folder.path(), &["generate"]).spawn().unwrap();
    let pid = child.id();
    assert!(until(&mut child, || handles_interrupt(pid)));
    signal(&child, "-INT");
    assert_eq!(ended(&mut child), Some(130));
    assert_eq!(names(folder.path()), ["tmp"]);
    assert!(names(&folder.path().join("tmp")).is_empty());
}

/// Ctrl-C stops an answer and not the conversation; between answers it ends the conversation.
#[test]
fn an_interrupted_answer_is_not_the_end_of_the_conversation() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = harness(folder.path(), &["chat", "--threads", "1", "--max-tokens", "1000000"]).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut notes = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(notes.any(|line| line.contains("template:")));
    let pid = child.id();
    let before = processor_time(pid);
    // A thousand tokens to prefill: a quarter of a second of it at least.
    writeln!(input, "{}", "turn on the kitchen light and ".repeat(150)).unwrap();
    assert!(until(&mut child, || processor_time(pid) >= before + 3));
    signal(&child, "-INT");
    assert!(notes.any(|line| {
        assert!(!line.contains("ERROR"), "{line}");
        line.to_lowercase().contains("cancelled") || line.contains("interrupted")
    }));
    writeln!(input, "turn on the kitchen light").unwrap();
    assert!(notes.any(|line| line.contains("ended: end_of_generation")));
    // It waits for the next line.
    assert!(until(&mut child, || stat(pid).first().is_some_and(|state| state == "S")));
    signal(&child, "-INT");
    assert_eq!(ended(&mut child), Some(130));
    let mut answers = String::new();
    child.stdout.take().unwrap().read_to_string(&mut answers).unwrap();
    assert!(answers.contains("\"room\":\"kitchen\""), "{answers}");
}

/// The gates that had ended before the interrupt are in a report that says so; the old one stays.
#[test]
fn an_interrupt_loses_no_gate_that_had_ended() {
    for (name, out) in [("-INT", Some("report.json")), ("-TERM", None)] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("report.json"), "old").unwrap();
        let mut args = vec!["gates", "--quick", "--only", "3a,1", "--threads", "1", "--format", "json"];
        args.extend(out.iter().flat_map(|out| ["--out", out]));
        // Gate 1 runs first, and the other one takes its time after it.
        let mut child = harness(folder.path(), &args).spawn().unwrap();
        let mut notes = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        assert!(notes.any(|line| line.starts_with("gate 1 of 2: 1 ternary kernel exact: PASS in")));
        signal(&child, name);
        assert_eq!(ended(&mut child), Some(130));
        assert_eq!(std::fs::read(folder.path().join("report.json")).unwrap(), b"old");
        let mut stdout = String::new();
        child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
        let text = match out {
            Some(out) => std::fs::read_to_string(folder.path().join(format!("{out}.partial"))).unwrap(),
            None => stdout,
        };
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report["gates"][0]["id"], "1");
        assert_eq!((&report["interrupted"], &report["p0"]["decision"]), (&true.into(), &"UNKNOWN".into()));
        let reason = report["p0"]["reason"].as_str().unwrap();
        assert!(
            reason.starts_with("interrupted: quick run") && reason.contains("gate 0, 2, 3a, 3b not run"),
            "{reason}"
        );
        assert!(names(&folder.path().join("tmp")).is_empty());
    }
}

/// A reader that goes away, `head` for example, ends a generation that would take a long time, streamed or not.
#[test]
fn nothing_is_generated_for_a_reader_that_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("endless.gbnf"), "root ::= [a-z]+").unwrap();
    for format in ["text", "json"] {
        // Without an end of its own, for as long as the context holds.
        let args = ["generate", "x", "--grammar", "endless.gbnf", "--max-tokens", "0", "--format", format];
        let mut child = harness(folder.path(), &args).spawn().unwrap();
        drop(child.stdout.take());
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(ended(&mut child), Some(141), "128 and SIGPIPE's 13: {said}");
        assert!(!said.contains("decode"), "it was generated all the same: {said}");
    }
    let args = ["chat", "--max-tokens", "1000"];
    let mut child = harness(folder.path(), &args).spawn().unwrap();
    drop(child.stdout.take());
    writeln!(child.stdin.take().unwrap(), "turn on the light\nturn on the light").unwrap();
    assert_eq!(ended(&mut child), Some(141));
}

/// What SIGKILL leaves, beside the output and in TMPDIR, is removed by the next run and not by one that only works
/// beside it.
#[test]
fn the_next_run_removes_what_a_killed_one_left() {
    let folder = tempfile::tempdir().unwrap();
    let parts = |f: &Path| names(f).into_iter().filter(|n| n.ends_with(".part")).count();
    let synth =
        |preset: &str| harness(folder.path(), &["model", "synth", "--preset", preset, "--out", "m.gguf", "--force"]);
    for _ in 0..2 {
        let mut child = synth("2b").spawn().unwrap();
        assert!(until(&mut child, || parts(folder.path()) > 0));
        // A second run beside a living one leaves its file alone.
        assert!(synth("tiny").output().unwrap().status.success());
        assert_eq!(parts(folder.path()), 1);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(parts(folder.path()), 1);
        assert!(synth("tiny").output().unwrap().status.success());
        assert_eq!(names(folder.path()), ["m.gguf", "tmp"]);
    }
    let temporary = folder.path().join("tmp");
    let gates = |gate: &str| harness(folder.path(), &["gates", "--only", gate, "--quick", "--threads", "1"]);
    let mut child = gates("1").spawn().unwrap();
    assert!(until(&mut child, || !names(&temporary).is_empty()));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(names(&temporary).len(), 1);
    assert_eq!(gates("3a").output().unwrap().status.code(), Some(3));
    assert!(names(&temporary).is_empty());
}

#[test]
fn links_at_the_target_are_never_followed() {
    let folder = tempfile::tempdir().unwrap();
    let (victim, link) = (folder.path().join("victim"), folder.path().join("link"));
    std::fs::write(&victim, "precious").unwrap();
    std::os::unix::fs::symlink(&victim, &link).unwrap();
    let synth = |more: &[&str]| {
        let args = [&["model", "synth", "--preset", "tiny", "--out", "link"], more].concat();
        harness(folder.path(), &args).output().unwrap().status.code()
    };
    assert_eq!(synth(&[]), Some(2));
    assert_eq!(synth(&["--force"]), Some(0));
    assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
    assert!(std::fs::symlink_metadata(&link).unwrap().is_file());
    assert_eq!(names(folder.path()), ["link", "tmp", "victim"]);
}
