//! Promote and roll back: the next record of a channel's log, written by exactly one.

use std::time::Duration;

use object_store::path::Path;
use serde::Serialize;

use crate::channel::Channel;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::gate_report::{self, GateReport};
use crate::judge::{self, JudgeReport};
use crate::key::SecretKey;
use crate::layout;
use crate::manifest::{MAX_MANIFEST, Manifest, Role};
use crate::name::ChannelName;
use crate::policy::{KeyRole, Making, Policy, Rules};
use crate::promotion::{self, Documents};
use crate::record::{self, Action, Evidence, MAX_RECORD, PolicyRef, Record, RecordBody};
use crate::redteam::{self, Receipt};
use crate::refusal::Refusal;
use crate::registry::Registry;
use crate::store::{Created, random};

/// How far back a record that still counts is looked for, where the newest ones are of revoked keys.
const MAX_BACK: u64 = 1_000;

/// Who decides and why.
#[derive(Debug, Clone)]
pub struct Decision {
    /// For people: who.
    pub by: String,
    /// For people: why.
    pub why: String,
    /// Check everything, write nothing.
    pub dry_run: bool,
}

/// What a promotion or rollback did.
#[derive(Debug, Clone, Serialize)]
pub struct Promoted {
    /// The channel.
    pub channel: ChannelName,
    /// What it points at.
    pub version: Digest,
    /// The record's number.
    pub number: u64,
    /// What it pointed at before.
    pub before: Option<Digest>,
    /// `false` if it pointed there already.
    pub changed: bool,
    /// What it was decided on.
    pub evidence: Evidence,
    /// What went wrong without harm.
    pub warnings: Vec<String>,
    /// Nothing was written.
    pub dry_run: bool,
}

impl Registry {
    /// Sets a channel's policy, and so makes the channel. `operator`'s key must be one that readers believe.
    ///
    /// # Errors
    /// [`Error::Untrusted`] if it is none; [`Error::Malformed`] for rules that make no sense; [`Error::Conflict`].
    pub async fn set_policy(
        &self,
        channel: &ChannelName,
        rules: Rules,
        operator: &SecretKey,
        decision: &Decision,
    ) -> Result<Policy> {
        if !self.operators().contains(operator.public()) {
            return Err(Error::untrusted(
                "the new policy",
                format!("key {} is no operator's key of this registry", operator.id()),
            ));
        }
        let (previous, head) = match self.channel(channel).await {
            Ok(state) => (Some(state.policy), state.head),
            Err(Error::NoChannel { .. }) => (None, None),
            Err(e) => return Err(e),
        };
        let making = Making {
            registry: self.id(),
            channel,
            previous: previous.as_ref(),
            by: &decision.by,
            why: &decision.why,
            when_unix: self.now(),
        };
        let policy = Policy::sign(rules, &making, operator)?;
        if decision.dry_run {
            return Ok(policy);
        }
        let path = layout::policy(channel, policy.serial());
        if let Created::Theirs(bytes) = self.store().create(&path, policy.bytes(), crate::policy::MAX_POLICY).await? {
            let theirs =
                Policy::read(path.as_ref(), bytes, self.id(), channel, Some(policy.serial()), self.operators())?;
            return Err(Error::Conflict {
                object: path.to_string(),
                by: theirs.by().into(),
                what: theirs.why().into(),
            });
        }
        if let Some(head) = head {
            // A hint for readers; they look for newer policies anyway.
            if let Err(e) = self.write_current(channel, &policy, &head).await {
                tracing::warn!("current.json was not written: {e}");
            }
        }
        Ok(policy)
    }

    /// A version's manifest, its bytes being those of its name.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Digest`], [`Error::Malformed`].
    pub async fn manifest(&self, version: Digest) -> Result<Manifest> {
        let path = layout::manifest(&version);
        let advice = "push the version again, or restore it from a mirror";
        let bytes = self
            .store()
            .get(&path, MAX_MANIFEST)
            .await?
            .ok_or_else(|| Error::Missing { object: path.to_string(), advice })?;
        let found = Digest::of(&bytes);
        if found != version {
            return Err(Error::Digest { object: path.to_string(), expected: version, found, advice });
        }
        Manifest::parse(path.as_ref(), bytes)
    }

    async fn documents(&self, rules: &Rules, manifest: &Manifest) -> Result<Documents> {
        let mut documents = Documents { gate_report: None, redteam: None, judge: None };
        let mut wanted = Vec::new();
        if !rules.gates.is_empty() {
            wanted.push((Role::GateReport, gate_report::MAX_REPORT));
        }
        if rules.redteam.is_some() {
            wanted.push((Role::Redteam, redteam::MAX_RECEIPT));
        }
        if rules.judge {
            wanted.push((Role::Judge, judge::MAX_REPORT));
        }
        for (role, limit) in wanted {
            let Some(file) = manifest.version().file(role) else { continue };
            let object = format!("{} of version {}", file.name, manifest.digest());
            let bytes = match self.blob(file.sha256, limit).await {
                Ok(bytes) => Ok(bytes),
                // The store is unwell: no word about the version.
                Err(e @ Error::Store { .. }) => return Err(e),
                Err(e) => Err(e.to_string()),
            };
            let told = |e: Error| e.to_string();
            match role {
                Role::GateReport => {
                    documents.gate_report = Some(bytes.and_then(|b| GateReport::parse(&object, &b).map_err(told)));
                }
                Role::Redteam => {
                    documents.redteam = Some(bytes.and_then(|b| Receipt::parse(&object, &b).map_err(told)));
                }
                _ => documents.judge = Some(bytes.and_then(|b| JudgeReport::parse(&object, &b).map_err(told))),
            }
        }
        Ok(documents)
    }

