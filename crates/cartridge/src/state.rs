//! A cartridge as a state that a context restores.

use super::error::blob_error;
use super::transcribe::{Rounding, Scratch, Source, Transcriber, pair_map};
use super::{Cartridge, CartridgeError, ConversionError, KvSource, Layout, Level, RopeType};
use kv::transpose::Order;
use kv::{BlobError, BlobLayout, BlobWriter, KvTensor, LayerGeometry, SequenceState, StateBlob, StateGeometry};

impl Cartridge {
    /// The state to restore into a context of this geometry, for a model of this RoPE type.
    ///
    /// A native file must be of the context's settings; where it holds the blob in one piece
    /// ([`Cartridge::holds_blob`]) that piece is borrowed, else it is put together. A head-major
    /// file is rearranged and, where types differ, converted exactly, or rounded if `rounding`
    /// says so. Check [`Cartridge::lock_check`] first: geometry alone does not tell models apart.
    ///
    /// # Errors
    /// [`CartridgeError::NativeSetting`], [`CartridgeError::Conversion`], or
    /// [`CartridgeError::Blob`] where the state does not fit the context.
    pub fn state(
        &self,
        geometry: &StateGeometry,
        rope_type: RopeType,
        rounding: Rounding,
    ) -> Result<CartridgeState<'_>, CartridgeError> {
        self.check_shape(geometry)?;
        if self.fields().layout == Layout::HeadMajor {
            let state = to_state(self, geometry, rope_type, rounding)?;
            return Ok(CartridgeState::Assembled(state));
        }
        self.check_settings(geometry)?;
        if rope_type != self.fields().rope_type {
            return Err(CartridgeError::NativeSetting {
                setting: "rope_type",
                found: self.fields().rope_type.to_string(),
                expected: rope_type.to_string(),
            });
        }
        if let Some(blob) = self.blob_bytes() {
            let blob = StateBlob::parse(blob, geometry)?;
            return Ok(CartridgeState::Borrowed(blob));
        }
        let bytes = self.assemble(geometry)?;
        Ok(CartridgeState::Assembled(SequenceState::parse(bytes, geometry)?))
    }

    /// The state blob of a native file in its own geometry, for `export-blob`.
    ///
    /// A blob has no hashes: what is altered must not leave the file that could show it.
    ///
    /// # Errors
    /// [`CartridgeError::NotACartridge`] for a head-major file, whose blob depends on a context, and those of
    /// [`Cartridge::validate`].
    pub fn to_blob(&self) -> Result<CartridgeState<'_>, CartridgeError> {
        self.validate(Level::Full)?;
        let geometry = self.native_geometry()?.ok_or_else(|| {
            CartridgeError::NotACartridge(
                "a head-major file holds no state blob; convert it to native for a context's settings first".to_owned(),
            )
        })?;
        self.state(&geometry, self.fields().rope_type, Rounding::Exact)
    }

    fn check_shape(&self, geometry: &StateGeometry) -> Result<(), CartridgeError> {
        if self.layers().len() != geometry.n_layer() {
            return Err(BlobError::LayerCountMismatch {
                found: self.layers().len() as u32, // at most MAX_LAYERS
                expected: geometry.n_layer() as u32,
            }
            .into());
        }
        for (layer, (ours, theirs)) in self.layers().iter().zip(geometry.layers()).enumerate() {
            if ours != theirs {
                let name = |l: &LayerGeometry| format!("{} x {}/{}", l.n_head_kv, l.head_dim_k, l.head_dim_v);
                return Err(CartridgeError::Shape {
                    tensor: format!("layer.{layer}.k/v"),
                    found: format!("{} (KV heads x key/value head size)", name(ours)),
                    expected: format!("{} for this context", name(theirs)),
                });
            }
        }
        Ok(())
    }

    fn check_settings(&self, geometry: &StateGeometry) -> Result<(), CartridgeError> {
        let setting = |setting, found: String, expected: String| {
            if found == expected { Ok(()) } else { Err(CartridgeError::NativeSetting { setting, found, expected }) }
        };
        if let Some(layout) = self.fields().value_layout {
            let expected = geometry.value_layout().flash_attention();
            setting("flash attention", layout.flash_attention().to_owned(), expected.to_owned())?;
        }
        setting("type_k", self.fields().type_k.to_string(), geometry.type_k().to_string())?;
        setting("type_v", self.fields().type_v.to_string(), geometry.type_v().to_string())
    }

    /// Puts the blob together from the named tensors.
    fn assemble(&self, geometry: &StateGeometry) -> Result<Vec<u8>, CartridgeError> {
        let layout = BlobLayout::new(geometry, self.fields().n_tokens)?;
        let positions = KvSource::positions(self);
        let write = || -> std::io::Result<Vec<u8>> {
            let mut writer = BlobWriter::new(Vec::with_capacity(layout.len()), geometry, &positions)?;
            for tensor in [KvTensor::Keys, KvTensor::Values] {
                for layer in 0..self.layers().len() {
                    writer.payload(self.payload(layer, tensor))?;
                }
            }
            writer.finish()
        };
        write().map_err(blob_error)
    }
}

/// A state made ready by [`Cartridge::state`].
#[derive(Debug)]
pub enum CartridgeState<'a> {
    /// A piece of the file itself.
    Borrowed(StateBlob<'a>),
    /// Put together or converted.
    Assembled(SequenceState),
}

impl CartridgeState<'_> {
    /// The blob to restore.
    pub fn blob(&self) -> StateBlob<'_> {
        match self {
            CartridgeState::Borrowed(blob) => blob.clone(),
            CartridgeState::Assembled(state) => state.blob(),
        }
    }

    /// Whether nothing was copied.
    pub fn is_borrowed(&self) -> bool {
        matches!(self, CartridgeState::Borrowed(_))
    }
}

/// A head-major cartridge as a state of a context.
fn to_state(
    source: &Cartridge,
    geometry: &StateGeometry,
    rope_type: RopeType,
    rounding: Rounding,
) -> Result<SequenceState, CartridgeError> {
    let fields = source.fields();
    for (tensor, from, to) in
        [(KvTensor::Keys, fields.type_k, geometry.type_k()), (KvTensor::Values, fields.type_v, geometry.type_v())]
    {
        if to.is_quantized() {
            return Err(ConversionError::Quantized { tensor, from, to }.into());
        }
    }
    let layout = BlobLayout::new(geometry, fields.n_tokens)?;
    let positions = KvSource::positions(source);
    let mut writer = BlobWriter::new(Vec::with_capacity(layout.len()), geometry, &positions).map_err(blob_error)?;
    let mut payloads = Transcriber {
        source: Source::File(source),
        keys: (geometry.type_k(), Order::CellMajor),
        values: (geometry.type_v(), Order::of_values(geometry.value_layout())),
        rounding,
        first_pos: fields.first_pos,
        scratch: Scratch::default(),
    };
    for tensor in [KvTensor::Keys, KvTensor::Values] {
        for layer in 0..source.layers().len() {
            let head_dim = source.layers()[layer].head_dim_k;
            let map = match tensor {
                KvTensor::Keys => pair_map(fields.rope_type, rope_type, fields.rope_dim.unwrap_or(head_dim), head_dim)?,
                KvTensor::Values => None,
            };
            let payload = payloads.transcribe(layer, tensor, map.as_deref())?;
            writer.payload(payload).map_err(blob_error)?;
        }
    }
    let bytes = writer.finish().map_err(blob_error)?;
    Ok(SequenceState::parse(bytes, geometry)?)
}
