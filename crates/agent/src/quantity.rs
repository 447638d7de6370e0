//! Values as people write and say them: one number, with a unit that a parameter has, or none at all.
//!
//! What is not wholly a value is not one: `050`, `30.5`, `20~40`, `2十`, `50%%` leave tokens that nobody accounts for.

use super::numeral::{is_numeral, whole_number};
use super::spans::{Token, TokenKind};

/// The unit that stands behind a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// %, percent, 百分之.
    Percent,
    /// 度, degrees, °C. Always Celsius.
    Degrees,
    /// No unit.
    Bare,
}

/// A number with its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quantity {
    pub(crate) amount: i64,
    pub(crate) unit: Unit,
}

/// Reads the value that begins at the first token; `before` is the token before it. Returns how many tokens it takes.
pub(crate) fn quantity_at(at: &[Token], before: Option<&Token>) -> Option<(usize, Quantity)> {
    for (phrase, amount) in SHARES {
        let words: Vec<&str> = phrase.split(' ').collect();
        if spells(at, &words) {
            return Some((words.len(), Quantity { amount: *amount, unit: Unit::Percent }));
        }
    }
    // A number that goes on where it seems to begin is not one.
    let first = at.first()?;
    if let Some(before) = before
        && !first.spaced
        && (before.kind == TokenKind::Digits
            || before.kind == TokenKind::Word && first.kind == TokenKind::Digits
            || (before.kind == TokenKind::Han && is_numeral_token(before)))
    {
        return None;
    }
    let mut used = 0;
    let mut sign = 1;
    if first.is("-") && at.get(1).is_some_and(|t| t.kind == TokenKind::Digits && !t.spaced) {
        if before.is_some_and(|b| !first.spaced && b.kind != TokenKind::Han) {
            return None;
        }
        (used, sign) = (1, -1);
    } else if spells(at, &["零", "下"]) {
        (used, sign) = (2, -1);
    } else if first.is("minus") {
        (used, sign) = (1, -1);
    }
    let hundredths = spells(&at[used..], &["百", "分", "之"]);
    if hundredths {
        used += 3;
    }
    let (length, amount) = match number_at(&at[used..]) {
        Some(number) => number,
        // 百分之百
        None if hundredths
            && at.get(used).is_some_and(|t| t.is("百"))
            && !at.get(used + 1).is_some_and(is_numeral_token) =>
        {
            (1, 100)
        }
        None => return None,
    };
    used += length;
    let (length, unit) = unit_at(&at[used..]);
    used += length;
    let unit = match (hundredths, unit) {
        (true, Unit::Bare) => Unit::Percent,
        (true, _) => return None,
        (false, unit) => unit,
    };
    // %%, 度度, and digits that follow without a space.
    if at.get(used).is_some_and(|next| {
        next.is("%")
            || next.is("°")
            || next.is("度")
            || (!next.spaced && next.kind == TokenKind::Digits)
            || (is_numeral_token(next) && unit == Unit::Bare)
    }) {
        return None;
    }
    Some((used, Quantity { amount: sign * amount, unit }))
}

/// Shares with a name of their own.
const SHARES: &[(&str, i64)] = &[
    ("百 分 百", 100),
    ("一 半", 50),
    ("最 亮", 100),
    ("最 大 亮 度", 100),
    ("最 高 亮 度", 100),
    ("最 大", 100),
    ("half brightness", 50),
    ("half", 50),
    ("full brightness", 100),
    ("maximum brightness", 100),
    ("max brightness", 100),
    ("maximum", 100),
    ("max", 100),
    ("full", 100),
];

fn spells(at: &[Token], words: &[&str]) -> bool {
    at.len() >= words.len() && words.iter().zip(at).all(|(word, token)| token.is(word))
}

fn is_numeral_token(token: &Token) -> bool {
    token.kind == TokenKind::Han && token.text.chars().next().is_some_and(is_numeral)
}

fn number_at(at: &[Token]) -> Option<(usize, i64)> {
    let first = at.first()?;
    match first.kind {
        TokenKind::Digits => {
            // No parameter has four digits, and 050 is not how anybody says fifty.
            if first.text.len() > 3 || (first.text.len() > 1 && first.text.starts_with('0')) {
                return None;
            }
            if at.get(1).is_some_and(is_numeral_token) {
                return None;
            }
            let goes_on = at.get(1).is_some_and(|mark| {
                mark.kind == TokenKind::Mark
                    && !mark.spaced
                    && !mark.is("%")
                    && !mark.is("°")
                    && at.get(2).is_some_and(|t| !t.spaced && t.kind == TokenKind::Digits)
            });
            if goes_on { None } else { first.text.parse().ok().map(|n| (1, n)) }
        }
        TokenKind::Han => {
            let length = at.iter().take_while(|t| is_numeral_token(t)).count();
            let text: String = at[..length].iter().map(|t| t.text.as_str()).collect();
            // 零四十 is not how anybody says forty
            if length > 1 && text.starts_with(['零', '〇']) {
                return None;
            }
            whole_number(&text).map(|n| (length, i64::from(n)))
        }
        TokenKind::Word => english_number(at),
        _ => None,
    }
}

