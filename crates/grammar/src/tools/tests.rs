//! Tests of the conversion against an independent validator, and of registries.

use std::path::PathBuf;

use crate::{Grammar, GrammarLimits};
use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value, json};

use super::*;

fn validator(schema: &Value) -> jsonschema::Validator {
    jsonschema::options()
        .with_draft(jsonschema::Draft::Draft202012)
        .should_validate_formats(true)
        .build(schema)
        .unwrap_or_else(|error| panic!("{error}: {schema}"))
}

fn grammar_of(schema: &Value) -> Grammar {
    let gbnf = schema_to_gbnf(schema, &SchemaOptions::default()).unwrap_or_else(|error| panic!("{error}: {schema}"));
    Grammar::parse(&gbnf, "root", &GrammarLimits::default()).unwrap()
}

fn refusal(schema: &Value) -> SchemaError {
    match schema_to_gbnf(schema, &SchemaOptions::default()) {
        Err(error) => error,
        Ok(gbnf) => panic!("accepted: {schema}\n{gbnf}"),
    }
}

fn derive(grammar: &Grammar, rng: &mut ChaCha8Rng, soft: usize) -> Option<String> {
    // Often the first way and small ranges, so that ASCII and short texts are frequent too.
    let style = rng.random_range(0..3);
    grammar.derive(
        &mut |ways| match style {
            0 => rng.random_range(0..ways),
            1 => rng.random_range(0..ways.min(100)),
            _ => rng.random_range(0..ways.min(2)),
        },
        soft,
        1 << 16,
    )
}

/// `yes` match the grammar and the schema, `no` match neither the schema nor the grammar, `narrow` match the schema
/// but are left out of the grammar on purpose.
fn check(schema: &Value, yes: &[&str], no: &[&str], narrow: &[&str]) {
    let grammar = grammar_of(schema);
    let validator = validator(schema);
    let valid = |text: &str| serde_json::from_str(text).is_ok_and(|value: Value| validator.is_valid(&value));
    for text in yes {
        assert!(valid(text), "the validator refuses {text} for {schema}");
        assert!(grammar.matches(text.as_bytes()), "{text} should match {schema}\n{}", grammar.text());
    }
    for text in no {
        assert!(!valid(text), "the validator takes {text} for {schema}");
        assert!(!grammar.matches(text.as_bytes()), "{text} should not match {schema}\n{}", grammar.text());
    }
    for text in narrow {
        assert!(valid(text), "the validator refuses {text} for {schema}");
        assert!(!grammar.matches(text.as_bytes()), "{text} should be left out of {schema}");
    }
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for _ in 0..200 {
        if let Some(text) = derive(&grammar, &mut rng, 60) {
            assert!(valid(&text), "derived {text} for {schema}");
            assert!(grammar.matches(text.as_bytes()));
        }
    }
}

#[test]
fn plain_types() {
    check(&json!({ "type": "null" }), &["null"], &["true", "", "nul"], &[" null"]);
    check(&json!({ "type": "boolean" }), &["true", "false"], &["null", "True", "1"], &[]);
    check(
        &json!({ "type": ["string", "null"], "maxLength": 2 }),
        &["null", "\"\"", "\"ab\""],
        &["\"abc\"", "1", "\"a", "nullnull"],
        &[],
    );
    check(&json!({ "type": ["integer", "number"] }), &["1", "1.5"], &["\"1\""], &["1e0"]);
}

#[test]
fn constants_are_written_once() {
    check(
        &json!({ "enum": ["on", "关", 1, 2.5, null, ["a", { "b": [] }], "on"] }),
        &["\"on\"", "\"关\"", "1", "2.5", "null", "[\"a\",{\"b\":[]}]"],
        &["\"off\"", "2", "[]", "\"on", "onn"],
        &["\"\\u006fn\"", "1.0", "[ \"a\",{\"b\":[]}]"],
    );
    check(
        &json!({ "const": "a\"b\\c\nd\u{1}\u{7f}é" }),
        &["\"a\\\"b\\\\c\\nd\\u0001\u{7f}é\""],
        &["\"a\"", "\"a\\\"b\\\\c\\nd\\u0002\u{7f}é\""],
        &[],
    );
    check(&json!({ "type": "string", "const": "x" }), &["\"x\""], &["x"], &[]);
}

#[test]
fn strings_count_characters_not_bytes_or_escapes() {
    let schema = json!({ "type": "string", "minLength": 2, "maxLength": 3 });
    check(
        &schema,
        &[
            "\"ab\"",
            "\"abc\"",
            "\"é語😀\"",
            "\"\\n\\\"\\\\\"",
            "\"\\u00e9\\u8A9E\"",
            "\"\\ud83d\\uDE00a\"",
            "\"\\ud7ffa\"",
            "\"\\ue000\\uFFFF\"",
            "\"\u{7f}\\/\"",
        ],
        &[
            "\"\"",
            "\"a\"",
            "\"abcd\"",
            "\"😀\"",
            "\"\\ud83d\\uDE00\"",
            "\"\\ud83da\"",
            "\"a\\udc00b\"",
            "\"\\ud83d\\ud83d\"",
            "\"a\nb\"",
            "\"a\tb\"",
            "\"\\x41a\"",
            "\"\\u12a\"",
            "\"ab",
            "ab",
        ],
        &[],
    );
    check(&json!({ "type": "string" }), &["\"\"", "\"any 語 length at all\""], &["\"a\"b\""], &[]);
    check(&json!({ "type": "string", "maxLength": 0 }), &["\"\""], &["\"a\""], &[]);
}

