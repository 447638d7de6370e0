//! Files from outside: regular, of bounded size, read whole.
//!
//! Opening a named pipe waits for a writer that may never come, a device may never end, and a length that the file
//! system states may change: so the kind is asked first, and what is read is bounded whatever the length says.

use std::fs::{self, File, FileType, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Why a file was not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputFileError {
    /// It is not there, may not be read, or its links go round in a circle: most likely a wrong path.
    #[error("{0}")]
    Open(io::Error),
    /// No regular file.
    #[error("is {found}, not a regular file")]
    NotAFile {
        /// What it is.
        found: &'static str,
    },
    /// More bytes than are accepted.
    #[error("more than {limit} bytes")]
    TooLarge {
        /// Most bytes.
        limit: u64,
    },
    /// Not UTF-8.
    #[error("invalid UTF-8 at byte {offset}")]
    NotText {
        /// First byte that is none.
        offset: usize,
    },
    /// It begins with a byte-order mark, which is not part of the text and would be taken for one.
    #[error("begins with a byte-order mark ({mark}); save it as UTF-8 without one")]
    ByteOrderMark {
        /// Of which encoding.
        mark: &'static str,
    },
    /// The system failed in the middle.
    #[error("{0}")]
    Read(io::Error),
}

impl InputFileError {
    /// A wrong path rather than wrong content.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Open(_))
    }
}

impl From<InputFileError> for io::Error {
    fn from(e: InputFileError) -> Self {
        match e {
            InputFileError::Open(e) | InputFileError::Read(e) => e,
            e @ (InputFileError::NotAFile { .. }
            | InputFileError::NotText { .. }
            | InputFileError::ByteOrderMark { .. }) => Self::new(io::ErrorKind::InvalidInput, e),
            e @ InputFileError::TooLarge { .. } => Self::new(io::ErrorKind::FileTooLarge, e),
        }
    }
}

/// Opens a regular file for reading.
///
/// # Errors
/// [`InputFileError::Open`] or [`InputFileError::Read`] with the system's own error, else [`InputFileError::NotAFile`].
pub fn open_regular(path: &Path) -> Result<(File, Metadata), InputFileError> {
    // Opening a pipe waits for a writer, and asking by name first leaves a moment in which the file can be swapped. So
    // it is opened without waiting, which changes nothing for a regular file, and then asked what it is.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(|e| {
        match fs::metadata(path) {
            // A socket cannot be opened at all.
            Ok(m) if !m.is_file() => InputFileError::NotAFile { found: kind(m.file_type()) },
            _ => InputFileError::Open(e),
        }
    })?;
    let metadata = file.metadata().map_err(InputFileError::Read)?;
    if metadata.is_file() {
        Ok((file, metadata))
    } else {
        Err(InputFileError::NotAFile { found: kind(metadata.file_type()) })
    }
}

/// Reads a regular file of at most `limit` bytes.
///
/// # Errors
/// [`InputFileError`].
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, InputFileError> {
    let (file, metadata) = open_regular(path)?;
    if metadata.len() > limit {
        return Err(InputFileError::TooLarge { limit });
    }
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(InputFileError::Read)?;
    if bytes.len() as u64 > limit { Err(InputFileError::TooLarge { limit }) } else { Ok(bytes) }
}

/// Reads a regular UTF-8 file of at most `limit` bytes.
///
/// # Errors
/// [`InputFileError`].
pub fn read_text(path: &Path, limit: u64) -> Result<String, InputFileError> {
    let text = read_marked_text(path, limit)?;
    match byte_order_mark(text.as_bytes()) {
        Some(mark) => Err(InputFileError::ByteOrderMark { mark }),
        None => Ok(text),
    }
}

/// As [`read_text`], for texts that keep a UTF-8 byte-order mark: for a caller that says what it does with it.
///
/// # Errors
/// [`InputFileError`].
pub fn read_marked_text(path: &Path, limit: u64) -> Result<String, InputFileError> {
    marked_text(read(path, limit)?)
}

