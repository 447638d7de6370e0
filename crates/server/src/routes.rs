//! The handlers.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use bitnet_rs::Special;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use session::scheduler::{StreamEvent, Usage};
use tokio::sync::mpsc;
use utoipa::OpenApi;

use crate::answer::{self, Chunks, Encoder, Events, Head, Kind};
use crate::error::{ApiError, ErrorBody, internal};
use crate::guard::Caller;
use crate::prepare::{Plan, Tools};
use crate::protocol::{
    CartridgeBody, CartridgeList, ChatCompletion, ChatRequest, Completion, CompletionRequest, ModelBody, ModelList,
    Status, TokenizeRequest, TokenizeResponse,
};
use crate::server::Server;
use crate::strict;

/// Longest time for a request's body to arrive.
const BODY_TIME: Duration = Duration::from_secs(30);
/// How often a stream that says nothing yet says that it lives.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// A JSON body, read strictly.
pub(crate) struct Strict<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Arc<Server>> for Strict<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, server: &Arc<Server>) -> Result<Self, ApiError> {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
        // Nothing that a browser's form can send.
        if !kind.split(';').next().unwrap_or("").trim().eq_ignore_ascii_case("application/json") {
            return Err(ApiError::new("unsupported_media_type", "send Content-Type: application/json"));
        }
        if request.headers().contains_key(header::CONTENT_ENCODING) {
            return Err(ApiError::new("unsupported_media_type", "send the body without Content-Encoding"));
        }
        let limit = server.params().max_body_bytes;
        let body = Limited::new(request.into_body(), limit).collect();
        let body = tokio::time::timeout(BODY_TIME, body).await;
        let body: Bytes = match body {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(e)) if e.is::<LengthLimitError>() || e.source().is_some_and(|s| s.is::<LengthLimitError>()) => {
                return Err(ApiError::new("payload_too_large", format!("more than {limit} bytes of body")));
            }
            Ok(Err(_)) => return Err(ApiError::new("invalid_json", "the body ended early")),
            Err(_) => {
                let message = format!("the body did not arrive within {} s", BODY_TIME.as_secs());
                return Err(ApiError::new("request_timeout", message));
            }
        };
        strict::parse(&body).map(Strict)
    }
}

/// Is the server there?
#[utoipa::path(get, path = "/health", responses((status = 200, body = Status)), security(()))]
pub(crate) async fn health() -> Json<Status> {
    Json(Status { status: "ok".into() })
}

/// Does it take requests?
#[utoipa::path(get, path = "/ready", responses((status = 200, body = Status), (status = 503, body = Status)))]
pub(crate) async fn ready(State(server): State<Arc<Server>>) -> Response {
    let (status, text) = match server.is_stopping() {
        false => (StatusCode::OK, "ok"),
        true => (StatusCode::SERVICE_UNAVAILABLE, "stopping"),
    };
    (status, Json(Status { status: text.into() })).into_response()
}

/// Counters, for operators.
#[utoipa::path(get, path = "/metrics", responses((status = 200, body = String, content_type = "application/openmetrics-text")))]
pub(crate) async fn metrics(State(server): State<Arc<Server>>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], server.metrics().text(&server.scheduler().stats())).into_response()
}

fn model_bodies(server: &Server) -> Vec<ModelBody> {
    let catalog = server.catalog();
    let body = |id: String| ModelBody {
        id,
        object: "model".into(),
        created: server.started(),
        owned_by: "bitnet-harness".into(),
    };
    let behind = catalog.entries().keys().map(|name| catalog.id(name)).collect::<Vec<_>>();
    std::iter::once(catalog.model().to_owned()).chain(behind).map(body).collect()
}

/// The model, and the model behind each cartridge.
#[utoipa::path(get, path = "/v1/models", responses((status = 200, body = ModelList)))]
pub(crate) async fn models(State(server): State<Arc<Server>>) -> Json<ModelList> {
    Json(ModelList { object: "list".into(), data: model_bodies(&server) })
}

