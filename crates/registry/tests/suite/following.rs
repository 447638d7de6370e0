//! A server's view: what a channel points at, as it changes, and nothing that does not verify.

use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _};
use registry::{
    Algorithm, Class, Digest, Error, Follow, Follower, KeyState, Options, Registry, SecretKey, Store, Trust, sweep,
};

use crate::faulty::Faulty;
use crate::world::{self, World, decision, impatient, memory, over, run, trusted, with_payload};

fn follow(world: &World, cache: &FilePath) -> Follow {
    let mut follow = Follow::new(world.channel.clone(), cache);
    follow.options.trust = Trust::Pinned(vec![world.keys.operator.public().clone()]);
    follow
}

fn follower(world: &World, store: Store, cache: &FilePath) -> Follower {
    Follower::open(store, follow(world, cache)).unwrap()
}

fn content(payload: &[u8]) -> Vec<u8> {
    world::cartridge(&with_payload(payload))
}

fn cached(cache: &FilePath) -> Vec<PathBuf> {
    let files = std::fs::read_dir(cache.join("sha256")).unwrap().map(|entry| entry.unwrap().path());
    files.collect()
}

#[test]
fn versions_come_and_go_and_the_old_ones_live_while_used() {
    run(async {
        let world = World::make(over(memory())).await;
        let cache = world.fresh_folder();
        let mut follow = follow(&world, &cache);
        follow.keep = 0;
        let mut follower = Follower::open(world.store.clone(), follow).unwrap();
        // Nothing was promoted yet: told, and asked again.
        assert!(matches!(follower.poll().await, Err(Error::EmptyChannel { .. })));
        let first = world.ship(&with_payload(b"1")).await;
        let one = follower.poll().await.unwrap().unwrap();
        assert_eq!((one.version, one.record.number), (first, 1));
        assert_eq!(std::fs::read(&one.path).unwrap(), content(b"1"));
        assert_eq!(one.manifest().name.as_str(), "rules");
        assert!(follower.poll().await.unwrap().is_none());

        let second = world.ship(&with_payload(b"2")).await;
        let two = follower.poll().await.unwrap().unwrap();
        assert_eq!((two.version, follower.current().unwrap().version), (second, second));
        // The first one is in use, the sweep of the second left it.
        assert_eq!(std::fs::read(&one.path).unwrap(), content(b"1"));
        let path = one.path.clone();
        drop(one);

        world.open().await.rollback(&world.channel, None, &world.keys.bob, &decision()).await.unwrap();
        let back = follower.poll().await.unwrap().unwrap();
        assert_eq!((back.version, back.record.number, back.record.restores), (first, 3, Some(1)));
        assert_eq!((std::fs::read(&back.path).unwrap(), &back.path), (content(b"1"), &path));
        // Nobody uses the second any more, and with the next change it goes.
        let path = two.path.clone();
        drop(two);
        let third = world.ship(&with_payload(b"3")).await;
        assert_eq!(follower.poll().await.unwrap().unwrap().version, third);
        assert!(!path.exists());
        assert!(back.path.exists());
    });
}

#[test]
fn a_sweep_takes_what_nobody_holds_but_the_newest() {
    run(async {
        let world = World::make(over(memory())).await;
        let cache = world.fresh_folder();
        assert_eq!(sweep(&cache, 0).unwrap().files, Vec::<PathBuf>::new());
        let mut follower = follower(&world, world.store.clone(), &cache);
        let mut used = Vec::new();
        for payload in [b"1", b"2", b"3"] {
            world.ship(&with_payload(payload)).await;
            used.push(follower.poll().await.unwrap().unwrap());
        }
        std::fs::write(cache.join("sha256/note.txt"), b"somebody's").unwrap();
        assert_eq!(cached(&cache).len(), 4);
        assert!(sweep(&cache, 0).unwrap().files.is_empty(), "all are held");
        let path = used.remove(0).path.clone();
        let swept = sweep(&cache, 0).unwrap();
        assert_eq!((swept.files, swept.bytes), (vec![path], content(b"1").len() as u64));
        drop((used, follower));
        assert_eq!(sweep(&cache, 1).unwrap().files.len(), 1);
        assert_eq!(cached(&cache).len(), 2);
    });
}

