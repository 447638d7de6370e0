//! `harness cartridge` as its users run it: the path of the how-to, and every refusal by name.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::Value;
use sha2::{Digest, Sha256};

fn run_with(args: &[&str], stdin: &str) -> (i32, String, String) {
    let output = Command::cargo_bin("harness")
        .unwrap()
        .env("BITNET_PROFILE", "off")
        .args(args)
        .write_stdin(stdin)
        .output()
        .unwrap();
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
    (output.status.code().expect("no signal"), text(&output.stdout), text(&output.stderr))
}

fn run(args: &[&str]) -> (i32, String, String) {
    run_with(args, "")
}

fn json(args: &[&str]) -> Value {
    let (code, out, err) = run(args);
    assert_eq!(code, 0, "{args:?}: {out} {err}");
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{args:?}: {e}: {out}"))
}

/// A cartridge taken apart.
#[derive(Clone)]
struct Parts {
    metadata: HashMap<String, String>,
    tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)>,
}

impl Parts {
    fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensors = file.tensors().into_iter();
        let tensors = tensors.map(|(name, t)| (name, t.dtype(), t.shape().to_vec(), t.data().to_vec())).collect();
        Self { metadata: header.metadata().clone().unwrap(), tensors }
    }

    fn write(&self, path: &Path) {
        let views = self.tensors.iter().map(|(n, d, s, b)| (n.clone(), TensorView::new(*d, s.clone(), b).unwrap()));
        std::fs::write(path, safetensors::serialize(views, Some(self.metadata.clone())).unwrap()).unwrap();
    }

    fn set(mut self, key: &str, value: &str) -> Self {
        self.metadata.insert(key.into(), value.into());
        self
    }

    fn i32s(&mut self, name: &str, change: impl Fn(usize, i32) -> i32) {
        let bytes = &mut self.tensors.iter_mut().find(|t| t.0 == name).unwrap().3;
        for (i, b) in bytes.chunks_exact_mut(4).enumerate() {
            b.copy_from_slice(&change(i, i32::from_le_bytes([b[0], b[1], b[2], b[3]])).to_le_bytes());
        }
        let hash: String = Sha256::digest(&*bytes).iter().map(|b| format!("{b:02x}")).collect();
        if name == "tokens" {
            self.metadata.insert("tokens_hash".into(), format!("sha256:{hash}"));
        }
    }

    /// Without what repeats the shapes and hashes the values: a file that somebody else wrote.
    fn bare(mut self) -> Self {
        self.metadata.remove("payload_hash");
        self.tensors.retain(|t| !t.0.starts_with("blob."));
        self
    }
}

/// The text file of the how-to and its cartridge.
fn devices(folder: &Path) -> (PathBuf, String) {
    let (text, out) = (folder.join("devices.txt"), folder.join("devices.safetensors"));
    std::fs::write(&text, "Devices:\n- pixa: camera, hallway\n").unwrap();
    let made = json(&[
        "cartridge",
        "create",
        "--text",
        text.to_str().unwrap(),
        "--system",
        "--out",
        out.to_str().unwrap(),
        "--format",
        "json",
    ]);
    assert_eq!(made["bytes"], std::fs::metadata(&out).unwrap().len());
    let name = out.to_str().unwrap().to_owned();
    (out, name)
}

