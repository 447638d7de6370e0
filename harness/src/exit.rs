//! Exit codes of the command line: a documented part of its interface.

use std::process::ExitCode;

/// What the process tells its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All gates PASS, or the command did what was asked.
    Success = 0,
    /// At least one gate FAILs, or a verification did not hold.
    Fail = 1,
    /// Usage or configuration, or a host that lacks memory, threads, descriptors or room on a disk.
    Usage = 2,
    /// No FAIL, but something could not be measured.
    Unknown = 3,
    /// Input refused: a bad model, cartridge, grammar, case file.
    Refused = 4,
    /// A constrained generation ended before its grammar was complete; its text is no tool call.
    Incomplete = 5,
    /// Interrupted.
    Interrupted = 130,
    /// Whoever read standard output is gone, so the rest was not made: 128 and the number of SIGPIPE, as shells count.
    ReaderGone = 141,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
