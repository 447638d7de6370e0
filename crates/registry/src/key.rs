//! Keys as files: PEM, the forms that `openssl genpkey` and `openssl pkey -pubout` write.
//!
//! Ed25519 is the default. ECDSA on P-256 is there because the OpenSSF's own verifier (`model_signing verify key`)
//! accepts elliptic-curve keys only. A key's id is the SHA-256 of its public PEM text, which is also what a
//! Sigstore bundle names the key by.

use std::fmt;
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::Signer as _;
use ring::signature::{ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::error::{Error, Result};

/// No key file is longer, in bytes.
const MAX_PEM: u64 = 16 << 10;

// SubjectPublicKeyInfo and PKCS #8 (version 1) of the two algorithms have a constant beginning (RFC 8410, RFC 5480).
const ED25519_PUBLIC: &[u8] = &[0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
const ED25519_SECRET: &[u8] =
    &[0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
const P256_PUBLIC: &[u8] = &[
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// What a key signs with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// Ed25519 (RFC 8032).
    Ed25519,
    /// ECDSA on P-256 with SHA-256, signatures in ASN.1 DER.
    EcdsaP256,
}

/// The SHA-256 of a public key's PEM text, 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct KeyId(String);

impl KeyId {
    /// Reads an id.
    ///
    /// # Errors
    /// [`Error::Argument`] unless it is 64 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self> {
        match Digest::from_hex(text) {
            Some(_) => Ok(Self(text.to_owned())),
            None => Err(Error::Argument {
                what: "key id",
                value: crate::error::shown(text),
                problem: "is not 64 lower-case hexadecimal digits".into(),
            }),
        }
    }

    /// The 64 digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A key that verifies.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey {
    algorithm: Algorithm,
    der: Vec<u8>,
    id: KeyId,
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({:?} {})", self.algorithm, self.id)
    }
}

impl PublicKey {
    fn from_der(der: Vec<u8>) -> Result<Self, String> {
        let algorithm = if let Some(raw) = der.strip_prefix(ED25519_PUBLIC) {
            let raw: &[u8; 32] = raw.try_into().map_err(|_| "is an Ed25519 key of a wrong length".to_owned())?;
            let key = ed25519_dalek::VerifyingKey::from_bytes(raw)
                .map_err(|_| "is no point of Ed25519; it was damaged".to_owned())?;
            // A key of small order accepts signatures that nobody made.
            if key.is_weak() {
                return Err("is a weak Ed25519 key (of small order)".into());
            }
            Algorithm::Ed25519
        } else if let Some(raw) = der.strip_prefix(P256_PUBLIC) {
            if raw.len() != 65 || raw[0] != 4 {
                return Err("is a P-256 key of a wrong length or a compressed one".into());
            }
            Algorithm::EcdsaP256
        } else {
            return Err("is neither an Ed25519 nor a P-256 public key".into());
        };
        let id = KeyId(Digest::of(pem("PUBLIC KEY", &der).as_bytes()).hex());
        Ok(Self { algorithm, der, id })
    }

    /// Reads PEM text (`-----BEGIN PUBLIC KEY-----`).
    ///
    /// # Errors
    /// [`Error::Malformed`]; `object` is what the text is called in it.
    pub fn from_pem(object: &str, text: &str) -> Result<Self> {
        let der = unpem("PUBLIC KEY", text).map_err(|e| Error::malformed(object, e))?;
        Self::from_der(der).map_err(|e| Error::malformed(object, e))
    }

    /// Reads a key file.
    ///
    /// # Errors
    /// [`Error::Key`] if the file is missing or holds something else.
    pub fn read(path: &Path) -> Result<Self> {
        let text = read_pem(path)?;
        if text.contains("PRIVATE KEY") {
            return Err(key_error(path, "is a private key; give the public one, and keep this where it is"));
        }
        let der = unpem("PUBLIC KEY", &text).map_err(|e| key_error(path, e))?;
        Self::from_der(der).map_err(|e| key_error(path, e))
    }

    /// The PEM text, lines of 64, with a newline at the end; its SHA-256 is the key's id.
    pub fn to_pem(&self) -> String {
        pem("PUBLIC KEY", &self.der)
    }

    /// What it verifies.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The key's id.
    pub fn id(&self) -> &KeyId {
        &self.id
    }

    /// Whether `signature` is this key's of `message`.
    pub fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        match self.algorithm {
            Algorithm::Ed25519 => {
                let raw = &self.der[ED25519_PUBLIC.len()..];
                let (Ok(raw), Ok(signature)) = (raw.try_into(), ed25519_dalek::Signature::from_slice(signature)) else {
                    return false;
                };
                ed25519_dalek::VerifyingKey::from_bytes(raw)
                    .is_ok_and(|key| key.verify_strict(message, &signature).is_ok())
            }
            Algorithm::EcdsaP256 => {
                ring::signature::UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &self.der[P256_PUBLIC.len()..])
                    .verify(message, signature)
                    .is_ok()
            }
        }
    }
}

