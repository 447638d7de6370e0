//! Why a command ends without doing what was asked, and what every command does to find that out early.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use bitnet_rs::{Model, ModelParams};
use gguf::GgufError;

use super::progress;
use crate::exit::Exit;
use files::atomic_file::{AtomicFile, AtomicFileError, Overwrite};
use files::shortage;
use models::source::{ModelPath, ModelSource};

/// Why a command ends without doing what was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// Wrong arguments, or a configuration that cannot work.
    #[error("{0}")]
    Usage(String),
    /// Input that was refused.
    #[error("{0}")]
    Refused(String),
    /// It was tried and did not work.
    #[error("{0}")]
    Failed(String),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// Nobody reads the output any more.
    #[error("nobody reads the output any more")]
    ReaderGone,
}

impl CliError {
    pub(super) fn exit(&self) -> Exit {
        match self {
            // What the host lacks says nothing about an input or a model, however it came to be noticed.
            Self::Refused(message) | Self::Failed(message) if shortage::is_named_in(message) => Exit::Usage,
            Self::Usage(_) => Exit::Usage,
            Self::Refused(_) => Exit::Refused,
            Self::Failed(_) => Exit::Fail,
            Self::Interrupted => Exit::Interrupted,
            Self::ReaderGone => Exit::ReaderGone,
        }
    }
}

/// A file that could not be opened or read: a wrong path is a usage error, what is not a file is refused.
pub(crate) fn input_error(what: &str, path: &Path, e: std::io::Error) -> CliError {
    let message = format!("{what} {}: {e}", path.display());
    if is_wrong_path(&e) { CliError::Usage(message) } else { CliError::Refused(message) }
}

/// Whether the path is to blame, rather than what stands there or the disk.
pub(crate) fn is_wrong_path(e: &std::io::Error) -> bool {
    use std::io::ErrorKind as K;
    let kinds = [
        K::NotFound,
        K::PermissionDenied,
        K::NotADirectory,
        K::IsADirectory,
        K::InvalidFilename,
        K::ReadOnlyFilesystem,
    ];
    // Links in a circle have no stable kind.
    kinds.contains(&e.kind()) || e.raw_os_error() == Some(ELOOP)
}

/// Why an output file was not written: a target that cannot be one is a usage error.
pub(crate) fn output_error(e: AtomicFileError) -> CliError {
    match &e {
        AtomicFileError::Io { source, .. } if !is_wrong_path(source) => CliError::Failed(format!("--out: {e}")),
        _ => CliError::Usage(format!("--out: {e}")),
    }
}

/// Asked before the long work; what writes the file asks again.
pub(crate) fn check_target(path: &Path, force: bool) -> Result<(), CliError> {
    AtomicFile::create(path, Overwrite::forced(force)).map(drop).map_err(output_error)
}

/// A result replaces what stands in its place, but never what it was made from, however either is spelt: by links of
/// both kinds, and by a folder of which an input is one file.
pub(crate) fn not_an_input<'p, P: AsRef<Path> + ?Sized + 'p>(
    option: &str,
    out: &Path,
    inputs: impl IntoIterator<Item = &'p P>,
) -> Result<(), CliError> {
    let Ok(there) = identity(out) else { return Ok(()) };
    match inputs.into_iter().find(|input| is_in(there, input.as_ref(), FOLDERS_DEEP)) {
        Some(_) => Err(CliError::Usage(format!("{option} {} is also an input; name another file", out.display()))),
        None => Ok(()),
    }
}

/// How deep an input's folder is searched; a checkpoint has its files in one.
const FOLDERS_DEEP: usize = 3;
/// Most entries of a folder that are looked at.
const MAX_ENTRIES: usize = 10_000;

/// Device and inode.
fn identity(path: &Path) -> std::io::Result<(u64, u64)> {
    std::fs::metadata(path).map(|data| (data.dev(), data.ino()))
}

fn is_in(there: (u64, u64), input: &Path, deep: usize) -> bool {
    if !input.is_dir() {
        return identity(input).is_ok_and(|input| input == there);
    }
    let entries = std::fs::read_dir(input).into_iter().flatten().take(MAX_ENTRIES).filter_map(Result::ok);
    // A GGUF file in the folder of a checkpoint is an earlier result.
    let is_result = |path: &Path| path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
    deep > 0 && entries.map(|entry| entry.path()).any(|path| !is_result(&path) && is_in(there, &path, deep - 1))
}

/// Too many levels of symbolic links, on Linux.
const ELOOP: i32 = 40;

/// Why a model was not loaded.
pub(crate) fn model_error(source: &ModelSource, e: GgufError) -> CliError {
    match (e, source) {
        (GgufError::Io { source: e, .. }, ModelSource::File(path)) => input_error("model", path, e),
        (e, source) => CliError::Refused(format!("model {}: {e}", source.name())),
    }
}

/// A path for the engine; the embedded model's goes with the value.
pub(crate) fn model_path(source: &ModelSource) -> Result<ModelPath, CliError> {
    source.path().map_err(|e| CliError::Failed(format!("model {}: {e}", source.name())))
}

/// Loads a model; its path must outlive it.
pub(crate) fn load_model(source: &ModelSource) -> Result<(Model, ModelPath), CliError> {
    let path = model_path(source)?;
    let bar = progress::spinner("loading");
    let model = Model::load(path.as_path(), ModelParams::default());
    bar.finish_and_clear();
    Ok((model.map_err(|e| load_error(source, e))?, path))
}

/// Why the engine did not load a model.
pub(crate) fn load_error(source: &ModelSource, e: bitnet_rs::Error) -> CliError {
    match e {
        bitnet_rs::Error::Gguf(e) => model_error(source, e),
        e @ (bitnet_rs::Error::UnsupportedCpu { .. } | bitnet_rs::Error::KernelSelfTest { .. }) => {
            CliError::Usage(e.to_string())
        }
        e => CliError::Refused(format!("model {}: {e}", source.name())),
    }
}
