//! Is a GGUF the model that a reference was made from, and if not, which tensor differs?

use gguf::{GgmlType, Gguf, Hyperparameters, Sha256Hash};
use sha2::{Digest, Sha256};

use super::i2s::{I2sError, I2sMatrix, Packing};
use super::reference_file::{Arch, LINEARS};

/// Why a model's ternary weights could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// A linear is missing.
    #[error("the model has no tensor '{name}': it is none that the reference format describes")]
    Missing {
        /// The tensor.
        name: String,
    },
    /// A linear is not stored as I2_S.
    #[error("tensor '{name}' has type {kind}: ternary codes are compared for i2_s only")]
    Type {
        /// The tensor.
        name: String,
        /// Its type.
        kind: &'static str,
    },
    /// A linear's bytes are not what the header says.
    #[error("tensor '{name}': {source}")]
    Ternary {
        /// The tensor.
        name: String,
        /// Why.
        source: I2sError,
    },
    /// A linear lies outside the file.
    #[error("tensor '{name}' lies outside the file")]
    Bytes {
        /// The tensor.
        name: String,
    },
}

/// The ternary linears of a model, layer by layer in the order of [`LINEARS`].
#[derive(Debug)]
pub struct TernaryWeights<'a> {
    linears: Vec<(String, I2sMatrix<'a>)>,
    /// Heads of Q and K where their rows are in the order of neighbouring rotary pairs (`llama`).
    reordered: Option<[usize; 2]>,
}

impl<'a> TernaryWeights<'a> {
    /// Finds the linears of all layers in a file's bytes.
    ///
    /// # Errors
    /// [`IdentityError`] names the tensor.
    pub fn of(gguf: &Gguf, file: &'a [u8], n_layer: u32) -> Result<Self, IdentityError> {
        let mut linears = Vec::new();
        for layer in 0..n_layer {
            for part in LINEARS {
                let name = format!("blk.{layer}.{part}.weight");
                let Some(tensor) = gguf.tensor(&name) else { return Err(IdentityError::Missing { name }) };
                if tensor.ggml_type() != GgmlType::I2_S {
                    return Err(IdentityError::Type { name, kind: tensor.ggml_type().name() });
                }
                let size = |n: u64| usize::try_from(n).ok();
                let range = tensor.range();
                let bytes = size(range.start).zip(size(range.end)).and_then(|(start, end)| file.get(start..end));
                let shape = size(tensor.rows()).zip(size(tensor.row_len()));
                let (Some(bytes), Some((rows, cols))) = (bytes, shape) else {
                    return Err(IdentityError::Bytes { name });
                };
                match I2sMatrix::new(bytes, rows, cols, Packing::X86) {
                    Ok(matrix) => linears.push((name, matrix)),
                    Err(source) => return Err(IdentityError::Ternary { name, source }),
                }
            }
        }
        let key = |name: &str| gguf.u32(&format!("llama.attention.{name}")).ok().flatten();
        let reordered = match gguf.string("general.architecture") {
            Ok(Some("llama")) => key("head_count").map(|q| [q as usize, key("head_count_kv").unwrap_or(q) as usize]),
            _ => None,
        };
        Ok(Self { linears, reordered })
    }

