//! Trained parts. The content is checked against a file from Python in `fixtures`.

use super::*;

type Tensor = (String, String, Vec<u64>, Vec<u8>);

/// f16 parts of the model's shape; element values count up along the cells.
fn part(name: &str, layer: usize, cells: u64, first_cell: u64, heads: u64) -> Tensor {
    let mut data = Vec::new();
    for h in 0..heads {
        for c in 0..cells {
            for d in 0..4 {
                let x = (h * 64 + (first_cell + c) * 4 + d) as f32;
                data.extend(half::f16::from_f32(x).to_le_bytes());
            }
        }
    }
    (format!("{name}.{layer}"), "F16".to_owned(), vec![1, heads, cells, 4], data)
}

fn parts(frozen: Option<u64>, trained: u64) -> Parts {
    let mut tensors = Vec::new();
    for l in 0..2 {
        for t in ["keys", "values"] {
            if let Some(f) = frozen {
                tensors.push(part(&format!("frozen_{t}"), l, f, 0, 2));
            }
            tensors.push(part(&format!("trainable_{t}"), l, trained, frozen.unwrap_or(0), 2));
        }
    }
    Parts { metadata: Vec::new(), tensors }
}

fn run(file: &[u8], tokens: Option<&[i32]>) -> Result<Cartridge, CartridgeError> {
    let dir = Scratch::new();
    let (source, target) = (dir.path("parts"), dir.path("cartridge"));
    std::fs::write(&source, file).unwrap();
    import_parts(&source, tokens, &model(), &Provenance::default(), &target, Overwrite::Refuse)?;
    Cartridge::open(&target)
}

#[test]
fn frozen_cells_come_first() {
    for (frozen, trained, cells) in [(Some(1), 7, 8), (None, 7, 7), (Some(0), 7, 7)] {
        let c = run(&parts(frozen, trained).file(), None).unwrap();
        c.validate(Level::Full).unwrap();
        assert_eq!(c.fields().n_tokens, cells);
        assert!(c.tokens().all(|t| t == -1));
        assert_eq!(c.lock_check(&model()), Ok(()));
        let v = c.values(1, KvTensor::Values);
        for h in 0..2 {
            for cell in 0..cells as usize {
                let first = (h * 64 + cell * 4) as f32;
                assert_eq!(v.row(h, cell), [first, first + 1.0, first + 2.0, first + 3.0]);
            }
        }
    }
}

#[test]
fn keys_are_declared_rotate_half_whatever_the_model() {
    let dir = Scratch::new();
    std::fs::write(dir.path("p"), parts(None, 2).file()).unwrap();
    let norm = ModelLock { rope_type: RopeType::Norm, ..model() };
    let p = Provenance { title: Some("t".into()), ..Provenance::default() };
    import_parts(dir.path("p"), Some(&[4, 5]), &norm, &p, dir.path("c"), Overwrite::Refuse).unwrap();
    let c = Cartridge::open(dir.path("c")).unwrap();
    assert_eq!(c.fields().rope_type, RopeType::Neox);
    assert_eq!(c.lock_check(&norm), Ok(()));
    assert_eq!(c.tokens().collect::<Vec<_>>(), [4, 5]);
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let import = |p: &Parts| match run(&p.file(), None).unwrap_err() {
        CartridgeError::Import(message) => message,
        e => panic!("{e}"),
    };
    let mut p = parts(Some(1), 7);
    p.tensors[0] = part("frozen_keys", 0, 1, 0, 8);
    assert!(import(&p).contains("2 KV heads"), "query heads in place of KV heads");
    let mut p = parts(None, 7);
    p.tensors[1] = part("trainable_values", 0, 6, 0, 2);
    assert!(import(&p).contains("6 values, others have 7"));
    let mut p = parts(None, 7);
    p.tensors.retain(|t| t.0 != "trainable_values.1");
    assert!(import(&p).contains("layer 1 has no trainable values"));
    let mut p = parts(None, 7);
    p.tensors.push(part("trainable_keys", 2, 7, 0, 2));
    assert!(import(&p).contains("2 layers"));
    let mut p = parts(None, 7);
    p.tensor("trainable_keys.1").1 = "BF16".to_owned();
    assert!(import(&p).contains("bf16"));
    assert!(import(&parts(None, 0)).contains("0 cells"));
    let e = run(&parts(None, 7).file(), Some(&[1, 2])).unwrap_err();
    assert!(matches!(e, CartridgeError::Import(_)));
    let mut p = parts(None, 7);
    p.tensors[0].0 = "optimizer.0".to_owned();
    assert!(matches!(run(&p.file(), None), Err(CartridgeError::UnexpectedTensor(_))));
    let pickle = b"\x80\x02}q\x00(X\x0e\x00\x00\x00trainable_keysq\x01.";
    assert!(matches!(run(pickle, None), Err(CartridgeError::Container(ContainerError::Pickle))));
    assert!(matches!(run(b"PK\x03\x04....", None), Err(CartridgeError::Container(ContainerError::Pickle))));
}
