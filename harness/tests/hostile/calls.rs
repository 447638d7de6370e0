//! Library calls that abort, fault or are swallowed in the engine: the rows of 'What ends the process', each in a
//! child of this test binary, on a test thread's small stack. BR-11, BR-14, BR-19 to BR-25, BR-38, BR-50.

use bitnet_rs::{
    Batch, Constraint, Context, ContextParams, Model, ModelParams, Pos, Sampler, SamplingParams, SeqId, Special,
    TokenId, kernels, vocabulary_trie,
};
use grammar::{Grammar, GrammarLimits};
use kv::{KvType, StateBlob};
use models::source::ModelSource;

use crate::attempt::{Attempt, call};

/// A call: `Err` is the refusal that is wanted, or `Ok` for what must work. Either ends the child in an orderly way.
type Call = fn(&Model) -> Result<(), String>;

/// Name, text of the refusal (empty: it must work), call.
const CALLS: &[(&str, &str, Call)] = &[
    // llama_decode
    ("decode: batch over n_batch is split", "", |m| {
        let mut c = small(m)?;
        decode(&mut c, &tokens(m, 60), 0, 0)
    }),
    ("decode: no tokens", "empty", |m| small(m)?.decode(&Batch::new()).map(drop).map_err(text)),
    ("decode: prompt of no tokens", "empty", |_| Batch::prompt(&[], Pos::ZERO, SeqId::ZERO).map(drop).map_err(text)),
    ("decode: token outside the vocabulary", "100000", |m| {
        let foreign = TokenId::new(100_000, 128_256).map_err(text)?;
        decode(&mut small(m)?, &[foreign], 0, 0)
    }),
    ("decode: token -1", "-1", |m| m.token(-1).map(drop).map_err(text)),
    ("decode: token n_vocab", "vocabulary", |m| m.token(m.n_vocab() as i32).map(drop).map_err(text)),
    ("decode: token i32::MIN", "-2147483648", |m| m.token(i32::MIN).map(drop).map_err(text)),
    ("decode: sequence n_seq_max", "2", |m| decode(&mut small(m)?, &tokens(m, 2), 0, 2)),
    ("decode: sequence i32::MAX", "2147483647", |m| decode(&mut small(m)?, &tokens(m, 2), 0, i32::MAX)),
    ("decode: sequence -1", "-1", |_| SeqId::new(-1).map(drop).map_err(text)),
    ("decode: no sequence", "sequence", |m| {
        let mut b = Batch::new();
        b.push(tokens(m, 1)[0], Pos::ZERO, &[], true);
        small(m)?.decode(&b).map(drop).map_err(text)
    }),
    ("decode: 1,000 sequences of one token", "sequence", |m| {
        let seqs: Vec<SeqId> = (0..1000).map(|i| SeqId::new(i).unwrap()).collect();
        let mut b = Batch::new();
        b.push(tokens(m, 1)[0], Pos::ZERO, &seqs, true);
        small(m)?.decode(&b).map(drop).map_err(text)
    }),
    ("decode: position -1", "-1", |_| Pos::new(-1).map(drop).map_err(text)),
    ("decode: position 2^31-1", "position", |m| decode(&mut small(m)?, &tokens(m, 1), i32::MAX - 1, 0)),
    ("decode: position taken", "position", |m| {
        let mut c = small(m)?;
        decode(&mut c, &tokens(m, 4), 0, 0)?;
        decode(&mut c, &tokens(m, 4), 2, 0)
    }),
    ("decode: position twice in one batch", "position", |m| {
        let mut b = Batch::new();
        for _ in 0..2 {
            b.push(tokens(m, 1)[0], Pos::ZERO, &[SeqId::ZERO], true);
        }
        small(m)?.decode(&b).map(drop).map_err(text)
    }),
    ("decode: a full context says so and changes nothing", "full", |m| {
        let mut c = small(m)?;
        decode(&mut c, &tokens(m, 40), 0, 0)?;
        let refusal = decode(&mut c, &tokens(m, 60), 40, 0);
        same_as_fresh(m, &mut c)?;
        refusal
    }),
    ("decode: cancelled, then like a fresh one", "", |m| {
        let mut c = small(m)?;
        c.cancel_handle().cancel();
        let _ = decode(&mut c, &tokens(m, 40), 0, 0);
        same_as_fresh(m, &mut c)
    }),
    // logits
    ("logits: before any decode", "logits", |m| small(m)?.logits().map(drop).map_err(text)),
    ("logits: row that was not asked for", "logits", |m| {
        let mut c = small(m)?;
        let b = Batch::prompt(&tokens(m, 4), Pos::ZERO, SeqId::ZERO).map_err(text)?;
        c.decode(&b).map_err(text)?.row(1).map(drop).map_err(text)
    }),
    ("logits: row usize::MAX", "logits", |m| {
        let mut c = small(m)?;
        let b = Batch::scored(&tokens(m, 4), Pos::ZERO, SeqId::ZERO).map_err(text)?;
        c.decode(&b).map_err(text)?.row(usize::MAX).map(drop).map_err(text)
    }),
    // context creation
    ("context: n_threads 0", "n_threads", |m| context(m, |p| p.n_threads = 0)),
    ("context: n_ubatch 0", "n_ubatch", |m| context(m, |p| p.n_ubatch = 0)),
    ("context: n_ubatch 2^32-1", "n_ubatch", |m| context(m, |p| p.n_ubatch = u32::MAX)),
    ("context: n_seq_max 0", "n_seq_max", |m| context(m, |p| p.n_seq_max = 0)),
    ("context: n_seq_max 2^32-1", "n_seq_max", |m| context(m, |p| p.n_seq_max = u32::MAX)),
    ("context: n_ctx 2^32-1", "n_ctx", |m| context(m, |p| p.n_ctx = u32::MAX)),
    ("context: n_ctx beyond the memory", "n_ctx", |m| context(m, |p| p.n_ctx = 1 << 24)),
    ("context: n_threads 100,000 is clamped", "", |m| context(m, |p| p.n_threads = 100_000)),
    ("context: V q8_0 without flash attention", "type_v", |m| context(m, |p| p.type_v = KvType::Q8_0)),
    ("context: V f32 without flash attention", "type_v", |m| context(m, |p| p.type_v = KvType::F32)),
    ("context: K f32 with flash attention", "type_k", |m| {
        context(m, |p| {
            p.flash_attn = true;
            p.type_k = KvType::F32;
        })
    }),
    ("context: K bf16", "type_k", |m| context(m, |p| p.type_k = KvType::Bf16)),
    // sequence state
    ("restore: cell count 0", "cell_count", |m| restore(m, |b| b[..4].copy_from_slice(&0u32.to_le_bytes()))),
    ("restore: cell count 2^32-1", "4294967295", |m| restore(m, |b| b[..4].copy_from_slice(&u32::MAX.to_le_bytes()))),
    ("restore: one cell more", "", |m| refused_restore(m, |b| b[0] += 1)),
    ("restore: trailing bytes", "trailing", |m| restore(m, |b| b.extend([0; 7]))),
    ("restore: short buffer", "truncated", |m| restore(m, |b| b.truncate(b.len() - 1))),
    ("restore: three bytes", "truncated", |m| restore(m, |b| b.truncate(3))),
    ("restore: nothing", "truncated", |m| restore(m, Vec::clear)),
    ("restore: negative position", "position", |m| restore(m, |b| b[4..8].copy_from_slice(&(-1i32).to_le_bytes()))),
    ("restore: position 2^31-1", "position", |m| restore(m, |b| b[4..8].copy_from_slice(&i32::MAX.to_le_bytes()))),
    ("restore: position twice", "position", |m| restore(m, |b| b[12..16].copy_from_slice(&0i32.to_le_bytes()))),
    ("restore: sequence id 99", "cell 0", |m| restore(m, |b| b[8..12].copy_from_slice(&99u32.to_le_bytes()))),
    ("restore: sequence id -1", "cell 0", |m| restore(m, |b| b[8..12].copy_from_slice(&u32::MAX.to_le_bytes()))),
    ("restore: v_trans 7", "v_trans", |m| restore(m, |b| b[4 + 8 * 20..][..4].copy_from_slice(&7u32.to_le_bytes()))),
    ("restore: other layer count", "n_layer", |m| restore(m, |b| b[8 + 8 * 20] ^= 1)),
    ("restore: other key type", "type", |m| restore(m, |b| b[12 + 8 * 20] = 0)),
    ("restore: key type i2_s", "type", |m| restore(m, |b| b[12 + 8 * 20] = 36)),
    ("restore: other row size", "row", |m| restore(m, |b| b[16 + 8 * 20] ^= 2)),
    ("restore: row size 2^63", "row", |m| restore(m, |b| b[23 + 8 * 20] = 0x80)),
    ("restore: of another attention setting", "flash", |m| {
        let state = saved(m)?;
        let mut other =
            Context::new(m, &ContextParams { n_ctx: 64, flash_attn: true, n_threads: 1, ..Default::default() })
                .map_err(text)?;
        let result = other.restore(SeqId::ZERO, &state.blob()).map_err(text);
        same_as_fresh_with(m, &mut other, true)?;
        result
    }),
    ("restore: into sequence 99", "99", |m| {
        let state = saved(m)?;
        small(m)?.restore(SeqId::new(99).unwrap(), &state.blob()).map_err(text)
    }),
    ("save: an empty sequence", "empty", |m| small(m)?.save(SeqId::ZERO).map(drop).map_err(text)),
    ("save: sequence 99", "99", |m| small(m)?.save(SeqId::new(99).unwrap()).map(drop).map_err(text)),
    // texts
    ("tokenize: 3 MB", "", |m| {
        // Memory may be short under the limit: an error is an answer.
        let _ = m.tokenize(&"lamp ".repeat(600_000), Special::Content);
        Ok(())
    }),
    ("tokenize: one word of 1 MB", "", |m| {
        // Memory may be short under the limit: an error is an answer.
        let _ = m.tokenize(&"a".repeat(1 << 20), Special::Content);
        Ok(())
    }),
    ("tokenize: 70 MB", "bytes", |m| m.tokenize(&"x".repeat(70 << 20), Special::Content).map(drop).map_err(text)),
    ("tokenize: interior NUL keeps its length", "", |m| {
        let with = m.tokenize("a\0b", Special::Content).map_err(text)?;
        let back = m.detokenize(&with, true).map_err(text)?;
        if back.ends_with(b"b") && back.contains(&0) { Ok(()) } else { Err(format!("{back:?}")) }
    }),
    ("token text: id of another vocabulary", "100000", |m| {
        let foreign = TokenId::new(100_000, 128_256).map_err(text)?;
        m.token_bytes(foreign, true).map(drop).map_err(text)
    }),
    ("detokenize: id of another vocabulary", "100000", |m| {
        let foreign = TokenId::new(100_000, 128_256).map_err(text)?;
        m.detokenize(&[foreign], false).map(drop).map_err(text)
    }),
    // samplers and grammars
    ("sampler: NaN logits", "", |m| {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0] {
            for temperature in [0.0, 1.0, 1e-45] {
                let params = SamplingParams { temperature, top_k: 40, top_p: 0.9, min_p: 0.1, ..Default::default() };
                let _ = Sampler::new(m, &params).map_err(text)?.sample(&vec![value; m.n_vocab() as usize], None);
            }
        }
        Ok(())
    }),
    ("sampler: too few logits", "logits", |m| {
        Sampler::new(m, &SamplingParams::default()).map_err(text)?.sample(&[0.0; 3], None).map(drop).map_err(text)
    }),
    ("sampler: token of another vocabulary", "100000", |m| {
        let foreign = TokenId::new(100_000, 128_256).map_err(text)?;
        Sampler::new(m, &SamplingParams::default()).map_err(text)?.accept(foreign).map_err(text)
    }),
    ("grammar: token that it forbids, and again", "grammar", |m| {
        let mut c = constraint(m, "root ::= \"ok\"")?;
        let wrong = m.tokenize("z", Special::Content).map_err(text)?[0];
        let first = c.accept(wrong).map(drop).map_err(text);
        match (first, c.accept(wrong), c.mask()) {
            (Err(why), Err(_), Err(_)) => Err(why),
            other => Err(format!("not kept: {other:?}")),
        }
    }),
    ("grammar: end of generation first", "complete", |m| {
        let end = m.eos().ok_or("no eos")?;
        constraint(m, "root ::= \"ok\"")?.accept(end).map(drop).map_err(text)
    }),
    ("grammar: token of another vocabulary", "100000", |m| {
        let foreign = TokenId::new(100_000, 128_256).map_err(text)?;
        constraint(m, "root ::= \"ok\"")?.accept(foreign).map(drop).map_err(text)
    }),
    ("grammar: root that does not exist", "no rule", |_| {
        Grammar::parse("root ::= \"a\"", "nowhere", &GrammarLimits::default()).map(drop).map_err(text)
    }),
    ("grammar: the sampler outlives the model's handle", "", |_| {
        let (model, _path) = load()?;
        let mut c = constraint(&model, "root ::= [a-z]+")?;
        drop(model);
        c.mask().map(drop).map_err(text)
    }),
    // kernels: BR-04, BR-06
    ("kernel: K = 0", "k", |_| kernels::vec_dot(&[], 0, &[]).map(drop).map_err(text)),
    ("kernel: K = 64", "64", |_| kernels::vec_dot(&[0; 16], 64, &[0; 64]).map(drop).map_err(text)),
    ("kernel: K = 129", "129", |_| kernels::vec_dot(&[0; 33], 129, &[0; 129]).map(drop).map_err(text)),
    ("kernel: K = 2^63", "", |_| refused(kernels::vec_dot(&[0; 32], 1 << 63, &[0; 128]))),
    ("kernel: too few activations", "activations", |_| {
        kernels::vec_dot(&[0; 32], 128, &[0; 100]).map(drop).map_err(text)
    }),
    ("kernel: 126 rows", "rows", |_| {
        kernels::mul_mat(&[0; 32 * 126], 1.0, 126, 128, &[0.0; 128], 1).map(drop).map_err(text)
    }),
    ("kernel: rows 2^62", "", |_| refused(kernels::mul_mat(&[0; 32], 1.0, 1 << 62, 128, &[0.0; 128], 1))),
    ("kernel: no threads", "threads", |_| {
        kernels::mul_mat(&[0; 32 * 4], 1.0, 4, 128, &[0.0; 128], 0).map(drop).map_err(text)
    }),
    ("kernel: no columns", "", |_| refused(kernels::mul_mat(&[0; 32 * 4], 1.0, 4, 128, &[], 1))),
    ("kernel: NaN and infinite activations", "", |_| {
        let _ = kernels::quantize_activations(&[f32::NAN; 128]);
        let _ = kernels::quantize_activations(&[f32::INFINITY; 128]);
        Ok(())
    }),
];

