//! Grounding: a candidate may pick among what the input says, never add to it.
//!
//! This is what holds against a hostile model that answers every input with a perfectly valid
//! command: its device, action and parameters must stand in the user's own words.

use super::candidate::Candidate;
use super::command::{CommandParams, Fault, RecentCommand};
use super::reading::Reading;
use super::registry::{Device, Registry};
use super::vocabulary::{Action, DeviceType, Gate, Room};

/// The device that an input refers back to: the newest recent one of a type that the input names;
/// of lights, if it only says brighter or darker; else the newest of any type. Which of them it is
/// follows from the input, so that a candidate cannot choose an older one.
pub(crate) fn referred_device<'r>(
    action: Action,
    reading: &Reading,
    registry: &'r Registry,
    recent: &[RecentCommand],
) -> Option<&'r Device> {
    let step = matches!(action, Action::IncreaseBrightness | Action::DecreaseBrightness);
    recent.iter().filter_map(|r| registry.device(&r.device_id)).find(|device| {
        if !reading.types.is_empty() {
            reading.types.contains(&device.device_type)
        } else {
            !step || device.device_type == DeviceType::Light
        }
    })
}

/// Notes everything in which a resolved candidate goes beyond, or against, the input.
/// `from_memory` is present for a relative candidate and holds the device that the input refers to.
pub(crate) fn check(
    candidate: &Candidate,
    params: &CommandParams,
    device: &Device,
    from_memory: Option<Option<&str>>,
    reading: &Reading,
    faults: &mut Vec<Fault>,
) {
    let mut outside = |reason: String| faults.push(Fault::new(Gate::InputBoundary, reason));

    // The device: named in the input; or the input refers back; or room and type are named.
    let named = if !reading.devices.is_empty() {
        reading.devices.contains(&device.device_id)
    } else if let Some(referred) = from_memory {
        reading.refers_back && referred == Some(device.device_id.as_str())
    } else {
        reading.rooms.contains(&device.room) && reading.types.contains(&device.device_type)
    };
    if !named {
        outside(format!("the input does not name {}", device.device_id));
    }
    if !reading.actions.contains(&candidate.action) {
        outside(format!("the input does not say {}", candidate.action));
    }
    let says = |value: i64, with_unit: &std::collections::BTreeSet<i64>| {
        with_unit.contains(&value) || reading.numbers.contains(&value)
    };
    if let Some(brightness) = params.brightness
        && !says(i64::from(brightness), &reading.percents)
    {
        outside(format!("the input does not say {brightness} %"));
    }
    if let Some(temperature) = params.temperature
        && !says(i64::from(temperature), &reading.degrees)
    {
        outside(format!("the input does not say {temperature} degrees"));
    }
    if let Some(mode) = params.mode
        && !reading.modes.contains(&mode)
    {
        outside(format!("the input does not say mode {mode}"));
    }
    // A condition can neither be added nor dropped: without it the command would run at once.
    if params.time_after != reading.time_after {
        let time =
            |t: Option<super::time_of_day::TimeOfDay>| t.map_or_else(|| "no time".to_owned(), |t| format!("after {t}"));
        outside(format!("the input says {}, the candidate {}", time(reading.time_after), time(params.time_after)));
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
