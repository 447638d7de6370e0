//! `harness model pull`: a model's files from a hub.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::super::output::{self, TextOrJson};
use super::super::{CliError, is_wrong_path, output_error, progress};
use crate::exit::Exit;
use crate::interrupt;
use models::pull::{self, PullError, PullOptions};

#[derive(Debug, Args)]
#[command(
    after_help = "Reads HF_ENDPOINT (another hub or a mirror), HF_TOKEN (gated models), HF_HUB_DOWNLOAD_TIMEOUT (seconds\nwithout data before a connection counts as dead, 30) and SSL_CERT_FILE (PEM file of trusted certificates in place of\nthe built-in ones).\n\nExamples:\n  harness model pull microsoft/bitnet-b1.58-2B-4T-bf16 --out bitnet-2b\n  harness model pull microsoft/bitnet-b1.58-2B-4T-gguf --file ggml-model-i2_s.gguf --out models"
)]
pub(super) struct PullArgs {
    /// owner/name on the hub.
    repository: String,
    /// Branch, tag or commit.
    #[arg(long, default_value = "main")]
    revision: String,
    /// Fetch this file; may be given several times. Without it: what `model convert` needs, or the GGUF files.
    #[arg(long = "file", value_name = "NAME")]
    files: Vec<String>,
    /// Folder to write to; the repository's name without.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Replace files that are there and differ.
    #[arg(long)]
    force: bool,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

fn failure(e: PullError) -> CliError {
    match e {
        PullError::Cancelled => CliError::Interrupted,
        PullError::Argument { .. }
        | PullError::Certificates { .. }
        | PullError::Exists { .. }
        | PullError::NoFile { .. } => CliError::Usage(e.to_string()),
        PullError::Target(e) => output_error(e),
        // A file stands where the folder should be.
        PullError::Io { ref source, .. } if is_wrong_path(source) || source.kind() == ErrorKind::AlreadyExists => {
            CliError::Usage(e.to_string())
        }
        PullError::Mismatch { .. } | PullError::Listing { .. } => CliError::Refused(e.to_string()),
        other => CliError::Failed(other.to_string()),
    }
}

/// A variable's value, if it has one.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Named as the hub's own tool names it.
fn patience() -> Result<Duration, CliError> {
    let Some(given) = variable("HF_HUB_DOWNLOAD_TIMEOUT") else { return Ok(pull::PATIENCE) };
    match given.parse().ok().filter(|seconds| (1..=3600).contains(seconds)) {
        Some(seconds) => Ok(Duration::from_secs(seconds)),
        None => Err(CliError::Usage(format!("HF_HUB_DOWNLOAD_TIMEOUT={given}: 1 to 3600 seconds are taken"))),
    }
}

pub(super) fn run(args: PullArgs) -> Result<Exit, CliError> {
    let name = args.repository.rsplit('/').next().unwrap_or_default().to_owned();
    let options = PullOptions {
        endpoint: variable("HF_ENDPOINT").unwrap_or_else(|| pull::DEFAULT_ENDPOINT.to_owned()),
        repository: args.repository,
        revision: args.revision,
        files: args.files,
        token: variable("HF_TOKEN"),
        folder: args.out.unwrap_or_else(|| PathBuf::from(name)),
        force: args.force,
        patience: patience()?,
        certificates: variable("SSL_CERT_FILE").map(PathBuf::from),
    };
    let interrupted = interrupt::cooperate(|| {});
    let bar = progress::bytes("fetching", 0);
    let result = pull::pull(
        &options,
        &mut |file, done, total| {
            bar.set_prefix(file.to_owned());
            bar.set_length(total);
            bar.set_position(done);
        },
        &interrupted,
    );
    bar.finish_and_clear();
    let done = result.map_err(failure)?;
    output::print(&match args.format {
        TextOrJson::Json => output::json(&done)?,
        TextOrJson::Text => {
            let mut text = format!("{} at {}\n", options.repository, done.commit);
            for f in &done.files {
                let how = if f.fetched > 0 { "fetched" } else { "was there" };
                text += &format!("{:<32} {:>13} bytes {how}, {}\n", f.file.name, f.file.size, f.file.hash);
            }
            text
        }
    })?;
    Ok(Exit::Success)
}
