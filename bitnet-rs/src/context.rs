//! Contexts: a KV cache and the decoding over it.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::resume_unwind;
use std::ptr::NonNull;
use std::sync::Arc;

use bitnet_sys as sys;

use crate::batch::{self, Batch};
use crate::cancel::{CancelHandle, CancelState};
use crate::context_params::{ContextParams, EffectiveParams};
use crate::ids::{Pos, SeqId};
use crate::logits::{Logits, Rows};
use crate::model::Model;
use crate::positions::PositionSet;
use crate::probe::{Probe, ProbeSlot, on_tensor};
use crate::threads::ThreadPool;
use crate::{Error, engine_log, memory, status, threads};
use kv::{SequenceState, StateBlob, StateGeometry};

/// A context (`llama_context`): KV cache, compute buffers, threads. `Send`, not `Sync`; decoding takes
/// `&mut self`. It keeps its model alive.
pub struct Context {
    ptr: NonNull<sys::llama_context>,
    model: Model,
    params: EffectiveParams,
    geometry: StateGeometry,
    /// What each sequence holds; index = sequence id.
    seqs: Vec<PositionSet>,
    rows: Rows,
    cancel: CancelHandle,
    poisoned: Option<String>,
    /// Behind the engine's abort callback.
    abort: Arc<CancelState>,
    probe: Option<Box<ProbeSlot>>,
    /// `Send` but not `Sync`: the engine's contexts have no locks.
    not_sync: PhantomData<std::cell::Cell<()>>,
    /// Freed after the context that uses it: see `drop`.
    _pool: ThreadPool,
}

// SAFETY: a llama_context has no thread affinity; every access goes through &mut self (or &self for constant
// reads), so at most one thread uses it at a time. The probe is Send by its trait bound.
unsafe impl Send for Context {}

impl Context {
    /// Makes a context (`llama_new_context_with_model`).
    ///
    /// # Errors
    /// [`Error::ContextParam`], [`Error::KvType`], [`Error::ContextMemory`], [`Error::HostShortage`] before the engine is
    /// asked; [`Error::ContextCreate`] when it refuses.
    pub fn new(model: &Model, params: &ContextParams) -> Result<Self, Error> {
        Self::with_optional_probe(model, params, None)
    }

    /// Makes a context whose tensors `probe` sees while they are computed. It computes on one thread, whatever
    /// `params` ask for.
    ///
    /// # Errors
    /// As [`Context::new`].
    pub fn with_probe(model: &Model, params: &ContextParams, probe: Box<dyn Probe>) -> Result<Self, Error> {
        // A probed graph runs in pieces, some of which use fewer threads than the pool has. `ggml_graph_kickoff`
        // sets the thread count of the next piece before it announces that piece, so a thread that sat out the last
        // one and looks in between joins late, and writes into a work buffer that was freed (valgrind shows it in
        // ggml_compute_forward_mul_mat; a heap corruption within seconds with two threads). One thread has no pool
        // to race with.
        let params = ContextParams { n_threads: 1, ..params.clone() };
        Self::with_optional_probe(model, &params, Some(probe))
    }

