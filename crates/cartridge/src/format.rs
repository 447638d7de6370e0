//! Metadata fields of the format.

use super::{CartridgeError, Layout, RopeType};
use kv::{KvType, ValueLayout};
use std::fmt;
use std::str::FromStr;

/// `format` of the files this program writes.
pub const FORMAT: &str = "bitnet-cartridge/1";

const FORMAT_PREFIX: &str = "bitnet-cartridge/";
const VERSION: u32 = 1;

/// The metadata of a cartridge, checked field by field.
#[derive(Debug, Clone, PartialEq)]
pub struct Fields {
    /// Layout.
    pub layout: Layout,
    /// Name of the model.
    pub model_id: String,
    /// Hash of the architecture.
    pub model_arch_hash: String,
    /// Hash of the weights.
    pub model_weights_hash: String,
    /// Hash of the tokenizer.
    pub tokenizer_hash: String,
    /// Number of tokens, at least 1.
    pub n_tokens: u32,
    /// Position of the first token.
    pub first_pos: u32,
    /// Element type of the keys.
    pub type_k: KvType,
    /// Element type of the values.
    pub type_v: KvType,
    /// Pairing of rotated elements.
    pub rope_type: RopeType,
    /// Base frequency.
    pub rope_theta: f32,
    /// Frequency scaling.
    pub rope_scaling: String,
    /// Rotated elements of a head; all if absent.
    pub rope_dim: Option<u32>,
    /// Layout of the values; native only.
    pub value_layout: Option<ValueLayout>,
    /// Commit of the engine; always present in native files.
    pub engine: Option<String>,
    /// Hash of the tokens.
    pub tokens_hash: String,
    /// Hash of keys and values.
    pub payload_hash: Option<String>,
}

impl Fields {
    pub(super) fn parse(metadata: &[(String, String)]) -> Result<Fields, CartridgeError> {
        let table = Table(metadata);
        check_version(table.get("format"))?;
        let layout = match table.required("layout")? {
            "native" => Layout::Native,
            "head-major" => Layout::HeadMajor,
            found => return Err(field("layout", found, "native or head-major")),
        };
        let native = layout == Layout::Native;
        let n_tokens = table.integer("n_tokens")?;
        if n_tokens == 0 {
            return Err(field("n_tokens", "0", "at least 1"));
        }
        let first_pos = table.integer("first_pos")?;
        // Positions are i32 in the engine, and decoding goes on at the next one.
        if u64::from(first_pos) + u64::from(n_tokens) > i32::MAX as u64 {
            return Err(field("first_pos", first_pos, "first_pos + n_tokens below 2^31"));
        }
        let kv_type = |key: &'static str| -> Result<KvType, CartridgeError> {
            let found = table.required(key)?;
            let expected = if native { "a KV type" } else { "f16, bf16 or f32 in head-major layout" };
            let t = KvType::from_str(found).map_err(|_| field(key, found, expected))?;
            if !native && t.is_quantized() {
                return Err(field(key, found, expected));
            }
            Ok(t)
        };
        let (type_k, type_v) = (kv_type("type_k")?, kv_type("type_v")?);
        let rope_type = match table.required("rope_type")? {
            "neox" => RopeType::Neox,
            "norm" => RopeType::Norm,
            "none" => RopeType::None,
            found => return Err(field("rope_type", found, "neox, norm or none")),
        };
        let found = table.required("rope_theta")?;
        let rope_theta = f32::from_str(found)
            .ok()
            .filter(|x| x.is_finite() && *x > 0.0)
            .ok_or_else(|| field("rope_theta", found, "a positive number"))?;
        let rope_dim = match table.get("rope_dim") {
            None => None,
            Some(_) => Some(table.integer("rope_dim")?),
        };
        let value_layout = match (native, table.get("v_trans")) {
            (true, Some("1")) => Some(ValueLayout::Transposed),
            (true, Some("0")) => Some(ValueLayout::Rows),
            (true, Some(found)) => return Err(field("v_trans", found, "0 or 1")),
            (true, None) => return Err(CartridgeError::MissingField("v_trans")),
            // Head-major values have one layout; a stray flag would only mislead.
            (false, Some(found)) => return Err(field("v_trans", found, "absent in head-major layout")),
            (false, None) => None,
        };
        if native && table.get("engine").is_none() {
            return Err(CartridgeError::MissingField("engine"));
        }
        let hash = |key: &'static str| -> Result<String, CartridgeError> {
            let found = table.required(key)?;
            let well_formed = found.split_once(':').is_some_and(|(algorithm, hex)| {
                !algorithm.is_empty() && !hex.is_empty() && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
            });
            if well_formed { Ok(found.to_owned()) } else { Err(field(key, found, "<algorithm>:<lower-case hex>")) }
        };
        Ok(Fields {
            layout,
            model_id: table.required("model_id")?.to_owned(),
            model_arch_hash: hash("model_arch_hash")?,
            model_weights_hash: hash("model_weights_hash")?,
            tokenizer_hash: hash("tokenizer_hash")?,
            n_tokens,
            first_pos,
            type_k,
            type_v,
            rope_type,
            rope_theta,
            rope_scaling: table.required("rope_scaling")?.to_owned(),
            rope_dim,
            value_layout,
            engine: table.get("engine").map(str::to_owned),
            tokens_hash: hash("tokens_hash")?,
            payload_hash: match table.get("payload_hash") {
                None => None,
                Some(_) => Some(hash("payload_hash")?),
            },
        })
    }
}

fn check_version(format: Option<&str>) -> Result<(), CartridgeError> {
    let Some(format) = format else {
        return Err(CartridgeError::NotACartridge("it has no metadata field `format`".to_owned()));
    };
    let other = || CartridgeError::NotACartridge(format!("its format is {:?}", shorten(format)));
    let version = format.strip_prefix(FORMAT_PREFIX).ok_or_else(other)?;
    match parse_integer(version) {
        Some(VERSION) => Ok(()),
        Some(0) => Err(CartridgeError::TooOld { found: shorten(format), supported: FORMAT }),
        // A version past u32 is still a version.
        Some(_) => Err(CartridgeError::TooNew { found: shorten(format), supported: FORMAT }),
        None if is_canonical_digits(version) => {
            Err(CartridgeError::TooNew { found: shorten(format), supported: FORMAT })
        }
        None => Err(other()),
    }
}

fn is_canonical_digits(s: &str) -> bool {
    !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit()) && (s == "0" || !s.starts_with('0'))
}

/// A decimal integer without sign or leading zeros.
pub(super) fn parse_integer(s: &str) -> Option<u32> {
    if is_canonical_digits(s) { s.parse().ok() } else { None }
}

struct Table<'a>(&'a [(String, String)]);

impl<'a> Table<'a> {
    fn get(&self, key: &str) -> Option<&'a str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    fn required(&self, key: &'static str) -> Result<&'a str, CartridgeError> {
        self.get(key).ok_or(CartridgeError::MissingField(key))
    }

    fn integer(&self, key: &'static str) -> Result<u32, CartridgeError> {
        let found = self.required(key)?;
        parse_integer(found).ok_or_else(|| field(key, found, "a decimal integer below 2^32"))
    }
}

fn field(field: &'static str, found: impl fmt::Display, expected: &'static str) -> CartridgeError {
    CartridgeError::Field { field, found: shorten(&found.to_string()), expected }
}

fn shorten(s: &str) -> String {
    s.chars().take(80).collect()
}
