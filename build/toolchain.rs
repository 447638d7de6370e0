//! The tools of the native build, found and checked before anything is compiled.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::config::Config;

const CLANG_MIN: u32 = 18;
const CLANG_NEWEST_NAMED: u32 = 24;
const CMAKE_MIN: (u32, u32) = (3, 22);

/// What the build will call.
pub(crate) struct Toolchain {
    pub(crate) cc: PathBuf,
    pub(crate) cxx: PathBuf,
    /// First line of `clang --version`.
    pub(crate) compiler: String,
    pub(crate) ninja: bool,
}

impl Toolchain {
    pub(crate) fn find(config: &Config) -> Result<Self, String> {
        let (cc, compiler) = find_clang(config)?;
        let cxx = beside(&cc)?;
        check_cmake()?;
        let ninja = on_path("ninja").is_some() || on_path("ninja-build").is_some();
        if !ninja && on_path("make").is_none() {
            return Err("neither ninja nor make found; run scripts/setup.sh".into());
        }
        Ok(Self { cc, cxx, compiler, ninja })
    }
}

fn find_clang(config: &Config) -> Result<(PathBuf, String), String> {
    if let Some(name) = &config.clang {
        let path = on_path(name).ok_or_else(|| format!("BITNET_CLANG={name}: no such program"))?;
        let (version, line) = clang_version(&path).ok_or_else(|| format!("BITNET_CLANG={name} is no clang"))?;
        if version < CLANG_MIN {
            return Err(format!("BITNET_CLANG={name} is clang {version}; {CLANG_MIN} or newer is needed"));
        }
        return Ok((path, line));
    }
    let mut too_old = None;
    let numbered = (CLANG_MIN..=CLANG_NEWEST_NAMED).rev().map(|n| format!("clang-{n}"));
    for name in std::iter::once("clang".to_owned()).chain(numbered) {
        let Some(path) = on_path(&name) else { continue };
        match clang_version(&path) {
            Some((version, line)) if version >= CLANG_MIN => return Ok((path, line)),
            Some((version, _)) => too_old = Some(version),
            None => {}
        }
    }
    let found = too_old.map_or("none is installed".to_owned(), |v| format!("only clang {v} is installed"));
    Err(format!(
        "clang {CLANG_MIN} or newer is needed and {found}; run scripts/setup.sh \
         (Debian/Ubuntu: apt-get install clang-19 cmake ninja-build), or set BITNET_CLANG"
    ))
}

fn clang_version(path: &Path) -> Option<(u32, String)> {
    let output = Command::new(path).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().next()?.trim().to_owned();
    let after = line.split("clang version ").nth(1)?;
    let major = after.split('.').next()?.parse().ok()?;
    Some((major, line))
}

/// `…/clang-19` → `…/clang++-19`.
fn beside(cc: &Path) -> Result<PathBuf, String> {
    let name = cc.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let cxx = cc.with_file_name(name.replacen("clang", "clang++", 1));
    if cxx.is_file() { Ok(cxx) } else { Err(format!("{} has no {} beside it", cc.display(), cxx.display())) }
}

fn check_cmake() -> Result<(), String> {
    let hint = "run scripts/setup.sh (Debian/Ubuntu: apt-get install cmake ninja-build)";
    let output = Command::new("cmake").arg("--version").output();
    let text = match &output {
        Ok(o) => String::from_utf8_lossy(&o.stdout).into_owned(),
        Err(_) => {
            return Err(format!(
                "cmake {}.{} or newer is needed and none is installed; {hint}",
                CMAKE_MIN.0, CMAKE_MIN.1
            ));
        }
    };
    let version = text.split_whitespace().nth(2).unwrap_or_default();
    let mut parts = version.split('.').map(|p| p.parse::<u32>().unwrap_or(0));
    let found = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if found < CMAKE_MIN {
        return Err(format!("cmake {version} is too old, {}.{} or newer is needed; {hint}", CMAKE_MIN.0, CMAKE_MIN.1));
    }
    Ok(())
}

fn on_path(name: &str) -> Option<PathBuf> {
    let direct = Path::new(name);
    if direct.components().count() > 1 {
        return direct.is_file().then(|| direct.to_path_buf());
    }
    env::split_paths(&env::var_os("PATH")?).map(|dir| dir.join(name)).find(|p| p.is_file())
}

/// Predefined macros of the compiler for this `-march`: says which instruction sets the kernels will use.
pub(crate) fn predefined_macros(cc: &Path, march: &str) -> Result<Vec<String>, String> {
    let output = Command::new(cc)
        .args([&format!("-march={march}"), "-dM", "-E", "-x", "c", "/dev/null"])
        .output()
        .map_err(|e| format!("{}: {e}", cc.display()))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        let reason = reason.lines().find(|l| l.contains("error")).unwrap_or("clang refused it").trim();
        return Err(format!("BITNET_MARCH={march}: {reason}"));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|l| l.split_whitespace().nth(1).map(str::to_owned)).collect())
}
