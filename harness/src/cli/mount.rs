//! `harness cartridge mount`: one answer, or a conversation, behind a cartridge.

use std::path::PathBuf;

use clap::Args;

use super::CliError;
use super::generate::{self, GenerateArgs, ModelOptions};
use super::output::TextOrJson;
use crate::exit::Exit;
use files::children::Children;

/// Options of `cartridge mount`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  harness cartridge mount devices.safetensors --prompt \"turn on lumo\"\n  harness cartridge mount devices.safetensors"
)]
pub(crate) struct MountArgs {
    /// The cartridge.
    file: PathBuf,
    #[command(flatten)]
    options: ModelOptions,
    /// User message; without one a conversation starts.
    #[arg(value_name = "PROMPT", group = "said", conflicts_with = "prompt")]
    text: Option<String>,
    /// The same, spelt as an option.
    #[arg(short, long, group = "said", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// The prompt goes on with the cartridge's text as it is, without the chat template.
    #[arg(long, requires = "said")]
    plain: bool,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

/// `harness cartridge mount`.
pub(crate) fn run(args: MountArgs, children: &Children) -> Result<Exit, CliError> {
    let mut options = args.options;
    if options.cartridge.is_some() {
        return Err(CliError::Usage("--cartridge: the cartridge to mount is given already".into()));
    }
    let prompt = args.text.or(args.prompt);
    if prompt.is_none() && args.format == TextOrJson::Json {
        return Err(CliError::Usage("--format json needs --prompt: a conversation is no one document".into()));
    }
    options.cartridge = Some(args.file);
    match prompt {
        Some(prompt) => {
            let chat = !args.plain;
            let args =
                GenerateArgs { options, text: None, prompt: Some(prompt), file: None, chat, format: args.format };
            generate::run(args, children)
        }
        None => super::chat::run(options, children),
    }
}
