//! The pipeline: one input through all stages, one trace for every run.
//!
//! input → guard → (memory phrase?) → reading → candidate → rule repair → normalize → ten gates →
//! plan. Nothing here can execute: the executor and the permit are arguments of
//! [`Agent::execute`], which takes a trace id and no text.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::assess::{Bench, StateKnowledge, judge};
use super::candidate::{Candidate, CandidateParams};
use super::clock::Clock;
use super::command::NormalizedCommand;
use super::freshness::{Freshness, StateSource};
use super::gate_engine::{Evaluation, GateSet, MemoryWriteFacts, Question, Subject, evaluate};
use super::governor::OutputLimits;
use super::guard::{GuardedInput, InputFlag, MAX_INPUT_CHARS, UserInput};
use super::memory_write::{MemoryPhrase, detect, objections};
use super::names::{NameOrigin, Names};
use super::plan::{ExecutionPlan, Planner};
use super::policy::Policy;
use super::reading::Reading;
use super::recent_command::RecentCommand;
use super::registry::Registry;
use super::rules;
use super::source::{
    AnswerStyle, CandidateSource, CircuitBreaker, DeviceHint, SourceKind, SourceReport, SourceRequest, ask,
};
use super::store::{Evidence, MemoryChange, RememberedAlias, RunRecord, Step, Store, StoreError, StoredPlan};
use super::text::{alias_key, clipped};
use super::vocabulary::{Decision, DeviceType, Intent, Outcome, Room};

super::vocabulary::vocabulary! {
    /// What kind of run it was.
    RunMode {
        /// A command, planned or denied by the gates.
        Command = "command",
        /// A phrase that changes memory.
        MemoryWrite = "memory_write",
        /// The guard could not handle the input.
        RefusedInput = "refused_input",
        /// The source gave no candidate; denied before the gates.
        SourceFailed = "source_failed",
    }
}

super::vocabulary::vocabulary! {
    /// What became of a memory phrase.
    MemoryStatus {
        /// The name is stored.
        Saved = "saved",
        /// The name is deleted.
        Forgotten = "forgotten",
        /// Nothing was changed.
        Rejected = "rejected",
    }
}

/// What an agent is made of.
pub struct AgentParts {
    /// Devices.
    pub registry: Registry,
    /// Policy.
    pub policy: Policy,
    /// Trace store.
    pub store: Store,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Device states.
    pub states: Arc<dyn StateSource>,
    /// Candidates.
    pub source: Box<dyn CandidateSource>,
}

/// How an agent behaves.
#[derive(Debug, Clone)]
pub struct AgentOptions {
    /// Rules overwrite a model's candidate where they match, and stand in for a failed model.
    /// Figures with and without are reported apart.
    pub repair: bool,
    /// Short and long memory are used.
    pub memory: bool,
    /// Commands of one session can refer to each other; others cannot.
    pub session: String,
}

impl Default for AgentOptions {
    fn default() -> Self {
        AgentOptions { repair: true, memory: true, session: "default".to_owned() }
    }
}

/// The agent: everything up to a plan, and the separate execution of a recorded one.
pub struct Agent {
    pub(crate) registry: Registry,
    pub(crate) policy: Policy,
    pub(crate) store: Store,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) states: Arc<dyn StateSource>,
    pub(crate) gates: GateSet,
    pub(crate) planner: Planner,
    source: Box<dyn CandidateSource>,
    options: AgentOptions,
    breaker: CircuitBreaker,
    hints: Vec<DeviceHint>,
}

/// What became of a memory phrase, with the gates that judged it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemoryOutput {
    /// Status.
    pub status: MemoryStatus,
    /// The name, clipped.
    pub alias: String,
    /// The device.
    pub device_id: Option<String>,
}

