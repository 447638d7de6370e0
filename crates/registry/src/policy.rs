//! A channel's policy: what may be promoted to it, and whose signatures count. Changed by the operator's key alone.

use std::collections::BTreeSet;
use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::envelope::{Signed, Subject};
use crate::error::{Error, Result, shown};
use crate::key::{KeyId, PublicKey, SecretKey};
use crate::lock::ModelLock;
use crate::manifest::Kind;
use crate::name::{self, ChannelName};

const SCHEMA: &str = "bitnet-harness.registry-policy/1";
const PREDICATE: &str = "urn:bitnet-harness:registry-policy";
/// The largest policy, in bytes.
pub(crate) const MAX_POLICY: u64 = 256 << 10;
const MAX_KEYS: usize = 64;
const MAX_GATES: usize = 32;

/// What a key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyRole {
    /// Sign versions.
    Sign,
    /// Write log records: promote and roll back.
    Promote,
}

impl fmt::Display for KeyRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sign => "sign versions",
            Self::Promote => "promote",
        })
    }
}

/// Whether a key counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyState {
    /// It counts.
    Active,
    /// For what was promoted before it was retired it counts on; for nothing new.
    Retired,
    /// It never counts again, whatever it signed and when. For a key that is lost or known to others.
    Revoked,
}

/// A key of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrustedKey {
    /// For people: whose it is.
    pub name: String,
    /// The public key, PEM.
    pub key: PublicKey,
    /// What it may do.
    pub roles: Vec<KeyRole>,
    /// Whether it counts.
    pub state: KeyState,
    /// Of a retired key: the serial of the policy that retired it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
}

/// What the red-team receipt must show.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedteamRule {
    /// The one suite that counts; `None`: the suite of the channel's current version, whatever it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suite: Option<Digest>,
    /// The most cases that may fail, also of a first version.
    pub max_failed: u64,
}

/// How much of the past garbage collection leaves alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retention {
    /// Versions that the newest so many records point to, at least 1.
    pub records: u64,
    /// Versions that records point to which are younger than this, in days, by the store's clock.
    pub days: u32,
}

impl Default for Retention {
    fn default() -> Self {
        Self { records: 20, days: 90 }
    }
}

/// The rules, as the operator writes them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// What the channel carries.
    pub kind: Kind,
    /// The model that a version must be locked to. Required for cartridges; for models it may be absent, as then the
    /// version itself says which model it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelRule>,
    /// Gates that must be PASS in the version's report.
    pub gates: Vec<String>,
    /// Whether a report of `--quick` counts.
    #[serde(default)]
    pub quick: bool,
    /// Whether some gate must have had this very artefact as an input (a model always must).
    #[serde(default)]
    pub gates_name_artifact: bool,
    /// What the red-team receipt must show; `None`: no receipt is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redteam: Option<RedteamRule>,
    /// Whether the judge's report must be there and PASS.
    #[serde(default)]
    pub judge: bool,
    /// Whose signatures count.
    pub keys: Vec<TrustedKey>,
    /// What garbage collection leaves alone.
    #[serde(default)]
    pub retention: Retention,
}

/// The model that a channel's versions must be locked to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelRule {
    /// Its hashes.
    pub lock: ModelLock,
    /// SHA-256 of every file of it that reports may be about (one model can lie in files that differ in metadata).
    pub files: Vec<Digest>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    schema: String,
    registry: String,
    channel: ChannelName,
    serial: u64,
    previous: Option<Digest>,
    rules: Rules,
    by: String,
    why: String,
    when_unix: u64,
}

