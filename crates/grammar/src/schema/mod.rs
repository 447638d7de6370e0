//! JSON Schemas as constraints: any schema people bring, exact or refused by name.
//!
//! A schema is read strictly ([`Schema::parse`]), turned into a grammar for the llguidance engine, and validated where
//! no grammar is exact:
//! - **by grammar** ([`Exactness::ByGrammar`]): every text that the constraint lets through is JSON that the schema
//!   allows;
//! - **by validation** ([`Exactness::ByValidation`]): the grammar leaves the named keywords out and lets too much
//!   through. [`TokenMatcher::verdict`](crate::TokenMatcher::verdict) decides the finished text. Only [`Verdict::Valid`] is an answer; another try
//!   is the caller's, at most [`MAX_TRIES`];
//! - **refused** ([`SchemaError`]): by keyword and place.
//!
//! A finished text is judged in both cases. Keywords that constrain nothing where they stand (another draft's, unknown
//! formats, misspelt ones) don't refuse and aren't dropped in silence: [`Schema::remarks`] names each.
//!
//! # What comes out
//! - **Order.** Properties come in the order of the schema's text, `properties` of the schema itself before those of
//!   its `allOf`, `anyOf`, … and references; then required names that are not declared, in the order of `required`; then
//!   free keys, in any order.
//! - **Blanks.** [`Whitespace::Compact`] writes none; see there for the others.
//! - **Strings.** Fixed strings and keys have one spelling: `\" \\ \n \r \t \b \f`, other control characters as
//!   `\u001f`, everything else as it is. Other strings have the same, and in open mode `\u00..` for control characters.
//! - **Numbers.** Declared mode: whole numbers of at most 18 digits without fraction, others of at most 9 + 6 digits,
//!   no exponents, no `-0`. Open mode: up to 100 digits on either side of the point, `1.0` where 1 is allowed, exponents
//!   of two digits where only the sign is bounded.
//!
//! The same schema and options give the same grammar in every run.
//!
//! # Modes
//! [`Mode::Declared`] generates the properties that an object declares (`properties`, `patternProperties`, a schema in
//! `additionalProperties`) and undeclared ones that `required` or `minProperties` ask for; an object that declares
//! nothing is free. [`Mode::Open`] allows what the schema allows. Both are sound; the first is narrower.
//!
//! # What decides
//! Formats are asserted in every draft ([list](SchemaOptions)). Numbers are compared as decimals. `pattern` is ECMA 262.
//! References stay within the schema and the drafts' own schemas; nothing is fetched.
//!
//! ```
//! use grammar::schema::{Exactness, Schema, SchemaOptions, Verdict};
//!
//! let schema = Schema::parse(
//!     r#"{"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}"#,
//!     &SchemaOptions::default(),
//! )?;
//! assert_eq!(schema.exactness(), &Exactness::ByGrammar);
//! assert!(schema.matches(r#"{"n":7}"#));
//! assert!(!schema.matches(r#"{"n":0}"#));
//! assert_eq!(schema.judge(r#"{"n":7}"#), Verdict::Valid);
//! let error = Schema::parse(r#"{"type": "string", "pattern": "(?i)a"}"#, &SchemaOptions::default()).unwrap_err();
//! assert_eq!((error.keyword.as_str(), error.pointer.as_str()), ("pattern", ""));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod decimal;
mod emit;
mod error;
mod formats;
mod front;
mod json;
mod judge;
mod limits;
mod matcher;
mod numbers;
mod options;
mod pattern;
mod read;
mod shape;
#[cfg(test)]
mod tests;
mod verdict;

pub use error::{Place, Remark, SchemaError, SchemaErrorKind};
pub use front::{MAX_TRIES, Schema};
pub use limits::SchemaLimits;
pub use matcher::SchemaMatcher;
pub use options::{Mode, SchemaOptions, Whitespace};
pub use verdict::{Exactness, Verdict};

pub(crate) use front::MAX_ANSWER_DEPTH;
pub(crate) use json::{Json, JsonError, push_pointer};
