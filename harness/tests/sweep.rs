//! Models that nobody thought of: seeded random shapes through every gate with its planted faults, and through
//! `inspect`, `quantize` and `repack`. A gate that holds on two models must not fail on the third for a constant of its
//! own: every verdict is PASS, or UNKNOWN with its reason, and every fault that has a place in the model is caught.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use assert_cmd::Command;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use synth::vocabulary::Vocabulary;
use synth::{Architecture, PRESETS, SynthSpec, write_synth_file};

/// Another number explores other models.
const SEED: u64 = 15;

fn models() -> u64 {
    std::env::var("SWEEP_MODELS").ok().and_then(|n| n.parse().ok()).unwrap_or(30)
}

/// Chat templates beside the synthetic vocabulary's own: one that knows no system message, and one that needs another
/// role first.
const TEMPLATES: [Option<&str>; 4] = [
    None,
    Some(synth::vocabulary::CHAT_TEMPLATE),
    Some(
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system messages here') }}{% endif %}{{ m.content }}{% endfor %}",
    ),
    Some("{% for m in messages %}{{ m['role'] | upper ~ ': ' ~ m['content'].strip() }}\n{% endfor %}"),
];

/// A shape that the engine takes, drawn over every hyperparameter.
fn draw(rng: &mut ChaCha8Rng) -> SynthSpec {
    fn pick<T: Copy>(rng: &mut ChaCha8Rng, of: &[T]) -> T {
        *of.choose(rng).unwrap()
    }
    loop {
        let n_embd: u32 = pick(rng, &[128, 256, 256, 384, 512]);
        let head_dim = pick(rng, &[2, 4, 8, 16, 24, 32, 48, 64, 96, 128]);
        if !n_embd.is_multiple_of(head_dim) {
            continue;
        }
        let n_head: u32 = n_embd / head_dim;
        let divisors: Vec<u32> = (1..=n_head).filter(|d| n_head.is_multiple_of(*d)).collect();
        let n_head_kv = match rng.random_range(0..4) {
            0 => 1,
            1 if n_head.is_multiple_of(2) => 2,
            2 => n_head,
            _ => pick(rng, &divisors),
        };
        let architecture = pick(
            rng,
            &[
                Architecture::BitnetB158,
                Architecture::Bitnet25,
                Architecture::Bitnet,
                Architecture::Llama,
                Architecture::Llama,
            ],
        );
        let n_vocab = rng.random_range(272..1500);
        let mut vocabulary = Vocabulary::synthetic(n_vocab as usize).unwrap();
        match rng.random_range(0..4) {
            0 => vocabulary.bos = None,
            1 => vocabulary.add_bos = None,
            2 => vocabulary.add_bos = Some(false),
            _ => {}
        }
        vocabulary.chat_template = pick(rng, &TEMPLATES).map(str::to_owned);
        let spec = SynthSpec {
            name: "sweep".into(),
            architecture,
            n_layer: pick(rng, &[1, 1, 2, 2, 3, 5]),
            n_embd,
            n_ff: pick(rng, &[128, 256, 384, 640]),
            n_head,
            n_head_kv,
            n_vocab,
            n_ctx: match rng.random_range(0..3) {
                0 => rng.random_range(3..=160),
                1 => pick(rng, &[256, 512, 1000]),
                _ => pick(rng, &[2048, 4096, 131_072]),
            },
            rope_base: pick(rng, &[1.0, 2.0, 50.0, 100.0, 200.0, 1000.0, 10_000.0, 500_000.0, 1e6, 1e9]),
            rms_eps: pick(rng, &[1e-6, 1e-5, 1e-4, 1e-3]),
            f32_embedding: rng.random(),
            separate_output: architecture == Architecture::Llama && rng.random(),
            pre_tokenizer: pick(
                rng,
                &[
                    Some("llama-bpe"),
                    Some("qwen2"),
                    Some("gpt-2"),
                    Some("falcon3"),
                    Some("smollm"),
                    Some("default"),
                    None,
                ],
            )
            .map(str::to_owned),
            vocabulary: Some(vocabulary),
        };
        if spec.check().is_ok() {
            return spec;
        }
    }
}