/// One of them.
#[utoipa::path(get, path = "/v1/models/{model}", params(("model" = String, Path)),
    responses((status = 200, body = ModelBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn model(
    State(server): State<Arc<Server>>,
    Path(name): Path<String>,
) -> Result<Json<ModelBody>, ApiError> {
    server.catalog().resolve(&name)?;
    model_bodies(&server)
        .into_iter()
        .find(|m| m.id == name)
        .map(Json)
        .ok_or_else(|| ApiError::new("model_not_found", "no such model"))
}

/// What can be mounted.
#[utoipa::path(get, path = "/v1/cartridges", responses((status = 200, body = CartridgeList)))]
pub(crate) async fn cartridges(State(server): State<Arc<Server>>) -> Json<CartridgeList> {
    let catalog = server.catalog();
    let entries = catalog.entries();
    let data = entries.values().map(|e| {
        let c = &e.shared.cartridge;
        let field = |key: &str| c.metadata().iter().find(|(k, _)| k == key).map(|(_, v)| v.clone());
        CartridgeBody {
            id: catalog.id(&e.name),
            object: "cartridge".into(),
            name: e.name.clone(),
            tokens: c.fields().n_tokens,
            next_position: c.next_position(),
            bytes: c.file_bytes(),
            title: field("title"),
            source: field("source"),
        }
    });
    Json(CartridgeList { object: "list".into(), data: data.collect() })
}

/// Runs what takes its time on a thread for it; at most so many at once.
pub(crate) async fn prepared<T: Send + 'static>(
    server: &Arc<Server>,
    work: impl FnOnce(&Server) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let permit = server.preparing().acquire_owned().await.map_err(|e| internal(&e.to_string()))?;
    let here = Arc::clone(server);
    let done = tokio::task::spawn_blocking(move || {
        let outcome = work(&here);
        drop(permit);
        outcome
    });
    done.await.map_err(|e| internal(&format!("preparing a request: {e}")))?
}

/// Puts a request into the queue.
pub(crate) fn submit(server: &Server, plan: Plan) -> Result<Events, ApiError> {
    // Not bounded by a number of its own: an answer's events are at most a few for each of its tokens, which the context
    // bounds. The engine's thread must not wait for a client that reads slowly.
    let (send, receiver) = mpsc::unbounded_channel();
    let ticket = server.scheduler().submit(plan.request, Box::new(move |event| send.send(event).is_ok()))?;
    Ok(Events { receiver, _ticket: ticket })
}

fn head(server: &Server, prefix: &str, model: String) -> Head {
    Head { id: answer::id(prefix), created: answer::now(), model, fingerprint: server.fingerprint().to_owned() }
}

fn log_answer(id: &str, how: &str, usage: &Usage) {
    tracing::info!(
        target: "harness.access",
        id,
        how,
        cartridge_tokens = usage.cartridge_tokens,
        prompt_tokens = usage.prompt_tokens,
        reused_tokens = usage.reused_tokens,
        completion_tokens = usage.completion_tokens,
        "answer"
    );
}

/// Answers a plan, as a stream or whole.
async fn respond(
    server: &Arc<Server>,
    caller: Caller,
    plan: Plan,
    kind: Kind,
    stream: bool,
    include_usage: bool,
) -> Result<Response, ApiError> {
    let prefix = if kind == Kind::Chat { "chatcmpl-" } else { "cmpl-" };
    let head = head(server, prefix, plan.model.clone());
    let (shape, choices, logprobs) = (plan.shape, plan.request.choices, plan.request.logprobs.is_some());
    let model = server.scheduler().model().clone();
    let mut events = submit(server, plan)?;
    if !stream {
        let whole = answer::whole(&model, events, choices).await?;
        log_answer(&caller.id, "done", &whole.usage);
        return Ok(match kind {
            Kind::Chat => Json(answer::chat_body(&head, shape, logprobs, &whole)?).into_response(),
            Kind::Completion => Json(answer::completion_body(&head, logprobs, &whole)?).into_response(),
        });
    }
    // What happens before the request begins can still be answered with a status.
    let first = match events.receiver.recv().await {
        Some(StreamEvent::Failed(failure)) => return Err(failure.into()),
        Some(event) => event,
        None => return Err(internal("the scheduler ended a request without a word")),
    };
    let encoder = Encoder::new(kind, head, shape, logprobs, include_usage, model, choices);
    let done = Box::new(move |how: &str, usage: Usage| log_answer(&caller.id, how, &usage));
    let chunks = Chunks::new(events, encoder, first, done);
    Ok(Sse::new(chunks).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}

/// Answers a conversation.
#[utoipa::path(post, path = "/v1/chat/completions", request_body = ChatRequest,
    responses((status = 200, body = ChatCompletion), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 429, body = ErrorBody)))]
