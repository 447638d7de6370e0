//! One rendering: all that it needs, and what comes of it.

use std::ops::Range;
use std::rc::Rc;

use serde::Serialize;

use super::python::LocalTime;
use super::text::Text;
use super::value::{Dict, Value};
use super::{run, syntax};
use crate::GenerateError;

const MAX_RENDERED: usize = 16 << 20;
/// Roles that templates build markers of (`<|` and the role and `|>`). Any other role is what a message says.
const ROLES: [&str; 9] =
    ["system", "user", "assistant", "tool", "function", "developer", "ipython", "model", "environment"];

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// The text.
    pub content: String,
}

impl Message {
    /// A message.
    pub fn new(role: &str, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// All that a rendering needs.
#[derive(Debug, Serialize, serde::Deserialize)]
pub(crate) struct Rendering {
    pub(crate) template: String,
    pub(super) messages: Vec<Message>,
    pub(super) add_generation_prompt: bool,
    pub(super) bos_token: Option<String>,
    pub(super) eos_token: Option<String>,
    pub(super) now: LocalTime,
}

/// A rendered conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
pub(crate) struct Rendered {
    pub(crate) text: String,
    /// The bytes that messages brought, in order.
    pub(super) from_messages: Vec<Range<usize>>,
}

impl Rendered {
    /// Whether a message brought any of these bytes.
    pub(super) fn is_foreign(&self, place: &Range<usize>) -> bool {
        let next = self.from_messages.partition_point(|r| r.end <= place.start);
        self.from_messages.get(next).is_some_and(|r| r.start < place.end)
    }
}

impl From<&Text> for Rendered {
    fn from(text: &Text) -> Self {
        let (mut plain, mut from_messages): (String, Vec<Range<usize>>) = Default::default();
        for ch in text.chars() {
            let start = plain.len();
            plain.push(ch.char());
            if ch.is_message() {
                match from_messages.last_mut().filter(|r| r.end == start) {
                    Some(run) => run.end = plain.len(),
                    None => from_messages.push(start..plain.len()),
                }
            }
        }
        Self { text: plain, from_messages }
    }
}

/// Stack of a rendering: what bounds its depth is a count, and this is room for it.
const STACK: usize = 64 << 20;

/// Runs it on a thread with [`STACK`]; what it refuses is the template's fault, a thread that cannot be had is not.
pub(super) fn with_stack<T: Send>(run: impl FnOnce() -> Result<T, String> + Send) -> Result<T, GenerateError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, run);
        let thread = thread.map_err(no_thread)?;
        let done = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        done.map_err(GenerateError::Template)
    })
}

/// The host gives no thread for a rendering.
pub(crate) fn no_thread(source: std::io::Error) -> GenerateError {
    bitnet_rs::Error::HostShortage { what: "a thread to render the chat template on".into(), source }.into()
}

impl Rendering {
    /// Renders in this process.
    pub(crate) fn run(&self) -> Result<Rendered, GenerateError> {
        with_stack(|| {
            let body = syntax::parse(&self.template).map_err(one_line)?;
            let rendered = run::render(&body, self.variables(), self.now, MAX_RENDERED).map_err(one_line)?;
            let rendered = Rendered::from(&rendered);
            if rendered.text.len() > MAX_RENDERED {
                return Err(format!("it renders more than {MAX_RENDERED} bytes"));
            }
            Ok(rendered)
        })
    }

    fn variables(&self) -> Vec<(&'static str, Value)> {
        let messages = self.messages.iter().map(|message| {
            let mut dict = Dict::default();
            let own = ROLES.contains(&message.role.as_str());
            let role = if own { Text::own(&message.role) } else { Text::message(&message.role) };
            dict.insert(Value::str("role"), Value::Str(role));
            dict.insert(Value::str("content"), Value::Str(Text::message(&message.content)));
            Value::Dict(Rc::new(dict))
        });
        let mut variables = vec![
            ("messages", Value::list(messages.collect())),
            ("tools", Value::None),
            ("documents", Value::None),
            ("add_generation_prompt", Value::Bool(self.add_generation_prompt)),
        ];
        // A special token that the vocabulary does not have is not defined.
        for (name, token) in [("bos_token", &self.bos_token), ("eos_token", &self.eos_token)] {
            if let Some(token) = token {
                variables.push((name, Value::str(token)));
            }
        }
        variables
    }
}

/// What went wrong; the template's text in it cannot speak to a terminal.
pub(super) fn one_line(text: String) -> String {
    let text: String =
        text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect();
    match text.char_indices().nth(500) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}
