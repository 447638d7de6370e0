//! Errors of grammars, matchers and vocabularies.

use std::fmt;

use super::limits::GrammarLimit;

/// A place in a grammar text; both numbers count from 1, columns in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Line.
    pub line: usize,
    /// Column, in characters.
    pub column: usize,
}

impl Position {
    /// The place of byte `offset` in `text`.
    pub(super) fn of(text: &str, offset: usize) -> Self {
        let before = &text.as_bytes()[..offset.min(text.len())];
        let start = before.iter().rposition(|&b| b == b'\n').map_or(0, |i| i + 1);
        let line = before[..start].iter().filter(|&&b| b == b'\n').count() + 1;
        // Count characters by their first bytes.
        let column = before[start..].iter().filter(|&&b| b & 0xC0 != 0x80).count() + 1;
        Self { line, column }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// Why a text is not a usable grammar.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// The text is not GBNF.
    #[error("grammar, {at}: expected {expected}, found {found}")]
    Syntax {
        /// Where.
        at: Position,
        /// What could have stood there.
        expected: &'static str,
        /// What stands there.
        found: String,
    },
    /// A character that no generated text can contain.
    #[error("grammar, {at}: {what} can never be generated; remove it")]
    ImpossibleCharacter {
        /// Where.
        at: Position,
        /// The character or class.
        what: String,
    },
    /// A reversed range: `[z-a]` or `{3,1}`.
    #[error("grammar, {at}: {what} is reversed; put the smaller bound first")]
    ReversedRange {
        /// Where.
        at: Position,
        /// The range.
        what: String,
    },
    /// A rule is used but not defined.
    #[error("grammar, {at}: rule '{name}' is not defined; define it or correct the name")]
    UndefinedRule {
        /// The rule.
        name: String,
        /// Where it is first used.
        at: Position,
    },
    /// A rule is defined twice; the engine would silently keep the last definition.
    #[error("grammar, {at}: rule '{name}' is already defined at {first}; remove one")]
    DuplicateRule {
        /// The rule.
        name: String,
        /// The second definition.
        at: Position,
        /// The first definition.
        first: Position,
    },
    /// The asked-for root rule is not defined.
    #[error("grammar: no rule '{root}' to start from; defined: {defined}")]
    MissingRoot {
        /// The asked-for root.
        root: String,
        /// The defined rules.
        defined: String,
    },
    /// A rule can begin with itself.
    #[error(
        "grammar, {at}: left recursion: {cycle}; let the rule begin with something else (write \
         'd (\"+\" d)*' for 'e \"+\" d | d')"
    )]
    LeftRecursion {
        /// Definition of the first rule of the cycle.
        at: Position,
        /// The rules of the cycle, as `a -> b -> a`.
        cycle: String,
    },
    /// A repeated item may be empty.
    #[error(
        "grammar, {at}: in rule '{rule}' an item that may be empty is repeated; repeat its \
         non-empty part instead ('x*' for '(x?)*')"
    )]
    EmptyRepetition {
        /// The rule.
        rule: String,
        /// The repeated item.
        at: Position,
    },
    /// A rule has no finite text.
    #[error("grammar, {at}: rule '{rule}' can never finish; give it an alternative that ends")]
    NeverFinishes {
        /// The rule.
        rule: String,
        /// Its definition.
        at: Position,
    },
    /// One of the [`GrammarLimits`](super::GrammarLimits) is exceeded.
    #[error("grammar, {at}: {limit}: {value} is over the limit of {max}")]
    Limit {
        /// Which limit.
        limit: GrammarLimit,
        /// The value, or a lower bound of it.
        value: u64,
        /// The limit's value.
        max: u64,
        /// Where.
        at: Position,
    },
}

/// Why a matcher does not go on. After the first such error every further call repeats it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MatchError {
    /// The grammar has no continuation with this byte.
    #[error("byte {byte:#04x} at offset {offset} does not continue the grammar")]
    Rejected {
        /// Bytes accepted before.
        offset: u64,
        /// The byte.
        byte: u8,
    },
    /// The byte does not continue or begin a UTF-8 sequence.
    #[error("byte {byte:#04x} at offset {offset} is not UTF-8")]
    InvalidUtf8 {
        /// Bytes accepted before.
        offset: u64,
        /// The byte.
        byte: u8,
    },
    /// An end-of-generation token came before the grammar was satisfied.
    #[error("end of generation after {offset} bytes, but the grammar is not complete")]
    EndTooEarly {
        /// Bytes accepted before.
        offset: u64,
    },
    /// Something came after an end-of-generation token.
    #[error("the text has already ended; reset the matcher to start another")]
    AlreadyEnded,
    /// A control, unused or empty token, which never continues a constrained text.
    #[error("token {token} carries no text and cannot continue a constrained text")]
    NotText {
        /// The token.
        token: u32,
    },
    /// A token whose text would leave a cut character that the engine's matcher refuses.
    #[error("token {token} ends in a cut character that no continuation is certain to fit")]
    CutCharacter {
        /// The token.
        token: u32,
    },
    /// A token outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocabulary} tokens")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Number of tokens.
        vocabulary: u32,
    },
    /// One of the [`GrammarLimits`](super::GrammarLimits) on matching is exceeded.
    #[error("{limit}: over the limit of {max} after {offset} bytes")]
    Limit {
        /// Which limit.
        limit: GrammarLimit,
        /// The limit's value.
        max: u64,
        /// Bytes accepted before.
        offset: u64,
    },
    /// A token that a schema's grammar forbids here.
    #[error("token {token} after {offset} bytes does not continue the schema's grammar")]
    Forbidden {
        /// The token.
        token: u32,
        /// Bytes accepted before.
        offset: u64,
    },
    /// The engine of schemas came to one of its limits.
    #[error("the grammar engine gave up: {problem}")]
    Engine {
        /// What it said.
        problem: String,
    },
}

/// Why a vocabulary cannot be turned into a [`TokenTrie`](super::TokenTrie).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VocabularyError {
    /// A token's text is too long.
    #[error("token {token}: text of {len} bytes is over the limit of {max}")]
    TokenTooLong {
        /// The token.
        token: u32,
        /// Its length in bytes.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// More tokens, or more text, than token ids and trie nodes can number.
    #[error("vocabulary of {what} is over the limit of {max}")]
    TooLarge {
        /// What was counted.
        what: &'static str,
        /// The limit.
        max: u64,
    },
}

/// Keeps a message readable whatever was put into the grammar.
pub(super) fn shorten(text: &str) -> String {
    const MAX: usize = 120;
    if text.chars().count() <= MAX {
        return text.to_owned();
    }
    let mut out: String = text.chars().take(MAX).collect();
    out.push('…');
    out
}