/// The result of one run, also stored in the trace.
#[derive(Debug, Clone, Serialize)]
pub struct RunOutput {
    /// Id of the trace; every run has one.
    pub trace_id: String,
    /// Kind of run.
    pub mode: RunMode,
    /// Everything suspicious or unsupported about the input.
    pub input_flags: Vec<InputFlag>,
    /// Words of the input that nothing accounts for.
    pub unexplained: Vec<String>,
    /// How the candidate came about.
    pub source: Option<SourceReport>,
    /// What was proposed, after repair.
    pub candidate: Option<Candidate>,
    /// Whether rules changed or replaced the source's candidate.
    pub repaired: bool,
    /// What was understood.
    pub normalized_command: Option<NormalizedCommand>,
    /// The decision; deny where nothing was judged.
    pub decision: Decision,
    /// What the ten gates found.
    pub evaluation: Option<Evaluation>,
    /// The dry-run, if there is one.
    pub plan: Option<ExecutionPlan>,
    /// Its hash; a confirmation is bound to it.
    pub plan_hash: Option<String>,
    /// For memory phrases.
    pub memory_write: Option<MemoryOutput>,
    /// Why there is no plan, first reason first.
    pub reasons: Vec<String>,
    /// Always false: a run executes nothing.
    pub executable: bool,
    /// Always false: a run executes nothing.
    pub execute_enabled: bool,
}

/// What a replay or an execution needs of an earlier run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ReplayRecord {
    pub(crate) input: String,
    pub(crate) clipped: bool,
    pub(crate) candidate: Option<String>,
    pub(crate) recent: Vec<RecentCommand>,
    pub(crate) freshness: Option<Freshness>,
}

/// A run in the making: collects what is written at its end.
struct Run {
    record: RunRecord,
    replay: ReplayRecord,
    output: RunOutput,
}

impl Run {
    fn step(&mut self, name: &'static str, status: &'static str, detail: impl Into<String>) {
        self.record.steps.push(Step { name, status, detail: clipped(&detail.into(), 500) });
    }

    fn evidence(&mut self, kind: &'static str, content: impl Into<String>) {
        self.record.evidence.push(Evidence { kind, content: clipped(&content.into(), 8192) });
    }

    fn judged(&mut self, evaluation: Evaluation) {
        self.output.decision = evaluation.decision();
        self.output.reasons = evaluation.reasons();
        self.record.gates = evaluation
            .gates()
            .iter()
            .map(|g| (g.gate.to_string(), g.outcome.to_string(), g.reasons.join("; ")))
            .collect();
        self.output.evaluation = Some(evaluation);
    }
}

impl Agent {
    /// An agent with all gates.
    #[must_use]
    pub fn new(parts: AgentParts, options: AgentOptions) -> Self {
        Self::with_gates(parts, options, GateSet::default())
    }

    pub(crate) fn with_gates(parts: AgentParts, options: AgentOptions, gates: GateSet) -> Self {
        let hints = parts
            .registry
            .devices()
            .iter()
            .map(|d| DeviceHint { aliases: d.aliases.clone(), room: d.room, device_type: d.device_type })
            .collect();
        Agent {
            registry: parts.registry,
            policy: parts.policy,
            store: parts.store,
            clock: parts.clock,
            states: parts.states,
            source: parts.source,
            planner: Planner,
            breaker: CircuitBreaker::default(),
            options,
            gates,
            hints,
        }
    }

    /// The registry.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The trace store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The trace store, to forget names.
    pub fn store_mut(&mut self) -> &mut Store {
        &mut self.store
    }

    pub(crate) fn set_session(&mut self, session: &str) {
        session.clone_into(&mut self.options.session);
    }

    pub(crate) fn set_repair(&mut self, repair: bool) {
        self.options.repair = repair;
    }

    pub(crate) fn set_source(&mut self, source: Box<dyn CandidateSource>) -> Box<dyn CandidateSource> {
        self.breaker = CircuitBreaker::default();
        std::mem::replace(&mut self.source, source)
    }

