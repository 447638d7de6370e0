//! Fetches files of a model from a HuggingFace-like hub: listed with their hashes, resumable, checked.
//!
//! The hub's API gives each file's size and hash at one commit: SHA-256 for large files (LFS), the git blob's SHA-1 for
//! the others. A file is fetched into a `.part` beside its place, which a later call goes on with, and is renamed only
//! when size and hash are right.
//!
//! One pull at a time writes to a folder: it holds an advisory lock on it, and one on the part, which end with the
//! process however that ends. Not every file system has such locks; a part is therefore only written to while it still
//! stands in its place, and a process that was stopped meanwhile cannot write into a file that another one finished.
//!
//! Neither the hub nor the folder is trusted: what is read is bounded in length and in time, redirects are followed by
//! hand (their bodies are never read), and links in the way are not followed.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sha1::{Digest as _, Sha1};
use sha2::Sha256;
use ureq::tls::{PemItem, RootCerts, TlsConfig};

use files::atomic_file::{self, AtomicFileError, Overwrite};
use files::input_file;

/// The hub, where nothing else is said (`HF_ENDPOINT`).
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Longest file of certificates that is read, bytes; a system's own bundle has some 250 kB.
const MAX_CERTIFICATES: u64 = 4 << 20;

/// Longest listing of a repository that is read, bytes; some twenty thousand files.
const MAX_LISTING: u64 = 8 << 20;

/// Largest file, bytes; ten times a large model. What a hub states beyond it would only fill the disk.
const MAX_FILE: u64 = 1 << 40;

/// Most redirects of one request.
const MAX_REDIRECTS: usize = 8;

/// Time without data before a connection counts as dead, where nothing else is said.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Least bytes in the time of [`PullOptions::patience`]: a byte now and then is no answer either.
const SLOWEST: u64 = 4096;

/// How many times that a listing may take as a whole.
const LISTING_PATIENCE: u32 = 4;

/// Attempts at a file before giving up; each goes on where the last one stopped.
const ATTEMPTS: u32 = 4;

/// Bytes read at once.
const PIECE: usize = 1 << 18;

/// Why a model was not fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PullError {
    /// An argument that cannot be right.
    #[error("{what} '{value}': {need}")]
    Argument {
        /// Which.
        what: &'static str,
        /// Its value.
        value: String,
        /// What would work.
        need: &'static str,
    },
    /// The file of trusted certificates is none.
    #[error("SSL_CERT_FILE {}: {problem}", path.display())]
    Certificates {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The connection failed.
    #[error("{url}: {reason}")]
    Connection {
        /// What was asked for.
        url: String,
        /// What went wrong.
        reason: String,
    },
    /// The hub said no.
    #[error("{url}: the hub answers {status}{}", advice(*status))]
    Status {
        /// What was asked for.
        url: String,
        /// The status.
        status: u16,
    },
    /// The listing is not what the hub's API describes.
    #[error("{url}: {problem}")]
    Listing {
        /// What was asked for.
        url: String,
        /// What is wrong.
        problem: String,
    },
    /// The repository has none of the files.
    #[error("{repository} has no file {wanted}; it has {available}")]
    NoFile {
        /// The repository.
        repository: String,
        /// What was asked for.
        wanted: String,
        /// Some of what there is.
        available: String,
    },
    /// What came is not what the listing says.
    #[error("{file}: {what} is {found}, the hub's listing says {expected}; the partial file was removed")]
    Mismatch {
        /// The file.
        file: String,
        /// Size, or a hash.
        what: &'static str,
        /// What came.
        found: String,
        /// What was listed.
        expected: String,
    },
    /// What stands at a file's place is no file.
    #[error(transparent)]
    Target(#[from] AtomicFileError),
    /// A file of that name is there already and differs.
    #[error("{} exists and is not the listed file; pass --force to replace it", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Another process fetches into the folder.
    #[error(
        "{}: another `model pull` is writing there, running or stopped; let it end or end it, or name another folder",
        path.display()
    )]
    Busy {
        /// The folder, or the partial file.
        path: PathBuf,
    },
    /// The disk.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The cancel flag was set; what came is kept.
    #[error("interrupted; run the same command to go on")]
    Cancelled,
}

fn advice(status: u16) -> &'static str {
    match status {
        401 | 403 => " (a gated or private model needs a token in HF_TOKEN)",
        404 => " (no such repository, revision or file)",
        429 => " (too many requests; try later)",
        _ => "",
    }
}

/// What to fetch, and from where.
#[derive(Debug, Clone)]
pub struct PullOptions {
    /// Hub, such as [`DEFAULT_ENDPOINT`].
    pub endpoint: String,
    /// `owner/name`.
    pub repository: String,
    /// Branch, tag or commit.
    pub revision: String,
    /// Names to fetch; empty means what a conversion needs, or the GGUF files where there are no weights in
    /// safetensors.
    pub files: Vec<String>,
    /// Token of the hub.
    pub token: Option<String>,
    /// Folder to write to.
    pub folder: PathBuf,
    /// Replace files that differ from the listed ones.
    pub force: bool,
    /// Time without data before a connection counts as dead, such as [`PATIENCE`].
    pub patience: Duration,
    /// PEM file of the certificates to trust in place of Mozilla's, for a mirror with one of its own.
    pub certificates: Option<PathBuf>,
}

/// A file of the listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RemoteFile {
    /// Path in the repository.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// `sha256:…`, or `git-sha1:…` of the blob.
    pub hash: String,
}

/// What was done.
#[derive(Debug, Clone, Serialize)]
pub struct Pulled {
    /// The commit that the revision stood for.
    pub commit: String,
    /// Files, in the order fetched.
    pub files: Vec<PulledFile>,
}

/// One file.
#[derive(Debug, Clone, Serialize)]
pub struct PulledFile {
    /// The listed file.
    #[serde(flatten)]
    pub file: RemoteFile,
    /// Bytes that came over the network now; 0 if it was there.
    pub fetched: u64,
}

