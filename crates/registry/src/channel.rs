//! A channel's state: its newest policy and the head of its log, each believed only in its place.
//!
//! `current.json` is a copy of the head and of the policy. It saves requests and decides nothing: what it holds is
//! verified like the originals, and whatever came after it is looked for. Without it, or with a damaged one, the
//! names in the log tell the head.

use bytes::Bytes;
use object_store::path::Path;
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
/// The most policies or records that are read one after another from an old `current.json` on; beyond it, only the last.
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

/// Sizes in bytes of numbered objects, in order.
#[derive(Default)]
struct Numbered {
    records: Vec<u64>,
    policies: Vec<u64>,
}

impl Numbered {
    /// Whether objects of their sizes lie in the places of these two; the records begin with `first`.
    fn have(&self, policy: &Policy, record: &Record, first: u64) -> bool {
        let at = |sizes: &[u64], index: u64| usize::try_from(index).ok().and_then(|i| sizes.get(i).copied());
        at(&self.policies, policy.serial() - 1) == Some(policy.bytes().len() as u64)
            && at(&self.records, record.body().number - first) == Some(record.bytes().len() as u64)
    }
}

fn hole(channel: &ChannelName, folder: &Path, expected: u64, found: u64) -> Error {
    Error::Log {
        channel: channel.to_string(),
        problem: format!("{folder} has no number {expected}, but {found}; restore it from a mirror"),
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

    async fn policy_there(&self, channel: &ChannelName, serial: u64) -> Result<Policy> {
        self.policy_at(channel, serial).await?.ok_or_else(|| Error::Missing {
            object: layout::policy(channel, serial).to_string(),
            advice: "policies have no holes: restore it from a mirror",
        })
    }

    /// The numbers that lie under a folder of the store, which must be 1, 2, … without a hole.
    pub(crate) async fn numbers(&self, folder: &Path, channel: &ChannelName) -> Result<u64> {
        let mut last = 0;
        for meta in self.store().list(folder, None).await? {
            let Some(number) = layout::number(&meta.location) else { continue };
            if number != last + 1 {
                return Err(hole(channel, folder, last + 1, number));
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

    /// What lies in the channel's folder: the sizes of its policies and of its records from `first` on, by number.
    async fn numbered(&self, channel: &ChannelName, first: u64) -> Result<Numbered> {
        let folder = layout::channel(channel);
        // Names sort as `current.json`, `log/…`, `policy/…`: what comes after a record's name are newer records and all
        // policies, in one request.
        let after = (first > 1).then(|| layout::record(channel, first - 1));
        let mut numbered = Numbered::default();
        let (log, policies) = (layout::log(channel), layout::policies(channel));
        for meta in self.store().list(&folder, after.as_ref()).await? {
            // Names that are none of ours are none of our business: a backup's leavings, say.
            let Some(number) = layout::number(&meta.location) else { continue };
            let (last, start, sizes) = if meta.location.prefix_matches(&log) {
                (&log, first, &mut numbered.records)
            } else if meta.location.prefix_matches(&policies) {
                (&policies, 1, &mut numbered.policies)
            } else {
                continue;
            };
            let next = start + sizes.len() as u64;
            if number < start {
                continue;
            }
            if number != next {
                return Err(hole(channel, last, next, number));
            }
            sizes.push(meta.size);
        }
        Ok(numbered)
    }

    /// The channel's state. Two requests, and one for each record or policy that `current.json` lags behind.
    ///
    /// # Errors
    /// [`Error::NoChannel`]; [`Error::Log`] and what a policy or record that is not believed is refused with.
    pub async fn channel(&self, channel: &ChannelName) -> Result<Channel> {
        let mut warnings = Vec::new();
        let mut hint = match self.store().get(&layout::current(channel), MAX_CURRENT).await {
            Ok(None) => None,
            Ok(Some(bytes)) => match self.parse_current(channel, &bytes) {
                Ok(hint) => Some(hint),
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
        let first = hint.as_ref().map_or(1, |(_, record)| record.body().number);
        let mut numbered = self.numbered(channel, first).await?;
        if let Some((policy, record)) = &hint
            && !numbered.have(policy, record, first)
        {
            // A log that was restored from a copy, beside a newer `current.json`: the log is what counts.
            warnings.push("current.json is not used: it is of another log than the one beside it".into());
            hint = None;
            if first > 1 {
                numbered = self.numbered(channel, 1).await?;
            }
        }
        let first = hint.as_ref().map_or(1, |(_, record)| record.body().number);
        let last = first + numbered.records.len() as u64 - 1;
        let last_serial = numbered.policies.len() as u64;
        if last_serial == 0 {
            return Err(Error::NoChannel { channel: channel.to_string(), location: self.store().location.clone() });
        }
        let current_is_right = hint
            .as_ref()
            .is_some_and(|(policy, record)| (policy.serial(), record.body().number) == (last_serial, last));
        let (policy, head) = hint.map_or((None, None), |(policy, record)| (Some(policy), Some(record)));
        let policy = self.policy_from(channel, policy, last_serial).await?;
        let head = self.record_from(channel, head, last).await?;
        self.remembered(channel, &policy, head.as_ref()).await?;
        Ok(Channel { name: channel.clone(), policy, head, warnings, current_is_right })
    }

    /// The policy with the serial `last`, by way of those after `known` if they are few.
    async fn policy_from(&self, channel: &ChannelName, known: Option<Policy>, last: u64) -> Result<Policy> {
        let Some(mut policy) = known.filter(|p| last - p.serial() <= MAX_STEPS) else {
            return self.policy_there(channel, last).await;
        };
        while policy.serial() < last {
            let next = self.policy_there(channel, policy.serial() + 1).await?;
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

    /// The record with the number `last`, by way of those after `known` if they are few; `None` if `last` is 0.
    async fn record_from(&self, channel: &ChannelName, known: Option<Record>, last: u64) -> Result<Option<Record>> {
        if last == 0 {
            return Ok(None);
        }
        let Some(mut record) = known.filter(|r| last - r.body().number <= MAX_STEPS) else {
            return self.record_there(channel, last).await.map(Some);
        };
        while record.body().number < last {
            let next = self.record_there(channel, record.body().number + 1).await?;
            check_link(channel, Some(&record), &next)?;
            record = next;
        }
        Ok(Some(record))
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
