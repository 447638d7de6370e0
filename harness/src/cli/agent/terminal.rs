//! `harness agent`: one input, interactive mode, and traces, replay, memory, devices, execution.
//!
//! The functions work on handles that the caller gives, so that they are tested without a terminal.
//! Everything is a dry-run unless `--execute` stands on the command line *and* `--operator` names a
//! configuration that enables it; nothing typed as input can change either.

use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use agent::clock::SystemClock;
use agent::execute::{ExecuteError, Execution};
use agent::executor::MockExecutor;
use agent::freshness::SimulatedStates;
use agent::guard::UserInput;
use agent::permit::{Confirmation, ExecuteFlag, ExecutePermit, OperatorConfig, PermitError};
use agent::pipeline::{Agent, AgentOptions, AgentParts, MemoryStatus, RunMode, RunOutput};
use agent::plan::PlanHash;
use agent::policy::{Policy, PolicyError};
use agent::registry::{Registry, RegistryError};
use agent::replay::Replay;
use agent::source::CandidateSource;
use agent::store::{Store, StoreError};
use agent::vocabulary::{Decision, Outcome};

use crate::cli::output;

/// Longest line read in interactive mode, in bytes.
const MAX_LINE_BYTES: u64 = 64 * 1024;

/// Arguments of `harness agent`.
// No argument group of their own for these structs: the binary flattens them into arguments of its
// own, and group names are type names, which must not meet.
#[derive(Debug, Args)]
#[group(skip)]
#[command(
    after_help = "Examples:\n  harness agent \"打开客厅灯\"\n  harness agent \"set the bedroom ac to 24 degrees\" --format json\n  \
                  harness agent                      # interactive\n  harness agent trace tr_0123456789abcdef\n  \
                  harness agent execute tr_0123456789abcdef --execute --operator operator.toml --confirm <plan hash>"
)]
pub(crate) struct AgentArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: Option<AgentCommand>,
    /// The input; without it, inputs are read line by line.
    pub text: Option<String>,
    /// House and store.
    #[command(flatten)]
    pub house: HouseArgs,
    /// The operator's opt-in.
    #[command(flatten)]
    pub opt_in: OptInArgs,
}

/// Subcommands of `harness agent`.
#[derive(Debug, Subcommand)]
pub(crate) enum AgentCommand {
    /// List recorded runs, or show one with steps, evidence and gates.
    Trace {
        /// Trace id.
        trace_id: Option<String>,
        /// Most runs listed.
        #[arg(long, default_value_t = 20)]
        limit: u32,
    },
    /// Run today's gates on a recorded candidate and show what differs (exit code 1 if anything).
    Replay {
        /// Trace id.
        trace_id: String,
    },
    /// Show remembered names, or forget them.
    Memory {
        /// Forget one name.
        #[arg(long, value_name = "NAME", conflicts_with = "clear")]
        forget: Option<String>,
        /// Forget all names and recent commands.
        #[arg(long)]
        clear: bool,
    },
    /// List devices with their names, risk and capabilities.
    Devices,
    /// Carry out the plan of a recorded run.
    Execute {
        /// Trace id.
        trace_id: String,
        /// Hash of the plan that you confirm, as the dry-run printed it.
        #[arg(long, value_name = "HASH")]
        confirm: Option<String>,
    },
}

