//! Output files that are whole or absent.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Bytes collected before they go to the file.
const BUFFER: usize = 1 << 20;

/// Why a file was not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AtomicFileError {
    /// The output file is there already.
    #[error("'{}' exists; use --force to replace it", path.display())]
    Exists {
        /// The output file.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot write '{}': {source}", path.display())]
    Io {
        /// The output file.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
}

/// Writes `path` through a temporary file beside it: filled by `fill`, flushed to disk, then renamed,
/// so that the path never names half a file. On any error the temporary file is removed.
///
/// # Errors
/// [`AtomicFileError::Exists`] unless `force`, [`AtomicFileError::Io`], and what `fill` returns.
pub fn write<T, E: From<AtomicFileError>>(
    path: &Path,
    force: bool,
    fill: impl FnOnce(&mut dyn Write) -> Result<T, E>,
) -> Result<T, E> {
    let io = |source| AtomicFileError::Io { path: path.to_owned(), source };
    let exists = || AtomicFileError::Exists { path: path.to_owned() };
    if !force && fs::symlink_metadata(path).is_ok() {
        return Err(exists().into());
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".").suffix(".part");
    // Temporary files are private by default; the result is an ordinary file under the umask.
    #[cfg(unix)]
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    #[cfg(unix)]
    builder.permissions(permissions);
    let file = builder.tempfile_in(folder).map_err(io)?;
    let mut out = BufWriter::with_capacity(BUFFER, file);
    let result = fill(&mut out)?;
    let file = out.into_inner().map_err(|err| io(err.into_error()))?;
    file.as_file().sync_all().map_err(io)?;
    if force {
        file.persist(path).map_err(|err| io(err.error))?;
    } else {
        file.persist_noclobber(path)
            .map_err(|err| if err.error.kind() == io::ErrorKind::AlreadyExists { exists() } else { io(err.error) })?;
    }
    // The rename is durable once the folder is; not every file system can do that.
    if let Ok(folder) = fs::File::open(folder) {
        let _best_effort = folder.sync_all();
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_fill_leaves_the_folder_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let failed: Result<(), AtomicFileError> = write(&path, false, |out| {
            out.write_all(b"half").unwrap();
            Err(AtomicFileError::Exists { path: "x".into() })
        });
        assert!(failed.is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
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
        let missing = folder.path().join("none").join("out");
        let err: Result<(), AtomicFileError> = super::write(&missing, false, |_| Ok(()));
        assert!(matches!(err, Err(AtomicFileError::Io { .. })));
    }
}
