//! Any bytes as a state blob of three geometries: an error, or exactly the bytes that were given, in order.
#![no_main]

use kv::{KvTensor, KvType, StateBlob, StateGeometry, ValueLayout};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&which, bytes)) = data.split_first() else { return };
    let (k, v, layout) = match which % 3 {
        0 => (KvType::F16, KvType::F16, ValueLayout::Transposed),
        1 => (KvType::F16, KvType::F16, ValueLayout::Rows),
        _ => (KvType::Q8_0, KvType::Q8_0, ValueLayout::Rows),
    };
    // Blocks of a quantized type lie within a head.
    let head_dim = if which % 3 == 2 { 32 } else { 4 };
    let geometry = StateGeometry::uniform(2, 2, head_dim, k, v, layout, 64, 4096).expect("a sound geometry");
    let Ok(blob) = StateBlob::parse(bytes, &geometry) else { return };
    assert_eq!(blob.as_bytes(), bytes);
    assert_eq!(blob.layout().len(), bytes.len());
    let positions: Vec<i32> = blob.positions().collect();
    assert!(!positions.is_empty() && positions[0] >= 0 && positions.windows(2).all(|w| w[0] < w[1]));
    assert_eq!(blob.layout().encode_head(&positions), bytes[blob.layout().head()]);
    for layer in 0..geometry.n_layer() {
        let _ = (blob.payload(layer, KvTensor::Keys), blob.payload(layer, KvTensor::Values));
    }
    let _ = blob.check_finite();
});