/// Where devices, policy and traces are.
#[derive(Debug, Args)]
#[group(skip)]
pub(crate) struct HouseArgs {
    /// Device registry; the embedded example without it.
    #[arg(long, global = true, value_name = "YAML")]
    pub devices: Option<PathBuf>,
    /// Policy; the embedded one without it.
    #[arg(long, global = true, value_name = "TOML")]
    pub policy: Option<PathBuf>,
    /// Trace store; $XDG_STATE_HOME/bitnet-harness/agent.sqlite without it.
    #[arg(long, global = true, value_name = "FILE")]
    pub store: Option<PathBuf>,
    /// Commands of one session can refer to each other ("turn it off").
    #[arg(long, global = true, default_value = "default")]
    pub session: String,
    /// Neither remembered names nor earlier commands.
    #[arg(long, global = true)]
    pub no_memory: bool,
    /// Do not let rules correct a model's candidate.
    #[arg(long, global = true)]
    pub no_repair: bool,
    /// Output.
    #[arg(long, global = true, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// The operator's opt-in on the command line.
#[derive(Debug, Args)]
#[group(skip)]
pub(crate) struct OptInArgs {
    /// Carry the plan out; needs --operator, and a confirmation for medium and high risk.
    #[arg(long, global = true)]
    pub execute: bool,
    /// The operator's configuration; it must enable execution.
    #[arg(long, global = true, value_name = "TOML")]
    pub operator: Option<PathBuf>,
}

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// One JSON document per input or command.
    Json,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AgentStatus {
    /// Planned, saved, shown or executed.
    Done,
    /// A replay differs.
    Differs,
    /// Denied or refused.
    Refused,
}

/// Why a command could not run. Exit code 2.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum AgentCliError {
    /// Registry.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// Policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Opt-in.
    #[error(transparent)]
    Permit(#[from] PermitError),
    /// Arguments that do not go together.
    #[error("{0}")]
    Usage(String),
    /// A handle failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The handles that a command works on.
pub(crate) struct Terminal<'a> {
    /// Inputs in interactive mode, and confirmations.
    pub stdin: &'a mut dyn BufRead,
    /// Results.
    pub stdout: &'a mut dyn Write,
    /// Prompts and notes.
    pub stderr: &'a mut dyn Write,
}

/// Runs `harness agent` with a source of candidates ([`super::source::RuleSource`] without a model).
///
/// # Errors
/// [`AgentCliError`]; a denied input is no error but [`AgentStatus::Refused`].
pub(crate) fn run(
    args: &AgentArgs,
    source: Box<dyn CandidateSource>,
    terminal: &mut Terminal<'_>,
) -> Result<AgentStatus, AgentCliError> {
    let registry = match &args.house.devices {
        Some(path) => Registry::load(path)?,
        None => Registry::embedded()?,
    };
    if let (Some(AgentCommand::Devices), None) = (&args.command, &args.text) {
        return devices(&registry, args.house.format, terminal);
    }
    if args.command.is_some() && args.text.is_some() {
        return Err(AgentCliError::Usage("give a text or a subcommand, not both".to_owned()));
    }
    let policy = match &args.house.policy {
        Some(path) => Policy::load(path)?,
        None => Policy::embedded()?,
    };
    let operator = operator(&args.opt_in)?;
    let store = Store::open(&store_path(args.house.store.as_deref())?)?;
    let mut agent = Agent::new(
        AgentParts {
            registry,
            policy,
            store,
            clock: Arc::new(SystemClock),
            states: Arc::new(SimulatedStates::default()),
            source,
        },
        AgentOptions {
            repair: !args.house.no_repair,
            memory: !args.house.no_memory,
            session: args.house.session.clone(),
        },
    );
    let format = args.house.format;
    // The person at the command line is the only one who can ask for it.
    let flag = if args.opt_in.execute { ExecuteFlag::given() } else { ExecuteFlag::absent() };
    let mut desk = Desk { agent: &mut agent, operator: operator.as_ref(), flag: &flag, format };
    match (&args.command, &args.text) {
        (None, Some(text)) => {
            if let Some(meant) = mistyped(text) {
                return Err(AgentCliError::Usage(format!(
                    "'{text}' is no command of `harness agent`; did you mean `harness agent {meant}`? A sentence has more than one word"
                )));
            }
            desk.input(text, None, terminal)
        }
        (None, None) => desk.interactive(terminal),
        (Some(AgentCommand::Trace { trace_id, limit }), _) => desk.trace(trace_id.as_deref(), *limit, terminal),
        (Some(AgentCommand::Replay { trace_id }), _) => desk.replay(trace_id, terminal),
        (Some(AgentCommand::Memory { forget, clear }), _) => desk.memory(forget.as_deref(), *clear, terminal),
        (Some(AgentCommand::Execute { trace_id, confirm }), _) => {
            let confirmation = match confirm {
                None => None,
                Some(hex) => Some(Confirmation::of(PlanHash::parse(hex).ok_or_else(|| {
                    AgentCliError::Usage("--confirm takes the 64 hex digits of the plan's hash".to_owned())
                })?)),
            };
            desk.execute(trace_id, confirmation, terminal)
        }
        (Some(AgentCommand::Devices), _) => Ok(AgentStatus::Done),
    }
}

/// The subcommand that a single word nearly is (one letter missing, wrong or too much): it is not said to the house.
fn mistyped(text: &str) -> Option<&'static str> {
    let word = text.trim();
    if word.len() < 4 || !word.bytes().all(|b| b.is_ascii_lowercase()) {
        return None;
    }
    ["trace", "replay", "memory", "devices", "execute"].into_iter().find(|name| near(word, name))
}

