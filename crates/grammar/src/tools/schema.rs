//! JSON Schema to GBNF.
//!
//! The law: **every text that the grammar accepts is JSON that validates against the schema.** What has no exact
//! grammar is refused by keyword and place, never loosened. The grammar may be narrower than the schema, in these ways
//! and no others:
//! - spelling: no white space ([`Whitespace`] allows single blanks), fixed strings and keys in one spelling, integers
//!   without fraction, exponent, leading zeros or `-0`, numbers without exponent and with at most 9 digits before and
//!   6 after the point;
//! - integers without a bound, or beyond it, have at most 18 digits;
//! - objects: declared properties only, in the order of `properties`;
//! - `pattern`: control characters without a short escape don't come out;
//! - `format`: dates and times in capital-letter RFC 3339 form without leap seconds, and plain ASCII e-mail addresses;
//! - strings and arrays without an upper bound get one only if [`SchemaOptions`] sets it.

use std::collections::{HashMap, HashSet};

use crate::{Grammar, GrammarLimits};
use serde_json::{Map, Value};

use super::error::SchemaError;
use super::numbers::{self, Bound};
use super::pattern;
use super::text::{self, literal};

/// White space between the tokens of the JSON text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Whitespace {
    /// None.
    #[default]
    Compact,
    /// An optional blank after `:` and `,`.
    OptionalBlank,
}

/// What to do with an object that does not say whether it may have further properties.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OpenObjects {
    /// Refuse it: `additionalProperties: false` has to be written.
    #[default]
    Refuse,
    /// Produce declared properties only, which the schema allows.
    DeclaredOnly,
}

/// Choices of the conversion; all of them only narrow the grammar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SchemaOptions {
    /// White space between tokens.
    pub whitespace: Whitespace,
    /// Objects without `additionalProperties`.
    pub open_objects: OpenObjects,
    /// Most characters of a string whose schema has no upper bound. `None`: no bound, and nothing but the model ends
    /// such a string.
    pub string_cap: Option<u32>,
    /// Most items of an array whose schema has no upper bound.
    pub array_cap: Option<u32>,
    /// Most bytes of grammar.
    pub max_grammar_bytes: usize,
    /// Limits that the grammar is then checked against.
    pub grammar_limits: GrammarLimits,
}

impl Default for SchemaOptions {
    fn default() -> Self {
        Self {
            whitespace: Whitespace::default(),
            open_objects: OpenObjects::default(),
            string_cap: None,
            array_cap: None,
            max_grammar_bytes: 1 << 20,
            grammar_limits: GrammarLimits::default(),
        }
    }
}

/// Depth of schemas in one another, references included.
const MAX_DEPTH: usize = 48;
/// Places visited when branches of `oneOf` are compared.
const MAX_COMPARED: usize = 20_000;

/// Keywords that say nothing about which values are valid.
const ANNOTATIONS: [&str; 8] =
    ["title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly"];

/// GBNF whose rule `root` produces values of `schema`; see the module for what that means exactly.
///
/// # Errors
/// [`SchemaError`] with keyword and JSON pointer.
pub fn schema_to_gbnf(schema: &Value, options: &SchemaOptions) -> Result<String, SchemaError> {
    let mut converter = Converter {
        root: schema,
        options,
        rules: String::new(),
        count: 0,
        uses_characters: false,
        done: HashMap::new(),
        open: HashSet::new(),
    };
    let root = converter.schema(schema, "", 0)?;
    let mut gbnf = format!("root ::= {root}\n{}", converter.rules);
    if converter.uses_characters {
        gbnf.push_str(text::CHAR_RULES);
    }
    Grammar::parse(&gbnf, "root", &options.grammar_limits)?;
    Ok(gbnf)
}

struct Converter<'a> {
    root: &'a Value,
    options: &'a SchemaOptions,
    rules: String,
    count: usize,
    uses_characters: bool,
    /// Rule of each referenced place.
    done: HashMap<String, String>,
    /// References being followed.
    open: HashSet<String>,
}

type Object = Map<String, Value>;

