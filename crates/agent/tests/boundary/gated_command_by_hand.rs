//! A gated command comes out of the gates only.
use agent::command::NormalizedCommand;
use agent::gate_engine::{Evaluation, GatedCommand};
use agent::registry::Device;

fn by_hand(command: NormalizedCommand, device: Device, evaluation: Evaluation) -> GatedCommand {
    GatedCommand { command, device, evaluation }
}

fn main() {}
