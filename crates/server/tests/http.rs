//! The router as clients find it, without a socket.

mod common;

use axum::http::StatusCode;
use common::{Reply, Setup, chat, stream_data};
use serde_json::{Value, json};
use server::{Access, ROUTES};

#[tokio::test]
async fn every_route_is_closed_without_a_key_and_with_a_wrong_one() {
    let setup = Setup::with_keys();
    let mut walked = 0;
    let mut paths: Vec<(String, String, Access)> =
        ROUTES.iter().map(|r| (r.method.to_owned(), r.path.replace("{model}", "x"), r.access)).collect();
    // What is not a route, or nearly one, is closed as well.
    for path in [
        "/nothing",
        "/health/",
        "//health",
        "/v1/../health",
        "/%68ealth",
        "/v1/models/",
        "/metrics/",
        "/openapi.json/x",
        "/v1/chat/completions/",
    ] {
        paths.push(("GET".into(), path.into(), Access::Key));
    }
    for method in ["GET", "POST", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"] {
        for (listed, path, access) in &paths {
            let public = *access == Access::Public && (method == listed || (method == "HEAD" && listed == "GET"));
            for key in [None, Some("wrong"), Some("")] {
                if method == "CONNECT" {
                    continue;
                }
                let reply = setup.send_raw(method, path, key, "{}").await;
                walked += 1;
                if public {
                    assert_eq!(reply.status, StatusCode::OK, "{method} {path}");
                } else {
                    assert_eq!(reply.status, StatusCode::UNAUTHORIZED, "{method} {path} {key:?}: {}", reply.text);
                    if method != "HEAD" {
                        let code = reply.json()["error"]["code"].clone();
                        assert!(code == "missing_api_key" || code == "invalid_api_key", "{method} {path}: {code}");
                    }
                }
            }
        }
    }
    assert!(walked > 500, "{walked}");
    // The right key opens what it is for, and nothing else.
    for r in ROUTES.iter().filter(|r| r.method == "GET" && !r.path.contains('{')) {
        let reply = setup.get_as(&setup.user, r.path).await;
        let expected = if r.access == Access::Operator { StatusCode::FORBIDDEN } else { StatusCode::OK };
        assert_eq!(reply.status, expected, "{}", r.path);
        let reply = setup.get_as(&setup.operator, r.path).await;
        let expected = if r.access == Access::Key { StatusCode::UNAUTHORIZED } else { StatusCode::OK };
        assert_eq!(reply.status, expected, "{}", r.path);
    }
}

#[tokio::test]
async fn the_document_describes_every_route_of_the_protocol() {
    let setup = Setup::open();
    let document = setup.get("/openapi.json").await.json();
    let paths = document["paths"].as_object().unwrap();
    for r in ROUTES.iter().filter(|r| r.path != "/openapi.json") {
        assert!(paths[r.path].get(r.method.to_lowercase()).is_some(), "{} {}", r.method, r.path);
    }
    let known = |p: &String| ROUTES.iter().any(|r| r.path == p);
    assert!(paths.keys().all(known));
}

#[tokio::test]
async fn names_that_are_not_ours_and_pages_of_others_are_not_answered() {
    let setup = Setup::open();
    for host in ["evil.example", "localhost.evil.example", "169.254.169.254"] {
        let reply = setup.send_with("GET", "/v1/models", &[("host", host)], "").await;
        assert_eq!((reply.status.as_u16(), reply.code().as_str()), (421, "host_not_allowed"), "{host}");
    }
    let cases = [
        vec![("origin", "http://evil.example")],
        vec![("origin", "null")],
        vec![("origin", "http://localhost:8080.evil.example")],
        vec![("origin", "http://localhost:9999")],
        vec![("sec-fetch-site", "cross-site")],
    ];
    for case in cases {
        let reply = setup.send_with("POST", "/v1/chat/completions", &case, "{}").await;
        assert_eq!((reply.status.as_u16(), reply.code().as_str()), (403, "origin_not_allowed"), "{case:?}");
        assert!(!reply.headers.contains_key("access-control-allow-origin"));
    }
    let own = setup.send_with("GET", "/v1/models", &[("origin", "http://localhost:8080")], "").await;
    assert_eq!(own.status, StatusCode::OK);
    let reply = setup.send_with("GET", "/v1/models?key=x", &[], "").await;
    assert_eq!(reply.code(), "query_not_supported");
}

