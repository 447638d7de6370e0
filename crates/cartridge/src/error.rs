//! What can go wrong with a cartridge.

use super::{ContainerError, RopeType};
use kv::{BlobError, GeometryError, KvTensor, KvType, NonFinite};
use serde::Serialize;
use std::path::PathBuf;
use std::{fmt, io};

use files::atomic_file::AtomicFileError;

/// Why a cartridge is refused or cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CartridgeError {
    /// The system's error on a file.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// More metadata than a reader accepts.
    #[error("the header would have {len} bytes, at most {limit} are read again; shorten title and source")]
    MetadataTooLong {
        /// Bytes of the header.
        len: usize,
        /// Most bytes.
        limit: u64,
    },
    /// The target of a write exists.
    #[error("{} exists; give --force to replace it", .0.display())]
    Exists(PathBuf),
    /// The target of a write cannot be one.
    #[error(transparent)]
    Target(AtomicFileError),
    /// The file is no valid safetensors container.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// A safetensors file, but no cartridge.
    #[error("not a cartridge: {0}")]
    NotACartridge(String),
    /// A version this program no longer reads.
    #[error("cartridge format {found} is too old; this program reads {supported}: write the cartridge again")]
    TooOld {
        /// Format of the file.
        found: String,
        /// Format that is read.
        supported: &'static str,
    },
    /// A version this program does not read yet.
    #[error("cartridge format {found} is too new; this program reads {supported}: update it")]
    TooNew {
        /// Format of the file.
        found: String,
        /// Format that is read.
        supported: &'static str,
    },
    /// A metadata field that is required and absent.
    #[error("metadata field `{0}` is missing")]
    MissingField(&'static str),
    /// A metadata field with a value that is not allowed.
    #[error("metadata field `{field}` is {found:?}; it must be {expected}")]
    Field {
        /// Field.
        field: &'static str,
        /// Its value.
        found: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// A tensor that is required and absent.
    #[error("tensor {0:?} is missing")]
    MissingTensor(String),
    /// A tensor that the format does not know.
    #[error("tensor {0:?} is not part of the format")]
    UnexpectedTensor(String),
    /// A tensor of the wrong dtype or shape.
    #[error("tensor {tensor:?} is {found}; it must be {expected}")]
    Shape {
        /// Tensor.
        tensor: String,
        /// Its dtype and shape.
        found: String,
        /// What it must be.
        expected: String,
    },
    /// Positions that are not first_pos, first_pos + 1, …
    #[error(
        "positions[{index}] is {found} and must be {expected} (first_pos + {index}): keys are rotated for their positions, so a cartridge cannot be relabelled"
    )]
    Position {
        /// Index of the token.
        index: usize,
        /// Position in the file.
        found: i32,
        /// Position that metadata asks for.
        expected: i32,
    },
    /// A token id that no vocabulary has.
    #[error("tokens[{index}] is {found}; ids are 0 or more, or -1 for a cell without a token")]
    Token {
        /// Index of the token.
        index: usize,
        /// Its id.
        found: i32,
    },
    /// Tokens of a number other than the cells of the state.
    #[error("{tokens} tokens were given for a state of {cells} cells")]
    TokenCount {
        /// Tokens given.
        tokens: usize,
        /// Cells of the state.
        cells: u32,
    },
    /// A state with holes between its positions.
    #[error("the state's positions have a gap after {after}; a cartridge is a contiguous prefix")]
    NotContiguous {
        /// Last position before the gap.
        after: i32,
    },
    /// A piece of the native blob that contradicts the shapes.
    #[error("tensor {tensor:?} differs at byte {at} from what metadata and shapes say")]
    Glue {
        /// Tensor.
        tensor: String,
        /// First byte that differs.
        at: usize,
    },
    /// A hash that does not match.
    #[error(
        "{field} does not match: the file says {stated}, its content hashes to {computed}; it was altered or damaged"
    )]
    HashMismatch {
        /// `tokens_hash` or `payload_hash`.
        field: &'static str,
        /// Hash in the file.
        stated: String,
        /// Hash of the content.
        computed: String,
    },
    /// A hash by an algorithm this program does not have.
    #[error("{field} is {stated}; this program knows sha256 and blake3 (64 hex digits)")]
    HashAlgorithm {
        /// Field.
        field: &'static str,
        /// Hash in the file.
        stated: String,
    },
    /// No hash to check.
    #[error("the file has no payload_hash, so its keys and values cannot be checked against one")]
    NoPayloadHash,
    /// An infinite or not-a-number value.
    #[error(transparent)]
    NonFinite(#[from] NonFinite),
    /// Another model.
    #[error("the cartridge is locked to another model:{}", join(.0))]
    Lock(Vec<LockMismatch>),
    /// A geometry no context can have.
    #[error("the cartridge's shapes are impossible: {0}")]
    Geometry(#[from] GeometryError),
    /// A state that does not fit the context.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// A native file for another context setting.
    #[error(
        "a native cartridge mounts only where its {setting} does: it has {found}, the context {expected}; create the context alike, or convert the cartridge to head-major"
    )]
    NativeSetting {
        /// The setting.
        setting: &'static str,
        /// Value in the file.
        found: String,
        /// Value of the context.
        expected: String,
    },
    /// Values that cannot be converted.
    #[error(transparent)]
    Conversion(#[from] ConversionError),
    /// The model file could not be hashed.
    #[error("model: {0}")]
    Model(#[from] gguf::GgufError),
    /// Parts for an import that do not fit together.
    #[error("import: {0}")]
    Import(String),
    /// Layers that two sources do not share.
    #[error("layer {layer}: {tensor} of {found} do not compare with {expected} (heads × positions × head size)")]
    Incomparable {
        /// Layer.
        layer: usize,
        /// Keys or values.
        tensor: KvTensor,
        /// Shape of the one.
        found: String,
        /// Shape of the other.
        expected: String,
    },
}

/// Where a value stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Layer.
    pub layer: usize,
    /// Keys or values.
    pub tensor: KvTensor,
    /// KV head.
    pub head: usize,
    /// Element within the head.
    pub channel: usize,
    /// Position.
    pub position: i32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { layer, tensor, head, channel, position } = self;
        write!(f, "layer {layer}, {tensor} of head {head}, position {position}, channel {channel}")
    }
}

