//! Names that people give and that become parts of paths: parsed once, harmless afterwards.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, shown};

/// The file that a pulled version's signature has; no other file can have this name.
pub const SIGNATURE_FILE: &str = "model.sig";

/// The longest text in a field for people, in bytes.
pub const MAX_TEXT: usize = 2_000;

macro_rules! name {
    ($type:ident, $what:literal, $max:literal, $first:expr, $rest:expr, $rule:literal) => {
        impl $type {
            /// Checks a name.
            ///
            /// # Errors
            /// [`Error::Argument`] with the rule.
            pub fn parse(text: &str) -> Result<Self> {
                let first: fn(u8) -> bool = $first;
                let rest: fn(u8) -> bool = $rest;
                let bytes = text.as_bytes();
                let good = bytes.first().is_some_and(|c| first(*c))
                    && bytes.len() <= $max
                    && bytes.iter().all(|c| rest(*c))
                    && !text.contains("..")
                    && Self::allowed(text);
                if good {
                    Ok(Self(text.to_owned()))
                } else {
                    Err(Error::Argument { what: $what, value: shown(text), problem: $rule.into() })
                }
            }

            /// The name.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::str::FromStr for $type {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                Self::parse(text)
            }
        }

        impl Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::parse(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

/// A channel: what a server follows, `stable` or `kitchen-canary`, say.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelName(String);

impl ChannelName {
    fn allowed(_: &str) -> bool {
        true
    }
}

name!(
    ChannelName,
    "channel",
    64,
    |c| c.is_ascii_lowercase() || c.is_ascii_digit(),
    |c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b'-' | b'_' | b'.'),
    "is not a channel's name: 1 to 64 of a-z, 0-9, `-`, `_` and `.`, a letter or digit first, no `..`"
);

/// A file of a version, as it is called in a pulled folder.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileName(String);

impl FileName {
    // The first because the signature lies beside the files; the others because independent verifiers leave files out
    // that belong to git, and no dot comes first anyway.
    fn allowed(text: &str) -> bool {
        !text.eq_ignore_ascii_case(SIGNATURE_FILE)
    }
}

name!(
    FileName,
    "file name",
    128,
    |c| c.is_ascii_alphanumeric(),
    |c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.' | b'+'),
    "is not a file name of a version: 1 to 128 of letters, digits, `-`, `_`, `.` and `+`, a letter or digit first, \
     no `..`, not `model.sig`"
);

/// Checks a text for people.
pub(crate) fn text(what: &'static str, text: &str) -> Result<()> {
    let problem = if text.len() > MAX_TEXT {
        format!("has {} bytes; the limit is {MAX_TEXT}", text.len())
    } else if text.chars().any(|c| c.is_control() && c != '\n' && c != '\t') {
        "has control characters".into()
    } else {
        return Ok(());
    };
    Err(Error::Argument { what, value: shown(text), problem })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_folder() {
        for good in ["stable", "0", "kitchen-canary_2.1"] {
            assert_eq!(ChannelName::parse(good).unwrap().as_str(), good);
        }
        let long = "a".repeat(65);
        for bad in
            ["", ".", "..", "a..b", "a/b", "/a", "-a", ".hidden", "Stable", "a b", "a\0", "é", "a%2f", &long, "a#1"]
        {
            assert!(ChannelName::parse(bad).is_err(), "{bad:?}");
        }
        for good in ["a.safetensors", "REPORT+1.json", "9"] {
            assert_eq!(FileName::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", "..", "../x", "a/b", "a\\b", ".git", "model.sig", "MODEL.sig", "a\nb", "x..y"] {
            assert!(FileName::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn texts_are_bounded_and_printable() {
        assert!(text("why", "because\nof two lines").is_ok());
        assert!(text("why", &"x".repeat(MAX_TEXT)).is_ok());
        assert!(text("why", &"x".repeat(MAX_TEXT + 1)).unwrap_err().to_string().contains("2000"));
        assert!(text("why", "\u{1b}[31m").is_err());
    }
}
