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
