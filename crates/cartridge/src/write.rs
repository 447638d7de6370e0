//! Writing cartridges.

use super::file::{Name, dtype_of};
use super::hash::{Digest, HashAlgorithm, tokens_hash};
use super::transcribe::{Rounding, Scratch, Source, Transcriber};
use super::{AtomicFile, Cartridge, CartridgeError, FORMAT, HEADER_LIMIT, Layout, ModelLock, Overwrite};
use kv::transpose::Order;
use kv::{BlobLayout, KvTensor, KvType, SegmentKind, StateBlob, StateGeometry, ValueLayout};
use std::io::{self, Cursor, Seek, SeekFrom, Write};
use std::path::Path;

/// Metadata that say where a cartridge comes from; free text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Provenance {
    /// Program and version; this program's if absent.
    pub created_by: Option<String>,
    /// Title for people.
    pub title: Option<String>,
    /// Where the text comes from.
    pub source: Option<String>,
}

/// The data section starts at a multiple of this, for readers that map the file.
const DATA_ALIGNMENT: usize = 64;

/// Writes a captured state as a native cartridge that holds the blob in one piece.
///
/// `tokens` are the ids of the state's cells. The state's bytes are streamed to the file; no
/// second copy is made.
///
/// # Errors
/// [`CartridgeError::TokenCount`], [`CartridgeError::NotContiguous`],
/// [`CartridgeError::Token`], [`CartridgeError::Exists`] or [`CartridgeError::Io`].
pub fn write_native(
    path: impl AsRef<Path>,
    state: &StateBlob<'_>,
    tokens: &[i32],
    model: &ModelLock,
    provenance: &Provenance,
    overwrite: Overwrite,
) -> Result<(), CartridgeError> {
    let plan = native_plan(state, tokens, model, provenance)?;
    write(path.as_ref(), overwrite, &plan, &mut AsStored(state))
}

fn native_plan(
    state: &StateBlob<'_>,
    tokens: &[i32],
    model: &ModelLock,
    provenance: &Provenance,
) -> Result<Plan, CartridgeError> {
    let first_pos = check_state(state, tokens)?;
    let geometry = state.geometry();
    let mut metadata = base_metadata(model, provenance, Layout::Native, geometry, tokens.len(), first_pos);
    metadata.push(("v_trans".to_owned(), geometry.value_layout().v_trans().to_string()));
    metadata.push(("engine".to_owned(), model.engine.clone()));
    Ok(Plan { metadata, layout: Layout::Native, geometry: geometry.clone(), tokens: tokens.to_vec(), first_pos })
}

impl Cartridge {
    /// A native cartridge in memory, byte for byte what [`write_native`] puts into a file; the blob is copied once.
    ///
    /// # Errors
    /// As [`write_native`], but for files.
    pub fn from_blob(
        state: &StateBlob<'_>,
        tokens: &[i32],
        model: &ModelLock,
        provenance: &Provenance,
    ) -> Result<Cartridge, CartridgeError> {
        let plan = native_plan(state, tokens, model, provenance)?;
        let mut file = Cursor::new(Vec::new());
        write_to(
            &mut file,
            &|source| CartridgeError::Io { path: "memory".into(), source },
            &plan,
            &mut AsStored(state),
        )?;
        Cartridge::from_bytes(file.into_inner())
    }
}

/// Writes a captured state as a head-major cartridge, in the state's own types.
///
/// # Errors
/// As [`write_native`], and [`CartridgeError::Conversion`] for quantized types, which have no
/// head-major form.
pub fn write_head_major(
    path: impl AsRef<Path>,
    state: &StateBlob<'_>,
    tokens: &[i32],
    model: &ModelLock,
    provenance: &Provenance,
    overwrite: Overwrite,
) -> Result<(), CartridgeError> {
    let first_pos = check_state(state, tokens)?;
    let geometry = state.geometry();
    for (tensor, from) in [(KvTensor::Keys, geometry.type_k()), (KvTensor::Values, geometry.type_v())] {
        if from.is_quantized() {
            return Err(super::ConversionError::Quantized { tensor, from, to: KvType::F32 }.into());
        }
    }
    let metadata = base_metadata(model, provenance, Layout::HeadMajor, geometry, tokens.len(), first_pos);
    let plan =
        Plan { metadata, layout: Layout::HeadMajor, geometry: geometry.clone(), tokens: tokens.to_vec(), first_pos };
    let mut payloads = Transcriber {
        source: Source::State(state),
        keys: (geometry.type_k(), Order::HeadMajor),
        values: (geometry.type_v(), Order::HeadMajor),
        rounding: Rounding::Exact,
        first_pos,
        scratch: Scratch::default(),
    };
    write(path.as_ref(), overwrite, &plan, &mut payloads)
}

impl Payloads for Transcriber<'_> {
    fn payload(&mut self, layer: usize, tensor: KvTensor) -> Result<&[u8], CartridgeError> {
        Ok(self.transcribe(layer, tensor, None)?)
    }
}

