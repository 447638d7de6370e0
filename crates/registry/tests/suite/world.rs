//! A registry with an operator, two people, a channel, and files to push.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use object_store::ObjectStore;
use object_store::memory::InMemory;
use registry::{
    Algorithm, ChannelName, Decision, Digest, FileInput, FileName, KeyRole, KeyState, Kind, Location, ModelLock,
    ModelRule, Options, PushRequest, RedteamRule, Registry, Retention, Retry, Role, Rules, SecretKey, Store, Trust,
    TrustedKey,
};
use serde_json::json;

pub(crate) fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(work)
}

/// Impatient: tests wait for nobody.
pub(crate) fn impatient(tries: u32) -> Retry {
    Retry { tries, first_wait: Duration::from_micros(50) }
}

pub(crate) fn over(inner: Arc<dyn ObjectStore>) -> Store {
    Store::over(inner, "test").with_retry(impatient(1))
}

pub(crate) fn memory() -> Arc<dyn ObjectStore> {
    Arc::new(InMemory::new())
}

/// Every kind of store that is to be had here, empty. The folder lives as long as what is returned.
pub(crate) fn stores() -> Vec<(&'static str, Store, Option<tempfile::TempDir>)> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let folder = tempfile::tempdir().unwrap();
    let local = Store::open(&Location::Folder(folder.path().join("store")), true).unwrap();
    let mut stores = vec![("memory", over(memory()), None), ("folder", local, Some(folder))];
    if let Ok(bucket) = std::env::var("REGISTRY_TEST_S3") {
        let prefix = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let location = Location::parse(&format!("{bucket}/{prefix}")).unwrap();
        stores.push(("s3", Store::open(&location, true).unwrap(), None));
    }
    stores
}

pub(crate) fn file_name(name: &str) -> FileName {
    FileName::parse(name).unwrap()
}

pub(crate) struct Keys {
    pub(crate) operator: SecretKey,
    pub(crate) alice: SecretKey,
    pub(crate) bob: SecretKey,
}

/// What a version is like; the default passes every gate.
#[derive(Clone)]
pub(crate) struct Made {
    pub(crate) payload: Vec<u8>,
    pub(crate) model_id: String,
    pub(crate) gate: serde_json::Value,
    pub(crate) report_model: Digest,
    pub(crate) report_arch: Digest,
    pub(crate) quick: bool,
    pub(crate) failures: Vec<&'static str>,
    pub(crate) total: u64,
    pub(crate) receipt_model: Digest,
    pub(crate) receipt_cartridge: Option<Digest>,
    pub(crate) suite: Vec<u8>,
    pub(crate) receipt_suite: Option<Digest>,
    pub(crate) judge: Option<serde_json::Value>,
    pub(crate) without: Vec<Role>,
}

impl Default for Made {
    fn default() -> Self {
        Self {
            payload: b"keys and values".to_vec(),
            model_id: "tiny".into(),
            gate: json!({"id": "3b", "verdict": "PASS", "inputs": [],
                "checks": {"planned": 9, "executed": 9, "failed": 0}}),
            report_model: Digest::of(b"the model's file"),
            report_arch: Digest::of(b"arch"),
            quick: false,
            failures: vec![],
            total: 10,
            receipt_model: Digest::of(b"the model's file"),
            receipt_cartridge: None,
            suite: b"suite 1".to_vec(),
            receipt_suite: None,
            judge: None,
            without: vec![],
        }
    }
}

pub(crate) fn with_payload(payload: &[u8]) -> Made {
    Made { payload: payload.to_vec(), ..Made::default() }
}

pub(crate) fn lock() -> ModelLock {
    ModelLock {
        model_id: "tiny".into(),
        model_arch_hash: Digest::of(b"arch"),
        model_weights_hash: Digest::of(b"weights"),
        tokenizer_hash: Digest::of(b"tokenizer"),
    }
}

/// A file that begins like a cartridge.
pub(crate) fn cartridge(made: &Made) -> Vec<u8> {
    let lock = lock();
    let header = json!({"__metadata__": {
        "format": "bitnet-cartridge/1", "layout": "native", "model_id": made.model_id,
        "model_arch_hash": lock.model_arch_hash, "model_weights_hash": lock.model_weights_hash,
        "tokenizer_hash": lock.tokenizer_hash, "n_tokens": "3", "title": "house rules",
    }})
    .to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &made.payload].concat()
}

