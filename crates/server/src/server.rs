//! A server without sockets and routes: what handlers work with.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bitnet_rs::{Model, engine_info};
use files::stamps::StampStore;
use session::ChatTemplate;
use session::scheduler::{Observer, Scheduler, SchedulerParams};
use tokio::sync::Semaphore;

use crate::answer;
use crate::auth::{Hosts, Keys, KeysError, Rates};
use crate::catalog::{CartridgeSource, Catalog, Reloaded};
use crate::listen::Listen;
use crate::metrics::Metrics;
use crate::prepare::Preparer;

/// Requests that are prepared at the same time: templates, tokens and grammars.
const PREPARING: usize = 4;

/// How to serve.
#[derive(Debug, Clone)]
pub struct ServerParams {
    /// The model's name in requests.
    pub name: String,
    /// How to batch.
    pub scheduler: SchedulerParams,
    /// File of keys for users.
    pub keys: Option<PathBuf>,
    /// File of keys for operators.
    pub operator_keys: Option<PathBuf>,
    /// Host names that are answered beside those of the loopback interface.
    pub hosts: Vec<String>,
    /// Requests per minute and key.
    pub rate: Option<u32>,
    /// Longest time for a request, from its arrival to its last token.
    pub deadline: Option<Duration>,
    /// Largest body, in bytes.
    pub max_body_bytes: usize,
    /// How long answers on their way may go on after a stop.
    pub drain: Duration,
}

impl Default for ServerParams {
    fn default() -> Self {
        Self {
            name: "model".into(),
            scheduler: SchedulerParams::default(),
            keys: None,
            operator_keys: None,
            hosts: Vec::new(),
            rate: None,
            deadline: None,
            max_body_bytes: 4 << 20,
            drain: Duration::from_secs(30),
        }
    }
}

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// A file of keys.
    #[error("keys {}: {source}", path.display())]
    Keys {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: KeysError,
    },
    /// Everybody could reach it.
    #[error(
        "{listen} can be reached from other machines, and no keys are configured; give --keys FILE (harness serve \
         --new-key NAME makes one), or listen on 127.0.0.1 or unix:PATH"
    )]
    OpenToAll {
        /// Where it was to listen.
        listen: String,
    },
    /// The engine.
    #[error(transparent)]
    Engine(#[from] bitnet_rs::Error),
    /// The source of cartridges.
    #[error("cartridges: {0}")]
    Cartridges(std::io::Error),
    /// A socket or a signal.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// The keys of a server.
#[derive(Debug, Default)]
pub(crate) struct KeySets {
    pub(crate) users: Keys,
    pub(crate) operators: Keys,
}

/// A server without a socket.
pub struct Server {
    params: ServerParams,
    scheduler: Scheduler,
    preparer: Preparer,
    catalog: Catalog,
    keys: RwLock<Arc<KeySets>>,
    hosts: Hosts,
    rates: Rates,
    metrics: Arc<Metrics>,
    preparing: Arc<Semaphore>,
    stopping: AtomicBool,
    started: u64,
    fingerprint: String,
}

impl Server {
    /// Gets ready: starts the engine's thread, reads keys and cartridges.
    ///
    /// `listen` is where it will be reached; without keys that must be on this machine.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn new(
        model: &Model,
        template: Option<ChatTemplate>,
        source: Option<Box<dyn CartridgeSource>>,
        known: StampStore,
        params: ServerParams,
        listen: &Listen,
    ) -> Result<(Arc<Self>, Reloaded), ServeError> {
        let keys = load_keys(&params)?;
        if keys.users.is_empty() && !listen.is_local() {
            return Err(ServeError::OpenToAll { listen: listen.to_string() });
        }
        let metrics = Arc::new(Metrics::new());
        let observer: Arc<dyn Observer> = Arc::<Metrics>::clone(&metrics);
        let scheduler = Scheduler::start(model, params.scheduler.clone(), Some(observer))?;
        let catalog = Catalog::new(params.name.clone(), scheduler.clone(), source, known);
        let reloaded = catalog.reload().map_err(ServeError::Cartridges)?;
        let ip = if let Listen::Tcp(address) = listen { Some(address.ip()) } else { None };
        let server = Self {
            preparer: Preparer::new(scheduler.clone(), template, params.deadline),
            hosts: Hosts::new(&params.hosts, ip),
            rates: Rates::new(params.rate),
            catalog,
            keys: RwLock::new(Arc::new(keys)),
            metrics,
            preparing: Arc::new(Semaphore::new(PREPARING)),
            stopping: AtomicBool::new(false),
            started: answer::now(),
            fingerprint: fingerprint(&scheduler),
            scheduler,
            params,
        };
        Ok((Arc::new(server), reloaded))
    }

    /// Reads keys and cartridges again. What cannot be read leaves what was there.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn reload(&self) -> Result<Reloaded, ServeError> {
        let keys = load_keys(&self.params)?;
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
        self.catalog.reload().map_err(ServeError::Cartridges)
    }

    /// Takes no more requests; those on their way go on.
    pub fn stop_taking(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.scheduler.stop_taking();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// The parameters.
    pub fn params(&self) -> &ServerParams {
        &self.params
    }

    /// The scheduler.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    pub(crate) fn preparer(&self) -> &Preparer {
        &self.preparer
    }

    pub(crate) fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    pub(crate) fn keys(&self) -> Arc<KeySets> {
        Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    pub(crate) fn rates(&self) -> &Rates {
        &self.rates
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub(crate) fn preparing(&self) -> Arc<Semaphore> {
        Arc::clone(&self.preparing)
    }

    pub(crate) fn started(&self) -> u64 {
        self.started
    }

    pub(crate) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("params", &self.params).finish_non_exhaustive()
    }
}

fn load_keys(params: &ServerParams) -> Result<KeySets, ServeError> {
    let load = |path: &Option<PathBuf>| match path {
        None => Ok(Keys::default()),
        Some(path) => Keys::load(path).map_err(|source| ServeError::Keys { path: path.clone(), source }),
    };
    Ok(KeySets { users: load(&params.keys)?, operators: load(&params.operator_keys)? })
}

/// Changes with whatever changes answers: engine, model, context and how it is batched.
fn fingerprint(scheduler: &Scheduler) -> String {
    let (model, p) = (scheduler.model(), scheduler.params());
    let file = model.file().file();
    let what = format!(
        "{} {:?} {:?} {:?} {} {:?}",
        engine_info::ENGINE_COMMIT,
        files::stamps::Stamp::of(file.file()).ok(),
        scheduler.context(),
        p.padding,
        p.deterministic,
        model.info().name(),
    );
    format!("fp_{}", &blake3::hash(what.as_bytes()).to_hex()[..16])
}
