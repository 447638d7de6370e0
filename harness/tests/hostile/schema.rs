//! JSON Schemas for constrained output.

use serde_json::{Value, json};

use crate::attempt::{Attempt, harness};

const AREA: &str = "json schema";

fn run(name: &str, text: impl Into<Vec<u8>>) -> Attempt {
    let args = ["generate", "--json-schema", "s.json", "--prompt", "x", "--max-tokens", "40", "--threads", "1"];
    harness(AREA, name, args).file("s.json", text)
}

/// Accepted, whatever the model then says: an answer, or one that the limit cuts or the validation refuses.
fn accepted(name: &str, schema: Value) -> Attempt {
    run(name, schema.to_string()).ends_any()
}

fn refused(name: &str, schema: Value, says: &str) -> Attempt {
    run(name, schema.to_string()).refused(says)
}

pub(crate) fn table() -> Vec<Attempt> {
    let mut all = Vec::new();
    for (name, text, says) in [
        ("empty", &b""[..], "s.json"),
        ("no JSON", b"{type: object}", "s.json"),
        ("cut", b"{\"type\":", "s.json"),
        ("two documents", b"{} {}", "s.json"),
        ("no UTF-8", b"{\"const\":\"\xff\"}", "UTF-8"),
        ("lone surrogate", b"{\"const\":\"\\ud800\"}", "s.json"),
        ("NUL byte", b"{\"const\":\"a\0b\"}", "s.json"),
        ("a number", b"7", "s.json"),
        ("a list", b"[]", "s.json"),
        ("false", b"false", "s.json"),
    ] {
        all.push(run(name, text).refused(says));
    }
    for (open, close) in [("[", "]"), ("{\"not\":", "}"), ("{\"items\":", "}"), ("{\"anyOf\":[", "]}")] {
        let deep = format!("{}{{}}{}", open.repeat(50_000), close.repeat(50_000));
        all.push(run(&format!("50,000 × {open}"), deep).refused("s.json"));
    }
    let mut nested = json!({"type": "integer"});
    for _ in 0..60 {
        nested = json!({"type": "array", "items": nested, "maxItems": 1});
    }
    all.push(accepted("60 arrays", nested.clone()));
    for _ in 0..60 {
        nested = json!({"type": "array", "items": nested, "maxItems": 1});
    }
    all.push(refused("120 arrays", nested, "deep"));
    all.push(run("keyword twice", r#"{"type":"string","type":"null"}"#).refused("'type' comes twice"));
    all.push(run("property twice", r#"{"properties":{"a":{},"a":{"type":"null"}}}"#).refused("'a' comes twice"));
    all.extend(keywords());
    all.extend(references());
    all.extend(sizes());
    all.push(run("sound", json!({"type": "boolean"}).to_string()));
    all.push(run("cut by the budget", json!({"type": "string", "minLength": 500}).to_string()).ends(5, ""));
    all
}

fn keywords() -> Vec<Attempt> {
    vec![
        refused("unknown type", json!({"type": "thing"}), "type"),
        refused("type as a number", json!({"type": 7}), "type"),
        refused("type list with rubbish", json!({"type": ["string", 7]}), "type"),
        accepted("not", json!({"not": {"type": "string"}})),
        refused("not of everything", json!({"not": {}}), "no value"),
        accepted("conditional", json!({"if": {}, "then": {}})),
        refused("empty enum", json!({"enum": []}), "enum"),
        refused("enum as an object", json!({"enum": {}}), "enum"),
        refused("anyOf of nothing", json!({"anyOf": []}), "anyOf"),
        refused("anyOf as text", json!({"anyOf": "x"}), "anyOf"),
        run("open object", json!({"type": "object", "properties": {}}).to_string()),
        refused(
            "required but undeclared",
            json!({"type": "object", "properties": {}, "required": ["a"], "additionalProperties": false}),
            "required",
        ),
        refused(
            "required as text",
            json!({"type": "object", "properties": {}, "required": "a", "additionalProperties": false}),
            "required",
        ),
        refused(
            "required with a number",
            json!({"type": "object", "properties": {}, "required": [1], "additionalProperties": false}),
            "required",
        ),
        refused(
            "properties as a list",
            json!({"type": "object", "properties": [], "additionalProperties": false}),
            "properties",
        ),
        refused("minimum over maximum", json!({"type": "integer", "minimum": 5, "maximum": 4}), "no value"),
        refused("minimum as text", json!({"type": "integer", "minimum": "5"}), "minimum"),
        refused("minLength over maxLength", json!({"type": "string", "minLength": 5, "maxLength": 4}), "no value"),
        refused("negative minLength", json!({"type": "string", "minLength": -1}), "minLength"),
        refused("fractional minLength", json!({"type": "string", "minLength": 1.5}), "minLength"),
        refused(
            "minItems over maxItems",
            json!({"type": "array", "items": {"type": "null"}, "minItems": 5, "maxItems": 4}),
            "no value",
        ),
        accepted("uniqueItems", json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true})),
        accepted("unknown format", json!({"type": "string", "format": "horoscope"})),
        refused("format as a number", json!({"type": "string", "format": 7}), "format"),
        accepted("multipleOf", json!({"type": "integer", "multipleOf": 7})),
        refused("multipleOf 0", json!({"type": "integer", "multipleOf": 0}), "multipleOf"),
        accepted(
            "several multipleOf",
            json!({"type": "integer", "allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]}),
        ),
        accepted("unknown keyword", json!({"type": "string", "minlength": 7})),
    ]
    .into_iter()
    .chain(
        ["(", "[", "a{2", "*", "\\", "\\1", "[z-a]", "(((a{1000}){1000}){1000}){1000}", "[[:alpha:]]"]
            .into_iter()
            .map(|p| refused(&format!("pattern {p}"), json!({"type": "string", "pattern": p}), "pattern")),
    )
    .chain(
        ["(?=a)", "(?<n>a)", "a{99999}", "\\p{Greek}", "^(a+)+$", "(.*a){20}", "(.*)\\1", "(?!.*(.).*\\1)^.*$"]
            .into_iter()
            .map(|p| accepted(&format!("pattern {p}"), json!({"type": "string", "pattern": p}))),
    )
    .chain([refused("pattern of 100,000 groups", json!({"type": "string", "pattern": "(".repeat(100_000)}), "pattern")])
    .collect()
}

fn references() -> Vec<Attempt> {
    let mut all = vec![
        refused("reference to itself", json!({"$ref": "#"}), "itself"),
        refused(
            "circle of two",
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
            "itself",
        ),
        accepted(
            "circle through a property",
            json!({"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "additionalProperties": false, "properties": {"n": {"$ref": "#/$defs/n"}}}}}),
        ),
        refused(
            "circle that never ends",
            json!({"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "required": ["n"], "properties": {"n": {"$ref": "#/$defs/n"}}}}}),
            "no value",
        ),
        refused("nowhere", json!({"$ref": "#/$defs/nowhere"}), "nowhere"),
        refused("another document", json!({"$ref": "https://example.com/schema.json"}), "example.com"),
        refused("a file", json!({"$ref": "file:///etc/passwd"}), "passwd"),
        refused("as a number", json!({"$ref": 7}), "$ref"),
        refused("bad escape", json!({"$ref": "#/~2"}), "~2"),
    ];
    let doubling: serde_json::Map<String, Value> = (0..40)
        .map(|i| {
            let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
            (format!("d{i}"), json!({"type": "array", "prefixItems": [next, next], "items": false, "minItems": 2}))
        })
        .chain([("d40".to_owned(), json!({"type": "null"}))])
        .collect();
    all.push(accepted("2^40 by references", json!({"$ref": "#/$defs/d0", "$defs": doubling})));
    let any_of: serde_json::Map<String, Value> = (0..40)
        .map(|i| {
            (
                format!("d{i}"),
                json!({"anyOf": [{"$ref": format!("#/$defs/d{}", i + 1)}, {"$ref": format!("#/$defs/d{}", i + 1)}]}),
            )
        })
        .chain([("d40".to_owned(), json!({"type": "null"}))])
        .collect();
    let one_of = any_of.iter().map(|(key, schema)| {
        let alternatives =
            schema.get("anyOf").map(|list| json!({"oneOf": [list[0], {"$ref": list[1]["$ref"], "title": "x"}]}));
        (key.clone(), alternatives.unwrap_or_else(|| schema.clone()))
    });
    let one_of: serde_json::Map<String, Value> = one_of.collect();
    all.push(accepted("2^40 by anyOf", json!({"$ref": "#/$defs/d0", "$defs": any_of})));
    all.push(refused("2^40 by oneOf", json!({"$ref": "#/$defs/d0", "$defs": one_of}), "steps of combining"));
    all
}

fn sizes() -> Vec<Attempt> {
    let big = 10u64.pow(15);
    vec![
        refused("minLength 10^15", json!({"type": "string", "minLength": big}), "characters of a string"),
        accepted("maxLength 2^64-1", json!({"type": "string", "maxLength": u64::MAX})),
        refused(
            "minItems 10^15",
            json!({"type": "array", "items": {"type": "null"}, "minItems": big}),
            "items of an array",
        ),
        accepted(
            "maxItems 10^6 of strings of 10^6",
            json!({"type": "array", "maxItems": 1_000_000, "items": {"type": "string", "maxLength": 1_000_000}}),
        ),
        accepted(
            "minItems 10^5 of strings of 10^5",
            json!({"type": "array", "minItems": 100_000, "items": {"type": "string", "minLength": 100_000}}),
        ),
        refused("const beyond 64 bits", json!({"enum": [1, 1e300]}), "64 bits"),
        run("const of 20 digits", "{\"const\": 18446744073709551617}").refused("18446744073709551617"),
        refused(
            "10,000 properties",
            json!({"type": "object", "properties": (0..10_000).map(|i| (format!("p{i}"), json!({}))).collect::<serde_json::Map<_, _>>()}),
            "properties of one object",
        ),
        refused(
            "enum of 10,000 objects",
            json!({"enum": (0..9_999).map(|i| json!({"a": i, "b": [i]})).collect::<Vec<_>>()}),
            "values of constants",
        ),
        run("number of 10,000 digits", format!("{{\"const\": {}}}", "9".repeat(10_000))).refused("s.json"),
        refused(
            "enum of 300,000",
            json!({"enum": (0..300_000).map(|i| format!("value {i}")).collect::<Vec<_>>()}),
            "s.json",
        ),
        refused("const of 3 MB", json!({"const": "x".repeat(3 << 20)}), "s.json"),
        refused(
            "property name of 3 MB",
            json!({"type": "object", "additionalProperties": false, "properties": {("x".repeat(3 << 20)): {"type": "null"}}}),
            "s.json",
        ),
        run("20 MB", format!("{{\"const\": \"{}\"}}", "x".repeat(20 << 20))).refused("bytes"),
    ]
}
