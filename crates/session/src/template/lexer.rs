//! Jinja's tokens, cut as jinja2 cuts them with `trim_blocks` and `lstrip_blocks` on, as transformers sets them.

use super::text::is_space;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Data(String),
    VariableBegin,
    VariableEnd,
    BlockBegin,
    BlockEnd,
    Name(String),
    Str(String),
    Int(i64),
    Float(f64),
    Op(&'static str),
}

/// A token and its line, from 1.
pub(super) struct Spot {
    pub(super) token: Token,
    pub(super) line: usize,
}

/// Longest first, as the alternatives of jinja2's expression are.
const OPERATORS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".",
    ":", "|", ",", ";",
];

struct Lexer<'s> {
    source: &'s str,
    at: usize,
    out: Vec<Spot>,
    /// The last thing taken ended with a line end, or nothing was taken yet.
    line_starting: bool,
}

/// Cuts a template into tokens.
///
/// # Errors
/// What cannot be cut, with its line.
pub(super) fn tokens(template: &str) -> Result<Vec<Spot>, String> {
    // One kind of line end, and the last one goes.
    let mut source = template.replace("\r\n", "\n").replace('\r', "\n");
    if source.ends_with('\n') {
        source.pop();
    }
    let mut lexer = Lexer { source: &source, at: 0, out: Vec::new(), line_starting: true };
    lexer.root()?;
    Ok(lexer.out)
}