#[derive(Deserialize)]
struct Listing {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    #[serde(default)]
    size: Option<u64>,
    #[serde(rename = "blobId", default)]
    blob_id: Option<String>,
    #[serde(default)]
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

/// An open answer.
struct Answer {
    status: u16,
    /// First byte of a partial answer.
    start: Option<u64>,
    body: Box<dyn Read>,
}

struct Hub<'o> {
    options: &'o PullOptions,
    agent: ureq::Agent,
}

impl Hub<'_> {
    fn get(&self, url: &str, from: u64) -> Result<Answer, PullError> {
        let failed = |reason: String| PullError::Connection { url: url.to_owned(), reason };
        let endpoint = Address::of(&self.options.endpoint);
        let mut at = url.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            let mut request = self.agent.get(&at);
            if from > 0 {
                request = request.header("Range", format!("bytes={from}-"));
            }
            let here = Address::of(&at);
            // Elsewhere the token is nobody's business.
            let trusted = here.is_some() && here == endpoint;
            if let Some(token) = self.options.token.as_ref().filter(|_| trusted) {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            let answer = request.call().map_err(|e| failed(e.to_string()))?;
            let status = answer.status().as_u16();
            let header = |name: &str| answer.headers().get(name).and_then(|v| v.to_str().ok());
            if matches!(status, 301 | 302 | 303 | 307 | 308) {
                let location = header("location").unwrap_or_default();
                at = redirected(&at, location).ok_or_else(|| {
                    let to: String = location.chars().take(200).flat_map(char::escape_debug).collect();
                    failed(format!("a redirect from {at} to '{to}', which is not followed"))
                })?;
                continue;
            }
            let start = header("content-range").and_then(|v| v.strip_prefix("bytes ")?.split_once('-')?.0.parse().ok());
            return Ok(Answer { status, start, body: Box::new(answer.into_body().into_reader()) });
        }
        Err(failed(format!("more than {MAX_REDIRECTS} redirects")))
    }
}

/// Scheme and authority of a URL.
#[derive(Debug, PartialEq, Eq)]
struct Address {
    secure: bool,
    /// Host and port, in small letters.
    authority: String,
}

impl Address {
    /// `None` for anything but http and https, for user names (`http://localhost@elsewhere`) and for nonsense.
    fn of(url: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let secure = match scheme.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let authority = rest.split(['/', '?', '#']).next()?.to_ascii_lowercase();
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '[' | ']');
        (!authority.is_empty() && authority.chars().all(plain)).then_some(Self { secure, authority })
    }

    /// Is it this machine?
    fn is_local(&self) -> bool {
        // What stands behind the last colon is a port where it is a number; a colon inside of brackets is none.
        let host = match self.authority.rsplit_once(':') {
            Some((host, port)) if port.chars().all(|c| c.is_ascii_digit()) => host,
            _ => &self.authority,
        };
        matches!(host, "127.0.0.1" | "localhost" | "[::1]")
    }
}

/// Where a redirect leads, as far as it is followed: to an address or an absolute path, and never out of https.
fn redirected(from: &str, location: &str) -> Option<String> {
    let here = Address::of(from)?;
    let to = if location.starts_with('/') && !location.starts_with("//") {
        format!("{}://{}{location}", if here.secure { "https" } else { "http" }, here.authority)
    } else {
        location.to_owned()
    };
    let there = Address::of(&to)?;
    (there.secure || !here.secure).then_some(to)
}

/// Fetches the files. `progress` gets the file, its bytes so far and in total.
///
/// # Errors
/// See [`PullError`]; files that were complete stay.
pub fn pull(
    options: &PullOptions,
    progress: &mut dyn FnMut(&str, u64, u64),
    cancel: &AtomicBool,
) -> Result<Pulled, PullError> {
    check(options)?;
    let tls = match &options.certificates {
        Some(path) => TlsConfig::builder().root_certs(root_certificates(path)?).build(),
        None => TlsConfig::default(),
    };
    let config = ureq::Agent::config_builder()
        .tls_config(tls)
        .timeout_resolve(Some(options.patience))
        .timeout_connect(Some(options.patience))
        .timeout_recv_response(Some(options.patience))
        .timeout_per_read(Some(options.patience))
        // Followed by hand: the client would read a redirect's body to its end, and there may be none.
        .max_redirects(0)
        .http_status_as_error(false)
        .user_agent(concat!("bitnet-harness/", env!("CARGO_PKG_VERSION")))
        .build();
    let hub = Hub { options, agent: config.into() };
    let (commit, listed) = listing(&hub, cancel)?;
    let wanted = select(options, &listed)?;
    let folder_io = |source| PullError::Io { path: options.folder.clone(), source };
    fs::create_dir_all(&options.folder).map_err(folder_io)?;
    // A folder that cannot be listed can be written to: it is only not locked.
    let folder = File::open(&options.folder).ok();
    if folder.as_ref().is_some_and(is_locked_elsewhere) {
        return Err(PullError::Busy { path: options.folder.clone() });
    }
    let mut files = Vec::new();
    for file in wanted {
        let fetched = fetch(&hub, &commit, file, progress, cancel)?;
        files.push(PulledFile { file: file.clone(), fetched });
    }
    Ok(Pulled { commit, files })
}

/// The certificates of a PEM file; what else is in it does not matter.
fn root_certificates(path: &Path) -> Result<RootCerts, PullError> {
    let refuse = |problem: String| PullError::Certificates { path: path.to_owned(), problem };
    let text = input_file::read(path, MAX_CERTIFICATES).map_err(|e| refuse(e.to_string()))?;
    let mut found = Vec::new();
    for item in ureq::tls::parse_pem(&text) {
        if let PemItem::Certificate(certificate) = item.map_err(|e| refuse(e.to_string()))? {
            found.push(certificate);
        }
    }
    if found.is_empty() {
        return Err(refuse("it holds no certificate (-----BEGIN CERTIFICATE-----)".into()));
    }
    Ok(RootCerts::Specific(std::sync::Arc::new(found)))
}

