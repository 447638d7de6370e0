//! Constraints on what a model may write.
//!
//! * [`gbnf`]: grammar texts, read completely or refused; a matcher of our own and masks over a whole vocabulary;
//! * [`tools`]: JSON Schemas and registries of tools, written as such grammars, and calls judged against them.
//!
//! Nothing here knows the engine: a vocabulary comes in as the texts of its tokens.
#![forbid(unsafe_code)]

pub mod gbnf;
pub mod tools;

pub use gbnf::*;
