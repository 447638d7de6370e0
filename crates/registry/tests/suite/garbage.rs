//! Garbage collection takes what nothing reaches, and nothing else.

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::path::Path;
use registry::{Digest, Error, Registry, Retention};

use crate::faulty::Faulty;
use crate::world::{World, decision, memory, over, run, with_payload};

const DAY: i64 = 24 * 60 * 60;

struct Old {
    world: World,
    faulty: Faulty,
    inner: Arc<dyn ObjectStore>,
    registry: Registry,
}

/// A world whose store shows every object a month old, but leases as they are.
async fn old() -> Old {
    let inner = memory();
    let world = World::make(over(inner.clone())).await;
    let faulty = Faulty::over(inner.clone());
    for prefix in ["blobs", "manifests", "channels", "staging", "probe"] {
        faulty.age(prefix, 30 * DAY);
    }
    let registry = world.open_over(over(Arc::new(faulty.clone()))).await.unwrap();
    Old { world, faulty, inner, registry }
}

fn sorted(mut digests: Vec<Digest>) -> Vec<Digest> {
    digests.sort();
    digests
}

#[test]
fn what_the_log_reaches_within_its_retention_stays() {
    run(async {
        let Old { world, registry, inner, .. } = old().await;
        // The policy keeps the newest two records.
        let mut versions = Vec::new();
        for payload in [b"1", b"2", b"3", b"4"] {
            versions.push(world.ship(&with_payload(payload)).await);
        }
        let never = world.push(&with_payload(b"never promoted")).await;
        object_store::ObjectStoreExt::put(&*inner, &Path::from("staging/left"), b"half".as_slice().into())
            .await
            .unwrap();
        let gone = sorted(vec![versions[0], versions[1], never]);

        let said = registry.gc("test", false).await.unwrap();
        assert!(said.dry_run);
        assert_eq!(sorted(said.manifests.clone()), gone);
        // Cartridge and receipt of each; report, suite and text are shared with those that stay.
        assert_eq!((said.blobs.len(), said.staging.as_slice()), (6, &["staging/left".to_owned()][..]));
        assert_eq!(world.open().await.list().await.unwrap().versions.len(), 5);

        let done = registry.gc("test", true).await.unwrap();
        assert!(!done.dry_run);
        assert_eq!((sorted(done.manifests), done.blobs.len(), done.bytes), (gone, 6, said.bytes));
        let left = sorted(world.open().await.list().await.unwrap().versions.iter().map(|v| v.version).collect());
        assert_eq!(left, sorted(versions[2..].to_vec()));
        assert_eq!(world.open().await.verify().await.unwrap().findings, []);
        // Within the retention rollback works; beyond it, it says why not.
        let err = world.open().await.rollback(&world.channel, Some(1), &world.keys.alice, &decision()).await;
        assert!(matches!(err, Err(Error::Missing { .. })), "{err:?}");
        let back = world.open().await.rollback(&world.channel, Some(3), &world.keys.alice, &decision()).await.unwrap();
        assert_eq!(back.version, versions[2]);
        let again = registry.gc("test", true).await.unwrap();
        assert_eq!((again.manifests.len(), again.blobs.len()), (0, 0));
    });
}

#[test]
fn what_is_young_stays_whatever_it_is() {
    run(async {
        let world = World::make(over(memory())).await;
        for payload in [b"1", b"2", b"3"] {
            world.ship(&with_payload(payload)).await;
        }
        world.push(&with_payload(b"never promoted")).await;
        let collected = world.open().await.gc("test", true).await.unwrap();
        assert_eq!((collected.manifests.len(), collected.blobs.len(), collected.kept.len()), (0, 0, 4));
        assert!(collected.kept.iter().any(|k| k.why == "younger than 24 h"));
    });
}

#[test]
fn retention_in_days_counts_by_the_stores_clock() {
    run(async {
        let Old { world, registry, faulty, .. } = old().await;
        let mut rules = crate::world::rules(&world.keys);
        rules.retention = Retention { records: 1, days: 31 };
        let set =
            |rules| registry.set_policy(&world.channel, rules, &world.keys.operator, DECISION.get_or_init(decision));
        set(rules.clone()).await.unwrap();
        for payload in [b"1", b"2", b"3"] {
            world.ship(&with_payload(payload)).await;
        }
        assert_eq!(registry.gc("test", false).await.unwrap().manifests.len(), 0);
        faulty.age("channels", 32 * DAY);
        assert_eq!(registry.gc("test", false).await.unwrap().manifests.len(), 2);
        // A client's clock has no say.
        let mut options = world.options();
        options.clock = || u64::MAX;
        let registry = Registry::open(world.store.clone(), options).await.unwrap();
        assert_eq!(registry.gc("test", true).await.unwrap().manifests.len(), 0);
    });
}

