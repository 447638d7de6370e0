//! `model quantize` and `model repack`: tensors and values that the target cannot hold, sizes that are only claimed.

use gguf::fixture::GgufBuilder;
use gguf::{Architecture, GgmlType};

use crate::attempt::{Attempt, harness};
use crate::gguf::model;

const AREA: &str = "repack";
const Q: &str = "blk.0.attn_q.weight";
const EMBEDDING: &str = "token_embd.weight";

fn run(name: impl Into<String>, command: &str, options: &[&str], bytes: Vec<u8>) -> Attempt {
    let args = [&["model", command, "--model", "m.gguf", "--out", "o.gguf"], options].concat();
    harness(AREA, name, args).file("m.gguf", bytes)
}

fn quantize(name: impl Into<String>, options: &[&str], change: impl FnOnce(&mut GgufBuilder)) -> Attempt {
    let mut file = model();
    change(&mut file);
    run(name, "quantize", options, file.encode())
}

fn repack(name: impl Into<String>, options: &[&str], change: impl FnOnce(&mut GgufBuilder)) -> Attempt {
    let mut file = model();
    change(&mut file);
    run(name, "repack", options, file.encode())
}

/// A file that is no model: what is converted is asked tensor by tensor.
fn one_tensor(name: &str, dims: &[u64], ty: GgmlType, data: Vec<u8>) -> GgufBuilder {
    let mut file = GgufBuilder::default();
    file.set("general.architecture", Architecture::BitNetB158.name());
    file.tensor(name, dims, ty, data);
    file
}

pub(crate) fn table() -> Vec<Attempt> {
    let mut all = vec![
        quantize("sound: q8_0", &["--embedding", "q8_0"], |_| ()).creates("o.gguf"),
        quantize("sound: matrices in f16", &["--matrices", "f16"], |_| ()).creates("o.gguf"),
        repack("sound: arm", &["--to", "i2_s", "--to-packing", "arm"], |_| ()).creates("o.gguf"),
    ];
    all.extend(types());
    all.extend(values());
    all.extend(claims());
    all
}

fn types() -> Vec<Attempt> {
    let mut all = Vec::new();
    for (name, options, says) in [
        ("nothing asked for", vec![], "nothing to do"),
        ("embedding of no name", vec!["--embedding", "q9"], "q9"),
        ("embedding of nothing", vec!["--embedding", ""], "--embedding"),
        ("embedding as it is", vec!["--embedding", "f16"], "already"),
        ("an output that is not there", vec!["--output", "q8_0"], "already"),
    ] {
        all.push(quantize(name, &options, |_| ()).usage(says));
    }
    for ty in ["q4_k", "q6_k", "iq2_xxs", "iq1_s", "q8_k", "i8", "i64", "f64", "tl1", "tl2"] {
        let attempt = quantize(format!("embedding as {ty}"), &["--embedding", ty], |_| ());
        // Names that the reader does not know are an option's fault.
        all.push(if GgmlType::from_name(ty).is_some() { attempt.refused(EMBEDDING) } else { attempt.usage(ty) });
    }
    for ty in ["i2_s", "tq2_0"] {
        all.push(quantize(format!("embedding as {ty}"), &["--embedding", ty], |_| ()).refused(EMBEDDING));
    }
    for ty in ["tq1_0", "tq2_0"] {
        all.push(repack(format!("rows of 128 as {ty}"), &["--to", ty], |_| ()).refused("multiple of 256"));
    }
    for (name, options, says) in [
        ("to no ternary type", vec!["--to", "q8_0"], "i2_s"),
        ("to nothing", vec![], "--to"),
        ("to itself", vec!["--to", "i2_s"], "already"),
        ("from a packing of no name", vec!["--to", "i2_s", "--from-packing", "mips"], "mips"),
    ] {
        all.push(repack(name, &options, |_| ()).usage(says));
    }
    for value in ["arm", "x86", "mips", "", "\u{1b}[2J"] {
        let attempt = repack(format!("the file states {value:?}"), &["--to", "i2_s", "--to-packing", "arm"], |f| {
            f.set("bitnet_harness.i2_s_packing", value);
        });
        all.push(if value == "arm" { attempt.refused("--from-packing") } else { attempt.creates("o.gguf") });
    }
    all.push(
        repack("the file states a number", &["--to", "i2_s", "--to-packing", "arm"], |f| {
            f.set("bitnet_harness.i2_s_packing", 7u32);
        })
        .creates("o.gguf"),
    );
    let empty = GgufBuilder::default().encode();
    all.push(run("no tensors", "quantize", &["--embedding", "q8_0"], empty.clone()).ends_any());
    all.push(run("no tensors, repacked", "repack", &["--to", "tq2_0"], empty).ends_any());
    all
}