#[test]
fn from_a_text_file_to_an_answer_and_a_conversation() {
    let folder = tempfile::tempdir().unwrap();
    let (path, file) = devices(folder.path());
    let inspected = json(&["cartridge", "inspect", &file, "--format", "json"]);
    assert_eq!((&inspected["layout"], &inspected["mounts_without_copy"]), (&"native".into(), &true.into()));
    let verified = json(&["cartridge", "verify", &file, "--format", "json"]);
    assert_eq!((&verified["lock"], &verified["continuation"]["bit_exact"]), (&"ok".into(), &true.into()), "{verified}");

    let command = "switch pixa on";
    let mounted = json(&["cartridge", "mount", &file, "--prompt", command, "--format", "json"]);
    let said: Value = serde_json::from_str(mounted["text"].as_str().unwrap()).unwrap();
    assert_eq!((&said["room"], &said["device_type"]), (&"hallway".into(), &"camera".into()), "{mounted}");
    // The same words with the list in the prompt, and without it.
    let system = "Devices:\n- pixa: camera, hallway";
    let generate = |more: &[&str]| {
        json(&[&["generate", "--chat", "--prompt", command, "--format", "json"], more].concat())["text"].clone()
    };
    assert_eq!(generate(&["--system", system]), mounted["text"]);
    assert_eq!(generate(&["--cartridge", &file]), mounted["text"]);
    let blind: Value = serde_json::from_str(generate(&[]).as_str().unwrap()).unwrap();
    assert_eq!((&blind["room"], &blind["device_type"]), (&"unknown".into(), &"unknown".into()));

    let (code, out, err) = run_with(&["cartridge", "mount", &file], "switch pixa on\nwhat is pixa?\n");
    assert_eq!(code, 0, "{err}");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!((lines.len(), lines[0]), (2, mounted["text"].as_str().unwrap()), "{out}");
    assert!(err.contains("tokens mounted"), "{err}");
    let same = run_with(&["chat", "--cartridge", &file], "switch pixa on\nwhat is pixa?\n");
    assert_eq!((same.0, same.1), (0, out));

    // Out as a blob, and in again: the same cells.
    let ids = Parts::read(&path).tensors.into_iter().find(|t| t.0 == "tokens").unwrap().3;
    let ids: Vec<String> =
        ids.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]).to_string()).collect();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(at("ids.txt"), ids.join(", ")).unwrap();
    let exported = json(&["cartridge", "export-blob", &file, "--out", &at("blob"), "--format", "json"]);
    let size = std::fs::metadata(at("blob")).unwrap().len();
    assert_eq!((&exported["n_tokens"], &exported["bytes"]), (&ids.len().into(), &size.into()), "{exported}");
    let args = ["cartridge", "import-blob", &at("blob"), "--tokens", &at("ids.txt"), "--out", &at("again.safetensors")];
    assert_eq!(run(&args).0, 0);
    assert_eq!(run(&args).0, 2, "an existing file stays without --force");
    let imported = json(&[&args[..], &["--force", "--format", "json"]].concat());
    assert_eq!((&imported["n_tokens"], &imported["out"]), (&ids.len().into(), &at("again.safetensors").into()));
    let (code, out, _) = run(&["cartridge", "diff", &file, &at("again.safetensors")]);
    assert!(code == 0 && !out.contains("layer"), "{out}");
}

