//! Output governor: raw model text → candidate, or the kind of failure.

use serde::Serialize;

use super::candidate::{Candidate, CandidateError};
use super::cleaner::first_object;
use super::strict_json::StrictJsonError;

/// Limits on one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputLimits {
    /// Tokens that the source was asked for.
    pub max_tokens: usize,
}

impl OutputLimits {
    /// Most characters: 8 a token, at least 256.
    #[must_use]
    pub fn max_chars(self) -> usize {
        self.max_tokens.saturating_mul(8).max(256)
    }

    /// Most bytes: 4 a character.
    #[must_use]
    pub fn max_bytes(self) -> usize {
        self.max_chars().saturating_mul(4)
    }
}

super::vocabulary::vocabulary! {
    /// Why an answer is unusable.
    OutputFailure {
        /// The source did not answer in time.
        Timeout = "timeout",
        /// The source ended before the grammar accepted; a cut object is never a candidate.
        Incomplete = "incomplete",
        /// The source failed in another way.
        SourceError = "source_error",
        /// Nothing but white space.
        Empty = "empty",
        /// More bytes than allowed.
        TooManyBytes = "too_many_bytes",
        /// More characters than allowed.
        TooManyChars = "too_many_chars",
        /// It repeats itself.
        DeadLoop = "dead_loop",
        /// No object, or one that is not strict JSON.
        InvalidJson = "invalid_json",
        /// JSON outside the schema.
        SchemaFailed = "schema_failed",
    }
}

/// A refused answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GovernorRefusal {
    /// Its kind.
    pub failure: OutputFailure,
    /// What exactly.
    pub reason: String,
    /// Fields outside the schema that it tried.
    pub unknown_fields: usize,
}

/// Checks an answer and parses the candidate in it. Order: bytes, empty, characters, repetition,
/// then the object and its schema.
///
/// # Errors
/// [`GovernorRefusal`] with the first check that fails.
pub fn govern(raw: &str, limits: OutputLimits) -> Result<Candidate, GovernorRefusal> {
    let refuse = |failure, reason: String| GovernorRefusal { failure, reason, unknown_fields: 0 };
    if raw.len() > limits.max_bytes() {
        return Err(refuse(
            OutputFailure::TooManyBytes,
            format!("{} bytes, the limit is {}", raw.len(), limits.max_bytes()),
        ));
    }
    if raw.trim().is_empty() {
        return Err(refuse(OutputFailure::Empty, "the answer is empty".to_owned()));
    }
    let chars = raw.chars().count();
    if chars > limits.max_chars() {
        return Err(refuse(
            OutputFailure::TooManyChars,
            format!("{chars} characters, the limit is {}", limits.max_chars()),
        ));
    }
    if let Some(fragment) = repetition(raw) {
        return Err(refuse(OutputFailure::DeadLoop, format!("repeats {fragment:?}")));
    }
    let Some(object) = first_object(raw) else {
        return Err(refuse(OutputFailure::InvalidJson, "no complete JSON object in the answer".to_owned()));
    };
    Candidate::parse(&object).map_err(|error| GovernorRefusal {
        failure: match &error {
            CandidateError::Json(StrictJsonError::Syntax { .. } | StrictJsonError::DuplicateKey { .. }) => {
                OutputFailure::InvalidJson
            }
            _ => OutputFailure::SchemaFailed,
        },
        unknown_fields: error.unknown_fields(),
        reason: error.to_string(),
    })
}

/// The repeated part of a text that repeats itself: a fragment of 4, 6, 8, 12, 16 or 24 characters
/// four times in a row, or three equal consecutive lines of at least 8 bytes. Texts under 32 bytes
/// pass.
#[must_use]
pub fn repetition(raw: &str) -> Option<String> {
    let lines: Vec<&str> = raw.lines().map(str::trim).filter(|l| l.len() >= 8).collect();
    if let Some(three) = lines.windows(3).find(|w| w[0] == w[1] && w[1] == w[2]) {
        return Some(super::text::clipped(three[0], 24));
    }
    let text: Vec<char> = raw.split_whitespace().collect::<Vec<_>>().join(" ").chars().collect();
    if text.iter().map(|c| c.len_utf8()).sum::<usize>() < 32 {
        return None;
    }
    for length in [4, 6, 8, 12, 16, 24] {
        // `run` counts characters equal to the one a fragment earlier: three fragments' worth in a
        // row means the fragment stands there four times.
        let mut run = 0;
        for at in length..text.len() {
            run = if text[at] == text[at - length] { run + 1 } else { 0 };
            if run >= 3 * length {
                return Some(text[at + 1 - length..=at].iter().collect());
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: OutputLimits = OutputLimits { max_tokens: 128 };

    fn failure(raw: &str) -> OutputFailure {
        govern(raw, LIMITS).unwrap_err().failure
    }

    #[test]
    fn failures_have_their_kinds() {
        assert_eq!(failure(" \n"), OutputFailure::Empty);
        assert_eq!(failure(&"a".repeat(4097)), OutputFailure::TooManyBytes);
        assert_eq!(failure(&"ab cd ".repeat(200)), OutputFailure::TooManyChars);
        assert_eq!(failure(&"哈哈".repeat(100)), OutputFailure::DeadLoop);
        assert_eq!(failure("I would unlock the door."), OutputFailure::InvalidJson);
        assert_eq!(failure(r#"{"schema_version":"model_output.v1","intent":"control_dev"#), OutputFailure::InvalidJson);
        assert_eq!(failure(r#"{"schema_version":"model_output.v1","entity_id":"x"}"#), OutputFailure::SchemaFailed);
        assert_eq!(failure("the same line\nthe same line\nthe same line\n{}"), OutputFailure::DeadLoop);
    }

    #[test]
    fn ordinary_answers_do_not_repeat() {
        let answer = r#"{"schema_version":"model_output.v1","intent":"control_device","room":"living_room","device_alias":"客厅灯","device_type":"light","action":"turn_off","params":{}}"#;
        assert_eq!(repetition(answer), None);
        assert!(govern(answer, LIMITS).is_ok());
        assert_eq!(repetition("abababab"), None, "under 32 bytes");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn a_fragment_four_times_is_found(fragment in "[a-z]{8}", before in "[A-Z]{0,8}", after in "[A-Z]{0,8}") {
            let text = format!("{before}{}{after}", fragment.repeat(4));
            prop_assert!(repetition(&text).is_some());
        }

        #[test]
        fn govern_never_panics(raw in "\\PC{0,300}|(\\{|\\}|\"|a|,|:){0,100}") {
            let _ = govern(&raw, LIMITS);
        }
    }
}
