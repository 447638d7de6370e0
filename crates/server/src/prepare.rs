//! From a request of the protocol to one of the scheduler: prompt, constraint, sampling. All of it happens before
//! anything waits in the queue, on a thread that may take its time.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bitnet_rs::{SamplingParams, Special, TokenId};
use grammar::schema::{Exactness, Schema, SchemaOptions};
use grammar::tools::ToolRegistry;
use grammar::{Grammar, GrammarLimits, Language};
use serde_json::{Value, json};
use session::scheduler::{Request, Scheduler};
use session::{ChatTemplate, Message};

use crate::catalog::Catalog;
use crate::error::{ApiError, clipped, internal};
use crate::protocol::{
    ChatMessage, ChatRequest, CompletionRequest, FunctionEntry, ResponseFormat, Stop, ToolChoice, ToolEntry,
};

/// Most messages, tools and stop texts of a request.
const MAX_MESSAGES: usize = 2048;
const MAX_TOOLS: usize = 128;
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 256;
/// Largest schema, and largest set of tools, as JSON.
const MAX_SCHEMA_BYTES: usize = 128 << 10;
/// Most log-probabilities in the place of one token.
const MAX_TOP_LOGPROBS: u32 = 20;
/// Grammars that are kept between requests.
const KEPT_GRAMMARS: usize = 64;
/// Objects and arrays of `json_object` nest so deep.
const JSON_DEPTH: usize = 8;

/// What an answer is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Text, constrained or not.
    Text,
    /// A call of a tool.
    Call,
    /// A call of a tool if it begins with a brace, text otherwise.
    CallOrText,
}

/// A request that is ready for the queue.
pub(crate) struct Plan {
    pub(crate) request: Request,
    pub(crate) shape: Shape,
    /// As it was asked for.
    pub(crate) model: String,
}

/// What all requests are prepared with.
pub(crate) struct Preparer {
    pub(crate) scheduler: Scheduler,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) deadline: Option<Duration>,
    grammars: Mutex<VecDeque<(blake3::Hash, Language)>>,
}

/// Sampling as requests have it.
pub(crate) struct Wishes {
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<u32>,
    pub(crate) min_p: Option<f32>,
    pub(crate) repeat_penalty: Option<f32>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) seed: Option<i64>,
}

/// A schema whose grammar alone says what an answer is. What needs a look at the finished answer is refused: an answer
/// that is sent as it comes cannot be taken back.
fn exact(at: &str, schema: &Schema) -> Result<(), ApiError> {
    let Exactness::ByValidation { keywords } = schema.exactness() else { return Ok(()) };
    let place = keywords.first().map(|p| (clipped(&p.keyword), clipped(&p.pointer))).unwrap_or_default();
    let message = format!("schema at '{}': '{}' cannot be kept while an answer is generated", place.1, place.0);
    Err(ApiError::new("schema_unsupported", message).at(format!("{at}{}", place.1)))
}

fn zero(field: &str, value: Option<f32>) -> Result<(), ApiError> {
    match value {
        None | Some(0.0) => Ok(()),
        Some(_) => {
            Err(ApiError::unsupported(field, format!("{field} is not supported; leave it out, or use repeat_penalty")))
        }
    }
}

fn within(field: &str, value: Option<f32>, min: f32, max: f32, default: f32) -> Result<f32, ApiError> {
    let value = value.unwrap_or(default);
    if (min..=max).contains(&value) {
        return Ok(value);
    }
    Err(ApiError::invalid(field, format!("{field} = {value}: must be {min} to {max}")))
}

fn no_bias(bias: Option<&serde_json::Map<String, Value>>) -> Result<(), ApiError> {
    match bias {
        Some(bias) if !bias.is_empty() => Err(ApiError::unsupported("logit_bias", "logit_bias is not supported")),
        _ => Ok(()),
    }
}

