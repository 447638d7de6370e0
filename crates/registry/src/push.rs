//! Push: files become blobs, and a signed manifest that names them.

use std::path::PathBuf;

use serde::Serialize;

use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::gate_report::{self, GateReport};
use crate::judge::{self, JudgeReport};
use crate::key::SecretKey;
use crate::layout;
use crate::lock::{CartridgeLock, ModelLock};
use crate::manifest::{self, FileEntry, Kind, MAX_MANIFEST, Manifest, Parent, Role, Version};
use crate::name::{self, FileName};
use crate::redteam::{self, Receipt};
use crate::registry::Registry;
use crate::store::Created;
use crate::transfer::open_file;

/// A file to push.
#[derive(Debug, Clone)]
pub struct FileInput {
    /// What it is.
    pub role: Role,
    /// What it shall be called in a pulled folder; `None`: the name of `path`.
    pub name: Option<FileName>,
    /// Where it is.
    pub path: PathBuf,
}

/// What to push.
#[derive(Debug, Clone)]
pub struct PushRequest {
    /// What the artefact is.
    pub kind: Kind,
    /// For people: what the artefact is called, the same from version to version.
    pub name: FileName,
    /// Of a model: its hashes. Of a cartridge it must be `None`: its file says what it is locked to.
    pub model: Option<ModelLock>,
    /// The artefact and everything that travels with it.
    pub files: Vec<FileInput>,
    /// What it was made from and is not stored.
    pub parents: Vec<Parent>,
    /// Licence note.
    pub licence: String,
    /// For people.
    pub note: String,
    /// For people: who pushes.
    pub by: String,
    /// Hash, read and check everything, write nothing.
    pub dry_run: bool,
}

/// A file as it was pushed.
#[derive(Debug, Clone, Serialize)]
pub struct PushedFile {
    /// The entry in the manifest.
    #[serde(flatten)]
    pub entry: FileEntry,
    /// Whether bytes were sent; `false` if the store had them.
    pub sent: bool,
}

/// What a push did.
#[derive(Debug, Clone, Serialize)]
pub struct Pushed {
    /// The version's name: the digest of its manifest.
    pub version: Digest,
    /// Its files.
    pub files: Vec<PushedFile>,
    /// Whether the manifest is new; `false` if the same version was pushed before.
    pub created: bool,
    /// Nothing was written. With an ECDSA key the version's name will be another, as each signature is.
    pub dry_run: bool,
}

fn read_small(path: &std::path::Path, limit: u64) -> Result<Vec<u8>> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    open_file(path)?.take(limit + 1).read_to_end(&mut bytes).map_err(Error::file(path))?;
    if bytes.len() as u64 > limit {
        return Err(Error::TooLarge { object: path.display().to_string(), size: bytes.len() as u64, limit });
    }
    Ok(bytes)
}

impl Registry {
    /// Stores a version and signs it. Blobs go first and the manifest last, so a version that can be seen is whole.
    /// Interrupted, it is run again: what has arrived is not sent a second time.
    ///
    /// # Errors
    /// [`Error::Malformed`] and its like for files that are not what their role says, [`Error::File`],
    /// [`Error::Store`], [`Error::Busy`] during a garbage collection.
    pub async fn push(&self, request: &PushRequest, key: &SecretKey) -> Result<Pushed> {
        let names = request.files.iter().map(file_name).collect::<Result<Vec<_>>>()?;
        let (lock, metadata) = self.lock_of(request)?;
        for input in &request.files {
            let object = input.path.display().to_string();
            match input.role {
                // What no promotion could read is told now, by the one who can mend it.
                Role::GateReport => {
                    GateReport::parse(&object, &read_small(&input.path, gate_report::MAX_REPORT)?)?;
                }
                Role::Redteam => {
                    Receipt::parse(&object, &read_small(&input.path, redteam::MAX_RECEIPT)?)?;
                }
                Role::Judge => {
                    JudgeReport::parse(&object, &read_small(&input.path, judge::MAX_REPORT)?)?;
                }
                _ => {
                    open_file(&input.path)?;
                }
            }
        }
        name::text("by", &request.by)?;
        let lease = if request.dry_run { None } else { Some(self.lease_push(&request.by).await?) };
        let pushed = self.push_leased(request, key, names, lock, metadata).await;
        if let Some(lease) = lease {
            // The push stands, whether or not its lease could be taken away; an old one is ignored.
            let released = self.release(lease).await;
            if let (Ok(_), Err(e)) = (&pushed, released) {
                tracing::warn!("the push's lease was not removed: {e}");
            }
        }
        pushed
    }

