//! `cartridge import-parts`: caches that a trainer got wrong, or that only claim to be large.

use serde_json::{Value, json};

use crate::attempt::{Attempt, harness};
use crate::gguf::model;

const AREA: &str = "parts";

/// Name, type and cells of a tensor of the fixture's model: one KV head of 64.
type Part = (&'static str, &'static str, u64);

fn file(parts: &[Part], change: impl FnOnce(&mut Value, &mut Vec<u8>)) -> Vec<u8> {
    let (mut header, mut data) = (json!({}), Vec::new());
    for (name, dtype, cells) in parts {
        let from = data.len();
        let bytes = if *dtype == "F32" { 4 } else { 2 };
        data.resize(from + (cells * 64 * bytes) as usize, 0x11);
        header[name] = json!({"dtype": dtype, "shape": [1, 1, cells, 64], "data_offsets": [from, data.len()]});
    }
    change(&mut header, &mut data);
    let header = header.to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

fn run(name: impl Into<String>, bytes: Vec<u8>) -> Attempt {
    let args = ["cartridge", "import-parts", "p", "--model", "m.gguf", "--out", "c"];
    harness(AREA, name, args).file("m.gguf", model().encode()).file("p", bytes)
}

const SOUND: [Part; 2] = [("trainable_keys.0", "F16", 3), ("trainable_values.0", "F16", 3)];

pub(crate) fn table() -> Vec<Attempt> {
    let frozen = [SOUND[0], SOUND[1], ("frozen_keys.0", "F16", 1), ("frozen_values.0", "F16", 1)];
    let mut all = vec![
        run("sound", file(&SOUND, |_, _| ())).creates("c"),
        run("with frozen cells", file(&frozen, |_, _| ())).creates("c"),
        run(
            "the whole context",
            file(&[("trainable_keys.0", "F16", 256), ("trainable_values.0", "F16", 256)], |_, _| ()),
        )
        .creates("c"),
    ];
    for (name, parts, says) in [
        ("nothing", &[][..], "layer 0 has no trainable"),
        ("no values", &SOUND[..1], "no trainable values"),
        ("no cells", &[("trainable_keys.0", "F16", 0), ("trainable_values.0", "F16", 0)], "0 cells"),
        ("other numbers of cells", &[SOUND[0], ("trainable_values.0", "F16", 4)], "layer 0 has 4 values"),
        ("frozen keys only", &frozen[..3], "layer 0 has 3 values"),
        ("one cell too many", &[("trainable_keys.0", "F16", 257), ("trainable_values.0", "F16", 257)], "257 cells"),
        ("two types", &[SOUND[0], SOUND[1], ("frozen_keys.0", "F32", 1)], "other keys are f16"),
        ("a layer that is not there", &[SOUND[0], SOUND[1], ("trainable_keys.1", "F16", 3)], "1 layers"),
        ("layer 2^32", &[SOUND[0], SOUND[1], ("trainable_keys.4294967296", "F16", 3)], "p"),
        ("layer -1", &[SOUND[0], SOUND[1], ("trainable_keys.-1", "F16", 3)], "trainable_keys.-1"),
        ("no layer", &[SOUND[0], SOUND[1], ("trainable_keys", "F16", 3)], "trainable_keys"),
        ("another name", &[SOUND[0], SOUND[1], ("optimizer.0", "F16", 3)], "optimizer.0"),
    ] {
        all.push(run(name, file(parts, |_, _| ())).refused(says));
    }
    for (name, shape) in [
        ("two heads of 32", json!([1, 2, 3, 32])),
        ("no batch, two dimensions", json!([3, 64])),
        ("a batch of three", json!([3, 1, 1, 64])),
        ("five dimensions", json!([1, 1, 1, 3, 64])),
        ("cells before heads", json!([1, 3, 1, 64])),
    ] {
        all.push(run(name, file(&SOUND, |h, _| h["trainable_keys.0"]["shape"] = shape)).refused("shape"));
    }
    for dtype in ["U8", "I32", "F64", "I64", ""] {
        all.push(
            run(format!("dtype {dtype:?}"), file(&SOUND, |h, _| h["trainable_keys.0"]["dtype"] = json!(dtype)))
                .refused("trainable_keys.0"),
        );
    }
    for (name, bits, at) in
        [("NaN in the keys", 0x7e00u16, 2 * 70), ("infinity in the values", 0xfc00, 3 * 128 + 2 * 130)]
    {
        let bytes = file(&SOUND, |_, data| data[at..at + 2].copy_from_slice(&bits.to_le_bytes()));
        all.push(run(name, bytes).refused("not finite"));
    }
    let in_frozen = file(&frozen, |_, data| {
        let at = data.len() - 2;
        data[at..].copy_from_slice(&0x7c00u16.to_le_bytes());
    });
    all.push(run("infinity in the frozen values", in_frozen).refused("position 0"));
    for (name, bytes, says) in [
        ("empty", Vec::new(), "0 bytes"),
        ("a pickle", b"\x80\x02}q\0(X\x0e\0\0\0trainable_keys".to_vec(), "pickle"),
        ("a torch archive", b"PK\x03\x04 and the rest".to_vec(), "pickle"),
        ("zeros", vec![0; 4096], "p"),
        (
            "two bytes short",
            {
                let f = file(&SOUND, |_, _| ());
                f[..f.len() - 2].to_vec()
            },
            "trainable_values.0",
        ),
        (
            "reversed offsets",
            file(&SOUND, |h, _| h["trainable_keys.0"]["data_offsets"] = json!([384, 0])),
            "trainable_keys.0",
        ),
        (
            "one tensor over another",
            file(&SOUND, |h, _| h["trainable_values.0"]["data_offsets"] = json!([0, 384])),
            "trainable",
        ),
        (
            "shape over u64",
            file(&SOUND, |h, _| h["trainable_keys.0"]["shape"] = json!([1u64 << 32, 1u64 << 32, 3, 64])),
            "overflows",
        ),
    ] {
        all.push(run(name, bytes).refused(says));
    }
    // As many cells as a file with holes claims.
    let cells = 1u64 << 21;
    let bytes = cells * 128;
    let entry = |from: u64| json!({"dtype": "F16", "shape": [1, 1, cells, 64], "data_offsets": [from, from + bytes]});
    let header = json!({"trainable_keys.0": entry(0), "trainable_values.0": entry(bytes)}).to_string();
    let start = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    all.push(
        run("2^21 cells in holes", Vec::new())
            .prepare(move |f| {
                std::fs::write(f.join("p"), &start).unwrap();
                // Where the file system allows it; elsewhere the file is short, and refused as well.
                let path = std::fs::OpenOptions::new().write(true).open(f.join("p")).unwrap();
                let _ = path.set_len(start.len() as u64 + 2 * bytes);
            })
            .refused("2097152 cells"),
    );
    for (name, tokens, says) in [
        ("too few tokens", "1 2", "2 tokens were given for 3 cells"),
        ("no tokens", "", "0 tokens were given for 3 cells"),
        ("a token outside of the vocabulary", "1 2 260", "260"),
        ("a negative token", "1 2 -1", "-1"),
        ("rubbish for a token", "1 2 x", "x"),
    ] {
        let args = ["cartridge", "import-parts", "p", "--model", "m.gguf", "--tokens", "t", "--out", "c"];
        let attempt = harness(AREA, name, args).file("m.gguf", model().encode());
        all.push(attempt.file("p", file(&SOUND, |_, _| ())).file("t", tokens).refused(says));
    }
    let title = ["cartridge", "import-parts", "p", "--model", "m.gguf", "--out", "c", "--title"];
    for (name, title_text) in [("terminal control", "\u{1b}]0;owned\u{7}".to_owned()), ("100 kB", "t".repeat(100_000))]
    {
        let args: Vec<&str> = title.iter().copied().chain([title_text.as_str()]).collect();
        let attempt = harness(AREA, format!("a title of {name}"), args).file("m.gguf", model().encode());
        all.push(attempt.file("p", file(&SOUND, |_, _| ())).creates("c"));
    }
    all
}
