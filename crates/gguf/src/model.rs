//! Whether the engine can load a model and computes what the file means.
//!
//! Follows `llm_load_hparams`, `llm_load_tensors` and the graph builders of the four
//! architectures in `llama.cpp`. Where those throw, abort, or load a file and compute something
//! else than it says, this refuses.

use std::collections::HashSet;
use std::fmt;

use super::data::{self, DataSource};
use super::error::shown;
use super::value::{Array, Value};
use super::{GgmlType, Gguf, GgufError, GgufWarning, Limits, Sha256Hash, TensorInfo, TokenizerInfo};

/// Most blocks a model can have (`LLAMA_MAX_LAYERS`).
const MAX_LAYERS: u32 = 512;

/// The architectures that are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Architecture {
    /// `bitnet`: 1bitLLM's checkpoints. SiLU, sub-norms, tied output.
    BitNet,
    /// `bitnet-25`: computed as [`BitNetB158`](Self::BitNetB158).
    BitNet25,
    /// `bitnet-b1.58`: Microsoft's 2B-4T. Squared ReLU, sub-norms, tied output.
    BitNetB158,
    /// `llama`: Llama3-8B-1.58, Falcon3 and Falcon-E, and ordinary Llama models.
    Llama,
}

impl Architecture {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::BitNet, Self::BitNet25, Self::BitNetB158, Self::Llama];

    /// `general.architecture`, and the prefix of the architecture's keys.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::BitNet => "bitnet",
            Self::BitNet25 => "bitnet-25",
            Self::BitNetB158 => "bitnet-b1.58",
            Self::Llama => "llama",
        }
    }

    /// The architecture of this exact name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|arch| arch.name() == name)
    }

    /// How the engine pairs the values of a head for rotation (`llama_rope_type`).
    #[must_use]
    pub fn rope_kind(self) -> RopeKind {
        match self {
            Self::Llama => RopeKind::Norm,
            _ => RopeKind::Neox,
        }
    }

    /// Whether the engine multiplies with `token_embd` for the logits whatever the file holds
    /// (`build_bitnet`, `build_bitnet_158`).
    #[must_use]
    pub fn output_is_tied(self) -> bool {
        self != Self::Llama
    }

    /// Whether blocks have `attn_sub_norm` and `ffn_sub_norm`.
    #[must_use]
    pub fn has_sub_norms(self) -> bool {
        self != Self::Llama
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Other architectures of the engine (`LLM_ARCH_NAMES`), for the message.
const OTHER_ENGINE_ARCHITECTURES: [&str; 47] = [
    "falcon",
    "grok",
    "gpt2",
    "gptj",
    "gptneox",
    "mpt",
    "baichuan",
    "starcoder",
    "refact",
    "bert",
    "nomic-bert",
    "jina-bert-v2",
    "bloom",
    "stablelm",
    "qwen",
    "qwen2",
    "qwen2moe",
    "phi2",
    "phi3",
    "plamo",
    "codeshell",
    "orion",
    "internlm2",
    "minicpm",
    "minicpm3",
    "gemma",
    "gemma2",
    "starcoder2",
    "mamba",
    "xverse",
    "command-r",
    "dbrx",
    "olmo",
    "olmoe",
    "openelm",
    "arctic",
    "deepseek2",
    "chatglm",
    "t5",
    "t5encoder",
    "jais",
    "nemotron",
    "exaone",
    "rwkv6",
    "granite",
    "granitemoe",
    "chameleon",
];

/// How values of a head are paired for rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RopeKind {
    /// Neighbours: (0, 1), (2, 3), …
    Norm,
    /// Halves: (0, n/2), (1, n/2 + 1), … as HuggingFace has it.
    Neox,
}

impl RopeKind {
    /// `norm` or `neox`, the engine's names.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Norm => "norm",
            Self::Neox => "neox",
        }
    }
}

/// How positions beyond the training length are squeezed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RopeScaling {
    /// Not at all; the factor is ignored.
    None,
    /// Positions divided by the factor.
    Linear,
    /// YaRN.
    Yarn,
}

/// Rotary position embedding, with the engine's defaults filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeInfo {
    /// Pairing.
    pub kind: RopeKind,
    /// Values of a head that are rotated, even.
    pub dimension_count: u32,
    /// Base of the angles.
    pub freq_base: f32,
    /// Scaling.
    pub scaling: RopeScaling,
    /// Positions are divided by this: 1 without scaling (`rope_freq_scale_train` is its inverse).
    pub factor: f32,
    /// Factor on the magnitude, YaRN's.
    pub attn_factor: f32,
    /// Context of the training before extension, tokens; YaRN uses it.
    pub original_context: u32,
    /// One divisor of the frequency per pair (`rope_freqs.weight`; Llama 3.1 and later).
    pub freq_factors: Option<Vec<f32>>,
}

