//! The place where a registry lies: a local folder, an S3-compatible server, or memory.
//!
//! Every request of this crate goes through [`Store`]: with a bound on what is read, with a bounded number of tries,
//! and with `create`, the one operation that decides between two writers.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{
    GetOptions, GetResult, GetResultPayload, ObjectMeta, ObjectStore, ObjectStoreExt as _, PutMode, PutPayload,
};

use crate::error::{Error, Result, shown};

/// How a large blob gets its name, which is known only when all of it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Upload {
    /// Written under another name while it is hashed, then moved: one pass. For stores where moving costs nothing.
    Staged,
    /// Hashed first, then written under its name: two passes over the file, one over the network.
    Addressed,
}

/// How often and how patiently a failed request is made again. The S3 client retries on its own, too: this is for
/// what it gives up on.
#[derive(Debug, Clone, Copy)]
pub struct Retry {
    /// Tries in all, at least 1.
    pub tries: u32,
    /// Wait after the first failure; doubled each time, up to 5 s.
    pub first_wait: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self { tries: 4, first_wait: Duration::from_millis(100) }
    }
}

impl Retry {
    async fn wait(&self, tried: u32) {
        let wait = self.first_wait.saturating_mul(1 << tried.min(16)).min(Duration::from_secs(5));
        // Two racers that wait equally long meet again: up to half as long again, by chance.
        let chance = ring::rand::generate::<[u8; 1]>(&ring::rand::SystemRandom::new()).map_or(0, |r| r.expose()[0]);
        tokio::time::sleep(wait + wait.mul_f64(f64::from(chance) / 512.0)).await;
    }
}

/// A local folder, `s3://bucket/prefix`, or `memory:` (for tests; gone with the process).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A folder of this machine.
    Folder(PathBuf),
    /// A bucket and a prefix in it.
    S3 {
        /// The bucket.
        bucket: String,
        /// Without slashes around it; may be empty.
        prefix: String,
    },
    /// This process's memory.
    Memory,
}

impl Location {
    /// Reads `s3://bucket[/prefix]`, `file:///path`, `memory:` or a path.
    ///
    /// # Errors
    /// [`Error::Argument`] for another scheme, an empty bucket, user names or queries in the address.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |problem: &str| Error::Argument {
            what: "registry",
            value: shown(text),
            problem: format!("{problem}; give a folder or s3://BUCKET[/PREFIX]"),
        };
        if text.is_empty() {
            return Err(wrong("is empty"));
        }
        if text == "memory:" {
            return Ok(Self::Memory);
        }
        if let Some(rest) = text.strip_prefix("s3://") {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            let plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b'_');
            if bucket.is_empty() || !bucket.bytes().all(plain) {
                return Err(wrong("has no usable bucket name"));
            }
            let prefix = prefix.trim_matches('/');
            let parts_good = prefix.is_empty()
                || prefix.split('/').all(|p| !p.is_empty() && p != "." && p != ".." && p.bytes().all(plain));
            if !parts_good {
                return Err(wrong(
                    "has a prefix with other than letters, digits, `-`, `_`, `.` between single slashes",
                ));
            }
            return Ok(Self::S3 { bucket: bucket.into(), prefix: prefix.into() });
        }
        if let Some(path) = text.strip_prefix("file://") {
            return if path.starts_with('/') {
                Ok(Self::Folder(path.into()))
            } else {
                Err(wrong("is a file address with a host"))
            };
        }
        if text.contains("://") {
            return Err(wrong("is of an unknown scheme"));
        }
        Ok(Self::Folder(text.into()))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => path.display().fmt(f),
            Self::S3 { bucket, prefix } if prefix.is_empty() => write!(f, "s3://{bucket}"),
            Self::S3 { bucket, prefix } => write!(f, "s3://{bucket}/{prefix}"),
            Self::Memory => f.write_str("memory:"),
        }
    }
}

/// A place for a registry, open.
#[derive(Clone)]
pub struct Store {
    inner: Arc<dyn ObjectStore>,
    pub(crate) location: String,
    pub(crate) upload: Upload,
    pub(crate) retry: Retry,
    /// Size in bytes above which a blob is sent in parts of this size.
    pub(crate) part: usize,
    /// The folder underneath, if it is one.
    folder: Option<PathBuf>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({})", self.location)
    }
}

