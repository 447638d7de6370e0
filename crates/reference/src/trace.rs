//! Named intermediate tensors and the first one that departs.
//!
//! The engine names the tensors of its graph (`attn_norm-3`, `Qcur-3`, `result_output`); the
//! reference forward pass uses the same names. One name may occur several times in a layer: `Qcur`
//! before and after rotation. Occurrences are counted in the order of computation.

use std::collections::HashMap;

/// Identity of a tensor in a forward pass.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorKey {
    /// The engine's name without the layer.
    pub name: String,
    /// Layer, `None` for tensors outside the blocks.
    pub layer: Option<usize>,
    /// Count of earlier tensors with this name and layer.
    pub occurrence: usize,
}

impl std::fmt::Display for TensorKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)?;
        if let Some(layer) = self.layer {
            write!(f, "-{layer}")?;
        }
        if self.occurrence > 0 {
            write!(f, "#{}", self.occurrence)?;
        }
        Ok(())
    }
}

/// A tensor as `[tokens][width]`.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedTensor {
    /// Which tensor.
    pub key: TensorKey,
    /// Values per token.
    pub width: usize,
    /// Values, token after token.
    pub values: Vec<f32>,
}

/// The tensors of one forward pass in order of computation.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    tensors: Vec<NamedTensor>,
    index: HashMap<TensorKey, usize>,
}

impl Trace {
    /// An empty trace.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor of `width` values per token; its occurrence is counted here.
    pub fn push(&mut self, name: &str, layer: Option<usize>, width: usize, values: Vec<f32>) {
        let mut key = TensorKey { name: name.to_owned(), layer, occurrence: 0 };
        while self.index.contains_key(&key) {
            key.occurrence += 1;
        }
        self.index.insert(key.clone(), self.tensors.len());
        self.tensors.push(NamedTensor { key, width, values });
    }

    /// Adds a tensor under the engine's own name, such as `ffn_norm-12` or `result_norm`.
    ///
    /// `dims` are ggml's `ne`; all but the last dimension that holds more than one row make up a
    /// token's values: `[width, tokens]` and `[head_dim, heads, tokens]` alike. `n_tokens` tells which.
    /// Returns whether the tensor was taken: one whose size is no multiple of `n_tokens` is left out.
    pub fn push_engine(&mut self, name: &str, values: Vec<f32>, n_tokens: usize) -> bool {
        if n_tokens == 0 || values.is_empty() || !values.len().is_multiple_of(n_tokens) {
            return false;
        }
        let (name, layer) = split_engine_name(name);
        self.push(name, layer, values.len() / n_tokens, values);
        true
    }

    /// The tensor with this key.
    pub fn get(&self, key: &TensorKey) -> Option<&NamedTensor> {
        self.index.get(key).map(|&i| &self.tensors[i])
    }

    /// All tensors in order of computation.
    pub fn tensors(&self) -> &[NamedTensor] {
        &self.tensors
    }
}

/// Splits `Qcur-12` into `Qcur` and 12; names without a number keep all of it.
pub fn split_engine_name(name: &str) -> (&str, Option<usize>) {
    match name.rsplit_once('-') {
        Some((stem, layer)) if !stem.is_empty() => match layer.parse() {
            Ok(layer) => (stem, Some(layer)),
            Err(_) => (name, None),
        },
        _ => (name, None),
    }
}

/// How far one row (token) of a tensor is from its reference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowError {
    /// Row, counted from the first token of the pass.
    pub position: usize,
    /// Largest |Δ|.
    pub max_abs: f64,
    /// ‖Δ‖ / ‖reference‖; infinite when the reference is zero and the row is not, or when a value
    /// is not finite.
    pub relative: f64,
    /// Cosine of the angle between the two rows; 1 for two zero rows.
    pub cosine: f64,
}

/// A tensor that departs.
#[derive(Debug, Clone, PartialEq)]
pub struct Departure {
    /// Which tensor.
    pub key: TensorKey,
    /// Its first row beyond the tolerance.
    pub first: RowError,
    /// Its worst row.
    pub worst: RowError,
    /// Rows beyond the tolerance, of all rows.
    pub rows: (usize, usize),
}

