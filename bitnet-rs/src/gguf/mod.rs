//! GGUF reader: bounds the whole header and tensor table before the engine sees the file.