impl Converter<'_> {
    /// Adds a rule and returns its name.
    fn rule(&mut self, pointer: &str, body: &str) -> Result<String, SchemaError> {
        self.count += 1;
        let last: String =
            pointer.rsplit('/').next().unwrap_or("").chars().filter(|c| c.is_ascii_alphanumeric()).take(24).collect();
        let name = format!("{}{}{}", if last.is_empty() { "value" } else { &last }, '-', self.count);
        let size = self.rules.len() + name.len() + body.len() + 6;
        let max = self.options.max_grammar_bytes;
        if size > max {
            return Err(SchemaError::TooLarge {
                pointer: pointer.to_owned(),
                what: "bytes of grammar",
                value: size as u64,
                max: max as u64,
            });
        }
        self.rules.push_str(&name);
        self.rules.push_str(" ::= ");
        self.rules.push_str(body);
        self.rules.push('\n');
        Ok(name)
    }

    fn blank(&self) -> &'static str {
        match self.options.whitespace {
            Whitespace::Compact => "",
            Whitespace::OptionalBlank => " \" \"?",
        }
    }

    /// The rule for the values of a schema.
    fn schema(&mut self, schema: &Value, pointer: &str, depth: usize) -> Result<String, SchemaError> {
        check_depth(depth, pointer)?;
        let object = as_schema(schema, pointer)?;
        if pointer.is_empty() {
            check_root(object)?;
        } else if object.contains_key("$schema") || object.contains_key("$id") {
            return Err(unsupported(pointer, "$schema or $id", "leave them to the top of the schema"));
        }
        check_known(object, pointer)?;

        if let Some(reference) = object.get("$ref") {
            let allowed: &[&str] = if pointer.is_empty() { &["$ref", "$defs", "definitions"] } else { &["$ref"] };
            only(object, allowed, pointer, "$ref")?;
            return self.reference(reference, pointer, depth);
        }
        if let Some(value) = object.get("const") {
            only(object, &["const", "type"], pointer, "const")?;
            return self.fixed(std::slice::from_ref(value), object, pointer, "const");
        }
        if let Some(values) = object.get("enum") {
            only(object, &["enum", "type"], pointer, "enum")?;
            let Some(values) = values.as_array().filter(|values| !values.is_empty()) else {
                return Err(malformed(pointer, "enum", "must be a list of at least one value"));
            };
            return self.fixed(values, object, pointer, "enum");
        }
        for keyword in ["oneOf", "anyOf", "allOf"] {
            if object.contains_key(keyword) {
                return self.combination(keyword, object, pointer, depth);
            }
        }

        let types = types_of(object, pointer)?;
        let Some(types) = types else {
            return Err(unsupported(pointer, "(no type)", "say which values are meant: add 'type', 'enum' or '$ref'"));
        };
        check_applicable(object, &types, pointer)?;
        let mut ways = Vec::new();
        for kind in types {
            ways.push(self.typed(kind, object, pointer, depth)?);
        }
        if ways.len() == 1 {
            return Ok(ways.swap_remove(0));
        }
        self.rule(pointer, &ways.join(" | "))
    }

    fn typed(&mut self, kind: Kind, object: &Object, pointer: &str, depth: usize) -> Result<String, SchemaError> {
        match kind {
            Kind::Null => self.rule(pointer, "\"null\""),
            Kind::Boolean => self.rule(pointer, "\"true\" | \"false\""),
            Kind::Integer => {
                let body = integer(object, pointer)?;
                self.rule(pointer, &body)
            }
            Kind::Number => {
                let body = number(object, pointer)?;
                self.rule(pointer, &body)
            }
            Kind::String => self.string(object, pointer),
            Kind::Array => self.array(object, pointer, depth),
            Kind::Object => self.object(object, pointer, depth),
        }
    }

    fn reference(&mut self, reference: &Value, pointer: &str, depth: usize) -> Result<String, SchemaError> {
        let (target, place) = resolve(self.root, reference, pointer)?;
        if let Some(rule) = self.done.get(&place) {
            return Ok(rule.clone());
        }
        if place.is_empty() || !self.open.insert(place.clone()) {
            let reference = format!("#{place}");
            return Err(SchemaError::Cycle { pointer: pointer.to_owned(), reference });
        }
        let rule = self.schema(target, &place, depth + 1)?;
        self.open.remove(&place);
        self.done.insert(place, rule.clone());
        Ok(rule)
    }

    /// `const` and `enum`: the values as texts.
    fn fixed(
        &mut self,
        values: &[Value],
        object: &Object,
        pointer: &str,
        keyword: &str,
    ) -> Result<String, SchemaError> {
        let types = types_of(object, pointer)?;
        let mut ways: Vec<String> = Vec::new();
        let mut seen = HashSet::new();
        for value in values {
            if let Some(types) = &types
                && !types.iter().any(|kind| kind.has(value))
            {
                let problem = format!("'{keyword}' has {value}, which is not of the given type");
                return Err(SchemaError::Unsatisfiable { pointer: pointer.to_owned(), problem });
            }
            let text = value.to_string();
            // Readers of decimal numbers may be off by the last bit.
            if serde_json::from_str::<Value>(&text).ok().as_ref() != Some(value) {
                return Err(unsupported(
                    pointer,
                    keyword,
                    "a number in it changes when it is written and read; shorten it",
                ));
            }
            if seen.insert(text.clone()) {
                ways.push(literal(&text));
            }
        }
        self.rule(pointer, &ways.join(" | "))
    }

    fn combination(
        &mut self,
        keyword: &str,
        object: &Object,
        pointer: &str,
        depth: usize,
    ) -> Result<String, SchemaError> {
        let allowed: &[&str] =
            if pointer.is_empty() { &[keyword, "type", "$defs", "definitions"] } else { &[keyword, "type"] };
        only(object, allowed, pointer, keyword)?;
        let Some(branches) = object.get(keyword).and_then(Value::as_array).filter(|list| !list.is_empty()) else {
            return Err(malformed(pointer, keyword, "must be a list of at least one schema"));
        };
        if keyword == "allOf" && branches.len() > 1 {
            return Err(unsupported(pointer, "allOf", "write the properties of all branches into one schema"));
        }
        // Conversion first: it names cycles.
        let mut ways = Vec::new();
        for (index, branch) in branches.iter().enumerate() {
            ways.push(self.schema(branch, &format!("{pointer}/{keyword}/{index}"), depth + 1)?);
        }
        let mut summaries = Vec::new();
        let mut fuel = MAX_COMPARED;
        for (index, branch) in branches.iter().enumerate() {
            let place = format!("{pointer}/{keyword}/{index}");
            summaries.push(summarize(self.root, branch, &place, depth + 1, &mut fuel)?);
        }
        if let Some(types) = types_of(object, pointer)? {
            let allowed = types.iter().fold(0, |bits, kind| bits | kind.bits());
            for (index, summary) in summaries.iter().enumerate() {
                if summary.types & !allowed != 0 {
                    let place = format!("{pointer}/{keyword}/{index}");
                    return Err(unsupported(&place, "type", "give the branch the types of the schema around it"));
                }
            }
        }
        if keyword == "oneOf" {
            for (second, b) in summaries.iter().enumerate() {
                if let Some(first) = summaries[..second].iter().position(|a| !a.excludes(b)) {
                    return Err(SchemaError::Overlap { pointer: pointer.to_owned(), first, second });
                }
            }
        }
        if ways.len() == 1 {
            return Ok(ways.swap_remove(0));
        }
        self.rule(pointer, &ways.join(" | "))
    }

    fn string(&mut self, object: &Object, pointer: &str) -> Result<String, SchemaError> {
        let min = count(object, "minLength", pointer)?.unwrap_or(0);
        let max = count(object, "maxLength", pointer)?;
        check_order(min, max, "minLength", "maxLength", pointer)?;
        let (body, shortest, longest) = match (object.get("pattern"), object.get("format")) {
            (Some(_), Some(_)) => {
                return Err(unsupported(pointer, "format", "use either 'pattern' or 'format'"));
            }
            (Some(pattern), None) => {
                let Some(pattern) = pattern.as_str() else {
                    return Err(malformed(pointer, "pattern", "must be a string"));
                };
                let converted = pattern::convert(pattern).map_err(|(at, problem)| SchemaError::Pattern {
                    pointer: pointer.to_owned(),
                    at,
                    problem,
                })?;
                (converted.gbnf, converted.shortest, converted.longest)
            }
            (None, Some(format)) => {
                let Some(name) = format.as_str() else {
                    return Err(malformed(pointer, "format", "must be a string"));
                };
                let Some((_, body, shortest, longest)) = FORMATS.iter().find(|(known, ..)| *known == name) else {
                    let known: Vec<&str> = FORMATS.iter().map(|(known, ..)| *known).collect();
                    let hint = format!("format '{name}' is not one of {}", known.join(", "));
                    return Err(unsupported(pointer, "format", &hint));
                };
                ((*body).to_owned(), *shortest, Some(*longest))
            }
            (None, None) => {
                let max = max.or(self.options.string_cap.map(|cap| u64::from(cap).max(min)));
                self.check_count(min.max(max.unwrap_or(0)), "characters of a string", pointer)?;
                self.uses_characters = true;
                let body = format!("\"\\\"\" {}{} \"\\\"\"", text::CHAR_RULE, times(min, max));
                return self.rule(pointer, &body);
            }
        };
        // Both at once have no plain grammar; but lengths that the pattern keeps by itself are fine.
        let fits_min = shortest >= min;
        let fits_max = max.is_none_or(|max| longest.is_some_and(|longest| longest <= max));
        if !fits_min || !fits_max {
            let keyword = if fits_min { "maxLength" } else { "minLength" };
            let longest = longest.map_or("any number".to_owned(), |longest| longest.to_string());
            let hint = format!(
                "the pattern or format has texts of {shortest} to {longest} characters; put the length into the pattern"
            );
            return Err(unsupported(pointer, keyword, &hint));
        }
        self.rule(pointer, &format!("\"\\\"\" {body} \"\\\"\""))
    }

    fn check_count(&self, value: u64, what: &'static str, pointer: &str) -> Result<(), SchemaError> {
        let max = u64::from(self.options.grammar_limits.max_repetition);
        if value > max {
            return Err(SchemaError::TooLarge { pointer: pointer.to_owned(), what, value, max });
        }
        Ok(())
    }

    fn array(&mut self, object: &Object, pointer: &str, depth: usize) -> Result<String, SchemaError> {
        let min = count(object, "minItems", pointer)?.unwrap_or(0);
        let max = count(object, "maxItems", pointer)?;
        check_order(min, max, "minItems", "maxItems", pointer)?;
        match object.get("uniqueItems") {
            None | Some(Value::Bool(false)) => {}
            Some(Value::Bool(true)) if max.is_some_and(|max| max <= 1) => {}
            Some(Value::Bool(true)) => {
                return Err(unsupported(
                    pointer,
                    "uniqueItems",
                    "check uniqueness after parsing, or list 'enum' choices",
                ));
            }
            Some(_) => return Err(malformed(pointer, "uniqueItems", "must be true or false")),
        }
        let Some(items) = object.get("items") else {
            return Err(unsupported(pointer, "(no items)", "say what the items are: add 'items'"));
        };
        if items.is_array() {
            return Err(unsupported(pointer, "items", "give one schema for all items"));
        }
        if max == Some(0) {
            return self.rule(pointer, "\"[]\"");
        }
        let max = max.or(self.options.array_cap.map(|cap| u64::from(cap).max(min).max(1)));
        self.check_count(min.max(max.unwrap_or(0)), "items of an array", pointer)?;
        let item = self.schema(items, &format!("{pointer}/items"), depth + 1)?;
        let blank = self.blank();
        let more = match max {
            Some(1) => String::new(),
            max => format!(" (\",\"{blank} {item}){}", times(min.saturating_sub(1), max.map(|max| max - 1))),
        };
        let body = if min == 0 { format!("\"[\" ({item}{more})? \"]\"") } else { format!("\"[\" {item}{more} \"]\"") };
        self.rule(pointer, &body)
    }

    fn object(&mut self, object: &Object, pointer: &str, depth: usize) -> Result<String, SchemaError> {
        match object.get("additionalProperties") {
            Some(Value::Bool(false)) => {}
            None if self.options.open_objects == OpenObjects::DeclaredOnly => {}
            None => {
                return Err(unsupported(
                    pointer,
                    "(no additionalProperties)",
                    "add 'additionalProperties': false; free keys cannot be produced",
                ));
            }
            Some(_) => {
                return Err(unsupported(
                    pointer,
                    "additionalProperties",
                    "set it to false and declare the properties; free keys cannot be kept from repeating",
                ));
            }
        }
        let none = Map::new();
        let properties = match object.get("properties") {
            None => &none,
            Some(Value::Object(properties)) => properties,
            Some(_) => return Err(malformed(pointer, "properties", "must be an object of schemas")),
        };
        let required = required(object, pointer)?;
        if let Some(name) = required.iter().find(|name| !properties.contains_key(**name)) {
            let problem = format!("'{name}' is required but not among the properties");
            return Err(SchemaError::Unsatisfiable { pointer: pointer.to_owned(), problem });
        }

        let blank = self.blank();
        let mut members = Vec::new();
        for (name, property) in properties {
            let place = format!("{pointer}/properties/{}", escape_pointer(name));
            let value = self.schema(property, &place, depth + 1)?;
            let key = literal(&format!("{}:", Value::from(name.as_str())));
            members.push((format!("{key}{blank} {value}"), required.contains(name.as_str()), place));
        }
        // Back to front, up to two rules for each place: `first` if nothing came before, `later` with a comma. Past the
        // first required member something always came before.
        let first_required = members.iter().position(|(_, is_required, _)| *is_required).unwrap_or(members.len());
        let mut first: Option<String> = None;
        let mut later: Option<String> = None;
        for (index, (member, is_required, place)) in members.iter().enumerate().rev() {
            let skip = |rule: &Option<String>| match (is_required, rule) {
                (true, _) => String::new(),
                (false, None) => " | \"\"".to_owned(),
                (false, Some(rule)) => format!(" | {rule}"),
            };
            let then = later.as_ref().map_or(String::new(), |rule| format!(" {rule}"));
            let first_body = format!("{member}{then}{}", skip(&first));
            let later_body = format!("\",\"{blank} {member}{then}{}", skip(&later));
            if index <= first_required {
                first = Some(self.rule(place, &first_body)?);
            }
            if index > 0 {
                later = Some(self.rule(place, &later_body)?);
            }
        }
        let body = first.map_or("\"{}\"".to_owned(), |first| format!("\"{{\" {first} \"}}\""));
        self.rule(pointer, &body)
    }
}

