//! `registry policy`: what a channel demands of its versions, and whose signatures count.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use files::input_file;
use gguf::{Limits, ModelFile};
use models::source::ModelSource;
use registry::{
    ChannelName, Digest, KeyRole, KeyState, Kind, ModelLock, ModelRule, Policy, PublicKey, RedteamRule, Retention,
    Rules, TrustedKey,
};
use serde_json::json;

use super::place::{Where, Why, failed, secret_key, tell, word};
use crate::cli::output::{self, TextOrJson};
use crate::cli::{CliError, input_error, model_error, model_path, progress};
use crate::exit::Exit;

/// Largest file of rules, in bytes; a policy has at most 256 KiB.
const MAX_RULES: u64 = 1 << 20;

/// Options of `policy`.
#[derive(Debug, Args)]
pub(super) struct PolicyArgs {
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(Debug, Subcommand)]
enum PolicyCommand {
    /// Print rules for a model and keys, to be edited and set.
    Draft(DraftArgs),
    /// Set a channel's rules; the first time that makes the channel.
    Set(SetArgs),
    /// A channel's policy.
    Show(ShowArgs),
}

/// What a channel carries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Carries {
    /// Cartridges of one model.
    #[default]
    Cartridge,
    /// Models.
    Model,
}

/// Options of `policy draft`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  harness registry policy draft --key alice=alice.key.pub --gates 0,1,3a,3b --redteam 0 > rules.toml"
)]
struct DraftArgs {
    /// What the channel carries.
    #[arg(long, value_enum, default_value_t)]
    carries: Carries,
    /// GGUF file of the model that cartridges must be locked to; without it the embedded model.
    #[arg(long, value_name = "GGUF")]
    model: Option<PathBuf>,
    /// Gates that must be PASS, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "0,1,2,3a,3b")]
    gates: Vec<String>,
    /// A report of `gates --quick` counts.
    #[arg(long)]
    quick: bool,
    /// A red-team receipt is demanded, with at most N failed cases.
    #[arg(long, value_name = "N")]
    redteam: Option<u64>,
    /// A judge's report is demanded.
    #[arg(long)]
    judge: bool,
    /// A public key that signs versions and promotes, with its owner's name; may be repeated.
    #[arg(long, value_name = "NAME=KEY.pub", required = true)]
    key: Vec<String>,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

/// Options of `policy set`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  harness registry policy set stable --rules rules.toml --operator-key operator.key --why \"first policy\"\n\nTo change a policy: `policy show stable --rules > rules.toml`, edit, set. A key is taken back with state = \"retired\" (what it promoted is served on) or \"revoked\" (for good)."
)]
struct SetArgs {
    /// The channel.
    channel: ChannelName,
    #[command(flatten)]
    place: Where,
    /// File with the rules, TOML or JSON (docs/formats/registry.md).
    #[arg(long, value_name = "FILE")]
    rules: PathBuf,
    /// Secret key of an operator.
    #[arg(long, value_name = "KEY")]
    operator_key: PathBuf,
    #[command(flatten)]
    why: Why,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

/// Options of `policy show`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  harness registry policy show stable\n  harness registry policy show stable --rules > rules.toml"
)]
struct ShowArgs {
    /// The channel.
    channel: ChannelName,
    #[command(flatten)]
    place: Where,
    /// Only the rules, as `policy set` takes them.
    #[arg(long)]
    rules: bool,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

pub(super) fn run(args: PolicyArgs) -> Result<Exit, CliError> {
    match args.command {
        PolicyCommand::Draft(args) => draft(args),
        PolicyCommand::Set(args) => set(args),
        PolicyCommand::Show(args) => show(args),
    }
}

/// A model's hashes, and that of its file, computed anew: they decide what is served.
pub(super) fn model_of(source: &ModelSource) -> Result<(ModelLock, Digest), CliError> {
    let path = model_path(source)?;
    let refused = |e| model_error(source, e);
    let file = ModelFile::open(path.as_path(), &Limits::default()).map_err(refused)?;
    let bar = progress::bytes("hashing the model", 0);
    let mut tell = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
        ControlFlow::Continue(())
    };
    let hashes =
        file.file().weights_hash(&mut tell).and_then(|weights| Ok((weights, file.file().file_hash(&mut tell)?)));
    bar.finish_and_clear();
    let (weights, content) = hashes.map_err(refused)?;
    let digest = |hash: String| Digest::parse(&hash).map_err(|e| failed(e.into()));
    let lock = cartridge::ModelLock::of(file.info(), weights, "");
    let lock = ModelLock {
        model_id: lock.model_id,
        model_arch_hash: digest(lock.model_arch_hash)?,
        model_weights_hash: digest(lock.model_weights_hash)?,
        tokenizer_hash: digest(lock.tokenizer_hash)?,
    };
    Ok((lock, digest(content.to_string())?))
}

