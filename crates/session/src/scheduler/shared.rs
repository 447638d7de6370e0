//! What the engine's thread and everybody else share.

use std::sync::atomic::AtomicUsize;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use bitnet_rs::CancelHandle;

use super::queue::Queue;

#[derive(Default)]
pub(crate) struct Gauges {
    pub(crate) waiting: AtomicUsize,
    pub(crate) running: AtomicUsize,
    pub(crate) jobs: AtomicUsize,
    pub(crate) kept: AtomicUsize,
    pub(crate) mounted: AtomicUsize,
    pub(crate) free_cells: AtomicUsize,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) queue: Queue,
    /// No more requests.
    pub(crate) stopping: bool,
    /// Nor the ones that are there.
    pub(crate) cancel_all: bool,
    pub(crate) next_id: u64,
}

pub(crate) struct Shared {
    pub(crate) state: Mutex<State>,
    /// Something for the engine's thread to do.
    pub(crate) wake: Condvar,
    /// Nothing left to do.
    pub(crate) idle: Condvar,
    pub(crate) gauges: Gauges,
    pub(crate) cancel: CancelHandle,
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
