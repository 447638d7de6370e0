//! HuggingFace checkpoints of the ternary families as GGUF files.
//!
//! | family | `architectures` | linears | GGUF architecture |
//! |---|---|---|---|
//! | BitNet b1.58 2B-4T | `BitNetForCausalLM` | online-quantized master weights, or packed | `bitnet-b1.58` |
//! | Llama3-8B-1.58, Falcon3-1.58bit, Falcon-E | `LlamaForCausalLM` | packed, or online-quantized | `llama` |
//!
//! What a linear computes is decided by `quantization_config` (`transformers/integrations/bitnet.py`):
//! - `autobitlinear`, `online`: w' = round(w·s).clamp(−1, 1) / s with s = 1 / max(mean|w|, 1e-5), in f32.
//! - `autobitlinear`, `offline`: ternary weights, the result *times* `weight_scale`.
//! - `bitlinear` (the default): ternary weights, the result *divided by* `weight_scale`.
//! - no quantization: plain weights.
//!
//! Packed weights hold four rows a byte: row r is in packed row r mod (rows/4) at bit 2·(r div (rows/4)), as code
//! w + 1. Rows of Q and K are reordered for the architecture `llama`, whose rotary pairs are neighbours; `bitnet-b1.58`
//! keeps HuggingFace's halves.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use bitnet_rs::quantize;
use gguf::{GgmlType, GgufError, Limits, ModelFile};
use half::{bf16, f16};
use serde::Serialize;
use serde_json::Value as Json;

use super::hf_folder::{self, HfFolderError};
use super::hf_tensors::{Dtype, HfTensor, HfTensors, HfTensorsError};
use super::hf_tokenizer;
use super::repack::{self, PACKING_KEY};
use files::atomic_file::{self, AtomicFileError};
use files::staging::Staging;
use gguf::writer::{DataWriter, FilePlan, TensorPlan, Value};
use reference::i2s::{self, Packing};
use synth::Architecture;

/// Elements of a plain tensor handled at once, rounded down to whole rows.
const PIECE: u64 = 1 << 20;

/// Dimensions beyond these are no model of these families. A row is the most that is held of a linear.
const MAX_DIMENSION: u64 = 1 << 22;

