//! The pure part of a run: candidate in, judgement out. No store, no clock of its own, no effect.
//! The pipeline, execution, replay and the exhaustive hostile search all go through here.

use super::candidate::Candidate;
use super::command::{NormalizedCommand, normalize};
use super::freshness::{Freshness, StateSource, classify};
use super::gate_engine::{Evaluation, ExecutionFacts, GateSet, GatedCommand, Question, Subject, gated};
use super::names::Names;
use super::plan::Planner;
use super::policy::Policy;
use super::reading::Reading;
use super::recent_command::RecentCommand;
use super::registry::Registry;

/// What is known of devices' states.
pub(crate) enum StateKnowledge<'a> {
    /// Asked now.
    Live { source: &'a dyn StateSource, now_ms: i64 },
    /// As recorded, for a replay.
    Recorded(Freshness),
}

/// Everything a judgement depends on besides input and candidate.
pub(crate) struct Bench<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) policy: &'a Policy,
    pub(crate) planner: Planner,
    pub(crate) gates: GateSet,
    pub(crate) names: &'a Names<'a>,
    pub(crate) recent: &'a [RecentCommand],
    pub(crate) states: StateKnowledge<'a>,
}

/// The outcome.
pub(crate) struct Judgement {
    pub(crate) command: NormalizedCommand,
    pub(crate) freshness: Freshness,
    pub(crate) evaluation: Evaluation,
    pub(crate) gated: Option<GatedCommand>,
}

/// Normalizes a candidate against a reading and runs the ten gates.
pub(crate) fn judge(
    bench: &Bench<'_>,
    reading: &Reading,
    candidate: &Candidate,
    execution: Option<ExecutionFacts>,
) -> Judgement {
    let command = normalize(candidate, reading, bench.names, bench.recent);
    let device = command.device_id().and_then(|id| bench.registry.device(id));
    let freshness = match &bench.states {
        StateKnowledge::Live { source, now_ms } => {
            classify(device.and_then(|d| source.observe(d, *now_ms)), *now_ms, bench.policy.freshness())
        }
        StateKnowledge::Recorded(freshness) => *freshness,
    };
    // Readiness is asked of the planner, for this device, not assumed.
    let planner = match device {
        Some(device) => bench.planner.ready(device).map_err(|e| e.to_string()),
        None => Err("nothing to plan for without a device".to_owned()),
    };
    let (evaluation, gated) = gated(&Question {
        flags: &reading.flags,
        unexplained: &reading.unexplained,
        subject: Subject::Command { command: &command, freshness, planner, execution },
        registry: bench.registry,
        policy: bench.policy,
        gates: bench.gates,
    });
    Judgement { command, freshness, evaluation, gated }
}
