//! `harness gates`: runs the suite, prints the report, decides the exit code.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use bitnet_rs::{CpuFeatures, engine_info};
use clap::Args;
use files::children::Children;
use files::mapped::MappedFile;
use gguf::{Limits, ModelFile};

use super::output::{self, Format, ResultFile};
use super::progress::Stage;
use super::{CliError, input_error};
use crate::exit::Exit;
use crate::gates::runner::{Launcher, RunnerError};
use crate::gates::thresholds::Thresholds;
use crate::gates::{GateError, GateId, GateInputs, bridge, child as gate_child};
use crate::interrupt;
use crate::report::{self, Decision, Engine, FaultReport, GateReport, Host, ModelReport, Report, SCHEMA, Verdict};
use agent::evaluation::{Suite, SuiteError};
use agent::registry::RegistryError;
use models::source::ModelSource;
use reference::reference_file::ReferenceFile;

/// Options of `gates`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  harness gates\n  harness gates --model BitNet-b1.58-2B-4T.gguf --only 0,3a,3b --format json\n  harness gates --self-check"
)]
pub(crate) struct GatesArgs {
    /// GGUF file to test; without it the embedded model.
    #[arg(short, long, value_name = "GGUF")]
    model: Option<PathBuf>,
    /// Only these gates, comma separated (0,1,2,3a,3b,4,5). Without all of 0 to 3b P0 stays UNKNOWN, which the exit code
    /// says, too.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    only: Vec<String>,
    /// Not these gates.
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "only")]
    skip: Vec<String>,
    /// Reference logits for gate 2 (docs/formats/reference.md).
    #[arg(long, value_name = "FILE")]
    reference: Option<PathBuf>,
    /// More agent cases for gate 5, in the EdgeHome YAML form.
    #[arg(long, value_name = "FILE")]
    cases: Option<PathBuf>,
    /// Compute threads; clamped to the CPUs that this process may use. Default: all of those.
    #[arg(short, long, value_name = "N")]
    threads: Option<u32>,
    /// Form of the report.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Write the report here instead of stdout.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Plant each gate's faults; every one must be caught.
    #[arg(long)]
    self_check: bool,
    /// A stated subset of the checks.
    #[arg(long)]
    quick: bool,
    /// Refuse a model that is only warned of otherwise, e.g. without tokenizer.ggml.pre.
    #[arg(long)]
    strict: bool,
}

/// Options of the hidden child command.
#[derive(Debug, Args)]
pub(crate) struct ChildArgs {
    #[arg(long)]
    gate: String,
    #[arg(long)]
    model: Option<PathBuf>,
    #[arg(long)]
    reference: Option<PathBuf>,
    #[arg(long)]
    cases: Option<PathBuf>,
    #[arg(long)]
    threads: u32,
    #[arg(long)]
    quick: bool,
    #[arg(long)]
    plant_faults: bool,
    /// Gate 3b's first process: write the captured prefix here.
    #[arg(long, value_name = "DIR")]
    capture: Option<PathBuf>,
}

fn thresholds() -> Result<Thresholds, CliError> {
    Thresholds::embedded().map_err(|e| CliError::Usage(format!("gates/gates.toml: {e}")))
}

pub(crate) fn child(args: ChildArgs, children: &Children) -> Result<Exit, CliError> {
    let gate = GateId::from_id(&args.gate).ok_or_else(|| CliError::Usage(format!("no gate {}", args.gate)))?;
    let inputs = GateInputs {
        model: ModelSource::from_option(args.model),
        children: children.clone(),
        threads: args.threads,
        quick: args.quick,
        reference: args.reference,
        cases: args.cases,
        thresholds: thresholds()?,
    };
    if let Some(folder) = &args.capture {
        gate_child::die_with_parent().map_err(|e| CliError::Failed(e.to_string()))?;
        bridge::capture(&inputs, folder).map_err(gate_error)?;
        return Ok(Exit::Success);
    }
    let answer = gate_child::answer(gate, &inputs, args.plant_faults).map_err(gate_error)?;
    output::print(&output::json(&answer)?)?;
    Ok(Exit::Success)
}

