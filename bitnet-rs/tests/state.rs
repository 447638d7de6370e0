//! Sequence state through the engine: restored equals live, and what is refused changes nothing.

mod models;

use bitnet_rs::{Batch, Context, ContextParams, Error, Model, Pos, SeqId, TokenId};
use kv::StateBlob;

fn tokens(model: &Model, n: usize, salt: u32) -> Vec<TokenId> {
    (0..n as u32).map(|i| model.token(((i * 7919 + salt * 104_729) % 250 + 1) as i32).unwrap()).collect()
}

fn prefill(context: &mut Context, tokens: &[TokenId], seq: SeqId) -> Vec<f32> {
    let batch = Batch::prompt(tokens, Pos::ZERO, seq).unwrap();
    context.decode(&batch).unwrap().last().unwrap().to_vec()
}

fn go_on(context: &mut Context, tokens: &[TokenId], seq: SeqId) -> Vec<f32> {
    let first = context.next_pos(seq).unwrap();
    let batch = Batch::prompt(tokens, first, seq).unwrap();
    context.decode(&batch).unwrap().last().unwrap().to_vec()
}

#[test]
fn restored_in_another_context_continues_bit_for_bit() {
    let model = models::tiny();
    for flash_attn in [false, true] {
        let params = ContextParams { n_ctx: 256, flash_attn, n_threads: 2, ..Default::default() };
        let prefix = tokens(&model, 100, 1);
        let rest = tokens(&model, 3, 2);
        let mut live = Context::new(&model, &params).unwrap();
        prefill(&mut live, &prefix, SeqId::ZERO);
        let state = live.save(SeqId::ZERO).unwrap();
        let expected = go_on(&mut live, &rest, SeqId::ZERO);

        let mut fresh = Context::new(&model, &ContextParams { n_ctx: 512, ..params }).unwrap();
        fresh.restore(SeqId::ZERO, &state.blob()).unwrap();
        assert_eq!(fresh.next_pos(SeqId::ZERO).unwrap().get(), 100);
        let found = go_on(&mut fresh, &rest, SeqId::ZERO);
        assert_eq!(found, expected, "flash attention {flash_attn}");
        assert!(found.iter().any(|x| *x != 0.0) && found.iter().all(|x| x.is_finite()));
    }
}

#[test]
fn a_refused_blob_leaves_the_sequence_as_it_was() {
    let model = models::tiny();
    let params = ContextParams { n_ctx: 64, n_threads: 1, ..Default::default() };
    let mut context = Context::new(&model, &params).unwrap();
    let prefix = tokens(&model, 20, 1);
    let rest = tokens(&model, 2, 2);
    prefill(&mut context, &prefix, SeqId::ZERO);

    let mut other = Context::new(&model, &ContextParams { flash_attn: true, ..params.clone() }).unwrap();
    prefill(&mut other, &prefix[..5], SeqId::ZERO);
    let state = other.save(SeqId::ZERO).unwrap();
    let refused = context.restore(SeqId::ZERO, &state.blob());
    assert!(matches!(refused, Err(Error::StateBlob(_))), "{refused:?}");
    assert_eq!(context.next_pos(SeqId::ZERO).unwrap().get(), 20);

    let mut control = Context::new(&model, &params).unwrap();
    prefill(&mut control, &prefix, SeqId::ZERO);
    assert_eq!(go_on(&mut context, &rest, SeqId::ZERO), go_on(&mut control, &rest, SeqId::ZERO));
}

/// A NaN would not stay in its sequence: cells are reused, and attention reads them for everybody.
#[test]
fn a_state_that_is_not_finite_is_refused_and_poisons_nothing() {
    let model = models::tiny();
    for flash_attn in [false, true] {
        let params = ContextParams { n_ctx: 64, n_seq_max: 2, n_threads: 1, flash_attn, ..Default::default() };
        let mut context = Context::new(&model, &params).unwrap();
        let (one, two) = (SeqId::ZERO, SeqId::new(1).unwrap());
        prefill(&mut context, &tokens(&model, 20, 1), one);
        let state = context.save(one).unwrap();
        let blob = state.blob();
        for tensor in [kv::KvTensor::Keys, kv::KvTensor::Values] {
            let mut bytes = state.as_bytes().to_vec();
            let at = blob.layout().payload(0, tensor).start;
            bytes[at..at + 2].copy_from_slice(&0x7e00_u16.to_le_bytes());
            let bad = StateBlob::parse(&bytes, context.geometry()).unwrap();
            let refused = context.restore(two, &bad);
            assert!(matches!(refused, Err(Error::NonFiniteState(_))), "{refused:?}");
            assert!(context.positions(two).unwrap().is_empty());
        }
        let found = go_on(&mut context, &tokens(&model, 2, 3), one);
        assert!(found.iter().all(|x| x.is_finite()));
        // The named call does not look.
        let mut bytes = state.as_bytes().to_vec();
        let at = blob.layout().payload(0, kv::KvTensor::Keys).start;
        bytes[at..at + 2].copy_from_slice(&0x7e00_u16.to_le_bytes());
        let bad = StateBlob::parse(&bytes, state.geometry()).unwrap();
        context.restore_with_unchecked_values(two, &bad).unwrap();
        assert_eq!(context.next_pos(two).unwrap().get(), 20);
    }
}
