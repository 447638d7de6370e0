//! Tool registries, JSON Schema to GBNF.