/// Shapes and constants of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Hyperparameters {
    /// Tokens in the vocabulary.
    pub n_vocab: u32,
    /// Longest context of the training, tokens.
    pub n_ctx_train: u32,
    /// Width of the residual stream.
    pub n_embd: u32,
    /// Blocks.
    pub n_layer: u32,
    /// Attention heads.
    pub n_head: u32,
    /// Key and value heads; divides `n_head`.
    pub n_head_kv: u32,
    /// Size of a head, the same for keys and values.
    pub head_dim: u32,
    /// Width of the feed-forward layer.
    pub n_ff: u32,
    /// Epsilon of the RMS norms.
    pub norm_eps: f32,
    /// Rotary position embedding.
    pub rope: RopeInfo,
    /// Whether the logits are computed with `token_embd.weight`.
    pub tied_output: bool,
}

/// What a model is. Exists only for models that the engine loads and computes.
#[derive(Debug, Clone)]
pub struct ModelInfo {
    architecture: Architecture,
    name: Option<String>,
    hyperparameters: Hyperparameters,
    tokenizer: TokenizerInfo,
    tokenizer_hash: Sha256Hash,
    warnings: Vec<GgufWarning>,
}

impl ModelInfo {
    /// Checks a parsed container. `data` holds the bytes of the same file; only the few hundred
    /// bytes of `rope_freqs.weight` are read, and `output.weight` where it must equal the
    /// embedding.
    ///
    /// # Errors
    /// A [`GgufError`] that names the key or tensor, its value and what would be right.
    pub fn check(gguf: &Gguf, data: &dyn DataSource, limits: &Limits) -> Result<Self, GgufError> {
        let architecture = architecture(gguf)?;
        general(gguf)?;
        let keys = Keys { gguf, prefix: architecture.name() };
        let tokenizer_check = super::tokenizer::check(gguf)?;
        let mut hyperparameters = hyperparameters(&keys, architecture, tokenizer_check.info.n_tokens)?;
        tensors(gguf, architecture, &mut hyperparameters, data)?;

        let mut warnings = gguf.warnings().to_vec();
        warnings.extend(tokenizer_check.warnings);
        let rope = &hyperparameters.rope;
        if rope.dimension_count != hyperparameters.head_dim {
            warnings.push(GgufWarning::PartialRotation {
                rotated: rope.dimension_count,
                head_dim: hyperparameters.head_dim,
            });
        }
        let ternary = [GgmlType::I2_S, GgmlType::TQ1_0, GgmlType::TQ2_0];
        if !gguf.tensors().iter().any(|tensor| ternary.contains(&tensor.ggml_type())) {
            warnings.push(GgufWarning::NoTernaryTensors);
        }
        if limits.strict
            && let Some(warning) = warnings.iter().find(|warning| warning.is_strict())
        {
            return Err(GgufError::Strict(warning.clone()));
        }
        Ok(Self {
            architecture,
            name: match gguf.get("general.name") {
                Some(Value::String(bytes)) => Some(String::from_utf8_lossy(bytes).into_owned()),
                _ => None,
            },
            hyperparameters,
            tokenizer: tokenizer_check.info,
            tokenizer_hash: super::tokenizer::hash(gguf),
            warnings,
        })
    }

    /// Architecture.
    #[must_use]
    pub fn architecture(&self) -> Architecture {
        self.architecture
    }

    /// `general.name`.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Shapes and constants.
    #[must_use]
    pub fn hyperparameters(&self) -> &Hyperparameters {
        &self.hyperparameters
    }

    /// Tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &TokenizerInfo {
        &self.tokenizer
    }

    /// Hash of everything that turns text into token ids.
    #[must_use]
    pub fn tokenizer_hash(&self) -> Sha256Hash {
        self.tokenizer_hash
    }

    /// What is odd about it; in strict mode the ones that change output are errors.
    #[must_use]
    pub fn warnings(&self) -> &[GgufWarning] {
        &self.warnings
    }
}

