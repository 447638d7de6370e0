//! The one layer around the whole router: host, origin, key, rate; then the access log.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::answer;
use crate::auth::{bearer, owner_of};
use crate::error::ApiError;
use crate::server::Server;

/// Who may use a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Everybody.
    Public,
    /// Whoever has a key.
    Key,
    /// Whoever has an operator's key.
    Operator,
}

/// A route of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// `GET` or `POST`.
    pub method: &'static str,
    /// The exact path.
    pub path: &'static str,
    /// Who may use it.
    pub access: Access,
}

const fn route(method: &'static str, path: &'static str, access: Access) -> Route {
    Route { method, path, access }
}

/// Every route. What is not listed here as public needs a key, whether it exists or not.
pub const ROUTES: [Route; 10] = [
    route("GET", "/health", Access::Public),
    route("GET", "/ready", Access::Key),
    route("GET", "/metrics", Access::Operator),
    route("GET", "/openapi.json", Access::Key),
    route("GET", "/v1/models", Access::Key),
    route("GET", "/v1/cartridges", Access::Key),
    route("POST", "/v1/chat/completions", Access::Key),
    route("POST", "/v1/completions", Access::Key),
    route("POST", "/v1/tokenize", Access::Key),
    route("GET", "/v1/models/{model}", Access::Key),
];

/// Who sent a request.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// For fairness; 0 where no keys are configured.
    pub(crate) owner: u64,
    /// Id of the request.
    pub(crate) id: String,
}

/// What a method and a path need: exactly the listed ones are public, everything else needs a key.
fn access(method: &Method, path: &str) -> Access {
    let method = if method == Method::HEAD { &Method::GET } else { method };
    ROUTES.iter().find(|r| r.method == method.as_str() && r.path == path).map_or(Access::Key, |r| r.access)
}

fn one<'h>(headers: &'h HeaderMap, name: &header::HeaderName) -> Option<&'h str> {
    let mut all = headers.get_all(name).iter();
    match (all.next(), all.next()) {
        (Some(value), None) => value.to_str().ok(),
        _ => None,
    }
}

/// The name in `Host`, or in the request's target where that is absolute.
fn check_host(server: &Server, request: &Request) -> Result<(), ApiError> {
    let in_target = request.uri().authority().map(|a| a.as_str());
    let host = one(request.headers(), &header::HOST);
    let allowed = |host: Option<&str>| host.is_some_and(|h| server.hosts().allows(h));
    if allowed(host) && in_target.is_none_or(|t| allowed(Some(t))) {
        return Ok(());
    }
    Err(ApiError::new("host_not_allowed", "this host name is not answered; the server's --host option names it"))
}

/// A browser's page of another origin has no business here, whatever it can read of the answer.
fn check_origin(server: &Server, headers: &HeaderMap) -> Result<(), ApiError> {
    let refused = || ApiError::new("origin_not_allowed", "requests from pages of other origins are not answered");
    if one(headers, &header::HeaderName::from_static("sec-fetch-site")).is_some_and(|s| s == "cross-site") {
        return Err(refused());
    }
    if headers.get(header::ORIGIN).is_none() {
        return Ok(());
    }
    let origin = one(headers, &header::ORIGIN).ok_or_else(refused)?;
    let host = one(headers, &header::HOST).ok_or_else(refused)?;
    let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://")).ok_or_else(refused)?;
    if authority.eq_ignore_ascii_case(host) && server.hosts().allows(authority) { Ok(()) } else { Err(refused()) }
}

/// Whose request it is, or why it is not answered.
fn admit(server: &Server, request: &Request) -> Result<(String, u64), ApiError> {
    let (headers, path) = (request.headers(), request.uri().path());
    let access = access(request.method(), path);
    // Balancers ask for the health under whatever name they know; it says nothing else.
    if path != "/health" {
        check_host(server, request)?;
        check_origin(server, headers)?;
    }
    if access == Access::Public {
        return Ok((String::new(), 0));
    }
    let keys = server.keys();
    let operator = access == Access::Operator;
    let wanted = if operator { &keys.operators } else { &keys.users };
    if keys.users.is_empty() && (!operator || keys.operators.is_empty()) {
        return Ok(("local".into(), 0));
    }
    let key = match (bearer(headers), headers.contains_key(header::AUTHORIZATION)) {
        (Some(key), _) => key,
        (None, true) => {
            return Err(ApiError::new("invalid_api_key", "the Authorization header is not 'Bearer KEY', once"));
        }
        (None, false) => return Err(ApiError::new("missing_api_key", "send 'Authorization: Bearer KEY'")),
    };
    // Both are always looked at, so that the time says nothing of which set a key is in.
    let (user, operators) = (keys.users.find(key), keys.operators.find(key));
    let name = if operator { operators } else { user };
    match name {
        Some(name) => Ok((name.to_owned(), owner_of(name))),
        None if operator && user.is_some() => {
            Err(ApiError::new("operator_key_required", "this needs an operator's key"))
        }
        None => {
            debug_assert!(wanted.find(key).is_none());
            Err(ApiError::new("invalid_api_key", "this key is not known"))
        }
    }
}

/// The layer.
pub(crate) async fn guard(State(server): State<Arc<Server>>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = answer::id("req_");
    let method = request.method().clone();
    let (mut key, mut response) = (String::new(), None);
    match admit(&server, &request) {
        Err(e) => response = Some(e.into_response()),
        Ok((name, owner)) => {
            key = name;
            if !key.is_empty()
                && let Err(e) = server.rates().take(owner, started)
            {
                response = Some(e.into_response());
            } else if request.uri().query().is_some() {
                let e = ApiError::new("query_not_supported", "nothing is read from a query; keys go into the header");
                response = Some(e.into_response());
            }
            request.extensions_mut().insert(Caller { owner, id: id.clone() });
        }
    }
    let refused = response.is_some();
    let mut response = match response {
        Some(response) => response,
        None => next.run(request).await,
    };
    // The pattern, never what the client wrote.
    let matched = response.extensions().get::<MatchedPath>().map(|p| p.as_str().to_owned());
    let route = matched.unwrap_or_else(|| if refused { "refused".into() } else { "unknown".into() });
    let status = response.status().as_u16();
    server.metrics().request(&route, status);
    let code = response.extensions().get::<ApiError>().map_or("", ApiError::code);
    let ms = started.elapsed().as_millis();
    tracing::info!(target: "harness.access", id, %method, route, status, code, key, ms, "request");
    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::from_str(&id) {
        headers.insert("x-request-id", value);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Inside the router, where the pattern is known: leaves it for the log.
pub(crate) async fn note_route(request: Request, next: Next) -> Response {
    let matched = request.extensions().get::<MatchedPath>().cloned();
    let mut response = next.run(request).await;
    if let Some(matched) = matched {
        response.extensions_mut().insert(matched);
    }
    response
}
