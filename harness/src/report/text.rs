//! The report for a terminal.

use std::fmt::Write as _;

use serde_json::Value;

use super::{Finding, Report, Severity};

/// Renders the report as text. Not an interface: machines read the JSON.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    let host = &report.host;
    let _ = writeln!(out, "host    {} · {} of {} CPUs · {}", host.cpu, host.threads, host.cpus, host.os);
    let engine = &report.engine;
    let _ = writeln!(
        out,
        "engine  bitnet.cpp {} · {} · {} · {}",
        &engine.commit[..engine.commit.len().min(9)],
        engine.kernel,
        engine.flags,
        engine.threading
    );
    match &report.model {
        Some(model) => {
            let _ = writeln!(out, "model   {} ({}) · {}", model.name, model.source, model.architecture);
            for warning in &model.warnings {
                let _ = writeln!(out, "        warning: {warning}");
            }
        }
        None => out.push_str("model   could not be read\n"),
    }
    out.push('\n');
    for gate in &report.gates {
        let _ = writeln!(
            out,
            "gate {:<3} {:<8} {:<28} {:>5}/{:<5} checks {:>7.1} s",
            gate.id,
            gate.verdict.name(),
            gate.title,
            gate.checks.executed,
            gate.checks.planned,
            gate.duration_ms as f64 / 1000.0
        );
        let _ = writeln!(out, "         {}", gate.summary);
        for finding in gate.findings.iter().take(8) {
            let _ = writeln!(out, "         {}", line(finding));
        }
        if gate.findings.len() > 8 {
            let _ = writeln!(out, "         … {} more findings in the JSON report", gate.findings.len() - 8);
        }
    }
    if !report.self_check.is_empty() {
        let caught = report.self_check.iter().filter(|f| f.caught).count();
        let planted = report.self_check.iter().filter(|f| !f.not_applicable).count();
        let _ = write!(out, "\nself-check: {caught} of {planted} planted faults caught");
        match report.self_check.len() - planted {
            0 => out.push('\n'),
            n => drop(writeln!(out, ", {n} not applicable to this model")),
        }
        for fault in &report.self_check {
            let mark = match fault {
                f if f.not_applicable => "n/a   ",
                f if f.caught => "caught",
                _ => "MISSED",
            };
            let _ = writeln!(out, "  {mark} gate {:<3} {:<34} {}", fault.gate, fault.fault, fault.evidence);
        }
    }
    let _ = writeln!(out, "\nP0: {} ({})", report.p0.decision.name(), report.p0.reason);
    out
}

fn line(finding: &Finding) -> String {
    let mark = match finding.severity {
        Severity::Note => "note",
        Severity::Warning => "warning",
        Severity::Failure => "FAIL",
        Severity::Unmeasured => "unknown",
    };
    let mut text = format!("{mark}: [{}] {}", finding.code, finding.message);
    for (key, value) in &finding.data {
        match value {
            Value::String(s) => {
                let _ = write!(text, " {key}={s}");
            }
            Value::Array(_) | Value::Object(_) => {}
            other => {
                let _ = write!(text, " {key}={other}");
            }
        }
    }
    text
}