/// What [`Store::create`] found.
#[derive(Debug)]
pub(crate) enum Created {
    /// The object is there with our bytes: written now, or by a try whose answer was lost.
    Ours,
    /// Another's object was there first.
    Theirs(Bytes),
}

const PART: usize = 8 << 20;

impl Store {
    /// Opens a location. A folder is made if `create`; a bucket must be there.
    ///
    /// S3 takes its settings from the environment, as AWS's own tools do: `AWS_ACCESS_KEY_ID`,
    /// `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION`, `AWS_ENDPOINT_URL` (another server than AWS),
    /// `AWS_ALLOW_HTTP=true` (a server without TLS), `AWS_CA_BUNDLE` (PEM file of a private authority). Addresses are
    /// of path style unless `AWS_VIRTUAL_HOSTED_STYLE_REQUEST=true`.
    ///
    /// # Errors
    /// [`Error::Argument`], [`Error::File`], [`Error::Store`] where settings make no sense.
    pub fn open(location: &Location, create: bool) -> Result<Self> {
        match location {
            Location::Memory => Ok(Self::over(Arc::new(object_store::memory::InMemory::new()), "memory:")),
            Location::Folder(path) => Self::folder(path, create),
            Location::S3 { bucket, prefix } => Self::s3(location, bucket, prefix),
        }
    }

    /// A store over any object store, as one for tests is.
    pub fn over(inner: Arc<dyn ObjectStore>, location: impl Into<String>) -> Self {
        let location = location.into();
        Self { inner, location, upload: Upload::Addressed, retry: Retry::default(), part: PART, folder: None }
    }

    /// Sets how failed requests are made again.
    pub fn with_retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Sets the size in bytes from which, and in which, blobs are sent in parts; S3 takes no parts below 5 MiB.
    pub fn with_part_size(mut self, bytes: usize) -> Self {
        self.part = bytes.max(1);
        self
    }

    /// Uploads blobs under a passing name and moves them: for stores where moving costs nothing.
    pub fn with_staged_uploads(mut self) -> Self {
        self.upload = Upload::Staged;
        self
    }

    fn folder(path: &std::path::Path, create: bool) -> Result<Self> {
        if create {
            std::fs::create_dir_all(path).map_err(Error::file(path))?;
        } else if !path.is_dir() {
            return Err(Error::NoRegistry { location: path.display().to_string() });
        }
        let location = path.display().to_string();
        // A record that a crash of the machine loses was never promised to anybody: written through.
        let inner = object_store::local::LocalFileSystem::new_with_prefix(path)
            .map_err(|source| Error::Store {
                location: location.clone(),
                doing: "open",
                object: "/".into(),
                source: Box::new(source),
            })?
            .with_fsync(true);
        let store = Self::over(Arc::new(inner), location).with_staged_uploads();
        Ok(Self { folder: Some(path.to_owned()), ..store })
    }

    fn s3(location: &Location, bucket: &str, prefix: &str) -> Result<Self> {
        use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
        // The HTTP client is built without a TLS library of its own; another one installed before is as good.
        let _installed_before = rustls::crypto::ring::default_provider().install_default();
        let failed = |source| Error::Store {
            location: location.to_string(),
            doing: "set up the client for",
            object: "s3".into(),
            source: Box::new(source),
        };
        let mut client = object_store::ClientOptions::new()
            .with_user_agent(reqwest::header::HeaderValue::from_static("bitnet-harness-registry"))
            .with_connect_timeout(Duration::from_secs(10))
            // Without one, a server that stops answering in the middle of a blob holds a command forever; a whole
            // part must pass within it.
            .with_timeout(Duration::from_secs(300));
        if let Some(path) = std::env::var_os("AWS_CA_BUNDLE").filter(|p| !p.is_empty()) {
            let path = PathBuf::from(path);
            let pem = std::fs::read(&path).map_err(Error::file(&path))?;
            for certificate in object_store::Certificate::from_pem_bundle(&pem).map_err(failed)? {
                client = client.with_root_certificate(certificate);
            }
        }
        if let Some(allow) = std::env::var_os("AWS_ALLOW_HTTP") {
            client = client.with_allow_http(allow.eq_ignore_ascii_case("true"));
        }
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(bucket)
            .with_client_options(client)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            // Objects are removed one at a time here, and the request that removes many is not everywhere.
            .with_config(AmazonS3ConfigKey::DisableBulkDelete, "true")
            .with_retry(object_store::RetryConfig {
                max_retries: 4,
                retry_timeout: Duration::from_secs(60),
                ..Default::default()
            });
        if builder.get_config_value(&AmazonS3ConfigKey::Region).is_none() {
            builder = builder.with_region("us-east-1");
        }
        let inner = builder.build().map_err(failed)?;
        let inner: Arc<dyn ObjectStore> =
            if prefix.is_empty() { Arc::new(inner) } else { Arc::new(PrefixStore::new(inner, prefix)) };
        Ok(Self::over(inner, location.to_string()))
    }

