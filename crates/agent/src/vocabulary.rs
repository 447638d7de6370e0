//! The closed vocabulary of the boundary: every word a candidate may use.
//!
//! All of them serialize in snake case. A word outside a list is a schema error, never a default.

/// Defines an enum whose variants are the words of a closed list.
macro_rules! vocabulary {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name { $($(#[$vmeta])* #[serde(rename = $word)] $variant),+ }

        impl $name {
            /// Every word of the list, in its order.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// The word as it stands in JSON and YAML.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }

            /// The variant for a word, `None` for anything outside the list.
            #[must_use]
            pub fn from_word(word: &str) -> Option<Self> {
                match word { $($word => Some($name::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}
pub(crate) use vocabulary;

vocabulary! {
    /// What the user wants, as a candidate says it.
    Intent {
        /// Change a device.
        ControlDevice = "control_device",
        /// Ask for a state.
        QueryStatus = "query_status",
        /// Make an automation.
        CreateRule = "create_rule",
        /// Change memory. From a model this is always refused.
        UpdateMemory = "update_memory",
        /// Not understood.
        Unknown = "unknown",
    }
}

vocabulary! {
    /// Rooms that devices stand in.
    Room {
        /// Living room.
        LivingRoom = "living_room",
        /// Bedroom.
        Bedroom = "bedroom",
        /// Hallway.
        Hallway = "hallway",
        /// Kitchen.
        Kitchen = "kitchen",
        /// Bathroom.
        Bathroom = "bathroom",
        /// Entrance.
        Entrance = "entrance",
        /// Not said or not understood.
        Unknown = "unknown",
    }
}

vocabulary! {
    /// Kinds of device.
    DeviceType {
        /// Light.
        Light = "light",
        /// Air conditioner.
        AirConditioner = "air_conditioner",
        /// Curtain.
        Curtain = "curtain",
        /// Switch.
        Switch = "switch",
        /// Camera.
        Camera = "camera",
        /// Lock.
        Lock = "lock",
        /// Sensor.
        Sensor = "sensor",
        /// Anything that burns or watches gas.
        GasDevice = "gas_device",
        /// Not said or not understood.
        Unknown = "unknown",
    }
}

vocabulary! {
    /// What a device may be asked to do.
    Action {
        /// Switch on.
        TurnOn = "turn_on",
        /// Switch off.
        TurnOff = "turn_off",
        /// Set brightness; needs `brightness` in percent.
        SetBrightness = "set_brightness",
        /// A step brighter.
        IncreaseBrightness = "increase_brightness",
        /// A step darker.
        DecreaseBrightness = "decrease_brightness",
        /// Set temperature; needs `temperature` in degrees Celsius.
        SetTemperature = "set_temperature",
        /// Set mode; needs `mode`.
        SetMode = "set_mode",
        /// Open a curtain.
        Open = "open",
        /// Close a curtain.
        Close = "close",
        /// Lock.
        Lock = "lock",
        /// Unlock.
        Unlock = "unlock",
        /// Not understood.
        Unknown = "unknown",
    }
}

vocabulary! {
    /// Modes of an air conditioner; a closed list.
    Mode {
        /// 制冷
        Cool = "cool",
        /// 制热
        Heat = "heat",
        /// 除湿
        Dry = "dry",
        /// 送风
        Fan = "fan",
        /// 自动
        Auto = "auto",
    }
}

impl Mode {
    /// The mode for a user's or a model's word, Chinese or English; `None` outside the closed list.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        match text.trim().to_lowercase().trim_end_matches("模式").trim() {
            "制冷" | "cool" | "cooling" => Some(Mode::Cool),
            "制热" | "heat" | "heating" => Some(Mode::Heat),
            "除湿" | "dry" | "drying" | "dehumidify" => Some(Mode::Dry),
            "送风" | "fan" | "fan only" => Some(Mode::Fan),
            "自动" | "auto" | "automatic" => Some(Mode::Auto),
            _ => None,
        }
    }
}

vocabulary! {
    /// Risk of a device, from the registry; never from a candidate.
    Risk {
        /// Only read.
        Read = "read",
        /// Harmless and reversible.
        Low = "low",
        /// Costs or discomfort.
        Medium = "medium",
        /// Security or privacy.
        High = "high",
        /// Never to be switched by the agent.
        Blocked = "blocked",
        /// No authority has said.
        Unknown = "unknown",
    }
}

vocabulary! {
    /// What policy says to a command.
    Decision {
        /// May be planned.
        Allow = "allow",
        /// May be planned, executed only with a confirmation bound to the plan.
        RequireConfirmation = "require_confirmation",
        /// No plan.
        Deny = "deny",
    }
}

vocabulary! {
    /// What one gate found.
    Outcome {
        /// Nothing against it.
        Accepted = "accepted",
        /// Worth saying, not blocking.
        Warning = "warning",
        /// Blocking.
        Rejected = "rejected",
    }
}

vocabulary! {
    /// Ways to reach a device. Only `mock` has an adapter here.
    Backend {
        /// The simulator: touches nothing.
        Mock = "mock",
        /// Home Assistant.
        HomeAssistant = "home_assistant",
        /// Xiaomi miIO on the local network.
        MiioLocal = "miio_local",
        /// MQTT.
        Mqtt = "mqtt",
        /// A Matter bridge.
        MatterBridge = "matter_bridge",
    }
}

vocabulary! {
    /// The ten gates, in the order they are evaluated.
    Gate {
        /// 1: the input is clean and the candidate stays inside what the input says.
        InputBoundary = "input_boundary",
        /// 2: the command is complete and of the right version.
        Schema = "schema",
        /// 3: exactly one registered device, without contradictions.
        DeviceResolved = "device_resolved",
        /// 4: the device type can do it, with these parameters.
        Capability = "capability",
        /// 5: what is known of the device's state is recent enough.
        Freshness = "freshness",
        /// 6: policy on the registry's risk.
        Policy = "policy",
        /// 7: a confirmation bound to this plan, where policy wants one.
        Confirmation = "confirmation",
        /// 8: the planner has an adapter for the device's backend.
        DryRun = "dry_run",
        /// 9: everything an execution needs besides confirmation.
        Execution = "execution",
        /// 10: memory is written only from an explicit, clean, unambiguous phrase.
        MemoryWrite = "memory_write",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_serde_names_are_the_same_list() {
        for action in Action::ALL {
            let json = serde_json::to_value(action).unwrap();
            assert_eq!(json, serde_json::Value::String(action.as_str().to_owned()));
            assert_eq!(Action::from_word(action.as_str()), Some(*action));
        }
        assert_eq!(Gate::ALL.len(), 10);
        assert_eq!(Action::from_word("TURN_ON"), None);
    }

    #[test]
    fn modes_are_a_closed_list_in_two_languages() {
        assert_eq!(Mode::from_text("制冷模式"), Some(Mode::Cool));
        assert_eq!(Mode::from_text(" Heat "), Some(Mode::Heat));
        assert_eq!(Mode::from_text("turbo"), None);
        assert_eq!(Mode::from_text(""), None);
    }
}
