//! Digests as text.

/// Reads the 64 lower-case hexadecimal digits of a 32-byte digest.
///
/// `None` for anything else, upper-case digits included, so that one digest has one spelling.
///
/// ```
/// assert_eq!(files::hex::digest(&"0f".repeat(32)), Some([15; 32]));
/// assert_eq!(files::hex::digest(&"0F".repeat(32)), None);
/// ```
pub fn digest(text: &str) -> Option<[u8; 32]> {
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.as_chunks::<2>().0) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}
