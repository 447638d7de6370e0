//! Candidate → [`NormalizedCommand`]: resolved against registry and memory, measured against the
//! input, with everything that is wrong noted. It is not yet trusted; only the gates decide.

use serde::Serialize;

use super::candidate::Candidate;
use super::fault::Fault;
use super::grounding;
use super::names::Names;
use super::reading::Reading;
use super::recent_command::RecentCommand;
use super::registry::Device;
use super::time_of_day::TimeOfDay;
use super::vocabulary::{Action, DeviceType, Gate, Intent, Mode, Risk, Room};

pub use super::command_params::CommandParams;

/// Schema version of a normalized command.
pub const COMMAND_SCHEMA: &str = "command.v1";

/// A command as understood. Private fields, no constructor outside the boundary, no `Deserialize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NormalizedCommand {
    schema_version: &'static str,
    intent: Intent,
    room: Room,
    device_id: Option<String>,
    device_type: DeviceType,
    action: Action,
    params: CommandParams,
    risk: Risk,
    #[serde(skip)]
    faults: Vec<Fault>,
}

impl NormalizedCommand {
    /// Intent.
    #[must_use]
    pub fn intent(&self) -> Intent {
        self.intent
    }

    /// Room of the device, `unknown` if there is none.
    #[must_use]
    pub fn room(&self) -> Room {
        self.room
    }

    /// The resolved device.
    #[must_use]
    pub fn device_id(&self) -> Option<&str> {
        self.device_id.as_deref()
    }

    /// Device type.
    #[must_use]
    pub fn device_type(&self) -> DeviceType {
        self.device_type
    }

    /// Action.
    #[must_use]
    pub fn action(&self) -> Action {
        self.action
    }

    /// Parameters.
    #[must_use]
    pub fn params(&self) -> &CommandParams {
        &self.params
    }

    /// Risk of the resolved device by the registry; unknown without one.
    #[must_use]
    pub fn risk(&self) -> Risk {
        self.risk
    }

    /// Reasons of one gate.
    pub(crate) fn faults_of(&self, gate: Gate) -> impl Iterator<Item = &str> {
        self.faults.iter().filter(move |f| f.gate == gate).map(|f| f.reason.as_str())
    }
}

/// Resolves and measures a candidate.
///
/// Resolution, in order: a named alias must be a registered or remembered one (there is no fallback
/// from an unknown alias to room and type); without an alias, room and type must mean exactly one
/// device; a relative command takes the newest recent device of its type, or the newest of any type
/// if it names none.
pub(crate) fn normalize(
    candidate: &Candidate,
    reading: &Reading,
    names: &Names<'_>,
    recent: &[RecentCommand],
) -> NormalizedCommand {
    let mut faults = Vec::new();
    let device = resolve(candidate, names, recent, &mut faults);
    let mode = candidate.params.mode.as_deref().and_then(|text| {
        let mode = Mode::from_text(text).or_else(|| Mode::from_word(text));
        if mode.is_none() {
            faults
                .push(Fault::new(Gate::Capability, format!("mode {text:?} is not one of cool, heat, dry, fan, auto")));
        }
        mode
    });
    let time_after = candidate.params.time_after.as_deref().and_then(|text| {
        let time = TimeOfDay::parse(text);
        if time.is_none() {
            faults.push(Fault::new(Gate::Schema, format!("time_after {text:?} is not HH:MM")));
        }
        time
    });
    let params = CommandParams {
        brightness: candidate.params.brightness,
        temperature: candidate.params.temperature,
        mode,
        time_after,
    };
    if let Some(device) = device {
        grounding::check(candidate, &params, device, reading, names.registry(), recent, &mut faults);
    }
    NormalizedCommand {
        schema_version: COMMAND_SCHEMA,
        intent: candidate.intent,
        room: device.map_or(candidate.room, |d| d.room),
        device_id: device.map(|d| d.device_id.clone()),
        device_type: device.map_or(candidate.device_type, |d| d.device_type),
        action: candidate.action,
        params,
        risk: device.map_or(Risk::Unknown, |d| d.risk_level),
        faults,
    }
}

fn resolve<'r>(
    candidate: &Candidate,
    names: &Names<'r>,
    recent: &[RecentCommand],
    faults: &mut Vec<Fault>,
) -> Option<&'r Device> {
    let registry = names.registry();
    if let Some(alias) = candidate.named_alias() {
        let Some((device, _)) = names.device(alias) else {
            faults.push(Fault::new(Gate::DeviceResolved, format!("no device is called {alias:?}")));
            return None;
        };
        if candidate.device_type != DeviceType::Unknown && candidate.device_type != device.device_type {
            faults.push(Fault::new(
                Gate::DeviceResolved,
                format!("{alias:?} is a {}, the candidate says {}", device.device_type, candidate.device_type),
            ));
            return None;
        }
        return Some(device);
    }
    if candidate.room != Room::Unknown && candidate.device_type != DeviceType::Unknown {
        let device = registry.only(candidate.room, candidate.device_type);
        if device.is_none() {
            faults.push(Fault::new(
                Gate::DeviceResolved,
                format!("not exactly one {} in {}", candidate.device_type, candidate.room),
            ));
        }
        return device;
    }
    if candidate.is_relative() {
        let device = recent
            .iter()
            .filter_map(|r| registry.device(&r.device_id))
            .find(|d| candidate.device_type == DeviceType::Unknown || candidate.device_type == d.device_type);
        if device.is_none() {
            faults.push(Fault::new(
                Gate::DeviceResolved,
                "it refers to an earlier command, and no recent one of this session fits",
            ));
        }
        return device;
    }
    faults.push(Fault::new(Gate::DeviceResolved, "the command names no device"));
    None
}
