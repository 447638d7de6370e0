//! Each cause is planted in random keys and values and must be named.

use super::*;
use half::{bf16, f16};

const HEADS: usize = 3;
const CELLS: usize = 24;
const DIM: usize = 16;
const THETA: f64 = 500_000.0;
const FIRST: i32 = 0;

/// A prefix in memory, already rounded to its element type.
#[derive(Clone)]
struct Memory {
    /// Keys and values of each layer, `[head][cell][channel]`.
    layers: Vec<[Vec<f32>; 2]>,
    kv_type: KvType,
}

impl KvSource for Memory {
    fn n_layer(&self) -> usize {
        self.layers.len()
    }

    fn positions(&self) -> Vec<i32> {
        (FIRST..).take(CELLS).collect()
    }

    fn kv_type(&self, _: KvTensor) -> KvType {
        self.kv_type
    }

    fn values(&self, layer: usize, tensor: KvTensor) -> Values {
        let data = self.layers[layer][usize::from(tensor == KvTensor::Values)].clone();
        Values { heads: HEADS, cells: CELLS, dim: DIM, data }
    }
}

/// Roughly normal numbers.
fn normal(seed: u64, n: usize) -> Vec<f32> {
    noise(seed, n * 12).chunks_exact(12).map(|b| b.iter().map(|b| f32::from(*b)).sum::<f32>() / 255.0 - 6.0).collect()
}

/// Rotates unrotated keys by the textbook: pair i turns by (position + offset) · base^(−2i/d).
fn rotated(k: &[f32], base: f64, scale: f64, offset: f64) -> Vec<f32> {
    let mut out = k.to_vec();
    for h in 0..HEADS {
        for c in 0..CELLS {
            for i in 0..DIM / 2 {
                let at = (h * CELLS + c) * DIM + i;
                let position = (f64::from(FIRST) + c as f64 + offset) / scale;
                let (s, cos) = (position * base.powf(-2.0 * i as f64 / DIM as f64)).sin_cos();
                let (x, y) = (f64::from(k[at]), f64::from(k[at + DIM / 2]));
                out[at] = (x * cos - y * s) as f32;
                out[at + DIM / 2] = (x * s + y * cos) as f32;
            }
        }
    }
    out
}

fn to_f16(v: Vec<f32>) -> Vec<f32> {
    v.into_iter().map(|x| f16::from_f32(x).to_f32()).collect()
}

/// Three layers; keys rotated as told, everything in f16.
fn prefix(base: f64, scale: f64, offset: f64, seed: u64) -> Memory {
    let n = HEADS * CELLS * DIM;
    let layers = (0..3)
        .map(|l| {
            let (k, v) = (normal(seed + 2 * l, n), normal(seed + 2 * l + 1, n));
            [to_f16(rotated(&k, base, scale, offset)), to_f16(v)]
        })
        .collect();
    Memory { layers, kv_type: KvType::F16 }
}

fn good() -> Memory {
    prefix(THETA, 1.0, 0.0, 100)
}

fn rope() -> Rope {
    Rope { rope_type: RopeType::Neox, theta: THETA as f32, dim: DIM }
}

fn of(actual: &Memory) -> Diagnosis {
    let d = diagnose(&good(), actual, &rope()).unwrap().unwrap();
    assert!(d.to_string().contains(&d.cause.to_string()));
    assert!(serde_json::to_value(&d).unwrap()["cause"]["kind"].is_string());
    d
}

fn heads(v: &[f32], order: [usize; HEADS]) -> Vec<f32> {
    let size = CELLS * DIM;
    order.iter().flat_map(|h| v[h * size..(h + 1) * size].to_vec()).collect()
}

#[test]
fn equal_prefixes_have_no_diagnosis() {
    assert_eq!(diagnose(&good(), &good(), &rope()).unwrap(), None);
}

#[test]
fn swapped_keys_and_values() {
    let mut bad = good();
    for l in &mut bad.layers {
        l.swap(0, 1);
    }
    let d = of(&bad);
    assert_eq!(d.cause, Cause::KeysAndValuesSwapped);
    assert_eq!((d.first.layer, d.first.tensor, d.first.position, d.first.head), (0, KvTensor::Keys, 0, 0));
    assert_eq!(d.tensors.len(), 6);
}

#[test]
fn swapped_layers() {
    let mut bad = good();
    bad.layers.swap(1, 2);
    let d = of(&bad);
    assert_eq!(d.cause, Cause::LayerOrder { found_layer: 2 });
    assert_eq!(d.first.layer, 1);
    assert_eq!(d.explained_residual, Some(0.0));
}

