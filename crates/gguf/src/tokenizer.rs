//! The tokenizer's keys, as `llm_load_vocab` in `llama.cpp` reads them.
//!
//! The engine takes pointers to these arrays without asking for their type or length, asserts on
//! duplicate tokens and empty merges, and throws on unknown names.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::error::shown;
use super::sha256::frame;
use super::value::{Array, Strings, Value};
use super::{Gguf, GgufError, GgufWarning, Sha256Hash};
use sha2::{Digest, Sha256};

const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const TEMPLATE: &str = "tokenizer.chat_template";

/// `LLAMA_TOKEN_TYPE_…` in `llama.h`.
const TYPE_NORMAL: i32 = 1;
const TYPE_BYTE: i32 = 6;

/// Kind of tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TokenizerModel {
    /// `gpt2`: byte-level BPE with merges.
    Bpe,
    /// `llama`: SentencePiece with scores.
    Spm,
}

impl TokenizerModel {
    /// `tokenizer.ggml.model`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bpe => "gpt2",
            Self::Spm => "llama",
        }
    }
}

/// Pre-tokenizer names of the engine.
const PRE_TOKENIZERS: [&str; 37] = [
    "default",
    "llama3",
    "llama-v3",
    "llama-bpe",
    "deepseek-llm",
    "deepseek-coder",
    "falcon",
    "falcon3",
    "falcon_e",
    "mpt",
    "starcoder",
    "gpt-2",
    "phi-2",
    "jina-es",
    "jina-de",
    "jina-v1-en",
    "jina-v2-es",
    "jina-v2-de",
    "jina-v2-code",
    "refact",
    "command-r",
    "qwen2",
    "stablelm2",
    "olmo",
    "dbrx",
    "smaug-bpe",
    "poro-chat",
    "chatglm-bpe",
    "viking",
    "jais",
    "tekken",
    "smollm",
    "codeshell",
    "bloom",
    "gpt3-finnish",
    "exaone",
    "chameleon",
];

/// Special tokens as the engine uses them: the file's where they are in range, else its defaults.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the documentation")]
pub struct SpecialTokens {
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    /// End of a turn, where the file names it; the engine also finds it by its text.
    pub eot: Option<u32>,
    /// End of a message, where the file names it.
    pub eom: Option<u32>,
    pub unknown: Option<u32>,
    pub padding: Option<u32>,
}

