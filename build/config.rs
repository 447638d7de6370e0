//! Every variable that the native build reads, in one place. `docs/how-to/build.md` is its public form.

use std::env;
use std::path::PathBuf;

/// What the environment asks of the build.
pub(crate) struct Config {
    /// `BITNET_CPP_DIR`: a bitnet.cpp checkout (with its llama.cpp submodule) to use instead of the pinned package.
    pub(crate) cpp_dir: Option<PathBuf>,
    /// `BITNET_CLANG`: the C compiler; the C++ compiler is found beside it (`clang-19` → `clang++-19`).
    pub(crate) clang: Option<String>,
    /// `BITNET_MARCH`: value of `-march`; default `native`.
    pub(crate) march: String,
    /// `BITNET_OPENMP`: `1` links LLVM's OpenMP runtime instead of ggml's own threads; default `0`.
    pub(crate) openmp: bool,
    /// `BITNET_SANITIZE`: value of `-fsanitize` for the native library and the shim, e.g. `address,undefined`.
    pub(crate) sanitize: Option<String>,
    /// `DOCS_RS`, which docs.rs sets: nothing native is built.
    pub(crate) docs_only: bool,
}

impl Config {
    /// Reads the variables and tells cargo to run the script again when one changes.
    pub(crate) fn from_env() -> Result<Self, String> {
        let march = var("BITNET_MARCH").unwrap_or_else(|| "native".into());
        if march.is_empty() || !march.chars().all(|c| c.is_ascii_alphanumeric() || "-_.+".contains(c)) {
            return Err(format!("BITNET_MARCH={march:?} is no -march value; try native or x86-64-v3"));
        }
        let openmp = match var("BITNET_OPENMP").as_deref() {
            None | Some("" | "0") => false,
            Some("1") => true,
            Some(other) => return Err(format!("BITNET_OPENMP={other:?}: expected 0 or 1")),
        };
        Ok(Self {
            cpp_dir: var("BITNET_CPP_DIR").filter(|v| !v.is_empty()).map(PathBuf::from),
            clang: var("BITNET_CLANG").filter(|v| !v.is_empty()),
            march,
            openmp,
            sanitize: var("BITNET_SANITIZE").filter(|v| !v.is_empty()),
            docs_only: var("DOCS_RS").is_some(),
        })
    }
}

fn var(name: &str) -> Option<String> {
    println!("cargo::rerun-if-env-changed={name}");
    env::var(name).ok()
}
