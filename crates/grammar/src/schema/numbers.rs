//! Languages of numbers between exact bounds.

use llguidance::derivre::RegexAst;

use super::decimal::Decimal;
use super::read::{Bound, kind};

/// What a number has to be.
#[derive(Debug, Default, Clone)]
pub(crate) struct NumberRange {
    /// [`kind::INTEGER`], [`kind::FRACTION`] or both.
    pub(crate) kinds: u8,
    pub(crate) lower: Option<Bound>,
    pub(crate) upper: Option<Bound>,
    pub(crate) multiples: Vec<Decimal>,
    pub(crate) not: Vec<Decimal>,
}

/// How numbers are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NumberForm {
    /// Whole numbers of at most 18 digits without point; others of at most 9 + 6 digits without exponent; no `-0`.
    Plain,
    /// Also longer ones, `1.0` for a whole number, and exponents of at most two digits where there is no bound but 0.
    Any,
}

/// Largest divisor and most decimals that the engine's arithmetic has room for.
const MAX_DIVISOR: u128 = 10_000;
const MAX_DECIMALS: i64 = 6;

impl NumberRange {
    /// Tightens a bound.
    pub(crate) fn above(&mut self, bound: &Bound) {
        let tighter = self
            .lower
            .as_ref()
            .is_none_or(|old| bound.value > old.value || (bound.value == old.value && bound.exclusive));
        if tighter {
            self.lower = Some(bound.clone());
        }
    }

    pub(crate) fn below(&mut self, bound: &Bound) {
        let tighter = self
            .upper
            .as_ref()
            .is_none_or(|old| bound.value < old.value || (bound.value == old.value && bound.exclusive));
        if tighter {
            self.upper = Some(bound.clone());
        }
    }

    /// The numbers' texts, and whether every `multipleOf` is in it.
    pub(crate) fn language(&self, form: NumberForm) -> (RegexAst, bool) {
        let mut parts = Vec::new();
        let unbounded =
            self.lower.is_none() && self.upper.is_none() && self.multiples.is_empty() && self.not.is_empty();
        if self.kinds == kind::INTEGER {
            parts.push(match form {
                NumberForm::Plain => regex("-?(?:0|[1-9][0-9]{0,17})"),
                NumberForm::Any => regex("-?(?:0|[1-9][0-9]{0,99})(?:\\.0{1,20})?"),
            });
        } else {
            let exponent = if unbounded || self.is_sign_only() { "(?:[eE][+-]?[0-9]{1,2})?" } else { "" };
            parts.push(match form {
                NumberForm::Plain => regex("-?(?:0|[1-9][0-9]{0,8})(?:\\.[0-9]{1,6})?"),
                NumberForm::Any => regex(&format!("-?(?:0|[1-9][0-9]{{0,99}})(?:\\.[0-9]{{1,100}})?{exponent}")),
            });
            if self.kinds == kind::FRACTION {
                parts.push(regex("-?[0-9]+\\.[0-9]*[1-9][0-9]*"));
            }
        }
        if form == NumberForm::Plain {
            parts.push(not(regex("-0(?:\\.0*)?")));
        }
        parts.extend(self.bounds(form));
        let mut exact = true;
        if !self.multiples.is_empty() {
            // Each by itself is small; together they would have as many states as their product.
            let together =
                common_multiple(&self.multiples).and_then(|(digits, exponent)| multiple(digits, exponent, form));
            exact = together.is_some();
            parts.extend(together.or_else(|| {
                let (digits, exponent) = self.multiples[0].as_divisor()?;
                multiple(digits, exponent, form)
            }));
        }
        for value in &self.not {
            parts.push(not(spellings(value)));
        }
        let language = if parts.len() == 1 { parts.swap_remove(0) } else { RegexAst::And(parts) };
        (language, exact)
    }

    /// Only the sign is bounded.
    fn is_sign_only(&self) -> bool {
        let zero = |bound: &Option<Bound>| bound.as_ref().is_none_or(|b| b.value.is_zero());
        zero(&self.lower)
            && zero(&self.upper)
            && self.multiples.is_empty()
            && self.not.is_empty()
            && (self.lower.is_none() || self.upper.is_none())
    }

