//! Forward passes against engine logits, hand-made values and planted faults.

use gguf::{Gguf, Limits};
use half::f16;
use reference::forward::*;
use reference::trace::TensorKey;
use reference::trace::compare;
use std::sync::atomic::AtomicBool;
use synth::{Architecture, SynthSpec, write_synth};

const TOKENS: [i32; 5] = [7, 284, 42, 250, 7];

fn file(architecture: Architecture, n_layer: u32) -> Vec<u8> {
    let spec = SynthSpec {
        architecture,
        n_layer,
        n_embd: 128,
        n_ff: 256,
        n_vocab: 300,
        separate_output: architecture == Architecture::Llama,
        ..SynthSpec::preset("tiny").unwrap()
    };
    let mut out = Vec::new();
    write_synth(&spec, 1, &mut out, &mut |_| (), &AtomicBool::new(false)).unwrap();
    out
}

fn gguf(file: &[u8]) -> Gguf {
    Gguf::parse(file, &Limits::default()).unwrap()
}

fn planted(fault: PlantedFault) -> ForwardOptions {
    ForwardOptions { faults: vec![fault], ..ForwardOptions::default() }
}

/// Logits of the pinned engine for the tokens above, ids 0, 1, 100, 255 and 299, first and last
/// token: one batch, one thread, flash attention off, on `small` models of seed 1.
#[test]
fn logits_of_the_engine() {
    let measured: [(Architecture, [f32; 5], [f32; 5]); 3] = [
        (
            Architecture::BitnetB158,
            [3.794_651, -0.230_652_96, 0.148_929_54, 0.871_532_8, 2.625_712_9],
            [3.729_538_4, 0.499_674_62, 1.272_523_6, -0.234_424_74, 0.822_663],
        ),
        (
            Architecture::Bitnet,
            [3.317_717_6, 0.088_375_9, 0.071_860_34, 1.427_658_6, 2.212_37],
            [3.805_618_3, 0.727_849_1, 1.419_634_8, -0.524_457_04, 0.798_229_8],
        ),
        (
            Architecture::Llama,
            [-1.498_921_9, 0.419_565_26, 0.824_074_74, -0.897_470_24, 0.302_812_8],
            [-1.695_999_1, 0.732_503_4, 0.638_188_5, 0.158_828_41, 0.550_265_97],
        ),
    ];
    for (architecture, first, last) in measured {
        let file = file(architecture, 2);
        let model = ReferenceModel::load(&gguf(&file), &file).unwrap();
        let run = |options: &ForwardOptions| model.forward(&TOKENS, options, None, &mut |_| ()).unwrap();
        let error = |output: &ForwardOutput, token: usize, expected: [f32; 5]| {
            let row = output.row(token).unwrap();
            [0, 1, 100, 255, 299].iter().zip(expected).map(|(&id, e)| (row[id as usize] - e).abs()).fold(0.0, f32::max)
        };
        let output = run(&ForwardOptions::default());
        // Alone, the first token is not rotated and attends to itself: only the order of f32
        // sums differs. Later ones carry the rounding of the attention weights, which moves a
        // few activations to the neighbouring integer.
        assert!(error(&output, 0, first) < 1e-5, "{architecture:?}");
        let close = error(&output, 4, last);
        assert!(close < 0.05, "{architecture:?}: {close}");
        let other = run(&planted(PlantedFault::RopeBase(100.0)));
        assert!(error(&other, 4, last) > 0.1, "{architecture:?}");
    }
}

#[test]
fn planted_faults_are_named() {
    let file = file(Architecture::BitnetB158, 4);
    let model = ReferenceModel::load(&gguf(&file), &file).unwrap();
    let (_, clean) = model.trace(&TOKENS, &ForwardOptions::default(), None).unwrap();
    let scaled = |name: &str| PlantedFault::ScaledTensor { name: name.to_owned(), factor: 1.02 };
    for (fault, tensor, layers) in [
        (scaled("blk.2.ffn_up.weight"), "ffn_up-2", 2..3),
        (scaled("blk.0.attn_v.weight"), "Vcur-0", 0..1),
        (scaled("blk.3.ffn_down.weight"), "ffn_down-3", 3..4),
        (scaled("blk.1.ffn_sub_norm.weight"), "ffn_sub_norm-1", 1..2),
        (PlantedFault::SwappedLayers(1, 2), "attn_norm-1", 1..3),
        (PlantedFault::RopeBase(10_000.0), "Qcur-0#1", 0..4),
        (PlantedFault::ShiftedPositions(1), "Qcur-0#1", 0..4),
    ] {
        let options = planted(fault.clone());
        let (_, free) = model.trace(&TOKENS, &options, None).unwrap();
        let found = compare(&clean, &free, |_| 1e-3);
        let first = found.first_departure().unwrap();
        assert_eq!(first.key.to_string(), tensor, "{fault:?}");

        // Forced, the fault stays where it is.
        let (_, forced) = model.trace(&TOKENS, &options, Some(&clean)).unwrap();
        let found = compare(&clean, &forced, |key| model.forced_tolerance(key));
        assert_eq!(found.first_departure().unwrap().key.to_string(), tensor);
        for departure in &found.departures {
            let layer = departure.key.layer.unwrap();
            assert!(layers.contains(&layer), "{fault:?}: {departure}");
        }
        if let PlantedFault::ScaledTensor { .. } = fault {
            assert_eq!(found.departures.len(), 1, "{fault:?}");
        }
    }
    let (_, forced) = model.trace(&TOKENS, &ForwardOptions::default(), Some(&clean)).unwrap();
    assert!(compare(&clean, &forced, |_| 0.0).agrees());
}

