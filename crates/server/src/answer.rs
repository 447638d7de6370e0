//! From the scheduler's events to what clients read: whole bodies and streams of chunks.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{SystemTime, UNIX_EPOCH};

use bitnet_rs::{Model, TokenId};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use session::Ending;
use session::scheduler::{StreamEvent, Ticket, TokenLogprobs, Usage};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_stream::Stream;

use crate::error::{ApiError, internal};
use crate::prepare::Shape;
use crate::protocol::{
    AssistantMessage, ChatChoice, ChatCompletion, ChoiceLogprobs, Completion, CompletionChoice, CompletionLogprobs,
    FunctionCallBody, LogprobBody, ToolCallBody, UsageBody,
};

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// A random id.
pub(crate) fn id(prefix: &str) -> String {
    format!("{prefix}{:016x}{:08x}", rand::random::<u64>(), rand::random::<u32>())
}

/// What every body of an answer says.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) fingerprint: String,
}

/// One answer as it grows.
#[derive(Debug, Default, Clone)]
pub(crate) struct Part {
    pub(crate) text: String,
    pub(crate) logprobs: Vec<LogprobBody>,
    pub(crate) ending: Option<(Ending, bool)>,
    /// Texts of the tokens, and where they begin, for completions.
    offsets: Vec<usize>,
    characters: usize,
}

/// What an answer turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Text, with why it ended.
    Text(String, &'static str),
    /// A call.
    Call(ToolCallBody),
    /// A call that was cut: none.
    Cut,
}

#[derive(Deserialize)]
struct RawCall<'a> {
    tool: String,
    #[serde(borrow)]
    arguments: &'a RawValue,
}

impl Part {
    /// Judges an answer that has ended.
    pub(crate) fn outcome(&self, shape: Shape) -> Result<Outcome, ApiError> {
        let Some((ending, complete)) = self.ending else { return Err(internal("an answer without an end")) };
        let reason = match ending {
            Ending::EndOfGeneration | Ending::GrammarComplete | Ending::Stop => "stop",
            _ => "length",
        };
        let call = match shape {
            Shape::Text => false,
            Shape::Call => true,
            Shape::CallOrText => self.text.starts_with('{') && ending != Ending::Stop,
        };
        if !call {
            return Ok(Outcome::Text(self.text.clone(), reason));
        }
        if !complete {
            return Ok(Outcome::Cut);
        }
        // The grammar has seen to it; this only takes it apart.
        let raw: RawCall<'_> =
            serde_json::from_str(&self.text).map_err(|e| internal(&format!("a complete call does not parse: {e}")))?;
        Ok(Outcome::Call(ToolCallBody {
            id: id("call_"),
            r#type: "function".into(),
            function: FunctionCallBody { name: raw.tool, arguments: raw.arguments.get().to_owned() },
        }))
    }

    fn add(
        &mut self,
        model: &Model,
        id: TokenId,
        text: &str,
        logprobs: Option<&TokenLogprobs>,
    ) -> Result<(), ApiError> {
        self.text.push_str(text);
        if let Some(l) = logprobs {
            let body = logprob(model, id, l)?;
            self.offsets.push(self.characters);
            self.characters += body.token.chars().count();
            self.logprobs.push(body);
        }
        Ok(())
    }
}

fn entry(model: &Model, id: TokenId, logprob: f64) -> Result<LogprobBody, ApiError> {
    let bytes = model.token_bytes(id, true).map_err(|e| internal(&e.to_string()))?;
    Ok(LogprobBody {
        token: String::from_utf8_lossy(&bytes).into_owned(),
        bytes,
        // JSON knows no infinity.
        logprob: logprob.max(-9999.0),
        top_logprobs: None,
    })
}

fn logprob(model: &Model, id: TokenId, l: &TokenLogprobs) -> Result<LogprobBody, ApiError> {
    let top = l.top.iter().map(|(id, lp)| entry(model, *id, *lp)).collect::<Result<_, _>>()?;
    Ok(LogprobBody { top_logprobs: Some(top), ..entry(model, id, l.chosen)? })
}

/// As completions have them.
fn columns(logprobs: &[LogprobBody], offsets: &[usize]) -> CompletionLogprobs {
    CompletionLogprobs {
        tokens: logprobs.iter().map(|l| l.token.clone()).collect(),
        token_logprobs: logprobs.iter().map(|l| l.logprob).collect(),
        top_logprobs: logprobs
            .iter()
            .map(|l| {
                l.top_logprobs
                    .iter()
                    .flatten()
                    .map(|t| (t.token.clone(), Value::from(t.logprob)))
                    .collect::<Map<_, _>>()
            })
            .collect(),
        text_offset: offsets.to_vec(),
    }
}

/// The events of a request, with the hand on it: dropping it ends the request.
pub(crate) struct Events {
    pub(crate) receiver: UnboundedReceiver<StreamEvent>,
    pub(crate) _ticket: Ticket,
}

/// All of an answer.
pub(crate) struct Whole {
    pub(crate) parts: Vec<Part>,
    pub(crate) usage: Usage,
}

