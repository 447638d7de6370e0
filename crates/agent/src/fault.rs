//! What speaks against a command, and the gate that says so.

use serde::Serialize;

use super::vocabulary::Gate;

/// A fact that speaks against a command, with the gate that rejects on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Fault {
    pub(crate) gate: Gate,
    pub(crate) reason: String,
}

impl Fault {
    pub(crate) fn new(gate: Gate, reason: impl Into<String>) -> Self {
        Fault { gate, reason: reason.into() }
    }
}
