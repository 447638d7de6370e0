//! A mirror is the same registry, or says why it cannot be.

use std::sync::Arc;

use registry::{Error, Registry, Store, Target};

use crate::faulty::Faulty;
use crate::world::{World, decision, memory, over, run, stores, with_payload};

async fn open(world: &World, store: &Store) -> Registry {
    world.open_over(store.clone()).await.unwrap()
}

#[test]
fn a_mirror_serves_the_same_and_follows() {
    run(async {
        for (name, target, _folder) in stores() {
            let world = World::make(over(memory()).with_part_size(1 << 10)).await;
            let registry = world.open().await;
            world.ship(&with_payload(&[1; 5_000])).await;
            let second = world.ship(&with_payload(b"2")).await;
            let mirrored = registry.mirror(&target, false).await.unwrap();
            assert_eq!(
                (mirrored.channels, mirrored.policies, mirrored.records, mirrored.manifests, mirrored.blobs),
                (1, 1, 2, 2, 7),
                "{name}"
            );
            let copy = open(&world, &target).await;
            assert_eq!(copy.id(), registry.id());
            assert_eq!(copy.served(&world.channel).await.unwrap().manifest.digest(), second);
            assert_eq!(copy.verify().await.unwrap().findings, [], "{name}");
            let again = registry.mirror(&target, false).await.unwrap();
            assert_eq!((again.records, again.manifests, again.blobs, again.policies), (0, 0, 0, 0), "{name}");
            let third = world.ship(&with_payload(b"3")).await;
            assert_eq!(registry.mirror(&target, false).await.unwrap().records, 1, "{name}");
            let out = world.fresh_folder();
            let target = Target::Channel(world.channel.clone());
            assert_eq!(copy.pull(&target, &out, false, false, false).await.unwrap().version, third, "{name}");
        }
    });
}

#[test]
fn a_mirror_that_went_its_own_way_is_told() {
    run(async {
        let world = World::make(over(memory())).await;
        let registry = world.open().await;
        world.ship(&with_payload(b"1")).await;
        let other = world.ship(&with_payload(b"2")).await;
        let target = over(memory());
        registry.mirror(&target, false).await.unwrap();
        let copy = open(&world, &target).await;
        copy.rollback(&world.channel, None, &world.keys.alice, &decision()).await.unwrap();
        world.ship(&with_payload(b"3")).await;
        let err = registry.mirror(&target, false).await.unwrap_err();
        assert!(matches!(err, Error::Log { .. }) && err.to_string().contains("log/0000000003.json"), "{err}");
        let foreign = World::make(over(memory())).await;
        let err = foreign.open().await.mirror(&target, false).await.unwrap_err();
        assert!(matches!(err, Error::RegistryExists { .. }), "{err}");
        assert_ne!(copy.served(&world.channel).await.unwrap().manifest.digest(), other);
    });
}

#[test]
fn a_mirror_killed_anywhere_goes_on() {
    run(async {
        let world = World::make(over(memory())).await;
        world.ship(&with_payload(b"1")).await;
        world.ship(&with_payload(b"2")).await;
        let registry = world.open().await;
        for at in 1.. {
            let inner = memory();
            let faulty = Faulty::over(inner.clone()).dies(at, at % 2 == 0);
            let outcome = registry.mirror(&over(Arc::new(faulty.clone())), false).await;
            if let Ok(copy) = world.open_over(over(inner.clone())).await {
                // Whatever of it can be seen is whole.
                let findings = copy.verify().await.unwrap().findings;
                assert!(findings.is_empty(), "{at}: {findings:?}");
            }
            registry.mirror(&over(inner.clone()), false).await.unwrap();
            let copy = world.open_over(over(inner)).await.unwrap();
            assert_eq!(copy.verify().await.unwrap().findings, []);
            assert_eq!(copy.log(&world.channel, 9).await.unwrap().len(), 2);
            if !faulty.dead() {
                outcome.unwrap();
                assert!(at > 30);
                break;
            }
        }
    });
}

#[test]
fn what_does_not_verify_is_not_copied() {
    run(async {
        let inner = memory();
        let world = World::make(over(inner.clone())).await;
        let version = world.ship(&with_payload(b"1")).await;
        let artifact = world.open().await.manifest(version).await.unwrap().version().artifact().sha256;
        let path = object_store::path::Path::from(format!("blobs/sha256/{}", artifact.hex()));
        let good = object_store::ObjectStoreExt::get(&*inner, &path).await.unwrap().bytes().await.unwrap();
        let mut bad = good.to_vec();
        bad[20] ^= 4;
        object_store::ObjectStoreExt::put(&*inner, &path, bad.into()).await.unwrap();
        let target = memory();
        let err = world.open().await.mirror(&over(target.clone()), false).await.unwrap_err();
        assert!(matches!(err, Error::Digest { .. }), "{err}");
        assert!(object_store::ObjectStoreExt::head(&*target, &path).await.is_err());
    });
}