impl Preparer {
    pub(crate) fn new(scheduler: Scheduler, template: Option<ChatTemplate>, deadline: Option<Duration>) -> Self {
        Self { scheduler, template, deadline, grammars: Mutex::default() }
    }

    pub(crate) fn sampling(&self, w: &Wishes) -> Result<SamplingParams, ApiError> {
        zero("presence_penalty", w.presence_penalty)?;
        zero("frequency_penalty", w.frequency_penalty)?;
        let seed = match w.seed {
            // Both halves count; small seeds are themselves.
            Some(seed) => {
                let bits = seed.unsigned_abs();
                (bits ^ (bits >> 32)) as u32
            }
            None if self.scheduler.params().deterministic => 0,
            None => rand::random(),
        };
        let top_k = w.top_k.unwrap_or(0);
        if i32::try_from(top_k).is_err() {
            return Err(ApiError::invalid("top_k", format!("top_k = {top_k}: must be 0 to {}", i32::MAX)));
        }
        Ok(SamplingParams {
            temperature: within("temperature", w.temperature, 0.0, 2.0, 1.0)?,
            top_k,
            top_p: within("top_p", w.top_p, 0.0, 1.0, 1.0)?,
            min_p: within("min_p", w.min_p, 0.0, 1.0, 0.0)?,
            repeat_penalty: within("repeat_penalty", w.repeat_penalty, 0.01, 100.0, 1.0)?,
            seed,
            ..Default::default()
        })
    }

    fn deadline(&self) -> Option<Instant> {
        self.deadline.map(|d| Instant::now() + d)
    }

    pub(crate) fn choices(&self, n: Option<u32>) -> Result<u32, ApiError> {
        let (n, limit) = (n.unwrap_or(1), self.scheduler.params().parallel);
        if (1..=limit).contains(&n) {
            return Ok(n);
        }
        Err(ApiError::invalid("n", format!("n = {n}: must be 1 to {limit}, as many as are decoded at once")))
    }

    pub(crate) fn chat(&self, catalog: &Catalog, owner: u64, r: ChatRequest) -> Result<Plan, ApiError> {
        let cartridge = catalog.resolve(&r.model)?;
        no_bias(r.logit_bias.as_ref())?;
        if r.modalities.as_ref().is_some_and(|m| m.iter().any(|m| m != "text")) {
            return Err(ApiError::unsupported("modalities", "only 'text' is supported"));
        }
        if r.stream_options.is_some() && r.stream != Some(true) {
            return Err(ApiError::invalid("stream_options", "stream_options needs stream: true"));
        }
        let sampling = self.sampling(&Wishes {
            temperature: r.temperature,
            top_p: r.top_p,
            top_k: r.top_k,
            min_p: r.min_p,
            repeat_penalty: r.repeat_penalty,
            presence_penalty: r.presence_penalty,
            frequency_penalty: r.frequency_penalty,
            seed: r.seed,
        })?;
        let max_tokens = match (r.max_tokens, r.max_completion_tokens) {
            (Some(a), Some(b)) if a != b => {
                return Err(ApiError::invalid("max_tokens", "max_tokens and max_completion_tokens differ; give one"));
            }
            (a, b) => positive(if a.is_some() { "max_tokens" } else { "max_completion_tokens" }, a.or(b))?,
        };
        let logprobs = match (r.logprobs, r.top_logprobs) {
            (Some(true), top) => Some(at_most("top_logprobs", top.unwrap_or(0), MAX_TOP_LOGPROBS)?),
            (_, None | Some(0)) => None,
            (_, Some(_)) => return Err(ApiError::invalid("top_logprobs", "top_logprobs needs logprobs: true")),
        };
        let choices = self.choices(r.n)?;
        let stop = stops(r.stop)?;
        let tools = Tools::new(r.tools.as_deref(), r.tool_choice.as_ref())?;
        let format = format_of(r.response_format.as_ref())?;
        if tools.is_some() && format != Format::Text {
            let message = "response_format with tools is not supported; use tool_choice 'none', or one of the two";
            return Err(ApiError::unsupported("response_format", message));
        }
        let always = format != Format::Text || tools.as_ref().is_some_and(|t| !t.auto);
        if always && !stop.is_empty() {
            return Err(ApiError::unsupported("stop", "a stop text would cut what is constrained; leave it out"));
        }
        let (grammar, shape) = self.constraint(&format, tools.as_ref())?;
        let prompt = self.chat_tokens(&r.messages, tools.as_ref(), cartridge.is_some())?;
        let request = Request {
            owner,
            prompt,
            cartridge,
            choices,
            sampling,
            max_tokens,
            stop,
            grammar,
            // What begins with a brace is a call; everything else is text.
            grammar_behind: (shape == Shape::CallOrText).then_some(b'{'),
            logprobs,
            deadline: self.deadline(),
        };
        Ok(Plan { request, shape, model: r.model })
    }

