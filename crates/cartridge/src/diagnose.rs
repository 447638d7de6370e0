//! Where two KV prefixes depart, and why.
//!
//! Bit equality is the test; this is for when it fails. The first layer that differs is looked at
//! under every hypothesis of how a KV prefix gets damaged on its way between programs, each of
//! which predicts the actual values from the expected ones, and the one that predicts them best
//! is named, together with how well it does.

use super::diff::{check_comparable, compare};
use super::transcribe::pair_map;
use super::values::Values;
use super::{CartridgeError, KvSource, ModelLock, RopeType, TensorDifference};
use half::{bf16, f16};
use kv::{KvTensor, KvType};
use serde::Serialize;
use std::fmt;

/// A prediction explains the values if what it leaves is below this share of their norm. Kernels
/// and frameworks that compute the same prefix in half precision differ by some 1e-3.
const EXPLAINED: f64 = 0.05;

/// Below this share of the norm two tensors are the same up to arithmetic.
const NUMERIC: f64 = 0.01;

/// Position offsets tried.
const OFFSETS: i32 = 8192;

/// Cells by which a prefix may be displaced.
const SHIFTS: isize = 8;

/// RoPE of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rope {
    /// Pairing.
    pub rope_type: RopeType,
    /// Base frequency.
    pub theta: f32,
    /// Rotated elements of a head.
    pub dim: usize,
}

impl From<&ModelLock> for Rope {
    fn from(model: &ModelLock) -> Rope {
        Rope { rope_type: model.rope_type, theta: model.rope_theta, dim: model.rope_dim as usize }
    }
}

impl Rope {
    /// Channels of each pair, and its angle per position.
    fn pairs(&self, head_dim: usize) -> Vec<(usize, usize, f64)> {
        let dim = self.dim.min(head_dim);
        let half = dim / 2;
        (0..half)
            .filter_map(|i| {
                let frequency = f64::from(self.theta).powf(-2.0 * i as f64 / dim as f64);
                match self.rope_type {
                    RopeType::Neox => Some((i, i + half, frequency)),
                    RopeType::Norm => Some((2 * i, 2 * i + 1, frequency)),
                    RopeType::None => None,
                }
            })
            .collect()
    }
}

/// The first element that differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Departure {
    /// Layer.
    pub layer: usize,
    /// `keys` or `values`.
    #[serde(serialize_with = "super::diff::display")]
    pub tensor: KvTensor,
    /// KV head.
    pub head: usize,
    /// Position.
    pub position: i32,
    /// Element within the head.
    pub channel: usize,
    /// Value expected there.
    pub expected: f32,
    /// Value found there.
    pub actual: f32,
    /// Largest |actual − expected| in that tensor.
    pub max_abs: f32,
    /// Largest distance in that tensor in units in the last place.
    pub max_ulp: u64,
}

