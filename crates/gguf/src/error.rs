//! Why a file is refused, and what is odd about one that is not.

use std::fmt;
use std::path::PathBuf;

use super::{GgmlType, ValueType};

/// Why a GGUF file was refused.
///
/// Texts from the file are shown shortened and with control characters escaped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The operating system refused.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// File.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The bytes behind a parsed header could not be read.
    #[error("cannot read {len} bytes at offset {offset}: {source}")]
    Read {
        /// Offset in the file.
        offset: u64,
        /// Bytes wanted.
        len: u64,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Not a regular file.
    #[error("{} is {kind}, not a regular file; give the path of a .gguf file", path.display())]
    NotRegularFile {
        /// Path.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// The file does not start with the four bytes `GGUF`.
    #[error("not a GGUF file: {found}")]
    Magic {
        /// What the first bytes look like, and what to do.
        found: String,
    },
    /// GGUF version that neither the engine nor this reader knows.
    #[error("GGUF version {version} is {}; versions 2 and 3 are read: {}",
        if *version < 2 { "too old" } else { "too new" },
        if *version < 2 { "convert the original checkpoint again with a current converter" }
        else { "write the file with the converter that belongs to the pinned engine" })]
    Version {
        /// Version in the file.
        version: u32,
    },
    /// Written for big-endian machines.
    #[error("the file is big-endian GGUF (version {version}); convert it with a little-endian byte order")]
    BigEndian {
        /// Version after swapping the bytes.
        version: u32,
    },
    /// The file ends inside something.
    #[error(
        "file is truncated: {what} needs {needed} bytes at offset {offset}, the file has {available} left; download or copy it again"
    )]
    Truncated {
        /// What was being read.
        what: String,
        /// Where it starts.
        offset: u64,
        /// Bytes it needs.
        needed: u64,
        /// Bytes that are left.
        available: u64,
    },
    /// A count or length over its limit.
    #[error("{what} is {value}, the limit is {limit}")]
    TooLarge {
        /// What is counted.
        what: String,
        /// Value in the file.
        value: u64,
        /// Limit (see [`Limits`](super::Limits)).
        limit: u64,
    },
    /// A key is empty, not UTF-8, or contains a NUL (the engine's lookup would stop there).
    #[error("key {index} ({shown}) is {problem}")]
    Key {
        /// Number of the key, from 0.
        index: u64,
        /// The key.
        shown: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// A key occurs twice; the engine would read the first and ignore the other.
    #[error("key {key} occurs twice (entries {first} and {second})")]
    DuplicateKey {
        /// Key.
        key: String,
        /// Number of the first.
        first: u64,
        /// Number of the second.
        second: u64,
    },
    /// Unknown value type number (the engine aborts).
    #[error("key {key}: value type {number} is unknown; types 0 to 12 are defined")]
    ValueType {
        /// Key.
        key: String,
        /// Number in the file.
        number: u32,
    },
    /// An array of arrays (the engine aborts).
    #[error("key {key}: arrays of arrays are not supported by the engine")]
    NestedArray {
        /// Key.
        key: String,
    },
    /// A bool that is neither 0 nor 1 (undefined behaviour in the engine).
    #[error("key {key}: a bool has the value {value}, only 0 and 1 are allowed")]
    Bool {
        /// Key.
        key: String,
        /// Byte in the file.
        value: u8,
    },
    /// `general.alignment` cannot be used.
    #[error("general.alignment is {value}: {problem}")]
    Alignment {
        /// Value in the file.
        value: u64,
        /// What is wrong.
        problem: &'static str,
    },
    /// A tensor's name cannot be used.
    #[error("tensor {index} ({shown}): the name {problem}")]
    TensorName {
        /// Number of the tensor, from 0.
        index: u64,
        /// The name.
        shown: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// Two tensors have the same name.
    #[error("tensor {name} occurs twice")]
    DuplicateTensor {
        /// Name.
        name: String,
    },
    /// Number of dimensions, or one dimension, or their product is out of range.
    #[error("tensor {tensor}: {problem}")]
    Dimensions {
        /// Name.
        tensor: String,
        /// Which dimension, its value and the limit.
        problem: String,
    },
    /// A tensor type that does not exist in the pinned engine or that this build cannot compute.
    #[error("tensor {tensor}: type {number} ({name}) is not supported: {reason}")]
    TensorType {
        /// Tensor.
        tensor: String,
        /// Number in the file.
        number: u32,
        /// The engine's name, or what other programs mean by the number.
        name: &'static str,
        /// Why, and what to do.
        reason: String,
    },
    /// A row is not a whole number of blocks; the engine would drop the tail silently.
    #[error("tensor {tensor}: rows of {row} elements are not a multiple of {block}, the block of {ty}")]
    RowLength {
        /// Tensor.
        tensor: String,
        /// Type.
        ty: GgmlType,
        /// Elements in a row.
        row: u64,
        /// Elements in a block.
        block: u64,
    },
    /// The number of rows does not fit the interleaving of the type; the engine would compute
    /// wrong results.
    #[error("tensor {tensor}: {rows} rows are not a multiple of {group}, which {ty} needs")]
    RowCount {
        /// Tensor.
        tensor: String,
        /// Type.
        ty: GgmlType,
        /// Rows.
        rows: u64,
        /// Rows that belong together.
        group: u64,
    },
    /// A tensor's data does not start at a multiple of the alignment.
    #[error("tensor {tensor}: data at file offset {offset} is not aligned to {alignment} bytes")]
    Misaligned {
        /// Tensor.
        tensor: String,
        /// Absolute offset in the file.
        offset: u64,
        /// Alignment that is needed.
        alignment: u64,
    },
    /// A tensor's offset plus its size leaves 64 bits.
    #[error("tensor {tensor}: data offset {offset} is out of range")]
    OffsetRange {
        /// Tensor.
        tensor: String,
        /// Offset as in the file (relative to the data section).
        offset: u64,
    },
    /// Two tensors share bytes.
    #[error("tensors {first} and {second} overlap at file offset {offset}")]
    Overlap {
        /// The one that starts first.
        first: String,
        /// The one that starts inside it.
        second: String,
        /// Where the second starts.
        offset: u64,
    },
    /// The space an I2_S tensor takes is not that of I2_S: the number 36 means another type
    /// in other programs.
    #[error(
        "tensor {tensor}: {space} bytes are set aside, i2_s needs {needed}; type 36 is iq4_nl_4_4 in upstream llama.cpp: the file was not written for this engine, convert it again"
    )]
    I2sSpace {
        /// Tensor.
        tensor: String,
        /// Bytes up to the next tensor or the end of the file.
        space: u64,
        /// Bytes of the tensor, padded to the alignment.
        needed: u64,
    },
    /// One part of a model that is split over files. The engine would open the others by
    /// itself, unchecked.
    #[error("the model is split over {count} files; merge them into one (llama-gguf-split --merge)")]
    Split {
        /// `split.count`.
        count: u16,
    },
    /// An architecture this build does not serve.
    #[error("architecture {name} is not supported: {reason}; supported are bitnet, bitnet-25, bitnet-b1.58 and llama")]
    Architecture {
        /// `general.architecture`.
        name: String,
        /// Why.
        reason: &'static str,
    },
    /// A key that the engine needs is absent.
    #[error("key {key} is missing")]
    MissingKey {
        /// Key.
        key: String,
    },
    /// A key has another type than the engine reads (it throws, or aborts for some keys).
    #[error("key {key} has type {found}, {expected} is needed")]
    KeyType {
        /// Key.
        key: String,
        /// Type in the file.
        found: String,
        /// Type needed.
        expected: &'static str,
    },
    /// A key's value is out of range or contradicts another value.
    #[error("key {key} is {value}: {expected}")]
    KeyValue {
        /// Key.
        key: String,
        /// Value in the file.
        value: String,
        /// What would be right.
        expected: String,
    },
    /// A tensor that the architecture needs is absent.
    #[error("tensor {tensor} is missing, architecture {architecture} needs it")]
    MissingTensor {
        /// Name.
        tensor: String,
        /// Architecture.
        architecture: &'static str,
    },
    /// A tensor that the engine would not use: it refuses such a file, or ignores the tensor
    /// and computes something else than the file means.
    #[error("tensor {tensor} does not belong to a model of architecture {architecture}: {reason}")]
    UnexpectedTensor {
        /// Name.
        tensor: String,
        /// Architecture.
        architecture: &'static str,
        /// What the engine would do with it.
        reason: &'static str,
    },
    /// A tensor has other dimensions than the hyperparameters say.
    #[error("tensor {tensor} has dimensions {found}, the hyperparameters make it {expected}")]
    TensorShape {
        /// Name.
        tensor: String,
        /// Dimensions in the file.
        found: String,
        /// Dimensions expected.
        expected: String,
    },
    /// A tensor's type cannot be used where the model uses it (the engine aborts).
    #[error("tensor {tensor} has type {ty}, which cannot be {role}: {allowed}")]
    TensorRole {
        /// Name.
        tensor: String,
        /// Its type.
        ty: GgmlType,
        /// What the tensor is for.
        role: &'static str,
        /// Which types can.
        allowed: &'static str,
    },
    /// Values in a tensor that no computation survives.
    #[error("tensor {tensor}: {problem}")]
    TensorData {
        /// Name.
        tensor: String,
        /// What is wrong, and where.
        problem: String,
    },
    /// Arrays that describe the same tokens have different lengths.
    #[error("key {key} has {found} elements, {expected} are needed, one for each token")]
    ArrayLength {
        /// Key.
        key: &'static str,
        /// Elements in the file.
        found: u64,
        /// Elements needed.
        expected: u64,
    },
    /// A tokenizer that the engine does not have, or that this build does not serve.
    #[error("tokenizer.ggml.model is {name}: {reason}; supported are gpt2 (BPE) and llama (SentencePiece)")]
    TokenizerModel {
        /// Value in the file.
        name: String,
        /// Why.
        reason: &'static str,
    },
    /// A pre-tokenizer name that the engine does not know.
    #[error("tokenizer.ggml.pre is {name}, which the engine does not know; Llama 3 vocabularies need llama-bpe")]
    PreTokenizer {
        /// Value in the file.
        name: String,
    },
    /// Two tokens have the same text (the engine aborts).
    #[error("tokens {first} and {second} have the same text {text}")]
    DuplicateToken {
        /// Text.
        text: String,
        /// Lower id.
        first: u32,
        /// Higher id.
        second: u32,
    },
    /// A token the engine cannot load.
    #[error("token {id} ({text}): {problem}")]
    Token {
        /// Id.
        id: u32,
        /// Its text.
        text: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// A merge the engine cannot load, or that can never apply.
    #[error("merge {index} ({text}) {problem}")]
    Merge {
        /// Rank, from 0.
        index: u64,
        /// Its text.
        text: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// A special token outside the vocabulary.
    #[error("special token {key} is {id}, the vocabulary has {n_vocab} tokens{note}")]
    SpecialToken {
        /// Key.
        key: &'static str,
        /// Id in the file, or the engine's default.
        id: u32,
        /// Tokens in the vocabulary.
        n_vocab: u32,
        /// Whether the id is the engine's default.
        note: &'static str,
    },
    /// A token that the engine looks up by its text for this model is not in the vocabulary.
    #[error("the vocabulary has no token {text}, which the engine looks up for a model of this name and pre-tokenizer")]
    MissingToken {
        /// Text of the token.
        text: &'static str,
    },
    /// A warning that [`Limits::strict`](super::Limits::strict) turned into an error.
    #[error("refused in strict mode: {0}")]
    Strict(GgufWarning),
    /// The caller's progress callback asked to stop.
    #[error("cancelled")]
    Cancelled,
}

/// Something odd about a file that is accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum GgufWarning {
    /// A BPE vocabulary without `tokenizer.ggml.pre`: the engine splits text by its default
    /// rule, and token ids drift from the reference tokenizer.
    PreTokenizerMissing,
    /// A special token id outside the vocabulary, which the engine ignores.
    SpecialTokenIgnored {
        /// Key.
        key: &'static str,
        /// Id in the file.
        id: u32,
    },
    /// No id for the begin or end token: the engine takes a default that rarely fits.
    SpecialTokenDefault {
        /// Key.
        key: &'static str,
        /// The engine's default.
        id: u32,
    },
    /// Bytes without a token: BPE drops them from the text, SentencePiece fails on them.
    BytesNotCovered {
        /// How many of the 256.
        count: u32,
        /// The first of them.
        first: u8,
    },
    /// A SentencePiece vocabulary without scores: pieces are joined in no useful order.
    ScoresMissing,
    /// Token texts with a NUL byte: the engine cuts them there.
    TokenWithNul {
        /// How many.
        count: u32,
        /// The first of them.
        first: u32,
    },
    /// Empty token texts, which the engine replaces by `[EMPTY_id]`.
    EmptyToken {
        /// How many.
        count: u32,
        /// The first of them.
        first: u32,
    },
    /// Tokens of the type "byte" in a BPE vocabulary: the engine prints nothing for them.
    ByteTokenInBpe {
        /// How many.
        count: u32,
        /// The first of them.
        first: u32,
    },
    /// No chat template in the file.
    ChatTemplateMissing,
    /// `rope.dimension_count` is smaller than the head: part of each head is not rotated.
    PartialRotation {
        /// Dimensions that are rotated.
        rotated: u32,
        /// Size of a head.
        head_dim: u32,
    },
    /// Bytes between tensors, or between the last one and the end, that nothing refers to.
    UnusedBytes {
        /// How many, alignment padding not counted.
        bytes: u64,
    },
    /// No tensor is ternary: the kernel gates have nothing to measure on this model.
    NoTernaryTensors,
}