#[tokio::test]
async fn a_whole_answer_and_its_stream_say_the_same() {
    let setup = Setup::open();
    let mut request = chat("switch pixa on");
    request["logprobs"] = json!(true);
    request["top_logprobs"] = json!(2);
    let whole = setup.post("/v1/chat/completions", &request).await;
    assert_eq!(whole.status, StatusCode::OK, "{}", whole.text);
    let body = whole.json();
    assert_eq!(body["object"], "chat.completion");
    let choice = &body["choices"][0];
    let usage = &body["usage"];
    assert_eq!(
        usage["total_tokens"],
        usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap()
    );
    assert_eq!(
        choice["logprobs"]["content"].as_array().unwrap().len() as u64,
        usage["completion_tokens"].as_u64().unwrap()
    );

    request["stream"] = json!(true);
    request["stream_options"] = json!({"include_usage": true});
    let reply = setup.post("/v1/chat/completions", &request).await;
    assert_eq!(reply.headers["content-type"], "text/event-stream");
    let mut chunks = stream_data(&reply.text);
    assert_eq!(chunks.pop(), Some(Value::from("[DONE]")));
    let last = chunks.pop().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], usage["completion_tokens"]);
    let mut text = String::new();
    let mut logprobs = 0;
    for (n, chunk) in chunks.iter().enumerate() {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(chunk["id"], chunks[0]["id"]);
        assert!(chunk.as_object().unwrap().contains_key("usage") && chunk["usage"].is_null());
        let choice = &chunk["choices"][0];
        assert_eq!(choice["delta"].get("role").is_some(), n == 0);
        assert_eq!(choice["finish_reason"].is_null(), n + 1 < chunks.len());
        text.push_str(choice["delta"]["content"].as_str().unwrap_or(""));
        logprobs += choice["logprobs"]["content"].as_array().map_or(0, Vec::len);
    }
    assert_eq!(text, choice["message"]["content"].as_str().unwrap());
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], choice["finish_reason"]);
    assert_eq!(logprobs as u64, usage["completion_tokens"].as_u64().unwrap());
    // Without usage asked for there is none.
    request["stream_options"] = json!(null);
    let reply = setup.post("/v1/chat/completions", &request).await;
    assert!(stream_data(&reply.text).iter().all(|c| c.get("usage").is_none()));
}

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "lamp", "description": "Switches a lamp.", "parameters": {
            "type": "object", "properties": {"on": {"type": "boolean"}, "room": {"enum": ["hall", "kitchen"]}},
            "required": ["on", "room"]}}},
        {"type": "function", "function": {"name": "fan", "parameters": {
            "type": "object", "properties": {"speed": {"type": "integer", "minimum": 0, "maximum": 3}}, "required": ["speed"]}}},
    ])
}

/// A call keeps the schema of its tool, by a validator that knows nothing of the grammar.
fn check_call(call: &Value) -> String {
    let name = call["function"]["name"].as_str().unwrap().to_owned();
    let tools = tools();
    let tool = tools.as_array().unwrap().iter().find(|t| t["function"]["name"] == name.as_str()).unwrap();
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    jsonschema::validate(&tool["function"]["parameters"], &arguments).unwrap();
    assert!(call["id"].as_str().unwrap().starts_with("call_"));
    assert_eq!(call["type"], "function");
    name
}

