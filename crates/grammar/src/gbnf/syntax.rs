//! GBNF text to syntax tree, by the rules of the engine's own parser (`llama_grammar_parser`).

use std::collections::HashMap;

use super::charset::{CharClass, MAX_SCALAR, SURROGATES};
use super::error::{GrammarError, Position, shorten};
use super::limits::{GrammarLimit, GrammarLimits};

/// Index into [`Ast::names`].
pub(super) type NameId = usize;
pub(super) type Sequence = Vec<Item>;

pub(super) struct Ast {
    /// Rule names in order of first mention; all are defined.
    pub(super) names: Vec<String>,
    ids: HashMap<String, NameId>,
    /// One definition per name.
    pub(super) rules: Vec<Definition>,
}

pub(super) struct Definition {
    /// Byte offset of the name in the text.
    pub(super) at: usize,
    pub(super) alternates: Vec<Sequence>,
}

pub(super) struct Item {
    /// Byte offset in the text.
    pub(super) at: usize,
    pub(super) kind: ItemKind,
}

pub(super) enum ItemKind {
    Literal(Vec<u32>),
    Class(CharClass),
    Reference(NameId),
    Group(Vec<Sequence>),
    Repeat {
        body: Box<Item>,
        min: u32,
        /// `None`: without end.
        max: Option<u32>,
    },
}

impl Item {
    /// Whether the engine emits nothing for the item, so that no operator may follow it.
    fn is_vacuous(&self) -> bool {
        match &self.kind {
            ItemKind::Literal(characters) => characters.is_empty(),
            ItemKind::Repeat { max, .. } => *max == Some(0),
            _ => false,
        }
    }
}

impl Ast {
    pub(super) fn rule_named(&self, name: &str) -> Option<NameId> {
        self.ids.get(name).copied()
    }
}

pub(super) fn parse(text: &str, limits: &GrammarLimits) -> Result<Ast, GrammarError> {
    if text.len() > limits.max_text_bytes {
        return Err(GrammarError::Limit {
            limit: GrammarLimit::TextBytes,
            value: text.len() as u64,
            max: limits.max_text_bytes as u64,
            at: Position { line: 1, column: 1 },
        });
    }
    let mut parser = Parser {
        text,
        bytes: text.as_bytes(),
        pos: 0,
        limits,
        names: Vec::new(),
        ids: HashMap::new(),
        first_use: Vec::new(),
        definitions: Vec::new(),
    };
    if let Some(nul) = parser.bytes.iter().position(|&b| b == 0) {
        // The engine reads a C string and would take the part before it for the whole.
        parser.pos = nul;
        return Err(parser.unexpected("text without NUL bytes"));
    }
    parser.grammar()?;
    parser.finish()
}

struct Parser<'a> {
    text: &'a str,
    bytes: &'a [u8],
    pos: usize,
    limits: &'a GrammarLimits,
    names: Vec<String>,
    ids: HashMap<String, NameId>,
    /// Offset of each name's first mention.
    first_use: Vec<usize>,
    definitions: Vec<Option<Definition>>,
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}

