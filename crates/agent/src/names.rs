//! Every name that a device has at the moment: registered aliases and remembered ones.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::registry::{Device, Registry};
use super::spans::{Token, TokenKind, tokens};
use super::text::{alias_key, folded};

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
    /// Names as they are spoken, with device ids.
    spoken: Vec<(Vec<Token>, String)>,
}

impl<'r> Names<'r> {
    /// Registered aliases plus remembered `(alias, device_id)` pairs. A remembered alias whose
    /// device is gone, or that a registered one has taken since, is ignored.
    pub(crate) fn new<'m>(registry: &'r Registry, remembered: impl IntoIterator<Item = (&'m str, &'m str)>) -> Self {
        let mut entries = BTreeMap::new();
        let mut spoken = Vec::new();
        for device in registry.devices() {
            spoken.extend(device.aliases.iter().map(|a| (spelling(a), device.device_id.clone())));
        }
        for (key, id) in registry.alias_keys() {
            entries.insert(key.to_owned(), (id.to_owned(), NameOrigin::Registry));
        }
        for (alias, id) in remembered {
            if registry.device(id).is_some()
                && let Entry::Vacant(free) = entries.entry(alias_key(alias))
            {
                free.insert((id.to_owned(), NameOrigin::Memory));
                spoken.push((spelling(alias), id.to_owned()));
            }
        }
        Names { registry, entries, spoken }
    }

    pub(crate) fn registry(&self) -> &'r Registry {
        self.registry
    }

    /// The device of an alias, and where the name comes from.
    pub(crate) fn device(&self, alias: &str) -> Option<(&'r Device, NameOrigin)> {
        let (id, origin) = self.entries.get(&alias_key(alias))?;
        self.registry.device(id).map(|d| (d, *origin))
    }

    /// Names that begin at the first token, with lengths. 的 between Chinese characters does not count.
    pub(crate) fn spoken_at(&self, at: &[Token]) -> Vec<(usize, &str)> {
        let mut found: Vec<(usize, &str)> =
            self.spoken.iter().filter_map(|(name, id)| length_of(name, at).map(|used| (used, id.as_str()))).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// All keys with device ids.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (&str, &str)> {
        self.entries.iter().map(|(key, (id, _))| (key.as_str(), id.as_str()))
    }
}

/// The tokens of a name, without 的 inside it.
fn spelling(name: &str) -> Vec<Token> {
    let all = tokens(&folded(name));
    let without: Vec<Token> = all.iter().filter(|t| !t.is("的")).cloned().collect();
    if without.is_empty() { all } else { without }
}

fn length_of(name: &[Token], at: &[Token]) -> Option<usize> {
    let mut left = name;
    for (index, token) in at.iter().enumerate() {
        let Some((first, rest)) = left.split_first() else { return Some(index) };
        if token.text == first.text {
            left = rest;
        } else if !(index > 0 && token.is("的") && first.kind == TokenKind::Han) {
            return None;
        }
    }
    left.is_empty().then_some(at.len())
}
