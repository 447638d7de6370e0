//! Small GGUF files, sound and broken, for tests and fuzz targets (feature `fixtures`).
//!
//! Models that are meant to be run are written with ggml's own writer. This one exists because
//! ggml's cannot write a file that is wrong.
//!
//! ```
//! use gguf::{Architecture, Gguf, GgufError, Limits, fixture};
//!
//! let sound = fixture::tiny_model(Architecture::BitNetB158).encode();
//! assert!(Gguf::parse(&sound, &Limits::default()).is_ok());
//!
//! let mut broken = fixture::tiny_model(Architecture::BitNetB158);
//! broken.tensor_mut("token_embd.weight").dims[0] = 0;
//! let error = Gguf::parse(&broken.encode(), &Limits::default()).unwrap_err();
//! assert!(matches!(error, GgufError::Dimensions { .. }));
//! ```

use super::value::{Array, Strings, Value};
use super::{Architecture, GgmlType};

/// A key-value pair as it will be written.
#[derive(Debug, Clone)]
pub struct KeyEntry {
    /// Key, any bytes.
    pub key: Vec<u8>,
    /// Value type number and the bytes after it.
    pub value: (u32, Vec<u8>),
}

/// A tensor as it will be written.
#[derive(Debug, Clone)]
pub struct TensorEntry {
    /// Name, any bytes.
    pub name: Vec<u8>,
    /// Dimensions; their number is written as it is.
    pub dims: Vec<u64>,
    /// Type number.
    pub ty: u32,
    /// Offset in the data section; by default behind the tensor before it, aligned.
    pub offset: Option<u64>,
    /// Data, written one tensor after the other whatever the offsets say.
    pub data: Vec<u8>,
}

/// A GGUF file to be written, sound or not. Nothing is checked.
#[derive(Debug, Clone)]
pub struct GgufBuilder {
    /// First four bytes.
    pub magic: [u8; 4],
    /// Version.
    pub version: u32,
    /// Alignment of the data. Write `general.alignment` as well to change it.
    pub alignment: u64,
    /// Number of keys to claim, if not the true one.
    pub n_keys: Option<u64>,
    /// Number of tensors to claim, if not the true one.
    pub n_tensors: Option<u64>,
    /// Keys.
    pub keys: Vec<KeyEntry>,
    /// Tensors.
    pub tensors: Vec<TensorEntry>,
    /// Bytes behind the last tensor.
    pub trailing: Vec<u8>,
}

impl Default for GgufBuilder {
    fn default() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3,
            alignment: 32,
            n_keys: None,
            n_tensors: None,
            keys: Vec::new(),
            tensors: Vec::new(),
            trailing: Vec::new(),
        }
    }
}

fn string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

fn encode_value(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    match value {
        Value::U8(v) => out.push(*v),
        Value::I8(v) => out.extend(v.to_le_bytes()),
        Value::U16(v) => out.extend(v.to_le_bytes()),
        Value::I16(v) => out.extend(v.to_le_bytes()),
        Value::U32(v) => out.extend(v.to_le_bytes()),
        Value::I32(v) => out.extend(v.to_le_bytes()),
        Value::F32(v) => out.extend(v.to_le_bytes()),
        Value::Bool(v) => out.push(u8::from(*v)),
        Value::U64(v) => out.extend(v.to_le_bytes()),
        Value::I64(v) => out.extend(v.to_le_bytes()),
        Value::F64(v) => out.extend(v.to_le_bytes()),
        Value::String(bytes) => string(&mut out, bytes),
        Value::Array(array) => {
            out.extend((array.element_type() as u32).to_le_bytes());
            out.extend((array.len() as u64).to_le_bytes());
            match array {
                Array::U8(v) => out.extend(v),
                Array::I8(v) => out.extend(v.iter().flat_map(|v| v.to_le_bytes())),
                Array::U16(v) => out.extend(v.iter().flat_map(|v| v.to_le_bytes())),
                Array::I16(v) => out.extend(v.iter().flat_map(|v| v.to_le_bytes())),
                Array::U32(v) => out.extend(v.iter().flat_map(|v| v.to_le_bytes())),
                Array::I32(v) => out.extend(v.iter().flat_map(|v| v.to_le_bytes())),
                Array::F32(v) => out.extend(v.iter().flat_map(|v| v.to_le_bytes())),
                Array::Bool(v) => out.extend(v.iter().map(|&v| u8::from(v))),
                Array::U64(v) => out.extend(v.iter().flat_map(|v| v.to_le_bytes())),
                Array::I64(v) => out.extend(v.iter().flat_map(|v| v.to_le_bytes())),
                Array::F64(v) => out.extend(v.iter().flat_map(|v| v.to_le_bytes())),
                Array::String(v) => v.iter().for_each(|s| string(&mut out, s)),
            }
        }
    }
    out
}

