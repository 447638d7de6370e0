//! `harness bench`: speed of the engine, of cartridges and of grammars on this machine.

use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bitnet_rs::{CpuFeatures, Model, ModelParams};
use clap::{Args, Subcommand};
use grammar::schema::{Mode, SchemaOptions};
use grammar::{Grammar, GrammarLimits, Language};
use indicatif::ProgressBar;
use kv::KvType;
use serde_json::{Value, json};

use super::output::{self, ResultFile};
use super::{CliError, progress};
use crate::bench::profile::{Place, Profile, Stamp};
use crate::bench::speed::{self, Best, SpeedOptions, SpeedRow};
use crate::bench::table::Table;
use crate::bench::{self, BenchError, MeasuredModel, SCHEMA};
use crate::exit::Exit;
use crate::interrupt;
use files::atomic_file::{AtomicFile, Overwrite};
use files::scratch::Scratch;
use files::size::for_people;
use grammar::tools::ToolRegistry;
use models::source::{ModelPath, ModelSource};

/// The tool grammar that is measured unless another is given.
const HOME_TOOLS: &str = include_str!("../../../gates/grammars/home.toml");

/// Form of a bench's result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    /// For people.
    #[default]
    Text,
    /// Tables for a document.
    Markdown,
    /// One JSON document with every sample.
    Json,
}

/// Options of `bench`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  harness bench -p 512 -n 128 -t 1,2\n  harness bench --sweep --save-profile\n  harness bench cartridge --model m.gguf\n  harness bench grammar\n  harness bench bandwidth -t 1,2\n\nTokens per second as llama-bench counts them. docs/how-to/bench.md explains the figures and the profile."
)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    command: Option<BenchCommand>,
    #[command(flatten)]
    speed: SpeedArgs,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Mounting a cartridge against prefilling its text.
    Cartridge(CartridgeArgs),
    /// Grammar masks against decoding.
    Grammar(GrammarArgs),
    /// What decoding reads per second against what the machine can read.
    Bandwidth(BandwidthArgs),
}

