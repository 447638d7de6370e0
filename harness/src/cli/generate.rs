//! `harness generate`, and what it shares with `harness chat`.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use bitnet_rs::{CancelHandle, ContextParams, SamplingParams};
use clap::Args;
use grammar::schema::{Mode, Remark, Schema, SchemaOptions};
use grammar::tools::{RegistryError, ToolRegistry};
use grammar::{Grammar, GrammarLimits, Language};
use kv::KvType;
use serde_json::json;

use super::output::{self, TextOrJson};
use super::{CliError, progress};
use crate::exit::Exit;
use crate::interrupt;
use cartridge::{Cartridge, CartridgeError, Rounding};
use files::children::Children;
use files::input_file;
use files::stamps::StampStore;
use models::source::{ModelPath, ModelSource};
use session::{
    Answer, ChatTemplate, Conversation, Ending, Event, GenerateError, GeneratorParams, Message, Said, Session,
    SessionError, SessionParams, TemplateSandbox,
};

/// Largest prompt file, in bytes.
pub(super) const MAX_PROMPT: u64 = 16 << 20;

/// Options that both commands share.
#[derive(Debug, Args)]
pub(crate) struct ModelOptions {
    /// GGUF file; without it the embedded model.
    #[arg(short, long, value_name = "GGUF")]
    model: Option<PathBuf>,
    /// Cartridge to mount under the prompt or conversation; registry:CHANNEL for what a channel points at.
    #[arg(long, value_name = "FILE")]
    pub(super) cartridge: Option<PathBuf>,
    #[command(flatten)]
    place: super::registry::Where,
    /// Hash the model's weights for the cartridge's lock even if an earlier run did.
    #[arg(long, requires = "cartridge")]
    verify_model: bool,
    /// Round values of a cartridge that the context's types cannot hold exactly.
    #[arg(long)]
    round: bool,
    /// Cells of the context; 0 is the model's context length.
    #[arg(short = 'c', long, visible_alias = "ctx-size", default_value_t = 0)]
    n_ctx: u32,
    /// Compute threads.
    #[arg(short, long, value_name = "N")]
    threads: Option<u32>,
    /// Flash attention.
    #[arg(long)]
    flash_attn: bool,
    /// Type of the cached keys: f16, f32, q8_0, …
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    type_k: KvType,
    /// Type of the cached values; other than f16 only with --flash-attn.
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    type_v: KvType,
    /// Make the context even if it does not seem to fit the memory.
    #[arg(long)]
    allow_overcommit: bool,
    /// System message.
    #[arg(long, allow_hyphen_values = true)]
    system: Option<String>,
    /// File with a chat template (Jinja) instead of the model's.
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
    /// Constrain the output to this GBNF file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json_schema", "tools"])]
    grammar: Option<PathBuf>,
    /// Rule of the grammar to start from.
    #[arg(long, default_value = "root")]
    grammar_root: String,
    /// Constrain the output to this JSON Schema file.
    #[arg(long, value_name = "FILE", conflicts_with = "tools")]
    json_schema: Option<PathBuf>,
    /// Constrain the output to a call of one of the tools in this registry (TOML, or JSON as OpenAI and MCP have it).
    #[arg(long, value_name = "FILE")]
    tools: Option<PathBuf>,
    /// Which values of a schema are generated: an object's declared properties, or all that the schema allows.
    #[arg(long, value_enum, value_name = "MODE", default_value_t)]
    schema_mode: SchemaMode,
    /// Most tokens to generate; 0 means as many as the context holds.
    #[arg(short = 'n', long, visible_alias = "n-predict", default_value_t = 256)]
    max_tokens: usize,
    /// 0 is greedy.
    #[arg(long, visible_alias = "temp", default_value_t = 0.0, allow_negative_numbers = true)]
    temperature: f32,
    /// Keep the k largest logits; 0 keeps all.
    #[arg(long, default_value_t = 0)]
    top_k: u32,
    /// Nucleus sampling.
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    top_p: f32,
    /// Drop tokens less probable than this share of the best.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    min_p: f32,
    /// Penalty on the last 64 tokens.
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    repeat_penalty: f32,
    /// Seed of the random choice: a number, or "random" for one that is drawn and said.
    #[arg(short, long, value_name = "N", default_value = "0", allow_negative_numbers = true)]
    seed: Seed,
    /// Text that ends the output; may be repeated.
    #[arg(long, allow_hyphen_values = true, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    stop: Vec<String>,
    /// Guess up to N tokens by what followed the same words before, and verify them in one batch; needs --flash-attn
    /// and temperature 0.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=64))]
    draft_lookup: u32,
}

