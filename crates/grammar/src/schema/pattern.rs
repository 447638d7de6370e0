//! Regular expressions of ECMA 262, read once, and turned into what the grammar engine and the validator need.
//!
//! JSON Schema's `pattern` searches: it is not anchored. The reader follows ECMA 262 without flags, as its Annex B has
//! it for escapes of characters that mean nothing; letters that other dialects give a meaning (`\A`, `\Z`, `\h`) and
//! inline flags are refused. `\d`, `\w` and `\b` are ASCII, `\s` and `.` are ECMA's. Characters are Unicode scalar
//! values.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Mutex;

use llguidance::derivre::{Regex, RegexAst, RegexBuilder};

/// Largest count of a repetition, and largest product of nested ones.
const MAX_COUNT: u32 = 100_000;
const MAX_PRODUCT: u64 = 1_000_000;
const MAX_NESTING: usize = 64;
/// Derivatives that one match in the validator may take.
const MATCH_FUEL: u64 = 2_000_000;
const BACKTRACK_LIMIT: usize = 200_000;

/// A set of characters: ranges in order, without gaps between neighbours.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CharSet(Vec<(u32, u32)>);

const SURROGATES: (u32, u32) = (0xD800, 0xDFFF);
const LAST: u32 = 0x10_FFFF;

impl CharSet {
    fn new(mut ranges: Vec<(u32, u32)>) -> Self {
        ranges.sort_unstable();
        let mut out: Vec<(u32, u32)> = Vec::new();
        for (low, high) in ranges {
            match out.last_mut() {
                Some(last) if low <= last.1.saturating_add(1) => last.1 = last.1.max(high),
                _ => out.push((low, high)),
            }
        }
        // No text holds a surrogate.
        let mut kept = Vec::new();
        for (low, high) in out {
            if low < SURROGATES.0 {
                kept.push((low, high.min(SURROGATES.0 - 1)));
            }
            if high > SURROGATES.1 {
                kept.push((low.max(SURROGATES.1 + 1), high));
            }
            if low >= SURROGATES.0 && high <= SURROGATES.1 {}
        }
        Self(kept)
    }

    fn single(c: u32) -> Self {
        Self::new(vec![(c, c)])
    }

    fn complement(&self) -> Self {
        let mut out = Vec::new();
        let mut next = 0;
        for &(low, high) in &self.0 {
            if low > next {
                out.push((next, low - 1));
            }
            next = high + 1;
        }
        if next <= LAST {
            out.push((next, LAST));
        }
        Self::new(out)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A class that regex-syntax and fancy-regex read alike.
    fn class(&self) -> String {
        if self.0.is_empty() {
            return "[^\\x{0}-\\x{10FFFF}]".to_owned();
        }
        let mut out = String::from("[");
        for &(low, high) in &self.0 {
            let _ =
                if low == high { write!(out, "\\x{{{low:X}}}") } else { write!(out, "\\x{{{low:X}}}-\\x{{{high:X}}}") };
        }
        out.push(']');
        out
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Empty,
    Set(CharSet),
    Concat(Vec<Node>),
    Alt(Vec<Node>),
    Repeat { what: Box<Node>, min: u32, max: Option<u32>, lazy: bool },
    Capture(Box<Node>),
    Start,
    End,
    Boundary { negated: bool },
    Look { what: Box<Node>, behind: bool, negated: bool },
    Back(u32),
}

impl Node {
    fn nullable(&self) -> bool {
        match self {
            Self::Empty | Self::Start | Self::End | Self::Boundary { .. } | Self::Look { .. } | Self::Back(_) => true,
            Self::Set(_) => false,
            Self::Concat(all) => all.iter().all(Self::nullable),
            Self::Alt(all) => all.iter().any(Self::nullable),
            Self::Repeat { what, min, .. } => *min == 0 || what.nullable(),
            Self::Capture(what) => what.nullable(),
        }
    }

    /// It never consumes a character.
    fn zero_width(&self) -> bool {
        match self {
            Self::Empty | Self::Start | Self::End | Self::Boundary { .. } | Self::Look { .. } => true,
            Self::Set(_) | Self::Back(_) => false,
            Self::Concat(all) | Self::Alt(all) => all.iter().all(Self::zero_width),
            Self::Repeat { what, max, .. } => *max == Some(0) || what.zero_width(),
            Self::Capture(what) => what.zero_width(),
        }
    }

    fn any(&self, test: &dyn Fn(&Node) -> bool) -> bool {
        test(self)
            || match self {
                Self::Concat(all) | Self::Alt(all) => all.iter().any(|n| n.any(test)),
                Self::Repeat { what, .. } | Self::Capture(what) | Self::Look { what, .. } => what.any(test),
                _ => false,
            }
    }

    fn has_start(&self) -> bool {
        self.any(&|n| matches!(n, Self::Start))
    }

    /// Its language does not depend on what surrounds it.
    fn is_plain(&self) -> bool {
        !self.any(&|n| matches!(n, Self::Start | Self::End | Self::Boundary { .. } | Self::Look { .. } | Self::Back(_)))
    }
}

/// Why a pattern is not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PatternError(pub(crate) String);

/// A pattern that was read.
pub(crate) struct Pattern {
    source: String,
    /// Whole texts that match; `None` where that is no regular language that we can write down.
    language: Option<RegexAst>,
    fancy_source: String,
    matcher: Mutex<Lazy>,
}

#[derive(Default)]
struct Lazy {
    regular: Option<Regex>,
    fancy: Option<Box<fancy_regex::Regex>>,
    tried: bool,
}

impl std::fmt::Debug for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Pattern").field(&self.source).finish()
    }
}

