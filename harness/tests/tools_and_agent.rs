//! What the home grammars produce is what the agent's boundary reads.

use std::path::PathBuf;

use agent::candidate::Candidate;
use grammar::schema::{Schema, SchemaOptions};
use grammar::tools::ToolRegistry;
use grammar::{GrammarState, Language, TokenRole, TokenTrie};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../gates/grammars").join(name)
}

/// Texts that random bytes end in, among those that the masks allow.
fn texts(language: &Language, count: usize) -> Vec<String> {
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let bytes: Vec<[u8; 1]> = (0..=255).map(|b| [b]).collect();
    let trie = TokenTrie::build(bytes.iter().map(|b| TokenRole::Text(b)).chain([TokenRole::End])).unwrap();
    let mut matcher = language.matcher(&trie).unwrap();
    let mut out = Vec::new();
    for _ in 0..count {
        matcher.reset();
        let mut text = Vec::new();
        while matcher.state() == GrammarState::Active && text.len() < 2_000 {
            let mask = matcher.mask().unwrap();
            let mut allowed: Vec<u32> = mask.iter().collect();
            // Strings end sooner so.
            if allowed.contains(&u32::from(b'"')) && rng.random_range(0..3) == 0 {
                allowed = vec![u32::from(b'"')];
            }
            let token = allowed[rng.random_range(0..allowed.len())];
            matcher.accept(token).unwrap();
            text.push(u8::try_from(token).unwrap());
        }
        if matcher.state() == GrammarState::Complete {
            out.push(String::from_utf8(text).unwrap());
        }
    }
    out
}

#[test]
fn arguments_of_home_control_are_candidates() {
    let registry = ToolRegistry::load(&data("home.toml"), &SchemaOptions::default()).unwrap();
    let mut candidates = 0;
    for text in texts(&registry.language(), 400) {
        let call = registry.parse_call(&text).unwrap();
        if call.tool == "home_control" {
            let arguments = serde_json::to_string(&call.arguments).unwrap();
            Candidate::parse(&arguments).unwrap_or_else(|error| panic!("{error}: {arguments}"));
            candidates += 1;
        }
    }
    assert!(candidates > 100, "{candidates}");
}

#[test]
fn the_candidate_schema_produces_candidates() {
    let text = std::fs::read_to_string(data("home-candidate.schema.json")).unwrap();
    let schema = Schema::parse(&text, &SchemaOptions::default()).unwrap();
    let texts = texts(&schema.into(), 400);
    assert!(texts.len() > 300);
    for text in texts {
        Candidate::parse(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    }
}
