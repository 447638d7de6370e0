//! Blobs on their way: streamed, hashed as they pass, resumed where they broke off.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path as FilePath, PathBuf};

use bytes::Bytes;
use futures_util::StreamExt as _;
use object_store::{ObjectStoreExt as _, WriteMultipart};
use tokio::sync::mpsc;

use crate::digest::{Digest, Hasher};
use crate::error::{Error, Result};
use crate::layout;
use crate::registry::{Cancel, Progress, Registry, Step};
use crate::store::{Store, Upload, local_file, passing, random};

/// Pieces read ahead of the writer.
const AHEAD: usize = 2;
/// Parts under way at once.
const PARALLEL: usize = 4;
/// Size of a piece on its way into a file, in bytes.
const PIECE: usize = 1 << 20;

const CHANGED: &str = "the file changed while it was read; run it again";
const RESTORE: &str = "it was damaged or replaced: restore it from a mirror, or push the version again";

/// Where bytes come from.
#[derive(Clone)]
enum Source {
    File(PathBuf),
    Blob { store: Store, digest: Digest, size: u64 },
}

enum Piece {
    Data(Bytes),
    End { digest: Digest, size: u64 },
}

type Pieces = mpsc::Receiver<Result<Piece>>;

/// What became of a file that was to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    /// Whether bytes were sent; `false` if the store had them.
    pub(crate) sent: bool,
}

/// A regular file, opened without following a pipe into a wait.
pub(crate) fn open_file(path: &FilePath) -> Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    // O_NONBLOCK of Linux: opening a pipe that nobody writes to would wait forever.
    let file = std::fs::OpenOptions::new().read(true).custom_flags(0o4000).open(path).map_err(Error::file(path))?;
    if !file.metadata().map_err(Error::file(path))?.is_file() {
        let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, "not a regular file");
        return Err(Error::File { path: path.to_owned(), source });
    }
    Ok(file)
}

fn filled(file: &mut File, size: usize) -> std::io::Result<Vec<u8>> {
    let mut buffer = Vec::with_capacity(size);
    file.take(size as u64).read_to_end(&mut buffer)?;
    Ok(buffer)
}

/// Reads a file to its end on a thread of its own, hashing as it goes.
fn pieces_of_file(mut file: File, path: PathBuf, size: usize, mut hasher: Hasher, cancel: Cancel) -> Pieces {
    let (send, receive) = mpsc::channel(AHEAD);
    tokio::task::spawn_blocking(move || {
        loop {
            let piece = cancel.check().and_then(|()| filled(&mut file, size).map_err(Error::file(&path)));
            match piece {
                Ok(bytes) if bytes.is_empty() => {
                    let size = hasher.bytes();
                    let _receiver_gone = send.blocking_send(Ok(Piece::End { digest: hasher.finish(), size }));
                    return;
                }
                Ok(bytes) => {
                    hasher.update(&bytes);
                    if send.blocking_send(Ok(Piece::Data(bytes.into()))).is_err() {
                        return;
                    }
                }
                Err(e) => {
                    let _receiver_gone = send.blocking_send(Err(e));
                    return;
                }
            }
        }
    });
    receive
}

