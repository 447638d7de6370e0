//! Synthetic ternary models: valid I2_S files of a named shape, from a seed.
//!
//! Weights are drawn as packed bytes and streamed, so a file of any size takes a few megabytes of
//! memory. The same seed and shape give the same bytes on every machine. Such a model says nothing
//! sensible, but it loads, decodes at the real speed and keeps its activations near unit size
//! through any depth, which is what transport, speed and kernel gates need.
#![forbid(unsafe_code)]

pub mod vocabulary;

use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use files::atomic_file::{self, AtomicFileError};
use gguf::writer::{DataWriter, FilePlan, TensorPlan, Value};
use reference::i2s;
use vocabulary::Vocabulary;

/// ggml type numbers written here.
const F32: u32 = 0;
const F16: u32 = 1;
const I2_S: u32 = 36;

/// `LLAMA_FTYPE_MOSTLY_I2_S`.
const FILE_TYPE_I2_S: u32 = 40;

/// Most layers the engine takes (`LLAMA_MAX_LAYERS`).
const MAX_LAYERS: u32 = 512;

/// Data handed to the writer at once.
const PIECE: usize = 1 << 20;

/// Why no model was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SynthError {
    /// No preset has this name.
    #[error("no preset '{name}'; known: {}", preset_names().join(", "))]
    UnknownPreset {
        /// The name asked for.
        name: String,
    },
    /// A dimension the engine or its kernels cannot take.
    #[error("{field} is {value}: {need}")]
    Dimension {
        /// Field of [`SynthSpec`].
        field: &'static str,
        /// Its value.
        value: u64,
        /// What is needed.
        need: String,
    },
    /// The cancel flag was set.
    #[error("cancelled; nothing was written to the output file")]
    Cancelled,
    /// The output file could not be made.
    #[error(transparent)]
    File(#[from] AtomicFileError),
    /// The data could not be written.
    #[error("cannot write the model: {0}")]
    Write(#[from] io::Error),
}

/// Architectures that ternary models come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Architecture {
    /// Microsoft's 2B-4T: squared ReLU, sub-norms, tied output.
    BitnetB158,
    /// The same graph under its older name.
    Bitnet25,
    /// 1bitLLM: SiLU, sub-norms, tied output.
    Bitnet,
    /// Llama3-8B-1.58 and Falcon3: SiLU, no sub-norms, rotary pairs interleaved.
    Llama,
}

impl Architecture {
    /// Name in `general.architecture`.
    pub const fn name(self) -> &'static str {
        match self {
            Architecture::BitnetB158 => "bitnet-b1.58",
            Architecture::Bitnet25 => "bitnet-25",
            Architecture::Bitnet => "bitnet",
            Architecture::Llama => "llama",
        }
    }

    /// Whether attention output and feed-forward product are normalised again.
    pub const fn has_sub_norms(self) -> bool {
        !matches!(self, Architecture::Llama)
    }
}

/// Shape of a synthetic model.
#[derive(Debug, Clone, PartialEq)]
pub struct SynthSpec {
    /// Written to `general.name`.
    pub name: String,
    /// Graph the engine builds.
    pub architecture: Architecture,
    /// Transformer blocks.
    pub n_layer: u32,
    /// Embedding width; a multiple of 128.
    pub n_embd: u32,
    /// Feed-forward width; a multiple of 128.
    pub n_ff: u32,
    /// Query heads; divides `n_embd`.
    pub n_head: u32,
    /// Key and value heads; divides `n_head`.
    pub n_head_kv: u32,
    /// Tokens.
    pub n_vocab: u32,
    /// Context length the model claims.
    pub n_ctx: u32,
    /// RoPE base.
    pub rope_base: f32,
    /// Epsilon of the RMS norms.
    pub rms_eps: f32,
    /// Embedding in f32 instead of f16.
    pub f32_embedding: bool,
    /// A separate output matrix (f16) instead of the embedding; `llama` only.
    pub separate_output: bool,
    /// `tokenizer.ggml.pre`; `None` leaves the key out.
    pub pre_tokenizer: Option<String>,
    /// A real vocabulary of `n_vocab` tokens instead of a made-up one.
    pub vocabulary: Option<Vocabulary>,
}

/// A named shape.
#[derive(Debug, Clone, Copy)]
pub struct Preset {
    /// Name on the command line.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    shape: [u32; 6],
    rope_base: f32,
}

