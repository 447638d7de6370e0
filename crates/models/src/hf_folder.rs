//! The files of a HuggingFace checkpoint folder, read with bounds.

use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use super::hf_tokenizer::{self, HfTokenizer, HfTokenizerError, Neighbours};
use files::input_file::{self, InputFileError};

/// Largest configuration file that is read, bytes: some vocabularies fill one with notes on added tokens. As a tree of
/// values, the shortest JSON takes forty times its length, and four such files are held at once.
pub const MAX_CONFIG_BYTES: u64 = 2 << 20;

/// Why a file of the folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HfFolderError {
    /// It is not there, or cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is no regular file, or larger than anything real.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What it is instead.
        source: InputFileError,
    },
    /// It is no JSON or no UTF-8.
    #[error("{}: {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The tokenizer was refused.
    #[error(transparent)]
    Tokenizer(#[from] HfTokenizerError),
}

/// All bytes of a regular file of at most `limit` bytes.
///
/// # Errors
/// [`HfFolderError::Io`], [`HfFolderError::File`].
pub fn bytes(path: &Path, limit: u64) -> Result<Vec<u8>, HfFolderError> {
    input_file::read(path, limit).map_err(|e| match e {
        InputFileError::Open(source) | InputFileError::Read(source) => {
            HfFolderError::Io { path: path.to_owned(), source }
        }
        source => HfFolderError::File { path: path.to_owned(), source },
    })
}

/// A JSON file of the folder.
///
/// # Errors
/// As [`bytes`], and [`HfFolderError::Content`].
pub fn json(path: &Path) -> Result<Json, HfFolderError> {
    serde_json::from_slice(&bytes(path, MAX_CONFIG_BYTES)?)
        .map_err(|e| HfFolderError::Content { path: path.to_owned(), reason: e.to_string() })
}

fn present<T>(path: &Path, read: impl FnOnce(&Path) -> Result<T, HfFolderError>) -> Result<Option<T>, HfFolderError> {
    if path.exists() { read(path).map(Some) } else { Ok(None) }
}

/// A tokenizer with what stands beside it: `path` is a `tokenizer.json`, or the folder that holds one.
///
/// # Errors
/// A [`HfFolderError`] that names the file, or the tokenizer's own.
pub fn tokenizer(path: &Path, n_vocab: Option<u32>, pre: Option<&str>) -> Result<HfTokenizer, HfFolderError> {
    let file = if path.is_dir() { path.join("tokenizer.json") } else { path.to_owned() };
    let text = bytes(&file, hf_tokenizer::MAX_BYTES)?;
    let beside = |name: &str| file.with_file_name(name);
    let chat_template = present(&beside("chat_template.jinja"), |path| {
        String::from_utf8(bytes(path, MAX_CONFIG_BYTES)?)
            .map_err(|e| HfFolderError::Content { path: path.to_owned(), reason: e.to_string() })
    })?;
    let neighbours = Neighbours {
        tokenizer_config: present(&beside("tokenizer_config.json"), json)?,
        config: present(&beside("config.json"), json)?,
        generation_config: present(&beside("generation_config.json"), json)?,
        chat_template,
    };
    Ok(hf_tokenizer::read(&text, &neighbours, n_vocab, pre)?)
}