/// Values of `--schema-mode`.
#[derive(Debug, Clone, Copy, Default, clap::ValueEnum)]
pub(super) enum SchemaMode {
    /// Objects have the properties that they declare.
    #[default]
    Declared,
    /// Objects may have others, in any order.
    Open,
}

impl SchemaMode {
    pub(super) fn options(self) -> SchemaOptions {
        SchemaOptions::default().mode(match self {
            Self::Declared => Mode::Declared,
            Self::Open => Mode::Open,
        })
    }
}

/// Options of `generate`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  harness generate \"The lamp in the kitchen\"\n  harness generate -m m.gguf -p \"The lamp\" -n 64 --temp 0.8 --seed random\n  harness generate --chat --system $'Devices:\\n- lumo: light, kitchen' --prompt \"turn on lumo\"\n  harness generate --chat --prompt \"add 2 and 3\" --tools gates/grammars/arithmetic.toml --format json"
)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(super) options: ModelOptions,
    /// The prompt; without one and --file it is read from stdin.
    #[arg(value_name = "PROMPT", conflicts_with_all = ["prompt", "file"])]
    pub(super) text: Option<String>,
    /// The same, spelt as an option.
    #[arg(short, long, conflicts_with = "file", allow_hyphen_values = true)]
    pub(super) prompt: Option<String>,
    /// File with the prompt; - is stdin.
    #[arg(short, long, value_name = "FILE")]
    pub(super) file: Option<PathBuf>,
    /// Put the prompt into the chat template as a user message (implied by --system).
    #[arg(long)]
    pub(super) chat: bool,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    pub(super) format: TextOrJson,
}

/// Where the random choice begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seed {
    Fixed(u32),
    Random,
}

impl std::str::FromStr for Seed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            // The engine's own word for a random one.
            Ok(u32::MAX) => Ok(Self::Random),
            Ok(seed) => Ok(Self::Fixed(seed)),
            Err(_) if text == "random" => Ok(Self::Random),
            Err(e) => Err(format!("a seed is a number from 0 to {}, or random: {e}", u32::MAX)),
        }
    }
}

impl Seed {
    /// The number; a drawn one is said, so that the output can be had again.
    fn number(self) -> u32 {
        match self {
            Self::Fixed(seed) => seed,
            Self::Random => {
                let seed = rand::random_range(0..u32::MAX);
                output::note(format_args!("note: seed {seed}, drawn at random"));
                seed
            }
        }
    }
}

/// Everything that is ready before the first token.
pub(super) struct Opened {
    pub(super) session: Session,
    pub(super) talk: Conversation,
    pub(super) params: GeneratorParams,
    registry: Option<ToolRegistry>,
    pub(super) interrupted: Arc<AtomicBool>,
    pub(super) load: Duration,
    pub(super) mounted: Option<u32>,
    _path: ModelPath,
}

pub(super) fn refused(what: &str, path: &Path, e: &dyn std::fmt::Display) -> CliError {
    CliError::Refused(format!("{what} {}: {e}", path.display()))
}

/// A grammar, a schema, a template, a list: what begins with a byte-order mark is refused.
pub(super) fn read_text(what: &str, path: &Path) -> Result<String, CliError> {
    input_file::read_text(path, MAX_PROMPT).map_err(|e| super::input_error(what, path, e.into()))
}

/// Text for the model, from a file or, by the name `-`, from stdin; what was left out of it goes to `notes`.
pub(super) fn read_prompt(what: &str, path: &Path, notes: &mut Vec<String>) -> Result<String, CliError> {
    if path == Path::new("-") {
        return read_stdin(notes);
    }
    let text = input_file::read_marked_text(path, MAX_PROMPT).map_err(|e| super::input_error(what, path, e.into()))?;
    Ok(without_mark(text, &format!("{what} {}", path.display()), notes))
}

fn read_stdin(notes: &mut Vec<String>) -> Result<String, CliError> {
    let refused = |e: &dyn std::fmt::Display| CliError::Refused(format!("stdin: {e}"));
    let mut bytes = Vec::new();
    std::io::stdin().lock().take(MAX_PROMPT + 1).read_to_end(&mut bytes).map_err(|e| refused(&e))?;
    if bytes.len() as u64 > MAX_PROMPT {
        return Err(refused(&format_args!("more than {MAX_PROMPT} bytes")));
    }
    let text = input_file::marked_text(bytes).map_err(|e| refused(&e))?;
    Ok(without_mark(text, "stdin", notes))
}

