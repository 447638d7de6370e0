//! The engine's own grammar and our matcher mean the same: on strings written from GBNF's documentation, and over the
//! whole vocabulary at every place on the way.

mod oracle;

use std::path::{Path, PathBuf};

use bitnet_rs::grammar::{Grammar, GrammarLimits, TokenTrie};
use bitnet_rs::{Model, ModelParams, Special, TokenId, vocabulary_trie};
use oracle::{EngineGrammar, Vocabulary};
use serde::Deserialize;

#[derive(Deserialize)]
struct Conformance {
    grammar: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    text: String,
    #[serde(default = "root")]
    root: String,
    r#match: Vec<String>,
    no_match: Vec<String>,
}

fn root() -> String {
    "root".to_owned()
}

fn cases() -> Vec<(String, Grammar, Vec<String>, Vec<String>)> {
    let file: Conformance = toml::from_str(include_str!("../../../gates/grammars/conformance.toml")).unwrap();
    let parse = |c: &Case| Grammar::parse(&c.text, &c.root, &GrammarLimits::default()).unwrap();
    file.grammar.into_iter().map(|c| (c.name.clone(), parse(&c), c.r#match, c.no_match)).collect()
}

/// The embedded model's byte-level vocabulary can spell every text.
fn model_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../gates/models/bitnet-harness-home.gguf")
}

fn model() -> (Model, TokenTrie, TokenId) {
    let model = Model::load(model_path(), ModelParams::default()).unwrap();
    let trie = vocabulary_trie(&model).unwrap();
    let end = (0..model.n_vocab() as i32).map(|id| model.token(id).unwrap());
    let end = end.into_iter().find(|&id| model.is_end_of_generation(id)).unwrap();
    (model, trie, end)
}

/// Whether the engine's grammar, alone, takes the whole text and then an end.
fn engine_matches(model: &Model, vocabulary: &Vocabulary, grammar: &Grammar, text: &str, end: TokenId) -> bool {
    let mut engine = EngineGrammar::new(vocabulary, grammar);
    let tokens = if text.is_empty() { Vec::new() } else { model.tokenize(text, Special::Content).unwrap() };
    tokens.into_iter().chain([end]).all(|token| engine.accept(token))
}

#[test]
fn the_engine_matches_the_documented_strings_and_no_others() {
    let (model, _, end) = model();
    let vocabulary = Vocabulary::load(&model_path());
    let (mut matched, mut refused) = (0, 0);
    for (name, grammar, matching, others) in cases() {
        for text in &matching {
            assert!(engine_matches(&model, &vocabulary, &grammar, text, end), "{name}: {text:?} should match");
            matched += 1;
        }
        for text in &others {
            assert!(!engine_matches(&model, &vocabulary, &grammar, text, end), "{name}: {text:?} should not match");
            refused += 1;
        }
    }
    assert!(matched >= 80 && refused >= 80, "{matched} strings that match, {refused} that do not");
}

/// No continuation makes these bytes text.
fn never_utf8(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|e| e.error_len().is_some())
}

/// But for bytes that are never text, and control tokens, whose names the engine takes for text; ours allows neither.
#[test]
fn both_allow_the_same_tokens_at_every_place() {
    let (model, trie, _) = model();
    let vocabulary = Vocabulary::load(&model_path());
    let (mut places, mut ill_formed) = (0, 0);
    for (name, grammar, matching, _) in cases() {
        for text in matching {
            let mut ours = grammar.matcher();
            let mut engine = EngineGrammar::new(&vocabulary, &grammar);
            let tokens = if text.is_empty() { Vec::new() } else { model.tokenize(&text, Special::Content).unwrap() };
            let mut before = Vec::new();
            for step in 0..=tokens.len() {
                let mask = ours.mask(&trie).unwrap();
                let allowed: Vec<u32> = engine.allowed();
                let only_ours = mask.iter().find(|id| !allowed.contains(id));
                assert_eq!(only_ours, None, "{name}: {text:?} after {step} tokens");
                for &id in allowed.iter().filter(|&&id| !mask.allows(id)) {
                    let bytes = [before.as_slice(), trie.text(id).unwrap()].concat();
                    let control = model.is_control(model.token(id as i32).unwrap());
                    assert!(control || never_utf8(&bytes), "{name}: {text:?} after {step} tokens, token {id}");
                    ill_formed += u32::from(!control);
                }
                places += 1;
                if let Some(&token) = tokens.get(step) {
                    ours.accept_token(&trie, token.get() as u32).unwrap();
                    assert!(engine.accept(token));
                    before.extend(trie.text(token.get() as u32).unwrap());
                }
            }
        }
    }
    assert!(places >= 200 && ill_formed > 0, "{places} places, {ill_formed} tokens that are no text");
}
