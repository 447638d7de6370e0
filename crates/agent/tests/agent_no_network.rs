//! The agent boundary has no way to a network and starts no processes: no source file of it names
//! the parts of the standard library that do, nor a crate that would.

use std::path::{Path, PathBuf};

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn no_network_and_no_processes() {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    assert!(files.len() > 30, "the boundary's sources were found");
    let forbidden = [
        "std::net",
        "net::Tcp",
        "TcpStream",
        "TcpListener",
        "UdpSocket",
        "UnixStream",
        "process::Command",
        "reqwest::",
        "ureq::",
        "hyper::",
        "curl::",
        "tokio::",
        "libc::",
    ];
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for word in forbidden {
            assert!(!text.contains(word), "{} names {word}", file.display());
        }
    }
}
