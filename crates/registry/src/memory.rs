//! What this machine saw of a store, so that a store that goes back in time is noticed.
//!
//! Signatures say that a record was made, not that it is the newest. Whoever can write to the store can remove the
//! last records and present an old state whole, with a version that was replaced for good reason. A reader that was
//! there before remembers the newest record it saw and refuses less.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::name::ChannelName;
use crate::policy::Policy;
use crate::record::Record;
use crate::registry::{Registry, Trust};

const SCHEMA: &str = "bitnet-harness.registry-memory/1";

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Seen {
    serial: u64,
    policy: Option<Digest>,
    number: u64,
    record: Option<Digest>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Memory {
    schema: String,
    location: String,
    id: String,
    /// Ids of the operators' keys as first seen.
    operators: Vec<String>,
    channels: BTreeMap<ChannelName, Seen>,
}

impl Registry {
    fn memory_path(&self) -> Option<PathBuf> {
        let folder = self.options().memory.as_ref()?;
        Some(folder.join(format!("{}.json", Digest::of(self.store().location.as_bytes()).hex())))
    }

    fn read_memory(&self) -> Result<Option<Memory>> {
        let Some(path) = self.memory_path() else { return Ok(None) };
        match std::fs::read(&path) {
            Ok(bytes) => crate::schema::parse(&path.display().to_string(), &bytes, SCHEMA).map(Some),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::File { path, source }),
        }
    }

    fn write_memory(&self, memory: &Memory) -> Result<()> {
        let Some(path) = self.memory_path() else { return Ok(()) };
        let folder = path.parent().expect("a file in a folder");
        std::fs::create_dir_all(folder).map_err(Error::file(folder))?;
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(Error::file(&path))?;
        let bytes = serde_json::to_vec_pretty(memory).expect("a memory is JSON");
        file.write_all(&bytes).map_err(Error::file(&path))?;
        file.persist(&path).map_err(|e| Error::File { path, source: e.error })?;
        Ok(())
    }

    pub(crate) fn remember_operators(&self) -> Result<()> {
        if self.options().memory.is_none() {
            return Ok(());
        }
        let operators: Vec<String> = self.stored_operators().iter().map(|o| o.id().as_str().to_owned()).collect();
        let Some(memory) = self.read_memory()? else {
            return self.write_memory(&Memory {
                schema: SCHEMA.into(),
                location: self.store().location.clone(),
                id: self.id().to_owned(),
                operators,
                channels: BTreeMap::new(),
            });
        };
        let pinned = matches!(self.options().trust, Trust::Pinned(_));
        if memory.id != self.id() || (!pinned && memory.operators != operators) {
            let path = self.memory_path().expect("asked above");
            return Err(Error::untrusted(
                crate::layout::MARKER,
                format!(
                    "{} was seen with the id {} and the operators {}, and now has {} and {}. If that was announced to \
                     you, remove {} and look again",
                    self.store().location,
                    memory.id,
                    memory.operators.join(", "),
                    self.id(),
                    operators.join(", "),
                    path.display()
                ),
            ));
        }
        Ok(())
    }

    /// Compares a channel's state with what was seen of it, and remembers it.
    pub(crate) async fn remembered(&self, channel: &ChannelName, policy: &Policy, head: Option<&Record>) -> Result<()> {
        let Some(mut memory) = self.read_memory()? else { return Ok(()) };
        let log_is_empty = head.is_none();
        // What does not count is not remembered, or a forged record would stand against the true one of its number for
        // good. It is refused elsewhere.
        let head = head.filter(|head| head.trust(policy).is_ok());
        let seen = memory.channels.get(channel).cloned().unwrap_or_default();
        let number = match head {
            Some(head) => head.body().number,
            None if log_is_empty => 0,
            None => seen.number,
        };
        let back = |what: &str, now: u64, then: u64| Error::Log {
            channel: channel.to_string(),
            problem: format!("the newest {what} is {now}, and this machine saw {then} before: the store went back"),
        };
        let rewritten = |what: &str, at: u64| Error::Log {
            channel: channel.to_string(),
            problem: format!("{what} {at} is not the one that this machine saw before: history was rewritten"),
        };
        if policy.serial() < seen.serial {
            return Err(back("policy", policy.serial(), seen.serial));
        }
        if number < seen.number {
            return Err(back("record", number, seen.number));
        }
        if let Some(expected) = seen.policy {
            let found = match seen.serial {
                same if same == policy.serial() => Some(policy.digest()),
                before if before + 1 == policy.serial() => policy.previous(),
                older => self.policy_at(channel, older).await?.map(|p| p.digest()),
            };
            if found != Some(expected) {
                return Err(rewritten("policy", seen.serial));
            }
        }
        if let (Some(expected), Some(head)) = (seen.record, head) {
            let found = match seen.number {
                same if same == number => head.digest(),
                before if before + 1 == number => head.body().previous.unwrap_or(expected),
                older => self.record_there(channel, older).await?.digest(),
            };
            if found != expected {
                return Err(rewritten("record", seen.number));
            }
        }
        if (policy.serial(), number) != (seen.serial, seen.number) {
            let seen = Seen {
                serial: policy.serial(),
                policy: Some(policy.digest()),
                number,
                record: head.map_or(seen.record, |head| Some(head.digest())),
            };
            memory.channels.insert(channel.clone(), seen);
            self.write_memory(&memory)?;
        }
        Ok(())
    }
}
