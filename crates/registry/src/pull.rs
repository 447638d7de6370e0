//! Pull: what a channel points at, or a version by its name, as verified files.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::cache::Held;
use crate::channel::Channel;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::key::KeyId;
use crate::manifest::{FileEntry, Manifest, Role};
use crate::name::{ChannelName, SIGNATURE_FILE};
use crate::promotion;
use crate::registry::Registry;
use crate::transfer::write_file;

/// What a channel serves, believed.
#[derive(Debug, Clone)]
pub struct Served {
    /// The channel's state.
    pub channel: Channel,
    /// The number of the record that says so.
    pub number: u64,
    /// The version.
    pub manifest: Manifest,
}

/// What a pull did.
#[derive(Debug, Clone, Serialize)]
pub struct Pulled {
    /// The version.
    pub version: Digest,
    /// The channel and the number of its record; `None` for a version by its name.
    pub channel: Option<(ChannelName, u64)>,
    /// The key that signed the version.
    pub key: String,
    /// Whether a channel's policy says that this key counts. A version by its name is what its name says and no more.
    pub key_trusted: bool,
    /// The artefact.
    pub artifact: PathBuf,
    /// Every file that was written.
    pub files: Vec<PathBuf>,
    /// Nothing was written.
    pub dry_run: bool,
}

/// What to pull.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// What a channel points at.
    Channel(ChannelName),
    /// A version by its name.
    Version(Digest),
}

impl Target {
    /// Reads `sha256:…` or a channel's name.
    ///
    /// # Errors
    /// [`Error::Argument`].
    pub fn parse(text: &str) -> Result<Self> {
        if text.starts_with("sha256:") {
            Ok(Self::Version(Digest::parse(text)?))
        } else {
            ChannelName::parse(text).map(Self::Channel)
        }
    }
}

impl Registry {
    /// What a channel serves: record, policy, manifest, signature and lock checked. Three requests, and one for
    /// each record or policy that `current.json` lags behind. The files themselves are verified when they are fetched.
    ///
    /// # Errors
    /// [`Error::Untrusted`], [`Error::Refused`], [`Error::Log`], … if any of it is not believed.
    pub async fn served(&self, channel: &ChannelName) -> Result<Served> {
        let state = self.channel(channel).await?;
        self.served_by(state).await
    }

    /// What a channel in this state serves. One request.
    pub(crate) async fn served_by(&self, state: Channel) -> Result<Served> {
        let body = state.trusted_head()?.body();
        let (number, version, under) = (body.number, body.version, body.promoted_under);
        let manifest = self.manifest(version).await?;
        let reasons = promotion::fitness(&state.policy, &manifest, Some(under));
        if !reasons.is_empty() {
            return Err(Error::Refused { version, channel: state.name.to_string(), reasons });
        }
        Ok(Served { channel: state, number, manifest })
    }

    /// The artefact of what a channel serves, as a verified file in the cache.
    ///
    /// # Errors
    /// As [`Registry::served`]; [`Error::Argument`] without a cache; [`Error::Digest`] if the store's copy is damaged.
    pub async fn serve_file(&self, served: &Served) -> Result<PathBuf> {
        let artifact = served.manifest.version().artifact();
        self.fetch_cached(artifact.sha256, artifact.size, artifact.name.as_str()).await
    }

    /// As [`Registry::serve_file`], and held: it stays in the cache while the result is alive, whoever sweeps.
    ///
    /// # Errors
    /// As there; [`Error::Missing`] if something else than a sweep removes what is fetched.
    pub async fn serve_held(&self, served: &Served) -> Result<Held> {
        for _ in 0..3 {
            let path = self.serve_file(served).await?;
            if let Some(held) = Held::take(path)? {
                return Ok(held);
            }
        }
        let artifact = served.manifest.version().artifact();
        let object = format!("{} ({}), just fetched into the cache,", artifact.sha256, artifact.name);
        Err(Error::Missing { object, advice: "does something else clean the cache?" })
    }

    async fn resolve(&self, target: &Target) -> Result<(Manifest, Option<(ChannelName, u64)>)> {
        match target {
            Target::Channel(channel) => {
                let served = self.served(channel).await?;
                Ok((served.manifest, Some((channel.clone(), served.number))))
            }
            Target::Version(version) => Ok((self.manifest(*version).await?, None)),
        }
    }

    /// Writes a version's files and its signature (`model.sig`) into a folder. Each file is there whole and verified,
    /// or not at all; `model.sig` comes last, so a folder with it is complete.
    ///
    /// # Errors
    /// As [`Registry::served`]; [`Error::Exists`] if a file is there and `replace` is not set.
    pub async fn pull(
        &self,
        target: &Target,
        out: &Path,
        artifact_only: bool,
        replace: bool,
        dry_run: bool,
    ) -> Result<Pulled> {
        let (manifest, channel) = self.resolve(target).await?;
        let version = manifest.version();
        let artifact = version.kind.role();
        let wanted: Vec<&FileEntry> =
            version.files.iter().filter(|f| !artifact_only || is_artifact(f, artifact)).collect();
        let path_of = |file: &FileEntry| out.join(file.name.as_str());
        let signature = out.join(SIGNATURE_FILE);
        let mut files: Vec<PathBuf> = wanted.iter().map(|f| path_of(f)).collect();
        files.push(signature.clone());
        if !replace && let Some(path) = files.iter().find(|p| p.symlink_metadata().is_ok()) {
            return Err(Error::Exists { path: path.clone() });
        }
        let pulled = Pulled {
            version: manifest.digest(),
            key: KeyId::as_str(manifest.key()).to_owned(),
            key_trusted: channel.is_some(),
            channel,
            artifact: path_of(version.artifact()),
            files,
            dry_run,
        };
        if dry_run {
            return Ok(pulled);
        }
        std::fs::create_dir_all(out).map_err(Error::file(out))?;
        if replace && let Err(e) = std::fs::remove_file(&signature) {
            // A folder with a signature is complete; this one is about to be none.
            if e.kind() != std::io::ErrorKind::NotFound {
                return Err(Error::File { path: signature, source: e });
            }
        }
        for file in wanted {
            self.options().cancel.check()?;
            self.fetch(file.sha256, file.size, &path_of(file), file.name.as_str()).await?;
        }
        write_file(&signature, manifest.bytes())?;
        Ok(pulled)
    }
}

fn is_artifact(file: &FileEntry, role: Role) -> bool {
    file.role == role
}
