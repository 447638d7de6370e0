//! `registry push`: an artefact and what travels with it, signed, into a registry.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use ::cartridge::{Cartridge, CartridgeError, Level};
use clap::Args;
use models::source::ModelSource;
use registry::{Digest, FileInput, FileName, Kind, Parent, PushRequest, Role};

use super::place::{Where, failed, secret_key, tell, who};
use super::policy::model_of;
use crate::cli::output::TextOrJson;
use crate::cli::{CliError, input_error};
use crate::exit::Exit;

/// Options of `push`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  harness registry push rules.safetensors --name rules --key alice.key --licence CC0-1.0 \\\n    --gate-report gates.json --redteam redteam.json --redteam-suite suite.json --source-text rules.txt\n\nInterrupted, it is run again: what has arrived is not sent a second time."
)]
pub(super) struct PushArgs {
    /// The cartridge (safetensors) or model (GGUF).
    artifact: PathBuf,
    #[command(flatten)]
    place: Where,
    /// Secret key with the role `sign`.
    #[arg(long, value_name = "KEY")]
    key: PathBuf,
    /// What the artefact is called, the same from version to version.
    #[arg(long)]
    name: FileName,
    /// Report of `harness gates --format json`.
    #[arg(long, value_name = "FILE")]
    gate_report: Option<PathBuf>,
    /// Receipt of the red-team suite.
    #[arg(long, value_name = "FILE", requires = "redteam_suite")]
    redteam: Option<PathBuf>,
    /// The red-team suite.
    #[arg(long, value_name = "FILE")]
    redteam_suite: Option<PathBuf>,
    /// The judge's report.
    #[arg(long, value_name = "FILE")]
    judge: Option<PathBuf>,
    /// The text that the cartridge stands for; may be repeated.
    #[arg(long, value_name = "FILE")]
    source_text: Vec<PathBuf>,
    /// The full cartridge that this one was made from.
    #[arg(long, value_name = "FILE")]
    full_cartridge: Option<PathBuf>,
    /// How it was made.
    #[arg(long, value_name = "FILE")]
    recipe: Option<PathBuf>,
    /// The licence's text.
    #[arg(long, value_name = "FILE")]
    licence_file: Option<PathBuf>,
    /// Another file that shall travel along; may be repeated.
    #[arg(long, value_name = "FILE")]
    other: Vec<PathBuf>,
    /// What it was made from and is not stored: `full-cartridge=sha256:…`, and a title behind a comma; may be repeated.
    #[arg(long, value_name = "ROLE=DIGEST[,TITLE]")]
    parent: Vec<String>,
    /// Licence: an SPDX expression or a sentence.
    #[arg(long, value_name = "TEXT")]
    licence: String,
    /// A note for people; at most 2,000 bytes.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    note: String,
    /// Who, for people; $USER without it.
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// Hash, read and check everything, write nothing.
    #[arg(long)]
    dry_run: bool,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

fn parent(given: &str) -> Result<Parent, CliError> {
    let wrong = |problem: String| CliError::Usage(format!("--parent {given}: {problem}"));
    let (role, rest) = given.split_once('=').ok_or_else(|| wrong("give ROLE=DIGEST".into()))?;
    let (digest, title) = rest.split_once(',').unwrap_or((rest, ""));
    let role = serde_json::from_value::<Role>(role.into()).map_err(|e| wrong(e.to_string()))?;
    Ok(Parent { role, sha256: Digest::parse(digest).map_err(|e| wrong(e.to_string()))?, title: title.into() })
}

/// What the file begins with decides: a GGUF is a model.
fn kind(path: &Path) -> Result<Kind, CliError> {
    let wrong = |e| input_error("artefact", path, e);
    // Not through a pipe, on which opening would wait.
    if !std::fs::metadata(path).map_err(wrong)?.is_file() {
        return Err(CliError::Refused(format!("artefact {}: not a regular file", path.display())));
    }
    let mut magic = Vec::new();
    std::fs::File::open(path).and_then(|file| file.take(4).read_to_end(&mut magic)).map_err(wrong)?;
    Ok(if magic == b"GGUF" { Kind::Model } else { Kind::Cartridge })
}

/// What could never be mounted is told now, by the one who can mend it.
fn check_cartridge(path: &Path) -> Result<(), CliError> {
    let outcome = Cartridge::open(path).and_then(|cartridge| cartridge.validate(Level::Full));
    outcome.map_err(|e| match e {
        CartridgeError::Io { source, .. } => input_error("artefact", path, source),
        e => CliError::Refused(format!("artefact {}: {e}", path.display())),
    })
}

pub(super) fn run(args: PushArgs) -> Result<Exit, CliError> {
    let kind = kind(&args.artifact)?;
    let parents = args.parent.iter().map(|given| parent(given)).collect::<Result<Vec<_>, _>>()?;
    let key = secret_key(&args.key)?;
    let registry = args.place.open()?;
    let model = match kind {
        Kind::Model => Some(model_of(&ModelSource::File(args.artifact.clone()))?.0),
        Kind::Cartridge => {
            check_cartridge(&args.artifact)?;
            None
        }
    };
    let input = |role, path: &PathBuf| FileInput { role, name: None, path: path.clone() };
    let mut files = vec![input(kind.role(), &args.artifact)];
    for (role, path) in [
        (Role::GateReport, &args.gate_report),
        (Role::Redteam, &args.redteam),
        (Role::RedteamSuite, &args.redteam_suite),
        (Role::Judge, &args.judge),
        (Role::FullCartridge, &args.full_cartridge),
        (Role::Recipe, &args.recipe),
        (Role::Licence, &args.licence_file),
    ] {
        files.extend(path.as_ref().map(|path| input(role, path)));
    }
    files.extend(args.source_text.iter().map(|path| input(Role::SourceText, path)));
    files.extend(args.other.iter().map(|path| input(Role::Other, path)));
    let request = PushRequest {
        kind,
        name: args.name,
        model,
        files,
        parents,
        licence: args.licence,
        note: args.note,
        by: who(args.by.as_deref()),
        dry_run: args.dry_run,
    };
    let pushed = registry.push(&request, &key).map_err(failed)?;
    tell(args.format, &pushed, || {
        let mut text = String::new();
        for file in &pushed.files {
            let sent = match (pushed.dry_run, file.sent) {
                (true, _) => "read",
                (false, true) => "sent",
                (false, false) => "there already",
            };
            let entry = &file.entry;
            text.push_str(&format!(
                "{:<14} {} {} bytes {}: {sent}\n",
                entry.role.as_str(),
                entry.sha256,
                entry.size,
                entry.name
            ));
        }
        let verb = match (pushed.dry_run, pushed.created) {
            (true, _) => "would push",
            (false, true) => "pushed",
            (false, false) => "there already:",
        };
        text + &format!("{verb} {}\n", pushed.version)
    })
}
