//! How schemas are read and written down.

use super::limits::SchemaLimits;

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