impl GgufBuilder {
    /// Sets a key, replacing an earlier value.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) -> &mut Self {
        let value = value.into();
        self.set_raw(key, value.value_type() as u32, encode_value(&value))
    }

    /// Sets a key to a value type number and raw bytes.
    pub fn set_raw(&mut self, key: &str, ty: u32, bytes: Vec<u8>) -> &mut Self {
        let entry = KeyEntry { key: key.into(), value: (ty, bytes) };
        match self.keys.iter_mut().find(|e| e.key == key.as_bytes()) {
            Some(existing) => *existing = entry,
            None => self.keys.push(entry),
        }
        self
    }

    /// Removes a key.
    ///
    /// # Panics
    /// If it is not there: the test would test nothing.
    pub fn remove(&mut self, key: &str) -> &mut Self {
        let before = self.keys.len();
        self.keys.retain(|entry| entry.key != key.as_bytes());
        assert!(self.keys.len() < before, "no key {key}");
        self
    }

    /// Adds a tensor.
    pub fn tensor(&mut self, name: &str, dims: &[u64], ty: GgmlType, data: Vec<u8>) -> &mut Self {
        self.tensors.push(TensorEntry { name: name.into(), dims: dims.to_vec(), ty: ty.number(), offset: None, data });
        self
    }

    /// A tensor, to be changed.
    ///
    /// # Panics
    /// If it is not there.
    pub fn tensor_mut(&mut self, name: &str) -> &mut TensorEntry {
        self.tensors
            .iter_mut()
            .find(|tensor| tensor.name == name.as_bytes())
            .unwrap_or_else(|| panic!("no tensor {name}"))
    }

    /// Removes a tensor.
    ///
    /// # Panics
    /// If it is not there.
    pub fn remove_tensor(&mut self, name: &str) -> &mut Self {
        let before = self.tensors.len();
        self.tensors.retain(|tensor| tensor.name != name.as_bytes());
        assert!(self.tensors.len() < before, "no tensor {name}");
        self
    }

    /// The bytes of the header, up to the data section.
    #[must_use]
    pub fn encode_header(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.n_tensors.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.n_keys.unwrap_or(self.keys.len() as u64).to_le_bytes());
        for entry in &self.keys {
            string(&mut out, &entry.key);
            out.extend(entry.value.0.to_le_bytes());
            out.extend(&entry.value.1);
        }
        let mut next = 0u64;
        for tensor in &self.tensors {
            string(&mut out, &tensor.name);
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            out.extend(tensor.dims.iter().flat_map(|dim| dim.to_le_bytes()));
            out.extend(tensor.ty.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(next).to_le_bytes());
            next = (next + tensor.data.len() as u64).next_multiple_of(self.alignment);
        }
        pad(&mut out, self.alignment);
        out
    }

    /// The bytes of the file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.encode_header();
        let start = out.len();
        for (index, tensor) in self.tensors.iter().enumerate() {
            if index > 0 {
                let len = (out.len() - start).next_multiple_of(self.alignment as usize);
                out.resize(start + len, 0);
            }
            out.extend(&tensor.data);
        }
        out.extend(&self.trailing);
        out
    }
}

fn pad(out: &mut Vec<u8>, alignment: u64) {
    let len = (out.len() as u64).next_multiple_of(alignment) as usize;
    out.resize(len, 0);
}

/// Tokens of [`tiny_model`]: 256 bytes and four special ones.
pub const TINY_VOCAB: u32 = 260;