/// Reads a blob from a store, asking again from where an answer broke off.
fn pieces_of_blob(store: Store, digest: Digest, size: u64, piece: usize, cancel: Cancel) -> Pieces {
    let (send, receive) = mpsc::channel(AHEAD);
    let path = layout::blob(&digest);
    tokio::spawn(async move {
        let mut hasher = Hasher::default();
        let mut waiting: Vec<u8> = Vec::new();
        let mut failures = 0;
        let outcome: Result<()> = async {
            loop {
                let from = hasher.bytes();
                let Some(mut result) = store.open_object(&path, from).await? else {
                    return Err(Error::Missing { object: path.to_string(), advice: RESTORE });
                };
                if result.meta.size != size {
                    return Err(Error::malformed(
                        path.to_string(),
                        format!("has {} bytes; its manifest says {size}; {RESTORE}", result.meta.size),
                    ));
                }
                if from == 0
                    && let Some(mut file) = local_file(&mut result)
                {
                    file.seek(SeekFrom::Start(0)).map_err(Error::file(FilePath::new(path.as_ref())))?;
                    // Straight from the file: a store's own stream of a local file comes in small chunks.
                    let mut pieces = pieces_of_file(file, path.to_string().into(), piece, hasher, cancel);
                    while let Some(piece) = pieces.recv().await {
                        if send.send(piece).await.is_err() {
                            break;
                        }
                    }
                    return Ok(());
                }
                let mut stream = result.into_stream();
                let broken = loop {
                    cancel.check()?;
                    match stream.next().await {
                        Some(Ok(chunk)) => {
                            if hasher.bytes() + chunk.len() as u64 > size {
                                return Err(Error::TooLarge { object: path.to_string(), size: size + 1, limit: size });
                            }
                            hasher.update(&chunk);
                            failures = 0;
                            if waiting.is_empty() && chunk.len() >= piece {
                                if send.send(Ok(Piece::Data(chunk))).await.is_err() {
                                    return Ok(());
                                }
                                continue;
                            }
                            waiting.extend_from_slice(&chunk);
                            if waiting.len() >= piece {
                                let full = std::mem::replace(&mut waiting, Vec::with_capacity(piece));
                                if send.send(Ok(Piece::Data(full.into()))).await.is_err() {
                                    return Ok(());
                                }
                            }
                        }
                        Some(Err(e)) => break Some(e),
                        None => break None,
                    }
                };
                if hasher.bytes() == size {
                    break;
                }
                failures += 1;
                if failures >= store.retry.tries || broken.as_ref().is_some_and(|e| !passing(e)) {
                    let source = broken.unwrap_or_else(|| object_store::Error::Generic {
                        store: "registry",
                        source: format!("the answer ended after {} of {size} bytes", hasher.bytes()).into(),
                    });
                    let object = path.to_string();
                    return Err(Error::Store {
                        location: store.location.clone(),
                        doing: "read",
                        object,
                        source: Box::new(source),
                    });
                }
                tokio::time::sleep(store.retry.first_wait).await;
            }
            if !waiting.is_empty() {
                let _receiver_gone = send.send(Ok(Piece::Data(std::mem::take(&mut waiting).into()))).await;
            }
            let _receiver_gone = send.send(Ok(Piece::End { digest: hasher.finish(), size })).await;
            Ok(())
        }
        .await;
        if let Err(e) = outcome {
            let _receiver_gone = send.send(Err(e)).await;
        }
    });
    receive
}

/// A stream of pieces ended without its end: the thread that read was lost.
fn cut_short() -> Error {
    Error::malformed("the source", "was not read to its end: its reader died")
}

impl Registry {
    fn report(&self, name: &str, step: Step, done: u64, total: u64) {
        if let Some(progress) = &self.options().progress {
            progress(&Progress { name: name.to_owned(), step, done, total });
        }
    }

    fn pieces(&self, source: &Source, size: usize) -> Result<Pieces> {
        let cancel = self.options().cancel.clone();
        Ok(match source {
            Source::File(path) => pieces_of_file(open_file(path)?, path.clone(), size, Hasher::default(), cancel),
            Source::Blob { store, digest, size: bytes } => pieces_of_blob(store.clone(), *digest, *bytes, size, cancel),
        })
    }

    async fn hash(&self, source: &Source, name: &str, total: u64) -> Result<(Digest, u64)> {
        let mut pieces = self.pieces(source, PIECE)?;
        let mut done = 0;
        while let Some(piece) = pieces.recv().await {
            match piece? {
                Piece::Data(bytes) => {
                    done += bytes.len() as u64;
                    self.report(name, Step::Hash, done, total);
                }
                Piece::End { digest, size } => return Ok((digest, size)),
            }
        }
        Err(cut_short())
    }