/// Why values cannot be converted.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConversionError {
    /// A value that would change.
    #[error(
        "{place}: {value:e} ({from}) has no exact {to} form; allow rounding explicitly, or use a context with {from} keys and values"
    )]
    Inexact {
        /// Where.
        place: Place,
        /// The value.
        value: f32,
        /// Its type.
        from: KvType,
        /// Type asked for.
        to: KvType,
    },
    /// A finite value past the range of the target.
    #[error("{place}: {value:e} ({from}) is past the range of {to}")]
    OutOfRange {
        /// Where.
        place: Place,
        /// The value.
        value: f32,
        /// Its type.
        from: KvType,
        /// Type asked for.
        to: KvType,
    },
    /// An infinite or not-a-number value.
    #[error(transparent)]
    NonFinite(NonFinite),
    /// From or to blocks of codes.
    #[error(
        "{tensor} of type {from} cannot become {to} exactly: quantized types are only ever stored and mounted as they are"
    )]
    Quantized {
        /// Keys or values.
        tensor: KvTensor,
        /// Type of the file.
        from: KvType,
        /// Type asked for.
        to: KvType,
    },
    /// RoPE types that are not a permutation of one another.
    #[error("rope_type {from} cannot become {to}")]
    RopeType {
        /// Type of the file.
        from: RopeType,
        /// Type asked for.
        to: RopeType,
    },
    /// A rotated part that is not an even number of elements of the head.
    #[error("rope_dim is {rope_dim}; it must be even and at most the head size of {head_dim}")]
    RopeDim {
        /// Rotated elements.
        rope_dim: u32,
        /// Elements of a key head.
        head_dim: u32,
    },
}

/// A field in which a cartridge and a model differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LockMismatch {
    /// Field, spelled as in the metadata.
    pub field: &'static str,
    /// The file's value.
    pub file: String,
    /// The model's value.
    pub ours: String,
}

impl fmt::Display for LockMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, file_more) = short(&self.file, &self.ours);
        let (ours, ours_more) = short(&self.ours, &self.file);
        write!(f, "{} is {file}{file_more} in the file, {ours}{ours_more} here", self.field)
    }
}

/// Unwraps what a [`BlobWriter`] into memory can report.
pub(super) fn blob_error(e: std::io::Error) -> CartridgeError {
    let path = "state blob in memory";
    match e.downcast::<BlobError>() {
        Ok(e) => e.into(),
        Err(source) => CartridgeError::Io { path: path.into(), source },
    }
}

impl From<AtomicFileError> for CartridgeError {
    fn from(e: AtomicFileError) -> Self {
        match e {
            AtomicFileError::Exists { path } => Self::Exists(path),
            AtomicFileError::Io { path, source } => Self::Io { path, source },
            other => Self::Target(other),
        }
    }
}

impl CartridgeError {
    pub(super) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> CartridgeError {
        let path = path.into();
        move |source| CartridgeError::Io { path, source }
    }
}

/// One mismatch a line: several hashes in one line are not read by anybody.
fn join(mismatches: &[LockMismatch]) -> String {
    mismatches.iter().map(|m| format!("\n  {m}")).collect()
}

/// The beginning of a hash, as long as it tells the two apart; other values whole. `cartridge inspect` and `model
/// inspect --hash` show hashes whole.
fn short<'a>(value: &'a str, other: &str) -> (&'a str, &'static str) {
    const KEPT: usize = "sha256:".len() + 12;
    let is_hash = |v: &str| v.starts_with("sha256:") || v.starts_with("blake3:");
    match (value.get(..KEPT), other.get(..KEPT)) {
        (Some(start), Some(of_other)) if is_hash(value) && is_hash(other) && start != of_other => (start, "…"),
        _ => (value, ""),
    }
}