/// The tokenizer of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenizerInfo {
    /// Kind.
    pub model: TokenizerModel,
    /// `tokenizer.ggml.pre`; for BPE, absent means the engine's default rule.
    pub pre: Option<String>,
    /// Tokens.
    pub n_tokens: u32,
    /// Merges; 0 for SentencePiece.
    pub n_merges: u32,
    /// Whether tokens have scores.
    pub has_scores: bool,
    /// Whether tokens have types.
    pub has_token_types: bool,
    /// Special tokens.
    pub special: SpecialTokens,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`.
    pub add_eos: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
}

pub(super) struct Checked {
    pub(super) info: TokenizerInfo,
    pub(super) warnings: Vec<GgufWarning>,
}

pub(super) fn check(gguf: &Gguf) -> Result<Checked, GgufError> {
    let mut warnings = Vec::new();
    let model = model(gguf)?;
    let pre = pre_tokenizer(gguf, model, &mut warnings)?;
    let tokens = gguf.strings(TOKENS)?.ok_or_else(|| GgufError::MissingKey { key: TOKENS.into() })?;
    let n_tokens = u32::try_from(tokens.len()).ok().filter(|n| (1..=i32::MAX as u32).contains(n)).ok_or_else(|| {
        GgufError::key_value(TOKENS, format!("an array of {}", tokens.len()), "at least one token is needed")
    })?;
    let types = token_types(gguf, n_tokens)?;
    let has_scores = scores(gguf, n_tokens)?;
    texts(tokens, types, model, &mut warnings)?;
    bytes_covered(tokens, model, &mut warnings);
    if model == TokenizerModel::Spm && !has_scores {
        warnings.push(GgufWarning::ScoresMissing);
    }
    let n_merges = match model {
        TokenizerModel::Bpe => merges(gguf)?,
        TokenizerModel::Spm => 0,
    };
    named_tokens(gguf, tokens, pre)?;
    let special = special(gguf, model, pre, n_tokens, &mut warnings)?;
    for key in ["tokenizer.ggml.add_space_prefix", "tokenizer.ggml.remove_extra_whitespaces"] {
        gguf.bool(key)?;
    }
    let chat_template = gguf.string(TEMPLATE)?.map(str::to_owned);
    if chat_template.is_none() {
        warnings.push(GgufWarning::ChatTemplateMissing);
    }
    let info = TokenizerInfo {
        model,
        pre: pre.map(str::to_owned),
        n_tokens,
        n_merges,
        has_scores,
        has_token_types: types.is_some(),
        special,
        add_bos: gguf.bool("tokenizer.ggml.add_bos_token")?,
        add_eos: gguf.bool("tokenizer.ggml.add_eos_token")?,
        chat_template,
    };
    Ok(Checked { info, warnings })
}

fn model(gguf: &Gguf) -> Result<TokenizerModel, GgufError> {
    let key = "tokenizer.ggml.model";
    let name = gguf.string(key)?.ok_or_else(|| GgufError::MissingKey { key: key.into() })?;
    let reason = match name {
        "gpt2" => return Ok(TokenizerModel::Bpe),
        "llama" => return Ok(TokenizerModel::Spm),
        "bert" | "t5" | "rwkv" => "the engine has it, but no model family that is served here uses it",
        "no_vocab" => "without a vocabulary the engine ends the process when text is tokenized",
        _ => "the engine does not know it",
    };
    Err(GgufError::TokenizerModel { name: shown(name.as_bytes()), reason })
}

fn pre_tokenizer<'g>(
    gguf: &'g Gguf,
    model: TokenizerModel,
    warnings: &mut Vec<GgufWarning>,
) -> Result<Option<&'g str>, GgufError> {
    let pre = gguf.string("tokenizer.ggml.pre")?.filter(|name| !name.is_empty());
    if model == TokenizerModel::Bpe {
        match pre {
            None => warnings.push(GgufWarning::PreTokenizerMissing),
            Some(name) if !PRE_TOKENIZERS.contains(&name) => {
                return Err(GgufError::PreTokenizer { name: shown(name.as_bytes()) });
            }
            Some(_) => {}
        }
    }
    Ok(pre)
}

fn array_length(key: &'static str, found: usize, n_tokens: u32) -> Result<(), GgufError> {
    if found == n_tokens as usize {
        return Ok(());
    }
    Err(GgufError::ArrayLength { key, found: found as u64, expected: u64::from(n_tokens) })
}

/// Token types, whichever of the two 32-bit types a converter wrote.
#[derive(Clone, Copy)]
enum Types<'g> {
    Signed(&'g [i32]),
    Unsigned(&'g [u32]),
}

impl Types<'_> {
    fn get(self, index: usize) -> i32 {
        match self {
            Self::Signed(types) => types[index],
            Self::Unsigned(types) => types[index] as i32,
        }
    }
}

fn token_types(gguf: &Gguf, n_tokens: u32) -> Result<Option<Types<'_>>, GgufError> {
    let types = match gguf.get(TOKEN_TYPE) {
        None => return Ok(None),
        Some(Value::Array(Array::I32(types))) => Types::Signed(types),
        Some(Value::Array(Array::U32(types))) => Types::Unsigned(types),
        Some(other) => return Err(GgufError::key_type(TOKEN_TYPE, other, "array of i32")),
    };
    let len = match types {
        Types::Signed(types) => types.len(),
        Types::Unsigned(types) => types.len(),
    };
    array_length(TOKEN_TYPE, len, n_tokens)?;
    Ok(Some(types))
}

fn scores(gguf: &Gguf, n_tokens: u32) -> Result<bool, GgufError> {
    match gguf.get(SCORES) {
        None => Ok(false),
        Some(Value::Array(Array::F32(scores))) => {
            array_length(SCORES, scores.len(), n_tokens)?;
            match scores.iter().position(|score| score.is_nan()) {
                None => Ok(true),
                Some(index) => Err(GgufError::key_value(
                    SCORES,
                    format!("NaN at element {index}"),
                    "a number is needed: the engine sorts by scores",
                )),
            }
        }
        Some(other) => Err(GgufError::key_type(SCORES, other, "array of f32")),
    }
}

/// What the engine makes of a stored text: it ends at a NUL.
fn engine_text(stored: &[u8]) -> &[u8] {
    stored.iter().position(|&byte| byte == 0).map_or(stored, |end| &stored[..end])
}

/// Texts are unique and can be turned into output.
fn texts(
    tokens: &Strings,
    types: Option<Types<'_>>,
    model: TokenizerModel,
    warnings: &mut Vec<GgufWarning>,
) -> Result<(), GgufError> {
    let mut with_nul = Tally::default();
    let mut empty = Tally::default();
    let mut bpe_bytes = Tally::default();
    let mut ids: HashMap<Cow<'_, [u8]>, u32> = HashMap::with_capacity(tokens.len());
    for (id, stored) in (0u32..).zip(tokens.iter()) {
        let text = engine_text(stored);
        if text.len() != stored.len() {
            with_nul.add(id);
        }
        let text = if text.is_empty() {
            empty.add(id);
            Cow::Owned(format!("[EMPTY_{id}]").into_bytes())
        } else {
            Cow::Borrowed(text)
        };
        let problem = match (model, types.map_or(TYPE_NORMAL, |t| t.get(id as usize))) {
            (TokenizerModel::Bpe, TYPE_NORMAL) if std::str::from_utf8(&text).is_err() => {
                Some("not UTF-8, which byte-level BPE needs")
            }
            (TokenizerModel::Bpe, TYPE_BYTE) => {
                bpe_bytes.add(id);
                None
            }
            (TokenizerModel::Spm, TYPE_BYTE) if byte_of(&text).is_none() => {
                Some("of the type byte, but not written as <0x00> to <0xFF>")
            }
            _ => None,
        };
        if let Some(problem) = problem {
            return Err(GgufError::Token { id, text: shown(stored), problem });
        }
        match ids.entry(text) {
            Entry::Vacant(entry) => {
                entry.insert(id);
            }
            Entry::Occupied(entry) => {
                return Err(GgufError::DuplicateToken { text: shown(entry.key()), first: *entry.get(), second: id });
            }
        }
    }
    if let Some((count, first)) = with_nul.0 {
        warnings.push(GgufWarning::TokenWithNul { count, first });
    }
    if let Some((count, first)) = empty.0 {
        warnings.push(GgufWarning::EmptyToken { count, first });
    }
    if let Some((count, first)) = bpe_bytes.0 {
        warnings.push(GgufWarning::ByteTokenInBpe { count, first });
    }
    Ok(())
}

/// How many, and which was the first.
#[derive(Default)]
struct Tally(Option<(u32, u32)>);

impl Tally {
    fn add(&mut self, id: u32) {
        match &mut self.0 {
            None => self.0 = Some((1, id)),
            Some((count, _)) => *count += 1,
        }
    }
}

/// The byte of a SentencePiece byte token such as `<0x0A>`.
fn byte_of(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    if digits.len() != 2 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// The character that stands for a byte in byte-level BPE (GPT-2's table): printable Latin-1
/// stands for itself, the other 68 bytes follow from U+0100 in order.
pub(super) fn bpe_char_of(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(0x100 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Every byte can be tokenized: BPE drops text it has no token for, SentencePiece throws.
fn bytes_covered(tokens: &Strings, model: TokenizerModel, warnings: &mut Vec<GgufWarning>) {
    let mut have = [false; 256];
    match model {
        TokenizerModel::Bpe => {
            let table: HashMap<char, u8> = (0..=255).map(|b| (bpe_char_of(b), b)).collect();
            for text in tokens.iter().filter(|text| text.len() <= 2) {
                let mut chars = std::str::from_utf8(text).unwrap_or_default().chars();
                if let (Some(c), None) = (chars.next(), chars.next())
                    && let Some(&byte) = table.get(&c)
                {
                    have[byte as usize] = true;
                }
            }
        }
        TokenizerModel::Spm => {
            for text in tokens.iter().filter(|text| matches!(text.len(), 1 | 6)) {
                match text {
                    [byte] => have[*byte as usize] = true,
                    text => {
                        if let Some(byte) = byte_of(text) {
                            have[byte as usize] = true;
                        }
                    }
                }
            }
        }
    }
    let missing = have.iter().filter(|&&have| !have).count();
    if let Some(first) = have.iter().position(|&have| !have) {
        warnings.push(GgufWarning::BytesNotCovered { count: missing as u32, first: first as u8 });
    }
}

fn merges(gguf: &Gguf) -> Result<u32, GgufError> {
    let merges = gguf.strings(MERGES)?.ok_or_else(|| GgufError::MissingKey { key: MERGES.into() })?;
    for (index, stored) in merges.iter().enumerate() {
        let text = engine_text(stored);
        let problem = if text.is_empty() {
            "is empty"
        } else if std::str::from_utf8(text).is_err() {
            "is not UTF-8"
        } else if !text[1..].contains(&b' ') {
            // The first character may itself be a space.
            "has no space between its two parts"
        } else {
            continue;
        };
        return Err(GgufError::Merge { index: index as u64, text: shown(stored), problem });
    }
    Ok(merges.len() as u32)
}

/// Tokens that the engine looks up by text for some models, and throws when they are absent.
fn named_tokens(gguf: &Gguf, tokens: &Strings, pre: Option<&str>) -> Result<(), GgufError> {
    let name = match gguf.get("general.name") {
        Some(Value::String(bytes)) => bytes.to_ascii_lowercase(),
        _ => Vec::new(),
    };
    let contains = |needle: &[u8]| name.windows(needle.len()).any(|window| window == needle);
    let needed: &[&'static str] =
        if pre.is_some_and(|pre| ["jina-v2-de", "jina-v2-es", "jina-v2-code"].iter().any(|name| pre.contains(name))) {
            &["<mask>"]
        } else if contains(b"phi-3") || contains(b"phi3") {
            &["</s>", "<unk>", "<s>", "<|endoftext|>"]
        } else {
            return Ok(());
        };
    for &text in needed {
        if !tokens.iter().any(|token| token == text.as_bytes()) {
            return Err(GgufError::MissingToken { text });
        }
    }
    Ok(())
}

fn special(
    gguf: &Gguf,
    model: TokenizerModel,
    pre: Option<&str>,
    n_tokens: u32,
    warnings: &mut Vec<GgufWarning>,
) -> Result<SpecialTokens, GgufError> {
    let (bos, eos, unknown) = match (model, pre) {
        (TokenizerModel::Spm, _) => (Some(1), Some(2), Some(0)),
        (TokenizerModel::Bpe, Some("chatglm-bpe")) => (None, Some(11), None),
        (TokenizerModel::Bpe, _) => (Some(11), Some(11), None),
    };
    // The engine reads all of these as u32 and throws on another type. Out-of-range ids it
    // ignores: for the two that steer generation that is refused, for the rest it is said.
    let mut read = |key: &'static str, default: Option<u32>, steers: bool| {
        let id = match gguf.u32(key)? {
            Some(id) if id < n_tokens => return Ok(Some(id)),
            Some(id) if steers => {
                return Err(GgufError::SpecialToken { key, id, n_vocab: n_tokens, note: "" });
            }
            Some(id) => {
                warnings.push(GgufWarning::SpecialTokenIgnored { key, id });
                default
            }
            None => default,
        };
        match id {
            // The engine indexes its table with the default, unchecked.
            Some(id) if id >= n_tokens => Err(GgufError::SpecialToken {
                key,
                id,
                n_vocab: n_tokens,
                note: " (the id is the engine's default, as the key is missing)",
            }),
            Some(id) => {
                if steers {
                    warnings.push(GgufWarning::SpecialTokenDefault { key, id });
                }
                Ok(Some(id))
            }
            None => Ok(None),
        }
    };
    let special = SpecialTokens {
        bos: read("tokenizer.ggml.bos_token_id", bos, true)?,
        eos: read("tokenizer.ggml.eos_token_id", eos, true)?,
        eot: read("tokenizer.ggml.eot_token_id", None, false)?,
        eom: read("tokenizer.ggml.eom_token_id", None, false)?,
        unknown: read("tokenizer.ggml.unknown_token_id", unknown, false)?,
        padding: read("tokenizer.ggml.padding_token_id", None, false)?,
    };
    for key in [
        "tokenizer.ggml.seperator_token_id",
        "tokenizer.ggml.cls_token_id",
        "tokenizer.ggml.mask_token_id",
        "tokenizer.ggml.fim_pre_token_id",
        "tokenizer.ggml.fim_suf_token_id",
        "tokenizer.ggml.fim_mid_token_id",
        "tokenizer.ggml.fim_pad_token_id",
        "tokenizer.ggml.fim_rep_token_id",
        "tokenizer.ggml.fim_sep_token_id",
        "tokenizer.ggml.prefix_token_id",
        "tokenizer.ggml.suffix_token_id",
        "tokenizer.ggml.middle_token_id",
    ] {
        read(key, None, false)?;
    }
    Ok(special)
}

/// Hash of everything that turns text into token ids.
pub(super) fn hash(gguf: &Gguf) -> Sha256Hash {
    let mut hasher = Sha256::new();
    hasher.update(b"bitnet-harness.tokenizer/1\n");
    let text = |key: &str| match gguf.get(key) {
        Some(Value::String(bytes)) => bytes,
        _ => &[][..],
    };
    frame(&mut hasher, text("tokenizer.ggml.model"));
    frame(&mut hasher, text("tokenizer.ggml.pre"));
    let count = |hasher: &mut Sha256, n: usize| hasher.update((n as u64).to_le_bytes());
    let strings = |hasher: &mut Sha256, key: &str| {
        let strings = gguf.get(key).and_then(Value::as_strings);
        count(hasher, strings.map_or(0, |s| s.len()));
        for string in strings.into_iter().flat_map(|s| s.iter()) {
            frame(hasher, string);
        }
    };
    strings(&mut hasher, "tokenizer.ggml.tokens");
    let array = |key: &str| gguf.get(key).and_then(Value::as_array);
    match array("tokenizer.ggml.token_type") {
        Some(Array::I32(types)) => {
            count(&mut hasher, types.len());
            for ty in types {
                hasher.update(ty.to_le_bytes());
            }
        }
        Some(Array::U32(types)) => {
            count(&mut hasher, types.len());
            for ty in types {
                hasher.update(ty.to_le_bytes());
            }
        }
        _ => count(&mut hasher, 0),
    }
    match array("tokenizer.ggml.scores") {
        Some(Array::F32(scores)) => {
            count(&mut hasher, scores.len());
            for score in scores {
                hasher.update(score.to_le_bytes());
            }
        }
        _ => count(&mut hasher, 0),
    }
    strings(&mut hasher, "tokenizer.ggml.merges");
    let mut scalars: Vec<String> = gguf
        .entries()
        .filter(|(key, _)| key.starts_with("tokenizer.ggml."))
        .filter_map(|(key, value)| match value {
            Value::U32(number) => Some(format!("{key}={number}\n")),
            Value::Bool(flag) => Some(format!("{key}={flag}\n")),
            _ => None,
        })
        .collect();
    scalars.sort();
    frame(&mut hasher, scalars.concat().as_bytes());
    Sha256Hash::from(hasher)
}