#[derive(Debug, Args)]
struct On {
    /// GGUF file; without it the embedded model.
    #[arg(short, long, value_name = "GGUF")]
    model: Option<PathBuf>,
    /// Form of the result.
    #[arg(short = 'o', long, visible_alias = "output", value_enum, default_value_t)]
    format: Form,
    /// Write the result here instead of stdout.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct SpeedArgs {
    #[command(flatten)]
    on: On,
    /// Prompt lengths; 0 for none.
    #[arg(short = 'p', long, value_name = "LIST", value_delimiter = ',', default_value = "512")]
    n_prompt: Vec<u32>,
    /// Numbers of decoded tokens; 0 for none.
    #[arg(short = 'n', long, value_name = "LIST", value_delimiter = ',', default_value = "128")]
    n_gen: Vec<u32>,
    /// Thread counts; clamped to the CPUs that this process may use. Default: all of those.
    #[arg(short, long, value_name = "LIST", value_delimiter = ',')]
    threads: Vec<u32>,
    /// Most tokens handed to one decode call.
    #[arg(short, long, value_name = "LIST", value_delimiter = ',', default_value = "2048")]
    batch_size: Vec<u32>,
    /// Most tokens per micro-batch (llama-bench's -ub works, too).
    #[arg(short = 'u', long, value_name = "LIST", value_delimiter = ',', default_value = "512")]
    ubatch_size: Vec<u32>,
    /// Timed runs of each row.
    #[arg(short, long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Type of cached keys.
    #[arg(long, default_value = "f16")]
    type_k: KvType,
    /// Type of cached values; other than f16 needs flash attention.
    #[arg(long, default_value = "f16")]
    type_v: KvType,
    /// Flash attention.
    #[arg(long, visible_alias = "fa")]
    flash_attn: bool,
    /// Try thread counts, then micro-batches, and say which are best.
    #[arg(long, conflicts_with_all = ["threads", "ubatch_size"])]
    sweep: bool,
    /// Keep the best settings for the other commands: here, or in the folder for profiles.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "")]
    save_profile: Option<OsString>,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  harness bench cartridge --model m.gguf -p 64,256,1024,4096")]
struct CartridgeArgs {
    #[command(flatten)]
    on: On,
    /// Lengths of the prefix. Default: those of 64,256,1024,4096 that the model's context holds.
    #[arg(short = 'p', long, value_name = "LIST", value_delimiter = ',')]
    n_prompt: Vec<u32>,
    /// Timed runs of everything but prefill.
    #[arg(short, long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Timed prefills of each length.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    prefills: u32,
    /// Threads of prefill.
    #[arg(short, long, value_name = "N")]
    threads: Option<u32>,
    /// Micro-batch of prefill.
    #[arg(short = 'u', long, default_value_t = 512)]
    ubatch_size: u32,
    /// Flash attention.
    #[arg(long, visible_alias = "fa")]
    flash_attn: bool,
    /// Type of the keys.
    #[arg(long, default_value = "f16")]
    type_k: KvType,
    /// Type of the values; other than f16 needs flash attention.
    #[arg(long, default_value = "f16")]
    type_v: KvType,
    /// Folder for the files meanwhile; what is in it besides stays.
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  harness bench grammar --tools gates/grammars/home.toml --outputs 20\n  harness bench grammar --model m.gguf --schemas json-schemas"
)]
struct GrammarArgs {
    #[command(flatten)]
    on: On,
    /// GBNF file. Default: a call of the suite's household tools.
    #[arg(long, value_name = "FILE", conflicts_with = "tools")]
    grammar: Option<PathBuf>,
    /// Tool registry (TOML or JSON).
    #[arg(long, value_name = "FILE")]
    tools: Option<PathBuf>,
    /// Schemas with their instances instead, as MaskBench has them: a .jsonl file, or a folder of such.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["grammar", "tools"])]
    schemas: Option<PathBuf>,
    /// Outputs.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    outputs: u32,
    /// Most tokens of one output.
    #[arg(long, default_value_t = 128)]
    max_tokens: u32,
    /// Threads of decoding.
    #[arg(short, long, value_name = "N")]
    threads: Option<u32>,
    /// Seed of the random choice.
    #[arg(long, default_value_t = 0)]
    seed: u32,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  harness bench bandwidth --model m.gguf -t 1,2")]
struct BandwidthArgs {
    #[command(flatten)]
    on: On,
    /// Thread counts; clamped to the CPUs that this process may use. Default: all of those.
    #[arg(short, long, value_name = "LIST", value_delimiter = ',')]
    threads: Vec<u32>,
    /// Decoded tokens of a run.
    #[arg(short = 'n', long, default_value_t = 64)]
    n_gen: u32,
    /// Timed runs.
    #[arg(short, long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
}

fn bench_error(e: BenchError) -> CliError {
    use bitnet_rs::Error as E;
    match e {
        BenchError::Option { .. } => CliError::Usage(format!("--{e}")),
        BenchError::Engine(
            E::ContextParam { .. } | E::KvType { .. } | E::ContextMemory { .. } | E::UnsupportedCpu { .. },
        ) => CliError::Usage(e.to_string()),
        BenchError::Interrupted => CliError::Interrupted,
        other => CliError::Failed(other.to_string()),
    }
}

/// A loaded model and what every result says of it.
struct Subject {
    model: Model,
    about: MeasuredModel,
    stamp: Option<Stamp>,
    stop: Arc<AtomicBool>,
    file: Option<ResultFile>,
    bar: ProgressBar,
    _path: ModelPath,
}

impl Subject {
    /// `inputs` are files beside the model that the result must not replace.
    fn load<'p>(on: &'p On, inputs: impl IntoIterator<Item = &'p PathBuf>) -> Result<Self, CliError> {
        if let Some(out) = &on.out {
            super::not_an_input("--out", out, on.model.iter().chain(inputs))?;
        }
        let file = on.out.as_deref().map(ResultFile::create).transpose()?;
        let source = ModelSource::from_option(on.model.clone());
        let path = super::model_path(&source)?;
        let stop = interrupt::cooperate(|| {});
        let bar = progress::spinner("bench");
        bar.set_message("loading and hashing the model");
        let model = Model::load(path.as_path(), ModelParams::default()).map_err(|e| super::load_error(&source, e))?;
        let hash = model.file().file().file_hash(&mut |_, _| ControlFlow::Continue(()));
        let hash = hash.map_err(|e| super::model_error(&source, e))?;
        let h = model.info().hyperparameters();
        let about = MeasuredModel {
            name: model.info().name().unwrap_or("unnamed").to_owned(),
            source: source.name(),
            hash: hash.to_string(),
            bytes: model.file().gguf().file_len(),
            n_layer: h.n_layer,
            n_embd: h.n_embd,
            n_vocab: h.n_vocab,
        };
        // The embedded model is written to another place each time.
        let stamp = on.model.as_deref().and_then(Stamp::of);
        Ok(Self { model, about, stamp, stop, file, bar, _path: path })
    }

