//! The way of a version, over every kind of store.

use std::sync::{Arc, Mutex};

use registry::{
    Algorithm, Cancel, Class, Digest, Error, FileInput, Kind, Progress, PushRequest, Registry, Role, Rules, Step,
    Store, Target, Trust,
};

use crate::faulty::{Creation, Faulty};
use crate::world::{self, Made, World, decision, dry, memory, over, run, stores, with_payload};

#[test]
fn a_version_goes_its_way_on_every_store() {
    run(async {
        for (name, store, _folder) in stores() {
            let world = World::make(store).await;
            let registry = world.open().await;
            let (one, two) = (with_payload(b"one"), with_payload(b"two"));
            let first = world.ship(&one).await;
            let second = world.ship(&two).await;
            assert_ne!(first, second, "{name}");

            let out = world.fresh_folder();
            let pulled =
                registry.pull(&Target::Channel(world.channel.clone()), &out, false, false, false).await.unwrap();
            assert_eq!(pulled.version, second, "{name}");
            assert_eq!(std::fs::read(&pulled.artifact).unwrap(), world::cartridge(&two), "{name}");
            // The version's name is what sha256sum says of model.sig.
            assert_eq!(Digest::of(&std::fs::read(out.join("model.sig")).unwrap()), second);
            assert_eq!(pulled.files.len(), 6);

            let back = registry.rollback(&world.channel, None, &world.keys.bob, &decision()).await.unwrap();
            assert_eq!((back.version, back.number, back.before), (first, 3, Some(second)), "{name}");
            assert_eq!(registry.served(&world.channel).await.unwrap().manifest.digest(), first);
            let to = registry.rollback(&world.channel, Some(2), &world.keys.bob, &decision()).await.unwrap();
            assert_eq!((to.version, to.number), (second, 4), "{name}");

            let log = registry.log(&world.channel, 10).await.unwrap();
            let told: Vec<_> = log.iter().map(|r| (r.body.number, r.body.version, r.body.restores)).collect();
            assert_eq!(told, [(4, second, Some(2)), (3, first, Some(1)), (2, second, None), (1, first, None)]);
            assert!(log.iter().all(|r| r.problem.is_none()));
            assert_eq!(log[1].body.by, "alice");

            let listing = registry.list().await.unwrap();
            assert_eq!(listing.channels.len(), 1);
            assert_eq!(listing.channels[0].version, Some(second));
            assert_eq!(listing.versions.len(), 2);
            let shown = registry.show(&Target::Channel(world.channel.clone())).await.unwrap();
            assert_eq!(shown.manifest.cartridge["n_tokens"], "3");
            assert!(shown.problem.is_none() && shown.refusals.is_empty());

            let verified = registry.verify().await.unwrap();
            assert_eq!(verified.findings, [], "{name}");
            assert_eq!((verified.channels, verified.policies, verified.records, verified.manifests), (1, 1, 4, 2));
            // Two cartridges, two receipts (they name the cartridge); report, suite and text are shared.
            assert_eq!(verified.blobs, 7, "{name}");
        }
    });
}

#[test]
fn the_same_push_is_the_same_version_and_sends_nothing_twice() {
    run(async {
        for (name, store, _folder) in stores() {
            let world = World::make(store).await;
            let registry = world.open().await;
            let request = world.request(&Made::default());
            let first = registry.push(&request, &world.keys.alice).await.unwrap();
            assert!(first.created && first.files.iter().all(|f| f.sent), "{name}");
            let again = registry.push(&request, &world.keys.alice).await.unwrap();
            assert_eq!(again.version, first.version);
            assert!(!again.created && again.files.iter().all(|f| !f.sent), "{name}");
            // Signed by another it is another version of the same blobs.
            let bob = registry.push(&request, &world.keys.bob).await.unwrap();
            assert_ne!(bob.version, first.version);
            assert!(bob.created && bob.files.iter().all(|f| !f.sent));
        }
    });
}

