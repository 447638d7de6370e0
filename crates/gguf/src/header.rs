//! The header: magic, counts, key-value pairs, tensor table (`gguf_init_from_file` in `ggml.c`).
//!
//! The engine's own parser aborts or asks for gigabytes on many malformed headers.
//! This one reads the same bytes in the same order and compares every count and length with
//! what the file still has before it allocates anything.

use std::collections::HashMap;
use std::io::Read;

use super::error::{describe_magic, shown};
use super::ggml_type::UnknownType;
use super::tensor::TensorInfo;
use super::value::{Array, Strings, Value, ValueType};
use super::{GgmlType, GgufError, GgufWarning, Limits};

/// Alignment of the data section unless `general.alignment` says otherwise.
const DEFAULT_ALIGNMENT: u64 = 32;

/// The engine maps the file and requires the first tensor at a multiple of this
/// (`TENSOR_ALIGNMENT` in `ggml-backend.cpp`: it aborts otherwise).
const MAP_ALIGNMENT: u64 = 32;

/// Names of 64 bytes and more are cut by `ggml_set_name`, and then not found (`GGML_MAX_NAME`).
const MAX_TENSOR_NAME: usize = 63;

/// Least bytes of a key-value pair: length, one byte of key, type, one byte of value.
const MIN_KEY_BYTES: u64 = 8 + 1 + 4 + 1;
/// Least bytes of a tensor entry: length, one byte of name, one dimension, type, offset.
const MIN_TENSOR_BYTES: u64 = 8 + 1 + 4 + 8 + 4 + 8;

pub(super) struct Header {
    pub(super) version: u32,
    pub(super) alignment: u64,
    pub(super) data_offset: u64,
    pub(super) entries: Vec<(String, Value)>,
    pub(super) keys: HashMap<String, usize>,
    pub(super) tensors: Vec<TensorInfo>,
    pub(super) names: HashMap<String, usize>,
    pub(super) warnings: Vec<GgufWarning>,
}

/// Reads forward through the header and knows how much file is left.
struct Cursor<'l, R> {
    inner: R,
    pos: u64,
    len: u64,
    limits: &'l Limits,
}

impl<R: Read> Cursor<'_, R> {
    fn left(&self) -> u64 {
        self.len - self.pos
    }

    /// `needed` more bytes are there and allowed.
    fn ask(&self, needed: u64, what: impl FnOnce() -> String) -> Result<(), GgufError> {
        if needed > self.left() {
            return Err(GgufError::Truncated { what: what(), offset: self.pos, needed, available: self.left() });
        }
        let limit = self.limits.header_bytes();
        if self.pos + needed > limit {
            return Err(GgufError::TooLarge { what: "the header (in bytes)".into(), value: self.pos + needed, limit });
        }
        Ok(())
    }

    /// Appends exactly `n` bytes. The buffer grows with what arrives, not with what is claimed.
    fn append(&mut self, n: u64, out: &mut Vec<u8>, what: impl FnOnce() -> String) -> Result<(), GgufError> {
        self.ask(n, what)?;
        let before = out.len();
        out.reserve(n.min(1 << 20) as usize);
        (&mut self.inner).take(n).read_to_end(out).map_err(|source| GgufError::Read {
            offset: self.pos,
            len: n,
            source,
        })?;
        let got = (out.len() - before) as u64;
        if got < n {
            // The file was cut while it was being read.
            return Err(GgufError::Truncated {
                what: "the header".into(),
                offset: self.pos,
                needed: n,
                available: got,
            });
        }
        self.pos += n;
        Ok(())
    }

    fn fixed<const N: usize>(&mut self, what: impl FnOnce() -> String) -> Result<[u8; N], GgufError> {
        self.ask(N as u64, what)?;
        let mut bytes = [0u8; N];
        self.inner.read_exact(&mut bytes).map_err(|source| GgufError::Read {
            offset: self.pos,
            len: N as u64,
            source,
        })?;
        self.pos += N as u64;
        Ok(bytes)
    }

    fn u32(&mut self, what: impl FnOnce() -> String) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.fixed(what)?))
    }

    fn u64(&mut self, what: impl FnOnce() -> String) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.fixed(what)?))
    }

    /// A length-prefixed string, appended to `out`.
    fn string(&mut self, out: &mut Vec<u8>, limit: u64, what: &dyn Fn() -> String) -> Result<(), GgufError> {
        let len = self.u64(|| format!("the length of {}", what()))?;
        if len > limit {
            // A length no file could have is damage, not a large value: say what is left.
            if len > self.left() {
                self.ask(len, what)?;
            }
            return Err(GgufError::TooLarge { what: format!("the length of {}", what()), value: len, limit });
        }
        self.append(len, out, what)
    }
}