    /// Runs one input as a dry-run. Every run, also a refused one, leaves a trace.
    ///
    /// # Errors
    /// [`StoreError`] when the trace cannot be read or written. Everything else is an output.
    pub fn run(&mut self, input: UserInput) -> Result<RunOutput, StoreError> {
        let now_ms = self.clock.now_ms();
        let trace_id = format!("tr_{:016x}", rand::random::<u64>());
        let kept = input.clipped(MAX_INPUT_CHARS * 4);
        let mut run = Run {
            record: RunRecord {
                trace_id: trace_id.clone(),
                session: self.options.session.clone(),
                at_ms: now_ms,
                input: kept.clone(),
                ..RunRecord::default()
            },
            replay: ReplayRecord {
                clipped: kept != input.clipped(usize::MAX),
                input: kept.clone(),
                candidate: None,
                recent: Vec::new(),
                freshness: None,
            },
            output: RunOutput {
                trace_id,
                mode: RunMode::Command,
                input_flags: Vec::new(),
                unexplained: Vec::new(),
                source: None,
                candidate: None,
                repaired: false,
                normalized_command: None,
                decision: Decision::Deny,
                evaluation: None,
                plan: None,
                plan_hash: None,
                memory_write: None,
                reasons: Vec::new(),
                executable: false,
                execute_enabled: false,
            },
        };
        run.evidence("raw_user_input", kept);
        match input.guard() {
            Err(error) => {
                run.output.mode = RunMode::RefusedInput;
                run.output.reasons = vec![format!("input: {error}")];
                run.step("input_received", "rejected", error.to_string());
            }
            Ok(guarded) => {
                run.step("input_received", "succeeded", "");
                let remembered = if self.options.memory { self.store.aliases()? } else { Vec::new() };
                match detect(&guarded) {
                    Some(phrase) if self.options.memory => self.memory_phrase(&mut run, &guarded, &phrase, &remembered),
                    _ => self.command(&mut run, &guarded, &remembered, now_ms)?,
                }
            }
        }
        let Run { mut record, replay, output } = run;
        record.mode = output.mode.as_str();
        record.decision = output.decision.as_str();
        record.output = json(&output);
        record.replay = json(&replay);
        self.store.record(&record)?;
        Ok(output)
    }

    fn memory_phrase(
        &self,
        run: &mut Run,
        input: &GuardedInput,
        phrase: &MemoryPhrase,
        remembered: &[RememberedAlias],
    ) {
        run.output.mode = RunMode::MemoryWrite;
        run.output.input_flags = input.flags().to_vec();
        run.evidence("memory_write_request", json(phrase));
        let names = self.names(remembered);
        let (alias, facts) = self.memory_facts(phrase, &names, remembered.len());
        let evaluation = evaluate(&Question {
            flags: input.flags(),
            unexplained: &[],
            subject: Subject::MemoryWrite(&facts),
            registry: &self.registry,
            policy: &self.policy,
            gates: self.gates,
        });
        let accepted = evaluation.decision() != Decision::Deny;
        run.judged(evaluation);
        let status = match (accepted, phrase) {
            (true, MemoryPhrase::Remember { .. }) => {
                // Only possible with a target; a switched-off gate must not make one up.
                match &facts.target {
                    Some(device_id) => {
                        run.record.memory = Some(MemoryChange::Remember {
                            key: alias_key(&alias),
                            alias: alias.clone(),
                            device_id: device_id.clone(),
                        });
                        run.evidence("memory_item", format!("{alias} = {device_id}"));
                        MemoryStatus::Saved
                    }
                    None => MemoryStatus::Rejected,
                }
            }
            (true, MemoryPhrase::Forget { .. }) => {
                run.record.memory = Some(MemoryChange::Forget { key: alias_key(&alias) });
                MemoryStatus::Forgotten
            }
            (true, MemoryPhrase::WeakenSafety) | (false, _) => MemoryStatus::Rejected,
        };
        run.step(
            "memory_write",
            if status == MemoryStatus::Rejected { "rejected" } else { "succeeded" },
            status.as_str(),
        );
        run.output.memory_write =
            Some(MemoryOutput { status, alias: clipped(&alias, 40), device_id: facts.target.clone() });
    }

    pub(crate) fn memory_facts(
        &self,
        phrase: &MemoryPhrase,
        names: &Names<'_>,
        stored: usize,
    ) -> (String, MemoryWriteFacts) {
        let limit = usize::try_from(self.policy.memory().max_aliases).unwrap_or(usize::MAX);
        let mut facts = MemoryWriteFacts {
            // The user's words are the first evidence of the run.
            evidence: Some("raw_user_input".to_owned()),
            confirmed: true,
            against: Vec::new(),
            target: None,
        };
        match phrase {
            MemoryPhrase::Remember { target, alias } => {
                facts.target = names.device(target).map(|(d, _)| d.device_id.clone());
                facts.against = objections(alias, facts.target.as_deref(), names, stored, limit);
                (alias.clone(), facts)
            }
            MemoryPhrase::Forget { alias } => {
                match names.device(alias) {
                    Some((device, NameOrigin::Memory)) => facts.target = Some(device.device_id.clone()),
                    Some((_, NameOrigin::Registry)) => {
                        facts
                            .against
                            .push(format!("{alias:?} is a registered name; only remembered ones can be forgotten"));
                    }
                    None => facts.against.push(format!("{:?} is not remembered", clipped(alias, 40))),
                }
                (alias.clone(), facts)
            }
            MemoryPhrase::WeakenSafety => {
                facts.against.push(
                    "safety rules can be made stricter by the operator's policy, never weaker by a phrase".to_owned(),
                );
                (String::new(), facts)
            }
        }
    }

