//! How Python writes values: `repr`, `json.dumps`, floats, `strftime`.

use super::text::{Ch, Text};
use super::value::Value;

/// Nesting of what is written.
const MAX_DEPTH: usize = 64;

/// Python's `repr`. `None` for what it would give an address, or where the nesting has no end in sight.
pub(super) fn repr(value: &Value) -> Option<Text> {
    let mut out = Vec::new();
    write_repr(value, &mut out, 0)?;
    Some(out.into())
}

fn put(out: &mut Vec<Ch>, text: &str) {
    out.extend(text.chars().map(|c| Ch::new(c, false)));
}

fn write_repr(value: &Value, out: &mut Vec<Ch>, depth: usize) -> Option<()> {
    if depth > MAX_DEPTH {
        return None;
    }
    let all = |out: &mut Vec<Ch>, items: &[Value], open: &str, close: &str| -> Option<()> {
        put(out, open);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                put(out, ", ");
            }
            write_repr(item, out, depth + 1)?;
        }
        put(out, close);
        Some(())
    };
    match value {
        Value::Undefined(_) => put(out, "Undefined"),
        Value::None => put(out, "None"),
        Value::Bool(b) => put(out, if *b { "True" } else { "False" }),
        Value::Int(n) => put(out, &n.to_string()),
        Value::Float(x) => put(out, &float(*x)),
        Value::Str(text) => write_quoted(text, out),
        Value::List(items) => all(out, items, "[", "]")?,
        Value::Tuple(items) => all(out, items, "(", if items.len() == 1 { ",)" } else { ")" })?,
        Value::View(name, items) => all(out, items, &format!("{name}(["), "])")?,
        Value::Dict(dict) => {
            put(out, "{");
            for (i, (key, value)) in dict.iter().enumerate() {
                if i > 0 {
                    put(out, ", ");
                }
                write_repr(key, out, depth + 1)?;
                put(out, ": ");
                write_repr(value, out, depth + 1)?;
            }
            put(out, "}");
        }
        Value::Range(start, stop, 1) => put(out, &format!("range({start}, {stop})")),
        Value::Range(start, stop, step) => put(out, &format!("range({start}, {stop}, {step})")),
        _ => return None,
    }
    Some(())
}

/// A character that Python prints as it is. Rust escapes the same categories, and for a lone character also what
/// extends the one before it.
fn is_printable(c: char) -> bool {
    !format!("a{c}").escape_debug().to_string().contains("\\u{")
}

fn write_quoted(text: &Text, out: &mut Vec<Ch>) {
    let has = |quote: char| text.chars().iter().any(|c| c.char() == quote);
    let quote = if has('\'') && !has('"') { '"' } else { '\'' };
    out.push(Ch::new(quote, false));
    for &ch in text.chars() {
        let c = ch.char();
        let escaped = match c {
            '\\' => "\\\\".to_owned(),
            '\n' => "\\n".to_owned(),
            '\r' => "\\r".to_owned(),
            '\t' => "\\t".to_owned(),
            c if c == quote => format!("\\{c}"),
            ' '..='~' => c.to_string(),
            c if (c as u32) < 0x7f || ((c as u32) < 0x100 && (c.is_control() || !is_printable(c))) => {
                format!("\\x{:02x}", c as u32)
            }
            c if c.is_control() || !is_printable(c) => match c as u32 {
                n if n < 0x1_0000 && n > 0xff => format!("\\u{n:04x}"),
                n if n > 0xffff => format!("\\U{n:08x}"),
                n => format!("\\x{n:02x}"),
            },
            c => c.to_string(),
        };
        out.extend(escaped.chars().map(|c| ch.with(c)));
    }
    out.push(Ch::new(quote, false));
}

