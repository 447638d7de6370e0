//! Synthetic models for the tests of this folder.

#![allow(dead_code, reason = "each test binary uses some of these")]

use std::path::PathBuf;
use std::sync::OnceLock;

use bitnet_rs::{Model, ModelParams};
use synth::{SynthSpec, write_synth_file};
use tempfile::TempDir;

/// A file of the `tiny` preset, seed 1, and the folder that it goes with.
pub(crate) fn file() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    let spec = SynthSpec::preset("tiny").unwrap();
    write_synth_file(&spec, 1, &path, false, &mut |_| {}, &false.into()).unwrap();
    (folder, path)
}

/// That model, loaded for this test alone.
pub(crate) fn fresh() -> Model {
    let (_folder, path) = file();
    Model::load(&path, ModelParams::default()).unwrap()
}

/// That model, loaded once per test process.
pub(crate) fn tiny() -> Model {
    static TINY: OnceLock<Model> = OnceLock::new();
    TINY.get_or_init(fresh).clone()
}
