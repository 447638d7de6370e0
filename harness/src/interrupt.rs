//! Ctrl-C, SIGTERM and SIGHUP: no half-written file and no orphan stays behind.
//!
//! A command that can stop in an orderly way takes a flag ([`cooperate`]); the first interrupt sets it. Otherwise, and
//! the second time, temporary files are removed and the process ends with 130. SIGKILL cannot be answered; what is
//! temporary for the length of a run is therefore unnamed where that is possible ([`models::source`]).

use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::exit::Exit;

/// What the handler needs to know.
struct Watch {
    flag: Option<Arc<AtomicBool>>,
    on_first: Option<Box<dyn Fn() + Send>>,
}

static WATCH: Mutex<Watch> = Mutex::new(Watch { flag: None, on_first: None });

fn watch() -> MutexGuard<'static, Watch> {
    WATCH.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Installs the handler; once, before anything is written.
///
/// # Errors
/// When the system refuses a signal handler.
pub fn install() -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(|| {
        let watch = watch();
        if let Some(flag) = &watch.flag
            && !flag.swap(true, Ordering::SeqCst)
        {
            if let Some(act) = &watch.on_first {
                act();
            }
            return;
        }
        let _ = writeln!(io::stderr(), "interrupted");
        files::leftovers::remove_all_and_leave(Exit::Interrupted as i32);
    })
}

/// From now on the first interrupt sets the flag and calls `act`; it may be cleared to be set again.
pub fn cooperate(act: impl Fn() + Send + 'static) -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    let mut watch = watch();
    watch.flag = Some(Arc::clone(&flag));
    watch.on_first = Some(Box::new(act));
    flag
}
