//! What a cartridge holds, for people and machines.

use super::{Cartridge, KvSource};
use kv::KvTensor;
use serde::Serialize;
use std::collections::BTreeMap;

/// Summary of a cartridge. Reading the norms costs one pass over keys and values; the rest reads
/// only the header.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Inspection {
    /// `native` or `head-major`.
    pub layout: String,
    /// Metadata as stored.
    pub metadata: BTreeMap<String, String>,
    /// Number of tokens.
    pub n_tokens: u32,
    /// Position of the first token.
    pub first_pos: u32,
    /// Position at which decoding goes on.
    pub next_pos: u32,
    /// First token ids, at most 16.
    pub first_tokens: Vec<i32>,
    /// Cells that stand for no token.
    pub trained_cells: usize,
    /// Number of layers.
    pub n_layer: usize,
    /// KV heads (of the first layer).
    pub n_head_kv: u32,
    /// Elements of a key head (of the first layer).
    pub head_dim_k: u32,
    /// Elements of a value head (of the first layer).
    pub head_dim_v: u32,
    /// Bytes of the file.
    pub file_bytes: usize,
    /// Bytes of keys and values.
    pub payload_bytes: usize,
    /// Bytes of keys and values for one token.
    pub bytes_per_token: usize,
    /// Whether mounting hands the mapped file to the engine without a copy.
    pub mounts_without_copy: bool,
    /// Whether keys and values can be checked against a hash.
    pub has_payload_hash: bool,
    /// Norms per layer, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub norms: Option<Vec<LayerNorms>>,
}

/// Root mean square and largest magnitude of a layer's keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LayerNorms {
    /// Layer.
    pub layer: usize,
    /// Root mean square of the keys.
    pub k_rms: f32,
    /// Largest magnitude of the keys.
    pub k_max: f32,
    /// Root mean square of the values.
    pub v_rms: f32,
    /// Largest magnitude of the values.
    pub v_max: f32,
}

impl Inspection {
    /// Summarises `cartridge`, with the norms of each layer if `norms`.
    pub fn of(cartridge: &Cartridge, norms: bool) -> Inspection {
        let f = cartridge.fields();
        let first = cartridge.layers()[0]; // a cartridge has at least one layer
        Inspection {
            layout: f.layout.to_string(),
            metadata: cartridge.metadata().iter().cloned().collect(),
            n_tokens: f.n_tokens,
            first_pos: f.first_pos,
            next_pos: cartridge.next_position(),
            first_tokens: cartridge.tokens().take(16).collect(),
            trained_cells: cartridge.tokens().filter(|t| *t < 0).count(),
            n_layer: cartridge.layers().len(),
            n_head_kv: first.n_head_kv,
            head_dim_k: first.head_dim_k,
            head_dim_v: first.head_dim_v,
            file_bytes: cartridge.file_bytes(),
            payload_bytes: cartridge.payload_bytes(),
            bytes_per_token: cartridge.payload_bytes() / f.n_tokens as usize,
            mounts_without_copy: cartridge.holds_blob(),
            has_payload_hash: f.payload_hash.is_some(),
            norms: norms.then(|| (0..cartridge.layers().len()).map(|l| LayerNorms::of(cartridge, l)).collect()),
        }
    }

    /// One character per layer for keys and one for values, taller for a larger root mean
    /// square relative to the largest layer: a picture to see a flat, empty or exploding layer.
    /// `None` without norms.
    pub fn norm_picture(&self) -> Option<(String, String)> {
        let norms = self.norms.as_ref()?;
        Some((bars(norms.iter().map(|n| n.k_rms)), bars(norms.iter().map(|n| n.v_rms))))
    }
}

impl LayerNorms {
    fn of(source: &dyn KvSource, layer: usize) -> LayerNorms {
        let (k_rms, k_max) = rms_and_max(&source.values(layer, KvTensor::Keys).data);
        let (v_rms, v_max) = rms_and_max(&source.values(layer, KvTensor::Values).data);
        LayerNorms { layer, k_rms, k_max, v_rms, v_max }
    }
}

fn rms_and_max(data: &[f32]) -> (f32, f32) {
    let squares: f64 = data.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    let largest = data.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    ((squares / data.len().max(1) as f64).sqrt() as f32, largest)
}

fn bars(values: impl Iterator<Item = f32> + Clone) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let largest = values.clone().filter(|v| v.is_finite()).fold(0.0f32, f32::max);
    values
        .map(|v| match v {
            v if !v.is_finite() => '!',
            _ if largest == 0.0 => BARS[0],
            v => BARS[((v / largest * 7.0).round() as usize).min(7)],
        })
        .collect()
}
