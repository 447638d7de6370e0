//! The binary as its users run it: exit codes, clean output, refusals by name.

use std::path::Path;

use assert_cmd::Command;
use serde_json::Value;

fn harness() -> Command {
    let mut command = Command::cargo_bin("harness").unwrap();
    // What somebody measured on this machine decides no test.
    command.env("BITNET_PROFILE", "off");
    command
}

fn run(args: &[&str]) -> (i32, String, String) {
    let output = harness().args(args).output().unwrap();
    let code = output.status.code().expect("no signal");
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
    (code, text(&output.stdout), text(&output.stderr))
}

fn schema() -> jsonschema::Validator {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/formats/report.schema.json");
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    jsonschema::validator_for(&schema).unwrap()
}

#[test]
fn a_json_report_matches_its_schema_and_nothing_else_is_printed() {
    let (code, out, err) = run(&["gates", "--quick", "--only", "1,3a", "--threads", "1", "--format", "json"]);
    assert_eq!(code, 3, "P0 is not decided by two gates: {out}\n{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    let errors: Vec<String> = schema().iter_errors(&report).map(|e| format!("{e} at {}", e.instance_path)).collect();
    assert!(errors.is_empty(), "{errors:#?}");
    assert!(err.lines().count() < 20, "{err}");
    let verdicts: Vec<_> = report["gates"].as_array().unwrap().iter().map(|g| (&g["id"], &g["verdict"])).collect();
    assert_eq!(verdicts, [(&Value::from("1"), &Value::from("PASS")), (&Value::from("3a"), &Value::from("PASS"))]);
    for gate in report["gates"].as_array().unwrap() {
        assert_eq!(gate["checks"]["planned"], gate["checks"]["executed"], "{}", gate["id"]);
    }
    // Not all of P0's gates ran: no decision.
    assert_eq!(report["p0"]["decision"], "UNKNOWN");
    assert!(report["p0"]["reason"].as_str().unwrap().contains("quick"));
    // Which gate of how many, without a terminal, too.
    for line in ["gate 1 of 2: 1 ternary kernel exact\n", "gate 2 of 2: 3a native state round trip: PASS in "] {
        assert!(err.contains(line), "{err}");
    }
}

#[test]
fn planted_faults_of_the_kernel_and_the_round_trip_are_caught() {
    let (code, out, _) =
        run(&["gates", "--quick", "--self-check", "--only", "1,3a", "--threads", "1", "--format", "json"]);
    let report: Value = serde_json::from_str(&out).unwrap();
    let faults = report["self_check"].as_array().unwrap();
    assert_eq!(faults.len(), 4 + 3);
    for fault in faults {
        assert_eq!(fault["caught"], true, "{fault}");
    }
    assert_eq!(code, 3);
}

#[test]
fn reports_render_in_every_form_and_to_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.xml");
    let out = path.to_str().unwrap();
    let (code, stdout, _) =
        run(&["gates", "--quick", "--only", "3a", "--threads", "1", "--format", "junit", "--out", out]);
    assert_eq!((code, stdout.as_str()), (3, ""));
    let xml = std::fs::read_to_string(&path).unwrap();
    assert!(xml.starts_with("<?xml") && xml.contains("testsuite") && xml.contains("gate 3a"), "{xml}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    let (_, markdown, _) = run(&["gates", "--quick", "--only", "3a", "--threads", "1", "--format", "markdown"]);
    assert!(markdown.contains("| 3a | PASS |"), "{markdown}");
}

#[test]
fn usage_errors_end_with_2_and_say_why() {
    for (args, named) in [
        (&["gates", "--only", "9"][..], "no gate \"9\""),
        (&["gates", "--threads", "0"], "--threads 0"),
        (&["gates", "--reference", "no-such-file"], "no-such-file"),
        (&["gates", "--only", "0", "--skip", "0"], "cannot be used with"),
        (&["nonsense"], "unrecognized subcommand"),
        (&["model", "synth", "--preset", "2", "--out", "x"], "no preset"),
        (&["generate", "--prompt", ""], "empty"),
        (&["generate", ""], "empty"),
        (&["generate", "x", "--prompt", "y"], "cannot be used with"),
        (&["generate", "x", "--stop", ""], "--stop"),
        (&["generate", "x", "--seed", "-1"], "--seed"),
        (&["generate", "x", "--seed", "Random"], "random"),
        (&["generate", "--prompt", "x", "--temperature", "nan"], "temperature"),
        (&["generate", "--prompt", "x", "--grammar", "no-such-file"], "no-such-file"),
        (&["cartridge", "inspect", "no-such-file"], "no-such-file"),
    ] {
        let (code, out, err) = run(args);
        assert_eq!(code, 2, "{args:?}: {err}");
        assert!(err.contains(named) && out.is_empty(), "{args:?}: {err}");
    }
}

#[test]
fn an_argument_that_is_not_utf_8_is_named() {
    use std::os::unix::ffi::OsStrExt as _;
    let output =
        harness().args(["generate", "--prompt"]).arg(std::ffi::OsStr::from_bytes(b"la\xffmp")).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(said.contains("argument 3 is not UTF-8: la\u{fffd}mp"), "{said}");
}

#[test]
fn an_output_folder_that_is_missing_is_named_and_no_temporary_file_is() {
    let (code, _, said) = run(&["model", "synth", "--preset", "tiny", "--out", "no-such-folder/m.gguf"]);
    assert!(code == 2 && said.contains("no folder no-such-folder to write") && !said.contains(".part"), "{said}");
}

#[test]
fn refused_input_ends_with_4_and_a_name() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let junk = write("junk.gguf", b"GGUF\x03\0\0\0\xff\xff\xff\xff\xff\xff\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x7f");
    let pickle = write("pickle", b"\x80\x02}q\0.");
    let loop_grammar = write("loop.gbnf", b"root ::= e\ne ::= e \"+\" d | d\nd ::= [0-9]\n");
    let broken = write("broken.gbnf", b"root ::= \"a\n");
    for (args, named) in [
        (vec!["gates", "--only", "0", "--model", &junk], "junk.gguf"),
        (vec!["generate", "--prompt", "x", "--model", &junk], "junk.gguf"),
        (vec!["cartridge", "inspect", &pickle], "pickle"),
        (vec!["generate", "--prompt", "x", "--grammar", &loop_grammar], "left"),
        (vec!["generate", "--prompt", "x", "--grammar", &broken], "1:"),
    ] {
        let (code, out, err) = run(&args);
        assert_eq!(code, 4, "{args:?}: {err}");
        assert!(err.to_lowercase().contains(named) && out.is_empty(), "{args:?}: {err}");
    }
}

