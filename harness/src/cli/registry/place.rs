//! Which registry, whose word counts in it, and how its errors and transfers are told.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use clap::Args;
use registry::blocking::Registry;
use registry::{Cancel, Class, Error, Location, Options, Progress, PublicKey, SecretKey, Step, Store, Trust};
use serde::Serialize;

use crate::cli::output::{self, TextOrJson};
use crate::cli::{CliError, is_wrong_path, progress};
use crate::exit::Exit;
use crate::interrupt;

/// Which registry.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub(in crate::cli) struct Where {
    /// The registry: a folder or s3://BUCKET[/PREFIX]; $BITNET_REGISTRY without it.
    #[arg(long, value_name = "URL")]
    pub(super) registry: Option<String>,
    /// Public key of an operator whose policies are believed; may be repeated. Without it: those that the registry
    /// names, held on to from the first sight.
    #[arg(long, value_name = "KEY.pub")]
    pub(super) operator: Vec<PathBuf>,
}

/// Who decides and why, as it is written down.
#[derive(Debug, Args)]
#[group(skip)]
pub(super) struct Why {
    /// Why, for people; at most 2,000 bytes.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(super) why: String,
    /// Who, for people; $USER without it.
    #[arg(long, value_name = "NAME")]
    pub(super) by: Option<String>,
    /// Check everything, write nothing.
    #[arg(long)]
    pub(super) dry_run: bool,
}

impl Why {
    pub(super) fn decision(&self) -> registry::Decision {
        registry::Decision { by: who(self.by.as_deref()), why: self.why.clone(), dry_run: self.dry_run }
    }
}

/// The name given, or the user's.
pub(super) fn who(by: Option<&str>) -> String {
    let variable = |name| std::env::var(name).ok().filter(|name| !name.is_empty());
    by.map(str::to_owned).or_else(|| variable("USER")).or_else(|| variable("LOGNAME")).unwrap_or("unknown".into())
}

/// An error of the registry, by the house's exit codes.
pub(super) fn failed(e: Error) -> CliError {
    let text = e.to_string();
    match (e.class(), &e) {
        (Class::Usage, Error::File { source, .. })
            if !is_wrong_path(source) && source.kind() != std::io::ErrorKind::InvalidInput =>
        {
            CliError::Failed(text)
        }
        (Class::Usage, _) => CliError::Usage(text),
        (Class::Refused, _) => CliError::Refused(text),
        (Class::Interrupted, _) => CliError::Interrupted,
        _ => CliError::Failed(text),
    }
}

pub(super) fn public_keys(paths: &[PathBuf]) -> Result<Vec<PublicKey>, CliError> {
    paths.iter().map(|path| PublicKey::read(path).map_err(failed)).collect()
}

pub(super) fn secret_key(path: &Path) -> Result<SecretKey, CliError> {
    SecretKey::read(path).map_err(failed)
}

/// One line of a transfer at a time, on stderr.
fn on_progress() -> impl Fn(&Progress) + Send + Sync {
    let shown: Mutex<Option<(String, Step, indicatif::ProgressBar)>> = Mutex::new(None);
    move |told| {
        let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.as_ref().is_none_or(|(name, step, _)| (name, *step) != (&told.name, told.step)) {
            if let Some((_, _, bar)) = shown.take() {
                bar.finish_and_clear();
            }
            let verb = match told.step {
                Step::Upload => "sending",
                Step::Download => "fetching",
                _ => "hashing",
            };
            let bar = progress::bytes(&format!("{verb} {}", told.name), told.total);
            *shown = Some((told.name.clone(), told.step, bar));
        }
        if let Some((_, _, bar)) = shown.as_ref() {
            bar.set_position(told.done);
            if told.done >= told.total {
                bar.finish_and_clear();
            }
        }
    }
}

impl Where {
    pub(super) fn location(&self) -> Result<Location, CliError> {
        let url = self.registry.clone().or_else(|| std::env::var("BITNET_REGISTRY").ok().filter(|url| !url.is_empty()));
        let url = url.ok_or_else(|| {
            CliError::Usage("no registry was named; give --registry URL, or set BITNET_REGISTRY".into())
        })?;
        location(&url)
    }

    /// How a registry is used from the command line: with the user's cache and memory.
    pub(super) fn options(&self) -> Result<Options, CliError> {
        let trust = match public_keys(&self.operator)? {
            keys if keys.is_empty() => Trust::AsStored,
            keys => Trust::Pinned(keys),
        };
        let mut options = Options::new(trust);
        options.cache = cache();
        options.memory = options.cache.as_ref().map(|cache| cache.join("memory"));
        options.progress = Some(Arc::new(on_progress()));
        options.cancel = Cancel::default();
        let cancel = options.cancel.clone();
        interrupt::cooperate(move || cancel.cancel());
        Ok(options)
    }

    pub(super) fn open(&self) -> Result<Registry, CliError> {
        let store = Store::open(&self.location()?, false).map_err(failed)?;
        Registry::open(store, self.options()?).map_err(failed)
    }
}

pub(super) fn location(url: &str) -> Result<Location, CliError> {
    match Location::parse(url).map_err(failed)? {
        Location::Memory => Err(CliError::Usage(
            "registry `memory:` would be gone with this command; give a folder or s3://BUCKET[/PREFIX]".into(),
        )),
        location => Ok(location),
    }
}

/// A store to write to. A dry run makes no folder: what is not there yet is an empty store.
pub(super) fn store_to_write(location: &Location, dry_run: bool) -> Result<Store, CliError> {
    let absent = matches!(location, Location::Folder(path) if path.symlink_metadata().is_err());
    let location = if dry_run && absent { &Location::Memory } else { location };
    Store::open(location, !dry_run).map_err(failed)
}

/// The user's folder of fetched files: `$XDG_CACHE_HOME` or `$HOME/.cache`, then `bitnet-harness/registry`. None where
/// neither is an absolute path.
pub(super) fn cache() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(cache.join("bitnet-harness").join("registry"))
}

/// Prints a result in the form that was asked for.
pub(super) fn tell(
    format: TextOrJson,
    value: &impl Serialize,
    text: impl FnOnce() -> String,
) -> Result<Exit, CliError> {
    output::print(&match format {
        TextOrJson::Json => output::json(value)?,
        TextOrJson::Text => text(),
    })?;
    Ok(Exit::Success)
}

/// A foreign word for a terminal, on one line.
pub(super) fn word(text: impl ToString) -> String {
    output::for_terminal(&text.to_string().replace('\n', " "))
}

/// Seconds since 1970 as people read them, in UTC.
pub(super) fn time(unix: u64) -> String {
    let (days, seconds) = (unix / 86_400, unix % 86_400);
    // Years begin in March, so that the leap day is the last one; 400 of them have 146,097 days.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + era * 400 + next;
    format!("{year:04}-{month:02}-{of_month:02} {:02}:{:02}Z", seconds / 3_600, seconds / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::time;

    #[test]
    fn times_are_those_of_the_calendar() {
        // `date -u -d @N '+%F %H:%MZ'`
        for (unix, text) in [
            (0, "1970-01-01 00:00Z"),
            (951_782_399, "2000-02-28 23:59Z"),
            (951_782_400, "2000-02-29 00:00Z"),
            (951_868_800, "2000-03-01 00:00Z"),
            (1_796_102_645, "2026-12-01 05:24Z"),
            (4_107_542_400, "2100-03-01 00:00Z"),
        ] {
            assert_eq!(time(unix), text);
        }
    }
}
