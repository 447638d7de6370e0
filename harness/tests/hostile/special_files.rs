//! What is no ordinary file, wherever a file is read: folders, pipes, devices, links in a circle, nothing at all.

use std::path::Path;
use std::process::Command;

use crate::attempt::{Attempt, harness};

const AREA: &str = "special files";

/// Every place where the command line reads a file, with that file's name left open.
const READERS: [(&str, &[&str]); 33] = [
    ("generate --model", &["generate", "--prompt", "x", "--model", "F"]),
    ("gates --model", &["gates", "--only", "1", "--model", "F"]),
    ("model inspect", &["model", "inspect", "F"]),
    ("generate --file", &["generate", "--file", "F"]),
    ("generate --grammar", &["generate", "--prompt", "x", "--grammar", "F"]),
    ("generate --json-schema", &["generate", "--prompt", "x", "--json-schema", "F"]),
    ("generate --tools", &["generate", "--prompt", "x", "--tools", "F"]),
    ("generate --chat-template", &["generate", "--chat", "--prompt", "x", "--chat-template", "F"]),
    ("generate --cartridge", &["generate", "--prompt", "x", "--cartridge", "F"]),
    ("cartridge inspect", &["cartridge", "inspect", "F"]),
    ("cartridge create --text", &["cartridge", "create", "--out", "c", "--text", "F"]),
    ("cartridge create --tokens", &["cartridge", "create", "--out", "c", "--tokens", "F"]),
    ("cartridge import-blob", &["cartridge", "import-blob", "F", "--tokens", "ids", "--out", "c"]),
    ("agent --devices", &["agent", "devices", "--devices", "F"]),
    ("agent --policy", &["agent", "--rules-only", "x", "--store", "s", "--policy", "F"]),
    ("agent --operator", &["agent", "--rules-only", "x", "--store", "s", "--operator", "F"]),
    ("gates --reference", &["gates", "--only", "2", "--reference", "F"]),
    ("gates --cases", &["gates", "--only", "5", "--cases", "F"]),
    ("model record --prompts", &["model", "record", "--prompts", "F"]),
    ("model tokenize --texts", &["model", "tokenize", "--texts", "F"]),
    ("model tokenize --model", &["model", "tokenize", "--model", "F", "x"]),
    ("model perplexity --text", &["model", "perplexity", "--text", "F"]),
    ("model perplexity --model", &["model", "perplexity", "--text", "ids", "--model", "F"]),
    ("model quantize --model", &["model", "quantize", "--embedding", "q8_0", "--out", "o", "--model", "F"]),
    ("model repack --model", &["model", "repack", "--to", "tq2_0", "--out", "o", "--model", "F"]),
    ("model synth --tokenizer", &["model", "synth", "--preset", "tiny", "--dry-run", "--tokenizer", "F"]),
    ("cartridge convert", &["cartridge", "convert", "F", "--to", "head-major", "--out", "o"]),
    ("cartridge import-parts", &["cartridge", "import-parts", "F", "--out", "o"]),
    ("cartridge import-parts --tokens", &["cartridge", "import-parts", "ids", "--out", "o", "--tokens", "F"]),
    ("bench --model", &["bench", "-p", "4", "-n", "0", "-r", "1", "--model", "F"]),
    ("bench cartridge --model", &["bench", "cartridge", "-p", "4", "--model", "F"]),
    ("bench grammar --grammar", &["bench", "grammar", "--grammar", "F"]),
    ("bench grammar --tools", &["bench", "grammar", "--tools", "F"]),
];

type Prepare = fn(&Path);

pub(crate) fn table() -> Vec<Attempt> {
    let mut all = Vec::new();
    for (reader, args) in READERS {
        let at = |kind: &str, file: &str| {
            let args = args.iter().map(|a| if *a == "F" { file } else { a });
            harness(AREA, format!("{reader}: {kind}"), args).file("ids", "1 2 3")
        };
        let made: [(&str, Prepare, i32); 5] = [
            ("a folder", |f| std::fs::create_dir(f.join("f")).unwrap(), 4),
            ("a pipe without a writer", |f| fifo(&f.join("f")), 4),
            ("a link to a folder", |f| std::os::unix::fs::symlink("/", f.join("f")).unwrap(), 4),
            ("links in a circle", circle, 2),
            ("a link to nothing", |f| std::os::unix::fs::symlink("nowhere", f.join("f")).unwrap(), 2),
        ];
        for (kind, prepare, code) in made {
            let attempt = at(kind, "f").prepare(prepare);
            // The operator's file must not be a link at all.
            let operator = reader == "agent --operator";
            let says = if operator { "" } else { "f" };
            // It may name the folder of the file, which is then missing in it.
            let in_folder = reader == "model synth --tokenizer" && kind.contains("folder");
            all.push(if code == 2 || operator && kind.contains("link") || in_folder {
                attempt.usage(says)
            } else {
                attempt.refused(says)
            });
        }
        for (kind, path) in [("/dev/null", "/dev/null"), ("/dev/zero", "/dev/zero"), ("/dev/random", "/dev/random")] {
            let attempt = at(kind, path);
            all.push(if reader == "agent --operator" {
                attempt.ends_any()
            } else {
                attempt.refused("not a regular file")
            });
        }
        for (kind, path) in [
            ("nothing there", "no-such-file"),
            ("below a file", "ids/below"),
            ("empty path", ""),
            ("name of 300 bytes", NAME_300),
        ] {
            all.push(at(kind, path).usage(""));
        }
        all.push(at("an empty file", "empty").file("empty", "").ends_refused(reader));
        let length = |file: &str| at("procfs, which states no length", file);
        all.push(length("/proc/self/maps").ends_refused(reader));
    }
    all
}

impl Attempt {
    /// Empty and senseless text is no prompt (2), everything else no input (4).
    fn ends_refused(self, reader: &str) -> Self {
        let empty = self.name.ends_with("an empty file");
        match reader {
            "generate --file" | "generate --chat-template" if empty => self.usage("empty"),
            "cartridge create --text" | "cartridge create --tokens" if empty => self.usage("empty"),
            "model perplexity --text" if empty => self.usage("two windows"),
            "model perplexity --text" => self.ends_any(),
            "generate --file" | "generate --chat-template" | "cartridge create --text" => self.ends_any(),
            "agent --operator" => self.usage(""),
            _ => self.refused(""),
        }
    }
}

const NAME_300: &str = concat!(
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
);

pub(crate) fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn circle(folder: &Path) {
    std::os::unix::fs::symlink("g", folder.join("f")).unwrap();
    std::os::unix::fs::symlink("f", folder.join("g")).unwrap();
}
