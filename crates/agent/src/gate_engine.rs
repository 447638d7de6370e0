//! The ten gates. All of them run on every command, in order, each with its reasons.
//!
//! [`GatedCommand`] can only come out of [`evaluate`], and only when nothing blocks.

use serde::Serialize;

use super::capability;
use super::command::NormalizedCommand;
use super::freshness::Freshness;
use super::guard::InputFlag;
use super::policy::Policy;
use super::reading::ReaderFault;
use super::registry::{Device, Registry};
use super::vocabulary::{Decision, DeviceType, Gate, Intent, Outcome, Risk};

/// The key to switching off a gate, for the self-check that proves each one load-bearing.
#[derive(Debug)]
pub(crate) struct SelfCheck(());

impl SelfCheck {
    /// For the run that plants each missing gate in turn, and for nothing else.
    pub(crate) fn planting() -> Self {
        Self(())
    }
}

/// Which gates are on. All of them, except under the self-check that proves each one load-bearing:
/// [`GateSet::without`] needs a [`SelfCheck`], which only the gate-5 mutation run can make.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct GateSet {
    off: Option<Gate>,
    reader: ReaderFault,
}

impl GateSet {
    /// All gates but one.
    pub(crate) fn without(gate: Gate, _: &SelfCheck) -> Self {
        GateSet { off: Some(gate), ..GateSet::default() }
    }

    /// All gates, behind a reader with a fault.
    pub(crate) fn with_reader(reader: ReaderFault, _: &SelfCheck) -> Self {
        GateSet { reader, ..GateSet::default() }
    }

    /// The fault of the reader before them.
    pub(crate) fn reader(self) -> ReaderFault {
        self.reader
    }

    fn has(self, gate: Gate) -> bool {
        self.off != Some(gate)
    }
}

/// What one gate found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GateResult {
    /// The gate.
    pub gate: Gate,
    /// Its outcome; `rejected` is blocking.
    pub outcome: Outcome,
    /// Why, empty for a plain acceptance.
    pub reasons: Vec<String>,
}

/// What all gates found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Evaluation {
    decision: Decision,
    policy_decision: Decision,
    risk: Risk,
    device_id: Option<String>,
    requires_confirmation: bool,
    gates: Vec<GateResult>,
}

impl Evaluation {
    /// The decision: policy's, or deny as soon as any gate blocks.
    #[must_use]
    pub fn decision(&self) -> Decision {
        self.decision
    }

    /// What policy alone said.
    #[must_use]
    pub fn policy_decision(&self) -> Decision {
        self.policy_decision
    }

    /// Authoritative risk: the registry's for the resolved device, unknown without one.
    #[must_use]
    pub fn risk(&self) -> Risk {
        self.risk
    }

    /// Whether a confirmation is still missing.
    #[must_use]
    pub fn requires_confirmation(&self) -> bool {
        self.requires_confirmation
    }

    /// All gates, in order.
    #[must_use]
    pub fn gates(&self) -> &[GateResult] {
        &self.gates
    }

    /// The gates that block.
    pub fn blocking(&self) -> impl Iterator<Item = &GateResult> {
        self.gates.iter().filter(|g| g.outcome == Outcome::Rejected)
    }

    /// All blocking reasons, each with its gate.
    #[must_use]
    pub fn reasons(&self) -> Vec<String> {
        self.blocking().flat_map(|g| g.reasons.iter().map(move |r| format!("{}: {r}", g.gate))).collect()
    }
}

/// What an execution brings; absent in a dry-run.
#[derive(Debug, Clone)]
pub(crate) struct ExecutionFacts {
    /// A confirmation was given and is bound to the hash of exactly this plan.
    pub(crate) confirmed: Result<(), String>,
    /// Everything else that speaks against it.
    pub(crate) against: Vec<String>,
}

/// What a memory write brings.
#[derive(Debug, Clone)]
pub(crate) struct MemoryWriteFacts {
    /// The stored evidence that holds the user's phrase.
    pub(crate) evidence: Option<String>,
    /// The phrase was explicit.
    pub(crate) confirmed: bool,
    /// Everything that speaks against it.
    pub(crate) against: Vec<String>,
    /// The device it is about, by registry or memory.
    pub(crate) target: Option<String>,
}

/// What is judged, and with which knowledge.
pub(crate) struct Question<'a> {
    pub(crate) flags: &'a [InputFlag],
    /// Words beside the command that nothing accounts for: a person is asked.
    pub(crate) unexplained: &'a [String],
    pub(crate) subject: Subject<'a>,
    pub(crate) registry: &'a Registry,
    pub(crate) policy: &'a Policy,
    pub(crate) gates: GateSet,
}

