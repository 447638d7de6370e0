//! Which positions each sequence of a context holds.

use std::ops::Range;

/// Positions of one sequence as sorted, disjoint, non-adjacent ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PositionSet {
    ranges: Vec<Range<i32>>,
}

impl PositionSet {
    /// Number of positions.
    pub fn len(&self) -> usize {
        self.ranges.iter().map(|r| usize::try_from(r.end - r.start).unwrap_or(0)).sum()
    }

    /// No position at all?
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The highest position.
    pub fn last(&self) -> Option<i32> {
        self.ranges.last().map(|r| r.end - 1)
    }

    /// The lowest position.
    pub fn first(&self) -> Option<i32> {
        self.ranges.first().map(|r| r.start)
    }

    /// The ranges, ascending.
    pub fn ranges(&self) -> &[Range<i32>] {
        &self.ranges
    }

    /// Adds a position behind all others; the caller has checked that.
    pub(crate) fn push(&mut self, pos: i32) {
        match self.ranges.last_mut() {
            Some(last) if last.end == pos => last.end += 1,
            _ => self.ranges.push(pos..pos + 1),
        }
    }

    /// Removes `[from, to)`.
    pub(crate) fn remove(&mut self, from: i32, to: i32) {
        let mut kept = Vec::with_capacity(self.ranges.len() + 1);
        for r in self.ranges.drain(..) {
            if r.end <= from || r.start >= to {
                kept.push(r);
                continue;
            }
            if r.start < from {
                kept.push(r.start..from);
            }
            if r.end > to {
                kept.push(to..r.end);
            }
        }
        self.ranges = kept;
    }

    /// The positions in `[from, to)`.
    pub(crate) fn slice(&self, from: i32, to: i32) -> Self {
        let mut part = self.clone();
        part.remove(i32::MIN, from);
        part.remove(to, i32::MAX);
        part
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::PositionSet;

    proptest! {
        #[test]
        fn behaves_like_a_set_of_integers(
            mut a in proptest::collection::btree_set(0..60i32, 0..30),
            from in 0..60i32,
            to in 0..60i32,
        ) {
            let build = |s: &BTreeSet<i32>| {
                let mut p = PositionSet::default();
                s.iter().for_each(|&x| p.push(x));
                p
            };
            let members = |p: &PositionSet| p.ranges().iter().cloned().flatten().collect::<BTreeSet<_>>();
            let mut set = build(&a);
            prop_assert_eq!(set.len(), a.len());
            prop_assert_eq!(set.last(), a.last().copied());
            prop_assert_eq!(members(&set.slice(from, to)), a.iter().copied().filter(|x| (from..to).contains(x)).collect());
            set.remove(from, to);
            a.retain(|x| !(from..to).contains(x));
            prop_assert_eq!(&members(&set), &a);
        }
    }
}