    /// The newest record that counts: the head, unless its key was revoked since.
    async fn newest_trusted(&self, channel: &Channel) -> Result<Option<Record>> {
        let Some(head) = &channel.head else { return Ok(None) };
        if head.trust(&channel.policy).is_ok() {
            return Ok(Some(head.clone()));
        }
        let records = self.records_back(&channel.name, head, MAX_BACK).await?;
        Ok(records.into_iter().find(|r| r.trust(&channel.policy).is_ok()))
    }

    fn may_promote(&self, channel: &Channel, key: &SecretKey) -> Result<()> {
        channel
            .policy
            .key_for(key.id(), KeyRole::Promote, None)
            .map(|_| ())
            .map_err(|problem| Error::untrusted("the new record", problem))
    }

    async fn artifact_there(&self, manifest: &Manifest) -> Result<Option<Refusal>> {
        let artifact = manifest.version().artifact();
        let path = layout::blob(&artifact.sha256);
        let found = self.store().head(&path).await?.map(|meta| meta.size);
        if found == Some(artifact.size) {
            return Ok(None);
        }
        let found = found.map_or("is missing".into(), |size| format!("has {size} bytes"));
        let message = format!("{path} {found}; the manifest says {} bytes: push the version again", artifact.size);
        Ok(Some(Refusal { code: "blob", message }))
    }

    /// Points a channel at a version, if its policy allows it.
    ///
    /// # Errors
    /// [`Error::Refused`] with every reason; [`Error::Conflict`] if another was first; [`Error::Untrusted`] if the key
    /// may not promote.
    pub async fn promote(
        &self,
        channel: &ChannelName,
        version: Digest,
        key: &SecretKey,
        decision: &Decision,
    ) -> Result<Promoted> {
        let state = self.channel(channel).await?;
        self.may_promote(&state, key)?;
        let manifest = self.manifest(version).await?;
        let baseline = self.newest_trusted(&state).await?;
        let current = state.head.as_ref().filter(|head| {
            baseline.as_ref().is_some_and(|b| b.digest() == head.digest()) && head.body().version == version
        });
        let documents = self.documents(state.policy.rules(), &manifest).await?;
        let against = baseline.as_ref().map(|r| &r.body().evidence);
        let (evidence, mut reasons) = promotion::judge(&state.policy, &manifest, documents, against);
        reasons.extend(self.artifact_there(&manifest).await?);
        if !reasons.is_empty() {
            return Err(Error::Refused { version, channel: channel.to_string(), reasons });
        }
        let serial = state.policy.serial();
        if let Some(head) = current
            && head.body().promoted_under == serial
        {
            return self.already(&state, head, decision).await;
        }
        match self.append(&state, key, decision, Action::Promote, version, None, serial, evidence).await {
            Err(conflict @ Error::Conflict { .. }) => {
                // It may have been this very promotion, by a run of ours that died before it could tell.
                let state = self.channel(channel).await?;
                match state.trusted_head() {
                    Ok(head) if head.body().version == version && head.body().promoted_under == serial => {
                        self.already(&state, head, decision).await
                    }
                    _ => Err(conflict),
                }
            }
            other => other,
        }
    }

