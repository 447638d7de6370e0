//! Finding a model's tensors in its file.

use gguf::{Gguf, TensorInfo};

use super::super::float_matrix::{FloatMatrix, FloatType};
use super::super::i2s::{I2sMatrix, Packing};
use super::{Graph, Layer, Linear, Matrix, Norm, ReferenceError, ReferenceModel, Shape};

/// ggml's number of I2_S.
const I2_S: u32 = 36;

/// Tensors of a file by name.
struct Tensors<'g, 'a> {
    gguf: &'g Gguf,
    file: &'a [u8],
}

impl<'a> Tensors<'_, 'a> {
    fn find(&self, name: &str, expected: &[usize]) -> Result<Option<(&TensorInfo, &'a [u8])>, ReferenceError> {
        let Some(info) = self.gguf.tensor(name) else {
            return Ok(None);
        };
        let expected: Vec<u64> = expected.iter().map(|&d| d as u64).collect();
        // One-dimensional tensors may be stored with trailing ones.
        let dims4 = info.dims4();
        if dims4[..expected.len()] != expected || dims4[expected.len()..].iter().any(|&d| d != 1) {
            return Err(ReferenceError::TensorShape { name: name.to_owned(), expected, actual: info.dims().to_vec() });
        }
        let range = info.range();
        let bytes = usize::try_from(range.start)
            .ok()
            .zip(usize::try_from(range.end).ok())
            .and_then(|(start, end)| self.file.get(start..end))
            .ok_or_else(|| ReferenceError::TensorBytes { name: name.to_owned() })?;
        Ok(Some((info, bytes)))
    }

    fn matrix(&self, name: &str, cols: usize, rows: usize) -> Result<Matrix<'a>, ReferenceError> {
        let Some((info, bytes)) = self.find(name, &[cols, rows])? else {
            return Err(ReferenceError::MissingTensor { name: name.to_owned() });
        };
        let number = info.ggml_type().number();
        if number == I2_S {
            let ternary = |source| ReferenceError::Ternary { name: name.to_owned(), source };
            let matrix = I2sMatrix::new(bytes, rows, cols, Packing::X86).map_err(ternary)?;
            matrix.check_codes().map_err(ternary)?;
            return Ok(Matrix::Ternary(matrix));
        }
        let Some(kind) = FloatType::from_ggml(number) else {
            return Err(ReferenceError::TensorType { name: name.to_owned(), kind: info.ggml_type().name() });
        };
        FloatMatrix::new(kind, rows, cols, bytes)
            .map(Matrix::Float)
            .ok_or_else(|| ReferenceError::TensorBytes { name: name.to_owned() })
    }

    fn float_matrix(&self, name: &str, cols: usize, rows: usize) -> Result<FloatMatrix<'a>, ReferenceError> {
        match self.matrix(name, cols, rows)? {
            Matrix::Float(matrix) => Ok(matrix),
            Matrix::Ternary(_) => {
                Err(ReferenceError::TensorType { name: name.to_owned(), kind: "i2_s (as embedding or output)" })
            }
        }
    }

    fn optional_vector(&self, name: &str, len: usize) -> Result<Option<Vec<f32>>, ReferenceError> {
        if self.find(name, &[len])?.is_none() {
            return Ok(None);
        }
        let mut values = vec![0.0; len];
        self.float_matrix(name, len, 1)?.row(0, &mut values);
        Ok(Some(values))
    }

    fn norm(&self, name: String, len: usize) -> Result<Norm, ReferenceError> {
        match self.optional_vector(&name, len)? {
            Some(weight) => Ok(Norm { name, weight }),
            None => Err(ReferenceError::MissingTensor { name }),
        }
    }
}

impl<'a> ReferenceModel<'a> {
    /// Finds the tensors of a model in the bytes of its file.
    ///
    /// Ternary tensors are looked through once for codes that have no weight; nothing else is read
    /// or copied.
    ///
    /// # Errors
    /// Unknown architectures, missing or unusable metadata, tensors that are missing or differ from
    /// what the metadata say: see [`ReferenceError`].
    pub fn load(gguf: &Gguf, file: &'a [u8]) -> Result<Self, ReferenceError> {
        let missing = |key: &str| ReferenceError::MissingKey { key: key.to_owned() };
        let arch_key = "general.architecture";
        let arch = gguf.string(arch_key)?.ok_or_else(|| missing(arch_key))?;
        let graph = match arch {
            "bitnet-b1.58" | "bitnet-25" => Graph::BitnetSquaredRelu,
            "bitnet" => Graph::BitnetSilu,
            "llama" => Graph::Llama,
            other => {
                return Err(ReferenceError::Architecture { name: other.to_owned() });
            }
        };
        let key = |part: &str| format!("{arch}.{part}");
        let optional =
            |part: &str| -> Result<Option<usize>, ReferenceError> { Ok(gguf.u32(&key(part))?.map(|v| v as usize)) };
        let required = |part: &str| optional(part)?.ok_or_else(|| missing(&key(part)));
        let refuse = |part: &str, value: String, need: &str| ReferenceError::Value {
            key: key(part),
            value,
            need: need.to_owned(),
        };

        let n_layer = required("block_count")?;
        let n_embd = required("embedding_length")?;
        let n_ff = required("feed_forward_length")?;
        let n_head = required("attention.head_count")?;
        let n_head_kv = optional("attention.head_count_kv")?.unwrap_or(n_head);
        if n_layer == 0 {
            return Err(refuse("block_count", "0".into(), "at least one block"));
        }
        if n_head == 0 {
            return Err(refuse("attention.head_count", "0".into(), "at least one head"));
        }
        if n_head_kv == 0 || !n_head.is_multiple_of(n_head_kv) {
            return Err(refuse("attention.head_count_kv", n_head_kv.to_string(), "must divide attention.head_count"));
        }
        let head_dim = optional("attention.key_length")?.unwrap_or(n_embd / n_head);
        for part in ["attention.value_length", "rope.dimension_count"] {
            let value = optional(part)?.unwrap_or(head_dim);
            if value != head_dim {
                return Err(refuse(part, value.to_string(), &format!("must be the head width, {head_dim}")));
            }
        }
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(refuse("embedding_length", n_embd.to_string(), "heads must have an even, non-zero width"));
        }
        let experts = optional("expert_count")?.unwrap_or(0);
        if experts > 0 {
            return Err(refuse("expert_count", experts.to_string(), "experts are not computed here"));
        }
        let eps = "attention.layer_norm_rms_epsilon";
        let rms_eps = gguf.f32(&key(eps))?.ok_or_else(|| missing(&key(eps)))?;
        let rope_base = gguf.f32(&key("rope.freq_base"))?.unwrap_or(10_000.0);
        let scaling = gguf.string(&key("rope.scaling.type"))?.unwrap_or("linear");
        let factor = match gguf.f32(&key("rope.scaling.factor"))? {
            Some(factor) => factor,
            None => gguf.f32(&key("rope.scale_linear"))?.unwrap_or(0.0),
        };
        let rope_scale = match (scaling, factor) {
            (_, 0.0) | ("none", _) => 1.0,
            ("linear", factor) => 1.0 / factor,
            (other, _) => {
                return Err(refuse("rope.scaling.type", other.to_owned(), "only linear scaling is computed here"));
            }
        };
        for (part, value) in [(eps, rms_eps), ("rope.freq_base", rope_base), ("rope.scaling.factor", rope_scale)] {
            if !(value.is_finite() && value > 0.0) {
                return Err(refuse(part, value.to_string(), "must be a positive number"));
            }
        }

