//! Between layouts and element types.

use super::file::blob_error;
use super::values::{Extents, Order, Stored, decode_row, stored_in_blob};
use super::write::{Payloads, Plan, write};
use super::{Cartridge, CartridgeError, Layout, Overwrite, RopeType};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use kv::{BlobLayout, BlobWriter, KvTensor, KvType, NonFinite, SequenceState, StateBlob, StateGeometry, ValueLayout};
use std::fmt;
use std::path::Path;

/// What to do with a value that the target type does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// Refuse it.
    Exact,
    /// Round to the nearest, ties to even.
    Nearest,
}

/// Where a value stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Layer.
    pub layer: usize,
    /// Keys or values.
    pub tensor: KvTensor,
    /// KV head.
    pub head: usize,
    /// Element within the head.
    pub channel: usize,
    /// Position.
    pub position: i32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { layer, tensor, head, channel, position } = self;
        write!(f, "layer {layer}, {tensor} of head {head}, position {position}, channel {channel}")
    }
}

/// Why values cannot be converted.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConversionError {
    /// A value that would change.
    #[error(
        "{place}: {value:e} ({from}) has no exact {to} form; allow rounding explicitly, or use a context with {from} keys and values"
    )]
    Inexact {
        /// Where.
        place: Place,
        /// The value.
        value: f32,
        /// Its type.
        from: KvType,
        /// Type asked for.
        to: KvType,
    },
    /// A finite value past the range of the target.
    #[error("{place}: {value:e} ({from}) is past the range of {to}")]
    OutOfRange {
        /// Where.
        place: Place,
        /// The value.
        value: f32,
        /// Its type.
        from: KvType,
        /// Type asked for.
        to: KvType,
    },
    /// An infinite or not-a-number value.
    #[error(transparent)]
    NonFinite(NonFinite),
    /// From or to blocks of codes.
    #[error(
        "{tensor} of type {from} cannot become {to} exactly: quantized types are only ever stored and mounted as they are"
    )]
    Quantized {
        /// Keys or values.
        tensor: KvTensor,
        /// Type of the file.
        from: KvType,
        /// Type asked for.
        to: KvType,
    },
    /// RoPE types that are not a permutation of one another.
    #[error("rope_type {from} cannot become {to}")]
    RopeType {
        /// Type of the file.
        from: RopeType,
        /// Type asked for.
        to: RopeType,
    },
    /// A rotated part that is no even number of elements of the head.
    #[error("rope_dim is {rope_dim}; it must be even and at most the head size of {head_dim}")]
    RopeDim {
        /// Rotated elements.
        rope_dim: u32,
        /// Elements of a key head.
        head_dim: u32,
    },
}

/// Where a conversion goes.
#[derive(Debug, Clone, PartialEq)]
pub enum ConvertTo {
    /// Head-major, in these types.
    HeadMajor {
        /// Type of the keys: f16, bf16 or f32.
        type_k: KvType,
        /// Type of the values.
        type_v: KvType,
    },
    /// Native, for a context of these settings.
    Native {
        /// Type of the keys.
        type_k: KvType,
        /// Type of the values.
        type_v: KvType,
        /// From the context's flash-attention setting.
        value_layout: ValueLayout,
        /// Commit of the engine whose blob layout is written.
        engine: String,
    },
}

/// Writes `source` in another layout or other types to `path`.
///
/// Streams layer by layer; metadata are carried over. The RoPE type stays as it is.
///
/// # Errors
/// [`CartridgeError::Conversion`] where a value would change and `rounding` does not allow it,
/// [`CartridgeError::Geometry`] for settings no context has, and the errors of writing.
pub fn convert(
    source: &Cartridge,
    path: impl AsRef<Path>,
    to: &ConvertTo,
    rounding: Rounding,
    overwrite: Overwrite,
) -> Result<(), CartridgeError> {
    let fields = source.fields();
    let (layout, type_k, type_v, value_layout) = match to {
        ConvertTo::HeadMajor { type_k, type_v } => (Layout::HeadMajor, *type_k, *type_v, ValueLayout::Rows),
        ConvertTo::Native { type_k, type_v, value_layout, .. } => (Layout::Native, *type_k, *type_v, *value_layout),
    };
    for (tensor, from, to) in [(KvTensor::Keys, fields.type_k, type_k), (KvTensor::Values, fields.type_v, type_v)] {
        let quantized = from.is_quantized() || to.is_quantized();
        if quantized && (from != to || layout == Layout::HeadMajor) {
            return Err(ConversionError::Quantized { tensor, from, to }.into());
        }
    }
    let geometry = StateGeometry::new(
        source.layers().to_vec(),
        type_k,
        type_v,
        value_layout,
        fields.n_tokens,
        source.next_position(),
    )?;
    let mut metadata: Vec<(String, String)> = source
        .metadata()
        .iter()
        .filter(|(k, _)| !matches!(k.as_str(), "layout" | "type_k" | "type_v" | "v_trans" | "payload_hash"))
        .cloned()
        .collect();
    let mut set = |key: &str, value: String| {
        metadata.retain(|(k, _)| k != key);
        metadata.push((key.to_owned(), value));
    };
    set("layout", layout.to_string());
    set("type_k", type_k.to_string());
    set("type_v", type_v.to_string());
    if let ConvertTo::Native { engine, .. } = to {
        set("v_trans", value_layout.v_trans().to_string());
        set("engine", engine.clone());
    }
    if rounding == Rounding::Nearest && (fields.type_k, fields.type_v) != (type_k, type_v) {
        set("rounded_from", format!("{}/{}", fields.type_k, fields.type_v));
    }
    let tokens: Vec<i32> = source.tokens().collect();
    let plan = Plan { metadata, layout, geometry, tokens, first_pos: fields.first_pos };
    let order = |tensor| match (layout, tensor) {
        (Layout::HeadMajor, _) => Order::HeadMajor,
        (Layout::Native, KvTensor::Keys) => Order::CellMajor,
        (Layout::Native, KvTensor::Values) => Order::of_values(value_layout),
    };
    let mut payloads = Transcriber {
        source: Source::File(source),
        keys: (type_k, order(KvTensor::Keys)),
        values: (type_v, order(KvTensor::Values)),
        rounding,
        first_pos: fields.first_pos,
        scratch: Scratch::default(),
    };
    write(path.as_ref(), overwrite, &plan, &mut payloads)
}