    fn with_optional_probe(
        model: &Model,
        params: &ContextParams,
        probe: Option<Box<dyn Probe>>,
    ) -> Result<Self, Error> {
        let mut checked = params.check(model)?;
        // Before anything is promised that counts on them: how large a micro-batch may be depends on the threads.
        let pool = ThreadPool::new(checked.n_threads)?;
        if pool.n_threads() < checked.n_threads {
            checked = ContextParams { n_threads: pool.n_threads(), ..params.clone() }.check(model)?;
        }
        memory::require(model, &checked, params.allow_overcommit)?;
        let cancel = CancelHandle::new();
        let abort = Arc::clone(&cancel.0);
        let mut probe = probe.map(|probe| Box::new(ProbeSlot { probe, panic: None }));

        // SAFETY: returns a plain struct.
        let mut native = unsafe { sys::llama_context_default_params() };
        native.n_ctx = checked.n_ctx;
        // One native call takes one micro-batch: see `decode`.
        native.n_batch = checked.n_ubatch;
        native.n_ubatch = checked.n_ubatch;
        native.n_seq_max = checked.n_seq_max;
        native.n_threads = checked.n_threads as i32;
        native.n_threads_batch = checked.n_threads as i32;
        native.type_k = checked.type_k.ggml_id().unsigned_abs();
        native.type_v = checked.type_v.ggml_id().unsigned_abs();
        native.flash_attn = checked.flash_attn;
        native.offload_kqv = false;
        native.no_perf = true;
        // Moving cells behind the caller's back would invalidate captured states; also known to garble.
        native.defrag_thold = -1.0;
        native.abort_callback = Some(on_abort_poll);
        native.abort_callback_data = Arc::as_ptr(&abort).cast_mut().cast();
        if let Some(slot) = probe.as_mut() {
            native.cb_eval = Some(on_tensor);
            native.cb_eval_user_data = (&raw mut **slot).cast();
        }
        let (made, log) = engine_log::capture(|| {
            status::checked("llama_new_context_with_model", |st| {
                // SAFETY: the model is alive and this value will hold a clone; both callbacks' data are owned by
                // this value on the heap and so stay in place.
                unsafe { sys::bn_context_new(model.as_ptr(), native, st) }
            })
        });
        let ptr = made
            .ok()
            .and_then(NonNull::new)
            .ok_or_else(|| Error::ContextCreate { reason: engine_log::reason(&log) })?;
        // SAFETY: both are valid; the context uses the pool until it is freed, and it is freed first.
        let params = unsafe {
            sys::llama_attach_threadpool(ptr.as_ptr(), pool.as_ptr(), pool.as_ptr());
            EffectiveParams { n_ctx: sys::llama_n_ctx(ptr.as_ptr()), ..checked }
        };
        let geometry = params.geometry(model)?;
        let seqs = vec![PositionSet::default(); params.n_seq_max as usize];
        Ok(Self {
            ptr,
            model: model.clone(),
            params,
            geometry,
            seqs,
            rows: Rows::default(),
            cancel,
            poisoned: None,
            abort,
            probe,
            not_sync: PhantomData,
            _pool: pool,
        })
    }

    /// The parameters as they took effect.
    pub fn params(&self) -> &EffectiveParams {
        &self.params
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// What this context expects of a sequence state.
    pub fn geometry(&self) -> &StateGeometry {
        &self.geometry
    }

    /// A handle that stops this context's decode from any thread.
    pub fn cancel_handle(&self) -> CancelHandle {
        self.cancel.clone()
    }

    /// Decodes a batch of any size (`llama_decode`, one call per micro-batch) and returns the logits of the
    /// tokens that asked for output.
    ///
    /// Each sequence's tokens must come after what the sequence holds, in increasing order. Micro-batches are
    /// `n_ubatch` tokens, the last two shortened so that none has exactly one token behind others.
    ///
    /// # Errors
    /// Argument errors leave everything as it was. When the cache runs out ([`Error::ContextFull`],
    /// [`Error::ContextFragmented`]) or the call is cancelled, what it had added is removed again. Any other
    /// failure poisons the context until [`Context::clear`].
    pub fn decode(&mut self, batch: &Batch) -> Result<Logits<'_>, Error> {
        self.decode_with_progress(batch, &mut |_| {})
    }

    /// As [`Context::decode`]; `progress` is told after every micro-batch how many tokens of the batch are done.
    ///
    /// # Errors
    /// As [`Context::decode`].
    pub fn decode_with_progress(
        &mut self,
        batch: &Batch,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Logits<'_>, Error> {
        self.usable()?;
        self.check_batch(batch)?;
        let free = self.free_cells();
        if batch.len() > free {
            return Err(Error::ContextFull { needed: batch.len(), free, n_ctx: self.params.n_ctx });
        }
        self.rows.clear();
        let before = self.seqs.clone();
        let n_vocab = self.model.n_vocab() as usize;
        let mut start = 0;
        for size in batch::split(batch.len(), self.params.n_ubatch as usize) {
            let range = start..start + size;
            self.rows.keep_copies(self.ptr, n_vocab)?;
            if let Err(e) = self.decode_micro_batch(batch, range.clone()) {
                self.rows.clear();
                return Err(self.roll_back(before, e));
            }
            self.note_micro_batch(batch, range);
            start += size;
            progress(start);
        }
        Ok(Logits::new(&self.rows, self.ptr, n_vocab))
    }

