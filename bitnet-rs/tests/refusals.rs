//! What would end the process in the engine is an error here. Each of these inputs aborts, faults or is taken
//! silently by the native call; that this binary reaches its end is part of the test.

mod models;

use bitnet_rs::state::KvType;
use bitnet_rs::{Batch, Context, ContextParams, Error, Pos, Sampler, SamplingParams, SeqId, Special, TokenId};

fn context(params: ContextParams) -> Result<Context, Error> {
    Context::new(&models::tiny(), &ContextParams { n_threads: 1, ..params })
}

fn small() -> Context {
    context(ContextParams { n_ctx: 64, n_ubatch: 16, n_seq_max: 2, ..Default::default() }).unwrap()
}

fn tokens(n: usize) -> Vec<TokenId> {
    (0..n).map(|i| models::tiny().token(i as i32 % 200 + 1).unwrap()).collect()
}

#[test]
fn context_parameters() {
    let base = ContextParams::default();
    let field = |params: ContextParams| match Context::new(&models::tiny(), &params).unwrap_err() {
        Error::ContextParam { field, .. } | Error::KvType { field, .. } => field,
        other => panic!("{other}"),
    };
    assert_eq!(field(ContextParams { n_threads: 0, ..base.clone() }), "n_threads");
    assert_eq!(field(ContextParams { n_ubatch: 0, ..base.clone() }), "n_ubatch");
    assert_eq!(field(ContextParams { n_seq_max: 0, ..base.clone() }), "n_seq_max");
    assert_eq!(field(ContextParams { n_ctx: u32::MAX, ..base.clone() }), "n_ctx");
    assert_eq!(field(ContextParams { type_v: KvType::Q8_0, ..base.clone() }), "type_v");
    assert_eq!(field(ContextParams { type_v: KvType::F32, ..base.clone() }), "type_v");
    assert_eq!(field(ContextParams { type_k: KvType::F32, flash_attn: true, ..base.clone() }), "type_k");
    assert_eq!(field(ContextParams { type_k: KvType::Bf16, ..base }), "type_k");
    let huge = context(ContextParams { n_ctx: 1 << 24, ..Default::default() }).unwrap_err();
    assert!(matches!(huge, Error::ContextMemory { .. }), "{huge}");
    let many = Context::new(&models::tiny(), &ContextParams { n_ctx: 64, n_threads: 100_000, ..Default::default() });
    assert_eq!(many.unwrap().params().n_threads, bitnet_rs::threads::available());
}

#[test]
fn batches() {
    let mut c = small();
    assert!(matches!(c.decode(&Batch::new()), Err(Error::EmptyBatch)));
    assert!(matches!(Batch::prompt(&[], Pos::ZERO, SeqId::ZERO), Err(Error::EmptyBatch)));
    let seq = |id| SeqId::new(id).unwrap();
    let batch = |seq| Batch::prompt(&tokens(2), Pos::ZERO, seq).unwrap();
    for id in [2, 99, i32::MAX] {
        assert!(matches!(c.decode(&batch(seq(id))), Err(Error::SeqIdOutOfRange { .. })), "{id}");
        assert!(matches!(c.save(seq(id)), Err(Error::SeqIdOutOfRange { .. })), "{id}");
    }
    c.decode(&batch(SeqId::ZERO)).unwrap();
    assert!(matches!(c.decode(&batch(SeqId::ZERO)), Err(Error::PositionTaken { last: 1, .. })));
    let foreign = TokenId::new(100_000, 128_256).unwrap();
    let next = c.next_pos(SeqId::ZERO).unwrap();
    let wrong = Batch::prompt(&[foreign], next, SeqId::ZERO).unwrap();
    assert!(matches!(c.decode(&wrong), Err(Error::TokenOutOfRange { id: 100_000, .. })));
    let mut nowhere = Batch::new();
    nowhere.push(tokens(1)[0], next, &[], true);
    assert!(matches!(c.decode(&nowhere), Err(Error::SeqIdOutOfRange { .. })));
    let far = Batch::prompt(&tokens(1), Pos::new(i32::MAX - 1).unwrap(), SeqId::ZERO).unwrap();
    assert!(matches!(c.decode(&far), Err(Error::PositionPastTraining { .. })));
    // None of it touched the sequence.
    assert_eq!(c.next_pos(SeqId::ZERO).unwrap().get(), 2);
}

