//! An OpenAI-compatible server over one model: cartridges by name, batching, constrained output, default-deny keys.
//!
//! `docs/how-to/serve.md` shows how to use it, `docs/formats/http.md` describes what it speaks. [`router()`] is the
//! whole of it without a socket; [`run()`] adds sockets and signals. Nothing here executes, fetches or takes a path from a
//! request, and nothing is written but the log.
#![forbid(unsafe_code)]

mod answer;
mod auth;
mod catalog;
mod error;
mod guard;
mod listen;
mod metrics;
mod prepare;
mod protocol;
mod router;
mod routes;
mod run;
mod server;
mod strict;

pub use auth::{Hosts, Keys, KeysError, new_key};
pub use catalog::{CartridgeFolder, CartridgeSource, Offered, Reloaded, model_name};
pub use error::{ApiError, CODES};
pub use guard::{Access, ROUTES, Route};
pub use listen::{Listen, Socket};
pub use router::router;
pub use run::{log_reload, run};
pub use server::{ServeError, Server, ServerParams};
