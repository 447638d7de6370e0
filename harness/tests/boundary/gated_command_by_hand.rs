//! A gated command comes out of the gates only.
use harness::agent::command::NormalizedCommand;
use harness::agent::gate_engine::{Evaluation, GatedCommand};
use harness::agent::registry::Device;

fn by_hand(command: NormalizedCommand, device: Device, evaluation: Evaluation) -> GatedCommand {
    GatedCommand { command, device, evaluation }
}

fn main() {}