    fn say(&self) -> impl FnMut(&str) + use<> {
        let bar = self.bar.clone();
        move |what: &str| bar.set_message(what.to_owned())
    }

    /// Prints the result, or puts it into its file.
    fn finish(
        self,
        form: Form,
        threads: u32,
        tables: &[(&str, Table)],
        notes: &[String],
        body: Value,
    ) -> Result<(), CliError> {
        self.bar.finish_and_clear();
        let features = CpuFeatures::detect();
        let (host, engine) = (super::gates::host(threads, &features), super::gates::engine(&features));
        let text = match form {
            Form::Json => {
                let mut document = json!({
                    "schema": SCHEMA, "version": env!("CARGO_PKG_VERSION"),
                    "host": host, "engine": engine, "model": self.about,
                });
                if let (Value::Object(document), Value::Object(body)) = (&mut document, body) {
                    document.extend(body);
                }
                output::json(&document)?
            }
            Form::Text | Form::Markdown => {
                let m = &self.about;
                let about = [
                    format!(
                        "model   {} ({}), {}, {} layers of {}, {} tokens",
                        m.name,
                        m.source,
                        for_people(m.bytes),
                        m.n_layer,
                        m.n_embd,
                        m.n_vocab
                    ),
                    format!("host    {}, {} CPUs, {}", host.cpu, host.cpus, host.os),
                    format!(
                        "engine  {} {}, {}, {}",
                        &engine.commit[..9.min(engine.commit.len())],
                        engine.kernel,
                        engine.threading,
                        engine.compiler
                    ),
                    format!("flags   {}", engine.flags),
                ];
                let markdown = form == Form::Markdown;
                let mut text = String::new();
                let mut line = |l: &str| {
                    text.push_str(l);
                    text.push_str(if markdown { "  \n" } else { "\n" });
                };
                about.iter().for_each(|l| line(l));
                for (title, table) in tables {
                    text.push('\n');
                    if !title.is_empty() {
                        text.push_str(title);
                        text.push_str(if markdown { "\n\n" } else { "\n" });
                    }
                    text.push_str(&if markdown { table.markdown() } else { table.text() });
                }
                if !notes.is_empty() {
                    text.push('\n');
                    for note in notes {
                        text.push_str(note);
                        text.push_str(if markdown { "  \n" } else { "\n" });
                    }
                }
                text
            }
        };
        match self.file {
            Some(file) => file.finish(&text),
            None => output::print(&text),
        }
    }
}

