//! What a GGUF file is: shapes, types, tokenizer, hashes, memory, which gates apply.
//!
//! Everything but the two hashes over the data comes from the header, so a file of any size is
//! inspected in the time its header takes.

use std::fmt::Write as _;
use std::ops::ControlFlow;

use files::size::for_people;
use gguf::{GgmlType, Gguf, GgufError, GgufFile, GgufWarning, Limits, ModelInfo, Value};
use kv::KvType;
use serde::Serialize;

/// Version of the JSON form.
pub const SCHEMA: &str = "bitnet-harness.inspection/1";

/// What to find out.
#[derive(Debug, Clone)]
pub struct InspectOptions {
    /// Context to compute memory for, tokens; by default the training context, at most 4,096.
    pub n_ctx: Option<u32>,
    /// Type of the cached keys.
    pub type_k: KvType,
    /// Type of the cached values.
    pub type_v: KvType,
    /// Whether attention is computed the flash way, which rounds the cache up further.
    pub flash_attention: bool,
    /// Also hash all tensors and the file, which reads it twice.
    pub hash_data: bool,
    /// Also list every tensor and key.
    pub details: bool,
}

impl Default for InspectOptions {
    fn default() -> Self {
        Self {
            n_ctx: None,
            type_k: KvType::F16,
            type_v: KvType::F16,
            flash_attention: false,
            hash_data: false,
            details: false,
        }
    }
}

/// The result of an inspection.
#[derive(Debug, Serialize)]
pub struct Inspection {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// Path as given.
    pub path: String,
    /// The container.
    pub file: FileSection,
    /// Whether the engine of this build can load and compute it.
    pub supported: bool,
    /// Why not, if not.
    pub refusal: Option<String>,
    /// The model; absent if it is not supported.
    pub model: Option<ModelSection>,
    /// The tokenizer; absent if the model is not supported.
    pub tokenizer: Option<TokenizerSection>,
    /// What ties a cartridge to this model, in the spelling of a cartridge's metadata.
    pub lock: Option<Lock>,
    /// SHA-256 of the file, if asked for.
    pub file_hash: Option<String>,
    /// Memory for a context.
    pub memory: Option<Memory>,
    /// Which gates can say something about this model.
    pub gates: Vec<GateNote>,
    /// What is odd.
    pub warnings: Vec<Warning>,
    /// What would make it faster.
    pub advice: Vec<String>,
    /// Every key, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys: Option<Vec<KeyLine>>,
    /// Every tensor, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensors: Option<Vec<TensorLine>>,
}

/// The container.
#[derive(Debug, Serialize)]
pub struct FileSection {
    /// Length, bytes.
    pub bytes: u64,
    /// GGUF version.
    pub gguf_version: u32,
    /// Alignment of the data, bytes.
    pub alignment: u64,
    /// Where the data begins, bytes.
    pub data_offset: u64,
    /// `general.architecture`, whatever it is.
    pub architecture: Option<String>,
    /// Number of keys.
    pub n_keys: usize,
    /// Number of tensors.
    pub n_tensors: usize,
    /// Elements of all tensors.
    pub n_parameters: u64,
    /// Bytes of all tensors.
    pub tensor_bytes: u64,
    /// By type, the one with most bytes first.
    pub types: Vec<TypeLine>,
}

/// How much there is of a tensor type.
#[derive(Debug, Serialize)]
pub struct TypeLine {
    /// ggml's name.
    #[serde(rename = "type")]
    pub ty: &'static str,
    /// ggml's number.
    pub number: u32,
    /// Tensors.
    pub tensors: usize,
    /// Bytes.
    pub bytes: u64,
}

/// Shapes and constants.
#[derive(Debug, Serialize)]
#[allow(missing_docs, reason = "the names are those of gguf::Hyperparameters")]
pub struct ModelSection {
    pub architecture: &'static str,
    pub name: Option<String>,
    pub n_vocab: u32,
    pub n_ctx_train: u32,
    pub n_embd: u32,
    pub n_layer: u32,
    pub n_head: u32,
    pub n_head_kv: u32,
    pub head_dim: u32,
    pub n_ff: u32,
    pub norm_eps: f32,
    pub rope_type: &'static str,
    pub rope_theta: f32,
    pub rope_dim: u32,
    pub rope_scaling: String,
    pub tied_output: bool,
    /// Type of `token_embd.weight`.
    pub embedding_type: &'static str,
}

