//! Chat templates of others, rendered in a process of their own.
//!
//! A template is a program that comes with a model file. Fuel bounds its steps, but a few dozen steps are enough to
//! double a text beyond any memory, and running out of memory ends a process. So the command line renders foreign
//! templates in a child that may take little memory and little time; its death is an error like any other.

use std::io::{Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use super::template::Rendering;

/// Address space of the child, program and thread stacks included.
const MEMORY: u64 = 512 << 20;
/// Its CPU time.
const SECONDS: u64 = 10;
/// Name of the hidden command that [`child`] implements.
pub const COMMAND: &str = "template-child";

/// The embedded model's template, which needs no guard.
const OWN: &str = include_str!("../../../gates/models/bitnet-harness-home-hf/chat_template.jinja");

static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// From now on foreign chat templates are rendered by `program template-child`: `program` is the `harness` binary,
/// which calls this itself. Without it they are rendered in the calling process, where a hostile one can exhaust the
/// memory. Only the first call counts.
pub fn isolate(program: PathBuf) {
    // Set already: the first one serves.
    let _ = PROGRAM.set(program);
}

/// The child's answer.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Text(String),
    Refused(String),
}

/// Renders, in a child if the template is not our own and a program was named.
pub(super) fn render(rendering: &Rendering) -> Result<String, String> {
    match PROGRAM.get() {
        Some(program) if rendering.template.trim_end() != OWN.trim_end() => elsewhere(program, rendering),
        _ => rendering.run(),
    }
}

/// Is this template parsed and rendered in a child?
pub(super) fn is_isolated(template: &str) -> bool {
    PROGRAM.get().is_some() && template.trim_end() != OWN.trim_end()
}

fn elsewhere(program: &Path, rendering: &Rendering) -> Result<String, String> {
    let failed = |e: &dyn std::fmt::Display| format!("cannot be rendered in a process of its own: {e}");
    let input = serde_json::to_vec(rendering).map_err(|e| failed(&e))?;
    let mut child = Command::new(program)
        .arg(COMMAND)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| failed(&e))?;
    // The child reads all before it writes; if it dies first, the broken pipe is the lesser news.
    let _ = child.stdin.take().map(|mut pipe| pipe.write_all(&input));
    let output = child.wait_with_output().map_err(|e| failed(&e))?;
    match serde_json::from_slice(&output.stdout) {
        Ok(Answer::Text(text)) => Ok(text),
        Ok(Answer::Refused(why)) => Err(why),
        Err(_) => Err(match output.status.signal() {
            Some(signal) => format!(
                "needs more than {} MiB of memory or {SECONDS} s to render (its process ended by signal {signal})",
                MEMORY >> 20
            ),
            None => failed(&output.status),
        }),
    }
}

/// The child: one rendering from stdin, one answer to stdout.
///
/// # Errors
/// When stdin or stdout fails.
pub fn child() -> std::io::Result<()> {
    files::process::limit(MEMORY, SECONDS)?;
    let mut input = Vec::new();
    std::io::stdin().lock().read_to_end(&mut input)?;
    let rendering: Rendering = serde_json::from_slice(&input)?;
    let answer = match rendering.run() {
        Ok(text) => Answer::Text(text),
        Err(why) => Answer::Refused(why),
    };
    serde_json::to_writer(std::io::stdout().lock(), &answer)?;
    Ok(())
}
