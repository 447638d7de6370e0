//! A readable forward pass of the ternary architectures, straight from GGUF tensors.
//!
//! Follows the graphs that the engine builds (`build_bitnet_158`, `build_bitnet`, `build_llama` in
//! llama.cpp) and calls tensors by the names it gives them, so that an engine run captured through
//! the eval callback can be compared tensor by tensor ([`super::trace`]).
//!
//! # What is exact and what is not
//! Ternary products are exact integers, scaled as the engine scales them: from equal inputs they
//! are equal to the engine's bit for bit, unless one of its 16-bit lanes wraps. Everything else is
//! f32 values with f64 accumulators, where the engine accumulates in f32 or rounds on the way:
//! products with f16 weights may round the activations to f16, Q6_K ones round them to 8 bits
//! (relative error of the logits about 1e-3 and 1e-2), attention works on an f16 cache
//! ([`ForwardOptions::half_kv`] rounds keys and values likewise), rotation angles are f32 there.
//! One activation rounded to the other neighbour shifts a whole product by 1/127 of its largest
//! input, and blocks amplify it; **forcing** ([`ReferenceModel::forward`]) avoids that by feeding
//! each step with the engine's own inputs, so that every step is judged alone.

use std::collections::HashMap;
use std::thread;

use bitnet_rs::gguf::{Gguf, GgufError, TensorInfo};
use half::f16;

use super::float_matrix::{FloatMatrix, FloatType};
use super::i2s::{self, I2sError, I2sMatrix, Packing, QuantizedRow};
use super::trace::{TensorKey, Trace};

/// ggml's number of I2_S.
const I2_S: u32 = 36;

/// Why a model could not be loaded or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReferenceError {
    /// No graph is written here for this architecture.
    #[error("architecture '{name}': the reference knows bitnet-b1.58, bitnet-25, bitnet and llama")]
    Architecture {
        /// `general.architecture`.
        name: String,
    },
    /// A metadata key is missing.
    #[error("the file has no key '{key}'")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A metadata value cannot be used.
    #[error("'{key}' is {value}: {need}")]
    Value {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// What is needed.
        need: String,
    },
    /// A tensor is missing.
    #[error("the file has no tensor '{name}'")]
    MissingTensor {
        /// The tensor.
        name: String,
    },
    /// A tensor has another shape than the metadata say.
    #[error("tensor '{name}' has dimensions {actual:?}, the metadata say {expected:?}")]
    TensorShape {
        /// The tensor.
        name: String,
        /// Dimensions needed, fastest first.
        expected: Vec<u64>,
        /// Dimensions in the file.
        actual: Vec<u64>,
    },
    /// A tensor has a type that is not computed here.
    #[error("tensor '{name}' has type {kind}: the reference computes i2_s, f32, f16, bf16, q8_0 and q6_K")]
    TensorType {
        /// The tensor.
        name: String,
        /// Its type's name.
        kind: &'static str,
    },
    /// A tensor's bytes do not fit its shape, or lie outside the file.
    #[error("the bytes of tensor '{name}' do not fit its shape: the file is damaged")]
    TensorBytes {
        /// The tensor.
        name: String,
    },
    /// A ternary tensor or its input was refused.
    #[error("tensor '{name}': {source}")]
    Ternary {
        /// The tensor.
        name: String,
        /// Why.
        source: I2sError,
    },
    /// The header is damaged.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// No tokens were given.
    #[error("no tokens: a forward pass needs at least one")]
    NoTokens,
    /// A token id is outside the vocabulary.
    #[error("token {index} is {id}: ids go from 0 to {}", n_vocab - 1)]
    Token {
        /// Index in the input.
        index: usize,
        /// The id.
        id: i32,
        /// Tokens of the model.
        n_vocab: usize,
    },
    /// Positions would be negative or leave 32 bits.
    #[error("{tokens} tokens from position {first_pos}: positions go from 0 to 2^31 - 1")]
    Positions {
        /// Position of the first token, shift included.
        first_pos: i64,
        /// Tokens given.
        tokens: usize,
    },
    /// A planted fault names something the model does not have.
    #[error("cannot plant the fault: {what}")]
    Fault {
        /// What is missing.
        what: String,
    },
}

