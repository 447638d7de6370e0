//! A registry for cartridges and models: content-addressed, signed, gated, rolled back by moving a pointer.
//!
//! A *version* is a set of files (the artefact, its gate report, its red-team receipt, what it was made from) under one
//! signed manifest; its name is the manifest's SHA-256. A *channel* is a log of signed records, each pointing at a
//! version; the newest is what the channel serves. *Promotion* appends a record if the channel's policy allows the
//! version; *rollback* appends one that points at an earlier version. Nothing is ever changed in place.
//!
//! There is no server: the registry is a layout of objects (docs/formats/registry.md) in a local folder or an
//! S3-compatible store. The one thing asked of the store is that it refuses a second write to an existing name; on that
//! stands the order of the log, also with many writers and with any of them killed at any moment.
//!
//! Nothing read from a store is believed before it was checked: sizes are bounded, a digest names every file, the
//! operator's signature stands under every policy, a promoter's under every record, and a version counts only if the
//! policy trusts its signer.
#![forbid(unsafe_code)]

pub mod blocking;
mod cache;
mod channel;
mod digest;
mod envelope;
mod error;
mod follow;
mod gate_report;
mod gc;
mod judge;
pub mod key;
mod layout;
mod lease;
mod lock;
mod manifest;
mod memory;
mod mirror;
mod name;
mod policy;
mod promote;
mod promotion;
mod pull;
mod push;
mod record;
pub mod redteam;
mod refusal;
mod registry;
mod schema;
mod shown;
mod store;
mod transfer;
mod verify;
mod view;

pub use cache::{Held, Swept, sweep};
pub use channel::Channel;
pub use digest::{Digest, NotADigest};
pub use error::{Class, Error, Result};
pub use follow::{Current, Follow, Follower};
pub use gate_report::{Checks, Gate, GateReport, Input, ReportModel, Verdict};
pub use gc::{Collected, Kept};
pub use judge::JudgeReport;
pub use key::{Algorithm, KeyId, PublicKey, SecretKey};
pub use lock::{CartridgeLock, ModelLock};
pub use manifest::{FileEntry, Kind, Manifest, Parent, Role, Version};
pub use mirror::Mirrored;
pub use name::{ChannelName, FileName, MAX_TEXT, SIGNATURE_FILE};
pub use policy::{KeyRole, KeyState, ModelRule, Policy, RedteamRule, Retention, Rules, TrustedKey};
pub use promote::{Decision, Promoted};
pub use pull::{Pulled, Served, Target};
pub use push::{FileInput, PushRequest, Pushed, PushedFile};
pub use record::{Action, Evidence, GateEvidence, PolicyRef, Record, RecordBody};
pub use refusal::Refusal;
pub use registry::{Cancel, Initialised, Options, Progress, Registry, Step, Trust};
pub use store::{Location, Retry, Store};
pub use verify::{Finding, Verified};
pub use view::{ListedChannel, ListedVersion, Listing, LoggedRecord, Shown, ShownPolicy};
