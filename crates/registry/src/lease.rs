//! Leases: how garbage collection and other writers keep out of each other's way.
//!
//! Each side first writes its lease and then looks for the other's. Stores answer with what was written last, so at
//! least one of two that meet sees the other and steps back. A lease that was left by a process that died is ignored
//! when it is older than the grace. All times are the store's: a machine's wrong clock decides nothing.

use bytes::Bytes;
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, shown};
use crate::layout;
use crate::registry::Registry;
use crate::store::{Created, random};

const SCHEMA: &str = "bitnet-harness.registry-lease/1";
const MAX_LEASE: u64 = 16 << 10;

/// How old, in seconds, a lease is when its owner is taken for dead, and how old an object must at least be to be
/// collected: 24 hours.
pub(crate) const GRACE: u64 = 24 * 60 * 60;

#[derive(Serialize, Deserialize)]
struct Body {
    schema: String,
    by: String,
    id: String,
}

/// A lease that is held.
pub(crate) struct Lease {
    path: Path,
    /// When it was written, by the store's clock, in seconds since 1970-01-01 UTC.
    pub(crate) since: u64,
}

fn body(by: &str) -> (String, Bytes) {
    let id: String = random::<16>().iter().map(|b| format!("{b:02x}")).collect();
    let body = Body { schema: SCHEMA.into(), by: by.into(), id: id.clone() };
    (id, serde_json::to_vec(&body).expect("texts are JSON").into())
}

fn seconds(meta: &object_store::ObjectMeta) -> u64 {
    u64::try_from(meta.last_modified.timestamp()).unwrap_or(0)
}

impl Registry {
    async fn lease_at(&self, path: Path) -> Result<Lease> {
        let meta = self.store().head(&path).await?.ok_or_else(|| Error::Missing {
            object: path.to_string(),
            advice: "it was written a moment ago and is gone; does something else clean this store?",
        })?;
        Ok(Lease { since: seconds(&meta), path })
    }

    /// Announces a push.
    pub(crate) async fn lease_push(&self, by: &str) -> Result<Lease> {
        let (id, bytes) = body(by);
        let path = Path::from(format!("{}/{id}.json", layout::PUSHES));
        self.store().put(&path, &bytes).await?;
        let lease = self.lease_at(path).await?;
        if let Some(problem) = self.gc_under_way(lease.since).await? {
            self.release(lease).await?;
            return Err(Error::Busy { problem });
        }
        Ok(lease)
    }

    /// Whether a garbage collection is under way; `now` is the store's time.
    async fn gc_under_way(&self, now: u64) -> Result<Option<String>> {
        let Some(meta) = self.store().head(&layout::gc()).await? else { return Ok(None) };
        let age = now.saturating_sub(seconds(&meta));
        if age > GRACE {
            return Ok(None);
        }
        Ok(Some(format!("a garbage collection began {age} s ago ({}); run this again when it is done", layout::GC)))
    }

    /// Whether a garbage collection is under way that may have looked at the log before an object was written to it
    /// just now; with that object's path, a lease left by the dead is told from one that is held.
    pub(crate) async fn gc_since(&self, written: Option<&Path>) -> Result<bool> {
        let Some(lease) = self.store().head(&layout::gc()).await? else { return Ok(false) };
        let Some(written) = written else { return Ok(true) };
        let now = self.store().head(written).await?.map_or(u64::MAX, |meta| seconds(&meta));
        Ok(now.saturating_sub(seconds(&lease)) <= GRACE)
    }

    /// Announces a garbage collection, unless another or a push is under way.
    pub(crate) async fn lease_gc(&self, by: &str) -> Result<Lease> {
        let (_, bytes) = body(by);
        let now = self.store_time().await?;
        if let Created::Theirs(found) = self.store().create(&layout::gc(), &bytes, MAX_LEASE).await? {
            let who = serde_json::from_slice::<Body>(&found).map_or("somebody".into(), |b| shown(&b.by));
            if let Some(problem) = self.gc_under_way(now).await? {
                return Err(Error::Busy { problem: format!("{problem} (by {who})") });
            }
            // Left by one that died. Two that find it so at once both remove it; then create-if-absent decides.
            self.store().delete(&layout::gc()).await?;
            if let Created::Theirs(_) = self.store().create(&layout::gc(), &bytes, MAX_LEASE).await? {
                return Err(Error::Busy { problem: "another garbage collection began just now".into() });
            }
        }
        let lease = self.lease_at(layout::gc()).await?;
        let mut pushes = 0;
        for meta in self.store().list(&Path::from(layout::PUSHES), None).await? {
            if lease.since.saturating_sub(seconds(&meta)) > GRACE {
                self.store().delete(&meta.location).await?;
            } else {
                pushes += 1;
            }
        }
        if pushes > 0 {
            self.release(lease).await?;
            return Err(Error::Busy {
                problem: format!(
                    "{pushes} push(es) are under way or were interrupted less than {} h ago ({}/); run this again later",
                    GRACE / 3600,
                    layout::PUSHES
                ),
            });
        }
        Ok(lease)
    }

    /// Ends a lease.
    pub(crate) async fn release(&self, lease: Lease) -> Result<()> {
        self.store().delete(&lease.path).await
    }

    /// The store's clock, in seconds since 1970-01-01 UTC.
    pub(crate) async fn store_time(&self) -> Result<u64> {
        let (id, bytes) = body("clock");
        let path = Path::from(format!("leases/clock/{id}.json"));
        self.store().put(&path, &bytes).await?;
        let lease = self.lease_at(path).await?;
        let now = lease.since;
        self.release(lease).await?;
        Ok(now)
    }
}
