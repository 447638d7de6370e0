//! GGUF files: every part of the header broken, and the rows of BR-03 to BR-08 and BR-28.

use gguf::fixture::{GgufBuilder, KeyEntry, tiny_model};
use gguf::{Architecture, GgmlType};

use crate::attempt::{Attempt, harness};

const AREA: &str = "gguf";
const KEY: &str = "bitnet-b1.58";

pub(crate) fn model() -> GgufBuilder {
    let mut file = tiny_model(Architecture::BitNetB158);
    file.set("tokenizer.chat_template", "{% for m in messages %}{{ m.content }}{% endfor %}");
    file
}

fn run(name: &str, bytes: Vec<u8>) -> Attempt {
    harness(AREA, name, ["generate", "--model", "m.gguf", "--prompt", "hello", "--max-tokens", "2", "--threads", "1"])
        .file("m.gguf", bytes)
}

/// A change of the sound model that is refused with a text.
fn refused(name: &str, says: &str, change: impl FnOnce(&mut GgufBuilder)) -> Attempt {
    let mut file = model();
    change(&mut file);
    run(name, file.encode()).refused(says)
}

pub(crate) fn table() -> Vec<Attempt> {
    let mut all = vec![run("sound model", model().encode())];
    all.extend(other_files());
    all.extend(counts_and_lengths());
    all.extend(values());
    all.extend(tensors());
    all.extend(hyperparameters());
    all.extend(tokenizer());
    all.extend(cut());
    all.extend(other_commands());
    all
}

fn other_files() -> Vec<Attempt> {
    let padded = |start: &[u8]| {
        let mut bytes = start.to_vec();
        bytes.resize(4096, 0);
        bytes
    };
    [
        ("empty file", b"".to_vec(), "empty"),
        ("one byte", b"G".to_vec(), "m.gguf"),
        ("magic only", b"GGUF".to_vec(), "m.gguf"),
        ("zeros", vec![0; 4096], "m.gguf"),
        ("ones", vec![0xff; 4096], "m.gguf"),
        ("ggml of old", padded(b"lmgg"), "before GGUF"),
        ("ggjt", padded(b"tjgg\x03\0\0\0"), "ggjt"),
        ("zip", padded(b"PK\x03\x04"), "zip"),
        ("pickle", padded(b"\x80\x04\x95"), "pickle"),
        ("safetensors", padded(b"\x40\0\0\0\0\0\0\0{\"x\":"), "safetensors"),
        ("LFS pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n".to_vec(), "LFS"),
        ("HTML page", padded(b"<!DOCTYPE html>"), "HTML"),
        ("terminal control in the magic", padded(b"\x1b[2J"), "u{1b}"),
        ("elf", std::fs::read("/bin/sh").unwrap_or_default(), "m.gguf"),
    ]
    .into_iter()
    .map(|(name, bytes, says)| run(name, bytes).refused(says))
    .collect()
}

fn counts_and_lengths() -> Vec<Attempt> {
    let mut all = Vec::new();
    for version in [0, 1, 4, u32::MAX] {
        all.push(refused(&format!("version {version}"), "version", |f| f.version = version));
    }
    all.push(refused("big-endian", "big-endian", |f| f.version = 3u32.swap_bytes()));
    for count in [1 << 20, 1 << 33, 1 << 63, u64::MAX] {
        all.push(refused(&format!("{count} keys"), "keys", |f| f.n_keys = Some(count)));
        all.push(refused(&format!("{count} tensors"), "tensors", |f| f.n_tensors = Some(count)));
    }
    for (n, fits) in [(60_000, true), (70_000, false)] {
        let mut file = model();
        file.keys.extend((0..n).map(|i| KeyEntry { key: format!("x.{i}").into(), value: (4, vec![0; 4]) }));
        let attempt = run(&format!("{n} more keys"), file.encode());
        all.push(if fits { attempt } else { attempt.refused("keys") });
    }
    all.push(refused("no keys", "m.gguf", |f| f.n_keys = Some(0)));
    all.push(refused("one key too many", "m.gguf", |f| f.n_keys = Some(f.keys.len() as u64 + 1)));
    all.push(refused("one key too few", "m.gguf", |f| f.n_keys = Some(f.keys.len() as u64 - 1)));
    all.push(refused("one tensor too many", "m.gguf", |f| f.n_tensors = Some(f.tensors.len() as u64 + 1)));
    for length in [1u64 << 31, 1 << 62, (1 << 63) + 1, u64::MAX] {
        let mut bytes = model().encode();
        bytes[24..32].copy_from_slice(&length.to_le_bytes());
        all.push(run(&format!("key of {length} bytes"), bytes).refused("key 0"));
        all.push(refused(&format!("string of {length} bytes"), "general.name", |f| {
            f.set_raw("general.name", 8, length.to_le_bytes().to_vec());
        }));
        for element in [0u32, 5, 8, 12] {
            all.push(refused(&format!("array of {length} elements of type {element}"), "x.array", |f| {
                let raw = [&element.to_le_bytes()[..], &length.to_le_bytes()].concat();
                f.set_raw("x.array", 9, raw);
            }));
        }
    }
    all
}

