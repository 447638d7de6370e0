//! Gate 5.
mod mutation;
pub(crate) use mutation::SelfCheck;
