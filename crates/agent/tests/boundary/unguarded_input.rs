//! Guarded input comes from the guard only.
use agent::guard::GuardedInput;

fn by_hand(text: String) -> GuardedInput {
    GuardedInput { raw: text.clone(), text: text.clone(), folded: text, flags: vec![] }
}

fn main() {}