fn toml(rules: &Rules) -> Result<String, CliError> {
    toml::to_string_pretty(rules).map_err(|e| CliError::Failed(format!("TOML: {e}")))
}

fn draft(args: DraftArgs) -> Result<Exit, CliError> {
    let mut keys = Vec::new();
    for given in &args.key {
        let (name, path) = given
            .split_once('=')
            .ok_or_else(|| CliError::Usage(format!("--key {given}: give NAME=KEY.pub, alice=alice.key.pub say")))?;
        keys.push(TrustedKey {
            name: name.into(),
            key: PublicKey::read(Path::new(path)).map_err(failed)?,
            roles: vec![KeyRole::Sign, KeyRole::Promote],
            state: KeyState::Active,
            since: None,
        });
    }
    let (kind, model) = match args.carries {
        Carries::Model if args.model.is_none() => (Kind::Model, None),
        carries => {
            let (lock, file) = model_of(&ModelSource::from_option(args.model))?;
            let kind = if carries == Carries::Model { Kind::Model } else { Kind::Cartridge };
            (kind, Some(ModelRule { lock, files: vec![file] }))
        }
    };
    let rules = Rules {
        kind,
        model,
        gates: args.gates,
        quick: args.quick,
        gates_name_artifact: false,
        redteam: args.redteam.map(|max_failed| RedteamRule { suite: None, max_failed }),
        judge: args.judge,
        keys,
        retention: Retention::default(),
    };
    let text = toml(&rules)?;
    tell(args.format, &rules, || text)
}

fn read_rules(path: &Path) -> Result<Rules, CliError> {
    let text = input_file::read_text(path, MAX_RULES).map_err(|e| input_error("--rules", path, e.into()))?;
    let refused = |e: String| CliError::Refused(format!("--rules {}: {e}", path.display()));
    if text.trim_start().starts_with('{') {
        serde_json::from_str(&text).map_err(|e| refused(e.to_string()))
    } else {
        toml::from_str(&text).map_err(|e| refused(e.to_string()))
    }
}

fn document(channel: &ChannelName, policy: &Policy, dry_run: bool) -> serde_json::Value {
    json!({"channel": channel, "serial": policy.serial(), "sha256": policy.digest(), "previous": policy.previous(),
        "key": policy.key(), "by": policy.by(), "why": policy.why(), "rules": policy.rules(), "dry_run": dry_run})
}

fn set(args: SetArgs) -> Result<Exit, CliError> {
    let rules = read_rules(&args.rules)?;
    let operator = secret_key(&args.operator_key)?;
    let registry = args.place.open()?;
    let policy = registry.set_policy(&args.channel, rules, &operator, &args.why.decision()).map_err(failed)?;
    let dry_run = args.why.dry_run;
    tell(args.format, &document(&args.channel, &policy, dry_run), || {
        let verb = if dry_run { "would set" } else { "set" };
        format!("{verb} policy {} of channel {}\n", policy.serial(), args.channel)
    })
}

fn show(args: ShowArgs) -> Result<Exit, CliError> {
    let registry = args.place.open()?;
    let state = registry.channel(&args.channel).map_err(failed)?;
    let policy = &state.policy;
    for warning in &state.warnings {
        output::note(format_args!("warning: {}", output::for_terminal(warning)));
    }
    let rules = toml(policy.rules())?;
    if args.rules {
        return tell(args.format, policy.rules(), || rules);
    }
    tell(args.format, &document(&args.channel, policy, false), || {
        let head = format!(
            "policy {} of channel {}, by {} ({}): {}\n",
            policy.serial(),
            args.channel,
            word(policy.by()),
            policy.key(),
            word(policy.why())
        );
        head + "\n" + &rules
    })
}
