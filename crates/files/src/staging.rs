//! Files that are judged before they get their name.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::atomic_file::{self, AtomicFileError, Overwrite};
use crate::scratch::Scratch;

/// A file in a folder of its own beside its later place; both go when this value goes.
#[derive(Debug)]
pub struct Staging {
    path: PathBuf,
    _folder: Scratch,
}

impl Staging {
    /// A place for what is to become `output`.
    ///
    /// # Errors
    /// [`AtomicFileError::Exists`] unless `force`, [`AtomicFileError::NotAFile`], [`AtomicFileError::Io`].
    pub fn beside(output: &Path, force: bool) -> Result<Self, AtomicFileError> {
        atomic_file::check_target(output, Overwrite::forced(force))?;
        let folder = Scratch::in_folder(atomic_file::existing_folder(output)?)
            .map_err(|source| AtomicFileError::Io { path: output.to_owned(), source })?;
        Ok(Self { path: folder.path().join("file"), _folder: folder })
    }

    /// Where to write.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// As [`Staging::beside`].
    pub fn put(self, output: &Path, force: bool) -> Result<(), AtomicFileError> {
        let io = |source| AtomicFileError::Io { path: output.to_owned(), source };
        // Again: the work between may have been long, and a rename would replace a device as readily as a file.
        atomic_file::check_target(output, Overwrite::forced(force))?;
        if force {
            return fs::rename(&self.path, output).map_err(io);
        }
        // A hard link fails where the name exists, which a rename does not; not every file system has them.
        match fs::hard_link(&self.path, output) {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                Err(AtomicFileError::Exists { path: output.to_owned() })
            }
            Err(_) => fs::rename(&self.path, output).map_err(io),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_is_refused_before_the_work_and_at_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let late = Staging::beside(&path, true).unwrap();
        fs::write(late.path(), "late").unwrap();
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        assert!(matches!(Staging::beside(&path, true), Err(AtomicFileError::NotAFile { found: "a device", .. })));
        assert!(matches!(late.put(&path, true), Err(AtomicFileError::NotAFile { found: "a device", .. })));
        assert_eq!(fs::read_link(&path).unwrap(), Path::new("/dev/null"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_name_is_given_once_unless_forced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let stage = |force: bool, text: &str| -> Result<(), AtomicFileError> {
            let staged = Staging::beside(&path, force)?;
            fs::write(staged.path(), text).unwrap();
            staged.put(&path, force)
        };
        drop(Staging::beside(&path, false).unwrap());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        stage(false, "one").unwrap();
        assert!(matches!(stage(false, "two"), Err(AtomicFileError::Exists { .. })));
        let late = Staging::beside(&path, true).unwrap();
        fs::write(late.path(), "late").unwrap();
        assert!(matches!(late.put(&path, false), Err(AtomicFileError::Exists { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"one");
        stage(true, "three").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"three");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
