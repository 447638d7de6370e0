//! Hashes that lock a cartridge to a model. `docs/formats/hashes.md` has the exact bytes.

use std::fmt::Write as _;
use std::ops::ControlFlow;

use sha2::{Digest, Sha256};

use super::data::{self, DataSource};
use super::model::{ModelInfo, RopeInfo, RopeScaling};
use super::sha256::{Sha256Hash, frame};
use super::{Gguf, GgufError};

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
    Ok(Sha256Hash::from(hasher))
}

pub(super) fn whole(source: &dyn DataSource, len: u64, progress: Progress<'_>) -> Result<Sha256Hash, GgufError> {
    let mut hasher = Sha256::new();
    let mut done = 0;
    data::stream(source, 0, len, &mut Vec::new(), |chunk| {
        hasher.update(chunk);
        done += chunk.len() as u64;
        proceed(progress(done, len))
    })?;
    Ok(Sha256Hash::from(hasher))
}

fn proceed(answer: ControlFlow<()>) -> Result<(), GgufError> {
    match answer {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(GgufError::Cancelled),
    }
}
