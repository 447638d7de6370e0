//! Gate suite, cartridges and agent boundary over `bitnet-rs`.
#![forbid(unsafe_code)]

pub mod agent;
pub mod atomic_file;
pub mod bench;
pub mod cartridge;
pub mod cli;
pub mod exit;
pub mod gates;
pub mod generate;
pub mod input_file;
pub mod interrupt;
pub mod model;
pub mod reference;
pub mod report;
pub mod tools;