pub(crate) fn run(args: BenchArgs) -> Result<Exit, CliError> {
    match args.command {
        None => speed(args.speed),
        Some(BenchCommand::Cartridge(args)) => cartridge(args),
        Some(BenchCommand::Grammar(args)) => grammar(args),
        Some(BenchCommand::Bandwidth(args)) => bandwidth(args),
    }
}

fn speed_table(rows: &[SpeedRow]) -> Table {
    let mut table = Table::new(["test", "threads", "batch", "ubatch", "K", "V", "fa", "t/s", "min", "max"]);
    for r in rows {
        table.row([
            r.test.clone(),
            r.threads.to_string(),
            r.n_batch.to_string(),
            r.n_ubatch.to_string(),
            r.type_k.clone(),
            r.type_v.clone(),
            u8::from(r.flash_attn).to_string(),
            r.tokens_per_second.text(2),
            format!("{:.2}", r.tokens_per_second.min),
            format!("{:.2}", r.tokens_per_second.max),
        ]);
    }
    table
}

fn speed(args: SpeedArgs) -> Result<Exit, CliError> {
    let mut options = SpeedOptions {
        n_prompt: args.n_prompt,
        n_gen: args.n_gen,
        threads: args.threads,
        n_batch: args.batch_size,
        n_ubatch: args.ubatch_size,
        type_k: args.type_k,
        type_v: args.type_v,
        flash_attn: args.flash_attn,
        repetitions: args.repetitions,
    };
    if options.threads.is_empty() {
        options.threads.push(bitnet_rs::threads::available());
    }
    options.check_rows().map_err(bench_error)?;
    for threads in &mut options.threads {
        *threads = super::gates::threads(Some(*threads))?;
    }
    // Where the profile goes is known before minutes of measuring, not after.
    let place = match &args.save_profile {
        None => None,
        Some(file) if file.is_empty() => {
            let place = Place::from_env();
            place.file_for("").map_err(super::profile::error)?;
            Some(place)
        }
        Some(file) => Some(Place::File(file.into())),
    };
    if let Some(place) = &place {
        check_profile_target(place, &args.on)?;
    }
    // clap's `requires` takes a switch that is off for given.
    if place.is_some() && !args.sweep {
        return Err(CliError::Usage("--save-profile keeps what --sweep finds: give both".into()));
    }
    if args.sweep {
        return sweep(&args.on, options, place);
    }
    let cases = options.cases();
    if cases.is_empty() {
        return Err(CliError::Usage("nothing to measure: give -p or -n a length above 0".into()));
    }
    let subject = Subject::load(&args.on, None)?;
    let rows =
        speed::measure(&subject.model, &options, &cases, &mut subject.say(), &subject.stop).map_err(bench_error)?;
    let most = options.threads.iter().copied().max().unwrap_or(1);
    let body = json!({"kind": "speed", "repetitions": options.repetitions, "rows": rows});
    subject.finish(args.on.format, most, &[("", speed_table(&rows))], &[], body)?;
    Ok(Exit::Success)
}

