//! The command line: one file per command, `docs/formats/exit-codes.md` for what it ends with.
//!
//! Results go to stdout, progress and logs to stderr; `--format json` prints one JSON document and nothing else.

mod agent;
mod bench;
mod cartridge;
mod doctor;
mod gates;
mod generate;
mod model;
mod output;
mod profile;
mod progress;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Parser, Subcommand};

use crate::exit::Exit;

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
    /// Generate one output, free or constrained.
    Generate(generate::GenerateArgs),
    /// Talk to the model.
    Chat(generate::ChatArgs),
    /// Make and inspect models.
    Model(model::ModelArgs),
    /// Tokens per second, cartridges against prefill, grammars against decoding.
    Bench(Box<bench::BenchArgs>),
    /// Check tools, CPU features, memory and the engine's pin.
    Doctor(doctor::DoctorArgs),
    /// One gate, in the process that the runner starts.
    #[command(hide = true)]
    GateChild(gates::ChildArgs),
}

/// Why a command ends without doing what was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// Wrong arguments, or a configuration that cannot work.
    #[error("{0}")]
    Usage(String),
    /// Input that was refused.
    #[error("{0}")]
    Refused(String),
    /// It was tried and did not work.
    #[error("{0}")]
    Failed(String),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

impl CliError {
    fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) => Exit::Usage,
            Self::Refused(_) => Exit::Refused,
            Self::Failed(_) => Exit::Fail,
            Self::Interrupted => Exit::Interrupted,
        }
    }
}

/// A flag that Ctrl-C sets; the second Ctrl-C ends the process.
pub(crate) fn interrupt_flag() -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&flag);
    // A handler that is set already (a test calling two commands) keeps its own flag: nothing to do.
    let _ = ctrlc::set_handler(move || {
        if seen.swap(true, Ordering::SeqCst) {
            std::process::exit(Exit::Interrupted as i32);
        }
    });
    flag
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

/// Parses the arguments and runs the command.
pub fn main() -> Exit {
    let cli = match Cli::try_parse_from(arguments()) {
        Ok(cli) => cli,
        Err(e) => {
            let wanted_help = !e.use_stderr();
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
        .without_time()
        .with_target(false)
        .try_init();
    let outcome = match cli.command {
        Command::Gates(args) => gates::run(args),
        Command::Cartridge(args) => cartridge::run(args),
        Command::Agent(args) => agent::run(args),
        Command::Generate(args) => generate::run(args),
        Command::Chat(args) => generate::chat(args),
        Command::Model(args) => model::run(args),
        Command::Bench(args) => bench::run(*args),
        Command::Doctor(args) => doctor::run(args),
        Command::GateChild(args) => gates::child(args),
    };
    outcome.unwrap_or_else(|e| {
        eprintln!("error: {e}");
        e.exit()
    })
}