#[test]
fn a_gate_whose_process_dies_is_a_fail_with_the_signal() {
    // Programs in the place of the gate's process: one that aborts, one that hangs.
    use harness::gates::runner::Launcher;
    use harness::gates::thresholds::Thresholds;
    use harness::gates::{GateId, GateInputs};
    use harness::report::Verdict;
    use models::source::ModelSource;

    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("dies.sh");
    std::fs::write(&script, "#!/bin/sh\nkill -ABRT $$\n").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let hangs = folder.path().join("hangs.sh");
    std::fs::write(&hangs, "#!/bin/sh\nexec sleep 600\n").unwrap();
    std::fs::set_permissions(&hangs, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut thresholds = Thresholds::embedded().unwrap();
    thresholds.limits.gate_seconds = 1;
    for (program, code, named) in [(script, "signal", "SIGABRT"), (hangs, "time-limit", "hang")] {
        let inputs = GateInputs {
            model: ModelSource::Embedded,
            children: files::children::Children::of(program),
            threads: 1,
            quick: true,
            reference: None,
            cases: None,
            thresholds: thresholds.clone(),
        };
        let launcher = Launcher { interrupted: Default::default() };
        let report = launcher.gate(GateId::Kernel, &inputs, &mut |_| {}).unwrap();
        assert_eq!(report.verdict, Verdict::Fail);
        assert_eq!(report.findings[0].code, code);
        assert!(report.summary.contains(named), "{}", report.summary);
    }
}

#[test]
fn a_synthetic_model_is_written_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let out = path.to_str().unwrap();
    let (code, text, _) = run(&["model", "synth", "--preset", "tiny", "--out", out, "--dry-run"]);
    assert!(code == 0 && text.contains("would write") && !path.exists());
    assert_eq!(run(&["model", "synth", "--preset", "tiny", "--seed", "3", "--out", out]).0, 0);
    let first = std::fs::read(&path).unwrap();
    assert_eq!(run(&["model", "synth", "--preset", "tiny", "--out", out]).0, 2, "no --force");
    assert_eq!(std::fs::read(&path).unwrap(), first);
    assert_eq!(run(&["model", "synth", "--preset", "tiny", "--seed", "3", "--out", out, "--force"]).0, 0);
    assert_eq!(std::fs::read(&path).unwrap(), first, "the seed decides every byte");

    // It runs, and says nothing about coherence.
    let (code, report, err) =
        run(&["gates", "--quick", "--only", "0,3a", "--model", out, "--threads", "1", "--format", "json"]);
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(code, 3, "{report} {err}");
    assert_eq!(report["gates"][0]["verdict"], "UNKNOWN");
    assert_eq!(report["gates"][1]["verdict"], "PASS");
}

