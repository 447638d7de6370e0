//! A sound container, and files that hold one.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufReader, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::data::{self, DataSource, TernaryData};
use super::error::shown;
use super::hash::{self, Sha256Hash};
use super::header;
use super::value::{Strings, Value, ValueType};
use super::{GgmlType, GgufError, GgufWarning, Limits, ModelInfo, TensorInfo};

/// The parsed header of a GGUF file: its metadata and its tensor table.
///
/// Holding one means: the container is well-formed, every tensor has a type of the pinned engine
/// and lies inside the file. Whether it is a *model* that the engine computes is
/// [`ModelInfo`]'s question.
#[derive(Debug, Clone)]
pub struct Gguf {
    version: u32,
    alignment: u64,
    data_offset: u64,
    file_len: u64,
    entries: Vec<(String, Value)>,
    keys: HashMap<String, usize>,
    tensors: Vec<TensorInfo>,
    names: HashMap<String, usize>,
    warnings: Vec<GgufWarning>,
}

impl Gguf {
    /// Parses the bytes of a whole file (read or mapped).
    ///
    /// # Errors
    /// A [`GgufError`] that names the key or tensor, the value and the limit.
    pub fn parse(bytes: &[u8], limits: &Limits) -> Result<Self, GgufError> {
        Self::read(bytes, bytes.len() as u64, limits)
    }

    /// Parses a header from a reader at the start of a file of `file_len` bytes.
    /// Reads nothing behind the header.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), and [`GgufError::Read`].
    pub fn read(reader: impl Read, file_len: u64, limits: &Limits) -> Result<Self, GgufError> {
        let header = header::read(reader, file_len, limits)?;
        Ok(Self {
            version: header.version,
            alignment: header.alignment,
            data_offset: header.data_offset,
            file_len,
            entries: header.entries,
            keys: header.keys,
            tensors: header.tensors,
            names: header.names,
            warnings: header.warnings,
        })
    }

    /// GGUF version, 2 or 3.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Alignment of tensor data, bytes.
    #[must_use]
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Where tensor data begins, bytes from the start of the file.
    #[must_use]
    pub fn data_offset(&self) -> u64 {
        self.data_offset
    }

    /// Length of the file, bytes.
    #[must_use]
    pub fn file_len(&self) -> u64 {
        self.file_len
    }

    /// Key-value pairs in file order.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        Some(&self.entries[*self.keys.get(key)?].1)
    }

    /// The text of a key, if it is there.
    ///
    /// # Errors
    /// [`GgufError::KeyType`] if it is something else, or no UTF-8.
    pub fn string(&self, key: &str) -> Result<Option<&str>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => match (value.as_str(), value) {
                (Some(text), _) => Ok(Some(text)),
                (None, Value::String(bytes)) => Err(GgufError::key_value(key, shown(bytes), "UTF-8 is needed")),
                (None, other) => Err(GgufError::key_type(key, other, "string")),
            },
        }
    }

    /// The number of a u32 key, if it is there. The engine converts no integer type to another.
    ///
    /// # Errors
    /// [`GgufError::KeyType`] if it is something else.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::U32(value)) => Ok(Some(*value)),
            Some(other) => Err(GgufError::key_type(key, other, GgufError::expected_name(ValueType::U32))),
        }
    }

    /// The number of an f32 key, if it is there.
    ///
    /// # Errors
    /// [`GgufError::KeyType`] if it is something else.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::F32(value)) => Ok(Some(*value)),
            Some(other) => Err(GgufError::key_type(key, other, GgufError::expected_name(ValueType::F32))),
        }
    }

    /// The value of a bool key, if it is there.
    ///
    /// # Errors
    /// [`GgufError::KeyType`] if it is something else.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(other) => Err(GgufError::key_type(key, other, GgufError::expected_name(ValueType::Bool))),
        }
    }

    /// The strings of a key, if it is there.
    ///
    /// # Errors
    /// [`GgufError::KeyType`] if it is no array of strings.
    pub fn strings(&self, key: &str) -> Result<Option<&Strings>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => match value.as_strings() {
                Some(strings) => Ok(Some(strings)),
                None => Err(GgufError::key_type(key, value, "array of string")),
            },
        }
    }

    /// Tensors in file order.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of this name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        Some(&self.tensors[*self.names.get(name)?])
    }

    /// Bytes of all tensors, padding not counted.
    #[must_use]
    pub fn tensor_bytes(&self) -> u64 {
        // They do not overlap and lie inside the file: no overflow.
        self.tensors.iter().map(TensorInfo::size).sum()
    }

    /// Per tensor type: how many tensors and how many bytes.
    #[must_use]
    pub fn types(&self) -> BTreeMap<GgmlType, (usize, u64)> {
        let mut types = BTreeMap::new();
        for tensor in &self.tensors {
            let (count, bytes) = types.entry(tensor.ggml_type()).or_insert((0, 0));
            *count += 1;
            *bytes += tensor.size();
        }
        types
    }

    /// What is odd about the container.
    #[must_use]
    pub fn warnings(&self) -> &[GgufWarning] {
        &self.warnings
    }
}

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
        let io = |source| GgufError::Io { path: path.to_owned(), source };
        let mut options = File::options();
        options.read(true);
        // Opening a FIFO would wait for a writer; so open without waiting, then look what it is.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
        let file = options.open(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        if !metadata.is_file() {
            return Err(GgufError::NotRegularFile { path: path.to_owned(), kind: kind(metadata.file_type()) });
        }
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
        hash::whole(&self.file, self.gguf.file_len, progress)
    }
}

impl DataSource for GgufFile {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        DataSource::read_exact_at(&self.file, offset, buf)
    }
}

fn kind(ty: std::fs::FileType) -> &'static str {
    if ty.is_dir() {
        return "a directory";
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if ty.is_fifo() {
            return "a named pipe";
        }
        if ty.is_char_device() || ty.is_block_device() {
            return "a device";
        }
        if ty.is_socket() {
            return "a socket";
        }
    }
    "something else"
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
