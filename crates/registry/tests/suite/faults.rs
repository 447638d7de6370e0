//! Dead at every request; one request in five failing; cut downloads.

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::path::Path;
use registry::{Digest, Error, Registry, Target};

use crate::faulty::Faulty;
use crate::world::{Made, World, decision, impatient, memory, over, run, with_payload};

/// What must hold whatever happened: the log has no hole and every link; what is served verifies, to the last byte.
pub(crate) async fn sound(world: &World, known: &[Digest]) -> Option<(u64, Digest)> {
    let registry = world.open().await;
    let log = registry.log(&world.channel, u64::MAX).await.unwrap();
    for (at, record) in log.iter().rev().enumerate() {
        assert_eq!(record.body.number, at as u64 + 1);
        assert!(record.problem.is_none());
        assert!(known.contains(&record.body.version));
    }
    let newest = log.first()?;
    let served = registry.served(&world.channel).await.unwrap();
    assert_eq!(served.number, newest.body.number);
    let findings = registry.verify().await.unwrap().findings;
    assert_eq!(findings, []);
    Some((served.number, served.manifest.digest()))
}

/// Runs an operation on a store that dies at request 1, 2, 3, … (before and after having done it), each time on a
/// fresh world; then runs it again on the healthy store, where it must succeed.
fn dies_at_every_request<F, G>(prepare: impl Fn(Arc<World>) -> G, operate: impl Fn(Arc<World>, Registry) -> F) -> u64
where
    G: Future<Output = ()>,
    F: Future<Output = registry::Result<Digest>>,
{
    run(async {
        let mut deaths = 0;
        for at in 2.. {
            let mut died = false;
            for done in [false, true] {
                let inner = memory();
                let world = Arc::new(World::make(over(inner.clone()).with_part_size(64)).await);
                prepare(world.clone()).await;
                let known: Vec<Digest> =
                    world.open().await.list().await.unwrap().versions.iter().map(|v| v.version).collect();
                let before = sound(&world, &known).await;
                let faulty = Faulty::over(inner).dies(at, done);
                // Request 1 is the marker's.
                let registry = world.open_over(over(Arc::new(faulty.clone())).with_part_size(64)).await.unwrap();
                let outcome = operate(world.clone(), registry).await;
                died = faulty.dead();
                deaths += u64::from(died);
                let known: Vec<Digest> =
                    world.open().await.list().await.unwrap().versions.iter().map(|v| v.version).collect();
                let after = sound(&world, &known).await;
                assert!(after.map(|a| a.0) >= before.map(|b| b.0), "nothing that was recorded is lost");
                if outcome.is_ok() && !died {
                    break;
                }
                let version = operate(world.clone(), world.open().await).await.unwrap();
                sound(&world, &known.iter().copied().chain([version]).collect::<Vec<_>>()).await;
            }
            if !died {
                return deaths;
            }
        }
        unreachable!()
    })
}

#[test]
fn a_push_killed_anywhere_leaves_nothing_to_be_seen_and_goes_through_later() {
    let deaths = dies_at_every_request(
        |world| async move {
            world.ship(&with_payload(b"before")).await;
        },
        |world, registry| async move {
            let made = with_payload(&[3; 300]);
            let request = crate::world::request(&world.fresh_folder(), &made);
            registry.push(&request, &world.keys.alice).await.map(|p| p.version)
        },
    );
    assert!(deaths > 30, "{deaths}");
}

#[test]
fn a_promotion_killed_anywhere_happened_or_did_not() {
    let deaths = dies_at_every_request(
        |world| async move {
            world.ship(&with_payload(b"before")).await;
            world.push(&with_payload(b"next")).await;
        },
        |world, registry| async move {
            let version = world.push(&with_payload(b"next")).await;
            let promoted = registry.promote(&world.channel, version, &world.keys.alice, &decision()).await?;
            assert_eq!(promoted.number, 2);
            assert_eq!(world.open().await.served(&world.channel).await.unwrap().manifest.digest(), version);
            Ok(version)
        },
    );
    assert!(deaths >= 18, "{deaths}");
}

