//! Variants of a tokenizer.json: the engine's ids after the conversion are those of HuggingFace `tokenizers`
//! (`scripts/tokenizer_cases.py`), or the variant is refused or warned of by field.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use bitnet_rs::{Model, ModelParams, Special};
use models::hf_tokenizer::{self, HfTokenizer, Neighbours};
use serde_json::{Value, json};
use synth::{SynthSpec, write_synth_file};

const CASES: &str = include_str!("fixtures/tokenizers.json");
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../gates/models/bitnet-harness-home-hf");

fn read(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(Path::new(FOLDER).join(name)).unwrap()).unwrap()
}

fn changed(base: &Value, changes: &Value) -> Value {
    let mut variant = base.clone();
    for (path, value) in changes.as_object().unwrap() {
        let place = path.split('.').fold(&mut variant, |place, key| &mut place[key]);
        *place = match (path.as_str(), value.as_str()) {
            ("model.merges", Some("text")) => {
                let text = |m: &Value| format!("{} {}", m[0].as_str().unwrap(), m[1].as_str().unwrap());
                place.as_array().unwrap().iter().map(|m| m.as_str().map_or_else(|| text(m), str::to_owned)).collect()
            }
            ("model.merges", Some("half")) => {
                let all = place.as_array().unwrap();
                Value::from(all[..all.len() / 2].to_vec())
            }
            _ => value.clone(),
        };
    }
    variant
}

fn engine_ids(read: HfTokenizer, folder: &Path, texts: &[Value]) -> Value {
    let spec = SynthSpec {
        n_layer: 1,
        n_embd: 128,
        n_ff: 128,
        n_head: 2,
        n_head_kv: 2,
        n_vocab: read.vocabulary.tokens.len() as u32,
        pre_tokenizer: read.vocabulary.pre.clone(),
        vocabulary: Some(read.vocabulary),
        ..SynthSpec::preset("tiny").unwrap()
    };
    let path = folder.join("m.gguf");
    write_synth_file(&spec, 1, &path, true, &mut |_| (), &AtomicBool::new(false)).unwrap();
    let model = Model::load(&path, ModelParams::default()).unwrap();
    let ids = |text: &Value| -> Vec<i32> {
        let ids = model.tokenize(text.as_str().unwrap(), Special::MarkupWithBos).unwrap();
        ids.iter().map(|t| t.get()).collect()
    };
    json!(texts.iter().map(ids).collect::<Vec<_>>())
}

#[test]
fn ids_are_those_of_the_library_or_the_variant_is_named() {
    let cases: Value = serde_json::from_str(CASES).unwrap();
    let texts = cases["texts"].as_array().unwrap();
    let base = read("tokenizer.json");
    let beside = Neighbours { tokenizer_config: Some(read("tokenizer_config.json")), ..Neighbours::default() };
    let folder = tempfile::tempdir().unwrap();
    let (mut equal, mut said, mut wrong) = (0, Vec::new(), Vec::new());
    let all = cases["cases"].as_array().unwrap();
    assert!(all.len() >= 40, "{}", all.len());
    for case in all {
        let name = case["name"].as_str().unwrap();
        let variant = changed(&base, &case["changes"]).to_string();
        match hf_tokenizer::read(variant.as_bytes(), &beside, None, None) {
            Err(e) => said.push(format!("{name}: refused: {e}")),
            Ok(read) if !read.warnings.is_empty() => said.push(format!("{name}: warned: {}", read.warnings.join("; "))),
            Ok(read) => {
                let found = engine_ids(read, folder.path(), texts);
                if found == case["ids"] {
                    equal += 1;
                    continue;
                }
                let at = (0..texts.len()).find(|&i| found[i] != case["ids"][i]).unwrap();
                wrong.push(format!("{name}: {}\n  engine  {}\n  library {}", texts[at], found[at], case["ids"][at]));
            }
        }
    }
    println!("{} variants: {equal} equal, {} named", all.len(), said.len());
    said.iter().for_each(|s| println!("  {s}"));
    assert!(wrong.is_empty(), "{} carried over wrongly:\n{}", wrong.len(), wrong.join("\n"));
    assert!(equal >= 15, "{equal}");
}

fn small(vocabulary: synth::vocabulary::Vocabulary) -> SynthSpec {
    SynthSpec {
        name: "abc".into(),
        n_layer: 1,
        n_embd: 128,
        n_ff: 128,
        n_head: 2,
        n_head_kv: 2,
        n_vocab: vocabulary.tokens.len() as u32,
        vocabulary: Some(vocabulary),
        ..SynthSpec::preset("tiny").unwrap()
    }
}

/// A model file, with pieces of its bytes replaced.
fn written(folder: &Path, spec: &SynthSpec, replaced: &[(&[u8], &[u8])]) -> std::path::PathBuf {
    let path = folder.join("m.gguf");
    write_synth_file(spec, 1, &path, true, &mut |_| (), &AtomicBool::new(false)).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    for (old, new) in replaced {
        let at = bytes.windows(old.len()).position(|w| w == *old).unwrap();
        bytes.splice(at..at + old.len(), new.iter().copied());
    }
    std::fs::write(&path, bytes).unwrap();
    path
}

fn load(path: &Path) -> Result<Model, bitnet_rs::Error> {
    Model::load(path, ModelParams::default())
}

#[test]
fn add_eos_token_ends_no_prompt() {
    let folder = tempfile::tempdir().unwrap();
    let spec = small(synth::vocabulary::Vocabulary::synthetic(300).unwrap());
    let expected =
        load(&written(folder.path(), &spec, &[])).unwrap().tokenize("a lamp", Special::ContentWithBos).unwrap();
    let model = load(&written(folder.path(), &spec, &[(b"add_bos_token", b"add_eos_token")])).unwrap();
    assert_eq!(model.info().tokenizer().add_eos, Some(true));
    for special in [Special::ContentWithBos, Special::MarkupWithBos] {
        assert_eq!(model.tokenize("a lamp", special).unwrap(), expected);
    }
}

#[test]
fn without_eos_token_id_the_end_is_known_by_its_text() {
    let folder = tempfile::tempdir().unwrap();
    let mut vocabulary = synth::vocabulary::Vocabulary::synthetic(300).unwrap();
    let (eos, eot) = (vocabulary.eos.take().unwrap() as i32, vocabulary.eot.take().unwrap() as i32);
    let model = load(&written(folder.path(), &small(vocabulary), &[])).unwrap();
    assert_eq!(model.eos().map(|t| t.get()), Some(eos));
    let ends: Vec<i32> = (0..300).filter(|id| model.is_end_of_generation(model.token(*id).unwrap())).collect();
    // Token 11, the engine's default for what a file does not name, is a comma or the like.
    assert_eq!(ends, [eos, eot]);
}

/// `unordered_map::at` is what the engine said at the first text.
#[test]
fn a_vocabulary_of_another_kind_is_refused_with_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let spec = small(synth::vocabulary::Vocabulary::synthetic(300).unwrap());
    let text = |s: &str| [&(s.len() as u64).to_le_bytes()[..], s.as_bytes()].concat();
    let replaced: [(&[u8], &[u8]); 2] = [(&text("gpt2"), &text("llama")), (&text("abc"), &text("ab"))];
    let refused = load(&written(folder.path(), &spec, &replaced)).err().unwrap().to_string();
    assert!(refused.contains("SentencePiece") && refused.contains("bytes have no token"), "{refused}");
}
