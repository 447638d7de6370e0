//! Many requests on one context: continuous batching.
//!
//! One thread owns the context. Each step is one micro-batch: first the next token of every answer on its way, then a
//! piece of the prompts that wait. Requests come in through a bounded queue that is fair between their owners, and an
//! answer goes out as events while it is decoded.
//!
//! * A cartridge is mounted once; whoever uses it shares its cells (`llama_kv_cache_seq_cp`).
//! * A prompt that begins like an earlier one of the same owner is decoded from where the two part.
//! * Whoever cancels is gone within one micro-batch, in the queue, in the prompt and in the answer.
//! * An answer decoded beside others has other last digits than one decoded alone: float sums of several rows run in
//!   another order (up to 2e-4 in a log-probability of the embedded model). [`SchedulerParams::deterministic`] serves one
//!   request at a time with the bits of a [`Session`](crate::Session).
//!
//! ```no_run
//! use bitnet_rs::{Model, ModelParams, Special};
//! use session::scheduler::{Request, Scheduler, SchedulerParams, StreamEvent};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Model::load("model.gguf", ModelParams::default())?;
//! let scheduler = Scheduler::start(&model, SchedulerParams::default(), None)?;
//! let prompt = model.tokenize("The lamp", Special::ContentWithBos)?;
//! let (_ticket, events) = scheduler.submit_to_channel(Request::new(prompt))?;
//! for event in events {
//!     if let StreamEvent::Token { text, .. } = event {
//!         print!("{text}");
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod engine;
mod output;
mod queue;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bitnet_rs::{CancelHandle, Context, ContextParams, EffectiveParams, Model, SamplingParams, TokenId, vocabulary_trie};
use cartridge::{Cartridge, CartridgeError, ModelLock, Rounding};
use grammar::{Grammar, TokenTrie};
use kv::StateGeometry;

use crate::{Ending, MountError, TokenSelector};
use engine::Engine;
use queue::{Queue, Waiting};

/// Cells kept free for rows that only fill a micro-batch up.
pub(crate) const SPARE_CELLS: usize = 3;

/// Which micro-batches are filled up to a multiple of four rows.
///
/// The ternary matrices take four rows in one pass over the weights and each of the one to three left over in a pass of
/// its own. A row that fills up costs the rest of the network, so how many left-over rows are worth it is a matter of
/// the model and the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Padding {
    /// None.
    Off,
    /// Those with three rows left over.
    Three,
    /// Those with two or three rows left over.
    Two,
    /// Those with any rows left over, but never a lone row.
    Any,
}

impl Padding {
    /// How many rows to add to `rows`.
    #[must_use]
    pub fn rows(self, rows: usize) -> usize {
        let rest = rows % 4;
        let from = match self {
            Self::Off => return 0,
            Self::Three => 3,
            Self::Two => 2,
            Self::Any => 1,
        };
        if rest >= from && rows > 1 { 4 - rest } else { 0 }
    }
}

/// How to serve.
#[derive(Clone, Debug)]
pub struct SchedulerParams {
    /// The context; `n_seq_max` is set by the scheduler.
    pub context: ContextParams,
    /// Most answers that are decoded at once, 1 to 256.
    pub parallel: u32,
    /// Most requests that wait.
    pub queue: usize,
    /// Most cartridges that are mounted at once.
    pub mounts: u32,
    /// Most tokens of prompts in a micro-batch beside answers on their way. Without any, a micro-batch is as large as
    /// the context allows.
    pub prefill_budget: usize,
    /// Answer's length where a request has no limit of its own.
    pub default_max_tokens: usize,
    /// Which micro-batches are filled up.
    pub padding: Padding,
    /// One request at a time, from an empty cache, split as a [`Session`](crate::Session) splits: the same bits.
    pub deterministic: bool,
}

impl Default for SchedulerParams {
    fn default() -> Self {
        Self {
            context: ContextParams::default(),
            parallel: 4,
            queue: 64,
            mounts: 4,
            prefill_budget: 32,
            default_max_tokens: 512,
            padding: Padding::Three,
            deterministic: false,
        }
    }
}

/// A cartridge that requests can name, with the lock of the model that it is mounted under. Two requests share its
/// cells if they name the same value (`Arc::ptr_eq`).
#[derive(Debug)]
pub struct SharedCartridge {
    /// The file.
    pub cartridge: Cartridge,
    /// The model's lock.
    pub lock: ModelLock,
}