#[test]
fn verify_refuses_every_wrong_lock_field_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = devices(folder.path());
    let whole = Parts::read(&path);
    let ours = |key: &str| whole.metadata[key].clone();
    let zero = format!("sha256:{}", "0".repeat(64));
    let engine = "0".repeat(40);
    let n = whole.metadata["n_tokens"].parse::<usize>().unwrap();

    // (field, the file, its value, the model's value)
    let mut cases: Vec<(&str, Parts, String, String)> = Vec::new();
    for (field, wrong) in [
        ("model_id", "somebody else's"),
        ("model_arch_hash", &zero),
        ("model_weights_hash", &zero),
        ("tokenizer_hash", &zero),
        ("rope_type", "norm"),
        ("rope_theta", "10000"),
        ("rope_scaling", "linear:2"),
        ("rope_dim", "32"),
        ("engine", &engine),
    ] {
        cases.push((field, whole.clone().set(field, wrong), wrong.into(), ours(field)));
    }
    let mut far = whole.clone().bare().set("first_pos", "1020");
    far.i32s("positions", |_, p| p + 1020);
    cases.push(("first_pos + n_tokens", far, (1020 + n).to_string(), "1024".into()));
    let mut foreign = whole.clone();
    foreign.i32s("tokens", |i, t| if i == 3 { 70_000 } else { t });
    cases.push(("tokens", foreign, "70000 (at 3)".into(), "2048".into()));
    let mut shallow = whole.clone().bare();
    shallow.tensors.retain(|t| !t.0.starts_with("layer.3."));
    cases.push(("n_layer", shallow, "3".into(), "4".into()));
    // Four heads of 32 instead of two of 64: the same bytes.
    let mut heads = whole.clone().bare();
    for (name, _, shape, _) in heads.tensors.iter_mut().filter(|t| t.0.starts_with("layer.")) {
        let (h, d) = if name.ends_with(".k") { (1, 2) } else { (0, 1) };
        (shape[h], shape[d]) = (shape[h] * 2, shape[d] / 2);
    }
    cases.push(("n_head_kv x head_dim", heads, "4 x 32/32".into(), "2 x 64".into()));

    let file = folder.path().join("wrong.safetensors");
    let name = file.to_str().unwrap();
    // Hashes are shown by their beginning.
    let shown = |value: String| match value.strip_prefix("sha256:") {
        Some(hash) => format!("sha256:{}…", &hash[..12]),
        None => value,
    };
    for (field, parts, theirs, ours) in cases {
        let (theirs, ours) = (shown(theirs), shown(ours));
        parts.write(&file);
        let (code, out, err) = run(&["cartridge", "verify", name]);
        assert_eq!((code, out.as_str()), (4, ""), "{field}: {err}");
        let found = format!("{field} is {theirs}");
        let (_, rest) = err.split_once(&found).unwrap_or_else(|| panic!("{field}: no {found:?} in {err}"));
        assert!(rest.contains(&ours), "{field}: no {ours:?} in {err}");
        assert!(err.contains("wrong.safetensors"), "{err}");
        assert_eq!(err.matches(" in the file").count(), 1, "only {field} is wrong: {err}");
        // What mounts it refuses alike.
        let (code, _, again) = run(&["cartridge", "mount", name, "--prompt", "x"]);
        assert!(code == 4 && again.contains(&found), "{field}: {again}");
    }
    // The intact file, rewritten the same way, passes: the table's files are wrong in one place only.
    whole.clone().bare().write(&file);
    assert_eq!(run(&["cartridge", "verify", name]).0, 0);
}

#[test]
fn verify_tells_weights_of_equal_shape_apart() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let mut hashes = Vec::new();
    for seed in ["1", "2"] {
        let out = at(&format!("{seed}.gguf"));
        assert_eq!(run(&["model", "synth", "--preset", "tiny", "--seed", seed, "--out", &out]).0, 0);
        let inspected = json(&["model", "inspect", &out, "--hash", "--format", "json"]);
        hashes.push(inspected["lock"]["model_weights_hash"].as_str().unwrap().to_owned());
    }
    std::fs::write(at("ids.txt"), "5 6 7 8 9 10 11 12").unwrap();
    let args = ["--model", &at("1.gguf"), "--tokens", &at("ids.txt"), "--out", &at("one.safetensors")];
    assert_eq!(run(&[&["cartridge", "create"], &args[..]].concat()).0, 0);
    assert_eq!(run(&["cartridge", "verify", &at("one.safetensors"), "--model", &at("1.gguf")]).0, 0);
    let (code, _, err) = run(&["cartridge", "verify", &at("one.safetensors"), "--model", &at("2.gguf")]);
    assert_eq!(code, 4, "{err}");
    let [start, other] = [0, 1].map(|n: usize| &hashes[n][.."sha256:".len() + 12]);
    let said = format!("\n  model_weights_hash is {start}… in the file, {other}… here");
    assert!(err.contains(&said), "{err}");
    assert_eq!(err.matches(" in the file").count(), 1, "{err}");
}

