//! Native build of `bitnet-sys` (which links to this file): finds the pinned engine source, checks and
//! patches a copy in `OUT_DIR`, builds the `llama` target with clang through CMake and builds the C++ shim. The
//! bindings are committed (`scripts/bindings.sh`). Nothing outside `OUT_DIR` is written.

#[path = "build/config.rs"]
mod config;
#[path = "build/patch.rs"]
mod patch;
#[path = "build/source.rs"]
mod source;
#[path = "build/toolchain.rs"]
mod toolchain;

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use config::Config;
use source::Pin;
use toolchain::{Toolchain, predefined_macros};

/// Instruction sets that change the code of this engine, as the compiler's macro and as the name that
/// `is_x86_feature_detected!` takes.
const FEATURES: [(&str, &str); 15] = [
    ("__SSE3__", "sse3"),
    ("__SSSE3__", "ssse3"),
    ("__SSE4_1__", "sse4.1"),
    ("__SSE4_2__", "sse4.2"),
    ("__POPCNT__", "popcnt"),
    ("__AVX__", "avx"),
    ("__AVX2__", "avx2"),
    ("__FMA__", "fma"),
    ("__F16C__", "f16c"),
    ("__BMI__", "bmi1"),
    ("__BMI2__", "bmi2"),
    ("__LZCNT__", "lzcnt"),
    ("__AVX512F__", "avx512f"),
    ("__AVX512VNNI__", "avx512vnni"),
    ("__AVX512BF16__", "avx512bf16"),
];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            println!("cargo::error={}", message.replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    // Beside the manifest are links to build/ and vendor/; in a vendored copy they are folders.
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or("CARGO_MANIFEST_DIR is not set")?);
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    for file in [
        "build.rs",
        "build/config.rs",
        "build/patch.rs",
        "build/source.rs",
        "build/toolchain.rs",
        "shim",
        "tests/grammar_oracle",
    ] {
        println!("cargo::rerun-if-changed={}", package.join(file).display());
    }
    let config = Config::from_env()?;
    let pin = Pin::read(&package.join("vendor"))?;
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    if !version.split_once("+bitnet.").is_some_and(|(_, commit)| pin.commit.starts_with(commit)) {
        return Err(format!("bitnet-sys is version {version}, but vendor/pin.toml pins commit {}", pin.commit));
    }
    if config.docs_only {
        return write_engine_info(&out, &pin, "none (documentation build)", "", &config, &[]);
    }
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    if arch != "x86_64" {
        return Err(format!(
            "target architecture {arch}: only x86_64 is supported; the I2_S packing differs elsewhere and was not tested"
        ));
    }

    let tools = Toolchain::find(&config)?;
    let macros = predefined_macros(&tools.cc, &config.march)?;
    let features: Vec<&str> =
        FEATURES.iter().filter(|(m, _)| macros.iter().any(|x| x == m)).map(|(_, name)| *name).collect();
    for needed in ["avx2", "fma", "f16c"] {
        if !features.contains(&needed) {
            return Err(format!(
                "BITNET_MARCH={} lacks {}: without it the I2_S kernels compile to empty loops and compute \
                 nonsense; use x86-64-v3 or newer",
                config.march,
                needed.to_uppercase()
            ));
        }
    }

    let source = pin.locate(&config, &package, &out)?;
    let tree = out.join("engine");
    pin.verify_and_copy(&source, &tree)?;

    let mut flags = format!("-march={}", config.march);
    if let Some(sanitize) = &config.sanitize {
        let _ = write!(flags, " -fsanitize={sanitize} -fno-omit-frame-pointer -g");
    }
    let native = build_engine(&config, &tools, &tree, &out, &flags);
    build_shim(&config, &tools, &tree, &package, &flags)?;
    link(&config, &tools, &native);
    write_engine_info(&out, &pin, &tools.compiler, &format!("-O3 {flags}"), &config, &features)
}

fn build_engine(config: &Config, tools: &Toolchain, tree: &Path, out: &Path, flags: &str) -> PathBuf {
    let mut cmake = cmake::Config::new(tree);
    if tools.ninja {
        cmake.generator("Ninja");
    }
    let on_off = |on: bool| if on { "ON" } else { "OFF" };
    cmake
        // The cc crate would append its own baseline -march behind ours, and the last one wins.
        .no_default_flags(true)
        .out_dir(out.join("native"))
        .profile("Release")
        .define("CMAKE_C_COMPILER", &tools.cc)
        .define("CMAKE_CXX_COMPILER", &tools.cxx)
        .cflag(format!("{flags} -fPIC -w"))
        .cxxflag(format!("{flags} -fPIC -w"))
        .define("BUILD_SHARED_LIBS", "OFF")
        // The flags above decide: cmake's own switches would add instruction sets behind -march's back.
        .define("GGML_NATIVE", "OFF")
        .define("GGML_AVX", "OFF")
        .define("GGML_AVX2", "OFF")
        .define("GGML_FMA", "OFF")
        .define("GGML_F16C", "OFF")
        .define("GGML_ACCELERATE", "OFF")
        .define("GGML_OPENMP", on_off(config.openmp))
        // I2_S is what is left when both lookup-table kernels are off.
        .define("BITNET_X86_TL2", "OFF")
        .define("BITNET_ARM_TL1", "OFF")
        .define("LLAMA_BUILD_COMMON", "OFF")
        .define("LLAMA_BUILD_TESTS", "OFF")
        .define("LLAMA_BUILD_EXAMPLES", "OFF")
        .define("LLAMA_BUILD_SERVER", "OFF")
        .build_target("llama");
    cmake.build().join("build")
}

