//! Errors and remarks of schemas.

/// Why a schema is refused. `keyword` and `pointer` (a JSON pointer into the schema) say where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("schema at '{pointer}': '{keyword}' {reason}")]
#[non_exhaustive]
pub struct SchemaError {
    /// What sort of problem it is.
    pub kind: SchemaErrorKind,
    /// The keyword, or `(schema)` and the like where no keyword is at fault.
    pub keyword: String,
    /// The schema object that holds the keyword.
    pub pointer: String,
    /// What is wrong, and what to do.
    pub reason: String,
}

/// Sorts of [`SchemaError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SchemaErrorKind {
    /// The text is no JSON, or says one thing twice.
    Json,
    /// The keyword's value breaks JSON Schema.
    Malformed,
    /// Neither a grammar nor the validator can decide the keyword.
    Unsupported,
    /// No value fits.
    Unsatisfiable,
    /// A reference to nothing, to another document, or to itself.
    Reference,
    /// Beyond a limit.
    TooLarge,
    /// The grammar engine gave up.
    Engine,
}

impl SchemaError {
    pub(crate) fn new(kind: SchemaErrorKind, pointer: &str, keyword: &str, reason: impl Into<String>) -> Self {
        let short =
            |s: &str| if s.chars().count() > 300 { s.chars().take(300).chain(['…']).collect() } else { s.to_owned() };
        Self { kind, keyword: short(keyword), pointer: short(pointer), reason: short(&reason.into()) }
    }

    pub(crate) fn malformed(pointer: &str, keyword: &str, reason: impl Into<String>) -> Self {
        Self::new(SchemaErrorKind::Malformed, pointer, keyword, reason)
    }

    pub(crate) fn too_large(pointer: &str, keyword: &str, what: &str, value: u64, max: u64) -> Self {
        Self::new(SchemaErrorKind::TooLarge, pointer, keyword, format!("{what}: {value} is over the limit of {max}"))
    }
}

/// A keyword and its place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct Place {
    /// The keyword.
    pub keyword: String,
    /// JSON pointer of the schema object that holds it.
    pub pointer: String,
}

impl std::fmt::Display for Remark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "'{}' at '{}' {}", self.place.keyword, self.place.pointer, self.reason)
    }
}

impl Remark {
    pub(crate) fn new(keyword: &str, pointer: &str, reason: &str) -> Self {
        let keyword = keyword.chars().take(80).collect();
        Self { place: Place { keyword, pointer: pointer.to_owned() }, reason: reason.to_owned() }
    }
}

/// Something that the schema says and that has no effect on the output: it is named, never dropped in silence.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[non_exhaustive]
pub struct Remark {
    /// Where.
    #[serde(flatten)]
    pub place: Place,
    /// Why it has no effect.
    pub reason: String,
}
