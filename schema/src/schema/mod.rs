//! JSON Schemas as constraints: any schema people bring, exact or refused by name.
//!
//! A schema is read strictly ([`Schema::parse`]), turned into a grammar for the llguidance engine, and validated where
//! no grammar is exact:
//! - **by grammar** ([`Exactness::ByGrammar`]): every text that the constraint lets through is JSON that the schema
//!   allows;
//! - **by validation** ([`Exactness::ByValidation`]): the grammar leaves the named keywords out and lets too much
//!   through. [`SchemaConstraint::finish`] decides the finished text. Only [`Verdict::Valid`] is an answer; another try
//!   is the caller's, at most [`MAX_TRIES`];
//! - **refused** ([`SchemaError`]): by keyword and place.
//!
//! A finished text is judged in both cases. Keywords that constrain nothing where they stand (another draft's, unknown
//! formats, misspelt ones) don't refuse and aren't dropped in silence: [`Schema::remarks`] names each.
//!
//! # What comes out
//! - **Order.** Properties come in the order of the schema's text, `properties` of the schema itself before those of
//!   its `allOf`, `anyOf`, … and references; then required names that are not declared, in the order of `required`; then
//!   free keys, in any order.
//! - **Blanks.** [`Whitespace::Compact`] writes none; see there for the others.
//! - **Strings.** Fixed strings and keys have one spelling: `\" \\ \n \r \t \b \f`, other control characters as
//!   `\u001f`, everything else as it is. Other strings have the same, and in open mode `\u00..` for control characters.
//! - **Numbers.** Declared mode: whole numbers of at most 18 digits without fraction, others of at most 9 + 6 digits,
//!   no exponents, no `-0`. Open mode: up to 100 digits on either side of the point, `1.0` where 1 is allowed, exponents
//!   of two digits where only the sign is bounded.
//!
//! The same schema and options give the same grammar in every run.
//!
//! # Modes
//! [`Mode::Declared`] generates the properties that an object declares (`properties`, `patternProperties`, a schema in
//! `additionalProperties`) and undeclared ones that `required` or `minProperties` ask for; an object that declares
//! nothing is free. [`Mode::Open`] allows what the schema allows. Both are sound; the first is narrower.
//!
//! # What decides
//! Formats are asserted in every draft ([list](SchemaOptions)). Numbers are compared as decimals. `pattern` is ECMA 262.
//! References stay within the schema and the drafts' own schemas; nothing is fetched.
//!
//! ```
//! use schema::schema::{Exactness, Schema, SchemaOptions, Verdict};
//!
//! let schema = Schema::parse(
//!     r#"{"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}"#,
//!     &SchemaOptions::default(),
//! )?;
//! assert_eq!(schema.exactness(), &Exactness::ByGrammar);
//! assert!(schema.matches(r#"{"n":7}"#));
//! assert!(!schema.matches(r#"{"n":0}"#));
//! assert_eq!(schema.judge(r#"{"n":7}"#), Verdict::Valid);
//! let error = Schema::parse(r#"{"type": "string", "pattern": "(?i)a"}"#, &SchemaOptions::default()).unwrap_err();
//! assert_eq!((error.keyword.as_str(), error.pointer.as_str()), ("pattern", ""));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod constraint;
mod decimal;
mod emit;
mod error;
mod formats;
mod json;
mod judge;
mod limits;
mod numbers;
mod pattern;
mod read;
mod shape;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use llguidance::api::GrammarInit;

pub use constraint::{ConstraintError, ConstraintState, SchemaConstraint, TokenMask, TokenRole, Vocabulary};
pub use error::{Place, Remark, SchemaError, SchemaErrorKind};
pub use limits::SchemaLimits;

use json::Json;
use judge::Judge;
use read::Table;

/// Most answers that are generated for one request whose schema is exact by validation only.
pub const MAX_TRIES: usize = 4;

/// Which of the values that a schema allows are generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Objects have their declared properties, and others only where the schema asks for them.
    #[default]
    Declared,
    /// All of them.
    Open,
}

/// Blanks between the tokens of the JSON text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Whitespace {
    /// None.
    #[default]
    Compact,
    /// One may follow `:` and `,`.
    OptionalBlank,
    /// Up to 64 blanks, tabs and line ends around `{ } [ ] : ,`.
    Flexible,
}

/// How schemas are read and written down.
///
/// Formats that are asserted: `date`, `time`, `date-time`, `duration`, `email`, `idn-email`, `hostname`,
/// `idn-hostname` (its ASCII names), `ipv4`, `ipv6`, `uuid`, `uri`, `uri-reference`, `iri`, `iri-reference`,
/// `uri-template`, `json-pointer`, `relative-json-pointer`, `regex` (by validation).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SchemaOptions {
    /// Which values.
    pub mode: Mode,
    /// Blanks.
    pub whitespace: Whitespace,
    /// Bounds.
    pub limits: SchemaLimits,
}

impl SchemaOptions {
    /// The same with another mode.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// The same with other blanks.
    #[must_use]
    pub fn whitespace(mut self, whitespace: Whitespace) -> Self {
        self.whitespace = whitespace;
        self
    }
}

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
    /// The validator gave up at its limits; that is no valid answer.
    Undecided {
        /// Where.
        #[serde(flatten)]
        place: Place,
    },
}

