//! The registry for callers without an asynchronous runtime, a command line among them.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::cache::Held;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::follow::{Current, Follow};
use crate::gc::Collected;
use crate::key::{PublicKey, SecretKey};
use crate::mirror::Mirrored;
use crate::name::ChannelName;
use crate::policy::{Policy, Rules};
use crate::promote::{Decision, Promoted};
use crate::pull::{Pulled, Served, Target};
use crate::push::{PushRequest, Pushed};
use crate::registry::{Initialised, Options};
use crate::store::Store;
use crate::verify::Verified;
use crate::view::{Listing, LoggedRecord, Shown};

/// A registry with a runtime of its own. Not to be called from within an asynchronous task.
#[derive(Debug, Clone)]
pub struct Registry {
    inner: crate::Registry,
    runtime: Arc<tokio::runtime::Runtime>,
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("registry")
        .enable_all()
        .build()
        .map_err(Error::file(Path::new("threads")))
}

impl Registry {
    /// As [`crate::Registry::init`].
    ///
    /// # Errors
    /// As there.
    pub fn init(store: &Store, operators: &[PublicKey], dry_run: bool) -> Result<Initialised> {
        runtime()?.block_on(crate::Registry::init(store, operators, dry_run))
    }

    /// As [`crate::Registry::open`].
    ///
    /// # Errors
    /// As there.
    pub fn open(store: Store, options: Options) -> Result<Self> {
        let runtime = runtime()?;
        let inner = runtime.block_on(crate::Registry::open(store, options))?;
        Ok(Self { inner, runtime: Arc::new(runtime) })
    }

    /// The registry underneath.
    pub fn inner(&self) -> &crate::Registry {
        &self.inner
    }

    fn wait<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.runtime.block_on(work)
    }

    /// As [`crate::Registry::set_operators`].
    ///
    /// # Errors
    /// As there.
    pub fn set_operators(&self, operators: &[PublicKey], dry_run: bool) -> Result<()> {
        self.wait(self.inner.set_operators(operators, dry_run))
    }

    /// As [`crate::Registry::set_policy`].
    ///
    /// # Errors
    /// As there.
    pub fn set_policy(
        &self,
        channel: &ChannelName,
        rules: Rules,
        operator: &SecretKey,
        decision: &Decision,
    ) -> Result<Policy> {
        self.wait(self.inner.set_policy(channel, rules, operator, decision))
    }

    /// As [`crate::Registry::push`].
    ///
    /// # Errors
    /// As there.
    pub fn push(&self, request: &PushRequest, key: &SecretKey) -> Result<Pushed> {
        self.wait(self.inner.push(request, key))
    }

    /// As [`crate::Registry::list`].
    ///
    /// # Errors
    /// As there.
    pub fn list(&self) -> Result<Listing> {
        self.wait(self.inner.list())
    }

    /// As [`crate::Registry::show`].
    ///
    /// # Errors
    /// As there.
    pub fn show(&self, target: &Target) -> Result<Shown> {
        self.wait(self.inner.show(target))
    }

    /// As [`crate::Registry::log`].
    ///
    /// # Errors
    /// As there.
    pub fn log(&self, channel: &ChannelName, limit: u64) -> Result<Vec<LoggedRecord>> {
        self.wait(self.inner.log(channel, limit))
    }

    /// As [`crate::Registry::promote`].
    ///
    /// # Errors
    /// As there.
    pub fn promote(
        &self,
        channel: &ChannelName,
        version: Digest,
        key: &SecretKey,
        decision: &Decision,
    ) -> Result<Promoted> {
        self.wait(self.inner.promote(channel, version, key, decision))
    }

    /// As [`crate::Registry::rollback`].
    ///
    /// # Errors
    /// As there.
    pub fn rollback(
        &self,
        channel: &ChannelName,
        to: Option<u64>,
        key: &SecretKey,
        decision: &Decision,
    ) -> Result<Promoted> {
        self.wait(self.inner.rollback(channel, to, key, decision))
    }

    /// As [`crate::Registry::pull`].
    ///
    /// # Errors
    /// As there.
    pub fn pull(
        &self,
        target: &Target,
        out: &Path,
        artifact_only: bool,
        replace: bool,
        dry_run: bool,
    ) -> Result<Pulled> {
        self.wait(self.inner.pull(target, out, artifact_only, replace, dry_run))
    }

    /// As [`crate::Registry::served`].
    ///
    /// # Errors
    /// As there.
    pub fn served(&self, channel: &ChannelName) -> Result<Served> {
        self.wait(self.inner.served(channel))
    }

    /// As [`crate::Registry::serve_file`].
    ///
    /// # Errors
    /// As there.
    pub fn serve_file(&self, served: &Served) -> Result<PathBuf> {
        self.wait(self.inner.serve_file(served))
    }

    /// As [`crate::Registry::serve_held`].
    ///
    /// # Errors
    /// As there.
    pub fn serve_held(&self, served: &Served) -> Result<Held> {
        self.wait(self.inner.serve_held(served))
    }

    /// As [`crate::Registry::channel`].
    ///
    /// # Errors
    /// As there.
    pub fn channel(&self, channel: &ChannelName) -> Result<crate::Channel> {
        self.wait(self.inner.channel(channel))
    }

    /// As [`crate::Registry::verify`].
    ///
    /// # Errors
    /// As there.
    pub fn verify(&self) -> Result<Verified> {
        self.wait(self.inner.verify())
    }

    /// As [`crate::Registry::gc`].
    ///
    /// # Errors
    /// As there.
    pub fn gc(&self, by: &str, remove: bool) -> Result<Collected> {
        self.wait(self.inner.gc(by, remove))
    }

    /// As [`crate::Registry::mirror`].
    ///
    /// # Errors
    /// As there.
    pub fn mirror(&self, target: &Store, dry_run: bool) -> Result<Mirrored> {
        self.wait(self.inner.mirror(target, dry_run))
    }
}

/// A follower with a runtime of its own. Not to be polled from within an asynchronous task.
#[derive(Debug)]
pub struct Follower {
    inner: crate::Follower,
    runtime: tokio::runtime::Runtime,
}

impl Follower {
    /// As [`crate::Follower::open`].
    ///
    /// # Errors
    /// As there; [`Error::File`] if the system gives no threads.
    pub fn open(store: Store, follow: Follow) -> Result<Self> {
        Ok(Self { inner: crate::Follower::open(store, follow)?, runtime: runtime()? })
    }

    /// As [`crate::Follower::poll`].
    ///
    /// # Errors
    /// As there.
    pub fn poll(&mut self) -> Result<Option<Arc<Current>>> {
        self.runtime.block_on(self.inner.poll())
    }

    /// As [`crate::Follower::current`].
    pub fn current(&self) -> Option<&Arc<Current>> {
        self.inner.current()
    }

    /// As [`crate::Follower::withdrawn`].
    pub fn withdrawn(&self) -> Option<&str> {
        self.inner.withdrawn()
    }
}
