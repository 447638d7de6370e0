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
//! a product with f16 weights may round the activations to f16, one with Q8_0 or Q6_K weights rounds
//! them to 8 bits, attention works on an f16 cache ([`ForwardOptions::half_kv`] rounds keys and
//! values likewise), rotation angles are f32 there.
//!
//! One activation rounded to the other neighbour shifts a whole product by 1/127 of its largest
//! input, and blocks amplify it: in a free run, single rows of later tensors differ by 3 to 14 %.
//! **Forcing** ([`ReferenceModel::forward`]) avoids that by feeding each step with the engine's own
//! inputs, so that every step is judged alone, within [`ReferenceModel::forced_tolerance`].

mod load;

use std::collections::HashMap;

use files::threads::in_parallel;
use gguf::GgufError;
use half::f16;

use super::float_matrix::{FloatMatrix, FloatType};
use super::i2s::{self, I2sError, I2sMatrix, QuantizedRow};
use super::trace::{TensorKey, Trace};

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

impl ReferenceModel<'_> {
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

    /// Largest relative error of a row that a right engine shows in a forced pass.
    ///
    /// Measured on synthetic models of 4, 11 and 30 layers, all three graphs, one and more tokens,
    /// flash attention off and on: ternary products, norms, sums and activations 0 (SiLU 6e-8);
    /// rotation 3e-7 at small positions, growing with them; attention 3e-4, with flash attention 7e-4;
    /// output 2e-4 with an f16 embedding (one token; 3e-7 with more), 2e-3 with bf16, 6e-3 with q8_0,
    /// 9e-3 with q6_K. The bounds leave a factor of about two to three.
    pub fn forced_tolerance(&self, key: &TensorKey) -> f64 {
        const EXACT: f64 = 1e-6;
        let product = |kind| match kind {
            FloatType::F32 => 1e-5,
            FloatType::F16 => 1e-3,
            FloatType::Bf16 => 5e-3,
            FloatType::Q8_0 | FloatType::Q6K => 2e-2,
        };
        let llama = self.shape.graph == Graph::Llama;
        let layer = key.layer.and_then(|il| self.layers.get(il));
        let linear = layer.and_then(|layer| match key.name.as_str() {
            "Qcur" => Some(&layer.q),
            "Kcur" => Some(&layer.k),
            "Vcur" => Some(&layer.v),
            "attn_o_out" => Some(&layer.output),
            "kqv_out" if llama => Some(&layer.output),
            "ffn_gate" => Some(&layer.gate),
            "ffn_up" => Some(&layer.up),
            "ffn_down" => Some(&layer.down),
            "ffn_out" if llama => Some(&layer.down),
            _ => None,
        });
        match (key.name.as_str(), linear) {
            // Rotated, or with a bias.
            ("Qcur" | "Kcur", _) if key.occurrence > 0 => 1e-3,
            ("result_output", _) => product(self.output.kind()),
            ("kqv_out" | "kqv_merged_cont", None) => 2e-3,
            (_, Some(linear)) => match linear.matrix {
                Matrix::Ternary(_) => EXACT,
                Matrix::Float(matrix) => product(matrix.kind()),
            },
            _ => EXACT,
        }
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
    let parts = by_head.chunks_mut(share * tokens * dim).enumerate();
    in_parallel(parts.map(|(i, part)| {
        let run = &run;
        move || {
            for (j, out) in part.chunks_mut(tokens * dim).enumerate() {
                run(i * share + j, out);
            }
        }
    }));
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
    let parts = by_row.chunks_mut(share * tokens).enumerate();
    in_parallel(parts.map(|(i, part)| {
        let run = &run;
        move || run(i * share, part)
    }));
    let mut out = vec![0.0; by_row.len()];
    for (row, of_row) in by_row.chunks_exact(tokens).enumerate() {
        for (token, &value) in of_row.iter().enumerate() {
            out[token * rows + row] = value;
        }
    }
    out
}

#[cfg(test)]
mod tests;
