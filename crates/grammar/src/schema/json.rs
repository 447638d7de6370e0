//! A strict reader of JSON: no key twice, numbers as they are written.

use std::fmt::Write as _;

use super::decimal::Decimal;

/// A JSON value with exact numbers and keys in order.
#[derive(Clone, Debug)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Number(Decimal),
    String(String),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

/// Why a text is not JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JsonError {
    /// Where in the value.
    pub(crate) pointer: String,
    pub(crate) problem: String,
}

/// Appends a name to a JSON pointer.
pub(crate) fn push_pointer(pointer: &str, name: &str) -> String {
    let mut out = String::with_capacity(pointer.len() + name.len() + 1);
    out.push_str(pointer);
    out.push('/');
    for c in name.chars() {
        match c {
            '~' => out.push_str("~0"),
            '/' => out.push_str("~1"),
            c => out.push(c),
        }
    }
    out
}

impl Json {
    /// Reads one value and nothing else.
    pub(crate) fn parse(text: &str, max_depth: usize) -> Result<Self, JsonError> {
        let mut reader = Reader { text, at: 0, path: Vec::new(), max_depth };
        let value = reader.value()?;
        reader.blanks();
        if reader.at < text.len() {
            return Err(reader.error("something follows the value"));
        }
        Ok(value)
    }

    /// Takes over a value that another reader made; its numbers are what that reader kept of them.
    pub(crate) fn from_value(value: &serde_json::Value, max_depth: usize) -> Result<Self, JsonError> {
        fn go(value: &serde_json::Value, pointer: &str, left: usize) -> Result<Json, JsonError> {
            use serde_json::Value;
            let Some(left) = left.checked_sub(1) else {
                return Err(JsonError { pointer: pointer.to_owned(), problem: "nests too deep".into() });
            };
            Ok(match value {
                Value::Null => Json::Null,
                Value::Bool(b) => Json::Bool(*b),
                Value::Number(n) => Json::Number(Decimal::parse(&n.to_string()).ok_or_else(|| JsonError {
                    pointer: pointer.to_owned(),
                    problem: "a number beyond the limits".into(),
                })?),
                Value::String(s) => Json::String(s.clone()),
                Value::Array(items) => Json::Array(
                    items
                        .iter()
                        .enumerate()
                        .map(|(i, item)| go(item, &format!("{pointer}/{i}"), left))
                        .collect::<Result<_, _>>()?,
                ),
                Value::Object(fields) => Json::Object(
                    fields
                        .iter()
                        .map(|(k, v)| Ok((k.clone(), go(v, &push_pointer(pointer, k), left)?)))
                        .collect::<Result<_, JsonError>>()?,
                ),
            })
        }
        go(value, "", max_depth)
    }

    /// The same for other programs, with their numbers.
    pub(crate) fn to_value(&self) -> serde_json::Value {
        use serde_json::Value;
        match self {
            Self::Null => Value::Null,
            Self::Bool(b) => Value::Bool(*b),
            Self::Number(n) => serde_json::from_str(&n.to_string()).unwrap_or(Value::Null),
            Self::String(s) => Value::String(s.clone()),
            Self::Array(items) => items.iter().map(Self::to_value).collect(),
            Self::Object(fields) => fields.iter().map(|(k, v)| (k.clone(), v.to_value())).collect(),
        }
    }

    /// Values, those inside others counted.
    pub(crate) fn count(&self) -> usize {
        1 + match self {
            Self::Array(items) => items.iter().map(Self::count).sum(),
            Self::Object(fields) => fields.iter().map(|(_, v)| v.count()).sum(),
            _ => 0,
        }
    }

