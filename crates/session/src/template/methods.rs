//! The methods of Python's strings, lists and dictionaries.

use std::rc::Rc;

use super::machine::{Given, Machine, Run, loop_method};
use super::text::{Ch, Text, is_space};
use super::value::{Dict, Value, equal};

/// Methods that are run.
const STR: [&str; 37] = [
    "capitalize",
    "center",
    "count",
    "endswith",
    "find",
    "index",
    "isalnum",
    "isalpha",
    "isdecimal",
    "isdigit",
    "islower",
    "isnumeric",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
];
const DICT: [&str; 5] = ["copy", "get", "items", "keys", "values"];
const LIST: [&str; 3] = ["copy", "count", "index"];
const TUPLE: [&str; 2] = ["count", "index"];

/// Attributes that Python has and this does not: named, and never taken for a key of a dictionary.
const OTHERS: [(&str, &[&str]); 6] = [
    (
        "str",
        &[
            "casefold",
            "encode",
            "expandtabs",
            "format",
            "format_map",
            "isascii",
            "isidentifier",
            "isprintable",
            "maketrans",
            "translate",
        ],
    ),
    ("dict", &["clear", "fromkeys", "pop", "popitem", "setdefault", "update"]),
    ("list", &["append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"]),
    (
        "int",
        &[
            "as_integer_ratio",
            "bit_count",
            "bit_length",
            "conjugate",
            "denominator",
            "from_bytes",
            "imag",
            "is_integer",
            "numerator",
            "real",
            "to_bytes",
        ],
    ),
    (
        "bool",
        &[
            "as_integer_ratio",
            "bit_count",
            "bit_length",
            "conjugate",
            "denominator",
            "from_bytes",
            "imag",
            "is_integer",
            "numerator",
            "real",
            "to_bytes",
        ],
    ),
    ("float", &["as_integer_ratio", "conjugate", "fromhex", "hex", "imag", "is_integer", "real"]),
];

/// The method of a value by its name.
///
/// # Errors
/// One that Python has and this does not.
pub(super) fn find(object: &Value, name: &str) -> Run<Option<&'static str>> {
    let known: &[&'static str] = match object {
        Value::Str(_) => &STR,
        Value::Dict(_) => &DICT,
        Value::List(_) => &LIST,
        Value::Tuple(_) | Value::Range(..) => &TUPLE,
        _ => &[],
    };
    if let Some(name) = known.iter().find(|known| **known == name) {
        return Ok(Some(name));
    }
    let kind = object.type_name();
    if OTHERS.iter().any(|(of, names)| *of == kind && names.contains(&name)) {
        return Err(format!("{kind}.{name} is not supported"));
    }
    Ok(None)
}

/// Calls a method.
///
/// # Errors
/// What Python raises, or what is not supported.
pub(super) fn call(machine: &Machine, object: &Value, name: &str, given: &Given) -> Run<Value> {
    match object {
        Value::Str(text) => {
            machine.pay(text.len())?;
            string(machine, text, name, given)
        }
        Value::Dict(dict) => dictionary(dict, name, given),
        Value::List(_) | Value::Tuple(_) | Value::Range(..) => sequence(machine, object, name, given),
        Value::Loop(state) => loop_method(state, name, given),
        Value::Cycler(state) => {
            given.only(name, &[])?;
            let mut state = state.borrow_mut();
            if name == "reset" {
                state.1 = 0;
                return Ok(Value::None);
            }
            let value = state.0[state.1].clone();
            state.1 = (state.1 + 1) % state.0.len();
            Ok(value)
        }
        other => Err(format!("{}.{name} is not supported", other.type_name())),
    }
}

fn dictionary(dict: &Rc<Dict>, name: &str, given: &Given) -> Run<Value> {
    if !given.named.is_empty() {
        return Err(format!("dict.{name} takes no named arguments"));
    }
    let n = given.positional.len();
    if name == "get" {
        if !(1..=2).contains(&n) {
            return Err("dict.get takes a key and perhaps a default".into());
        }
        super::machine::hashable(&given.positional[0])?;
        let found = dict.get(&given.positional[0]).cloned();
        return Ok(found.or_else(|| given.positional.get(1).cloned()).unwrap_or(Value::None));
    }
    given.only(&format!("dict.{name}"), &[])?;
    Ok(match name {
        "copy" => Value::Dict(dict.clone()),
        "items" => Value::View("dict_items", Rc::new(dict.pairs())),
        "keys" => Value::View("dict_keys", Rc::new(dict.keys())),
        _ => Value::View("dict_values", Rc::new(dict.iter().map(|(_, v)| v.clone()).collect())),
    })
}

