//! A gated command comes out of the gates only.
use crate::command::NormalizedCommand;
use crate::gate_engine::{Evaluation, GatedCommand};
use crate::registry::Device;

fn by_hand(command: NormalizedCommand, device: Device, evaluation: Evaluation) -> GatedCommand {
    GatedCommand { command, device, evaluation }
}

fn main() {}