    fn bounds(&self, form: NumberForm) -> Option<RegexAst> {
        if self.lower.is_none() && self.upper.is_none() {
            return None;
        }
        if self.is_sign_only() && self.kinds == kind::NUMBER && form == NumberForm::Any {
            let (bound, sign) = match (&self.lower, &self.upper) {
                (Some(bound), _) => (bound, ""),
                (_, Some(bound)) => (bound, "-"),
                _ => return None,
            };
            let some_digit = regex("[^eE]*[1-9](?s:.*)");
            let signed = RegexAst::Concat(vec![RegexAst::Literal(sign.to_owned()), regex("[0-9](?s:.*)")]);
            return Some(if bound.exclusive {
                RegexAst::And(vec![signed, some_digit])
            } else {
                RegexAst::Or(vec![signed, regex("-?0(?:\\.0*)?(?:[eE](?s:.*))?")])
            });
        }
        let flipped =
            |bound: &Option<Bound>| bound.as_ref().map(|b| Bound { value: b.value.negated(), exclusive: b.exclusive });
        let mut signs = Vec::new();
        if let Some(language) = magnitude(self.lower.as_ref(), self.upper.as_ref()) {
            signs.push(language);
        }
        let (lower, upper) = (flipped(&self.upper), flipped(&self.lower));
        if let Some(language) = magnitude(lower.as_ref(), upper.as_ref()) {
            signs.push(RegexAst::Concat(vec![RegexAst::Byte(b'-'), language]));
        }
        Some(RegexAst::Or(signs))
    }
}

fn regex(text: &str) -> RegexAst {
    RegexAst::Regex(text.to_owned())
}

fn not(language: RegexAst) -> RegexAst {
    RegexAst::Not(Box::new(language))
}

/// All plain spellings of a value (bounded numbers have no exponents).
fn spellings(value: &Decimal) -> RegexAst {
    let (whole, fraction) = value.parts();
    let whole = if whole.is_empty() { "0".to_owned() } else { whole };
    let sign = if value.is_negative() {
        "-"
    } else if value.is_zero() {
        "-?"
    } else {
        ""
    };
    if fraction.is_empty() {
        regex(&format!("{sign}{whole}(?:\\.0*)?"))
    } else {
        regex(&format!("{sign}{whole}\\.{fraction}0*"))
    }
}

/// Texts `digits` or `digits.digits` without sign whose value is between the bounds. `None`: none is.
fn magnitude(lower: Option<&Bound>, upper: Option<&Bound>) -> Option<RegexAst> {
    let mut parts = Vec::new();
    if let Some(upper) = upper {
        if upper.value.is_negative() || (upper.value.is_zero() && upper.exclusive) {
            return None;
        }
        parts.push(at_most(upper));
    }
    if let Some(lower) = lower
        && !lower.value.is_negative()
        && (!lower.value.is_zero() || lower.exclusive)
    {
        parts.push(at_least(lower));
    }
    if let (Some(lower), Some(upper)) = (lower, upper)
        && (lower.value > upper.value || (lower.value == upper.value && (lower.exclusive || upper.exclusive)))
    {
        return None;
    }
    Some(match parts.len() {
        0 => regex("[0-9]+(?:\\.[0-9]+)?"),
        1 => parts.swap_remove(0),
        _ => RegexAst::And(parts),
    })
}

const ANY_FRACTION: &str = "(?:\\.[0-9]+)?";

fn at_least(bound: &Bound) -> RegexAst {
    let (whole, fraction) = bound.value.parts();
    let mut ways: Vec<String> = Vec::new();
    // A larger whole part.
    ways.push(format!("[1-9][0-9]{{{},}}{ANY_FRACTION}", whole.len()));
    let digits = whole.as_bytes();
    for (i, &digit) in digits.iter().enumerate() {
        if digit < b'9' {
            let rest = digits.len() - i - 1;
            ways.push(format!("{}[{}-9][0-9]{{{rest}}}{ANY_FRACTION}", &whole[..i], char::from(digit + 1)));
        }
    }
    // The same whole part, and enough behind the point.
    let whole = if whole.is_empty() { "0" } else { &whole };
    if fraction.is_empty() {
        ways.push(if bound.exclusive {
            format!("{whole}\\.[0-9]*[1-9][0-9]*")
        } else {
            format!("{whole}{ANY_FRACTION}")
        });
    } else {
        for (i, digit) in fraction.bytes().enumerate() {
            if digit < b'9' {
                ways.push(format!("{whole}\\.{}[{}-9][0-9]*", &fraction[..i], char::from(digit + 1)));
            }
        }
        let more = if bound.exclusive { "[0-9]*[1-9][0-9]*" } else { "[0-9]*" };
        ways.push(format!("{whole}\\.{fraction}{more}"));
    }
    RegexAst::Or(ways.iter().map(|way| regex(way)).collect())
}

