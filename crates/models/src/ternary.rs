//! Ternary weights between the three formats that hold them: I2_S, TQ2_0 and TQ1_0.
//!
//! All three hold exactly the codes w + 1. They differ in how codes are packed and in where the scale is: I2_S has
//! one f32 scale a tensor, the other two an f16 scale every 256 weights (`block_tq2_0`, `block_tq1_0` in
//! `ggml-common.h`; `quantize_row_tq2_0_ref`, `quantize_row_tq1_0_ref` in `ggml-quants.c`).

use half::f16;

use reference::i2s::{self, Packing};

/// Weights in a block of TQ1_0 or TQ2_0, and the divisor of their row lengths.
pub const TQ_BLOCK: usize = 256;

/// Bytes of a TQ2_0 block: 64 of codes and the scale.
pub const TQ2_BYTES: usize = 66;

/// Bytes of a TQ1_0 block: 48 with five codes each, 4 with four, and the scale.
pub const TQ1_BYTES: usize = 54;

/// 3^5 combinations in a byte.
const FIVE_TRITS: u16 = 243;

/// Packs codes (0, 1, 2; a multiple of 128) as I2_S; the scale follows elsewhere.
///
/// # Panics
/// When `codes` is no multiple of 128, or `out` not a quarter as long.
pub fn pack_i2s(codes: &[u8], packing: Packing, out: &mut [u8]) {
    assert!(codes.len().is_multiple_of(i2s::BLOCK) && out.len() * 4 == codes.len(), "I2_S buffer sizes");
    let bytes = packing.block_bytes();
    for (codes, out) in codes.chunks_exact(4 * bytes).zip(out.chunks_exact_mut(bytes)) {
        for (j, out) in out.iter_mut().enumerate() {
            *out = codes[j] << 6 | codes[j + bytes] << 4 | codes[j + 2 * bytes] << 2 | codes[j + 3 * bytes];
        }
    }
}

/// Unpacks I2_S codes; the code 3 comes through as 3.
///
/// # Panics
/// As [`pack_i2s`].
pub fn unpack_i2s(bytes: &[u8], packing: Packing, codes: &mut [u8]) {
    assert!(codes.len().is_multiple_of(i2s::BLOCK) && bytes.len() * 4 == codes.len(), "I2_S buffer sizes");
    let n = packing.block_bytes();
    for (bytes, codes) in bytes.chunks_exact(n).zip(codes.chunks_exact_mut(4 * n)) {
        for (j, &byte) in bytes.iter().enumerate() {
            codes[j] = byte >> 6;
            codes[j + n] = byte >> 4 & 3;
            codes[j + 2 * n] = byte >> 2 & 3;
            codes[j + 3 * n] = byte & 3;
        }
    }
}

/// Packs one TQ2_0 block.
pub fn pack_tq2(codes: &[u8; TQ_BLOCK], scale: f16) -> [u8; TQ2_BYTES] {
    let mut out = [0; TQ2_BYTES];
    for (codes, out) in codes.chunks_exact(128).zip(out.chunks_exact_mut(32)) {
        for (m, out) in out.iter_mut().enumerate() {
            *out = codes[m] | codes[m + 32] << 2 | codes[m + 64] << 4 | codes[m + 96] << 6;
        }
    }
    out[64..].copy_from_slice(&scale.to_le_bytes());
    out
}

/// Unpacks one TQ2_0 block into codes (3 comes through) and its scale.
pub fn unpack_tq2(block: &[u8; TQ2_BYTES]) -> ([u8; TQ_BLOCK], f16) {
    let mut codes = [0; TQ_BLOCK];
    for (bytes, codes) in block[..64].chunks_exact(32).zip(codes.chunks_exact_mut(128)) {
        for (m, byte) in bytes.iter().enumerate() {
            for n in 0..4 {
                codes[m + 32 * n] = byte >> (2 * n) & 3;
            }
        }
    }
    (codes, f16::from_le_bytes([block[64], block[65]]))
}

/// Where the codes of byte `byte` of a TQ1_0 block lie: first weight, distance, how many.
const fn tq1_codes(byte: usize) -> (usize, usize, usize) {
    match byte {
        0..32 => (byte, 32, 5),
        32..48 => (160 + byte - 32, 16, 5),
        _ => (240 + byte - 48, 4, 4),
    }
}

