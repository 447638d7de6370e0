//! Filters, tests and functions: jinja2's, and those that transformers adds.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::rc::Rc;

use super::machine::{Given, Machine, Run, namespace_name, undefined};
use super::methods;
use super::python::{self, Json};
use super::text::{Ch, Text};
use super::value::{Dict, Number, Value, compare, equal, range_length};

/// Functions of the environment.
pub(super) const FUNCTIONS: [&str; 8] =
    ["range", "dict", "namespace", "cycler", "joiner", "raise_exception", "strftime_now", "lipsum"];

/// Longest range that jinja2's sandbox makes.
const MAX_RANGE: usize = 100_000;

fn whole(what: &str, value: Option<&Value>, default: i64) -> Run<i64> {
    match value {
        None => Ok(default),
        Some(Value::Int(n)) => Ok(*n),
        Some(Value::Bool(b)) => Ok(i64::from(*b)),
        Some(Value::Undefined(u)) => Err(undefined(u)),
        Some(other) => Err(format!("{what} needs a whole number, not a {}", other.type_name())),
    }
}

fn elements(machine: &Machine, what: &str, value: &Value) -> Run<Vec<Value>> {
    machine.pay(value.length().unwrap_or(0))?;
    value.elements().ok_or_else(|| format!("{what} cannot go through a {}", value.type_name()))
}

pub(super) fn function(machine: &Machine, name: &str, given: Given) -> Run<Value> {
    match name {
        "raise_exception" => {
            given.only(name, &["message"])?;
            let message = given.get(0, "message").and_then(Value::print).map(|t| t.plain());
            Err(message.unwrap_or_default())
        }
        "strftime_now" => {
            given.only(name, &["format"])?;
            match given.get(0, "format") {
                Some(Value::Str(format)) => Ok(Value::Str(python::strftime(machine.now, format)?)),
                _ => Err("strftime_now needs a format".into()),
            }
        }
        "range" => {
            given.only(name, &["start", "stop", "step"])?;
            if !given.named.is_empty() {
                return Err("range takes no named arguments".into());
            }
            let at = |i| whole("range", given.positional.get(i), 0);
            let (start, stop, step) = match given.positional.len() {
                1 => (0, at(0)?, 1),
                2 => (at(0)?, at(1)?, 1),
                3 => (at(0)?, at(1)?, at(2)?),
                _ => return Err("range needs its end".into()),
            };
            if step == 0 {
                return Err("range of step 0".into());
            }
            if range_length(start, stop, step) > MAX_RANGE {
                return Err(format!("range of more than {MAX_RANGE} elements"));
            }
            Ok(Value::Range(start, stop, step))
        }
        "dict" | "namespace" => {
            let mut dict = Dict::default();
            if given.positional.len() > 1 {
                return Err(format!("{name} takes one argument and named ones"));
            }
            match given.positional.first() {
                None => {}
                Some(Value::Dict(from)) => dict = (**from).clone(),
                Some(Value::Undefined(u)) => return Err(undefined(u)),
                Some(pairs) => {
                    for pair in elements(machine, name, pairs)? {
                        match pair.elements().as_deref() {
                            Some([key, value]) => {
                                super::machine::hashable(key)?;
                                dict.insert(key.clone(), value.clone());
                            }
                            _ => return Err(format!("{name} needs pairs")),
                        }
                    }
                }
            }
            for (key, value) in given.named {
                dict.insert(Value::str(&key), value);
            }
            if name == "dict" {
                return Ok(Value::Dict(Rc::new(dict)));
            }
            for (key, _) in dict.iter() {
                match key {
                    Value::Str(text) => namespace_name(&text.plain())?,
                    other => return Err(format!("a namespace with a {} as a name", other.type_name())),
                }
            }
            Ok(Value::Namespace(Rc::new(RefCell::new(dict))))
        }
        "cycler" => {
            if given.positional.is_empty() || !given.named.is_empty() {
                return Err("cycler needs something to cycle through".into());
            }
            Ok(Value::Cycler(Rc::new(RefCell::new((given.positional, 0)))))
        }
        "joiner" => {
            given.only(name, &["sep"])?;
            match given.get(0, "sep") {
                None => Ok(Value::Joiner(Rc::new(RefCell::new((Text::own(", "), false))))),
                Some(Value::Str(by)) => Ok(Value::Joiner(Rc::new(RefCell::new((by.clone(), false))))),
                Some(other) => Err(format!("joiner needs a string, not a {}", other.type_name())),
            }
        }
        _ => Err(format!("the function {name} is not supported")),
    }
}

