//! Values: places, conversions, hashes, comparison, inspection, writing.

use super::*;
use crate::diff::ulp_distance;
use crate::transcribe::pair_map;
use crate::values::decode_row;
use half::{bf16, f16};

/// f32 head-major cartridge whose element (layer, tensor, head, position, channel) is `value`.
fn numbered(value: impl Fn(usize, usize, usize, usize, usize) -> f32) -> Parts {
    let mut parts = Parts::of(&small_head_major());
    parts.set("type_k", "f32").set("type_v", "f32").unset("payload_hash");
    for l in 0..2 {
        for (t, letter) in ["k", "v"].iter().enumerate() {
            let tensor = parts.tensor(&format!("layer.{l}.{letter}"));
            tensor.1 = "F32".to_owned();
            let value = &value;
            tensor.3 = (0..2)
                .flat_map(|h| (0..3).flat_map(move |p| (0..4).map(move |d| value(l, t, h, p, d))))
                .flat_map(f32::to_le_bytes)
                .collect();
        }
    }
    parts
}

fn code(l: usize, t: usize, h: usize, p: usize, d: usize) -> f32 {
    (l * 10000 + t * 1000 + h * 100 + p * 10 + d) as f32
}

#[test]
fn elements_land_where_the_engine_has_them() {
    let c = numbered(code).open().unwrap();
    for layout in [ValueLayout::Rows, ValueLayout::Transposed] {
        let g = geometry(KvType::F32, KvType::F16, layout);
        let state = c.state(&g, RopeType::Neox, Rounding::Nearest).unwrap();
        let blob = state.blob();
        // Key of layer 1, cell 2, head 1, channel 3: row 2, element 1 * 4 + 3.
        let keys = blob.payload(1, KvTensor::Keys);
        let at = (2 * 8 + 7) * 4;
        assert_eq!(keys[at..at + 4], 10123.0f32.to_le_bytes());
        // Value of layer 0, cell 2, head 1, channel 3.
        let values = blob.payload(0, KvTensor::Values);
        let at = match layout {
            ValueLayout::Rows => (2 * 8 + 7) * 2,
            ValueLayout::Transposed => (7 * 3 + 2) * 2,
        };
        assert_eq!(values[at..at + 2], f16::from_f32(1123.0).to_le_bytes());
    }
}

#[test]
fn inexact_values_are_refused_unless_rounding_is_asked_for() {
    let c = numbered(|l, t, h, p, d| if (l, t, h, p, d) == (1, 1, 0, 2, 3) { 0.1 } else { 0.5 }).open().unwrap();
    let g = geometry(KvType::F16, KvType::F16, ValueLayout::Transposed);
    let e = c.state(&g, RopeType::Neox, Rounding::Exact).unwrap_err();
    let CartridgeError::Conversion(ConversionError::Inexact { place, value, .. }) = &e else { panic!("{e}") };
    assert_eq!((place.layer, place.tensor, place.head), (1, KvTensor::Values, 0));
    assert_eq!((place.position, place.channel, *value), (2, 3, 0.1));
    assert!(c.state(&g, RopeType::Neox, Rounding::Nearest).is_ok());
    let exact = geometry(KvType::F32, KvType::F32, ValueLayout::Rows);
    assert!(c.state(&exact, RopeType::Neox, Rounding::Exact).is_ok());

    let dir = Scratch::new();
    let to = ConvertTo::HeadMajor { type_k: KvType::F16, type_v: KvType::F16 };
    assert!(convert(&c, dir.path("x"), &to, Rounding::Exact, Overwrite::Refuse).is_err());
    assert_eq!(dir.names(), Vec::<String>::new(), "nothing is left of a refused conversion");
    convert(&c, dir.path("x"), &to, Rounding::Nearest, Overwrite::Refuse).unwrap();
    let rounded = Cartridge::open(dir.path("x")).unwrap();
    let stated = rounded.metadata().iter().find(|(k, _)| k == "rounded_from").unwrap();
    assert_eq!(stated.1, "f32/f32");
}

