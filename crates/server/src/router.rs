//! Which handler answers which route.

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

use crate::error::internal;
use crate::guard::{self, ROUTES};
use crate::routes;
use crate::server::Server;

/// Every route, behind the one layer that lets nobody in who is not let in.
pub fn router(server: &Arc<Server>) -> Router {
    let mut router = Router::new();
    for route in ROUTES {
        router = router.route(
            route.path,
            match (route.method, route.path) {
                (_, "/health") => get(routes::health),
                (_, "/ready") => get(routes::ready),
                (_, "/metrics") => get(routes::metrics),
                (_, "/openapi.json") => get(routes::openapi),
                (_, "/v1/models") => get(routes::models),
                (_, "/v1/models/{model}") => get(routes::model),
                (_, "/v1/cartridges") => get(routes::cartridges),
                (_, "/v1/chat/completions") => post(routes::chat),
                (_, "/v1/completions") => post(routes::completion),
                (_, "/v1/tokenize") => post(routes::tokenize),
                // A route without a handler is a mistake that the tests find.
                _ => get(routes::not_found),
            },
        );
    }
    router
        .fallback(routes::not_found)
        .method_not_allowed_fallback(routes::wrong_method)
        .route_layer(axum::middleware::from_fn(guard::note_route))
        .layer(tower_http::catch_panic::CatchPanicLayer::custom(|panic: Box<dyn std::any::Any + Send>| {
            let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            axum::response::IntoResponse::into_response(internal(&format!("a handler panicked: {text}")))
        }))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(server), guard::guard))
        .with_state(Arc::clone(server))
}