fn architecture(gguf: &Gguf) -> Result<Architecture, GgufError> {
    let key = "general.architecture";
    let name = gguf.string(key)?.ok_or_else(|| GgufError::MissingKey { key: key.into() })?;
    Architecture::from_name(name).ok_or_else(|| GgufError::Architecture {
        name: shown(name.as_bytes()),
        reason: if OTHER_ENGINE_ARCHITECTURES.contains(&name) {
            "the engine has it, but this project serves ternary models only"
        } else {
            "the engine does not know it"
        },
    })
}

/// Keys under `general.` and `split.` that the engine reads.
fn general(gguf: &Gguf) -> Result<(), GgufError> {
    if let Some(value) = gguf.get("general.name")
        && !matches!(value, Value::String(_))
    {
        return Err(GgufError::key_type("general.name", value, "string"));
    }
    // `gguf_get_val_u32` aborts on another type.
    gguf.u32("general.file_type")?;
    // Only files that this project wrote say so. Read with the other packing, sums are finite and wrong.
    let packing = "bitnet_harness.i2_s_packing";
    if let Some(found) = gguf.string(packing)?
        && found != "x86"
    {
        let expected = "this engine reads x86; `harness model repack --from-packing arm --to i2_s` converts the file";
        return Err(GgufError::key_value(packing, shown(found.as_bytes()), expected));
    }
    match gguf.get("split.count") {
        None | Some(Value::U16(0 | 1)) => Ok(()),
        Some(Value::U16(count)) => Err(GgufError::Split { count: *count }),
        Some(other) => Err(GgufError::key_type("split.count", other, "u16")),
    }
}

/// The keys of one architecture.
struct Keys<'g> {
    gguf: &'g Gguf,
    prefix: &'static str,
}

impl Keys<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    fn missing(&self, key: &str) -> GgufError {
        GgufError::MissingKey { key: self.name(key) }
    }

    fn u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.gguf.u32(&self.name(key))
    }

    /// A required number between bounds.
    fn between(&self, key: &str, low: u32, high: u32) -> Result<u32, GgufError> {
        let value = self.u32(key)?.ok_or_else(|| self.missing(key))?;
        self.in_range(key, value, low, high)
    }

    fn in_range(&self, key: &str, value: u32, low: u32, high: u32) -> Result<u32, GgufError> {
        if (low..=high).contains(&value) {
            Ok(value)
        } else {
            Err(self.wrong(key, value, format!("{low} to {high} are possible")))
        }
    }

    fn wrong(&self, key: &str, value: impl fmt::Display, expected: impl Into<String>) -> GgufError {
        GgufError::key_value(&self.name(key), value, expected)
    }

    /// A number, or an i32 array with the same number for every block: the graphs of these
    /// architectures have one width for all blocks. (`get_key_or_arr`; a float array makes the
    /// engine abort.)
    fn per_block(&self, key: &str, n_layer: u32, high: u32) -> Result<Option<u32>, GgufError> {
        let name = self.name(key);
        let value = match self.gguf.get(&name) {
            None => return Ok(None),
            Some(Value::U32(value)) => *value,
            Some(Value::Array(Array::I32(values))) => {
                if values.len() != n_layer as usize {
                    return Err(self.wrong(
                        key,
                        format!("an array of {}", values.len()),
                        format!("one value for each of {n_layer} blocks is needed"),
                    ));
                }
                let first = values[0];
                if let Some(other) = values.iter().find(|&&value| value != first) {
                    return Err(self.wrong(
                        key,
                        format!("{first} in one block and {other} in another"),
                        "blocks of different widths are not supported",
                    ));
                }
                u32::try_from(first).map_err(|_| self.wrong(key, first, format!("1 to {high} are possible")))?
            }
            Some(other) => {
                return Err(GgufError::key_type(&name, other, "u32 or array of i32"));
            }
        };
        self.in_range(key, value, 1, high).map(Some)
    }

    /// A float that must be finite and above zero.
    fn positive(&self, key: &str) -> Result<Option<f32>, GgufError> {
        match self.gguf.f32(&self.name(key))? {
            Some(value) if !(value.is_finite() && value > 0.0) => {
                Err(self.wrong(key, value, "a finite number above zero is needed"))
            }
            other => Ok(other),
        }
    }
}