#[test]
fn integers_are_exact() {
    let bounds: [(i64, i64); 16] = [
        (0, 0),
        (0, 9),
        (0, 10),
        (1, 10),
        (5, 23),
        (7, 1000),
        (99, 101),
        (100, 999),
        (10, 99999),
        (123, 45678),
        (-1, 1),
        (-10, -1),
        (-40, 60),
        (-305, -17),
        (-1000, 1000),
        (2999, 3001),
    ];
    for (low, high) in bounds {
        let schema = json!({ "type": "integer", "minimum": low, "maximum": high });
        let grammar = grammar_of(&schema);
        for value in -1105..=1105_i64 {
            let expected = (low..=high).contains(&value);
            assert_eq!(grammar.matches(value.to_string().as_bytes()), expected, "{value} in {low}..={high}");
        }
        for value in [low - 1, low, low + 1, high - 1, high, high + 1, 12_345, 45_678, 45_679, 99_999, 100_000] {
            let expected = (low..=high).contains(&value);
            assert_eq!(grammar.matches(value.to_string().as_bytes()), expected, "{value} in {low}..={high}");
        }
        for text in ["", "-", "-0", "00", "01", "-01", "+1", "1.0", "1e0", " 1"] {
            assert!(!grammar.matches(text.as_bytes()), "{text:?} in {low}..={high}");
        }
    }
    check(
        &json!({ "type": "integer", "exclusiveMinimum": 2, "exclusiveMaximum": 5 }),
        &["3", "4"],
        &["2", "5"],
        &["3.0", "4e0"],
    );
    check(&json!({ "type": "integer", "minimum": 2.5, "maximum": 4.5 }), &["3", "4"], &["2", "5"], &[]);
    check(&json!({ "type": "integer", "exclusiveMinimum": 2.5, "maximum": 4.0 }), &["3", "4"], &["2", "5"], &[]);
    check(
        &json!({ "type": "integer" }),
        &["0", "-7", "999999999999999999", "-999999999999999999"],
        &["1.5", "--1", "01"],
        &["1000000000000000000", "-0"],
    );
    check(
        &json!({ "type": "integer", "minimum": i64::MIN, "maximum": u64::MAX }),
        &["0", "-5", "999999999999999999"],
        &[],
        &["9223372036854775807"],
    );
    assert!(matches!(
        refusal(&json!({ "type": "integer", "minimum": 3, "maximum": 2 })),
        SchemaError::Unsatisfiable { .. }
    ));
}

#[test]
fn numbers_keep_their_bounds() {
    check(
        &json!({ "type": "number", "minimum": 0, "exclusiveMaximum": 1 }),
        &["0", "0.0", "0.5", "0.999999"],
        &["1", "1.0", "-0.1", "2", "-1"],
        &["-0", "1e-3", "0.9999999"],
    );
    check(
        &json!({ "type": "number", "exclusiveMinimum": -2, "maximum": 3 }),
        &["-1.999999", "-1", "-0.5", "0", "3", "3.00", "2.9"],
        &["-2", "-2.0", "3.000001", "4", "-3"],
        &[],
    );
    check(
        &json!({ "type": "number", "exclusiveMinimum": 0 }),
        &["0.1", "0.000001", "7"],
        &["0", "0.0", "-1"],
        &["1e9"],
    );
    check(&json!({ "type": "number", "maximum": -5 }), &["-5", "-5.0", "-6.25"], &["-4.9", "0", "5"], &[]);
    check(&json!({ "type": "number", "minimum": 7, "maximum": 7 }), &["7", "7.0"], &["7.1", "6.9", "-7"], &[]);
    check(&json!({ "type": "number" }), &["0", "-1.5", "999999999.999999"], &[".5", "1.", "01"], &["1000000000"]);
    let open = json!({ "type": "number", "exclusiveMinimum": 7, "exclusiveMaximum": 7 });
    assert!(matches!(refusal(&open), SchemaError::Unsatisfiable { .. }));
    assert!(matches!(refusal(&json!({ "type": "number", "minimum": 0.5 })), SchemaError::Unsupported { .. }));
}

#[test]
fn arrays_count_items() {
    let item = json!({ "type": "integer", "minimum": 0, "maximum": 9 });
    check(
        &json!({ "type": "array", "items": item, "minItems": 2, "maxItems": 3 }),
        &["[1,2]", "[1,2,3]"],
        &["[]", "[1]", "[1,2,3,4]", "[1,2,]", "[,1,2]", "[1 2]"],
        &["[1, 2]"],
    );
    check(&json!({ "type": "array", "items": item, "maxItems": 1 }), &["[]", "[1]"], &["[1,2]"], &[]);
    check(&json!({ "type": "array", "items": item, "maxItems": 2 }), &["[]", "[1]", "[1,2]"], &["[1,2,3]"], &[]);
    check(&json!({ "type": "array", "items": item, "maxItems": 0 }), &["[]"], &["[1]"], &[]);
    check(&json!({ "type": "array", "items": item, "minItems": 1 }), &["[1]", "[1,2,3,4,5]"], &["[]"], &[]);
    check(&json!({ "type": "array", "items": item }), &["[]", "[1,2]"], &["[10]", "[1"], &[]);
    check(
        &json!({ "type": "array", "items": item, "maxItems": 1, "uniqueItems": true }),
        &["[]", "[4]"],
        &["[4,4]"],
        &[],
    );
}