/// A schema that can be answered. Cheap to clone.
#[derive(Clone)]
pub struct Schema(Arc<Inner>);

struct Inner {
    table: Table,
    options: SchemaOptions,
    exactness: Exactness,
    grammar: GrammarInit,
}

impl Schema {
    /// Reads a schema's text.
    ///
    /// # Errors
    /// [`SchemaError`] with keyword and place.
    pub fn parse(text: &str, options: &SchemaOptions) -> Result<Self, SchemaError> {
        let limits = &options.limits;
        if text.len() > limits.max_text_bytes {
            let (bytes, max) = (text.len() as u64, limits.max_text_bytes as u64);
            return Err(SchemaError::too_large("", "(schema)", "bytes", bytes, max));
        }
        let json = Json::parse(text, limits.max_depth + 1);
        Self::build(&json.map_err(not_json)?, options)
    }

    /// Takes a schema that is read already. Its numbers are what that reader kept: prefer [`Self::parse`].
    ///
    /// # Errors
    /// [`SchemaError`] with keyword and place.
    pub fn from_value(value: &serde_json::Value, options: &SchemaOptions) -> Result<Self, SchemaError> {
        let json = Json::from_value(value, options.limits.max_depth + 1);
        Self::build(&json.map_err(not_json)?, options)
    }

    fn build(json: &Json, options: &SchemaOptions) -> Result<Self, SchemaError> {
        let table = read::read(json, &options.limits)?;
        let shapes = shape::Shaper::new(&table, &options.limits, options.mode).run()?;
        let grammar = emit::emit(&shapes, options.mode, options.whitespace, &options.limits)?;
        let exactness = if shapes.inexact.is_empty() {
            Exactness::ByGrammar
        } else {
            Exactness::ByValidation { keywords: shapes.inexact.into_iter().collect() }
        };
        Ok(Self(Arc::new(Inner { table, options: options.clone(), exactness, grammar })))
    }

    /// What makes an answer right.
    #[must_use]
    pub fn exactness(&self) -> &Exactness {
        &self.0.exactness
    }

    /// Keywords that constrain nothing, by name and place.
    #[must_use]
    pub fn remarks(&self) -> &[Remark] {
        &self.0.table.remarks
    }

    /// The options that it was read with.
    #[must_use]
    pub fn options(&self) -> &SchemaOptions {
        &self.0.options
    }

    /// Decides a whole text: JSON without a key twice that the schema allows. The grammar has no part in it.
    #[must_use]
    pub fn judge(&self, text: &str) -> Verdict {
        let limits = &self.0.options.limits;
        if text.len() > limits.max_answer_bytes {
            return Verdict::NotJson {
                problem: format!("{} bytes are over the limit of {}", text.len(), limits.max_answer_bytes),
            };
        }
        // Deeper than schemas: recursion makes deep answers of shallow schemas.
        match Json::parse(text, MAX_ANSWER_DEPTH) {
            Ok(value) => {
                let mut judge = Judge::new(&self.0.table, limits.max_validation_steps);
                match judge.holds(0, &value) {
                    Ok(true) => Verdict::Valid,
                    Ok(false) => match judge.failure() {
                        Some(failure) => {
                            Verdict::Invalid { place: failure.place.clone(), instance: failure.instance.clone() }
                        }
                        None => Verdict::Invalid {
                            place: Place { keyword: "(schema)".into(), pointer: String::new() },
                            instance: String::new(),
                        },
                    },
                    Err(undecided) => Verdict::Undecided { place: undecided.place },
                }
            }
            Err(error) => Verdict::NotJson { problem: format!("at '{}': {}", error.pointer, error.problem) },
        }
    }

    /// The text can come out as an answer: the grammar lets it through and the verdict is valid.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        self.grammar_accepts(text) && self.judge(text) == Verdict::Valid
    }

    /// The grammar alone lets the text through.
    #[must_use]
    pub fn grammar_accepts(&self, text: &str) -> bool {
        let Ok(mut constraint) = self.constraint(Vocabulary::bytes()) else { return false };
        constraint.accepts_text(text)
    }

    /// Puts the schema to use with a vocabulary.
    ///
    /// # Errors
    /// [`SchemaError`] of kind [`SchemaErrorKind::Engine`] when the grammar is beyond the engine's limits.
    pub fn constraint(&self, vocabulary: &Vocabulary) -> Result<SchemaConstraint, SchemaError> {
        SchemaConstraint::new(self.clone(), vocabulary)
    }

    fn grammar(&self) -> GrammarInit {
        self.0.grammar.clone()
    }
}

/// Depth of an answer.
const MAX_ANSWER_DEPTH: usize = 200;

fn not_json(error: json::JsonError) -> SchemaError {
    SchemaError::new(
        SchemaErrorKind::Json,
        &error.pointer,
        "(schema)",
        format!("is not JSON as it is read here: {}", error.problem),
    )
}

impl std::fmt::Debug for Schema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Schema")
            .field("options", &self.0.options)
            .field("exactness", &self.0.exactness)
            .finish_non_exhaustive()
    }
}
