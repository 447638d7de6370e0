//! Chat templates, rendered as HuggingFace renders them.
//!
//! Content never becomes control tokens: what looks like a marker in a message is rendered as ordinary text and
//! tokenized as such, whatever the template does with the message.

use bitnet_rs::{Model, Special, TokenId};
use minijinja::value::Value;
use minijinja::{Environment, ErrorKind, context};
use serde::Serialize;

use super::{GenerateError, TemplateSandbox, fits_context};

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

/// A chat template and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatTemplate {
    text: String,
    sandbox: TemplateSandbox,
    /// `model`, or the file it was read from.
    pub source: String,
}

/// Longest template and longest rendering, in bytes.
const MAX_TEMPLATE: usize = 256 << 10;
const MAX_RENDERED: usize = 16 << 20;
/// Bounds loops in a hostile template.
const FUEL: u64 = 10_000_000;

impl ChatTemplate {
    /// The template in the model's metadata; `sandbox` says where it is rendered.
    ///
    /// # Errors
    /// [`GenerateError::NoTemplate`]: there is no silent fallback.
    pub fn of_model(model: &Model, sandbox: &TemplateSandbox) -> Result<Self, GenerateError> {
        let text = model.info().tokenizer().chat_template.clone().ok_or(GenerateError::NoTemplate)?;
        Self::new(text, "model", sandbox)
    }

    /// A template from elsewhere.
    ///
    /// # Errors
    /// [`GenerateError::Template`] when it is too long or does not parse.
    pub fn new(text: String, source: &str, sandbox: &TemplateSandbox) -> Result<Self, GenerateError> {
        if text.len() > MAX_TEMPLATE {
            let message = format!("{} bytes, at most {MAX_TEMPLATE} are accepted", text.len());
            return Err(GenerateError::Template(message));
        }
        let template = Self { text, sandbox: sandbox.clone(), source: source.into() };
        if !sandbox.guards(&template.text) {
            environment().template_from_str(&template.text).map_err(|e| GenerateError::Template(one_line(&e)))?;
        }
        Ok(template)
    }

