//! The one error type of the wrapper.

use std::path::PathBuf;

/// Everything that can go wrong, one variant per thing that a caller can act on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The CPU lacks what the native code was compiled for.
    #[error(
        "this CPU lacks {missing}, which the native kernels were compiled for ({march}); rebuild with BITNET_MARCH=x86-64-v3 on a host with AVX2"
    )]
    UnsupportedCpu {
        /// Names as `is_x86_feature_detected!` knows them, comma separated.
        missing: String,
        /// `-march` of the build.
        march: String,
    },
    /// A known ternary row gave the wrong result at start-up.
    #[error("the I2_S kernel computes {found} for a row whose result is {expected}; this build cannot be trusted")]
    KernelSelfTest {
        /// By hand.
        expected: i64,
        /// What the kernel said.
        found: i64,
    },
    /// The model file was refused before the engine saw it.
    #[error(transparent)]
    Gguf(#[from] gguf::GgufError),
    /// The engine refused the model file.
    #[error("the engine cannot load {path}: {reason}")]
    ModelLoad {
        /// The file.
        path: PathBuf,
        /// The engine's last words in its log.
        reason: String,
    },
    /// The progress callback asked to stop.
    #[error("loading {path} was cancelled")]
    LoadCancelled {
        /// The file.
        path: PathBuf,
    },
    /// A context parameter outside its range.
    #[error("context parameter {field} = {value}: {limit}")]
    ContextParam {
        /// Which.
        field: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        limit: String,
    },
    /// Key or value type that this combination does not allow.
    #[error("KV cache type {field} = {found}: {limit}")]
    KvType {
        /// `type_k` or `type_v`.
        field: &'static str,
        /// The type's ggml name.
        found: &'static str,
        /// What is allowed and how to get there.
        limit: String,
    },
    /// The context would not fit into memory.
    #[error(
        "a context of {n_ctx} tokens needs about {needed} bytes and {available} {}, use a smaller KV type, or allow overcommit",
        files::shortage::NO_CONTEXT
    )]
    ContextMemory {
        /// Requested size in tokens.
        n_ctx: u32,
        /// Estimate in bytes.
        needed: u64,
        /// Available memory in bytes.
        available: u64,
    },
    /// The engine returned no context.
    #[error("the engine made no context: {reason}")]
    ContextCreate {
        /// Its last words in the log.
        reason: String,
    },
    /// A token id outside the vocabulary.
    #[error("token id {id} is outside the vocabulary (0 ≤ id < {n_vocab})")]
    TokenOutOfRange {
        /// The id.
        id: i64,
        /// Size of the vocabulary.
        n_vocab: u32,
    },
    /// A position that cannot be.
    #[error("position {pos} is not in 0 ≤ pos < {}", i32::MAX)]
    InvalidPosition {
        /// The position.
        pos: i64,
    },
    /// A position at or before the last one of its sequence.
    #[error("sequence {seq} already reaches position {last}; a new token at {pos} must come after it")]
    PositionTaken {
        /// The sequence.
        seq: i32,
        /// The refused position.
        pos: i32,
        /// The last position of the sequence.
        last: i32,
    },
    /// A position past what the model was trained for.
    #[error("position {pos} is past the model's context length ({n_ctx_train})")]
    PositionPastTraining {
        /// The position.
        pos: i32,
        /// `context_length` of the model.
        n_ctx_train: u32,
    },
    /// A sequence id outside the context's range.
    #[error("sequence id {id} is out of range (0 ≤ id < {})", n_seq_max.map_or("n_seq_max".to_owned(), |n| n.to_string()))]
    SeqIdOutOfRange {
        /// The id.
        id: i32,
        /// The context's limit, if the check knew it.
        n_seq_max: Option<u32>,
    },
    /// A batch without tokens.
    #[error("empty input: a batch needs at least one token")]
    EmptyBatch,
    /// The cache has no room.
    #[error("context full: {needed} cells are needed, {free} of {n_ctx} are free")]
    ContextFull {
        /// Cells that the call needs.
        needed: usize,
        /// Free cells.
        free: usize,
        /// Cells in all.
        n_ctx: u32,
    },
    /// The cache has room, but not in one run.
    #[error(
        "context fragmented: {needed} contiguous cells are needed, {free} are free but the longest run has {longest}; remove a sequence or use a fresh context"
    )]
    ContextFragmented {
        /// Cells that the call needs.
        needed: usize,
        /// Free cells.
        free: usize,
        /// Longest free run.
        longest: usize,
    },
    /// A cancel handle was used; what the call had added was removed again.
    #[error("cancelled; the sequences are as they were before the call")]
    Cancelled,
    /// An earlier failure left the context in a state nobody can vouch for.
    #[error("context poisoned by an earlier failure ({reason}); call clear() to go on with an empty cache")]
    Poisoned {
        /// The earlier failure.
        reason: String,
    },
    /// No such row of logits.
    #[error("no logits {what}; the last decode kept {available}")]
    NoLogits {
        /// What was asked for.
        what: String,
        /// What there is.
        available: String,
    },
    /// A state blob was refused; the destination is as it was.
    #[error(transparent)]
    StateBlob(#[from] kv::BlobError),
    /// A state holds a value that is not finite; the destination is as it was.
    #[error(transparent)]
    NonFiniteState(#[from] kv::NonFinite),
    /// The engine refused a blob that had passed the checks; the destination sequence is empty now.
    #[error("the engine did not restore sequence {seq} ({reason}); the sequence is empty now")]
    RestoreFailed {
        /// The destination.
        seq: i32,
        /// What the engine said.
        reason: String,
    },
    /// The sequence holds nothing.
    #[error("sequence {seq} is empty")]
    EmptySequence {
        /// The sequence.
        seq: i32,
    },
    /// Text that is too long for one call.
    #[error("text of {len} bytes is too long, at most {max} are accepted at once")]
    TextTooLong {
        /// Its length in bytes.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// A path that the engine cannot take.
    #[error("path {path:?}: {reason}")]
    Path {
        /// The path.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// Arguments of a kernel call that do not fit together.
    #[error("kernel argument {field} = {value}: {limit}")]
    KernelArgument {
        /// Which.
        field: &'static str,
        /// Its value.
        value: i64,
        /// What is allowed.
        limit: String,
    },
    /// The grammar was refused.
    #[error(transparent)]
    Grammar(#[from] grammar::GrammarError),
    /// A sampler parameter outside its range, or a sampler used in the wrong state.
    #[error("sampler: {0}")]
    Sampler(String),
    /// An engine call threw or answered with an unknown status.
    #[error("{function}: {message}")]
    Native {
        /// The C function.
        function: &'static str,
        /// What it said.
        message: String,
    },
    /// The host gives no thread, no stack or no memory; nothing is said about the model.
    #[error("{} {what}: {source}", files::shortage::NOT_GIVEN)]
    HostShortage {
        /// What was needed, and for what.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Input or output failed.
    #[error("{path:?}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}

impl Error {
    /// Whether the host lacks something, rather than the model or an argument being wrong.
    pub fn is_host_shortage(&self) -> bool {
        match self {
            Self::HostShortage { .. } | Self::ContextMemory { .. } => true,
            Self::Io { source, .. } => files::shortage::is_shortage(source),
            // What passed through the engine is text by now. The file's name in it is not the engine's.
            Self::ModelLoad { path, reason } => {
                files::shortage::is_named_in(&reason.replace(&*path.to_string_lossy(), ""))
            }
            Self::ContextCreate { reason } | Self::RestoreFailed { reason, .. } | Self::Poisoned { reason } => {
                files::shortage::is_named_in(reason)
            }
            Self::Native { message, .. } => files::shortage::is_named_in(message),
            other => files::shortage::is_in(other),
        }
    }
}