/// The graphs written here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Graph {
    /// `bitnet-b1.58`, `bitnet-25`: squared ReLU, sub-norms, output always the embedding (the engine
    /// loads a separate `output.weight` and does not use it).
    BitnetSquaredRelu,
    /// `bitnet`: the same with SiLU, and optional scale tensors.
    BitnetSilu,
    /// `llama`: SiLU, no sub-norms, output separate or the embedding, rotary pairs interleaved.
    Llama,
}

/// Dimensions and constants of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// Which graph.
    pub graph: Graph,
    /// Blocks.
    pub n_layer: usize,
    /// Embedding width.
    pub n_embd: usize,
    /// Feed-forward width.
    pub n_ff: usize,
    /// Query heads.
    pub n_head: usize,
    /// Key and value heads.
    pub n_head_kv: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Tokens.
    pub n_vocab: usize,
    /// RoPE base.
    pub rope_base: f32,
    /// Factor on positions (1 without linear scaling).
    pub rope_scale: f32,
    /// Epsilon of the RMS norms.
    pub rms_eps: f32,
}

/// A fault planted in a pass to see whether a comparison finds it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum PlantedFault {
    /// Every position is this much off.
    ShiftedPositions(i32),
    /// Another RoPE base.
    RopeBase(f32),
    /// Two blocks change places.
    SwappedLayers(usize, usize),
    /// A weight tensor, by its name in the file, is multiplied.
    ScaledTensor {
        /// Such as `blk.2.ffn_up.weight`.
        name: String,
        /// The factor.
        factor: f32,
    },
}

/// How to run a pass.
#[derive(Debug, Clone, PartialEq)]
pub struct ForwardOptions {
    /// Position of the first token.
    pub first_pos: i32,
    /// Round keys and values to f16 before attention, as an f16 cache does.
    pub half_kv: bool,
    /// Return keys and values of every layer.
    pub capture_kv: bool,
    /// Faults to plant.
    pub faults: Vec<PlantedFault>,
}

impl Default for ForwardOptions {
    /// From position 0 with an f16 cache, as the engine's contexts are by default.
    fn default() -> Self {
        Self { first_pos: 0, half_kv: true, capture_kv: false, faults: Vec::new() }
    }
}

/// An intermediate tensor as it was computed.
#[derive(Debug, Clone, Copy)]
pub struct Observed<'a> {
    /// The engine's name, without the layer.
    pub name: &'static str,
    /// Layer, `None` outside the blocks.
    pub layer: Option<usize>,
    /// Earlier tensors of this name and layer.
    pub occurrence: usize,
    /// Values per token.
    pub width: usize,
    /// `[tokens][width]`.
    pub values: &'a [f32],
}

/// Keys (after rotation) and values of one layer, `[n_head_kv][tokens][head_dim]` each, rounded to
/// f16 when [`ForwardOptions::half_kv`] is on.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerKv {
    /// Keys.
    pub keys: Vec<f32>,
    /// Values.
    pub values: Vec<f32>,
}

/// What a pass returns.
#[derive(Debug, Clone, PartialEq)]
pub struct ForwardOutput {
    /// `[tokens][n_vocab]`.
    pub logits: Vec<f32>,
    /// Tokens of the model.
    pub n_vocab: usize,
    /// One per layer when captured.
    pub kv: Vec<LayerKv>,
}

impl ForwardOutput {
    /// Logits after the token with this index.
    pub fn row(&self, token: usize) -> Option<&[f32]> {
        self.logits.chunks_exact(self.n_vocab).nth(token)
    }
}

#[derive(Debug, Clone, Copy)]
enum Matrix<'a> {
    Ternary(I2sMatrix<'a>),
    Float(FloatMatrix<'a>),
}

#[derive(Debug)]
struct Linear<'a> {
    name: String,
    matrix: Matrix<'a>,
    scale: Option<f32>,
    bias: Option<Vec<f32>>,
}