/// What to answer.
#[derive(Clone, Debug)]
pub struct Request {
    /// Whose request it is: waiting is fair between owners, and prompts are only shared within one.
    pub owner: u64,
    /// Tokens behind the cartridge, or from the start.
    pub prompt: Vec<TokenId>,
    /// What is mounted under the prompt.
    pub cartridge: Option<Arc<SharedCartridge>>,
    /// How many answers; the n-th has the seed of the first plus n.
    pub choices: u32,
    /// How to choose tokens.
    pub sampling: SamplingParams,
    /// Most tokens of each answer. More than fit are cut to what fits.
    pub max_tokens: Option<usize>,
    /// Texts that end an answer; they are not part of it.
    pub stop: Vec<String>,
    /// Each answer is a sentence of this grammar, or incomplete.
    pub grammar: Option<Grammar>,
    /// Log-probabilities of each token, and of so many of the likeliest ones in its place.
    pub logprobs: Option<usize>,
    /// When to give up.
    pub deadline: Option<Instant>,
}

impl Request {
    /// One greedy answer to `prompt`.
    #[must_use]
    pub fn new(prompt: Vec<TokenId>) -> Self {
        Self {
            owner: 0,
            prompt,
            cartridge: None,
            choices: 1,
            sampling: SamplingParams::default(),
            max_tokens: None,
            stop: Vec::new(),
            grammar: None,
            logprobs: None,
            deadline: None,
        }
    }
}

/// Log-probabilities in the place of one token, under the model, before masks and samplers.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Of the token itself.
    pub chosen: f64,
    /// The likeliest tokens, best first.
    pub top: Vec<(TokenId, f64)>,
}

/// Tokens that a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Cells that the cartridge stands for.
    pub cartridge_tokens: usize,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of those, the ones that were in the cache already.
    pub reused_tokens: usize,
    /// Tokens of all answers.
    pub completion_tokens: usize,
}

/// What happens to a request.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum StreamEvent {
    /// It has left the queue.
    Begun {
        /// With no tokens of an answer yet.
        usage: Usage,
    },
    /// One token of one answer.
    Token {
        /// Which answer.
        choice: u32,
        /// The token.
        id: TokenId,
        /// The text that it completes; may be empty.
        text: String,
        /// Where they were asked for.
        logprobs: Option<TokenLogprobs>,
    },
    /// One answer has ended.
    End {
        /// Which answer.
        choice: u32,
        /// Why.
        ending: Ending,
        /// With a grammar: is it a sentence of it? Without: `true` unless it was cut.
        complete: bool,
        /// Text that was held back because a stop text might have begun.
        text: String,
    },
    /// All answers have ended; the last event.
    Done {
        /// What it took.
        usage: Usage,
    },
    /// It ends without an answer; the last event.
    Failed(Failure),
}

/// Why a request that was taken was not answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// Its deadline passed before its first token.
    #[error("the deadline passed before the answer began")]
    Deadline,
    /// The scheduler was stopped, or the request was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// The cartridge was not mounted.
    #[error("the cartridge was not mounted: {0}")]
    Mount(String),
    /// The engine failed; its cache was emptied, and the next request finds it sound.
    #[error("the engine failed: {0}")]
    Engine(String),
    /// The answer could not go on: a dead end of its grammar, or logits that are no numbers.
    #[error("no token can be chosen: {0}")]
    Choice(String),
}

/// Why a request was not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// As many requests wait as may.
    #[error("{waiting} requests are waiting, as many as may; try again later")]
    QueueFull {
        /// How many.
        waiting: usize,
    },
    /// The scheduler is stopping.
    #[error("the server is stopping")]
    Stopping,
    /// The prompt is empty.
    #[error("empty prompt")]
    EmptyPrompt,
    /// Prompt and cartridge leave no room for an answer.
    #[error("{tokens} tokens of prompt and cartridge; at most {limit} leave room for the answer")]
    TooLong {
        /// What they need.
        tokens: usize,
        /// What may be needed.
        limit: usize,
    },
    /// More answers than the scheduler decodes at once.
    #[error("{asked} answers at once; at most {limit} are decoded beside each other")]
    TooManyChoices {
        /// Asked for.
        asked: u32,
        /// Possible.
        limit: u32,
    },
    /// A parameter of the sampler, or a grammar.
    #[error(transparent)]
    Engine(#[from] bitnet_rs::Error),
}

/// What a step of the scheduler did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Rows of answers.
    pub decode_rows: usize,
    /// Tokens of prompts.
    pub prefill_rows: usize,
    /// Rows that only fill up.
    pub padding_rows: usize,
    /// How long the engine took.
    pub time: Duration,
}

