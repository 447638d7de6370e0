//! A registry, open: its store, its id, and whose word counts.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::key::PublicKey;
use crate::layout;
use crate::store::{Created, Store, random};

const SCHEMA: &str = "bitnet-harness.registry/1";
const MAX_MARKER: u64 = 64 << 10;
const MAX_OPERATORS: usize = 16;

/// Whose policies are believed.
#[derive(Debug, Clone)]
pub enum Trust {
    /// These operators' only. The safe choice: whoever can write to the store still cannot change what is served.
    Pinned(Vec<PublicKey>),
    /// Those that the store itself names. With [`Options::memory`] the ones seen first are held on to.
    AsStored,
}

/// How far a transfer is.
#[derive(Debug, Clone)]
pub struct Progress {
    /// What is moved: a file name or a digest.
    pub name: String,
    /// What happens to it.
    pub step: Step,
    /// Bytes done.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
}

/// What happens to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// Read for its digest.
    Hash,
    /// Sent to the store.
    Upload,
    /// Fetched from the store.
    Download,
}

/// Stops an operation at its next step or piece; clones stop the same one.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Asks for the stop.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
    }
}

type OnProgress = Arc<dyn Fn(&Progress) + Send + Sync>;

/// How a registry is used from here.
#[derive(Clone)]
pub struct Options {
    /// Whose policies are believed.
    pub trust: Trust,
    /// A folder that remembers, per store, what was seen last, so that a log that went back is noticed. `None`: a
    /// store that shows an old state whole cannot be told from one that had no news.
    pub memory: Option<PathBuf>,
    /// A folder of fetched files, by digest.
    pub cache: Option<PathBuf>,
    /// Called as transfers go on, from several threads.
    pub progress: Option<OnProgress>,
    /// Stops what is under way.
    pub cancel: Cancel,
    /// Seconds since 1970-01-01 UTC, for what people read in records. Nothing is decided by it.
    pub clock: fn() -> u64,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("trust", &self.trust).field("memory", &self.memory).finish_non_exhaustive()
    }
}

impl Options {
    /// Options with this trust, no memory, no cache, no progress.
    pub fn new(trust: Trust) -> Self {
        Self { trust, memory: None, cache: None, progress: None, cancel: Cancel::default(), clock: system_clock }
    }
}

fn system_clock() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Marker {
    schema: String,
    id: String,
    operators: Vec<PublicKey>,
    created_by: String,
}

/// What `init` did.
#[derive(Debug, Clone, Serialize)]
pub struct Initialised {
    /// The registry's id: 32 hexadecimal digits.
    pub id: String,
    /// Whether it was made now; `false` if it was there with the same operators.
    pub created: bool,
    /// Nothing was written.
    pub dry_run: bool,
}

/// A registry. Cheap to clone.
#[derive(Clone)]
pub struct Registry {
    store: Store,
    marker: Arc<Marker>,
    operators: Arc<Vec<PublicKey>>,
    options: Options,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Registry({} in {})", self.marker.id, self.store.location)
    }
}

impl Registry {
    /// Makes a registry in a store, after a probe whether two writers can be told apart there. Asked again with the
    /// same operators, it finds what it made.
    ///
    /// # Errors
    /// [`Error::Unconditional`] for a store that cannot hold one; [`Error::RegistryExists`].
    pub async fn init(store: &Store, operators: &[PublicKey], dry_run: bool) -> Result<Initialised> {
        if operators.is_empty() || operators.len() > MAX_OPERATORS {
            return Err(Error::Argument {
                what: "operators",
                value: operators.len().to_string(),
                problem: format!("keys were given; a registry has 1 to {MAX_OPERATORS} operators"),
            });
        }
        let exists = |marker: &Marker| {
            if marker.operators == operators {
                Ok(Initialised { id: marker.id.clone(), created: false, dry_run })
            } else {
                Err(Error::RegistryExists { location: store.location.clone(), id: marker.id.clone() })
            }
        };
        if let Some(marker) = read_marker(store).await? {
            return exists(&marker);
        }
        let id = random::<16>().iter().map(|b| format!("{b:02x}")).collect::<String>();
        if !dry_run {
            store.probe().await?;
            let marker = Marker {
                schema: SCHEMA.into(),
                id: id.clone(),
                operators: operators.to_vec(),
                created_by: concat!("bitnet-harness ", env!("CARGO_PKG_VERSION")).into(),
            };
            let bytes = serde_json::to_vec_pretty(&marker).expect("a marker is JSON").into();
            if let Created::Theirs(bytes) = store.create(&layout::marker(), &bytes, MAX_MARKER).await? {
                return exists(&parse_marker(&bytes)?);
            }
        }
        Ok(Initialised { id, created: true, dry_run })
    }