fn sweep(on: &On, options: SpeedOptions, place: Option<Place>) -> Result<Exit, CliError> {
    let one = |list: &[u32], option: &str| match list {
        [n] if *n > 0 => Ok(*n),
        _ => Err(CliError::Usage(format!("--sweep takes one {option} above 0"))),
    };
    let n_prompt = one(&options.n_prompt, "-p")?;
    one(&options.n_gen, "-n")?;
    one(&options.n_batch, "-b")?;
    let subject = Subject::load(on, None)?;
    let measure = |o: &SpeedOptions| {
        speed::measure(&subject.model, o, &o.cases(), &mut subject.say(), &subject.stop).map_err(bench_error)
    };
    let available = bitnet_rs::threads::available();
    let by_threads = measure(&SpeedOptions { threads: speed::thread_counts(available), ..options.clone() })?;
    let threads = speed::best_threads(&by_threads).unwrap_or(available);
    let by_ubatch = measure(&SpeedOptions {
        threads: vec![threads],
        n_ubatch: speed::ubatch_sizes(n_prompt),
        n_gen: Vec::new(),
        ..options.clone()
    })?;
    let decode = by_threads.iter().find(|r| r.threads == threads && r.n_gen > 0);
    let (Some(prefill), Some(decode)) = (speed::best_ubatch(&by_ubatch), decode) else {
        return Err(CliError::Failed("the sweep measured nothing".into()));
    };
    let best = Best {
        threads,
        n_ubatch: prefill.n_ubatch,
        prefill: prefill.tokens_per_second.median,
        decode: decode.tokens_per_second.median,
    };
    let mut notes = vec![format!(
        "best: --threads {}, micro-batch {}: prefill {:.1} t/s, decode {:.1} t/s (medians; within {:.0} % counts as equal, then the smaller)",
        best.threads,
        best.n_ubatch,
        best.prefill,
        best.decode,
        speed::EQUAL_WITHIN * 100.0
    )];
    let mut saved = None;
    if let Some(place) = place {
        let path = place.file_for(&subject.about.hash).map_err(super::profile::error)?;
        let cpu = super::gates::cpu_model();
        save(&path, &Profile::of(&best, &subject.about, subject.stamp.clone(), &cpu, available))?;
        notes.push(format!("saved in {}", path.display()));
        saved = Some(path);
    }
    let body = json!({
        "kind": "sweep", "repetitions": options.repetitions,
        "by_threads": by_threads, "by_ubatch": by_ubatch, "best": best, "profile": saved,
    });
    let tables = [("threads", speed_table(&by_threads)), ("micro-batch", speed_table(&by_ubatch))];
    subject.finish(on.format, available, &tables, &notes, body)?;
    Ok(Exit::Success)
}

/// Refuses what cannot become a profile; folders that are missing are made when it is saved.
fn check_profile_target(place: &Place, on: &On) -> Result<(), CliError> {
    let usage = |what: String| CliError::Usage(format!("--save-profile: {what}"));
    let (folder, file) = match place {
        Place::File(path) => (path.parent(), Some(path)),
        Place::Folder(folder) => (folder.as_deref(), None),
        Place::Off => (None, None),
    };
    if let Some(path) = file {
        super::not_an_input("--save-profile", path, &on.model)?;
        let same = |out: &PathBuf| std::path::absolute(out).ok() == std::path::absolute(path).ok();
        if on.out.as_ref().is_some_and(same) {
            return Err(usage(format!("{} is also where the result goes", path.display())));
        }
    }
    let folder = folder.filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if let Some(there) = folder.ancestors().find(|f| fs::symlink_metadata(f).is_ok())
        && !there.is_dir()
    {
        return Err(usage(format!("{} is no folder", there.display())));
    }
    match file {
        Some(path) if folder.is_dir() => {
            AtomicFile::create(path, Overwrite::Replace).map(drop).map_err(|e| usage(e.to_string()))
        }
        _ => Ok(()),
    }
}

fn save(path: &Path, profile: &Profile) -> Result<(), CliError> {
    let failed = |e: &dyn std::fmt::Display| CliError::Failed(format!("--save-profile {}: {e}", path.display()));
    if let Some(folder) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        fs::create_dir_all(folder).map_err(|e| failed(&e))?;
    }
    let text = profile.to_toml().map_err(|e| failed(&e))?;
    let mut file = AtomicFile::create(path, Overwrite::Replace).map_err(|e| failed(&e))?;
    file.write_all(text.as_bytes()).map_err(|e| failed(&e))?;
    file.commit().map_err(|e| failed(&e))
}

