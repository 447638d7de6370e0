//! One-time start-up of the engine: log callback, CPU check, kernel self-test, `llama_backend_init`.

use std::sync::OnceLock;

use bitnet_sys as sys;

use crate::cpu::CpuFeatures;
use crate::{Error, engine_log, kernels, status};

static STARTED: OnceLock<Result<(), StartError>> = OnceLock::new();

/// A start-up failure, kept so that every later call repeats it.
#[derive(Clone, Debug)]
enum StartError {
    Cpu { missing: String, march: String },
    Kernel { expected: i64, found: i64 },
    Native { message: String },
}

/// Starts the engine if nobody did; idempotent, from any thread. It is never shut down: the engine's
/// `llama_backend_free` only matters for MPI, and models may outlive any owner that could call it.
///
/// # Errors
/// [`Error::UnsupportedCpu`] where compiled and present instruction sets do not fit,
/// [`Error::KernelSelfTest`] where a known ternary row gives a wrong result.
pub fn start() -> Result<(), Error> {
    STARTED.get_or_init(start_once).clone().map_err(|e| match e {
        StartError::Cpu { missing, march } => Error::UnsupportedCpu { missing, march },
        StartError::Kernel { expected, found } => Error::KernelSelfTest { expected, found },
        StartError::Native { message } => Error::Native { function: "llama_backend_init", message },
    })
}

fn start_once() -> Result<(), StartError> {
    engine_log::install();
    CpuFeatures::detect().require().map_err(|e| match e {
        Error::UnsupportedCpu { missing, march } => StartError::Cpu { missing, march },
        other => StartError::Native { message: other.to_string() },
    })?;
    let (expected, found) = kernels::known_row();
    if expected != found {
        return Err(StartError::Kernel { expected, found });
    }
    // SAFETY: takes no arguments; called once.
    status::checked("llama_backend_init", |st| unsafe { sys::bn_backend_init(st) })
        .map_err(|e| StartError::Native { message: e.to_string() })
}