pub(super) fn read<R: Read>(inner: R, file_len: u64, limits: &Limits) -> Result<Header, GgufError> {
    let mut cursor = Cursor { inner, pos: 0, len: file_len, limits };
    let version = preamble(&mut cursor)?;
    let n_tensors = cursor.u64(|| "the number of tensors".into())?;
    let n_keys = cursor.u64(|| "the number of keys".into())?;
    count("the number of keys", n_keys, limits.max_keys)?;
    count("the number of tensors", n_tensors, limits.max_tensors)?;
    // Both counts are below 2^16 or so by now: the products cannot overflow with sane limits,
    // and saturate with insane ones.
    cursor.ask(n_keys.saturating_mul(MIN_KEY_BYTES), || format!("a table of {n_keys} keys"))?;
    let (entries, keys) = entries(&mut cursor, n_keys)?;
    cursor.ask(n_tensors.saturating_mul(MIN_TENSOR_BYTES), || format!("a table of {n_tensors} tensors"))?;
    let alignment = alignment(&entries, &keys)?;
    let (mut tensors, names) = tensors(&mut cursor, n_tensors)?;

    let data_offset = cursor.pos.next_multiple_of(alignment);
    let warnings = place(&mut tensors, data_offset, alignment, file_len)?;
    Ok(Header { version, alignment, data_offset, entries, keys, tensors, names, warnings })
}

fn count(what: &str, value: u64, limit: u64) -> Result<(), GgufError> {
    if value > limit {
        return Err(GgufError::TooLarge { what: what.into(), value, limit });
    }
    Ok(())
}

/// Magic and version. Recognises what people mistake for a GGUF file.
fn preamble<R: Read>(cursor: &mut Cursor<'_, R>) -> Result<u32, GgufError> {
    let mut head = Vec::new();
    let n = cursor.left().min(8);
    cursor.append(n, &mut head, || "the magic".into())?;
    if head.len() < 4 || head[..4] != *b"GGUF" {
        // A few more bytes tell the look-alikes apart.
        let n = cursor.left().min(24);
        if cursor.append(n, &mut head, || "the magic".into()).is_err() {
            head.truncate(8);
        }
        return Err(GgufError::Magic { found: describe_magic(&head) });
    }
    let Some(version) = head.get(4..8).and_then(|b| b.try_into().ok()) else {
        return Err(GgufError::Truncated {
            what: "the version".into(),
            offset: 4,
            needed: 4,
            available: head.len() as u64 - 4,
        });
    };
    let version = u32::from_le_bytes(version);
    if matches!(version.swap_bytes(), 1..=9) {
        return Err(GgufError::BigEndian { version: version.swap_bytes() });
    }
    if !(2..=3).contains(&version) {
        return Err(GgufError::Version { version });
    }
    Ok(version)
}

type Entries = (Vec<(String, Value)>, HashMap<String, usize>);

fn entries<R: Read>(cursor: &mut Cursor<'_, R>, n: u64) -> Result<Entries, GgufError> {
    let mut entries: Vec<(String, Value)> = Vec::new();
    let mut keys = HashMap::new();
    for index in 0..n {
        let mut key = Vec::new();
        cursor.string(&mut key, cursor.limits.max_key_bytes, &|| format!("key {index}"))?;
        let problem = if key.is_empty() {
            Some("empty")
        } else if key.contains(&0) {
            Some("cut short by a NUL byte for the engine")
        } else {
            None
        };
        if let Some(problem) = problem {
            return Err(GgufError::Key { index, shown: shown(&key), problem });
        }
        let key = String::from_utf8(key).map_err(|error| GgufError::Key {
            index,
            shown: shown(error.as_bytes()),
            problem: "not UTF-8",
        })?;
        let value = value(cursor, &key)?;
        if let Some(&first) = keys.get(&key) {
            return Err(GgufError::DuplicateKey { key: shown(key.as_bytes()), first: first as u64, second: index });
        }
        keys.insert(key.clone(), entries.len());
        entries.push((key, value));
    }
    Ok((entries, keys))
}

