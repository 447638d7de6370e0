//! Blobs are encoded here by an encoder of the tests' own, which follows the engine's
//! `llama_data_write` field by field and shares nothing with the code under test.

use super::*;
use proptest::prelude::*;

/// What the engine would hold: one element is `unit` bytes.
#[derive(Debug, Clone)]
struct Raw {
    positions: Vec<i32>,
    v_trans: bool,
    type_k: KvType,
    type_v: KvType,
    /// (KV heads, head size) per layer.
    layers: Vec<(u32, u32)>,
    /// Keys, cell-major, per layer.
    keys: Vec<Vec<u8>>,
    /// Values as stored, per layer.
    values: Vec<Vec<u8>>,
}

/// Type number, elements and bytes of a block, copied by hand from ggml's tables.
fn ggml(t: KvType) -> (i32, u32, u32) {
    match t {
        KvType::F32 => (0, 1, 4),
        KvType::F16 => (1, 1, 2),
        KvType::Q4_0 => (2, 32, 18),
        KvType::Q4_1 => (3, 32, 20),
        KvType::Q5_0 => (6, 32, 22),
        KvType::Q5_1 => (7, 32, 24),
        KvType::Q8_0 => (8, 32, 34),
        KvType::Iq4Nl => (20, 32, 18),
        KvType::Bf16 => (30, 1, 2),
    }
}

impl Raw {
    fn encode(&self) -> Vec<u8> {
        let mut b = Vec::new();
        b.extend((self.positions.len() as u32).to_le_bytes());
        for p in &self.positions {
            b.extend(p.to_le_bytes());
            b.extend([0; 4]);
        }
        b.extend(u32::from(self.v_trans).to_le_bytes());
        b.extend((self.layers.len() as u32).to_le_bytes());
        for (l, (heads, dim)) in self.layers.iter().enumerate() {
            let (id, block, bytes) = ggml(self.type_k);
            b.extend(id.to_le_bytes());
            b.extend(u64::from(heads * dim / block * bytes).to_le_bytes());
            b.extend(&self.keys[l]);
        }
        for (l, (heads, dim)) in self.layers.iter().enumerate() {
            let (id, block, bytes) = ggml(self.type_v);
            b.extend(id.to_le_bytes());
            if self.v_trans {
                b.extend(bytes.to_le_bytes());
                b.extend((heads * dim).to_le_bytes());
            } else {
                b.extend(u64::from(heads * dim / block * bytes).to_le_bytes());
            }
            b.extend(&self.values[l]);
        }
        b
    }

    fn geometry(&self) -> StateGeometry {
        self.geometry_with(64, 4096)
    }

    fn geometry_with(&self, n_ctx: u32, n_ctx_train: u32) -> StateGeometry {
        StateGeometry::new(
            self.layers
                .iter()
                .map(|&(n_head_kv, head_dim)| LayerGeometry { n_head_kv, head_dim_k: head_dim, head_dim_v: head_dim })
                .collect(),
            self.type_k,
            self.type_v,
            ValueLayout::from_flash_attention(!self.v_trans),
            n_ctx,
            n_ctx_train,
        )
        .unwrap()
    }
}

fn filler(seed: u64, n: usize) -> Vec<u8> {
    let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            s ^= s << 13;
            s ^= s >> 7;
            s ^= s << 17;
            (s >> 32) as u8
        })
        .collect()
}

fn raw(v_trans: bool, type_k: KvType, type_v: KvType, layers: &[(u32, u32)], positions: &[i32], seed: u64) -> Raw {
    let payload = |t: KvType, (heads, dim): (u32, u32), salt: u64| {
        let (_, block, bytes) = ggml(t);
        filler(seed ^ salt, (heads * dim / block * bytes) as usize * positions.len())
    };
    Raw {
        positions: positions.to_vec(),
        v_trans,
        type_k,
        type_v,
        layers: layers.to_vec(),
        keys: (0..layers.len()).map(|l| payload(type_k, layers[l], 2 * l as u64)).collect(),
        values: (0..layers.len()).map(|l| payload(type_v, layers[l], 2 * l as u64 + 1)).collect(),
    }
}

