//! Metadata values.

use std::fmt;

/// Type of a metadata value, numbered as in the file (`enum gguf_type` in `ggml.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    /// The type with this number, if there is one.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            8 => Self::String,
            9 => Self::Array,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return None,
        })
    }

    /// Bytes of one element in the file; `None` for strings and arrays.
    #[must_use]
    pub fn fixed_size(self) -> Option<u64> {
        Some(match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
            Self::String | Self::Array => return None,
        })
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        })
    }
}

/// Many byte strings in one allocation (a vocabulary has hundreds of thousands).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Strings {
    bytes: Vec<u8>,
    /// End of each string in `bytes`.
    ends: Vec<u32>,
}

impl Strings {
    /// Appends; the caller keeps the total under 4 GiB (the reader's header limit does).
    pub(super) fn push_with<E>(&mut self, fill: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<(), E> {
        fill(&mut self.bytes)?;
        let end = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        self.ends.push(end);
        Ok(())
    }

    /// Number of strings.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The bytes of string `index`, as stored: not necessarily UTF-8.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)? as usize;
        let start = match index.checked_sub(1) {
            Some(before) => self.ends[before] as usize,
            None => 0,
        };
        self.bytes.get(start..end)
    }

    /// All strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> + '_ {
        let mut start = 0usize;
        self.ends.iter().map(move |&end| {
            let from = std::mem::replace(&mut start, end as usize);
            &self.bytes[from..end as usize]
        })
    }
}

impl<T: AsRef<[u8]>> FromIterator<T> for Strings {
    /// # Panics
    /// If the strings have more than 4 GiB together.
    fn from_iter<I: IntoIterator<Item = T>>(strings: I) -> Self {
        let mut all = Self::default();
        for string in strings {
            all.bytes.extend_from_slice(string.as_ref());
            all.ends.push(u32::try_from(all.bytes.len()).expect("strings of 4 GiB and more"));
        }
        all
    }
}

/// An array value.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Strings),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl Array {
    /// Type of the elements.
    #[must_use]
    pub fn element_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::U8(v) => v.len(),
            Self::I8(v) => v.len(),
            Self::U16(v) => v.len(),
            Self::I16(v) => v.len(),
            Self::U32(v) => v.len(),
            Self::I32(v) => v.len(),
            Self::F32(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::String(v) => v.len(),
            Self::U64(v) => v.len(),
            Self::I64(v) => v.len(),
            Self::F64(v) => v.len(),
        }
    }

    /// Whether there is no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// Bytes as stored: not necessarily UTF-8.
    String(Box<[u8]>),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl Value {
    /// Type of the value.
    #[must_use]
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// The text, if this is a string of valid UTF-8.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// The array, if this is one.
    #[must_use]
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Self::Array(array) => Some(array),
            _ => None,
        }
    }

    /// The strings, if this is an array of strings.
    #[must_use]
    pub fn as_strings(&self) -> Option<&Strings> {
        match self {
            Self::Array(Array::String(strings)) => Some(strings),
            _ => None,
        }
    }

    /// The type as written in messages: `u32`, `array of f32`.
    #[must_use]
    pub fn type_name(&self) -> String {
        match self {
            Self::Array(array) => format!("array of {}", array.element_type()),
            other => other.value_type().to_string(),
        }
    }
}

macro_rules! from {
    ($($source:ty => $make:expr;)*) => {
        $(impl From<$source> for Value {
            fn from(value: $source) -> Self {
                $make(value)
            }
        })*
    };
}

from! {
    u8 => Value::U8;
    i8 => Value::I8;
    u16 => Value::U16;
    i16 => Value::I16;
    u32 => Value::U32;
    i32 => Value::I32;
    u64 => Value::U64;
    i64 => Value::I64;
    f32 => Value::F32;
    f64 => Value::F64;
    bool => Value::Bool;
    &str => |text: &str| Value::String(text.as_bytes().into());
    Array => Value::Array;
    Strings => |strings| Value::Array(Array::String(strings));
    Vec<i32> => |values| Value::Array(Array::I32(values));
    Vec<u32> => |values| Value::Array(Array::U32(values));
    Vec<f32> => |values| Value::Array(Array::F32(values));
}