#[test]
fn objects_have_their_members_in_order() {
    let digit = json!({ "type": "integer", "minimum": 0, "maximum": 9 });
    let object = |required: Value| {
        json!({
            "type": "object",
            "additionalProperties": false,
            "properties": { "a": digit, "b": digit, "c": digit },
            "required": required,
        })
    };
    check(
        &object(json!([])),
        &["{}", "{\"a\":1}", "{\"b\":1}", "{\"c\":1}", "{\"a\":1,\"c\":2}", "{\"a\":1,\"b\":2,\"c\":3}"],
        &["{,\"a\":1}", "{\"a\":1,}", "{\"a\":1\"b\":2}", "{\"d\":1}", "{\"a\":10}", "{\"a\"}", "{"],
        &["{\"b\":1,\"a\":2}", "{ }", "{\"a\": 1}"],
    );
    check(
        &object(json!(["b"])),
        &["{\"b\":1}", "{\"a\":1,\"b\":2}", "{\"b\":1,\"c\":2}", "{\"a\":1,\"b\":2,\"c\":3}"],
        &["{}", "{\"a\":1}", "{\"a\":1,\"c\":3}", "{\"b\":1,\"d\":1}"],
        &["{\"c\":1,\"b\":2}"],
    );
    check(
        &object(json!(["a", "b", "c"])),
        &["{\"a\":1,\"b\":2,\"c\":3}"],
        &["{}", "{\"a\":1,\"b\":2}", "{\"b\":2,\"c\":3}"],
        &[],
    );
    check(
        &object(json!(["c"])),
        &["{\"c\":3}", "{\"a\":1,\"c\":3}", "{\"b\":1,\"c\":3}"],
        &["{\"b\":2}", "{\"c\":3,}"],
        &[],
    );
    check(&json!({ "type": "object", "additionalProperties": false }), &["{}"], &["{\"a\":1}"], &["{ }"]);
    check(
        &json!({
            "type": "object", "additionalProperties": false, "required": ["a\"/~é"],
            "properties": { "a\"/~é": { "type": "null" } },
        }),
        &["{\"a\\\"/~é\":null}"],
        &["{}", "{\"a\":null}"],
        &[],
    );
}

#[test]
fn blanks_are_optional_where_asked_for() {
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["a"],
        "properties": { "a": { "type": "array", "items": { "type": "null" } }, "b": { "type": "null" } },
    });
    let options = SchemaOptions { whitespace: Whitespace::OptionalBlank, ..SchemaOptions::default() };
    let gbnf = schema_to_gbnf(&schema, &options).unwrap();
    let grammar = Grammar::parse(&gbnf, "root", &GrammarLimits::default()).unwrap();
    for text in ["{\"a\":[]}", "{\"a\": [null, null,null], \"b\": null}"] {
        assert!(grammar.matches(text.as_bytes()), "{text}");
    }
    for text in ["{\"a\":  []}", "{ \"a\":[]}", "{\"a\" :[]}"] {
        assert!(!grammar.matches(text.as_bytes()), "{text}");
    }
}

#[test]
fn caps_bound_what_the_schema_leaves_open() {
    let schema = json!({ "type": "array", "items": { "type": "string", "minLength": 1 } });
    let options = SchemaOptions { string_cap: Some(2), array_cap: Some(2), ..SchemaOptions::default() };
    let grammar =
        Grammar::parse(&schema_to_gbnf(&schema, &options).unwrap(), "root", &GrammarLimits::default()).unwrap();
    for text in ["[]", "[\"a\"]", "[\"ab\",\"cd\"]"] {
        assert!(grammar.matches(text.as_bytes()), "{text}");
    }
    for text in ["[\"\"]", "[\"abc\"]", "[\"a\",\"b\",\"c\"]"] {
        assert!(!grammar.matches(text.as_bytes()), "{text}");
    }
}

