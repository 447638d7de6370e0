//! `harness registry` as its users run it: the whole life of a version, every refusal by name, dry runs that write
//! nothing, one JSON document a command.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

type Said = (i32, String, String);

fn sha256(bytes: impl AsRef<[u8]>) -> String {
    let hex: String = Sha256::digest(bytes.as_ref()).iter().map(|b| format!("{b:02x}")).collect();
    format!("sha256:{hex}")
}

/// Every file below a folder and its hash.
fn tree(folder: &Path) -> BTreeMap<PathBuf, String> {
    let (mut files, mut folders) = (BTreeMap::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.insert(path.clone(), sha256(std::fs::read(path).unwrap()));
            }
        }
    }
    files
}

/// A folder with keys, cartridges of the embedded model and, from [`House::make`] on, a registry with a channel.
struct House {
    folder: tempfile::TempDir,
}

impl House {
    fn empty() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    /// With the channel `stable`, which demands gate 3a, a red-team receipt and the keys of alice.
    fn make() -> Self {
        let house = Self::empty();
        for name in ["operator", "alice", "mallory"] {
            house.json(&["registry", "keygen", &house.at(name)]);
        }
        house.json(&["registry", "init", "--operator", &house.at("operator.pub")]);
        let key = format!("alice={}", house.at("alice.pub"));
        house.rules(&["--gates", "3a", "--redteam", "5", "--key", &key], "rules.toml");
        house.json(&house.set("rules.toml", "operator"));
        house
    }

    fn at(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::cargo_bin("harness").unwrap();
        command
            .env("BITNET_PROFILE", "off")
            .env("XDG_CACHE_HOME", self.at("cache"))
            .env("BITNET_REGISTRY", self.store())
            .env("USER", "tester")
            .args(args);
        command
    }

    fn run(&self, args: &[&str]) -> Said {
        let output = self.command(args).output().unwrap();
        let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
        (output.status.code().expect("no signal"), text(&output.stdout), text(&output.stderr))
    }

    /// Runs with `--format json`: one document on stdout and nothing else.
    fn json(&self, args: &[&str]) -> Value {
        let (code, out, err) = self.run(&[args, &["--format", "json"]].concat());
        assert_eq!(code, 0, "{args:?}: {out} {err}");
        serde_json::from_str(&out).unwrap_or_else(|e| panic!("{args:?}: {e}: {out}"))
    }

    fn rules(&self, args: &[&str], name: &str) {
        let (code, out, err) = self.run(&[&["registry", "policy", "draft"], args].concat());
        assert_eq!(code, 0, "{err}");
        std::fs::write(self.at(name), out).unwrap();
    }