fn check(options: &PullOptions) -> Result<(), PullError> {
    let refuse =
        |what, value: &str, need| Err(PullError::Argument { what, value: value.escape_debug().to_string(), need });
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name = |part: &str| !part.is_empty() && part.chars().all(plain) && part != "." && part != "..";
    match options.repository.split_once('/') {
        Some((owner, model)) if name(owner) && name(model) => {}
        _ => return refuse("repository", &options.repository, "owner/name is needed"),
    }
    let revision = &options.revision;
    if revision.is_empty() || !revision.split('/').all(name) {
        return refuse("--revision", revision, "a branch, tag or commit is needed");
    }
    let endpoint = &options.endpoint;
    let Some(address) = Address::of(endpoint).filter(|_| !endpoint.contains(['?', '#'])) else {
        return refuse("endpoint", endpoint, "an http:// or https:// address without a user name is needed");
    };
    if !address.secure && !address.is_local() && options.token.is_some() {
        return refuse("endpoint", endpoint, "a token is only sent over https, or to this machine");
    }
    Ok(())
}

fn base(options: &PullOptions) -> &str {
    options.endpoint.trim_end_matches('/')
}

fn listing(hub: &Hub<'_>, cancel: &AtomicBool) -> Result<(String, Vec<RemoteFile>), PullError> {
    let o = hub.options;
    let revision = o.revision.replace('/', "%2F");
    let url = format!("{}/api/models/{}/revision/{revision}?blobs=true", base(o), o.repository);
    let started = Instant::now();
    let mut answer = hub.get(&url, 0)?;
    if answer.status != 200 {
        return Err(PullError::Status { url, status: answer.status });
    }
    let failed = |reason: String| PullError::Connection { url: url.clone(), reason };
    let bad = |problem: String| PullError::Listing { url: url.clone(), problem };
    let (mut text, mut piece) = (Vec::new(), vec![0; PIECE]);
    loop {
        if cancel.load(Ordering::Relaxed) {
            return Err(PullError::Cancelled);
        }
        match answer.body.read(&mut piece).map_err(|e| failed(e.to_string()))? {
            0 => break,
            n => text.extend_from_slice(&piece[..n]),
        }
        if text.len() as u64 > MAX_LISTING {
            return Err(bad(format!("the listing is longer than {MAX_LISTING} bytes")));
        }
        let limit = o.patience * LISTING_PATIENCE;
        if started.elapsed() > limit {
            return Err(failed(format!("the listing is not there after {} s", limit.as_secs())));
        }
    }
    parse_listing(&text).map_err(bad)
}

fn parse_listing(text: &[u8]) -> Result<(String, Vec<RemoteFile>), String> {
    let listing: Listing = serde_json::from_slice(text).map_err(|e| format!("no listing of files: {e}"))?;
    let hex = |text: &str, len: usize| text.len() == len && text.bytes().all(|b| b.is_ascii_hexdigit());
    if !hex(&listing.sha, 40) {
        return Err("its commit is no SHA-1".into());
    }
    let mut files = Vec::new();
    let mut names = HashSet::new();
    for s in listing.siblings {
        let shown: String = s.rfilename.chars().take(200).flat_map(char::escape_debug).collect();
        // The name becomes a path on this machine.
        let path = Path::new(&s.rfilename);
        let inside = path.components().all(|c| matches!(c, Component::Normal(_)));
        // It is shown to people as well.
        let odd = |c: char| c.is_control() || matches!(c, '\\' | ':' | '?' | '#' | '%');
        if s.rfilename.is_empty() || !inside || s.rfilename.contains(odd) {
            return Err(format!("'{shown}' is no plain path inside the repository"));
        }
        if !names.insert(s.rfilename.clone()) {
            return Err(format!("'{shown}' stands there twice"));
        }
        let (size, hash) = match (s.lfs, s.size, s.blob_id) {
            (Some(lfs), _, _) if hex(&lfs.sha256, 64) => (lfs.size, format!("sha256:{}", lfs.sha256.to_lowercase())),
            (None, Some(size), Some(id)) if hex(&id, 40) => (size, format!("git-sha1:{}", id.to_lowercase())),
            _ => return Err(format!("'{shown}' has no size and hash")),
        };
        if size > MAX_FILE {
            return Err(format!("'{shown}' has {size} bytes; at most {MAX_FILE} are fetched"));
        }
        files.push(RemoteFile { name: s.rfilename, size, hash });
    }
    let above =
        |file: &RemoteFile| file.name.match_indices('/').find_map(|(at, _)| names.get(&file.name[..at]).cloned());
    if let Some(name) = files.iter().find_map(above) {
        let shown: String = name.chars().take(200).flat_map(char::escape_debug).collect();
        return Err(format!("'{shown}' is a file and a folder"));
    }
    Ok((listing.sha, files))
}

fn select<'f>(options: &PullOptions, listed: &'f [RemoteFile]) -> Result<Vec<&'f RemoteFile>, PullError> {
    let none = |wanted: String| {
        let names: Vec<&str> = listed.iter().take(20).map(|f| f.name.as_str()).collect();
        PullError::NoFile { repository: options.repository.clone(), wanted, available: names.join(", ") }
    };
    if !options.files.is_empty() {
        return options
            .files
            .iter()
            .map(|name| listed.iter().find(|f| &f.name == name).ok_or_else(|| none(name.clone())))
            .collect();
    }
    let top = |f: &&RemoteFile| !f.name.contains('/');
    let weights: Vec<&RemoteFile> = listed.iter().filter(top).filter(|f| f.name.ends_with(".safetensors")).collect();
    if weights.is_empty() {
        let gguf: Vec<&RemoteFile> = listed.iter().filter(|f| f.name.ends_with(".gguf")).collect();
        return if gguf.is_empty() { Err(none("*.safetensors or *.gguf".into())) } else { Ok(gguf) };
    }
    const BESIDE: [&str; 6] = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "model.safetensors.index.json",
    ];
    let beside = listed.iter().filter(|f| BESIDE.contains(&f.name.as_str()));
    Ok(beside.chain(weights).collect())
}

/// The hash of the listing over a file's bytes.
enum Hasher {
    Sha256(Sha256),
    GitBlob(Sha1),
}