/// As [`read_marked_text`], of bytes that came another way.
///
/// # Errors
/// [`InputFileError::NotText`], [`InputFileError::ByteOrderMark`] of another encoding.
pub fn marked_text(bytes: Vec<u8>) -> Result<String, InputFileError> {
    String::from_utf8(bytes).map_err(|e| match byte_order_mark(e.as_bytes()) {
        Some(mark) if mark != UTF8 => InputFileError::ByteOrderMark { mark },
        _ => InputFileError::NotText { offset: e.utf8_error().valid_up_to() },
    })
}

const UTF8: &str = "of UTF-8, EF BB BF";

/// The byte-order mark at the beginning, by its encoding.
fn byte_order_mark(bytes: &[u8]) -> Option<&'static str> {
    let marks: [(&[u8], &str); 4] = [
        (&[0xef, 0xbb, 0xbf], UTF8),
        (&[0xff, 0xfe, 0, 0], "of UTF-32, FF FE 00 00"),
        (&[0xff, 0xfe], "of UTF-16, FF FE"),
        (&[0xfe, 0xff], "of UTF-16, FE FF"),
    ];
    marks.into_iter().find(|(mark, _)| bytes.starts_with(mark)).map(|(_, name)| name)
}

/// A file's kind as messages name it.
pub fn kind(found: FileType) -> &'static str {
    if found.is_dir() {
        "a folder"
    } else if found.is_fifo() {
        "a pipe"
    } else if found.is_socket() {
        "a socket"
    } else if found.is_symlink() {
        "a link"
    } else if found.is_file() {
        "a file"
    } else {
        "a device"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_within_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        fs::write(&path, "four").unwrap();
        assert_eq!(read(&path, 4).unwrap(), b"four");
        assert!(matches!(read(&path, 3), Err(InputFileError::TooLarge { limit: 3 })));
        assert!(matches!(read(folder.path(), 9), Err(InputFileError::NotAFile { found: "a folder" })));
        assert!(matches!(read(Path::new("/dev/zero"), 9), Err(InputFileError::NotAFile { found: "a device" })));
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        assert!(matches!(read(&pipe, 9), Err(InputFileError::NotAFile { found: "a pipe" })), "nobody writes to it");
        let socket = folder.path().join("socket");
        let _listening = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(matches!(read(&socket, 9), Err(InputFileError::NotAFile { found: "a socket" })));
        let circle = folder.path().join("circle");
        std::os::unix::fs::symlink(&circle, &circle).unwrap();
        let e = read(&circle, 9).unwrap_err();
        assert!(e.is_usage());
        assert_eq!(io::Error::from(e).raw_os_error(), Some(libc::ELOOP), "the system's error is kept");
        let absent = read(&folder.path().join("absent"), 9).unwrap_err();
        assert!(absent.is_usage());
        fs::write(&path, b"ab\xff").unwrap();
        assert!(matches!(read_text(&path, 9), Err(InputFileError::NotText { offset: 2 })));
    }

    /// "hi" as editors save it in each encoding.
    #[test]
    fn byte_order_marks_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        for (bytes, named) in [
            (&b"\xef\xbb\xbfhi"[..], "EF BB BF"),
            (b"\xff\xfeh\0i\0", "UTF-16, FF FE"),
            (b"\xfe\xff\0h\0i", "UTF-16, FE FF"),
            (b"\xff\xfe\0\0h\0\0\0i\0\0\0", "UTF-32"),
        ] {
            fs::write(&path, bytes).unwrap();
            let e = read_text(&path, 99).unwrap_err();
            assert!(e.to_string().contains(named), "{e}");
        }
        fs::write(&path, "\u{feff}hi").unwrap();
        assert_eq!(read_marked_text(&path, 99).unwrap(), "\u{feff}hi");
        fs::write(&path, "hi\u{feff}").unwrap();
        assert_eq!(read_text(&path, 99).unwrap(), "hi\u{feff}", "elsewhere it is a character");
    }

    /// procfs states a length of 0 and has content: the bound holds for what is read.
    #[test]
    fn the_stated_length_is_not_trusted() {
        assert!(matches!(read(Path::new("/proc/self/maps"), 10), Err(InputFileError::TooLarge { limit: 10 })));
    }
}