#[test]
fn patterns_become_json_text() {
    let pattern = |pattern: &str| json!({ "type": "string", "pattern": pattern });
    check(
        &pattern("^[A-Z][a-z]{1,3}(-[0-9]+)?$"),
        &["\"Ab\"", "\"Abcd-12\""],
        &["\"ab\"", "\"Abcde\"", "\"Ab-\"", "\"Ab\"\""],
        &["\"\\u0041b\""],
    );
    check(&pattern("^(a|bc|)x?$"), &["\"\"", "\"a\"", "\"bcx\"", "\"x\""], &["\"b\"", "\"xx\""], &[]);
    check(
        &pattern("^[^a-c]\\d\\w$"),
        &["\"z1_\"", "\"語0A\"", "\"\\n12\"", "\"\\\"12\"", "\"\\\\12\""],
        &["\"a1_\"", "\"zz_\"", "\"z1-\"", "\"z1\""],
        &["\"\\u000112\""],
    );
    check(&pattern("^.{2}$"), &["\"a語\"", "\"\\\"\\\\\""], &["\"a\"", "\"a\\nb\"", "\"abc\""], &[]);
    check(
        &pattern("^\\$\\.\\^\\/\\-[\\]\\\\-]$"),
        &["\"$.^/-]\"", "\"$.^/-\\\\\"", "\"$.^/--\""],
        &["\"$.^/-a\""],
        &[],
    );
    check(&pattern("^(?:ab)+?$"), &["\"ab\"", "\"abab\""], &["\"\"", "\"aba\""], &[]);
    check(&pattern("^\\x41[\\u00e9-\\u00EF]$"), &["\"Aé\"", "\"Aï\""], &["\"A\"", "\"AA\"", "\"Að\""], &[]);
    check(
        &pattern("^[^\\u0000-\\u001F\\u007F-\\u009F]{1,3}$"),
        &["\"a b\"", "\"客厅灯\"", "\"\\\"\""],
        &["\"\"", "\"\\n\"", "\"a\u{85}\"", "\"abcd\""],
        &[],
    );
    check(&pattern("^$"), &["\"\""], &["\"a\""], &[]);
    check(&pattern("^\\t[\\n-\\r]$"), &["\"\\t\\n\"", "\"\\t\\f\""], &["\"\\t\\t\""], &["\"\\t\\u000b\""]);
    check(
        &json!({ "type": "string", "pattern": "^[a-z]{2,4}$", "minLength": 1, "maxLength": 4 }),
        &["\"ab\"", "\"abcd\""],
        &["\"a\"", "\"abcde\""],
        &[],
    );
    for bad in [
        "abc",
        "^abc",
        "abc$",
        "^abc\\$",
        "^a|b$",
        "^(?=a)b$",
        "^(a)\\1$",
        "^\\bword$",
        "^\\s+$",
        "^\\p{L}$",
        "^[[:alpha:]]$",
        "^[a&&b]$",
        "^[]$",
        "^[z-a]$",
        "^[a-\\d]$",
        "^(a?)*$",
        "^a**$",
        "^*a$",
        "^(a$",
        "^a)$",
        "^a{2$",
        "^a{3,2}$",
        "^a{99999}$",
        "^[a$",
        "^a^b$",
        "^\\x4$",
        "^\\uD83D$",
        "^[\\x00]$",
    ] {
        let error = refusal(&pattern(bad));
        assert!(matches!(error, SchemaError::Pattern { .. }), "{bad}: {error}");
    }
    let deep = format!("^{}a{}$", "(".repeat(1000), ")".repeat(1000));
    assert!(matches!(refusal(&pattern(&deep)), SchemaError::Pattern { .. }));
    let deep = format!("^{}a{}$", "(".repeat(400), ")".repeat(400));
    assert!(matches!(refusal(&pattern(&deep)), SchemaError::Pattern { .. }));
}

#[test]
fn formats() {
    let format = |format: &str| json!({ "type": "string", "format": format });
    check(
        &format("date"),
        &["\"2024-02-29\"", "\"2000-02-29\"", "\"2026-11-30\"", "\"0001-12-31\"", "\"1999-01-01\""],
        &["\"2023-02-29\"", "\"1900-02-29\"", "\"2026-11-31\"", "\"2026-13-01\"", "\"2026-00-10\"", "\"2026-1-1\""],
        &[],
    );
    check(
        &format("time"),
        &["\"00:00:00Z\"", "\"23:59:59.123+05:30\"", "\"12:30:00-08:00\""],
        &["\"24:00:00Z\"", "\"12:60:00Z\"", "\"12:30Z\"", "\"12:30:00\""],
        &["\"12:30:00z\""],
    );
    check(
        &format("date-time"),
        &["\"2026-11-29T12:00:00Z\"", "\"2024-02-29T23:59:59.5+01:00\""],
        &["\"2026-11-29 12:00:00\"", "\"2026-02-30T12:00:00Z\"", "\"2026-11-29\""],
        &["\"2026-11-29t12:00:00Z\""],
    );
    check(
        &format("uuid"),
        &["\"123e4567-e89b-12d3-a456-426614174000\""],
        &["\"123e4567e89b12d3a456426614174000\"", "\"123e4567-e89b-12d3-a456-42661417400\""],
        &[],
    );
    check(
        &format("ipv4"),
        &["\"0.0.0.0\"", "\"255.249.100.9\"", "\"192.168.1.10\""],
        &["\"256.1.1.1\"", "\"1.2.3\"", "\"01.2.3.4\"", "\"1.2.3.4.5\""],
        &[],
    );
    check(
        &format("email"),
        &["\"a.b+c@mail.example.org\""],
        &["\"a@\"", "\"@b.cd\"", "\"a b@c.de\""],
        &["\"a!b@c.de\""],
    );
    for name in ["ipv6", "uri", "hostname", "regex", "duration", "nonsense"] {
        let error = refusal(&format(name)).to_string();
        assert!(error.contains("'format'") && error.contains(name), "{error}");
    }
    // A length that the format keeps by itself is no contradiction.
    check(&json!({ "type": "string", "format": "date", "maxLength": 10 }), &["\"2024-02-29\""], &[], &[]);
    assert!(matches!(
        refusal(&json!({ "type": "string", "format": "date", "maxLength": 9 })),
        SchemaError::Unsupported { keyword, .. } if keyword == "maxLength"
    ));
}

