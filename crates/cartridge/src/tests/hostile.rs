//! Cartridges whose container is sound and whose content is not, and damage of every kind.

use super::*;

fn refused(parts: &Parts) -> CartridgeError {
    parts.open().map(drop).unwrap_err()
}

fn both() -> [Parts; 2] {
    [Parts::of(&small_native()), Parts::of(&small_head_major())]
}

#[test]
fn versions() {
    for parts in both() {
        let with = |format: &str| refused(parts.clone().set("format", format));
        assert!(matches!(with("bitnet-cartridge/0"), CartridgeError::TooOld { .. }));
        for new in ["bitnet-cartridge/2", "bitnet-cartridge/4294967296", "bitnet-cartridge/99999999999999999999"] {
            let e = with(new);
            assert!(matches!(e, CartridgeError::TooNew { .. }), "{new}");
            assert!(e.to_string().contains("too new"));
        }
        for other in ["", "bitnet-cartridge", "bitnet-cartridge/", "bitnet-cartridge/01", "bitnet-cartridge/-1"] {
            assert!(matches!(with(other), CartridgeError::NotACartridge(_)), "{other}");
        }
        for other in ["bitnet-cartridge/1 ", "bitnet-cartridge/1.0", "Bitnet-Cartridge/1", "pt"] {
            assert!(matches!(with(other), CartridgeError::NotACartridge(_)), "{other}");
        }
        let e = refused(parts.clone().unset("format"));
        assert!(matches!(e, CartridgeError::NotACartridge(_)));
    }
}

#[test]
fn fields() {
    for parts in both() {
        for key in [
            "layout",
            "model_id",
            "model_arch_hash",
            "model_weights_hash",
            "tokenizer_hash",
            "n_tokens",
            "first_pos",
            "type_k",
            "type_v",
            "rope_type",
            "rope_theta",
            "rope_scaling",
            "tokens_hash",
        ] {
            let e = refused(parts.clone().unset(key));
            assert!(matches!(e, CartridgeError::MissingField(k) if k == key), "{key}: {e}");
        }
        for (key, value) in [
            ("layout", "sideways"),
            ("n_tokens", "0"),
            ("n_tokens", "03"),
            ("n_tokens", "+3"),
            ("n_tokens", "3.0"),
            ("n_tokens", "4294967296"),
            ("first_pos", "-1"),
            ("first_pos", "2147483646"),
            ("type_k", "i2_s"),
            ("type_v", "F16"),
            ("rope_type", "yarn"),
            ("rope_theta", "0"),
            ("rope_theta", "-1"),
            ("rope_theta", "inf"),
            ("rope_theta", "nan"),
            ("rope_theta", "1e400"),
            ("rope_theta", "many"),
            ("rope_dim", "x"),
            ("model_weights_hash", "abc"),
            ("model_weights_hash", "sha256:XYZ"),
            ("tokens_hash", "sha256:"),
            ("payload_hash", ":00"),
        ] {
            let e = refused(parts.clone().set(key, value));
            assert!(matches!(e, CartridgeError::Field { field, .. } if field == key), "{key} = {value}: {e}");
        }
    }
    let [native, head_major] = both();
    assert!(matches!(refused(native.clone().unset("v_trans")), CartridgeError::MissingField("v_trans")));
    assert!(matches!(refused(native.clone().unset("engine")), CartridgeError::MissingField("engine")));
    let e = refused(native.clone().set("v_trans", "2"));
    assert!(matches!(e, CartridgeError::Field { field: "v_trans", .. }));
    let e = refused(head_major.clone().set("v_trans", "1"));
    assert!(matches!(e, CartridgeError::Field { field: "v_trans", .. }));
    let e = refused(head_major.clone().set("type_k", "q8_0"));
    assert!(matches!(e, CartridgeError::Field { field: "type_k", .. }));
    // Keys without meaning are kept.
    let mut p = head_major;
    let c = p.set("note", "anything").open().unwrap();
    assert!(c.metadata().contains(&("note".to_owned(), "anything".to_owned())));
}