    /// The digest and size in bytes of a file.
    pub(crate) async fn hash_file(&self, path: &FilePath, name: &str) -> Result<(Digest, u64)> {
        let total = open_file(path)?.metadata().map_err(Error::file(path))?.len();
        self.hash(&Source::File(path.to_owned()), name, total).await
    }

    /// Stores a file as a blob.
    pub(crate) async fn store_file(&self, path: &FilePath, name: &str) -> Result<Stored> {
        let total = open_file(path)?.metadata().map_err(Error::file(path))?.len();
        self.upload(Source::File(path.to_owned()), name, total, None).await
    }

    /// Stores a blob that another registry has.
    pub(crate) async fn store_blob(&self, from: &Store, digest: Digest, size: u64) -> Result<Stored> {
        let source = Source::Blob { store: from.clone(), digest, size };
        self.upload(source, &digest.hex()[..12], size, Some(digest)).await
    }

    async fn upload(&self, source: Source, name: &str, total: u64, known: Option<Digest>) -> Result<Stored> {
        let store = self.store();
        if total <= store.part as u64 {
            return self.upload_small(&source, name, known).await;
        }
        let known = match (known, store.upload) {
            (None, Upload::Addressed) => Some(self.hash(&source, name, total).await?.0),
            (known, _) => known,
        };
        if let Some(digest) = known
            && let Some(stored) = self.there(digest, total).await?
        {
            return Ok(stored);
        }
        let mut tried = 0;
        loop {
            match self.upload_parts(&source, name, total, known).await {
                Err(Error::Store { source: ref e, .. }) if passing(e) && tried + 1 < store.retry.tries => {
                    tokio::time::sleep(store.retry.first_wait).await;
                }
                outcome => return outcome,
            }
            tried += 1;
        }
    }

    async fn there(&self, digest: Digest, size: u64) -> Result<Option<Stored>> {
        let found = self.store().head(&layout::blob(&digest)).await?;
        // One of another size is damaged, and is written anew.
        Ok(found.filter(|meta| meta.size == size).map(|_| Stored { digest, size, sent: false }))
    }

    async fn upload_small(&self, source: &Source, name: &str, known: Option<Digest>) -> Result<Stored> {
        let mut pieces = self.pieces(source, self.store().part)?;
        let mut content = Vec::new();
        while let Some(piece) = pieces.recv().await {
            match piece? {
                Piece::Data(bytes) => content.extend_from_slice(&bytes),
                Piece::End { digest, size } => {
                    check_source(known, digest, source)?;
                    if let Some(stored) = self.there(digest, size).await? {
                        return Ok(stored);
                    }
                    self.store().put(&layout::blob(&digest), &content.into()).await?;
                    self.report(name, Step::Upload, size, size);
                    return Ok(Stored { digest, size, sent: true });
                }
            }
        }
        Err(cut_short())
    }

    async fn upload_parts(&self, source: &Source, name: &str, total: u64, known: Option<Digest>) -> Result<Stored> {
        let store = self.store();
        let target = match known {
            Some(digest) => layout::blob(&digest),
            None => {
                let random: String = random::<16>().iter().map(|b| format!("{b:02x}")).collect();
                object_store::path::Path::from(format!("{}/{random}", layout::STAGING))
            }
        };
        let failed = |source| Error::Store {
            location: store.location.clone(),
            doing: "write",
            object: target.to_string(),
            source: Box::new(source),
        };
        let upload = store.object_store().put_multipart(&target).await.map_err(failed)?;
        let mut writer = WriteMultipart::new_with_chunk_size(upload, store.part);
        let sent: Result<(Digest, u64)> = async {
            let mut pieces = self.pieces(source, store.part)?;
            let mut done = 0;
            while let Some(piece) = pieces.recv().await {
                match piece? {
                    Piece::Data(bytes) => {
                        writer.wait_for_capacity(PARALLEL).await.map_err(failed)?;
                        done += bytes.len() as u64;
                        writer.put(bytes);
                        self.report(name, Step::Upload, done, total);
                    }
                    Piece::End { digest, size } => {
                        check_source(known, digest, source)?;
                        return Ok((digest, size));
                    }
                }
            }
            Err(cut_short())
        }
        .await;
        let (digest, size) = match sent {
            Ok(sent) => sent,
            Err(e) => {
                // What cannot be taken back now, garbage collection or the store's own lifecycle does.
                let _best_effort = writer.abort().await;
                return Err(e);
            }
        };
        if known.is_some() {
            writer.finish().await.map_err(failed)?;
            return Ok(Stored { digest, size, sent: true });
        }
        if let Some(stored) = self.there(digest, size).await? {
            let _best_effort = writer.abort().await;
            return Ok(stored);
        }
        writer.finish().await.map_err(failed)?;
        store.rename(&target, &layout::blob(&digest)).await?;
        Ok(Stored { digest, size, sent: true })
    }