impl GgufWarning {
    /// Whether strict mode refuses a file because of it: output would differ from the
    /// reference without any other sign.
    #[must_use]
    pub fn is_strict(&self) -> bool {
        matches!(
            self,
            Self::PreTokenizerMissing
                | Self::SpecialTokenIgnored { .. }
                | Self::SpecialTokenDefault { .. }
                | Self::BytesNotCovered { .. }
                | Self::ScoresMissing
                | Self::TokenWithNul { .. }
                | Self::ByteTokenInBpe { .. }
        )
    }

    /// Short name for machine-readable output.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::PreTokenizerMissing => "pre-tokenizer-missing",
            Self::SpecialTokenIgnored { .. } => "special-token-ignored",
            Self::SpecialTokenDefault { .. } => "special-token-default",
            Self::BytesNotCovered { .. } => "bytes-not-covered",
            Self::ScoresMissing => "scores-missing",
            Self::TokenWithNul { .. } => "token-with-nul",
            Self::EmptyToken { .. } => "empty-token",
            Self::ByteTokenInBpe { .. } => "byte-token-in-bpe",
            Self::ChatTemplateMissing => "chat-template-missing",
            Self::PartialRotation { .. } => "partial-rotation",
            Self::UnusedBytes { .. } => "unused-bytes",
            Self::NoTernaryTensors => "no-ternary-tensors",
        }
    }
}

