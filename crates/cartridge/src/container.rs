//! The safetensors container, read strictly.
//!
//! The `safetensors` crate checks offsets and sizes, but its map-based header silently keeps one
//! of two tensors (or metadata keys) of the same name, and readers in other languages may keep
//! the other: one file, two contents. It also takes headers of 100 MB. So cartridges are read by
//! a reader of their own; the crate is the independent reader in the tests.

use serde::de::{self, Deserializer, MapAccess, Visitor};
use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

/// Longest header accepted, in bytes: several times what 512 layers and a long text need.
pub const HEADER_LIMIT: u64 = 8 << 20;

/// Most dimensions of a tensor.
const DIMENSION_LIMIT: usize = 8;

/// Bytes of the header's length.
const LENGTH_BYTES: usize = 8;

/// What is wrong with the container.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ContainerError {
    /// A Python pickle or PyTorch archive.
    #[error(
        "this is a Python pickle or PyTorch archive, which can run code when it is loaded; save the tensors with the safetensors library instead"
    )]
    Pickle,
    /// A file of a known other kind.
    #[error("this is a {0} file, not safetensors")]
    OtherFormat(&'static str),
    /// Shorter than the header's length field.
    #[error("the file has {len} bytes; a safetensors file has at least {}", LENGTH_BYTES + 2)]
    TooShort {
        /// Length of the file.
        len: usize,
    },
    /// A header that is empty, too long or not all there.
    #[error("the header length is {found}; it must be 2 to {limit}, and the file has {available} bytes after it")]
    HeaderLength {
        /// Length in the file.
        found: u64,
        /// Largest length accepted.
        limit: u64,
        /// Bytes after the length field.
        available: u64,
    },
    /// A header that is not the JSON expected.
    #[error("the header is not a safetensors header: {0}")]
    Header(String),
    /// A tensor name that occurs twice.
    #[error("tensor {0:?} occurs twice")]
    DuplicateTensor(String),
    /// A metadata key that occurs twice (or two metadata tables).
    #[error("metadata key {0:?} occurs twice")]
    DuplicateKey(String),
    /// A dtype that cartridges do not use.
    #[error("tensor {tensor:?} has dtype {dtype:?}; cartridges hold U8, I32, F16, BF16 and F32")]
    Dtype {
        /// Tensor.
        tensor: String,
        /// Its dtype.
        dtype: String,
    },
    /// More dimensions than any tensor of a cartridge has.
    #[error("tensor {tensor:?} has {found} dimensions, at most {limit} are allowed")]
    Dimensions {
        /// Tensor.
        tensor: String,
        /// Its dimensions.
        found: usize,
        /// Most dimensions.
        limit: usize,
    },
    /// A shape whose size overflows.
    #[error("tensor {tensor:?}: the size of shape {shape:?} overflows")]
    SizeOverflow {
        /// Tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<u64>,
    },
    /// Offsets in the wrong order or past the end of the data.
    #[error("tensor {tensor:?}: data offsets {begin}..{end} are not a range within the {len} bytes of data")]
    Offsets {
        /// Tensor.
        tensor: String,
        /// Begin.
        begin: u64,
        /// End.
        end: u64,
        /// Bytes of the data section.
        len: u64,
    },
    /// Offsets that do not agree with the shape.
    #[error("tensor {tensor:?}: data offsets span {found} bytes, its shape and dtype need {expected}")]
    Size {
        /// Tensor.
        tensor: String,
        /// Bytes between the offsets.
        found: u64,
        /// Bytes of the shape.
        expected: u64,
    },
    /// A tensor that begins before the one in front of it ends.
    #[error("tensor {tensor:?} begins at {begin}, inside the tensor that ends at {end}")]
    Overlap {
        /// Tensor.
        tensor: String,
        /// Its begin.
        begin: u64,
        /// End of the one before it.
        end: u64,
    },
    /// Bytes that belong to no tensor.
    #[error("bytes {begin}..{end} of the data belong to no tensor")]
    Gap {
        /// First byte.
        begin: u64,
        /// End.
        end: u64,
    },
}

/// Element types that cartridges use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dtype {
    U8,
    I32,
    F16,
    Bf16,
    F32,
}