#[test]
fn verify_refuses_damage_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = devices(folder.path());
    let whole = Parts::read(&path);
    let file = folder.path().join("damaged.safetensors");
    let verify = |parts: &Parts| {
        parts.write(&file);
        let (code, _, err) = run(&["cartridge", "verify", file.to_str().unwrap()]);
        assert_eq!(code, 4, "{err}");
        err
    };
    let payload = |parts: &mut Parts, bytes: [u8; 2]| {
        let t = parts.tensors.iter_mut().find(|t| t.0 == "layer.2.k").unwrap();
        // Position 1, head 1, element 3 of [p, 2, 64] f16.
        let at = ((2 + 1) * 64 + 3) * 2;
        t.3[at..at + 2].copy_from_slice(&bytes);
    };
    let mut flipped = whole.clone();
    payload(&mut flipped, [0x12, 0x34]);
    assert!(verify(&flipped).contains("payload_hash"));
    let mut infinite = whole.clone().bare();
    payload(&mut infinite, [0x00, 0x7c]);
    let err = verify(&infinite);
    for part in ["layer 2", "head 1", "position 1"] {
        assert!(err.contains(part), "{part}: {err}");
    }
    let mut gap = whole.clone().bare();
    gap.i32s("positions", |i, p| if i >= 4 { p + 1 } else { p });
    assert!(verify(&gap).contains("positions[4] is 5 and must be 4"));
    assert!(verify(&whole.clone().set("format", "bitnet-cartridge/2")).contains("too new"));
    assert!(verify(&whole.clone().set("format", "bitnet-cartridge/0")).contains("too old"));
    let mut missing = whole.clone();
    missing.metadata.remove("rope_theta");
    assert!(verify(&missing).contains("`rope_theta` is missing"));
}

#[test]
fn a_native_file_becomes_portable_and_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let (path, file) = devices(folder.path());
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let ask =
        |file: &str, more: &[&str]| run(&[&["cartridge", "mount", file, "--prompt", "switch pixa on"], more].concat());
    // Captured without flash attention, it does not mount with it; the message says what to do, and that works.
    let (code, _, err) = ask(&file, &["--flash-attn"]);
    assert!(code == 4 && err.contains("convert the cartridge to head-major"), "{err}");
    let convert = |from: &str, to: &str, out: &str, more: &[&str]| {
        run(&[&["cartridge", "convert", from, "--to", to, "--out", &at(out)], more].concat())
    };
    assert_eq!(convert(&file, "head-major", "portable", &[]).0, 0);
    let (code, out, _) = ask(&at("portable"), &["--flash-attn"]);
    assert!(code == 0 && out.contains("hallway"), "{out}");
    assert_eq!(ask(&at("portable"), &[]).1, ask(&file, &[]).1);
    assert_eq!(convert(&at("portable"), "native", "flash", &["--flash-attn"]).0, 0);
    assert!(ask(&at("flash"), &["--flash-attn"]).1.contains("hallway"));
    // There and back: the same bytes of keys and values.
    assert_eq!(convert(&at("portable"), "native", "back", &[]).0, 0);
    let payload = |p: &Path| {
        let mut tensors: Vec<_> = Parts::read(p).tensors.into_iter().map(|t| (t.0, t.3)).collect();
        tensors.sort();
        tensors
    };
    assert!(payload(&path) == payload(&folder.path().join("back")));

    assert_eq!(convert(&file, "head-major", "portable", &[]).0, 2, "an existing file stays");
    let (code, _, err) = convert(&file, "head-major", "narrow", &["--type-k", "bf16"]);
    assert!(code == 4 && err.contains("layer 0"), "{err}");
    assert_eq!(convert(&file, "head-major", "narrow", &["--type-k", "bf16", "--round"]).0, 0);
    let narrow = json(&["cartridge", "inspect", &at("narrow"), "--format", "json"]);
    assert_eq!(narrow["metadata"]["rounded_from"], "f16/f16");
    assert_eq!(convert(&file, "head-major", "q", &["--type-k", "q8_0"]).0, 4);
    assert_eq!(convert(&file, "head-major", "f", &["--flash-attn"]).0, 2);
}

/// Keys and values that transformers computed for the embedded model, head-major.
fn computed_by_transformers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../gates/cartridges/hf-prefix.safetensors")
}

