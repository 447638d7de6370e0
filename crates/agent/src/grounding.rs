//! Grounding: a candidate must be what the input says.
//!
//! This is what holds against a hostile model that answers every input with a perfectly valid command: the reading knows
//! the one command that the input is, and a candidate that differs from it in anything is refused.

use super::candidate::Candidate;
use super::command_params::CommandParams;
use super::fault::Fault;
use super::reading::Reading;
use super::recent_command::RecentCommand;
use super::registry::{Device, Registry};
use super::sentence::Amount;
use super::vocabulary::{Gate, Mode, Room};

/// Notes everything in which a resolved candidate goes beyond, or against, the input.
pub(crate) fn check(
    candidate: &Candidate,
    params: &CommandParams,
    device: &Device,
    reading: &Reading,
    registry: &Registry,
    recent: &[RecentCommand],
    faults: &mut Vec<Fault>,
) {
    let mut outside = |reason: String| faults.push(Fault::new(Gate::InputBoundary, reason));
    match &reading.command {
        None => {
            outside("the input is not one command that is understood, so no proposal can be measured by it".to_owned())
        }
        Some(command) => {
            if command.device(registry, recent).is_none_or(|said| said.device_id != device.device_id) {
                outside(format!("the input does not name {}", device.device_id));
            }
            let kind = device.device_type;
            if command.action(kind) != Some(candidate.action) {
                outside(format!("the input does not say {}", candidate.action));
            }
            // A parameter that is left out is a matter of the capability gate, which says what the action needs.
            if let Some(brightness) = params.brightness
                && command.brightness(kind) != Some(i64::from(brightness))
            {
                outside(format!("the input does not say {brightness} %"));
            }
            if let Some(temperature) = params.temperature
                && command.temperature(kind) != Some(i64::from(temperature))
            {
                outside(format!("the input does not say {temperature} degrees"));
            }
            if let Some(mode) = params.mode
                && !says_mode(&command.amount, mode)
            {
                outside(format!("the input does not say mode {mode}"));
            }
        }
    }
    // A condition can neither be added nor dropped: without it the command would run at once.
    let said = reading.time_after();
    if params.time_after != said {
        let time =
            |t: Option<super::time_of_day::TimeOfDay>| t.map_or_else(|| "no time".to_owned(), |t| format!("after {t}"));
        outside(format!("the input says {}, the candidate {}", time(said), time(params.time_after)));
    }

    // Rooms: what the candidate or the input names must be where the device stands.
    let mut conflict = |reason: String| faults.push(Fault::new(Gate::DeviceResolved, reason));
    if candidate.room != Room::Unknown && candidate.room != device.room {
        conflict(format!("{} stands in {}, the candidate says {}", device.device_id, device.room, candidate.room));
    }
    if let Some(room) = reading.rooms.iter().find(|r| **r != device.room) {
        conflict(format!("{} stands in {}, the input says {room}", device.device_id, device.room));
    }
    if reading.elsewhere {
        conflict(format!("the input names a room that has no device, {} stands in {}", device.device_id, device.room));
    }
}

fn says_mode(amount: &Amount, mode: Mode) -> bool {
    matches!(amount, Amount::Mode(said) if *said == mode)
}