/// The tokenizer.
#[derive(Debug, Serialize)]
#[allow(missing_docs, reason = "the names are those of gguf::TokenizerInfo")]
pub struct TokenizerSection {
    pub model: &'static str,
    pub pre: Option<String>,
    pub n_tokens: u32,
    pub n_merges: u32,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub eot: Option<u32>,
    pub padding: Option<u32>,
    pub unknown: Option<u32>,
    pub add_bos: Option<bool>,
    pub add_eos: Option<bool>,
    /// Length of the chat template in bytes, if there is one.
    pub chat_template_bytes: Option<usize>,
}

/// Metadata that a cartridge carries about its model.
#[derive(Debug, Serialize)]
#[allow(missing_docs, reason = "the names are those of docs/formats/cartridge.md")]
pub struct Lock {
    pub model_id: String,
    pub model_arch_hash: String,
    /// Only when data was hashed.
    pub model_weights_hash: Option<String>,
    pub tokenizer_hash: String,
    pub rope_type: &'static str,
    pub rope_theta: String,
    pub rope_scaling: String,
    pub rope_dim: String,
}

/// Memory for a context. Working buffers, some tens of megabytes, come on top.
#[derive(Debug, Serialize)]
#[allow(missing_docs, reason = "the names say it; all sizes are bytes")]
pub struct Memory {
    pub n_ctx: u32,
    pub type_k: &'static str,
    pub type_v: &'static str,
    pub flash_attention: bool,
    pub weights_bytes: u64,
    /// Absent when a head is no whole number of blocks of the type.
    pub kv_bytes_per_token: Option<u64>,
    pub kv_bytes: Option<u64>,
    pub total_bytes: Option<u64>,
}

/// Whether a gate can say something about this model.
#[derive(Debug, Serialize)]
pub struct GateNote {
    /// Gate.
    pub gate: &'static str,
    /// Whether it applies.
    pub applies: bool,
    /// Why, or what it needs.
    pub note: String,
}

/// Something odd.
#[derive(Debug, Serialize)]
pub struct Warning {
    /// Short name.
    pub code: &'static str,
    /// For people.
    pub message: String,
}

/// A key.
#[derive(Debug, Serialize)]
pub struct KeyLine {
    /// Key.
    pub key: String,
    /// Type.
    #[serde(rename = "type")]
    pub ty: String,
    /// Value, shortened; of an array its length.
    pub value: String,
}

