//! `harness bench` as its users run it: rows, JSON, the profile. Nothing here looks at a time.

use std::path::Path;

use assert_cmd::Command;
use serde_json::Value;

fn harness(profile: &str) -> Command {
    let mut command = Command::cargo_bin("harness").unwrap();
    command.env("BITNET_PROFILE", profile);
    command
}

fn run_with(profile: &str, args: &[&str]) -> (i32, String, String) {
    let output = harness(profile).args(args).output().unwrap();
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
    (output.status.code().expect("no signal"), text(&output.stdout), text(&output.stderr))
}

fn run(args: &[&str]) -> (i32, String, String) {
    run_with("off", args)
}

fn json(args: &[&str]) -> Value {
    let (code, out, err) = run(&[args, &["--format", "json"]].concat());
    assert_eq!(code, 0, "{args:?}: {err}");
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}"))
}

/// Every sample list is there, positive, and its median lies in it.
fn check_samples(value: &Value, n: usize) {
    let samples: Vec<f64> = value["samples"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    assert_eq!(samples.len(), n, "{value}");
    assert!(samples.iter().all(|&x| x > 0.0), "{value}");
    let (min, max) = (value["min"].as_f64().unwrap(), value["max"].as_f64().unwrap());
    let median = value["median"].as_f64().unwrap();
    assert!(min <= median && median <= max && samples.contains(&min) && samples.contains(&max), "{value}");
    assert_eq!(value["stdev"].is_null(), n == 1, "one sample has no spread: {value}");
}

#[test]
fn rows_are_those_asked_for_with_every_sample() {
    let report = json(&["bench", "-p", "32,8", "-n", "4", "-t", "1", "-b", "16", "-ub", "8", "-r", "2"]);
    assert_eq!((&report["schema"], &report["kind"]), (&"bitnet-harness.bench/1".into(), &"speed".into()));
    let rows = report["rows"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|r| r["test"].as_str().unwrap()).collect();
    assert_eq!(names, ["pp32", "pp8", "tg4"]);
    for row in rows {
        let shape = ["threads", "n_batch", "n_ubatch"].map(|k| row[k].as_u64().unwrap());
        assert_eq!(shape, [1, 16, if row["n_gen"] == 4 { 4 } else { 8 }], "{row}");
        assert_eq!((&row["type_k"], &row["flash_attn"]), (&"f16".into(), &false.into()));
        check_samples(&row["tokens_per_second"], 2);
    }
    for part in ["cpu", "cpus", "os", "features"] {
        assert!(!report["host"][part].is_null(), "{part}");
    }
    assert!(report["engine"]["flags"].is_string() && report["engine"]["kernel"].is_string());
    assert!(report["model"]["hash"].as_str().unwrap().starts_with("sha256:"));

    let args = ["bench", "-p", "8", "-n", "0", "-t", "1", "-r", "1"];
    let (code, text, err) = run(&args);
    assert!(code == 0 && text.contains("pp8") && !text.contains("tg") && err.is_empty(), "{text} {err}");
    let (_, markdown, _) = run(&[&args[..], &["-o", "markdown"]].concat());
    assert!(markdown.contains("| test | threads |") && markdown.contains("| pp8 | 1 |"), "{markdown}");
}

#[test]
fn what_cannot_be_measured_is_refused_by_name() {
    for (args, named) in [
        (&["bench", "-p", "0", "-n", "0"][..], "nothing to measure"),
        (&["bench", "-p", "1025"], "--n-prompt = 1025"),
        (&["bench", "-t", "0"], "--threads 0"),
        (&["bench", "-b", "0"], "--batch-size = 0"),
        (&["bench", "-ub", "0", "-p", "4", "-n", "0"], "n_ubatch"),
        (&["bench", "-r", "0"], "repetitions"),
        (&["bench", "--type-v", "q8_0", "-p", "4", "-n", "0"], "flash attention"),
        (&["bench", "--sweep", "-t", "1"], "cannot be used with"),
        (&["bench", "--sweep", "-p", "1,2"], "one -p"),
        (&["bench", "--save-profile", "x"], "--sweep"),
        (&["bench", "cartridge", "-p", "1025"], "--n-prompt = 1025"),
        (&["bench", "cartridge", "-p", "0"], "--n-prompt = 0"),
        (&["bench", "bandwidth", "-n", "0"], "--n-gen = 0"),
        (&["bench", "grammar", "--max-tokens", "5000"], "--max-tokens = 5000"),
        (&["bench", "grammar", "--grammar", "no-such-file"], "no-such-file"),
    ] {
        let (code, out, err) = run(args);
        assert!(code == 2 && out.is_empty(), "{args:?}: {code} {err}");
        assert!(err.contains(named), "{args:?}: no {named:?} in {err}");
    }
}

/// What a run measures last is in another place of the rotation for every number of repetitions: whichever it is, no
/// sequence may keep cells that the measurements after the rounds need. One kind more or less moves the rotation: the
/// quantized types have no head-major file, and the whole context leaves no room for the question.
#[test]
fn every_number_of_repetitions_is_measured_to_the_end() {
    let quantized: &[&str] = &["--flash-attn", "--type-k", "q8_0", "--type-v", "q8_0"];
    let grid = (1..=9).flat_map(|r| [(64, r, &[][..]), (240, r, quantized)]);
    // The whole context takes long to prefill: only the number that fails where two sequences are left.
    for (length, repetitions, more) in grid.chain([(1024, 3, &[][..])]) {
        let (p, r) = (length.to_string(), repetitions.to_string());
        let report = json(&[&["bench", "cartridge", "-t", "1", "-p", &p, "-r", &r], more].concat());
        let row = &report["rows"][0];
        check_samples(&row["share_ms"], repetitions);
        assert_eq!(row["mount_head_major_ms"].is_null(), !more.is_empty(), "-p {p} -r {r} {more:?}");
        assert_eq!(row["first_token_mounted_ms"].is_null(), length == 1024, "-p {p} -r {r} {more:?}");
    }
}

#[test]
fn a_cartridge_is_measured_against_prefill_read_and_restore() {
    let report = json(&["bench", "cartridge", "-p", "8,40", "-t", "1", "-r", "2"]);
    assert_eq!(report["kind"], "cartridge");
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(|r| r["n_tokens"].as_u64().unwrap()).collect::<Vec<_>>(), [8, 40]);
    for row in rows {
        // 4 layers × (keys and values) × 2 heads of 64 × f16.
        assert_eq!(row["payload_bytes"].as_u64().unwrap(), row["n_tokens"].as_u64().unwrap() * 4 * 2 * 2 * 64 * 2);
        assert!(row["file_bytes"].as_u64() > row["payload_bytes"].as_u64());
        check_samples(&row["prefill_ms"], 1);
        check_samples(&row["first_token_prefilled_ms"], 1);
        for times in [
            "capture_ms",
            "read_ms",
            "restore_ms",
            "share_ms",
            "mount_ms",
            "mount_hashed_ms",
            "mount_full_ms",
            "mount_head_major_ms",
            "first_token_mounted_ms",
            "convert_ms",
            "write_ms",
        ] {
            check_samples(&row[times], 2);
        }
        let median = |name: &str| row[name]["median"].as_f64().unwrap();
        let ratio = |name: &str| row["ratios"][name].as_f64().unwrap();
        for (name, expected) in [
            ("prefill_to_mount", median("prefill_ms") / median("mount_ms")),
            ("prefill_to_mount_full", median("prefill_ms") / median("mount_full_ms")),
            ("mount_to_restore", median("mount_ms") / median("restore_ms")),
            ("mount_to_share", median("mount_ms") / median("share_ms")),
            ("mount_to_read", median("mount_ms") / median("read_ms")),
            ("first_token", median("first_token_prefilled_ms") / median("first_token_mounted_ms")),
        ] {
            assert!((ratio(name) / expected - 1.0).abs() < 1e-9, "{name}");
        }
    }
    // A question behind the model's whole context has no room.
    let full = json(&["bench", "cartridge", "-p", "1024", "-t", "1", "-r", "1"]);
    let row = &full["rows"][0];
    assert!(row["first_token_mounted_ms"].is_null() && row["ratios"]["first_token"].is_null(), "{row}");
    // Quantized keys have no head-major form.
    let report = json(&["bench", "cartridge", "-p", "8", "-t", "1", "-r", "1", "--type-k", "q8_0"]);
    assert!(report["rows"][0]["convert_ms"].is_null() && report["rows"][0]["mount_head_major_ms"].is_null());
}

