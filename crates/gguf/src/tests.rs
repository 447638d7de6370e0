//! Tests of the reader as a whole: one small file, wrong in one way at a time.

use std::ops::ControlFlow;
use std::sync::LazyLock;

use proptest::prelude::*;

use super::fixture::{GgufBuilder, TINY_VOCAB, tiny_model};
use super::*;
use kv::KvType;

fn check_with(bytes: &[u8], limits: &Limits) -> Result<ModelInfo, GgufError> {
    let gguf = Gguf::parse(bytes, limits)?;
    ModelInfo::check(&gguf, &bytes, limits)
}

fn check(bytes: &[u8]) -> Result<ModelInfo, GgufError> {
    check_with(bytes, &Limits::default())
}

fn b158() -> GgufBuilder {
    tiny_model(Architecture::BitNetB158)
}

/// The error of the 2B-4T-like fixture after a change.
fn refusal(change: impl FnOnce(&mut GgufBuilder)) -> GgufError {
    refusal_of(Architecture::BitNetB158, change)
}

fn refusal_of(architecture: Architecture, change: impl FnOnce(&mut GgufBuilder)) -> GgufError {
    let mut file = tiny_model(architecture);
    change(&mut file);
    check(&file.encode()).expect_err("the changed file must be refused")
}

/// The error has this variant, and its message contains all of these.
macro_rules! refused {
    ($error:expr, $variant:pat, $($text:expr),+ $(,)?) => {{
        let error = $error;
        let message = error.to_string();
        assert!(matches!(error, $variant), "{error:?}");
        $(assert!(message.contains($text), "{:?} is not in {message:?}", $text);)+
    }};
}

fn warnings_of(change: impl FnOnce(&mut GgufBuilder)) -> Vec<GgufWarning> {
    let mut file = b158();
    file.set("tokenizer.chat_template", "{{ x }}");
    change(&mut file);
    check(&file.encode()).expect("the changed file must be accepted").warnings().to_vec()
}

#[test]
fn tiny_models_are_sound() {
    for architecture in Architecture::ALL {
        let info = check(&tiny_model(architecture).encode()).unwrap();
        assert_eq!(info.warnings(), [GgufWarning::ChatTemplateMissing]);
        assert_eq!(info.architecture(), architecture);
        assert_eq!(info.name(), Some("tiny"));
        let h = info.hyperparameters();
        assert_eq!((h.n_vocab, h.n_embd, h.n_layer, h.n_ff), (TINY_VOCAB, 128, 1, 128));
        assert_eq!((h.n_head, h.n_head_kv, h.head_dim), (2, 1, 64));
        assert!(h.tied_output);
        assert_eq!(h.rope.freq_base, 500_000.0);
        assert_eq!(info.tokenizer().special.bos, Some(256));
        assert_eq!(info.tokenizer().n_merges, 2);
    }
}

#[test]
fn other_files_are_named() {
    let head = |start: &[u8]| {
        let mut bytes = start.to_vec();
        bytes.resize(64, 0);
        check(&bytes).unwrap_err()
    };
    refused!(check(b"").unwrap_err(), GgufError::Magic { .. }, "empty");
    refused!(head(b"tjgg\x03\0\0\0"), GgufError::Magic { .. }, "ggjt");
    refused!(head(b"algg\x01\0\0\0"), GgufError::Magic { .. }, "ggla");
    refused!(head(b"lmgg"), GgufError::Magic { .. }, "before GGUF");
    refused!(head(b"PK\x03\x04"), GgufError::Magic { .. }, "zip");
    refused!(head(b"\x80\x04\x95"), GgufError::Magic { .. }, "pickle");
    refused!(head(b"\x40\0\0\0\0\0\0\0{\"x\":"), GgufError::Magic { .. }, "safetensors");
    refused!(head(b"version https://git-lfs.github.com/spec/v1"), GgufError::Magic { .. }, "LFS");
    refused!(head(b"<!DOCTYPE html>"), GgufError::Magic { .. }, "HTML");
    refused!(head(b"abcd"), GgufError::Magic { .. }, "abcd");
    refused!(head(b"\x1b[2J"), GgufError::Magic { .. }, "\\u{1b}[2J");
    // Three bytes that could become a GGUF file.
    refused!(check(b"GGU").unwrap_err(), GgufError::Magic { .. }, "GGU");
}

#[test]
fn versions() {
    for version in [2, 3] {
        let mut file = b158();
        file.version = version;
        assert!(check(&file.encode()).is_ok());
    }
    refused!(refusal(|f| f.version = 1), GgufError::Version { version: 1 }, "too old");
    refused!(refusal(|f| f.version = 0), GgufError::Version { version: 0 }, "too old");
    refused!(refusal(|f| f.version = 4), GgufError::Version { version: 4 }, "too new");
    refused!(refusal(|f| f.version = 3u32.swap_bytes()), GgufError::BigEndian { version: 3 }, "big-endian");
}

#[test]
fn absurd_counts_and_lengths() {
    for count in [1 << 16, 1 << 40, 1 << 62, u64::MAX] {
        refused!(
            refusal(|f| f.n_keys = Some(count)),
            GgufError::TooLarge { .. } | GgufError::Truncated { .. },
            "keys",
            &count.to_string()
        );
        refused!(
            refusal(|f| f.n_tensors = Some(count)),
            GgufError::TooLarge { .. } | GgufError::Truncated { .. },
            "tensors",
            &count.to_string()
        );
    }
    // One more than there are: the tensor table is read as keys, or data as tensors.
    assert!(
        check(&{
            let mut f = b158();
            f.n_keys = Some(f.keys.len() as u64 + 1);
            f.encode()
        })
        .is_err()
    );

    // The length of the first key, at offset 24.
    for length in [1u64 << 20, 1 << 62, u64::MAX] {
        let mut bytes = b158().encode();
        bytes[24..32].copy_from_slice(&length.to_le_bytes());
        refused!(check(&bytes).unwrap_err(), GgufError::Truncated { .. } | GgufError::TooLarge { .. }, "key 0");
    }
    // A string value and arrays that claim more than there is.
    let claim = |n: u64| n.to_le_bytes().to_vec();
    refused!(
        refusal(|f| {
            f.set_raw("general.name", 8, claim(1 << 60));
        }),
        GgufError::Truncated { .. },
        "general.name"
    );
    for element in [0u32, 4, 7, 8, 12] {
        for n in [1u64 << 33, 1 << 61, u64::MAX] {
            let mut raw = element.to_le_bytes().to_vec();
            raw.extend(claim(n));
            refused!(
                refusal(|f| {
                    f.set_raw("x.array", 9, raw);
                }),
                GgufError::Truncated { .. },
                "x.array"
            );
        }
    }
}