#[tokio::test]
async fn tools_are_called_as_their_schemas_say_whole_and_in_streams() {
    let setup = Setup::open();
    for (choice, expected) in [
        (json!("required"), None),
        (json!({"type": "function", "function": {"name": "fan"}}), Some("fan")),
        (json!({"type": "function", "function": {"name": "lamp"}}), Some("lamp")),
    ] {
        for temperature in [0.0, 1.9] {
            let mut request = chat("kitchen lamp on");
            request["tools"] = tools();
            request["tool_choice"] = choice.clone();
            request["max_tokens"] = json!(100);
            request["temperature"] = json!(temperature);
            request["seed"] = json!(5);
            let body = setup.post("/v1/chat/completions", &request).await.json();
            let answer = &body["choices"][0];
            assert_eq!(answer["finish_reason"], "tool_calls", "{body}");
            assert!(answer["message"]["content"].is_null());
            let name = check_call(&answer["message"]["tool_calls"][0]);
            assert!(expected.is_none_or(|e| e == name));

            request["stream"] = json!(true);
            let reply = setup.post("/v1/chat/completions", &request).await;
            let mut call = json!(null);
            let mut arguments = String::new();
            let mut deltas = 0;
            for chunk in stream_data(&reply.text).iter().filter(|c| c.is_object()) {
                let delta = &chunk["choices"][0]["delta"];
                assert!(delta.get("content").is_none_or(Value::is_null), "{delta}");
                let Some(part) = delta["tool_calls"].get(0) else { continue };
                assert_eq!(part["index"], 0);
                if deltas == 0 {
                    assert_eq!(part["function"]["arguments"], "");
                    call = part.clone();
                } else {
                    assert_eq!(part.as_object().unwrap().keys().collect::<Vec<_>>(), ["index", "function"]);
                    assert_eq!(part["function"].as_object().unwrap().len(), 1);
                    arguments.push_str(part["function"]["arguments"].as_str().unwrap());
                }
                deltas += 1;
            }
            call["function"]["arguments"] = json!(arguments);
            assert_eq!(check_call(&call), name);
        }
    }
    // One that is cut is none.
    let mut request = chat("kitchen lamp on");
    request["tools"] = tools();
    request["tool_choice"] = json!("required");
    request["max_tokens"] = json!(3);
    let body = setup.post("/v1/chat/completions", &request).await.json();
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    assert!(body["choices"][0]["message"].get("tool_calls").is_none());
    request["stream"] = json!(true);
    let reply = setup.post("/v1/chat/completions", &request).await;
    assert!(!reply.text.contains("\"tool_calls\""), "{}", reply.text);
    // With auto there is text or a call, and the conversation goes on with its result.
    request["tool_choice"] = json!("auto");
    request["max_tokens"] = json!(40);
    request["stream"] = json!(false);
    request["messages"] = json!([
        {"role": "user", "content": "kitchen lamp on"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "lamp", "arguments": "{\"on\":true,\"room\":\"kitchen\"}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "done"},
    ]);
    let body = setup.post("/v1/chat/completions", &request).await.json();
    let message = &body["choices"][0]["message"];
    assert!(message["content"].is_string() || body["choices"][0]["finish_reason"] != "stop", "{body}");
}

#[tokio::test]
async fn structured_answers_keep_their_schema_or_the_request_is_refused() {
    let setup = Setup::open();
    let schema = json!({"type": "object", "properties": {
        "device": {"enum": ["lamp", "fan"]}, "level": {"type": "integer", "minimum": 0, "maximum": 9},
        "rooms": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}},
        "required": ["device", "level", "rooms"], "additionalProperties": false});
    for seed in 0..4 {
        let mut request = chat("what is on?");
        request["temperature"] = json!(1.5);
        request["seed"] = json!(seed);
        request["max_tokens"] = json!(100);
        request["response_format"] =
            json!({"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": schema}});
        let body = setup.post("/v1/chat/completions", &request).await.json();
        assert_eq!(body["choices"][0]["finish_reason"], "stop", "{body}");
        let value: Value = serde_json::from_str(body["choices"][0]["message"]["content"].as_str().unwrap()).unwrap();
        jsonschema::validate(&schema, &value).unwrap();
    }
    let mut request = chat("what is on?");
    request["response_format"] = json!({"type": "json_object"});
    request["max_tokens"] = json!(60);
    let body = setup.post("/v1/chat/completions", &request).await.json();
    if body["choices"][0]["finish_reason"] == "stop" {
        let text = body["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(serde_json::from_str::<Value>(text).unwrap().is_object());
    }
    for (bad, place) in [
        (json!({"type": "object", "properties": {"a": {"type": "string", "minLength": -1}}}), "/properties/a"),
        (json!({"type": "string", "pattern": "(?=x)y"}), ""),
        (json!({"type": "no"}), ""),
        (json!({"$ref": "http://evil.example/schema"}), ""),
    ] {
        request["response_format"] = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": bad}});
        let reply = setup.post("/v1/chat/completions", &request).await;
        assert_eq!(
            (reply.status.as_u16(), reply.code().as_str()),
            (400, "schema_unsupported"),
            "{bad}: {}",
            reply.text
        );
        let param = reply.json()["error"]["param"].as_str().unwrap().to_owned();
        assert_eq!(param, format!("response_format.json_schema.schema{place}"));
    }
}