impl Rules {
    fn check(&self, object: &str) -> Result<()> {
        let malformed = |problem: String| Error::malformed(object, problem);
        if self.kind == Kind::Cartridge && self.model.is_none() {
            return Err(malformed("has no `model`; cartridges are locked to one".into()));
        }
        if let Some(model) = &self.model {
            model.lock.check()?;
            if model.files.len() > MAX_KEYS {
                return Err(malformed(format!("has {} model files; the limit is {MAX_KEYS}", model.files.len())));
            }
        }
        if self.gates.len() > MAX_GATES {
            return Err(malformed(format!("names {} gates; the limit is {MAX_GATES}", self.gates.len())));
        }
        for (at, gate) in self.gates.iter().enumerate() {
            let plain = (1..=16).contains(&gate.len()) && gate.bytes().all(|c| c.is_ascii_alphanumeric());
            if !plain || self.gates[..at].contains(gate) {
                return Err(malformed(format!("names the gate `{}`, which is no gate's name or twice", shown(gate))));
            }
        }
        if self.retention.records == 0 {
            return Err(malformed("keeps 0 records; 1 is the least, the current version".into()));
        }
        if self.keys.is_empty() || self.keys.len() > MAX_KEYS {
            return Err(malformed(format!("has {} keys; 1 to {MAX_KEYS} are allowed", self.keys.len())));
        }
        let mut ids = BTreeSet::new();
        for key in &self.keys {
            name::text("key name", &key.name)?;
            if !ids.insert(key.key.id()) {
                return Err(malformed(format!("has the key {} twice", key.key.id())));
            }
        }
        Ok(())
    }
}

/// A policy whose signature by an operator held.
#[derive(Debug, Clone)]
pub struct Policy {
    signed: Signed,
    body: Body,
}

/// What a new policy is made of, beside its rules.
pub(crate) struct Making<'a> {
    pub(crate) registry: &'a str,
    pub(crate) channel: &'a ChannelName,
    pub(crate) previous: Option<&'a Policy>,
    pub(crate) by: &'a str,
    pub(crate) why: &'a str,
    pub(crate) when_unix: u64,
}

impl Policy {
    /// Signs the policy that follows `previous`.
    pub(crate) fn sign(mut rules: Rules, making: &Making<'_>, operator: &SecretKey) -> Result<Self> {
        let serial = making.previous.map_or(0, Policy::serial) + 1;
        for key in &mut rules.keys {
            let before = making.previous.and_then(|p| p.rules().keys.iter().find(|k| k.key == key.key));
            if let Some(before) = before
                && before.state == KeyState::Revoked
                && key.state != KeyState::Revoked
            {
                return Err(Error::Argument {
                    what: "key",
                    value: shown(&key.name),
                    problem: "was revoked and cannot come back; give its owner a new one".into(),
                });
            }
            key.since = match (key.state, before) {
                (KeyState::Retired, Some(before)) if before.state == KeyState::Retired => before.since,
                (KeyState::Retired, _) => Some(serial),
                _ => None,
            };
        }
        // A revoked key that is only left out would be forgotten, and could be taken in again.
        if let Some(previous) = making.previous {
            for key in previous.rules().keys.iter().filter(|k| k.state == KeyState::Revoked) {
                if !rules.keys.iter().any(|k| k.key == key.key) {
                    rules.keys.push(key.clone());
                }
            }
        }
        rules.check("the new policy")?;
        for (what, text) in [("by", making.by), ("why", making.why)] {
            name::text(what, text)?;
        }
        let body = Body {
            schema: SCHEMA.into(),
            registry: making.registry.into(),
            channel: making.channel.clone(),
            serial,
            previous: making.previous.map(Policy::digest),
            rules,
            by: making.by.into(),
            why: making.why.into(),
            when_unix: making.when_unix,
        };
        let rules_digest = Digest::of(&serde_json::to_vec(&body.rules).expect("rules are JSON"));
        let subject = Subject::new(format!("policy of {}", making.channel), &rules_digest);
        let signed = Signed::new("the new policy", operator, subject, PREDICATE, &body);
        if signed.bytes.len() as u64 > MAX_POLICY {
            let size = signed.bytes.len() as u64;
            return Err(Error::TooLarge { object: "the new policy".into(), size, limit: MAX_POLICY });
        }
        Ok(Self { signed, body })
    }

