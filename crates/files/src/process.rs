//! What a command-line program has to settle with the operating system before it works on untrusted input.

pub use crate::own::{leave, user};

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, Ordering};

/// Lets a write beyond the file size limit (`ulimit -f`) fail with an error.
///
/// By default such a write raises SIGXFSZ, which ends the process and leaves what was written so far; ignored, the
/// write returns `EFBIG`, and the caller keeps the old file.
pub fn survive_file_size_limit() {
    // SAFETY: SIG_IGN installs no handler of ours; nothing in this process relies on SIGXFSZ.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
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

/// The limit on the main thread's stack (`ulimit -s`); `None` where there is none.
pub fn stack_limit() -> Option<u64> {
    // SAFETY: a known resource and a pointer to a local of the right type.
    soft_limit(|now| unsafe { libc::getrlimit(libc::RLIMIT_STACK, now) })
}

/// The limit on the address space (`ulimit -v`); `None` where there is none.
pub fn address_space_limit() -> Option<u64> {
    // SAFETY: as above.
    soft_limit(|now| unsafe { libc::getrlimit(libc::RLIMIT_AS, now) })
}

fn soft_limit(ask: impl FnOnce(*mut libc::rlimit) -> libc::c_int) -> Option<u64> {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let known = ask(&raw mut now) == 0;
    (known && now.rlim_cur != libc::RLIM_INFINITY).then_some(now.rlim_cur)
}

/// Whether the reader of standard output has gone. Only a pipe or a socket can tell.
pub fn reader_is_gone() -> bool {
    let mut out = libc::pollfd { fd: libc::STDOUT_FILENO, events: 0, revents: 0 };
    // SAFETY: one element, which lives through the call; a time limit of 0 does not wait.
    let told = unsafe { libc::poll(&raw mut out, 1, 0) };
    told == 1 && out.revents & (libc::POLLERR | libc::POLLHUP) != 0
}

/// Settles what happens where memory runs out; to be called first, by a program whose allocator is [`Memory`].
///
/// Under a limit on the address space (`ulimit -v`) the C library would reserve 64 MiB of it for every thread's heap,
/// so that a program with more room had less than one with little. One heap serves all then.
pub fn prepare_for_shortage() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if address_space_limit().is_some() {
        // SAFETY: sets a number; no other thread runs yet.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
    // SAFETY: the handler calls nothing that a signal handler may not call (mmap and munmap are plain system calls).
    unsafe { libc::signal(libc::SIGABRT, on_abort as *const () as libc::sighandler_t) };
}

/// Room that an aborting process must still be able to map, if the abort is not for want of memory.
const ROOM: usize = 64 << 20;

/// The engine answers an allocation that failed by an abort. That is the host's, and has an exit code of its own; any
/// other abort stays one.
extern "C" fn on_abort(_signal: libc::c_int) {
    // SAFETY: an anonymous mapping that nobody touches and that is given back; on failure nothing is mapped.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let room = libc::mmap(std::ptr::null_mut(), ROOM, libc::PROT_NONE, flags, -1, 0);
        if room == libc::MAP_FAILED {
            out_of_memory(None);
        }
        libc::munmap(room, ROOM);
    }
}

/// What a program ends with that the host did not give what it needs.
pub const SHORTAGE: i32 = 2;

/// Says that memory is lacking and ends the process, without taking any.
fn out_of_memory(bytes: Option<usize>) -> ! {
    static ENDING: AtomicBool = AtomicBool::new(false);
    if !ENDING.swap(true, Ordering::SeqCst) {
        let mut digits = [0u8; 20];
        let mut first = digits.len();
        let mut rest = bytes.unwrap_or(0);
        while rest > 0 {
            first -= 1;
            digits[first] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        say(b"error: ");
        say(crate::shortage::OUT_OF_MEMORY.as_bytes());
        if first < digits.len() {
            say(b": no room for ");
            say(&digits[first..]);
            say(b" bytes");
        }
        say(b" (the host's, or the limit of this process, such as ulimit -v)\n");
        crate::leftovers::try_remove_all();
    }
    leave(SHORTAGE)
}

fn say(bytes: &[u8]) {
    // SAFETY: valid for its length; what cannot be said is not said.
    unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
}

/// The system's allocator, which ends the process with [`SHORTAGE`] and a message where memory runs out. The standard
/// library's answer is an abort, which looks like a fault of the program.
#[derive(Debug, Clone, Copy, Default)]
pub struct Memory;

// SAFETY: hands everything on to the system's allocator, and returns only what that one returned.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        given(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        given(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        given(unsafe { System.realloc(ptr, layout, size) }, size)
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

fn given(ptr: *mut u8, bytes: usize) -> *mut u8 {
    if ptr.is_null() {
        out_of_memory(Some(bytes));
    }
    ptr
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    /// A shell that limits itself, and this test binary as a child under it: see [`child`].
    fn under(limit: &str, what: &str) -> std::process::Output {
        let script = format!("{limit}; exec \"$@\"");
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &script, "sh"]).arg(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "process::tests::child", "--nocapture"]).env("FILES_CHILD", what);
        command.output().unwrap()
    }

    /// Not a test: what [`under`] starts.
    #[test]
    #[ignore = "a child of the other tests"]
    fn child() {
        super::prepare_for_shortage();
        match std::env::var("FILES_CHILD").unwrap_or_default().as_str() {
            "abort" => std::process::abort(),
            "abort without memory" => {
                let mut held = Vec::new();
                // Half of what fails next time, until nothing is left.
                let mut bytes = 1usize << 30;
                while bytes > 1 << 20 {
                    match memmap2::MmapOptions::new().len(bytes).map_anon() {
                        Ok(map) => held.push(map),
                        Err(_) => bytes /= 2,
                    }
                }
                std::process::abort()
            }
            "allocate" => {
                // SAFETY: a layout of a size above 0; the pointer is not used.
                let ptr = unsafe {
                    std::alloc::GlobalAlloc::alloc(&super::Memory, std::alloc::Layout::new::<[u8; 1 << 40]>())
                };
                assert!(ptr.is_null(), "it did not end, and got {ptr:?}");
            }
            _ => {}
        }
    }

    #[test]
    fn an_abort_without_memory_is_the_hosts_and_another_one_stays_an_abort() {
        use std::os::unix::process::ExitStatusExt as _;
        let short = under("ulimit -v 2000000", "abort without memory");
        assert_eq!(short.status.code(), Some(super::SHORTAGE));
        assert!(String::from_utf8_lossy(&short.stderr).contains("error: out of memory (the host's"));
        let plain = under("ulimit -c 0; ulimit -v 2000000", "abort");
        assert_eq!(plain.status.signal(), Some(libc::SIGABRT));
    }

    /// The size is in the message: 2^40.
    #[test]
    fn memory_that_is_not_given_ends_the_process_with_a_message() {
        let ended = under("ulimit -v 2000000", "allocate");
        assert_eq!(ended.status.code(), Some(super::SHORTAGE));
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(said.contains("out of memory: no room for 1099511627776 bytes"), "{said}");
    }
}
