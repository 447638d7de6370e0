//! Content hashes.

use sha2::{Digest as _, Sha256};
use std::fmt;
use std::str::FromStr;

/// Hash functions a cartridge may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HashAlgorithm {
    /// SHA-256: in every language's standard library.
    Sha256,
    /// BLAKE3: what this program writes, several times faster.
    Blake3,
}

impl HashAlgorithm {
    pub(super) fn digest(self, bytes: &[u8]) -> [u8; 32] {
        match self {
            HashAlgorithm::Sha256 => Sha256::digest(bytes).into(),
            HashAlgorithm::Blake3 => blake3::hash(bytes).into(),
        }
    }
}

/// A hash as written in metadata: `sha256:<hex>` or `blake3:<hex>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest {
    /// Algorithm.
    pub algorithm: HashAlgorithm,
    /// The 32 bytes.
    pub bytes: [u8; 32],
}

impl Digest {
    /// The two-level payload hash from the digests of keys, then values, each by layer.
    pub(super) fn of_tensors(algorithm: HashAlgorithm, digests: &[[u8; 32]]) -> Digest {
        Digest { algorithm, bytes: algorithm.digest(digests.as_flattened()) }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.algorithm {
            HashAlgorithm::Sha256 => "sha256:",
            HashAlgorithm::Blake3 => "blake3:",
        })?;
        self.bytes.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl FromStr for Digest {
    type Err = ();

    fn from_str(s: &str) -> Result<Digest, ()> {
        let (algorithm, hex) = match s.split_once(':') {
            Some(("sha256", hex)) => (HashAlgorithm::Sha256, hex),
            Some(("blake3", hex)) => (HashAlgorithm::Blake3, hex),
            _ => return Err(()),
        };
        let bytes = files::hex::digest(hex).ok_or(())?;
        Ok(Digest { algorithm, bytes })
    }
}

/// The `tokens_hash` of a cartridge: SHA-256 over the ids as little-endian i32.
pub fn tokens_hash(tokens: &[i32]) -> Digest {
    let mut hasher = Sha256::new();
    for t in tokens {
        hasher.update(t.to_le_bytes());
    }
    Digest { algorithm: HashAlgorithm::Sha256, bytes: hasher.finalize().into() }
}
