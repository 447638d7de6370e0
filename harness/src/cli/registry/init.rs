//! `registry init`, `keygen` and `operators`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use registry::blocking::Registry;
use registry::{Algorithm, Error, key};
use serde_json::json;

use super::place::{Where, failed, public_keys, store_to_write, tell};
use crate::cli::CliError;
use crate::cli::output::TextOrJson;
use crate::exit::Exit;

/// Options of `init`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  harness registry init --registry /srv/registry --operator operator.pub\n\nRefused for a store that accepts a second write to a name: two promotions could overwrite each other there."
)]
pub(super) struct InitArgs {
    #[command(flatten)]
    place: Where,
    /// Only look whether a registry is there.
    #[arg(long)]
    dry_run: bool,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

pub(super) fn init(args: InitArgs) -> Result<Exit, CliError> {
    let location = args.place.location()?;
    if args.place.operator.is_empty() {
        return Err(CliError::Usage(
            "--operator: name the public key of who sets policies (harness registry keygen makes one)".into(),
        ));
    }
    let operators = public_keys(&args.place.operator)?;
    let store = store_to_write(&location, args.dry_run)?;
    let made = Registry::init(&store, &operators, args.dry_run).map_err(failed)?;
    let value = json!({"registry": location.to_string(), "id": (!made.dry_run || !made.created).then_some(&made.id),
        "created": made.created, "dry_run": made.dry_run});
    tell(args.format, &value, || match (made.created, made.dry_run) {
        (true, true) => format!("would make a registry in {location}; the store was not probed\n"),
        (true, false) => format!("made the registry {} in {location}\n", made.id),
        (false, _) => format!("{location} is the registry {} with these operators already\n", made.id),
    })
}

/// What a key signs with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum KeyAlgorithm {
    /// Ed25519.
    #[default]
    Ed25519,
    /// ECDSA on P-256, for those whose consumers verify with the OpenSSF's `model_signing`.
    EcdsaP256,
}

/// Options of `keygen`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  harness registry keygen alice.key\n\nWrites alice.key (mode 600, not encrypted) and alice.key.pub. `openssl genpkey -algorithm ed25519` makes the same."
)]
pub(super) struct KeygenArgs {
    /// File of the secret key; the public one gets `.pub` behind it. Neither is ever replaced.
    key: PathBuf,
    /// What it signs with.
    #[arg(long, value_enum, default_value_t)]
    algorithm: KeyAlgorithm,
    /// Only check that the files can be made.
    #[arg(long)]
    dry_run: bool,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

pub(super) fn keygen(args: KeygenArgs) -> Result<Exit, CliError> {
    let mut public = args.key.clone().into_os_string();
    public.push(".pub");
    let public = PathBuf::from(public);
    let mut id = None;
    if args.dry_run {
        for path in [&args.key, &public] {
            if path.symlink_metadata().is_ok() {
                return Err(failed(Error::Exists { path: path.clone() }));
            }
        }
        let folder = args.key.parent().filter(|p| !p.as_os_str().is_empty());
        if folder.is_some_and(|folder| !folder.is_dir()) {
            return Err(CliError::Usage(format!("{}: its folder does not exist", args.key.display())));
        }
    } else {
        let algorithm = match args.algorithm {
            KeyAlgorithm::Ed25519 => Algorithm::Ed25519,
            KeyAlgorithm::EcdsaP256 => Algorithm::EcdsaP256,
        };
        id = Some(key::write_pair(&args.key, algorithm).map_err(failed)?.id().as_str().to_owned());
    }
    let value = json!({"key": args.key.display().to_string(), "public": public.display().to_string(), "id": id,
        "dry_run": args.dry_run});
    tell(args.format, &value, || match &id {
        Some(id) => {
            format!("wrote {} (keep it) and {} (give it away)\nid {id}\n", args.key.display(), public.display())
        }
        None => format!("would write {} and {}\n", args.key.display(), public.display()),
    })
}

/// Options of `operators`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  harness registry operators --registry /srv/registry\n  harness registry operators --registry /srv/registry --set new.key.pub\n\nThen set every channel's policy with the new key: those of an operator who is no longer named are not believed."
)]
pub(super) struct OperatorsArgs {
    #[command(flatten)]
    place: Where,
    /// Public key of an operator to name from now on, instead of those before; may be repeated. Without it, those that
    /// are believed are shown.
    #[arg(long, value_name = "KEY.pub")]
    set: Vec<PathBuf>,
    /// Change nothing.
    #[arg(long, requires = "set")]
    dry_run: bool,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

pub(super) fn operators(args: OperatorsArgs) -> Result<Exit, CliError> {
    let new = public_keys(&args.set)?;
    let registry = args.place.open()?;
    if !new.is_empty() {
        registry.set_operators(&new, args.dry_run).map_err(failed)?;
    }
    let named = if new.is_empty() { registry.inner().operators() } else { &new };
    let operators: Vec<_> = named.iter().map(|key| json!({"id": key.id(), "key": key.to_pem()})).collect();
    let value = json!({"registry": registry.inner().id(), "operators": operators, "changed": !new.is_empty() && !args.dry_run,
        "dry_run": args.dry_run});
    tell(args.format, &value, || {
        let verb = match (new.is_empty(), args.dry_run) {
            (true, _) => "believed",
            (false, true) => "would be named",
            (false, false) => "named from now on",
        };
        named.iter().map(|key| format!("{verb}: {}\n", key.id())).collect()
    })
}
