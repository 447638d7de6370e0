//! A streaming GGUF version 3 writer.
//!
//! The header is planned from names, shapes and byte lengths alone; tensor data is then handed over
//! in pieces and never held as a whole. Why this is not ggml's own writer:
//! `docs/decisions/0005-gguf-writer.md`. Little-endian, alignment 32.

use std::io::{self, Write};

/// Alignment of the data section and of every tensor in it (`GGUF_DEFAULT_ALIGNMENT`).
pub const ALIGNMENT: u64 = 32;

/// Most dimensions a tensor may have (`GGML_MAX_DIMS`).
pub const MAX_DIMS: usize = 4;

/// A metadata value, of the kinds that model files use.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Unsigned 32-bit integer.
    U32(u32),
    /// Unsigned 64-bit integer.
    U64(u64),
    /// Signed 32-bit integer.
    I32(i32),
    /// Single-precision number.
    F32(f32),
    /// Truth value.
    Bool(bool),
    /// UTF-8 text.
    String(String),
    /// Array of signed 32-bit integers.
    I32Array(Vec<i32>),
    /// Array of single-precision numbers.
    F32Array(Vec<f32>),
    /// Array of texts.
    StringArray(Vec<String>),
    /// A value in the file's own encoding, copied from another file: type number and bytes.
    Raw {
        /// GGUF value type.
        kind: u32,
        /// Encoded value, without the type number.
        bytes: Vec<u8>,
    },
}

const TYPE_U32: u32 = 4;
const TYPE_I32: u32 = 5;
const TYPE_F32: u32 = 6;
const TYPE_BOOL: u32 = 7;
const TYPE_STRING: u32 = 8;
const TYPE_ARRAY: u32 = 9;
const TYPE_U64: u32 = 10;

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::String(text.to_owned())
    }
}

impl Value {
    fn encode(&self, out: &mut Vec<u8>) {
        let array = |out: &mut Vec<u8>, kind: u32, len: usize| {
            out.extend(TYPE_ARRAY.to_le_bytes());
            out.extend(kind.to_le_bytes());
            out.extend((len as u64).to_le_bytes());
        };
        match self {
            Value::U32(v) => {
                out.extend(TYPE_U32.to_le_bytes());
                out.extend(v.to_le_bytes());
            }
            Value::U64(v) => {
                out.extend(TYPE_U64.to_le_bytes());
                out.extend(v.to_le_bytes());
            }
            Value::I32(v) => {
                out.extend(TYPE_I32.to_le_bytes());
                out.extend(v.to_le_bytes());
            }
            Value::F32(v) => {
                out.extend(TYPE_F32.to_le_bytes());
                out.extend(v.to_le_bytes());
            }
            Value::Bool(v) => {
                out.extend(TYPE_BOOL.to_le_bytes());
                out.push(u8::from(*v));
            }
            Value::String(v) => {
                out.extend(TYPE_STRING.to_le_bytes());
                encode_string(v, out);
            }
            Value::I32Array(v) => {
                array(out, TYPE_I32, v.len());
                v.iter().for_each(|v| out.extend(v.to_le_bytes()));
            }
            Value::F32Array(v) => {
                array(out, TYPE_F32, v.len());
                v.iter().for_each(|v| out.extend(v.to_le_bytes()));
            }
            Value::StringArray(v) => {
                array(out, TYPE_STRING, v.len());
                v.iter().for_each(|v| encode_string(v, out));
            }
            Value::Raw { kind, bytes } => {
                out.extend(kind.to_le_bytes());
                out.extend(bytes);
            }
        }
    }
}

fn encode_string(text: &str, out: &mut Vec<u8>) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// Name, shape and size of a tensor to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorPlan {
    /// Name in the file.
    pub name: String,
    /// Dimensions, fastest first (ggml's `ne`), 1 to 4 of them.
    pub dims: Vec<u64>,
    /// ggml type number.
    pub kind: u32,
    /// Bytes of data, without the padding to the next tensor.
    pub bytes: u64,
}

/// A file whose header is settled and whose data is still to come.
#[derive(Debug, Clone)]
pub struct FilePlan {
    header: Vec<u8>,
    tensors: Vec<TensorPlan>,
    total: u64,
}

impl FilePlan {
    /// Lays out a file: metadata in the given order, tensors one after the other.
    ///
    /// # Errors
    /// `InvalidInput` for a tensor without dimensions or with more than four, and for sizes that
    /// overflow.
    pub fn new(metadata: &[(String, Value)], tensors: Vec<TensorPlan>) -> io::Result<Self> {
        let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
        let mut header = Vec::new();
        header.extend(b"GGUF");
        header.extend(3_u32.to_le_bytes());
        header.extend((tensors.len() as u64).to_le_bytes());
        header.extend((metadata.len() as u64).to_le_bytes());
        for (key, value) in metadata {
            encode_string(key, &mut header);
            value.encode(&mut header);
        }
        let mut offset = 0_u64;
        for tensor in &tensors {
            if tensor.dims.is_empty() || tensor.dims.len() > MAX_DIMS {
                return Err(invalid(format!(
                    "tensor '{}' has {} dimensions: GGUF allows 1 to {MAX_DIMS}",
                    tensor.name,
                    tensor.dims.len()
                )));
            }
            encode_string(&tensor.name, &mut header);
            header.extend((tensor.dims.len() as u32).to_le_bytes());
            for dim in &tensor.dims {
                header.extend(dim.to_le_bytes());
            }
            header.extend(tensor.kind.to_le_bytes());
            header.extend(offset.to_le_bytes());
            offset = tensor
                .bytes
                .checked_next_multiple_of(ALIGNMENT)
                .and_then(|bytes| offset.checked_add(bytes))
                .ok_or_else(|| invalid(format!("tensor '{}' ends past 2^64", tensor.name)))?;
        }
        header.resize(header.len().next_multiple_of(ALIGNMENT as usize), 0);
        let total = offset
            .checked_add(header.len() as u64)
            .ok_or_else(|| invalid("the file would be larger than 2^64".to_owned()))?;
        Ok(Self { header, tensors, total })
    }