#[derive(Debug)]
struct Norm {
    name: String,
    weight: Vec<f32>,
}

#[derive(Debug)]
struct Layer<'a> {
    attn_norm: Norm,
    q: Linear<'a>,
    k: Linear<'a>,
    v: Linear<'a>,
    attn_sub_norm: Option<Norm>,
    output: Linear<'a>,
    ffn_norm: Norm,
    gate: Linear<'a>,
    up: Linear<'a>,
    ffn_sub_norm: Option<Norm>,
    down: Linear<'a>,
}

/// A model whose tensors lie in a file's bytes (read or mapped).
#[derive(Debug)]
pub struct ReferenceModel<'a> {
    shape: Shape,
    embedding: FloatMatrix<'a>,
    output: FloatMatrix<'a>,
    output_name: &'static str,
    output_norm: Norm,
    rope_factors: Option<Vec<f32>>,
    layers: Vec<Layer<'a>>,
}

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

    /// Dimensions and constants.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Runs tokens through the model.
    ///
    /// `observer` sees every named tensor as computed here. With `forced`, a tensor that the given
    /// trace holds in the same shape then replaces the computed one, so that each step starts from
    /// the trace's values and errors do not add up: what departs is the step itself.
    ///
    /// # Errors
    /// [`ReferenceError::NoTokens`], [`ReferenceError::Token`], [`ReferenceError::Positions`],
    /// [`ReferenceError::Fault`], and [`ReferenceError::Ternary`] when an activation is not finite.
    pub fn forward(
        &self,
        tokens: &[i32],
        options: &ForwardOptions,
        forced: Option<&Trace>,
        observer: &mut dyn FnMut(Observed<'_>),
    ) -> Result<ForwardOutput, ReferenceError> {
        let shape = &self.shape;
        let faults = Faults::new(self, &options.faults)?;
        if tokens.is_empty() {
            return Err(ReferenceError::NoTokens);
        }
        let first_pos = i64::from(options.first_pos) + i64::from(faults.shift);
        let last_pos = i64::try_from(tokens.len()).ok().and_then(|n| first_pos.checked_add(n - 1));
        if first_pos < 0 || last_pos.is_none_or(|last| last > i64::from(i32::MAX)) {
            return Err(ReferenceError::Positions { first_pos, tokens: tokens.len() });
        }
        let mut pass = Pass { counts: HashMap::new(), forced, observer };

        let mut x = vec![0.0; tokens.len() * shape.n_embd];
        for ((index, &id), out) in tokens.iter().enumerate().zip(x.chunks_exact_mut(shape.n_embd)) {
            let row = usize::try_from(id).ok().filter(|&row| row < shape.n_vocab);
            let Some(row) = row else {
                return Err(ReferenceError::Token { index, id, n_vocab: shape.n_vocab });
            };
            self.embedding.row(row, out);
        }
        let factor = faults.factor("token_embd.weight");
        x.iter_mut().for_each(|v| *v *= factor);
        pass.emit("inp_embd", None, shape.n_embd, &mut x);

        let rotation = Rotation::new(self, first_pos, tokens.len(), faults.rope_base);
        let mut kv = Vec::new();
        for il in 0..shape.n_layer {
            let layer = &self.layers[faults.layer(il)];
            let layer_kv = self.block(il, layer, &mut x, &rotation, options, &faults, &mut pass)?;
            if options.capture_kv {
                kv.push(layer_kv);
            }
        }

        let mut cur = rms_norm(&x, &self.output_norm, shape.rms_eps, &faults);
        pass.emit("result_norm", None, shape.n_embd, &mut cur);
        let mut logits = float_matmul(&self.output, &cur);
        let factor = faults.factor(self.output_name);
        logits.iter_mut().for_each(|v| *v *= factor);
        pass.emit("result_output", None, shape.n_vocab, &mut logits);
        Ok(ForwardOutput { logits, n_vocab: shape.n_vocab, kv })
    }

    /// A pass together with all its tensors.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn trace(
        &self,
        tokens: &[i32],
        options: &ForwardOptions,
        forced: Option<&Trace>,
    ) -> Result<(ForwardOutput, Trace), ReferenceError> {
        let mut trace = Trace::new();
        let output = self.forward(tokens, options, forced, &mut |tensor| {
            trace.push(tensor.name, tensor.layer, tensor.width, tensor.values.to_vec());
        })?;
        Ok((output, trace))
    }

    /// One block: attention and feed-forward, each added to the residual stream `x`.
    #[allow(clippy::too_many_arguments, reason = "the state of a pass, spelled out")]
    fn block(
        &self,
        il: usize,
        layer: &Layer<'_>,
        x: &mut Vec<f32>,
        rotation: &Rotation,
        options: &ForwardOptions,
        faults: &Faults<'_>,
        pass: &mut Pass<'_>,
    ) -> Result<LayerKv, ReferenceError> {
        let shape = &self.shape;
        let at = Some(il);
        let (embd, ff) = (shape.n_embd, shape.n_ff);
        let (q_width, kv_width) = (shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim);
        let bitnet = shape.graph != Graph::Llama;

        let mut cur = rms_norm(x, &layer.attn_norm, shape.rms_eps, faults);
        pass.emit("attn_norm", at, embd, &mut cur);
        let mut project = |linear: &Linear<'_>, name, width| {
            let mut out = linear.weigh(&cur, faults)?;
            pass.emit(name, at, width, &mut out);
            if linear.add_bias(&mut out) {
                pass.emit(name, at, width, &mut out);
            }
            if name != "Vcur" {
                rotation.apply(&mut out, shape, width / shape.head_dim);
                pass.emit(name, at, width, &mut out);
            }
            Ok::<_, ReferenceError>(out)
        };
        let q = project(&layer.q, "Qcur", q_width)?;
        let mut k = project(&layer.k, "Kcur", kv_width)?;
        let mut v = project(&layer.v, "Vcur", kv_width)?;
        if options.half_kv {
            for value in k.iter_mut().chain(&mut v) {
                *value = f16::from_f32(*value).to_f32();
            }
        }
        let kv = LayerKv {
            keys: head_major(&k, shape.n_head_kv, shape.head_dim),
            values: head_major(&v, shape.n_head_kv, shape.head_dim),
        };
        let mut cur = attention(&q, &kv, shape);
        if bitnet {
            pass.emit("kqv_out", at, q_width, &mut cur);
        } else {
            pass.emit("kqv_merged_cont", at, q_width, &mut cur);
        }
        if let Some(norm) = &layer.attn_sub_norm {
            cur = rms_norm(&cur, norm, shape.rms_eps, faults);
            pass.emit("attn_sub_norm", at, q_width, &mut cur);
        }
        cur = layer.output.weigh(&cur, faults)?;
        layer.output.add_bias(&mut cur);
        pass.emit(if bitnet { "attn_o_out" } else { "kqv_out" }, at, embd, &mut cur);
        add(&mut cur, x);
        pass.emit("ffn_inp", at, embd, &mut cur);
        let residual = cur;

        let mut cur = rms_norm(&residual, &layer.ffn_norm, shape.rms_eps, faults);
        pass.emit("ffn_norm", at, embd, &mut cur);
        let mut gate = layer.gate.weigh(&cur, faults)?;
        pass.emit("ffn_gate", at, ff, &mut gate);
        if layer.gate.add_bias(&mut gate) {
            pass.emit("ffn_gate_b", at, ff, &mut gate);
        }
        if shape.graph == Graph::BitnetSquaredRelu {
            gate.iter_mut().for_each(|v| *v = v.max(0.0));
            pass.emit("ffn_relu", at, ff, &mut gate);
            gate.iter_mut().for_each(|v| *v *= *v);
            pass.emit("ffn_sqr(relu)", at, ff, &mut gate);
        } else {
            gate.iter_mut().for_each(|v| *v = silu(*v));
            pass.emit("ffn_silu", at, ff, &mut gate);
        }
        let mut up = layer.up.weigh(&cur, faults)?;
        pass.emit("ffn_up", at, ff, &mut up);
        if layer.up.add_bias(&mut up) {
            pass.emit("ffn_up_b", at, ff, &mut up);
        }
        let mut cur = gate;
        cur.iter_mut().zip(&up).for_each(|(g, u)| *g *= u);
        // The engine renames the product where the feed-forward network ends with it.
        let product = match shape.graph {
            Graph::BitnetSquaredRelu => "ffn_out",
            Graph::BitnetSilu => "ffn_sub_out",
            Graph::Llama => "ffn_gate_par",
        };
        pass.emit(product, at, ff, &mut cur);
        if let Some(norm) = &layer.ffn_sub_norm {
            cur = rms_norm(&cur, norm, shape.rms_eps, faults);
            pass.emit("ffn_sub_norm", at, ff, &mut cur);
        }
        let mut cur = layer.down.weigh(&cur, faults)?;
        if bitnet {
            pass.emit("ffn_down", at, embd, &mut cur);
        } else if layer.down.bias.is_some() {
            pass.emit("ffn_down", at, embd, &mut cur);
            layer.down.add_bias(&mut cur);
            pass.emit("ffn_out", at, embd, &mut cur);
        } else {
            pass.emit("ffn_out", at, embd, &mut cur);
        }
        add(&mut cur, &residual);
        pass.emit("l_out", at, embd, &mut cur);
        *x = cur;
        Ok(kv)
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

