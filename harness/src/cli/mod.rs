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

use std::path::{Path, PathBuf};

use bitnet_rs::{Model, ModelParams};
use clap::{Parser, Subcommand};
use gguf::GgufError;

use crate::exit::Exit;
use crate::interrupt;
use files::atomic_file::{AtomicFile, AtomicFileError, Overwrite};
use files::children::Children;
use models::source::{ModelPath, ModelSource};
use session::template_process;

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
    /// One rendering of a chat template, in a process of its own.
    #[command(hide = true)]
    TemplateChild,
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

/// A file that could not be opened or read: a wrong path is a usage error, what is no file is refused.
pub(crate) fn input_error(what: &str, path: &Path, e: std::io::Error) -> CliError {
    // Some errors name the file themselves.
    let (name, text) = (path.display().to_string(), e.to_string());
    let message = if text.contains(&name) { format!("{what}: {text}") } else { format!("{what} {name}: {text}") };
    if is_wrong_path(&e) { CliError::Usage(message) } else { CliError::Refused(message) }
}

/// Is the path to blame, rather than what stands there or the disk?
pub(crate) fn is_wrong_path(e: &std::io::Error) -> bool {
    use std::io::ErrorKind as K;
    let kinds = [
        K::NotFound,
        K::PermissionDenied,
        K::NotADirectory,
        K::IsADirectory,
        K::InvalidFilename,
        K::ReadOnlyFilesystem,
    ];
    // Links in a circle have no stable kind, and an error that names its file has lost its number.
    kinds.contains(&e.kind()) || e.raw_os_error() == Some(ELOOP) || e.to_string().ends_with("(os error 40)")
}

/// Why an output file was not written: a target that cannot be one is a usage error.
pub(crate) fn output_error(e: AtomicFileError) -> CliError {
    match &e {
        AtomicFileError::Io { source, .. } if !is_wrong_path(source) => CliError::Failed(format!("--out: {e}")),
        _ => CliError::Usage(format!("--out: {e}")),
    }
}

/// Asked before the long work; what writes the file asks again.
pub(crate) fn check_target(path: &Path, force: bool) -> Result<(), CliError> {
    AtomicFile::create(path, Overwrite::forced(force)).map(drop).map_err(output_error)
}

/// A result replaces what stands in its place, but never what it was made from.
pub(crate) fn not_an_input<'p>(
    option: &str,
    out: &Path,
    inputs: impl IntoIterator<Item = &'p PathBuf>,
) -> Result<(), CliError> {
    let Ok(real) = out.canonicalize() else { return Ok(()) };
    match inputs.into_iter().find(|input| input.canonicalize().is_ok_and(|input| input == real)) {
        Some(_) => Err(CliError::Usage(format!("{option} {} is also an input; name another file", out.display()))),
        None => Ok(()),
    }
}

/// Too many levels of symbolic links, on Linux.
const ELOOP: i32 = 40;

/// Why a model was not loaded.
pub(crate) fn model_error(source: &ModelSource, e: GgufError) -> CliError {
    match (e, source) {
        (GgufError::Io { source: e, .. }, ModelSource::File(path)) => input_error("model", path, e),
        (e, source) => CliError::Refused(format!("model {}: {e}", source.name())),
    }
}

/// A path for the engine; the embedded model's goes with the value.
pub(crate) fn model_path(source: &ModelSource) -> Result<ModelPath, CliError> {
    source.path().map_err(|e| CliError::Failed(format!("model {}: {e}", source.name())))
}

/// Loads a model; its path must outlive it.
pub(crate) fn load_model(source: &ModelSource) -> Result<(Model, ModelPath), CliError> {
    let path = model_path(source)?;
    let bar = progress::spinner("loading");
    let model = Model::load(path.as_path(), ModelParams::default());
    bar.finish_and_clear();
    Ok((model.map_err(|e| load_error(source, e))?, path))
}

/// Why the engine did not load a model.
pub(crate) fn load_error(source: &ModelSource, e: bitnet_rs::Error) -> CliError {
    match e {
        bitnet_rs::Error::Gguf(e) => model_error(source, e),
        e @ (bitnet_rs::Error::UnsupportedCpu { .. } | bitnet_rs::Error::KernelSelfTest { .. }) => {
            CliError::Usage(e.to_string())
        }
        e => CliError::Refused(format!("model {}: {e}", source.name())),
    }
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
        output::note(format_args!("error: no handler for Ctrl-C: {e}"));
        return Exit::Fail;
    }
    let outcome = match cli.command {
        Command::Gates(args) => gates::run(args, &children),
        Command::Cartridge(args) => cartridge::run(args, &children),
        Command::Agent(args) => agent::run(args, &children),
        Command::Generate(args) => generate::run(args, &children),
        Command::Chat(args) => generate::chat(args, &children),
        Command::Model(args) => model::run(args, &children),
        Command::Bench(args) => bench::run(*args),
        Command::Doctor(args) => doctor::run(args),
        Command::GateChild(args) => gates::child(args, &children),
        Command::TemplateChild => Ok(Exit::Success),
    };
    outcome.unwrap_or_else(|e| {
        output::note(format_args!("error: {}", output::for_terminal(&e.to_string())));
        e.exit()
    })
}
