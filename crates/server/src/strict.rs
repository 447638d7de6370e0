//! Requests read strictly: what could change the answer and is not known here is refused by its path.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{ApiError, clipped};

/// Reads a request. A field that `T` does not have is refused unless it is null.
///
/// # Errors
/// `invalid_json`, `invalid_value` and `unknown_field`, each with the path.
pub(crate) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let mut track = serde_path_to_error::Track::new();
    let mut unknown = Vec::new();
    let tracked = serde_path_to_error::Deserializer::new(&mut json, &mut track);
    let value = serde_ignored::deserialize(tracked, |path| unknown.push(segments(&path)));
    let value: T = match value {
        Ok(value) => value,
        Err(e) => {
            let path = track.path().to_string();
            // The position in the text says little of a body that a program wrote; the path says it.
            return Err(match e.classify() {
                serde_json::error::Category::Data => {
                    let error = ApiError::new("invalid_value", clipped(&e.to_string()));
                    if path == "." { error } else { error.at(path) }
                }
                _ => ApiError::new("invalid_json", clipped(&e.to_string())),
            });
        }
    };
    json.end().map_err(|e| ApiError::new("invalid_json", clipped(&e.to_string())))?;
    if unknown.is_empty() {
        return Ok(value);
    }
    // Null is what clients write for a field that they do not use.
    let whole: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    match unknown.iter().find(|path| !at(&whole, path).is_none_or(Value::is_null)) {
        None => Ok(value),
        Some(path) => {
            let path = joined(path);
            Err(ApiError::new(
                "unknown_field",
                format!("'{path}' is not supported; it could change the answer, so it is not ignored"),
            )
            .at(path))
        }
    }
}

/// Keys and indices, from the root.
fn segments(path: &serde_ignored::Path<'_>) -> Vec<String> {
    use serde_ignored::Path as P;
    let (parent, last) = match path {
        P::Root => return Vec::new(),
        P::Seq { parent, index } => (parent, Some(index.to_string())),
        P::Map { parent, key } => (parent, Some(key.clone())),
        P::Some { parent } | P::NewtypeStruct { parent } | P::NewtypeVariant { parent } => (parent, None),
    };
    let mut all = segments(parent);
    all.extend(last);
    all
}

fn at<'v>(value: &'v Value, path: &[String]) -> Option<&'v Value> {
    path.iter().try_fold(value, |v, key| match v {
        Value::Array(items) => items.get(key.parse::<usize>().ok()?),
        Value::Object(map) => map.get(key),
        _ => None,
    })
}

/// `messages[0].name`.
fn joined(path: &[String]) -> String {
    let mut out = String::new();
    for key in path {
        if key.bytes().all(|b| b.is_ascii_digit()) && !out.is_empty() {
            out.push_str(&format!("[{key}]"));
        } else {
            if !out.is_empty() {
                out.push('.');
            }
            out.push_str(key);
        }
    }
    clipped(&out)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize, Debug)]
    struct Outer {
        #[expect(dead_code, reason = "only its reading is looked at")]
        inner: Option<Vec<Inner>>,
    }

    #[derive(Deserialize, Debug)]
    struct Inner {
        #[expect(dead_code, reason = "only its reading is looked at")]
        n: u8,
    }

    fn refused(text: &str) -> (String, Option<String>) {
        let error = parse::<Outer>(text.as_bytes()).unwrap_err();
        (error.code().to_owned(), error.body().error.param)
    }

    #[test]
    fn what_is_unknown_or_wrong_is_named_by_its_path() {
        let case = |code: &str, path: &str| (code.to_owned(), Some(path.to_owned()));
        assert_eq!(refused(r#"{"x":1}"#), case("unknown_field", "x"));
        assert_eq!(refused(r#"{"inner":[{"n":1},{"n":1,"m":{}}]}"#), case("unknown_field", "inner[1].m"));
        assert_eq!(refused(r#"{"inner":[{"n":256}]}"#), case("invalid_value", "inner[0].n"));
        assert_eq!(refused(r#"{"inner":[{"n":1}]"#).0, "invalid_json");
        assert_eq!(refused(r#"{"inner":null} x"#).0, "invalid_json");
        assert_eq!(refused("").0, "invalid_json");
        assert_eq!(refused("[]").0, "invalid_value");
        assert_eq!(refused("\u{feff}{}").0, "invalid_json");
        assert_eq!(refused(&"[".repeat(100_000)).0, "invalid_value");
        assert_eq!(refused(&format!("{{\"x\":{}", "[".repeat(100_000))).0, "invalid_json");
        assert_eq!(refused(r#"{"inner":null,"inner":null}"#).0, "invalid_value");
    }

    #[test]
    fn null_is_no_use_of_a_field() {
        assert!(parse::<Outer>(br#"{"x":null,"inner":[{"n":1,"y":null}]}"#).is_ok());
    }
}
