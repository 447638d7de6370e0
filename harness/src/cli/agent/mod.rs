//! `harness agent`: the boundary, with rules alone or with a model that proposes.

mod terminal;

use std::io::{BufReader, stderr, stdin, stdout};
use std::path::PathBuf;

use clap::Args;

use super::CliError;
use crate::exit::Exit;
use ::agent::permit::PermitError;
use ::agent::policy::PolicyError;
use ::agent::registry::RegistryError;
use ::agent::source::{CandidateSource, RuleSource};
use ::agent::store::StoreError;
use files::children::Children;
use models::source::ModelSource;
use terminal::{self as agent_cli, AgentCliError, AgentStatus, Terminal};

/// Options of `agent`.
#[derive(Debug, Args)]
pub(crate) struct AgentArgs {
    /// GGUF file of the model that proposes; without it the embedded model.
    #[arg(long, value_name = "GGUF", conflicts_with = "rules_only")]
    model: Option<PathBuf>,
    /// Cartridge to mount under every sentence.
    #[arg(long, value_name = "FILE", conflicts_with = "rules_only")]
    cartridge: Option<PathBuf>,
    /// No model: only the rule parser proposes.
    #[arg(long)]
    rules_only: bool,
    #[command(flatten)]
    agent: agent_cli::AgentArgs,
}

pub(crate) fn run(args: AgentArgs, children: &Children) -> Result<Exit, CliError> {
    let mut keep = None;
    let source: Box<dyn CandidateSource> = if args.rules_only || args.agent.command.is_some() {
        Box::new(RuleSource)
    } else {
        let (model, path) = super::load_model(&ModelSource::from_option(args.model))?;
        keep = Some(path);
        let cartridge = args.cartridge.as_deref().map(super::redteam::open_cartridge).transpose()?;
        super::redteam::proposer(&model, cartridge.as_ref().map(|(cartridge, _)| cartridge), children)?
    };
    let (mut input, mut out, mut err) = (BufReader::new(stdin()), stdout(), stderr());
    let mut terminal = Terminal { stdin: &mut input, stdout: &mut out, stderr: &mut err };
    let status = agent_cli::run(&args.agent, source, &mut terminal);
    drop(keep);
    match status {
        Ok(AgentStatus::Done) => Ok(Exit::Success),
        Ok(AgentStatus::Differs) => Ok(Exit::Fail),
        Ok(AgentStatus::Refused) => Ok(Exit::Refused),
        Err(
            AgentCliError::Registry(RegistryError::Read { path, source })
            | AgentCliError::Policy(PolicyError::Read(RegistryError::Read { path, source }))
            | AgentCliError::Permit(PermitError::Read(RegistryError::Read { path, source })),
        ) => Err(super::input_error("agent", &path, source)),
        // A reader that closed the pipe has what it wanted.
        Err(AgentCliError::Io(e)) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(Exit::Success),
        Err(AgentCliError::Store(StoreError::File { path, source })) => {
            Err(super::input_error("trace store", &path, source))
        }
        Err(AgentCliError::Store(e @ StoreError::Permissions { .. })) => Err(CliError::Usage(e.to_string())),
        Err(AgentCliError::Store(e)) if e.is_refusal() => Err(CliError::Refused(e.to_string())),
        Err(e @ (AgentCliError::Usage(_) | AgentCliError::Permit(_))) => Err(CliError::Usage(e.to_string())),
        Err(e @ (AgentCliError::Registry(_) | AgentCliError::Policy(_))) => Err(CliError::Refused(e.to_string())),
        Err(e) => Err(CliError::Failed(e.to_string())),
    }
}
