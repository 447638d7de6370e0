//! List, show and log: what a registry says about itself, for people and machines.

use futures_util::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use serde::Serialize;

use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::layout;
use crate::manifest::{Kind, Version};
use crate::name::ChannelName;
use crate::policy::Rules;
use crate::promotion;
use crate::pull::Target;
use crate::record::RecordBody;
use crate::refusal::Refusal;
use crate::registry::Registry;

/// Manifests that are read at once.
const PARALLEL: usize = 8;
/// The most versions that are listed with what they are.
const MAX_LISTED: usize = 10_000;

/// A version in a list.
#[derive(Debug, Clone, Serialize)]
pub struct ListedVersion {
    /// Its name.
    pub version: Digest,
    /// What its artefact is; `None` if the manifest could not be read.
    pub kind: Option<Kind>,
    /// What the artefact is called.
    pub name: Option<String>,
    /// The model.
    pub model_id: Option<String>,
    /// The artefact's size in bytes.
    pub size: Option<u64>,
    /// Why the manifest could not be read.
    pub problem: Option<String>,
    /// When it was stored, by the store's clock, seconds since 1970-01-01 UTC.
    pub stored_unix: i64,
    /// The channels that point at it.
    pub channels: Vec<ChannelName>,
}

/// A channel in a list.
#[derive(Debug, Clone, Serialize)]
pub struct ListedChannel {
    /// Its name.
    pub channel: String,
    /// What it points at.
    pub version: Option<Digest>,
    /// The newest record.
    pub number: Option<u64>,
    /// Why it is not believed.
    pub problem: Option<String>,
}

/// Everything in a registry.
#[derive(Debug, Clone, Serialize)]
pub struct Listing {
    /// The registry's id.
    pub id: String,
    /// Its channels.
    pub channels: Vec<ListedChannel>,
    /// Its versions.
    pub versions: Vec<ListedVersion>,
}

/// A version or channel in detail.
#[derive(Debug, Clone, Serialize)]
pub struct Shown {
    /// The version.
    pub version: Digest,
    /// The key that signed it.
    pub key: String,
    /// Why the channel's policy refuses it, if it does.
    pub refusals: Vec<Refusal>,
    /// Why the channel's record is not believed, if it is not.
    pub problem: Option<String>,
    /// The channel's newest record; `None` for a version by its name.
    pub record: Option<RecordBody>,
    /// The channel's policy.
    pub policy: Option<ShownPolicy>,
    /// What was wrong and could be mended.
    pub warnings: Vec<String>,
    /// The manifest's content.
    pub manifest: Version,
}

/// A policy in detail.
#[derive(Debug, Clone, Serialize)]
pub struct ShownPolicy {
    /// Its serial.
    pub serial: u64,
    /// The operator's key.
    pub key: String,
    /// Who set it.
    pub by: String,
    /// Why.
    pub why: String,
    /// The rules.
    pub rules: Rules,
}

/// A record in a log.
#[derive(Debug, Clone, Serialize)]
pub struct LoggedRecord {
    /// Its digest.
    pub sha256: Digest,
    /// The key that signed it.
    pub key: String,
    /// Why it does not count under the newest policy, if it does not.
    pub problem: Option<String>,
    /// What it says.
    #[serde(flatten)]
    pub body: RecordBody,
}

impl Registry {
    /// The names of all channels; names that are none are left out.
    pub async fn channels(&self) -> Result<Vec<ChannelName>> {
        let folders = self.store().folders(&Path::from(layout::CHANNELS)).await?;
        let mut names: Vec<ChannelName> =
            folders.iter().filter_map(|p| ChannelName::parse(p.filename()?).ok()).collect();
        names.sort();
        Ok(names)
    }