#[test]
fn one_of_needs_branches_that_cannot_both_fit() {
    check(
        &json!({ "oneOf": [{ "type": "string", "maxLength": 3 }, { "type": "integer", "minimum": 1, "maximum": 5 }] }),
        &["\"abc\"", "3"],
        &["\"abcd\"", "6", "null"],
        &[],
    );
    check(&json!({ "oneOf": [{ "enum": ["a", "b"] }, { "const": "c" }] }), &["\"a\"", "\"c\""], &["\"d\""], &[]);
    let branch = |kind: Value, extra: &str| {
        json!({
            "type": "object", "additionalProperties": false, "required": ["kind", extra],
            "properties": { "kind": kind, extra: { "type": "boolean" } },
        })
    };
    check(
        &json!({ "oneOf": [{ "$ref": "#/$defs/x" }, branch(json!({ "enum": ["y", "z"] }), "b")],
                 "$defs": { "x": branch(json!({ "const": "x" }), "a") } }),
        &["{\"kind\":\"x\",\"a\":true}", "{\"kind\":\"z\",\"b\":false}"],
        &["{\"kind\":\"x\",\"b\":true}", "{\"kind\":\"w\",\"a\":true}"],
        &[],
    );
    for overlapping in [
        json!({ "oneOf": [{ "type": "integer" }, { "type": "number" }] }),
        json!({ "oneOf": [{ "type": "string" }, { "const": "a" }] }),
        json!({ "oneOf": [{ "enum": [1, 2] }, { "enum": [2.0, 3] }] }),
        json!({ "oneOf": [{ "const": [1] }, { "const": [1.0] }] }),
        json!({ "oneOf": [branch(json!({ "const": "x" }), "a"), branch(json!({ "type": "string" }), "b")] }),
        json!({ "oneOf": [{ "type": "null" }, { "anyOf": [{ "type": "null" }, { "type": "string" }] }] }),
    ] {
        assert!(matches!(refusal(&overlapping), SchemaError::Overlap { first: 0, second: 1, .. }), "{overlapping}");
    }
    check(
        &json!({ "anyOf": [{ "type": "integer", "minimum": 0, "maximum": 9 }, { "type": "number", "minimum": 0, "maximum": 5 }] }),
        &["7", "4.5"],
        &["7.5", "10"],
        &[],
    );
    check(&json!({ "allOf": [{ "type": "boolean" }], "description": "wrapped" }), &["true"], &["1"], &[]);
}

