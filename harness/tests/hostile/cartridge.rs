//! Cartridges, state blobs and token files through the command line: BR-40, BR-55 to BR-58, BR-18.

use cartridge::{ModelLock, Overwrite, Provenance, RopeType, write_native};
use kv::{BlobWriter, KvType, StateGeometry, ValueLayout};
use serde_json::{Value, json};

use crate::attempt::{Attempt, harness};

const AREA: &str = "cartridge";

fn lock() -> ModelLock {
    let hash = |two: &str| format!("sha256:{}", two.repeat(32));
    ModelLock {
        model_id: "other".into(),
        model_arch_hash: hash("1a"),
        model_weights_hash: hash("2b"),
        tokenizer_hash: hash("3c"),
        n_layer: 2,
        n_head_kv: 2,
        head_dim: 4,
        n_vocab: 1000,
        n_ctx_train: 4096,
        rope_type: RopeType::Neox,
        rope_theta: 500_000.0,
        rope_scaling: "none".into(),
        rope_dim: 4,
        engine: "0123456789abcdef".into(),
    }
}

pub(crate) fn geometry() -> StateGeometry {
    StateGeometry::uniform(2, 2, 4, KvType::F16, KvType::F16, ValueLayout::Transposed, 64, 4096).unwrap()
}

pub(crate) fn blob() -> Vec<u8> {
    let geometry = geometry();
    let mut writer = BlobWriter::new(Vec::new(), &geometry, &[0, 1, 2]).unwrap();
    for layer in 0..2 {
        writer.payload(&vec![0x11; geometry.key_row_bytes(layer) as usize * 3]).unwrap();
    }
    for layer in 0..2 {
        writer.payload(&vec![0x22; geometry.value_row_bytes(layer) as usize * 3]).unwrap();
    }
    writer.finish().unwrap()
}

/// A sound native cartridge of a model that nobody has.
pub(crate) fn sound() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c");
    let bytes = blob();
    let geometry = geometry();
    let state = kv::StateBlob::parse(&bytes, &geometry).unwrap();
    write_native(&path, &state, &[9, 8, 7], &lock(), &Provenance::default(), Overwrite::Refuse).unwrap();
    std::fs::read(path).unwrap()
}

fn split(file: &[u8]) -> (Value, Vec<u8>) {
    let len = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&file[8..8 + len]).unwrap(), file[8 + len..].to_vec())
}

