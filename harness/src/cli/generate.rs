//! `harness generate` and `harness chat`.

use session::Mount as _;
use std::io::{BufRead, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bitnet_rs::{Context, ContextParams, SamplingParams, SeqId, Special, TokenId};
use clap::Args;
use grammar::{Grammar, GrammarLimits};
use kv::KvType;
use serde_json::json;

use super::output::{self, TextOrJson};
use super::{CliError, progress};
use crate::exit::Exit;
use crate::interrupt;
use cartridge::{Cartridge, CartridgeError, Level, Rounding};
use files::input_file;
use grammar::tools::{RegistryError, SchemaOptions, ToolRegistry, schema_to_gbnf};
use models::source::{ModelPath, ModelSource};
use session::{
    ChatTemplate, DraftCounts, Ending, Event, GenerateError, Generator, GeneratorParams, Message, fits_context,
};

/// Largest prompt file, in bytes.
const MAX_PROMPT: u64 = 16 << 20;

/// Options that both commands share.
#[derive(Debug, Args)]
pub(crate) struct ModelOptions {
    /// GGUF file; without it the embedded model.
    #[arg(long, value_name = "GGUF")]
    model: Option<PathBuf>,
    /// Cartridge to mount under the prompt or conversation.
    #[arg(long, value_name = "FILE")]
    cartridge: Option<PathBuf>,
    /// Round values of a cartridge that the context's types cannot hold exactly.
    #[arg(long)]
    round: bool,
    /// Cells of the context; 0 is the model's context length.
    #[arg(long, default_value_t = 0)]
    n_ctx: u32,
    /// Compute threads.
    #[arg(long, value_name = "N")]
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
    /// Constrain the output to a call of one of the tools in this registry (TOML or JSON).
    #[arg(long, value_name = "FILE")]
    tools: Option<PathBuf>,
    /// Most tokens to generate; 0 means as many as the context holds.
    #[arg(long, default_value_t = 256)]
    max_tokens: usize,
    /// 0 is greedy.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
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
    /// Seed of the random choice.
    #[arg(long, default_value_t = 0)]
    seed: u32,
    /// Text that ends the output; may be repeated.
    #[arg(long, allow_hyphen_values = true)]
    stop: Vec<String>,
    /// Guess up to N tokens by what followed the same words before, and verify them in one batch; needs --flash-attn
    /// and temperature 0.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=64))]
    draft_lookup: u32,
}

/// Options of `generate`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  harness generate --prompt \"The lamp in the kitchen\"\n  harness generate --chat --system $'Devices:\\n- lumo: light, kitchen' --prompt \"turn on lumo\"\n  harness generate --chat --prompt \"add 2 and 3\" --tools gates/grammars/arithmetic.toml --format json"
)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    options: ModelOptions,
    /// The prompt; without it and --file it is read from stdin.
    #[arg(long, conflicts_with = "file", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// File with the prompt.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Put the prompt into the chat template as a user message (implied by --system).
    #[arg(long)]
    chat: bool,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

/// Options of `chat`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  harness chat --system $'Devices:\\n- lumo: light, kitchen'\n\nCtrl-C stops an answer, the second one ends the program; an empty line or end of input ends the conversation."
)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    options: ModelOptions,
}

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
    /// User message; without it a conversation starts.
    #[arg(long, allow_hyphen_values = true)]
    prompt: Option<String>,
    /// The prompt goes on with the cartridge's text as it is, without the chat template.
    #[arg(long, requires = "prompt")]
    plain: bool,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

/// `harness cartridge mount`.
pub(crate) fn mount_and_run(args: MountArgs) -> Result<Exit, CliError> {
    let mut options = args.options;
    if options.cartridge.is_some() {
        return Err(CliError::Usage("--cartridge: the cartridge to mount is given already".into()));
    }
    if args.prompt.is_none() && args.format == TextOrJson::Json {
        return Err(CliError::Usage("--format json needs --prompt: a conversation is no one document".into()));
    }
    options.cartridge = Some(args.file);
    match args.prompt {
        Some(prompt) => {
            run(GenerateArgs { options, prompt: Some(prompt), file: None, chat: !args.plain, format: args.format })
        }
        None => chat(ChatArgs { options }),
    }
}

