//! A channel's state: its newest policy and the head of its log, each believed only in its place.
//!
//! `current.json` is a copy of the head and of the policy. It saves requests and decides nothing: what it holds is
//! verified like the originals, and whatever came after it is looked for. Without it, or with a damaged one, the
//! names in the log tell the head.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::error::{Error, Result, shown};
use crate::layout;
use crate::name::ChannelName;
use crate::policy::{MAX_POLICY, Policy};
use crate::record::{MAX_RECORD, Record};
use crate::registry::Registry;

const SCHEMA: &str = "bitnet-harness.registry-current/1";
/// A copy of a record and of a policy, and JSON's escapes in both.
const MAX_CURRENT: u64 = 2 * (MAX_RECORD + MAX_POLICY);
/// The most policies or records that are read one after another from an old `current.json`; beyond it the names in the
/// store are asked.
const MAX_STEPS: u64 = 16;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Current {
    schema: String,
    number: u64,
    serial: u64,
    record: String,
    policy: String,
}

/// A channel as it stands.
#[derive(Debug, Clone)]
pub struct Channel {
    /// Its name.
    pub name: ChannelName,
    /// The newest policy.
    pub policy: Policy,
    /// The head of the log; `None` while nothing was promoted.
    pub head: Option<Record>,
    /// What was wrong and could be mended, for people.
    pub warnings: Vec<String>,
    /// Whether `current.json` is a copy of this state.
    pub(crate) current_is_right: bool,
}

impl Channel {
    /// The head, if it counts under the newest policy.
    ///
    /// # Errors
    /// [`Error::EmptyChannel`], [`Error::Untrusted`].
    pub fn trusted_head(&self) -> Result<&Record> {
        let head = self.head.as_ref().ok_or_else(|| Error::EmptyChannel { channel: self.name.to_string() })?;
        head.trust(&self.policy)?;
        Ok(head)
    }
}

impl Registry {
    fn read_policy(&self, channel: &ChannelName, serial: u64, bytes: Bytes) -> Result<Policy> {
        let object = layout::policy(channel, serial);
        Policy::read(object.as_ref(), bytes, self.id(), channel, Some(serial), self.operators())
    }

    /// The policy with a serial; `None` if there is none.
    pub(crate) async fn policy_at(&self, channel: &ChannelName, serial: u64) -> Result<Option<Policy>> {
        let bytes = self.store().get(&layout::policy(channel, serial), MAX_POLICY).await?;
        bytes.map(|bytes| self.read_policy(channel, serial, bytes)).transpose()
    }

    fn read_record(&self, channel: &ChannelName, number: u64, bytes: Bytes) -> Result<Record> {
        let object = layout::record(channel, number);
        Record::read(object.as_ref(), bytes, self.id(), channel, number)
    }

    /// The record with a number; `None` if there is none.
    pub(crate) async fn record_at(&self, channel: &ChannelName, number: u64) -> Result<Option<Record>> {
        let bytes = self.store().get(&layout::record(channel, number), MAX_RECORD).await?;
        bytes.map(|bytes| self.read_record(channel, number, bytes)).transpose()
    }

    pub(crate) async fn record_there(&self, channel: &ChannelName, number: u64) -> Result<Record> {
        self.record_at(channel, number).await?.ok_or_else(|| Error::Missing {
            object: layout::record(channel, number).to_string(),
            advice: "a log has no holes: restore it from a mirror",
        })
    }

    /// The numbers that lie under a folder of the store, which must be 1, 2, … without a hole.
    pub(crate) async fn numbers(&self, folder: &object_store::path::Path, channel: &ChannelName) -> Result<u64> {
        let mut last = 0;
        for meta in self.store().list(folder, None).await? {
            // Names that are none of ours are none of our business: a backup's leavings, say.
            let Some(number) = layout::number(&meta.location) else { continue };
            if number != last + 1 {
                return Err(Error::Log {
                    channel: channel.to_string(),
                    problem: format!("{folder} has no number {}, but {number}; restore it from a mirror", last + 1),
                });
            }
            last = number;
        }
        Ok(last)
    }

    fn parse_current(&self, channel: &ChannelName, bytes: &Bytes) -> Result<(Policy, Record)> {
        let object = layout::current(channel);
        let current: Current = crate::schema::parse(object.as_ref(), bytes, SCHEMA)?;
        let policy = self.read_policy(channel, current.serial, current.policy.into_bytes().into())?;
        let record = self.read_record(channel, current.number, current.record.into_bytes().into())?;
        // A record that does not count cannot vouch for being the one in the log; the log is asked.
        record.trust(&policy)?;
        Ok((policy, record))
    }