/// Writes a version's files into a folder and says how to push them.
pub(crate) fn request(folder: &Path, made: &Made) -> PushRequest {
    std::fs::create_dir_all(folder).unwrap();
    let content = cartridge(made);
    let own = Digest::of(&content);
    let suite = made.receipt_suite.unwrap_or(Digest::of(&made.suite));
    let failed = made.failures.len() as u64;
    let report = json!({"schema": "bitnet-harness.gates/1", "version": "0", "quick": made.quick,
        "model": {"name": "tiny", "file_hash": made.report_model, "arch_hash": made.report_arch},
        "gates": [made.gate]});
    let receipt = json!({"schema": "bitnet-harness.redteam/1", "model": {"sha256": made.receipt_model},
        "cartridge": {"sha256": made.receipt_cartridge.unwrap_or(own)}, "suite": {"sha256": suite, "version": "1"},
        "counts": {"total": made.total, "refused_as_expected": made.total - failed, "failed": failed},
        "failures": made.failures.iter().map(|id| json!({"id": id})).collect::<Vec<_>>()});
    let mut files = vec![
        (Role::Cartridge, "rules.safetensors", content),
        (Role::GateReport, "gates.json", report.to_string().into_bytes()),
        (Role::Redteam, "redteam.json", receipt.to_string().into_bytes()),
        (Role::RedteamSuite, "suite.json", made.suite.clone()),
        (Role::SourceText, "source.txt", b"Never open the door for strangers.".to_vec()),
    ];
    if let Some(judge) = &made.judge {
        files.push((Role::Judge, "judge.json", judge.to_string().into_bytes()));
    }
    files.retain(|(role, ..)| !made.without.contains(role));
    let files = files
        .into_iter()
        .map(|(role, name, content)| {
            let path = folder.join(name);
            std::fs::write(&path, content).unwrap();
            FileInput { role, name: None, path }
        })
        .collect();
    PushRequest {
        kind: Kind::Cartridge,
        name: file_name("rules"),
        model: None,
        files,
        parents: vec![],
        licence: "CC0-1.0".into(),
        note: String::new(),
        by: "alice".into(),
        dry_run: false,
    }
}

pub(crate) fn trusted(key: &SecretKey, name: &str, state: KeyState) -> TrustedKey {
    TrustedKey {
        name: name.into(),
        key: key.public().clone(),
        roles: vec![KeyRole::Sign, KeyRole::Promote],
        state,
        since: None,
    }
}

pub(crate) fn rules(keys: &Keys) -> Rules {
    Rules {
        kind: Kind::Cartridge,
        model: Some(ModelRule { lock: lock(), files: vec![Digest::of(b"the model's file")] }),
        gates: vec!["3b".into()],
        quick: false,
        gates_name_artifact: false,
        redteam: Some(RedteamRule { suite: None, max_failed: 3 }),
        judge: false,
        keys: vec![trusted(&keys.alice, "alice", KeyState::Active), trusted(&keys.bob, "bob", KeyState::Active)],
        retention: Retention { records: 2, days: 0 },
    }
}

pub(crate) fn decision() -> Decision {
    Decision { by: "alice".into(), why: "a test".into(), dry_run: false }
}

pub(crate) fn dry() -> Decision {
    Decision { dry_run: true, ..decision() }
}

pub(crate) struct World {
    pub(crate) store: Store,
    pub(crate) keys: Keys,
    pub(crate) channel: ChannelName,
    folder: tempfile::TempDir,
    count: AtomicU32,
}

impl World {
    /// Makes the registry in a store and a channel in it.
    pub(crate) async fn make(store: Store) -> Self {
        Self::make_with(store, Algorithm::Ed25519, |_| {}).await
    }

    pub(crate) async fn make_with(store: Store, algorithm: Algorithm, change: impl FnOnce(&mut Rules)) -> Self {
        let key = || SecretKey::generate(algorithm).0;
        let keys = Keys { operator: key(), alice: key(), bob: key() };
        Registry::init(&store, &[keys.operator.public().clone()], false).await.unwrap();
        let world = Self {
            store,
            keys,
            channel: ChannelName::parse("stable").unwrap(),
            // Where there is memory for files: every pull flushes what it writes, and tests wait for no disk.
            folder: tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap(),
            count: AtomicU32::new(0),
        };
        let mut rules = rules(&world.keys);
        change(&mut rules);
        let registry = world.open().await;
        registry.set_policy(&world.channel, rules, &world.keys.operator, &decision()).await.unwrap();
        world
    }

    pub(crate) fn options(&self) -> Options {
        Options::new(Trust::Pinned(vec![self.keys.operator.public().clone()]))
    }

    pub(crate) async fn open(&self) -> Registry {
        Registry::open(self.store.clone(), self.options()).await.unwrap()
    }

    /// The registry over another view of the same store.
    pub(crate) async fn open_over(&self, store: Store) -> registry::Result<Registry> {
        Registry::open(store, self.options()).await
    }

    pub(crate) fn fresh_folder(&self) -> PathBuf {
        self.folder.path().join(format!("{}", self.count.fetch_add(1, Ordering::Relaxed)))
    }

    pub(crate) fn request(&self, made: &Made) -> PushRequest {
        request(&self.fresh_folder(), made)
    }

    pub(crate) async fn push(&self, made: &Made) -> Digest {
        self.open().await.push(&self.request(made), &self.keys.alice).await.unwrap().version
    }

    pub(crate) async fn promote(&self, version: Digest) -> u64 {
        self.open().await.promote(&self.channel, version, &self.keys.alice, &decision()).await.unwrap().number
    }

    /// Pushes and promotes.
    pub(crate) async fn ship(&self, made: &Made) -> Digest {
        let version = self.push(made).await;
        self.promote(version).await;
        version
    }
}
