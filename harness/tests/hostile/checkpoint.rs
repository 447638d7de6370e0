//! HuggingFace checkpoints: every file of the folder broken, shapes that disagree, sizes that are only claimed.

use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};

use crate::attempt::{Attempt, harness};
use crate::special_files::fifo;

const AREA: &str = "checkpoint";
const Q: &str = "model.layers.0.self_attn.q_proj.weight";

/// Name, type, shape and data.
type Tensor = (String, &'static str, Vec<u64>, Vec<u8>);

/// A checkpoint of one layer with packed weights, before it is written.
struct Checkpoint {
    config: Value,
    tokenizer: Value,
    tensors: Vec<Tensor>,
}

/// GPT-2's character for a byte: itself where it can be seen, else the next one from 256 on.
fn characters() -> Vec<String> {
    let seen = |b: u32| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let mut next = 255;
    let mut of = |b: u32| {
        if seen(b) {
            return b;
        }
        next += 1;
        next
    };
    (0..256).map(|b| char::from_u32(of(b)).unwrap().to_string()).collect()
}

fn tokenizer() -> Value {
    let mut vocab: serde_json::Map<String, Value> =
        (0..).zip(characters()).map(|(id, text)| (text, json!(id))).collect();
    vocab.insert("ab".into(), json!(256));
    json!({
        "added_tokens": [
            {"id": 257, "content": "<s>", "special": true}, {"id": 258, "content": "</s>", "special": true}
        ],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
        "post_processor": null,
        "model": {"type": "BPE", "vocab": vocab, "merges": ["a b"]}
    })
}

fn sound() -> Checkpoint {
    let config = json!({
        "architectures": ["BitNetForCausalLM"], "hidden_act": "relu2", "hidden_size": 128, "intermediate_size": 256,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 260,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "bos_token_id": 257,
        "eos_token_id": 258, "tie_word_embeddings": true,
        "quantization_config": {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"}
    });
    let mut tensors = Vec::new();
    let halves = |n: usize| 0x3f00u16.to_le_bytes().repeat(n);
    tensors.push(("model.embed_tokens.weight".into(), "BF16", vec![260, 128], halves(260 * 128)));
    tensors.push(("model.norm.weight".into(), "F32", vec![128], 1f32.to_le_bytes().repeat(128)));
    for (norm, width) in [
        ("input_layernorm", 128),
        ("self_attn.attn_sub_norm", 128),
        ("post_attention_layernorm", 128),
        ("mlp.ffn_sub_norm", 256),
    ] {
        let data = halves(width as usize);
        tensors.push((format!("model.layers.0.{norm}.weight"), "BF16", vec![width], data));
    }
    for (linear, rows, cols) in [
        ("self_attn.q_proj", 128, 128),
        ("self_attn.k_proj", 64, 128),
        ("self_attn.v_proj", 64, 128),
        ("self_attn.o_proj", 128, 128),
        ("mlp.gate_proj", 256, 128),
        ("mlp.up_proj", 256, 128),
        ("mlp.down_proj", 128, 256),
    ] {
        // Codes 1, 0, 2, 1.
        let data = vec![0b0110_0001; (rows / 4 * cols) as usize];
        tensors.push((format!("model.layers.0.{linear}.weight"), "U8", vec![rows / 4, cols], data));
        tensors.push((format!("model.layers.0.{linear}.weight_scale"), "BF16", vec![1], halves(1)));
    }
    Checkpoint { config, tokenizer: tokenizer(), tensors }
}

/// The files of a checkpoint that is converted.
pub(crate) fn sound_files() -> [(&'static str, Vec<u8>); 3] {
    let checkpoint = sound();
    [
        ("config.json", checkpoint.config.to_string().into_bytes()),
        ("tokenizer.json", checkpoint.tokenizer.to_string().into_bytes()),
        ("model.safetensors", checkpoint.weights()),
    ]
}

/// A safetensors file of these tensors, side by side.
fn safetensors(tensors: &[Tensor]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}));
        data.extend(bytes);
    }
    with_header(&Value::Object(header).to_string(), &data)
}

fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

impl Checkpoint {
    fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|t| t.0 == name).unwrap()
    }

    fn weights(&self) -> Vec<u8> {
        safetensors(&self.tensors)
    }

    /// All files but the weights.
    fn without_weights(&self, name: impl Into<String>, more: &[&str]) -> Attempt {
        harness(AREA, name, [&["model", "convert", ".", "--out", "m.gguf"], more].concat())
            .file("config.json", self.config.to_string())
            .file("tokenizer.json", self.tokenizer.to_string())
    }

    fn run(&self, name: impl Into<String>, more: &[&str]) -> Attempt {
        self.without_weights(name, more).file("model.safetensors", self.weights())
    }
}

