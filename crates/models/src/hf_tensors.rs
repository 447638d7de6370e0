//! Tensors of a HuggingFace checkpoint: one safetensors file, or several with an index.
//!
//! Only headers are read and kept; data comes tensor by tensor. Nothing in a header is trusted: lengths are compared
//! with the file before memory is asked for, and shapes with the lengths.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use gguf::DataSource as _;
use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::hf_folder;
use files::input_file::{InputFileError, open_regular};

/// Longest safetensors header that is read, bytes; ten times that of the largest models.
pub const MAX_HEADER: u64 = 16 << 20;

/// Longest `model.safetensors.index.json`, bytes.
const MAX_INDEX: u64 = 16 << 20;

/// Most shards.
const MAX_FILES: usize = 1000;

/// Most tensors of all files together: what a GGUF may hold.
const MAX_TENSORS: usize = 1 << 16;

/// Most dimensions of a tensor.
const MAX_DIMENSIONS: usize = 8;

/// Why tensors cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HfTensorsError {
    /// A file is missing or unreadable.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A tensor's entry contradicts itself or the file.
    #[error("{}: tensor '{tensor}': {problem}", path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What is wrong.
        problem: String,
    },
    /// A tensor that the model needs is not there.
    #[error("the checkpoint has no tensor '{tensor}'")]
    Missing {
        /// The tensor.
        tensor: String,
    },
    /// The index or another JSON file was refused.
    #[error(transparent)]
    Folder(#[from] hf_folder::HfFolderError),
}

/// Element types that checkpoints of these families use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are safetensors' own")]
pub enum Dtype {
    F32,
    F16,
    Bf16,
    U8,
}

impl Dtype {
    /// Bytes of an element.
    pub const fn bytes(self) -> u64 {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::U8 => 1,
        }
    }

    /// safetensors' name.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "F32",
            Dtype::F16 => "F16",
            Dtype::Bf16 => "BF16",
            Dtype::U8 => "U8",
        }
    }
}

/// Where a tensor lies.
#[derive(Debug, Clone)]
pub struct HfTensor {
    /// Name in the checkpoint.
    pub name: String,
    /// Type.
    pub dtype: Dtype,
    /// Dimensions, slowest first.
    pub shape: Vec<u64>,
    file: usize,
    offset: u64,
    bytes: u64,
}

impl HfTensor {
    /// Bytes of the data.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// An open checkpoint.
#[derive(Debug)]
pub struct HfTensors {
    files: Vec<(PathBuf, File)>,
    tensors: BTreeMap<String, HfTensor>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Shape,
    data_offsets: [u64; 2],
}

/// Dimensions, bounded while they are read: a header may list millions of them.
struct Shape(Vec<u64>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Shape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MAX_DIMENSIONS} dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Shape, A::Error> {
                let mut shape = Vec::new();
                while let Some(dimension) = list.next_element()? {
                    if shape.len() == MAX_DIMENSIONS {
                        return Err(de::Error::invalid_length(MAX_DIMENSIONS + 1, &self));
                    }
                    shape.push(dimension);
                }
                Ok(Shape(shape))
            }
        }
        d.deserialize_seq(V)
    }
}

/// The entries of a header in its order. Values of another kind than a tensor's are refused where they begin, so that
/// nothing of theirs is kept; of a name that stands twice, other readers may keep the other entry.
struct Header(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    if entries.len() == MAX_TENSORS {
                        return Err(de::Error::custom(format_args!("more than {MAX_TENSORS} tensors")));
                    }
                    let entry = map
                        .next_value()
                        .map_err(|e| de::Error::custom(format_args!("tensor '{}': {e}", shown(&name))))?;
                    entries.push((name, entry));
                }
                Ok(Header(entries))
            }
        }
        d.deserialize_map(V)
    }
}

/// Names as messages show them.
fn shown(name: &str) -> String {
    name.chars().take(200).flat_map(char::escape_debug).collect()
}