    /// The first number that would not survive a reader with 64-bit integers and doubles.
    pub(crate) fn check_numbers(&self) -> Result<(), String> {
        match self {
            Self::Number(n) if n.is_integer() && !n.is_64_bit() => Err(n.to_string()),
            Self::Number(n) if !n.is_integer() => {
                let text = n.to_string();
                let double: f64 = text.parse().map_err(|_| text.clone())?;
                // The shortest text of the nearest double is the number again.
                let back = Decimal::parse(&format!("{double:e}"));
                if back.as_ref() == Some(n) { Ok(()) } else { Err(text) }
            }
            Self::Array(items) => items.iter().try_for_each(Self::check_numbers),
            Self::Object(fields) => fields.iter().try_for_each(|(_, v)| v.check_numbers()),
            _ => Ok(()),
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Json> {
        match self {
            Self::Object(fields) => fields.iter().find(|(k, _)| k == key).map(|(_, v)| v),
            _ => None,
        }
    }

    /// What a JSON pointer leads to.
    pub(crate) fn pointer(&self, pointer: &str) -> Option<&Json> {
        let mut at = self;
        for part in pointer.split('/').skip(1) {
            let name = part.replace("~1", "/").replace("~0", "~");
            at = match at {
                Self::Object(_) => at.get(&name)?,
                Self::Array(items) => {
                    if name.len() > 1 && name.starts_with('0') {
                        return None;
                    }
                    items.get(name.parse::<usize>().ok()?)?
                }
                _ => return None,
            };
        }
        Some(at)
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(s) => Some(s),
            _ => None,
        }
    }

    /// Equal as JSON Schema means it: numbers by value, objects without order.
    pub(crate) fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::Number(a), Self::Number(b)) => a == b,
            (Self::String(a), Self::String(b)) => a == b,
            (Self::Array(a), Self::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.same(b)),
            (Self::Object(a), Self::Object(b)) => {
                a.len() == b.len() && a.iter().all(|(k, v)| other.get(k).is_some_and(|w| v.same(w)))
            }
            _ => false,
        }
    }

    /// A text that is the same for equal values and differs for others.
    pub(crate) fn key(&self) -> String {
        let mut out = String::new();
        self.write_key(&mut out);
        out
    }

    fn write_key(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
            Self::Number(n) => {
                let _ = write!(out, "{n}");
            }
            Self::String(s) => quote(s, out),
            Self::Array(items) => {
                out.push('[');
                for item in items {
                    item.write_key(out);
                    out.push(',');
                }
                out.push(']');
            }
            Self::Object(fields) => {
                let mut sorted: Vec<_> = fields.iter().collect();
                sorted.sort_by(|a, b| a.0.cmp(&b.0));
                out.push('{');
                for (name, value) in sorted {
                    quote(name, out);
                    out.push(':');
                    value.write_key(out);
                    out.push(',');
                }
                out.push('}');
            }
        }
    }
}

/// Writes a string in the one spelling that generation gives fixed texts.
pub(crate) fn quote(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    /// Names and numbers of what is open.
    path: Vec<String>,
    max_depth: usize,
}

