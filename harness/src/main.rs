//! Command line of the harness.
#![forbid(unsafe_code)]

fn main() {}