fn cartridge(args: CartridgeArgs) -> Result<Exit, CliError> {
    if args.n_prompt.len() > speed::MAX_ROWS {
        let n = args.n_prompt.len();
        return Err(CliError::Usage(format!("--n-prompt: a list of {n}; at most {} are measured", speed::MAX_ROWS)));
    }
    let threads = super::gates::threads(args.threads)?;
    let io = |e: std::io::Error| CliError::Usage(format!("--folder: {e}"));
    let folder = match &args.folder {
        Some(folder) => Scratch::in_folder(folder),
        None => Scratch::new(),
    }
    .map_err(io)?;
    let subject = Subject::load(&args.on, None)?;
    let n_ctx_train = subject.model.info().hyperparameters().n_ctx_train;
    let (mut lengths, mut notes) = (args.n_prompt.clone(), Vec::new());
    if lengths.is_empty() {
        lengths = vec![64, 256, 1024, 4096];
        let left_out: Vec<String> = lengths.iter().filter(|&&n| n > n_ctx_train).map(u32::to_string).collect();
        lengths.retain(|&n| n <= n_ctx_train);
        if !left_out.is_empty() {
            notes.push(format!("left out: p = {}, beyond the model's context of {n_ctx_train}", left_out.join(", ")));
        }
    }
    subject.bar.set_message("hashing the weights");
    let started = std::time::Instant::now();
    let lock = session::lock_of(&subject.model, &mut |_, _| ControlFlow::Continue(()))
        .map_err(|e| CliError::Failed(e.to_string()))?;
    let lock_ms = started.elapsed().as_secs_f64() * 1e3;
    notes.push(format!("the lock, computed once per loaded model: {lock_ms:.0} ms (all weights are hashed)"));
    notes.push("hashed: payload hash checked; full: finiteness, too; head-major: converted while mounting".into());
    let options = bench::cartridge::CartridgeOptions {
        lengths,
        repetitions: args.repetitions,
        prefills: args.prefills,
        threads,
        n_ubatch: args.ubatch_size,
        flash_attn: args.flash_attn,
        type_k: args.type_k,
        type_v: args.type_v,
    };
    let rows =
        bench::cartridge::measure(&subject.model, &lock, &options, folder.path(), &mut subject.say(), &subject.stop)
            .map_err(bench_error)?;
    let body = json!({
        "kind": "cartridge", "repetitions": args.repetitions, "prefills": args.prefills, "threads": threads,
        "flash_attn": args.flash_attn, "type_k": args.type_k.name(), "type_v": args.type_v.name(),
        "lock_ms": lock_ms, "rows": rows,
    });
    subject.finish(args.on.format, threads, &[("", bench::cartridge::table(&rows))], &notes, body)?;
    Ok(Exit::Success)
}

/// `bench grammar --schemas`.
fn schemas(args: &GrammarArgs, path: &Path) -> Result<Exit, CliError> {
    let files = bench::schemas::files(path).map_err(bench_error)?;
    if files.is_empty() {
        return Err(CliError::Usage(format!("--schemas {}: no .jsonl file is in it", path.display())));
    }
    let subject = Subject::load(&args.on, &files)?;
    let mut rows = Vec::new();
    for file in &files {
        for mode in [Mode::Open, Mode::Declared] {
            let row = bench::schemas::measure(&subject.model, file, mode, &mut subject.say(), &subject.stop)
                .map_err(bench_error)?;
            let name = file.file_stem().unwrap_or_default().to_string_lossy();
            rows.push((format!("{name}, {}", if mode == Mode::Open { "open" } else { "declared" }), row));
        }
    }
    let notes = [
        format!("vocabulary of {} tokens; times are CPU time of one thread, in microseconds", subject.about.n_vocab),
        "a mask is timed before each token of every matched instance; compiling is reading the schema and making its \
         grammar for the vocabulary"
            .to_owned(),
        "published: MaskBench's own table over all 8,845 schemas, measured elsewhere".to_owned(),
    ];
    let named = |(name, row): &(String, bench::schemas::SchemasRow)| json!({"schemas": name, "row": row});
    let body = json!({"kind": "schemas", "rows": rows.iter().map(named).collect::<Vec<_>>()});
    subject.finish(args.on.format, 1, &[("", bench::schemas::table(&rows))], &notes, body)?;
    Ok(Exit::Success)
}

