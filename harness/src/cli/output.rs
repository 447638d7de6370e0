//! Where results go: stdout, or a file that is replaced as a whole.

use std::io::Write;
use std::path::Path;

use super::CliError;

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

/// Writes to stdout. A reader that closed the pipe has what it wanted.
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

/// A result file, opened before the work so that a bad path fails early, and put in place as a whole at the end.
pub(crate) struct ResultFile {
    temporary: tempfile::NamedTempFile,
    path: std::path::PathBuf,
}

impl ResultFile {
    pub(crate) fn create(path: &Path) -> Result<Self, CliError> {
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let temporary = tempfile::NamedTempFile::new_in(folder)
            .map_err(|e| CliError::Usage(format!("--out {}: {e}", path.display())))?;
        Ok(Self { temporary, path: path.to_owned() })
    }

    pub(crate) fn finish(mut self, text: &str) -> Result<(), CliError> {
        let failed = |e: std::io::Error, path: &Path| CliError::Failed(format!("--out {}: {e}", path.display()));
        self.temporary.write_all(text.as_bytes()).map_err(|e| failed(e, &self.path))?;
        self.temporary.as_file().sync_all().map_err(|e| failed(e, &self.path))?;
        self.temporary.persist(&self.path).map(|_| ()).map_err(|e| failed(e.error, &self.path))
    }
}