/// Equal but for one letter.
fn near(a: &str, b: &str) -> bool {
    let (short, long) = if a.len() <= b.len() { (a.as_bytes(), b.as_bytes()) } else { (b.as_bytes(), a.as_bytes()) };
    let front = short.iter().zip(long).take_while(|(x, y)| x == y).count();
    match long.len() - short.len() {
        0 => short.get(front + 1..) == long.get(front + 1..) || short == long,
        1 => short[front..] == long[front + 1..],
        _ => false,
    }
}

/// `--execute` and `--operator` belong together.
fn operator(opt_in: &OptInArgs) -> Result<Option<OperatorConfig>, AgentCliError> {
    match (&opt_in.operator, opt_in.execute) {
        (None, false) => Ok(None),
        (None, true) => {
            Err(AgentCliError::Usage("--execute needs --operator with the operator's configuration".to_owned()))
        }
        (Some(path), _) => Ok(Some(OperatorConfig::load(path)?)),
    }
}

/// The store that was asked for, or the default one in a private folder.
fn store_path(asked: Option<&Path>) -> Result<PathBuf, AgentCliError> {
    if let Some(path) = asked {
        return Ok(path.to_owned());
    }
    let state = std::env::var_os("XDG_STATE_HOME")
        .map(PathBuf::from)
        .filter(|p| p.is_absolute())
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state")))
        .ok_or_else(|| {
            AgentCliError::Usage("neither XDG_STATE_HOME nor HOME is set; name a trace store with --store".to_owned())
        })?;
    let folder = state.join("bitnet-harness");
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt as _;
        builder.mode(0o700);
    }
    builder
        .create(&folder)
        .map_err(|e| io::Error::new(e.kind(), format!("trace store folder {}: {e}", folder.display())))?;
    Ok(folder.join("agent.sqlite"))
}

fn devices(registry: &Registry, format: Format, terminal: &mut Terminal<'_>) -> Result<AgentStatus, AgentCliError> {
    if format == Format::Json {
        print_json(
            terminal.stdout,
            &serde_json::json!({ "devices": registry.devices(), "capabilities": registry.capabilities(), "hash": registry.hash() }),
        )?;
        return Ok(AgentStatus::Done);
    }
    for device in registry.devices() {
        let actions: Vec<&str> = registry
            .capabilities()
            .get(&device.device_type)
            .map(|table| table.iter().map(|c| c.action.as_str()).collect())
            .unwrap_or_default();
        writeln!(
            terminal.stdout,
            "{}  {} in {}, {}, risk {}\n    names: {}\n    can: {}",
            device.device_id,
            device.device_type,
            device.room,
            device.backend,
            device.risk_level,
            device.aliases.join(", "),
            actions.join(", ")
        )?;
    }
    Ok(AgentStatus::Done)
}

fn print_json<T: Serialize>(out: &mut dyn Write, value: &T) -> Result<(), AgentCliError> {
    serde_json::to_writer(&mut *out, value).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(())
}

/// Asks the person at the terminal whether to execute the plan with this hash.
type AskPerson<'a> = &'a mut dyn FnMut(&PlanHash) -> io::Result<bool>;

struct Desk<'a> {
    agent: &'a mut Agent,
    operator: Option<&'a OperatorConfig>,
    flag: &'a ExecuteFlag,
    format: Format,
}

#[derive(Serialize)]
struct InputDocument<'a> {
    #[serde(flatten)]
    run: &'a RunOutput,
    execution: Option<ExecutionDocument>,
}

#[derive(Serialize)]
struct ExecutionDocument {
    executed: bool,
    message: String,
}