impl Dtype {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Dtype::U8 => "U8",
            Dtype::I32 => "I32",
            Dtype::F16 => "F16",
            Dtype::Bf16 => "BF16",
            Dtype::F32 => "F32",
        }
    }

    fn from_name(name: &str) -> Option<Dtype> {
        [Dtype::U8, Dtype::I32, Dtype::F16, Dtype::Bf16, Dtype::F32].into_iter().find(|d| d.name() == name)
    }

    const fn bytes(self) -> u64 {
        match self {
            Dtype::U8 => 1,
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::I32 | Dtype::F32 => 4,
        }
    }
}

/// A tensor of the file.
#[derive(Debug, Clone)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<u64>,
    /// Bytes in the file.
    pub(super) range: Range<usize>,
}

/// A checked container: its tensors tile the data section, in the order of the file.
#[derive(Debug, Clone)]
pub(super) struct Container {
    pub(super) metadata: Vec<(String, String)>,
    pub(super) tensors: Vec<Tensor>,
}

impl Container {
    pub(super) fn parse(file: &[u8]) -> Result<Container, ContainerError> {
        refuse_other_formats(file)?;
        let Some((length, rest)) = file.split_first_chunk::<LENGTH_BYTES>() else {
            return Err(ContainerError::TooShort { len: file.len() });
        };
        let found = u64::from_le_bytes(*length);
        let available = rest.len() as u64;
        if !(2..=HEADER_LIMIT).contains(&found) || found > available {
            return Err(ContainerError::HeaderLength { found, limit: HEADER_LIMIT, available });
        }
        // found <= HEADER_LIMIT and <= rest.len().
        let (header, data) = rest.split_at(found as usize);
        let header = parse_header(header)?;
        let data_start = LENGTH_BYTES + found as usize;

        let mut seen = HashSet::new();
        if let Some((key, _)) = header.metadata.iter().find(|(key, _)| !seen.insert(key.as_str())) {
            return Err(ContainerError::DuplicateKey(key.clone()));
        }
        let mut seen = HashSet::new();
        if let Some((name, _)) = header.tensors.iter().find(|(name, _)| !seen.insert(name.as_str())) {
            return Err(ContainerError::DuplicateTensor(name.clone()));
        }
        drop(seen);

        let mut tensors = Vec::with_capacity(header.tensors.len());
        for (name, entry) in header.tensors {
            tensors.push(check_tensor(name, entry, data.len(), data_start)?);
        }
        // Empty tensors sort before the one that begins where they stand.
        tensors.sort_by_key(|t| (t.range.start, t.range.end));
        let mut at = data_start;
        for t in &tensors {
            if t.range.start < at {
                return Err(ContainerError::Overlap {
                    tensor: t.name.clone(),
                    begin: (t.range.start - data_start) as u64,
                    end: (at - data_start) as u64,
                });
            }
            if t.range.start > at {
                return Err(gap(at, t.range.start, data_start));
            }
            at = t.range.end;
        }
        if at < file.len() {
            return Err(gap(at, file.len(), data_start));
        }
        Ok(Container { metadata: header.metadata, tensors })
    }
}

fn gap(begin: usize, end: usize, data_start: usize) -> ContainerError {
    ContainerError::Gap { begin: (begin - data_start) as u64, end: (end - data_start) as u64 }
}

/// Names what is often handed over by mistake. None of these can be a header length below the
/// limit followed by `{`.
fn refuse_other_formats(file: &[u8]) -> Result<(), ContainerError> {
    match file {
        // torch.save since 1.6 writes a zip of a pickle; before, a bare pickle (protocol 2 to 5).
        [b'P', b'K', 3, 4, ..] => Err(ContainerError::Pickle),
        [0x80, 2..=5, rest @ ..] if rest.get(6) != Some(&b'{') => Err(ContainerError::Pickle),
        [b'G', b'G', b'U', b'F', ..] => Err(ContainerError::OtherFormat("GGUF")),
        _ if file.starts_with(b"version https://git-lfs") => {
            Err(ContainerError::OtherFormat("git-LFS pointer (`git lfs pull` fetches what it stands for)"))
        }
        // A header length of eight printable characters is beyond the limit.
        _ if file.len() > LENGTH_BYTES && file[..LENGTH_BYTES].iter().all(|b| matches!(b, 9..=13 | 32..=126)) => {
            Err(ContainerError::OtherFormat("text"))
        }
        _ => Ok(()),
    }
}

