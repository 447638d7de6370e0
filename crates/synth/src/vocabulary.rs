//! Byte-level BPE vocabularies, and a synthetic one with Llama 3's special tokens.
//!
//! Random models have nothing to say, but their tokenizer must be a valid one: every byte has a
//! token, every other token has a merge that makes it from two earlier ones, texts are unique (the
//! engine aborts otherwise), and the special tokens stand where Llama 3 has them, at the end.

use gguf::writer::Value;

/// `LLAMA_TOKEN_TYPE_NORMAL`.
pub const NORMAL: i32 = 1;
/// `LLAMA_TOKEN_TYPE_CONTROL`.
pub const CONTROL: i32 = 3;
/// `LLAMA_TOKEN_TYPE_USER_DEFINED`.
pub const USER_DEFINED: i32 = 4;
/// `LLAMA_TOKEN_TYPE_UNUSED`.
pub const UNUSED: i32 = 5;

/// Tokens for the 256 bytes.
pub const BYTE_TOKENS: usize = 256;
/// Special tokens of a full-size (Llama 3) vocabulary.
pub const FULL_SPECIALS: usize = 256;
/// Special tokens of a smaller one.
pub const FEW_SPECIALS: usize = 16;
/// From this size on a vocabulary has all of Llama 3's special tokens.
pub const FULL_SIZE: usize = 128_256;

/// Text marker of a leading space in byte-level BPE: the byte 0x20 shown as U+0120.
const SPACE: char = '\u{120}';

/// Chat format: role headers and an end-of-turn token, as Llama 3 writes them.
pub const CHAT_TEMPLATE: &str = "{{ bos_token }}{% for message in messages %}\
<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n{{ message.content }}<|eot_id|>\
{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}";

/// A vocabulary ready to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vocabulary {
    /// Token texts by id.
    pub tokens: Vec<String>,
    /// Token types by id (`llama_token_type`).
    pub kinds: Vec<i32>,
    /// Merges, most preferred first: two token texts and a space between.
    pub merges: Vec<String>,
    /// Begin of text.
    pub bos: Option<u32>,
    /// End of text.
    pub eos: Option<u32>,
    /// End of turn.
    pub eot: Option<u32>,
    /// The engine's name for the rule that cuts text before merging; without it, the key is left out, as in the
    /// published GGUF of BitNet-b1.58-2B-4T.
    pub pre: Option<String>,
    /// Whether `bos` is put before a text; without it the engine's default for the pre-tokenizer holds.
    pub add_bos: Option<bool>,
    /// Chat template (Jinja).
    pub chat_template: Option<String>,
}

/// Smallest and largest size that [`Vocabulary::synthetic`] can make.
pub const fn size_limits() -> (usize, usize) {
    (BYTE_TOKENS + FEW_SPECIALS, 500_000)
}

impl Vocabulary {
    /// A vocabulary of exactly `size` tokens; `None` outside [`size_limits`].
    pub fn synthetic(size: usize) -> Option<Self> {
        let (least, most) = size_limits();
        if !(least..=most).contains(&size) {
            return None;
        }
        let specials = if size >= FULL_SIZE { FULL_SPECIALS } else { FEW_SPECIALS };
        let mut tokens: Vec<String> = byte_texts().iter().map(char::to_string).collect();
        let mut merges = Vec::new();
        for (left, right) in word_pieces().take(size - specials - BYTE_TOKENS) {
            tokens.push(format!("{left}{right}"));
            merges.push(format!("{left} {right}"));
        }
        let mut kinds = vec![NORMAL; tokens.len()];
        let first = tokens.len() as u32;
        tokens.extend(special_texts().take(specials));
        kinds.resize(tokens.len(), CONTROL);
        Some(Self {
            tokens,
            kinds,
            merges,
            bos: Some(first),
            eos: Some(first + 1),
            eot: Some(first + 9),
            pre: Some("llama-bpe".to_owned()),
            add_bos: Some(true),
            chat_template: Some(CHAT_TEMPLATE.to_owned()),
        })
    }

    /// The `tokenizer.*` metadata.
    pub fn into_metadata(self) -> Vec<(String, Value)> {
        let mut metadata = vec![("tokenizer.ggml.model".to_owned(), Value::from("gpt2"))];
        let mut put = |key: &str, value| metadata.push((format!("tokenizer.ggml.{key}"), value));
        if let Some(pre) = self.pre {
            put("pre", Value::String(pre));
        }
        put("tokens", Value::StringArray(self.tokens));
        put("token_type", Value::I32Array(self.kinds));
        put("merges", Value::StringArray(self.merges));
        for (key, id) in [("bos", self.bos), ("eos", self.eos), ("eot", self.eot)] {
            if let Some(id) = id {
                put(&format!("{key}_token_id"), Value::U32(id));
            }
        }
        if let Some(add) = self.add_bos {
            put("add_bos_token", Value::Bool(add));
        }
        if let Some(template) = self.chat_template {
            metadata.push(("tokenizer.chat_template".to_owned(), Value::String(template)));
        }
        metadata
    }
}

