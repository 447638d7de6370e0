//! The report as Markdown, for issues and wikis.

use std::fmt::Write as _;

use super::Report;

/// Renders the report as Markdown.
pub fn markdown(report: &Report) -> String {
    let mut out = String::from("# Gate report\n\n");
    let _ = writeln!(out, "**P0: {}** — {}\n", report.p0.decision.name(), cell(&report.p0.reason));
    let model = report.model.as_ref().map_or("could not be read".to_owned(), |m| format!("{} ({})", m.name, m.source));
    let _ = writeln!(out, "- Model: {}", cell(&model));
    for warning in report.model.iter().flat_map(|m| &m.warnings) {
        let _ = writeln!(out, "  - Warning: {}", cell(warning));
    }
    let _ =
        writeln!(out, "- Host: {}, {} threads, {}", cell(&report.host.cpu), report.host.threads, cell(&report.host.os));
    let _ = writeln!(
        out,
        "- Engine: bitnet.cpp `{}`, {}, `{}`\n",
        report.engine.commit, report.engine.kernel, report.engine.flags
    );
    out.push_str("| gate | verdict | proves | checks | time | measurement |\n|---|---|---|---|---|---|\n");
    for g in &report.gates {
        let _ = writeln!(
            out,
            "| {} | {} | {} | {}/{} | {:.1} s | {} |",
            g.id,
            g.verdict.name(),
            cell(&g.title),
            g.checks.executed,
            g.checks.planned,
            g.duration_ms as f64 / 1000.0,
            cell(&g.summary)
        );
    }
    for g in report.gates.iter().filter(|g| !g.findings.is_empty()) {
        let _ = writeln!(out, "\n## Gate {}\n", g.id);
        for f in &g.findings {
            let _ = writeln!(out, "- `{}` ({:?}): {}", f.code, f.severity, cell(&f.message));
        }
    }
    if !report.self_check.is_empty() {
        out.push_str("\n## Self-check\n\n| gate | planted fault | caught | evidence |\n|---|---|---|---|\n");
        for f in &report.self_check {
            let caught = match f {
                f if f.not_applicable => "not applicable",
                f if f.caught => "yes",
                _ => "**no**",
            };
            let _ = writeln!(out, "| {} | {} | {caught} | {} |", f.gate, cell(&f.fault), cell(&f.evidence));
        }
    }
    out
}

/// Text that cannot break out of a table cell.
fn cell(text: &str) -> String {
    text.replace('\\', "\\\\").replace('|', "\\|").replace('\n', " ").replace('<', "&lt;")
}
