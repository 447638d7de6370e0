//! JSON Schema constraints: a front and a validator of our own over llguidance's engine.
//!
//! Not in the product yet (docs/decisions/0017-json-schema-engine.md).
#![forbid(unsafe_code)]

pub mod schema;
