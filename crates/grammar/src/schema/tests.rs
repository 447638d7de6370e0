//! Schemas as a whole, against an independent validator and hand-written texts.

use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value, json};

use super::{Exactness, Mode, Schema, SchemaError, SchemaErrorKind, SchemaOptions, Verdict, Whitespace};
use crate::gbnf::{GrammarState, TokenRole, TokenTrie};
use crate::matching::TokenMatcher;

/// One token for each byte.
fn bytes() -> &'static TokenTrie {
    static BYTES: std::sync::OnceLock<TokenTrie> = std::sync::OnceLock::new();
    BYTES.get_or_init(|| {
        let all: Vec<[u8; 1]> = (0..=255).map(|b| [b]).collect();
        TokenTrie::build(all.iter().map(|b| TokenRole::Text(b)).chain([TokenRole::End])).unwrap()
    })
}

fn open() -> SchemaOptions {
    SchemaOptions::default().mode(Mode::Open)
}

fn parse(schema: &Value, options: &SchemaOptions) -> Schema {
    Schema::parse(&schema.to_string(), options).unwrap_or_else(|error| panic!("{error}: {schema}"))
}

fn refusal(schema: &Value) -> SchemaError {
    let error = Schema::parse(&schema.to_string(), &SchemaOptions::default()).err();
    let error = error.unwrap_or_else(|| panic!("accepted: {schema}"));
    // What one mode refuses, the other does.
    assert!(Schema::parse(&schema.to_string(), &open()).is_err(), "{schema}");
    error
}

fn validator(schema: &Value) -> jsonschema::Validator {
    jsonschema::options()
        .should_validate_formats(true)
        .build(schema)
        .unwrap_or_else(|error| panic!("{error}: {schema}"))
}

/// A text along the masks; `None` where it gets too long. What closes comes more often from `soft` bytes on.
fn walk(schema: &Schema, rng: &mut ChaCha8Rng, soft: usize) -> Option<(String, Verdict)> {
    let mut matcher = schema.matcher(bytes()).unwrap();
    loop {
        let text = matcher.text().to_vec();
        let over = text.len() > soft;
        let ends = matcher.state() == GrammarState::MayEnd && (over || rng.random_range(0..4) == 0);
        if ends || matcher.state() == GrammarState::Complete {
            let text = String::from_utf8(text).unwrap();
            return Some((text, matcher.verdict().unwrap()));
        }
        if text.len() > soft + 4_000 {
            return None;
        }
        let mask = matcher.mask().unwrap();
        let all: Vec<u32> = mask.iter().filter(|&token| token < 256).collect();
        if all.is_empty() && matcher.state() == GrammarState::MayEnd {
            // Only an end can follow.
            let text = String::from_utf8(text).unwrap();
            return Some((text, matcher.verdict().unwrap()));
        }
        assert!(!all.is_empty(), "a dead end behind {:?}", String::from_utf8_lossy(&text));
        let closing: Vec<u32> =
            all.iter().copied().filter(|&token| b"\"}]".contains(&u8::try_from(token).unwrap_or(0))).collect();
        let from = if !closing.is_empty() && (over || rng.random_range(0..3) == 0) { &closing } else { &all };
        let token = from[rng.random_range(0..from.len())];
        matcher.accept(token).unwrap();
    }
}

/// `yes` come out in both modes, `open` in open mode only though they are valid, `narrow` are valid and come out in
/// neither, `no` are invalid and come out in neither. The other crate agrees, and judges random texts.
fn check(schema: &Value, yes: &[&str], no: &[&str], only_open: &[&str], narrow: &[&str]) {
    let judge = validator(schema);
    let valid = |text: &str| serde_json::from_str(text).is_ok_and(|value: Value| judge.is_valid(&value));
    let (declared, open) = (parse(schema, &SchemaOptions::default()), parse(schema, &open()));
    for text in yes.iter().chain(only_open).chain(narrow) {
        assert!(valid(text), "the other validator refuses {text} for {schema}");
        assert_eq!(open.judge(text), Verdict::Valid, "{text} for {schema}");
    }
    for text in yes {
        assert!(declared.matches(text), "{text} should come out for {schema}");
    }
    for text in yes.iter().chain(only_open) {
        assert!(open.matches(text), "{text} should come out in open mode for {schema}");
    }
    for text in only_open {
        assert!(!declared.matches(text), "{text} should stay out in declared mode for {schema}");
    }
    for text in narrow {
        assert!(!declared.matches(text) && !open.matches(text), "{text} should stay out for {schema}");
    }
    for text in no {
        assert!(!valid(text), "the other validator takes {text} for {schema}");
        assert_ne!(open.judge(text), Verdict::Valid, "{text} for {schema}");
        assert!(!declared.matches(text) && !open.matches(text), "{text} should not come out for {schema}");
    }
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for (schema, rounds) in [(&declared, 40), (&open, 20)] {
        for _ in 0..rounds {
            let Some((text, verdict)) = walk(schema, &mut rng, 60) else { continue };
            if *schema.exactness() == Exactness::ByGrammar {
                assert_eq!(verdict, Verdict::Valid, "{text} for {schema:?}");
            }
            if verdict == Verdict::Valid {
                assert!(valid(&text), "{text} came out for {schema:?}");
            }
        }
    }
}