/// Counts names, shows tensors to the observer, and puts forced values in their place.
struct Pass<'a> {
    counts: HashMap<(&'static str, Option<usize>), usize>,
    forced: Option<&'a Trace>,
    observer: &'a mut dyn FnMut(Observed<'_>),
}

impl Pass<'_> {
    fn emit(&mut self, name: &'static str, layer: Option<usize>, width: usize, values: &mut [f32]) {
        let count = self.counts.entry((name, layer)).or_insert(0);
        let occurrence = *count;
        *count += 1;
        (self.observer)(Observed { name, layer, occurrence, width, values });
        let Some(forced) = self.forced else { return };
        let key = TensorKey { name: name.to_owned(), layer, occurrence };
        if let Some(tensor) = forced.get(&key)
            && tensor.width == width
            && tensor.values.len() == values.len()
        {
            values.copy_from_slice(&tensor.values);
        }
    }
}

/// Planted faults, looked up once.
struct Faults<'a> {
    shift: i32,
    rope_base: Option<f32>,
    swaps: Vec<(usize, usize)>,
    scaled: Vec<(&'a str, f32)>,
}

impl<'a> Faults<'a> {
    fn new(model: &ReferenceModel<'_>, planted: &'a [PlantedFault]) -> Result<Self, ReferenceError> {
        let mut faults = Faults { shift: 0, rope_base: None, swaps: Vec::new(), scaled: Vec::new() };
        for fault in planted {
            match fault {
                PlantedFault::ShiftedPositions(shift) => {
                    faults.shift = faults.shift.saturating_add(*shift);
                }
                PlantedFault::RopeBase(base) => faults.rope_base = Some(*base),
                PlantedFault::SwappedLayers(a, b) => {
                    let n = model.layers.len();
                    if *a >= n || *b >= n {
                        return Err(ReferenceError::Fault { what: format!("layers {a} and {b} of {n}") });
                    }
                    faults.swaps.push((*a, *b));
                }
                PlantedFault::ScaledTensor { name, factor } => {
                    if !model.has_weight(name) {
                        return Err(ReferenceError::Fault { what: format!("no weight tensor '{name}'") });
                    }
                    faults.scaled.push((name, *factor));
                }
            }
        }
        Ok(faults)
    }