#[test]
fn parts_of_a_trained_cache_become_a_cartridge() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    // A cache as a trainer saves it before its first step: the first cell frozen, the rest to be trained.
    let whole = Parts::read(&computed_by_transformers());
    let mut cache = Parts { metadata: HashMap::new(), tensors: Vec::new() };
    let mut ids = Vec::new();
    for (name, dtype, shape, bytes) in &whole.tensors {
        let Some(rest) = name.strip_prefix("layer.") else {
            if name == "tokens" {
                ids.extend(bytes.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]).to_string()));
            }
            continue;
        };
        let (layer, tensor) = rest.split_once('.').unwrap();
        let tensor = if tensor == "k" { "keys" } else { "values" };
        let (p, row) = (shape[1], shape[2] * 2);
        let cells = |range: std::ops::Range<usize>| -> Vec<u8> {
            bytes.chunks_exact(p * row).flat_map(|head| head[range.start * row..range.end * row].to_vec()).collect()
        };
        for (part, range) in [("frozen", 0..1), ("trainable", 1..p)] {
            let shape = vec![1, shape[0], range.len(), shape[2]];
            cache.tensors.push((format!("{part}_{tensor}.{layer}"), *dtype, shape, cells(range)));
        }
    }
    cache.write(&folder.path().join("cache.safetensors"));
    std::fs::write(at("ids.txt"), ids.join(" ")).unwrap();

    let import = |more: &[&str], out: &str| {
        run(&[&["cartridge", "import-parts", &at("cache.safetensors"), "--out", &at(out)], more].concat())
    };
    // With its tokens: joined as it was, and the engine's own prefill agrees within gate 3b's bound.
    let (code, out, err) = import(&["--tokens", &at("ids.txt")], "start.safetensors");
    assert!(code == 0 && out.contains(&format!("wrote {} tokens", ids.len())), "{out} {err}");
    let original = computed_by_transformers();
    let (code, out, _) = run(&["cartridge", "diff", original.to_str().unwrap(), &at("start.safetensors")]);
    assert!(code == 0 && !out.contains("layer "), "{out}");
    let verified = json(&["cartridge", "verify", &at("start.safetensors"), "--format", "json"]);
    let kl = verified["continuation"]["mean_kl"].as_f64().unwrap();
    assert!(kl > 0.0 && kl <= 3e-4, "{verified}");

    // Trained: cells stand for no token, so there is nothing to prefill for comparison, and verify says so.
    assert_eq!(import(&["--title", "trained"], "trained.safetensors").0, 0);
    let (code, out, _) = run(&["cartridge", "verify", &at("trained.safetensors")]);
    assert!(code == 3 && out.contains("not measured"), "{out}");
    let mounted = json(&["cartridge", "mount", &at("trained.safetensors"), "--prompt", "x", "--format", "json"]);
    assert_eq!(mounted["cartridge_tokens"], ids.len());

    assert_eq!(import(&[], "trained.safetensors").0, 2, "an existing file stays");
    std::fs::write(at("few.txt"), "1 2").unwrap();
    let (code, _, err) = import(&["--tokens", &at("few.txt")], "few.safetensors");
    assert!(code == 4 && err.contains("2 tokens were given for"), "{err}");
    cache.tensors.retain(|t| t.0 != "trainable_values.2");
    cache.write(&folder.path().join("cache.safetensors"));
    let (code, _, err) = import(&[], "other.safetensors");
    assert!(code == 4 && err.contains("layer 2 has no trainable values"), "{err}");
    std::fs::write(at("cache.safetensors"), b"\x80\x02}q\0.").unwrap();
    assert_eq!(import(&[], "other.safetensors").0, 4, "a pickle");
    assert!(!folder.path().join("other.safetensors").exists());
}