fn sequence(machine: &Machine, object: &Value, name: &str, given: &Given) -> Run<Value> {
    if name == "copy" {
        given.only("list.copy", &[])?;
        return Ok(object.clone());
    }
    let what = format!("{}.{name}", object.type_name());
    given.only(&what, &["value"])?;
    let (Some(value), Some(items)) = (given.positional.first(), object.elements()) else {
        return Err(format!("{what} takes a value"));
    };
    machine.pay(items.len())?;
    if name == "count" {
        return Ok(Value::int(items.iter().filter(|item| equal(item, value)).count()));
    }
    items.iter().position(|item| equal(item, value)).map(Value::int).ok_or_else(|| format!("{what}: it is not there"))
}

/// Case mapping that keeps each character's origin. A sigma's lower form depends on its place.
pub(super) fn lower(text: &Text) -> Text {
    let whole: Vec<char> = text.plain().to_lowercase().chars().collect();
    let mut whole = whole.into_iter();
    text.chars()
        .iter()
        .flat_map(|ch| {
            let length = ch.char().to_lowercase().count();
            whole.by_ref().take(length).map(|c| ch.with(c)).collect::<Vec<_>>()
        })
        .collect()
}

pub(super) fn upper(text: &Text) -> Text {
    text.chars().iter().flat_map(|ch| ch.char().to_uppercase().map(|c| ch.with(c)).collect::<Vec<_>>()).collect()
}

/// The title case of one character.
fn title_char(ch: Ch) -> Vec<Ch> {
    let digraph = match ch.char() {
        'Ǆ' | 'ǅ' | 'ǆ' => Some('ǅ'),
        'Ǉ' | 'ǈ' | 'ǉ' => Some('ǈ'),
        'Ǌ' | 'ǋ' | 'ǌ' => Some('ǋ'),
        'Ǳ' | 'ǲ' | 'ǳ' => Some('ǲ'),
        _ => None,
    };
    if let Some(c) = digraph {
        return vec![ch.with(c)];
    }
    let mut upper = ch.char().to_uppercase();
    let first = upper.next().map(|c| ch.with(c));
    first.into_iter().chain(upper.flat_map(char::to_lowercase).map(|c| ch.with(c))).collect()
}

fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase() || matches!(c, 'ǅ' | 'ǈ' | 'ǋ' | 'ǲ')
}

/// `str.title`: a letter behind no letter is large, the others are small.
pub(super) fn title(text: &Text) -> Text {
    let small = lower_each(text);
    let mut before = false;
    let mut out = Vec::new();
    for (ch, small) in text.chars().iter().zip(small) {
        out.extend(if before { small } else { title_char(*ch) });
        before = is_cased(ch.char());
    }
    out.into()
}

/// The lower case of each character, with regard to its place.
fn lower_each(text: &Text) -> Vec<Vec<Ch>> {
    let lowered = lower(text);
    let mut at = 0;
    text.chars()
        .iter()
        .map(|ch| {
            let length = ch.char().to_lowercase().count();
            at += length;
            lowered.chars()[at - length..at].to_vec()
        })
        .collect()
}

pub(super) fn capitalize(text: &Text) -> Text {
    let Some((first, _)) = text.chars().split_first() else { return text.clone() };
    let rest = lower_each(text).into_iter().skip(1).flatten();
    title_char(*first).into_iter().chain(rest).collect()
}

/// The ends that `strip` leaves.
pub(super) fn strip(text: &Text, set: Option<&Text>, left: bool, right: bool) -> Text {
    let goes = |ch: &Ch| match set {
        None => is_space(ch.char()),
        Some(set) => set.chars().contains(ch),
    };
    let chars = text.chars();
    let from = if left { chars.iter().position(|c| !goes(c)).unwrap_or(chars.len()) } else { 0 };
    let to = if right { chars.iter().rposition(|c| !goes(c)).map_or(0, |at| at + 1) } else { chars.len() };
    text.slice(from.min(to.max(from)), to.max(from))
}

/// `str.splitlines` without the ends.
pub(super) fn lines(text: &Text, keep: bool) -> Vec<Text> {
    let chars = text.chars();
    let (mut out, mut start, mut at) = (Vec::new(), 0, 0);
    while at < chars.len() {
        let c = chars[at].char();
        let ends =
            matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}');
        if !ends {
            at += 1;
            continue;
        }
        let next = at + if c == '\r' && chars.get(at + 1).is_some_and(|n| n.char() == '\n') { 2 } else { 1 };
        out.push(text.slice(start, if keep { next } else { at }));
        (start, at) = (next, next);
    }
    if start < chars.len() {
        out.push(text.slice(start, chars.len()));
    }
    out
}