impl HfTensors {
    /// Opens the checkpoint in `folder`: `model.safetensors.index.json`, else `model.safetensors`.
    ///
    /// # Errors
    /// See [`HfTensorsError`].
    pub fn open(folder: &Path) -> Result<Self, HfTensorsError> {
        let index_path = folder.join("model.safetensors.index.json");
        let mut names = BTreeSet::new();
        let mut expected = BTreeMap::new();
        if index_path.exists() {
            let bad = |problem: String| HfTensorsError::File { path: index_path.clone(), problem };
            let index: Index = serde_json::from_slice(&hf_folder::bytes(&index_path, MAX_INDEX)?)
                .map_err(|e| bad(format!("no object 'weight_map' of file names: {e}")))?;
            for file in index.weight_map.values() {
                // A path in the index could name any file of the machine.
                if file.is_empty()
                    || file.contains(['/', '\\', '\0'])
                    || file == ".."
                    || !file.ends_with(".safetensors")
                {
                    return Err(bad(format!("'{}' is no plain name of a .safetensors file", shown(file))));
                }
                if !names.contains(file) {
                    if names.len() == MAX_FILES {
                        return Err(bad(format!("more than {MAX_FILES} files")));
                    }
                    names.insert(file.clone());
                }
            }
            if names.is_empty() {
                return Err(bad("'weight_map' names no file".into()));
            }
            expected = index.weight_map;
        } else {
            names.insert("model.safetensors".to_owned());
        }
        let names: Vec<String> = names.into_iter().collect();
        let mut checkpoint = Self { files: Vec::new(), tensors: BTreeMap::new() };
        for name in &names {
            checkpoint.add(&folder.join(name))?;
        }
        for (tensor, file) in &expected {
            if checkpoint.tensors.get(tensor).and_then(|t| names.get(t.file)) != Some(file) {
                let problem = format!("'{}' is not in the file that it names", shown(tensor));
                return Err(HfTensorsError::File { path: index_path, problem });
            }
        }
        Ok(checkpoint)
    }

    fn add(&mut self, path: &Path) -> Result<(), HfTensorsError> {
        let io = |source| HfTensorsError::Io { path: path.to_owned(), source };
        let bad = |problem: String| HfTensorsError::File { path: path.to_owned(), problem };
        let (mut file, metadata) = open_regular(path).map_err(|e| match e {
            e @ InputFileError::NotAFile { .. } => bad(format!("it {e}")),
            e => io(e.into()),
        })?;
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(io)?;
        let length = u64::from_le_bytes(length);
        let rest = metadata.len().saturating_sub(8);
        if length > rest || length > MAX_HEADER {
            return Err(bad(format!(
                "its header of {length} bytes does not fit the file or the limit of {MAX_HEADER}"
            )));
        }
        let mut header = Vec::new();
        (&file).take(length).read_to_end(&mut header).map_err(io)?;
        if header.len() as u64 != length {
            return Err(bad("it became shorter while it was read".into()));
        }
        let Header(entries) = serde_json::from_slice(&header)
            .map_err(|e| bad(format!("the header is no JSON object of tensors: {e}")))?;
        drop(header);
        if self.tensors.len() + entries.len() > MAX_TENSORS {
            return Err(bad(format!("with it, the checkpoint has more than {MAX_TENSORS} tensors")));
        }
        let (start, data) = (8 + length, rest - length);
        let index = self.files.len();
        let mut ranges = Vec::with_capacity(entries.len());
        for (name, entry) in entries {
            let wrong =
                |problem: String| HfTensorsError::Tensor { path: path.to_owned(), tensor: shown(&name), problem };
            let dtype = match entry.dtype.as_str() {
                "F32" => Dtype::F32,
                "F16" => Dtype::F16,
                "BF16" => Dtype::Bf16,
                "U8" => Dtype::U8,
                other => {
                    return Err(wrong(format!("type {}; F32, F16, BF16 and U8 can be read", shown(other))));
                }
            };
            let [from, to] = entry.data_offsets;
            if from > to || to > data {
                return Err(wrong(format!("bytes {from} to {to} of {data}")));
            }
            let shape = entry.shape.0;
            if shape.iter().try_fold(dtype.bytes(), |n, &d| n.checked_mul(d)) != Some(to - from) {
                let need = format!("a {} of shape {shape:?} does not take {} bytes", dtype.name(), to - from);
                return Err(wrong(need));
            }
            ranges.push((from, to, name.clone()));
            let tensor =
                HfTensor { name: name.clone(), dtype, shape, file: index, offset: start + from, bytes: to - from };
            if self.tensors.insert(name.clone(), tensor).is_some() {
                return Err(wrong("it stands there twice, or in two files".into()));
            }
        }
        // As the format has it: tensors side by side, none over another. A small file could otherwise be read as
        // terabytes, the same bytes again for every tensor.
        ranges.sort_unstable();
        let mut at = 0;
        for (from, to, name) in &ranges {
            if *from != at {
                let problem = format!("it begins at byte {from} of the data; the tensors before it end at {at}");
                return Err(HfTensorsError::Tensor { path: path.to_owned(), tensor: shown(name), problem });
            }
            at = *to;
        }
        if at != data {
            return Err(bad(format!("the last {} bytes belong to no tensor", data - at)));
        }
        self.files.push((path.to_owned(), file));
        Ok(())
    }