    fn factor(&self, name: &str) -> f32 {
        self.scaled.iter().filter(|(n, _)| *n == name).map(|(_, factor)| factor).product()
    }

    fn layer(&self, il: usize) -> usize {
        self.swaps.iter().fold(il, |il, &(a, b)| {
            if il == a {
                b
            } else if il == b {
                a
            } else {
                il
            }
        })
    }
}

impl ReferenceModel<'_> {
    fn has_weight(&self, name: &str) -> bool {
        let in_layer = |layer: &Layer<'_>| {
            let linears = [&layer.q, &layer.k, &layer.v, &layer.output, &layer.gate, &layer.up, &layer.down];
            let norms = [Some(&layer.attn_norm), Some(&layer.ffn_norm)];
            let subs = [layer.attn_sub_norm.as_ref(), layer.ffn_sub_norm.as_ref()];
            linears.iter().any(|l| l.name == name) || norms.iter().chain(&subs).flatten().any(|n| n.name == name)
        };
        name == "token_embd.weight"
            || name == self.output_name
            || name == self.output_norm.name
            || self.layers.iter().any(in_layer)
    }
}

impl Linear<'_> {
    /// The product alone, with the optional scale tensor: `[tokens][rows]`.
    fn weigh(&self, x: &[f32], faults: &Faults<'_>) -> Result<Vec<f32>, ReferenceError> {
        let factor = faults.factor(&self.name);
        let mut out = match &self.matrix {
            Matrix::Ternary(matrix) => {
                let ternary = |source| ReferenceError::Ternary { name: self.name.clone(), source };
                let rows: Vec<QuantizedRow> =
                    x.chunks_exact(matrix.cols()).map(i2s::quantize_row).collect::<Result<_, _>>().map_err(ternary)?;
                matrix.scaled(factor).matmul(&rows).map_err(ternary)?
            }
            Matrix::Float(matrix) => {
                let mut out = float_matmul(matrix, x);
                out.iter_mut().for_each(|v| *v *= factor);
                out
            }
        };
        if let Some(scale) = self.scale {
            out.iter_mut().for_each(|v| *v *= scale);
        }
        Ok(out)
    }

    fn add_bias(&self, out: &mut [f32]) -> bool {
        let Some(bias) = &self.bias else { return false };
        for row in out.chunks_exact_mut(bias.len()) {
            row.iter_mut().zip(bias).for_each(|(v, b)| *v += b);
        }
        true
    }
}

