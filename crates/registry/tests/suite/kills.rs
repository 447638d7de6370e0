//! A thousand kills at random: no hole in the log, nothing lost, nothing served that does not verify.

use std::sync::Arc;

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use registry::Digest;

use crate::faults::sound;
use crate::faulty::Faulty;
use crate::world::{World, decision, memory, over, run, with_payload};

const KILLS: u32 = 1_000;
const SEED: u64 = 19;

#[test]
fn a_thousand_kills_leave_a_log_without_a_hole() {
    run(async {
        let mut random = ChaCha8Rng::seed_from_u64(SEED);
        let (mut killed, mut steps) = (0, 0);
        // A fresh world every so often, so that logs stay short and the test with them.
        while killed < KILLS {
            let inner = memory();
            let world = World::make(over(inner.clone()).with_part_size(512)).await;
            let mut versions: Vec<Digest> = vec![world.ship(&with_payload(b"first")).await];
            let mut head = 1;
            for _ in 0..60 {
                steps += 1;
                let faulty = Faulty::over(inner.clone()).dies(random.random_range(2..22), random.random());
                if random.random() {
                    // Objects seem old, so that garbage collection has work.
                    faulty.age("", 3 * 24 * 60 * 60);
                }
                let store = over(Arc::new(faulty.clone())).with_part_size(512);
                let registry = world.open_over(store).await.unwrap();
                let key = if random.random() { &world.keys.alice } else { &world.keys.bob };
                let any = versions[random.random_range(0..versions.len())];
                // Errors are the rule here: most of these die, and versions were collected.
                match random.random_range(0..6) {
                    0 | 1 => {
                        let mut payload = vec![0; random.random_range(1..2_000)];
                        random.fill(&mut payload[..]);
                        let request = world.request(&with_payload(&payload));
                        if let Ok(pushed) = registry.push(&request, key).await {
                            versions.push(pushed.version);
                        }
                    }
                    2 | 3 => drop(registry.promote(&world.channel, any, key, &decision()).await),
                    4 => {
                        let to = random.random::<bool>().then(|| random.random_range(1..=head));
                        drop(registry.rollback(&world.channel, to, key, &decision()).await);
                    }
                    _ => drop(registry.gc("test", true).await),
                }
                killed += u32::from(faulty.dead());
                // Pushed by one that was killed before it could tell.
                for listed in world.open().await.list().await.unwrap().versions {
                    if !versions.contains(&listed.version) {
                        versions.push(listed.version);
                    }
                }
                let (number, _) = sound(&world, &versions).await.unwrap();
                assert!(number == head || number == head + 1, "from {head} to {number}");
                head = number;
                // Leases of the dead keep others waiting for a day; here the day passes.
                let leases = object_store::path::Path::from("leases");
                let left: Vec<object_store::ObjectMeta> =
                    futures_util::TryStreamExt::try_collect(object_store::ObjectStore::list(&*inner, Some(&leases)))
                        .await
                        .unwrap();
                for meta in left {
                    object_store::ObjectStoreExt::delete(&*inner, &meta.location).await.unwrap();
                }
            }
        }
        assert!(killed >= KILLS && steps < 5_000, "{killed} of {steps}");
    });
}