pub(crate) fn run(args: GatesArgs, children: &Children) -> Result<Exit, CliError> {
    let gates = selected(&args)?;
    let threads = threads(args.threads)?;
    let inputs = GateInputs {
        model: ModelSource::from_option(args.model.clone()),
        children: children.clone(),
        threads,
        quick: args.quick,
        reference: args.reference.clone(),
        cases: args.cases.clone(),
        thresholds: thresholds()?,
    };
    check_out(&args)?;
    check_inputs(&args)?;
    let features = CpuFeatures::detect();
    bitnet_rs::backend::start().map_err(|e| CliError::Usage(e.to_string()))?;
    let model = inspect(&inputs.model, args.strict)?;
    let file = args.out.as_deref().map(ResultFile::create).transpose()?;

    let launcher = Launcher { interrupted: interrupt::cooperate(|| {}) };
    let started = Instant::now();
    let started_unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (mut reports, mut faults) = (Vec::new(), Vec::new());
    let mut stopped = run_gates(&launcher, &gates, &inputs, args.self_check, &mut reports, &mut faults).err();
    // The last gate may have ended before it noticed.
    if launcher.interrupted.load(Ordering::SeqCst) {
        stopped = Some(CliError::Interrupted);
    }
    let interrupted = stopped.is_some();
    let report = Report {
        schema: SCHEMA.into(),
        version: env!("CARGO_PKG_VERSION").into(),
        started_unix,
        duration_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        host: host(threads, &features),
        engine: engine(&features),
        model: Some(model),
        quick: args.quick,
        interrupted,
        p0: report::decide(&reports, args.quick, interrupted),
        gates: reports,
        self_check: faults,
    };
    let Some(why) = stopped else {
        let text = render(&report, args.format)?;
        match file {
            Some(file) => file.finish(&text)?,
            None => output::print(&text)?,
        }
        return Ok(exit(&report));
    };
    // The report of an earlier run stays; what these gates measured is not lost all the same.
    drop(file);
    if !report.gates.is_empty() {
        keep_partial(&report, &args)?;
    }
    Err(why)
}

/// Runs the gates in their order, saying which of how many; what is finished stands in `reports` and `faults` whatever
/// comes of the rest.
fn run_gates(
    launcher: &Launcher,
    gates: &[GateId],
    inputs: &GateInputs,
    self_check: bool,
    reports: &mut Vec<GateReport>,
    faults: &mut Vec<FaultReport>,
) -> Result<(), CliError> {
    for (i, gate) in gates.iter().enumerate() {
        let stage = Stage::begin(format!("gate {} of {}: {} {}", i + 1, gates.len(), gate.id(), gate.title()));
        let mut say = |what: &str| stage.say(what);
        let report = launcher.gate(*gate, inputs, &mut say).map_err(runner_error)?;
        let mut outcome = format!("{} in {:.1} s", report.verdict.name(), report.duration_ms as f64 / 1000.0);
        reports.push(report);
        if self_check {
            let planted = launcher.self_check(*gate, inputs, &mut say).map_err(runner_error)?;
            let caught = planted.iter().filter(|f| f.caught).count();
            let applicable = planted.iter().filter(|f| !f.not_applicable).count();
            outcome += &format!(", {caught} of {applicable} planted faults caught");
            faults.extend(planted);
        }
        stage.end(&outcome);
    }
    Ok(())
}

fn render(report: &Report, format: Format) -> Result<String, CliError> {
    Ok(match format {
        Format::Text => report::text(report),
        Format::Json => output::json(report)?,
        Format::Markdown => report::markdown(report),
        Format::Junit => report::junit(report),
    })
}

/// The report of a run that did not come to its end: on stdout, or beside the file that a whole one would replace.
fn keep_partial(report: &Report, args: &GatesArgs) -> Result<(), CliError> {
    let text = render(report, args.format)?;
    let Some(out) = &args.out else { return output::print(&text) };
    let mut name = out.clone().into_os_string();
    name.push(".partial");
    let path = PathBuf::from(name);
    super::not_an_input("--out", &path, inputs_of(args))?;
    ResultFile::create(&path)?.finish(&text)?;
    output::note(format_args!("the gates that had ended are in {}", path.display()));
    Ok(())
}

/// Files that no report replaces.
fn inputs_of(args: &GatesArgs) -> impl Iterator<Item = &PathBuf> {
    [&args.model, &args.reference, &args.cases].into_iter().flatten()
}

/// Files for gates are refused before any gate runs: a FAIL is a statement about the model.
fn check_inputs(args: &GatesArgs) -> Result<(), CliError> {
    if let Some(path) = &args.reference {
        let bytes = MappedFile::open(path).map_err(|e| input_error("--reference", path, e))?;
        ReferenceFile::parse(&bytes).map_err(|e| CliError::Refused(format!("--reference {}: {e}", path.display())))?;
    }
    if let Some(path) = &args.cases {
        Suite::load(path).map_err(|e| match e {
            SuiteError::Read(RegistryError::Read { path, source }) => input_error("--cases", &path, source),
            e => CliError::Refused(format!("--cases {}: {e}", path.display())),
        })?;
    }
    Ok(())
}

/// A report replaces what stands in its place, but never one of its own inputs.
fn check_out(args: &GatesArgs) -> Result<(), CliError> {
    let Some(out) = &args.out else { return Ok(()) };
    super::not_an_input("--out", out, inputs_of(args))
}

fn gate_error(e: GateError) -> CliError {
    match e {
        GateError::Interrupted => CliError::Interrupted,
        other => CliError::Failed(other.to_string()),
    }
}

fn runner_error(e: RunnerError) -> CliError {
    match e {
        RunnerError::Interrupted => CliError::Interrupted,
        other => CliError::Failed(other.to_string()),
    }
}

