//! Element types of a KV cache.

use std::fmt;
use std::str::FromStr;

/// Element type of the keys or values of a KV cache.
///
/// These are the ggml types for which the pinned engine has both halves of the work: storing
/// (`from_float` in ggml's type traits) and attention on the stored form (`vec_dot` for keys,
/// `to_float` for values), in blocks that divide a head of 32 elements or more. Other ggml types
/// abort or crash the engine when a context is created with them or decodes, so they have no name
/// here. Which of these a *context* accepts depends on flash attention as well: without it, values
/// are f16 only; with it, neither keys nor values can be f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KvType {
    /// IEEE 754 single precision (`GGML_TYPE_F32`).
    F32,
    /// IEEE 754 half precision (`GGML_TYPE_F16`), the engine's default.
    F16,
    /// bfloat16 (`GGML_TYPE_BF16`).
    Bf16,
    /// Blocks of 32: an f16 scale and 4-bit codes (`GGML_TYPE_Q4_0`).
    Q4_0,
    /// Blocks of 32: f16 scale and minimum, 4-bit codes (`GGML_TYPE_Q4_1`).
    Q4_1,
    /// Blocks of 32: an f16 scale and 5-bit codes (`GGML_TYPE_Q5_0`).
    Q5_0,
    /// Blocks of 32: f16 scale and minimum, 5-bit codes (`GGML_TYPE_Q5_1`).
    Q5_1,
    /// Blocks of 32: an f16 scale and 8-bit codes (`GGML_TYPE_Q8_0`).
    Q8_0,
    /// Blocks of 32: an f16 scale and 4-bit codes into a fixed table (`GGML_TYPE_IQ4_NL`).
    Iq4Nl,
}

impl KvType {
    /// Every type, in the order of ggml's numbers.
    pub const ALL: [KvType; 9] = [
        KvType::F32,
        KvType::F16,
        KvType::Q4_0,
        KvType::Q4_1,
        KvType::Q5_0,
        KvType::Q5_1,
        KvType::Q8_0,
        KvType::Iq4Nl,
        KvType::Bf16,
    ];

    /// The number of the type in ggml's `enum ggml_type`, as a blob carries it.
    pub const fn ggml_id(self) -> i32 {
        match self {
            KvType::F32 => 0,
            KvType::F16 => 1,
            KvType::Q4_0 => 2,
            KvType::Q4_1 => 3,
            KvType::Q5_0 => 6,
            KvType::Q5_1 => 7,
            KvType::Q8_0 => 8,
            KvType::Iq4Nl => 20,
            KvType::Bf16 => 30,
        }
    }

    /// The type with this ggml number, or `None` if no KV cache can have it.
    pub fn from_ggml_id(id: i32) -> Option<KvType> {
        KvType::ALL.into_iter().find(|t| t.ggml_id() == id)
    }

    /// The name ggml uses (`ggml_type_name`): `f16`, `q8_0`, …
    pub const fn name(self) -> &'static str {
        match self {
            KvType::F32 => "f32",
            KvType::F16 => "f16",
            KvType::Bf16 => "bf16",
            KvType::Q4_0 => "q4_0",
            KvType::Q4_1 => "q4_1",
            KvType::Q5_0 => "q5_0",
            KvType::Q5_1 => "q5_1",
            KvType::Q8_0 => "q8_0",
            KvType::Iq4Nl => "iq4_nl",
        }
    }

    /// Elements in a block (`ggml_blck_size`): 1 for floats, 32 for the quantized types.
    pub const fn block_len(self) -> u32 {
        match self {
            KvType::F32 | KvType::F16 | KvType::Bf16 => 1,
            _ => 32,
        }
    }

    /// Bytes in a block (`ggml_type_size`).
    pub const fn block_bytes(self) -> u32 {
        match self {
            KvType::F32 => 4,
            KvType::F16 | KvType::Bf16 => 2,
            KvType::Q4_0 | KvType::Iq4Nl => 2 + 16,
            KvType::Q4_1 => 4 + 16,
            KvType::Q5_0 => 2 + 4 + 16,
            KvType::Q5_1 => 4 + 4 + 16,
            KvType::Q8_0 => 2 + 32,
        }
    }

    /// Whether the type stores blocks of codes rather than floats.
    pub const fn is_quantized(self) -> bool {
        self.block_len() != 1
    }

    /// Bytes of a row of `elements` (`ggml_row_size`), or `None` if `elements` is not a whole
    /// number of blocks.
    pub fn row_bytes(self, elements: u32) -> Option<u64> {
        if !elements.is_multiple_of(self.block_len()) {
            return None;
        }
        Some(u64::from(elements / self.block_len()) * u64::from(self.block_bytes()))
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no [`KvType`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown KV type {0:?}; the engine's KV caches can be f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0 or iq4_nl")]
pub struct UnknownKvType(pub String);

impl FromStr for KvType {
    type Err = UnknownKvType;

    fn from_str(s: &str) -> Result<KvType, UnknownKvType> {
        KvType::ALL.into_iter().find(|t| t.name() == s).ok_or_else(|| UnknownKvType(s.chars().take(32).collect()))
    }
}