/// What most likely happened.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
#[non_exhaustive]
pub enum Cause {
    /// Keys stand where values should, and the reverse.
    KeysAndValuesSwapped,
    /// The layer holds another layer's keys and values.
    LayerOrder {
        /// The layer whose content is found.
        found_layer: usize,
    },
    /// Heads are in another order.
    HeadOrder {
        /// `keys`, `values` or `keys and values`.
        tensors: String,
        /// For each head, the head whose content is found.
        order: Vec<usize>,
    },
    /// Values were written without (or with one too many) transposition.
    ValuesTransposed,
    /// Keys are in the element order of the other RoPE pairing.
    RopePairing,
    /// Keys are rotated for other positions.
    PositionOffset {
        /// Positions by which the rotation is ahead.
        offset: i32,
    },
    /// Keys are rotated with another base frequency.
    RopeBase {
        /// Base that explains the keys.
        theta: f64,
    },
    /// Keys are rotated with scaled frequencies.
    RopeScaling {
        /// Factor by which positions are divided.
        factor: f64,
    },
    /// Cells are displaced: the prefix begins earlier or later.
    CellsShifted {
        /// Cell c holds what cell c + by should.
        by: i64,
    },
    /// Some cells hold other tokens.
    OtherTokens {
        /// First position of them.
        position: i32,
        /// Number of them.
        cells: usize,
    },
    /// Everything was rounded to another element type on the way.
    Rounding {
        /// The type.
        #[serde(serialize_with = "super::diff::display")]
        to: KvType,
    },
    /// A tensor is scaled by a constant.
    Scaled {
        /// Keys or values.
        #[serde(serialize_with = "super::diff::display")]
        tensor: KvTensor,
        /// Factor.
        factor: f64,
    },
    /// A handful of elements is damaged.
    Damage {
        /// Elements that differ, in all tensors.
        elements: usize,
    },
    /// Small differences everywhere, as between kernels or batch splits.
    Arithmetic,
    /// No relation: other weights, or another text.
    OtherModel,
    /// Related, but by none of the ways above.
    Unknown,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::KeysAndValuesSwapped => f.write_str("keys and values are swapped"),
            Cause::LayerOrder { found_layer } => {
                write!(f, "layers are out of order: this layer holds layer {found_layer}")
            }
            Cause::HeadOrder { tensors, order } => write!(f, "the heads of {tensors} are out of order: {order:?}"),
            Cause::ValuesTransposed => f.write_str("values lie in the layout of the other flash-attention setting"),
            Cause::RopePairing => f.write_str("keys are in the element order of the other RoPE pairing (neox/norm)"),
            Cause::PositionOffset { offset } => {
                write!(f, "keys are rotated for positions {offset:+}: another first position")
            }
            Cause::RopeBase { theta } => write!(f, "keys are rotated with a RoPE base near {theta:.0}"),
            Cause::RopeScaling { factor } => write!(f, "keys are rotated with positions divided by {factor:.3}"),
            Cause::CellsShifted { by } => write!(f, "cells are displaced by {by:+}"),
            Cause::OtherTokens { position, cells } => {
                write!(f, "{cells} cells from position {position} hold other tokens")
            }
            Cause::Rounding { to } => write!(f, "numbers were rounded to {to}"),
            Cause::Scaled { tensor, factor } => write!(f, "{tensor} are scaled by {factor:.4}"),
            Cause::Damage { elements } => write!(f, "{elements} elements are damaged"),
            Cause::Arithmetic => {
                f.write_str("small differences everywhere: another kernel, thread split or batch split")
            }
            Cause::OtherModel => f.write_str("no relation to what was expected: other weights or another text"),
            Cause::Unknown => f.write_str("related to what was expected, but in no way known here"),
        }
    }
}

/// Where and why two prefixes depart.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Diagnosis {
    /// First element that differs, by layer, keys before values, position, head.
    pub first: Departure,
    /// Likely cause.
    pub cause: Cause,
    /// Norm of the difference over norm of the expected, keys and values of the first layer that
    /// differs.
    pub residual: f64,
    /// The same after the cause is accounted for: how well it explains what was found. Absent
    /// where the cause predicts no values.
    pub explained_residual: Option<f64>,
    /// Every tensor that differs.
    pub tensors: Vec<TensorDifference>,
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let d = &self.first;
        write!(
            f,
            "first departs in layer {}, {}, position {}, head {}, channel {}: {} expected, {} found (tensor: max |difference| {:e}, {} ULP; {} tensors differ). Likely cause: {}",
            d.layer,
            d.tensor,
            d.position,
            d.head,
            d.channel,
            d.expected,
            d.actual,
            d.max_abs,
            d.max_ulp,
            self.tensors.len(),
            self.cause
        )?;
        match self.explained_residual {
            Some(after) => write!(f, " (residual {:.2e}, {after:.2e} when accounted for)", self.residual),
            None => write!(f, " (residual {:.2e})", self.residual),
        }
    }
}

/// Compares `actual` with `expected` and says where and why they depart; `None` if they are
/// equal in every bit.
///
/// Holds a few layers as f32 at a time.
///
/// # Errors
/// [`CartridgeError::Incomparable`] where layer counts or shapes differ.
pub fn diagnose(
    expected: &dyn KvSource,
    actual: &dyn KvSource,
    rope: &Rope,
) -> Result<Option<Diagnosis>, CartridgeError> {
    let tensors = compare(expected, actual)?;
    let Some(first) = tensors.first() else {
        return Ok(None);
    };
    let layer = first.layer;
    let e = Layer::of(expected, layer);
    let a = Layer::of(actual, layer);
    let positions = expected.positions();
    let cell = positions.iter().position(|p| *p == first.position).unwrap_or(0);
    let (expected_value, actual_value) = match first.tensor {
        KvTensor::Keys => (e.k.row(first.head, cell), a.k.row(first.head, cell)),
        KvTensor::Values => (e.v.row(first.head, cell), a.v.row(first.head, cell)),
    };
    let departure = Departure {
        layer,
        tensor: first.tensor,
        head: first.head,
        position: first.position,
        channel: first.channel,
        expected: expected_value[first.channel],
        actual: actual_value[first.channel],
        max_abs: first.max_abs,
        max_ulp: first.max_ulp,
    };
    let residual = e.residual(&a);
    let case = Case { expected, actual, layer, e: &e, a: &a, positions: &positions, rope, tensors: &tensors };
    let (cause, explained_residual) = case.cause(residual)?;
    Ok(Some(Diagnosis { first: departure, cause, residual, explained_residual, tensors }))
}

