//! A schema, ready to be answered.

use std::sync::Arc;

use llguidance::api::GrammarInit;

use super::error::{Place, Remark, SchemaError, SchemaErrorKind};
use super::json::{Json, JsonError};
use super::judge::Judge;
use super::options::SchemaOptions;
use super::read::{Table, kind};
use super::verdict::{Exactness, Verdict};
use super::{emit, read, shape};
use crate::engine::EngineVocabulary;

/// Most answers that are generated for one request whose schema is exact by validation only.
pub const MAX_TRIES: usize = 4;

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
        Self::of_table(read::read(json, &options.limits)?, options, kind::ALL)
    }

    /// A schema of a call's arguments, which have names.
    pub(crate) fn of_arguments(json: &Json, options: &SchemaOptions) -> Result<Self, SchemaError> {
        Self::of_table(read::read(json, &options.limits)?, options, kind::OBJECT)
    }

    /// `{"tool": name, "arguments": {…}}` for one of the tools, the keys in this order in every mode.
    pub(crate) fn of_calls(tools: &[(String, Json)], options: &SchemaOptions) -> Result<Self, SchemaError> {
        let text = |text: &str| Json::String(text.to_owned());
        let object = |fields: Vec<(&str, Json)>| {
            Json::Object(fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
        };
        let address = |name: &str| format!("tool:{name}");
        let calls = tools.iter().map(|(name, _)| {
            let arguments = object(vec![("type", text("object")), ("$ref", text(&address(name)))]);
            object(vec![
                ("type", text("object")),
                ("properties", object(vec![("tool", object(vec![("const", text(name))])), ("arguments", arguments)])),
                ("required", Json::Array(vec![text("tool"), text("arguments")])),
                ("additionalProperties", Json::Bool(false)),
            ])
        });
        let root = object(vec![("anyOf", Json::Array(calls.collect()))]);
        let others: Vec<(String, &Json)> = tools.iter().map(|(name, schema)| (address(name), schema)).collect();
        Self::of_table(read::read_all(&root, &others, &options.limits)?, options, kind::OBJECT)
    }

    fn of_table(table: Table, options: &SchemaOptions, kinds: u8) -> Result<Self, SchemaError> {
        let shapes = shape::Shaper::new(&table, &options.limits, options.mode).run(kinds)?;
        let grammar = emit::emit(&shapes, options.mode, options.whitespace, &options.limits)?;
        let exactness = if shapes.inexact.is_empty() {
            Exactness::ByGrammar
        } else {
            Exactness::ByValidation { keywords: shapes.inexact.into_iter().collect() }
        };
        // What the engine makes of it is known now, not at the first answer.
        EngineVocabulary::bytes().matcher(grammar.clone()).map_err(|problem| {
            let reason = format!("is beyond the grammar engine's limits: {problem}");
            SchemaError::new(SchemaErrorKind::Engine, "", "(schema)", reason)
        })?;
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
        crate::engine::accepts(self.grammar(), text.as_bytes())
    }

    pub(super) fn grammar(&self) -> GrammarInit {
        self.0.grammar.clone()
    }
}

/// Depth of an answer.
pub(crate) const MAX_ANSWER_DEPTH: usize = 200;

fn not_json(error: JsonError) -> SchemaError {
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
