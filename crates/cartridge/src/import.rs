//! Keys and values trained elsewhere.

use super::container::{Container, Dtype, Tensor};
use super::write::{Payloads, Plan, base_metadata, write};
use super::{CartridgeError, Layout, ModelLock, Overwrite, Provenance, RopeType};
use files::mapped::MappedFile;
use kv::transpose::{Extents, Order};
use kv::{KvTensor, KvType, LayerGeometry, NonFinite, StateGeometry, ValueLayout, first_non_finite};
use std::collections::HashMap;
use std::path::Path;

/// Names of the parts, before `.{layer}`; the frozen part of a cache comes first.
const PARTS: [(&str, KvTensor, Part); 4] = [
    ("frozen_keys", KvTensor::Keys, Part::Frozen),
    ("trainable_keys", KvTensor::Keys, Part::Trainable),
    ("frozen_values", KvTensor::Values, Part::Frozen),
    ("trainable_values", KvTensor::Values, Part::Trainable),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Part {
    Frozen,
    Trainable,
}

/// Joins the parts of a trained KV cache into a head-major cartridge.
///
/// `parts` is a safetensors file with `trainable_keys.{l}` and `trainable_values.{l}` for each
/// layer and, optionally, `frozen_keys.{l}` and `frozen_values.{l}` (absent or empty where no
/// token was frozen), each `[1, n_head_kv, tokens, head_dim]` or without the leading 1, in F16,
/// BF16 or F32: the state dictionary of the cache that HazyResearch's `cartridges` trains, saved
/// as safetensors. Frozen tokens come before trained ones. Keys must be post-RoPE at positions
/// 0, 1, … in HuggingFace's rotate-half order.
///
/// `tokens` are the ids the cache was initialised from, or `None` where there are none.
///
/// # Errors
/// [`CartridgeError::Container`] (a pickle is refused by its first bytes),
/// [`CartridgeError::Import`] for parts that do not fit each other or the model,
/// [`CartridgeError::NonFinite`], and the errors of writing.
pub fn import_parts(
    parts: impl AsRef<Path>,
    tokens: Option<&[i32]>,
    model: &ModelLock,
    provenance: &Provenance,
    path: impl AsRef<Path>,
    overwrite: Overwrite,
) -> Result<(), CartridgeError> {
    let parts = parts.as_ref();
    let file = MappedFile::open(parts).map_err(CartridgeError::io(parts))?;
    let container = Container::parse(&file)?;
    let cache = Cache::sort_out(container.tensors, model)?;
    let p = cache.cells;
    // Before anything of that size is made: a file with holes claims as many cells as it likes.
    let cells = u32::try_from(p)
        .ok()
        .filter(|&p| p > 0 && p <= model.n_ctx_train)
        .ok_or_else(|| import(format!("{p} cells; the model's n_ctx_train is {}", model.n_ctx_train)))?;
    let tokens = match tokens {
        Some(tokens) if tokens.len() as u64 != p => {
            return Err(import(format!("{} tokens were given for {p} cells", tokens.len())));
        }
        Some(tokens) => tokens.to_vec(),
        None => vec![-1; cells as usize],
    };
    if let Some(index) = tokens.iter().position(|t| *t < -1) {
        return Err(CartridgeError::Token { index, found: tokens[index] });
    }
    let layer = LayerGeometry { n_head_kv: model.n_head_kv, head_dim_k: model.head_dim, head_dim_v: model.head_dim };
    let geometry = StateGeometry::new(
        vec![layer; cache.layers],
        cache.type_k,
        cache.type_v,
        ValueLayout::Rows,
        cells,
        model.n_ctx_train,
    )?;
    let mut metadata = base_metadata(model, provenance, Layout::HeadMajor, &geometry, tokens.len(), 0);
    for (key, value) in &mut metadata {
        if key == "rope_type" {
            *value = RopeType::Neox.to_string();
        }
    }
    let plan = Plan { metadata, layout: Layout::HeadMajor, geometry, tokens, first_pos: 0 };
    let extents = Extents { heads: model.n_head_kv as usize, cells: cells as usize, dim: model.head_dim as usize };
    write(path.as_ref(), overwrite, &plan, &mut Joined { cache: &cache, file: &file, extents, joined: Vec::new() })
}

/// Frozen and trained cells of each head, one behind the other.
struct Joined<'a> {
    cache: &'a Cache,
    file: &'a [u8],
    extents: Extents,
    joined: Vec<u8>,
}

