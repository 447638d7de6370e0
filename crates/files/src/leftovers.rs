//! Temporary files and folders that exist now: what an interrupt has to remove, and what a killed process left.
//!
//! SIGKILL cannot be answered; what is temporary for the length of a run is therefore unnamed where that is possible.
//! What has a name is locked (`flock`) by the process that works on it. The kernel takes the lock away however that
//! process ends, so the next one that makes a temporary file in the same place can tell what nobody owns any more, and
//! removes it ([`collect`]).

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError as Locked};

use crate::own;

/// Random characters in a temporary name.
pub(crate) const RANDOM: usize = 12;

/// Most entries of a folder that are looked at for leftovers.
const MAX_ENTRIES: usize = 1 << 16;

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

/// Makes a temporary file or folder at `path` and lists it until the second value is dropped. An interrupt comes before
/// it is made or after it is listed, never in between.
///
/// # Errors
/// What `make` says.
pub fn make<T>(path: &Path, make: impl FnOnce() -> io::Result<T>) -> io::Result<(T, Leftover)> {
    // The handler runs while the working directory may be another one.
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut listed = listed();
    let made = make()?;
    listed.push(path.clone());
    Ok((made, Leftover(path)))
}

/// Removes everything that is listed and ends the process: for the handler of an interrupt. Nothing new is made
/// meanwhile.
pub fn remove_all_and_leave(code: i32) -> ! {
    let listed = listed();
    remove(&listed);
    own::leave(code)
}

/// As far as that can be done now: for a process that ends where it stands, perhaps in the middle of [`make`].
pub(crate) fn try_remove_all() {
    match LEFTOVERS.try_lock() {
        Ok(listed) => remove(&listed),
        Err(Locked::Poisoned(listed)) => remove(listed.get_ref()),
        Err(Locked::WouldBlock) => {}
    }
}

fn remove(leftovers: &[PathBuf]) {
    for path in leftovers {
        // Whoever made it may have removed it meanwhile.
        let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    }
}

/// Marks a file or folder that was just made as this process's, until `file` is closed. `AlreadyExists` where another
/// process took it for a leftover in between: make another one.
///
/// # Errors
/// The system's.
pub(crate) fn own(path: &Path, file: &File) -> io::Result<()> {
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::AlreadyExists.into()),
        // A file system without locks: nobody can tell there that it is a leftover, so nobody removes it.
        Err(TryLockError::Error(_)) => return Ok(()),
    }
    let (ours, there) = (file.metadata()?, fs::symlink_metadata(path));
    if there.is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())) {
        Ok(())
    } else {
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

/// Removes the files and folders in `folder` that are this user's, whose names `is_temporary` and that no living
/// process owns. Best effort: what cannot be removed stays.
pub(crate) fn collect(folder: &Path, is_temporary: impl Fn(&str) -> bool) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let candidates: Vec<PathBuf> = entries
        .take(MAX_ENTRIES)
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().to_str().is_some_and(&is_temporary))
        .map(|entry| entry.path())
        .collect();
    for path in candidates {
        collect_one(&path);
    }
}

fn collect_one(path: &Path) -> Option<()> {
    let there = fs::symlink_metadata(path).ok()?;
    if !(there.is_file() || there.is_dir()) || there.uid() != own::user() {
        return None;
    }
    let file = File::open(path).ok()?;
    let opened = file.metadata().ok()?;
    if (opened.dev(), opened.ino()) != (there.dev(), there.ino()) {
        return None;
    }
    file.try_lock().ok()?;
    if opened.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.ok()
}

/// Whether this is `prefix`, random characters, `suffix`, as temporary names are made.
pub(crate) fn is_temporary_name(name: &str, prefix: &str, suffix: &str) -> bool {
    let random = name.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(suffix));
    random.is_some_and(|r| r.len() == RANDOM && r.bytes().all(|b| b.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_are_removed_and_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let (file, sub) = (folder.path().join("file"), folder.path().join("sub"));
        let kept = [
            make(&file, || fs::write(&file, "x")).unwrap(),
            make(&sub, || fs::create_dir(&sub).and_then(|()| fs::write(sub.join("y"), "y"))).unwrap(),
        ];
        let is_listed = |p: &PathBuf| listed().contains(p);
        assert!(is_listed(&file) && is_listed(&sub));
        drop(kept);
        assert!(!is_listed(&file) && !is_listed(&sub));
        remove(&[file.clone(), sub, folder.path().join("absent")]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(make(&file, || Err::<(), _>(io::ErrorKind::StorageFull.into())).is_err());
        assert!(!is_listed(&file), "what was not made is not listed");
    }

    /// The lock of a process that was killed is gone, as is that of a file that was closed.
    #[test]
    fn what_nobody_owns_is_collected_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let random = "aZ09".repeat(3);
        let temporary = |name: &str| format!(".{name}.{random}.part");
        fs::write(at(&temporary("owned")), "x").unwrap();
        let owner = File::open(at(&temporary("owned"))).unwrap();
        own(&at(&temporary("owned")), &owner).unwrap();
        for name in [&temporary("left"), "left", ".left.short.part", ".left.aZ09aZ09aZ0-.part"] {
            fs::write(at(name), "x").unwrap();
        }
        fs::create_dir(at(&temporary("folder"))).unwrap();
        fs::write(at(&temporary("folder")).join("in it"), "x").unwrap();
        std::os::unix::fs::symlink("left", at(&temporary("link"))).unwrap();
        let stems = ["owned", "left", "folder", "link"].map(|stem| format!(".{stem}."));
        collect(folder.path(), |name| stems.iter().any(|stem| is_temporary_name(name, stem, ".part")));
        let mut names: Vec<String> =
            fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        let mut expected =
            [".left.aZ09aZ09aZ0-.part", ".left.short.part", &temporary("link"), &temporary("owned"), "left"]
                .map(str::to_owned);
        expected.sort();
        assert_eq!(names, expected);
    }

    #[test]
    fn a_file_that_was_taken_for_a_leftover_is_not_owned() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        fs::write(&path, "x").unwrap();
        let (ours, theirs) = (File::open(&path).unwrap(), File::open(&path).unwrap());
        theirs.try_lock().unwrap();
        assert_eq!(own(&path, &ours).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        theirs.unlock().unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(own(&path, &ours).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }
}