fn values() -> Vec<Attempt> {
    let mut all = Vec::new();
    let named = |name: &str, key: &[u8], says: &str| {
        let key = key.to_vec();
        refused(name, says, move |f| f.keys.insert(1, KeyEntry { key, value: (4, vec![0; 4]) }))
    };
    all.push(named("empty key", b"", "key 1"));
    all.push(named("key with NUL", b"a\0b", "NUL"));
    all.push(named("key that is no UTF-8", b"\xff\xfe", "UTF-8"));
    all.push(named("key twice", b"general.architecture", "general.architecture"));
    all.push(named("key of 70,000 bytes", &vec![b'k'; 70_000], "65535"));
    for ty in [13u32, 255, u32::MAX] {
        all.push(refused(&format!("value type {ty}"), &ty.to_string(), |f| {
            f.set_raw("x", ty, vec![0; 8]);
        }));
    }
    let mut nested = Vec::new();
    for _ in 0..10_000 {
        nested.extend(9u32.to_le_bytes());
        nested.extend(1u64.to_le_bytes());
    }
    all.push(refused("arrays in arrays, 10,000 deep", "x.deep", |f| {
        f.set_raw("x.deep", 9, nested);
    }));
    all.push(refused("bool of 2", "\"x\"", |f| {
        f.set_raw("x", 7, vec![2]);
    }));
    for value in [0u32, 1, 7, 24, 1 << 31, u32::MAX] {
        all.push(refused(&format!("alignment {value}"), "m.gguf", |f| {
            f.set("general.alignment", value);
        }));
    }
    all.push(refused("alignment as text", "general.alignment", |f| {
        f.set("general.alignment", "32");
    }));
    all
}

fn tensors() -> Vec<Attempt> {
    let q = "blk.0.attn_q.weight";
    let mut all = Vec::new();
    for ty in [3u32, 4, 5, 37, 38, 39, 40, 999, u32::MAX] {
        all.push(refused(&format!("tensor type {ty}"), q, |f| f.tensor_mut(q).ty = ty));
    }
    let dims = |name: &str, dims: &'static [u64]| refused(name, q, |f| f.tensor_mut(q).dims = dims.to_vec());
    all.push(dims("no dimensions", &[]));
    all.push(dims("five dimensions", &[1, 1, 1, 1, 1]));
    all.push(dims("zero dimension", &[0, 128]));
    all.push(dims("zero rows", &[128, 0]));
    all.push(dims("dimension 2^63", &[1 << 63, 2]));
    all.push(dims("dimension 2^64-1", &[u64::MAX, 1]));
    all.push(dims("product over 2^64", &[1 << 32, 1 << 32, 4]));
    all.push(dims("negative as signed", &[128, (1 << 63) | 128]));
    for width in [64u64, 127, 129, 2592] {
        all.push(refused(&format!("I2_S rows of {width}"), q, |f| f.tensor_mut(q).dims = vec![width, 128]));
    }
    all.push(dims("I2_S with 126 rows", &[128, 126]));
    for offset in [1u64, 33, 1 << 40, (1 << 63) + 32, u64::MAX - 31, u64::MAX] {
        all.push(refused(&format!("offset {offset}"), "m.gguf", |f| f.tensor_mut(q).offset = Some(offset)));
    }
    all.push(refused("offset of another tensor", q, |f| f.tensor_mut(q).offset = Some(0)));
    all.push(refused("name twice", "output_norm.weight", |f| {
        f.tensor_mut("blk.0.ffn_norm.weight").name = b"output_norm.weight".to_vec();
    }));
    all.push(refused("name of 65 bytes", "m.gguf", |f| f.tensor_mut(q).name = vec![b'n'; 65]));
    all.push(refused("empty name", "m.gguf", |f| f.tensor_mut(q).name = Vec::new()));
    all.push(refused("name with NUL", "m.gguf", |f| f.tensor_mut(q).name = b"blk.0\0q".to_vec()));
    for missing in ["token_embd.weight", "output_norm.weight", q, "blk.0.attn_sub_norm.weight"] {
        all.push(refused(&format!("without {missing}"), missing, |f| {
            f.remove_tensor(missing);
        }));
    }
    all.push(refused("norm of another width", "output_norm.weight", |f| {
        f.tensor_mut("output_norm.weight").dims = vec![64];
    }));
    all.push(refused("norm in two dimensions", "output_norm.weight", |f| {
        f.tensor_mut("output_norm.weight").dims = vec![64, 2];
    }));
    all.push(refused("embedding of another vocabulary", "token_embd.weight", |f| {
        f.tensor_mut("token_embd.weight").dims = vec![128, 130];
    }));
    // The type is another valid one of the same size: BR-07.
    all.push(refused("norm as I2_S", "output_norm.weight", |f| {
        f.tensor_mut("output_norm.weight").ty = GgmlType::I2_S.number();
    }));
    all
}

