//! Prompt-lookup drafts: what followed the last words when they occurred before may follow them again.
//!
//! Saxena 2023, "Prompt Lookup Decoding": a draft costs no model, and copying (device names, tool output, quotations) is
//! what it guesses. The generator verifies a draft in one batch, so a right guess saves decodes and a wrong one costs
//! columns of a batch, never a token.

use std::collections::VecDeque;

use bitnet_rs::TokenId;

/// Longest and shortest run of tokens that is looked up. A single token recurs by chance too often.
const LONGEST: usize = 3;
const SHORTEST: usize = 2;

/// How many drafts were made and how they fared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct DraftCounts {
    /// Tokens drafted.
    pub drafted: usize,
    /// Of those, the ones that the model then chose.
    pub accepted: usize,
    /// Decode calls after the prompt.
    pub decodes: usize,
}

/// Drafts of one generation.
#[derive(Debug)]
pub(super) struct Drafts {
    /// Most tokens of one draft; 0 drafts none.
    max: usize,
    /// Everything said so far, the newest last.
    history: Vec<TokenId>,
    /// Drafted tokens that lie in the cache behind the last one that was chosen.
    pub(super) ahead: VecDeque<TokenId>,
    /// Was the last batch one with guesses?
    pub(super) verifying: bool,
    pub(super) counts: DraftCounts,
}

impl Drafts {
    pub(super) fn new(max: usize, mut history: Vec<TokenId>, prompt: &[TokenId]) -> Self {
        if max > 0 {
            history.extend_from_slice(prompt);
        }
        Self { max, history, ahead: VecDeque::new(), verifying: false, counts: DraftCounts::default() }
    }

    /// Notes a chosen token. Was it the next one of the draft?
    pub(super) fn chose(&mut self, id: TokenId) -> bool {
        if self.max == 0 {
            return false;
        }
        self.history.push(id);
        let hit = self.ahead.front() == Some(&id);
        if hit {
            self.ahead.pop_front();
            self.counts.accepted += 1;
        }
        hit
    }

    /// The token that was chosen last.
    pub(super) fn last(&self) -> Option<TokenId> {
        self.history.last().copied()
    }

    /// At most `room` tokens that may come next.
    pub(super) fn guess(&self, room: usize) -> Vec<TokenId> {
        let most = self.max.min(room);
        if most == 0 {
            return Vec::new();
        }
        let n = self.history.len();
        for length in (SHORTEST..=LONGEST.min(n.saturating_sub(1))).rev() {
            let last = &self.history[n - length..];
            // The newest occurrence that something follows: what was said lately is said again.
            let before = &self.history[..n - 1];
            if let Some(at) = before.windows(length).rposition(|w| w == last) {
                let from = at + length;
                return self.history[from..n.min(from + most)].to_vec();
            }
        }
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(list: &[i32]) -> Vec<TokenId> {
        list.iter().map(|&id| TokenId::new(id, 100).unwrap()).collect()
    }

    fn guess(said: &[i32], max: usize, room: usize) -> Vec<i32> {
        Drafts::new(max, Vec::new(), &ids(said)).guess(room).iter().map(|t| t.get()).collect()
    }

    #[test]
    fn what_followed_last_time_is_guessed() {
        assert_eq!(guess(&[1, 2, 3, 4, 5, 9, 2, 3], 8, 8), [4, 5, 9, 2, 3]);
        assert_eq!(guess(&[1, 2, 3, 4, 5, 9, 2, 3], 2, 8), [4, 5]);
        assert_eq!(guess(&[1, 2, 3, 4, 5, 9, 2, 3], 8, 1), [4]);
        // The longer match wins over the newer one.
        assert_eq!(guess(&[7, 1, 2, 5, 8, 1, 2, 6, 7, 1, 2], 1, 8), [5]);
        // The newer of equals.
        assert_eq!(guess(&[1, 2, 5, 1, 2, 6, 1, 2], 1, 8), [6]);
        // A repetition goes on.
        assert_eq!(guess(&[4, 4, 4], 3, 8), [4]);
    }

    #[test]
    fn nothing_is_guessed_without_a_precedent() {
        for said in [&[][..], &[1], &[1, 2], &[1, 2, 3, 4], &[1, 2, 3, 2]] {
            assert_eq!(guess(said, 8, 8), [0i32; 0], "{said:?}");
        }
        assert_eq!(guess(&[1, 2, 3, 1, 2], 0, 8), [0i32; 0]);
        assert_eq!(guess(&[1, 2, 3, 1, 2], 8, 0), [0i32; 0]);
    }

    #[test]
    fn a_chosen_token_uses_up_the_draft_only_if_it_is_next() {
        let mut d = Drafts::new(4, ids(&[1]), &ids(&[2]));
        d.ahead = ids(&[5, 6]).into();
        assert!(d.chose(ids(&[5])[0]));
        assert!(!d.chose(ids(&[7])[0]));
        assert_eq!((d.counts.accepted, d.ahead.len()), (1, 1));
        assert_eq!(d.history, ids(&[1, 2, 5, 7]));
    }
}
