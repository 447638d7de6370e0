//! Every lock field, by name.

use super::*;

fn fields(c: &Cartridge, model: &ModelLock) -> Vec<&'static str> {
    c.lock_check(model).err().unwrap_or_default().iter().map(|m| m.field).collect()
}

#[test]
fn each_difference_is_named_with_both_values() {
    let native = Cartridge::from_bytes(small_native()).unwrap();
    let head_major = Cartridge::from_bytes(small_head_major()).unwrap();
    let m = model();
    let other = |s: &str| format!("sha256:{}", s.repeat(32));
    let cases: Vec<(&str, ModelLock)> = vec![
        ("model_id", ModelLock { model_id: "other".into(), ..m.clone() }),
        ("model_arch_hash", ModelLock { model_arch_hash: other("00"), ..m.clone() }),
        ("model_weights_hash", ModelLock { model_weights_hash: other("00"), ..m.clone() }),
        ("tokenizer_hash", ModelLock { tokenizer_hash: other("00"), ..m.clone() }),
        ("n_layer", ModelLock { n_layer: 3, ..m.clone() }),
        ("n_head_kv x head_dim", ModelLock { n_head_kv: 1, ..m.clone() }),
        ("n_head_kv x head_dim", ModelLock { head_dim: 8, rope_dim: 4, ..m.clone() }),
        ("first_pos + n_tokens", ModelLock { n_ctx_train: 2, ..m.clone() }),
        ("rope_type", ModelLock { rope_type: RopeType::None, ..m.clone() }),
        ("rope_theta", ModelLock { rope_theta: 10000.0, ..m.clone() }),
        ("rope_scaling", ModelLock { rope_scaling: "linear:2".into(), ..m.clone() }),
        ("rope_dim", ModelLock { rope_dim: 2, ..m.clone() }),
        ("tokens", ModelLock { n_vocab: 8, ..m.clone() }),
    ];
    for (field, model) in &cases {
        for c in [&native, &head_major] {
            assert_eq!(fields(c, model), [*field]);
        }
    }
    assert_eq!(fields(&native, &m), [""; 0]);
    assert_eq!(fields(&head_major, &m), [""; 0]);
    // A native file is one engine's blob; a head-major one is anybody's.
    let engine = ModelLock { engine: "other".into(), ..m.clone() };
    assert_eq!(fields(&native, &engine), ["engine"]);
    assert_eq!(fields(&head_major, &engine), [""; 0]);
    let norm = ModelLock { rope_type: RopeType::Norm, ..m.clone() };
    assert_eq!(fields(&native, &norm), ["rope_type"]);
    assert_eq!(fields(&head_major, &norm), [""; 0]);

    let weights = &native.lock_check(&cases[2].1).unwrap_err()[0];
    assert_eq!((&weights.file, &weights.ours), (&m.model_weights_hash, &cases[2].1.model_weights_hash));
    let all = ModelLock { model_id: "x".into(), rope_theta: 1.0, n_layer: 9, ..m };
    let e = CartridgeError::Lock(native.lock_check(&all).unwrap_err()).to_string();
    assert!(e.contains("model_id is test-model in the file, x here"), "{e}");
    assert!(e.contains("n_layer is 2 in the file, 9 here") && e.contains("rope_theta is 500000 in the file"));
}

#[test]
fn the_base_is_compared_as_a_number() {
    let mut p = Parts::of(&small_head_major());
    for same in ["500000.0", "5e5", "500000.001"] {
        let c = p.set("rope_theta", same).open().unwrap();
        assert_eq!(c.lock_check(&model()), Ok(()), "{same}");
    }
}

#[test]
fn a_lock_survives_json() {
    let json = serde_json::to_string(&model()).unwrap();
    assert_eq!(serde_json::from_str::<ModelLock>(&json).unwrap(), model());
}
