//! A version: which files, of what, for which model, made from what, signed by whom.
//!
//! The object in the store is a Sigstore bundle of the OpenSSF's model signing (predicate
//! `https://model_signing/signature/v1.0`) whose predicate carries our `version` beside `resources`. So the signature
//! covers every word of it, the object *is* the `model.sig` of a pulled folder, and its SHA-256 is the version's name.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::digest::{Digest, Hasher};
use crate::envelope::{Signed, Subject};
use crate::error::{Error, Result};
use crate::key::{KeyId, PublicKey, SecretKey};
use crate::lock::ModelLock;
use crate::name::{self, FileName, SIGNATURE_FILE};

pub(crate) const SCHEMA: &str = "bitnet-harness.registry-manifest/1";
const PREDICATE: &str = "https://model_signing/signature/v1.0";
/// The largest manifest, in bytes.
pub(crate) const MAX_MANIFEST: u64 = 1 << 20;
const MAX_FILES: usize = 64;

/// What a file of a version is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Role {
    /// The artefact of a cartridge version.
    Cartridge,
    /// The artefact of a model version (GGUF).
    Model,
    /// `harness gates --format json`.
    GateReport,
    /// The receipt of the red-team suite.
    Redteam,
    /// The red-team suite itself.
    RedteamSuite,
    /// The judge's report of a compact or trained cartridge.
    Judge,
    /// The text that the cartridge stands for.
    SourceText,
    /// The full cartridge that a compact one was made from.
    FullCartridge,
    /// How it was made.
    Recipe,
    /// The licence's text.
    Licence,
    /// Anything else that shall travel along.
    Other,
}

impl Role {
    /// As it is written in a manifest.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cartridge => "cartridge",
            Self::Model => "model",
            Self::GateReport => "gate-report",
            Self::Redteam => "redteam",
            Self::RedteamSuite => "redteam-suite",
            Self::Judge => "judge",
            Self::SourceText => "source-text",
            Self::FullCartridge => "full-cartridge",
            Self::Recipe => "recipe",
            Self::Licence => "licence",
            Self::Other => "other",
        }
    }

    fn at_most_one(self) -> bool {
        !matches!(self, Self::SourceText | Self::Other)
    }
}

/// What a version's artefact is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A cartridge (safetensors).
    Cartridge,
    /// A model (GGUF).
    Model,
}

impl Kind {
    /// The role of the artefact's file.
    pub fn role(self) -> Role {
        match self {
            Self::Cartridge => Role::Cartridge,
            Self::Model => Role::Model,
        }
    }
}

/// A file of a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// What it is.
    pub role: Role,
    /// What it is called in a pulled folder.
    pub name: FileName,
    /// Its content, and so its blob.
    pub sha256: Digest,
    /// Its size in bytes.
    pub size: u64,
}

/// Something the version was made from and that is not stored with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parent {
    /// What it is.
    pub role: Role,
    /// Its content.
    pub sha256: Digest,
    /// For people: where it came from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub title: String,
}

/// The content of a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Version {
    /// `bitnet-harness.registry-manifest/1`.
    pub schema: String,
    /// What the artefact is.
    pub kind: Kind,
    /// For people: what the artefact is called, the same from version to version.
    pub name: FileName,
    /// The model it is locked to; of a model, its own hashes.
    pub model: ModelLock,
    /// Of a cartridge: layout, number of tokens and the other documented metadata.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cartridge: BTreeMap<String, String>,
    /// All files, sorted by name.
    pub files: Vec<FileEntry>,
    /// What it was made from and is not among the files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parents: Vec<Parent>,
    /// Licence note: an SPDX expression or a sentence.
    pub licence: String,
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// For people: who pushed it. No time is written down: the same content, pushed again after an interruption with
    /// the same Ed25519 key, is the same version.
    pub by: String,
}

impl Version {
    /// The file that the version is about.
    pub fn artifact(&self) -> &FileEntry {
        self.files.iter().find(|f| f.role == self.kind.role()).expect("checked when the version was made or read")
    }

    /// The file with a role, if there is one.
    pub fn file(&self, role: Role) -> Option<&FileEntry> {
        self.files.iter().find(|f| f.role == role)
    }