/// A head-major cartridge as a state of a context.
pub(super) fn to_state(
    source: &Cartridge,
    geometry: &StateGeometry,
    rope_type: RopeType,
    rounding: Rounding,
) -> Result<SequenceState, CartridgeError> {
    let fields = source.fields();
    for (tensor, from, to) in
        [(KvTensor::Keys, fields.type_k, geometry.type_k()), (KvTensor::Values, fields.type_v, geometry.type_v())]
    {
        if to.is_quantized() {
            return Err(ConversionError::Quantized { tensor, from, to }.into());
        }
    }
    let layout = BlobLayout::new(geometry, fields.n_tokens)?;
    let positions = super::KvSource::positions(source);
    let mut writer = BlobWriter::new(Vec::with_capacity(layout.len()), geometry, &positions).map_err(blob_error)?;
    let mut payloads = Transcriber {
        source: Source::File(source),
        keys: (geometry.type_k(), Order::CellMajor),
        values: (geometry.type_v(), Order::of_values(geometry.value_layout())),
        rounding,
        first_pos: fields.first_pos,
        scratch: Scratch::default(),
    };
    for tensor in [KvTensor::Keys, KvTensor::Values] {
        for layer in 0..source.layers().len() {
            let head_dim = source.layers()[layer].head_dim_k;
            let map = match tensor {
                KvTensor::Keys => pair_map(fields.rope_type, rope_type, fields.rope_dim.unwrap_or(head_dim), head_dim)?,
                KvTensor::Values => None,
            };
            let payload = payloads.transcribe(layer, tensor, map.as_deref())?;
            writer.payload(payload).map_err(blob_error)?;
        }
    }
    let bytes = writer.finish().map_err(blob_error)?;
    Ok(SequenceState::parse(bytes, geometry)?)
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

impl Payloads for Transcriber<'_> {
    fn payload(&mut self, layer: usize, tensor: KvTensor) -> Result<&[u8], CartridgeError> {
        Ok(self.transcribe(layer, tensor, None)?)
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

/// Elements of `N` bytes in another order.
fn rearrange<const N: usize>(src: &[u8], e: Extents, from: Order, to: Order, map: Option<&[usize]>, out: &mut Vec<u8>) {
    /// Cells per tile: a tile's rows stay in the first-level cache while it is turned.
    const TILE: usize = 64;
    out.resize(src.len(), 0);
    let src = src.as_chunks::<N>().0;
    let out = out.as_chunks_mut::<N>().0;
    let rows = from != Order::ChannelMajor && to != Order::ChannelMajor;
    for head in 0..e.heads {
        if rows {
            for cell in 0..e.cells {
                let (s, t) = (e.index(from, head, cell, 0), e.index(to, head, cell, 0));
                let (source, target) = (&src[s..s + e.dim], &mut out[t..t + e.dim]);
                match map {
                    None => target.copy_from_slice(source),
                    Some(map) => target.iter_mut().zip(map).for_each(|(t, &c)| *t = source[c]),
                }
            }
            continue;
        }
        let step = |order| if order == Order::ChannelMajor { 1 } else { e.index(order, 0, 1, 0) };
        let (source_step, target_step) = (step(from), step(to));
        for tile in (0..e.cells).step_by(TILE) {
            let cells = TILE.min(e.cells - tile);
            for channel in 0..e.dim {
                let source = &src[e.index(from, head, tile, map.map_or(channel, |m| m[channel]))..];
                let target = &mut out[e.index(to, head, tile, channel)..];
                let pairs = target.iter_mut().step_by(target_step).zip(source.iter().step_by(source_step));
                pairs.take(cells).for_each(|(t, s)| *t = *s);
            }
        }
    }
}
