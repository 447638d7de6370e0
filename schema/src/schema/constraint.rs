//! A schema in use: masks over a vocabulary, one accepted token after the other.

use std::sync::{Arc, OnceLock};

use llguidance::api::{ParserLimits, StopReason};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Logger, Matcher, ParserFactory};

use super::error::{SchemaError, SchemaErrorKind};
use super::{Schema, Verdict};

/// What a token can do in constrained text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenRole<'a> {
    /// Adds these bytes; may be cut UTF-8.
    Text(&'a [u8]),
    /// Ends the generation.
    End,
    /// Control, unused or unknown: never part of constrained text.
    Excluded,
}

/// A vocabulary made ready for masks, once per model. Cheap to clone.
#[derive(Clone)]
pub struct Vocabulary(Arc<VocabularyInner>);

struct VocabularyInner {
    factory: ParserFactory,
    len: usize,
}

/// Why a vocabulary or a constraint in use fails. A constraint repeats its first error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConstraintError {
    /// The vocabulary cannot be used.
    #[error("vocabulary: {0}")]
    Vocabulary(String),
    /// A token that the grammar forbids here.
    #[error("token {0} is not allowed here")]
    Forbidden(u32),
    /// Nothing of the vocabulary can follow.
    #[error("no token of the vocabulary continues the text")]
    DeadEnd,
    /// A limit of the engine, or a fault in it.
    #[error("the grammar engine gave up: {0}")]
    Engine(String),
    /// The text has ended.
    #[error("the text has ended; reset the constraint to start another")]
    Ended,
}

/// Where the text stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConstraintState {
    /// More text is needed.
    Active,
    /// The text is a sentence of the grammar, and a longer one can be.
    MayEnd,
    /// The text is a sentence of the grammar, and nothing can follow.
    Complete,
    /// An end-of-generation token was accepted.
    Ended,
    /// An error occurred; every further call repeats it.
    Failed,
}

/// The tokens that may come next: one bit per token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u64>,
    len: usize,
}

impl TokenMask {
    fn new(set: &SimpleVob, len: usize) -> Self {
        let mut words: Vec<u64> = set
            .as_slice()
            .chunks(2)
            .map(|pair| u64::from(pair[0]) | u64::from(pair.get(1).copied().unwrap_or(0)) << 32)
            .collect();
        words.truncate(len.div_ceil(64));
        if let Some(last) = words.last_mut()
            && !len.is_multiple_of(64)
        {
            *last &= (1 << (len % 64)) - 1;
        }
        Self { words, len }
    }

    fn only(tokens: &[u32], len: usize) -> Self {
        let mut words = vec![0; len.div_ceil(64)];
        for &token in tokens {
            if let Some(word) = words.get_mut(token as usize / 64) {
                *word |= 1 << (token % 64);
            }
        }
        Self { words, len }
    }

    /// Whether the token may come next; false outside the vocabulary.
    #[must_use]
    pub fn allows(&self, token: u32) -> bool {
        let index = token as usize;
        index < self.len && self.words[index / 64] >> (index % 64) & 1 == 1
    }

    /// Number of tokens that may come next.
    #[must_use]
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// One bit per token, the lowest first.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// The allowed tokens in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().zip(0_u32..).flat_map(|(&word, index)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros())?;
                rest &= rest - 1;
                Some(index * 64 + bit)
            })
        })
    }
}

/// The engine's limits: what one mask may cost, and what all of them may hold in memory.
fn parser_limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2_000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_lexer_states: 40_000,
        max_grammar_size: 60_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}