fn changed(name: impl Into<String>, says: &str, change: impl FnOnce(&mut Checkpoint)) -> Attempt {
    let mut checkpoint = sound();
    change(&mut checkpoint);
    checkpoint.run(name, &[]).refused(says)
}

/// The sound folder with one file replaced.
fn replaced(name: &str, file: &str, bytes: impl Into<Vec<u8>>) -> Attempt {
    sound().run(format!("{file}: {name}"), &[]).file(file, bytes).refused(file)
}

pub(crate) fn table() -> Vec<Attempt> {
    let mut all = vec![sound().run("sound", &[]).creates("m.gguf")];
    for (ty, embedding) in [("tq1_0", "f16"), ("f16", "bf16"), ("f32", "q8_0")] {
        let attempt = sound().run(format!("sound, {ty} and {embedding}"), &["--type", ty, "--embedding", embedding]);
        // Blocks of 256 do not fit rows of 128.
        all.push(if ty == "tq1_0" { attempt.refused("multiple of 256") } else { attempt.creates("m.gguf") });
    }
    all.extend(files());
    all.extend(configuration());
    all.extend(tokenizers());
    all.extend(headers());
    all.extend(tensors());
    all.extend(values());
    all.extend(shards());
    all.extend(claims());
    all.extend(options());
    all
}

fn files() -> Vec<Attempt> {
    let mut all = Vec::new();
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        let gone = move |f: &Path| std::fs::remove_file(f.join(file)).unwrap();
        let run = |name: &str| sound().run(format!("{file}: {name}"), &[]).refused(file);
        all.push(run("missing").prepare(gone));
        all.push(run("a pipe without a writer").prepare(move |f| {
            gone(f);
            fifo(&f.join(file));
        }));
        all.push(run("a folder").prepare(move |f| {
            gone(f);
            std::fs::create_dir(f.join(file)).unwrap();
        }));
        for (name, to) in
            [("a link to /dev/zero", "/dev/zero"), ("a link to itself", file), ("a link to /proc", "/proc/self/mem")]
        {
            all.push(run(name).prepare(move |f| {
                gone(f);
                symlink(to, f.join(file)).unwrap();
            }));
        }
        all.push(replaced("empty", file, ""));
        all.push(replaced("HTML", file, "<!DOCTYPE html><html></html>"));
        all.push(replaced("zeros", file, vec![0; 4096]));
        all.push(replaced("ones", file, vec![0xff; 4096]));
    }
    for file in ["config.json", "tokenizer.json"] {
        all.push(replaced("a list", file, "[]"));
        all.push(replaced("null", file, "null"));
        all.push(replaced("lists in lists", file, "[".repeat(100_000)));
        all.push(replaced("cut", file, "{\"a\": \"b"));
    }
    for file in ["tokenizer_config.json", "generation_config.json", "chat_template.jinja"] {
        let run = |name: &str| sound().run(format!("{file}: {name}"), &[]).refused(file);
        all.push(run("a pipe without a writer").prepare(move |f| fifo(&f.join(file))));
        all.push(run("a folder").prepare(move |f| std::fs::create_dir(f.join(file)).unwrap()));
        all.push(run("a link to /dev/zero").prepare(move |f| symlink("/dev/zero", f.join(file)).unwrap()));
        all.push(run("no UTF-8").file(file, [b'"', 0xff, b'"']));
    }
    // As trees of values these would take a gigabyte.
    let zeros = |bytes: usize| format!("{{\"x\":[{}0]}}", "0,".repeat(bytes / 2));
    for file in ["config.json", "tokenizer_config.json", "generation_config.json"] {
        all.push(replaced("16 MB of zeros", file, zeros(15 << 20)));
    }
    all.push(
        sound()
            .run("four files of 2 MB of zeros", &[])
            .file(
                "config.json",
                sound().config.to_string().replacen('{', &format!("{{\"x\":[{}0],", "0,".repeat(1_000_000)), 1),
            )
            .file("tokenizer_config.json", zeros(2_000_000))
            .file("generation_config.json", zeros(2_000_000))
            .creates("m.gguf"),
    );
    all
}