fn check_tensor(name: String, entry: Entry, data_len: usize, data_start: usize) -> Result<Tensor, ContainerError> {
    let Some(dtype) = Dtype::from_name(&entry.dtype) else {
        return Err(ContainerError::Dtype { tensor: name, dtype: shorten(entry.dtype) });
    };
    if entry.shape.len() > DIMENSION_LIMIT {
        return Err(ContainerError::Dimensions { tensor: name, found: entry.shape.len(), limit: DIMENSION_LIMIT });
    }
    let size = entry.shape.iter().try_fold(dtype.bytes(), |size, &d| size.checked_mul(d));
    let Some(expected) = size else {
        return Err(ContainerError::SizeOverflow { tensor: name, shape: entry.shape });
    };
    let [begin, end] = entry.data_offsets;
    let len = data_len as u64;
    if begin > end || end > len {
        return Err(ContainerError::Offsets { tensor: name, begin, end, len });
    }
    if end - begin != expected {
        return Err(ContainerError::Size { tensor: name, found: end - begin, expected });
    }
    Ok(Tensor {
        name,
        dtype,
        shape: entry.shape,
        // begin <= end <= data_len, and data_start + data_len is the file's length.
        range: data_start + begin as usize..data_start + end as usize,
    })
}

/// Keeps messages short whatever the file says.
fn shorten(s: String) -> String {
    s.chars().take(64).collect()
}

struct Header {
    metadata: Vec<(String, String)>,
    tensors: Vec<(String, Entry)>,
}

struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

fn parse_header(bytes: &[u8]) -> Result<Header, ContainerError> {
    let header = |e: String| ContainerError::Header(shorten_message(e));
    if bytes.first() != Some(&b'{') {
        return Err(header("it does not begin with '{'".to_owned()));
    }
    // The visitors below never take a value of another type than they need, so nesting deeper
    // than three levels is a type error before it is descended into.
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let parsed = json.deserialize_map(HeaderVisitor).map_err(|e| header(e.to_string()))?;
    json.end().map_err(|e| header(e.to_string()))?;
    Ok(parsed)
}

fn shorten_message(s: String) -> String {
    if s.chars().count() <= 200 { s } else { s.chars().take(199).chain(['…']).collect() }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut header = Header { metadata: Vec::new(), tensors: Vec::new() };
        let mut has_metadata = false;
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                if has_metadata {
                    return Err(de::Error::custom("__metadata__ occurs twice"));
                }
                has_metadata = true;
                header.metadata = map.next_value::<StringTable>()?.0;
            } else {
                let entry = map.next_value::<Entry>()?;
                header.tensors.push((name, entry));
            }
        }
        Ok(header)
    }
}

/// `__metadata__`, with duplicate keys kept for the check.
struct StringTable(Vec<(String, String)>);

impl<'de> de::Deserialize<'de> for StringTable {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<StringTable, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = StringTable;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<StringTable, A::Error> {
                let mut table = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    table.push(pair);
                }
                Ok(StringTable(table))
            }
        }
        d.deserialize_map(V)
    }
}

impl<'de> de::Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Entry, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Entry;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with dtype, shape and data_offsets")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entry, A::Error> {
                let (mut dtype, mut shape, mut data_offsets) = (None, None, None);
                while let Some(key) = map.next_key::<String>()? {
                    let again = match key.as_str() {
                        "dtype" => dtype.replace(map.next_value()?).is_some(),
                        "shape" => shape.replace(map.next_value()?).is_some(),
                        "data_offsets" => data_offsets.replace(map.next_value()?).is_some(),
                        _ => {
                            return Err(de::Error::custom(format_args!("unknown tensor field {key:?}")));
                        }
                    };
                    if again {
                        return Err(de::Error::custom(format_args!("tensor field {key:?} occurs twice")));
                    }
                }
                Ok(Entry {
                    dtype: dtype.ok_or_else(|| de::Error::missing_field("dtype"))?,
                    shape: shape.ok_or_else(|| de::Error::missing_field("shape"))?,
                    data_offsets: data_offsets.ok_or_else(|| de::Error::missing_field("data_offsets"))?,
                })
            }
        }
        d.deserialize_map(V)
    }
}
