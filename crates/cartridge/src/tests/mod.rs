//! Shared pieces of the cartridge tests. Blobs are made of numbered elements, files are read
//! back by the `safetensors` crate, and `tests/fixtures/cartridge` was written by Python.

mod container;
mod content;
mod diagnosis;
mod fixtures;
mod hostile;
mod import;
mod laws;
mod lock;

use super::*;
use kv::{BlobWriter, KvTensor, KvType, LayerGeometry, SequenceState, StateGeometry, ValueLayout};
use std::path::PathBuf;

pub(super) fn model() -> ModelLock {
    ModelLock {
        model_id: "test-model".to_owned(),
        model_arch_hash: format!("sha256:{}", "1a".repeat(32)),
        model_weights_hash: format!("sha256:{}", "2b".repeat(32)),
        tokenizer_hash: format!("sha256:{}", "3c".repeat(32)),
        n_layer: 2,
        n_head_kv: 2,
        head_dim: 4,
        n_vocab: 1000,
        n_ctx_train: 4096,
        rope_type: RopeType::Neox,
        rope_theta: 500000.0,
        rope_scaling: "none".to_owned(),
        rope_dim: 4,
        engine: "0123456789abcdef".to_owned(),
    }
}

pub(super) fn geometry(type_k: KvType, type_v: KvType, layout: ValueLayout) -> StateGeometry {
    shape(2, 2, 4, type_k, type_v, layout)
}

pub(super) fn shape(
    n_layer: usize,
    heads: u32,
    dim: u32,
    type_k: KvType,
    type_v: KvType,
    layout: ValueLayout,
) -> StateGeometry {
    StateGeometry::uniform(n_layer, heads, dim, type_k, type_v, layout, 64, 4096).unwrap()
}

/// Pseudo-random bytes.
pub(super) fn noise(seed: u64, n: usize) -> Vec<u8> {
    let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            s ^= s << 13;
            s ^= s >> 7;
            s ^= s << 17;
            (s >> 24) as u8
        })
        .collect()
}

/// A state of pseudo-random finite elements.
pub(super) fn state(g: &StateGeometry, positions: &[i32], seed: u64) -> SequenceState {
    let mut w = BlobWriter::new(Vec::new(), g, positions).unwrap();
    for tensor in [KvTensor::Keys, KvTensor::Values] {
        for layer in 0..g.n_layer() {
            let (t, row) = match tensor {
                KvTensor::Keys => (g.type_k(), g.key_row_bytes(layer)),
                KvTensor::Values => (g.type_v(), g.value_row_bytes(layer)),
            };
            let mut bytes =
                noise(seed + 2 * layer as u64 + u64::from(tensor == KvTensor::Values), row as usize * positions.len());
            make_finite(t, &mut bytes);
            w.payload(&bytes).unwrap();
        }
    }
    SequenceState::parse(w.finish().unwrap(), g).unwrap()
}

/// Clears the top exponent bit of every float (of every scale and minimum, in blocks).
fn make_finite(t: KvType, bytes: &mut [u8]) {
    let size = t.block_bytes() as usize;
    let clear: &[usize] = match t {
        KvType::F32 => &[3],
        KvType::Q4_1 | KvType::Q5_1 => &[1, 3],
        _ => &[1],
    };
    for block in bytes.chunks_exact_mut(size) {
        for at in clear {
            block[*at] &= !0x40;
        }
    }
}

pub(super) fn tokens(n: usize) -> Vec<i32> {
    (0..n as i32).map(|i| (i * 37 + 5) % 1000).collect()
}

/// A directory that lives as long as the test, and a path in it.
pub(super) struct Scratch(tempfile::TempDir);

