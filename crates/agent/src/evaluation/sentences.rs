//! Sentences as people say them: plain commands that must work, and sentences that must not be carried out.
//!
//! `gates/agent/plain.jsonl` and `gates/agent/sentences.jsonl`, one JSON object a line. Both have a part that the reader was
//! written with (`dev`) and a part that nobody looked at (`held_out`); the figures of the two are never mixed.

use serde::{Deserialize, Serialize};

use super::case_runs::Ratio;
use crate::assess::{Bench, StateKnowledge, judge};
use crate::candidate::Candidate;
use crate::freshness::SimulatedStates;
use crate::gate_engine::GateSet;
use crate::guard::UserInput;
use crate::memory_write::detect;
use crate::names::Names;
use crate::plan::{ExecutionPlan, Planner};
use crate::policy::Policy;
use crate::reading::Reading;
use crate::registry::Registry;
use crate::rules;
use crate::vocabulary::{Action, Decision, Mode};

const PLAIN: &str = include_str!("../../../../gates/agent/plain.jsonl");
const SENTENCES: &str = include_str!("../../../../gates/agent/sentences.jsonl");

/// The part of a file that a row belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Split {
    /// Looked at while the reader was written.
    Dev,
    /// Not looked at.
    HeldOut,
}

/// What a plain command is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PlainKind {
    Plan,
    Query,
    NoSuchDevice,
    Blocked,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlainExpect {
    kind: PlainKind,
    #[serde(default)]
    device: Option<String>,
    #[serde(default)]
    action: Option<Action>,
    #[serde(default)]
    value: Option<serde_json::Value>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlainRow {
    id: String,
    text: String,
    lang: String,
    expect: PlainExpect,
    split: Split,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SentenceExpect {
    /// No plan.
    Deny,
    /// No plan without a confirmation that names what was not understood.
    NotAllow,
    /// No plan, or one that keeps the whole condition.
    Condition,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct SentenceRow {
    id: String,
    text: String,
    #[expect(dead_code, reason = "part of the form, for people")]
    lang: String,
    class: String,
    expect: SentenceExpect,
    split: Split,
}

/// A file that is not a file of sentences.
#[derive(Debug, thiserror::Error)]
#[error("{file}, line {line}: {source}")]
pub struct SentencesError {
    file: &'static str,
    line: usize,
    source: serde_json::Error,
}

fn rows<T: serde::de::DeserializeOwned>(file: &'static str, text: &str) -> Result<Vec<T>, SentencesError> {
    text.lines()
        .enumerate()
        .map(|(at, line)| serde_json::from_str(line).map_err(|source| SentencesError { file, line: at + 1, source }))
        .collect()
}

/// The plain commands that have a plan, of both parts.
pub(crate) fn plain_texts() -> Result<Vec<String>, SentencesError> {
    let plain = rows::<PlainRow>("plain.jsonl", PLAIN)?;
    Ok(plain.into_iter().filter(|r| r.expect.kind == PlainKind::Plan).map(|r| r.text).collect())
}

/// BLAKE3 of the two files, in hex: plain commands, sentences.
pub(crate) fn hashes() -> [String; 2] {
    [PLAIN, SENTENCES].map(|text| blake3::hash(text.as_bytes()).to_hex().to_string())
}

/// What came of one part of the sentences.
#[derive(Debug, Clone, Default, Serialize)]
pub struct SentenceMetrics {
    /// Plain commands.
    pub plain: usize,
    /// Plain commands that were planned, or put to a confirmation, as they were meant.
    pub coverage: Ratio,
    /// The same in English.
    pub coverage_en: Ratio,
    /// The same in Chinese.
    pub coverage_zh: Ratio,
    /// Plain commands that were planned without a confirmation that only a word nobody knew asks for.
    pub understood: Ratio,
    /// Plain commands that got another plan than the one they mean, or a plan where none is right.
    pub plain_wrong: usize,
    /// Sentences that must not be carried out.
    pub sentences: usize,
    /// Of them refused.
    pub refused: Ratio,
    /// Planned with their whole condition; nothing carries such a plan out at once.
    pub conditioned: usize,
    /// Put to a confirmation that names the words.
    pub asked: usize,
    /// Planned as if they were plain commands, or with another condition than they say.
    pub wrong_plans: usize,
    /// What is wrong, and what a coverage of 1 misses, one line each; the first 50.
    pub findings: Vec<String>,
}

/// The figures of both parts.
#[derive(Debug, Clone, Default, Serialize)]
pub struct SentenceReport {
    /// Rows that the reader was written with.
    pub dev: SentenceMetrics,
    /// Rows that it was not.
    pub held_out: SentenceMetrics,
}

/// A house without a store: what one sentence comes to, said first.
pub(crate) struct Listener<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) policy: &'a Policy,
    pub(crate) gates: GateSet,
    states: SimulatedStates,
}

/// What a sentence comes to.
#[derive(Debug, Clone)]
pub(crate) struct Heard {
    pub(crate) decision: Decision,
    pub(crate) plan: Option<ExecutionPlan>,
    pub(crate) unexplained: Vec<String>,
}

impl<'a> Listener<'a> {
    pub(crate) fn new(registry: &'a Registry, policy: &'a Policy, gates: GateSet) -> Self {
        Listener { registry, policy, gates, states: SimulatedStates::default() }
    }

    /// The rule parser's candidate through the gates.
    pub(crate) fn hear(&self, text: &str) -> Heard {
        let refused = Heard { decision: Decision::Deny, plan: None, unexplained: Vec::new() };
        let Ok(input) = UserInput::new(text).guard() else { return refused };
        if detect(&input).is_some() {
            return refused;
        }
        let names = Names::new(self.registry, []);
        let reading = Reading::with_fault(&input, &names, self.gates.reader());
        let candidate = rules::candidate(&reading, self.registry, &[]).unwrap_or_default();
        self.judge(&names, &reading, &candidate)
    }

    fn judge(&self, names: &Names<'_>, reading: &Reading, candidate: &Candidate) -> Heard {
        let bench = Bench {
            registry: self.registry,
            policy: self.policy,
            planner: Planner,
            gates: self.gates,
            names,
            recent: &[],
            states: StateKnowledge::Live { source: &self.states, now_ms: 0 },
        };
        let judgement = judge(&bench, reading, candidate, None);
        Heard {
            decision: judgement.evaluation.decision(),
            plan: judgement.gated.and_then(|gated| Planner.plan(gated, "sentence").ok()),
            unexplained: reading.unexplained.clone(),
        }
    }
}

/// Hears every sentence and sums up.
///
/// # Errors
/// [`SentencesError`] only if an embedded file is broken; tested.
pub(crate) fn run(registry: &Registry, policy: &Policy, gates: GateSet) -> Result<SentenceReport, SentencesError> {
    let listener = Listener::new(registry, policy, gates);
    let mut report = SentenceReport::default();
    for row in rows::<PlainRow>("plain.jsonl", PLAIN)? {
        let metrics = part(&mut report, row.split);
        plain(metrics, &row, &listener.hear(&row.text));
    }
    for row in rows::<SentenceRow>("sentences.jsonl", SENTENCES)? {
        let metrics = part(&mut report, row.split);
        sentence(metrics, &row, &listener.hear(&row.text));
    }
    Ok(report)
}

fn part(report: &mut SentenceReport, split: Split) -> &mut SentenceMetrics {
    match split {
        Split::Dev => &mut report.dev,
        Split::HeldOut => &mut report.held_out,
    }
}

fn note(metrics: &mut SentenceMetrics, line: String) {
    if metrics.findings.len() < MAX_FINDINGS {
        metrics.findings.push(line);
    }
}

const MAX_FINDINGS: usize = 50;

fn planned(heard: &Heard) -> String {
    heard.plan.as_ref().map_or_else(
        || "nothing planned".to_owned(),
        |p| format!("{} {} on {} {}", heard.decision, p.action(), p.device_id(), serde_json::json!(p.params())),
    )
}

fn plain(metrics: &mut SentenceMetrics, row: &PlainRow, heard: &Heard) {
    metrics.plain += 1;
    let expect = &row.expect;
    let right = heard.plan.as_ref().is_some_and(|plan| {
        expect.kind == PlainKind::Plan
            && expect.device.as_deref() == Some(plan.device_id())
            && expect.action == Some(plan.action())
            && plan.params().time_after().is_none()
            && value(plan) == expect.value.clone().unwrap_or_default()
    });
    if expect.kind == PlainKind::Plan {
        metrics.coverage.count(right);
        match row.lang.as_str() {
            "en" => metrics.coverage_en.count(right),
            _ => metrics.coverage_zh.count(right),
        }
        metrics.understood.count(right && heard.unexplained.is_empty());
    }
    if heard.plan.is_some() && !right {
        metrics.plain_wrong += 1;
        note(metrics, format!("{} {:?}: wrong: {}", row.id, row.text, planned(heard)));
    } else if expect.kind == PlainKind::Plan && !right {
        note(metrics, format!("{} {:?}: not planned ({})", row.id, row.text, heard.unexplained.join(" | ")));
    }
}

fn value(plan: &ExecutionPlan) -> serde_json::Value {
    let params = plan.params();
    params
        .brightness()
        .map(serde_json::Value::from)
        .or_else(|| params.temperature().map(serde_json::Value::from))
        .or_else(|| params.mode().map(|m: Mode| serde_json::Value::from(m.as_str())))
        .unwrap_or_default()
}

fn sentence(metrics: &mut SentenceMetrics, row: &SentenceRow, heard: &Heard) {
    metrics.sentences += 1;
    metrics.refused.count(heard.plan.is_none());
    let Some(plan) = &heard.plan else { return };
    if plan.is_conditioned() && row.expect == SentenceExpect::Condition {
        metrics.conditioned += 1;
        return;
    }
    let names_words = heard.decision == Decision::RequireConfirmation && !heard.unexplained.is_empty();
    if names_words && !plan.is_conditioned() {
        metrics.asked += 1;
        if row.expect == SentenceExpect::NotAllow {
            return;
        }
    } else {
        metrics.wrong_plans += 1;
    }
    note(metrics, format!("{} {} {:?}: {}", row.id, row.class, row.text, planned(heard)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_sentence_is_planned_wrongly_and_plain_commands_work() {
        let report = run(&Registry::embedded().unwrap(), &Policy::embedded().unwrap(), GateSet::default()).unwrap();
        for part in [&report.dev, &report.held_out] {
            assert_eq!((part.wrong_plans, part.plain_wrong), (0, 0), "{:?}", part.findings);
            assert!(part.coverage.value().unwrap() >= 0.9, "{:?}", part.coverage);
        }
    }
}
