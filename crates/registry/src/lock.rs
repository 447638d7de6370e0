//! What ties a cartridge to its model, read from the cartridge's metadata (docs/formats/cartridge.md).
//!
//! Only the metadata table is looked at here, to write it down in the manifest and to compare it with a channel's
//! policy. Whether the tensors are sound is checked by the reader that mounts the file.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::digest::Digest;
use crate::error::{Error, Result, shown};

/// The longest safetensors header a cartridge may have, in bytes.
const MAX_HEADER: u64 = 8 << 20;
/// The longest value that is carried over into a manifest, in bytes.
const MAX_VALUE: usize = 2_000;

/// The format of the cartridges that this program knows.
const FORMAT: &str = "bitnet-cartridge/1";

/// Documented keys of the metadata table that say what a cartridge is; free text is not carried over.
const KEYS: &[&str] = &[
    "format",
    "layout",
    "n_tokens",
    "first_pos",
    "type_k",
    "type_v",
    "rope_type",
    "rope_theta",
    "rope_scaling",
    "rope_dim",
    "v_trans",
    "engine",
    "tokens_hash",
    "payload_hash",
    "rounded_from",
    "compacted_from",
    "method",
    "questions_hash",
];

/// The hashes that name a model whatever file it lies in (docs/formats/hashes.md).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelLock {
    /// The model's name.
    pub model_id: String,
    /// Architecture and hyperparameters.
    pub model_arch_hash: Digest,
    /// All tensors.
    pub model_weights_hash: Digest,
    /// Vocabulary and its rules.
    pub tokenizer_hash: Digest,
}

impl ModelLock {
    /// Every field in which `self` (a version's) differs from `other` (a channel's), as `(field, self, other)`.
    pub fn differences(&self, other: &Self) -> Vec<(&'static str, String, String)> {
        let fields = [
            ("model_id", self.model_id.clone(), other.model_id.clone()),
            ("model_arch_hash", self.model_arch_hash.to_string(), other.model_arch_hash.to_string()),
            ("model_weights_hash", self.model_weights_hash.to_string(), other.model_weights_hash.to_string()),
            ("tokenizer_hash", self.tokenizer_hash.to_string(), other.tokenizer_hash.to_string()),
        ];
        fields.into_iter().filter(|(_, a, b)| a != b).map(|(name, a, b)| (name, shown(&a), b)).collect()
    }

    pub(crate) fn check(&self) -> Result<()> {
        crate::name::text("model_id", &self.model_id)?;
        if self.model_id.is_empty() {
            return Err(Error::Argument {
                what: "model_id",
                value: String::new(),
                problem: "is empty; a version is locked to a model with a name".into(),
            });
        }
        Ok(())
    }
}

/// A cartridge's lock and the facts about it that a manifest repeats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CartridgeLock {
    /// The model it mounts on.
    pub model: ModelLock,
    /// Documented metadata (layout, number of tokens, RoPE, hashes of tokens and payload, …), as in the file.
    pub metadata: BTreeMap<String, String>,
}

/// A string table in which no key occurs twice.
struct Table(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Table {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TableVisitor;
        impl<'de> Visitor<'de> for TableVisitor {
            type Value = Table;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Table, A::Error> {
                let mut table = BTreeMap::new();
                while let Some((key, value)) = map.next_entry::<String, String>()? {
                    if table.contains_key(&key) {
                        return Err(serde::de::Error::custom(format!("key `{}` occurs twice", shown(&key))));
                    }
                    table.insert(key, value);
                }
                Ok(Table(table))
            }
        }
        deserializer.deserialize_map(TableVisitor)
    }
}

#[derive(Deserialize)]
struct Header {
    #[serde(rename = "__metadata__")]
    metadata: Table,
}

impl CartridgeLock {
    /// Reads the lock from the beginning of a cartridge; `object` is what the file is called in errors.
    ///
    /// # Errors
    /// [`Error::Malformed`] and its like, [`Error::TooOld`], [`Error::TooNew`].
    pub fn read(object: &str, mut file: impl Read) -> Result<Self> {
        let malformed = |problem: String| Error::malformed(object, problem);
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(|_| malformed("is shorter than a safetensors file".into()))?;
        let length = u64::from_le_bytes(length);
        if length == 0 || length > MAX_HEADER {
            return Err(malformed(format!(
                "is not a cartridge: it begins with a header of {length} bytes; the limit is {MAX_HEADER}"
            )));
        }
        let mut header = Vec::new();
        let read = file.take(length).read_to_end(&mut header).map_err(|e| malformed(format!("cannot be read: {e}")))?;
        if (read as u64) < length {
            return Err(malformed(format!("ends within its header of {length} bytes")));
        }
        let header: Header = serde_json::from_slice(&header)
            .map_err(|e| malformed(format!("is not a cartridge: its header has no usable metadata: {e}")))?;
        Self::from_metadata(object, header.metadata.0)
    }

