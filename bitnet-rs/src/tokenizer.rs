//! Text to tokens and back.

use bitnet_sys as sys;

use crate::ids::TokenId;
use crate::model::Model;
use crate::{Error, status, threads};

/// Longest text accepted by one call, in bytes. The engine counts in `i32` and needs several times the
/// text's size in memory while it splits.
pub const MAX_TEXT: usize = 64 << 20;

/// Stack for the engine's splitting of text. Some of its pre-tokenizers use `std::regex`, which recurses
/// once per character of a match.
const TOKENIZE_STACK: usize = 64 << 20;

/// What to do with the markers of the vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// The text is content: `<|eot_id|>` in it is plain characters, and nothing is added.
    Content,
    /// As `Content`, with the vocabulary's `bos` put first where the model asks for it. An `eos` that the file asks for
    /// behind a text (`add_eos_token`) is not: it would end every prompt before its answer.
    ContentWithBos,
    /// The text is markup that we wrote ourselves (a rendered chat template): markers become their tokens.
    Markup,
    /// As `Markup`, with `bos` as in `ContentWithBos`.
    MarkupWithBos,
}

impl Model {
    /// Splits `text` into tokens (`llama_tokenize`). Interior NUL bytes are ordinary characters.
    ///
    /// # Errors
    /// [`Error::TextTooLong`] beyond [`MAX_TEXT`] bytes; [`Error::HostShortage`] where there is no room for the stack that
    /// a text of more than 4,096 bytes needs.
    pub fn tokenize(&self, text: &str, special: Special) -> Result<Vec<TokenId>, Error> {
        if text.len() > MAX_TEXT {
            return Err(Error::TextTooLong { len: text.len(), max: MAX_TEXT });
        }
        let len = i32::try_from(text.len()).map_err(|_| Error::TextTooLong { len: text.len(), max: MAX_TEXT })?;
        let add = matches!(special, Special::ContentWithBos | Special::MarkupWithBos);
        let parse = matches!(special, Special::Markup | Special::MarkupWithBos);
        // A token covers at least one byte, but a few short ones are added: the second call is rare.
        let mut ids = vec![0i32; text.len() / 2 + 16];
        let stack = if text.len() > 4096 { TOKENIZE_STACK } else { 1 << 20 };
        loop {
            let cap = i32::try_from(ids.len()).unwrap_or(i32::MAX);
            let mut n = 0;
            threads::on_stack(stack, stack, "splitting a text into tokens", || {
                status::checked("llama_tokenize", |st| {
                    // SAFETY: text and ids are valid for the lengths given; the model is alive.
                    unsafe {
                        sys::bn_tokenize(
                            self.as_ptr(),
                            text.as_ptr().cast(),
                            len,
                            ids.as_mut_ptr(),
                            cap,
                            add,
                            parse,
                            &raw mut n,
                            st,
                        );
                    }
                })
            })??;
            match usize::try_from(n) {
                Ok(n) => {
                    ids.truncate(n);
                    // What the engine appends on the file's word, see [`Special::ContentWithBos`].
                    if add && self.info().tokenizer().add_eos == Some(true) && n > 0 {
                        ids.pop();
                    }
                    return ids.into_iter().map(|id| self.token(id)).collect();
                }
                Err(_) => {
                    let needed = n.unsigned_abs() as usize;
                    if needed <= ids.len() {
                        let message = format!("asked for {needed} tokens and got room for {}", ids.len());
                        return Err(Error::Native { function: "llama_tokenize", message });
                    }
                    ids.resize(needed, 0);
                }
            }
        }
    }

    /// The bytes of one token (`llama_token_to_piece`), which may be part of a character. Control tokens
    /// give nothing unless `special`.
    ///
    /// # Errors
    /// [`Error::TokenOutOfRange`] for a token of another model.
    pub fn token_bytes(&self, token: TokenId, special: bool) -> Result<Vec<u8>, Error> {
        self.token(token.get())?;
        let mut buffer = vec![0u8; 32];
        loop {
            let cap = i32::try_from(buffer.len()).unwrap_or(i32::MAX);
            let mut n = 0;
            status::checked("llama_token_to_piece", |st| {
                // SAFETY: the buffer is valid for `cap` bytes, the id was just checked.
                unsafe {
                    let out = buffer.as_mut_ptr().cast();
                    sys::bn_token_to_piece(self.as_ptr(), token.get(), out, cap, special, &raw mut n, st);
                }
            })?;
            match usize::try_from(n) {
                Ok(n) => {
                    buffer.truncate(n);
                    return Ok(buffer);
                }
                Err(_) if n.unsigned_abs() as usize > buffer.len() => buffer.resize(n.unsigned_abs() as usize, 0),
                Err(_) => {
                    return Err(Error::Native { function: "llama_token_to_piece", message: format!("returned {n}") });
                }
            }
        }
    }

    /// The bytes of several tokens.
    ///
    /// # Errors
    /// As [`Model::token_bytes`].
    pub fn detokenize(&self, tokens: &[TokenId], special: bool) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        for &token in tokens {
            bytes.extend(self.token_bytes(token, special)?);
        }
        Ok(bytes)
    }
}

/// Turns a stream of token bytes into text: holds back an unfinished character, replaces what can never
/// become one by U+FFFD.
///
/// ```
/// let mut text = bitnet_rs::TextStream::new();
/// assert_eq!(text.push(&[0xe7, 0x81]), "");      // two bytes of 灯
/// assert_eq!(text.push(&[0xaf, b'!']), "灯!");
/// assert_eq!(text.push(&[0xff]), "\u{fffd}");
/// assert_eq!(text.finish(), "");
/// ```
#[derive(Clone, Debug, Default)]
pub struct TextStream {
    pending: Vec<u8>,
}

impl TextStream {
    /// An empty stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes; returns the text that they complete.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        loop {
            match std::str::from_utf8(&self.pending) {
                Ok(valid) => {
                    text.push_str(valid);
                    self.pending.clear();
                    return text;
                }
                Err(e) => {
                    let (valid, rest) = self.pending.split_at(e.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(bad) = e.error_len() else {
                        self.pending = rest.to_vec();
                        return text;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    self.pending = rest[bad..].to_vec();
                }
            }
        }
    }

    /// What is left at the end: nothing, or one U+FFFD for an unfinished character.
    pub fn finish(&mut self) -> &'static str {
        if std::mem::take(&mut self.pending).is_empty() { "" } else { "\u{fffd}" }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::TextStream;

    proptest! {
        #[test]
        fn any_split_of_valid_text_gives_the_text(text in "\\PC{0,40}", cut in 1usize..5) {
            let mut stream = TextStream::new();
            let mut out = String::new();
            for chunk in text.as_bytes().chunks(cut) {
                out.push_str(&stream.push(chunk));
            }
            out.push_str(stream.finish());
            prop_assert_eq!(out, text);
        }

        #[test]
        fn any_bytes_equal_the_lossy_conversion(bytes in proptest::collection::vec(any::<u8>(), 0..40), cut in 1usize..5) {
            let mut stream = TextStream::new();
            let mut out = String::new();
            for chunk in bytes.chunks(cut) {
                out.push_str(&stream.push(chunk));
            }
            out.push_str(stream.finish());
            prop_assert_eq!(out, String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}
