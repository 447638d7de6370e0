//! Forged, replayed, rewritten, rotated, revoked.

use bytes::Bytes;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _};
use registry::{Algorithm, ChannelName, Class, Digest, Error, KeyState, Options, Registry, SecretKey, Target, Trust};

use crate::world::{self, Made, World, decision, memory, over, run, trusted, with_payload};

async fn raw(store: &dyn ObjectStore, path: &str) -> Bytes {
    store.get(&Path::from(path)).await.unwrap().bytes().await.unwrap()
}

async fn write(store: &dyn ObjectStore, path: &str, bytes: impl Into<Bytes>) {
    store.put(&Path::from(path), bytes.into().into()).await.unwrap();
}

const CURRENT: &str = "channels/stable/current.json";

fn record(number: u64) -> String {
    format!("channels/stable/log/{number:010}.json")
}

#[test]
fn a_record_counts_in_its_own_place_alone() {
    run(async {
        let inner = memory();
        let world = World::make(over(inner.clone())).await;
        let registry = world.open().await;
        let canary = ChannelName::parse("canary").unwrap();
        registry.set_policy(&canary, world::rules(&world.keys), &world.keys.operator, &decision()).await.unwrap();
        let version = world.ship(&with_payload(b"1")).await;
        world.ship(&with_payload(b"2")).await;
        registry.promote(&canary, version, &world.keys.alice, &decision()).await.unwrap();
        let served = |registry: Registry| {
            let channel = world.channel.clone();
            async move { registry.served(&channel).await }
        };
        // Replayed as the next: a record of this channel, of another, of another registry.
        let elsewhere = memory();
        let other = World::make(over(elsewhere.clone())).await;
        other.ship(&with_payload(b"1")).await;
        let foreign = raw(&*elsewhere, &record(1)).await;
        for (bytes, word) in [
            (raw(&*inner, &record(1)).await, "number 1 and lies in the place of 3"),
            (raw(&*inner, "channels/canary/log/0000000001.json").await, "channel canary"),
            (foreign, "registry"),
        ] {
            write(&*inner, &record(3), bytes).await;
            let err = served(world.open().await).await.unwrap_err();
            assert!(err.to_string().contains(word), "{err}");
            assert_eq!(err.class(), Class::Refused);
            let err = registry.promote(&world.channel, version, &world.keys.alice, &decision()).await.unwrap_err();
            assert_eq!(err.class(), Class::Refused, "{err}");
            inner.delete(&Path::from(record(3))).await.unwrap();
        }
        assert!(served(world.open().await).await.is_ok());
    });
}

#[test]
fn a_record_by_a_key_that_may_not_promote_is_not_served() {
    run(async {
        let inner = memory();
        let world = World::make(over(inner.clone())).await;
        world.ship(&with_payload(b"1")).await;
        world.ship(&with_payload(b"2")).await;
        // Mallory can write to the store, knows everything, and has a key of her own: she makes a registry with the
        // same id in which she is the operator, appends a record there and copies it.
        let mallory = SecretKey::generate(Algorithm::Ed25519).0;
        let copy = memory();
        let listed: Vec<_> = futures_util::TryStreamExt::try_collect(inner.list(None)).await.unwrap();
        for meta in &listed as &Vec<object_store::ObjectMeta> {
            let bytes = raw(&*inner, meta.location.as_ref()).await;
            write(&*copy, meta.location.as_ref(), bytes).await;
        }
        for path in ["channels/stable/policy/0000000001.json", CURRENT] {
            copy.delete(&Path::from(path)).await.unwrap();
        }
        let evil = Registry::open(over(copy.clone()), Options::new(Trust::Pinned(vec![mallory.public().clone()])))
            .await
            .unwrap();
        let mut rules = world::rules(&world.keys);
        rules.keys.push(trusted(&mallory, "mallory", KeyState::Active));
        evil.set_policy(&world.channel, rules, &mallory, &decision()).await.unwrap();
        let request = world.request(&with_payload(b"hers"));
        let hers = evil.push(&request, &mallory).await.unwrap().version;
        evil.promote(&world.channel, hers, &mallory, &decision()).await.unwrap();
        assert_eq!(evil.served(&world.channel).await.unwrap().manifest.digest(), hers);
        // Her record alone; her record and her policy; everything of hers.
        write(&*inner, &record(3), raw(&*copy, &record(3)).await).await;
        let err = world.open().await.served(&world.channel).await.unwrap_err();
        assert!(err.to_string().contains("under another policy 1 than the store's"), "{err}");
        write(&*inner, CURRENT, raw(&*copy, CURRENT).await).await;
        let err = world.open().await.served(&world.channel).await.unwrap_err();
        assert!(err.to_string().contains("under another policy 1 than the store's"), "{err}");
        let policy = "channels/stable/policy/0000000001.json";
        write(&*inner, policy, raw(&*copy, policy).await).await;
        let err = world.open().await.served(&world.channel).await.unwrap_err();
        assert!(err.to_string().contains("no operator's key"), "{err}");
    });
}

