//! Keys and values in another order and element type.

use super::values::{Stored, decode_row, stored_in_blob};
use super::{Cartridge, ConversionError, Place, RopeType};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use kv::transpose::{Order, rearrange};
use kv::{KvTensor, KvType, NonFinite, StateBlob};

/// What to do with a value that the target type does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// Refuse it.
    Exact,
    /// Round to the nearest, ties to even.
    Nearest,
}

/// For each channel of the target, the channel of the source, or `None` if they are the same.
///
/// The pair (i, i + r/2) of neox and the pair (2i, 2i + 1) of norm turn by the same angle, so the
/// two differ by this permutation of the rotated part only.
pub(super) fn pair_map(
    from: RopeType,
    to: RopeType,
    rope_dim: u32,
    head_dim: u32,
) -> Result<Option<Vec<usize>>, ConversionError> {
    if from == to {
        return Ok(None);
    }
    if rope_dim > head_dim || !rope_dim.is_multiple_of(2) {
        return Err(ConversionError::RopeDim { rope_dim, head_dim });
    }
    let half = rope_dim as usize / 2;
    let neox_of_norm = |c: usize| c / 2 + (c % 2) * half;
    let norm_of_neox = |c: usize| if c < half { 2 * c } else { 2 * (c - half) + 1 };
    let rotated: Vec<usize> = match (from, to) {
        (RopeType::Neox, RopeType::Norm) => (0..2 * half).map(neox_of_norm).collect(),
        (RopeType::Norm, RopeType::Neox) => (0..2 * half).map(norm_of_neox).collect(),
        _ => return Err(ConversionError::RopeType { from, to }),
    };
    Ok(Some(rotated.into_iter().chain(2 * half..head_dim as usize).collect()))
}

/// What a converted tensor is, for messages.
#[derive(Debug, Clone, Copy)]
struct Origin {
    layer: usize,
    tensor: KvTensor,
    first_pos: u32,
}

/// Buffers used for one tensor after the other: memory fresh from the system costs more to touch
/// for the first time than to fill.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    converted: Vec<u8>,
    arranged: Vec<u8>,
}

/// Where tensors come from.
#[derive(Debug, Clone, Copy)]
pub(super) enum Source<'a> {
    File(&'a Cartridge),
    State(&'a StateBlob<'a>),
}

/// Gives tensors in another type and order.
pub(super) struct Transcriber<'a> {
    pub(super) source: Source<'a>,
    /// Type and order of the keys.
    pub(super) keys: (KvType, Order),
    /// Type and order of the values.
    pub(super) values: (KvType, Order),
    pub(super) rounding: Rounding,
    pub(super) first_pos: u32,
    pub(super) scratch: Scratch,
}

impl Transcriber<'_> {
    /// A layer's tensor, with channels picked by `map`.
    pub(super) fn transcribe(
        &mut self,
        layer: usize,
        tensor: KvTensor,
        map: Option<&[usize]>,
    ) -> Result<&[u8], ConversionError> {
        let stored = match self.source {
            Source::File(file) => file.stored(layer, tensor),
            Source::State(state) => stored_in_blob(state, layer, tensor),
        };
        let (to, order) = match tensor {
            KvTensor::Keys => self.keys,
            KvTensor::Values => self.values,
        };
        let Scratch { converted, arranged } = &mut self.scratch;
        let elements: &[u8] = if stored.kv_type == to {
            stored.bytes
        } else {
            let origin = Origin { layer, tensor, first_pos: self.first_pos };
            convert_elements(&stored, to, self.rounding, origin, converted)?;
            converted
        };
        if order == stored.order && map.is_none() {
            return Ok(elements);
        }
        let (e, from) = (stored.extents, stored.order);
        match to.block_bytes() {
            2 if !to.is_quantized() => rearrange::<2>(elements, e, from, order, map, arranged),
            4 if !to.is_quantized() => rearrange::<4>(elements, e, from, order, map, arranged),
            _ => return Err(ConversionError::Quantized { tensor, from: stored.kv_type, to }),
        }
        Ok(arranged)
    }
}

fn convert_elements(
    stored: &Stored<'_>,
    to: KvType,
    rounding: Rounding,
    origin: Origin,
    out: &mut Vec<u8>,
) -> Result<(), ConversionError> {
    let from = stored.kv_type;
    if from.is_quantized() || to.is_quantized() {
        return Err(ConversionError::Quantized { tensor: origin.tensor, from, to });
    }
    const CHUNK: usize = 2048;
    let size = from.block_bytes() as usize;
    out.clear();
    out.reserve(stored.extents.len() * to.block_bytes() as usize);
    let (mut floats, mut back) = ([0.0f32; CHUNK], [0.0f32; CHUNK]);
    for (n, chunk) in stored.bytes.chunks(CHUNK * size).enumerate() {
        let len = chunk.len() / size;
        let (floats, back) = (&mut floats[..len], &mut back[..len]);
        decode_row(from, chunk, floats);
        match to {
            KvType::F16 => {
                let mut narrow = [f16::ZERO; CHUNK];
                narrow[..len].convert_from_f32_slice(floats);
                narrow[..len].convert_to_f32_slice(back);
                out.extend(narrow[..len].iter().flat_map(|y| y.to_le_bytes()));
            }
            KvType::Bf16 => {
                let mut narrow = [bf16::ZERO; CHUNK];
                narrow[..len].convert_from_f32_slice(floats);
                narrow[..len].convert_to_f32_slice(back);
                out.extend(narrow[..len].iter().flat_map(|y| y.to_le_bytes()));
            }
            _ => {
                back.copy_from_slice(floats);
                out.extend(floats.iter().flat_map(|y| y.to_le_bytes()));
            }
        }
        // A NaN differs from itself and what overflows comes back infinite, so one comparison
        // finds everything but an infinity that stays one.
        let kept = floats.iter().zip(&*back).fold(true, |all, (x, y)| all & (x == y) & x.is_finite());
        if !kept {
            check_elements(stored, to, rounding, origin, n * CHUNK, floats, back)?;
        }
    }
    Ok(())
}

/// Finds the first element of a chunk that must not be converted, if there is one.
fn check_elements(
    stored: &Stored<'_>,
    to: KvType,
    rounding: Rounding,
    origin: Origin,
    start: usize,
    floats: &[f32],
    back: &[f32],
) -> Result<(), ConversionError> {
    let from = stored.kv_type;
    for (i, (&value, &back)) in floats.iter().zip(back).enumerate() {
        if value == back && value.is_finite() {
            continue;
        }
        let (head, cell, channel) = stored.extents.place(stored.order, start + i);
        let position = origin.first_pos as i32 + cell as i32;
        let place = Place { layer: origin.layer, tensor: origin.tensor, head, channel, position };
        if !value.is_finite() {
            return Err(ConversionError::NonFinite(NonFinite {
                layer: place.layer,
                tensor: place.tensor,
                head: head as u32,
                channel: channel as u32,
                position,
                bits: value.to_bits(),
            }));
        }
        if back.is_infinite() {
            return Err(ConversionError::OutOfRange { place, value, from, to });
        }
        if rounding == Rounding::Exact {
            return Err(ConversionError::Inexact { place, value, from, to });
        }
    }
    Ok(())
}