    pub(crate) fn completion(&self, catalog: &Catalog, owner: u64, r: CompletionRequest) -> Result<Plan, ApiError> {
        let cartridge = catalog.resolve(&r.model)?;
        no_bias(r.logit_bias.as_ref())?;
        if r.stream_options.is_some() && r.stream != Some(true) {
            return Err(ApiError::invalid("stream_options", "stream_options needs stream: true"));
        }
        if r.echo == Some(true) {
            return Err(ApiError::unsupported("echo", "echo is not supported"));
        }
        if r.suffix.as_ref().is_some_and(|s| !s.is_empty()) {
            return Err(ApiError::unsupported("suffix", "suffix is not supported"));
        }
        let choices = self.choices(r.n)?;
        if r.best_of.is_some_and(|b| b != choices) {
            return Err(ApiError::unsupported("best_of", "best_of is not supported beyond what n is"));
        }
        let [text] = r.prompt.0.as_slice() else {
            return Err(ApiError::unsupported("prompt", "one prompt in a request"));
        };
        let sampling = self.sampling(&Wishes {
            temperature: r.temperature,
            top_p: r.top_p,
            top_k: r.top_k,
            min_p: r.min_p,
            repeat_penalty: r.repeat_penalty,
            presence_penalty: r.presence_penalty,
            frequency_penalty: r.frequency_penalty,
            seed: r.seed,
        })?;
        let special = if cartridge.is_some() { Special::Content } else { Special::ContentWithBos };
        let prompt = self.text_tokens(text, special)?;
        if prompt.is_empty() {
            return Err(ApiError::invalid("prompt", "the prompt is empty"));
        }
        let logprobs = r.logprobs.map(|n| at_most("logprobs", n, MAX_TOP_LOGPROBS)).transpose()?;
        let request = Request {
            owner,
            prompt,
            cartridge,
            choices,
            sampling,
            // What OpenAI's document has as default.
            max_tokens: Some(positive("max_tokens", r.max_tokens)?.unwrap_or(16)),
            stop: stops(r.stop)?,
            grammar: None,
            grammar_behind: None,
            logprobs,
            deadline: self.deadline(),
        };
        Ok(Plan { request, shape: Shape::Text, model: r.model })
    }

    pub(crate) fn text_tokens(&self, text: &str, special: Special) -> Result<Vec<TokenId>, ApiError> {
        let model = self.scheduler.model();
        session::fits_context(model, text.len())?;
        model.tokenize(text, special).map_err(|e| internal(&e.to_string()))
    }

    /// The conversation through the chat template, up to where the answer begins.
    pub(crate) fn chat_tokens(
        &self,
        messages: &[ChatMessage],
        tools: Option<&Tools>,
        behind_cartridge: bool,
    ) -> Result<Vec<TokenId>, ApiError> {
        let template = self.template.as_ref().ok_or_else(|| {
            ApiError::new("no_chat_template", "the model has no chat template; /v1/completions takes plain prompts")
        })?;
        let model = self.scheduler.model();
        let messages = rendered(messages, tools)?;
        let mut tokens = template.tokens(model, &messages, true)?;
        if behind_cartridge && tokens.first().copied() == model.bos() {
            // Behind a cartridge the text goes on; it does not begin again.
            tokens.remove(0);
        }
        if tokens.is_empty() {
            return Err(ApiError::new("template_failed", "the chat template makes nothing of the messages"));
        }
        Ok(tokens)
    }