/// HTML's escapes, as `markupsafe` writes them.
pub(super) fn escape(text: &Text) -> Run<Text> {
    Ok(text
        .chars()
        .iter()
        .flat_map(|ch| {
            let escaped = match ch.char() {
                '&' => "&amp;",
                '<' => "&lt;",
                '>' => "&gt;",
                '\'' => "&#39;",
                '"' => "&#34;",
                _ => return vec![*ch],
            };
            escaped.chars().map(|c| ch.with(c)).collect()
        })
        .collect())
}

/// The value behind a dotted path, as filters take it.
fn path(machine: &Machine, value: &Value, path: &Value) -> Run<Value> {
    let Value::Str(text) = path else { return machine.item(value, path) };
    let mut value = value.clone();
    for part in text.plain().split('.') {
        let index = match part.parse::<i64>() {
            Ok(n) if part.bytes().all(|b| b.is_ascii_digit()) => Value::Int(n),
            _ => Value::str(part),
        };
        value = machine.item(&value, &index)?;
    }
    Ok(value)
}

/// The text of a value, without regard to case where it is one.
fn folded(value: Value, case_sensitive: bool) -> Value {
    match value {
        Value::Str(text) if !case_sensitive => Value::Str(methods::lower(&text)),
        other => other,
    }
}

fn ordered(a: &Value, b: &Value) -> Run<Ordering> {
    match compare(a, b) {
        Some(order) => Ok(order.unwrap_or(Ordering::Equal)),
        None => match (a, b) {
            (Value::Undefined(u), _) | (_, Value::Undefined(u)) => Err(undefined(u)),
            _ => Err(format!("a {} and a {} have no order", a.type_name(), b.type_name())),
        },
    }
}

fn sorted(items: &mut [(Value, Value)], reverse: bool) -> Run<()> {
    let mut failed = None;
    items.sort_by(|a, b| {
        let order = ordered(&a.0, &b.0).unwrap_or_else(|e| {
            failed.get_or_insert(e);
            Ordering::Equal
        });
        if reverse { order.reverse() } else { order }
    });
    failed.map_or(Ok(()), Err)
}

fn flag(given: &Given, at: usize, name: &str) -> bool {
    given.get(at, name).is_some_and(Value::truth)
}

