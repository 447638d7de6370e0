//! This process: whose it is, and how it ends where it stands.

/// Ends the process at once, without running exit handlers (`_exit`).
///
/// For a signal handler's thread: exit handlers would destroy the engine's statics while its compute threads are
/// still using them. Whatever was buffered and not flushed is lost.
pub fn leave(code: i32) -> ! {
    // SAFETY: takes a number, returns never.
    unsafe { libc::_exit(code) }
}

/// The user that this process acts as.
pub fn user() -> u32 {
    // SAFETY: takes nothing, and cannot fail.
    unsafe { libc::geteuid() }
}
