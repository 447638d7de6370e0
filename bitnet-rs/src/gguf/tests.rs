//! Tests of the reader as a whole.

use super::*;

fn model(bytes: &[u8]) -> Result<ModelInfo, GgufError> {
    let limits = Limits::default();
    let gguf = Gguf::parse(bytes, &limits)?;
    ModelInfo::check(&gguf, &bytes, &limits)
}

#[test]
fn tiny_models_are_sound() {
    for architecture in Architecture::ALL {
        let bytes = fixture::tiny_model(architecture).encode();
        let info = model(&bytes).unwrap();
        assert_eq!(info.warnings(), [GgufWarning::ChatTemplateMissing]);
    }
}