/// A tensor.
#[derive(Debug, Serialize)]
pub struct TensorLine {
    /// Name.
    pub name: String,
    /// Dimensions, fastest first.
    pub dims: Vec<u64>,
    /// Type.
    #[serde(rename = "type")]
    pub ty: &'static str,
    /// First byte in the file.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Inspects an open file. `progress` gets bytes done and in total while data is hashed, and can
/// stop.
///
/// A model that the engine cannot compute is no error here: the inspection says so and why.
///
/// # Errors
/// [`GgufError::Read`] and [`GgufError::Cancelled`] while data is read.
pub fn inspect(
    file: &GgufFile,
    options: &InspectOptions,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Inspection, GgufError> {
    let gguf = file.gguf();
    let (info, refusal) = match file.model(&Limits::default()) {
        Ok(info) => (Some(info), None),
        Err(error @ GgufError::Read { .. }) => return Err(error),
        Err(error) => (None, Some(error.to_string())),
    };
    let mut weights_hash = None;
    let mut file_hash = None;
    if options.hash_data {
        let (first, total) = (gguf.tensor_bytes(), gguf.tensor_bytes() + gguf.file_len());
        weights_hash = Some(file.weights_hash(&mut |done, _| progress(done, total))?.to_string());
        file_hash = Some(file.file_hash(&mut |done, _| progress(first + done, total))?.to_string());
    }
    let warnings = info.as_ref().map_or(gguf.warnings(), ModelInfo::warnings);
    Ok(Inspection {
        schema: SCHEMA,
        path: file.path().display().to_string(),
        file: file_section(gguf),
        supported: info.is_some(),
        refusal,
        model: info.as_ref().map(|info| model_section(info, gguf)),
        tokenizer: info.as_ref().map(tokenizer_section),
        lock: info.as_ref().map(|info| lock(info, file, weights_hash)),
        file_hash,
        memory: info.as_ref().map(|info| memory(info, gguf, options)),
        gates: gates(gguf, info.as_ref()),
        warnings: warnings.iter().map(|w| Warning { code: w.code(), message: w.to_string() }).collect(),
        advice: advice(gguf),
        keys: options.details.then(|| gguf.entries().map(key_line).collect()),
        tensors: options.details.then(|| tensor_lines(gguf)),
    })
}

/// From here on the embedding, which decoding reads as the output matrix, is worth a smaller type.
const LARGE_EMBEDDING: u64 = 64 << 20;

fn advice(gguf: &Gguf) -> Vec<String> {
    // The matrix of the output layer: of its own, or the embedding.
    let output = gguf.tensor("output.weight").or_else(|| gguf.tensor("token_embd.weight"));
    let Some(output) = output.filter(|t| t.size() >= LARGE_EMBEDDING) else { return Vec::new() };
    if !matches!(output.ggml_type(), GgmlType::F32 | GgmlType::F16 | GgmlType::BF16) {
        return Vec::new();
    }
    let option = if output.name() == "output.weight" { "output" } else { "embedding" };
    vec![format!(
        "every decoded token reads all of {} ({}, {}): `harness model quantize --{option} q6_k` writes a copy that decodes \
         faster (1.3 times on the 2B shape, docs/speed.md)",
        output.name(),
        output.ggml_type().name(),
        for_people(output.size())
    )]
}

fn file_section(gguf: &Gguf) -> FileSection {
    let mut types: Vec<TypeLine> = gguf
        .types()
        .into_iter()
        .map(|(ty, (tensors, bytes))| TypeLine { ty: ty.name(), number: ty.number(), tensors, bytes })
        .collect();
    types.sort_by_key(|line| std::cmp::Reverse(line.bytes));
    FileSection {
        bytes: gguf.file_len(),
        gguf_version: gguf.version(),
        alignment: gguf.alignment(),
        data_offset: gguf.data_offset(),
        architecture: match gguf.get("general.architecture") {
            Some(value @ Value::String(_)) => Some(short(value)),
            _ => None,
        },
        n_keys: gguf.entries().len(),
        n_tensors: gguf.tensors().len(),
        n_parameters: gguf.tensors().iter().map(|t| t.elements()).fold(0, u64::saturating_add),
        tensor_bytes: gguf.tensor_bytes(),
        types,
    }
}

fn model_section(info: &ModelInfo, gguf: &Gguf) -> ModelSection {
    let h = info.hyperparameters();
    ModelSection {
        architecture: info.architecture().name(),
        name: info.name().map(str::to_owned),
        n_vocab: h.n_vocab,
        n_ctx_train: h.n_ctx_train,
        n_embd: h.n_embd,
        n_layer: h.n_layer,
        n_head: h.n_head,
        n_head_kv: h.n_head_kv,
        head_dim: h.head_dim,
        n_ff: h.n_ff,
        norm_eps: h.norm_eps,
        rope_type: h.rope.kind.name(),
        rope_theta: h.rope.freq_base,
        rope_dim: h.rope.dimension_count,
        rope_scaling: h.rope.scaling_text(),
        tied_output: h.tied_output,
        embedding_type: gguf.tensor("token_embd.weight").map_or("none", |t| t.ggml_type().name()),
    }
}

fn tokenizer_section(info: &ModelInfo) -> TokenizerSection {
    let t = info.tokenizer();
    TokenizerSection {
        model: t.model.name(),
        pre: t.pre.clone(),
        n_tokens: t.n_tokens,
        n_merges: t.n_merges,
        bos: t.special.bos,
        eos: t.special.eos,
        eot: t.special.eot,
        padding: t.special.padding,
        unknown: t.special.unknown,
        add_bos: t.add_bos,
        add_eos: t.add_eos,
        chat_template_bytes: t.chat_template.as_ref().map(String::len),
    }
}

fn lock(info: &ModelInfo, file: &GgufFile, weights_hash: Option<String>) -> Lock {
    let rope = &info.hyperparameters().rope;
    let stem = || file.path().file_stem().map(|stem| stem.to_string_lossy().into_owned());
    Lock {
        model_id: info.name().map(str::to_owned).or_else(stem).unwrap_or_default(),
        model_arch_hash: info.arch_hash().to_string(),
        model_weights_hash: weights_hash,
        tokenizer_hash: info.tokenizer_hash().to_string(),
        rope_type: rope.kind.name(),
        rope_theta: rope.freq_base.to_string(),
        rope_scaling: rope.scaling_text(),
        rope_dim: rope.dimension_count.to_string(),
    }
}

fn memory(info: &ModelInfo, gguf: &Gguf, options: &InspectOptions) -> Memory {
    let h = info.hyperparameters();
    let n_ctx = options.n_ctx.unwrap_or(h.n_ctx_train.min(4096));
    let weights_bytes = gguf.tensor_bytes();
    let kv_bytes = h.kv_bytes(n_ctx, options.type_k, options.type_v, options.flash_attention);
    Memory {
        n_ctx,
        type_k: options.type_k.name(),
        type_v: options.type_v.name(),
        flash_attention: options.flash_attention,
        weights_bytes,
        kv_bytes_per_token: h.kv_bytes_per_token(options.type_k, options.type_v),
        kv_bytes,
        total_bytes: kv_bytes.and_then(|kv| kv.checked_add(weights_bytes)),
    }
}

fn gates(gguf: &Gguf, info: Option<&ModelInfo>) -> Vec<GateNote> {
    let note = |gate, applies, note: &str| GateNote { gate, applies, note: note.to_owned() };
    let Some(info) = info else {
        return ["0", "1", "2", "3a", "3b", "4", "5"]
            .map(|gate| note(gate, false, "the model is not supported"))
            .into();
    };
    let i2s = gguf.tensors().iter().filter(|t| t.ggml_type() == GgmlType::I2_S).count();
    let uncovered = info.warnings().iter().any(|w| matches!(w, GgufWarning::BytesNotCovered { .. }));
    vec![
        note("0", true, "coherence, perplexity and speed"),
        if i2s > 0 {
            note("1", true, &format!("{i2s} i2_s matrices"))
        } else {
            note("1", false, "no i2_s matrix: only the built-in shapes can be tried")
        },
        note("2", true, "needs a reference file made from the same checkpoint; UNKNOWN without"),
        note("3a", true, "native state round trip"),
        note("3b", true, "KV through a cartridge"),
        if uncovered {
            note("4", false, "the vocabulary has no token for some bytes")
        } else {
            note("4", true, "grammar-constrained output")
        },
        note("5", true, "the agent's rules, independent of the model"),
    ]
}

/// A scalar as text, at most 60 characters, control characters escaped.
fn short(value: &Value) -> String {
    match value {
        Value::U8(v) => v.to_string(),
        Value::I8(v) => v.to_string(),
        Value::U16(v) => v.to_string(),
        Value::I16(v) => v.to_string(),
        Value::U32(v) => v.to_string(),
        Value::I32(v) => v.to_string(),
        Value::F32(v) => v.to_string(),
        Value::U64(v) => v.to_string(),
        Value::I64(v) => v.to_string(),
        Value::F64(v) => v.to_string(),
        Value::Bool(v) => v.to_string(),
        Value::String(bytes) => {
            let head = String::from_utf8_lossy(&bytes[..bytes.len().min(300)]);
            let mut text: String = head.chars().take(60).flat_map(char::escape_debug).collect();
            if head.chars().nth(60).is_some() {
                text.push('…');
            }
            text
        }
        Value::Array(array) => format!("{} elements", array.len()),
    }
}

fn key_line((key, value): (&str, &Value)) -> KeyLine {
    KeyLine { key: key.escape_debug().to_string(), ty: value.type_name(), value: short(value) }
}

fn tensor_lines(gguf: &Gguf) -> Vec<TensorLine> {
    let line = |t: &gguf::TensorInfo| TensorLine {
        name: t.name().escape_debug().to_string(),
        dims: t.dims().to_vec(),
        ty: t.ggml_type().name(),
        offset: t.offset(),
        bytes: t.size(),
    };
    gguf.tensors().iter().map(line).collect()
}

impl Inspection {
    /// The inspection for a terminal. Not an interface: machines read the JSON.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        let mut line = |label: &str, text: String| {
            // Names come from the file: control characters must not reach the terminal.
            let text: String = text
                .chars()
                .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
                .collect();
            let _ = writeln!(out, "{label:<10} {text}");
        };
        let file = &self.file;
        line("file", format!("{} ({})", self.path, for_people(file.bytes)));
        line(
            "container",
            format!(
                "GGUF {}, {} keys, {} tensors, {} parameters, data at {}",
                file.gguf_version, file.n_keys, file.n_tensors, file.n_parameters, file.data_offset
            ),
        );
        let types: Vec<String> =
            file.types.iter().map(|t| format!("{} {} × {}", for_people(t.bytes), t.tensors, t.ty)).collect();
        line("types", types.join(", "));
        if let Some(refusal) = &self.refusal {
            line("REFUSED", refusal.clone());
        }
        if let Some(m) = &self.model {
            line("model", format!("{} ({})", m.name.as_deref().unwrap_or("unnamed"), m.architecture));
            line(
                "shape",
                format!(
                    "{} layers, width {}, {} heads of {} ({} for KV), feed-forward {}, vocabulary {}",
                    m.n_layer, m.n_embd, m.n_head, m.head_dim, m.n_head_kv, m.n_ff, m.n_vocab
                ),
            );
            line(
                "rope",
                format!(
                    "{}, base {}, {} of {} dimensions, scaling {}, trained for {} tokens",
                    m.rope_type, m.rope_theta, m.rope_dim, m.head_dim, m.rope_scaling, m.n_ctx_train
                ),
            );
            let output = if m.tied_output { "output tied to it" } else { "output of its own" };
            line("embedding", format!("{}, {output}", m.embedding_type));
        }
        if let Some(t) = &self.tokenizer {
            let id = |id: Option<u32>| id.map_or("none".to_owned(), |id| id.to_string());
            line(
                "tokenizer",
                format!(
                    "{}, pre-tokenizer {}, {} tokens, {} merges; bos {}, eos {}, eot {}",
                    t.model,
                    t.pre.as_deref().unwrap_or("MISSING"),
                    t.n_tokens,
                    t.n_merges,
                    id(t.bos),
                    id(t.eos),
                    id(t.eot)
                ),
            );
            let template = t.chat_template_bytes.map_or("none".to_owned(), |n| format!("{n} bytes in the file"));
            line("template", template);
        }
        if let Some(m) = &self.memory {
            let kv = m.kv_bytes.map_or("impossible for this head size".to_owned(), for_people);
            let per_token = m.kv_bytes_per_token.map_or(String::new(), |n| format!(" ({} a token)", for_people(n)));
            let total = m.total_bytes.map_or(String::new(), |n| format!(", together {}", for_people(n)));
            line(
                "memory",
                format!(
                    "weights {}, KV for {} tokens {}/{} {kv}{per_token}{total}, and working buffers",
                    for_people(m.weights_bytes),
                    m.n_ctx,
                    m.type_k,
                    m.type_v
                ),
            );
        }
        if let Some(lock) = &self.lock {
            line("arch", lock.model_arch_hash.clone());
            line("tokens", lock.tokenizer_hash.clone());
            line("weights", lock.model_weights_hash.clone().unwrap_or_else(|| "not computed (--hash)".into()));
        }
        if let Some(hash) = &self.file_hash {
            line("file hash", hash.clone());
        }
        for gate in &self.gates {
            let applies = if gate.applies { "applies" } else { "does not apply" };
            line(&format!("gate {}", gate.gate), format!("{applies}: {}", gate.note));
        }
        for warning in &self.warnings {
            line("warning", warning.message.clone());
        }
        for advice in &self.advice {
            line("advice", advice.clone());
        }
        for key in self.keys.iter().flatten() {
            line("key", format!("{} ({}) = {}", key.key, key.ty, key.value));
        }
        for tensor in self.tensors.iter().flatten() {
            line("tensor", format!("{} {:?} {} at {}", tensor.name, tensor.dims, tensor.ty, tensor.offset));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf::Architecture;
    use gguf::fixture::{GgufBuilder, tiny_model};

    fn inspected(builder: &GgufBuilder, options: &InspectOptions) -> Inspection {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        std::fs::write(&path, builder.encode()).unwrap();
        let file = GgufFile::open(&path, &Limits::default()).unwrap();
        inspect(&file, options, &mut |_, _| ControlFlow::Continue(())).unwrap()
    }

    #[test]
    fn a_sound_model() {
        let options = InspectOptions { n_ctx: Some(100), ..InspectOptions::default() };
        let found = inspected(&tiny_model(Architecture::BitNetB158), &options);
        assert!(found.supported);
        let memory = found.memory.as_ref().unwrap();
        // 1 layer, 1 KV head of 64 f16 keys and values; 100 tokens are rounded up to 128.
        assert_eq!(memory.kv_bytes_per_token, Some(256));
        assert_eq!(memory.kv_bytes, Some(128 * 256));
        // An embedding of 260 × 128 f16, five norms of 128 f32, seven matrices of 128 columns.
        let rows: u64 = 5 * 128 + 2 * 64;
        assert_eq!(memory.weights_bytes, 260 * 128 * 2 + 5 * 512 + rows * 32 + 7 * 32);
        assert_eq!(found.file.n_parameters, 260 * 128 + 5 * 128 + rows * 128);
        let types: Vec<_> = found.file.types.iter().map(|t| (t.ty, t.tensors)).collect();
        assert_eq!(types, [("f16", 1), ("i2_s", 7), ("f32", 5)]);
        assert!(found.gates.iter().all(|gate| gate.applies));
        assert_eq!(found.warnings.iter().map(|w| w.code).collect::<Vec<_>>(), ["chat-template-missing"]);
        let lock = found.lock.as_ref().unwrap();
        assert_eq!((lock.model_id.as_str(), lock.rope_theta.as_str()), ("tiny", "500000"));
        assert_eq!(lock.model_weights_hash, None);

        let json = serde_json::to_value(&found).unwrap();
        assert_eq!(json["schema"], "bitnet-harness.inspection/1");
        assert_eq!(json["model"]["head_dim"], 64);
        assert_eq!(json["tokenizer"]["pre"], "llama-bpe");
        assert!(json.get("tensors").is_none());
        let text = found.text();
        for part in ["1 layers, width 128", "7 × i2_s", "llama-bpe", "bos 256", "gate 3b"] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
    }

    #[test]
    fn a_large_float_output_matrix_is_advised_against() {
        let of = |name: &str, ty, rows: u64| {
            let mut builder = tiny_model(Architecture::Llama);
            let bytes = rows * 1024 * if ty == GgmlType::F16 { 2 } else { 4 };
            builder.tensor(name, &[1024, rows], ty, vec![0; bytes as usize]);
            inspected(&builder, &InspectOptions::default()).advice
        };
        // 64 MiB, and a row less; the llama fixture has no output matrix of its own.
        assert!(of("output.weight", GgmlType::F16, 32 << 10)[0].contains("--output q6_k"));
        assert!(of("output.weight", GgmlType::F16, (32 << 10) - 1).is_empty());
        assert!(of("other.weight", GgmlType::F32, 32 << 10).is_empty());
    }

    #[test]
    fn data_hashes_and_details_on_request() {
        let options = InspectOptions { hash_data: true, details: true, ..InspectOptions::default() };
        let found = inspected(&tiny_model(Architecture::BitNetB158), &options);
        // As printed by scripts/model_hashes.py for this file.
        let weights = "sha256:57c40eed208adee67b2d5d084c87579a1514fd76741723cca1d522cd7a0a5316";
        assert_eq!(found.lock.unwrap().model_weights_hash.as_deref(), Some(weights));
        let whole = "sha256:d863fc4f18d80218be1eeea43b81e8e2c544a04f59fe501d960a081766ab6954";
        assert_eq!(found.file_hash.as_deref(), Some(whole));
        assert_eq!(found.tensors.unwrap().len(), 13);
        let keys = found.keys.unwrap();
        let tokens = keys.iter().find(|k| k.key == "tokenizer.ggml.tokens").unwrap();
        assert_eq!((tokens.ty.as_str(), tokens.value.as_str()), ("array of string", "260 elements"));
    }

    #[test]
    fn an_unsupported_model_is_described_all_the_same() {
        let mut builder = tiny_model(Architecture::Llama);
        builder.set("general.architecture", "qwen2\u{1b}[2J").set("general.name", "\u{1b}]0;x");
        let found = inspected(&builder, &InspectOptions::default());
        assert!(!found.supported);
        assert!(found.refusal.as_ref().unwrap().contains("qwen2"));
        assert!(found.model.is_none() && found.memory.is_none());
        assert!(found.gates.iter().all(|gate| !gate.applies));
        assert_eq!(found.file.n_tensors, 11);
        // Nothing from the file reaches the terminal raw.
        assert!(!found.text().contains('\u{1b}'));
        assert!(found.text().contains("REFUSED"));
    }

    #[test]
    fn missing_pre_tokenizer_is_a_field_and_a_warning() {
        let mut builder = tiny_model(Architecture::BitNetB158);
        builder.remove("tokenizer.ggml.pre").set("general.name", "\u{1b}]0;x");
        let found = inspected(&builder, &InspectOptions::default());
        assert!(!found.text().contains('\u{1b}'));
        assert_eq!(found.tokenizer.as_ref().unwrap().pre, None);
        assert!(found.warnings.iter().any(|w| w.code == "pre-tokenizer-missing"));
        assert!(found.text().contains("MISSING"));
    }
}