#[test]
fn a_rollback_killed_anywhere_happened_or_did_not() {
    dies_at_every_request(
        |world| async move {
            world.ship(&with_payload(b"1")).await;
            world.ship(&with_payload(b"2")).await;
        },
        |world, registry| async move {
            let first = world.push(&with_payload(b"1")).await;
            let back = registry.rollback(&world.channel, Some(1), &world.keys.bob, &decision()).await?;
            assert_eq!((back.version, back.number), (first, 3));
            Ok(first)
        },
    );
}

#[test]
fn a_change_of_policy_killed_anywhere_happened_or_did_not() {
    dies_at_every_request(
        |world| async move {
            world.ship(&with_payload(b"1")).await;
        },
        |world, registry| async move {
            let mut rules = crate::world::rules(&world.keys);
            rules.quick = true;
            let version = world.push(&with_payload(b"1")).await;
            registry.set_policy(&world.channel, rules, &world.keys.operator, &decision()).await.map(|_| version)
        },
    );
}

#[test]
fn everything_works_on_a_store_that_fails_one_request_in_five() {
    run(async {
        for seed in 0..20 {
            let inner = memory();
            let world = World::make(over(inner.clone())).await;
            let faulty = Faulty::over(inner).fails_one_in(5, seed);
            let store = over(Arc::new(faulty.clone())).with_retry(impatient(40)).with_part_size(256);
            let registry = world.open_over(store).await.unwrap();
            let mut versions = Vec::new();
            for payload in [&[1; 900][..], b"two", b"three"] {
                let request = world.request(&with_payload(payload));
                let version = registry.push(&request, &world.keys.alice).await.unwrap().version;
                registry.promote(&world.channel, version, &world.keys.alice, &decision()).await.unwrap();
                versions.push(version);
            }
            let back = registry.rollback(&world.channel, Some(1), &world.keys.bob, &decision()).await.unwrap();
            assert_eq!((back.version, back.number), (versions[0], 4), "seed {seed}");
            let out = world.fresh_folder();
            let target = Target::Channel(world.channel.clone());
            let pulled = registry.pull(&target, &out, false, false, false).await.unwrap();
            assert_eq!(
                std::fs::read(pulled.artifact).unwrap(),
                crate::world::cartridge(&with_payload(&[1; 900])),
                "seed {seed}"
            );
            assert!(registry.verify().await.unwrap().findings.is_empty());
            sound(&world, &versions).await;
            assert!(faulty.requests() > 100);
        }
    });
}

#[test]
fn a_cut_download_goes_on_where_it_broke_off() {
    run(async {
        let inner = memory();
        let world = World::make(over(inner.clone())).await;
        let made = Made { payload: vec![9; 100_000], ..Made::default() };
        let version = world.ship(&made).await;
        // The first read is the manifest's, and is made again whole.
        let faulty = Faulty::over(inner.clone()).cuts(3);
        let registry = world.open_over(over(Arc::new(faulty.clone())).with_retry(impatient(4))).await.unwrap();
        let out = world.fresh_folder();
        let pulled = registry.pull(&Target::Version(version), &out, true, false, false).await.unwrap();
        assert_eq!(std::fs::read(pulled.artifact).unwrap(), crate::world::cartridge(&made));
        // Cut for good, nothing is left in the folder.
        let faulty = Faulty::over(inner.clone());
        let registry = world.open_over(over(Arc::new(faulty.clone())).with_retry(impatient(2))).await.unwrap();
        let served = registry.manifest(version).await.unwrap();
        let blob = Path::from(format!("blobs/sha256/{}", served.version().artifact().sha256.hex()));
        let faulty = faulty.cuts(1_000);
        let out = world.fresh_folder();
        std::fs::create_dir_all(&out).unwrap();
        let err = registry.pull(&Target::Version(version), &out, true, false, false).await.unwrap_err();
        assert!(matches!(err, Error::Store { .. }), "{err}");
        drop(faulty);
        // The store lost the end of a blob.
        let bytes = object_store::ObjectStoreExt::get(&*inner, &blob).await.unwrap().bytes().await.unwrap();
        object_store::ObjectStoreExt::put(&*inner, &blob, bytes.slice(..50_000).into()).await.unwrap();
        let err = world.open().await.pull(&Target::Version(version), &out, true, false, false).await.unwrap_err();
        assert!(err.to_string().contains("has 50000 bytes; its manifest says"), "{err}");
        assert_eq!(std::fs::read_dir(&out).unwrap().count(), 0);
        // A push of the same files mends it.
        world.push(&made).await;
        world.open().await.pull(&Target::Version(version), &out, true, false, false).await.unwrap();
    });
}

