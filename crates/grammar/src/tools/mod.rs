//! Tools: registries, the grammar of their calls, and JSON Schema as GBNF.
//!
//! A registry file lists tools with JSON Schemas of their arguments. [`ToolRegistry`] turns them into one grammar for
//! `{"tool": …, "arguments": …}` and into one JSON Schema for a validator that knows nothing of the grammar.
//! [`schema_to_gbnf`] is the conversion on its own.
//!
//! ```
//! use grammar::tools::{SchemaOptions, ToolRegistry};
//!
//! let registry = ToolRegistry::from_toml(
//!     r#"
//!     [[tools]]
//!     name = "add"
//!     description = "Adds two small numbers."
//!     [tools.parameters]
//!     type = "object"
//!     additionalProperties = false
//!     required = ["a", "b"]
//!     properties.a = { type = "integer", minimum = 0, maximum = 99 }
//!     properties.b = { type = "integer", minimum = 0, maximum = 99 }
//!     "#,
//!     &SchemaOptions::default(),
//! )?;
//! let text = r#"{"tool":"add","arguments":{"a":1,"b":41}}"#;
//! assert!(registry.grammar().matches(text.as_bytes()));
//! assert_eq!(registry.parse_call(text)?.arguments["b"], 41);
//! assert!(registry.parse_call(r#"{"tool":"add","arguments":{"a":1,"b":100}}"#).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod numbers;
mod pattern;
mod registry;
mod schema;
#[cfg(test)]
mod tests;
mod text;

pub use error::{CallError, RegistryError, SchemaError};
pub use registry::{Tool, ToolCall, ToolRegistry};
pub use schema::{OpenObjects, SchemaOptions, Whitespace, schema_to_gbnf};
