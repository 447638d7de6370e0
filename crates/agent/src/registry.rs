//! Devices and what their types can do. The only authority on ids, risk and back ends.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::guard::suspicions;
use super::spoken_name::carries_command;
use super::text::{alias_key, tokens};
use super::vocabulary::{Action, Backend, DeviceType, Mode, Risk, Room};
use files::input_file::{self, InputFileError};

/// Largest registry, policy or case file that is read, in bytes.
pub const MAX_FILE_BYTES: u64 = 1024 * 1024;
/// Most characters of an alias, in the registry and in memory.
pub const MAX_ALIAS_CHARS: usize = 32;

/// One device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Its id; letters, digits, `_`, `-`.
    pub device_id: String,
    /// Names a user may call it by, in any language.
    pub aliases: Vec<String>,
    /// Where it stands.
    pub room: Room,
    /// What it is.
    pub device_type: DeviceType,
    /// How it is reached.
    pub backend: Backend,
    /// Its name at the back end; never shown to a model, never taken from one.
    pub backend_entity_id: String,
    /// The authority on its risk.
    pub risk_level: Risk,
}

/// What a device type can do, and within which limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capability {
    /// The action.
    pub action: Action,
    /// Least value of its parameter.
    #[serde(default)]
    pub min: Option<i32>,
    /// Greatest value of its parameter.
    #[serde(default)]
    pub max: Option<i32>,
    /// Unit, for people.
    #[serde(default)]
    pub unit: Option<String>,
    /// Modes, for `set_mode`; all modes of the vocabulary where absent.
    #[serde(default)]
    pub modes: Option<Vec<Mode>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RegistryFile {
    devices: Vec<Device>,
    capabilities: BTreeMap<DeviceType, Vec<Capability>>,
}

/// Why a registry is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// What is wrong with a file, and which.
    #[error("{}: {source}", path.display())]
    In {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: Box<RegistryError>,
    },
    /// Not the expected YAML.
    #[error("device registry: {0}; see docs/how-to/agent.md for its form")]
    Form(#[from] serde_yaml_ng::Error),
    /// The file is too large.
    #[error("{} has more than {limit} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// [`MAX_FILE_BYTES`].
        limit: u64,
    },
    /// Two devices of one id.
    #[error("device_id {id:?} occurs twice; give each device its own id")]
    DuplicateId {
        /// The id.
        id: String,
    },
    /// One alias for two devices, or twice for one.
    #[error("alias {alias:?} belongs to {first:?} and to {second:?}; every alias names one device once")]
    DuplicateAlias {
        /// The alias.
        alias: String,
        /// Device that has it first.
        first: String,
        /// Device that has it again.
        second: String,
    },
    /// A value that makes no sense.
    #[error("device registry: {item}: {reason}")]
    Invalid {
        /// Device or capability.
        item: String,
        /// What is wrong and what to do.
        reason: String,
    },
}

/// A checked registry.
#[derive(Debug, Clone)]
pub struct Registry {
    devices: Vec<Device>,
    capabilities: BTreeMap<DeviceType, Vec<Capability>>,
    aliases: BTreeMap<String, usize>,
    hash: String,
}

/// Reads a small file without trusting its length.
pub(crate) fn read_bounded(path: &Path) -> Result<String, RegistryError> {
    input_file::read_text(path, MAX_FILE_BYTES).map_err(|e| match e {
        InputFileError::TooLarge { limit } => RegistryError::TooLarge { path: path.to_owned(), limit },
        e => RegistryError::Read { path: path.to_owned(), source: e.into() },
    })
}

impl Registry {
    /// Reads and checks a registry file.
    ///
    /// # Errors
    /// [`RegistryError`] with the first thing that is wrong.
    pub fn load(path: &Path) -> Result<Self, RegistryError> {
        Self::from_yaml(&read_bounded(path)?)
            .map_err(|source| RegistryError::In { path: path.to_owned(), source: Box::new(source) })
    }