fn hyperparameters() -> Vec<Attempt> {
    let mut all = Vec::new();
    for name in ["nope", "", "llama\0", "BITNET", "bitnet-b1.58 ", "gpt2"] {
        all.push(refused(&format!("architecture {name:?}"), "architecture", |f| {
            f.set("general.architecture", name);
        }));
    }
    all.push(refused("architecture as a number", "general.architecture", |f| {
        f.set("general.architecture", 1u32);
    }));
    for (key, values) in [
        ("block_count", &[0u32, 2, 513, u32::MAX][..]),
        ("context_length", &[0, u32::MAX]),
        ("embedding_length", &[0, 1, 127, 256, u32::MAX]),
        ("feed_forward_length", &[0, 64, u32::MAX]),
        ("attention.head_count", &[0, 3, 257, u32::MAX]),
        ("attention.head_count_kv", &[0, 2, 3, u32::MAX]),
        ("rope.dimension_count", &[1, 63, 65, 128, u32::MAX]),
        ("vocab_size", &[0, 1, 261, u32::MAX]),
    ] {
        for &value in values {
            all.push(refused(&format!("{key} = {value}"), "m.gguf", |f| {
                f.set(&format!("{KEY}.{key}"), value);
            }));
        }
        all.push(refused(&format!("{key} as text"), key, |f| {
            f.set(&format!("{KEY}.{key}"), "128");
        }));
    }
    for (key, values) in [
        ("attention.layer_norm_rms_epsilon", &[-1f32, f32::NAN, f32::INFINITY][..]),
        ("rope.freq_base", &[0., -1., f32::NAN, f32::INFINITY]),
    ] {
        for &value in values {
            all.push(refused(&format!("{key} = {value}"), key, |f| {
                f.set(&format!("{KEY}.{key}"), value);
            }));
        }
    }
    for key in ["context_length", "embedding_length", "block_count", "attention.head_count"] {
        all.push(refused(&format!("without {key}"), key, |f| {
            f.remove(&format!("{KEY}.{key}"));
        }));
    }
    all.push(refused("other RoPE scaling", "rope", |f| {
        f.set(&format!("{KEY}.rope.scaling.type"), "sideways");
    }));
    all
}

fn tokenizer() -> Vec<Attempt> {
    use gguf::{Array, Strings};
    let mut all = Vec::new();
    for key in ["tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.merges"] {
        all.push(refused(&format!("without {key}"), key, |f| {
            f.remove(key);
        }));
        all.push(refused(&format!("{key} as a number"), key, |f| {
            f.set(key, 7u32);
        }));
    }
    all.push(refused("unknown tokenizer", "tokenizer.ggml.model", |f| {
        f.set("tokenizer.ggml.model", "abacus");
    }));
    all.push(refused("types of another length", "token_type", |f| {
        f.set("tokenizer.ggml.token_type", vec![1i32; 5]);
    }));
    all.push(refused("scores of another length", "scores", |f| {
        f.set("tokenizer.ggml.scores", Array::F32(vec![0.; 5]));
    }));
    all.push(refused("no tokens", "tokens", |f| {
        f.set("tokenizer.ggml.tokens", Strings::default());
    }));
    for id in [260u32, 100_000, u32::MAX] {
        for key in ["bos", "eos"] {
            all.push(refused(&format!("{key} = {id}"), key, |f| {
                f.set(&format!("tokenizer.ggml.{key}_token_id"), id);
            }));
        }
    }
    for merge in ["nospace", "", " "] {
        all.push(refused(&format!("merge {merge:?}"), "merge 0", |f| {
            f.set("tokenizer.ggml.merges", [merge].into_iter().collect::<Strings>());
        }));
    }
    all
}

