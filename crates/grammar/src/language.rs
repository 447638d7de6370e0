//! What a model may write, whatever says so.
//!
//! A [`Language`] is a GBNF grammar or a JSON Schema; [`TokenMatcher`] is one of them at work.

use std::sync::Arc;

use crate::gbnf::{Grammar, GrammarState, MatchError, Matcher, TokenMask, TokenTrie};
use crate::matching::TokenMatcher;
use crate::schema::Schema;

/// What a text has to be. Cheap to clone.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Language {
    /// A sentence of a GBNF grammar, matched by this crate.
    Gbnf(Grammar),
    /// A value of a JSON Schema, matched by llguidance and judged by this crate.
    Schema(Schema),
}

impl Language {
    /// A matcher at the start of a text in the tokens of `trie`.
    ///
    /// # Errors
    /// [`MatchError::Engine`] for a schema that is beyond the engine's limits with this vocabulary.
    pub fn matcher(&self, trie: &TokenTrie) -> Result<Box<dyn TokenMatcher>, MatchError> {
        Ok(match self {
            Self::Gbnf(grammar) => Box::new(GbnfMatcher { matcher: grammar.matcher(), trie: trie.clone() }),
            Self::Schema(schema) => Box::new(schema.matcher(trie)?),
        })
    }

    /// The whole of `text` can come out as it is.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        match self {
            Self::Gbnf(grammar) => grammar.matches(text.as_bytes()),
            Self::Schema(schema) => schema.matches(text),
        }
    }

    /// The schema, where it is one.
    #[must_use]
    pub fn schema(&self) -> Option<&Schema> {
        match self {
            Self::Gbnf(_) => None,
            Self::Schema(schema) => Some(schema),
        }
    }
}

impl From<Grammar> for Language {
    fn from(grammar: Grammar) -> Self {
        Self::Gbnf(grammar)
    }
}

impl From<Schema> for Language {
    fn from(schema: Schema) -> Self {
        Self::Schema(schema)
    }
}

struct GbnfMatcher {
    matcher: Matcher,
    trie: TokenTrie,
}

impl TokenMatcher for GbnfMatcher {
    fn mask(&mut self) -> Result<Arc<TokenMask>, MatchError> {
        self.matcher.mask(&self.trie)
    }

    fn accept(&mut self, token: u32) -> Result<GrammarState, MatchError> {
        self.matcher.accept_token(&self.trie, token)
    }

    fn state(&self) -> GrammarState {
        self.matcher.state()
    }

    fn reset(&mut self) {
        self.matcher.reset();
    }
}
