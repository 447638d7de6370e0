//! An opened cartridge.

use super::container::{Container, Dtype, Tensor};
use super::format::{Fields, parse_integer};
use super::hash::Digest;
use super::values::{Stored, Values};
use super::{CartridgeError, KvSource, Layout};
use files::mapped::MappedFile;
use kv::transpose::{Extents, Order};
use kv::{
    BlobLayout, KvTensor, KvType, LayerGeometry, MAX_LAYERS, NonFinite, SegmentKind, StateGeometry, ValueLayout,
    first_non_finite,
};
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// How much of a cartridge [`Cartridge::validate`] looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What [`Cartridge::open`] has done: everything but the keys and values themselves.
    Structure,
    /// Also the hashes of tokens and, where the file has one, of keys and values.
    Hash,
    /// Also that every value is finite.
    Full,
}

/// The bytes of a cartridge.
#[derive(Debug)]
enum Bytes {
    Mapped(MappedFile),
    Owned(Vec<u8>),
}

impl Bytes {
    fn get(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Owned(bytes) => bytes,
        }
    }
}

/// A cartridge whose structure has been checked.
///
/// Tensors have the dtypes and shapes that the metadata announce, tile the file, and positions
/// run from `first_pos` without a gap. Keys and values are untouched bytes, mapped.
#[derive(Debug)]
pub struct Cartridge {
    bytes: Bytes,
    metadata: Vec<(String, String)>,
    fields: Fields,
    layers: Vec<LayerGeometry>,
    tokens: Range<usize>,
    keys: Vec<Range<usize>>,
    values: Vec<Range<usize>>,
    /// The state blob, where the file holds it in one piece.
    blob: Option<Range<usize>>,
    /// [`Level::Full`] has passed.
    checked: AtomicBool,
}

impl Cartridge {
    /// Maps and checks the file at `path`; reads its header, tokens, positions and, in a native
    /// file, the blob's heads.
    ///
    /// # Errors
    /// [`CartridgeError::Io`], or what is wrong with the file.
    pub fn open(path: impl AsRef<Path>) -> Result<Cartridge, CartridgeError> {
        let path = path.as_ref();
        let map = MappedFile::open(path).map_err(CartridgeError::io(path))?;
        Cartridge::parse(Bytes::Mapped(map))
    }