const fn preset(name: &'static str, about: &'static str, shape: [u32; 6], rope_base: f32) -> Preset {
    Preset { name, about, shape, rope_base }
}

/// Every preset, smallest first. Shapes: layers, embedding, feed-forward, heads, key-value heads,
/// vocabulary. The published sizes are those of bitnet.cpp's dummy generator
/// (`utils/generate-dummy-bitnet-model.py`), 700m is 1bitLLM/bitnet_b1_58-large. That family's 3B
/// is missing: its feed-forward width of 8640 is no multiple of 128, so the I2_S kernel would drop
/// the last 64 weights of every row.
pub const PRESETS: [Preset; 14] = [
    preset("tiny", "for tests and the embedded default", [4, 256, 640, 4, 2, 2048], 500_000.0),
    preset("125m", "dummy generator 125M", [11, 768, 3072, 12, 12, 32_002], 10_000.0),
    preset("350m", "dummy generator 350M", [24, 1024, 3072, 16, 16, 32_002], 10_000.0),
    preset("700m", "bitnet_b1_58-large", [24, 1536, 4096, 16, 16, 32_002], 10_000.0),
    preset("1b", "dummy generator 1B", [24, 2048, 3584, 32, 32, 32_002], 10_000.0),
    preset("1.5b", "dummy generator 1.5B", [28, 1536, 9216, 32, 32, 32_002], 10_000.0),
    preset("2b", "BitNet-b1.58-2B-4T", [30, 2560, 6912, 20, 5, 128_256], 500_000.0),
    preset("2.7b", "dummy generator 2.7B", [24, 3072, 7680, 32, 32, 32_002], 10_000.0),
    preset("3.8b", "dummy generator 3.8B", [24, 3840, 8192, 32, 32, 32_002], 10_000.0),
    preset("7b", "dummy generator 7B", [32, 4096, 12_032, 32, 32, 32_002], 10_000.0),
    preset("13b", "dummy generator 13B", [40, 5120, 13_824, 40, 40, 32_002], 10_000.0),
    preset("30b", "dummy generator 30B", [60, 6656, 16_384, 52, 52, 32_002], 10_000.0),
    preset("70b", "dummy generator 70B", [80, 8192, 24_576, 64, 64, 32_002], 10_000.0),
    preset("100b", "dummy generator 100B", [72, 8192, 45_568, 64, 64, 32_002], 10_000.0),
];

fn preset_names() -> Vec<&'static str> {
    PRESETS.iter().map(|p| p.name).collect()
}

/// What a tensor is filled with.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fill {
    /// Packed random codes, then this scale.
    Ternary { scale: f32 },
    /// Normal numbers of this standard deviation, f16.
    NormalF16 { std: f32 },
    /// Normal numbers of this standard deviation, f32.
    NormalF32 { std: f32 },
    /// Numbers in [0.75, 1.25), f32: norm weights that a swap of layers shows.
    NearOne,
}

impl SynthSpec {
    /// The shape of a preset.
    ///
    /// # Errors
    /// [`SynthError::UnknownPreset`], which lists the names.
    pub fn preset(name: &str) -> Result<Self, SynthError> {
        let Some(preset) = PRESETS.iter().find(|p| p.name.eq_ignore_ascii_case(name)) else {
            return Err(SynthError::UnknownPreset { name: name.to_owned() });
        };
        let [n_layer, n_embd, n_ff, n_head, n_head_kv, n_vocab] = preset.shape;
        Ok(Self {
            name: format!("synthetic-{}", preset.name),
            architecture: Architecture::BitnetB158,
            n_layer,
            n_embd,
            n_ff,
            n_head,
            n_head_kv,
            n_vocab,
            n_ctx: 4096,
            rope_base: preset.rope_base,
            rms_eps: 1e-5,
            f32_embedding: false,
            separate_output: false,
            pre_tokenizer: Some("llama-bpe".to_owned()),
            vocabulary: None,
        })
    }

    /// Width of one attention head.
    pub fn head_dim(&self) -> u32 {
        self.n_embd / self.n_head.max(1)
    }

