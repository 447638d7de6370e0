//! Hashes of large files that are known already, kept between runs of a program.
//!
//! A file is known by what the system says of it while it is open (`fstat`): device, inode, size, time of modification
//! and time of change. The last one cannot be set by a program, so neither `touch -r` nor `cp -p` over a file brings an
//! old entry back. A file that was changed in the last seconds is not remembered: a second change within the clock's
//! tick would look the same.
//!
//! The store is a convenience of the user who owns it. Entries of somebody else, entries that others may write, and
//! entries that were damaged are not believed. Whoever can write as the user can also write a false entry; nothing that
//! decides about a file (`gates`, `verify`) may therefore ask here.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::atomic_file::{self, AtomicFileError};

/// First word of every entry.
const FORMAT: &str = "bitnet-harness.stamp/1";
/// Longest entry that is read, in bytes.
const MAX_BYTES: u64 = 4096;
/// Most entries that are kept; the oldest goes first.
const MAX_ENTRIES: usize = 256;
/// How long a file must have been left alone before its hash is kept, in seconds.
const SETTLED: i64 = 2;

/// What the system says of an open file; differs whenever the content may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Seconds and nanoseconds since 1970, of modification and of change.
    times: [i64; 4],
}

impl Stamp {
    /// The stamp of an open file (`fstat`).
    ///
    /// # Errors
    /// The system's.
    pub fn of(file: &File) -> io::Result<Self> {
        let data = file.metadata()?;
        Ok(Self {
            device: data.dev(),
            inode: data.ino(),
            bytes: data.len(),
            times: [data.mtime(), data.mtime_nsec(), data.ctime(), data.ctime_nsec()],
        })
    }

    /// Was the file left alone for so long that a later change will show?
    fn is_settled(&self, now: SystemTime) -> bool {
        let now = now.duration_since(UNIX_EPOCH).map_or(0, |d| i64::try_from(d.as_secs()).unwrap_or(i64::MAX));
        self.times[0].max(self.times[2]) < now.saturating_sub(SETTLED)
    }

    fn text(&self) -> String {
        let [modified, modified_nanos, changed, changed_nanos] = self.times;
        format!(
            "device {}\ninode {}\nbytes {}\nmodified {modified}.{modified_nanos:09}\nchanged {changed}.{changed_nanos:09}\n",
            self.device, self.inode, self.bytes
        )
    }
}

/// Hashes by stamp, one small file each.
#[derive(Debug, Clone)]
pub struct StampStore {
    folder: Option<PathBuf>,
}

impl StampStore {
    /// The store in `folder`, which need not exist.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()) }
    }

    /// Remembers nothing.
    pub fn none() -> Self {
        Self { folder: None }
    }

    /// The user's: `$XDG_CACHE_HOME` or `$HOME/.cache`, then `bitnet-harness/stamps`. Remembers nothing where neither
    /// is an absolute path.
    pub fn of_user() -> Self {
        let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
        let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
        Self { folder: cache.map(|c| c.join("bitnet-harness").join("stamps")) }
    }

    /// The hash named `what` of the file with this stamp, where a trustworthy entry has it.
    pub fn find(&self, what: &str, stamp: &Stamp) -> Option<String> {
        let folder = self.folder.as_ref()?;
        only_ours(&fs::symlink_metadata(folder).ok()?, true)?;
        // Never through a link, and never waiting for a pipe.
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(folder.join(name(what, stamp)))
            .ok()?;
        only_ours(&file.metadata().ok()?, false)?;
        let mut text = String::new();
        file.take(MAX_BYTES).read_to_string(&mut text).ok()?;
        let hash = text.strip_prefix(&head(what, stamp))?.strip_prefix("hash ")?.lines().next()?;
        (text == entry(what, stamp, hash)).then(|| hash.to_owned())
    }

    /// Keeps the hash named `what`; returns whether it was kept.
    ///
    /// `before` is the stamp from before the hash was computed, `after` the one from behind it: a file that changed in
    /// between, or only just, is not remembered.
    ///
    /// # Errors
    /// The system's; a caller that only wanted to save time goes on.
    pub fn keep(&self, what: &str, before: &Stamp, after: &Stamp, hash: &str) -> Result<bool, AtomicFileError> {
        let Some(folder) = &self.folder else { return Ok(false) };
        let plain = |text: &str| text.bytes().all(|b| b.is_ascii_graphic()) && (1..=200).contains(&text.len());
        if before != after || !before.is_settled(SystemTime::now()) || !plain(hash) || !plain(what) {
            return Ok(false);
        }
        let failed = |source| AtomicFileError::Io { path: folder.clone(), source };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        if only_ours(&fs::symlink_metadata(folder).map_err(failed)?, true).is_none() {
            return Ok(false);
        }
        make_room(folder);
        let target = folder.join(name(what, before));
        atomic_file::write(&target, true, |file| {
            io::Write::write_all(file, entry(what, before, hash).as_bytes())
                .map_err(|source| AtomicFileError::Io { path: target.clone(), source })
        })?;
        Ok(true)
    }
}