    /// The lock in a metadata table.
    ///
    /// # Errors
    /// As [`CartridgeLock::read`].
    pub fn from_metadata(object: &str, mut table: BTreeMap<String, String>) -> Result<Self> {
        let malformed = |problem: String| Error::malformed(object, problem);
        let format = table.get("format").map(String::as_str).unwrap_or_default();
        crate::schema::check(object, format, FORMAT)?;
        let mut take = |key: &'static str| {
            table
                .remove(key)
                .ok_or_else(|| malformed(format!("has no `{key}` in its metadata; it is locked to nothing")))
        };
        let model_id = take("model_id")?;
        let mut hash = |key: &'static str| {
            let text = take(key)?;
            Digest::parse(&text).map_err(|e| malformed(format!("has a bad `{key}`: {e}")))
        };
        let model = ModelLock {
            model_id,
            model_arch_hash: hash("model_arch_hash")?,
            model_weights_hash: hash("model_weights_hash")?,
            tokenizer_hash: hash("tokenizer_hash")?,
        };
        model.check()?;
        table.retain(|key, _| KEYS.contains(&key.as_str()));
        if let Some((key, value)) = table.iter().find(|(_, v)| v.len() > MAX_VALUE) {
            return Err(malformed(format!("has {} bytes in `{key}`; the limit is {MAX_VALUE}", value.len())));
        }
        Ok(Self { model, metadata: table })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(metadata: &str) -> Vec<u8> {
        let header = format!("{{\"__metadata__\":{metadata},\"tokens\":{{\"dtype\":\"I32\"}}}}");
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), b"data"].concat()
    }

    const ABC: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn good() -> String {
        format!(
            r#"{{"format":"bitnet-cartridge/1","layout":"native","model_id":"m","model_arch_hash":"{ABC}",
            "model_weights_hash":"{ABC}","tokenizer_hash":"{ABC}","n_tokens":"7","title":"free"}}"#
        )
    }

    #[test]
    fn the_lock_is_that_of_the_metadata() {
        let lock = CartridgeLock::read("x", &file(&good())[..]).unwrap();
        assert_eq!(lock.model.model_id, "m");
        assert_eq!(lock.model.model_weights_hash, Digest::of(b"abc"));
        let kept: Vec<(&str, &str)> = lock.metadata.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(kept, [("format", "bitnet-cartridge/1"), ("layout", "native"), ("n_tokens", "7")]);
    }

    #[test]
    fn hostile_headers_are_refused_by_name() {
        let problem = |bytes: &[u8]| CartridgeLock::read("x", bytes).unwrap_err().to_string();
        assert!(problem(b"GGUF").contains("shorter"));
        assert!(problem(&u64::MAX.to_le_bytes()).contains("18446744073709551615"));
        assert!(problem(&[&100u64.to_le_bytes()[..], b"{}"].concat()).contains("ends within"));
        assert!(problem(&file("null")).contains("metadata"));
        let twice = good().replace("\"n_tokens\":\"7\"", "\"n_tokens\":\"7\",\"n_tokens\":\"8\"");
        assert!(problem(&file(&twice)).contains("twice"));
        assert!(problem(&file(&good().replace("tokenizer_hash", "other"))).contains("`tokenizer_hash`"));
        assert!(problem(&file(&good().replace("cartridge/1", "cartridge/2"))).contains("too new"));
        assert!(problem(&file(&good().replace("cartridge/1", "cartridge/0"))).contains("too old"));
        assert!(problem(&file(&good().replace(ABC, "sha256:12"))).contains("model_arch_hash"));
    }

    #[test]
    fn a_difference_names_the_field_and_both_values() {
        let lock = CartridgeLock::read("x", &file(&good())[..]).unwrap().model;
        let mut other = lock.clone();
        assert!(lock.differences(&other).is_empty());
        other.model_id = "n".into();
        other.tokenizer_hash = Digest::of(b"other");
        let names: Vec<_> = lock.differences(&other).into_iter().map(|d| d.0).collect();
        assert_eq!(names, ["model_id", "tokenizer_hash"]);
    }
}