    fn set(&self, rules: &str, key: &str) -> Vec<&'static str> {
        let leak = |text: String| -> &'static str { text.leak() };
        let (rules, key) = (leak(self.at(rules)), leak(self.at(key)));
        vec!["registry", "policy", "set", "stable", "--rules", rules, "--operator-key", key, "--why", "a test"]
    }

    /// A cartridge of the embedded model.
    fn cartridge(&self, name: &str, text: &str) -> String {
        let (source, out) = (self.at(&format!("{name}.txt")), self.at(&format!("{name}.safetensors")));
        std::fs::write(&source, text).unwrap();
        self.json(&["cartridge", "create", "--text", &source, "--system", "--out", &out]);
        out
    }

    fn write(&self, name: &str, value: &Value) -> String {
        std::fs::write(self.at(name), value.to_string()).unwrap();
        self.at(name)
    }

    /// Reports about a cartridge, in a folder of their own, and the options that push them.
    fn reports(&self, cartridge: &str, change: impl FnOnce(&mut Value, &mut Value)) -> Vec<String> {
        let embedded = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gates/models/bitnet-harness-home.gguf");
        let model = sha256(std::fs::read(embedded).unwrap());
        let inspected = self.json(&["model", "inspect"]);
        let arch = &inspected["lock"]["model_arch_hash"];
        let mut gates = json!({"schema": "bitnet-harness.gates/1", "quick": false,
            "model": {"file_hash": model, "arch_hash": arch},
            "gates": [{"id": "3a", "verdict": "PASS", "inputs": [], "checks": {"planned": 4, "executed": 4, "failed": 0}}]});
        let mut receipt = json!({"schema": "bitnet-harness.redteam/1", "model": {"sha256": model},
            "cartridge": {"sha256": sha256(std::fs::read(cartridge).unwrap())},
            "suite": {"sha256": sha256("suite"), "version": "1"},
            "counts": {"total": 7, "refused_as_expected": 7, "failed": 0}, "failures": []});
        change(&mut gates, &mut receipt);
        std::fs::write(self.at("suite.jsonl"), "suite").unwrap();
        let (gates, receipt) = (self.write("gates.json", &gates), self.write("redteam.json", &receipt));
        ["--gate-report", &gates, "--redteam", &receipt, "--redteam-suite", &self.at("suite.jsonl")]
            .map(str::to_owned)
            .to_vec()
    }

    fn push_as(&self, cartridge: &str, key: &str, change: impl FnOnce(&mut Value, &mut Value)) -> String {
        let reports = self.reports(cartridge, change);
        let key = self.at(key);
        let mut args = vec!["registry", "push", cartridge, "--name", "house", "--key", &key, "--licence", "CC0-1.0"];
        args.extend(reports.iter().map(String::as_str));
        self.json(&args)["version"].as_str().unwrap().to_owned()
    }

    fn push(&self, cartridge: &str) -> String {
        self.push_as(cartridge, "alice", |_, _| {})
    }

    fn promote(&self, version: &str) -> Said {
        self.promote_as(version, "alice")
    }

    fn promote_as(&self, version: &str, key: &str) -> Said {
        let key = self.at(key);
        self.run(&["registry", "promote", "stable", version, "--key", &key, "--why", "a test", "--format", "json"])
    }

    /// The codes of the reasons of a refused promotion.
    fn refused(&self, version: &str) -> Vec<String> {
        let (code, out, err) = self.promote(version);
        assert_eq!(code, 4, "{out} {err}");
        let value: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((&value["version"], &value["changed"]), (&version.into(), &false.into()));
        let reasons = value["refusals"].as_array().unwrap();
        for reason in reasons {
            assert!(err.contains(reason["code"].as_str().unwrap()), "{err}");
        }
        reasons.iter().map(|reason| reason["code"].as_str().unwrap().to_owned()).collect()
    }
}

