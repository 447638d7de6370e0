//! An OpenAI-compatible server over one model: cartridges by name, batching, constrained output, default-deny keys.
//!
//! `docs/how-to/serve.md` shows how to use it, `docs/formats/http.md` describes what it speaks. [`Server::router`] is the
//! whole of it without a socket; [`run`] adds sockets and signals. Nothing here executes, fetches or takes a path from a
//! request, and nothing is written but the log.
#![forbid(unsafe_code)]

mod answer;
mod auth;
mod catalog;
mod error;
mod guard;
mod listen;
mod metrics;
mod prepare;
mod protocol;
mod routes;
mod strict;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use bitnet_rs::{Model, engine_info};
use files::stamps::StampStore;
use session::ChatTemplate;
use session::scheduler::{Observer, Scheduler, SchedulerParams};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;

pub use auth::{Hosts, Keys, KeysError, new_key};
pub use catalog::{CartridgeFolder, CartridgeSource, Offered, Reloaded, model_name};
pub use error::{ApiError, CODES};
pub use guard::{Access, ROUTES, Route};
pub use listen::{Listen, Socket};

use auth::Rates;
use catalog::Catalog;
use metrics::Metrics;
use prepare::Preparer;

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

    /// Every route, behind the one layer that lets nobody in who is not let in.
    pub fn router(self: &Arc<Self>) -> Router {
        let mut router = Router::new();
        for route in ROUTES {
            router = router.route(
                route.path,
                match (route.method, route.path) {
                    (_, "/health") => get(routes::health),
                    (_, "/ready") => get(routes::ready),
                    (_, "/metrics") => get(routes::metrics),
                    (_, "/openapi.json") => get(routes::openapi),
                    (_, "/v1/models") => get(routes::models),
                    (_, "/v1/models/{model}") => get(routes::model),
                    (_, "/v1/cartridges") => get(routes::cartridges),
                    (_, "/v1/chat/completions") => post(routes::chat),
                    (_, "/v1/completions") => post(routes::completion),
                    (_, "/v1/tokenize") => post(routes::tokenize),
                    (_, "/") => get(routes::page::html),
                    (_, "/page.css") => get(routes::page::css),
                    (_, "/page.js") => get(routes::page::js),
                    // A route without a handler is a mistake that the tests find.
                    _ => get(routes::not_found),
                },
            );
        }
        router
            .fallback(routes::not_found)
            .method_not_allowed_fallback(routes::wrong_method)
            .route_layer(axum::middleware::from_fn(guard::note_route))
            .layer(tower_http::catch_panic::CatchPanicLayer::custom(|panic: Box<dyn std::any::Any + Send>| {
                let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
                let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
                axum::response::IntoResponse::into_response(error::internal(&format!("a handler panicked: {text}")))
            }))
            .layer(axum::middleware::from_fn_with_state(Arc::clone(self), guard::guard))
            .with_state(Arc::clone(self))
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

/// Serves until SIGINT or SIGTERM; SIGHUP reads keys and cartridges again. `ready` is told where it listens.
///
/// On a stop new requests are refused, those on their way may go on for [`ServerParams::drain`], and are cancelled then.
///
/// # Errors
/// [`ServeError::System`].
pub fn run(server: &Arc<Server>, listen: &Listen, ready: impl FnOnce(&Listen)) -> Result<(), ServeError> {
    let system = |what: &str| {
        let what = what.to_owned();
        move |source| ServeError::System { what, source }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_name("http")
        .build()
        .map_err(system("the runtime"))?;
    let outcome = runtime.block_on(async {
        let socket = Socket::bind(listen).await.map_err(system(&listen.to_string()))?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(system("SIGINT"))?;
        let mut terminate = signal(SignalKind::terminate()).map_err(system("SIGTERM"))?;
        let mut hangup = signal(SignalKind::hangup()).map_err(system("SIGHUP"))?;
        ready(&socket.listens().map_err(system("the socket"))?);
        let here = Arc::clone(server);
        let stop = async {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => return,
                    _ = terminate.recv() => return,
                    _ = hangup.recv() => {
                        let again = Arc::clone(&here);
                        let done = tokio::task::spawn_blocking(move || again.reload()).await;
                        match done {
                            Ok(Ok(reloaded)) => log_reload(&reloaded),
                            Ok(Err(e)) => tracing::error!("nothing was reloaded: {e}"),
                            Err(e) => tracing::error!("nothing was reloaded: {e}"),
                        }
                    }
                }
            }
        };
        let open = listen::serve(socket, server.router(), stop).await;
        server.stop_taking();
        tracing::info!(target: "harness.access", "stopping: answers on their way go on");
        let second = async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                () = tokio::time::sleep(server.params.drain) => {}
            }
        };
        let drained = open.shutdown();
        tokio::pin!(drained);
        tokio::select! {
            () = &mut drained => {}
            () = second => {
                tracing::warn!("answers on their way are cancelled");
                server.scheduler.cancel_all();
                // Their connections end with their last event.
                let _ = tokio::time::timeout(Duration::from_secs(2), drained).await;
            }
        }
        Ok(())
    });
    server.scheduler.cancel_all();
    runtime.shutdown_timeout(Duration::from_secs(2));
    outcome
}

/// Says what a reload found.
pub fn log_reload(reloaded: &Reloaded) {
    for why in &reloaded.left_out {
        tracing::warn!("cartridge left out: {why}");
    }
    tracing::info!(target: "harness.access", cartridges = reloaded.offered, left_out = reloaded.left_out.len(), "loaded");
}