#[expect(clippy::too_many_lines, reason = "a table of the filters, one arm each")]
pub(super) fn filter(machine: &Machine, name: &str, value: Value, given: &Given) -> Run<Value> {
    let no_more = || given.only(name, &[]);
    let text = || machine.print(&value);
    Ok(match name {
        "default" | "d" => {
            given.only(name, &["default_value", "boolean"])?;
            let missing = matches!(value, Value::Undefined(_)) || (flag(given, 1, "boolean") && !value.truth());
            if !missing {
                return Ok(value);
            }
            given.get(0, "default_value").cloned().unwrap_or_else(|| Value::str(""))
        }
        "length" | "count" => {
            no_more()?;
            Value::int(value.length().ok_or_else(|| format!("a {} has no length", value.type_name()))?)
        }
        "upper" => {
            no_more()?;
            Value::Str(methods::upper(&text()?))
        }
        "lower" => {
            no_more()?;
            Value::Str(methods::lower(&text()?))
        }
        "capitalize" => {
            no_more()?;
            Value::Str(methods::capitalize(&text()?))
        }
        "title" => {
            no_more()?;
            Value::Str(title(&text()?))
        }
        "trim" => {
            given.only(name, &["chars"])?;
            let text = text()?;
            let set = match given.get(0, "chars") {
                None | Some(Value::None) => None,
                Some(Value::Str(set)) => Some(set),
                Some(other) => return Err(format!("trim needs a string, not a {}", other.type_name())),
            };
            Value::Str(methods::strip(&text, set, true, true))
        }
        "string" => {
            no_more()?;
            Value::Str(text()?)
        }
        "tojson" => {
            given.only(name, &["ensure_ascii", "indent", "separators", "sort_keys"])?;
            let indent = match given.get(1, "indent") {
                None | Some(Value::None) => None,
                Some(Value::Str(text)) => Some(text.plain()),
                other => Some(" ".repeat(usize::try_from(whole(name, other, 0)?.clamp(0, 1000)).unwrap_or(0))),
            };
            let separators = match given.get(2, "separators") {
                None | Some(Value::None) => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
                Some(pair) => match pair.elements().as_deref() {
                    Some([Value::Str(item), Value::Str(key)]) => (item.plain(), key.plain()),
                    _ => return Err("tojson: separators are two strings".into()),
                },
            };
            let how =
                Json { ascii: flag(given, 0, "ensure_ascii"), indent, separators, sorted: flag(given, 3, "sort_keys") };
            let out = python::json(&value, &how)?;
            machine.pay(out.len())?;
            Value::Str(out)
        }
        "replace" => {
            given.only(name, &["old", "new", "count"])?;
            let part =
                |at, key| given.get(at, key).map(|v| machine.print(v)).ok_or("replace needs what and by what")?;
            let count = match given.get(2, "count") {
                None | Some(Value::None) => None,
                other => Some(whole(name, other, -1)?),
            };
            Value::Str(methods::replace(machine, &text()?, &part(0, "old")?, &part(1, "new")?, count)?)
        }
        "indent" => indent(machine, &value, given)?,
        "join" => {
            given.only(name, &["d", "attribute"])?;
            let by = given.get(0, "d").map_or(Ok(Text::own("")), |by| machine.print(by))?;
            let mut out: Vec<Ch> = Vec::new();
            for (i, item) in elements(machine, name, &value)?.iter().enumerate() {
                let item = match given.get(1, "attribute") {
                    None | Some(Value::None) => item.clone(),
                    Some(attribute) => path(machine, item, attribute)?,
                };
                let item = machine.print(&item)?;
                machine.pay(item.len() + by.len())?;
                if i > 0 {
                    out.extend_from_slice(by.chars());
                }
                out.extend_from_slice(item.chars());
            }
            Value::Str(out.into())
        }
        "first" => {
            no_more()?;
            let first = elements(machine, name, &value)?.into_iter().next();
            first.unwrap_or_else(|| Value::undefined("No first item, sequence was empty."))
        }
        "last" => {
            no_more()?;
            if matches!(value, Value::Once(_)) {
                return Err("a generator has no last item".into());
            }
            let last = elements(machine, name, &value)?.pop();
            last.unwrap_or_else(|| Value::undefined("No last item, sequence was empty."))
        }
        "list" => {
            no_more()?;
            Value::list(elements(machine, name, &value)?)
        }
        "items" => {
            no_more()?;
            match &value {
                Value::Undefined(_) => Value::once(Vec::new()),
                Value::Dict(dict) => Value::once(dict.pairs()),
                other => return Err(format!("items of a {}", other.type_name())),
            }
        }
        "reverse" => {
            no_more()?;
            if let Value::Str(text) = &value {
                return Ok(Value::Str(text.chars().iter().rev().copied().collect()));
            }
            let mut items = elements(machine, name, &value)?;
            items.reverse();
            // `reversed` of what has an order, and a list of what has none.
            if matches!(value, Value::Once(_)) { Value::list(items) } else { Value::once(items) }
        }
        "sort" => {
            given.only(name, &["reverse", "case_sensitive", "attribute"])?;
            let mut items =
                keyed(machine, name, &value, given.get(2, "attribute"), flag(given, 1, "case_sensitive"), true)?;
            sorted(&mut items, flag(given, 0, "reverse"))?;
            Value::list(items.into_iter().map(|(_, v)| v).collect())
        }
        "unique" => {
            given.only(name, &["case_sensitive", "attribute"])?;
            let items =
                keyed(machine, name, &value, given.get(1, "attribute"), flag(given, 0, "case_sensitive"), false)?;
            let mut seen: Vec<Value> = Vec::new();
            let mut kept = Vec::new();
            for (key, item) in items {
                super::machine::hashable(&key)?;
                machine.pay(seen.len())?;
                if !seen.iter().any(|s| equal(s, &key)) {
                    seen.push(key);
                    kept.push(item);
                }
            }
            Value::once(kept)
        }
        "min" | "max" => {
            given.only(name, &["case_sensitive", "attribute"])?;
            let items =
                keyed(machine, name, &value, given.get(1, "attribute"), flag(given, 0, "case_sensitive"), false)?;
            let mut best: Option<(Value, Value)> = None;
            for (key, item) in items {
                let better = match &best {
                    None => true,
                    Some((least, _)) => {
                        ordered(&key, least)? == if name == "min" { Ordering::Less } else { Ordering::Greater }
                    }
                };
                if better {
                    best = Some((key, item));
                }
            }
            best.map_or_else(|| Value::undefined("No aggregated item, sequence was empty."), |(_, item)| item)
        }
        "sum" => {
            given.only(name, &["attribute", "start"])?;
            let mut total = given.get(1, "start").cloned().unwrap_or(Value::Int(0));
            for item in elements(machine, name, &value)? {
                let item = match given.get(0, "attribute") {
                    None | Some(Value::None) => item,
                    Some(attribute) => path(machine, &item, attribute)?,
                };
                total = match (total.number(), item.number()) {
                    (Some(Number::Int(a)), Some(Number::Int(b))) => {
                        Value::Int(a.checked_add(b).ok_or("a whole number beyond 64 bits")?)
                    }
                    (Some(a), Some(b)) => Value::Float(a.float() + b.float()),
                    _ => return Err(format!("sum of a {}", item.type_name())),
                };
            }
            total
        }
        "abs" => {
            no_more()?;
            match value.number() {
                Some(Number::Int(n)) => Value::Int(n.checked_abs().ok_or("a whole number beyond 64 bits")?),
                Some(Number::Float(x)) => Value::Float(x.abs()),
                None => return Err(format!("abs of a {}", value.type_name())),
            }
        }
        "round" => round(&value, given)?,
        "int" => int(&value, given)?,
        "float" => {
            given.only(name, &["default"])?;
            let parsed = match &value {
                Value::Str(text) => python_float(&text.plain()),
                other => other.number().map(Number::float),
            };
            match parsed {
                Some(x) => Value::Float(x),
                None if matches!(value, Value::Undefined(_)) => return Err("float of what is undefined".into()),
                None => given.get(0, "default").cloned().unwrap_or(Value::Float(0.0)),
            }
        }
        "dictsort" => {
            given.only(name, &["case_sensitive", "by", "reverse"])?;
            let Value::Dict(dict) = &value else { return Err(format!("dictsort of a {}", value.type_name())) };
            let by = match given.get(1, "by") {
                None => 0,
                Some(Value::Str(text)) if text.is("key") => 0,
                Some(Value::Str(text)) if text.is("value") => 1,
                Some(_) => return Err("dictsort: by is 'key' or 'value'".into()),
            };
            let sensitive = flag(given, 0, "case_sensitive");
            let mut items: Vec<(Value, Value)> = dict
                .iter()
                .zip(dict.pairs())
                .map(|((k, v), pair)| (folded(if by == 0 { k.clone() } else { v.clone() }, sensitive), pair))
                .collect();
            sorted(&mut items, flag(given, 2, "reverse"))?;
            Value::list(items.into_iter().map(|(_, pair)| pair).collect())
        }
        "map" => map(machine, &value, given)?,
        "select" | "reject" => {
            let mut kept = Vec::new();
            for item in elements(machine, name, &value)? {
                if chosen(machine, name, &item, given, 0)? == (name == "select") {
                    kept.push(item);
                }
            }
            Value::once(kept)
        }
        "selectattr" | "rejectattr" => {
            let Some(attribute) = given.positional.first() else { return Err(format!("{name} needs an attribute")) };
            let mut kept = Vec::new();
            for item in elements(machine, name, &value)? {
                let found = path(machine, &item, attribute)?;
                if chosen(machine, name, &found, given, 1)? == (name == "selectattr") {
                    kept.push(item);
                }
            }
            Value::once(kept)
        }
        _ => return Err(format!("the filter {name} is not supported")),
    })
}