/// Keys and values of one layer.
struct Layer {
    k: Values,
    v: Values,
}

impl Layer {
    fn of(source: &dyn KvSource, layer: usize) -> Layer {
        Layer { k: source.values(layer, KvTensor::Keys), v: source.values(layer, KvTensor::Values) }
    }

    /// Norm of the difference over this one's norm; infinite where that cannot be said.
    fn residual(&self, other: &Layer) -> f64 {
        let parts = [(&self.k, &other.k), (&self.v, &other.v)];
        let (error, norm) = parts.iter().fold((0.0, 0.0), |(error, norm), (x, y)| {
            (error + squared_distance(&x.data, &y.data), norm + squared_norm(&x.data))
        });
        relative(error, norm)
    }
}

fn squared_distance(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(x, y)| (f64::from(*x) - f64::from(*y)).powi(2)).sum()
}

fn squared_norm(a: &[f32]) -> f64 {
    a.iter().map(|x| f64::from(*x).powi(2)).sum()
}

fn relative(error: f64, norm: f64) -> f64 {
    let r = (error / norm).sqrt();
    if r.is_nan() { if error == 0.0 { 0.0 } else { f64::INFINITY } } else { r }
}

fn residual(expected: &Values, actual: &Values) -> f64 {
    if (expected.heads, expected.cells, expected.dim) != (actual.heads, actual.cells, actual.dim) {
        return f64::INFINITY;
    }
    relative(squared_distance(&expected.data, &actual.data), squared_norm(&expected.data))
}

struct Case<'a> {
    expected: &'a dyn KvSource,
    actual: &'a dyn KvSource,
    layer: usize,
    e: &'a Layer,
    a: &'a Layer,
    positions: &'a [i32],
    rope: &'a Rope,
    tensors: &'a [TensorDifference],
}

type Explanation = (Cause, Option<f64>);

