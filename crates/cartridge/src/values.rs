//! Keys and values as numbers, whatever form they are stored in.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use kv::transpose::{Extents, Order};
use kv::{KvTensor, KvType, StateBlob};

/// A stored tensor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stored<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) kv_type: KvType,
    pub(super) order: Order,
    pub(super) extents: Extents,
}

/// One layer's keys or values as f32, `[head][cell][channel]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Values {
    /// KV heads.
    pub heads: usize,
    /// Cells (positions).
    pub cells: usize,
    /// Elements of a head.
    pub dim: usize,
    /// The numbers, exact: every KV type's values are representable in f32 (q4_1 and q5_1, a
    /// product and a sum, are rounded once as the engine does).
    pub data: Vec<f32>,
}

impl Values {
    /// The `dim` elements of a head at a cell.
    ///
    /// # Panics
    /// If there is no such head or cell.
    pub fn row(&self, head: usize, cell: usize) -> &[f32] {
        let at = (head * self.cells + cell) * self.dim;
        &self.data[at..at + self.dim]
    }
}

/// Something that holds the keys and values of a prefix.
pub trait KvSource {
    /// Number of layers.
    fn n_layer(&self) -> usize;
    /// Positions of the cells.
    fn positions(&self) -> Vec<i32>;
    /// Stored element type of keys or values.
    fn kv_type(&self, tensor: KvTensor) -> KvType;
    /// One layer's keys or values. One layer at a time, so that comparing two prefixes does not
    /// need them whole as f32.
    ///
    /// # Panics
    /// If there is no such layer.
    fn values(&self, layer: usize, tensor: KvTensor) -> Values;
}

impl KvSource for StateBlob<'_> {
    fn n_layer(&self) -> usize {
        self.geometry().n_layer()
    }

    fn positions(&self) -> Vec<i32> {
        StateBlob::positions(self).collect()
    }

    fn kv_type(&self, tensor: KvTensor) -> KvType {
        match tensor {
            KvTensor::Keys => self.geometry().type_k(),
            KvTensor::Values => self.geometry().type_v(),
        }
    }

    fn values(&self, layer: usize, tensor: KvTensor) -> Values {
        stored_in_blob(self, layer, tensor).decode()
    }
}

pub(super) fn stored_in_blob<'a>(blob: &StateBlob<'a>, layer: usize, tensor: KvTensor) -> Stored<'a> {
    let geometry = blob.geometry();
    let l = blob.layer(layer);
    let (kv_type, order, dim) = match tensor {
        KvTensor::Keys => (geometry.type_k(), Order::CellMajor, l.head_dim_k),
        KvTensor::Values => (geometry.type_v(), Order::of_values(geometry.value_layout()), l.head_dim_v),
    };
    Stored {
        bytes: blob.payload(layer, tensor),
        kv_type,
        order,
        extents: Extents { heads: l.n_head_kv as usize, cells: blob.cells() as usize, dim: dim as usize },
    }
}

impl Stored<'_> {
    pub(super) fn decode(&self) -> Values {
        let e = self.extents;
        let mut data = vec![0.0; e.len()];
        if self.order == Order::ChannelMajor {
            // Transposed values are never quantized; each channel is a row of cells.
            let mut cells = vec![0.0; e.cells];
            let row_bytes = self.bytes.len() / (e.heads * e.dim);
            for (i, row) in self.bytes.chunks_exact(row_bytes).enumerate() {
                decode_row(self.kv_type, row, &mut cells);
                let (head, _, channel) = e.place(self.order, i * e.cells);
                for (cell, x) in cells.iter().enumerate() {
                    data[e.index(Order::HeadMajor, head, cell, channel)] = *x;
                }
            }
        } else {
            let row_bytes = self.bytes.len() / (e.heads * e.cells);
            for (i, row) in self.bytes.chunks_exact(row_bytes).enumerate() {
                let (head, cell, _) = e.place(self.order, i * e.dim);
                let at = e.index(Order::HeadMajor, head, cell, 0);
                decode_row(self.kv_type, row, &mut data[at..at + e.dim]);
            }
        }
        Values { heads: e.heads, cells: e.cells, dim: e.dim, data }
    }
}

/// Codes of iq4_nl.
const IQ4_NL: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Elements converted at a time.
const PIECE: usize = 256;

/// Decodes whole blocks into as many floats.
pub(super) fn decode_row(kv_type: KvType, row: &[u8], out: &mut [f32]) {
    let half = |b: &[u8]| f16::from_le_bytes([b[0], b[1]]).to_f32();
    match kv_type {
        KvType::F32 => {
            for (o, b) in out.iter_mut().zip(row.as_chunks::<4>().0) {
                *o = f32::from_le_bytes(*b);
            }
        }
        // In pieces, through the batch conversions that use the CPU's instructions for it.
        KvType::F16 => {
            let mut piece = [f16::ZERO; PIECE];
            for (o, b) in out.chunks_mut(PIECE).zip(row.chunks(2 * PIECE)) {
                let piece = &mut piece[..o.len()];
                piece.iter_mut().zip(b.as_chunks::<2>().0).for_each(|(p, b)| *p = f16::from_le_bytes(*b));
                piece.convert_to_f32_slice(o);
            }
        }
        KvType::Bf16 => {
            let mut piece = [bf16::ZERO; PIECE];
            for (o, b) in out.chunks_mut(PIECE).zip(row.chunks(2 * PIECE)) {
                let piece = &mut piece[..o.len()];
                piece.iter_mut().zip(b.as_chunks::<2>().0).for_each(|(p, b)| *p = bf16::from_le_bytes(*b));
                piece.convert_to_f32_slice(o);
            }
        }
        _ => {
            let blocks = row.chunks_exact(kv_type.block_bytes() as usize);
            for (o, b) in out.as_chunks_mut::<32>().0.iter_mut().zip(blocks) {
                let d = half(b);
                match kv_type {
                    KvType::Q8_0 => {
                        for (o, q) in o.iter_mut().zip(&b[2..]) {
                            *o = f32::from(*q as i8) * d;
                        }
                    }
                    KvType::Q4_0 => nibbles(&b[2..], o, |_, q| (f32::from(q) - 8.0) * d),
                    KvType::Iq4Nl => nibbles(&b[2..], o, |_, q| f32::from(IQ4_NL[usize::from(q)]) * d),
                    KvType::Q4_1 => {
                        let m = half(&b[2..]);
                        nibbles(&b[4..], o, |_, q| f32::from(q) * d + m);
                    }
                    KvType::Q5_0 => {
                        let high = u32::from_le_bytes([b[2], b[3], b[4], b[5]]);
                        nibbles(&b[6..], o, |j, q| (f32::from(q | fifth(high, j)) - 16.0) * d);
                    }
                    KvType::Q5_1 => {
                        let m = half(&b[2..]);
                        let high = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
                        nibbles(&b[8..], o, |j, q| f32::from(q | fifth(high, j)) * d + m);
                    }
                    KvType::F32 | KvType::F16 | KvType::Bf16 => {} // above
                }
            }
        }
    }
}

/// The fifth bit of element `j`, in place.
fn fifth(high: u32, j: usize) -> u8 {
    ((high >> j & 1) as u8) << 4
}

/// ggml puts elements 0…15 of a block into the low halves of its 16 bytes, 16…31 into the high.
fn nibbles(codes: &[u8], out: &mut [f32; 32], value: impl Fn(usize, u8) -> f32) {
    for (j, &c) in codes.iter().enumerate().take(16) {
        out[j] = value(j, c & 0xf);
        out[j + 16] = value(j + 16, c >> 4);
    }
}
