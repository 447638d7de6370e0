//! Output files that are whole or absent: the only way in which this program puts a file in place.
//!
//! The content goes to a temporary file beside the target, is flushed to disk and then renamed. Readers see the old
//! file or the whole new one; an error (a full disk, a size limit), a drop before [`AtomicFile::commit`] or Ctrl-C
//! leaves the old one as it was and the temporary one removed. What a killed process left is removed by the next one
//! that writes the same file. A symbolic link at the target is replaced, never followed, so that a link planted there
//! cannot redirect the write; devices, pipes and folders are refused.

use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::leftovers::{self, Leftover, RANDOM, collect, is_temporary_name, own};
use crate::scratch;

/// Bytes collected before they go to the file.
const BUFFER: usize = 1 << 18;
/// How the names of temporary files end.
const SUFFIX: &str = ".part";

/// What to do when the target exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overwrite {
    /// Refuse with [`AtomicFileError::Exists`].
    Refuse,
    /// Replace it.
    Replace,
}

impl Overwrite {
    /// `--force` or not.
    pub fn forced(force: bool) -> Self {
        if force { Self::Replace } else { Self::Refuse }
    }
}

/// Why a file was not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AtomicFileError {
    /// The output file is there already.
    #[error("{} exists; give --force to replace it", path.display())]
    Exists {
        /// The output file.
        path: PathBuf,
    },
    /// The target is something that a rename would destroy rather than fill.
    #[error("{} is {found}, not a regular file; name another output file", path.display())]
    NotAFile {
        /// The output file.
        path: PathBuf,
        /// What stands there.
        found: &'static str,
    },
    /// The folder that it should stand in is not there.
    #[error("there is no folder {} to write {} to", folder.display(), path.display())]
    NoFolder {
        /// The output file.
        path: PathBuf,
        /// The folder.
        folder: PathBuf,
    },
    /// The system refused.
    #[error("cannot write {}: {source}", path.display())]
    Io {
        /// The output file.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
}

impl AtomicFileError {
    fn io(path: &Path) -> impl Fn(io::Error) -> Self + '_ {
        |source| Self::Io { path: path.to_owned(), source }
    }
}

/// A file written beside its target and renamed over it when complete.
#[derive(Debug)]
pub struct AtomicFile {
    file: BufWriter<NamedTempFile>,
    path: PathBuf,
    overwrite: Overwrite,
    leftover: Leftover,
}

impl AtomicFile {
    /// Starts writing a file that will stand at `path`.
    ///
    /// # Errors
    /// [`AtomicFileError::Exists`] if something (a dangling link included) is there and must not be replaced,
    /// [`AtomicFileError::NotAFile`], or [`AtomicFileError::Io`].
    pub fn create(path: impl Into<PathBuf>, overwrite: Overwrite) -> Result<Self, AtomicFileError> {
        let path = path.into();
        check_target(&path, overwrite)?;
        let name = path.file_name().unwrap_or_default();
        // The longest name that a file system takes is 255 bytes; a longer one fails at the rename anyway.
        let stem = if name.len() <= 200 { name } else { std::ffi::OsStr::new("output") };
        let mut prefix = std::ffi::OsString::from(".");
        prefix.push(stem);
        prefix.push(".");
        let folder = existing_folder(&path)?;
        if let Some(prefix) = prefix.to_str() {
            collect(folder, |name| is_temporary_name(name, prefix, SUFFIX));
        }
        scratch::collect_in(folder);
        let mut listed = None;
        let made = tempfile::Builder::new().prefix(&prefix).suffix(SUFFIX).rand_bytes(RANDOM).make_in(folder, |path| {
            // As an ordinary new file: the umask takes its share.
            let open = || File::options().read(true).write(true).create_new(true).open(path);
            let (file, leftover) = leftovers::make(path, open)?;
            if let Err(e) = own(path, &file) {
                let _ = fs::remove_file(path);
                return Err(e);
            }
            listed = Some(leftover);
            Ok(file)
        });
        let file = made.map_err(AtomicFileError::io(&path))?;
        let leftover = listed.ok_or_else(|| AtomicFileError::io(&path)(io::ErrorKind::Other.into()))?;
        Ok(Self { file: BufWriter::with_capacity(BUFFER, file), path, overwrite, leftover })
    }