#[test]
fn references() {
    check(
        &json!({
            "type": "object", "additionalProperties": false, "required": ["a", "b"],
            "properties": { "a": { "$ref": "#/$defs/p~1q" }, "b": { "$ref": "#/properties/a" } },
            "$defs": { "p/q": { "$ref": "#/definitions/d", "description": "twice" } },
            "definitions": { "d": { "const": 1 } },
        }),
        &["{\"a\":1,\"b\":1}"],
        &["{\"a\":1}", "{\"a\":1,\"b\":2}"],
        &[],
    );
    let cycles = [
        json!({ "type": "array", "items": { "$ref": "#" } }),
        json!({ "$ref": "#/$defs/a", "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } } }),
        json!({ "type": "object", "additionalProperties": false, "properties": { "next": { "$ref": "#/$defs/node" } },
                "$defs": { "node": { "type": "object", "additionalProperties": false,
                                     "properties": { "next": { "$ref": "#/$defs/node" } } } } }),
        json!({ "oneOf": [{ "$ref": "#/$defs/a" }, { "type": "null" }],
                "$defs": { "a": { "oneOf": [{ "$ref": "#/$defs/a" }, { "type": "string" }] } } }),
    ];
    for schema in cycles {
        assert!(matches!(refusal(&schema), SchemaError::Cycle { .. }), "{schema}");
    }
    for reference in ["#/$defs/none", "other.json", "https://example.org/x", "#anchor", "#/$defs/a%20b"] {
        let schema = json!({ "$ref": reference, "$defs": {} });
        assert!(matches!(refusal(&schema), SchemaError::UnknownReference { .. }), "{reference}");
    }
}

/// Whatever has no exact grammar is refused by keyword and place.
#[test]
fn refusals_name_keyword_and_place() {
    let inside =
        |schema: Value| json!({ "type": "object", "additionalProperties": false, "properties": { "a/b": schema } });
    for (schema, keyword) in [
        (json!({ "type": "string", "contentEncoding": "base64" }), "contentEncoding"),
        (json!({ "type": "integer", "multipleOf": 5 }), "multipleOf"),
        (json!({ "type": "array", "items": { "type": "null" }, "uniqueItems": true }), "uniqueItems"),
        (json!({ "type": "array", "items": { "type": "null" }, "contains": {} }), "contains"),
        (json!({ "type": "array", "prefixItems": [] }), "prefixItems"),
        (json!({ "type": "array" }), "(no items)"),
        (json!({ "type": "object" }), "(no additionalProperties)"),
        (json!({ "type": "object", "additionalProperties": true }), "additionalProperties"),
        (json!({ "type": "object", "additionalProperties": { "type": "null" } }), "additionalProperties"),
        (json!({ "type": "object", "additionalProperties": false, "patternProperties": {} }), "patternProperties"),
        (json!({ "type": "object", "additionalProperties": false, "minProperties": 1 }), "minProperties"),
        (json!({ "not": { "type": "null" } }), "not"),
        (json!({ "if": {}, "then": {} }), "if"),
        (json!({ "allOf": [{ "type": "null" }, { "type": "null" }] }), "allOf"),
        (json!({}), "(no type)"),
        (json!(true), "true"),
        (json!({ "type": "string", "minimum": 1 }), "minimum"),
        (json!({ "enum": ["a"], "minLength": 1 }), "minLength"),
        (json!({ "$ref": "#/properties/x", "maxLength": 1 }), "maxLength"),
        (json!({ "type": "string", "nullable": true }), "nullable"),
        (json!({ "anyOf": [{ "type": "null" }], "properties": {} }), "properties"),
    ] {
        match refusal(&inside(schema.clone())) {
            SchemaError::Unsupported { pointer, keyword: named, .. } => {
                assert_eq!((pointer.as_str(), named.as_str()), ("/properties/a~1b", keyword), "{schema}");
            }
            error => panic!("{schema}: {error}"),
        }
    }
    for schema in [
        json!({ "type": "text" }),
        json!({ "type": ["string", "string"] }),
        json!({ "type": "string", "minLength": -1 }),
        json!({ "type": "string", "minLength": 1.5 }),
        json!({ "type": "string", "maxLength": "3" }),
        json!({ "type": "string", "pattern": 3 }),
        json!({ "type": "integer", "minimum": "0" }),
        json!({ "enum": [] }),
        json!({ "enum": "a" }),
        json!({ "anyOf": [] }),
        json!({ "type": "object", "additionalProperties": false, "required": ["a", "a"], "properties": { "a": { "const": 1 } } }),
        json!({ "type": "object", "additionalProperties": false, "required": "a" }),
        json!({ "type": "object", "additionalProperties": false, "properties": [] }),
        json!(3),
    ] {
        assert!(matches!(refusal(&inside(schema.clone())), SchemaError::Malformed { .. }), "{schema}");
    }
    for schema in [
        json!(false),
        json!({ "type": "string", "minLength": 3, "maxLength": 2 }),
        json!({ "type": "array", "items": { "type": "null" }, "minItems": 3, "maxItems": 2 }),
        json!({ "type": "integer", "enum": ["a"] }),
        json!({ "type": "object", "additionalProperties": false, "required": ["a"] }),
    ] {
        assert!(matches!(refusal(&inside(schema.clone())), SchemaError::Unsatisfiable { .. }), "{schema}");
    }
    let long = refusal(&inside(json!({ "type": "string", "maxLength": 1_000_000 })));
    assert!(matches!(long, SchemaError::TooLarge { value: 1_000_000, max: 10_000, .. }), "{long}");
    let mut deep = json!({ "type": "null" });
    for _ in 0..100 {
        deep = json!({ "type": "array", "items": deep });
    }
    assert!(matches!(refusal(&deep), SchemaError::TooLarge { .. }));
    assert!(matches!(
        refusal(&json!({ "$schema": "http://json-schema.org/draft-04/schema#", "type": "null" })),
        SchemaError::Unsupported { keyword, .. } if keyword == "$schema"
    ));
}

#[test]
fn open_objects_can_be_narrowed_on_request() {
    let schema = json!({ "type": "object", "properties": { "a": { "type": "null" } }, "required": ["a"] });
    let options = SchemaOptions { open_objects: OpenObjects::DeclaredOnly, ..SchemaOptions::default() };
    let gbnf = schema_to_gbnf(&schema, &options).unwrap();
    let grammar = Grammar::parse(&gbnf, "root", &GrammarLimits::default()).unwrap();
    assert!(grammar.matches(b"{\"a\":null}"));
    assert!(!grammar.matches(b"{\"a\":null,\"b\":1}"));
}

// ------------------------------------------------------------------ random schemas

fn value_schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!({ "type": "null" })),
        Just(json!({ "type": "boolean" })),
        (-200..200_i64, 0..5000_i64)
            .prop_map(|(low, width)| json!({ "type": "integer", "minimum": low, "maximum": low + width })),
        (any::<i32>(), any::<bool>()).prop_map(|(bound, upper)| {
            json!({ "type": "integer", (if upper { "exclusiveMaximum" } else { "exclusiveMinimum" }): bound })
        }),
        (-30..30_i64, 1..40_i64, any::<bool>(), any::<bool>()).prop_map(|(low, width, open_low, open_high)| {
            json!({
                "type": "number",
                (if open_low { "exclusiveMinimum" } else { "minimum" }): low,
                (if open_high { "exclusiveMaximum" } else { "maximum" }): low + width,
            })
        }),
        (0..4_u32, 0..9_u32)
            .prop_map(|(min, more)| json!({ "type": "string", "minLength": min, "maxLength": min + more })),
        Just(json!({ "type": "string" })),
        prop::sample::select(vec!["date", "time", "date-time", "uuid", "ipv4", "email"])
            .prop_map(|format| json!({ "type": "string", "format": format })),
        prop::sample::select(vec![
            "^[a-z]+$",
            "^[^a-z]{2}$",
            "^(\\d{1,3}|x.?)*y$",
            "^\\w+([.-]\\w+)*$",
            "^.{0,5}$",
            "^[\"\\\\\\n]{1,3}$",
            "^([^\\d\\w]|語)$",
        ])
        .prop_map(|pattern| json!({ "type": "string", "pattern": pattern })),
        prop::collection::vec(".{0,6}", 1..4).prop_map(|values| json!({ "enum": values })),
        // The validator takes numbers closer than f64::EPSILON for equal, so constants next to 0 tell nothing.
        any::<f64>()
            .prop_filter("JSON has no such numbers", |x| x.is_finite() && (*x == 0.0 || x.abs() > 1e-6))
            .prop_map(|x| json!({ "const": x })),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            (inner.clone(), 0..3_u32, prop::option::of(0..3_u32)).prop_map(|(items, min, more)| {
                let mut schema = json!({ "type": "array", "items": items, "minItems": min });
                if let Some(more) = more {
                    schema["maxItems"] = json!(min + more);
                }
                schema
            }),
            prop::collection::vec((".{0,5}", inner.clone(), any::<bool>()), 0..5).prop_map(|members| {
                let mut properties = Map::new();
                let mut required = Vec::new();
                for (name, schema, is_required) in members {
                    if properties.insert(name.clone(), schema).is_none() && is_required {
                        required.push(name);
                    }
                }
                json!({ "type": "object", "additionalProperties": false, "properties": properties, "required": required })
            }),
            prop::collection::vec(inner.clone(), 1..4).prop_map(|branches| json!({ "anyOf": branches })),
            prop::collection::vec(inner, 1..4).prop_map(|branches| json!({ "oneOf": branches })),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The law: what a grammar produces is JSON and valid. Also where `oneOf` could match twice, which the validator
    /// would notice.
    #[test]
    fn derivations_validate(schema in value_schema(), seed in any::<u64>()) {
        let gbnf = match schema_to_gbnf(&schema, &SchemaOptions::default()) {
            Ok(gbnf) => gbnf,
            Err(SchemaError::Overlap { .. } | SchemaError::Unsatisfiable { .. }) => return Ok(()),
            // Numbers that do not survive being written and read.
            Err(SchemaError::Unsupported { keyword, .. }) if keyword == "const" => return Ok(()),
            Err(error) => return Err(TestCaseError::fail(format!("{error}: {schema}"))),
        };
        let grammar = Grammar::parse(&gbnf, "root", &GrammarLimits::default()).unwrap();
        let validator = validator(&schema);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        for _ in 0..8 {
            let Some(text) = derive(&grammar, &mut rng, 80) else { continue };
            let value: Value = match serde_json::from_str(&text) {
                Ok(value) => value,
                Err(error) => return Err(TestCaseError::fail(format!("{error}: {text}\n{schema}"))),
            };
            if let Err(error) = validator.validate(&value) {
                return Err(TestCaseError::fail(format!("{error}: {text}\n{schema}")));
            }
            prop_assert!(grammar.matches(text.as_bytes()), "{}", text);
        }
    }

    /// Any JSON as a schema is a grammar or an error.
    #[test]
    fn any_json_is_a_grammar_or_an_error(
        members in prop::collection::vec((
            prop::sample::select(vec![
                "type", "enum", "const", "$ref", "$defs", "oneOf", "anyOf", "allOf", "properties", "required", "items",
                "additionalProperties", "minItems", "maxItems", "minLength", "maxLength", "pattern", "format",
                "minimum", "maximum", "$schema", "x",
            ]),
            prop::sample::select(vec![
                json!("string"), json!("object"), json!("array"), json!(["integer", "null"]), json!(0), json!(-1),
                json!(1e300), json!(2.5), json!(u64::MAX), json!([]), json!({}), json!(false), json!(null),
                json!({ "type": "null" }), json!([{ "type": "null" }]), json!({ "a": { "type": "string" } }),
                json!(["a"]), json!("#"), json!("#/$defs/a"), json!("^a*$"), json!("date"),
            ]),
        ), 0..6),
    ) {
        let schema = Value::Object(members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect());
        if let Ok(gbnf) = schema_to_gbnf(&schema, &SchemaOptions::default()) {
            prop_assert!(Grammar::parse(&gbnf, "root", &GrammarLimits::default()).is_ok());
        }
    }
}