impl Case<'_> {
    fn cause(&self, before: f64) -> Result<Explanation, CartridgeError> {
        if let Some(found) = self.few_elements() {
            return Ok(found);
        }
        if let Some(found) = self.rounding()? {
            return Ok(found);
        }
        if let Some(found) = self.scaled() {
            return Ok(found);
        }
        if before <= NUMERIC {
            return Ok((Cause::Arithmetic, None));
        }
        let mut candidates = Vec::new();
        candidates.extend(self.keys_and_values_swapped());
        candidates.extend(self.layer_order());
        candidates.extend(self.head_order());
        candidates.extend(self.values_transposed());
        // A question of keys alone: values must be as expected.
        if residual(&self.e.v, &self.a.v) <= EXPLAINED {
            candidates.extend(self.rope_pairing());
            candidates.extend(self.position_offset());
            candidates.extend(self.rope_frequencies());
        }
        candidates.extend(self.cells_shifted());
        let best = candidates.into_iter().filter(|(_, r)| *r <= EXPLAINED && *r < before / 2.0);
        if let Some((cause, after)) = best.min_by(|a, b| a.1.total_cmp(&b.1)) {
            return Ok((cause, Some(after)));
        }
        if let Some(found) = self.other_tokens() {
            return Ok(found);
        }
        let similarity = cosine(&self.e.v.data, &self.a.v.data).abs().max(cosine(&self.e.k.data, &self.a.k.data).abs());
        Ok((if similarity < 0.5 { Cause::OtherModel } else { Cause::Unknown }, None))
    }

    /// At most one element in a thousand, and at most 64 in all.
    fn few_elements(&self) -> Option<Explanation> {
        let differing: usize = self.tensors.iter().map(|t| t.differing).sum();
        let elements: usize = self.tensors.iter().map(|t| t.elements).sum();
        (differing <= 64 && differing.saturating_mul(1000) <= elements)
            .then_some((Cause::Damage { elements: differing }, None))
    }

    /// Every value of the actual layer is the expected one, rounded to a narrower type.
    fn rounding(&self) -> Result<Option<Explanation>, CartridgeError> {
        type Round = fn(f32) -> f32;
        let types: [(KvType, Round); 2] =
            [(KvType::F16, |x| f16::from_f32(x).to_f32()), (KvType::Bf16, |x| bf16::from_f32(x).to_f32())];
        for (to, round) in types {
            let rounded =
                |e: &Values, a: &Values| e.data.iter().zip(&a.data).all(|(e, a)| round(*e).to_bits() == a.to_bits());
            let mut all = true;
            for t in self.tensors {
                // Tensors that do not differ are trivially rounded.
                let e = self.expected.values(t.layer, t.tensor);
                let a = self.actual.values(t.layer, t.tensor);
                check_comparable(t.layer, t.tensor, &e, &a)?;
                if !rounded(&e, &a) {
                    all = false;
                    break;
                }
            }
            if all {
                return Ok(Some((Cause::Rounding { to }, Some(0.0))));
            }
        }
        Ok(None)
    }

    /// One tensor of the layer is a multiple of the expected one.
    fn scaled(&self) -> Option<Explanation> {
        let mut best: Option<Explanation> = None;
        for (tensor, e, a) in [(KvTensor::Keys, &self.e.k, &self.a.k), (KvTensor::Values, &self.e.v, &self.a.v)] {
            let norm = squared_norm(&e.data);
            let factor = dot(&e.data, &a.data) / norm;
            let error: f64 =
                e.data.iter().zip(&a.data).map(|(e, a)| (f64::from(*e) * factor - f64::from(*a)).powi(2)).sum();
            let (before, after) = (residual(e, a), relative(error, norm));
            // Arithmetic noise has no preferred direction, so a real factor leaves far less.
            if factor.is_finite() && (factor - 1.0).abs() > 1e-3 && after < before / 5.0 && after <= EXPLAINED {
                best.get_or_insert((Cause::Scaled { tensor, factor }, Some(after)));
            }
        }
        best
    }

    fn keys_and_values_swapped(&self) -> Option<(Cause, f64)> {
        let r = residual(&self.e.v, &self.a.k).max(residual(&self.e.k, &self.a.v));
        Some((Cause::KeysAndValuesSwapped, r))
    }

    fn layer_order(&self) -> Option<(Cause, f64)> {
        (0..self.expected.n_layer())
            .filter(|l| *l != self.layer)
            .map(|l| {
                let other = Layer::of(self.expected, l);
                let r = residual(&other.k, &self.a.k).max(residual(&other.v, &self.a.v));
                (Cause::LayerOrder { found_layer: l }, r)
            })
            .min_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn head_order(&self) -> Option<(Cause, f64)> {
        let (order_k, k) = best_heads(&self.e.k, &self.a.k);
        let (order_v, v) = best_heads(&self.e.v, &self.a.v);
        let (moved_k, moved_v) = (is_moved(&order_k), is_moved(&order_v));
        let (tensors, order) = match (moved_k, moved_v) {
            (true, true) if order_k == order_v => ("keys and values", order_k),
            (true, _) => ("keys", order_k),
            (false, true) => ("values", order_v),
            (false, false) => return None,
        };
        Some((Cause::HeadOrder { tensors: tensors.to_owned(), order }, k.max(v)))
    }

    /// The numbers of a layer in one order, read in the other.
    fn values_transposed(&self) -> Option<(Cause, f64)> {
        let e = &self.e.v;
        let (heads, cells, dim) = (e.heads, e.cells, e.dim);
        let rows = |v: &Values| -> Vec<f32> {
            (0..cells).flat_map(|c| (0..heads).flat_map(move |h| v.row(h, c).iter().copied())).collect()
        };
        let channels = |v: &Values| -> Vec<f32> {
            (0..heads).flat_map(|h| (0..dim).flat_map(move |d| (0..cells).map(move |c| v.row(h, c)[d]))).collect()
        };
        let norm = squared_norm(&e.data);
        let one = relative(squared_distance(&channels(e), &rows(&self.a.v)), norm);
        let other = relative(squared_distance(&rows(e), &channels(&self.a.v)), norm);
        Some((Cause::ValuesTransposed, one.min(other)))
    }

    fn rope_pairing(&self) -> Option<(Cause, f64)> {
        let e = &self.e.k;
        let (from, to) = (RopeType::Neox, RopeType::Norm);
        let dim = u32::try_from(self.rope.dim.min(e.dim)).ok()?;
        let head_dim = u32::try_from(e.dim).ok()?;
        [(from, to), (to, from)]
            .into_iter()
            .filter_map(|(from, to)| pair_map(from, to, dim, head_dim).ok().flatten())
            .map(|map| {
                let data = e.data.chunks_exact(e.dim).flat_map(|row| map.iter().map(|c| row[*c])).collect();
                (Cause::RopePairing, residual(&Values { data, ..*e }, &self.a.k))
            })
            .min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// For each pair, the rotation from expected to actual at a cell, weighted by magnitude and
    /// summed over heads: real and imaginary part of Σ actual · conj(expected).
    fn turns(&self, cell: usize, pair: (usize, usize, f64)) -> (f64, f64) {
        (0..self.e.k.heads).fold((0.0, 0.0), |(re, im), h| {
            let (e, a) = (self.e.k.row(h, cell), self.a.k.row(h, cell));
            let [ex, ey, ax, ay] = [e[pair.0], e[pair.1], a[pair.0], a[pair.1]].map(f64::from);
            (re + ax * ex + ay * ey, im + ay * ex - ax * ey)
        })
    }

    /// Residual of the keys when pair `i` of the expected is turned by `angle(i, cell)`.
    fn turned(&self, pairs: &[(usize, usize, f64)], angle: impl Fn(usize, usize) -> f64) -> f64 {
        let e = &self.e.k;
        let mut predicted = e.clone();
        for head in 0..e.heads {
            for cell in 0..e.cells {
                let at = (head * e.cells + cell) * e.dim;
                for (i, &(x, y, _)) in pairs.iter().enumerate() {
                    let (s, c) = angle(i, cell).sin_cos();
                    let (ex, ey) = (f64::from(e.data[at + x]), f64::from(e.data[at + y]));
                    predicted.data[at + x] = (ex * c - ey * s) as f32;
                    predicted.data[at + y] = (ex * s + ey * c) as f32;
                }
            }
        }
        residual(&predicted, &self.a.k)
    }

    fn position_offset(&self) -> Option<(Cause, f64)> {
        let pairs = self.rope.pairs(self.e.k.dim);
        let turns: Vec<(f64, f64)> = pairs
            .iter()
            .map(|&pair| {
                (0..self.e.k.cells).map(|c| self.turns(c, pair)).fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1))
            })
            .collect();
        // How well turning each pair by offset · frequency agrees with the turns found.
        let agreement = |offset: i32| -> f64 {
            pairs
                .iter()
                .zip(&turns)
                .map(|((_, _, frequency), (re, im))| {
                    let (s, c) = (f64::from(offset) * frequency).sin_cos();
                    re * c + im * s
                })
                .sum()
        };
        let best = (-OFFSETS..=OFFSETS)
            .filter(|o| *o != 0)
            .map(|o| (o, agreement(o)))
            .max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.abs().cmp(&a.0.abs())))?;
        let offset = best.0;
        let r = self.turned(&pairs, |i, _| f64::from(offset) * pairs[i].2);
        Some((Cause::PositionOffset { offset }, r))
    }

    /// Another base, or scaled frequencies: each pair's turn grows in step with the position, by
    /// the difference of the two frequencies.
    fn rope_frequencies(&self) -> Option<(Cause, f64)> {
        let pairs = self.rope.pairs(self.e.k.dim);
        let consecutive = |c: &usize| self.positions[c + 1] == self.positions[*c] + 1;
        let steps: Vec<usize> = (0..self.e.k.cells.saturating_sub(1)).filter(consecutive).collect();
        // Frequency of the actual keys and the weight of that estimate.
        let found: Vec<(f64, f64)> = pairs
            .iter()
            .map(|&pair| {
                let (re, im) = steps.iter().fold((0.0, 0.0), |(re, im), &c| {
                    let ((ar, ai), (br, bi)) = (self.turns(c, pair), self.turns(c + 1, pair));
                    (re + br * ar + bi * ai, im + bi * ar - br * ai)
                });
                (pair.2 + im.atan2(re), re.hypot(im))
            })
            .collect();
        let mut candidates = Vec::new();
        let dim = self.rope.dim.min(self.e.k.dim) as f64;
        let bases = found.iter().enumerate().skip(1).filter(|(_, (f, _))| *f > 0.0 && *f < 1.0);
        // The slow pairs turn too little per step for a good estimate; weighting by the angle's
        // share of a turn keeps them from deciding.
        let base = weighted_median(
            bases.map(|(i, (f, w))| (-f.ln() * dim / (2.0 * i as f64), w * (f - pairs[i].2).abs().max(1e-12))),
        );
        if let Some(theta) = base.map(f64::exp) {
            let frequency = |i: usize| theta.powf(-2.0 * i as f64 / dim);
            let r = self.turned(&pairs, |i, c| f64::from(self.positions[c]) * (frequency(i) - pairs[i].2));
            candidates.push((Cause::RopeBase { theta }, r));
        }
        let factors = found.iter().enumerate().filter(|(_, (f, _))| *f > 0.0);
        let factor =
            weighted_median(factors.map(|(i, (f, w))| (pairs[i].2 / f, w * (f - pairs[i].2).abs().max(1e-12))));
        if let Some(factor) = factor {
            let r = self.turned(&pairs, |i, c| f64::from(self.positions[c]) * pairs[i].2 * (1.0 / factor - 1.0));
            candidates.push((Cause::RopeScaling { factor }, r));
        }
        candidates.into_iter().min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Values of cell c found at cell c + by; only the overlap counts, and it must be most.
    fn cells_shifted(&self) -> Option<(Cause, f64)> {
        let (e, a) = (&self.e.v, &self.a.v);
        let cells = e.cells as isize;
        (-SHIFTS..=SHIFTS)
            .filter(|by| *by != 0 && 2 * by.abs() < cells)
            .map(|by| {
                let (mut error, mut norm) = (0.0, 0.0);
                for c in 0.max(-by)..cells.min(cells - by) {
                    for h in 0..e.heads {
                        let (x, y) = (e.row(h, (c + by) as usize), a.row(h, c as usize));
                        error += squared_distance(x, y);
                        norm += squared_norm(x);
                    }
                }
                (Cause::CellsShifted { by: by as i64 }, relative(error, norm))
            })
            .min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// In the first layer values depend on their own token only, so some cells that agree and
    /// some that do not mean other tokens.
    fn other_tokens(&self) -> Option<Explanation> {
        if self.layer != 0 {
            return None;
        }
        let differs = |c: &usize| {
            let (error, norm) = (0..self.e.v.heads).fold((0.0, 0.0), |(error, norm), h| {
                let (x, y) = (self.e.v.row(h, *c), self.a.v.row(h, *c));
                (error + squared_distance(x, y), norm + squared_norm(x))
            });
            relative(error, norm) > EXPLAINED
        };
        let other: Vec<usize> = (0..self.e.v.cells).filter(differs).collect();
        let first = *other.first()?;
        (other.len() < self.e.v.cells)
            .then(|| (Cause::OtherTokens { position: self.positions[first], cells: other.len() }, None))
    }
}

/// For each actual head the expected head nearest to it, and the residual under that order.
fn best_heads(e: &Values, a: &Values) -> (Vec<usize>, f64) {
    let size = e.cells * e.dim;
    let (mut error, mut norm) = (0.0, 0.0);
    let order = (0..a.heads)
        .map(|h| {
            let actual = &a.data[h * size..(h + 1) * size];
            let nearest = (0..e.heads)
                .map(|g| (g, squared_distance(&e.data[g * size..(g + 1) * size], actual)))
                // Ties go to the head's own place.
                .min_by(|x, y| x.1.total_cmp(&y.1).then((x.0 != h).cmp(&(y.0 != h))));
            let (g, distance) = nearest.unwrap_or((h, f64::INFINITY));
            error += distance;
            norm += squared_norm(&e.data[g * size..(g + 1) * size]);
            g
        })
        .collect();
    (order, relative(error, norm))
}

fn is_moved(order: &[usize]) -> bool {
    order.iter().enumerate().any(|(h, g)| h != *g)
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let c = dot(a, b) / (squared_norm(a) * squared_norm(b)).sqrt();
    if c.is_nan() { 0.0 } else { c }
}

/// Median of (value, weight) pairs.
fn weighted_median(values: impl Iterator<Item = (f64, f64)>) -> Option<f64> {
    let mut values: Vec<(f64, f64)> = values.filter(|(v, w)| v.is_finite() && w.is_finite()).collect();
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    let half = values.iter().map(|(_, w)| w).sum::<f64>() / 2.0;
    let mut sum = 0.0;
    values
        .into_iter()
        .find(|(_, w)| {
            sum += w;
            sum >= half
        })
        .map(|(v, _)| v)
}