    /// All tensors by name.
    pub fn tensors(&self) -> impl Iterator<Item = &HfTensor> {
        self.tensors.values()
    }

    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<&HfTensor> {
        self.tensors.get(name)
    }

    /// The tensor of this name.
    ///
    /// # Errors
    /// [`HfTensorsError::Missing`].
    pub fn need(&self, name: &str) -> Result<&HfTensor, HfTensorsError> {
        self.get(name).ok_or_else(|| HfTensorsError::Missing { tensor: name.to_owned() })
    }

    /// A refusal that names a tensor and its file.
    pub fn refuse(&self, tensor: &HfTensor, problem: String) -> HfTensorsError {
        HfTensorsError::Tensor { path: self.files[tensor.file].0.clone(), tensor: shown(&tensor.name), problem }
    }

    /// Bytes `start .. start + buf.len()` of a tensor's data.
    ///
    /// # Errors
    /// [`HfTensorsError::Io`], also past the tensor's end.
    pub fn read(&self, tensor: &HfTensor, start: u64, buf: &mut [u8]) -> Result<(), HfTensorsError> {
        let (path, file) = &self.files[tensor.file];
        let inside = start.checked_add(buf.len() as u64).is_some_and(|end| end <= tensor.bytes);
        let read = if inside {
            file.read_exact_at(tensor.offset + start, buf)
        } else {
            Err(std::io::ErrorKind::UnexpectedEof.into())
        };
        read.map_err(|source| HfTensorsError::Io { path: path.clone(), source })
    }

