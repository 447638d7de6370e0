//! Execution of a recorded dry-run: a stage of its own that takes a trace id, never a text.
//!
//! The stored plan is not trusted. The stored input and candidate go through the gates again with
//! today's registry, policy, names and states; the plan made of that must have the stored plan's
//! hash; and only then may a permit and a confirmation of that very hash move it to the executor.

use serde::Serialize;

use super::assess::{Bench, Judgement, StateKnowledge, judge};
use super::candidate::Candidate;
use super::executor::Executor;
use super::gate_engine::ExecutionFacts;
use super::guard::UserInput;
use super::permit::{Confirmation, ExecutePermit};
use super::pipeline::{Agent, ReplayRecord};
use super::reading::Reading;
use super::store::{Claim, StoreError};
use super::vocabulary::{Decision, Gate, Outcome};

/// A carried-out plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Execution {
    /// The run.
    pub trace_id: String,
    /// Hash of the plan that was carried out.
    pub plan_hash: String,
    /// What the back end said.
    pub message: String,
}

/// Why nothing, or nothing certain, happened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecuteError {
    /// No such run.
    #[error("there is no trace {trace_id:?}; harness agent trace lists them")]
    UnknownTrace {
        /// The id, clipped.
        trace_id: String,
    },
    /// The run made no plan.
    #[error("{trace_id} has no plan: it was denied, or changed only memory")]
    NoPlan {
        /// The run.
        trace_id: String,
    },
    /// Gates refuse.
    #[error("refused: {}", reasons.join("; "))]
    Refused {
        /// Gates that refuse.
        gates: Vec<Gate>,
        /// Their reasons.
        reasons: Vec<String>,
    },
    /// Another process was faster.
    #[error("refused: {reason}")]
    Claimed {
        /// Why.
        reason: &'static str,
    },
    /// The back end failed; the effect is unknown.
    #[error("{0}")]
    Backend(#[from] super::executor::ExecutorError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Agent {
    /// Carries out the plan of a recorded run, once.
    ///
    /// # Errors
    /// [`ExecuteError`]. Every refusal is an audit event; the executor is called only on the way to
    /// `Ok` or [`ExecuteError::Backend`].
    pub fn execute(
        &mut self,
        trace_id: &str,
        permit: ExecutePermit,
        confirmation: Option<Confirmation>,
        executor: &dyn Executor,
    ) -> Result<Execution, ExecuteError> {
        let now_ms = self.clock.now_ms();
        let result = self.try_execute(trace_id, permit, confirmation, executor, now_ms);
        if let Err(error) = &result
            && !matches!(error, ExecuteError::Store(_) | ExecuteError::UnknownTrace { .. })
        {
            self.store.audit(trace_id, now_ms, "execution_refused", &error.to_string())?;
        }
        result
    }

    fn try_execute(
        &mut self,
        trace_id: &str,
        permit: ExecutePermit,
        confirmation: Option<Confirmation>,
        executor: &dyn Executor,
        now_ms: i64,
    ) -> Result<Execution, ExecuteError> {
        let Some(trace) = self.store.trace(trace_id)? else {
            return Err(ExecuteError::UnknownTrace { trace_id: super::text::clipped(trace_id, 40) });
        };
        let no_plan = || ExecuteError::NoPlan { trace_id: trace_id.to_owned() };
        let Some(stored) = trace.plan else { return Err(no_plan()) };
        let damaged = |reason: String| StoreError::Damaged { trace_id: trace_id.to_owned(), reason };
        let replay: ReplayRecord = serde_json::from_str(&trace.replay).map_err(|e| damaged(e.to_string()))?;
        let Some(candidate) = replay.candidate.as_deref() else { return Err(no_plan()) };
        let candidate = Candidate::parse(candidate).map_err(|e| damaged(e.to_string()))?;
        let guarded = UserInput::new(replay.input.as_str()).guard().map_err(|e| damaged(e.to_string()))?;

        let remembered = self.store.aliases()?;
        let names = self.names(&remembered);
        let reading = Reading::with_fault(&guarded, &names, self.gates.reader());
        let again = |execution: Option<ExecutionFacts>| {
            judge(
                &Bench {
                    registry: &self.registry,
                    policy: &self.policy,
                    planner: self.planner,
                    gates: self.gates,
                    names: &names,
                    recent: &replay.recent,
                    states: StateKnowledge::Live { source: self.states.as_ref(), now_ms },
                },
                &reading,
                &candidate,
                execution,
            )
        };
        let plan_of = |judgement: Judgement| match judgement.gated {
            None => Err(refused(&judgement.evaluation)),
            Some(gated) => self
                .planner
                .plan(gated, trace_id)
                .map_err(|e| ExecuteError::Refused { gates: vec![Gate::DryRun], reasons: vec![e.to_string()] }),
        };

        // First as a dry-run: what would be planned today?
        let today = plan_of(again(None))?;
        let hash = today.hash();
        let mut against = Vec::new();
        if blake3::hash(stored.json.as_bytes()).to_hex().as_str() != stored.hash {
            against.push("the stored plan was changed after it was made".to_owned());
        } else if stored.hash != hash.to_string() {
            against.push("the stored plan is not the one that the gates make today; make a new dry-run".to_owned());
        }
        if today.is_conditioned() {
            against
                .push("the plan has a time condition and nothing here schedules: it is never run at once".to_owned());
        }
        let age = now_ms.saturating_sub(trace.at_ms);
        let limit = i64::from(self.policy.execution().max_plan_age_s) * 1000;
        if !(0..=limit).contains(&age) {
            against.push(format!(
                "the dry-run is {} s old, the limit is {} s; make a new one",
                age / 1000,
                limit / 1000
            ));
        }
        if self.store.was_executed(trace_id)? {
            against.push("it was executed already, or an execution began and its outcome is unknown".to_owned());
        }
        let interval = i64::from(self.policy.execution().min_interval_ms);
        if self.store.too_soon(today.device_id(), today.action(), now_ms, interval)? {
            against.push(format!(
                "{} on {} was executed less than {interval} ms ago",
                today.action(),
                today.device_id()
            ));
        }
        if !permit.covers(today.backend()) {
            against.push(format!("the operator's configuration does not enable back end {}", today.backend()));
        }
        let confirmed = match confirmation {
            None if today.decision() == Decision::RequireConfirmation => Err(match reading.unexplained.as_slice() {
                [] => format!("a {} risk needs a confirmation of plan {hash}", today.risk()),
                words => {
                    format!("'{}' was not understood; that needs a confirmation of plan {hash}", words.join("', '"))
                }
            }),
            Some(confirmation) if !confirmation.is_of(&hash) => {
                Err(format!("the confirmation is for another plan than {hash}"))
            }
            _ => Ok(()),
        };
        // Then with execution requested.
        let plan = plan_of(again(Some(ExecutionFacts { confirmed, against })))?;

        let (device_id, action) = (plan.device_id().to_owned(), plan.action());
        let Some(order) = permit.bind(plan) else {
            return Err(ExecuteError::Claimed { reason: "the permit does not cover the back end" });
        };
        let claim = match self.store.claim(trace_id, &device_id, action, now_ms, interval)? {
            Claim::Granted(claim) => claim,
            Claim::AlreadyExecuted => return Err(ExecuteError::Claimed { reason: "it was executed already" }),
            Claim::TooSoon => {
                return Err(ExecuteError::Claimed { reason: "the same action was executed a moment ago" });
            }
        };
        let answer = executor.execute(order);
        let (succeeded, message) = match &answer {
            Ok(response) => (true, response.message.clone()),
            Err(error) => (false, error.to_string()),
        };
        self.store.finish(claim, self.clock.now_ms(), succeeded, &message)?;
        self.store.audit(trace_id, now_ms, if succeeded { "executed" } else { "execution_failed" }, &message)?;
        let response = answer?;
        Ok(Execution {
            trace_id: trace_id.to_owned(),
            plan_hash: hash.to_string(),
            message: super::text::clipped(&response.message, 500),
        })
    }
}

fn refused(evaluation: &super::gate_engine::Evaluation) -> ExecuteError {
    ExecuteError::Refused {
        gates: evaluation.gates().iter().filter(|g| g.outcome == Outcome::Rejected).map(|g| g.gate).collect(),
        reasons: evaluation.reasons(),
    }
}