/// Elements with what they are compared by.
fn keyed(
    machine: &Machine,
    what: &str,
    value: &Value,
    attribute: Option<&Value>,
    case_sensitive: bool,
    several: bool,
) -> Run<Vec<(Value, Value)>> {
    let mut out = Vec::new();
    for item in elements(machine, what, value)? {
        let key = match attribute {
            None | Some(Value::None) => item.clone(),
            Some(Value::Str(text)) if text.plain().contains(',') => {
                if !several {
                    return Err(format!("{what} by several attributes is not supported"));
                }
                let mut keys = Vec::new();
                for part in text.plain().split(',') {
                    keys.push(folded(path(machine, &item, &Value::str(part))?, case_sensitive));
                }
                Value::list(keys)
            }
            Some(attribute) => path(machine, &item, attribute)?,
        };
        out.push((folded(key, case_sensitive), item));
    }
    Ok(out)
}

/// The rest of the arguments as a test's, or truth without one.
fn chosen(machine: &Machine, what: &str, value: &Value, given: &Given, at: usize) -> Run<bool> {
    match given.positional.get(at) {
        None if given.named.is_empty() => Ok(value.truth()),
        Some(Value::Str(name)) => {
            let rest = Given { positional: given.positional[at + 1..].to_vec(), named: given.named.clone() };
            test(machine, &name.plain(), value, &rest)
        }
        _ => Err(format!("{what} needs the name of a test")),
    }
}

