//! Signed statements: an in-toto statement in a DSSE envelope in a Sigstore bundle.
//!
//! It is the form of the OpenSSF's model signing, so that a version's manifest can be verified by other programs.
//! Policies and log records have it too: one reader, one verifier. What kind a statement is stands in its
//! `predicateType`, inside of what is signed, so that none can be passed off as another.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::error::{Error, Result, shown};
use crate::key::{KeyId, PublicKey, SecretKey};

const BUNDLE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";
const PAYLOAD: &str = "application/vnd.in-toto+json";
const STATEMENT: &str = "https://in-toto.io/Statement/v1";

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Bundle {
    media_type: String,
    verification_material: Material,
    dsse_envelope: Envelope,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Material {
    public_key: Hint,
    tlog_entries: [(); 0],
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Hint {
    hint: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Envelope {
    payload: String,
    payload_type: String,
    signatures: [Signature; 1],
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Signature {
    sig: String,
    #[serde(default)]
    keyid: String,
}

/// What a statement is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) digest: SubjectDigest,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SubjectDigest {
    pub(crate) sha256: String,
}

impl Subject {
    pub(crate) fn new(name: impl Into<String>, digest: &Digest) -> Self {
        Self { name: name.into(), digest: SubjectDigest { sha256: digest.hex() } }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Statement<P> {
    #[serde(rename = "_type")]
    kind: String,
    subject: [Subject; 1],
    predicate_type: String,
    predicate: P,
}

/// A bundle as it lies in the store: parsed, its signature not looked at yet.
#[derive(Debug, Clone)]
pub(crate) struct Signed {
    /// The exact bytes, whose digest names or chains the object.
    pub(crate) bytes: Bytes,
    pub(crate) digest: Digest,
    /// Which key the bundle says it was signed with.
    pub(crate) key: KeyId,
    object: String,
    payload: Vec<u8>,
    signature: Vec<u8>,
}

/// The content of a bundle whose signature held.
#[derive(Debug, Clone)]
pub(crate) struct Opened<P> {
    pub(crate) subject: Subject,
    pub(crate) predicate: P,
}

/// DSSE's pre-authentication encoding: what is signed.
fn pae(payload: &[u8]) -> Vec<u8> {
    let mut message = format!("DSSEv1 {} {PAYLOAD} {} ", PAYLOAD.len(), payload.len()).into_bytes();
    message.extend_from_slice(payload);
    message
}

impl Signed {
    /// Signs a statement.
    pub(crate) fn new<P: Serialize>(
        object: impl Into<String>,
        key: &SecretKey,
        subject: Subject,
        predicate_type: &str,
        predicate: &P,
    ) -> Self {
        let statement = Statement {
            kind: STATEMENT.to_owned(),
            subject: [subject],
            predicate_type: predicate_type.to_owned(),
            predicate,
        };
        let payload = serde_json::to_vec(&statement).expect("our statements have only what JSON can say");
        let signature = key.sign(&pae(&payload));
        let bundle = Bundle {
            media_type: BUNDLE.to_owned(),
            verification_material: Material {
                public_key: Hint { hint: key.id().as_str().to_owned() },
                tlog_entries: [],
            },
            dsse_envelope: Envelope {
                payload: BASE64.encode(&payload),
                payload_type: PAYLOAD.to_owned(),
                signatures: [Signature { sig: BASE64.encode(&signature), keyid: String::new() }],
            },
        };
        let bytes: Bytes = serde_json::to_vec(&bundle).expect("a bundle has only what JSON can say").into();
        let digest = Digest::of(&bytes);
        Self { digest, key: key.id().clone(), object: object.into(), payload, signature, bytes }
    }

    /// Reads a bundle; `object` is what it is called in errors.
    pub(crate) fn parse(object: impl Into<String>, bytes: Bytes) -> Result<Self> {
        let object = object.into();
        let malformed = |problem: String| Error::malformed(&object, problem);
        let bundle: Bundle = serde_json::from_slice(&bytes)
            .map_err(|e| malformed(format!("is not a Sigstore bundle with one DSSE signature by a key: {e}")))?;
        if bundle.media_type != BUNDLE {
            return Err(malformed(format!("has the media type `{}`, not {BUNDLE}", shown(&bundle.media_type))));
        }
        let envelope = bundle.dsse_envelope;
        if envelope.payload_type != PAYLOAD {
            return Err(malformed(format!("has the payload type `{}`, not {PAYLOAD}", shown(&envelope.payload_type))));
        }
        let decode = |field: &str, text: &str| {
            BASE64.decode(text).map_err(|e| malformed(format!("has a {field} that is not base64: {e}")))
        };
        let [signature] = &envelope.signatures;
        let payload = decode("payload", &envelope.payload)?;
        let signature = decode("signature", &signature.sig)?;
        let key = KeyId::parse(&bundle.verification_material.public_key.hint)
            .map_err(|e| malformed(format!("names no key: {e}")))?;
        Ok(Self { digest: Digest::of(&bytes), bytes, key, object, payload, signature })
    }

    /// What the object is called in errors.
    pub(crate) fn object(&self) -> &str {
        &self.object
    }

    /// Checks the signature and opens the statement.
    pub(crate) fn open<P: DeserializeOwned>(&self, key: &PublicKey, predicate_type: &str) -> Result<Opened<P>> {
        if &self.key != key.id() || !key.verify(&pae(&self.payload), &self.signature) {
            return Err(Error::untrusted(&self.object, format!("its signature is not that of key {}", key.id())));
        }
        self.open_unverified(predicate_type)
    }

    /// The statement of a bundle whose integrity is known from elsewhere, or that is only looked at to find the key.
    pub(crate) fn open_unverified<P: DeserializeOwned>(&self, predicate_type: &str) -> Result<Opened<P>> {
        // The kind before the content: a content of another kind would be called malformed for no good reason.
        let kind: Statement<serde::de::IgnoredAny> = serde_json::from_slice(&self.payload)
            .map_err(|e| Error::malformed(&self.object, format!("does not hold an in-toto statement: {e}")))?;
        for (field, found, expected) in
            [("_type", &kind.kind, STATEMENT), ("predicateType", &kind.predicate_type, predicate_type)]
        {
            if found != expected {
                return Err(Error::malformed(
                    &self.object,
                    format!("has the {field} `{}`, not `{expected}`", shown(found)),
                ));
            }
        }
        let statement: Statement<P> = serde_json::from_slice(&self.payload)
            .map_err(|e| Error::malformed(&self.object, format!("does not have the form of its kind: {e}")))?;
        let [subject] = statement.subject;
        Ok(Opened { subject, predicate: statement.predicate })
    }

    /// `schema` inside of the predicate (or one level down, at `within`), before the rest is parsed.
    pub(crate) fn schema(&self, within: Option<&str>) -> Result<String> {
        let statement: Statement<serde_json::Value> = serde_json::from_slice(&self.payload)
            .map_err(|e| Error::malformed(&self.object, format!("does not hold an in-toto statement: {e}")))?;
        let body = within.map_or(Some(&statement.predicate), |name| statement.predicate.get(name));
        body.and_then(|b| b.get("schema")).and_then(|s| s.as_str()).map(str::to_owned).ok_or_else(|| {
            Error::malformed(&self.object, "has no `schema` in its statement; it was not made by this program")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Algorithm;

    fn signed(key: &SecretKey) -> Signed {
        let subject = Subject::new("x", &Digest::of(b"x"));
        Signed::new("object", key, subject, "urn:test", &serde_json::json!({"a": 1}))
    }

    #[test]
    fn the_signed_bytes_are_those_of_the_dsse_specification() {
        // The protocol's own example, with our payload type: lengths in decimal, separated by one space.
        assert_eq!(pae(b"hello world"), b"DSSEv1 28 application/vnd.in-toto+json 11 hello world");
    }

    #[test]
    fn a_bundle_comes_back_and_a_changed_one_does_not() {
        let (key, _) = SecretKey::generate(Algorithm::Ed25519);
        let made = signed(&key);
        let read = Signed::parse("object", made.bytes.clone()).unwrap();
        assert_eq!(read.digest, made.digest);
        let opened: Opened<serde_json::Value> = read.open(key.public(), "urn:test").unwrap();
        assert_eq!(opened.predicate["a"], 1);
        assert_eq!(opened.subject.digest.sha256, Digest::of(b"x").hex());
        // One flipped bit anywhere: not JSON, not the form, or not the signature.
        for at in 0..made.bytes.len() {
            let mut bytes = made.bytes.to_vec();
            bytes[at] ^= 1;
            let believed = Signed::parse("object", bytes.into())
                .and_then(|s| s.open::<serde_json::Value>(key.public(), "urn:test"));
            assert!(believed.is_err(), "byte {at}");
        }
    }

    #[test]
    fn one_kind_cannot_be_passed_off_as_another() {
        let (key, _) = SecretKey::generate(Algorithm::Ed25519);
        let err = signed(&key).open::<serde_json::Value>(key.public(), "urn:other").unwrap_err();
        assert!(err.to_string().contains("predicateType `urn:test`"), "{err}");
        let (other, _) = SecretKey::generate(Algorithm::Ed25519);
        assert!(matches!(
            signed(&key).open::<serde_json::Value>(other.public(), "urn:test"),
            Err(Error::Untrusted { .. })
        ));
    }
}