#[test]
fn logits_exist_only_where_they_were_asked_for() {
    let mut c = small();
    assert!(matches!(c.logits(), Err(Error::NoLogits { .. })));
    let mut batch = Batch::new();
    for (i, token) in tokens(4).into_iter().enumerate() {
        batch.push(token, Pos::new(i as i32).unwrap(), &[SeqId::ZERO], i == 3);
    }
    let logits = c.decode(&batch).unwrap();
    for i in [0, 1, 2, 4] {
        assert!(matches!(logits.row(i), Err(Error::NoLogits { .. })), "{i}");
    }
    let row = logits.at(SeqId::ZERO, Pos::new(3).unwrap()).unwrap();
    assert_eq!(row.len(), 2048);
    assert!(row.iter().all(|x| x.is_finite()));
}

#[test]
fn rows_of_earlier_micro_batches_are_kept() {
    // 40 tokens in micro-batches of 16 against one of 40: every row is there and is the right one.
    let all = Batch::scored(&tokens(40), Pos::ZERO, SeqId::ZERO).unwrap();
    let mut split = small();
    let split = split.decode(&all).unwrap();
    let mut whole = context(ContextParams { n_ctx: 64, n_ubatch: 64, ..Default::default() }).unwrap();
    let whole = whole.decode(&all).unwrap();
    assert_eq!(split.len(), 40);
    for i in 0..40 {
        let (a, b) = (split.row(i).unwrap(), whole.row(i).unwrap());
        let far = a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
        assert!(far < 1e-3, "row {i} differs by {far}");
    }
}

#[test]
fn a_full_context_is_an_error_that_changes_nothing() {
    let mut c = small();
    c.decode(&Batch::prompt(&tokens(40), Pos::ZERO, SeqId::ZERO).unwrap()).unwrap();
    let n_ctx = c.params().n_ctx as usize;
    let next = c.next_pos(SeqId::ZERO).unwrap();
    let too_many = Batch::prompt(&tokens(n_ctx), next, SeqId::ZERO).unwrap();
    assert!(matches!(c.decode(&too_many), Err(Error::ContextFull { .. })));
    assert_eq!(c.next_pos(SeqId::ZERO).unwrap().get(), 40);
    c.decode(&Batch::prompt(&tokens(3), next, SeqId::ZERO).unwrap()).unwrap();
}

#[test]
fn restoring_into_holes_says_fragmented_and_touches_nobody() {
    let params = ContextParams { n_ctx: 64, n_seq_max: 5, ..Default::default() };
    let mut c = context(params).unwrap();
    let seq = |id| SeqId::new(id).unwrap();
    let cells = c.params().n_ctx as usize / 4;
    for id in 0..4 {
        c.decode(&Batch::prompt(&tokens(cells), Pos::ZERO, seq(id)).unwrap()).unwrap();
    }
    let kept = (c.save(seq(1)).unwrap(), c.save(seq(3)).unwrap());
    c.remove_all(seq(0)).unwrap();
    c.remove_all(seq(2)).unwrap();
    let mut other = context(ContextParams { n_ctx: 64, ..Default::default() }).unwrap();
    other.decode(&Batch::prompt(&tokens(2 * cells), Pos::ZERO, SeqId::ZERO).unwrap()).unwrap();
    let state = other.save(SeqId::ZERO).unwrap();
    let refused = c.restore(seq(4), &state.blob()).unwrap_err();
    assert!(matches!(refused, Error::ContextFragmented { longest, .. } if longest == cells), "{refused}");
    assert_eq!(c.save(seq(1)).unwrap().as_bytes(), kept.0.as_bytes());
    assert_eq!(c.save(seq(3)).unwrap().as_bytes(), kept.1.as_bytes());
}