#[test]
fn one_flipped_bit_in_any_object_is_never_served() {
    run(async {
        let inner = memory();
        let world = World::make(over(inner.clone())).await;
        let one = with_payload(b"1");
        let two = with_payload(b"2");
        let first = world.ship(&one).await;
        let second = world.ship(&two).await;
        let objects: Vec<object_store::ObjectMeta> =
            futures_util::TryStreamExt::try_collect(inner.list(None)).await.unwrap();
        assert!(objects.len() > 12);
        let content = world::cartridge(&two);
        let id = world.open().await.id().to_owned();
        for meta in &objects {
            let path = meta.location.as_ref();
            let good = raw(&*inner, path).await;
            // Some fifty bytes of each, in other places of each.
            for (turn, at) in (path.len() % 7..good.len()).step_by((good.len() / 50).max(1)).enumerate() {
                let mut bad = good.to_vec();
                bad[at] ^= 1;
                write(&*inner, path, bad).await;
                let Ok(registry) = world.open_over(world.store.clone()).await else { continue };
                if registry.id() != id {
                    // The marker's id: then nothing in the store belongs to it.
                    assert!(registry.served(&world.channel).await.is_err());
                    continue;
                }
                let out = world.fresh_folder();
                match registry.pull(&Target::Channel(world.channel.clone()), &out, false, false, false).await {
                    Ok(pulled) => {
                        assert_eq!(pulled.version, second, "{path} byte {at}");
                        assert_eq!(std::fs::read(&pulled.artifact).unwrap(), content, "{path} byte {at}");
                    }
                    Err(e) => assert_eq!(e.class(), Class::Refused, "{path} byte {at}: {e}"),
                }
                // What verify says nothing about must be what nothing depends on: the marker's note of its maker.
                if turn % 5 == 0 && registry.verify().await.unwrap().findings.is_empty() {
                    assert_eq!(path, "registry.json", "byte {at}");
                }
            }
            write(&*inner, path, good).await;
        }
        assert!(world.open().await.verify().await.unwrap().findings.is_empty());
        let back = world.open().await.rollback(&world.channel, None, &world.keys.bob, &decision()).await.unwrap();
        assert_eq!(back.version, first);
    });
}

#[test]
fn a_removed_tail_is_noticed_by_who_was_there_before() {
    run(async {
        let inner = memory();
        let world = World::make(over(inner.clone())).await;
        let old = world.ship(&with_payload(b"1")).await;
        let old_current = raw(&*inner, CURRENT).await;
        let memory_folder = world.fresh_folder();
        let mut options = world.options();
        options.memory = Some(memory_folder.clone());
        let open = || Registry::open(world.store.clone(), options.clone());
        assert_eq!(open().await.unwrap().served(&world.channel).await.unwrap().manifest.digest(), old);
        let new = world.ship(&with_payload(b"2")).await;
        assert_eq!(open().await.unwrap().served(&world.channel).await.unwrap().manifest.digest(), new);
        // The store goes back to the state before.
        let removed = raw(&*inner, &record(2)).await;
        inner.delete(&Path::from(record(2))).await.unwrap();
        write(&*inner, CURRENT, old_current).await;
        let err = open().await.unwrap().served(&world.channel).await.unwrap_err();
        assert!(err.to_string().contains("the newest record is 1, and this machine saw 2"), "{err}");
        // A newcomer cannot know.
        assert!(world.open().await.served(&world.channel).await.is_ok());
        // Another second record in its place is noticed, too.
        world.open().await.promote(&world.channel, old, &world.keys.alice, &decision()).await.unwrap();
        let third = world.push(&with_payload(b"3")).await;
        world.promote(third).await;
        let err = open().await.unwrap().served(&world.channel).await.unwrap_err();
        assert!(err.to_string().contains("record 2 is not the one that this machine saw before"), "{err}");
        drop(removed);
    });
}

#[test]
fn other_operators_than_at_first_sight_are_refused() {
    run(async {
        let inner = memory();
        let world = World::make(over(inner.clone())).await;
        let mut options = Options::new(Trust::AsStored);
        options.memory = Some(world.fresh_folder());
        Registry::open(world.store.clone(), options.clone()).await.unwrap();
        let mallory = SecretKey::generate(Algorithm::Ed25519).0;
        world.open().await.set_operators(&[mallory.public().clone()], false).await.unwrap();
        let err = Registry::open(world.store.clone(), options).await.unwrap_err();
        assert!(err.to_string().contains(mallory.id().as_str()), "{err}");
        // Who pinned the operator is not impressed.
        world.ship(&Made::default()).await;
        assert!(world.open().await.served(&world.channel).await.is_ok());
    });
}

