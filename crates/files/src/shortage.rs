//! What a host lacks: memory, threads, descriptors, room on a disk. None of it says anything about an input or a model.

use std::io;

/// Whether this error says that the host lacks something.
pub fn is_shortage(e: &io::Error) -> bool {
    match e.raw_os_error() {
        Some(number) => NUMBERS.contains(&number),
        None => {
            use io::ErrorKind as K;
            matches!(e.kind(), K::OutOfMemory | K::StorageFull | K::QuotaExceeded) || is_named_in(&e.to_string())
        }
    }
}

/// Errors by which the system says so.
const NUMBERS: [i32; 7] =
    [libc::ENOMEM, libc::EAGAIN, libc::EMFILE, libc::ENFILE, libc::ENOSPC, libc::EDQUOT, libc::EFBIG];

/// How C, C++, the engine and this program say so.
const WORDS: [&str; 12] = [
    NO_CONTEXT,
    "Cannot allocate memory",
    "cannot allocate memory",
    "std::bad_alloc",
    "failed to allocate",
    "unable to allocate",
    "insufficient memory",
    OUT_OF_MEMORY,
    NOT_GIVEN,
    "Too many open files",
    "No space left on device",
    "Disk quota exceeded",
];

/// What this program says before it ends for want of memory.
pub const OUT_OF_MEMORY: &str = "out of memory";
/// How this program begins where a thread, a stack or the like cannot be had.
pub const NOT_GIVEN: &str = "the host does not give";

/// In the wrapper's message about a context that does not fit the memory.
pub const NO_CONTEXT: &str = "are available; lower n_ctx";

/// Whether a message that has lost its kind on the way names such an error.
pub fn is_named_in(message: &str) -> bool {
    WORDS.iter().any(|words| message.contains(words))
        || NUMBERS.iter().any(|number| message.contains(&format!("(os error {number})")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Named as C's own table names them.
    #[test]
    fn shortages_are_told_from_wrong_paths_however_they_travelled() {
        for number in NUMBERS {
            let e = io::Error::from_raw_os_error(number);
            assert!(is_shortage(&e) && is_named_in(&format!("--out x: {e}")), "{e}");
            assert!(is_shortage(&io::Error::new(e.kind(), format!("x: {e}"))), "{e}");
        }
        for number in [libc::ENOENT, libc::EACCES, libc::EISDIR, libc::EIO, libc::ENAMETOOLONG] {
            let e = io::Error::from_raw_os_error(number);
            assert!(!is_shortage(&e) && !is_named_in(&e.to_string()), "{e}");
        }
    }
}
