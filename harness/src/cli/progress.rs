//! Progress on stderr; where stderr is not a terminal, only a line for each stage of a long run.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::stderr;

/// A spinner with a message.
pub(crate) fn spinner(prefix: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} {wide_msg} {elapsed}") {
        bar.set_style(style);
    }
    bar.set_prefix(prefix.to_owned());
    // Its thread is made in a way that panics where there is none left, and nobody sees a hidden bar.
    if !bar.is_hidden() && files::threads::can_be_made() {
        bar.enable_steady_tick(Duration::from_millis(120));
    }
    bar
}

/// One of several stages of a long run: a spinner while it lasts, and a line that stays at its beginning and its end
/// where there is no terminal, at its end where there is one.
pub(crate) struct Stage {
    name: String,
    bar: ProgressBar,
}

impl Stage {
    pub(crate) fn begin(name: String) -> Self {
        let bar = spinner(&name);
        if bar.is_hidden() {
            stderr::note(&name);
        }
        Self { name, bar }
    }

    pub(crate) fn say(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }

    pub(crate) fn end(self, outcome: &str) {
        self.bar.finish_and_clear();
        stderr::note(format_args!("{}: {outcome}", self.name));
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A bar over bytes.
pub(crate) fn bytes(prefix: &str, total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total);
    if let Ok(style) = ProgressStyle::with_template("{prefix} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}") {
        bar.set_style(style);
    }
    bar.set_prefix(prefix.to_owned());
    bar
}

/// A bar over things that are counted.
pub(crate) fn counted(what: &str, total: usize) -> ProgressBar {
    let bar = ProgressBar::new(total as u64);
    if let Ok(style) = ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len} {eta}") {
        bar.set_style(style);
    }
    bar.set_prefix(what.to_owned());
    bar
}

/// A bar over tokens.
pub(crate) fn tokens(prefix: &str, total: usize) -> ProgressBar {
    let bar = ProgressBar::new(total as u64);
    if let Ok(style) = ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len} tokens {per_sec} {eta}") {
        bar.set_style(style);
    }
    bar.set_prefix(prefix.to_owned());
    bar
}