fn shim_includes(tree: &Path, package: &Path) -> [PathBuf; 6] {
    let llama = tree.join("3rdparty/llama.cpp");
    [
        package.join("shim"),
        llama.join("include"),
        llama.join("src"),
        llama.join("ggml/include"),
        llama.join("ggml/src"),
        tree.join("include"),
    ]
}

fn build_shim(config: &Config, tools: &Toolchain, tree: &Path, package: &Path, flags: &str) -> Result<(), String> {
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .compiler(&tools.cxx)
        .no_default_flags(true)
        .flag("-std=c++17")
        .flag("-O3")
        .flag("-fPIC")
        .flag("-Wall")
        .flag("-Wextra")
        .includes(shim_includes(tree, package))
        .file(package.join("shim/shim.cpp"))
        // An object of its own in the archive, which only tests refer to and so only tests link.
        .file(package.join("tests/grammar_oracle/oracle.cpp"))
        // Linked below, behind the archives that it calls into.
        .cargo_metadata(false);
    // The engine's headers are not ours to warn about.
    build.flag("-Wno-unused-parameter").flag("-Wno-unused-function").flag("-Wno-missing-field-initializers");
    for flag in flags.split_whitespace() {
        build.flag(flag);
    }
    if config.openmp {
        build.define("GGML_USE_OPENMP", None);
    }
    build.try_compile("bitnet_shim").map_err(|e| format!("the C++ shim does not compile: {e}"))?;
    Ok(())
}

fn link(config: &Config, tools: &Toolchain, native: &Path) {
    let out = env::var("OUT_DIR").unwrap_or_default();
    println!("cargo::rustc-link-search=native={out}");
    println!("cargo::rustc-link-lib=static=bitnet_shim");
    for dir in ["3rdparty/llama.cpp/src", "3rdparty/llama.cpp/ggml/src"] {
        println!("cargo::rustc-link-search=native={}", native.join(dir).display());
    }
    println!("cargo::rustc-link-lib=static=llama");
    println!("cargo::rustc-link-lib=static=ggml");
    println!("cargo::rustc-link-lib=dylib=stdc++");
    println!("cargo::rustc-link-lib=dylib=m");
    if config.openmp {
        // Distributions keep it beside clang, where the linker does not look.
        let found = std::process::Command::new(&tools.cc).arg("--print-file-name=libomp.so").output();
        let path = found.map(|o| PathBuf::from(String::from_utf8_lossy(&o.stdout).trim())).unwrap_or_default();
        if let Some(folder) = path.parent().filter(|_| path.is_absolute()) {
            println!("cargo::rustc-link-search=native={}", folder.display());
        }
        println!("cargo::rustc-link-lib=dylib=omp");
    }
}

/// Facts about the build that reports repeat.
fn write_engine_info(
    out: &Path,
    pin: &Pin,
    compiler: &str,
    flags: &str,
    config: &Config,
    features: &[&str],
) -> Result<(), String> {
    let mut text = String::new();
    let mut constant = |name: &str, doc: &str, value: &str| {
        let _ = writeln!(text, "/// {doc}\npub const {name}: &str = {value:?};");
    };
    constant("ENGINE_COMMIT", "Commit of microsoft/BitNet.", &pin.commit);
    constant("LLAMA_CPP_COMMIT", "Commit of its llama.cpp submodule.", &pin.llama_commit);
    constant(
        "SOURCE_DIGEST",
        "SHA-256 of `vendor/SHA256SUMS`, which names every source file's hash.",
        &pin.source_digest,
    );
    constant("COMPILER", "First line of the compiler's version.", compiler);
    constant("COMPILER_FLAGS", "Optimisation and target flags of the native build.", flags);
    constant("MARCH", "`-march` of the native build.", &config.march);
    constant(
        "THREADING",
        "Who runs the compute threads.",
        if config.openmp { "OpenMP (libomp)" } else { "ggml threads" },
    );
    constant("SANITIZE", "`-fsanitize` of the native build, empty if none.", config.sanitize.as_deref().unwrap_or(""));
    let _ = writeln!(
        text,
        "/// Instruction sets that the native code was compiled for, as `is_x86_feature_detected!` names them.\n\
         pub const COMPILED_FEATURES: &[&str] = &{features:?};"
    );
    let patches: Vec<&str> = pin.patches.iter().map(patch::Patch::name).collect();
    let _ = writeln!(
        text,
        "/// Patches applied to the copy, in this order (`vendor/patches/`; each says why).\npub const PATCHES: &[&str] = &{patches:?};"
    );
    fs::write(out.join("engine_info.rs"), text).map_err(|e| format!("engine_info.rs: {e}"))
}