    /// Puts the complete file in its place, durably.
    ///
    /// # Errors
    /// As [`AtomicFile::create`]; the target is then as it was.
    pub fn commit(self) -> Result<(), AtomicFileError> {
        let Self { file, path, overwrite, leftover } = self;
        let file = file.into_inner().map_err(|e| AtomicFileError::io(&path)(e.into_error()))?;
        file.as_file().sync_all().map_err(AtomicFileError::io(&path))?;
        // Again: the work between may have been long.
        check_target(&path, overwrite)?;
        let persisted = match overwrite {
            Overwrite::Replace => file.persist(&path),
            Overwrite::Refuse => file.persist_noclobber(&path),
        };
        drop(leftover);
        match persisted {
            Ok(_) => {}
            Err(e) if overwrite == Overwrite::Refuse && e.error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(AtomicFileError::Exists { path });
            }
            Err(e) => return Err(AtomicFileError::io(&path)(e.error)),
        }
        // The rename is durable once the folder is; not every file system can do that, and the file is in place.
        if let Ok(folder) = File::open(folder(&path)) {
            let _best_effort = folder.sync_all();
        }
        Ok(())
    }
}

impl Write for AtomicFile {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.file.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Seek for AtomicFile {
    fn seek(&mut self, pos: SeekFrom) -> io::Result<u64> {
        self.file.seek(pos)
    }
}

/// Writes `path` with what `fill` produces; on any error the folder is as it was.
///
/// # Errors
/// [`AtomicFileError`], and what `fill` returns.
pub fn write<T, E: From<AtomicFileError>>(
    path: &Path,
    force: bool,
    fill: impl FnOnce(&mut dyn Write) -> Result<T, E>,
) -> Result<T, E> {
    let mut file = AtomicFile::create(path, Overwrite::forced(force))?;
    let result = fill(&mut file)?;
    file.commit()?;
    Ok(result)
}

/// Refuses a target that must not be replaced; asked before the work, and again at the end.
///
/// # Errors
/// [`AtomicFileError::Exists`], [`AtomicFileError::NotAFile`], [`AtomicFileError::Io`].
pub fn check_target(path: &Path, overwrite: Overwrite) -> Result<(), AtomicFileError> {
    if path.file_name().is_none() {
        return Err(AtomicFileError::NotAFile { path: path.to_owned(), found: "no file name" });
    }
    // `a/b/` names a folder, whatever stands there; Path drops the slash.
    if path.as_os_str().as_encoded_bytes().ends_with(b"/") {
        return Err(AtomicFileError::NotAFile { path: path.to_owned(), found: "a folder's name" });
    }
    // Through a link, too: /dev/stdout is one, and replacing it would break the system for others.
    match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => {
            let found = crate::input_file::kind(metadata.file_type());
            return Err(AtomicFileError::NotAFile { path: path.to_owned(), found });
        }
        Err(source) if source.kind() == io::ErrorKind::InvalidFilename => {
            return Err(AtomicFileError::Io { path: path.to_owned(), source });
        }
        _ => {}
    }
    if overwrite == Overwrite::Refuse && fs::symlink_metadata(path).is_ok() {
        return Err(AtomicFileError::Exists { path: path.to_owned() });
    }
    Ok(())
}

/// As [`folder`], where that is there.
pub(crate) fn existing_folder(path: &Path) -> Result<&Path, AtomicFileError> {
    let folder = folder(path);
    match fs::metadata(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            Err(AtomicFileError::NoFolder { path: path.to_owned(), folder: folder.to_owned() })
        }
        _ => Ok(folder),
    }
}

