//! `harness serve`.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bitnet_rs::ContextParams;
use clap::Args;
use files::children::Children;
use files::stamps::StampStore;
use kv::KvType;
use models::source::ModelSource;
use server::{CartridgeFolder, CartridgeSource, Listen, ServeError, Server, ServerParams};
use session::scheduler::{Padding, SchedulerParams};
use session::{ChatTemplate, GenerateError, TemplateSandbox};

use super::{CliError, generate, output};
use crate::exit::Exit;
use crate::interrupt;

/// Options of `serve`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  harness serve\n  harness serve --cartridges cartridges --keys keys.txt --listen 0.0.0.0:8080 --host models.example\n  harness serve --new-key anna >> keys.txt\n\nSIGHUP reads keys and cartridges again; SIGTERM lets answers on their way end, a second one cancels them."
)]
pub(crate) struct ServeArgs {
    /// GGUF file; without it the embedded model.
    #[arg(long, value_name = "GGUF")]
    model: Option<PathBuf>,
    /// The model's name in requests; without it the one in its file.
    #[arg(long)]
    name: Option<String>,
    /// ADDRESS:PORT or unix:PATH.
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: Listen,
    /// Host name that requests may use beside those of the loopback interface; may be repeated.
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// Folder of cartridges; each .safetensors file can be named as MODEL:FILE-NAME.
    #[arg(long, value_name = "DIR")]
    cartridges: Option<PathBuf>,
    /// Answers that are decoded at once.
    #[arg(long, value_name = "N", default_value_t = 4)]
    parallel: u32,
    /// Cartridges that are mounted at once.
    #[arg(long, value_name = "N", default_value_t = 4)]
    mounts: u32,
    /// Requests that may wait.
    #[arg(long, value_name = "N", default_value_t = 64)]
    queue: usize,
    /// Tokens of prompts in a micro-batch beside answers on their way.
    #[arg(long, value_name = "N", default_value_t = 32)]
    prefill_budget: usize,
    /// An answer's length where a request names none.
    #[arg(long, value_name = "N", default_value_t = 512)]
    max_tokens: usize,
    /// Cells of the context, shared by all; 0 is the model's context length.
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
    /// File with a chat template (Jinja) instead of the model's.
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
    /// File of users' keys, as hashes; without it only programs on this machine are answered.
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    /// File of operators' keys, for /metrics.
    #[arg(long, value_name = "FILE")]
    operator_keys: Option<PathBuf>,
    /// Make a key: the line for the file of keys on stdout, the key itself on stderr. Nothing is served.
    #[arg(long, value_name = "NAME")]
    new_key: Option<String>,
    /// Requests per minute and key.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: Option<u32>,
    /// Longest time for a request in seconds, queue included.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    deadline: Option<u64>,
    /// Seconds that answers on their way may go on after SIGTERM.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    drain: u64,
    /// One request at a time, with the bits of `harness generate`.
    #[arg(long)]
    deterministic: bool,
}

fn serve_error(e: ServeError) -> CliError {
    match e {
        ServeError::Engine(e) => generate::engine_error(GenerateError::Engine(e)),
        e => CliError::Usage(e.to_string()),
    }
}

/// The server answers signals itself; this program's own handler, which would end the process, stands down each time.
fn leave_signals_to_the_server() {
    let flag: Arc<OnceLock<Arc<AtomicBool>>> = Arc::default();
    let here = Arc::clone(&flag);
    let seen = interrupt::cooperate(move || {
        if let Some(seen) = here.get() {
            seen.store(false, Ordering::SeqCst);
        }
    });
    let _ = flag.set(seen);
}

/// `harness serve`.
pub(crate) fn run(args: ServeArgs, children: &Children) -> Result<Exit, CliError> {
    if let Some(name) = &args.new_key {
        let (key, line) = server::new_key(name).ok_or_else(|| {
            CliError::Usage("--new-key: a name has 1 to 64 of a-z, A-Z, 0-9, '.', '_' and '-'".into())
        })?;
        output::print(&format!("{line}\n"))?;
        output::note(format_args!("key: {key}"));
        return Ok(Exit::Success);
    }
    let source = ModelSource::from_option(args.model.clone());
    let (model, _path) = super::load_model(&source)?;
    let settings = super::profile::settings(&model, args.threads)?;
    let defaults = ContextParams::default();
    let context = ContextParams {
        n_ctx: args.n_ctx,
        n_ubatch: settings.n_ubatch.unwrap_or(defaults.n_ubatch),
        n_threads: settings.threads,
        flash_attn: args.flash_attn,
        type_k: args.type_k,
        type_v: args.type_v,
        allow_overcommit: args.allow_overcommit,
        ..defaults
    };
    let sandbox = TemplateSandbox::Child(children.clone());
    let template = match &args.chat_template {
        Some(path) => {
            let text = generate::read_text("--chat-template", path)?;
            Some(ChatTemplate::new(text, &path.display().to_string(), &sandbox).map_err(generate::engine_error)?)
        }
        None => match ChatTemplate::of_model(&model, &sandbox) {
            Ok(template) => Some(template),
            Err(GenerateError::NoTemplate) => {
                output::note("the model has no chat template: only /v1/completions answers");
                None
            }
            Err(e) => return Err(generate::engine_error(e)),
        },
    };
    let name = match &args.name {
        Some(name) if *name == server::model_name(name) => name.clone(),
        Some(_) => {
            return Err(CliError::Usage("--name: 1 to 64 of a-z, A-Z, 0-9, '.', '_' and '-'".into()));
        }
        None => server::model_name(model.info().name().unwrap_or("model")),
    };
    let params = ServerParams {
        name,
        scheduler: SchedulerParams {
            context,
            parallel: args.parallel,
            queue: args.queue,
            mounts: args.mounts,
            prefill_budget: args.prefill_budget,
            default_max_tokens: args.max_tokens,
            padding: Padding::Three,
            deterministic: args.deterministic,
        },
        keys: args.keys,
        operator_keys: args.operator_keys,
        hosts: args.host,
        rate: args.rate,
        deadline: args.deadline.map(Duration::from_secs),
        drain: Duration::from_secs(args.drain),
        ..Default::default()
    };
    let folder = args.cartridges.map(|folder| Box::new(CartridgeFolder(folder)) as Box<dyn CartridgeSource>);
    let (server, reloaded) =
        Server::new(&model, template, folder, StampStore::of_user(), params, &args.listen).map_err(serve_error)?;
    server::log_reload(&reloaded);
    leave_signals_to_the_server();
    server::run(&server, &args.listen, |listen| {
        let name = &server.params().name;
        output::note(format_args!("model: {name} · cartridges: {} · {listen}", reloaded.offered));
    })
    .map_err(serve_error)?;
    Ok(Exit::Success)
}
