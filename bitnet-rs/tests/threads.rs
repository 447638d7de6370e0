//! Threads, stacks, lifetimes and sharing.

mod models;

use bitnet_rs::{Batch, CancelHandle, Context, ContextParams, Error, Model, ModelParams, Pos, Sampler, SeqId, TokenId};
use static_assertions::{assert_impl_all, assert_not_impl_any};
use synth::{SynthSpec, write_synth_file};

assert_impl_all!(Model: Send, Sync, Clone);
assert_impl_all!(Context: Send);
assert_not_impl_any!(Context: Sync, Clone);
assert_impl_all!(CancelHandle: Send, Sync, Clone);
assert_impl_all!(Sampler: Send);

fn prompt(model: &Model, n: usize) -> Batch {
    let tokens: Vec<TokenId> = (0..n as i32).map(|i| model.token(i * 31 % 250 + 1).unwrap()).collect();
    Batch::prompt(&tokens, Pos::ZERO, SeqId::ZERO).unwrap()
}

/// The widest matrix of BitNet-b1.58-2B-4T has 6,912 rows; 512 tokens on one thread put 14 MB on the stack of the
/// calling thread. One layer of that shape shows it as well as thirty.
#[test]
fn the_2b_shape_decodes_512_tokens_on_one_thread_from_a_512_kib_stack() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wide.gguf");
    let spec = SynthSpec { n_layer: 1, n_vocab: 2048, ..SynthSpec::preset("2b").unwrap() };
    write_synth_file(&spec, 1, &path, false, &mut |_| {}, &false.into()).unwrap();
    let model = Model::load(&path, ModelParams::default()).unwrap();
    for n_threads in [1, 2] {
        let model = model.clone();
        let thread = std::thread::Builder::new().stack_size(512 * 1024);
        let last = thread
            .spawn(move || {
                let params = ContextParams { n_ctx: 512, n_ubatch: 512, n_threads, ..Default::default() };
                let mut context = Context::new(&model, &params).unwrap();
                if n_threads == 1 {
                    assert_eq!(context.params().n_ubatch, 512, "one thread needs no bound");
                }
                let logits = context.decode(&prompt(&model, 512)).unwrap();
                logits.last().unwrap().to_vec()
            })
            .unwrap()
            .join()
            .unwrap();
        assert!(last.iter().all(|x| x.is_finite()) && last.iter().any(|x| *x != 0.0));
    }
}

#[test]
fn two_threads_with_a_context_each_give_what_one_gives() {
    let model = models::tiny();
    let params = ContextParams { n_ctx: 128, n_threads: 1, ..Default::default() };
    let run = |model: Model, params: ContextParams| {
        let mut context = Context::new(&model, &params).unwrap();
        context.decode(&prompt(&model, 60)).unwrap().last().unwrap().to_vec()
    };
    let serial = run(model.clone(), params.clone());
    let handles: Vec<_> = (0..2)
        .map(|_| {
            let (model, params) = (model.clone(), params.clone());
            std::thread::spawn(move || run(model, params))
        })
        .collect();
    for handle in handles {
        assert_eq!(handle.join().unwrap(), serial);
    }
}

#[test]
fn a_context_keeps_its_model_alive_and_moves_between_threads() {
    let model = models::fresh();
    let mut context = Context::new(&model, &ContextParams { n_ctx: 64, n_threads: 1, ..Default::default() }).unwrap();
    let batch = prompt(&model, 5);
    drop(model);
    let n = std::thread::spawn(move || context.decode(&batch).unwrap().last().unwrap().len()).join().unwrap();
    assert_eq!(n, 2048);
}

#[test]
fn a_cancelled_decode_leaves_the_sequence_as_it_was() {
    let model = models::tiny();
    let params = ContextParams { n_ctx: 256, n_ubatch: 32, n_threads: 1, ..Default::default() };
    let mut context = Context::new(&model, &params).unwrap();
    context.decode(&prompt(&model, 10)).unwrap();
    context.cancel_handle().cancel();
    let more: Vec<TokenId> = (1..40).map(|i| model.token(i).unwrap()).collect();
    let batch = Batch::prompt(&more, Pos::new(10).unwrap(), SeqId::ZERO).unwrap();
    assert!(matches!(context.decode(&batch), Err(Error::Cancelled)));
    assert_eq!(context.next_pos(SeqId::ZERO).unwrap().get(), 10);
    // The request is used up; the same call works now and equals a context that was never disturbed.
    let after = context.decode(&batch).unwrap().last().unwrap().to_vec();
    let mut control = Context::new(&model, &params).unwrap();
    control.decode(&prompt(&model, 10)).unwrap();
    assert_eq!(after, control.decode(&batch).unwrap().last().unwrap());
}

#[test]
fn loading_can_be_cancelled_and_a_panicking_callback_is_resumed() {
    let (_folder, path) = models::file();
    let stop = ModelParams { progress: Some(Box::new(|_| false)), ..Default::default() };
    assert!(matches!(Model::load(&path, stop), Err(Error::LoadCancelled { .. })));
    let explode = ModelParams { progress: Some(Box::new(|_| panic!("from the callback"))), ..Default::default() };
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| Model::load(&path, explode)));
    let panic = caught.map(|_| ()).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"from the callback"));
}
