//! The characters of a grammar grouped into symbols, and UTF-8 decoding into symbols.
//!
//! Two characters are the same symbol when every class of the grammar treats them alike. A JSON
//! grammar has a few dozen symbols, so that transitions fit small tables. Decoding follows the
//! Unicode standard's well-formed sequences: no overlong forms, no surrogates, nothing above
//! U+10FFFF; what it refuses never becomes output.

use std::collections::HashMap;

use super::charset::{MAX_SCALAR, SURROGATES, intersects};

/// A group of characters that no class tells apart.
pub(super) type Symbol = u32;

/// No symbol: U+0000 or an ill-formed sequence.
pub(super) const NO_SYMBOL: Symbol = u32::MAX;

/// State of the UTF-8 decoder: 0 between characters, else inside one.
pub(super) type Utf8State = u32;

/// Between characters.
pub(super) const BETWEEN: Utf8State = 0;

/// What a byte does to the decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// A character is complete.
    Symbol(Symbol),
    /// A character goes on.
    Inside(Utf8State),
    /// Not UTF-8 (or U+0000).
    Invalid,
}

pub(super) struct Alphabet {
    /// Starts of the intervals in which all characters are one symbol.
    starts: Vec<u32>,
    /// Symbol of each interval.
    symbols: Vec<Symbol>,
    symbol_count: u32,
    /// Per class, a bit for each symbol.
    members: Vec<Box<[u64]>>,
    ascii: [Step; 128],
    lead: [Step; 128],
    /// Decoder states; index 0 is unused ([`BETWEEN`]).
    nodes: Vec<Node>,
}

struct Node {
    next: [Step; 64],
    /// Characters that can still come out, as the engine computes them for a cut token.
    low: u32,
    high: u32,
    /// The symbol, when all of them are the same.
    uniform: Option<Symbol>,
}

impl Alphabet {
    /// `classes`: the scalar values of each class.
    pub(super) fn new(classes: &[Vec<(u32, u32)>]) -> Self {
        let mut starts = vec![0, 1, 0x80, SURROGATES.0, SURROGATES.1 + 1, MAX_SCALAR + 1];
        for &(low, high) in classes.iter().flatten() {
            starts.push(low);
            starts.push(high + 1);
        }
        starts.sort_unstable();
        starts.dedup();

        // Split the intervals by every class in turn; the label is the block.
        let mut labels = vec![0_u32; starts.len()];
        let mut next_label = 1_u32;
        let mut split: HashMap<u32, u32> = HashMap::new();
        for class in classes {
            split.clear();
            for &(low, high) in class {
                let from = starts.partition_point(|&start| start < low);
                for (start, label) in starts[from..].iter().zip(&mut labels[from..]) {
                    if *start > high {
                        break;
                    }
                    *label = *split.entry(*label).or_insert_with(|| {
                        next_label += 1;
                        next_label
                    });
                }
            }
        }

        // Number the symbols: those with ASCII characters first, then by how many characters they
        // hold, because low numbers get dense tables.
        let mut weight: HashMap<u32, (bool, u64)> = HashMap::new();
        for (index, &start) in starts.iter().enumerate() {
            if Self::is_hole(start) {
                continue;
            }
            let end = starts.get(index + 1).copied().unwrap_or(MAX_SCALAR + 1);
            let entry = weight.entry(labels[index]).or_default();
            entry.0 |= start < 0x80;
            entry.1 += u64::from(end - start);
        }
        let mut order: Vec<(u32, (bool, u64))> = weight.into_iter().collect();
        order.sort_unstable_by_key(|&(label, (ascii, size))| (!ascii, u64::MAX - size, label));
        let number: HashMap<u32, Symbol> = order.iter().zip(0..).map(|(&(label, _), symbol)| (label, symbol)).collect();
        let symbol_count = u32::try_from(order.len()).unwrap_or(NO_SYMBOL);
        let symbols: Vec<Symbol> = starts
            .iter()
            .zip(&labels)
            .map(
                |(&start, label)| {
                    if Self::is_hole(start) { NO_SYMBOL } else { number.get(label).copied().unwrap_or(NO_SYMBOL) }
                },
            )
            .collect();

        let words = (symbol_count as usize).div_ceil(64);
        let members = classes
            .iter()
            .map(|class| {
                let mut bits = vec![0_u64; words].into_boxed_slice();
                for &(low, high) in class {
                    let from = starts.partition_point(|&start| start < low);
                    for (start, &symbol) in starts[from..].iter().zip(&symbols[from..]) {
                        if *start > high {
                            break;
                        }
                        if symbol != NO_SYMBOL {
                            bits[symbol as usize / 64] |= 1 << (symbol % 64);
                        }
                    }
                }
                bits
            })
            .collect();

        let unused = Node { next: [Step::Invalid; 64], low: 1, high: 0, uniform: None };
        let mut alphabet = Self {
            starts,
            symbols,
            symbol_count,
            members,
            ascii: [Step::Invalid; 128],
            lead: [Step::Invalid; 128],
            nodes: vec![unused],
        };
        for byte in 1..128_u32 {
            alphabet.ascii[byte as usize] = alphabet.whole(byte);
        }
        let mut shared = HashMap::new();
        for byte in 0xC2..=0xF4_u32 {
            let (bits, remaining) = match byte {
                ..=0xDF => (byte & 0x1F, 1),
                0xE0..=0xEF => (byte & 0x0F, 2),
                _ => (byte & 0x07, 3),
            };
            let smallest = [0, 0x80, 0x800, 0x1_0000][remaining as usize];
            alphabet.lead[byte as usize - 128] = alphabet.node(bits, remaining, smallest, &mut shared);
        }
        alphabet
    }