#[test]
fn values_out_of_range_are_refused_even_when_rounding() {
    for (value, fits) in [(65504.0, true), (65519.0, true), (65520.0, false), (-1e30, false)] {
        let c = numbered(|l, t, h, p, d| if (l, t, h, p, d) == (0, 0, 1, 1, 2) { value } else { 0.0 });
        let g = geometry(KvType::F16, KvType::F16, ValueLayout::Rows);
        let made = c.open().unwrap().state(&g, RopeType::Neox, Rounding::Nearest).map(drop);
        match made {
            Ok(()) => assert!(fits, "{value}"),
            Err(CartridgeError::Conversion(ConversionError::OutOfRange { place, .. })) => {
                assert!(!fits, "{value}");
                assert_eq!((place.layer, place.head, place.position, place.channel), (0, 1, 1, 2));
            }
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn non_finite_values_are_named_in_every_layout() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let parts = numbered(|l, t, h, p, d| if (l, t, h, p, d) == (1, 1, 1, 2, 3) { bad } else { 1.0 });
        let c = parts.open().unwrap();
        assert!(c.validate(Level::Hash).is_ok());
        let e = c.validate(Level::Full).unwrap_err();
        let CartridgeError::NonFinite(n) = &e else { panic!("{e}") };
        assert_eq!((n.layer, n.tensor, n.head, n.channel, n.position), (1, KvTensor::Values, 1, 3, 2));
        // The conversion finds it as well.
        let g = geometry(KvType::F16, KvType::F16, ValueLayout::Rows);
        let e = c.state(&g, RopeType::Neox, Rounding::Nearest).unwrap_err();
        assert!(matches!(e, CartridgeError::Conversion(ConversionError::NonFinite(m)) if m.position == n.position));
    }
    // Native, transposed: channel 3 of head 1 of layer 1, position 2.
    let mut parts = Parts::of(&small_native());
    let at = (7 * 3 + 2) * 2;
    parts.tensor("layer.1.v").3[at..at + 2].copy_from_slice(&0x7e00u16.to_le_bytes());
    parts.unset("payload_hash");
    let e = parts.open().unwrap().validate(Level::Full).unwrap_err();
    let CartridgeError::NonFinite(n) = &e else { panic!("{e}") };
    assert_eq!((n.layer, n.tensor, n.head, n.channel, n.position), (1, KvTensor::Values, 1, 3, 2));
}

#[test]
fn rope_pairs_are_permuted_in_keys_only() {
    // A head of 4: neox pairs (0,2) and (1,3), norm pairs (0,1) and (2,3).
    assert_eq!(pair_map(RopeType::Neox, RopeType::Norm, 4, 4).unwrap().unwrap(), [0, 2, 1, 3]);
    assert_eq!(pair_map(RopeType::Norm, RopeType::Neox, 6, 8).unwrap().unwrap(), [0, 2, 4, 1, 3, 5, 6, 7]);
    assert!(pair_map(RopeType::Neox, RopeType::Neox, 4, 4).unwrap().is_none());
    assert!(pair_map(RopeType::Neox, RopeType::None, 4, 4).is_err());
    assert!(pair_map(RopeType::Neox, RopeType::Norm, 6, 4).is_err());
    assert!(pair_map(RopeType::Neox, RopeType::Norm, 3, 4).is_err());

    let c = numbered(code).open().unwrap();
    let g = geometry(KvType::F32, KvType::F32, ValueLayout::Rows);
    let norm = c.state(&g, RopeType::Norm, Rounding::Exact).unwrap();
    let neox = c.state(&g, RopeType::Neox, Rounding::Exact).unwrap();
    let (norm, neox) = (norm.blob(), neox.blob());
    assert_eq!(norm.payload(0, KvTensor::Values), neox.payload(0, KvTensor::Values));
    let keys = norm.values(1, KvTensor::Keys);
    assert_eq!(keys.row(1, 2), [10120.0, 10122.0, 10121.0, 10123.0]);
    assert_eq!(neox.values(1, KvTensor::Keys).row(1, 2), [10120.0, 10121.0, 10122.0, 10123.0]);
}

#[test]
fn rotation_commutes_with_the_permutation() {
    // Rotating pairs as norm after the permutation equals permuting after rotating as neox.
    let n = 8;
    let x: Vec<f64> = (0..n).map(|i| f64::from(i as u32) + 0.5).collect();
    let angle = |pair: usize| 1.7 * 10000f64.powf(-2.0 * pair as f64 / n as f64);
    let rotate = |x: &[f64], pairs: &dyn Fn(usize) -> (usize, usize)| {
        let mut y = x.to_vec();
        for i in 0..n / 2 {
            let (a, b) = pairs(i);
            let (s, c) = angle(i).sin_cos();
            (y[a], y[b]) = (x[a] * c - x[b] * s, x[a] * s + x[b] * c);
        }
        y
    };
    let map = pair_map(RopeType::Neox, RopeType::Norm, 8, 8).unwrap().unwrap();
    let permute = |x: &[f64]| map.iter().map(|&i| x[i]).collect::<Vec<f64>>();
    let left = rotate(&permute(&x), &|i| (2 * i, 2 * i + 1));
    let right = permute(&rotate(&x, &|i| (i, i + n / 2)));
    assert_eq!(left, right);
}

#[test]
fn quantized_cartridges_mount_as_they_are_or_not_at_all() {
    let g = shape(1, 2, 64, KvType::Q8_0, KvType::Q5_1, ValueLayout::Rows);
    let s = state(&g, &[0, 1], 4);
    let c = Cartridge::from_bytes(native(&s, &[1, 2])).unwrap();
    assert_eq!(c.layers(), [two_heads(64)]);
    let other = shape(1, 2, 64, KvType::F16, KvType::Q5_1, ValueLayout::Rows);
    let e = c.state(&other, RopeType::Neox, Rounding::Nearest).unwrap_err();
    assert!(matches!(e, CartridgeError::NativeSetting { setting: "type_k", .. }), "{e}");
    let dir = Scratch::new();
    let to = ConvertTo::HeadMajor { type_k: KvType::F32, type_v: KvType::F32 };
    let e = convert(&c, dir.path("x"), &to, Rounding::Nearest, Overwrite::Refuse).unwrap_err();
    assert!(matches!(e, CartridgeError::Conversion(ConversionError::Quantized { .. })));
    let e = write_head_major(dir.path("x"), &s.blob(), &[1, 2], &model(), &Provenance::default(), Overwrite::Refuse);
    assert!(matches!(e, Err(CartridgeError::Conversion(ConversionError::Quantized { .. }))));
    let floats = numbered(code).open().unwrap();
    let g = shape(2, 2, 32, KvType::Q8_0, KvType::F16, ValueLayout::Rows);
    assert!(floats.state(&g, RopeType::Neox, Rounding::Nearest).is_err(), "other head size");
}

#[test]
fn quantized_blocks_decode_as_ggml_does() {
    // Scale 0.5, minimum 2; byte j holds codes j (low) and 15 - j (high); fifth bits alternate.
    let half = |x: f32| f16::from_f32(x).to_le_bytes();
    let nibbles: Vec<u8> = (0..16u8).map(|j| (15 - j) << 4 | j).collect();
    let low = |j: usize| if j < 16 { j as f32 } else { (15 - (j - 16)) as f32 };
    let fifth = |j: usize| if j.is_multiple_of(2) { 0.0 } else { 16.0 };
    let high = 0xaaaa_aaaau32.to_le_bytes();
    let expect = |t: KvType, block: Vec<u8>, value: &dyn Fn(usize) -> f32| {
        assert_eq!(block.len(), t.block_bytes() as usize);
        let mut out = [0.0; 32];
        decode_row(t, &block, &mut out);
        for (j, x) in out.iter().enumerate() {
            assert_eq!(*x, value(j), "{t} element {j}");
        }
    };
    expect(KvType::Q4_0, [&half(0.5)[..], &nibbles].concat(), &|j| (low(j) - 8.0) * 0.5);
    expect(KvType::Q4_1, [&half(0.5)[..], &half(2.0), &nibbles].concat(), &|j| low(j) * 0.5 + 2.0);
    expect(KvType::Q5_0, [&half(0.5)[..], &high, &nibbles].concat(), &|j| (low(j) + fifth(j) - 16.0) * 0.5);
    expect(KvType::Q5_1, [&half(0.5)[..], &half(2.0), &high, &nibbles].concat(), &|j| (low(j) + fifth(j)) * 0.5 + 2.0);
    let codes: Vec<u8> = (0..32).map(|j| (j * 8 - 128) as i8 as u8).collect();
    expect(KvType::Q8_0, [&half(0.5)[..], &codes].concat(), &|j| (j as f32 * 8.0 - 128.0) * 0.5);
    // The table's ends and the step over zero.
    expect(KvType::Iq4Nl, [&half(1.0)[..], &nibbles].concat(), &|j| match low(j) as usize {
        0 => -127.0,
        1 => -104.0,
        2 => -83.0,
        3 => -65.0,
        4 => -49.0,
        5 => -35.0,
        6 => -22.0,
        7 => -10.0,
        8 => 1.0,
        9 => 13.0,
        10 => 25.0,
        11 => 38.0,
        12 => 53.0,
        13 => 69.0,
        14 => 89.0,
        _ => 113.0,
    });
}

/// A blob has no hashes and a converted file has its own: what was altered must not get past either.
#[test]
fn what_was_altered_is_neither_exported_nor_sealed_anew() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.safetensors");
    let to = ConvertTo::HeadMajor { type_k: KvType::F16, type_v: KvType::F16 };
    let mut p = Parts::of(&small_native());
    let intact = p.open().unwrap();
    assert!(intact.to_blob().is_ok() && intact.values_are_checked());
    p.tensor("layer.1.k").3[0] ^= 1;
    let altered = p.open().unwrap();
    let refused = altered.to_blob().err().unwrap();
    assert!(matches!(refused, CartridgeError::HashMismatch { field: "payload_hash", .. }), "{refused}");
    let refused = convert(&altered, &out, &to, Rounding::Exact, Overwrite::Refuse).unwrap_err();
    assert!(matches!(refused, CartridgeError::HashMismatch { field: "payload_hash", .. }), "{refused}");
    assert!(!out.exists() && !altered.values_are_checked());
}