impl Serialize for PublicKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_pem())
    }
}

impl<'de> Deserialize<'de> for PublicKey {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::from_pem("public key", &text).map_err(serde::de::Error::custom)
    }
}

enum Secret {
    Ed25519(Box<ed25519_dalek::SigningKey>),
    EcdsaP256(Box<EcdsaKeyPair>),
}

/// A key that signs. Its secret is never printed and is written by [`SecretKey::generate`] alone.
pub struct SecretKey {
    secret: Secret,
    public: PublicKey,
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey({})", self.public.id)
    }
}

impl SecretKey {
    /// Makes a new key and its PEM text (PKCS #8).
    ///
    /// # Panics
    /// If the system has no random numbers to give.
    pub fn generate(algorithm: Algorithm) -> (Self, String) {
        let random = ring::rand::SystemRandom::new();
        let der = match algorithm {
            Algorithm::Ed25519 => {
                let seed: [u8; 32] =
                    ring::rand::generate(&random).expect("the system's random number generator works").expose();
                [ED25519_SECRET, &seed].concat()
            }
            Algorithm::EcdsaP256 => EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random)
                .expect("the system's random number generator works")
                .as_ref()
                .to_vec(),
        };
        let key = Self::from_der(&der).expect("a key just made is well-formed");
        (key, pem("PRIVATE KEY", &der))
    }

    fn from_der(der: &[u8]) -> Result<Self, String> {
        if let Some(seed) = der.strip_prefix(ED25519_SECRET) {
            let seed: &[u8; 32] = seed.try_into().map_err(|_| "is an Ed25519 key of a wrong length".to_owned())?;
            let key = ed25519_dalek::SigningKey::from_bytes(seed);
            let public = PublicKey::from_der([ED25519_PUBLIC, key.verifying_key().as_bytes()].concat())?;
            return Ok(Self { secret: Secret::Ed25519(Box::new(key)), public });
        }
        let random = ring::rand::SystemRandom::new();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, der, &random).map_err(|e| {
            format!("is neither an Ed25519 (PKCS #8, as `openssl genpkey -algorithm ed25519` writes it) nor a P-256 key: {e}")
        })?;
        let public = PublicKey::from_der([P256_PUBLIC, pair.public_key().as_ref()].concat())?;
        Ok(Self { secret: Secret::EcdsaP256(Box::new(pair)), public })
    }

    /// Reads PEM text (`-----BEGIN PRIVATE KEY-----`, not encrypted).
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn from_pem(text: &str) -> Result<Self> {
        let der = unpem("PRIVATE KEY", text).map_err(|e| Error::malformed("private key", e))?;
        Self::from_der(&der).map_err(|e| Error::malformed("private key", e))
    }

    /// Reads a key file, which only its owner may be able to read.
    ///
    /// # Errors
    /// [`Error::Key`] if it is missing, readable for others, or holds something else.
    pub fn read(path: &Path) -> Result<Self> {
        let text = read_pem(path)?;
        let mode = std::fs::metadata(path).map_err(|e| key_error(path, e.to_string()))?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(key_error(
                path,
                format!("can be read or changed by others (mode {:03o}); `chmod 600` it", mode & 0o777),
            ));
        }
        if text.contains("ENCRYPTED") {
            return Err(key_error(path, "is encrypted, which is not supported; decrypt it with `openssl pkey`"));
        }
        let der = unpem("PRIVATE KEY", &text).map_err(|e| key_error(path, e))?;
        Self::from_der(&der).map_err(|e| key_error(path, e))
    }

    /// The half that may be shown.
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// The key's id.
    pub fn id(&self) -> &KeyId {
        &self.public.id
    }

    /// Signs a message.
    ///
    /// # Panics
    /// If the system has no random numbers to give (ECDSA needs one a signature).
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        match &self.secret {
            Secret::Ed25519(key) => key.sign(message).to_bytes().to_vec(),
            Secret::EcdsaP256(pair) => pair
                .sign(&ring::rand::SystemRandom::new(), message)
                .expect("the system's random number generator works")
                .as_ref()
                .to_vec(),
        }
    }
}