/// Repetition of an item between `min` and `max` times.
fn times(min: u64, max: Option<u64>) -> String {
    match (min, max) {
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (min, None) => format!("{{{min},}}"),
        (0, Some(1)) => "?".to_owned(),
        (min, Some(max)) if min == max => format!("{{{min}}}"),
        (min, Some(max)) => format!("{{{min},{max}}}"),
    }
}

// Dates with the days of their months; 29 February in years divisible by 4, of the full centuries by 400.
macro_rules! date {
    () => {
        concat!(
            "([0-9]{4} \"-\" ((\"01\" | \"03\" | \"05\" | \"07\" | \"08\" | \"10\" | \"12\") \"-\" (\"0\" [1-9] | [12] [0-9] | \"3\" [01])",
            " | (\"04\" | \"06\" | \"09\" | \"11\") \"-\" (\"0\" [1-9] | [12] [0-9] | \"30\")",
            " | \"02-\" (\"0\" [1-9] | \"1\" [0-9] | \"2\" [0-8]))",
            " | ([0-9] [0-9] (\"0\" [48] | [2468] [048] | [13579] [26]) | ([02468] [048] | [13579] [26]) \"00\") \"-02-29\")"
        )
    };
}
macro_rules! time {
    () => {
        concat!(
            "([01] [0-9] | \"2\" [0-3]) \":\" [0-5] [0-9] \":\" [0-5] [0-9] (\".\" [0-9]{1,9})?",
            " (\"Z\" | [+-] ([01] [0-9] | \"2\" [0-3]) \":\" [0-5] [0-9])"
        )
    };
}
macro_rules! octet {
    () => {
        "(\"25\" [0-5] | \"2\" [0-4] [0-9] | \"1\" [0-9] [0-9] | [1-9]? [0-9])"
    };
}

