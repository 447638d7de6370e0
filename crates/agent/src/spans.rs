//! Tokens of an input with their places, so that a reading can account for every one of them.

/// What kind of text a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// ASCII digits.
    Digits,
    /// Letters of a script that separates words.
    Word,
    /// One Chinese character.
    Han,
    /// One character that is neither a letter nor a digit.
    Mark,
    /// One other character: a letter or digit of a script that no reader knows.
    Other,
}

impl TokenKind {
    /// Letters of any script that the reader knows.
    pub(crate) fn is_letters(self) -> bool {
        matches!(self, TokenKind::Word | TokenKind::Han)
    }
}

/// One token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) kind: TokenKind,
    pub(crate) text: String,
    /// Index of its first character.
    pub(crate) start: usize,
    /// Index behind its last character.
    pub(crate) end: usize,
    /// White space stands before it.
    pub(crate) spaced: bool,
}

impl Token {
    pub(crate) fn is(&self, text: &str) -> bool {
        self.text == text
    }
}

pub(crate) fn is_han(c: char) -> bool {
    matches!(c, '\u{3007}' | '\u{3400}'..='\u{4DBF}' | '\u{4E00}'..='\u{9FFF}' | '\u{F900}'..='\u{FAFF}' | '\u{20000}'..='\u{323AF}')
}

/// Tokens of folded text. Every character but white space belongs to one, except a hyphen between two ASCII letters
/// (living-room), which only separates.
pub(crate) fn tokens(folded: &str) -> Vec<Token> {
    let chars: Vec<char> = folded.chars().collect();
    let mut out: Vec<Token> = Vec::new();
    let mut spaced = false;
    let mut at = 0;
    let letter = |c: char| c.is_ascii_alphabetic() || (c.is_alphabetic() && !is_han(c) && (c as u32) < 0x2E80);
    while at < chars.len() {
        let c = chars[at];
        if c.is_whitespace() {
            spaced = true;
            at += 1;
            continue;
        }
        let hyphen = c == '-'
            && at > 0
            && chars[at - 1].is_ascii_alphabetic()
            && chars.get(at + 1).is_some_and(char::is_ascii_alphabetic);
        if hyphen {
            spaced = true;
            at += 1;
            continue;
        }
        let start = at;
        let kind = if c.is_ascii_digit() {
            while chars.get(at).is_some_and(char::is_ascii_digit) {
                at += 1;
            }
            TokenKind::Digits
        } else if letter(c) {
            while let Some(c) = chars.get(at) {
                let apostrophe = *c == '\'' && chars.get(at + 1).is_some_and(|next| letter(*next));
                if !letter(*c) && !apostrophe {
                    break;
                }
                at += 1;
            }
            TokenKind::Word
        } else {
            at += 1;
            if is_han(c) {
                TokenKind::Han
            } else if c.is_alphanumeric() {
                TokenKind::Other
            } else {
                TokenKind::Mark
            }
        };
        out.push(Token { kind, text: chars[start..at].iter().collect(), start, end: at, spaced });
        spaced = false;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn digits_words_and_characters_are_apart() {
        let found: Vec<(TokenKind, String)> =
            tokens("don't调到30%k1 living-room ९").into_iter().map(|t| (t.kind, t.text)).collect();
        let wanted = [
            (TokenKind::Word, "don't"),
            (TokenKind::Han, "调"),
            (TokenKind::Han, "到"),
            (TokenKind::Digits, "30"),
            (TokenKind::Mark, "%"),
            (TokenKind::Word, "k"),
            (TokenKind::Digits, "1"),
            (TokenKind::Word, "living"),
            (TokenKind::Word, "room"),
            (TokenKind::Other, "९"),
        ];
        assert_eq!(found, wanted.map(|(k, t)| (k, t.to_owned())));
    }

    proptest! {
        #[test]
        fn every_character_but_spaces_and_hyphens_in_words_belongs_to_a_token(text in "\\PC{0,80}|[a-z0-9 %.,-]{0,60}") {
            let covered: String = tokens(&text).into_iter().map(|t| t.text).collect();
            let wanted: String = text.chars().filter(|c| !c.is_whitespace()).collect();
            prop_assert_eq!(covered.replace('-', ""), wanted.replace('-', ""));
        }
    }
}