#[test]
fn hashes_cover_tokens_and_payload() {
    for file in [small_native(), small_head_major()] {
        let parts = Parts::of(&file);
        let mut p = parts.clone();
        p.tensor("layer.1.k").3[5] ^= 1;
        let c = p.open().unwrap();
        let e = c.validate(Level::Hash).unwrap_err();
        assert!(matches!(e, CartridgeError::HashMismatch { field: "payload_hash", .. }), "{e}");
        let mut p = parts.clone();
        p.tensor("tokens").3[0] ^= 1;
        let e = p.open().unwrap().validate(Level::Hash).unwrap_err();
        assert!(matches!(e, CartridgeError::HashMismatch { field: "tokens_hash", .. }), "{e}");
        let mut p = parts.clone();
        p.set("payload_hash", "md5:00");
        let e = p.open().unwrap().validate(Level::Hash).unwrap_err();
        assert!(matches!(e, CartridgeError::HashAlgorithm { field: "payload_hash", .. }), "{e}");
        let mut p = parts;
        p.unset("payload_hash");
        p.tensor("layer.1.k").3[5] ^= 1;
        assert!(p.open().unwrap().validate(Level::Full).is_ok(), "no hash is stated");
    }
}

#[test]
fn the_tokens_hash_is_plain_sha256() {
    // printf '\x01\0\0\0\xff\xff\xff\xff' | sha256sum
    assert_eq!(
        tokens_hash(&[1, -1]).to_string(),
        "sha256:b15348c8f462384c01e83b6d499c6faf3f96808f5aa07c6bab4b65b36b4445d4"
    );
}

