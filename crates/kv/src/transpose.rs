//! The orders in which keys and values lie in memory, and every way from one to another.
//!
//! The engine keeps keys, and under flash attention values, cell by cell; without flash attention it keeps values
//! transposed, channel by channel (`llama_kv_cache_init`, `v_trans`). Cartridges for people are head-major.

use super::{KvTensor, ValueLayout};

/// Order of a stored tensor's elements, slowest index first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// `[head][cell][channel]`.
    HeadMajor,
    /// `[cell][head][channel]`.
    CellMajor,
    /// `[head][channel][cell]`.
    ChannelMajor,
}

impl Order {
    /// The order of a blob's keys or values under a value layout.
    pub fn in_blob(tensor: KvTensor, layout: ValueLayout) -> Order {
        match tensor {
            KvTensor::Keys => Order::CellMajor,
            KvTensor::Values => Order::of_values(layout),
        }
    }

    /// The order of a blob's values.
    pub fn of_values(layout: ValueLayout) -> Order {
        match layout {
            ValueLayout::Transposed => Order::ChannelMajor,
            ValueLayout::Rows => Order::CellMajor,
        }
    }
}

/// Extents of a layer's keys or values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extents {
    /// KV heads.
    pub heads: usize,
    /// Cells (positions).
    pub cells: usize,
    /// Elements of a head.
    pub dim: usize,
}

impl Extents {
    /// Number of elements.
    #[expect(clippy::len_without_is_empty, reason = "a layer is never empty")]
    pub fn len(self) -> usize {
        self.heads * self.cells * self.dim
    }

    /// Head, cell and channel of an element's index.
    pub fn place(self, order: Order, index: usize) -> (usize, usize, usize) {
        let Extents { heads, cells, dim } = self;
        match order {
            Order::HeadMajor => (index / (cells * dim), index / dim % cells, index % dim),
            Order::CellMajor => (index / dim % heads, index / (heads * dim), index % dim),
            Order::ChannelMajor => (index / (cells * dim), index % cells, index / cells % dim),
        }
    }

    /// Index of an element.
    pub fn index(self, order: Order, head: usize, cell: usize, channel: usize) -> usize {
        let Extents { heads, cells, dim } = self;
        match order {
            Order::HeadMajor => (head * cells + cell) * dim + channel,
            Order::CellMajor => (cell * heads + head) * dim + channel,
            Order::ChannelMajor => (head * dim + channel) * cells + cell,
        }
    }
}

/// Elements of `N` bytes in another order; `map` gives the source's channel for each of the target's.
///
/// # Panics
/// If `src` does not hold `e.len()` elements.
pub fn rearrange<const N: usize>(
    src: &[u8],
    e: Extents,
    from: Order,
    to: Order,
    map: Option<&[usize]>,
    out: &mut Vec<u8>,
) {
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

/// Appends the elements of `cells`, in that order, from a payload in one of a blob's orders.
///
/// `block` is the size in bytes of the type's blocks, which is an element's where cells stand beside each other.
///
/// # Panics
/// If the payload is not a whole number of cells, or there is no such cell.
pub(super) fn pick_cells(payload: &[u8], stored: Order, block: usize, cells: &[usize], out: &mut Vec<u8>) {
    if stored == Order::ChannelMajor {
        for channel in payload.chunks_exact(block * cells.len()) {
            cells.iter().for_each(|&cell| out.extend_from_slice(&channel[cell * block..(cell + 1) * block]));
        }
    } else {
        let row = payload.len() / cells.len();
        cells.iter().for_each(|&cell| out.extend_from_slice(&payload[cell * row..(cell + 1) * row]));
    }
}