// ------------------------------------------------------------------ registries

fn data() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../gates/grammars")
}

fn load(name: &str) -> ToolRegistry {
    ToolRegistry::load(&data().join(name), &SchemaOptions::default()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Every registry beside this repository's gates produces valid calls only.
#[test]
fn shipped_registries_produce_valid_calls() {
    for (name, tools) in [("home.toml", 2), ("files.toml", 3), ("calendar.toml", 4), ("arithmetic.toml", 3)] {
        let registry = load(name);
        assert_eq!(registry.tools().len(), tools, "{name}");
        let mut called = std::collections::HashSet::new();
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        for _ in 0..300 {
            let text = derive(registry.grammar(), &mut rng, 200).unwrap();
            let call = registry.parse_call(&text).unwrap_or_else(|error| panic!("{name}: {error}: {text}"));
            assert!(registry.tool(&call.tool).is_some());
            called.insert(call.tool);
        }
        assert_eq!(called.len(), tools, "{name}: {called:?}");
    }
}

#[test]
fn shipped_grammars_and_schemas() {
    let read = |name: &str| std::fs::read_to_string(data().join(name)).unwrap();
    let json = Grammar::parse(&read("json.gbnf"), "root", &GrammarLimits::default()).unwrap();
    for text in ["{}", "{\"a\": [1, -2.5, null], \"b\":\"\\ud83d\\ude00語\"}", "[true,false]", "\"\""] {
        assert!(json.matches(text.as_bytes()), "{text}");
    }
    for text in ["{\"a\":}", "{a:1}", "[1,]", "01", "\"\\ud83d\"", "\"\n\""] {
        assert!(!json.matches(text.as_bytes()), "{text}");
    }
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    for _ in 0..300 {
        let text = derive(&json, &mut rng, 100).unwrap();
        assert!(serde_json::from_str::<Value>(&text).is_ok(), "{text}");
    }
    let answer = Grammar::parse(&read("answer.gbnf"), "root", &GrammarLimits::default()).unwrap();
    assert!(answer.matches("The kitchen light is set to 30%.".as_bytes()));
    assert!(answer.matches("客厅灯已打开。".as_bytes()));
    assert!(!answer.matches("The kitchen light is on".as_bytes()));

    let candidate: Value = serde_json::from_str(&read("home-candidate.schema.json")).unwrap();
    check(
        &candidate,
        &[
            "{\"schema_version\":\"model_output.v1\",\"intent\":\"control_device\",\"room\":\"living_room\",\"device_alias\":\"客厅灯\",\"device_type\":\"light\",\"action\":\"set_brightness\",\"params\":{\"brightness\":30}}",
        ],
        &[
            "{}",
            "{\"schema_version\":\"model_output.v2\",\"intent\":\"unknown\",\"room\":\"unknown\",\"device_type\":\"unknown\",\"action\":\"unknown\",\"params\":{}}",
            "{\"schema_version\":\"model_output.v1\",\"intent\":\"unknown\",\"room\":\"unknown\",\"device_type\":\"unknown\",\"action\":\"unknown\",\"params\":{},\"device_id\":\"x\"}",
            "{\"schema_version\":\"model_output.v1\",\"intent\":\"unknown\",\"room\":\"unknown\",\"device_type\":\"unknown\",\"action\":\"unknown\",\"params\":{\"brightness\":256}}",
        ],
        &[],
    );
}

#[test]
fn calls_are_told_from_other_text() {
    let registry = load("home.toml");
    let good = "{\"tool\":\"home_status\",\"arguments\":{\"room\":\"kitchen\",\"device_types\":[\"light\"]}}";
    let call = registry.parse_call(good).unwrap();
    assert_eq!(call.tool, "home_status");
    assert_eq!(call.arguments["room"], "kitchen");
    assert!(registry.grammar().matches(good.as_bytes()));
    for bad in [
        "",
        "{}",
        "{\"tool\":\"home_status\"}",
        "{\"tool\":\"home_status\",\"arguments\":{}}",
        "{\"tool\":\"rm\",\"arguments\":{\"room\":\"kitchen\"}}",
        "{\"tool\":\"home_status\",\"arguments\":{\"room\":\"kitchen\",\"force\":true}}",
        "{\"tool\":\"home_status\",\"arguments\":{\"room\":\"kitchen\"},\"execute\":true}",
        "{\"tool\":\"home_status\",\"arguments\":{\"room\":\"garage\"}}",
        "{\"tool\":\"home_status\",\"arguments\":{\"room\":\"kitchen\"}",
        "{\"tool\":\"home_status\",\"arguments\":{\"room\":\"kitchen\"}} and more",
    ] {
        assert!(registry.parse_call(bad).is_err(), "{bad}");
        assert!(!registry.grammar().matches(bad.as_bytes()), "{bad}");
    }
}

/// Definitions of one tool do not leak into another's.
#[test]
fn definitions_stay_with_their_tool() {
    let tool = |name: &str, value: i64| {
        json!({
            "name": name, "description": "d",
            "parameters": {
                "type": "object", "additionalProperties": false, "required": ["x", "y", "z"],
                "properties": { "x": { "$ref": "#/$defs/v" }, "y": { "$ref": "#/definitions/v" }, "z": { "$ref": "#/properties/x" } },
                "$defs": { "v": { "const": value } },
                "definitions": { "v": { "type": "array", "items": { "$ref": "#/$defs/v" }, "minItems": 1, "maxItems": 1 } },
            },
        })
    };
    let text = json!({ "tools": [tool("one", 1), tool("two", 2)] }).to_string();
    let registry = ToolRegistry::from_json(&text, &SchemaOptions::default()).unwrap();
    for (text, fits) in [
        ("{\"tool\":\"one\",\"arguments\":{\"x\":1,\"y\":[1],\"z\":1}}", true),
        ("{\"tool\":\"two\",\"arguments\":{\"x\":2,\"y\":[2],\"z\":2}}", true),
        ("{\"tool\":\"one\",\"arguments\":{\"x\":2,\"y\":[1],\"z\":1}}", false),
        ("{\"tool\":\"two\",\"arguments\":{\"x\":2,\"y\":[1],\"z\":2}}", false),
    ] {
        assert_eq!(registry.parse_call(text).is_ok(), fits, "{text}");
        assert_eq!(registry.grammar().matches(text.as_bytes()), fits, "{text}");
    }
}

#[test]
fn registries_that_are_refused() {
    let from = |value: Value| ToolRegistry::from_json(&value.to_string(), &SchemaOptions::default());
    let tool = |name: &str| json!({ "name": name, "description": "d" });
    assert!(from(json!({ "tools": [tool("a"), tool("b")] })).is_ok());
    assert!(matches!(from(json!({ "tools": [] })), Err(RegistryError::Empty)));
    assert!(matches!(from(json!({ "tools": [tool("a"), tool("a")] })), Err(RegistryError::DuplicateTool { .. })));
    for name in ["", "a b", "é", "a/b", &"x".repeat(65)] {
        assert!(matches!(from(json!({ "tools": [tool(name)] })), Err(RegistryError::BadName { .. })), "{name}");
    }
    assert!(matches!(from(json!({ "tools": [tool("a")], "extra": 1 })), Err(RegistryError::Json(_))));
    let extra = json!({ "name": "a", "description": "d", "execute": true });
    assert!(matches!(from(json!({ "tools": [extra] })), Err(RegistryError::Json(_))));
    assert!(matches!(from(json!({ "tools": [{ "name": "a" }] })), Err(RegistryError::Json(_))));
    let with =
        |parameters: Value| from(json!({ "tools": [{ "name": "a", "description": "d", "parameters": parameters }] }));
    for parameters in [json!({ "type": "string" }), json!({}), json!({ "type": "object" }), json!(3)] {
        match with(parameters.clone()) {
            Err(RegistryError::Parameters { tool, .. }) => assert_eq!(tool, "a"),
            other => panic!("{parameters}: {other:?}"),
        }
    }
    let toml = "[[tools]]\nname = 'a'\ndescription = 'd'\ncommand = 'x'\n";
    assert!(matches!(ToolRegistry::from_toml(toml, &SchemaOptions::default()), Err(RegistryError::Toml(_))));
    let missing = ToolRegistry::load(&data().join("none.toml"), &SchemaOptions::default());
    assert!(matches!(missing, Err(RegistryError::Read { .. })));
    let other = ToolRegistry::load(&data().join("json.gbnf"), &SchemaOptions::default());
    assert!(matches!(other, Err(RegistryError::UnknownFormat { .. })));
}
