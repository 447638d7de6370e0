//! `registry pull` and `mirror`.

use std::path::PathBuf;

use clap::Args;
use registry::Target;
use serde_json::{Value, json};

use super::place::{Where, failed, location, store_to_write, tell};
use crate::cli::output::{self, TextOrJson};
use crate::cli::{CliError, not_an_input};
use crate::exit::Exit;

/// Options of `pull`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  harness registry pull stable --registry /srv/registry --out rules\n  harness registry pull sha256:9b1c… --registry /srv/registry --out rules --artifact-only\n\nThe folder gets the files and model.sig, last of all: with it the folder is complete. Every file is verified."
)]
pub(super) struct PullArgs {
    /// A channel, for what it points at, or a version.
    #[arg(value_parser = Target::parse)]
    target: Target,
    #[command(flatten)]
    place: Where,
    /// Folder to write to; made if it is missing.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Leave reports and sources out.
    #[arg(long)]
    artifact_only: bool,
    /// Replace files of the same names.
    #[arg(long)]
    force: bool,
    /// Check everything but the files' content, write nothing.
    #[arg(long)]
    dry_run: bool,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

pub(super) fn pull(args: PullArgs) -> Result<Exit, CliError> {
    let registry = args.place.open()?;
    let pulled =
        registry.pull(&args.target, &args.out, args.artifact_only, args.force, args.dry_run).map_err(failed)?;
    if !pulled.key_trusted {
        output::note(format_args!(
            "warning: no channel vouches for {}; it is what its name says, signed by {}",
            pulled.version, pulled.key
        ));
    }
    let mut value = serde_json::to_value(&pulled).map_err(|e| CliError::Failed(format!("JSON: {e}")))?;
    // A pair in the library; two names are clearer to a reader who does not know it.
    let channel = pulled.channel.as_ref();
    value["channel"] = channel.map_or(Value::Null, |(name, number)| json!({"name": name, "number": number}));
    tell(args.format, &value, || {
        let verb = if pulled.dry_run { "would write" } else { "wrote" };
        let files: String = pulled.files.iter().map(|path| format!("  {}\n", path.display())).collect();
        format!("{} {verb} {} files\n{files}", pulled.version, pulled.files.len())
    })
}

/// Options of `mirror`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  harness registry mirror --registry /srv/registry --to s3://backup/registry\n\nBoth S3 stores of a pair take the same AWS_… variables; between two servers go by way of a folder."
)]
pub(super) struct MirrorArgs {
    #[command(flatten)]
    place: Where,
    /// The other store: a folder or s3://BUCKET[/PREFIX].
    #[arg(long, value_name = "URL")]
    to: String,
    /// Only say what would be copied.
    #[arg(long)]
    dry_run: bool,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

pub(super) fn mirror(args: MirrorArgs) -> Result<Exit, CliError> {
    let (from, to) = (args.place.location()?, location(&args.to)?);
    if from == to {
        return Err(CliError::Usage(format!("--to {to} is the registry itself; name another store")));
    }
    if let (registry::Location::Folder(from), registry::Location::Folder(to)) = (&from, &to) {
        not_an_input("--to", to, [from])?;
    }
    let registry = args.place.open()?;
    let target = store_to_write(&to, args.dry_run)?;
    let mirrored = registry.mirror(&target, args.dry_run).map_err(failed)?;
    tell(args.format, &mirrored, || {
        let verb = if mirrored.dry_run { "would copy" } else { "copied" };
        format!(
            "{} channels; {verb} {} policies, {} records, {} versions, {} blobs ({} bytes)\n",
            mirrored.channels, mirrored.policies, mirrored.records, mirrored.manifests, mirrored.blobs, mirrored.bytes
        )
    })
}
