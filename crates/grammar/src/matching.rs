//! A constraint at work on a vocabulary: all that a sampler needs of it.

use std::sync::Arc;

use crate::gbnf::{GrammarState, MatchError, TokenMask};
use crate::schema::Verdict;

/// One text being written under a constraint, token by token.
pub trait TokenMatcher: Send {
    /// The tokens that may come next.
    ///
    /// # Errors
    /// [`MatchError`]; the first one repeats until [`Self::reset`].
    fn mask(&mut self) -> Result<Arc<TokenMask>, MatchError>;

    /// Takes one token.
    ///
    /// # Errors
    /// [`MatchError`], a token that may not come next among them.
    fn accept(&mut self, token: u32) -> Result<GrammarState, MatchError>;

    /// Where the text stands in the grammar.
    fn state(&self) -> GrammarState;

    /// Back to the start, for another text.
    fn reset(&mut self);

    /// What the text is by itself, once it has ended; `None` where the grammar's state is all there is to know.
    fn verdict(&self) -> Option<Verdict> {
        None
    }
}
