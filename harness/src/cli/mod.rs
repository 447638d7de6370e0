//! The command line: one file per command, `docs/formats/exit-codes.md` for what it ends with.
//!
//! Results go to stdout, progress and logs to stderr; `--format json` prints one JSON document and nothing else.

mod agent;
mod bench;
mod cartridge;
mod chat;
mod doctor;
mod error;
mod gates;
mod generate;
mod model;
mod mount;
mod output;
mod profile;
mod progress;
mod redteam;
mod registry;
mod stderr;

use clap::{Parser, Subcommand};

use crate::exit::Exit;
use crate::interrupt;
use files::children::Children;
use session::template_process;

pub(crate) use error::{
    CliError, check_target, input_error, is_wrong_path, load_error, load_model, model_error, model_path, not_an_input,
    output_error,
};

/// Gate suite, cartridges and agent boundary for ternary (1.58-bit) language models on CPUs.
#[derive(Debug, Parser)]
#[command(name = "harness", version, max_term_width = 110)]
#[command(
    after_help = "Exit codes: 0 all PASS / done, 1 a FAIL, 2 usage, 3 UNKNOWN, 4 input refused, 5 incomplete, 130 interrupted.\n\nExample:\n  harness gates --format json --out report.json"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gate suite and decide go or no-go.
    Gates(gates::GatesArgs),
    /// Build, check, mount and compare cartridges.
    Cartridge(cartridge::CartridgeArgs),
    /// Turn a sentence into a plan, or refuse it; dry-run unless the operator opted in.
    Agent(agent::AgentArgs),
    /// Try attacks on the agent with a model, and a cartridge, in place; write the receipt that ships with them.
    Redteam(redteam::RedteamArgs),
    /// Generate one output, free or constrained.
    Generate(generate::GenerateArgs),
    /// Talk to the model.
    Chat(chat::ChatArgs),
    /// Make and inspect models.
    Model(model::ModelArgs),
    /// Ship cartridges and models: versions, channels, promotion, rollback.
    Registry(registry::RegistryArgs),
    /// Tokens per second, cartridges against prefill, grammars against decoding.
    Bench(Box<bench::BenchArgs>),
    /// Check tools, CPU features, memory and the engine's pin.
    Doctor(doctor::DoctorArgs),
    /// One rendering of a chat template, in a process of its own.
    #[command(hide = true)]
    TemplateChild,
    /// One gate, in the process that the runner starts.
    #[command(hide = true)]
    GateChild(gates::ChildArgs),
}

/// The process's arguments. `bench -ub` is llama-bench's spelling of `--ubatch-size`; a one-letter option with a value
/// would be read otherwise.
fn arguments() -> Vec<std::ffi::OsString> {
    let mut arguments: Vec<_> = std::env::args_os().collect();
    if arguments.get(1).is_some_and(|command| command == "bench") {
        for argument in arguments.iter_mut().filter(|a| *a == "-ub") {
            *argument = "--ubatch-size".into();
        }
    }
    arguments
}

/// Parses the arguments and runs the command; `children` starts this program again for work in a process of its own.
pub fn main(children: std::io::Result<Children>) -> Exit {
    let cli = match Cli::try_parse_from(arguments()) {
        Ok(cli) => cli,
        Err(e) => {
            let wanted_help = !e.use_stderr();
            if e.kind() == clap::error::ErrorKind::InvalidUtf8 {
                // The parser does not say which.
                for (i, argument) in arguments().iter().enumerate().filter(|(_, a)| a.to_str().is_none()) {
                    let shown = argument.to_string_lossy();
                    output::note(format_args!("argument {i} is not UTF-8: {}", output::for_terminal(&shown)));
                }
            }
            let _ = e.print();
            return if wanted_help { Exit::Success } else { Exit::Usage };
        }
    };
    let filter = tracing_subscriber::EnvFilter::try_from_env("BITNET_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,bitnet.engine=error"));
    // A second initialisation only happens inside tests, where the first one serves.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .without_time()
        .with_target(false)
        // It would report a closed stderr on stderr, and panic.
        .log_internal_errors(false)
        .try_init();
    if matches!(cli.command, Command::TemplateChild) {
        return match template_process::child() {
            Ok(()) => Exit::Success,
            Err(_) => Exit::Fail,
        };
    }
    let children = match children {
        Ok(children) => children,
        Err(e) => {
            output::note(format_args!("error: the system does not tell which program this is: {e}"));
            return Exit::Fail;
        }
    };
    files::process::survive_file_size_limit();
    if let Err(e) = interrupt::install() {
        // It takes a thread and two descriptors.
        output::note(format_args!("error: {} a handler for Ctrl-C: {e}", files::shortage::NOT_GIVEN));
        return Exit::Usage;
    }
    let outcome = match cli.command {
        Command::Gates(args) => gates::run(args, &children),
        Command::Cartridge(args) => cartridge::run(args, &children),
        Command::Agent(args) => agent::run(args, &children),
        Command::Redteam(args) => redteam::run(args, &children),
        Command::Generate(args) => generate::run(args, &children),
        Command::Chat(args) => chat::chat(args, &children),
        Command::Model(args) => model::run(args, &children),
        Command::Registry(args) => registry::run(args),
        Command::Bench(args) => bench::run(*args),
        Command::Doctor(args) => doctor::run(args),
        Command::GateChild(args) => gates::child(args, &children),
        Command::TemplateChild => Ok(Exit::Success),
    };
    outcome.unwrap_or_else(|e| {
        if matches!(e, CliError::ReaderGone) {
            return e.exit();
        }
        output::note(format_args!("error: {}", output::for_terminal(&e.to_string())));
        e.exit()
    })
}

/// The command line as clap knows it: for tests and documents that account for every option.
pub fn command() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}