#[test]
fn large_files_go_in_parts_and_come_back_whole() {
    run(async {
        // 5 MiB is the smallest part that S3 takes; the last one may be smaller.
        const PART: usize = 5 << 20;
        let payload: Vec<u8> =
            (0..(PART * 2 + 12_345) as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for (name, store, _folder) in stores() {
            let world = World::make(store.with_part_size(PART)).await;
            let registry = world.open().await;
            let made = with_payload(&payload);
            let version = world.ship(&made).await;
            let cache = world.fresh_folder();
            let mut options = world.options();
            options.cache = Some(cache.clone());
            let cached = Registry::open(world.store.clone(), options).await.unwrap();
            let path = cached.serve_file(&cached.served(&world.channel).await.unwrap()).await.unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), world::cartridge(&made), "{name}");
            assert_eq!(registry.show(&Target::Version(version)).await.unwrap().manifest.artifact().size, {
                std::fs::metadata(&path).unwrap().len()
            });
            // A damaged cache is noticed and mended, by the one that serves and by a pull.
            std::fs::write(&path, b"damaged").unwrap();
            assert_eq!(cached.serve_file(&cached.served(&world.channel).await.unwrap()).await.unwrap(), path);
            assert_eq!(std::fs::read(&path).unwrap(), world::cartridge(&made), "{name}");
            std::fs::write(&path, b"damaged").unwrap();
            let out = world.fresh_folder();
            let pulled = cached.pull(&Target::Version(version), &out, true, false, false).await.unwrap();
            assert_eq!(std::fs::read(&pulled.artifact).unwrap(), world::cartridge(&made), "{name}");
            let left: Vec<_> = std::fs::read_dir(&out).unwrap().map(|e| e.unwrap().file_name()).collect();
            assert_eq!(left.len(), 2, "{name}: {left:?}");
        }
    });
}

#[test]
fn dry_runs_write_nothing() {
    run(async {
        let faulty = Faulty::over(memory());
        let world = World::make(over(Arc::new(faulty.clone()))).await;
        let registry = world.open().await;
        let first = world.ship(&with_payload(b"one")).await;
        let second = world.push(&with_payload(b"two")).await;
        world.promote(second).await;
        let third = world.push(&with_payload(b"three")).await;
        faulty.take_log();
        let channel = &world.channel;
        let mut request = world.request(&with_payload(b"four"));
        request.dry_run = true;
        let pushed = registry.push(&request, &world.keys.alice).await.unwrap();
        assert!(pushed.dry_run && !pushed.created);
        let promoted = registry.promote(channel, third, &world.keys.alice, &dry()).await.unwrap();
        assert_eq!((promoted.number, promoted.version), (3, third));
        let back = registry.rollback(channel, None, &world.keys.alice, &dry()).await.unwrap();
        assert_eq!(back.version, first);
        let rules = world::rules(&world.keys);
        assert_eq!(registry.set_policy(channel, rules, &world.keys.operator, &dry()).await.unwrap().serial(), 2);
        let out = world.fresh_folder();
        registry.pull(&Target::Version(first), &out, false, false, true).await.unwrap();
        assert!(!out.exists());
        let mirrored = registry.mirror(&over(memory()), true).await.unwrap();
        assert_eq!((mirrored.manifests, mirrored.records), (3, 2));
        Registry::init(&over(Arc::new(faulty.clone())), &[world.keys.operator.public().clone()], true).await.unwrap();
        let writes: Vec<String> = faulty
            .take_log()
            .into_iter()
            .filter(|line| !["GET", "HEAD", "LIST"].contains(&line.split(' ').next().unwrap()))
            .collect();
        assert_eq!(writes, Vec::<String>::new());
        // The dry push tells the name that the real one has.
        request.dry_run = false;
        assert_eq!(registry.push(&request, &world.keys.alice).await.unwrap().version, pushed.version);
    });
}