fn hyperparameters(keys: &Keys<'_>, architecture: Architecture, n_tokens: u32) -> Result<Hyperparameters, GgufError> {
    const MAX: u32 = i32::MAX as u32;
    let n_vocab = keys.u32("vocab_size")?.unwrap_or(n_tokens);
    if n_vocab != n_tokens {
        return Err(keys.wrong("vocab_size", n_vocab, format!("tokenizer.ggml.tokens has {n_tokens}")));
    }
    let n_ctx_train = keys.between("context_length", 1, MAX)?;
    let n_embd = keys.between("embedding_length", 1, MAX)?;
    let n_layer = keys.between("block_count", 1, MAX_LAYERS)?;
    for key in ["expert_count", "expert_used_count"] {
        if let Some(value @ 1..) = keys.u32(key)? {
            return Err(keys.wrong(key, value, "mixtures of experts are not supported"));
        }
    }
    let n_ff =
        keys.per_block("feed_forward_length", n_layer, MAX)?.ok_or_else(|| keys.missing("feed_forward_length"))?;
    let n_head =
        keys.per_block("attention.head_count", n_layer, n_embd)?.ok_or_else(|| keys.missing("attention.head_count"))?;
    let n_head_kv = keys.per_block("attention.head_count_kv", n_layer, n_head)?.unwrap_or(n_head);
    if n_head % n_head_kv != 0 {
        return Err(keys.wrong("attention.head_count_kv", n_head_kv, format!("it must divide the {n_head} heads")));
    }

    let key_length = keys.u32("attention.key_length")?;
    if key_length.is_none() && n_embd % n_head != 0 {
        return Err(keys.wrong(
            "attention.head_count",
            n_head,
            format!("it must divide embedding_length {n_embd}, or attention.key_length is needed"),
        ));
    }
    let head_dim = match key_length {
        Some(value) => keys.in_range("attention.key_length", value, 2, 1 << 16)?,
        None => n_embd / n_head,
    };
    let value_length = keys.u32("attention.value_length")?.unwrap_or(n_embd / n_head);
    if value_length != head_dim {
        // The graph builders assert it.
        return Err(keys.wrong(
            "attention.value_length",
            value_length,
            format!("keys and values need one head size, keys have {head_dim}"),
        ));
    }
    let width = u64::from(head_dim) * u64::from(n_head);
    if architecture.has_sub_norms() && width != u64::from(n_embd) {
        // `attn_sub_norm` has the embedding's width and is multiplied onto the heads.
        return Err(keys.wrong(
            "attention.key_length",
            head_dim,
            format!("{n_head} heads of it must make embedding_length {n_embd}"),
        ));
    }

    let norm_key = "attention.layer_norm_rms_epsilon";
    let norm_eps = keys.positive(norm_key)?.ok_or_else(|| keys.missing(norm_key))?;
    if norm_eps >= 1.0 {
        return Err(keys.wrong(norm_key, norm_eps, "a small number below 1 is needed"));
    }
    let rope = rope(keys, architecture, head_dim, n_ctx_train)?;
    Ok(Hyperparameters {
        n_vocab,
        n_ctx_train,
        n_embd,
        n_layer,
        n_head,
        n_head_kv,
        head_dim,
        n_ff,
        norm_eps,
        rope,
        tied_output: true,
    })
}

fn rope(keys: &Keys<'_>, architecture: Architecture, head_dim: u32, n_ctx_train: u32) -> Result<RopeInfo, GgufError> {
    let count_key = "rope.dimension_count";
    let dimension_count = keys.u32(count_key)?.unwrap_or(head_dim);
    if architecture == Architecture::BitNet {
        keys.in_range(count_key, dimension_count, 2, head_dim)?;
    } else if dimension_count != head_dim {
        return Err(keys.wrong(count_key, dimension_count, format!("it must equal the head size {head_dim}")));
    }
    if dimension_count % 2 != 0 {
        return Err(keys.wrong(count_key, dimension_count, "an even number is needed"));
    }

    let scaling_key = "rope.scaling.type";
    // The engine's default is linear, with a factor of 1; an unknown name makes it abort.
    let scaling = match keys.gguf.string(&keys.name(scaling_key))? {
        Some("none") => RopeScaling::None,
        None | Some("linear") => RopeScaling::Linear,
        Some("yarn") => RopeScaling::Yarn,
        Some(other) => {
            return Err(keys.wrong(scaling_key, shown(other.as_bytes()), "the engine has none, linear and yarn"));
        }
    };
    let mut factor = 1.0;
    // The old name counts only where the new one is absent.
    for key in ["rope.scaling.factor", "rope.scale_linear"] {
        if let Some(value) = keys.gguf.f32(&keys.name(key))? {
            if !value.is_finite() || value < 0.0 {
                return Err(keys.wrong(key, value, "a finite number, zero or above, is needed"));
            }
            // Zero means: not set.
            if value != 0.0 && scaling != RopeScaling::None {
                factor = value;
            }
            break;
        }
    }
    keys.gguf.bool(&keys.name("rope.scaling.finetuned"))?;
    let context_key = "rope.scaling.original_context_length";
    let original_context = match keys.u32(context_key)? {
        Some(value) => keys.in_range(context_key, value, 1, i32::MAX as u32)?,
        None => n_ctx_train,
    };
    Ok(RopeInfo {
        kind: architecture.rope_kind(),
        dimension_count,
        freq_base: keys.positive("rope.freq_base")?.unwrap_or(10_000.0),
        scaling,
        factor,
        attn_factor: keys.positive("rope.scaling.attn_factor")?.unwrap_or(1.0),
        original_context,
        freq_factors: None,
    })
}

