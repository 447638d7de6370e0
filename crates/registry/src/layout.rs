//! Where things lie in a store (docs/formats/registry.md).

use object_store::path::Path;

use crate::digest::Digest;
use crate::name::ChannelName;

/// The marker: schema, id, operators.
pub(crate) const MARKER: &str = "registry.json";
pub(crate) const BLOBS: &str = "blobs/sha256";
pub(crate) const MANIFESTS: &str = "manifests/sha256";
pub(crate) const CHANNELS: &str = "channels";
/// Unfinished uploads of a store that can move objects.
pub(crate) const STAGING: &str = "staging";
/// One object per push that is under way.
pub(crate) const PUSHES: &str = "leases/push";
/// There while a garbage collection deletes.
pub(crate) const GC: &str = "leases/gc.json";

/// Digits of a number in a name; zeros in front, so that the store's order of names is that of the numbers.
const DIGITS: usize = 10;

pub(crate) fn marker() -> Path {
    Path::from(MARKER)
}

pub(crate) fn gc() -> Path {
    Path::from(GC)
}

pub(crate) fn blob(digest: &Digest) -> Path {
    Path::from(format!("{BLOBS}/{}", digest.hex()))
}

pub(crate) fn manifest(digest: &Digest) -> Path {
    Path::from(format!("{MANIFESTS}/{}.json", digest.hex()))
}

pub(crate) fn channel(channel: &ChannelName) -> Path {
    Path::from(format!("{CHANNELS}/{channel}"))
}

pub(crate) fn current(channel: &ChannelName) -> Path {
    Path::from(format!("{CHANNELS}/{channel}/current.json"))
}

pub(crate) fn log(channel: &ChannelName) -> Path {
    Path::from(format!("{CHANNELS}/{channel}/log"))
}

pub(crate) fn record(channel: &ChannelName, number: u64) -> Path {
    Path::from(format!("{CHANNELS}/{channel}/log/{number:0DIGITS$}.json"))
}

pub(crate) fn policies(channel: &ChannelName) -> Path {
    Path::from(format!("{CHANNELS}/{channel}/policy"))
}

pub(crate) fn policy(channel: &ChannelName, serial: u64) -> Path {
    Path::from(format!("{CHANNELS}/{channel}/policy/{serial:0DIGITS$}.json"))
}

/// The number in the name of a record or policy; `None` for a name that none of ours has.
pub(crate) fn number(path: &Path) -> Option<u64> {
    let digits = path.filename()?.strip_suffix(".json")?;
    if digits.len() != DIGITS || !digits.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().filter(|n| *n > 0)
}

/// The digest in the name of a blob or manifest.
pub(crate) fn digest(path: &Path) -> Option<Digest> {
    let name = path.filename()?;
    Digest::from_hex(name.strip_suffix(".json").unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_format_page() {
        let channel = ChannelName::parse("stable").unwrap();
        assert_eq!(record(&channel, 12).as_ref(), "channels/stable/log/0000000012.json");
        assert_eq!(policy(&channel, 1).as_ref(), "channels/stable/policy/0000000001.json");
        assert_eq!(current(&channel).as_ref(), "channels/stable/current.json");
        assert_eq!(number(&record(&channel, 4_294_967_296)), Some(4_294_967_296));
        assert_eq!(number(&Path::from("channels/stable/log/12.json")), None);
        assert_eq!(number(&Path::from("channels/stable/log/0000000000.json")), None);
        let abc = Digest::of(b"abc");
        assert_eq!(digest(&blob(&abc)), Some(abc));
        assert_eq!(digest(&manifest(&abc)), Some(abc));
    }
}