fn value_type<R: Read>(cursor: &mut Cursor<'_, R>, key: &str) -> Result<ValueType, GgufError> {
    let number = cursor.u32(|| format!("the value type of key {}", shown(key.as_bytes())))?;
    ValueType::from_number(number).ok_or_else(|| GgufError::ValueType { key: shown(key.as_bytes()), number })
}

fn value<R: Read>(cursor: &mut Cursor<'_, R>, key: &str) -> Result<Value, GgufError> {
    let what = || format!("the value of key {}", shown(key.as_bytes()));
    Ok(match value_type(cursor, key)? {
        ValueType::U8 => Value::U8(cursor.fixed::<1>(what)?[0]),
        ValueType::I8 => Value::I8(i8::from_le_bytes(cursor.fixed(what)?)),
        ValueType::U16 => Value::U16(u16::from_le_bytes(cursor.fixed(what)?)),
        ValueType::I16 => Value::I16(i16::from_le_bytes(cursor.fixed(what)?)),
        ValueType::U32 => Value::U32(cursor.u32(what)?),
        ValueType::I32 => Value::I32(i32::from_le_bytes(cursor.fixed(what)?)),
        ValueType::F32 => Value::F32(f32::from_le_bytes(cursor.fixed(what)?)),
        ValueType::U64 => Value::U64(cursor.u64(what)?),
        ValueType::I64 => Value::I64(i64::from_le_bytes(cursor.fixed(what)?)),
        ValueType::F64 => Value::F64(f64::from_le_bytes(cursor.fixed(what)?)),
        ValueType::Bool => Value::Bool(boolean(cursor.fixed::<1>(what)?[0], key)?),
        ValueType::String => {
            let mut bytes = Vec::new();
            cursor.string(&mut bytes, cursor.limits.max_string_bytes, &what)?;
            Value::String(bytes.into_boxed_slice())
        }
        ValueType::Array => Value::Array(array(cursor, key)?),
    })
}

fn boolean(byte: u8, key: &str) -> Result<bool, GgufError> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        value => Err(GgufError::Bool { key: shown(key.as_bytes()), value }),
    }
}

fn array<R: Read>(cursor: &mut Cursor<'_, R>, key: &str) -> Result<Array, GgufError> {
    let what = || format!("the array of key {}", shown(key.as_bytes()));
    let element = value_type(cursor, key)?;
    let len = cursor.u64(|| format!("the length of {}", what()))?;
    if element == ValueType::Array {
        return Err(GgufError::NestedArray { key: shown(key.as_bytes()) });
    }
    // A string is at least its 8-byte length.
    let bytes = len.saturating_mul(element.fixed_size().unwrap_or(8));
    cursor.ask(bytes, what)?;
    if len > cursor.limits.max_array_elements {
        return Err(GgufError::TooLarge {
            what: format!("the length of {}", what()),
            value: len,
            limit: cursor.limits.max_array_elements,
        });
    }
    if element == ValueType::String {
        let mut strings = Strings::default();
        let limit = cursor.limits.max_string_bytes;
        for index in 0..len {
            strings.push_with(|out| cursor.string(out, limit, &|| format!("element {index} of {}", what())))?;
        }
        return Ok(Array::String(strings));
    }
    let mut raw = Vec::new();
    cursor.append(bytes, &mut raw, what)?;
    macro_rules! numbers {
        ($ty:ty) => {
            raw.chunks_exact(size_of::<$ty>())
                .map(|chunk| <$ty>::from_le_bytes(chunk.try_into().expect("chunks are exact")))
                .collect()
        };
    }
    Ok(match element {
        ValueType::U8 => Array::U8(raw),
        ValueType::I8 => Array::I8(numbers!(i8)),
        ValueType::U16 => Array::U16(numbers!(u16)),
        ValueType::I16 => Array::I16(numbers!(i16)),
        ValueType::U32 => Array::U32(numbers!(u32)),
        ValueType::I32 => Array::I32(numbers!(i32)),
        ValueType::F32 => Array::F32(numbers!(f32)),
        ValueType::U64 => Array::U64(numbers!(u64)),
        ValueType::I64 => Array::I64(numbers!(i64)),
        ValueType::F64 => Array::F64(numbers!(f64)),
        ValueType::Bool => Array::Bool(raw.into_iter().map(|byte| boolean(byte, key)).collect::<Result<_, _>>()?),
        ValueType::String | ValueType::Array => unreachable!("handled above"),
    })
}