#[tokio::test]
async fn what_could_change_the_answer_and_is_not_known_is_refused_by_its_path() {
    let setup = Setup::open();
    let with = |path: &str, value: Value| {
        let mut request = chat("hello");
        *request
            .pointer_mut(path.rsplit_once('/').unwrap().0)
            .unwrap()
            .as_object_mut()
            .unwrap()
            .entry(path.rsplit_once('/').unwrap().1.to_owned())
            .or_insert(Value::Null) = value;
        request
    };
    let cases = [
        ("/reasoning_effort", json!("high"), "unknown_field", "reasoning_effort"),
        ("/messages/0/audio", json!({"id": "x"}), "unknown_field", "messages[0].audio"),
        ("/messages/0/name", json!("bob"), "unsupported_value", "messages[0].name"),
        ("/messages/0/role", json!("robot"), "invalid_value", "messages[0].role"),
        (
            "/messages/0/content",
            json!([{"type": "image_url", "image_url": {"url": "http://evil.example"}}]),
            "invalid_value",
            "messages[0].content[0]",
        ),
        ("/messages/0/content", json!(null), "invalid_value", "messages[0].content"),
        ("/messages/0/content", json!(7), "invalid_value", "messages[0].content"),
        ("/temperature", json!(3), "invalid_value", "temperature"),
        ("/temperature", json!("hot"), "invalid_value", "temperature"),
        ("/top_p", json!(-0.5), "invalid_value", "top_p"),
        ("/n", json!(99), "invalid_value", "n"),
        ("/n", json!(0), "invalid_value", "n"),
        ("/max_tokens", json!(0), "invalid_value", "max_tokens"),
        ("/max_tokens", json!(-1), "invalid_value", "max_tokens"),
        ("/frequency_penalty", json!(0.5), "unsupported_value", "frequency_penalty"),
        ("/logit_bias", json!({"5": 1}), "unsupported_value", "logit_bias"),
        ("/top_logprobs", json!(2), "invalid_value", "top_logprobs"),
        ("/stop", json!([""]), "invalid_value", "stop[0]"),
        ("/stream_options", json!({"include_usage": true}), "invalid_value", "stream_options"),
        ("/response_format", json!({"type": "xml"}), "invalid_value", "response_format.type"),
        ("/tool_choice", json!("required"), "invalid_value", "tool_choice"),
        ("/tool_choice", json!("maybe"), "invalid_value", "tool_choice"),
        ("/tools", json!([{"type": "web_search"}]), "invalid_value", "tools[0]"),
        ("/model", json!("gpt-9"), "model_not_found", "model"),
        ("/model", json!("home:../../etc/passwd"), "model_not_found", "model"),
        ("/seed", json!(1.5), "invalid_value", "seed"),
    ];
    for (path, value, code, param) in cases {
        let reply = setup.post("/v1/chat/completions", &with(path, value.clone())).await;
        assert!([400, 404].contains(&reply.status.as_u16()), "{path} {value}: {}", reply.text);
        assert_eq!(
            (reply.code().as_str(), reply.json()["error"]["param"].as_str()),
            (code, Some(param)),
            "{path} {value}: {}",
            reply.text
        );
    }
    for (path, value) in [
        ("/user", json!("me")),
        ("/metadata", json!({"a": "b"})),
        ("/functions", json!(null)),
        ("/store", json!(false)),
        ("/presence_penalty", json!(0)),
        ("/logit_bias", json!({})),
        ("/stop", json!(null)),
        ("/parallel_tool_calls", json!(true)),
    ] {
        let mut request = with(path, value);
        request["max_tokens"] = json!(1);
        assert_eq!(setup.post("/v1/chat/completions", &request).await.status, StatusCode::OK, "{path}");
    }
}

