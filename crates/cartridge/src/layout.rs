//! Words of the format that other parts speak as well.

use std::fmt;

/// Layout of the keys and values in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// The rows of the engine's state blob.
    Native,
    /// `[n_head_kv, p, head_dim]` for keys and values.
    HeadMajor,
}

impl Layout {
    /// The name in the file.
    pub const fn name(self) -> &'static str {
        match self {
            Layout::Native => "native",
            Layout::HeadMajor => "head-major",
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How RoPE pairs the elements of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RopeType {
    /// Elements `i` and `i + d/2` (rotate-half): HuggingFace, and `bitnet*` in the engine.
    Neox,
    /// Elements `2i` and `2i + 1`: `llama` in the engine.
    Norm,
    /// No rotation.
    None,
}

impl RopeType {
    /// The name in the file.
    pub const fn name(self) -> &'static str {
        match self {
            RopeType::Neox => "neox",
            RopeType::Norm => "norm",
            RopeType::None => "none",
        }
    }
}

impl fmt::Display for RopeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
