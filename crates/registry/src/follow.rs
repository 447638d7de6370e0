//! Follow: what a channel points at, noticed as it changes, for a program that serves it.
//!
//! ```no_run
//! # fn main() -> registry::Result<()> {
//! use registry::{ChannelName, Follow, Location, Store, blocking::Follower};
//!
//! let store = Store::open(&Location::parse("s3://models/house")?, false)?;
//! let mut follower = Follower::open(store, Follow::new(ChannelName::parse("stable")?, "/var/cache/registry"))?;
//! loop {
//!     match follower.poll() {
//!         Ok(Some(current)) => println!("serve {} from {}", current.version, current.path.display()),
//!         Ok(None) => {}
//!         // What is served is served on: `follower.current()`.
//!         Err(e) => eprintln!("{e}"),
//!     }
//!     std::thread::sleep(std::time::Duration::from_secs(30));
//! }
//! # }
//! ```

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::cache::{self, Held};
use crate::channel::Channel;
use crate::digest::Digest;
use crate::error::{Class, Error, Result};
use crate::manifest::{Manifest, Version};
use crate::name::ChannelName;
use crate::policy::Policy;
use crate::promotion;
use crate::record::{Record, RecordBody};
use crate::registry::{Options, Registry, Trust};
use crate::store::Store;

/// What is followed, and how.
#[derive(Debug, Clone)]
pub struct Follow {
    /// The channel.
    pub channel: ChannelName,
    /// Whose policies are believed, and whom to tell about transfers. The cache and the memory are set by [`Follow::new`].
    pub options: Options,
    /// The longest that one question to the store may take; downloads of artefacts are not bound by it.
    pub patience: Duration,
    /// Fetched files that nobody uses and that are kept all the same, for a rollback; the newest ones.
    pub keep: usize,
}

impl Follow {
    /// Follows a channel with a folder for fetched files. Operators are those that the store names, held on to from
    /// the first sight; pinned ones are set in [`Follow::options`].
    pub fn new(channel: ChannelName, cache: impl Into<PathBuf>) -> Self {
        let cache = cache.into();
        let mut options = Options::new(Trust::AsStored);
        options.memory = Some(cache.join("memory"));
        options.cache = Some(cache);
        Self { channel, options, patience: Duration::from_secs(60), keep: 4 }
    }
}

/// What a channel points at, believed, and its artefact, verified. While it is alive its file stays in the cache.
#[derive(Debug, Clone)]
pub struct Current {
    /// The version.
    pub version: Digest,
    /// The artefact's file in the cache.
    pub path: PathBuf,
    /// The record that points at it.
    pub record: RecordBody,
    manifest: Manifest,
    signed: Record,
    held: Arc<Held>,
}

impl Current {
    /// What the version's manifest says.
    pub fn manifest(&self) -> &Version {
        self.manifest.version()
    }

    /// The artefact, open for reading.
    pub fn file(&self) -> &std::fs::File {
        self.held.file()
    }

    /// Why a policy no longer allows it.
    fn problem_under(&self, policy: &Policy) -> Option<String> {
        if let Err(e) = self.signed.trust(policy) {
            return Some(e.to_string());
        }
        let reasons = promotion::fitness(policy, &self.manifest, Some(self.record.promoted_under));
        reasons.first().map(|reason| format!("version {}: {}", self.version, reason.message))
    }
}

/// Follows a channel. Errors leave what was found before: a store that is away, a forged record or a damaged blob
/// changes nothing in [`Follower::current`].
#[derive(Debug)]
pub struct Follower {
    store: Store,
    follow: Follow,
    registry: Option<Registry>,
    current: Option<Arc<Current>>,
    withdrawn: Option<String>,
}

impl Follower {
    /// Gets ready; the store is asked by the first [`Follower::poll`] and may be away until then.
    ///
    /// # Errors
    /// [`Error::Argument`] without a cache.
    pub fn open(store: Store, follow: Follow) -> Result<Self> {
        if follow.options.cache.is_none() {
            return Err(Error::Argument {
                what: "cache",
                value: String::new(),
                problem: "is not set; name a folder for fetched files".into(),
            });
        }
        Ok(Self { store, follow, registry: None, current: None, withdrawn: None })
    }

