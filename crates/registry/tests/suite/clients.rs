//! What others read: a folder with a signed version by each kind of key, for `scripts/registry_clients.sh`.
//!
//! With `REGISTRY_SIGNED_OUT=DIR` the folders stay: `DIR/ed25519` and `DIR/ecdsa-p256`, the keys beside them.

use std::path::PathBuf;

use registry::{Algorithm, Target};

use crate::world::{Made, World, memory, over, run};

#[test]
fn a_pulled_folder_is_a_signed_model_of_the_openssf() {
    run(async {
        let temporary = tempfile::tempdir().unwrap();
        let out = std::env::var_os("REGISTRY_SIGNED_OUT").map_or(temporary.path().to_owned(), PathBuf::from);
        for (name, algorithm) in [("ed25519", Algorithm::Ed25519), ("ecdsa-p256", Algorithm::EcdsaP256)] {
            let world = World::make_with(over(memory()), algorithm, |_| {}).await;
            let version = world.ship(&Made::default()).await;
            let folder = out.join(name);
            let channel = Target::Channel(world.channel.clone());
            world.open().await.pull(&channel, &folder, false, true, false).await.unwrap();
            std::fs::write(out.join(format!("{name}.pub")), world.keys.alice.public().to_pem()).unwrap();
            std::fs::write(out.join(format!("{name}.other.pub")), world.keys.bob.public().to_pem()).unwrap();

            let bundle: serde_json::Value =
                serde_json::from_slice(&std::fs::read(folder.join("model.sig")).unwrap()).unwrap();
            assert_eq!(bundle["mediaType"], "application/vnd.dev.sigstore.bundle.v0.3+json");
            assert_eq!(bundle["verificationMaterial"]["publicKey"]["hint"], world.keys.alice.public().id().as_str());
            assert_eq!(version.hex().len(), 64);
        }
    });
}