/// The payloads of a state, as they are.
struct AsStored<'a, 'b>(&'a StateBlob<'b>);

impl Payloads for AsStored<'_, '_> {
    fn payload(&mut self, layer: usize, tensor: KvTensor) -> Result<&[u8], CartridgeError> {
        Ok(self.0.payload(layer, tensor))
    }
}

fn check_state(state: &StateBlob<'_>, tokens: &[i32]) -> Result<u32, CartridgeError> {
    if tokens.len() != state.cells() as usize {
        return Err(CartridgeError::TokenCount { tokens: tokens.len(), cells: state.cells() });
    }
    if !state.is_contiguous() {
        let mut positions = state.positions();
        let mut after = positions.next().unwrap_or(0); // never empty
        for p in positions {
            if p != after + 1 {
                break;
            }
            after = p;
        }
        return Err(CartridgeError::NotContiguous { after });
    }
    if let Some(index) = tokens.iter().position(|t| *t < -1) {
        return Err(CartridgeError::Token { index, found: tokens[index] });
    }
    Ok(state.first_position() as u32) // StateBlob: not negative
}

/// The metadata of both layouts; `payload_hash` is added while writing.
pub(super) fn base_metadata(
    model: &ModelLock,
    provenance: &Provenance,
    layout: Layout,
    geometry: &StateGeometry,
    n_tokens: usize,
    first_pos: u32,
) -> Vec<(String, String)> {
    let own = concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION"));
    let mut metadata: Vec<(String, String)> = [
        ("format", FORMAT.to_owned()),
        ("layout", layout.to_string()),
        ("model_id", model.model_id.clone()),
        ("model_arch_hash", model.model_arch_hash.clone()),
        ("model_weights_hash", model.model_weights_hash.clone()),
        ("tokenizer_hash", model.tokenizer_hash.clone()),
        ("n_tokens", n_tokens.to_string()),
        ("first_pos", first_pos.to_string()),
        ("type_k", geometry.type_k().to_string()),
        ("type_v", geometry.type_v().to_string()),
        ("rope_type", model.rope_type.to_string()),
        ("rope_theta", model.rope_theta.to_string()),
        ("rope_scaling", model.rope_scaling.clone()),
        ("rope_dim", model.rope_dim.to_string()),
        ("created_by", provenance.created_by.clone().unwrap_or_else(|| own.to_owned())),
    ]
    .into_iter()
    .map(|(k, v)| (k.to_owned(), v))
    .collect();
    for (key, value) in [("title", &provenance.title), ("source", &provenance.source)] {
        if let Some(value) = value {
            metadata.push((key.to_owned(), value.clone()));
        }
    }
    metadata
}

/// What to write, but for keys and values.
pub(super) struct Plan {
    pub(super) metadata: Vec<(String, String)>,
    pub(super) layout: Layout,
    /// Shapes and types; the value layout counts in native files only.
    pub(super) geometry: StateGeometry,
    pub(super) tokens: Vec<i32>,
    pub(super) first_pos: u32,
}

/// Gives a layer's keys or values in the form they are to be written in.
pub(super) trait Payloads {
    fn payload(&mut self, layer: usize, tensor: KvTensor) -> Result<&[u8], CartridgeError>;
}

/// A piece of the data section.
enum Piece {
    Bytes(Vec<u8>),
    Payload(usize, KvTensor),
}

/// Writes a cartridge: tokens and positions, then keys and values in the order of the blob.
pub(super) fn write(
    path: &Path,
    overwrite: Overwrite,
    plan: &Plan,
    payloads: &mut dyn Payloads,
) -> Result<(), CartridgeError> {
    let mut file = AtomicFile::create(path, overwrite)?;
    write_to(&mut file, &|source| CartridgeError::Io { path: path.to_owned(), source }, plan, payloads)?;
    Ok(file.commit()?)
}

/// The bytes of the file. `io` says where writing failed.
fn write_to(
    file: &mut (impl Write + Seek),
    io: &dyn Fn(io::Error) -> CartridgeError,
    plan: &Plan,
    payloads: &mut dyn Payloads,
) -> Result<(), CartridgeError> {
    let pieces = lay_out(plan)?;
    let mut metadata = plan.metadata.clone();
    metadata.retain(|(k, _)| k != "tokens_hash" && k != "payload_hash");
    metadata.push(("tokens_hash".to_owned(), tokens_hash(&plan.tokens).to_string()));
    let algorithm = HashAlgorithm::Blake3;
    // The hash is known when everything is written; until then its place is held by zeros.
    let unknown = Digest { algorithm, bytes: [0; 32] };
    let header_with = |hash: Digest| {
        let mut metadata = metadata.clone();
        metadata.push(("payload_hash".to_owned(), hash.to_string()));
        header(&metadata, &pieces, plan)
    };
    let placeholder = header_with(unknown);
    if placeholder.len() as u64 > HEADER_LIMIT {
        return Err(CartridgeError::MetadataTooLong { len: placeholder.len(), limit: HEADER_LIMIT });
    }
    let mut digests = Vec::new();
    file.write_all(&placeholder).map_err(io)?;
    for (_, piece) in &pieces {
        match piece {
            Piece::Bytes(bytes) => file.write_all(bytes).map_err(io)?,
            Piece::Payload(layer, tensor) => {
                let bytes = payloads.payload(*layer, *tensor)?;
                debug_assert_eq!(bytes.len(), payload_len(plan, *layer, *tensor));
                digests.push(algorithm.digest(bytes));
                file.write_all(bytes).map_err(io)?;
            }
        }
    }
    let header = header_with(Digest::of_tensors(algorithm, &digests));
    debug_assert_eq!(header.len(), placeholder.len());
    file.seek(SeekFrom::Start(0)).map_err(io)?;
    file.write_all(&header).map_err(io)
}

