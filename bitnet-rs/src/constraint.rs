//! Constrained generation: our matcher decides. The engine's own grammar is the tests' oracle
//! (`tests/engine_grammar.rs`), not a second opinion in the product.

use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::Arc;

use bitnet_sys as sys;

use crate::ids::TokenId;
use crate::model::Model;
use crate::{Error, status};
use grammar::{Grammar, GrammarState, Matcher, TokenMask, TokenRole, TokenTrie};

/// The engine's own grammar (`llama_sampler_init_grammar`), made from a checked [`Grammar`], on its own.
///
/// For comparisons in tests only; [`Constraint`] is what generation uses.
pub struct EngineGrammar {
    ptr: NonNull<sys::bn_grammar>,
    /// The engine's grammar points into the vocabulary.
    model: Model,
}

// SAFETY: the object is its own heap allocation without thread affinity; it is changed through &mut only and, not being
// Sync, read by one thread at a time.
unsafe impl Send for EngineGrammar {}

impl Drop for EngineGrammar {
    fn drop(&mut self) {
        // SAFETY: made by bn_grammar_new, freed once.
        unsafe { sys::bn_grammar_free(self.ptr.as_ptr()) };
    }
}

impl EngineGrammar {
    /// Has the engine parse the grammar.
    ///
    /// # Errors
    /// [`Error::Native`] when it makes a sampler that carries none, which would then constrain nothing.
    pub fn new(model: &Model, grammar: &Grammar) -> Result<Self, Error> {
        let c = |text: &str| {
            CString::new(text).map_err(|_| Error::Sampler("a grammar text cannot hold a NUL character".into()))
        };
        let (text, root) = (c(grammar.native_text())?, c(grammar.root())?);
        let raw = status::checked("llama_sampler_init_grammar", |st| {
            // SAFETY: NUL-terminated texts; the front has refused what the parser aborts on, a missing root included.
            unsafe { sys::bn_grammar_new(model.as_ptr(), text.as_ptr(), root.as_ptr(), st) }
        })?;
        let ptr = NonNull::new(raw).ok_or_else(|| Error::Sampler("the engine made no grammar".into()))?;
        Ok(Self { ptr, model: model.clone() })
    }

    /// The tokens that the engine's grammar allows here (`llama_sampler_apply` over the whole vocabulary), by id.
    ///
    /// # Errors
    /// [`Error::Native`] when the engine throws.
    pub fn allowed(&self) -> Result<Vec<TokenId>, Error> {
        let ids = 0..i32::try_from(self.model.n_vocab()).unwrap_or(i32::MAX);
        let mut candidates: Vec<_> = ids.map(|id| sys::llama_token_data { id, logit: 0.0, p: 0.0 }).collect();
        let mut array = sys::llama_token_data_array {
            data: candidates.as_mut_ptr(),
            size: candidates.len(),
            selected: -1,
            sorted: false,
        };
        status::checked("llama_sampler_apply", |st| {
            // SAFETY: a valid grammar, only read; the array points at `size` initialised candidates that outlive the call.
            unsafe { sys::bn_grammar_apply(self.ptr.as_ptr(), &raw mut array, st) };
        })?;
        candidates.iter().filter(|c| c.logit > f32::NEG_INFINITY).map(|c| self.model.token(c.id)).collect()
    }

    /// Takes one token; an end-of-generation token asks whether the text is a sentence.
    ///
    /// # Errors
    /// [`Error::Native`] for a token that the engine's grammar forbids here; it is not taken.
    pub fn accept(&mut self, token: TokenId) -> Result<(), Error> {
        status::checked("llama_sampler_accept", |st| {
            // SAFETY: a valid grammar; the shim asks first whether the token is allowed, which the engine asserts.
            unsafe { sys::bn_grammar_accept(self.ptr.as_ptr(), token.get(), st) };
        })
    }
}

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

/// A grammar in use. Each sampled token is accepted once.
pub struct Constraint {
    matcher: Matcher,
    trie: TokenTrie,
}

impl Constraint {
    /// Puts `grammar` to use with `model`; `trie` is the model's [`vocabulary_trie`].
    ///
    /// # Errors
    /// [`Error::Sampler`] when the tree belongs to another vocabulary.
    pub fn new(model: &Model, grammar: &Grammar, trie: TokenTrie) -> Result<Self, Error> {
        if trie.vocabulary_len() != model.n_vocab() as usize {
            return Err(Error::Sampler("the token tree belongs to another model".into()));
        }
        Ok(Self { matcher: grammar.matcher(), trie })
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
        self.matcher.mask(&self.trie).map_err(|e| Error::Sampler(e.to_string()))
    }

    /// Takes one token.
    ///
    /// # Errors
    /// [`Error::Sampler`] when the grammar forbids it.
    pub fn accept(&mut self, token: TokenId) -> Result<GrammarState, Error> {
        let id = u32::try_from(token.get()).unwrap_or(u32::MAX);
        self.matcher.accept_token(&self.trie, id).map_err(|e| Error::Sampler(e.to_string()))
    }

    /// Where the text stands in the grammar.
    pub fn state(&self) -> GrammarState {
        self.matcher.state()
    }
}

impl std::fmt::Debug for EngineGrammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineGrammar").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").field("state", &self.state()).finish_non_exhaustive()
    }
}
