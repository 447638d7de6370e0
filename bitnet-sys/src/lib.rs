//! Raw bindings to the pinned bitnet.cpp (llama.cpp fork with I2_S kernels).
//!
//! The engine's C API as bindgen reads it from the pinned headers, plus the `bn_*` shim (`shim/shim.h`):
//! every engine call that can throw a C++ exception goes through a `bn_*` function that returns a status.
//! Nothing here is safe to call with unchecked arguments: many inputs abort the process. Use `bitnet-rs`.

/// What `scripts/bindings.sh` makes of the pinned headers; committed, so that a build needs no libclang.
#[rustfmt::skip]
#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    reason = "generated from C headers"
)]
mod bindings;
pub use bindings::*;

/// What was built: commits, compiler, flags, instruction sets.
pub mod engine_info {
    include!(concat!(env!("OUT_DIR"), "/engine_info.rs"));
}