/// Cosines and sines of every position and pair, `[token][head_dim / 2]`.
struct Rotation {
    angles: Vec<(f32, f32)>,
}

impl Rotation {
    /// Angle of pair i at position p: `p · scale · base^(−2i/d)`, over the pair's factor if the model
    /// has factors (`ggml_rope_ext` without YaRN).
    fn new(model: &ReferenceModel<'_>, first_pos: i64, tokens: usize, base: Option<f32>) -> Self {
        let shape = &model.shape;
        let base = f64::from(base.unwrap_or(shape.rope_base));
        let frequencies: Vec<f64> = (0..shape.head_dim / 2)
            .map(|i| {
                let factor = model.rope_factors.as_ref().map_or(1.0, |f| f64::from(f[i]));
                let exponent = -2.0 * i as f64 / shape.head_dim as f64;
                base.powf(exponent) / factor * f64::from(shape.rope_scale)
            })
            .collect();
        let angles = (0..tokens as i64)
            .flat_map(|t| {
                let position = (first_pos + t) as f64;
                frequencies.iter().map(move |frequency| {
                    let (sin, cos) = (position * frequency).sin_cos();
                    (cos as f32, sin as f32)
                })
            })
            .collect();
        Self { angles }
    }

    /// Rotates `[tokens][heads][head_dim]` in place. The bitnet graphs pair element i with
    /// i + d/2 (NEOX), llama pairs 2i with 2i + 1 (NORM).
    fn apply(&self, x: &mut [f32], shape: &Shape, heads: usize) {
        let (dim, half) = (shape.head_dim, shape.head_dim / 2);
        for (row, angles) in x.chunks_exact_mut(heads * dim).zip(self.angles.chunks_exact(half)) {
            for head in row.chunks_exact_mut(dim) {
                for (i, &(cos, sin)) in angles.iter().enumerate() {
                    let (a, b) = match shape.graph {
                        Graph::Llama => (2 * i, 2 * i + 1),
                        _ => (i, i + half),
                    };
                    let (x0, x1) = (head[a], head[b]);
                    head[a] = x0 * cos - x1 * sin;
                    head[b] = x0 * sin + x1 * cos;
                }
            }
        }
    }
}