#[test]
fn sequences_are_copied_and_removed() {
    let mut c = small();
    let (a, b) = (SeqId::ZERO, SeqId::new(1).unwrap());
    assert!(matches!(c.copy(a, b, None), Err(Error::EmptySequence { seq: 0 })));
    c.decode(&Batch::prompt(&tokens(20), Pos::ZERO, a).unwrap()).unwrap();
    let used = c.free_cells();
    c.copy(a, b, None).unwrap();
    assert_eq!(c.free_cells(), used, "copied cells are shared");
    let rest = Batch::prompt(&tokens(2), c.next_pos(b).unwrap(), b).unwrap();
    let copied = c.decode(&rest).unwrap().last().unwrap().to_vec();
    let mut control = small();
    control.decode(&Batch::prompt(&tokens(20), Pos::ZERO, b).unwrap()).unwrap();
    assert_eq!(copied, control.decode(&rest).unwrap().last().unwrap());
    c.keep_only(b).unwrap();
    assert!(c.positions(a).unwrap().is_empty());
    assert_eq!(c.next_pos(b).unwrap().get(), 22);
}

#[test]
fn texts_and_tokens() {
    let model = models::tiny();
    assert!(model.token(-1).is_err());
    assert!(model.token(model.n_vocab() as i32).is_err());
    assert!(model.token_bytes(TokenId::new(100_000, 128_256).unwrap(), true).is_err());
    let text = "a\0b";
    let tokens = model.tokenize(text, Special::Content).unwrap();
    assert_eq!(model.detokenize(&tokens, false).unwrap(), text.as_bytes());
    let long = "word ".repeat(20_000);
    let tokens = model.tokenize(&long, Special::Content).unwrap();
    assert_eq!(model.detokenize(&tokens, false).unwrap(), long.as_bytes());
    assert!(model.tokenize("", Special::Content).unwrap().is_empty());
    let too_long = "x".repeat(bitnet_rs::MAX_TEXT + 1);
    assert!(matches!(model.tokenize(&too_long, Special::Content), Err(Error::TextTooLong { .. })));
}

#[test]
fn samplers() {
    let model = models::tiny();
    let bad = SamplingParams { temperature: f32::NAN, ..Default::default() };
    assert!(matches!(Sampler::new(&model, &bad), Err(Error::Sampler(_))));
    let params = SamplingParams { temperature: 0.8, top_k: 3, seed: 7, ..Default::default() };
    let mut logits = vec![0.0; model.n_vocab() as usize];
    logits[5] = 9.0;
    logits[6] = 8.5;
    logits[7] = 8.0;
    let draw = |seed| {
        let mut sampler = Sampler::new(&model, &SamplingParams { seed, ..params.clone() }).unwrap();
        (0..20).map(|_| sampler.sample(&logits, None).unwrap().get()).collect::<Vec<_>>()
    };
    assert_eq!(draw(7), draw(7), "the seed decides");
    assert_ne!(draw(7), draw(8));
    assert!(draw(7).iter().all(|id| (5..=7).contains(id)), "top-k of 3");
    let mut sampler = Sampler::new(&model, &params).unwrap();
    assert!(sampler.sample(&logits[1..], None).is_err());
    logits[9] = f32::NAN;
    assert!(sampler.sample(&logits, None).is_err());
}

/// Without top-k and top-p nothing is sorted; the largest logit is not the first candidate here.
#[test]
fn choices_follow_the_softmax() {
    let model = models::tiny();
    let mut logits = vec![f32::NEG_INFINITY; model.n_vocab() as usize];
    let shares = [(11, 0.1f32), (5, 0.2), (30, 0.4), (8, 0.3)];
    for (id, share) in shares {
        // At temperature 2 the logits are halved.
        logits[id] = 2.0 * share.ln();
    }
    // The first candidate: never chosen, and too far below the largest to be what the others are measured by.
    logits[0] = -1000.0;
    for min_p in [0.0, 0.01] {
        let params = SamplingParams { temperature: 2.0, min_p, seed: 3, ..Default::default() };
        let mut sampler = Sampler::new(&model, &params).unwrap();
        let n = 20_000;
        let mut counts = vec![0u32; logits.len()];
        for _ in 0..n {
            counts[sampler.sample(&logits, None).unwrap().index()] += 1;
        }
        for (id, share) in shares {
            let (found, expected) = (f64::from(counts[id]), f64::from(n) * f64::from(share));
            let deviation = (f64::from(n) * f64::from(share) * f64::from(1.0 - share)).sqrt();
            assert!((found - expected).abs() < 4.0 * deviation, "{id}: {found} of {expected}");
        }
    }
}
