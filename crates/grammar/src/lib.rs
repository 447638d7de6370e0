//! Constraints on what a model may write.
//!
//! * [`gbnf`]: grammar texts, read completely or refused; a matcher of our own and masks over a whole vocabulary;
//! * [`schema`]: JSON Schemas, as grammars of llguidance's engine and as a validator of our own;
//! * [`tools`]: registries of tools, and calls judged against them.
//!
//! A [`Language`] is either of the first two; [`TokenMatcher`] is one at work. Nothing here knows the model: a
//! vocabulary comes in as the texts of its tokens.
#![forbid(unsafe_code)]

mod engine;
pub mod gbnf;
mod language;
mod matching;
pub mod schema;
pub mod tools;

pub use gbnf::*;
pub use language::Language;
pub use matching::TokenMatcher;
