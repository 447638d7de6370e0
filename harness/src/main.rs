//! Command line of the harness.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::thread;

use files::children::Children;
use files::process::{self, Memory};
use harness::exit::Exit;

/// Memory that is not given ends a command with a message and an exit code.
#[global_allocator]
static MEMORY: Memory = Memory;

/// Stack that the command line needs, generously.
const STACK: usize = 8 << 20;

fn main() -> ExitCode {
    process::prepare_for_shortage();
    // Under `ulimit -s` the main thread's stack may be too small for anything, and overrunning it is a signal.
    if process::stack_limit().is_none_or(|limit| limit >= STACK as u64) {
        return run().into();
    }
    let made = thread::Builder::new().name("main".into()).stack_size(STACK).spawn(run);
    match made.map(thread::JoinHandle::join) {
        Ok(Ok(exit)) => exit.into(),
        // What a panic of the main thread ends with; its message was printed.
        Ok(Err(_)) => ExitCode::from(101),
        Err(e) => {
            eprintln!("error: the host does not give a stack of {STACK} bytes: {e}");
            Exit::Usage.into()
        }
    }
}

fn run() -> Exit {
    harness::cli::main(std::env::current_exe().map(Children::of))
}