impl Reader<'_> {
    fn error(&self, problem: &str) -> JsonError {
        let mut pointer = String::new();
        for part in &self.path {
            pointer = push_pointer(&pointer, part);
        }
        JsonError { pointer, problem: format!("{problem} (byte {})", self.at) }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn value(&mut self) -> Result<Json, JsonError> {
        self.blanks();
        if self.path.len() >= self.max_depth {
            return Err(self.error("nests too deep"));
        }
        match self.peek() {
            Some(b'{') => self.object(),
            Some(b'[') => self.array(),
            Some(b'"') => Ok(Json::String(self.string()?)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => {
                for (word, value) in [("null", Json::Null), ("true", Json::Bool(true)), ("false", Json::Bool(false))] {
                    if self.text[self.at..].starts_with(word) {
                        self.at += word.len();
                        return Ok(value);
                    }
                }
                Err(self.error("a value is expected"))
            }
        }
    }

    fn object(&mut self) -> Result<Json, JsonError> {
        self.at += 1;
        let mut fields: Vec<(String, Json)> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        self.blanks();
        if self.eat(b'}') {
            return Ok(Json::Object(fields));
        }
        loop {
            self.blanks();
            if self.peek() != Some(b'"') {
                return Err(self.error("a key is expected"));
            }
            let key = self.string()?;
            if !seen.insert(key.clone()) {
                return Err(self.error(&format!("the key '{}' comes twice", key.chars().take(80).collect::<String>())));
            }
            self.blanks();
            if !self.eat(b':') {
                return Err(self.error("':' is expected"));
            }
            self.path.push(key);
            let value = self.value()?;
            let key = self.path.pop().unwrap_or_default();
            fields.push((key, value));
            self.blanks();
            if self.eat(b'}') {
                return Ok(Json::Object(fields));
            }
            if !self.eat(b',') {
                return Err(self.error("',' or '}' is expected"));
            }
        }
    }

    fn array(&mut self) -> Result<Json, JsonError> {
        self.at += 1;
        let mut items = Vec::new();
        self.blanks();
        if self.eat(b']') {
            return Ok(Json::Array(items));
        }
        loop {
            self.path.push(items.len().to_string());
            items.push(self.value()?);
            self.path.pop();
            self.blanks();
            if self.eat(b']') {
                return Ok(Json::Array(items));
            }
            if !self.eat(b',') {
                return Err(self.error("',' or ']' is expected"));
            }
        }
    }

    fn number(&mut self) -> Result<Json, JsonError> {
        let rest = &self.text[self.at..];
        let len = rest.bytes().take_while(|b| matches!(b, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9')).count();
        let number = Decimal::parse(&rest[..len])
            .ok_or_else(|| self.error("no number of JSON, or one of more than 1000 digits"))?;
        self.at += len;
        Ok(Json::Number(number))
    }

    fn hex4(&mut self) -> Option<u32> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4)?;
        let mut value = 0;
        for &digit in digits {
            value = value * 16 + char::from(digit).to_digit(16)?;
        }
        self.at += 4;
        Some(value)
    }

    fn string(&mut self) -> Result<String, JsonError> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = &self.text[self.at..];
            let plain = rest.bytes().take_while(|&b| b != b'"' && b != b'\\' && b >= 0x20).count();
            out.push_str(&rest[..plain]);
            self.at += plain;
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => {
                    self.at += 1;
                    let escape = self.peek();
                    self.at += 1;
                    out.push(match escape {
                        Some(b'"') => '"',
                        Some(b'\\') => '\\',
                        Some(b'/') => '/',
                        Some(b'b') => '\u{8}',
                        Some(b'f') => '\u{c}',
                        Some(b'n') => '\n',
                        Some(b'r') => '\r',
                        Some(b't') => '\t',
                        Some(b'u') => self.unicode().ok_or_else(|| self.error("no character"))?,
                        _ => {
                            self.at -= 1;
                            return Err(self.error("unknown escape"));
                        }
                    });
                }
                Some(_) => return Err(self.error("a control character in a string")),
                None => return Err(self.error("the string does not end")),
            }
        }
    }

    fn unicode(&mut self) -> Option<char> {
        let first = self.hex4()?;
        if (0xD800..0xDC00).contains(&first) {
            if !(self.eat(b'\\') && self.eat(b'u')) {
                return None;
            }
            let second = self.hex4()?;
            if !(0xDC00..0xE000).contains(&second) {
                return None;
            }
            return char::from_u32(0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00));
        }
        char::from_u32(first)
    }
}

#[cfg(test)]
mod tests {
    use super::Json;

    #[test]
    fn strictness() {
        for bad in [
            "",
            "{",
            "{\"a\":1,\"a\":2}",
            "[1,]",
            "{\"a\":1,}",
            "01",
            "1.",
            "nul",
            "\"\u{1}\"",
            "\"\\x\"",
            "\"\\ud800\"",
            "\"\\ud800\\u0041\"",
            "1 2",
            "\"\\u00g0\"",
            "[1",
            "\u{feff}1",
            "'a'",
        ] {
            assert!(Json::parse(bad, 64).is_err(), "{bad}");
        }
        assert!(Json::parse(&format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)), 64).is_err());
        let error = Json::parse("{\"a\":[{\"b\":1,\"b\":1}]}", 64).unwrap_err();
        assert_eq!(error.pointer, "/a/0");
    }

    #[test]
    fn values_are_compared_as_json_schema_does() {
        let same = |a: &str, b: &str| Json::parse(a, 64).unwrap().same(&Json::parse(b, 64).unwrap());
        assert!(same("{\"a\":1,\"b\":[2.0]}", "{\"b\":[2],\"a\":1e0}"));
        assert!(same("\"\\u00e9\\ud83d\\ude00\"", "\"é😀\""));
        assert!(!same("0", "false"));
        assert!(!same("[1,2]", "[2,1]"));
        assert!(!same("9007199254740993", "9007199254740992"));
    }
}