fn small() -> Raw {
    raw(true, KvType::F16, KvType::F16, &[(2, 4), (1, 6)], &[3, 4, 7], 1)
}

fn any_raw() -> impl Strategy<Value = Raw> {
    let types = || proptest::sample::select(KvType::ALL.to_vec());
    (
        any::<bool>(),
        types(),
        types(),
        proptest::collection::vec((1u32..4, 1u32..3), 1..4),
        proptest::collection::btree_set(0i32..4096, 1..9),
        any::<u64>(),
    )
        .prop_map(|(v_trans, k, v, layers, positions, seed)| {
            let v = if v_trans { KvType::F16 } else { v };
            let layers: Vec<_> = layers.iter().map(|&(h, d)| (h, d * 32)).collect();
            raw(v_trans, k, v, &layers, &positions.into_iter().collect::<Vec<_>>(), seed)
        })
}

fn rewrite(raw: &Raw, blob: &StateBlob<'_>, chunk: usize) -> Vec<u8> {
    let positions: Vec<i32> = blob.positions().collect();
    let mut writer = BlobWriter::new(Vec::new(), &raw.geometry(), &positions).unwrap();
    for tensor in [KvTensor::Keys, KvTensor::Values] {
        for layer in 0..raw.layers.len() {
            for piece in blob.payload(layer, tensor).chunks(chunk) {
                writer.payload(piece).unwrap();
            }
        }
    }
    writer.finish().unwrap()
}

#[test]
fn the_smallest_blob_by_hand() {
    // One cell at position 5, one layer, one KV head of two f16 elements, values transposed.
    let bytes = [
        1, 0, 0, 0, // cell_count
        5, 0, 0, 0, 0, 0, 0, 0, // pos, n_seq_id
        1, 0, 0, 0, // v_trans
        1, 0, 0, 0, // n_layer
        1, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, // keys: f16, row of 4 bytes
        0x00, 0x3c, 0x00, 0x40, // 1.0, 2.0
        1, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, // values: f16, 2 bytes, 2 channels
        0x00, 0x42, 0x00, 0x44, // 3.0, 4.0
    ];
    let geometry = StateGeometry::uniform(1, 1, 2, KvType::F16, KvType::F16, ValueLayout::Transposed, 8, 8).unwrap();
    let blob = StateBlob::parse(&bytes, &geometry).unwrap();
    assert_eq!(blob.cells(), 1);
    assert_eq!(blob.positions().collect::<Vec<_>>(), [5]);
    assert_eq!(blob.payload(0, KvTensor::Keys), [0x00, 0x3c, 0x00, 0x40]);
    assert_eq!(blob.payload(0, KvTensor::Values), [0x00, 0x42, 0x00, 0x44]);
    assert_eq!(blob.layout().len(), 52);
    assert!(blob.check_finite().is_ok());
}

#[test]
fn type_table_is_ggmls() {
    for t in KvType::ALL {
        assert_eq!((t.ggml_id(), t.block_len(), t.block_bytes()), ggml(t));
        assert_eq!(t.name().parse::<KvType>().unwrap(), t);
        assert_eq!(KvType::from_ggml_id(t.ggml_id()), Some(t));
    }
    assert_eq!(KvType::from_ggml_id(36), None, "I2_S is no KV type");
    assert!("i2_s".parse::<KvType>().is_err());
    assert_eq!(KvType::Q8_0.row_bytes(640), Some(680));
    assert_eq!(KvType::Q8_0.row_bytes(640 + 16), None);
}

#[test]
fn the_2b_shape_takes_75_kib_a_token() {
    let g = StateGeometry::uniform(30, 5, 128, KvType::F16, KvType::F16, ValueLayout::Transposed, 4096, 4096).unwrap();
    let at = |cells| BlobLayout::new(&g, cells).unwrap().len();
    // 30 layers * 2 * 640 * 2 bytes of payload and 8 bytes of cell entry.
    assert_eq!(at(2) - at(1), 30 * 2 * 640 * 2 + 8);
}

