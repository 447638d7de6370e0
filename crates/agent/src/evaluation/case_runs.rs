//! Running a suite and measuring it.

use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use super::suite::{Case, CaseMode, Suite};
use crate::clock::{Clock as _, ManualClock};
use crate::freshness::SimulatedStates;
use crate::gate_engine::GateSet;
use crate::guard::UserInput;
use crate::pipeline::{Agent, AgentOptions, AgentParts, MemoryStatus, RunMode, RunOutput};
use crate::policy::Policy;
use crate::registry::Registry;
use crate::source::{CandidateSource, RuleSource, ScriptedSource, SourceKind};
use crate::store::{Store, StoreError};
use crate::time_of_day::TimeOfDay;
use crate::vocabulary::Decision;

/// A ratio with its counts. Without a denominator it is *not measured*, never 1.0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ratio {
    /// How many.
    pub hits: usize,
    /// Of how many.
    pub of: usize,
}

impl Ratio {
    /// The value; `None` when nothing was counted.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts of cases are small")]
    pub fn value(self) -> Option<f64> {
        (self.of > 0).then(|| self.hits as f64 / self.of as f64)
    }

    pub(crate) fn count(&mut self, hit: bool) {
        self.of += 1;
        self.hits += usize::from(hit);
    }
}

impl Serialize for Ratio {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;
        let mut out = serializer.serialize_struct("Ratio", 3)?;
        out.serialize_field("value", &self.value())?;
        out.serialize_field("hits", &self.hits)?;
        out.serialize_field("of", &self.of)?;
        out.end()
    }
}

/// Figures of one run of a suite. `null` values were not measured.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Metrics {
    /// Cases run.
    pub total_cases: usize,
    /// Cases that expect nothing (only possible in EdgeHome's form).
    pub unchecked_cases: usize,
    /// Distinct categories.
    pub category_count: usize,
    /// Cases expected to be blocked.
    pub blocked_cases: usize,
    /// Runs that ended in an error of the pipeline; errors, never fail-closed.
    pub pipeline_errors: usize,
    /// Passed over all.
    pub pass_rate: Ratio,
    /// Correct over stated intents.
    pub intent_accuracy: Ratio,
    /// All stated slots correct over cases that state any.
    pub slot_accuracy: Ratio,
    /// Correct over stated decisions.
    pub policy_accuracy: Ratio,
    /// Correct over stated dry-run readiness.
    pub dry_run_accuracy: Ratio,
    /// All expected flags present over cases that expect any.
    pub input_guard_flag_accuracy: Ratio,
    /// Traces over all.
    pub trace_coverage: Ratio,
    /// Candidates over cases whose source proposed something (abstentions and deliberate refusals
    /// of a scripted text are not counted).
    pub schema_valid_rate: Ratio,
    /// Source had nothing to propose, over all commands.
    pub abstention_rate: Ratio,
    /// Slot accuracy over the categories `runtime_memory` and `long_memory`.
    pub memory_resolution_accuracy: Ratio,
    /// Not blocked over expected blocked.
    pub false_allow_rate: Ratio,
    /// Denied without a plan and without an error over expected blocked.
    pub fail_closed_rate: Ratio,
    /// Denied over expected planned: what over-blocking costs.
    pub false_deny_rate: Ratio,
    /// Rules repaired or replaced, over cases with a model.
    pub fallback_rate: Ratio,
    /// The answer repeated itself, over cases with a model.
    pub dead_loop_rate: Ratio,
    /// Asked more than once, over cases with a model.
    pub retry_rate: Ratio,
    /// Mean time of a run, in process and with one transaction, milliseconds; no figure for a
    /// deployment.
    pub latency_avg_ms: Option<f64>,
    /// The same, 95th percentile.
    pub latency_p95_ms: Option<f64>,
}

/// One case's result.
#[derive(Debug, Clone, Serialize)]
pub struct CaseResult {
    /// Case id.
    pub id: String,
    /// Its category.
    pub category: String,
    /// Its trace.
    pub trace_id: Option<String>,
    /// Everything that differed, empty for a pass.
    pub differences: Vec<String>,
}