impl fmt::Display for GgufWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PreTokenizerMissing => f.write_str(
                "tokenizer.ggml.pre is missing: the engine splits text by a default rule and \
                 token ids may differ from the reference tokenizer; set it with `harness model quantize --pre` (Llama 3 vocabularies: \
                 llama-bpe)",
            ),
            Self::SpecialTokenIgnored { key, id } => {
                write!(f, "{key} is {id}, outside the vocabulary: the engine ignores it")
            }
            Self::SpecialTokenDefault { key, id } => {
                write!(f, "{key} is missing: the engine takes token {id}")
            }
            Self::BytesNotCovered { count, first } => write!(
                f,
                "{count} of 256 bytes have no token (first: 0x{first:02x}): text that contains \
                 them cannot be tokenized faithfully"
            ),
            Self::ScoresMissing => {
                f.write_str("tokenizer.ggml.scores is missing: a SentencePiece tokenizer needs them")
            }
            Self::TokenWithNul { count, first } => write!(
                f,
                "{count} token texts contain a NUL byte (first: token {first}): the engine cuts \
                 them there"
            ),
            Self::EmptyToken { count, first } => write!(
                f,
                "{count} token texts are empty (first: token {first}): the engine names them \
                 [EMPTY_id]"
            ),
            Self::ByteTokenInBpe { count, first } => write!(
                f,
                "{count} tokens of a BPE vocabulary have the type byte (first: token {first}): \
                 the engine prints nothing for them"
            ),
            Self::ChatTemplateMissing => {
                f.write_str("tokenizer.chat_template is missing: chat needs a template given by hand")
            }
            Self::PartialRotation { rotated, head_dim } => write!(
                f,
                "rope.dimension_count is {rotated} of a head of {head_dim}: part of each head is \
                 not rotated"
            ),
            Self::UnusedBytes { bytes } => {
                write!(f, "{bytes} bytes of the file belong to no tensor")
            }
            Self::NoTernaryTensors => f.write_str(
                "no tensor is ternary (i2_s, tq1_0, tq2_0): the kernel gates have nothing to \
                 measure on this model",
            ),
        }
    }
}