#[test]
fn generation_is_reproducible_and_says_when_it_is_incomplete() {
    let args = ["generate", "--prompt", "The lamp", "--temperature", "1", "--seed", "5", "--max-tokens", "16"];
    let json = |args: &[&str]| -> Value {
        let (_, out, err) = run(&[args, &["--format", "json", "--threads", "1"]].concat());
        serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out} {err}"))
    };
    let (a, b) = (json(&args), json(&args));
    assert_eq!(a["tokens"], b["tokens"]);
    assert!(a["tokens"].as_array().unwrap().len() <= 16);
    let grammar = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(grammar.path(), "root ::= \"{\" [a-z]{40} \"}\"\n").unwrap();
    let path = grammar.path().to_str().unwrap();
    let cut =
        ["generate", "--prompt", "x", "--grammar", path, "--max-tokens", "3", "--format", "json", "--threads", "1"];
    let (code, out, _) = run(&cut);
    let out: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, 5, "{out}");
    assert_eq!(out["complete"], false);
    assert!(out["call"].is_null());
}

fn run_with(args: &[&str], stdin: &[u8]) -> (i32, String, String) {
    let output = harness().args(args).write_stdin(stdin).output().unwrap();
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
    (output.status.code().expect("no signal"), text(&output.stdout), text(&output.stderr))
}

fn document(args: &[&str], stdin: &[u8]) -> Value {
    let (code, out, err) = run_with(args, stdin);
    assert_eq!(code, 0, "{args:?}: {err}");
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}"))
}

/// llama.cpp's short options, and the prompt as an argument, an option, a file and stdin: one and the same output.
#[test]
fn options_are_spelt_as_elsewhere_and_a_prompt_comes_by_any_way() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompt");
    std::fs::write(&file, "The lamp").unwrap();
    let file = file.to_str().unwrap();
    let long = ["--max-tokens", "6", "--threads", "1", "--temperature", "1", "--seed", "3", "--format", "json"];
    let short = ["-n", "6", "-t", "1", "--temp", "1", "-s", "3", "--format", "json"];
    let expected = document(&[&["generate", "--prompt", "The lamp"][..], &long].concat(), b"");
    for (prompt, options) in [
        (&["generate", "The lamp"][..], &short),
        (&["generate", "-p", "The lamp"], &long),
        (&["generate", "-f", file], &short),
        (&["generate", "--file", "-"], &long),
        (&["generate"], &short),
    ] {
        let got = document(&[prompt, options].concat(), b"The lamp");
        assert_eq!(got["tokens"], expected["tokens"], "{prompt:?}");
        assert_eq!(got["notes"], serde_json::json!([]), "{prompt:?}");
    }
}

/// What is left out of a prompt, or kept in it unexpectedly, is said to people and to programs.
#[test]
fn byte_order_marks_and_last_newlines_of_prompts_are_said() {
    let run = |stdin: &[u8]| {
        let args = ["generate", "--max-tokens", "4", "--threads", "1", "--format", "json"];
        let (code, out, err) = run_with(&args, stdin);
        assert_eq!(code, 0, "{err}");
        (serde_json::from_str::<Value>(&out).unwrap(), err)
    };
    let (plain, _) = run(b"The lamp");
    let (marked, said) = run(b"\xef\xbb\xbfThe lamp");
    assert_eq!((&marked["tokens"], &marked["prompt_tokens"]), (&plain["tokens"], &plain["prompt_tokens"]));
    assert!(said.contains("note: stdin begins with a UTF-8 byte-order mark"), "{said}");
    assert_eq!(marked["notes"].as_array().unwrap().len(), 1);
    let (newline, said) = run(b"The lamp\n");
    assert!(newline["prompt_tokens"].as_u64() > plain["prompt_tokens"].as_u64());
    assert!(
        said.contains("ends with a newline") && newline["notes"][0].as_str().unwrap().contains("newline"),
        "{said}"
    );
    // UTF-16, as another editor saves it.
    let (code, _, said) = run_with(&["generate"], b"\xff\xfeT\0h\0e\0");
    assert!(code == 4 && said.contains("UTF-16"), "{said}");
}