    /// `ternary_sha256` of the reference format: one byte per weight, code w + 1, linear after linear. Lower-case hex.
    pub fn sha256(&self) -> String {
        let mut hasher = Sha256::new();
        for (name, matrix) in &self.linears {
            let mut codes = vec![0; matrix.cols()];
            let heads = self.reordered.and_then(|[q, k]| match name {
                name if name.ends_with("attn_q.weight") => Some(q),
                name if name.ends_with("attn_k.weight") => Some(k),
                _ => None,
            });
            for row in 0..matrix.rows() {
                matrix.row_codes(halves_row(row, matrix.rows(), heads), &mut codes);
                hasher.update(&codes);
            }
        }
        hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Name and scale of every linear, in order.
    pub fn scales(&self) -> Vec<(String, f32)> {
        self.linears.iter().map(|(name, matrix)| (name.clone(), matrix.scale())).collect()
    }
}

/// Where row `row` of HuggingFace's order (rotary halves) lies in a matrix whose heads have neighbouring pairs.
fn halves_row(row: usize, rows: usize, heads: Option<usize>) -> usize {
    match heads {
        Some(heads) if heads > 0 && rows.is_multiple_of(2 * heads) => {
            let dim = rows / heads;
            let (head, i) = (row / dim, row % dim);
            head * dim + 2 * (i % (dim / 2)) + i / (dim / 2)
        }
        _ => row,
    }
}

/// The hexadecimal digits of a hash.
pub fn hex(hash: Sha256Hash) -> String {
    hash.to_string().trim_start_matches("sha256:").to_owned()
}

/// A field in which two models differ.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldMismatch {
    /// Name in the reference's `arch`.
    pub field: &'static str,
    /// The reference's value.
    pub reference: f64,
    /// The model's.
    pub model: f64,
}

impl std::fmt::Display for FieldMismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is {} in the reference and {} in the model", self.field, self.reference, self.model)
    }
}

/// Fields of `arch` that a model does not share. Floats are compared as f32: a GGUF has no wider ones here.
pub fn arch_mismatches(reference: &Arch, model: &Hyperparameters) -> Vec<FieldMismatch> {
    #[allow(clippy::cast_possible_truncation, reason = "to the width that the model's value has")]
    let single = |v: f64| f64::from(v as f32);
    [
        ("n_layer", f64::from(reference.n_layer), f64::from(model.n_layer)),
        ("n_embd", f64::from(reference.n_embd), f64::from(model.n_embd)),
        ("n_head", f64::from(reference.n_head), f64::from(model.n_head)),
        ("n_head_kv", f64::from(reference.n_head_kv), f64::from(model.n_head_kv)),
        ("head_dim", f64::from(reference.head_dim), f64::from(model.head_dim)),
        ("n_ff", f64::from(reference.n_ff), f64::from(model.n_ff)),
        ("n_vocab", f64::from(reference.n_vocab), f64::from(model.n_vocab)),
        ("n_ctx_train", f64::from(reference.n_ctx_train), f64::from(model.n_ctx_train)),
        ("rope_theta", single(reference.rope_theta), f64::from(model.rope.freq_base)),
        ("rms_eps", single(reference.rms_eps), f64::from(model.norm_eps)),
    ]
    .into_iter()
    .filter(|(_, reference, model)| reference != model)
    .map(|(field, reference, model)| FieldMismatch { field, reference, model })
    .collect()
}

/// What the scales of the linears say.
#[derive(Clone, Debug, PartialEq)]
pub enum ScaleVerdict {
    /// All are the reference's, within the bound; the largest relative difference.
    Equal(f64),
    /// Two layers have each other's scales.
    Swapped(usize, usize),
    /// These linears have other scales, with the ratio model/reference.
    Differ(Vec<(String, f64)>),
}

impl std::fmt::Display for ScaleVerdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Equal(worst) => write!(f, "all scales are the reference's (largest relative difference {worst:.1e})"),
            Self::Swapped(a, b) => {
                write!(
                    f,
                    "layers {a} and {b} are swapped: blk.{a} has the scales of the reference's layer {b}, and blk.{b} those of {a}"
                )
            }
            Self::Differ(linears) => {
                let named: Vec<String> = linears
                    .iter()
                    .take(4)
                    .map(|(name, ratio)| format!("{name}: scale is {ratio:.4} × the reference's"))
                    .collect();
                f.write_str(&named.join("; "))?;
                if linears.len() > named.len() {
                    write!(f, "; and {} more", linears.len() - named.len())?;
                }
                Ok(())
            }
        }
    }
}

