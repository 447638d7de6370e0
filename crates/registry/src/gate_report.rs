//! The gate report as promotion reads it (docs/formats/report.md): verdicts, and which files they are about.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::error::{Error, Result, shown};

const SCHEMA: &str = "bitnet-harness.gates/1";
/// The largest report, in bytes.
pub(crate) const MAX_REPORT: u64 = 16 << 20;

/// A gate's verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// Measured and good.
    Pass,
    /// Measured and bad.
    Fail,
    /// Not measured, or not wholly.
    Unknown,
}

/// How many checks a gate planned, executed and failed.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Checks {
    /// Planned.
    pub planned: u64,
    /// Executed.
    pub executed: u64,
    /// Failed.
    pub failed: u64,
}

/// A file that a gate looked at.
#[derive(Debug, Clone, Deserialize)]
pub struct Input {
    /// What it was for the gate: `model`, `cartridge`, `prompts`, ….
    pub name: String,
    /// Its content.
    pub hash: Digest,
}

/// One gate's result.
#[derive(Debug, Clone, Deserialize)]
pub struct Gate {
    /// `0`, `1`, …, `3a`, ….
    pub id: String,
    verdict: Verdict,
    /// Its checks.
    pub checks: Checks,
    /// What it looked at.
    pub inputs: Vec<Input>,
}

impl Gate {
    /// The verdict; a PASS that its own counts contradict is none.
    pub fn verdict(&self) -> Verdict {
        let Checks { planned, executed, failed } = self.checks;
        match self.verdict {
            Verdict::Pass if failed > 0 => Verdict::Fail,
            Verdict::Pass if executed == 0 || executed < planned => Verdict::Unknown,
            other => other,
        }
    }
}

/// The model that was examined.
#[derive(Debug, Clone, Deserialize)]
pub struct ReportModel {
    /// SHA-256 of the file.
    pub file_hash: Digest,
    /// Canonical hash of the architecture.
    pub arch_hash: Digest,
}

/// A gate report. Fields that promotion does not need are not read: more may be added within version 1.
#[derive(Debug, Clone, Deserialize)]
pub struct GateReport {
    /// `None` if no model could be loaded.
    pub model: Option<ReportModel>,
    /// Only a subset of the checks was planned.
    pub quick: bool,
    /// Every gate that ran.
    pub gates: Vec<Gate>,
}

impl GateReport {
    /// Reads a report; `object` is what it is called in errors.
    ///
    /// # Errors
    /// [`Error::Malformed`], [`Error::TooOld`], [`Error::TooNew`].
    pub fn parse(object: &str, bytes: &[u8]) -> Result<Self> {
        let report: Self = crate::schema::parse(object, bytes, SCHEMA)?;
        let mut ids: Vec<&str> = report.gates.iter().map(|g| g.id.as_str()).collect();
        ids.sort_unstable();
        if let Some(twice) = ids.windows(2).find(|w| w[0] == w[1]) {
            return Err(Error::malformed(object, format!("reports gate `{}` twice", shown(twice[0]))));
        }
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(gates: &str) -> Result<GateReport> {
        let hash = Digest::of(b"model");
        let text = format!(
            r#"{{"schema":"bitnet-harness.gates/1","version":"0.1.0","model":{{"name":"m","file_hash":"{hash}",
            "arch_hash":"{hash}"}},"quick":false,"gates":[{gates}],"added_later":1}}"#
        );
        GateReport::parse("report", text.as_bytes())
    }

    fn gate(id: &str, verdict: &str, planned: u64, executed: u64, failed: u64) -> String {
        format!(
            r#"{{"id":"{id}","verdict":"{verdict}","inputs":[],"checks":{{"planned":{planned},"executed":{executed},
            "failed":{failed}}}}}"#
        )
    }

    #[test]
    fn a_pass_that_its_counts_contradict_is_none() {
        for (line, verdict) in [
            (gate("0", "PASS", 3, 3, 0), Verdict::Pass),
            (gate("0", "PASS", 3, 3, 1), Verdict::Fail),
            (gate("0", "PASS", 3, 2, 0), Verdict::Unknown),
            (gate("0", "PASS", 0, 0, 0), Verdict::Unknown),
            (gate("0", "UNKNOWN", 3, 3, 0), Verdict::Unknown),
            (gate("0", "FAIL", 3, 3, 0), Verdict::Fail),
        ] {
            assert_eq!(report(&line).unwrap().gates[0].verdict(), verdict, "{line}");
        }
    }

    #[test]
    fn reports_that_say_two_things_are_refused() {
        let twice = [gate("1", "FAIL", 1, 1, 1), gate("1", "PASS", 1, 1, 0)].join(",");
        assert!(report(&twice).unwrap_err().to_string().contains("gate `1` twice"));
        assert!(report(&gate("0", "pass", 1, 1, 0)).is_err());
        assert!(GateReport::parse("r", br#"{"schema":"bitnet-harness.gates/2"}"#).is_err());
        assert!(GateReport::parse("r", b"[]").is_err());
    }
}