impl Hasher {
    fn new(file: &RemoteFile) -> Self {
        if file.hash.starts_with("sha256:") {
            return Self::Sha256(Sha256::new());
        }
        let mut sha1 = Sha1::new();
        sha1.update(format!("blob {}\0", file.size));
        Self::GitBlob(sha1)
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(h) => h.update(bytes),
            Self::GitBlob(h) => h.update(bytes),
        }
    }

    fn finish(self) -> String {
        let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
        match self {
            Self::Sha256(h) => format!("sha256:{}", hex(&h.finalize())),
            Self::GitBlob(h) => format!("git-sha1:{}", hex(&h.finalize())),
        }
    }
}

fn hash_of(mut input: &File, file: &RemoteFile) -> io::Result<String> {
    let mut hasher = Hasher::new(file);
    let mut piece = vec![0; PIECE];
    loop {
        match input.read(&mut piece)? {
            0 => return Ok(hasher.finish()),
            n => hasher.update(&piece[..n]),
        }
    }
}

/// Fetches one file; returns the bytes that came over the network.
fn fetch(
    hub: &Hub<'_>,
    commit: &str,
    file: &RemoteFile,
    progress: &mut dyn FnMut(&str, u64, u64),
    cancel: &AtomicBool,
) -> Result<u64, PullError> {
    let path = hub.options.folder.join(&file.name);
    let io = |source| PullError::Io { path: path.clone(), source };
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(io)?;
    }
    atomic_file::check_target(&path, Overwrite::Replace)?;
    // A link that leads nowhere is something that exists.
    if fs::symlink_metadata(&path).is_ok() {
        if let Ok(metadata) = fs::metadata(&path)
            && metadata.is_file()
            && metadata.len() == file.size
            && File::open(&path).and_then(|whole| hash_of(&whole, file)).map_err(io)? == file.hash
        {
            return Ok(0);
        }
        if !hub.options.force {
            return Err(PullError::Exists { path });
        }
    }
    // The part is named after the content, so that a new revision never goes on with an old one's.
    let digest: String = file.hash.chars().skip_while(|c| *c != ':').skip(1).take(12).collect();
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let part = path.with_file_name(format!(".{name}.{digest}.part"));
    let part_io = |source| PullError::Io { path: part.clone(), source };
    let url = format!("{}/{}/resolve/{commit}/{}", base(hub.options), hub.options.repository, file.name);
    let mut out = Part::open(&part)?;
    let mut fetched = 0;
    for attempt in 1.. {
        let have = out.file.metadata().map_err(part_io)?.len();
        match attempt_once(hub, &url, file, &mut out, have, &mut fetched, progress, cancel) {
            Ok(()) => {
                out.file.sync_all().map_err(part_io)?;
                break;
            }
            Err(Attempt::Failed(PullError::Connection { .. })) if attempt < ATTEMPTS => {}
            Err(Attempt::Failed(e @ PullError::Mismatch { .. })) => {
                out.remove().map_err(part_io)?;
                return Err(e);
            }
            Err(failure) => {
                // Nothing came: nothing to go on with.
                if out.file.metadata().is_ok_and(|m| m.len() == 0) {
                    let _ = out.remove();
                }
                return Err(match failure {
                    Attempt::Failed(e) => e,
                    Attempt::Disk(e) => part_io(e),
                });
            }
        }
    }
    out.file.seek(SeekFrom::Start(0)).map_err(part_io)?;
    let found = hash_of(&out.file, file).map_err(part_io)?;
    if found != file.hash {
        out.remove().map_err(part_io)?;
        return Err(PullError::Mismatch {
            file: file.name.clone(),
            what: "the hash",
            found,
            expected: file.hash.clone(),
        });
    }
    // Again: the download may have been long.
    let overwrite = if hub.options.force { Overwrite::Replace } else { Overwrite::Refuse };
    atomic_file::check_target(&path, overwrite)?;
    // What was verified is what gets the name.
    out.in_place().map_err(part_io)?;
    fs::rename(&part, &path).map_err(io)?;
    Ok(fetched)
}

/// Takes the lock, for as long as the file is open. Where the file system has none, it is nobody's.
fn is_locked_elsewhere(file: &File) -> bool {
    matches!(file.try_lock(), Err(TryLockError::WouldBlock))
}

/// A partial file that this process alone writes to.
struct Part<'p> {
    path: &'p Path,
    file: File,
}

impl<'p> Part<'p> {
    fn open(path: &'p Path) -> Result<Self, PullError> {
        let io = |source| PullError::Io { path: path.to_owned(), source };
        let part = Self { path, file: open_part(path).map_err(io)? };
        if is_locked_elsewhere(&part.file) {
            return Err(PullError::Busy { path: path.to_owned() });
        }
        // Whoever held the lock until now may have put the file in its place.
        part.in_place().map_err(io)?;
        Ok(part)
    }

    /// Fails where the open file is no longer the one of that name: it was finished, removed or replaced by another
    /// process, and what is written now would go into a file that is somebody else's.
    fn in_place(&self) -> io::Result<()> {
        let same = |m: &fs::Metadata, n: &fs::Metadata| (m.dev(), m.ino()) == (n.dev(), n.ino());
        match fs::symlink_metadata(self.path) {
            Ok(there) if same(&there, &self.file.metadata()?) => Ok(()),
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Err(io::Error::other("was finished, removed or replaced by another process meanwhile")),
        }
    }

    fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        self.in_place()?;
        self.file.write_all(piece)
    }

    /// Empties it.
    fn restart(&mut self) -> io::Result<()> {
        self.in_place()?;
        self.file.set_len(0)
    }

    fn remove(&self) -> io::Result<()> {
        self.in_place()?;
        fs::remove_file(self.path)
    }
}

/// Opens the partial file, or makes it. Its name can be foretold: a link that somebody put there is not followed, and a
/// pipe not waited for.
fn open_part(part: &Path) -> io::Result<File> {
    let found = match fs::symlink_metadata(part) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return OpenOptions::new().create_new(true).read(true).append(true).open(part);
        }
        found => found?,
    };
    let refuse = |what: &str| Err(io::Error::other(format!("is {what}, not a partial download; remove it")));
    if !found.is_file() {
        return refuse(input_file::kind(found.file_type()));
    }
    let file = OpenOptions::new().read(true).append(true).open(part)?;
    let opened = file.metadata()?;
    if (opened.dev(), opened.ino()) == (found.dev(), found.ino()) { Ok(file) } else { refuse("exchanged meanwhile") }
}

