//! Errors of schemas, registries and calls.

use crate::GrammarError;

/// Why a JSON Schema cannot be turned into a grammar. `pointer` is a JSON pointer into the schema.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// A keyword that is unknown or has no exact grammar.
    #[error("schema at '{pointer}': '{keyword}' cannot be expressed exactly; {hint}")]
    Unsupported {
        /// Where.
        pointer: String,
        /// The keyword.
        keyword: String,
        /// What to do instead.
        hint: String,
    },
    /// A keyword whose value breaks JSON Schema itself.
    #[error("schema at '{pointer}': '{keyword}' {problem}")]
    Malformed {
        /// Where.
        pointer: String,
        /// The keyword.
        keyword: String,
        /// What is wrong.
        problem: String,
    },
    /// No value, or none that this conversion can produce, satisfies the schema.
    #[error("schema at '{pointer}': no value fits: {problem}")]
    Unsatisfiable {
        /// Where.
        pointer: String,
        /// What is contradictory.
        problem: String,
    },
    /// Two branches of `oneOf` that could both match.
    #[error(
        "schema at '{pointer}': branches {first} and {second} of 'oneOf' are not provably different; give them \
         different types, different constants, or a required property with different constants, or use 'anyOf'"
    )]
    Overlap {
        /// Where.
        pointer: String,
        /// Index of the first branch.
        first: usize,
        /// Index of the second branch.
        second: usize,
    },
    /// A reference that leads back to itself.
    #[error("schema at '{pointer}': '{reference}' refers to itself; references must not form a cycle")]
    Cycle {
        /// Where.
        pointer: String,
        /// The reference.
        reference: String,
    },
    /// A reference to nothing, or outside the schema.
    #[error("schema at '{pointer}': '{reference}' is no place in this schema; only '#/…' is followed")]
    UnknownReference {
        /// Where.
        pointer: String,
        /// The reference.
        reference: String,
    },
    /// A `pattern` outside the supported regular expressions.
    #[error("schema at '{pointer}': pattern, character {at}: {problem}")]
    Pattern {
        /// Where.
        pointer: String,
        /// Character of the pattern, from 1.
        at: usize,
        /// What is not supported, and what is.
        problem: String,
    },
    /// The schema, or its grammar, is too large.
    #[error("schema at '{pointer}': {what}: {value} is over the limit of {max}")]
    TooLarge {
        /// Where.
        pointer: String,
        /// What was counted.
        what: &'static str,
        /// The value.
        value: u64,
        /// The limit.
        max: u64,
    },
    /// The grammar of the schema exceeds a limit of grammars.
    #[error("the schema's grammar is not usable: {0}")]
    Grammar(#[from] GrammarError),
}

/// Why a tool registry cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// The file cannot be read.
    #[error("tool registry {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file name says neither TOML nor JSON.
    #[error("tool registry {path}: unknown kind of file; name it .toml or .json")]
    UnknownFormat {
        /// The file.
        path: String,
    },
    /// The text is larger than a registry may be.
    #[error("tool registry: {bytes} bytes are over the limit of {max}")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// Not TOML, or fields that do not belong.
    #[error("tool registry, TOML: {0}")]
    Toml(#[from] Box<toml::de::Error>),
    /// Not JSON, or fields that do not belong.
    #[error("tool registry, JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// No tools.
    #[error("tool registry: it has no tools; add at least one")]
    Empty,
    /// A name that is no tool name.
    #[error("tool registry: '{name}' is no tool name; use 1 to 64 of a-z, A-Z, 0-9, '_' and '-'")]
    BadName {
        /// The name.
        name: String,
    },
    /// Two tools of one name.
    #[error("tool registry: tool '{name}' is listed twice; rename or remove one")]
    DuplicateTool {
        /// The name.
        name: String,
    },
    /// The parameters' schema cannot become a grammar.
    #[error("tool registry: parameters of '{tool}': {source}")]
    Parameters {
        /// The tool.
        tool: String,
        /// Why.
        source: SchemaError,
    },
    /// The grammar of all tools together cannot be used.
    #[error("tool registry: all tools together: {0}")]
    Together(SchemaError),
    /// The independent validator does not take the schema.
    #[error("tool registry: the schema validator refuses the registry's schema: {0}")]
    Validator(String),
}

/// Why a text is not a call of one of the tools.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// Not one JSON text.
    #[error("tool call: not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// Not what the registry's schema says.
    #[error("tool call, at '{pointer}': {problem}")]
    Invalid {
        /// JSON pointer into the call.
        pointer: String,
        /// The validator's reason.
        problem: String,
    },
}