#[test]
fn segments_cover_the_blob() {
    let r = small();
    let bytes = r.encode();
    let blob = StateBlob::parse(&bytes, &r.geometry()).unwrap();
    let mut at = 0;
    for s in blob.layout().segments() {
        assert_eq!(s.range.start, at);
        at = s.range.end;
        match s.kind {
            SegmentKind::Head => assert_eq!(s.range.len(), 4 + 3 * 8 + 8),
            SegmentKind::LayerHead { layer, tensor } => {
                assert_eq!(bytes[s.range], blob.layout().encode_layer_head(layer, tensor))
            }
            SegmentKind::Payload { layer, tensor } => {
                let expected = match tensor {
                    KvTensor::Keys => &r.keys[layer],
                    KvTensor::Values => &r.values[layer],
                };
                assert_eq!(&bytes[s.range], expected);
            }
        }
    }
    assert_eq!(at, bytes.len());
}

#[test]
fn geometries_the_engine_cannot_have() {
    let make =
        |n_layer, heads, dim, k, v, layout, n_ctx| StateGeometry::uniform(n_layer, heads, dim, k, v, layout, n_ctx, 64);
    use KvType::{F16, Q8_0};
    use ValueLayout::{Rows, Transposed};
    assert!(matches!(make(0, 1, 2, F16, F16, Rows, 8), Err(GeometryError::LayerCount { found: 0, .. })));
    assert!(matches!(make(usize::MAX, 1, 2, F16, F16, Rows, 8), Err(GeometryError::LayerCount { .. })));
    assert!(matches!(make(1, 0, 2, F16, F16, Rows, 8), Err(GeometryError::Heads { .. })));
    assert!(matches!(make(1, 65536, 65536, F16, F16, Rows, 8), Err(GeometryError::Heads { .. })));
    assert!(matches!(
        make(1, 1, 48, Q8_0, F16, Rows, 8),
        Err(GeometryError::HeadBlocks { tensor: KvTensor::Keys, block: 32, .. })
    ));
    assert!(matches!(make(1, 1, 64, F16, Q8_0, Transposed, 8), Err(GeometryError::TransposedType { type_v: Q8_0 })));
    assert!(matches!(make(1, 1, 64, F16, F16, Rows, 0), Err(GeometryError::NoCells)));
    assert!(make(512, 1, 64, Q8_0, Q8_0, Rows, 8).is_ok());
}

/// Byte offsets in `small()`: 3 cells, so cells end at 28.
const V_TRANS: usize = 28;
const N_LAYER: usize = 32;
const KEY_0: usize = 36;
const KEY_1: usize = KEY_0 + 12 + 3 * 16;
const VALUE_0: usize = KEY_1 + 12 + 3 * 12;

fn patched(at: usize, value: &[u8]) -> BlobError {
    let r = small();
    let mut bytes = r.encode();
    bytes[at..at + value.len()].copy_from_slice(value);
    StateBlob::parse(&bytes, &r.geometry()).unwrap_err()
}

