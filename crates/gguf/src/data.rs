//! Reading tensor bytes.

use std::fs::File;
use std::io;

use super::error::shown;
use super::{GgmlType, GgufError, TensorInfo};

/// Bytes read at a time when data is streamed.
pub(super) const CHUNK: usize = 4 << 20;

/// Something that holds the bytes of a GGUF file.
pub trait DataSource {
    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// The system's, and `UnexpectedEof` past the end.
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
}

impl DataSource for &[u8] {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let bytes = usize::try_from(offset)
            .ok()
            .and_then(|start| self.get(start..start.checked_add(buf.len())?))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(bytes);
        Ok(())
    }
}

impl DataSource for Vec<u8> {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.as_slice().read_exact_at(offset, buf)
    }
}

#[cfg(unix)]
impl DataSource for File {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self, buf, offset)
    }
}

#[cfg(windows)]
impl DataSource for File {
    fn read_exact_at(&self, mut offset: u64, mut buf: &mut [u8]) -> io::Result<()> {
        while !buf.is_empty() {
            let n = std::os::windows::fs::FileExt::seek_read(self, buf, offset)?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            buf = &mut buf[n..];
            offset += n as u64;
        }
        Ok(())
    }
}

/// Reads `len` bytes from `offset` in chunks.
pub(super) fn stream(
    source: &dyn DataSource,
    offset: u64,
    len: u64,
    buffer: &mut Vec<u8>,
    mut each: impl FnMut(&[u8]) -> Result<(), GgufError>,
) -> Result<(), GgufError> {
    let mut done = 0;
    while done < len {
        let n = (len - done).min(CHUNK as u64) as usize;
        if buffer.len() < n {
            buffer.resize(n, 0);
        }
        let chunk = &mut buffer[..n];
        read(source, offset + done, chunk)?;
        each(chunk)?;
        done += n as u64;
    }
    Ok(())
}

pub(super) fn read(source: &dyn DataSource, offset: u64, buf: &mut [u8]) -> Result<(), GgufError> {
    let len = buf.len() as u64;
    source.read_exact_at(offset, buf).map_err(|source| GgufError::Read { offset, len, source })
}

/// All bytes of a tensor.
pub(super) fn tensor_bytes(source: &dyn DataSource, tensor: &TensorInfo) -> Result<Vec<u8>, GgufError> {
    let mut bytes = Vec::new();
    let mut buffer = Vec::new();
    stream(source, tensor.offset(), tensor.size(), &mut buffer, |chunk| {
        bytes.extend_from_slice(chunk);
        Ok(())
    })?;
    Ok(bytes)
}

/// Whether two tensors of the same type and shape hold the same bytes.
pub(super) fn same_bytes(source: &dyn DataSource, a: &TensorInfo, b: &TensorInfo) -> Result<bool, GgufError> {
    if a.ggml_type() != b.ggml_type() || a.dims4() != b.dims4() {
        return Ok(false);
    }
    let (mut left, mut right) = (Vec::new(), Vec::new());
    let mut at = b.offset();
    let mut same = true;
    stream(source, a.offset(), a.size(), &mut left, |chunk| {
        if same {
            right.resize(chunk.len(), 0);
            read(source, at, &mut right)?;
            same = right == chunk;
            at += chunk.len() as u64;
        }
        Ok(())
    })?;
    Ok(same)
}

/// What the packed weights of an I2_S tensor hold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TernaryData {
    /// How many weights are −1, 0 and 1.
    pub counts: [u64; 3],
    /// The tensor's one scale.
    pub scale: f32,
}

/// Looks at every value of a tensor whose type allows it: f32, f16, bf16 must be finite, I2_S
/// must have no fourth code and a finite scale that is not negative. Other types pass unseen.
pub(super) fn check_values(source: &dyn DataSource, tensor: &TensorInfo) -> Result<Option<TernaryData>, GgufError> {
    match tensor.ggml_type() {
        GgmlType::I2_S => return check_ternary(source, tensor).map(Some),
        GgmlType::F32 => {
            finite::<4>(source, tensor, |b| f32::from_le_bytes(b).is_finite())?;
        }
        // A float is infinite or NaN when all its exponent bits are set.
        GgmlType::F16 => finite::<2>(source, tensor, |b| u16::from_le_bytes(b) & 0x7c00 != 0x7c00)?,
        GgmlType::BF16 => finite::<2>(source, tensor, |b| u16::from_le_bytes(b) & 0x7f80 != 0x7f80)?,
        _ => {}
    }
    Ok(None)
}

fn finite<const N: usize>(
    source: &dyn DataSource,
    tensor: &TensorInfo,
    is_finite: impl Fn([u8; N]) -> bool,
) -> Result<(), GgufError> {
    let mut buffer = Vec::new();
    let mut base = 0u64;
    stream(source, tensor.offset(), tensor.size(), &mut buffer, |chunk| {
        // CHUNK and every tensor's size are multiples of the element size.
        let (elements, _) = chunk.as_chunks::<N>();
        if let Some(index) = elements.iter().position(|&b| !is_finite(b)) {
            let index = base + index as u64;
            return Err(GgufError::TensorData {
                tensor: shown(tensor.name().as_bytes()),
                problem: format!(
                    "element {} of row {} is not finite",
                    index % tensor.row_len(),
                    index / tensor.row_len()
                ),
            });
        }
        base += elements.len() as u64;
        Ok(())
    })
}

fn check_ternary(source: &dyn DataSource, tensor: &TensorInfo) -> Result<TernaryData, GgufError> {
    let packed = tensor.elements() / 4;
    let mut histogram = [0u64; 256];
    let mut buffer = Vec::new();
    stream(source, tensor.offset(), packed, &mut buffer, |chunk| {
        for &byte in chunk {
            histogram[byte as usize] += 1;
        }
        Ok(())
    })?;
    let mut codes = [0u64; 4];
    for (byte, count) in histogram.iter().enumerate() {
        for pair in 0..4 {
            codes[(byte >> (2 * pair)) & 3] += count;
        }
    }
    let mut scale = [0u8; 4];
    read(source, tensor.offset() + packed, &mut scale)?;
    let scale = f32::from_le_bytes(scale);
    let bad = |problem: String| GgufError::TensorData { tensor: shown(tensor.name().as_bytes()), problem };
    if codes[3] != 0 {
        return Err(bad(format!(
            "{} of {} weights have the code 3, which is no ternary value: the data is damaged or \
             packed for other kernels",
            codes[3],
            tensor.elements()
        )));
    }
    if !scale.is_finite() || scale < 0.0 {
        return Err(bad(format!("the scale is {scale}")));
    }
    Ok(TernaryData { counts: [codes[0], codes[1], codes[2]], scale })
}
