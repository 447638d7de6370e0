//! Looking for infinities and not-a-numbers at memory speed.
//!
//! A float is not finite when its exponent bits are all ones, so the pass takes the largest
//! masked exponent of each block of a few KiB, which compilers turn into SIMD maxima; only a
//! block that holds one is looked at value by value.

use super::KvType;

/// Elements per block: large enough to amortise the test, small enough to stay in cache.
const BLOCK: usize = 4096;

/// The first value in `bytes` (elements of `kv_type`, in any order) that is not finite.
///
/// Returns the element's index and its bits; for quantized types, the index of the block's first
/// element and the bits of its scale or minimum (codes are always finite).
pub fn first_non_finite(kv_type: KvType, bytes: &[u8]) -> Option<(usize, u32)> {
    match kv_type {
        KvType::F16 => first_16(bytes, 0x7c00),
        KvType::Bf16 => first_16(bytes, 0x7f80),
        KvType::F32 => first_32(bytes),
        KvType::Q4_1 | KvType::Q5_1 => first_block(bytes, kv_type, 2),
        KvType::Q4_0 | KvType::Q5_0 | KvType::Q8_0 | KvType::Iq4Nl => first_block(bytes, kv_type, 1),
    }
}

fn first_32(bytes: &[u8]) -> Option<(usize, u32)> {
    const MASK: u32 = 0x7f80_0000;
    for (b, block) in bytes.chunks(BLOCK * 4).enumerate() {
        let words = block.as_chunks::<4>().0;
        let largest = words.iter().fold(0, |m, w| (u32::from_le_bytes(*w) & MASK).max(m));
        if largest == MASK {
            let at = words.iter().position(|w| u32::from_le_bytes(*w) & MASK == MASK)?;
            return Some((b * BLOCK + at, u32::from_le_bytes(words[at])));
        }
    }
    None
}

fn first_16(bytes: &[u8], mask: u16) -> Option<(usize, u32)> {
    for (b, block) in bytes.chunks(BLOCK * 2).enumerate() {
        let words = block.as_chunks::<2>().0;
        // The mask has no sign bit, so signed and unsigned order agree; SSE2 has only the signed
        // 16-bit maximum.
        let largest = words.iter().fold(0i16, |m, w| ((u16::from_le_bytes(*w) & mask) as i16).max(m));
        if largest as u16 == mask {
            let at = words.iter().position(|w| u16::from_le_bytes(*w) & mask == mask)?;
            return Some((b * BLOCK + at, u32::from(u16::from_le_bytes(words[at]))));
        }
    }
    None
}

/// Quantized blocks start with their scale and, where `scales` is 2, their minimum, both f16.
fn first_block(bytes: &[u8], kv_type: KvType, scales: usize) -> Option<(usize, u32)> {
    bytes.chunks_exact(kv_type.block_bytes() as usize).enumerate().find_map(|(i, block)| {
        block[..2 * scales]
            .as_chunks::<2>()
            .0
            .iter()
            .map(|h| u16::from_le_bytes(*h))
            .find(|h| h & 0x7c00 == 0x7c00)
            .map(|h| (i * kv_type.block_len() as usize, u32::from(h)))
    })
}
