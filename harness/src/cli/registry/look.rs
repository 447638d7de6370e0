//! `registry list`, `show`, `log` and `verify`: what a registry says about itself.

use clap::Args;
use registry::{Action, ChannelName, Target, Version};
use serde_json::json;

use super::place::{Where, failed, tell, time, word};
use crate::cli::CliError;
use crate::cli::output::TextOrJson;
use crate::exit::Exit;

/// Options of `list`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  harness registry list --registry /srv/registry --format json")]
pub(super) struct ListArgs {
    #[command(flatten)]
    place: Where,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

pub(super) fn list(args: ListArgs) -> Result<Exit, CliError> {
    let registry = args.place.open()?;
    let listing = registry.list().map_err(failed)?;
    tell(args.format, &listing, || {
        let mut text = format!("registry {}\n", listing.id);
        for channel in &listing.channels {
            let points = match (&channel.version, channel.number) {
                (Some(version), Some(number)) => format!("{version} (record {number})"),
                _ if channel.problem.is_some() => "?".into(),
                _ => "nothing yet".into(),
            };
            text.push_str(&format!("channel {} → {points}\n", word(&channel.channel)));
            if let Some(problem) = &channel.problem {
                text.push_str(&format!("  not believed: {}\n", word(problem)));
            }
        }
        for version in &listing.versions {
            let what = match (&version.kind, &version.name, version.size) {
                (Some(kind), Some(name), Some(size)) => format!("{} {name}, {size} bytes", kind.role().as_str()),
                _ => format!("unreadable: {}", word(version.problem.as_deref().unwrap_or("no reason"))),
            };
            let stored = time(u64::try_from(version.stored_unix).unwrap_or(0));
            let channels: String = version.channels.iter().map(|name| format!(" · {name}")).collect();
            text.push_str(&format!("{} {what}, {stored}{channels}\n", version.version));
        }
        text
    })
}

/// Options of `show`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  harness registry show stable --registry /srv/registry\n  harness registry show sha256:9b1c… --registry /srv/registry\n\nWhat is not believed is shown, too, with the reason, and ends with exit code 4."
)]
pub(super) struct ShowArgs {
    /// A channel, or a version.
    #[arg(value_parser = Target::parse)]
    target: Target,
    #[command(flatten)]
    place: Where,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

fn version_text(manifest: &Version) -> String {
    let model = &manifest.model;
    let mut text = format!(
        "{} {}\nmodel    {}\n  arch {}\n  weights {}\n  tokenizer {}\n",
        manifest.kind.role().as_str(),
        manifest.name,
        word(&model.model_id),
        model.model_arch_hash,
        model.model_weights_hash,
        model.tokenizer_hash
    );
    for file in &manifest.files {
        text.push_str(&format!("{:<14} {} {} bytes {}\n", file.role.as_str(), file.sha256, file.size, file.name));
    }
    for parent in &manifest.parents {
        text.push_str(&format!("from {:<9} {} {}\n", parent.role.as_str(), parent.sha256, word(&parent.title)));
    }
    for (name, value) in [("licence", &manifest.licence), ("note", &manifest.note), ("by", &manifest.by)] {
        if !value.is_empty() {
            text.push_str(&format!("{name:<8} {}\n", word(value)));
        }
    }
    text
}

pub(super) fn show(args: ShowArgs) -> Result<Exit, CliError> {
    let registry = args.place.open()?;
    let shown = registry.show(&args.target).map_err(failed)?;
    tell(args.format, &shown, || {
        let mut text = format!("{}\n{}signed by {}\n", shown.version, version_text(&shown.manifest), shown.key);
        if let Some(record) = &shown.record {
            text.push_str(&format!(
                "channel {}, record {} ({}), by {}: {}\n",
                record.channel,
                record.number,
                time(record.when_unix),
                word(&record.by),
                word(&record.why)
            ));
        }
        if let Some(policy) = &shown.policy {
            let gates = policy.rules.gates.join(", ");
            text.push_str(&format!("policy {} demands PASS of gates: {}\n", policy.serial, word(gates)));
        }
        for warning in &shown.warnings {
            text.push_str(&format!("warning: {}\n", word(warning)));
        }
        text
    })?;
    let reasons =
        shown.problem.iter().cloned().chain(shown.refusals.iter().map(|r| format!("{}: {}", r.code, r.message)));
    let reasons: Vec<String> = reasons.collect();
    if reasons.is_empty() {
        return Ok(Exit::Success);
    }
    Err(CliError::Refused(format!("the channel serves nothing:\n  - {}", reasons.join("\n  - "))))
}

/// Options of `log`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  harness registry log stable --registry /srv/registry --limit 5")]
pub(super) struct LogArgs {
    /// The channel.
    channel: ChannelName,
    /// Most records to show.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    limit: u64,
    #[command(flatten)]
    place: Where,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

pub(super) fn log(args: LogArgs) -> Result<Exit, CliError> {
    let registry = args.place.open()?;
    let records = registry.log(&args.channel, args.limit).map_err(failed)?;
    tell(args.format, &json!({"channel": args.channel, "records": records}), || {
        let line = |record: &registry::LoggedRecord| {
            let body = &record.body;
            let action = match (body.action, body.restores) {
                (Action::Rollback, Some(to)) => format!("rollback to {to}"),
                _ => "promote".into(),
            };
            let problem = record.problem.as_ref().map(|p| format!("  no longer counts: {}\n", word(p)));
            format!(
                "{} {} {action} {} by {}: {}\n{}",
                body.number,
                time(body.when_unix),
                body.version,
                word(&body.by),
                word(&body.why),
                problem.unwrap_or_default()
            )
        };
        if records.is_empty() { "nothing was promoted yet\n".into() } else { records.iter().map(line).collect() }
    })
}

/// Options of `verify`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  harness registry verify --registry /srv/registry\n\nReads every byte of the registry. Exit code 1 when something does not hold."
)]
pub(super) struct VerifyArgs {
    #[command(flatten)]
    place: Where,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

pub(super) fn verify(args: VerifyArgs) -> Result<Exit, CliError> {
    let registry = args.place.open()?;
    let verified = registry.verify().map_err(failed)?;
    tell(args.format, &verified, || {
        let findings: String =
            verified.findings.iter().map(|f| format!("{}: {}\n", word(&f.object), word(&f.problem))).collect();
        findings
            + &format!(
                "{} channels, {} policies, {} records, {} versions, {} blobs ({} bytes): {}\n",
                verified.channels,
                verified.policies,
                verified.records,
                verified.manifests,
                verified.blobs,
                verified.bytes,
                match verified.findings.len() {
                    0 => "all hold".into(),
                    n => format!("{n} do not hold"),
                }
            )
    })?;
    Ok(if verified.findings.is_empty() { Exit::Success } else { Exit::Fail })
}