/// A command or a memory write. Every gate looks at both.
pub(crate) enum Subject<'a> {
    Command {
        command: &'a NormalizedCommand,
        freshness: Freshness,
        planner: Result<(), String>,
        execution: Option<ExecutionFacts>,
    },
    MemoryWrite(&'a MemoryWriteFacts),
}

/// A command that all gates let pass. Private fields, no constructor, no `Deserialize`: the only
/// way to one is through the gates, and it is the only thing that the planner takes.
#[derive(Debug)]
pub struct GatedCommand {
    command: NormalizedCommand,
    device: Device,
    evaluation: Evaluation,
}

impl GatedCommand {
    /// The command.
    #[must_use]
    pub fn command(&self) -> &NormalizedCommand {
        &self.command
    }

    /// The device by the registry, not by the candidate.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What the gates found.
    #[must_use]
    pub fn evaluation(&self) -> &Evaluation {
        &self.evaluation
    }
}

/// Runs all ten gates on a command.
pub(crate) fn gated(question: &Question<'_>) -> (Evaluation, Option<GatedCommand>) {
    let evaluation = evaluate(question);
    let passed = match &question.subject {
        Subject::Command { command, .. } if evaluation.decision != Decision::Deny => {
            command.device_id().and_then(|id| question.registry.device(id)).map(|device| GatedCommand {
                command: (*command).clone(),
                device: device.clone(),
                evaluation: evaluation.clone(),
            })
        }
        _ => None,
    };
    (evaluation, passed)
}

/// Runs all ten gates.
pub(crate) fn evaluate(question: &Question<'_>) -> Evaluation {
    let (risk, device_id) = match &question.subject {
        Subject::Command { command, .. } => {
            let device = command.device_id().and_then(|id| question.registry.device(id));
            (device.map_or(Risk::Unknown, |d| d.risk_level), device.map(|d| d.device_id.clone()))
        }
        Subject::MemoryWrite(write) => (Risk::Low, write.target.clone()),
    };
    let by_risk = if question.gates.has(Gate::Policy) { question.policy.decide(risk) } else { Decision::Allow };
    // A sentence of which a part was not understood is never carried out without a person's word.
    let policy_decision = match by_risk {
        Decision::Allow if !question.unexplained.is_empty() && question.gates.has(Gate::InputBoundary) => {
            Decision::RequireConfirmation
        }
        decision => decision,
    };
    let gates: Vec<GateResult> = Gate::ALL
        .iter()
        .map(|gate| {
            if !question.gates.has(*gate) {
                let reasons = vec!["switched off by the self-check".to_owned()];
                return GateResult { gate: *gate, outcome: Outcome::Accepted, reasons };
            }
            let (outcome, reasons) = judge(*gate, question, risk, policy_decision);
            GateResult { gate: *gate, outcome, reasons }
        })
        .collect();
    let blocked = gates.iter().any(|g| g.outcome == Outcome::Rejected);
    let confirmed =
        matches!(&question.subject, Subject::Command { execution: Some(facts), .. } if facts.confirmed.is_ok());
    let decision = if blocked { Decision::Deny } else { policy_decision };
    Evaluation {
        requires_confirmation: decision == Decision::RequireConfirmation && !confirmed,
        decision,
        policy_decision,
        risk,
        device_id,
        gates,
    }
}