/// Python's `repr` of a float: the shortest digits, with an exponent below 1e-4 and from 1e16.
pub(super) fn float(x: f64) -> String {
    if x.is_nan() {
        return "nan".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = x.to_string();
        return if plain.contains('.') { plain } else { format!("{plain}.0") };
    }
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

/// How `json.dumps` is asked to write.
pub(super) struct Json {
    pub(super) ascii: bool,
    /// What one level is indented by.
    pub(super) indent: Option<String>,
    pub(super) separators: (String, String),
    pub(super) sorted: bool,
}

/// `json.dumps`.
///
/// # Errors
/// A value that JSON has no form for.
pub(super) fn json(value: &Value, how: &Json) -> Result<Text, String> {
    let mut out = Vec::new();
    write_json(value, how, 0, &mut out)?;
    Ok(out.into())
}

fn new_line(how: &Json, depth: usize, out: &mut Vec<Ch>) {
    if let Some(indent) = &how.indent {
        put(out, "\n");
        for _ in 0..depth {
            put(out, indent);
        }
    }
}

fn write_json(value: &Value, how: &Json, depth: usize, out: &mut Vec<Ch>) -> Result<(), String> {
    if depth > MAX_DEPTH {
        return Err(format!("tojson: nested deeper than {MAX_DEPTH}"));
    }
    match value {
        Value::None => put(out, "null"),
        Value::Bool(b) => put(out, if *b { "true" } else { "false" }),
        Value::Int(n) => put(out, &n.to_string()),
        Value::Float(x) => put(out, &json_float(*x)),
        Value::Str(text) => write_json_string(text, how.ascii, out),
        Value::List(items) | Value::Tuple(items) => {
            put(out, "[");
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    put(out, &how.separators.0);
                }
                new_line(how, depth + 1, out);
                write_json(item, how, depth + 1, out)?;
            }
            if !items.is_empty() {
                new_line(how, depth, out);
            }
            put(out, "]");
        }
        Value::Dict(dict) => {
            let mut entries: Vec<&(Value, Value)> = dict.iter().collect();
            if how.sorted {
                let mut failed = false;
                entries.sort_by(|a, b| match super::value::compare(&a.0, &b.0) {
                    Some(order) => order.unwrap_or(std::cmp::Ordering::Equal),
                    None => {
                        failed = true;
                        std::cmp::Ordering::Equal
                    }
                });
                if failed {
                    return Err("tojson: keys of different types cannot be sorted".into());
                }
            }
            put(out, "{");
            for (i, (key, value)) in entries.into_iter().enumerate() {
                if i > 0 {
                    put(out, &how.separators.0);
                }
                new_line(how, depth + 1, out);
                let key = match key {
                    Value::Str(text) => text.clone(),
                    Value::None => Text::own("null"),
                    Value::Bool(b) => Text::own(if *b { "true" } else { "false" }),
                    Value::Int(n) => Text::own(&n.to_string()),
                    Value::Float(x) => Text::own(&json_float(*x)),
                    other => return Err(format!("tojson: a key of the type {}", other.type_name())),
                };
                write_json_string(&key, how.ascii, out);
                put(out, &how.separators.1);
                write_json(value, how, depth + 1, out)?;
            }
            if dict.len() > 0 {
                new_line(how, depth, out);
            }
            put(out, "}");
        }
        other => return Err(format!("tojson: JSON has no form for the type {}", other.type_name())),
    }
    Ok(())
}

fn json_float(x: f64) -> String {
    if x.is_nan() {
        "NaN".into()
    } else if x.is_infinite() {
        if x > 0.0 { "Infinity".into() } else { "-Infinity".into() }
    } else {
        float(x)
    }
}

fn write_json_string(text: &Text, ascii: bool, out: &mut Vec<Ch>) {
    put(out, "\"");
    for &ch in text.chars() {
        let c = ch.char();
        let escaped = match c {
            '"' => "\\\"".to_owned(),
            '\\' => "\\\\".to_owned(),
            '\n' => "\\n".to_owned(),
            '\r' => "\\r".to_owned(),
            '\t' => "\\t".to_owned(),
            '\u{8}' => "\\b".to_owned(),
            '\u{c}' => "\\f".to_owned(),
            c if (c as u32) < 0x20 => format!("\\u{:04x}", c as u32),
            c if ascii && c as u32 > 0x7e => {
                let mut units = [0; 2];
                c.encode_utf16(&mut units).iter().map(|u| format!("\\u{u:04x}")).collect()
            }
            c => c.to_string(),
        };
        out.extend(escaped.chars().map(|c| ch.with(c)));
    }
    put(out, "\"");
}

/// The wall clock that `strftime_now` reads, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(in crate::template) struct LocalTime {
    /// Year.
    pub(in crate::template) year: i32,
    /// Month, from 1.
    pub(in crate::template) month: u32,
    /// Day of the month, from 1.
    pub(in crate::template) day: u32,
    /// Hour, 0 to 23.
    pub(in crate::template) hour: u32,
    /// Minute.
    pub(in crate::template) minute: u32,
    /// Second.
    pub(in crate::template) second: u32,
}