impl Desk<'_> {
    /// One input: dry-run, and execution of that dry-run if the operator opted in. `confirm` asks a
    /// person where one is there to be asked.
    fn input(
        &mut self,
        text: &str,
        confirm: Option<AskPerson<'_>>,
        terminal: &mut Terminal<'_>,
    ) -> Result<AgentStatus, AgentCliError> {
        let output = self.agent.run(UserInput::new(text))?;
        if self.format == Format::Text {
            write_run(terminal.stdout, &output)?;
        }
        let mut status = match (output.mode, output.decision, output.memory_write.as_ref().map(|m| m.status)) {
            (RunMode::MemoryWrite, _, Some(MemoryStatus::Saved | MemoryStatus::Forgotten)) => AgentStatus::Done,
            (RunMode::Command, Decision::Allow | Decision::RequireConfirmation, _) if output.plan.is_some() => {
                AgentStatus::Done
            }
            _ => AgentStatus::Refused,
        };
        let mut execution = None;
        if self.flag.is_given()
            && let Some(plan) = &output.plan
        {
            let hash = plan.hash();
            let confirmation = if plan.decision() == Decision::RequireConfirmation {
                match confirm {
                    Some(ask) => ask(&hash)?.then(|| Confirmation::of(hash)),
                    None => None,
                }
            } else {
                None
            };
            if plan.decision() == Decision::RequireConfirmation && confirmation.is_none() {
                execution = Some(ExecutionDocument {
                    executed: false,
                    message: format!(
                        "not confirmed, not executed; to confirm: harness agent execute {} --execute --operator FILE --confirm {hash}",
                        output.trace_id
                    ),
                });
            } else {
                match self.carry_out(&output.trace_id, confirmation)? {
                    Ok(done) => execution = Some(ExecutionDocument { executed: true, message: done.message }),
                    Err(refusal) => {
                        status = AgentStatus::Refused;
                        execution = Some(ExecutionDocument { executed: false, message: refusal.to_string() });
                    }
                }
            }
        }
        match self.format {
            Format::Json => print_json(terminal.stdout, &InputDocument { run: &output, execution })?,
            Format::Text => match execution {
                Some(execution) => writeln!(
                    terminal.stdout,
                    "{}  {}",
                    if execution.executed { "executed " } else { "execution" },
                    execution.message
                )?,
                // A name that is saved or forgotten is no plan, and there is nothing that could have been executed.
                None if output.mode == RunMode::MemoryWrite => {}
                None => writeln!(terminal.stdout, "dry-run    nothing was executed")?,
            },
        }
        Ok(status)
    }

    /// A permit for one execution, and the execution.
    fn carry_out(
        &mut self,
        trace_id: &str,
        confirmation: Option<Confirmation>,
    ) -> Result<Result<Execution, ExecuteError>, AgentCliError> {
        let operator = self.operator.ok_or_else(|| {
            AgentCliError::Usage("--execute needs --operator with the operator's configuration".to_owned())
        })?;
        let permit = ExecutePermit::grant(operator, self.flag)?;
        match self.agent.execute(trace_id, permit, confirmation, &MockExecutor::default()) {
            Err(ExecuteError::Store(error)) => Err(error.into()),
            other => Ok(other),
        }
    }

    fn execute(
        &mut self,
        trace_id: &str,
        confirmation: Option<Confirmation>,
        terminal: &mut Terminal<'_>,
    ) -> Result<AgentStatus, AgentCliError> {
        if !self.flag.is_given() {
            return Err(PermitError::NoFlag.into());
        }
        let result = self.carry_out(trace_id, confirmation)?;
        match (&result, self.format) {
            (Ok(done), Format::Json) => print_json(terminal.stdout, done)?,
            (Ok(done), Format::Text) => writeln!(terminal.stdout, "executed   {}", done.message)?,
            (Err(refusal), Format::Json) => print_json(
                terminal.stdout,
                &serde_json::json!({ "trace_id": trace_id, "refused": refusal.to_string() }),
            )?,
            (Err(refusal), Format::Text) => writeln!(terminal.stdout, "{refusal}")?,
        }
        Ok(if result.is_ok() { AgentStatus::Done } else { AgentStatus::Refused })
    }

    fn interactive(&mut self, terminal: &mut Terminal<'_>) -> Result<AgentStatus, AgentCliError> {
        writeln!(
            terminal.stderr,
            "One command per line; /devices, /memory, /forget NAME, /trace [ID], /replay ID, /quit.{}",
            if self.flag.is_given() { " Plans are EXECUTED." } else { " Nothing is executed." }
        )?;
        loop {
            write!(terminal.stderr, "> ")?;
            terminal.stderr.flush()?;
            let Some(line) = read_line(terminal.stdin)? else {
                writeln!(terminal.stderr)?;
                return Ok(AgentStatus::Done);
            };
            let line = line.trim();
            let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let rest = rest.trim();
            // One bad line is no reason to leave.
            match word {
                "" => {}
                "/quit" | "/exit" => return Ok(AgentStatus::Done),
                "/devices" => {
                    devices(self.agent.registry(), self.format, terminal)?;
                }
                "/memory" => {
                    self.memory(None, false, terminal)?;
                }
                "/forget" if !rest.is_empty() => {
                    self.memory(Some(rest), false, terminal)?;
                }
                "/trace" => {
                    self.trace((!rest.is_empty()).then_some(rest), 20, terminal)?;
                }
                "/replay" if !rest.is_empty() => {
                    self.replay(rest, terminal)?;
                }
                _ if word.starts_with('/') => writeln!(terminal.stderr, "unknown command {}", word.escape_debug())?,
                _ => {
                    // The confirmation is read from the same handle, by the first digits of the very
                    // hash that was shown.
                    let Terminal { stdin, stdout, stderr } = &mut *terminal;
                    let mut ask = |hash: &PlanHash| -> io::Result<bool> {
                        let first: String = hash.to_string().chars().take(8).collect();
                        write!(stderr, "type {first} to execute this plan, anything else to leave it: ")?;
                        stderr.flush()?;
                        Ok(read_line(&mut **stdin)?.is_some_and(|answer| answer.trim() == first))
                    };
                    let mut nothing = io::empty();
                    let mut quiet = io::sink();
                    let mut out = Terminal { stdin: &mut nothing, stdout: &mut **stdout, stderr: &mut quiet };
                    self.input(line, Some(&mut ask), &mut out)?;
                }
            }
        }
    }

    fn trace(
        &mut self,
        trace_id: Option<&str>,
        limit: u32,
        terminal: &mut Terminal<'_>,
    ) -> Result<AgentStatus, AgentCliError> {
        let store = self.agent.store();
        let Some(trace_id) = trace_id else {
            let traces = store.traces(limit)?;
            if self.format == Format::Json {
                print_json(terminal.stdout, &traces)?;
            } else {
                for trace in &traces {
                    writeln!(
                        terminal.stdout,
                        "{}  {:<14} {:<20} {}",
                        trace.trace_id,
                        trace.mode,
                        trace.decision,
                        trace.input.escape_debug()
                    )?;
                }
            }
            return Ok(AgentStatus::Done);
        };
        match store.trace_frame(trace_id)? {
            Some(frame) if self.format == Format::Json => print_json(terminal.stdout, &frame)?,
            Some(frame) => write_trace(terminal.stdout, &frame)?,
            None => return unknown_trace(trace_id, terminal),
        }
        Ok(AgentStatus::Done)
    }

    fn replay(&mut self, trace_id: &str, terminal: &mut Terminal<'_>) -> Result<AgentStatus, AgentCliError> {
        let Some(replay) = self.agent.replay(trace_id)? else { return unknown_trace(trace_id, terminal) };
        let Replay { same, note, differences, .. } = &replay;
        if self.format == Format::Json {
            print_json(terminal.stdout, &replay)?;
        } else {
            if let Some(note) = note {
                writeln!(terminal.stdout, "{trace_id}: {note}")?;
            }
            for difference in differences {
                writeln!(
                    terminal.stdout,
                    "{}: recorded {}, now {}",
                    difference.field, difference.recorded, difference.now
                )?;
            }
            if *same && note.is_none() {
                writeln!(terminal.stdout, "{trace_id}: the same decision")?;
            }
        }
        Ok(if *same { AgentStatus::Done } else { AgentStatus::Differs })
    }

    fn memory(
        &mut self,
        forget: Option<&str>,
        clear: bool,
        terminal: &mut Terminal<'_>,
    ) -> Result<AgentStatus, AgentCliError> {
        if clear {
            self.agent.store_mut().clear_memory()?;
        }
        if let Some(name) = forget {
            let found = self.agent.store_mut().forget(name)?;
            if !found {
                writeln!(terminal.stderr, "{:?} is not remembered", agent::text::clipped(name, 40))?;
                return Ok(AgentStatus::Refused);
            }
        }
        let aliases = self.agent.store().aliases()?;
        if self.format == Format::Json {
            print_json(terminal.stdout, &aliases)?;
        } else {
            for alias in &aliases {
                writeln!(terminal.stdout, "{} = {}  (from {})", alias.alias, alias.device_id, alias.trace_id)?;
            }
        }
        Ok(AgentStatus::Done)
    }
}

