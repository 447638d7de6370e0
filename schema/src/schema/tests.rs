//! Schemas as a whole: what must not get through.
use super::{Mode, Schema, SchemaOptions, Verdict};

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
