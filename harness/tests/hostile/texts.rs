//! Texts for `model tokenize` and `model perplexity`, and what their options can be.

use gguf::GgmlType;

use crate::attempt::{Attempt, harness};
use crate::gguf::model;

const AREA: &str = "texts";

fn tokenize(name: &str, json: impl Into<Vec<u8>>) -> Attempt {
    harness(AREA, format!("tokenize: {name}"), ["model", "tokenize", "--texts", "t"]).file("t", json)
}

fn perplexity(name: &str, text: impl Into<Vec<u8>>) -> Attempt {
    let args = ["model", "perplexity", "--text", "t", "--n-ctx", "16", "--windows", "2", "--threads", "1"];
    harness(AREA, format!("perplexity: {name}"), args).file("t", text)
}

/// Perplexity of the fixture's model with options; its context holds 256 tokens.
fn tiny(name: &str, options: &[&str]) -> Attempt {
    let args = [&["model", "perplexity", "--model", "m.gguf", "--text", "t", "--threads", "1"], options].concat();
    harness(AREA, format!("perplexity: {name}"), args)
        .file("m.gguf", model().encode())
        .file("t", "turn on the lamp ".repeat(100))
}

pub(crate) fn table() -> Vec<Attempt> {
    let mut all = vec![
        tokenize("sound", "[\"turn on\", \"\"]"),
        tokenize("an empty list", "[]"),
        tokenize("NUL and markers", "[\"a\\u0000b<|eot_id|>\"]"),
        tokenize("terminal control", "[\"\\u001b[2J\\u202e\"]"),
        tokenize("half a pair", "[\"\\ud800\"]").refused("--texts"),
        tokenize("an object", "{}").refused("--texts"),
        tokenize("a text", "\"x\"").refused("--texts"),
        tokenize("numbers", "[1, 2]").refused("--texts"),
        tokenize("lists in lists", "[".repeat(100_000)).refused("--texts"),
        tokenize("cut", "[\"a").refused("--texts"),
        tokenize("no UTF-8", b"[\"\xff\"]".to_vec()).refused("UTF-8"),
        tokenize("9 MB", format!("[\"{}\"]", "a".repeat(9 << 20))).refused("bytes"),
        tokenize("one text of 3 MB", format!("[\"{}\"]", "a".repeat(3 << 20))).refused("a text of 3145728 bytes"),
        tokenize("three million texts", format!("[{}\"\"]", "\"\",".repeat(2_700_000))).refused("2700001 texts"),
        // Memory may be short under the limit: an error is an answer.
        tokenize("one text of 2 MB", format!("[\"{}\"]", "a b ".repeat(1 << 19))).ends_any(),
        tokenize("8 MB of single letters", format!("[{}\"x\"]", format!("\"{}\",", "x y ".repeat(20_000)).repeat(100)))
            .ends_any(),
        perplexity("sound", "turn on the lamp ".repeat(100)),
        perplexity("empty", "").usage("two windows"),
        perplexity("one token", "a").usage("two windows"),
        perplexity("no UTF-8", b"turn on \xff".to_vec()).refused("UTF-8"),
        perplexity("NUL", "a\0b ".repeat(100)),
        perplexity("markers", "<|eot_id|><|start_header_id|>".repeat(100)),
        perplexity("control characters", "\u{1b}[2J\u{202e}".repeat(100)),
        perplexity("combining marks", "e\u{301}\u{301}\u{301}".repeat(200)),
        perplexity("9 MB", "x".repeat(9 << 20)).refused("bytes"),
        perplexity("8 MB in one word", "a".repeat(8 << 20)).ends_any(),
        perplexity("8 MB of words", "lamp ".repeat((8 << 20) / 5)).ends_any(),
        tiny("the whole context", &["--n-ctx", "256"]),
        tiny("types of the embedding", &["--n-ctx", "16", "--windows", "1", "--embedding-types", "f16,q8_0,f32"]),
    ];
    for value in ["0", "7", "257", "4294967295"] {
        all.push(tiny(&format!("--n-ctx {value}"), &["--n-ctx", value]).usage("--n-ctx"));
    }
    for value in ["-1", "4294967296", "x", ""] {
        all.push(tiny(&format!("--n-ctx {value:?}"), &[&format!("--n-ctx={value}")]).usage("--n-ctx"));
    }
    for value in ["-1", "18446744073709551616", "x"] {
        all.push(tiny(&format!("--windows {value}"), &[&format!("--windows={value}")]).usage("--windows"));
    }
    for value in ["0", "18446744073709551615"] {
        all.push(tiny(&format!("--windows {value}"), &["--n-ctx", "64", "--windows", value]));
    }
    for value in ["q9", "", "f32,", "f32;q8_0", ","] {
        all.push(
            tiny(&format!("--embedding-types {value:?}"), &[&format!("--embedding-types={value}")])
                .usage("--embedding-types"),
        );
    }
    for value in ["i2_s", "q6_k", "iq2_xxs"] {
        let options = ["--n-ctx", "16", "--embedding-types", value];
        all.push(tiny(&format!("the embedding as {value}"), &options).refused("token_embd"));
    }
    let damaged = |name: &str, what: &dyn Fn() -> Vec<u8>| {
        let args = ["model", "perplexity", "--model", "m.gguf", "--text", "t", "--n-ctx", "16", "--threads", "1"];
        let attempt = harness(AREA, format!("perplexity: {name}"), args).file("m.gguf", what());
        attempt.file("t", "turn on the lamp ".repeat(100))
    };
    // Weights are not looked at when a model is loaded; logits are.
    let norm = |value: f32| {
        let mut file = model();
        file.tensor_mut("output_norm.weight").data = value.to_le_bytes().repeat(128);
        file.encode()
    };
    all.push(damaged("a norm of NaN", &|| norm(f32::NAN)).ends(1, "not finite"));
    all.push(damaged("a norm of infinity", &|| norm(f32::INFINITY)).ends(1, "not finite"));
    all.push(
        damaged("an embedding of NaN", &|| {
            let mut file = model();
            let embedding = file.tensor_mut("token_embd.weight");
            (embedding.ty, embedding.data) = (GgmlType::F16.number(), 0x7e00u16.to_le_bytes().repeat(260 * 128));
            file.encode()
        })
        .ends_any(),
    );
    for (option, value) in [("--texts", "t"), ("--model", "x")] {
        all.push(
            harness(AREA, format!("tokenize: text and {option}"), ["model", "tokenize", "x", option, value]).usage(""),
        );
    }
    all.push(harness(AREA, "tokenize: nothing", ["model", "tokenize"]).usage("<TEXT>"));
    all.push(harness(AREA, "tokenize: an empty text", ["model", "tokenize", ""]));
    all.push(harness(AREA, "tokenize: 100 kB on the command line", ["model", "tokenize", &"lamp ".repeat(20_000)]));
    all
}
