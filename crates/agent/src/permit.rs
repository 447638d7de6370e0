//! The opt-in to a real effect: a value that no text can become.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::plan::{ExecutionPlan, PlanHash};
use super::registry::{RegistryError, read_bounded};
use super::vocabulary::Backend;

/// The operator's configuration, from a file that only the operator can write.
///
/// ```toml
/// [execute]
/// enabled = true
/// backends = ["mock"]
/// ```
#[derive(Debug)]
pub struct OperatorConfig {
    enabled: bool,
    backends: Vec<Backend>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OperatorFile {
    execute: ExecuteSection,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExecuteSection {
    enabled: bool,
    backends: Vec<Backend>,
}

/// Why there is no permit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PermitError {
    /// The file cannot be read.
    #[error("operator configuration: {0}")]
    Read(#[from] RegistryError),
    /// The file is a link.
    #[error("operator configuration {} is a symbolic link; give the file itself", path.display())]
    SymbolicLink {
        /// The path.
        path: PathBuf,
    },
    /// Others could have written the file.
    #[error("operator configuration {} can be written by others (mode {mode:o}); chmod go-w it", path.display())]
    Writable {
        /// The path.
        path: PathBuf,
        /// Its mode bits.
        mode: u32,
    },
    /// Not the expected TOML.
    #[error("operator configuration {}: {source}", path.display())]
    Form {
        /// The path.
        path: PathBuf,
        /// What is wrong.
        source: toml::de::Error,
    },
    /// The configuration does not enable execution.
    #[error("the operator configuration does not enable execution (execute.enabled = false)")]
    NotEnabled,
    /// The flag was not given.
    #[error("--execute was not given; this stays a dry-run")]
    NoFlag,
}

impl OperatorConfig {
    /// Reads the operator's file. It must be a plain file that neither group nor others can write.
    ///
    /// # Errors
    /// [`PermitError`].
    pub fn load(path: &Path) -> Result<Self, PermitError> {
        let read = |source| RegistryError::Read { path: path.to_owned(), source };
        let metadata = std::fs::symlink_metadata(path).map_err(read)?;
        if metadata.file_type().is_symlink() {
            return Err(PermitError::SymbolicLink { path: path.to_owned() });
        }
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = metadata.permissions().mode() & 0o777;
            if mode & 0o022 != 0 {
                return Err(PermitError::Writable { path: path.to_owned(), mode });
            }
        }
        let file: OperatorFile = toml::from_str(&read_bounded(path)?)
            .map_err(|source| PermitError::Form { path: path.to_owned(), source })?;
        Ok(OperatorConfig { enabled: file.execute.enabled, backends: file.execute.backends })
    }
}

/// Whether whoever runs the program asked for real effects, in so many words (`--execute`).
///
/// It cannot be read from text: no `Deserialize`, no `FromStr`, no conversion from a truth value that some document
/// might hold. A caller writes [`ExecuteFlag::given`] where its user's own act stands for it, and nowhere else; without
/// the operator's file it opens nothing.
#[derive(Debug)]
pub struct ExecuteFlag {
    execute: bool,
}

impl ExecuteFlag {
    /// The person who runs the program asked for it.
    #[must_use]
    pub fn given() -> Self {
        Self { execute: true }
    }

    /// Nobody asked for it: a dry-run.
    #[must_use]
    pub fn absent() -> Self {
        Self { execute: false }
    }

    /// Whether it was given.
    #[must_use]
    pub fn is_given(&self) -> bool {
        self.execute
    }
}

/// Permission for *one* execution: consumed by it, not cloneable, not deserializable, made only of
/// the operator's file and the flag.
#[derive(Debug)]
pub struct ExecutePermit {
    backends: Vec<Backend>,
}

impl ExecutePermit {
    /// Grants one execution.
    ///
    /// # Errors
    /// [`PermitError::NoFlag`], [`PermitError::NotEnabled`].
    pub fn grant(config: &OperatorConfig, flag: &ExecuteFlag) -> Result<Self, PermitError> {
        if !flag.execute {
            return Err(PermitError::NoFlag);
        }
        if !config.enabled {
            return Err(PermitError::NotEnabled);
        }
        Ok(ExecutePermit { backends: config.backends.clone() })
    }

    pub(crate) fn covers(&self, backend: Backend) -> bool {
        self.backends.contains(&backend)
    }

    /// Binds the permit to a plan that passed the gates with execution requested. Only the
    /// execution stage calls this.
    pub(crate) fn bind(self, plan: ExecutionPlan) -> Option<AuthorizedPlan> {
        self.covers(plan.backend()).then_some(AuthorizedPlan { plan, _permit: self })
    }
}

/// A person's confirmation of one plan, by its hash. It confirms nothing else.
#[derive(Debug, Clone, Copy)]
pub struct Confirmation {
    plan: PlanHash,
}

impl Confirmation {
    /// Confirms the plan with this hash.
    #[must_use]
    pub fn of(plan: PlanHash) -> Self {
        Confirmation { plan }
    }

    pub(crate) fn is_of(&self, plan: &PlanHash) -> bool {
        self.plan == *plan
    }
}

/// A plan with its permit, the only thing an executor takes.
#[derive(Debug)]
pub struct AuthorizedPlan {
    plan: ExecutionPlan,
    _permit: ExecutePermit,
}

impl AuthorizedPlan {
    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &ExecutionPlan {
        &self.plan
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn flag(given: bool) -> ExecuteFlag {
        if given { ExecuteFlag::given() } else { ExecuteFlag::absent() }
    }

    fn config(dir: &Path, text: &str) -> PathBuf {
        let path = dir.join("operator.toml");
        std::fs::write(&path, text).unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        path
    }

    const ON: &str = "[execute]\nenabled = true\nbackends = [\"mock\"]\n";

    #[test]
    fn a_permit_needs_file_and_flag() {
        let dir = tempfile::tempdir().unwrap();
        let on = OperatorConfig::load(&config(dir.path(), ON)).unwrap();
        assert!(matches!(ExecutePermit::grant(&on, &flag(false)), Err(PermitError::NoFlag)));
        assert!(ExecutePermit::grant(&on, &flag(true)).unwrap().covers(Backend::Mock));
        let off = OperatorConfig::load(&config(dir.path(), &ON.replace("true", "false"))).unwrap();
        assert!(matches!(ExecutePermit::grant(&off, &flag(true)), Err(PermitError::NotEnabled)));
    }

    #[test]
    fn an_unsafe_operator_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = config(dir.path(), &format!("{ON}secret = 1\n"));
        assert!(matches!(OperatorConfig::load(&path), Err(PermitError::Form { .. })));
        assert!(matches!(OperatorConfig::load(&dir.path().join("none")), Err(PermitError::Read(_))));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let path = config(dir.path(), ON);
            let link = dir.path().join("link");
            std::os::unix::fs::symlink(&path, &link).unwrap();
            assert!(matches!(OperatorConfig::load(&link), Err(PermitError::SymbolicLink { .. })));
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
            assert!(matches!(OperatorConfig::load(&path), Err(PermitError::Writable { mode: 0o666, .. })));
        }
    }
}