fn join(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

/// The sound file with its header changed.
fn changed(change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let (mut header, data) = split(&sound());
    change(&mut header);
    join(&header.to_string(), &data)
}

fn inspect(name: &str, bytes: Vec<u8>) -> Attempt {
    harness(AREA, name, ["cartridge", "inspect", "c.safetensors"]).file("c.safetensors", bytes)
}

pub(crate) fn table() -> Vec<Attempt> {
    let mut all = vec![inspect("sound file", sound())];
    all.extend(containers());
    all.extend(metadata());
    all.extend(commands());
    all.extend(blobs());
    all.extend(token_files());
    all
}

fn containers() -> Vec<Attempt> {
    let mut all = Vec::new();
    let sound = sound();
    let len = sound.len() as u64;
    for length in [0, 1, 7, len - 8, len, 1 << 32, 1 << 63, (1 << 63) - 1, u64::MAX - 7, u64::MAX] {
        let mut file = sound.clone();
        file[..8].copy_from_slice(&length.to_le_bytes());
        all.push(inspect(&format!("header length {length}"), file).refused("header"));
    }
    for (name, bytes, says) in [
        ("empty", Vec::new(), "0 bytes"),
        ("seven bytes", vec![2, 0, 0, 0, 0, 0, 0], "7 bytes"),
        ("pickle", b"\x80\x02}q\0(X\x0e\0\0\0trainable_keys".to_vec(), "pickle"),
        ("pickle of protocol 5", b"\x80\x05\x95\x10\0\0\0\0\0\0\0\0".to_vec(), "pickle"),
        ("torch archive", b"PK\x03\x04 and the rest".to_vec(), "pickle"),
        ("GGUF", b"GGUF\x03\0\0\0\0\0\0\0".to_vec(), "GGUF"),
        ("a text", b"Devices:\n- lumo: light".to_vec(), "a text file"),
        ("a git-LFS pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n".to_vec(), "git lfs pull"),
        ("no JSON", join("nul", b""), "header"),
        ("JSON list", join("[]", b""), "header"),
        ("empty object", join("{}", b""), "cartridge"),
        ("nested lists", join(&format!("{{\"a\":{}", "[".repeat(100_000)), b""), "header"),
        ("nested objects", join(&"{\"a\":".repeat(100_000), b""), "header"),
        ("header that is no UTF-8", [&4u64.to_le_bytes()[..], b"{\xff\xfe}"].concat(), "header"),
        ("metadata of 9 MB", changed(|h| h["__metadata__"]["title"] = "x".repeat(9 << 20).into()), "header"),
        ("trailing byte", [&sound[..], b"x"].concat(), "safetensors"),
        ("two bytes short", sound[..sound.len() - 2].to_vec(), "safetensors"),
    ] {
        all.push(inspect(name, bytes).refused(says));
    }
    let tensor = |shape: Value, offsets: Value| {
        changed(|h| h["tokens"] = json!({"dtype": "I32", "shape": shape, "data_offsets": offsets}))
    };
    for (name, shape, offsets) in [
        ("reversed offsets", json!([3]), json!([12, 0])),
        ("offsets past the end", json!([3]), json!([0, 1u64 << 40])),
        ("offsets at 2^64-1", json!([3]), json!([u64::MAX - 12, u64::MAX])),
        ("shape product over u64", json!([1u64 << 32, 1u64 << 32, 4]), json!([0, 12])),
        ("zero in the shape", json!([0]), json!([0, 0])),
        ("shape of nine", json!([3, 1, 1, 1, 1, 1, 1, 1, 1]), json!([0, 12])),
        ("negative dimension", json!([-3]), json!([0, 12])),
        ("float dimension", json!([3.5]), json!([0, 12])),
        ("offsets of three", json!([3]), json!([0, 12, 12])),
        ("offsets as text", json!([3]), json!("0,12")),
    ] {
        all.push(inspect(name, tensor(shape, offsets)).refused("c.safetensors"));
    }
    for dtype in ["F64", "I64", "BOOL", "f16", "", "F8_E4M3"] {
        all.push(
            inspect(&format!("dtype {dtype:?}"), changed(|h| h["tokens"]["dtype"] = dtype.into())).refused("tokens"),
        );
    }
    all
}

fn metadata() -> Vec<Attempt> {
    let mut all = Vec::new();
    for (key, values) in [
        (
            "format",
            &["bitnet-cartridge/0", "bitnet-cartridge/2", "bitnet-cartridge/99999999999999999999", "", "pt"][..],
        ),
        ("layout", &["sideways", ""]),
        ("n_tokens", &["0", "4", "-1", "3.0", "18446744073709551616"]),
        ("first_pos", &["-1", "5", "2147483647", "4294967296"]),
        ("type_k", &["i2_s", "q8_0", "F16"]),
        ("type_v", &["q8_0", "f64"]),
        ("v_trans", &["2", "yes"]),
        ("rope_type", &["yarn", ""]),
        ("rope_theta", &["0", "nan", "inf", "1e400", "-1"]),
        ("model_weights_hash", &["abc", "sha256:"]),
        ("tokens_hash", &["sha256:", "blake3:"]),
    ] {
        for value in values {
            let bytes = changed(|h| h["__metadata__"][key] = (*value).into());
            let says = if key == "format" { "cartridge" } else { "c.safetensors" };
            all.push(inspect(&format!("{key} = {value:?}"), bytes).refused(says));
        }
        let bytes = changed(|h| drop(h["__metadata__"].as_object_mut().unwrap().remove(key)));
        let says = if key == "format" { "cartridge" } else { key };
        all.push(inspect(&format!("without {key}"), bytes).refused(says));
    }
    for value in [json!(1), json!(null), json!(["f16"]), json!({"a": "b"})] {
        let bytes = changed(|h| h["__metadata__"]["title"] = value.clone());
        all.push(inspect(&format!("title = {value}"), bytes).refused("c.safetensors"));
    }
    for missing in ["tokens", "positions"] {
        let bytes = changed(|h| drop(h.as_object_mut().unwrap().remove(missing)));
        all.push(inspect(&format!("without tensor {missing}"), bytes).refused("c.safetensors"));
    }
    for name in ["layer.0.q", "layer.00.k", "layer.-1.k", "layer.4294967296.k", "", "../../etc/passwd"] {
        let bytes = changed(|h| h[name] = json!({"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}));
        all.push(inspect(&format!("tensor {name:?}"), bytes).refused("c.safetensors"));
    }
    let shown = changed(|h| h["__metadata__"]["title"] = "\u{1b}]0;owned\u{7}".into());
    all.push(inspect("terminal control in the title", shown));
    all
}

/// BR-55 and BR-58: the same broken file, and one of another model, through every command.
fn commands() -> Vec<Attempt> {
    let mut broken = sound();
    let at = broken.len() - 40;
    broken.truncate(at);
    let mut all = Vec::new();
    for (name, args) in [
        ("verify", vec!["cartridge", "verify", "c"]),
        ("mount", vec!["cartridge", "mount", "c", "--prompt", "x"]),
        ("diff", vec!["cartridge", "diff", "c", "c"]),
        ("export-blob", vec!["cartridge", "export-blob", "c", "--out", "b"]),
        ("convert", vec!["cartridge", "convert", "c", "--to", "head-major", "--out", "b"]),
        ("generate --cartridge", vec!["generate", "--cartridge", "c", "--prompt", "x"]),
        ("chat --cartridge", vec!["chat", "--cartridge", "c"]),
    ] {
        all.push(harness(AREA, format!("cut file: {name}"), &args).file("c", broken.clone()).refused("c"));
        if !["diff", "export-blob", "convert"].contains(&name) {
            let other = harness(AREA, format!("of another model: {name}"), &args).file("c", sound());
            all.push(other.refused("model"));
        }
    }
    // Damage that only the hash can see.
    let mut flipped = sound();
    let last = flipped.len() - 3;
    flipped[last] ^= 0x04;
    all.push(
        harness(AREA, "one bit of the payload", ["cartridge", "verify", "c"])
            .file("c", flipped.clone())
            .refused("hash"),
    );
    let convert = |name: &str, options: &[&str], bytes: Vec<u8>| {
        let args = [&["cartridge", "convert", "c", "--out", "b"], options].concat();
        harness(AREA, format!("convert: {name}"), args).file("c", bytes)
    };
    all.push(convert("one bit of the payload", &["--to", "head-major"], flipped).refused("hash"));
    for (name, options) in [
        ("head-major", &["--to", "head-major"][..]),
        ("native with flash attention", &["--to", "native", "--flash-attn"]),
        ("f32", &["--to", "head-major", "--type-k", "f32", "--type-v", "f32"]),
    ] {
        all.push(convert(name, options, sound()).creates("b"));
    }
    for (name, options) in [
        ("to quantized types", &["--to", "native", "--flash-attn", "--type-k", "q8_0", "--type-v", "q8_0"][..]),
        ("to quantized values without flash attention", &["--to", "native", "--type-v", "q8_0"]),
        ("to quantized, head-major", &["--to", "head-major", "--type-k", "q4_0"]),
    ] {
        all.push(convert(name, options, sound()).refused("c"));
    }
    for (name, options, says) in [
        ("to nothing", &[][..], "--to"),
        ("to no layout", &["--to", "sideways"], "sideways"),
        ("to ternary keys", &["--to", "native", "--type-k", "i2_s"], "i2_s"),
        ("head-major with flash attention", &["--to", "head-major", "--flash-attn"], "--flash-attn"),
    ] {
        all.push(convert(name, options, sound()).usage(says));
    }
    // Keys of NaN, and no hash that would have caught them.
    let nan = {
        let (mut header, mut data) = split(&sound());
        header["__metadata__"].as_object_mut().unwrap().remove("payload_hash");
        let [from, to] = [0, 1].map(|i| header["layer.0.k"]["data_offsets"][i].as_u64().unwrap() as usize);
        data[from..to].copy_from_slice(&0x7e00u16.to_le_bytes().repeat((to - from) / 2));
        join(&header.to_string(), &data)
    };
    all.push(convert("keys of NaN", &["--to", "head-major"], nan).refused("not finite"));
    all
}

fn blobs() -> Vec<Attempt> {
    let import = |name: String, bytes: Vec<u8>| {
        harness(AREA, name, ["cartridge", "import-blob", "b", "--tokens", "t", "--out", "c"])
            .file("b", bytes)
            .file("t", "1 2 3")
            .refused("b")
    };
    let words = |list: &[u32]| list.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
    let mut all: Vec<Attempt> = [
        ("empty blob", Vec::new()),
        ("blob of one byte", vec![1]),
        ("cell count 0", words(&[0, 0, 4])),
        ("cell count 2^32-1", words(&[u32::MAX, 0, 0])),
        ("cell count 2^31", words(&[1 << 31, 0, 0])),
        ("cell count without cells", words(&[3])),
        ("blob of another model", blob()),
        ("negative position", words(&[1, u32::MAX, 0, 1, 4])),
        ("position 2^31-1", words(&[1, i32::MAX as u32, 0, 1, 4])),
        ("sequence ids in the cells", words(&[1, 0, 99, 1, 4])),
        ("zeros", vec![0; 4096]),
        ("ones", vec![0xff; 4096]),
        ("text", b"this is no blob".repeat(100)),
    ]
    .into_iter()
    .map(|(name, bytes)| import(name.into(), bytes))
    .collect();
    all.push(
        harness(AREA, "sparse blob of 1 TB", ["cartridge", "import-blob", "b", "--tokens", "t", "--out", "c"])
            .file("t", "1 2 3")
            .prepare(|folder| {
                let _ = std::fs::File::create(folder.join("b")).unwrap().set_len(1 << 40);
            })
            // There is no room to map it in, under the limit of this suite: the host's, as far as anyone can tell.
            .usage("Cannot allocate memory"),
    );
    all
}

fn token_files() -> Vec<Attempt> {
    let create = |name: &str, bytes: &[u8]| {
        harness(AREA, name, ["cartridge", "create", "--tokens", "t", "--out", "c", "--threads", "1"]).file("t", bytes)
    };
    let mut all: Vec<Attempt> = [
        ("no number", &b"1 two 3"[..], "two"),
        ("number over i32", b"1 99999999999999999999", "99999999999999999999"),
        ("negative token", b"-1", "-1"),
        ("i32 minimum", b"-2147483648", "-2147483648"),
        ("token outside the vocabulary", b"1 2147483647", "2147483647"),
        ("float", b"1.5", "1.5"),
        ("NUL", b"1 \0 2", "t"),
        ("no UTF-8", b"1 \xff 2", "UTF-8"),
        ("hexadecimal", b"0x10", "0x10"),
    ]
    .into_iter()
    .map(|(name, bytes, says)| create(&format!("token file: {name}"), bytes).refused(says))
    .collect();
    all.push(create("token file: empty", b"").usage("empty"));
    all.push(create("token file: only separators", b" ,,, \n").usage("empty"));
    all.push(create("token file: longer than the model", "1 ".repeat(200_000).as_bytes()).usage("context"));
    all.push(create("token file: 17 MB", &b"1 ".repeat(9 << 20)).refused("bytes"));
    all.push(create("token file: sound", b"1, 2\n3").creates("c"));
    all
}
