//! Ranges of numbers as GBNF, digit by digit.

/// Integers without a bound stay in `±MAX_INTEGER`: 18 digits, so that every reader gets them exactly.
pub(super) const MAX_INTEGER: i128 = 999_999_999_999_999_999;
/// Numbers stay below this in magnitude and have at most six decimals: at most 15 significant digits, so that a binary
/// double keeps their order with respect to whole-number bounds.
pub(super) const NUMBER_BELOW: i128 = 1_000_000_000;

const FRACTION: &str = "(\".\" [0-9]{1,6})?";
/// A fraction above zero: one way for each number of leading zeros.
const NONZERO_FRACTION: &str = concat!(
    "\".\" ([1-9] [0-9]{0,5} | \"0\" [1-9] [0-9]{0,4} | \"00\" [1-9] [0-9]{0,3}",
    " | \"000\" [1-9] [0-9]{0,2} | \"0000\" [1-9] [0-9]? | \"00000\" [1-9])"
);
const ZERO_FRACTION: &str = "(\".\" \"0\"{1,6})?";

/// The integers in `low..=high` without leading zeros and without `-0`, or `None` if there are none.
pub(super) fn integers(low: i128, high: i128) -> Option<String> {
    let (low, high) = (low.max(-MAX_INTEGER), high.min(MAX_INTEGER));
    if low > high {
        return None;
    }
    let mut ways = Vec::new();
    if high >= 0 {
        ways.push(magnitudes(low.max(0), high));
    }
    if low < 0 {
        ways.push(format!("\"-\" {}", magnitudes((-high).max(1), -low)));
    }
    Some(alternatives(ways))
}

/// One end of a range of numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound {
    pub(super) value: i128,
    /// Whether the value itself is excluded.
    pub(super) open: bool,
}

/// Decimal numbers between whole-number bounds, or `None` if there are none. Written without exponent and without `-0`.
pub(super) fn numbers(low: Option<Bound>, high: Option<Bound>) -> Option<String> {
    let low = match low {
        Some(bound) if bound.value > -NUMBER_BELOW => bound,
        _ => Bound { value: -NUMBER_BELOW, open: true },
    };
    let high = match high {
        Some(bound) if bound.value < NUMBER_BELOW => bound,
        _ => Bound { value: NUMBER_BELOW, open: true },
    };
    let mut ways = Vec::new();
    let zero = Bound { value: 0, open: false };
    if high.value >= 0 {
        ways.extend(decimals(if low.value < 0 { zero } else { low }, high));
    }
    if low.value < 0 {
        let nearest = if high.value >= 0 { Bound { value: 0, open: true } } else { high.mirrored() };
        ways.extend(decimals(nearest, low.mirrored()).map(|way| format!("\"-\" {way}")));
    }
    if ways.is_empty() { None } else { Some(alternatives(ways)) }
}

impl Bound {
    fn mirrored(self) -> Self {
        Self { value: -self.value, open: self.open }
    }
}

/// Decimals between `low` and `high`, both at least 0.
fn decimals(low: Bound, high: Bound) -> Option<String> {
    let mut ways = Vec::new();
    let mut first = low.value;
    if low.open && low.value < high.value {
        ways.push(format!("{} {NONZERO_FRACTION}", magnitudes(low.value, low.value)));
        first += 1;
    }
    if first < high.value {
        ways.push(format!("{} {FRACTION}", magnitudes(first, high.value - 1)));
    }
    let touches = low.value < high.value || (low.value == high.value && !low.open);
    if !high.open && touches {
        ways.push(format!("{} {ZERO_FRACTION}", magnitudes(high.value, high.value)));
    }
    if ways.is_empty() { None } else { Some(alternatives(ways)) }
}

fn alternatives(mut ways: Vec<String>) -> String {
    if ways.len() == 1 {
        return ways.swap_remove(0);
    }
    format!("({})", ways.join(" | "))
}

/// The integers in `low..=high`, `0 <= low <= high`, as one item or sequence.
fn magnitudes(low: i128, high: i128) -> String {
    let (shortest, longest) = (digits_of(low).len(), digits_of(high).len());
    let mut ways = Vec::new();
    // Lengths whose whole range is wanted, from-to.
    let mut whole: Option<(usize, usize)> = None;
    for length in shortest..=longest {
        let smallest = if length == 1 { 0 } else { power_of_ten(length - 1) };
        let largest = power_of_ten(length) - 1;
        let (from, to) = (low.max(smallest), high.min(largest));
        // Numbers of one digit include 0, which none of the others may begin with.
        if from == smallest && to == largest && length > 1 {
            whole = Some((whole.map_or(length, |(first, _)| first), length));
            continue;
        }
        flush(&mut whole, &mut ways);
        ways.push(same_length(&digits_of(from), &digits_of(to)));
    }
    flush(&mut whole, &mut ways);
    alternatives(ways)
}

fn flush(whole: &mut Option<(usize, usize)>, ways: &mut Vec<String>) {
    if let Some((from, to)) = whole.take() {
        ways.push(match (from - 1, to - 1) {
            (least, most) if least == most => format!("[1-9] [0-9]{{{least}}}"),
            (least, most) => format!("[1-9] [0-9]{{{least},{most}}}"),
        });
    }
}

fn power_of_ten(exponent: usize) -> i128 {
    (0..exponent).fold(1, |power, _| power * 10)
}

fn digits_of(value: i128) -> Vec<u8> {
    value.to_string().into_bytes()
}

/// Digit strings between two of the same length.
fn same_length(low: &[u8], high: &[u8]) -> String {
    let (Some((&first_low, low_rest)), Some((&first_high, high_rest))) = (low.split_first(), high.split_first()) else {
        return String::new();
    };
    if low == high {
        return format!("\"{}\"", String::from_utf8_lossy(low));
    }
    let rest = low_rest.len();
    let full_low = low_rest.iter().all(|&d| d == b'0');
    let full_high = high_rest.iter().all(|&d| d == b'9');
    if first_low == first_high {
        return format!("\"{}\" {}", char::from(first_low), same_length(low_rest, high_rest));
    }
    let mut ways = Vec::new();
    let mut from = first_low;
    let mut to = first_high;
    if !full_low {
        ways.push(format!("\"{}\" {}", char::from(first_low), same_length(low_rest, &vec![b'9'; rest])));
        from += 1;
    }
    if !full_high {
        to -= 1;
    }
    if from <= to {
        let digit = if from == to {
            format!("\"{}\"", char::from(from))
        } else {
            format!("[{}-{}]", char::from(from), char::from(to))
        };
        ways.push(match rest {
            0 => digit,
            1 => format!("{digit} [0-9]"),
            _ => format!("{digit} [0-9]{{{rest}}}"),
        });
    }
    if !full_high {
        ways.push(format!("\"{}\" {}", char::from(first_high), same_length(&vec![b'0'; rest], high_rest)));
    }
    alternatives(ways)
}
