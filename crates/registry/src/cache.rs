//! The folder of fetched files, by digest, which several programs of a machine share: a file that one of them uses is
//! held, and a sweep removes only what nobody holds.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::lease::GRACE;

/// The folder of files by their SHA-256 within a cache.
pub(crate) fn files(cache: &Path) -> PathBuf {
    cache.join("sha256")
}

/// A file of the cache in use. While it is alive no program's [`sweep`] removes the file.
#[derive(Debug)]
pub struct Held {
    path: PathBuf,
    /// The lock is the open file's, and goes with it.
    file: File,
}

impl Held {
    /// Holds a file; `None` if it is gone.
    pub(crate) fn take(path: PathBuf) -> Result<Option<Self>> {
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Error::File { path, source }),
        };
        if let Err(e) = file.lock_shared() {
            // A file system without locks: a sweep cannot lock there, either, and so removes nothing.
            tracing::debug!("{} is used without a lock: {e}", path.display());
        }
        // A sweep may have been between the opening and the lock.
        let held = file.metadata().map_err(Error::file(&path))?;
        let same = path.symlink_metadata().is_ok_and(|m| (m.dev(), m.ino()) == (held.dev(), held.ino()));
        Ok(same.then_some(Self { path, file }))
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file, open for reading.
    pub fn file(&self) -> &File {
        &self.file
    }
}

/// What a sweep removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Swept {
    /// Files.
    pub files: Vec<PathBuf>,
    /// Their bytes.
    pub bytes: u64,
}

/// Removes fetched files that nobody holds, but for the `keep` newest, and downloads that were left unfinished for a
/// day. A cache that does not exist is empty.
///
/// # Errors
/// [`Error::File`].
pub fn sweep(cache: &Path, keep: usize) -> Result<Swept> {
    let folder = files(cache);
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Swept::default()),
        Err(source) => return Err(Error::File { path: folder, source }),
    };
    let (now, mut fetched, mut swept) = (SystemTime::now(), Vec::new(), Swept::default());
    for entry in entries {
        let entry = entry.map_err(Error::file(&folder))?;
        let (name, path) = (entry.file_name().to_string_lossy().into_owned(), entry.path());
        let Ok(metadata) = path.symlink_metadata() else { continue };
        let modified = metadata.modified().unwrap_or(now);
        if !metadata.is_file() {
            continue;
        }
        if Digest::from_hex(&name).is_some() {
            fetched.push((modified, path, metadata.len()));
        } else if name.starts_with(".registry-") && name.ends_with(".part") {
            let age = now.duration_since(modified).unwrap_or_default();
            if age > Duration::from_secs(GRACE) {
                remove(path, metadata.len(), &mut swept)?;
            }
        }
    }
    fetched.sort_by(|a, b| b.cmp(a));
    for (_, path, bytes) in fetched.into_iter().skip(keep) {
        let Ok(file) = File::open(&path) else { continue };
        if file.try_lock().is_ok() {
            remove(path, bytes, &mut swept)?;
        }
    }
    Ok(swept)
}

fn remove(path: PathBuf, bytes: u64, swept: &mut Swept) -> Result<()> {
    match std::fs::remove_file(&path) {
        Ok(()) => {
            swept.files.push(path);
            swept.bytes += bytes;
            Ok(())
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(Error::File { path, source }),
    }
}