    /// `count` elements from element `first` on, as floats; U8 as their numbers.
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`HfTensorsError::Tensor`] for a value that is not finite.
    pub fn floats(&self, tensor: &HfTensor, first: u64, count: usize) -> Result<Vec<f32>, HfTensorsError> {
        let size = tensor.dtype.bytes();
        let mut bytes = vec![0; count * size as usize];
        self.read(tensor, first.saturating_mul(size), &mut bytes)?;
        let values: Vec<f32> = match tensor.dtype {
            Dtype::F32 => bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
            Dtype::F16 => bytes.as_chunks::<2>().0.iter().map(|&b| half::f16::from_le_bytes(b).to_f32()).collect(),
            Dtype::Bf16 => bytes.as_chunks::<2>().0.iter().map(|&b| half::bf16::from_le_bytes(b).to_f32()).collect(),
            Dtype::U8 => bytes.iter().map(|&b| f32::from(b)).collect(),
        };
        match values.iter().position(|v| !v.is_finite()) {
            None => Ok(values),
            Some(at) => {
                let problem =
                    format!("element {} is {}; only finite values can be converted", first + at as u64, values[at]);
                Err(self.refuse(tensor, problem))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let mut out = (header.len() as u64).to_le_bytes().to_vec();
        out.extend(header.as_bytes());
        out.extend(data);
        out
    }

    fn opened(files: &[(&str, Vec<u8>)]) -> Result<HfTensors, HfTensorsError> {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        HfTensors::open(folder.path())
    }

    #[test]
    fn values_of_every_type() {
        let header = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},
            "b":{"dtype":"F16","shape":[1,1],"data_offsets":[4,6]},"c":{"dtype":"U8","shape":[2],"data_offsets":[6,8]}}"#;
        let data = [0x80, 0x3f, 0x00, 0xc0, 0x00, 0x38, 7, 255];
        let t = opened(&[("model.safetensors", file(header, &data))]).unwrap();
        let values = |name: &str, n| t.floats(t.need(name).unwrap(), 0, n).unwrap();
        assert_eq!(values("a", 2), [1.0, -2.0]);
        assert_eq!(values("b", 1), [0.5]);
        assert_eq!(values("c", 2), [7.0, 255.0]);
        assert!(t.floats(t.need("a").unwrap(), 1, 2).is_err());
        assert!(matches!(t.need("d"), Err(HfTensorsError::Missing { .. })));
    }

    #[test]
    fn shards_through_an_index() {
        let one =
            |name: &str| file(&format!(r#"{{"{name}":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}}"#), &[0; 4]);
        let index = |map: &str| format!(r#"{{"weight_map":{{{map}}}}}"#).into_bytes();
        let files = |map: &str| {
            vec![("1.safetensors", one("a")), ("2.safetensors", one("b")), ("model.safetensors.index.json", index(map))]
        };
        let t = opened(&files(r#""a":"1.safetensors","b":"2.safetensors""#)).unwrap();
        assert_eq!(t.tensors().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        for (map, part) in [
            (r#""a":"../x.safetensors""#, "no plain name"),
            (r#""a":"/etc/passwd""#, "no plain name"),
            (r#""a":7"#, "expected a string"),
            ("", "names no file"),
            (r#""a":"2.safetensors""#, "not in the file"),
            (r#""a":"3.safetensors""#, "3.safetensors"),
        ] {
            let err = opened(&files(map)).unwrap_err().to_string();
            assert!(err.contains(part), "{map}: {err}");
        }
    }

    #[test]
    fn headers_that_lie_are_refused() {
        let entry = |text: &str| file(&format!(r#"{{"a":{text}}}"#), &[0; 8]);
        let mut endless = file("{}", &[]);
        endless[..8].copy_from_slice(&u64::MAX.to_le_bytes());
        for (bytes, part) in [
            (vec![1, 2, 3], "model.safetensors"),
            (endless, "does not fit"),
            (file("[]", &[]), "no JSON object"),
            (entry(r#"{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8]}"#), "at most 8 dimensions"),
            (
                entry(
                    r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[0],"data_offsets":[8,8]}"#,
                ),
                "twice",
            ),
            (
                entry(
                    r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}"#,
                ),
                "tensor 'b': it begins at byte 4 of the data; the tensors before it end at 8",
            ),
            (entry(r#"{"dtype":"F32","shape":[1],"data_offsets":[4,8]}"#), "begins at byte 4"),
            (entry(r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#), "last 4 bytes"),
            (entry(r#"{"dtype":"F32","shape":[2],"data_offsets":[0,9]}"#), "bytes 0 to 9 of 8"),
            (entry(r#"{"dtype":"F32","shape":[2],"data_offsets":[8,0]}"#), "bytes 8 to 0"),
            (entry(r#"{"dtype":"F32","shape":[3],"data_offsets":[0,8]}"#), "does not take 8 bytes"),
            (entry(r#"{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]}"#), "does not take"),
            (entry(r#"{"dtype":"I64","shape":[1],"data_offsets":[0,8]}"#), "type I64"),
            (entry(r#"{"dtype":"F32","shape":[-1],"data_offsets":[0,8]}"#), "'a'"),
        ] {
            let err = opened(&[("model.safetensors", bytes)]).unwrap_err().to_string();
            assert!(err.contains(part), "{part}: {err}");
        }
        let t = opened(&[("model.safetensors", entry(r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#))]).unwrap();
        assert!(t.floats(t.need("a").unwrap(), 0, 2).is_ok());
    }
}
