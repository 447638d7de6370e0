//! What comes in and goes out, as OpenAI's documents have it.

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// `POST /v1/chat/completions`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ChatRequest {
    /// `NAME`, or `NAME:CARTRIDGE`.
    pub model: String,
    /// The conversation.
    pub messages: Vec<ChatMessage>,
    /// Send the answer as it comes.
    pub stream: Option<bool>,
    /// How.
    pub stream_options: Option<StreamOptions>,
    /// Most tokens of an answer.
    pub max_tokens: Option<u32>,
    /// The same under its newer name.
    pub max_completion_tokens: Option<u32>,
    /// 0 is greedy; 1 unless given.
    pub temperature: Option<f32>,
    /// Nucleus sampling.
    pub top_p: Option<f32>,
    /// Keep the k largest logits; 0 keeps all. Not in OpenAI's protocol.
    pub top_k: Option<u32>,
    /// Drop tokens less probable than this share of the best. Not in OpenAI's protocol.
    pub min_p: Option<f32>,
    /// Penalty on the last 64 tokens. Not in OpenAI's protocol.
    pub repeat_penalty: Option<f32>,
    /// How many answers.
    pub n: Option<u32>,
    /// Texts that end an answer.
    pub stop: Option<Stop>,
    /// Seed of the random choice; drawn unless given.
    pub seed: Option<i64>,
    /// Log-probabilities of the answer's tokens.
    pub logprobs: Option<bool>,
    /// And of so many of the likeliest ones.
    pub top_logprobs: Option<u32>,
    /// What constrains the answer.
    pub response_format: Option<ResponseFormat>,
    /// Tools that can be called.
    pub tools: Option<Vec<ToolEntry>>,
    /// `auto`, `none`, `required`, or one of the tools.
    pub tool_choice: Option<ToolChoice>,
    /// At most one tool is called in an answer, whatever this says.
    pub parallel_tool_calls: Option<bool>,
    /// Only 0.
    pub presence_penalty: Option<f32>,
    /// Only 0.
    pub frequency_penalty: Option<f32>,
    /// Only an empty one.
    #[schema(value_type = Option<Object>)]
    pub logit_bias: Option<serde_json::Map<String, Value>>,
    /// Only `["text"]`.
    pub modalities: Option<Vec<String>>,
    /// Not used: nothing is kept.
    pub store: Option<bool>,
    /// Not used.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<serde_json::Map<String, Value>>,
    /// Not used.
    pub user: Option<String>,
    /// Not used.
    pub safety_identifier: Option<String>,
    /// Not used.
    pub prompt_cache_key: Option<String>,
    /// Not used.
    pub service_tier: Option<String>,
}

/// How to stream.
#[derive(Debug, Deserialize, ToSchema)]
pub struct StreamOptions {
    /// One more chunk with the tokens that it took.
    pub include_usage: Option<bool>,
    /// Not used: nothing is padded.
    pub include_obfuscation: Option<bool>,
}

/// Text, as one string or in parts.
#[derive(Debug, Clone, PartialEq, Eq, ToSchema)]
#[schema(value_type = String)]
pub struct Content(pub String);

