//! Open files that hold a container.

use std::fs::File;
use std::io::BufReader;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use files::input_file::{InputFileError, open_regular};

use super::data::{self, DataSource, TernaryData};
use super::hash;
use super::{Gguf, GgufError, Limits, ModelInfo, Sha256Hash, TensorInfo};

/// An open GGUF file with its parsed header. All later reads go to the same open file.
#[derive(Debug)]
pub struct GgufFile {
    path: PathBuf,
    file: File,
    gguf: Gguf,
}

impl GgufFile {
    /// Opens a regular file and reads its header, and nothing else of it.
    ///
    /// # Errors
    /// [`GgufError::Io`], [`GgufError::NotRegularFile`], and those of [`Gguf::parse`].
    pub fn open(path: impl AsRef<Path>, limits: &Limits) -> Result<Self, GgufError> {
        let path = path.as_ref();
        let (file, metadata) = open_regular(path).map_err(|e| match e {
            InputFileError::NotAFile { found } => GgufError::NotRegularFile { path: path.to_owned(), kind: found },
            e => GgufError::Io { path: path.to_owned(), source: e.into() },
        })?;
        let gguf = Gguf::read(BufReader::with_capacity(1 << 16, &file), metadata.len(), limits)?;
        Ok(Self { path: path.to_owned(), file, gguf })
    }

    /// The path it was opened with.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The header.
    #[must_use]
    pub fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    /// Checks that the engine can load and compute this model.
    ///
    /// # Errors
    /// As [`ModelInfo::check`].
    pub fn model(&self, limits: &Limits) -> Result<ModelInfo, GgufError> {
        ModelInfo::check(&self.gguf, &self.file, limits)
    }

    /// All bytes of a tensor.
    ///
    /// # Errors
    /// [`GgufError::Read`], for example when the file was cut after it was opened.
    pub fn read_tensor(&self, tensor: &TensorInfo) -> Result<Vec<u8>, GgufError> {
        data::tensor_bytes(&self.file, tensor)
    }

    /// Fills `buf` with a tensor's bytes from byte `start` of its data.
    ///
    /// # Errors
    /// [`GgufError::Read`]; also when the range leaves the tensor.
    pub fn read_tensor_part(&self, tensor: &TensorInfo, start: u64, buf: &mut [u8]) -> Result<(), GgufError> {
        let len = buf.len() as u64;
        if start.checked_add(len).is_none_or(|end| end > tensor.size()) {
            return Err(GgufError::Read {
                offset: tensor.offset().saturating_add(start),
                len,
                source: std::io::ErrorKind::UnexpectedEof.into(),
            });
        }
        data::read(&self.file, tensor.offset() + start, buf)
    }

    /// Looks at every value of a tensor: f32, f16 and bf16 values must be finite; I2_S must have
    /// only ternary codes and a usable scale, and its counts are returned. Other types are not
    /// looked into. Reads the tensor once, at some gigabytes a second.
    ///
    /// # Errors
    /// [`GgufError::TensorData`], [`GgufError::Read`].
    pub fn check_values(&self, tensor: &TensorInfo) -> Result<Option<TernaryData>, GgufError> {
        data::check_values(&self.file, tensor)
    }

    /// Hash over names, types, dimensions and data of all tensors (`docs/formats/hashes.md`).
    /// `progress` gets bytes done and bytes in total, and can stop.
    ///
    /// # Errors
    /// [`GgufError::Read`], [`GgufError::Cancelled`].
    pub fn weights_hash(&self, progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>) -> Result<Sha256Hash, GgufError> {
        hash::weights(&self.gguf, &self.file, progress)
    }

    /// SHA-256 of the whole file, as `sha256sum` prints it.
    ///
    /// # Errors
    /// [`GgufError::Read`], [`GgufError::Cancelled`].
    pub fn file_hash(&self, progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>) -> Result<Sha256Hash, GgufError> {
        hash::whole(&self.file, self.gguf.file_len(), progress)
    }
}

impl DataSource for GgufFile {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        DataSource::read_exact_at(&self.file, offset, buf)
    }
}

/// A GGUF file that the engine can load and that computes what it means.
#[derive(Debug)]
pub struct ModelFile {
    file: GgufFile,
    info: ModelInfo,
}

impl ModelFile {
    /// Opens a file and checks container and model.
    ///
    /// # Errors
    /// Those of [`GgufFile::open`] and [`ModelInfo::check`].
    pub fn open(path: impl AsRef<Path>, limits: &Limits) -> Result<Self, GgufError> {
        let file = GgufFile::open(path, limits)?;
        let info = file.model(limits)?;
        Ok(Self { file, info })
    }

    /// The open file and its header.
    #[must_use]
    pub fn file(&self) -> &GgufFile {
        &self.file
    }

    /// The header.
    #[must_use]
    pub fn gguf(&self) -> &Gguf {
        self.file.gguf()
    }

    /// What the model is.
    #[must_use]
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }
}