    fn error(&self, doing: &'static str, path: &Path, source: object_store::Error) -> Error {
        Error::Store { location: self.location.clone(), doing, object: path.to_string(), source: Box::new(source) }
    }

    pub(crate) fn object_store(&self) -> &Arc<dyn ObjectStore> {
        &self.inner
    }

    /// Opens an object at an offset; `None` if it is not there.
    pub(crate) async fn open_object(&self, path: &Path, from: u64) -> Result<Option<GetResult>> {
        let mut tried = 0;
        loop {
            let mut options = GetOptions::new();
            if from > 0 {
                options = options.with_range(Some(object_store::GetRange::Offset(from)));
            }
            match self.inner.get_opts(path, options).await {
                Ok(result) => return Ok(Some(result)),
                Err(object_store::Error::NotFound { .. }) => return Ok(None),
                Err(e) if passing(&e) && tried + 1 < self.retry.tries => self.retry.wait(tried).await,
                Err(e) => return Err(self.error("read", path, e)),
            }
            tried += 1;
        }
    }

    /// Reads an object of at most `limit` bytes; `None` if it is not there.
    pub(crate) async fn get(&self, path: &Path, limit: u64) -> Result<Option<Bytes>> {
        let mut tried = 0;
        loop {
            let Some(result) = self.open_object(path, 0).await? else {
                return Ok(None);
            };
            match self.collect(path, result, limit).await? {
                Ok(bytes) => return Ok(Some(bytes)),
                Err(e) if passing(&e) && tried + 1 < self.retry.tries => self.retry.wait(tried).await,
                Err(e) => return Err(self.error("read", path, e)),
            }
            tried += 1;
        }
    }

    /// The outer error is final, the inner one may pass.
    async fn collect(
        &self,
        path: &Path,
        result: GetResult,
        limit: u64,
    ) -> Result<std::result::Result<Bytes, object_store::Error>> {
        let size = result.meta.size;
        let too_large = |size| Error::TooLarge { object: path.to_string(), size, limit };
        if size > limit {
            return Err(too_large(size));
        }
        let mut bytes = BytesMut::with_capacity(size as usize);
        let mut stream = result.into_stream();
        while let Some(chunk) = stream.next().await {
            match chunk {
                Ok(chunk) => bytes.extend_from_slice(&chunk),
                Err(e) => return Ok(Err(e)),
            }
            if bytes.len() as u64 > limit {
                return Err(too_large(bytes.len() as u64));
            }
        }
        if bytes.len() as u64 != size {
            let source = format!("the answer ended after {} of {size} bytes", bytes.len()).into();
            return Ok(Err(object_store::Error::Generic { store: "registry", source }));
        }
        Ok(Ok(bytes.freeze()))
    }

