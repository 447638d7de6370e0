//! Best settings as a sweep found them, kept for the other commands.
//!
//! A profile is a small TOML file, locked to a CPU model and a model file. It holds only what changes speed and never
//! results: threads and micro-batch. Where it lies, and what else it may not do: `docs/how-to/bench.md`.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use super::speed::Best;
use files::input_file::{self, InputFileError};

/// `format` of the files that this program writes.
pub const FORMAT: &str = "bitnet-harness.profile/1";

/// Largest profile that is read, in bytes.
const MAX_BYTES: u64 = 64 << 10;
/// Most files of the folder that are looked at.
const MAX_FILES: usize = 256;

/// Settings for one model on one kind of CPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// [`FORMAT`].
    pub format: String,
    /// CPU model as the system names it; the lock's one half.
    pub cpu: String,
    /// CPUs that the process could use when it was measured.
    pub cpus: u32,
    /// Name of the model, for people.
    pub model: String,
    /// `sha256:…` of the model file; the lock's other half.
    pub model_hash: String,
    /// Bytes of the model file.
    pub model_bytes: u64,
    /// Commit of the engine that was measured.
    pub engine: String,
    /// Threads to compute with.
    pub threads: u32,
    /// Tokens per micro-batch.
    pub n_ubatch: u32,
    /// Median prefill, tokens per second.
    pub prefill_tokens_per_second: f64,
    /// Median decode, tokens per second.
    pub decode_tokens_per_second: f64,
    /// How to recognise the file without hashing it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stamp: Option<Stamp>,
}

/// A model file whose hash is known. Anything that changes the file changes its time or size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stamp {
    /// Absolute path.
    pub path: String,
    /// Bytes.
    pub bytes: u64,
    /// Modification time: seconds and nanoseconds since 1970.
    pub modified: [u64; 2],
}

impl Stamp {
    /// The stamp of a file; `None` where the system does not tell, or the path is no text.
    pub fn of(path: &Path) -> Option<Self> {
        let path = fs::canonicalize(path).ok()?;
        let data = fs::metadata(&path).ok()?;
        let modified = data.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        let modified = [modified.as_secs(), modified.subsec_nanos().into()];
        Some(Self { path: path.to_str()?.to_owned(), bytes: data.len(), modified })
    }
}

/// Why a profile is refused or cannot be kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The system's error on a file or folder.
    #[error("profile {}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: std::io::Error,
    },
    /// No profile, or one with unknown, missing or senseless fields.
    #[error("profile {}: {reason}; remove it, or measure again with `harness bench --sweep --save-profile`", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A profile that was asked for by name, of another CPU or model.
    #[error("profile {}: {field} is {found:?} in the profile, {ours:?} here", .path.display())]
    Locked {
        /// The file.
        path: PathBuf,
        /// `cpu` or `model_hash`.
        field: &'static str,
        /// Value in the file.
        found: String,
        /// Value here.
        ours: String,
    },
    /// Nowhere to keep it.
    #[error("no folder for profiles: neither XDG_CONFIG_HOME nor HOME is set; name a file")]
    NoFolder,
    /// The model could not be hashed.
    #[error("profile: {0}")]
    Hash(String),
}