    /// Refuses what the engine aborts on or computes wrongly.
    ///
    /// # Errors
    /// [`SynthError::Dimension`] with the first field that does not fit.
    pub fn check(&self) -> Result<(), SynthError> {
        let refuse =
            |field, value: u32, need: String| Err(SynthError::Dimension { field, value: u64::from(value), need });
        let block = i2s::BLOCK as u32;
        if !(1..=MAX_LAYERS).contains(&self.n_layer) {
            return refuse("n_layer", self.n_layer, format!("the engine takes 1 to {MAX_LAYERS} layers"));
        }
        for (field, value) in [("n_embd", self.n_embd), ("n_ff", self.n_ff)] {
            if value == 0 || !value.is_multiple_of(block) {
                return refuse(field, value, format!("I2_S rows must be a multiple of {block} long"));
            }
        }
        if self.n_head == 0 || !self.n_embd.is_multiple_of(self.n_head) {
            return refuse("n_head", self.n_head, format!("must divide n_embd = {}", self.n_embd));
        }
        if !self.head_dim().is_multiple_of(2) {
            return refuse("n_head", self.n_head, "RoPE needs an even head width".to_owned());
        }
        if self.n_head_kv == 0 || !self.n_head.is_multiple_of(self.n_head_kv) {
            return refuse("n_head_kv", self.n_head_kv, format!("must divide n_head = {}", self.n_head));
        }
        let kv_width = self.head_dim() * self.n_head_kv;
        if !kv_width.is_multiple_of(i2s::ROW_MULTIPLE as u32) {
            return refuse("n_head_kv", self.n_head_kv, format!("gives {kv_width} key rows; I2_S takes rows in fours"));
        }
        let (least, most) = match &self.vocabulary {
            Some(vocabulary) => (vocabulary.tokens.len(), vocabulary.tokens.len()),
            None => vocabulary::size_limits(),
        };
        if !(least..=most).contains(&(self.n_vocab as usize)) {
            return refuse("n_vocab", self.n_vocab, format!("{least} to {most} tokens can be made"));
        }
        if self.n_ctx == 0 {
            return refuse("n_ctx", self.n_ctx, "must be at least 1".to_owned());
        }
        if self.separate_output && self.architecture != Architecture::Llama {
            return refuse("separate_output", 1, format!("the engine ignores it for '{}'", self.architecture.name()));
        }
        Ok(())
    }

    /// Parameters of the model, embeddings included.
    pub fn parameters(&self) -> u64 {
        self.fills().iter().map(|(_, dims, _)| dims.iter().product::<u64>()).sum()
    }

    /// Name, dimensions and content of every tensor, in file order.
    fn fills(&self) -> Vec<(String, Vec<u64>, Fill)> {
        let [embd, ff, vocab] = [self.n_embd, self.n_ff, self.n_vocab].map(u64::from);
        let kv = u64::from(self.head_dim()) * u64::from(self.n_head_kv);
        // Embeddings of this size give logits of about unit spread, since the last norm has
        // unit-size components. They are small against what the blocks add (unit size each), so
        // that the tied output does not simply repeat the input token.
        let std = 1.0 / (embd as f32).sqrt();
        let embedding = if self.f32_embedding { Fill::NormalF32 { std } } else { Fill::NormalF16 { std } };
        let mut fills = vec![("token_embd.weight".to_owned(), vec![embd, vocab], embedding)];
        let norm = |name: String, width: u64| (name, vec![width], Fill::NearOne);
        // A third of the codes is zero, so a row of k weights has 2k/3 non-zero ones: with this
        // scale a unit-size input gives unit-size outputs.
        let ternary = |name: String, k: u64, rows: u64| {
            let scale = 1.0 / (k as f32 * 2.0 / 3.0).sqrt();
            (name, vec![k, rows], Fill::Ternary { scale })
        };
        for i in 0..self.n_layer {
            let at = |part: &str| format!("blk.{i}.{part}.weight");
            fills.push(norm(at("attn_norm"), embd));
            fills.push(ternary(at("attn_q"), embd, embd));
            fills.push(ternary(at("attn_k"), embd, kv));
            fills.push(ternary(at("attn_v"), embd, kv));
            if self.architecture.has_sub_norms() {
                fills.push(norm(at("attn_sub_norm"), embd));
            }
            fills.push(ternary(at("attn_output"), embd, embd));
            fills.push(norm(at("ffn_norm"), embd));
            fills.push(ternary(at("ffn_gate"), embd, ff));
            fills.push(ternary(at("ffn_up"), embd, ff));
            if self.architecture.has_sub_norms() {
                fills.push(norm(at("ffn_sub_norm"), ff));
            }
            fills.push(ternary(at("ffn_down"), ff, embd));
        }
        fills.push(norm("output_norm.weight".to_owned(), embd));
        if self.separate_output {
            fills.push(("output.weight".to_owned(), vec![embd, vocab], Fill::NormalF16 { std }));
        }
        fills
    }