    fn constraint(&self, format: &Format, tools: Option<&Tools>) -> Result<(Option<Language>, Shape), ApiError> {
        if let Some(tools) = tools {
            let shape = if tools.auto { Shape::CallOrText } else { Shape::Call };
            let key = json!({"tools": tools.listed()}).to_string();
            return Ok((Some(self.kept(&key, || tools.grammar())?), shape));
        }
        let grammar = match format {
            Format::Text => None,
            Format::Object => Some(self.kept("json_object", || {
                parse(&json_object(), "root").map(Language::Gbnf).map_err(|e| internal(&e.to_string()))
            })?),
            Format::Schema(schema) => {
                let text = schema.to_string();
                Some(self.kept(&text, || {
                    let at = "response_format.json_schema.schema";
                    limit_schema(at, text.len())?;
                    let schema =
                        Schema::from_value(schema, &SchemaOptions::default()).map_err(|e| ApiError::schema(at, &e))?;
                    exact(at, &schema)?;
                    Ok(schema.into())
                })?)
            }
        };
        Ok((grammar, Shape::Text))
    }

    /// A grammar that was made before, or a new one.
    fn kept(&self, key: &str, make: impl FnOnce() -> Result<Language, ApiError>) -> Result<Language, ApiError> {
        let hash = blake3::hash(key.as_bytes());
        let lock = || self.grammars.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut kept = lock();
            if let Some(at) = kept.iter().position(|(h, _)| *h == hash)
                && let Some(found) = kept.remove(at)
            {
                kept.push_back(found.clone());
                return Ok(found.1);
            }
        }
        let grammar = make()?;
        let mut kept = lock();
        kept.push_back((hash, grammar.clone()));
        while kept.len() > KEPT_GRAMMARS {
            kept.pop_front();
        }
        Ok(grammar)
    }
}

fn parse(gbnf: &str, root: &str) -> Result<Grammar, grammar::GrammarError> {
    Grammar::parse(gbnf, root, &GrammarLimits::default())
}

fn limit_schema(at: &str, bytes: usize) -> Result<(), ApiError> {
    if bytes <= MAX_SCHEMA_BYTES {
        return Ok(());
    }
    Err(ApiError::new("schema_unsupported", format!("{bytes} bytes of schema; at most {MAX_SCHEMA_BYTES}")).at(at))
}

fn positive(field: &str, value: Option<u32>) -> Result<Option<usize>, ApiError> {
    match value {
        Some(0) => Err(ApiError::invalid(field, format!("{field} = 0: must be at least 1"))),
        value => Ok(value.map(|v| v as usize)),
    }
}

fn at_most(field: &str, value: u32, limit: u32) -> Result<usize, ApiError> {
    if value <= limit {
        return Ok(value as usize);
    }
    Err(ApiError::invalid(field, format!("{field} = {value}: must be 0 to {limit}")))
}

fn stops(stop: Option<Stop>) -> Result<Vec<String>, ApiError> {
    let stop = stop.map(|s| s.0).unwrap_or_default();
    if stop.len() > MAX_STOPS {
        return Err(ApiError::invalid("stop", format!("{} texts; at most {MAX_STOPS}", stop.len())));
    }
    for (i, text) in stop.iter().enumerate() {
        if text.is_empty() || text.len() > MAX_STOP_BYTES {
            let message = format!("{} bytes; must be 1 to {MAX_STOP_BYTES}", text.len());
            return Err(ApiError::invalid(format!("stop[{i}]"), message));
        }
    }
    Ok(stop)
}

