//! `harness bench`: odd numbers and lists, profiles that are none, results that would replace their inputs.

use std::os::unix::fs::symlink;
use std::path::Path;

use crate::attempt::{Attempt, harness};
use crate::gguf::model;
use crate::special_files::fifo;

const AREA: &str = "bench";

/// Prefill of four tokens by the fixture's model, whose context holds 256.
fn speed(name: impl Into<String>, options: &[&str]) -> Attempt {
    let mut args = vec!["bench", "--model", "m.gguf"];
    for (option, long, default) in
        [("-p", "--n-prompt", "4"), ("-n", "--n-gen", "0"), ("-r", "--repetitions", "1"), ("-t", "--threads", "1")]
    {
        if !options.iter().any(|o| o.starts_with(option) || o.starts_with(long)) {
            args.extend([option, default]);
        }
    }
    harness(AREA, name, [&args[..], options].concat()).file("m.gguf", model().encode())
}

fn sweep(name: &str, options: &[&str]) -> Attempt {
    let args = [&["bench", "--model", "m.gguf", "--sweep", "-p", "4", "-n", "1", "-r", "1"], options].concat();
    harness(AREA, format!("sweep: {name}"), args).file("m.gguf", model().encode())
}

pub(crate) fn table() -> Vec<Attempt> {
    let mut all = vec![speed("sound", &[]), speed("the whole context", &["-p", "256", "-n", "256"])];
    all.extend(numbers());
    all.extend(sweeps());
    all.extend(profiles());
    all.extend(others());
    all
}

fn numbers() -> Vec<Attempt> {
    let mut all = Vec::new();
    for option in ["--n-prompt", "--n-gen", "--threads", "--batch-size", "--ubatch-size", "--repetitions"] {
        for value in ["-1", "4294967296", "1.5", "x", "", "0x4", "1e3", "４"] {
            let given = format!("{option}={value}");
            all.push(speed(given.clone(), &[&given]).usage(option));
        }
    }
    for option in ["--n-prompt", "--n-gen", "--threads", "--batch-size", "--ubatch-size"] {
        for value in [",", "1,,2", "1;2", "1,x", "1,-2"] {
            let given = format!("{option}={value}");
            all.push(speed(given.clone(), &[&given]).usage(option));
        }
    }
    for (option, value, says) in [
        ("--n-prompt", "257", "n-prompt = 257"),
        ("--n-prompt", "4294967295", "n-prompt"),
        ("--n-prompt", "0", "nothing to measure"),
        ("--n-gen", "257", "n-gen = 257"),
        ("--n-gen", "4294967295", "n-gen"),
        ("--threads", "0", "--threads 0"),
        ("--threads", "1,0", "--threads 0"),
        ("--batch-size", "0", "batch-size = 0"),
        ("--ubatch-size", "0", "n_ubatch"),
        ("--ubatch-size", "4294967295", "n_ubatch"),
        ("--repetitions", "0", "--repetitions"),
        ("--repetitions", "1001", "--repetitions"),
        ("--type-k", "i2_s", "i2_s"),
        ("--type-k", "bf16", "type_k"),
        ("--type-v", "q8_0", "type_v"),
    ] {
        all.push(speed(format!("{option} {value}"), &[option, value]).usage(says));
    }
    for (option, value) in
        [("--batch-size", "1"), ("--batch-size", "4294967295"), ("--ubatch-size", "1"), ("--threads", "4294967295")]
    {
        all.push(speed(format!("{option} {value}"), &[option, value]));
    }
    // Ten thousand values in each of four lists are 10^16 rows.
    let many = vec!["1"; 10_000].join(",");
    let lists = ["-p", &many, "-n", &many, "-t", &many, "-b", &many, "-u", &many];
    all.push(speed("five lists of 10,000", &lists).usage("rows"));
    all.push(speed("one list of 10,000", &["-p", &many]).usage("10001 rows"));
    all.push(speed("the same value a hundred times", &["-p", &vec!["4"; 100].join(",")]));
    all.push(speed("--format yaml", &["--format", "yaml"]).usage("yaml"));
    all
}

