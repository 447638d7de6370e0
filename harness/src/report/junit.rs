//! The report as JUnit XML, for CI dashboards.

use std::fmt::Write as _;

use super::{GateReport, Report, Verdict};

/// Renders the report as JUnit XML: FAIL is a failure, UNKNOWN is skipped with what kept it from measuring, a missed planted fault is a failure, one
/// that does not apply is skipped.
pub fn junit(report: &Report) -> String {
    let count = |v: Verdict| report.gates.iter().filter(|g| g.verdict == v).count();
    let missed = report.self_check.iter().filter(|f| f.missed()).count();
    let not_applicable = report.self_check.iter().filter(|f| f.not_applicable).count();
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let _ = writeln!(
        out,
        "<testsuite name=\"gates\" tests=\"{}\" failures=\"{}\" skipped=\"{}\" time=\"{:.3}\">",
        report.gates.len() + report.self_check.len(),
        count(Verdict::Fail) + missed,
        count(Verdict::Unknown) + not_applicable,
        report.duration_ms as f64 / 1000.0
    );
    properties(&mut out, report);
    for gate in &report.gates {
        case(&mut out, gate);
    }
    for fault in &report.self_check {
        let name = escape(&format!("gate {} catches: {}", fault.gate, fault.fault));
        let _ = write!(out, "  <testcase classname=\"self-check\" name=\"{name}\">");
        if fault.not_applicable {
            let _ = write!(out, "<skipped message=\"{}\"/>", escape(&fault.evidence));
        } else if fault.missed() {
            let _ = write!(out, "<failure message=\"{}\"/>", escape(&fault.evidence));
        }
        out.push_str("</testcase>\n");
    }
    out.push_str("</testsuite>\n");
    out
}

/// What the run was made with, and what it decides.
fn properties(out: &mut String, report: &Report) {
    let mut all = vec![
        ("p0.decision", report.p0.decision.name().to_owned()),
        ("p0.reason", report.p0.reason.clone()),
        ("host.cpu", report.host.cpu.clone()),
        ("host.os", report.host.os.clone()),
        ("host.threads", report.host.threads.to_string()),
        ("engine.commit", report.engine.commit.clone()),
        ("engine.kernel", report.engine.kernel.clone()),
        ("engine.flags", report.engine.flags.clone()),
    ];
    match &report.model {
        Some(model) => {
            all.push(("model.name", model.name.clone()));
            all.push(("model.source", model.source.clone()));
            all.push(("model.file_hash", model.file_hash.clone()));
            all.extend(model.warnings.iter().map(|warning| ("model.warning", warning.clone())));
        }
        None => all.push(("model", "could not be read".to_owned())),
    }
    out.push_str("  <properties>\n");
    for (name, value) in all {
        let _ = writeln!(out, "    <property name=\"{name}\" value=\"{}\"/>", escape(&value));
    }
    out.push_str("  </properties>\n");
}

fn case(out: &mut String, gate: &GateReport) {
    let name = escape(&format!("gate {} {}", gate.id, gate.title));
    let _ = write!(
        out,
        "  <testcase classname=\"gates\" name=\"{name}\" time=\"{:.3}\">",
        gate.duration_ms as f64 / 1000.0
    );
    let details: Vec<_> = gate.findings.iter().map(|f| format!("[{}] {}", f.code, f.message)).collect();
    match gate.verdict {
        Verdict::Pass => {}
        Verdict::Unknown => {
            let _ = write!(out, "<skipped message=\"{}\"/>", escape(&gate.reason()));
        }
        Verdict::Fail => {
            let (reason, details) = (escape(&gate.reason()), escape(&details.join("\n")));
            let _ = write!(out, "<failure message=\"{reason}\">{details}</failure>");
        }
    }
    let checks = format!("{} of {} checks", gate.checks.executed, gate.checks.planned);
    let measured = [vec![gate.summary.clone(), checks], details].concat().join("\n");
    let _ = writeln!(out, "<system-out>{}</system-out></testcase>", escape(&measured));
}

/// XML text: markup characters escaped, characters that XML 1.0 forbids replaced.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push_str("&#10;"),
            c if c < ' ' || c == '\u{fffe}' || c == '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn nothing_breaks_out_of_an_attribute() {
        assert_eq!(escape("a<b>\"&\u{1}\n"), "a&lt;b&gt;&quot;&amp;\u{fffd}&#10;");
    }
}
