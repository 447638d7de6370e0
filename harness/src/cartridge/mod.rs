//! Cartridges: KV prefixes as safetensors files.