#[test]
fn limits_hold_for_large_files() {
    let bytes = b158().encode();
    let with = |change: fn(&mut Limits)| {
        let mut limits = Limits::default();
        change(&mut limits);
        check_with(&bytes, &limits).unwrap_err()
    };
    refused!(with(|l| l.max_keys = 3), GgufError::TooLarge { limit: 3, .. }, "keys");
    refused!(with(|l| l.max_tensors = 3), GgufError::TooLarge { limit: 3, .. }, "tensors");
    refused!(with(|l| l.max_key_bytes = 5), GgufError::TooLarge { limit: 5, .. }, "key 0");
    refused!(with(|l| l.max_string_bytes = 3), GgufError::TooLarge { limit: 3, .. }, "general.architecture");
    refused!(with(|l| l.max_array_elements = 9), GgufError::TooLarge { limit: 9, .. }, "tokenizer.ggml.tokens");
    refused!(with(|l| l.max_header_bytes = 900), GgufError::TooLarge { limit: 900, .. }, "header");
}

#[test]
fn keys_and_values() {
    let named =
        |key: &[u8]| refusal(|f| f.keys.insert(1, fixture::KeyEntry { key: key.to_vec(), value: (4, vec![0; 4]) }));
    refused!(named(b""), GgufError::Key { index: 1, .. }, "empty");
    refused!(named(b"a\0b"), GgufError::Key { index: 1, .. }, "NUL");
    refused!(named(b"\xff\xfe"), GgufError::Key { index: 1, .. }, "UTF-8");
    refused!(named(b"general.architecture"), GgufError::DuplicateKey { first: 0, second: 1, .. }, "twice");
    for ty in [13, 999, u32::MAX] {
        refused!(
            refusal(|f| {
                f.set_raw("x", ty, vec![0; 8]);
            }),
            GgufError::ValueType { .. },
            &ty.to_string(),
            "\"x\""
        );
    }
    let mut nested = 9u32.to_le_bytes().to_vec();
    nested.extend(1u64.to_le_bytes());
    refused!(
        refusal(|f| {
            f.set_raw("x", 9, nested);
        }),
        GgufError::NestedArray { .. },
        "\"x\""
    );
    refused!(
        refusal(|f| {
            f.set_raw("x", 7, vec![2]);
        }),
        GgufError::Bool { value: 2, .. },
        "\"x\""
    );
    let mut bools = 7u32.to_le_bytes().to_vec();
    bools.extend(2u64.to_le_bytes());
    bools.extend([1, 255]);
    refused!(
        refusal(|f| {
            f.set_raw("x", 9, bools);
        }),
        GgufError::Bool { value: 255, .. },
        "\"x\""
    );
    // Every type of value comes back as it was written.
    let values: Vec<Value> = vec![
        7u8.into(),
        (-7i8).into(),
        700u16.into(),
        (-700i16).into(),
        70_000u32.into(),
        (-70_000i32).into(),
        (1u64 << 40).into(),
        (-(1i64 << 40)).into(),
        0.5f32.into(),
        (-0.25f64).into(),
        true.into(),
        "text \u{1f600}".into(),
        Array::U8(vec![1, 2]).into(),
        Array::I64(vec![-1]).into(),
        Array::Bool(vec![true, false]).into(),
        Array::F64(vec![]).into(),
        ["", "a", "bc"].into_iter().collect::<Strings>().into(),
    ];
    let mut file = b158();
    for (i, value) in values.iter().enumerate() {
        file.set(&format!("x.{i}"), value.clone());
    }
    let gguf = Gguf::parse(&file.encode(), &Limits::default()).unwrap();
    for (i, value) in values.iter().enumerate() {
        assert_eq!(gguf.get(&format!("x.{i}")), Some(value));
    }
}