#[derive(Deserialize)]
struct Part {
    r#type: String,
    text: Option<String>,
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Content;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a text, or a list of parts of type 'text'")
            }

            fn visit_str<E>(self, text: &str) -> Result<Content, E> {
                Ok(Content(text.to_owned()))
            }

            fn visit_string<E>(self, text: String) -> Result<Content, E> {
                Ok(Content(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Content, A::Error> {
                let mut all = String::new();
                while let Some(part) = parts.next_element::<Part>()? {
                    match (part.r#type.as_str(), part.text) {
                        ("text" | "input_text" | "output_text", Some(text)) => all.push_str(&text),
                        ("text" | "input_text" | "output_text", None) => return Err(A::Error::missing_field("text")),
                        _ => return Err(A::Error::custom("only parts of type 'text' are supported")),
                    }
                }
                Ok(Content(all))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// One message.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ChatMessage {
    /// `system`, `developer`, `user`, `assistant` or `tool`.
    pub role: String,
    /// The text; null where an assistant only called tools.
    pub content: Option<Content>,
    /// Tools that an assistant called.
    pub tool_calls: Option<Vec<PastCall>>,
    /// The call that a `tool` message answers.
    pub tool_call_id: Option<String>,
    /// Only in a `tool` message, where it says what `tool_call_id` says.
    pub name: Option<String>,
    /// What assistants' messages carry that clients send back; not used.
    #[schema(value_type = Option<Object>)]
    pub annotations: Option<Value>,
}

/// A call in an earlier message.
#[derive(Debug, Deserialize, ToSchema)]
pub struct PastCall {
    /// Its id.
    pub id: String,
    /// `function`.
    pub r#type: Option<String>,
    /// What was called.
    pub function: PastFunction,
    /// Its place; not used.
    pub index: Option<u32>,
}

/// What was called.
#[derive(Debug, Deserialize, ToSchema)]
pub struct PastFunction {
    /// Name.
    pub name: String,
    /// A JSON object, as text.
    pub arguments: String,
}

/// One stop text, or several.
#[derive(Debug, Clone, PartialEq, Eq, ToSchema)]
#[schema(value_type = Vec<String>)]
pub struct Stop(pub Vec<String>);

impl<'de> Deserialize<'de> for Stop {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        texts(deserializer).map(Self)
    }
}

/// One text, or a list of texts.
fn texts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    struct Reader;
    impl<'de> Visitor<'de> for Reader {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a text, or a list of texts")
        }

        fn visit_str<E>(self, text: &str) -> Result<Vec<String>, E> {
            Ok(vec![text.to_owned()])
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<String>, A::Error> {
            let mut all = Vec::new();
            while let Some(text) = items.next_element()? {
                all.push(text);
            }
            Ok(all)
        }
    }
    deserializer.deserialize_any(Reader)
}

/// What constrains the answer.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ResponseFormat {
    /// `text`, `json_object` or `json_schema`.
    pub r#type: String,
    /// With `json_schema`.
    pub json_schema: Option<JsonSchemaFormat>,
}

/// A schema that the answer keeps.
#[derive(Debug, Deserialize, ToSchema)]
pub struct JsonSchemaFormat {
    /// Its name; not used.
    pub name: String,
    /// For people; not used.
    pub description: Option<String>,
    /// The schema.
    #[schema(value_type = Object)]
    pub schema: Option<Value>,
    /// Kept exactly, whatever this says.
    pub strict: Option<bool>,
}

/// A tool.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ToolEntry {
    /// `function`.
    pub r#type: String,
    /// The function.
    pub function: FunctionEntry,
}

/// A function that can be called.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct FunctionEntry {
    /// 1 to 64 of `a-z A-Z 0-9 _ -`.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// JSON Schema of its arguments; without it there are none.
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Value>,
    /// Kept exactly, whatever this says.
    pub strict: Option<bool>,
}

/// Which tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    Auto,
    /// None.
    None,
    /// Any of them.
    Required,
    /// This one.
    Function(String),
}

impl utoipa::PartialSchema for ToolChoice {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Type};
        let word = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(["auto", "none", "required"]));
        let named = ObjectBuilder::new().schema_type(Type::Object);
        OneOfBuilder::new().item(word).item(named).into()
    }
}

impl ToSchema for ToolChoice {}

#[derive(Deserialize)]
struct NamedChoice {
    r#type: String,
    function: Option<NamedFunction>,
    name: Option<String>,
}

#[derive(Deserialize)]
struct NamedFunction {
    name: String,
}

