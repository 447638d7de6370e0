//! Real processes on a folder, killed with SIGKILL, which no program can prepare for.

use std::process::{Command, Stdio};
use std::time::Duration;

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use registry::{Location, Options, Registry, SecretKey, Store, Trust};

use crate::faults::sound;
use crate::world::{World, decision, request, run, with_payload};

const CHILD: &str = "REGISTRY_TEST_CHILD";

/// Not a test of its own: what the killed process does, for as long as it lives.
#[test]
fn child_that_pushes_and_promotes_until_it_is_killed() {
    let Ok(folder) = std::env::var(CHILD) else { return };
    let folder = std::path::PathBuf::from(folder);
    let key = SecretKey::read(&folder.join("alice")).unwrap();
    run(async {
        let store = Store::open(&Location::Folder(folder.join("store")), false).unwrap().with_part_size(4_096);
        let registry = Registry::open(store, Options::new(Trust::AsStored)).await.unwrap();
        let channel = "stable".parse().unwrap();
        let mut random = ChaCha8Rng::from_os_rng();
        let inputs = folder.join(format!("inputs-{}", std::process::id()));
        loop {
            let mut payload = vec![0; random.random_range(1..40_000)];
            random.fill(&mut payload[..]);
            let pushed = registry.push(&request(&inputs, &with_payload(&payload)), &key).await.unwrap();
            // Another process may win; that is what is wanted here.
            let _told = registry.promote(&channel, pushed.version, &key, &decision()).await;
        }
    });
}

#[test]
fn processes_killed_at_random_leave_a_sound_folder() {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let store = Store::open(&Location::Folder(folder.path().join("store")), true).unwrap();
    let world = run(World::make(store));
    let pem = {
        let (alice, pem) = SecretKey::generate(registry::Algorithm::Ed25519);
        run(async {
            let mut rules = crate::world::rules(&world.keys);
            rules.keys.push(crate::world::trusted(&alice, "child", registry::KeyState::Active));
            let registry = world.open().await;
            registry.set_policy(&world.channel, rules, &world.keys.operator, &decision()).await.unwrap();
        });
        pem
    };
    let key = folder.path().join("alice");
    std::fs::write(&key, pem).unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let mut head = 0;
    for _ in 0..12 {
        let mut children: Vec<_> = (0..2)
            .map(|_| {
                Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", "processes::child_that_pushes_and_promotes_until_it_is_killed"])
                    .env(CHILD, folder.path())
                    .stdout(Stdio::null())
                    .spawn()
                    .unwrap()
            })
            .collect();
        std::thread::sleep(Duration::from_millis(random.random_range(100..500)));
        for child in &mut children {
            child.kill().unwrap();
            assert!(!child.wait().unwrap().success());
        }
        let now = run(async {
            let versions: Vec<_> =
                world.open().await.list().await.unwrap().versions.iter().map(|v| v.version).collect();
            sound(&world, &versions).await.map_or(0, |s| s.0)
        });
        assert!(now >= head);
        head = now;
    }
    assert!(head > 0, "nothing was ever promoted; the machine is too slow for the times above");
}