/// Writes a new key pair: `path` (mode 600) and `path.pub`.
///
/// # Errors
/// [`Error::Exists`] if one of them is there (a key is never replaced), [`Error::File`].
pub fn write_pair(path: &Path, algorithm: Algorithm) -> Result<PublicKey> {
    let mut public_path = path.as_os_str().to_owned();
    public_path.push(".pub");
    let public_path = std::path::PathBuf::from(public_path);
    for path in [path, &public_path] {
        if path.symlink_metadata().is_ok() {
            return Err(Error::Exists { path: path.to_owned() });
        }
    }
    let (key, text) = SecretKey::generate(algorithm);
    write_new(path, 0o600, text.as_bytes())?;
    write_new(&public_path, 0o644, key.public().to_pem().as_bytes())?;
    Ok(key.public().clone())
}

fn write_new(path: &Path, mode: u32, content: &[u8]) -> Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new()
        .permissions(std::fs::Permissions::from_mode(mode))
        .tempfile_in(folder)
        .map_err(Error::file(path))?;
    file.write_all(content).and_then(|()| file.as_file().sync_all()).map_err(Error::file(path))?;
    file.persist_noclobber(path).map_err(|e| match e.error.kind() {
        std::io::ErrorKind::AlreadyExists => Error::Exists { path: path.to_owned() },
        _ => Error::File { path: path.to_owned(), source: e.error },
    })?;
    Ok(())
}

fn key_error(path: &Path, problem: impl Into<String>) -> Error {
    Error::Key { path: path.to_owned(), problem: problem.into() }
}

fn read_pem(path: &Path) -> Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    // Not blocked by a pipe that nobody writes to.
    let file = std::fs::OpenOptions::new().read(true).custom_flags(NONBLOCK).open(path);
    let file = file.map_err(|e| key_error(path, e.to_string()))?;
    if !file.metadata().is_ok_and(|m| m.is_file()) {
        return Err(key_error(path, "is not a regular file"));
    }
    let read = file.take(MAX_PEM + 1).read_to_string(&mut text).map_err(|e| key_error(path, e.to_string()))?;
    if read as u64 > MAX_PEM {
        return Err(key_error(path, format!("is longer than {MAX_PEM} bytes; it is no key")));
    }
    Ok(text)
}

/// `O_NONBLOCK` of Linux on the platforms of this project (x86-64, aarch64).
const NONBLOCK: i32 = 0o4000;