    fn metadata(&self, vocabulary: Vocabulary) -> Vec<(String, Value)> {
        let mut metadata = vec![
            ("general.architecture".to_owned(), Value::from(self.architecture.name())),
            ("general.name".to_owned(), Value::from(self.name.as_str())),
            ("general.file_type".to_owned(), Value::U32(FILE_TYPE_I2_S)),
            ("general.quantization_version".to_owned(), Value::U32(2)),
            // Random weights: gates then say UNKNOWN where meaning would be needed.
            ("bitnet_harness.synthetic".to_owned(), Value::Bool(true)),
        ];
        for (key, value) in [
            ("vocab_size", Value::U32(self.n_vocab)),
            ("context_length", Value::U32(self.n_ctx)),
            ("embedding_length", Value::U32(self.n_embd)),
            ("block_count", Value::U32(self.n_layer)),
            ("feed_forward_length", Value::U32(self.n_ff)),
            ("attention.head_count", Value::U32(self.n_head)),
            ("attention.head_count_kv", Value::U32(self.n_head_kv)),
            ("attention.layer_norm_rms_epsilon", Value::F32(self.rms_eps)),
            ("rope.dimension_count", Value::U32(self.head_dim())),
            ("rope.freq_base", Value::F32(self.rope_base)),
        ] {
            metadata.push((format!("{}.{key}", self.architecture.name()), value));
        }
        metadata.extend(vocabulary.into_metadata());
        metadata
    }

    /// Lays the file out without drawing a weight: what `--dry-run` shows.
    ///
    /// # Errors
    /// [`SynthError::Dimension`].
    pub fn plan(&self) -> Result<FilePlan, SynthError> {
        self.check()?;
        let vocabulary = match &self.vocabulary {
            Some(vocabulary) => Some(vocabulary.clone()),
            None => Vocabulary::synthetic(self.n_vocab as usize),
        };
        let Some(mut vocabulary) = vocabulary else {
            return Err(SynthError::Dimension {
                field: "n_vocab",
                value: u64::from(self.n_vocab),
                need: "no vocabulary of this size can be made".to_owned(),
            });
        };
        vocabulary.pre.clone_from(&self.pre_tokenizer);
        let tensors = self
            .fills()
            .into_iter()
            .map(|(name, dims, fill)| {
                let count: u64 = dims.iter().product();
                let (kind, bytes) = match fill {
                    Fill::Ternary { .. } => (I2_S, count / 4 + i2s::TRAILER as u64),
                    Fill::NormalF16 { .. } => (F16, 2 * count),
                    Fill::NormalF32 { .. } | Fill::NearOne => (F32, 4 * count),
                };
                TensorPlan { name, dims, kind, bytes }
            })
            .collect();
        Ok(FilePlan::new(&self.metadata(vocabulary), tensors)?)
    }
}

/// How far a write has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes written.
    pub written: u64,
    /// Bytes of the whole file.
    pub total: u64,
}

