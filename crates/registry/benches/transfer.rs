//! Push and pull of 1 GB beside `cp` of the same file, in one run: `cargo bench -p registry --bench transfer`.
//!
//! `cp` is followed by a flush of the copy, as the registry flushes what it writes. With `REGISTRY_BENCH_S3=s3://…`
//! the store is a server, and `cp` is still `cp`. Sizes in bytes: `REGISTRY_BENCH_BYTES`.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use registry::blocking::Registry;
use registry::{Algorithm, FileInput, Kind, Location, Options, PushRequest, Role, SecretKey, Store, Target, Trust};

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed())
}

fn make(path: &Path, bytes: u64, seed: u64) {
    let header = format!(
        r#"{{"__metadata__":{{"format":"bitnet-cartridge/1","model_id":"bench","model_arch_hash":"{0}","model_weights_hash":"{0}","tokenizer_hash":"{0}"}}}}"#,
        registry::Digest::of(b"x")
    );
    let mut file = File::create(path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    let mut state = seed * 2 + 1;
    let mut block = vec![0_u8; 1 << 20];
    for _ in 0..bytes / block.len() as u64 {
        for word in block.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        file.write_all(&block).unwrap();
    }
    file.sync_all().unwrap();
}

fn main() {
    let bytes: u64 = std::env::var("REGISTRY_BENCH_BYTES").map_or(1 << 30, |b| b.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let location = match std::env::var("REGISTRY_BENCH_S3") {
        Ok(location) => Location::parse(&location).unwrap(),
        Err(_) => Location::Folder(path("store")),
    };
    let key = SecretKey::generate(Algorithm::Ed25519).0;
    let store = Store::open(&location, true).unwrap();
    Registry::init(&store, &[key.public().clone()], false).unwrap();
    let registry = Registry::open(store, Options::new(Trust::AsStored)).unwrap();
    println!("{location}, {:.2} GB", bytes as f64 / 1e9);
    let speed = |time: Duration| bytes as f64 / time.as_secs_f64() / 1e6;
    for round in 1..=3 {
        let source = path("bench.safetensors");
        make(&source, bytes, round);
        let ((), cp) = timed(|| {
            assert!(std::process::Command::new("cp").arg(&source).arg(path("copy")).status().unwrap().success());
            File::open(path("copy")).unwrap().sync_all().unwrap();
        });
        std::fs::remove_file(path("copy")).unwrap();
        let request = PushRequest {
            kind: Kind::Cartridge,
            name: "bench".parse().unwrap(),
            model: None,
            files: vec![FileInput { role: Role::Cartridge, name: None, path: source.clone() }],
            parents: vec![],
            licence: String::new(),
            note: String::new(),
            by: "bench".into(),
            dry_run: false,
        };
        let (pushed, push) = timed(|| registry.push(&request, &key).unwrap());
        assert!(pushed.files[0].sent);
        std::fs::remove_file(&source).unwrap();
        let out = path("out");
        let (_, pull) = timed(|| {
            registry.pull(&Target::Version(pushed.version), &out, true, true, false).unwrap();
        });
        println!(
            "round {round}: cp {:5.2} s ({:4.0} MB/s)  push {:5.2} s ({:4.0} MB/s, {:.2} × cp)  pull {:5.2} s ({:4.0} MB/s, {:.2} × cp)",
            cp.as_secs_f64(),
            speed(cp),
            push.as_secs_f64(),
            speed(push),
            push.as_secs_f64() / cp.as_secs_f64(),
            pull.as_secs_f64(),
            speed(pull),
            pull.as_secs_f64() / cp.as_secs_f64()
        );
    }
}