    /// Reads the policy that must be that of `channel` with this serial (any, if `None`), signed by an operator.
    pub(crate) fn read(
        object: &str,
        bytes: Bytes,
        registry: &str,
        channel: &ChannelName,
        serial: Option<u64>,
        operators: &[PublicKey],
    ) -> Result<Self> {
        let signed = Signed::parse(object, bytes)?;
        let operator = operators.iter().find(|o| o.id() == &signed.key).ok_or_else(|| {
            let known: Vec<&str> = operators.iter().map(|o| o.id().as_str()).collect();
            Error::untrusted(
                object,
                format!("it is signed by {}, which is no operator's key ({})", signed.key, known.join(", ")),
            )
        })?;
        crate::schema::check(object, &signed.schema(None)?, SCHEMA)?;
        let body: Body = signed.open::<Body>(operator, PREDICATE)?.predicate;
        for (field, found, expected) in [
            ("registry", body.registry.as_str(), registry),
            ("channel", body.channel.as_str(), channel.as_str()),
            (
                "serial",
                body.serial.to_string().as_str(),
                serial.map_or(body.serial.to_string(), |s| s.to_string()).as_str(),
            ),
        ] {
            if found != expected {
                return Err(Error::untrusted(
                    object,
                    format!("it is of {field} {} and lies in the place of {expected}", shown(found)),
                ));
            }
        }
        if body.serial == 0 || (body.serial == 1) != body.previous.is_none() {
            return Err(Error::malformed(object, "has a serial that does not fit its `previous`"));
        }
        body.rules.check(object)?;
        Ok(Self { signed, body })
    }

    /// The rules.
    pub fn rules(&self) -> &Rules {
        &self.body.rules
    }

    /// 1, 2, …: the newest counts.
    pub fn serial(&self) -> u64 {
        self.body.serial
    }

    /// The digest of its object.
    pub fn digest(&self) -> Digest {
        self.signed.digest
    }

    /// The digest of the policy before it.
    pub fn previous(&self) -> Option<Digest> {
        self.body.previous
    }

    /// Who made it, for people.
    pub fn by(&self) -> &str {
        &self.body.by
    }

    /// Why, for people.
    pub fn why(&self) -> &str {
        &self.body.why
    }

    /// The operator's key.
    pub fn key(&self) -> &KeyId {
        &self.signed.key
    }

    pub(crate) fn bytes(&self) -> &Bytes {
        &self.signed.bytes
    }