fn run(args: &[&str]) -> (Option<i32>, Vec<u8>, String) {
    let output = Command::cargo_bin("harness").unwrap().args(args).output().unwrap();
    (output.status.code(), output.stdout, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// What is wrong with the suite's report of a model; none is the answer.
fn wrong_in(report: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    for gate in report["gates"].as_array().unwrap() {
        let findings = gate["findings"].as_array().unwrap();
        let reasons: Vec<&Value> = findings.iter().filter(|f| f["severity"] == "unmeasured").collect();
        match gate["verdict"].as_str() {
            Some("PASS") => {}
            Some("UNKNOWN") if !reasons.is_empty() => {}
            verdict => wrong.push(format!("gate {}: {verdict:?}: {} {findings:#?}", gate["id"], gate["summary"])),
        }
    }
    for fault in report["self_check"].as_array().unwrap() {
        let missed = fault["caught"] == false && fault["not_applicable"] != true;
        if missed || fault["evidence"].as_str().unwrap().is_empty() {
            wrong.push(format!("gate {}, fault {}: {}", fault["gate"], fault["fault"], fault["evidence"]));
        }
    }
    wrong
}

/// Runs everything on one model file; what went wrong.
fn sweep(folder: &Path, model: &Path, gates: &str, threads: &str) -> (Vec<String>, Value) {
    let mut wrong = Vec::new();
    let model = model.to_str().unwrap();
    let out = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (quantized, repacked, back) = (out("q.gguf"), out("tq2.gguf"), out("back.gguf"));
    let steps: [&[&str]; 5] = [
        &["model", "inspect", model, "--format", "json"],
        &["model", "quantize", "--model", model, "--embedding", "q8_0", "--out", &quantized, "--force"],
        &["model", "inspect", &quantized],
        &["model", "repack", "--model", model, "--to", "tq1_0", "--out", &repacked, "--force"],
        &["model", "repack", "--model", &repacked, "--to", "i2_s", "--out", &back, "--force"],
    ];
    for args in steps {
        let (code, _, err) = run(args);
        // tq1_0 comes in blocks of 256: a row that they do not divide is refused by name.
        let refused = args[1] == "repack" && code == Some(4) && err.contains("tq1_0");
        if code != Some(0) && !refused {
            wrong.push(format!("{args:?}: {code:?} {err}"));
        }
        if refused {
            break;
        }
    }
    let args = [
        "gates",
        "--quick",
        "--self-check",
        "--threads",
        threads,
        "--format",
        "json",
        "--only",
        gates,
        "--model",
        model,
    ];
    let (code, stdout, err) = run(&args);
    let Ok(report) = serde_json::from_slice::<Value>(&stdout) else {
        wrong.push(format!("gates: {code:?} {err}"));
        return (wrong, Value::Null);
    };
    wrong.extend(wrong_in(&report));
    if !matches!(code, Some(0 | 3)) {
        wrong.push(format!("gates: exit code {code:?}"));
    }
    (wrong, report)
}

/// Kernel and agent do not depend on the model beyond its shapes: where many models are run, some run them.
fn gates_of(n: u64) -> &'static str {
    match n % 5 {
        0 => "0,1,2,3a,3b,4,5",
        _ => "0,2,3a,3b,4",
    }
}

/// Every verdict on a model that nobody thought of is PASS, or UNKNOWN with its reason: two tests, for two cores.
#[test]
fn every_even_model_passes_or_says_what_is_unknown() {
    every_second_model(0);
}

#[test]
fn every_odd_model_passes_or_says_what_is_unknown() {
    every_second_model(1);
}

fn every_second_model(first: u64) {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("m.gguf");
    let (mut wrong, mut verdicts) = (Vec::new(), std::collections::BTreeMap::<String, u32>::new());
    let (mut caught, mut elsewhere) = (0, 0);
    let seed = std::env::var("SWEEP_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(SEED);
    for n in (first..models()).step_by(2) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed << 32 | n);
        let spec = draw(&mut rng);
        write_synth_file(&spec, n, &model, true, &mut |_| (), &AtomicBool::new(false)).unwrap();
        // Two threads that wait for each other cost a busy machine much more than they compute.
        let threads = if n % 5 == 0 { "2" } else { "1" };
        let (found, report) = sweep(folder.path(), &model, gates_of(n), threads);
        println!("model {n}: {} wrong", found.len());
        let shape = SynthSpec { vocabulary: None, ..spec.clone() };
        wrong.extend(found.into_iter().map(|what| format!("model {n} of seed {seed} ({shape:?}): {what}")));
        for gate in report["gates"].as_array().into_iter().flatten() {
            *verdicts.entry(format!("{} {}", gate["id"], gate["verdict"])).or_default() += 1;
        }
        for fault in report["self_check"].as_array().into_iter().flatten() {
            caught += u32::from(fault["caught"] == true);
            elsewhere += u32::from(fault["not_applicable"] == true);
        }
    }
    println!("half of {} models: {verdicts:?}; {caught} faults caught, {elsewhere} without a place", models());
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(caught > 10 * (models() / 2) as u32);
}

/// Takes an hour and tens of gigabytes for the large ones: `make sweep` says which (`SWEEP_PRESETS`, comma separated).
#[test]
#[ignore = "presets are large: make sweep"]
fn no_preset_fails() {
    let wanted = std::env::var("SWEEP_PRESETS").unwrap_or_else(|_| "tiny,125m,350m".into());
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("m.gguf");
    let mut wrong = Vec::new();
    for preset in PRESETS.iter().filter(|p| wanted.split(',').any(|w| w == p.name)) {
        let spec = SynthSpec::preset(preset.name).unwrap();
        write_synth_file(&spec, 1, &model, true, &mut |_| (), &AtomicBool::new(false)).unwrap();
        let (found, report) = sweep(folder.path(), &model, "0,1,3a,3b,4", "2");
        let verdicts: Vec<String> =
            report["gates"].as_array().into_iter().flatten().map(|g| format!("{} {}", g["id"], g["verdict"])).collect();
        println!("{}: {}", preset.name, verdicts.join(", "));
        wrong.extend(found.into_iter().map(|what| format!("{}: {what}", preset.name)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
