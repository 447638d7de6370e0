//! A server over the embedded model, and a client that is as strict as a client can be.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use bitnet_rs::{Batch, Context, ContextParams, Model, ModelParams, Pos, SeqId, Special};
use cartridge::{Overwrite, Provenance};
use files::stamps::StampStore;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use server::{CartridgeFolder, Listen, Server, ServerParams, new_key, router};
use session::scheduler::SchedulerParams;
use session::{ChatTemplate, TemplateSandbox, capture, lock_of};
use tower::ServiceExt as _;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../gates/models/bitnet-harness-home.gguf");

pub struct Setup {
    pub server: Arc<Server>,
    pub folder: tempfile::TempDir,
    pub user: String,
    pub operator: String,
}

pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {}", self.text))
    }

    pub fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or("none").to_owned()
    }
}

/// A greedy question to the model alone.
pub fn chat(text: &str) -> Value {
    json!({"model": "home", "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 20})
}

/// The data of a stream: every line is a comment, empty, or one `data:` field; the last is `[DONE]`, and nothing follows.
pub fn stream_data(text: &str) -> Vec<Value> {
    let mut out: Vec<Value> = Vec::new();
    for event in text.split_terminator("\n\n") {
        for line in event.split('\n') {
            if line.starts_with(':') {
                continue;
            }
            let data = line.strip_prefix("data: ").unwrap_or_else(|| panic!("not a field: {line:?}"));
            assert!(out.last() != Some(&Value::from("[DONE]")), "{data} behind the end");
            out.push(if data == "[DONE]" { data.into() } else { serde_json::from_str(data).unwrap() });
        }
    }
    assert!(text.ends_with("\n\n"), "{text:?}");
    assert_eq!(out.last(), Some(&Value::from("[DONE]")));
    out
}

pub fn context() -> ContextParams {
    ContextParams { n_ctx: 1024, n_threads: 1, ..Default::default() }
}

impl Setup {
    pub fn open() -> Self {
        Self::new(false)
    }

    pub fn with_keys() -> Self {
        Self::new(true)
    }

    fn new(with_keys: bool) -> Self {
        let model = Model::load(MODEL, ModelParams::default()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let lock = lock_of(&model, &mut |_, _| std::ops::ControlFlow::Continue(())).unwrap();
        let mut small = Context::new(&model, &context()).unwrap();
        let tokens = model.tokenize("Devices: pixa is a camera in the hallway.", Special::ContentWithBos).unwrap();
        small.decode(&Batch::prompt(&tokens, Pos::ZERO, SeqId::ZERO).unwrap()).unwrap();
        let provenance = Provenance { title: Some("Devices".into()), ..Default::default() };
        let path = folder.path().join("devices.safetensors");
        capture(path, &mut small, SeqId::ZERO, &tokens, &lock, &provenance, Overwrite::forced(false)).unwrap();
        let (user, user_line) = new_key("anna").unwrap();
        let (operator, operator_line) = new_key("olga").unwrap();
        let (keys, operator_keys) = (folder.path().join("keys"), folder.path().join("operators"));
        std::fs::write(&keys, user_line).unwrap();
        std::fs::write(&operator_keys, operator_line).unwrap();
        let params = ServerParams {
            name: "home".into(),
            scheduler: SchedulerParams { context: context(), ..Default::default() },
            keys: with_keys.then_some(keys),
            operator_keys: with_keys.then_some(operator_keys),
            ..Default::default()
        };
        let template = ChatTemplate::of_model(&model, &TemplateSandbox::InProcess).unwrap();
        let source = Some(Box::new(CartridgeFolder(folder.path().into())) as _);
        let listen: Listen = "127.0.0.1:8080".parse().unwrap();
        let (server, reloaded) =
            Server::new(&model, Some(template), source, StampStore::none(), params, &listen).unwrap();
        assert_eq!((reloaded.offered, reloaded.left_out), (1, vec![]));
        Self { server, folder, user, operator }
    }

    async fn call(&self, request: Request<Body>) -> Reply {
        let response = router(&self.server).oneshot(request).await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.into_body().collect().await.unwrap().to_bytes();
        Reply { status, headers, text: String::from_utf8(body.to_vec()).unwrap() }
    }

    pub async fn send_with(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let mut request = Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", "localhost:8080");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.call(request.body(Body::from(body.to_owned())).unwrap()).await
    }

    pub async fn send_raw(&self, method: &str, path: &str, key: Option<&str>, body: &str) -> Reply {
        let bearer = key.map(|k| format!("Bearer {k}"));
        let mut headers = vec![("content-type", "application/json")];
        headers.extend(bearer.as_deref().map(|b| ("authorization", b)));
        self.send_with(method, path, &headers, body).await
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.send_with("GET", path, &[], "").await
    }

    pub async fn get_as(&self, key: &str, path: &str) -> Reply {
        self.send_raw("GET", path, Some(key), "").await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        self.send_with("POST", path, &[("content-type", "application/json")], &body.to_string()).await
    }
}
