//! Rows of logits, addressed by the token that they belong to.

use std::ptr::NonNull;

use bitnet_sys as sys;

use crate::Error;
use crate::ids::{Pos, SeqId, TokenId};

/// Which rows the last decode kept, and where they are.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    entries: Vec<Entry>,
    copies: Vec<f32>,
    /// Rows in the engine's buffer, in batch order of the last native call.
    native: usize,
}

#[derive(Debug)]
struct Entry {
    batch_index: usize,
    pos: Pos,
    seqs: Vec<SeqId>,
    place: Place,
}

#[derive(Debug, Clone, Copy)]
enum Place {
    /// Row of the engine's output buffer; valid until its next decode.
    Native(usize),
    /// Offset of the copy.
    Copied(usize),
}

impl Rows {
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.copies.clear();
        self.native = 0;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn start_native(&mut self) {
        self.native = 0;
    }

    pub(crate) fn push_native(&mut self, batch_index: usize, pos: Pos, seqs: &[SeqId]) {
        self.entries.push(Entry { batch_index, pos, seqs: seqs.to_vec(), place: Place::Native(self.native) });
        self.native += 1;
    }

    /// Copies the rows that the next native call will overwrite.
    pub(crate) fn keep_copies(&mut self, ctx: NonNull<sys::llama_context>, n_vocab: usize) -> Result<(), Error> {
        for entry in &mut self.entries {
            if let Place::Native(row) = entry.place {
                let source = native_row(ctx, row, n_vocab).ok_or_else(lost_row)?;
                entry.place = Place::Copied(self.copies.len());
                self.copies.extend_from_slice(source);
            }
        }
        self.native = 0;
        Ok(())
    }
}

fn lost_row() -> Error {
    Error::Native { function: "llama_get_logits", message: "no buffer although outputs were asked for".into() }
}

/// Row `row` of the engine's output buffer.
fn native_row<'a>(ctx: NonNull<sys::llama_context>, row: usize, n_vocab: usize) -> Option<&'a [f32]> {
    // SAFETY: a valid context.
    let base = unsafe { sys::llama_get_logits(ctx.as_ptr()) };
    if base.is_null() {
        return None;
    }
    // SAFETY: the engine stores the rows that asked for output one after another in batch order, and `row` is
    // below their number (Rows counts them). The lifetime is bounded by the callers: Logits borrows the
    // context, whose next decode needs &mut.
    Some(unsafe { std::slice::from_raw_parts(base.add(row * n_vocab), n_vocab) })
}

/// Logits of one decode: a row of `n_vocab` floats for each token that asked for output.
#[derive(Clone, Copy)]
pub struct Logits<'a> {
    rows: &'a Rows,
    ctx: NonNull<sys::llama_context>,
    n_vocab: usize,
}

impl<'a> Logits<'a> {
    pub(crate) fn new(rows: &'a Rows, ctx: NonNull<sys::llama_context>, n_vocab: usize) -> Self {
        Self { rows, ctx, n_vocab }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.entries.len()
    }

    /// No row at all?
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The row of the token at `pos` of `seq`.
    ///
    /// # Errors
    /// [`Error::NoLogits`] when that token was not in the last decode or did not ask for output.
    pub fn at(&self, seq: SeqId, pos: Pos) -> Result<&'a [f32], Error> {
        self.find(|e| e.pos == pos && e.seqs.contains(&seq), || format!("at position {} of {}", pos.get(), seq.get()))
    }

    /// The row of the batch's `index`th token.
    ///
    /// # Errors
    /// As [`Logits::at`].
    pub fn row(&self, index: usize) -> Result<&'a [f32], Error> {
        self.find(|e| e.batch_index == index, || format!("for token {index} of the batch"))
    }

    /// The row of the last token that asked for output.
    ///
    /// # Errors
    /// [`Error::NoLogits`] when none did.
    pub fn last(&self) -> Result<&'a [f32], Error> {
        let last = self.rows.entries.last().map(|e| e.batch_index);
        self.find(|e| Some(e.batch_index) == last, || "for any token".into())
    }

    fn find(&self, is: impl Fn(&Entry) -> bool, what: impl Fn() -> String) -> Result<&'a [f32], Error> {
        let entry = self.rows.entries.iter().find(|e| is(e)).ok_or_else(|| Error::NoLogits {
            what: what(),
            available: match self.rows.entries.len() {
                0 => "none".into(),
                n => format!(
                    "{n} rows, positions {} to {}",
                    self.rows.entries.iter().map(|e| e.pos.get()).min().unwrap_or(0),
                    self.rows.entries.iter().map(|e| e.pos.get()).max().unwrap_or(0)
                ),
            },
        })?;
        match entry.place {
            Place::Copied(offset) => Ok(&self.rows.copies[offset..offset + self.n_vocab]),
            Place::Native(row) => native_row(self.ctx, row, self.n_vocab).ok_or_else(lost_row),
        }
    }
}

/// The token with the largest logit, the lowest id among equals; `None` if a logit is NaN or all are −∞.
pub fn greedy(logits: &[f32]) -> Option<TokenId> {
    let mut best: Option<(usize, f32)> = None;
    for (i, &value) in logits.iter().enumerate() {
        if value.is_nan() {
            return None;
        }
        if value > best.map_or(f32::NEG_INFINITY, |(_, b)| b) {
            best = Some((i, value));
        }
    }
    best.and_then(|(i, _)| i32::try_from(i).ok()).map(TokenId::unchecked)
}

#[cfg(test)]
mod tests {
    use super::greedy;

    #[test]
    fn greedy_takes_the_first_of_equals_and_refuses_nan() {
        assert_eq!(greedy(&[0.0, 2.0, 2.0]).map(|t| t.get()), Some(1));
        assert_eq!(greedy(&[-5.0]).map(|t| t.get()), Some(0));
        assert_eq!(greedy(&[0.0, f32::NAN]), None);
        assert_eq!(greedy(&[f32::NEG_INFINITY; 3]), None);
        assert_eq!(greedy(&[]), None);
    }
}
