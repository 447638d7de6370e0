//! Exact decimal numbers, as JSON writes them.

use std::cmp::Ordering;
use std::fmt;

/// Longest spelling of a number, and the largest exponent that is followed.
pub(crate) const MAX_NUMBER_LEN: usize = 1_000;
const MAX_EXPONENT: i64 = 1_000;

/// `± digits · 10^exponent`; equal values are equal here, whatever their spelling.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Decimal {
    negative: bool,
    /// ASCII digits without zeros at either end; empty for zero.
    digits: String,
    exponent: i64,
}

impl Decimal {
    pub(crate) fn zero() -> Self {
        Self { negative: false, digits: String::new(), exponent: 0 }
    }

    /// Reads a number in JSON's grammar; `None` for other texts and for numbers beyond the limits.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.len() > MAX_NUMBER_LEN {
            return None;
        }
        let (negative, rest) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (mantissa, exponent) = match rest.find(['e', 'E']) {
            Some(at) => {
                let digits = rest[at + 1..].strip_prefix(['+', '-']).unwrap_or(&rest[at + 1..]);
                if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                    return None;
                }
                let trimmed = digits.trim_start_matches('0');
                let size: i64 = if trimmed.is_empty() { 0 } else { trimmed.parse().ok()? };
                (&rest[..at], if rest[at + 1..].starts_with('-') { -size } else { size })
            }
            None => (rest, 0),
        };
        let (whole, fraction) = match mantissa.find('.') {
            Some(at) => (&mantissa[..at], Some(&mantissa[at + 1..])),
            None => (mantissa, None),
        };
        let all_digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        if !all_digits(whole) || (whole.len() > 1 && whole.starts_with('0')) || fraction.is_some_and(|f| !all_digits(f))
        {
            return None;
        }
        let fraction = fraction.unwrap_or("");
        let digits = format!("{whole}{fraction}");
        let mut exponent = exponent.checked_sub(i64::try_from(fraction.len()).ok()?)?;
        let digits = digits.trim_start_matches('0');
        let stripped = digits.trim_end_matches('0');
        exponent += i64::try_from(digits.len() - stripped.len()).ok()?;
        if stripped.is_empty() {
            return Some(Self::zero());
        }
        if exponent.abs() > MAX_EXPONENT {
            return None;
        }
        Some(Self { negative, digits: stripped.to_owned(), exponent })
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.digits.is_empty()
    }

    pub(crate) fn is_negative(&self) -> bool {
        self.negative
    }

    pub(crate) fn is_integer(&self) -> bool {
        self.exponent >= 0
    }

    pub(crate) fn negated(&self) -> Self {
        Self { negative: !self.negative && !self.is_zero(), ..self.clone() }
    }

    /// Digits before and behind the point of the absolute value; the first without leading zeros (empty for 0), the
    /// second without trailing ones.
    pub(crate) fn parts(&self) -> (String, String) {
        let len = i64::try_from(self.digits.len()).unwrap_or(i64::MAX);
        let point = len + self.exponent;
        let zeros = |n: i64| "0".repeat(usize::try_from(n).unwrap_or(0));
        if point <= 0 {
            (String::new(), if self.is_zero() { String::new() } else { zeros(-point) + &self.digits })
        } else if self.exponent >= 0 {
            (self.digits.clone() + &zeros(self.exponent), String::new())
        } else {
            let (whole, fraction) = self.digits.split_at(usize::try_from(point).unwrap_or(0));
            (whole.to_owned(), fraction.to_owned())
        }
    }

    /// The value as a whole number of at most 64 bits.
    pub(crate) fn as_u64(&self) -> Option<u64> {
        if self.negative || !self.is_integer() || self.digits.len() > 20 || self.exponent > 20 {
            return None;
        }
        let (whole, _) = self.parts();
        if whole.is_empty() { Some(0) } else { whole.parse().ok() }
    }

    /// The value fits an `i64` or a `u64`.
    pub(crate) fn is_64_bit(&self) -> bool {
        if self.negative {
            self.is_integer() && self.exponent < 20 && format!("{self}").parse::<i64>().is_ok()
        } else {
            self.as_u64().is_some()
        }
    }

    /// Significant digits.
    pub(crate) fn precision(&self) -> usize {
        self.digits.len()
    }

    /// Divisor (at most 10^30) and number of decimals of a `multipleOf`.
    pub(crate) fn as_divisor(&self) -> Option<(u128, i64)> {
        if self.negative || self.is_zero() || self.digits.len() > 30 {
            return None;
        }
        Some((self.digits.parse().ok()?, self.exponent))
    }

    /// `None` where the divisor is beyond [`Self::as_divisor`].
    pub(crate) fn is_multiple_of(&self, divisor: &Self) -> Option<bool> {
        let (modulus, exponent) = divisor.as_divisor()?;
        if self.is_zero() {
            return Some(true);
        }
        // `digits` ends in no zero, so a value with more decimals than the divisor is no multiple of it.
        let Ok(shift) = usize::try_from(self.exponent - exponent) else { return Some(false) };
        let mut rest: u128 = 0;
        for byte in self.digits.bytes().chain(std::iter::repeat_n(b'0', shift)) {
            rest = (rest * 10 + u128::from(byte - b'0')) % modulus;
        }
        Some(rest == 0)
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        let size = |d: &Self| i64::try_from(d.digits.len()).unwrap_or(i64::MAX) + d.exponent;
        let magnitude = || size(self).cmp(&size(other)).then_with(|| self.digits.cmp(&other.digits));
        match (self.is_zero(), other.is_zero()) {
            (true, true) => Ordering::Equal,
            (true, false) => {
                if other.negative {
                    Ordering::Greater
                } else {
                    Ordering::Less
                }
            }
            (false, true) => {
                if self.negative {
                    Ordering::Less
                } else {
                    Ordering::Greater
                }
            }
            (false, false) => match (self.negative, other.negative) {
                (false, true) => Ordering::Greater,
                (true, false) => Ordering::Less,
                (false, false) => magnitude(),
                (true, true) => magnitude().reverse(),
            },
        }
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Plain notation without exponent.
impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, fraction) = self.parts();
        if self.negative {
            f.write_str("-")?;
        }
        f.write_str(if whole.is_empty() { "0" } else { &whole })?;
        if !fraction.is_empty() {
            write!(f, ".{fraction}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Decimal;

    fn d(text: &str) -> Decimal {
        Decimal::parse(text).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn equal_values_are_equal() {
        for (a, b) in [("1", "1.0"), ("1", "1e0"), ("100", "1E+2"), ("0.01", "1e-2"), ("0", "-0.0"), ("0", "0e5")] {
            assert_eq!(d(a), d(b));
        }
        assert_ne!(d("1"), d("1.0000000000000000000001"));
    }

    #[test]
    fn order_is_by_value() {
        let sorted = ["-100", "-99.5", "-1", "-0.1", "0", "0.09", "0.1", "0.11", "1", "9", "10", "1e3", "1000.5"];
        for (i, a) in sorted.iter().enumerate() {
            for (j, b) in sorted.iter().enumerate() {
                assert_eq!(d(a).cmp(&d(b)), i.cmp(&j), "{a} {b}");
            }
        }
    }

    #[test]
    fn spellings() {
        for (text, plain) in [("1e3", "1000"), ("-1.50", "-1.5"), ("5e-3", "0.005"), ("-0", "0"), ("12.034", "12.034")]
        {
            assert_eq!(d(text).to_string(), plain);
        }
        for bad in ["", "-", "01", "1.", ".5", "1e", "1e+", "+1", "0x1", "1e99999", "NaN"] {
            assert!(Decimal::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn multiples() {
        for (value, of, is) in [
            ("10", "5", true),
            ("-4.5", "1.5", true),
            ("0.0075", "0.0001", true),
            ("0.00751", "0.0001", false),
            ("1e3", "10", true),
            ("1", "10", false),
            ("0", "7", true),
            ("1e308", "0.5", true),
            ("35", "1.5", false),
            ("1.1", "0.1", true),
            ("7", "3.5", true),
        ] {
            assert_eq!(d(value).is_multiple_of(&d(of)), Some(is), "{value} % {of}");
        }
    }

    #[test]
    fn sixty_four_bits() {
        for (text, fits) in [
            ("18446744073709551615", true),
            ("18446744073709551616", false),
            ("-9223372036854775808", true),
            ("-9223372036854775809", false),
            ("1e19", true),
            ("1e20", false),
        ] {
            assert_eq!(d(text).is_64_bit(), fits, "{text}");
        }
    }
}
