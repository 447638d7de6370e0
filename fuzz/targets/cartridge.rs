//! Any bytes as a cartridge: an error, or a file whose parts can be read, and whose blob is a blob.
#![no_main]

use kv::KvTensor;
use cartridge::{Cartridge, Inspection, Level};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(cartridge) = Cartridge::from_bytes(bytes.to_vec()) else { return };
    assert!(cartridge.payload_bytes() <= bytes.len());
    assert_eq!(cartridge.tokens().len() as u32, cartridge.fields().n_tokens);
    for layer in 0..cartridge.layers().len() {
        let _ = (cartridge.payload(layer, KvTensor::Keys), cartridge.payload(layer, KvTensor::Values));
    }
    let _ = cartridge.validate(Level::Full);
    let _ = Inspection::of(&cartridge, true);
    if let Ok(state) = cartridge.to_blob() {
        assert_eq!(state.blob().cells(), cartridge.fields().n_tokens);
    }
});
