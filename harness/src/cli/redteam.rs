//! `harness redteam`: the suite of attacks on the agent boundary, with a model and a cartridge in place.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use bitnet_rs::{ContextParams, Model};
use cartridge::{Cartridge, CartridgeError};
use clap::Args;
use serde::{Deserialize, Serialize};

use super::output::{self, TextOrJson};
use super::{CliError, progress};
use crate::exit::Exit;
use agent::evaluation::redteam::{self, RedteamFailure, RedteamSuite};
use agent::evaluation::{Ratio, RedteamRun};
use agent::source::CandidateSource;
use agent_engine::{Answers, EngineSource};
use files::atomic_file::AtomicFile;
use files::children::Children;
use gguf::Sha256Hash;
use models::source::ModelSource;
use session::TemplateSandbox;

const SCHEMA: &str = "bitnet-harness.redteam/1";
/// The failures that the stored baseline has: what the embedded model does on the embedded suite.
const BASELINE: &str = include_str!("../../../gates/redteam/baseline.json");
/// Cells of the context besides those of a cartridge.
const CELLS: u32 = 512;
/// Largest receipt that is read as a baseline.
const MAX_RECEIPT: u64 = 16 << 20;

/// Options of `redteam`.
#[derive(Debug, Args)]
#[command(
    after_help = "A case that fails and does not fail in the baseline is a drop: exit code 1. Without --baseline the stored one is used, \
                  in which no case fails.\n\nExamples:\n  harness redteam --out redteam.json\n  \
                  harness redteam --model m.gguf --cartridge house.safetensors --out redteam.json --baseline previous.json"
)]
pub(crate) struct RedteamArgs {
    /// GGUF file of the model; without it the embedded model.
    #[arg(long, value_name = "GGUF")]
    model: Option<PathBuf>,
    /// Cartridge to mount under every sentence.
    #[arg(long, value_name = "FILE")]
    cartridge: Option<PathBuf>,
    /// Another suite (docs/formats/redteam.md).
    #[arg(long, value_name = "JSONL")]
    suite: Option<PathBuf>,
    /// Receipt to compare with; it must be of the same suite.
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    #[command(flatten)]
    target: output::Target,
}

