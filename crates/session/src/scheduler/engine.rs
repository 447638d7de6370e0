//! The thread that owns the context.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bitnet_rs::{Batch, Context, Error, Pos, SeqId, TokenId};
use cartridge::Rounding;

use super::job::Job;
use super::output::Output;
use super::shared::Shared;
use super::types::{
    Failure, Observer, Padding, SPARE_CELLS, SchedulerParams, SharedCartridge, Step, StreamEvent, Usage,
};
use crate::{Ending, Mount as _, MountError};

/// A shared beginning shorter than this is decoded again: sharing it costs a sequence and saves less than a
/// micro-batch.
const WORTH_SHARING: usize = 8;

/// A sequence for one answer.
struct Slot {
    seq: SeqId,
    /// An answer on its way uses it.
    busy: bool,
    owner: u64,
    cartridge: Option<Arc<SharedCartridge>>,
    /// Tokens in the cache behind the cartridge.
    held: Vec<TokenId>,
    /// Number of the request that used it last.
    used: u64,
}

/// A sequence that holds a cartridge for others to share.
struct Mounting {
    seq: SeqId,
    cartridge: Option<Arc<SharedCartridge>>,
    used: u64,
}

/// A request on its way.
struct Running {
    job: Job,
    /// Tokens of the prompt in the cache.
    prefilled: usize,
    usage: Usage,
    outputs: Vec<Output>,
    failed: Option<Failure>,
}

impl Running {
    fn prefilling(&self) -> bool {
        self.prefilled < self.job.request.prompt.len()
    }

    fn ended(&self) -> bool {
        self.failed.is_some() || self.outputs.iter().all(|o| o.ended)
    }

    /// Cells that it may still take.
    fn outstanding(&self) -> usize {
        let answers: usize =
            self.outputs.iter().filter(|o| !o.ended).map(|o| self.job.max_tokens.saturating_sub(o.produced)).sum();
        self.job.request.prompt.len() - self.prefilled + answers
    }
}

/// What a row of a micro-batch is.
enum Row {
    /// The last token of an answer.
    Answer { running: usize, output: usize },
    /// `count` tokens of a prompt.
    Prompt { running: usize, count: usize },
}

/// Whether a request could be started.
enum Admission {
    Begun(Running),
    /// There is no room now.
    Later(Job),
    Failed(Job, Failure),
}

pub(crate) struct Engine {
    context: Context,
    shared: Arc<Shared>,
    observer: Arc<dyn Observer>,
    slots: Vec<Slot>,
    mountings: Vec<Mounting>,
    spare: SeqId,
    running: Vec<Running>,
    padding: Padding,
    prefill_budget: usize,
    deterministic: bool,
    /// Counts requests.
    clock: u64,
    /// Which answer is first in a micro-batch that does not hold all of them.
    turn: usize,
    filler: TokenId,
}