/// Sees what the scheduler does. Called from its thread: it should only count.
pub trait Observer: Send + Sync {
    /// One micro-batch was decoded.
    fn step(&self, _step: &Step) {}
    /// A request began so long after it was submitted.
    fn waited(&self, _time: Duration) {}
    /// The first token of a request came so long after it was submitted.
    fn first_token(&self, _time: Duration) {}
    /// A further token came so long after the one before.
    fn next_token(&self, _time: Duration) {}
    /// A request with a cartridge began, which was mounted already or not.
    fn cartridge(&self, _mounted_already: bool) {}
    /// A request has ended.
    fn ended(&self, _usage: &Usage) {}
}

struct Silent;
impl Observer for Silent {}

/// How the scheduler stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests that wait.
    pub waiting: usize,
    /// Answers on their way.
    pub running: usize,
    /// Sequences that keep an ended conversation for its next turn; they are taken when others need them.
    pub kept: usize,
    /// Mounted cartridges.
    pub mounted: usize,
    /// Free cells.
    pub free_cells: usize,
    /// Cells in all.
    pub n_ctx: usize,
}

#[derive(Default)]
pub(crate) struct Gauges {
    waiting: AtomicUsize,
    running: AtomicUsize,
    jobs: AtomicUsize,
    kept: AtomicUsize,
    mounted: AtomicUsize,
    free_cells: AtomicUsize,
}

/// Takes a request's events; answers `false` when nobody wants them any more.
pub type Sink = Box<dyn FnMut(StreamEvent) -> bool + Send>;

/// A request that was taken, everything checked.
pub(crate) struct Job {
    pub(crate) id: u64,
    pub(crate) request: Request,
    pub(crate) max_tokens: usize,
    pub(crate) selectors: Vec<TokenSelector>,
    pub(crate) sink: Sink,
    pub(crate) cancelled: Arc<AtomicBool>,
    pub(crate) submitted: Instant,
}

impl Job {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }

    /// Tells the client; one that is gone cancels its request.
    pub(crate) fn tell(&mut self, event: StreamEvent) {
        if !self.is_cancelled() && !(self.sink)(event) {
            self.cancelled.store(true, Ordering::SeqCst);
        }
    }
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) queue: Queue,
    /// No more requests.
    pub(crate) stopping: bool,
    /// Nor the ones that are there.
    pub(crate) cancel_all: bool,
    pub(crate) next_id: u64,
}

pub(crate) struct Shared {
    pub(crate) state: Mutex<State>,
    /// Something for the engine's thread to do.
    pub(crate) wake: Condvar,
    /// Nothing left to do.
    pub(crate) idle: Condvar,
    pub(crate) gauges: Gauges,
    cancel: CancelHandle,
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The way to one request: dropping it, or [`Ticket::cancel`], ends the request.
pub struct Ticket {
    id: u64,
    cancelled: Arc<AtomicBool>,
    shared: Arc<Shared>,
}

impl Ticket {
    /// Ends the request: at once if it waits, within one micro-batch if it runs. Nothing happens if it has ended.
    pub fn cancel(&self) {
        if self.cancelled.swap(true, Ordering::SeqCst) {
            return;
        }
        let taken = self.shared.lock().queue.remove(self.id);
        if taken.is_some() {
            self.shared.gauges.waiting.fetch_sub(1, Ordering::SeqCst);
            self.shared.idle.notify_all();
        } else if self.shared.gauges.jobs.load(Ordering::SeqCst) == 1 {
            // Alone it need not wait for the micro-batch. Should another request have come in between, its step is
            // undone and done again.
            self.shared.cancel.cancel();
        }
        drop(taken);
        self.shared.wake.notify_all();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The scheduler; see the module. Cheap to clone. The engine's thread ends when it is stopped.
#[derive(Clone)]
pub struct Scheduler(Arc<Handle>);

struct Handle {
    shared: Arc<Shared>,
    model: Model,
    params: SchedulerParams,
    context: EffectiveParams,
    geometry: StateGeometry,
    trie: Mutex<Option<TokenTrie>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.stopping = true;
        state.cancel_all = true;
        drop(state);
        self.shared.wake.notify_all();
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // The thread may be the one that drops the last clone, by a sink that holds one.
        if let Some(thread) = thread.filter(|t| t.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

impl Scheduler {
    /// Makes a context and starts the thread that owns it.
    ///
    /// # Errors
    /// Parameters outside their ranges, and those of [`Context::new`].
    pub fn start(
        model: &Model,
        params: SchedulerParams,
        observer: Option<Arc<dyn Observer>>,
    ) -> Result<Self, bitnet_rs::Error> {
        let mut params = params;
        if params.deterministic {
            (params.parallel, params.mounts, params.padding) = (1, 0, Padding::Off);
        }
        in_range("parallel", u64::from(params.parallel), 1, 256)?;
        in_range("mounts", u64::from(params.mounts), u64::from(!params.deterministic), 256)?;
        in_range("queue", params.queue as u64, 1, 1 << 20)?;
        in_range("prefill_budget", params.prefill_budget as u64, 1, 1 << 20)?;
        in_range("default_max_tokens", params.default_max_tokens as u64, 1, 1 << 20)?;
        // Answers, mounted cartridges, and the one that fills up.
        let n_seq_max = params.parallel + params.mounts + 1;
        let context = Context::new(model, &ContextParams { n_seq_max, ..params.context.clone() })?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State::default()),
            wake: Condvar::new(),
            idle: Condvar::new(),
            gauges: Gauges::default(),
            cancel: context.cancel_handle(),
        });
        let (effective, geometry) = (context.params().clone(), context.geometry().clone());
        let engine = Engine::new(context, &params, Arc::clone(&shared), observer.unwrap_or_else(|| Arc::new(Silent)))?;
        let failed = |source| bitnet_rs::Error::Io { path: "the scheduler's thread".into(), source };
        let thread =
            std::thread::Builder::new().name("scheduler".into()).spawn(move || engine.run()).map_err(failed)?;
        Ok(Self(Arc::new(Handle {
            shared,
            model: model.clone(),
            params,
            context: effective,
            geometry,
            trie: Mutex::new(None),
            thread: Mutex::new(Some(thread)),
        })))
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.0.model
    }

    /// The context's parameters as they took effect.
    #[must_use]
    pub fn context(&self) -> &EffectiveParams {
        &self.0.context
    }

    /// The parameters as they took effect.
    #[must_use]
    pub fn params(&self) -> &SchedulerParams {
        &self.0.params
    }

    /// How it stands now, from counters: never waits for the engine.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let g = &self.0.shared.gauges;
        let get = |n: &AtomicUsize| n.load(Ordering::SeqCst);
        Stats {
            waiting: get(&g.waiting),
            running: get(&g.running),
            kept: get(&g.kept),
            mounted: get(&g.mounted),
            free_cells: get(&g.free_cells),
            n_ctx: self.0.context.n_ctx as usize,
        }
    }

