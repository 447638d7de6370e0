//! Thread counts and stacks.
//!
//! The I2_S gemm path keeps `rows per thread × columns` floats in a variable-length array on the stack of
//! every compute thread, the calling one included. Ask for too many columns and the process dies. So the
//! calling thread gets a stack that is large enough ([`with_stack`]) and the micro-batch is bounded by the
//! stack of the workers ([`max_columns`]), which the C library sizes.

use std::io;
use std::num::NonZeroUsize;
use std::ptr::{self, NonNull};
use std::sync::Once;

use bitnet_sys as sys;

use crate::Error;

/// What the engine uses beside the array: graph building, logging, C++ frames.
const STACK_BASE: usize = 512 * 1024;

/// Most threads that the engine accepts (`GGML_MAX_N_THREADS`).
pub const MAX_THREADS: u32 = 512;

/// CPUs that this process may use (affinity mask and cgroup quota).
pub fn available() -> u32 {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get).try_into().unwrap_or(MAX_THREADS)
}

/// Checks a thread count and clamps it to the CPUs that the process may use: threads without a CPU spin in
/// the engine's barrier. Says so once.
pub(crate) fn clamp(requested: u32) -> Result<u32, Error> {
    static SAID: Once = Once::new();
    if requested == 0 {
        return Err(Error::ContextParam {
            field: "n_threads",
            value: "0".into(),
            limit: "at least 1 thread is needed".into(),
        });
    }
    let most = available().min(MAX_THREADS);
    if requested > most {
        SAID.call_once(|| {
            tracing::warn!("{requested} threads asked for, {most} used: that many CPUs are available to this process");
        });
    }
    Ok(requested.min(most))
}

/// Least stack of a worker thread: what glibc gives where `ulimit -s` sets none.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LEAST_WORKER_STACK: usize = 2 << 20;

/// Stack of a thread that the C library makes with default attributes, in bytes: what the engine's worker
/// threads get. A smaller one, by `ulimit -s`, is raised to 2 MiB first, for all threads of this process that ask for
/// none: the engine's would run past its end.
pub fn worker_stack() -> usize {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: the attribute object is initialised by pthread_getattr_default_np before it is read and
        // destroyed once; all pointers are to locals.
        unsafe {
            let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
            let mut size: libc::size_t = 0;
            if pthread_getattr_default_np(attributes.as_mut_ptr()) == 0 {
                let got = libc::pthread_attr_getstacksize(attributes.as_ptr(), &raw mut size);
                if got == 0
                    && size < LEAST_WORKER_STACK
                    && libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), LEAST_WORKER_STACK) == 0
                    && pthread_setattr_default_np(attributes.as_ptr()) == 0
                {
                    size = LEAST_WORKER_STACK;
                }
                libc::pthread_attr_destroy(attributes.as_mut_ptr());
                if got == 0 && size > 0 {
                    return size;
                }
            }
        }
    }
    // musl and others start at 128 KiB; assume little where we cannot ask.
    128 * 1024
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
unsafe extern "C" {
    /// glibc's default thread attributes; the libc crate does not bind it.
    fn pthread_getattr_default_np(attr: *mut libc::pthread_attr_t) -> libc::c_int;
    /// Sets them.
    fn pthread_setattr_default_np(attr: *const libc::pthread_attr_t) -> libc::c_int;
}

/// Bytes of the array for `columns` columns of a matrix with `rows` rows on `threads` threads.
fn array_bytes(rows: usize, columns: usize, threads: usize) -> usize {
    // Thread ranges are rounded up to whole blocks of 4 rows.
    let per_thread = rows.div_ceil(threads.max(1)).next_multiple_of(4) + 4;
    per_thread.saturating_mul(columns).saturating_mul(size_of::<f32>())
}

/// The largest micro-batch (a multiple of 4, at least 4) whose array fits the workers' stacks. With one
/// thread only the calling thread computes and `wanted` is returned.
pub(crate) fn max_columns(rows: usize, wanted: u32, threads: u32) -> u32 {
    if threads <= 1 {
        return wanted;
    }
    let budget = worker_stack().saturating_sub(STACK_BASE);
    let mut columns = wanted;
    while columns > 4 && array_bytes(rows, columns as usize, threads as usize) > budget {
        columns = (columns - 1) / 4 * 4;
    }
    columns
}

