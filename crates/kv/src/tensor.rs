//! Which tensor of a layer, and how its values lie.

use std::fmt;

/// Keys or values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KvTensor {
    /// Keys, after RoPE.
    Keys,
    /// Values.
    Values,
}

impl fmt::Display for KvTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KvTensor::Keys => "keys",
            KvTensor::Values => "values",
        })
    }
}

/// How the values of a cache lie in memory, which follows from flash attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ValueLayout {
    /// Channel-major, `[n_embd_v][cells]`: flash attention off (`v_trans` = 1).
    Transposed,
    /// Cell-major, `[cells][n_embd_v]`, like the keys: flash attention on (`v_trans` = 0).
    Rows,
}

impl ValueLayout {
    /// The layout under a flash-attention setting.
    pub const fn from_flash_attention(on: bool) -> ValueLayout {
        if on { ValueLayout::Rows } else { ValueLayout::Transposed }
    }

    /// The blob's `v_trans` flag.
    pub const fn v_trans(self) -> u32 {
        match self {
            ValueLayout::Transposed => 1,
            ValueLayout::Rows => 0,
        }
    }

    /// `on` or `off`: the flash-attention setting that goes with the layout.
    pub const fn flash_attention(self) -> &'static str {
        match self {
            ValueLayout::Transposed => "off",
            ValueLayout::Rows => "on",
        }
    }
}

impl fmt::Display for ValueLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ValueLayout::Transposed => "transposed",
            ValueLayout::Rows => "rows",
        })
    }
}