/// Where a file stands.
fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_failed_fill_leaves_the_folder_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let failed: Result<(), AtomicFileError> = write(&path, false, |out| {
            out.write_all(b"half").unwrap();
            Err(AtomicFileError::Exists { path: "x".into() })
        });
        assert!(failed.is_err());
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn existing_files_are_kept_unless_forced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let write = |force, text: &'static [u8]| {
            write::<(), AtomicFileError>(&path, force, |out| {
                out.write_all(text).unwrap();
                Ok(())
            })
        };
        write(false, b"one").unwrap();
        let err = write(false, b"two").unwrap_err();
        assert!(err.to_string().contains("--force"), "{err}");
        assert_eq!(fs::read(&path).unwrap(), b"one");
        write(true, b"three").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"three");
        assert_eq!(names(folder.path()), ["out"]);
        let missing = folder.path().join("none").join("out");
        let err: Result<(), AtomicFileError> = super::write(&missing, false, |_| Ok(()));
        assert!(matches!(err, Err(AtomicFileError::NoFolder { .. })));
    }

    #[test]
    fn what_is_no_file_is_refused_before_the_work_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        symlink("/dev/null", &link).unwrap();
        let slash = format!("{}/new/", folder.path().display());
        for (path, found) in [
            (Path::new("/dev/null"), "a device"),
            (link.as_path(), "a device"),
            (folder.path(), "a folder"),
            (Path::new(&slash), "a folder's name"),
        ] {
            let e = AtomicFile::create(path, Overwrite::Replace).unwrap_err();
            assert!(matches!(e, AtomicFileError::NotAFile { found: f, .. } if f == found), "{e}");
        }
        assert_eq!(names(folder.path()), ["link"]);
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("/dev/null"));
    }

    #[test]
    fn a_folder_that_appears_meanwhile_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let file = AtomicFile::create(&path, Overwrite::Replace).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(matches!(file.commit(), Err(AtomicFileError::NotAFile { .. })));
        assert_eq!(names(folder.path()), ["out"]);
    }
    #[test]
    fn links_at_the_target_are_replaced_not_followed() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (victim, link) = (folder.path().join("victim"), folder.path().join("link"));
        fs::write(&victim, "precious").unwrap();
        symlink(&victim, &link).unwrap();
        assert!(matches!(AtomicFile::create(&link, Overwrite::Refuse), Err(AtomicFileError::Exists { .. })));
        let mut f = AtomicFile::create(&link, Overwrite::Replace).unwrap();
        f.write_all(b"new").unwrap();
        f.commit().unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        assert_eq!(fs::read(&link).unwrap(), b"new");
        assert!(!fs::symlink_metadata(&link).unwrap().is_symlink());
        let mode = fs::metadata(&link).unwrap().permissions().mode();
        assert_eq!((mode & 0o600, mode & 0o111), (0o600, 0));
        // A dangling link is something that exists.
        let dangling = folder.path().join("dangling");
        symlink(folder.path().join("nowhere"), &dangling).unwrap();
        assert!(matches!(AtomicFile::create(&dangling, Overwrite::Refuse), Err(AtomicFileError::Exists { .. })));
    }

    #[test]
    fn a_file_that_appears_meanwhile_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c");
        let mut f = AtomicFile::create(&path, Overwrite::Refuse).unwrap();
        f.write_all(b"late").unwrap();
        fs::write(&path, "early").unwrap();
        assert!(matches!(f.commit(), Err(AtomicFileError::Exists { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"early");
        assert_eq!(names(folder.path()), ["c"]);
    }

    /// The lock of a killed process is gone; here nobody ever held it.
    #[test]
    fn what_a_killed_process_left_goes_with_the_next_write_of_the_same_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c");
        let left = |name: &str| folder.path().join(format!(".{name}.{}.part", "x".repeat(RANDOM)));
        let living = AtomicFile::create(&path, Overwrite::Replace).unwrap();
        for name in ["c", "d"] {
            fs::write(left(name), "half").unwrap();
        }
        drop(AtomicFile::create(&path, Overwrite::Replace).unwrap());
        assert!(!left("c").exists() && left("d").exists());
        living.commit().unwrap();
        fs::remove_file(left("d")).unwrap();
        assert_eq!(names(folder.path()), ["c"]);
    }

    #[test]
    fn an_abandoned_write_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c");
        fs::write(&path, "old").unwrap();
        let mut f = AtomicFile::create(&path, Overwrite::Replace).unwrap();
        f.write_all(&vec![7; 1 << 20]).unwrap();
        drop(f);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(folder.path()), ["c"]);
        assert!(AtomicFile::create("/", Overwrite::Replace).is_err());
    }
}
