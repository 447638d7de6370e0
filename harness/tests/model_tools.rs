//! `harness model …` as its users run it.

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use gguf::{GgufFile, Limits};
use serde_json::Value;

fn run(args: &[&str]) -> (i32, String, String) {
    let output = Command::cargo_bin("harness").unwrap().args(args).output().unwrap();
    let code = output.status.code().expect("no signal");
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
    (code, text(&output.stdout), text(&output.stderr))
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Bytes of every tensor by name and type.
fn tensors(path: &Path) -> Vec<(String, &'static str, Vec<u8>)> {
    let file = GgufFile::open(path, &Limits::default()).unwrap();
    let gguf = file.gguf();
    let read = |t| file.read_tensor(t).unwrap();
    gguf.tensors().iter().map(|t| (t.name().to_owned(), t.ggml_type().name(), read(t))).collect()
}

#[test]
fn a_model_without_pre_tokenizer_is_reported_and_refused_when_strict() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let model = path.to_str().unwrap();
    let (code, _, err) = run(&["model", "synth", "--preset", "tiny", "--pre", "none", "--out", model]);
    assert_eq!(code, 0, "{err}");
    let (code, out, _) = run(&["model", "inspect", model, "--format", "json"]);
    assert_eq!(code, 0);
    let inspection: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&inspection["path"], &inspection["tokenizer"]["pre"]), (&model.into(), &Value::Null));
    assert!(inspection["warnings"].as_array().unwrap().iter().any(|w| w["code"] == "pre-tokenizer-missing"));
    let (code, _, err) = run(&["model", "tokenize", "--model", model, "x"]);
    assert!(code == 0 && err.contains("tokenizer.ggml.pre is missing"), "{err}");
    for command in [
        &["model", "inspect", "--strict", model][..],
        &["model", "tokenize", "--strict", "--model", model, "x"],
        &["gates", "--strict", "--only", "3a", "--model", model],
    ] {
        let (code, out, err) = run(command);
        assert_eq!((code, out.as_str()), (4, ""), "{command:?}");
        assert!(err.contains("tokenizer.ggml.pre is missing") && err.contains("llama-bpe"), "{err}");
    }
    // `quantize --pre` names it in a copy that has every tensor as it was.
    let named = folder.path().join("named.gguf");
    let copy = named.to_str().unwrap();
    let (code, _, err) = run(&["model", "quantize", "--model", model, "--pre", "llama-bpe", "--out", copy]);
    assert_eq!(code, 0, "{err}");
    assert_eq!(tensors(&path), tensors(&named));
    let (code, out, _) = run(&["model", "inspect", "--strict", copy, "--format", "json"]);
    let inspection: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &inspection["tokenizer"]["pre"]), (0, &"llama-bpe".into()));
}

#[test]
fn token_ids_of_the_trained_vocabulary() {
    let text = "Don't\n\n12345 灯";
    let (code, out, err) = run(&["model", "tokenize", "--format", "json", text]);
    assert_eq!(code, 0, "{err}");
    let tokens: Value = serde_json::from_str(&out).unwrap();
    let pieces = tokens["texts"][0]["pieces"].as_array().unwrap();
    let ids = tokens["texts"][0]["ids"].as_array().unwrap();
    // Pieces that are whole characters make the text; a character split over tokens shows as U+FFFD.
    let whole: String = pieces.iter().map(|p| p.as_str().unwrap()).collect();
    assert!(whole.starts_with("Don't\n\n12345 "), "{whole:?}");
    assert_eq!(ids.len(), pieces.len());
    // Digits are cut in threes.
    assert!(pieces.iter().all(|p| p.as_str().unwrap().chars().filter(char::is_ascii_digit).count() <= 3));
    let (_, out, _) = run(&["model", "tokenize", "--format", "json", "--markup", "<|eot_id|>"]);
    let tokens: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(tokens["texts"][0]["ids"], serde_json::json!([2047]));
}

