//! Files that appear whole or not at all.

use super::CartridgeError;
use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// What to do when the target exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overwrite {
    /// Refuse with [`CartridgeError::Exists`].
    Refuse,
    /// Replace it.
    Replace,
}

/// A file written beside its target and renamed over it when complete.
///
/// Readers see the old file or the whole new one, and an error (a full disk) or a drop before
/// [`AtomicFile::commit`] leaves the old one as it was. The rename replaces a symbolic link at
/// the target rather than following it, so a link planted there cannot redirect the write.
#[derive(Debug)]
pub struct AtomicFile {
    file: BufWriter<NamedTempFile>,
    path: PathBuf,
    overwrite: Overwrite,
}

impl AtomicFile {
    /// Starts writing a file that will stand at `path`.
    ///
    /// # Errors
    /// [`CartridgeError::Exists`] if something (a dangling link included) is there and must not
    /// be replaced; [`CartridgeError::Io`] otherwise.
    pub fn create(path: impl Into<PathBuf>, overwrite: Overwrite) -> Result<AtomicFile, CartridgeError> {
        let path = path.into();
        // Asked again, atomically, at the end; this spares the work.
        if overwrite == Overwrite::Refuse && fs::symlink_metadata(&path).is_ok() {
            return Err(CartridgeError::Exists(path));
        }
        let mut prefix = std::ffi::OsString::from(".");
        let Some(name) = path.file_name() else {
            let e = io::Error::new(io::ErrorKind::InvalidInput, "not a file name");
            return Err(CartridgeError::Io { path, source: e });
        };
        prefix.push(name);
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(".tmp");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // As an ordinary new file: the umask takes its share. The crate's default of 0600
            // would make shipped files unreadable for others.
            builder.permissions(fs::Permissions::from_mode(0o666));
        }
        let file = builder.tempfile_in(directory(&path)).map_err(CartridgeError::io(&path))?;
        Ok(AtomicFile { file: BufWriter::with_capacity(1 << 16, file), path, overwrite })
    }

    /// Puts the complete file in its place, durably.
    ///
    /// # Errors
    /// As [`AtomicFile::create`]; the target is then as it was.
    pub fn commit(self) -> Result<(), CartridgeError> {
        let AtomicFile { file, path, overwrite } = self;
        let file = file.into_inner().map_err(|e| CartridgeError::Io { path: path.clone(), source: e.into_error() })?;
        file.as_file().sync_all().map_err(CartridgeError::io(&path))?;
        let persisted = match overwrite {
            Overwrite::Replace => file.persist(&path),
            Overwrite::Refuse => file.persist_noclobber(&path),
        };
        match persisted {
            Ok(_) => {}
            Err(e) if overwrite == Overwrite::Refuse && e.error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(CartridgeError::Exists(path));
            }
            Err(e) => return Err(CartridgeError::Io { path, source: e.error }),
        }
        // The rename itself lives in the directory.
        #[cfg(unix)]
        File::open(directory(&path)).and_then(|d| d.sync_all()).map_err(CartridgeError::io(&path))?;
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

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
