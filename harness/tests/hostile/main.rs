//! Nothing that a user feeds in ends the process: hostile inputs, each in a process of its own with a bound on time
//! and memory, and byte flips by the thousand. One table per kind of input; docs/how-to/hostile.md says how to add
//! to them. `make hostile` shows the counts.

mod agent_files;
mod attempt;
mod bench;
mod calls;
mod cartridge;
mod checkpoint;
mod flips;
mod gguf;
mod grammar;
mod hub;
mod interruption;
mod number_options;
mod options;
mod output;
mod parts;
mod repack;
mod same_file;
mod schema;
mod seeds;
mod shortages;
mod special_files;
mod template;
mod text;
mod texts;
mod tools;

use std::collections::BTreeMap;

use attempt::{Attempt, Tally, run_all};

fn tables() -> Vec<Attempt> {
    [
        gguf::table(),
        cartridge::table(),
        grammar::table(),
        schema::table(),
        tools::table(),
        template::table(),
        agent_files::table(),
        text::table(),
        options::table(),
        special_files::table(),
        output::table(),
        same_file::table(),
        number_options::table(),
        calls::table(),
        checkpoint::table(),
        repack::table(),
        texts::table(),
        hub::table(),
        bench::table(),
        parts::table(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn show(tallies: &BTreeMap<&'static str, Tally>) -> Vec<String> {
    let mut total = Tally::default();
    println!("{:<16} {:>7} {:>8} {:>9} {:>8}", "inputs", "tried", "refused", "accepted", "signals");
    let line = |name: &str, t: &Tally| {
        println!("{name:<16} {:>7} {:>8} {:>9} {:>8}", t.tried, t.refused, t.accepted, t.signals);
    };
    let mut failures = Vec::new();
    for (area, tally) in tallies {
        line(area, tally);
        total.tried += tally.tried;
        total.refused += tally.refused;
        total.accepted += tally.accepted;
        total.signals += tally.signals;
        failures.extend(tally.failures.iter().cloned());
    }
    line("all", &total);
    failures
}

#[test]
fn nothing_that_is_fed_in_ends_the_process() {
    let only = std::env::var("HOSTILE_ONLY").unwrap_or_default();
    let attempts: Vec<Attempt> =
        tables().into_iter().filter(|a| a.can_run() && format!("{} / {}", a.area, a.name).contains(&only)).collect();
    let mut tallies = run_all(&attempts);
    if only.is_empty() {
        tallies.extend(flips::all());
    }
    let failures = show(&tallies);
    assert!(failures.is_empty(), "{} inputs:\n{}", failures.len(), failures.join("\n"));
}