pub(crate) async fn chat(
    State(server): State<Arc<Server>>,
    Extension(caller): Extension<Caller>,
    Strict(request): Strict<ChatRequest>,
) -> Result<Response, ApiError> {
    let stream = request.stream.unwrap_or(false);
    let include_usage = request.stream_options.as_ref().and_then(|o| o.include_usage).unwrap_or(false);
    let owner = caller.owner;
    let plan = prepared(&server, move |s| s.preparer().chat(s.catalog(), owner, request)).await?;
    respond(&server, caller, plan, Kind::Chat, stream, include_usage).await
}

/// Goes on with a text.
#[utoipa::path(post, path = "/v1/completions", request_body = CompletionRequest,
    responses((status = 200, body = Completion), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 429, body = ErrorBody)))]
pub(crate) async fn completion(
    State(server): State<Arc<Server>>,
    Extension(caller): Extension<Caller>,
    Strict(request): Strict<CompletionRequest>,
) -> Result<Response, ApiError> {
    let stream = request.stream.unwrap_or(false);
    let include_usage = request.stream_options.as_ref().and_then(|o| o.include_usage).unwrap_or(false);
    let owner = caller.owner;
    let plan = prepared(&server, move |s| s.preparer().completion(s.catalog(), owner, request)).await?;
    respond(&server, caller, plan, Kind::Completion, stream, include_usage).await
}

/// Tokens of a text, or of a conversation as it would be rendered.
#[utoipa::path(post, path = "/v1/tokenize", request_body = TokenizeRequest,
    responses((status = 200, body = TokenizeResponse), (status = 400, body = ErrorBody)))]
pub(crate) async fn tokenize(
    State(server): State<Arc<Server>>,
    Strict(request): Strict<TokenizeRequest>,
) -> Result<Json<TokenizeResponse>, ApiError> {
    let tokens = prepared(&server, move |s| {
        let cartridge = s.catalog().resolve(&request.model)?;
        match (&request.input, &request.messages) {
            (Some(text), None) => {
                let special = if cartridge.is_some() { Special::Content } else { Special::ContentWithBos };
                s.preparer().text_tokens(text, special)
            }
            (None, Some(messages)) => s.preparer().chat_tokens(messages, None::<&Tools>, cartridge.is_some()),
            _ => Err(ApiError::invalid("input", "give one of input and messages")),
        }
    })
    .await?;
    let tokens: Vec<i32> = tokens.iter().map(|t| t.get()).collect();
    let max_model_len = server.scheduler().context().n_ctx;
    Ok(Json(TokenizeResponse { count: tokens.len(), tokens, max_model_len }))
}

/// What is not there.
pub(crate) async fn not_found() -> ApiError {
    ApiError::new("not_found", "nothing is here; GET /openapi.json lists what there is")
}

/// What is there under another method.
pub(crate) async fn wrong_method() -> ApiError {
    ApiError::new("method_not_allowed", "this path takes another method")
}

/// The document of the protocol.
#[derive(OpenApi)]
#[openapi(
    info(title = "bitnet-harness", description = "OpenAI-compatible server; see docs/formats/http.md"),
    paths(health, ready, metrics, models, model, cartridges, chat, completion, tokenize),
    components(schemas(ErrorBody)),
    security(("key" = [])),
    modifiers(&KeyScheme)
)]
pub(crate) struct Document;

struct KeyScheme;

impl utoipa::Modify for KeyScheme {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
        let components = openapi.components.get_or_insert_default();
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        components.add_security_scheme("key", SecurityScheme::Http(scheme));
    }
}

/// The OpenAPI document.
pub(crate) async fn openapi() -> Response {
    Json(Document::openapi()).into_response()
}
