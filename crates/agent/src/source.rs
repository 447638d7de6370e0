//! Where candidates come from, and the loop around a source: limits, retries, circuit breaker.

use serde::Serialize;

use super::candidate::Candidate;
use super::governor::{GovernorRefusal, OutputFailure, OutputLimits, govern};
use super::guard::GuardedInput;
use super::policy::SourceLimits;
use super::vocabulary::{DeviceType, Room};

super::vocabulary::vocabulary! {
    /// What kind of source; figures of the two are never mixed.
    SourceKind {
        /// The rule parser.
        Rules = "rules",
        /// Anything that generates text.
        Model = "model",
    }
}

super::vocabulary::vocabulary! {
    /// How much an answer is asked to hold; later tries ask for less.
    AnswerStyle {
        /// The whole object.
        FullJson = "full_json",
        /// The object without optional fields; after bad, overlong or repeating answers.
        CompactJson = "compact_json",
        /// Only the closed words; after a time-out or an empty answer.
        EnumOnly = "enum_only",
    }
}

/// What a model is told of a device: names, room, type. No ids, no back end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceHint {
    /// Registered aliases.
    pub aliases: Vec<String>,
    /// Room.
    pub room: Room,
    /// Type.
    pub device_type: DeviceType,
}

/// One question to a source.
#[derive(Debug)]
pub struct SourceRequest<'a> {
    pub(crate) input: &'a GuardedInput,
    pub(crate) context: &'a str,
    pub(crate) devices: &'a [DeviceHint],
    pub(crate) rule: Option<&'a Candidate>,
    pub(crate) attempt: u32,
    pub(crate) style: AnswerStyle,
    pub(crate) limits: OutputLimits,
}

impl SourceRequest<'_> {
    /// The user's text, normalized.
    #[must_use]
    pub fn input(&self) -> &str {
        self.input.text()
    }

    /// Recent commands and remembered names, bounded; made of ids and checked names only.
    #[must_use]
    pub fn context(&self) -> &str {
        self.context
    }

    /// Devices that can be named.
    #[must_use]
    pub fn devices(&self) -> &[DeviceHint] {
        self.devices
    }

    /// 0 for the first try.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// What this try should answer with.
    #[must_use]
    pub fn style(&self) -> AnswerStyle {
        self.style
    }

    /// Limits of the answer.
    #[must_use]
    pub fn limits(&self) -> OutputLimits {
        self.limits
    }
}

/// What a source says.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceAnswer {
    /// Raw text, untrusted; the governor looks for the candidate in it.
    Text(String),
    /// The source has nothing to propose. Becomes a blank candidate, which the gates deny.
    Abstained,
}

/// Why a source has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// It took too long.
    #[error("no answer in time")]
    Timeout,
    /// It stopped before its grammar accepted: whatever is there is cut and never parsed.
    #[error("the answer is incomplete ({reason})")]
    Incomplete {
        /// Why it stopped.
        reason: String,
        /// What was there, for the trace.
        text: String,
    },
    /// Anything else.
    #[error("the source failed: {0}")]
    Failed(String),
}

/// Produces raw text for an input. Implementations: the rule parser, hostile sources for gate 5, a
/// scripted one for cases, and the engine.
pub trait CandidateSource {
    /// Name for traces and reports.
    fn name(&self) -> &str;

    /// Rules or model.
    fn kind(&self) -> SourceKind {
        SourceKind::Model
    }

    /// Answers one request.
    ///
    /// # Errors
    /// [`SourceError`]; the loop around it decides on another try.
    fn produce(&mut self, request: &SourceRequest<'_>) -> Result<SourceAnswer, SourceError>;
}

/// The rule parser as a source: writes the rule's candidate, abstains where no rule matches.
#[derive(Debug, Default, Clone, Copy)]
pub struct RuleSource;

impl CandidateSource for RuleSource {
    fn name(&self) -> &str {
        "rules"
    }

    fn kind(&self) -> SourceKind {
        SourceKind::Rules
    }

    fn produce(&mut self, request: &SourceRequest<'_>) -> Result<SourceAnswer, SourceError> {
        Ok(request.rule.map_or(SourceAnswer::Abstained, |rule| SourceAnswer::Text(rule.to_json())))
    }
}

/// A source that says the same to everything.
#[derive(Debug, Clone)]
pub struct ScriptedSource {
    answer: String,
}

impl ScriptedSource {
    /// Always answers `answer`.
    #[must_use]
    pub fn new(answer: impl Into<String>) -> Self {
        ScriptedSource { answer: answer.into() }
    }
}

impl CandidateSource for ScriptedSource {
    fn name(&self) -> &str {
        "scripted"
    }