fn alignment(entries: &[(String, Value)], keys: &HashMap<String, usize>) -> Result<u64, GgufError> {
    let key = "general.alignment";
    let Some(&index) = keys.get(key) else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    // Another type makes `gguf_get_val_u32` abort; 0 divides by zero.
    let value = match &entries[index].1 {
        Value::U32(value) => u64::from(*value),
        other => return Err(GgufError::key_type(key, other, "u32")),
    };
    let problem = if value == 0 {
        "zero; use 32"
    } else if !value.is_power_of_two() {
        "not a power of two; use 32"
    } else if value % 8 != 0 {
        "not a multiple of 8, as GGUF demands; use 32"
    } else {
        return Ok(value);
    };
    Err(GgufError::Alignment { value, problem })
}

type Table = (Vec<TensorInfo>, HashMap<String, usize>);

fn tensors<R: Read>(cursor: &mut Cursor<'_, R>, n: u64) -> Result<Table, GgufError> {
    let mut tensors: Vec<TensorInfo> = Vec::new();
    let mut names = HashMap::new();
    for index in 0..n {
        let tensor = tensor(cursor, index)?;
        if names.insert(tensor.name().to_owned(), tensors.len()).is_some() {
            return Err(GgufError::DuplicateTensor { name: shown(tensor.name().as_bytes()) });
        }
        tensors.push(tensor);
    }
    Ok((tensors, names))
}

fn tensor<R: Read>(cursor: &mut Cursor<'_, R>, index: u64) -> Result<TensorInfo, GgufError> {
    let mut name = Vec::new();
    cursor.string(&mut name, cursor.limits.max_key_bytes, &|| format!("the name of tensor {index}"))?;
    let problem = if name.is_empty() {
        Some("is empty")
    } else if name.len() > MAX_TENSOR_NAME {
        Some("is longer than 63 bytes, the engine's limit")
    } else if name.contains(&0) {
        Some("contains a NUL byte, where the engine would end it")
    } else {
        None
    };
    if let Some(problem) = problem {
        return Err(GgufError::TensorName { index, shown: shown(&name), problem });
    }
    let name = String::from_utf8(name).map_err(|error| GgufError::TensorName {
        index,
        shown: shown(error.as_bytes()),
        problem: "is not UTF-8",
    })?;
    let label = shown(name.as_bytes());
    let what = || format!("the entry of tensor {label}");
    let n_dims = cursor.u32(what)?;
    if !(1..=4).contains(&n_dims) {
        return Err(GgufError::Dimensions {
            tensor: label,
            problem: format!("{n_dims} dimensions, 1 to 4 are possible"),
        });
    }
    let mut dims = [1u64; 4];
    for (axis, dim) in dims.iter_mut().take(n_dims as usize).enumerate() {
        *dim = cursor.u64(what)?;
        // `gguf_tensor_info_sanitize` aborts on zero; above i64::MAX the engine sees a
        // negative number.
        if *dim == 0 || i64::try_from(*dim).is_err() {
            return Err(GgufError::Dimensions {
                tensor: label,
                problem: format!("dimension {axis} is {dim}, 1 to {} are possible", i64::MAX),
            });
        }
    }
    let number = cursor.u32(what)?;
    let offset = cursor.u64(what)?;

    let elements = dims
        .iter()
        .try_fold(1u64, |product, &dim| product.checked_mul(dim))
        .filter(|&product| product < i64::MAX as u64)
        .ok_or_else(|| GgufError::Dimensions {
            tensor: label.clone(),
            problem: format!("{:?} are more elements than {}, the engine's limit", &dims[..n_dims as usize], i64::MAX),
        })?;
    let ty = tensor_type(&label, number)?;
    if dims[0] % ty.block_len() != 0 {
        return Err(GgufError::RowLength { tensor: label, ty, row: dims[0], block: ty.block_len() });
    }
    let rows = elements / dims[0];
    if rows % ty.row_group() != 0 {
        return Err(GgufError::RowCount { tensor: label, ty, rows, group: ty.row_group() });
    }
    let size =
        ty.tensor_bytes(elements).filter(|&size| size < i64::MAX as u64).ok_or_else(|| GgufError::Dimensions {
            tensor: label,
            problem: format!("{elements} elements of {ty} are more bytes than a file can have"),
        })?;
    Ok(TensorInfo::new(name, dims, n_dims, ty, offset, size))
}

