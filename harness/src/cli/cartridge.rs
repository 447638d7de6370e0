//! `harness cartridge`: build, look at, check, mount and compare cartridges.

use session::{Mount as _, MountError};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use bitnet_rs::{Batch, Context, ContextParams, Model, Pos, SeqId, Special, TokenId, engine_info};
use clap::{Args, Subcommand};
use files::children::Children;
use files::mapped::MappedFile;
use gguf::{Limits, ModelFile};
use kv::{KvType, StateBlob, ValueLayout};
use serde_json::json;

use super::generate::{read_prompt, read_text, refused};
use super::output::{self, Target, TextOrJson};
use super::profile::Settings;
use super::{CliError, input_error, output_error, progress};
use crate::exit::Exit;
use crate::gates::thresholds::Thresholds;
use cartridge::{
    Cartridge, CartridgeError, ConvertTo, Inspection, Level, ModelLock, Provenance, Rounding, convert, diff,
    import_parts, write_native,
};
use files::atomic_file::AtomicFile;
use models::source::{ModelPath, ModelSource};
use session::{ChatTemplate, Message, TemplateSandbox, fits_context};

/// Tokens of the continuation that `verify` compares.
const SEAL_TOKENS: usize = 8;

/// Options of `cartridge`.
#[derive(Debug, Args)]
pub(crate) struct CartridgeArgs {
    #[command(subcommand)]
    command: CartridgeCommand,
}

#[derive(Debug, Subcommand)]
enum CartridgeCommand {
    /// Prefill a text once and keep its keys and values.
    Create(CreateArgs),
    /// What is in a file.
    Inspect(InspectArgs),
    /// Hashes, lock, and the same logits as the text itself.
    Verify(VerifyArgs),
    /// Generate behind a mounted cartridge (the same as generate --cartridge).
    Mount(Box<super::mount::MountArgs>),
    /// Compare two files.
    Diff(DiffArgs),
    /// Write the same keys and values in the other layout or other types.
    Convert(ConvertArgs),
    /// Write the engine's state blob that a native file holds.
    ExportBlob(ExportArgs),
    /// Make a cartridge from a state blob and its tokens.
    ImportBlob(ImportArgs),
    /// Make a cartridge from the frozen and trained parts of a cache (docs/how-to/train-a-cartridge.md).
    ImportParts(PartsArgs),
}

#[derive(Debug, Args)]
struct On {
    /// GGUF file; without it the embedded model.
    #[arg(short, long, value_name = "GGUF")]
    model: Option<PathBuf>,
    /// Compute threads.
    #[arg(short, long, value_name = "N")]
    threads: Option<u32>,
    /// Flash attention, which decides how values lie in a native file.
    #[arg(long)]
    flash_attn: bool,
    /// Type of the keys (f16, f32, q8_0, …).
    #[arg(long, default_value = "f16")]
    type_k: KvType,
    /// Type of the values; other than f16 needs flash attention.
    #[arg(long, default_value = "f16")]
    type_v: KvType,
}