/// Format, GBNF, shortest and longest text in characters.
const FORMATS: [(&str, &str, u64, u64); 6] = [
    ("date", date!(), 10, 10),
    ("time", time!(), 9, 24),
    ("date-time", concat!(date!(), " \"T\" ", time!()), 20, 35),
    (
        "uuid",
        "[0-9a-fA-F]{8} \"-\" [0-9a-fA-F]{4} \"-\" [0-9a-fA-F]{4} \"-\" [0-9a-fA-F]{4} \"-\" [0-9a-fA-F]{12}",
        36,
        36,
    ),
    ("ipv4", concat!(octet!(), " \".\" ", octet!(), " \".\" ", octet!(), " \".\" ", octet!()), 7, 15),
    (
        "email",
        "[A-Za-z0-9_+-]{1,20} (\".\" [A-Za-z0-9_+-]{1,20}){0,2} \"@\" [a-z0-9]{1,20} (\"-\" [a-z0-9]{1,20}){0,2} \
         (\".\" [a-z0-9]{1,20}){0,2} \".\" [a-z]{2,10}",
        6,
        178,
    ),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Null,
    Boolean,
    Integer,
    Number,
    String,
    Array,
    Object,
}

impl Kind {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "null" => Self::Null,
            "boolean" => Self::Boolean,
            "integer" => Self::Integer,
            "number" => Self::Number,
            "string" => Self::String,
            "array" => Self::Array,
            "object" => Self::Object,
            _ => return None,
        })
    }

    /// A bit for each disjoint kind of value; numbers are integers and the rest.
    fn bits(self) -> u8 {
        match self {
            Self::Null => 1,
            Self::Boolean => 2,
            Self::Integer => 4,
            Self::Number => 12,
            Self::String => 16,
            Self::Array => 32,
            Self::Object => 64,
        }
    }

    fn has(self, value: &Value) -> bool {
        self.bits() & bits_of(value) != 0
    }

    fn keywords(self) -> &'static [&'static str] {
        match self {
            Self::Null | Self::Boolean => &[],
            Self::Integer | Self::Number => {
                &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]
            }
            Self::String => &["minLength", "maxLength", "pattern", "format"],
            Self::Array => &["items", "minItems", "maxItems", "uniqueItems"],
            Self::Object => &["properties", "required", "additionalProperties"],
        }
    }
}