/// Packs one TQ1_0 block.
pub fn pack_tq1(codes: &[u8; TQ_BLOCK], scale: f16) -> [u8; TQ1_BYTES] {
    let mut out = [0; TQ1_BYTES];
    for (byte, out) in out[..52].iter_mut().enumerate() {
        let (first, step, count) = tq1_codes(byte);
        let mut number = 0u16;
        for n in 0..count {
            number = 3 * number + u16::from(codes[first + step * n]);
        }
        // Four codes stand in the upper places of five.
        if count == 4 {
            number *= 3;
        }
        // The number as a fraction of 3^5, rounded up to 256ths: multiplying by three takes codes off the top.
        *out = (number * 256).div_ceil(FIVE_TRITS) as u8;
    }
    out[52..].copy_from_slice(&scale.to_le_bytes());
    out
}

/// Unpacks one TQ1_0 block into codes and its scale (`dequantize_row_tq1_0`: each code is the top of the byte
/// times 3^n).
pub fn unpack_tq1(block: &[u8; TQ1_BYTES]) -> ([u8; TQ_BLOCK], f16) {
    let mut codes = [0; TQ_BLOCK];
    for (byte, &value) in block[..52].iter().enumerate() {
        let (first, step, count) = tq1_codes(byte);
        let mut rest = value;
        for n in 0..count {
            codes[first + step * n] = ((u16::from(rest) * 3) >> 8) as u8;
            rest = rest.wrapping_mul(3);
        }
    }
    (codes, f16::from_le_bytes([block[52], block[53]]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn codes_of(seed: u32, len: usize) -> Vec<u8> {
        let mut x = u64::from(seed) + 1;
        (0..len)
            .map(|_| {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((x >> 33) % 3) as u8
            })
            .collect()
    }

    #[test]
    fn i2s_as_the_reference_packs_it() {
        for packing in Packing::ALL {
            let codes = codes_of(1, 4 * 256);
            let weights: Vec<i8> = codes.iter().map(|&c| c as i8 - 1).collect();
            let expected = i2s::pack(&weights, 4, 256, 1.0, packing).unwrap();
            let mut packed = vec![0; 256];
            pack_i2s(&codes, packing, &mut packed);
            assert_eq!(packed, expected[..256]);
            let mut back = vec![9; 1024];
            unpack_i2s(&packed, packing, &mut back);
            assert_eq!(back, codes);
        }
    }

    #[test]
    fn blocks_as_ggml_makes_them() {
        let codes: [u8; 256] = codes_of(2, 256).try_into().unwrap();
        let scale = f16::from_f32(0.5);
        let floats: Vec<f32> = codes.iter().map(|&c| (f32::from(c) - 1.0) * 0.5).collect();
        let rows = |ty| bitnet_rs::quantize::rows(ty, &floats, 256).unwrap();
        assert_eq!(pack_tq2(&codes, scale).to_vec(), rows(gguf::GgmlType::TQ2_0));
        assert_eq!(pack_tq1(&codes, scale).to_vec(), rows(gguf::GgmlType::TQ1_0));
        let back = |ty, bytes: &[u8]| bitnet_rs::quantize::floats(ty, bytes).unwrap();
        assert_eq!(back(gguf::GgmlType::TQ2_0, &pack_tq2(&codes, scale)), floats);
        assert_eq!(back(gguf::GgmlType::TQ1_0, &pack_tq1(&codes, scale)), floats);
    }

    proptest! {
        #[test]
        fn every_block_comes_back(codes in proptest::collection::vec(0u8..3, 256), bits in any::<u16>()) {
            let codes: [u8; 256] = codes.try_into().unwrap();
            let scale = f16::from_bits(bits);
            let (two, s2) = unpack_tq2(&pack_tq2(&codes, scale));
            let (one, s1) = unpack_tq1(&pack_tq1(&codes, scale));
            prop_assert_eq!(two, codes);
            prop_assert_eq!(one, codes);
            prop_assert_eq!((s1.to_bits(), s2.to_bits()), (bits, bits));
        }
    }
}