fn configuration() -> Vec<Attempt> {
    let mut all = Vec::new();
    for (field, values) in [
        (
            "architectures",
            vec![json!(null), json!([]), json!("BitNetForCausalLM"), json!([["x"]]), json!(["Qwen2ForCausalLM"])],
        ),
        ("hidden_act", vec![json!("silu"), json!(null), json!(7)]),
        (
            "hidden_size",
            vec![json!(0), json!(-128), json!(128.5), json!("128"), json!(1u64 << 63), json!(null), json!([128])],
        ),
        ("intermediate_size", vec![json!(0), json!(u64::MAX), json!(1e300), json!(null)]),
        ("num_hidden_layers", vec![json!(0), json!(513), json!(1u64 << 60), json!(-1), json!(null)]),
        ("num_attention_heads", vec![json!(0), json!(3), json!(1u64 << 40), json!(null)]),
        ("num_key_value_heads", vec![json!(0), json!(3), json!(-1)]),
        ("head_dim", vec![json!(0), json!(33), json!(1), json!(1u64 << 32), json!(4_194_304)]),
        ("vocab_size", vec![json!(0), json!(-1), json!(1_000_001), json!(16_777_216), json!(u64::MAX)]),
        ("max_position_embeddings", vec![json!(0), json!(-1), json!(1u64 << 33), json!(null)]),
        ("rms_norm_eps", vec![json!(0), json!(-1e-5), json!("nan"), json!(1e-60), json!(1e60), json!(null)]),
        ("rope_theta", vec![json!(0), json!(-1), json!("inf"), json!(1e60)]),
        ("attention_bias", vec![json!(true), json!("no"), json!(1)]),
        ("tie_word_embeddings", vec![json!(false), json!("yes")]),
        (
            "rope_scaling",
            vec![
                json!({"type": "dynamic", "factor": 2}),
                json!({"type": "linear"}),
                json!({"type": "linear", "factor": -1}),
                json!({"type": "linear", "factor": 0}),
                json!({"rope_type": "llama3", "factor": 8}),
                json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1, "original_max_position_embeddings": 8}),
            ],
        ),
        (
            "quantization_config",
            vec![
                json!({}),
                json!([]),
                json!({"quant_method": "gptq"}),
                json!("bitnet"),
                json!(null),
                json!({"quant_method": "bitnet", "linear_class": "x"}),
                json!({"quant_method": "bitnet", "use_rms_norm": true}),
                json!({"quant_method": "bitnet", "modules_to_not_convert": "all"}),
                json!({"quant_method": "bitnet", "modules_to_not_convert": ["mlp"]}),
            ],
        ),
    ] {
        for value in values {
            let shown: String = value.to_string().chars().take(60).collect();
            all.push(changed(format!("{field} = {shown}"), field, |c| c.config[field] = value));
        }
    }
    // A number that JSON can hold and f64 cannot.
    let infinite = sound().config.to_string().replace("10000.0", "1e999");
    all.push(replaced("rope_theta = 1e999", "config.json", infinite));
    // In themselves sound, and other shapes than the tensors'.
    for (field, value, says) in [
        ("hidden_size", 256, "model.embed_tokens.weight"),
        ("intermediate_size", 512, "mlp.ffn_sub_norm.weight"),
        ("num_hidden_layers", 2, "model.layers.1"),
        ("num_hidden_layers", 512, "model.layers.1"),
        ("num_key_value_heads", 2, "v_proj"),
        ("vocab_size", 259, "model.embed_tokens.weight"),
        ("vocab_size", 1_000_000, "model.embed_tokens.weight"),
    ] {
        all.push(changed(format!("{field} = {value}, tensors of another size"), says, |c| {
            c.config[field] = json!(value)
        }));
    }
    for (field, value) in
        [("bos_token_id", json!(260)), ("eos_token_id", json!([258, -1])), ("eos_token_id", json!("x"))]
    {
        all.push(changed(format!("{field} = {value}"), "token_id", |c| c.config[field] = value));
    }
    let control =
        changed("terminal control in a field", "hidden_size", |c| c.config["hidden_size"] = json!("\u{1b}[2J\u{202e}"));
    all.push(control);
    all
}

