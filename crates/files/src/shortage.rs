//! What a host lacks: memory, threads, descriptors, room on a disk. None of it says anything about an input or a model.

use std::error::Error;
use std::io;

/// Whether this error says that the host lacks something.
pub fn is_shortage(e: &io::Error) -> bool {
    match e.raw_os_error() {
        Some(number) => NUMBERS.contains(&number),
        None => {
            use io::ErrorKind as K;
            // A message is not evidence: it may hold the name of a file.
            matches!(e.kind(), K::OutOfMemory | K::StorageFull | K::QuotaExceeded)
                || e.get_ref().is_some_and(|inner| is_in(inner))
        }
    }
}

/// Whether an error, or one that it was caused by, says that the host lacks something.
pub fn is_in(e: &(dyn Error + 'static)) -> bool {
    std::iter::successors(Some(e), |&e| e.source()).any(|e| e.downcast_ref().is_some_and(is_shortage))
}

/// Errors by which the system says so.
const NUMBERS: [i32; 7] =
    [libc::ENOMEM, libc::EAGAIN, libc::EMFILE, libc::ENFILE, libc::ENOSPC, libc::EDQUOT, libc::EFBIG];

/// How C, C++, the engine and this program say so.
const WORDS: [&str; 14] = [
    NO_CONTEXT,
    "Cannot allocate memory",
    "cannot allocate memory",
    "std::bad_alloc",
    "failed to allocate",
    "unable to allocate",
    "insufficient memory",
    OUT_OF_MEMORY,
    NOT_GIVEN,
    "Resource temporarily unavailable",
    "Too many open files",
    "File too large",
    "No space left on device",
    "Disk quota exceeded",
];

/// What this program says before it ends for want of memory.
pub const OUT_OF_MEMORY: &str = "out of memory";
/// How this program begins where a thread, a stack or the like cannot be had.
pub const NOT_GIVEN: &str = "the host does not give";

/// In the wrapper's message about a context that does not fit the memory.
pub const NO_CONTEXT: &str = "are available; lower n_ctx";

/// Whether a message that has lost its kind on the way names such an error: the engine's, or a process's last words.
/// Foreign text, such as a file's name, does not belong in it.
pub fn is_named_in(message: &str) -> bool {
    WORDS.iter().any(|words| message.contains(words))
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
            let kind = e.kind();
            let wrapped = io::Error::new(kind, e);
            assert!(is_shortage(&wrapped) && is_in(&wrapped), "{wrapped}");
            let named = io::Error::new(io::ErrorKind::InvalidData, format!("{wrapped}.gguf is not a model"));
            assert!(!is_shortage(&named) && !is_in(&named), "{named}");
        }
        for number in [libc::ENOENT, libc::EACCES, libc::EISDIR, libc::EIO, libc::ENAMETOOLONG] {
            let e = io::Error::from_raw_os_error(number);
            assert!(!is_shortage(&e) && !is_named_in(&e.to_string()), "{e}");
        }
    }
}