    fn produce(&mut self, _: &SourceRequest<'_>) -> Result<SourceAnswer, SourceError> {
        Ok(SourceAnswer::Text(self.answer.clone()))
    }
}

/// One try.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Attempt {
    /// What was asked for.
    pub style: AnswerStyle,
    /// The raw answer, clipped.
    pub raw: Option<String>,
    /// Why it is unusable, `None` if it was used.
    pub refusal: Option<GovernorRefusal>,
}

/// What came of asking a source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SourceReport {
    /// Its name.
    pub source: String,
    /// Its kind.
    pub kind: SourceKind,
    /// All tries.
    pub attempts: Vec<Attempt>,
    /// It had nothing to propose.
    pub abstained: bool,
    /// The circuit breaker kept it from being asked.
    pub breaker_open: bool,
}

impl SourceReport {
    /// Tries after the first.
    #[must_use]
    pub fn retries(&self) -> usize {
        self.attempts.len().saturating_sub(1)
    }

    /// Why the last try was unusable.
    #[must_use]
    pub fn failure(&self) -> Option<&GovernorRefusal> {
        self.attempts.last().and_then(|a| a.refusal.as_ref())
    }

    /// Whether any try repeated itself.
    #[must_use]
    pub fn dead_loop(&self) -> bool {
        self.attempts.iter().any(|a| a.refusal.as_ref().is_some_and(|r| r.failure == OutputFailure::DeadLoop))
    }

    /// Fields outside the schema over all tries.
    #[must_use]
    pub fn unknown_fields(&self) -> usize {
        self.attempts.iter().filter_map(|a| a.refusal.as_ref()).map(|r| r.unknown_fields).sum()
    }
}

/// Most characters of a raw answer kept in a trace.
const KEPT_CHARS: usize = 2048;

/// Opens after some failures in a row, stays open for some inputs, then lets one try through; any
/// success closes it.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct CircuitBreaker {
    failures: u32,
    closed_in: u32,
}

impl CircuitBreaker {
    fn lets_through(&mut self) -> bool {
        if self.closed_in > 0 {
            self.closed_in -= 1;
            return false;
        }
        true
    }

    fn record(&mut self, success: bool, limits: &SourceLimits) {
        if success {
            *self = CircuitBreaker::default();
            return;
        }
        self.failures += 1;
        if self.failures >= limits.breaker_failures {
            self.closed_in = limits.breaker_cooldown_inputs;
        }
    }
}

/// Asks a source until it gives a candidate, its tries are used up, or it abstains.
pub(crate) fn ask(
    source: &mut dyn CandidateSource,
    breaker: &mut CircuitBreaker,
    limits: &SourceLimits,
    mut request: SourceRequest<'_>,
) -> (Option<Candidate>, SourceReport) {
    let mut report = SourceReport {
        source: source.name().to_owned(),
        kind: source.kind(),
        attempts: Vec::new(),
        abstained: false,
        breaker_open: false,
    };
    let model = source.kind() == SourceKind::Model;
    if model && !breaker.lets_through() {
        report.breaker_open = true;
        return (None, report);
    }
    for attempt in 0..=limits.retries {
        request.attempt = attempt;
        let (raw, result) = match source.produce(&request) {
            Ok(SourceAnswer::Abstained) => {
                report.abstained = true;
                return (Some(Candidate::default()), report);
            }
            Ok(SourceAnswer::Text(raw)) => {
                let result = govern(&raw, request.limits);
                (Some(raw), result)
            }
            Err(error) => {
                let (failure, text) = match &error {
                    SourceError::Timeout => (OutputFailure::Timeout, None),
                    SourceError::Incomplete { text, .. } => (OutputFailure::Incomplete, Some(text.clone())),
                    SourceError::Failed(_) => (OutputFailure::SourceError, None),
                };
                (text, Err(GovernorRefusal { failure, reason: error.to_string(), unknown_fields: 0 }))
            }
        };
        let raw = raw.map(|text| super::text::clipped(&text, KEPT_CHARS));
        match result {
            Ok(candidate) => {
                report.attempts.push(Attempt { style: request.style, raw, refusal: None });
                if model {
                    breaker.record(true, limits);
                }
                return (Some(candidate), report);
            }
            Err(refusal) => {
                let next = match refusal.failure {
                    OutputFailure::Timeout | OutputFailure::Empty => AnswerStyle::EnumOnly,
                    _ => AnswerStyle::CompactJson,
                };
                report.attempts.push(Attempt { style: request.style, raw, refusal: Some(refusal) });
                request.style = next;
            }
        }
    }
    if model {
        breaker.record(false, limits);
    }
    (None, report)
}