impl Profile {
    /// Reads the text of a profile; the reason where it is none.
    ///
    /// # Errors
    /// What is wrong with it, naming the field.
    pub fn parse(text: &str) -> Result<Self, String> {
        let profile: Self = toml::from_str(text).map_err(|e| e.to_string().trim().replace('\n', " "))?;
        let reject =
            |field: &str, value: &dyn std::fmt::Display, need: &str| Err(format!("{field} is {value}: {need}"));
        if profile.format != FORMAT {
            return reject("format", &profile.format, &format!("this program reads {FORMAT}"));
        }
        if !(1..=bitnet_rs::threads::MAX_THREADS).contains(&profile.threads) {
            return reject("threads", &profile.threads, "must be 1 to 512");
        }
        if !(1..=bitnet_rs::MAX_UBATCH).contains(&profile.n_ubatch) {
            return reject("n_ubatch", &profile.n_ubatch, "must be 1 to 8192");
        }
        let hash = profile.model_hash.strip_prefix("sha256:").unwrap_or("");
        if hash.len() != 64 || !hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return reject("model_hash", &profile.model_hash, "must be sha256: and 64 hex digits");
        }
        for (field, speed) in [
            ("prefill_tokens_per_second", profile.prefill_tokens_per_second),
            ("decode_tokens_per_second", profile.decode_tokens_per_second),
        ] {
            if !(speed.is_finite() && speed > 0.0) {
                return reject(field, &speed, "must be a positive number");
            }
        }
        Ok(profile)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`ProfileError::Io`], [`ProfileError::Content`].
    pub fn read(path: &Path) -> Result<Self, ProfileError> {
        let content = |reason: String| ProfileError::Content { path: path.to_owned(), reason };
        let text = input_file::read_text(path, MAX_BYTES).map_err(|e| match e {
            InputFileError::Open(source) | InputFileError::Read(source) => {
                ProfileError::Io { path: path.to_owned(), source }
            }
            other => content(other.to_string()),
        })?;
        Self::parse(&text).map_err(content)
    }

    /// The file's text.
    ///
    /// # Errors
    /// What the serializer says.
    pub fn to_toml(&self) -> Result<String, String> {
        let fields = toml::to_string(self).map_err(|e| e.to_string())?;
        Ok(format!(
            "# Best settings that `harness bench --sweep` found for this model on this kind of CPU. Other commands use them\n\
             # unless --threads says otherwise. Delete the file to forget them.\n{fields}"
        ))
    }

    /// A profile of what a sweep found.
    pub fn of(best: &Best, model: &super::MeasuredModel, stamp: Option<Stamp>, cpu: &str, cpus: u32) -> Self {
        Self {
            format: FORMAT.into(),
            cpu: cpu.into(),
            cpus,
            model: model.name.clone(),
            model_hash: model.hash.clone(),
            model_bytes: model.bytes,
            engine: bitnet_rs::engine_info::ENGINE_COMMIT.into(),
            threads: best.threads,
            n_ubatch: best.n_ubatch,
            prefill_tokens_per_second: best.prefill,
            decode_tokens_per_second: best.decode,
            stamp,
        }
    }
}

/// Where profiles are looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// `BITNET_PROFILE=off`: nowhere.
    Off,
    /// `BITNET_PROFILE=FILE`: this file and no other.
    File(PathBuf),
    /// The folder `bitnet-harness/profiles` under `XDG_CONFIG_HOME` or `~/.config`; `None` without either.
    Folder(Option<PathBuf>),
}

impl Place {
    /// From the environment.
    pub fn from_env() -> Self {
        let var = |name| std::env::var_os(name).filter(|v| !v.is_empty());
        Self::of(var("BITNET_PROFILE"), var("XDG_CONFIG_HOME"), var("HOME"))
    }

    fn of(profile: Option<OsString>, config: Option<OsString>, home: Option<OsString>) -> Self {
        match profile {
            Some(v) if v == "off" => Self::Off,
            Some(file) => Self::File(file.into()),
            None => {
                let config = config.map(PathBuf::from).or_else(|| home.map(|h| Path::new(&h).join(".config")));
                Self::Folder(config.map(|c| c.join("bitnet-harness").join("profiles")))
            }
        }
    }

    /// The file that a new profile of this model goes to.
    ///
    /// # Errors
    /// [`ProfileError::NoFolder`].
    pub fn file_for(&self, model_hash: &str) -> Result<PathBuf, ProfileError> {
        match self {
            Self::File(path) => Ok(path.clone()),
            Self::Folder(Some(folder)) => {
                let hex = model_hash.strip_prefix("sha256:").unwrap_or(model_hash);
                Ok(folder.join(format!("{}.toml", hex.get(..16).unwrap_or(hex))))
            }
            Self::Folder(None) | Self::Off => Err(ProfileError::NoFolder),
        }
    }

