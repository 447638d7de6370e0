//! Any text as a JSON Schema and as a tool registry: an error, or a grammar that our own front takes and whose texts
//! are JSON.
#![no_main]

use grammar::{Grammar, GrammarLimits};
use grammar::tools::{SchemaError, SchemaOptions, ToolRegistry, schema_to_gbnf};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let options = SchemaOptions::default();
    let _ = ToolRegistry::from_json(text, &options);
    let _ = ToolRegistry::from_toml(text, &options);
    let Ok(schema) = serde_json::from_str::<serde_json::Value>(text) else { return };
    let gbnf = match schema_to_gbnf(&schema, &options) {
        Ok(gbnf) => gbnf,
        Err(SchemaError::Grammar(e)) => {
            // Too large for the front is an answer; a grammar that is wrong is a fault of the conversion.
            assert!(e.to_string().contains("over the limit"), "{e}");
            return;
        }
        Err(_) => return,
    };
    let grammar = Grammar::parse(&gbnf, "root", &GrammarLimits::default()).expect("checked by the conversion");
    let mut state = data.len() as u64 | 1;
    let mut choose = |n: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % n.max(1)
    };
    if let Some(derived) = grammar.derive(&mut choose, 64, 4096) {
        serde_json::from_str::<serde_json::Value>(&derived).expect("the grammar derives JSON");
    }
});
