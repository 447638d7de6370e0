//! Verify: every object, every link, every signature.

use std::collections::{BTreeMap, BTreeSet};

use object_store::path::Path;
use serde::Serialize;

use crate::channel::check_link;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::layout;
use crate::name::ChannelName;
use crate::policy::Policy;
use crate::promotion;
use crate::record::Record;
use crate::registry::Registry;

/// Something that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The object's path in the store.
    pub object: String,
    /// What is wrong, and what to do.
    pub problem: String,
}

/// What was verified.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Verified {
    /// Channels whose policies and logs were walked from the first to the newest.
    pub channels: u64,
    /// Policies.
    pub policies: u64,
    /// Records.
    pub records: u64,
    /// Manifests.
    pub manifests: u64,
    /// Blobs read to their end.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What does not hold; empty if all does.
    pub findings: Vec<Finding>,
}

impl Verified {
    fn found(&mut self, object: impl Into<String>, problem: impl ToString) {
        self.findings.push(Finding { object: object.into(), problem: problem.to_string() });
    }
}

/// A finding, unless it is the store that is unwell or the caller who cancelled.
fn finding<T>(result: Result<T>) -> Result<Result<T>> {
    match result {
        Err(e @ (Error::Store { .. } | Error::Cancelled)) => Err(e),
        other => Ok(other),
    }
}

impl Registry {
    /// Reads everything in the registry, blobs to their last byte, and tells what does not hold.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::Cancelled`]; what does not hold is no error but a finding.
    pub async fn verify(&self) -> Result<Verified> {
        let mut verified = Verified::default();
        let mut served: BTreeMap<Digest, BTreeSet<ChannelName>> = BTreeMap::new();
        for channel in self.channels().await? {
            self.options().cancel.check()?;
            verified.channels += 1;
            self.verify_channel(&channel, &mut verified, &mut served).await?;
        }
        let mut wanted: BTreeMap<Digest, u64> = BTreeMap::new();
        let mut versions: BTreeSet<Digest> = served.keys().copied().collect();
        for meta in self.store().list(&Path::from(layout::MANIFESTS), None).await? {
            match layout::digest(&meta.location) {
                Some(digest) => {
                    versions.insert(digest);
                }
                None => verified.found(meta.location, "is no manifest's name"),
            }
        }
        for version in versions {
            self.options().cancel.check()?;
            match finding(self.manifest(version).await)? {
                Ok(manifest) => {
                    verified.manifests += 1;
                    for file in &manifest.version().files {
                        let size = *wanted.entry(file.sha256).or_insert(file.size);
                        if size != file.size {
                            let object = layout::manifest(&version).to_string();
                            verified.found(object, format!("says {} bytes of a blob that has {size}", file.size));
                        }
                    }
                }
                Err(e) => verified.found(layout::manifest(&version), e),
            }
        }
        for (digest, size) in wanted {
            match finding(self.check_blob(digest, size).await)? {
                Ok(()) => {
                    verified.blobs += 1;
                    verified.bytes += size;
                }
                Err(e) => verified.found(layout::blob(&digest), e),
            }
        }
        Ok(verified)
    }

    async fn verify_channel(
        &self,
        channel: &ChannelName,
        verified: &mut Verified,
        served: &mut BTreeMap<Digest, BTreeSet<ChannelName>>,
    ) -> Result<()> {
        let folder = layout::policies(channel);
        let last = match finding(self.numbers(&folder, channel).await)? {
            Ok(last) => last,
            Err(e) => {
                verified.found(folder, e);
                return Ok(());
            }
        };
        let mut policy: Option<Policy> = None;
        for serial in 1..=last {
            match finding(self.policy_at(channel, serial).await)? {
                Ok(Some(next)) => {
                    verified.policies += 1;
                    if next.previous() != policy.as_ref().map(Policy::digest) && (policy.is_some() || serial == 1) {
                        verified.found(layout::policy(channel, serial), "does not follow the policy before it");
                    }
                    policy = Some(next);
                }
                Ok(None) => verified.found(layout::policy(channel, serial), "was removed while it was read"),
                Err(e) => verified.found(layout::policy(channel, serial), e),
            }
        }
        let Some(policy) = policy else {
            verified.found(folder, "has no policy that is believed; nothing of the channel is");
            return Ok(());
        };
        let folder = layout::log(channel);
        let last = match finding(self.numbers(&folder, channel).await)? {
            Ok(last) => last,
            Err(e) => {
                verified.found(folder, e);
                return Ok(());
            }
        };
        let mut before: Option<Record> = None;
        for number in 1..=last {
            self.options().cancel.check()?;
            let object = layout::record(channel, number);
            match finding(self.record_at(channel, number).await)? {
                Ok(Some(record)) => {
                    verified.records += 1;
                    if (before.is_some() || number == 1)
                        && let Err(e) = check_link(channel, before.as_ref(), &record)
                    {
                        verified.found(object.clone(), e);
                    }
                    let backwards =
                        before.as_ref().is_some_and(|b| b.body().policy.serial > record.body().policy.serial);
                    if backwards {
                        verified.found(object.clone(), "was made under an older policy than the record before it");
                    }
                    // Of a key revoked since, an old record is history; at the head it is what is served.
                    let trust = record.trust(&policy);
                    if number == last {
                        match trust {
                            Err(e) => verified.found(object, e),
                            Ok(()) => {
                                served.entry(record.body().version).or_default().insert(channel.clone());
                                self.verify_served(channel, &policy, &record, verified).await?;
                            }
                        }
                    }
                    before = Some(record);
                }
                Ok(None) => verified.found(object, "was removed while it was read"),
                Err(e) => {
                    verified.found(object, e);
                    before = None;
                }
            }
        }
        // The copy: harmless when wrong, and yet worth knowing.
        match finding(self.channel(channel).await)? {
            Ok(state) => {
                state.warnings.iter().for_each(|w| verified.found(layout::current(channel), w));
            }
            Err(e) => verified.found(layout::current(channel), e),
        }
        Ok(())
    }

    async fn verify_served(
        &self,
        channel: &ChannelName,
        policy: &Policy,
        record: &Record,
        verified: &mut Verified,
    ) -> Result<()> {
        // A manifest that cannot be read is a finding of its own, made with all the others.
        if let Ok(manifest) = finding(self.manifest(record.body().version).await)? {
            for refusal in promotion::fitness(policy, &manifest, Some(record.body().promoted_under)) {
                let problem = format!("channel {channel} serves it against its policy: {}", refusal.message);
                verified.found(layout::manifest(&record.body().version), problem);
            }
        }
        Ok(())
    }
}