impl Joined<'_> {
    fn join(&mut self, layer: usize, tensor: KvTensor) -> &[u8] {
        let file = self.file;
        let part = |part| self.cache.tensors.get(&(layer, tensor, part)).map(|t| &file[t.range.clone()]);
        let trainable = part(Part::Trainable).unwrap_or_default();
        let Some(frozen) = part(Part::Frozen).filter(|f| !f.is_empty()) else {
            return trainable;
        };
        self.joined.clear();
        for head in 0..self.extents.heads {
            for part in [frozen, trainable] {
                let bytes = part.len() / self.extents.heads;
                self.joined.extend_from_slice(&part[head * bytes..(head + 1) * bytes]);
            }
        }
        &self.joined
    }
}

impl Payloads for Joined<'_> {
    /// Refused here and not only when the cartridge is mounted: a training that diverged is noticed where it is brought
    /// in.
    fn payload(&mut self, layer: usize, tensor: KvTensor) -> Result<&[u8], CartridgeError> {
        let (extents, kv_type) = (self.extents, self.cache.kv_type(tensor));
        let bytes = self.join(layer, tensor);
        let Some((index, bits)) = first_non_finite(kv_type, bytes) else { return Ok(bytes) };
        let (head, cell, channel) = extents.place(Order::HeadMajor, index);
        let (head, channel, position) = (head as u32, channel as u32, cell as i32);
        Err(NonFinite { layer, tensor, head, channel, position, bits }.into())
    }
}

struct Cache {
    tensors: HashMap<(usize, KvTensor, Part), Tensor>,
    layers: usize,
    cells: u64,
    type_k: KvType,
    type_v: KvType,
}

impl Cache {
    fn kv_type(&self, tensor: KvTensor) -> KvType {
        match tensor {
            KvTensor::Keys => self.type_k,
            KvTensor::Values => self.type_v,
        }
    }

    fn sort_out(list: Vec<Tensor>, model: &ModelLock) -> Result<Cache, CartridgeError> {
        let n_layer = model.n_layer as usize;
        let mut tensors = HashMap::new();
        let mut types: HashMap<KvTensor, KvType> = HashMap::new();
        for t in list {
            let (stem, layer) = t.name.rsplit_once('.').unwrap_or((&t.name, ""));
            let known = PARTS.iter().find(|(name, ..)| *name == stem);
            let layer = super::format::parse_integer(layer);
            let (Some(&(_, tensor, part)), Some(layer)) = (known, layer) else {
                return Err(CartridgeError::UnexpectedTensor(t.name));
            };
            let layer = layer as usize;
            if layer >= n_layer {
                return Err(import(format!("tensor {:?}, but the model has {n_layer} layers", t.name)));
            }
            let kv_type = match t.dtype {
                Dtype::F16 => KvType::F16,
                Dtype::Bf16 => KvType::Bf16,
                Dtype::F32 => KvType::F32,
                Dtype::U8 | Dtype::I32 => {
                    return Err(import(format!("tensor {:?} is {}, not a float", t.name, t.dtype.name())));
                }
            };
            let first = *types.entry(tensor).or_insert(kv_type);
            if first != kv_type {
                return Err(import(format!("tensor {:?} is {kv_type}, other {tensor} are {first}", t.name)));
            }
            let shape = without_batch(&t.shape);
            let fits = matches!(shape, [h, _, d]
                if *h == u64::from(model.n_head_kv) && *d == u64::from(model.head_dim));
            if !fits {
                return Err(import(format!(
                    "tensor {:?} has shape {:?}; the model needs [1, {} KV heads, tokens, {}]",
                    t.name, t.shape, model.n_head_kv, model.head_dim
                )));
            }
            tensors.insert((layer, tensor, part), t);
        }
        let mut cells = None;
        for layer in 0..n_layer {
            for tensor in [KvTensor::Keys, KvTensor::Values] {
                let count = |part| tensors.get(&(layer, tensor, part)).map(|t: &Tensor| without_batch(&t.shape)[1]);
                let Some(trainable) = count(Part::Trainable) else {
                    return Err(import(format!("layer {layer} has no trainable {tensor}")));
                };
                let here = trainable.checked_add(count(Part::Frozen).unwrap_or(0));
                let here = here.ok_or_else(|| import(format!("layer {layer}: too many {tensor}")))?;
                let all = *cells.get_or_insert(here);
                if all != here {
                    return Err(import(format!("layer {layer} has {here} {tensor}, others have {all}")));
                }
            }
        }
        Ok(Cache {
            tensors,
            layers: n_layer,
            cells: cells.unwrap_or(0),
            type_k: types.get(&KvTensor::Keys).copied().unwrap_or(KvType::F16),
            type_v: types.get(&KvTensor::Values).copied().unwrap_or(KvType::F16),
        })
    }
}

/// The shape without a leading batch of one.
fn without_batch(shape: &[u64]) -> &[u64] {
    match shape {
        [1, rest @ ..] if rest.len() == 3 => rest,
        _ => shape,
    }
}

fn import(message: String) -> CartridgeError {
    CartridgeError::Import(message)
}