#[derive(Debug, PartialEq)]
pub(crate) enum Format {
    Text,
    Object,
    Schema(Value),
}

pub(crate) fn format_of(format: Option<&ResponseFormat>) -> Result<Format, ApiError> {
    let Some(format) = format else { return Ok(Format::Text) };
    let schema = format.json_schema.as_ref();
    match (format.r#type.as_str(), schema) {
        ("text", None) => Ok(Format::Text),
        ("json_object", None) => Ok(Format::Object),
        ("json_schema", Some(s)) => match &s.schema {
            Some(schema) => Ok(Format::Schema(schema.clone())),
            None => Err(ApiError::invalid("response_format.json_schema.schema", "the schema is missing")),
        },
        ("json_schema", None) => Err(ApiError::invalid("response_format.json_schema", "the schema is missing")),
        ("text" | "json_object", Some(_)) => {
            Err(ApiError::invalid("response_format.json_schema", "only with type 'json_schema'"))
        }
        _ => Err(ApiError::invalid("response_format.type", "must be 'text', 'json_object' or 'json_schema'")),
    }
}

/// Any JSON object up to a depth, without white space.
fn json_object() -> String {
    let mut rules = String::from(concat!(
        "string ::= \"\\\"\" character* \"\\\"\"\n",
        "character ::= [^\"\\\\\\x00-\\x1f\\x7f] | \"\\\\\" [\"\\\\/bfnrt]\n",
        "number ::= \"-\"? (\"0\" | [1-9] [0-9]{0,17}) (\".\" [0-9]{1,17})?\n",
        "value-0 ::= string | number | \"true\" | \"false\" | \"null\"\n",
    ));
    for depth in 1..=JSON_DEPTH {
        let inner = depth - 1;
        rules.push_str(&format!(
            "pair-{depth} ::= string \":\" value-{inner}\n\
             object-{depth} ::= \"{{\" (pair-{depth} (\",\" pair-{depth})*)? \"}}\"\n\
             array-{depth} ::= \"[\" (value-{inner} (\",\" value-{inner})*)? \"]\"\n\
             value-{depth} ::= value-0 | object-{depth} | array-{depth}\n"
        ));
    }
    format!("root ::= object-{JSON_DEPTH}\n{rules}")
}

/// Tools of a request, after `tool_choice`.
pub(crate) struct Tools {
    callable: Vec<FunctionEntry>,
    /// The model decides whether one is called.
    auto: bool,
}

impl Tools {
    /// `None` where nothing can be called.
    pub(crate) fn new(tools: Option<&[ToolEntry]>, choice: Option<&ToolChoice>) -> Result<Option<Self>, ApiError> {
        let tools = tools.unwrap_or_default();
        if tools.len() > MAX_TOOLS {
            return Err(ApiError::invalid("tools", format!("{} tools; at most {MAX_TOOLS}", tools.len())));
        }
        if let Some(i) = tools.iter().position(|t| t.r#type != "function") {
            return Err(ApiError::unsupported(format!("tools[{i}].type"), "only 'function' is supported"));
        }
        let mut callable: Vec<FunctionEntry> = tools.iter().map(|t| t.function.clone()).collect();
        match choice {
            None | Some(ToolChoice::Auto) if callable.is_empty() => Ok(None),
            Some(ToolChoice::None) => Ok(None),
            None | Some(ToolChoice::Auto) => Ok(Some(Self { callable, auto: true })),
            Some(ToolChoice::Required) if callable.is_empty() => {
                Err(ApiError::invalid("tool_choice", "'required' without tools"))
            }
            Some(ToolChoice::Required) => Ok(Some(Self { callable, auto: false })),
            Some(ToolChoice::Function(name)) => {
                callable.retain(|f| &f.name == name);
                if callable.is_empty() {
                    return Err(ApiError::invalid("tool_choice", "it names none of the tools"));
                }
                Ok(Some(Self { callable, auto: false }))
            }
        }
    }

