//! Every option of every command that takes a number, over a grid: the smallest, 1, 2, 3, an odd and a large one, on
//! small input. It works, or is refused by its name. The options are those that the command line itself lists: a command
//! that is not in the table below fails the test.

use std::any::TypeId;
use std::sync::OnceLock;

use clap::{Arg, ArgAction, Command};

use crate::attempt::{Attempt, harness};
use crate::gguf::model;

const AREA: &str = "number options";

const WHOLE: [&str; 7] = ["0", "1", "2", "3", "7", "1000003", "4294967295"];
const REAL: [&str; 7] = ["0", "1", "2", "3", "0.97", "1e-30", "1e30"];

/// Commands with what each needs beside the option that is tried.
const COMMANDS: [(&str, &[&str]); 19] = [
    ("gates", &["--only=3a", "--quick", "--threads=1"]),
    ("generate", &["ab", "--max-tokens=2", "--threads=1"]),
    ("chat", &["--max-tokens=2", "--threads=1"]),
    ("cartridge create", &["--text=t", "--out=o", "--threads=1"]),
    ("cartridge inspect", &["e"]),
    ("cartridge verify", &["e", "--threads=1"]),
    ("cartridge mount", &["e", "ab", "--max-tokens=2", "--threads=1"]),
    ("cartridge import-blob", &["b", "--tokens=i", "--out=o"]),
    ("model synth", &["--preset=tiny", "--out=o"]),
    ("model inspect", &["m.gguf"]),
    ("model record", &["--model=m.gguf", "--prompts=p", "--max-tokens=2", "--threads=1"]),
    ("model tokenize", &["ab"]),
    ("model perplexity", &["--text=l", "--n-ctx=32", "--windows=1", "--threads=1"]),
    ("bench", &["--model=m.gguf", "--n-prompt=4", "--n-gen=2", "--repetitions=1", "--threads=1"]),
    ("bench cartridge", &["--model=m.gguf", "--n-prompt=4", "--repetitions=1", "--threads=1"]),
    ("bench grammar", &["--model=m.gguf", "--grammar=g", "--outputs=1", "--max-tokens=4", "--threads=1"]),
    ("bench bandwidth", &["--model=m.gguf", "--n-gen=1", "--repetitions=1", "--threads=1"]),
    ("doctor", &[]),
    ("completions", &[]),
];

/// Commands with tables of their own, and the hidden ones that only this program starts.
const ELSEWHERE: [&str; 6] = ["agent", "redteam", "serve", "registry", "gate-child", "template-child"];

/// Commands without subcommands, or that run without one, by their path.
fn leaves(command: &Command, path: &str, found: &mut Vec<(String, Command)>) {
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        if path.is_empty() && ELSEWHERE.contains(&sub.get_name()) {
            continue;
        }
        let path = format!("{path} {}", sub.get_name()).trim().to_owned();
        if !sub.is_subcommand_required_set() && sub.get_arguments().next().is_some() {
            found.push((path.clone(), sub.clone()));
        }
        leaves(sub, &path, found);
    }
}

/// The values that an option is tried with; none for one that takes no number.
fn values(arg: &Arg) -> &'static [&'static str] {
    let ty = arg.get_value_parser().type_id();
    let whole =
        [TypeId::of::<u32>(), TypeId::of::<u64>(), TypeId::of::<usize>(), TypeId::of::<i32>(), TypeId::of::<i64>()];
    if whole.iter().any(|whole| ty == *whole) {
        &WHOLE
    } else if ty == TypeId::of::<f32>() || ty == TypeId::of::<f64>() {
        &REAL
    } else {
        &[]
    }
}

/// A cartridge of the embedded model, its blob and its ids, made once.
fn embedded() -> &'static [Vec<u8>; 3] {
    static MADE: OnceLock<[Vec<u8>; 3]> = OnceLock::new();
    MADE.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("t"), "turn on the lamp").unwrap();
        let run = |args: &[&str]| {
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_harness"));
            let made = command.args(args).current_dir(folder.path()).output().unwrap();
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
            made.stdout
        };
        run(&["cartridge", "create", "--threads=1", "--text=t", "--out=e"]);
        run(&["cartridge", "export-blob", "e", "--out=b"]);
        let ids = run(&["cartridge", "inspect", "e", "--ids"]);
        let read = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
        [read("e"), read("b"), ids]
    })
}

/// A command with its small inputs.
pub(crate) fn with_inputs(area: &'static str, name: String, args: &[&str]) -> Attempt {
    let [cartridge, blob, ids] = embedded();
    harness(area, name, args)
        .file("t", "turn on the lamp")
        .file("l", "turn on the lamp in the kitchen and open the door ".repeat(20))
        // More than the engine splits on an ordinary stack.
        .file("l2", "the kitchen light ".repeat(240))
        .file("i", ids.clone())
        .file("p", "[\"ab\", \"cd\"]")
        .file("g", "root ::= [a-z]+")
        .file("b", blob.clone())
        .file("e", cartridge.clone())
        .file("m.gguf", model().encode())
        .stdin("ab\n")
}

/// Every command with what it needs.
pub(crate) fn commands() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    COMMANDS.iter().map(|(path, given)| (*path, path.split(' ').chain(given.iter().copied()).collect()))
}

pub(crate) fn table() -> Vec<Attempt> {
    let mut found = Vec::new();
    leaves(&harness::cli::command(), "", &mut found);
    let mut all = Vec::new();
    for (path, command) in &found {
        let numbers: Vec<_> = command
            .get_arguments()
            .filter(|arg| matches!(arg.get_action(), ArgAction::Set | ArgAction::Append))
            .map(|arg| (arg, values(arg)))
            .filter(|(_, values)| !values.is_empty())
            .collect();
        if numbers.is_empty() {
            continue;
        }
        let given = COMMANDS.iter().find(|(known, _)| known == path);
        let (_, given) = given.unwrap_or_else(|| panic!("{path} takes numbers and is in no table"));
        for (arg, values) in numbers {
            let long = arg.get_long().unwrap_or_else(|| panic!("{path}: a number without a long name"));
            let option = format!("--{long}");
            // As messages name it: the option, the field, or what it is about.
            let field = long.replace('-', "_");
            let names = vec![option.clone(), format!("n_{}", field.trim_end_matches("_size")), field, long.to_owned()];
            for value in values {
                let given_option = format!("{option}={value}");
                let mut args: Vec<&str> = path.split(' ').collect();
                args.extend(given.iter().filter(|g| !g.starts_with(&format!("{option}="))));
                args.push(&given_option);
                let attempt = with_inputs(AREA, format!("{path} {given_option}"), &args).may_leave("o");
                all.push(attempt.works_or_names(names.clone()));
            }
        }
    }
    all
}