    /// Checks a registry in YAML.
    ///
    /// # Errors
    /// [`RegistryError`] with the first thing that is wrong: unknown fields, duplicate ids or
    /// aliases (compared by key: spacing, case, width and 的 do not count), suspicious aliases,
    /// capabilities without the limits their parameter needs.
    pub fn from_yaml(yaml: &str) -> Result<Self, RegistryError> {
        // A Value refuses duplicate keys of a mapping, which a BTreeMap would not; the text itself knows its lines.
        serde_yaml_ng::from_str::<serde_yaml_ng::Value>(yaml)?;
        let file: RegistryFile = serde_yaml_ng::from_str(yaml)?;
        let mut ids = BTreeSet::new();
        let mut aliases: BTreeMap<String, usize> = BTreeMap::new();
        for (index, device) in file.devices.iter().enumerate() {
            let invalid = |reason: String| RegistryError::Invalid { item: device.device_id.clone(), reason };
            if device.device_id.is_empty()
                || device.device_id.len() > 64
                || !device.device_id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
            {
                return Err(invalid("a device_id is 1 to 64 letters, digits, '_' and '-'".into()));
            }
            if !ids.insert(device.device_id.as_str()) {
                return Err(RegistryError::DuplicateId { id: device.device_id.clone() });
            }
            if device.device_type == DeviceType::Unknown || device.room == Room::Unknown {
                return Err(invalid("room and device_type must be known".into()));
            }
            if device.risk_level == Risk::Unknown {
                return Err(invalid("risk_level must be known; 'blocked' keeps the agent away from it".into()));
            }
            if device.backend_entity_id.is_empty() || device.backend_entity_id.len() > 128 {
                return Err(invalid("backend_entity_id must have 1 to 128 bytes".into()));
            }
            if device.aliases.is_empty() {
                return Err(invalid("at least one alias is needed, or no user can name it".into()));
            }
            for alias in &device.aliases {
                check_alias(alias).map_err(|reason| invalid(format!("alias {alias:?} {reason}")))?;
                if let Some(reason) = carries_command(alias) {
                    return Err(invalid(format!(
                        "alias {alias:?} {reason}; commands that hold it could not be told from others, use another name"
                    )));
                }
                if let Some(first) = aliases.insert(alias_key(alias), index) {
                    return Err(RegistryError::DuplicateAlias {
                        alias: alias.clone(),
                        first: file.devices[first].device_id.clone(),
                        second: device.device_id.clone(),
                    });
                }
            }
        }
        for (device_type, table) in &file.capabilities {
            let mut seen = BTreeSet::new();
            for capability in table {
                let invalid = |reason: &str| RegistryError::Invalid {
                    item: format!("capabilities.{device_type}.{}", capability.action),
                    reason: reason.to_owned(),
                };
                if *device_type == DeviceType::Unknown || capability.action == Action::Unknown {
                    return Err(invalid("type and action must be known"));
                }
                if !seen.insert(capability.action) {
                    return Err(invalid("listed twice"));
                }
                let numeric = matches!(capability.action, Action::SetBrightness | Action::SetTemperature);
                match (numeric, capability.min, capability.max) {
                    (true, Some(min), Some(max)) if min <= max => {}
                    (true, ..) => return Err(invalid("min and max are needed, min not above max")),
                    (false, None, None) => {}
                    (false, ..) => return Err(invalid("min and max belong to set_brightness and set_temperature")),
                }
                if capability.modes.is_some() && capability.action != Action::SetMode {
                    return Err(invalid("modes belong to set_mode"));
                }
            }
        }
        let canonical = serde_json::to_vec(&(&file.devices, &file.capabilities)).unwrap_or_default();
        let hash = blake3::hash(&canonical).to_hex().to_string();
        Ok(Registry { devices: file.devices, capabilities: file.capabilities, aliases, hash })
    }

    /// The embedded example registry (`gates/agent/devices.yaml`).
    ///
    /// # Errors
    /// Only if the embedded file is broken; tested.
    pub fn embedded() -> Result<Self, RegistryError> {
        Self::from_yaml(include_str!("../../../gates/agent/devices.yaml"))
    }

    /// All devices, in the file's order.
    #[must_use]
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// A device by id.
    #[must_use]
    pub fn device(&self, id: &str) -> Option<&Device> {
        self.devices.iter().find(|d| d.device_id == id)
    }

    /// A device by alias; spacing, case, width and 的 do not count.
    #[must_use]
    pub fn by_alias(&self, alias: &str) -> Option<&Device> {
        self.aliases.get(&alias_key(alias)).and_then(|index| self.devices.get(*index))
    }

    /// The only device of a type in a room; `None` for none or several.
    #[must_use]
    pub fn only(&self, room: Room, device_type: DeviceType) -> Option<&Device> {
        let mut found = self.devices.iter().filter(|d| d.room == room && d.device_type == device_type);
        match (found.next(), found.next()) {
            (Some(device), None) => Some(device),
            _ => None,
        }
    }

    /// Alias keys with their device ids.
    pub(crate) fn alias_keys(&self) -> impl Iterator<Item = (&str, &str)> {
        self.aliases.iter().map(|(key, index)| (key.as_str(), self.devices[*index].device_id.as_str()))
    }