    /// As a registry of tools has them.
    fn listed(&self) -> Value {
        let tool = |f: &FunctionEntry| {
            let mut tool = json!({"name": f.name, "description": f.description.as_deref().unwrap_or("")});
            if let Some(parameters) = f.parameters.as_ref().filter(|p| !p.is_null()) {
                tool["parameters"] = parameters.clone();
            }
            tool
        };
        self.callable.iter().map(tool).collect()
    }

    fn grammar(&self) -> Result<Language, ApiError> {
        let text = json!({"tools": self.listed()}).to_string();
        limit_schema("tools", text.len())?;
        let names: Vec<String> = self.callable.iter().map(|f| f.name.clone()).collect();
        let registry =
            ToolRegistry::from_json(&text, &SchemaOptions::default()).map_err(|e| ApiError::tools(&names, &e))?;
        exact("tools", registry.schema())?;
        Ok(registry.language())
    }

    /// What the model is told where its template knows nothing of tools.
    fn block(&self) -> String {
        let mut text = String::from(match self.auto {
            true => "You can call one of these tools. To call it, answer with nothing but one JSON object:\n",
            false => "Call one of these tools. Answer with nothing but one JSON object:\n",
        });
        text.push_str("{\"tool\":\"NAME\",\"arguments\":{…}}\nTools:");
        for f in &self.callable {
            text.push_str(&format!("\n- {}", f.name));
            if let Some(description) = f.description.as_deref().filter(|d| !d.is_empty()) {
                text.push_str(&format!(": {description}"));
            }
            if let Some(parameters) = f.parameters.as_ref().filter(|p| !p.is_null()) {
                text.push_str(&format!("\n  arguments: {parameters}"));
            }
        }
        text
    }
}