/// Editors put a byte-order mark before a text to say that it is UTF-8. It is not part of the text, and the model would
/// read it as tokens.
pub(super) fn without_mark(text: String, what: &str, notes: &mut Vec<String>) -> String {
    match text.strip_prefix('\u{feff}') {
        Some(rest) => {
            notes.push(format!("{what} begins with a UTF-8 byte-order mark, which is left out"));
            rest.to_owned()
        }
        None => text,
    }
}

/// Says what was left out or kept where one might not expect it.
pub(super) fn say_notes(notes: &[String]) {
    for note in notes {
        output::note(format_args!("note: {}", output::for_terminal(note)));
    }
}

pub(super) fn engine_error(e: GenerateError) -> CliError {
    use bitnet_rs::Error as E;
    match e {
        GenerateError::Engine(
            e @ (E::ContextParam { .. }
            | E::KvType { .. }
            | E::ContextMemory { .. }
            | E::Sampler(_)
            | E::UnsupportedCpu { .. }),
        ) => CliError::Usage(e.to_string()),
        GenerateError::EmptyPrompt => CliError::Usage("the prompt is empty".into()),
        GenerateError::NoTemplate => CliError::Usage(e.to_string()),
        GenerateError::DraftNeedsFlashAttention | GenerateError::DraftNeedsGreedy => {
            CliError::Usage(format!("--draft-lookup: {e}"))
        }
        GenerateError::Template(_) => CliError::Refused(e.to_string()),
        GenerateError::Engine(e @ (E::ContextFull { .. } | E::TextTooLong { .. } | E::PositionPastTraining { .. })) => {
            CliError::Usage(e.to_string())
        }
        GenerateError::TooLong { .. } => CliError::Usage(e.to_string()),
        GenerateError::Engine(E::Cancelled) => CliError::Interrupted,
        other => CliError::Failed(other.to_string()),
    }
}

pub(super) fn session_error(e: SessionError) -> CliError {
    match e {
        SessionError::Generate(e) => engine_error(e),
        SessionError::NothingRendered { .. } => CliError::Usage(format!("the prompt is empty: {e}")),
        other => CliError::Failed(other.to_string()),
    }
}

fn grammar(options: &ModelOptions) -> Result<(Option<Language>, Option<ToolRegistry>), CliError> {
    let limits = GrammarLimits::default();
    if let Some(path) = &options.grammar {
        let text = read_text("--grammar", path)?;
        let g = Grammar::parse(&text, &options.grammar_root, &limits).map_err(|e| refused("--grammar", path, &e))?;
        return Ok((Some(g.into()), None));
    }
    if let Some(path) = &options.json_schema {
        let schema = json_schema(path, options.schema_mode)?;
        note_remarks(path, schema.remarks());
        return Ok((Some(schema.into()), None));
    }
    if let Some(path) = &options.tools {
        let registry = tool_registry(path, options.schema_mode)?;
        note_remarks(path, registry.remarks());
        return Ok((Some(registry.language()), Some(registry)));
    }
    Ok((None, None))
}

/// The schema that `--json-schema` names.
pub(super) fn json_schema(path: &Path, mode: SchemaMode) -> Result<Schema, CliError> {
    let text = read_text("--json-schema", path)?;
    Schema::parse(&text, &mode.options()).map_err(|e| refused("--json-schema", path, &e))
}

/// Most remarks that are printed; the JSON result has all.
const MAX_REMARKS: usize = 8;

fn note_remarks(path: &Path, remarks: &[Remark]) {
    for remark in remarks.iter().take(MAX_REMARKS) {
        output::note(format_args!("{}: {remark}", path.display()));
    }
    if remarks.len() > MAX_REMARKS {
        output::note(format_args!("{}: and {} more like these", path.display(), remarks.len() - MAX_REMARKS));
    }
}

/// The registry that `--tools` names.
pub(super) fn tool_registry(path: &Path, mode: SchemaMode) -> Result<ToolRegistry, CliError> {
    ToolRegistry::load(path, &mode.options()).map_err(|e| match e {
        RegistryError::Read { source, .. } => super::input_error("--tools", path, source),
        e => refused("--tools", path, &e),
    })
}