        let embedding_name = "token_embd.weight";
        let Some(embedding_info) = gguf.tensor(embedding_name) else {
            return Err(ReferenceError::MissingTensor { name: embedding_name.to_owned() });
        };
        let n_vocab = usize::try_from(embedding_info.rows()).unwrap_or(usize::MAX);
        let tensors = Tensors { gguf, file };
        let embedding = tensors.float_matrix(embedding_name, n_embd, n_vocab)?;
        let (output, output_name) = match graph {
            Graph::Llama if gguf.tensor("output.weight").is_some() => {
                (tensors.float_matrix("output.weight", n_embd, n_vocab)?, "output.weight")
            }
            _ => (embedding, embedding_name),
        };
        let shape = Shape {
            graph,
            n_layer,
            n_embd,
            n_ff,
            n_head,
            n_head_kv,
            head_dim,
            n_vocab,
            rope_base,
            rope_scale,
            rms_eps,
        };
        let rope_factors = match graph {
            Graph::BitnetSilu => None,
            _ => tensors.optional_vector("rope_freqs.weight", head_dim / 2)?,
        };
        let mut layers = Vec::new();
        for i in 0..n_layer {
            layers.push(load_layer(&tensors, &shape, i)?);
        }
        Ok(Self {
            shape,
            embedding,
            output,
            output_name,
            output_norm: tensors.norm("output_norm.weight".to_owned(), n_embd)?,
            rope_factors,
            layers,
        })
    }
}

fn load_layer<'a>(tensors: &Tensors<'_, 'a>, shape: &Shape, i: usize) -> Result<Layer<'a>, ReferenceError> {
    let (embd, ff) = (shape.n_embd, shape.n_ff);
    // Widths come from 32-bit fields and are compared with the tensors: no overflow on 64 bits.
    let q_width = shape.n_head * shape.head_dim;
    let kv_width = shape.n_head_kv * shape.head_dim;
    let name = |part: &str| format!("blk.{i}.{part}.weight");
    // Which optional parts the engine's graph uses.
    let (attn_bias, ffn_bias, scales) = match shape.graph {
        Graph::BitnetSquaredRelu => (true, false, false),
        Graph::BitnetSilu => (false, false, true),
        Graph::Llama => (true, true, false),
    };
    let linear = |part: &str, cols, rows, bias: bool| -> Result<Linear<'a>, ReferenceError> {
        let bias = if bias { tensors.optional_vector(&format!("blk.{i}.{part}.bias"), rows)? } else { None };
        let scale = if scales { tensors.optional_vector(&format!("blk.{i}.{part}.scale"), 1)? } else { None };
        Ok(Linear {
            matrix: tensors.matrix(&name(part), cols, rows)?,
            name: name(part),
            scale: scale.map(|s| s[0]),
            bias,
        })
    };
    let sub_norm = |part: &str, len| match shape.graph {
        Graph::Llama => Ok(None),
        _ => tensors.norm(name(part), len).map(Some),
    };
    Ok(Layer {
        attn_norm: tensors.norm(name("attn_norm"), embd)?,
        q: linear("attn_q", embd, q_width, attn_bias)?,
        k: linear("attn_k", embd, kv_width, attn_bias)?,
        v: linear("attn_v", embd, kv_width, attn_bias)?,
        attn_sub_norm: sub_norm("attn_sub_norm", q_width)?,
        output: linear("attn_output", q_width, embd, attn_bias)?,
        ffn_norm: tensors.norm(name("ffn_norm"), embd)?,
        gate: linear("ffn_gate", embd, ff, ffn_bias)?,
        up: linear("ffn_up", embd, ff, ffn_bias)?,
        ffn_sub_norm: sub_norm("ffn_sub_norm", ff)?,
        down: linear("ffn_down", ff, embd, ffn_bias)?,
    })
}