fn lay_out(plan: &Plan) -> Result<Vec<(Name, Piece)>, CartridgeError> {
    let le = |values: &mut dyn Iterator<Item = i32>| values.flat_map(i32::to_le_bytes).collect::<Vec<u8>>();
    let first = plan.first_pos as i32; // from a checked state or Fields: below 2^31
    let positions: Vec<i32> = (first..).take(plan.tokens.len()).collect();
    let mut pieces = vec![
        (Name::Tokens, Piece::Bytes(le(&mut plan.tokens.iter().copied()))),
        (Name::Positions, Piece::Bytes(le(&mut positions.iter().copied()))),
    ];
    let layout = BlobLayout::new(&plan.geometry, plan.tokens.len() as u32)?;
    for segment in layout.segments() {
        let piece = match segment.kind {
            SegmentKind::Payload { layer, tensor } => Piece::Payload(layer, tensor),
            _ if plan.layout == Layout::HeadMajor => continue,
            SegmentKind::Head => Piece::Bytes(layout.encode_head(&positions)),
            SegmentKind::LayerHead { layer, tensor } => Piece::Bytes(layout.encode_layer_head(layer, tensor).to_vec()),
        };
        pieces.push((Name::of_segment(segment.kind), piece));
    }
    Ok(pieces)
}

fn payload_len(plan: &Plan, layer: usize, tensor: KvTensor) -> usize {
    let row = match tensor {
        KvTensor::Keys => plan.geometry.key_row_bytes(layer),
        KvTensor::Values => plan.geometry.value_row_bytes(layer),
    };
    row as usize * plan.tokens.len() // BlobLayout::new has checked the sum
}

/// dtype and shape of a layer's keys or values.
fn payload_form(plan: &Plan, layer: usize, tensor: KvTensor) -> (&'static str, [usize; 3]) {
    let g = &plan.geometry;
    let l = &g.layers()[layer];
    let (kv_type, dim) = match tensor {
        KvTensor::Keys => (g.type_k(), l.head_dim_k),
        KvTensor::Values => (g.type_v(), l.head_dim_v),
    };
    let (heads, p) = (l.n_head_kv as usize, plan.tokens.len());
    let width = if kv_type.is_quantized() {
        (dim / kv_type.block_len() * kv_type.block_bytes()) as usize
    } else {
        dim as usize
    };
    let shape = match (plan.layout, tensor, g.value_layout()) {
        (Layout::HeadMajor, ..) => [heads, p, width],
        (Layout::Native, KvTensor::Values, ValueLayout::Transposed) => [heads, width, p],
        (Layout::Native, ..) => [p, heads, width],
    };
    (dtype_of(kv_type).name(), shape)
}

/// Length, JSON and padding.
fn header(metadata: &[(String, String)], pieces: &[(Name, Piece)], plan: &Plan) -> Vec<u8> {
    let mut object = serde_json::Map::new();
    let table: serde_json::Map<String, serde_json::Value> =
        metadata.iter().map(|(k, v)| (k.clone(), v.as_str().into())).collect();
    object.insert("__metadata__".to_owned(), table.into());
    let mut at = 0usize;
    for (name, piece) in pieces {
        let (dtype, shape, len) = match piece {
            Piece::Bytes(bytes) => match name {
                Name::Tokens | Name::Positions => ("I32", vec![plan.tokens.len()], bytes.len()),
                _ => ("U8", vec![bytes.len()], bytes.len()),
            },
            Piece::Payload(layer, tensor) => {
                let (dtype, shape) = payload_form(plan, *layer, *tensor);
                (dtype, shape.to_vec(), payload_len(plan, *layer, *tensor))
            }
        };
        let entry = serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": [at, at + len]});
        object.insert(name.to_string(), entry);
        at += len;
    }
    let json = serde_json::Value::Object(object).to_string();
    let mut out = Vec::with_capacity(json.len() + 2 * DATA_ALIGNMENT);
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(json.as_bytes());
    out.resize(out.len().next_multiple_of(DATA_ALIGNMENT), b' ');
    let length = (out.len() - 8) as u64;
    out[..8].copy_from_slice(&length.to_le_bytes());
    out
}
