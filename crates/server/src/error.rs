//! Errors as clients see them: OpenAI's shape, a stable code.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use grammar::schema::SchemaError;
use grammar::tools::RegistryError;
use serde::Serialize;
use session::GenerateError;
use session::scheduler::{Failure, Refusal};
use utoipa::ToSchema;

/// Every code that an error can have, with its status. `docs/formats/http.md` explains them.
pub const CODES: [(&str, u16); 28] = [
    ("invalid_json", 400),
    ("unknown_field", 400),
    ("invalid_value", 400),
    ("unsupported_value", 400),
    ("schema_unsupported", 400),
    ("context_length_exceeded", 400),
    ("no_chat_template", 400),
    ("template_failed", 400),
    ("query_not_supported", 400),
    ("missing_api_key", 401),
    ("invalid_api_key", 401),
    ("operator_key_required", 403),
    ("origin_not_allowed", 403),
    ("not_found", 404),
    ("model_not_found", 404),
    ("method_not_allowed", 405),
    ("request_timeout", 408),
    ("payload_too_large", 413),
    ("unsupported_media_type", 415),
    ("host_not_allowed", 421),
    ("queue_full", 429),
    ("rate_limit_exceeded", 429),
    ("cancelled", 499),
    ("internal_error", 500),
    ("engine_failed", 500),
    ("cartridge_failed", 500),
    ("stopping", 503),
    ("deadline_exceeded", 504),
];

/// An error and how it is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    code: &'static str,
    message: String,
    param: Option<String>,
    retry_after: Option<u64>,
}

/// The body of every error.
#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorBody {
    /// What is wrong.
    pub error: ErrorDetail,
}

/// What is wrong.
#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorDetail {
    /// For people.
    pub message: String,
    /// The kind of error, as OpenAI's clients sort it.
    pub r#type: String,
    /// The path of the field that is at fault, if one is.
    pub param: Option<String>,
    /// Stable name.
    pub code: String,
}

impl ApiError {
    /// An error; `code` is one of [`CODES`].
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        debug_assert!(CODES.iter().any(|(c, _)| *c == code), "{code}");
        Self { code, message: message.into(), param: None, retry_after: None }
    }

    /// Names the field at fault.
    #[must_use]
    pub fn at(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// Says when to try again, in seconds.
    #[must_use]
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// A value that cannot be.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new("invalid_value", message).at(param)
    }

    /// A value that exists elsewhere and not here.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new("unsupported_value", message).at(param)
    }

    /// The stable name.
    pub fn code(&self) -> &'static str {
        self.code
    }

    /// The status that it is answered with.
    pub fn status(&self) -> StatusCode {
        let status = CODES.iter().find(|(code, _)| *code == self.code).map_or(500, |(_, status)| *status);
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    fn kind(&self) -> &'static str {
        match self.status().as_u16() {
            401 => "authentication_error",
            403 | 421 => "permission_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The body.
    pub fn body(&self) -> ErrorBody {
        ErrorBody {
            error: ErrorDetail {
                message: self.message.clone(),
                r#type: self.kind().to_owned(),
                param: self.param.clone(),
                code: self.code.to_owned(),
            },
        }
    }

    /// A schema that cannot be kept exactly; `param` is where it stands in the request.
    pub fn schema(param: &str, e: &SchemaError) -> Self {
        Self::new("schema_unsupported", clipped(&e.to_string())).at(format!("{param}{}", clipped(&e.pointer)))
    }

    /// Tools that cannot be called exactly.
    pub fn tools(names: &[String], e: &RegistryError) -> Self {
        match e {
            RegistryError::Parameters { tool, source, .. } => {
                let at = names.iter().position(|n| n == tool).unwrap_or(0);
                Self::schema(&format!("tools[{at}].function.parameters"), source)
            }
            RegistryError::Together(source) => Self::schema("tools", source),
            e => Self::invalid("tools", clipped(&e.to_string())),
        }
    }
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for ApiError {}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status(), Json(self.body())).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status() == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(self);
        response
    }
}

impl From<Refusal> for ApiError {
    fn from(e: Refusal) -> Self {
        let message = e.to_string();
        match e {
            Refusal::QueueFull { .. } => Self::new("queue_full", message).retry_after(1),
            Refusal::Stopping => Self::new("stopping", message).retry_after(5),
            Refusal::TooLong { .. } => Self::new("context_length_exceeded", message),
            Refusal::TooManyChoices { .. } => Self::invalid("n", message),
            Refusal::EmptyPrompt => Self::new("invalid_value", message),
            Refusal::Engine(bitnet_rs::Error::Sampler(_) | bitnet_rs::Error::TokenOutOfRange { .. }) => {
                Self::new("invalid_value", message)
            }
            _ => internal(&message),
        }
    }
}

impl From<Failure> for ApiError {
    fn from(e: Failure) -> Self {
        let message = e.to_string();
        match e {
            Failure::Deadline => Self::new("deadline_exceeded", message),
            Failure::Cancelled => Self::new("stopping", message),
            Failure::Mount(_) => Self::new("cartridge_failed", message),
            _ => Self::new("engine_failed", message),
        }
    }
}

impl From<GenerateError> for ApiError {
    fn from(e: GenerateError) -> Self {
        let message = e.to_string();
        match e {
            GenerateError::TooLong { .. } => Self::new("context_length_exceeded", message),
            GenerateError::NoTemplate => Self::new("no_chat_template", message),
            GenerateError::Template(_) => Self::new("template_failed", message),
            GenerateError::Engine(bitnet_rs::Error::TextTooLong { .. }) => {
                Self::new("context_length_exceeded", message)
            }
            _ => internal(&message),
        }
    }
}

/// What went wrong stays in the log: it may name files.
pub(crate) fn internal(what: &str) -> ApiError {
    tracing::error!("{what}");
    ApiError::new("internal_error", "internal error; the server's log says more")
}

/// Others' texts in our errors: bounded, and nothing that could speak to a terminal.
pub(crate) fn clipped(text: &str) -> String {
    let printable = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().map(printable).take(300).collect()
}