    /// The channel.
    pub fn channel(&self) -> &ChannelName {
        &self.follow.channel
    }

    /// What was found last; `None` before the first success.
    pub fn current(&self) -> Option<&Arc<Current>> {
        self.current.as_ref()
    }

    /// Why the channel's newest policy no longer allows what was found last: a key was revoked, say, and nobody rolled
    /// back yet. That is the operator's word, not a failure of the store. It is for the caller to decide whether to
    /// serve on; a newcomer is given nothing.
    pub fn withdrawn(&self) -> Option<&str> {
        self.withdrawn.as_deref()
    }

    /// Asks the store once. `Some`: the channel points at another version than before, whose file is verified and in
    /// the cache. Two requests if nothing changed.
    ///
    /// # Errors
    /// As [`Registry::served`] and [`Registry::serve_file`]; what was found before is kept.
    pub async fn poll(&mut self) -> Result<Option<Arc<Current>>> {
        let outcome = self.look().await;
        if outcome.as_ref().is_err_and(|e| e.class() != Class::Failed) {
            // The marker may name other operators now: it is read anew with the next question.
            self.registry = None;
        }
        outcome
    }

    async fn look(&mut self) -> Result<Option<Arc<Current>>> {
        let patience = self.follow.patience;
        let registry = match &self.registry {
            Some(registry) => registry.clone(),
            None => {
                let opening = Registry::open(self.store.clone(), self.follow.options.clone());
                let registry = within(patience, &self.store, opening).await?;
                self.registry.insert(registry).clone()
            }
        };
        let state = within(patience, &self.store, registry.channel(&self.follow.channel)).await?;
        self.withdrawn = self.current.as_ref().and_then(|current| current.problem_under(&state.policy));
        if let Some(current) = &self.current
            && state.head.as_ref().is_some_and(|head| head.digest() == current.signed.digest())
        {
            return match &self.withdrawn {
                None => Ok(None),
                Some(problem) => Err(Error::untrusted(
                    format!("the newest record of channel {}", state.name),
                    format!(
                        "the operator withdrew what it points at: {problem}. Roll back, or promote another version"
                    ),
                )),
            };
        }
        self.change(&registry, state).await
    }

    async fn change(&mut self, registry: &Registry, state: Channel) -> Result<Option<Arc<Current>>> {
        let served = within(self.follow.patience, &self.store, registry.served_by(state)).await?;
        let signed = served.channel.trusted_head()?.clone();
        let version = served.manifest.digest();
        let same = self.current.as_ref().filter(|current| current.version == version).map(|c| c.held.clone());
        let changed = same.is_none();
        let held = match same {
            Some(held) => held,
            None => Arc::new(registry.serve_held(&served).await?),
        };
        let current = Arc::new(Current {
            version,
            path: held.path().to_owned(),
            record: signed.body().clone(),
            manifest: served.manifest,
            signed,
            held,
        });
        self.current = Some(current.clone());
        self.withdrawn = None;
        if !changed {
            return Ok(None);
        }
        if let Some(cache) = &self.follow.options.cache {
            // Not worth more than a word: the next change sweeps again.
            if let Err(e) = cache::sweep(cache, self.follow.keep) {
                tracing::warn!("the cache was not swept: {e}");
            }
        }
        Ok(Some(current))
    }
}

/// Waits so long and no longer: a store that takes a request and never answers would stop a program from noticing
/// anything, for good.
async fn within<T>(patience: Duration, store: &Store, work: impl Future<Output = Result<T>>) -> Result<T> {
    match tokio::time::timeout(patience, work).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Error::Store {
            location: store.location.clone(),
            doing: "read",
            object: "the channel".into(),
            source: Box::new(object_store::Error::Generic {
                store: "registry",
                source: format!("no answer within {} s", patience.as_secs_f64()).into(),
            }),
        }),
    }
}
