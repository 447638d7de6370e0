//! Gate reports: one record per run, rendered as text, JSON, Markdown or JUnit XML.
//!
//! `docs/formats/report.md` describes the JSON; `docs/formats/report.schema.json` is its schema.

mod junit;
mod markdown;
mod text;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use junit::junit;
pub use markdown::markdown;
pub use text::text;

/// Name and version of the JSON form.
pub const SCHEMA: &str = "bitnet-harness.gates/1";

/// What a gate says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// Measured, and it holds.
    Pass,
    /// Measured, and it does not hold.
    Fail,
    /// Not measured.
    Unknown,
}

impl Verdict {
    /// As printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Fail => "FAIL",
            Self::Unknown => "UNKNOWN",
        }
    }
}

/// How many checks were planned, ran, and did not hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checks {
    /// Planned.
    pub planned: u64,
    /// Run to the end.
    pub executed: u64,
    /// Of those, the ones that did not hold.
    pub failed: u64,
}

/// Weight of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing.
    Note,
    /// A limit or hazard that did not decide the verdict.
    Warning,
    /// Why the gate fails.
    Failure,
    /// Why the gate could not measure.
    Unmeasured,
}

/// Something that a gate found, with where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Weight.
    pub severity: Severity,
    /// Short stable name of the kind, e.g. `lane-wrap`.
    pub code: String,
    /// One sentence for a person.
    pub message: String,
    /// Where and how much: layer, tensor, position, head, numbers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub data: BTreeMap<String, Value>,
}

/// A file or built-in text that a gate used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// What it is: `model`, `thresholds`, `reference`, `cases`, …
    pub name: String,
    /// Path, or `embedded`.
    pub source: String,
    /// `sha256:…` of its bytes.
    pub hash: String,
}

/// One gate's outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GateReport {
    /// `0`, `1`, `2`, `3a`, `3b`, `4`, `5`.
    pub id: String,
    /// What the gate proves, in a few words.
    pub title: String,
    /// The verdict.
    pub verdict: Verdict,
    /// One line: the measurement behind the verdict.
    pub summary: String,
    /// Named measurements.
    pub metrics: BTreeMap<String, Value>,
    /// Details, failures first.
    pub findings: Vec<Finding>,
    /// Counts.
    pub checks: Checks,
    /// What it read.
    pub inputs: Vec<Input>,
    /// Wall time in milliseconds.
    pub duration_ms: u64,
}

impl GateReport {
    /// Why the gate does not pass, in its own findings' words; what kept it from measuring, where it is UNKNOWN. Of one
    /// that passes, its summary.
    pub fn reason(&self) -> String {
        let of = |severity: Severity| -> Vec<&str> {
            self.findings.iter().filter(|f| f.severity == severity).map(|f| f.message.as_str()).collect()
        };
        let messages = match self.verdict {
            Verdict::Pass => Vec::new(),
            Verdict::Fail => of(Severity::Failure),
            Verdict::Unknown => of(Severity::Unmeasured),
        };
        match (messages.is_empty(), self.verdict) {
            (true, Verdict::Unknown) => {
                format!("{} of {} planned checks ran", self.checks.executed, self.checks.planned)
            }
            (true, _) => self.summary.clone(),
            (false, _) => messages.join("; "),
        }
    }
}

/// One planted fault and whether its gate caught it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FaultReport {
    /// The gate.
    pub gate: String,
    /// The fault.
    pub fault: String,
    /// Seen by the gate, and where it must name a place, the right one was named.
    pub caught: bool,
    /// It cannot be planted in this model, or this gate makes no claim about it there: neither caught nor missed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub not_applicable: bool,
    /// What the gate said, or why the fault was not planted.
    pub evidence: String,
}

impl FaultReport {
    /// Planted, and the gate did not see it.
    pub fn missed(&self) -> bool {
        !self.caught && !self.not_applicable
    }
}

/// The go/no-go line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Decision {
    /// Gates 0 to 3b PASS.
    Go,
    /// One of them FAILs.
    #[serde(rename = "NO-GO")]
    NoGo,
    /// None fails, and one is UNKNOWN or was not run.
    Unknown,
}

impl Decision {
    /// As printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Go => "GO",
            Self::NoGo => "NO-GO",
            Self::Unknown => "UNKNOWN",
        }
    }
}

/// The decision with its reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct P0 {
    /// The decision.
    pub decision: Decision,
    /// Why.
    pub reason: String,
}

/// The machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// CPU model as the kernel names it.
    pub cpu: String,
    /// CPUs that this process may use.
    pub cpus: u32,
    /// Compute threads of this run.
    pub threads: u32,
    /// Total memory in bytes.
    pub memory_bytes: u64,
    /// Operating system and kernel.
    pub os: String,
    /// Instruction sets that the CPU has, of those that matter here.
    pub features: Vec<String>,
}

