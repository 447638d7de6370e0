//! Errors of registries and calls.

use crate::schema::SchemaError;

/// Why a tool registry cannot be used. A `pointer` is a JSON pointer into the registry.
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
    /// Not TOML.
    #[error("tool registry, TOML: {0}")]
    Toml(#[from] Box<toml::de::Error>),
    /// Not JSON, a key twice, or a number beyond the limits.
    #[error("tool registry at '{pointer}': not JSON as it is read here: {problem}")]
    Json {
        /// Where.
        pointer: String,
        /// Why.
        problem: String,
    },
    /// The document is not a list of tools, or one of them is not a tool.
    #[error("tool registry at '{pointer}': {problem}")]
    Tool {
        /// Where.
        pointer: String,
        /// Why.
        problem: String,
    },
    /// No tools.
    #[error("tool registry: it has no tools; add at least one")]
    Empty,
    /// Too many tools for one call's grammar.
    #[error("tool registry: {tools} tools are over the limit of {max}")]
    TooMany {
        /// How many.
        tools: usize,
        /// The limit.
        max: usize,
    },
    /// A name that is not a tool's.
    #[error(
        "tool registry at '{pointer}': '{name}' is not a tool's name; use 1 to 128 of a-z, A-Z, 0-9, '_', '-' and '.'"
    )]
    BadName {
        /// Where.
        pointer: String,
        /// The name.
        name: String,
    },
    /// Two tools of one name.
    #[error("tool registry at '{pointer}': tool '{name}' is listed twice; rename or remove one")]
    DuplicateTool {
        /// Where the second one is.
        pointer: String,
        /// The name.
        name: String,
    },
    /// The parameters' schema cannot be answered.
    #[error("tool registry: parameters of '{tool}' (at '{pointer}'): {source}")]
    Parameters {
        /// The tool.
        tool: String,
        /// Where its schema is.
        pointer: String,
        /// Why.
        source: Box<SchemaError>,
    },
    /// All tools together are beyond a limit.
    #[error("tool registry: all tools together: {0}")]
    Together(Box<SchemaError>),
}

/// Why a text is not a call of one of the tools.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// Not one JSON text, or a key twice.
    #[error("tool call: not JSON: {problem}")]
    Json {
        /// Why.
        problem: String,
    },
    /// Not what the registry's schema says.
    #[error("tool call, at '{pointer}': {problem}")]
    Invalid {
        /// JSON pointer into the call.
        pointer: String,
        /// The validator's reason.
        problem: String,
    },
}
