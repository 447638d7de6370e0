//! GBNF front: refuses what the engine would swallow or die of, and matches on its own.
//!
//! The engine's grammar sampler (`llama_sampler_init_grammar`) fails open: a syntax error, a
//! missing root or left recursion yield a sampler *without* a grammar, and other texts end the
//! process. A [`Grammar`] exists only if its text was read completely, every rule is defined and
//! can finish, nothing recurses to the left, and the work that the engine would do on it is
//! bounded by [`GrammarLimits`].
//!
//! The same compiled rules drive an independent [`Matcher`] (a set of pushdown stacks, as in the
//! engine, over Unicode scalar values, fed byte by byte) and the full-vocabulary [`TokenMask`]
//! computed by walking a [`TokenTrie`].
//!
//! # Notation
//! GBNF as the pinned engine reads it: rules `name ::= alternates`, names of ASCII letters, digits
//! and `-`; alternates split by `|`; items are `"literals"`, `[classes]`, `[^negated]`, `.`, rule
//! names and `( groups )`, each optionally followed by `*`, `+`, `?`, `{m}`, `{m,}` or `{m,n}`;
//! escapes `\x41 \u0041 \U00000041 \n \r \t \\ \" \[ \]`; `#` comments to the end of the line. A rule
//! ends with its line, except directly after `::=` or `|` and inside a group.
//!
//! # Where this front is stricter than the engine, on purpose
//! - a rule defined twice (the engine keeps the last one silently);
//! - `[]` and `[^]` (the engine reads both as the empty text), `[z-a]`, `{3,1}`;
//! - characters that no UTF-8 output can contain (surrogates, above U+10FFFF) and U+0000, which
//!   ends a token's text in the engine; in classes they are clipped instead of refused as long as
//!   something is left;
//! - repetition of something that may be empty, rules that can never finish, and the limits.
//!
//! # Example
//! ```
//! use grammar::{Grammar, GrammarLimits, GrammarState};
//!
//! let grammar = Grammar::parse("root ::= \"ok\" [0-9]{1,3}", "root", &GrammarLimits::default())?;
//! let mut matcher = grammar.matcher();
//! assert_eq!(matcher.accept_bytes(b"ok")?, GrammarState::Active);
//! assert_eq!(matcher.accept_bytes(b"7")?, GrammarState::MayEnd);
//! assert_eq!(matcher.accept_bytes(b"42")?, GrammarState::Complete);
//! assert!(matcher.accept_bytes(b"!").is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod alphabet;
mod charset;
mod compile;
mod derive;
mod error;
mod limits;
mod mask;
mod matcher;
mod syntax;
#[cfg(test)]
mod tests;
mod trie;

use std::fmt;
use std::sync::Arc;

pub use error::{GrammarError, MatchError, Position, VocabularyError};
pub use limits::{GrammarLimit, GrammarLimits};
pub use mask::TokenMask;
pub use matcher::{GrammarState, Matcher};
pub use trie::{TokenRole, TokenTrie};

use alphabet::Alphabet;
use compile::Rules;

/// A checked GBNF grammar. Cloning is cheap and the value is `Send + Sync`.
#[derive(Clone)]
pub struct Grammar(Arc<Inner>);

struct Inner {
    text: String,
    root: String,
    names: Vec<String>,
    rules: Rules,
    alphabet: Alphabet,
    limits: GrammarLimits,
}

impl Grammar {
    /// Reads and checks `text`; `root` names the rule that generation starts from.
    ///
    /// # Errors
    /// [`GrammarError`], with line and column wherever a place in the text is at fault.
    pub fn parse(text: &str, root: &str, limits: &GrammarLimits) -> Result<Self, GrammarError> {
        let ast = syntax::parse(text, limits)?;
        let root_id = ast.rule_named(root).ok_or_else(|| GrammarError::MissingRoot {
            root: root.to_owned(),
            defined: error::shorten(&ast.names.join(", ")),
        })?;
        let compiled = compile::compile(&ast, root_id, text, limits)?;
        let alphabet = Alphabet::new(&compiled.scalars);
        let root_at = ast.rules[root_id].at;
        let grammar = Self(Arc::new(Inner {
            text: text.to_owned(),
            root: root.to_owned(),
            names: ast.names,
            rules: compiled,
            alphabet,
            limits: *limits,
        }));
        // A grammar whose very first character is beyond the limits is of no use.
        if let Some(&MatchError::Limit { limit, max, .. }) = grammar.matcher().error() {
            let at = Position::of(text, root_at);
            return Err(GrammarError::Limit { limit, value: max.saturating_add(1), max, at });
        }
        Ok(grammar)
    }

    /// The text as it was given.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// Name of the rule that generation starts from.
    #[must_use]
    pub fn root(&self) -> &str {
        &self.0.root
    }

    /// Names of the rules in the order in which the text first mentions them.
    #[must_use]
    pub fn rule_names(&self) -> &[String] {
        &self.0.names
    }

    /// The limits that the grammar was checked against and that its matchers obey.
    #[must_use]
    pub fn limits(&self) -> &GrammarLimits {
        &self.0.limits
    }

    /// Derives one sentence by walking the rules. `choose(n)` picks one of `n` ways (values from
    /// `n` on are reduced). From `soft_bytes` of output on, every rule takes its shortest known
    /// way out; `None` if the sentence would still exceed `hard_bytes`.
    pub fn derive(&self, choose: &mut dyn FnMut(u64) -> u64, soft_bytes: usize, hard_bytes: usize) -> Option<String> {
        derive::derive(&self.0.rules, choose, soft_bytes, hard_bytes)
    }

    fn rules(&self) -> &Rules {
        &self.0.rules
    }

    fn alphabet(&self) -> &Alphabet {
        &self.0.alphabet
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar")
            .field("root", &self.0.root)
            .field("rules", &self.0.names.len())
            .field("elements", &self.0.rules.elems.len())
            .finish_non_exhaustive()
    }
}
