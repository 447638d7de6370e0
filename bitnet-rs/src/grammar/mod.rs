//! GBNF front: refuses what the engine would swallow or die of.

/// Placeholder until the front lands.
#[derive(Debug, thiserror::Error)]
#[error("grammar")]
pub struct GrammarError;
