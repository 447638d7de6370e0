//! Hashes that lock a cartridge to a model. `docs/formats/hashes.md` has the exact bytes.

use std::fmt;
use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::str::FromStr;

use sha2::{Digest, Sha256};

use super::data::{self, DataSource};
use super::model::{ModelInfo, RopeInfo, RopeScaling};
use super::value::{Array, Value};
use super::{Gguf, GgufError};

/// A SHA-256 hash, written `sha256:` and 64 hexadecimal digits.
///
/// SHA-256 because Python's standard library has it: a cartridge can be written without
/// further packages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sha256Hash([u8; 32]);

impl Sha256Hash {
    /// Hash of some bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The 32 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Sha256Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        for byte in self.0 {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Sha256Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is not `sha256:` and 64 lower-case hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a hash: \"sha256:\" and 64 lower-case hexadecimal digits are needed")]
pub struct ParseHashError;

impl FromStr for Sha256Hash {
    type Err = ParseHashError;

    fn from_str(text: &str) -> Result<Self, ParseHashError> {
        let digits = text.strip_prefix("sha256:").ok_or(ParseHashError)?;
        let digits = digits.as_bytes();
        if digits.len() != 64 {
            return Err(ParseHashError);
        }
        let nibble = |digit: u8| match digit {
            b'0'..=b'9' => Ok(digit - b'0'),
            b'a'..=b'f' => Ok(digit - b'a' + 10),
            _ => Err(ParseHashError),
        };
        let mut bytes = [0u8; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_chunks::<2>().0) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Ok(Self(bytes))
    }
}

/// A float as text that every language can make exactly: its bits, most significant first.
fn bits(value: f32) -> String {
    format!("f32:{:08x}", value.to_bits())
}

impl RopeInfo {
    /// Scaling as one word, the same for every file that is computed the same way: `none`, or
    /// parts joined by commas, such as `linear,factor=f32:40000000` (`docs/formats/hashes.md`).
    #[must_use]
    pub fn scaling_text(&self) -> String {
        let factor = format!("factor={}", bits(self.factor));
        let mut parts = match self.scaling {
            RopeScaling::Linear if self.factor != 1.0 => vec!["linear".to_owned(), factor],
            RopeScaling::Yarn => {
                vec!["yarn".to_owned(), factor, format!("original_context={}", self.original_context)]
            }
            RopeScaling::None | RopeScaling::Linear => vec!["none".to_owned()],
        };
        if self.attn_factor != 1.0 {
            parts.push(format!("attn_factor={}", bits(self.attn_factor)));
        }
        if let Some(factors) = &self.freq_factors {
            let bytes: Vec<u8> = factors.iter().flat_map(|f| f.to_le_bytes()).collect();
            parts.push(format!("freq_factors={}", Sha256Hash::of(&bytes)));
        }
        parts.join(",")
    }
}

impl ModelInfo {
    /// The text whose SHA-256 is [`arch_hash`](Self::arch_hash): a line naming the format, then
    /// `key=value` lines in byte order of the keys.
    #[must_use]
    pub fn arch_text(&self) -> String {
        let h = self.hyperparameters();
        let rope = &h.rope;
        let mut lines = [
            ("architecture", self.architecture().name().to_owned()),
            ("head_dim", h.head_dim.to_string()),
            ("n_embd", h.n_embd.to_string()),
            ("n_ff", h.n_ff.to_string()),
            ("n_head", h.n_head.to_string()),
            ("n_head_kv", h.n_head_kv.to_string()),
            ("n_layer", h.n_layer.to_string()),
            ("n_vocab", h.n_vocab.to_string()),
            ("norm_eps", bits(h.norm_eps)),
            ("rope.dimension_count", rope.dimension_count.to_string()),
            ("rope.freq_base", bits(rope.freq_base)),
            ("rope.scaling", rope.scaling_text()),
            ("rope.type", rope.kind.name().to_owned()),
        ];
        lines.sort();
        let mut text = String::from("bitnet-harness.arch/1\n");
        for (key, value) in lines {
            let _ = writeln!(text, "{key}={value}");
        }
        text
    }

