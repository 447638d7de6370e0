//! What answers are.

use super::error::Place;

/// What makes an answer right.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "exact", rename_all = "snake_case")]
pub enum Exactness {
    /// The grammar.
    ByGrammar,
    /// The grammar and a look at the whole answer.
    ByValidation {
        /// What the grammar leaves to it. `(unique keys)` stands for keys that are free and could come twice.
        keywords: Vec<Place>,
    },
}

/// What a finished text is.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// The schema allows it.
    Valid,
    /// It does not.
    Invalid {
        /// The keyword that failed first.
        #[serde(flatten)]
        place: Place,
        /// JSON pointer into the answer.
        instance: String,
    },
    /// No JSON, or a key twice.
    NotJson {
        /// Why.
        problem: String,
    },
    /// The validator gave up at its limits; that is not a valid answer.
    Undecided {
        /// Where.
        #[serde(flatten)]
        place: Place,
    },
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Valid => f.write_str("valid"),
            Self::Invalid { place, instance } => {
                write!(f, "at '{instance}' it is not what '{}' at '{}' asks for", place.keyword, place.pointer)
            }
            Self::NotJson { problem } => write!(f, "not JSON: {problem}"),
            Self::Undecided { place } => write!(f, "'{}' at '{}' could not be decided", place.keyword, place.pointer),
        }
    }
}
