//! Garbage collection: what no channel's log can reach within its retention, and nothing younger than the grace.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use object_store::ObjectMeta;
use object_store::path::Path;
use serde::Serialize;

use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::layout;
use crate::lease::GRACE;
use crate::registry::Registry;

/// What a garbage collection removed, or would remove.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Collected {
    /// Versions that no longer can be promoted or pulled.
    pub manifests: Vec<Digest>,
    /// Blobs that no kept version names.
    pub blobs: Vec<Digest>,
    /// Unfinished uploads.
    pub staging: Vec<String>,
    /// Bytes of all of it.
    pub bytes: u64,
    /// Versions that are kept, and why.
    pub kept: Vec<Kept>,
    /// Nothing was removed.
    pub dry_run: bool,
}

/// A version that is kept.
#[derive(Debug, Clone, Serialize)]
pub struct Kept {
    /// The version.
    pub version: Digest,
    /// For people.
    pub why: String,
}

fn seconds(meta: &ObjectMeta) -> u64 {
    u64::try_from(meta.last_modified.timestamp()).unwrap_or(0)
}

impl Registry {
    /// Collects garbage; unless `remove`, only says what it would.
    ///
    /// # Errors
    /// [`Error::Busy`] while a push is under way. Anything that cannot be read ends it before something is removed:
    /// what a damaged manifest or log names is not known, and what is not known is kept.
    pub async fn gc(&self, by: &str, remove: bool) -> Result<Collected> {
        crate::name::text("by", by)?;
        if !remove {
            let now = self.store_time().await?;
            let (collected, _) = self.collect_garbage(now).await?;
            return Ok(collected);
        }
        let started = Instant::now();
        let lease = self.lease_gc(by).await?;
        let outcome = async {
            let (mut collected, paths) = self.collect_garbage(lease.since).await?;
            collected.dry_run = false;
            for (path, time, _) in self.store().leftovers()? {
                if lease.since.saturating_sub(time) > GRACE {
                    std::fs::remove_file(&path).map_err(Error::file(&path))?;
                }
            }
            for path in paths {
                self.options().cancel.check()?;
                // Near the grace our lease would count as one left by the dead, and others would no longer wait.
                if started.elapsed() > Duration::from_secs(GRACE / 2) {
                    let problem = "this garbage collection took too long; run it again".into();
                    return Err(Error::Busy { problem });
                }
                self.store().delete(&path).await?;
            }
            Ok(collected)
        }
        .await;
        let released = self.release(lease).await;
        let collected = outcome?;
        released?;
        Ok(collected)
    }

    /// Why each version is kept that a log reaches.
    async fn reachable(&self, now: u64) -> Result<BTreeMap<Digest, String>> {
        let mut reached = BTreeMap::new();
        for channel in self.channels().await? {
            let state = self.channel(&channel).await?;
            let Some(head) = &state.head else { continue };
            let retention = state.policy.rules().retention;
            let oldest = now.saturating_sub(u64::from(retention.days) * 24 * 60 * 60);
            let first_by_count = (head.body().number + 1).saturating_sub(retention.records.max(1));
            for meta in self.store().list(&layout::log(&channel), None).await? {
                let Some(number) = layout::number(&meta.location) else { continue };
                if number < first_by_count && seconds(&meta) < oldest {
                    continue;
                }
                let record = self.record_there(&channel, number).await?;
                reached.insert(record.body().version, format!("record {number} of channel {channel}"));
            }
            reached.insert(head.body().version, format!("channel {channel} points at it"));
        }
        Ok(reached)
    }

    /// What goes, as a report and in the order of removal: manifests first, so that none is left that names a blob
    /// that is gone.
    async fn collect_garbage(&self, now: u64) -> Result<(Collected, Vec<Path>)> {
        let young = |meta: &ObjectMeta| now.saturating_sub(seconds(meta)) <= GRACE;
        let mut collected = Collected { dry_run: true, ..Default::default() };
        let mut paths = Vec::new();
        let mut kept_blobs = BTreeSet::new();
        let reachable = self.reachable(now).await?;
        let mut listed = BTreeSet::new();
        for meta in self.store().list(&Path::from(layout::MANIFESTS), None).await? {
            self.options().cancel.check()?;
            let Some(version) = layout::digest(&meta.location) else { continue };
            listed.insert(version);
            let why = reachable
                .get(&version)
                .cloned()
                .or_else(|| young(&meta).then(|| format!("younger than {} h", GRACE / 3600)));
            match why {
                Some(why) => {
                    let manifest = self.manifest(version).await?;
                    kept_blobs.extend(manifest.version().files.iter().map(|f| f.sha256));
                    collected.kept.push(Kept { version, why });
                }
                None => {
                    collected.manifests.push(version);
                    collected.bytes += meta.size;
                    paths.push(meta.location);
                }
            }
        }
        if let Some((version, why)) = reachable.iter().find(|(v, _)| !listed.contains(v)) {
            return Err(Error::Missing {
                object: format!("{} ({why})", layout::manifest(version)),
                advice: "restore it from a mirror first: which blobs it names is not known, and they are kept",
            });
        }
        for meta in self.store().list(&Path::from(layout::BLOBS), None).await? {
            let Some(digest) = layout::digest(&meta.location) else { continue };
            if !kept_blobs.contains(&digest) && !young(&meta) {
                collected.blobs.push(digest);
                collected.bytes += meta.size;
                paths.push(meta.location);
            }
        }
        for prefix in [layout::STAGING, "probe", "leases/clock"] {
            for meta in self.store().list(&Path::from(prefix), None).await? {
                if !young(&meta) {
                    collected.staging.push(meta.location.to_string());
                    collected.bytes += meta.size;
                    paths.push(meta.location);
                }
            }
        }
        for (path, time, size) in self.store().leftovers()? {
            if now.saturating_sub(time) > GRACE {
                collected.staging.push(path.display().to_string());
                collected.bytes += size;
            }
        }
        Ok((collected, paths))
    }
}