/// The 256 characters that stand for bytes in byte-level BPE: printable Latin-1 stands for itself,
/// the other bytes for U+0100 and up; printable ones come first.
fn byte_texts() -> Vec<char> {
    let printable = |b: &u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let shown = (0..256).filter(printable);
    let hidden = (0..256_u32).filter(|b| !printable(b)).count() as u32;
    shown.chain(0x100..0x100 + hidden).filter_map(char::from_u32).collect()
}

/// Letter groups in the order of their length, without and with a leading space, as the two parts
/// that merge into each.
fn word_pieces() -> impl Iterator<Item = (String, char)> {
    (1..=4_usize).flat_map(|len| {
        [false, true].into_iter().flat_map(move |spaced| {
            // A single letter without a space is a byte token already.
            let count = if len == 1 && !spaced { 0 } else { 26_usize.pow(len as u32) };
            (0..count).map(move |n| {
                let letter = |place: usize| char::from(b'a' + (n / 26_usize.pow((len - 1 - place) as u32) % 26) as u8);
                let stem = spaced.then_some(SPACE).into_iter().chain((0..len - 1).map(letter)).collect();
                (stem, letter(len - 1))
            })
        })
    })
}

/// Llama 3's special tokens in their order.
fn special_texts() -> impl Iterator<Item = String> {
    let mut reserved = 0;
    (0..FULL_SPECIALS).map(move |i| match i {
        0 => "<|begin_of_text|>".to_owned(),
        1 => "<|end_of_text|>".to_owned(),
        6 => "<|start_header_id|>".to_owned(),
        7 => "<|end_header_id|>".to_owned(),
        9 => "<|eot_id|>".to_owned(),
        _ => {
            let text = format!("<|reserved_special_token_{reserved}|>");
            reserved += 1;
            text
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn llama_3_ids() {
        let vocabulary = Vocabulary::synthetic(128_256).unwrap();
        assert_eq!(vocabulary.tokens.len(), 128_256);
        assert_eq!(vocabulary.tokens[128_000], "<|begin_of_text|>");
        assert_eq!(vocabulary.tokens[128_009], "<|eot_id|>");
        assert_eq!(vocabulary.tokens[128_002], "<|reserved_special_token_0|>");
        assert_eq!(vocabulary.tokens[128_255], "<|reserved_special_token_250|>");
        assert_eq!((vocabulary.bos, vocabulary.eos, vocabulary.eot), (Some(128_000), Some(128_001), Some(128_009)));
        assert_eq!(vocabulary.kinds[127_999], 1);
        assert_eq!(vocabulary.kinds[128_000], 3);
    }

    #[test]
    fn bytes_as_gpt_2_shows_them() {
        let bytes = byte_texts();
        assert_eq!(bytes.len(), 256);
        assert_eq!(bytes[0], '!');
        assert_eq!(bytes[93], '~');
        assert_eq!(bytes[94], '\u{a1}');
        // Byte 0 is the first hidden one; 0x0a the eleventh, 0x20 the thirty-third.
        assert_eq!(bytes[188], '\u{100}');
        assert!(bytes.contains(&'\u{10a}') && bytes.contains(&SPACE));
    }

    #[test]
    fn texts_are_unique_and_every_merge_has_its_parts() {
        for size in [272, 273, 2048, 32_002, 128_256] {
            let vocabulary = Vocabulary::synthetic(size).unwrap();
            assert_eq!(vocabulary.tokens.len(), size);
            assert_eq!(vocabulary.kinds.len(), size);
            let mut known: HashSet<&str> = vocabulary.tokens[..256].iter().map(String::as_str).collect();
            assert_eq!(known.len(), 256);
            for (merge, token) in vocabulary.merges.iter().zip(&vocabulary.tokens[256..]) {
                let (left, right) = merge.split_once(' ').unwrap();
                assert!(known.contains(left) && known.contains(right), "{merge}");
                assert_eq!(&format!("{left}{right}"), token);
                assert!(known.insert(token), "{token} twice");
            }
            for token in &vocabulary.tokens[256 + vocabulary.merges.len()..] {
                assert!(known.insert(token), "{token} twice");
            }
        }
        assert!(Vocabulary::synthetic(271).is_none());
        assert!(Vocabulary::synthetic(500_001).is_none());
    }
}
