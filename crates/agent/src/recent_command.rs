//! Commands of before, which a relative one may refer to.

use serde::{Deserialize, Serialize};

use super::vocabulary::Action;

/// An earlier command that a relative one may refer to: only ids and words, from the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecentCommand {
    pub(crate) trace_id: String,
    pub(crate) device_id: String,
    pub(crate) action: Action,
}
