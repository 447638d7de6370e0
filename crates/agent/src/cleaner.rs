//! Finding the one JSON object in a model's unconstrained text.
//!
//! With grammar-constrained decoding there is nothing to clean; this stays as defence for any other
//! source. It only ever *selects* a part of the text: what it returns is a contiguous piece of the
//! input outside `<think>` blocks, and is then parsed strictly.

/// Returns the first balanced `{…}` after dropping `<think>` blocks; `None` when there is none.
///
/// An unclosed `<think>` drops the rest. Markdown fences need no treatment: they lie outside the
/// braces. String contents and escapes are honoured while balancing.
#[must_use]
pub fn first_object(text: &str) -> Option<String> {
    let text = without_thinking(text);
    let start = text.find('{')?;
    let mut depth = 0_usize;
    let mut in_string = false;
    let mut escaped = false;
    for (at, c) in text[start..].char_indices() {
        if in_string {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match c {
            '"' => in_string = true,
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                if depth == 0 {
                    return Some(text[start..=start + at].to_owned());
                }
            }
            _ => {}
        }
    }
    None
}

fn without_thinking(text: &str) -> String {
    const OPEN: &str = "<think>";
    const CLOSE: &str = "</think>";
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(open) = rest.find(OPEN) {
        out.push_str(&rest[..open]);
        let inner = &rest[open + OPEN.len()..];
        match inner.find(CLOSE) {
            Some(close) => rest = &inner[close + CLOSE.len()..],
            None => return out,
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn prose_fences_and_thoughts_are_left_out() {
        for (text, object) in [
            ("Sure! ```json\n{\"a\": 1}\n``` done {\"b\":2}", Some("{\"a\": 1}")),
            ("<think>{\"a\":1}</think>{\"b\":2}", Some("{\"b\":2}")),
            ("{\"a\":\"}\\\"{\"}", Some("{\"a\":\"}\\\"{\"}")),
            ("<think>{\"a\":1}", None),
            ("{\"a\":{\"b\":1}", None),
            ("}{", None),
            ("no object", None),
        ] {
            assert_eq!(first_object(text).as_deref(), object, "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn it_never_panics_and_only_selects(text in "([{}\"\\\\a灯]|<think>|</think>){0,60}") {
            if let Some(object) = first_object(&text) {
                let braced = object.starts_with('{') && object.ends_with('}');
                prop_assert!(braced);
                prop_assert!(object.len() <= text.len());
                prop_assert!(without_thinking(&text).contains(&object));
            }
        }
    }
}