impl<'de> Deserialize<'de> for ToolChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = ToolChoice;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("'auto', 'none', 'required', or {\"type\": \"function\", \"function\": {\"name\": …}}")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ToolChoice, E> {
                match text {
                    "auto" => Ok(ToolChoice::Auto),
                    "none" => Ok(ToolChoice::None),
                    "required" => Ok(ToolChoice::Required),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<ToolChoice, A::Error> {
                let choice = NamedChoice::deserialize(serde::de::value::MapAccessDeserializer::new(map))?;
                if choice.r#type != "function" {
                    return Err(A::Error::custom("only type 'function' is supported"));
                }
                match (choice.function, choice.name) {
                    (Some(function), None) => Ok(ToolChoice::Function(function.name)),
                    (None, Some(name)) => Ok(ToolChoice::Function(name)),
                    _ => Err(A::Error::missing_field("function")),
                }
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// `POST /v1/completions`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct CompletionRequest {
    /// `NAME`, or `NAME:CARTRIDGE`.
    pub model: String,
    /// One text, or a list of one.
    pub prompt: Stop,
    /// Send the answer as it comes.
    pub stream: Option<bool>,
    /// How.
    pub stream_options: Option<StreamOptions>,
    /// Most tokens of an answer; 16 unless given.
    pub max_tokens: Option<u32>,
    /// 0 is greedy; 1 unless given.
    pub temperature: Option<f32>,
    /// Nucleus sampling.
    pub top_p: Option<f32>,
    /// Keep the k largest logits; 0 keeps all. Not in OpenAI's protocol.
    pub top_k: Option<u32>,
    /// Drop tokens less probable than this share of the best. Not in OpenAI's protocol.
    pub min_p: Option<f32>,
    /// Penalty on the last 64 tokens. Not in OpenAI's protocol.
    pub repeat_penalty: Option<f32>,
    /// How many answers.
    pub n: Option<u32>,
    /// Texts that end an answer.
    pub stop: Option<Stop>,
    /// Seed of the random choice; drawn unless given.
    pub seed: Option<i64>,
    /// Log-probabilities of the answer's tokens, and of so many of the likeliest ones.
    pub logprobs: Option<u32>,
    /// Only false.
    pub echo: Option<bool>,
    /// Only what `n` is.
    pub best_of: Option<u32>,
    /// Only 0.
    pub presence_penalty: Option<f32>,
    /// Only 0.
    pub frequency_penalty: Option<f32>,
    /// Only an empty one.
    #[schema(value_type = Option<Object>)]
    pub logit_bias: Option<serde_json::Map<String, Value>>,
    /// Only empty.
    pub suffix: Option<String>,
    /// Not used.
    pub user: Option<String>,
}

/// `POST /v1/tokenize`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct TokenizeRequest {
    /// `NAME`, or `NAME:CARTRIDGE`.
    pub model: String,
    /// A text; or `messages`.
    pub input: Option<String>,
    /// A conversation, as it would be rendered for an answer.
    pub messages: Option<Vec<ChatMessage>>,
}

/// Tokens of a text.
#[derive(Debug, Serialize, ToSchema)]
pub struct TokenizeResponse {
    /// Their ids.
    pub tokens: Vec<i32>,
    /// How many.
    pub count: usize,
    /// How many the server's context holds.
    pub max_model_len: u32,
}

/// Tokens that a request took.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct UsageBody {
    /// Before the answer, those that a cartridge stands for included.
    pub prompt_tokens: usize,
    /// Of all answers.
    pub completion_tokens: usize,
    /// Both.
    pub total_tokens: usize,
    /// How many of those before the answer were not decoded.
    pub prompt_tokens_details: PromptDetails,
}

/// Tokens that were in the cache.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct PromptDetails {
    /// From an earlier turn, or a cartridge.
    pub cached_tokens: usize,
}

impl From<session::scheduler::Usage> for UsageBody {
    fn from(u: session::scheduler::Usage) -> Self {
        let prompt_tokens = u.cartridge_tokens + u.prompt_tokens;
        Self {
            prompt_tokens,
            completion_tokens: u.completion_tokens,
            total_tokens: prompt_tokens + u.completion_tokens,
            prompt_tokens_details: PromptDetails { cached_tokens: u.cartridge_tokens + u.reused_tokens },
        }
    }
}

/// A tool call in an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ToolCallBody {
    /// Its id.
    pub id: String,
    /// `function`.
    pub r#type: String,
    /// What is called.
    pub function: FunctionCallBody,
}

/// What is called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct FunctionCallBody {
    /// Name.
    pub name: String,
    /// A JSON object that keeps the tool's schema, as text.
    pub arguments: String,
}

/// A token's log-probability.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct LogprobBody {
    /// The token's text; with U+FFFD where it is part of a character.
    pub token: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// ln p.
    pub logprob: f64,
    /// The likeliest tokens in its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(no_recursion)]
    pub top_logprobs: Option<Vec<LogprobBody>>,
}