#[test]
fn stores_that_cannot_tell_two_writers_apart_are_refused() {
    run(async {
        let operator = registry::SecretKey::generate(Algorithm::Ed25519).0;
        for (creation, word) in [
            (Creation::Overwrites, "accepts a second write"),
            (Creation::Lies, "refused a second write and yet holds"),
            (Creation::Unknown, "does not know 'create if absent'"),
        ] {
            let faulty = Faulty::over(memory()).creates(creation);
            let err =
                Registry::init(&over(Arc::new(faulty.clone())), &[operator.public().clone()], false).await.unwrap_err();
            assert!(err.to_string().contains(word), "{creation:?}: {err}");
            assert!(err.to_string().contains("If-None-Match"), "{err}");
            assert_eq!(err.class(), Class::Usage);
            // Nothing is left behind.
            let left = faulty.take_log();
            assert!(left.last().unwrap().starts_with("DELETE probe/"), "{left:?}");
        }
    });
}

/// With `REGISTRY_TEST_S3_REFUSED=s3://BUCKET`: a real server of that kind.
#[test]
fn a_server_that_cannot_tell_two_writers_apart_is_refused() {
    let Ok(bucket) = std::env::var("REGISTRY_TEST_S3_REFUSED") else { return };
    run(async {
        let store = Store::open(&registry::Location::parse(&bucket).unwrap(), true).unwrap();
        let operator = registry::SecretKey::generate(Algorithm::Ed25519).0;
        let err = Registry::init(&store, &[operator.public().clone()], false).await.unwrap_err();
        println!("{err}");
        assert!(matches!(err, Error::Unconditional { .. }), "{err}");
    });
}

#[test]
fn a_registry_is_made_once() {
    run(async {
        for (name, store, _folder) in stores() {
            let world = World::make(store).await;
            let operators = [world.keys.operator.public().clone()];
            let again = Registry::init(&world.store, &operators, false).await.unwrap();
            assert!(!again.created, "{name}");
            assert_eq!(again.id, world.open().await.id());
            let other = [world.keys.alice.public().clone()];
            assert!(matches!(Registry::init(&world.store, &other, false).await, Err(Error::RegistryExists { .. })));
        }
        let options = registry::Options::new(Trust::AsStored);
        assert!(matches!(Registry::open(over(memory()), options).await, Err(Error::NoRegistry { .. })));
    });
}

#[test]
fn progress_is_told_and_a_cancelled_push_goes_on_later() {
    run(async {
        let world = World::make(over(memory()).with_part_size(1 << 10)).await;
        let made = with_payload(&[7; 100 << 10]);
        let cancel = Cancel::default();
        let seen: Arc<Mutex<Vec<Progress>>> = Arc::default();
        let mut options = world.options();
        options.cancel = cancel.clone();
        let (seen_there, stop) = (seen.clone(), cancel.clone());
        options.progress = Some(Arc::new(move |progress: &Progress| {
            seen_there.lock().unwrap().push(progress.clone());
            if progress.step == Step::Upload && progress.done > 50 << 10 {
                stop.cancel();
            }
        }));
        let registry = Registry::open(world.store.clone(), options).await.unwrap();
        let request = world.request(&made);
        let err = registry.push(&request, &world.keys.alice).await.unwrap_err();
        assert!(matches!(err, Error::Cancelled), "{err}");
        assert_eq!(err.class(), Class::Interrupted);
        let told = seen.lock().unwrap().clone();
        assert!(told.iter().any(|p| p.step == Step::Hash && p.done == p.total), "hashed to the end");
        assert!(told.iter().all(|p| p.done <= p.total));
        // Nothing can be seen of it, and again it works.
        assert!(world.open().await.list().await.unwrap().versions.is_empty());
        world.ship(&made).await;
        assert!(world.open().await.verify().await.unwrap().findings.is_empty());
    });
}