impl Target {
    /// Says what was written.
    fn written(&self, n_tokens: usize) -> Result<Exit, CliError> {
        let bytes =
            std::fs::metadata(&self.out).map_err(|e| CliError::Failed(format!("{}: {e}", self.out.display())))?.len();
        let out = self.out.display().to_string();
        let text = match self.format {
            TextOrJson::Json => output::json(&json!({"out": out, "n_tokens": n_tokens, "bytes": bytes}))?,
            TextOrJson::Text => format!("wrote {n_tokens} tokens, {bytes} bytes, to {out}\n"),
        };
        output::print(&text)?;
        Ok(Exit::Success)
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  harness cartridge create --text devices.txt --system --out devices.safetensors")]
struct CreateArgs {
    #[command(flatten)]
    on: On,
    /// File with the text; - is stdin.
    #[arg(long, value_name = "FILE", required_unless_present = "tokens", conflicts_with = "tokens")]
    text: Option<PathBuf>,
    /// File with token ids, separated by spaces, commas or lines, used as they are.
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// The text is the system message of a conversation: the chat template goes around it.
    #[arg(long, conflicts_with = "tokens")]
    system: bool,
    /// Keep only the first P tokens. Not of a conversation, whose turn would stay open.
    #[arg(short = 'n', long, value_name = "P")]
    max_tokens: Option<usize>,
    /// Title for people.
    #[arg(long)]
    title: Option<String>,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  harness cartridge inspect devices.safetensors\n  harness cartridge inspect devices.safetensors --ids > ids.txt"
)]
struct InspectArgs {
    /// The file.
    file: PathBuf,
    /// GGUF file whose tokenizer shows the text; without it the embedded model, where the file is of its tokenizer.
    #[arg(short, long, value_name = "GGUF")]
    model: Option<PathBuf>,
    /// Only the ids of all tokens, as --tokens takes them.
    #[arg(long, conflicts_with = "format")]
    ids: bool,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  harness cartridge verify devices.safetensors\n\nExit code 4 names every lock field that differs; 1 means that the logits do."
)]
struct VerifyArgs {
    #[command(flatten)]
    on: On,
    /// The file.
    file: PathBuf,
    /// Round values that the context's types cannot hold exactly.
    #[arg(long)]
    round: bool,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  harness cartridge diff a.safetensors b.safetensors\n\nExit code 1 when tokens, keys or values differ; other fields are listed only."
)]
struct DiffArgs {
    /// One file.
    a: PathBuf,
    /// The other.
    b: PathBuf,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

/// Layouts by the names that stand in the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum LayoutName {
    /// For people and PyTorch; mounts under either attention.
    HeadMajor,
    /// The engine's own blob; mounts without a copy under the attention it is for.
    Native,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  harness cartridge convert devices.safetensors --to head-major --out portable.safetensors\n\nValues are converted exactly or refused; --round allows rounding."
)]
struct ConvertArgs {
    /// The file.
    file: PathBuf,
    /// Layout to write.
    #[arg(long, value_enum)]
    to: LayoutName,
    /// Type of the keys; as in the file unless given.
    #[arg(long)]
    type_k: Option<KvType>,
    /// Type of the values; as in the file unless given.
    #[arg(long)]
    type_v: Option<KvType>,
    /// A native file for contexts with flash attention.
    #[arg(long)]
    flash_attn: bool,
    /// Round values that the types cannot hold exactly.
    #[arg(long)]
    round: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  harness cartridge export-blob devices.safetensors --out devices.blob")]
struct ExportArgs {
    /// The file.
    file: PathBuf,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  harness cartridge import-blob devices.blob --tokens ids.txt --out devices.safetensors"
)]
struct ImportArgs {
    #[command(flatten)]
    on: On,
    /// The blob, as llama_state_seq_get_data writes it.
    file: PathBuf,
    /// File with the token ids of its cells; `cartridge inspect --ids` writes those of a cartridge.
    #[arg(long, value_name = "FILE")]
    tokens: PathBuf,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  harness cartridge import-parts cache.safetensors --title \"manual, trained\" --out manual.safetensors"
)]
struct PartsArgs {
    /// GGUF file that the cache was trained for; without it the embedded model.
    #[arg(short, long, value_name = "GGUF")]
    model: Option<PathBuf>,
    /// Safetensors file with trainable_keys.{l}, trainable_values.{l} and optionally frozen_keys.{l}, frozen_values.{l}.
    file: PathBuf,
    /// File with the token ids of its cells, where they still stand for these tokens (an untrained cache).
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// Title for people.
    #[arg(long)]
    title: Option<String>,
    #[command(flatten)]
    target: Target,
}

