//! Constrained generation: a matcher outside the engine decides. The engine's own grammar is the tests' oracle
//! (`tests/engine_grammar/`), not a second opinion in the product.

use std::sync::Arc;

use crate::Error;
use crate::ids::TokenId;
use crate::model::Model;
use grammar::schema::Verdict;
use grammar::{GrammarState, Language, TokenMask, TokenMatcher, TokenRole, TokenTrie};

/// The texts of a model's vocabulary, for masks; built once per model.
///
/// # Errors
/// The engine's errors, and [`Error::Sampler`] for vocabularies beyond the trie's limits.
pub fn vocabulary_trie(model: &Model) -> Result<TokenTrie, Error> {
    let mut texts = Vec::with_capacity(model.n_vocab() as usize);
    for id in 0..model.n_vocab() {
        let token = model.token(i32::try_from(id).unwrap_or(i32::MAX))?;
        let control = model.is_control(token);
        let end = model.is_end_of_generation(token);
        texts.push((if control || end { Vec::new() } else { model.token_bytes(token, false)? }, end));
    }
    let roles = texts.iter().map(|(text, end)| match (end, text.is_empty()) {
        (true, _) => TokenRole::End,
        (false, true) => TokenRole::Excluded,
        (false, false) => TokenRole::Text(text),
    });
    TokenTrie::build(roles).map_err(|e| Error::Sampler(e.to_string()))
}

/// A grammar or a schema in use. Each sampled token is accepted once.
pub struct Constraint {
    matcher: Box<dyn TokenMatcher>,
}

impl Constraint {
    /// Puts `language` to use with `model`; `trie` is the model's [`vocabulary_trie`].
    ///
    /// # Errors
    /// [`Error::Sampler`] when the tree belongs to another vocabulary, or a schema is beyond the limits of its engine.
    pub fn new(model: &Model, language: &Language, trie: &TokenTrie) -> Result<Self, Error> {
        if trie.vocabulary_len() != model.n_vocab() as usize {
            return Err(Error::Sampler("the token tree belongs to another model".into()));
        }
        let matcher = language.matcher(trie).map_err(|e| Error::Sampler(e.to_string()))?;
        Ok(Self { matcher })
    }

    /// Back to the start of the text, for another output of the same grammar. Masks that were computed stay known.
    pub fn reset(&mut self) {
        self.matcher.reset();
    }

    /// The tokens allowed next.
    ///
    /// # Errors
    /// [`Error::Sampler`] repeats the first error of this constraint.
    pub fn mask(&mut self) -> Result<Arc<TokenMask>, Error> {
        self.matcher.mask().map_err(|e| Error::Sampler(e.to_string()))
    }

    /// Takes one token.
    ///
    /// # Errors
    /// [`Error::Sampler`] when the grammar forbids it.
    pub fn accept(&mut self, token: TokenId) -> Result<GrammarState, Error> {
        let id = u32::try_from(token.get()).unwrap_or(u32::MAX);
        self.matcher.accept(id).map_err(|e| Error::Sampler(e.to_string()))
    }

    /// Where the text stands in the grammar.
    pub fn state(&self) -> GrammarState {
        self.matcher.state()
    }

    /// What the text is by its schema; `None` without one.
    pub fn verdict(&self) -> Option<Verdict> {
        self.matcher.verdict()
    }
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").field("state", &self.state()).finish_non_exhaustive()
    }
}