#[test]
fn ternary_formats_into_each_other_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let embedded = repository().join("gates/models/bitnet-harness-home.gguf");
    let original = tensors(&embedded);
    for ty in ["tq2_0", "tq1_0"] {
        let (there, back) = (at(&format!("{ty}.gguf")), at(&format!("{ty}-back.gguf")));
        let (code, out, err) =
            run(&["model", "repack", "--to", ty, "--out", there.to_str().unwrap(), "--format", "json"]);
        assert_eq!(code, 0, "{err}");
        let report: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(report["result"]["changed"].as_array().unwrap().len(), 28);
        assert_eq!(report["evidence"]["verdict"], "x86");
        let (code, _, err) = run(&[
            "model",
            "repack",
            "--model",
            there.to_str().unwrap(),
            "--to",
            "i2_s",
            "--out",
            back.to_str().unwrap(),
        ]);
        assert_eq!(code, 0, "{err}");
        for ((name, _, before), (_, ty, after)) in original.iter().zip(tensors(&back)) {
            if ty != "i2_s" {
                assert!(*before == after, "{name}");
                continue;
            }
            // Codes are the same; the scale went through half precision (2^-11 of it at most).
            let codes = before.len() - 32;
            assert!(before[..codes] == after[..codes], "{name}");
            let scale = |b: &[u8]| f32::from_le_bytes([b[codes], b[codes + 1], b[codes + 2], b[codes + 3]]);
            assert!((scale(&after) / scale(before) - 1.0).abs() <= 1.0 / 2048.0, "{name}");
        }
    }
}

#[test]
fn arm_packing_is_seen_and_converted() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (arm, unstated, back) = (at("arm.gguf"), at("unstated.gguf"), at("back.gguf"));
    let (code, _, err) = run(&["model", "repack", "--to", "i2_s", "--to-packing", "arm", "--out", &arm]);
    assert_eq!(code, 0, "{err}");
    // The same file without our own note on it, as an ARM machine would have written it.
    let key = b"bitnet_harness.i2_s_packing";
    let mut bytes = std::fs::read(&arm).unwrap();
    let place = bytes.windows(key.len()).position(|w| w == key).unwrap();
    bytes[place..place + 6].copy_from_slice(b"foreig");
    std::fs::write(&unstated, bytes).unwrap();
    for file in [&arm, &unstated] {
        let (code, _, err) = run(&["model", "repack", "--model", file, "--to", "tq2_0", "--out", &back]);
        assert_eq!(code, 4, "{err}");
        assert!(err.contains("arm") && err.contains("--from-packing"), "{err}");
        assert!(!Path::new(&back).exists());
    }
    let (code, _, err) = run(&["model", "quantize", "--model", &unstated, "--matrices", "f16", "--out", &back]);
    assert!(code == 4 && err.contains("arm"), "{err}");
    // The engine would read noise from a file that says so itself.
    let (code, _, err) = run(&["model", "perplexity", "--model", &arm, "--text", "/dev/null"]);
    assert_ne!(code, 0, "{err}");
    let (code, _, err) = run(&["model", "tokenize", "--model", &arm, "x"]);
    assert!(code == 4 && err.contains("harness model repack"), "{err}");
    let (code, _, err) =
        run(&["model", "repack", "--model", &unstated, "--from-packing", "arm", "--to", "i2_s", "--out", &back]);
    assert_eq!(code, 0, "{err}");
    let embedded = repository().join("gates/models/bitnet-harness-home.gguf");
    assert!(tensors(Path::new(&back)) == tensors(&embedded));
}