impl Pattern {
    /// Reads a pattern of at most `max_chars` characters.
    pub(crate) fn parse(source: &str, max_chars: usize) -> Result<Self, PatternError> {
        let chars: Vec<char> = source.chars().collect();
        if chars.len() > max_chars {
            return Err(PatternError(format!("{} characters are over the limit of {max_chars}", chars.len())));
        }
        let mut reader = Reader { chars, at: 0, captures: 0, names: HashMap::new(), depth: 0, backs: Vec::new() };
        let node = reader.alternatives()?;
        if reader.at < reader.chars.len() {
            return Err(reader.error("')' without '('"));
        }
        if let Some(&(number, at)) = reader.backs.iter().find(|(number, _)| *number > reader.captures) {
            return Err(PatternError(format!("character {at}: there is no group {number}")));
        }
        check_product(&node, 1)?;
        let language = search_language(&node);
        let mut fancy_source = String::new();
        write_fancy(&node, &mut fancy_source);
        Ok(Self { source: source.to_owned(), language, fancy_source, matcher: Mutex::default() })
    }

    /// The regular language of the whole texts that match.
    pub(crate) fn language(&self) -> Option<&RegexAst> {
        self.language.as_ref()
    }

    /// Does some part of the text match? `None`: undecided within the limits.
    pub(crate) fn is_match(&self, text: &str) -> Option<bool> {
        let mut lazy = self.matcher.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let lazy = &mut *lazy;
        if !lazy.tried {
            lazy.tried = true;
            lazy.regular = self.language.as_ref().and_then(|language| matcher_of(language, MATCH_FUEL));
            if lazy.regular.is_none() {
                let mut builder = fancy_regex::RegexBuilder::new(&self.fancy_source);
                lazy.fancy = builder.backtrack_limit(BACKTRACK_LIMIT).build().ok().map(Box::new);
            }
        }
        if let Some(regular) = &mut lazy.regular {
            return Some(regular.is_match(text));
        }
        lazy.fancy.as_ref()?.is_match(text).ok()
    }

    /// The validator can decide it, within limits.
    pub(crate) fn is_decidable(&self) -> bool {
        self.language.is_some() || fancy_regex::Regex::new(&self.fancy_source).is_ok()
    }
}

