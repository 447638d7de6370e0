//! Safe wrapper over the pinned bitnet.cpp engine.

pub mod gguf;
pub mod grammar;
pub mod mapped;
pub mod state;
