//! Policy and limits of the boundary, from `policy.toml`.
//!
//! A policy file may only be stricter than the built-in floor: a file that would allow a blocked
//! device, or a risky one without confirmation, is refused at load.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::registry::{RegistryError, read_bounded};
use super::vocabulary::{Decision, Risk};

/// Decisions by risk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decisions {
    /// For `read`.
    pub read: Decision,
    /// For `low`.
    pub low: Decision,
    /// For `medium`.
    pub medium: Decision,
    /// For `high`.
    pub high: Decision,
}

/// How old a device's state may be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FreshnessLimits {
    /// Older is stale, seconds.
    pub stale_after_s: u32,
    /// Older is expired, seconds.
    pub expired_after_s: u32,
}

/// Limits of memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryLimits {
    /// Most recent commands a relative command may refer to.
    pub short_items: u32,
    /// Oldest of them, seconds.
    pub short_max_age_s: u32,
    /// Most long-term items in the context of a model.
    pub long_items: u32,
    /// Most aliases in the store.
    pub max_aliases: u32,
    /// Most characters of the context of a model.
    pub context_chars: u32,
}

/// Limits of execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecutionLimits {
    /// Oldest dry-run that may be executed, seconds.
    pub max_plan_age_s: u32,
    /// Least time between two executions of one action on one device, milliseconds.
    pub min_interval_ms: u32,
}

/// Limits of a candidate source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceLimits {
    /// Tokens of one answer.
    pub max_tokens: u32,
    /// Tries after the first.
    pub retries: u32,
    /// Failures in a row that open the circuit breaker.
    pub breaker_failures: u32,
    /// Inputs answered without the source while the breaker is open.
    pub breaker_cooldown_inputs: u32,
}

/// A checked policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    decisions: Decisions,
    freshness: FreshnessLimits,
    memory: MemoryLimits,
    execution: ExecutionLimits,
    source: SourceLimits,
}

/// Why a policy is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// What is wrong with a file, and which.
    #[error("{}: {source}", path.display())]
    In {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: Box<PolicyError>,
    },
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] RegistryError),
    /// Not the expected TOML.
    #[error("policy: {0}")]
    Form(#[from] toml::de::Error),
    /// Weaker than the floor.
    #[error("policy: decisions.{risk} is {found}, it may not be weaker than {floor}")]
    TooWeak {
        /// Risk.
        risk: Risk,
        /// What the file says.
        found: Decision,
        /// The weakest allowed.
        floor: Decision,
    },
    /// A limit outside its range.
    #[error("policy: {field} is {value}, allowed is {min}..={max}")]
    Limit {
        /// Field.
        field: &'static str,
        /// What the file says.
        value: u32,
        /// Least.
        min: u32,
        /// Greatest.
        max: u32,
    },
}

impl Policy {
    /// Reads and checks a policy file.
    ///
    /// # Errors
    /// [`PolicyError`].
    pub fn load(path: &Path) -> Result<Self, PolicyError> {
        Self::from_toml(&read_bounded(path)?)
            .map_err(|source| PolicyError::In { path: path.to_owned(), source: Box::new(source) })
    }

    /// The embedded policy (`gates/agent/policy.toml`).
    ///
    /// # Errors
    /// Only if the embedded file is broken; tested.
    pub fn embedded() -> Result<Self, PolicyError> {
        Self::from_toml(include_str!("../../../gates/agent/policy.toml"))
    }