/// Tells a slow answer from one that only keeps the connection open.
struct Pace {
    since: Instant,
    have: u64,
}

impl Pace {
    /// The bytes since the last look where they are too few; a look is taken once in the time of `patience`.
    fn too_slow(&mut self, now: Instant, have: u64, patience: Duration) -> Option<u64> {
        if now.duration_since(self.since) <= patience {
            return None;
        }
        let bytes = have.saturating_sub(self.have);
        *self = Self { since: now, have };
        (bytes < SLOWEST).then_some(bytes)
    }
}

enum Attempt {
    Failed(PullError),
    Disk(io::Error),
}

impl From<PullError> for Attempt {
    fn from(e: PullError) -> Self {
        Self::Failed(e)
    }
}

#[allow(clippy::too_many_arguments, reason = "one step of `fetch`, which owns all of it")]
fn attempt_once(
    hub: &Hub<'_>,
    url: &str,
    file: &RemoteFile,
    out: &mut Part<'_>,
    mut have: u64,
    fetched: &mut u64,
    progress: &mut dyn FnMut(&str, u64, u64),
    cancel: &AtomicBool,
) -> Result<(), Attempt> {
    if have > file.size {
        out.restart().map_err(Attempt::Disk)?;
        have = 0;
    }
    if have == file.size {
        return Ok(());
    }
    let mut answer = hub.get(url, have)?;
    match (answer.status, answer.start) {
        (206, Some(start)) if start == have => {}
        // No ranges, or another one than asked for: from the beginning.
        (200, _) => {
            out.restart().map_err(Attempt::Disk)?;
            have = 0;
        }
        (206 | 416, _) => {
            out.restart().map_err(Attempt::Disk)?;
            let reason = format!("the hub did not go on at byte {have}");
            return Err(PullError::Connection { url: url.to_owned(), reason }.into());
        }
        (status, _) => return Err(PullError::Status { url: url.to_owned(), status }.into()),
    }
    let mut piece = vec![0; PIECE];
    let mut pace = Pace { since: Instant::now(), have };
    loop {
        if cancel.load(Ordering::Relaxed) {
            return Err(PullError::Cancelled.into());
        }
        if let Some(bytes) = pace.too_slow(Instant::now(), have, hub.options.patience) {
            let reason = format!("{bytes} bytes in {} s are too slow", hub.options.patience.as_secs());
            return Err(PullError::Connection { url: url.to_owned(), reason }.into());
        }
        let n = answer
            .body
            .read(&mut piece)
            .map_err(|e| PullError::Connection { url: url.to_owned(), reason: e.to_string() })?;
        if n == 0 {
            break;
        }
        have += n as u64;
        if have > file.size {
            return Err(PullError::Mismatch {
                file: file.name.clone(),
                what: "the size",
                found: format!("more than {}", file.size),
                expected: file.size.to_string(),
            }
            .into());
        }
        out.write(&piece[..n]).map_err(Attempt::Disk)?;
        *fetched += n as u64;
        progress(&file.name, have, file.size);
    }
    if have < file.size {
        let reason = format!("the connection ended at byte {have} of {}", file.size);
        return Err(PullError::Connection { url: url.to_owned(), reason }.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader};
    use std::net::TcpListener;
    use std::sync::{Arc, Mutex, mpsc};

    const COMMIT: &str = "0123456789012345678901234567890123456789";

    /// How the server misbehaves.
    #[derive(Clone, Copy, PartialEq)]
    enum Manner {
        Sound,
        /// Closes the connection after so many bytes of a body, once.
        CutOnce(usize),
        /// Ignores ranges.
        NoRanges,
        /// Another byte in the middle.
        Altered,
        /// Sends more than it lists.
        TooLong,
        /// Sends the first so many bytes of a body, then nothing, and keeps the connection open.
        Silent(usize),
        /// Sends the first so many bytes of the first body, and the rest when it is told to.
        Held(usize),
    }

    struct Server {
        endpoint: String,
        requests: Arc<Mutex<Vec<String>>>,
        /// Dropped, it lets the held body go on.
        go_on: Option<mpsc::Sender<()>>,
    }

    fn weights() -> Vec<u8> {
        (0..100_000u32).map(|i| (i * 7 % 251) as u8).collect()
    }

    fn serve(manner: Manner) -> Server {
        serve_over(manner, None)
    }

    /// With TLS where a configuration is given.
    fn serve_over(manner: Manner, tls: Option<Arc<rustls::ServerConfig>>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let endpoint = format!("{scheme}://{}/", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        let (go_on, held) = mpsc::channel();
        let once = Arc::new(Mutex::new(Once { manner, held }));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { break };
                let (tls, seen, once) = (tls.clone(), Arc::clone(&seen), Arc::clone(&once));
                std::thread::spawn(move || match tls {
                    None => answer(stream, manner, &once, &seen),
                    Some(tls) => {
                        let connection = rustls::ServerConnection::new(tls).unwrap();
                        answer(rustls::StreamOwned::new(connection, stream), manner, &once, &seen);
                    }
                });
            }
        });
        Server { endpoint, requests, go_on: Some(go_on) }
    }

    /// What happens to the first body only.
    struct Once {
        manner: Manner,
        held: mpsc::Receiver<()>,
    }

    fn answer(mut stream: impl Read + io::Write, manner: Manner, once: &Mutex<Once>, seen: &Mutex<Vec<String>>) {
        let mut lines = BufReader::new(&mut stream).lines();
        // A client that does not trust the certificate hangs up.
        let Some(Ok(first)) = lines.next() else { return };
        let mut from = 0;
        let mut token = String::new();
        for line in lines.map_while(Result::ok).take_while(|l| !l.is_empty()) {
            let lower = line.to_lowercase();
            if let Some(range) = lower.strip_prefix("range: bytes=") {
                from = range.trim_end_matches('-').parse().unwrap();
            }
            if lower.starts_with("authorization:") {
                token = line;
            }
        }
        let path = first.split(' ').nth(1).unwrap().to_owned();
        seen.lock().unwrap().push(format!("{path} from {from}{token}"));
        let mut body = if path.starts_with("/api/models/o/m/revision/main") {
            // Git's hash of a blob with the text `{}` and a newline: `printf '{}\n' | git hash-object --stdin`.
            // SHA-256 of the weights by sha256sum.
            format!(
                r#"{{"sha":"{COMMIT}","siblings":[
                {{"rfilename":"config.json","size":3,"blobId":"0967ef424bce6791893e9a57bb952f80fd536e93"}},
                {{"rfilename":"README.md","size":3,"blobId":"0967ef424bce6791893e9a57bb952f80fd536e93"}},
                {{"rfilename":"model.safetensors","size":100000,"blobId":"00","lfs":{{"sha256":"{}","size":100000,"pointerSize":1}}}}]}}"#,
                WEIGHTS_SHA256
            )
            .into_bytes()
        } else if path.ends_with(&format!("/o/m/resolve/{COMMIT}/config.json")) {
            b"{}\n".to_vec()
        } else if path.ends_with(&format!("/o/m/resolve/{COMMIT}/model.safetensors")) {
            weights()
        } else {
            stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
            return;
        };
        let is_weights = path.ends_with("model.safetensors");
        if is_weights && manner == Manner::Altered {
            body[50_000] ^= 1;
        }
        if is_weights && manner == Manner::TooLong {
            body.push(0);
        }
        if manner == Manner::NoRanges {
            from = 0;
        }
        let total = body.len();
        let body = &body[from..];
        let head = match from {
            0 => "HTTP/1.1 200 OK\r\n".to_owned(),
            _ => format!("HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {from}-{}/{total}\r\n", total - 1),
        };
        let head = format!("{head}Content-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).unwrap();
        if let Manner::Silent(n) = manner
            && is_weights
        {
            let _ = stream.write_all(&body[..n.saturating_sub(from).min(body.len())]);
            // Until the other side has had enough.
            let _ = stream.read(&mut [0; 1]);
            return;
        }
        let mut once = once.lock().unwrap();
        match once.manner {
            Manner::CutOnce(n) if is_weights => {
                once.manner = Manner::Sound;
                let _ = stream.write_all(&body[..n]);
            }
            Manner::Held(n) if is_weights => {
                once.manner = Manner::Sound;
                let (_, fresh) = mpsc::channel();
                let held = std::mem::replace(&mut once.held, fresh);
                drop(once);
                let _ = stream.write_all(&body[..n]);
                let _ = stream.flush();
                let _ = held.recv();
                let _ = stream.write_all(&body[n..]);
            }
            _ => {
                drop(once);
                let _ = stream.write_all(body);
            }
        }
    }

    const WEIGHTS_SHA256: &str = "96ad0ddabe9c733d4550fde750255a94806811029be67504bd9bd68e556686b9";

    fn options(server: &Server, folder: &Path) -> PullOptions {
        PullOptions {
            endpoint: server.endpoint.clone(),
            repository: "o/m".into(),
            revision: "main".into(),
            files: Vec::new(),
            token: None,
            folder: folder.to_owned(),
            force: false,
            patience: PATIENCE,
            certificates: None,
        }
    }

    /// A mirror with a certificate of its own: trusted when its file is given, and not otherwise.
    #[test]
    fn a_hub_over_https_needs_a_trusted_certificate() {
        let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::Pkcs8(own.signing_key.serialize_der().into());
        let ring = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(ring)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![own.cert.der().clone()], key)
            .unwrap();
        let server = serve_over(Manner::Sound, Some(Arc::new(tls)));
        let folder = tempfile::tempdir().unwrap();
        let mut o = options(&server, folder.path());
        assert!(matches!(run(&o), Err(PullError::Connection { reason, .. }) if reason.contains("certificate")));
        assert!(server.requests.lock().unwrap().is_empty());

        let pem = folder.path().join("mirror.pem");
        o.certificates = Some(pem.clone());
        for (content, said) in
            [("", "no certificate"), ("-----BEGIN CERTIFICATE-----\n%%\n-----END CERTIFICATE-----\n", "mirror.pem")]
        {
            fs::write(&pem, content).unwrap();
            let refused = run(&o).unwrap_err().to_string();
            assert!(refused.contains(said) && refused.contains("SSL_CERT_FILE"), "{refused}");
        }
        fs::write(&pem, own.cert.pem()).unwrap();
        run(&o).unwrap();
        assert_eq!(fs::read(folder.path().join("model.safetensors")).unwrap(), weights());
    }

    fn run(options: &PullOptions) -> Result<Pulled, PullError> {
        pull(options, &mut |_, _, _| (), &AtomicBool::new(false))
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_model_comes_once_and_is_checked() {
        let server = serve(Manner::Sound);
        let folder = tempfile::tempdir().unwrap();
        let mut o = options(&server, folder.path());
        o.token = Some("secret".into());
        let done = run(&o).unwrap();
        assert_eq!(done.commit, COMMIT);
        assert_eq!(done.files.iter().map(|f| f.fetched).collect::<Vec<_>>(), [3, 100_000]);
        assert_eq!(names(folder.path()), ["config.json", "model.safetensors"]);
        assert_eq!(fs::read(folder.path().join("model.safetensors")).unwrap(), weights());
        assert!(server.requests.lock().unwrap().iter().all(|r| r.ends_with("Bearer secret")));
        let again = run(&o).unwrap();
        assert_eq!(again.files.iter().map(|f| f.fetched).collect::<Vec<_>>(), [0, 0]);
        fs::write(folder.path().join("config.json"), "mine").unwrap();
        assert!(matches!(run(&o), Err(PullError::Exists { .. })));
        o.force = true;
        run(&o).unwrap();
        assert_eq!(fs::read(folder.path().join("config.json")).unwrap(), b"{}\n");
    }

    #[test]
    fn a_cut_connection_goes_on_where_it_stopped() {
        let server = serve(Manner::CutOnce(40_000));
        let folder = tempfile::tempdir().unwrap();
        let done = run(&options(&server, folder.path())).unwrap();
        assert_eq!(done.files[1].fetched, 100_000);
        let requests = server.requests.lock().unwrap().clone();
        assert!(requests.last().unwrap().ends_with("model.safetensors from 40000"), "{requests:?}");
    }

    #[test]
    fn an_interrupted_fetch_goes_on_in_the_next_run() {
        let server = serve(Manner::Sound);
        let folder = tempfile::tempdir().unwrap();
        let mut o = options(&server, folder.path());
        o.files = vec!["model.safetensors".into()];
        let cancel = AtomicBool::new(false);
        let stopped = pull(&o, &mut |_, _, _| cancel.store(true, Ordering::Relaxed), &cancel);
        // The whole body may have come in one piece, then there is nothing left to stop.
        if let Err(e) = stopped {
            assert!(matches!(e, PullError::Cancelled), "{e}");
            let part = names(folder.path()).pop().unwrap();
            let have = fs::metadata(folder.path().join(&part)).unwrap().len();
            assert!(part.ends_with(".part") && have > 0 && have <= 100_000);
            assert_eq!(run(&o).unwrap().files[0].fetched, 100_000 - have);
        }
        assert_eq!(names(folder.path()), ["model.safetensors"]);
    }

    #[test]
    fn servers_without_ranges_start_again() {
        let server = serve(Manner::NoRanges);
        let folder = tempfile::tempdir().unwrap();
        let part = folder.path().join(format!(".model.safetensors.{}.part", &WEIGHTS_SHA256[..12]));
        fs::write(&part, &weights()[..1000]).unwrap();
        let done = run(&options(&server, folder.path())).unwrap();
        assert_eq!(done.files[1].fetched, 100_000);
        assert_eq!(fs::read(folder.path().join("model.safetensors")).unwrap(), weights());
    }

    #[test]
    fn what_is_not_the_listed_file_never_gets_its_name() {
        for (manner, what) in [(Manner::Altered, "the hash"), (Manner::TooLong, "the size")] {
            let server = serve(manner);
            let folder = tempfile::tempdir().unwrap();
            match run(&options(&server, folder.path())) {
                Err(PullError::Mismatch { what: found, .. }) => assert_eq!(found, what),
                other => panic!("{other:?}"),
            }
            assert_eq!(names(folder.path()), ["config.json"]);
        }
        // A part with foreign bytes is noticed as well.
        let server = serve(Manner::Sound);
        let folder = tempfile::tempdir().unwrap();
        let part = folder.path().join(format!(".model.safetensors.{}.part", &WEIGHTS_SHA256[..12]));
        fs::write(&part, [9; 1000]).unwrap();
        assert!(matches!(run(&options(&server, folder.path())), Err(PullError::Mismatch { .. })));
    }

    #[test]
    fn refusals() {
        let server = serve(Manner::Sound);
        let folder = tempfile::tempdir().unwrap();
        let with = |change: &dyn Fn(&mut PullOptions)| {
            let mut o = options(&server, folder.path());
            change(&mut o);
            run(&o).unwrap_err()
        };
        assert!(matches!(with(&|o| o.repository = "o/none".into()), PullError::Status { status: 404, .. }));
        assert!(matches!(with(&|o| o.files = vec!["x.gguf".into()]), PullError::NoFile { .. }));
        for repository in ["", "o", "../m", "o/..", "o/m/x", "o/m?x"] {
            assert!(matches!(with(&|o| o.repository = repository.into()), PullError::Argument { .. }), "{repository}");
        }
        assert!(matches!(with(&|o| o.revision = "../x".into()), PullError::Argument { .. }));
        assert!(matches!(with(&|o| o.endpoint = "ftp://x".into()), PullError::Argument { .. }));
        for endpoint in
            ["http://example.invalid", "http://127.0.0.1.example.invalid", "http://localhost@example.invalid"]
        {
            let leak = with(&|o| {
                o.endpoint = endpoint.into();
                o.token = Some("secret".into());
            });
            assert!(matches!(leak, PullError::Argument { what: "endpoint", .. }), "{leak}");
            assert!(leak.to_string().contains("https") && !leak.to_string().contains("secret"));
        }
        assert!(matches!(with(&|o| o.endpoint = "http://127.0.0.1:1".into()), PullError::Connection { .. }));
    }

    #[test]
    fn a_byte_now_and_then_is_too_slow() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut pace = Pace { since: start, have: 100 };
        assert_eq!(pace.too_slow(after(30), 100, PATIENCE), None, "not looked at yet");
        assert_eq!(pace.too_slow(after(31), 100 + SLOWEST, PATIENCE), None);
        assert_eq!(pace.too_slow(after(50), 100 + SLOWEST, PATIENCE), None);
        assert_eq!(pace.too_slow(after(62), 107 + SLOWEST, PATIENCE), Some(7));
    }

    #[test]
    fn a_hub_that_falls_silent_is_given_up() {
        let server = serve(Manner::Silent(40_000));
        let folder = tempfile::tempdir().unwrap();
        let mut o = options(&server, folder.path());
        // Long enough for a server that has to wait for a core.
        o.patience = Duration::from_secs(2);
        assert!(matches!(run(&o), Err(PullError::Connection { .. })));
        // What came is kept for a later run.
        let part = folder.path().join(format!(".model.safetensors.{}.part", &WEIGHTS_SHA256[..12]));
        assert!(fs::metadata(part).unwrap().len() >= 40_000);
    }

    fn part_of(folder: &Path) -> PathBuf {
        folder.join(format!(".model.safetensors.{}.part", &WEIGHTS_SHA256[..12]))
    }

    /// Runs `meanwhile` when 40 000 bytes of the weights are there and no more come; then the rest comes.
    fn stalled(meanwhile: impl FnOnce(&PullOptions)) -> (tempfile::TempDir, Result<Pulled, PullError>) {
        let mut server = serve(Manner::Held(40_000));
        let folder = tempfile::tempdir().unwrap();
        let o = options(&server, folder.path());
        let first = std::thread::spawn({
            let o = o.clone();
            move || run(&o)
        });
        while fs::metadata(part_of(folder.path())).is_ok_and(|m| m.len() < 40_000) || !part_of(folder.path()).exists() {
            assert!(!first.is_finished());
            std::thread::sleep(Duration::from_millis(5));
        }
        meanwhile(&o);
        drop(server.go_on.take());
        (folder, first.join().unwrap())
    }

    #[test]
    fn a_second_pull_into_a_folder_is_refused_and_the_first_is_whole() {
        let (folder, first) = stalled(|o| {
            // It does not wait: the first goes on only behind this.
            let second = run(o).unwrap_err();
            assert!(matches!(&second, PullError::Busy { path } if *path == o.folder), "{second}");
            assert!(second.to_string().starts_with(&format!("{}: another `model pull`", o.folder.display())));
            // Another folder is nobody's.
            let elsewhere = tempfile::tempdir().unwrap();
            run(&PullOptions { folder: elsewhere.path().to_owned(), ..o.clone() }).unwrap();
        });
        assert_eq!(first.unwrap().files[1].fetched, 100_000);
        assert_eq!(names(folder.path()), ["config.json", "model.safetensors"]);
        assert_eq!(fs::read(folder.path().join("model.safetensors")).unwrap(), weights());
    }

    /// As where the file system has no locks: somebody else finished the part that this process has open.
    #[test]
    fn nothing_is_written_into_a_part_that_got_its_name_meanwhile() {
        let (folder, first) = stalled(|o| {
            fs::write(part_of(&o.folder), weights()).unwrap();
            fs::rename(part_of(&o.folder), o.folder.join("model.safetensors")).unwrap();
        });
        let said = first.unwrap_err().to_string();
        assert!(said.contains(".part") && said.contains("finished, removed or replaced"), "{said}");
        assert_eq!(fs::read(folder.path().join("model.safetensors")).unwrap(), weights());
        assert_eq!(names(folder.path()), ["config.json", "model.safetensors"]);
    }

    /// And neither into one that another pull began anew.
    #[test]
    fn a_part_that_was_replaced_is_left_alone() {
        let (folder, first) = stalled(|o| {
            fs::remove_file(part_of(&o.folder)).unwrap();
            fs::write(part_of(&o.folder), "another's").unwrap();
        });
        assert!(first.unwrap_err().to_string().contains("replaced"));
        assert_eq!(fs::read(part_of(folder.path())).unwrap(), b"another's");
    }

    #[test]
    fn links_and_pipes_in_the_place_of_a_part_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (victim, part) = (folder.path().join("victim"), folder.path().join("part"));
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, &part).unwrap();
        assert!(open_part(&part).unwrap_err().to_string().contains("a link"));
        fs::remove_file(&part).unwrap();
        std::os::unix::fs::symlink(folder.path().join("nowhere"), &part).unwrap();
        assert!(open_part(&part).is_err());
        fs::remove_file(&part).unwrap();
        open_part(&part).unwrap().write_all(b"one").unwrap();
        open_part(&part).unwrap().write_all(b"two").unwrap();
        assert_eq!(fs::read(&part).unwrap(), b"onetwo");
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
    }

    #[test]
    fn redirects_go_to_addresses_and_paths_and_never_out_of_https() {
        for (from, location, to) in [
            ("https://h/a", "https://cdn.example/b?c=d", Some("https://cdn.example/b?c=d")),
            ("https://h:8/a", "/b", Some("https://h:8/b")),
            ("http://h/a", "https://h/b", Some("https://h/b")),
            ("https://h/a", "http://h/b", None),
            ("https://h/a", "file:///etc/passwd", None),
            ("https://h/a", "//elsewhere/b", None),
            ("https://h/a", "b", None),
            ("https://h/a", "", None),
            ("https://h/a", "https://user@h/b", None),
        ] {
            assert_eq!(redirected(from, location).as_deref(), to, "{from} {location}");
        }
    }

    #[test]
    fn this_machine_is_told_from_names_that_begin_like_it() {
        let local = |url: &str| Address::of(url).map(|a| a.is_local());
        for url in ["http://127.0.0.1", "http://LOCALHOST:80/x", "http://[::1]:9/"] {
            assert_eq!(local(url), Some(true), "{url}");
        }
        for url in [
            "http://127.0.0.1.example",
            "http://localhost.example/",
            "http://[::1].example",
            "http://[::11]/",
            "http://localhost:80:80/",
        ] {
            assert_eq!(local(url), Some(false), "{url}");
        }
        for url in ["http://localhost@example", "http://127.0.0.1:80@example/", "http://", "http:///x", "x"] {
            assert_eq!(local(url), None, "{url}");
        }
    }

    #[test]
    fn listings_that_would_leave_the_folder_are_refused() {
        let listing = |name: &str| {
            format!(r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":"{name}","size":1,"blobId":"{COMMIT}"}}]}}"#)
        };
        assert!(parse_listing(listing("a/b.json").as_bytes()).is_ok());
        for name in ["../x", "/etc/passwd", "a/../../x", "", "a\\\\b", "C:x", "a?b", "./x", "a\\u001b[2Jb"] {
            assert!(parse_listing(listing(name).as_bytes()).is_err(), "{name}");
        }
        let one = r#"{"rfilename":"a","size":1,"blobId":"0123456789012345678901234567890123456789"}"#;
        let twice = format!(r#"{{"sha":"{COMMIT}","siblings":[{one},{one}]}}"#);
        assert!(parse_listing(twice.as_bytes()).unwrap_err().contains("'a' stands there twice"));
        let large = listing("a").replace(r#""size":1"#, r#""size":9007199254740993"#);
        assert!(parse_listing(large.as_bytes()).unwrap_err().contains("9007199254740993 bytes"));
        assert!(parse_listing(b"[]").is_err());
        assert!(parse_listing(format!(r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":"x"}}]}}"#).as_bytes()).is_err());
        assert!(parse_listing(br#"{"sha":"main","siblings":[]}"#).is_err());
    }
}
