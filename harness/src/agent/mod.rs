//! Agent boundary: model output is never a command.
pub mod vocabulary;
pub(crate) mod text;
pub(crate) mod numeral;
pub mod time_of_day;
pub mod guard;
pub mod strict_json;
pub mod candidate;
pub mod cleaner;
pub mod governor;
pub mod registry;
pub mod policy;
pub mod freshness;
pub mod clock;
pub(crate) mod names;
pub(crate) mod reading;
