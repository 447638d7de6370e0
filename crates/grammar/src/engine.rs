//! llguidance: the engine behind schemas.

use std::fmt;
use std::sync::{Arc, OnceLock};

use llguidance::api::{GrammarInit, ParserLimits, StopReason};
use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Logger, Matcher, ParserFactory};

/// What one mask may cost, and what all of them may hold in memory.
fn parser_limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 6_000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_lexer_states: 40_000,
        max_grammar_size: 60_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}

/// A vocabulary as the engine wants it.
pub(crate) struct EngineVocabulary {
    factory: ParserFactory,
}

impl EngineVocabulary {
    /// Texts by token, empty for those that are not part of a text, and the tokens that end one.
    pub(crate) fn build(words: &[Vec<u8>], ends: &[u32]) -> Result<Self, String> {
        let tokens = u32::try_from(words.len()).map_err(|_| "too many tokens".to_owned())?;
        let mut trie = TokTrie::from(&TokRxInfo::new(tokens, ends.first().copied().unwrap_or(INVALID_TOKEN)), words);
        if ends.len() > 1 {
            trie = trie.with_eos_tokens(ends);
        }
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&environment).map_err(|e| e.to_string())?;
        factory.quiet();
        *factory.limits_mut() = parser_limits();
        Ok(Self { factory })
    }

    /// One token for each byte, for matching texts as they are.
    pub(crate) fn bytes() -> &'static Self {
        static BYTES: OnceLock<EngineVocabulary> = OnceLock::new();
        BYTES.get_or_init(|| {
            let mut words: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
            // Neither is in any text, and the engine marks special tokens with the second.
            words[0].clear();
            words[0xFF].clear();
            words.push(Vec::new());
            Self::build(&words, &[256]).unwrap_or_else(|e| unreachable!("a vocabulary of bytes: {e}"))
        })
    }

    /// A matcher at the start of a text.
    pub(crate) fn matcher(&self, grammar: GrammarInit) -> Result<Matcher, String> {
        let parser = self.factory.create_parser_from_init_ext(
            grammar,
            Logger::new(0, 0),
            InferenceCapabilities::default(),
            self.factory.limits().clone(),
        );
        let matcher = Matcher::new(parser);
        match matcher.get_error() {
            Some(problem) => Err(problem),
            None => Ok(matcher),
        }
    }
}

impl fmt::Debug for EngineVocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineVocabulary").finish_non_exhaustive()
    }
}

/// The whole of `text` is a sentence of the grammar.
pub(crate) fn accepts(grammar: GrammarInit, text: &[u8]) -> bool {
    let Ok(mut matcher) = EngineVocabulary::bytes().matcher(grammar) else { return false };
    for &byte in text {
        let token = u32::from(byte);
        if matcher.is_stopped() || !matches!(matcher.validate_tokens(&[token]), Ok(1)) {
            return false;
        }
        if matcher.consume_token(token).is_err() {
            return false;
        }
    }
    if matcher.is_stopped() {
        return matches!(matcher.stop_reason(), StopReason::NoExtension | StopReason::NoExtensionBias);
    }
    matcher.is_accepting().unwrap_or(false)
}
