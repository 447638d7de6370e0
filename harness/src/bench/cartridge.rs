//! Mounting a cartridge against prefilling its text, and against the least that any reader has to do.

use session::Mount as _;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bitnet_rs::{Batch, Context, ContextParams, Model, Pos, SeqId};
use kv::{KvType, SequenceState};
use serde::Serialize;

use super::memory::PeakMemory;
use super::table::Table;
use super::{BenchError, Samples, ordinary_tokens, rotated};
use cartridge::{Cartridge, ConvertTo, Level, ModelLock, Overwrite, Provenance, Rounding, convert, write_native};

/// What to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct CartridgeOptions {
    /// Lengths of the prefix in tokens.
    pub lengths: Vec<u32>,
    /// Timed runs of everything but prefill.
    pub repetitions: u32,
    /// Timed prefills of each length.
    pub prefills: u32,
    /// Threads of prefill.
    pub threads: u32,
    /// Micro-batch of prefill.
    pub n_ubatch: u32,
    /// Flash attention.
    pub flash_attn: bool,
    /// Type of the keys.
    pub type_k: KvType,
    /// Type of the values.
    pub type_v: KvType,
}

/// Tokens of the question behind the prefix, whose answer's first token is waited for.
pub const QUESTION_TOKENS: u32 = 16;

/// One length. Times in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CartridgeRow {
    /// Tokens of the prefix.
    pub n_tokens: u32,
    /// Bytes of keys and values.
    pub payload_bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Decoding the prefix.
    pub prefill_ms: Samples,
    /// Taking the state out of the engine.
    pub capture_ms: Samples,
    /// Writing the native file with its hash, durably.
    pub write_ms: Samples,
    /// Converting it to a head-major file, durably. Absent for quantized types, which have no such form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub convert_ms: Option<Samples>,
    /// Reading the whole file into memory that was touched before: no reader can do less.
    pub read_ms: Samples,
    /// `llama_state_seq_set_data` of the same blob from memory.
    pub restore_ms: Samples,
    /// Giving what is mounted to a second sequence as well (`llama_kv_cache_seq_cp`: the cells are shared).
    pub share_ms: Samples,
    /// Opening (all but the values checked), lock, restore from the mapped file.
    pub mount_ms: Samples,
    /// The same with the payload hash checked.
    pub mount_hashed_ms: Samples,
    /// The same with hash and finiteness checked: what the commands do.
    pub mount_full_ms: Samples,
    /// Mounting the head-major file (rearranged in memory), structure checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mount_head_major_ms: Option<Samples>,
    /// From a prompt of the prefix and [`QUESTION_TOKENS`] more to the logits of the first token, all of it prefilled.
    /// Absent where the model's context holds no more than the prefix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_token_prefilled_ms: Option<Samples>,
    /// The same with the prefix mounted, hash and finiteness checked, and only the question prefilled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_token_mounted_ms: Option<Samples>,
    /// Memory that mounting took beyond what was resident, the file's mapped pages included. Absent where the kernel
    /// does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_bytes: Option<u64>,
    /// The same for the head-major file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_head_major_bytes: Option<u64>,
    /// The ratios of the medians.
    pub ratios: Ratios,
}

/// Ratios of medians of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ratios {
    /// Prefill over mount.
    pub prefill_to_mount: f64,
    /// Prefill over mount with hash and finiteness.
    pub prefill_to_mount_full: f64,
    /// Mount over native restore from memory.
    pub mount_to_restore: f64,
    /// Mount over sharing with a second sequence.
    pub mount_to_share: f64,
    /// Mount over a plain read of the file.
    pub mount_to_read: f64,
    /// First token prefilled over first token behind the mount.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_token: Option<f64>,
    /// Peak memory over payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_to_payload: Option<f64>,
}

/// What the ratios are made of, in any one unit of time.
struct Medians {
    prefill: f64,
    mount: f64,
    full: f64,
    restore: f64,
    share: f64,
    read: f64,
    /// Prefilled and mounted.
    first_token: Option<(f64, f64)>,
}