fn map(machine: &Machine, value: &Value, given: &Given) -> Run<Value> {
    let mut out = Vec::new();
    let items = elements(machine, "map", value)?;
    if let Some(Value::Str(name)) = given.positional.first() {
        let name = name.plain();
        for item in items {
            let rest = Given { positional: given.positional[1..].to_vec(), named: given.named.clone() };
            out.push(filter(machine, &name, item, &rest)?);
        }
        return Ok(Value::once(out));
    }
    if !given.positional.is_empty() || given.named.iter().any(|(n, _)| n != "attribute" && n != "default") {
        return Err("map needs the name of a filter, or attribute=".into());
    }
    let Some(attribute) = given.get(0, "attribute") else { return Err("map needs a filter or attribute=".into()) };
    let default = given.named.iter().find(|(n, _)| n == "default").map(|(_, v)| v);
    for item in items {
        let found = path(machine, &item, attribute)?;
        out.push(match (found, default) {
            (Value::Undefined(_), Some(default)) => default.clone(),
            (found, _) => found,
        });
    }
    Ok(Value::once(out))
}

/// The filter `title`: the letter behind a space, a hyphen or an opening bracket is large.
fn title(text: &Text) -> Text {
    let mut out: Vec<Ch> = Vec::new();
    let splits = |c: char| super::text::is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    let chars = text.chars();
    let mut at = 0;
    while at < chars.len() {
        let kind = splits(chars[at].char());
        let end = chars[at..].iter().position(|c| splits(c.char()) != kind).map_or(chars.len(), |n| at + n);
        out.extend_from_slice(methods::upper(&text.slice(at, at + 1)).chars());
        out.extend_from_slice(methods::lower(&text.slice(at + 1, end)).chars());
        at = end;
    }
    out.into()
}

