//! Files written by Python from the format's description (`tests/fixtures/cartridge/make.py`).

use super::*;

fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/cartridge").join(name);
    std::fs::read(path).unwrap()
}

fn fixture_geometry() -> StateGeometry {
    geometry(KvType::F16, KvType::F16, ValueLayout::Transposed)
}

fn fixture_model() -> ModelLock {
    ModelLock {
        model_id: "fixture".to_owned(),
        model_arch_hash: format!("sha256:{}", "a1".repeat(32)),
        model_weights_hash: format!("sha256:{}", "b2".repeat(32)),
        tokenizer_hash: format!("sha256:{}", "c3".repeat(32)),
        engine: "fixture-engine".to_owned(),
        ..model()
    }
}

#[test]
fn python_files_mount_to_the_python_blob() {
    let blob = fixture("state.blob");
    for (name, one_piece) in [
        ("native.safetensors", true),
        ("native-rewritten.safetensors", false),
        ("head-major.safetensors", false),
        ("head-major-bf16.safetensors", false),
    ] {
        let c = Cartridge::from_bytes(fixture(name)).unwrap();
        c.validate(Level::Full).unwrap();
        assert_eq!(c.lock_check(&fixture_model()), Ok(()), "{name}");
        assert_eq!(c.holds_blob(), one_piece, "{name}");
        let state = c.state(&fixture_geometry(), RopeType::Neox, Rounding::Exact).unwrap();
        assert_eq!(state.is_borrowed(), one_piece);
        assert_eq!(state.blob().as_bytes(), blob, "{name}");
        assert_eq!(c.tokens().collect::<Vec<_>>(), [11, 7, 5]);
    }
}

#[test]
fn our_file_has_pythons_blob_and_content() {
    let blob = fixture("state.blob");
    let state = SequenceState::parse(blob, &fixture_geometry()).unwrap();
    let dir = Scratch::new();
    let path = dir.path("c.safetensors");
    write_native(&path, &state.blob(), &[11, 7, 5], &fixture_model(), &Provenance::default(), Overwrite::Refuse)
        .unwrap();
    let ours = Cartridge::open(&path).unwrap();
    assert!(ours.holds_blob());
    let theirs = Cartridge::from_bytes(fixture("head-major.safetensors")).unwrap();
    assert!(diff(&ours, &theirs).unwrap().same_content());
}

#[test]
fn python_parts_are_joined() {
    let dir = Scratch::new();
    let path = dir.path("c.safetensors");
    let parts = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/cartridge/parts.safetensors");
    import_parts(parts, Some(&[11, 7, 5]), &fixture_model(), &Provenance::default(), &path, Overwrite::Refuse).unwrap();
    let c = Cartridge::open(&path).unwrap();
    let state = c.state(&fixture_geometry(), RopeType::Neox, Rounding::Exact).unwrap();
    assert_eq!(state.blob().as_bytes(), fixture("state.blob"));
}
