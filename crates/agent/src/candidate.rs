//! The candidate: what a model (or the rule parser) proposes. Untrusted.
//!
//! `model_output.v1`. Every field is optional; unknown fields, duplicate keys and words outside the
//! closed lists are refused (and unknown fields counted): an emitted `entity_id` is visible in the
//! trace instead of silently dropped.

use serde::Serialize;
use serde_json::{Map, Value};

use super::strict_json::{self, StrictJsonError};
use super::vocabulary::{Action, DeviceType, Intent, Room};

/// The only schema version a candidate may name.
pub const CANDIDATE_SCHEMA: &str = "model_output.v1";
/// Most characters of any text in a candidate.
pub const MAX_TEXT_CHARS: usize = 64;
/// `raw_value` of a command that refers to an earlier one.
pub const RELATIVE: &str = "relative_command";

/// Parameters as proposed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CandidateParams {
    /// Percent, 0..=255 here; the gates refuse more than 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub brightness: Option<u8>,
    /// Degrees Celsius.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<i16>,
    /// Mode, in the user's or the vocabulary's words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// `HH:MM`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_after: Option<String>,
    /// [`RELATIVE`] or nothing of meaning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub raw_value: Option<String>,
}

/// A proposal. Its fields are open on purpose: nothing in it is believed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Candidate {
    /// [`CANDIDATE_SCHEMA`].
    pub schema_version: String,
    /// Proposed intent.
    pub intent: Intent,
    /// Proposed room.
    pub room: Room,
    /// The user's own phrase for the device, or `relative:…`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_alias: Option<String>,
    /// Proposed device type.
    pub device_type: DeviceType,
    /// Proposed action.
    pub action: Action,
    /// Proposed parameters.
    pub params: CandidateParams,
}

impl Default for Candidate {
    fn default() -> Self {
        Candidate {
            schema_version: CANDIDATE_SCHEMA.to_owned(),
            intent: Intent::Unknown,
            room: Room::Unknown,
            device_alias: None,
            device_type: DeviceType::Unknown,
            action: Action::Unknown,
            params: CandidateParams::default(),
        }
    }
}

/// Why a text is not a candidate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CandidateError {
    /// Not strict JSON.
    #[error(transparent)]
    Json(#[from] StrictJsonError),
    /// JSON, but no object.
    #[error("a candidate is one JSON object")]
    NotAnObject,
    /// `schema_version` is missing or another one.
    #[error("schema_version is {found:?}, it must be \"model_output.v1\"")]
    SchemaVersion {
        /// What was found, clipped.
        found: String,
    },
    /// Fields that the schema does not have.
    #[error("{count} unknown field(s): {}", names.join(", "))]
    UnknownFields {
        /// How many.
        count: usize,
        /// The first eight names, clipped; `params.` before those of the parameters.
        names: Vec<String>,
    },
    /// A field holds something its type does not allow.
    #[error("field {field}: {found} is not {expected}")]
    Field {
        /// Its name.
        field: &'static str,
        /// The value, clipped.
        found: String,
        /// What is allowed.
        expected: &'static str,
    },
}

impl CandidateError {
    /// Number of unknown fields, 0 for other errors.
    #[must_use]
    pub fn unknown_fields(&self) -> usize {
        if let CandidateError::UnknownFields { count, .. } = self { *count } else { 0 }
    }
}

const FIELDS: &[&str] = &["schema_version", "intent", "room", "device_alias", "device_type", "action", "params"];
const PARAMS: &[&str] = &["brightness", "temperature", "mode", "time_after", "raw_value"];

impl Candidate {
    /// Parses one JSON object, strictly.
    ///
    /// # Errors
    /// [`CandidateError`].
    pub fn parse(json: &str) -> Result<Self, CandidateError> {
        let Value::Object(object) = strict_json::parse(json)? else { return Err(CandidateError::NotAnObject) };
        let empty = Map::new();
        let params = match object.get("params") {
            None | Some(Value::Null) => &empty,
            Some(Value::Object(params)) => params,
            Some(other) => return Err(wrong("params", other, "an object")),
        };
        let unknown: Vec<String> = object
            .keys()
            .filter(|k| !FIELDS.contains(&k.as_str()))
            .cloned()
            .chain(params.keys().filter(|k| !PARAMS.contains(&k.as_str())).map(|k| format!("params.{k}")))
            .collect();
        if !unknown.is_empty() {
            let names = unknown.iter().take(8).map(|n| super::text::clipped(n, 40)).collect();
            return Err(CandidateError::UnknownFields { count: unknown.len(), names });
        }
        match object.get("schema_version") {
            Some(Value::String(version)) if version == CANDIDATE_SCHEMA => {}
            other => {
                return Err(CandidateError::SchemaVersion { found: other.map_or_else(|| "missing".to_owned(), shown) });
            }
        }
        Ok(Candidate {
            schema_version: CANDIDATE_SCHEMA.to_owned(),
            intent: word(&object, "intent", Intent::from_word)?.unwrap_or(Intent::Unknown),
            room: word(&object, "room", Room::from_word)?.unwrap_or(Room::Unknown),
            device_alias: text(&object, "device_alias")?,
            device_type: word(&object, "device_type", DeviceType::from_word)?.unwrap_or(DeviceType::Unknown),
            action: word(&object, "action", Action::from_word)?.unwrap_or(Action::Unknown),
            params: CandidateParams {
                brightness: number(params, "brightness", "an integer 0..=255")?,
                temperature: number(params, "temperature", "a 16-bit integer")?,
                mode: text(params, "mode")?,
                time_after: text(params, "time_after")?,
                raw_value: text(params, "raw_value")?,
            },
        })
    }