/// Why a checkpoint was not converted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// A field of config.json is missing, or has a value that the engine cannot compute.
    #[error("config.json: {field} is {value}: {need}")]
    Config {
        /// The field.
        field: &'static str,
        /// Its value, shortened.
        value: String,
        /// What would work.
        need: String,
    },
    /// A tensor has another shape or type than the configuration says.
    #[error("tensor '{tensor}' is {found}; {expected} is needed")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Type and shape found.
        found: String,
        /// What would fit.
        expected: String,
    },
    /// The target type cannot hold a tensor.
    #[error("tensor '{tensor}' cannot be written as {to}: {reason}")]
    Target {
        /// The tensor.
        tensor: String,
        /// The type.
        to: &'static str,
        /// Why not.
        reason: String,
    },
    /// A tensor of the checkpoint has no place in the GGUF.
    #[error("the checkpoint has the tensor '{tensor}', which the architecture {architecture} has no place for{}", and_more(*more))]
    Unexpected {
        /// The first such tensor.
        tensor: String,
        /// The GGUF architecture.
        architecture: &'static str,
        /// How many more there are.
        more: usize,
    },
    /// The cancel flag was set.
    #[error("cancelled; nothing was written to the output file")]
    Cancelled,
    /// A file of the folder.
    #[error(transparent)]
    Folder(#[from] HfFolderError),
    /// Its tensors.
    #[error(transparent)]
    Tensors(#[from] HfTensorsError),
    /// ggml's quantizer refused.
    #[error(transparent)]
    Engine(#[from] bitnet_rs::Error),
    /// What was written is refused by the reader; nothing was put in place.
    #[error("the result is refused by the engine's reader: {0}")]
    Result(GgufError),
    /// The output file could not be made.
    #[error(transparent)]
    File(#[from] AtomicFileError),
    /// The data could not be written.
    #[error("cannot write the model: {0}")]
    Write(#[from] io::Error),
}

fn and_more(n: usize) -> String {
    if n == 0 { String::new() } else { format!(" (and {n} more)") }
}

/// How to convert.
#[derive(Debug, Clone)]
pub struct ConvertOptions {
    /// Type of the linears: i2_s, tq1_0, tq2_0, f16 or f32.
    pub matrices: GgmlType,
    /// Type of the embedding and of a separate output; f16, or f32 for f32 linears, unless stated.
    pub embedding: Option<GgmlType>,
    /// `tokenizer.ggml.pre`, where it is not recognised.
    pub pre: Option<String>,
    /// `general.name`; the folder's name without.
    pub name: Option<String>,
    /// Weights without `quantization_config` are master weights: round them as online quantization does.
    pub ternarize: bool,
}

/// How the checkpoint's linears are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Linears {
    /// Master weights, rounded at every call.
    Online,
    /// Ternary, the result times `weight_scale`.
    Multiplied,
    /// Ternary, the result divided by `weight_scale`.
    Divided,
    /// Ordinary weights.
    Plain,
}

/// What was written.
#[derive(Debug, Clone, Serialize)]
pub struct Converted {
    /// `general.architecture`.
    pub architecture: &'static str,
    /// How the linears were read.
    pub linears: Linears,
    /// Pre-tokenizer.
    pub pre: Option<String>,
    /// Bytes of the file.
    pub bytes: u64,
    /// Tensors in it.
    pub tensors: usize,
    /// What to know about it.
    pub warnings: Vec<String>,
    /// The chat template that was carried over.
    #[serde(skip)]
    pub chat_template: Option<String>,
}

/// What config.json says.
#[derive(Debug)]
struct Config {
    architecture: Architecture,
    linears: Linears,
    n_embd: u64,
    n_ff: u64,
    n_layer: u64,
    n_head: u64,
    n_head_kv: u64,
    head_dim: u64,
    n_vocab: u64,
    n_ctx: u64,
    eps: f32,
    rope: Rope,
    tied: bool,
}

fn shown(value: Option<&Json>) -> String {
    let text = value.map_or("missing".to_owned(), Json::to_string);
    text.chars().take(120).flat_map(char::escape_debug).collect()
}

struct Fields<'j>(&'j Json);

impl Fields<'_> {
    fn refuse<T>(&self, field: &'static str, need: impl Into<String>) -> Result<T, ConvertError> {
        Err(ConvertError::Config { field, value: shown(self.0.get(field)), need: need.into() })
    }

    /// A positive integer; `default` where the field is absent or null.
    fn size(&self, field: &'static str, default: Option<u64>) -> Result<u64, ConvertError> {
        match (self.0.get(field).filter(|v| !v.is_null()), default) {
            (None, Some(default)) => Ok(default),
            (value, _) => match value.and_then(Json::as_u64).filter(|n| (1..=MAX_DIMENSION).contains(n)) {
                Some(n) => Ok(n),
                None => self.refuse(field, format!("a whole number from 1 to {MAX_DIMENSION} is needed")),
            },
        }
    }

    fn flag(&self, field: &'static str, default: bool) -> Result<bool, ConvertError> {
        match self.0.get(field).filter(|v| !v.is_null()) {
            None => Ok(default),
            Some(Json::Bool(b)) => Ok(*b),
            Some(_) => self.refuse(field, "true or false is needed"),
        }
    }
}

fn positive(value: Option<&Json>, field: &'static str) -> Result<f32, ConvertError> {
    match value.and_then(Json::as_f64).map(|v| v as f32).filter(|v| v.is_finite() && *v > 0.0) {
        Some(v) => Ok(v),
        None => Err(ConvertError::Config {
            field,
            value: shown(value),
            need: "a finite number above zero is needed".into(),
        }),
    }
}

impl Config {
    fn read(json: &Json, ternarize: bool) -> Result<Self, ConvertError> {
        let f = Fields(json);
        let named = json.get("architectures").and_then(|a| a.get(0)).and_then(Json::as_str);
        let (architecture, activation) = match named {
            Some("BitNetForCausalLM") => (Architecture::BitnetB158, "relu2"),
            Some("LlamaForCausalLM") => (Architecture::Llama, "silu"),
            _ => {
                return f.refuse(
                    "architectures",
                    "BitNetForCausalLM (2B-4T) and LlamaForCausalLM (Llama3-8B-1.58, Falcon3, Falcon-E) can be converted",
                );
            }
        };
        if json.get("hidden_act").and_then(Json::as_str) != Some(activation) {
            return f.refuse("hidden_act", format!("the engine computes {activation} for this architecture"));
        }
        for field in ["attention_bias", "mlp_bias"] {
            if f.flag(field, false)? {
                return f.refuse(field, "linears with a bias are not converted");
            }
        }
        let n_embd = f.size("hidden_size", None)?;
        let n_head = f.size("num_attention_heads", None)?;
        let n_head_kv = f.size("num_key_value_heads", Some(n_head))?;
        if !n_head.is_multiple_of(n_head_kv) {
            return f.refuse("num_key_value_heads", format!("it must divide num_attention_heads = {n_head}"));
        }
        let head_dim = match json.get("head_dim").filter(|v| !v.is_null()) {
            Some(_) => f.size("head_dim", None)?,
            None if n_embd.is_multiple_of(n_head) => n_embd / n_head,
            None => return f.refuse("num_attention_heads", format!("it must divide hidden_size = {n_embd}")),
        };
        if !head_dim.is_multiple_of(2) {
            return f.refuse("head_dim", "rotation needs an even number");
        }
        // Both are bounded, their product is not yet, and it is a dimension as well.
        if head_dim * n_head > MAX_DIMENSION {
            return f.refuse("head_dim", format!("with {n_head} heads it must make at most {MAX_DIMENSION}"));
        }
        if architecture.has_sub_norms() && head_dim * n_head != n_embd {
            return f.refuse("head_dim", format!("{n_head} heads must make hidden_size {n_embd}"));
        }
        let tied = f.flag("tie_word_embeddings", architecture.has_sub_norms())?;
        if architecture.has_sub_norms() && !tied {
            return f
                .refuse("tie_word_embeddings", "the engine computes this architecture's logits with the embedding");
        }
        let linears = linears(json, ternarize)?;
        let rope = rope(json, head_dim)?;
        Ok(Self {
            architecture,
            linears,
            n_embd,
            n_ff: f.size("intermediate_size", None)?,
            n_layer: match f.size("num_hidden_layers", None)? {
                n if n <= 512 => n,
                _ => return f.refuse("num_hidden_layers", "the engine takes at most 512"),
            },
            n_head,
            n_head_kv,
            head_dim,
            n_vocab: match f.size("vocab_size", None)? {
                n if n <= u64::from(hf_tokenizer::MAX_TOKENS) => n,
                _ => return f.refuse("vocab_size", format!("at most {} tokens are taken", hf_tokenizer::MAX_TOKENS)),
            },
            n_ctx: f.size("max_position_embeddings", None)?,
            eps: positive(json.get("rms_norm_eps"), "rms_norm_eps")?,
            rope,
            tied,
        })
    }
}

fn linears(config: &Json, ternarize: bool) -> Result<Linears, ConvertError> {
    let Some(q) = config.get("quantization_config").filter(|v| !v.is_null()) else {
        return Ok(if ternarize { Linears::Online } else { Linears::Plain });
    };
    let refuse = |field: &'static str, value: Option<&Json>, need: &str| {
        Err(ConvertError::Config { field, value: shown(value), need: need.into() })
    };
    let text = |key: &str| q.get(key).and_then(Json::as_str);
    if text("quant_method") != Some("bitnet") {
        return refuse("quantization_config.quant_method", q.get("quant_method"), "\"bitnet\" is the ternary method");
    }
    if q.get("use_rms_norm").and_then(Json::as_bool) == Some(true) {
        return refuse(
            "quantization_config.use_rms_norm",
            q.get("use_rms_norm"),
            "the engine has no norm before each linear",
        );
    }
    if let Some(list) = q.get("modules_to_not_convert").filter(|v| !v.is_null()) {
        let names = list.as_array().map(Vec::as_slice).unwrap_or_default();
        let harmless = |v: &Json| v.as_str().is_some_and(|s| s.ends_with("lm_head") || s.ends_with("embed_tokens"));
        if !list.is_array() || !names.iter().all(harmless) {
            return refuse(
                "quantization_config.modules_to_not_convert",
                Some(list),
                "only lm_head may stay unconverted: the other linears are written in one type",
            );
        }
    }
    // Left out, they are what transformers' BitNetConfig makes of them.
    match (text("linear_class").unwrap_or("bitlinear"), text("quantization_mode").unwrap_or("offline")) {
        ("bitlinear", _) => Ok(Linears::Divided),
        ("autobitlinear", "offline") => Ok(Linears::Multiplied),
        ("autobitlinear", "online") => Ok(Linears::Online),
        _ => refuse(
            "quantization_config",
            Some(q),
            "linear_class bitlinear or autobitlinear, quantization_mode offline or online is needed",
        ),
    }
}

