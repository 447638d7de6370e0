//! `harness registry`: versions and channels of cartridges and models, in a folder or an S3 store.

mod cartridge;
mod change;
mod init;
mod look;
mod place;
mod policy;
mod pull;
mod push;

use clap::{Args, Subcommand};

use super::CliError;
use crate::exit::Exit;

pub(super) use cartridge::from_registry;
pub(super) use place::Where;

/// Options of `registry`.
#[derive(Debug, Args)]
#[command(
    after_help = "A registry is a folder, or s3://BUCKET[/PREFIX] with the usual AWS_… variables (docs/formats/registry.md). \
                  $BITNET_REGISTRY stands for --registry.\n\nExample:\n  harness registry list --registry /srv/registry"
)]
pub(crate) struct RegistryArgs {
    #[command(subcommand)]
    command: RegistryCommand,
}

#[derive(Debug, Subcommand)]
enum RegistryCommand {
    /// Make a registry, after a probe whether its store can hold one.
    Init(init::InitArgs),
    /// Make a key pair that signs versions, promotions or policies.
    Keygen(init::KeygenArgs),
    /// Name other operators.
    Operators(init::OperatorsArgs),
    /// Draft, set and show what a channel demands of its versions.
    Policy(policy::PolicyArgs),
    /// Store a signed version: the artefact, its reports, what it was made from.
    Push(Box<push::PushArgs>),
    /// List channels and versions.
    List(look::ListArgs),
    /// What a channel points at, or a version, in detail.
    Show(look::ShowArgs),
    /// Point a channel at a version, if its policy allows it.
    Promote(change::PromoteArgs),
    /// Point a channel at what an earlier record pointed at.
    Rollback(change::RollbackArgs),
    /// The records of a channel, newest first.
    Log(look::LogArgs),
    /// Fetch a version's files, verified.
    Pull(pull::PullArgs),
    /// Check every object, link and signature.
    Verify(look::VerifyArgs),
    /// Remove what no channel's log can reach within its retention; only says what, unless told --yes.
    Gc(change::GcArgs),
    /// Copy the registry into another store, verified on the way.
    Mirror(pull::MirrorArgs),
}

pub(crate) fn run(args: RegistryArgs) -> Result<Exit, CliError> {
    match args.command {
        RegistryCommand::Init(args) => init::init(args),
        RegistryCommand::Keygen(args) => init::keygen(args),
        RegistryCommand::Operators(args) => init::operators(args),
        RegistryCommand::Policy(args) => policy::run(args),
        RegistryCommand::Push(args) => push::run(*args),
        RegistryCommand::List(args) => look::list(args),
        RegistryCommand::Show(args) => look::show(args),
        RegistryCommand::Promote(args) => change::promote(args),
        RegistryCommand::Rollback(args) => change::rollback(args),
        RegistryCommand::Log(args) => look::log(args),
        RegistryCommand::Pull(args) => pull::pull(args),
        RegistryCommand::Verify(args) => look::verify(args),
        RegistryCommand::Gc(args) => change::gc(args),
        RegistryCommand::Mirror(args) => pull::mirror(args),
    }
}
