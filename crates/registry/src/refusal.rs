//! Why a version is not promoted.

use serde::Serialize;

/// One reason why a version is not promoted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// For machines; stable.
    pub code: &'static str,
    /// For people: what was found, what is demanded.
    pub message: String,
}
