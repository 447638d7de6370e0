//! How recent the knowledge of a device's state is, from times, not from a constant.

use std::collections::BTreeMap;
use std::sync::Mutex;

use serde::Serialize;

use super::policy::FreshnessLimits;
use super::registry::Device;
use super::vocabulary::Backend;

super::vocabulary::vocabulary! {
    /// Age class of a state.
    Freshness {
        /// Recent.
        Fresh = "fresh",
        /// Older than `stale_after_s`.
        Stale = "stale",
        /// Older than `expired_after_s`, or dated in the future.
        Expired = "expired",
        /// Never observed.
        Unknown = "unknown",
    }
}

/// When a device was last observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct StateSnapshot {
    /// Unix time in milliseconds.
    pub observed_at_ms: i64,
}

/// Class of a snapshot at a time. A snapshot more than a second in the future is expired: its clock
/// is wrong, so its age says nothing.
#[must_use]
pub fn classify(snapshot: Option<StateSnapshot>, now_ms: i64, limits: &FreshnessLimits) -> Freshness {
    let Some(snapshot) = snapshot else { return Freshness::Unknown };
    let age = now_ms.saturating_sub(snapshot.observed_at_ms);
    if age < -1000 || age > i64::from(limits.expired_after_s) * 1000 {
        Freshness::Expired
    } else if age > i64::from(limits.stale_after_s) * 1000 {
        Freshness::Stale
    } else {
        Freshness::Fresh
    }
}

/// Where states come from. Reading a state is no effect.
pub trait StateSource {
    /// The latest observation of a device, if there is one.
    fn observe(&self, device: &Device, now_ms: i64) -> Option<StateSnapshot>;
}

/// States of the simulator: a mock device is observed whenever it is asked; any other back end has
/// no reader here, so its state is unknown and anything riskier than `low` is refused on it.
#[derive(Debug, Default)]
pub struct SimulatedStates {
    overrides: Mutex<BTreeMap<String, Option<i64>>>,
}

impl SimulatedStates {
    /// From now on the device was last observed `age_s` seconds before the asking; `None`: never.
    pub fn set_age(&self, device_id: &str, age_s: Option<i64>) {
        if let Ok(mut overrides) = self.overrides.lock() {
            overrides.insert(device_id.to_owned(), age_s);
        }
    }

    /// Forgets all overrides.
    pub fn reset(&self) {
        if let Ok(mut overrides) = self.overrides.lock() {
            overrides.clear();
        }
    }
}

impl StateSource for SimulatedStates {
    fn observe(&self, device: &Device, now_ms: i64) -> Option<StateSnapshot> {
        // A poisoned lock means a panic elsewhere: know nothing rather than something.
        let overrides = self.overrides.lock().ok()?;
        match overrides.get(&device.device_id) {
            Some(None) => None,
            Some(Some(age_s)) => {
                Some(StateSnapshot { observed_at_ms: now_ms.saturating_sub(age_s.saturating_mul(1000)) })
            }
            None if device.backend == Backend::Mock => Some(StateSnapshot { observed_at_ms: now_ms }),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// W10: the class follows from the age.
    #[test]
    fn w10_ages_have_classes() {
        let limits = FreshnessLimits { stale_after_s: 300, expired_after_s: 3600 };
        let at = |age_s: i64| {
            classify(Some(StateSnapshot { observed_at_ms: 10_000_000 - age_s * 1000 }), 10_000_000, &limits)
        };
        assert_eq!(at(0), Freshness::Fresh);
        assert_eq!(at(300), Freshness::Fresh);
        assert_eq!(at(301), Freshness::Stale);
        assert_eq!(at(3600), Freshness::Stale);
        assert_eq!(at(3601), Freshness::Expired);
        assert_eq!(at(-2), Freshness::Expired);
        assert_eq!(classify(None, 0, &limits), Freshness::Unknown);
        assert_eq!(classify(Some(StateSnapshot { observed_at_ms: i64::MIN }), i64::MAX, &limits), Freshness::Expired);
    }
}