impl Opened {
    pub(super) fn new(options: &ModelOptions, children: &Children) -> Result<Self, CliError> {
        let (grammar, registry) = grammar(options)?;
        let held = super::registry::from_registry(options.cartridge.as_deref(), &options.place)?;
        let source = ModelSource::from_option(options.model.clone());
        let started = Instant::now();
        let (model, path) = super::load_model(&source)?;
        let load = started.elapsed();
        let settings = super::profile::settings(&model, options.threads)?;
        let defaults = ContextParams::default();
        let context = ContextParams {
            n_ctx: options.n_ctx,
            n_ubatch: settings.n_ubatch.unwrap_or(defaults.n_ubatch),
            n_threads: settings.threads,
            flash_attn: options.flash_attn,
            type_k: options.type_k,
            type_v: options.type_v,
            allow_overcommit: options.allow_overcommit,
            ..defaults
        };
        let sandbox = TemplateSandbox::Child(children.clone());
        let template = match &options.chat_template {
            Some(path) => {
                let text = read_text("--chat-template", path)?;
                Some(ChatTemplate::new(text, &path.display().to_string(), &sandbox).map_err(engine_error)?)
            }
            None => None,
        };
        let (known, verify_model) = (StampStore::of_user(), options.verify_model);
        let params = SessionParams { context, template, sandbox, known, verify_model };
        let mut session = Session::open(&model, params).map_err(session_error)?;
        let (cells, trained) = (session.params().n_ctx, model.info().hyperparameters().n_ctx_train);
        if options.n_ctx != 0 && cells != options.n_ctx {
            output::note(format!("--n-ctx {}: the engine made {cells} cells of it, whole blocks", options.n_ctx));
        }
        if cells > trained {
            output::note(format!("--n-ctx {}: positions end at {trained}, the model's context length", options.n_ctx));
        }
        let talk = session.begin().map_err(session_error)?;
        let rounding = if options.round { Rounding::Nearest } else { Rounding::Exact };
        let cartridge = held.as_ref().map(|held| held.path()).or(options.cartridge.as_deref());
        let mounted = cartridge.map(|p| mount(&mut session, talk, p, rounding)).transpose()?;
        if let Some(text) = &options.system {
            session.hear(talk, Message::new("system", text)).map_err(session_error)?;
        }
        let params = GeneratorParams {
            sampling: SamplingParams {
                temperature: options.temperature,
                top_k: options.top_k,
                top_p: options.top_p,
                min_p: options.min_p,
                repeat_penalty: options.repeat_penalty,
                seed: options.seed.number(),
                ..Default::default()
            },
            max_tokens: options.max_tokens,
            stop: options.stop.clone(),
            grammar,
            draft_lookup: options.draft_lookup as usize,
            ..Default::default()
        };
        let interrupted = cancel_on_interrupt(session.cancel_handle());
        Ok(Self { session, talk, params, registry, interrupted, load, mounted, _path: path })
    }
}

/// Mounts; returns where decoding goes on.
fn mount(session: &mut Session, talk: Conversation, path: &Path, rounding: Rounding) -> Result<u32, CliError> {
    let cartridge = Cartridge::open(path).map_err(|e| match e {
        CartridgeError::Io { source, .. } => super::input_error("--cartridge", path, source),
        e => refused("--cartridge", path, &e),
    })?;
    let mounted = session.mount(talk, &cartridge, rounding).map_err(|e| refused("--cartridge", path, &e))?;
    Ok(mounted.next_pos)
}

/// The first Ctrl-C stops the generation; a second one before the next ends the process.
fn cancel_on_interrupt(cancel: CancelHandle) -> Arc<AtomicBool> {
    interrupt::cooperate(move || cancel.cancel())
}

/// Gets an answer ready, with a bar while its prompt is decoded.
pub(super) fn prefilled<'s>(
    begin: impl FnOnce(&mut dyn FnMut(usize, usize)) -> Result<Answer<'s>, SessionError>,
) -> Result<Answer<'s>, SessionError> {
    let bar = progress::tokens("prefilling", 0);
    let answer = begin(&mut |done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    answer
}

/// Takes the whole answer, printing it as it comes if `stream`, as long as somebody reads.
pub(super) fn take(mut answer: Answer<'_>, stream: bool) -> Result<Said, CliError> {
    for event in &mut answer {
        let (Event::Token { text, .. } | Event::End { text, .. }) = event.map_err(session_error)?;
        output::stream(if stream { &text } else { "" })?;
    }
    Ok(answer.so_far().clone())
}

/// How the schema took part: what is exact by its grammar, what was validated and how often it was tried.
fn schema_report(opened: &Opened, said: &Said) -> serde_json::Value {
    let Some(schema) = opened.params.grammar.as_ref().and_then(Language::schema) else { return json!(null) };
    let remarks = opened.registry.as_ref().map_or(schema.remarks(), ToolRegistry::remarks);
    json!({
        "mode": schema.options().mode,
        "exactness": schema.exactness(),
        "validation": said.validation,
        "remarks": remarks,
    })
}

