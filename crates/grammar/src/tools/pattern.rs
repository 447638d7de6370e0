//! `pattern`: a plain subset of regular expressions to GBNF inside a JSON string.
//!
//! Supported: `^…$` around the whole, characters and their escapes (`\t \n \r \f \xHH \uHHHH` and punctuation), `.`,
//! classes with ranges and negation, `\d`, `\w`, groups `(…)` and `(?:…)`, `|` inside groups, `* + ? {m} {m,} {m,n}`. Everything else is refused by name.

use super::text::CharSet;

const MAX_PATTERN: usize = 1000;
const MAX_DEPTH: usize = 24;
const MAX_REPEAT: u32 = 10_000;

/// A pattern's grammar, and how many characters its texts have.
pub(super) struct Pattern {
    /// A GBNF sequence.
    pub(super) gbnf: String,
    pub(super) shortest: u64,
    /// `None`: without end.
    pub(super) longest: Option<u64>,
}

/// What is wrong, and at which character (from 1).
pub(super) type PatternError = (usize, String);

pub(super) fn convert(pattern: &str) -> Result<Pattern, PatternError> {
    let chars: Vec<char> = pattern.chars().collect();
    if chars.len() > MAX_PATTERN {
        return Err((MAX_PATTERN, format!("longer than {MAX_PATTERN} characters")));
    }
    let anchored = chars.first() == Some(&'^') && chars.len() > 1 && chars.last() == Some(&'$') && {
        let escapes = chars[..chars.len() - 1].iter().rev().take_while(|&&c| c == '\\').count();
        escapes % 2 == 0
    };
    if !anchored {
        return Err((1, "it must match the whole text: begin with '^' and end with '$'".to_owned()));
    }
    let mut parser = Parser { chars: &chars[..chars.len() - 1], pos: 1 };
    let sequence = parser.sequence(0)?;
    match parser.peek() {
        None => Ok(sequence),
        Some('|') => Err(parser.error("'|' splits '^' from '$' here; put the alternatives into a group")),
        Some(_) => Err(parser.error("')' without '('")),
    }
}