/// Waits for the end.
pub(crate) async fn whole(model: &Model, mut events: Events, choices: u32) -> Result<Whole, ApiError> {
    let mut parts = vec![Part::default(); choices as usize];
    while let Some(event) = events.receiver.recv().await {
        match event {
            StreamEvent::Token { choice, id, text, logprobs } => {
                if let Some(part) = parts.get_mut(choice as usize) {
                    part.add(model, id, &text, logprobs.as_ref())?;
                }
            }
            StreamEvent::End { choice, ending, complete, text } => {
                if let Some(part) = parts.get_mut(choice as usize) {
                    part.text.push_str(&text);
                    part.ending = Some((ending, complete));
                }
            }
            StreamEvent::Done { usage } => return Ok(Whole { parts, usage }),
            StreamEvent::Failed(failure) => return Err(failure.into()),
            _ => {}
        }
    }
    Err(internal("the scheduler ended a request without a word"))
}

/// `chat.completion`.
pub(crate) fn chat_body(head: &Head, shape: Shape, logprobs: bool, whole: &Whole) -> Result<ChatCompletion, ApiError> {
    let choice = |(index, part): (u32, &Part)| {
        let (content, tool_calls, reason) = match part.outcome(shape)? {
            Outcome::Text(text, reason) => (Some(text), None, reason),
            Outcome::Call(call) => (None, Some(vec![call]), "tool_calls"),
            Outcome::Cut => (None, None, "length"),
        };
        let message = AssistantMessage { role: "assistant".into(), content, refusal: None, tool_calls };
        let logprobs = logprobs.then(|| ChoiceLogprobs { content: part.logprobs.clone(), refusal: None });
        Ok(ChatChoice { index, message, logprobs, finish_reason: reason.into() })
    };
    Ok(ChatCompletion {
        id: head.id.clone(),
        object: "chat.completion".into(),
        created: head.created,
        model: head.model.clone(),
        choices: (0..).zip(&whole.parts).map(choice).collect::<Result<_, ApiError>>()?,
        usage: whole.usage.into(),
        system_fingerprint: head.fingerprint.clone(),
    })
}

/// `text_completion`.
pub(crate) fn completion_body(head: &Head, logprobs: bool, whole: &Whole) -> Result<Completion, ApiError> {
    let choice = |(index, part): (u32, &Part)| {
        let Outcome::Text(text, reason) = part.outcome(Shape::Text)? else { return Err(internal("a call as text")) };
        let logprobs = logprobs.then(|| columns(&part.logprobs, &part.offsets));
        Ok(CompletionChoice { text, index, logprobs, finish_reason: Some(reason.into()) })
    };
    Ok(Completion {
        id: head.id.clone(),
        object: "text_completion".into(),
        created: head.created,
        model: head.model.clone(),
        choices: (0..).zip(&whole.parts).map(choice).collect::<Result<_, ApiError>>()?,
        usage: Some(whole.usage.into()),
        system_fingerprint: head.fingerprint.clone(),
    })
}

/// Which protocol a stream speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Chat,
    Completion,
}

/// Turns events into the data of a stream's chunks.
pub(crate) struct Encoder {
    pub(crate) kind: Kind,
    pub(crate) head: Head,
    pub(crate) shape: Shape,
    pub(crate) logprobs: bool,
    pub(crate) include_usage: bool,
    pub(crate) model: Model,
    parts: Vec<Part>,
    begun: bool,
    /// How many log-probabilities of each answer are out.
    sent: Vec<usize>,
}

impl Encoder {
    pub(crate) fn new(
        kind: Kind,
        head: Head,
        shape: Shape,
        logprobs: bool,
        include_usage: bool,
        model: Model,
        choices: u32,
    ) -> Self {
        let n = choices as usize;
        Self {
            kind,
            head,
            shape,
            logprobs,
            include_usage,
            model,
            parts: vec![Part::default(); n],
            begun: false,
            sent: vec![0; n],
        }
    }

    fn chunk(&self, choices: Value, usage: Option<&Usage>) -> String {
        let object = match self.kind {
            Kind::Chat => "chat.completion.chunk",
            Kind::Completion => "text_completion",
        };
        let mut body = json!({
            "id": self.head.id,
            "object": object,
            "created": self.head.created,
            "model": self.head.model,
            "system_fingerprint": self.head.fingerprint,
            "choices": choices,
        });
        if self.include_usage {
            body["usage"] = usage.map_or(Value::Null, |u| json!(UsageBody::from(*u)));
        }
        body.to_string()
    }

    fn choice(&mut self, index: usize, delta: Value, reason: Option<&str>) -> String {
        let from = std::mem::replace(&mut self.sent[index], self.parts[index].logprobs.len());
        let part = &self.parts[index];
        let new = &part.logprobs[from..];
        let choice = match self.kind {
            Kind::Chat => {
                let logprobs = (self.logprobs && !new.is_empty()).then(|| json!({"content": new, "refusal": null}));
                json!({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason})
            }
            Kind::Completion => {
                let logprobs = self.logprobs.then(|| columns(new, &part.offsets[from..]));
                json!({"index": index, "text": delta, "logprobs": logprobs, "finish_reason": reason})
            }
        };
        self.chunk(json!([choice]), None)
    }