/// The native engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Engine {
    /// Commit of bitnet.cpp.
    pub commit: String,
    /// Commit of its llama.cpp.
    pub llama_cpp_commit: String,
    /// Digest of the pinned source list.
    pub source_hash: String,
    /// Compiler.
    pub compiler: String,
    /// Its flags.
    pub flags: String,
    /// Instruction sets compiled in.
    pub features: Vec<String>,
    /// The matrix kernel and its packing.
    pub kernel: String,
    /// Who runs the compute threads.
    pub threading: String,
}

/// The model under test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelReport {
    /// Name from its metadata.
    pub name: String,
    /// Path, or `embedded`.
    pub source: String,
    /// `sha256:…` of the file.
    pub file_hash: String,
    /// Canonical hash of architecture and shapes.
    pub arch_hash: String,
    /// Architecture.
    pub architecture: String,
    /// n_layer, n_embd, …
    pub shapes: BTreeMap<String, u64>,
    /// The reader's warnings.
    pub warnings: Vec<String>,
}

/// A whole run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of this program.
    pub version: String,
    /// Start, seconds since 1970-01-01 UTC.
    pub started_unix: u64,
    /// Wall time of the run in milliseconds.
    pub duration_ms: u64,
    /// The machine.
    pub host: Host,
    /// The engine.
    pub engine: Engine,
    /// The model; absent where it could not be read.
    pub model: Option<ModelReport>,
    /// Only a stated subset of the checks was planned (`--quick`).
    pub quick: bool,
    /// The run was ended before all gates had run; what had ended by then is here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
    /// The gates in their order.
    pub gates: Vec<GateReport>,
    /// Planted faults, with `--self-check`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub self_check: Vec<FaultReport>,
    /// The go/no-go line.
    pub p0: P0,
}

/// Gates that decide P0.
pub const P0_GATES: [&str; 5] = ["0", "1", "2", "3a", "3b"];

/// Decides from the gates that were run. The reason says what kind of run that was, since every form prints it.
pub fn decide(gates: &[GateReport], quick: bool, interrupted: bool) -> P0 {
    let P0 { decision, mut reason } = decide_by(gates);
    if quick {
        reason = format!("quick run, a stated subset of the checks: {reason}");
    }
    if interrupted {
        reason = format!("interrupted: {reason}");
    }
    P0 { decision, reason }
}

fn decide_by(gates: &[GateReport]) -> P0 {
    let verdict = |id: &str| gates.iter().find(|g| g.id == id).map(|g| g.verdict);
    let with =
        |wanted: Option<Verdict>| P0_GATES.iter().filter(|id| verdict(id) == wanted).copied().collect::<Vec<_>>();
    let failed = with(Some(Verdict::Fail));
    if !failed.is_empty() {
        return P0 { decision: Decision::NoGo, reason: format!("gate {} failed", failed.join(", ")) };
    }
    let mut open = Vec::new();
    for (list, what) in [(with(Some(Verdict::Unknown)), "could not be measured"), (with(None), "not run")] {
        if !list.is_empty() {
            open.push(format!("gate {} {what}", list.join(", ")));
        }
    }
    // Not what gate 2 asks for, and said as what it is.
    if let (Some(opinion), Some(Verdict::Unknown)) = (second_opinion(gates), verdict("2")) {
        open.push(opinion);
    }
    if open.is_empty() {
        P0 { decision: Decision::Go, reason: "gates 0, 1, 2, 3a and 3b pass".into() }
    } else {
        P0 { decision: Decision::Unknown, reason: open.join("; ") }
    }
}