fn bits_of(value: &Value) -> u8 {
    match value {
        Value::Null => 1,
        Value::Bool(_) => 2,
        Value::Number(number) => {
            let whole = number.is_i64() || number.is_u64() || number.as_f64().is_some_and(|x| x.fract() == 0.0);
            if whole { 4 } else { 8 }
        }
        Value::String(_) => 16,
        Value::Array(_) => 32,
        Value::Object(_) => 64,
    }
}

/// What is known of a schema's values, to tell branches apart.
struct Summary {
    types: u8,
    /// All values, if they are few and fixed.
    values: Option<Vec<Value>>,
    /// For objects only: required properties with fixed values.
    discriminators: HashMap<String, Vec<Value>>,
}

impl Summary {
    /// Whether no value fits both.
    fn excludes(&self, other: &Self) -> bool {
        if self.types & other.types == 0 {
            return true;
        }
        let differ = |a: &[Value], b: &[Value]| !a.iter().any(|x| b.iter().any(|y| may_equal(x, y)));
        if let (Some(a), Some(b)) = (&self.values, &other.values) {
            return differ(a, b);
        }
        self.types == 64
            && other.types == 64
            && self.discriminators.iter().any(|(name, a)| other.discriminators.get(name).is_some_and(|b| differ(a, b)))
    }
}

