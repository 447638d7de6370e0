//! Clock times, the only conditions a command may carry.

use super::numeral::leading_number;

/// A time of day, `HH:MM`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimeOfDay {
    minutes: u16,
}

impl TimeOfDay {
    /// The time for an hour 0..=23 and a minute 0..=59; `None` outside.
    #[must_use]
    pub fn new(hour: u32, minute: u32) -> Option<Self> {
        if hour > 23 || minute > 59 {
            return None;
        }
        u16::try_from(hour * 60 + minute).ok().map(|minutes| TimeOfDay { minutes })
    }

    /// Parses exactly `HH:MM`, the form that candidates use.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        if bytes.len() != 5 || bytes[2] != b':' {
            return None;
        }
        let two = |at: usize| -> Option<u32> {
            let pair = text.get(at..at + 2)?;
            if pair.bytes().all(|b| b.is_ascii_digit()) { pair.parse().ok() } else { None }
        };
        Self::new(two(0)?, two(3)?)
    }
}

impl std::fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:02}:{:02}", self.minutes / 60, self.minutes % 60)
    }
}

impl serde::Serialize for TimeOfDay {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Parts of the day and the hours (as said) that belong to them, with what is added.
const PARTS: &[(&str, std::ops::RangeInclusive<u32>, u32)] = &[
    ("凌晨", 0..=6, 0),
    ("清晨", 4..=9, 0),
    ("早上", 4..=11, 0),
    ("早晨", 4..=11, 0),
    ("上午", 5..=12, 0),
    ("中午", 1..=2, 12),
    ("中午", 11..=12, 0),
    ("下午", 1..=7, 12),
    ("傍晚", 4..=8, 12),
    ("晚上", 5..=11, 12),
    ("夜里", 8..=11, 12),
];

/// Reads a clock time at the start of folded text. Returns the time and the characters used.
///
/// Chinese: part of the day and an hour (晚上十点, 下午3点半, 早上七点一刻, 晚上9点20分), an hour
/// of 13 to 24 alone (22点), `HH:MM`. English: `10 pm`, `10:30pm`, `7 am`, `HH:MM`, `noon`,
/// `midnight`. An hour up to 12 with nothing to say which half of the day is ambiguous and is
/// *not* read: a guess would be wrong by twelve hours.
#[must_use]
pub(crate) fn leading_time(text: &[char]) -> Option<(TimeOfDay, usize)> {
    let starts = |word: &str| text.iter().copied().take(word.chars().count()).eq(word.chars());
    for (word, hour) in [("noon", 12), ("midnight", 0), ("午夜", 0), ("正午", 12)] {
        if starts(word) {
            return TimeOfDay::new(hour, 0).map(|t| (t, word.chars().count()));
        }
    }
    for (word, hours, add) in PARTS {
        if !starts(word) {
            continue;
        }
        let offset = word.chars().count();
        let rest = &text[offset..];
        let Some((hour, minute, used)) = hour_minute(rest) else { continue };
        if hours.contains(&hour) {
            return TimeOfDay::new(hour + add, minute).map(|t| (t, offset + used));
        }
        // 晚上12点 is midnight; 晚上22点 is said by people who mean 22:00
        if *add == 12 && (13..=23).contains(&hour) {
            return TimeOfDay::new(hour, minute).map(|t| (t, offset + used));
        }
        if (*word == "晚上" || *word == "夜里") && hour == 12 {
            return TimeOfDay::new(0, minute).map(|t| (t, offset + used));
        }
    }
    english(text).or_else(|| {
        let (hour, minute, used) = hour_minute(text)?;
        let colon = text[..used].contains(&':');
        if colon || hour >= 13 {
            TimeOfDay::new(hour % 24, minute).filter(|_| hour <= 24).map(|t| (t, used))
        } else {
            None
        }
    })
}

/// `十点`, `10点半`, `9点20分`, `22:00`: hour, minute, characters used.
fn hour_minute(text: &[char]) -> Option<(u32, u32, usize)> {
    let (hour, mut used) = leading_number(text)?;
    match text.get(used) {
        Some(':') => {
            used += 1;
            let digits = text[used..].iter().take_while(|c| c.is_ascii_digit()).count();
            if digits != 2 {
                return None;
            }
            let (minute, more) = leading_number(&text[used..])?;
            Some((hour, minute, used + more))
        }
        Some('点') => {
            used += 1;
            let rest = &text[used..];
            if rest.first() == Some(&'半') {
                return Some((hour, 30, used + 1));
            }
            if rest.len() >= 2 && rest[1] == '刻' {
                let minute = match rest[0] {
                    '一' => 15,
                    '三' => 45,
                    _ => return None,
                };
                return Some((hour, minute, used + 2));
            }
            if rest.first() == Some(&'整') {
                return Some((hour, 0, used + 1));
            }
            if let Some((minute, more)) = leading_number(rest)
                && rest.get(more) == Some(&'分')
            {
                return Some((hour, minute, used + more + 1));
            }
            Some((hour, 0, used))
        }
        _ => None,
    }
}

fn english(text: &[char]) -> Option<(TimeOfDay, usize)> {
    let digits = text.iter().take_while(|c| c.is_ascii_digit()).count();
    if digits == 0 || digits > 2 {
        return None;
    }
    let (hour, mut used) = leading_number(text)?;
    let mut minute = 0;
    if text.get(used) == Some(&':') {
        let (value, more) = leading_number(&text[used + 1..])?;
        if more != 2 {
            return None;
        }
        minute = value;
        used += 1 + more;
    }
    let spaces = text[used..].iter().take_while(|c| **c == ' ').count();
    let rest = &text[used + spaces..];
    let (length, add) = [("a.m.", 0), ("p.m.", 12), ("am", 0), ("pm", 12)]
        .into_iter()
        .find(|(word, _)| word.chars().eq(rest.iter().copied().take(word.len())))
        .map(|(word, add)| (word.len(), add))?;
    if rest.get(length).is_some_and(char::is_ascii_alphanumeric) || !(1..=12).contains(&hour) {
        return None;
    }
    TimeOfDay::new(hour % 12 + add, minute).map(|t| (t, used + spaces + length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<String> {
        let chars: Vec<char> = text.chars().collect();
        leading_time(&chars).filter(|(_, used)| *used == chars.len()).map(|(t, _)| t.to_string())
    }

    #[test]
    fn general_clock_times() {
        for (text, time) in [
            ("晚上十点", "22:00"),
            ("晚上10点", "22:00"),
            ("22点", "22:00"),
            ("22:00", "22:00"),
            ("21:00", "21:00"),
            ("晚上九点", "21:00"),
            ("下午三点半", "15:30"),
            ("早上七点一刻", "07:15"),
            ("晚上9点20分", "21:20"),
            ("中午12点", "12:00"),
            ("中午一点", "13:00"),
            ("晚上12点", "00:00"),
            ("10 pm", "22:00"),
            ("10:30pm", "22:30"),
            ("10 p.m.", "22:00"),
            ("7 am", "07:00"),
            ("12 am", "00:00"),
            ("noon", "12:00"),
        ] {
            assert_eq!(read(text).as_deref(), Some(time), "{text}");
        }
    }

    #[test]
    fn ambiguous_or_impossible_times_are_not_guessed() {
        for text in ["十点", "10点", "25:00", "22:60", "下午25点", "早上十三点", "13 pm", "点", "10", "10 pmx"]
        {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn candidate_form_is_exact() {
        assert_eq!(TimeOfDay::parse("22:00").unwrap().to_string(), "22:00");
        for text in ["22点", "2:00", "24:00", "22:0", "+2:00", "２２:00", ""] {
            assert_eq!(TimeOfDay::parse(text), None, "{text}");
        }
    }
}
