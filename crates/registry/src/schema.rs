//! The `schema` field that every JSON form here begins with: `bitnet-harness.NAME/VERSION`.

use serde::Deserialize;

use crate::error::{Error, Result, shown};

/// Checks an object's `schema` against the one form that this program reads, e.g. `bitnet-harness.redteam/1`.
pub(crate) fn check(object: &str, found: &str, reads: &'static str) -> Result<()> {
    if found == reads {
        return Ok(());
    }
    let split = |text: &'_ str| -> Option<(String, u32)> {
        let (name, version) = text.rsplit_once('/')?;
        let plain = !version.is_empty() && version.len() <= 9 && version.bytes().all(|c| c.is_ascii_digit());
        Some((name.to_owned(), plain.then(|| version.parse().ok()).flatten()?))
    };
    if let (Some((name, version)), Some((own_name, own))) = (split(found), split(reads))
        && name == own_name
    {
        let (object, found) = (object.to_owned(), shown(found));
        if version < own {
            return Err(Error::TooOld { object, found, reads });
        }
        if version > own {
            return Err(Error::TooNew { object, found, reads });
        }
    }
    Err(Error::malformed(object, format!("has schema `{}`, not `{reads}`", shown(found))))
}

/// Parses a JSON document whose form is checked by its `schema` before anything else is looked at.
pub(crate) fn parse<'a, T: Deserialize<'a>>(object: &str, bytes: &'a [u8], reads: &'static str) -> Result<T> {
    #[derive(Deserialize)]
    struct Head {
        schema: String,
    }
    let head: Head = serde_json::from_slice(bytes)
        .map_err(|e| Error::malformed(object, format!("is not a JSON document with a `schema`: {e}")))?;
    check(object, &head.schema, reads)?;
    serde_json::from_slice(bytes).map_err(|e| Error::malformed(object, format!("is not of the form {reads}: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_new_are_told_apart() {
        let check = |found| check("x", found, "bitnet-harness.registry/1");
        assert!(check("bitnet-harness.registry/1").is_ok());
        assert!(matches!(check("bitnet-harness.registry/0"), Err(Error::TooOld { .. })));
        assert!(matches!(check("bitnet-harness.registry/2"), Err(Error::TooNew { .. })));
        assert!(matches!(check("bitnet-harness.registry/10"), Err(Error::TooNew { .. })));
        for other in ["bitnet-harness.gates/1", "bitnet-harness.registry", "bitnet-harness.registry/01", "", "x/-1"] {
            assert!(matches!(check(other), Err(Error::Malformed { .. })), "{other}");
        }
    }
}
