//! Bounds of the reader.

/// Bounds that [`Gguf`](super::Gguf) enforces before it allocates.
///
/// Every count and length in a file is compared with the bytes that the file still has,
/// so a tiny file can never ask for more than a small fixed multiple of its own size.
/// These limits come on top, for files that are large and hostile.
/// The defaults are about ten times the largest header seen in the field
/// (a 256k vocabulary with merges, 12 MiB).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Largest header (everything before the tensor data), bytes. At most `u32::MAX` is used.
    pub max_header_bytes: u64,
    /// Largest number of key-value pairs. The engine searches them linearly for each key it needs.
    pub max_keys: u64,
    /// Largest number of tensors. The engine compares each name with all earlier ones.
    pub max_tensors: u64,
    /// Longest key, bytes (the GGUF specification's own limit is 65,535).
    pub max_key_bytes: u64,
    /// Longest string value, bytes (chat templates, embedded `tokenizer.json`).
    pub max_string_bytes: u64,
    /// Largest number of elements of one array. The engine keeps it in a C `int`.
    pub max_array_elements: u64,
    /// Turn the warnings that make output silently differ from the reference
    /// (see [`GgufWarning::is_strict`](super::GgufWarning::is_strict)) into errors.
    pub strict: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_header_bytes: 128 << 20,
            max_keys: 1 << 16,
            max_tensors: 1 << 16,
            max_key_bytes: 65_535,
            max_string_bytes: 64 << 20,
            max_array_elements: 1 << 24,
            strict: false,
        }
    }
}

impl Limits {
    /// The default limits with [`strict`](Self::strict) set.
    #[must_use]
    pub fn strict() -> Self {
        Self { strict: true, ..Self::default() }
    }

    /// The header bound in force: string tables index their bytes with 32 bits.
    pub(super) fn header_bytes(&self) -> u64 {
        self.max_header_bytes.min(u64::from(u32::MAX))
    }
}