    /// The key with this id, if it may do `role` for something promoted under the policy `under`; `None`: for
    /// something new.
    ///
    /// # Errors
    /// Why it may not.
    pub fn key_for(&self, id: &KeyId, role: KeyRole, under: Option<u64>) -> Result<&PublicKey, String> {
        let Some(key) = self.rules().keys.iter().find(|k| k.key.id() == id) else {
            return Err(format!("key {id} is not in the policy {}", self.serial()));
        };
        let name = shown(&key.name);
        if !key.roles.contains(&role) {
            return Err(format!("the key of {name} ({id}) may not {role}"));
        }
        match (key.state, under, key.since) {
            (KeyState::Active, ..) => Ok(&key.key),
            (KeyState::Retired, Some(under), Some(since)) if under < since => Ok(&key.key),
            (KeyState::Retired, ..) => Err(format!("the key of {name} ({id}) is retired")),
            (KeyState::Revoked, ..) => Err(format!("the key of {name} ({id}) is revoked")),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::key::Algorithm;

    pub(crate) fn trusted(key: &SecretKey, name: &str) -> TrustedKey {
        TrustedKey {
            name: name.into(),
            key: key.public().clone(),
            roles: vec![KeyRole::Sign, KeyRole::Promote],
            state: KeyState::Active,
            since: None,
        }
    }

    pub(crate) fn rules(keys: Vec<TrustedKey>) -> Rules {
        Rules {
            kind: Kind::Cartridge,
            model: Some(ModelRule { lock: crate::manifest::tests::lock(), files: vec![Digest::of(b"model")] }),
            gates: vec!["3b".into()],
            quick: false,
            gates_name_artifact: false,
            redteam: Some(RedteamRule { suite: None, max_failed: 2 }),
            judge: false,
            keys,
            retention: Retention::default(),
        }
    }

    fn channel() -> ChannelName {
        ChannelName::parse("stable").unwrap()
    }

    fn make(rules: Rules, previous: Option<&Policy>, operator: &SecretKey) -> Result<Policy> {
        let channel = channel();
        let making = Making { registry: "id", channel: &channel, previous, by: "op", why: "test", when_unix: 1 };
        Policy::sign(rules, &making, operator)
    }

    fn key() -> SecretKey {
        SecretKey::generate(Algorithm::Ed25519).0
    }

    #[test]
    fn a_policy_counts_in_its_place_and_by_its_operator_alone() {
        let (operator, alice) = (key(), key());
        let policy = make(rules(vec![trusted(&alice, "alice")]), None, &operator).unwrap();
        let operators = [operator.public().clone()];
        let read = |registry, channel: &str, serial, operators: &[PublicKey]| {
            let channel = ChannelName::parse(channel).unwrap();
            Policy::read("p", policy.bytes().clone(), registry, &channel, Some(serial), operators)
        };
        assert_eq!(read("id", "stable", 1, &operators).unwrap().rules(), policy.rules());
        for (registry, channel, serial) in [("other", "stable", 1), ("id", "canary", 1), ("id", "stable", 2)] {
            assert!(matches!(read(registry, channel, serial, &operators), Err(Error::Untrusted { .. })));
        }
        assert!(matches!(read("id", "stable", 1, &[alice.public().clone()]), Err(Error::Untrusted { .. })));
    }

    #[test]
    fn retired_keys_count_for_the_past_and_revoked_ones_never() {
        let (operator, alice, bob) = (key(), key(), key());
        let both = || vec![trusted(&alice, "alice"), trusted(&bob, "bob")];
        let first = make(rules(both()), None, &operator).unwrap();
        assert!(first.key_for(alice.id(), KeyRole::Sign, None).is_ok());
        let mut keys = both();
        keys[0].state = KeyState::Retired;
        let second = make(rules(keys.clone()), Some(&first), &operator).unwrap();
        assert_eq!(second.serial(), 2);
        assert!(second.key_for(alice.id(), KeyRole::Sign, None).unwrap_err().contains("retired"));
        assert!(second.key_for(alice.id(), KeyRole::Sign, Some(1)).is_ok());
        assert!(second.key_for(alice.id(), KeyRole::Sign, Some(2)).is_err());
        // It stays retired since 2.
        let third = make(rules(keys.clone()), Some(&second), &operator).unwrap();
        assert_eq!(third.rules().keys[0].since, Some(2));
        keys[0].state = KeyState::Revoked;
        let fourth = make(rules(keys), Some(&third), &operator).unwrap();
        assert!(fourth.key_for(alice.id(), KeyRole::Sign, Some(1)).unwrap_err().contains("revoked"));
        assert!(make(rules(both()), Some(&fourth), &operator).unwrap_err().to_string().contains("cannot come back"));
        // Left out, it is remembered.
        let fifth = make(rules(vec![trusted(&bob, "bob")]), Some(&fourth), &operator).unwrap();
        assert!(fifth.key_for(alice.id(), KeyRole::Sign, Some(1)).unwrap_err().contains("revoked"));
    }

    #[test]
    fn a_key_does_what_its_roles_say() {
        let (operator, alice) = (key(), key());
        let mut entry = trusted(&alice, "alice");
        entry.roles = vec![KeyRole::Sign];
        let policy = make(rules(vec![entry]), None, &operator).unwrap();
        assert!(policy.key_for(alice.id(), KeyRole::Sign, None).is_ok());
        assert!(policy.key_for(alice.id(), KeyRole::Promote, None).unwrap_err().contains("may not promote"));
        assert!(policy.key_for(operator.id(), KeyRole::Promote, None).unwrap_err().contains("not in the policy"));
    }

    #[test]
    fn rules_that_would_let_everything_through_by_mistake_are_refused() {
        let (operator, alice) = (key(), key());
        let good = || rules(vec![trusted(&alice, "alice")]);
        let refused = |change: fn(&mut Rules)| {
            let mut rules = good();
            change(&mut rules);
            make(rules, None, &operator).unwrap_err().to_string()
        };
        assert!(refused(|r| r.model = None).contains("`model`"));
        assert!(refused(|r| r.keys.clear()).contains("0 keys"));
        assert!(refused(|r| r.keys.push(r.keys[0].clone())).contains("twice"));
        assert!(refused(|r| r.gates.push("3b".into())).contains("twice"));
        assert!(refused(|r| r.gates.push("../x".into())).contains("no gate's name"));
        assert!(refused(|r| r.retention.records = 0).contains("0 records"));
    }
}
