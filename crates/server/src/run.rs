//! Sockets and signals around a server.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use crate::catalog::Reloaded;
use crate::listen::{Listen, Socket, serve};
use crate::router::router;
use crate::server::{ServeError, Server};

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
        let open = serve(socket, router(server), stop).await;
        server.stop_taking();
        tracing::info!(target: "harness.access", "stopping: answers on their way go on");
        let second = async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                () = tokio::time::sleep(server.params().drain) => {}
            }
        };
        let drained = open.shutdown();
        tokio::pin!(drained);
        tokio::select! {
            () = &mut drained => {}
            () = second => {
                tracing::warn!("answers on their way are cancelled");
                server.scheduler().cancel_all();
                // Their connections end with their last event.
                let _ = tokio::time::timeout(Duration::from_secs(2), drained).await;
            }
        }
        Ok(())
    });
    server.scheduler().cancel_all();
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
