//! Options: numbers out of range, lists with rubbish, options that do not go together. BR-10, BR-18, BR-25.

use crate::attempt::{Attempt, harness};

const AREA: &str = "options";

fn generate(option: &str, value: &str) -> Attempt {
    let given = format!("{option}={value}");
    harness(AREA, given.clone(), ["generate", "--prompt", "turn on", "--max-tokens", "2", "--threads", "1", &given])
}

/// As [`generate`], where the option must not come twice.
fn alone(option: &str, value: &str) -> Attempt {
    let given = format!("{option}={value}");
    let mut args = vec!["generate", "--prompt", "turn on", &given];
    if option != "--max-tokens" {
        args.extend(["--max-tokens", "2"]);
    }
    harness(AREA, given.clone(), args)
}

pub(crate) fn table() -> Vec<Attempt> {
    let mut all = Vec::new();
    for value in ["0", "-1", "4294967296", "1.5", "", "x", "0x2", "18446744073709551616", "１"] {
        all.push(alone("--threads", value).usage("--threads"));
    }
    for value in ["65", "4294967295"] {
        all.push(alone("--threads", value).ends(0, "clamped"));
    }
    for value in ["-1", "4294967296", "x", "", "1e3"] {
        all.push(generate("--n-ctx", value).usage("--n-ctx"));
    }
    for value in ["4294967295", "1000000000", "16777216"] {
        all.push(generate("--n-ctx", value).usage("n_ctx"));
    }
    all.push(generate("--n-ctx", "1").ends_any());
    for value in ["-1", "18446744073709551616", "x"] {
        all.push(alone("--max-tokens", value).usage("--max-tokens"));
    }
    for value in ["18446744073709551615", "0"] {
        // To the model's own end: one thread, for two would wait for each other's core beside the other children.
        let given = format!("--max-tokens={value}");
        all.push(harness(AREA, given.clone(), ["generate", "--prompt", "turn on", "--threads", "1", &given]));
    }
    for value in ["nan", "inf", "-inf", "-0.5", "1e39", "3e38", "x", ""] {
        all.push(generate("--temperature", value).usage("temperature"));
    }
    for value in ["1e-45", "100", "1e-300", "-0"] {
        all.push(generate("--temperature", value));
    }
    for (option, field, values) in [
        ("--top-p", "top", &["nan", "inf", "-0.1", "1.5", "x"][..]),
        ("--min-p", "min", &["nan", "-inf", "-0.1", "1.5", ""]),
        ("--repeat-penalty", "repeat", &["nan", "inf", "-1", "0", "1e-30", "3e38", "x"]),
        ("--top-k", "top", &["-1", "4294967295", "4294967296", "1.5"]),
        ("--seed", "seed", &["-1", "4294967296", "x"]),
    ] {
        for value in values {
            all.push(generate(option, value).usage(field));
        }
    }
    for (value, says) in [("65", "--draft-lookup"), ("-1", "--draft-lookup"), ("1", "flash attention")] {
        all.push(generate("--draft-lookup", value).usage(says));
    }
    let drafts = |temperature| {
        let args =
            ["generate", "--prompt", "turn on", "--flash-attn", "--draft-lookup", "64", "--temperature", temperature];
        harness(AREA, format!("drafts at temperature {temperature}"), args)
    };
    all.push(drafts("1").usage("temperature 0"));
    all.push(drafts("0"));
    for (option, value) in [
        ("--top-k", "2147483647"),
        ("--top-p", "0"),
        ("--min-p", "1"),
        ("--repeat-penalty", "0.01"),
        ("--repeat-penalty", "100"),
        ("--seed", "4294967295"),
    ] {
        let given = format!("{option}={value}");
        let args = ["generate", "--prompt", "turn on", "--max-tokens", "4", "--temperature", "1", &given];
        all.push(harness(AREA, format!("{given}, sampled"), args));
    }
    all.extend(gates());
    all.extend(others());
    all
}