    /// Points a channel at what an earlier record pointed at: record `to`, or the newest one with another version.
    /// Gates are not asked again, so that it works in need; the signature, the lock and the record are.
    ///
    /// # Errors
    /// As [`Registry::promote`]; [`Error::Argument`] if there is no such record.
    pub async fn rollback(
        &self,
        channel: &ChannelName,
        to: Option<u64>,
        key: &SecretKey,
        decision: &Decision,
    ) -> Result<Promoted> {
        let state = self.channel(channel).await?;
        self.may_promote(&state, key)?;
        let head = state.head.as_ref().ok_or_else(|| Error::EmptyChannel { channel: channel.to_string() })?;
        let nothing = |value: String, problem: &str| Error::Argument { what: "record", value, problem: problem.into() };
        let target = match to {
            Some(to) if to == 0 || to >= head.body().number => {
                return Err(nothing(
                    to.to_string(),
                    &format!("is not an earlier one; the log's newest is {}", head.body().number),
                ));
            }
            Some(to) => {
                let steps = head.body().number - to + 1;
                self.records_back(channel, head, steps).await?.pop().expect("the log reaches there")
            }
            None => {
                let mut wanted = None;
                let mut last = head.clone();
                while last.body().number > 1 && wanted.is_none() {
                    let before = self.record_there(channel, last.body().number - 1).await?;
                    crate::channel::check_link(channel, Some(&before), &last)?;
                    let other = before.body().version != head.body().version;
                    if other && before.trust(&state.policy).is_ok() {
                        wanted = Some(before.clone());
                    }
                    last = before;
                }
                wanted.ok_or_else(|| {
                    nothing(head.body().number.to_string(), "has no record with another version before it")
                })?
            }
        };
        target.trust(&state.policy)?;
        let version = target.body().version;
        let under = target.body().promoted_under;
        let manifest = self.manifest(version).await?;
        let mut reasons = promotion::fitness(&state.policy, &manifest, Some(under));
        reasons.extend(self.artifact_there(&manifest).await?);
        if !reasons.is_empty() {
            return Err(Error::Refused { version, channel: channel.to_string(), reasons });
        }
        if head.body().version == version && head.trust(&state.policy).is_ok() {
            return self.already(&state, head, decision).await;
        }
        let evidence = target.body().evidence.clone();
        let to = Some(target.body().number);
        self.append(&state, key, decision, Action::Rollback, version, to, under, evidence).await
    }

    /// The channel points there. What an interrupted promotion left undone is done.
    async fn already(&self, state: &Channel, head: &Record, decision: &Decision) -> Result<Promoted> {
        if !state.current_is_right && !decision.dry_run {
            self.write_current(&state.name, &state.policy, head).await?;
        }
        Ok(Promoted {
            channel: state.name.clone(),
            version: head.body().version,
            number: head.body().number,
            before: Some(head.body().version),
            changed: false,
            evidence: head.body().evidence.clone(),
            warnings: state.warnings.clone(),
            dry_run: decision.dry_run,
        })
    }

    #[allow(clippy::too_many_arguments, reason = "each is a field of the record, given once by two callers")]
    async fn append(
        &self,
        state: &Channel,
        key: &SecretKey,
        decision: &Decision,
        action: Action,
        version: Digest,
        restores: Option<u64>,
        promoted_under: u64,
        evidence: Evidence,
    ) -> Result<Promoted> {
        let channel = &state.name;
        let number = state.head.as_ref().map_or(0, |r| r.body().number) + 1;
        let body = RecordBody {
            schema: record::SCHEMA.into(),
            registry: self.id().into(),
            channel: channel.clone(),
            number,
            previous: state.head.as_ref().map(Record::digest),
            action,
            version,
            restores,
            policy: PolicyRef { serial: state.policy.serial(), sha256: state.policy.digest() },
            promoted_under,
            evidence: evidence.clone(),
            by: decision.by.clone(),
            why: decision.why.clone(),
            when_unix: self.now(),
            nonce: random::<16>().iter().map(|b| format!("{b:02x}")).collect(),
        };
        let record = Record::sign(body, key)?;
        let mut warnings = state.warnings.clone();
        if !decision.dry_run {
            self.options().cancel.check()?;
            let path = layout::record(channel, number);
            if let Created::Theirs(bytes) = self.store().create(&path, record.bytes(), MAX_RECORD).await? {
                let theirs = Record::read(path.as_ref(), bytes, self.id(), channel, number)?;
                let body = theirs.body();
                return Err(Error::Conflict {
                    object: path.to_string(),
                    by: crate::error::shown(&body.by),
                    what: format!("{:?} of {}", body.action, body.version),
                });
            }
            // From here on the promotion stands.
            if let Err(e) = self.write_current(channel, &state.policy, &record).await {
                warnings.push(format!("current.json was not written ({e}); readers find the record all the same"));
            }
            self.outwait_gc(&path, version, &mut warnings).await?;
        }
        Ok(Promoted {
            channel: channel.clone(),
            version,
            number,
            before: state.head.as_ref().map(|r| r.body().version),
            changed: true,
            evidence,
            warnings,
            dry_run: decision.dry_run,
        })
    }

    /// A garbage collection that began before our record was written may not have seen it. It is waited for, and then
    /// the version must still be there.
    async fn outwait_gc(&self, record: &Path, version: Digest, warnings: &mut Vec<String>) -> Result<()> {
        match self.gc_since(None).await {
            Ok(false) => return Ok(()),
            Ok(true) => {}
            Err(e) => {
                warnings.push(format!("whether a garbage collection is under way could not be asked: {e}"));
                return Ok(());
            }
        }
        for _ in 0..60 {
            if !self.gc_since(Some(record)).await? {
                break;
            }
            self.options().cancel.check()?;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let manifest = self.manifest(version).await?;
        if let Some(refusal) = self.artifact_there(&manifest).await? {
            return Err(Error::Missing {
                object: refusal.message,
                advice: "a garbage collection took it while it was promoted: push it again, or roll back",
            });
        }
        Ok(())
    }
}