/// A matcher of whole texts.
pub(crate) fn matcher_of(language: &RegexAst, fuel: u64) -> Option<Regex> {
    let mut builder = RegexBuilder::new();
    let expression = builder.mk(language).ok()?;
    builder.into_regex_limited(expression, fuel).ok()
}

fn check_product(node: &Node, outer: u64) -> Result<(), PatternError> {
    match node {
        Node::Concat(all) | Node::Alt(all) => all.iter().try_for_each(|n| check_product(n, outer)),
        Node::Repeat { what, min, max, .. } => {
            let product = outer.saturating_mul(u64::from(max.unwrap_or(*min).max(1)));
            if product > MAX_PRODUCT {
                return Err(PatternError(format!("nested repetitions multiply to over {MAX_PRODUCT}")));
            }
            check_product(what, product)
        }
        Node::Capture(what) | Node::Look { what, .. } => check_product(what, outer),
        _ => Ok(()),
    }
}

// ---- reading ----

struct Reader {
    chars: Vec<char>,
    at: usize,
    captures: u32,
    names: HashMap<String, u32>,
    depth: usize,
    /// Back references and where they stand.
    backs: Vec<(u32, usize)>,
}

impl Reader {
    fn error(&self, problem: &str) -> PatternError {
        PatternError(format!("character {}: {problem}", self.at + 1))
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn eat(&mut self, text: &str) -> bool {
        let found = text.chars().enumerate().all(|(i, c)| self.chars.get(self.at + i) == Some(&c));
        if found {
            self.at += text.chars().count();
        }
        found
    }

    fn alternatives(&mut self) -> Result<Node, PatternError> {
        self.depth += 1;
        if self.depth > MAX_NESTING {
            return Err(self.error("groups nest too deep"));
        }
        let mut all = vec![self.sequence()?];
        while self.eat("|") {
            all.push(self.sequence()?);
        }
        self.depth -= 1;
        Ok(if all.len() == 1 { all.swap_remove(0) } else { Node::Alt(all) })
    }

    fn sequence(&mut self) -> Result<Node, PatternError> {
        let mut all = Vec::new();
        while let Some(c) = self.peek() {
            if c == '|' || c == ')' {
                break;
            }
            let atom = self.atom()?;
            all.push(self.repeated(atom)?);
        }
        Ok(match all.len() {
            0 => Node::Empty,
            1 => all.swap_remove(0),
            _ => Node::Concat(all),
        })
    }

    fn atom(&mut self) -> Result<Node, PatternError> {
        let Some(c) = self.peek() else { return Ok(Node::Empty) };
        match c {
            '^' => {
                self.at += 1;
                Ok(Node::Start)
            }
            '$' => {
                self.at += 1;
                Ok(Node::End)
            }
            '.' => {
                self.at += 1;
                Ok(Node::Set(CharSet::new(line_ends()).complement()))
            }
            '(' => self.group(),
            '[' => {
                self.at += 1;
                Ok(Node::Set(self.class()?))
            }
            '\\' => {
                self.at += 1;
                self.escape()
            }
            '*' | '+' | '?' => Err(self.error("nothing to repeat")),
            _ => {
                self.at += 1;
                Ok(Node::Set(CharSet::single(c as u32)))
            }
        }
    }

    fn group(&mut self) -> Result<Node, PatternError> {
        self.at += 1;
        let mut look = None;
        let mut capture = false;
        if self.eat("?:") {
        } else if self.eat("?=") {
            look = Some((false, false));
        } else if self.eat("?!") {
            look = Some((false, true));
        } else if self.eat("?<=") {
            look = Some((true, false));
        } else if self.eat("?<!") {
            look = Some((true, true));
        } else if self.eat("?<") {
            let mut name = String::new();
            while let Some(c) = self.peek().filter(|&c| c == '_' || c == '$' || c.is_alphanumeric()) {
                name.push(c);
                self.at += 1;
            }
            if name.is_empty() || !self.eat(">") {
                return Err(self.error("a group's name is expected"));
            }
            self.captures += 1;
            if self.names.insert(name, self.captures).is_some() {
                return Err(self.error("two groups of one name"));
            }
            capture = true;
        } else if self.eat("?") {
            return Err(self.error("groups with flags are not part of ECMA 262"));
        } else {
            self.captures += 1;
            capture = true;
        }
        let inner = self.alternatives()?;
        if !self.eat(")") {
            return Err(self.error("')' is missing"));
        }
        Ok(match look {
            Some((behind, negated)) => Node::Look { what: Box::new(inner), behind, negated },
            None if capture => Node::Capture(Box::new(inner)),
            None => inner,
        })
    }

    fn number(&mut self) -> Option<u32> {
        let start = self.at;
        let mut value: u32 = 0;
        while let Some(digit) = self.peek().and_then(|c| c.to_digit(10)) {
            value = value.saturating_mul(10).saturating_add(digit);
            self.at += 1;
        }
        (self.at > start).then_some(value)
    }

    fn repeated(&mut self, atom: Node) -> Result<Node, PatternError> {
        let (min, max) = match self.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => {
                let start = self.at;
                self.at += 1;
                let low = self.number();
                let comma = self.eat(",");
                let high = if comma { self.number() } else { low };
                let (Some(low), true) = (low, self.peek() == Some('}')) else {
                    // Annex B: a brace that begins no repetition is a character; it is read by the next atom.
                    self.at = start;
                    if self.chars.get(start + 1).is_some_and(char::is_ascii_digit) {
                        return Err(self.error("a repetition that does not end"));
                    }
                    return Ok(atom);
                };
                if high.is_some_and(|high| high < low) {
                    return Err(self.error("the repetition's bounds are reversed"));
                }
                if low > MAX_COUNT || high.is_some_and(|high| high > MAX_COUNT) {
                    return Err(self.error(&format!("a count over {MAX_COUNT}")));
                }
                (low, high)
            }
            _ => return Ok(atom),
        };
        self.at += 1;
        let lazy = self.eat("?");
        if matches!(self.peek(), Some('*' | '+' | '?')) {
            return Err(self.error("nothing to repeat"));
        }
        if matches!(atom, Node::Start | Node::End | Node::Boundary { .. }) {
            return Err(self.error("an assertion cannot be repeated"));
        }
        let node = Node::Repeat { what: Box::new(atom), min, max, lazy };
        if self.peek() == Some('{') && self.chars.get(self.at + 1).is_some_and(char::is_ascii_digit) {
            return Err(self.error("nothing to repeat"));
        }
        Ok(node)
    }