    pub(crate) fn names<'a>(&'a self, remembered: &'a [RememberedAlias]) -> Names<'a> {
        Names::new(&self.registry, remembered.iter().map(|r| (r.alias.as_str(), r.device_id.as_str())))
    }

    fn command(
        &mut self,
        run: &mut Run,
        input: &GuardedInput,
        remembered: &[RememberedAlias],
        now_ms: i64,
    ) -> Result<(), StoreError> {
        let names = Names::new(&self.registry, remembered.iter().map(|r| (r.alias.as_str(), r.device_id.as_str())));
        let reading = Reading::with_fault(input, &names, self.gates.reader());
        run.output.unexplained.clone_from(&reading.unexplained);
        run.output.input_flags.clone_from(&reading.flags);
        let recent = if self.options.memory {
            let memory = self.policy.memory();
            let oldest = now_ms.saturating_sub(i64::from(memory.short_max_age_s) * 1000);
            self.store.recent(&self.options.session, oldest, now_ms, memory.short_items)?
        } else {
            Vec::new()
        };
        run.replay.recent.clone_from(&recent);
        let context = context(&self.registry, &self.policy, &recent, remembered, input);
        let rule = rules::candidate(&reading, &self.registry, &recent);
        let request = SourceRequest {
            input,
            context: &context,
            devices: &self.hints,
            rule: rule.as_ref(),
            attempt: 0,
            style: AnswerStyle::FullJson,
            limits: OutputLimits { max_tokens: usize::try_from(self.policy.source().max_tokens).unwrap_or(usize::MAX) },
        };
        let (candidate, report) = ask(self.source.as_mut(), &mut self.breaker, self.policy.source(), request);
        for attempt in &report.attempts {
            run.record.evidence.push(Evidence { kind: "raw_model_output", content: json(attempt) });
        }
        let model = report.kind == SourceKind::Model;
        if let Some(refusal) = report.failure() {
            run.step("model_output_failed", "failed", refusal.reason.clone());
        }
        let failed = if report.breaker_open {
            "the source failed too often and is left alone for some inputs".to_owned()
        } else {
            report.failure().map_or_else(|| "the source has no candidate".to_owned(), |r| r.reason.clone())
        };
        run.output.source = Some(report);
        let candidate = match (candidate, &rule) {
            (Some(candidate), Some(rule)) if model && self.options.repair => {
                let repaired = repair(&candidate, rule, &self.registry);
                if repaired != candidate {
                    run.output.repaired = true;
                    run.step("rule_repair", "fallback", format!("{} -> {}", candidate.to_json(), repaired.to_json()));
                }
                repaired
            }
            (Some(candidate), _) => candidate,
            (None, Some(rule)) if self.options.repair => {
                run.output.repaired = true;
                run.step("rule_only", "fallback", failed);
                rule.clone()
            }
            (None, _) => {
                run.output.mode = RunMode::SourceFailed;
                run.output.reasons = vec![format!("source: {failed}")];
                run.step("fail_closed_before_gate", "rejected", failed);
                return Ok(());
            }
        };
        run.evidence("parsed_json", candidate.to_json());
        run.replay.candidate = Some(candidate.to_json());
        run.output.candidate = Some(candidate.clone());
        let judgement = judge(
            &Bench {
                registry: &self.registry,
                policy: &self.policy,
                planner: self.planner,
                gates: self.gates,
                names: &names,
                recent: &recent,
                states: StateKnowledge::Live { source: self.states.as_ref(), now_ms },
            },
            &reading,
            &candidate,
            None,
        );
        run.replay.freshness = Some(judgement.freshness);
        run.evidence("normalized_command", json(&judgement.command));
        run.evidence("device_registry_snapshot", self.registry.hash());
        run.evidence("policy_rule_snapshot", self.policy.hash());
        run.evidence("device_state_snapshot", judgement.freshness.as_str());
        if let Some(device) = judgement.command.device_id().and_then(|id| self.registry.device(id)) {
            run.evidence("capability_snapshot", json(&self.registry.capabilities().get(&device.device_type)));
        }
        run.output.normalized_command = Some(judgement.command);
        for gate in judgement.evaluation.gates() {
            if gate.outcome == Outcome::Rejected {
                run.step("gate", "rejected", format!("{}: {}", gate.gate, gate.reasons.join("; ")));
            }
        }
        run.judged(judgement.evaluation);
        let Some(gated) = judgement.gated else {
            run.step("dry_run", "rejected", "no plan for a denied command");
            return Ok(());
        };
        match self.planner.plan(gated, &run.record.trace_id) {
            Ok(plan) => {
                let stored = StoredPlan { json: json(&plan), hash: plan.hash().to_string() };
                run.evidence("dry_run_plan", stored.json.clone());
                run.step("dry_run", "succeeded", stored.hash.clone());
                run.record.recent = Some(RecentCommand {
                    trace_id: run.record.trace_id.clone(),
                    device_id: plan.device_id().to_owned(),
                    action: plan.action(),
                });
                run.output.plan_hash = Some(stored.hash.clone());
                run.record.plan = Some(stored);
                run.output.plan = Some(plan);
            }
            Err(error) => {
                // The dry-run gate has asked the planner before: this is a fault of the boundary
                // itself, and it fails closed.
                run.output.decision = Decision::Deny;
                run.output.reasons = vec![format!("planner: {error}")];
                run.step("dry_run", "failed", error.to_string());
            }
        }
        Ok(())
    }
}

