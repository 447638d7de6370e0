//! `harness model`: synthetic models, inspection, recordings, and the tools of `model/`.

mod convert;
mod perplexity;
mod pull;
mod quantize;
mod tokenize;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use clap::{Args, Subcommand};
use gguf::{GgufFile, Limits};
use kv::KvType;

use super::output::{self, TextOrJson};
use super::{CliError, input_error, progress};
use crate::exit::Exit;
use crate::gates::thresholds::Thresholds;
use crate::gates::{GateError, GateInputs, first_light};
use files::children::Children;
use files::input_file;
use files::size::for_people;
use models::hf_folder::{self, HfFolderError};
use models::inspect::{self, InspectOptions};
use models::source::ModelSource;
use synth::{PRESETS, SynthError, SynthSpec, write_synth_file};

/// Largest list of prompts, in bytes.
const MAX_PROMPTS: u64 = 16 << 20;

/// Options of `model`.
#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    #[command(subcommand)]
    command: ModelCommand,
}

#[derive(Debug, Subcommand)]
enum ModelCommand {
    /// Write a model with random ternary weights of a named shape.
    Synth(SynthArgs),
    /// What a GGUF file holds, from our own reader.
    Inspect(InspectArgs),
    /// Record a model's greedy continuations for gate 0.
    Record(RecordArgs),
    /// The engine's token ids of a text.
    Tokenize(tokenize::TokenizeArgs),
    /// Write a copy with other tensor types: the embedding in q6_k, q8_0, f16 …
    Quantize(quantize::QuantizeArgs),
    /// Write a copy with its ternary tensors in another packing, without loss.
    Repack(quantize::RepackArgs),
    /// Write a HuggingFace checkpoint of a ternary family as GGUF.
    Convert(convert::ConvertArgs),
    /// Fetch a model from the HuggingFace hub, resumable and hash-checked.
    Pull(pull::PullArgs),
    /// Perplexity of a text, counted as llama-perplexity does.
    Perplexity(perplexity::PerplexityArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  harness model synth --preset 2b --seed 1 --out m.gguf")]
struct SynthArgs {
    /// Shape; --list shows them.
    #[arg(long, required_unless_present = "list")]
    preset: Option<String>,
    /// List the presets and their sizes.
    #[arg(long)]
    list: bool,
    /// Seed of the weights.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Carry this tokenizer.json (or that of this folder) instead of a made-up vocabulary.
    #[arg(long, value_name = "PATH")]
    tokenizer: Option<PathBuf>,
    /// Pre-tokenizer to name in the file instead of the recognised one; "none" leaves the key out.
    #[arg(long, value_name = "NAME")]
    pre: Option<String>,
    /// File to write.
    #[arg(long, value_name = "FILE", required_unless_present_any = ["list", "dry_run"])]
    out: Option<PathBuf>,
    /// Replace an existing file.
    #[arg(long)]
    force: bool,
    /// Only say what would be written.
    #[arg(long)]
    dry_run: bool,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  harness model record --prompts gates/prompts/first-light.json > gates/prompts/continuations.json"
)]
struct RecordArgs {
    /// GGUF file; without it the embedded model.
    #[arg(long, value_name = "GGUF")]
    model: Option<PathBuf>,
    /// JSON list of prompts.
    #[arg(long, value_name = "FILE")]
    prompts: PathBuf,
    /// Most tokens per continuation.
    #[arg(long, default_value_t = 64)]
    max_tokens: usize,
    /// Compute threads.
    #[arg(long)]
    threads: Option<u32>,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  harness model inspect model.gguf --format json")]
struct InspectArgs {
    /// The file; without it the embedded model.
    file: Option<PathBuf>,
    /// The same, spelt as elsewhere.
    #[arg(long, value_name = "GGUF", conflicts_with = "file")]
    model: Option<PathBuf>,
    /// Context to compute memory for, in tokens.
    #[arg(long)]
    n_ctx: Option<u32>,
    /// Type of the cached keys: f32, f16, q8_0, q5_1, q5_0, q4_1, q4_0.
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    type_k: KvType,
    /// Type of the cached values; other than f16 only with --flash-attn.
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    type_v: KvType,
    /// Compute memory for flash attention.
    #[arg(long)]
    flash_attn: bool,
    /// Refuse a model that is only warned of otherwise, e.g. without tokenizer.ggml.pre.
    #[arg(long)]
    strict: bool,
    /// Also hash all tensors and the file, which reads it twice.
    #[arg(long)]
    hash: bool,
    /// Also list every tensor and key.
    #[arg(long)]
    details: bool,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

fn inspect(args: InspectArgs) -> Result<Exit, CliError> {
    let source = ModelSource::from_option(args.file.or(args.model));
    let path = super::model_path(&source)?;
    let refused = |e| super::model_error(&source, e);
    let file = GgufFile::open(path.as_path(), &Limits::default()).map_err(refused)?;
    if args.strict {
        file.model(&Limits::strict()).map_err(refused)?;
    }
    if args.type_v != KvType::F16 && !args.flash_attn {
        return Err(CliError::Usage(format!(
            "--type-v {} needs --flash-attn: without it, values are f16",
            args.type_v
        )));
    }
    // What no context can have is not computed for one.
    let refused_type = match (args.type_k, args.type_v) {
        (KvType::Bf16, _) => Some("--type-k bf16: this engine cannot compute attention over bf16; use f16"),
        (_, KvType::Bf16) => Some("--type-v bf16: this engine cannot compute attention over bf16; use f16"),
        (KvType::F32, _) if args.flash_attn => Some("--type-k f32: flash attention faults on f32 keys; use f16"),
        (_, KvType::F32) if args.flash_attn => Some("--type-v f32: flash attention cannot read f32 values; use f16"),
        _ => None,
    };
    if let Some(why) = refused_type {
        return Err(CliError::Usage(why.into()));
    }
    let options = InspectOptions {
        n_ctx: args.n_ctx,
        type_k: args.type_k,
        type_v: args.type_v,
        flash_attention: args.flash_attn,
        hash_data: args.hash,
        details: args.details,
    };
    let bar = progress::bytes("hashing", 0);
    let inspection = inspect::inspect(&file, &options, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    let mut inspection = inspection.map_err(refused)?;
    // The embedded model's path is this process's own and means nothing to a reader.
    inspection.path = source.name();
    output::print(&match args.format {
        TextOrJson::Json => output::json(&inspection)?,
        TextOrJson::Text => inspection.text(),
    })?;
    Ok(Exit::Success)
}

pub(crate) fn run(args: ModelArgs, children: &Children) -> Result<Exit, CliError> {
    match args.command {
        ModelCommand::Synth(args) => synth(args),
        ModelCommand::Inspect(args) => inspect(args),
        ModelCommand::Record(args) => record(args, children),
        ModelCommand::Tokenize(args) => tokenize::run(args),
        ModelCommand::Quantize(args) => quantize::quantize(args),
        ModelCommand::Repack(args) => quantize::repack_command(args),
        ModelCommand::Convert(args) => convert::run(args),
        ModelCommand::Pull(args) => pull::run(args),
        ModelCommand::Perplexity(args) => perplexity::run(args),
    }
}

fn synth_error(e: SynthError) -> CliError {
    match e {
        SynthError::Cancelled => CliError::Interrupted,
        SynthError::File(e) => super::output_error(e),
        SynthError::Write(_) => CliError::Failed(e.to_string()),
        other => CliError::Usage(other.to_string()),
    }
}

fn synth(args: SynthArgs) -> Result<Exit, CliError> {
    if args.list {
        let mut rows = Vec::new();
        for preset in &PRESETS {
            let spec = SynthSpec::preset(preset.name).map_err(synth_error)?;
            let bytes = spec.plan().map_err(synth_error)?.total_bytes();
            rows.push((preset, spec.parameters(), bytes));
        }
        let text = match args.format {
            TextOrJson::Json => output::json(
                &rows
                    .iter()
                    .map(|(p, n, b)| serde_json::json!({"preset": p.name, "about": p.about, "parameters": n, "bytes": b}))
                    .collect::<Vec<_>>(),
            )?,
            TextOrJson::Text => rows
                .iter()
                .map(|(p, n, b)| format!("{:<6} {:>9.1} M parameters {:>10}  {}\n", p.name, *n as f64 / 1e6, for_people(*b), p.about))
                .collect(),
        };
        output::print(&text)?;
        return Ok(Exit::Success);
    }
    let preset = args.preset.as_deref().unwrap_or_default();
    let mut spec = SynthSpec::preset(preset).map_err(synth_error)?;
    if let Some(path) = &args.tokenizer {
        let read = hf_folder::tokenizer(path, None, None).map_err(|e| match &e {
            HfFolderError::Io { source, .. } if super::is_wrong_path(source) => CliError::Usage(e.to_string()),
            _ => CliError::Refused(e.to_string()),
        })?;
        for warning in &read.warnings {
            eprintln!("warning: {warning}");
        }
        spec.n_vocab = read.vocabulary.tokens.len() as u32;
        spec.pre_tokenizer.clone_from(&read.vocabulary.pre);
        spec.vocabulary = Some(read.vocabulary);
    }
    if let Some(pre) = &args.pre {
        spec.pre_tokenizer = (pre != "none").then(|| pre.clone());
    }
    let total = spec.plan().map_err(synth_error)?.total_bytes();
    let mut written = None;
    if !args.dry_run
        && let Some(out) = &args.out
    {
        super::not_an_input("--out", out, &args.tokenizer)?;
        let interrupted = crate::interrupt::cooperate(|| {});
        let bar = progress::bytes("writing", total);
        let cancel: &AtomicBool = &interrupted;
        let n = write_synth_file(&spec, args.seed, out, args.force, &mut |p| bar.set_position(p.written), cancel)
            .map_err(synth_error)?;
        bar.finish_and_clear();
        written = Some(n);
    }
    let out = args.out.as_ref().map(|p| p.display().to_string());
    let text = match args.format {
        TextOrJson::Json => output::json(&serde_json::json!({
            "preset": preset, "seed": args.seed, "out": out, "bytes": total,
            "parameters": spec.parameters(), "written": written.is_some(),
        }))?,
        TextOrJson::Text => {
            let verb = if written.is_some() { "wrote" } else { "would write" };
            let to = out.map(|o| format!(" to {o}")).unwrap_or_default();
            format!(
                "{verb} {preset}, seed {}, {:.1} M parameters, {total} bytes{to}\n",
                args.seed,
                spec.parameters() as f64 / 1e6
            )
        }
    };
    output::print(&text)?;
    Ok(Exit::Success)
}

fn record_error(e: GateError, max_tokens: usize) -> CliError {
    use bitnet_rs::Error as E;
    match e {
        GateError::Engine(e @ (E::ContextFull { .. } | E::PositionPastTraining { .. })) => {
            CliError::Usage(format!("--max-tokens {max_tokens}: {e}"))
        }
        GateError::Interrupted => CliError::Interrupted,
        e => CliError::Failed(e.to_string()),
    }
}

fn record(args: RecordArgs, children: &Children) -> Result<Exit, CliError> {
    let text = input_file::read_text(&args.prompts, MAX_PROMPTS)
        .map_err(|e| input_error("--prompts", &args.prompts, e.into()))?;
    let prompts: Vec<String> = serde_json::from_str(&text)
        .map_err(|e| CliError::Refused(format!("--prompts {}: {e}", args.prompts.display())))?;
    let inputs = GateInputs {
        model: ModelSource::from_option(args.model),
        children: children.clone(),
        threads: super::gates::threads(args.threads)?,
        quick: false,
        reference: None,
        cases: None,
        thresholds: Thresholds::embedded().map_err(|e| CliError::Usage(e.to_string()))?,
    };
    let recording =
        first_light::record(&inputs, &prompts, args.max_tokens).map_err(|e| record_error(e, args.max_tokens))?;
    output::print(&output::json(&recording)?)?;
    Ok(Exit::Success)
}
