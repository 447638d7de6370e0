//! The planner takes gated commands only: not a candidate, not a normalized command.
use crate::candidate::Candidate;
use crate::command::NormalizedCommand;
use crate::plan::Planner;

fn plan_candidate(candidate: Candidate) {
    let _ = Planner.plan(candidate, "tr_1");
}

fn plan_ungated(command: NormalizedCommand) {
    let _ = Planner.plan(command, "tr_1");
}

fn main() {}