/// The messages as the chat template takes them: system, user and assistant. Calls and their results become text.
fn rendered(messages: &[ChatMessage], tools: Option<&Tools>) -> Result<Vec<Message>, ApiError> {
    if messages.is_empty() || messages.len() > MAX_MESSAGES {
        return Err(ApiError::invalid("messages", format!("{} messages; must be 1 to {MAX_MESSAGES}", messages.len())));
    }
    let mut out: Vec<Message> = Vec::new();
    let mut calls: Vec<(&str, &str)> = Vec::new();
    for (i, m) in messages.iter().enumerate() {
        let at = |field: &str| format!("messages[{i}].{field}");
        let text = m.content.as_ref().map(|c| c.0.as_str());
        if m.role != "tool" {
            for (field, given) in [("tool_call_id", m.tool_call_id.is_some()), ("name", m.name.is_some())] {
                if given {
                    return Err(ApiError::unsupported(at(field), format!("{field} is read in 'tool' messages only")));
                }
            }
        }
        if m.role != "assistant" && m.tool_calls.as_ref().is_some_and(|c| !c.is_empty()) {
            return Err(ApiError::invalid(at("tool_calls"), "only assistants call tools"));
        }
        let needed = || text.ok_or_else(|| ApiError::invalid(at("content"), "the content is missing"));
        match m.role.as_str() {
            "system" | "developer" => out.push(Message::new("system", needed()?)),
            "user" => out.push(Message::new("user", needed()?)),
            "assistant" => {
                let past = m.tool_calls.as_deref().unwrap_or_default();
                if text.is_none() && past.is_empty() {
                    return Err(ApiError::invalid(at("content"), "neither content nor tool_calls"));
                }
                let mut lines: Vec<String> = text.filter(|t| !t.is_empty()).map(str::to_owned).into_iter().collect();
                for (n, call) in past.iter().enumerate() {
                    let arguments: Value = serde_json::from_str(&call.function.arguments).map_err(|e| {
                        let at = at(&format!("tool_calls[{n}].function.arguments"));
                        ApiError::invalid(at, format!("not JSON: {e}"))
                    })?;
                    if call.r#type.as_deref().is_some_and(|t| t != "function") {
                        let at = at(&format!("tool_calls[{n}].type"));
                        return Err(ApiError::unsupported(at, "only 'function' is supported"));
                    }
                    calls.push((&call.id, &call.function.name));
                    let name = Value::from(call.function.name.as_str());
                    lines.push(format!("{{\"tool\":{name},\"arguments\":{arguments}}}"));
                }
                out.push(Message::new("assistant", lines.join("\n")));
            }
            "tool" => {
                let id = m.tool_call_id.as_deref();
                let id = id.ok_or_else(|| ApiError::invalid(at("tool_call_id"), "the id of the call is missing"))?;
                let name = calls.iter().rev().find(|(call, _)| *call == id).map(|(_, name)| name);
                let name =
                    name.ok_or_else(|| ApiError::invalid(at("tool_call_id"), "no earlier message made this call"))?;
                out.push(Message::new("user", format!("Result of {name}: {}", needed()?)));
            }
            _ => {
                let message = "must be 'system', 'developer', 'user', 'assistant' or 'tool'";
                return Err(ApiError::invalid(at("role"), message));
            }
        }
    }
    if let Some(tools) = tools {
        match out.first_mut().filter(|m| m.role == "system") {
            Some(system) => system.content = format!("{}\n\n{}", system.content, tools.block()),
            None => out.insert(0, Message::new("system", tools.block())),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_objects_are_json_and_bounded() {
        let grammar = parse(&json_object(), "root").unwrap();
        for yes in ["{}", r#"{"a":1}"#, r#"{"a":[1,-2.5,"x\n灯",true,null,{"b":{}}]}"#] {
            assert!(grammar.matches(yes.as_bytes()), "{yes}");
        }
        for no in ["", "[]", "1", "{", r#"{"a":01}"#, r#"{"a":1,}"#, "{\"a\":\"\n\"}", r#"{a:1}"#, r#"{"a":"\x"}"#] {
            assert!(!grammar.matches(no.as_bytes()), "{no}");
        }
        let nested = |n: usize| format!("{}{}", "{\"a\":".repeat(n - 1) + "{", "}".repeat(n));
        assert!(grammar.matches(nested(JSON_DEPTH).as_bytes()));
        assert!(!grammar.matches(nested(JSON_DEPTH + 1).as_bytes()));
        let mut seed = 1u64;
        for _ in 0..200 {
            let mut choose = |n: u64| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (seed >> 33) % n
            };
            if let Some(text) = grammar.derive(&mut choose, 200, 4000) {
                assert!(serde_json::from_str::<Value>(&text).is_ok_and(|v| v.is_object()), "{text}");
            }
        }
    }

    fn tool(name: &str) -> ToolEntry {
        let parameters = Some(json!({"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}));
        let function = FunctionEntry { name: name.into(), description: None, parameters, strict: None };
        ToolEntry { r#type: "function".into(), function }
    }

    #[test]
    fn calls_are_whole_and_of_the_tools_that_may_be_called() {
        let tools = Tools::new(Some(&[tool("lamp"), tool("fan")]), None).unwrap().unwrap();
        assert!(tools.auto);
        let grammar = tools.grammar().unwrap();
        assert!(grammar.matches(r#"{"tool":"lamp","arguments":{"on":true}}"#));
        for no in [
            "",
            "It is on.",
            "{",
            "{}",
            r#"{"tool":"lamp"}"#,
            r#"{"tool":"door","arguments":{"on":true}}"#,
            r#"{"tool":"lamp","arguments":{"on":true}} and more"#,
        ] {
            assert!(!grammar.matches(no), "{no}");
        }
        let named = Tools::new(Some(&[tool("lamp"), tool("fan")]), Some(&ToolChoice::Function("fan".into())));
        let grammar = named.unwrap().unwrap().grammar().unwrap();
        assert!(grammar.matches(r#"{"tool":"fan","arguments":{"on":false}}"#));
        assert!(!grammar.matches(r#"{"tool":"lamp","arguments":{"on":true}}"#));
    }
}