/// JSON of our own types, which always serialize.
pub(crate) fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// The rule's non-unknown fields and all its parameters overwrite the candidate's.
fn repair(candidate: &Candidate, rule: &Candidate, registry: &Registry) -> Candidate {
    let mut repaired = candidate.clone();
    if rule.intent != Intent::Unknown {
        repaired.intent = rule.intent;
    }
    if rule.device_alias.is_some() {
        repaired.device_alias.clone_from(&rule.device_alias);
        // The room belongs to the alias: the model's guess must not contradict the rule's device, and stays where it
        // names that device's room.
        let room = rule.device_alias.as_deref().and_then(|alias| registry.by_alias(alias)).map(|device| device.room);
        if rule.room != Room::Unknown || room != Some(candidate.room) {
            repaired.room = rule.room;
        }
    } else if rule.room != Room::Unknown {
        repaired.room = rule.room;
    }
    if rule.device_type != DeviceType::Unknown || rule.is_relative() {
        repaired.device_type = rule.device_type;
    }
    repaired.action = rule.action;
    repaired.params = CandidateParams { ..rule.params.clone() };
    repaired
}

/// What a model may know of the past: ids and checked names, never earlier text, bounded.
fn context(
    registry: &Registry,
    policy: &Policy,
    recent: &[RecentCommand],
    remembered: &[RememberedAlias],
    input: &GuardedInput,
) -> String {
    let name = |device_id: &str| {
        registry.device(device_id).and_then(|d| d.aliases.first().cloned()).unwrap_or_else(|| "?".to_owned())
    };
    let mut lines: Vec<String> =
        recent.iter().map(|r| format!("recent: {} {}", name(&r.device_id), r.action)).collect();
    let said = alias_key(input.text());
    let limit = usize::try_from(policy.memory().long_items).unwrap_or(0);
    // Names were checked when stored (letters, digits, no suspicious content): quoting them carries
    // a name into the prompt and nothing else.
    lines.extend(
        remembered
            .iter()
            .filter(|r| said.contains(&alias_key(&r.alias)))
            .take(limit)
            .map(|r| format!("name: {:?} is {}", r.alias, name(&r.device_id))),
    );
    clipped(&lines.join("\n"), usize::try_from(policy.memory().context_chars).unwrap_or(0))
}