impl Ratios {
    /// From the medians of a row.
    fn of(m: &Medians, peak: Option<u64>, payload: u64) -> Self {
        Self {
            prefill_to_mount: m.prefill / m.mount,
            prefill_to_mount_full: m.prefill / m.full,
            mount_to_restore: m.mount / m.restore,
            mount_to_share: m.mount / m.share,
            mount_to_read: m.mount / m.read,
            first_token: m.first_token.map(|(prefilled, mounted)| prefilled / mounted),
            peak_to_payload: peak.map(|p| p as f64 / payload as f64),
        }
    }
}

/// Megabytes (10⁶ bytes) per second.
pub fn megabytes_per_second(bytes: u64, ms: f64) -> f64 {
    bytes as f64 / 1e3 / ms
}

/// What one length is measured with.
struct Setup<'a> {
    context: Context,
    state: SequenceState,
    lock: &'a ModelLock,
    native: &'a Path,
    head_major: Option<&'a Path>,
    /// As long as the native file, every page touched.
    buffer: Vec<u8>,
    /// What is asked behind the prefix, if the context has room for it.
    question: Option<Batch>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Read,
    Restore,
    Share,
    Mount(Level),
    HeadMajor,
    FirstToken,
}

/// The sequence with which what is mounted is shared.
const SHARER: i32 = 1;

impl Setup<'_> {
    /// Leaves the context without a cell, whichever sequence holds it: what was shared last keeps its cells otherwise,
    /// and there is no room for a second prefix.
    fn empty(&mut self) -> Result<(), BenchError> {
        for seq in [SeqId::ZERO, SeqId::new(SHARER)?] {
            self.context.remove_all(seq)?;
        }
        Ok(())
    }

    /// One timed run, in milliseconds.
    fn time(&mut self, what: What) -> Result<f64, BenchError> {
        let sharer = SeqId::new(SHARER)?;
        self.empty()?;
        if what == What::Share {
            self.context.restore(SeqId::ZERO, &self.state.blob())?;
        }
        let started = Instant::now();
        match what {
            What::Read => {
                let io = |source| BenchError::Io { what: "reading the cartridge".into(), source };
                File::open(self.native).map_err(io)?.read_exact(&mut self.buffer).map_err(io)?;
            }
            What::Restore => self.context.restore(SeqId::ZERO, &self.state.blob())?,
            What::Share => self.context.copy(SeqId::ZERO, sharer, None)?,
            What::Mount(level) => mount(&mut self.context, self.native, self.lock, level)?,
            What::HeadMajor => {
                if let Some(path) = self.head_major {
                    mount(&mut self.context, path, self.lock, Level::Structure)?;
                }
            }
            What::FirstToken => {
                mount(&mut self.context, self.native, self.lock, Level::Full)?;
                if let Some(question) = &self.question {
                    self.context.decode(question)?;
                }
            }
        }
        Ok(started.elapsed().as_secs_f64() * 1e3)
    }

    fn peak(&mut self, path: &Path) -> Result<Option<u64>, BenchError> {
        self.empty()?;
        let meter = PeakMemory::start();
        mount(&mut self.context, path, self.lock, Level::Full)?;
        Ok(meter.and_then(|m| m.peak()))
    }
}

/// Opens, checks to `level`, mounts and closes.
fn mount(context: &mut Context, path: &Path, lock: &ModelLock, level: Level) -> Result<(), BenchError> {
    let cartridge = Cartridge::open(path)?;
    cartridge.validate(level)?;
    cartridge.mount(context, SeqId::ZERO, lock, Rounding::Exact)?;
    Ok(())
}