    /// A blob of at most `limit` bytes, verified.
    pub(crate) async fn blob(&self, digest: Digest, limit: u64) -> Result<Bytes> {
        let path = layout::blob(&digest);
        let bytes = self
            .store()
            .get(&path, limit)
            .await?
            .ok_or_else(|| Error::Missing { object: path.to_string(), advice: RESTORE })?;
        expect(digest, Digest::of(&bytes))?;
        Ok(bytes)
    }

    /// Reads a blob to its end and compares its digest.
    pub(crate) async fn check_blob(&self, digest: Digest, size: u64) -> Result<()> {
        let source = Source::Blob { store: self.store().clone(), digest, size };
        let (found, _) = self.hash(&source, &digest.hex()[..12], size).await?;
        expect(digest, found)
    }

    /// Fetches a blob into a file that is there whole and verified, or not at all.
    pub(crate) async fn fetch(&self, digest: Digest, size: u64, to: &FilePath, name: &str) -> Result<()> {
        if let Some(cached) = self.cache_path(digest).filter(|p| p.is_file()) {
            let (from, to, cancel) = (cached.clone(), to.to_owned(), self.options().cancel.clone());
            if blocking(move || copy(&from, &to, digest, &cancel)).await? {
                self.report(name, Step::Download, size, size);
                return Ok(());
            }
            self.drop_damaged(&cached)?;
        }
        self.fetch_from_store(digest, size, to, name).await
    }

    async fn fetch_from_store(&self, digest: Digest, size: u64, to: &FilePath, name: &str) -> Result<()> {
        let folder = folder_of(to);
        let mut file = tempfile::Builder::new()
            .prefix(".registry-")
            .suffix(".part")
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666))
            .tempfile_in(folder)
            .map_err(Error::file(to))?;
        let source = Source::Blob { store: self.store().clone(), digest, size };
        let mut pieces = self.pieces(&source, PIECE)?;
        let (send, mut receive) = mpsc::channel::<Bytes>(AHEAD);
        let path = to.to_owned();
        let writer = tokio::task::spawn_blocking(move || -> Result<tempfile::NamedTempFile> {
            while let Some(bytes) = receive.blocking_recv() {
                file.write_all(&bytes).map_err(Error::file(&path))?;
            }
            file.as_file().sync_all().map_err(Error::file(&path))?;
            Ok(file)
        });
        let mut done = 0;
        let read = loop {
            match pieces.recv().await {
                None => break Err(cut_short()),
                Some(Err(e)) => break Err(e),
                Some(Ok(Piece::Data(bytes))) => {
                    done += bytes.len() as u64;
                    if send.send(bytes).await.is_err() {
                        // The writer stopped: its error is the one to tell.
                        break Ok(None);
                    }
                    self.report(name, Step::Download, done, size);
                }
                Some(Ok(Piece::End { digest, .. })) => break Ok(Some(digest)),
            }
        };
        drop(send);
        let written = writer.await.map_err(|_| cut_short())?;
        let found = read?;
        let file = written?;
        // Without an end the writer failed, and its error was told above.
        expect(digest, found.ok_or_else(cut_short)?)?;
        persist(file, to)
    }

    fn cache_path(&self, digest: Digest) -> Option<PathBuf> {
        Some(crate::cache::files(self.options().cache.as_ref()?).join(digest.hex()))
    }

    /// The cached file with this content; verified now, since anything may have happened to it since it was fetched.
    async fn cached(&self, digest: Digest, name: &str) -> Result<Option<PathBuf>> {
        let Some(path) = self.cache_path(digest) else { return Ok(None) };
        if !path.is_file() {
            return Ok(None);
        }
        let (found, _) = self.hash_file(&path, name).await?;
        if found == digest {
            return Ok(Some(path));
        }
        self.drop_damaged(&path)?;
        Ok(None)
    }

    fn drop_damaged(&self, path: &FilePath) -> Result<()> {
        tracing::warn!(file = %path.display(), "a cached file was damaged and is fetched again");
        std::fs::remove_file(path).map_err(Error::file(path))
    }

    /// A blob as a verified file in the cache.
    pub(crate) async fn fetch_cached(&self, digest: Digest, size: u64, name: &str) -> Result<PathBuf> {
        let path = self.cache_path(digest).ok_or_else(|| Error::Argument {
            what: "cache",
            value: String::new(),
            problem: "is not set; name a folder for fetched files".into(),
        })?;
        if let Some(path) = self.cached(digest, name).await? {
            return Ok(path);
        }
        let folder = folder_of(&path);
        std::fs::create_dir_all(folder).map_err(Error::file(folder))?;
        self.fetch_from_store(digest, size, &path, name).await?;
        Ok(path)
    }
}

