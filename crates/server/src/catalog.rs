//! What can be named in a request: the model, and the model behind each cartridge.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use cartridge::{Cartridge, Level, ModelLock};
use files::stamps::{Stamp, StampStore};
use session::scheduler::{Scheduler, SharedCartridge};
use session::{known_lock, lock_of};

use crate::auth::is_name;
use crate::error::{ApiError, clipped};

/// Most cartridges of a folder that are offered.
const MAX_CARTRIDGES: usize = 4096;

/// A cartridge that a source offers.
#[derive(Debug)]
pub struct Offered {
    /// Its name in requests: 1 to 64 of `a-z A-Z 0-9 . _ -`.
    pub name: String,
    /// Where it lies.
    pub path: PathBuf,
    /// Says when it has become another one: what has the same version is not opened again.
    pub version: String,
}

/// Where cartridges come from: a folder, or whatever follows a channel of a registry. Asked at the start and at every
/// reload; what it names lies on this machine and is not written to any more.
pub trait CartridgeSource: Send + Sync {
    /// What there is now, with what was left out and why.
    ///
    /// # Errors
    /// When nothing can be said; what was offered before stays.
    fn offer(&self) -> std::io::Result<(Vec<Offered>, Vec<String>)>;
}

/// The `.safetensors` files of a folder, named by their file names.
#[derive(Debug)]
pub struct CartridgeFolder(pub PathBuf);

impl CartridgeSource for CartridgeFolder {
    fn offer(&self) -> std::io::Result<(Vec<Offered>, Vec<String>)> {
        let (mut offered, mut left_out) = (Vec::new(), Vec::new());
        for entry in std::fs::read_dir(&self.0)? {
            let path = entry?.path();
            if path.extension().is_none_or(|e| e != "safetensors") {
                continue;
            }
            let file = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            let Some(name) = path.file_stem().and_then(|s| s.to_str()).filter(|s| is_name(s)) else {
                left_out.push(format!("{}: a name has 1 to 64 of a-z, A-Z, 0-9, '.', '_' and '-'", clipped(&file)));
                continue;
            };
            match version_of(&path) {
                Ok(version) => offered.push(Offered { name: name.to_owned(), path: path.clone(), version }),
                Err(e) => left_out.push(format!("{name}: {e}")),
            }
        }
        offered.sort_by(|a, b| a.name.cmp(&b.name));
        if offered.len() > MAX_CARTRIDGES {
            left_out.push(format!("{} cartridges, {MAX_CARTRIDGES} are offered", offered.len()));
            offered.truncate(MAX_CARTRIDGES);
        }
        Ok((offered, left_out))
    }
}

fn version_of(path: &std::path::Path) -> std::io::Result<String> {
    // Not a pipe, which would be waited for.
    if !std::fs::metadata(path)?.is_file() {
        return Err(std::io::Error::other("not a regular file"));
    }
    Ok(format!("{:?}", Stamp::of(&File::open(path)?)?))
}

/// A cartridge that can be named.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its name.
    pub name: String,
    version: String,
    /// What is mounted.
    pub shared: Arc<SharedCartridge>,
}

/// The model's name and the cartridges.
pub struct Catalog {
    model: String,
    scheduler: Scheduler,
    source: Option<Box<dyn CartridgeSource>>,
    known: StampStore,
    lock: Mutex<Option<(ModelLock, bool)>>,
    entries: RwLock<Arc<BTreeMap<String, Entry>>>,
}

/// What a reload found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Cartridges that can be named now.
    pub offered: usize,
    /// What was left out, and why.
    pub left_out: Vec<String>,
}

impl Catalog {
    /// An empty catalog of a scheduler's model.
    pub fn new(
        model: String,
        scheduler: Scheduler,
        source: Option<Box<dyn CartridgeSource>>,
        known: StampStore,
    ) -> Self {
        Self { model, scheduler, source, known, lock: Mutex::default(), entries: RwLock::default() }
    }

