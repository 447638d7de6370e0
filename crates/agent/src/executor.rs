//! Executors: the only code that may cause an effect.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

use super::permit::AuthorizedPlan;

/// What a back end answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExecutorResponse {
    /// Text for people, bounded by the caller before it is stored.
    pub message: String,
}

/// A back end failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the back end failed: {message}")]
pub struct ExecutorError {
    /// What it said.
    pub message: String,
}

/// Carries out authorized plans. There is no way to call it without an [`AuthorizedPlan`].
pub trait Executor {
    /// Carries out one plan.
    ///
    /// # Errors
    /// [`ExecutorError`] when the back end fails; the effect is then unknown.
    fn execute(&self, order: AuthorizedPlan) -> Result<ExecutorResponse, ExecutorError>;
}

/// The simulator: touches nothing and counts its calls.
#[derive(Debug, Default)]
pub struct MockExecutor {
    calls: AtomicUsize,
    failing: bool,
}

impl MockExecutor {
    /// One whose every call fails.
    #[must_use]
    pub fn failing() -> Self {
        MockExecutor { calls: AtomicUsize::new(0), failing: true }
    }

    /// Calls so far.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

impl Executor for MockExecutor {
    fn execute(&self, order: AuthorizedPlan) -> Result<ExecutorResponse, ExecutorError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if self.failing {
            return Err(ExecutorError { message: "the simulator was told to fail".to_owned() });
        }
        let plan = order.plan();
        Ok(ExecutorResponse { message: format!("simulated {} on {}", plan.action(), plan.device_id()) })
    }
}
