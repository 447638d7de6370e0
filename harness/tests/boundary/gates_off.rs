//! Gates cannot be switched off from outside.
use harness::agent::gate::SelfCheck;
use harness::agent::gate_engine::GateSet;
use harness::agent::vocabulary::Gate;

fn off() -> GateSet {
    GateSet::without(Gate::Policy, &SelfCheck(()))
}

fn main() {}