#[test]
fn a_version_from_creation_to_rollback_and_answers_behind_it() {
    let house = House::make();
    // A real report, of a quick run of one gate, under a policy that allows that.
    let key = format!("alice={}", house.at("alice.pub"));
    house.rules(&["--gates", "3a", "--quick", "--key", &key], "quick.toml");
    assert_eq!(house.json(&house.set("quick.toml", "operator"))["serial"], 2);
    let gates = house.at("real.json");
    let (code, _, err) =
        house.run(&["gates", "--quick", "--only", "3a", "--threads", "1", "--format", "json", "--out", &gates]);
    // One gate does not decide P0, which is UNKNOWN then; the gate itself is PASS, as the promotion below finds.
    assert_eq!(code, 3, "{err}");
    let alice = house.at("alice");
    let ship = |file: &str| {
        let pushed = house.json(&[
            "registry",
            "push",
            file,
            "--name",
            "house",
            "--key",
            &alice,
            "--licence",
            "CC0-1.0",
            "--gate-report",
            &gates,
        ]);
        let version = pushed["version"].as_str().unwrap().to_owned();
        let (code, out, err) = house.promote(&version);
        assert_eq!(code, 0, "{err}");
        let promoted: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((&promoted["version"], &promoted["changed"]), (&version.as_str().into(), &true.into()));
        version
    };
    let first_file = house.cartridge("first", "Devices:\n- pixa: camera, hallway\n");
    let first = ship(&first_file);
    let second = ship(&house.cartridge("second", "Devices:\n- pixa: lamp, kitchen\n"));
    assert_ne!(first, second);

    let shown = house.json(&["registry", "show", "stable"]);
    assert_eq!((&shown["version"], &shown["record"]["number"]), (&second.as_str().into(), &2.into()));
    assert_eq!((&shown["manifest"]["by"], &shown["record"]["by"]), (&"tester".into(), &"tester".into()));
    let listing = house.json(&["registry", "list"]);
    assert_eq!(listing["versions"].as_array().unwrap().len(), 2);
    assert_eq!(listing["channels"][0]["version"], second.as_str());

    let ask = |more: &[&str]| {
        let args = [&["generate", "--chat", "--prompt", "switch pixa on"], more].concat();
        house.json(&args)["text"].clone()
    };
    let behind_second = ask(&["--cartridge", "registry:stable"]);
    let back = house.json(&["registry", "rollback", "stable", "--key", &alice, "--why", "wrong room"]);
    assert_eq!((&back["version"], &back["number"]), (&first.as_str().into(), &3.into()));
    let behind_first = ask(&["--cartridge", "registry:stable", "--registry", &house.at("store")]);
    assert_eq!(behind_first, ask(&["--cartridge", &first_file]));
    assert_eq!(serde_json::from_str::<Value>(behind_first.as_str().unwrap()).unwrap()["room"], "hallway");
    assert_ne!(behind_first, behind_second);
    // Cached by digest; a damaged copy is not used.
    let digest = sha256(std::fs::read(&first_file).unwrap());
    let cached = house.folder.path().join("cache/bitnet-harness/registry/sha256").join(&digest["sha256:".len()..]);
    let good = std::fs::read(&cached).unwrap();
    assert_eq!(sha256(&good), digest);
    let mut bad = good;
    *bad.last_mut().unwrap() ^= 1;
    std::fs::write(&cached, bad).unwrap();
    assert_eq!(ask(&["--cartridge", "registry:stable"]), behind_first);
    assert_eq!(sha256(std::fs::read(&cached).unwrap()), digest);

    let log = house.json(&["registry", "log", "stable"]);
    let actions: Vec<_> = log["records"].as_array().unwrap().iter().map(|r| r["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["rollback", "promote", "promote"]);
    let out = house.at("pulled");
    let pulled = house.json(&["registry", "pull", "stable", "--out", &out]);
    assert_eq!((&pulled["version"], &pulled["channel"]["number"]), (&first.as_str().into(), &3.into()));
    assert_eq!(sha256(std::fs::read(Path::new(&out).join("first.safetensors")).unwrap()), digest);
    assert_eq!(sha256(std::fs::read(Path::new(&out).join("model.sig")).unwrap()), first);

    assert_eq!(house.json(&["registry", "verify"])["findings"], json!([]));
    assert_eq!(house.json(&["registry", "gc"])["manifests"], json!([]));
    let copy = house.at("copy");
    assert_eq!(house.json(&["registry", "mirror", "--to", &copy])["manifests"], 2);
    assert_eq!(house.json(&["registry", "show", "stable", "--registry", &copy])["version"], first.as_str());
    let digits = &digest["sha256:".len()..];
    let blob = house.store().join("blobs/sha256").join(digits);
    let mut bytes = std::fs::read(&blob).unwrap();
    bytes[40] ^= 1;
    std::fs::write(&blob, bytes).unwrap();
    let (code, stdout, _) = house.run(&["registry", "verify", "--format", "json"]);
    let found: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(code, 1);
    assert!(found["findings"][0]["object"].as_str().unwrap().contains(digits), "{found}");
}

#[test]
fn promotion_refuses_by_name_what_the_policy_does_not_allow() {
    let house = House::make();
    let good = house.cartridge("good", "Devices:\n- pixa: camera, hallway\n");
    let version = house.push(&good);
    let (code, out, err) = house.promote(&version);
    assert_eq!(code, 0, "{out} {err}");

    type Change = fn(&mut Value, &mut Value);
    let changes: [(Change, &[&str]); 7] = [
        (|gates, _| gates["gates"][0]["verdict"] = "UNKNOWN".into(), &["gate"]),
        (|gates, _| gates["gates"][0]["checks"]["executed"] = 3.into(), &["gate"]),
        (|gates, _| gates["model"]["file_hash"] = sha256("another").into(), &["other-model"]),
        (|gates, _| gates["quick"] = true.into(), &["quick"]),
        (|_, receipt| receipt["cartridge"]["sha256"] = sha256("another").into(), &["other-artifact"]),
        (
            |_, receipt| {
                receipt["counts"] = json!({"total": 7, "refused_as_expected": 6, "failed": 1});
                receipt["failures"] = json!([{"id": "new"}]);
            },
            &["redteam-drop"],
        ),
        (
            |gates, receipt| {
                gates["gates"][0]["verdict"] = "FAIL".into();
                receipt["suite"]["sha256"] = sha256("other suite").into();
            },
            &["gate", "other-suite", "redteam-incomparable"],
        ),
    ];
    for (change, codes) in changes {
        assert_eq!(house.refused(&house.push_as(&good, "alice", change)), codes);
    }
    // Signed by a key that the policy does not name.
    assert_eq!(house.refused(&house.push_as(&good, "mallory", |_, _| {})), ["signature"]);
    let (code, out, err) = house.promote_as(&version, "mallory");
    assert_eq!((code, out.as_str()), (4, ""));
    assert!(err.contains("not in the policy"), "{err}");
    // A cartridge of another model: one digit of its lock.
    let mut bytes = std::fs::read(&good).unwrap();
    let word = b"\"model_weights_hash\":\"sha256:";
    let at = bytes.windows(word.len()).position(|w| w == word).unwrap() + word.len();
    bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
    std::fs::write(house.at("other.safetensors"), bytes).unwrap();
    assert_eq!(house.refused(&house.push(&house.at("other.safetensors"))), ["lock"]);
    // The policy is the operator's.
    let before = tree(&house.store());
    let (code, _, err) = house.run(&house.set("rules.toml", "alice"));
    assert_eq!(code, 4);
    assert!(err.contains("no operator's key"), "{err}");
    assert_eq!(tree(&house.store()), before);
    assert_eq!(house.json(&["registry", "show", "stable"])["version"], version.as_str());
    assert_eq!(house.json(&["registry", "log", "stable"])["records"].as_array().unwrap().len(), 1);
    // A record that somebody forged: shown, not believed.
    let record = house.store().join("channels/stable/log/0000000001.json");
    let text = std::fs::read_to_string(&record).unwrap();
    let current = house.store().join("channels/stable/current.json");
    std::fs::remove_file(&current).unwrap();
    let mut bundle: Value = serde_json::from_str(&text).unwrap();
    let signature = bundle["dsseEnvelope"]["signatures"][0]["sig"].as_str().unwrap();
    let other = if signature.starts_with('A') { "B" } else { "A" };
    bundle["dsseEnvelope"]["signatures"][0]["sig"] = format!("{other}{}", &signature[1..]).into();
    std::fs::write(&record, bundle.to_string()).unwrap();
    let (code, out, err) = house.run(&["registry", "show", "stable", "--format", "json"]);
    assert_eq!(code, 4, "{err}");
    assert!(serde_json::from_str::<Value>(&out).unwrap()["problem"].is_string(), "{out}");
    for args in [
        &["registry", "pull", "stable", "--out", "nowhere"][..],
        &["generate", "--prompt", "x", "--cartridge", "registry:stable"],
    ] {
        let (code, out, err) = house.run(args);
        assert_eq!((code, out.as_str()), (4, ""), "{err}");
    }
}

#[test]
fn of_many_promoters_at_once_each_wins_or_is_told() {
    let house = House::make();
    let file = house.cartridge("good", "Devices:\n- pixa: camera, hallway\n");
    let versions: Vec<String> =
        (0..6).map(|i| house.push_as(&file, "alice", |gates, _| gates["note"] = i.into())).collect();
    let key = house.at("alice");
    let outcomes: Vec<Said> = std::thread::scope(|scope| {
        let promote = |version| house.run(&["registry", "promote", "stable", version, "--key", &key, "--why", "race"]);
        let threads: Vec<_> = versions.iter().map(|v| scope.spawn(move || promote(v))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    for (code, out, err) in &outcomes {
        assert!(*code == 0 || *code == 1 && err.contains("another writer was first"), "{code} {out} {err}");
    }
    let won = outcomes.iter().filter(|(code, ..)| *code == 0).count();
    let log = house.json(&["registry", "log", "stable"]);
    let numbers: Vec<u64> = log["records"].as_array().unwrap().iter().map(|r| r["number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=won as u64).rev().collect::<Vec<_>>());
    assert_eq!(house.json(&["registry", "verify"])["findings"], json!([]));
}

#[test]
fn dry_runs_say_what_they_would_do_and_write_nothing() {
    let empty = House::empty();
    empty.json(&["registry", "keygen", &empty.at("operator")]);
    let before = tree(empty.folder.path());
    assert_eq!(empty.json(&["registry", "keygen", &empty.at("new"), "--dry-run"])["id"], Value::Null);
    let made = empty.json(&["registry", "init", "--operator", &empty.at("operator.pub"), "--dry-run"]);
    assert_eq!((&made["created"], &made["dry_run"]), (&true.into(), &true.into()));
    assert_eq!(tree(empty.folder.path()), before);
    assert!(!empty.store().exists());

    let house = House::make();
    let (one, two) = (house.cartridge("one", "Rule: one.\n"), house.cartridge("two", "Rule: two.\n"));
    let (first, second) = (house.push(&one), house.push(&two));
    for version in [&first, &second] {
        assert_eq!(house.promote(version).0, 0);
    }
    let third = house.push_as(&one, "alice", |gates, _| gates["note"] = 1.into());
    let reports = house.reports(&two, |gates, _| gates["note"] = 2.into());
    let (alice, copy, out) = (house.at("alice"), house.at("copy"), house.at("out"));
    let mut push = vec!["registry", "push", &two, "--name", "house", "--key", &alice, "--licence", "CC0-1.0"];
    push.extend(reports.iter().map(String::as_str));
    let promote = |version| vec!["registry", "promote", "stable", version, "--key", &alice, "--why", "x"];
    let operator = house.at("alice.pub");
    // What a reader remembers of the newest record is brought up to date by any command.
    house.json(&["registry", "show", "stable"]);
    let before = tree(house.folder.path());
    for args in [
        push,
        promote(&third),
        vec!["registry", "rollback", "stable", "--key", &alice, "--why", "x"],
        vec!["registry", "pull", "stable", "--out", &out],
        vec!["registry", "mirror", "--to", &copy],
        vec!["registry", "operators", "--set", &operator],
        vec!["registry", "gc"],
        house.set("rules.toml", "operator"),
    ] {
        let told = house.json(&[&args[..], &["--dry-run"]].concat());
        assert_eq!(told["dry_run"], true, "{args:?}");
        assert_eq!(tree(house.folder.path()), before, "{args:?}");
    }
    assert!(!Path::new(&copy).exists() && !Path::new(&out).exists());
    assert_eq!(house.json(&["registry", "show", "stable"])["version"], second.as_str());
}

#[test]
fn wrong_requests_end_with_2_and_refused_files_with_4() {
    let house = House::make();
    let good = house.cartridge("good", "Rule.\n");
    let (alice, public) = (house.at("alice"), house.at("alice.pub"));
    std::fs::write(house.at("junk"), b"junk").unwrap();
    std::fs::write(house.at("loose"), std::fs::read(&alice).unwrap()).unwrap();
    let nothing = sha256("nothing");
    let push = |file: &str, key: &str| -> Vec<String> {
        ["registry", "push", file, "--name", "house", "--key", key, "--licence", "x"].map(str::to_owned).to_vec()
    };
    let plain = |args: &[&str]| -> Vec<String> { args.iter().map(|a| (*a).to_owned()).collect() };
    for (args, code, named) in [
        (plain(&["registry", "list", "--registry", "memory:"]), 2, "memory:"),
        (plain(&["registry", "list", "--registry", "gs://bucket"]), 2, "unknown scheme"),
        (plain(&["registry", "list", "--registry", &house.at("none")]), 2, "holds no registry"),
        (plain(&["registry", "init"]), 2, "--operator"),
        (plain(&["registry", "init", "--operator", &public]), 2, "already holds the registry"),
        (plain(&["registry", "init", "--operator", &alice]), 2, "private key"),
        (plain(&["registry", "keygen", &alice]), 2, "exists"),
        (plain(&["registry", "show", "canary"]), 2, "no channel canary"),
        (plain(&["registry", "show", "stable"]), 2, "nothing was promoted"),
        (plain(&["registry", "show", "../x"]), 2, "not a channel's name"),
        (plain(&["registry", "show", &nothing]), 1, "missing from the store"),
        (plain(&["registry", "promote", "stable", "sha256:12", "--key", &alice, "--why", "x"]), 2, "sha256:12"),
        (plain(&["registry", "log", "stable", "--limit", "0"]), 2, "--limit"),
        (plain(&["registry", "gc", "--yes", "--dry-run"]), 2, "cannot be used with"),
        (plain(&["registry", "mirror", "--to", &house.at("store")]), 2, "itself"),
        (plain(&["generate", "--prompt", "x", "--registry", "x"]), 2, "registry:CHANNEL"),
        (plain(&["generate", "--prompt", "x", "--cartridge", "registry:"]), 2, "not a channel's name"),
        (push(&house.at("none"), &alice), 2, "none"),
        (push(&house.at("junk"), &alice), 4, "junk"),
        (push(&good, &public), 2, "alice.pub"),
        (push(&good, &house.at("loose")), 2, "chmod 600"),
        ([push(&good, &alice), plain(&["--gate-report", &house.at("junk")])].concat(), 4, "junk"),
        ([push(&good, &alice), plain(&["--redteam", &house.at("junk")])].concat(), 2, "--redteam-suite"),
        ([push(&good, &alice), plain(&["--parent", "recipe=x"])].concat(), 2, "--parent recipe=x"),
        ([push(&good, &alice), plain(&["--parent", &format!("soup={nothing}")])].concat(), 2, "soup"),
    ] {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let (found, out, err) = house.run(&args);
        assert_eq!(found, code, "{args:?}: {err}");
        assert!(err.contains(named) && out.is_empty(), "{args:?}: {err}");
    }
    std::fs::write(house.at("bad.toml"), "kind = \"cartridge\"\ngates = []\nkeys = []\nsoup = 1\n").unwrap();
    let (code, _, err) = house.run(&house.set("bad.toml", "operator"));
    assert_eq!(code, 4);
    assert!(err.contains("soup") && err.contains("bad.toml"), "{err}");
}

#[test]
fn every_command_has_help_with_an_example() {
    let house = House::empty();
    let commands: Vec<Vec<&str>> =
        ["init", "keygen", "operators", "push", "list", "show", "promote", "rollback", "log"]
            .into_iter()
            .chain(["pull", "verify", "gc", "mirror"])
            .map(|name| vec![name])
            .chain(["draft", "set", "show"].map(|name| vec!["policy", name]))
            .collect();
    for command in commands {
        let (code, out, err) = house.run(&[&["registry"][..], &command, &["--help"]].concat());
        assert_eq!(code, 0, "{err}");
        assert!(out.contains("Example") && out.contains("harness registry") && out.contains("--format"), "{out}");
    }
}