/// Compares scales linear by linear; `bound` is on |model/reference − 1|. `None` when the counts differ.
pub fn compare_scales(reference: &[f32], model: &[(String, f32)], bound: f64) -> Option<ScaleVerdict> {
    if reference.is_empty() || reference.len() != model.len() || !reference.len().is_multiple_of(LINEARS.len()) {
        return None;
    }
    let off = |reference: f32, model: f32| {
        let ratio = f64::from(model) / f64::from(reference);
        // Both zero: equal. Any other division by zero stays far from 1.
        if model == reference {
            0.0
        } else if ratio.is_finite() {
            (ratio - 1.0).abs()
        } else {
            f64::INFINITY
        }
    };
    let width = LINEARS.len();
    let layer_is = |model_layer: usize, reference_layer: usize| {
        let of_model = model[model_layer * width..].iter().take(width);
        of_model.zip(&reference[reference_layer * width..]).all(|((_, m), &r)| off(r, *m) <= bound)
    };
    let layers = reference.len() / width;
    let strange: Vec<usize> = (0..layers).filter(|&l| !layer_is(l, l)).collect();
    if let [a, b] = strange[..]
        && layer_is(a, b)
        && layer_is(b, a)
    {
        return Some(ScaleVerdict::Swapped(a, b));
    }
    let differing: Vec<(String, f64)> = model
        .iter()
        .zip(reference)
        .filter(|((_, m), r)| off(**r, *m) > bound)
        .map(|((name, m), r)| (name.clone(), f64::from(*m) / f64::from(*r)))
        .collect();
    if differing.is_empty() {
        let worst = model.iter().zip(reference).map(|((_, m), &r)| off(r, *m)).fold(0.0, f64::max);
        return Some(ScaleVerdict::Equal(worst));
    }
    Some(ScaleVerdict::Differ(differing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_neighbouring_pairs_in_the_order_of_halves() {
        // One head of four: the pairs are (0, 1) and (2, 3); halves put their first members first.
        let order: Vec<usize> = (0..8).map(|row| halves_row(row, 8, Some(2))).collect();
        assert_eq!(order, [0, 2, 1, 3, 4, 6, 5, 7]);
        let order: Vec<usize> = (0..6).map(|row| halves_row(row, 6, Some(1))).collect();
        assert_eq!(order, [0, 2, 4, 1, 3, 5]);
        assert_eq!(halves_row(5, 8, None), 5);
    }

    fn named(scales: &[f32]) -> Vec<(String, f32)> {
        let name = |i: usize| format!("blk.{}.{}.weight", i / 7, LINEARS[i % 7]);
        scales.iter().enumerate().map(|(i, &s)| (name(i), s)).collect()
    }

    #[test]
    fn scales_name_the_tensor_or_the_layers() {
        let reference: Vec<f32> = (1..=21).map(|i| i as f32 * 0.25).collect();
        let model = named(&reference);
        assert_eq!(compare_scales(&reference, &model, 1e-3), Some(ScaleVerdict::Equal(0.0)));

        let mut scaled = model.clone();
        scaled[12].1 *= 1.02;
        let verdict = compare_scales(&reference, &scaled, 1e-3).unwrap();
        assert_eq!(verdict.to_string(), "blk.1.ffn_up.weight: scale is 1.0200 × the reference's");

        let mut swapped = reference.clone();
        swapped[..7].copy_from_slice(&reference[14..]);
        swapped[14..].copy_from_slice(&reference[..7]);
        assert_eq!(compare_scales(&reference, &named(&swapped), 1e-3), Some(ScaleVerdict::Swapped(0, 2)));

        assert_eq!(compare_scales(&reference, &model[..14], 1e-3), None);
        assert_eq!(compare_scales(&[], &[], 1e-3), None);
    }

    #[test]
    fn a_zero_scale_is_no_match_and_no_panic() {
        let reference = [1.0_f32; 7];
        let mut model = named(&reference);
        model[3].1 = 0.0;
        assert!(matches!(compare_scales(&reference, &model, 1e-3), Some(ScaleVerdict::Differ(d)) if d.len() == 1));
        let mut zeroed = reference;
        zeroed[3] = 0.0;
        assert_eq!(compare_scales(&zeroed, &model, 1e-3), Some(ScaleVerdict::Equal(0.0)));
    }
}