impl Scratch {
    pub(super) fn new() -> Scratch {
        Scratch(tempfile::tempdir().unwrap())
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            std::fs::read_dir(self.0.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

pub(super) fn native(s: &SequenceState, tokens: &[i32]) -> Vec<u8> {
    let dir = Scratch::new();
    let path = dir.path("c");
    write_native(&path, &s.blob(), tokens, &model(), &Provenance::default(), Overwrite::Refuse).unwrap();
    std::fs::read(path).unwrap()
}

pub(super) fn head_major(s: &SequenceState, tokens: &[i32]) -> Vec<u8> {
    let dir = Scratch::new();
    let path = dir.path("c");
    write_head_major(&path, &s.blob(), tokens, &model(), &Provenance::default(), Overwrite::Refuse).unwrap();
    std::fs::read(path).unwrap()
}

/// A small native cartridge: 3 tokens, 2 layers, 2 heads of 4.
pub(super) fn small_native() -> Vec<u8> {
    let g = geometry(KvType::F16, KvType::F16, ValueLayout::Transposed);
    native(&state(&g, &[0, 1, 2], 1), &[9, 8, 7])
}

pub(super) fn small_head_major() -> Vec<u8> {
    let g = geometry(KvType::F16, KvType::F16, ValueLayout::Transposed);
    head_major(&state(&g, &[0, 1, 2], 1), &[9, 8, 7])
}

/// A file taken apart, to be changed and put together again without any check.
#[derive(Debug, Clone)]
pub(super) struct Parts {
    pub(super) metadata: Vec<(String, String)>,
    /// Name, dtype, shape, bytes.
    pub(super) tensors: Vec<(String, String, Vec<u64>, Vec<u8>)>,
}

impl Parts {
    /// Read by the `safetensors` crate, in the order of the file.
    pub(super) fn of(file: &[u8]) -> Parts {
        let (_, meta) = safetensors::SafeTensors::read_metadata(file).unwrap();
        let st = safetensors::SafeTensors::deserialize(file).unwrap();
        let metadata = meta.metadata().clone().unwrap_or_default().into_iter().collect();
        let tensors = meta
            .offset_keys()
            .into_iter()
            .map(|name| {
                let t = st.tensor(&name).unwrap();
                let shape = t.shape().iter().map(|d| *d as u64).collect();
                (name.clone(), format!("{}", t.dtype()), shape, t.data().to_vec())
            })
            .collect();
        Parts { metadata, tensors }
    }

    pub(super) fn set(&mut self, key: &str, value: &str) -> &mut Parts {
        self.metadata.retain(|(k, _)| k != key);
        self.metadata.push((key.to_owned(), value.to_owned()));
        self
    }

    pub(super) fn unset(&mut self, key: &str) -> &mut Parts {
        self.metadata.retain(|(k, _)| k != key);
        self
    }

    pub(super) fn tensor(&mut self, name: &str) -> &mut (String, String, Vec<u64>, Vec<u8>) {
        self.tensors.iter_mut().find(|t| t.0 == name).unwrap()
    }

    pub(super) fn file(&self) -> Vec<u8> {
        let mut object = serde_json::Map::new();
        let table: serde_json::Map<String, serde_json::Value> =
            self.metadata.iter().map(|(k, v)| (k.clone(), v.as_str().into())).collect();
        object.insert("__metadata__".into(), table.into());
        let mut data = Vec::new();
        for (name, dtype, shape, bytes) in &self.tensors {
            let at = data.len();
            data.extend(bytes);
            object.insert(
                name.clone(),
                serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": [at, data.len()]}),
            );
        }
        container(&serde_json::Value::Object(object).to_string(), &data)
    }

    /// Written by the `safetensors` crate, which sorts as the Python library does.
    pub(super) fn rewritten(&self) -> Vec<u8> {
        use safetensors::tensor::{Dtype, TensorView};
        let views = self.tensors.iter().map(|(name, dtype, shape, bytes)| {
            let dtype: Dtype = serde_json::from_value(dtype.as_str().into()).unwrap();
            let shape = shape.iter().map(|d| *d as usize).collect();
            (name.clone(), TensorView::new(dtype, shape, bytes).unwrap())
        });
        safetensors::serialize(views, Some(self.metadata.iter().cloned().collect())).unwrap()
    }

    pub(super) fn open(&self) -> Result<Cartridge, CartridgeError> {
        Cartridge::from_bytes(self.file())
    }
}

/// Length, header and data, as they are.
pub(super) fn container(json: &str, data: &[u8]) -> Vec<u8> {
    let mut out = (json.len() as u64).to_le_bytes().to_vec();
    out.extend(json.as_bytes());
    out.extend(data);
    out
}

/// Geometry of a layer of two heads.
pub(super) fn two_heads(dim: u32) -> LayerGeometry {
    LayerGeometry { n_head_kv: 2, head_dim_k: dim, head_dim_v: dim }
}