fn indent(machine: &Machine, value: &Value, given: &Given) -> Run<Value> {
    given.only("indent", &["width", "first", "blank"])?;
    let Value::Str(text) = value else { return Err(format!("indent of a {}", value.type_name())) };
    let by = match given.get(0, "width") {
        Some(Value::Str(by)) => by.clone(),
        other => {
            let width = usize::try_from(whole("indent", other, 4)?).unwrap_or(0);
            machine.pay(width)?;
            Text::own(&" ".repeat(width))
        }
    };
    let (first, blank) = (flag(given, 1, "first"), flag(given, 2, "blank"));
    // A line end of its own, so that a last one is seen.
    let with_end: Text = text.chars().iter().copied().chain([Ch::new('\n', false)]).collect();
    let mut out: Vec<Ch> = Vec::new();
    for (i, line) in methods::lines(&with_end, false).iter().enumerate() {
        machine.pay(line.len() + by.len())?;
        if i > 0 {
            out.push(Ch::new('\n', false));
        }
        let indented = if i == 0 { first } else { blank || !line.is_empty() };
        if indented {
            out.extend_from_slice(by.chars());
        }
        out.extend_from_slice(line.chars());
    }
    Ok(Value::Str(out.into()))
}

fn round(value: &Value, given: &Given) -> Run<Value> {
    given.only("round", &["precision", "method"])?;
    let precision = whole("round", given.get(0, "precision"), 0)?;
    let method = match given.get(1, "method") {
        None => "common".to_owned(),
        Some(Value::Str(text)) => text.plain(),
        Some(_) => return Err("round: method is 'common', 'ceil' or 'floor'".into()),
    };
    let Some(number) = value.number() else { return Err(format!("round of a {}", value.type_name())) };
    if !(0..=15).contains(&precision) {
        return Err("round to that precision is not supported".into());
    }
    Ok(match (method.as_str(), number) {
        ("common", Number::Int(n)) => Value::Int(n),
        ("common", Number::Float(x)) => {
            // Both round the exact decimal value half to even.
            let text = format!("{x:.0$}", precision as usize);
            Value::Float(text.parse().map_err(|_| "round of what is no number")?)
        }
        ("ceil" | "floor", number) => {
            let factor = 10f64.powi(precision as i32);
            let scaled = number.float() * factor;
            Value::Float(if method == "ceil" { scaled.ceil() } else { scaled.floor() } / factor)
        }
        _ => return Err("round: method is 'common', 'ceil' or 'floor'".into()),
    })
}

/// Python's `float` of a text.
fn python_float(text: &str) -> Option<f64> {
    let text = text.trim_matches(super::text::is_space);
    let plain = text.to_ascii_lowercase();
    let bare = plain.trim_start_matches(['+', '-']);
    if !matches!(bare, "inf" | "infinity" | "nan") && !bare.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    if text.contains('_') { None } else { plain.parse().ok() }
}

fn int(value: &Value, given: &Given) -> Run<Value> {
    given.only("int", &["default", "base"])?;
    let base = whole("int", given.get(1, "base"), 10)?;
    let default = || given.get(0, "default").cloned().unwrap_or(Value::Int(0));
    if base != 10 {
        return Err("int with a base is not supported".into());
    }
    let from_float = |x: f64| -> Run<Value> {
        if !x.is_finite() {
            return Ok(default());
        }
        if x.abs() >= 9.2e18 {
            return Err("a whole number beyond 64 bits".into());
        }
        Ok(Value::Int(x.trunc() as i64))
    };
    match value {
        Value::Str(text) => {
            let plain = text.plain();
            let trimmed = plain.trim_matches(super::text::is_space);
            let digits = trimmed.trim_start_matches(['+', '-']);
            if !trimmed.is_ascii() || trimmed.contains('_') {
                return Err("int of such a text is not supported".into());
            }
            if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) && trimmed.len() - digits.len() <= 1 {
                return trimmed.parse().map(Value::Int).map_err(|_| "a whole number beyond 64 bits".into());
            }
            match python_float(trimmed) {
                Some(x) => from_float(x),
                None => Ok(default()),
            }
        }
        Value::Undefined(u) => Err(undefined(u)),
        other => match other.number() {
            Some(Number::Int(n)) => Ok(Value::Int(n)),
            Some(Number::Float(x)) => from_float(x),
            None => Ok(default()),
        },
    }
}

