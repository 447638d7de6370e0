//! What the home grammars produce is what the agent's boundary reads.

use std::path::PathBuf;

use agent::candidate::Candidate;
use grammar::tools::{SchemaOptions, ToolRegistry, schema_to_gbnf};
use grammar::{Grammar, GrammarLimits};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../gates/grammars").join(name)
}

fn texts(grammar: &Grammar, count: usize) -> Vec<String> {
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    (0..count).filter_map(|_| grammar.derive(&mut |ways| rng.random_range(0..ways), 200, 1 << 14)).collect()
}

#[test]
fn arguments_of_home_control_are_candidates() {
    let registry = ToolRegistry::load(&data("home.toml"), &SchemaOptions::default()).unwrap();
    let mut candidates = 0;
    for text in texts(registry.grammar(), 400) {
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
    let schema = serde_json::from_str(&std::fs::read_to_string(data("home-candidate.schema.json")).unwrap()).unwrap();
    let gbnf = schema_to_gbnf(&schema, &SchemaOptions::default()).unwrap();
    let grammar = Grammar::parse(&gbnf, "root", &GrammarLimits::default()).unwrap();
    let texts = texts(&grammar, 400);
    assert!(texts.len() > 300);
    for text in texts {
        Candidate::parse(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    }
}
