//! The engine's own intermediate tensors as a [`Trace`], and the forced comparison of them with a model file.

use std::sync::{Arc, Mutex};

use bitnet_rs::{Batch, Context, ContextParams, Model, Pos, Probe, ProbedTensor, SeqId, TokenId};
use gguf::Gguf;

use reference::forward::{ForwardOptions, ReferenceError, ReferenceModel};
use reference::trace::{Comparison, TensorKey, Trace, compare, split_engine_name};

/// Names that the reference forward pass knows; everything else is not even copied.
const NAMES: [&str; 26] = [
    "inp_embd",
    "attn_norm",
    "Qcur",
    "Kcur",
    "Vcur",
    "kqv_out",
    "kqv_merged_cont",
    "attn_sub_norm",
    "attn_o_out",
    "ffn_inp",
    "ffn_norm",
    "ffn_gate",
    "ffn_gate_b",
    "ffn_relu",
    "ffn_sqr(relu)",
    "ffn_silu",
    "ffn_up",
    "ffn_up_b",
    "ffn_gate_par",
    "ffn_out",
    "ffn_sub_out",
    "ffn_sub_norm",
    "ffn_down",
    "l_out",
    "result_norm",
    "result_output",
];

struct Tracer {
    n_tokens: usize,
    trace: Arc<Mutex<Trace>>,
}

impl Probe for Tracer {
    fn wants(&mut self, tensor: &ProbedTensor<'_>) -> bool {
        NAMES.contains(&split_engine_name(&tensor.name()).0)
    }

    fn observe(&mut self, tensor: &ProbedTensor<'_>) {
        if let (Some(values), Ok(mut trace)) = (tensor.values(), self.trace.lock()) {
            trace.push_engine(&tensor.name(), values, self.n_tokens);
        }
    }
}

/// Decodes `tokens` from `first` in a context of its own and returns the tensors that the engine computed, on one
/// thread as every probed context.
///
/// # Errors
/// As the context's: [`bitnet_rs::Error`].
pub(crate) fn engine_trace(model: &Model, tokens: &[TokenId], first: Pos) -> Result<Trace, bitnet_rs::Error> {
    let trace = Arc::new(Mutex::new(Trace::new()));
    let n_ctx = u32::try_from(tokens.len().next_multiple_of(64).max(64)).unwrap_or(u32::MAX);
    let params = ContextParams { n_ctx, ..Default::default() };
    let probe = Box::new(Tracer { n_tokens: tokens.len(), trace: Arc::clone(&trace) });
    Context::with_probe(model, &params, probe)?.decode(&Batch::scored(tokens, first, SeqId::ZERO)?)?;
    // A panic in the probe was resumed by decode; the lock is free.
    let mut trace = trace.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    Ok(std::mem::take(&mut *trace))
}

/// Compares the engine's tensors with what the file's weights say for `tokens` from position 0, each step from the
/// engine's own inputs. The first departure is the step that went wrong.
///
/// # Errors
/// When the file cannot be run ([`ReferenceError`]).
pub(crate) fn forced_comparison(
    gguf: &Gguf,
    file: &[u8],
    tokens: &[TokenId],
    engine: &Trace,
) -> Result<Comparison, ReferenceError> {
    let reference = ReferenceModel::load(gguf, file)?;
    let ids: Vec<i32> = tokens.iter().map(|t| t.get()).collect();
    let (_, own) = reference.trace(&ids, &ForwardOptions::default(), Some(engine))?;
    Ok(compare(&own, engine, |key| reference.forced_tolerance(key)))
}

/// What a tensor of the graph comes from: the weight's name in the file, or the operation.
pub(crate) fn origin(key: &TensorKey) -> String {
    let Some(layer) = key.layer else {
        return match key.name.as_str() {
            "inp_embd" => "token_embd.weight".into(),
            "result_norm" => "output_norm.weight".into(),
            "result_output" => "output.weight or token_embd.weight".into(),
            other => other.into(),
        };
    };
    let part = match (key.name.as_str(), key.occurrence) {
        ("Qcur" | "Kcur", n) if n > 0 => return format!("rotation (RoPE) in layer {layer}"),
        ("Qcur", _) => "attn_q",
        ("Kcur", _) => "attn_k",
        ("Vcur", _) => "attn_v",
        ("attn_o_out", _) => "attn_output",
        ("kqv_out" | "kqv_merged_cont", _) => return format!("attention in layer {layer}"),
        (
            name @ ("attn_norm" | "attn_sub_norm" | "ffn_norm" | "ffn_sub_norm" | "ffn_gate" | "ffn_up" | "ffn_down"),
            _,
        ) => name,
        (name, _) => return format!("{name} in layer {layer}"),
    };
    format!("blk.{layer}.{part}.weight")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins() {
        let key = |name: &str, layer, occurrence| TensorKey { name: name.into(), layer, occurrence };
        assert_eq!(origin(&key("Qcur", Some(2), 0)), "blk.2.attn_q.weight");
        assert_eq!(origin(&key("Kcur", Some(2), 1)), "rotation (RoPE) in layer 2");
        assert_eq!(origin(&key("ffn_down", Some(0), 0)), "blk.0.ffn_down.weight");
        assert_eq!(origin(&key("result_norm", None, 0)), "output_norm.weight");
        assert_eq!(origin(&key("l_out", Some(3), 0)), "l_out in layer 3");
    }
}
