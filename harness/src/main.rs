//! Command line of the harness.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    harness::cli::main().into()
}