/// Writes a model to `out`; returns the bytes written.
///
/// `progress` is called after each piece of at most 1 MiB; setting `cancel` ends the write at the
/// next one.
///
/// # Errors
/// [`SynthError::Dimension`], [`SynthError::Cancelled`], [`SynthError::Write`].
pub fn write_synth(
    spec: &SynthSpec,
    seed: u64,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(Progress),
    cancel: &AtomicBool,
) -> Result<u64, SynthError> {
    let plan = spec.plan()?;
    let total = plan.total_bytes();
    let normal = NormalTable::new();
    let mut written = plan.header_bytes();
    let mut data = plan.start(out)?;
    let mut piece = vec![0_u8; PIECE];
    let mut put = |data: &mut DataWriter<'_, dyn Write>, bytes: &[u8]| {
        data.write(bytes)?;
        written += bytes.len() as u64;
        progress(Progress { written, total });
        if cancel.load(Ordering::Relaxed) {
            return Err(SynthError::Cancelled);
        }
        Ok(())
    };
    for ((name, dims, fill), tensor) in spec.fills().into_iter().zip(plan.tensors()) {
        let mut random = SplitMix64::for_tensor(seed, &name);
        let count: u64 = dims.iter().product();
        let mut left = match fill {
            Fill::Ternary { .. } => count / 4,
            _ => tensor.bytes,
        };
        let scaled_f16 = normal.scaled_f16(fill);
        while left > 0 {
            let piece = &mut piece[..(PIECE as u64).min(left) as usize];
            match fill {
                Fill::Ternary { .. } => random.fill_codes(piece),
                Fill::NormalF16 { .. } => {
                    for out in piece.chunks_exact_mut(2) {
                        out.copy_from_slice(&scaled_f16[usize::from(random.next_u16())]);
                    }
                }
                Fill::NormalF32 { std } => {
                    for out in piece.chunks_exact_mut(4) {
                        let value = std * normal.quantiles[usize::from(random.next_u16())];
                        out.copy_from_slice(&value.to_le_bytes());
                    }
                }
                Fill::NearOne => {
                    for out in piece.chunks_exact_mut(4) {
                        let value = 0.75 + 0.5 * f32::from(random.next_u16()) / 65_536.0;
                        out.copy_from_slice(&value.to_le_bytes());
                    }
                }
            }
            put(&mut data, piece)?;
            left -= piece.len() as u64;
        }
        if let Fill::Ternary { scale } = fill {
            let mut trailer = [0_u8; i2s::TRAILER];
            trailer[..4].copy_from_slice(&scale.to_le_bytes());
            put(&mut data, &trailer)?;
        }
    }
    data.finish()?;
    Ok(total)
}

/// Writes a model file atomically ([`atomic_file::write`]).
///
/// # Errors
/// [`SynthError::File`] when the file exists and `force` is off, or cannot be made; what
/// [`write_synth`] returns.
pub fn write_synth_file(
    spec: &SynthSpec,
    seed: u64,
    path: &Path,
    force: bool,
    progress: &mut dyn FnMut(Progress),
    cancel: &AtomicBool,
) -> Result<u64, SynthError> {
    spec.check()?;
    atomic_file::write(path, force, |out| write_synth(spec, seed, out, progress, cancel))
}

/// SplitMix64 (Steele, Lea, Flood 2014): one multiplication-and-shift hash of a counter.
#[derive(Debug, Clone)]
struct SplitMix64 {
    state: u64,
    /// Sixteen-bit numbers left of the last draw, and how many.
    rest: u64,
    left: u32,
}

impl SplitMix64 {
    /// A stream of its own for each tensor, so that a tensor's weights depend on seed and name only.
    fn for_tensor(seed: u64, name: &str) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&seed.to_le_bytes());
        hasher.update(name.as_bytes());
        let mut state = [0_u8; 8];
        state.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        Self { state: u64::from_le_bytes(state), rest: 0, left: 0 }
    }

    fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn next_u16(&mut self) -> u16 {
        if self.left == 0 {
            self.rest = self.next_u64();
            self.left = 4;
        }
        let value = self.rest as u16;
        self.rest >>= 16;
        self.left -= 1;
        value
    }

    /// Fills `out` with bytes of four codes each, every code 0, 1 or 2 with equal chance.
    ///
    /// A byte is one of 81 combinations. Reading the draw as a fraction of 2^64 and multiplying by
    /// 81 takes one combination off the top and leaves the rest of the fraction: eight bytes a draw,
    /// the last with a bias below 81^8/2^64 = 0.01 %.
    fn fill_codes(&mut self, out: &mut [u8]) {
        const COMBINATIONS: [u8; 81] = {
            let mut table = [0; 81];
            let mut i = 0;
            while i < 81 {
                table[i] = ((i / 27) << 6 | (i / 9 % 3) << 4 | (i / 3 % 3) << 2 | (i % 3)) as u8;
                i += 1;
            }
            table
        };
        for bytes in out.chunks_mut(8) {
            let mut fraction = self.next_u64();
            for byte in bytes {
                let product = u128::from(fraction) * 81;
                *byte = COMBINATIONS[(product >> 64) as usize];
                fraction = product as u64;
            }
        }
    }
}

/// Quantiles of the normal distribution at (i + ½)/65536: sixteen random bits make a normal number
/// (|x| ≤ 4.33) without a logarithm.
struct NormalTable {
    quantiles: Vec<f32>,
}

