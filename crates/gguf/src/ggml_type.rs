//! Tensor types of the pinned engine.

use std::fmt;

/// A tensor type, numbered as in the pinned engine (`enum ggml_type` in `ggml.h`).
///
/// The fork and upstream llama.cpp agree up to 35. From 36 on the same numbers mean different
/// things: see [`upstream_name`](Self::upstream_name).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
#[non_exhaustive]
#[allow(missing_docs, non_camel_case_types, reason = "the names are ggml's own, and well known under them")]
pub enum GgmlType {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q8_1 = 9,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    Q8_K = 15,
    IQ2_XXS = 16,
    IQ2_XS = 17,
    IQ3_XXS = 18,
    IQ1_S = 19,
    IQ4_NL = 20,
    IQ3_S = 21,
    IQ2_S = 22,
    IQ4_XS = 23,
    I8 = 24,
    I16 = 25,
    I32 = 26,
    I64 = 27,
    F64 = 28,
    IQ1_M = 29,
    BF16 = 30,
    Q4_0_4_4 = 31,
    Q4_0_4_8 = 32,
    Q4_0_8_8 = 33,
    TQ1_0 = 34,
    TQ2_0 = 35,
    /// Ternary, 2 bits a weight, one scale a tensor (this fork's alone).
    I2_S = 36,
    I8_S = 37,
    TL1 = 38,
    TL2 = 39,
}

/// Weights in an I2_S block of the x86 packing: 128 weights in 32 bytes.
pub const I2_S_BLOCK: u64 = 128;
/// Rows of an I2_S matrix come in fours: with other counts the engine's row split between
/// threads writes past a thread's share and results are wrong.
pub const I2_S_ROWS: u64 = 4;
/// Bytes after the packed weights of an I2_S tensor: one f32 scale and padding.
pub const I2_S_TAIL: u64 = 32;