/// `str.replace`.
pub(super) fn replace(machine: &Machine, text: &Text, old: &Text, new: &Text, count: Option<i64>) -> Run<Text> {
    let mut left = count.filter(|n| *n >= 0).map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
    let chars = text.chars();
    let mut out: Vec<Ch> = Vec::new();
    let mut at = 0;
    if old.is_empty() {
        machine.pay(text.len().saturating_add(1).saturating_mul(new.len()))?;
        for (i, ch) in chars.iter().enumerate() {
            if left > 0 {
                out.extend_from_slice(new.chars());
                left -= 1;
            }
            out.push(*ch);
            if i + 1 == chars.len() && left > 0 {
                out.extend_from_slice(new.chars());
            }
        }
        if chars.is_empty() && left > 0 {
            out.extend_from_slice(new.chars());
        }
        return Ok(out.into());
    }
    while left > 0
        && let Some(found) = text.find(old.chars(), at)
    {
        machine.pay(found - at + new.len())?;
        out.extend_from_slice(&chars[at..found]);
        out.extend_from_slice(new.chars());
        at = found + old.len();
        left -= 1;
    }
    out.extend_from_slice(&chars[at..]);
    Ok(out.into())
}

fn split(text: &Text, by: Option<&Text>, most: i64, from_right: bool) -> Run<Vec<Text>> {
    let chars = text.chars();
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let mut out = Vec::new();
    let Some(by) = by else {
        let space = |at: usize| is_space(chars[at].char());
        let (mut low, mut high) = (0, chars.len());
        if from_right {
            loop {
                while high > low && space(high - 1) {
                    high -= 1;
                }
                if high == low {
                    break;
                }
                if out.len() == most {
                    out.push(text.slice(low, high));
                    break;
                }
                let end = high;
                while high > low && !space(high - 1) {
                    high -= 1;
                }
                out.push(text.slice(high, end));
            }
            out.reverse();
            return Ok(out);
        }
        loop {
            while low < high && space(low) {
                low += 1;
            }
            if low == high {
                break;
            }
            if out.len() == most {
                out.push(text.slice(low, high));
                break;
            }
            let start = low;
            while low < high && !space(low) {
                low += 1;
            }
            out.push(text.slice(start, low));
        }
        return Ok(out);
    };
    if by.is_empty() {
        return Err("str.split: an empty separator".into());
    }
    if from_right {
        let mut end = chars.len();
        while out.len() < most
            && let Some(found) = rfind(&chars[..end], by.chars())
        {
            out.push(text.slice(found + by.len(), end));
            end = found;
        }
        out.push(text.slice(0, end));
        out.reverse();
        return Ok(out);
    }
    let mut start = 0;
    while out.len() < most
        && let Some(found) = text.find(by.chars(), start)
    {
        out.push(text.slice(start, found));
        start = found + by.len();
    }
    out.push(text.slice(start, chars.len()));
    Ok(out)
}

fn rfind(text: &[Ch], needle: &[Ch]) -> Option<usize> {
    if needle.is_empty() {
        return Some(text.len());
    }
    (needle.len()..=text.len()).rev().map(|end| end - needle.len()).find(|&at| text[at..].starts_with(needle))
}

fn texts(items: Vec<Text>) -> Value {
    Value::list(items.into_iter().map(Value::Str).collect())
}