/// A run of a suite.
#[derive(Debug, Clone, Serialize)]
pub struct SuiteRun {
    /// Figures.
    pub metrics: Metrics,
    /// Results in file order.
    pub results: Vec<CaseResult>,
    /// Cases expected to be blocked, with their traces.
    #[serde(skip)]
    pub(crate) blocked: Vec<String>,
    #[serde(skip)]
    pub(crate) categories: Vec<String>,
}

impl SuiteRun {
    /// Cases that did not pass.
    pub fn failed(&self) -> impl Iterator<Item = &CaseResult> {
        self.results.iter().filter(|r| !r.differences.is_empty())
    }
}

/// A house to run cases in: an agent with a clock and states that a case can set.
pub(crate) struct House {
    pub(crate) agent: Agent,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) states: Arc<SimulatedStates>,
}

/// 2026-01-01T12:00:00Z; no case depends on the date.
const START_MS: i64 = 1_767_268_800_000;

impl House {
    pub(crate) fn new(registry: Registry, policy: Policy, store: Store, gates: GateSet) -> Self {
        let clock = Arc::new(ManualClock::at(START_MS));
        let states = Arc::new(SimulatedStates::default());
        let agent = Agent::with_gates(
            AgentParts {
                registry,
                policy,
                store,
                clock: Arc::clone(&clock) as _,
                states: Arc::clone(&states) as _,
                source: Box::new(RuleSource),
            },
            AgentOptions { repair: false, memory: true, session: "suite".to_owned() },
            gates,
        );
        House { agent, clock, states }
    }

    pub(crate) fn now_ms(&self) -> i64 {
        self.clock.now_ms()
    }

    /// Brings the house to where a case begins: empty memory, `say` said, states and time set.
    pub(crate) fn prepare(&mut self, suite: &Suite, case: &Case) -> Result<(), StoreError> {
        self.agent.set_source(Box::new(RuleSource));
        if !suite.isolated && case.setup.is_none() {
            self.agent.set_session("suite");
            return Ok(());
        }
        self.states.reset();
        self.agent.store_mut().clear_memory()?;
        let Some(setup) = &case.setup else {
            self.agent.set_session(&case.id);
            return Ok(());
        };
        self.agent.set_session(setup.session.as_deref().unwrap_or(&case.id));
        for text in &setup.say {
            self.agent.run(UserInput::new(text.as_str()))?;
        }
        self.agent.set_session(&case.id);
        self.clock.advance_ms(i64::from(setup.elapsed_s) * 1000);
        for (device, age) in &setup.state_age_s {
            self.states.set_age(device, age.map(i64::from));
        }
        Ok(())
    }
}

/// The source that a case asks for.
pub(crate) fn source_of(case: &Case) -> Box<dyn CandidateSource> {
    match (case.mode, case.setup.as_ref().and_then(|s| s.model_output.as_ref())) {
        (CaseMode::Scripted, Some(answer)) => Box::new(ScriptedSource::new(answer.as_str())),
        _ => Box::new(RuleSource),
    }
}