    /// Checks the bytes of a file.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Cartridge, CartridgeError> {
        Cartridge::parse(Bytes::Owned(bytes))
    }

    fn parse(bytes: Bytes) -> Result<Cartridge, CartridgeError> {
        let file = bytes.get();
        let container = Container::parse(file)?;
        let fields = Fields::parse(&container.metadata)?;
        let tensors = Tensors::sort_out(container.tensors)?;
        let p = fields.n_tokens;
        let tokens = expect(&tensors.tokens, Dtype::I32, &[u64::from(p)])?;
        let positions = expect(&tensors.positions, Dtype::I32, &[u64::from(p)])?;
        for (index, token) in i32s(&file[tokens.clone()]).enumerate() {
            if token < -1 {
                return Err(CartridgeError::Token { index, found: token });
            }
        }
        for (index, found) in i32s(&file[positions]).enumerate() {
            let expected = (fields.first_pos as usize + index) as i32; // Fields: below 2^31
            if found != expected {
                return Err(CartridgeError::Position { index, found, expected });
            }
        }
        let layers = tensors
            .layers
            .iter()
            .map(|(k, v)| layer_geometry(k, v, &fields))
            .collect::<Result<Vec<LayerGeometry>, CartridgeError>>()?;
        let blob = match (fields.layout, fields.value_layout) {
            (Layout::Native, Some(value_layout)) => check_glue(file, &tensors, &layers, &fields, value_layout)?,
            _ => {
                if let Some((_, tensor)) = tensors.glue.into_iter().next() {
                    return Err(CartridgeError::UnexpectedTensor(tensor.name));
                }
                None
            }
        };
        let (keys, values) = tensors.layers.into_iter().map(|(k, v)| (k.range, v.range)).unzip();
        Ok(Cartridge {
            metadata: container.metadata,
            fields,
            layers,
            tokens,
            keys,
            values,
            blob,
            bytes,
            checked: AtomicBool::new(false),
        })
    }

    /// The metadata as stored, in the order of the file.
    pub fn metadata(&self) -> &[(String, String)] {
        &self.metadata
    }

    /// The metadata that mean something, checked.
    pub fn fields(&self) -> &Fields {
        &self.fields
    }

    /// Heads of each layer, from the tensors' shapes.
    pub fn layers(&self) -> &[LayerGeometry] {
        &self.layers
    }

    /// Token ids; −1 for a cell that stands for no token.
    pub fn tokens(&self) -> impl ExactSizeIterator<Item = i32> + '_ {
        i32s(&self.bytes.get()[self.tokens.clone()])
    }

    /// Position at which decoding goes on after mounting.
    pub fn next_position(&self) -> u32 {
        self.fields.first_pos + self.fields.n_tokens // Fields: below 2^31
    }

    /// Bytes of the file.
    pub fn file_bytes(&self) -> usize {
        self.bytes.get().len()
    }

    /// Bytes of the keys and values.
    pub fn payload_bytes(&self) -> usize {
        self.keys.iter().chain(&self.values).map(ExactSizeIterator::len).sum()
    }

    /// A layer's keys or values as stored.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn payload(&self, layer: usize, tensor: KvTensor) -> &[u8] {
        let range = match tensor {
            KvTensor::Keys => &self.keys[layer],
            KvTensor::Values => &self.values[layer],
        };
        &self.bytes.get()[range.clone()]
    }

    /// Whether the file holds the engine's state blob in one piece, so that mounting copies
    /// nothing.
    pub fn holds_blob(&self) -> bool {
        self.blob.is_some()
    }

    pub(super) fn blob_bytes(&self) -> Option<&[u8]> {
        self.blob.clone().map(|range| &self.bytes.get()[range])
    }

    pub(super) fn stored(&self, layer: usize, tensor: KvTensor) -> Stored<'_> {
        let l = &self.layers[layer];
        let (kv_type, dim) = match tensor {
            KvTensor::Keys => (self.fields.type_k, l.head_dim_k),
            KvTensor::Values => (self.fields.type_v, l.head_dim_v),
        };
        let order = match (self.fields.layout, tensor, self.fields.value_layout) {
            (Layout::HeadMajor, ..) => Order::HeadMajor,
            (Layout::Native, KvTensor::Values, Some(layout)) => Order::of_values(layout),
            (Layout::Native, ..) => Order::CellMajor,
        };
        Stored {
            bytes: self.payload(layer, tensor),
            kv_type,
            order,
            extents: Extents { heads: l.n_head_kv as usize, cells: self.fields.n_tokens as usize, dim: dim as usize },
        }
    }

    /// Looks deeper than [`Cartridge::open`].
    ///
    /// Tensors are hashed and searched for non-finite values in one pass on up to eight threads.
    /// A file without `payload_hash` passes [`Level::Hash`] with its tokens checked; ask
    /// [`Cartridge::fields`] whether it has one.
    ///
    /// # Errors
    /// [`CartridgeError::HashMismatch`], [`CartridgeError::HashAlgorithm`] or
    /// [`CartridgeError::NonFinite`].
    pub fn validate(&self, level: Level) -> Result<(), CartridgeError> {
        if level == Level::Structure {
            return Ok(());
        }
        let stated = parse_digest("tokens_hash", &self.fields.tokens_hash)?;
        let computed = stated.algorithm.digest(&self.bytes.get()[self.tokens.clone()]);
        mismatch("tokens_hash", stated, Digest { bytes: computed, ..stated })?;

        let stated = match &self.fields.payload_hash {
            Some(hash) => Some(parse_digest("payload_hash", hash)?),
            None => None,
        };
        if stated.is_none() && level < Level::Full {
            return Ok(());
        }
        let parts: Vec<(usize, KvTensor)> = [KvTensor::Keys, KvTensor::Values]
            .into_iter()
            .flat_map(|tensor| (0..self.layers.len()).map(move |layer| (layer, tensor)))
            .collect();
        let look = |&(layer, tensor): &(usize, KvTensor)| {
            let digest = stated.map(|s| s.algorithm.digest(self.payload(layer, tensor)));
            let finite = if level == Level::Full { self.check_finite(layer, tensor) } else { Ok(()) };
            (digest.unwrap_or_default(), finite)
        };
        let looked = in_parallel(&parts, look);
        // A damaged file is more likely than a wrong writer, so the hash speaks first.
        if let Some(stated) = stated {
            let digests: Vec<[u8; 32]> = looked.iter().map(|(digest, _)| *digest).collect();
            mismatch("payload_hash", stated, Digest::of_tensors(stated.algorithm, &digests))?;
        }
        for (_, finite) in looked {
            finite?;
        }
        if level == Level::Full {
            self.checked.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Whether [`Cartridge::validate`] found every value finite.
    pub fn values_are_checked(&self) -> bool {
        self.checked.load(Ordering::Acquire)
    }

    fn check_finite(&self, layer: usize, tensor: KvTensor) -> Result<(), NonFinite> {
        let stored = self.stored(layer, tensor);
        match first_non_finite(stored.kv_type, stored.bytes) {
            None => Ok(()),
            Some((index, bits)) => {
                let (head, cell, channel) = stored.extents.place(stored.order, index);
                Err(NonFinite {
                    layer,
                    tensor,
                    head: head as u32,
                    channel: channel as u32,
                    position: self.fields.first_pos as i32 + cell as i32,
                    bits,
                })
            }
        }
    }

    /// The geometry a native file was captured with, with exactly as many cells as it needs.
    pub(super) fn native_geometry(&self) -> Result<Option<StateGeometry>, CartridgeError> {
        let Some(value_layout) = self.fields.value_layout else {
            return Ok(None);
        };
        Ok(Some(own_geometry(&self.layers, &self.fields, value_layout)?))
    }
}

impl KvSource for Cartridge {
    fn n_layer(&self) -> usize {
        self.layers().len()
    }

    fn positions(&self) -> Vec<i32> {
        let first = self.fields().first_pos as i32; // checked with n_tokens against i32::MAX
        (first..).take(self.fields().n_tokens as usize).collect()
    }

    fn kv_type(&self, tensor: KvTensor) -> KvType {
        match tensor {
            KvTensor::Keys => self.fields().type_k,
            KvTensor::Values => self.fields().type_v,
        }
    }

    fn values(&self, layer: usize, tensor: KvTensor) -> Values {
        self.stored(layer, tensor).decode()
    }
}

/// Tensors by their role.
struct Tensors {
    tokens: Tensor,
    positions: Tensor,
    /// Keys and values.
    layers: Vec<(Tensor, Tensor)>,
    glue: HashMap<SegmentKind, Tensor>,
}

impl Tensors {
    fn sort_out(tensors: Vec<Tensor>) -> Result<Tensors, CartridgeError> {
        let missing = |name: String| CartridgeError::MissingTensor(name);
        let (mut tokens, mut positions) = (None, None);
        let mut kv: HashMap<(usize, KvTensor), Tensor> = HashMap::new();
        let mut glue = HashMap::new();
        let mut n_layer = 0;
        for tensor in tensors {
            match Name::parse(&tensor.name) {
                Some(Name::Tokens) => tokens = Some(tensor),
                Some(Name::Positions) => positions = Some(tensor),
                Some(Name::Payload(layer, which)) => {
                    n_layer = n_layer.max(layer + 1);
                    kv.insert((layer, which), tensor);
                }
                Some(Name::Glue(kind)) => {
                    glue.insert(kind, tensor);
                }
                None => return Err(CartridgeError::UnexpectedTensor(tensor.name)),
            }
        }
        let tokens = tokens.ok_or_else(|| missing("tokens".to_owned()))?;
        let positions = positions.ok_or_else(|| missing("positions".to_owned()))?;
        let mut take =
            |layer, which| kv.remove(&(layer, which)).ok_or_else(|| missing(Name::Payload(layer, which).to_string()));
        // Layer numbers are below MAX_LAYERS, so this is bounded whatever the names say.
        let layers = (0..n_layer.max(1))
            .map(|layer| Ok((take(layer, KvTensor::Keys)?, take(layer, KvTensor::Values)?)))
            .collect::<Result<Vec<_>, CartridgeError>>()?;
        Ok(Tensors { tokens, positions, layers, glue })
    }
}

/// A tensor's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    Tokens,
    Positions,
    Payload(usize, KvTensor),
    Glue(SegmentKind),
}

