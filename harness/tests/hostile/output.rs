//! Where results go: targets that are no files, links, limits on the file size, a stdout or stderr that is full.
//! What stood there before stands there afterwards.

use std::os::unix::fs::symlink;
use std::path::Path;

use gguf::Architecture;
use gguf::fixture::tiny_model;

use crate::attempt::{Attempt, harness};
use crate::cartridge;

const AREA: &str = "output";

/// Every command that writes a file, with the target left open, and whether it takes --force.
const WRITERS: [(&str, &[&str], bool); 12] = [
    ("synth", &["model", "synth", "--preset", "tiny", "--out", "F"], true),
    ("create", &["cartridge", "create", "--text", "t", "--threads", "1", "--out", "F"], true),
    ("export-blob", &["cartridge", "export-blob", "c", "--out", "F"], true),
    ("import-blob", &["cartridge", "import-blob", "b", "--tokens", "t", "--out", "F"], true),
    ("gates", &["gates", "--only", "1", "--quick", "--threads", "1", "--out", "F"], false),
    ("convert", &["model", "convert", ".", "--out", "F"], true),
    ("quantize", &["model", "quantize", "--embedding", "q8_0", "--out", "F"], true),
    ("repack", &["model", "repack", "--to", "tq2_0", "--out", "F"], true),
    ("cartridge convert", &["cartridge", "convert", "c", "--to", "native", "--flash-attn", "--out", "F"], true),
    ("import-parts", &["cartridge", "import-parts", "c", "--out", "F"], true),
    ("bench", &["bench", "-p", "4", "-n", "0", "-r", "1", "-t", "1", "--out", "F"], false),
    ("bench grammar", &["bench", "grammar", "--outputs", "1", "-t", "1", "--out", "F"], false),
];

pub(crate) fn table() -> Vec<Attempt> {
    let mut all = Vec::new();
    for (writer, args, takes_force) in WRITERS {
        let to = |name: &str, file: &str, force: bool| {
            let mut args: Vec<&str> = args.iter().map(|a| if *a == "F" { file } else { a }).collect();
            if force && takes_force {
                args.push("--force");
            }
            harness(AREA, format!("{writer}: {name}"), args)
                .file("t", "turn on the lamp")
                .file("c", cartridge::sound())
                .file("b", cartridge::blob())
        };
        for force in [false, true] {
            let with = if force { ", forced" } else { "" };
            let name = |what: &str| format!("{what}{with}");
            let folder = |f: &Path| std::fs::create_dir(f.join("out")).unwrap();
            all.push(to(&name("a folder"), "out", force).prepare(folder).usage("a folder"));
            all.push(to(&name("a name with a slash"), "new/", force).usage("new/"));
            all.push(to(&name("/dev/null"), "/dev/null", force).usage("a device"));
            all.push(to(&name("/dev/full"), "/dev/full", force).usage("a device"));
            all.push(to(&name("a pipe"), "out", force).prepare(|f| fifo(&f.join("out"))).usage("a pipe"));
            let device = |f: &Path| symlink("/dev/null", f.join("out")).unwrap();
            all.push(to(&name("a link to a device"), "out", force).prepare(device).usage("a device"));
            all.push(to(&name("no such folder"), "no/such/out", force).usage("no/such/out"));
            all.push(to(&name("below a file"), "t/out", force).usage("t/out"));
            all.push(to(&name("the root"), "/", force).usage("/"));
            all.push(to(&name("nothing"), "", force).usage(""));
            all.push(to(&name("two dots"), "..", force).usage(""));
            all.push(to(&name("a name of 300 bytes"), &"n".repeat(300), force).usage(""));
        }
        if takes_force {
            all.push(to("a file that exists", "out", false).file("out", "old").usage("--force"));
            let link = |f: &Path| symlink("t", f.join("out")).unwrap();
            all.push(to("a link to a file", "out", false).prepare(link).usage("--force"));
            let dangling = |f: &Path| symlink("nowhere", f.join("out")).unwrap();
            all.push(to("a link to nothing", "out", false).prepare(dangling).usage("--force"));
        }
    }
    // Links are replaced, never followed: the file behind stays.
    for writer in ["synth", "create", "export-blob", "quantize", "repack", "cartridge convert"] {
        let (_, args, _) = WRITERS.iter().find(|w| w.0 == writer).unwrap();
        let args = args.iter().map(|a| if *a == "F" { "out" } else { a }).chain(["--force"]);
        all.push(
            harness(AREA, format!("{writer}: a link to a file, forced"), args)
                .file("t", "turn on the lamp")
                .file("c", cartridge::sound())
                .file("victim", "precious")
                .prepare(|f| symlink("victim", f.join("out")).unwrap())
                .creates("out"),
        );
    }
    all.extend(full());
    all
}