#[test]
fn differences_are_placed() {
    let a = numbered(code);
    let mut b = numbered(|l, t, h, p, d| match (l, t, h, p, d) {
        (1, 0, 1, 1, 2) => code(l, t, h, p, d) + 3.0,
        (1, 0, 0, 2, 0) => code(l, t, h, p, d) - 5.0,
        _ => code(l, t, h, p, d),
    });
    b.set("title", "b");
    let (a, b) = (a.open().unwrap(), b.open().unwrap());
    let d = diff(&a, &b).unwrap();
    assert!(!d.same_content());
    assert_eq!(d.fields, [FieldDifference { field: "title".into(), a: None, b: Some("b".into()) }]);
    assert_eq!(d.first_token, None);
    let [t] = &d.tensors[..] else { panic!("{d:?}") };
    assert_eq!((t.layer, t.tensor, t.position, t.head, t.channel), (1, KvTensor::Keys, 1, 1, 2));
    assert_eq!((t.max_abs, t.differing, t.elements), (5.0, 2, 24));
    // 10020 and 10015 lie in [8192, 16384), where a step of f32 is 2^-10.
    assert_eq!(t.max_ulp, 5 * 1024);
    assert!(diff(&a, &a).unwrap().same_content());
}

#[test]
fn ulps_count_steps_of_the_type() {
    let next = f16::from_bits(f16::from_f32(1.0).to_bits() + 1).to_f32();
    assert_eq!(ulp_distance(1.0, next, KvType::F16), 1);
    assert_eq!(ulp_distance(-f32::from_bits(1), f32::from_bits(1), KvType::F32), 2);
    assert_eq!(ulp_distance(0.0, -0.0, KvType::Bf16), 0);
    let next = bf16::from_bits(bf16::from_f32(-2.0).to_bits() + 3).to_f32();
    assert_eq!(ulp_distance(-2.0, next, KvType::Bf16), 3);
}