/// What a tensor is used for; each use has types of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Rows are looked up; perhaps multiplied with as well.
    Embedding,
    /// Activations are multiplied with it.
    Matrix,
    /// Added or multiplied element by element.
    Vector,
}

/// Checks the tensor table of a model against its hyperparameters.
struct Inventory<'g> {
    gguf: &'g Gguf,
    architecture: Architecture,
    seen: HashSet<&'g str>,
}

impl<'g> Inventory<'g> {
    fn need(&mut self, name: &str, dims: &[u64], role: Role) -> Result<(), GgufError> {
        match self.may(name, dims, role)? {
            Some(_) => Ok(()),
            None => Err(GgufError::MissingTensor { tensor: name.to_owned(), architecture: self.architecture.name() }),
        }
    }

    fn may(&mut self, name: &str, dims: &[u64], role: Role) -> Result<Option<&'g TensorInfo>, GgufError> {
        let Some(tensor) = self.gguf.tensor(name) else {
            return Ok(None);
        };
        let mut expected = [1u64; 4];
        expected[..dims.len()].copy_from_slice(dims);
        if tensor.dims4() != expected {
            return Err(GgufError::TensorShape {
                tensor: name.to_owned(),
                found: format!("{:?}", tensor.dims()),
                expected: format!("{dims:?}"),
            });
        }
        let ty = tensor.ggml_type();
        let (ok, role, allowed) = match role {
            Role::Embedding => {
                (ty.is_embedding_type(), "a table of embeddings", "floats and block-quantized types can")
            }
            Role::Matrix => (ty.is_matrix_type(), "a weight matrix", "floats and block-quantized types can"),
            Role::Vector => (ty == GgmlType::F32, "a norm, bias or scale", "only f32 can"),
        };
        if !ok {
            return Err(GgufError::TensorRole { tensor: name.to_owned(), ty, role, allowed });
        }
        self.seen.insert(tensor.name());
        Ok(Some(tensor))
    }

    fn unused(&self, name: &str, reason: &'static str) -> Result<(), GgufError> {
        match self.gguf.tensor(name) {
            None => Ok(()),
            Some(_) => Err(GgufError::UnexpectedTensor {
                tensor: name.to_owned(),
                architecture: self.architecture.name(),
                reason,
            }),
        }
    }

    /// Nothing is left over (`done_getting_tensors`).
    fn finish(self) -> Result<(), GgufError> {
        let extra = self.gguf.tensors().iter().find(|tensor| !self.seen.contains(tensor.name()));
        match extra {
            None => Ok(()),
            Some(tensor) => Err(GgufError::UnexpectedTensor {
                tensor: shown(tensor.name().as_bytes()),
                architecture: self.architecture.name(),
                reason: "the engine refuses files with tensors that it does not use",
            }),
        }
    }
}

