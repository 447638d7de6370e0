//! Foreign text in messages.

/// A foreign text fit for an error message: short, on one line, without control characters.
pub(crate) fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(80).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(80).is_some() {
        shown.push('…');
    }
    shown
}
