//! Gate 4: constrained output is always a valid tool call.
//!
//! Thousands of seeded generations over every tool registry, from adversarial logits and from the model at several
//! temperatures, all through the selector that `generate` uses; and over plain schemas of the kinds that people bring, from
//! adversarial logits alone. What ends as an answer counts as a call, must parse as JSON and validate against the tool's
//! or the plain JSON Schema, by a validator that knows nothing of the grammar. What ends at the budget, or is told by the
//! validation that goes with a schema without an exact grammar, is incomplete, must not be a call, and is counted apart.

pub mod adversary;
pub mod generations;
pub mod judges;

use std::collections::BTreeMap;

use bitnet_rs::{Model, ModelParams};
use grammar::Language;
use grammar::schema::{Schema, SchemaOptions};
use grammar::tools::ToolRegistry;
use serde_json::{Value, json};

use super::recorder::{Recorder, SHORTAGE, finding};
use super::{GateError, GateId, GateInputs, fault, sha256};
use crate::report::{FaultReport, Severity};
use generations::{Plan, Subject, Tally};
use judges::Validator;

/// The registries of the suite, as compiled in.
const REGISTRIES: [(&str, &str); 4] = [
    ("home", include_str!("../../../../gates/grammars/home.toml")),
    ("files", include_str!("../../../../gates/grammars/files.toml")),
    ("calendar", include_str!("../../../../gates/grammars/calendar.toml")),
    ("arithmetic", include_str!("../../../../gates/grammars/arithmetic.toml")),
];
/// Schemas as frameworks and people write them, by name.
const SCHEMAS: &str = include_str!("../../../../gates/grammars/schemas.json");
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
    let options = SchemaOptions::default();
    let mut all = Vec::new();
    for (name, text) in REGISTRIES {
        let registry = ToolRegistry::from_toml(text, &options).map_err(|e| other(&e))?;
        let language = match fault {
            Fault::GrammarOff => None,
            Fault::None | Fault::BudgetCut => Some(registry.language()),
            Fault::ExtraKey => Some(loosened(&registry, &options)?),
        };
        let validator = Validator::of_calls(&registry).map_err(GateError::Other)?;
        all.push(Subject {
            name: name.to_owned(),
            tools: registry.tools().to_vec(),
            validator,
            language,
            prompts: prompts.remove(name).unwrap_or_default(),
            cut_counts: fault == Fault::BudgetCut,
        });
    }
    if fault == Fault::None {
        all.extend(plain_schemas()?);
    }
    Ok(all)
}

/// A line of the schemas' file.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct PlainSchema<'a> {
    name: String,
    #[serde(borrow)]
    schema: &'a serde_json::value::RawValue,
}

/// The subjects that are not registries.
fn plain_schemas() -> Result<Vec<Subject>, GateError> {
    let file: Vec<PlainSchema<'_>> = serde_json::from_str(SCHEMAS).map_err(GateError::cause)?;
    file.into_iter()
        .map(|PlainSchema { name, schema }| {
            let other = |e: &dyn std::fmt::Display| GateError::Other(format!("schema '{name}': {e}"));
            let language = Schema::parse(schema.get(), &SchemaOptions::default()).map_err(|e| other(&e))?.into();
            let value: Value = serde_json::from_str(schema.get()).map_err(|e| other(&e))?;
            let validator = Validator::of_values(&name, &value).map_err(|e| other(&e))?;
            Ok(Subject {
                name,
                tools: Vec::new(),
                validator,
                language: Some(language),
                prompts: Vec::new(),
                cut_counts: false,
            })
        })
        .collect()
}

/// What allows the registry's calls with one more key in each.
fn loosened(registry: &ToolRegistry, options: &SchemaOptions) -> Result<Language, GateError> {
    let calls = registry.tools().iter().map(|tool| {
        json!({
            "type": "object",
            "properties": {"tool": {"const": tool.name}, "arguments": tool.parameters, "execute": {"const": true}},
            "required": ["tool", "arguments", "execute"],
            "additionalProperties": false,
        })
    });
    // References of a tool's parameters lead to the root of the whole.
    let mut definitions = serde_json::Map::new();
    for tool in registry.tools() {
        definitions.extend(tool.parameters.get("$defs").and_then(Value::as_object).cloned().unwrap_or_default());
    }
    let schema = json!({ "anyOf": calls.collect::<Vec<_>>(), "$defs": definitions });
    Ok(Schema::parse(&schema.to_string(), options).map_err(GateError::cause)?.into())
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
    rec.input("schemas.json", "embedded", sha256(SCHEMAS.as_bytes()));
    rec.input("tool_calls.toml", "embedded", sha256(PROMPTS.as_bytes()));
    let path = inputs.model.path()?;
    let model = Model::load(path.as_path(), ModelParams::default())?;
    let subjects = subjects(Fault::None)?;
    let plan = Plan::new(t, &model, &subjects, inputs.quick);
    let generations = plan.generations(&subjects);
    rec.plan(generations);
    let mut done = 0u64;
    let tally = generations::run(&model, &subjects, &plan, inputs, &mut |outcome, subject| {
        done += 1;
        if done.is_multiple_of(200) {
            rec.progress(&format!("{done} of {generations} generations"));
        }
        rec.check(outcome.failure.is_none(), || {
            let (severity, code) = match outcome.is_host_shortage {
                true => (Severity::Unmeasured, SHORTAGE),
                false => (Severity::Failure, "invalid-call"),
            };
            finding(
                severity,
                code,
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
    for name in subjects.iter().flat_map(|s| s.validator.names()) {
        if !tally.calls.contains_key(name) {
            rec.unmeasured("tool-never-called", format!("no generation called or answered {name}"));
        }
    }
    rec.say(format!(
        "{} generations over {} tools and {} schemas: {} calls and answers, {} invalid, {} incomplete and not counted",
        total.generations,
        subjects.iter().map(|s| s.tools.len()).sum::<usize>(),
        subjects.iter().filter(|s| s.tools.is_empty()).count(),
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
    let plan = Plan::planted(&inputs.thresholds.grammar, &subjects);
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
        assert!(loose.matches(more) && !registry.language().matches(more));
        assert!(registry.parse_call(more).is_err());
        assert!(registry.parse_call(r#"{"tool":"today","arguments":{}}"#).is_ok());
    }
}
