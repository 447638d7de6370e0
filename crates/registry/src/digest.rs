//! SHA-256 as the name of everything.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::Digest as _;

use crate::shown::shown;

/// A text, shortened, that is not a digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("digest `{0}` is not `sha256:` and 64 lower-case hexadecimal digits")]
pub struct NotADigest(pub(crate) String);

/// A SHA-256 digest; written `sha256:` and 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(sha2::Sha256::digest(bytes).into())
    }

    /// Reads `sha256:…`.
    ///
    /// # Errors
    /// [`NotADigest`] for anything else; upper-case digits included, so that one digest has one spelling.
    pub fn parse(text: &str) -> Result<Self, NotADigest> {
        text.strip_prefix("sha256:").and_then(Self::from_hex).ok_or_else(|| NotADigest(shown(text)))
    }

    /// Reads 64 lower-case hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        files::hex::digest(text).map(Self)
    }

    /// The 64 digits without the algorithm's name, as `sha256sum` prints them.
    pub fn hex(&self) -> String {
        self.0.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// The 32 bytes.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for Digest {
    type Err = NotADigest;

    fn from_str(text: &str) -> Result<Self, NotADigest> {
        Self::parse(text)
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// Digest of what streams by.
#[derive(Default)]
pub(crate) struct Hasher {
    state: sha2::Sha256,
    bytes: u64,
}

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.state.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn finish(self) -> Digest {
        Digest(self.state.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_fips_180() {
        // The examples of FIPS 180-2, appendix B.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Digest::of(b"abc").hex(), abc);
        let mut hasher = Hasher::default();
        hasher.update(b"a");
        hasher.update(b"bc");
        assert_eq!(hasher.bytes(), 3);
        assert_eq!(hasher.finish().to_string(), format!("sha256:{abc}"));
    }

    #[test]
    fn one_digest_has_one_spelling() {
        let hex = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Digest::parse(&format!("sha256:{hex}")).unwrap().hex(), hex);
        for wrong in [
            hex.to_owned(),
            format!("sha256:{}", hex.to_uppercase()),
            format!("sha256:{hex}0"),
            format!("sha256:{}", &hex[1..]),
            format!("sha512:{hex}"),
            format!("sha256:{}", hex.replace('b', "g")),
            format!("sha256:{}é", &hex[2..]),
        ] {
            assert!(Digest::parse(&wrong).is_err(), "{wrong}");
        }
    }
}
