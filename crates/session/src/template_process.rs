//! Chat templates of others, rendered in a process of their own.
//!
//! A template is a program that comes with a model file. Fuel bounds its steps, but a few dozen steps are enough to
//! double a text beyond any memory, and running out of memory ends a process. So the command line renders foreign
//! templates in a child that may take little memory and little time; its death is an error like any other.

use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;

use files::children::{self, Children, Ending, Input};
use files::process::{SHORTAGE, address_space_limit};
use files::shortage::is_shortage;
use serde::{Deserialize, Serialize};

use super::GenerateError;
use super::template::{Rendered, Rendering, no_thread};

/// Address space of the child, program and thread stacks included.
const MEMORY: u64 = 512 << 20;
/// Its CPU time.
const SECONDS: u64 = 10;
/// Name of the hidden command that [`child`] implements.
pub const COMMAND: &str = "template-child";

/// The embedded model's template, which needs no guard.
const OWN: &str = include_str!("../../../gates/models/bitnet-harness-home-hf/chat_template.jinja");

/// Where foreign chat templates are parsed and rendered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateSandbox {
    /// In a process of its own with little memory and little time: the program's hidden command [`COMMAND`], which
    /// calls [`child`].
    Child(Children),
    /// In the calling process, where a hostile template can exhaust the memory: for templates that are trusted.
    InProcess,
}

/// The child's answer.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Text(Rendered),
    Refused(String),
    /// The number of the system's error.
    NoThread(i32),
}

impl TemplateSandbox {
    /// The program that renders this template; our own needs no guard.
    fn program(&self, template: &str) -> Option<&Children> {
        match self {
            Self::Child(children) if template.trim_end() != OWN.trim_end() => Some(children),
            _ => None,
        }
    }

    /// Is this template parsed and rendered elsewhere?
    pub(super) fn guards(&self, template: &str) -> bool {
        self.program(template).is_some()
    }

    pub(super) fn render(&self, rendering: &Rendering) -> Result<Rendered, GenerateError> {
        match self.program(&rendering.template) {
            Some(children) => elsewhere(children, rendering),
            None => rendering.run(),
        }
    }
}

fn elsewhere(children: &Children, rendering: &Rendering) -> Result<Rendered, GenerateError> {
    let failed =
        |e: &dyn std::fmt::Display| GenerateError::Template(format!("cannot be rendered in a process of its own: {e}"));
    let question = serde_json::to_vec(rendering).map_err(|e| failed(&e))?;
    let mut command = children.command(COMMAND);
    let done = children::run(&mut command, Input::Bytes(question), None, &|| false, &mut |_| false);
    let done = done.map_err(|e| if is_shortage(&e) { no_process(e) } else { failed(&e) })?;
    match (serde_json::from_str(&done.output), done.ending) {
        (Ok(Answer::Text(text)), _) => Ok(text),
        (Ok(Answer::Refused(why)), _) => Err(GenerateError::Template(why)),
        (Ok(Answer::NoThread(number)), _) => Err(no_thread(std::io::Error::from_raw_os_error(number))),
        (Err(_), Ending::Exited(status)) if children::was_interrupted(status) => {
            Err(bitnet_rs::Error::Cancelled.into())
        }
        (Err(_), Ending::Exited(status)) => Err(if status.signal().is_none() && status.code() != Some(SHORTAGE) {
            failed(&status)
        } else if address_space_limit().is_some_and(|limit| limit < MEMORY) {
            // It never had the memory that a template may take.
            bitnet_rs::Error::HostShortage {
                what: format!("the {} MiB that a chat template may take", MEMORY >> 20),
                source: std::io::ErrorKind::OutOfMemory.into(),
            }
            .into()
        } else {
            GenerateError::Template(format!(
                "needs more than {} MiB of memory or {SECONDS} s to render (its process ended with {status})",
                MEMORY >> 20
            ))
        }),
        (Err(e), _) => Err(failed(&e)),
    }
}

/// The host gives no process for a rendering.
fn no_process(source: std::io::Error) -> GenerateError {
    bitnet_rs::Error::HostShortage { what: "a process to render the chat template in".into(), source }.into()
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
        Err(GenerateError::Template(why)) => Answer::Refused(why),
        Err(GenerateError::Engine(bitnet_rs::Error::HostShortage { source, .. })) => {
            Answer::NoThread(source.raw_os_error().unwrap_or_default())
        }
        Err(other) => Answer::Refused(other.to_string()),
    };
    serde_json::to_writer(std::io::stdout().lock(), &answer)?;
    Ok(())
}