    /// Writes an object that must not be there yet.
    ///
    /// 'There already' can mean that another was first, that a former try of ours arrived and its answer did not, or
    /// that two writers met and both were turned away (409): so the object is read, and if there is none, written
    /// again.
    pub(crate) async fn create(&self, path: &Path, bytes: &Bytes, limit: u64) -> Result<Created> {
        let mut tried = 0;
        loop {
            let payload = PutPayload::from(bytes.clone());
            let error = match self.inner.put_opts(path, payload, PutMode::Create.into()).await {
                Ok(_) => return Ok(Created::Ours),
                Err(e @ (object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. })) => {
                    match self.get(path, limit).await? {
                        Some(found) if found == *bytes => return Ok(Created::Ours),
                        Some(found) => return Ok(Created::Theirs(found)),
                        None => e,
                    }
                }
                Err(e) if passing(&e) => e,
                Err(e) => return Err(self.error("write", path, e)),
            };
            if tried + 1 >= self.retry.tries {
                return Err(self.error("write", path, error));
            }
            self.retry.wait(tried).await;
            tried += 1;
        }
    }

    /// Writes an object, whatever was there.
    pub(crate) async fn put(&self, path: &Path, bytes: &Bytes) -> Result<()> {
        let mut tried = 0;
        loop {
            match self.inner.put(path, bytes.clone().into()).await {
                Ok(_) => return Ok(()),
                Err(e) if passing(&e) && tried + 1 < self.retry.tries => self.retry.wait(tried).await,
                Err(e) => return Err(self.error("write", path, e)),
            }
            tried += 1;
        }
    }

    /// Size and time of an object; `None` if it is not there.
    pub(crate) async fn head(&self, path: &Path) -> Result<Option<ObjectMeta>> {
        let mut tried = 0;
        loop {
            match self.inner.head(path).await {
                Ok(meta) => return Ok(Some(meta)),
                Err(object_store::Error::NotFound { .. }) => return Ok(None),
                Err(e) if passing(&e) && tried + 1 < self.retry.tries => self.retry.wait(tried).await,
                Err(e) => return Err(self.error("look for", path, e)),
            }
            tried += 1;
        }
    }

    /// Removes an object; one that is not there is removed.
    pub(crate) async fn delete(&self, path: &Path) -> Result<()> {
        let mut tried = 0;
        loop {
            match self.inner.delete(path).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => return Ok(()),
                Err(e) if passing(&e) && tried + 1 < self.retry.tries => self.retry.wait(tried).await,
                Err(e) => return Err(self.error("remove", path, e)),
            }
            tried += 1;
        }
    }

    /// Moves an object to a name that may be taken, by the same bytes.
    pub(crate) async fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let mut tried = 0;
        loop {
            match self.inner.rename(from, to).await {
                Ok(()) => return Ok(()),
                // A former try may have moved it.
                Err(object_store::Error::NotFound { .. }) if tried > 0 && self.head(to).await?.is_some() => {
                    return Ok(());
                }
                Err(e) if passing(&e) && tried + 1 < self.retry.tries => self.retry.wait(tried).await,
                Err(e) => return Err(self.error("move", from, e)),
            }
            tried += 1;
        }
    }

    /// Every object under a prefix, in the order of names.
    pub(crate) async fn list(&self, prefix: &Path, after: Option<&Path>) -> Result<Vec<ObjectMeta>> {
        let mut tried = 0;
        loop {
            let stream = match after {
                Some(after) => self.inner.list_with_offset(Some(prefix), after),
                None => self.inner.list(Some(prefix)),
            };
            match stream.try_collect::<Vec<_>>().await {
                Ok(mut found) => {
                    found.sort_by(|a, b| a.location.cmp(&b.location));
                    return Ok(found);
                }
                Err(object_store::Error::NotFound { .. }) => return Ok(Vec::new()),
                Err(e) if passing(&e) && tried + 1 < self.retry.tries => self.retry.wait(tried).await,
                Err(e) => return Err(self.error("list", prefix, e)),
            }
            tried += 1;
        }
    }

    /// The names one level below a prefix that have something below them.
    pub(crate) async fn folders(&self, prefix: &Path) -> Result<Vec<Path>> {
        let mut tried = 0;
        loop {
            match self.inner.list_with_delimiter(Some(prefix)).await {
                Ok(result) => return Ok(result.common_prefixes),
                Err(object_store::Error::NotFound { .. }) => return Ok(Vec::new()),
                Err(e) if passing(&e) && tried + 1 < self.retry.tries => self.retry.wait(tried).await,
                Err(e) => return Err(self.error("list", prefix, e)),
            }
            tried += 1;
        }
    }

    /// Of a folder: what writers that were killed left beside their targets, `NAME#NUMBER`, with the time in seconds
    /// since 1970-01-01 UTC and the size in bytes. The store's own lists leave them out.
    pub(crate) fn leftovers(&self) -> Result<Vec<(PathBuf, u64, u64)>> {
        let mut found = Vec::new();
        let mut folders: Vec<PathBuf> = self.folder.iter().cloned().collect();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).map_err(Error::file(&folder))? {
                let entry = entry.map_err(Error::file(&folder))?;
                let path = entry.path();
                // Not through links: they could lead anywhere.
                let metadata = match std::fs::symlink_metadata(&path) {
                    Ok(metadata) => metadata,
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                    Err(e) => return Err(Error::File { path, source: e }),
                };
                let name = entry.file_name();
                let numbered = name
                    .to_str()
                    .and_then(|n| n.rsplit_once('#'))
                    .is_some_and(|(_, number)| !number.is_empty() && number.bytes().all(|c| c.is_ascii_digit()));
                if metadata.is_dir() {
                    folders.push(path);
                } else if metadata.is_file() && numbered {
                    let modified = metadata.modified().ok().and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok());
                    // Of an unknown time it is taken for new, and stays.
                    found.push((path, modified.map_or(u64::MAX, |d| d.as_secs()), metadata.len()));
                }
            }
        }
        Ok(found)
    }

    /// Whether the store refuses a second write to a name.
    pub(crate) async fn probe(&self) -> Result<()> {
        let random: [u8; 16] = random();
        let name: String = random.iter().map(|b| format!("{b:02x}")).collect();
        let path = Path::from(format!("probe/{name}"));
        let (first, second) = (Bytes::from_static(b"first"), Bytes::from_static(b"second"));
        let refused = |problem: String| Error::Unconditional { location: self.location.clone(), problem };
        let outcome = async {
            match self.inner.put_opts(&path, first.clone().into(), PutMode::Create.into()).await {
                Ok(_) => {}
                Err(e @ (object_store::Error::NotImplemented { .. } | object_store::Error::NotSupported { .. })) => {
                    return Err(refused(format!("does not know 'create if absent' ({e})")));
                }
                Err(e) if passing(&e) || matches!(e, object_store::Error::AlreadyExists { .. }) => {
                    // Its answer may have been lost, so that the object can be there: that is all that is asked here.
                    self.put(&path, &first).await?;
                }
                Err(e) => return Err(self.error("write", &path, e)),
            }
            let mut tried = 0;
            loop {
                match self.inner.put_opts(&path, second.clone().into(), PutMode::Create.into()).await {
                    Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => break,
                    Ok(_) => return Err(refused("accepts a second write to an existing name".into())),
                    Err(e) if passing(&e) && tried + 1 < self.retry.tries => self.retry.wait(tried).await,
                    Err(e) => return Err(refused(format!("fails where it should refuse a second write ({e})"))),
                }
                tried += 1;
            }
            // A store that says 'already there' and writes all the same is none, either.
            match self.get(&path, 16).await? {
                Some(found) if found == first => Ok(()),
                found => Err(refused(format!("refused a second write and yet holds {found:?}"))),
            }
        }
        .await;
        let removed = self.delete(&path).await;
        outcome.and(removed)
    }
}