fn judge(gate: Gate, question: &Question<'_>, risk: Risk, policy: Decision) -> (Outcome, Vec<String>) {
    match &question.subject {
        Subject::Command { command, freshness, planner, execution } => {
            let mut reasons: Vec<String> = command.faults_of(gate).map(str::to_owned).collect();
            let mut warnings: Vec<String> = Vec::new();
            match gate {
                Gate::InputBoundary => {
                    reasons.extend(flag_reasons(question.flags, gate));
                    if !question.unexplained.is_empty() {
                        let words: Vec<String> =
                            question.unexplained.iter().map(|w| format!("'{}'", super::text::clipped(w, 40))).collect();
                        let note = format!("not understood: {}", words.join(", "));
                        if reasons.is_empty() { warnings.push(note) } else { reasons.push(note) }
                    }
                }
                Gate::Schema => reasons.extend(schema(command)),
                Gate::DeviceResolved => {
                    reasons.extend(flag_reasons(question.flags, gate));
                    match command.device_id().map(|id| question.registry.device(id)) {
                        Some(Some(device)) if device.device_type != command.device_type() => {
                            reasons.push("the command's device type is not the registry's".to_owned());
                        }
                        Some(Some(_)) => {}
                        Some(None) => reasons.push("the device is not in the registry".to_owned()),
                        None if reasons.is_empty() => reasons.push("no device".to_owned()),
                        None => {}
                    }
                }
                Gate::Capability => reasons.extend(capability::check(command, question.registry).err()),
                Gate::Freshness => {
                    let finding = format!("the device's state is {freshness}");
                    match freshness {
                        Freshness::Fresh => {}
                        Freshness::Expired => reasons.push(finding),
                        Freshness::Stale | Freshness::Unknown => {
                            if matches!(risk, Risk::Read | Risk::Low) {
                                warnings.push(finding);
                            } else {
                                reasons.push(format!("{finding} and its risk {risk}"));
                            }
                        }
                    }
                }
                Gate::Policy => match policy {
                    Decision::Deny => reasons.push(format!("risk {risk} is denied")),
                    Decision::RequireConfirmation => warnings.push(confirmation_reason(question, risk)),
                    Decision::Allow => {}
                },
                Gate::Confirmation => {
                    if policy == Decision::RequireConfirmation {
                        match execution {
                            Some(facts) => reasons.extend(facts.confirmed.clone().err()),
                            None => warnings.push("not confirmed; needed before execution".to_owned()),
                        }
                    }
                }
                Gate::DryRun => reasons.extend(planner.clone().err()),
                Gate::Execution => reasons.extend(execution.iter().flat_map(|facts| facts.against.clone())),
                Gate::MemoryWrite => {}
            }
            outcome(reasons, warnings)
        }
        Subject::MemoryWrite(write) => {
            let reasons = match gate {
                Gate::InputBoundary => flag_reasons(question.flags, gate),
                Gate::DeviceResolved if write.target.is_none() => {
                    vec!["the name to remember is for no known device".to_owned()]
                }
                Gate::MemoryWrite => {
                    let mut reasons = write.against.clone();
                    if write.evidence.is_none() {
                        reasons.push("no evidence of the user's words".to_owned());
                    }
                    if !write.confirmed {
                        reasons.push("the user has not said it explicitly".to_owned());
                    }
                    reasons
                }
                _ => Vec::new(),
            };
            outcome(reasons, Vec::new())
        }
    }
}

fn confirmation_reason(question: &Question<'_>, risk: Risk) -> String {
    if question.policy.decide(risk) == Decision::RequireConfirmation {
        format!("risk {risk} needs a confirmation")
    } else {
        "a part of the input was not understood, which needs a confirmation".to_owned()
    }
}

fn outcome(reasons: Vec<String>, warnings: Vec<String>) -> (Outcome, Vec<String>) {
    if !reasons.is_empty() {
        (Outcome::Rejected, reasons)
    } else if !warnings.is_empty() {
        (Outcome::Warning, warnings)
    } else {
        (Outcome::Accepted, Vec::new())
    }
}

/// The gate that rejects on a flag: targets are a matter of resolution, the rest of the input.
fn gate_of(flag: InputFlag) -> Gate {
    match flag {
        InputFlag::AllTargets | InputFlag::SeveralCommands => Gate::DeviceResolved,
        _ => Gate::InputBoundary,
    }
}

fn flag_reasons(flags: &[InputFlag], gate: Gate) -> Vec<String> {
    flags
        .iter()
        .filter(|f| gate_of(**f) == gate)
        .map(|flag| {
            match flag {
                InputFlag::PromptInjectionLike => "it addresses the model, not the house",
                InputFlag::DangerousDirectBackendAccess => "it speaks of back ends, addresses or secrets",
                InputFlag::NegatedCommand => "it is negated, and a negation is no command",
                InputFlag::AllTargets => "it is meant for all devices of a kind; name one device",
                InputFlag::SeveralCommands => "it holds several commands; say one at a time",
                InputFlag::Question => "it is a question, not a command",
                InputFlag::UnsupportedCondition => "its condition is not of the form 'after HH:MM'",
                InputFlag::ReportedSpeech => "it quotes, reports or tells of a command",
                InputFlag::WithdrawnCommand => "it takes the command back",
                InputFlag::UnclearValue => {
                    "its number or unit is not a value that can be set; differences are not computed"
                }
                InputFlag::InvisibleCharacters => "it holds characters that do not show",
                InputFlag::NotUnderstood => "not all of it was understood as one command",
            }
            .to_owned()
        })
        .collect()
}

fn schema(command: &NormalizedCommand) -> Vec<String> {
    let mut reasons = Vec::new();
    match command.intent() {
        Intent::ControlDevice => {}
        Intent::UpdateMemory => {
            reasons.push("memory is changed only by an explicit phrase, never by a candidate".to_owned())
        }
        other => reasons.push(format!("intent {other} is not control_device")),
    }
    if command.action() == super::vocabulary::Action::Unknown {
        reasons.push("no action".to_owned());
    }
    if command.device_type() == DeviceType::Unknown {
        reasons.push("no device type".to_owned());
    }
    if let Some(brightness) = command.params().brightness
        && brightness > 100
    {
        reasons.push(format!("brightness {brightness} is above 100"));
    }
    reasons
}
