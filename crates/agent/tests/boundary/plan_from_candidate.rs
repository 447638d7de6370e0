//! The planner takes gated commands only: not a candidate, not a normalized command.
use agent::candidate::Candidate;
use agent::command::NormalizedCommand;
use agent::plan::Planner;

fn plan_candidate(candidate: Candidate) {
    let _ = Planner.plan(candidate, "tr_1");
}

fn plan_ungated(command: NormalizedCommand) {
    let _ = Planner.plan(command, "tr_1");
}

fn main() {}
