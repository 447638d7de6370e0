//! Ctrl-C, SIGTERM and SIGHUP: no half-written file and no orphan stays behind.
//!
//! A command that can stop in an orderly way takes a flag ([`cooperate`]); the first interrupt sets it. Otherwise, and
//! the second time, temporary files are removed and the process ends with 130. SIGKILL cannot be answered; what is
//! temporary for the length of a run is therefore unnamed where that is possible ([`crate::model::source`]).

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::exit::Exit;

/// What the handler needs to know.
struct Watch {
    flag: Option<Arc<AtomicBool>>,
    on_first: Option<Box<dyn Fn() + Send>>,
    leftovers: Vec<PathBuf>,
}

static WATCH: Mutex<Watch> = Mutex::new(Watch { flag: None, on_first: None, leftovers: Vec::new() });

fn watch() -> MutexGuard<'static, Watch> {
    WATCH.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Installs the handler; once, before anything is written.
///
/// # Errors
/// When the system refuses a signal handler.
pub fn install() -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(|| {
        let watch = watch();
        if let Some(flag) = &watch.flag
            && !flag.swap(true, Ordering::SeqCst)
        {
            if let Some(act) = &watch.on_first {
                act();
            }
            return;
        }
        let _ = writeln!(io::stderr(), "interrupted");
        remove(&watch.leftovers);
        bitnet_rs::process::leave(Exit::Interrupted as i32);
    })
}

fn remove(leftovers: &[PathBuf]) {
    for path in leftovers {
        // Whoever made it may have removed it meanwhile.
        let _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    }
}

/// From now on the first interrupt sets the flag and calls `act`; it may be cleared to be set again.
pub fn cooperate(act: impl Fn() + Send + 'static) -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    let mut watch = watch();
    watch.flag = Some(Arc::clone(&flag));
    watch.on_first = Some(Box::new(act));
    flag
}

/// Forgets its path when dropped; the owner of the file removes it then.
#[derive(Debug)]
pub struct Leftover(PathBuf);

impl Drop for Leftover {
    fn drop(&mut self) {
        watch().leftovers.retain(|path| *path != self.0);
    }
}

/// Removes a temporary file or folder if an interrupt ends the process before the result is dropped.
pub fn remove_when_interrupted(path: &Path) -> Leftover {
    // The handler runs while the working directory may be another one.
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    watch().leftovers.push(path.clone());
    Leftover(path)
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
        let listed = |p: &PathBuf| watch().leftovers.contains(p);
        assert!(listed(&file) && listed(&sub));
        drop(kept);
        assert!(!listed(&file) && !listed(&sub));
        remove(&[file, sub, folder.path().join("absent")]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
