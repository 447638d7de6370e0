//! Collects what a gate measures and derives its verdict from nothing else.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::Value;

use crate::report::{Checks, Finding, GateReport, Input, Severity, Verdict};

/// Findings kept per code; the counts go on.
const KEPT_PER_CODE: usize = 16;

/// Measurements of one gate run.
pub struct Recorder {
    started: Instant,
    metrics: BTreeMap<String, Value>,
    findings: Vec<Finding>,
    seen: BTreeMap<String, usize>,
    checks: Checks,
    inputs: Vec<Input>,
    summary: Vec<String>,
    progress: Box<dyn FnMut(&str)>,
}

impl Recorder {
    /// An empty record; `progress` hears what is going on.
    pub fn new(progress: Box<dyn FnMut(&str)>) -> Self {
        Self {
            started: Instant::now(),
            metrics: BTreeMap::new(),
            findings: Vec::new(),
            seen: BTreeMap::new(),
            checks: Checks::default(),
            inputs: Vec::new(),
            summary: Vec::new(),
            progress,
        }
    }

    /// Says what is being done.
    pub fn progress(&mut self, what: &str) {
        (self.progress)(what);
    }

    /// Plans `n` more checks. What is planned and not run keeps the gate from passing.
    pub fn plan(&mut self, n: u64) {
        self.checks.planned += n;
    }

    /// Records one check; `failure` describes it where it did not hold. Where that is the host's shortage, the caller
    /// says [`Severity::Unmeasured`] and [`SHORTAGE`], and the check was not made.
    pub fn check(&mut self, holds: bool, failure: impl FnOnce() -> Finding) -> bool {
        if holds {
            self.checks.executed += 1;
            return true;
        }
        let failure = failure();
        if failure.severity != Severity::Unmeasured {
            self.checks.executed += 1;
            self.checks.failed += 1;
        }
        self.finding(failure);
        false
    }

    /// Records a finding.
    pub fn finding(&mut self, finding: Finding) {
        let seen = self.seen.entry(finding.code.clone()).or_default();
        *seen += 1;
        if *seen <= KEPT_PER_CODE {
            self.findings.push(finding);
        }
    }

    /// Records that something could not be measured.
    pub fn unmeasured(&mut self, code: &str, message: impl Into<String>) {
        self.finding(finding(Severity::Unmeasured, code, message, []));
    }

    /// Records a measurement.
    pub fn metric(&mut self, name: &str, value: impl Into<Value>) {
        self.metrics.insert(name.to_owned(), value.into());
    }

    /// Adds to the one-line summary.
    pub fn say(&mut self, part: impl Into<String>) {
        self.summary.push(part.into());
    }

    /// Records an input.
    pub fn input(&mut self, name: &str, source: &str, hash: String) {
        self.inputs.push(Input { name: name.into(), source: source.into(), hash });
    }

    /// The findings so far.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Did a check fail?
    pub fn failed(&self) -> bool {
        self.checks.failed > 0 || self.findings.iter().any(|f| f.severity == Severity::Failure)
    }

    /// Ends the run.
    pub fn finish(mut self, id: &str, title: &str) -> GateReport {
        let unmeasured = self.findings.iter().any(|f| f.severity == Severity::Unmeasured);
        let verdict = if self.failed() {
            Verdict::Fail
        } else if unmeasured || self.checks.executed < self.checks.planned || self.checks.executed == 0 {
            Verdict::Unknown
        } else {
            Verdict::Pass
        };
        for (code, &n) in self.seen.iter().filter(|(_, n)| **n > KEPT_PER_CODE) {
            let message = format!("{} more findings of this kind were left out", n - KEPT_PER_CODE);
            self.findings.push(finding(Severity::Note, code, message, []));
        }
        self.findings.sort_by_key(|f| match f.severity {
            Severity::Failure => 0,
            Severity::Unmeasured => 1,
            Severity::Warning => 2,
            Severity::Note => 3,
        });
        GateReport {
            id: id.into(),
            title: title.into(),
            verdict,
            summary: self.summary.join(" · "),
            metrics: self.metrics,
            findings: self.findings,
            checks: self.checks,
            inputs: self.inputs,
            duration_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// Code of a finding about what the host lacks.
pub const SHORTAGE: &str = "host-shortage";

/// A finding with its data.
pub fn finding<const N: usize>(
    severity: Severity,
    code: &str,
    message: impl Into<String>,
    data: [(&str, Value); N],
) -> Finding {
    let data = data.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
    Finding { severity, code: code.into(), message: message.into(), data }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorder() -> Recorder {
        Recorder::new(Box::new(|_| {}))
    }

    fn failure() -> Finding {
        finding(Severity::Failure, "x", "x", [])
    }

    #[test]
    fn nothing_measured_is_never_a_pass() {
        assert_eq!(recorder().finish("0", "").verdict, Verdict::Unknown);
        let mut planned = recorder();
        planned.plan(2);
        planned.check(true, failure);
        assert_eq!(planned.finish("0", "").verdict, Verdict::Unknown);
        let mut whole = recorder();
        whole.plan(1);
        whole.check(true, failure);
        assert_eq!(whole.finish("0", "").verdict, Verdict::Pass);
    }

    /// The system's own words for ENOMEM and ENOSPC: as a value they are the host's, in a message they may be a name.
    #[test]
    fn what_the_host_lacks_is_unmeasured_and_a_name_that_says_so_is_not() {
        for number in [12, 28] {
            let message = std::io::Error::from_raw_os_error(number).to_string();
            let mut r = recorder();
            r.plan(2);
            r.check(true, failure);
            r.check(false, || finding(Severity::Unmeasured, SHORTAGE, format!("no copy: {message}"), []));
            let report = r.finish("0", "");
            assert_eq!((report.verdict, report.checks.failed, report.checks.executed), (Verdict::Unknown, 0, 1));
            assert_eq!(report.findings[0].code, SHORTAGE);
            let mut named = recorder();
            named.check(false, || finding(Severity::Failure, "x", format!("{message}.gguf differs"), []));
            assert_eq!(named.finish("0", "").verdict, Verdict::Fail);
        }
    }

    #[test]
    fn a_failure_outweighs_everything_and_counts_beyond_what_is_kept() {
        let mut r = recorder();
        r.plan(40);
        for _ in 0..40 {
            r.check(false, failure);
        }
        r.unmeasured("y", "y");
        let report = r.finish("0", "");
        assert_eq!(report.verdict, Verdict::Fail);
        assert_eq!(report.checks.failed, 40);
        assert_eq!(report.findings.iter().filter(|f| f.severity == Severity::Failure).count(), KEPT_PER_CODE);
        assert!(report.findings.iter().any(|f| f.message.contains("24 more")));
    }
}