#[test]
fn plain_types() {
    check(&json!({ "type": "null" }), &["null"], &["true", "", "nul"], &[], &[" null"]);
    check(&json!({ "type": "boolean" }), &["true", "false"], &["null", "True", "1"], &[], &[]);
    check(
        &json!({ "type": ["string", "null"], "maxLength": 2 }),
        &["null", "\"\"", "\"ab\""],
        &["\"abc\"", "1", "\"a", "nullnull"],
        &[],
        &[],
    );
    check(&json!({ "type": ["integer", "number"] }), &["1", "1.5"], &["\"1\""], &["1e0", "1E+2"], &["1e100"]);
    check(&json!({}), &["1", "[{\"a\":null}]", "\"x\""], &["{", "x"], &["{\"a\":1e5}"], &["[1 ]"]);
}

#[test]
fn constants_have_one_spelling() {
    check(
        &json!({ "enum": ["on", "关", 1, 2.5, null, ["a", { "b": [] }], "on"] }),
        &["\"on\"", "\"关\"", "1", "2.5", "null", "[\"a\",{\"b\":[]}]"],
        &["\"off\"", "2", "[]", "\"on", "onn"],
        &["1.0", "2.50"],
        &["\"\\u006fn\"", "[ \"a\",{\"b\":[]}]"],
    );
    check(
        &json!({ "const": "a\"b\\c\nd\u{1}\u{7f}é" }),
        &["\"a\\\"b\\\\c\\nd\\u0001\u{7f}é\""],
        &["\"a\"", "\"a\\\"b\\\\c\\nd\\u0002\u{7f}é\""],
        &[],
        &[],
    );
    check(&json!({ "type": "string", "const": "x" }), &["\"x\""], &["x"], &[], &[]);
    check(&json!({ "enum": ["a", 1], "type": "string" }), &["\"a\""], &["1"], &[], &[]);
    // The other validator takes neighbours of large numbers for equal.
    for (value, next) in [(json!(i64::MIN), "-9223372036854775807"), (json!(u64::MAX), "18446744073709551614")] {
        check(&json!({ "const": value }), &[&value.to_string()], &[], &[], &[]);
        assert!(!parse(&json!({ "const": value }), &open()).matches(next));
    }
}

