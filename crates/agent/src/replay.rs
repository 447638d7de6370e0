//! Replay: the stored candidate through today's gates, and what differs.

use serde::Serialize;

use super::assess::{Bench, StateKnowledge, judge};
use super::candidate::Candidate;
use super::freshness::Freshness;
use super::gate_engine::{Question, Subject, evaluate};
use super::guard::UserInput;
use super::memory_write::detect;
use super::pipeline::{Agent, ReplayRecord, RunMode};
use super::reading::Reading;
use super::store::StoreError;

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// What differs: `decision`, `device_id`, `action`, `gate.<name>`, `plan_hash` …
    pub field: String,
    /// As recorded.
    pub recorded: String,
    /// As judged now.
    pub now: String,
}

/// Result of a replay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Replay {
    /// The run.
    pub trace_id: String,
    /// Nothing differs.
    pub same: bool,
    /// What could not be run again, if anything.
    pub note: Option<String>,
    /// All differences.
    pub differences: Vec<Difference>,
}

impl Agent {
    /// Runs the gates again on what a run stored: its input and candidate, its recent commands and
    /// the age class of the device's state then; registry, policy, names and code as they are now.
    /// Writes nothing and executes nothing.
    ///
    /// # Errors
    /// [`StoreError`]; `Ok(None)` for an unknown id.
    pub fn replay(&self, trace_id: &str) -> Result<Option<Replay>, StoreError> {
        let Some(trace) = self.store.trace(trace_id)? else { return Ok(None) };
        let damaged = |reason: String| StoreError::Damaged { trace_id: trace_id.to_owned(), reason };
        let record: ReplayRecord = serde_json::from_str(&trace.replay).map_err(|e| damaged(e.to_string()))?;
        let output: serde_json::Value = serde_json::from_str(&trace.output).map_err(|e| damaged(e.to_string()))?;
        let recorded = |pointer: &str| -> String {
            match output.pointer(pointer) {
                None | Some(serde_json::Value::Null) => "none".to_owned(),
                Some(serde_json::Value::String(s)) => s.clone(),
                Some(other) => other.to_string(),
            }
        };
        let mut replay = Replay { trace_id: trace_id.to_owned(), same: true, note: None, differences: Vec::new() };
        let mut compare = |field: &str, was: String, now: String| {
            if was != now {
                replay.differences.push(Difference { field: field.to_owned(), recorded: was, now });
            }
        };
        if record.clipped {
            replay.note = Some("the input was too long to be stored whole".to_owned());
            return Ok(Some(replay));
        }
        let guarded = match UserInput::new(record.input.as_str()).guard() {
            Ok(guarded) => guarded,
            Err(error) => {
                compare("mode", recorded("/mode"), RunMode::RefusedInput.to_string());
                compare("reasons", recorded("/reasons/0"), format!("input: {error}"));
                replay.same = replay.differences.is_empty();
                return Ok(Some(replay));
            }
        };
        // A name that this very run stored did not exist when it was judged.
        let mut remembered = self.store.aliases()?;
        remembered.retain(|r| r.trace_id != trace_id);
        let names = self.names(&remembered);
        let evaluation;
        if recorded("/mode") == RunMode::MemoryWrite.as_str() {
            let Some(phrase) = detect(&guarded) else {
                compare("mode", recorded("/mode"), RunMode::Command.to_string());
                replay.same = false;
                return Ok(Some(replay));
            };
            let (_, facts) = self.memory_facts(&phrase, &names, remembered.len());
            evaluation = evaluate(&Question {
                flags: guarded.flags(),
                unexplained: &[],
                subject: Subject::MemoryWrite(&facts),
                registry: &self.registry,
                policy: &self.policy,
                gates: self.gates,
            });
        } else {
            let Some(candidate) = record.candidate.as_deref() else {
                replay.note = Some("the run has no candidate: its source failed before the gates".to_owned());
                return Ok(Some(replay));
            };
            let candidate = match Candidate::parse(candidate) {
                Ok(candidate) => candidate,
                Err(error) => {
                    compare("candidate", "accepted".to_owned(), error.to_string());
                    replay.same = false;
                    return Ok(Some(replay));
                }
            };
            let reading = Reading::with_fault(&guarded, &names, self.gates.reader());
            let judgement = judge(
                &Bench {
                    registry: &self.registry,
                    policy: &self.policy,
                    planner: self.planner,
                    gates: self.gates,
                    names: &names,
                    recent: &record.recent,
                    states: StateKnowledge::Recorded(record.freshness.unwrap_or(Freshness::Unknown)),
                },
                &reading,
                &candidate,
                None,
            );
            compare(
                "device_id",
                recorded("/normalized_command/device_id"),
                judgement.command.device_id().unwrap_or("none").to_owned(),
            );
            compare("action", recorded("/normalized_command/action"), judgement.command.action().to_string());
            let hash = judgement
                .gated
                .and_then(|gated| self.planner.plan(gated, trace_id).ok())
                .map_or_else(|| "none".to_owned(), |plan| plan.hash().to_string());
            compare("plan_hash", recorded("/plan_hash"), hash);
            evaluation = judgement.evaluation;
        }
        compare("decision", recorded("/decision"), evaluation.decision().to_string());
        for (index, gate) in evaluation.gates().iter().enumerate() {
            compare(
                &format!("gate.{}", gate.gate),
                recorded(&format!("/evaluation/gates/{index}/outcome")),
                gate.outcome.to_string(),
            );
        }
        replay.same = replay.differences.is_empty();
        Ok(Some(replay))
    }
}
