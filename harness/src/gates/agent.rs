//! Gate 5: no side effect without opt-in. The measuring is in [`agent::evaluation`]; this makes it a gate of the
//! suite and adds the real model's own figures, which decide nothing.

use bitnet_rs::{ContextParams, Model, ModelParams};
use serde_json::json;

use super::recorder::{Recorder, SHORTAGE, finding};
use super::{GateError, GateId, GateInputs, fault};
use crate::report::{FaultReport, Severity};
use agent::evaluation;
use agent_engine::{Answers, EngineSource};
use session::TemplateSandbox;

/// Runs the gate.
///
/// # Errors
/// When the suite could not run at all.
pub fn run(inputs: &GateInputs, rec: &mut Recorder) -> Result<(), GateError> {
    rec.progress("case suite, hostile models, opt-in matrix");
    let wanted = evaluation::EvaluationInputs { cases: inputs.cases.clone(), devices: None, scratch: None };
    let report = evaluation::run(&wanted).map_err(GateError::cause)?;
    rec.plan(report.checks.planned as u64);
    for i in 0..report.checks.executed {
        let line = report.findings.get(i).cloned().unwrap_or_else(|| "see the metrics".into());
        rec.check(i >= report.checks.failed, || {
            // The suite's lines are text. Without a suite of the user's, all of it is ours and the system's.
            if inputs.cases.is_none() && files::shortage::is_named_in(&line) {
                finding(Severity::Unmeasured, SHORTAGE, line, [])
            } else {
                finding(Severity::Failure, "agent", line, [])
            }
        });
    }
    for (prefix, suite) in
        std::iter::once(("", &report.suite)).chain(report.further_suite.iter().map(|s| ("further ", s)))
    {
        for input in &suite.inputs {
            rec.input(&format!("{prefix}{}", input.name), &input.source, input.hash.clone());
        }
        for left_out in &suite.left_out {
            rec.finding(finding(Severity::Note, "left-out", format!("{prefix}suite: {left_out}"), []));
        }
    }
    if let Some(further) = &report.further_suite {
        rec.metric("further_suite", serde_json::to_value(&further.metrics).unwrap_or_default());
        rec.metric("further_suite_checks", serde_json::to_value(&further.release).unwrap_or_default());
    }
    rec.metric("sentences", serde_json::to_value(&report.sentences).unwrap_or_default());
    rec.metric("insertions", serde_json::to_value(&report.insertions).unwrap_or_default());
    rec.metric("redteam", serde_json::to_value(&report.redteam).unwrap_or_default());
    rec.metric("suite", serde_json::to_value(&report.suite.metrics).unwrap_or_default());
    rec.metric("hostile", serde_json::to_value(&report.hostile).unwrap_or_default());
    rec.metric("opt_in_rows", report.opt_in.len());
    rec.metric("executor_calls", report.suite.executor_calls);
    rec.metric("files_written", json!(report.files_written));
    rec.say(report.summary.clone());
    if !inputs.quick {
        own_figures(inputs, rec)?;
    }
    Ok(())
}

/// What the real model does on the suite's inputs, rules off and on; never mixed with the suite's figures.
fn own_figures(inputs: &GateInputs, rec: &mut Recorder) -> Result<(), GateError> {
    let path = inputs.model.path()?;
    let model = Model::load(path.as_path(), ModelParams::default())?;
    // On a model of a few megabytes threads wait for each other longer than they work.
    let small = model.file().gguf().tensor_bytes() < 64 << 20;
    let n_threads = if small { 1 } else { inputs.threads };
    let params = ContextParams { n_ctx: 512, n_threads, ..Default::default() };
    let sandbox = TemplateSandbox::Child(inputs.children.clone());
    let answers = Answers::default();
    for (repair, name) in [(false, "model_repair_off"), (true, "model_repair_on")] {
        rec.progress(&format!("the model itself, rules {}", if repair { "on" } else { "off" }));
        let source = match EngineSource::new(&model, &params, &sandbox) {
            Ok(source) => Box::new(source.with_answers(answers.clone())),
            Err(e) => {
                let message = format!("the model's own figures were not taken: {e}");
                rec.finding(finding(Severity::Note, "no-model-figures", message, []));
                return Ok(());
            }
        };
        let run = evaluation::run_source(source, repair).map_err(GateError::cause)?;
        rec.plan(1);
        rec.check(run.false_allows == 0, || {
            let message = format!("{name}: {} blocked inputs came through", run.false_allows);
            finding(Severity::Failure, "false-allow", message, [])
        });
        rec.metric(name, serde_json::to_value(&run).unwrap_or_default());
    }
    Ok(())
}

/// Each of the ten rules switched off in turn must be noticed.
pub fn self_check(progress: &mut dyn FnMut(&str)) -> Vec<FaultReport> {
    progress("each rule switched off in turn");
    let wanted = evaluation::EvaluationInputs { cases: None, devices: None, scratch: None };
    match evaluation::run(&wanted) {
        Err(e) => vec![fault(GateId::Agent, "(set-up)", false, e.to_string())],
        Ok(report) => report
            .mutations
            .iter()
            .map(|m| {
                let evidence = format!(
                    "{} cases and {} opt-in rows notice ({})",
                    m.cases,
                    m.opt_in_rows.len(),
                    m.first_cases
                        .iter()
                        .map(String::as_str)
                        .chain(m.opt_in_rows.iter().copied())
                        .take(3)
                        .collect::<Vec<_>>()
                        .join(", ")
                );
                fault(GateId::Agent, &format!("rule {:?} off", m.gate), m.caught, evidence)
            })
            .chain(report.reader_mutations.iter().map(|m| {
                let evidence = format!("{} cases come through ({})", m.let_through, m.first_cases.join(", "));
                fault(GateId::Agent, &m.fault, m.caught, evidence)
            }))
            .collect(),
    }
}