impl Parser<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.pos).copied()
    }

    fn peek_at(&self, ahead: usize) -> Option<u8> {
        self.bytes.get(self.pos + ahead).copied()
    }

    fn position(&self, offset: usize) -> Position {
        Position::of(self.text, offset)
    }

    fn unexpected(&self, expected: &'static str) -> GrammarError {
        let found = match self.text.get(self.pos..).and_then(|rest| rest.chars().next()) {
            None => "the end of the text".to_owned(),
            Some('\n' | '\r') => "the end of the line".to_owned(),
            Some(c) if c.is_control() => format!("the character U+{:04X}", u32::from(c)),
            Some(c) => format!("'{c}'"),
        };
        GrammarError::Syntax { at: self.position(self.pos), expected, found }
    }

    fn over(&self, limit: GrammarLimit, value: u64, max: u64, at: usize) -> GrammarError {
        GrammarError::Limit { limit, value, max, at: self.position(at) }
    }

    /// Blanks and comments; line ends too where the engine allows them.
    fn space(&mut self, newline_ok: bool) {
        while let Some(byte) = self.peek() {
            match byte {
                b' ' | b'\t' => self.pos += 1,
                b'\r' | b'\n' if newline_ok => self.pos += 1,
                b'#' => {
                    while self.peek().is_some_and(|b| b != b'\r' && b != b'\n') {
                        self.pos += 1;
                    }
                }
                _ => break,
            }
        }
    }

    fn name(&mut self) -> Result<NameId, GrammarError> {
        let start = self.pos;
        while self.peek().is_some_and(is_word) {
            self.pos += 1;
        }
        if start == self.pos {
            return Err(self.unexpected("a rule name (letters, digits, '-')"));
        }
        let name = &self.text[start..self.pos];
        if let Some(&id) = self.ids.get(name) {
            return Ok(id);
        }
        let id = self.names.len();
        self.names.push(name.to_owned());
        self.ids.insert(name.to_owned(), id);
        self.first_use.push(start);
        self.definitions.push(None);
        Ok(id)
    }

    fn grammar(&mut self) -> Result<(), GrammarError> {
        self.space(true);
        while self.peek().is_some() {
            self.rule()?;
        }
        Ok(())
    }

    fn rule(&mut self) -> Result<(), GrammarError> {
        let at = self.pos;
        let id = self.name()?;
        if let Some(first) = &self.definitions[id] {
            return Err(GrammarError::DuplicateRule {
                name: shorten(&self.names[id]),
                at: self.position(at),
                first: self.position(first.at),
            });
        }
        self.space(false);
        if !self.bytes[self.pos..].starts_with(b"::=") {
            return Err(self.unexpected("'::='"));
        }
        self.pos += 3;
        self.space(true);
        let alternates = self.alternates(0)?;
        match self.peek() {
            Some(b'\r') => self.pos += if self.peek_at(1) == Some(b'\n') { 2 } else { 1 },
            Some(b'\n') => self.pos += 1,
            Some(_) => return Err(self.unexpected("an item, '|' or the end of the line")),
            None => {}
        }
        self.space(true);
        self.definitions[id] = Some(Definition { at, alternates });
        Ok(())
    }

    fn alternates(&mut self, depth: usize) -> Result<Vec<Sequence>, GrammarError> {
        let mut alternates = vec![self.sequence(depth)?];
        while self.peek() == Some(b'|') {
            self.pos += 1;
            self.space(true);
            alternates.push(self.sequence(depth)?);
        }
        Ok(alternates)
    }

    fn check_nesting(&self, depth: usize, at: usize) -> Result<(), GrammarError> {
        if depth > self.limits.max_nesting {
            let max = self.limits.max_nesting as u64;
            return Err(self.over(GrammarLimit::Nesting, depth as u64, max, at));
        }
        Ok(())
    }

    fn sequence(&mut self, depth: usize) -> Result<Sequence, GrammarError> {
        let nested = depth > 0;
        let mut items: Sequence = Vec::new();
        // Operators stacked on the last item: each is one more level of the tree and one more
        // level of the engine's recursion.
        let mut stacked = 0;
        while let Some(byte) = self.peek() {
            let at = self.pos;
            let kind = match byte {
                b'"' => ItemKind::Literal(self.literal()?),
                b'[' => ItemKind::Class(self.class()?),
                b'.' => {
                    self.pos += 1;
                    ItemKind::Class(CharClass::any())
                }
                b'(' => {
                    self.check_nesting(depth + 1, at)?;
                    self.pos += 1;
                    self.space(true);
                    let alternates = self.alternates(depth + 1)?;
                    if self.peek() != Some(b')') {
                        return Err(self.unexpected("an item, '|' or ')'"));
                    }
                    self.pos += 1;
                    ItemKind::Group(alternates)
                }
                b'*' | b'+' | b'?' | b'{' => {
                    let Some(body) = items.pop().filter(|item| !item.is_vacuous()) else {
                        return Err(self.unexpected("an item to repeat before the operator"));
                    };
                    stacked += 1;
                    self.check_nesting(depth + stacked, at)?;
                    let (min, max) = self.operator(byte, nested)?;
                    let at = body.at;
                    items.push(Item { at, kind: ItemKind::Repeat { body: Box::new(body), min, max } });
                    continue;
                }
                _ if is_word(byte) => ItemKind::Reference(self.name()?),
                _ => break,
            };
            self.space(nested);
            stacked = 0;
            items.push(Item { at, kind });
        }
        Ok(items)
    }

    fn operator(&mut self, byte: u8, nested: bool) -> Result<(u32, Option<u32>), GrammarError> {
        let start = self.pos;
        self.pos += 1;
        self.space(nested);
        match byte {
            b'*' => return Ok((0, None)),
            b'+' => return Ok((1, None)),
            b'?' => return Ok((0, Some(1))),
            _ => {}
        }
        let min = self.count(nested)?;
        let max = match self.peek() {
            Some(b'}') => Some(min),
            Some(b',') => {
                self.pos += 1;
                self.space(nested);
                if self.peek().is_some_and(|b| b.is_ascii_digit()) { Some(self.count(nested)?) } else { None }
            }
            _ => return Err(self.unexpected("',' or '}'")),
        };
        if self.peek() != Some(b'}') {
            return Err(self.unexpected("'}'"));
        }
        self.pos += 1;
        self.space(nested);
        if let Some(max) = max
            && max < min
        {
            return Err(GrammarError::ReversedRange { at: self.position(start), what: format!("{{{min},{max}}}") });
        }
        Ok((min, max))
    }

    fn count(&mut self, nested: bool) -> Result<u32, GrammarError> {
        let start = self.pos;
        let mut value: u64 = 0;
        while let Some(digit) = self.peek().filter(u8::is_ascii_digit) {
            value = value.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
            self.pos += 1;
        }
        if start == self.pos {
            return Err(self.unexpected("a number"));
        }
        let max = self.limits.max_repetition;
        let count = match u32::try_from(value) {
            Ok(count) if count <= max => count,
            _ => return Err(self.over(GrammarLimit::Repetition, value, max.into(), start)),
        };
        self.space(nested);
        Ok(count)
    }

    fn literal(&mut self) -> Result<Vec<u32>, GrammarError> {
        self.pos += 1;
        let mut characters = Vec::new();
        loop {
            match self.peek() {
                Some(b'"') => break,
                None => return Err(self.unexpected("'\"' to close the literal")),
                Some(_) => {
                    let at = self.pos;
                    let character = self.character()?;
                    let surrogate = (SURROGATES.0..=SURROGATES.1).contains(&character);
                    if character == 0 || surrogate {
                        return Err(GrammarError::ImpossibleCharacter {
                            at: self.position(at),
                            what: format!("U+{character:04X}"),
                        });
                    }
                    characters.push(character);
                }
            }
        }
        self.pos += 1;
        Ok(characters)
    }

    fn class(&mut self) -> Result<CharClass, GrammarError> {
        let start = self.pos;
        self.pos += 1;
        let negated = self.peek() == Some(b'^');
        if negated {
            self.pos += 1;
        }
        if self.peek() == Some(b']') {
            // The engine reads "[]" and "[^]" as the empty text, which nobody means.
            return Err(self.unexpected("a character ('\\]' for a bracket, '.' for any character)"));
        }
        let mut ranges = Vec::new();
        loop {
            match self.peek() {
                Some(b']') => break,
                None => return Err(self.unexpected("']' to close the class")),
                Some(_) => {}
            }
            let at = self.pos;
            let low = self.character()?;
            let mut high = low;
            if self.peek() == Some(b'-') && self.peek_at(1) != Some(b']') {
                self.pos += 1;
                if self.peek().is_none() {
                    return Err(self.unexpected("the end of the range"));
                }
                high = self.character()?;
            }
            if high < low {
                return Err(GrammarError::ReversedRange {
                    at: self.position(at),
                    what: format!("the range {}", shorten(&self.text[at..self.pos])),
                });
            }
            ranges.push((low, high));
        }
        self.pos += 1;
        let class = CharClass::new(negated, ranges);
        if class.scalars().is_empty() {
            return Err(GrammarError::ImpossibleCharacter {
                at: self.position(start),
                what: format!("the class {}", shorten(&self.text[start..self.pos])),
            });
        }
        Ok(class)
    }

    /// One character of a literal or class, plain or escaped.
    fn character(&mut self) -> Result<u32, GrammarError> {
        if self.peek() != Some(b'\\') {
            let Some(c) = self.text.get(self.pos..).and_then(|rest| rest.chars().next()) else {
                return Err(self.unexpected("a character"));
            };
            self.pos += c.len_utf8();
            return Ok(u32::from(c));
        }
        let start = self.pos;
        self.pos += 1;
        let plain = match self.peek() {
            Some(b'x') => return self.hex(2, start),
            Some(b'u') => return self.hex(4, start),
            Some(b'U') => return self.hex(8, start),
            Some(b't') => '\t',
            Some(b'r') => '\r',
            Some(b'n') => '\n',
            Some(byte @ (b'\\' | b'"' | b'[' | b']')) => char::from(byte),
            _ => {
                return Err(self.unexpected("one of the escapes \\x \\u \\U \\n \\r \\t \\\\ \\\" \\[ \\]"));
            }
        };
        self.pos += 1;
        Ok(u32::from(plain))
    }

    fn hex(&mut self, digits: usize, start: usize) -> Result<u32, GrammarError> {
        self.pos += 1;
        let mut value: u32 = 0;
        for _ in 0..digits {
            let digit = self.peek().and_then(|b| char::from(b).to_digit(16));
            let Some(digit) = digit else {
                return Err(self.unexpected(match digits {
                    2 => "two hexadecimal digits after \\x",
                    4 => "four hexadecimal digits after \\u",
                    _ => "eight hexadecimal digits after \\U",
                }));
            };
            value = (value << 4) | digit;
            self.pos += 1;
        }
        if value > MAX_SCALAR {
            return Err(GrammarError::ImpossibleCharacter {
                at: self.position(start),
                what: format!("the code point {value:#X} (above U+10FFFF)"),
            });
        }
        Ok(value)
    }

    fn finish(self) -> Result<Ast, GrammarError> {
        let mut rules = Vec::with_capacity(self.definitions.len());
        for (id, definition) in self.definitions.into_iter().enumerate() {
            match definition {
                Some(definition) => rules.push(definition),
                None => {
                    return Err(GrammarError::UndefinedRule {
                        name: shorten(&self.names[id]),
                        at: Position::of(self.text, self.first_use[id]),
                    });
                }
            }
        }
        Ok(Ast { names: self.names, ids: self.ids, rules })
    }
}