/// Little-endian floats.
fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn values() -> Vec<Attempt> {
    let mut all = Vec::new();
    let scale = |name: &str, value: f32| {
        repack(format!("scale {name}"), &["--to", "i2_s", "--to-packing", "arm"], move |f| {
            f.tensor_mut(Q).data[32 * 128..][..4].copy_from_slice(&value.to_le_bytes());
        })
        .refused("attn_q")
    };
    all.extend([scale("NaN", f32::NAN), scale("infinity", f32::INFINITY), scale("-1", -1.0)]);
    let code = |f: &mut GgufBuilder| f.tensor_mut(Q).data[..4096].fill(0xff);
    all.push(repack("the code 3", &["--to", "i2_s", "--to-packing", "arm"], code).refused("the code 3"));
    all.push(quantize("the code 3 as f16", &["--matrices", "f16"], code).refused("the code 3"));
    for (name, value) in [("NaN", f32::NAN), ("infinity", f32::INFINITY), ("-infinity", f32::NEG_INFINITY)] {
        for ty in ["f16", "bf16", "q8_0", "q6_k", "q4_k", "q2_k", "iq4_xs", "iq4_nl", "q5_1"] {
            let mut data = vec![0.5; 1024];
            data[300] = value;
            let file = one_tensor(EMBEDDING, &[256, 4], GgmlType::F32, floats(&data));
            all.push(run(format!("{name} as {ty}"), "quantize", &["--embedding", ty], file.encode()).refused(""));
        }
    }
    // Finite, and beyond what the type or the scale of its blocks takes; and what vanishes in them.
    for ty in [
        "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl",
        "iq4_xs",
    ] {
        for (name, value, refused) in [("the largest number", f32::MAX, true), ("the smallest number", 1e-45, false)] {
            let data: Vec<f32> = (0..1024).map(|i| if i % 3 == 0 { -value } else { value }).collect();
            let file = one_tensor(EMBEDDING, &[256, 4], GgmlType::F32, floats(&data));
            let attempt = run(format!("{name} as {ty}"), "quantize", &["--embedding", ty], file.encode());
            let says = if ty.ends_with("f16") { "became" } else { "2.6843546e8" };
            all.push(if refused { attempt.refused(says) } else { attempt.creates("o.gguf") });
        }
    }
    let two = |value: f32| {
        let data: Vec<f32> = (0..1024).map(|i| [0.0, 0.5, -0.5, 0.5][i % 4]).chain([value; 1024]).collect();
        one_tensor(Q, &[256, 8], GgmlType::F32, floats(&data)).encode()
    };
    for (name, value) in [("another magnitude", 0.25), ("NaN", f32::NAN), ("infinity", f32::INFINITY)] {
        for to in ["i2_s", "tq1_0", "tq2_0"] {
            let attempt = run(format!("ternary with {name}, as {to}"), "repack", &["--to", to], two(value));
            all.push(attempt.refused("attn_q"));
        }
    }
    all.push(run("ternary floats", "repack", &["--to", "tq2_0"], two(0.5)).creates("o.gguf"));
    all
}

/// Sizes that a file with holes claims.
fn claims() -> Vec<Attempt> {
    let mut all = Vec::new();
    let sparse = |name: &str, args: &[&str], file: GgufBuilder, len: u64, says: &str| {
        let header = file.encode_header();
        harness(AREA, name, args)
            .prepare(move |folder| {
                let path = folder.join("m.gguf");
                std::fs::write(&path, &header).unwrap();
                // Where the file system allows it; elsewhere the file is short, and refused as well.
                let _ = std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(len);
            })
            .refused(says)
    };
    let to_f16 = ["model", "quantize", "--model", "m.gguf", "--embedding", "f16", "--out", "o.gguf"];
    let row = one_tensor(EMBEDDING, &[1 << 38, 1], GgmlType::F32, Vec::new());
    all.push(sparse("a row of 2^38", &to_f16, row, (1 << 40) + 4096, EMBEDDING));
    let long = one_tensor(Q, &[1 << 34, 4], GgmlType::I2_S, Vec::new());
    let arm = ["model", "repack", "--model", "m.gguf", "--to", "i2_s", "--to-packing", "arm", "--out", "o.gguf"];
    all.push(sparse("rows of 2^34, repacked", &arm, long, (1 << 34) + 4096, "attn_q"));
    // The evidence counts by rows and columns before anything is converted.
    let down = one_tensor("blk.0.ffn_down.weight", &[128, 1 << 35], GgmlType::I2_S, Vec::new());
    let tq2 = ["model", "repack", "--model", "m.gguf", "--to", "tq2_0", "--out", "o.gguf"];
    all.push(sparse("2^35 rows", &tq2, down, (1 << 40) + 4096, "ffn_down"));
    let wide = one_tensor("blk.0.ffn_down.weight", &[1 << 40, 4], GgmlType::I2_S, Vec::new());
    all.push(sparse("rows of 2^40", &tq2, wide, (1 << 40) + 4096, "ffn_down"));
    all
}
