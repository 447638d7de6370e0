//! The tokens that may come next.

/// One bit per token of the vocabulary: set if the token may come next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u64>,
    len: usize,
    limited: bool,
}

impl TokenMask {
    pub(crate) fn none(len: usize) -> Self {
        Self { words: vec![0; len.div_ceil(64)], len, limited: false }
    }

    /// The same from halves of words, the lower first.
    pub(crate) fn of_words(halves: &[u32], len: usize) -> Self {
        let mut words: Vec<u64> = halves
            .chunks(2)
            .map(|pair| u64::from(pair[0]) | u64::from(pair.get(1).copied().unwrap_or(0)) << 32)
            .collect();
        words.resize(len.div_ceil(64), 0);
        if let Some(last) = words.last_mut()
            && !len.is_multiple_of(64)
        {
            *last &= (1 << (len % 64)) - 1;
        }
        Self { words, len, limited: false }
    }

    #[inline]
    pub(crate) fn allow(&mut self, token: u32) {
        self.words[token as usize / 64] |= 1 << (token % 64);
    }

    pub(super) fn set_limited(&mut self) {
        self.limited = true;
    }

    /// Number of tokens of the vocabulary.
    #[must_use]
    pub fn vocabulary_len(&self) -> usize {
        self.len
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

    /// Whether nothing may come next: a dead end for this vocabulary.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    /// Whether a limit of the matcher, not the grammar, kept some token out.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.limited
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

    /// Sets the logits of all tokens that may not come next to −∞ (one logit per token; those
    /// beyond the vocabulary are barred too).
    pub fn apply(&self, logits: &mut [f32]) {
        for (logits, word) in logits.chunks_mut(64).zip(self.words.iter().chain(std::iter::repeat(&0))) {
            if *word == u64::MAX {
                continue;
            }
            for (bit, logit) in logits.iter_mut().enumerate() {
                if word >> bit & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }

    /// Bytes held.
    pub(super) fn size(&self) -> usize {
        self.words.len() * 8
    }
}