    /// The model's name.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The cartridges now.
    pub fn entries(&self) -> Arc<BTreeMap<String, Entry>> {
        Arc::clone(&self.entries.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Asks the source again. New conversations see what it says now; those on their way keep what they have.
    ///
    /// # Errors
    /// When the source says nothing; what was offered before stays.
    pub fn reload(&self) -> std::io::Result<Reloaded> {
        let Some(source) = &self.source else { return Ok(Reloaded::default()) };
        let (offered, mut left_out) = source.offer()?;
        let old = self.entries();
        let mut new = BTreeMap::new();
        for Offered { name, path, version } in offered {
            if let Some(entry) = old.get(&name).filter(|e| e.version == version) {
                new.insert(name, entry.clone());
                continue;
            }
            match self.open(&path) {
                Ok(shared) => {
                    new.insert(name.clone(), Entry { name, version, shared: Arc::new(shared) });
                }
                Err(e) => left_out.push(format!("{name}: {e}")),
            }
        }
        let reloaded = Reloaded { offered: new.len(), left_out };
        *self.entries.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
        Ok(reloaded)
    }

    /// Opens a cartridge and looks at all of it.
    fn open(&self, path: &std::path::Path) -> Result<SharedCartridge, session::MountError> {
        let cartridge = Cartridge::open(path)?;
        cartridge.validate(Level::Full)?;
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let go_on: &mut dyn FnMut(u64, u64) -> ControlFlow<()> = &mut |_, _| ControlFlow::Continue(());
        let model = self.scheduler.model();
        let (known, remembered) = match lock.take() {
            Some(lock) => lock,
            None => known_lock(model, &self.known, false, go_on)?,
        };
        let mut checked = self.scheduler.check_cartridge(&cartridge, &known);
        let mut current = (known, remembered);
        // A mismatch is never believed of a remembered hash.
        if current.1 && checked.is_err() {
            current = (lock_of(model, go_on)?, false);
            checked = self.scheduler.check_cartridge(&cartridge, &current.0);
        }
        let (model_lock, _) = lock.insert(current).clone();
        checked.map(|()| SharedCartridge { cartridge, lock: model_lock })
    }

    /// What a request's `model` names: the model, or the model behind a cartridge.
    ///
    /// # Errors
    /// `model_not_found`.
    pub fn resolve(&self, name: &str) -> Result<Option<Arc<SharedCartridge>>, ApiError> {
        let unknown = || {
            let message = format!("no model '{}' here; GET /v1/models lists what there is", clipped(name));
            ApiError::new("model_not_found", message).at("model")
        };
        if name == self.model {
            return Ok(None);
        }
        let cartridge = name.strip_prefix(&self.model).and_then(|rest| rest.strip_prefix(':')).ok_or_else(unknown)?;
        self.entries().get(cartridge).map(|e| Some(Arc::clone(&e.shared))).ok_or_else(unknown)
    }

    /// How a cartridge is named in requests.
    pub fn id(&self, cartridge: &str) -> String {
        format!("{}:{cartridge}", self.model)
    }
}

/// A model's name as it can stand in a request.
pub fn model_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' };
    let name: String = name.trim().chars().map(plain).take(64).collect();
    let name = name.trim_matches(['-', '.']);
    if name.is_empty() { "model".to_owned() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_models_can_stand_in_a_request() {
        for (name, expected) in [
            ("BitNet b1.58 2B 4T", "BitNet-b1.58-2B-4T"),
            ("", "model"),
            ("灯", "model"),
            ("a:b/c", "a-b-c"),
            ("../../etc", "etc"),
        ] {
            assert_eq!(model_name(name), expected);
            assert!(is_name(&model_name(name)));
        }
    }

    #[test]
    fn a_folder_offers_regular_files_with_good_names_and_says_what_it_left_out() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.safetensors", "a.safetensors", "x.txt", "bad name.safetensors", ".safetensors"] {
            std::fs::write(folder.path().join(name), "x").unwrap();
        }
        std::fs::create_dir(folder.path().join("d.safetensors")).unwrap();
        let (offered, left_out) = CartridgeFolder(folder.path().into()).offer().unwrap();
        assert_eq!(offered.iter().map(|o| o.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(left_out.len(), 2, "{left_out:?}");
        assert!(CartridgeFolder("/nowhere/at/all".into()).offer().is_err());
    }
}