#[test]
fn a_model_is_shipped_like_a_cartridge() {
    run(async {
        let world = World::make_with(over(memory()), Algorithm::EcdsaP256, |rules: &mut Rules| {
            rules.kind = Kind::Model;
            rules.model = None;
            rules.redteam = None;
        })
        .await;
        let registry = world.open().await;
        let folder = world.fresh_folder();
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("tiny.gguf"), b"GGUF").unwrap();
        let own = Digest::of(b"GGUF");
        let report = |file: Digest| {
            serde_json::json!({"schema": "bitnet-harness.gates/1", "quick": false,
                "model": {"file_hash": file, "arch_hash": Digest::of(b"arch")}, "gates": [{"id": "3b", "verdict": "PASS",
                "inputs": [], "checks": {"planned": 1, "executed": 1, "failed": 0}}]})
            .to_string()
        };
        let request = |report: String| {
            std::fs::write(folder.join("gates.json"), report).unwrap();
            PushRequest {
                kind: Kind::Model,
                name: world::file_name("tiny"),
                model: Some(world::lock()),
                files: [(Role::Model, "tiny.gguf"), (Role::GateReport, "gates.json")]
                    .map(|(role, name)| FileInput { role, name: None, path: folder.join(name) })
                    .to_vec(),
                parents: vec![],
                licence: "MIT".into(),
                note: String::new(),
                by: "alice".into(),
                dry_run: false,
            }
        };
        let other = registry.push(&request(report(Digest::of(b"another"))), &world.keys.alice).await.unwrap();
        let err = registry.promote(&world.channel, other.version, &world.keys.alice, &decision()).await.unwrap_err();
        assert!(err.to_string().contains("other-model"), "{err}");
        let good = registry.push(&request(report(own)), &world.keys.alice).await.unwrap();
        world.promote(good.version).await;
        // A cartridge has no place in a channel of models.
        let cartridge = world.push(&Made::default()).await;
        let err = registry.promote(&world.channel, cartridge, &world.keys.alice, &decision()).await.unwrap_err();
        assert!(err.to_string().contains("kind: the version is a cartridge; the channel carries models"), "{err}");
    });
}

#[test]
fn outputs_are_not_replaced_unasked_and_files_that_are_none_are_refused() {
    run(async {
        let world = World::make(over(memory())).await;
        let registry = world.open().await;
        let version = world.ship(&Made::default()).await;
        let out = world.fresh_folder();
        registry.pull(&Target::Version(version), &out, true, false, false).await.unwrap();
        let err = registry.pull(&Target::Version(version), &out, true, false, false).await.unwrap_err();
        assert!(matches!(err, Error::Exists { .. }), "{err}");
        registry.pull(&Target::Version(version), &out, true, true, false).await.unwrap();

        let mut request = world.request(&Made::default());
        request.files[0].path = std::path::PathBuf::from("/dev/null");
        request.files[0].name = Some(world::file_name("x"));
        let err = registry.push(&request, &world.keys.alice).await.unwrap_err();
        assert!(err.to_string().contains("not a regular file"), "{err}");
        let mut request = world.request(&Made::default());
        std::fs::write(&request.files[1].path, b"{}").unwrap();
        assert!(matches!(registry.push(&request, &world.keys.alice).await, Err(Error::Malformed { .. })));
        request.files[1].path = world.fresh_folder();
        assert!(matches!(registry.push(&request, &world.keys.alice).await, Err(Error::File { .. })));
        let mut request = world.request(&Made::default());
        request.model = Some(world::lock());
        assert!(matches!(registry.push(&request, &world.keys.alice).await, Err(Error::Argument { .. })));
    });
}

#[test]
fn the_blocking_face_does_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let location = registry::Location::Folder(folder.path().join("r"));
    assert!(matches!(Store::open(&location, false), Err(Error::NoRegistry { .. })));
    let store = Store::open(&location, true).unwrap();
    let operator = registry::SecretKey::generate(Algorithm::Ed25519).0;
    registry::blocking::Registry::init(&store, &[operator.public().clone()], false).unwrap();
    let registry = registry::blocking::Registry::open(store, registry::Options::new(Trust::AsStored)).unwrap();
    let pushed = registry.push(&world::request(&folder.path().join("f"), &Made::default()), &operator).unwrap();
    assert_eq!(registry.list().unwrap().versions[0].version, pushed.version);
    assert!(registry.verify().unwrap().findings.is_empty());
}