fn check_source(known: Option<Digest>, found: Digest, source: &Source) -> Result<()> {
    let (object, advice) = match source {
        Source::File(path) => (path.display().to_string(), CHANGED),
        Source::Blob { digest, .. } => (layout::blob(digest).to_string(), RESTORE),
    };
    match known {
        Some(expected) if expected != found => Err(Error::Digest { object, expected, found, advice }),
        _ => Ok(()),
    }
}

fn expect(expected: Digest, found: Digest) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    Err(Error::Digest { object: layout::blob(&expected).to_string(), expected, found, advice: RESTORE })
}

pub(crate) fn folder_of(path: &FilePath) -> &FilePath {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(FilePath::new("."))
}

fn persist(file: tempfile::NamedTempFile, to: &FilePath) -> Result<()> {
    file.persist(to).map_err(|e| Error::File { path: to.to_owned(), source: e.error })?;
    // The rename is durable once the folder is; not every file system can do that, and the file is in place.
    if let Ok(folder) = File::open(folder_of(to)) {
        let _best_effort = folder.sync_all();
    }
    Ok(())
}

/// Writes a small file that is there whole or not at all.
pub(crate) fn write_file(to: &FilePath, bytes: &[u8]) -> Result<()> {
    let mut file = tempfile::Builder::new()
        .prefix(".registry-")
        .suffix(".part")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666))
        .tempfile_in(folder_of(to))
        .map_err(Error::file(to))?;
    file.write_all(bytes).and_then(|()| file.as_file().sync_all()).map_err(Error::file(to))?;
    persist(file, to)
}

/// Copies a cached file, hashing what is written; `false`, and no file, if it is not what it should be.
fn copy(from: &FilePath, to: &FilePath, digest: Digest, cancel: &Cancel) -> Result<bool> {
    let mut file = tempfile::Builder::new()
        .prefix(".registry-")
        .suffix(".part")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666))
        .tempfile_in(folder_of(to))
        .map_err(Error::file(to))?;
    let mut source = open_file(from)?;
    let mut hasher = Hasher::default();
    loop {
        cancel.check()?;
        let bytes = filled(&mut source, PIECE).map_err(Error::file(from))?;
        if bytes.is_empty() {
            break;
        }
        hasher.update(&bytes);
        file.write_all(&bytes).map_err(Error::file(to))?;
    }
    if hasher.finish() != digest {
        return Ok(false);
    }
    file.as_file().sync_all().map_err(Error::file(to))?;
    persist(file, to)?;
    Ok(true)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| cut_short())?
}