/// Log-probabilities of an answer.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ChoiceLogprobs {
    /// Token by token.
    pub content: Vec<LogprobBody>,
    /// Always null.
    pub refusal: Option<String>,
}

/// `chat.completion`.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatCompletion {
    /// Id of the request.
    pub id: String,
    /// `chat.completion`.
    pub object: String,
    /// Seconds since 1970.
    pub created: u64,
    /// As it was asked for.
    pub model: String,
    /// The answers.
    pub choices: Vec<ChatChoice>,
    /// What it took.
    pub usage: UsageBody,
    /// Changes with the engine, the model or how it is served: the same seed may give another answer then.
    pub system_fingerprint: String,
}

/// One answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatChoice {
    /// Which.
    pub index: u32,
    /// The answer.
    pub message: AssistantMessage,
    /// Where they were asked for.
    pub logprobs: Option<ChoiceLogprobs>,
    /// `stop`, `length` or `tool_calls`.
    pub finish_reason: String,
}

/// An assistant's message.
#[derive(Debug, Serialize, ToSchema)]
pub struct AssistantMessage {
    /// `assistant`.
    pub role: String,
    /// The text; null with a tool call.
    pub content: Option<String>,
    /// Always null.
    pub refusal: Option<String>,
    /// Tools that are called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCallBody>>,
}

/// `text_completion`.
#[derive(Debug, Serialize, ToSchema)]
pub struct Completion {
    /// Id of the request.
    pub id: String,
    /// `text_completion`.
    pub object: String,
    /// Seconds since 1970.
    pub created: u64,
    /// As it was asked for.
    pub model: String,
    /// The answers.
    pub choices: Vec<CompletionChoice>,
    /// What it took; null in all chunks of a stream but the last.
    pub usage: Option<UsageBody>,
    /// As in `chat.completion`.
    pub system_fingerprint: String,
}

/// One answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct CompletionChoice {
    /// The text.
    pub text: String,
    /// Which.
    pub index: u32,
    /// Where they were asked for.
    pub logprobs: Option<CompletionLogprobs>,
    /// `stop` or `length`; null while it goes on.
    pub finish_reason: Option<String>,
}

/// Log-probabilities as completions have them.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct CompletionLogprobs {
    /// Texts of the tokens.
    pub tokens: Vec<String>,
    /// ln p of each.
    pub token_logprobs: Vec<f64>,
    /// The likeliest tokens in each place.
    #[schema(value_type = Vec<Object>)]
    pub top_logprobs: Vec<serde_json::Map<String, Value>>,
    /// Characters before each.
    pub text_offset: Vec<usize>,
}

/// A model, or a model behind a cartridge.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelBody {
    /// `NAME` or `NAME:CARTRIDGE`.
    pub id: String,
    /// `model`.
    pub object: String,
    /// Seconds since 1970 at which the server started.
    pub created: u64,
    /// `bitnet-harness`.
    pub owned_by: String,
}

/// Models.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelList {
    /// `list`.
    pub object: String,
    /// The model first.
    pub data: Vec<ModelBody>,
}

/// A cartridge.
#[derive(Debug, Serialize, ToSchema)]
pub struct CartridgeBody {
    /// What to put into `model`.
    pub id: String,
    /// `cartridge`.
    pub object: String,
    /// Its name.
    pub name: String,
    /// Cells that it takes.
    pub tokens: u32,
    /// Position at which the conversation begins.
    pub next_position: u32,
    /// Bytes of its file.
    pub bytes: usize,
    /// Its title.
    pub title: Option<String>,
    /// Where its text is from.
    pub source: Option<String>,
}

/// Cartridges.
#[derive(Debug, Serialize, ToSchema)]
pub struct CartridgeList {
    /// `list`.
    pub object: String,
    /// By name.
    pub data: Vec<CartridgeBody>,
}

/// `{"status": …}` and nothing else.
#[derive(Debug, Serialize, ToSchema)]
pub struct Status {
    /// `ok`, `starting` or `stopping`.
    pub status: String,
}
