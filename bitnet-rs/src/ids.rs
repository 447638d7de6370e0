//! Checked identifiers. A [`TokenId`], [`Pos`] or [`SeqId`] can only exist if the value is in its range;
//! limits that depend on a model or a context are checked where one is used.

use crate::Error;

/// Index of a token in a model's vocabulary, `0 ≤ id < n_vocab`.
///
/// Made by [`Model::token`](crate::Model::token) and by everything that yields tokens. A token of another
/// model is checked again where it is used (`llama_token_to_piece` faults on ids outside the vocabulary).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TokenId(i32);

impl TokenId {
    /// Checks `id` against a vocabulary of `n_vocab` tokens.
    pub fn new(id: i32, n_vocab: u32) -> Result<Self, Error> {
        if u32::try_from(id).is_ok_and(|i| i < n_vocab) {
            Ok(Self(id))
        } else {
            Err(Error::TokenOutOfRange { id: i64::from(id), n_vocab })
        }
    }

    pub(crate) fn unchecked(id: i32) -> Self {
        Self(id)
    }

    /// The id as the engine counts it.
    pub fn get(self) -> i32 {
        self.0
    }

    /// The id as an index into a row of logits.
    pub fn index(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

/// Position of a token in its sequence, `0 ≤ pos ≤ i32::MAX − 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pos(i32);

impl Pos {
    /// The first position.
    pub const ZERO: Self = Self(0);

    /// Refuses negative positions and `i32::MAX` (the engine uses it as "no end").
    pub fn new(pos: i32) -> Result<Self, Error> {
        if (0..i32::MAX).contains(&pos) { Ok(Self(pos)) } else { Err(Error::InvalidPosition { pos: i64::from(pos) }) }
    }

    /// The position `n` tokens further on.
    pub fn forward(self, n: usize) -> Result<Self, Error> {
        let sum = i64::from(self.0).saturating_add(i64::try_from(n).unwrap_or(i64::MAX));
        i32::try_from(sum).map_err(|_| Error::InvalidPosition { pos: sum }).and_then(Self::new)
    }

    /// The position as the engine counts it.
    pub fn get(self) -> i32 {
        self.0
    }
}

/// Number of a sequence in a context, `0 ≤ id`; each context also has its own limit (`n_seq_max`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(i32);

impl SeqId {
    /// The first sequence.
    pub const ZERO: Self = Self(0);

    /// Refuses negative ids: the engine reads −1 as "every sequence" and other negative ids as memory.
    pub fn new(id: i32) -> Result<Self, Error> {
        if id >= 0 { Ok(Self(id)) } else { Err(Error::SeqIdOutOfRange { id, n_seq_max: None }) }
    }

    /// The id as the engine counts it.
    pub fn get(self) -> i32 {
        self.0
    }

    /// The first `n` sequences.
    pub(crate) fn first(n: usize) -> impl Iterator<Item = Self> {
        (0..i32::MAX).take(n).map(Self)
    }

    /// As an index: sequences count from 0.
    pub fn index(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold() {
        assert!(TokenId::new(-1, 10).is_err());
        assert!(TokenId::new(10, 10).is_err());
        assert_eq!(TokenId::new(9, 10).map(TokenId::get).ok(), Some(9));
        assert!(Pos::new(-1).is_err());
        assert!(Pos::new(i32::MAX).is_err());
        assert!(Pos::new(i32::MAX - 1).and_then(|p| p.forward(1)).is_err());
        assert_eq!(Pos::ZERO.forward(7).map(Pos::get).ok(), Some(7));
        assert!(SeqId::new(-1).is_err());
        assert!(SeqId::new(i32::MAX).is_ok());
    }
}
