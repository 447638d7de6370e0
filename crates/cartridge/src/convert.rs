//! From one cartridge to another: layouts and element types.

use super::transcribe::{Rounding, Scratch, Source, Transcriber};
use super::write::{Plan, write};
use super::{Cartridge, CartridgeError, ConversionError, Layout, Level, Overwrite};
use kv::transpose::Order;
use kv::{KvTensor, KvType, StateGeometry, ValueLayout};
use std::path::Path;

/// Where a conversion goes.
#[derive(Debug, Clone, PartialEq)]
pub enum ConvertTo {
    /// Head-major, in these types.
    HeadMajor {
        /// Type of the keys: f16, bf16 or f32.
        type_k: KvType,
        /// Type of the values.
        type_v: KvType,
    },
    /// Native, for a context of these settings.
    Native {
        /// Type of the keys.
        type_k: KvType,
        /// Type of the values.
        type_v: KvType,
        /// From the context's flash-attention setting.
        value_layout: ValueLayout,
        /// Commit of the engine whose blob layout is written.
        engine: String,
    },
}

/// Writes `source` in another layout or other types to `path`.
///
/// Streams layer by layer; metadata are carried over. The RoPE type stays as it is. The result gets hashes of its own,
/// so the source's are checked first: what was altered is not sealed anew.
///
/// # Errors
/// [`CartridgeError::HashMismatch`],
/// [`CartridgeError::Conversion`] where a value would change and `rounding` does not allow it,
/// [`CartridgeError::Geometry`] for settings no context has, and the errors of writing.
pub fn convert(
    source: &Cartridge,
    path: impl AsRef<Path>,
    to: &ConvertTo,
    rounding: Rounding,
    overwrite: Overwrite,
) -> Result<(), CartridgeError> {
    source.validate(Level::Hash)?;
    let fields = source.fields();
    let (layout, type_k, type_v, value_layout) = match to {
        ConvertTo::HeadMajor { type_k, type_v } => (Layout::HeadMajor, *type_k, *type_v, ValueLayout::Rows),
        ConvertTo::Native { type_k, type_v, value_layout, .. } => (Layout::Native, *type_k, *type_v, *value_layout),
    };
    for (tensor, from, to) in [(KvTensor::Keys, fields.type_k, type_k), (KvTensor::Values, fields.type_v, type_v)] {
        let quantized = from.is_quantized() || to.is_quantized();
        if quantized && (from != to || layout == Layout::HeadMajor) {
            return Err(ConversionError::Quantized { tensor, from, to }.into());
        }
    }
    let geometry = StateGeometry::new(
        source.layers().to_vec(),
        type_k,
        type_v,
        value_layout,
        fields.n_tokens,
        source.next_position(),
    )?;
    let mut metadata: Vec<(String, String)> = source
        .metadata()
        .iter()
        .filter(|(k, _)| !matches!(k.as_str(), "layout" | "type_k" | "type_v" | "v_trans" | "payload_hash"))
        .cloned()
        .collect();
    let mut set = |key: &str, value: String| {
        metadata.retain(|(k, _)| k != key);
        metadata.push((key.to_owned(), value));
    };
    set("layout", layout.to_string());
    set("type_k", type_k.to_string());
    set("type_v", type_v.to_string());
    if let ConvertTo::Native { engine, .. } = to {
        set("v_trans", value_layout.v_trans().to_string());
        set("engine", engine.clone());
    }
    if rounding == Rounding::Nearest && (fields.type_k, fields.type_v) != (type_k, type_v) {
        set("rounded_from", format!("{}/{}", fields.type_k, fields.type_v));
    }
    let tokens: Vec<i32> = source.tokens().collect();
    let plan = Plan { metadata, layout, geometry, tokens, first_pos: fields.first_pos };
    let order = |tensor| match (layout, tensor) {
        (Layout::HeadMajor, _) => Order::HeadMajor,
        (Layout::Native, KvTensor::Keys) => Order::CellMajor,
        (Layout::Native, KvTensor::Values) => Order::of_values(value_layout),
    };
    let mut payloads = Transcriber {
        source: Source::File(source),
        keys: (type_k, order(KvTensor::Keys)),
        values: (type_v, order(KvTensor::Values)),
        rounding,
        first_pos: fields.first_pos,
        scratch: Scratch::default(),
    };
    write(path.as_ref(), overwrite, &plan, &mut payloads)
}
