//! The parameters of a command, in their checked types.

use serde::Serialize;

use super::time_of_day::TimeOfDay;
use super::vocabulary::Mode;

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
