//! Command line, gate suite, benches and reports over the crates of this workspace.
#![forbid(unsafe_code)]

pub mod bench;
pub mod cli;
pub mod exit;
pub mod gates;
pub mod interrupt;
pub mod report;
