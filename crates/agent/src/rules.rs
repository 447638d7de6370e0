//! Rule parser: the command that a reading found, as a candidate.
//!
//! It proposes a [`Candidate`] like any other source and is believed no more: its proposals pass the same gates and the same
//! grounding.

use super::candidate::{Candidate, CandidateParams, RELATIVE};
use super::reading::Reading;
use super::recent_command::RecentCommand;
use super::registry::Registry;
use super::sentence::{Amount, Target};
use super::vocabulary::{Action, DeviceType, Intent};

/// The candidate for what a reading understood; `None` where it understood no command.
#[must_use]
pub(crate) fn candidate(reading: &Reading, registry: &Registry, recent: &[RecentCommand]) -> Option<Candidate> {
    let command = reading.command.as_ref()?;
    let device = command.device(registry, recent);
    let mut candidate = Candidate { intent: Intent::ControlDevice, ..Candidate::default() };
    // Without a device the type that was named decides what the verb means.
    let mut kind = device.map_or(DeviceType::Unknown, |d| d.device_type);
    match &command.target {
        Target::Device(_) => candidate.device_alias = device?.aliases.first().cloned(),
        Target::RoomType(room, named) => {
            candidate.room = *room;
            kind = *named;
        }
        Target::Type(named) => {
            candidate.device_alias = Some(format!("relative:{named}"));
            kind = *named;
        }
        Target::Referred(named) => {
            let named = named.unwrap_or(DeviceType::Unknown);
            candidate.device_alias = Some(format!("relative:{named}"));
            kind = if named == DeviceType::Unknown { kind } else { named };
            candidate.device_type = named;
        }
    }
    if !matches!(command.target, Target::Referred(_)) {
        candidate.device_type = kind;
    }
    // "it" without anything spoken of before: on and off are the plain ones, and no device is found.
    let assumed = if kind == DeviceType::Unknown { DeviceType::Switch } else { kind };
    candidate.action = command.action(assumed).unwrap_or(Action::Unknown);
    let mut params = CandidateParams::default();
    if matches!(command.target, Target::Type(_) | Target::Referred(_)) {
        params.raw_value = Some(RELATIVE.to_owned());
    }
    // Above 255 no brightness at all; 101..=255 reach the gates and are denied there.
    if let Some(brightness) = command.brightness(assumed) {
        params.brightness = Some(u8::try_from(brightness).ok()?);
    }
    if let Some(temperature) = command.temperature(assumed) {
        params.temperature = Some(i16::try_from(temperature).ok()?);
    }
    match &command.amount {
        Amount::Mode(mode) => params.mode = Some(mode.to_string()),
        Amount::OtherMode(text) => params.mode = Some(text.clone()),
        _ => {}
    }
    params.time_after = command.time_after.map(|t| t.to_string());
    candidate.params = params;
    Some(candidate)
}
