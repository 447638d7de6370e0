//! Cancelling a running decode from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Stops the decode of one context from anywhere (rusqlite's `InterruptHandle` is the model).
///
/// Cheap to clone, `Send + Sync`, outlives the context harmlessly. A cancel stays set until the decode that
/// sees it returns [`Error::Cancelled`](crate::Error::Cancelled); one that arrives between two decodes stops
/// the next.
#[derive(Clone, Debug)]
pub struct CancelHandle(pub(crate) Arc<CancelState>);

#[derive(Debug, Default)]
pub(crate) struct CancelState {
    requested: AtomicBool,
    /// The engine was told to stop in the middle of a graph. It answers 0 all the same (llama_graph_compute's
    /// status is dropped), so this is the only trace of it.
    fired: AtomicBool,
}

impl CancelHandle {
    pub(crate) fn new() -> Self {
        Self(Arc::new(CancelState::default()))
    }

    /// Asks the running or next decode to stop.
    pub fn cancel(&self) {
        self.0.requested.store(true, Ordering::SeqCst);
    }

    /// Is a cancel pending?
    pub fn is_cancelled(&self) -> bool {
        self.0.requested.load(Ordering::SeqCst)
    }
}

impl CancelState {
    /// Asked by the engine's abort callback from its compute threads.
    pub(crate) fn poll(&self) -> bool {
        let stop = self.requested.load(Ordering::Relaxed);
        if stop {
            self.fired.store(true, Ordering::SeqCst);
        }
        stop
    }

    /// Consumes the request; true if one was pending or had stopped a graph.
    pub(crate) fn take(&self) -> bool {
        let fired = self.fired.swap(false, Ordering::SeqCst);
        if fired {
            self.requested.store(false, Ordering::SeqCst);
            return true;
        }
        self.requested.swap(false, Ordering::SeqCst)
    }

    /// Did the engine stop inside the graph that just returned?
    pub(crate) fn stopped_inside(&self) -> bool {
        self.fired.load(Ordering::SeqCst)
    }
}