    fn text(&mut self, index: usize, text: &str) -> String {
        let delta = match self.kind {
            Kind::Chat => json!({"content": text}),
            Kind::Completion => json!(text),
        };
        self.choice(index, delta, None)
    }

    /// Is this answer held back, since it may be a call?
    fn holds(&self, index: usize) -> bool {
        match self.shape {
            Shape::Text => false,
            Shape::Call => true,
            Shape::CallOrText => self.parts[index].text.is_empty() || self.parts[index].text.starts_with('{'),
        }
    }

    /// The data of the chunks for one event; `true` at the end.
    pub(crate) fn encode(&mut self, event: StreamEvent, out: &mut VecDeque<String>) -> Result<bool, ApiError> {
        if !self.begun {
            self.begun = true;
            if self.kind == Kind::Chat {
                for index in 0..self.parts.len() {
                    // No text yet: an empty one would be content beside a call.
                    let content = if self.shape == Shape::Text { json!("") } else { Value::Null };
                    out.push_back(self.choice(index, json!({"role": "assistant", "content": content}), None));
                }
            }
        }
        match event {
            StreamEvent::Token { choice, id, text, logprobs } => {
                let index = choice as usize;
                self.parts[index].add(&self.model, id, &text, logprobs.as_ref())?;
                if !self.holds(index) && (!text.is_empty() || self.sent[index] < self.parts[index].logprobs.len()) {
                    let chunk = self.text(index, &text);
                    out.push_back(chunk);
                }
            }
            StreamEvent::End { choice, ending, complete, text } => {
                let index = choice as usize;
                let held = self.holds(index);
                self.parts[index].text.push_str(&text);
                self.parts[index].ending = Some((ending, complete));
                let nothing = match self.kind {
                    Kind::Chat => json!({}),
                    Kind::Completion => json!(""),
                };
                match self.parts[index].outcome(self.shape)? {
                    Outcome::Text(all, reason) => {
                        let rest = if held { all } else { text };
                        if !rest.is_empty() {
                            let chunk = self.text(index, &rest);
                            out.push_back(chunk);
                        }
                        out.push_back(self.choice(index, nothing, Some(reason)));
                    }
                    Outcome::Call(call) => {
                        let first = json!({"tool_calls": [{
                            "index": 0, "id": call.id, "type": "function",
                            "function": {"name": call.function.name, "arguments": ""},
                        }]});
                        out.push_back(self.choice(index, first, None));
                        let piece =
                            json!({"tool_calls": [{"index": 0, "function": {"arguments": call.function.arguments}}]});
                        out.push_back(self.choice(index, piece, None));
                        out.push_back(self.choice(index, nothing, Some("tool_calls")));
                    }
                    Outcome::Cut => out.push_back(self.choice(index, nothing, Some("length"))),
                }
            }
            StreamEvent::Done { usage } => {
                if self.include_usage {
                    out.push_back(self.chunk(json!([]), Some(&usage)));
                }
                out.push_back("[DONE]".into());
                return Ok(true);
            }
            StreamEvent::Failed(failure) => return Err(failure.into()),
            _ => {}
        }
        Ok(false)
    }
}

/// A stream of chunks, as server-sent events.
pub(crate) struct Chunks {
    events: Events,
    encoder: Encoder,
    out: VecDeque<String>,
    over: bool,
    /// Told once, at the end.
    done: Option<Box<dyn FnOnce(&str, Usage) + Send>>,
}

impl Chunks {
    pub(crate) fn new(
        events: Events,
        encoder: Encoder,
        first: StreamEvent,
        done: Box<dyn FnOnce(&str, Usage) + Send>,
    ) -> Self {
        let mut chunks = Self { events, encoder, out: VecDeque::new(), over: false, done: Some(done) };
        chunks.take(first);
        chunks
    }

    fn take(&mut self, event: StreamEvent) {
        let usage = if let StreamEvent::Done { usage } = &event { Some(*usage) } else { None };
        match self.encoder.encode(event, &mut self.out) {
            Ok(over) => self.over |= over,
            Err(e) => {
                // The status is out; the error is the last that is said.
                self.out.push_back(json!(e.body()).to_string());
                self.over = true;
                self.tell(e.code(), Usage::default());
            }
        }
        if let Some(usage) = usage {
            self.tell("done", usage);
        }
    }

    fn tell(&mut self, how: &str, usage: Usage) {
        if let Some(done) = self.done.take() {
            done(how, usage);
        }
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        self.tell("client_left", Usage::default());
    }
}

impl Stream for Chunks {
    type Item = Result<axum::response::sse::Event, std::convert::Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(data) = self.out.pop_front() {
                return Poll::Ready(Some(Ok(axum::response::sse::Event::default().data(data))));
            }
            if self.over {
                return Poll::Ready(None);
            }
            match self.events.receiver.poll_recv(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(event)) => self.take(event),
                Poll::Ready(None) => {
                    let e = internal("the scheduler ended a request without a word");
                    self.out.push_back(json!(e.body()).to_string());
                    self.over = true;
                }
            }
        }
    }
}