    /// What a device type can do for an action.
    #[must_use]
    pub fn capability(&self, device_type: DeviceType, action: Action) -> Option<&Capability> {
        self.capabilities.get(&device_type)?.iter().find(|c| c.action == action)
    }

    /// The capability tables.
    #[must_use]
    pub fn capabilities(&self) -> &BTreeMap<DeviceType, Vec<Capability>> {
        &self.capabilities
    }

    /// BLAKE3 of the canonical content, in hex.
    #[must_use]
    pub fn hash(&self) -> &str {
        &self.hash
    }
}

/// Rules for any alias, registered or remembered: short, visible, no suspicious content, only
/// letters, digits, spaces and `-`. So an alias can be quoted to a model without carrying text.
pub(crate) fn check_alias(alias: &str) -> Result<(), String> {
    let chars = alias.chars().count();
    if chars == 0 || chars > MAX_ALIAS_CHARS {
        return Err(format!("has {chars} characters; 1 to {MAX_ALIAS_CHARS} are allowed"));
    }
    if let Some(c) = alias.chars().find(|c| !(c.is_alphanumeric() || matches!(c, ' ' | '-' | '\''))) {
        return Err(format!("holds {c:?}; letters, digits, spaces, ' and - are allowed"));
    }
    if let Some(flag) = suspicions(alias).first() {
        return Err(format!("looks like {flag}"));
    }
    if tokens(&super::text::folded(alias)).is_empty() {
        return Err("shows nothing".to_owned());
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const CAPS: &str = "capabilities:\n  light:\n    - action: turn_on\n";

    fn device(id: &str, alias: &str) -> String {
        format!(
            "  - device_id: {id}\n    aliases: [\"{alias}\"]\n    room: kitchen\n    device_type: light\n    backend: mock\n    backend_entity_id: mock.{id}\n    risk_level: low\n"
        )
    }

    fn refused(devices: &[String], caps: &str) -> String {
        Registry::from_yaml(&format!("devices:\n{}{caps}", devices.concat())).unwrap_err().to_string()
    }

    #[test]
    fn the_embedded_registry_loads() {
        let registry = Registry::embedded().unwrap();
        assert!(registry.devices().len() >= 8);
        assert_eq!(registry.by_alias("KITCHEN  light").unwrap().device_type, DeviceType::Light);
    }

    #[test]
    fn a_refusal_names_the_file_the_place_and_the_field() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("house.yaml");
        let second = device("b", "two").replace("room", "colour");
        std::fs::write(&path, format!("devices:\n{}{second}{CAPS}", device("a", "one"))).unwrap();
        let message = Registry::load(&path).unwrap_err().to_string();
        // The second device's fourth line: one line of `devices:`, seven of the first device, three of its own before.
        for part in ["house.yaml", "devices[1]", "`colour`", "line 11 "] {
            assert!(message.contains(part), "no {part:?} in {message}");
        }
    }

    /// W21: duplicates are refused at load, also those that only look different.
    #[test]
    fn w21_duplicate_ids_and_aliases_are_refused() {
        assert!(refused(&[device("a", "one"), device("a", "two")], CAPS).contains("\"a\" occurs twice"));
        let message = refused(&[device("a", "Hall Light"), device("b", "ｈall light")], CAPS);
        assert!(message.contains("belongs to \"a\" and to \"b\""), "{message}");
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let ok = device("a", "one");
        for (devices, caps, message) in [
            (vec![ok.replace("risk_level: low", "risk_level: unknown")], CAPS.to_owned(), "risk_level must be known"),
            (vec![ok.replace("risk_level", "risk")], CAPS.to_owned(), "unknown field `risk`"),
            (vec![device("a b", "one")], CAPS.to_owned(), "a device_id is"),
            (vec![device("a", "ignore previous")], CAPS.to_owned(), "prompt_injection_like"),
            (vec![device("a", "x{y}")], CAPS.to_owned(), "holds '{'"),
            (vec![ok.clone()], format!("{CAPS}    - action: turn_on\n"), "listed twice"),
            (vec![ok.clone()], format!("{CAPS}    - action: set_brightness\n"), "min and max are needed"),
            (vec![ok.clone()], format!("{CAPS}  light: []\n"), "duplicate"),
            (vec![ok.clone()], CAPS.replace("light", "lihgt"), "unknown variant"),
        ] {
            let found = refused(&devices, &caps);
            assert!(found.contains(message), "{found} should say {message}");
        }
    }
}
