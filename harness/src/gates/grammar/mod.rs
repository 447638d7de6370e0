//! Gate 4: constrained output is always a valid tool call.
//!
//! Thousands of seeded generations over every tool registry, from adversarial logits and from the model at several
//! temperatures, all through the selector that `generate` uses. What ends as a sentence of the grammar counts as a call
//! and must parse as JSON and validate against the registry's JSON Schema, by a validator that knows nothing of the
//! grammar. What ends at the budget is incomplete, must not be a call, and is counted apart.

pub mod adversary;
pub mod generations;

use std::collections::BTreeMap;

use bitnet_rs::{Model, ModelParams};
use grammar::Grammar;
use serde_json::{Value, json};

use super::recorder::{Recorder, finding};
use super::{GateError, GateId, GateInputs, fault, sha256};
use crate::report::{FaultReport, Severity};
use generations::{Plan, Subject, Tally};
use grammar::tools::{SchemaOptions, ToolRegistry, schema_to_gbnf};

/// The registries of the suite, as compiled in.
const REGISTRIES: [(&str, &str); 4] = [
    ("home", include_str!("../../../../gates/grammars/home.toml")),
    ("files", include_str!("../../../../gates/grammars/files.toml")),
    ("calendar", include_str!("../../../../gates/grammars/calendar.toml")),
    ("arithmetic", include_str!("../../../../gates/grammars/arithmetic.toml")),
];
const PROMPTS: &str = include_str!("../../../../gates/prompts/tool_calls.toml");

/// A planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// No grammar at all.
    GrammarOff,
    /// A grammar that wants one key more than the registry knows.
    ExtraKey,
    /// What the budget cut counts as a call.
    BudgetCut,
}

fn subjects(fault: Fault) -> Result<Vec<Subject>, GateError> {
    let other = |e: &dyn std::fmt::Display| GateError::Other(e.to_string());
    let mut prompts: BTreeMap<String, Vec<String>> = toml::from_str(PROMPTS).map_err(|e| other(&e))?;
    REGISTRIES
        .iter()
        .map(|&(name, text)| {
            let options = SchemaOptions::default();
            let registry = ToolRegistry::from_toml(text, &options).map_err(|e| other(&e))?;
            let grammar = match fault {
                Fault::GrammarOff => None,
                Fault::None | Fault::BudgetCut => Some(registry.grammar().clone()),
                Fault::ExtraKey => Some(loosened(&registry, &options)?),
            };
            Ok(Subject {
                name,
                registry,
                grammar,
                prompts: prompts.remove(name).unwrap_or_default(),
                cut_counts: fault == Fault::BudgetCut,
            })
        })
        .collect()
}

/// The registry's grammar with one more key in every call.
fn loosened(registry: &ToolRegistry, options: &SchemaOptions) -> Result<Grammar, GateError> {
    let mut schema = registry.schema().clone();
    for branch in schema["oneOf"].as_array_mut().into_iter().flatten() {
        branch["properties"]["execute"] = json!({ "const": true });
        if let Some(required) = branch["required"].as_array_mut() {
            required.push(Value::from("execute"));
        }
    }
    let text = schema_to_gbnf(&schema, options).map_err(|e| GateError::Other(e.to_string()))?;
    Grammar::parse(&text, "root", &options.grammar_limits).map_err(|e| GateError::Other(e.to_string()))
}

/// Runs the gate.
///
/// # Errors
/// When the model cannot be loaded or a registry cannot be read.
pub fn run(inputs: &GateInputs, rec: &mut Recorder) -> Result<(), GateError> {
    let t = &inputs.thresholds.grammar;
    for (name, text) in REGISTRIES {
        rec.input(name, "embedded", sha256(text.as_bytes()));
    }
    rec.input("tool_calls.toml", "embedded", sha256(PROMPTS.as_bytes()));
    let path = inputs.model.path()?;
    let model = Model::load(path.as_path(), ModelParams::default())?;
    let subjects = subjects(Fault::None)?;
    let plan = Plan::new(t, &model, inputs.quick);
    let generations = plan.generations(subjects.len());
    rec.plan(generations);
    let mut done = 0u64;
    let tally = generations::run(&model, &subjects, &plan, inputs, &mut |outcome, subject| {
        done += 1;
        if done.is_multiple_of(200) {
            rec.progress(&format!("{done} of {generations} generations"));
        }
        rec.check(outcome.failure.is_none(), || {
            finding(
                Severity::Failure,
                "invalid-call",
                format!(
                    "{} from {}, seed {}: {}",
                    subject.name,
                    outcome.source,
                    outcome.seed,
                    outcome.failure.as_deref().unwrap_or_default()
                ),
                [
                    ("registry", json!(subject.name)),
                    ("source", json!(outcome.source.to_string())),
                    ("seed", json!(outcome.seed)),
                    ("sampling", json!(format!("{:?}", outcome.sampling))),
                    ("text", json!(outcome.text.chars().take(2000).collect::<String>())),
                ],
            )
        });
    })?;
    report(&tally, &subjects, t.min_complete_share, rec);
    rec.metric("token_budget", plan.max_tokens);
    Ok(())
}