/// One entry to a name and a file: what is known of its older content is of no use.
fn name(what: &str, stamp: &Stamp) -> String {
    let what: String = what.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    format!("{what}-{:x}-{:x}", stamp.device, stamp.inode)
}

fn head(what: &str, stamp: &Stamp) -> String {
    format!("{FORMAT}\nof {what}\n{}", stamp.text())
}

/// The hash stands twice: everything else is known beforehand, so damage shows by comparison.
fn entry(what: &str, stamp: &Stamp, hash: &str) -> String {
    format!("{}hash {hash}\nagain {hash}\n", head(what, stamp))
}

/// A folder or file of this user that nobody else may write.
fn only_ours(data: &fs::Metadata, folder: bool) -> Option<()> {
    // SAFETY: takes nothing, and cannot fail.
    let user = unsafe { libc::geteuid() };
    let kind = if folder { data.is_dir() } else { data.is_file() };
    (kind && data.uid() == user && data.mode() & 0o022 == 0).then_some(())
}

/// Removes the oldest entries where there are too many.
fn make_room(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut found: Vec<(SystemTime, PathBuf)> = entries
        .take(16 * MAX_ENTRIES)
        .filter_map(|e| {
            let e = e.ok()?;
            Some((e.metadata().ok()?.modified().ok()?, e.path()))
        })
        .collect();
    found.sort();
    for (_, path) in found.iter().take((found.len() + 1).saturating_sub(MAX_ENTRIES)) {
        // One that cannot be removed is one entry more.
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::time::Duration;

    const HASH: &str = "sha256:0123";

    /// A store with one entry, and a file of an hour ago as far as its stamp goes.
    struct Scene {
        folder: tempfile::TempDir,
        store: StampStore,
        stamp: Stamp,
        entry: PathBuf,
    }

    fn scene() -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let store = StampStore::at(folder.path().join("cache"));
        let stamp = Stamp { device: 7, inode: 11, bytes: 5, times: [1_000_000, 1, 1_000_000, 2] };
        assert!(store.keep("weights", &stamp, &stamp, HASH).unwrap());
        let entry = folder.path().join("cache/weights-7-b");
        Scene { folder, store, stamp, entry }
    }

    #[test]
    fn what_was_kept_is_found_again() {
        let s = scene();
        assert_eq!(s.store.find("weights", &s.stamp).as_deref(), Some(HASH));
        assert_eq!(s.store.find("file", &s.stamp), None);
        assert_eq!(StampStore::none().find("weights", &s.stamp), None);
        assert!(!StampStore::none().keep("weights", &s.stamp, &s.stamp, HASH).unwrap());
    }

    /// Every part of a stamp counts.
    #[test]
    fn a_stale_entry_is_not_believed() {
        let s = scene();
        let mut others =
            vec![Stamp { device: 8, ..s.stamp }, Stamp { inode: 12, ..s.stamp }, Stamp { bytes: 6, ..s.stamp }];
        for i in 0..4 {
            let mut times = s.stamp.times;
            times[i] += 1;
            others.push(Stamp { times, ..s.stamp });
        }
        for other in others {
            assert_eq!(s.store.find("weights", &other), None, "{other:?}");
        }
    }

    /// The kernel's own stamps: content replaced, with the old times put back by hand.
    #[test]
    fn a_file_rewritten_in_place_has_another_stamp_whatever_its_times_say() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m");
        let long_ago = UNIX_EPOCH + Duration::from_secs(1_000_000);
        let set = |content: &str| {
            fs::write(&path, content).unwrap();
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            file.set_modified(long_ago).unwrap();
            Stamp::of(&file).unwrap()
        };
        let first = set("aaaa");
        std::thread::sleep(Duration::from_millis(30));
        let second = set("bbbb");
        assert_eq!(
            (first.inode, first.bytes, first.times[..2].to_vec()),
            (second.inode, second.bytes, second.times[..2].to_vec())
        );
        assert_ne!(first, second);
    }

    #[test]
    fn a_file_that_was_just_written_or_changed_meanwhile_is_not_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let store = StampStore::at(folder.path().join("cache"));
        fs::write(folder.path().join("m"), "content").unwrap();
        let fresh = Stamp::of(&File::open(folder.path().join("m")).unwrap()).unwrap();
        assert!(!store.keep("weights", &fresh, &fresh, HASH).unwrap());
        let old = Stamp { device: 1, inode: 1, bytes: 1, times: [1, 0, 1, 0] };
        assert!(!store.keep("weights", &old, &Stamp { bytes: 2, ..old }, HASH).unwrap());
        assert_eq!(store.find("weights", &old), None);
        // A file from the future may be written once more in its very second.
        let future = Stamp { times: [i64::MAX - 1, 0, 1, 0], ..old };
        assert!(!store.keep("weights", &future, &future, HASH).unwrap());
    }

    #[test]
    fn a_damaged_or_forged_entry_is_not_believed() {
        let s = scene();
        let good = fs::read_to_string(&s.entry).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone().into_bytes();
            bad[at] ^= 1;
            fs::write(&s.entry, &bad).unwrap();
            assert_eq!(s.store.find("weights", &s.stamp), None, "byte {at}");
        }
        for bad in [
            &good[..good.len() - 1],
            "",
            "hash sha256:ff\n",
            &good.replacen(HASH, "sha256:ffff", 1),
            &format!("{good}x"),
        ] {
            fs::write(&s.entry, bad).unwrap();
            assert_eq!(s.store.find("weights", &s.stamp), None, "{bad:?}");
        }
        fs::write(&s.entry, vec![b'a'; 1 << 20]).unwrap();
        assert_eq!(s.store.find("weights", &s.stamp), None);
    }

    /// Foreign: another file's entry under this one's name, what others may write, links, folders, pipes.
    #[test]
    fn a_foreign_entry_is_not_believed() {
        let s = scene();
        let good = fs::read_to_string(&s.entry).unwrap();
        let other = Stamp { inode: 12, ..s.stamp };
        fs::write(s.folder.path().join("cache/weights-7-c"), &good).unwrap();
        assert_eq!(s.store.find("weights", &other), None);

        fs::set_permissions(&s.entry, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(s.store.find("weights", &s.stamp), None);
        fs::set_permissions(&s.entry, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(s.store.find("weights", &s.stamp).as_deref(), Some(HASH));

        let elsewhere = s.folder.path().join("elsewhere");
        fs::rename(&s.entry, &elsewhere).unwrap();
        symlink(&elsewhere, &s.entry).unwrap();
        assert_eq!(s.store.find("weights", &s.stamp), None);
        fs::remove_file(&s.entry).unwrap();
        fs::create_dir(&s.entry).unwrap();
        assert_eq!(s.store.find("weights", &s.stamp), None);
        fs::remove_dir(&s.entry).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&s.entry).status().unwrap().success());
        assert_eq!(s.store.find("weights", &s.stamp), None);
        fs::remove_file(&s.entry).unwrap();
        fs::rename(&elsewhere, &s.entry).unwrap();

        let cache = s.folder.path().join("cache");
        fs::set_permissions(&cache, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(s.store.find("weights", &s.stamp), None);
        assert!(!s.store.keep("weights", &other, &other, HASH).unwrap());
    }

    #[test]
    fn the_store_stays_small() {
        let s = scene();
        for inode in 100..100 + 2 * MAX_ENTRIES as u64 {
            assert!(s.store.keep("weights", &Stamp { inode, ..s.stamp }, &Stamp { inode, ..s.stamp }, HASH).unwrap());
        }
        assert_eq!(fs::read_dir(s.folder.path().join("cache")).unwrap().count(), MAX_ENTRIES);
    }

    #[test]
    fn what_would_break_an_entry_is_not_kept() {
        let s = scene();
        for hash in ["", "a b", "a\nb", &"a".repeat(201)] {
            assert!(!s.store.keep("weights", &s.stamp, &s.stamp, hash).unwrap(), "{hash:?}");
        }
    }
}
