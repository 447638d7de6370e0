//! A request that was taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::output::Selection;
use super::types::{Request, StreamEvent};

/// Takes a request's events; answers `false` when nobody wants them any more.
pub type Sink = Box<dyn FnMut(StreamEvent) -> bool + Send>;

/// A request that was taken, everything checked.
pub(crate) struct Job {
    pub(crate) id: u64,
    pub(crate) request: Request,
    pub(crate) max_tokens: usize,
    pub(crate) selectors: Vec<Selection>,
    pub(crate) sink: Sink,
    pub(crate) cancelled: Arc<AtomicBool>,
    pub(crate) submitted: Instant,
}

impl Job {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }

    /// Tells the client; one that is gone cancels its request.
    pub(crate) fn tell(&mut self, event: StreamEvent) {
        if !self.is_cancelled() && !(self.sink)(event) {
            self.cancelled.store(true, Ordering::SeqCst);
        }
    }
}