    pub(crate) fn check(&self, object: &str) -> Result<()> {
        let malformed = |problem: String| Error::malformed(object, problem);
        crate::schema::check(object, &self.schema, SCHEMA)?;
        self.model.check()?;
        for (field, text) in [("licence", &self.licence), ("note", &self.note), ("by", &self.by)] {
            name::text(field, text)?;
        }
        if self.files.len() > MAX_FILES || self.parents.len() > MAX_FILES {
            return Err(malformed(format!(
                "has {} files and {} parents; the limit is {MAX_FILES} each",
                self.files.len(),
                self.parents.len()
            )));
        }
        for parent in &self.parents {
            name::text("title", &parent.title)?;
        }
        if !self.files.is_sorted_by(|a, b| a.name < b.name) {
            return Err(malformed("has files that are not sorted by name, or two of one name".into()));
        }
        let mut roles = BTreeSet::new();
        for file in &self.files {
            if !roles.insert(file.role) && file.role.at_most_one() {
                return Err(malformed(format!("has two files with the role {}", file.role.as_str())));
            }
        }
        let other = if self.kind == Kind::Cartridge { Role::Model } else { Role::Cartridge };
        if !roles.contains(&self.kind.role()) || roles.contains(&other) {
            return Err(malformed(format!(
                "is a {} and needs exactly one file with the role {0}, and none with the role {}",
                self.kind.role().as_str(),
                other.as_str()
            )));
        }
        Ok(())
    }
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Serialization {
    method: String,
    hash_type: String,
    allow_symlinks: bool,
    ignore_paths: Vec<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Resource {
    name: FileName,
    algorithm: String,
    digest: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Predicate {
    serialization: Serialization,
    resources: Vec<Resource>,
    version: Version,
}

impl Predicate {
    fn new(version: Version) -> Self {
        let resources = version
            .files
            .iter()
            .map(|f| Resource { name: f.name.clone(), algorithm: "sha256".into(), digest: f.sha256.hex() })
            .collect();
        let serialization = Serialization {
            method: "files".into(),
            hash_type: "sha256".into(),
            allow_symlinks: false,
            ignore_paths: vec![SIGNATURE_FILE.into()],
        };
        Self { serialization, resources, version }
    }

    /// SHA-256 over the files' digests in the order of their names, as model signing defines its subject.
    fn root(&self) -> Digest {
        let mut hasher = Hasher::default();
        self.version.files.iter().for_each(|f| hasher.update(f.sha256.bytes()));
        hasher.finish()
    }
}

/// A manifest: the version, and the bundle that it is signed in.
#[derive(Debug, Clone)]
pub struct Manifest {
    signed: Signed,
    version: Version,
}

impl Manifest {
    /// Signs a version.
    pub(crate) fn sign(mut version: Version, key: &SecretKey) -> Result<Self> {
        version.files.sort_by(|a, b| a.name.cmp(&b.name));
        version.check("the new version")?;
        let predicate = Predicate::new(version);
        let subject = Subject::new(predicate.version.name.as_str(), &predicate.root());
        let signed = Signed::new("the new version", key, subject, PREDICATE, &predicate);
        if signed.bytes.len() as u64 > MAX_MANIFEST {
            let size = signed.bytes.len() as u64;
            return Err(Error::TooLarge { object: "the new version's manifest".into(), size, limit: MAX_MANIFEST });
        }
        Ok(Self { signed, version: predicate.version })
    }

    /// Reads a manifest whose digest is right. The signature is not looked at: see [`Manifest::verify`].
    pub(crate) fn parse(object: &str, bytes: Bytes) -> Result<Self> {
        let signed = Signed::parse(object, bytes)?;
        crate::schema::check(object, &signed.schema(Some("version"))?, SCHEMA)?;
        let opened = signed.open_unverified::<Predicate>(PREDICATE)?;
        let predicate = opened.predicate;
        predicate.version.check(object)?;
        let expected = Predicate::new(predicate.version.clone());
        let subject = Subject::new(predicate.version.name.as_str(), &predicate.root());
        if (&expected.serialization, &expected.resources) != (&predicate.serialization, &predicate.resources)
            || subject != opened.subject
        {
            return Err(Error::malformed(
                object,
                "has `resources`, `serialization` or a subject that are not those of its `version.files`",
            ));
        }
        Ok(Self { signed, version: predicate.version })
    }

    /// Checks the signature by the key that the bundle names.
    ///
    /// # Errors
    /// [`Error::Untrusted`] if it does not hold.
    pub fn verify(&self, key: &PublicKey) -> Result<()> {
        self.signed.open::<serde::de::IgnoredAny>(key, PREDICATE).map(|_| ())
    }

    /// The version's name.
    pub fn digest(&self) -> Digest {
        self.signed.digest
    }

    /// The key that the bundle says it was signed with.
    pub fn key(&self) -> &KeyId {
        &self.signed.key
    }

    /// The exact bytes: the object in the store, and `model.sig` of a pulled folder.
    pub fn bytes(&self) -> &Bytes {
        &self.signed.bytes
    }

    /// What it says.
    pub fn version(&self) -> &Version {
        &self.version
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::key::Algorithm;

    pub(crate) fn lock() -> ModelLock {
        ModelLock {
            model_id: "m".into(),
            model_arch_hash: Digest::of(b"arch"),
            model_weights_hash: Digest::of(b"weights"),
            tokenizer_hash: Digest::of(b"tokenizer"),
        }
    }

    pub(crate) fn entry(role: Role, name: &str, content: &[u8]) -> FileEntry {
        FileEntry {
            role,
            name: FileName::parse(name).unwrap(),
            sha256: Digest::of(content),
            size: content.len() as u64,
        }
    }

    pub(crate) fn version(files: Vec<FileEntry>) -> Version {
        Version {
            schema: SCHEMA.into(),
            kind: Kind::Cartridge,
            name: FileName::parse("rules").unwrap(),
            model: lock(),
            cartridge: BTreeMap::new(),
            files,
            parents: vec![],
            licence: "MIT".into(),
            note: String::new(),
            by: "alice".into(),
        }
    }

    #[test]
    fn the_root_digest_is_that_of_model_signing() {
        // sha256(sha256("abc") ‖ sha256("")), computed with Python's hashlib.
        let files = vec![entry(Role::Cartridge, "a.safetensors", b"abc"), entry(Role::Other, "b.txt", b"")];
        let predicate = Predicate::new(version(files));
        let abc = Digest::of(b"abc");
        let empty = Digest::from_hex("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855").unwrap();
        assert_eq!(predicate.root(), Digest::of(&[&abc.bytes()[..], &empty.bytes()[..]].concat()));
    }

    #[test]
    fn what_is_signed_comes_back_sorted_and_verifies() {
        let (key, _) = SecretKey::generate(Algorithm::Ed25519);
        let files = vec![entry(Role::Other, "z", b"z"), entry(Role::Cartridge, "a", b"abc")];
        let manifest = Manifest::sign(version(files), &key).unwrap();
        let read = Manifest::parse("x", manifest.bytes().clone()).unwrap();
        assert_eq!(read.version(), manifest.version());
        assert_eq!(read.digest(), Digest::of(manifest.bytes()));
        read.verify(key.public()).unwrap();
        let names: Vec<_> = read.version().files.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(names, ["a", "z"]);
    }

    #[test]
    fn versions_that_make_no_sense_are_refused() {
        let (key, _) = SecretKey::generate(Algorithm::Ed25519);
        let refused = |v: Version| Manifest::sign(v, &key).unwrap_err().to_string();
        let artifact = || entry(Role::Cartridge, "a", b"abc");
        assert!(refused(version(vec![])).contains("exactly one file with the role cartridge"));
        assert!(refused(version(vec![artifact(), entry(Role::Cartridge, "b", b"")])).contains("two files"));
        assert!(refused(version(vec![artifact(), entry(Role::Other, "a", b"")])).contains("two of one name"));
        assert!(refused(version(vec![artifact(), entry(Role::Model, "b", b"")])).contains("none with the role model"));
        let many = (0..65).map(|i| entry(Role::Other, &format!("f{i}"), b"")).chain([artifact()]).collect();
        assert!(refused(version(many)).contains("66 files"));
        let mut newer = version(vec![artifact()]);
        newer.schema = "bitnet-harness.registry-manifest/2".into();
        assert!(matches!(Manifest::sign(newer, &key), Err(Error::TooNew { .. })));
    }

    #[test]
    fn resources_that_differ_from_the_files_are_refused() {
        let (key, _) = SecretKey::generate(Algorithm::Ed25519);
        let mut predicate = Predicate::new(version(vec![entry(Role::Cartridge, "a", b"abc")]));
        predicate.resources[0].digest = Digest::of(b"other").hex();
        let subject = Subject::new("rules", &predicate.root());
        let signed = Signed::new("x", &key, subject, PREDICATE, &predicate);
        assert!(Manifest::parse("x", signed.bytes).unwrap_err().to_string().contains("resources"));
    }
}
