//! Any text as a GBNF grammar: an error, or a grammar that derives texts which it accepts, and takes any bytes.
#![no_main]

use grammar::{Grammar, GrammarLimits};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // The last line is what the grammar is fed with.
    let (text, fed) = match data.iter().rposition(|b| *b == b'\n') {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (data, &b""[..]),
    };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let Ok(grammar) = Grammar::parse(text, "root", &GrammarLimits::default()) else { return };
    let mut matcher = grammar.matcher();
    let whole = matcher.accept_bytes(fed).is_ok() && matcher.may_end();
    assert_eq!(grammar.matches(fed), whole);
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut choose = |n: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % n.max(1)
    };
    if let Some(derived) = grammar.derive(&mut choose, 64, 4096) {
        let mut matcher = grammar.matcher();
        match matcher.accept_bytes(derived.as_bytes()) {
            Ok(_) => assert!(matcher.may_end(), "{derived:?} is not complete"),
            // A limit of the matcher is an answer; a text that does not fit is none.
            Err(e) => assert!(e.to_string().contains("over the limit"), "{derived:?}: {e}"),
        }
    }
});