pub(super) fn test(machine: &Machine, name: &str, value: &Value, given: &Given) -> Run<bool> {
    let unary = || given.only(&format!("the test {name}"), &[]);
    let other = || -> Run<&Value> {
        given.only(&format!("the test {name}"), &["other"])?;
        given.positional.first().ok_or_else(|| format!("the test {name} needs what to compare with"))
    };
    let defined = || match value {
        Value::Undefined(u) => Err(undefined(u)),
        _ => Ok(()),
    };
    let order = |holds: fn(Ordering) -> bool| -> Run<bool> { Ok(holds(ordered(value, other()?)?)) };
    let whole_value = || match value {
        Value::Int(n) => Ok(*n),
        Value::Bool(b) => Ok(i64::from(*b)),
        Value::Undefined(u) => Err(undefined(u)),
        _ => Err(format!("the test {name} needs a whole number, not a {}", value.type_name())),
    };
    match name {
        "eq" | "equalto" | "==" => return Ok(equal(value, other()?)),
        "ne" | "!=" => return Ok(!equal(value, other()?)),
        "lt" | "lessthan" | "<" => return order(|o| o == Ordering::Less),
        "le" | "<=" => return order(|o| o != Ordering::Greater),
        "gt" | "greaterthan" | ">" => return order(|o| o == Ordering::Greater),
        "ge" | ">=" => return order(|o| o != Ordering::Less),
        "in" => return machine.contains(other()?, value),
        "sameas" => {
            return match (value, other()?) {
                (Value::None, Value::None) => Ok(true),
                (Value::Bool(a), Value::Bool(b)) => Ok(a == b),
                (a, b) if a.type_name() != b.type_name() => Ok(false),
                _ => Err("the test sameas of such values is not supported".into()),
            };
        }
        "divisibleby" => {
            let by = whole("the test divisibleby", Some(other()?), 0)?;
            return match whole_value()?.checked_rem(by) {
                Some(rest) => Ok(rest == 0),
                None => Err("division by zero".into()),
            };
        }
        _ => unary()?,
    }
    Ok(match name {
        "defined" => !matches!(value, Value::Undefined(_)),
        "undefined" => matches!(value, Value::Undefined(_)),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => value.number().is_some(),
        "string" => matches!(value, Value::Str(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        // What has a length and can be indexed.
        "sequence" => matches!(
            value,
            Value::Undefined(_) | Value::Str(_) | Value::List(_) | Value::Tuple(_) | Value::Dict(_) | Value::Range(..)
        ),
        "iterable" => matches!(
            value,
            Value::Undefined(_)
                | Value::Str(_)
                | Value::List(_)
                | Value::Tuple(_)
                | Value::Dict(_)
                | Value::Range(..)
                | Value::View(..)
                | Value::Once(_)
                | Value::Loop(_)
        ),
        "callable" => matches!(
            value,
            Value::Undefined(_)
                | Value::Macro(_)
                | Value::Function(_)
                | Value::Method(..)
                | Value::Joiner(_)
                | Value::Loop(_)
        ),
        "odd" => whole_value()?.rem_euclid(2) == 1,
        "even" => whole_value()?.rem_euclid(2) == 0,
        "lower" | "upper" => {
            defined().or(Ok::<(), String>(()))?;
            let text = machine.print(value)?;
            let given = Given::default();
            methods::call(machine, &Value::Str(text), if name == "lower" { "islower" } else { "isupper" }, &given)?
                .truth()
        }
        _ => return Err(format!("the test {name} is not supported")),
    })
}
