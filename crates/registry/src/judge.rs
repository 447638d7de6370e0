//! The judge's report as promotion reads it: a verdict on a compact or trained cartridge, and which one.

use serde::Deserialize;

use crate::error::Result;
use crate::gate_report::Verdict;
use crate::redteam::Content;

const SCHEMA: &str = "bitnet-harness.judge/1";
/// The largest report, in bytes.
pub(crate) const MAX_REPORT: u64 = 16 << 20;

/// A judge's report. Fields that promotion does not need are not read.
#[derive(Debug, Clone, Deserialize)]
pub struct JudgeReport {
    /// The cartridge that was judged.
    pub cartridge: Content,
    /// The model it was judged on.
    pub model: Content,
    /// The verdict.
    pub verdict: Verdict,
}

impl JudgeReport {
    /// Reads a report; `object` is what it is called in errors.
    ///
    /// # Errors
    /// [`crate::Error::Malformed`], [`crate::Error::TooOld`], [`crate::Error::TooNew`].
    pub fn parse(object: &str, bytes: &[u8]) -> Result<Self> {
        crate::schema::parse(object, bytes, SCHEMA)
    }
}