#[test]
fn gate_3b_measures_the_cartridge_that_transformers_computed() {
    let (code, out, err) = run(&["gates", "--only", "3b", "--threads", "1", "--format", "json"]);
    assert_eq!(code, 3, "one gate decides no P0: {err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    let metrics = &report["gates"][0]["metrics"];
    for kl in ["foreign_kl_to_engine", "foreign_kl_to_transformers"] {
        let kl = metrics[kl].as_f64().unwrap_or_else(|| panic!("{kl} was not measured: {metrics}"));
        assert!(kl > 0.0 && kl <= 3e-4, "{metrics}");
    }
    for layout in ["native", "rewritten", "head_major"] {
        assert_eq!(metrics[format!("{layout}_max_abs")].as_f64(), Some(0.0), "{metrics}");
    }
}

/// A text that comes back as it was put in, and ids that make the same cartridge again.
#[test]
fn inspect_shows_the_text_and_prints_the_ids_that_importing_needs() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (text, c, blob, ids, again) = (at("t"), at("c"), at("b"), at("ids"), at("again"));
    std::fs::write(&text, "The lamp in the kitchen is called lumo.").unwrap();
    json(&["cartridge", "create", "--text", &text, "--threads", "1", "--format", "json", "--out", &c]);
    let seen = json(&["cartridge", "inspect", &c, "--format", "json"]);
    assert!(seen["text"].as_str().unwrap().ends_with("The lamp in the kitchen is called lumo."), "{seen}");
    let (_, shown, _) = run(&["cartridge", "inspect", &c]);
    assert!(shown.contains("The lamp in the kitchen is called lumo."), "{shown}");

    let (code, printed, _) = run(&["cartridge", "inspect", &c, "--ids"]);
    assert_eq!(code, 0);
    let listed: Vec<i64> = printed.split_whitespace().map(|id| id.parse().unwrap()).collect();
    assert_eq!(seen["tokens"], serde_json::json!(listed));
    assert_eq!(listed.len() as u64, seen["n_tokens"].as_u64().unwrap());
    std::fs::write(&ids, printed).unwrap();
    json(&["cartridge", "export-blob", &c, "--format", "json", "--out", &blob]);
    json(&["cartridge", "import-blob", &blob, "--tokens", &ids, "--format", "json", "--out", &again]);
    let difference = json(&["cartridge", "diff", &c, &again, "--format", "json"]);
    assert_eq!((&difference["first_token"], &difference["tensors"]), (&Value::Null, &serde_json::json!([])));

    // The same from stdin.
    let from_stdin = ["cartridge", "create", "--text", "-", "--threads", "1", "--out", &again, "--force"];
    let (code, _, err) = run_with(&from_stdin, "The lamp in the kitchen is called lumo.");
    assert_eq!(code, 0, "{err}");
    assert_eq!(json(&["cartridge", "inspect", &again, "--format", "json"])["tokens"], seen["tokens"]);
}

/// One continues the other, or they part somewhere: said instead of 'cannot be compared'.
#[test]
fn cartridges_of_different_length_are_compared_as_far_as_they_go() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for (name, ids) in [("short", "5 6 7"), ("long", "5 6 7 8 9"), ("other", "5 9 7 8")] {
        std::fs::write(at(name), ids).unwrap();
        let (tokens, out) = (at(name), at(&format!("{name}.c")));
        json(&["cartridge", "create", "--tokens", &tokens, "--threads", "1", "--format", "json", "--out", &out]);
    }
    let diff = |a: &str, b: &str| run(&["cartridge", "diff", &at(a), &at(b)]);
    let (code, out, _) = diff("short.c", "long.c");
    assert!(code == 1 && out.contains("tokens: 3 and 5; the first 3 are equal"), "{out}");
    let (code, out, _) = diff("long.c", "other.c");
    assert!(code == 1 && out.contains("tokens: 5 and 4; they differ from index 1"), "{out}");
    let (code, out, _) = run(&["cartridge", "diff", &at("short.c"), &at("long.c"), "--format", "json"]);
    let document: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, document["first_token"].as_u64()), (1, Some(3)));
}

/// The marker that closes the turn is never cut off, and no message recommends it.
#[test]
fn a_conversations_turn_is_kept_whole() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(at("t"), "Devices:\n- lumo: light, kitchen").unwrap();
    std::fs::write(at("long"), "turn on the kitchen light ".repeat(2000)).unwrap();
    let create = |text: &str, more: &[&str]| {
        let (text, out) = (at(text), at("c"));
        run(&[&["cartridge", "create", "--text", &text, "--threads", "1", "--out", &out, "--force"], more].concat())
    };
    let (code, _, err) = create("t", &["--system", "--max-tokens", "4"]);
    assert!(code == 2 && err.contains("--max-tokens 4") && err.contains("closes it"), "{err}");
    let (code, _, err) = create("t", &["--system", "--max-tokens", "1000"]);
    assert_eq!(code, 0, "{err}");
    let (code, _, err) = create("long", &["--system"]);
    assert!(code == 2 && err.contains("shorten the text") && !err.contains("--max-tokens"), "{err}");
    let (code, _, err) = create("long", &["--max-tokens", "16"]);
    assert_eq!(code, 0, "a plain text may be cut: {err}");
}
