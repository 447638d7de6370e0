//! How many requests the operations of every day take; the figures of docs/formats/registry.md.

use std::sync::Arc;

use registry::Target;

use crate::faulty::Faulty;
use crate::world::{World, decision, memory, over, run, with_payload};

#[test]
fn show_and_promote_take_ten_requests_at_most() {
    run(async {
        let inner = memory();
        let world = World::make(over(inner.clone())).await;
        // A long log costs no more than a short one.
        let mut version = world.ship(&with_payload(b"0")).await;
        for i in 1..=30_u8 {
            version = world.ship(&with_payload(&[i])).await;
        }
        let next = world.push(&with_payload(b"next")).await;
        let faulty = Faulty::over(inner);
        let fresh = || async { world.open_over(over(Arc::new(faulty.clone()))).await.unwrap() };
        let counted = |what: &str, limit: usize| {
            let log = faulty.take_log();
            println!("{what}: {} requests", log.len());
            assert!(log.len() <= limit, "{what}: {log:#?}");
            log.len()
        };
        let channel = Target::Channel(world.channel.clone());
        fresh().await.show(&channel).await.unwrap();
        counted("show CHANNEL", 4);
        fresh().await.show(&Target::Version(version)).await.unwrap();
        counted("show VERSION", 2);
        fresh().await.served(&world.channel).await.unwrap();
        counted("what a server asks to follow a channel", 4);
        fresh().await.promote(&world.channel, next, &world.keys.alice, &decision()).await.unwrap();
        counted("promote", 10);
        fresh().await.rollback(&world.channel, None, &world.keys.alice, &decision()).await.unwrap();
        counted("rollback", 9);
        fresh().await.pull(&channel, &world.fresh_folder(), true, false, false).await.unwrap();
        counted("pull CHANNEL, artefact only", 5);
    });
}