/// Why an output that ended is not an answer to its schema.
fn refused_by_schema(said: &Said) -> Option<String> {
    let validation = said.validation.as_ref().filter(|_| !said.complete)?;
    Some(format!("none of {} outputs was valid; the last one: {}", validation.tries, validation.verdict))
}

pub(super) fn timings(load: Duration, said: &Said) -> String {
    let rate = |n: usize, time: Duration| if time.is_zero() { 0.0 } else { n as f64 / time.as_secs_f64() };
    format!(
        "load {:.0} ms · prefill {} tokens {:.1} t/s · decode {} tokens {:.1} t/s · ended: {}",
        milliseconds(load),
        said.prompt_tokens,
        rate(said.prompt_tokens, said.prefill),
        said.tokens.len(),
        rate(said.tokens.len(), said.decode),
        said.ending
    )
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// `harness generate`.
pub(crate) fn run(args: GenerateArgs, children: &Children) -> Result<Exit, CliError> {
    let mut notes = Vec::new();
    let text = match (args.text.as_ref().or(args.prompt.as_ref()), &args.file) {
        (Some(text), _) => without_mark(text.clone(), "the prompt", &mut notes),
        (None, Some(path)) => read_prompt("--file", path, &mut notes)?,
        (None, None) => read_stdin(&mut notes)?,
    };
    if text.is_empty() {
        return Err(CliError::Usage("the prompt is empty".into()));
    }
    if args.text.is_none() && args.prompt.is_none() && text.ends_with('\n') {
        // Most files and pipes end so, and few who write a prompt mean it.
        notes.push("the prompt ends with a newline, which the model reads as a part of it".into());
    }
    say_notes(&notes);
    let mut opened = Opened::new(&args.options, children)?;
    let (params, talk) = (opened.params.clone(), opened.talk);
    let mut template_source = "none".to_owned();
    let json_wanted = args.format == TextOrJson::Json;
    let answer = if args.chat || args.options.system.is_some() {
        template_source.clone_from(&opened.session.template().map_err(session_error)?.source);
        prefilled(|done| opened.session.say_with_progress(talk, &text, params, done))
    } else {
        prefilled(|done| opened.session.continue_text(talk, &text, params, done))
    }
    .map_err(session_error)?;
    let said = take(answer, !json_wanted)?;
    let call = opened.registry.as_ref().filter(|_| said.complete).map(|r| r.parse_call(&said.text));
    if json_wanted {
        let call = match &call {
            Some(Ok(call)) => json!({"tool": call.tool, "arguments": call.arguments}),
            Some(Err(e)) => json!({"error": e.to_string()}),
            None => serde_json::Value::Null,
        };
        output::print(&output::json(&json!({
            "text": said.text,
            "tokens": said.tokens.iter().map(|(id, lp)| json!({"id": id.get(), "logprob": lp})).collect::<Vec<_>>(),
            "ending": said.ending,
            "complete": said.complete,
            "schema": schema_report(&opened, &said),
            "call": call,
            "template": template_source,
            "cartridge_tokens": opened.mounted,
            "prompt_tokens": said.prompt_tokens,
            "load_ms": milliseconds(opened.load),
            "prefill_ms": milliseconds(said.prefill),
            "decode_ms": milliseconds(said.decode),
            "draft": said.draft,
            "seed": opened.params.sampling.seed,
            "notes": notes,
        }))?)?;
    } else {
        output::print("\n")?;
        output::note(format_args!("template: {template_source} · {}", timings(opened.load, &said)));
    }
    if said.ending == Ending::Cancelled {
        return Ok(Exit::Interrupted);
    }
    if let Some(why) = refused_by_schema(&said) {
        output::note(why);
    }
    if let Some(Err(e)) = call {
        return Err(CliError::Failed(format!("the output is no valid call: {e}")));
    }
    Ok(if opened.params.grammar.is_some() && !said.complete { Exit::Incomplete } else { Exit::Success })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_numbers_or_random_and_the_engines_word_for_random_is_one_too() {
        assert_eq!("7".parse(), Ok(Seed::Fixed(7)));
        assert_eq!("random".parse(), Ok(Seed::Random));
        assert_eq!("4294967295".parse(), Ok(Seed::Random));
        for wrong in ["", "-1", "4294967296", "Random", "1.5"] {
            assert!(wrong.parse::<Seed>().is_err(), "{wrong}");
        }
    }
}