#[test]
fn alignment() {
    let at = |value: u32| {
        let mut file = b158();
        file.set("general.alignment", value);
        file.alignment = u64::from(value).max(1);
        check(&file.encode())
    };
    for good in [32, 64, 4096] {
        assert!(at(good).is_ok(), "{good}");
    }
    refused!(at(0).unwrap_err(), GgufError::Alignment { value: 0, .. }, "zero");
    refused!(at(24).unwrap_err(), GgufError::Alignment { value: 24, .. }, "power of two");
    refused!(at(4).unwrap_err(), GgufError::Alignment { value: 4, .. }, "multiple of 8");
    // Far behind the end of the file (the data stays where it is).
    refused!(
        refusal(|f| {
            f.set("general.alignment", 1u32 << 31);
        }),
        GgufError::Misaligned { alignment: 2147483648, .. } | GgufError::Truncated { .. },
        "token_embd.weight"
    );
    refused!(
        refusal(|f| {
            f.set("general.alignment", 32u64);
        }),
        GgufError::KeyType { .. },
        "general.alignment",
        "u64",
        "u32"
    );
    // Eight is allowed, but then the first tensor must happen to lie on a multiple of 32, where
    // the engine maps it.
    let mut outcomes = [0; 2];
    for pad in 0..4 {
        let mut file = b158();
        file.set("general.alignment", 8u32).set("x", "y".repeat(8 * pad).as_str());
        file.alignment = 8;
        match check(&file.encode()) {
            Ok(_) => outcomes[0] += 1,
            Err(GgufError::Misaligned { alignment: 32, .. }) => outcomes[1] += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(outcomes, [1, 3]);
}

#[test]
fn tensor_entries() {
    let change = |f: fn(&mut fixture::TensorEntry)| refusal(|file| f(file.tensor_mut("blk.0.attn_q.weight")));
    let embedding = |f: fn(&mut fixture::TensorEntry)| refusal(|file| f(file.tensor_mut("token_embd.weight")));
    refused!(change(|t| t.name = vec![]), GgufError::TensorName { .. }, "empty");
    refused!(change(|t| t.name = vec![b'n'; 64]), GgufError::TensorName { .. }, "63");
    refused!(change(|t| t.name = b"a\0".to_vec()), GgufError::TensorName { .. }, "NUL");
    refused!(change(|t| t.name = b"\xc3".to_vec()), GgufError::TensorName { .. }, "UTF-8");
    refused!(
        change(|t| t.name = b"token_embd.weight".to_vec()),
        GgufError::DuplicateTensor { .. },
        "token_embd.weight"
    );
    refused!(embedding(|t| t.dims = vec![]), GgufError::Dimensions { .. }, "0 dimensions");
    refused!(embedding(|t| t.dims = vec![1; 5]), GgufError::Dimensions { .. }, "5 dimensions");
    refused!(embedding(|t| t.dims[1] = 0), GgufError::Dimensions { .. }, "dimension 1 is 0");
    refused!(embedding(|t| t.dims[0] = 1 << 63), GgufError::Dimensions { .. }, "dimension 0", "9223372036854775808");
    refused!(embedding(|t| t.dims = vec![1 << 32, 1 << 32]), GgufError::Dimensions { .. }, "elements");
    refused!(embedding(|t| t.dims = vec![1 << 62]), GgufError::Dimensions { .. }, "bytes");
    refused!(embedding(|t| t.dims = vec![1 << 50]), GgufError::Truncated { .. }, "token_embd.weight");
    refused!(change(|t| t.offset = Some(u64::MAX - 31)), GgufError::OffsetRange { .. }, "attn_q");
    refused!(change(|t| t.offset = Some(1 << 40)), GgufError::Truncated { .. }, "attn_q");
    refused!(embedding(|t| t.offset = Some(8)), GgufError::Misaligned { alignment: 32, .. }, "token_embd");
    refused!(change(|t| t.offset = Some(32)), GgufError::Overlap { .. }, "token_embd.weight", "attn_q");
}

#[test]
fn tensor_types() {
    let typed = |ty: u32| refusal(|f| f.tensor_mut("blk.0.attn_q.weight").ty = ty);
    refused!(typed(38), GgufError::TensorType { number: 38, .. }, "tl1", "i2_s", "attn_q");
    refused!(typed(39), GgufError::TensorType { number: 39, .. }, "tl2", "mxfp4");
    refused!(typed(37), GgufError::TensorType { number: 37, .. }, "i8_s");
    refused!(typed(4), GgufError::TensorType { number: 4, .. }, "q4_2");
    refused!(typed(5), GgufError::TensorType { number: 5, .. }, "q4_3");
    refused!(typed(999), GgufError::TensorType { number: 999, .. }, "0 to 39");
    refused!(typed(u32::MAX), GgufError::TensorType { number: u32::MAX, .. }, "0 to 39");
    // Known, but nothing can be multiplied with them.
    for ty in [GgmlType::I8, GgmlType::I32, GgmlType::Q8_1] {
        let error = refusal(|f| {
            let tensor = f.tensor_mut("blk.0.attn_q.weight");
            tensor.ty = ty.number();
            tensor.data = vec![0; ty.tensor_bytes(128 * 128).unwrap() as usize];
        });
        refused!(error, GgufError::TensorRole { .. }, ty.name(), "weight matrix");
    }
    // Norms must be f32: the engine asserts it.
    let error = refusal(|f| {
        let norm = f.tensor_mut("blk.0.ffn_norm.weight");
        norm.ty = GgmlType::F16.number();
        norm.data.truncate(256);
    });
    refused!(error, GgufError::TensorRole { .. }, "ffn_norm", "f16", "f32");
    // The interleaved types cannot be looked up by row.
    let error = refusal(|f| {
        let tensor = f.tensor_mut("token_embd.weight");
        tensor.ty = GgmlType::Q4_0_4_4.number();
        tensor.data = vec![0; 128 * 260 / 32 * 18];
    });
    refused!(error, GgufError::TensorRole { .. }, "q4_0_4x4", "embeddings");
}

/// Sizes and names against what ggml's own tables say: `sizeof` of the blocks in `ggml-common.h`
/// (its static assertions), bits per weight of the published types.
#[test]
fn type_table() {
    let bits_per_weight = |ty: GgmlType| ty.row_bytes(256).unwrap() as f64 * 8.0 / 256.0;
    for (ty, number, bits) in [
        (GgmlType::F32, 0, 32.0),
        (GgmlType::F16, 1, 16.0),
        (GgmlType::Q4_0, 2, 4.5),
        (GgmlType::Q4_1, 3, 5.0),
        (GgmlType::Q5_0, 6, 5.5),
        (GgmlType::Q5_1, 7, 6.0),
        (GgmlType::Q8_0, 8, 8.5),
        (GgmlType::Q8_1, 9, 9.0),
        (GgmlType::Q2_K, 10, 2.625),
        (GgmlType::Q3_K, 11, 3.4375),
        (GgmlType::Q4_K, 12, 4.5),
        (GgmlType::Q5_K, 13, 5.5),
        (GgmlType::Q6_K, 14, 6.5625),
        (GgmlType::Q8_K, 15, 9.125),
        (GgmlType::IQ2_XXS, 16, 2.0625),
        (GgmlType::IQ2_XS, 17, 2.3125),
        (GgmlType::IQ3_XXS, 18, 3.0625),
        (GgmlType::IQ1_S, 19, 1.5625),
        (GgmlType::IQ4_NL, 20, 4.5),
        (GgmlType::IQ3_S, 21, 3.4375),
        (GgmlType::IQ2_S, 22, 2.5625),
        (GgmlType::IQ4_XS, 23, 4.25),
        (GgmlType::IQ1_M, 29, 1.75),
        (GgmlType::BF16, 30, 16.0),
        (GgmlType::TQ1_0, 34, 1.6875),
        (GgmlType::TQ2_0, 35, 2.0625),
        (GgmlType::I2_S, 36, 2.0),
    ] {
        assert_eq!(ty.number(), number);
        assert_eq!(bits_per_weight(ty), bits, "{ty}");
        assert_eq!(GgmlType::from_number(number), Some(ty));
        assert_eq!(GgmlType::from_name(&ty.name().to_uppercase()), Some(ty));
    }
    // A quarter byte a weight, and 32.
    assert_eq!(GgmlType::I2_S.tensor_bytes(2560 * 6912), Some(4_423_680 + 32));
    assert_eq!(GgmlType::I2_S.row_bytes(127), None);
    assert_eq!(GgmlType::F64.tensor_bytes(u64::MAX), None);
}

#[test]
fn i2s_rows() {
    let shape = |row: u64, rows: u64| {
        let mut file = b158();
        let tensor = file.tensor_mut("blk.0.attn_q.weight");
        tensor.dims = vec![row, rows];
        Gguf::parse(&file.encode(), &Limits::default()).err()
    };
    for row in [64, 127, 129, 2592] {
        refused!(
            shape(row, 4).unwrap(),
            GgufError::RowLength { block: 128, .. },
            "attn_q",
            &row.to_string(),
            "128",
            "i2_s"
        );
    }
    for rows in [1, 2, 3, 126] {
        refused!(shape(128, rows).unwrap(), GgufError::RowCount { group: 4, .. }, "attn_q", &rows.to_string());
    }
    assert!(shape(128, 128).is_none());
    // Upstream's type 36 takes 4.5 bits a weight: more space than I2_S.
    let error = refusal(|f| {
        let tensor = f.tensor_mut("blk.0.attn_q.weight");
        tensor.data = vec![0; 128 * 128 / 32 * 18];
    });
    refused!(error, GgufError::I2sSpace { space: 9216, needed: 4128, .. }, "attn_q", "iq4_nl_4_4");
}

#[test]
fn file_end() {
    let file = b158();
    let bytes = file.encode();
    for cut in [1, 29, 33, bytes.len() / 2, bytes.len() * 9 / 10] {
        let error = check(&bytes[..bytes.len() - cut]).unwrap_err();
        refused!(error, GgufError::Truncated { .. }, "truncated", "again");
    }
    refused!(
        check(&bytes[..bytes.len() - 1]).unwrap_err(),
        GgufError::Truncated { needed: 4128, available: 4127, .. },
        "ffn_down"
    );
    // Writers pad the end, and some append: the engine accepts that, and so does this.
    let padding = warnings_of(|f| f.trailing = vec![0; 32 - 1]);
    assert_eq!(padding, [GgufWarning::UnusedBytes { bytes: 31 }]);
    let gap = warnings_of(|f| f.tensor_mut("token_embd.weight").data.extend([0; 64]));
    assert_eq!(gap, [GgufWarning::UnusedBytes { bytes: 64 }]);
}

#[test]
fn architectures() {
    let named = |name: &str| {
        refusal(|f| {
            f.set("general.architecture", name);
        })
    };
    refused!(named("nope"), GgufError::Architecture { .. }, "\"nope\"", "does not know");
    refused!(named("qwen2"), GgufError::Architecture { .. }, "qwen2", "ternary");
    refused!(named("bitnet-b1_58"), GgufError::Architecture { .. }, "bitnet-b1_58", "bitnet-b1.58");
    refused!(
        refusal(|f| {
            f.remove("general.architecture");
        }),
        GgufError::MissingKey { .. },
        "general.architecture"
    );
    refused!(
        refusal(|f| {
            f.set("general.architecture", 1u32);
        }),
        GgufError::KeyType { .. },
        "general.architecture",
        "string"
    );
    // The engine aborts on another type of this key, and would open the other parts of this one.
    refused!(
        refusal(|f| {
            f.set("general.file_type", 1i32);
        }),
        GgufError::KeyType { .. },
        "general.file_type",
        "i32"
    );
    refused!(
        refusal(|f| {
            f.set("split.count", 2u16);
        }),
        GgufError::Split { count: 2 },
        "merge"
    );
}

#[test]
fn hyperparameters() {
    let set = |key: &str, value: Value| {
        refusal(|f| {
            f.set(&format!("bitnet-b1.58.{key}"), value);
        })
    };
    for key in [
        "context_length",
        "embedding_length",
        "block_count",
        "feed_forward_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ] {
        let name = format!("bitnet-b1.58.{key}");
        refused!(
            refusal(|f| {
                f.remove(&name);
            }),
            GgufError::MissingKey { .. },
            name.as_str()
        );
        refused!(
            refusal(|f| {
                f.set(&name, 1u64);
            }),
            GgufError::KeyType { .. },
            name.as_str(),
            "u64"
        );
    }
    for (key, value, text) in [
        ("vocab_size", 259u32, "260"),
        ("context_length", 0, "1 to"),
        ("context_length", u32::MAX, "1 to"),
        ("embedding_length", 0, "1 to"),
        ("block_count", 0, "1 to 512"),
        ("block_count", 513, "1 to 512"),
        ("block_count", 2, "1 blocks"),
        ("feed_forward_length", 0, "1 to"),
        ("attention.head_count", 0, "1 to"),
        ("attention.head_count", 3, "divide"),
        ("attention.head_count_kv", 0, "1 to"),
        ("attention.head_count_kv", 3, "1 to 2"),
        ("attention.key_length", 32, "keys have 32"),
        ("attention.value_length", 32, "keys have 64"),
        ("rope.dimension_count", 62, "64"),
        ("rope.scaling.original_context_length", 0, "1 to"),
        ("expert_count", 8, "experts"),
    ] {
        refused!(set(key, value.into()), GgufError::KeyValue { .. }, text, "bitnet-b1.58.", &value.to_string());
    }
    for (key, value) in [
        ("attention.layer_norm_rms_epsilon", 0f32),
        ("attention.layer_norm_rms_epsilon", -1e-5),
        ("attention.layer_norm_rms_epsilon", f32::NAN),
        ("attention.layer_norm_rms_epsilon", 1.0),
        ("rope.freq_base", 0.0),
        ("rope.freq_base", f32::INFINITY),
        ("rope.scaling.factor", f32::NAN),
        ("rope.scaling.factor", -2.0),
        ("rope.scaling.attn_factor", 0.0),
    ] {
        refused!(set(key, value.into()), GgufError::KeyValue { .. }, key);
    }
    refused!(set("rope.scaling.type", "longrope".into()), GgufError::KeyValue { .. }, "longrope", "yarn");
    refused!(set("rope.scaling.finetuned", 1u32.into()), GgufError::KeyType { .. }, "finetuned");
    refused!(set("feed_forward_length", vec![1.0f32].into()), GgufError::KeyType { .. }, "array of f32");
    refused!(set("feed_forward_length", vec![128i32; 2].into()), GgufError::KeyValue { .. }, "1 blocks");
    refused!(set("feed_forward_length", vec![-1i32].into()), GgufError::KeyValue { .. }, "-1");
    // One value for each block is the engine's other spelling.
    assert!(
        warnings_of(|f| {
            f.set("bitnet-b1.58.feed_forward_length", vec![128i32]);
        })
        .is_empty()
    );
    // Shapes and hyperparameters contradict each other.
    refused!(
        set("feed_forward_length", 256u32.into()),
        GgufError::TensorShape { .. },
        "ffn_sub_norm",
        "[128]",
        "[256]"
    );
    refused!(
        set("attention.head_count_kv", 2u32.into()),
        GgufError::TensorShape { .. },
        "attn_k",
        "[128, 64]",
        "[128, 128]"
    );
}

#[test]
fn engine_defaults_are_filled_in() {
    let mut file = tiny_model(Architecture::Llama);
    for key in ["rope.freq_base", "rope.dimension_count", "vocab_size"] {
        file.remove(&format!("llama.{key}"));
    }
    file.set("llama.rope.scaling.type", "yarn").set("llama.rope.scaling.factor", 4f32);
    let info = check(&file.encode()).unwrap();
    let h = info.hyperparameters();
    assert_eq!((h.rope.freq_base, h.rope.dimension_count, h.n_vocab), (10_000.0, 64, 260));
    assert_eq!((h.rope.scaling, h.rope.factor, h.rope.original_context), (RopeScaling::Yarn, 4.0, 256));
    assert_eq!(h.rope.kind, RopeKind::Norm);

    // `bitnet` alone may rotate part of a head.
    let mut file = tiny_model(Architecture::BitNet);
    file.set("bitnet.rope.dimension_count", 32u32);
    let info = check(&file.encode()).unwrap();
    assert!(info.warnings().contains(&GgufWarning::PartialRotation { rotated: 32, head_dim: 64 }));
    let odd = refusal_of(Architecture::BitNet, |f| {
        f.set("bitnet.rope.dimension_count", 31u32);
    });
    refused!(odd, GgufError::KeyValue { .. }, "even");
}

#[test]
fn tensors_of_a_model() {
    for name in ["token_embd.weight", "output_norm.weight", "blk.0.attn_sub_norm.weight", "blk.0.ffn_up.weight"] {
        refused!(
            refusal(|f| {
                f.remove_tensor(name);
            }),
            GgufError::MissingTensor { .. },
            name,
            "bitnet-b1.58"
        );
    }
    let f32s = |n: usize, value: f32| value.to_le_bytes().repeat(n);
    let added = |name: &str, dims: &[u64], value: f32| {
        let mut file = b158();
        let n = dims.iter().product::<u64>() as usize;
        file.tensor(name, dims, GgmlType::F32, f32s(n, value));
        check(&file.encode())
    };
    refused!(added("extra", &[4], 0.0).unwrap_err(), GgufError::UnexpectedTensor { .. }, "extra", "does not use");
    // The engine loads these two and computes without them.
    refused!(
        added("blk.0.ffn_up.bias", &[128], 0.0).unwrap_err(),
        GgufError::UnexpectedTensor { .. },
        "ffn_up.bias",
        "without it"
    );
    refused!(
        added("output.weight", &[128, 260], 0.0).unwrap_err(),
        GgufError::UnexpectedTensor { .. },
        "output.weight",
        "token_embd.weight"
    );
    // The same bytes as the embedding are harmless.
    let mut file = b158();
    let embedding = file.tensor_mut("token_embd.weight").data.clone();
    file.tensor("output.weight", &[128, 260], GgmlType::F16, embedding.clone());
    assert!(check(&file.encode()).is_ok());
    // With one byte changed they are not.
    file.tensor_mut("output.weight").data[70] ^= 1;
    assert!(matches!(check(&file.encode()), Err(GgufError::UnexpectedTensor { .. })));
    // `llama` uses it.
    let mut file = tiny_model(Architecture::Llama);
    file.tensor("output.weight", &[128, 260], GgmlType::F16, embedding);
    assert!(!check(&file.encode()).unwrap().hyperparameters().tied_output);
    // `bitnet` knows no such tensor, but scales.
    let mut file = tiny_model(Architecture::BitNet);
    file.tensor("blk.0.attn_q.scale", &[1], GgmlType::F32, f32s(1, 1.0));
    assert!(check(&file.encode()).is_ok());
    let mut file = tiny_model(Architecture::BitNet);
    file.tensor("output.weight", &[128, 260], GgmlType::F32, f32s(128 * 260, 0.0));
    assert!(matches!(check(&file.encode()), Err(GgufError::UnexpectedTensor { .. })));

    let info = added("rope_freqs.weight", &[32], 8.0).unwrap();
    assert_eq!(info.hyperparameters().rope.freq_factors, Some(vec![8.0; 32]));
    for bad in [0.0, f32::NAN, f32::INFINITY, -1.0] {
        refused!(
            added("rope_freqs.weight", &[32], bad).unwrap_err(),
            GgufError::TensorData { .. },
            "rope_freqs.weight",
            "element 0"
        );
    }
    assert!(added("blk.0.attn_q.bias", &[128], 0.5).is_ok());
}

#[test]
fn tokenizer_keys() {
    let set = |key: &str, value: Value| {
        refusal(|f| {
            f.set(&format!("tokenizer.ggml.{key}"), value);
        })
    };
    for key in ["model", "tokens", "merges"] {
        let name = format!("tokenizer.ggml.{key}");
        refused!(
            refusal(|f| {
                f.remove(&name);
            }),
            GgufError::MissingKey { .. },
            name.as_str()
        );
    }
    refused!(set("model", "bert".into()), GgufError::TokenizerModel { .. }, "bert", "gpt2");
    refused!(set("model", "no_vocab".into()), GgufError::TokenizerModel { .. }, "no_vocab");
    refused!(set("model", "x\u{7}".into()), GgufError::TokenizerModel { .. }, "\\u{7}");
    refused!(set("pre", "nope".into()), GgufError::PreTokenizer { .. }, "nope", "llama-bpe");
    refused!(set("pre", 3u32.into()), GgufError::KeyType { .. }, "tokenizer.ggml.pre");
    refused!(set("tokens", vec![0i32; 260].into()), GgufError::KeyType { .. }, "array of i32", "array of string");
    refused!(set("tokens", Strings::default().into()), GgufError::KeyValue { .. }, "at least one");
    refused!(
        set("token_type", vec![1i32; 259].into()),
        GgufError::ArrayLength { found: 259, expected: 260, .. },
        "token_type"
    );
    refused!(set("token_type", vec![1f32; 260].into()), GgufError::KeyType { .. }, "array of i32");
    refused!(set("scores", vec![0f32; 261].into()), GgufError::ArrayLength { found: 261, .. }, "scores");
    refused!(set("scores", vec![f32::NAN; 260].into()), GgufError::KeyValue { .. }, "NaN at element 0");
    refused!(set("scores", vec![0i32; 260].into()), GgufError::KeyType { .. }, "array of f32");
    refused!(set("merges", "a b".into()), GgufError::KeyType { .. }, "merges");
    for (merge, text) in [("", "empty"), ("ab", "no space"), (" a", "no space"), ("\0a b", "empty")] {
        let merges: Strings = ["h e", merge].into_iter().collect();
        refused!(set("merges", merges.into()), GgufError::Merge { index: 1, .. }, text);
    }
    let invalid: Strings = [&b"\xff b"[..]].into_iter().collect();
    refused!(set("merges", invalid.into()), GgufError::Merge { index: 0, .. }, "UTF-8");
    for key in ["bos_token_id", "eos_token_id"] {
        refused!(set(key, 260u32.into()), GgufError::SpecialToken { id: 260, n_vocab: 260, .. }, key);
        refused!(set(key, 1i32.into()), GgufError::KeyType { .. }, key, "u32");
    }
    refused!(set("mask_token_id", 1u64.into()), GgufError::KeyType { .. }, "mask_token_id");
    refused!(set("add_bos_token", 1u32.into()), GgufError::KeyType { .. }, "add_bos_token", "bool");
    refused!(
        refusal(|f| {
            f.set("tokenizer.chat_template", 1u32);
        }),
        GgufError::KeyType { .. },
        "chat_template"
    );
    refused!(
        refusal(|f| {
            f.set("general.name", "Phi-3-x");
        }),
        GgufError::MissingToken { .. },
        "</s>"
    );
}

/// The tokens of the fixture with one of them replaced.
fn tokens_with(index: usize, text: &[u8]) -> Strings {
    let gguf = Gguf::parse(&b158().encode(), &Limits::default()).unwrap();
    let tokens = gguf.strings("tokenizer.ggml.tokens").unwrap().unwrap();
    let mut texts: Vec<Vec<u8>> = tokens.iter().map(<[u8]>::to_vec).collect();
    texts[index] = text.to_vec();
    texts.into_iter().collect()
}

#[test]
fn token_texts() {
    let with = |index: usize, text: &'static [u8]| {
        move |f: &mut GgufBuilder| {
            f.set("tokenizer.ggml.tokens", tokens_with(index, text));
        }
    };
    refused!(refusal(with(259, b"h")), GgufError::DuplicateToken { second: 259, .. }, "\"h\"");
    // The engine ends texts at a NUL, so these two are the same to it.
    refused!(refusal(with(259, b"h\0x")), GgufError::DuplicateToken { second: 259, .. }, "\"h\"");
    // And an empty text gets a name, which another token may have.
    let error = refusal(|f| {
        with(258, b"")(f);
        let gguf = Gguf::parse(&f.encode(), &Limits::default()).unwrap();
        let tokens = gguf.strings("tokenizer.ggml.tokens").unwrap().unwrap();
        let mut texts: Vec<Vec<u8>> = tokens.iter().map(<[u8]>::to_vec).collect();
        texts[259] = b"[EMPTY_258]".to_vec();
        f.set("tokenizer.ggml.tokens", texts.into_iter().collect::<Strings>());
    });
    refused!(error, GgufError::DuplicateToken { first: 258, second: 259, .. }, "EMPTY_258");
    refused!(refusal(with(40, b"\xff\xff")), GgufError::Token { id: 40, .. }, "UTF-8");
    assert_eq!(warnings_of(with(258, b"")), [GgufWarning::EmptyToken { count: 1, first: 258 }]);
    assert_eq!(warnings_of(with(258, b"zz\0y")), [GgufWarning::TokenWithNul { count: 1, first: 258 }]);
    // 'h' is byte 0x68, at index 0x68 of the fixture.
    assert_eq!(warnings_of(with(0x68, b"<gone>")), [GgufWarning::BytesNotCovered { count: 1, first: 0x68 }]);
}

#[test]
fn sentencepiece() {
    let spm = |f: &mut GgufBuilder| {
        let mut texts: Vec<String> = (0..256).map(|b| format!("<0x{b:02X}>")).collect();
        texts.extend(["<unk>", "<s>", "</s>", "▁a"].map(String::from));
        let mut types = vec![6i32; 256];
        types.extend([2, 3, 3, 1]);
        f.set("tokenizer.ggml.model", "llama")
            .set("tokenizer.ggml.tokens", texts.into_iter().collect::<Strings>())
            .set("tokenizer.ggml.scores", vec![0f32; 260])
            .set("tokenizer.ggml.token_type", types)
            .remove("tokenizer.ggml.merges")
            .remove("tokenizer.ggml.pre");
    };
    assert_eq!(warnings_of(spm), []);
    assert_eq!(
        warnings_of(|f| {
            spm(f);
            f.remove("tokenizer.ggml.scores");
        }),
        [GgufWarning::ScoresMissing]
    );
    let error = refusal(|f| {
        spm(f);
        let mut texts: Vec<String> = (0..259).map(|i| format!("t{i}")).collect();
        texts.push("z".into());
        f.set("tokenizer.ggml.tokens", texts.into_iter().collect::<Strings>());
    });
    refused!(error, GgufError::Token { id: 0, .. }, "byte");
}

#[test]
fn strict_mode() {
    let strict = |change: fn(&mut GgufBuilder)| {
        let mut file = b158();
        change(&mut file);
        check_with(&file.encode(), &Limits::strict())
    };
    assert!(strict(|_| {}).is_ok());
    let no_pre: fn(&mut GgufBuilder) = |f| {
        f.remove("tokenizer.ggml.pre");
    };
    refused!(
        strict(no_pre).unwrap_err(),
        GgufError::Strict(GgufWarning::PreTokenizerMissing),
        "tokenizer.ggml.pre",
        "llama-bpe"
    );
    assert_eq!(warnings_of(no_pre), [GgufWarning::PreTokenizerMissing]);
    let out_of_range: fn(&mut GgufBuilder) = |f| {
        f.set("tokenizer.ggml.padding_token_id", u32::MAX);
    };
    assert!(strict(out_of_range).is_err());
    assert_eq!(
        warnings_of(out_of_range),
        [GgufWarning::SpecialTokenIgnored { key: "tokenizer.ggml.padding_token_id", id: u32::MAX }]
    );
    let no_eos: fn(&mut GgufBuilder) = |f| {
        f.remove("tokenizer.ggml.eos_token_id");
    };
    assert!(strict(no_eos).is_err());
    assert_eq!(warnings_of(no_eos), [GgufWarning::SpecialTokenDefault { key: "tokenizer.ggml.eos_token_id", id: 11 }]);
}

/// A file cut anywhere is refused: every byte of the fixture is needed.
#[test]
fn every_truncation_is_refused() {
    let bytes = b158().encode();
    let header = b158().encode_header().len();
    // Inside the header at every byte, in the data at every 61st.
    for len in (0..header).chain((header..bytes.len()).step_by(61)) {
        let error = check(&bytes[..len]).expect_err("a truncated file must be refused");
        assert!(matches!(error, GgufError::Truncated { .. } | GgufError::Magic { .. }), "{len}: {error}");
    }
}

/// The file whose bytes are flipped, and the length of its header.
static FLIPPED: LazyLock<(Vec<u8>, usize)> = LazyLock::new(|| (b158().encode(), b158().encode_header().len()));

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_500, ..ProptestConfig::default() })]

    /// Four flips a case: an error or a model, and then one whose tensors lie in the file.
    #[test]
    fn byte_flips(flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 4)) {
        let (mut bytes, header) = (FLIPPED.0.clone(), FLIPPED.1);
        for (at, value) in flips {
            let at = at.index(header);
            bytes[at] = value;
            if let Ok(gguf) = Gguf::parse(&bytes, &Limits::default()) {
                for tensor in gguf.tensors() {
                    prop_assert!(tensor.range().end <= bytes.len() as u64);
                    prop_assert!(tensor.offset() >= gguf.data_offset());
                }
                if let Ok(info) = ModelInfo::check(&gguf, &bytes, &Limits::default()) {
                    prop_assert_eq!(info.hyperparameters().n_vocab, TINY_VOCAB);
                }
            }
        }
    }

    /// Whatever follows the magic.
    #[test]
    fn noise_after_the_magic(noise in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(&noise);
        if let Ok(gguf) = Gguf::parse(&bytes, &Limits::default()) {
            prop_assert!(gguf.entries().len() * 14 <= noise.len());
        }
    }
}