fn pem(label: &str, der: &[u8]) -> String {
    let mut text = format!("-----BEGIN {label}-----\n");
    let body = BASE64.encode(der);
    for line in body.as_bytes().chunks(64) {
        text.extend(line.iter().map(|c| char::from(*c)));
        text.push('\n');
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}

fn unpem(label: &str, text: &str) -> Result<Vec<u8>, String> {
    let (begin, end) = (format!("-----BEGIN {label}-----"), format!("-----END {label}-----"));
    let body = text
        .trim()
        .strip_prefix(&begin)
        .and_then(|rest| rest.strip_suffix(&end))
        .ok_or_else(|| format!("is not PEM text from `{begin}` to `{end}`"))?;
    let body: String = body.split_ascii_whitespace().collect();
    BASE64.decode(body).map_err(|e| format!("has a PEM body that is not base64: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    // RFC 8410, section 10.3 and 10.1.
    const RFC8410_SECRET: &str = "-----BEGIN PRIVATE KEY-----\n\
        MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n-----END PRIVATE KEY-----\n";
    const RFC8410_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\n\
        MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n-----END PUBLIC KEY-----\n";

    #[test]
    fn the_rfc_keys_belong_together() {
        let secret = SecretKey::from_pem(RFC8410_SECRET).unwrap();
        let public = PublicKey::from_pem("x", RFC8410_PUBLIC).unwrap();
        assert_eq!(secret.public(), &public);
        assert_eq!(public.to_pem(), RFC8410_PUBLIC);
        // printf of the public PEM | sha256sum
        assert_eq!(public.id().as_str(), Digest::of(RFC8410_PUBLIC.as_bytes()).hex());
    }

    #[test]
    fn a_signature_is_that_of_rfc_8032() {
        // RFC 8032, section 7.1, test 2: one byte 0x72.
        let seed = Digest::from_hex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb").unwrap();
        let key = SecretKey::from_der(&[ED25519_SECRET, seed.bytes()].concat()).unwrap();
        let expected = "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da\
                        085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00";
        let signature: String = key.sign(&[0x72]).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(signature, expected);
        assert!(key.public().verify(&[0x72], &key.sign(&[0x72])));
    }

    #[test]
    fn both_algorithms_refuse_what_they_did_not_sign() {
        for algorithm in [Algorithm::Ed25519, Algorithm::EcdsaP256] {
            let (key, text) = SecretKey::generate(algorithm);
            assert_eq!(SecretKey::from_pem(&text).unwrap().public(), key.public());
            let public = PublicKey::from_pem("x", &key.public().to_pem()).unwrap();
            let mut signature = key.sign(b"message");
            assert!(public.verify(b"message", &signature));
            assert!(!public.verify(b"messagf", &signature));
            assert!(!public.verify(b"message", &signature[1..]));
            assert!(!public.verify(b"message", b""));
            let last = signature.len() - 1;
            signature[last] ^= 1;
            assert!(!public.verify(b"message", &signature));
            let (other, _) = SecretKey::generate(algorithm);
            assert!(!other.public().verify(b"message", &key.sign(b"message")));
        }
    }

    #[test]
    fn weak_and_foreign_keys_are_refused() {
        // The neutral element, of order 1: it verifies signatures that nobody made.
        let mut neutral = [0u8; 32];
        neutral[0] = 1;
        let text = pem("PUBLIC KEY", &[ED25519_PUBLIC, &neutral].concat());
        assert!(PublicKey::from_pem("x", &text).unwrap_err().to_string().contains("weak"));
        for text in ["", "-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----", RFC8410_SECRET, "ssh-ed25519 AAAA"] {
            assert!(PublicKey::from_pem("x", text).is_err(), "{text}");
        }
    }

    #[test]
    fn key_files_are_private_and_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("alice");
        let public = write_pair(&path, Algorithm::Ed25519).unwrap();
        assert_eq!(SecretKey::read(&path).unwrap().public(), &public);
        assert_eq!(PublicKey::read(&folder.path().join("alice.pub")).unwrap(), public);
        assert!(matches!(write_pair(&path, Algorithm::Ed25519), Err(Error::Exists { .. })));
        let err = PublicKey::read(&path).unwrap_err().to_string();
        assert!(err.contains("private"), "{err}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let err = SecretKey::read(&path).unwrap_err().to_string();
        assert!(err.contains("640") && err.contains("chmod 600"), "{err}");
    }
}