#[tokio::test]
async fn hostile_bodies_are_refused_and_never_end_the_server() {
    let setup = Setup::open();
    let deep = format!("{{\"model\":\"home\",\"messages\":{}", "[".repeat(200_000));
    let big =
        format!("{{\"model\":\"home\",\"messages\":[{{\"role\":\"user\",\"content\":\"{}\"}}]}}", "a".repeat(5 << 20));
    let schema = |s: &str| {
        format!(
            "{{\"model\":\"home\",\"max_tokens\":4,\"messages\":[{{\"role\":\"user\",\"content\":\"x\"}}],\"response_format\":{{\"type\":\"json_schema\",\"json_schema\":{{\"name\":\"n\",\"schema\":{s}}}}}}}"
        )
    };
    let nested = |n: usize| {
        format!("{}{{\"type\":\"null\"}}{}", "{\"type\":\"array\",\"maxItems\":2,\"items\":".repeat(n), "}".repeat(n))
    };
    let wide = format!(
        "{{\"type\":\"object\",\"properties\":{{{}}}}}",
        (0..3000).map(|n| format!("\"p{n}\":{{\"type\":\"string\",\"maxLength\":5000}}")).collect::<Vec<_>>().join(",")
    );
    let enums = format!("{{\"enum\":[{}]}}", (0..20_000).map(|n| n.to_string()).collect::<Vec<_>>().join(","));
    let mut bodies = vec![
        String::new(),
        "null".into(),
        "[]".into(),
        "{".into(),
        "\u{0}".into(),
        deep,
        big,
        schema(&nested(20)),
        schema(&nested(40)),
        schema(&nested(100)),
        schema(&wide),
        schema(&enums),
        schema("{\"type\":\"string\",\"pattern\":\"(a*)*b\"}"),
        schema("{\"type\":\"string\",\"pattern\":\"((((((((((a{1,99}){1,99}){1,99}){1,99}))))))))\"}"),
        schema("{\"type\":\"array\",\"minItems\":4000000000}"),
        schema("{\"type\":\"string\",\"minLength\":100000000}"),
        schema("{\"type\":\"integer\",\"minimum\":1e308}"),
        schema("{\"$defs\":{\"a\":{\"$ref\":\"#/$defs/a\"}},\"$ref\":\"#/$defs/a\"}"),
        schema("{\"enum\":[]}"),
        schema("false"),
        schema("true"),
        schema("7"),
    ];
    // Any prefix of a good one, and any byte of it changed.
    let good = chat("hi").to_string();
    bodies.extend((0..good.len()).step_by(3).map(|n| good[..n].to_owned()));
    bodies.extend((0..good.len()).map(|n| {
        let mut bytes = good.clone().into_bytes();
        bytes[n] = b"\"{}[]:,0\\x"[n % 10];
        String::from_utf8_lossy(&bytes).into_owned()
    }));
    for path in ["/v1/chat/completions", "/v1/completions", "/v1/tokenize"] {
        for body in &bodies {
            let reply = setup.send_with("POST", path, &[("content-type", "application/json")], body).await;
            assert!(
                reply.status.as_u16() < 500,
                "{path} {}: {}",
                &body.chars().take(200).collect::<String>(),
                reply.text
            );
            if !reply.status.is_success() {
                assert!(reply.json()["error"]["code"].is_string(), "{}", reply.text);
            }
        }
    }
    for kind in ["text/plain", "application/x-www-form-urlencoded", ""] {
        let reply = setup.send_with("POST", "/v1/chat/completions", &[("content-type", kind)], &good).await;
        assert_eq!(reply.code(), "unsupported_media_type");
    }
    let reply = setup.post("/v1/chat/completions", &chat("hi")).await;
    assert_eq!(reply.status, StatusCode::OK);
    assert_eq!(setup.server.scheduler().stats().running, 0);
}