/// Everything else that is read as text refuses a byte-order mark by its name.
#[test]
fn files_that_begin_with_a_byte_order_mark_are_refused_by_that_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f");
    let file = path.to_str().unwrap();
    for (args, text) in [
        (&["generate", "x", "--grammar", file][..], "root ::= [a-z]+"),
        (&["generate", "x", "--json-schema", file], "{\"type\": \"integer\"}"),
        (&["generate", "x", "--tools", file], "{\"tools\": []}"),
        (&["generate", "x", "--chat", "--chat-template", file], "{{ messages[0].content }}"),
        (&["cartridge", "create", "--tokens", file, "--out", "/nowhere/o"], "1 2 3"),
        (&["model", "tokenize", "--texts", file], "[\"a\"]"),
        (&["model", "record", "--prompts", file], "[\"a\"]"),
        (&["gates", "--only", "5", "--cases", file], "cases: []"),
    ] {
        std::fs::write(&path, format!("\u{feff}{text}")).unwrap();
        let args: Vec<&str> =
            args.iter().map(|a| if *a == "/nowhere/o" { "o-that-is-not-written" } else { a }).collect();
        let (code, out, err) = run(&args);
        assert!(code == 4 && err.contains("byte-order mark") && out.is_empty(), "{args:?}: {code} {err}");
    }
}

/// The seed that was drawn gives the same output again.
#[test]
fn a_random_seed_is_said() {
    let run = |seed: &str| {
        let args = ["generate", "The lamp", "-n", "8", "-t", "1", "--temp", "1", "--seed", seed, "--format", "json"];
        let (code, out, err) = run(&args);
        assert_eq!(code, 0, "{err}");
        (serde_json::from_str::<Value>(&out).unwrap(), err)
    };
    // The engine's own word for a random seed is one here, too.
    for random in ["random", "4294967295"] {
        let (drawn, said) = run(random);
        let seed = drawn["seed"].as_u64().unwrap().to_string();
        assert!(said.contains(&format!("seed {seed}, drawn at random")), "{said}");
        assert_eq!(run(&seed).0["tokens"], drawn["tokens"]);
    }
}

/// Words for the conversation, and a context of 64 cells in which a long talk goes on: what was forgotten is said.
#[test]
fn a_conversation_goes_on_where_the_context_is_full_and_has_words_of_its_own() {
    let chat = |options: &[&str], lines: &str| {
        let (code, out, err) = run_with(&[&["chat", "-t", "1", "-n", "8"][..], options].concat(), lines.as_bytes());
        (code, out, err)
    };
    let (code, _, said) = chat(&["-c", "64"], &"turn on the kitchen light\n".repeat(12));
    assert_eq!(code, 0, "{said}");
    assert_eq!(said.matches("ended: ").count(), 12, "every line is answered: {said}");
    assert!(said.contains("the context is full: the oldest turn was forgotten"), "{said}");

    // The same line, the same answer, once the conversation is forgotten.
    let (code, _, said) = chat(&[], "turn on lumo\n/stats\n/reset\n/stats\n/help\n/nonsense\n");
    assert!(said.contains("1 turns, 0 forgotten; ") && said.contains("0 turns, 0 forgotten; 0 of 1024"), "{said}");
    assert!(said.contains("/reset  forget") && said.contains("/nonsense: no such word"), "{said}");
    assert_eq!(code, 2, "what was refused shows in a script's exit code");

    // One message that no forgetting makes room for.
    let (code, _, said) = chat(&["-c", "64"], &format!("{}\nturn on lumo\n", "turn on the light ".repeat(100)));
    assert!(code == 2 && said.contains("error: ") && said.matches("ended: ").count() == 1, "{said}");
}

/// The engine pads a context to blocks of 32 cells, and the embedded model was trained for 1,024 positions.
#[test]
fn a_context_that_is_not_as_asked_says_so() {
    let with = |n_ctx: &str| {
        let (code, _, err) =
            run(&["generate", "--prompt", "x", "--max-tokens", "1", "--threads", "1", "--n-ctx", n_ctx]);
        assert_eq!(code, 0, "{err}");
        err
    };
    assert!(with("1000").contains("--n-ctx 1000: the engine made 1024 cells"));
    assert!(with("2048").contains("--n-ctx 2048: positions end at 1024"));
    for as_asked in ["0", "512", "1024"] {
        assert!(!with(as_asked).contains("--n-ctx"));
    }
}
