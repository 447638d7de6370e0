//! Bounds on a grammar and on the work of matching it.

use std::fmt;

/// Bounds that a grammar and its matchers obey.
///
/// The defaults leave room for tool registries of hundreds of tools; what they exclude is what
/// exhausts the engine's stack or memory, or makes it run for minutes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct GrammarLimits {
    /// Bytes of grammar text.
    pub max_text_bytes: usize,
    /// Depth of groups, and of repetition operators stacked on one item. The engine's parser
    /// recurses on groups.
    pub max_nesting: usize,
    /// Largest count in `{m,n}`. The engine truncates counts to 32 bits and expands them.
    pub max_repetition: u32,
    /// Largest product of the counts of repetitions nested in one another within one rule.
    pub max_repetition_product: u64,
    /// Elements after the engine's expansion of repetitions and groups.
    pub max_elements: usize,
    /// Rules after the engine's expansion of repetitions and groups.
    pub max_rules: usize,
    /// Different character classes (each different literal character is one).
    pub max_classes: usize,
    /// Steps in which the engine reaches the next characters from one place: it walks every path
    /// and does not notice that two of them are the same.
    pub max_expansion: u32,
    /// Depth of the engine's recursion in one such expansion.
    pub max_recursion: u32,
    /// Stacks (ways of reading the text so far) that a matcher follows at once.
    pub max_stacks: usize,
    /// Depth of a stack: open rules whose rest is still to come.
    pub max_stack_depth: u32,
    /// Bytes of a matcher's own tables. They are emptied between calls when half full.
    pub max_table_bytes: usize,
    /// Masks that a matcher keeps.
    pub max_cached_masks: usize,
}

impl Default for GrammarLimits {
    fn default() -> Self {
        Self {
            max_text_bytes: 1 << 20,
            max_nesting: 128,
            max_repetition: 10_000,
            max_repetition_product: 1_000_000,
            max_elements: 1 << 18,
            max_rules: 1 << 17,
            max_classes: 4096,
            max_expansion: 1 << 16,
            max_recursion: 4096,
            max_stacks: 4096,
            max_stack_depth: 1024,
            max_table_bytes: 48 << 20,
            max_cached_masks: 1024,
        }
    }
}

/// Which of the [`GrammarLimits`] was exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GrammarLimit {
    /// [`GrammarLimits::max_text_bytes`].
    TextBytes,
    /// [`GrammarLimits::max_nesting`].
    Nesting,
    /// [`GrammarLimits::max_repetition`].
    Repetition,
    /// [`GrammarLimits::max_repetition_product`].
    RepetitionProduct,
    /// [`GrammarLimits::max_elements`].
    Elements,
    /// [`GrammarLimits::max_rules`].
    Rules,
    /// [`GrammarLimits::max_classes`].
    Classes,
    /// [`GrammarLimits::max_expansion`].
    Expansion,
    /// [`GrammarLimits::max_recursion`].
    Recursion,
    /// [`GrammarLimits::max_stacks`].
    Stacks,
    /// [`GrammarLimits::max_stack_depth`].
    StackDepth,
    /// [`GrammarLimits::max_table_bytes`].
    TableBytes,
}

impl fmt::Display for GrammarLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TextBytes => "bytes of grammar text",
            Self::Nesting => "nesting depth",
            Self::Repetition => "repetition count",
            Self::RepetitionProduct => "product of nested repetition counts",
            Self::Elements => "elements after expansion",
            Self::Rules => "rules after expansion",
            Self::Classes => "different character classes",
            Self::Expansion => "expansion steps at one place",
            Self::Recursion => "expansion depth at one place",
            Self::Stacks => "parallel readings of the text",
            Self::StackDepth => "open rules",
            Self::TableBytes => "bytes of matcher tables",
        })
    }
}