impl std::fmt::Display for Departure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} departs at position {}: relative error {:.3e}, max |Δ| {:.3e}, cosine {:.6} ({} of {} rows; worst {:.3e} at {})",
            self.key,
            self.first.position,
            self.first.relative,
            self.first.max_abs,
            self.first.cosine,
            self.rows.0,
            self.rows.1,
            self.worst.relative,
            self.worst.position,
        )
    }
}

/// Outcome of comparing two traces.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Comparison {
    /// Tensors that both have in the same shape.
    pub compared: usize,
    /// Tensors of the reference that the other trace lacks.
    pub missing: Vec<TensorKey>,
    /// Tensors that both have, in different shapes.
    pub reshaped: Vec<TensorKey>,
    /// Tensors beyond the tolerance, in order of computation.
    pub departures: Vec<Departure>,
    /// The compared tensor with the largest relative error, within the tolerance or not.
    pub worst: Option<(TensorKey, RowError)>,
}

impl Comparison {
    /// The first tensor that departs.
    pub fn first_departure(&self) -> Option<&Departure> {
        self.departures.first()
    }

    /// Whether every tensor of the reference was compared and none departs.
    pub fn agrees(&self) -> bool {
        self.compared > 0 && self.missing.is_empty() && self.reshaped.is_empty() && self.departures.is_empty()
    }
}

/// Compares `observed` with `reference`, tensor by tensor in the reference's order.
///
/// A row departs when its relative error is above what `tolerance` says for its tensor;
/// `ReferenceModel::forced_tolerance` knows what is to be expected of the engine.
pub fn compare(reference: &Trace, observed: &Trace, tolerance: impl Fn(&TensorKey) -> f64) -> Comparison {
    let mut comparison = Comparison::default();
    for expected in reference.tensors() {
        let Some(found) = observed.get(&expected.key) else {
            comparison.missing.push(expected.key.clone());
            continue;
        };
        if found.width != expected.width || found.values.len() != expected.values.len() {
            comparison.reshaped.push(expected.key.clone());
            continue;
        }
        comparison.compared += 1;
        let width = expected.width.max(1);
        let rows: Vec<RowError> = expected
            .values
            .chunks(width)
            .zip(found.values.chunks(width))
            .enumerate()
            .map(|(position, (expected, found))| row_error(position, expected, found))
            .collect();
        let Some(&worst) = rows.iter().max_by(|a, b| a.relative.total_cmp(&b.relative)) else {
            continue;
        };
        if comparison.worst.as_ref().is_none_or(|(_, w)| worst.relative > w.relative) {
            comparison.worst = Some((expected.key.clone(), worst));
        }
        let limit = tolerance(&expected.key);
        let beyond = |row: &&RowError| row.relative > limit;
        if let Some(&first) = rows.iter().find(beyond) {
            comparison.departures.push(Departure {
                key: expected.key.clone(),
                first,
                worst,
                rows: (rows.iter().filter(beyond).count(), rows.len()),
            });
        }
    }
    comparison
}

fn row_error(position: usize, expected: &[f32], found: &[f32]) -> RowError {
    let (mut max_abs, mut delta2, mut expected2, mut found2, mut dot) = (0.0_f64, 0.0, 0.0, 0.0, 0.0);
    let mut finite = true;
    for (&e, &f) in expected.iter().zip(found) {
        let (e, f) = (f64::from(e), f64::from(f));
        finite &= e.is_finite() && f.is_finite();
        max_abs = max_abs.max((e - f).abs());
        delta2 += (e - f) * (e - f);
        expected2 += e * e;
        found2 += f * f;
        dot += e * f;
    }
    if !finite {
        return RowError { position, max_abs: f64::INFINITY, relative: f64::INFINITY, cosine: 0.0 };
    }
    let (relative, cosine) = if delta2 == 0.0 {
        (0.0, 1.0)
    } else if expected2 == 0.0 || found2 == 0.0 {
        (if expected2 == 0.0 { f64::INFINITY } else { 1.0 }, 0.0)
    } else {
        ((delta2 / expected2).sqrt(), dot / (expected2 * found2).sqrt())
    };
    RowError { position, max_abs, relative, cosine }
}