/// Runs `call` on a stack that holds the array for `columns` columns, growing the stack if this thread's
/// is too small. Any thread may call, whatever its stack.
///
/// # Errors
/// As [`on_stack`].
pub(crate) fn with_stack<T>(rows: usize, columns: usize, threads: u32, call: impl FnOnce() -> T) -> Result<T, Error> {
    let needed = array_bytes(rows, columns, threads as usize) + STACK_BASE;
    on_stack(needed, needed + STACK_BASE, "the product of a matrix", call)
}

/// Runs `call` with at least `needed` bytes of stack, on a new one of `size` bytes where this thread has less.
///
/// # Errors
/// [`Error::HostShortage`] where the system does not give it.
pub(crate) fn on_stack<T>(needed: usize, size: usize, what: &str, call: impl FnOnce() -> T) -> Result<T, Error> {
    if stacker::remaining_stack().is_none_or(|left| left < needed) {
        // Stacker panics where its mapping fails. Another thread may take the room in between, but hardly ever does.
        room(size + (1 << 20))
            .map_err(|source| Error::HostShortage { what: format!("a stack of {size} bytes for {what}"), source })?;
    }
    Ok(stacker::maybe_grow(needed, size, call))
}

/// Whether this many bytes can be mapped now.
pub(crate) fn room(bytes: usize) -> io::Result<()> {
    // SAFETY: an anonymous mapping that nobody touches and that is given back at once; on failure nothing is mapped.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let mapped = libc::mmap(ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        libc::munmap(mapped, bytes);
    }
    Ok(())
}

/// The engine's threads (`ggml_threadpool`), the calling one counted.
pub(crate) struct ThreadPool {
    ptr: NonNull<sys::ggml_threadpool>,
    n_threads: u32,
}

// SAFETY: a pool has no thread affinity; only its owner hands it to the engine.
unsafe impl Send for ThreadPool {}

impl ThreadPool {
    /// Makes a pool of `wanted` threads, or of as many as the system gives.
    ///
    /// # Errors
    /// [`Error::HostShortage`] where not even a pool without other threads can be made.
    pub(crate) fn new(wanted: u32) -> Result<Self, Error> {
        // Their stacks are raised to what they need before the first one is made.
        worker_stack();
        for n_threads in (1..=wanted.clamp(1, MAX_THREADS)).rev() {
            // SAFETY: plain parameters for 1 to 512 threads; the pool is freed when this value is dropped.
            let made = unsafe {
                let mut params = sys::ggml_threadpool_params_default(n_threads as i32);
                sys::ggml_threadpool_new(&raw mut params)
            };
            if let Some(ptr) = NonNull::new(made) {
                if n_threads < wanted {
                    tracing::warn!("{wanted} threads asked for, {n_threads} used: the system makes no more");
                }
                return Ok(Self { ptr, n_threads });
            }
        }
        Err(Error::HostShortage { what: "a thread pool".into(), source: io::Error::last_os_error() })
    }

    /// How many threads it has.
    pub(crate) fn n_threads(&self) -> u32 {
        self.n_threads
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::ggml_threadpool {
        self.ptr.as_ptr()
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        // SAFETY: made by `new` and freed once; whoever uses it is gone by then (the context frees itself first).
        unsafe { sys::ggml_threadpool_free(self.ptr.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_refused_and_absurd_counts_are_clamped() {
        assert!(clamp(0).is_err());
        assert_eq!(clamp(1).ok(), Some(1));
        assert_eq!(clamp(u32::MAX).ok(), Some(available().min(MAX_THREADS)));
    }

    #[test]
    fn the_array_of_the_2b_shape_on_one_thread_is_14_megabytes() {
        // 6912 rows × 512 columns × 4 bytes, as measured when llama-bench died of it.
        let bytes = array_bytes(6912, 512, 1);
        assert!((14_155_776..14_200_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn workers_are_bounded_and_the_caller_is_not() {
        assert_eq!(max_columns(6912, 512, 1), 512);
        let columns = max_columns(1 << 20, 512, 2);
        assert!((4..512).contains(&columns) && columns.is_multiple_of(4), "{columns}");
    }
}
