//! The gates on generated models that differ in what a planted fault may coincide with: a gate that passes on one
//! model must not fail on the next because its fault is that model's own value.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use assert_cmd::Command;
use serde_json::Value;
use synth::{Architecture, SynthSpec, write_synth_file};

fn small() -> SynthSpec {
    SynthSpec {
        n_layer: 2,
        n_embd: 256,
        n_ff: 256,
        n_head: 4,
        n_head_kv: 2,
        n_vocab: 300,
        ..SynthSpec::preset("tiny").unwrap()
    }
}

fn gates(folder: &Path, spec: &SynthSpec, only: &str) -> (Option<i32>, Value) {
    let model = folder.join("m.gguf");
    write_synth_file(spec, 3, &model, true, &mut |_| (), &AtomicBool::new(false)).unwrap();
    let output = Command::cargo_bin("harness")
        .unwrap()
        .args(["gates", "--quick", "--self-check", "--threads", "2", "--format", "json", "--only", only, "--model"])
        .arg(&model)
        .output()
        .unwrap();
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap())
}

fn faults(report: &Value, which: impl Fn(&Value) -> bool) -> Vec<&str> {
    let all = report["self_check"].as_array().unwrap();
    all.iter().filter(|f| which(f)).map(|f| f["fault"].as_str().unwrap()).collect()
}

#[test]
fn no_fault_coincides_with_the_model_it_is_planted_in() {
    let folder = tempfile::tempdir().unwrap();
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/formats/report.schema.json");
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(schema).unwrap()).unwrap();
    let schema = jsonschema::validator_for(&schema).unwrap();
    // Of gate 3b's faults, those that a model of this shape has no place for.
    let cases: [(&str, SynthSpec, &[&str]); 10] = [
        ("base 10000", SynthSpec { rope_base: 10_000.0, ..small() }, &[]),
        ("base 200, what 10000 is changed to", SynthSpec { rope_base: 200.0, ..small() }, &[]),
        ("base 2", SynthSpec { rope_base: 2.0, ..small() }, &[]),
        ("base 1e9", SynthSpec { rope_base: 1e9, ..small() }, &[]),
        ("one KV head", SynthSpec { n_head_kv: 1, ..small() }, &["heads permuted"]),
        ("three KV heads", SynthSpec { n_embd: 384, n_head: 3, n_head_kv: 3, ..small() }, &[]),
        ("one layer", SynthSpec { n_layer: 1, ..small() }, &["layers swapped"]),
        ("heads of two", SynthSpec { n_embd: 128, n_head: 64, n_head_kv: 64, ..small() }, &["wrong RoPE base"]),
        (
            "neighbouring pairs, base 10000, an output of its own",
            SynthSpec { architecture: Architecture::Llama, rope_base: 10_000.0, separate_output: true, ..small() },
            &[],
        ),
        (
            "without a pre-tokenizer",
            SynthSpec { architecture: Architecture::Bitnet, rope_base: 10_000.0, pre_tokenizer: None, ..small() },
            &[],
        ),
    ];
    for (name, spec, expected) in cases {
        let (code, report) = gates(folder.path(), &spec, "3a,3b");
        for gate in report["gates"].as_array().unwrap() {
            assert_eq!(gate["verdict"], "PASS", "{name}: {gate:#}");
        }
        let missed = |f: &Value| f["caught"] == false && f["not_applicable"] != true;
        assert!(faults(&report, missed).is_empty(), "{name}: {:#}", report["self_check"]);
        assert_eq!(faults(&report, |f| f["not_applicable"] == true), expected, "{name}");
        assert_eq!(faults(&report, |_| true).len(), 3 + 8, "{name}");
        assert_eq!(code, Some(3), "{name}: P0 is not decided by two gates");
        let errors: Vec<String> = schema.iter_errors(&report).map(|e| format!("{e} at {}", e.instance_path)).collect();
        assert!(errors.is_empty(), "{name}: {errors:#?}");
    }
}

/// Random weights make no gate 0 fault a missed one: the gate does not judge what they say, and it still sees NaN.
#[test]
fn what_a_gate_does_not_judge_is_not_missed() {
    let folder = tempfile::tempdir().unwrap();
    let (code, report) = gates(folder.path(), &small(), "0");
    assert_eq!(report["gates"][0]["verdict"], "UNKNOWN");
    assert_eq!(faults(&report, |f| f["caught"] == true), ["NaN logits"]);
    let open = ["constant-token sampler", "weights of every layer zeroed"];
    assert_eq!(faults(&report, |f| f["not_applicable"] == true), open);
    assert_eq!(code, Some(3), "UNKNOWN, and no miss");
}