/// Rotary embedding as the GGUF states it.
#[derive(Debug)]
struct Rope {
    base: f32,
    /// Divisors of the frequencies (Llama 3.1's rule).
    factors: Option<Vec<f32>>,
    /// Divisor of the positions.
    linear: Option<f32>,
}

fn rope(config: &Json, head_dim: u64) -> Result<Rope, ConvertError> {
    fn refuse<T>(field: &'static str, value: &Json, need: &str) -> Result<T, ConvertError> {
        Err(ConvertError::Config { field, value: shown(Some(value)), need: need.into() })
    }
    // transformers 5 writes one object, older versions two fields.
    let given = |field: &'static str| -> Result<Option<&Json>, ConvertError> {
        match config.get(field).filter(|v| !v.is_null()) {
            None => Ok(None),
            Some(value) if value.is_object() => Ok(Some(value)),
            Some(value) => refuse(field, value, "an object is needed"),
        }
    };
    let (new, old) = (given("rope_parameters")?, given("rope_scaling")?);
    if let (Some(new), Some(old)) = (new, old)
        && new != old
    {
        return refuse("rope_scaling", old, "it says something else than rope_parameters");
    }
    let field = if new.is_some() { "rope_parameters" } else { "rope_scaling" };
    let scaling = new.or(old);
    if let Some(scaling) = scaling {
        // By layer type, or something newer: what is not understood is not left out.
        const KNOWN: [&str; 9] = [
            "rope_theta",
            "rope_type",
            "type",
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "original_max_position_embeddings",
            "partial_rotary_factor",
            "attention_factor",
        ];
        for (key, value) in scaling.as_object().into_iter().flatten() {
            let whole = ["partial_rotary_factor", "attention_factor"].contains(&key.as_str());
            if !KNOWN.contains(&key.as_str())
                || value.is_object()
                || (whole && value.as_f64() != Some(1.0) && !value.is_null())
            {
                return refuse(field, scaling, &format!("'{}' in it cannot be expressed", key.escape_debug()));
            }
        }
    }
    if let Some(part) = config.get("partial_rotary_factor").filter(|v| !v.is_null() && v.as_f64() != Some(1.0)) {
        return refuse("partial_rotary_factor", part, "every dimension of a head must turn");
    }
    let within = scaling.and_then(|r| r.get("rope_theta")).filter(|v| !v.is_null());
    let beside = config.get("rope_theta").filter(|v| !v.is_null());
    if let (Some(within), Some(beside)) = (within, beside)
        && within.as_f64() != beside.as_f64()
    {
        return refuse("rope_theta", beside, &format!("{field} says {}", shown(Some(within))));
    }
    let base = match within.or(beside) {
        // What LlamaConfig means when it says nothing.
        None => 10_000.0,
        base => positive(base, "rope_theta")?,
    };
    let Some(scaling) = scaling else { return Ok(Rope { base, factors: None, linear: None }) };
    let named = |key: &str| scaling.get(key).filter(|v| !v.is_null());
    let kind = match (named("rope_type"), named("type")) {
        (Some(a), Some(b)) if a != b => return refuse(field, scaling, "rope_type and type differ"),
        (None, None) => "default",
        (kind, other) => match kind.or(other).and_then(Json::as_str) {
            Some(kind) => kind,
            None => return refuse(field, scaling, "rope_type is a word"),
        },
    };
    match kind {
        "default" => Ok(Rope { base, factors: None, linear: None }),
        "linear" => {
            let linear = Some(positive(scaling.get("factor"), "rope_scaling.factor")?);
            Ok(Rope { base, factors: None, linear })
        }
        "llama3" => {
            let get = |key: &str, field| positive(scaling.get(key), field).map(f64::from);
            let factor = get("factor", "rope_scaling.factor")?;
            let low = get("low_freq_factor", "rope_scaling.low_freq_factor")?;
            let high = get("high_freq_factor", "rope_scaling.high_freq_factor")?;
            let context = get("original_max_position_embeddings", "rope_scaling.original_max_position_embeddings")?;
            if high <= low {
                return Err(ConvertError::Config {
                    field: "rope_scaling.high_freq_factor",
                    value: high.to_string(),
                    need: format!("it must be above low_freq_factor = {low}"),
                });
            }
            let factors = (0..head_dim / 2).map(|i| {
                let wavelength = 2.0 * std::f64::consts::PI * f64::from(base).powf((2 * i) as f64 / head_dim as f64);
                let smooth = ((context / wavelength - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
            });
            Ok(Rope { base, factors: Some(factors.collect()), linear: None })
        }
        _ => Err(ConvertError::Config {
            field: "rope_scaling",
            value: shown(Some(scaling)),
            need: "default, linear and llama3 can be expressed".into(),
        }),
    }
}

/// Where a tensor of the GGUF comes from.
enum Source<'c> {
    /// Written as floats of its type.
    Plain(&'c HfTensor),
    /// A linear; `heads` where rows are reordered for neighbouring rotary pairs.
    Linear { weight: &'c HfTensor, scale: Option<&'c HfTensor>, heads: Option<u64> },
    /// Numbers computed from the configuration.
    Computed(Vec<f32>),
}

struct Planned<'c> {
    name: String,
    dims: Vec<u64>,
    ty: GgmlType,
    source: Source<'c>,
}