fn unknown_trace(trace_id: &str, terminal: &mut Terminal<'_>) -> Result<AgentStatus, AgentCliError> {
    writeln!(terminal.stderr, "there is no trace {:?}", agent::text::clipped(trace_id, 40))?;
    Ok(AgentStatus::Refused)
}

/// A line without its end, at most [`MAX_LINE_BYTES`]; invalid UTF-8 is replaced, the rest of an
/// overlong line is the next one. `None` at the end.
fn read_line(input: &mut dyn BufRead) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    let read = io::Read::take(input, MAX_LINE_BYTES).read_until(b'\n', &mut bytes)?;
    if read == 0 {
        return Ok(None);
    }
    Ok(Some(String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']).to_owned()))
}

/// Characters of one value of a trace that a line shows.
const SHOWN: usize = 100;

/// A recorded run for people: what was decided and why, the steps, the evidence and what was executed, a line each. Values
/// are untrusted text: control characters are escaped, and long ones end with a mark.
fn write_trace(out: &mut dyn Write, frame: &serde_json::Value) -> io::Result<()> {
    let mut cut = false;
    let mut text = |value: &serde_json::Value| {
        let whole = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let safe = output::for_terminal(&whole).replace('\n', "\\n");
        match safe.char_indices().nth(SHOWN) {
            Some((end, _)) => {
                cut = true;
                format!("{}…", &safe[..end])
            }
            None => safe,
        }
    };
    let run = &frame["output"];
    writeln!(out, "trace      {} (session {})", text(&frame["trace_id"]), text(&frame["session"]))?;
    writeln!(out, "mode       {}", text(&run["mode"]))?;
    writeln!(out, "decision   {}", text(&run["decision"]))?;
    for reason in run["reasons"].as_array().into_iter().flatten() {
        writeln!(out, "reason     {}", text(reason))?;
    }
    if let Some(hash) = run["plan_hash"].as_str() {
        writeln!(out, "plan hash  {hash}")?;
    }
    for (list, columns) in [
        ("steps", &["name", "status", "detail"][..]),
        ("evidence", &["kind", "content"]),
        ("executions", &["device_id", "action", "status", "message"]),
        ("audit", &["event", "detail"]),
    ] {
        let rows = frame[list].as_array().map_or(&[][..], Vec::as_slice);
        if list == "executions" && rows.is_empty() {
            writeln!(out, "executions none")?;
        } else if !rows.is_empty() {
            writeln!(out, "{list}")?;
        }
        for row in rows {
            let cells: Vec<String> = columns.iter().map(|c| format!("{:<24}", text(&row[*c]))).collect();
            writeln!(out, "  {}", cells.join(" ").trim_end())?;
        }
    }
    if cut {
        writeln!(out, "Values that end with … are shortened; --format json shows them whole.")?;
    }
    Ok(())
}

fn write_run(out: &mut dyn Write, run: &RunOutput) -> io::Result<()> {
    if let Some(source) = &run.source {
        let tries = if source.retries() > 0 { format!(", {} tries", source.attempts.len()) } else { String::new() };
        let repaired = if run.repaired { ", repaired by rules" } else { "" };
        match &run.candidate {
            Some(candidate) if !candidate.is_blank() => {
                writeln!(
                    out,
                    "candidate  {} (from {}{tries}{repaired}; untrusted)",
                    candidate.to_json(),
                    source.source
                )?;
            }
            Some(_) => writeln!(out, "candidate  none ({} has nothing to propose)", source.source)?,
            None => writeln!(out, "candidate  none ({} failed{tries})", source.source)?,
        }
    }
    if !run.input_flags.is_empty() {
        let flags: Vec<&str> = run.input_flags.iter().map(|f| f.as_str()).collect();
        writeln!(out, "input      {}", flags.join(", "))?;
    }
    if let Some(memory) = &run.memory_write {
        writeln!(out, "memory     {} {:?}", memory.status, memory.alias)?;
    } else {
        let risk = run.evaluation.as_ref().map_or_else(String::new, |e| format!(" (risk {})", e.risk()));
        writeln!(out, "decision   {}{risk}", run.decision)?;
    }
    for reason in &run.reasons {
        writeln!(out, "reason     {}", output::for_terminal(reason))?;
    }
    if let Some(evaluation) = &run.evaluation {
        let count = |outcome| evaluation.gates().iter().filter(|g| g.outcome == outcome).count();
        writeln!(
            out,
            "gates      {} accepted, {} warnings, {} rejected",
            count(Outcome::Accepted),
            count(Outcome::Warning),
            count(Outcome::Rejected)
        )?;
        for gate in evaluation.gates().iter().filter(|g| g.outcome == Outcome::Warning) {
            writeln!(out, "warning    {}: {}", gate.gate, output::for_terminal(&gate.reasons.join("; ")))?;
        }
    }
    if let (Some(plan), Some(hash)) = (&run.plan, &run.plan_hash) {
        writeln!(
            out,
            "plan       {} on {} via {}: {}",
            plan.action(),
            plan.device_id(),
            plan.backend(),
            plan.payload()
        )?;
        writeln!(out, "plan hash  {hash}")?;
    }
    writeln!(out, "trace      {}", run.trace_id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent::source::RuleSource;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: AgentArgs,
    }

    /// The binary's own arguments around ours, under the same type name as there.
    mod wrapped {
        #[derive(clap::Args)]
        pub(super) struct AgentArgs {
            #[command(flatten)]
            pub(super) agent: super::super::AgentArgs,
            #[arg(long)]
            pub(super) model: Option<std::path::PathBuf>,
        }
    }

    #[derive(Parser)]
    struct Wrapped {
        #[command(flatten)]
        args: wrapped::AgentArgs,
    }

    #[test]
    fn the_arguments_can_be_flattened_into_others() {
        use clap::CommandFactory as _;
        Wrapped::command().debug_assert();
        let line = Wrapped::try_parse_from(["agent", "打开客厅灯", "--model", "m.gguf"]).unwrap();
        assert_eq!(line.args.agent.text.as_deref(), Some("打开客厅灯"));
        assert!(line.args.model.is_some());
    }

    struct Session {
        dir: tempfile::TempDir,
    }

    impl Session {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let operator = dir.path().join("operator.toml");
            std::fs::write(&operator, "[execute]\nenabled = true\nbackends = [\"mock\"]\n").unwrap();
            #[cfg(unix)]
            {
                use std::os::unix::fs::PermissionsExt as _;
                std::fs::set_permissions(&operator, std::fs::Permissions::from_mode(0o600)).unwrap();
            }
            Session { dir }
        }

        fn run(&self, words: &[&str], typed: &str) -> (Result<AgentStatus, AgentCliError>, String, String) {
            let store = self.dir.path().join("t.sqlite");
            let operator = self.dir.path().join("operator.toml");
            let mut line = vec!["agent".to_owned()];
            line.extend(words.iter().map(|w| w.replace("OPERATOR", operator.to_str().unwrap())));
            line.extend(["--store".to_owned(), store.to_str().unwrap().to_owned()]);
            let args = Line::try_parse_from(line).unwrap_or_else(|e| panic!("{e}")).args;
            let (mut stdin, mut stdout, mut stderr) = (typed.as_bytes(), Vec::new(), Vec::new());
            let result = run(
                &args,
                Box::new(RuleSource),
                &mut Terminal { stdin: &mut stdin, stdout: &mut stdout, stderr: &mut stderr },
            );
            (result, String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
        }
    }

    fn field(output: &str, name: &str) -> String {
        output
            .lines()
            .find_map(|l| l.strip_prefix(name))
            .unwrap_or_else(|| panic!("no {name} in {output}"))
            .trim()
            .to_owned()
    }

    #[test]
    fn one_input_is_a_dry_run_with_a_trace() {
        let session = Session::new();
        let (status, out, _) = session.run(&["打开客厅灯"], "");
        assert_eq!(status.unwrap(), AgentStatus::Done);
        assert_eq!(field(&out, "decision"), "allow (risk low)");
        assert!(out.contains("dry-run    nothing was executed"));
        let trace = field(&out, "trace");
        let (status, shown, _) = session.run(&["trace", &trace], "");
        assert_eq!(status.unwrap(), AgentStatus::Done);
        assert!(shown.contains("raw_user_input") && shown.contains("dry_run_plan"));
        assert!(shown.contains("decision   allow\n") && shown.contains("executions none\n"), "{shown}");
        assert!(shown.lines().count() < 40 && !shown.starts_with('{'), "{shown}");
        let (status, replayed, _) = session.run(&["replay", &trace], "");
        assert_eq!(status.unwrap(), AgentStatus::Done);
        assert!(replayed.contains("the same decision"));
    }

    #[test]
    fn a_denied_input_has_its_own_status_and_reasons() {
        let (status, out, _) = Session::new().run(&["打开燃气阀"], "");
        assert_eq!(status.unwrap(), AgentStatus::Refused);
        assert!(out.contains("reason     policy: risk blocked is denied"));
        let (_, out, _) = Session::new().run(&["turn on the attic's \"light\""], "");
        assert!(!out.contains("\\\""), "{out}");
    }

    #[test]
    fn a_mistyped_subcommand_is_not_a_sentence() {
        let session = Session::new();
        for (text, meant) in [("trac", "trace"), ("traces", "trace"), ("memori", "memory"), ("device", "devices")] {
            match session.run(&[text], "").0 {
                Err(AgentCliError::Usage(message)) => assert!(message.contains(meant), "{message}"),
                other => panic!("{text}: {other:?}"),
            }
        }
        assert_eq!(session.run(&["hello"], "").0.unwrap(), AgentStatus::Refused);
    }

    #[test]
    fn words_that_were_not_understood_are_named() {
        let (status, out, _) = Session::new().run(&["sweetheart, turn on the kitchen light"], "");
        assert_eq!(status.unwrap(), AgentStatus::Done);
        assert_eq!(field(&out, "decision"), "require_confirmation (risk low)");
        assert!(out.contains("not understood: 'sweetheart'"), "{out}");
    }

    #[test]
    fn json_is_one_document() {
        let (_, out, _) = Session::new().run(&["turn on the kitchen light", "--format", "json"], "");
        let document: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(document["plan"]["device_id"], "kitchen_spots");
        assert_eq!(document["executable"], false);
        assert_eq!(document["execution"], serde_json::Value::Null);
    }

    #[test]
    fn execution_needs_flag_operator_and_confirmation() {
        let session = Session::new();
        assert!(matches!(session.run(&["打开客厅灯", "--execute"], "").0, Err(AgentCliError::Usage(_))));
        let (status, out, _) = session.run(&["打开客厅灯", "--operator", "OPERATOR"], "");
        assert!(status.is_ok() && out.contains("nothing was executed"));
        let (_, out, _) = session.run(&["打开厨房灯", "--execute", "--operator", "OPERATOR"], "");
        assert!(out.contains("executed   simulated turn_on on kitchen_spots"), "{out}");

        let (_, out, _) = session.run(&["unlock the front door", "--execute", "--operator", "OPERATOR"], "");
        assert!(out.contains("not confirmed, not executed"), "{out}");
        let (trace, hash) = (field(&out, "trace"), field(&out, "plan hash"));
        let (status, _, _) = session.run(&["execute", &trace, "--execute", "--operator", "OPERATOR"], "");
        assert_eq!(status.unwrap(), AgentStatus::Refused);
        let confirmed = ["execute", &trace, "--execute", "--operator", "OPERATOR", "--confirm", &hash];
        let (status, out, _) = session.run(&confirmed, "");
        assert_eq!(status.unwrap(), AgentStatus::Done, "{out}");
        let (status, out, _) = session.run(&confirmed, "");
        assert_eq!(status.unwrap(), AgentStatus::Refused);
        assert!(out.contains("executed already"), "{out}");
    }

    #[test]
    fn interactive_mode_reads_lines_and_confirms_by_hash() {
        let session = Session::new();
        let typed = "打开厨房灯\nturn it off\n/memory\n/nonsense\nremember the bedside lamp as the reading lamp\n/memory\n/quit\n打开客厅灯\n";
        let (status, out, err) = session.run(&[], typed);
        assert_eq!(status.unwrap(), AgentStatus::Done);
        assert_eq!(out.matches("decision   allow").count(), 2, "{out}");
        assert!(out.contains("turn_off on kitchen_spots"));
        assert!(out.contains("reading lamp = bedside_lamp"));
        assert!(err.contains("unknown command /nonsense"));
        assert!(!out.contains("lounge_ceiling_light"), "nothing is read after /quit");

        // a wrong answer to the question, and an input that tries to be one
        let (_, out, err) = session.run(&["--execute", "--operator", "OPERATOR"], "打开大门门锁\nyes\n/quit\n");
        assert!(err.contains("to execute this plan"), "{err}");
        assert!(out.contains("not confirmed, not executed"), "{out}");
    }

    #[test]
    fn names_can_be_forgotten() {
        let session = Session::new();
        session.run(&["以后把走廊灯叫做夜路灯"], "").0.unwrap();
        let (_, out, _) = session.run(&["memory"], "");
        assert!(out.starts_with("夜路灯 = corridor_strip"));
        assert_eq!(session.run(&["memory", "--forget", "夜路灯"], "").0.unwrap(), AgentStatus::Done);
        assert_eq!(session.run(&["memory", "--forget", "夜路灯"], "").0.unwrap(), AgentStatus::Refused);
        assert_eq!(session.run(&["memory", "--format", "json"], "").1.trim(), "[]");
    }

    /// The registry in the how-to is one, and its device can be spoken to.
    #[test]
    fn the_how_to_adds_a_device() {
        let how_to = include_str!("../../../../docs/how-to/agent.md");
        let yaml = how_to.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
        let session = Session::new();
        let path = session.dir.path().join("my-devices.yaml");
        std::fs::write(&path, yaml).unwrap();
        for text in ["turn on the balcony light", "关掉阳台灯"] {
            let (status, out, _) = session.run(&[text, "--devices", path.to_str().unwrap()], "");
            assert_eq!(status.unwrap(), AgentStatus::Done, "{out}");
            assert!(out.contains(" on balcony_light via mock"), "{out}");
        }
    }

    #[test]
    fn devices_and_unknown_traces() {
        let session = Session::new();
        let (_, out, _) = session.run(&["devices"], "");
        assert!(out.contains("main_door_lock  lock in entrance, mock, risk high"));
        assert_eq!(session.run(&["trace", "tr_none"], "").0.unwrap(), AgentStatus::Refused);
        assert_eq!(session.run(&["replay", "tr_none"], "").0.unwrap(), AgentStatus::Refused);
    }
}
