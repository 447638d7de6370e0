//! Registries as frameworks write them, and calls.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{CallError, RegistryError, ToolRegistry};
use crate::gbnf::{Grammar, GrammarLimits};
use crate::schema::{Mode, SchemaErrorKind, SchemaOptions};

fn data() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../gates/grammars")
}

fn load(name: &str) -> ToolRegistry {
    ToolRegistry::load(&data().join(name), &SchemaOptions::default()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn from(value: &Value) -> Result<ToolRegistry, RegistryError> {
    ToolRegistry::from_json(&value.to_string(), &SchemaOptions::default())
}

#[test]
fn shipped_registries_are_read() {
    for (name, tools) in [("home.toml", 2), ("files.toml", 3), ("calendar.toml", 4), ("arithmetic.toml", 3)] {
        let registry = load(name);
        assert_eq!(registry.tools().len(), tools, "{name}");
        assert!(registry.remarks().is_empty(), "{name}: {:?}", registry.remarks());
    }
}

#[test]
fn shipped_grammars() {
    let read = |name: &str| std::fs::read_to_string(data().join(name)).unwrap();
    let json = Grammar::parse(&read("json.gbnf"), "root", &GrammarLimits::default()).unwrap();
    for text in ["{}", "{\"a\": [1, -2.5, null], \"b\":\"\\ud83d\\ude00語\"}", "[true,false]", "\"\""] {
        assert!(json.matches(text.as_bytes()), "{text}");
    }
    for text in ["{\"a\":}", "{a:1}", "[1,]", "01", "\"\\ud83d\"", "\"\n\""] {
        assert!(!json.matches(text.as_bytes()), "{text}");
    }
    let answer = Grammar::parse(&read("answer.gbnf"), "root", &GrammarLimits::default()).unwrap();
    assert!(answer.matches("The kitchen light is set to 30%.".as_bytes()));
    assert!(answer.matches("客厅灯已打开。".as_bytes()));
    assert!(!answer.matches("The kitchen light is on".as_bytes()));
}

#[test]
fn calls_are_told_from_other_text() {
    let registry = load("home.toml");
    let good = "{\"tool\":\"home_status\",\"arguments\":{\"room\":\"kitchen\",\"device_types\":[\"light\"]}}";
    let call = registry.parse_call(good).unwrap();
    assert_eq!(call.tool, "home_status");
    assert_eq!(call.arguments["room"], "kitchen");
    assert!(registry.schema().matches(good));
    for bad in [
        "",
        "{}",
        "{\"tool\":\"home_status\"}",
        "{\"tool\":\"home_status\",\"arguments\":{}}",
        "{\"tool\":\"rm\",\"arguments\":{\"room\":\"kitchen\"}}",
        "{\"tool\":\"home_status\",\"arguments\":{\"room\":\"kitchen\",\"force\":true}}",
        "{\"tool\":\"home_status\",\"arguments\":{\"room\":\"kitchen\"},\"execute\":true}",
        "{\"tool\":\"home_status\",\"tool\":\"home_status\",\"arguments\":{\"room\":\"kitchen\"}}",
        "{\"tool\":\"home_status\",\"arguments\":{\"room\":\"garage\"}}",
        "{\"tool\":\"home_status\",\"arguments\":{\"room\":\"kitchen\"}",
        "{\"tool\":\"home_status\",\"arguments\":{\"room\":\"kitchen\"}} and more",
    ] {
        assert!(registry.parse_call(bad).is_err(), "{bad}");
        assert!(!registry.schema().matches(bad), "{bad}");
    }
}

/// Each way of writing the same two tools.
#[test]
fn every_framework_s_list_is_read() {
    let add = json!({ "type": "object", "properties": { "a": { "type": "integer" } }, "required": ["a"] });
    let function =
        |name: &str, parameters: &Value| json!({ "name": name, "description": "d", "parameters": parameters });
    let lists = [
        // A bare list, and the older keyword of OpenAI's requests.
        json!([function("add", &add), { "name": "now" }]),
        json!({ "functions": [function("add", &add), { "name": "now", "parameters": {} }] }),
        // Ours.
        json!({ "title": "t", "tools": [function("add", &add), { "name": "now", "description": "n" }] }),
        // OpenAI's chat completions and responses.
        json!([
            { "type": "function", "function": function("add", &add) },
            { "type": "function", "function": { "name": "now", "strict": true, "parameters": { "type": "object", "properties": {}, "additionalProperties": false } } },
        ]),
        json!({ "tools": [
            { "type": "function", "name": "add", "description": null, "parameters": add, "strict": false },
            { "type": "function", "name": "now", "parameters": null },
        ] }),
        // MCP's, with and without JSON-RPC.
        json!({ "jsonrpc": "2.0", "id": 1, "result": { "tools": [
            { "name": "add", "title": "Add", "description": "d", "inputSchema": add, "annotations": { "readOnlyHint": true }, "_meta": {} },
            { "name": "now", "inputSchema": { "type": "object", "properties": {} } },
        ], "nextCursor": null } }),
        json!({ "tools": [{ "name": "add", "inputSchema": add }, { "name": "now", "inputSchema": { "type": "object", "additionalProperties": false } }] }),
        // Anthropic's.
        json!([
            { "type": "custom", "name": "add", "input_schema": add, "cache_control": { "type": "ephemeral" } },
            { "name": "now", "input_schema": { "type": "object", "properties": {} } },
        ]),
    ];
    for list in lists {
        let registry = from(&list).unwrap_or_else(|error| panic!("{error}: {list}"));
        assert_eq!(registry.tools().iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["add", "now"], "{list}");
        for (text, fits) in [
            (r#"{"tool":"add","arguments":{"a":-3}}"#, true),
            (r#"{"tool":"now","arguments":{}}"#, true),
            (r#"{"tool":"now","arguments":{"a":1}}"#, false),
            (r#"{"tool":"add","arguments":{"a":"x"}}"#, false),
            (r#"{"tool":"add","arguments":{}}"#, false),
            (r#"{"arguments":{},"tool":"now"}"#, false),
        ] {
            assert_eq!(registry.schema().matches(text), fits, "{text} for {list}");
        }
        assert_eq!(registry.parse_call(r#"{"tool":"add","arguments":{"a":-3}}"#).unwrap().arguments["a"], -3, "{list}");
    }
}

/// The first fault is named with its place.
#[test]
fn a_bad_tool_is_named_with_its_place() {
    let good = json!({ "name": "a" });
    for (list, place, says) in [
        (json!([good, 7]), "/1", "object"),
        (json!([good, {}]), "/1", "name"),
        (json!([good, { "name": "" }]), "/1/name", "name"),
        (json!([good, { "name": "a b" }]), "/1/name", "a b"),
        (json!([good, { "name": "é" }]), "/1/name", "é"),
        (json!([good, { "name": "x".repeat(129) }]), "/1/name", "128"),
        (json!([good, { "name": 7 }]), "/1/name", "string"),
        (json!([good, good]), "/1", "twice"),
        (json!([good, { "name": "b", "description": 7 }]), "/1/description", "string"),
        (json!([good, { "name": "b", "execute": true }]), "/1/execute", "not known"),
        (json!([good, { "name": "b", "parameters": [] }]), "/1/parameters", "JSON Schema"),
        (json!([good, { "name": "b", "parameters": {}, "inputSchema": {} }]), "/1/inputSchema", "already"),
        (json!([good, { "type": "web_search" }]), "/1/type", "web_search"),
        (json!([good, { "type": "custom", "name": "b" }]), "/1/type", "custom"),
        (json!([good, { "type": "function", "function": "b" }]), "/1/function", "object"),
        (json!([{ "type": "function", "function": { "name": "b", "x": 1 } }]), "/0/function/x", "not known"),
        (json!({ "tools": [good], "extra": 1 }), "/extra", "not known"),
        (json!({ "tools": [good], "functions": [] }), "", "leave one"),
        (json!({ "tools": {} }), "/tools", "list"),
        (json!({ "name": "a" }), "", "'tools'"),
        (json!({ "jsonrpc": "2.0", "id": 1, "result": { "tools": [{ "name": "?" }] } }), "/result/tools/0/name", "?"),
        (
            json!({ "tools": [{ "name": "b", "inputSchema": { "type": "object", "properties": { "q": { "type": "txt" } } } }] }),
            "/tools/0/inputSchema",
            "'/properties/q': 'type'",
        ),
        (json!([{ "name": "b", "parameters": { "type": "string" } }]), "/0/parameters", "no value"),
    ] {
        let error = from(&list).expect_err(&list.to_string()).to_string();
        assert!(error.contains(&format!("'{place}'")) && error.contains(says), "{list}: {error}");
    }
    assert!(matches!(from(&json!({ "tools": [] })), Err(RegistryError::Empty)));
    assert!(matches!(from(&json!([])), Err(RegistryError::Empty)));
    let twice = ToolRegistry::from_json(r#"[{"name":"a","name":"b"}]"#, &SchemaOptions::default());
    assert!(matches!(twice, Err(RegistryError::Json { pointer, .. }) if pointer == "/0"));
    let many: Vec<Value> = (0..600).map(|i| json!({ "name": format!("t{i}") })).collect();
    assert!(matches!(from(&Value::Array(many)), Err(RegistryError::TooMany { tools: 600, .. })));
    let toml = "[[tools]]\nname = 'a'\ndescription = 'd'\ncommand = 'x'\n";
    let error = ToolRegistry::from_toml(toml, &SchemaOptions::default()).unwrap_err();
    assert!(matches!(error, RegistryError::Tool { ref pointer, .. } if pointer == "/tools/0/command"), "{error}");
    assert!(matches!(ToolRegistry::from_toml("tools = [", &SchemaOptions::default()), Err(RegistryError::Toml(_))));
    let missing = ToolRegistry::load(&data().join("none.toml"), &SchemaOptions::default());
    assert!(matches!(missing, Err(RegistryError::Read { .. })));
    let other = ToolRegistry::load(&data().join("json.gbnf"), &SchemaOptions::default());
    assert!(matches!(other, Err(RegistryError::UnknownFormat { .. })));
}

#[test]
fn what_no_call_shows_is_named() {
    let list = json!({ "tools": [
        { "name": "a", "inputSchema": { "type": "object", "properties": { "x": { "type": "string", "maxlength": 3 } } }, "outputSchema": {} },
    ], "nextCursor": "more" });
    let registry = from(&list).unwrap();
    let named: Vec<(&str, &str)> =
        registry.remarks().iter().map(|r| (r.place.keyword.as_str(), r.place.pointer.as_str())).collect();
    assert_eq!(named, [("nextCursor", ""), ("outputSchema", "/tools/0"), ("maxlength", "<tool:a>#/properties/x")]);
}

/// Definitions, identifiers and anchors of one tool do not leak into another's.
#[test]
fn definitions_stay_with_their_tool() {
    let tool = |name: &str, value: i64| {
        json!({
            "name": name,
            "parameters": {
                "$id": "https://example.org/arguments", "type": "object", "additionalProperties": false,
                "required": ["w", "x", "y", "z"],
                "properties": {
                    "w": { "$ref": "#mark" }, "x": { "$ref": "#/$defs/v" }, "y": { "$ref": "#/definitions/v" },
                    "z": { "$ref": "https://example.org/arguments#/properties/x" },
                },
                "$defs": { "v": { "$anchor": "mark", "const": value } },
                "definitions": { "v": { "type": "array", "items": { "$ref": "#/$defs/v" }, "minItems": 1, "maxItems": 1 } },
            },
        })
    };
    for mode in [Mode::Declared, Mode::Open] {
        let text = json!([tool("one", 1), tool("two", 2)]).to_string();
        let registry = ToolRegistry::from_json(&text, &SchemaOptions::default().mode(mode)).unwrap();
        for (tool, value) in [("one", 1), ("two", 2)] {
            for i in 0..16 {
                // One of the four places holds the other tool's value, or none does.
                let v = |at: usize| if i == at { 3 - value } else { value };
                let text = format!(
                    r#"{{"tool":"{tool}","arguments":{{"w":{},"x":{},"y":[{}],"z":{}}}}}"#,
                    v(0),
                    v(1),
                    v(2),
                    v(3)
                );
                assert_eq!(registry.parse_call(&text).is_ok(), i >= 4, "{text}");
                assert_eq!(registry.schema().matches(&text), i >= 4, "{text}");
            }
        }
    }
}

#[test]
fn numbers_that_a_reader_would_change_are_no_arguments() {
    let list =
        json!([{ "name": "a", "parameters": { "type": "object", "properties": { "n": { "type": "integer" } } } }]);
    let registry = ToolRegistry::from_json(&list.to_string(), &SchemaOptions::default().mode(Mode::Open)).unwrap();
    let call = |n: &str| registry.parse_call(&format!(r#"{{"tool":"a","arguments":{{"n":{n}}}}}"#));
    assert_eq!(call("18446744073709551615").unwrap().arguments["n"], u64::MAX);
    assert!(matches!(call("18446744073709551616"), Err(CallError::Invalid { problem, .. }) if problem.contains("616")));
    let constant = r#"[{"name":"a","parameters":{"type":"object","properties":{"n":{"const":18446744073709551617}}}}]"#;
    match ToolRegistry::from_json(constant, &SchemaOptions::default()) {
        Err(RegistryError::Parameters { source, .. }) => assert_eq!(source.kind, SchemaErrorKind::Unsupported),
        other => panic!("{other:?}"),
    }
}
