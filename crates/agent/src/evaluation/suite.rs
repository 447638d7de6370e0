//! Case suites: our own form and EdgeHome's, unknown fields and duplicate ids refused.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::guard::InputFlag;
use crate::pipeline::MemoryStatus;
use crate::registry::{RegistryError, read_bounded};
use crate::time_of_day::TimeOfDay;
use crate::vocabulary::{Action, Decision, DeviceType, Gate, Intent, Mode, Room};

/// Schema of our own form.
const SCHEMA: &str = "bitnet-harness.agent-cases/1";
/// Keys of a case in EdgeHome's form.
const CASE_KEYS: &[&str] = &["id", "input", "category", "tags", "mode", "setup", "expected_input_flags", "expected"];
/// Keys that people add to a case and that expect nothing.
const INFORMATIONAL: &[&str] = &[
    "source",
    "note",
    "notes",
    "description",
    "comment",
    "title",
    "lang",
    "language",
    "author",
    "origin",
    "reference",
];
/// Most cases of a suite.
const MAX_CASES: usize = 5000;

/// Why a suite is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SuiteError {
    /// What is wrong with a file, and which.
    #[error("{}: {source}", path.display())]
    In {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: Box<SuiteError>,
    },
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] RegistryError),
    /// Not the expected YAML; unknown fields included.
    #[error("case suite: {0}")]
    Form(#[from] serde_yaml_ng::Error),
    /// A case that makes no sense.
    #[error("case suite: case {id:?}: {reason}")]
    Case {
        /// Its id.
        id: String,
        /// What is wrong.
        reason: String,
    },
    /// Too many or none.
    #[error("case suite: {count} cases, 1 to {limit} are allowed")]
    Count {
        /// How many.
        count: usize,
        /// Limit.
        limit: usize,
    },
}

/// Who proposes in a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CaseMode {
    #[default]
    Rules,
    Scripted,
}

/// What happens before a case.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Setup {
    #[serde(default)]
    pub(crate) say: Vec<String>,
    #[serde(default)]
    pub(crate) session: Option<String>,
    #[serde(default)]
    pub(crate) elapsed_s: u32,
    #[serde(default)]
    pub(crate) state_age_s: BTreeMap<String, Option<u32>>,
    #[serde(default)]
    pub(crate) model_output: Option<String>,
}

/// What a case expects; what is not stated is not checked.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Expected {
    pub(crate) intent: Option<Intent>,
    pub(crate) room: Option<Room>,
    pub(crate) device_id: Option<String>,
    pub(crate) device_type: Option<DeviceType>,
    pub(crate) action: Option<Action>,
    pub(crate) brightness: Option<u8>,
    pub(crate) temperature: Option<i16>,
    pub(crate) time_after: Option<String>,
    pub(crate) set_mode: Option<Mode>,
    pub(crate) policy_decision: Option<Decision>,
    pub(crate) dry_run_ready: Option<bool>,
    pub(crate) memory_write_status: Option<MemoryStatus>,
    #[serde(default)]
    pub(crate) blocked_by: Vec<Gate>,
    #[serde(default)]
    pub(crate) candidate_refused: bool,
    pub(crate) for_any_candidate: Option<bool>,
}

/// One case.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    pub(crate) id: String,
    pub(crate) input: String,
    #[serde(default)]
    category: Option<String>,
    #[serde(default)]
    #[expect(dead_code, reason = "part of the form, for people")]
    tags: Vec<String>,
    #[serde(default)]
    pub(crate) mode: CaseMode,
    #[serde(default)]
    pub(crate) setup: Option<Setup>,
    #[serde(default)]
    pub(crate) expected_input_flags: Vec<InputFlag>,
    #[serde(default)]
    pub(crate) expected: Expected,
}

impl Case {
    pub(crate) fn category(&self) -> &str {
        self.category.as_deref().unwrap_or("uncategorized")
    }

    /// Expected to be blocked: deny, or no plan.
    pub(crate) fn expects_block(&self) -> bool {
        self.expected.policy_decision == Some(Decision::Deny) || self.expected.dry_run_ready == Some(false)
    }

    /// Expected to be planned.
    pub(crate) fn expects_plan(&self) -> bool {
        !self.expects_block()
            && (self.expected.dry_run_ready == Some(true)
                || matches!(self.expected.policy_decision, Some(Decision::Allow | Decision::RequireConfirmation)))
    }