const LINEARS: [(&str, &str); 7] = [
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// Converts the checkpoint in `folder` and puts the file in place once our reader, which stands before the engine,
/// takes it. `progress` gets bytes written and in total.
///
/// # Errors
/// See [`ConvertError`]; an existing output file is only replaced with `force`.
pub fn convert(
    folder: &Path,
    output: &Path,
    options: &ConvertOptions,
    force: bool,
    progress: &mut dyn FnMut(u64, u64),
    cancel: &AtomicBool,
) -> Result<Converted, ConvertError> {
    let json = hf_folder::json(&folder.join("config.json"))?;
    let config = Config::read(&json, options.ternarize)?;
    if config.linears == Linears::Plain && is_ternary(options.matrices) {
        return Err(ConvertError::Config {
            field: "quantization_config",
            value: "missing".into(),
            need: format!(
                "these are plain weights, which {} cannot hold: write f16, or pass --ternarize if they are the master weights of a ternary model",
                options.matrices
            ),
        });
    }
    let checkpoint = HfTensors::open(folder)?;
    let planned = plan(&config, &checkpoint, options)?;
    // After the shapes: missing ids are filled up to the embedding's rows, and these must be there.
    let n_vocab = config.n_vocab as u32;
    let tokenizer = hf_folder::tokenizer(folder, Some(n_vocab), options.pre.as_deref())?;
    let mut warnings = tokenizer.warnings;
    if !is_ternary(options.matrices) && config.linears != Linears::Plain {
        warnings.push(format!(
            "with {} matrices the engine does not quantize activations to 8 bits, as the model was trained: logits differ a little from those of i2_s",
            options.matrices
        ));
    }
    if tokenizer.vocabulary.chat_template.is_none() {
        warnings.push("the checkpoint has no chat template".into());
    }
    let pre = tokenizer.vocabulary.pre.clone();
    let chat_template = tokenizer.vocabulary.chat_template.clone();
    let name = match &options.name {
        Some(name) => name.clone(),
        None => folder_name(folder),
    };
    let mut metadata = metadata(&config, options, &name);
    metadata.extend(tokenizer.vocabulary.into_metadata());
    let tensors = planned
        .iter()
        .map(|p| {
            let bytes = p.dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d)).and_then(|n| p.ty.tensor_bytes(n));
            let bytes = bytes.ok_or_else(|| target(p, "its size is no whole number of blocks, or overflows"))?;
            Ok(TensorPlan { name: p.name.clone(), dims: p.dims.clone(), kind: p.ty.number(), bytes })
        })
        .collect::<Result<Vec<_>, ConvertError>>()?;
    let plan = FilePlan::new(&metadata, tensors)?;
    let total = plan.total_bytes();
    // The reader judges a private copy first, so that a refused result never appears under the name.
    let staged = Staging::beside(output, force)?;
    atomic_file::write(staged.path(), true, |out| -> Result<(), ConvertError> {
        let mut written = plan.header_bytes();
        let mut data = plan.start(out)?;
        let mut step = |bytes: usize| {
            written += bytes as u64;
            progress(written, total);
            if cancel.load(Ordering::Relaxed) { Err(ConvertError::Cancelled) } else { Ok(()) }
        };
        for planned in &planned {
            write_tensor(&checkpoint, &config, planned, &mut data, &mut step)?;
        }
        Ok(data.finish()?)
    })?;
    ModelFile::open(staged.path(), &Limits::default()).map_err(ConvertError::Result)?;
    staged.put(output, force)?;
    Ok(Converted {
        architecture: config.architecture.name(),
        linears: config.linears,
        pre,
        bytes: total,
        tensors: planned.len(),
        warnings,
        chat_template,
    })
}

fn folder_name(folder: &Path) -> String {
    let real = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    real.file_name().map_or("model".to_owned(), |n| n.to_string_lossy().into_owned())
}

fn is_ternary(ty: GgmlType) -> bool {
    matches!(ty, GgmlType::I2_S | GgmlType::TQ1_0 | GgmlType::TQ2_0)
}

fn target(planned: &Planned<'_>, reason: &str) -> ConvertError {
    ConvertError::Target { tensor: planned.name.clone(), to: planned.ty.name(), reason: reason.to_owned() }
}

fn metadata(config: &Config, options: &ConvertOptions, name: &str) -> Vec<(String, Value)> {
    let arch = config.architecture.name();
    let mut metadata = vec![
        ("general.architecture".to_owned(), Value::from(arch)),
        ("general.name".to_owned(), Value::from(name)),
        ("general.quantization_version".to_owned(), Value::U32(2)),
    ];
    if let Some(file_type) = repack::file_type(options.matrices) {
        metadata.push(("general.file_type".to_owned(), Value::U32(file_type)));
    }
    if options.matrices == GgmlType::I2_S {
        metadata.push((PACKING_KEY.to_owned(), Value::from(repack::packing_name(Packing::X86))));
    }
    let mut put = |key: &str, value| metadata.push((format!("{arch}.{key}"), value));
    for (key, value) in [
        ("vocab_size", config.n_vocab),
        ("context_length", config.n_ctx),
        ("embedding_length", config.n_embd),
        ("block_count", config.n_layer),
        ("feed_forward_length", config.n_ff),
        ("attention.head_count", config.n_head),
        ("attention.head_count_kv", config.n_head_kv),
        ("rope.dimension_count", config.head_dim),
    ] {
        // All are below MAX_DIMENSION.
        put(key, Value::U32(value as u32));
    }
    if config.head_dim * config.n_head != config.n_embd {
        put("attention.key_length", Value::U32(config.head_dim as u32));
        put("attention.value_length", Value::U32(config.head_dim as u32));
    }
    put("attention.layer_norm_rms_epsilon", Value::F32(config.eps));
    put("rope.freq_base", Value::F32(config.rope.base));
    if let Some(factor) = config.rope.linear {
        put("rope.scaling.type", Value::from("linear"));
        put("rope.scaling.factor", Value::F32(factor));
    }
    metadata
}