fn sweeps() -> Vec<Attempt> {
    let mut all = vec![
        sweep("sound", &[]),
        sweep("a profile beside the model", &["--save-profile=p.toml"]).creates("p.toml"),
        sweep("a profile in folders that are made", &["--save-profile=a/b/p.toml"]).creates("a"),
        sweep("a profile in its folder", &["--save-profile"]).creates(".config"),
        sweep("a profile over an older one", &["--save-profile=p.toml"]).file("p.toml", "old").creates("p.toml"),
    ];
    for (name, target, says) in [
        ("/dev/null", "/dev/null", "a device"),
        ("below a device", "/dev/null/p.toml", "no folder"),
        ("below a file", "t/p.toml", "no folder"),
        ("the root", "/", "no file name"),
        ("a name with a slash", "new/", "a folder's name"),
        ("two dots", "..", "no file name"),
        ("the model", "m.gguf", "also an input"),
        ("a folder", "d", "a folder"),
        ("a pipe", "f", "a pipe"),
        ("a link to a device", "l", "a device"),
    ] {
        let prepare = |f: &Path| {
            std::fs::create_dir(f.join("d")).unwrap();
            fifo(&f.join("f"));
            symlink("/dev/null", f.join("l")).unwrap();
        };
        let option = format!("--save-profile={target}");
        all.push(sweep(&format!("profile at {name}"), &[&option]).file("t", "text").prepare(prepare).usage(says));
    }
    all.push(
        sweep("profile and result at one place", &["--save-profile=o", "--out", "./o"]).usage("where the result goes"),
    );
    all.push(
        sweep("profile, without a home", &["--save-profile"])
            .limits("unset HOME; unset XDG_CONFIG_HOME")
            .env("XDG_CONFIG_HOME", "")
            .usage("no folder for profiles"),
    );
    for (name, options, says) in [
        ("two lengths", &["-p", "4,8"][..], "-p"),
        ("no decoding", &["-n", "0"], "-n"),
        ("two batches", &["-b", "4,8"], "-b"),
        ("with threads", &["-t", "1"], "--threads"),
        ("with micro-batches", &["-u", "1"], "--ubatch-size"),
    ] {
        let args = [&["bench", "--model", "m.gguf", "--sweep", "-r", "1"], options].concat();
        all.push(harness(AREA, format!("sweep: {name}"), args).file("m.gguf", model().encode()).usage(says));
    }
    all.push(speed("a profile without a sweep", &["--save-profile=p"]).usage("--sweep"));
    all
}

/// What `BITNET_PROFILE` names, and what lies in the folder for profiles.
fn profiles() -> Vec<Attempt> {
    let args = ["generate", "--prompt", "x", "--max-tokens", "1"];
    let named = |name: &str| harness(AREA, format!("profile: {name}"), args).env("BITNET_PROFILE", "p");
    let sound = format!(
        "format = \"bitnet-harness.profile/1\"\ncpu = \"No CPU\"\ncpus = 2\nmodel = \"m\"\nmodel_hash = \"sha256:{}\"\n\
         model_bytes = 3\nengine = \"c\"\nthreads = 1\nn_ubatch = 64\nprefill_tokens_per_second = 1.0\n\
         decode_tokens_per_second = 1.0\n",
        "a".repeat(64)
    );
    let mut all = vec![
        named("of another CPU").file("p", sound.clone()).refused("cpu is"),
        named("a pipe without a writer").prepare(|f| fifo(&f.join("p"))).refused("a pipe"),
        named("a folder").prepare(|f| std::fs::create_dir(f.join("p")).unwrap()).refused("a folder"),
        named("a link to /dev/zero").prepare(|f| symlink("/dev/zero", f.join("p")).unwrap()).refused("a device"),
        named("a link to itself").prepare(|f| symlink("p", f.join("p")).unwrap()).usage("p"),
        named("missing").usage("p"),
        named("empty").file("p", "").refused("format"),
        named("no UTF-8").file("p", [0xff; 64]).refused("UTF-8"),
        named("zeros").file("p", [0; 4096]).refused("profile p"),
        named("100 kB").file("p", "#".repeat(100_000)).refused("65536 bytes"),
        named("lists in lists").file("p", format!("a = {}", "[".repeat(60_000))).refused("profile p"),
        named("tables in tables").file("p", format!("[{}]", vec!["a"; 30_000].join("."))).refused("profile p"),
        named("terminal control").file("p", sound.replace("No CPU", "\\u001b[2J")).refused("cpu is"),
        // The folder's profiles are of whoever ran a sweep; one that is broken is not passed over.
        harness(AREA, "profile: a pipe in the folder", args)
            .prepare(|f| {
                let folder = f.join(".config/bitnet-harness/profiles");
                std::fs::create_dir_all(&folder).unwrap();
                fifo(&folder.join("x.toml"));
            })
            .refused("a pipe"),
        harness(AREA, "profile: of another CPU, in the folder", args).prepare({
            let sound = sound.clone();
            move |f| {
                let folder = f.join(".config/bitnet-harness/profiles");
                std::fs::create_dir_all(&folder).unwrap();
                std::fs::write(folder.join("x.toml"), &sound).unwrap();
            }
        }),
    ];
    for (from, to, says) in [
        ("profile/1", "profile/2", "format"),
        ("threads = 1", "threads = 0", "threads is 0"),
        ("threads = 1", "threads = 513", "threads is 513"),
        ("threads = 1", "threads = -1", "threads"),
        ("threads = 1", "threads = 99999999999999999999", "profile p"),
        ("n_ubatch = 64", "n_ubatch = 0", "n_ubatch is 0"),
        ("n_ubatch = 64", "n_ubatch = 8193", "n_ubatch is 8193"),
        ("model_bytes = 3", "model_bytes = -3", "model_bytes"),
        ("second = 1.0", "second = nan", "tokens_per_second"),
        ("second = 1.0", "second = -inf", "tokens_per_second"),
        ("sha256:a", "sha256:", "model_hash"),
        ("sha256:a", "sha256:\u{e9}", "model_hash"),
        ("engine", "flash_attn = true\nengine", "flash_attn"),
        ("engine", "threads = 2\nengine", "threads"),
    ] {
        all.push(named(&format!("{to:?}")).file("p", sound.replacen(from, to, 1)).refused(says));
    }
    all
}

