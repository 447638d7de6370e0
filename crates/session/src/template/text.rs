//! Text that knows which of its characters came from a message.

use std::cmp::Ordering;
use std::fmt;
use std::rc::Rc;

/// A character and whether a message brought it. Equality and order look at the character alone: a template cannot
/// see where a text comes from.
#[derive(Clone, Copy)]
pub(super) struct Ch(u32);

const MESSAGE: u32 = 1 << 31;

impl Ch {
    pub(super) fn new(c: char, message: bool) -> Self {
        Self(u32::from(c) | if message { MESSAGE } else { 0 })
    }

    pub(super) fn char(self) -> char {
        char::from_u32(self.0 & !MESSAGE).unwrap_or(char::REPLACEMENT_CHARACTER)
    }

    pub(super) fn is_message(self) -> bool {
        self.0 & MESSAGE != 0
    }

    /// Another character in its place.
    pub(super) fn with(self, c: char) -> Self {
        Self::new(c, self.is_message())
    }
}

impl PartialEq for Ch {
    fn eq(&self, other: &Self) -> bool {
        self.char() == other.char()
    }
}

impl Eq for Ch {}

impl PartialOrd for Ch {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ch {
    fn cmp(&self, other: &Self) -> Ordering {
        self.char().cmp(&other.char())
    }
}

/// An immutable string, indexed by code point as Python's.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Text(Rc<[Ch]>);

impl Text {
    /// Text of the template or of the program.
    pub(super) fn own(text: &str) -> Self {
        text.chars().map(|c| Ch::new(c, false)).collect()
    }

    /// Text of a message.
    pub(super) fn message(text: &str) -> Self {
        text.chars().map(|c| Ch::new(c, true)).collect()
    }

    pub(super) fn chars(&self) -> &[Ch] {
        &self.0
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn slice(&self, from: usize, to: usize) -> Self {
        Self::from(&self.0[from..to])
    }

    pub(super) fn is(&self, text: &str) -> bool {
        self.0.iter().map(|c| c.char()).eq(text.chars())
    }

    /// The plain string.
    pub(super) fn plain(&self) -> String {
        plain(&self.0)
    }

    pub(super) fn find(&self, needle: &[Ch], from: usize) -> Option<usize> {
        find(&self.0, needle, from)
    }
}

/// The plain string of some characters.
pub(super) fn plain(chars: &[Ch]) -> String {
    chars.iter().map(|c| c.char()).collect()
}

/// The first place of `needle` at or after `from`.
pub(super) fn find(text: &[Ch], needle: &[Ch], from: usize) -> Option<usize> {
    if from > text.len() {
        return None;
    }
    if needle.is_empty() {
        return Some(from);
    }
    text[from..].windows(needle.len()).position(|w| w == needle).map(|at| from + at)
}

impl From<&[Ch]> for Text {
    fn from(chars: &[Ch]) -> Self {
        Self(chars.into())
    }
}

impl From<Vec<Ch>> for Text {
    fn from(chars: Vec<Ch>) -> Self {
        Self(chars.into())
    }
}

impl FromIterator<Ch> for Text {
    fn from_iter<I: IntoIterator<Item = Ch>>(chars: I) -> Self {
        Self(chars.into_iter().collect())
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.plain())
    }
}

/// What Python's `str.isspace` holds for space: Unicode's white space and four separators of ASCII.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}