#[test]
fn a_lost_or_damaged_current_json_harms_nobody() {
    run(async {
        let inner = memory();
        let world = World::make(over(inner.clone())).await;
        for payload in [b"1", b"2", b"3"] {
            world.ship(&with_payload(payload)).await;
        }
        let last = world.push(&with_payload(b"3")).await;
        let current = Path::from("channels/stable/current.json");
        let put = |bytes: &'static [u8]| {
            let (inner, current) = (inner.clone(), current.clone());
            async move { object_store::ObjectStoreExt::put(&*inner, &current, bytes.into()).await.unwrap() }
        };
        for bytes in [&b""[..], b"{", b"{\"schema\":\"bitnet-harness.registry-current/1\"}", b"[]", &[0xff; 100]] {
            put(bytes).await;
            let served = world.open().await.served(&world.channel).await.unwrap();
            assert_eq!(served.manifest.digest(), last);
            assert_eq!(served.channel.warnings.len(), 1, "{:?}", served.channel.warnings);
            assert_eq!(world.open().await.verify().await.unwrap().findings.len(), 1);
        }
        object_store::ObjectStoreExt::delete(&*inner, &current).await.unwrap();
        let served = world.open().await.served(&world.channel).await.unwrap();
        assert_eq!((served.manifest.digest(), served.channel.warnings.len()), (last, 0));
        // A promotion of what is there already writes it anew.
        let again = world.open().await.promote(&world.channel, last, &world.keys.alice, &decision()).await.unwrap();
        assert!(!again.changed);
        assert!(inner.head_exists(&current).await);
    });
}

#[test]
fn a_log_restored_beside_a_newer_current_json_is_the_one_that_counts() {
    run(async {
        let inner = memory();
        let world = World::make(over(inner.clone())).await;
        let first = world.ship(&with_payload(b"1")).await;
        let second = world.ship(&with_payload(b"2")).await;
        let log = Path::from("channels/stable/log/0000000002.json");
        object_store::ObjectStoreExt::delete(&*inner, &log).await.unwrap();
        let served = world.open().await.served(&world.channel).await.unwrap();
        assert_eq!((served.number, served.manifest.digest()), (1, first));
        assert!(served.channel.warnings[0].contains("another log"), "{:?}", served.channel.warnings);
        // The next promotion takes the place that is free, and makes no hole.
        assert_eq!(world.promote(second).await, 2);
        assert_eq!(world.open().await.verify().await.unwrap().findings, []);
    });
}

#[test]
fn a_hole_in_the_log_is_an_error_and_never_skipped() {
    run(async {
        let inner = memory();
        let world = World::make(over(inner.clone())).await;
        for payload in [b"1", b"2", b"3"] {
            world.ship(&with_payload(payload)).await;
        }
        for path in ["channels/stable/log/0000000002.json", "channels/stable/current.json"] {
            object_store::ObjectStoreExt::delete(&*inner, &Path::from(path)).await.unwrap();
        }
        let err = world.open().await.served(&world.channel).await.unwrap_err();
        assert!(err.to_string().contains("has no number 2, but 3"), "{err}");
        let findings = world.open().await.verify().await.unwrap().findings;
        assert!(findings.iter().any(|f| f.problem.contains("has no number 2")), "{findings:?}");
    });
}

trait Exists {
    async fn head_exists(&self, path: &Path) -> bool;
}

impl Exists for Arc<dyn ObjectStore> {
    async fn head_exists(&self, path: &Path) -> bool {
        object_store::ObjectStoreExt::head(&**self, path).await.is_ok()
    }
}
