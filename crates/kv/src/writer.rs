//! Writing a blob from its parts.

use super::{BlobError, BlobLayout, KvTensor, StateGeometry};
use std::io::{self, Write};

/// Writes a blob from positions, keys and values, streaming.
///
/// Payloads are handed over in the order of the blob: the keys of every layer, then the values
/// of every layer, each as stored ([`StateBlob::payload`](super::StateBlob::payload)). A payload
/// may come in pieces; a layer's head is written when its first byte arrives.
#[derive(Debug)]
pub struct BlobWriter<W> {
    out: W,
    layout: BlobLayout,
    /// Index into keys then values: `layer` or `n_layer + layer`.
    part: usize,
    /// Bytes of the current part still to come; `None` before its head is written.
    open: Option<usize>,
}

impl<W: Write> BlobWriter<W> {
    /// Writes the head for these positions, one per cell.
    ///
    /// # Errors
    /// `InvalidInput` wrapping a [`BlobError`] if the positions are not acceptable to
    /// [`StateBlob::parse`](super::StateBlob::parse), or the sink's error.
    pub fn new(mut out: W, geometry: &StateGeometry, positions: &[i32]) -> io::Result<BlobWriter<W>> {
        let invalid = |e: BlobError| io::Error::new(io::ErrorKind::InvalidInput, e);
        let cells = u32::try_from(positions.len()).unwrap_or(u32::MAX);
        let layout = BlobLayout::new(geometry, cells).map_err(invalid)?;
        for (cell, &position) in positions.iter().enumerate() {
            if position < 0 {
                return Err(invalid(BlobError::NegativePosition { cell, position }));
            }
            if position as u32 >= geometry.n_ctx_train() {
                return Err(invalid(BlobError::PositionLimit { cell, position, limit: geometry.n_ctx_train() }));
            }
            if cell > 0 && position <= positions[cell - 1] {
                return Err(invalid(BlobError::PositionOrder { cell, position, previous: positions[cell - 1] }));
            }
        }
        out.write_all(&layout.encode_head(positions))?;
        Ok(BlobWriter { out, layout, part: 0, open: None })
    }

    /// Where the pieces lie.
    pub fn layout(&self) -> &BlobLayout {
        &self.layout
    }

    /// Writes the next bytes of payload: one layer's keys or values, whole or in pieces, never
    /// across two of them.
    ///
    /// # Errors
    /// `InvalidInput` for bytes past the current payload's or the blob's end, or the sink's
    /// error.
    pub fn payload(&mut self, bytes: &[u8]) -> io::Result<()> {
        let n_layer = self.layout.geometry().n_layer();
        if self.part == 2 * n_layer {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the blob is complete; no payload is left to write",
            ));
        }
        let (tensor, layer) = match self.part.checked_sub(n_layer) {
            None => (KvTensor::Keys, self.part),
            Some(layer) => (KvTensor::Values, layer),
        };
        let left = match self.open {
            Some(left) => left,
            None => {
                self.out.write_all(&self.layout.encode_layer_head(layer, tensor))?;
                self.layout.payload(layer, tensor).len()
            }
        };
        let Some(left) = left.checked_sub(bytes.len()) else {
            self.open = Some(left);
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("layer {layer}'s {tensor} have {left} bytes to come, {} were given", bytes.len()),
            ));
        };
        self.out.write_all(bytes)?;
        if left == 0 {
            self.part += 1;
            self.open = None;
        } else {
            self.open = Some(left);
        }
        Ok(())
    }

    /// Gives the sink back once every payload is written.
    ///
    /// # Errors
    /// `InvalidInput` if a payload is missing, or the sink's error on flushing.
    pub fn finish(mut self) -> io::Result<W> {
        let parts = 2 * self.layout.geometry().n_layer();
        if self.part != parts {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} of {parts} payloads were written", self.part),
            ));
        }
        self.out.flush()?;
        Ok(self.out)
    }
}
