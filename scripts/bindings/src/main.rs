//! `bindings FOLDER [TARGET]`: writes `bindings.rs` and `layout.h` into FOLDER, as the committed ones should be.
//!
//! The headers are those of the build, found and hash-checked by the build script's own modules. These print lines
//! for cargo; scripts/bindings.sh drops them.

#[allow(dead_code, reason = "the build script uses the rest")]
#[path = "../../../build/config.rs"]
mod config;
mod layout;
#[path = "../../../build/patch.rs"]
mod patch;
#[allow(dead_code, reason = "the build script uses the rest")]
#[path = "../../../build/source.rs"]
mod source;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

/// Both targets give the same file (docs/how-to/build.md); this one does not depend on where it runs.
const TARGET: &str = "x86_64-unknown-linux-gnu";

fn main() -> ExitCode {
    let mut arguments = env::args_os().skip(1);
    let Some(folder) = arguments.next().map(PathBuf::from) else {
        eprintln!("usage: bindings FOLDER [TARGET]");
        return ExitCode::from(2);
    };
    let target = arguments.next().map_or(TARGET.to_owned(), |target| target.to_string_lossy().into_owned());
    match run(&folder, &target) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("bindings: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(folder: &Path, target: &str) -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let pin = source::Pin::read(&root.join("vendor"))?;
    let source = pin.locate(&config::Config::from_env()?, &root.join("bitnet-sys"), folder)?;
    let tree = folder.join("engine");
    pin.verify_and_copy(&source, &tree)?;
    let bindings = generate(&root, &tree, target)?;
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).map_err(|e| format!("{name}: {e}"));
    write("layout.h", &layout::assertions(&bindings)?)?;
    write("bindings.rs", &bindings)
}

fn generate(root: &Path, tree: &Path, target: &str) -> Result<String, String> {
    let llama = tree.join("3rdparty/llama.cpp");
    let includes = [root.join("bitnet-sys/shim"), llama.join("include"), llama.join("ggml/include")];
    bindgen::Builder::default()
        .header(root.join("bitnet-sys/shim/shim.h").to_string_lossy())
        .clang_arg(format!("--target={target}"))
        .clang_args(includes.iter().map(|dir| format!("-I{}", dir.display())))
        .allowlist_function("bn_.*")
        .allowlist_function("llama_(model|context|sampler_chain|model_quantize)_default_params")
        .allowlist_function("llama_(free|free_model|log_set|n_.*|get_logits_ith|get_logits|time_us)")
        .allowlist_function("llama_(set_n_threads|attach_threadpool|detach_threadpool|get_model_tensor)")
        .allowlist_function("llama_(rope_type|vocab_type|rope_freq_scale_train|model_.*)")
        .allowlist_function("llama_token_.*|llama_add_(bos|eos)_token")
        .allowlist_function("llama_kv_cache_(seq_pos_max|view_.*)|llama_get_kv_cache_.*")
        .allowlist_function("llama_sampler_(free|reset|clone|init_.*)")
        .allowlist_function("ggml_(cpu_has_.*|type_name|type_size|blck_size|row_size|nbytes|nelements|is_quantized)")
        .allowlist_function("ggml_(init|free|new_tensor_.d|mul_mat|new_graph|new_graph_custom|set_name|get_name)")
        .allowlist_function("ggml_(build_forward_expand|graph_plan|graph_compute|get_data|get_data_f32|n_dims)")
        .allowlist_function(
            "ggml_backend_tensor_get|ggml_threadpool_(new|free|params_default)|ggml_backend_buffer_is_host",
        )
        .allowlist_type("llama_.*|ggml_.*|bn_.*")
        .blocklist_type("FILE|_IO_.*")
        .allowlist_var("GGML_MAX_DIMS|GGML_MAX_NAME|GGML_MAX_N_THREADS|LLAMA_.*|BN_.*")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .layout_tests(true)
        .generate_comments(false)
        .rust_target(bindgen::RustTarget::stable(88, 0).map_err(|e| e.to_string())?)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .wrap_unsafe_ops(true)
        // rustfmt would bring the style of whatever toolchain is there.
        .formatter(bindgen::Formatter::Prettyplease)
        .raw_line("// Made by scripts/bindings.sh from bitnet-sys/shim/shim.h and the pinned headers. Do not edit.")
        .generate()
        .map(|bindings| bindings.to_string())
        .map_err(|e| format!("bindgen: {e}"))
}
