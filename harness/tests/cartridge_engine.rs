//! Cartridges through the real engine: what is mounted goes on bit for bit as what was decoded.
//!
//! Expected values come from contexts that never saw a cartridge and decode the same tokens in the same batches.

use session::{Mount as _, MountError};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use bitnet_rs::{Batch, Context, ContextParams, Model, ModelParams, Pos, SeqId, TokenId, greedy};
use cartridge::{
    Cartridge, CartridgeError, Cause, ConvertTo, Level, ModelLock, Overwrite, Provenance, Rope, Rounding, convert,
    diagnose, write_head_major,
};
use harness::gates::thresholds::Thresholds;
use kv::{KvType, SequenceState, ValueLayout};
use models::source::ModelSource;
use reference::likelihood::kl_divergence;
use session::{ChatTemplate, Message, TemplateSandbox};
use synth::{SynthSpec, write_synth_file};

const PREFIX: usize = 37;
const DEVICES: &str = "Devices:\n- pixa: camera, hallway";
const COMMAND: &str = "switch pixa on";

/// A model, its lock, and the folder of the files made in a test.
struct Bench {
    model: Model,
    lock: ModelLock,
    folder: tempfile::TempDir,
}

impl Bench {
    fn embedded() -> Self {
        let path = ModelSource::Embedded.path().unwrap();
        Self::of(Model::load(path.as_path(), ModelParams::default()).unwrap())
    }

    /// Random weights of one small shape.
    fn synthetic(seed: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        let spec = SynthSpec::preset("tiny").unwrap();
        write_synth_file(&spec, seed, &path, false, &mut |_| {}, &AtomicBool::new(false)).unwrap();
        Self::of(Model::load(&path, ModelParams::default()).unwrap())
    }

    fn of(model: Model) -> Self {
        let lock = session::lock_of(&model, &mut |_, _| ControlFlow::Continue(())).unwrap();
        Self { model, lock, folder: tempfile::tempdir().unwrap() }
    }

    fn context(&self, params: &ContextParams) -> Context {
        Context::new(&self.model, params).unwrap()
    }

    /// Ordinary tokens.
    fn tokens(&self, n: usize, salt: usize) -> Vec<TokenId> {
        let some = (0..).map(|i| self.model.token(((i * 7919 + salt * 104_729) % 250 + 1) as i32).unwrap());
        some.filter(|t| !self.model.is_control(*t)).take(n).collect()
    }

    /// Prefills `tokens` and writes them as a native cartridge.
    fn create(&self, name: &str, tokens: &[TokenId], params: &ContextParams) -> (PathBuf, SequenceState) {
        let mut context = self.context(params);
        feed(&mut context, tokens, SeqId::ZERO);
        let path = self.folder.path().join(name);
        let provenance = Provenance::default();
        session::capture(&path, &mut context, SeqId::ZERO, tokens, &self.lock, &provenance, Overwrite::Refuse).unwrap();
        (path, context.save(SeqId::ZERO).unwrap())
    }

    fn open(&self, path: &Path) -> Cartridge {
        let cartridge = Cartridge::open(path).unwrap();
        cartridge.validate(Level::Full).unwrap();
        cartridge
    }

    /// Cartridge of a system message, and its tokens.
    fn system(&self, name: &str, text: &str) -> (Cartridge, Vec<TokenId>) {
        let template = ChatTemplate::of_model(&self.model, &TemplateSandbox::InProcess).unwrap();
        let tokens = template.tokens(&self.model, &[Message::new("system", text)], false).unwrap();
        let (path, _) = self.create(name, &tokens, &base());
        (self.open(&path), tokens)
    }

    /// Tokens of `messages`, ending where the assistant speaks.
    fn conversation(&self, messages: &[(&str, &str)]) -> Vec<TokenId> {
        let messages: Vec<Message> = messages.iter().map(|(role, text)| Message::new(role, *text)).collect();
        ChatTemplate::of_model(&self.model, &TemplateSandbox::InProcess)
            .unwrap()
            .tokens(&self.model, &messages, true)
            .unwrap()
    }