fn tokenizers() -> Vec<Attempt> {
    let mut all = Vec::new();
    let mut of = |name: &str, says: &str, change: &dyn Fn(&mut Value)| {
        all.push(changed(format!("tokenizer: {name}"), says, |c| change(&mut c.tokenizer)));
    };
    of("without a model", "model", &|t| drop(t.as_object_mut().unwrap().remove("model")));
    of("vocab as a list", "tokenizer.json", &|t| t["model"]["vocab"] = json!([]));
    of("no vocab", "vocab", &|t| drop(t["model"].as_object_mut().unwrap().remove("vocab")));
    for id in [json!(-1), json!(4_294_967_296u64), json!(1.5), json!("1"), json!(null), json!([1])] {
        of(&format!("id {id}"), "tokenizer.json", &|t| t["model"]["vocab"]["zz"] = id.clone());
    }
    of("id beyond the vocabulary", "'zz' has the id 260", &|t| t["model"]["vocab"]["zz"] = json!(260));
    of("id 2^32-1", "'zz' has the id 4294967295", &|t| t["model"]["vocab"]["zz"] = json!(u32::MAX));
    of("one id for two", "belongs to", &|t| t["model"]["vocab"]["zz"] = json!(5));
    of("two ids for one text", "has the ids 256 and 259", &|t| {
        t["added_tokens"].as_array_mut().unwrap().push(json!({"id": 259, "content": "ab"}));
    });
    of("a filler's name", "has the ids 256 and 259", &|t| {
        t["model"]["vocab"].as_object_mut().unwrap().remove("ab");
        t["model"]["vocab"]["[PAD259]"] = json!(256);
        t["model"]["merges"] = json!([]);
    });
    of("merge of one part", "model.merges[0]", &|t| t["model"]["merges"] = json!(["ab"]));
    of("merge without a token", "model.merges[0]", &|t| t["model"]["merges"] = json!([["b", "b"]]));
    of("merge of three", "tokenizer.json", &|t| t["model"]["merges"] = json!([["a", "b", "c"]]));
    of("merges as an object", "tokenizer.json", &|t| t["model"]["merges"] = json!({}));
    of("Unigram", "model.type", &|t| t["model"]["type"] = json!("Unigram"));
    of("byte fallback", "byte_fallback", &|t| t["model"]["byte_fallback"] = json!(true));
    of("normalizer in normalizers", "normalizer", &|t| {
        let mut deep = json!(null);
        for _ in 0..30 {
            deep = json!({"type": "Sequence", "normalizers": [deep]});
        }
        t["normalizer"] = deep;
    });
    of("normalizer of 2 MB", "normalizer is", &|t| t["normalizer"] = json!(vec![0; 1 << 20]));
    of("pre-tokenizer of 2 MB", "pre_tokenizer is", &|t| t["pre_tokenizer"] = json!(vec![0; 1 << 20]));
    of("post-processor of 2 MB", "post_processor is", &|t| t["post_processor"] = json!(vec![0; 1 << 20]));
    of("no pre-tokenizer", "--pre", &|t| t["pre_tokenizer"] = json!(null));
    of("pre-tokenizer of a number", "--pre", &|t| t["pre_tokenizer"] = json!(7));
    of("pre-tokenizer with a regex of its own", "--pre", &|t| {
        t["pre_tokenizer"] =
            json!({"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "(a+)+$".repeat(1000)}});
    });
    of("post-processor that puts an unknown token first", "post_processor", &|t| {
        t["post_processor"] = json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<x>"}}]});
    });
    of("added token without an id", "tokenizer.json", &|t| t["added_tokens"] = json!([{"content": "x"}]));
    of("added token as an object", "tokenizer.json", &|t| t["added_tokens"] = json!({"content": "x"}));
    of("terminal control in a token", "u{1b}", &|t| t["model"]["vocab"]["\u{1b}[2J"] = json!(999));

    let text = tokenizer().to_string();
    let file = |name: &str, bytes: Vec<u8>| replaced(name, "tokenizer.json", bytes);
    all.push(file("a token twice", text.replacen("\"vocab\":{", "\"vocab\":{\"zz\":259,\"zz\":258,", 1).into()));
    all.push(file(
        "deep lists in the normalizer",
        text.replacen(
            "\"normalizer\":null",
            &format!("\"normalizer\":{}{}", "[".repeat(100_000), "]".repeat(100_000)),
            1,
        )
        .into(),
    ));
    all.push(file(
        "deep lists in a field of no use",
        text.replacen('{', &format!("{{\"x\":{},", "[".repeat(500_000)), 1).into(),
    ));
    all.push(file("65 MB", " ".repeat(65 << 20).into()));
    // Every entry takes many times its length in memory.
    let many = |n: u32, of: &dyn Fn(u32) -> String| (0..n).map(of).collect::<Vec<_>>().join(",");
    let merges = many(1_000_001, &|_| "\"\"".into());
    all.push(file("a million merges and one", text.replacen("\"a b\"", &merges, 1).into()));
    let added = many(1_000_001, &|_| "{\"id\":0,\"content\":\"\"}".into());
    all.push(file(
        "a million added tokens and one",
        text.replacen("\"added_tokens\":[", &format!("\"added_tokens\":[{added},"), 1).into(),
    ));
    let vocab = many(1_000_001, &|i| format!("\"{i:x}_\":0"));
    all.push(file(
        "a million tokens and one",
        text.replacen("\"vocab\":{", &format!("\"vocab\":{{{vocab},"), 1).into(),
    ));
    for (name, config, says) in [
        ("bos that is no token", json!({"bos_token": "<x>"}), "bos_token"),
        ("eos with terminal control", json!({"eos_token": {"content": "\u{1b}[2J"}}), "eos_token"),
    ] {
        let attempt = sound().run(format!("tokenizer_config.json: {name}"), &[]);
        all.push(attempt.file("tokenizer_config.json", config.to_string()).refused(says));
    }
    for config in ["[]", "7", "{\"bos_token\": 7}", "{\"chat_template\": [7, {}]}", "{\"chat_template\": {\"a\": 1}}"] {
        let attempt = sound().run(format!("tokenizer_config.json: {config}"), &[]);
        all.push(attempt.file("tokenizer_config.json", config).creates("m.gguf"));
    }
    let synth = ["model", "synth", "--preset", "tiny", "--dry-run", "--tokenizer", "t"];
    let hole = text.replacen("\"vocab\":{", "\"vocab\":{\"zz\":999999,", 1);
    all.push(harness(AREA, "synth: ids with a hole", synth).file("t", hole).refused("holes"));
    all.push(harness(AREA, "synth: sound", synth).file("t", text));
    all
}

fn headers() -> Vec<Attempt> {
    let mut all = Vec::new();
    let whole = sound().weights();
    let file = |name: &str, bytes: Vec<u8>| replaced(name, "model.safetensors", bytes);
    for length in [0, 1, whole.len() as u64 - 7, 16 << 20, 1 << 32, 1 << 63, u64::MAX - 7, u64::MAX] {
        let mut bytes = whole.clone();
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        all.push(file(&format!("header length {length}"), bytes));
    }
    all.push(file("seven bytes", vec![1; 7]));
    all.push(file("two bytes short", whole[..whole.len() - 2].to_vec()));
    all.push(file("two bytes more", [&whole[..], b"xx"].concat()));
    all.push(file("pickle", b"\x80\x02}q\0(X\x0e\0\0\0trainable_keys".to_vec()));
    all.push(file("lists in lists", with_header(&format!("{{\"a\":{}", "[".repeat(100_000)), b"")));
    all.push(file("objects in objects", with_header(&"{\"a\":".repeat(100_000), b"")));
    all.push(file("15 MB of zeros", with_header(&format!("{{\"a\":[{}0]}}", "0,".repeat(7 << 20)), b"")));
    let shape = format!("{{\"a\":{{\"dtype\":\"F32\",\"shape\":[{}1],\"data_offsets\":[0,4]}}}}", "1,".repeat(7 << 20));
    all.push(file("seven million dimensions", with_header(&shape, &[0; 4])));
    let many: Vec<String> =
        (0..70_000).map(|i| format!("\"{i}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}")).collect();
    all.push(file("70,000 tensors", with_header(&format!("{{{}}}", many.join(",")), b"")));
    let metadata = format!("{{\"__metadata__\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    for (name, header) in [("no tensors", "{}"), ("deep metadata and no tensors", metadata.as_str())] {
        let attempt = sound().without_weights(name, &[]).file("model.safetensors", with_header(header, b""));
        all.push(attempt.refused("no tensor 'model.embed_tokens.weight'"));
    }

    let entry = |name: &str, entry: Value| {
        let mut tensors = sound().tensors;
        tensors.retain(|t| t.0 != Q);
        let rest = safetensors(&tensors);
        let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
        let mut header: Value = serde_json::from_slice(&rest[8..8 + length]).unwrap();
        header[Q] = entry;
        let data = [&rest[8 + length..], &vec![0b0110_0001; 32 * 128][..]].concat();
        replaced(name, "model.safetensors", with_header(&header.to_string(), &data))
    };
    let end = sound().tensors.iter().filter(|t| t.0 != Q).map(|t| t.3.len() as u64).sum::<u64>();
    let tensor =
        |dtype: &str, shape: Value, offsets: Value| json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
    let own = json!([end, end + 4096]);
    all.push(entry("reversed offsets", tensor("U8", json!([32, 128]), json!([end + 4096, end]))));
    all.push(entry("offsets past the end", tensor("U8", json!([32, 128]), json!([end, 1u64 << 40]))));
    all.push(entry("offsets at 2^64-1", tensor("U8", json!([32, 128]), json!([u64::MAX - 4096, u64::MAX]))));
    all.push(entry("the bytes of another tensor", tensor("U8", json!([32, 128]), json!([0, 4096]))));
    all.push(entry("shape product over u64", tensor("U8", json!([1u64 << 32, 1u64 << 32, 4]), own.clone())));
    all.push(entry("negative dimension", tensor("U8", json!([-32, 128]), own.clone())));
    all.push(entry("nine dimensions", tensor("U8", json!([32, 128, 1, 1, 1, 1, 1, 1, 1]), own.clone())));
    all.push(entry("offsets of three", tensor("U8", json!([32, 128]), json!([end, end + 4096, 0]))));
    all.push(entry("without a shape", json!({"dtype": "U8", "data_offsets": own.clone()})));
    for dtype in ["I8", "F64", "F8_E4M3", "", "u8", "\u{1b}[2J"] {
        all.push(entry(&format!("dtype {dtype:?}"), tensor(dtype, json!([32, 128]), own.clone())));
    }
    for value in [json!(null), json!(7), json!([1]), json!("x")] {
        all.push(entry(&format!("entry {value}"), value));
    }
    let length = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let header = String::from_utf8(whole[8..8 + length].to_vec()).unwrap();
    let again = "{\"model.embed_tokens.weight\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},";
    all.push(file("a tensor twice", with_header(&header.replacen('{', again, 1), &whole[8 + length..])));
    all
}

fn tensors() -> Vec<Attempt> {
    let mut all = Vec::new();
    for missing in [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "model.layers.0.mlp.ffn_sub_norm.weight",
        Q,
        "model.layers.0.mlp.up_proj.weight_scale",
    ] {
        all.push(changed(format!("without {missing}"), missing, |c| c.tensors.retain(|t| t.0 != missing)));
    }
    for extra in ["model.layers.1.mlp.up_proj.weight", "x", "", "model.layers.0.self_attn.q_proj.bias", "\u{1b}[2J"] {
        all.push(changed(format!("one more tensor, {extra:?}"), "no place for", |c| {
            c.tensors.push((extra.into(), "F32", vec![1], vec![0; 4]));
        }));
    }
    for (name, shape) in [
        ("transposed", vec![128, 32]),
        ("flat", vec![4096]),
        ("a scalar", vec![]),
        ("one dimension more", vec![32, 128, 1]),
        ("rows of another number", vec![64, 64]),
    ] {
        all.push(changed(format!("{Q}, {name}"), "q_proj", |c| {
            let elements = shape.iter().product::<u64>() as usize;
            c.tensor(Q).2 = shape;
            c.tensor(Q).3.resize(elements, 0);
        }));
    }
    all.push(changed("an embedding of packed weights", "embed_tokens", |c| {
        let embedding = c.tensor("model.embed_tokens.weight");
        (embedding.1, embedding.3) = ("U8", vec![0; 260 * 128]);
    }));
    all.push(changed("a scale of two", "weight_scale", |c| {
        let scale = c.tensor("model.layers.0.self_attn.q_proj.weight_scale");
        (scale.2, scale.3) = (vec![2], vec![0; 4]);
    }));
    all.push(changed("a scale of none", "weight_scale", |c| {
        let scale = c.tensor("model.layers.0.self_attn.q_proj.weight_scale");
        (scale.2, scale.3) = (vec![0], vec![]);
    }));
    all.push(changed("packed weights that are rounded online", "nothing says how packed ones are scaled", |c| {
        c.config["quantization_config"]["quantization_mode"] = json!("online");
    }));
    all
}

/// The checkpoint with one linear as floats.
fn floats(c: &mut Checkpoint, mode: &str, value: f32) {
    c.config["quantization_config"]["quantization_mode"] = json!(mode);
    for t in c.tensors.iter_mut().filter(|t| t.0.contains("_proj.weight") && t.1 == "U8") {
        (t.1, t.2) = ("F32", vec![t.2[0] * 4, t.2[1]]);
        t.3 = 1f32.to_le_bytes().repeat((t.2[0] * t.2[1]) as usize);
    }
    if mode == "online" {
        c.tensors.retain(|t| !t.0.ends_with("weight_scale"));
    }
    c.tensor(Q).3 = value.to_le_bytes().repeat(128 * 128);
}

fn values() -> Vec<Attempt> {
    let mut all = Vec::new();
    for bits in [0x7fc0u16, 0x7f80, 0xff80] {
        for name in [
            "model.embed_tokens.weight",
            "model.layers.0.input_layernorm.weight",
            "model.layers.0.mlp.up_proj.weight_scale",
        ] {
            all.push(changed(format!("{name} = {bits:#x}"), name, |c| {
                c.tensor(name).3[..2].copy_from_slice(&bits.to_le_bytes())
            }));
        }
    }
    for (name, bits) in [("0", 0u16), ("-0", 0x8000), ("-0.5", 0xbf00)] {
        all.push(changed(format!("scale {name}"), "weight_scale", |c| {
            c.tensor("model.layers.0.mlp.up_proj.weight_scale").3 = bits.to_le_bytes().to_vec();
        }));
    }
    all.push(changed("scale whose inverse is infinite", "weight_scale", |c| {
        c.config["quantization_config"]["linear_class"] = json!("bitlinear");
        c.tensor("model.layers.0.mlp.up_proj.weight_scale").3 = 1u16.to_le_bytes().to_vec();
    }));
    all.push(changed("the code 3", "row 96, column 127 holds the code 3", |c| c.tensor(Q).3[127] = 0b1100_0000));
    for (name, value) in [("two", 2.0), ("a half", 0.5), ("NaN", f32::NAN), ("infinity", f32::INFINITY)] {
        all.push(changed(format!("offline weights of {name}"), "q_proj", |c| floats(c, "offline", value)));
    }
    for (name, value) in [("NaN", f32::NAN), ("minus infinity", f32::NEG_INFINITY), ("the largest number", f32::MAX)] {
        all.push(changed(format!("master weights of {name}"), "q_proj", |c| floats(c, "online", value)));
    }
    for value in [0.0, 1e-45, 1e38] {
        let mut c = sound();
        floats(&mut c, "online", value);
        all.push(c.run(format!("master weights of {value:e}"), &[]).creates("m.gguf"));
    }
    // Finite, and beyond what the type or the scale of its block takes.
    for embedding in ["f16", "bf16", "q8_0", "q4_0", "iq4_nl"] {
        let mut c = sound();
        let t = c.tensor("model.embed_tokens.weight");
        (t.1, t.3) = ("F32", f32::MAX.to_le_bytes().repeat(260 * 128));
        all.push(
            c.run(format!("an embedding of the largest number as {embedding}"), &["--embedding", embedding])
                .refused("token_embd"),
        );
    }
    all
}

fn shards() -> Vec<Attempt> {
    let mut all = Vec::new();
    let split = |name: &str, index: Value| {
        let c = sound();
        let (one, two) = c.tensors.split_at(4);
        c.without_weights(format!("shards: {name}"), &[])
            .file("1.safetensors", safetensors(one))
            .file("2.safetensors", safetensors(two))
            .file("model.safetensors.index.json", index.to_string())
    };
    let map = || -> serde_json::Map<String, Value> {
        let place =
            |(i, t): (usize, &Tensor)| (t.0.clone(), json!(if i < 4 { "1.safetensors" } else { "2.safetensors" }));
        sound().tensors.iter().enumerate().map(place).collect()
    };
    let with = |tensor: &str, file: Value| {
        let mut map = map();
        map.insert(tensor.into(), file);
        json!({"weight_map": map})
    };
    all.push(split("sound", json!({"weight_map": map()})).creates("m.gguf"));
    for file in
        ["../1.safetensors", "/etc/passwd", "", "..", "a/b.safetensors", "a\\b.safetensors", "1.safetensors\0", "x.bin"]
    {
        all.push(split(&format!("file {file:?}"), with(Q, json!(file))).refused("no plain name"));
    }
    for file in [json!(7), json!(null), json!(["1.safetensors"])] {
        all.push(split(&format!("file {file}"), with(Q, file)).refused("index.json"));
    }
    all.push(split("another file than the tensor's", with(Q, json!("1.safetensors"))).refused("not in the file"));
    all.push(split("a tensor that is nowhere", with("x", json!("1.safetensors"))).refused("not in the file"));
    all.push(split("a file that is missing", with("x", json!("3.safetensors"))).refused("3.safetensors"));
    all.push(
        split("a pipe", with("x", json!("3.safetensors")))
            .prepare(|f| fifo(&f.join("3.safetensors")))
            .refused("a pipe"),
    );
    let copy = |f: &Path| {
        std::fs::copy(f.join("1.safetensors"), f.join("3.safetensors")).unwrap();
    };
    all.push(split("the same tensors twice", with("x", json!("3.safetensors"))).prepare(copy).refused("twice"));
    for index in
        [json!({}), json!({"weight_map": []}), json!({"weight_map": {}}), json!([]), json!({"weight_map": null})]
    {
        all.push(split(&format!("index {index}"), index).refused("index.json"));
    }
    let many: serde_json::Map<String, Value> =
        (0..1001).map(|i| (i.to_string(), json!(format!("{i}.safetensors")))).collect();
    all.push(split("1,001 files", json!({"weight_map": many})).refused("more than 1000 files"));
    all
}

/// Sizes that a file with holes claims, and small files that would be read as large ones.
fn claims() -> Vec<Attempt> {
    let mut all = Vec::new();
    // Queries of 65,536 x 65,536: a gigabyte of holes in the file, four gigabytes of codes. The first byte ends it.
    let n = 65_536u64;
    let mut c = sound();
    c.config["hidden_size"] = json!(n);
    c.config["num_attention_heads"] = json!(n / 64);
    let (mut header, mut at, mut first) = (serde_json::Map::new(), 0u64, 0);
    for (name, dtype, shape, _) in &c.tensors {
        let size = if *dtype == "F32" {
            4
        } else if *dtype == "BF16" {
            2
        } else {
            1
        };
        let wide = |d: u64| if d == 128 { n } else { d };
        let shape: Vec<u64> = match shape[..] {
            // Packed rows of q and o; those of down follow the width as well.
            [32, cols] => vec![n / 4, wide(cols)],
            [rows, cols] => vec![rows, wide(cols)],
            [d] => vec![wide(d)],
            _ => unreachable!("shapes of the fixture"),
        };
        let bytes = size * shape.iter().product::<u64>();
        if name == Q {
            first = at;
        }
        header.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": [at, at + bytes]}));
        at += bytes;
    }
    let header = Value::Object(header).to_string();
    let scale = c.tensors.iter().position(|t| t.0.ends_with("q_proj.weight_scale")).unwrap();
    assert_eq!(c.tensors[scale - 1].0, Q, "the scale follows the weights");
    let (start, queries) = (8 + header.len() as u64, n / 4 * n);
    all.push(
        c.without_weights("queries of 65,536 x 65,536 in holes", &[])
            .prepare(move |f| {
                let mut file = std::fs::File::create(f.join("model.safetensors")).unwrap();
                file.write_all(&with_header(&header, b"")).unwrap();
                file.set_len(start + at).unwrap();
                for (place, bytes) in [(first, [3, 0]), (first + queries, [0, 0x3f])] {
                    file.seek(SeekFrom::Start(start + place)).unwrap();
                    file.write_all(&bytes).unwrap();
                }
            })
            .refused("row 0, column 0 holds the code 3"),
    );
    // Each linear the same bytes as the first.
    let mut tensors = sound().tensors;
    tensors.retain(|t| !t.0.contains("mlp"));
    let whole = safetensors(&tensors);
    let length = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&whole[8..8 + length]).unwrap();
    header["model.layers.0.mlp.gate_proj.weight"] = header[Q].clone();
    let shared = with_header(&header.to_string(), &whole[8 + length..]);
    all.push(replaced("tensors over one another", "model.safetensors", shared).refused("begins at byte"));
    all.push(
        sound()
            .without_weights("sparse file of 8 TB", &[])
            .prepare(|f| {
                // Where the file system allows it; elsewhere the file is empty, and refused as well.
                let _ = std::fs::File::create(f.join("model.safetensors")).unwrap().set_len(8 << 40);
            })
            .refused("model.safetensors"),
    );
    all
}

fn options() -> Vec<Attempt> {
    let mut all = Vec::new();
    for (name, args, says) in [
        ("type of no name", vec!["--type", "q9"], "i2_s"),
        ("type that is no matrix's", vec!["--type", "q8_0"], "i2_s"),
        ("embedding of no name", vec!["--embedding", ""], "--embedding"),
    ] {
        all.push(sound().run(name, &args).usage(says));
    }
    for ty in ["i2_s", "q6_k"] {
        all.push(sound().run(format!("embedding as {ty}"), &["--embedding", ty]).refused("token_embd"));
    }
    for pre in ["nope", "", "\u{1b}[2J", "llama-bpe\u{0301}"] {
        let attempt = sound().run(format!("--pre {pre:?}"), &["--pre", pre]);
        all.push(if pre.is_empty() { attempt.usage("--pre") } else { attempt.refused("tokenizer.ggml.pre") });
    }
    all.push(sound().run("a name with terminal control", &["--name", "\u{1b}]0;owned\u{7}"]).creates("m.gguf"));
    all.push(sound().run("a name of 100 kB", &["--name", &"n".repeat(100_000)]).creates("m.gguf"));
    all.push(harness(AREA, "no such folder", ["model", "convert", "nowhere", "--out", "m"]).usage("nowhere"));
    all.push(harness(AREA, "a file for a folder", ["model", "convert", "f", "--out", "m"]).file("f", "x").usage("f"));
    all
}
