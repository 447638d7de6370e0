//! Who may: keys, hosts, rates.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use axum::http::{HeaderMap, header};
use rand::RngCore as _;
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};

use crate::error::ApiError;

/// Largest file of keys, in bytes.
const MAX_KEYS_BYTES: u64 = 1 << 20;
/// Longest key that is looked at.
const MAX_KEY: usize = 512;
/// What every key begins with, so that secret scanners know it.
const PREFIX: &str = "bnh-";

/// Why a file of keys is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeysError {
    /// It cannot be read.
    #[error("{0}")]
    Read(#[from] files::input_file::InputFileError),
    /// A line that is no key.
    #[error("line {line}: {problem}")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// What is wrong.
        problem: &'static str,
    },
    /// A file without keys would lock everybody out, or let everybody in.
    #[error("it holds no key; add one with `harness serve --new-key NAME`")]
    Empty,
}

/// Keys, as hashes: `NAME BLAKE3-OF-THE-KEY` per line, `#` begins a comment.
///
/// Keys are made by [`new_key`] from 256 random bits, so a plain hash keeps them; a password that a person chose would
/// need a slow one.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Keys(Vec<(String, [u8; 32])>);

impl Keys {
    /// Reads a file.
    ///
    /// # Errors
    /// [`KeysError`].
    pub fn load(path: &Path) -> Result<Self, KeysError> {
        Self::parse(&files::input_file::read_text(path, MAX_KEYS_BYTES)?)
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// [`KeysError`].
    pub fn parse(text: &str) -> Result<Self, KeysError> {
        let mut keys: Vec<(String, [u8; 32])> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let bad = |problem| KeysError::Line { line: number + 1, problem };
            let line = line.split('#').next().unwrap_or("").trim();
            if line.is_empty() {
                continue;
            }
            let mut words = line.split_whitespace();
            let (Some(name), Some(hash), None) = (words.next(), words.next(), words.next()) else {
                return Err(bad("expected a name and a hash"));
            };
            if !is_name(name) {
                return Err(bad("a name has 1 to 64 of a-z, A-Z, 0-9, '.', '_' and '-'"));
            }
            let hash = blake3::Hash::from_hex(hash).map_err(|_| bad("the hash is not 64 hex digits"))?;
            if keys.iter().any(|(n, h)| n == name || h == hash.as_bytes()) {
                return Err(bad("a name or key that is in the file already"));
            }
            keys.push((name.to_owned(), *hash.as_bytes()));
        }
        if keys.is_empty() { Err(KeysError::Empty) } else { Ok(Self(keys)) }
    }

    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whose key it is. Looks at every key whatever it finds, and at whole hashes.
    pub fn find(&self, key: &str) -> Option<&str> {
        let hash = blake3::hash(key.as_bytes());
        let mut found = u64::MAX;
        for (i, (_, stored)) in (0u64..).zip(&self.0) {
            let equal: Choice = stored.ct_eq(hash.as_bytes());
            found.conditional_assign(&i, equal);
        }
        self.0.get(usize::try_from(found).unwrap_or(usize::MAX)).map(|(name, _)| name.as_str())
    }
}

/// Names of keys, models and cartridges: nothing that a path, a log or a header could read as something else.
pub(crate) fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
        && !name.starts_with('.')
}

/// A new key and the line for the file of keys.
///
/// # Errors
/// `None` for a name that is not one.
pub fn new_key(name: &str) -> Option<(String, String)> {
    if !is_name(name) {
        return None;
    }
    let mut secret = [0u8; 32];
    rand::rng().fill_bytes(&mut secret);
    let digits: String = secret.iter().map(|b| format!("{b:02x}")).collect();
    let key = format!("{PREFIX}{digits}");
    let line = format!("{name} {}", blake3::hash(key.as_bytes()).to_hex());
    Some((key, line))
}

/// The key of a request: `Authorization: Bearer KEY`, once.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut all = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (all.next(), all.next()) else { return None };
    let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
    let key = key.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !key.is_empty() && key.len() <= MAX_KEY).then_some(key)
}

/// Which `Host` headers are answered: what a browser was made to believe by a foreign name server is not among them.
#[derive(Debug, Clone, Default)]
pub struct Hosts(Vec<String>);

impl Hosts {
    /// The names of the loopback interface, those given, and the address that is listened on unless it stands for all.
    pub fn new(names: &[String], listen: Option<IpAddr>) -> Self {
        let mut all: Vec<String> = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned).into();
        all.extend(names.iter().map(|n| n.to_ascii_lowercase()));
        all.extend(listen.filter(|ip| !ip.is_unspecified()).map(|ip| match ip {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        }));
        Self(all)
    }

    /// Is this one of them, whatever its port?
    pub(crate) fn allows(&self, host: &str) -> bool {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !name.is_empty() => name,
            _ => host,
        };
        self.0.iter().any(|known| known.eq_ignore_ascii_case(name))
    }
}