/// Whether two values could be equal as JSON Schema sees it (1 and 1.0 are).
fn may_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        // Contents could hold numbers in two spellings: not decided here.
        (Value::Array(_), Value::Array(_)) | (Value::Object(_), Value::Object(_)) => true,
        _ => a == b,
    }
}

fn summarize(
    root: &Value,
    schema: &Value,
    pointer: &str,
    depth: usize,
    fuel: &mut usize,
) -> Result<Summary, SchemaError> {
    check_depth(depth, pointer)?;
    *fuel = fuel.checked_sub(1).ok_or_else(|| SchemaError::TooLarge {
        pointer: pointer.to_owned(),
        what: "places compared for 'oneOf'",
        value: MAX_COMPARED as u64 + 1,
        max: MAX_COMPARED as u64,
    })?;
    let object = as_schema(schema, pointer)?;
    if let Some(reference) = object.get("$ref") {
        let (target, place) = resolve(root, reference, pointer)?;
        return summarize(root, target, &place, depth + 1, fuel);
    }
    let fixed = match (object.get("const"), object.get("enum")) {
        (Some(value), _) => Some(vec![value.clone()]),
        (None, Some(Value::Array(values))) => Some(values.clone()),
        _ => None,
    };
    if let Some(values) = fixed {
        let types = values.iter().fold(0, |bits, value| bits | bits_of(value));
        return Ok(Summary { types, values: Some(values), discriminators: HashMap::new() });
    }
    for keyword in ["oneOf", "anyOf", "allOf"] {
        if let Some(Value::Array(branches)) = object.get(keyword) {
            let mut all = Summary { types: 0, values: Some(Vec::new()), discriminators: HashMap::new() };
            for (index, branch) in branches.iter().enumerate() {
                let part = summarize(root, branch, &format!("{pointer}/{keyword}/{index}"), depth + 1, fuel)?;
                all.types |= part.types;
                all.values = all.values.zip(part.values).map(|(mut all, part)| {
                    all.extend(part);
                    all
                });
                if branches.len() == 1 {
                    all.discriminators = part.discriminators;
                }
            }
            return Ok(all);
        }
    }
    let types = types_of(object, pointer)?.unwrap_or_default().iter().fold(0, |bits, kind| bits | kind.bits());
    let mut discriminators = HashMap::new();
    if let (64, Some(Value::Object(properties))) = (types, object.get("properties")) {
        for name in required(object, pointer)? {
            if let Some(property) = properties.get(name) {
                let place = format!("{pointer}/properties/{}", escape_pointer(name));
                if let Some(values) = summarize(root, property, &place, depth + 1, fuel)?.values {
                    discriminators.insert(name.to_owned(), values);
                }
            }
        }
    }
    Ok(Summary { types, values: None, discriminators })
}

fn integer(object: &Object, pointer: &str) -> Result<String, SchemaError> {
    let mut low = -numbers::MAX_INTEGER;
    let mut high = numbers::MAX_INTEGER;
    for keyword in ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"] {
        let Some(bound) = object.get(keyword) else { continue };
        // The bound lies in floor..=ceil; the two differ when it is no whole number.
        let (floor, ceil) = whole_around(bound, keyword, pointer)?;
        match keyword {
            "minimum" => low = low.max(ceil),
            "exclusiveMinimum" => low = low.max(floor + 1),
            "maximum" => high = high.min(floor),
            _ => high = high.min(ceil - 1),
        }
    }
    match object.get("multipleOf") {
        None => {}
        Some(value) if value.as_f64() == Some(1.0) => {}
        Some(_) => return Err(unsupported(pointer, "multipleOf", "list the values as 'enum'")),
    }
    numbers::integers(low, high).ok_or_else(|| SchemaError::Unsatisfiable {
        pointer: pointer.to_owned(),
        problem: "there is no integer of at most 18 digits between the bounds".to_owned(),
    })
}

