//! What commands are made of and measured against: parameters, faults, and what was commanded before.

use serde::{Deserialize, Serialize};

use super::time_of_day::TimeOfDay;
use super::vocabulary::{Action, Gate, Mode};

/// Parameters in their checked types.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CommandParams {
    /// Percent; above 100 is refused by the schema gate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) brightness: Option<u8>,
    /// Degrees Celsius.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) temperature: Option<i16>,
    /// Mode of the closed list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<Mode>,
    /// The command is meant for after this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) time_after: Option<TimeOfDay>,
}

/// A fact that speaks against a command, with the gate that rejects on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Fault {
    pub(crate) gate: Gate,
    pub(crate) reason: String,
}

impl Fault {
    pub(crate) fn new(gate: Gate, reason: impl Into<String>) -> Self {
        Fault { gate, reason: reason.into() }
    }
}

impl CommandParams {
    /// Brightness in percent.
    #[must_use]
    pub fn brightness(&self) -> Option<u8> {
        self.brightness
    }

    /// Temperature in degrees Celsius.
    #[must_use]
    pub fn temperature(&self) -> Option<i16> {
        self.temperature
    }

    /// Mode.
    #[must_use]
    pub fn mode(&self) -> Option<Mode> {
        self.mode
    }

    /// Time condition.
    #[must_use]
    pub fn time_after(&self) -> Option<TimeOfDay> {
        self.time_after
    }
}

/// An earlier command that a relative one may refer to: only ids and words, from the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecentCommand {
    pub(crate) trace_id: String,
    pub(crate) device_id: String,
    pub(crate) action: Action,
}