impl LocalTime {
    /// The UTC time of a number of seconds since 1970.
    pub(in crate::template) fn utc(seconds: u64) -> Self {
        let (days, rest) = ((seconds / 86_400) as i64, seconds % 86_400);
        // Days to a date: Howard Hinnant's `civil_from_days`.
        let z = days + 719_468;
        let era = z.div_euclid(146_097);
        let doe = z.rem_euclid(146_097);
        let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
        let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
        let mp = (5 * doy + 2) / 153;
        let month = if mp < 10 { mp + 3 } else { mp - 9 };
        Self {
            year: (yoe + era * 400 + i64::from(month <= 2)) as i32,
            month: month as u32,
            day: (doy - (153 * mp + 2) / 5 + 1) as u32,
            hour: (rest / 3600) as u32,
            minute: (rest / 60 % 60) as u32,
            second: (rest % 60) as u32,
        }
    }

    fn leap(self) -> bool {
        (self.year % 4 == 0 && self.year % 100 != 0) || self.year % 400 == 0
    }

    fn day_of_year(self) -> u32 {
        const BEFORE: [u32; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
        let before = BEFORE[(self.month.clamp(1, 12) - 1) as usize];
        before + self.day + u32::from(self.month > 2 && self.leap())
    }

    /// Days since Sunday.
    fn weekday(self) -> u32 {
        let before = i64::from(self.year) - 1;
        let days = before * 365 + before.div_euclid(4) - before.div_euclid(100) + before.div_euclid(400);
        ((days + i64::from(self.day_of_year())).rem_euclid(7)) as u32
    }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// `datetime.strftime` in the C locale.
///
/// # Errors
/// A directive that is not supported.
pub(super) fn strftime(now: LocalTime, format: &Text) -> Result<Text, String> {
    let mut out = Vec::new();
    let mut chars = format.chars().iter().copied();
    while let Some(ch) = chars.next() {
        if ch.char() != '%' {
            out.push(ch);
            continue;
        }
        let mut directive = chars.next().map(Ch::char);
        let bare = directive == Some('-');
        if bare {
            directive = chars.next().map(Ch::char);
        }
        let two = |n: u32| if bare { n.to_string() } else { format!("{n:02}") };
        let twelve = |hour: u32| if hour.is_multiple_of(12) { 12 } else { hour % 12 };
        let month = MONTHS[(now.month.clamp(1, 12) - 1) as usize];
        let day = DAYS[now.weekday() as usize];
        let text = match directive {
            Some('Y') => now.year.to_string(),
            Some('y') => two(now.year.rem_euclid(100) as u32),
            Some('m') => two(now.month),
            Some('d') => two(now.day),
            Some('e') => {
                if bare {
                    now.day.to_string()
                } else {
                    format!("{:2}", now.day)
                }
            }
            Some('H') => two(now.hour),
            Some('I') => two(twelve(now.hour)),
            Some('M') => two(now.minute),
            Some('S') => two(now.second),
            Some('j') => {
                if bare {
                    now.day_of_year().to_string()
                } else {
                    format!("{:03}", now.day_of_year())
                }
            }
            Some('p') => (if now.hour < 12 { "AM" } else { "PM" }).to_owned(),
            Some('B') => month.to_owned(),
            Some('b' | 'h') => month[..3].to_owned(),
            Some('A') => day.to_owned(),
            Some('a') => day[..3].to_owned(),
            Some('w') => now.weekday().to_string(),
            Some('F') => format!("{}-{:02}-{:02}", now.year, now.month, now.day),
            Some('T') => format!("{:02}:{:02}:{:02}", now.hour, now.minute, now.second),
            Some('D') => format!("{:02}/{:02}/{:02}", now.month, now.day, now.year.rem_euclid(100)),
            Some('R') => format!("{:02}:{:02}", now.hour, now.minute),
            Some('%') if !bare => "%".to_owned(),
            other => {
                let other = other.map_or(String::new(), String::from);
                return Err(format!("strftime_now: the directive %{other} is not supported"));
            }
        };
        put(&mut out, &text);
    }
    Ok(out.into())
}

impl Value {
    /// As printed. `None` where Python prints an address.
    pub(super) fn print(&self) -> Option<Text> {
        match self {
            Self::Str(text) => Some(text.clone()),
            Self::Undefined(_) => Some(Text::own("")),
            _ => repr(self),
        }
    }
}