    /// One line of JSON that [`Candidate::parse`] reads back as the same candidate.
    #[must_use]
    pub fn to_json(&self) -> String {
        // A struct of strings, enums and integers always serializes.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Whether nothing was proposed at all.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        *self == Candidate::default()
    }

    /// Whether it says that it refers to an earlier command.
    #[must_use]
    pub fn is_relative(&self) -> bool {
        self.params.raw_value.as_deref() == Some(RELATIVE)
    }

    /// The alias unless it is a `relative:` marker or empty.
    #[must_use]
    pub fn named_alias(&self) -> Option<&str> {
        self.device_alias.as_deref().filter(|a| !a.starts_with("relative:") && !a.trim().is_empty())
    }
}

fn shown(value: &Value) -> String {
    super::text::clipped(&value.to_string(), 60)
}

fn wrong(field: &'static str, value: &Value, expected: &'static str) -> CandidateError {
    CandidateError::Field { field, found: shown(value), expected }
}

fn word<T>(
    object: &Map<String, Value>,
    field: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, CandidateError> {
    match object.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_str().and_then(parse) {
            Some(word) => Ok(Some(word)),
            None => Err(wrong(field, value, "a word of its closed list")),
        },
    }
}

fn text(object: &Map<String, Value>, field: &'static str) -> Result<Option<String>, CandidateError> {
    match object.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(s)) if s.chars().count() <= MAX_TEXT_CHARS && !s.chars().any(char::is_control) => {
            Ok(Some(s.clone()))
        }
        Some(other) => Err(wrong(field, other, "a text of at most 64 characters without control characters")),
    }
}

fn number<T: TryFrom<i64>>(
    object: &Map<String, Value>,
    field: &'static str,
    expected: &'static str,
) -> Result<Option<T>, CandidateError> {
    match object.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_i64().and_then(|n| T::try_from(n).ok()) {
            Some(n) => Ok(Some(n)),
            None => Err(wrong(field, value, expected)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const VALID: &str = r#"{"schema_version":"model_output.v1","intent":"control_device","room":"entrance",
        "device_alias":"前门门锁","device_type":"lock","action":"unlock","params":{}}"#;

    #[test]
    fn a_valid_candidate_parses_and_round_trips() {
        let candidate = Candidate::parse(VALID).unwrap();
        assert_eq!(candidate.action, Action::Unlock);
        assert_eq!(candidate.named_alias(), Some("前门门锁"));
        assert_eq!(Candidate::parse(&candidate.to_json()).unwrap(), candidate);
    }

    #[test]
    fn an_object_with_only_the_version_is_blank() {
        assert!(Candidate::parse(r#"{"schema_version":"model_output.v1"}"#).unwrap().is_blank());
    }

    /// W6: unknown keys are refused and counted.
    #[test]
    fn w6_unknown_fields_are_refused_and_counted() {
        let text =
            VALID.replace("\"params\":{}", "\"params\":{\"did\":1},\"entity_id\":\"lock.front\",\"execute\":true");
        let error = Candidate::parse(&text).unwrap_err();
        assert_eq!(error.unknown_fields(), 3);
        assert_eq!(error.to_string(), "3 unknown field(s): entity_id, execute, params.did");
    }

    #[test]
    fn everything_else_outside_the_schema_is_refused_by_name() {
        let cases = [
            (VALID.replace("model_output.v1", "model_output.v2"), "schema_version is"),
            ("{}".to_owned(), "schema_version is \"missing\""),
            ("[]".to_owned(), "one JSON object"),
            (VALID.replace("\"unlock\"", "\"explode\""), "field action"),
            (VALID.replace("\"unlock\"", "null").replace("\"lock\"", "7"), "field device_type"),
            (VALID.replace("{}", "{\"brightness\":256}"), "field brightness"),
            (VALID.replace("{}", "{\"brightness\":30.5}"), "field brightness"),
            (VALID.replace("{}", "{\"temperature\":40000}"), "field temperature"),
            (VALID.replace("{}", "{\"mode\":[]}"), "field mode"),
            (VALID.replace("{}", "[]"), "field params"),
            (VALID.replace("前门门锁", &"门".repeat(65)), "field device_alias"),
            (VALID.replace("\"room\"", "\"intent\""), "occurs twice"),
        ];
        for (text, message) in cases {
            let error = Candidate::parse(&text).unwrap_err().to_string();
            assert!(error.contains(message), "{error} should say {message}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn any_text_is_a_candidate_or_an_error(text in ".{0,200}") {
            let _ = Candidate::parse(&text);
        }

        #[test]
        fn what_is_written_is_read_back(brightness in proptest::option::of(any::<u8>()), temperature in proptest::option::of(any::<i16>()),
            alias in proptest::option::of("[a-z灯门 ]{1,20}"), action in 0..Action::ALL.len()) {
            let candidate = Candidate {
                device_alias: alias, action: Action::ALL[action],
                params: CandidateParams { brightness, temperature, ..CandidateParams::default() },
                ..Candidate::default()
            };
            prop_assert_eq!(Candidate::parse(&candidate.to_json()).unwrap(), candidate);
        }
    }
}