#[derive(Clone, Copy, PartialEq)]
enum Begin {
    Variable,
    Block,
    Comment,
    Raw,
}

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    fn fail<T>(&self, at: usize, what: impl std::fmt::Display) -> Result<T, String> {
        Err(format!("line {}: {what}", self.line(at)))
    }

    fn line(&self, at: usize) -> usize {
        1 + self.source.as_bytes()[..at].iter().filter(|&&b| b == b'\n').count()
    }

    fn push(&mut self, token: Token, line: usize) {
        self.out.push(Spot { token, line });
    }

    fn take(&mut self, bytes: usize) {
        if bytes > 0 {
            self.line_starting = self.source[self.at..self.at + bytes].ends_with('\n');
        }
        self.at += bytes;
    }

    /// The text before a tag, with what the tag's sign and `lstrip_blocks` take from it.
    fn data<'t>(&self, text: &'t str, sign: Option<char>, variable: bool) -> &'t str {
        match sign {
            Some('-') => text.trim_end_matches(is_space),
            Some('+') => text,
            _ if variable => text,
            _ => {
                let start = text.rfind('\n').map_or(0, |at| at + 1);
                let line = &text[start..];
                if (start > 0 || self.line_starting) && !line.is_empty() && line.chars().all(is_space) {
                    &text[..start]
                } else {
                    text
                }
            }
        }
    }

    fn root(&mut self) -> Result<(), String> {
        let mut line = 1;
        let mut counted = 0;
        loop {
            line += self.source.as_bytes()[counted..self.at].iter().filter(|&&b| b == b'\n').count();
            counted = self.at;
            let rest = self.rest();
            let Some((begin, start)) = next_begin(rest) else {
                if !rest.is_empty() {
                    let text = rest.to_owned();
                    self.push(Token::Data(text), line);
                }
                return Ok(());
            };
            let after = &rest[start + 2..];
            let sign = after.chars().next().filter(|c| matches!(c, '-' | '+'));
            let text = self.data(&rest[..start], sign, begin == Begin::Variable).to_owned();
            if !text.is_empty() {
                self.push(Token::Data(text), line);
            }
            let opened = self.at + start;
            let tag_line = line + rest[..start].bytes().filter(|&b| b == b'\n').count();
            match begin {
                Begin::Comment => {
                    let after = &rest[start + 2..];
                    let Some(end) = after.find("#}") else { return self.fail(opened, "a comment without an end") };
                    let sign = after[..end].chars().next_back().filter(|c| matches!(c, '-' | '+'));
                    self.take(start + 2 + end + 2);
                    self.trim(sign, true);
                }
                Begin::Raw => {
                    let (length, trims) = raw_begin(&rest[start..]).unwrap_or((2, false));
                    self.take(start + length);
                    if trims {
                        self.trim(Some('-'), false);
                    }
                    self.raw(opened)?;
                }
                Begin::Variable | Begin::Block => {
                    self.take(start + 2 + usize::from(sign.is_some()));
                    let (begin, end) = match begin {
                        Begin::Variable => (Token::VariableBegin, "}}"),
                        _ => (Token::BlockBegin, "%}"),
                    };
                    self.push(begin, tag_line);
                    self.expression(end, opened)?;
                }
            }
        }
    }

    /// White space behind a tag: all of it after `-`, else the end of the line where blocks are trimmed.
    fn trim(&mut self, sign: Option<char>, block: bool) {
        let n = match sign {
            Some('-') => self.rest().len() - self.rest().trim_start_matches(is_space).len(),
            Some('+') => 0,
            _ => usize::from(block && self.rest().starts_with('\n')),
        };
        self.take(n);
    }

    fn raw(&mut self, opened: usize) -> Result<(), String> {
        let rest = self.rest();
        let mut from = 0;
        while let Some(found) = rest[from..].find("{%") {
            let start = from + found;
            if let Some((sign, length, end)) = raw_end(&rest[start..]) {
                let text = self.data(&rest[..start], sign, false).to_owned();
                let line = self.line(self.at);
                if !text.is_empty() {
                    self.push(Token::Data(text), line);
                }
                self.take(start + length);
                self.trim(end, true);
                return Ok(());
            }
            from = start + 2;
        }
        self.fail(opened, "raw without endraw")
    }

    /// The tokens of an expression or statement, up to its end.
    fn expression(&mut self, end: &'static str, opened: usize) -> Result<(), String> {
        let mut open: Vec<char> = Vec::new();
        let mut line = self.line(self.at);
        loop {
            let rest = &self.source[self.at..];
            let Some(c) = rest.chars().next() else {
                return self.fail(opened, format!("a tag without its end {end}"));
            };
            if open.is_empty() {
                let sign = rest.chars().next().filter(|c| *c == '-' || (*c == '+' && end == "%}"));
                let bare = if sign.is_some() { &rest[1..] } else { rest };
                if bare.starts_with(end) {
                    self.take(2 + usize::from(sign.is_some()));
                    self.push(if end == "}}" { Token::VariableEnd } else { Token::BlockEnd }, line);
                    self.trim(sign, end == "%}");
                    return Ok(());
                }
            }
            let (token, length) = if is_space(c) {
                line += usize::from(c == '\n');
                self.take(c.len_utf8());
                continue;
            } else if c.is_ascii_digit() {
                // Behind a dot stands an index, of which another dot is not part.
                let index = self.at > 0 && self.source.as_bytes()[self.at - 1] == b'.';
                match number(if index { &rest[..digits(rest, 10)] } else { rest }) {
                    Some(found) => found,
                    None => return self.fail(self.at, "a number that is too large or not well-formed"),
                }
            } else if c == '_' || c.is_alphanumeric() {
                let length = rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len());
                if !rest[..length].is_ascii() {
                    return self.fail(
                        self.at,
                        format!("the name {:?}: names outside ASCII are not supported", &rest[..length]),
                    );
                }
                (Token::Name(rest[..length].to_owned()), length)
            } else if c == '"' || c == '\'' {
                match string(rest, c) {
                    Ok((text, length)) => (Token::Str(text), length),
                    Err(what) => return self.fail(self.at, what),
                }
            } else if let Some(op) = OPERATORS.iter().find(|op| rest.starts_with(**op)) {
                match *op {
                    "(" => open.push(')'),
                    "[" => open.push(']'),
                    "{" => open.push('}'),
                    ")" | "]" | "}" if open.pop() != op.chars().next() => {
                        return self.fail(self.at, format!("unexpected {op:?}"));
                    }
                    _ => {}
                }
                (Token::Op(op), op.len())
            } else {
                return self.fail(self.at, format!("unexpected character {c:?}"));
            };
            self.push(token, line);
            line += rest[..length].bytes().filter(|&b| b == b'\n').count();
            self.take(length);
        }
    }
}

fn next_begin(rest: &str) -> Option<(Begin, usize)> {
    let bytes = rest.as_bytes();
    let mut from = 0;
    loop {
        let at = from + rest[from..].find('{')?;
        let begin = match bytes.get(at + 1) {
            Some(b'{') => Begin::Variable,
            Some(b'%') if raw_begin(&rest[at..]).is_some() => Begin::Raw,
            Some(b'%') => Begin::Block,
            Some(b'#') => Begin::Comment,
            _ => {
                from = at + 1;
                continue;
            }
        };
        return Some((begin, at));
    }
}

/// `{% raw %}`: its length, and whether it takes the white space behind it.
fn raw_begin(text: &str) -> Option<(usize, bool)> {
    let rest = text.strip_prefix("{%")?;
    let rest = rest.strip_prefix(['-', '+']).unwrap_or(rest).trim_start_matches(is_space);
    let rest = rest.strip_prefix("raw")?.trim_start_matches(is_space);
    if let Some(rest) = rest.strip_prefix("-%}") {
        return Some((text.len() - rest.len(), true));
    }
    rest.strip_prefix("%}").map(|rest| (text.len() - rest.len(), false))
}

