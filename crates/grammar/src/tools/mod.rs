//! Tools: registries as frameworks write them, and their calls.
//!
//! A registry lists tools with JSON Schemas of their arguments. [`ToolRegistry`] makes one constraint of them, for
//! `{"tool": …, "arguments": {…}}`, and reads such calls.
//!
//! ```
//! use grammar::schema::SchemaOptions;
//! use grammar::tools::ToolRegistry;
//!
//! let registry = ToolRegistry::from_json(
//!     r#"[{"type": "function", "function": {
//!         "name": "add",
//!         "parameters": {
//!             "type": "object",
//!             "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"type": "integer", "maximum": 99}},
//!             "required": ["a", "b"]
//!         }
//!     }}]"#,
//!     &SchemaOptions::default(),
//! )?;
//! let text = r#"{"tool":"add","arguments":{"a":1,"b":41}}"#;
//! assert!(registry.schema().matches(text));
//! assert_eq!(registry.parse_call(text)?.arguments["b"], 41);
//! assert!(registry.parse_call(r#"{"tool":"add","arguments":{"a":1,"b":100}}"#).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod registry;
#[cfg(test)]
mod tests;

pub use error::{CallError, RegistryError};
pub use registry::{Tool, ToolCall, ToolRegistry};