#[test]
fn tensors() {
    for parts in both() {
        for name in ["tokens", "positions", "layer.0.k", "layer.0.v", "layer.1.v"] {
            let mut p = parts.clone();
            p.tensors.retain(|t| t.0 != name);
            let e = refused(&p);
            assert!(matches!(&e, CartridgeError::MissingTensor(n) if n == name), "{name}: {e}");
        }
        for name in [
            "extra",
            "layer.2.q",
            "layer.00.k",
            "layer.-1.k",
            "layer.512.k",
            "layer.4294967296.k",
            "layer..k",
            "blob.tail",
            "blob.layer.0.q.head",
            "",
        ] {
            let mut p = parts.clone();
            p.tensors.push((name.to_owned(), "U8".to_owned(), vec![1], vec![0]));
            let e = refused(&p);
            assert!(matches!(&e, CartridgeError::UnexpectedTensor(n) if n == name), "{name}: {e}");
        }
        let mut p = parts.clone();
        p.tensors.push(("layer.511.k".to_owned(), "F16".to_owned(), vec![0], vec![]));
        assert!(matches!(refused(&p), CartridgeError::MissingTensor(_)), "a hole between layers");

        let reshape = |name: &str, dtype: &str, shape: &[u64]| {
            let mut p = parts.clone();
            let t = p.tensor(name);
            (t.1, t.2) = (dtype.to_owned(), shape.to_vec());
            refused(&p)
        };
        for e in [
            reshape("tokens", "F32", &[3]),
            reshape("tokens", "I32", &[1, 3]),
            reshape("positions", "I32", &[3, 1]),
            reshape("layer.0.k", "BF16", &[3, 2, 4]),
            reshape("layer.0.k", "F16", &[24]),
            reshape("layer.0.k", "F16", &[4, 3, 2]),
            reshape("layer.0.v", "F16", &[1, 2, 3, 4]),
            reshape("layer.1.v", "F32", &[3, 4]),
        ] {
            assert!(matches!(e, CartridgeError::Shape { .. }), "{e}");
        }
        // As many elements with other heads: keys and values of a layer must agree.
        let mut p = parts.clone();
        p.tensor("layer.1.v").2 = match p.tensor("layer.1.v").2[..] {
            [2, 3, 4] => vec![4, 3, 2],
            _ => vec![4, 2, 3],
        };
        assert!(matches!(refused(&p), CartridgeError::Shape { .. }));
    }
    let [_, head_major] = both();
    let mut p = head_major.clone();
    p.tensors.push(("blob.head".to_owned(), "U8".to_owned(), vec![1], vec![0]));
    assert!(matches!(refused(&p), CartridgeError::UnexpectedTensor(n) if n == "blob.head"));
    let mut p = head_major;
    for l in 0..2 {
        for t in ["k", "v"] {
            let t = p.tensor(&format!("layer.{l}.{t}"));
            (t.2, t.3) = (vec![0, 3, 4], vec![]);
        }
    }
    assert!(matches!(refused(&p), CartridgeError::Shape { .. }), "no heads");
}

#[test]
fn relabelled_positions_are_refused() {
    for parts in both() {
        let e = refused(parts.clone().set("first_pos", "5"));
        assert!(matches!(e, CartridgeError::Position { index: 0, found: 0, expected: 5 }), "{e}");
        let mut p = parts.clone();
        p.tensor("positions").3[8..12].copy_from_slice(&7i32.to_le_bytes());
        let e = refused(&p);
        assert!(matches!(e, CartridgeError::Position { index: 2, found: 7, expected: 2 }), "{e}");
        let mut p = parts.clone();
        p.tensor("tokens").3[4..8].copy_from_slice(&(-2i32).to_le_bytes());
        assert!(matches!(refused(&p), CartridgeError::Token { index: 1, found: -2 }));
    }
}