/// zero to one hundred in words.
fn english_number(at: &[Token]) -> Option<(usize, i64)> {
    const SMALL: &[&str] = &[
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
        "thirteen",
        "fourteen",
        "fifteen",
        "sixteen",
        "seventeen",
        "eighteen",
        "nineteen",
    ];
    const TENS: &[&str] = &["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];
    let word = |index: usize| at.get(index).map_or("", |t| t.text.as_str());
    let small = |index: usize| SMALL.iter().position(|w| *w == word(index)).and_then(|n| i64::try_from(n).ok());
    let number = if matches!(word(0), "a" | "one") && word(1) == "hundred" {
        (2, 100)
    } else if let Some(tens) = TENS.iter().position(|w| *w == word(0)).and_then(|n| i64::try_from(n).ok()) {
        match small(1) {
            Some(ones) if (1..10).contains(&ones) => (2, (tens + 2) * 10 + ones),
            _ => (1, (tens + 2) * 10),
        }
    } else {
        (1, small(0)?)
    };
    // twenty thirty, five hundred, two point five
    let next = word(number.0);
    let goes_on = SMALL.contains(&next) || TENS.contains(&next) || matches!(next, "hundred" | "thousand" | "point");
    (!goes_on).then_some(number)
}

fn unit_at(at: &[Token]) -> (usize, Unit) {
    const UNITS: &[(&str, Unit)] = &[
        ("摄 氏 度", Unit::Degrees),
        ("度", Unit::Degrees),
        ("° c", Unit::Degrees),
        ("°", Unit::Degrees),
        ("degrees celsius", Unit::Degrees),
        ("degree celsius", Unit::Degrees),
        ("degrees centigrade", Unit::Degrees),
        ("degrees c", Unit::Degrees),
        ("degrees", Unit::Degrees),
        ("degree", Unit::Degrees),
        ("celsius", Unit::Degrees),
        ("centigrade", Unit::Degrees),
        ("c", Unit::Degrees),
        ("%", Unit::Percent),
        ("percent", Unit::Percent),
        ("per cent", Unit::Percent),
    ];
    UNITS
        .iter()
        .map(|(words, unit)| (words.split(' ').collect::<Vec<_>>(), *unit))
        .find(|(words, _)| spells(at, words))
        .map_or((0, Unit::Bare), |(words, unit)| (words.len(), unit))
}

#[cfg(test)]
mod tests {
    use super::super::spans::tokens;
    use super::super::text::folded;
    use super::*;

    fn whole(text: &str) -> Option<(i64, Unit)> {
        let tokens = tokens(&folded(text));
        quantity_at(&tokens, None).filter(|(used, _)| *used == tokens.len()).map(|(_, q)| (q.amount, q.unit))
    }

    #[test]
    fn values_people_say() {
        for (text, value) in [
            ("30%", (30, Unit::Percent)),
            ("百分之三十", (30, Unit::Percent)),
            ("百分之百", (100, Unit::Percent)),
            ("三十%", (30, Unit::Percent)),
            ("75 percent", (75, Unit::Percent)),
            ("ten percent", (10, Unit::Percent)),
            ("a hundred percent", (100, Unit::Percent)),
            ("26度", (26, Unit::Degrees)),
            ("26℃", (26, Unit::Degrees)),
            ("二十六摄氏度", (26, Unit::Degrees)),
            ("twenty-six degrees", (26, Unit::Degrees)),
            ("24 celsius", (24, Unit::Degrees)),
            ("零下5度", (-5, Unit::Degrees)),
            ("-5度", (-5, Unit::Degrees)),
            ("40", (40, Unit::Bare)),
            ("0%", (0, Unit::Percent)),
        ] {
            assert_eq!(whole(text), Some(value), "{text}");
        }
    }

    #[test]
    fn what_is_no_value_is_not_read() {
        for text in [
            "050%",
            "30.5%",
            "1,0",
            "20~40%",
            "20-40",
            "50%%",
            "24度度",
            "2十度",
            "二六度",
            "0x18",
            "30%50",
            "2 6度",
            "1234",
            "70 f",
            "24 kelvin",
            "twenty thirty",
            "five hundred",
            "three point five",
            "百分之30%",
            "30‰",
            "1/3",
            "l0%",
            "30f",
            "零四十",
        ] {
            assert_eq!(whole(text), None, "{text}");
        }
    }
}