/// Measures every length. The files lie in `folder` meanwhile.
///
/// # Errors
/// [`BenchError::Option`] for a length that the model cannot hold, and whatever fails.
pub fn measure(
    model: &Model,
    lock: &ModelLock,
    options: &CartridgeOptions,
    folder: &Path,
    progress: &mut dyn FnMut(&str),
    stop: &AtomicBool,
) -> Result<Vec<CartridgeRow>, BenchError> {
    let n_ctx_train = model.info().hyperparameters().n_ctx_train;
    if let Some(n) = options.lengths.iter().find(|&&n| n == 0 || n > n_ctx_train) {
        let limit = format!("1 to {n_ctx_train}, the model's context");
        return Err(BenchError::Option { field: "n-prompt", value: n.to_string(), limit });
    }
    options.lengths.iter().map(|&n| one(model, lock, options, n, folder, progress, stop)).collect()
}

fn one(
    model: &Model,
    lock: &ModelLock,
    options: &CartridgeOptions,
    n: u32,
    folder: &Path,
    progress: &mut dyn FnMut(&str),
    stop: &AtomicBool,
) -> Result<CartridgeRow, BenchError> {
    let go_on = || if stop.load(Ordering::Relaxed) { Err(BenchError::Interrupted) } else { Ok(()) };
    let tokens = ordinary_tokens(model, n as usize)?;
    let ids: Vec<i32> = tokens.iter().map(|t| t.get()).collect();
    let asked = n.checked_add(QUESTION_TOKENS).filter(|&n| n <= model.info().hyperparameters().n_ctx_train);
    let question = asked.map(|n_all| {
        let all = ordinary_tokens(model, n_all as usize)?;
        Ok::<_, BenchError>(Batch::prompt(&all[n as usize..], Pos::ZERO.forward(n as usize)?, SeqId::ZERO)?)
    });
    let question = question.transpose()?;
    let params = ContextParams {
        n_ctx: asked.unwrap_or(n),
        n_seq_max: 2,
        n_ubatch: options.n_ubatch,
        n_threads: options.threads,
        flash_attn: options.flash_attn,
        type_k: options.type_k,
        type_v: options.type_v,
        ..Default::default()
    };
    let mut context = Context::new(model, &params)?;
    // Warms the weights.
    context.decode(&Batch::prompt(&tokens[..1], Pos::ZERO, SeqId::ZERO)?)?;
    let (mut prefill, mut first_token_prefilled) = (Vec::new(), Vec::new());
    for run in 0..options.prefills.max(1) {
        go_on()?;
        progress(&format!("{n} tokens: prefill {} of {}", run + 1, options.prefills.max(1)));
        context.clear()?;
        let batch = Batch::prompt(&tokens, Pos::ZERO, SeqId::ZERO)?;
        let prefix_ms = decode(&mut context, &batch, stop)?;
        prefill.push(prefix_ms);
        if let Some(question) = &question {
            first_token_prefilled.push(prefix_ms + decode(&mut context, question, stop)?);
            // The prefix alone is what is captured below.
            let end = Pos::ZERO.forward(n as usize)?;
            context.remove(SeqId::ZERO, end..end.forward(QUESTION_TOKENS as usize)?)?;
        }
    }

    progress(&format!("{n} tokens: capture, write, convert"));
    let rounds = options.repetitions.max(1) as usize;
    let mut capture = Vec::new();
    let mut state = None;
    for _ in 0..rounds {
        // The last one's memory is returned first: an agent captures once.
        drop(state.take());
        let started = Instant::now();
        state = Some(context.save(SeqId::ZERO)?);
        capture.push(started.elapsed().as_secs_f64() * 1e3);
    }
    let state = match state {
        Some(state) => state,
        None => context.save(SeqId::ZERO)?,
    };
    let native = folder.join(format!("{n}.native.safetensors"));
    let head_major = folder.join(format!("{n}.head-major.safetensors"));
    let quantized = options.type_k.is_quantized() || options.type_v.is_quantized();
    let (mut write, mut converted) = (Vec::new(), Vec::new());
    // The disk decides here; a few runs say as much as many.
    for _ in 0..rounds.min(3) {
        go_on()?;
        let started = Instant::now();
        write_native(&native, &state.blob(), &ids, lock, &Provenance::default(), Overwrite::Replace)?;
        write.push(started.elapsed().as_secs_f64() * 1e3);
        if !quantized {
            let source = Cartridge::open(&native)?;
            let to = ConvertTo::HeadMajor { type_k: options.type_k, type_v: options.type_v };
            let started = Instant::now();
            convert(&source, &head_major, &to, Rounding::Exact, Overwrite::Replace)?;
            converted.push(started.elapsed().as_secs_f64() * 1e3);
        }
    }
    let file_bytes =
        fs::metadata(&native).map_err(|source| BenchError::Io { what: native.display().to_string(), source })?.len();
    let payload_bytes = Cartridge::open(&native)?.payload_bytes() as u64;
    let mut setup = Setup {
        context,
        state,
        lock,
        native: &native,
        head_major: (!quantized).then_some(head_major.as_path()),
        buffer: vec![1; file_bytes as usize],
        question,
    };
    let mut kinds = vec![
        What::Read,
        What::Restore,
        What::Share,
        What::Mount(Level::Structure),
        What::Mount(Level::Hash),
        What::Mount(Level::Full),
    ];
    if !quantized {
        kinds.push(What::HeadMajor);
    }
    if setup.question.is_some() {
        kinds.push(What::FirstToken);
    }
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); kinds.len()];
    // The first round warms the page cache and is not counted.
    for round in 0..=rounds {
        go_on()?;
        progress(&format!("{n} tokens: round {round} of {rounds}"));
        for i in rotated(kinds.len(), round) {
            let ms = setup.time(kinds[i])?;
            if round > 0 {
                times[i].push(ms);
            }
        }
    }
    let peak_bytes = setup.peak(&native)?;
    let peak_head_major_bytes = if quantized { None } else { setup.peak(&head_major)? };
    for path in [&native, &head_major] {
        // The folder goes as a whole at the end; a long one is not kept beside the next.
        let _ = fs::remove_file(path);
    }
    let mut times = times.into_iter();
    let mut next = |what: &str| {
        let samples = times.next().and_then(Samples::of);
        samples.filter(|s| s.median > 0.0).ok_or_else(|| BenchError::NoTime(what.to_owned()))
    };
    let summed = |samples: Vec<f64>, what: &str| Samples::of(samples).ok_or_else(|| BenchError::NoTime(what.into()));
    let (read_ms, restore_ms, share_ms) = (next("read")?, next("restore")?, next("share")?);
    let mount_ms = next("mount")?;
    let (mount_hashed_ms, mount_full_ms) = (next("mount with hash")?, next("mount with all checks")?);
    let mount_head_major_ms = if quantized { None } else { Some(next("mount of head-major")?) };
    let first_token_mounted_ms = if asked.is_some() { Some(next("first token")?) } else { None };
    let first_token_prefilled_ms = Samples::of(first_token_prefilled);
    let first_token = first_token_prefilled_ms.as_ref().zip(first_token_mounted_ms.as_ref());
    let prefill_ms = summed(prefill, "prefill")?;
    let medians = Medians {
        prefill: prefill_ms.median,
        mount: mount_ms.median,
        full: mount_full_ms.median,
        restore: restore_ms.median,
        share: share_ms.median,
        read: read_ms.median,
        first_token: first_token.map(|(prefilled, mounted)| (prefilled.median, mounted.median)),
    };
    let ratios = Ratios::of(&medians, peak_bytes, payload_bytes);
    Ok(CartridgeRow {
        n_tokens: n,
        payload_bytes,
        file_bytes,
        prefill_ms,
        capture_ms: summed(capture, "capture")?,
        write_ms: summed(write, "write")?,
        convert_ms: Samples::of(converted),
        read_ms,
        restore_ms,
        share_ms,
        mount_ms,
        mount_hashed_ms,
        mount_full_ms,
        mount_head_major_ms,
        first_token_prefilled_ms,
        first_token_mounted_ms,
        peak_bytes,
        peak_head_major_bytes,
        ratios,
    })
}