    /// Hash of everything about the architecture that a KV cache depends on.
    #[must_use]
    pub fn arch_hash(&self) -> Sha256Hash {
        Sha256Hash::of(self.arch_text().as_bytes())
    }
}

/// Length-prefixed bytes.
fn frame(hasher: &mut Sha256, bytes: &[u8]) {
    hasher.update((bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}

/// Hash of everything that turns text into token ids.
pub(super) fn tokenizer(gguf: &Gguf) -> Sha256Hash {
    let mut hasher = Sha256::new();
    hasher.update(b"bitnet-harness.tokenizer/1\n");
    let text = |key: &str| match gguf.get(key) {
        Some(Value::String(bytes)) => bytes,
        _ => &[][..],
    };
    frame(&mut hasher, text("tokenizer.ggml.model"));
    frame(&mut hasher, text("tokenizer.ggml.pre"));
    let count = |hasher: &mut Sha256, n: usize| hasher.update((n as u64).to_le_bytes());
    let strings = |hasher: &mut Sha256, key: &str| {
        let strings = gguf.get(key).and_then(Value::as_strings);
        count(hasher, strings.map_or(0, |s| s.len()));
        for string in strings.into_iter().flat_map(|s| s.iter()) {
            frame(hasher, string);
        }
    };
    strings(&mut hasher, "tokenizer.ggml.tokens");
    let array = |key: &str| gguf.get(key).and_then(Value::as_array);
    match array("tokenizer.ggml.token_type") {
        Some(Array::I32(types)) => {
            count(&mut hasher, types.len());
            for ty in types {
                hasher.update(ty.to_le_bytes());
            }
        }
        Some(Array::U32(types)) => {
            count(&mut hasher, types.len());
            for ty in types {
                hasher.update(ty.to_le_bytes());
            }
        }
        _ => count(&mut hasher, 0),
    }
    match array("tokenizer.ggml.scores") {
        Some(Array::F32(scores)) => {
            count(&mut hasher, scores.len());
            for score in scores {
                hasher.update(score.to_le_bytes());
            }
        }
        _ => count(&mut hasher, 0),
    }
    strings(&mut hasher, "tokenizer.ggml.merges");
    let mut scalars: Vec<String> = gguf
        .entries()
        .filter(|(key, _)| key.starts_with("tokenizer.ggml."))
        .filter_map(|(key, value)| match value {
            Value::U32(number) => Some(format!("{key}={number}\n")),
            Value::Bool(flag) => Some(format!("{key}={flag}\n")),
            _ => None,
        })
        .collect();
    scalars.sort();
    frame(&mut hasher, scalars.concat().as_bytes());
    Sha256Hash(hasher.finalize().into())
}

type Progress<'p> = &'p mut dyn FnMut(u64, u64) -> ControlFlow<()>;

pub(super) fn weights(gguf: &Gguf, source: &dyn DataSource, progress: Progress<'_>) -> Result<Sha256Hash, GgufError> {
    let mut tensors: Vec<_> = gguf.tensors().iter().collect();
    tensors.sort_by_key(|tensor| tensor.name().as_bytes());
    let total = gguf.tensor_bytes();
    let mut done = 0;
    let mut buffer = Vec::new();
    let mut hasher = Sha256::new();
    hasher.update(b"bitnet-harness.weights/1\n");
    for tensor in tensors {
        frame(&mut hasher, tensor.name().as_bytes());
        hasher.update(tensor.ggml_type().number().to_le_bytes());
        for dim in tensor.dims4() {
            hasher.update(dim.to_le_bytes());
        }
        hasher.update(tensor.size().to_le_bytes());
        data::stream(source, tensor.offset(), tensor.size(), &mut buffer, |chunk| {
            hasher.update(chunk);
            done += chunk.len() as u64;
            proceed(progress(done, total))
        })?;
    }
    Ok(Sha256Hash(hasher.finalize().into()))
}

pub(super) fn whole(source: &dyn DataSource, len: u64, progress: Progress<'_>) -> Result<Sha256Hash, GgufError> {
    let mut hasher = Sha256::new();
    let mut done = 0;
    data::stream(source, 0, len, &mut Vec::new(), |chunk| {
        hasher.update(chunk);
        done += chunk.len() as u64;
        proceed(progress(done, len))
    })?;
    Ok(Sha256Hash(hasher.finalize().into()))
}

fn proceed(answer: ControlFlow<()>) -> Result<(), GgufError> {
    match answer {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(GgufError::Cancelled),
    }
}
