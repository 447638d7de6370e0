//! The settings that a sweep found best, where a command leaves them open.

use std::ops::ControlFlow;

use bitnet_rs::Model;

use super::CliError;
use crate::bench::profile::{Place, Profile, ProfileError};

/// Threads and micro-batch of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    /// Threads.
    pub(super) threads: u32,
    /// Micro-batch; the wrapper's default where nothing was measured.
    pub(super) n_ubatch: Option<u32>,
}

pub(super) fn error(e: ProfileError) -> CliError {
    match e {
        ProfileError::Content { .. } | ProfileError::Locked { .. } => CliError::Refused(e.to_string()),
        ProfileError::Io { .. } | ProfileError::NoFolder => CliError::Usage(e.to_string()),
        other => CliError::Failed(other.to_string()),
    }
}

/// What `--threads` says, else the profile of this model on this CPU, else all CPUs.
pub(super) fn settings(model: &Model, threads: Option<u32>) -> Result<Settings, CliError> {
    if threads.is_some() {
        return Ok(Settings { threads: super::gates::threads(threads)?, n_ubatch: None });
    }
    let profile = of(model)?;
    Ok(Settings {
        threads: super::gates::threads(profile.as_ref().map(|p| p.threads))?,
        n_ubatch: profile.map(|p| p.n_ubatch),
    })
}

fn of(model: &Model) -> Result<Option<Profile>, CliError> {
    let file = model.file();
    let mut hash = || {
        let hash = file.file().file_hash(&mut |_, _| ControlFlow::Continue(()));
        hash.map(|h| h.to_string()).map_err(|e| e.to_string())
    };
    let found = Place::from_env().find(model.path(), file.gguf().file_len(), &super::gates::cpu_model(), &mut hash);
    Ok(found.map_err(error)?.map(|(_, profile)| profile))
}