    /// The logits of the last decode.
    ///
    /// # Errors
    /// [`Error::NoLogits`] when nothing was decoded since the context was made, cleared or restored into.
    pub fn logits(&self) -> Result<Logits<'_>, Error> {
        if self.rows.is_empty() {
            return Err(Error::NoLogits { what: "before a decode".into(), available: "none".into() });
        }
        Ok(Logits::new(&self.rows, self.ptr, self.model.n_vocab() as usize))
    }

    fn check_batch(&self, batch: &Batch) -> Result<(), Error> {
        if batch.is_empty() {
            return Err(Error::EmptyBatch);
        }
        let n_vocab = self.model.n_vocab();
        let n_ctx_train = self.geometry.n_ctx_train();
        let mut last: Vec<Option<i32>> = self.seqs.iter().map(PositionSet::last).collect();
        for i in 0..batch.len() {
            let id = batch.tokens[i].get();
            if batch.tokens[i].index() >= n_vocab as usize {
                return Err(Error::TokenOutOfRange { id: i64::from(id), n_vocab });
            }
            let pos = batch.positions[i].get();
            if pos.unsigned_abs() >= n_ctx_train {
                return Err(Error::PositionPastTraining { pos, n_ctx_train });
            }
            let seqs = batch.seqs_of(i);
            if seqs.is_empty() {
                return Err(Error::SeqIdOutOfRange { id: -1, n_seq_max: Some(self.params.n_seq_max) });
            }
            for seq in seqs {
                let slot = last.get_mut(seq.index()).ok_or_else(|| self.bad_seq(*seq))?;
                if let Some(last) = *slot
                    && pos <= last
                {
                    return Err(Error::PositionTaken { seq: seq.get(), pos, last });
                }
                *slot = Some(pos);
            }
        }
        Ok(())
    }

    fn decode_micro_batch(&mut self, batch: &Batch, range: Range<usize>) -> Result<(), Error> {
        let n = range.len();
        let mut tokens: Vec<i32> = batch.tokens[range.clone()].iter().map(|t| t.get()).collect();
        let mut positions: Vec<i32> = batch.positions[range.clone()].iter().map(|p| p.get()).collect();
        let mut seq_lists: Vec<Vec<i32>> =
            range.clone().map(|i| batch.seqs_of(i).iter().map(|s| s.get()).collect()).collect();
        let mut seq_counts: Vec<i32> = seq_lists.iter().map(|l| l.len() as i32).collect();
        let mut seq_ptrs: Vec<*mut i32> = seq_lists.iter_mut().map(Vec::as_mut_ptr).collect();
        let mut outputs: Vec<i8> = batch.outputs[range].iter().map(|&o| i8::from(o)).collect();
        let native = sys::llama_batch {
            n_tokens: n as i32,
            token: tokens.as_mut_ptr(),
            embd: std::ptr::null_mut(),
            pos: positions.as_mut_ptr(),
            n_seq_id: seq_counts.as_mut_ptr(),
            seq_id: seq_ptrs.as_mut_ptr(),
            logits: outputs.as_mut_ptr(),
            all_pos_0: 0,
            all_pos_1: 0,
            all_seq_id: 0,
        };
        if self.cancel.is_cancelled() {
            self.abort.take();
            return Err(Error::Cancelled);
        }
        let mut ret = 0;
        let (ptr, rows, n_threads) = (self.ptr, self.model.widest_rows(), self.params.n_threads);
        let (outcome, log) = engine_log::capture(|| {
            threads::with_stack(rows, n, n_threads, || {
                // SAFETY: every array holds n elements (token ids, sequences and positions were checked by
                // check_batch; n ≤ n_ubatch = n_batch, beyond which the engine asserts) and outlives the
                // call; the stack holds the kernels' arrays for n columns.
                status::checked("llama_decode", |st| unsafe {
                    sys::bn_decode(ptr.as_ptr(), native, &raw mut ret, st);
                })
            })
        });
        let outcome = outcome.flatten();
        if let Some(slot) = self.probe.as_mut()
            && let Some(panic) = slot.panic.take()
        {
            self.poisoned = Some("the probe panicked".into());
            resume_unwind(panic);
        }
        outcome?;
        // llama_decode drops the status of an aborted graph and answers 0 with half-computed logits.
        if self.abort.stopped_inside() {
            self.abort.take();
            return Err(Error::Cancelled);
        }
        match ret {
            0 => Ok(()),
            1 => Err(self.no_slot(n)),
            other => Err(Error::Native {
                function: "llama_decode",
                message: format!("returned {other}: {}", engine_log::reason(&log)),
            }),
        }
    }

    fn note_micro_batch(&mut self, batch: &Batch, range: Range<usize>) {
        self.rows.start_native();
        for i in range {
            let pos = batch.positions[i];
            for seq in batch.seqs_of(i) {
                self.seqs[seq.index()].push(pos.get());
            }
            if batch.outputs[i] {
                self.rows.push_native(i, pos, batch.seqs_of(i));
            }
        }
    }

    /// Makes the cache what it was before the failed decode, or poisons the context.
    fn roll_back(&mut self, before: Vec<PositionSet>, cause: Error) -> Error {
        let mut undo = Ok(());
        for (seq, old) in SeqId::first(before.len()).zip(&before) {
            let from = old.last().map_or(0, |p| p + 1);
            undo = undo.and(self.native_remove(seq, from, -1));
        }
        self.seqs = before;
        if let Err(e) = undo {
            self.poisoned = Some(format!("{cause}; and then {e}"));
        } else if !matches!(
            cause,
            Error::ContextFull { .. } | Error::ContextFragmented { .. } | Error::Cancelled | Error::HostShortage { .. }
        ) {
            self.poisoned = Some(cause.to_string());
        }
        cause
    }

    fn no_slot(&self, needed: usize) -> Error {
        let (free, longest) = self.free_runs(None);
        if free >= needed {
            Error::ContextFragmented { needed, free, longest }
        } else {
            Error::ContextFull { needed, free, n_ctx: self.params.n_ctx }
        }
    }

    fn usable(&self) -> Result<(), Error> {
        match &self.poisoned {
            Some(reason) => Err(Error::Poisoned { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    fn bad_seq(&self, seq: SeqId) -> Error {
        Error::SeqIdOutOfRange { id: seq.get(), n_seq_max: Some(self.params.n_seq_max) }
    }

    fn known_seq(&self, seq: SeqId) -> Result<usize, Error> {
        if seq.index() < self.seqs.len() { Ok(seq.index()) } else { Err(self.bad_seq(seq)) }
    }

    /// Free cells of the cache.
    pub fn free_cells(&self) -> usize {
        // SAFETY: reads a counter of a valid context.
        let used = unsafe { sys::llama_get_kv_cache_used_cells(self.ptr.as_ptr()) };
        (self.params.n_ctx as usize).saturating_sub(usize::try_from(used).unwrap_or(0))
    }

    /// Free cells and the longest run of them, counting cells that only `emptied` holds as free.
    fn free_runs(&self, emptied: Option<SeqId>) -> (usize, usize) {
        // SAFETY: the view is made from, updated with and read beside a valid context, and freed once. Its
        // arrays hold n_cells and n_cells × n_seq_max elements.
        unsafe {
            let mut view = sys::llama_kv_cache_view_init(self.ptr.as_ptr(), self.params.n_seq_max as i32);
            sys::llama_kv_cache_view_update(self.ptr.as_ptr(), &raw mut view);
            let cells = usize::try_from(view.n_cells).unwrap_or(0);
            let per_cell = usize::try_from(view.n_seq_max).unwrap_or(0);
            let (mut free, mut run, mut longest) = (0, 0, 0);
            if !view.cells_sequences.is_null() {
                for cell in std::slice::from_raw_parts(view.cells_sequences, cells * per_cell).chunks(per_cell.max(1)) {
                    let taken = cell.iter().any(|&s| s >= 0 && emptied.is_none_or(|e| e.get() != s));
                    run = if taken { 0 } else { run + 1 };
                    free += usize::from(!taken);
                    longest = longest.max(run);
                }
            }
            sys::llama_kv_cache_view_free(&raw mut view);
            (free, longest)
        }
    }

    // ---- sequences ----

    /// The positions that a sequence holds.
    ///
    /// # Errors
    /// [`Error::SeqIdOutOfRange`].
    pub fn positions(&self, seq: SeqId) -> Result<&PositionSet, Error> {
        self.known_seq(seq).map(|i| &self.seqs[i])
    }

    /// Where the sequence's next token goes: behind its last one.
    ///
    /// # Errors
    /// [`Error::SeqIdOutOfRange`].
    pub fn next_pos(&self, seq: SeqId) -> Result<Pos, Error> {
        self.positions(seq)?.last().map_or(Ok(Pos::ZERO), |last| Pos::new(last).and_then(|p| p.forward(1)))
    }

    /// Removes the positions in `range` from a sequence (`llama_kv_cache_seq_rm`).
    ///
    /// # Errors
    /// [`Error::SeqIdOutOfRange`].
    pub fn remove(&mut self, seq: SeqId, range: Range<Pos>) -> Result<(), Error> {
        let i = self.known_seq(seq)?;
        if range.start >= range.end {
            return Ok(());
        }
        self.native_remove(seq, range.start.get(), range.end.get())?;
        self.seqs[i].remove(range.start.get(), range.end.get());
        self.rows.clear();
        Ok(())
    }

    /// Empties a sequence.
    ///
    /// # Errors
    /// [`Error::SeqIdOutOfRange`].
    pub fn remove_all(&mut self, seq: SeqId) -> Result<(), Error> {
        let i = self.known_seq(seq)?;
        self.native_remove(seq, -1, -1)?;
        self.seqs[i] = PositionSet::default();
        self.rows.clear();
        Ok(())
    }

    /// Makes the positions of `source` in `range` part of `target` as well, sharing the cells
    /// (`llama_kv_cache_seq_cp`). The target is emptied first; without `range` everything is copied.
    ///
    /// # Errors
    /// [`Error::SeqIdOutOfRange`], [`Error::EmptySequence`].
    pub fn copy(&mut self, source: SeqId, target: SeqId, range: Option<Range<Pos>>) -> Result<(), Error> {
        let (from, to) = (self.known_seq(source)?, self.known_seq(target)?);
        if from == to {
            return Ok(());
        }
        let (p0, p1) = range.map_or((0, i32::MAX), |r| (r.start.get(), r.end.get()));
        let part = self.seqs[from].slice(p0, p1);
        if part.is_empty() {
            return Err(Error::EmptySequence { seq: source.get() });
        }
        self.remove_all(target)?;
        status::checked("llama_kv_cache_seq_cp", |st| unsafe {
            // SAFETY: both ids are below n_seq_max, the range is within positions.
            sys::bn_kv_seq_cp(self.ptr.as_ptr(), source.get(), target.get(), p0, p1, st);
        })?;
        self.seqs[to] = part;
        Ok(())
    }

    /// Removes every sequence but one (`llama_kv_cache_seq_keep`).
    ///
    /// # Errors
    /// [`Error::SeqIdOutOfRange`].
    pub fn keep_only(&mut self, seq: SeqId) -> Result<(), Error> {
        let keep = self.known_seq(seq)?;
        status::checked("llama_kv_cache_seq_keep", |st| unsafe {
            // SAFETY: the id is below n_seq_max.
            sys::bn_kv_seq_keep(self.ptr.as_ptr(), seq.get(), st);
        })?;
        for (i, s) in self.seqs.iter_mut().enumerate() {
            if i != keep {
                *s = PositionSet::default();
            }
        }
        self.rows.clear();
        Ok(())
    }

    /// Empties the cache (`llama_kv_cache_clear`) and heals a poisoned context.
    ///
    /// # Errors
    /// [`Error::Native`] if the engine throws.
    pub fn clear(&mut self) -> Result<(), Error> {
        status::checked("llama_kv_cache_clear", |st| unsafe {
            // SAFETY: a valid context.
            sys::bn_kv_clear(self.ptr.as_ptr(), st);
        })?;
        self.seqs.fill(PositionSet::default());
        self.rows.clear();
        self.poisoned = None;
        Ok(())
    }

    fn native_remove(&mut self, seq: SeqId, from: i32, to: i32) -> Result<(), Error> {
        let mut removed = false;
        status::checked("llama_kv_cache_seq_rm", |st| unsafe {
            // SAFETY: the id is below n_seq_max (seqs' index or known_seq).
            sys::bn_kv_seq_rm(self.ptr.as_ptr(), seq.get(), from, to, &raw mut removed, st);
        })?;
        if removed {
            Ok(())
        } else {
            Err(Error::Native { function: "llama_kv_cache_seq_rm", message: "refused to remove positions".into() })
        }
    }

    // ---- sequence state ----

    /// Captures a sequence's KV state (`llama_state_seq_get_data`).
    ///
    /// # Errors
    /// [`Error::EmptySequence`], [`Error::Poisoned`], [`Error::Native`].
    pub fn save(&mut self, seq: SeqId) -> Result<SequenceState, Error> {
        self.usable()?;
        let i = self.known_seq(seq)?;
        if self.seqs[i].is_empty() {
            return Err(Error::EmptySequence { seq: seq.get() });
        }
        let mut size = 0;
        status::checked("llama_state_seq_get_size", |st| unsafe {
            // SAFETY: a valid context, an id below n_seq_max.
            sys::bn_state_seq_size(self.ptr.as_ptr(), seq.get(), &raw mut size, st);
        })?;
        let mut bytes: Vec<u8> = Vec::with_capacity(size);
        let mut written = 0;
        status::checked("llama_state_seq_get_data", |st| unsafe {
            // SAFETY: the buffer has room for `size` bytes, and the engine writes at most that many.
            sys::bn_state_seq_get(self.ptr.as_ptr(), bytes.as_mut_ptr(), size, seq.get(), &raw mut written, st);
        })?;
        if written == 0 || written > size {
            let message = format!("wrote {written} of {size} bytes");
            return Err(Error::Native { function: "llama_state_seq_get_data", message });
        }
        // SAFETY: the engine has written the first `written` bytes, which is at most the capacity.
        unsafe { bytes.set_len(written) };
        Ok(SequenceState::from_capture(bytes, &self.geometry)?)
    }

    /// Replaces a sequence by a state (`llama_state_seq_set_data`); decoding goes on behind its last position.
    ///
    /// The blob is parsed against this context's geometry by its type; room and values are checked here. So a refusal
    /// leaves the sequence as it was. Reading every value takes about a millisecond for ten megabytes.
    ///
    /// # Errors
    /// [`Error::StateBlob`], [`Error::NonFiniteState`], [`Error::ContextFull`], [`Error::ContextFragmented`] with nothing
    /// changed; [`Error::RestoreFailed`] when the engine refuses all the same: the sequence is empty then.
    pub fn restore(&mut self, seq: SeqId, blob: &StateBlob<'_>) -> Result<(), Error> {
        self.usable()?;
        self.known_seq(seq)?;
        blob.check_against(&self.geometry)?;
        blob.check_finite()?;
        self.restore_with_unchecked_values(seq, blob)
    }

    /// As [`Context::restore`] without reading the values, for a state whose values were checked before.
    ///
    /// An infinity or NaN in a state does not stay in its sequence: cells are reused, and without flash attention a
    /// value that is not finite makes the logits of *other* sequences NaN, with `Ok`, until [`Context::clear`].
    ///
    /// # Errors
    /// As [`Context::restore`] but for the values.
    pub fn restore_with_unchecked_values(&mut self, seq: SeqId, blob: &StateBlob<'_>) -> Result<(), Error> {
        self.usable()?;
        let i = self.known_seq(seq)?;
        blob.check_against(&self.geometry)?;
        let needed = blob.cells() as usize;
        let (free, longest) = self.free_runs(Some(seq));
        if needed > free {
            return Err(Error::ContextFull { needed, free, n_ctx: self.params.n_ctx });
        }
        if needed > longest {
            return Err(Error::ContextFragmented { needed, free, longest });
        }
        self.rows.clear();
        let bytes = blob.as_bytes();
        let mut read = 0;
        let (outcome, log) = engine_log::capture(|| {
            status::checked("llama_state_seq_set_data", |st| unsafe {
                // SAFETY: the bytes parsed as exactly one state of this geometry with increasing positions, an
                // allowed cell count and room for it, which are the things the engine asserts or trusts.
                sys::bn_state_seq_set(self.ptr.as_ptr(), bytes.as_ptr(), bytes.len(), seq.get(), &raw mut read, st);
            })
        });
        if outcome.is_err() || read != bytes.len() {
            self.seqs[i] = PositionSet::default();
            if let Err(e) = self.native_remove(seq, -1, -1) {
                self.poisoned = Some(e.to_string());
            }
            let reason = match outcome {
                Err(e) => e.to_string(),
                Ok(()) => format!("it read {read} of {} bytes: {}", bytes.len(), engine_log::reason(&log)),
            };
            return Err(Error::RestoreFailed { seq: seq.get(), reason });
        }
        let mut positions = PositionSet::default();
        blob.positions().for_each(|p| positions.push(p));
        self.seqs[i] = positions;
        Ok(())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: made by this type, freed once; the pool that it uses, the model, the cancel state and the probe are
        // fields and live on until after this.
        unsafe { sys::llama_free(self.ptr.as_ptr()) };
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("params", &self.params)
            .field("seqs", &self.seqs)
            .field("poisoned", &self.poisoned)
            .finish_non_exhaustive()
    }
}

/// `ggml_abort_callback`: asked from the compute threads between nodes.
unsafe extern "C" fn on_abort_poll(user: *mut c_void) -> bool {
    // SAFETY: points into the Arc that the context holds for its whole life; CancelState is Sync.
    unsafe { &*user.cast::<CancelState>() }.poll()
}
