//! Batches: tokens with their positions, sequences and output flags.

use crate::Error;
use crate::ids::{Pos, SeqId, TokenId};

/// Input of one decode (`llama_batch`). Any number of tokens; the context splits it into micro-batches.
///
/// ```
/// # use bitnet_rs::{Batch, Pos, SeqId, TokenId};
/// # fn main() -> Result<(), bitnet_rs::Error> {
/// let prompt = [TokenId::new(1, 8)?, TokenId::new(5, 8)?];
/// let batch = Batch::prompt(&prompt, Pos::ZERO, SeqId::ZERO)?;
/// assert_eq!(batch.len(), 2); // logits are kept for the last token only
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) positions: Vec<Pos>,
    /// Sequences of each token, flattened; `seq_ends[i]` is the end of token i's slice.
    pub(crate) seqs: Vec<SeqId>,
    pub(crate) seq_ends: Vec<usize>,
    pub(crate) outputs: Vec<bool>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// `tokens` at `first`, `first + 1`, … of one sequence, with logits for the last.
    ///
    /// # Errors
    /// [`Error::EmptyBatch`] without tokens, [`Error::InvalidPosition`] past the last position.
    pub fn prompt(tokens: &[TokenId], first: Pos, seq: SeqId) -> Result<Self, Error> {
        let mut batch = Self::new();
        if tokens.is_empty() {
            return Err(Error::EmptyBatch);
        }
        for (i, &token) in tokens.iter().enumerate() {
            batch.push(token, first.forward(i)?, &[seq], i + 1 == tokens.len());
        }
        Ok(batch)
    }

    /// As [`Batch::prompt`], with logits for every token.
    ///
    /// # Errors
    /// As [`Batch::prompt`].
    pub fn scored(tokens: &[TokenId], first: Pos, seq: SeqId) -> Result<Self, Error> {
        let mut batch = Self::prompt(tokens, first, seq)?;
        batch.outputs.fill(true);
        Ok(batch)
    }

    /// Adds one token. It becomes part of every sequence in `seqs` (duplicates count once); with `output`
    /// its row of logits is kept.
    pub fn push(&mut self, token: TokenId, pos: Pos, seqs: &[SeqId], output: bool) {
        self.tokens.push(token);
        self.positions.push(pos);
        for (i, seq) in seqs.iter().enumerate() {
            if !seqs[..i].contains(seq) {
                self.seqs.push(*seq);
            }
        }
        self.seq_ends.push(self.seqs.len());
        self.outputs.push(output);
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Holds it no token?
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    pub(crate) fn seqs_of(&self, i: usize) -> &[SeqId] {
        let start = if i == 0 { 0 } else { self.seq_ends[i - 1] };
        &self.seqs[start..self.seq_ends[i]]
    }
}

/// Sizes of the micro-batches for `n` tokens with at most `max` each.
///
/// A micro-batch of exactly one token goes through other float paths than a larger one when flash attention
/// is off, so a lone last token would make logits depend on the batch size. The one before gives it company.
pub(crate) fn split(n: usize, max: usize) -> Vec<usize> {
    let max = max.max(1);
    let mut sizes = vec![max; n / max];
    match n % max {
        0 => {}
        1 if max >= 3 && !sizes.is_empty() => {
            if let Some(last) = sizes.last_mut() {
                *last -= 1;
            }
            sizes.push(2);
        }
        rest => sizes.push(rest),
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn no_micro_batch_of_one_token_behind_others() {
        assert_eq!(split(1, 128), [1]);
        assert_eq!(split(128, 128), [128]);
        assert_eq!(split(129, 128), [127, 2]);
        assert_eq!(split(130, 128), [128, 2]);
        assert_eq!(split(257, 128), [128, 127, 2]);
        assert_eq!(split(0, 128), [] as [usize; 0]);
        for max in 3..20 {
            for n in 2..200 {
                let sizes = split(n, max);
                assert_eq!(sizes.iter().sum::<usize>(), n);
                assert!(sizes.iter().all(|&s| s >= 2 && s <= max), "{n} {max} {sizes:?}");
            }
        }
    }
}
