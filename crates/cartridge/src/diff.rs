//! Two cartridges, compared.

use super::values::Values;
use super::{Cartridge, CartridgeError, KvSource};
use half::{bf16, f16};
use kv::{KvTensor, KvType};
use serde::Serialize;

/// Differences between two cartridges.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// Metadata that differ, including keys that only one has.
    pub fields: Vec<FieldDifference>,
    /// First index at which the token ids differ (or one list ends).
    pub first_token: Option<usize>,
    /// Keys and values that differ, by layer; empty if all are equal.
    pub tensors: Vec<TensorDifference>,
}

impl Difference {
    /// Whether keys, values and tokens are equal in every bit; metadata may differ.
    pub fn same_content(&self) -> bool {
        self.first_token.is_none() && self.tensors.is_empty()
    }
}

/// A metadata key with two values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FieldDifference {
    /// Key.
    pub field: String,
    /// Value of the first file, if it has one.
    pub a: Option<String>,
    /// Value of the second file, if it has one.
    pub b: Option<String>,
}

/// How a layer's keys or values differ.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TensorDifference {
    /// Layer.
    pub layer: usize,
    /// `keys` or `values`.
    #[serde(serialize_with = "display")]
    pub tensor: KvTensor,
    /// Largest |a − b|; infinite where one value is not finite and the other differs.
    pub max_abs: f32,
    /// Largest distance in units in the last place: of the element type if both have the same,
    /// else of f32.
    pub max_ulp: u64,
    /// Elements that differ.
    pub differing: usize,
    /// Elements compared.
    pub elements: usize,
    /// First position with a difference.
    pub position: i32,
    /// Head of the first difference at that position.
    pub head: usize,
    /// Channel of the first difference in that head.
    pub channel: usize,
}

pub(super) fn display<S: serde::Serializer>(v: &impl std::fmt::Display, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(v)
}

/// Compares two cartridges of the same shape, in whatever layouts they are.
///
/// # Errors
/// [`CartridgeError::Incomparable`] where layer counts or shapes differ.
pub fn diff(a: &Cartridge, b: &Cartridge) -> Result<Difference, CartridgeError> {
    let find = |c: &Cartridge, key: &str| c.metadata().iter().find(|(k, _)| k == key).map(|(_, v)| v.clone());
    let mut keys: Vec<&str> = a.metadata().iter().chain(b.metadata()).map(|(k, _)| k.as_str()).collect();
    keys.sort_unstable();
    keys.dedup();
    let fields = keys
        .into_iter()
        .map(|key| FieldDifference { field: key.to_owned(), a: find(a, key), b: find(b, key) })
        .filter(|d| d.a != d.b)
        .collect();
    let first_token = if a.tokens().eq(b.tokens()) {
        None
    } else {
        let common = a.tokens().zip(b.tokens()).take_while(|(x, y)| x == y).count();
        Some(common)
    };
    Ok(Difference { fields, first_token, tensors: compare(a, b)? })
}

/// Keys and values that differ, layer by layer.
pub(super) fn compare(a: &dyn KvSource, b: &dyn KvSource) -> Result<Vec<TensorDifference>, CartridgeError> {
    if a.n_layer() != b.n_layer() {
        return Err(CartridgeError::Incomparable {
            layer: a.n_layer().min(b.n_layer()),
            tensor: KvTensor::Keys,
            found: format!("{} layers", b.n_layer()),
            expected: format!("{} layers", a.n_layer()),
        });
    }
    let positions = a.positions();
    let mut out = Vec::new();
    for layer in 0..a.n_layer() {
        for tensor in [KvTensor::Keys, KvTensor::Values] {
            let ulp_type = match (a.kv_type(tensor), b.kv_type(tensor)) {
                (x, y) if x == y => x,
                _ => KvType::F32,
            };
            let (x, y) = (a.values(layer, tensor), b.values(layer, tensor));
            check_comparable(layer, tensor, &x, &y)?;
            if let Some(mut d) = compare_values(&x, &y, ulp_type) {
                d.layer = layer;
                d.tensor = tensor;
                d.position = positions.get(d.position as usize).copied().unwrap_or(d.position);
                out.push(d);
            }
        }
    }
    Ok(out)
}

pub(super) fn check_comparable(layer: usize, tensor: KvTensor, a: &Values, b: &Values) -> Result<(), CartridgeError> {
    let shape = |v: &Values| (v.heads, v.cells, v.dim);
    if shape(a) == shape(b) {
        return Ok(());
    }
    let text = |v: &Values| format!("{} x {} x {}", v.heads, v.cells, v.dim);
    Err(CartridgeError::Incomparable { layer, tensor, found: text(b), expected: text(a) })
}

/// The difference of two tensors, with a cell index in place of the position.
pub(super) fn compare_values(a: &Values, b: &Values, ulp_type: KvType) -> Option<TensorDifference> {
    let mut d = TensorDifference {
        layer: 0,
        tensor: KvTensor::Keys,
        max_abs: 0.0,
        max_ulp: 0,
        differing: 0,
        elements: a.data.len(),
        position: 0,
        head: 0,
        channel: 0,
    };
    for cell in 0..a.cells {
        for head in 0..a.heads {
            let (x, y) = (a.row(head, cell), b.row(head, cell));
            for (channel, (&x, &y)) in x.iter().zip(y).enumerate() {
                if x.to_bits() == y.to_bits() {
                    continue;
                }
                if d.differing == 0 {
                    (d.position, d.head, d.channel) = (cell as i32, head, channel);
                }
                d.differing += 1;
                let abs = (x - y).abs();
                d.max_abs = d.max_abs.max(if abs.is_nan() { f32::INFINITY } else { abs });
                d.max_ulp = d.max_ulp.max(ulp_distance(x, y, ulp_type));
            }
        }
    }
    (d.differing > 0).then_some(d)
}

/// Steps between two numbers of a float type; for quantized types, of f32.
pub(super) fn ulp_distance(a: f32, b: f32, kv_type: KvType) -> u64 {
    let ordered = |x: f32| -> i64 {
        let (bits, sign_bit) = match kv_type {
            KvType::F16 => (i64::from(f16::from_f32(x).to_bits()), 1 << 15),
            KvType::Bf16 => (i64::from(bf16::from_f32(x).to_bits()), 1 << 15),
            _ => (i64::from(x.to_bits()), 1 << 31),
        };
        if bits & sign_bit == 0 { bits } else { -(bits ^ sign_bit) }
    };
    ordered(a).abs_diff(ordered(b))
}