    pub(crate) async fn write_current(&self, channel: &ChannelName, policy: &Policy, record: &Record) -> Result<()> {
        let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).expect("bundles are JSON, which is UTF-8");
        let current = Current {
            schema: SCHEMA.into(),
            number: record.body().number,
            serial: policy.serial(),
            record: text(record.bytes()),
            policy: text(policy.bytes()),
        };
        let bytes = serde_json::to_vec(&current).expect("texts and numbers are JSON").into();
        self.store().put(&layout::current(channel), &bytes).await
    }

    /// The channel's state.
    ///
    /// # Errors
    /// [`Error::NoChannel`]; [`Error::Log`] and what a policy or record that is not believed is refused with.
    pub async fn channel(&self, channel: &ChannelName) -> Result<Channel> {
        self.channel_state(channel, true).await
    }

    /// The channel's state. A writer that will create the next record may leave out to `look_ahead` in the log: if
    /// something is there, the creation says so.
    pub(crate) async fn channel_state(&self, channel: &ChannelName, look_ahead: bool) -> Result<Channel> {
        let mut warnings = Vec::new();
        let mut current_is_right = false;
        let hint = match self.store().get(&layout::current(channel), MAX_CURRENT).await {
            Ok(None) => None,
            Ok(Some(bytes)) => match self.parse_current(channel, &bytes) {
                Ok(hint) => {
                    current_is_right = true;
                    Some(hint)
                }
                // Newer programs may have written newer forms of everything.
                Err(e @ Error::TooNew { .. }) => return Err(e),
                Err(e) => {
                    warnings.push(format!("current.json is not used: {e}"));
                    None
                }
            },
            Err(e @ Error::TooLarge { .. }) => {
                warnings.push(format!("current.json is not used: {e}"));
                None
            }
            Err(e) => return Err(e),
        };
        let (policy, head) = match hint {
            None => (None, None),
            Some((policy, record)) => (Some(policy), Some(record)),
        };
        let (hinted_serial, hinted_number) =
            (policy.as_ref().map(Policy::serial), head.as_ref().map(|r| r.body().number));
        let policy = self.newest_policy(channel, policy).await?;
        let head = if head.is_some() && !look_ahead { head } else { self.newest_record(channel, head).await? };
        current_is_right &= hinted_serial == Some(policy.serial());
        current_is_right &= hinted_number == head.as_ref().map(|r| r.body().number);
        self.remembered(channel, &policy, head.as_ref()).await?;
        Ok(Channel { name: channel.clone(), policy, head, warnings, current_is_right })
    }

    async fn newest_policy(&self, channel: &ChannelName, hint: Option<Policy>) -> Result<Policy> {
        let mut policy = match hint {
            Some(policy) => policy,
            None => self.last_policy(channel).await?,
        };
        for step in 0.. {
            if step == MAX_STEPS {
                return self.last_policy(channel).await;
            }
            let Some(next) = self.policy_at(channel, policy.serial() + 1).await? else { break };
            if next.previous() != Some(policy.digest()) {
                return Err(Error::Log {
                    channel: channel.to_string(),
                    problem: format!("policy {} does not follow policy {}", next.serial(), policy.serial()),
                });
            }
            policy = next;
        }
        Ok(policy)
    }

    async fn last_policy(&self, channel: &ChannelName) -> Result<Policy> {
        let last = self.numbers(&layout::policies(channel), channel).await?;
        if last == 0 {
            return Err(Error::NoChannel { channel: channel.to_string(), location: self.store().location.clone() });
        }
        self.policy_at(channel, last).await?.ok_or_else(|| Error::Missing {
            object: layout::policy(channel, last).to_string(),
            advice: "it was listed a moment ago; try again",
        })
    }

    async fn newest_record(&self, channel: &ChannelName, hint: Option<Record>) -> Result<Option<Record>> {
        let mut head = match hint {
            Some(record) => Some(record),
            None => self.last_record(channel).await?,
        };
        for step in 0.. {
            if step == MAX_STEPS {
                return self.last_record(channel).await;
            }
            let number = head.as_ref().map_or(0, |r| r.body().number) + 1;
            let Some(next) = self.record_at(channel, number).await? else { break };
            check_link(channel, head.as_ref(), &next)?;
            head = Some(next);
        }
        Ok(head)
    }

    async fn last_record(&self, channel: &ChannelName) -> Result<Option<Record>> {
        match self.numbers(&layout::log(channel), channel).await? {
            0 => Ok(None),
            last => Ok(Some(self.record_there(channel, last).await?)),
        }
    }

    /// Every record, each checked against the one before; the last first no longer than `limit`.
    pub(crate) async fn records_back(&self, channel: &ChannelName, head: &Record, limit: u64) -> Result<Vec<Record>> {
        let mut records = vec![head.clone()];
        while (records.len() as u64) < limit {
            let last = records.last().expect("begun with the head");
            if last.body().number == 1 {
                break;
            }
            let before = self.record_there(channel, last.body().number - 1).await?;
            check_link(channel, Some(&before), last)?;
            records.push(before);
        }
        Ok(records)
    }
}

pub(crate) fn check_link(channel: &ChannelName, before: Option<&Record>, record: &Record) -> Result<()> {
    let expected: Option<Digest> = before.map(Record::digest);
    if record.body().previous != expected {
        return Err(Error::Log {
            channel: shown(channel.as_str()),
            problem: format!(
                "record {} does not follow record {}: it names {} as the one before, which is {}",
                record.body().number,
                record.body().number - 1,
                record.body().previous.map_or("none".into(), |d| d.to_string()),
                expected.map_or("none".into(), |d| d.to_string())
            ),
        });
    }
    Ok(())
}