fn tensors(
    gguf: &Gguf,
    architecture: Architecture,
    h: &mut Hyperparameters,
    source: &dyn DataSource,
) -> Result<(), GgufError> {
    block_count(gguf, architecture, h.n_layer)?;
    let n_embd = u64::from(h.n_embd);
    let n_vocab = u64::from(h.n_vocab);
    let n_ff = u64::from(h.n_ff);
    let n_kv = u64::from(h.head_dim) * u64::from(h.n_head_kv);
    let n_q = u64::from(h.head_dim) * u64::from(h.n_head);
    let mut have = Inventory { gguf, architecture, seen: HashSet::new() };

    have.need("token_embd.weight", &[n_embd, n_vocab], Role::Embedding)?;
    have.need("output_norm.weight", &[n_embd], Role::Vector)?;
    let output = "output.weight";
    match architecture {
        // `build_bitnet` knows no such tensor: the count of tensors would not add up.
        Architecture::BitNet => {}
        Architecture::BitNet25 | Architecture::BitNetB158 => {
            // Loaded, but never used: the logits come from `token_embd`. Harmless only where
            // both are the same.
            if let Some(output) = have.may(output, &[n_embd, n_vocab], Role::Matrix)? {
                let same = match gguf.tensor("token_embd.weight") {
                    Some(embedding) => data::same_bytes(source, output, embedding)?,
                    None => false,
                };
                if !same {
                    return Err(GgufError::UnexpectedTensor {
                        tensor: "output.weight".into(),
                        architecture: architecture.name(),
                        reason: "it differs from token_embd.weight, and the engine computes the \
                                 logits with token_embd.weight whatever this tensor holds",
                    });
                }
            }
        }
        Architecture::Llama => {
            let output = have.may(output, &[n_embd, n_vocab], Role::Matrix)?;
            h.tied_output = output.is_none();
        }
    }
    if architecture != Architecture::BitNet {
        let pairs = u64::from(h.rope.dimension_count / 2);
        if let Some(factors) = have.may("rope_freqs.weight", &[pairs], Role::Vector)? {
            h.rope.freq_factors = Some(freq_factors(source, factors)?);
        }
    }

    for block in 0..h.n_layer {
        let name = |part: &str| format!("blk.{block}.{part}");
        have.need(&name("attn_norm.weight"), &[n_embd], Role::Vector)?;
        have.need(&name("ffn_norm.weight"), &[n_embd], Role::Vector)?;
        if architecture.has_sub_norms() {
            have.need(&name("attn_sub_norm.weight"), &[n_embd], Role::Vector)?;
            have.need(&name("ffn_sub_norm.weight"), &[n_ff], Role::Vector)?;
        }
        for (part, dims) in [
            ("attn_q", [n_embd, n_q]),
            ("attn_k", [n_embd, n_kv]),
            ("attn_v", [n_embd, n_kv]),
            ("attn_output", [n_q, n_embd]),
            ("ffn_gate", [n_embd, n_ff]),
            ("ffn_up", [n_embd, n_ff]),
            ("ffn_down", [n_ff, n_embd]),
        ] {
            have.need(&name(&format!("{part}.weight")), &dims, Role::Matrix)?;
            if architecture == Architecture::BitNet {
                have.may(&name(&format!("{part}.scale")), &[1], Role::Vector)?;
                continue;
            }
            let bias = name(&format!("{part}.bias"));
            if part.starts_with("ffn") && architecture != Architecture::Llama {
                have.unused(&bias, "the engine loads it and then computes without it (build_bitnet_158)")?;
            } else if part == "attn_q" && n_q != n_embd {
                have.unused(&bias, "the engine expects it as wide as the embedding, which the heads are not")?;
            } else {
                have.may(&bias, &dims[1..], Role::Vector)?;
            }
        }
    }
    have.finish()
}

/// The number of blocks the tensors speak of is `block_count`. Says so before a single tensor is
/// reported as missing.
fn block_count(gguf: &Gguf, architecture: Architecture, n_layer: u32) -> Result<(), GgufError> {
    let highest = gguf
        .tensors()
        .iter()
        .filter_map(|tensor| {
            let rest = tensor.name().strip_prefix("blk.")?;
            rest.split_once('.')?.0.parse::<u32>().ok()
        })
        .max();
    let blocks = highest.map_or(0, |highest| u64::from(highest) + 1);
    if blocks == u64::from(n_layer) {
        return Ok(());
    }
    Err(GgufError::key_value(
        &format!("{architecture}.block_count"),
        n_layer,
        format!("the file has tensors of {blocks} blocks"),
    ))
}

fn freq_factors(source: &dyn DataSource, tensor: &TensorInfo) -> Result<Vec<f32>, GgufError> {
    let bytes = data::tensor_bytes(source, tensor)?;
    let factors: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
    // The engine divides angles by them.
    match factors.iter().position(|factor| !(factor.is_finite() && *factor > 0.0)) {
        None => Ok(factors),
        Some(index) => Err(GgufError::TensorData {
            tensor: shown(tensor.name().as_bytes()),
            problem: format!("element {index} is {}, a finite number above zero is needed", factors[index]),
        }),
    }
}