pub(crate) fn run(args: CartridgeArgs, children: &Children) -> Result<Exit, CliError> {
    match args.command {
        CartridgeCommand::Create(args) => create(args, children),
        CartridgeCommand::Inspect(args) => inspect(args),
        CartridgeCommand::Verify(args) => verify(args),
        CartridgeCommand::Mount(args) => super::mount::run(*args, children),
        CartridgeCommand::Diff(args) => difference(args),
        CartridgeCommand::Convert(args) => convert_layout(args),
        CartridgeCommand::ExportBlob(args) => export(args),
        CartridgeCommand::ImportBlob(args) => import(args),
        CartridgeCommand::ImportParts(args) => import_from_parts(args),
    }
}

fn cartridge_error(path: &Path, e: CartridgeError) -> CliError {
    match e {
        CartridgeError::Exists(_) | CartridgeError::Target(_) => CliError::Usage(e.to_string()),
        CartridgeError::Io { ref source, .. } if super::is_wrong_path(source) => CliError::Usage(e.to_string()),
        CartridgeError::Io { .. } => CliError::Failed(e.to_string()),
        other => refused("cartridge", path, &other),
    }
}

fn mount_error(path: &Path, e: MountError) -> CliError {
    match e {
        MountError::Cartridge(e) => cartridge_error(path, e),
        MountError::Engine(e) => CliError::Failed(e.to_string()),
        other => refused("cartridge", path, &other),
    }
}

fn open(path: &Path) -> Result<Cartridge, CliError> {
    Cartridge::open(path).map_err(|e| match e {
        CartridgeError::Io { source, .. } => input_error("cartridge", path, source),
        e => refused("cartridge", path, &e),
    })
}

struct Loaded {
    model: Model,
    settings: Settings,
    _path: ModelPath,
}

fn load(model: Option<&PathBuf>, threads: Option<u32>) -> Result<Loaded, CliError> {
    let (model, path) = super::load_model(&ModelSource::from_option(model.cloned()))?;
    let settings = super::profile::settings(&model, threads)?;
    Ok(Loaded { model, settings, _path: path })
}