/// Requests per minute and key, with as many at once as a minute has.
#[derive(Debug)]
pub(crate) struct Rates {
    per_minute: Option<u32>,
    buckets: Mutex<HashMap<u64, (f64, Instant)>>,
}

impl Rates {
    pub(crate) fn new(per_minute: Option<u32>) -> Self {
        Self { per_minute, buckets: Mutex::default() }
    }

    /// Takes one request of `owner`.
    ///
    /// # Errors
    /// `rate_limit_exceeded`, with the time until the next one.
    pub(crate) fn take(&self, owner: u64, now: Instant) -> Result<(), ApiError> {
        let Some(per_minute) = self.per_minute else { return Ok(()) };
        let full = f64::from(per_minute.max(1));
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, last) = buckets.entry(owner).or_insert((full, now));
        *left = (*left + now.saturating_duration_since(*last).as_secs_f64() * full / 60.0).min(full);
        *last = now;
        if *left >= 1.0 {
            *left -= 1.0;
            return Ok(());
        }
        let seconds = ((1.0 - *left) * 60.0 / full).ceil();
        let message = format!("more than {per_minute} requests in a minute");
        // At most a minute.
        Err(ApiError::new("rate_limit_exceeded", message).retry_after(seconds.clamp(1.0, 60.0) as u64))
    }
}

/// A number for the owner of a key; 0 is whoever needs none.
pub(crate) fn owner_of(name: &str) -> u64 {
    let hash = blake3::hash(name.as_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&hash.as_bytes()[..8]);
    u64::from_le_bytes(first).max(1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_new_key_is_found_by_its_line_and_others_are_not() {
        let (a, line_a) = new_key("anna").unwrap();
        let (b, line_b) = new_key("bert").unwrap();
        assert_ne!(a, b);
        let keys = Keys::parse(&format!("# keys\n{line_a} # hers\n\n{line_b}\n")).unwrap();
        assert_eq!((keys.find(&a), keys.find(&b)), (Some("anna"), Some("bert")));
        for wrong in ["", "bnh-", &a[..a.len() - 1], &format!("{a}0"), &a.to_uppercase(), "anna", &line_a] {
            assert_eq!(keys.find(wrong), None, "{wrong}");
        }
        assert!(!line_a.contains(&a[4..]), "the file does not hold the key");
    }

    #[test]
    fn files_that_say_something_else_are_refused_by_line() {
        let hash = "0".repeat(64);
        for text in [
            "",
            "# none",
            "anna",
            &format!("anna {hash} more"),
            &format!("a/b {hash}"),
            "anna 12",
            &format!("anna {hash}\nbert {hash}"),
            &format!("anna {hash}\nanna {}", "1".repeat(64)),
        ] {
            assert!(Keys::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_one_bearer_is_a_key() {
        let of = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for v in values {
                headers.append(header::AUTHORIZATION, v.parse().unwrap());
            }
            bearer(&headers).map(str::to_owned)
        };
        assert_eq!(of(&["Bearer x"]), Some("x".into()));
        assert_eq!(of(&["bearer  x "]), Some("x".into()));
        for none in [&[][..], &["Bearer "], &["Basic x"], &["x"], &["Bearer x", "Bearer y"]] {
            assert_eq!(of(none), None, "{none:?}");
        }
        assert_eq!(of(&[&format!("Bearer {}", "x".repeat(MAX_KEY + 1))]), None);
    }

    #[test]
    fn hosts_by_name_and_any_port() {
        let hosts = Hosts::new(&["Models.example".into()], Some("10.0.0.7".parse().unwrap()));
        for yes in ["localhost", "LOCALHOST:80", "127.0.0.1:8080", "[::1]:1", "[::1]", "models.example", "10.0.0.7:1"] {
            assert!(hosts.allows(yes), "{yes}");
        }
        for no in ["", ":80", "evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "localhost:80:80", "::1"] {
            assert!(!hosts.allows(no), "{no}");
        }
        assert!(!Hosts::new(&[], Some("0.0.0.0".parse().unwrap())).allows("0.0.0.0"));
    }

    #[test]
    fn a_minute_s_requests_at_once_and_then_one_at_a_time() {
        let rates = Rates::new(Some(6));
        let start = Instant::now();
        assert!((0..6).all(|_| rates.take(1, start).is_ok()));
        let refused = rates.take(1, start).unwrap_err();
        assert_eq!(refused, ApiError::new("rate_limit_exceeded", "more than 6 requests in a minute").retry_after(10));
        assert!(rates.take(2, start).is_ok(), "another key has its own");
        assert!(rates.take(1, start + Duration::from_secs(10)).is_ok());
        assert!(rates.take(1, start + Duration::from_secs(10)).is_err());
        assert!((0..100).all(|_| Rates::new(None).take(1, start).is_ok()));
    }
}