#[test]
fn inspection_tells_sizes_and_norms() {
    let c = numbered(|l, t, _, _, d| if d == 0 { (l + t) as f32 * 2.0 } else { 0.0 }).open().unwrap();
    let i = Inspection::of(&c, true);
    assert_eq!((i.n_tokens, i.first_pos, i.next_pos, i.n_layer), (3, 0, 3, 2));
    assert_eq!((i.n_head_kv, i.head_dim_k, i.head_dim_v), (2, 4, 4));
    assert_eq!(i.payload_bytes, 2 * 2 * 2 * 3 * 4 * 4);
    assert_eq!(i.bytes_per_token, i.payload_bytes / 3);
    assert!(!i.mounts_without_copy && !i.has_payload_hash);
    let norms = i.norms.clone().unwrap();
    // One of four channels is 2: root mean square 1.
    assert_eq!((norms[1].k_rms, norms[1].k_max), (1.0, 2.0));
    assert_eq!((norms[1].v_rms, norms[1].v_max), (2.0, 4.0));
    assert_eq!(i.norm_picture().unwrap(), ("▁█".to_owned(), "▅█".to_owned()));
    let json = serde_json::to_value(&i).unwrap();
    assert_eq!(json["metadata"]["format"], FORMAT);
    assert!(serde_json::to_value(Inspection::of(&c, false)).unwrap().get("norms").is_none());
}

#[test]
fn settings_of_native_files_are_checked_by_name() {
    let c = Cartridge::from_bytes(small_native()).unwrap();
    let setting = |g: &StateGeometry, rope| match c.state(g, rope, Rounding::Exact).unwrap_err() {
        CartridgeError::NativeSetting { setting, .. } => setting,
        e => panic!("{e}"),
    };
    let rows = geometry(KvType::F16, KvType::F16, ValueLayout::Rows);
    assert_eq!(setting(&rows, RopeType::Neox), "flash attention");
    let k = geometry(KvType::F32, KvType::F16, ValueLayout::Transposed);
    assert_eq!(setting(&k, RopeType::Neox), "type_k");
    let own = geometry(KvType::F16, KvType::F16, ValueLayout::Transposed);
    assert_eq!(setting(&own, RopeType::Norm), "rope_type");
    let small = StateGeometry::uniform(2, 2, 4, KvType::F16, KvType::F16, ValueLayout::Transposed, 2, 64).unwrap();
    let e = c.state(&small, RopeType::Neox, Rounding::Exact).unwrap_err();
    assert!(matches!(e, CartridgeError::Blob(kv::BlobError::TooBig { cells: 3, limit: 2 })));
}