#[derive(Debug, Serialize, Deserialize)]
struct Content {
    sha256: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct SuiteName {
    sha256: String,
    version: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Counts {
    total: usize,
    refused_as_expected: usize,
    failed: usize,
}

#[derive(Debug, Serialize)]
struct Receipt {
    schema: &'static str,
    model: Content,
    cartridge: Option<Content>,
    suite: SuiteName,
    counts: Counts,
    failures: Vec<RedteamFailure>,
    classes: BTreeMap<String, Ratio>,
    harness: &'static str,
}

/// What of an earlier receipt is compared.
#[derive(Debug, Deserialize)]
struct Baseline {
    schema: String,
    suite: SuiteName,
    counts: Counts,
    failures: Vec<Failed>,
}

#[derive(Debug, Deserialize)]
struct Failed {
    id: String,
}

pub(crate) fn run(args: RedteamArgs, children: &Children) -> Result<Exit, CliError> {
    let inputs = [&args.model, &args.cartridge, &args.suite, &args.baseline];
    args.target.check(inputs.into_iter().flatten())?;
    let suite = match &args.suite {
        Some(path) => RedteamSuite::load(path),
        None => RedteamSuite::embedded(),
    }
    .map_err(|e| match e {
        redteam::RedteamError::Read(agent::registry::RegistryError::Read { path, source }) => {
            super::input_error("--suite", &path, source)
        }
        e => CliError::Refused(e.to_string()),
    })?;
    let baseline = baseline(args.baseline.as_deref(), &suite)?;
    let cartridge = args.cartridge.as_deref().map(open_cartridge).transpose()?;

    let source = ModelSource::from_option(args.model);
    let (model, path) = super::load_model(&source)?;
    let refused = |what: &str, e: String| CliError::Refused(format!("{what}: {e}"));
    let model_hash = model
        .file()
        .file()
        .file_hash(&mut |_, _| ControlFlow::Continue(()))
        .map_err(|e| refused("model", e.to_string()))?;
    let proposer = proposer(&model, cartridge.as_ref().map(|(c, _)| c), children)?;

    let bar = progress::counted("attacks", suite.len());
    let tried = redteam::run(&suite, proposer, &mut |done, _| bar.set_position(done as u64));
    bar.finish_and_clear();
    drop(path);
    let tried = tried.map_err(|e| CliError::Failed(e.to_string()))?;
    let receipt = receipt(&suite, tried, model_hash, cartridge.map(|(_, hash)| hash));
    let drops = drops(&receipt, &baseline);

    let text = serde_json::to_string_pretty(&receipt).map_err(|e| CliError::Failed(e.to_string()))?;
    let mut file = AtomicFile::create(&args.target.out, args.target.overwrite()).map_err(super::output_error)?;
    std::io::Write::write_all(&mut file, format!("{text}\n").as_bytes())
        .map_err(|e| CliError::Failed(e.to_string()))?;
    file.commit().map_err(super::output_error)?;
    match args.target.format {
        TextOrJson::Json => output::print(&format!("{text}\n"))?,
        TextOrJson::Text => output::print(&told(&receipt, &drops))?,
    }
    for drop in &drops {
        output::note(format_args!("drop: {}", output::for_terminal(drop)));
    }
    Ok(if drops.is_empty() { Exit::Success } else { Exit::Fail })
}

/// The model as source of candidates, with the cartridge under every sentence.
pub(crate) fn proposer(
    model: &Model,
    cartridge: Option<&Cartridge>,
    children: &Children,
) -> Result<Box<dyn CandidateSource>, CliError> {
    let mounted = cartridge.map_or(0, |c| u32::try_from(c.tokens().count()).unwrap_or(u32::MAX));
    let defaults = ContextParams::default();
    // On a model of a few megabytes threads wait for each other longer than they work.
    let small = model.file().gguf().tensor_bytes() < 64 << 20;
    let n_threads = if small { 1 } else { defaults.n_threads };
    let params = ContextParams { n_ctx: CELLS.saturating_add(mounted), n_threads, ..defaults };
    let sandbox = TemplateSandbox::Child(children.clone());
    // Every sentence is tried twice, and the model says the same to it.
    let engine = EngineSource::new(model, &params, &sandbox).map_err(super::generate::session_error)?;
    let engine = engine.with_answers(Answers::default());
    Ok(Box::new(match cartridge {
        Some(cartridge) => engine.with_cartridge(cartridge).map_err(super::generate::session_error)?,
        None => engine,
    }))
}

pub(crate) fn open_cartridge(path: &Path) -> Result<(Cartridge, Sha256Hash), CliError> {
    let read_error = |e| super::input_error("--cartridge", path, e);
    let cartridge = Cartridge::open(path).map_err(|e| match e {
        CartridgeError::Io { source, .. } => read_error(source),
        e => CliError::Refused(format!("--cartridge {}: {e}", path.display())),
    })?;
    let hash = file_sha256(path).map_err(read_error)?;
    Ok((cartridge, hash))
}

fn file_sha256(path: &Path) -> std::io::Result<Sha256Hash> {
    // A cartridge is mapped when it is opened; what is hashed is the file as it stands.
    std::fs::read(path).map(|bytes| Sha256Hash::of(&bytes))
}

fn baseline(path: Option<&Path>, suite: &RedteamSuite) -> Result<Option<Baseline>, CliError> {
    let (name, text) = match path {
        None => ("the stored baseline".to_owned(), BASELINE.to_owned()),
        Some(path) => {
            let text = files::input_file::read_text(path, MAX_RECEIPT)
                .map_err(|e| super::input_error("--baseline", path, e.into()))?;
            (path.display().to_string(), text)
        }
    };
    let refused = |problem: String| CliError::Refused(format!("{name}: {problem}"));
    let baseline: Baseline = serde_json::from_str(&text).map_err(|e| refused(e.to_string()))?;
    if baseline.schema != SCHEMA {
        return Err(refused(format!("schema is {:?}, this program reads {SCHEMA:?}", baseline.schema)));
    }
    if baseline.counts.refused_as_expected + baseline.counts.failed != baseline.counts.total
        || baseline.failures.len() != baseline.counts.failed
    {
        return Err(refused("its counts contradict its failures".to_owned()));
    }
    if baseline.suite.sha256 != format!("sha256:{}", suite.sha256()) {
        return match path {
            // Another suite has no stored baseline: every failure counts.
            None => Ok(None),
            Some(_) => Err(refused("is of another suite; receipts of different suites cannot be compared".to_owned())),
        };
    }
    Ok(Some(baseline))
}

fn receipt(suite: &RedteamSuite, run: RedteamRun, model: Sha256Hash, cartridge: Option<Sha256Hash>) -> Receipt {
    let failed = run.failures.len();
    Receipt {
        schema: SCHEMA,
        model: Content { sha256: model.to_string() },
        cartridge: cartridge.map(|hash| Content { sha256: hash.to_string() }),
        suite: SuiteName { sha256: format!("sha256:{}", suite.sha256()), version: suite.version().to_owned() },
        counts: Counts { total: run.total, refused_as_expected: run.total - failed, failed },
        failures: run.failures,
        classes: run.classes,
        harness: env!("CARGO_PKG_VERSION"),
    }
}

/// What is worse than in the baseline; without one, every failure.
fn drops(receipt: &Receipt, baseline: &Option<Baseline>) -> Vec<String> {
    let known: BTreeSet<&str> = baseline.iter().flat_map(|b| b.failures.iter().map(|f| f.id.as_str())).collect();
    let mut drops: Vec<String> = receipt
        .failures
        .iter()
        .filter(|f| !known.contains(f.id.as_str()))
        .map(|f| format!("{} ({}): {}", f.id, f.class, f.got))
        .collect();
    if let Some(baseline) = baseline
        && receipt.counts.total < baseline.counts.total
    {
        drops.push(format!("{} cases were run, {} in the baseline", receipt.counts.total, baseline.counts.total));
    }
    drops
}

fn told(receipt: &Receipt, drops: &[String]) -> String {
    let mut text = String::new();
    for (class, ratio) in &receipt.classes {
        text.push_str(&format!("{class:<24} {:>4} of {:>4} refused\n", ratio.hits, ratio.of));
    }
    let counts = &receipt.counts;
    text.push_str(&format!(
        "{:<24} {:>4} of {:>4} refused as expected, {} worse than the baseline\nmodel     {}\ncartridge {}\nsuite     {} (version {})\n",
        "all",
        counts.refused_as_expected,
        counts.total,
        drops.len(),
        receipt.model.sha256,
        receipt.cartridge.as_ref().map_or("none", |c| c.sha256.as_str()),
        receipt.suite.sha256,
        receipt.suite.version,
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent::source::RuleSource;

    fn ran() -> (RedteamSuite, RedteamRun) {
        let suite = RedteamSuite::embedded().unwrap();
        let run = redteam::run(&suite, Box::new(RuleSource), &mut |_, _| {}).unwrap();
        (suite, run)
    }

    /// The registry reads what is written here, and refuses the next version on a drop.
    #[test]
    fn the_receipt_is_the_registrys_and_a_drop_is_told() {
        let (suite, run) = ran();
        let stored = baseline(None, &suite).unwrap();
        assert!(stored.is_some(), "gates/redteam/baseline.json is of another suite than gates/redteam/suite.jsonl");
        let mut receipt = receipt(&suite, run, Sha256Hash::of(b"m"), None);
        assert_eq!(drops(&receipt, &stored), Vec::<String>::new());
        let read =
            |receipt: &Receipt| registry::redteam::Receipt::parse("receipt", &serde_json::to_vec(receipt).unwrap());
        let good = read(&receipt).unwrap();
        assert_eq!(good.counts.total as usize, suite.len());

        receipt.failures.push(RedteamFailure { id: "r001".into(), class: "c".into(), got: "allow".into() });
        receipt.counts.failed += 1;
        receipt.counts.refused_as_expected -= 1;
        assert_eq!(drops(&receipt, &stored).len(), 1);
        let worse = read(&receipt).unwrap();
        let evidence = |r: &registry::redteam::Receipt| r.evidence(registry::Digest::of(b"r"));
        assert_eq!(evidence(&worse).drop_against(&evidence(&good)).len(), 1);
    }

    #[test]
    fn a_baseline_that_contradicts_itself_or_is_of_another_suite_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("b.json");
        let suite = RedteamSuite::embedded().unwrap();
        for (wrong, word) in [
            (BASELINE.replace("\"failed\": 0", "\"failed\": 1"), "contradict"),
            (BASELINE.replace(suite.sha256(), &"0".repeat(64)), "another suite"),
            (BASELINE.replace("redteam/1", "redteam/2"), "schema"),
        ] {
            std::fs::write(&path, wrong).unwrap();
            let error = baseline(Some(&path), &suite).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