    fn escape(&mut self) -> Result<Node, PatternError> {
        let Some(c) = self.peek() else { return Err(self.error("a backslash at the end")) };
        match c {
            'b' | 'B' => {
                self.at += 1;
                Ok(Node::Boundary { negated: c == 'B' })
            }
            '1'..='9' => {
                let at = self.at;
                let number = self.number().unwrap_or(0);
                self.backs.push((number, at));
                Ok(Node::Back(number))
            }
            'k' => {
                self.at += 1;
                let mut name = String::new();
                if self.eat("<") {
                    while let Some(c) = self.peek().filter(|&c| c != '>') {
                        name.push(c);
                        self.at += 1;
                    }
                    self.at += 1;
                }
                let number = self.names.get(&name).copied().ok_or_else(|| self.error("no group of that name"))?;
                Ok(Node::Back(number))
            }
            _ => Ok(Node::Set(self.class_escape()?)),
        }
    }

    /// An escape that is a set of characters, in a class or not; the backslash is read.
    fn class_escape(&mut self) -> Result<CharSet, PatternError> {
        let Some(c) = self.peek() else { return Err(self.error("a backslash at the end")) };
        self.at += 1;
        let named = |ranges: &[(u32, u32)], negated: bool| {
            let set = CharSet::new(ranges.to_vec());
            if negated { set.complement() } else { set }
        };
        Ok(match c {
            'd' | 'D' => named(&[(0x30, 0x39)], c == 'D'),
            'w' | 'W' => named(&[(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)], c == 'W'),
            's' | 'S' => named(&blanks(), c == 'S'),
            't' => CharSet::single(9),
            'n' => CharSet::single(10),
            'v' => CharSet::single(11),
            'f' => CharSet::single(12),
            'r' => CharSet::single(13),
            '0' if !self.peek().is_some_and(|c| c.is_ascii_digit()) => CharSet::single(0),
            'c' => {
                let letter = self.peek().filter(char::is_ascii_alphabetic);
                let letter = letter.ok_or_else(|| self.error("a letter is expected behind \\c"))?;
                self.at += 1;
                CharSet::single(letter as u32 % 32)
            }
            'x' => CharSet::single(self.hex(2)?),
            'u' => CharSet::single(self.unicode()?),
            'p' | 'P' => self.property(c == 'P')?,
            c if c.is_ascii_alphanumeric() => {
                self.at -= 1;
                return Err(self.error(&format!("'\\{c}' is no escape of ECMA 262")));
            }
            c => CharSet::single(c as u32),
        })
    }