/// Whether an error of a store may be gone at the next try.
pub(crate) fn passing(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::Generic { .. } | object_store::Error::JoinError { .. })
}

/// Random bytes for names that nobody else shall have.
///
/// # Panics
/// If the system has no random numbers to give.
pub(crate) fn random<const N: usize>() -> [u8; N]
where
    [u8; N]: ring::rand::RandomlyConstructable,
{
    ring::rand::generate(&ring::rand::SystemRandom::new()).expect("the system's random number generator works").expose()
}

/// The file under a result of a local store, to be read without a copy through small chunks.
pub(crate) fn local_file(result: &mut GetResult) -> Option<std::fs::File> {
    match &result.payload {
        GetResultPayload::File(file, _) => file.try_clone().ok(),
        GetResultPayload::Stream(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_folders_or_buckets() {
        let parse = |text| Location::parse(text).unwrap();
        assert_eq!(parse("some/folder"), Location::Folder("some/folder".into()));
        assert_eq!(parse("file:///a/b"), Location::Folder("/a/b".into()));
        assert_eq!(parse("s3://b"), Location::S3 { bucket: "b".into(), prefix: String::new() });
        assert_eq!(parse("s3://b.c-d/p/q/"), Location::S3 { bucket: "b.c-d".into(), prefix: "p/q".into() });
        assert_eq!(parse("s3://b/p").to_string(), "s3://b/p");
        for wrong in
            ["", "s3://", "s3:///p", "s3://key:secret@b/p", "s3://b/../p", "s3://b/p?x=1", "gs://b", "file://h/p"]
        {
            assert!(Location::parse(wrong).is_err(), "{wrong}");
        }
    }
}
