//! Command line of the harness.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    harness::cli::main(std::env::current_exe().map(files::children::Children::of)).into()
}