#[tokio::test]
async fn completions_and_tokens() {
    let setup = Setup::open();
    let request =
        json!({"model": "home", "prompt": "The lamp in the", "max_tokens": 5, "temperature": 0, "logprobs": 2});
    let body = setup.post("/v1/completions", &request).await.json();
    assert_eq!(body["object"], "text_completion", "{body}");
    let logprobs = &body["choices"][0]["logprobs"];
    let n = logprobs["tokens"].as_array().unwrap().len();
    assert_eq!(n as u64, body["usage"]["completion_tokens"].as_u64().unwrap());
    for column in ["token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(logprobs[column].as_array().unwrap().len(), n);
    }
    let mut streamed = request.clone();
    streamed["stream"] = json!(true);
    let reply = setup.post("/v1/completions", &streamed).await;
    let text: String =
        stream_data(&reply.text).iter().filter_map(|c| c["choices"][0]["text"].as_str().map(str::to_owned)).collect();
    assert_eq!(text, body["choices"][0]["text"].as_str().unwrap());
    let tokens = setup.post("/v1/tokenize", &json!({"model": "home", "input": "The lamp in the"})).await.json();
    assert_eq!(tokens["count"], body["usage"]["prompt_tokens"]);
    let chat_tokens = setup
        .post("/v1/tokenize", &json!({"model": "home", "messages": [{"role": "user", "content": "hello"}]}))
        .await
        .json();
    let answered = setup.post("/v1/chat/completions", &chat("hello")).await.json();
    assert_eq!(chat_tokens["count"], answered["usage"]["prompt_tokens"]);
    let long = json!({"model": "home", "prompt": "word ".repeat(3000)});
    assert_eq!(setup.post("/v1/completions", &long).await.code(), "context_length_exceeded");
}

#[tokio::test]
async fn cartridges_are_named_behind_the_model_and_read_again_on_a_reload() {
    let setup = Setup::open();
    let ids = |reply: &Reply| -> Vec<String> {
        reply.json()["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&setup.get("/v1/models").await), ["home", "home:devices"]);
    let listed = setup.get("/v1/cartridges").await.json();
    assert_eq!(listed["data"][0]["title"], "Devices");
    let mut request = chat("switch pixa on");
    let plain = setup.post("/v1/chat/completions", &request).await.json();
    request["model"] = json!("home:devices");
    let behind = setup.post("/v1/chat/completions", &request).await.json();
    let cells = listed["data"][0]["tokens"].as_u64().unwrap();
    assert_eq!(behind["usage"]["prompt_tokens_details"]["cached_tokens"], cells);
    // Without the token that begins a text.
    assert_eq!(behind["usage"]["prompt_tokens"], plain["usage"]["prompt_tokens"].as_u64().unwrap() + cells - 1);
    std::fs::write(setup.folder.path().join("broken.safetensors"), "x").unwrap();
    std::fs::rename(setup.folder.path().join("devices.safetensors"), setup.folder.path().join("house.safetensors"))
        .unwrap();
    let reloaded = setup.server.reload().unwrap();
    assert_eq!(reloaded.offered, 1);
    assert!(reloaded.left_out[0].starts_with("broken: "), "{reloaded:?}");
    assert_eq!(ids(&setup.get("/v1/models").await), ["home", "home:house"]);
    assert_eq!(setup.post("/v1/chat/completions", &request).await.code(), "model_not_found");
    assert_eq!(setup.get("/v1/models/home:house").await.json()["id"], "home:house");
}

#[tokio::test]
async fn several_answers_and_metrics() {
    let setup = Setup::open();
    let mut request = chat("tell me more");
    request["n"] = json!(3);
    request["temperature"] = json!(1.5);
    let body = setup.post("/v1/chat/completions", &request).await.json();
    let indices: Vec<u64> = body["choices"].as_array().unwrap().iter().map(|c| c["index"].as_u64().unwrap()).collect();
    assert_eq!(indices, [0, 1, 2]);
    let text = setup.get("/metrics").await.text;
    let tokens = body["usage"]["completion_tokens"].as_u64().unwrap();
    assert!(text.contains(&format!("harness_completion_tokens_total {tokens}")), "{text}");
    assert!(text.contains("harness_http_requests_total{route=\"/v1/chat/completions\",status=\"200\"} 1"), "{text}");
    assert!(text.ends_with("# EOF\n"));
    assert_eq!(setup.send_with("GET", "/health", &[("host", "anything")], "").await.json(), json!({"status": "ok"}));
    setup.server.stop_taking();
    assert_eq!(setup.get("/ready").await.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(setup.post("/v1/chat/completions", &request).await.code(), "stopping");
}