#[test]
fn permuted_heads() {
    let order = [2, 0, 1];
    let expect = |tensors: &str| Cause::HeadOrder { tensors: tensors.to_owned(), order: order.to_vec() };
    for (which, tensors) in [(&[0, 1][..], "keys and values"), (&[0], "keys"), (&[1], "values")] {
        let mut bad = good();
        for l in &mut bad.layers {
            for &t in which {
                l[t] = heads(&l[t], order);
            }
        }
        assert_eq!(of(&bad).cause, expect(tensors));
    }
}

#[test]
fn values_in_the_other_layout() {
    // Rows [cell][head * dim] written, channels [head * dim][cell] read.
    let mut bad = good();
    for l in &mut bad.layers {
        let v = &l[1];
        let rows: Vec<f32> = (0..CELLS)
            .flat_map(|c| (0..HEADS).flat_map(move |h| (0..DIM).map(move |d| (h * CELLS + c) * DIM + d)))
            .map(|i| v[i])
            .collect();
        let mut read = vec![0.0; rows.len()];
        for h in 0..HEADS {
            for d in 0..DIM {
                for c in 0..CELLS {
                    read[(h * CELLS + c) * DIM + d] = rows[(h * DIM + d) * CELLS + c];
                }
            }
        }
        l[1] = read;
    }
    let d = of(&bad);
    assert_eq!(d.cause, Cause::ValuesTransposed);
    assert_eq!((d.first.layer, d.first.tensor), (0, KvTensor::Values));
}

#[test]
fn the_other_pairing() {
    for to_norm in [true, false] {
        let mut bad = good();
        for l in &mut bad.layers {
            l[0] = l[0]
                .chunks_exact(DIM)
                .flat_map(|row| {
                    (0..DIM).map(move |c| {
                        let half = DIM / 2;
                        if to_norm {
                            row[c / 2 + c % 2 * half]
                        } else if c < half {
                            row[2 * c]
                        } else {
                            row[2 * (c - half) + 1]
                        }
                    })
                })
                .collect();
        }
        assert_eq!(of(&bad).cause, Cause::RopePairing);
    }
}

#[test]
fn another_first_position() {
    for offset in [1, -1, 5, 300, -2048] {
        let d = of(&prefix(THETA, 1.0, f64::from(offset), 100));
        assert_eq!(d.cause, Cause::PositionOffset { offset });
        assert_eq!(d.first.tensor, KvTensor::Keys);
        assert!(d.explained_residual.unwrap() < 0.01 && d.residual > 0.1);
    }
}

#[test]
fn another_base() {
    for base in [10_000.0, 1_000_000.0, 50_000.0] {
        let Cause::RopeBase { theta } = of(&prefix(base, 1.0, 0.0, 100)).cause else {
            panic!("{:?}", of(&prefix(base, 1.0, 0.0, 100)).cause);
        };
        assert!((theta / base - 1.0).abs() < 0.05, "{theta} for {base}");
    }
}

#[test]
fn scaled_frequencies() {
    for scale in [2.0, 4.0, 0.5] {
        let Cause::RopeScaling { factor } = of(&prefix(THETA, scale, 0.0, 100)).cause else {
            panic!("{:?}", of(&prefix(THETA, scale, 0.0, 100)).cause);
        };
        assert!((factor / scale - 1.0).abs() < 0.05, "{factor} for {scale}");
    }
}

#[test]
fn rounding_to_bf16() {
    let mut bad = good();
    for x in bad.layers.iter_mut().flatten().flatten() {
        *x = bf16::from_f32(*x).to_f32();
    }
    let d = of(&bad);
    assert_eq!(d.cause, Cause::Rounding { to: KvType::Bf16 });
    // bf16 keeps 8 bits, f16 keeps 11: at most 4 steps of f16.
    assert!(d.first.max_ulp <= 4);
    // f32 keys that went through f16.
    let n = HEADS * CELLS * DIM;
    let exact = Memory { layers: vec![[normal(1, n), normal(2, n)]], kv_type: KvType::F32 };
    let rounded = Memory { layers: vec![[to_f16(normal(1, n)), to_f16(normal(2, n))]], kv_type: KvType::F32 };
    let d = diagnose(&exact, &rounded, &rope()).unwrap().unwrap();
    assert_eq!(d.cause, Cause::Rounding { to: KvType::F16 });
}