#[test]
fn a_cartridge_made_in_memory_is_the_file() {
    for g in [
        geometry(KvType::F16, KvType::F16, ValueLayout::Rows),
        geometry(KvType::F32, KvType::F16, ValueLayout::Transposed),
    ] {
        let s = state(&g, &[4, 5, 6], 3);
        let c = Cartridge::from_blob(&s.blob(), &[9, 8, 7], &model(), &Provenance::default()).unwrap();
        let file = Cartridge::from_bytes(native(&s, &[9, 8, 7])).unwrap();
        assert_eq!(c.metadata(), file.metadata());
        assert_eq!(c.to_blob().unwrap().blob().as_bytes(), s.blob().as_bytes());
        c.validate(Level::Full).unwrap();
    }
    let s = state(&geometry(KvType::F16, KvType::F16, ValueLayout::Rows), &[0, 1], 1);
    let e = Cartridge::from_blob(&s.blob(), &[1], &model(), &Provenance::default()).unwrap_err();
    assert!(matches!(e, CartridgeError::TokenCount { tokens: 1, cells: 2 }), "{e}");
}

#[test]
fn existing_files_are_kept_unless_told_otherwise() {
    let g = geometry(KvType::F16, KvType::F16, ValueLayout::Rows);
    let s = state(&g, &[0], 1);
    let dir = Scratch::new();
    let path = dir.path("c");
    let put = |overwrite| write_native(&path, &s.blob(), &[1], &model(), &Provenance::default(), overwrite);
    std::fs::write(&path, "old").unwrap();
    let e = put(Overwrite::Refuse).unwrap_err();
    assert!(matches!(&e, CartridgeError::Exists(p) if *p == path));
    assert!(e.to_string().contains("--force"));
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    put(Overwrite::Replace).unwrap();
    assert!(Cartridge::open(&path).is_ok());
    assert_eq!(dir.names(), ["c"]);
}

#[test]
fn states_that_are_no_prefix_are_not_written() {
    let g = geometry(KvType::F16, KvType::F16, ValueLayout::Rows);
    let dir = Scratch::new();
    let put = |positions: &[i32], tokens: &[i32]| {
        let s = state(&g, positions, 1);
        write_native(dir.path("c"), &s.blob(), tokens, &model(), &Provenance::default(), Overwrite::Replace)
    };
    assert!(matches!(put(&[4, 5, 7], &[1, 2, 3]), Err(CartridgeError::NotContiguous { after: 5 })));
    assert!(matches!(put(&[4, 5], &[1]), Err(CartridgeError::TokenCount { tokens: 1, cells: 2 })));
    assert!(matches!(put(&[4, 5], &[1, -2]), Err(CartridgeError::Token { index: 1, found: -2 })));
    put(&[4, 5], &[1, -1]).unwrap();
    let c = Cartridge::open(dir.path("c")).unwrap();
    assert_eq!((c.fields().first_pos, c.next_position()), (4, 6));
}

#[test]
fn the_data_section_is_aligned() {
    let file = small_native();
    let header = u64::from_le_bytes(file[..8].try_into().unwrap());
    assert_eq!((header + 8) % 64, 0);
}

#[test]
fn metadata_that_nobody_would_read_are_not_written() {
    let g = geometry(KvType::F16, KvType::F16, ValueLayout::Rows);
    let s = state(&g, &[0], 1);
    let dir = Scratch::new();
    let p = Provenance { title: Some("x".repeat(HEADER_LIMIT as usize)), ..Provenance::default() };
    let e = write_native(dir.path("c"), &s.blob(), &[1], &model(), &p, Overwrite::Refuse).unwrap_err();
    assert!(matches!(e, CartridgeError::MetadataTooLong { .. }));
    assert_eq!(dir.names(), [""; 0]);
}