fn at_most(bound: &Bound) -> RegexAst {
    let (whole, fraction) = bound.value.parts();
    let mut ways: Vec<String> = Vec::new();
    // A smaller whole part.
    if !whole.is_empty() {
        ways.push(format!("0{ANY_FRACTION}"));
        if whole.len() > 1 {
            ways.push(format!("[1-9][0-9]{{0,{}}}{ANY_FRACTION}", whole.len() - 2));
        }
        for (i, digit) in whole.bytes().enumerate() {
            let lowest = if i == 0 { b'1' } else { b'0' };
            if digit > lowest {
                let rest = whole.len() - i - 1;
                let range = format!("[{}-{}]", char::from(lowest), char::from(digit - 1));
                ways.push(format!("{}{range}[0-9]{{{rest}}}{ANY_FRACTION}", &whole[..i]));
            }
        }
    }
    let whole = if whole.is_empty() { "0" } else { &whole };
    if fraction.is_empty() {
        if !bound.exclusive {
            ways.push(format!("{whole}(?:\\.0+)?"));
        }
    } else {
        ways.push(whole.to_owned());
        for (i, digit) in fraction.bytes().enumerate() {
            if digit > b'0' {
                ways.push(format!("{whole}\\.{}[0-{}][0-9]*", &fraction[..i], char::from(digit - 1)));
            }
            // It ends before the bound's digits do.
            if i > 0 {
                ways.push(format!("{whole}\\.{}", &fraction[..i]));
            }
        }
        if !bound.exclusive {
            ways.push(format!("{whole}\\.{fraction}0*"));
        }
    }
    RegexAst::Or(ways.iter().map(|way| regex(way)).collect())
}

/// `None`: beyond the engine's arithmetic.
fn multiple(digits: u128, exponent: i64, form: NumberForm) -> Option<RegexAst> {
    let sign = regex("-?");
    if exponent >= 0 {
        let divisor = digits.checked_mul(10_u128.checked_pow(u32::try_from(exponent).ok()?)?)?;
        if divisor == 1 {
            return Some(regex("-?[0-9]+(?:\\.0+)?"));
        }
        if divisor > MAX_DIVISOR {
            return None;
        }
        let mut parts = vec![sign, RegexAst::MultipleOf(u32::try_from(divisor).ok()?, 0)];
        if form == NumberForm::Any {
            parts.push(regex("(?:\\.0+)?"));
        }
        return Some(RegexAst::Concat(parts));
    }
    if digits > MAX_DIVISOR || -exponent > MAX_DECIMALS {
        return None;
    }
    // With fewer decimals the engine wants a multiple of those: 1.5 is one of 0.25 as one of 0.5.
    let scale = u32::try_from(-exponent).ok()?;
    let mut ways = Vec::new();
    for decimals in 0..=scale {
        let divisor = digits / greatest_common_divisor(digits, 10_u128.pow(scale - decimals));
        ways.push(match (divisor, decimals) {
            (1, 0) => regex("[0-9]+"),
            (1, decimals) => regex(&format!("[0-9]+(?:\\.[0-9]{{1,{decimals}}})?")),
            _ => RegexAst::MultipleOf(u32::try_from(divisor).ok()?, decimals),
        });
    }
    let unsigned = RegexAst::Or(ways);
    let mut parts = vec![sign, unsigned];
    if form == NumberForm::Any {
        parts.push(regex("(?:0*)"));
        // Zeros only behind a point.
        return Some(RegexAst::Or(vec![
            RegexAst::Concat(parts[..2].to_vec()),
            RegexAst::And(vec![RegexAst::Concat(parts), regex("-?[0-9]+\\.[0-9]*")]),
        ]));
    }
    Some(RegexAst::Concat(parts))
}

/// The least number that all of these divide, as `digits · 10^exponent`.
fn common_multiple(all: &[Decimal]) -> Option<(u128, i64)> {
    let all: Vec<(u128, i64)> = all.iter().map(Decimal::as_divisor).collect::<Option<_>>()?;
    let exponent = all.iter().map(|(_, exponent)| *exponent).min()?;
    let mut least = 1_u128;
    for (digits, own) in all {
        let scaled = digits.checked_mul(10_u128.checked_pow(u32::try_from(own - exponent).ok()?)?)?;
        least = (least / greatest_common_divisor(least, scaled)).checked_mul(scaled)?;
    }
    Some((least, exponent))
}