fn on_disk(bytes: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    (dir, path)
}

#[test]
fn files() {
    let bytes = b158().encode();
    let (dir, path) = on_disk(&bytes);
    let model = ModelFile::open(&path, &Limits::default()).unwrap();
    assert_eq!(model.info().hyperparameters().n_embd, 128);
    let tensor = model.gguf().tensor("blk.0.attn_k.weight").unwrap();
    let written = b158().tensor_mut("blk.0.attn_k.weight").data.clone();
    assert_eq!(model.file().read_tensor(tensor).unwrap(), written);
    let mut part = [0; 4];
    model.file().read_tensor_part(tensor, 64 * 32, &mut part).unwrap();
    assert_eq!(f32::from_le_bytes(part), 0.05);
    assert!(model.file().read_tensor_part(tensor, tensor.size() - 3, &mut part).is_err());
    assert!(model.file().read_tensor_part(tensor, u64::MAX, &mut part).is_err());

    let refused = |path: &std::path::Path| GgufFile::open(path, &Limits::default()).unwrap_err();
    refused!(refused(dir.path()), GgufError::NotRegularFile { .. }, "folder");
    refused!(refused(&dir.path().join("absent")), GgufError::Io { .. }, "absent");
    #[cfg(target_os = "linux")]
    refused!(refused("/dev/zero".as_ref()), GgufError::NotRegularFile { .. }, "device");

    // The file shrinks after it was opened: an error, no signal.
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(5000).unwrap();
    assert!(matches!(model.file().read_tensor(tensor), Err(GgufError::Read { .. })));
}

