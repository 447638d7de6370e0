//! JSON text and sets of characters as GBNF.

use std::fmt::Write as _;

/// Largest Unicode scalar value.
pub(super) const MAX_SCALAR: u32 = 0x10_FFFF;

/// Name of the rule for one character of a JSON string.
pub(super) const CHAR_RULE: &str = "json-char";

/// One character of a JSON string, in all its spellings: plain, short escape, `\u` escape, surrogate pair. Lone
/// surrogates are left out: they are no character, and serde_json refuses them.
pub(super) const CHAR_RULES: &str = r#"json-char ::= [^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" json-unit)
json-unit ::= [0-9abcefABCEF] json-hex{3} | [dD] [0-7] json-hex{2} | [dD] [89abAB] json-hex{2} "\\u" [dD] [c-fC-F] json-hex{2}
json-hex ::= [0-9a-fA-F]
"#;

/// A GBNF literal for `text`.
pub(super) fn literal(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Sorted, merged ranges without surrogates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CharSet(Vec<(u32, u32)>);

impl CharSet {
    pub(super) fn new(mut ranges: Vec<(u32, u32)>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::new();
        for (low, high) in ranges {
            for (from, to) in [(0, 0xD7FF), (0xE000, MAX_SCALAR)] {
                let (low, high) = (low.max(from), high.min(to));
                if low > high {
                    continue;
                }
                match merged.last_mut() {
                    Some(last) if low <= last.1.saturating_add(1) => last.1 = last.1.max(high),
                    _ => merged.push((low, high)),
                }
            }
        }
        Self(merged)
    }

    pub(super) fn one(c: char) -> Self {
        Self(vec![(u32::from(c), u32::from(c))])
    }

    pub(super) fn ranges(&self) -> &[(u32, u32)] {
        &self.0
    }

    pub(super) fn complement(&self) -> Self {
        let mut out = Vec::new();
        let mut next = 0;
        for &(low, high) in &self.0 {
            if low > next {
                out.push((next, low - 1));
            }
            next = high + 1;
        }
        if next <= MAX_SCALAR {
            out.push((next, MAX_SCALAR));
        }
        Self::new(out)
    }

    fn contains(&self, c: char) -> bool {
        let c = u32::from(c);
        self.0.iter().any(|&(low, high)| low <= c && c <= high)
    }

    /// A character of the set inside a JSON string, as a GBNF item: plain where JSON allows it, by the short escape
    /// where there is one. Control characters without a short escape are left out; `None` if nothing is left.
    pub(super) fn in_json(&self) -> Option<String> {
        let mut class = String::new();
        let mut plain = 0;
        for &(low, high) in &self.0 {
            for (from, to) in [(0x20, 0x21), (0x23, 0x5B), (0x5D, MAX_SCALAR)] {
                let (low, high) = (low.max(from), high.min(to));
                if low > high {
                    continue;
                }
                class_char(low, &mut class);
                if high > low {
                    class.push('-');
                    class_char(high, &mut class);
                }
                plain += 1;
            }
        }
        let mut ways = Vec::new();
        if plain > 0 {
            ways.push(format!("[{class}]"));
        }
        let mut escapes = String::new();
        for (c, letter) in
            [('"', "\\\""), ('\\', "\\\\"), ('\u{8}', "b"), ('\u{c}', "f"), ('\n', "n"), ('\r', "r"), ('\t', "t")]
        {
            if self.contains(c) {
                escapes.push_str(letter);
            }
        }
        if !escapes.is_empty() {
            ways.push(format!("\"\\\\\" [{escapes}]"));
        }
        match ways.len() {
            0 => None,
            1 if plain > 0 => ways.pop(),
            _ => Some(format!("({})", ways.join(" | "))),
        }
    }
}

fn class_char(c: u32, out: &mut String) {
    match char::from_u32(c) {
        Some(c) if c.is_ascii_alphanumeric() => out.push(c),
        _ => {
            let _ = write!(out, "\\U{c:08X}");
        }
    }
}
