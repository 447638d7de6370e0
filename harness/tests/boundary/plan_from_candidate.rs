//! The planner takes gated commands only: not a candidate, not a normalized command.
use harness::agent::candidate::Candidate;
use harness::agent::command::NormalizedCommand;
use harness::agent::plan::Planner;

fn plan_candidate(candidate: Candidate) {
    let _ = Planner.plan(candidate, "tr_1");
}

fn plan_ungated(command: NormalizedCommand) {
    let _ = Planner.plan(command, "tr_1");
}

fn main() {}