/// Opening a large file reads its header only: the data of this one is a hole of 1 TiB, which
/// nothing could read in the time of a test.
#[cfg(target_os = "linux")]
#[test]
fn opening_does_not_read_the_data() {
    let mut file = GgufBuilder::default();
    file.set("general.architecture", "llama");
    file.tensor("w", &[1 << 38], GgmlType::F32, vec![]);
    let (_dir, path) = on_disk(&file.encode_header());
    let handle = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    if handle.set_len((1 << 40) + 4096).is_err() {
        return; // The file system has no sparse files of this size.
    }
    let gguf = GgufFile::open(&path, &Limits::default()).unwrap();
    assert_eq!(gguf.gguf().tensor_bytes(), 1 << 40);
}

#[test]
fn ternary_data() {
    let values = |change: fn(&mut Vec<u8>)| {
        let mut file = b158();
        let data = &mut file.tensor_mut("blk.0.attn_k.weight").data;
        data[..64 * 32].fill(0b00_01_10_01);
        change(data);
        let (dir, path) = on_disk(&file.encode());
        let opened = GgufFile::open(&path, &Limits::default()).unwrap();
        let tensor = opened.gguf().tensor("blk.0.attn_k.weight").unwrap().clone();
        drop(dir);
        opened.check_values(&tensor)
    };
    // Codes 0, 1, 2 are −1, 0, 1; each byte above has one, two and one of them.
    assert_eq!(values(|_| {}).unwrap(), Some(TernaryData { counts: [2048, 4096, 2048], scale: 0.05 }));
    refused!(values(|d| d[7] = 0b11_00_00_11).unwrap_err(), GgufError::TensorData { .. }, "2 of 8192", "code 3");
    for scale in [f32::NAN, f32::INFINITY, -1.0] {
        let error = match scale {
            s if s.is_nan() => values(|d| d[2048..2052].copy_from_slice(&f32::NAN.to_le_bytes())),
            s if s > 0.0 => values(|d| d[2048..2052].copy_from_slice(&f32::INFINITY.to_le_bytes())),
            _ => values(|d| d[2048..2052].copy_from_slice(&(-1f32).to_le_bytes())),
        };
        refused!(error.unwrap_err(), GgufError::TensorData { .. }, "scale");
    }
    let mut file = b158();
    file.tensor_mut("blk.0.ffn_norm.weight").data[20..24].copy_from_slice(&f32::NAN.to_le_bytes());
    let (_dir, path) = on_disk(&file.encode());
    let opened = GgufFile::open(&path, &Limits::default()).unwrap();
    let norm = opened.gguf().tensor("blk.0.ffn_norm.weight").unwrap();
    refused!(opened.check_values(norm).unwrap_err(), GgufError::TensorData { .. }, "element 5 of row 0");
}