fn number(object: &Object, pointer: &str) -> Result<String, SchemaError> {
    if object.contains_key("multipleOf") {
        return Err(unsupported(pointer, "multipleOf", "list the values as 'enum', or use 'integer'"));
    }
    let bound = |keyword: &str, open: bool| -> Result<Option<Bound>, SchemaError> {
        let Some(value) = object.get(keyword) else { return Ok(None) };
        let (floor, ceil) = whole_around(value, keyword, pointer)?;
        if floor != ceil {
            return Err(unsupported(pointer, keyword, "bounds of numbers must be whole; scale the unit"));
        }
        Ok(Some(Bound { value: floor, open }))
    };
    let stricter = |a: Option<Bound>, b: Option<Bound>, upper: bool| match (a, b) {
        (Some(closed), Some(open)) => {
            let open_wins = if upper { open.value <= closed.value } else { open.value >= closed.value };
            Some(if open_wins { open } else { closed })
        }
        (a, b) => a.or(b),
    };
    let low = stricter(bound("minimum", false)?, bound("exclusiveMinimum", true)?, false);
    let high = stricter(bound("maximum", false)?, bound("exclusiveMaximum", true)?, true);
    numbers::numbers(low, high).ok_or_else(|| SchemaError::Unsatisfiable {
        pointer: pointer.to_owned(),
        problem: "there is no number below a thousand million between the bounds".to_owned(),
    })
}

/// Largest integer not above, and smallest not below, a JSON number.
fn whole_around(value: &Value, keyword: &str, pointer: &str) -> Result<(i128, i128), SchemaError> {
    let Value::Number(number) = value else {
        return Err(malformed(pointer, keyword, "must be a number"));
    };
    if let Some(whole) = number.as_i64() {
        return Ok((whole.into(), whole.into()));
    }
    if let Some(whole) = number.as_u64() {
        return Ok((whole.into(), whole.into()));
    }
    let Some(value) = number.as_f64().filter(|value| value.is_finite()) else {
        return Err(malformed(pointer, keyword, "must be a finite number"));
    };
    // Beyond what any number of the grammar reaches the exact value does not matter.
    let clipped = value.clamp(-1e30, 1e30);
    #[expect(clippy::cast_possible_truncation, reason = "clipped to the range of i128 just above")]
    Ok((clipped.floor() as i128, clipped.ceil() as i128))
}

fn required<'a>(object: &'a Object, pointer: &str) -> Result<HashSet<&'a str>, SchemaError> {
    let mut names = HashSet::new();
    let list = match object.get("required") {
        None => return Ok(names),
        Some(Value::Array(list)) => list,
        Some(_) => return Err(malformed(pointer, "required", "must be a list of names")),
    };
    for name in list {
        let Some(name) = name.as_str() else {
            return Err(malformed(pointer, "required", "must be a list of names"));
        };
        if !names.insert(name) {
            return Err(malformed(pointer, "required", &format!("names '{name}' twice")));
        }
    }
    Ok(names)
}

fn count(object: &Object, keyword: &str, pointer: &str) -> Result<Option<u64>, SchemaError> {
    let Some(value) = object.get(keyword) else { return Ok(None) };
    // A count may be spelt as a float (3.0).
    let (floor, ceil) = whole_around(value, keyword, pointer)?;
    match u64::try_from(floor) {
        Ok(count) if floor == ceil => Ok(Some(count)),
        _ => Err(malformed(pointer, keyword, "must be a whole number of at least 0")),
    }
}

fn check_order(min: u64, max: Option<u64>, low: &str, high: &str, pointer: &str) -> Result<(), SchemaError> {
    if let Some(max) = max
        && min > max
    {
        let problem = format!("{low} {min} is above {high} {max}");
        return Err(SchemaError::Unsatisfiable { pointer: pointer.to_owned(), problem });
    }
    Ok(())
}

fn types_of(object: &Object, pointer: &str) -> Result<Option<Vec<Kind>>, SchemaError> {
    let names: Vec<&Value> = match object.get("type") {
        None => return Ok(None),
        Some(Value::Array(names)) if !names.is_empty() => names.iter().collect(),
        Some(name) => vec![name],
    };
    let mut kinds = Vec::new();
    for name in names {
        let Some(kind) = name.as_str().and_then(Kind::named) else {
            return Err(malformed(pointer, "type", &format!("{name} is no type of JSON Schema")));
        };
        if kinds.contains(&kind) {
            return Err(malformed(pointer, "type", &format!("lists {name} twice")));
        }
        kinds.push(kind);
    }
    // Every integer is a number.
    if kinds.contains(&Kind::Number) {
        kinds.retain(|&kind| kind != Kind::Integer);
    }
    Ok(Some(kinds))
}

const KEYWORDS: [&str; 27] = [
    "type",
    "enum",
    "const",
    "$ref",
    "$defs",
    "definitions",
    "$schema",
    "$id",
    "oneOf",
    "anyOf",
    "allOf",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "minItems",
    "maxItems",
    "uniqueItems",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
];

