//! Many at once: one wins, the others are told.

use std::sync::Arc;

use registry::Error;

use crate::faulty::Faulty;
use crate::world::{World, decision, impatient, memory, over, run, stores, with_payload};

#[test]
fn of_many_promoters_one_wins_and_the_others_are_told() {
    run(async {
        for (name, store, _folder) in stores() {
            let world = Arc::new(World::make(store).await);
            let mut versions = Vec::new();
            for i in 0..6_u8 {
                versions.push(world.push(&with_payload(&[i])).await);
            }
            for round in 1..=5_u64 {
                let mut tasks = Vec::new();
                for i in 0..6 {
                    let (world, version) = (world.clone(), versions[(i + round as usize) % 6]);
                    tasks.push(tokio::spawn(async move {
                        let key = if i % 2 == 0 { &world.keys.alice } else { &world.keys.bob };
                        world.open().await.promote(&world.channel, version, key, &decision()).await
                    }));
                }
                let (mut won, mut told) = (Vec::new(), 0);
                for task in tasks {
                    match task.await.unwrap() {
                        Ok(promoted) => won.push((promoted.number, promoted.changed)),
                        Err(Error::Conflict { by, what, .. }) => {
                            assert_eq!(by, "alice");
                            assert!(what.starts_with("Promote of sha256:"), "{what}");
                            told += 1;
                        }
                        Err(e) => panic!("{name}: {e}"),
                    }
                }
                // Some may have begun after another had won, and won the next number.
                assert_eq!(won.len() + told, 6);
                let mut numbers: Vec<u64> = won.iter().filter(|w| w.1).map(|w| w.0).collect();
                numbers.sort_unstable();
                let before = numbers[0];
                assert_eq!(numbers, (before..before + numbers.len() as u64).collect::<Vec<_>>(), "{name}");
            }
            let verified = world.open().await.verify().await.unwrap();
            assert_eq!(verified.findings, [], "{name}");
        }
    });
}

#[test]
fn two_that_decide_on_the_same_state_cannot_both_win() {
    run(async {
        let inner = memory();
        let world = World::make(over(inner.clone())).await;
        let (one, two) = (world.push(&with_payload(b"1")).await, world.push(&with_payload(b"2")).await);
        // Neither creates a record before the other is about to.
        let store = over(Arc::new(Faulty::over(inner).meeting_of(2)));
        let (alice, bob) = (world.open_over(store.clone()).await.unwrap(), world.open_over(store).await.unwrap());
        let why = decision();
        let (a, b) = futures_util::join!(
            alice.promote(&world.channel, one, &world.keys.alice, &why),
            bob.promote(&world.channel, two, &world.keys.bob, &why)
        );
        assert_eq!(u32::from(a.is_ok()) + u32::from(b.is_ok()), 1, "{a:?} {b:?}");
        let winner = if a.is_ok() { one } else { two };
        assert!(matches!(a.err().or(b.err()), Some(Error::Conflict { .. })));
        assert_eq!(world.open().await.served(&world.channel).await.unwrap().manifest.digest(), winner);
    });
}

#[test]
fn a_409_with_nothing_there_is_tried_again() {
    run(async {
        let inner = memory();
        let world = World::make(over(inner.clone())).await;
        let version = world.push(&with_payload(b"1")).await;
        let faulty = Faulty::over(inner.clone()).conflicts(3);
        let registry = world.open_over(over(Arc::new(faulty.clone())).with_retry(impatient(4))).await.unwrap();
        let promoted = registry.promote(&world.channel, version, &world.keys.alice, &decision()).await.unwrap();
        assert_eq!(promoted.number, 1);
        let creations = faulty.take_log().iter().filter(|l| l.starts_with("CREATE")).count();
        assert_eq!(creations, 4);
        // One that never ends is told as what it is.
        let second = world.push(&with_payload(b"2")).await;
        let faulty = Faulty::over(inner).conflicts(100);
        let registry = world.open_over(over(Arc::new(faulty)).with_retry(impatient(4))).await.unwrap();
        let err = registry.promote(&world.channel, second, &world.keys.alice, &decision()).await.unwrap_err();
        assert!(matches!(err, Error::Store { .. }), "{err}");
    });
}

#[test]
fn policies_race_like_records() {
    run(async {
        let inner = memory();
        let world = World::make(over(inner.clone())).await;
        let store = over(Arc::new(Faulty::over(inner).meeting_of(2)));
        let (a, b) = (world.open_over(store.clone()).await.unwrap(), world.open_over(store).await.unwrap());
        let rules = |quick| {
            let mut rules = crate::world::rules(&world.keys);
            rules.quick = quick;
            rules
        };
        let why = decision();
        let (a, b) = futures_util::join!(
            a.set_policy(&world.channel, rules(true), &world.keys.operator, &why),
            b.set_policy(&world.channel, rules(false), &world.keys.operator, &why)
        );
        assert_eq!(u32::from(a.is_ok()) + u32::from(b.is_ok()), 1, "{a:?} {b:?}");
        assert_eq!(world.open().await.channel(&world.channel).await.unwrap().policy.rules().quick, a.is_ok());
    });
}

#[test]
fn pushes_at_once_share_their_blobs() {
    run(async {
        for (name, store, _folder) in stores() {
            let world = Arc::new(World::make(store).await);
            let mut tasks = Vec::new();
            for i in 0..8_u8 {
                let world = world.clone();
                tasks.push(tokio::spawn(async move { world.push(&with_payload(&[i / 2])).await }));
            }
            let mut versions = Vec::new();
            for task in tasks {
                versions.push(task.await.unwrap());
            }
            versions.sort();
            versions.dedup();
            assert_eq!(versions.len(), 4, "{name}");
            assert_eq!(world.open().await.verify().await.unwrap().findings, [], "{name}");
        }
    });
}