    /// Intervals that are no characters of any text: U+0000, surrogates, above the last.
    fn is_hole(start: u32) -> bool {
        start == 0 || (SURROGATES.0..=SURROGATES.1).contains(&start) || start > MAX_SCALAR
    }

    fn interval(&self, character: u32) -> usize {
        self.starts.partition_point(|&start| start <= character) - 1
    }

    fn whole(&self, character: u32) -> Step {
        match self.symbols[self.interval(character)] {
            NO_SYMBOL => Step::Invalid,
            symbol => Step::Symbol(symbol),
        }
    }

    /// The symbol of all of `low..=high`, if it is one.
    fn uniform(&self, low: u32, high: u32) -> Option<Symbol> {
        let from = self.interval(low);
        let to = self.interval(high);
        let first = self.symbols[from];
        let same = first != NO_SYMBOL && self.symbols[from..=to].iter().all(|&s| s == first);
        same.then_some(first)
    }

    /// Decoder state after the bits `value` with `remaining` bytes to come; `smallest` is the
    /// least character of this length (anything below is overlong).
    fn node(
        &mut self,
        value: u32,
        remaining: u32,
        smallest: u32,
        shared: &mut HashMap<(u32, Symbol), Utf8State>,
    ) -> Step {
        let span = (1_u32 << (6 * remaining)) - 1;
        let (low, high) = (value << (6 * remaining), (value << (6 * remaining)) | span);
        let legal = |low: u32, high: u32| {
            let (low, high) = (low.max(smallest), high.min(MAX_SCALAR));
            low <= high && !(low >= SURROGATES.0 && high <= SURROGATES.1)
        };
        if !legal(low, high) {
            return Step::Invalid;
        }
        let complete = low >= smallest && high <= MAX_SCALAR && (high < SURROGATES.0 || low > SURROGATES.1);
        let uniform = if complete { self.uniform(low, high) } else { None };
        if let Some(symbol) = uniform
            && let Some(&state) = shared.get(&(remaining, symbol))
        {
            return Step::Inside(state);
        }
        let mut next = [Step::Invalid; 64];
        for (bits, step) in (0..64).zip(&mut next) {
            let value = (value << 6) | bits;
            *step = if remaining > 1 {
                self.node(value, remaining - 1, smallest, shared)
            } else if legal(value, value) {
                self.whole(value)
            } else {
                Step::Invalid
            };
        }
        let state = u32::try_from(self.nodes.len()).unwrap_or(BETWEEN);
        // The engine raises the lower end only where the bits so far are all zero, which is the
        // same thing for well-formed sequences.
        self.nodes.push(Node { next, low: low.max(smallest), high, uniform });
        if let Some(symbol) = uniform {
            shared.insert((remaining, symbol), state);
        }
        Step::Inside(state)
    }

    pub(super) fn symbol_count(&self) -> u32 {
        self.symbol_count
    }

    pub(super) fn state_count(&self) -> usize {
        self.nodes.len()
    }

    /// What `byte` does in `state`.
    #[inline]
    pub(super) fn step(&self, state: Utf8State, byte: u8) -> Step {
        if state == BETWEEN {
            let index = usize::from(byte & 0x7F);
            if byte < 0x80 { self.ascii[index] } else { self.lead[index] }
        } else if byte & 0xC0 == 0x80 {
            self.nodes[state as usize].next[usize::from(byte & 0x3F)]
        } else {
            Step::Invalid
        }
    }

    /// Whether `class` has the characters of `symbol`.
    #[inline]
    pub(super) fn contains(&self, class: u32, symbol: Symbol) -> bool {
        self.members[class as usize][symbol as usize / 64] >> (symbol % 64) & 1 == 1
    }

    /// Whether some character that `state` can still become is in the class.
    pub(super) fn can_become(&self, state: Utf8State, class: u32, scalars: &[(u32, u32)]) -> bool {
        let node = &self.nodes[state as usize];
        match node.uniform {
            Some(symbol) => self.contains(class, symbol),
            None => intersects(scalars, node.low, node.high.min(MAX_SCALAR)),
        }
    }

    /// First and last character that the engine thinks `state` can still become.
    pub(super) fn span(&self, state: Utf8State) -> (u32, u32) {
        let node = &self.nodes[state as usize];
        (node.low, node.high)
    }
}
