//! `registry promote`, `rollback` and `gc`: what moves a pointer, and what removes things.

use std::path::PathBuf;

use clap::Args;
use registry::{ChannelName, Digest, Error, Promoted};
use serde_json::json;

use super::place::{Where, Why, failed, secret_key, tell, who, word};
use crate::cli::CliError;
use crate::cli::output::{self, TextOrJson};
use crate::exit::Exit;

/// Options of `promote`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  harness registry promote stable sha256:9b1c… --key alice.key --why \"new opening hours\"\n\nExit code 4 with every reason when the channel's policy refuses the version; --format json prints them, too."
)]
pub(super) struct PromoteArgs {
    /// The channel.
    channel: ChannelName,
    /// The version, as `push` and `list` print it.
    #[arg(value_parser = Digest::parse)]
    version: Digest,
    #[command(flatten)]
    place: Where,
    /// Secret key with the role `promote`.
    #[arg(long, value_name = "KEY")]
    key: PathBuf,
    #[command(flatten)]
    why: Why,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

/// Options of `rollback`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  harness registry rollback stable --key alice.key --why \"wrong hours\"\n  harness registry rollback stable --to 3 --key alice.key --why \"wrong hours\""
)]
pub(super) struct RollbackArgs {
    /// The channel.
    channel: ChannelName,
    /// Number of the record to go back to; without it the newest one with another version.
    #[arg(long, value_name = "N")]
    to: Option<u64>,
    #[command(flatten)]
    place: Where,
    /// Secret key with the role `promote`.
    #[arg(long, value_name = "KEY")]
    key: PathBuf,
    #[command(flatten)]
    why: Why,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

fn moved(promoted: &Promoted, format: TextOrJson) -> Result<Exit, CliError> {
    for warning in &promoted.warnings {
        output::note(format_args!("warning: {}", output::for_terminal(warning)));
    }
    tell(format, promoted, || {
        let Promoted { channel, version, number, .. } = promoted;
        match (promoted.changed, promoted.dry_run) {
            (true, true) => format!("would point {channel} at {version} (record {number})\n"),
            (true, false) => format!("{channel} points at {version} (record {number})\n"),
            (false, _) => format!("{channel} points at {version} already (record {number})\n"),
        }
    })
}

/// A refusal is a result, for machines too; the reasons go to stderr in any case.
fn refused(e: Error, format: TextOrJson, dry_run: bool) -> CliError {
    if let (Error::Refused { version, channel, reasons }, TextOrJson::Json) = (&e, format) {
        let value =
            json!({"channel": channel, "version": version, "changed": false, "dry_run": dry_run, "refusals": reasons});
        let printed = output::json(&value).and_then(|text| output::print(&text));
        if let Err(e) = printed {
            return e;
        }
    }
    failed(e)
}

pub(super) fn promote(args: PromoteArgs) -> Result<Exit, CliError> {
    let key = secret_key(&args.key)?;
    let registry = args.place.open()?;
    let decision = args.why.decision();
    match registry.promote(&args.channel, args.version, &key, &decision) {
        Ok(promoted) => moved(&promoted, args.format),
        Err(e) => Err(refused(e, args.format, decision.dry_run)),
    }
}

pub(super) fn rollback(args: RollbackArgs) -> Result<Exit, CliError> {
    let key = secret_key(&args.key)?;
    let registry = args.place.open()?;
    let decision = args.why.decision();
    match registry.rollback(&args.channel, args.to, &key, &decision) {
        Ok(promoted) => moved(&promoted, args.format),
        Err(e) => Err(refused(e, args.format, decision.dry_run)),
    }
}

/// Options of `gc`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  harness registry gc --registry /srv/registry\n  harness registry gc --registry /srv/registry --yes\n\nKept are what a channel points at, what its log reaches within the policy's retention, and everything younger than 24 hours."
)]
pub(super) struct GcArgs {
    #[command(flatten)]
    place: Where,
    /// Remove it.
    #[arg(long)]
    yes: bool,
    /// Only say what would be removed; that is what happens without --yes.
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
    /// Who, for those who are told to wait; $USER without it.
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

pub(super) fn gc(args: GcArgs) -> Result<Exit, CliError> {
    let registry = args.place.open()?;
    let collected = registry.gc(&who(args.by.as_deref()), args.yes).map_err(failed)?;
    tell(args.format, &collected, || {
        let verb = if collected.dry_run { "would remove" } else { "removed" };
        let mut text = String::new();
        for kept in &collected.kept {
            text.push_str(&format!("keep {} ({})\n", kept.version, word(&kept.why)));
        }
        for version in &collected.manifests {
            text.push_str(&format!("{verb} version {version}\n"));
        }
        for blob in &collected.blobs {
            text.push_str(&format!("{verb} blob {blob}\n"));
        }
        for path in &collected.staging {
            text.push_str(&format!("{verb} {}\n", word(path)));
        }
        text + &format!("{verb} {} bytes\n", collected.bytes)
    })
}