#[test]
fn keys_rotate_retire_and_are_revoked() {
    run(async {
        let world = World::make(over(memory())).await;
        let registry = world.open().await;
        let (alice, bob) = (&world.keys.alice, &world.keys.bob);
        let first = world.ship(&with_payload(b"1")).await;
        let set = |state_of_alice| {
            let mut rules = world::rules(&world.keys);
            rules.keys[0].state = state_of_alice;
            let registry = registry.clone();
            let (world, decision) = (&world, decision());
            async move { registry.set_policy(&world.channel, rules, &world.keys.operator, &decision).await }
        };
        // Retired: what she promoted is served on, and she promotes and signs nothing new.
        set(KeyState::Retired).await.unwrap();
        assert_eq!(registry.served(&world.channel).await.unwrap().manifest.digest(), first);
        let second = world.push(&with_payload(b"2")).await;
        let err = registry.promote(&world.channel, second, alice, &decision()).await.unwrap_err();
        assert!(matches!(err, Error::Untrusted { .. }) && err.to_string().contains("retired"), "{err}");
        let err = registry.promote(&world.channel, second, bob, &decision()).await.unwrap_err();
        assert!(err.to_string().contains("signature: the key of alice"), "{err}");
        // Bob signs the same files: another version, no upload, and it is promoted.
        let request = world.request(&with_payload(b"2"));
        let by_bob = registry.push(&request, bob).await.unwrap();
        assert!(by_bob.files.iter().all(|f| !f.sent));
        registry.promote(&world.channel, by_bob.version, bob, &decision()).await.unwrap();
        // Bob goes back to what the retired key signed: it counted when it was promoted.
        registry.rollback(&world.channel, Some(1), bob, &decision()).await.unwrap();
        assert_eq!(registry.served(&world.channel).await.unwrap().manifest.digest(), first);
        // Revoked: it is not served any more, whatever it was; and nothing leads back to it.
        set(KeyState::Revoked).await.unwrap();
        let err = registry.served(&world.channel).await.unwrap_err();
        assert!(err.to_string().contains("revoked"), "{err}");
        let (target, out) = (Target::Channel(world.channel.clone()), world.fresh_folder());
        assert!(registry.pull(&target, &out, false, false, false).await.is_err());
        assert!(!out.exists());
        let err = registry.rollback(&world.channel, Some(1), bob, &decision()).await.unwrap_err();
        assert!(err.to_string().contains("revoked"), "{err}");
        let back = registry.rollback(&world.channel, None, bob, &decision()).await.unwrap();
        assert_eq!((back.version, back.number), (by_bob.version, 4));
        assert_eq!(registry.served(&world.channel).await.unwrap().manifest.digest(), by_bob.version);
        let err = set(KeyState::Active).await.unwrap_err();
        assert!(err.to_string().contains("cannot come back"), "{err}");
        // The log says what happened, and which records no longer count.
        let log = registry.log(&world.channel, 10).await.unwrap();
        let counts: Vec<bool> = log.iter().map(|r| r.problem.is_none()).collect();
        assert_eq!(counts, [true, true, true, false]);
        assert_eq!(registry.verify().await.unwrap().findings, []);
    });
}

#[test]
fn a_head_by_a_revoked_key_is_followed_by_a_good_one() {
    run(async {
        let world = World::make(over(memory())).await;
        let registry = world.open().await;
        let (alice, bob) = (&world.keys.alice, &world.keys.bob);
        let request = world.request(&Made { failures: vec!["a"], ..with_payload(b"1") });
        let good = registry.push(&request, bob).await.unwrap().version;
        registry.promote(&world.channel, good, bob, &decision()).await.unwrap();
        // Alice's key is stolen, and the thief's version passes: it fails other cases, among none at all.
        let request = world.request(&Made { failures: vec![], ..with_payload(b"2") });
        let bad = registry.push(&request, alice).await.unwrap().version;
        registry.promote(&world.channel, bad, alice, &decision()).await.unwrap();
        let mut rules = world::rules(&world.keys);
        rules.keys[0].state = KeyState::Revoked;
        registry.set_policy(&world.channel, rules, &world.keys.operator, &decision()).await.unwrap();
        assert!(registry.served(&world.channel).await.is_err());
        // The next version is measured by the newest one that counts, not by the thief's.
        let request = world.request(&Made { failures: vec!["a"], ..with_payload(b"3") });
        let next = registry.push(&request, bob).await.unwrap().version;
        let promoted = registry.promote(&world.channel, next, bob, &decision()).await.unwrap();
        assert_eq!(promoted.number, 3);
        assert_eq!(registry.served(&world.channel).await.unwrap().manifest.digest(), next);
        // And what counts less than the thief's and not less than Bob's own first is not a way around the gate.
        let request = world.request(&Made { failures: vec!["b"], ..with_payload(b"4") });
        let worse = registry.push(&request, bob).await.unwrap().version;
        let err = registry.promote(&world.channel, worse, bob, &decision()).await.unwrap_err();
        assert!(err.to_string().contains("redteam-drop"), "{err}");
    });
}