fn go_on(_: u64, _: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn hashes_change_with_what_they_cover() {
    let hashes = |change: &dyn Fn(&mut GgufBuilder)| {
        let mut file = b158();
        change(&mut file);
        let (_dir, path) = on_disk(&file.encode());
        let model = ModelFile::open(&path, &Limits::default()).unwrap();
        (model.info().arch_hash(), model.info().tokenizer_hash(), model.file().weights_hash(&mut go_on).unwrap())
    };
    let base = hashes(&|_| {});
    // Metadata, the order of tensors and padding mean nothing.
    assert_eq!(
        hashes(&|f| {
            f.set("general.name", "other").set("x", 1u8);
        }),
        base
    );
    assert_eq!(hashes(&|f| f.tensors.reverse()), base);
    assert_eq!(
        hashes(&|f| {
            f.set("bitnet-b1.58.context_length", 512u32);
        }),
        base
    );
    assert_eq!(
        hashes(&|f| {
            f.set("bitnet-b1.58.rope.scaling.type", "none");
        }),
        base
    );
    let differs = |change: &dyn Fn(&mut GgufBuilder)| {
        let (a, t, w) = hashes(change);
        (a != base.0, t != base.1, w != base.2)
    };
    assert_eq!(
        differs(&|f| {
            f.set("bitnet-b1.58.rope.freq_base", 10_000f32);
        }),
        (true, false, false)
    );
    assert_eq!(
        differs(&|f| {
            f.set("bitnet-b1.58.rope.scaling.factor", 2f32);
        }),
        (true, false, false)
    );
    assert_eq!(
        differs(&|f| {
            f.set("bitnet-b1.58.rope.scaling.attn_factor", 2f32);
        }),
        (true, false, false)
    );
    assert_eq!(
        differs(&|f| {
            f.set("tokenizer.ggml.pre", "gpt-2");
        }),
        (false, true, false)
    );
    assert_eq!(
        differs(&|f| {
            f.set("tokenizer.ggml.add_bos_token", false);
        }),
        (false, true, false)
    );
    assert_eq!(differs(&|f| f.tensor_mut("output_norm.weight").data[0] ^= 1), (false, false, true));
}

#[test]
fn hashing_can_be_stopped_and_reports_progress() {
    let bytes = b158().encode();
    let (_dir, path) = on_disk(&bytes);
    let file = GgufFile::open(&path, &Limits::default()).unwrap();
    let stop = &mut |_, _| ControlFlow::Break(());
    assert!(matches!(file.weights_hash(stop), Err(GgufError::Cancelled)));
    assert!(matches!(file.file_hash(stop), Err(GgufError::Cancelled)));
    let mut last = (0, 0);
    file.weights_hash(&mut |done, total| {
        last = (done, total);
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(last, (file.gguf().tensor_bytes(), file.gguf().tensor_bytes()));
}

#[test]
fn hash_text() {
    // SHA-256 of "abc", from FIPS 180-4.
    let text = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(Sha256Hash::of(b"abc").to_string(), text);
    assert_eq!(text.parse(), Ok(Sha256Hash::of(b"abc")));
    for bad in ["", "sha256:", &text[..70], &text.to_uppercase(), &text.replace("sha256", "blake3")] {
        assert_eq!(bad.parse::<Sha256Hash>(), Err(ParseHashError));
    }
}

#[test]
fn kv_memory() {
    let info = check(&b158().encode()).unwrap();
    let h = info.hyperparameters();
    // 1 layer, 1 KV head of 64, 2 bytes, keys and values.
    assert_eq!(h.kv_bytes_per_token(KvType::F16, KvType::F16), Some(256));
    // q8_0: 34 bytes for 32 elements.
    assert_eq!(h.kv_bytes_per_token(KvType::Q8_0, KvType::F16), Some(68 + 128));
    assert_eq!(h.kv_bytes(33, KvType::F16, KvType::F16, false), Some(64 * 256));
    assert_eq!(h.kv_bytes(33, KvType::F16, KvType::F16, true), Some(256 * 256));
    // BitNet-b1.58-2B-4T: 30 layers, 5 KV heads of 128: 75 KiB per token.
    let big = Hyperparameters { n_layer: 30, n_head_kv: 5, head_dim: 128, ..h.clone() };
    assert_eq!(big.kv_bytes_per_token(KvType::F16, KvType::F16), Some(75 << 10));
    let odd = Hyperparameters { head_dim: 48, ..h.clone() };
    assert_eq!(odd.kv_bytes_per_token(KvType::Q8_0, KvType::F16), None);
}

/// What `scripts/model_hashes.py`, which was written from the description of the hashes, prints
/// for these files.
#[test]
fn hashes_match_the_python_script() {
    let llama = |file: &mut GgufBuilder| {
        file.set("llama.rope.scaling.type", "yarn")
            .set("llama.rope.scaling.factor", 4f32)
            .set("tokenizer.ggml.scores", vec![-0.5f32; 260])
            .tensor("rope_freqs.weight", &[32], GgmlType::F32, 8f32.to_le_bytes().repeat(32));
    };
    let expected = [
        (
            Architecture::BitNet,
            "2371eb3b0d70a35260f3a6fced743bed255a22058e38fb36908cc85cceaf6410",
            "57c40eed208adee67b2d5d084c87579a1514fd76741723cca1d522cd7a0a5316",
            "1bd88f09525b61caa04e1e2813514879e936ad507fd3b67960834bfe61291dea",
            "19a41d43fb6fb7adbf67e01e3b7779036556922eba2d541f41eb56cbd5bd3268",
        ),
        (
            Architecture::BitNetB158,
            "acf041d07a114857137cb291399febf3f6997b62c34c925fb8f5807465d72940",
            "57c40eed208adee67b2d5d084c87579a1514fd76741723cca1d522cd7a0a5316",
            "1bd88f09525b61caa04e1e2813514879e936ad507fd3b67960834bfe61291dea",
            "d863fc4f18d80218be1eeea43b81e8e2c544a04f59fe501d960a081766ab6954",
        ),
        (
            Architecture::Llama,
            "21aa50806f0dd25461513d692d892d19a840ef0312d0a276ac1f0d52d92b2187",
            "91231f48865b1272c31363f88e68b82db7f9492d5b69025386048a3bc9ba88c5",
            "d743b79463ae3bb5097e5fb9239a0567a9db47ddaf96f2ad14d23c65a8939aa5",
            "e5ad1599c96b07d2edf2e61d65c19cf551102dc799002287c5d68bac73985388",
        ),
    ];
    for (architecture, arch, weights, tokenizer, whole) in expected {
        let mut file = tiny_model(architecture);
        if architecture == Architecture::Llama {
            llama(&mut file);
        }
        let (_dir, path) = on_disk(&file.encode());
        let model = ModelFile::open(&path, &Limits::default()).unwrap();
        let info = model.info();
        assert_eq!(info.arch_hash().to_string(), format!("sha256:{arch}"));
        assert_eq!(model.file().weights_hash(&mut go_on).unwrap().to_string(), format!("sha256:{weights}"));
        assert_eq!(info.tokenizer_hash().to_string(), format!("sha256:{tokenizer}"));
        assert_eq!(model.file().file_hash(&mut go_on).unwrap().to_string(), format!("sha256:{whole}"));
        if architecture == Architecture::Llama {
            assert_eq!(
                info.hyperparameters().rope.scaling_text(),
                "yarn,factor=f32:40800000,original_context=256,freq_factors=sha256:\
                 ef229548296bc9f256ea8528031280a9ae142ad2600052ce092ff6c1444a256c"
            );
        }
    }
}
