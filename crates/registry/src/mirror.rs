//! Mirror: the same registry in another store, verified on the way.

use std::collections::BTreeSet;

use bytes::Bytes;
use object_store::path::Path;
use serde::Serialize;

use crate::channel::check_link;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::layout;
use crate::policy::{MAX_POLICY, Policy};
use crate::record::{MAX_RECORD, Record};
use crate::registry::{Options, Registry};
use crate::store::{Created, Store};

/// What a mirror run copied.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Mirrored {
    /// Channels whose policies and logs are the same now.
    pub channels: u64,
    /// Policies copied.
    pub policies: u64,
    /// Records copied.
    pub records: u64,
    /// Manifests copied.
    pub manifests: u64,
    /// Blobs copied.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Nothing was written; blobs count as copied where the target has none of their size.
    pub dry_run: bool,
}

impl Registry {
    /// Copies this registry into another store: all policies, records and versions. What is there is left, and must be
    /// the same. Blobs go before the manifests that name them and records come last, so the copy can be used at any
    /// moment; interrupted, it is run again.
    ///
    /// # Errors
    /// [`Error::RegistryExists`] if the target is another registry; [`Error::Log`] if its log went another way;
    /// everything that does not verify.
    pub async fn mirror(&self, target: &Store, dry_run: bool) -> Result<Mirrored> {
        let mut mirrored = Mirrored { dry_run, ..Default::default() };
        let marker = self.marker_bytes();
        if !dry_run {
            target.probe().await?;
            // Byte for byte: two that begin the same mirror at once agree.
            target.create(&layout::marker(), &marker, u64::MAX).await?;
        }
        let options = Options { memory: None, cache: None, ..self.options().clone() };
        let copy = match Registry::open(target.clone(), options).await {
            Ok(copy) if copy.id() != self.id() => {
                return Err(Error::RegistryExists { location: target.location.clone(), id: copy.id().to_owned() });
            }
            Ok(copy) => Some(copy),
            Err(Error::NoRegistry { .. }) if dry_run => None,
            Err(e) => return Err(e),
        };
        let lease = match &copy {
            Some(copy) if !dry_run => Some((copy, copy.lease_push("mirror").await?)),
            _ => None,
        };
        let outcome = self.mirror_leased(target, copy.as_ref(), &mut mirrored).await;
        if let Some((copy, lease)) = lease {
            copy.release(lease).await?;
        }
        outcome.map(|()| mirrored)
    }

    async fn mirror_leased(&self, target: &Store, copy: Option<&Registry>, mirrored: &mut Mirrored) -> Result<()> {
        // Logs first as they are now: a version promoted while this runs is the next run's.
        let mut logs = Vec::new();
        let mut versions = BTreeSet::new();
        for channel in self.channels().await? {
            let state = self.channel(&channel).await?;
            let mut policies: Vec<Policy> = Vec::new();
            for serial in 1..=state.policy.serial() {
                let policy = self.policy_at(&channel, serial).await?.ok_or_else(|| Error::Missing {
                    object: layout::policy(&channel, serial).to_string(),
                    advice: "policies have no holes: repair this registry first",
                })?;
                if policy.previous() != policies.last().map(Policy::digest) {
                    let problem = format!("policy {serial} does not follow the one before it");
                    return Err(Error::Log { channel: channel.to_string(), problem });
                }
                policies.push(policy);
            }
            let last = state.head.as_ref().map_or(0, |r| r.body().number);
            let mut records: Vec<Record> = Vec::new();
            for number in 1..=last {
                let record = self.record_there(&channel, number).await?;
                check_link(&channel, records.last(), &record)?;
                records.push(record);
            }
            if let Some(head) = records.last() {
                head.trust(&state.policy)?;
                versions.insert(head.body().version);
            }
            logs.push((channel, policies, records));
        }
        // Versions that garbage collection took since are history; those that channels point at must be there.
        for meta in self.store().list(&Path::from(layout::MANIFESTS), None).await? {
            versions.extend(layout::digest(&meta.location));
        }
        for version in versions {
            self.mirror_version(version, target, copy, mirrored).await?;
        }
        for (channel, policies, records) in logs {
            mirrored.channels += 1;
            for policy in &policies {
                let path = layout::policy(&channel, policy.serial());
                let copied = put_same(target, &path, policy.bytes(), MAX_POLICY, mirrored.dry_run).await;
                mirrored.policies += u64::from(copied.map_err(|e| went_elsewhere(&channel, e))?);
            }
            for record in &records {
                let path = layout::record(&channel, record.body().number);
                let copied = put_same(target, &path, record.bytes(), MAX_RECORD, mirrored.dry_run).await;
                mirrored.records += u64::from(copied.map_err(|e| went_elsewhere(&channel, e))?);
            }
            if let (Some(copy), Some(policy), Some(record), false) =
                (copy, policies.last(), records.last(), mirrored.dry_run)
            {
                copy.write_current(&channel, policy, record).await?;
            }
        }
        Ok(())
    }

    async fn mirror_version(
        &self,
        version: Digest,
        target: &Store,
        copy: Option<&Registry>,
        mirrored: &mut Mirrored,
    ) -> Result<()> {
        self.options().cancel.check()?;
        let manifest = self.manifest(version).await?;
        for file in &manifest.version().files {
            let sent = match copy {
                Some(copy) if !mirrored.dry_run => copy.store_blob(self.store(), file.sha256, file.size).await?.sent,
                _ => {
                    let found = target.head(&layout::blob(&file.sha256)).await?;
                    found.is_none_or(|meta| meta.size != file.size)
                }
            };
            if sent {
                mirrored.blobs += 1;
                mirrored.bytes += file.size;
            }
        }
        let created = match copy {
            Some(copy) if !mirrored.dry_run => copy.store_manifest(&manifest).await?,
            _ => target.head(&layout::manifest(&version)).await?.is_none(),
        };
        mirrored.manifests += u64::from(created);
        Ok(())
    }
}

/// Whether it was copied; an error with the path if something else is there.
async fn put_same(target: &Store, path: &Path, bytes: &Bytes, limit: u64, dry_run: bool) -> Result<bool, PutSame> {
    let found = target.get(path, limit).await?;
    match found {
        Some(found) if found == *bytes => Ok(false),
        Some(_) => Err(PutSame::Other(path.to_string())),
        None if dry_run => Ok(true),
        None => match target.create(path, bytes, limit).await? {
            Created::Ours => Ok(true),
            Created::Theirs(_) => Err(PutSame::Other(path.to_string())),
        },
    }
}

enum PutSame {
    Other(String),
    Error(Error),
}

impl From<Error> for PutSame {
    fn from(e: Error) -> Self {
        Self::Error(e)
    }
}

fn went_elsewhere(channel: &crate::ChannelName, e: PutSame) -> Error {
    match e {
        PutSame::Error(e) => e,
        PutSame::Other(path) => Error::Log {
            channel: channel.to_string(),
            problem: format!(
                "the target's {path} is another than ours: something was promoted there, or it is damaged"
            ),
        },
    }
}