    fn hex(&mut self, digits: usize) -> Result<u32, PatternError> {
        let mut value = 0;
        for _ in 0..digits {
            let digit = self
                .peek()
                .and_then(|c| c.to_digit(16))
                .ok_or_else(|| self.error("a hexadecimal digit is expected"))?;
            value = value * 16 + digit;
            self.at += 1;
        }
        Ok(value)
    }

    fn unicode(&mut self) -> Result<u32, PatternError> {
        if self.eat("{") {
            let mut value: u32 = 0;
            while let Some(digit) = self.peek().and_then(|c| c.to_digit(16)) {
                value = value.saturating_mul(16).saturating_add(digit);
                self.at += 1;
            }
            if !self.eat("}") || value > LAST {
                return Err(self.error("no character"));
            }
            return Ok(value);
        }
        let first = self.hex(4)?;
        if (0xD800..0xDC00).contains(&first) && self.chars[self.at..].starts_with(&['\\', 'u']) {
            let back = self.at;
            self.at += 2;
            if let Ok(second) = self.hex(4)
                && (0xDC00..0xE000).contains(&second)
            {
                return Ok(0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00));
            }
            self.at = back;
        }
        Ok(first)
    }

    fn property(&mut self, negated: bool) -> Result<CharSet, PatternError> {
        let mut name = String::new();
        if !self.eat("{") {
            return Err(self.error("a property in braces is expected"));
        }
        while let Some(c) = self.peek().filter(|&c| c != '}') {
            name.push(c);
            self.at += 1;
        }
        let known = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '=');
        if !self.eat("}") || !known {
            return Err(self.error("no property of Unicode"));
        }
        let class = regex_syntax::parse(&format!("\\p{{{name}}}")).map_err(|_| self.error("no property of Unicode"))?;
        let regex_syntax::hir::HirKind::Class(regex_syntax::hir::Class::Unicode(class)) = class.kind() else {
            return Err(self.error("no property of Unicode"));
        };
        let set = CharSet::new(class.ranges().iter().map(|r| (r.start() as u32, r.end() as u32)).collect());
        Ok(if negated { set.complement() } else { set })
    }

    /// A class; its opening bracket is read.
    fn class(&mut self) -> Result<CharSet, PatternError> {
        let negated = self.eat("^");
        let mut ranges = Vec::new();
        loop {
            let Some(c) = self.peek() else { return Err(self.error("']' is missing")) };
            if c == ']' {
                self.at += 1;
                break;
            }
            if c == '[' && self.chars.get(self.at + 1) == Some(&':') {
                return Err(self.error("POSIX classes are not part of ECMA 262"));
            }
            let low = self.class_atom()?;
            if self.peek() == Some('-') && self.chars.get(self.at + 1).is_some_and(|&c| c != ']') {
                let back = self.at;
                self.at += 1;
                let high = self.class_atom()?;
                match (low.as_slice(), high.as_slice()) {
                    (&[(a, b)], &[(c, d)]) if a == b && c == d => {
                        if a > c {
                            self.at = back;
                            return Err(self.error("the range is reversed"));
                        }
                        ranges.push((a, c));
                        continue;
                    }
                    // Annex B: with a class on one side the hyphen is a character.
                    _ => {
                        ranges.extend(low);
                        ranges.push((0x2D, 0x2D));
                        ranges.extend(high);
                        continue;
                    }
                }
            }
            ranges.extend(low);
        }
        let set = CharSet::new(ranges);
        Ok(if negated { set.complement() } else { set })
    }

    fn class_atom(&mut self) -> Result<Vec<(u32, u32)>, PatternError> {
        let Some(c) = self.peek() else { return Err(self.error("']' is missing")) };
        self.at += 1;
        if c != '\\' {
            return Ok(vec![(c as u32, c as u32)]);
        }
        if self.eat("b") {
            return Ok(vec![(8, 8)]);
        }
        if self.eat("-") {
            return Ok(vec![(0x2D, 0x2D)]);
        }
        Ok(self.class_escape()?.0)
    }
}