/// A refusal of any wording.
fn refused<T>(result: Result<T, bitnet_rs::Error>) -> Result<(), String> {
    if result.is_err() { Ok(()) } else { Err("accepted".into()) }
}

pub(crate) fn table() -> Vec<Attempt> {
    CALLS.iter().map(|(name, says, _)| if says.is_empty() { call(name) } else { call(name).refused(says) }).collect()
}

/// Runs one call; the parent decides by exit code and stderr.
#[test]
#[ignore = "a child of the hostile suite, useless alone"]
fn child() {
    let Ok(wanted) = std::env::var("HOSTILE_CALL") else { return };
    if let Some(what) = wanted.strip_prefix("flips:") {
        crate::flips::child(what);
    }
    let (_, says, call) = CALLS.iter().find(|c| c.0 == wanted).expect("a call of the table");
    let outcome = load().and_then(|(model, path)| {
        let outcome = call(&model);
        drop(path);
        outcome
    });
    match outcome {
        Ok(()) => std::process::exit(0),
        Err(why) => {
            eprintln!("{why}");
            std::process::exit(if says.is_empty() { 1 } else { 4 });
        }
    }
}

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

pub(crate) fn load() -> Result<(Model, models::source::ModelPath), String> {
    let path = ModelSource::Embedded.path().map_err(text)?;
    Ok((Model::load(path.as_path(), ModelParams::default()).map_err(text)?, path))
}

