//! The engine's log, as `tracing` events with target `bitnet.engine`.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use bitnet_sys as sys;

thread_local! {
    /// Error and warning lines of this thread since [`capture`] began; failures quote them.
    static CAPTURED: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Lines kept per captured call; the engine logs one line per control token of some vocabularies.
const CAPTURE_LIMIT: usize = 64;

/// Routes the engine's log to `tracing`. Called once, before any other engine function.
pub(crate) fn install() {
    // SAFETY: the callback is a static function without user data and never unwinds.
    unsafe { sys::llama_log_set(Some(on_line), std::ptr::null_mut()) };
}

/// Runs `call` and returns, beside its result, the engine's warnings and errors on this thread. An error is then the
/// caller's to report, or to expect (a cancelled decode): it is logged as a warning.
pub(crate) fn capture<T>(call: impl FnOnce() -> T) -> (T, Vec<String>) {
    let outer = CAPTURED.with(|c| c.replace(Some(Vec::new())));
    let value = call();
    let lines = CAPTURED.with(|c| c.replace(outer)).unwrap_or_default();
    (value, lines)
}

/// The captured line that says why, for an error message: the last one that names what the host lacks, since the engine
/// goes on to say that it failed, else the last.
pub(crate) fn reason(lines: &[String]) -> String {
    match lines.iter().rev().find(|line| files::shortage::is_named_in(line)).or(lines.last()) {
        Some(line) => line.clone(),
        None => "the engine gave no reason".to_owned(),
    }
}

unsafe extern "C" fn on_line(level: sys::ggml_log_level, text: *const c_char, _user: *mut c_void) {
    if text.is_null() {
        return;
    }
    // SAFETY: the engine passes a NUL-terminated line that lives through this call.
    let line = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let line = line.trim_end();
    if line.is_empty() {
        return;
    }
    // A panicking subscriber must not unwind into C.
    let _ = catch_unwind(AssertUnwindSafe(|| match level {
        sys::GGML_LOG_LEVEL_ERROR if keep(line) => tracing::warn!(target: "bitnet.engine", "{line}"),
        sys::GGML_LOG_LEVEL_ERROR => tracing::error!(target: "bitnet.engine", "{line}"),
        sys::GGML_LOG_LEVEL_WARN => {
            keep(line);
            tracing::warn!(target: "bitnet.engine", "{line}");
        }
        sys::GGML_LOG_LEVEL_INFO => tracing::debug!(target: "bitnet.engine", "{line}"),
        _ => tracing::trace!(target: "bitnet.engine", "{line}"),
    }));
}

/// Keeps a line where a call is captured; says whether one is.
fn keep(line: &str) -> bool {
    CAPTURED.with(|c| {
        let Ok(mut slot) = c.try_borrow_mut() else { return false };
        let Some(lines) = slot.as_mut() else { return false };
        if lines.len() == CAPTURE_LIMIT {
            lines.remove(0);
        }
        lines.push(line.to_owned());
        true
    })
}