#[test]
fn a_policy_needs_the_operator_and_removed_policies_are_noticed() {
    run(async {
        let inner = memory();
        let world = World::make(over(inner.clone())).await;
        let registry = world.open().await;
        let rules = || world::rules(&world.keys);
        let err = registry.set_policy(&world.channel, rules(), &world.keys.alice, &decision()).await.unwrap_err();
        assert!(err.to_string().contains("no operator's key"), "{err}");
        let old_current = raw(&*inner, "channels/stable/policy/0000000001.json").await;
        registry.set_policy(&world.channel, rules(), &world.keys.operator, &decision()).await.unwrap();
        world.ship(&Made::default()).await;
        // The newest policy is removed, and with it a revocation, say: the record names it.
        inner.delete(&Path::from("channels/stable/policy/0000000002.json")).await.unwrap();
        inner.delete(&Path::from(CURRENT)).await.unwrap();
        let err = world.open().await.served(&world.channel).await.unwrap_err();
        assert!(err.to_string().contains("made under policy 2, and the newest in the store is 1"), "{err}");
        drop(old_current);
    });
}

#[test]
fn formats_too_old_and_too_new_are_refused_by_name() {
    run(async {
        let inner = memory();
        let world = World::make(over(inner.clone())).await;
        let good = raw(&*inner, "registry.json").await;
        let text = String::from_utf8(good.to_vec()).unwrap();
        for (version, old) in [("0", true), ("2", false), ("17", false)] {
            write(&*inner, "registry.json", text.replace("registry/1", &format!("registry/{version}"))).await;
            let err = world.open_over(world.store.clone()).await.unwrap_err();
            assert_eq!(matches!(err, Error::TooOld { .. }), old, "{err}");
            assert_eq!(matches!(err, Error::TooNew { .. }), !old, "{err}");
        }
        write(&*inner, "registry.json", good).await;
        world.ship(&Made::default()).await;
        let current = String::from_utf8(raw(&*inner, CURRENT).await.to_vec()).unwrap();
        write(&*inner, CURRENT, current.replace("registry-current/1", "registry-current/2")).await;
        let err = world.open().await.served(&world.channel).await.unwrap_err();
        assert!(matches!(err, Error::TooNew { .. }), "{err}");
    });
}

#[test]
fn oversized_objects_are_not_read() {
    run(async {
        let inner = memory();
        let world = World::make(over(inner.clone())).await;
        let version = world.ship(&Made::default()).await;
        let path = format!("manifests/sha256/{}.json", version.hex());
        write(&*inner, &path, vec![b' '; (1 << 20) + 1]).await;
        let err = world.open().await.served(&world.channel).await.unwrap_err();
        assert!(matches!(err, Error::TooLarge { size: 1_048_577, limit: 1_048_576, .. }), "{err}");
        write(&*inner, &record(2), vec![b' '; (1 << 20) + 1]).await;
        let err = world.open().await.served(&world.channel).await.unwrap_err();
        assert!(err.to_string().contains("log/0000000002.json has 1048577 bytes"), "{err}");
    });
}

#[test]
fn clocks_decide_nothing() {
    run(async {
        let world = World::make(over(memory())).await;
        for clock in [|| 0_u64, || u64::MAX, || 4_102_444_800] {
            let mut options = world.options();
            options.clock = clock;
            let registry = Registry::open(world.store.clone(), options).await.unwrap();
            let payload = clock().to_le_bytes();
            let version = registry.push(&world.request(&with_payload(&payload)), &world.keys.alice).await.unwrap();
            let promoted =
                registry.promote(&world.channel, version.version, &world.keys.alice, &decision()).await.unwrap();
            assert!(promoted.changed);
            assert_eq!(registry.served(&world.channel).await.unwrap().manifest.digest(), version.version);
        }
        let log = world.open().await.log(&world.channel, 3).await.unwrap();
        let clocks: Vec<u64> = log.iter().map(|r| r.body.when_unix).collect();
        assert_eq!(clocks, [4_102_444_800, u64::MAX, 0]);
    });
}

#[test]
fn a_digest_is_the_only_name_of_a_version() {
    let hex = Digest::of(b"x").hex();
    assert!(matches!(Target::parse(&format!("sha256:{hex}")).unwrap(), Target::Version(_)));
    assert!(matches!(Target::parse("stable").unwrap(), Target::Channel(_)));
    for wrong in ["sha256:12", "../x", "", "Stable"] {
        assert!(Target::parse(wrong).is_err());
    }
}
