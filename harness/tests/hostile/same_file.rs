//! Outputs over their own inputs: every command that writes a file, each of its inputs, each way to spell it. What
//! `--force` allows is to replace another file.

use std::os::unix::fs::symlink;
use std::path::Path;

use crate::attempt::{Attempt, harness};
use crate::cartridge;
use crate::checkpoint;
use crate::gguf::model;

const AREA: &str = "same file";

/// Commands with the target left open, the inputs that they read, and whether they take --force.
const WRITERS: [(&str, &[&str], &[&str], bool); 13] = [
    ("gates", &["gates", "--only", "3a", "--quick", "-m", "m.gguf", "--out", "F"], &["m.gguf"], false),
    ("gates, cases", &["gates", "--only", "5", "--quick", "--cases", "y.yaml", "--out", "F"], &["y.yaml"], false),
    ("synth", &["model", "synth", "--preset", "tiny", "--tokenizer", "h", "--out", "F"], &["h/tokenizer.json"], true),
    ("create", &["cartridge", "create", "-m", "m.gguf", "--text", "t", "--out", "F"], &["t", "m.gguf"], true),
    ("create, ids", &["cartridge", "create", "-m", "m.gguf", "--tokens", "i", "--out", "F"], &["i", "m.gguf"], true),
    ("export-blob", &["cartridge", "export-blob", "c", "--out", "F"], &["c"], true),
    (
        "import-blob",
        &["cartridge", "import-blob", "b", "--tokens", "i", "-m", "m.gguf", "--out", "F"],
        &["b", "i", "m.gguf"],
        true,
    ),
    ("import-parts", &["cartridge", "import-parts", "c", "-m", "m.gguf", "--out", "F"], &["c", "m.gguf"], true),
    ("cartridge convert", &["cartridge", "convert", "c", "--to", "head-major", "--out", "F"], &["c"], true),
    ("quantize", &["model", "quantize", "--model", "m.gguf", "--embedding", "q8_0", "--out", "F"], &["m.gguf"], true),
    ("repack", &["model", "repack", "--model", "m.gguf", "--to", "tq2_0", "--out", "F"], &["m.gguf"], true),
    (
        "convert",
        &["model", "convert", "h", "--out", "F"],
        &["h/config.json", "h/tokenizer.json", "h/model.safetensors"],
        true,
    ),
    ("bench", &["bench", "-m", "m.gguf", "-p", "4", "-n", "0", "-r", "1", "--out", "F"], &["m.gguf"], false),
];

/// Its name, the target, and what makes that target stand for the input.
type Spelling = (&'static str, String, fn(&Path, &str));

pub(crate) fn table() -> Vec<Attempt> {
    let mut all = Vec::new();
    for (writer, args, inputs, takes_force) in WRITERS {
        for input in inputs {
            let spellings: [Spelling; 5] = [
                ("itself", (*input).to_owned(), |_, _| ()),
                ("another spelling", format!("h/.././{input}"), |_, _| ()),
                ("a link", "other".to_owned(), |f, input| symlink(input, f.join("other")).unwrap()),
                ("a hard link", "other".to_owned(), |f, input| {
                    std::fs::hard_link(f.join(input), f.join("other")).unwrap();
                }),
                ("a folder that is a link", format!("g/{input}"), |f, _| symlink(".", f.join("g")).unwrap()),
            ];
            for (spelling, target, prepare) in spellings {
                let mut args: Vec<&str> = args.iter().map(|a| if *a == "F" { target.as_str() } else { a }).collect();
                if takes_force {
                    args.push("--force");
                }
                let input = input.to_owned();
                all.push(
                    harness(AREA, format!("{writer} over {input}: {spelling}"), args)
                        .file("t", "turn on the lamp")
                        .file("i", "1 2 3")
                        .file("c", cartridge::sound())
                        .file("b", cartridge::blob())
                        .file("y.yaml", "cases: []\n")
                        .file("m.gguf", model().encode())
                        .prepare(move |f| {
                            let folder = f.join("h");
                            std::fs::create_dir(&folder).unwrap();
                            for (name, bytes) in checkpoint::sound_files() {
                                std::fs::write(folder.join(name), bytes).unwrap();
                            }
                            prepare(f, input);
                        })
                        .usage("also an input"),
                );
            }
        }
    }
    // An earlier result in the checkpoint's folder is not an input.
    all.push(
        harness(AREA, "convert over its own result", ["model", "convert", "h", "--out", "h/m.gguf", "--force"])
            .prepare(|f| {
                std::fs::create_dir(f.join("h")).unwrap();
                for (name, bytes) in checkpoint::sound_files() {
                    std::fs::write(f.join("h").join(name), bytes).unwrap();
                }
                std::fs::write(f.join("h/m.gguf"), "an older one").unwrap();
            })
            .may_leave("h"),
    );
    all
}
