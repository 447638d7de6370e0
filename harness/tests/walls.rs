//! The walls between the crates: no circle, and nothing in a pure crate that needs the engine, a network or a command
//! line. Read from the manifests, so that a dependency that breaks a wall fails here before it is used.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Crates that build, test and fuzz without clang, cmake and the engine.
const PURE: [&str; 8] = ["files", "kv", "gguf", "grammar", "cartridge", "agent", "reference", "synth"];
/// What pure crates may not name: the engine's side of the workspace, and crates that build it or reach outside.
const BEYOND: [&str; 12] = [
    "bitnet-sys",
    "bitnet-rs",
    "session",
    "agent-engine",
    "models",
    "harness",
    "bindgen",
    "cmake",
    "cc",
    "clap",
    "ureq",
    "ctrlc",
];

/// Every member with what its manifest names, tests and build included.
fn members() -> BTreeMap<String, BTreeSet<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut folders = vec![root.join("bitnet-sys"), root.join("bitnet-rs"), root.join("harness")];
    folders.extend(std::fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path()));
    let read = |folder: &Path| -> toml::Table {
        toml::from_str(&std::fs::read_to_string(folder.join("Cargo.toml")).unwrap()).unwrap()
    };
    let names = |manifest: &toml::Table| -> BTreeSet<String> {
        let tables = ["dependencies", "dev-dependencies", "build-dependencies"];
        tables.iter().filter_map(|t| manifest.get(*t)?.as_table()).flat_map(|t| t.keys().cloned()).collect()
    };
    folders
        .iter()
        .map(|folder| {
            let manifest = read(folder);
            (manifest["package"]["name"].as_str().unwrap().to_owned(), names(&manifest))
        })
        .collect()
}

/// The first circle that starts on `path`, as names from a crate back to itself.
fn circle(members: &BTreeMap<String, BTreeSet<String>>, path: &mut Vec<String>) -> Option<Vec<String>> {
    let here = path.last().unwrap().clone();
    for next in members[&here].iter().filter(|name| members.contains_key(*name)) {
        if let Some(at) = path.iter().position(|name| name == next) {
            return Some(path[at..].to_vec());
        }
        path.push(next.clone());
        if let Some(found) = circle(members, path) {
            return Some(found);
        }
        path.pop();
    }
    None
}

#[test]
fn no_circle_between_crates() {
    let members = members();
    assert!(members.len() >= 14, "{:?}", members.keys());
    for name in members.keys() {
        assert_eq!(circle(&members, &mut vec![name.clone()]), None);
    }
    let planted = BTreeMap::from([
        ("a".to_owned(), BTreeSet::from(["b".to_owned()])),
        ("b".to_owned(), BTreeSet::from(["a".to_owned()])),
    ]);
    assert_eq!(circle(&planted, &mut vec!["a".to_owned()]), Some(vec!["a".to_owned(), "b".to_owned()]));
}

#[test]
fn pure_crates_name_neither_engine_nor_network_nor_command_line() {
    let members = members();
    for name in PURE {
        let beyond: Vec<_> = BEYOND.iter().filter(|other| members[name].contains(**other)).collect();
        assert!(beyond.is_empty(), "{name} names {beyond:?}");
    }
}

#[test]
fn only_the_command_line_parses_one() {
    for (name, needs) in members() {
        for library in ["clap", "ctrlc", "indicatif"] {
            assert!(name == "harness" || !needs.contains(library), "{name} names {library}");
        }
    }
}
