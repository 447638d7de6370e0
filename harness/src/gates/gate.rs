//! What all gates share: their names, what they are given, why one cannot go on, and what a planted fault came to.

use std::path::PathBuf;

use super::thresholds::Thresholds;
use crate::report::FaultReport;
use files::children::Children;
use models::faults::FaultError;
use models::source::ModelSource;

/// A gate of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GateId {
    /// 0.
    FirstLight,
    /// 1.
    Kernel,
    /// 2.
    Model,
    /// 3a.
    RoundTrip,
    /// 3b.
    Bridge,
    /// 4.
    Grammar,
    /// 5.
    Agent,
}

impl GateId {
    /// In the order in which they run.
    pub const ALL: [Self; 7] =
        [Self::FirstLight, Self::Kernel, Self::Model, Self::RoundTrip, Self::Bridge, Self::Grammar, Self::Agent];

    /// As users name it.
    pub fn id(self) -> &'static str {
        match self {
            Self::FirstLight => "0",
            Self::Kernel => "1",
            Self::Model => "2",
            Self::RoundTrip => "3a",
            Self::Bridge => "3b",
            Self::Grammar => "4",
            Self::Agent => "5",
        }
    }

    /// What it proves, in a few words.
    pub fn title(self) -> &'static str {
        match self {
            Self::FirstLight => "first light",
            Self::Kernel => "ternary kernel exact",
            Self::Model => "model logits",
            Self::RoundTrip => "native state round trip",
            Self::Bridge => "external bridge",
            Self::Grammar => "tool grammar",
            Self::Agent => "agent boundary",
        }
    }

    /// The gate with that name.
    pub fn from_id(id: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|g| g.id() == id)
    }
}

/// What a gate run is given.
#[derive(Clone, Debug)]
pub struct GateInputs {
    /// The model under test.
    pub model: ModelSource,
    /// What starts processes of its own.
    pub children: Children,
    /// Compute threads.
    pub threads: u32,
    /// Plan a stated subset.
    pub quick: bool,
    /// Reference logits for gate 2, if not the embedded model's.
    pub reference: Option<PathBuf>,
    /// More agent cases for gate 5.
    pub cases: Option<PathBuf>,
    /// Thresholds.
    pub thresholds: Thresholds,
}

impl GateInputs {
    /// The last line by which a process says that the host lacks something. The names of its inputs are not its own words.
    pub(super) fn shortage_in<'s>(&self, said: &'s [String]) -> Option<&'s String> {
        let model = match &self.model {
            ModelSource::File(path) => Some(path),
            _ => None,
        };
        let paths: Vec<_> = [model, self.reference.as_ref(), self.cases.as_ref()].into_iter().flatten().collect();
        said.iter().rev().find(|line| {
            let own = paths.iter().fold((*line).clone(), |line, path| line.replace(&*path.to_string_lossy(), ""));
            files::shortage::is_named_in(&own)
        })
    }
}

/// Why a gate could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GateError {
    /// The engine refused or failed.
    #[error(transparent)]
    Engine(#[from] bitnet_rs::Error),
    /// A file could not be read or written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The user interrupted a process of the gate; nothing is known about the model.
    #[error("interrupted")]
    Interrupted,
    /// A file could not be mapped.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The model has no room for what the gate does, or its template does not take it; nothing is known.
    #[error("{message}")]
    Unmeasurable {
        /// Stable name of the kind.
        code: &'static str,
        /// Why.
        message: String,
    },
    /// A process of the gate ended for want of something that the host lacks; nothing is known.
    #[error("{0}")]
    Shortage(String),
    /// A library refused or failed.
    #[error("{0}")]
    Cause(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Something that the gate's own arithmetic refused.
    #[error("{0}")]
    Other(String),
}

impl GateError {
    /// Another library's error, as a value.
    pub(super) fn cause(e: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Cause(Box::new(e))
    }

    /// Whether the host lacks something, told from the errors themselves and never from foreign text in a message.
    pub fn is_host_shortage(&self) -> bool {
        let first: &(dyn std::error::Error + 'static) = match self {
            Self::Shortage(_) => return true,
            Self::Engine(e) => e,
            Self::Io(e) | Self::File { source: e, .. } => e,
            Self::Cause(e) => e.as_ref(),
            Self::Interrupted | Self::Unmeasurable { .. } | Self::Other(_) => return false,
        };
        let engine = |e: &(dyn std::error::Error + 'static)| {
            e.downcast_ref::<bitnet_rs::Error>().is_some_and(bitnet_rs::Error::is_host_shortage)
        };
        files::shortage::is_in(first) || std::iter::successors(Some(first), |&e| e.source()).any(engine)
    }

    /// With the file that the system's error is about.
    pub(super) fn file(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self {
        |source| Self::File { path: path.to_owned(), source }
    }
}

impl From<reference::i2s::I2sError> for GateError {
    fn from(e: reference::i2s::I2sError) -> Self {
        Self::cause(e)
    }
}

pub(crate) fn fault(gate: GateId, fault: &str, caught: bool, evidence: impl Into<String>) -> FaultReport {
    FaultReport {
        gate: gate.id().into(),
        fault: fault.into(),
        caught,
        not_applicable: false,
        evidence: evidence.into(),
    }
}

/// A fault that this model has no place for.
pub(crate) fn not_applicable(gate: GateId, name: &str, why: impl Into<String>) -> FaultReport {
    FaultReport { not_applicable: true, ..fault(gate, name, false, why) }
}

/// A copy with the fault could not be made: the model has no place for it, or something went wrong.
pub(crate) fn not_planted(gate: GateId, name: &str, e: &FaultError) -> FaultReport {
    if e.has_no_place() { not_applicable(gate, name, e.to_string()) } else { fault(gate, name, false, e.to_string()) }
}

/// `sha256:…` of bytes in memory.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    gguf::Sha256Hash::of(bytes).to_string()
}