/// Every tensor of the GGUF, and none of the checkpoint left over.
fn plan<'c>(
    config: &Config,
    checkpoint: &'c HfTensors,
    options: &ConvertOptions,
) -> Result<Vec<Planned<'c>>, ConvertError> {
    let mut used = BTreeSet::new();
    let mut out = Vec::new();
    let embedding = options.embedding.unwrap_or(match options.matrices {
        GgmlType::F32 => GgmlType::F32,
        _ => GgmlType::F16,
    });
    let mut plain = |out: &mut Vec<Planned<'c>>, hf: String, name: String, dims: Vec<u64>, ty| {
        let tensor = checkpoint.need(&hf)?;
        let shape: Vec<u64> = dims.iter().rev().copied().collect();
        if tensor.shape != shape || tensor.dtype == Dtype::U8 {
            return Err(wrong_shape(tensor, format!("floats of shape {shape:?}")));
        }
        used.insert(hf);
        let planned = Planned { name, dims, ty, source: Source::Plain(tensor) };
        if !matches!(ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16) && !quantize::TYPES.contains(&ty) {
            return Err(target(&planned, "no quantizer makes this type of plain weights"));
        }
        check_target(&planned)?;
        out.push(planned);
        Ok(())
    };
    let (n_embd, n_ff) = (config.n_embd, config.n_ff);
    let (q, kv) = (config.head_dim * config.n_head, config.head_dim * config.n_head_kv);
    let vocabulary = vec![n_embd, config.n_vocab];
    plain(&mut out, "model.embed_tokens.weight".into(), "token_embd.weight".into(), vocabulary.clone(), embedding)?;
    let sub = config.architecture.has_sub_norms();
    let mut linears_of = Vec::new();
    for layer in 0..config.n_layer {
        let hf = |part: &str| format!("model.layers.{layer}.{part}.weight");
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let norms = [
            ("input_layernorm", "attn_norm", n_embd, true),
            ("self_attn.attn_sub_norm", "attn_sub_norm", n_embd, sub),
            ("post_attention_layernorm", "ffn_norm", n_embd, true),
            ("mlp.ffn_sub_norm", "ffn_sub_norm", n_ff, sub),
        ];
        for (from, to, width, wanted) in norms {
            if wanted {
                plain(&mut out, hf(from), name(to), vec![width], GgmlType::F32)?;
            }
        }
        for (from, to) in LINEARS {
            let dims = match to {
                "attn_q" => [n_embd, q],
                "attn_k" | "attn_v" => [n_embd, kv],
                "attn_output" => [q, n_embd],
                "ffn_down" => [n_ff, n_embd],
                _ => [n_embd, n_ff],
            };
            let heads = match (config.architecture, to) {
                (Architecture::Llama, "attn_q") => Some(config.n_head),
                (Architecture::Llama, "attn_k") => Some(config.n_head_kv),
                _ => None,
            };
            linears_of.push((out.len(), format!("model.layers.{layer}.{from}"), name(to), dims, heads));
        }
    }
    plain(&mut out, "model.norm.weight".into(), "output_norm.weight".into(), vec![n_embd], GgmlType::F32)?;
    if !config.tied {
        plain(&mut out, "lm_head.weight".into(), "output.weight".into(), vocabulary, embedding)?;
    }
    // Linears in file order behind their layer's norms.
    for (at, hf, name, dims, heads) in linears_of.into_iter().rev() {
        let weight = checkpoint.need(&format!("{hf}.weight"))?;
        used.insert(weight.name.clone());
        let packed = weight.dtype == Dtype::U8;
        let [cols, rows] = dims;
        let shape = if packed { vec![rows / 4, cols] } else { vec![rows, cols] };
        let scaled = matches!(config.linears, Linears::Multiplied | Linears::Divided);
        if weight.shape != shape || (packed && !(scaled && rows.is_multiple_of(4))) {
            let what =
                if packed && !scaled { "floats, since nothing says how packed ones are scaled," } else { "a tensor" };
            return Err(wrong_shape(weight, format!("{what} of shape {shape:?}")));
        }
        let scale = match scaled {
            false => None,
            true => {
                let scale = checkpoint.need(&format!("{hf}.weight_scale"))?;
                if scale.bytes() != scale.dtype.bytes() || scale.dtype == Dtype::U8 {
                    return Err(wrong_shape(scale, "one float".into()));
                }
                used.insert(scale.name.clone());
                Some(scale)
            }
        };
        let planned = Planned {
            name,
            dims: dims.to_vec(),
            ty: options.matrices,
            source: Source::Linear { weight, scale, heads },
        };
        check_target(&planned)?;
        out.insert(at, planned);
    }
    if let Some(factors) = &config.rope.factors {
        out.push(Planned {
            name: "rope_freqs.weight".into(),
            dims: vec![factors.len() as u64],
            ty: GgmlType::F32,
            source: Source::Computed(factors.clone()),
        });
    }
    // A tied output that was stored all the same must be the embedding.
    if config.tied
        && let Some(head) = checkpoint.get("lm_head.weight")
    {
        same_tensor(checkpoint, checkpoint.need("model.embed_tokens.weight")?, head)?;
    }
    // Copies of what is computed otherwise.
    let spare = |name: &str| name.ends_with("rotary_emb.inv_freq") || (config.tied && name == "lm_head.weight");
    let unexpected = |name: &str| !used.contains(name) && !spare(name);
    let left: Vec<&str> = checkpoint.tensors().map(|t| t.name.as_str()).filter(|n| unexpected(n)).collect();
    match left.first() {
        None => Ok(out),
        Some(first) => Err(ConvertError::Unexpected {
            tensor: first.chars().take(200).flat_map(char::escape_debug).collect(),
            architecture: config.architecture.name(),
            more: left.len() - 1,
        }),
    }
}

/// Refuses an output beside a tied embedding that is another one: the GGUF would have the embedding in its place.
fn same_tensor(checkpoint: &HfTensors, embedding: &HfTensor, head: &HfTensor) -> Result<(), ConvertError> {
    let other = "tie_word_embeddings is true, so the embedding's values are needed";
    if embedding.shape != head.shape || head.dtype == Dtype::U8 || embedding.dtype == Dtype::U8 {
        return Err(wrong_shape(head, other.into()));
    }
    let elements: u64 = head.shape.iter().product();
    let mut first = 0;
    while first < elements {
        let n = PIECE.min(elements - first);
        if checkpoint.floats(embedding, first, n as usize)? != checkpoint.floats(head, first, n as usize)? {
            return Err(ConvertError::Shape {
                tensor: head.name.clone(),
                found: "an output of its own".into(),
                expected: format!("{other}, or tie_word_embeddings false,"),
            });
        }
        first += n;
    }
    Ok(())
}

fn wrong_shape(tensor: &HfTensor, expected: String) -> ConvertError {
    let found = format!("{} {:?}", tensor.dtype.name(), tensor.shape);
    ConvertError::Shape { tensor: tensor.name.clone(), found, expected }
}

/// Refuses shapes that the type cannot hold, before a byte is written.
fn check_target(planned: &Planned<'_>) -> Result<(), ConvertError> {
    let row = planned.dims[0];
    if !row.is_multiple_of(planned.ty.block_len()) {
        return Err(target(planned, &format!("rows of {row} are no multiple of {}", planned.ty.block_len())));
    }
    let rows: u64 = planned.dims[1..].iter().product();
    if !rows.is_multiple_of(planned.ty.row_group()) {
        return Err(target(planned, &format!("{rows} rows are no multiple of {}", planned.ty.row_group())));
    }
    Ok(())
}

type Step<'s> = dyn FnMut(usize) -> Result<(), ConvertError> + 's;

fn write_tensor<W: Write + ?Sized>(
    checkpoint: &HfTensors,
    config: &Config,
    planned: &Planned<'_>,
    data: &mut DataWriter<'_, W>,
    step: &mut Step<'_>,
) -> Result<(), ConvertError> {
    let row_len = planned.dims[0];
    match &planned.source {
        Source::Computed(values) => {
            let bytes = repack::floats_as(values, planned.ty, values.len())?;
            data.write(&bytes)?;
            step(bytes.len())
        }
        Source::Plain(tensor) => {
            let elements: u64 = planned.dims.iter().product();
            let at_once = (PIECE / row_len).max(1) * row_len;
            let mut first = 0;
            while first < elements {
                let n = at_once.min(elements - first);
                let values = checkpoint.floats(tensor, first, n as usize)?;
                write_floats(planned, &values, data, step)?;
                first += n;
            }
            Ok(())
        }
        Source::Linear { weight, scale, heads } => {
            let linear = Linear::open(checkpoint, config, weight, *scale, [row_len, planned.dims[1]])?;
            write_linear(planned, &linear, *heads, data, step)
        }
    }
}