/// A full disk, played by the limit on the file size, and by /dev/full.
fn full() -> Vec<Attempt> {
    let mut all = Vec::new();
    let synth = ["model", "synth", "--preset", "tiny", "--out", "out"];
    all.push(harness(AREA, "size limit: synth", synth).limits("ulimit -f 64").ends(2, "out"));
    let forced = synth.iter().chain(&["--force"]);
    all.push(
        harness(AREA, "size limit: synth over a file", forced).file("out", "old").limits("ulimit -f 64").ends(2, "out"),
    );
    let create = ["cartridge", "create", "--model", "m.gguf", "--tokens", "ids", "--out", "out", "--force"];
    all.push(
        // 256 bytes a token do not fit 8 KiB.
        harness(AREA, "size limit: create over a file", create)
            .file("m.gguf", tiny_model(Architecture::BitNetB158).encode())
            .file("ids", "7 ".repeat(100))
            .file("out", "old")
            .limits("ulimit -f 16")
            .ends(2, "out"),
    );
    all.push(
        harness(AREA, "size limit: the embedded model", ["generate", "--prompt", "x"])
            .limits("ulimit -f 64")
            .ends(2, "model embedded"),
    );
    let agent = ["agent", "--rules-only", "turn on the kitchen light", "--store", "s"];
    all.push(harness(AREA, "size limit: the agent's store", agent).limits("ulimit -f 8").ends_any().creates("s"));
    let quick = ["gates", "--only", "1", "--quick", "--threads", "1", "--out", "out"];
    all.push(
        harness(AREA, "size limit: report over a file", quick).file("out", "old").limits("ulimit -f 0").ends(2, ""),
    );
    all.push(
        harness(AREA, "stdout is full", ["model", "inspect", "--format", "json"])
            .stdout_to("/dev/full")
            .ends(2, "stdout"),
    );
    all.push(
        harness(AREA, "stdout is full: generate", ["generate", "--prompt", "x", "--max-tokens", "2"])
            .stdout_to("/dev/full")
            .ends(2, "stdout"),
    );
    all.push(harness(AREA, "stdout is full: agent", agent).stdout_to("/dev/full").ends(2, "").creates("s"));
    all.push(harness(AREA, "stdout is full: help", ["--help"]).stdout_to("/dev/full").ends_any());
    all.push(
        harness(AREA, "stderr is full", ["generate", "--prompt", "x", "--max-tokens", "2", "--threads", "99"])
            .stderr_to("/dev/full"),
    );
    all.push(
        harness(AREA, "stderr is full: refusal", ["model", "inspect", "t"])
            .file("t", "text")
            .stderr_to("/dev/full")
            .refused(""),
    );
    all.push(
        harness(AREA, "stderr is full: gates", ["gates", "--only", "1", "--quick", "--threads", "99"])
            .stderr_to("/dev/full")
            .ends(3, ""),
    );
    all.push(harness(AREA, "stderr is full: chat", ["chat", "--max-tokens", "2"]).stdin("hi\n").stderr_to("/dev/full"));
    all.push(harness(AREA, "no files may be opened", ["generate", "--prompt", "x"]).limits("ulimit -n 7").ends_any());
    all.push(
        harness(AREA, "no memory for the context", ["generate", "--prompt", "x", "--n-ctx", "2048"])
            .limits("ulimit -v 60000")
            .ends_any(),
    );
    all
}

fn fifo(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}
