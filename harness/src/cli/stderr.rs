//! What goes to people beside the results.

use std::io::Write;

/// A line on stderr. Nobody reads it any more, or the disk behind it is full: that stops no work.
pub(crate) fn note(text: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