fn write_floats<W: Write + ?Sized>(
    planned: &Planned<'_>,
    values: &[f32],
    data: &mut DataWriter<'_, W>,
    step: &mut Step<'_>,
) -> Result<(), ConvertError> {
    let bytes = repack::floats_as(values, planned.ty, planned.dims[0] as usize).map_err(|e| match e {
        bitnet_rs::Error::KernelArgument { field: "element", limit, .. } => {
            target(planned, &format!("a value is refused: {limit}; pass --embedding f32"))
        }
        e => e.into(),
    })?;
    // A finite value may be too large for the type, or for the half-precision scale of its block.
    let back = |at: usize| match planned.ty {
        GgmlType::F16 => f16::from_f32(values[at]).to_f32(),
        GgmlType::BF16 => bf16::from_f32(values[at]).to_f32(),
        _ => values[at],
    };
    let lost = match quantize::TYPES.contains(&planned.ty) {
        true => quantize::floats(planned.ty, &bytes)?.iter().position(|v| !v.is_finite()),
        false => (0..values.len()).find(|&at| !back(at).is_finite()),
    };
    if let Some(at) = lost {
        let problem = format!("it holds {}, beyond what this type takes; pass --embedding f32", values[at]);
        return Err(target(planned, &problem));
    }
    data.write(&bytes)?;
    step(bytes.len())
}

/// How a linear's values become what is written.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Reading {
    /// Codes, four rows a byte.
    Packed,
    /// −1, 0 and 1 as floats.
    Unpacked,
    /// Master weights; the factor before rounding.
    Rounded(f32),
    /// As they are.
    Plain,
}

/// A linear, read row by row: what its header claims is never held as a whole.
struct Linear<'c> {
    checkpoint: &'c HfTensors,
    weight: &'c HfTensor,
    cols: usize,
    rows: usize,
    reading: Reading,
    /// Of all codes; 1 for plain weights.
    scale: f32,
}

impl<'c> Linear<'c> {
    fn open(
        checkpoint: &'c HfTensors,
        config: &Config,
        weight: &'c HfTensor,
        scale: Option<&HfTensor>,
        dims: [u64; 2],
    ) -> Result<Self, ConvertError> {
        let [cols, rows] = dims.map(|n| n as usize); // at most MAX_DIMENSION
        let reading = match config.linears {
            _ if weight.dtype == Dtype::U8 => Reading::Packed,
            Linears::Plain => Reading::Plain,
            Linears::Online => Reading::Rounded(1.0),
            Linears::Multiplied | Linears::Divided => Reading::Unpacked,
        };
        let mut linear = Self { checkpoint, weight, cols, rows, reading, scale: 1.0 };
        if let Reading::Rounded(_) = reading {
            let mut sum = 0.0;
            for row in 0..rows {
                linear.floats(row)?.iter().for_each(|v| sum += f64::from(v.abs()));
            }
            let factor = online_factor(sum, rows * cols);
            linear.reading = Reading::Rounded(factor);
            linear.scale = 1.0 / factor;
        }
        if let Some(tensor) = scale {
            let value = checkpoint.floats(tensor, 0, 1)?[0];
            linear.scale = if config.linears == Linears::Divided { (1.0 / f64::from(value)) as f32 } else { value };
        }
        if !(linear.scale.is_finite() && linear.scale > 0.0) {
            let problem = format!("it makes the scale {}; a finite number above zero is needed", linear.scale);
            return Err(checkpoint.refuse(scale.unwrap_or(weight), problem).into());
        }
        Ok(linear)
    }

    /// A row of the checkpoint.
    fn floats(&self, row: usize) -> Result<Vec<f32>, HfTensorsError> {
        self.checkpoint.floats(self.weight, (row * self.cols) as u64, self.cols)
    }

    /// Codes w + 1 of a row of the checkpoint.
    fn codes(&self, row: usize) -> Result<Vec<u8>, HfTensorsError> {
        let refuse = |column: usize, what: String| {
            let problem = format!("row {row}, column {column} {what}");
            Err(self.checkpoint.refuse(self.weight, problem))
        };
        match self.reading {
            Reading::Packed => {
                // Packed row r holds rows r, r + rows/4, r + 2·rows/4 and r + 3·rows/4.
                let quarter = self.rows / 4;
                let mut codes = vec![0; self.cols];
                self.checkpoint.read(self.weight, (row % quarter * self.cols) as u64, &mut codes)?;
                codes.iter_mut().for_each(|code| *code = *code >> (2 * (row / quarter)) & 3);
                match codes.iter().position(|&c| c == 3) {
                    None => Ok(codes),
                    Some(at) => refuse(at, "holds the code 3, which is no ternary weight".into()),
                }
            }
            Reading::Rounded(factor) => Ok(rounded(&self.floats(row)?, factor)),
            Reading::Unpacked | Reading::Plain => {
                let mut codes = Vec::with_capacity(self.cols);
                for (at, v) in self.floats(row)?.into_iter().enumerate() {
                    codes.push(match v {
                        -1.0 => 0,
                        0.0 => 1,
                        1.0 => 2,
                        _ => return refuse(at, format!("is {v}; offline weights are -1, 0 or 1")),
                    });
                }
                Ok(codes)
            }
        }
    }
}

/// `WeightQuant`'s factor s: the mean is taken in f64 and rounded to f32 once, the rest repeats the f32 arithmetic.
fn online_factor(sum: f64, count: usize) -> f32 {
    1.0 / ((sum / count.max(1) as f64) as f32).max(1e-5)
}

fn rounded(values: &[f32], factor: f32) -> Vec<u8> {
    values.iter().map(|&v| ((v * factor).round_ties_even().clamp(-1.0, 1.0) + 1.0) as u8).collect()
}

/// The row of the checkpoint for a row of the GGUF. HuggingFace rotates value i of a head with value i + d/2, the
/// engine's `llama` 2i with 2i + 1.
fn source_row(row: usize, rows: usize, heads: Option<u64>) -> usize {
    let Some(heads) = heads else { return row };
    let dim = rows / heads as usize;
    row / dim * dim + row % dim % 2 * (dim / 2) + row % dim / 2
}

