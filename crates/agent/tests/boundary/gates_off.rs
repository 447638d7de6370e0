//! Gates cannot be switched off from outside.
use agent::gate_engine::SelfCheck;
use agent::gate_engine::GateSet;
use agent::vocabulary::Gate;

fn off() -> GateSet {
    GateSet::without(Gate::Policy, &SelfCheck(()))
}

fn main() {}