    /// Bytes of the whole file.
    pub fn total_bytes(&self) -> u64 {
        self.total
    }

    /// Bytes before the data section.
    pub fn header_bytes(&self) -> u64 {
        self.header.len() as u64
    }

    /// Tensors in file order.
    pub fn tensors(&self) -> &[TensorPlan] {
        &self.tensors
    }

    /// Writes the header; data follows through the returned writer, tensor by tensor.
    ///
    /// # Errors
    /// What `out` returns.
    pub fn start<'a, W: Write + ?Sized>(&'a self, out: &'a mut W) -> io::Result<DataWriter<'a, W>> {
        out.write_all(&self.header)?;
        Ok(DataWriter { plan: self, out, tensor: 0, done: 0 })
    }
}

/// Takes tensor data in file order and puts the padding between.
#[derive(Debug)]
pub struct DataWriter<'a, W: ?Sized> {
    plan: &'a FilePlan,
    out: &'a mut W,
    tensor: usize,
    done: u64,
}

impl<W: Write + ?Sized> DataWriter<'_, W> {
    /// Writes the next piece of the current tensor.
    ///
    /// # Errors
    /// `InvalidInput` when the piece reaches past the end of the tensor; what `out` returns.
    pub fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        let Some(tensor) = self.plan.tensors.get(self.tensor) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "data after the last tensor"));
        };
        if piece.len() as u64 > tensor.bytes - self.done {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("tensor '{}' takes {} bytes", tensor.name, tensor.bytes),
            ));
        }
        self.out.write_all(piece)?;
        self.done += piece.len() as u64;
        if self.done == tensor.bytes {
            let padding = tensor.bytes.next_multiple_of(ALIGNMENT) - tensor.bytes;
            self.out.write_all(&[0; ALIGNMENT as usize][..padding as usize])?;
            self.tensor += 1;
            self.done = 0;
        }
        Ok(())
    }

    /// Ends the file.
    ///
    /// # Errors
    /// `InvalidInput` when a tensor's data is missing; what `out` returns when flushed.
    pub fn finish(self) -> io::Result<()> {
        if let Some(tensor) = self.plan.tensors.get(self.tensor) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("tensor '{}' got {} of {} bytes", tensor.name, self.done, tensor.bytes),
            ));
        }
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_file_by_hand() {
        let metadata =
            vec![("a".to_owned(), Value::U32(7)), ("b".to_owned(), Value::StringArray(vec!["x".into(), "yz".into()]))];
        let tensors = vec![TensorPlan { name: "t".into(), dims: vec![3, 2], kind: 0, bytes: 24 }];
        let plan = FilePlan::new(&metadata, tensors).unwrap();
        let mut file = Vec::new();
        let mut data = plan.start(&mut file).unwrap();
        data.write(&[1; 20]).unwrap();
        assert!(data.write(&[2; 5]).is_err());
        data.write(&[2; 4]).unwrap();
        data.finish().unwrap();

        let mut expected: Vec<u8> = b"GGUF\x03\0\0\0".to_vec();
        expected.extend([1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend(b"\x01\0\0\0\0\0\0\0a\x04\0\0\0\x07\0\0\0");
        expected.extend(b"\x01\0\0\0\0\0\0\0b\x09\0\0\0\x08\0\0\0\x02\0\0\0\0\0\0\0");
        expected.extend(b"\x01\0\0\0\0\0\0\0x\x02\0\0\0\0\0\0\0yz");
        expected.extend(b"\x01\0\0\0\0\0\0\0t\x02\0\0\0");
        expected.extend(b"\x03\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(expected.len(), 126);
        expected.extend([0; 2]); // to 128
        expected.extend([1; 20]);
        expected.extend([2; 4]);
        expected.extend([0; 8]); // to 160
        assert_eq!(file, expected);
        assert_eq!(plan.total_bytes(), 160);
        assert_eq!(plan.header_bytes(), 128);
    }

    #[test]
    fn missing_and_surplus_data_are_refused() {
        let tensor = |dims: Vec<u64>, bytes| TensorPlan { name: "t".into(), dims, kind: 0, bytes };
        let plan = FilePlan::new(&[], vec![tensor(vec![2], 8)]).unwrap();
        let mut file = Vec::new();
        let data = plan.start(&mut file).unwrap();
        assert!(data.finish().is_err());
        let mut file = Vec::new();
        let mut data = plan.start(&mut file).unwrap();
        data.write(&[0; 8]).unwrap();
        assert!(data.write(&[0]).is_err());
        assert!(FilePlan::new(&[], vec![tensor(vec![], 8)]).is_err());
        assert!(FilePlan::new(&[], vec![tensor(vec![1; 5], 8)]).is_err());
        assert!(FilePlan::new(&[], vec![tensor(vec![1], u64::MAX)]).is_err());
    }
}
