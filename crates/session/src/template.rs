//! Chat templates, rendered as HuggingFace transformers renders them, over text that knows where it comes from.
//!
//! A template is a program of somebody else's and may do anything with what messages say: cut it, lower its letters,
//! join it, take pieces out of it. So every character carries, through every operation, whether a message brought it.
//! A control token whose text a message had any part in is not a control token: its text is content.

mod builtins;
mod lexer;
mod machine;
mod methods;
mod python;
mod rendering;
mod run;
mod syntax;
mod text;
mod value;

use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

use bitnet_rs::{Model, Special, TokenId};

use super::{GenerateError, TemplateSandbox, fits_context};
use python::LocalTime;
use rendering::with_stack;

pub use rendering::Message;
pub(crate) use rendering::{Rendered, Rendering, no_thread};

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
            check(&template.text)?;
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
        self.rendered(model, messages, add_generation_prompt).map(|rendered| rendered.text)
    }

    fn rendered(
        &self,
        model: &Model,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<Rendered, GenerateError> {
        let piece = |token: Option<TokenId>| {
            token.and_then(|t| model.token_bytes(t, true).ok()).map(|b| String::from_utf8_lossy(&b).into_owned())
        };
        let rendering = Rendering {
            template: self.text.clone(),
            messages: messages.to_vec(),
            add_generation_prompt,
            bos_token: piece(model.bos()),
            eos_token: piece(model.eos()),
            now: LocalTime::utc(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())),
        };
        self.sandbox.render(&rendering)
    }

    /// Renders and tokenizes: markers of the template become their tokens. What a message had part in does not,
    /// whatever the template does with it.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`], and the tokenizer's. [`GenerateError::Template`] too where the vocabulary makes a
    /// control token of plain text, so that content cannot be told from a marker.
    pub fn tokens(
        &self,
        model: &Model,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<Vec<TokenId>, GenerateError> {
        fits_context(model, messages.iter().map(|m| m.content.len()).sum())?;
        let rendered = self.rendered(model, messages, add_generation_prompt)?;
        fits_context(model, rendered.text.len())?;
        tokens(model, &rendered)
    }
}

/// A template that parses.
///
/// # Errors
/// Why it does not, with the line.
pub(crate) fn check(template: &str) -> Result<(), GenerateError> {
    let template = template.to_owned();
    with_stack(move || syntax::parse(&template).map(drop))
}

fn tokens(model: &Model, rendered: &Rendered) -> Result<Vec<TokenId>, GenerateError> {
    let markers = markers(model)?;
    let text = rendered.text.as_str();
    let own = own_places(rendered, &markers);
    let control = |tokens: &[TokenId]| tokens.iter().copied().filter(|t| model.is_control(*t)).collect::<Vec<_>>();
    if !any_foreign(rendered, &markers) {
        let tokens = model.tokenize(text, Special::Markup)?;
        // The engine found the markers where they stand, and no others.
        let expected: Vec<TokenId> = own.iter().map(|(_, id)| *id).filter(|t| model.is_control(*t)).collect();
        if control(&tokens) == expected {
            return Ok(tokens);
        }
    }
    // The template's own markers are their tokens, and what stands between them is content in one piece each.
    let mut out = Vec::new();
    let mut at = 0;
    for (place, id) in own.iter().map(|(place, id)| (place.clone(), Some(*id))).chain([(text.len()..text.len(), None)])
    {
        if place.start > at {
            let content = model.tokenize(&text[at..place.start], Special::Content)?;
            if let Some(token) = control(&content).first() {
                let piece = String::from_utf8_lossy(&model.token_bytes(*token, true)?).into_owned();
                return Err(GenerateError::Template(format!(
                    "the vocabulary makes its control token {piece:?} of plain text that a message may bring; such a \
                     conversation is refused"
                )));
            }
            out.extend(content);
        }
        out.extend(id);
        at = place.end;
    }
    Ok(out)
}

/// A text that the tokenizer takes for a token of its own where it reads markup.
struct Marker {
    text: String,
    id: TokenId,
}

/// The vocabulary's control tokens, and the token for what is unknown: longest first, as the engine looks for them.
fn markers(model: &Model) -> Result<Vec<Marker>, GenerateError> {
    let mut found = Vec::new();
    let unknown = model.info().tokenizer().special.unknown;
    for id in 0..model.n_vocab() {
        let id = model.token(i32::try_from(id).unwrap_or(i32::MAX))?;
        let is_unknown = unknown.is_some_and(|u| i64::from(u) == i64::from(id.get()));
        if !model.is_control(id) && !is_unknown {
            continue;
        }
        let text = String::from_utf8_lossy(&model.token_bytes(id, true)?).into_owned();
        // A file may name an ordinary token as the unknown one.
        if !text.is_empty() && (model.is_control(id) || model.tokenize(&text, Special::Content)? != [id]) {
            found.push(Marker { text, id });
        }
    }
    found.sort_by_key(|m| std::cmp::Reverse(m.text.len()));
    Ok(found)
}

/// Whether a marker's text stands anywhere with a part that a message brought.
fn any_foreign(rendered: &Rendered, markers: &[Marker]) -> bool {
    if rendered.from_messages.is_empty() {
        return false;
    }
    let text = rendered.text.as_str();
    markers.iter().any(|marker| {
        let mut from = 0;
        while let Some(found) = text[from..].find(&marker.text) {
            let start = from + found;
            if rendered.is_foreign(&(start..start + marker.text.len())) {
                return true;
            }
            // Places may overlap: one character on.
            from = start + marker.text.chars().next().map_or(1, char::len_utf8);
        }
        false
    })
}

/// Where markers of the template's own stand, in the order of the text and without overlap.
fn own_places(rendered: &Rendered, markers: &[Marker]) -> Vec<(Range<usize>, TokenId)> {
    let text = rendered.text.as_str();
    let mut gaps: Vec<Range<usize>> = std::iter::once(0..text.len()).collect();
    let mut places: Vec<(Range<usize>, TokenId)> = Vec::new();
    for marker in markers {
        if !text.contains(&marker.text) {
            continue;
        }
        let mut left = Vec::new();
        for gap in gaps {
            let (mut start, mut from) = (gap.start, gap.start);
            while let Some(found) = text[from..gap.end].find(&marker.text) {
                let place = from + found..from + found + marker.text.len();
                if rendered.is_foreign(&place) {
                    from = place.start + marker.text.chars().next().map_or(1, char::len_utf8);
                    continue;
                }
                if place.start > start {
                    left.push(start..place.start);
                }
                (start, from) = (place.end, place.end);
                places.push((place, marker.id));
            }
            if gap.end > start {
                left.push(start..gap.end);
            }
        }
        gaps = left;
    }
    places.sort_by_key(|(place, _)| place.start);
    places
}

#[cfg(test)]
mod tests;