fn line_ends() -> Vec<(u32, u32)> {
    vec![(10, 10), (13, 13), (0x2028, 0x2029)]
}

/// White space and line ends of ECMA 262.
fn blanks() -> [(u32, u32); 10] {
    [
        (9, 13),
        (0x20, 0x20),
        (0xA0, 0xA0),
        (0x1680, 0x1680),
        (0x2000, 0x200A),
        (0x2028, 0x2029),
        (0x202F, 0x202F),
        (0x205F, 0x205F),
        (0x3000, 0x3000),
        (0xFEFF, 0xFEFF),
    ]
}

// ---- languages ----

/// Any text.
pub(crate) fn anything() -> RegexAst {
    RegexAst::Regex("(?s:.*)".to_owned())
}

fn any_char() -> RegexAst {
    RegexAst::Regex("(?s:.)".to_owned())
}

/// The whole texts in which `node` is found.
fn search_language(node: &Node) -> Option<RegexAst> {
    let at_start = language(node, true, anything())?;
    if only_at_start(node) {
        return Some(at_start);
    }
    let later = language(node, false, anything())?;
    Some(if node.has_start() {
        let behind = RegexAst::Concat(vec![any_char(), anything(), later]);
        RegexAst::Or(vec![at_start, behind])
    } else {
        RegexAst::Concat(vec![anything(), later])
    })
}

fn only_at_start(node: &Node) -> bool {
    match node {
        Node::Start => true,
        Node::Concat(all) => all.first().is_some_and(only_at_start),
        Node::Alt(all) => all.iter().all(only_at_start),
        Node::Capture(what) => only_at_start(what),
        _ => false,
    }
}

/// The texts that `node` followed by `rest` describes, from a place that is the text's start or not.
fn language(node: &Node, start: bool, rest: RegexAst) -> Option<RegexAst> {
    Some(match node {
        Node::Empty => rest,
        Node::Start => {
            if start {
                rest
            } else {
                RegexAst::NoMatch
            }
        }
        Node::End => match rest {
            RegexAst::EmptyString => RegexAst::EmptyString,
            RegexAst::Regex(ref text) if text == "(?s:.*)" => RegexAst::EmptyString,
            rest => RegexAst::And(vec![rest, RegexAst::EmptyString]),
        },
        Node::Look { what, behind: false, negated } => {
            let ahead = language(what, start, anything())?;
            let ahead = if *negated { RegexAst::Not(Box::new(ahead)) } else { ahead };
            RegexAst::And(vec![rest, ahead])
        }
        Node::Look { behind: true, .. } | Node::Boundary { .. } | Node::Back(_) => return None,
        Node::Capture(what) => language(what, start, rest)?,
        Node::Alt(all) if !node.is_plain() => {
            RegexAst::Or(all.iter().map(|n| language(n, start, rest.clone())).collect::<Option<_>>()?)
        }
        Node::Concat(all) if !node.is_plain() => {
            // From the back; whether a place is the start matters only while an anchor is still to come.
            let mut rest = rest;
            for (i, item) in all.iter().enumerate().rev() {
                let at_start = start && all[..i].iter().all(Node::zero_width);
                let unclear = start && !at_start && all[..i].iter().all(Node::nullable);
                if unclear && item.has_start() {
                    return None;
                }
                rest = language(item, at_start, rest)?;
            }
            rest
        }
        plain => {
            if !plain.is_plain() {
                return None;
            }
            let own = plain_language(plain)?;
            match rest {
                RegexAst::EmptyString => own,
                RegexAst::NoMatch => RegexAst::NoMatch,
                rest => RegexAst::Concat(vec![own, rest]),
            }
        }
    })
}