    /// Whether the expectation follows from the input alone.
    pub(crate) fn holds_for_any_candidate(&self) -> bool {
        self.expected.memory_write_status.is_none()
            && (self.expects_block() || self.expects_plan())
            && self.expected.for_any_candidate.unwrap_or(self.mode == CaseMode::Rules)
    }

    fn is_unchecked(&self) -> bool {
        let e = &self.expected;
        self.expected_input_flags.is_empty()
            && e.intent.is_none()
            && e.room.is_none()
            && e.device_id.is_none()
            && e.device_type.is_none()
            && e.action.is_none()
            && e.brightness.is_none()
            && e.temperature.is_none()
            && e.time_after.is_none()
            && e.set_mode.is_none()
            && e.policy_decision.is_none()
            && e.dry_run_ready.is_none()
            && e.memory_write_status.is_none()
            && e.blocked_by.is_empty()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    schema: String,
    cases: Vec<Case>,
}

/// A checked suite.
#[derive(Debug, Clone)]
pub struct Suite {
    pub(crate) cases: Vec<Case>,
    pub(crate) isolated: bool,
    pub(crate) hash: String,
    pub(crate) unchecked: usize,
    /// Keys that carry no expectation, left out, with how often.
    pub(crate) left_out: Vec<String>,
}

impl Suite {
    /// The embedded suite (`gates/agent/cases.yaml`).
    ///
    /// # Errors
    /// Only if the embedded file is broken; tested.
    pub fn embedded() -> Result<Self, SuiteError> {
        Self::from_yaml(include_str!("../../../../gates/agent/cases.yaml"))
    }

    /// Reads and checks a suite file.
    ///
    /// # Errors
    /// [`SuiteError`].
    pub fn load(path: &Path) -> Result<Self, SuiteError> {
        Self::from_yaml(&read_bounded(path)?)
            .map_err(|source| SuiteError::In { path: path.to_owned(), source: Box::new(source) })
    }

    /// Checks a suite in YAML. Two forms: our document (`schema`, `cases`), whose cases are isolated
    /// from each other, and EdgeHome's plain list, whose cases share one memory in file order
    /// (except those with a `setup`).
    ///
    /// # Errors
    /// [`SuiteError`]: unknown fields or words, duplicate ids, nothing expected (our form),
    /// a scripted case without a script.
    pub fn from_yaml(text: &str) -> Result<Self, SuiteError> {
        let mut value: serde_yaml_ng::Value = serde_yaml_ng::from_str(text)?;
        let mut left_out: BTreeMap<&'static str, usize> = BTreeMap::new();
        let isolated = value.is_mapping();
        let cases = if isolated {
            let document: Document = serde_yaml_ng::from_str(text)?;
            if document.schema != SCHEMA {
                return Err(SuiteError::Case {
                    id: "schema".into(),
                    reason: format!("is {:?}, not {SCHEMA:?}", document.schema),
                });
            }
            document.cases
        } else {
            for case in value.as_sequence_mut().into_iter().flatten() {
                let id = case.get("id").and_then(|v| v.as_str()).unwrap_or("?").to_owned();
                let Some(case) = case.as_mapping_mut() else { continue };
                for key in INFORMATIONAL {
                    if case.remove(*key).is_some() {
                        *left_out.entry(key).or_default() += 1;
                    }
                }
                let unknown = case.keys().filter_map(|k| k.as_str()).find(|k| !CASE_KEYS.contains(k));
                if let Some(key) = unknown {
                    return Err(SuiteError::Case {
                        id,
                        reason: format!(
                            "has the key {key:?}, which this program does not know; if it carries no expectation, remove it or call it one of {}",
                            INFORMATIONAL.join(", ")
                        ),
                    });
                }
            }
            // Read from the text where nothing was left out: errors then know their lines.
            if left_out.is_empty() { serde_yaml_ng::from_str(text)? } else { serde_yaml_ng::from_value(value)? }
        };
        if cases.is_empty() || cases.len() > MAX_CASES {
            return Err(SuiteError::Count { count: cases.len(), limit: MAX_CASES });
        }
        let mut ids = BTreeSet::new();
        let mut unchecked = 0;
        for case in &cases {
            let refuse = |reason: &str| SuiteError::Case { id: case.id.clone(), reason: reason.to_owned() };
            if case.id.is_empty() || !ids.insert(case.id.as_str()) {
                return Err(refuse("the id is empty or occurs twice"));
            }
            if case.is_unchecked() {
                if isolated {
                    return Err(refuse("it expects nothing, so it could not fail"));
                }
                unchecked += 1;
            }
            if case.expected.time_after.as_deref().is_some_and(|t| TimeOfDay::parse(t).is_none()) {
                return Err(refuse("expected.time_after is not HH:MM"));
            }
            let script = case.setup.as_ref().and_then(|s| s.model_output.as_ref());
            if (case.mode == CaseMode::Scripted) != script.is_some() {
                return Err(refuse("mode scripted and setup.model_output belong together"));
            }
        }
        let hash = blake3::hash(text.as_bytes()).to_hex().to_string();
        let left_out = left_out
            .into_iter()
            .map(|(key, count)| format!("{key} ({count} cases) carries no expectation and was left out"))
            .collect();
        Ok(Suite { cases, isolated, hash, unchecked, left_out })
    }