fn grammar(args: GrammarArgs) -> Result<Exit, CliError> {
    if let Some(path) = &args.schemas {
        return schemas(&args, path);
    }
    let threads = super::gates::threads(args.threads)?;
    let (name, grammar) = match (&args.grammar, &args.tools) {
        (Some(path), _) => {
            let text = super::generate::read_text("--grammar", path)?;
            let grammar = Grammar::parse(&text, "root", &GrammarLimits::default())
                .map_err(|e| super::generate::refused("--grammar", path, &e))?;
            (path.display().to_string(), Language::from(grammar))
        }
        (None, Some(path)) => {
            let registry = super::generate::tool_registry(path, super::generate::SchemaMode::Declared)?;
            (path.display().to_string(), registry.language())
        }
        (None, None) => {
            let registry = ToolRegistry::from_toml(HOME_TOOLS, &SchemaOptions::default())
                .map_err(|e| CliError::Failed(format!("gates/grammars/home.toml: {e}")))?;
            ("gates/grammars/home.toml (embedded)".to_owned(), registry.language())
        }
    };
    let subject = Subject::load(&args.on, args.grammar.iter().chain(&args.tools))?;
    let options =
        bench::grammar::GrammarOptions { outputs: args.outputs, max_tokens: args.max_tokens, threads, seed: args.seed };
    let row = bench::grammar::measure(&subject.model, &grammar, &options, &mut subject.say(), &subject.stop)
        .map_err(bench_error)?;
    let notes = [
        format!("grammar: {name}"),
        format!(
            "vocabulary of {} tokens, {} prefixes, tree built once in {:.0} ms; {} outputs, {} of them complete, {} tokens",
            row.n_vocab, row.trie_nodes, row.trie_ms, row.outputs, row.complete, row.tokens
        ),
        format!(
            "masks take {:.2} % of the time of decoding, masks and accepts {:.2} %",
            row.mask_to_decode * 100.0,
            row.constraint_to_decode * 100.0
        ),
    ];
    let body = json!({"kind": "grammar", "grammar": name, "threads": threads, "row": row});
    subject.finish(args.on.format, threads, &[("", bench::grammar::table(&row))], &notes, body)?;
    Ok(Exit::Success)
}

/// Most thread counts of one run.
const MAX_THREAD_COUNTS: usize = 64;

/// The thread counts asked for, else all CPUs.
fn thread_list(asked: &[u32]) -> Result<Vec<u32>, CliError> {
    match asked {
        _ if asked.len() > MAX_THREAD_COUNTS => {
            Err(CliError::Usage(format!("--threads: {} counts, at most {MAX_THREAD_COUNTS}", asked.len())))
        }
        [] => Ok(vec![super::gates::threads(None)?]),
        _ => asked.iter().map(|&t| super::gates::threads(Some(t))).collect(),
    }
}

fn bandwidth(args: BandwidthArgs) -> Result<Exit, CliError> {
    let threads = thread_list(&args.threads)?;
    let subject = Subject::load(&args.on, None)?;
    let options = bench::bandwidth::BandwidthOptions { threads, n_gen: args.n_gen, repetitions: args.repetitions };
    let rows =
        bench::bandwidth::measure(&subject.model, &options, &mut subject.say(), &subject.stop).map_err(bench_error)?;
    let most = options.threads.iter().copied().max().unwrap_or(1);
    let body = json!({"kind": "bandwidth", "n_gen": args.n_gen, "repetitions": args.repetitions, "rows": rows});
    let notes = ["read: 512 MiB over and over, all threads together; decoding reads its weights once per token".into()];
    subject.finish(args.on.format, most, &[("", bench::bandwidth::table(&rows))], &notes, body)?;
    Ok(Exit::Success)
}