fn selected(args: &GatesArgs) -> Result<Vec<GateId>, CliError> {
    let known: Vec<&str> = GateId::ALL.iter().map(|g| g.id()).collect();
    let parse = |list: &[String]| {
        list.iter()
            .map(|id| {
                GateId::from_id(id.trim())
                    .ok_or_else(|| CliError::Usage(format!("no gate {id:?}; there are {}", known.join(", "))))
            })
            .collect::<Result<Vec<_>, _>>()
    };
    let (only, skip) = (parse(&args.only)?, parse(&args.skip)?);
    let chosen: Vec<GateId> =
        GateId::ALL.into_iter().filter(|g| (args.only.is_empty() || only.contains(g)) && !skip.contains(g)).collect();
    if chosen.is_empty() { Err(CliError::Usage("no gate is left to run".into())) } else { Ok(chosen) }
}

/// Clamps a thread count to the CPUs that this process may use and says so; 0 is refused.
pub(super) fn threads(wanted: Option<u32>) -> Result<u32, CliError> {
    let available = bitnet_rs::threads::available();
    match wanted {
        None => Ok(available),
        Some(0) => Err(CliError::Usage("--threads 0: at least one thread is needed".into())),
        Some(n) if n > available => {
            output::note(format_args!(
                "note: --threads {n} clamped to {available}, the CPUs available to this process"
            ));
            Ok(available)
        }
        Some(n) => Ok(n),
    }
}

fn inspect(source: &ModelSource, strict: bool) -> Result<ModelReport, CliError> {
    let refused = |e: &dyn std::fmt::Display| CliError::Refused(format!("model {}: {e}", source.name()));
    let limits = if strict { Limits::strict() } else { Limits::default() };
    let path = super::model_path(source)?;
    let file = ModelFile::open(path.as_path(), &limits).map_err(|e| super::model_error(source, e))?;
    let info = file.info();
    let h = info.hyperparameters();
    let shapes: BTreeMap<String, u64> = [
        ("n_layer", h.n_layer),
        ("n_embd", h.n_embd),
        ("n_ff", h.n_ff),
        ("n_head", h.n_head),
        ("n_head_kv", h.n_head_kv),
        ("head_dim", h.head_dim),
        ("n_vocab", h.n_vocab),
        ("n_ctx_train", h.n_ctx_train),
    ]
    .map(|(k, v)| (k.to_owned(), u64::from(v)))
    .into();
    let file_hash = file.file().file_hash(&mut |_, _| std::ops::ControlFlow::Continue(())).map_err(|e| refused(&e))?;
    Ok(ModelReport {
        name: info.name().unwrap_or("unnamed").to_owned(),
        source: source.name(),
        file_hash: file_hash.to_string(),
        arch_hash: info.arch_hash().to_string(),
        architecture: info.architecture().name().to_owned(),
        shapes,
        warnings: info.warnings().iter().map(ToString::to_string).collect(),
    })
}

/// The CPU as the system names it.
pub(super) fn cpu_model() -> String {
    let table = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = |l: &str| Some(l.strip_prefix("model name")?.split_once(':')?.1.trim().to_owned());
    table.lines().find_map(name).unwrap_or_else(|| "unknown".into())
}

pub(super) fn host(threads: u32, features: &CpuFeatures) -> Host {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let memory = read("/proc/meminfo")
        .lines()
        .find_map(|l| l.strip_prefix("MemTotal:").and_then(|r| r.split_whitespace().next()?.parse::<u64>().ok()));
    let kernel = read("/proc/sys/kernel/osrelease");
    Host {
        cpu: cpu_model(),
        cpus: bitnet_rs::threads::available(),
        threads,
        memory_bytes: memory.unwrap_or(0) * 1024,
        os: format!("{} {}", std::env::consts::OS, kernel.trim()),
        features: features.present.iter().map(|s| (*s).to_owned()).collect(),
    }
}

pub(super) fn engine(features: &CpuFeatures) -> Engine {
    Engine {
        commit: engine_info::ENGINE_COMMIT.into(),
        llama_cpp_commit: engine_info::LLAMA_CPP_COMMIT.into(),
        source_hash: format!("sha256:{}", engine_info::SOURCE_DIGEST),
        compiler: engine_info::COMPILER.into(),
        flags: engine_info::COMPILER_FLAGS.into(),
        features: features.compiled.iter().map(|s| (*s).to_owned()).collect(),
        kernel: "I2_S MAD AVX2, 128 weights in 32 bytes".into(),
        threading: engine_info::THREADING.into(),
    }
}

/// A FAIL, else an UNKNOWN, P0's included: where gates were left out, nothing is decided.
fn exit(report: &Report) -> Exit {
    let any = |v: Verdict| report.gates.iter().any(|g| g.verdict == v);
    if any(Verdict::Fail) || report.self_check.iter().any(FaultReport::missed) {
        Exit::Fail
    } else if any(Verdict::Unknown) || report.p0.decision == Decision::Unknown {
        Exit::Unknown
    } else {
        Exit::Success
    }
}