impl NormalTable {
    fn new() -> Self {
        const N: usize = 1 << 16;
        const STEP: f64 = 1.0 / 4096.0;
        let density = |x: f64| (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
        // Walk up from the median, adding the area of each step, and note where the wanted
        // probabilities fall; the lower half is the mirror image.
        let mut upper = Vec::with_capacity(N / 2);
        let (mut x, mut below) = (0.0_f64, 0.5_f64);
        while upper.len() < N / 2 {
            // Simpson's rule: the error of a step is far below f32's precision.
            let area = STEP / 6.0 * (density(x) + 4.0 * density(x + STEP / 2.0) + density(x + STEP));
            while upper.len() < N / 2 {
                let wanted = ((N / 2 + upper.len()) as f64 + 0.5) / N as f64;
                let share = (wanted - below) / area;
                if share > 1.0 {
                    break;
                }
                upper.push((x + share * STEP) as f32);
            }
            below += area;
            x += STEP;
        }
        let quantiles = upper.iter().rev().map(|q| -q).chain(upper.iter().copied()).collect();
        Self { quantiles }
    }

    /// The table as f16 bytes, times the fill's standard deviation; empty for other fills.
    fn scaled_f16(&self, fill: Fill) -> Vec<[u8; 2]> {
        let Fill::NormalF16 { std } = fill else {
            return Vec::new();
        };
        self.quantiles.iter().map(|q| half::f16::from_f32(q * std).to_le_bytes()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reference::i2s::{I2sMatrix, Packing};
    use std::fs;

    fn small() -> SynthSpec {
        SynthSpec { n_layer: 2, n_embd: 128, n_ff: 256, n_vocab: 300, ..SynthSpec::preset("tiny").unwrap() }
    }

    fn bytes_of(spec: &SynthSpec, seed: u64) -> Vec<u8> {
        let mut out = Vec::new();
        let written = write_synth(spec, seed, &mut out, &mut |_| (), &AtomicBool::new(false)).unwrap();
        assert_eq!(written, out.len() as u64);
        out
    }

    #[test]
    fn the_2b_shape_is_the_published_one() {
        let spec = SynthSpec::preset("2b").unwrap();
        let plan = spec.plan().unwrap();
        // 30 blocks of 11 tensors, embedding, last norm.
        assert_eq!(plan.tensors().len(), 30 * 11 + 2);
        let find = |name: &str| {
            let tensor = plan.tensors().iter().find(|t| t.name == name).unwrap();
            (tensor.dims.clone(), tensor.kind, tensor.bytes)
        };
        assert_eq!(find("token_embd.weight"), (vec![2560, 128_256], 1, 656_670_720));
        assert_eq!(find("blk.29.attn_k.weight"), (vec![2560, 640], 36, 2560 * 640 / 4 + 32));
        assert_eq!(find("blk.0.ffn_down.weight"), (vec![6912, 2560], 36, 6912 * 2560 / 4 + 32));
        assert_eq!(find("blk.7.ffn_sub_norm.weight"), (vec![6912], 0, 27_648));
        // Ternary weights: 30·(2·2560² + 2·2560·640 + 3·2560·6912).
        let ternary: u64 = plan.tensors().iter().filter(|t| t.kind == 36).map(|t| (t.bytes - 32) * 4).sum();
        assert_eq!(ternary, 2_084_044_800);
        assert_eq!(spec.rope_base, 500_000.0);
        assert_eq!(spec.head_dim(), 128);
    }

    #[test]
    fn every_preset_fits_the_kernels() {
        for preset in PRESETS {
            let spec = SynthSpec::preset(preset.name).unwrap();
            spec.check().unwrap();
            for tensor in spec.plan().unwrap().tensors() {
                if tensor.kind == I2_S {
                    i2s::check_shape(tensor.dims[1] as usize, tensor.dims[0] as usize).unwrap();
                }
            }
        }
        assert!(SynthSpec::preset("tiny").unwrap().plan().unwrap().total_bytes() < 3 << 20);
        let err = SynthSpec::preset("3b").unwrap_err().to_string();
        assert!(err.contains("3b") && err.contains("2.7b"), "{err}");
    }

    #[test]
    fn shapes_that_would_go_wrong_are_refused_by_field() {
        type Change = fn(&mut SynthSpec);
        let cases: [(&str, Change); 10] = [
            ("n_layer", |s| s.n_layer = 0),
            ("n_layer", |s| s.n_layer = 513),
            ("n_embd", |s| s.n_embd = 192),
            ("n_ff", |s| s.n_ff = 8640),
            ("n_head", |s| s.n_head = 3),
            ("n_head", |s| s.n_head = 0),
            ("n_head_kv", |s| s.n_head_kv = 3),
            ("n_vocab", |s| s.n_vocab = 271),
            ("n_ctx", |s| s.n_ctx = 0),
            ("separate_output", |s| s.separate_output = true),
        ];
        for (field, change) in cases {
            let mut spec = small();
            change(&mut spec);
            let err = spec.check().unwrap_err();
            assert!(matches!(&err, SynthError::Dimension { field: f, .. } if *f == field), "{field}: {err}");
        }
    }

    #[test]
    fn the_seed_decides_every_byte() {
        let spec = small();
        let first = bytes_of(&spec, 1);
        assert_eq!(first, bytes_of(&spec, 1));
        let second = bytes_of(&spec, 2);
        assert_eq!(first.len(), second.len());
        assert_ne!(first, second);
    }

    #[test]
    fn ternary_tensors_hold_a_third_of_each_weight() {
        let spec = small();
        let plan = spec.plan().unwrap();
        let bytes = bytes_of(&spec, 7);
        let mut at = plan.header_bytes() as usize;
        let (mut counts, mut matrices) = ([0_u64; 3], 0);
        for tensor in plan.tensors() {
            let data = &bytes[at..at + tensor.bytes as usize];
            at += tensor.bytes.next_multiple_of(32) as usize;
            if tensor.kind != I2_S {
                continue;
            }
            let (cols, rows) = (tensor.dims[0] as usize, tensor.dims[1] as usize);
            let matrix = I2sMatrix::new(data, rows, cols, Packing::X86).unwrap();
            matrix.check_codes().unwrap();
            let expected = (1.5 / cols as f32).sqrt();
            assert!((matrix.scale() / expected - 1.0).abs() < 1e-6);
            let mut codes = vec![0; cols];
            for row in 0..rows {
                matrix.row_codes(row, &mut codes);
                for &code in &codes {
                    counts[usize::from(code)] += 1;
                }
            }
            matrices += 1;
        }
        assert_eq!(at, bytes.len());
        assert_eq!(matrices, 14);
        let total: u64 = counts.iter().sum();
        for count in counts {
            // 278,528 weights: the standard deviation of a share is 0.0009.
            let share = count as f64 / total as f64;
            assert!((share - 1.0 / 3.0).abs() < 0.005, "{counts:?}");
        }
    }

    #[test]
    fn normal_numbers_have_the_known_quantiles() {
        let table = NormalTable::new().quantiles;
        assert_eq!(table.len(), 65_536);
        assert!(table.windows(2).all(|w| w[0] < w[1]));
        // Φ⁻¹(0.841345) = 1, Φ⁻¹(0.97725) = 2, Φ⁻¹(0.998650) = 3.
        for (share, x) in [(0.841_344_75, 1.0), (0.977_249_87, 2.0), (0.998_650_1, 3.0)] {
            let i = (share * 65_536.0) as usize;
            assert!((table[i] - x).abs() < 0.01, "{} for {x}", table[i]);
        }
        let mean_square: f64 = table.iter().map(|&q| f64::from(q).powi(2)).sum::<f64>() / 65_536.0;
        assert!((mean_square - 1.0).abs() < 1e-3, "{mean_square}");
    }

    #[test]
    fn a_cancelled_write_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        let cancel = AtomicBool::new(false);
        let err = write_synth_file(
            &small(),
            1,
            &path,
            false,
            &mut |p| cancel.store(p.written > 100_000, Ordering::Relaxed),
            &cancel,
        )
        .unwrap_err();
        assert!(matches!(err, SynthError::Cancelled));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_file_is_what_the_writer_writes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        let write = |force| {
            let cancel = AtomicBool::new(false);
            write_synth_file(&small(), 1, &path, force, &mut |_| (), &cancel)
        };
        let written = write(false).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), written);
        assert_eq!(fs::read(&path).unwrap(), bytes_of(&small(), 1));
        assert!(matches!(write(false), Err(SynthError::File(AtomicFileError::Exists { .. }))));
        write(true).unwrap();
    }
}
