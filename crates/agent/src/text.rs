//! Folding of text before anything is compared: NFKC, invisible characters, case, spacing.

use unicode_normalization::UnicodeNormalization as _;

/// Characters that show nothing and only split words for a matcher: zero-width and joiner
/// characters, directional marks, soft hyphen, variation selectors, tags.
#[must_use]
pub(crate) fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{00AD}' | '\u{034F}' | '\u{061C}' | '\u{115F}' | '\u{1160}' | '\u{17B4}' | '\u{17B5}'
            | '\u{180B}'..='\u{180F}'
            | '\u{200B}'..='\u{200F}'
            | '\u{202A}'..='\u{202E}'
            | '\u{2060}'..='\u{206F}'
            | '\u{3164}'
            | '\u{FE00}'..='\u{FE0F}'
            | '\u{FEFF}'
            | '\u{FFA0}'
            | '\u{FFF9}'..='\u{FFFB}'
            | '\u{E0000}'..='\u{E0FFF}'
    )
}

/// NFKC without invisible characters, white-space runs as one space, trimmed. Case is kept.
#[must_use]
pub(crate) fn normalized(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.nfkc().filter(|c| !is_invisible(*c)) {
        if c.is_whitespace() {
            if !out.is_empty() && !out.ends_with(' ') {
                out.push(' ');
            }
        } else if c == '\u{2019}' || c == '\u{2018}' {
            // don’t and don't are one word
            out.push('\'');
        } else {
            out.push(c);
        }
    }
    if out.ends_with(' ') {
        out.pop();
    }
    out
}

/// [`normalized`] in lower case.
#[must_use]
pub(crate) fn folded(text: &str) -> String {
    normalized(text).to_lowercase()
}

/// Only letters and digits of the folded text: what is left when every separator that could be
/// used to split a forbidden word is gone.
#[must_use]
pub(crate) fn squeezed(text: &str) -> String {
    folded(text).chars().filter(|c| c.is_alphanumeric()).collect()
}

/// The key under which an alias is registered and looked up: folded, no white space, and without
/// the possessive 的 (客厅的灯 is 客厅灯).
#[must_use]
pub(crate) fn alias_key(alias: &str) -> String {
    let all: String = folded(alias).chars().filter(|c| !c.is_whitespace()).collect();
    let without: String = all.chars().filter(|c| *c != '的').collect();
    if without.is_empty() { all } else { without }
}

/// A unit of text that is compared whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Token {
    /// A run of ASCII letters, digits and apostrophes.
    Word(String),
    /// One other letter, as a rule a Chinese character.
    Letter(char),
    /// One character that is neither.
    Mark(char),
}

/// Tokens of already folded text; white space only separates.
#[must_use]
pub(crate) fn tokens(folded: &str) -> Vec<Token> {
    let mut out = Vec::new();
    let mut word = String::new();
    for c in folded.chars() {
        if c.is_ascii_alphanumeric() || (c == '\'' && !word.is_empty()) {
            word.push(c);
            continue;
        }
        if !word.is_empty() {
            out.push(Token::Word(std::mem::take(&mut word)));
        }
        if c.is_whitespace() {
            continue;
        }
        out.push(if c.is_alphanumeric() { Token::Letter(c) } else { Token::Mark(c) });
    }
    if !word.is_empty() {
        out.push(Token::Word(word));
    }
    out
}

/// At most `max` characters, with a marker where something was cut.
#[must_use]
pub fn clipped(text: &str, max: usize) -> String {
    const MARKER: &str = "…[cut]";
    if text.chars().count() <= max {
        return text.to_owned();
    }
    let keep = max.saturating_sub(MARKER.chars().count());
    let mut out: String = text.chars().take(keep).collect();
    out.push_str(MARKER);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_width_spaced_and_zero_width_spellings_fold_to_one() {
        assert_eq!(folded("ｅｎｔｉｔｙ＿ｉｄ"), "entity_id");
        assert_eq!(normalized("  a \t\u{3000} b\u{200B}c "), "a bc");
        assert_eq!(squeezed("忽略 · 以上"), "忽略以上");
    }

    #[test]
    fn alias_keys_ignore_spacing_case_and_the_possessive() {
        assert_eq!(alias_key("Living Room  Light"), "livingroomlight");
        assert_eq!(alias_key("客厅 的 灯"), "客厅灯");
        assert_eq!(alias_key("的"), "的");
    }

    #[test]
    fn tokens_split_languages_and_keep_apostrophes() {
        assert_eq!(
            tokens("don't打开 tv!"),
            vec![
                Token::Word("don't".into()),
                Token::Letter('打'),
                Token::Letter('开'),
                Token::Word("tv".into()),
                Token::Mark('!'),
            ]
        );
    }

    #[test]
    fn clipping_is_bounded_and_visible() {
        assert_eq!(clipped("abc", 3), "abc");
        let cut = clipped(&"灯".repeat(40), 20);
        assert_eq!(cut.chars().count(), 20);
        assert!(cut.ends_with("…[cut]"));
    }
}
