//! Read-only file mappings.

use std::io;
use std::ops::Deref;
use std::path::Path;

use crate::input_file::open_regular;

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
    /// The system's own error, which does not name the file, if it cannot be opened or mapped; `InvalidInput` if it is
    /// not a regular file (a folder, pipe or device has no fixed content to check).
    pub fn open(path: impl AsRef<Path>) -> io::Result<MappedFile> {
        let (file, metadata) = open_regular(path.as_ref())?;
        if metadata.len() == 0 {
            return Ok(MappedFile { map: None });
        }
        let len = usize::try_from(metadata.len()).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        let mut options = memmap2::MmapOptions::new();
        options.len(len);
        // SAFETY: `map_copy_read_only` makes a private, read-only mapping of `len` bytes of an
        // open regular file of that length, so every page is backed by the file at this moment
        // and nothing in this process can write through it. What remains is the caller-visible
        // hazard in the type's documentation: another process that shrinks or rewrites the file
        // while it is mapped. The slice is only ever read as plain bytes, for which every bit
        // pattern is valid, and readers treat it as untrusted.
        let map = unsafe { options.map_copy_read_only(&file) }?;
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
