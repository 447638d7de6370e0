//! Read-only file mappings.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

/// A regular file, mapped read-only and private, as a byte slice.
///
/// Mapping costs no copy and no memory beyond the page cache, which is why cartridges and models
/// are read through it. The price is a hazard that no process can rule out alone: if **another
/// process truncates the file** while it is mapped, touching a page past the new end raises
/// SIGBUS and ends this process, and if it overwrites the file in place, the bytes change under
/// validation that has already passed. Files written by this project are replaced by rename,
/// never modified in place, so their readers keep the old content; do the same when you update
/// one, and read ([`std::fs::read`]) rather than map a file that someone may be writing to.
#[derive(Debug)]
pub struct MappedFile {
    /// `None` for an empty file, which cannot be mapped.
    map: Option<memmap2::Mmap>,
}

impl MappedFile {
    /// Maps the file at `path` as it is now.
    ///
    /// # Errors
    /// The system's error if it cannot be opened or mapped; `InvalidInput` if it is no regular
    /// file (a directory, pipe or device has no fixed content to check).
    pub fn open(path: impl AsRef<Path>) -> io::Result<MappedFile> {
        let path = path.as_ref();
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
        // Asked by name first: opening a named pipe would block until somebody writes to it.
        let not_regular =
            || io::Error::new(io::ErrorKind::InvalidInput, format!("{} is not a regular file", path.display()));
        if !std::fs::metadata(path).map_err(named)?.is_file() {
            return Err(not_regular());
        }
        let file = File::open(path).map_err(named)?;
        // And of the open file, which cannot be swapped between the question and the mapping.
        let metadata = file.metadata().map_err(named)?;
        if !metadata.is_file() {
            return Err(not_regular());
        }
        if metadata.len() == 0 {
            return Ok(MappedFile { map: None });
        }
        let len = usize::try_from(metadata.len()).map_err(|_| named(io::Error::from(io::ErrorKind::FileTooLarge)))?;
        let mut options = memmap2::MmapOptions::new();
        options.len(len);
        // SAFETY: `map_copy_read_only` makes a private, read-only mapping of `len` bytes of an
        // open regular file of that length, so every page is backed by the file at this moment
        // and nothing in this process can write through it. What remains is the caller-visible
        // hazard in the type's documentation: another process that shrinks or rewrites the file
        // while it is mapped. The slice is only ever read as plain bytes, for which every bit
        // pattern is valid, and readers treat it as untrusted.
        let map = unsafe { options.map_copy_read_only(&file) }.map_err(named)?;
        Ok(MappedFile { map: Some(map) })
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn maps_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"hello").unwrap();
        assert_eq!(&*MappedFile::open(&path).unwrap(), b"hello");
        std::fs::write(&path, b"").unwrap();
        assert!(MappedFile::open(&path).unwrap().is_empty());
    }

    #[test]
    fn a_renamed_over_file_keeps_its_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"old").unwrap();
        let map = MappedFile::open(&path).unwrap();
        let mut new = tempfile::NamedTempFile::new_in(dir.path()).unwrap();
        new.write_all(b"new, and longer").unwrap();
        new.persist(&path).unwrap();
        assert_eq!(&*map, b"old");
    }

    #[test]
    fn refuses_what_is_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let e = MappedFile::open(dir.path()).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::InvalidInput);
        assert!(e.to_string().contains("not a regular file"));
        let e = MappedFile::open(dir.path().join("absent")).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::NotFound);
        #[cfg(unix)]
        assert!(MappedFile::open("/dev/zero").is_err());
    }
}