fn greatest_common_divisor(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::super::pattern::matcher_of;
    use super::{Bound, Decimal, NumberForm, NumberRange, kind};

    fn d(text: &str) -> Decimal {
        Decimal::parse(text).unwrap()
    }

    /// Every number of a grid against comparison of decimals.
    #[test]
    fn bounds_are_exact() {
        let edges = [
            "-100", "-10.5", "-1", "-0.25", "0", "0.05", "0.1", "1", "9", "9.99", "10", "12.345", "99", "100", "109.9",
        ];
        let mut texts: Vec<String> = (-1200..=1200).map(|i| d(&format!("{i}e-1")).to_string()).collect();
        for i in -150..=150 {
            texts.push(d(&format!("{i}e-2")).to_string());
        }
        for i in 12_300..12_400 {
            texts.push(d(&format!("{i}e-3")).to_string());
        }
        texts.extend(
            ["0.0", "1.0", "9.990", "10.00", "12.3450", "0.049999", "0.0500001", "-0.25000", "-10.50"]
                .map(String::from),
        );
        for (i, low) in edges.iter().enumerate() {
            for high in std::iter::once(None).chain(edges[i..].iter().map(Some)) {
                for flags in 0..4 {
                    let mut range = NumberRange { kinds: kind::NUMBER, ..NumberRange::default() };
                    let lower = Bound { value: d(low), exclusive: flags & 1 == 1 };
                    range.above(&lower);
                    let upper = high.map(|high| Bound { value: d(high), exclusive: flags & 2 == 2 });
                    if let Some(upper) = &upper {
                        range.below(upper);
                    }
                    let (language, exact) = range.language(NumberForm::Any);
                    assert!(exact);
                    let mut matcher = matcher_of(&language, 1_000_000).unwrap();
                    for text in &texts {
                        let value = d(text);
                        let mut fits = value > lower.value || (!lower.exclusive && value == lower.value);
                        if let Some(upper) = &upper {
                            fits &= value < upper.value || (!upper.exclusive && value == upper.value);
                        }
                        assert_eq!(matcher.is_match(text), fits, "{text} in {low} {high:?} {flags}");
                    }
                }
            }
        }
    }

    #[test]
    fn multiples_are_exact() {
        for (of, kinds) in [
            ("3", kind::INTEGER),
            ("0.01", kind::NUMBER),
            ("0.25", kind::NUMBER),
            ("0.15", kind::NUMBER),
            ("0.125", kind::NUMBER),
            ("2.5", kind::NUMBER),
            ("10", kind::NUMBER),
            ("1", kind::NUMBER),
            ("100", kind::INTEGER),
        ] {
            let range = NumberRange { kinds, multiples: vec![d(of)], ..NumberRange::default() };
            let (language, exact) = range.language(NumberForm::Any);
            assert!(exact);
            let mut matcher = matcher_of(&language, 1_000_000).unwrap();
            for i in -2_000..2_000 {
                for exponent in [0, -1, -2, -3] {
                    let value = d(&format!("{i}e{exponent}"));
                    if kinds == kind::INTEGER && !value.is_integer() {
                        continue;
                    }
                    assert_eq!(
                        matcher.is_match(&value.to_string()),
                        value.is_multiple_of(&d(of)).unwrap(),
                        "{value} of {of}"
                    );
                }
            }
            if kinds == kind::NUMBER {
                assert!(matcher.is_match("30.000"), "{of}");
            }
        }
        let range = NumberRange { kinds: kind::NUMBER, multiples: vec![d("0.4"), d("6")], ..NumberRange::default() };
        let mut matcher = matcher_of(&range.language(NumberForm::Any).0, 1_000_000).unwrap();
        for i in -100..100 {
            assert_eq!(matcher.is_match(&i.to_string()), i % 6 == 0, "{i} of 0.4 and 6");
        }
        let primes = vec![d("99991"), d("99989")];
        assert!(
            !NumberRange { kinds: kind::INTEGER, multiples: primes, ..NumberRange::default() }
                .language(NumberForm::Any)
                .1
        );
        let range = NumberRange { kinds: kind::NUMBER, multiples: vec![d("4294967295")], ..NumberRange::default() };
        assert!(!range.language(NumberForm::Any).1);
    }

    #[test]
    fn plain_numbers_are_short() {
        let range = NumberRange { kinds: kind::NUMBER, ..NumberRange::default() };
        let mut matcher = matcher_of(&range.language(NumberForm::Plain).0, 1_000_000).unwrap();
        for (text, fits) in [
            ("0", true),
            ("-0", false),
            ("-0.0", false),
            ("1e5", false),
            ("123456789.123456", true),
            ("1234567890", false),
            ("0.1234567", false),
            ("00", false),
            ("1.", false),
        ] {
            assert_eq!(matcher.is_match(text), fits, "{text}");
        }
    }
}
