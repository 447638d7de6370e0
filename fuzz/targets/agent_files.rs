//! Any text as the agent's files and as a model's answer: devices, policy, case suite, candidate.
#![no_main]

use agent::candidate::Candidate;
use agent::evaluation::Suite;
use agent::policy::Policy;
use agent::registry::Registry;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&which, rest)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    match which % 4 {
        0 => drop(Registry::from_yaml(text)),
        1 => drop(Policy::from_toml(text)),
        2 => drop(Suite::from_yaml(text)),
        _ => {
            if let Ok(candidate) = Candidate::parse(text) {
                let _ = candidate.to_json();
            }
        }
    }
});