/// `x / √(mean(x²) + ε) · weight` for each token (`ggml_rms_norm`, then `ggml_mul`).
fn rms_norm(x: &[f32], norm: &Norm, eps: f32, faults: &Faults<'_>) -> Vec<f32> {
    let factor = faults.factor(&norm.name);
    let width = norm.weight.len();
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks_exact(width) {
        let sum: f64 = row.iter().map(|&v| f64::from(v * v)).sum();
        let mean = (sum / width as f64) as f32;
        let scale = 1.0 / (mean + eps).sqrt();
        out.extend(row.iter().zip(&norm.weight).map(|(v, w)| v * scale * (w * factor)));
    }
    out
}

fn silu(x: f32) -> f32 {
    let x = f64::from(x);
    (x / (1.0 + (-x).exp())) as f32
}

fn add(out: &mut [f32], other: &[f32]) {
    out.iter_mut().zip(other).for_each(|(o, v)| *o += v);
}

/// `[tokens][heads][dim]` to `[heads][tokens][dim]`.
fn head_major(x: &[f32], heads: usize, dim: usize) -> Vec<f32> {
    (0..heads)
        .flat_map(|head| x.chunks_exact(heads * dim).flat_map(move |row| row[head * dim..][..dim].iter().copied()))
        .collect()
}

/// Causal attention with grouped heads: `[tokens][n_head][head_dim]`.
fn attention(q: &[f32], kv: &LayerKv, shape: &Shape) -> Vec<f32> {
    let (dim, heads) = (shape.head_dim, shape.n_head);
    let width = heads * dim;
    let tokens = q.len() / width;
    let group = heads / shape.n_head_kv;
    let scale = 1.0 / (dim as f64).sqrt();
    let mut by_head = vec![0.0_f32; q.len()];
    let run = |head: usize, out: &mut [f32]| {
        let at = head / group * tokens * dim;
        let keys = &kv.keys[at..][..tokens * dim];
        let values = &kv.values[at..][..tokens * dim];
        let mut weights = Vec::with_capacity(tokens);
        let mut sum = vec![0.0_f64; dim];
        for (t, out) in out.chunks_exact_mut(dim).enumerate() {
            let query = &q[t * width + head * dim..][..dim];
            weights.clear();
            weights.extend(keys.chunks_exact(dim).take(t + 1).map(|key| dot(query, key) * scale));
            let max = weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let mut total = 0.0;
            sum.fill(0.0);
            for (weight, value) in weights.iter().zip(values.chunks_exact(dim)) {
                let weight = (weight - max).exp();
                total += weight;
                for (sum, &v) in sum.iter_mut().zip(value) {
                    *sum += weight * f64::from(v);
                }
            }
            for (out, sum) in out.iter_mut().zip(&sum) {
                *out = (sum / total) as f32;
            }
        }
    };
    let threads = i2s::worth_threads(tokens * tokens * width).min(heads);
    let share = heads.div_ceil(threads);
    thread::scope(|scope| {
        let mut parts = by_head.chunks_mut(share * tokens * dim).enumerate();
        let mine = parts.next();
        for (i, part) in parts {
            let run = &run;
            scope.spawn(move || {
                for (j, out) in part.chunks_mut(tokens * dim).enumerate() {
                    run(i * share + j, out);
                }
            });
        }
        if let Some((_, part)) = mine {
            for (j, out) in part.chunks_mut(tokens * dim).enumerate() {
                run(j, out);
            }
        }
    });
    let mut out = vec![0.0; q.len()];
    for (head, of_head) in by_head.chunks_exact(tokens * dim).enumerate() {
        for (t, row) in of_head.chunks_exact(dim).enumerate() {
            out[t * width + head * dim..][..dim].copy_from_slice(row);
        }
    }
    out
}

/// Dot product in f64, in eight lanes so that it can be vectorised.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    const LANES: usize = 8;
    let mut lanes = [0.0_f64; LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f64 =
        a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for (lane, (&a, &b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane += f64::from(a) * f64::from(b);
        }
    }
    lanes.iter().sum::<f64>() + rest
}