struct Parser<'a> {
    chars: &'a [char],
    pos: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.pos).copied()
    }

    fn error(&self, problem: &str) -> PatternError {
        (self.pos + 1, problem.to_owned())
    }

    fn eat(&mut self, c: char) -> bool {
        let found = self.peek() == Some(c);
        if found {
            self.pos += 1;
        }
        found
    }

    fn sequence(&mut self, depth: usize) -> Result<Pattern, PatternError> {
        let mut parts = Vec::new();
        let (mut shortest, mut longest) = (0_u64, Some(0_u64));
        while let Some(c) = self.peek() {
            if c == '|' || c == ')' {
                break;
            }
            let item = self.item(c, depth)?;
            let item = self.repeated(item)?;
            shortest = shortest.saturating_add(item.shortest);
            longest = longest.zip(item.longest).map(|(a, b)| a.saturating_add(b));
            parts.push(item.gbnf);
        }
        Ok(Pattern { gbnf: parts.join(" "), shortest, longest })
    }

    fn item(&mut self, c: char, depth: usize) -> Result<Pattern, PatternError> {
        match c {
            '(' => {
                if depth >= MAX_DEPTH {
                    return Err(self.error("groups nest too deeply"));
                }
                self.pos += 1;
                if self.eat('?') && !self.eat(':') {
                    return Err(self.error("only plain groups and '(?:' are supported"));
                }
                let mut ways = vec![self.sequence(depth + 1)?];
                while self.eat('|') {
                    ways.push(self.sequence(depth + 1)?);
                }
                if !self.eat(')') {
                    return Err(self.error("'(' is not closed"));
                }
                let shortest = ways.iter().map(|way| way.shortest).min().unwrap_or(0);
                let longest = ways.iter().try_fold(0, |most: u64, way| way.longest.map(|length| most.max(length)));
                let texts: Vec<String> = ways.into_iter().map(|way| way.gbnf).collect();
                Ok(Pattern { gbnf: format!("({})", texts.join(" | ")), shortest, longest })
            }
            '[' => {
                let at = self.pos + 1;
                let set = self.class()?;
                self.one(&set, at)
            }
            '.' => {
                let at = self.pos + 1;
                self.pos += 1;
                let ends = CharSet::new(vec![(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)]);
                self.one(&ends.complement(), at)
            }
            '\\' => {
                let at = self.pos + 1;
                let set = self.escape()?;
                self.one(&set, at)
            }
            '*' | '+' | '?' | '{' => Err(self.error("nothing to repeat")),
            '^' | '$' => Err(self.error("'^' and '$' are only supported around the whole pattern")),
            // An unescaped ']' or '}' is an error in some dialects and itself in others.
            ']' | '}' => Err(self.error("write it with a backslash")),
            c => {
                let at = self.pos + 1;
                self.pos += 1;
                self.one(&CharSet::one(c), at)
            }
        }
    }

    fn one(&self, set: &CharSet, at: usize) -> Result<Pattern, PatternError> {
        let Some(gbnf) = set.in_json() else {
            return Err((at, "only characters that JSON can write plainly or by a short escape".to_owned()));
        };
        Ok(Pattern { gbnf, shortest: 1, longest: Some(1) })
    }

    fn repeated(&mut self, item: Pattern) -> Result<Pattern, PatternError> {
        let at = self.pos;
        let (min, max) = match self.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => {
                self.pos += 1;
                let min = self.count()?;
                let max = if self.eat(',') {
                    if self.peek() == Some('}') { None } else { Some(self.count()?) }
                } else {
                    Some(min)
                };
                if self.peek() != Some('}') {
                    return Err(self.error("'{' is not closed"));
                }
                if max.is_some_and(|max| max < min) {
                    return Err(self.error("the smaller count comes first"));
                }
                (min, max)
            }
            _ => return Ok(item),
        };
        self.pos += 1;
        // Lazy repetition has the same texts; possessive has not.
        self.eat('?');
        if matches!(self.peek(), Some('*' | '+' | '?' | '{')) {
            return Err(self.error("a repetition of a repetition needs a group"));
        }
        if max == Some(0) {
            return Ok(Pattern { gbnf: "()".to_owned(), shortest: 0, longest: Some(0) });
        }
        if item.shortest == 0 && max.is_none_or(|max| max > 1) {
            return Err((at + 1, "what is repeated here may be empty; repeat its non-empty part".to_owned()));
        }
        let operator = match (min, max) {
            (0, None) => "*".to_owned(),
            (1, None) => "+".to_owned(),
            (0, Some(1)) => "?".to_owned(),
            (min, None) => format!("{{{min},}}"),
            (min, Some(max)) if min == max => format!("{{{min}}}"),
            (min, Some(max)) => format!("{{{min},{max}}}"),
        };
        let longest = match (item.longest, max) {
            (Some(0), _) => Some(0),
            (Some(length), Some(max)) => Some(length.saturating_mul(max.into())),
            _ => None,
        };
        // Every item is one GBNF item or a group, so that an operator binds to all of it.
        Ok(Pattern {
            gbnf: format!("{}{operator}", item.gbnf),
            shortest: item.shortest.saturating_mul(min.into()),
            longest,
        })
    }

    fn count(&mut self) -> Result<u32, PatternError> {
        let start = self.pos;
        let mut value = 0_u32;
        while let Some(digit) = self.peek().and_then(|c| c.to_digit(10)) {
            value = value.saturating_mul(10).saturating_add(digit);
            self.pos += 1;
        }
        if start == self.pos {
            return Err(self.error("a number is missing"));
        }
        if value > MAX_REPEAT {
            return Err((start + 1, format!("counts above {MAX_REPEAT} are not supported")));
        }
        Ok(value)
    }

    /// One escape, outside or inside a class.
    fn escape(&mut self) -> Result<CharSet, PatternError> {
        self.pos += 1;
        let Some(c) = self.peek() else {
            return Err(self.error("'\\' at the end"));
        };
        let set = match c {
            'd' => CharSet::new(vec![(0x30, 0x39)]),
            'w' => CharSet::new(vec![(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]),
            't' => CharSet::one('\t'),
            'n' => CharSet::one('\n'),
            'r' => CharSet::one('\r'),
            'f' => CharSet::one('\u{c}'),
            'x' => self.hex(2)?,
            'u' => self.hex(4)?,
            '^' | '$' | '\\' | '.' | '*' | '+' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '|' | '/' | '-' => {
                CharSet::one(c)
            }
            _ => return Err(self.error("this escape is not supported; write the characters as a class")),
        };
        self.pos += 1;
        Ok(set)
    }

    /// The digits of `\xHH` or `\uHHHH`; stops on the last one.
    fn hex(&mut self, digits: usize) -> Result<CharSet, PatternError> {
        let mut value = 0;
        for _ in 0..digits {
            self.pos += 1;
            let Some(digit) = self.peek().and_then(|c| c.to_digit(16)) else {
                return Err(self.error("'\\x' takes two and '\\u' four hexadecimal digits"));
            };
            value = value * 16 + digit;
        }
        match char::from_u32(value) {
            Some(c) => Ok(CharSet::one(c)),
            None => Err(self.error("a surrogate is no character; write the character itself")),
        }
    }

    fn class(&mut self) -> Result<CharSet, PatternError> {
        self.pos += 1;
        let negated = self.eat('^');
        let mut ranges = Vec::new();
        loop {
            let Some(c) = self.peek() else {
                return Err(self.error("'[' is not closed"));
            };
            let at = self.pos;
            match c {
                ']' if !ranges.is_empty() => {
                    self.pos += 1;
                    break;
                }
                // Dialects differ on an empty class, on a class in a class and on set operations.
                ']' | '[' => return Err(self.error("write it with a backslash")),
                '&' | '~' | '-' if self.chars.get(self.pos + 1) == Some(&c) => {
                    return Err(self.error("a doubled '&', '~' or '-' means something else in some dialects"));
                }
                _ => {}
            }
            let low = self.class_part(c)?;
            let is_range = self.peek() == Some('-') && self.chars.get(self.pos + 1).is_some_and(|&next| next != ']');
            if !is_range {
                ranges.extend_from_slice(low.ranges());
                continue;
            }
            self.pos += 1;
            let Some(next) = self.peek() else {
                return Err(self.error("'[' is not closed"));
            };
            if next == '-' || next == '[' {
                return Err(self.error("write it with a backslash"));
            }
            let high = self.class_part(next)?;
            let (&[(low, low_end)], &[(high, high_end)]) = (low.ranges(), high.ranges()) else {
                return Err((at + 1, "a range needs single characters".to_owned()));
            };
            if low != low_end || high != high_end || low > high {
                return Err((at + 1, "a range goes from a smaller to a larger character".to_owned()));
            }
            ranges.push((low, high));
        }
        let set = CharSet::new(ranges);
        Ok(if negated { set.complement() } else { set })
    }

    fn class_part(&mut self, c: char) -> Result<CharSet, PatternError> {
        if c == '\\' {
            return self.escape();
        }
        self.pos += 1;
        Ok(CharSet::one(c))
    }
}