#[test]
fn every_field_has_its_own_error() {
    assert_eq!(patched(0, &0u32.to_le_bytes()), BlobError::Empty);
    assert_eq!(patched(0, &u32::MAX.to_le_bytes()), BlobError::TooBig { cells: u32::MAX, limit: 64 });
    assert_eq!(patched(4, &(-1i32).to_le_bytes()), BlobError::NegativePosition { cell: 0, position: -1 });
    assert_eq!(patched(12, &3i32.to_le_bytes()), BlobError::PositionOrder { cell: 1, position: 3, previous: 3 });
    assert_eq!(patched(12, &9i32.to_le_bytes()), BlobError::PositionOrder { cell: 2, position: 7, previous: 9 });
    assert_eq!(patched(20, &4096i32.to_le_bytes()), BlobError::PositionLimit { cell: 2, position: 4096, limit: 4096 });
    assert_eq!(patched(16, &1u32.to_le_bytes()), BlobError::SequenceIds { cell: 1, n_seq_id: 1 });
    assert_eq!(
        patched(V_TRANS, &0u32.to_le_bytes()),
        BlobError::ValueLayoutMismatch { found: ValueLayout::Rows, expected: ValueLayout::Transposed }
    );
    assert_eq!(patched(V_TRANS, &2u32.to_le_bytes()), BlobError::Flag { found: 2 });
    assert_eq!(patched(N_LAYER, &3u32.to_le_bytes()), BlobError::LayerCountMismatch { found: 3, expected: 2 });
    assert_eq!(
        patched(KEY_1, &0i32.to_le_bytes()),
        BlobError::TypeMismatch { layer: 1, tensor: KvTensor::Keys, found: 0, expected: KvType::F16 }
    );
    assert_eq!(
        patched(KEY_0 + 4, &u64::MAX.to_le_bytes()),
        BlobError::RowSizeMismatch { layer: 0, tensor: KvTensor::Keys, found: u64::MAX, expected: 16 }
    );
    assert_eq!(
        patched(VALUE_0, &8i32.to_le_bytes()),
        BlobError::TypeMismatch { layer: 0, tensor: KvTensor::Values, found: 8, expected: KvType::F16 }
    );
    assert_eq!(
        patched(VALUE_0 + 4, &4u32.to_le_bytes()),
        BlobError::ElementSizeMismatch { layer: 0, found: 4, expected: 2 }
    );
    assert_eq!(
        patched(VALUE_0 + 8, &9u32.to_le_bytes()),
        BlobError::ChannelCountMismatch { layer: 0, found: 9, expected: 8 }
    );
}

#[test]
fn row_values_have_a_row_size() {
    let r = raw(false, KvType::F16, KvType::Q8_0, &[(1, 32)], &[0, 1], 3);
    let mut bytes = r.encode();
    let value_head = 4 + 16 + 8 + 12 + 2 * 64;
    bytes[value_head + 4] = 35;
    assert_eq!(
        StateBlob::parse(&bytes, &r.geometry()).unwrap_err(),
        BlobError::RowSizeMismatch { layer: 0, tensor: KvTensor::Values, found: 35, expected: 34 }
    );
}

#[test]
fn messages_say_what_and_what_to_do() {
    let text = patched(V_TRANS, &0u32.to_le_bytes()).to_string();
    assert!(text.contains("setting mismatch") && text.contains("flash attention on"));
    let text = patched(0, &65u32.to_le_bytes()).to_string();
    assert!(text.contains("too big") && text.contains("n_ctx of at least 65"));
    let text = patched(KEY_1, &36i32.to_le_bytes()).to_string();
    assert!(text.contains("layer 1") && text.contains("36 (no KV type)") && text.contains("f16"));
}

#[test]
fn every_truncation_and_extension_is_refused() {
    for v_trans in [true, false] {
        let r = raw(v_trans, KvType::F16, KvType::F16, &[(2, 4), (1, 6)], &[3, 4, 7], 1);
        let bytes = r.encode();
        let geometry = r.geometry();
        for n in 0..bytes.len() {
            let e = StateBlob::parse(&bytes[..n], &geometry).unwrap_err();
            let BlobError::Truncated { needed, actual, .. } = e else {
                panic!("{n}: {e}");
            };
            assert_eq!(actual, n as u64);
            assert!(needed > actual && needed <= bytes.len() as u64);
        }
        let mut longer = bytes.clone();
        longer.extend([0; 3]);
        assert_eq!(
            StateBlob::parse(&longer, &geometry).unwrap_err(),
            BlobError::Trailing { expected: bytes.len() as u64, actual: bytes.len() as u64 + 3 }
        );
    }
}