/// What a number in a file means that this build has no [`GgmlType`] for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnknownType {
    /// Was a type once; the engine dropped it (block size 0).
    Removed(&'static str),
    /// Newer upstream numbers that the fork does not have.
    Upstream(&'static str),
    /// Nothing known.
    Nothing,
}

impl GgmlType {
    /// Every type of the pinned engine, by number.
    pub const ALL: [Self; 38] = [
        Self::F32,
        Self::F16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q8_1,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::Q8_K,
        Self::IQ2_XXS,
        Self::IQ2_XS,
        Self::IQ3_XXS,
        Self::IQ1_S,
        Self::IQ4_NL,
        Self::IQ3_S,
        Self::IQ2_S,
        Self::IQ4_XS,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::F64,
        Self::IQ1_M,
        Self::BF16,
        Self::Q4_0_4_4,
        Self::Q4_0_4_8,
        Self::Q4_0_8_8,
        Self::TQ1_0,
        Self::TQ2_0,
        Self::I2_S,
        Self::I8_S,
        Self::TL1,
        Self::TL2,
    ];

    /// The number in the file.
    #[must_use]
    pub fn number(self) -> u32 {
        self as u32
    }

    /// The type with this number in the pinned engine.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|ty| ty.number() == number)
    }

    /// The type with this name, as the engine prints it (`f16`, `q8_0`, `i2_s`), case ignored.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ty| ty.name().eq_ignore_ascii_case(name))
    }

    pub(super) fn unknown(number: u32) -> UnknownType {
        match number {
            4 => UnknownType::Removed("q4_2"),
            5 => UnknownType::Removed("q4_3"),
            40 => UnknownType::Upstream("nvfp4"),
            _ => UnknownType::Nothing,
        }
    }

    /// The engine's own name for it (`type_name` in `ggml.c`).
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Q8_0 => "q8_0",
            Self::Q8_1 => "q8_1",
            Self::Q2_K => "q2_K",
            Self::Q3_K => "q3_K",
            Self::Q4_K => "q4_K",
            Self::Q5_K => "q5_K",
            Self::Q6_K => "q6_K",
            Self::Q8_K => "q8_K",
            Self::IQ2_XXS => "iq2_xxs",
            Self::IQ2_XS => "iq2_xs",
            Self::IQ3_XXS => "iq3_xxs",
            Self::IQ1_S => "iq1_s",
            Self::IQ4_NL => "iq4_nl",
            Self::IQ3_S => "iq3_s",
            Self::IQ2_S => "iq2_s",
            Self::IQ4_XS => "iq4_xs",
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::F64 => "f64",
            Self::IQ1_M => "iq1_m",
            Self::BF16 => "bf16",
            Self::Q4_0_4_4 => "q4_0_4x4",
            Self::Q4_0_4_8 => "q4_0_4x8",
            Self::Q4_0_8_8 => "q4_0_8x8",
            Self::TQ1_0 => "tq1_0",
            Self::TQ2_0 => "tq2_0",
            Self::I2_S => "i2_s",
            Self::I8_S => "i8_s",
            Self::TL1 => "tl1",
            Self::TL2 => "tl2",
        }
    }

    /// What upstream llama.cpp means by the same number, where that differs.
    #[must_use]
    pub fn upstream_name(self) -> Option<&'static str> {
        match self {
            Self::I2_S => Some("iq4_nl_4_4"),
            Self::I8_S => Some("iq4_nl_4_8"),
            Self::TL1 => Some("iq4_nl_8_8"),
            Self::TL2 => Some("mxfp4"),
            _ => None,
        }
    }

    /// Why this build computes nothing with tensors of this type, if that is so.
    #[must_use]
    pub fn refusal(self) -> Option<&'static str> {
        match self {
            Self::TL1 => Some("lookup-table kernels for ARM are not compiled in; quantize the model to i2_s"),
            Self::TL2 => Some("lookup-table kernels for x86 are not compiled in; quantize the model to i2_s"),
            Self::I8_S => Some("it is the engine's type for activations and never a weight"),
            _ => None,
        }
    }

    /// Elements in a block; a row is a whole number of blocks.
    ///
    /// ggml itself says 1 for I2_S and counts bytes apart; here it is the packing's 128.
    #[must_use]
    pub fn block_len(self) -> u64 {
        match self {
            Self::Q4_0
            | Self::Q4_1
            | Self::Q5_0
            | Self::Q5_1
            | Self::Q8_0
            | Self::Q8_1
            | Self::IQ4_NL
            | Self::Q4_0_4_4
            | Self::Q4_0_4_8
            | Self::Q4_0_8_8 => 32,
            Self::Q2_K
            | Self::Q3_K
            | Self::Q4_K
            | Self::Q5_K
            | Self::Q6_K
            | Self::Q8_K
            | Self::IQ2_XXS
            | Self::IQ2_XS
            | Self::IQ3_XXS
            | Self::IQ1_S
            | Self::IQ3_S
            | Self::IQ2_S
            | Self::IQ4_XS
            | Self::IQ1_M
            | Self::TQ1_0
            | Self::TQ2_0 => 256,
            Self::I2_S => I2_S_BLOCK,
            Self::F32
            | Self::F16
            | Self::I8
            | Self::I16
            | Self::I32
            | Self::I64
            | Self::F64
            | Self::BF16
            | Self::I8_S
            | Self::TL1
            | Self::TL2 => 1,
        }
    }

    /// Bytes of a block (`sizeof(block_…)` in `ggml-common.h`); for I2_S without the tensor's tail.
    #[must_use]
    pub fn block_bytes(self) -> u64 {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::BF16 | Self::I16 => 2,
            Self::I64 | Self::F64 => 8,
            Self::I8 | Self::I8_S | Self::TL1 | Self::TL2 => 1,
            Self::Q4_0 | Self::IQ4_NL | Self::Q4_0_4_4 | Self::Q4_0_4_8 | Self::Q4_0_8_8 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q8_1 => 36,
            Self::Q2_K => 84,
            Self::Q3_K => 110,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
            Self::Q8_K => 292,
            Self::IQ2_XXS => 66,
            Self::IQ2_XS => 74,
            Self::IQ3_XXS => 98,
            Self::IQ1_S => 50,
            Self::IQ3_S => 110,
            Self::IQ2_S => 82,
            Self::IQ4_XS => 136,
            Self::IQ1_M => 56,
            Self::TQ1_0 => 54,
            Self::TQ2_0 => 66,
            Self::I2_S => 32,
        }
    }

    /// Rows that are stored interleaved: their number must be a multiple of it.
    #[must_use]
    pub fn row_group(self) -> u64 {
        match self {
            Self::I2_S => I2_S_ROWS,
            Self::Q4_0_4_4 | Self::Q4_0_4_8 => 4,
            Self::Q4_0_8_8 => 8,
            _ => 1,
        }
    }

    /// Bytes of `elements` consecutive elements (`ggml_row_size`), `None` if that is no whole
    /// number of blocks or overflows. For I2_S the packed bytes (a quarter of ggml's figure).
    #[must_use]
    pub fn row_bytes(self, elements: u64) -> Option<u64> {
        if !elements.is_multiple_of(self.block_len()) {
            return None;
        }
        (elements / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Bytes of a whole tensor of `elements` elements (`ggml_nbytes` of a contiguous tensor).
    #[must_use]
    pub fn tensor_bytes(self, elements: u64) -> Option<u64> {
        let packed = self.row_bytes(elements)?;
        match self {
            Self::I2_S => packed.checked_add(I2_S_TAIL),
            _ => Some(packed),
        }
    }

    /// Whether the engine multiplies activations with a matrix of this type
    /// (`vec_dot` or `gemv` in ggml's type traits; without one it calls a null pointer).
    #[must_use]
    pub fn is_matrix_type(self) -> bool {
        !matches!(
            self,
            Self::I8
                | Self::I16
                | Self::I32
                | Self::I64
                | Self::F64
                | Self::Q8_1
                | Self::Q8_K
                | Self::I8_S
                | Self::TL1
                | Self::TL2
        )
    }

    /// Whether the engine looks up rows in a table of this type
    /// (`ggml_compute_forward_get_rows`; the interleaved types have no `to_float`).
    #[must_use]
    pub fn is_embedding_type(self) -> bool {
        self.is_matrix_type() && !matches!(self, Self::Q4_0_4_4 | Self::Q4_0_4_8 | Self::Q4_0_8_8)
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