#[cfg(test)]
mod tests {
    use super::super::guard::UserInput;
    use super::*;

    struct Sequence(Vec<Result<SourceAnswer, SourceError>>, Vec<AnswerStyle>);

    impl CandidateSource for Sequence {
        fn name(&self) -> &str {
            "sequence"
        }
        fn produce(&mut self, request: &SourceRequest<'_>) -> Result<SourceAnswer, SourceError> {
            self.1.push(request.style());
            self.0.remove(0)
        }
    }

    const LIMITS: SourceLimits =
        SourceLimits { max_tokens: 128, retries: 1, breaker_failures: 2, breaker_cooldown_inputs: 3 };
    const GOOD: &str = r#"{"schema_version":"model_output.v1","action":"turn_on"}"#;

    fn once(source: &mut dyn CandidateSource, breaker: &mut CircuitBreaker) -> (Option<Candidate>, SourceReport) {
        let input = UserInput::new("打开客厅灯").guard().unwrap();
        let request = SourceRequest {
            input: &input,
            context: "",
            devices: &[],
            rule: None,
            attempt: 0,
            style: AnswerStyle::FullJson,
            limits: OutputLimits { max_tokens: 128 },
        };
        ask(source, breaker, &LIMITS, request)
    }

    /// W1: the retry loop exists, so retry_rate and dead_loop_rate can be other than 0.
    #[test]
    fn w1_a_bad_answer_is_tried_again_in_a_smaller_style() {
        let text = |t: &str| Ok(SourceAnswer::Text(t.to_owned()));
        let mut source = Sequence(vec![text("nothing useful"), text(GOOD)], vec![]);
        let (candidate, report) = once(&mut source, &mut CircuitBreaker::default());
        assert!(candidate.is_some());
        assert_eq!(report.retries(), 1);
        assert_eq!(source.1, [AnswerStyle::FullJson, AnswerStyle::CompactJson]);

        let mut source = Sequence(vec![Err(SourceError::Timeout), text(&"哈哈".repeat(40))], vec![]);
        let (candidate, report) = once(&mut source, &mut CircuitBreaker::default());
        assert!(candidate.is_none() && report.dead_loop());
        assert_eq!(source.1, [AnswerStyle::FullJson, AnswerStyle::EnumOnly]);
        assert_eq!(report.failure().unwrap().failure, OutputFailure::DeadLoop);
    }

    #[test]
    fn an_incomplete_answer_is_never_parsed_even_if_it_looks_whole() {
        let cut = || Err(SourceError::Incomplete { reason: "5 tokens".into(), text: GOOD.into() });
        let mut source = Sequence(vec![cut(), cut()], vec![]);
        let (candidate, report) = once(&mut source, &mut CircuitBreaker::default());
        assert!(candidate.is_none());
        assert_eq!(report.failure().unwrap().failure, OutputFailure::Incomplete);
    }

    #[test]
    fn the_breaker_opens_cools_down_and_closes() {
        let mut breaker = CircuitBreaker::default();
        let mut bad = ScriptedSource::new("no");
        assert!(!once(&mut bad, &mut breaker).1.breaker_open);
        assert!(!once(&mut bad, &mut breaker).1.breaker_open);
        for _ in 0..3 {
            assert!(once(&mut bad, &mut breaker).1.breaker_open);
        }
        // one try goes through again, fails, and it is open at once
        assert!(!once(&mut bad, &mut breaker).1.breaker_open);
        assert!(once(&mut bad, &mut breaker).1.breaker_open);
        let mut good = ScriptedSource::new(GOOD);
        for _ in 0..2 {
            once(&mut good, &mut breaker);
        }
        assert!(once(&mut good, &mut breaker).0.is_some());
        assert_eq!((breaker.failures, breaker.closed_in), (0, 0));
    }
}
