//! Any text as a JSON Schema and as a tool registry: an error, or a constraint whose texts are JSON, and valid where its
//! grammar is exact.
#![no_main]

use std::sync::OnceLock;

use grammar::schema::{Exactness, Mode, Schema, SchemaOptions, Verdict};
use grammar::tools::ToolRegistry;
use grammar::{GrammarState, TokenMatcher, TokenRole, TokenTrie};
use libfuzzer_sys::fuzz_target;

fn bytes() -> &'static TokenTrie {
    static BYTES: OnceLock<TokenTrie> = OnceLock::new();
    BYTES.get_or_init(|| {
        let all: Vec<[u8; 1]> = (0..=255).map(|b| [b]).collect();
        TokenTrie::build(all.iter().map(|b| TokenRole::Text(b)).chain([TokenRole::End])).expect("bytes are a vocabulary")
    })
}

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = ToolRegistry::from_toml(text, &SchemaOptions::default());
    let _ = ToolRegistry::from_json(text, &SchemaOptions::default());
    for mode in [Mode::Declared, Mode::Open] {
        let Ok(schema) = Schema::parse(text, &SchemaOptions::default().mode(mode)) else { continue };
        let mut matcher = schema.matcher(bytes()).expect("checked when it was read");
        let mut state = data.len() as u64 | 1;
        for _ in 0..400 {
            if matcher.state() != GrammarState::Active {
                break;
            }
            let Ok(mask) = matcher.mask() else { break };
            let all: Vec<u32> = mask.iter().filter(|&t| t < 256).collect();
            assert!(!all.is_empty(), "a dead end");
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // What closes comes often enough to come to an end.
            let closing = all.iter().copied().find(|&t| matches!(u8::try_from(t), Ok(b'"' | b'}' | b']')));
            let token = closing.filter(|_| state % 3 == 0).unwrap_or(all[(state % all.len() as u64) as usize]);
            if matcher.accept(token).is_err() {
                break;
            }
        }
        if matches!(matcher.state(), GrammarState::MayEnd | GrammarState::Complete) {
            let verdict = matcher.verdict().expect("a schema has one");
            assert!(!matches!(&verdict, Verdict::NotJson { problem } if !problem.contains("twice")), "{verdict:?}");
            let exact = *schema.exactness() == Exactness::ByGrammar;
            assert!(!exact || matches!(verdict, Verdict::Valid | Verdict::Undecided { .. }), "{verdict:?}");
        }
    }
});
