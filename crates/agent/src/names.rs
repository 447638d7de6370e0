//! Every name that a device has at the moment: registered aliases and remembered ones.

use std::collections::BTreeMap;

use super::registry::{Device, Registry};
use super::text::alias_key;

/// Where a name comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameOrigin {
    Registry,
    Memory,
}

/// Alias keys with the devices they mean. A registered alias can never be replaced by a remembered
/// one: whatever the memory holds, the registry's entry stands.
#[derive(Debug, Clone)]
pub(crate) struct Names<'r> {
    registry: &'r Registry,
    entries: BTreeMap<String, (String, NameOrigin)>,
}

impl<'r> Names<'r> {
    /// Registered aliases plus remembered `(alias, device_id)` pairs. A remembered alias whose
    /// device is gone, or that a registered one has taken since, is ignored.
    pub(crate) fn new<'m>(registry: &'r Registry, remembered: impl IntoIterator<Item = (&'m str, &'m str)>) -> Self {
        let mut entries = BTreeMap::new();
        for (key, id) in registry.alias_keys() {
            entries.insert(key.to_owned(), (id.to_owned(), NameOrigin::Registry));
        }
        for (alias, id) in remembered {
            if registry.device(id).is_some() {
                entries.entry(alias_key(alias)).or_insert_with(|| (id.to_owned(), NameOrigin::Memory));
            }
        }
        Names { registry, entries }
    }

    pub(crate) fn registry(&self) -> &'r Registry {
        self.registry
    }

    /// The device of an alias, and where the name comes from.
    pub(crate) fn device(&self, alias: &str) -> Option<(&'r Device, NameOrigin)> {
        let (id, origin) = self.entries.get(&alias_key(alias))?;
        self.registry.device(id).map(|d| (d, *origin))
    }

    /// All keys with device ids.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (&str, &str)> {
        self.entries.iter().map(|(key, (id, _))| (key.as_str(), id.as_str()))
    }
}
