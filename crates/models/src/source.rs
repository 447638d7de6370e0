//! Where the model under test comes from: the embedded one or a file.

use std::fs::File;
use std::io;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

/// The model that every command uses unless `--model` names another: it travels inside the binary, so that an
/// installed binary runs its gates anywhere (docs/decisions/0004-embedded-model.md).
pub static EMBEDDED: &[u8] = include_bytes!("../../../gates/models/bitnet-harness-home.gguf");

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// The embedded model.
    Embedded,
    /// A GGUF file.
    File(PathBuf),
}

/// A model file that the engine can open; the embedded one lies in a temporary file without a name, so that nothing
/// is left of it however the process ends.
#[derive(Debug)]
pub struct ModelPath {
    path: PathBuf,
    _temporary: Option<File>,
}

impl ModelSource {
    /// `--model FILE`, or the embedded model without it.
    pub fn from_option(path: Option<PathBuf>) -> Self {
        path.map_or(Self::Embedded, Self::File)
    }

    /// As reports name it.
    pub fn name(&self) -> String {
        match self {
            Self::Embedded => "embedded".into(),
            Self::File(path) => path.display().to_string(),
        }
    }

    /// A path for the engine.
    ///
    /// # Errors
    /// When the temporary file cannot be written.
    pub fn path(&self) -> io::Result<ModelPath> {
        match self {
            Self::File(path) => Ok(ModelPath { path: path.clone(), _temporary: None }),
            Self::Embedded => {
                let mut file = tempfile::tempfile()?;
                file.write_all(EMBEDDED)?;
                // By process id rather than `self`: children can open it, too.
                let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
                Ok(ModelPath { path, _temporary: Some(file) })
            }
        }
    }
}

impl ModelPath {
    /// The file.
    pub fn as_path(&self) -> &Path {
        &self.path
    }
}