fn string(machine: &Machine, text: &Text, name: &str, given: &Given) -> Run<Value> {
    let what = format!("str.{name}");
    // Python's string methods take their arguments by place, but for these.
    let names: &[&str] = match name {
        "split" | "rsplit" => &["sep", "maxsplit"],
        "splitlines" => &["keepends"],
        "replace" => &["old", "new", "count"],
        "strip" | "lstrip" | "rstrip" => &["chars"],
        "startswith" | "endswith" | "find" | "rfind" | "index" | "rindex" | "count" => &["value", "start", "end"],
        "join" => &["iterable"],
        "removeprefix" | "removesuffix" | "partition" | "rpartition" => &["value"],
        "center" | "ljust" | "rjust" => &["width", "fillchar"],
        "zfill" => &["width"],
        _ => &[],
    };
    given.only(&what, names)?;
    let by_name = matches!(name, "split" | "rsplit" | "splitlines");
    if let Some((argument, _)) = given.named.first()
        && !(by_name || (name == "replace" && argument == "count"))
    {
        return Err(format!("{what} takes no named argument '{argument}'"));
    }
    let argument = |at: usize| given.get(at, names.get(at).copied().unwrap_or(""));
    let string = |at: usize| -> Run<&Text> {
        match argument(at) {
            Some(Value::Str(text)) => Ok(text),
            Some(Value::Undefined(u)) => Err(super::machine::undefined(u)),
            other => Err(format!("{what} needs a string, not {}", other.map_or("nothing", Value::type_name))),
        }
    };
    let optional = |at: usize| match argument(at) {
        None | Some(Value::None) => Ok(None),
        Some(_) => string(at).map(Some),
    };
    let whole = |at: usize, default: i64| match argument(at) {
        None => Ok(default),
        Some(Value::Int(n)) => Ok(*n),
        Some(Value::Bool(b)) => Ok(i64::from(*b)),
        Some(other) => Err(format!("{what} needs a whole number, not a {}", other.type_name())),
    };
    // The part between `start` and `end`, and where it begins.
    let part = || -> Run<Option<(usize, &[Ch])>> {
        let length = text.len() as i64;
        let bound = |at: usize, default: i64| -> Run<i64> {
            let n = match argument(at) {
                None | Some(Value::None) => default,
                _ => whole(at, default)?,
            };
            Ok(if n < 0 { (n + length).max(0) } else { n })
        };
        let (start, end) = (bound(1, 0)?, bound(2, length)?.min(length));
        if start > end {
            return Ok(None);
        }
        let (start, end) = (start as usize, end as usize);
        Ok(Some((start, &text.chars()[start..end])))
    };
    let ascii = || -> Run<()> {
        match text.chars().iter().all(|c| c.char().is_ascii()) {
            true => Ok(()),
            false => Err(format!("{what} of characters outside ASCII is not supported")),
        }
    };
    let all = |holds: fn(char) -> bool| Value::Bool(!text.is_empty() && text.chars().iter().all(|c| holds(c.char())));
    Ok(match name {
        "lower" => Value::Str(lower(text)),
        "upper" => Value::Str(upper(text)),
        "title" => Value::Str(title(text)),
        "capitalize" => Value::Str(capitalize(text)),
        "swapcase" => {
            ascii()?;
            let swap = |c: char| if c.is_ascii_lowercase() { c.to_ascii_uppercase() } else { c.to_ascii_lowercase() };
            Value::Str(text.chars().iter().map(|ch| ch.with(swap(ch.char()))).collect())
        }
        "strip" => Value::Str(strip(text, optional(0)?, true, true)),
        "lstrip" => Value::Str(strip(text, optional(0)?, true, false)),
        "rstrip" => Value::Str(strip(text, optional(0)?, false, true)),
        "startswith" | "endswith" => {
            let part = part()?;
            let holds = |affix: &Text| {
                part.is_some_and(|(_, part)| {
                    if name == "startswith" { part.starts_with(affix.chars()) } else { part.ends_with(affix.chars()) }
                })
            };
            match argument(0) {
                Some(Value::Tuple(affixes)) => {
                    let mut any = false;
                    for affix in affixes.iter() {
                        let Value::Str(affix) = affix else {
                            return Err(format!("{what} needs strings, not a {}", affix.type_name()));
                        };
                        any |= holds(affix);
                    }
                    Value::Bool(any)
                }
                _ => Value::Bool(holds(string(0)?)),
            }
        }
        "find" | "rfind" | "index" | "rindex" => {
            let needle = string(0)?;
            let found = part()?.and_then(|(start, part)| {
                let at = if name.starts_with('r') {
                    rfind(part, needle.chars())
                } else {
                    super::text::find(part, needle.chars(), 0)
                };
                at.map(|at| at + start)
            });
            match found {
                Some(at) => Value::int(at),
                None if name.ends_with("find") => Value::Int(-1),
                None => return Err(format!("{what}: the string is not there")),
            }
        }
        "count" => {
            let needle = string(0)?;
            let mut n = 0;
            if let Some((_, part)) = part()? {
                let mut at = 0;
                while let Some(found) = super::text::find(part, needle.chars(), at) {
                    n += 1;
                    at = found + needle.len().max(1);
                }
            }
            Value::int(n)
        }
        "split" => texts(split(text, optional(0)?, whole(1, -1)?, false)?),
        "rsplit" => texts(split(text, optional(0)?, whole(1, -1)?, true)?),
        "splitlines" => texts(lines(text, argument(0).is_some_and(Value::truth))),
        "join" => Value::Str(join(machine, text, argument(0).unwrap_or(&Value::None))?),
        "replace" => Value::Str(replace(machine, text, string(0)?, string(1)?, Some(whole(2, -1)?))?),
        "removeprefix" => {
            let affix = string(0)?;
            let cut = text.chars().starts_with(affix.chars());
            Value::Str(text.slice(if cut { affix.len() } else { 0 }, text.len()))
        }
        "removesuffix" => {
            let affix = string(0)?;
            let cut = text.chars().ends_with(affix.chars());
            Value::Str(text.slice(0, text.len() - if cut { affix.len() } else { 0 }))
        }
        "partition" | "rpartition" => {
            let by = string(0)?;
            if by.is_empty() {
                return Err(format!("{what}: an empty separator"));
            }
            let found = if name == "partition" { text.find(by.chars(), 0) } else { rfind(text.chars(), by.chars()) };
            let empty = || Text::own("");
            let parts = match found {
                Some(at) => {
                    let behind = at + by.len();
                    [text.slice(0, at), text.slice(at, behind), text.slice(behind, text.len())]
                }
                None if name == "partition" => [text.clone(), empty(), empty()],
                None => [empty(), empty(), text.clone()],
            };
            Value::Tuple(Rc::new(parts.map(Value::Str).to_vec()))
        }
        "center" | "ljust" | "rjust" => {
            let width = usize::try_from(whole(0, 0)?).unwrap_or(0);
            let fill = match argument(1) {
                None => Ch::new(' ', false),
                Some(_) => match string(1)?.chars() {
                    [one] => *one,
                    _ => return Err(format!("{what} fills with one character")),
                },
            };
            let missing = width.saturating_sub(text.len());
            machine.pay(missing)?;
            // Python's centre leans to the left where the width is even.
            let left = match name {
                "ljust" => 0,
                "rjust" => missing,
                _ => missing / 2 + (missing & width & 1),
            };
            let fill = |n: usize| std::iter::repeat_n(fill, n);
            Value::Str(fill(left).chain(text.chars().iter().copied()).chain(fill(missing - left)).collect())
        }
        "zfill" => {
            let width = usize::try_from(whole(0, 0)?).unwrap_or(0);
            let missing = width.saturating_sub(text.len());
            machine.pay(missing)?;
            let sign = usize::from(text.chars().first().is_some_and(|c| matches!(c.char(), '+' | '-')));
            let zeros = std::iter::repeat_n(Ch::new('0', false), missing);
            let (sign, rest) = text.chars().split_at(sign);
            Value::Str(sign.iter().copied().chain(zeros).chain(rest.iter().copied()).collect())
        }
        "isspace" => all(is_space),
        "islower" | "isupper" => {
            let cased = || text.chars().iter().map(|c| c.char()).filter(|c| is_cased(*c));
            let holds = |c: char| if name == "islower" { c.is_lowercase() } else { c.is_uppercase() };
            Value::Bool(cased().next().is_some() && cased().all(holds))
        }
        "istitle" => {
            ascii()?;
            let (mut before, mut any) = (false, false);
            for c in text.chars().iter().map(|c| c.char()) {
                if (c.is_ascii_uppercase() && before) || (c.is_ascii_lowercase() && !before) {
                    return Ok(Value::Bool(false));
                }
                before = c.is_ascii_alphabetic();
                any |= before;
            }
            Value::Bool(any)
        }
        "isalpha" => {
            ascii()?;
            all(|c| c.is_ascii_alphabetic())
        }
        "isalnum" => {
            ascii()?;
            all(|c| c.is_ascii_alphanumeric())
        }
        _ => {
            // isdecimal, isdigit, isnumeric
            ascii()?;
            all(|c| c.is_ascii_digit())
        }
    })
}

/// `str.join`, which takes strings only.
fn join(machine: &Machine, by: &Text, items: &Value) -> Run<Text> {
    let Some(items) = items.elements() else {
        return Err(format!("str.join needs a list, not a {}", items.type_name()));
    };
    let mut out: Vec<Ch> = Vec::new();
    for (i, item) in items.iter().enumerate() {
        let Value::Str(text) = item else {
            return Err(format!("str.join: item {i} is a {}, not a string", item.type_name()));
        };
        machine.pay(text.len() + by.len())?;
        if i > 0 {
            out.extend_from_slice(by.chars());
        }
        out.extend_from_slice(text.chars());
    }
    Ok(out.into())
}