#[test]
fn later_tokens_change_nothing_before_them() {
    for architecture in [Architecture::BitnetB158, Architecture::Llama] {
        let file = file(architecture, 2);
        let model = ReferenceModel::load(&gguf(&file), &file).unwrap();
        let run = |tokens: &[i32]| model.forward(tokens, &ForwardOptions::default(), None, &mut |_| ()).unwrap().logits;
        let whole = run(&TOKENS);
        assert_eq!(run(&TOKENS[..3]), whole[..3 * 300]);
    }
}

#[test]
fn captured_keys_are_the_rotated_ones() {
    let file = file(Architecture::BitnetB158, 2);
    let model = ReferenceModel::load(&gguf(&file), &file).unwrap();
    let options = ForwardOptions { capture_kv: true, half_kv: false, first_pos: 9, ..ForwardOptions::default() };
    let (output, trace) = model.trace(&TOKENS, &options, None).unwrap();
    assert_eq!(output.kv.len(), 2);
    let key = |name: &str, occurrence| TensorKey { name: name.to_owned(), layer: Some(1), occurrence };
    let rotated = trace.get(&key("Kcur", 1)).unwrap();
    let values = trace.get(&key("Vcur", 0)).unwrap();
    // Two key heads of 32: [token][head][32] against [head][token][32].
    assert_eq!(rotated.width, 64);
    for token in 0..5 {
        for head in 0..2 {
            let from = token * 64 + head * 32;
            let to = (head * 5 + token) * 32;
            assert_eq!(output.kv[1].keys[to..to + 32], rotated.values[from..from + 32]);
            assert_eq!(output.kv[1].values[to..to + 32], values.values[from..from + 32]);
        }
    }
    let halves = ForwardOptions { half_kv: true, ..options };
    let (halves, _) = model.trace(&TOKENS, &halves, None).unwrap();
    for (half, full) in halves.kv[0].keys.iter().zip(&output.kv[0].keys) {
        assert_eq!(*half, f16::from_f32(*full).to_f32());
    }
}

#[test]
fn bad_input_is_named() {
    let file = file(Architecture::BitnetB158, 2);
    let parsed = gguf(&file);
    let model = ReferenceModel::load(&parsed, &file).unwrap();
    let run = |tokens: &[i32], options: &ForwardOptions| model.forward(tokens, options, None, &mut |_| ()).unwrap_err();
    let from = |first_pos| ForwardOptions { first_pos, ..ForwardOptions::default() };
    assert!(matches!(run(&[], &from(0)), ReferenceError::NoTokens));
    for id in [-1, 300] {
        let err = run(&[0, id], &from(0));
        assert!(matches!(err, ReferenceError::Token { index: 1, .. }), "{err}");
    }
    for first_pos in [-1, i32::MAX] {
        let err = run(&[0, 1], &from(first_pos));
        assert!(matches!(err, ReferenceError::Positions { .. }), "{err}");
    }
    let err = run(&[0], &planted(PlantedFault::SwappedLayers(0, 2)));
    assert!(matches!(err, ReferenceError::Fault { .. }), "{err}");
    let unknown = PlantedFault::ScaledTensor { name: "blk.2.ffn_up.weight".into(), factor: 2.0 };
    assert!(matches!(run(&[0], &planted(unknown)), ReferenceError::Fault { .. }));
    // A file shorter than its header says.
    assert!(matches!(
        ReferenceModel::load(&parsed, &file[..file.len() - 600]),
        Err(ReferenceError::TensorBytes { .. })
    ));
}

fn replaced(file: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let at = file.windows(from.len()).position(|window| window == from).unwrap();
    let mut out = file.to_vec();
    out[at..at + to.len()].copy_from_slice(to);
    out
}

#[test]
fn files_of_other_models_are_refused() {
    let file = file(Architecture::BitnetB158, 2);
    let load = |file: &[u8]| ReferenceModel::load(&gguf(file), file).map(|_| ()).unwrap_err();
    // The first occurrence is the value of general.architecture.
    let err = load(&replaced(&file, b"bitnet-b1.58", b"bitnet-b9.99"));
    assert!(matches!(err, ReferenceError::Architecture { .. }), "{err}");
    let err = load(&replaced(&file, b"output_norm.weight", b"output_form.weight"));
    assert!(matches!(&err, ReferenceError::MissingTensor { name } if name == "output_norm.weight"));
    let err = load(&replaced(&file, b"block_count", b"block_cound"));
    assert!(matches!(&err, ReferenceError::MissingKey { key } if key == "bitnet-b1.58.block_count"));
    // head_count_kv 2 becomes 4: the keys' tensors are too short for it.
    let mut key = b"attention.head_count_kv\x04\0\0\0\x02\0\0\0".to_vec();
    let old = key.clone();
    let last = key.len() - 4;
    key[last] = 4;
    let err = load(&replaced(&file, &old, &key));
    assert!(matches!(&err, ReferenceError::TensorShape { name, .. } if name == "blk.0.attn_k.weight"), "{err}");
}