impl Vocabulary {
    /// Tokens are numbered in the order given.
    ///
    /// # Errors
    /// [`ConstraintError::Vocabulary`].
    pub fn new<'a>(tokens: impl IntoIterator<Item = TokenRole<'a>>) -> Result<Self, ConstraintError> {
        let mut words: Vec<Vec<u8>> = Vec::new();
        let mut ends = Vec::new();
        for (token, role) in (0_u32..).zip(tokens) {
            words.push(match role {
                // The engine marks special tokens with a byte that UTF-8 never has.
                TokenRole::Text(bytes) if !bytes.contains(&0xFF) && !bytes.contains(&0) => bytes.to_vec(),
                TokenRole::End => {
                    ends.push(token);
                    Vec::new()
                }
                _ => Vec::new(),
            });
        }
        let size = u32::try_from(words.len()).map_err(|_| ConstraintError::Vocabulary("too many tokens".into()))?;
        if size == 0 {
            return Err(ConstraintError::Vocabulary("no tokens".into()));
        }
        let first_end = ends.first().copied().unwrap_or(llguidance::toktrie::INVALID_TOKEN);
        let trie = TokTrie::from(&TokRxInfo::new(size, first_end), &words);
        let trie = if ends.len() > 1 { trie.with_eos_tokens(&ends) } else { trie };
        Self::of(trie)
    }

    fn of(trie: TokTrie) -> Result<Self, ConstraintError> {
        let len = trie.vocab_size();
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory =
            ParserFactory::new_simple(&environment).map_err(|e| ConstraintError::Vocabulary(e.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = parser_limits();
        Ok(Self(Arc::new(VocabularyInner { factory, len })))
    }

    /// One token per byte, for matching texts as they are; the end is token 256.
    #[must_use]
    pub fn bytes() -> &'static Self {
        static BYTES: OnceLock<Vocabulary> = OnceLock::new();
        BYTES.get_or_init(|| {
            let all: Vec<[u8; 1]> = (0..=255).map(|b| [b]).collect();
            let roles = all.iter().map(|b| TokenRole::Text(b)).chain([TokenRole::End]);
            Self::new(roles).unwrap_or_else(|e| unreachable!("a vocabulary of bytes: {e}"))
        })
    }

    /// Number of tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// There is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// A text in tokens, longest first; for measurements.
    #[must_use]
    pub fn greedy(&self, text: &str) -> Vec<u32> {
        self.trie().greedy_tokenize(text.as_bytes())
    }

    fn trie(&self) -> &TokTrie {
        self.0.factory.tok_env().tok_trie()
    }
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary").field("len", &self.0.len).finish_non_exhaustive()
    }
}

/// A schema in use.
pub struct SchemaConstraint {
    schema: Schema,
    vocabulary: Vocabulary,
    fresh: Matcher,
    matcher: Matcher,
    text: Vec<u8>,
    state: ConstraintState,
    error: Option<ConstraintError>,
}

impl SchemaConstraint {
    pub(super) fn new(schema: Schema, vocabulary: &Vocabulary) -> Result<Self, SchemaError> {
        let factory = &vocabulary.0.factory;
        let parser = factory.create_parser_from_init_ext(
            schema.grammar(),
            Logger::new(0, 0),
            InferenceCapabilities::default(),
            factory.limits().clone(),
        );
        let refused = |problem: String| {
            SchemaError::new(
                SchemaErrorKind::Engine,
                "",
                "(schema)",
                format!("is beyond the grammar engine: {problem}"),
            )
        };
        let fresh = Matcher::new(parser);
        if let Some(problem) = fresh.get_error() {
            return Err(refused(problem));
        }
        let matcher = fresh.clone();
        let mut constraint = Self {
            schema,
            vocabulary: vocabulary.clone(),
            fresh,
            matcher,
            text: Vec::new(),
            state: ConstraintState::Active,
            error: None,
        };
        constraint.update();
        match &constraint.error {
            Some(error) => Err(refused(error.to_string())),
            None => Ok(constraint),
        }
    }

    /// The schema.
    #[must_use]
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    fn fail<T>(&mut self, error: ConstraintError) -> Result<T, ConstraintError> {
        self.state = ConstraintState::Failed;
        self.error = Some(error.clone());
        Err(error)
    }