static DECISION: std::sync::OnceLock<registry::Decision> = std::sync::OnceLock::new();

#[test]
fn a_push_and_a_collection_keep_out_of_each_others_way() {
    run(async {
        let Old { world, registry, faulty, inner } = old().await;
        world.ship(&with_payload(b"1")).await;
        // A push under way: its lease is there.
        let lease = Path::from("leases/push/0123.json");
        object_store::ObjectStoreExt::put(&*inner, &lease, b"{}".as_slice().into()).await.unwrap();
        let err = registry.gc("test", true).await.unwrap_err();
        assert!(matches!(err, Error::Busy { .. }) && err.to_string().contains("1 push(es)"), "{err}");
        // That of one dead for more than a day is swept away.
        faulty.age("leases/push/0123", 2 * DAY);
        registry.gc("test", true).await.unwrap();
        assert!(object_store::ObjectStoreExt::head(&*inner, &lease).await.is_err());
        // A collection under way.
        let lease = Path::from("leases/gc.json");
        object_store::ObjectStoreExt::put(&*inner, &lease, b"{}".as_slice().into()).await.unwrap();
        let request = world.request(&with_payload(b"2"));
        let err = world.open().await.push(&request, &world.keys.alice).await.unwrap_err();
        assert!(matches!(err, Error::Busy { .. }) && err.to_string().contains("garbage collection"), "{err}");
        assert!(matches!(registry.gc("test", true).await, Err(Error::Busy { .. })));
        faulty.age("leases/gc", 2 * DAY);
        registry.push(&request, &world.keys.alice).await.unwrap();
        registry.gc("test", true).await.unwrap();
        assert!(object_store::ObjectStoreExt::head(&*inner, &lease).await.is_err());
    });
}

#[test]
fn pushes_and_collections_at_once_lose_nothing() {
    run(async {
        let Old { world, registry, .. } = old().await;
        world.ship(&with_payload(b"0")).await;
        let world = Arc::new(world);
        for round in 0..30_u8 {
            // The very same version was pushed and collected before: its blobs are old and about to go.
            world.open().await.push(&world.request(&with_payload(b"again")), &world.keys.alice).await.unwrap();
            let (there, collecting) = (world.clone(), registry.clone());
            let collection = tokio::spawn(async move { collecting.gc("test", true).await });
            let pushed = tokio::spawn(async move {
                for _ in 0..round {
                    tokio::task::yield_now().await;
                }
                let request = there.request(&with_payload(b"again"));
                there.open().await.push(&request, &there.keys.alice).await
            });
            let (collection, pushed) = (collection.await.unwrap(), pushed.await.unwrap());
            if let Ok(pushed) = pushed {
                let findings = world.open().await.verify().await.unwrap().findings;
                assert_eq!(findings, [], "round {round}");
                // Collected after the push, as nothing points at it, it is gone whole.
                let there = world.open().await.manifest(pushed.version).await.is_ok();
                assert!(there || collection.is_ok(), "round {round}");
            }
        }
    });
}

#[test]
fn nothing_is_removed_while_something_cannot_be_read() {
    run(async {
        let Old { world, registry, inner, faulty } = old().await;
        let first = world.ship(&with_payload(b"1")).await;
        world.ship(&with_payload(b"2")).await;
        let path = Path::from(format!("manifests/sha256/{}.json", first.hex()));
        let good = object_store::ObjectStoreExt::get(&*inner, &path).await.unwrap().bytes().await.unwrap();
        object_store::ObjectStoreExt::put(&*inner, &path, b"{}".as_slice().into()).await.unwrap();
        faulty.take_log();
        assert!(matches!(registry.gc("test", true).await, Err(Error::Digest { .. })));
        object_store::ObjectStoreExt::delete(&*inner, &path).await.unwrap();
        let err = registry.gc("test", true).await.unwrap_err();
        assert!(
            matches!(err, Error::Missing { .. }) && err.to_string().contains("record 1 of channel stable"),
            "{err}"
        );
        let deleted: Vec<String> =
            faulty.take_log().into_iter().filter(|l| l.starts_with("DELETE") && !l.contains("leases/")).collect();
        assert_eq!(deleted, Vec::<String>::new());
        object_store::ObjectStoreExt::put(&*inner, &path, good.into()).await.unwrap();
        registry.gc("test", true).await.unwrap();
    });
}