#[cfg(test)]
mod tests {
    use super::*;
    use approx::assert_relative_eq;

    #[test]
    fn engine_names() {
        assert_eq!(split_engine_name("Qcur-12"), ("Qcur", Some(12)));
        assert_eq!(split_engine_name("result_norm"), ("result_norm", None));
        assert_eq!(split_engine_name("ffn_sqr(relu)-0"), ("ffn_sqr(relu)", Some(0)));
        assert_eq!(split_engine_name("Qcur-0 (reshaped)"), ("Qcur-0 (reshaped)", None));
        assert_eq!(split_engine_name("-3"), ("-3", None));
    }

    #[test]
    fn occurrences_are_counted_per_layer() {
        let mut trace = Trace::new();
        assert!(trace.push_engine("Qcur-0", vec![1.0, 2.0], 1));
        assert!(trace.push_engine("Qcur-1", vec![3.0, 4.0], 1));
        assert!(trace.push_engine("Qcur-0", vec![5.0, 6.0], 1));
        assert!(!trace.push_engine("odd", vec![1.0; 3], 2));
        let names: Vec<String> = trace.tensors().iter().map(|t| t.key.to_string()).collect();
        assert_eq!(names, ["Qcur-0", "Qcur-1", "Qcur-0#1"]);
    }

    #[test]
    fn errors_by_hand() {
        // (3, 4) against (3, 3): |Δ| 1, relative 1/5, cosine 21/(5·√18).
        let row = row_error(2, &[3.0, 4.0], &[3.0, 3.0]);
        assert_eq!(row.position, 2);
        assert_eq!(row.max_abs, 1.0);
        assert_relative_eq!(row.relative, 0.2);
        assert_relative_eq!(row.cosine, 21.0 / (5.0 * 18_f64.sqrt()));
        assert_eq!(row_error(0, &[0.0], &[0.0]).relative, 0.0);
        assert_eq!(row_error(0, &[0.0], &[1.0]).relative, f64::INFINITY);
        assert_eq!(row_error(0, &[1.0], &[f32::NAN]).relative, f64::INFINITY);
    }

    #[test]
    fn the_first_departure_is_named_with_its_row() {
        let mut reference = Trace::new();
        reference.push("a", None, 2, vec![1.0, 0.0, 0.0, 1.0]);
        reference.push("b", Some(0), 2, vec![1.0, 1.0, 1.0, 1.0]);
        reference.push("c", Some(1), 1, vec![5.0, 5.0]);
        reference.push("d", Some(1), 1, vec![5.0, 5.0]);
        let mut observed = Trace::new();
        observed.push("a", None, 2, vec![1.0, 0.0, 0.0, 1.0]);
        observed.push("b", Some(0), 2, vec![1.0, 1.0, 1.0, 1.1]);
        observed.push("c", Some(1), 2, vec![5.0, 5.0]);
        let comparison = compare(&reference, &observed, |_| 0.05);
        assert_eq!(comparison.compared, 2);
        assert_eq!(comparison.missing[0].to_string(), "d-1");
        assert_eq!(comparison.reshaped[0].to_string(), "c-1");
        let departure = comparison.first_departure().unwrap();
        assert_eq!(departure.key.to_string(), "b-0");
        assert_eq!(departure.first.position, 1);
        assert_eq!(departure.rows, (1, 2));
        assert!(!comparison.agrees());
        let lenient = |key: &TensorKey| if key.name == "b" { 0.08 } else { 0.0 };
        assert!(compare(&reference, &observed, lenient).departures.is_empty());
        assert!(compare(&reference, &reference, |_| 0.0).agrees());
        // A trace of nothing agrees with nothing.
        assert!(!compare(&Trace::new(), &observed, |_| 0.0).agrees());
    }
}