/// Everything that is ready before the first token.
struct Session {
    context: Context,
    params: GeneratorParams,
    registry: Option<ToolRegistry>,
    interrupted: Arc<AtomicBool>,
    load_ms: f64,
    mounted: Option<u32>,
    _path: ModelPath,
}

pub(super) fn refused(what: &str, path: &Path, e: &dyn std::fmt::Display) -> CliError {
    CliError::Refused(format!("{what} {}: {e}", path.display()))
}

pub(super) fn read_text(what: &str, path: &Path) -> Result<String, CliError> {
    input_file::read_text(path, MAX_PROMPT).map_err(|e| super::input_error(what, path, e.into()))
}

fn read_bounded(reader: impl Read) -> Result<String, std::io::Error> {
    let mut text = String::new();
    reader.take(MAX_PROMPT + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_PROMPT {
        return Err(std::io::Error::other(format!("more than {MAX_PROMPT} bytes")));
    }
    Ok(text)
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
        GenerateError::NoTemplate | GenerateError::DraftNeedsFlashAttention | GenerateError::DraftNeedsGreedy => {
            CliError::Usage(e.to_string())
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

fn grammar(options: &ModelOptions) -> Result<(Option<Grammar>, Option<ToolRegistry>), CliError> {
    let limits = GrammarLimits::default();
    if let Some(path) = &options.grammar {
        let text = read_text("--grammar", path)?;
        let g = Grammar::parse(&text, &options.grammar_root, &limits).map_err(|e| refused("--grammar", path, &e))?;
        return Ok((Some(g), None));
    }
    if let Some(path) = &options.json_schema {
        let schema: serde_json::Value =
            serde_json::from_str(&read_text("--json-schema", path)?).map_err(|e| refused("--json-schema", path, &e))?;
        let text =
            schema_to_gbnf(&schema, &SchemaOptions::default()).map_err(|e| refused("--json-schema", path, &e))?;
        let g = Grammar::parse(&text, "root", &limits).map_err(|e| refused("--json-schema", path, &e))?;
        return Ok((Some(g), None));
    }
    if let Some(path) = &options.tools {
        let registry = tool_registry(path)?;
        return Ok((Some(registry.grammar().clone()), Some(registry)));
    }
    Ok((None, None))
}

/// The registry that `--tools` names.
pub(super) fn tool_registry(path: &Path) -> Result<ToolRegistry, CliError> {
    ToolRegistry::load(path, &SchemaOptions::default()).map_err(|e| match e {
        RegistryError::Read { source, .. } => super::input_error("--tools", path, source),
        e => refused("--tools", path, &e),
    })
}

impl Session {
    fn open(options: &ModelOptions) -> Result<Self, CliError> {
        let (grammar, registry) = grammar(options)?;
        let source = ModelSource::from_option(options.model.clone());
        let started = Instant::now();
        let (model, path) = super::load_model(&source)?;
        let load_ms = started.elapsed().as_secs_f64() * 1e3;
        let settings = super::profile::settings(&model, options.threads)?;
        let defaults = ContextParams::default();
        let params = ContextParams {
            n_ctx: options.n_ctx,
            n_ubatch: settings.n_ubatch.unwrap_or(defaults.n_ubatch),
            n_threads: settings.threads,
            flash_attn: options.flash_attn,
            type_k: options.type_k,
            type_v: options.type_v,
            allow_overcommit: options.allow_overcommit,
            ..defaults
        };
        let mut context = Context::new(&model, &params).map_err(|e| engine_error(e.into()))?;
        let (cells, trained) = (context.params().n_ctx, model.info().hyperparameters().n_ctx_train);
        if options.n_ctx != 0 && cells != options.n_ctx {
            output::note(format!("--n-ctx {}: the engine made {cells} cells of it, whole blocks", options.n_ctx));
        }
        if cells > trained {
            output::note(format!("--n-ctx {}: positions end at {trained}, the model's context length", options.n_ctx));
        }
        let rounding = if options.round { Rounding::Nearest } else { Rounding::Exact };
        let mounted = options.cartridge.as_deref().map(|p| mount(&mut context, p, rounding)).transpose()?;
        let (mounted, held) = mounted.unzip();
        let params = GeneratorParams {
            sampling: SamplingParams {
                temperature: options.temperature,
                top_k: options.top_k,
                top_p: options.top_p,
                min_p: options.min_p,
                repeat_penalty: options.repeat_penalty,
                seed: options.seed,
                ..Default::default()
            },
            max_tokens: options.max_tokens,
            stop: options.stop.clone(),
            trie: match &grammar {
                Some(_) => Some(bitnet_rs::vocabulary_trie(&model).map_err(|e| CliError::Failed(e.to_string()))?),
                None => None,
            },
            grammar,
            draft_lookup: options.draft_lookup as usize,
            draft_history: held.unwrap_or_default(),
        };
        let interrupted = cancel_on_interrupt(&context);
        Ok(Self { context, params, registry, interrupted, load_ms, mounted, _path: path })
    }

    fn template(&self, options: &ModelOptions) -> Result<ChatTemplate, CliError> {
        match &options.chat_template {
            Some(path) => ChatTemplate::new(read_text("--chat-template", path)?, &path.display().to_string()),
            None => ChatTemplate::of_model(self.context.model()),
        }
        .map_err(engine_error)
    }
}

/// Mounts; where decoding goes on, and the tokens that the cartridge stands for.
fn mount(context: &mut Context, path: &Path, rounding: Rounding) -> Result<(u32, Vec<TokenId>), CliError> {
    let cartridge = Cartridge::open(path).map_err(|e| match e {
        CartridgeError::Io { source, .. } => super::input_error("--cartridge", path, source),
        e => refused("--cartridge", path, &e),
    })?;
    cartridge.validate(Level::Full).map_err(|e| refused("--cartridge", path, &e))?;
    let lock = session::lock_of(context.model(), &mut |_, _| std::ops::ControlFlow::Continue(()))
        .map_err(|e| CliError::Failed(e.to_string()))?;
    let mounted =
        cartridge.mount(context, SeqId::ZERO, &lock, rounding).map_err(|e| refused("--cartridge", path, &e))?;
    let tokens = cartridge.tokens().filter_map(|id| context.model().token(id).ok()).collect();
    Ok((mounted.next_pos, tokens))
}

/// The first Ctrl-C stops the generation; a second one before the next ends the process.
fn cancel_on_interrupt(context: &Context) -> Arc<AtomicBool> {
    let cancel = context.cancel_handle();
    interrupt::cooperate(move || cancel.cancel())
}

/// One output with its measurements.
struct Output {
    text: String,
    tokens: Vec<(TokenId, f64)>,
    ending: Ending,
    complete: bool,
    prompt_tokens: usize,
    prefill_ms: f64,
    decode_ms: f64,
    draft: DraftCounts,
}

fn generate(session: &mut Session, prompt: &[TokenId], stream: bool) -> Result<Output, CliError> {
    let started = Instant::now();
    let params = session.params.clone();
    let bar = progress::tokens("prefilling", prompt.len());
    let mut decoded = |done: usize| bar.set_position(done as u64);
    let generator = Generator::with_progress(&mut session.context, SeqId::ZERO, prompt, params, &mut decoded);
    bar.finish_and_clear();
    let mut generator = generator.map_err(engine_error)?;
    let prefill_ms = started.elapsed().as_secs_f64() * 1e3;
    let started = Instant::now();
    let mut out = Output {
        text: String::new(),
        tokens: Vec::new(),
        ending: Ending::MaxTokens,
        complete: false,
        prompt_tokens: prompt.len(),
        prefill_ms,
        decode_ms: 0.0,
        draft: DraftCounts::default(),
    };
    for event in &mut generator {
        let piece = match event.map_err(engine_error)? {
            Event::Token { id, logprob, text } => {
                out.tokens.push((id, logprob));
                text
            }
            Event::End { ending, complete, text } => {
                (out.ending, out.complete) = (ending, complete);
                text
            }
        };
        if stream {
            output::print(&piece)?;
        }
        out.text.push_str(&piece);
    }
    out.decode_ms = started.elapsed().as_secs_f64() * 1e3;
    out.draft = generator.draft_counts();
    Ok(out)
}

fn timings(session: &Session, out: &Output) -> String {
    let rate = |n: usize, ms: f64| if ms > 0.0 { n as f64 / ms * 1e3 } else { 0.0 };
    format!(
        "load {:.0} ms · prefill {} tokens {:.1} t/s · decode {} tokens {:.1} t/s · ended: {}",
        session.load_ms,
        out.prompt_tokens,
        rate(out.prompt_tokens, out.prefill_ms),
        out.tokens.len(),
        rate(out.tokens.len(), out.decode_ms),
        out.ending
    )
}

/// `harness generate`.
pub(crate) fn run(args: GenerateArgs) -> Result<Exit, CliError> {
    let text = match (&args.prompt, &args.file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => read_text("--file", path)?,
        (None, None) => read_bounded(std::io::stdin().lock()).map_err(|e| CliError::Refused(format!("stdin: {e}")))?,
    };
    if text.is_empty() {
        return Err(CliError::Usage("the prompt is empty".into()));
    }
    let mut session = Session::open(&args.options)?;
    let model = session.context.model().clone();
    let mut template_source = "none".to_owned();
    let prompt = if args.chat || args.options.system.is_some() {
        let template = session.template(&args.options)?;
        template_source.clone_from(&template.source);
        let mut messages: Vec<Message> = args.options.system.iter().map(|s| Message::new("system", s)).collect();
        messages.push(Message::new("user", text));
        let tokens = template.tokens(&model, &messages, true).map_err(engine_error)?;
        // Behind a cartridge the conversation goes on; it does not begin again.
        continue_tokens(&session, tokens)
    } else {
        let special = if session.mounted.is_some() { Special::Content } else { Special::ContentWithBos };
        fits_context(&model, text.len()).map_err(engine_error)?;
        model.tokenize(&text, special).map_err(|e| engine_error(e.into()))?
    };
    let json_wanted = args.format == TextOrJson::Json;
    let out = generate(&mut session, &prompt, !json_wanted)?;
    let call = session.registry.as_ref().filter(|_| out.complete).map(|r| r.parse_call(&out.text));
    if json_wanted {
        let call = match &call {
            Some(Ok(call)) => json!({"tool": call.tool, "arguments": call.arguments}),
            Some(Err(e)) => json!({"error": e.to_string()}),
            None => serde_json::Value::Null,
        };
        output::print(&output::json(&json!({
            "text": out.text,
            "tokens": out.tokens.iter().map(|(id, lp)| json!({"id": id.get(), "logprob": lp})).collect::<Vec<_>>(),
            "ending": out.ending,
            "complete": out.complete,
            "call": call,
            "template": template_source,
            "cartridge_tokens": session.mounted,
            "prompt_tokens": out.prompt_tokens,
            "load_ms": session.load_ms,
            "prefill_ms": out.prefill_ms,
            "decode_ms": out.decode_ms,
            "draft": out.draft,
        }))?)?;
    } else {
        output::print("\n")?;
        output::note(format_args!("template: {template_source} · {}", timings(&session, &out)));
    }
    if out.ending == Ending::Cancelled {
        return Ok(Exit::Interrupted);
    }
    if let Some(Err(e)) = call {
        return Err(CliError::Failed(format!("the output is no valid call: {e}")));
    }
    Ok(if session.params.grammar.is_some() && !out.complete { Exit::Incomplete } else { Exit::Success })
}

/// Drops a leading `bos` when something is mounted before.
fn continue_tokens(session: &Session, mut tokens: Vec<TokenId>) -> Vec<TokenId> {
    if session.mounted.is_some() && tokens.first().copied() == session.context.model().bos() {
        tokens.remove(0);
    }
    tokens
}

/// `harness chat`.
pub(crate) fn chat(args: ChatArgs) -> Result<Exit, CliError> {
    let mut session = Session::open(&args.options)?;
    let template = session.template(&args.options)?;
    let model = session.context.model().clone();
    let name = model.info().name().unwrap_or("unnamed").escape_debug();
    output::note(format_args!("model: {name} · template: {}", template.source));
    if let Some(next) = session.mounted {
        output::note(format_args!("cartridge: {next} tokens mounted"));
    }
    let mut messages: Vec<Message> = args.options.system.iter().map(|s| Message::new("system", s)).collect();
    let mut known: Vec<TokenId> = Vec::new();
    let base = session.context.next_pos(SeqId::ZERO).map_err(|e| engine_error(e.into()))?;
    let terminal = std::io::stdin().is_terminal();
    let mut lines = std::io::stdin().lock();
    loop {
        if terminal {
            let _ = write!(std::io::stderr(), "> ");
        }
        // Between answers there is nothing to stop: an interrupt ends the conversation.
        session.interrupted.store(true, Ordering::SeqCst);
        let mut line = String::new();
        let n = lines
            .by_ref()
            .take(MAX_PROMPT)
            .read_line(&mut line)
            .map_err(|e| CliError::Refused(format!("stdin: {e}")))?;
        let line = line.trim();
        if n == 0 || line.is_empty() {
            return Ok(Exit::Success);
        }
        session.interrupted.store(false, Ordering::SeqCst);
        messages.push(Message::new("user", line));
        let tokens = match template.tokens(&model, &messages, true).map_err(engine_error) {
            Ok(tokens) => continue_tokens(&session, tokens),
            // One message that is too long is no reason to leave.
            Err(CliError::Usage(e)) => {
                output::note(e);
                messages.pop();
                continue;
            }
            Err(e) => return Err(e),
        };
        if tokens.is_empty() {
            return Err(CliError::Refused(format!("chat template ({}) renders nothing", template.source)));
        }
        // What the context holds already is not decoded again; where it differs it is removed.
        let same = known.iter().zip(&tokens).take_while(|(a, b)| a == b).count().min(tokens.len() - 1);
        let from = base.forward(same).map_err(|e| engine_error(e.into()))?;
        let next = session.context.next_pos(SeqId::ZERO).map_err(|e| engine_error(e.into()))?;
        session.context.remove(SeqId::ZERO, from..next).map_err(|e| engine_error(e.into()))?;
        match generate(&mut session, &tokens[same..], true) {
            Ok(out) => {
                output::print("\n")?;
                output::note(timings(&session, &out));
                known = tokens;
                let held =
                    session.context.next_pos(SeqId::ZERO).map_err(|e| engine_error(e.into()))?.get() - base.get();
                known.extend(out.tokens.iter().map(|(id, _)| *id));
                known.truncate(usize::try_from(held).unwrap_or(0));
                messages.push(Message::new("assistant", out.text));
            }
            // Refused, or stopped before its first token: as if it had not been said.
            Err(e @ (CliError::Usage(_) | CliError::Interrupted)) => {
                output::note(e);
                messages.pop();
                let held =
                    session.context.next_pos(SeqId::ZERO).map_err(|e| engine_error(e.into()))?.get() - base.get();
                known.truncate(usize::try_from(held).unwrap_or(0));
            }
            Err(e) => return Err(e),
        }
    }
}