/// Runs a whole suite in a house and measures it.
pub(crate) fn run(house: &mut House, suite: &Suite) -> SuiteRun {
    let mut metrics = Metrics { total_cases: suite.len(), unchecked_cases: suite.unchecked, ..Metrics::default() };
    let mut results = Vec::with_capacity(suite.len());
    let mut latencies = Vec::with_capacity(suite.len());
    let mut blocked = Vec::new();
    for case in &suite.cases {
        let outcome = house.prepare(suite, case).and_then(|()| {
            house.agent.set_source(source_of(case));
            let started = Instant::now();
            let output = house.agent.run(UserInput::new(case.input.as_str()))?;
            latencies.push(started.elapsed().as_secs_f64() * 1000.0);
            Ok(output)
        });
        let (trace_id, differences) = match &outcome {
            Ok(output) => (Some(output.trace_id.clone()), measure(&mut metrics, case, output)),
            Err(error) => {
                metrics.pipeline_errors += 1;
                measure_error(&mut metrics, case);
                (None, vec![format!("pipeline error: {error}")])
            }
        };
        if case.expects_block() {
            metrics.blocked_cases += 1;
            blocked.extend(trace_id.clone());
        }
        metrics.pass_rate.count(differences.is_empty());
        metrics.trace_coverage.count(trace_id.is_some());
        results.push(CaseResult { id: case.id.clone(), category: case.category().to_owned(), trace_id, differences });
    }
    let mut categories: Vec<String> = suite.cases.iter().map(|c| c.category().to_owned()).collect();
    categories.sort();
    categories.dedup();
    metrics.category_count = categories.len();
    latencies.sort_by(f64::total_cmp);
    if let Some(last) = latencies.len().checked_sub(1) {
        #[expect(clippy::cast_precision_loss, reason = "counts of cases are small")]
        let mean = latencies.iter().sum::<f64>() / latencies.len() as f64;
        metrics.latency_avg_ms = Some(mean);
        // sorted item at ceil(0.95 k) - 1
        metrics.latency_p95_ms = latencies.get(((latencies.len() * 95).div_ceil(100) - 1).min(last)).copied();
    }
    SuiteRun { metrics, results, blocked, categories }
}

/// Whether a run was blocked as a blocked run must be.
pub(crate) fn is_blocked(output: &RunOutput) -> bool {
    output.decision == Decision::Deny && output.plan.is_none() && !output.executable && !output.execute_enabled
}

fn measure_error(metrics: &mut Metrics, case: &Case) {
    // An error is no right answer to anything, and no fail-closed.
    if case.expects_block() {
        metrics.false_allow_rate.count(false);
        metrics.fail_closed_rate.count(false);
    }
    let e = &case.expected;
    for (stated, ratio) in [
        (e.intent.is_some(), &mut metrics.intent_accuracy),
        (e.policy_decision.is_some(), &mut metrics.policy_accuracy),
        (e.dry_run_ready.is_some(), &mut metrics.dry_run_accuracy),
        (!case.expected_input_flags.is_empty(), &mut metrics.input_guard_flag_accuracy),
    ] {
        if stated {
            ratio.count(false);
        }
    }
    metrics.schema_valid_rate.count(false);
}

