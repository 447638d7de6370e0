//! Any bytes as a GGUF header: an error, or a table whose every tensor lies inside the file.
#![no_main]

use gguf::{Gguf, Limits, ModelInfo};
use libfuzzer_sys::fuzz_target;

/// The seeds are headers; the data behind them are zeros of this length.
const DATA: usize = 160 << 10;

fuzz_target!(|header: &[u8]| {
    let mut file = header.to_vec();
    file.resize(header.len() + DATA, 0);
    let limits = Limits::default();
    let Ok(gguf) = Gguf::parse(&file, &limits) else { return };
    for tensor in gguf.tensors() {
        let end = tensor.offset().checked_add(tensor.size()).expect("a checked sum");
        assert!(tensor.offset() >= gguf.data_offset() && end <= file.len() as u64, "{tensor:?}");
    }
    let _ = ModelInfo::check(&gguf, &file.as_slice(), &limits);
});