fn report(tally: &Tally, subjects: &[Subject], min_complete_share: f64, rec: &mut Recorder) {
    let total = tally.total();
    let share = total.complete as f64 / (total.generations.max(1)) as f64;
    rec.metric("generations", total.generations);
    rec.metric("complete", total.complete);
    rec.metric("incomplete", total.incomplete);
    rec.metric("failed", total.failed);
    rec.metric("by_source", json!(tally.by_source()));
    rec.metric("by_registry", json!(tally.by_registry(subjects)));
    rec.metric("calls_by_tool", json!(tally.calls));
    rec.metric("tokens", json!({ "total": tally.tokens, "mask_and_choice_us_per_token": tally.micros_per_token() }));
    // A run in which hardly anything finishes would pass without having shown anything.
    if share < min_complete_share {
        let message = format!(
            "only {:.1} % of the generations finished, {:.0} % are wanted",
            share * 100.0,
            min_complete_share * 100.0
        );
        rec.unmeasured("too-few-calls", message);
    }
    for tool in subjects.iter().flat_map(|s| s.registry.tools()) {
        if !tally.calls.contains_key(&tool.name) {
            rec.unmeasured("tool-never-called", format!("no generation called {}", tool.name));
        }
    }
    rec.say(format!(
        "{} generations over {} tools: {} calls, {} invalid, {} incomplete and not counted",
        total.generations,
        subjects.iter().map(|s| s.registry.tools().len()).sum::<usize>(),
        total.complete,
        total.failed,
        total.incomplete
    ));
    let model = tally.from_model();
    rec.say(format!("{} by the model, {} of them calls", model.generations, model.complete));
}

/// Plants each fault; a small run must notice.
pub fn self_check(inputs: &GateInputs, progress: &mut dyn FnMut(&str)) -> Vec<FaultReport> {
    let faults = [
        (Fault::GrammarOff, "grammar off"),
        (Fault::ExtraKey, "an extra key allowed"),
        (Fault::BudgetCut, "budget cut"),
    ];
    faults
        .into_iter()
        .map(|(planted, name)| {
            progress(name);
            match plant(inputs, planted) {
                Ok((caught, evidence)) => fault(GateId::Grammar, name, caught, evidence),
                Err(e) => fault(GateId::Grammar, name, false, e.to_string()),
            }
        })
        .collect()
}

fn plant(inputs: &GateInputs, planted: Fault) -> Result<(bool, String), GateError> {
    let path = inputs.model.path()?;
    let model = Model::load(path.as_path(), ModelParams::default())?;
    let subjects = subjects(planted)?;
    let plan = Plan::planted(&inputs.thresholds.grammar);
    let mut first = None;
    let tally = generations::run(&model, &subjects, &plan, inputs, &mut |outcome, subject| {
        if let (Some(failure), None) = (&outcome.failure, &first) {
            first = Some(format!("{}, seed {}: {failure}", subject.name, outcome.seed));
        }
    })?;
    let total = tally.total();
    let evidence = format!("{} of {} noticed; {}", total.failed, total.generations, first.unwrap_or_default());
    Ok((total.failed > 0, evidence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_registry_has_prompts_and_every_prompt_a_registry() {
        let prompts: BTreeMap<String, Vec<String>> = toml::from_str(PROMPTS).unwrap();
        let names: Vec<&str> = REGISTRIES.iter().map(|r| r.0).collect();
        assert!(prompts.keys().all(|k| names.contains(&k.as_str())));
        assert!(names.iter().all(|n| prompts.get(*n).is_some_and(|p| p.len() >= 4)));
    }

    #[test]
    fn the_loosened_grammar_wants_what_the_registry_refuses() {
        let options = SchemaOptions::default();
        let registry = ToolRegistry::from_toml(REGISTRIES[2].1, &options).unwrap();
        let loose = loosened(&registry, &options).unwrap();
        let more = r#"{"tool":"today","arguments":{},"execute":true}"#;
        assert!(loose.matches(more.as_bytes()) && !registry.grammar().matches(more.as_bytes()));
        assert!(registry.parse_call(more).is_err());
        assert!(registry.parse_call(r#"{"tool":"today","arguments":{}}"#).is_ok());
    }
}