fn check_known(object: &Object, pointer: &str) -> Result<(), SchemaError> {
    for keyword in object.keys() {
        let known = KEYWORDS.contains(&keyword.as_str()) || ANNOTATIONS.contains(&keyword.as_str());
        if !known {
            return Err(unsupported(pointer, keyword, "remove it, or say the same with supported keywords"));
        }
        if !pointer.is_empty() && (keyword == "$defs" || keyword == "definitions") {
            return Err(unsupported(pointer, keyword, "move definitions to the top of the schema"));
        }
    }
    Ok(())
}

/// Keywords of other types say nothing in JSON Schema, which is never what their author meant.
fn check_applicable(object: &Object, types: &[Kind], pointer: &str) -> Result<(), SchemaError> {
    let general = ["type", "$defs", "definitions", "$schema", "$id"];
    for keyword in object.keys() {
        let name = keyword.as_str();
        let fits = general.contains(&name)
            || ANNOTATIONS.contains(&name)
            || types.iter().any(|kind| kind.keywords().contains(&name));
        if !fits {
            return Err(unsupported(pointer, keyword, "it does not apply to the given type; remove it"));
        }
    }
    Ok(())
}

/// Refuses keywords beside one that is converted alone.
fn only(object: &Object, allowed: &[&str], pointer: &str, with: &str) -> Result<(), SchemaError> {
    for keyword in object.keys() {
        let name = keyword.as_str();
        let root =
            pointer.is_empty() && (name == "$schema" || name == "$id" || name == "$defs" || name == "definitions");
        if !root && !allowed.contains(&name) && !ANNOTATIONS.contains(&name) {
            return Err(unsupported(pointer, keyword, &format!("it cannot stand beside '{with}'")));
        }
    }
    Ok(())
}

fn check_root(object: &Object) -> Result<(), SchemaError> {
    if let Some(draft) = object.get("$schema") {
        const DRAFTS: [&str; 3] = [
            "https://json-schema.org/draft/2020-12/schema",
            "https://json-schema.org/draft/2019-09/schema",
            "http://json-schema.org/draft-07/schema",
        ];
        let known = draft.as_str().is_some_and(|draft| DRAFTS.contains(&draft.trim_end_matches('#')));
        if !known {
            return Err(unsupported("", "$schema", "use draft 2020-12, 2019-09 or 07"));
        }
    }
    for keyword in ["$defs", "definitions"] {
        if object.get(keyword).is_some_and(|value| !value.is_object()) {
            return Err(malformed("", keyword, "must be an object of schemas"));
        }
    }
    Ok(())
}

fn as_schema<'a>(schema: &'a Value, pointer: &str) -> Result<&'a Object, SchemaError> {
    match schema {
        Value::Object(object) => Ok(object),
        Value::Bool(true) => Err(unsupported(pointer, "true", "say which values are meant")),
        Value::Bool(false) => {
            let problem = "the schema is 'false'".to_owned();
            Err(SchemaError::Unsatisfiable { pointer: pointer.to_owned(), problem })
        }
        _ => Err(malformed(pointer, "(schema)", "must be an object")),
    }
}

fn check_depth(depth: usize, pointer: &str) -> Result<(), SchemaError> {
    if depth > MAX_DEPTH {
        // A reference cycle is caught before; this is a schema that really nests so deeply.
        return Err(SchemaError::TooLarge {
            pointer: pointer.chars().take(200).collect(),
            what: "schemas in one another",
            value: depth as u64,
            max: MAX_DEPTH as u64,
        });
    }
    Ok(())
}

/// The place that a reference means: the schema and its JSON pointer.
fn resolve<'a>(root: &'a Value, reference: &Value, pointer: &str) -> Result<(&'a Value, String), SchemaError> {
    let Some(text) = reference.as_str() else {
        return Err(malformed(pointer, "$ref", "must be a string"));
    };
    let unknown = || SchemaError::UnknownReference { pointer: pointer.to_owned(), reference: text.to_owned() };
    let place =
        text.strip_prefix('#').filter(|place| place.is_empty() || place.starts_with('/')).ok_or_else(unknown)?;
    // Percent-encoding would be another spelling of the same place.
    if place.contains('%') {
        return Err(unknown());
    }
    let target = root.pointer(place).ok_or_else(unknown)?;
    Ok((target, place.to_owned()))
}

fn escape_pointer(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

fn unsupported(pointer: &str, keyword: &str, hint: &str) -> SchemaError {
    SchemaError::Unsupported { pointer: pointer.to_owned(), keyword: keyword.to_owned(), hint: hint.to_owned() }
}

fn malformed(pointer: &str, keyword: &str, problem: &str) -> SchemaError {
    SchemaError::Malformed { pointer: pointer.to_owned(), keyword: keyword.to_owned(), problem: problem.to_owned() }
}
