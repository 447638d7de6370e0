//! Steps of the forward pass against values by hand; whole passes against the engine's logits are in `synth`'s tests.

use gguf::fixture::tiny_model;
use gguf::{Architecture, Gguf, Limits};

use super::*;

#[test]
fn steps_by_hand() {
    // √(mean of 9 and 16) = √12.5.
    let norm = Norm { name: "n".into(), weight: vec![1.0, 2.0] };
    let none = Faults { shift: 0, rope_base: None, swaps: Vec::new(), scaled: Vec::new() };
    let out = rms_norm(&[3.0, 4.0], &norm, 0.0, &none);
    assert!((out[0] - 0.848_528_1).abs() < 1e-6 && (out[1] - 2.262_741_7).abs() < 1e-6);
    assert!((silu(1.0) - 0.731_058_6).abs() < 1e-6);
    assert_eq!(silu(0.0), 0.0);

    // Two tokens, one head of width 2, scale 1/√2. The second attends with scores
    // ln 3 and 0 (times √2 / √2): weights 3/4 and 1/4.
    let shape = Shape {
        graph: Graph::BitnetSquaredRelu,
        n_layer: 1,
        n_embd: 2,
        n_ff: 2,
        n_head: 1,
        n_head_kv: 1,
        head_dim: 2,
        n_vocab: 1,
        rope_base: 10_000.0,
        rope_scale: 1.0,
        rms_eps: 0.0,
    };
    let kv = LayerKv { keys: vec![2_f32.sqrt() * 3_f32.ln(), 0.0, 0.0, 1.0], values: vec![4.0, 0.0, 0.0, 8.0] };
    let out = attention(&[1.0, 0.0, 1.0, 0.0], &kv, &shape);
    assert_eq!(out[..2], [4.0, 0.0]);
    assert!((out[2] - 3.0).abs() < 1e-6 && (out[3] - 2.0).abs() < 1e-6);
}

#[test]
fn rotation_pairs_by_hand() {
    let (sin, cos) = 1_f32.sin_cos();
    let (slow_sin, slow_cos) = 0.01_f32.sin_cos();
    for (architecture, pairs) in [
        // Width 32: pair 0 turns by one radian per position.
        (Architecture::BitNetB158, (0, 16)),
        (Architecture::Llama, (0, 1)),
    ] {
        let mut file = tiny_model(architecture);
        let name = architecture.name();
        // Four heads of 32 in place of the fixture's two of 64; the tensors have the same shapes.
        file.set(&format!("{name}.attention.head_count"), 4u32)
            .set(&format!("{name}.attention.head_count_kv"), 2u32)
            .set(&format!("{name}.rope.dimension_count"), 32u32);
        let file = file.encode();
        let model = ReferenceModel::load(&Gguf::parse(&file, &Limits::default()).unwrap(), &file).unwrap();
        let rotation = Rotation::new(&model, 1, 1, None);
        let mut head = vec![0.0; 32];
        head[pairs.0] = 1.0;
        rotation.apply(&mut head, &model.shape, 1);
        assert!((head[pairs.0] - cos).abs() < 1e-6, "{architecture:?}");
        assert!((head[pairs.1] - sin).abs() < 1e-6, "{architecture:?}");
        // Base b with b^(−2/32) = 0.01 makes pair 1 turn by a hundredth.
        let rotation = Rotation::new(&model, 1, 1, Some(100_f32.powi(16)));
        let (angle_cos, angle_sin) = rotation.angles[1];
        assert!((angle_cos - slow_cos).abs() < 1e-6 && (angle_sin - slow_sin).abs() < 1e-6);
    }
}