    /// The files there are, in the order of their names.
    pub fn files(&self) -> Vec<PathBuf> {
        match self {
            Self::Off | Self::Folder(None) => Vec::new(),
            Self::File(path) => vec![path.clone()],
            Self::Folder(Some(folder)) => {
                let entries = fs::read_dir(folder).into_iter().flatten().flatten();
                let mut files: Vec<PathBuf> = entries
                    .map(|e| e.path())
                    .filter(|p| p.extension().is_some_and(|e| e == "toml"))
                    .take(MAX_FILES)
                    .collect();
                files.sort();
                files
            }
        }
    }

    /// The profile for the model file at `path` of `bytes` bytes on this CPU. `hash` is asked only where a profile fits
    /// otherwise and its stamp does not vouch for the file.
    ///
    /// In the folder, profiles of other CPUs and models are passed over; a file named by `BITNET_PROFILE` must fit.
    ///
    /// # Errors
    /// A file that is no profile, and [`ProfileError::Locked`] for a named file that does not fit.
    pub fn find(
        &self,
        path: &Path,
        bytes: u64,
        cpu: &str,
        hash: &mut dyn FnMut() -> Result<String, String>,
    ) -> Result<Option<(PathBuf, Profile)>, ProfileError> {
        let named = matches!(self, Self::File(_));
        let mut known: Option<String> = None;
        for file in self.files() {
            let profile = Profile::read(&file)?;
            let locked = |field, found: &str, ours: &str| ProfileError::Locked {
                path: file.clone(),
                field,
                found: found.into(),
                ours: ours.into(),
            };
            if profile.cpu != cpu {
                if named {
                    return Err(locked("cpu", &profile.cpu, cpu));
                }
                continue;
            }
            if profile.model_bytes != bytes && !named {
                continue;
            }
            if profile.stamp.is_none() || profile.stamp != Stamp::of(path) {
                let ours = match &known {
                    Some(hash) => hash.clone(),
                    None => known.insert(hash().map_err(ProfileError::Hash)?).clone(),
                };
                if profile.model_hash != ours {
                    if named {
                        return Err(locked("model_hash", &profile.model_hash, &ours));
                    }
                    continue;
                }
            }
            return Ok(Some((file, profile)));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(digit: char) -> String {
        format!("sha256:{}", digit.to_string().repeat(64))
    }

    fn profile() -> Profile {
        Profile {
            format: FORMAT.into(),
            cpu: "Some CPU".into(),
            cpus: 16,
            model: "m".into(),
            model_hash: hash('a'),
            model_bytes: 3,
            engine: "c".into(),
            threads: 8,
            n_ubatch: 128,
            prefill_tokens_per_second: 90.5,
            decode_tokens_per_second: 28.0,
            stamp: None,
        }
    }

    #[test]
    fn a_profile_reads_back_and_nothing_unknown_is_let_in() {
        let text = profile().to_toml().unwrap();
        assert_eq!(Profile::parse(&text), Ok(profile()));
        let stamped =
            Profile { stamp: Some(Stamp { path: "/m.gguf".into(), bytes: 3, modified: [5, 6] }), ..profile() };
        assert_eq!(Profile::parse(&stamped.to_toml().unwrap()), Ok(stamped));
        for (change, named) in [
            (text.clone() + "flash_attn = true\n", "flash_attn"),
            (text.replace("threads = 8", "threads = 0"), "threads is 0"),
            (text.replace("threads = 8", "threads = 9999"), "threads is 9999"),
            (text.replace("threads = 8", "threads = \"8\""), "string"),
            (text.replace("threads = 8\n", ""), "threads"),
            (text.replace("n_ubatch = 128", "n_ubatch = 0"), "n_ubatch is 0"),
            (text.replace("profile/1", "profile/2"), "format is bitnet-harness.profile/2"),
            (text.replace("sha256:a", "sha256:A"), "model_hash"),
            (text.replace("90.5", "nan"), "prefill_tokens_per_second"),
            (String::from("x"), "expected"),
        ] {
            let reason = Profile::parse(&change).unwrap_err();
            assert!(reason.contains(named), "{named}: {reason}");
        }
    }

    #[test]
    fn the_environment_names_a_file_a_folder_or_nothing() {
        let os = |s: &str| Some(OsString::from(s));
        assert_eq!(Place::of(os("off"), os("/c"), os("/h")), Place::Off);
        assert_eq!(Place::of(os("p.toml"), None, None), Place::File("p.toml".into()));
        let folder = |p: &str| Place::Folder(Some(p.into()));
        assert_eq!(Place::of(None, os("/c"), os("/h")), folder("/c/bitnet-harness/profiles"));
        assert_eq!(Place::of(None, None, os("/h")), folder("/h/.config/bitnet-harness/profiles"));
        let nowhere = Place::of(None, None, None);
        assert!(matches!(nowhere.file_for(&hash('a')), Err(ProfileError::NoFolder)));
        let file = folder("/f").file_for(&hash('a')).unwrap();
        assert_eq!(file, Path::new("/f/aaaaaaaaaaaaaaaa.toml"));
    }

    #[test]
    fn a_profile_is_locked_to_cpu_and_model_file() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("m.gguf");
        fs::write(&model, "abc").unwrap();
        let file = folder.path().join("profiles").join("x.toml");
        fs::create_dir(file.parent().unwrap()).unwrap();
        fs::write(&file, profile().to_toml().unwrap()).unwrap();
        let place = Place::Folder(file.parent().map(Into::into));
        let named = Place::File(file.clone());
        let find = |place: &Place, bytes, cpu: &str, ours: char| {
            let mut asked = 0;
            let found = place.find(&model, bytes, cpu, &mut || {
                asked += 1;
                Ok(hash(ours))
            });
            (found.map(|f| f.map(|(_, p)| p.threads)), asked)
        };
        assert!(matches!(find(&place, 3, "Some CPU", 'a'), (Ok(Some(8)), 1)));
        assert!(matches!(find(&place, 3, "Some CPU", 'b'), (Ok(None), 1)));
        assert!(matches!(find(&place, 4, "Some CPU", 'a'), (Ok(None), 0)), "another size needs no hash");
        assert!(matches!(find(&place, 3, "Other CPU", 'a'), (Ok(None), 0)));
        assert!(matches!(find(&Place::Off, 3, "Some CPU", 'a'), (Ok(None), 0)));
        let (wrong, _) = find(&named, 3, "Other CPU", 'a');
        assert!(wrong.unwrap_err().to_string().contains("cpu is \"Some CPU\" in the profile, \"Other CPU\" here"));
        assert!(find(&named, 3, "Some CPU", 'b').0.unwrap_err().to_string().contains("model_hash is"));

        // A stamp spares the hash as long as the file is the same.
        let stamped = Profile { stamp: Stamp::of(&model), ..profile() };
        assert!(stamped.stamp.is_some());
        fs::write(&file, stamped.to_toml().unwrap()).unwrap();
        assert!(matches!(find(&place, 3, "Some CPU", 'b'), (Ok(Some(8)), 0)));
        fs::write(&model, "abcd").unwrap();
        assert!(matches!(find(&place, 3, "Some CPU", 'b'), (Ok(None), 1)));

        fs::write(&file, "threads = 1").unwrap();
        let (broken, _) = find(&place, 3, "Some CPU", 'a');
        assert!(broken.unwrap_err().to_string().contains("x.toml"));
        fs::write(&file, vec![b'#'; MAX_BYTES as usize + 1]).unwrap();
        assert!(find(&place, 3, "Some CPU", 'a').0.unwrap_err().to_string().contains("bytes"));
    }
}
