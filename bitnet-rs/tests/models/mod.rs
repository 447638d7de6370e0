//! Synthetic models for the tests of this folder, made once per test process.

use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use bitnet_rs::{Model, ModelParams};
use harness::model::synth::{SynthSpec, write_synth_file};

/// The `tiny` preset, seed 1.
pub(crate) fn tiny() -> Model {
    static TINY: OnceLock<Model> = OnceLock::new();
    TINY.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        let spec = SynthSpec::preset("tiny").unwrap();
        write_synth_file(&spec, 1, &path, false, &mut |_| {}, &AtomicBool::new(false)).unwrap();
        Model::load(&path, ModelParams::default()).unwrap()
    })
    .clone()
}
