//! A vocabulary's texts as a prefix tree.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::error::VocabularyError;
use crate::engine::EngineVocabulary;

/// Longest text of one token, in bytes.
const MAX_TOKEN_BYTES: usize = 4096;
/// Most tree nodes: their numbers are 32 bits.
const MAX_NODES: usize = 1 << 28;

/// What a token can do in constrained text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenRole<'a> {
    /// Adds these bytes (`llama_token_to_piece`); may be cut UTF-8. A text that is empty or has a
    /// NUL byte counts as [`Self::Excluded`]: the engine cannot match it.
    Text(&'a [u8]),
    /// Ends the generation (`llama_token_is_eog`).
    End,
    /// Control, unused or unknown: never part of constrained text.
    Excluded,
}

/// Prefix tree over the texts of all tokens, built once per vocabulary and cheap to clone.
#[derive(Debug, Clone)]
pub struct TokenTrie(Arc<Trie>);

#[derive(Debug)]
struct Trie {
    /// Distinguishes vocabularies in a matcher's cache.
    id: u64,
    /// In depth-first order.
    nodes: Vec<Node>,
    /// Tokens ordered by text; each node owns a run of them.
    tokens: Vec<u32>,
    ends: Vec<u32>,
    /// Per token, where its text lies in `text`; empty for tokens without.
    ranges: Vec<(u32, u32)>,
    is_end: Vec<bool>,
    text: Vec<u8>,
    max_depth: usize,
    /// The same for schemas, once one is used.
    engine: OnceLock<Result<EngineVocabulary, String>>,
}

/// One byte of a text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    /// Node after the subtree.
    pub(super) skip: u32,
    /// First of the tokens that end here.
    first: u32,
    /// Number of tokens that end here.
    count: u32,
    /// Bytes from the root, at least 1.
    pub(super) depth: u16,
    pub(super) byte: u8,
}

impl TokenTrie {
    /// Builds the tree; tokens are numbered in the order given.
    ///
    /// # Errors
    /// A token of more than 4,096 bytes, or more text than 32-bit numbers can address.
    pub fn build<'a>(vocabulary: impl IntoIterator<Item = TokenRole<'a>>) -> Result<Self, VocabularyError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut text = Vec::new();
        let mut ranges = Vec::new();
        let mut is_end = Vec::new();
        let mut ends = Vec::new();
        for (token, role) in vocabulary.into_iter().enumerate() {
            let Ok(token) = u32::try_from(token) else {
                return Err(VocabularyError::TooLarge { what: "tokens", max: u32::MAX.into() });
            };
            let start = text.len();
            match role {
                TokenRole::Text(bytes) => {
                    if bytes.len() > MAX_TOKEN_BYTES {
                        let (len, max) = (bytes.len(), MAX_TOKEN_BYTES);
                        return Err(VocabularyError::TokenTooLong { token, len, max });
                    }
                    if !bytes.contains(&0) {
                        text.extend_from_slice(bytes);
                    }
                }
                TokenRole::End => ends.push(token),
                TokenRole::Excluded => {}
            }
            if text.len() > MAX_NODES {
                return Err(VocabularyError::TooLarge { what: "bytes", max: MAX_NODES as u64 });
            }
            let range = (start, text.len());
            ranges.push((clip(range.0), clip(range.1)));
            is_end.push(role == TokenRole::End);
        }
        let text_of = |token: u32| {
            let (start, end): (u32, u32) = ranges[token as usize];
            &text[start as usize..end as usize]
        };
        let mut tokens: Vec<u32> = (0..clip(ranges.len())).filter(|&token| !text_of(token).is_empty()).collect();
        tokens.sort_unstable_by(|&a, &b| text_of(a).cmp(text_of(b)).then(a.cmp(&b)));

        let mut nodes: Vec<Node> = Vec::new();
        let mut open: Vec<usize> = Vec::new();
        let mut previous: &[u8] = &[];
        for (index, &token) in tokens.iter().enumerate() {
            let bytes = text_of(token);
            let same = bytes.iter().zip(previous).take_while(|(a, b)| a == b).count();
            for node in open.drain(same..) {
                nodes[node].skip = clip(nodes.len());
            }
            for (depth, &byte) in bytes.iter().enumerate().skip(same) {
                open.push(nodes.len());
                let depth = u16::try_from(depth + 1).unwrap_or(u16::MAX);
                nodes.push(Node { skip: 0, first: clip(index), count: 0, depth, byte });
            }
            if let Some(&last) = open.last() {
                nodes[last].count += 1;
            }
            previous = bytes;
        }
        for node in open {
            nodes[node].skip = clip(nodes.len());
        }
        let max_depth = nodes.iter().map(|node| usize::from(node.depth)).max().unwrap_or(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Self(Arc::new(Trie { id, nodes, tokens, ends, ranges, is_end, text, max_depth, engine: OnceLock::new() })))
    }

    /// Number of tokens of the vocabulary.
    #[must_use]
    pub fn vocabulary_len(&self) -> usize {
        self.0.ranges.len()
    }

    /// Number of tree nodes (distinct prefixes).
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.0.nodes.len()
    }

    /// The text of a token; empty for tokens without, `None` outside the vocabulary.
    #[must_use]
    pub fn text(&self, token: u32) -> Option<&[u8]> {
        let &(start, end) = self.0.ranges.get(token as usize)?;
        self.0.text.get(start as usize..end as usize)
    }

    /// Whether the token ends the generation.
    #[must_use]
    pub fn is_end(&self, token: u32) -> bool {
        self.0.is_end.get(token as usize).copied().unwrap_or(false)
    }

    pub(super) fn id(&self) -> u64 {
        self.0.id
    }

    pub(super) fn nodes(&self) -> &[Node] {
        &self.0.nodes
    }

    pub(super) fn tokens_at(&self, node: &Node) -> &[u32] {
        &self.0.tokens[node.first as usize..][..node.count as usize]
    }

    /// The vocabulary as the engine of schemas has it.
    pub(crate) fn engine(&self) -> Result<&EngineVocabulary, String> {
        let made = self.0.engine.get_or_init(|| {
            // The engine marks special tokens with a byte that UTF-8 never has.
            let text = |token: u32| self.text(token).filter(|text| !text.contains(&0xFF)).unwrap_or_default();
            let words: Vec<Vec<u8>> = (0..clip(self.vocabulary_len())).map(|token| text(token).to_vec()).collect();
            EngineVocabulary::build(&words, self.ends())
        });
        made.as_ref().map_err(Clone::clone)
    }

    pub(crate) fn ends(&self) -> &[u32] {
        &self.0.ends
    }

    pub(super) fn max_depth(&self) -> usize {
        self.0.max_depth
    }
}

/// All counts here are bounded by `MAX_NODES` or checked to fit before.
fn clip(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