/// Decodes a batch; milliseconds.
fn decode(context: &mut Context, batch: &Batch, stop: &AtomicBool) -> Result<f64, BenchError> {
    let cancel = context.cancel_handle();
    let started = Instant::now();
    let done = AtomicBool::new(false);
    let decoded = std::thread::scope(|scope| {
        // A long prefill takes minutes: Ctrl-C reaches it through the handle.
        let watch = || {
            while !done.load(Ordering::Relaxed) {
                if stop.load(Ordering::Relaxed) {
                    cancel.cancel();
                    return;
                }
                std::thread::park_timeout(std::time::Duration::from_millis(50));
            }
        };
        // Where no thread can be made, only the second Ctrl-C is heard.
        let _watcher = std::thread::Builder::new().spawn_scoped(scope, watch);
        let decoded = context.decode(batch).map(|_| ());
        let elapsed = started.elapsed();
        done.store(true, Ordering::Relaxed);
        decoded.map(|()| elapsed)
    });
    match decoded {
        Err(bitnet_rs::Error::Cancelled) => Err(BenchError::Interrupted),
        other => Ok(other?.as_secs_f64() * 1e3),
    }
}

/// The table of a run.
pub fn table(rows: &[CartridgeRow]) -> Table {
    let mut table = Table::new([
        "p",
        "MiB",
        "prefill ms",
        "capture ms",
        "write MB/s",
        "convert MB/s",
        "read ms",
        "restore ms",
        "share ms",
        "mount ms",
        "hashed ms",
        "full ms",
        "head-major ms",
        "1st token ms",
        "mounted ms",
        "prefill/mount",
        "prefill/full",
        "mount/restore",
        "mount/read",
        "peak/payload",
    ]);
    let optional = |s: Option<String>| s.unwrap_or_else(|| "-".into());
    for r in rows {
        let speed = |s: &Samples| format!("{:.0}", megabytes_per_second(r.payload_bytes, s.median));
        let ms = |s: &Samples| format!("{:.2}", s.median);
        table.row([
            r.n_tokens.to_string(),
            format!("{:.1}", r.payload_bytes as f64 / f64::from(1 << 20)),
            format!("{:.0}", r.prefill_ms.median),
            ms(&r.capture_ms),
            speed(&r.write_ms),
            optional(r.convert_ms.as_ref().map(speed)),
            ms(&r.read_ms),
            ms(&r.restore_ms),
            format!("{:.3}", r.share_ms.median),
            ms(&r.mount_ms),
            ms(&r.mount_hashed_ms),
            ms(&r.mount_full_ms),
            optional(r.mount_head_major_ms.as_ref().map(ms)),
            optional(r.first_token_prefilled_ms.as_ref().map(|s| format!("{:.0}", s.median))),
            optional(r.first_token_mounted_ms.as_ref().map(ms)),
            format!("{:.0}x", r.ratios.prefill_to_mount),
            format!("{:.0}x", r.ratios.prefill_to_mount_full),
            format!("{:.2}", r.ratios.mount_to_restore),
            format!("{:.2}", r.ratios.mount_to_read),
            optional(r.ratios.peak_to_payload.map(|p| format!("{p:.2}"))),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::{Medians, Ratios, megabytes_per_second};

    #[test]
    fn ratios_say_what_over_what() {
        let medians = Medians {
            prefill: 15_000.0,
            mount: 10.0,
            full: 40.0,
            restore: 8.0,
            share: 0.5,
            read: 20.0,
            first_token: Some((15_300.0, 340.0)),
        };
        let r = Ratios::of(&medians, Some(110), 100);
        assert_eq!((r.prefill_to_mount, r.prefill_to_mount_full), (1500.0, 375.0));
        assert_eq!((r.mount_to_restore, r.mount_to_share, r.mount_to_read), (1.25, 20.0, 0.5));
        assert_eq!((r.peak_to_payload, r.first_token), (Some(1.1), Some(45.0)));
        assert_eq!(Ratios::of(&medians, None, 1).peak_to_payload, None);
        // 80 MB in 10 ms.
        assert_eq!(megabytes_per_second(80_000_000, 10.0), 8000.0);
    }
}
