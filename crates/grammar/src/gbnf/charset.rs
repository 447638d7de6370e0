//! Character classes as sets of Unicode scalar values.

/// Largest Unicode scalar value.
pub(super) const MAX_SCALAR: u32 = 0x10_FFFF;
/// First and last surrogate, which no UTF-8 text contains.
pub(super) const SURROGATES: (u32, u32) = (0xD800, 0xDFFF);

/// One terminal of a grammar: `[a-z]`, `[^a-z]`, `.` (as `[^]`), or a literal's character.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct CharClass {
    /// Whether `listed` is what is excluded.
    pub(super) negated: bool,
    /// The ranges as written, sorted and merged; may contain U+0000 and surrogates.
    pub(super) listed: Vec<(u32, u32)>,
}

impl CharClass {
    pub(super) fn new(negated: bool, mut ranges: Vec<(u32, u32)>) -> Self {
        ranges.sort_unstable();
        let mut listed: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        for (low, high) in ranges {
            match listed.last_mut() {
                Some(last) if low <= last.1.saturating_add(1) => last.1 = last.1.max(high),
                _ => listed.push((low, high)),
            }
        }
        Self { negated, listed }
    }

    pub(super) fn any() -> Self {
        Self::new(true, Vec::new())
    }

    pub(super) fn single(character: u32) -> Self {
        Self::new(false, vec![(character, character)])
    }

    /// The scalar values that match: sorted, disjoint, without U+0000 and surrogates.
    pub(super) fn scalars(&self) -> Vec<(u32, u32)> {
        let mut out = Vec::new();
        let mut keep = |low: u32, high: u32| {
            // U+0000 ends a token's text in the engine, so no output contains it.
            for (from, to) in [(1, SURROGATES.0 - 1), (SURROGATES.1 + 1, MAX_SCALAR)] {
                let (low, high) = (low.max(from), high.min(to));
                if low <= high {
                    out.push((low, high));
                }
            }
        };
        if self.negated {
            let mut next = 0;
            for &(low, high) in &self.listed {
                if low > next {
                    keep(next, low - 1);
                }
                next = high.saturating_add(1);
            }
            if next <= MAX_SCALAR {
                keep(next, MAX_SCALAR);
            }
        } else {
            for &(low, high) in &self.listed {
                keep(low, high);
            }
        }
        out
    }

    /// The engine's verdict on a token that ends inside a character which can still become
    /// anything in `low..=high` (`llama_grammar_match_partial_char`): a negated class refuses it
    /// as soon as one excluded character lies in that span.
    pub(super) fn engine_accepts_partial(&self, low: u32, high: u32) -> bool {
        let index = self.listed.partition_point(|&(_, end)| end < low);
        let overlaps = self.listed.get(index).is_some_and(|&(start, _)| start <= high);
        overlaps != self.negated
    }
}

/// Whether a sorted disjoint range list has something in `low..=high`.
pub(super) fn intersects(ranges: &[(u32, u32)], low: u32, high: u32) -> bool {
    let index = ranges.partition_point(|&(_, end)| end < low);
    ranges.get(index).is_some_and(|&(start, _)| start <= high)
}
