//! Where the model under test comes from: the embedded one or a file.

use std::io;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

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

/// A model file that the engine can open; the embedded one is written to a temporary file that goes with this value.
#[derive(Debug)]
pub struct ModelPath {
    path: PathBuf,
    _temporary: Option<NamedTempFile>,
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
                let mut file = tempfile::Builder::new().prefix("bitnet-harness-").suffix(".gguf").tempfile()?;
                file.write_all(EMBEDDED)?;
                file.flush()?;
                Ok(ModelPath { path: file.path().to_owned(), _temporary: Some(file) })
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