impl Name {
    pub(super) fn parse(name: &str) -> Option<Name> {
        match name {
            "tokens" => return Some(Name::Tokens),
            "positions" => return Some(Name::Positions),
            "blob.head" => return Some(Name::Glue(SegmentKind::Head)),
            _ => {}
        }
        let layer_and_tensor = |s: &str| {
            let (layer, tensor) = s.split_once('.')?;
            let layer = parse_integer(layer)? as usize;
            let tensor = match tensor {
                "k" => KvTensor::Keys,
                "v" => KvTensor::Values,
                _ => return None,
            };
            (layer < MAX_LAYERS).then_some((layer, tensor))
        };
        if let Some(rest) = name.strip_prefix("layer.") {
            let (layer, tensor) = layer_and_tensor(rest)?;
            return Some(Name::Payload(layer, tensor));
        }
        let rest = name.strip_prefix("blob.layer.")?.strip_suffix(".head")?;
        let (layer, tensor) = layer_and_tensor(rest)?;
        Some(Name::Glue(SegmentKind::LayerHead { layer, tensor }))
    }

    /// The name of the tensor that holds a piece of a blob.
    pub(super) fn of_segment(kind: SegmentKind) -> Name {
        match kind {
            SegmentKind::Payload { layer, tensor } => Name::Payload(layer, tensor),
            _ => Name::Glue(kind),
        }
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let letter = |t: &KvTensor| match t {
            KvTensor::Keys => 'k',
            KvTensor::Values => 'v',
        };
        match self {
            Name::Tokens => f.write_str("tokens"),
            Name::Positions => f.write_str("positions"),
            Name::Payload(layer, t) | Name::Glue(SegmentKind::Payload { layer, tensor: t }) => {
                write!(f, "layer.{layer}.{}", letter(t))
            }
            Name::Glue(SegmentKind::Head) => f.write_str("blob.head"),
            Name::Glue(SegmentKind::LayerHead { layer, tensor }) => {
                write!(f, "blob.layer.{layer}.{}.head", letter(tensor))
            }
        }
    }
}