fn write_linear<W: Write + ?Sized>(
    planned: &Planned<'_>,
    linear: &Linear<'_>,
    heads: Option<u64>,
    data: &mut DataWriter<'_, W>,
    step: &mut Step<'_>,
) -> Result<(), ConvertError> {
    let sources = (0..linear.rows).map(|row| source_row(row, linear.rows, heads));
    if linear.reading == Reading::Plain {
        for row in sources {
            write_floats(planned, &linear.floats(row)?, data, step)?;
        }
        return Ok(());
    }
    let (scale, d) = (linear.scale, f16::from_f32(linear.scale));
    if matches!(planned.ty, GgmlType::TQ1_0 | GgmlType::TQ2_0 | GgmlType::F16) && !(d.is_finite() && d.to_f32() > 0.0) {
        return Err(target(planned, &format!("its scale {scale} is outside f16's range")));
    }
    for row in sources {
        let codes = linear.codes(row)?;
        let bytes = if is_ternary(planned.ty) {
            repack::pack(&codes, planned.ty, Packing::X86, d)
        } else {
            let values: Vec<f32> = codes.iter().map(|&c| (f32::from(c) - 1.0) * scale).collect();
            repack::floats_as(&values, planned.ty, linear.cols)?
        };
        data.write(&bytes)?;
        step(bytes.len())?;
    }
    if planned.ty == GgmlType::I2_S {
        let mut trailer = [0; i2s::TRAILER];
        trailer[..4].copy_from_slice(&scale.to_le_bytes());
        data.write(&trailer)?;
        step(trailer.len())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source;
    use gguf::{Gguf, GgufFile};
    use serde_json::json;

    fn checkpoint(header: &str, data: &[u8]) -> HfTensors {
        let folder = tempfile::tempdir().unwrap();
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
        HfTensors::open(folder.path()).unwrap()
    }

    fn config() -> Json {
        json!({
            "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 256, "intermediate_size": 512,
            "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300,
            "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "quantization_config": {"quant_method": "bitnet"}
        })
    }

    #[test]
    fn the_trained_checkpoint_becomes_the_model_that_training_exported() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../gates/models/bitnet-harness-home-hf");
        let out = tempfile::tempdir().unwrap();
        let path = out.path().join("m.gguf");
        let options =
            ConvertOptions { matrices: GgmlType::I2_S, embedding: None, pre: None, name: None, ternarize: false };
        let run = |force| convert(&folder, &path, &options, force, &mut |_, _| (), &AtomicBool::new(false));
        let done = run(false).unwrap();
        assert_eq!((done.architecture, done.linears, done.tensors), ("bitnet-b1.58", Linears::Online, 46));
        assert!(done.warnings.is_empty(), "{:?}", done.warnings);
        assert!(matches!(run(false), Err(ConvertError::File(AtomicFileError::Exists { .. }))));
        run(true).unwrap();
        assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 1);

        // scripts/gguf_export.py wrote the embedded model with torch.
        let theirs = Gguf::parse(source::EMBEDDED, &Limits::default()).unwrap();
        let ours = GgufFile::open(&path, &Limits::default()).unwrap();
        for tensor in theirs.tensors() {
            let same = ours.gguf().tensor(tensor.name()).unwrap();
            assert_eq!((same.dims(), same.ggml_type()), (tensor.dims(), tensor.ggml_type()), "{}", tensor.name());
            let expected = &source::EMBEDDED[tensor.range().start as usize..tensor.range().end as usize];
            let ours = ours.read_tensor(same).unwrap();
            if tensor.ggml_type() != GgmlType::I2_S {
                assert!(ours == expected, "{}", tensor.name());
                continue;
            }
            // Codes are equal; torch sums the mean of the magnitudes in f32, whose last bits depend on the order.
            let codes = ours.len() - i2s::TRAILER;
            assert!(ours[..codes] == expected[..codes], "{}", tensor.name());
            let scale = |b: &[u8]| f32::from_le_bytes([b[codes], b[codes + 1], b[codes + 2], b[codes + 3]]);
            let ulps = scale(&ours).to_bits().abs_diff(scale(expected).to_bits());
            assert!(ulps <= 2, "{}: {ulps} units in the last place", tensor.name());
        }
        for (key, value) in theirs.entries() {
            // The name and notes about the training are the exporter's own.
            if key.starts_with("general.")
                || key.starts_with("bitnet_harness.")
                || key == "tokenizer.ggml.add_eos_token"
            {
                continue;
            }
            assert_eq!(ours.gguf().get(key), Some(value), "{key}");
        }
    }

    #[test]
    fn packed_rows_as_transformers_unpacks_them() {
        // The example in the documentation of `unpack_weights`.
        let header = r#"{"w":{"dtype":"U8","shape":[2,2],"data_offsets":[0,4]},"s":{"dtype":"BF16","shape":[1],"data_offsets":[4,6]}}"#;
        let data = [0b1010_0001, 0b0001_1000, 0b1001_0000, 0b0000_1010, 0x00, 0x40];
        let hf = checkpoint(header, &data);
        for (quantization, expected_scale) in [
            (json!({"quant_method": "bitnet"}), 0.5),
            (json!({"quant_method": "bitnet", "linear_class": "autobitlinear"}), 2.0),
        ] {
            let mut json = config();
            json["quantization_config"] = quantization;
            let config = Config::read(&json, false).unwrap();
            let linear = Linear::open(&hf, &config, hf.need("w").unwrap(), hf.get("s"), [2, 8]).unwrap();
            let values: Vec<i8> =
                (0..8).flat_map(|row| linear.codes(row).unwrap()).map(|code| code as i8 - 1).collect();
            assert_eq!(values, [0, -1, -1, 1, -1, 1, -1, 1, 1, 0, 0, -1, 1, -1, 1, -1]);
            assert_eq!(linear.scale, expected_scale);
        }
        let hf = checkpoint(header, &[0b11, 0, 0, 0, 0, 0x40]);
        let config = Config::read(&config(), false).unwrap();
        let linear = Linear::open(&hf, &config, hf.need("w").unwrap(), hf.get("s"), [2, 8]).unwrap();
        let err = linear.codes(0).unwrap_err().to_string();
        assert!(err.contains("row 0, column 0") && err.contains("code 3"), "{err}");
        let hf = checkpoint(header, &[0; 6]);
        let err = Linear::open(&hf, &config, hf.need("w").unwrap(), hf.get("s"), [2, 8]).err().unwrap().to_string();
        assert!(err.contains("scale inf"), "{err}");
    }

    #[test]
    fn online_rounding_by_hand() {
        // Mean magnitude 1, so weights round at one half, ties to even.
        let factor = online_factor(0.5 + 0.5 + 0.51 + 2.99 + 1.5, 6);
        assert_eq!((rounded(&[0.5, -0.5, 0.51, -2.99, 1.5, 0.0], factor), factor), (vec![1, 1, 2, 0, 2, 1], 1.0));
        assert_eq!(online_factor(0.0, 0), 1e5);
    }

    #[test]
    fn rotary_rows_by_hand() {
        // Two heads of four rows: HuggingFace pairs (0, 2) and (1, 3), which become neighbours.
        let order = |rows, heads| (0..rows).map(|row| source_row(row, rows, heads)).collect::<Vec<_>>();
        assert_eq!(order(8, Some(2)), [0, 2, 1, 3, 4, 6, 5, 7]);
        assert_eq!(order(4, None), [0, 1, 2, 3]);
    }

    #[test]
    fn frequencies_of_llama_3_1() {
        let mut json = config();
        json["rope_theta"] = json!(500_000.0);
        json["rope_scaling"] = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192});
        let factors = Config::read(&json, false).unwrap().rope.factors.unwrap();
        assert_eq!(factors.len(), 32);
        // Short wavelengths stay, long ones are stretched eightfold; the wavelength of pair 15 of 32 is
        // 2π·500000^(15/32) = 2948, between 8192/4 and 8192: smooth = (8192/2948 − 1)/3 = 0.5929, factor 1.5534.
        assert_eq!((factors[0], factors[31]), (1.0, 8.0));
        assert!((factors[15] - 1.5534).abs() < 2e-4, "{}", factors[15]);
    }

    #[test]
    fn configurations_that_mean_something_else_are_refused_by_field() {
        type Change = fn(&mut Json);
        let cases: [(&str, Change); 26] = [
            ("architectures", |c| c["architectures"] = json!(["Qwen2ForCausalLM"])),
            ("architectures", |c| c["architectures"] = json!(7)),
            ("hidden_act", |c| c["hidden_act"] = json!("gelu")),
            ("hidden_size", |c| c["hidden_size"] = json!(-1)),
            ("hidden_size", |c| c["hidden_size"] = json!(1_u64 << 60)),
            ("num_hidden_layers", |c| c["num_hidden_layers"] = json!(513)),
            ("num_key_value_heads", |c| c["num_key_value_heads"] = json!(3)),
            ("head_dim", |c| c["head_dim"] = json!(33)),
            ("head_dim", |c| c["head_dim"] = json!(1 << 22)),
            ("vocab_size", |c| c["vocab_size"] = json!(1_000_001)),
            ("attention_bias", |c| c["attention_bias"] = json!(true)),
            ("quant_method", |c| c["quantization_config"]["quant_method"] = json!("gptq")),
            ("use_rms_norm", |c| c["quantization_config"]["use_rms_norm"] = json!(true)),
            ("modules_to_not_convert", |c| {
                c["quantization_config"]["modules_to_not_convert"] = json!(["lm_head", "model.layers.0.mlp"]);
            }),
            ("rope_scaling", |c| c["rope_scaling"] = json!({"type": "dynamic", "factor": 2.0})),
            ("rope_scaling", |c| c["rope_scaling"] = json!("linear")),
            ("rope_scaling", |c| c["rope_scaling"] = json!([{"type": "linear", "factor": 2.0}])),
            ("rope_scaling", |c| c["rope_scaling"] = json!({"rope_type": 3, "factor": 2.0})),
            ("rope_scaling", |c| c["rope_scaling"] = json!({"rope_type": "default", "type": "linear", "factor": 2.0})),
            ("rope_scaling", |c| c["rope_scaling"] = json!({"rope_type": "linear", "factor": 2.0, "beta_fast": 32})),
            ("rope_parameters", |c| {
                c["rope_parameters"] =
                    json!({"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}});
            }),
            ("rope_parameters", |c| {
                c["rope_parameters"] = json!({"rope_theta": 10000.0, "partial_rotary_factor": 0.5})
            }),
            ("rope_theta", |c| c["rope_parameters"] = json!({"rope_theta": 500000.0})),
            ("partial_rotary_factor", |c| c["partial_rotary_factor"] = json!(0.5)),
            ("rms_norm_eps", |c| c["rms_norm_eps"] = json!("1e400")),
            ("rope_theta", |c| c["rope_theta"] = json!(0)),
        ];
        for (field, change) in cases {
            let mut json = config();
            change(&mut json);
            let err = Config::read(&json, false).unwrap_err().to_string();
            assert!(err.contains(field), "{field}: {err}");
        }
        let mut json = config();
        json["architectures"] = json!(["BitNetForCausalLM"]);
        json["hidden_act"] = json!("relu2");
        json["tie_word_embeddings"] = json!(false);
        assert!(Config::read(&json, false).unwrap_err().to_string().contains("tie_word_embeddings"));
    }

    #[test]
    fn an_output_beside_a_tied_embedding_must_be_the_embedding() {
        let header = r#"{"e":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},"same":{"dtype":"F16","shape":[1,2],"data_offsets":[8,12]},"other":{"dtype":"F32","shape":[1,2],"data_offsets":[12,20]},"flat":{"dtype":"F32","shape":[2],"data_offsets":[20,28]}}"#;
        let mut data: Vec<u8> = [1.0f32, 2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        data.extend([1.0, 2.0].iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()));
        data.extend([1.0f32, 2.5, 1.0, 2.0].iter().flat_map(|x| x.to_le_bytes()));
        let hf = checkpoint(header, &data);
        let against = |name: &str| same_tensor(&hf, hf.need("e").unwrap(), hf.need(name).unwrap());
        assert!(against("same").is_ok());
        let err = against("other").unwrap_err().to_string();
        assert!(err.contains("'other'") && err.contains("tie_word_embeddings"), "{err}");
        assert!(against("flat").is_err());
    }

    #[test]
    fn tensors_that_do_not_fit_are_refused_by_name() {
        let config = Config::read(&config(), false).unwrap();
        let options =
            ConvertOptions { matrices: GgmlType::I2_S, embedding: None, pre: None, name: None, ternarize: false };
        let hf = checkpoint(
            r#"{"model.embed_tokens.weight":{"dtype":"U8","shape":[300,256],"data_offsets":[0,76800]}}"#,
            &[0; 76800],
        );
        let err = plan(&config, &hf, &options).err().unwrap().to_string();
        assert!(err.contains("embed_tokens") && err.contains("U8 [300, 256]"), "{err}");
        let hf = checkpoint(
            r#"{"model.embed_tokens.weight":{"dtype":"F16","shape":[300,256],"data_offsets":[0,153600]}}"#,
            &[0; 153_600],
        );
        let err = plan(&config, &hf, &options).err().unwrap().to_string();
        assert!(err.contains("no tensor 'model.layers.0.input_layernorm.weight'"), "{err}");
    }
}
