//! Progress on stderr; nothing where stderr is no terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A spinner with a message.
pub(crate) fn spinner(prefix: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} {wide_msg} {elapsed}") {
        bar.set_style(style);
    }
    bar.set_prefix(prefix.to_owned());
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
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