fn params() -> ContextParams {
    ContextParams { n_ctx: 64, n_ubatch: 16, n_seq_max: 2, n_threads: 1, ..Default::default() }
}

pub(crate) fn small(model: &Model) -> Result<Context, String> {
    Context::new(model, &params()).map_err(text)
}

fn context(model: &Model, change: impl FnOnce(&mut ContextParams)) -> Result<(), String> {
    let mut p = params();
    change(&mut p);
    Context::new(model, &p).map(drop).map_err(text)
}

pub(crate) fn tokens(model: &Model, n: usize) -> Vec<TokenId> {
    (0..n).map(|i| model.token(i as i32 % 200 + 1).unwrap()).collect()
}

fn decode(context: &mut Context, tokens: &[TokenId], first: i32, seq: i32) -> Result<(), String> {
    let seq = SeqId::new(seq).map_err(text)?;
    let batch = Batch::prompt(tokens, Pos::new(first).map_err(text)?, seq).map_err(text)?;
    context.decode(&batch).map(drop).map_err(text)
}

fn constraint(model: &Model, grammar: &str) -> Result<Constraint, String> {
    let grammar = Grammar::parse(grammar, "root", &GrammarLimits::default()).map_err(text)?;
    Constraint::new(model, &grammar.into(), &vocabulary_trie(model).map_err(text)?).map_err(text)
}