#[test]
fn the_same_version_promoted_again_changes_the_record_alone() {
    run(async {
        let world = World::make(over(memory())).await;
        let mut follower = follower(&world, world.store.clone(), &world.fresh_folder());
        let version = world.ship(&with_payload(b"1")).await;
        follower.poll().await.unwrap().unwrap();
        let mut rules = world::rules(&world.keys);
        rules.quick = true;
        world.open().await.set_policy(&world.channel, rules, &world.keys.operator, &decision()).await.unwrap();
        assert!(follower.poll().await.unwrap().is_none());
        assert_eq!(world.promote(version).await, 2);
        assert!(follower.poll().await.unwrap().is_none());
        assert_eq!(follower.current().unwrap().record.number, 2);
    });
}

#[test]
fn a_store_that_fails_one_request_in_five_delays_and_never_deceives() {
    run(async {
        for seed in 0..20 {
            let inner = memory();
            let world = World::make(over(inner.clone())).await;
            let faulty = Faulty::over(inner).fails_one_in(5, seed);
            let mut follower = follower(&world, over(Arc::new(faulty)), &world.fresh_folder());
            let mut errors = 0;
            for payload in [b"1", b"2", b"3", b"1", b"2"] {
                let before = follower.current().map(|c| c.version);
                let version = world.ship(&with_payload(payload)).await;
                let found = loop {
                    match follower.poll().await {
                        Ok(Some(found)) => break found,
                        Ok(None) => panic!("seed {seed}: a change was not seen"),
                        Err(e) => {
                            assert_eq!(e.class(), Class::Failed, "{e}");
                            assert_eq!(follower.current().map(|c| c.version), before, "seed {seed}");
                            errors += 1;
                        }
                    }
                };
                assert_eq!(found.version, version);
                assert_eq!(std::fs::read(&found.path).unwrap(), content(payload), "seed {seed}");
            }
            assert!(errors > 0, "seed {seed}: this store never failed");
        }
    });
}

#[test]
fn forged_and_damaged_objects_change_nothing_and_are_overcome() {
    run(async {
        let inner = memory();
        let world = World::make(over(inner.clone())).await;
        let cache = world.fresh_folder();
        let mut follower = follower(&world, world.store.clone(), &cache);
        let first = world.ship(&with_payload(b"1")).await;
        follower.poll().await.unwrap().unwrap();

        // Mallory appends a record to a copy of the registry in which she is the operator, and copies it here.
        let mallory = SecretKey::generate(Algorithm::Ed25519).0;
        let copy = memory();
        let objects: Vec<object_store::ObjectMeta> =
            futures_util::TryStreamExt::try_collect(inner.list(None)).await.unwrap();
        for meta in &objects {
            let bytes = inner.get(&meta.location).await.unwrap().bytes().await.unwrap();
            copy.put(&meta.location, bytes.into()).await.unwrap();
        }
        for path in ["channels/stable/policy/0000000001.json", "channels/stable/current.json"] {
            copy.delete(&Path::from(path)).await.unwrap();
        }
        let hers = Options::new(Trust::Pinned(vec![mallory.public().clone()]));
        let evil = Registry::open(over(copy.clone()), hers).await.unwrap();
        let mut rules = world::rules(&world.keys);
        rules.keys.push(trusted(&mallory, "mallory", KeyState::Active));
        evil.set_policy(&world.channel, rules, &mallory, &decision()).await.unwrap();
        let bad = evil.push(&world.request(&with_payload(b"hers")), &mallory).await.unwrap().version;
        evil.promote(&world.channel, bad, &mallory, &decision()).await.unwrap();
        let record = Path::from("channels/stable/log/0000000002.json");
        let forged = copy.get(&record).await.unwrap().bytes().await.unwrap();
        for bytes in [
            forged,
            inner.get(&Path::from("channels/stable/log/0000000001.json")).await.unwrap().bytes().await.unwrap(),
            b"{}".as_slice().into(),
        ] {
            inner.put(&record, bytes.into()).await.unwrap();
            for _ in 0..2 {
                assert_eq!(follower.poll().await.unwrap_err().class(), Class::Refused);
                assert_eq!(follower.current().unwrap().version, first);
                assert_eq!(follower.withdrawn(), None);
            }
        }
        inner.delete(&record).await.unwrap();
        // Somebody cleaned up; the true second record is followed, although a forged one was seen in its place.
        assert!(follower.poll().await.unwrap().is_none());
        let second = world.push(&with_payload(b"2")).await;
        // The blob is damaged in the store.
        let blob = Path::from(format!("blobs/sha256/{}", Digest::of(&content(b"2")).hex()));
        let mut damaged = content(b"2");
        *damaged.last_mut().unwrap() ^= 1;
        inner.put(&blob, damaged.into()).await.unwrap();
        assert_eq!(world.promote(second).await, 2);
        assert!(matches!(follower.poll().await, Err(Error::Digest { .. })));
        assert_eq!(follower.current().unwrap().version, first);
        assert_eq!(cached(&cache).len(), 1, "nothing of the damaged one is left");
        inner.put(&blob, content(b"2").into()).await.unwrap();
        assert_eq!(follower.poll().await.unwrap().unwrap().version, second);
        // The store goes back in time.
        inner.delete(&record).await.unwrap();
        let err = follower.poll().await.unwrap_err();
        assert!(err.to_string().contains("the newest record is 1, and this machine saw 2"), "{err}");
        assert_eq!(follower.current().unwrap().version, second);
    });
}