#[test]
fn decoding_is_measured_against_plain_reading() {
    let report = json(&["bench", "bandwidth", "-n", "8", "-t", "1", "-r", "2"]);
    assert_eq!(report["kind"], "bandwidth");
    let row = &report["rows"][0];
    check_samples(&row["read_gb_per_second"], 2);
    check_samples(&row["tokens_per_second"], 2);
    // The embedding is the output matrix: every tensor of the embedded file is read.
    let inspection = json(&["model", "inspect"]);
    assert_eq!(inspection["path"], "embedded");
    assert_eq!(row["bytes_per_token"], inspection["file"]["tensor_bytes"]);
    let number = |v: &serde_json::Value| v.as_f64().unwrap();
    let decode = number(&row["tokens_per_second"]["median"]) * number(&row["bytes_per_token"]) / 1e9;
    assert!((number(&row["decode_gb_per_second"]) / decode - 1.0).abs() < 1e-9);
    assert!((number(&row["share"]) * number(&row["read_gb_per_second"]["median"]) / decode - 1.0).abs() < 1e-9);
}

#[test]
fn masks_are_measured_against_decoding() {
    let report = json(&["bench", "grammar", "--outputs", "2", "--max-tokens", "12", "-t", "1"]);
    let row = &report["row"];
    assert_eq!((&row["n_vocab"], &row["outputs"]), (&2048.into(), &2.into()));
    let tokens = row["tokens"].as_u64().unwrap() as usize;
    let first = row["mask_first_us"]["samples"].as_array().unwrap().len();
    let later = row["mask_later_us"]["samples"].as_array().unwrap().len();
    assert_eq!(first + later, tokens, "a mask for each token");
    check_samples(&row["accept_us"], tokens);
    assert!(row["mask_to_decode"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_sweep_leaves_a_profile_that_the_other_commands_use() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("profile.toml");
    let path = file.to_str().unwrap();
    let report = json(&["bench", "--sweep", "-p", "16", "-n", "2", "-r", "1", "--save-profile", path]);
    assert_eq!(report["kind"], "sweep");
    let best = &report["best"];
    let tried: Vec<u64> =
        report["by_ubatch"].as_array().unwrap().iter().map(|r| r["n_ubatch"].as_u64().unwrap()).collect();
    assert!(tried.contains(&best["n_ubatch"].as_u64().unwrap()), "{tried:?} {best}");

    let text = std::fs::read_to_string(&file).unwrap();
    let profile: toml::Table = toml::from_str(&text).unwrap();
    assert_eq!(profile["threads"].as_integer().map(|n| n as u64), best["threads"].as_u64());
    assert_eq!(profile["n_ubatch"].as_integer().map(|n| n as u64), best["n_ubatch"].as_u64());
    assert_eq!(profile["model_hash"].as_str(), report["model"]["hash"].as_str());
    assert_eq!(profile["cpu"].as_str(), report["host"]["cpu"].as_str());

    let generate = ["generate", "--prompt", "The lamp", "--max-tokens", "2", "--format", "json"];
    assert_eq!(run_with(path, &generate).0, 0);
    let (code, doctor, _) = run_with(path, &["doctor"]);
    let said = format!("--threads {}, micro-batch {}", best["threads"], best["n_ubatch"]);
    assert!(code == 0 && doctor.contains(&said), "{doctor}");

    let refused = |text: &str, named: &str| {
        std::fs::write(&file, text).unwrap();
        let (code, out, err) = run_with(path, &generate);
        assert!(code == 4 && out.is_empty() && err.contains(named) && err.contains("profile.toml"), "{named}: {err}");
    };
    refused(&text.replace("threads = ", "treads = "), "treads");
    refused(&(text.clone() + "temperature = 2\n"), "temperature");
    let cpu = profile["cpu"].as_str().unwrap();
    refused(&text.replace(cpu, "Another CPU"), "cpu is \"Another CPU\" in the profile");
    let hash = profile["model_hash"].as_str().unwrap();
    refused(&text.replace(hash, &format!("sha256:{}", "0".repeat(64))), "model_hash is \"sha256:000");
    // --threads needs no profile, and a broken one is BAD for the doctor.
    assert_eq!(run_with(path, &[&generate[..], &["--threads", "1"]].concat()).0, 0);
    std::fs::write(&file, "x").unwrap();
    let (code, doctor, _) = run_with(path, &["doctor"]);
    assert!(code == 1 && doctor.contains("BAD profile"), "{doctor}");
}

#[test]
fn without_a_name_the_profile_goes_to_the_folder_of_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::cargo_bin("harness").unwrap();
    command.env_remove("BITNET_PROFILE").env("XDG_CONFIG_HOME", folder.path());
    let output =
        command.args(["bench", "--sweep", "-p", "16", "-n", "1", "-r", "1", "--save-profile"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let profiles: Vec<_> =
        std::fs::read_dir(folder.path().join("bitnet-harness/profiles")).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(profiles.len(), 1);
    let name = profiles[0].file_stem().and_then(|s| s.to_str()).unwrap().to_owned();
    let profile = std::fs::read_to_string(&profiles[0]).unwrap();
    assert!(profile.contains(&format!("sha256:{name}")), "named after the model: {name}");
    assert!(Path::new(&profiles[0]).extension().is_some_and(|e| e == "toml"));
}