/// `[tokens][rows]`; each output is independent of the number of threads.
fn float_matmul(matrix: &FloatMatrix<'_>, x: &[f32]) -> Vec<f32> {
    let (rows, cols) = (matrix.rows(), matrix.cols());
    let tokens = x.len() / cols;
    let mut by_row = vec![0.0_f32; rows * tokens];
    let run = |first: usize, out: &mut [f32]| {
        let mut weights = vec![0.0; cols];
        for (i, out) in out.chunks_exact_mut(tokens).enumerate() {
            matrix.row(first + i, &mut weights);
            for (out, x) in out.iter_mut().zip(x.chunks_exact(cols)) {
                *out = dot(&weights, x) as f32;
            }
        }
    };
    let threads = i2s::worth_threads(rows * cols * tokens).min(rows);
    let share = rows.div_ceil(threads);
    thread::scope(|scope| {
        let mut parts = by_row.chunks_mut(share * tokens).enumerate();
        let mine = parts.next();
        for (i, part) in parts {
            let run = &run;
            scope.spawn(move || run(i * share, part));
        }
        if let Some((_, part)) = mine {
            run(0, part);
        }
    });
    let mut out = vec![0.0; by_row.len()];
    for (row, of_row) in by_row.chunks_exact(tokens).enumerate() {
        for (token, &value) in of_row.iter().enumerate() {
            out[token * rows + row] = value;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::trace::compare;
    use super::*;
    use crate::model::synth::{Architecture, SynthSpec, write_synth};
    use bitnet_rs::gguf::Limits;
    use std::sync::atomic::AtomicBool;

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
                [3.317_717_6, 0.088_375_904, 0.071_860_343, 1.427_658_6, 2.212_369_9],
                [3.805_618_3, 0.727_849_1, 1.419_634_8, -0.524_457_04, 0.798_229_8],
            ),
            (
                Architecture::Llama,
                [-1.498_921_9, 0.419_565_26, 0.824_074_74, -0.897_470_24, 0.302_812_82],
                [-1.695_999_1, 0.732_503_4, 0.638_188_5, 0.158_828_41, 0.550_265_97],
            ),
        ];
        for (architecture, first, last) in measured {
            let file = file(architecture, 2);
            let model = ReferenceModel::load(&gguf(&file), &file).unwrap();
            let run = |options: &ForwardOptions| model.forward(&TOKENS, options, None, &mut |_| ()).unwrap();
            let error = |output: &ForwardOutput, token: usize, expected: [f32; 5]| {
                let row = output.row(token).unwrap();
                [0, 1, 100, 255, 299]
                    .iter()
                    .zip(expected)
                    .map(|(&id, e)| (row[id as usize] - e).abs())
                    .fold(0.0, f32::max)
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
            let found = compare(&clean, &free, 1e-3);
            let first = found.first_departure().unwrap();
            assert_eq!(first.key.to_string(), tensor, "{fault:?}");

            // Forced, the fault stays where it is.
            let (_, forced) = model.trace(&TOKENS, &options, Some(&clean)).unwrap();
            let found = compare(&clean, &forced, 1e-3);
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
        assert!(compare(&clean, &forced, 0.0).agrees());
    }

    #[test]
    fn later_tokens_change_nothing_before_them() {
        for architecture in [Architecture::BitnetB158, Architecture::Llama] {
            let file = file(architecture, 2);
            let model = ReferenceModel::load(&gguf(&file), &file).unwrap();
            let run =
                |tokens: &[i32]| model.forward(tokens, &ForwardOptions::default(), None, &mut |_| ()).unwrap().logits;
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
        let run =
            |tokens: &[i32], options: &ForwardOptions| model.forward(tokens, options, None, &mut |_| ()).unwrap_err();
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
            // Width 32, base 500,000: pair 0 turns by one radian per position.
            (Architecture::BitnetB158, (0, 16)),
            (Architecture::Llama, (0, 1)),
        ] {
            let file = file(architecture, 1);
            let model = ReferenceModel::load(&gguf(&file), &file).unwrap();
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
}