/// Twenty cells of sequence 0.
pub(crate) fn saved(model: &Model) -> Result<kv::SequenceState, String> {
    let mut c = small(model)?;
    decode(&mut c, &tokens(model, 20), 0, 0)?;
    c.save(SeqId::ZERO).map_err(text)
}

/// BR-14: a damaged blob is refused, and the destination goes on as if nothing had been tried.
fn restore(model: &Model, damage: impl FnOnce(&mut Vec<u8>)) -> Result<(), String> {
    let mut bytes = saved(model)?.into_bytes();
    damage(&mut bytes);
    let (mut tried, mut untouched) = (small(model)?, small(model)?);
    for c in [&mut tried, &mut untouched] {
        decode(c, &tokens(model, 10), 0, 0)?;
    }
    let geometry = tried.geometry().clone();
    let result = StateBlob::parse(&bytes, &geometry)
        .map_err(text)
        .and_then(|blob| tried.restore(SeqId::ZERO, &blob).map_err(text));
    let (a, b) = (continued(model, &mut tried, 10)?, continued(model, &mut untouched, 10)?);
    if result.is_err() && a != b {
        return Err("the refused restore changed the destination".into());
    }
    result
}

fn refused_restore(model: &Model, damage: impl FnOnce(&mut Vec<u8>)) -> Result<(), String> {
    match restore(model, damage) {
        Err(why) if !why.contains("changed") => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

fn continued(model: &Model, context: &mut Context, at: i32) -> Result<Vec<u32>, String> {
    let batch = Batch::prompt(&tokens(model, 3), Pos::new(at).map_err(text)?, SeqId::ZERO).map_err(text)?;
    let logits = context.decode(&batch).map_err(text)?;
    Ok(logits.last().map_err(text)?.iter().map(|x| x.to_bits()).collect())
}

/// After clearing, the next decode equals a fresh context's, bit for bit.
pub(crate) fn same_as_fresh(model: &Model, context: &mut Context) -> Result<(), String> {
    same_as_fresh_with(model, context, false)
}

fn same_as_fresh_with(model: &Model, context: &mut Context, flash_attn: bool) -> Result<(), String> {
    context.clear().map_err(text)?;
    let p = ContextParams { flash_attn, ..params() };
    let mut fresh = Context::new(model, &p).map_err(text)?;
    if continued(model, context, 0)? == continued(model, &mut fresh, 0)? {
        Ok(())
    } else {
        Err("the context does not decode like a fresh one".into())
    }
}
