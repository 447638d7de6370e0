//! Bounds on schemas and on the work of compiling and matching them.

/// Bounds that hold before and during the work.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SchemaLimits {
    /// Bytes of schema text.
    pub max_text_bytes: usize,
    /// Depth of JSON values in one another.
    pub max_depth: usize,
    /// Subschemas.
    pub max_schemas: usize,
    /// Values of one `enum`.
    pub max_enum: usize,
    /// Bytes of all `enum` and `const` values.
    pub max_constant_bytes: usize,
    /// JSON values in all `enum` and `const`, those inside others counted.
    pub max_constant_values: usize,
    /// Properties of one object that have names of their own.
    pub max_named_properties: usize,
    /// Characters of one `pattern`.
    pub max_pattern_chars: usize,
    /// Largest `minLength` and `minItems`; nothing shorter than that fits, and no answer is that long.
    pub max_minimum: u64,
    /// Ways in which the combinators of one schema can be met, each with its own rules.
    pub max_branches: usize,
    /// Conjunctions of subschemas that get rules of their own.
    pub max_conjunctions: usize,
    /// Symbols of the grammar.
    pub max_symbols: usize,
    /// Steps of expansion of combinators, over the whole schema.
    pub max_expansion: usize,
    /// Derivatives that deciding one regular expression's emptiness may take.
    pub max_regex_fuel: u64,
    /// Bytes of an answer that the validator reads.
    pub max_answer_bytes: usize,
    /// Steps of the validator on one answer.
    pub max_validation_steps: u64,
}

impl Default for SchemaLimits {
    fn default() -> Self {
        Self {
            max_text_bytes: 2 << 20,
            max_depth: 96,
            max_schemas: 20_000,
            max_enum: 10_000,
            max_constant_bytes: 512 << 10,
            max_constant_values: 20_000,
            max_named_properties: 1_500,
            max_pattern_chars: 4_096,
            max_minimum: 100_000,
            max_branches: 256,
            max_conjunctions: 20_000,
            max_symbols: 60_000,
            max_expansion: 200_000,
            max_regex_fuel: 5_000,
            max_answer_bytes: 4 << 20,
            max_validation_steps: 10_000_000,
        }
    }
}