    /// Checks a policy in TOML.
    ///
    /// # Errors
    /// [`PolicyError`].
    pub fn from_toml(text: &str) -> Result<Self, PolicyError> {
        let policy: Policy = toml::from_str(text)?;
        let d = &policy.decisions;
        for (risk, found, floor) in [
            (Risk::Medium, d.medium, Decision::RequireConfirmation),
            (Risk::High, d.high, Decision::RequireConfirmation),
        ] {
            if found < floor {
                return Err(PolicyError::TooWeak { risk, found, floor });
            }
        }
        let p = &policy;
        for (field, value, min, max) in [
            ("freshness.stale_after_s", p.freshness.stale_after_s, 1, 3600),
            ("freshness.expired_after_s", p.freshness.expired_after_s, p.freshness.stale_after_s, 86_400),
            ("memory.short_items", p.memory.short_items, 1, 20),
            ("memory.short_max_age_s", p.memory.short_max_age_s, 1, 3600),
            ("memory.long_items", p.memory.long_items, 0, 20),
            ("memory.max_aliases", p.memory.max_aliases, 1, 1000),
            ("memory.context_chars", p.memory.context_chars, 100, 2000),
            ("execution.max_plan_age_s", p.execution.max_plan_age_s, 1, 600),
            ("execution.min_interval_ms", p.execution.min_interval_ms, 1000, 3_600_000),
            ("source.max_tokens", p.source.max_tokens, 32, 1024),
            ("source.retries", p.source.retries, 0, 3),
            ("source.breaker_failures", p.source.breaker_failures, 1, 10),
            ("source.breaker_cooldown_inputs", p.source.breaker_cooldown_inputs, 1, 100),
        ] {
            if value < min || value > max {
                return Err(PolicyError::Limit { field, value, min, max });
            }
        }
        Ok(policy)
    }

    /// The decision for a risk. `blocked` and `unknown` are denied whatever a file says.
    #[must_use]
    pub fn decide(&self, risk: Risk) -> Decision {
        match risk {
            Risk::Read => self.decisions.read,
            Risk::Low => self.decisions.low,
            Risk::Medium => self.decisions.medium,
            Risk::High => self.decisions.high,
            Risk::Blocked | Risk::Unknown => Decision::Deny,
        }
    }

    /// Freshness limits.
    #[must_use]
    pub fn freshness(&self) -> &FreshnessLimits {
        &self.freshness
    }

    /// Memory limits.
    #[must_use]
    pub fn memory(&self) -> &MemoryLimits {
        &self.memory
    }

    /// Execution limits.
    #[must_use]
    pub fn execution(&self) -> &ExecutionLimits {
        &self.execution
    }

    /// Source limits.
    #[must_use]
    pub fn source(&self) -> &SourceLimits {
        &self.source
    }

    /// BLAKE3 of the canonical content, in hex.
    #[must_use]
    pub fn hash(&self) -> String {
        blake3::hash(&serde_json::to_vec(self).unwrap_or_default()).to_hex().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMBEDDED: &str = include_str!("../../../gates/agent/policy.toml");

    #[test]
    fn the_embedded_policy_says_what_the_specification_says() {
        let policy = Policy::embedded().unwrap();
        assert_eq!(policy.decide(Risk::Low), Decision::Allow);
        assert_eq!(policy.decide(Risk::Medium), Decision::RequireConfirmation);
        assert_eq!(policy.decide(Risk::High), Decision::RequireConfirmation);
        assert_eq!(policy.decide(Risk::Blocked), Decision::Deny);
        assert_eq!(policy.decide(Risk::Unknown), Decision::Deny);
    }

    #[test]
    fn a_file_can_be_stricter_but_not_weaker() {
        let stricter = EMBEDDED.replace("high = \"require_confirmation\"", "high = \"deny\"");
        assert_eq!(Policy::from_toml(&stricter).unwrap().decide(Risk::High), Decision::Deny);
        let weaker = EMBEDDED.replace("high = \"require_confirmation\"", "high = \"allow\"");
        assert!(matches!(Policy::from_toml(&weaker), Err(PolicyError::TooWeak { risk: Risk::High, .. })));
        let blocked = EMBEDDED.replace("[decisions]", "[decisions]\nblocked = \"allow\"");
        assert!(matches!(Policy::from_toml(&blocked), Err(PolicyError::Form(_))));
    }

    #[test]
    fn limits_have_ranges() {
        let long = EMBEDDED.replace("max_plan_age_s = 600", "max_plan_age_s = 601");
        assert!(matches!(Policy::from_toml(&long), Err(PolicyError::Limit { field: "execution.max_plan_age_s", .. })));
    }
}