/// A model of one block: width 128, two heads of 64, one KV head, feed-forward width 128, I2_S
/// matrices with pseudo-random ternary weights, an f16 embedding and a byte-level vocabulary. Sound: [`ModelInfo::check`](super::ModelInfo::check) has no warning but the
/// missing chat template.
#[must_use]
pub fn tiny_model(architecture: Architecture) -> GgufBuilder {
    let mut file = GgufBuilder::default();
    file.set("general.architecture", architecture.name()).set("general.name", "tiny").set("general.file_type", 40u32);
    let key = |name: &str| format!("{}.{name}", architecture.name());
    file.set(&key("vocab_size"), TINY_VOCAB)
        .set(&key("context_length"), 256u32)
        .set(&key("embedding_length"), 128u32)
        .set(&key("block_count"), 1u32)
        .set(&key("feed_forward_length"), 128u32)
        .set(&key("attention.head_count"), 2u32)
        .set(&key("attention.head_count_kv"), 1u32)
        .set(&key("attention.layer_norm_rms_epsilon"), 1e-5f32)
        .set(&key("rope.dimension_count"), 64u32)
        .set(&key("rope.freq_base"), 500_000f32);
    tiny_vocabulary(&mut file);

    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    let embedding = (0..TINY_VOCAB as usize * 128).map(|_| noise.f16()).collect::<Vec<_>>();
    file.tensor("token_embd.weight", &[128, u64::from(TINY_VOCAB)], GgmlType::F16, embedding.concat());
    let ones = |n: usize| 1f32.to_le_bytes().repeat(n);
    file.tensor("output_norm.weight", &[128], GgmlType::F32, ones(128));
    for norm in ["attn_norm", "ffn_norm", "attn_sub_norm", "ffn_sub_norm"] {
        if norm.ends_with("sub_norm") && !architecture.has_sub_norms() {
            continue;
        }
        let name = format!("blk.0.{norm}.weight");
        file.tensor(&name, &[128], GgmlType::F32, ones(128));
    }
    for (part, rows) in [
        ("attn_q", 128u64),
        ("attn_k", 64),
        ("attn_v", 64),
        ("attn_output", 128),
        ("ffn_gate", 128),
        ("ffn_up", 128),
        ("ffn_down", 128),
    ] {
        let mut data: Vec<u8> = (0..rows * 32).map(|_| noise.ternary()).collect();
        data.extend(0.05f32.to_le_bytes());
        data.resize(data.len() + 28, 0);
        let name = format!("blk.0.{part}.weight");
        file.tensor(&name, &[128, rows], GgmlType::I2_S, data);
    }
    file
}

fn tiny_vocabulary(file: &mut GgufBuilder) {
    let bytes = (0..=255u8).map(|byte| super::tokenizer::bpe_char_of(byte).to_string());
    let special = ["<|begin|>", "<|end_of_text|>", "<|eot_id|>", "<|pad|>"].map(String::from);
    let tokens: Strings = bytes.chain(special).collect();
    let mut types = vec![1i32; 256];
    types.extend([3; 4]);
    let merges: Strings = ["h e", "Ġ t"].into_iter().collect();
    file.set("tokenizer.ggml.model", "gpt2")
        .set("tokenizer.ggml.pre", "llama-bpe")
        .set("tokenizer.ggml.tokens", tokens)
        .set("tokenizer.ggml.token_type", types)
        .set("tokenizer.ggml.merges", merges)
        .set("tokenizer.ggml.bos_token_id", 256u32)
        .set("tokenizer.ggml.eos_token_id", 257u32)
        .set("tokenizer.ggml.padding_token_id", 259u32)
        .set("tokenizer.ggml.add_bos_token", true);
}

/// A xorshift generator: the same bytes on every machine.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Four ternary codes 0, 1 or 2.
    fn ternary(&mut self) -> u8 {
        (0..4).fold(0, |byte, _| (byte << 2) | ((self.next() >> 33) as u8 % 3))
    }

    /// An f16 of magnitude 2⁻⁶ to 2⁻⁵.
    fn f16(&mut self) -> [u8; 2] {
        let bits = (self.next() >> 40) as u16;
        (bits & 0x8000 | 9 << 10 | bits & 0x3ff).to_le_bytes()
    }
}