    /// Number of cases.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cases.len()
    }

    /// Never true for a checked suite.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cases.is_empty()
    }

    /// BLAKE3 of the file's bytes, in hex.
    #[must_use]
    pub fn hash(&self) -> &str {
        &self.hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Suite::from_yaml(text).unwrap_err().to_string()
    }

    /// W18: a case file is checked before it is believed.
    #[test]
    fn w18_suites_are_checked() {
        let ok = "- id: a\n  input: x\n  expected: {policy_decision: deny}\n";
        assert_eq!(Suite::from_yaml(ok).unwrap().len(), 1);
        for (text, message) in [
            (format!("{ok}{ok}"), "occurs twice"),
            (ok.replace("input", "inptu"), "the key \"inptu\""),
            (ok.replace("policy_decision", "policy"), "unknown field `policy`"),
            (ok.replace("deny", "maybe"), "unknown variant `maybe`"),
            ("[]".to_owned(), "0 cases"),
            (format!("schema: {SCHEMA}\ncases:\n- id: a\n  input: x\n"), "expects nothing"),
            (format!("schema: other\ncases:\n{ok}"), "is \"other\""),
            (format!("{ok}  mode: scripted\n"), "belong together"),
            (ok.replace("deny", "deny, time_after: 7pm"), "not HH:MM"),
        ] {
            let found = refused(&text);
            assert!(found.contains(message), "{found} should say {message}");
        }
        assert_eq!(Suite::from_yaml("- id: a\n  input: x\n  expected: {}\n").unwrap().unchecked, 1);
        // What expects nothing is left out and said.
        let suite = Suite::from_yaml(&format!("{ok}  source: upstream\n  notes: n\n")).unwrap();
        assert_eq!(suite.left_out.len(), 2);
        assert!(suite.left_out[1].starts_with("source (1 cases)"), "{:?}", suite.left_out);
    }

    #[test]
    fn the_embedded_suite_has_the_published_counts() {
        let suite = Suite::embedded().unwrap();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for case in &suite.cases {
            *counts.entry(case.category()).or_default() += 1;
        }
        // Published for EdgeHome's suite of 108.
        let published = [
            ("normal_control", 12),
            ("slot_extraction", 12),
            ("air_conditioner_controls", 12),
            ("runtime_memory", 8),
            ("long_memory", 11),
            ("long_memory_rejected", 4),
            ("high_risk_policy", 10),
            ("fail_closed_safety", 7),
            ("capability_boundary", 10),
            ("unknown_device", 10),
            ("input_guard", 4),
            ("backend_boundary", 8),
        ];
        for (category, count) in published {
            assert_eq!(counts.get(category), Some(&count), "{category}");
        }
        let blocked = suite.cases[..108].iter().filter(|c| c.expects_block()).count();
        assert_eq!(blocked, 39);
        assert!(suite.len() > 108);
        // A case that is planned says what is planned, so that a wrong plan is noticed.
        for case in suite.cases.iter().filter(|c| c.expects_plan()) {
            assert!(case.expected.device_id.is_some() && case.expected.action.is_some(), "{}", case.id);
        }
    }
}
