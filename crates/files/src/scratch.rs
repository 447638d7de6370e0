//! Folders for the length of a run.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::leftovers::{self, Leftover, RANDOM, collect, is_temporary_name, own};

const PREFIX: &str = ".bitnet-harness-";
const SUFFIX: &str = ".scratch";

/// A folder that goes when this value goes, when the process is interrupted, and at the latest when the next one is
/// made in the same place.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    /// Its lock.
    owner: Option<File>,
    _leftover: Leftover,
}

impl Scratch {
    /// In the folder for temporary files (`TMPDIR`).
    ///
    /// # Errors
    /// The system's.
    pub fn new() -> io::Result<Self> {
        Self::in_folder(&std::env::temp_dir())
    }

    /// In a folder that is there.
    ///
    /// # Errors
    /// The system's.
    pub fn in_folder(folder: &Path) -> io::Result<Self> {
        collect_in(folder);
        let mut builder = tempfile::Builder::new();
        builder.prefix(PREFIX).suffix(SUFFIX).rand_bytes(RANDOM);
        let made = builder.make_in(folder, |path| {
            let ((), leftover) = leftovers::make(path, || fs::create_dir(path))?;
            let owner = File::open(path).and_then(|owner| own(path, &owner).map(|()| owner));
            match owner {
                Ok(owner) => Ok((owner, leftover)),
                Err(e) => {
                    // Perhaps no descriptor is left; removing an empty folder needs none.
                    let _ = fs::remove_dir(path);
                    Err(e)
                }
            }
        })?;
        let ((owner, leftover), path) = made.into_parts();
        // The folder is removed here; the crate would remove a file.
        let path = path.keep().map_err(|e| e.error)?;
        Ok(Self { path, owner: Some(owner), _leftover: leftover })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Its descriptor is what removing needs where there are no others.
        self.owner = None;
        let _best_effort = fs::remove_dir_all(&self.path);
    }
}

/// Removes what killed processes left in `folder`.
pub(crate) fn collect_in(folder: &Path) {
    collect(folder, |name| is_temporary_name(name, PREFIX, SUFFIX));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn it_goes_with_its_content_and_so_does_what_was_left() {
        let folder = tempfile::tempdir().unwrap();
        let scratch = Scratch::in_folder(folder.path()).unwrap();
        fs::write(scratch.path().join("f"), "x").unwrap();
        // As a killed process leaves it: without a lock.
        let left = folder.path().join(format!("{PREFIX}{}{SUFFIX}", "a".repeat(RANDOM)));
        fs::create_dir(&left).unwrap();
        fs::write(left.join("f"), "x").unwrap();
        let other = Scratch::in_folder(folder.path()).unwrap();
        assert!(!left.exists() && scratch.path().join("f").exists());
        drop((scratch, other));
        assert_eq!(count(folder.path()), 0);
        assert!(Scratch::in_folder(&folder.path().join("absent")).is_err());
    }
}
