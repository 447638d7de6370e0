//! A schema in use: masks over a vocabulary, one accepted token after the other.

use std::fmt;
use std::sync::Arc;

use llguidance::Matcher;
use llguidance::api::StopReason;

use super::front::Schema;
use super::verdict::Verdict;
use crate::gbnf::{GrammarState, MatchError, TokenMask, TokenTrie};
use crate::matching::TokenMatcher;

fn engine(problem: &dyn fmt::Display) -> MatchError {
    MatchError::Engine { problem: problem.to_string().chars().take(300).collect() }
}

/// A schema at work on one text; made by [`Schema::matcher`].
pub struct SchemaMatcher {
    schema: Schema,
    trie: TokenTrie,
    fresh: Matcher,
    matcher: Matcher,
    text: Vec<u8>,
    state: GrammarState,
    error: Option<MatchError>,
    /// The mask of this place, once it was asked for.
    mask: Option<Arc<TokenMask>>,
}

impl Schema {
    /// A matcher at the start of a text in the tokens of `trie`.
    ///
    /// # Errors
    /// [`MatchError::Engine`] when the grammar is beyond the engine's limits.
    pub fn matcher(&self, trie: &TokenTrie) -> Result<SchemaMatcher, MatchError> {
        SchemaMatcher::new(self.clone(), trie)
    }
}

impl SchemaMatcher {
    fn new(schema: Schema, trie: &TokenTrie) -> Result<Self, MatchError> {
        let fresh = trie.engine().and_then(|engine| engine.matcher(schema.grammar())).map_err(|e| engine(&e))?;
        let matcher = fresh.clone();
        let mut this = Self {
            schema,
            trie: trie.clone(),
            fresh,
            matcher,
            text: Vec::new(),
            state: GrammarState::Active,
            error: None,
            mask: None,
        };
        this.update();
        match this.error.take() {
            Some(error) => Err(error),
            None => Ok(this),
        }
    }

    /// The schema.
    #[must_use]
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// What was accepted so far.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    fn fail<T>(&mut self, error: MatchError) -> Result<T, MatchError> {
        self.state = GrammarState::Failed;
        self.error = Some(error.clone());
        Err(error)
    }

    fn update(&mut self) {
        self.state = if self.matcher.is_stopped() {
            match self.matcher.stop_reason() {
                StopReason::NoExtension | StopReason::NoExtensionBias => GrammarState::Complete,
                StopReason::EndOfSentence => GrammarState::Ended,
                _ => GrammarState::Failed,
            }
        } else {
            match self.matcher.is_accepting() {
                Ok(true) => GrammarState::MayEnd,
                Ok(false) => GrammarState::Active,
                Err(_) => GrammarState::Failed,
            }
        };
        if self.state == GrammarState::Failed && self.error.is_none() {
            let problem = self.matcher.get_error().unwrap_or_else(|| self.matcher.stop_reason().to_string());
            self.error = Some(engine(&problem));
        }
    }

    fn check_open(&self) -> Result<(), MatchError> {
        match (&self.error, self.state) {
            (Some(error), _) => Err(error.clone()),
            (None, GrammarState::Ended) => Err(MatchError::AlreadyEnded),
            _ => Ok(()),
        }
    }

    /// The text is a sentence of the grammar.
    fn may_end(&self) -> bool {
        matches!(self.state, GrammarState::MayEnd | GrammarState::Complete | GrammarState::Ended)
    }

    fn offset(&self) -> u64 {
        self.text.len() as u64
    }
}

impl TokenMatcher for SchemaMatcher {
    fn mask(&mut self) -> Result<Arc<TokenMask>, MatchError> {
        self.check_open()?;
        if let Some(mask) = &self.mask {
            return Ok(Arc::clone(mask));
        }
        let len = self.trie.vocabulary_len();
        let mask = if self.state == GrammarState::Complete {
            let mut mask = TokenMask::none(len);
            self.trie.ends().iter().for_each(|&token| mask.allow(token));
            mask
        } else {
            match self.matcher.compute_mask() {
                Ok(set) => TokenMask::of_words(set.as_slice(), len),
                // Nothing of this vocabulary continues the text: an empty mask, as the other matcher has it.
                Err(error) if error.to_string().contains("NoExtensionBias") => TokenMask::none(len),
                Err(error) => return self.fail(engine(&error)),
            }
        };
        let mask = Arc::new(mask);
        self.mask = Some(Arc::clone(&mask));
        Ok(mask)
    }

    fn accept(&mut self, token: u32) -> Result<GrammarState, MatchError> {
        self.check_open()?;
        self.mask = None;
        let Some(text) = self.trie.text(token) else {
            let vocabulary = u32::try_from(self.trie.vocabulary_len()).unwrap_or(u32::MAX);
            return self.fail(MatchError::UnknownToken { token, vocabulary });
        };
        if self.trie.is_end(token) {
            if !self.may_end() {
                return self.fail(MatchError::EndTooEarly { offset: self.offset() });
            }
            self.state = GrammarState::Ended;
            return Ok(self.state);
        }
        if text.is_empty() {
            return self.fail(MatchError::NotText { token });
        }
        let offset = self.offset();
        if self.state == GrammarState::Complete {
            return self.fail(MatchError::Forbidden { token, offset });
        }
        match self.matcher.validate_tokens(&[token]) {
            Ok(1) => {}
            Ok(_) => return self.fail(MatchError::Forbidden { token, offset }),
            Err(error) => return self.fail(engine(&error)),
        }
        if let Err(error) = self.matcher.consume_token(token) {
            return self.fail(engine(&error));
        }
        self.text.extend_from_slice(self.trie.text(token).unwrap_or_default());
        self.update();
        match &self.error {
            Some(error) => Err(error.clone()),
            None => Ok(self.state),
        }
    }

    fn state(&self) -> GrammarState {
        self.state
    }

    fn reset(&mut self) {
        self.matcher = self.fresh.clone();
        self.text.clear();
        self.error = None;
        self.mask = None;
        self.update();
    }

    fn verdict(&self) -> Option<Verdict> {
        Some(if self.may_end() {
            match std::str::from_utf8(&self.text) {
                Ok(text) => self.schema.judge(text),
                Err(_) => Verdict::NotJson { problem: "the text is not UTF-8".into() },
            }
        } else {
            Verdict::NotJson { problem: "the text is cut".into() }
        })
    }
}

impl fmt::Debug for SchemaMatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SchemaMatcher")
            .field("state", &self.state)
            .field("schema", &self.schema)
            .finish_non_exhaustive()
    }
}
