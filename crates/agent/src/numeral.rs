//! Whole numbers as people write them: digits or Chinese numerals up to 999.

/// Reads a number at the start of `text`. Returns the value and how many characters it took;
/// `None` if there is none, or it does not fit (more than 6 digits).
#[must_use]
pub(crate) fn leading_number(text: &[char]) -> Option<(u32, usize)> {
    let digits = text.iter().take_while(|c| c.is_ascii_digit()).count();
    if digits > 0 {
        if digits > 6 {
            return None;
        }
        let value: String = text[..digits].iter().collect();
        return value.parse().ok().map(|v| (v, digits));
    }
    let length = text.iter().take_while(|c| is_numeral(**c)).count();
    if length == 0 || length > 6 {
        return None;
    }
    chinese(&text[..length]).map(|v| (v, length))
}

/// The whole of `text` as a number.
#[must_use]
pub(crate) fn whole_number(text: &str) -> Option<u32> {
    let chars: Vec<char> = text.chars().collect();
    match leading_number(&chars) {
        Some((value, used)) if used == chars.len() => Some(value),
        _ => None,
    }
}

pub(crate) fn is_numeral(c: char) -> bool {
    digit(c).is_some() || c == '十' || c == '百'
}

fn digit(c: char) -> Option<u32> {
    match c {
        '零' | '〇' => Some(0),
        '一' => Some(1),
        '二' | '两' => Some(2),
        '三' => Some(3),
        '四' => Some(4),
        '五' => Some(5),
        '六' => Some(6),
        '七' => Some(7),
        '八' => Some(8),
        '九' => Some(9),
        _ => None,
    }
}

/// Chinese numerals below 1000: 二十六, 十, 一百, 一百零五, 三.
fn chinese(text: &[char]) -> Option<u32> {
    let mut total = 0_u32;
    let mut pending: Option<u32> = None;
    let mut last_unit = 1000_u32;
    for c in text {
        match c {
            '百' | '十' => {
                let unit = if *c == '百' { 100 } else { 10 };
                if unit >= last_unit {
                    return None;
                }
                last_unit = unit;
                let count = match pending.take() {
                    Some(0) => return None,
                    Some(count) => count,
                    // 十 alone is ten; 百 needs its digit
                    None if unit == 10 => 1,
                    None => return None,
                };
                total += count * unit;
            }
            _ => {
                let value = digit(*c)?;
                match pending {
                    None | Some(0) => pending = Some(value),
                    Some(_) => return None,
                }
            }
        }
    }
    Some(total + pending.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_people_say() {
        for (text, value) in [
            ("26", 26),
            ("二十六", 26),
            ("十", 10),
            ("十六", 16),
            ("三十", 30),
            ("一百", 100),
            ("一百零五", 105),
            ("零", 0),
            ("两", 2),
        ] {
            assert_eq!(whole_number(text), Some(value), "{text}");
        }
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for text in ["", "百", "十十", "二三", "1234567", "26度", "一十百", "零十"] {
            assert_eq!(whole_number(text), None, "{text}");
        }
    }
}