    /// Every channel and version. A request a version: for people, not for programs that follow a channel.
    ///
    /// # Errors
    /// [`Error::Store`]; [`Error::TooLarge`] for more than 10,000 versions.
    pub async fn list(&self) -> Result<Listing> {
        let mut channels = Vec::new();
        let mut pointed: Vec<(Digest, ChannelName)> = Vec::new();
        for name in self.channels().await? {
            self.options().cancel.check()?;
            let mut listed = ListedChannel { channel: name.to_string(), version: None, number: None, problem: None };
            match self.channel(&name).await {
                Ok(state) => {
                    if let Some(head) = &state.head {
                        listed.version = Some(head.body().version);
                        listed.number = Some(head.body().number);
                        listed.problem = head.trust(&state.policy).err().map(|e| e.to_string());
                        pointed.push((head.body().version, name));
                    }
                }
                Err(e @ Error::Store { .. }) => return Err(e),
                Err(e) => listed.problem = Some(e.to_string()),
            }
            channels.push(listed);
        }
        let found = self.store().list(&Path::from(layout::MANIFESTS), None).await?;
        if found.len() > MAX_LISTED {
            return Err(Error::TooLarge {
                object: "the list of versions".into(),
                size: found.len() as u64,
                limit: MAX_LISTED as u64,
            });
        }
        let pointed = &pointed;
        let versions = futures_util::stream::iter(found)
            .filter_map(|meta| async move { layout::digest(&meta.location).map(|digest| (digest, meta)) })
            .map(|(version, meta)| async move {
                self.options().cancel.check()?;
                let mut listed = ListedVersion {
                    version,
                    kind: None,
                    name: None,
                    model_id: None,
                    size: None,
                    problem: None,
                    stored_unix: meta.last_modified.timestamp(),
                    channels: pointed.iter().filter(|(d, _)| *d == version).map(|(_, c)| c.clone()).collect(),
                };
                match self.manifest(version).await {
                    Ok(manifest) => {
                        let version = manifest.version();
                        listed.kind = Some(version.kind);
                        listed.name = Some(version.name.to_string());
                        listed.model_id = Some(version.model.model_id.clone());
                        listed.size = Some(version.artifact().size);
                    }
                    Err(e @ Error::Store { .. }) => return Err(e),
                    Err(e) => listed.problem = Some(e.to_string()),
                }
                Ok(listed)
            })
            .buffered(PARALLEL)
            .try_collect()
            .await?;
        Ok(Listing { id: self.id().to_owned(), channels, versions })
    }

    /// A channel's state and version, or a version by its name, also where it is not believed: that is shown.
    ///
    /// # Errors
    /// What could not be read at all.
    pub async fn show(&self, target: &Target) -> Result<Shown> {
        match target {
            Target::Version(version) => {
                let manifest = self.manifest(*version).await?;
                Ok(Shown {
                    version: *version,
                    key: manifest.key().as_str().to_owned(),
                    refusals: Vec::new(),
                    problem: None,
                    record: None,
                    policy: None,
                    warnings: Vec::new(),
                    manifest: manifest.version().clone(),
                })
            }
            Target::Channel(name) => {
                let state = self.channel(name).await?;
                let head = state.head.as_ref().ok_or_else(|| Error::EmptyChannel { channel: name.to_string() })?;
                let manifest = self.manifest(head.body().version).await?;
                let policy = &state.policy;
                Ok(Shown {
                    version: manifest.digest(),
                    key: manifest.key().as_str().to_owned(),
                    refusals: promotion::fitness(policy, &manifest, Some(head.body().promoted_under)),
                    problem: head.trust(policy).err().map(|e| e.to_string()),
                    record: Some(head.body().clone()),
                    policy: Some(ShownPolicy {
                        serial: policy.serial(),
                        key: policy.key().as_str().to_owned(),
                        by: policy.by().to_owned(),
                        why: policy.why().to_owned(),
                        rules: policy.rules().clone(),
                    }),
                    warnings: state.warnings.clone(),
                    manifest: manifest.version().clone(),
                })
            }
        }
    }

    /// The newest `limit` records of a channel, newest first, each checked against the one before.
    ///
    /// # Errors
    /// [`Error::Log`] where they do not follow one another; [`Error::NoChannel`].
    pub async fn log(&self, channel: &ChannelName, limit: u64) -> Result<Vec<LoggedRecord>> {
        let state = self.channel(channel).await?;
        let Some(head) = &state.head else { return Ok(Vec::new()) };
        let records = self.records_back(channel, head, limit.max(1)).await?;
        Ok(records
            .into_iter()
            .map(|r| LoggedRecord {
                sha256: r.digest(),
                key: r.key().as_str().to_owned(),
                problem: r.trust(&state.policy).err().map(|e| e.to_string()),
                body: r.body().clone(),
            })
            .collect())
    }
}