#[test]
fn the_pieces_of_the_blob_are_checked() {
    let parts = Parts::of(&small_native());
    for (name, at) in [("blob.head", 0), ("blob.head", 12), ("blob.head", 28), ("blob.layer.1.v.head", 8)] {
        let mut p = parts.clone();
        p.tensor(name).3[at] ^= 1;
        let e = refused(&p);
        assert!(matches!(&e, CartridgeError::Glue { tensor, at: a } if tensor == name && *a == at), "{e}");
    }
    let mut p = parts.clone();
    p.tensors.retain(|t| t.0 != "blob.layer.0.v.head");
    assert!(matches!(refused(&p), CartridgeError::MissingTensor(n) if n == "blob.layer.0.v.head"));
    let mut p = parts.clone();
    p.tensors.push(("blob.layer.2.k.head".to_owned(), "U8".to_owned(), vec![12], vec![0; 12]));
    assert!(matches!(refused(&p), CartridgeError::UnexpectedTensor(n) if n == "blob.layer.2.k.head"));
    // Two layers exchanged in the file, names with them: not in one piece, same content.
    let mut p = parts;
    let (a, b) = (
        p.tensors.iter().position(|t| t.0 == "layer.0.k").unwrap(),
        p.tensors.iter().position(|t| t.0 == "layer.1.k").unwrap(),
    );
    p.tensors.swap(a, b);
    let c = p.open().unwrap();
    assert!(!c.holds_blob());
    c.validate(Level::Full).unwrap();
}

/// Does everything that reading code does with an opened file.
fn use_it(c: &Cartridge) {
    let _ = c.validate(Level::Full);
    let _ = c.lock_check(&model());
    let _ = c.to_blob().map(|s| s.blob().as_bytes().len());
    for layout in [ValueLayout::Rows, ValueLayout::Transposed] {
        let g = geometry(KvType::F16, KvType::F16, layout);
        for rope in [RopeType::Neox, RopeType::Norm] {
            let _ = c.state(&g, rope, Rounding::Nearest).map(|s| s.blob().as_bytes().len());
        }
    }
    let _ = Inspection::of(c, true).norm_picture();
    let _ = diff(c, c);
}

#[test]
fn every_truncation_is_refused() {
    for file in [small_native(), small_head_major()] {
        for n in 0..file.len() {
            assert!(Cartridge::from_bytes(file[..n].to_vec()).is_err(), "{n} of {}", file.len());
        }
    }
}

#[test]
fn ten_thousand_byte_flips_never_panic() {
    let (mut accepted, mut refused) = (0, 0);
    for (file, seed) in [(small_native(), 5), (small_head_major(), 6)] {
        for n in noise(seed, 5000 * 4).chunks_exact(4) {
            let mut bytes = file.clone();
            let at = (usize::from(n[0]) << 8 | usize::from(n[1])) % bytes.len();
            bytes[at] ^= n[2] | 1;
            match Cartridge::from_bytes(bytes) {
                Ok(c) => {
                    accepted += 1;
                    use_it(&c);
                    // A flip that survives the structure is caught by a hash or changes only
                    // metadata without a hash of their own.
                    if c.validate(Level::Hash).is_ok() {
                        assert!(at < bytes_before_data(&file), "flip at {at} was not noticed");
                    }
                }
                Err(e) => {
                    refused += 1;
                    assert!(!e.to_string().is_empty());
                }
            }
        }
    }
    assert_eq!(accepted + refused, 10_000);
    assert!(accepted > 100 && refused > 1000, "{accepted} {refused}");
}

fn bytes_before_data(file: &[u8]) -> usize {
    8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize
}

#[test]
fn files_and_folders() {
    let dir = Scratch::new();
    let e = Cartridge::open(dir.path("absent")).unwrap_err();
    assert!(matches!(&e, CartridgeError::Io { path, .. } if path.ends_with("absent")), "{e}");
    assert!(matches!(Cartridge::open(dir.path("")), Err(CartridgeError::Io { .. })));
    std::fs::write(dir.path("empty"), b"").unwrap();
    assert!(matches!(
        Cartridge::open(dir.path("empty")),
        Err(CartridgeError::Container(ContainerError::TooShort { len: 0 }))
    ));
}
