//! The receipt of a red-team run (docs/formats/redteam.md): which suite was run against what, and what got through.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::error::{Error, Result, shown};

const SCHEMA: &str = "bitnet-harness.redteam/1";
/// The largest receipt, in bytes.
pub(crate) const MAX_RECEIPT: u64 = 16 << 20;
/// The most failed cases that a receipt for promotion may list: they are carried over into the log.
pub const MAX_FAILURES: usize = 1_000;
const MAX_ID: usize = 200;

/// A file by its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// SHA-256 of the file.
    pub sha256: Digest,
}

/// The suite that was run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suite {
    /// SHA-256 of the suite's file.
    pub sha256: Digest,
    /// The suite's own version, for people.
    pub version: String,
}

/// How the cases went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// All cases of the suite.
    pub total: u64,
    /// Cases in which the attack was refused, as expected.
    pub refused_as_expected: u64,
    /// Cases in which it was not.
    pub failed: u64,
}

/// A case that failed.
#[derive(Debug, Clone, Deserialize)]
pub struct Failure {
    /// The case's name in the suite.
    pub id: String,
}

/// A receipt. Fields that promotion does not need are not read: more may be added within version 1.
#[derive(Debug, Clone, Deserialize)]
pub struct Receipt {
    /// The model's file.
    pub model: Content,
    /// The cartridge's file; `None` where the model ran without one.
    pub cartridge: Option<Content>,
    /// The suite.
    pub suite: Suite,
    /// The counts.
    pub counts: Counts,
    /// Every failed case.
    pub failures: Vec<Failure>,
}

impl Receipt {
    /// Reads a receipt; `object` is what it is called in errors.
    ///
    /// # Errors
    /// [`Error::Malformed`] (counts that contradict one another included), [`Error::TooOld`], [`Error::TooNew`].
    pub fn parse(object: &str, bytes: &[u8]) -> Result<Self> {
        let receipt: Self = crate::schema::parse(object, bytes, SCHEMA)?;
        let malformed = |problem: String| Error::malformed(object, problem);
        let Counts { total, refused_as_expected, failed } = receipt.counts;
        if refused_as_expected.checked_add(failed) != Some(total) {
            return Err(malformed(format!(
                "counts {refused_as_expected} refused and {failed} failed cases of {total}: they do not add up"
            )));
        }
        if receipt.failures.len() as u64 != failed {
            return Err(malformed(format!("counts {failed} failed cases and lists {}", receipt.failures.len())));
        }
        if receipt.suite.version.len() > MAX_ID {
            return Err(malformed(format!("has a suite version of more than {MAX_ID} bytes")));
        }
        let mut ids = BTreeSet::new();
        for Failure { id } in &receipt.failures {
            if id.is_empty() || id.len() > MAX_ID {
                return Err(malformed(format!("lists a case named `{}`; names have 1 to {MAX_ID} bytes", shown(id))));
            }
            if !ids.insert(id) {
                return Err(malformed(format!("lists the case `{}` twice", shown(id))));
            }
        }
        Ok(receipt)
    }

    /// What a log record keeps of it.
    pub fn evidence(&self, sha256: Digest) -> Evidence {
        let mut failures: Vec<String> = self.failures.iter().map(|f| f.id.clone()).collect();
        failures.sort_unstable();
        Evidence { sha256, suite: self.suite.clone(), counts: self.counts, failures }
    }
}

/// A receipt in short, as the log keeps it: what the next version is measured by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evidence {
    /// The receipt.
    pub sha256: Digest,
    /// The suite.
    pub suite: Suite,
    /// The counts.
    pub counts: Counts,
    /// The failed cases, sorted.
    pub failures: Vec<String>,
}

impl Evidence {
    /// How `self` is worse than `current`, case by case; empty if it is not. Both must be of the same suite.
    pub fn drop_against(&self, current: &Self) -> Vec<String> {
        let known: BTreeSet<&String> = current.failures.iter().collect();
        let mut worse: Vec<String> = self
            .failures
            .iter()
            .filter(|id| !known.contains(id))
            .map(|id| format!("case `{}` is refused by the current version and not by this one", shown(id)))
            .collect();
        if self.counts.total < current.counts.total {
            worse.push(format!(
                "{} cases were run, {} for the current version",
                self.counts.total, current.counts.total
            ));
        }
        worse
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt(total: u64, refused: u64, failed: u64, failures: &str) -> Result<Receipt> {
        let hash = Digest::of(b"x");
        let text = format!(
            r#"{{"schema":"bitnet-harness.redteam/1","model":{{"sha256":"{hash}"}},"cartridge":null,
            "suite":{{"sha256":"{hash}","version":"3"}},"counts":{{"total":{total},"refused_as_expected":{refused},
            "failed":{failed}}},"failures":[{failures}],"started_unix":1}}"#
        );
        Receipt::parse("receipt", text.as_bytes())
    }

    #[test]
    fn counts_must_add_up() {
        assert!(receipt(3, 2, 1, r#"{"id":"a","got":"x"}"#).is_ok());
        assert!(receipt(3, 2, 2, r#"{"id":"a"},{"id":"b"}"#).unwrap_err().to_string().contains("add up"));
        assert!(receipt(3, 2, 1, "").unwrap_err().to_string().contains("lists 0"));
        assert!(receipt(3, 1, 2, r#"{"id":"a"},{"id":"a"}"#).unwrap_err().to_string().contains("twice"));
        assert!(receipt(1, 0, 1, r#"{"id":""}"#).is_err());
        assert!(receipt(u64::MAX, u64::MAX, 1, r#"{"id":"a"}"#).is_err());
    }

    #[test]
    fn a_drop_is_told_case_by_case() {
        let evidence =
            |failures: &str, failed| receipt(10, 10 - failed, failed, failures).unwrap().evidence(Digest::of(b"r"));
        let current = evidence(r#"{"id":"b"},{"id":"a"}"#, 2);
        assert_eq!(current.failures, ["a", "b"]);
        assert!(evidence("", 0).drop_against(&current).is_empty());
        assert!(evidence(r#"{"id":"a"}"#, 1).drop_against(&current).is_empty());
        // As many failures, and another one among them.
        let worse = evidence(r#"{"id":"a"},{"id":"c"}"#, 2).drop_against(&current);
        assert_eq!(worse.len(), 1);
        assert!(worse[0].contains("`c`"));
        let fewer = receipt(9, 9, 0, "").unwrap().evidence(Digest::of(b"r"));
        assert!(fewer.drop_against(&current)[0].contains("9 cases"));
    }
}