fn gates() -> Vec<Attempt> {
    let mut all = Vec::new();
    for list in ["9", "", ",", "0,9", "0;1", "3", "-1", "0 ,x", "３ａ"] {
        all.push(harness(AREA, format!("--only={list}"), ["gates", &format!("--only={list}")]).usage("gate"));
    }
    let every: Vec<&str> = harness::gates::GateId::ALL.iter().map(|g| g.id()).collect();
    let every = every.join(",");
    all.push(harness(AREA, "--skip everything", ["gates", "--skip", &every]).usage("no gate is left"));
    all.push(harness(AREA, "--only and --skip", ["gates", "--only", "0", "--skip", "1"]).usage("cannot be used"));
    for value in ["0", "-1", "x", "4294967296"] {
        all.push(
            harness(AREA, format!("gates --threads={value}"), ["gates", "--only", "1", &format!("--threads={value}")])
                .usage("--threads"),
        );
    }
    all.push(harness(AREA, "--format yaml", ["gates", "--format", "yaml"]).usage("yaml"));
    for (option, text) in [("--reference", &b"no reference"[..]), ("--reference", b""), ("--reference", &[0xff; 64])] {
        let attempt =
            harness(AREA, format!("{option} with {} bytes", text.len()), ["gates", "--only", "2", option, "f"]);
        all.push(attempt.file("f", text).refused("--reference"));
    }
    let header = |json: &str| [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat();
    for (name, json) in [
        ("empty", "{}"),
        ("other format", r#"{"__metadata__":{"format":"other/1"}}"#),
        ("without keys", r#"{"__metadata__":{"format":"bitnet-reference/1"}}"#),
        ("offsets past the end", r#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}"#),
        ("shape over u64", r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,16]}}"#),
    ] {
        let attempt = harness(AREA, format!("BR-59: reference, {name}"), ["gates", "--only", "2", "--reference", "f"]);
        all.push(attempt.file("f", header(json)).refused("--reference"));
    }
    all
}

fn others() -> Vec<Attempt> {
    let mut all = Vec::new();
    for (name, args, says) in [
        ("no command", vec![], "Usage"),
        ("unknown command", vec!["frobnicate"], "frobnicate"),
        ("unknown option", vec!["gates", "--frobnicate"], "frobnicate"),
        ("synth without a preset", vec!["model", "synth", "--out", "m"], "--preset"),
        ("synth with an unknown preset", vec!["model", "synth", "--preset", "9q", "--out", "m"], "preset"),
        ("synth without an output", vec!["model", "synth", "--preset", "tiny"], "--out"),
        ("synth with seed -1", vec!["model", "synth", "--preset", "tiny", "--seed=-1", "--out", "m"], "seed"),
        ("inspect with n_ctx -1", vec!["model", "inspect", "--n-ctx=-1"], "n-ctx"),
        ("create without input", vec!["cartridge", "create", "--out", "c"], "--text"),
        (
            "create with both",
            vec!["cartridge", "create", "--text", "a", "--tokens", "b", "--out", "c"],
            "cannot be used",
        ),
        (
            "grammar and schema",
            vec!["generate", "--grammar", "a", "--json-schema", "b", "--prompt", "x"],
            "cannot be used",
        ),
        ("prompt and file", vec!["generate", "--prompt", "x", "--file", "y"], "cannot be used"),
        ("plain without a prompt", vec!["cartridge", "mount", "c", "--plain"], "--prompt"),
        ("agent: text and command", vec!["agent", "devices", "hello"], ""),
        ("agent: limit -1", vec!["agent", "trace", "--limit=-1"], "limit"),
        (
            "agent: execute without an operator",
            vec!["agent", "--rules-only", "turn on the kitchen light", "--execute"],
            "--operator",
        ),
        ("agent: model and rules only", vec!["agent", "--model", "m", "--rules-only", "x"], "cannot be used"),
    ] {
        all.push(harness(AREA, name, args).usage(says));
    }
    // BR-18
    for (name, options, says) in [
        ("V q8_0 without flash attention", vec!["--type-v", "q8_0"], "type_v"),
        ("V f32 without flash attention", vec!["--type-v", "f32"], "type_v"),
        ("K f32 with flash attention", vec!["--type-k", "f32", "--flash-attn"], "type_k"),
        ("K bf16", vec!["--type-k", "bf16"], "type_k"),
        ("K i2_s", vec!["--type-k", "i2_s"], "i2_s"),
        ("K of nothing", vec!["--type-k", ""], "type-k"),
        ("V of numbers", vec!["--type-v", "36"], "36"),
    ] {
        let args = [&["cartridge", "create", "--text", "t", "--out", "c"][..], &options].concat();
        all.push(harness(AREA, name, args).file("t", "turn on the lamp").usage(says));
    }
    all.push(
        harness(
            AREA,
            "--max-tokens 0 of a cartridge",
            ["cartridge", "create", "--text", "t", "--out", "c", "--max-tokens", "0"],
        )
        .file("t", "text")
        .usage("empty"),
    );
    all.push(harness(AREA, "inspect for 4294967295 tokens", ["model", "inspect", "--n-ctx", "4294967295"]));
    all.push(harness(AREA, "BITNET_LOG with rubbish", ["model", "inspect"]).env("BITNET_LOG", "=[=]=,,,{{{"));
    all.push(
        harness(AREA, "TMPDIR that is not there", ["generate", "--prompt", "x"])
            .env("TMPDIR", "/no/such/folder")
            .ends(1, "model embedded"),
    );
    all.push(
        harness(AREA, "neither HOME nor XDG_STATE_HOME", ["agent", "--rules-only", "x"])
            .env("HOME", "")
            .limits("unset HOME")
            .usage("--store"),
    );
    all.push(harness(AREA, "inspect --format json", ["model", "inspect", "--format", "json"]));
    all.push(harness(AREA, "doctor", ["doctor"]).ends_any());
    all
}
