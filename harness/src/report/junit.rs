//! The report as JUnit XML, for CI dashboards.

use std::fmt::Write as _;

use super::{GateReport, Report, Verdict};

/// Renders the report as JUnit XML: FAIL is a failure, UNKNOWN is skipped, a missed planted fault is a failure, one
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

fn case(out: &mut String, gate: &GateReport) {
    let name = escape(&format!("gate {} {}", gate.id, gate.title));
    let _ = write!(
        out,
        "  <testcase classname=\"gates\" name=\"{name}\" time=\"{:.3}\">",
        gate.duration_ms as f64 / 1000.0
    );
    match gate.verdict {
        Verdict::Pass => {}
        Verdict::Unknown => {
            let _ = write!(out, "<skipped message=\"{}\"/>", escape(&gate.summary));
        }
        Verdict::Fail => {
            let details: Vec<_> = gate.findings.iter().map(|f| format!("[{}] {}", f.code, f.message)).collect();
            let (summary, details) = (escape(&gate.summary), escape(&details.join("\n")));
            let _ = write!(out, "<failure message=\"{summary}\">{details}</failure>");
        }
    }
    out.push_str("</testcase>\n");
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