#[test]
fn quantized_embeddings_keep_the_perplexity() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("q8.gguf");
    let q8 = path.to_str().unwrap();
    let (code, out, err) = run(&["model", "quantize", "--embedding", "q8_0", "--out", q8, "--format", "json"]);
    assert_eq!(code, 0, "{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    // Eight bits over the largest of 32 values: half a step is 1/254 of it.
    let error = report["result"]["changed"][0]["max_relative_error"].as_f64().unwrap();
    assert!(error > 0.0 && error <= 1.0 / 254.0 + 1e-3, "{error}");
    let (code, _, err) = run(&["model", "quantize", "--embedding", "q6_k", "--out", q8]);
    assert!(code == 2 && err.contains("--force"), "{err}");
    let (code, _, err) = run(&["model", "quantize", "--model", q8, "--embedding", "q8_0", "--out", q8, "--force"]);
    assert!(code == 2 && err.contains("is also an input"), "{err}");
    let again = folder.path().join("again.gguf");
    let again = again.to_str().unwrap();
    let (code, _, err) = run(&["model", "quantize", "--model", q8, "--embedding", "q8_0", "--out", again]);
    assert!(code == 2 && err.contains("already"), "{err}");
    assert_eq!(tensors(&path)[0].1, "q8_0");

    let passage = repository().join("gates/prompts/passage.txt");
    let measure = |model: &[&str]| -> f64 {
        let args =
            [&["model", "perplexity", "--n-ctx", "64", "--format", "json", "--text", passage.to_str().unwrap()], model];
        let (code, out, err) = run(&args.concat());
        assert_eq!(code, 0, "{err}");
        let table: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(table["rows"][0]["counted"], 93);
        table["rows"][0]["perplexity"].as_f64().unwrap()
    };
    // HuggingFace transformers on the checkpoint, float32, same windows and counting: 2.1347.
    let perplexity = measure(&[]);
    assert!((perplexity / 2.134_7 - 1.0).abs() < 1e-3, "{perplexity}");
    let quantized = measure(&["--model", q8]);
    assert!((quantized / perplexity - 1.0).abs() < 5e-3, "{quantized}");
    let (code, _, err) = run(&["model", "perplexity", "--text", passage.to_str().unwrap()]);
    assert!(code == 2 && err.contains("--n-ctx"), "{err}");
}

#[test]
fn a_checkpoint_is_converted_to_every_type() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = repository().join("gates/models/bitnet-harness-home-hf");
    for (ty, kind) in [("i2_s", "i2_s"), ("tq2_0", "tq2_0"), ("tq1_0", "tq1_0"), ("f16", "f16"), ("f32", "f32")] {
        let out = folder.path().join(format!("{ty}.gguf"));
        let args = ["model", "convert", checkpoint.to_str().unwrap(), "--type", ty, "--out", out.to_str().unwrap()];
        let (code, _, err) = run(&args);
        assert_eq!(code, 0, "{err}");
        let found = tensors(&out);
        assert_eq!(
            found.iter().filter(|(name, ..)| name.contains("ffn_down")).map(|t| t.1).collect::<Vec<_>>(),
            [kind; 4]
        );
        let (code, _, err) = run(&args);
        assert!(code == 2 && err.contains("--force"), "{err}");
    }
    let convert = |out: &str| run(&["model", "convert", folder.path().to_str().unwrap(), "--out", out]);
    let (code, _, err) = convert(folder.path().join("x").to_str().unwrap());
    assert!(code == 4 && err.contains("config.json"), "{err}");
    // Where the result goes is asked before the work.
    let (code, _, err) = convert("/nowhere/x");
    assert!(code == 2 && err.contains("/nowhere/x"), "{err}");
}

#[test]
fn every_model_command_has_an_example() {
    for command in ["synth", "inspect", "record", "tokenize", "quantize", "repack", "convert", "perplexity", "pull"] {
        let (code, out, _) = run(&["model", command, "--help"]);
        assert!(code == 0 && out.contains("harness model ") && out.contains("Example"), "{command}: {out}");
    }
}

#[test]
fn memory_for_a_context_and_its_types() {
    let inspect = |args: &[&str]| run(&[&["model", "inspect", "--format", "json"], args].concat());
    let (code, out, _) = inspect(&["--n-ctx", "300", "--type-k", "q8_0", "--type-v", "q8_0", "--flash-attn"]);
    assert_eq!(code, 0);
    let inspection: Value = serde_json::from_str(&out).unwrap();
    // Four layers, two KV heads of 64: two blocks of 34 bytes for keys and for values. 300 cells become 512.
    assert_eq!(inspection["memory"]["kv_bytes_per_token"], 2 * 2 * 34 * 2 * 4);
    assert_eq!(inspection["memory"]["kv_bytes"], 512 * 1088);
    let (code, out, err) = inspect(&["--type-v", "q8_0"]);
    assert!(code == 2 && out.is_empty() && err.contains("--flash-attn"), "{err}");
    assert_eq!(inspect(&["--type-k", "i2_s"]).0, 2);
}