fn tensor_type(label: &str, number: u32) -> Result<GgmlType, GgufError> {
    let refuse =
        |name: &'static str, reason: String| GgufError::TensorType { tensor: label.to_owned(), number, name, reason };
    match GgmlType::from_number(number) {
        Some(ty) => match ty.refusal() {
            None => Ok(ty),
            Some(reason) => Err(refuse(
                ty.name(),
                match ty.upstream_name() {
                    Some(upstream) => format!(
                        "{reason} (in upstream llama.cpp the number means {upstream}, which this engine does not have either)"
                    ),
                    None => reason.to_owned(),
                },
            )),
        },
        None => Err(match GgmlType::unknown(number) {
            UnknownType::Removed(name) => refuse(name, "the engine no longer has it; quantize the model again".into()),
            UnknownType::Upstream(name) => refuse(
                name,
                "it is a type of upstream llama.cpp that the pinned engine does not have; quantize the model again"
                    .into(),
            ),
            UnknownType::Nothing => refuse(
                "unknown",
                "the pinned engine has types 0 to 39; the file is damaged or newer than the engine".into(),
            ),
        }),
    }
}

/// Turns the offsets of the table into absolute ones and checks that every tensor lies inside
/// the file, aligned, and alone.
fn place(
    tensors: &mut [TensorInfo],
    data_offset: u64,
    alignment: u64,
    file_len: u64,
) -> Result<Vec<GgufWarning>, GgufError> {
    for tensor in tensors.iter_mut() {
        let relative = tensor.offset();
        let label = || shown(tensor.name().as_bytes());
        let range_error = || GgufError::OffsetRange { tensor: label(), offset: relative };
        let start = data_offset.checked_add(relative).ok_or_else(range_error)?;
        let end = start.checked_add(tensor.size()).ok_or_else(range_error)?;
        if relative % alignment != 0 {
            return Err(GgufError::Misaligned { tensor: label(), offset: start, alignment });
        }
        if end > file_len {
            return Err(GgufError::Truncated {
                what: format!("the data of tensor {}", label()),
                offset: start,
                needed: tensor.size(),
                available: file_len.saturating_sub(start),
            });
        }
        tensor.set_offset(start);
    }

    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|tensor| tensor.offset());
    if let Some(first) = order.first()
        && first.offset() % MAP_ALIGNMENT != 0
    {
        return Err(GgufError::Misaligned {
            tensor: shown(first.name().as_bytes()),
            offset: first.offset(),
            alignment: MAP_ALIGNMENT,
        });
    }
    let mut unused = 0;
    for (index, tensor) in order.iter().enumerate() {
        let end = tensor.offset() + tensor.size();
        let padded = end.next_multiple_of(alignment);
        let limit = match order.get(index + 1) {
            Some(next) if next.offset() < end => {
                return Err(GgufError::Overlap {
                    first: shown(tensor.name().as_bytes()),
                    second: shown(next.name().as_bytes()),
                    offset: next.offset(),
                });
            }
            Some(next) => next.offset(),
            None => file_len,
        };
        let gap = limit.saturating_sub(padded);
        if gap > 0 && tensor.ggml_type() == GgmlType::I2_S && index + 1 < order.len() {
            return Err(GgufError::I2sSpace {
                tensor: shown(tensor.name().as_bytes()),
                space: limit - tensor.offset(),
                needed: padded - tensor.offset(),
            });
        }
        unused += gap;
    }
    Ok(if unused > 0 { vec![GgufWarning::UnusedBytes { bytes: unused }] } else { Vec::new() })
}