/// dtype of a payload of this type in the file.
pub(super) fn dtype_of(kv_type: KvType) -> Dtype {
    match kv_type {
        KvType::F32 => Dtype::F32,
        KvType::F16 => Dtype::F16,
        KvType::Bf16 => Dtype::Bf16,
        _ => Dtype::U8,
    }
}

fn describe(dtype: Dtype, shape: &[u64]) -> String {
    format!("{} {shape:?}", dtype.name())
}

fn expect(tensor: &Tensor, dtype: Dtype, shape: &[u64]) -> Result<Range<usize>, CartridgeError> {
    if tensor.dtype == dtype && tensor.shape == shape {
        return Ok(tensor.range.clone());
    }
    Err(CartridgeError::Shape {
        tensor: tensor.name.clone(),
        found: describe(tensor.dtype, &tensor.shape),
        expected: describe(dtype, shape),
    })
}

/// Heads of a layer from the shapes of its tensors, which must be what the metadata announce.
fn layer_geometry(k: &Tensor, v: &Tensor, fields: &Fields) -> Result<LayerGeometry, CartridgeError> {
    let p = u64::from(fields.n_tokens);
    let heads = |t: &Tensor, kv_type: KvType, order: Order| -> Result<(u32, u32), CartridgeError> {
        let wrong = |expected: &str| CartridgeError::Shape {
            tensor: t.name.clone(),
            found: describe(t.dtype, &t.shape),
            expected: format!("{} {expected} with p = {p} and {kv_type} elements", dtype_of(kv_type).name()),
        };
        let (expected, heads, cells, width) = match (order, t.shape.as_slice()) {
            (Order::HeadMajor, &[h, c, d]) => ("[n_head_kv, p, head_dim]", h, c, d),
            (Order::CellMajor, &[c, h, d]) => ("[p, n_head_kv, head_dim]", h, c, d),
            (Order::ChannelMajor, &[h, d, c]) => ("[n_head_kv, head_dim, p]", h, c, d),
            (Order::HeadMajor, _) => return Err(wrong("[n_head_kv, p, head_dim]")),
            (Order::CellMajor, _) => return Err(wrong("[p, n_head_kv, head_dim]")),
            (Order::ChannelMajor, _) => return Err(wrong("[n_head_kv, head_dim, p]")),
        };
        let block_bytes = u64::from(kv_type.block_bytes());
        let dim = if !kv_type.is_quantized() {
            Some(width)
        } else if width.is_multiple_of(block_bytes) {
            (width / block_bytes).checked_mul(u64::from(kv_type.block_len()))
        } else {
            None
        };
        match (u32::try_from(heads), dim.map(u32::try_from)) {
            (Ok(heads), Some(Ok(dim))) if t.dtype == dtype_of(kv_type) && cells == p => Ok((heads, dim)),
            _ => Err(wrong(expected)),
        }
    };
    let (order_k, order_v) = match fields.value_layout {
        None => (Order::HeadMajor, Order::HeadMajor),
        Some(layout) => (Order::CellMajor, Order::of_values(layout)),
    };
    let (n_head_kv, head_dim_k) = heads(k, fields.type_k, order_k)?;
    let (heads_v, head_dim_v) = heads(v, fields.type_v, order_v)?;
    if heads_v != n_head_kv {
        return Err(CartridgeError::Shape {
            tensor: v.name.clone(),
            found: format!("{heads_v} heads"),
            expected: format!("{n_head_kv} heads like {:?}", k.name),
        });
    }
    if n_head_kv == 0 || head_dim_k == 0 || head_dim_v == 0 {
        return Err(CartridgeError::Shape {
            tensor: format!("{}/{}", k.name, v.name),
            found: "empty".to_owned(),
            expected: "at least one head of at least one element".to_owned(),
        });
    }
    Ok(LayerGeometry { n_head_kv, head_dim_k, head_dim_v })
}