#[test]
fn ten_thousand_byte_flips_never_panic() {
    for (v_trans, type_v) in [(true, KvType::F16), (false, KvType::Q4_1)] {
        let r = raw(v_trans, KvType::Q8_0, type_v, &[(2, 32), (1, 64)], &[0, 1, 2, 3], 9);
        let clean = r.encode();
        let geometry = r.geometry();
        let noise = filler(77, 5000 * 4);
        let (mut accepted, mut refused) = (0, 0);
        for n in noise.chunks_exact(4) {
            let mut bytes = clean.clone();
            let at = (usize::from(n[0]) << 8 | usize::from(n[1])) % bytes.len();
            bytes[at] ^= n[2] | 1;
            match StateBlob::parse(&bytes, &geometry) {
                // A flip in the payload or to another valid position is a valid blob: reading
                // it all must work.
                Ok(blob) => {
                    accepted += 1;
                    assert_eq!(rewrite(&r, &blob, usize::MAX), bytes);
                    let _ = blob.check_finite();
                }
                Err(_) => refused += 1,
            }
        }
        assert_eq!(accepted + refused, 5000);
        assert!(accepted > 0 && refused > 0);
    }
}

#[test]
fn non_finite_values_are_named() {
    // Transposed: element index = channel * cells + cell. Layer 1 has one head of 6, 3 cells.
    let mut r = small();
    r.values[0].fill(0);
    r.keys[0].fill(0);
    r.keys[1].fill(0);
    r.values[1].fill(0);
    let at = (4 * 3 + 2) * 2;
    r.values[1][at..at + 2].copy_from_slice(&0xfc00u16.to_le_bytes());
    let bytes = r.encode();
    let blob = StateBlob::parse(&bytes, &r.geometry()).unwrap();
    assert_eq!(
        blob.check_finite().unwrap_err(),
        NonFinite { layer: 1, tensor: KvTensor::Values, head: 0, channel: 4, position: 7, bits: 0xfc00 }
    );
    // Keys come first and are cell-major: cell 1, head 1, channel 3 of layer 0.
    let at = (8 + 4 + 3) * 2;
    r.keys[0][at..at + 2].copy_from_slice(&0x7e01u16.to_le_bytes());
    let bytes = r.encode();
    let blob = StateBlob::parse(&bytes, &r.geometry()).unwrap();
    assert_eq!(
        blob.check_finite().unwrap_err(),
        NonFinite { layer: 0, tensor: KvTensor::Keys, head: 1, channel: 3, position: 4, bits: 0x7e01 }
    );
}

#[test]
fn quantized_scales_are_checked() {
    let mut r = raw(false, KvType::Q8_0, KvType::Q4_1, &[(1, 64)], &[0, 1], 1);
    r.keys[0].fill(0xff); // codes of any value are finite
    for block in r.keys[0].chunks_exact_mut(34) {
        block[..2].copy_from_slice(&0x3c00u16.to_le_bytes());
    }
    r.values[0].fill(0);
    r.values[0][3 * 20 + 2..3 * 20 + 4].copy_from_slice(&0x7c00u16.to_le_bytes()); // minimum
    let bytes = r.encode();
    let blob = StateBlob::parse(&bytes, &r.geometry()).unwrap();
    assert_eq!(
        blob.check_finite().unwrap_err(),
        NonFinite { layer: 0, tensor: KvTensor::Values, head: 0, channel: 32, position: 1, bits: 0x7c00 }
    );
}

#[test]
fn captures_in_cache_order_are_sorted() {
    // The same content written in position order and in the order 7, 3, 4.
    let sorted = small();
    let order = [2usize, 0, 1];
    let mut shuffled = sorted.clone();
    shuffled.positions = order.iter().map(|&c| sorted.positions[c]).collect();
    for (l, &(heads, dim)) in sorted.layers.iter().enumerate() {
        let row = (heads * dim * 2) as usize;
        shuffled.keys[l] = order.iter().flat_map(|&c| sorted.keys[l][c * row..(c + 1) * row].to_vec()).collect();
        shuffled.values[l] = sorted.values[l]
            .chunks_exact(6)
            .flat_map(|ch| order.iter().flat_map(|&c| ch[c * 2..c * 2 + 2].to_vec()).collect::<Vec<u8>>())
            .collect();
    }
    let geometry = sorted.geometry();
    assert!(matches!(StateBlob::parse(&shuffled.encode(), &geometry), Err(BlobError::PositionOrder { .. })));
    let state = SequenceState::from_capture(shuffled.encode(), &geometry).unwrap();
    assert_eq!(state.as_bytes(), sorted.encode());
    let mut twice = shuffled.clone();
    twice.positions = vec![7, 3, 3];
    assert_eq!(
        SequenceState::from_capture(twice.encode(), &geometry).unwrap_err(),
        BlobError::DuplicatePosition { position: 3 }
    );
}