#[test]
fn what_the_operator_withdraws_is_told_and_a_rollback_leads_on() {
    run(async {
        let world = World::make(over(memory())).await;
        let mut follower = follower(&world, world.store.clone(), &world.fresh_folder());
        let registry = world.open().await;
        let request = world.request(&with_payload(b"1"));
        let good = registry.push(&request, &world.keys.bob).await.unwrap().version;
        registry.promote(&world.channel, good, &world.keys.bob, &decision()).await.unwrap();
        let bad = world.ship(&with_payload(b"2")).await;
        assert_eq!(follower.poll().await.unwrap().unwrap().version, bad);
        let mut rules = world::rules(&world.keys);
        rules.keys[0].state = KeyState::Revoked;
        registry.set_policy(&world.channel, rules, &world.keys.operator, &decision()).await.unwrap();
        let err = follower.poll().await.unwrap_err();
        assert_eq!(err.class(), Class::Refused);
        assert!(follower.withdrawn().unwrap().contains("revoked"), "{:?}", follower.withdrawn());
        assert_eq!(follower.current().unwrap().version, bad);
        registry.rollback(&world.channel, None, &world.keys.bob, &decision()).await.unwrap();
        assert_eq!(follower.poll().await.unwrap().unwrap().version, good);
        assert_eq!(follower.withdrawn(), None);
    });
}

#[test]
fn other_operators_in_the_store_are_not_followed_without_a_word() {
    run(async {
        let inner = memory();
        let world = World::make(over(inner.clone())).await;
        let first = world.ship(&with_payload(b"1")).await;
        let cache = world.fresh_folder();
        let mut follower = Follower::open(world.store.clone(), Follow::new(world.channel.clone(), &cache)).unwrap();
        follower.poll().await.unwrap().unwrap();
        // Mallory makes herself the operator and promotes a version of her own.
        let mallory = SecretKey::generate(Algorithm::Ed25519).0;
        world.open().await.set_operators(&[mallory.public().clone()], false).await.unwrap();
        for path in ["policy/0000000001.json", "log/0000000001.json", "current.json"] {
            inner.delete(&Path::from(format!("channels/stable/{path}"))).await.unwrap();
        }
        let evil = Registry::open(world.store.clone(), Options::new(Trust::AsStored)).await.unwrap();
        let mut rules = world::rules(&world.keys);
        rules.keys = vec![trusted(&mallory, "mallory", KeyState::Active)];
        evil.set_policy(&world.channel, rules, &mallory, &decision()).await.unwrap();
        let bad = evil.push(&world.request(&with_payload(b"hers")), &mallory).await.unwrap().version;
        evil.promote(&world.channel, bad, &mallory, &decision()).await.unwrap();
        for _ in 0..3 {
            assert_eq!(follower.poll().await.unwrap_err().class(), Class::Refused);
            assert_eq!(follower.current().unwrap().version, first);
        }
        // After a restart, too: the folder remembers.
        let mut again = Follower::open(world.store.clone(), Follow::new(world.channel.clone(), &cache)).unwrap();
        assert_eq!(again.poll().await.unwrap_err().class(), Class::Refused);
        assert!(again.current().is_none());
    });
}

#[test]
fn asking_when_nothing_changed_takes_two_requests() {
    run(async {
        let inner = memory();
        let world = World::make(over(inner.clone())).await;
        world.ship(&with_payload(b"1")).await;
        let faulty = Faulty::over(inner);
        let store = over(Arc::new(faulty.clone())).with_retry(impatient(1));
        let mut follower = follower(&world, store, &world.fresh_folder());
        follower.poll().await.unwrap().unwrap();
        // The marker, current.json, one list, the manifest, the blob.
        assert_eq!(faulty.take_log().len(), 5);
        assert!(follower.poll().await.unwrap().is_none());
        assert_eq!(faulty.take_log().len(), 2);
    });
}