/// Gate 2's comparison with the harness's own forward pass, where there was no reference.
fn second_opinion(gates: &[GateReport]) -> Option<String> {
    let found = gates.iter().find(|g| g.id == "2")?.metrics.get("second_opinion")?;
    let (n, top1, kl) = (found["positions"].as_u64()?, found["top1"].as_f64()?, found["mean_kl"].as_f64()?);
    Some(format!(
        "second opinion on gate 2, a forward pass of our own and no reference: top-1 {:.0} % of {n} positions, mean KL {kl:.1e}",
        top1 * 100.0
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_opinion_is_named_and_decides_nothing() {
        let mut gates: Vec<_> = P0_GATES.iter().map(|id| gate(id, Verdict::Pass)).collect();
        gates[2].verdict = Verdict::Unknown;
        let opinion = serde_json::json!({"positions": 24, "top1": 0.75, "mean_kl": 1.5e-5});
        gates[2].metrics.insert("second_opinion".into(), opinion);
        let p0 = decide(&gates, false, false);
        assert_eq!(p0.decision, Decision::Unknown);
        assert!(p0.reason.contains("second opinion on gate 2") && p0.reason.contains("75 % of 24"), "{}", p0.reason);
        gates[2].verdict = Verdict::Pass;
        assert!(!decide(&gates, false, false).reason.contains("second"));
    }

    fn gate(id: &str, verdict: Verdict) -> GateReport {
        GateReport {
            id: id.into(),
            title: String::new(),
            verdict,
            summary: String::new(),
            metrics: BTreeMap::new(),
            findings: Vec::new(),
            checks: Checks::default(),
            inputs: Vec::new(),
            duration_ms: 0,
        }
    }

    #[test]
    fn go_needs_every_gate_measured_and_passing() {
        let decide = |gates: &[GateReport]| super::decide(gates, false, false);
        let mut gates: Vec<_> = P0_GATES.iter().map(|id| gate(id, Verdict::Pass)).collect();
        assert_eq!(decide(&gates).decision, Decision::Go);
        // Gates 4 and 5 do not decide P0.
        gates.push(gate("4", Verdict::Fail));
        assert_eq!(decide(&gates).decision, Decision::Go);
        gates[2].verdict = Verdict::Unknown;
        assert_eq!(decide(&gates).decision, Decision::Unknown);
        assert!(decide(&gates).reason.contains("gate 2 could not be measured"));
        gates[3].verdict = Verdict::Fail;
        assert_eq!(decide(&gates).decision, Decision::NoGo);
        assert_eq!(decide(&gates[..1]).decision, Decision::Unknown);
        assert!(decide(&gates[..1]).reason.contains("not run"));
        assert_eq!(decide(&[]).decision, Decision::Unknown);
    }

    fn report(quick: bool, interrupted: bool, gates: Vec<GateReport>) -> Report {
        Report {
            schema: SCHEMA.into(),
            version: "0".into(),
            started_unix: 1_700_000_000,
            duration_ms: 5,
            host: Host {
                cpu: "A <fast> CPU".into(),
                cpus: 4,
                threads: 2,
                memory_bytes: 1,
                os: "linux 6".into(),
                features: Vec::new(),
            },
            engine: Engine {
                commit: "c0ffee".into(),
                llama_cpp_commit: String::new(),
                source_hash: String::new(),
                compiler: String::new(),
                flags: "-O3".into(),
                features: Vec::new(),
                kernel: "a kernel".into(),
                threading: "a pool".into(),
            },
            model: Some(ModelReport {
                name: "a model".into(),
                source: "m.gguf".into(),
                file_hash: "sha256:00".into(),
                arch_hash: String::new(),
                architecture: "bitnet-b1.58".into(),
                shapes: BTreeMap::new(),
                warnings: vec!["no pre-tokenizer & more".into()],
            }),
            quick,
            interrupted,
            p0: super::decide(&gates, quick, interrupted),
            gates,
            self_check: Vec::new(),
        }
    }

    /// The line of every form that says P0, and nothing else.
    fn p0_lines(report: &Report) -> Vec<String> {
        let forms = [text(report), markdown(report), junit(report), serde_json::to_string_pretty(report).unwrap()];
        let about = |form: &String| {
            form.lines().filter(|l| l.contains("P0") || l.contains("p0.") || l.contains("\"reason\"")).collect()
        };
        forms.iter().map(about).collect()
    }

    #[test]
    fn every_form_says_in_its_p0_line_that_a_run_was_quick_or_interrupted() {
        let pass = || P0_GATES.iter().map(|id| gate(id, Verdict::Pass)).collect::<Vec<_>>();
        for (quick, interrupted) in [(true, false), (false, true), (true, true), (false, false)] {
            for line in p0_lines(&report(quick, interrupted, pass())) {
                assert_eq!(line.contains("quick run"), quick, "{line}");
                assert_eq!(line.contains("interrupted"), interrupted, "{line}");
            }
        }
    }

    #[test]
    fn every_form_carries_warnings_host_model_and_each_verdicts_measurement() {
        let mut gates = vec![gate("0", Verdict::Pass), gate("1", Verdict::Unknown), gate("2", Verdict::Fail)];
        gates[0].summary = "12 tokens/s".into();
        gates[1].summary = "load 3 ms".into();
        for (at, severity, message) in
            [(1, Severity::Unmeasured, "the context is too short"), (2, Severity::Failure, "row 7 departs")]
        {
            let code = "x".into();
            gates[at].findings.push(Finding { severity, code, message: message.into(), data: BTreeMap::new() });
        }
        let report = report(false, false, gates);
        for form in [text(&report), markdown(&report), junit(&report)] {
            for said in ["pre-tokenizer", "a model", "fast", "12 tokens/s", "the context is too short", "row 7 departs"]
            {
                assert!(form.contains(said), "{said} in {form}");
            }
        }
        let xml = junit(&report);
        assert!(xml.contains("<skipped message=\"the context is too short\"/>"), "{xml}");
        // As an XML reader counts them.
        assert_eq!(xml.matches("<testcase").count(), xml.matches("</testcase>").count());
        assert!(xml.contains("no pre-tokenizer &amp; more") && xml.contains("A &lt;fast&gt; CPU"), "{xml}");
    }
}