    /// Could this cartridge be mounted here? Looks at the lock, the geometry and the room, not at all values.
    ///
    /// # Errors
    /// What [`Mount::mount`](crate::Mount::mount) would say.
    pub fn check_cartridge(&self, cartridge: &Cartridge, lock: &ModelLock) -> Result<(), MountError> {
        cartridge.lock_check(lock).map_err(CartridgeError::Lock)?;
        cartridge.state(&self.0.geometry, lock.rope_type, Rounding::Exact)?;
        let (needed, n_ctx) = (cartridge.fields().n_tokens as usize + SPARE_CELLS + 2, self.0.context.n_ctx);
        if needed > n_ctx as usize {
            return Err(bitnet_rs::Error::ContextFull { needed, free: n_ctx as usize, n_ctx }.into());
        }
        Ok(())
    }

    /// How many tokens each answer of this request may have; an error if none.
    fn answer_length(&self, request: &Request) -> Result<usize, Refusal> {
        let n_ctx = self.0.context.n_ctx as usize;
        let trained = self.0.model.info().hyperparameters().n_ctx_train as usize;
        let cells = request.cartridge.as_ref().map_or(0, |c| c.cartridge.fields().n_tokens as usize);
        let begins = request.cartridge.as_ref().map_or(0, |c| c.cartridge.next_position() as usize);
        let prompt = request.prompt.len();
        let choices = request.choices as usize;
        let by_cells = n_ctx.saturating_sub(SPARE_CELLS + cells + prompt) / choices;
        // The last token of an answer is not decoded, so it needs neither cell nor position.
        let by_positions = (trained + 1).saturating_sub(begins + prompt);
        let room = by_cells.min(by_positions);
        if room == 0 {
            let limit = n_ctx.saturating_sub(SPARE_CELLS + choices).min(trained);
            return Err(Refusal::TooLong { tokens: cells.max(begins) + prompt, limit });
        }
        Ok(request.max_tokens.unwrap_or(self.0.params.default_max_tokens).clamp(1, room))
    }

