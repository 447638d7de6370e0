//! What can go wrong, in terms that a caller can act on.

use std::path::PathBuf;

use crate::digest::{Digest, NotADigest};
use crate::refusal::Refusal;

pub(crate) use crate::shown::shown;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// How an error counts for a program's exit code (`docs/formats/exit-codes.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Class {
    /// The request itself is wrong: a name, a location, a missing key. Exit code 2.
    Usage,
    /// What was read is not accepted: a forged record, a gate that is not PASS. Exit code 4.
    Refused,
    /// What was asked was tried and failed: the store, the disk, a race that was lost. Exit code 1.
    Failed,
    /// The caller cancelled. Exit code 130.
    Interrupted,
}

/// Why an operation of the registry did not happen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument has no meaning here.
    #[error("{what} `{value}` {problem}")]
    Argument {
        /// Which argument.
        what: &'static str,
        /// What was given, shortened.
        value: String,
        /// What is wrong with it and what would be right.
        problem: String,
    },
    /// The store's folder or bucket holds no registry.
    #[error("{location} holds no registry (no registry.json); make one with `init`, or check the location")]
    NoRegistry {
        /// The store.
        location: String,
    },
    /// `init` where something else, or another registry, is.
    #[error("{location} already holds the registry {id}")]
    RegistryExists {
        /// The store.
        location: String,
        /// Its id.
        id: String,
    },
    /// The store cannot refuse a second write to a name, so two promotions could overwrite each other.
    #[error(
        "{location} {problem}; a registry needs a store that refuses a second write to an existing name \
         (If-None-Match: * on PUT). Use a local folder or an S3-compatible server with conditional writes"
    )]
    Unconditional {
        /// The store.
        location: String,
        /// What the probe saw.
        problem: String,
    },
    /// The store said no, or nothing, more often than we ask again.
    #[error("{location}: cannot {doing} {object}: {source}")]
    Store {
        /// The store.
        location: String,
        /// The verb.
        doing: &'static str,
        /// The object's path in the store.
        object: String,
        /// What the store said.
        source: Box<object_store::Error>,
    },
    /// A file of the caller's could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// An object that something refers to is not in the store.
    #[error("{object} is missing from the store; {advice}")]
    Missing {
        /// The object's path in the store.
        object: String,
        /// What to do.
        advice: &'static str,
    },
    /// The bytes are not those of the name.
    #[error("{object}: its bytes have the digest {found}, not {expected}; {advice}")]
    Digest {
        /// The object or file.
        object: String,
        /// What the reference says.
        expected: Digest,
        /// What the bytes say.
        found: Digest,
        /// What to do.
        advice: &'static str,
    },
    /// An object is larger than any honest one.
    #[error("{object} has {size} bytes; the limit is {limit}")]
    TooLarge {
        /// The object or file.
        object: String,
        /// Its size in bytes, or the number read when the limit was passed.
        size: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// An object does not have the documented form.
    #[error("{object} {problem}")]
    Malformed {
        /// The object or file.
        object: String,
        /// Field, value and limit.
        problem: String,
    },
    /// An object of an earlier format version.
    #[error("{object} is of the form {found}, which is too old: this program reads {reads}")]
    TooOld {
        /// The object or file.
        object: String,
        /// Its `schema`.
        found: String,
        /// What is read.
        reads: &'static str,
    },
    /// An object of a later format version.
    #[error("{object} is of the form {found}, which is too new: this program reads {reads}; use a newer program")]
    TooNew {
        /// The object or file.
        object: String,
        /// Its `schema`.
        found: String,
        /// What is read.
        reads: &'static str,
    },
    /// A signature does not hold, or not by a key that may sign this.
    #[error("{object} is not believed: {problem}")]
    Untrusted {
        /// The object.
        object: String,
        /// Which key, and why not.
        problem: String,
    },
    /// The log contradicts itself, or what this machine saw of it before.
    #[error("the log of channel {channel} is not believed: {problem}")]
    Log {
        /// The channel.
        channel: String,
        /// Record numbers and what is wrong.
        problem: String,
    },
    /// The channel has no policy.
    #[error("there is no channel {channel} in {location}; the operator makes one by setting its policy")]
    NoChannel {
        /// The channel.
        channel: String,
        /// The store.
        location: String,
    },
    /// The channel has a policy and nothing was promoted yet.
    #[error("nothing was promoted to channel {channel} yet")]
    EmptyChannel {
        /// The channel.
        channel: String,
    },
    /// Somebody else wrote the next record first.
    #[error(
        "another writer was first: {object} was written by {by} ({what}); look at the channel again and decide anew"
    )]
    Conflict {
        /// The object both wanted to write.
        object: String,
        /// Who won.
        by: String,
        /// What they wrote.
        what: String,
    },
    /// The channel's policy does not allow the version.
    #[error("version {version} is refused for channel {channel}:{}", list(reasons))]
    Refused {
        /// The version.
        version: Digest,
        /// The channel.
        channel: String,
        /// Every reason, not only the first.
        reasons: Vec<Refusal>,
    },
    /// A garbage collection and another writer exclude each other.
    #[error("{problem}")]
    Busy {
        /// Who is in the way, since when, what to do.
        problem: String,
    },
    /// A key file is not usable.
    #[error("{}: {problem}", path.display())]
    Key {
        /// The key file.
        path: PathBuf,
        /// What is wrong and what to do.
        problem: String,
    },
    /// The output is there already.
    #[error("{} exists; name another folder, or allow replacing it", path.display())]
    Exists {
        /// The output.
        path: PathBuf,
    },
    /// The caller cancelled.
    #[error("cancelled; nothing that was complete is lost, and running it again goes on")]
    Cancelled,
}

fn list(reasons: &[Refusal]) -> String {
    reasons.iter().map(|r| format!("\n  - {}: {}", r.code, r.message)).collect()
}

impl Error {
    /// How the error counts for an exit code.
    pub fn class(&self) -> Class {
        match self {
            Self::Argument { .. }
            | Self::NoRegistry { .. }
            | Self::RegistryExists { .. }
            | Self::Unconditional { .. }
            | Self::File { .. }
            | Self::NoChannel { .. }
            | Self::EmptyChannel { .. }
            | Self::Key { .. }
            | Self::Exists { .. } => Class::Usage,
            Self::Digest { .. }
            | Self::TooLarge { .. }
            | Self::Malformed { .. }
            | Self::TooOld { .. }
            | Self::TooNew { .. }
            | Self::Untrusted { .. }
            | Self::Log { .. }
            | Self::Refused { .. } => Class::Refused,
            Self::Store { .. } | Self::Missing { .. } | Self::Conflict { .. } | Self::Busy { .. } => Class::Failed,
            Self::Cancelled => Class::Interrupted,
        }
    }

    pub(crate) fn malformed(object: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Malformed { object: object.into(), problem: problem.into() }
    }

    pub(crate) fn untrusted(object: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Untrusted { object: object.into(), problem: problem.into() }
    }

    pub(crate) fn file(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::File { path, source }
    }
}

impl From<NotADigest> for Error {
    fn from(NotADigest(value): NotADigest) -> Self {
        Self::Argument {
            what: "digest",
            value,
            problem: "is not `sha256:` and 64 lower-case hexadecimal digits".into(),
        }
    }
}
