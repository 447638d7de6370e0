//! Where results go: stdout, or a file that is replaced as a whole.

use std::io::Write;
use std::path::{Path, PathBuf};

pub(crate) use super::stderr::note;
use super::{CliError, output_error};
use files::atomic_file::{AtomicFile, Overwrite};

/// Form of a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON document.
    Json,
    /// Markdown.
    Markdown,
    /// JUnit XML.
    Junit,
}

/// Form of a result where only two make sense.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum TextOrJson {
    /// For people.
    #[default]
    Text,
    /// One JSON document.
    Json,
}

/// Where a command's file goes, and how it says so.
#[derive(Debug, clap::Args)]
pub(crate) struct Target {
    /// File to write.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// Replace an existing file.
    #[arg(long)]
    pub(crate) force: bool,
    /// Form of the result.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: TextOrJson,
}

impl Target {
    /// Refuses what will not work before the long work begins, and a target that is one of the inputs.
    pub(crate) fn check<'p>(&self, inputs: impl IntoIterator<Item = &'p PathBuf>) -> Result<(), CliError> {
        super::check_target(&self.out, self.force)?;
        super::not_an_input("--out", &self.out, inputs)
    }

    pub(crate) fn overwrite(&self) -> Overwrite {
        Overwrite::forced(self.force)
    }
}

/// Writes a part of what is still being made. Where nobody reads it, the rest is not made.
pub(crate) fn stream(text: &str) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Err(CliError::ReaderGone),
        Err(e) => Err(CliError::Failed(format!("stdout: {e}"))),
        // What has no text yet, or is not printed yet, breaks no pipe.
        Ok(()) if files::process::reader_is_gone() => Err(CliError::ReaderGone),
        Ok(()) => Ok(()),
    }
}

/// Writes a finished result to stdout. A reader that closed the pipe has what it wanted.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(CliError::Failed(format!("stdout: {e}"))),
        _ => Ok(()),
    }
}

/// A serializable value as one JSON document.
pub(crate) fn json(value: &impl serde::Serialize) -> Result<String, CliError> {
    serde_json::to_string_pretty(value).map(|s| s + "\n").map_err(|e| CliError::Failed(format!("JSON: {e}")))
}

/// Text that may quote input, for a terminal: control characters and overrides of the writing direction are shown as
/// escapes, and what is longer than anyone reads is cut.
pub(crate) fn for_terminal(text: &str) -> String {
    const LONGEST: usize = 2000;
    let obeyed = |c: char| {
        c.is_control() && c != '\n'
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let (mut shown, mut length) = (String::new(), 0);
    for c in text.chars() {
        // An escape is several characters to read.
        length += if obeyed(c) { c.escape_unicode().len() } else { 1 };
        if length > LONGEST {
            shown.push('…');
            break;
        }
        if obeyed(c) { shown.extend(c.escape_unicode()) } else { shown.push(c) }
    }
    shown
}

/// A result file, opened before the work so that a bad path fails early, and put in place as a whole at the end.
pub(crate) struct ResultFile {
    file: AtomicFile,
    path: PathBuf,
}

impl ResultFile {
    pub(crate) fn create(path: &Path) -> Result<Self, CliError> {
        let file = AtomicFile::create(path, Overwrite::Replace).map_err(output_error)?;
        Ok(Self { file, path: path.to_owned() })
    }

    pub(crate) fn finish(mut self, text: &str) -> Result<(), CliError> {
        self.file
            .write_all(text.as_bytes())
            .map_err(|e| CliError::Failed(format!("--out {}: {e}", self.path.display())))?;
        self.file.commit().map_err(output_error)
    }
}