    /// Takes a request; `sink` is called from the engine's thread with what happens to it, and should not wait.
    ///
    /// # Errors
    /// [`Refusal`]; nothing is kept then.
    pub fn submit(&self, request: Request, sink: Sink) -> Result<Ticket, Refusal> {
        let shared = &self.0.shared;
        self.may_wait(&shared.lock())?;
        if request.prompt.is_empty() {
            return Err(Refusal::EmptyPrompt);
        }
        let limit = self.0.params.parallel;
        if !(1..=limit).contains(&request.choices) {
            return Err(Refusal::TooManyChoices { asked: request.choices, limit });
        }
        for token in &request.prompt {
            self.0.model.token(token.get())?;
        }
        let max_tokens = self.answer_length(&request)?;
        let trie = request.grammar.as_ref().map(|_| self.trie()).transpose()?;
        let selector = |n: u32| {
            let seed = request.sampling.seed.wrapping_add(n);
            let sampling = SamplingParams { seed, ..request.sampling.clone() };
            TokenSelector::new(&self.0.model, &sampling, request.grammar.as_ref(), trie.clone())
        };
        let selectors = (0..request.choices).map(selector).collect::<Result<Vec<_>, _>>()?;
        let cancelled = Arc::new(AtomicBool::new(false));
        let mut state = shared.lock();
        self.may_wait(&state)?;
        let id = state.next_id;
        state.next_id += 1;
        let job = Job { id, request, max_tokens, selectors, sink, cancelled: Arc::clone(&cancelled), submitted: Instant::now() };
        state.queue.push(Waiting::new(job));
        shared.gauges.waiting.fetch_add(1, Ordering::SeqCst);
        drop(state);
        shared.wake.notify_all();
        Ok(Ticket { id, cancelled, shared: Arc::clone(shared) })
    }

    /// As [`Scheduler::submit`], with the events in a channel.
    ///
    /// # Errors
    /// As [`Scheduler::submit`].
    pub fn submit_to_channel(&self, request: Request) -> Result<(Ticket, mpsc::Receiver<StreamEvent>), Refusal> {
        let (send, receive) = mpsc::channel();
        let ticket = self.submit(request, Box::new(move |event| send.send(event).is_ok()))?;
        Ok((ticket, receive))
    }

    fn may_wait(&self, state: &State) -> Result<(), Refusal> {
        if state.stopping {
            return Err(Refusal::Stopping);
        }
        let waiting = state.queue.len();
        if waiting >= self.0.params.queue { Err(Refusal::QueueFull { waiting }) } else { Ok(()) }
    }

    fn trie(&self) -> Result<TokenTrie, bitnet_rs::Error> {
        let mut trie = self.0.trie.lock().unwrap_or_else(PoisonError::into_inner);
        match &*trie {
            Some(trie) => Ok(trie.clone()),
            None => Ok(trie.insert(vocabulary_trie(&self.0.model)?).clone()),
        }
    }

    /// Takes no more requests; those that were taken go on.
    pub fn stop_taking(&self) {
        self.0.shared.lock().stopping = true;
        self.0.shared.wake.notify_all();
    }

    /// Cancels everything and takes no more requests.
    pub fn cancel_all(&self) {
        let mut state = self.0.shared.lock();
        (state.stopping, state.cancel_all) = (true, true);
        drop(state);
        self.0.shared.cancel.cancel();
        self.0.shared.wake.notify_all();
    }

    /// Waits until nothing waits and nothing runs, but no longer than `limit`. Returns whether that is so.
    #[must_use]
    pub fn wait_until_idle(&self, limit: Duration) -> bool {
        let g = &self.0.shared.gauges;
        let busy = |_: &mut State| g.waiting.load(Ordering::SeqCst) + g.jobs.load(Ordering::SeqCst) > 0;
        let state = self.0.shared.lock();
        let waited = self.0.shared.idle.wait_timeout_while(state, limit, busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl std::fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scheduler").field("params", &self.0.params).field("stats", &self.stats()).finish_non_exhaustive()
    }
}

fn in_range(field: &'static str, value: u64, min: u64, max: u64) -> Result<(), bitnet_rs::Error> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(bitnet_rs::Error::ContextParam { field, value: value.to_string(), limit: format!("must be {min} to {max}") })
}

#[cfg(test)]
mod tests {
    use super::Padding;

    #[test]
    fn padding_fills_fours_and_never_a_lone_row() {
        let rows = |p: Padding| (0..9).map(|n| p.rows(n)).collect::<Vec<_>>();
        assert_eq!(rows(Padding::Off), [0; 9]);
        assert_eq!(rows(Padding::Three), [0, 0, 0, 1, 0, 0, 0, 1, 0]);
        assert_eq!(rows(Padding::Two), [0, 0, 2, 1, 0, 0, 2, 1, 0]);
        assert_eq!(rows(Padding::Any), [0, 0, 2, 1, 0, 3, 2, 1, 0]);
    }
}