    /// Opens a registry. One request.
    ///
    /// # Errors
    /// [`Error::NoRegistry`], [`Error::TooOld`], [`Error::TooNew`]; [`Error::Untrusted`] if the store names other
    /// operators than it did when it was seen first.
    pub async fn open(store: Store, options: Options) -> Result<Self> {
        let marker =
            read_marker(&store).await?.ok_or_else(|| Error::NoRegistry { location: store.location.clone() })?;
        let operators = match &options.trust {
            Trust::Pinned(keys) => keys.clone(),
            Trust::AsStored => marker.operators.clone(),
        };
        let registry = Self { store, marker: Arc::new(marker), operators: Arc::new(operators), options };
        registry.remember_operators()?;
        Ok(registry)
    }

    /// Names other operators. Policies signed by those left out are no longer believed by readers that trust what is
    /// stored: sign every channel's policy anew. Readers with pinned keys are told out of band.
    ///
    /// # Errors
    /// [`Error::Argument`], [`Error::Store`].
    pub async fn set_operators(&self, operators: &[PublicKey], dry_run: bool) -> Result<()> {
        if operators.is_empty() || operators.len() > MAX_OPERATORS {
            return Err(Error::Argument {
                what: "operators",
                value: operators.len().to_string(),
                problem: format!("keys were given; a registry has 1 to {MAX_OPERATORS} operators"),
            });
        }
        let marker = Marker { operators: operators.to_vec(), ..(*self.marker).clone() };
        let bytes: Bytes = serde_json::to_vec_pretty(&marker).expect("a marker is JSON").into();
        if dry_run { Ok(()) } else { self.store.put(&layout::marker(), &bytes).await }
    }

    /// 32 hexadecimal digits that are in every policy and record, so that none is believed in another registry.
    pub fn id(&self) -> &str {
        &self.marker.id
    }

    /// The operators whose policies are believed.
    pub fn operators(&self) -> &[PublicKey] {
        &self.operators
    }

    /// The operators that the store names, pinned ones or not.
    pub(crate) fn stored_operators(&self) -> &[PublicKey] {
        &self.marker.operators
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// How it is used.
    pub fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) fn now(&self) -> u64 {
        (self.options.clock)()
    }

    pub(crate) fn marker_bytes(&self) -> Bytes {
        serde_json::to_vec_pretty(&*self.marker).expect("a marker is JSON").into()
    }
}

fn parse_marker(bytes: &Bytes) -> Result<Marker> {
    let marker: Marker = crate::schema::parse(layout::MARKER, bytes, SCHEMA)?;
    let hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    if marker.id.len() != 32 || !marker.id.bytes().all(hex) {
        return Err(Error::malformed(layout::MARKER, "has an id that is not 32 hexadecimal digits"));
    }
    if marker.operators.is_empty() || marker.operators.len() > MAX_OPERATORS {
        let found = marker.operators.len();
        return Err(Error::malformed(
            layout::MARKER,
            format!("names {found} operators; 1 to {MAX_OPERATORS} are right"),
        ));
    }
    Ok(marker)
}

async fn read_marker(store: &Store) -> Result<Option<Marker>> {
    let bytes = store.get(&layout::marker(), MAX_MARKER).await?;
    bytes.as_ref().map(parse_marker).transpose()
}
