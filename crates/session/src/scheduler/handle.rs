//! The scheduler as its callers hold it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bitnet_rs::{Context, ContextParams, EffectiveParams, Model, SamplingParams, vocabulary_trie};
use cartridge::{Cartridge, CartridgeError, ModelLock, Rounding};
use grammar::TokenTrie;
use kv::StateGeometry;

use super::engine::Engine;
use super::job::{Job, Sink};
use super::output::Selection;
use super::queue::Waiting;
use super::shared::{Gauges, Shared, State};
use super::types::{Observer, Padding, Refusal, Request, SPARE_CELLS, SchedulerParams, Silent, Stats, StreamEvent};
use crate::{MountError, TokenSelector};

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
            let of = |grammar| TokenSelector::new(&self.0.model, &sampling, grammar, trie.clone());
            let bound = of(request.grammar.as_ref())?;
            Ok::<_, bitnet_rs::Error>(match request.grammar_behind.filter(|_| request.grammar.is_some()) {
                Some(first) => Selection { now: of(None)?, later: Some((first, bound)) },
                None => Selection { now: bound, later: None },
            })
        };
        let selectors = (0..request.choices).map(selector).collect::<Result<Vec<_>, _>>()?;
        let cancelled = Arc::new(AtomicBool::new(false));
        let mut state = shared.lock();
        self.may_wait(&state)?;
        let id = state.next_id;
        state.next_id += 1;
        let job = Job {
            id,
            request,
            max_tokens,
            selectors,
            sink,
            cancelled: Arc::clone(&cancelled),
            submitted: Instant::now(),
        };
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
        f.debug_struct("Scheduler")
            .field("params", &self.0.params)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

fn in_range(field: &'static str, value: u64, min: u64, max: u64) -> Result<(), bitnet_rs::Error> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(bitnet_rs::Error::ContextParam { field, value: value.to_string(), limit: format!("must be {min} to {max}") })
}
