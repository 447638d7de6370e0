//! A log record: that a channel points at a version from now on, who decided so, and on what evidence.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::envelope::{Signed, Subject};
use crate::error::{Error, Result, shown};
use crate::gate_report::Verdict;
use crate::key::{KeyId, SecretKey};
use crate::name::{self, ChannelName};
use crate::policy::{KeyRole, Policy};
use crate::redteam;

pub(crate) const SCHEMA: &str = "bitnet-harness.registry-record/1";
const PREDICATE: &str = "urn:bitnet-harness:registry-record";
/// The largest record, in bytes.
pub(crate) const MAX_RECORD: u64 = 1 << 20;

/// How a channel came to point at a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// By passing the policy's gates.
    Promote,
    /// By going back to an earlier record.
    Rollback,
}

/// The policy that a record was made under.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyRef {
    /// Its serial.
    pub serial: u64,
    /// The digest of its object.
    pub sha256: Digest,
}

/// A gate's verdict as it was when the version was promoted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateEvidence {
    /// The gate.
    pub id: String,
    /// Its verdict.
    pub verdict: Verdict,
}

/// What the promotion was decided on. A rollback repeats that of the record it goes back to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evidence {
    /// The gates that the policy named.
    pub gates: Vec<GateEvidence>,
    /// The gate report.
    pub gate_report: Option<Digest>,
    /// The red-team receipt in short: the next version is measured by it.
    pub redteam: Option<redteam::Evidence>,
    /// The judge's report.
    pub judge: Option<Digest>,
}

/// The content of a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordBody {
    /// `bitnet-harness.registry-record/1`.
    pub schema: String,
    /// The registry's id.
    pub registry: String,
    /// The channel.
    pub channel: ChannelName,
    /// 1, 2, … without a hole.
    pub number: u64,
    /// The digest of the record before; `None` for the first.
    pub previous: Option<Digest>,
    /// How it came about.
    pub action: Action,
    /// What the channel points at.
    pub version: Digest,
    /// Of a rollback: the number of the record that it goes back to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restores: Option<u64>,
    /// The policy in force.
    pub policy: PolicyRef,
    /// The serial of the policy under which the version passed the gates; after a rollback an earlier one than that
    /// in force.
    pub promoted_under: u64,
    /// What it was decided on.
    pub evidence: Evidence,
    /// For people: who.
    pub by: String,
    /// For people: why.
    pub why: String,
    /// The writer's clock, seconds since 1970-01-01 UTC; nothing is decided by it.
    pub when_unix: u64,
    /// Random, so that two writers with the same intent at the same time have different records and one is told.
    pub nonce: String,
}

/// A record as it lies in the store, in its place.
#[derive(Debug, Clone)]
pub struct Record {
    signed: Signed,
    body: RecordBody,
}

impl Record {
    pub(crate) fn sign(body: RecordBody, key: &SecretKey) -> Result<Self> {
        for (what, text) in [("by", &body.by), ("why", &body.why)] {
            name::text(what, text)?;
        }
        let subject = Subject::new(format!("channel {}", body.channel), &body.version);
        let signed = Signed::new("the new record", key, subject, PREDICATE, &body);
        if signed.bytes.len() as u64 > MAX_RECORD {
            let size = signed.bytes.len() as u64;
            return Err(Error::TooLarge { object: "the new record".into(), size, limit: MAX_RECORD });
        }
        Ok(Self { signed, body })
    }

    /// Reads the record that must be number `number` of `channel`. Whether its signature counts is asked of the
    /// channel's newest policy: [`Record::trust`].
    pub(crate) fn read(object: &str, bytes: Bytes, registry: &str, channel: &ChannelName, number: u64) -> Result<Self> {
        let signed = Signed::parse(object, bytes)?;
        crate::schema::check(object, &signed.schema(None)?, SCHEMA)?;
        let opened = signed.open_unverified::<RecordBody>(PREDICATE)?;
        let body = opened.predicate;
        for (field, found, expected) in [
            ("registry", body.registry.as_str(), registry),
            ("channel", body.channel.as_str(), channel.as_str()),
            ("number", body.number.to_string().as_str(), number.to_string().as_str()),
        ] {
            if found != expected {
                return Err(Error::untrusted(
                    object,
                    format!("it is of {field} {} and lies in the place of {expected}", shown(found)),
                ));
            }
        }
        let rollback = body.action == Action::Rollback;
        let fits = (number == 1) == body.previous.is_none()
            && rollback == body.restores.is_some()
            && body.restores.is_none_or(|to| to > 0 && to < number)
            && body.promoted_under <= body.policy.serial
            && (rollback || body.promoted_under == body.policy.serial);
        if !fits || opened.subject != Subject::new(format!("channel {channel}"), &body.version) {
            return Err(Error::malformed(
                object,
                "has fields (`previous`, `restores`, `promoted_under`, subject) that contradict others",
            ));
        }
        Ok(Self { signed, body })
    }

    /// Whether the record counts under the channel's newest policy.
    ///
    /// # Errors
    /// [`Error::Untrusted`] with the key and why not.
    pub fn trust(&self, policy: &Policy) -> Result<()> {
        let object = self.signed.object();
        if self.body.policy.serial > policy.serial() {
            return Err(Error::untrusted(
                object,
                format!(
                    "it was made under policy {}, and the newest in the store is {}: policies were removed",
                    self.body.policy.serial,
                    policy.serial()
                ),
            ));
        }
        let known = match policy.serial() - self.body.policy.serial {
            0 => Some(policy.digest()),
            1 => policy.previous(),
            _ => None,
        };
        if known.is_some_and(|known| known != self.body.policy.sha256) {
            let serial = self.body.policy.serial;
            return Err(Error::untrusted(
                object,
                format!("it was made under another policy {serial} than the store's"),
            ));
        }
        let key = policy
            .key_for(&self.signed.key, KeyRole::Promote, Some(self.body.policy.serial))
            .map_err(|problem| Error::untrusted(object, problem))?;
        self.signed.open::<serde::de::IgnoredAny>(key, PREDICATE).map(|_| ())
    }

    /// What it says.
    pub fn body(&self) -> &RecordBody {
        &self.body
    }

    /// The digest of its object, by which the next one chains to it.
    pub fn digest(&self) -> Digest {
        self.signed.digest
    }

    /// The key that it says it was signed with.
    pub fn key(&self) -> &KeyId {
        &self.signed.key
    }

    pub(crate) fn bytes(&self) -> &Bytes {
        &self.signed.bytes
    }
}
