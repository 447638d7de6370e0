//! A sound container, and files that hold one.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;

use super::error::shown;
use super::header;
use super::value::{Strings, Value, ValueType};
use super::{GgmlType, GgufError, GgufWarning, Limits, TensorInfo};

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