fn own_geometry(
    layers: &[LayerGeometry],
    fields: &Fields,
    value_layout: ValueLayout,
) -> Result<StateGeometry, CartridgeError> {
    Ok(StateGeometry::new(
        layers.to_vec(),
        fields.type_k,
        fields.type_v,
        value_layout,
        fields.n_tokens,
        fields.first_pos + fields.n_tokens, // Fields: below 2^31
    )?)
}

/// Checks the pieces of the blob that stand between the rows, and finds the blob if the file
/// holds it in one piece.
fn check_glue(
    file: &[u8],
    tensors: &Tensors,
    layers: &[LayerGeometry],
    fields: &Fields,
    value_layout: ValueLayout,
) -> Result<Option<Range<usize>>, CartridgeError> {
    let geometry = own_geometry(layers, fields, value_layout)?;
    if tensors.glue.is_empty() {
        return Ok(None);
    }
    let layout = BlobLayout::new(&geometry, fields.n_tokens)?;
    let first = fields.first_pos as i32;
    let positions: Vec<i32> = (first..).take(fields.n_tokens as usize).collect();
    let mut start = None;
    let mut contiguous = true;
    let mut matched = 0;
    for segment in layout.segments() {
        let tensor = match segment.kind {
            SegmentKind::Payload { layer, tensor: KvTensor::Keys } => &tensors.layers[layer].0,
            SegmentKind::Payload { layer, tensor: KvTensor::Values } => &tensors.layers[layer].1,
            glue => {
                let name = Name::Glue(glue);
                let tensor = tensors.glue.get(&glue).ok_or_else(|| CartridgeError::MissingTensor(name.to_string()))?;
                let range = expect(tensor, Dtype::U8, &[segment.range.len() as u64])?;
                let expected = match glue {
                    SegmentKind::LayerHead { layer, tensor } => layout.encode_layer_head(layer, tensor).to_vec(),
                    _ => layout.encode_head(&positions),
                };
                if let Some(at) = file[range].iter().zip(&expected).position(|(a, b)| a != b) {
                    return Err(CartridgeError::Glue { tensor: tensor.name.clone(), at });
                }
                matched += 1;
                tensor
            }
        };
        let begin = *start.get_or_insert(tensor.range.start);
        contiguous &= tensor.range.start == begin + segment.range.start;
    }
    if matched != tensors.glue.len() {
        // Every piece of this geometry was found, so another belongs to a layer that is not here.
        let extra = tensors.glue.iter().find(|(kind, _)| match kind {
            SegmentKind::LayerHead { layer, .. } => *layer >= layers.len(),
            _ => false,
        });
        let name = extra.map_or_else(|| "blob.*".to_owned(), |(_, t)| t.name.clone());
        return Err(CartridgeError::UnexpectedTensor(name));
    }
    Ok(match (contiguous, start) {
        (true, Some(start)) => Some(start..start + layout.len()),
        _ => None,
    })
}

fn i32s(bytes: &[u8]) -> impl ExactSizeIterator<Item = i32> + '_ {
    bytes.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b))
}

fn parse_digest(field: &'static str, stated: &str) -> Result<Digest, CartridgeError> {
    Digest::from_str(stated)
        .map_err(|()| CartridgeError::HashAlgorithm { field, stated: stated.chars().take(80).collect() })
}

fn mismatch(field: &'static str, stated: Digest, computed: Digest) -> Result<(), CartridgeError> {
    if stated == computed {
        return Ok(());
    }
    Err(CartridgeError::HashMismatch { field, stated: stated.to_string(), computed: computed.to_string() })
}

/// Maps `items` on up to eight threads, in order. Payloads of a few hundred KiB, where starting
/// a thread costs more than it saves, are rare enough not to be told apart.
fn in_parallel<T: Sync, R: Send>(items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = thread::available_parallelism().map_or(1, |n| n.get().min(8)).min(items.len());
    if threads <= 1 {
        return items.iter().map(f).collect();
    }
    let f = &f;
    let chunk = items.len().div_ceil(threads);
    let parts = items.chunks(chunk).map(|part| move || part.iter().map(f).collect::<Vec<R>>());
    files::threads::in_parallel(parts).into_iter().flatten().collect()
}