    /// Renders the conversation.
    ///
    /// # Errors
    /// [`GenerateError::Template`] with the template's own refusal (`raise_exception`) where it has one.
    pub fn render(
        &self,
        model: &Model,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, GenerateError> {
        let piece = |token: Option<TokenId>| {
            token.and_then(|t| model.token_bytes(t, true).ok()).map(|b| String::from_utf8_lossy(&b).into_owned())
        };
        let rendering = Rendering {
            template: self.text.clone(),
            messages: messages.to_vec(),
            add_generation_prompt,
            bos_token: piece(model.bos()).unwrap_or_default(),
            eos_token: piece(model.eos()).unwrap_or_default(),
        };
        self.sandbox.render(&rendering)
    }

    /// Renders and tokenizes: markers of the template become their tokens, markers in content do not.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`], and the tokenizer's.
    pub fn tokens(
        &self,
        model: &Model,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<Vec<TokenId>, GenerateError> {
        fits_context(model, messages.iter().map(|m| m.content.len()).sum())?;
        let markers = markers(model)?;
        // Each marker in a message is replaced by a private-use text that no template knows, and put back as content.
        let mut replaced = Vec::new();
        let defused: Vec<Message> = messages
            .iter()
            .map(|m| Message { role: m.role.clone(), content: defuse(&m.content, &markers, &mut replaced) })
            .collect();
        let rendered = self.render(model, &defused, add_generation_prompt)?;
        fits_context(model, rendered.len())?;
        let mut tokens = Vec::new();
        let mut rest = rendered.as_str();
        while let Some(start) = rest.find(OPEN) {
            let (before, from) = rest.split_at(start);
            tokens.extend(model.tokenize(before, Special::Markup)?);
            let end = from.find(CLOSE).map_or(from.len(), |e| e + CLOSE.len_utf8());
            let index: Option<usize> = from[OPEN.len_utf8()..end].trim_end_matches(CLOSE).parse().ok();
            let text = index.and_then(|i| replaced.get(i)).map_or(&from[..end], String::as_str);
            tokens.extend(model.tokenize(text, Special::Content)?);
            rest = &from[end..];
        }
        tokens.extend(model.tokenize(rest, Special::Markup)?);
        Ok(tokens)
    }
}

/// All that a rendering needs.
#[derive(Debug, Serialize, serde::Deserialize)]
pub(super) struct Rendering {
    pub(super) template: String,
    messages: Vec<Message>,
    add_generation_prompt: bool,
    bos_token: String,
    eos_token: String,
}

impl Rendering {
    /// Renders in this process.
    pub(super) fn run(&self) -> Result<String, String> {
        let environment = environment();
        let template = environment.template_from_str(&self.template).map_err(|e| one_line(&e))?;
        let mut rendered = Bounded(Vec::new());
        let end = template.render_captured_to(
            context! {
                messages => self.messages,
                add_generation_prompt => self.add_generation_prompt,
                bos_token => self.bos_token,
                eos_token => self.eos_token,
            },
            &mut rendered,
        );
        if rendered.0.len() > MAX_RENDERED {
            return Err(format!("it renders more than {MAX_RENDERED} bytes"));
        }
        end.map_err(|e| one_line(&e)).map(drop)?;
        String::from_utf8(rendered.0).map_err(|e| e.to_string())
    }
}

/// Takes a little more than [`MAX_RENDERED`] bytes, then refuses.
struct Bounded(Vec<u8>);

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let left = (MAX_RENDERED + 1).saturating_sub(self.0.len());
        self.0.extend_from_slice(&bytes[..bytes.len().min(left)]);
        if bytes.len() > left { Err(std::io::ErrorKind::FileTooLarge.into()) } else { Ok(bytes.len()) }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What went wrong and where, with what caused it; the template's text in it cannot speak to a terminal.
fn one_line(e: &minijinja::Error) -> String {
    let mut text = e.to_string();
    let mut source = std::error::Error::source(e);
    while let Some(e) = source {
        text.push_str(&format!(": {e}"));
        source = e.source();
    }
    let text: String =
        text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect();
    match text.char_indices().nth(500) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

const OPEN: char = '\u{f8d0}';
const CLOSE: char = '\u{f8d1}';

/// Texts of the vocabulary's control tokens.
fn markers(model: &Model) -> Result<Vec<String>, GenerateError> {
    let mut found = Vec::new();
    for id in 0..model.n_vocab() {
        let token = model.token(i32::try_from(id).unwrap_or(i32::MAX))?;
        if model.is_control(token) {
            let text = String::from_utf8_lossy(&model.token_bytes(token, true)?).into_owned();
            if !text.is_empty() {
                found.push(text);
            }
        }
    }
    // Longest first: a marker may begin another.
    found.sort_by_key(|m| std::cmp::Reverse(m.len()));
    Ok(found)
}

fn defuse(content: &str, markers: &[String], replaced: &mut Vec<String>) -> String {
    let mut out = String::with_capacity(content.len());
    let mut rest = content;
    while let Some(c) = rest.chars().next() {
        let marker = markers.iter().find(|m| rest.starts_with(m.as_str())).map(String::len);
        // The private-use characters themselves may stand in a message, too.
        let length = marker.or_else(|| [OPEN, CLOSE].contains(&c).then(|| c.len_utf8()));
        if let Some(length) = length {
            out.push_str(&format!("{OPEN}{}{CLOSE}", replaced.len()));
            replaced.push(rest[..length].to_owned());
            rest = &rest[length..];
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    out
}

/// Jinja as transformers sets it up: blocks trimmed, loop controls, `raise_exception`, `tojson`.
fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_fuel(Some(FUEL));
    env.set_unknown_method_callback(python_methods);
    env.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
    });
    env
}

/// The Python string methods that chat templates use.
fn python_methods(
    _state: &minijinja::State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, minijinja::Error> {
    let text = value.as_str();
    let argument = args.first().and_then(Value::as_str);
    let trim = |c: char| argument.map_or(c.is_whitespace(), |set| set.contains(c));
    Ok(match (method, text) {
        ("strip", Some(s)) => Value::from(s.trim_matches(trim)),
        ("lstrip", Some(s)) => Value::from(s.trim_start_matches(trim)),
        ("rstrip", Some(s)) => Value::from(s.trim_end_matches(trim)),
        ("upper", Some(s)) => Value::from(s.to_uppercase()),
        ("lower", Some(s)) => Value::from(s.to_lowercase()),
        ("startswith", Some(s)) => Value::from(argument.is_some_and(|a| s.starts_with(a))),
        ("endswith", Some(s)) => Value::from(argument.is_some_and(|a| s.ends_with(a))),
        ("split", Some(s)) => match argument {
            Some(by) if !by.is_empty() => s.split(by).map(Value::from).collect(),
            _ => s.split_whitespace().map(Value::from).collect(),
        },
        _ => return Err(minijinja::Error::from(ErrorKind::UnknownMethod)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_in_content_are_taken_out_and_kept() {
        let markers = vec!["<|eot_id|>".to_owned(), "<|e".to_owned()];
        let mut replaced = Vec::new();
        let out = defuse("a<|eot_id|>b<|e\u{f8d0}", &markers, &mut replaced);
        assert_eq!(replaced, ["<|eot_id|>", "<|e", "\u{f8d0}"]);
        assert_eq!(out, "a\u{f8d0}0\u{f8d1}b\u{f8d0}1\u{f8d1}\u{f8d0}2\u{f8d1}");
    }

    #[test]
    fn a_template_that_loops_forever_is_stopped_and_a_bad_one_refused() {
        assert!(ChatTemplate::new("{% for".into(), "x", &TemplateSandbox::InProcess).is_err());
        assert!(ChatTemplate::new("x".repeat(MAX_TEMPLATE + 1), "x", &TemplateSandbox::InProcess).is_err());
        let env = environment();
        let text = "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}";
        assert!(env.render_str(text, ()).is_err());
        assert!(env.render_str("{{ raise_exception('no') }}", ()).is_err_and(|e| e.to_string().contains("no")));
        assert_eq!(env.render_str("{{ ' a '.strip() }}|{{ 'x' | tojson }}", ()).unwrap(), "a|\"x\"");
    }
}