#[test]
fn the_writer_refuses_what_the_parser_refuses() {
    let geometry = small().geometry();
    for bad in [&[][..], &[-1], &[2, 2], &[3, 2], &[4096]] {
        let e = BlobWriter::new(Vec::new(), &geometry, bad).unwrap_err();
        assert_eq!(e.kind(), std::io::ErrorKind::InvalidInput);
    }
    let mut w = BlobWriter::new(Vec::new(), &geometry, &[0]).unwrap();
    assert!(w.payload(&[0; 17]).is_err(), "a row has 16 bytes");
    w.payload(&[0; 16]).unwrap();
    assert!(w.finish().is_err(), "three payloads are missing");
}

#[test]
fn another_context_is_checked_again() {
    let r = small();
    let bytes = r.encode();
    let blob = StateBlob::parse(&bytes, &r.geometry()).unwrap();
    assert!(blob.check_against(&r.geometry_with(3, 8)).is_ok());
    assert!(matches!(blob.check_against(&r.geometry_with(2, 4096)), Err(BlobError::TooBig { cells: 3, limit: 2 })));
    assert!(matches!(blob.check_against(&r.geometry_with(3, 7)), Err(BlobError::PositionLimit { position: 7, .. })));
}

#[test]
fn contiguity() {
    let r = small();
    let bytes = r.encode();
    let blob = StateBlob::parse(&bytes, &r.geometry()).unwrap();
    assert!(!blob.is_contiguous());
    assert_eq!((blob.first_position(), blob.last_position()), (3, 7));
    let mut r = small();
    r.positions = vec![9, 10, 11];
    let bytes = r.encode();
    assert!(StateBlob::parse(&bytes, &r.geometry()).unwrap().is_contiguous());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn parse_then_build_is_the_identity(r in any_raw(), chunk in 1usize..200) {
        let bytes = r.encode();
        let blob = StateBlob::parse(&bytes, &r.geometry()).unwrap();
        prop_assert_eq!(blob.positions().collect::<Vec<_>>(), r.positions.clone());
        for l in 0..r.layers.len() {
            prop_assert_eq!(blob.payload(l, KvTensor::Keys), &r.keys[l][..]);
            prop_assert_eq!(blob.payload(l, KvTensor::Values), &r.values[l][..]);
        }
        prop_assert_eq!(rewrite(&r, &blob, chunk), &bytes[..]);
        let owned = blob.to_owned();
        prop_assert_eq!(owned.into_bytes(), bytes);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = StateBlob::parse(&bytes, &small().geometry());
    }

    #[test]
    fn the_finite_pass_agrees_with_f32(words in proptest::collection::vec(any::<u16>(), 0..9000)) {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        prop_assert_eq!(
            first_non_finite(KvType::F16, &bytes).map(|f| f.0),
            words.iter().position(|w| !half::f16::from_bits(*w).is_finite())
        );
        prop_assert_eq!(
            first_non_finite(KvType::Bf16, &bytes).map(|f| f.0),
            words.iter().position(|w| !half::bf16::from_bits(*w).is_finite())
        );
        let f32s: Vec<f32> = bytes.chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        prop_assert_eq!(first_non_finite(KvType::F32, &bytes).map(|f| f.0), f32s.iter().position(|x| !x.is_finite()));
    }

    #[test]
    fn one_planted_infinity_is_found(n in 1usize..20000, at in any::<proptest::sample::Index>()) {
        let at = at.index(n);
        let mut bytes = vec![0x3cu8; n * 2];
        bytes[at * 2..at * 2 + 2].copy_from_slice(&0x7c00u16.to_le_bytes());
        prop_assert_eq!(first_non_finite(KvType::F16, &bytes).map(|f| f.0), Some(at));
    }
}
