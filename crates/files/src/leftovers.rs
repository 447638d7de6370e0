//! Temporary files and folders that exist now: what an interrupt has to remove.
//!
//! SIGKILL cannot be answered; what is temporary for the length of a run is therefore unnamed where that is possible.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

static LEFTOVERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn listed() -> MutexGuard<'static, Vec<PathBuf>> {
    LEFTOVERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Forgets its path when dropped; the owner of the file removes it then.
#[derive(Debug)]
pub struct Leftover(PathBuf);

impl Drop for Leftover {
    fn drop(&mut self) {
        listed().retain(|path| *path != self.0);
    }
}

/// Lists a temporary file or folder until the result is dropped.
#[must_use]
pub fn remove_when_interrupted(path: &Path) -> Leftover {
    // The handler runs while the working directory may be another one.
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    listed().push(path.clone());
    Leftover(path)
}

/// Removes everything that is listed; for the handler of an interrupt, right before the process ends.
pub fn remove_all() {
    remove(&listed());
}

fn remove(leftovers: &[PathBuf]) {
    for path in leftovers {
        // Whoever made it may have removed it meanwhile.
        let _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_are_removed_and_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let (file, sub) = (folder.path().join("file"), folder.path().join("sub"));
        std::fs::write(&file, "x").unwrap();
        std::fs::create_dir(&sub).unwrap();
        std::fs::write(sub.join("y"), "y").unwrap();
        let kept = [remove_when_interrupted(&file), remove_when_interrupted(&sub)];
        let is_listed = |p: &PathBuf| listed().contains(p);
        assert!(is_listed(&file) && is_listed(&sub));
        drop(kept);
        assert!(!is_listed(&file) && !is_listed(&sub));
        remove(&[file, sub, folder.path().join("absent")]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