    fn text(&self, tokens: &[TokenId]) -> String {
        String::from_utf8(self.model.detokenize(tokens, false).unwrap()).unwrap()
    }
}

fn base() -> ContextParams {
    ContextParams { n_ctx: 256, n_threads: 1, ..Default::default() }
}

fn seq(id: i32) -> SeqId {
    SeqId::new(id).unwrap()
}

fn ids(tokens: &[TokenId]) -> Vec<i32> {
    tokens.iter().map(|t| t.get()).collect()
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

/// Decodes `tokens` behind what `seq` holds; the bits of every token's logits.
fn feed(context: &mut Context, tokens: &[TokenId], seq: SeqId) -> Vec<Vec<u32>> {
    let first = context.next_pos(seq).unwrap();
    let logits = context.decode(&Batch::scored(tokens, first, seq).unwrap()).unwrap();
    (0..tokens.len()).map(|i| bits(logits.row(i).unwrap())).collect()
}

/// Decodes `prompt` and then greedily up to the end of generation: the tokens, and the bits of each one's logits.
fn answer(context: &mut Context, prompt: &[TokenId], seq: SeqId) -> (Vec<TokenId>, Vec<Vec<u32>>) {
    let (mut said, mut rows) = (Vec::new(), Vec::new());
    let mut next = prompt.to_vec();
    while said.len() < 96 {
        let at = context.next_pos(seq).unwrap();
        let row = context.decode(&Batch::prompt(&next, at, seq).unwrap()).unwrap().last().unwrap().to_vec();
        rows.push(bits(&row));
        let token = greedy(&row).unwrap();
        if context.model().is_end_of_generation(token) {
            break;
        }
        said.push(token);
        next = vec![token];
    }
    (said, rows)
}

/// What a library that knows nothing of cartridges makes of the file.
fn rewritten(native: &Path) -> PathBuf {
    let bytes = std::fs::read(native).unwrap();
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let path = native.with_extension("rewritten");
    safetensors::serialize_to_file(file.tensors(), header.metadata().clone(), &path).unwrap();
    path
}

#[test]
fn mounted_goes_on_as_live_under_every_setting() {
    let b = Bench::embedded();
    let (prefix, rest) = (b.tokens(PREFIX, 1), b.tokens(3, 2));
    let settings = [
        ("f16", base()),
        ("flash attention", ContextParams { flash_attn: true, ..base() }),
        ("q8_0 keys", ContextParams { type_k: KvType::Q8_0, ..base() }),
        ("f32 keys", ContextParams { type_k: KvType::F32, ..base() }),
        (
            "flash attention, q8_0 keys, q4_0 values",
            ContextParams { flash_attn: true, type_k: KvType::Q8_0, type_v: KvType::Q4_0, ..base() },
        ),
    ];
    // The context that mounts: like the capturing one, of another size, and under another sequence id.
    let places = [("alike", 256, 1, SeqId::ZERO), ("n_ctx 512", 512, 1, SeqId::ZERO), ("sequence 2", 512, 3, seq(2))];
    for (what, params) in settings {
        let (native, state) = b.create(what, &prefix, &params);
        let mut live = b.context(&params);
        feed(&mut live, &prefix, SeqId::ZERO);
        let expected = feed(&mut live, &rest, SeqId::ZERO);

        let mut files = vec![(native.clone(), false), (rewritten(&native), true)];
        if !params.type_k.is_quantized() && !params.type_v.is_quantized() {
            let path = native.with_extension("head-major");
            let provenance = Provenance::default();
            write_head_major(&path, &state.blob(), &ids(&prefix), &b.lock, &provenance, Overwrite::Refuse).unwrap();
            files.push((path, true));
        }
        for (file, copied) in files {
            let cartridge = b.open(&file);
            for (place, n_ctx, n_seq_max, seq) in places {
                let mut fresh = b.context(&ContextParams { n_ctx, n_seq_max, ..params.clone() });
                let mounted = cartridge.mount(&mut fresh, seq, &b.lock, Rounding::Exact).unwrap();
                assert_eq!((mounted.next_pos, mounted.copied), (PREFIX as u32, copied));
                assert_eq!(fresh.next_pos(seq).unwrap(), Pos::new(PREFIX as i32).unwrap());
                assert!(fresh.save(seq).unwrap().as_bytes() == state.as_bytes(), "{what}, {place}: other bytes");
                assert!(feed(&mut fresh, &rest, seq) == expected, "{what}, {place}, {}", file.display());
                let again = cartridge.mount(&mut fresh, seq, &b.lock, Rounding::Exact);
                assert!(matches!(again, Err(MountError::Occupied { .. })), "{again:?}");
            }
        }
    }
}

#[test]
fn several_cartridges_live_in_several_sequences() {
    let b = Bench::embedded();
    let params = ContextParams { n_seq_max: 3, ..base() };
    let prefixes = [b.tokens(PREFIX, 1), b.tokens(5, 2), b.tokens(64, 3)];
    let turns = [b.tokens(4, 4), b.tokens(6, 5), b.tokens(3, 6)];
    let (mut mounted, mut restored, mut live) = (b.context(&params), b.context(&params), b.context(&params));
    for (i, prefix) in prefixes.iter().enumerate() {
        let seq = seq(i as i32);
        let (path, state) = b.create(&format!("c{i}"), prefix, &base());
        b.open(&path).mount(&mut mounted, seq, &b.lock, Rounding::Exact).unwrap();
        restored.restore(seq, &state.blob()).unwrap();
        feed(&mut live, prefix, seq);
        assert!(mounted.save(seq).unwrap().as_bytes() == state.as_bytes());
    }
    // One batch that goes on with all three.
    let mut batch = Batch::new();
    for (i, turn) in turns.iter().enumerate() {
        for (j, &token) in turn.iter().enumerate() {
            batch.push(token, Pos::new((prefixes[i].len() + j) as i32).unwrap(), &[seq(i as i32)], true);
        }
    }
    let rows = |context: &mut Context| {
        let logits = context.decode(&batch).unwrap();
        (0..batch.len()).map(|i| logits.row(i).unwrap().to_vec()).collect::<Vec<_>>()
    };
    let (found, same, prefilled) = (rows(&mut mounted), rows(&mut restored), rows(&mut live));
    // The engine's own restore puts the same bytes into the same cells.
    assert!(found.iter().zip(&same).all(|(a, b)| bits(a) == bits(b)));
    // A prefill beside other sequences lies in other cells than one alone, and attention sums in another order: near,
    // as two roundings of one model are, but not equal.
    let kl = found.iter().zip(&prefilled).map(|(a, b)| kl_divergence(b, a)).sum::<f64>() / found.len() as f64;
    let bound = Thresholds::embedded().unwrap().logits.max_mean_kl;
    assert!(kl <= bound, "mean KL {kl:.2e}");
    // Taking one away leaves the others as they are.
    let before: Vec<Vec<u8>> = [0, 2].map(|i| mounted.save(seq(i)).unwrap().into_bytes()).into();
    mounted.remove_all(seq(1)).unwrap();
    let after: Vec<Vec<u8>> = [0, 2].map(|i| mounted.save(seq(i)).unwrap().into_bytes()).into();
    assert!(before == after);
}

#[test]
fn one_cartridge_serves_many_sequences_and_its_cells_are_there_once() {
    let b = Bench::embedded();
    const USERS: i32 = 8;
    let params = ContextParams { n_seq_max: 1 + USERS as u32, ..base() };
    let prefix = b.tokens(PREFIX, 1);
    let cartridge = b.open(&b.create("shared", &prefix, &base()).0);
    let turns: Vec<Vec<TokenId>> = (0..USERS).map(|u| b.tokens(3, 10 + u as usize)).collect();

    let mut mounted = b.context(&params);
    let all = mounted.free_cells();
    cartridge.mount(&mut mounted, SeqId::ZERO, &b.lock, Rounding::Exact).unwrap();
    let mut live = b.context(&params);
    feed(&mut live, &prefix, SeqId::ZERO);
    for context in [&mut mounted, &mut live] {
        for user in 1..=USERS {
            context.copy(SeqId::ZERO, seq(user), None).unwrap();
        }
        assert_eq!(all - context.free_cells(), PREFIX, "the copies share cells");
    }
    // The cells stay while anybody uses them.
    mounted.remove_all(SeqId::ZERO).unwrap();
    live.remove_all(SeqId::ZERO).unwrap();
    let mut answers = Vec::new();
    for (user, turn) in (1..).zip(&turns) {
        let found = feed(&mut mounted, turn, seq(user));
        assert!(found == feed(&mut live, turn, seq(user)), "sequence {user}");
        assert!(!answers.contains(&found), "each hears its own turn");
        answers.push(found);
    }
    // The first one to speak stands where a sequence of its own would.
    let mut alone = b.context(&base());
    cartridge.mount(&mut alone, SeqId::ZERO, &b.lock, Rounding::Exact).unwrap();
    assert!(feed(&mut alone, &turns[0], SeqId::ZERO) == answers[0]);
}

#[test]
fn a_device_list_makes_the_model_answer_what_it_cannot_without() {
    let b = Bench::embedded();
    let (cartridge, prefix) = b.system("devices", DEVICES);
    let whole = b.conversation(&[("system", DEVICES), ("user", COMMAND)]);
    let (head, turn) = whole.split_at(prefix.len());
    assert_eq!(head, prefix, "the cartridge is the beginning of the conversation, token by token");

    let mut full = b.context(&base());
    feed(&mut full, head, SeqId::ZERO);
    let (expected, expected_rows) = answer(&mut full, turn, SeqId::ZERO);
    let mut context = b.context(&base());
    cartridge.mount(&mut context, SeqId::ZERO, &b.lock, Rounding::Exact).unwrap();
    let (said, rows) = answer(&mut context, turn, SeqId::ZERO);
    assert_eq!(said, expected);
    assert!(rows == expected_rows, "logits differ from those of the full context");
    // The same tokens from one pass over everything.
    assert_eq!(answer(&mut b.context(&base()), &whole, SeqId::ZERO).0, expected);

    let known: serde_json::Value = serde_json::from_str(&b.text(&said)).unwrap();
    assert_eq!((&known["device_alias"], &known["action"]), (&"pixa".into(), &"turn_on".into()), "{known}");
    assert_eq!((&known["room"], &known["device_type"]), (&"hallway".into(), &"camera".into()), "{known}");
    let without = b.conversation(&[("user", COMMAND)]);
    let (said, _) = answer(&mut b.context(&base()), &without, SeqId::ZERO);
    let blind: serde_json::Value = serde_json::from_str(&b.text(&said)).unwrap();
    assert_eq!((&blind["room"], &blind["device_type"]), (&"unknown".into(), &"unknown".into()), "{blind}");
}

#[test]
fn a_conversation_goes_on_behind_a_cartridge() {
    let b = Bench::embedded();
    let (cartridge, prefix) = b.system("devices", DEVICES);
    let mut mounted = b.context(&base());
    cartridge.mount(&mut mounted, SeqId::ZERO, &b.lock, Rounding::Exact).unwrap();
    let mut live = b.context(&base());
    feed(&mut live, &prefix, SeqId::ZERO);
    // Two turns; the second one follows what was said in the first.
    let first = b.conversation(&[("system", DEVICES), ("user", COMMAND)])[prefix.len()..].to_vec();
    let (said, rows) = answer(&mut mounted, &first, SeqId::ZERO);
    assert!((&said, &rows) == (&answer(&mut live, &first, SeqId::ZERO).0, &rows));
    let text = b.text(&said);
    let whole =
        b.conversation(&[("system", DEVICES), ("user", COMMAND), ("assistant", &text), ("user", "what is pixa?")]);
    let held = mounted.next_pos(SeqId::ZERO).unwrap().get() as usize;
    assert_eq!(&whole[prefix.len()..][..first.len()], first);
    let second = whole[held..].to_vec();
    let found = answer(&mut mounted, &second, SeqId::ZERO);
    assert!(found == answer(&mut live, &second, SeqId::ZERO));
    assert!(!found.0.is_empty());
}

#[test]
fn a_head_major_file_mounts_under_either_attention() {
    let b = Bench::embedded();
    let flash = ContextParams { flash_attn: true, ..base() };
    let (path, state) = b.create("native", &b.tokens(PREFIX, 1), &base());
    let native = b.open(&path);
    let mut other = b.context(&flash);
    let e = native.mount(&mut other, SeqId::ZERO, &b.lock, Rounding::Exact).unwrap_err();
    assert!(
        matches!(e, MountError::Cartridge(CartridgeError::NativeSetting { setting: "flash attention", .. })),
        "{e}"
    );
    assert!(other.positions(SeqId::ZERO).unwrap().is_empty());

    let path = b.folder.path().join("head-major");
    let to = ConvertTo::HeadMajor { type_k: KvType::F16, type_v: KvType::F16 };
    convert(&native, &path, &to, Rounding::Exact, Overwrite::Refuse).unwrap();
    b.open(&path).mount(&mut other, SeqId::ZERO, &b.lock, Rounding::Exact).unwrap();
    let moved = other.save(SeqId::ZERO).unwrap();
    assert_eq!(moved.geometry().value_layout(), ValueLayout::Rows);
    assert_eq!(diagnose(&state.blob(), &moved.blob(), &Rope::from(&b.lock)).unwrap(), None);
}

#[test]
fn another_model_of_the_same_shape_is_refused_and_told_apart() {
    let (one, two) = (Bench::synthetic(1), Bench::synthetic(2));
    let prefix = one.tokens(PREFIX, 1);
    let params = ContextParams { n_ctx: 128, n_threads: 1, ..Default::default() };
    let (path, state) = one.create("one", &prefix, &params);
    let mut b = two.context(&params);
    let e = one.open(&path).mount(&mut b, SeqId::ZERO, &two.lock, Rounding::Exact).unwrap_err();
    let MountError::Cartridge(CartridgeError::Lock(found)) = &e else { panic!("{e}") };
    assert_eq!(found.iter().map(|m| m.field).collect::<Vec<_>>(), ["model_weights_hash"], "{e}");
    feed(&mut b, &prefix, SeqId::ZERO);
    let other = b.save(SeqId::ZERO).unwrap();
    let d = diagnose(&state.blob(), &other.blob(), &Rope::from(&one.lock)).unwrap().unwrap();
    assert_eq!(d.cause, Cause::OtherModel, "{d}");
}

#[test]
fn real_keys_at_other_positions_are_recognised() {
    let b = Bench::embedded();
    let prefix = b.tokens(PREFIX, 1);
    let at = |first: i32| {
        let mut context = b.context(&base());
        let batch = Batch::prompt(&prefix, Pos::new(first).unwrap(), SeqId::ZERO).unwrap();
        context.decode(&batch).unwrap();
        context.save(SeqId::ZERO).unwrap()
    };
    let (zero, five) = (at(0), at(5));
    let d = diagnose(&zero.blob(), &five.blob(), &Rope::from(&b.lock)).unwrap().unwrap();
    assert_eq!(d.cause, Cause::PositionOffset { offset: 5 }, "{d}");
}
