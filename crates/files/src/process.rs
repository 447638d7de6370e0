//! What a command-line program has to settle with the operating system before it works on untrusted input.

/// Lets a write beyond the file size limit (`ulimit -f`) fail with an error.
///
/// By default such a write raises SIGXFSZ, which ends the process and leaves what was written so far; ignored, the
/// write returns `EFBIG`, and the caller keeps the old file.
pub fn survive_file_size_limit() {
    // SAFETY: SIG_IGN installs no handler of ours; nothing in this process relies on SIGXFSZ.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Ends the process at once, without running exit handlers (`_exit`).
///
/// For a signal handler's thread: exit handlers would destroy the engine's statics while its compute threads are
/// still using them. Whatever was buffered and not flushed is lost.
pub fn leave(code: i32) -> ! {
    // SAFETY: takes a number, returns never.
    unsafe { libc::_exit(code) }
}

/// Bounds this process from now on: address space in bytes, CPU time in seconds, no core file. What goes beyond ends
/// it by a signal, so this is for a child whose parent expects that.
///
/// # Errors
/// The system's.
pub fn limit(address_space: u64, cpu_seconds: u64) -> std::io::Result<()> {
    for (resource, value) in [(libc::RLIMIT_AS, address_space), (libc::RLIMIT_CPU, cpu_seconds), (libc::RLIMIT_CORE, 0)]
    {
        let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a known resource and a pointer to a local of the right type.
        if unsafe { libc::getrlimit(resource, &raw mut now) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        // A stricter limit that stands already is kept.
        let value = value.min(now.rlim_max);
        let new = libc::rlimit { rlim_cur: value.min(now.rlim_cur), rlim_max: value };
        // SAFETY: as above; the engine reads no limits.
        if unsafe { libc::setrlimit(resource, &raw const new) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}