/// `{% endraw %}`: its sign, its length and the sign at its end.
fn raw_end(text: &str) -> Option<(Option<char>, usize, Option<char>)> {
    let rest = text.strip_prefix("{%")?;
    let sign = rest.chars().next().filter(|c| matches!(c, '-' | '+'));
    let rest = if sign.is_some() { &rest[1..] } else { rest };
    let rest = rest.trim_start_matches(is_space).strip_prefix("endraw")?.trim_start_matches(is_space);
    let end = rest.chars().next().filter(|c| matches!(c, '-' | '+'));
    let rest = if end.is_some() { &rest[1..] } else { rest };
    rest.strip_prefix("%}").map(|rest| (sign, text.len() - rest.len(), end))
}

/// Digits with single underscores between them.
fn digits(text: &str, radix: u32) -> usize {
    let mut length = 0;
    let bytes = text.as_bytes();
    while let Some(&b) = bytes.get(length) {
        let digit = |b: u8| char::from(b).is_digit(radix);
        let joins =
            b == b'_' && length > 0 && bytes[length - 1] != b'_' && bytes.get(length + 1).is_some_and(|&n| digit(n));
        if !digit(b) && !joins {
            break;
        }
        length += 1;
    }
    length
}

fn number(text: &str) -> Option<(Token, usize)> {
    let lower = text.get(..2).map(str::to_ascii_lowercase);
    for (prefix, radix) in [("0b", 2), ("0o", 8), ("0x", 16)] {
        if lower.as_deref() == Some(prefix) {
            let length = digits(&text[2..], radix);
            let value = i64::from_str_radix(&text[2..2 + length].replace('_', ""), radix).ok()?;
            return Some((Token::Int(value), 2 + length));
        }
    }
    let whole = digits(text, 10);
    let mut length = whole;
    if text[length..].starts_with('.') {
        let fraction = digits(&text[length + 1..], 10);
        if fraction > 0 {
            length += 1 + fraction;
        }
    }
    if let Some(rest) = text[length..].strip_prefix(['e', 'E']) {
        let sign = usize::from(rest.starts_with(['+', '-']));
        let exponent = digits(&rest[sign..], 10);
        if exponent > 0 {
            length += 1 + sign + exponent;
        }
    }
    let plain = text[..length].replace('_', "");
    if length == whole {
        // A leading zero is another token in Python.
        if plain.len() > 1 && plain.starts_with('0') && plain.bytes().any(|b| b != b'0') {
            return None;
        }
        return plain.parse().ok().map(|n| (Token::Int(n), length));
    }
    plain.parse().ok().map(|x| (Token::Float(x), length))
}

/// A string literal with Python's escapes.
fn string(text: &str, quote: char) -> Result<(String, usize), &'static str> {
    let mut out = String::new();
    let mut chars = text.char_indices().skip(1).peekable();
    while let Some((at, c)) = chars.next() {
        if c == quote {
            return Ok((out, at + 1));
        }
        if c != '\\' {
            out.push(c);
            continue;
        }
        let Some((_, escape)) = chars.next() else { break };
        let mut hex = |n: usize| -> Result<char, &'static str> {
            let mut value = 0;
            for _ in 0..n {
                let digit = chars.next().and_then(|(_, c)| c.to_digit(16)).ok_or("an escape without its digits")?;
                value = value * 16 + digit;
            }
            char::from_u32(value).ok_or("an escape that is no character")
        };
        match escape {
            '\n' => {}
            '\\' | '\'' | '"' => out.push(escape),
            'a' => out.push('\u{7}'),
            'b' => out.push('\u{8}'),
            'f' => out.push('\u{c}'),
            'n' => out.push('\n'),
            'r' => out.push('\r'),
            't' => out.push('\t'),
            'v' => out.push('\u{b}'),
            'x' => out.push(hex(2)?),
            'u' => out.push(hex(4)?),
            'U' => out.push(hex(8)?),
            'N' => return Err("the escape \\N is not supported"),
            '0'..='7' => {
                let mut value = escape.to_digit(8).unwrap_or(0);
                for _ in 0..2 {
                    let Some(digit) = chars.peek().and_then(|(_, c)| c.to_digit(8)) else { break };
                    value = value * 8 + digit;
                    chars.next();
                }
                out.extend(char::from_u32(value));
            }
            other => {
                out.push('\\');
                // Beyond ASCII, jinja2 writes an escape of its own before it reads any.
                out.push(other);
            }
        }
    }
    Err("a string without an end")
}