fn others() -> Vec<Attempt> {
    let cartridge = |name: &str, options: &[&str]| {
        let args = [&["bench", "cartridge", "--model", "m.gguf", "-r", "1", "-t", "1"], options].concat();
        harness(AREA, format!("cartridge: {name}"), args).file("m.gguf", model().encode())
    };
    let grammar = |name: &str, options: &[&str]| {
        let args = [&["bench", "grammar", "--model", "m.gguf", "--outputs", "1", "-t", "1"], options].concat();
        harness(AREA, format!("grammar: {name}"), args).file("m.gguf", model().encode())
    };
    let bandwidth = |name: &str, options: &[&str]| {
        let args = [&["bench", "bandwidth", "--model", "m.gguf", "-r", "1"], options].concat();
        harness(AREA, format!("bandwidth: {name}"), args).file("m.gguf", model().encode())
    };
    let mut all = vec![cartridge("sound", &["-p", "4"]), grammar("sound", &["--max-tokens", "4"])];
    for (option, value, says) in [
        ("-p", "0", "n-prompt"),
        ("-p", "257", "n-prompt"),
        ("-p", "4,257", "n-prompt"),
        ("-p", "", "--n-prompt"),
        ("-p", "4294967296", "--n-prompt"),
        ("--prefills", "0", "--prefills"),
        ("--prefills", "101", "--prefills"),
        ("-u", "0", "n_ubatch"),
        ("--type-k", "i2_s", "i2_s"),
        ("--type-v", "q8_0", "type_v"),
        ("--folder", "nowhere", "--folder"),
        ("--folder", "m.gguf", "--folder"),
        ("--folder", "/dev/null", "--folder"),
    ] {
        let given = [option, value];
        let more = if option == "-p" { &[][..] } else { &["-p", "4"] };
        all.push(cartridge(&format!("{option} {value:?}"), &[&given[..], more].concat()).usage(says));
    }
    for (option, value, says) in [
        ("-n", "0", "n-gen"),
        ("-n", "257", "n-gen"),
        ("-n", "4294967295", "n-gen"),
        ("-t", "0", "threads"),
        ("-t", "x", "--threads"),
    ] {
        all.push(bandwidth(&format!("{option} {value}"), &[option, value]).usage(says));
    }
    all.push(bandwidth("65 thread counts", &["-n", "1", "-t", &vec!["1"; 65].join(",")]).usage("65"));
    // What it reads may not fit the limit of this suite.
    all.push(bandwidth("sound", &["-n", "2"]).ends_any());
    all.push(cartridge("10,000 lengths", &["-p", &vec!["4"; 10_000].join(",")]).usage("10000"));
    all.push(cartridge("the default lengths", &[]));
    for (option, value) in [
        ("--max-tokens", "0"),
        ("--max-tokens", "249"),
        ("--max-tokens", "4294967295"),
        ("--max-tokens", "-1"),
        ("--outputs", "0"),
        ("--outputs", "10001"),
        ("--seed", "4294967296"),
    ] {
        let given = format!("{option}={value}");
        // The fixture's option would come twice.
        let args = ["bench", "grammar", "--model", "m.gguf", "-t", "1", &given];
        let attempt = harness(AREA, format!("grammar: {given}"), args).file("m.gguf", model().encode());
        all.push(attempt.usage(option.trim_start_matches('-')));
    }
    for (name, text, says) in [
        ("empty", "", "--grammar"),
        ("no grammar", "<html>", "--grammar"),
        ("left recursion", "root ::= root \"a\" | \"b\"", "left recursion"),
    ] {
        all.push(grammar(name, &["--grammar", "g"]).file("g", text).refused(says));
    }
    all.push(grammar("of one token", &["--grammar", "g"]).file("g", "root ::= \"a\"").ends(1, "first token"));
    all.push(grammar("rubbish tools", &["--tools", "g"]).file("g", "tools = 7").refused("--tools"));
    for (name, out) in
        [("the model", "m.gguf"), ("the model by another name", "./m.gguf"), ("a link to the model", "l")]
    {
        let link = |f: &Path| symlink("m.gguf", f.join("l")).unwrap();
        all.push(speed(format!("result over {name}"), &["--out", out]).prepare(link).usage("also an input"));
        all.push(
            cartridge(&format!("result over {name}"), &["-p", "4", "--out", out]).prepare(link).usage("also an input"),
        );
    }
    let over = grammar("result over the grammar", &["--grammar", "g", "--out", "g"]);
    all.push(over.file("g", "root ::= [a-z]+").usage("also an input"));
    let tools = include_str!("../../../gates/grammars/home.toml");
    all.push(
        grammar("result over the tools", &["--tools", "g.toml", "--out", "g.toml"])
            .file("g.toml", tools)
            .usage("also an input"),
    );
    all
}
