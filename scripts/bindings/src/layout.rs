//! The layout that the bindings assert in Rust, as assertions for the C++ compiler that builds the engine.
//!
//! bindgen takes the layout from libclang and rustc checks that its own is the same. Neither of them is what compiles
//! the engine, so the shim states the very numbers once more.

use std::fmt::Write as _;

/// Structs that share their name with a function, which hides them in C++.
const HIDDEN: [&str; 1] = ["ggml_backend_graph_copy"];

/// `layout.h` for these bindings.
pub(crate) fn assertions(bindings: &str) -> Result<String, String> {
    let mut text = String::from(
        "// Made by scripts/bindings.sh with bitnet-sys/src/bindings.rs. Do not edit.\n\
         // What rustc asserts about the structs of the C API, asserted by the compiler that builds the engine.\n",
    );
    let mut count = 0;
    // `["Size of llama_batch"][::std::mem::size_of::<llama_batch>() - 72usize];`, broken in several ways. Every second
    // piece is the inside of a literal; those with an ` of ` are the labels.
    let pieces: Vec<&str> = bindings.split('"').skip(1).collect();
    for pair in pieces.chunks_exact(2).filter(|pair| pair[0].contains(" of ")) {
        let [label, rest] = pair else { continue };
        let number = rest.split_once("usize").and_then(|(expression, _)| expression.rsplit_once("- "));
        let number: usize = number
            .and_then(|(_, number)| number.parse().ok())
            .ok_or_else(|| format!("no number behind {label:?} in the bindings"))?;
        // Types without a name in C.
        if label.contains("__bindgen_") {
            continue;
        }
        let expression = if let Some(name) = label.strip_prefix("Size of ") {
            format!("sizeof({})", named(name))
        } else if let Some(name) = label.strip_prefix("Alignment of ") {
            format!("alignof({})", named(name))
        } else if let Some((name, field)) = label.strip_prefix("Offset of field: ").and_then(|l| l.split_once("::")) {
            // bindgen appends it to Rust's keywords, and no field of the engine ends with one.
            format!("offsetof({}, {})", named(name), field.strip_suffix('_').unwrap_or(field))
        } else {
            return Err(format!("unknown layout assertion: {label}"));
        };
        let _ = writeln!(text, "static_assert({expression} == {number}, \"{label}\");");
        count += 1;
    }
    if count == 0 { Err("the bindings hold no layout assertion".into()) } else { Ok(text) }
}

fn named(name: &str) -> String {
    if HIDDEN.contains(&name) { format!("struct {name}") } else { name.to_owned() }
}