fn lock(model: &Model) -> Result<ModelLock, CliError> {
    let bar = progress::bytes("hashing the model", 0);
    let lock = session::lock_of(model, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    lock.map_err(|e| CliError::Failed(e.to_string()))
}

fn context(loaded: &Loaded, on: &On, n_ctx: usize) -> Result<Context, CliError> {
    let defaults = ContextParams::default();
    let params = ContextParams {
        n_ctx: u32::try_from(n_ctx).unwrap_or(u32::MAX),
        n_ubatch: loaded.settings.n_ubatch.unwrap_or(defaults.n_ubatch),
        n_threads: loaded.settings.threads,
        flash_attn: on.flash_attn,
        type_k: on.type_k,
        type_v: on.type_v,
        ..defaults
    };
    Context::new(&loaded.model, &params).map_err(|e| CliError::Usage(e.to_string()))
}

/// Decodes `tokens` into an empty sequence, with a bar.
fn prefill(context: &mut Context, tokens: &[TokenId], what: &str) -> Result<(), bitnet_rs::Error> {
    let bar = progress::tokens(what, tokens.len());
    let batch = Batch::prompt(tokens, Pos::ZERO, SeqId::ZERO)?;
    let decoded = context.decode_with_progress(&batch, &mut |done| bar.set_position(done as u64)).map(|_| ());
    bar.finish_and_clear();
    decoded
}

fn token_ids(path: &Path) -> Result<Vec<i32>, CliError> {
    read_text("--tokens", path)?
        .split(|c: char| c.is_whitespace() || c == ',')
        .filter(|w| !w.is_empty())
        .map(|w| w.parse().map_err(|e| refused("--tokens", path, &format!("{w:?}: {e}"))))
        .collect()
}

fn create(args: CreateArgs, children: &Children) -> Result<Exit, CliError> {
    args.target.check(args.on.model.iter().chain(&args.text).chain(&args.tokens))?;
    let loaded = load(args.on.model.as_ref(), args.on.threads)?;
    let model = &loaded.model;
    let failed = |e: bitnet_rs::Error| CliError::Failed(e.to_string());
    let mut notes = Vec::new();
    let mut tokens: Vec<TokenId> = match (&args.text, &args.tokens) {
        (Some(path), _) => {
            let text = read_prompt("--text", path, &mut notes)?;
            super::generate::say_notes(&notes);
            if text.is_empty() {
                return Err(CliError::Usage(format!("--text {}: the text is empty", path.display())));
            }
            fits_context(model, text.len()).map_err(super::generate::engine_error)?;
            if args.system {
                let template = ChatTemplate::of_model(model, &TemplateSandbox::Child(children.clone()))
                    .map_err(super::generate::engine_error)?;
                template
                    .tokens(model, &[Message::new("system", text.trim_end())], false)
                    .map_err(super::generate::engine_error)?
            } else {
                model.tokenize(&text, Special::ContentWithBos).map_err(failed)?
            }
        }
        (None, Some(path)) => {
            let ids = token_ids(path)?;
            ids.into_iter()
                .map(|id| model.token(id).map_err(|e| refused("--tokens", path, &e)))
                .collect::<Result<_, _>>()?
        }
        (None, None) => return Err(CliError::Usage("give --text or --tokens".into())),
    };
    let most = args.max_tokens.unwrap_or(usize::MAX);
    if most == 0 {
        return Err(CliError::Usage("--max-tokens 0 leaves an empty text".into()));
    }
    if args.system && tokens.len() > most {
        return Err(CliError::Usage(format!(
            "--max-tokens {most}: the conversation's turn has {} tokens and would be cut before the marker that closes it; \
             shorten the text",
            tokens.len()
        )));
    }
    tokens.truncate(most);
    if tokens.is_empty() {
        return Err(CliError::Usage("the text is empty".into()));
    }
    let n_ctx_train = model.info().hyperparameters().n_ctx_train as usize;
    if tokens.len() > n_ctx_train {
        let help =
            if args.system { "shorten the text" } else { "shorten the text, or keep its beginning by --max-tokens" };
        return Err(CliError::Usage(format!(
            "{} tokens do not fit the model's context of {n_ctx_train}; {help}",
            tokens.len()
        )));
    }
    let mut context = context(&loaded, &args.on, tokens.len())?;
    prefill(&mut context, &tokens, "prefilling").map_err(failed)?;
    let state = context.save(SeqId::ZERO).map_err(failed)?;
    // The engine's memory is not needed any more while the file is written.
    drop(context);
    let lock = lock(model)?;
    let ids: Vec<i32> = tokens.iter().map(|t| t.get()).collect();
    let source = args.text.as_ref().or(args.tokens.as_ref()).and_then(|p| p.file_name());
    let provenance = Provenance {
        title: args.title.clone(),
        source: source.map(|s| s.to_string_lossy().into_owned()),
        ..Default::default()
    };
    write_native(&args.target.out, &state.blob(), &ids, &lock, &provenance, args.target.overwrite())
        .map_err(|e| cartridge_error(&args.target.out, e))?;
    args.target.written(ids.len())
}

/// What the tokens of a cartridge say, or why that is not known.
enum Said {
    Text(String),
    Unknown(String),
}

/// The text behind the tokens, by the tokenizer that they are of.
fn said(cartridge: &Cartridge, model: Option<&PathBuf>) -> Result<Said, CliError> {
    if cartridge.tokens().all(|id| id < 0) {
        return Ok(Said::Unknown("its cells stand for no tokens".into()));
    }
    let source = ModelSource::from_option(model.cloned());
    let path = super::model_path(&source)?;
    let file = ModelFile::open(path.as_path(), &Limits::default()).map_err(|e| super::model_error(&source, e))?;
    let (ours, theirs) = (file.info().tokenizer_hash().to_string(), &cartridge.fields().tokenizer_hash);
    if &ours != theirs {
        let help = if model.is_some() { "" } else { "; --model names the one that it is for" };
        return Ok(Said::Unknown(format!("it is of another tokenizer than that of model {}{help}", source.name())));
    }
    let (model, _path) = super::load_model(&source)?;
    let mut bytes = Vec::new();
    for id in cartridge.tokens() {
        match model.token(id) {
            Ok(token) => {
                bytes.extend(model.token_bytes(token, true).map_err(|e| CliError::Failed(e.to_string()))?);
            }
            Err(_) => bytes.extend("\u{fffd}".bytes()),
        }
    }
    Ok(Said::Text(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Characters of a text that the text form shows; JSON has all of it.
const SHOWN: usize = 2000;

fn inspect(args: InspectArgs) -> Result<Exit, CliError> {
    let cartridge = open(&args.file)?;
    if args.ids {
        let ids: Vec<String> = cartridge.tokens().map(|id| id.to_string()).collect();
        output::print(&(ids.join(" ") + "\n"))?;
        return Ok(Exit::Success);
    }
    let inspection = Inspection::of(&cartridge, true);
    let said = said(&cartridge, args.model.as_ref())?;
    let text = match args.format {
        TextOrJson::Json => {
            let mut document = serde_json::to_value(&inspection).map_err(|e| CliError::Failed(e.to_string()))?;
            let (text, why) = match said {
                Said::Text(text) => (Some(text), None),
                Said::Unknown(why) => (None, Some(why)),
            };
            if let Some(document) = document.as_object_mut() {
                document.insert("tokens".into(), json!(cartridge.tokens().collect::<Vec<i32>>()));
                document.insert("text".into(), json!(text));
                document.insert("text_unknown".into(), json!(why));
            }
            output::json(&document)?
        }
        TextOrJson::Text => {
            let i = &inspection;
            let mut text = format!(
                "{} · {} layout\ntokens     {} at positions {} to {}\nshape      {} layers × {} KV heads × {}\nsize       {} bytes, {} per token{}\n",
                args.file.display(),
                i.layout,
                i.n_tokens,
                i.first_pos,
                i.next_pos - 1,
                i.n_layer,
                i.n_head_kv,
                i.head_dim_k,
                i.file_bytes,
                i.bytes_per_token,
                if i.mounts_without_copy { ", mounts without a copy" } else { "" },
            );
            if let Some((k, v)) = i.norm_picture() {
                text.push_str(&format!("norms      K {k}\n           V {v}\n"));
            }
            for (key, value) in &i.metadata {
                let value: String = value.chars().flat_map(|c| c.escape_debug()).take(200).collect();
                text.push_str(&format!("  {key:<20} {value}\n"));
            }
            match said {
                Said::Text(said) => {
                    let shown: String = said.chars().take(SHOWN).collect();
                    let more = said.chars().count().saturating_sub(SHOWN);
                    text.push_str(&format!("text\n{}\n", output::for_terminal(&shown)));
                    if more > 0 {
                        text.push_str(&format!("… and {more} characters more; --format json has all of them\n"));
                    }
                }
                Said::Unknown(why) => text.push_str(&format!("text       not shown: {why}\n")),
            }
            text
        }
    };
    output::print(&text)?;
    Ok(Exit::Success)
}

fn verify(args: VerifyArgs) -> Result<Exit, CliError> {
    let cartridge = open(&args.file)?;
    cartridge.validate(Level::Full).map_err(|e| cartridge_error(&args.file, e))?;
    let loaded = load(args.on.model.as_ref(), args.on.threads)?;
    let model = &loaded.model;
    let lock = lock(model)?;
    cartridge.lock_check(&lock).map_err(|m| cartridge_error(&args.file, CartridgeError::Lock(m)))?;
    let seal = seal(&cartridge, &loaded, &lock, &args)?;
    // KV of other arithmetic is held to gate 3b's bound; what the engine wrote itself must be equal.
    let bridge = Thresholds::embedded().map_err(|e| CliError::Usage(format!("gates/gates.toml: {e}")))?.bridge;
    let holds = seal.as_ref().is_some_and(|s| s.differing == 0 || s.kl <= bridge.max_kl_foreign && s.foreign);
    let text = match args.format {
        TextOrJson::Json => output::json(&json!({
            "file": args.file.display().to_string(),
            "hashes": "ok",
            "payload_hash": cartridge.fields().payload_hash.is_some(),
            "lock": "ok",
            "continuation": seal.as_ref().map(|s| json!({
                "differing": s.differing, "max_abs": s.max_abs, "mean_kl": s.kl, "bit_exact": s.differing == 0,
            })),
        }))?,
        TextOrJson::Text => {
            let hash = if cartridge.fields().payload_hash.is_some() {
                "tokens and payload"
            } else {
                "tokens (the file states no payload hash)"
            };
            let last = match &seal {
                None if cartridge.tokens().all(|t| t >= 0) => {
                    "not measured: the positions do not begin at 0\n".to_owned()
                }
                None => "not measured: the file holds cells without a token\n".to_owned(),
                Some(s) if s.differing == 0 => "bit-equal to prefilling the text\n".to_owned(),
                Some(s) => format!("{} logits differ, up to {:.2e}, mean KL {:.1e}\n", s.differing, s.max_abs, s.kl),
            };
            format!(
                "hashes       ok: {hash}\nvalues       ok: finite\nlock         ok: {}\ncontinuation {last}",
                lock.model_id
            )
        }
    };
    output::print(&text)?;
    Ok(match seal {
        None => Exit::Unknown,
        Some(_) if holds => Exit::Success,
        Some(_) => Exit::Fail,
    })
}

struct Seal {
    differing: usize,
    max_abs: f32,
    kl: f64,
    foreign: bool,
}

/// Continues behind the mounted cartridge and behind its prefilled text. `None` where cells have no token.
fn seal(cartridge: &Cartridge, loaded: &Loaded, lock: &ModelLock, args: &VerifyArgs) -> Result<Option<Seal>, CliError> {
    let model = &loaded.model;
    let failed = |e: bitnet_rs::Error| CliError::Failed(e.to_string());
    if cartridge.tokens().any(|t| t < 0) || cartridge.fields().first_pos != 0 {
        return Ok(None);
    }
    let tokens: Vec<TokenId> = cartridge
        .tokens()
        .map(|id| model.token(id).map_err(|e| refused("cartridge", &args.file, &e)))
        .collect::<Result<_, _>>()?;
    let fields = cartridge.fields();
    let on = On {
        model: None,
        threads: args.on.threads,
        flash_attn: fields.value_layout.map_or(args.on.flash_attn, |l| l.v_trans() == 0),
        type_k: if fields.value_layout.is_some() { fields.type_k } else { args.on.type_k },
        type_v: if fields.value_layout.is_some() { fields.type_v } else { args.on.type_v },
    };
    let more: Vec<TokenId> = tokens.iter().copied().cycle().take(SEAL_TOKENS).collect();
    let n_ctx = tokens.len() + SEAL_TOKENS;
    let rounding = if args.round { Rounding::Nearest } else { Rounding::Exact };
    let mut mounted = context(loaded, &on, n_ctx)?;
    cartridge.mount(&mut mounted, SeqId::ZERO, lock, rounding).map_err(|e| mount_error(&args.file, e))?;
    let mut own = context(loaded, &on, n_ctx)?;
    prefill(&mut own, &tokens, "prefilling the text to compare").map_err(failed)?;
    let at = own.next_pos(SeqId::ZERO).map_err(failed)?;
    let batch = Batch::scored(&more, at, SeqId::ZERO).map_err(failed)?;
    let expected = own.decode(&batch).map_err(failed)?;
    let found = mounted.decode(&batch).map_err(failed)?;
    let mut seal = Seal { differing: 0, max_abs: 0.0, kl: 0.0, foreign: fields.value_layout.is_none() };
    for i in 0..more.len() {
        let (e, f) = (expected.row(i).map_err(failed)?, found.row(i).map_err(failed)?);
        for (a, b) in e.iter().zip(f).filter(|(a, b)| a.to_bits() != b.to_bits()) {
            seal.differing += 1;
            let delta = (a - b).abs();
            seal.max_abs = if delta.is_nan() { f32::INFINITY } else { seal.max_abs.max(delta) };
        }
        seal.kl += reference::likelihood::kl_divergence(e, f) / more.len() as f64;
    }
    Ok(Some(seal))
}

fn difference(args: DiffArgs) -> Result<Exit, CliError> {
    let (a, b) = (open(&args.a)?, open(&args.b)?);
    if a.fields().n_tokens != b.fields().n_tokens {
        return difference_in_length(&args, &a, &b);
    }
    let d = diff(&a, &b).map_err(|e| cartridge_error(&args.b, e))?;
    let text = match args.format {
        TextOrJson::Json => output::json(&d)?,
        TextOrJson::Text => {
            let mut text = String::new();
            for f in &d.fields {
                let side = |v: &Option<String>| v.clone().unwrap_or_else(|| "(absent)".into());
                text.push_str(&format!("field {:<20} {} | {}\n", f.field, side(&f.a), side(&f.b)));
            }
            if let Some(i) = d.first_token {
                text.push_str(&format!("tokens differ from index {i}\n"));
            }
            for t in &d.tensors {
                text.push_str(&format!(
                    "layer {} {}: {} of {} differ, max |Δ| {:e} ({} ULP), first at position {} head {}\n",
                    t.layer, t.tensor, t.differing, t.elements, t.max_abs, t.max_ulp, t.position, t.head
                ));
            }
            if text.is_empty() {
                text.push_str("equal\n");
            }
            text
        }
    };
    output::print(&text)?;
    Ok(if d.same_content() { Exit::Success } else { Exit::Fail })
}

/// Files of different length: their fields and tokens are compared, and where one text begins as the other, it says so.
/// Keys and values are not compared.
fn difference_in_length(args: &DiffArgs, a: &Cartridge, b: &Cartridge) -> Result<Exit, CliError> {
    let find = |c: &Cartridge, key: &str| c.metadata().iter().find(|(k, _)| k == key).map(|(_, v)| v.clone());
    let keys: BTreeSet<&str> = a.metadata().iter().chain(b.metadata()).map(|(k, _)| k.as_str()).collect();
    let fields: Vec<(&str, Option<String>, Option<String>)> =
        keys.into_iter().map(|key| (key, find(a, key), find(b, key))).filter(|(_, a, b)| a != b).collect();
    let common = a.tokens().zip(b.tokens()).take_while(|(x, y)| x == y).count();
    let (n_a, n_b) = (a.fields().n_tokens, b.fields().n_tokens);
    output::print(&match args.format {
        TextOrJson::Json => output::json(&json!({
            "fields": fields.iter().map(|(field, a, b)| json!({"field": field, "a": a, "b": b})).collect::<Vec<_>>(),
            "first_token": common, "n_tokens": {"a": n_a, "b": n_b}, "tensors": null,
        }))?,
        TextOrJson::Text => {
            let side = |v: &Option<String>| v.clone().unwrap_or_else(|| "(absent)".into());
            let mut text = String::new();
            for (field, a, b) in &fields {
                text += &format!("field {field:<20} {} | {}\n", side(a), side(b));
            }
            let shorter = n_a.min(n_b);
            text += &if common == shorter as usize {
                format!("tokens: {n_a} and {n_b}; the first {shorter} are equal, so that one continues the other\n")
            } else {
                format!("tokens: {n_a} and {n_b}; they differ from index {common}\n")
            };
            text + "keys and values: not compared, since the lengths differ\n"
        }
    })?;
    Ok(Exit::Fail)
}

fn convert_layout(args: ConvertArgs) -> Result<Exit, CliError> {
    args.target.check([&args.file])?;
    let cartridge = open(&args.file)?;
    cartridge.validate(Level::Full).map_err(|e| cartridge_error(&args.file, e))?;
    let fields = cartridge.fields();
    let type_k = args.type_k.unwrap_or(fields.type_k);
    let type_v = args.type_v.unwrap_or(fields.type_v);
    let to = match args.to {
        LayoutName::HeadMajor if args.flash_attn => {
            return Err(CliError::Usage("--flash-attn: a head-major file mounts under either attention".into()));
        }
        LayoutName::HeadMajor => ConvertTo::HeadMajor { type_k, type_v },
        LayoutName::Native => ConvertTo::Native {
            type_k,
            type_v,
            value_layout: ValueLayout::from_flash_attention(args.flash_attn),
            engine: engine_info::ENGINE_COMMIT.to_owned(),
        },
    };
    let rounding = if args.round { Rounding::Nearest } else { Rounding::Exact };
    convert(&cartridge, &args.target.out, &to, rounding, args.target.overwrite())
        .map_err(|e| cartridge_error(&args.file, e))?;
    args.target.written(fields.n_tokens as usize)
}

fn export(args: ExportArgs) -> Result<Exit, CliError> {
    args.target.check([&args.file])?;
    let cartridge = open(&args.file)?;
    let state = cartridge.to_blob().map_err(|e| cartridge_error(&args.file, e))?;
    let mut file = AtomicFile::create(&args.target.out, args.target.overwrite()).map_err(output_error)?;
    std::io::Write::write_all(&mut file, state.blob().as_bytes())
        .map_err(|e| CliError::Failed(format!("{}: {e}", args.target.out.display())))?;
    file.commit().map_err(output_error)?;
    args.target.written(cartridge.fields().n_tokens as usize)
}

fn import(args: ImportArgs) -> Result<Exit, CliError> {
    args.target.check([&args.file, &args.tokens].into_iter().chain(&args.on.model))?;
    // Mapped: a file that only claims to be large costs nothing.
    let bytes = MappedFile::open(&args.file).map_err(|e| input_error("blob", &args.file, e))?;
    let tokens = token_ids(&args.tokens)?;
    let loaded = load(args.on.model.as_ref(), args.on.threads)?;
    for &id in &tokens {
        loaded.model.token(id).map_err(|e| refused("--tokens", &args.tokens, &e))?;
    }
    let context = context(&loaded, &args.on, tokens.len().max(1))?;
    let blob = StateBlob::parse(&bytes, context.geometry()).map_err(|e| refused("blob", &args.file, &e))?;
    blob.check_finite().map_err(|e| refused("blob", &args.file, &e))?;
    let lock = lock(&loaded.model)?;
    write_native(&args.target.out, &blob, &tokens, &lock, &Provenance::default(), args.target.overwrite())
        .map_err(|e| cartridge_error(&args.target.out, e))?;
    args.target.written(tokens.len())
}

fn import_from_parts(args: PartsArgs) -> Result<Exit, CliError> {
    args.target.check([&args.file].into_iter().chain(&args.tokens).chain(&args.model))?;
    let tokens = args.tokens.as_deref().map(token_ids).transpose()?;
    let loaded = load(args.model.as_ref(), None)?;
    if let (Some(path), Some(tokens)) = (&args.tokens, &tokens) {
        for &id in tokens {
            loaded.model.token(id).map_err(|e| refused("--tokens", path, &e))?;
        }
    }
    let lock = lock(&loaded.model)?;
    let source = args.file.file_name().map(|n| n.to_string_lossy().into_owned());
    let provenance = Provenance { title: args.title.clone(), source, ..Default::default() };
    import_parts(&args.file, tokens.as_deref(), &lock, &provenance, &args.target.out, args.target.overwrite())
        .map_err(|e| {
            match e {
                // What cannot be read is told apart as for every other input; the rest of this kind is the output's.
                CartridgeError::Io { path, source } if path == args.file => input_error("parts", &args.file, source),
                e => cartridge_error(&args.file, e),
            }
        })?;
    let cartridge = open(&args.target.out)?;
    args.target.written(cartridge.fields().n_tokens as usize)
}
