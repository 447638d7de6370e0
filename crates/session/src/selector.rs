//! Choosing tokens: mask, samplers and acceptance in the one order that generation and gate 4 share.

use bitnet_rs::{Constraint, Error, Model, Sampler, SamplingParams, TokenId, vocabulary_trie};
use grammar::schema::Verdict;
use grammar::{GrammarState, Language, TokenTrie};

/// A chosen token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selected {
    /// Its id.
    pub id: TokenId,
    /// It ends the generation and is no part of the output.
    pub end: bool,
}

/// Chooses one output's tokens from logits. With a grammar only its tokens are candidates, before any sampler sees
/// them; each chosen token is accepted once.
pub struct TokenSelector {
    model: Model,
    sampler: Sampler,
    constraint: Option<Constraint>,
}

impl TokenSelector {
    /// `trie` is the model's [`vocabulary_trie`] where the caller keeps one; it is built for a grammar otherwise.
    ///
    /// # Errors
    /// A sampling parameter outside its range; a schema that is beyond its engine's limits.
    pub fn new(
        model: &Model,
        sampling: &SamplingParams,
        language: Option<&Language>,
        trie: Option<TokenTrie>,
    ) -> Result<Self, Error> {
        let sampler = Sampler::new(model, sampling)?;
        let constraint = match language {
            None => None,
            Some(language) => {
                let trie = trie.map_or_else(|| vocabulary_trie(model), Ok)?;
                Some(Constraint::new(model, language, &trie)?)
            }
        };
        Ok(Self { model: model.clone(), sampler, constraint })
    }

    /// Gets ready for another output of the same grammar; known masks stay known.
    ///
    /// # Errors
    /// As [`TokenSelector::new`].
    pub fn restart(&mut self, sampling: &SamplingParams) -> Result<(), Error> {
        self.sampler = Sampler::new(&self.model, sampling)?;
        if let Some(constraint) = &mut self.constraint {
            constraint.reset();
        }
        Ok(())
    }

    /// Chooses the next token from one row of logits and accepts it.
    ///
    /// # Errors
    /// Bad logits, or a dead end of the grammar.
    pub fn select(&mut self, logits: &[f32]) -> Result<Selected, Error> {
        let mask = self.constraint.as_mut().map(Constraint::mask).transpose()?;
        let id = self.sampler.sample(logits, mask.as_deref())?;
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(id)?;
        }
        let end = self.model.is_end_of_generation(id);
        if !end {
            self.sampler.accept(id)?;
        }
        Ok(Selected { id, end })
    }

    /// Is the output constrained?
    pub fn is_constrained(&self) -> bool {
        self.constraint.is_some()
    }

    /// Where the output stands in the grammar; `None` without one.
    pub fn state(&self) -> Option<GrammarState> {
        self.constraint.as_ref().map(Constraint::state)
    }

    /// The output is a sentence of the grammar as it stands; `None` without one.
    pub fn is_sentence(&self) -> Option<bool> {
        self.state().map(|s| matches!(s, GrammarState::MayEnd | GrammarState::Complete | GrammarState::Ended))
    }

    /// What the output is by its schema as it stands; `None` without one.
    pub fn verdict(&self) -> Option<Verdict> {
        self.constraint.as_ref().and_then(Constraint::verdict)
    }

    /// The output is a sentence of the grammar, and valid where a schema asks for it; `None` without a constraint.
    pub fn is_answer(&self) -> Option<bool> {
        let sentence = self.is_sentence()?;
        Some(sentence && self.verdict().is_none_or(|verdict| verdict == Verdict::Valid))
    }

    /// Nothing can follow what was accepted.
    pub fn is_complete(&self) -> bool {
        self.state() == Some(GrammarState::Complete)
    }

    /// The tokens that the grammar allows next; `None` without one.
    ///
    /// # Errors
    /// The error that the constraint is stuck in.
    pub fn allowed(&mut self) -> Result<Option<std::sync::Arc<grammar::TokenMask>>, Error> {
        self.constraint.as_mut().map(Constraint::mask).transpose()
    }
}

impl std::fmt::Debug for TokenSelector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenSelector").field("state", &self.state()).finish_non_exhaustive()
    }
}