    fn update(&mut self) {
        self.state = if self.matcher.is_stopped() {
            match self.matcher.stop_reason() {
                StopReason::NoExtension | StopReason::NoExtensionBias => ConstraintState::Complete,
                StopReason::EndOfSentence => ConstraintState::Ended,
                _ => ConstraintState::Failed,
            }
        } else {
            match self.matcher.is_accepting() {
                Ok(true) => ConstraintState::MayEnd,
                Ok(false) => ConstraintState::Active,
                Err(_) => ConstraintState::Failed,
            }
        };
        if self.state == ConstraintState::Failed && self.error.is_none() {
            let problem = self.matcher.get_error().unwrap_or_else(|| self.matcher.stop_reason().to_string());
            self.error = Some(ConstraintError::Engine(problem));
        }
    }

    /// The tokens allowed next.
    ///
    /// # Errors
    /// The first error of this constraint.
    pub fn mask(&mut self) -> Result<TokenMask, ConstraintError> {
        match (&self.error, self.state) {
            (Some(error), _) => return Err(error.clone()),
            (None, ConstraintState::Ended) => return Err(ConstraintError::Ended),
            (None, ConstraintState::Complete) => {
                return Ok(TokenMask::only(self.vocabulary.trie().eos_tokens(), self.vocabulary.len()));
            }
            _ => {}
        }
        match self.matcher.compute_mask() {
            Ok(set) => Ok(TokenMask::new(&set, self.vocabulary.len())),
            Err(_) if self.matcher.stop_reason() == StopReason::NoExtensionBias => self.fail(ConstraintError::DeadEnd),
            Err(error) => self.fail(ConstraintError::Engine(error.to_string())),
        }
    }

    /// Takes one token.
    ///
    /// # Errors
    /// The first error of this constraint; a token that is not allowed is one.
    pub fn accept(&mut self, token: u32) -> Result<ConstraintState, ConstraintError> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        if self.state == ConstraintState::Ended {
            return Err(ConstraintError::Ended);
        }
        let trie = self.vocabulary.trie();
        let ends = trie.eos_tokens().contains(&token);
        if ends {
            if !matches!(self.state, ConstraintState::MayEnd | ConstraintState::Complete) {
                return self.fail(ConstraintError::Forbidden(token));
            }
            self.state = ConstraintState::Ended;
            return Ok(self.state);
        }
        let known = (token as usize) < self.vocabulary.len() && !trie.token(token).is_empty();
        if !known || self.state == ConstraintState::Complete {
            return self.fail(ConstraintError::Forbidden(token));
        }
        match self.matcher.validate_tokens(&[token]) {
            Ok(1) => {}
            Ok(_) => return self.fail(ConstraintError::Forbidden(token)),
            Err(error) => return self.fail(ConstraintError::Engine(error.to_string())),
        }
        if let Err(error) = self.matcher.consume_token(token) {
            return self.fail(ConstraintError::Engine(error.to_string()));
        }
        self.text.extend_from_slice(self.vocabulary.trie().token(token));
        self.update();
        match &self.error {
            Some(error) => Err(error.clone()),
            None => Ok(self.state),
        }
    }

    /// Where the text stands.
    #[must_use]
    pub fn state(&self) -> ConstraintState {
        self.state
    }

    /// What was accepted so far.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// Back to the start, for another answer.
    pub fn reset(&mut self) {
        self.matcher = self.fresh.clone();
        self.text.clear();
        self.error = None;
        self.update();
    }

    /// Decides the accepted text. Only [`Verdict::Valid`] is an answer.
    #[must_use]
    pub fn finish(&self) -> Verdict {
        if !matches!(self.state, ConstraintState::MayEnd | ConstraintState::Complete | ConstraintState::Ended) {
            return Verdict::NotJson { problem: "the text is cut".into() };
        }
        match std::str::from_utf8(&self.text) {
            Ok(text) => self.schema.judge(text),
            Err(_) => Verdict::NotJson { problem: "the text is no UTF-8".into() },
        }
    }

    pub(super) fn accepts_text(&mut self, text: &str) -> bool {
        for byte in text.bytes() {
            if self.accept(u32::from(byte)).is_err() {
                return false;
            }
        }
        matches!(self.state, ConstraintState::MayEnd | ConstraintState::Complete)
    }
}

impl std::fmt::Debug for SchemaConstraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SchemaConstraint")
            .field("state", &self.state)
            .field("schema", &self.schema)
            .finish_non_exhaustive()
    }
}