    async fn push_leased(
        &self,
        request: &PushRequest,
        key: &SecretKey,
        names: Vec<FileName>,
        model: ModelLock,
        cartridge: std::collections::BTreeMap<String, String>,
    ) -> Result<Pushed> {
        let mut files = Vec::new();
        for (input, name) in request.files.iter().zip(names) {
            self.options().cancel.check()?;
            let (sha256, size, sent) = if request.dry_run {
                let (digest, size) = self.hash_file(&input.path, name.as_str()).await?;
                (digest, size, false)
            } else {
                let stored = self.store_file(&input.path, name.as_str()).await?;
                (stored.digest, stored.size, stored.sent)
            };
            files.push(PushedFile { entry: FileEntry { role: input.role, name, sha256, size }, sent });
        }
        let version = Version {
            schema: manifest::SCHEMA.into(),
            kind: request.kind,
            name: request.name.clone(),
            model,
            cartridge,
            files: files.iter().map(|f| f.entry.clone()).collect(),
            parents: request.parents.clone(),
            licence: request.licence.clone(),
            note: request.note.clone(),
            by: request.by.clone(),
        };
        let manifest = Manifest::sign(version, key)?;
        self.options().cancel.check()?;
        let created = !request.dry_run && self.store_manifest(&manifest).await?;
        Ok(Pushed { version: manifest.digest(), files, created, dry_run: request.dry_run })
    }

    /// Whether it is new.
    pub(crate) async fn store_manifest(&self, manifest: &Manifest) -> Result<bool> {
        let path = layout::manifest(&manifest.digest());
        if let Some(found) = self.store().get(&path, MAX_MANIFEST).await?
            && found == *manifest.bytes()
        {
            return Ok(false);
        }
        match self.store().create(&path, manifest.bytes(), MAX_MANIFEST).await? {
            Created::Ours => Ok(true),
            Created::Theirs(_) => {
                // The name says what the bytes must be: others are damage, and are mended.
                self.store().put(&path, manifest.bytes()).await?;
                Ok(true)
            }
        }
    }

    fn lock_of(&self, request: &PushRequest) -> Result<(ModelLock, std::collections::BTreeMap<String, String>)> {
        let wrong = |problem: &str| Error::Argument { what: "model", value: String::new(), problem: problem.into() };
        match (request.kind, &request.model) {
            (Kind::Model, Some(model)) => Ok((model.clone(), Default::default())),
            (Kind::Model, None) => Err(wrong("hashes are missing; give those that `model inspect` prints")),
            (Kind::Cartridge, Some(_)) => Err(wrong("hashes were given; a cartridge's file says what it is locked to")),
            (Kind::Cartridge, None) => {
                let artifact = request.files.iter().find(|f| f.role == Role::Cartridge);
                let artifact = artifact.ok_or_else(|| Error::malformed("the new version", "has no cartridge"))?;
                let file = std::io::BufReader::new(open_file(&artifact.path)?);
                let lock = CartridgeLock::read(&artifact.path.display().to_string(), file)?;
                Ok((lock.model, lock.metadata))
            }
        }
    }
}

fn file_name(input: &FileInput) -> Result<FileName> {
    match &input.name {
        Some(name) => Ok(name.clone()),
        None => FileName::parse(&input.path.file_name().unwrap_or_default().to_string_lossy()),
    }
}