fn plain_language(node: &Node) -> Option<RegexAst> {
    Some(match node {
        Node::Empty => RegexAst::EmptyString,
        Node::Set(set) if set.is_empty() => RegexAst::NoMatch,
        Node::Set(set) => match set.0.as_slice() {
            &[(a, b)] if a == b && a < 0x80 => RegexAst::Byte(u8::try_from(a).ok()?),
            _ => RegexAst::Regex(set.class()),
        },
        Node::Concat(all) => RegexAst::Concat(all.iter().map(plain_language).collect::<Option<_>>()?),
        Node::Alt(all) => RegexAst::Or(all.iter().map(plain_language).collect::<Option<_>>()?),
        Node::Capture(what) => plain_language(what)?,
        Node::Repeat { what, min, max, .. } => {
            RegexAst::Repeat(Box::new(plain_language(what)?), *min, max.unwrap_or(u32::MAX))
        }
        _ => return None,
    })
}

/// The same expression for fancy-regex, with every class spelled out.
fn write_fancy(node: &Node, out: &mut String) {
    const WORD: &str = "[0-9A-Za-z_]";
    match node {
        Node::Empty => {}
        Node::Set(set) => out.push_str(&set.class()),
        Node::Concat(all) => all.iter().for_each(|n| write_fancy(n, out)),
        Node::Alt(all) => {
            out.push_str("(?:");
            for (i, n) in all.iter().enumerate() {
                if i > 0 {
                    out.push('|');
                }
                write_fancy(n, out);
            }
            out.push(')');
        }
        Node::Repeat { what, min, max, lazy } => {
            out.push_str("(?:");
            write_fancy(what, out);
            let _ = match max {
                Some(max) => write!(out, "){{{min},{max}}}"),
                None => write!(out, "){{{min},}}"),
            };
            if *lazy {
                out.push('?');
            }
        }
        Node::Capture(what) => {
            out.push('(');
            write_fancy(what, out);
            out.push(')');
        }
        Node::Start => out.push_str("\\A"),
        Node::End => out.push_str("\\z"),
        Node::Boundary { negated: false } => {
            let _ = write!(out, "(?:(?<={WORD})(?!{WORD})|(?<!{WORD})(?={WORD}))");
        }
        Node::Boundary { negated: true } => {
            let _ = write!(out, "(?:(?<={WORD})(?={WORD})|(?<!{WORD})(?!{WORD}))");
        }
        Node::Look { what, behind, negated } => {
            out.push_str(match (behind, negated) {
                (false, false) => "(?=",
                (false, true) => "(?!",
                (true, false) => "(?<=",
                (true, true) => "(?<!",
            });
            write_fancy(what, out);
            out.push(')');
        }
        Node::Back(number) => {
            let _ = write!(out, "(?:\\{number})");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Pattern;

    fn pattern(source: &str) -> Pattern {
        Pattern::parse(source, 4096).unwrap_or_else(|e| panic!("{source}: {}", e.0))
    }

    /// Verdicts of a JavaScript engine.
    #[test]
    fn searches_as_ecma_262() {
        for (source, yes, no) in [
            ("a", "xay", "xyz"),
            ("^a", "ab", "ba"),
            ("a$", "ba", "ab"),
            ("^a$", "a", "a\n"),
            ("^$", "", "a"),
            ("^(?:a|b)$", "b", "ab"),
            ("^a|b$", "xb", "xbx"),
            ("^a|b$", "ax", "xa"),
            ("(^|,)b", "a,b", "ab"),
            ("a(?=b)", "ab", "ac"),
            ("^(?!foo)", "bar", "foobar"),
            ("^(?=.*\\d)(?=.*[a-z]).{4,}$", "ab12", "abcd"),
            ("^(?!.*--)[a-z-]+$", "a-b", "a--b"),
            ("^((?!foo).)*$", "fobar", "a foo"),
            ("\\bfoo\\b", "a foo.", "afoo"),
            ("^(.)\\1$", "aa", "ab"),
            ("(?<=\\$)\\d", "$1", "1"),
            ("^[\\w.]+$", "a_b.9", "a-b"),
            ("^[^]$", "\n", ""),
            ("^.$", "😀", "\n"),
            ("^\\s$", "\u{2003}", "\u{200b}"),
            ("^\\d$", "5", "٥"),
            ("^\\u{1F600}$", "😀", "x"),
            ("^\\ud83d\\ude00$", "😀", "x"),
            ("^[a\\-z]+$", "a-z", "b"),
            ("^[a-]$", "-", "b"),
            ("^\\cA$", "\u{1}", "A"),
            ("^a{2,3}$", "aaa", "a"),
            ("^a{,3}$", "a{,3}", "a"),
            ("^x{$", "x{", "x"),
            ("^\\/$", "/", "\\"),
            ("^\\p{Lu}$", "É", "é"),
            ("^[\\d-x]$", "-", "y"),
            ("[]", "never", "at all"),
            ("^(a?)+$", "aaa", "b"),
            ("^(?<y>a)\\k<y>$", "aa", "a"),
            ("$^", "", "a"),
            ("a*^b", "b", "ab"),
        ] {
            let pattern = pattern(source);
            if source != "[]" {
                assert_eq!(pattern.is_match(yes), Some(true), "{source} on {yes}");
            }
            assert_eq!(pattern.is_match(no), Some(false), "{source} on {no}");
        }
    }

    #[test]
    fn refusals_name_the_place() {
        for source in [
            "(",
            ")",
            "[",
            "a{2",
            "*",
            "\\",
            "a**",
            "[z-a]",
            "a{99999999}",
            "(((a{1000}){1000}){1000}){1000}",
            "[[:alpha:]]",
            "(?i)a",
            "\\Aa",
            "a\\Z",
            "\\p{Nothing}",
            "(a",
            "\\2(a)",
            "(?P<n>a)",
            "\\xg",
            "^*",
            "(?<n>a)(?<n>b)",
            "a{3,2}",
            "\\c1",
        ] {
            assert!(Pattern::parse(source, 4096).is_err(), "{source}");
        }
        assert!(Pattern::parse(&"(".repeat(4000), 4096).is_err());
        assert!(Pattern::parse(&"a".repeat(5000), 4096).is_err());
    }

    #[test]
    fn matching_ends() {
        // Without a bound these take longer than anybody waits.
        let text = "a".repeat(5_000);
        for source in ["^(a+)+$", "^(a|aa)+$", "^(a|a?)+$", "^(.*a){20}$", "(a*)*b", "^(([a-z])+.)+[A-Z]([a-z])+$"] {
            let _ = pattern(source).is_match(&format!("{text}!"));
        }
        // Backtracking is cut.
        assert_eq!(pattern("^(?=(a+)+b)\\w").is_match(&"a".repeat(40)), Some(false));
        assert_eq!(pattern("^(a+)+\\b!\\1$").is_match(&"a".repeat(60)), None);
    }
}