fn measure(metrics: &mut Metrics, case: &Case, output: &RunOutput) -> Vec<String> {
    let expected = &case.expected;
    let mut differences = Vec::new();
    let command = output.normalized_command.as_ref();
    let mut differs = |field: &str, wanted: String, found: String| -> bool {
        let wrong = wanted != found;
        if wrong {
            differences.push(format!("{field}: expected {wanted}, found {found}"));
        }
        wrong
    };
    let shown = |value: Option<String>| value.unwrap_or_else(|| "none".to_owned());

    if let Some(intent) = expected.intent {
        let wrong = differs("intent", intent.to_string(), shown(command.map(|c| c.intent().to_string())));
        metrics.intent_accuracy.count(!wrong);
    }
    let slots: Vec<(&str, Option<String>, Option<String>)> = vec![
        ("room", expected.room.map(|v| v.to_string()), command.map(|c| c.room().to_string())),
        ("device_id", expected.device_id.clone(), command.and_then(|c| c.device_id().map(str::to_owned))),
        ("device_type", expected.device_type.map(|v| v.to_string()), command.map(|c| c.device_type().to_string())),
        ("action", expected.action.map(|v| v.to_string()), command.map(|c| c.action().to_string())),
        (
            "brightness",
            expected.brightness.map(|v| v.to_string()),
            command.and_then(|c| c.params().brightness().map(|v| v.to_string())),
        ),
        (
            "temperature",
            expected.temperature.map(|v| v.to_string()),
            command.and_then(|c| c.params().temperature().map(|v| v.to_string())),
        ),
        (
            "time_after",
            expected.time_after.clone(),
            command.and_then(|c| c.params().time_after().map(|v| v.to_string())),
        ),
        (
            "set_mode",
            expected.set_mode.map(|v| v.to_string()),
            command.and_then(|c| c.params().mode().map(|v| v.to_string())),
        ),
    ];
    let stated = slots.iter().any(|(_, wanted, _)| wanted.is_some());
    let mut right = true;
    for (field, wanted, found) in slots {
        if let Some(wanted) = wanted {
            right &= !differs(field, wanted, shown(found));
        }
    }
    if stated {
        metrics.slot_accuracy.count(right);
        if matches!(case.category(), "runtime_memory" | "long_memory") {
            metrics.memory_resolution_accuracy.count(right);
        }
    }
    if let Some(decision) = expected.policy_decision {
        let wrong = differs("policy_decision", decision.to_string(), output.decision.to_string());
        metrics.policy_accuracy.count(!wrong);
    }
    if let Some(ready) = expected.dry_run_ready {
        let wrong = differs("dry_run_ready", ready.to_string(), output.plan.is_some().to_string());
        metrics.dry_run_accuracy.count(!wrong);
    }
    let status = output.memory_write.as_ref().map(|m| m.status);
    if let Some(wanted) = expected.memory_write_status {
        differs("memory_write_status", wanted.to_string(), shown(status.map(|s| s.to_string())));
    } else if status.is_some() && !case.expected_is_empty() {
        differs("mode", "command".to_owned(), "memory_write".to_owned());
    }
    if !case.expected_input_flags.is_empty() {
        let missing: Vec<&str> =
            case.expected_input_flags.iter().filter(|f| !output.input_flags.contains(f)).map(|f| f.as_str()).collect();
        differs("missing input flags", String::new(), missing.join(", "));
        metrics.input_guard_flag_accuracy.count(missing.is_empty());
    }
    for gate in &expected.blocked_by {
        let blocks = output.evaluation.iter().flat_map(|e| e.blocking()).any(|g| g.gate == *gate);
        differs(&format!("blocked_by {gate}"), "yes".to_owned(), if blocks { "yes" } else { "no" }.to_owned());
    }
    let refused = output.mode == RunMode::SourceFailed;
    differs("candidate_refused", expected.candidate_refused.to_string(), refused.to_string());

    if case.expects_block() {
        let closed = is_blocked(output);
        metrics.false_allow_rate.count(!closed);
        metrics.fail_closed_rate.count(closed);
        differs("fail closed", "true".to_owned(), closed.to_string());
    }
    if case.expects_plan() {
        metrics.false_deny_rate.count(output.decision == Decision::Deny);
    }
    if let Some(source) = &output.source {
        metrics.abstention_rate.count(source.abstained);
        if !source.abstained && !expected.candidate_refused {
            metrics.schema_valid_rate.count(output.candidate.is_some());
        }
        if source.kind == SourceKind::Model {
            metrics.fallback_rate.count(output.repaired);
            metrics.dead_loop_rate.count(source.dead_loop());
            metrics.retry_rate.count(source.retries() > 0);
        }
    }
    differs("executable", "false".to_owned(), (output.executable || output.execute_enabled).to_string());
    differences
}

impl Case {
    fn expected_is_empty(&self) -> bool {
        !self.expects_block() && !self.expects_plan() && self.expected.memory_write_status.is_none()
    }
}

/// Whether a plan is the one that a case expects.
pub(crate) fn is_expected_plan(case: &Case, plan: &crate::plan::ExecutionPlan) -> bool {
    let e = &case.expected;
    let params = plan.params();
    e.device_id.as_deref() == Some(plan.device_id())
        && e.action == Some(plan.action())
        && e.brightness == params.brightness()
        && e.temperature == params.temperature()
        && e.set_mode == params.mode()
        && e.time_after.as_deref().and_then(TimeOfDay::parse) == params.time_after()
}

/// Whether a memory phrase changed anything.
pub(crate) fn changed_memory(output: &RunOutput) -> bool {
    output.memory_write.as_ref().is_some_and(|m| m.status != MemoryStatus::Rejected)
}
