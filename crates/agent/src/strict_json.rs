//! JSON as the boundary reads it: bounded in size and depth, duplicate keys refused at any level.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Deepest nesting; a candidate needs two levels.
pub const MAX_DEPTH: usize = 4;
/// Most bytes of one document.
pub const MAX_BYTES: usize = 8 * 1024;

/// Why a text is not strict JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StrictJsonError {
    /// Longer than [`MAX_BYTES`].
    #[error("{bytes} bytes of JSON, the limit is {limit}")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// [`MAX_BYTES`].
        limit: usize,
    },
    /// A key occurs twice in one object.
    #[error("the key {key:?} occurs twice in one object")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// Nested deeper than [`MAX_DEPTH`].
    #[error("nested deeper than {limit} levels")]
    TooDeep {
        /// [`MAX_DEPTH`].
        limit: usize,
    },
    /// Not JSON.
    #[error("not valid JSON: {reason}")]
    Syntax {
        /// What the parser says.
        reason: String,
    },
}

/// Parses a whole text.
///
/// # Errors
/// [`StrictJsonError`], the first thing that is wrong.
pub fn parse(text: &str) -> Result<Value, StrictJsonError> {
    if text.len() > MAX_BYTES {
        return Err(StrictJsonError::TooLong { bytes: text.len(), limit: MAX_BYTES });
    }
    let mut found = None;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = Strict { depth: 0, found: &mut found }.deserialize(&mut deserializer);
    let value = value.and_then(|v| deserializer.end().map(|()| v));
    match (found, value) {
        (Some(error), _) => Err(error),
        (None, Ok(value)) => Ok(value),
        (None, Err(error)) => Err(StrictJsonError::Syntax { reason: error.to_string() }),
    }
}

/// Builds a [`Value`], keeping the typed reason beside serde's own error.
struct Strict<'f> {
    depth: usize,
    found: &'f mut Option<StrictJsonError>,
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Strict<'_> {
    fn deeper<E: de::Error>(&mut self) -> Result<usize, E> {
        if self.depth >= MAX_DEPTH {
            *self.found = Some(StrictJsonError::TooDeep { limit: MAX_DEPTH });
            return Err(E::custom("too deep"));
        }
        Ok(self.depth + 1)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }
    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }
    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }
    fn visit_f64<E: de::Error>(self, v: f64) -> Result<Value, E> {
        Number::from_f64(v).map(Value::Number).ok_or_else(|| E::custom("number is not finite"))
    }
    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<Value, A::Error> {
        let depth = self.deeper()?;
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(Strict { depth, found: &mut *self.found })? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }
    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Value, A::Error> {
        let depth = self.deeper()?;
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if object.contains_key(&key) {
                *self.found = Some(StrictJsonError::DuplicateKey { key: super::text::clipped(&key, 64) });
                return Err(de::Error::custom("duplicate key"));
            }
            let value = map.next_value_seed(Strict { depth, found: &mut *self.found })?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_keys_are_refused_at_any_level() {
        assert_eq!(parse(r#"{"a":1,"a":2}"#), Err(StrictJsonError::DuplicateKey { key: "a".into() }));
        assert_eq!(parse(r#"{"a":{"b":1,"\u0062":2}}"#), Err(StrictJsonError::DuplicateKey { key: "b".into() }));
    }

    #[test]
    fn depth_and_size_are_bounded() {
        assert!(parse("[[[[1]]]]").is_ok());
        assert_eq!(parse("[[[[[1]]]]]"), Err(StrictJsonError::TooDeep { limit: 4 }));
        assert_eq!(parse(&"[".repeat(8000)), Err(StrictJsonError::TooDeep { limit: 4 }));
        assert!(matches!(parse(&" ".repeat(9000)), Err(StrictJsonError::TooLong { .. })));
    }

    #[test]
    fn trailing_text_is_no_json() {
        assert!(matches!(parse("{} {}"), Err(StrictJsonError::Syntax { .. })));
        assert!(matches!(parse("{\"a\":"), Err(StrictJsonError::Syntax { .. })));
    }
}