/// BR-28: cut files, and a length that the file only claims.
fn cut() -> Vec<Attempt> {
    let whole = model().encode();
    let header = model().encode_header().len();
    let mut all = Vec::new();
    for (name, len) in [
        ("cut at 10 %", whole.len() / 10),
        ("cut at half", whole.len() / 2),
        ("cut by 33 bytes", whole.len() - 33),
        ("cut by one byte", whole.len() - 1),
        ("cut behind the header", header),
        ("cut in the tensor table", header - 70),
        ("cut behind the counts", 24),
    ] {
        all.push(run(name, whole[..len].to_vec()).refused("m.gguf"));
    }
    all.push(
        harness(AREA, "sparse file of 8 TB", ["generate", "--model", "m.gguf", "--prompt", "x", "--max-tokens", "1"])
            .prepare(|folder| {
                let file = std::fs::File::create(folder.join("m.gguf")).unwrap();
                // Where the file system allows it; elsewhere the file is empty, and refused as well.
                let _ = file.set_len(8 << 40);
            })
            .refused("m.gguf"),
    );
    all
}

/// The same files through the other commands that read models.
fn other_commands() -> Vec<Attempt> {
    let mut broken = model();
    broken.tensor_mut("blk.0.attn_q.weight").ty = 999;
    let bytes = broken.encode();
    let mut all: Vec<Attempt> = [
        ("gates", vec!["gates", "--only", "0", "--model", "m.gguf"]),
        ("gates, strict", vec!["gates", "--only", "0", "--strict", "--model", "m.gguf"]),
        ("chat", vec!["chat", "--model", "m.gguf"]),
        ("agent", vec!["agent", "hello", "--model", "m.gguf", "--store", "s"]),
        ("cartridge create", vec!["cartridge", "create", "--model", "m.gguf", "--text", "t", "--out", "c"]),
        ("inspect", vec!["model", "inspect", "m.gguf"]),
        ("quantize", vec!["model", "quantize", "--model", "m.gguf", "--embedding", "q8_0", "--out", "o"]),
        ("repack", vec!["model", "repack", "--model", "m.gguf", "--to", "tq2_0", "--out", "o"]),
        ("repack, dry", vec!["model", "repack", "--model", "m.gguf", "--dry-run"]),
        ("tokenize", vec!["model", "tokenize", "--model", "m.gguf", "x"]),
        ("perplexity", vec!["model", "perplexity", "--model", "m.gguf", "--text", "t"]),
        ("bench", vec!["bench", "--model", "m.gguf", "-p", "4", "-n", "0"]),
        ("bench cartridge", vec!["bench", "cartridge", "--model", "m.gguf", "-p", "4"]),
        ("bench grammar", vec!["bench", "grammar", "--model", "m.gguf"]),
        ("cartridge import-parts", vec!["cartridge", "import-parts", "t", "--model", "m.gguf", "--out", "o"]),
    ]
    .into_iter()
    .map(|(name, args)| harness(AREA, name, args).file("m.gguf", bytes.clone()).file("t", "text").refused("attn_q"))
    .collect();
    let mut without_pre = model();
    without_pre.remove("tokenizer.ggml.pre");
    let without_pre = without_pre.encode();
    all.push(
        harness(AREA, "BR-08: no pre-tokenizer, strict", ["gates", "--only", "3a", "--strict", "--model", "m.gguf"])
            .file("m.gguf", without_pre)
            .refused("tokenizer.ggml.pre"),
    );
    let mut no_template = model();
    no_template.remove("tokenizer.chat_template");
    all.push(
        harness(AREA, "BR-09: no chat template", ["chat", "--model", "m.gguf"])
            .file("m.gguf", no_template.encode())
            .usage("template"),
    );
    let mut shouting = model();
    shouting.set("general.name", "\x1b]0;owned\x07\u{202e}");
    all.push(
        harness(AREA, "terminal control in the name", ["model", "inspect", "m.gguf"]).file("m.gguf", shouting.encode()),
    );
    all
}