/// Text from a file for a message: at most 64 characters, control characters escaped.
pub(super) fn shown(bytes: &[u8]) -> String {
    let prefix = &bytes[..bytes.len().min(256)];
    let text = String::from_utf8_lossy(prefix);
    let mut out = String::from("\"");
    for c in text.chars().take(64) {
        out.extend(c.escape_debug());
    }
    if bytes.len() > 256 || text.chars().nth(64).is_some() {
        out.push('…');
    }
    out.push('"');
    out
}

/// What the first bytes of something that is no GGUF look like.
pub(super) fn describe_magic(head: &[u8]) -> String {
    let starts = |magic: &[u8]| head.starts_with(magic);
    if head.is_empty() {
        "the file is empty".into()
    } else if head.len() >= 16
        && head[8] == b'{'
        && u64::from_le_bytes(head[..8].try_into().unwrap_or_default()) < (1 << 32)
    {
        "it looks like a safetensors file; convert the checkpoint to GGUF first".into()
    } else if starts(b"lmgg") || starts(b"ggml") {
        "it is a ggml file of 2023 (before GGUF); convert the original checkpoint again".into()
    } else if starts(b"fmgg") || starts(b"ggmf") {
        "it is a ggmf file of 2023 (before GGUF); convert the original checkpoint again".into()
    } else if starts(b"tjgg") || starts(b"ggjt") {
        "it is a ggjt file of 2023 (before GGUF); convert the original checkpoint again".into()
    } else if starts(b"algg") || starts(b"ggla") {
        "it is a ggla file (an old LoRA adapter), no model".into()
    } else if starts(b"FUGG") {
        "the magic is byte-swapped; GGUF's magic is GGUF in every byte order".into()
    } else if starts(b"PK\x03\x04") {
        "it is a zip archive (a PyTorch checkpoint?); convert the checkpoint to GGUF first".into()
    } else if starts(b"\x80\x02") || starts(b"\x80\x03") || starts(b"\x80\x04") || starts(b"\x80\x05") {
        "it is a Python pickle, which can run code when it is loaded; use a GGUF conversion".into()
    } else if starts(b"\x1f\x8b") || starts(b"\x28\xb5\x2f\xfd") || starts(b"BZh") || starts(b"\xfd7zXZ") {
        "it is a compressed file; unpack it first".into()
    } else if starts(b"version https://git-lfs") {
        "it is a Git LFS pointer; fetch the file itself (git lfs pull)".into()
    } else if starts(b"<") {
        "it looks like an HTML or XML page, perhaps a failed download".into()
    } else if starts(b"{") {
        "it looks like JSON".into()
    } else {
        format!("the first bytes are {}, \"GGUF\" is needed", shown(&head[..head.len().min(4)]))
    }
}

impl GgufError {
    pub(super) fn key_type(key: &str, found: &super::Value, expected: &'static str) -> Self {
        Self::KeyType { key: key.to_owned(), found: found.type_name(), expected }
    }

    pub(super) fn key_value(key: &str, value: impl fmt::Display, expected: impl Into<String>) -> Self {
        Self::KeyValue { key: key.to_owned(), value: value.to_string(), expected: expected.into() }
    }

    /// The value type that a scalar key needs, as a message has it.
    pub(super) fn expected_name(ty: ValueType) -> &'static str {
        match ty {
            ValueType::U8 => "u8",
            ValueType::I8 => "i8",
            ValueType::U16 => "u16",
            ValueType::I16 => "i16",
            ValueType::U32 => "u32",
            ValueType::I32 => "i32",
            ValueType::F32 => "f32",
            ValueType::Bool => "bool",
            ValueType::String => "string",
            ValueType::Array => "array",
            ValueType::U64 => "u64",
            ValueType::I64 => "i64",
            ValueType::F64 => "f64",
        }
    }
}