impl Engine {
    pub(crate) fn new(
        context: Context,
        params: &SchedulerParams,
        shared: Arc<Shared>,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, Error> {
        let seq = |n: u32| SeqId::new(i32::try_from(n).unwrap_or(i32::MAX));
        let slot = |seq| Slot { seq, busy: false, owner: 0, cartridge: None, held: Vec::new(), used: 0 };
        let slots = (0..params.parallel).map(|n| seq(n).map(slot)).collect::<Result<_, _>>()?;
        let mountings = (params.parallel..params.parallel + params.mounts)
            .map(|n| Ok(Mounting { seq: seq(n)?, cartridge: None, used: 0 }))
            .collect::<Result<_, Error>>()?;
        let filler = context.model().bos().map_or_else(|| context.model().token(0), Ok)?;
        let engine = Self {
            shared,
            observer,
            slots,
            mountings,
            spare: seq(params.parallel + params.mounts)?,
            running: Vec::new(),
            padding: params.padding,
            prefill_budget: params.prefill_budget,
            deterministic: params.deterministic,
            clock: 0,
            turn: 0,
            filler,
            context,
        };
        engine.publish();
        Ok(engine)
    }

    pub(crate) fn run(mut self) {
        loop {
            let worked = catch_unwind(AssertUnwindSafe(|| {
                self.sweep();
                self.admit();
                self.step();
            }));
            if let Err(panic) = worked {
                let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
                let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
                tracing::error!("a request ended in a panic: {text}");
                self.fail_all(&Failure::Engine("internal error".into()));
            }
            self.retire();
            self.publish();
            if self.running.is_empty() {
                let state = self.shared.lock();
                if state.queue.is_empty() {
                    self.shared.idle.notify_all();
                    if state.cancel_all {
                        return;
                    }
                    // A cancel that came too late for its request must not stop the next one's first step.
                    drop(self.shared.wake.wait(state));
                }
            }
        }
    }

    fn publish(&self) {
        let g = &self.shared.gauges;
        let running = self.running.iter().flat_map(|r| &r.outputs).filter(|o| !o.ended).count();
        g.running.store(running, Ordering::SeqCst);
        g.kept.store(self.slots.iter().filter(|s| !s.busy && !s.held.is_empty()).count(), Ordering::SeqCst);
        g.mounted.store(self.mountings.iter().filter(|m| m.cartridge.is_some()).count(), Ordering::SeqCst);
        g.free_cells.store(self.context.free_cells(), Ordering::SeqCst);
    }

    // ---- who goes ----

    /// Takes out of the queue and out of the cache whatever nobody waits for any more.
    fn sweep(&mut self) {
        let now = Instant::now();
        let late = |job: &Job| job.request.deadline.is_some_and(|d| d <= now);
        let mut state = self.shared.lock();
        let all = state.cancel_all;
        let gone = state.queue.remove_if(|job| all || job.is_cancelled() || late(job));
        self.shared.gauges.waiting.fetch_sub(gone.len(), Ordering::SeqCst);
        drop(state);
        for mut job in gone {
            let failure = if late(&job) && !all { Failure::Deadline } else { Failure::Cancelled };
            job.tell(StreamEvent::Failed(failure));
        }
        for r in &mut self.running {
            if all || r.job.is_cancelled() {
                r.failed = Some(Failure::Cancelled);
            } else if late(&r.job) {
                if r.usage.completion_tokens == 0 {
                    r.failed = Some(Failure::Deadline);
                    continue;
                }
                for output in r.outputs.iter_mut().filter(|o| !o.ended) {
                    let event = output.end(Ending::TimeLimit);
                    r.job.tell(event);
                }
            }
        }
        self.retire();
    }

    /// Lets go of requests that have ended, and frees what they held.
    fn retire(&mut self) {
        let (ended, running): (Vec<_>, Vec<_>) = self.running.drain(..).partition(Running::ended);
        self.running = running;
        for mut r in ended {
            // The first answer of a request that went well is kept: its conversation may go on.
            let keep = r.failed.is_none() && !r.job.is_cancelled() && !r.prefilling() && !self.deterministic;
            for output in &r.outputs {
                self.slots[output.slot].busy = false;
                if output.choice > 0 || !keep {
                    self.empty_slot(output.slot);
                }
            }
            self.observer.ended(&r.usage);
            let usage = r.usage;
            // Counted before it is told: who hears of the end finds the sequences free.
            self.publish();
            self.shared.gauges.jobs.fetch_sub(1, Ordering::SeqCst);
            r.job.tell(match r.failed.take() {
                Some(failure) => StreamEvent::Failed(failure),
                None => StreamEvent::Done { usage },
            });
        }
    }

    fn empty_slot(&mut self, slot: usize) {
        let s = &mut self.slots[slot];
        (s.cartridge, s.busy) = (None, false);
        s.held.clear();
        let seq = s.seq;
        self.empty_sequence(seq);
    }

    fn empty_sequence(&mut self, seq: SeqId) {
        if let Err(e) = self.context.remove_all(seq) {
            tracing::error!("sequence {} cannot be emptied: {e}", seq.get());
        }
    }

    /// The engine's state cannot be vouched for: everybody hears of it, and the cache is emptied.
    fn fail_all(&mut self, failure: &Failure) {
        for r in &mut self.running {
            r.failed.get_or_insert_with(|| failure.clone());
        }
        self.retire();
        self.clear();
    }

    fn clear(&mut self) {
        if let Err(e) = self.context.clear() {
            tracing::error!("the cache cannot be emptied: {e}");
        }
        for s in &mut self.slots {
            (s.cartridge, s.busy) = (None, false);
            s.held.clear();
        }
        self.mountings.iter_mut().for_each(|m| m.cartridge = None);
    }

    // ---- who comes ----

    fn admit(&mut self) {
        loop {
            let free = self.slots.iter().filter(|s| !s.busy).count();
            if free == 0 {
                return;
            }
            let mut owners = BTreeMap::new();
            for r in &self.running {
                *owners.entry(r.job.request.owner).or_insert(0) += r.outputs.len();
            }
            let in_use = |c: Option<&Arc<SharedCartridge>>| {
                self.running.iter().any(|r| same(r.job.request.cartridge.as_ref(), c))
            };
            let mut state = self.shared.lock();
            let Some(id) = state.queue.next(&owners, &in_use) else { return };
            let Some(job) = state.queue.take(id) else { return };
            let gauges = &self.shared.gauges;
            gauges.jobs.fetch_add(1, Ordering::SeqCst);
            gauges.waiting.fetch_sub(1, Ordering::SeqCst);
            drop(state);
            match self.begin(job) {
                Admission::Begun(mut running) => {
                    self.observer.waited(running.job.submitted.elapsed());
                    let usage = running.usage;
                    running.job.tell(StreamEvent::Begun { usage });
                    self.running.push(running);
                }
                Admission::Later(job) => {
                    // Nobody overtakes it: it would wait for ever behind small ones.
                    let mut state = self.shared.lock();
                    gauges_back(&self.shared);
                    state.queue.put_back(job);
                    return;
                }
                Admission::Failed(mut job, failure) => {
                    self.shared.gauges.jobs.fetch_sub(1, Ordering::SeqCst);
                    job.tell(StreamEvent::Failed(failure));
                }
            }
        }
    }

    /// Finds sequences and cells for a request.
    fn begin(&mut self, job: Job) -> Admission {
        let wanted = job.request.choices as usize;
        if self.slots.iter().filter(|s| !s.busy).count() < wanted {
            return Admission::Later(job);
        }
        self.clock += 1;
        if self.deterministic {
            self.clear();
        }
        match self.place(&job, wanted) {
            Ok(Some((slots, reused))) => {
                let cartridge = &job.request.cartridge;
                let usage = Usage {
                    cartridge_tokens: cartridge.as_ref().map_or(0, |c| c.cartridge.fields().n_tokens as usize),
                    prompt_tokens: job.request.prompt.len(),
                    reused_tokens: reused,
                    completion_tokens: 0,
                };
                let mut job = job;
                let outputs = std::mem::take(&mut job.selectors).into_iter().zip(&slots).zip(0..);
                let outputs: Vec<_> = outputs.map(|((sel, &slot), n)| Output::new(n, slot, sel)).collect();
                for &slot in &slots {
                    let s = &mut self.slots[slot];
                    (s.busy, s.owner, s.used) = (true, job.request.owner, self.clock);
                    s.cartridge.clone_from(&job.request.cartridge);
                }
                Admission::Begun(Running { job, prefilled: reused, usage, outputs, failed: None })
            }
            Ok(None) => {
                if self.running.is_empty() {
                    // Everything was evicted and it still finds no room.
                    let (free, n_ctx) = (self.context.free_cells(), self.context.params().n_ctx);
                    return Admission::Failed(job, Failure::Engine(format!("{free} of {n_ctx} cells are free")));
                }
                Admission::Later(job)
            }
            Err(failure) => {
                // Nothing is known of a sequence that was half made.
                for slot in 0..self.slots.len() {
                    if !self.slots[slot].busy {
                        self.empty_slot(slot);
                    }
                }
                Admission::Failed(job, failure)
            }
        }
    }

    /// Sequences for a request: the first holds the cartridge and what is shared. Returns them with how much of the prompt
    /// is there already.
    fn place(&mut self, job: &Job, wanted: usize) -> Result<Option<(Vec<usize>, usize)>, Failure> {
        let request = &job.request;
        let cartridge = request.cartridge.as_ref();
        let mounted = match cartridge {
            None => None,
            Some(c) if self.deterministic => {
                let seq = self.slots[0].seq;
                mount(&mut self.context, seq, c).map_err(|e| Failure::Mount(e.to_string()))?;
                self.observer.cartridge(false);
                None
            }
            Some(c) => match self.mounted(c)? {
                None => return Ok(None),
                at => at,
            },
        };
        let engine = |e: Error| Failure::Engine(e.to_string());
        let base = match (mounted, cartridge) {
            (Some(m), _) => self.context.next_pos(self.mountings[m].seq).map_err(engine)?,
            // Mounted into the one sequence, or nothing is mounted.
            (None, _) if self.deterministic => return Ok(Some((vec![0], 0))),
            (None, _) => Pos::ZERO,
        };
        let source = self.best_beginning(job);
        let shared = source.map_or(0, |(_, n)| n);
        let source = source.map(|(slot, _)| slot);
        // One that mostly goes on is taken over; another conversation with the same beginning is left as it is.
        let take_over = source.filter(|&s| !self.slots[s].busy && shared * 4 >= self.slots[s].held.len() * 3);
        let mut free: Vec<usize> = (0..self.slots.len()).filter(|&s| !self.slots[s].busy).collect();
        // The one that is taken over first, then empty ones, then those that were used longest ago; the source last.
        free.sort_by_key(|&s| {
            let slot = &self.slots[s];
            (Some(s) != take_over, Some(s) == source, !slot.held.is_empty(), slot.used)
        });
        let slots: Vec<usize> = free.iter().copied().take(wanted).collect();
        // If there is no other sequence the source itself is used.
        let in_place = source.filter(|s| slots.first() == Some(s));
        let source = source.filter(|s| !slots.contains(s) || in_place == Some(*s));
        let shared = if source.is_some() { shared } else { 0 };
        if let Some(s) = in_place {
            let from = base.forward(shared).map_err(engine)?;
            let (seq, end) = (self.slots[s].seq, self.context.next_pos(self.slots[s].seq).map_err(engine)?);
            self.context.remove(seq, from..end).map_err(engine)?;
            self.slots[s].held.truncate(shared);
        }
        for &s in slots.iter().filter(|s| in_place != Some(**s)) {
            self.empty_slot(s);
        }
        let needed = request.prompt.len() - shared + wanted * job.max_tokens + SPARE_CELLS;
        let spoken_for: usize = self.running.iter().map(Running::outstanding).sum();
        while self.context.free_cells() < needed + spoken_for {
            let others: Vec<usize> = slots.iter().copied().chain(source).collect();
            if self.evict(&others, mounted) {
                continue;
            }
            // What the source holds beyond the common beginning is the last that can go.
            let Some(s) = source.filter(|&s| !self.slots[s].busy && self.slots[s].held.len() > shared) else {
                return Ok(None);
            };
            let from = base.forward(shared).map_err(engine)?;
            let (seq, end) = (self.slots[s].seq, self.context.next_pos(self.slots[s].seq).map_err(engine)?);
            self.context.remove(seq, from..end).map_err(engine)?;
            self.slots[s].held.truncate(shared);
        }
        let to = slots[0];
        if in_place.is_none() {
            match (source, mounted) {
                (Some(from), _) => {
                    let end = base.forward(shared).map_err(engine)?;
                    let (from, seq) = (self.slots[from].seq, self.slots[to].seq);
                    self.context.copy(from, seq, Some(Pos::ZERO..end)).map_err(engine)?;
                    self.slots[to].held = request.prompt[..shared].to_vec();
                }
                (None, Some(m)) => {
                    self.context.copy(self.mountings[m].seq, self.slots[to].seq, None).map_err(engine)?;
                }
                (None, None) => {}
            }
        }
        Ok(Some((slots, shared)))
    }

    /// The sequence of the same owner and cartridge whose beginning the prompt shares, and how many tokens. At least one
    /// token is left to decode, since the answer begins with the logits behind it.
    fn best_beginning(&self, job: &Job) -> Option<(usize, usize)> {
        let r = &job.request;
        let common = |s: &Slot| {
            let most = r.prompt.len() - 1;
            s.held.iter().zip(&r.prompt).take_while(|(a, b)| a == b).count().min(most)
        };
        let slots = self.slots.iter().enumerate();
        let ours = slots.filter(|(_, s)| s.owner == r.owner && same(s.cartridge.as_ref(), r.cartridge.as_ref()));
        // The one that was used last among equals: the others are older turns.
        let best = ours.map(|(i, s)| (i, common(s), s.used)).max_by_key(|&(_, n, used)| (n, used))?;
        (best.1 >= WORTH_SHARING).then_some((best.0, best.1))
    }

    /// Where a cartridge is mounted; `None` if there is no room for it now.
    fn mounted(&mut self, c: &Arc<SharedCartridge>) -> Result<Option<usize>, Failure> {
        let at = self.mountings.iter().position(|m| same(m.cartridge.as_ref(), Some(c)));
        self.observer.cartridge(at.is_some());
        if let Some(at) = at {
            self.mountings[at].used = self.clock;
            return Ok(Some(at));
        }
        let Some(at) = self.mountings.iter().position(|m| m.cartridge.is_none()).or_else(|| self.unmount()) else {
            return Ok(None);
        };
        loop {
            let seq = self.mountings[at].seq;
            let spoken_for: usize = self.running.iter().map(Running::outstanding).sum();
            let room = self.context.free_cells() >= c.cartridge.fields().n_tokens as usize + spoken_for + SPARE_CELLS;
            let outcome = if room { mount(&mut self.context, seq, c) } else { Ok(false) };
            match outcome {
                Ok(true) => {
                    let m = &mut self.mountings[at];
                    (m.cartridge, m.used) = (Some(Arc::clone(c)), self.clock);
                    return Ok(Some(at));
                }
                // Full, or full of holes.
                Ok(false) => {
                    if !self.evict(&[], Some(at)) {
                        return Ok(None);
                    }
                }
                Err(e) => return Err(Failure::Mount(e.to_string())),
            }
        }
    }

    /// Gives up the conversation, or the cartridge, that was used longest ago and that nobody uses now. `but` and
    /// `mounting` stay.
    fn evict(&mut self, but: &[usize], mounting: Option<usize>) -> bool {
        let slots = self.slots.iter().enumerate();
        let kept = slots.filter(|(i, s)| !s.busy && !s.held.is_empty() && !but.contains(i));
        if let Some(slot) = kept.min_by_key(|(_, s)| s.used).map(|(i, _)| i) {
            self.empty_slot(slot);
            return true;
        }
        let idle = self.idle_mountings().into_iter().filter(|m| Some(*m) != mounting);
        let Some(m) = idle.min_by_key(|&m| self.mountings[m].used) else { return false };
        self.empty_mounting(m);
        true
    }

    /// Mountings that no answer on its way uses.
    fn idle_mountings(&self) -> Vec<usize> {
        let used = |m: &Mounting| self.slots.iter().any(|s| s.busy && same(s.cartridge.as_ref(), m.cartridge.as_ref()));
        let all = self.mountings.iter().enumerate();
        all.filter(|(_, m)| m.cartridge.is_some() && !used(m)).map(|(i, _)| i).collect()
    }

    /// Makes a mounting free, with the conversations that were kept behind it.
    fn unmount(&mut self) -> Option<usize> {
        let m = self.idle_mountings().into_iter().min_by_key(|&m| self.mountings[m].used)?;
        self.empty_mounting(m);
        Some(m)
    }

    fn empty_mounting(&mut self, m: usize) {
        let cartridge = self.mountings[m].cartridge.take();
        for s in 0..self.slots.len() {
            if !self.slots[s].busy && cartridge.is_some() && same(self.slots[s].cartridge.as_ref(), cartridge.as_ref())
            {
                self.empty_slot(s);
            }
        }
        let seq = self.mountings[m].seq;
        self.empty_sequence(seq);
    }

    // ---- one micro-batch ----

    fn step(&mut self) {
        let mut limit = usize::MAX;
        while !self.running.is_empty() {
            let (batch, rows, mut step) = match self.batch(limit) {
                Ok(made) => made,
                Err(e) => return self.fail_all(&Failure::Engine(e.to_string())),
            };
            if rows.is_empty() {
                return;
            }
            let started = Instant::now();
            let decoded = self.context.decode(&batch).map(drop);
            step.time = started.elapsed();
            match decoded {
                Ok(()) => {
                    self.observer.step(&step);
                    self.turn = self.turn.wrapping_add(step.decode_rows);
                    if let Err(e) = self.take_rows(&rows, step.padding_rows) {
                        self.fail_all(&Failure::Engine(e.to_string()));
                    }
                    return;
                }
                // Somebody is gone; the sweep knows who.
                Err(Error::Cancelled) => return,
                Err(Error::ContextFragmented { longest, .. }) if longest > 0 && longest < batch.len() => {
                    limit = longest
                }
                Err(Error::ContextFull { .. } | Error::ContextFragmented { .. }) => {
                    if !self.evict(&[], None) {
                        // Every request reserved its cells, so this does not happen. If it does, the youngest ends.
                        let Some(r) = self.running.last_mut() else { return };
                        for output in r.outputs.iter_mut().filter(|o| !o.ended) {
                            let event = output.end(Ending::ContextFull);
                            r.job.tell(event);
                        }
                        return;
                    }
                }
                Err(e) => return self.fail_all(&Failure::Engine(e.to_string())),
            }
        }
    }

    /// The next micro-batch of at most `limit` rows: answers first, then prompts.
    fn batch(&self, limit: usize) -> Result<(Batch, Vec<Row>, Step), Error> {
        let limit = limit.min(self.context.params().n_ubatch as usize);
        let mut batch = Batch::new();
        let mut rows = Vec::new();
        let mut answers: Vec<(usize, usize, usize, TokenId)> = Vec::new();
        for (r, running) in self.running.iter().enumerate() {
            let pending = running.outputs.iter().enumerate();
            answers.extend(pending.filter_map(|(o, output)| Some((r, o, output.slot, output.pending?))));
        }
        if !answers.is_empty() && answers.len() > limit {
            let n = answers.len();
            answers.rotate_left(self.turn % n);
            answers.truncate(limit);
        }
        for (running, output, slot, token) in answers {
            let seq = self.slots[slot].seq;
            batch.push(token, self.context.next_pos(seq)?, &[seq], true);
            rows.push(Row::Answer { running, output });
        }
        let decode_rows = batch.len();
        for (running, count) in self.prompts(decode_rows, limit - decode_rows) {
            let r = &self.running[running];
            let seq = self.slots[r.outputs[0].slot].seq;
            let first = self.context.next_pos(seq)?;
            let tokens = &r.job.request.prompt[r.prefilled..r.prefilled + count];
            let last = r.prefilled + count == r.job.request.prompt.len();
            for (i, &token) in tokens.iter().enumerate() {
                batch.push(token, first.forward(i)?, &[seq], last && i + 1 == count);
            }
            rows.push(Row::Prompt { running, count });
        }
        let prefill_rows = batch.len() - decode_rows;
        let padding = self.padding.rows(batch.len());
        let padding_rows = if batch.len() + padding <= limit { padding } else { 0 };
        for i in 0..padding_rows {
            batch.push(self.filler, Pos::ZERO.forward(i)?, &[self.spare], false);
        }
        Ok((batch, rows, Step { decode_rows, prefill_rows, padding_rows, time: Duration::ZERO }))
    }

    /// How many tokens of which prompts go into a micro-batch beside `answers` rows.
    fn prompts(&self, answers: usize, room: usize) -> Vec<(usize, usize)> {
        let mut left: Vec<(usize, usize)> = self
            .running
            .iter()
            .enumerate()
            .filter(|(_, r)| r.prefilling())
            .map(|(i, r)| (i, r.job.request.prompt.len() - r.prefilled))
            .collect();
        let total: usize = left.iter().map(|(_, n)| n).sum();
        if self.deterministic {
            // As `Context::decode` splits a prompt: no token is left alone behind others.
            let size = if total == room + 1 && room >= 3 { room - 1 } else { total.min(room) };
            left.iter_mut().for_each(|(_, n)| *n = size);
            return left;
        }
        let mut budget = if answers == 0 { room } else { self.prefill_budget.min(room) };
        if total > budget {
            // What is not the end of all prompts fills fours.
            let full = (answers + budget) / 4 * 4;
            if full > answers {
                budget = full - answers;
            }
        }
        // Half of it is for the one that came first, the rest for those with the least left: a question does not wait
        // for a book, and the book is read.
        let mut parts: Vec<(usize, usize)> = Vec::new();
        if let Some((first, n)) = left.first().copied() {
            let share = if left.len() > 1 { n.min(budget.div_ceil(2)) } else { n.min(budget) };
            if share > 0 {
                parts.push((first, share));
            }
            budget -= share;
            left[0].1 -= share;
        }
        left.sort_by_key(|(i, n)| (*n, *i));
        for (i, n) in left {
            let share = n.min(budget);
            budget -= share;
            match parts.iter_mut().find(|(p, _)| *p == i) {
                Some((_, part)) => *part += share,
                None if share > 0 => parts.push((i, share)),
                None => {}
            }
        }
        parts
    }

    /// Notes what is in the cache now, and chooses the tokens behind it.
    fn take_rows(&mut self, rows: &[Row], padding_rows: usize) -> Result<(), Error> {
        let mut at = 0;
        let mut forks = Vec::new();
        for row in rows {
            match *row {
                Row::Answer { running, output } => {
                    let Self { context, running: all, slots, observer, .. } = self;
                    let r = &mut all[running];
                    if let Some(token) = r.outputs[output].pending {
                        slots[r.outputs[output].slot].held.push(token);
                    }
                    choose(context, r, output, at, observer.as_ref())?;
                    at += 1;
                }
                Row::Prompt { running, count } => {
                    let Self { context, running: all, slots, observer, .. } = self;
                    let r = &mut all[running];
                    let tokens = &r.job.request.prompt[r.prefilled..r.prefilled + count];
                    slots[r.outputs[0].slot].held.extend_from_slice(tokens);
                    r.prefilled += count;
                    at += count;
                    if !r.prefilling() {
                        for output in 0..r.outputs.len() {
                            choose(context, r, output, at - 1, observer.as_ref())?;
                        }
                        forks.push(running);
                    }
                }
            }
        }
        // The rows of logits are gone from here on.
        if padding_rows > 0 {
            self.context.remove_all(self.spare)?;
        }
        for r in forks {
            let r = &self.running[r];
            let from = r.outputs[0].slot;
            for to in r.outputs.iter().skip(1).filter(|o| !o.ended).map(|o| o.slot) {
                self.context.copy(self.slots[from].seq, self.slots[to].seq, None)?;
                self.slots[to].held = self.slots[from].held.clone();
            }
        }
        Ok(())
    }
}

/// Chooses the token behind row `at` for one answer and tells it.
fn choose(context: &Context, r: &mut Running, output: usize, at: usize, observer: &dyn Observer) -> Result<(), Error> {
    let logits = context.logits()?.row(at)?;
    let Running { job, outputs, usage, failed, .. } = r;
    let request = &job.request;
    let o = &mut outputs[output];
    let chosen = catch_unwind(AssertUnwindSafe(|| {
        o.choose(context.model(), logits, &request.stop, job.max_tokens, request.logprobs)
    }));
    let events = match chosen {
        Ok(Ok(events)) => events,
        Ok(Err(e)) => {
            *failed = Some(Failure::Choice(e.to_string()));
            return Ok(());
        }
        Err(_) => {
            *failed = Some(Failure::Choice("internal error".into()));
            return Ok(());
        }
    };
    let now = Instant::now();
    for event in events {
        if matches!(event, StreamEvent::Token { .. }) {
            match o.last.replace(now) {
                Some(last) => observer.next_token(now - last),
                None if usage.completion_tokens == 0 => observer.first_token(now - job.submitted),
                None => {}
            }
            usage.completion_tokens += 1;
        }
        job.tell(event);
    }
    Ok(())
}

fn gauges_back(shared: &Shared) {
    shared.gauges.waiting.fetch_add(1, Ordering::SeqCst);
    shared.gauges.jobs.fetch_sub(1, Ordering::SeqCst);
}

fn same(a: Option<&Arc<SharedCartridge>>, b: Option<&Arc<SharedCartridge>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (None, None) => true,
        _ => false,
    }
}

/// Mounts into an empty sequence; `false` if there is no room for it.
fn mount(context: &mut Context, seq: SeqId, c: &SharedCartridge) -> Result<bool, MountError> {
    match c.cartridge.mount(context, seq, &c.lock, Rounding::Exact) {
        Ok(_) => Ok(true),
        Err(MountError::Engine(Error::ContextFull { .. } | Error::ContextFragmented { .. })) => Ok(false),
        Err(e) => Err(e),
    }
}