/// What a reader of 64-bit numbers would change is never promised; beyond `const` and `enum` it is exact.
#[test]
fn numbers_beyond_64_bits_are_exact_or_refused() {
    for text in [
        r#"{"const":18446744073709551617}"#,
        r#"{"enum":[1,-9223372036854775809]}"#,
        r#"{"const":{"a":[0.1000000000000000055511151231257827]}}"#,
        r#"{"enum":["a",1e400]}"#,
    ] {
        let error = Schema::parse(text, &SchemaOptions::default()).unwrap_err();
        assert_eq!(error.kind, SchemaErrorKind::Unsupported, "{text}: {error}");
        assert!(["const", "enum"].contains(&error.keyword.as_str()), "{text}: {error}");
    }
    let schema = Schema::parse(r#"{"type":"integer","minimum":18446744073709551617}"#, &open()).unwrap();
    assert!(schema.matches("18446744073709551617") && !schema.matches("18446744073709551616"));
    let schema = Schema::parse(r#"{"type":"number","maximum":0.30000000000000004}"#, &open()).unwrap();
    assert!(schema.matches("0.30000000000000004") && !schema.matches("0.30000000000000005"));
}

#[test]
fn what_is_said_twice_is_refused() {
    for (text, key) in [
        (r#"{"type":"string","type":"integer"}"#, "type"),
        (r#"{"type":"object","properties":{"a":{},"b":{},"a":{"type":"null"}}}"#, "a"),
        (r#"{"$defs":{"x":{"minimum":1,"minimum":2}}}"#, "minimum"),
        (r#"{"const":{"k":1,"\u006b":2}}"#, "k"),
    ] {
        let error = Schema::parse(text, &SchemaOptions::default()).unwrap_err();
        assert_eq!(error.kind, SchemaErrorKind::Json, "{text}");
        assert!(error.reason.contains(&format!("'{key}' comes twice")), "{text}: {error}");
    }
}

#[test]
fn strings_count_characters_not_bytes_or_escapes() {
    check(
        &json!({ "type": "string", "minLength": 2, "maxLength": 3 }),
        &["\"ab\"", "\"abc\"", "\"é語😀\"", "\"\\n\\\"\\\\\""],
        &["\"\"", "\"a\"", "\"abcd\"", "\"😀\"", "\"a\nb\"", "\"a\tb\"", "\"\\x41a\"", "\"\\u12a\"", "\"ab", "ab"],
        &["\"\\u0001a\""],
        &["\"\\u00e9\\u8A9E\"", "\"\\ud83d\\uDE00a\"", "\"a\\/\""],
    );
    check(&json!({ "type": "string" }), &["\"\"", "\"any 語 length at all\""], &["\"a\"b\""], &[], &[]);
    check(&json!({ "type": "string", "maxLength": 0 }), &["\"\""], &["\"a\""], &[], &[]);
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
        let schema = parse(&json!({ "type": "integer", "minimum": low, "maximum": high }), &SchemaOptions::default());
        let around = [low - 1, low, low + 1, high - 1, high, high + 1, 12_345, 45_678, 45_679, 99_999, 100_000];
        for value in (-1105..=1105_i64).step_by(7).chain(around) {
            let expected = (low..=high).contains(&value);
            assert_eq!(schema.matches(&value.to_string()), expected, "{value} in {low}..={high}");
        }
        for text in ["", "-", "-0", "00", "01", "-01", "+1", "1.0", "1e0", " 1"] {
            assert!(!schema.matches(text), "{text:?} in {low}..={high}");
        }
    }
    check(
        &json!({ "type": "integer", "exclusiveMinimum": 2, "exclusiveMaximum": 5 }),
        &["3", "4"],
        &["2", "5"],
        &["3.0"],
        &["4e0"],
    );
    check(&json!({ "type": "integer", "minimum": 2.5, "maximum": 4.5 }), &["3", "4"], &["2", "5"], &[], &[]);
    check(
        &json!({ "type": "integer" }),
        &["0", "-7", "999999999999999999", "-999999999999999999"],
        &["1.5", "--1", "01"],
        &["1000000000000000000", "-0"],
        &[],
    );
    // The other validator divides doubles.
    let sevens = json!({ "type": "integer", "multipleOf": 7, "minimum": -9999, "maximum": 9999 });
    check(&sevens, &["0", "-14", "21"], &["1", "22"], &["7.0"], &[]);
    let contradiction = refusal(&json!({ "type": "integer", "minimum": 3, "maximum": 2 }));
    assert_eq!((contradiction.kind, contradiction.keyword.as_str()), (SchemaErrorKind::Unsatisfiable, "minimum"));
}

#[test]
fn numbers_keep_their_bounds() {
    check(
        &json!({ "type": "number", "minimum": 0, "exclusiveMaximum": 1 }),
        &["0", "0.0", "0.5", "0.999999"],
        &["1", "1.0", "-0.1", "2", "-1"],
        &["-0", "0.9999999"],
        &["1e-3"],
    );
    check(
        &json!({ "type": "number", "exclusiveMinimum": -2, "maximum": 3 }),
        &["-1.999999", "-1", "-0.5", "0", "3", "3.00", "2.9"],
        &["-2", "-2.0", "3.000001", "4", "-3"],
        &[],
        &[],
    );
    check(
        &json!({ "type": "number", "exclusiveMinimum": 0 }),
        &["0.1", "0.000001", "7"],
        &["0", "0.0", "-1"],
        &["1e9"],
        &[],
    );
    check(&json!({ "type": "number", "minimum": 0.5, "maximum": 0.75 }), &["0.5", "0.74"], &["0.4", "0.751"], &[], &[]);
    check(&json!({ "type": "number", "minimum": 7, "maximum": 7 }), &["7", "7.0"], &["7.1", "6.9", "-7"], &[], &[]);
    let quarters = json!({ "type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 99 });
    check(&quarters, &["0.25", "1.5", "2"], &["0.3"], &["0.250"], &["25e-2"]);
    assert_eq!(
        refusal(&json!({ "type": "number", "exclusiveMinimum": 7, "exclusiveMaximum": 7 })).kind,
        SchemaErrorKind::Unsatisfiable
    );
}

#[test]
fn arrays_count_items() {
    let item = json!({ "type": "integer", "minimum": 0, "maximum": 9 });
    check(
        &json!({ "type": "array", "items": item, "minItems": 2, "maxItems": 3 }),
        &["[1,2]", "[1,2,3]"],
        &["[]", "[1]", "[1,2,3,4]", "[1,2,]", "[,1,2]", "[1 2]"],
        &[],
        &["[1, 2]"],
    );
    for most in 0..14_usize {
        let schema = json!({ "type": "array", "items": item, "minItems": most / 3, "maxItems": most });
        let schema = parse(&schema, &SchemaOptions::default());
        for count in 0..20 {
            let text = format!("[{}]", vec!["1"; count].join(","));
            assert_eq!(schema.matches(&text), (most / 3..=most).contains(&count), "{count} of at most {most}");
        }
    }
    check(&json!({ "type": "array", "items": item, "minItems": 1 }), &["[1]", "[1,2,3,4,5]"], &["[]"], &[], &[]);
    check(&json!({ "type": "array", "items": item }), &["[]", "[1,2]"], &["[10]", "[1"], &[], &[]);
    check(
        &json!({ "type": "array", "prefixItems": [item, { "type": "null" }], "items": false, "minItems": 1 }),
        &["[1]", "[1,null]"],
        &["[]", "[null]", "[1,null,1]"],
        &[],
        &[],
    );
    check(
        &json!({ "type": "array", "items": item, "contains": { "const": 7 } }),
        &["[7]", "[1,7,2]", "[7,7]"],
        &["[]", "[1]", "[10,7]"],
        &[],
        &[],
    );
    let unique = json!({ "type": "array", "items": item, "uniqueItems": true });
    check(&unique, &["[]", "[4,5]"], &["[4,4]"], &["[4,5.0]"], &[]);
    assert_ne!(*parse(&unique, &open()).exactness(), Exactness::ByGrammar);
}

#[test]
fn objects_have_their_members() {
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
        &["{\"b\":1,\"a\":2}", "{\"c\":1,\"a\":2,\"b\":0}"],
        &["{ }", "{\"a\": 1}"],
    );
    check(
        &object(json!(["b"])),
        &["{\"b\":1}", "{\"a\":1,\"b\":2}", "{\"b\":1,\"c\":2}", "{\"a\":1,\"b\":2,\"c\":3}"],
        &["{}", "{\"a\":1}", "{\"a\":1,\"c\":3}", "{\"b\":1,\"d\":1}"],
        &["{\"c\":1,\"b\":2}"],
        &[],
    );
    // Few properties: which came is known, so that none comes twice.
    let few = parse(&object(json!(["c"])), &open());
    assert_eq!(*few.exactness(), Exactness::ByGrammar);
    assert!(!few.grammar_accepts("{\"c\":1,\"c\":1}") && !few.grammar_accepts("{\"a\":1,\"b\":1}"));
    check(
        &json!({
            "type": "object", "additionalProperties": false, "required": ["a\"/~é"],
            "properties": { "a\"/~é": { "type": "null" } },
        }),
        &["{\"a\\\"/~é\":null}"],
        &["{}", "{\"a\":null}"],
        &[],
        &[],
    );
    check(
        &json!({ "type": "object", "properties": { "a": { "type": "null" } }, "required": ["a"] }),
        &["{\"a\":null}"],
        &["{}", "{\"a\":1}", "{\"b\":1}"],
        &["{\"a\":null,\"b\":1}", "{\"b\":1,\"a\":null}"],
        &[],
    );
    check(&json!({ "type": "object", "properties": {} }), &["{}"], &["[]"], &["{\"b\":1}"], &[]);
    check(&json!({ "type": "object" }), &["{}", "{\"b\":[1]}"], &["[]"], &[], &[]);
    check(
        &json!({ "type": "object", "patternProperties": { "^n": digit }, "additionalProperties": false }),
        &["{}", "{\"n\":1}", "{\"na\":1,\"nb\":2}"],
        &["{\"m\":1}", "{\"n\":10}"],
        &[],
        &[],
    );
    check(
        &json!({ "type": "object", "additionalProperties": digit, "minProperties": 1, "maxProperties": 2 }),
        &["{\"x\":1}", "{\"x\":1,\"y\":2}"],
        &["{}", "{\"x\":1,\"y\":2,\"z\":3}", "{\"x\":10}"],
        &[],
        &[],
    );
}

/// In open mode every order of many properties comes out, whatever is required.
#[test]
fn any_order_of_keys_matches_in_open_mode() {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    for n in 1..9_usize {
        for closed in [true, false] {
            let mut properties = Map::new();
            (0..n).for_each(|i| drop(properties.insert(format!("k{i}"), json!({ "type": "integer" }))));
            let required: Vec<String> = (0..n).filter(|i| i % 2 == 0).map(|i| format!("k{i}")).collect();
            let schema = parse(
                &json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": !closed }),
                &open(),
            );
            for _ in 0..20 {
                let mut keys: Vec<usize> = (0..n).filter(|i| i % 2 == 0 || rng.random()).collect();
                (1..keys.len()).rev().for_each(|i| keys.swap(i, rng.random_range(0..=i)));
                let fields: Vec<String> = keys.iter().map(|i| format!("\"k{i}\":{i}")).collect();
                let text = format!("{{{}}}", fields.join(","));
                assert!(schema.matches(&text), "{text}");
                let lacking = format!(
                    "{{{}}}",
                    fields.iter().filter(|f| !f.starts_with("\"k0\"")).cloned().collect::<Vec<_>>().join(",")
                );
                assert!(!schema.matches(&lacking), "{lacking}");
                let twice = format!("{{{},{}}}", fields.join(","), fields[0]);
                assert!(!schema.matches(&twice), "{twice}");
                let more = format!("{{\"z\":null,{}}}", fields.join(","));
                assert_eq!(schema.matches(&more), !closed, "{more}");
            }
        }
    }
}

#[test]
fn combinators() {
    check(
        &json!({ "oneOf": [{ "type": "string", "maxLength": 3 }, { "type": "integer", "minimum": 1, "maximum": 5 }] }),
        &["\"abc\"", "3"],
        &["\"abcd\"", "6", "null"],
        &[],
        &[],
    );
    check(
        &json!({ "oneOf": [{ "type": "integer", "minimum": 0 }, { "type": "integer", "maximum": 9 }] }),
        &["-1", "10"],
        &["0", "9"],
        &[],
        &[],
    );
    check(
        &json!({ "allOf": [{ "minLength": 2 }, { "pattern": "^a" }], "type": "string" }),
        &["\"ab\""],
        &["\"a\"", "\"bb\""],
        &[],
        &[],
    );
    check(
        &json!({ "anyOf": [{ "type": "integer", "minimum": 0, "maximum": 9 }, { "type": "number", "minimum": 0, "maximum": 5 }] }),
        &["7", "4.5"],
        &["7.5", "10"],
        &[],
        &[],
    );
    check(
        &json!({ "not": { "type": ["object", "array", "number"] } }),
        &["null", "\"x\""],
        &["{}", "1", "[]"],
        &[],
        &[],
    );
    check(
        &json!({
            "type": "object", "properties": { "a": { "type": "boolean" }, "b": { "type": "null" } }, "additionalProperties": false,
            "if": { "properties": { "a": { "const": true } }, "required": ["a"] }, "then": { "required": ["b"] },
        }),
        &["{}", "{\"a\":false}", "{\"a\":true,\"b\":null}"],
        &["{\"a\":true}"],
        &["{\"b\":null,\"a\":true}"],
        &[],
    );
    check(
        &json!({
            "type": "object", "properties": { "a": { "type": "null" }, "b": { "type": "null" } }, "additionalProperties": false,
            "dependentRequired": { "a": ["b"] },
        }),
        &["{}", "{\"b\":null}", "{\"a\":null,\"b\":null}"],
        &["{\"a\":null}"],
        &[],
        &[],
    );
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
        &[],
    );
    check(
        &json!({ "$ref": "#/$defs/n", "$defs": { "n": { "type": "array", "items": { "$ref": "#/$defs/n" }, "maxItems": 2 } } }),
        &["[]", "[[],[[]]]"],
        &["[1]", "[[],[],[]]"],
        &[],
        &[],
    );
    for circle in [
        json!({ "$ref": "#" }),
        json!({ "$ref": "#/$defs/a", "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } } }),
        json!({ "anyOf": [{ "type": "null" }, { "$ref": "#" }] }),
    ] {
        let error = refusal(&circle);
        assert_eq!(error.kind, SchemaErrorKind::Reference, "{circle}: {error}");
        assert!(error.reason.contains("itself"), "{error}");
    }
    for reference in ["#/$defs/none", "other.json", "https://example.org/x", "#anchor", "#/$defs/a%20b", "#/~2"] {
        let error = refusal(&json!({ "$ref": reference, "$defs": {} }));
        assert_eq!((error.kind, error.keyword.as_str()), (SchemaErrorKind::Reference, "$ref"), "{reference}");
    }
}

/// What says nothing of values does not refuse, and where it could be taken for a rule it is named.
#[test]
fn annotations_are_kept_apart() {
    let schema = parse(
        &json!({
            "type": "object", "title": "t", "description": "d", "$comment": "c", "x-order": 1, "nullable": true,
            "examples": [{}], "default": {}, "deprecated": false,
            "properties": { "a": { "type": "integer", "format": "int32", "minLength": 3 }, "b": { "type": "string", "minlength": 7 } },
        }),
        &SchemaOptions::default(),
    );
    let named: Vec<(&str, &str)> =
        schema.remarks().iter().map(|r| (r.place.pointer.as_str(), r.place.keyword.as_str())).collect();
    assert_eq!(named, [("/properties/a", "format"), ("/properties/b", "minlength")]);
    assert!(schema.matches("{\"a\":-3,\"b\":\"\"}"));
}

#[test]
fn blanks_are_written_where_asked_for() {
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["a"],
        "properties": { "a": { "type": "array", "items": { "type": "null" } }, "b": { "type": "null" } },
    });
    let of = |whitespace| parse(&schema, &SchemaOptions::default().whitespace(whitespace));
    let texts = ["{\"a\":[]}", "{\"a\": [null, null,null], \"b\": null}", "{\"a\":  []}", "{ \"a\"\n:[]}"];
    for (whitespace, fits) in [
        (Whitespace::Compact, [true, false, false, false]),
        (Whitespace::OptionalBlank, [true, true, false, false]),
        (Whitespace::Flexible, [true, true, true, true]),
    ] {
        let schema = of(whitespace);
        for (text, fits) in texts.iter().zip(fits) {
            assert_eq!(schema.matches(text), fits, "{whitespace:?} {text}");
        }
    }
}

#[test]
fn patterns_search_as_ecma_does() {
    let pattern = |pattern: &str| json!({ "type": "string", "pattern": pattern });
    check(
        &pattern("^[A-Z][a-z]{1,3}(-[0-9]+)?$"),
        &["\"Ab\"", "\"Abcd-12\""],
        &["\"ab\"", "\"Abcde\"", "\"Ab-\"", "\"Ab\"\""],
        &[],
        &["\"\\u0041b\""],
    );
    check(&pattern("b+"), &["\"abc\"", "\"b\""], &["\"ac\"", "\"\""], &[], &[]);
    check(&pattern("^a|b$"), &["\"ax\"", "\"xb\""], &["\"xa\"", "\"bx\""], &[], &[]);
    check(&pattern("^.{2}$"), &["\"a語\"", "\"\\\"\\\\\""], &["\"a\"", "\"a\\nb\"", "\"abc\""], &[], &[]);
    check(&pattern("^(?=.*[0-9])[a-z0-9]{2,4}$"), &["\"a1\"", "\"12ab\""], &["\"ab\"", "\"1\""], &[], &[]);
    check(
        &json!({ "type": "string", "pattern": "^[a-z]*$", "minLength": 2, "maxLength": 3 }),
        &["\"ab\"", "\"abc\""],
        &["\"a\"", "\"abcd\"", "\"A1\""],
        &[],
        &[],
    );
    for bad in ["(", "[", "*a", "a{3,2}", "[z-a]", "(?i)a", "a{99999999}", "(?<n"] {
        let error = refusal(&pattern(bad));
        assert_eq!(error.keyword, "pattern", "{bad}: {error}");
    }
    for deep in [1000, 100_000] {
        assert_eq!(refusal(&pattern(&"(".repeat(deep))).keyword, "pattern");
    }
}

#[test]
fn formats_are_asserted() {
    let format = |format: &str| json!({ "type": "string", "format": format });
    check(
        &format("date"),
        &["\"2024-02-29\"", "\"2000-02-29\"", "\"2026-11-30\"", "\"0001-12-31\"", "\"1999-01-01\""],
        &["\"2023-02-29\"", "\"1900-02-29\"", "\"2026-11-31\"", "\"2026-13-01\"", "\"2026-00-10\"", "\"2026-1-1\""],
        &[],
        &[],
    );
    check(
        &format("time"),
        &["\"00:00:00Z\"", "\"23:59:59.123+05:30\"", "\"12:30:00-08:00\""],
        &["\"24:00:00Z\"", "\"12:60:00Z\"", "\"12:30Z\"", "\"12:30:00\""],
        &[],
        &[],
    );
    check(
        &format("date-time"),
        &["\"2026-11-29T12:00:00Z\"", "\"2024-02-29T23:59:59.5+01:00\""],
        &["\"2026-11-29 12:00:00\"", "\"2026-02-30T12:00:00Z\"", "\"2026-11-29\""],
        &[],
        &[],
    );
    check(
        &format("uuid"),
        &["\"123e4567-e89b-12d3-a456-426614174000\""],
        &["\"123e4567e89b12d3a456426614174000\"", "\"123e4567-e89b-12d3-a456-42661417400\""],
        &[],
        &[],
    );
    check(
        &format("ipv4"),
        &["\"0.0.0.0\"", "\"255.249.100.9\"", "\"192.168.1.10\""],
        &["\"256.1.1.1\"", "\"1.2.3\"", "\"01.2.3.4\"", "\"1.2.3.4.5\""],
        &[],
        &[],
    );
    // Not JSON Schema's, or of another type: named, and without effect.
    for annotation in [format("horoscope"), json!({ "type": "integer", "format": "date" })] {
        let schema = parse(&annotation, &SchemaOptions::default());
        assert!(schema.matches("\"x\"") || schema.matches("7"), "{annotation}");
    }
}

/// Schema, texts that come out, texts that must not.
type Case = (&'static str, &'static [&'static str], &'static [&'static str]);

const CASES: &[Case] = &[
    (
        r#"{"$schema":"https://json-schema.org/draft/2019-09/schema","type":"array","contains":{"const":1},"unevaluatedItems":false}"#,
        &[],
        &["[1]", "[1,2]", "[]"],
    ),
    (r#"{"type":"array","contains":{"const":1},"unevaluatedItems":false}"#, &["[1]"], &["[1,2]", "[]"]),
    (r#"{"type":"string","pattern":"^\\S$"}"#, &["\"a\"", "\"\u{85}\""], &["\"\u{feff}\"", "\"\u{a0}\""]),
    (r#"{"type":"string","pattern":"^\\s$"}"#, &["\"\u{feff}\"", "\"\u{a0}\""], &["\"\u{85}\"", "\"a\""]),
    (
        r#"{"type":"string","format":"date-time"}"#,
        &["\"1998-12-31T23:59:60Z\"", "\"2024-02-29t00:00:00.5+01:00\""],
        &["\"2023-02-28T23:59:60Z\"", "\"2023-02-29T00:00:00Z\"", "\"2023-01-01T00:00:00\""],
    ),
    (r#"{"oneOf":[{"multipleOf":3},{"multipleOf":5}]}"#, &["3", "10"], &["15", "\"a\"", "1"]),
    (r#"{"type":"array","uniqueItems":true}"#, &["[1,true]"], &["[1,1.0]", r#"[{"a":1,"b":2},{"b":2,"a":1}]"#]),
];

#[test]
fn forbidden_texts_stay_out() {
    for mode in [Mode::Open, Mode::Declared] {
        for (text, valid, invalid) in CASES {
            let schema =
                Schema::parse(text, &SchemaOptions::default().mode(mode)).unwrap_or_else(|e| panic!("{text}: {e}"));
            for answer in *invalid {
                assert_ne!(schema.judge(answer), Verdict::Valid, "{text} {answer}");
                assert!(!schema.matches(answer), "{text} {answer}");
            }
            for answer in *valid {
                assert_eq!(schema.judge(answer), Verdict::Valid, "{text} {answer}");
                assert!(mode == Mode::Declared || schema.grammar_accepts(answer), "{text} {answer}");
            }
        }
    }
}

#[test]
fn malformed_and_contradictory_schemas_name_keyword_and_place() {
    let inside = |schema: Value| json!({ "type": "object", "properties": { "a/b": schema }, "required": ["a/b"] });
    for (schema, keyword) in [
        (json!({ "type": "text" }), "type"),
        (json!({ "type": ["string", 7] }), "type"),
        (json!({ "type": "string", "minLength": -1 }), "minLength"),
        (json!({ "type": "string", "minLength": 1.5 }), "minLength"),
        (json!({ "type": "string", "maxLength": "3" }), "maxLength"),
        (json!({ "type": "string", "pattern": 3 }), "pattern"),
        (json!({ "type": "string", "format": 3 }), "format"),
        (json!({ "type": "integer", "minimum": "0" }), "minimum"),
        (json!({ "enum": [] }), "enum"),
        (json!({ "enum": "a" }), "enum"),
        (json!({ "anyOf": [] }), "anyOf"),
        (json!({ "type": "object", "required": "a" }), "required"),
        (json!({ "type": "object", "properties": [] }), "properties"),
        (json!({ "uniqueItems": 1 }), "uniqueItems"),
        (json!({ "multipleOf": 0 }), "multipleOf"),
        (json!(3), "(schema)"),
    ] {
        let error = refusal(&inside(schema.clone()));
        let found = (error.kind, error.keyword.as_str(), error.pointer.as_str());
        assert_eq!(found, (SchemaErrorKind::Malformed, keyword, "/properties/a~1b"), "{schema}");
    }
    for schema in [
        json!(false),
        json!({ "type": "string", "minLength": 3, "maxLength": 2 }),
        json!({ "type": "array", "items": { "type": "null" }, "minItems": 3, "maxItems": 2 }),
        json!({ "type": "integer", "enum": ["a"] }),
        json!({ "type": "object", "additionalProperties": false, "required": ["a"] }),
        json!({ "allOf": [{ "type": "string" }, { "type": "null" }] }),
        json!({ "type": "string", "pattern": "^a$", "minLength": 2 }),
        json!({ "not": {} }),
    ] {
        assert_eq!(refusal(&inside(schema.clone())).kind, SchemaErrorKind::Unsatisfiable, "{schema}");
    }
}

/// The mask is what is accepted, and the same in every run.
#[test]
fn masks_are_exact_and_repeat() {
    let words: &[&[u8]] = &[
        b"{", b"}", b"\"", b"{\"", b"a", b"\":", b"1", b"12", b"\"a\":", b",", b",\"", b"b\":", b"null", b"true}",
        b"tr", b"ue", b"\xc3", b"\xa9", b"\\", b"n", b"]", b"[", b" ", b".5", b"-",
    ];
    let roles = words.iter().map(|word| TokenRole::Text(word)).chain([TokenRole::Excluded, TokenRole::End]);
    let trie = TokenTrie::build(roles).unwrap();
    let schema = json!({
        "type": "object", "required": ["a"],
        "properties": { "a": { "anyOf": [{ "type": "integer", "maximum": 20 }, { "type": "string", "maxLength": 3 }] }, "b": { "enum": [null, true] } },
    });
    let end = u32::try_from(words.len() + 1).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    for options in [SchemaOptions::default(), open()] {
        let (one, two) = (parse(&schema, &options), parse(&schema, &options));
        for _ in 0..30 {
            let (mut first, mut second) = (one.matcher(&trie).unwrap(), two.matcher(&trie).unwrap());
            let mut taken: Vec<u32> = Vec::new();
            while first.state() == GrammarState::Active && taken.len() < 12 {
                let mask = first.mask().unwrap();
                assert_eq!(mask, second.mask().unwrap());
                for token in 0..=end {
                    let mut fresh = one.matcher(&trie).unwrap();
                    taken.iter().for_each(|&t| {
                        fresh.accept(t).unwrap();
                    });
                    assert_eq!(fresh.accept(token).is_ok(), mask.allows(token), "{token} behind {taken:?}");
                }
                let all: Vec<u32> = mask.iter().collect();
                if all.is_empty() {
                    break;
                }
                let token = all[rng.random_range(0..all.len())];
                first.accept(token).unwrap();
                second.accept(token).unwrap();
                taken.push(token);
            }
        }
    }
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
        prop::sample::select(vec!["date", "date-time", "uuid", "ipv4"])
            .prop_map(|format| json!({ "type": "string", "format": format })),
        prop::sample::select(vec![
            "^[a-z]+$",
            "^[^a-z]{2}$",
            "^(\\d{1,3}|x.?)*y$",
            "[a-f]",
            "^.{0,5}$",
            "^[\"\\\\\\n]{1,3}$",
            "^([^\\d\\w]|語)$",
        ])
        .prop_map(|pattern| json!({ "type": "string", "pattern": pattern })),
        prop::collection::vec(".{0,6}", 1..4).prop_map(|values| json!({ "enum": values })),
        // The other validator divides doubles.
        (2..30_u32).prop_map(|of| json!({ "type": "integer", "multipleOf": of, "minimum": -9999, "maximum": 9999 })),
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
            (prop::collection::vec((".{0,5}", inner.clone(), any::<bool>()), 0..5), any::<bool>()).prop_map(
                |(members, closed)| {
                    let mut properties = Map::new();
                    let mut required = Vec::new();
                    for (name, schema, is_required) in members {
                        if properties.insert(name.clone(), schema).is_none() && is_required {
                            required.push(name);
                        }
                    }
                    let mut schema = json!({ "type": "object", "properties": properties, "required": required });
                    if closed {
                        schema["additionalProperties"] = json!(false);
                    }
                    schema
                }
            ),
            inner
                .clone()
                .prop_map(|schema| json!({ "type": "object", "additionalProperties": schema, "maxProperties": 2 })),
            inner.clone().prop_map(|schema| json!({ "type": ["string", "boolean", "null"], "not": schema })),
            prop::collection::vec(inner.clone(), 1..4).prop_map(|branches| json!({ "anyOf": branches })),
            prop::collection::vec(inner, 1..4).prop_map(|branches| json!({ "oneOf": branches })),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// The law: what comes out and is called valid is JSON, and valid for the other validator; where the grammar is
    /// exact, whatever it ends is.
    #[test]
    fn what_comes_out_validates(schema in value_schema(), seed in any::<u64>(), open_mode in any::<bool>()) {
        let options = if open_mode { open() } else { SchemaOptions::default() };
        let ours = match Schema::parse(&schema.to_string(), &options) {
            Ok(ours) => ours,
            Err(error) if error.kind == SchemaErrorKind::Unsatisfiable => return Ok(()),
            Err(error) => return Err(TestCaseError::fail(format!("{error}: {schema}"))),
        };
        let validator = validator(&schema);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        for _ in 0..4 {
            let Some((text, verdict)) = walk(&ours, &mut rng, 80) else { continue };
            let exact = *ours.exactness() == Exactness::ByGrammar;
            prop_assert!(!exact || verdict == Verdict::Valid, "{text} is {verdict:?} for {schema}");
            if verdict == Verdict::Valid {
                let value: Value = serde_json::from_str(&text).unwrap();
                prop_assert!(validator.is_valid(&value), "{text} for {schema}");
                prop_assert!(ours.matches(&text), "{}", text);
            }
        }
    }

    /// Any JSON as a schema is a constraint or an error.
    #[test]
    fn any_json_is_a_schema_or_an_error(
        members in prop::collection::vec((
            prop::sample::select(vec![
                "type", "enum", "const", "$ref", "$defs", "oneOf", "anyOf", "allOf", "not", "if", "then", "properties",
                "required", "items", "prefixItems", "contains", "uniqueItems", "additionalProperties", "patternProperties",
                "propertyNames", "dependentRequired", "minItems", "maxItems", "minLength", "maxLength", "pattern",
                "format", "minimum", "maximum", "multipleOf", "$schema", "$id", "$anchor", "$dynamicRef", "x",
            ]),
            prop::sample::select(vec![
                json!("string"), json!("object"), json!("array"), json!(["integer", "null"]), json!(0), json!(-1),
                json!(1e300), json!(2.5), json!(u64::MAX), json!([]), json!({}), json!(false), json!(null), json!(true),
                json!({ "type": "null" }), json!([{ "type": "null" }]), json!({ "a": { "type": "string" } }),
                json!(["a"]), json!({ "a": ["b"] }), json!("#"), json!("#/$defs/a"), json!("^a*$"), json!("date"),
            ]),
        ), 0..6),
    ) {
        let schema = Value::Object(members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect());
        for options in [SchemaOptions::default(), open()] {
            if let Ok(ours) = Schema::parse(&schema.to_string(), &options) {
                let mut rng = ChaCha8Rng::seed_from_u64(1);
                if let Some((text, _)) = walk(&ours, &mut rng, 40) {
                    prop_assert!(serde_json::from_str::<Value>(&text).is_ok(), "{text} for {schema}");
                }
            }
        }
    }
}

// ------------------------------------------------------------------ schemas that people wrote

/// MaskBench's quarter and the JSON-Schema-Test-Suite, where they lie beside the project. What is pinned is what was
/// measured, rounded down: fewer accepted is a loss, an invalid one let through is a fault.
#[test]
fn real_schemas_are_accepted_and_exact() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/json-schemas");
    for (file, every, least_accepted, least_matched) in
        [("maskbench-quarter.jsonl", 8, 0.95, 0.995), ("test-suite-2020-12.jsonl", 1, 0.9, 0.95)]
    {
        let Ok(text) = std::fs::read_to_string(folder.join(file)) else {
            eprintln!("{file} is not beside the project: nothing was tried");
            continue;
        };
        #[derive(serde::Deserialize)]
        struct Row<'a> {
            #[serde(borrow)]
            schema: &'a serde_json::value::RawValue,
            tests: Vec<Test<'a>>,
        }
        #[derive(serde::Deserialize)]
        struct Test<'a> {
            #[serde(borrow)]
            data: &'a serde_json::value::RawValue,
            valid: bool,
        }
        let (mut schemas, mut accepted, mut valid, mut matched) = (0, 0, 0, 0);
        for line in text.lines().step_by(every) {
            let row: Row<'_> = serde_json::from_str(line).unwrap();
            schemas += 1;
            let Ok(schema) = Schema::parse(row.schema.get(), &open()) else { continue };
            accepted += 1;
            let narrow = Schema::parse(row.schema.get(), &SchemaOptions::default()).unwrap();
            for test in row.tests {
                // Compact, in the order of the text.
                let value: Value = serde_json::from_str(test.data.get()).unwrap();
                let text = value.to_string();
                if test.valid {
                    valid += 1;
                    matched += usize::from(schema.matches(&text));
                } else {
                    assert!(!schema.matches(&text) && !narrow.matches(&text), "{text} for {}", row.schema);
                }
            }
        }
        eprintln!("{file}: {accepted} of {schemas} accepted, {matched} of {valid} valid instances matched");
        assert!(f64::from(accepted) >= least_accepted * f64::from(schemas), "{file}: {accepted} of {schemas}");
        assert!(matched as f64 >= least_matched * valid as f64, "{file}: {matched} of {valid}");
    }
}