#[test]
fn a_scaled_tensor() {
    let mut bad = good();
    for x in &mut bad.layers[1][1] {
        *x = f16::from_f32(*x * 1.02).to_f32();
    }
    let d = of(&bad);
    let Cause::Scaled { tensor: KvTensor::Values, factor } = d.cause else { panic!("{:?}", d.cause) };
    assert!((factor - 1.02).abs() < 1e-3);
    assert_eq!(d.first.layer, 1);
}

#[test]
fn one_damaged_element() {
    let mut bad = good();
    let at = (HEADS - 1) * CELLS * DIM + 7 * DIM + 3;
    bad.layers[2][0][at] += 1.0;
    let d = of(&bad);
    assert_eq!(d.cause, Cause::Damage { elements: 1 });
    assert_eq!(
        (d.first.layer, d.first.tensor, d.first.head, d.first.position, d.first.channel),
        (2, KvTensor::Keys, HEADS - 1, 7, 3)
    );
    assert_eq!(d.first.actual, d.first.expected + 1.0);
}

#[test]
fn small_differences_everywhere() {
    let mut bad = good();
    for (i, x) in bad.layers.iter_mut().flatten().flatten().enumerate() {
        let step = [1.0, -1.0, 0.0, 1.0, 0.0, -1.0, -1.0][i * 31 % 7];
        *x = f16::from_f32(*x + step * x.abs() / 1024.0).to_f32();
    }
    assert_eq!(of(&bad).cause, Cause::Arithmetic);
}

#[test]
fn a_displaced_prefix() {
    let long = good();
    let mut bad = good();
    for (l, g) in bad.layers.iter_mut().zip(&long.layers) {
        for h in 0..HEADS {
            for c in 0..CELLS {
                let (to, from) = ((h * CELLS + c) * DIM, (h * CELLS + (c + 1) % CELLS) * DIM);
                // Keys are those of other tokens at their own positions: no relation here.
                l[1][to..to + DIM].copy_from_slice(&g[1][from..from + DIM]);
                l[0][to..to + DIM].copy_from_slice(&to_f16(normal(900 + c as u64, DIM)));
            }
        }
    }
    assert_eq!(of(&bad).cause, Cause::CellsShifted { by: 1 });
}

#[test]
fn other_tokens_from_a_position_on() {
    let mut bad = good();
    let other = prefix(THETA, 1.0, 0.0, 555);
    for (l, o) in bad.layers.iter_mut().zip(&other.layers) {
        for t in 0..2 {
            for h in 0..HEADS {
                let from = (h * CELLS + 9) * DIM;
                let to = (h + 1) * CELLS * DIM;
                l[t][from..to].copy_from_slice(&o[t][from..to]);
            }
        }
    }
    let d = of(&bad);
    assert_eq!(d.cause, Cause::OtherTokens { position: 9, cells: CELLS - 9 });
    assert_eq!(d.first.position, 9);
}

#[test]
fn another_model() {
    assert_eq!(of(&prefix(THETA, 1.0, 0.0, 777)).cause, Cause::OtherModel);
}

#[test]
fn related_in_no_known_way() {
    let mut bad = good();
    let other = prefix(THETA, 1.0, 0.0, 888);
    for (l, o) in bad.layers.iter_mut().zip(&other.layers) {
        for t in 0..2 {
            for (x, y) in l[t].iter_mut().zip(&o[t]) {
                *x = f16::from_f32(*x + 0.5 * y).to_f32();
            }
        }
    }
    assert_eq!(of(&bad).cause, Cause::Unknown);
}

#[test]
fn non_finite_and_empty_content_is_survived() {
    for x in [f32::NAN, f32::INFINITY, 0.0] {
        let mut bad = good();
        bad.layers.iter_mut().flatten().flatten().for_each(|v| *v = x);
        let d = of(&bad);
        assert!(matches!(d.cause, Cause::OtherModel | Cause::Unknown | Cause::Scaled { .. }), "{:?}", d.cause);
        assert!(diagnose(&bad, &good(), &rope()).unwrap().is_some());
    }
}

#[test]
fn other_shapes_are_not_compared() {
    let mut short = good();
    short.layers.pop();
    assert!(matches!(diagnose(&good(), &short, &rope()), Err(CartridgeError::Incomparable { layer: 2, .. })));
}

#[test]
fn blobs_and_files_compare() {
    let g = geometry(KvType::F16, KvType::F16, ValueLayout::Transposed);
    let s = state(&g, &[0, 1, 2], 1);
    let c = Cartridge::from_bytes(small_head_major()).unwrap();
    assert_eq!(diagnose(&s.blob(), &c, &Rope::from(&model())).unwrap(), None);
}
