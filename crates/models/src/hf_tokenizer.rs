//! A HuggingFace `tokenizer.json` as the vocabulary of a GGUF file.
//!
//! Only byte-level BPE can be carried over, and only with a pre-tokenizer that the engine knows by name: text
//! that is cut elsewhere gives other ids, silently. What the engine would not do (a normalizer, a prefix space,
//! a byte fallback) is refused by field.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value as Json;
use serde_json::value::RawValue;

use synth::vocabulary::{CONTROL, NORMAL, UNUSED, USER_DEFINED, Vocabulary};

/// Most tokens, merges and added tokens, and the bound of the ids; four times a large vocabulary.
pub const MAX_TOKENS: u32 = 1_000_000;

/// Largest `tokenizer.json` that is read, bytes; twice the largest in use.
pub const MAX_BYTES: u64 = 64 << 20;

/// Longest description of a normalizer, pre-tokenizer or post-processor, bytes. As a tree of values it takes forty
/// times as much.
const MAX_STEP_BYTES: usize = 1 << 20;

/// Why a tokenizer cannot be carried over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HfTokenizerError {
    /// The file is no tokenizer description.
    #[error("{file}: {source}")]
    Json {
        /// Which file.
        file: &'static str,
        /// Where it stops being readable.
        source: serde_json::Error,
    },
    /// A field asks for something that the engine does not do.
    #[error("tokenizer.json: {field} is {value}: {need}")]
    Field {
        /// Path of the field.
        field: &'static str,
        /// Its value, shortened.
        value: String,
        /// What would work.
        need: String,
    },
    /// No name of the engine stands for this pre-tokenizer.
    #[error(
        "tokenizer.json: the engine knows no pre-tokenizer like {found}; if you know which of its names cuts text the same way, state it with --pre"
    )]
    PreTokenizer {
        /// What was found, shortened.
        found: String,
    },
    /// Two tokens share an id.
    #[error("tokenizer.json: token id {id} belongs to '{first}' and to '{second}'")]
    SharedId {
        /// The id.
        id: u32,
        /// One of the two.
        first: String,
        /// The other.
        second: String,
    },
    /// A text has two ids: which of them it gets would depend on the reader.
    #[error("tokenizer.json: token '{token}' has the ids {first} and {second}")]
    SharedText {
        /// The text.
        token: String,
        /// One of the two.
        first: u32,
        /// The other.
        second: u32,
    },
    /// An id is beyond what the model has logits for.
    #[error("tokenizer.json: token '{token}' has the id {id}; the model has {limit} tokens (ids from 0)")]
    IdTooLarge {
        /// Text.
        token: String,
        /// Id.
        id: u32,
        /// Tokens of the model.
        limit: u32,
    },
    /// A merge that GGUF cannot express, or whose result is no token.
    #[error("tokenizer.json: model.merges[{index}] ('{left}', '{right}') {problem}")]
    Merge {
        /// Index.
        index: usize,
        /// Left part.
        left: String,
        /// Right part.
        right: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A special token that is named but not in the vocabulary.
    #[error("{field} names '{token}', which is no token of tokenizer.json")]
    UnknownSpecial {
        /// Where it is named.
        field: &'static str,
        /// The text or id.
        token: String,
    },
}

/// `(?i:…)` and the rest of Llama 3's rule, which the engine calls `llama-bpe`.
const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same with single digits: the engine's `qwen2`.
const QWEN_2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A field that is not in this list is refused by name: nothing says that it changes no id.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default, rename = "version")]
    _version: IgnoredAny,
    #[serde(default)]
    truncation: Option<Box<RawValue>>,
    #[serde(default)]
    padding: Option<Box<RawValue>>,
    // Turns ids into text; ids are what is carried over.
    #[serde(default, rename = "decoder")]
    _decoder: IgnoredAny,
    #[serde(default)]
    added_tokens: Bounded<AddedToken>,
    // Kept as text until their length is known: what a tree of values takes is no matter of the file's size.
    #[serde(default)]
    normalizer: Option<Box<RawValue>>,
    #[serde(default)]
    pre_tokenizer: Option<Box<RawValue>>,
    #[serde(default)]
    post_processor: Option<Box<RawValue>>,
    model: Model,
}

/// At most [`MAX_TOKENS`] elements, counted while they are read.
struct Bounded<T>(Vec<T>);

impl<T> Default for Bounded<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Bounded<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for V<T> {
            type Value = Bounded<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MAX_TOKENS} elements")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Bounded<T>, A::Error> {
                let mut elements = Vec::new();
                while let Some(element) = list.next_element()? {
                    if elements.len() == MAX_TOKENS as usize {
                        return Err(de::Error::invalid_length(elements.len() + 1, &self));
                    }
                    elements.push(element);
                }
                Ok(Bounded(elements))
            }
        }
        d.deserialize_seq(V(PhantomData))
    }
}

/// Texts and their ids, at most [`MAX_TOKENS`]; a text that stands twice is refused.
struct Vocab(HashMap<String, u32>);

impl<'de> Deserialize<'de> for Vocab {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Vocab;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an object of at most {MAX_TOKENS} token ids by their texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocab, A::Error> {
                let mut vocab = HashMap::new();
                while let Some(text) = map.next_key::<String>()? {
                    if vocab.len() == MAX_TOKENS as usize {
                        return Err(de::Error::invalid_length(vocab.len() + 1, &self));
                    }
                    match vocab.entry(text) {
                        Entry::Vacant(place) => drop(place.insert(map.next_value()?)),
                        Entry::Occupied(place) => {
                            let text = shown(place.key());
                            return Err(de::Error::custom(format_args!("model.vocab has the token '{text}' twice")));
                        }
                    }
                }
                Ok(Vocab(vocab))
            }
        }
        d.deserialize_map(V)
    }
}

/// A part of the file as a tree of values.
fn step(field: &'static str, text: Option<&RawValue>) -> Result<Option<Json>, HfTokenizerError> {
    let Some(text) = text.map(RawValue::get) else { return Ok(None) };
    if text.len() > MAX_STEP_BYTES {
        return Err(HfTokenizerError::Field {
            field,
            value: format!("{} bytes long", text.len()),
            need: format!("at most {MAX_STEP_BYTES} bytes are read"),
        });
    }
    let value = serde_json::from_str(text);
    value.map(Some).map_err(|source| HfTokenizerError::Json { file: "tokenizer.json", source })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AddedToken {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    single_word: bool,
    // Whether it is looked for behind the normalizer, of which only NFC is let through, with a warning of its own.
    #[serde(default, rename = "normalized")]
    _normalized: IgnoredAny,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    #[serde(default)]
    dropout: Option<f64>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    vocab: Vocab,
    #[serde(default)]
    merges: Bounded<Merge>,
}

/// Written as one text with a space by older versions of the library, as a pair by newer ones.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Text(String),
    Pair(String, String),
}

/// What stands beside `tokenizer.json`.
#[derive(Debug, Default, Clone)]
pub struct Neighbours {
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<Json>,
    /// `config.json`.
    pub config: Option<Json>,
    /// `generation_config.json`.
    pub generation_config: Option<Json>,
    /// `chat_template.jinja`.
    pub chat_template: Option<String>,
}

/// What was read and what to say about it.
#[derive(Debug, Clone)]
pub struct HfTokenizer {
    /// The vocabulary, with `pre` set.
    pub vocabulary: Vocabulary,
    /// What differs between the two tokenizers although it could be carried over.
    pub warnings: Vec<String>,
}

/// Reads a `tokenizer.json`.
///
/// `n_vocab` is the number of tokens that the model has logits for: missing ids are filled with unused tokens,
/// larger ones refused. Without it the largest id decides. `pre` overrides the recognised pre-tokenizer.
///
/// # Errors
/// A [`HfTokenizerError`] that names the field.
pub fn read(
    json: &[u8],
    beside: &Neighbours,
    n_vocab: Option<u32>,
    pre: Option<&str>,
) -> Result<HfTokenizer, HfTokenizerError> {
    let file: File =
        serde_json::from_slice(json).map_err(|source| HfTokenizerError::Json { file: "tokenizer.json", source })?;
    let mut warnings = Vec::new();
    check_model(&file.model)?;
    if let Some(normalizer) = &step("normalizer", file.normalizer.as_deref())? {
        normalizer_check(normalizer, &mut warnings)?;
    }
    let recognised = pre_tokenizer(step("pre_tokenizer", file.pre_tokenizer.as_deref())?.as_ref());
    let processor = step("post_processor", file.post_processor.as_deref())?;
    for (field, value) in [("truncation", &file.truncation), ("padding", &file.padding)] {
        if value.as_ref().is_some_and(|v| v.get() != "null") {
            warnings.push(format!("{field}: it is not carried over: the engine neither cuts nor fills token ids"));
        }
    }
    added_flags(&file.added_tokens.0, &mut warnings);
    let pre = match (pre, recognised) {
        (Some(stated), found) => {
            if found.as_ref().ok() != Some(&stated) {
                warnings.push(format!(
                    "pre-tokenizer '{stated}' was stated; nothing here proves that it cuts text as tokenizer.json does"
                ));
            }
            stated.to_owned()
        }
        (None, Ok(name)) => name.to_owned(),
        (None, Err(error)) => return Err(error),
    };
    // The engine looks whole words up before merging for this name only.
    if file.model.ignore_merges != (pre == "llama-bpe") {
        warnings.push(format!(
            "model.ignore_merges is {}, which the engine's '{pre}' does not follow: rare words may get other ids",
            file.model.ignore_merges
        ));
    }
    let (tokens, kinds) = tokens(&file, n_vocab)?;
    let merges = merges(&file.model)?;
    let mut ids: HashMap<&str, u32> = HashMap::with_capacity(tokens.len());
    for (second, text) in (0u32..).zip(&tokens) {
        // An added token beside one of the vocabulary, or a filler's name that was taken.
        if let Some(first) = ids.insert(text, second) {
            return Err(HfTokenizerError::SharedText { token: shown(text), first, second });
        }
    }
    let special = special(&ids, &tokens, beside, &mut warnings)?;
    config_flags(beside)?;
    let first = first_added(processor.as_ref())?;
    let configured = beside.tokenizer_config.as_ref().and_then(|c| c.get("add_bos_token")).and_then(Json::as_bool);
    let add_bos = match (first, special.bos) {
        (Some(text), Some(bos)) if ids.get(text.as_str()) == Some(&bos) => Some(true),
        (Some(text), _) => {
            return Err(HfTokenizerError::Field {
                field: "post_processor",
                value: format!("a template that puts '{}' first", shown(&text)),
                need: "the engine can only put the bos token first; name it as bos_token in tokenizer_config.json"
                    .into(),
            });
        }
        // What the post-processor does not add is not added: the engine's default for llama-bpe would.
        (None, _) if configured == Some(true) && special.bos.is_some() => {
            warnings.push(
                "tokenizer_config.json: add_bos_token is true and the post-processor of tokenizer.json adds none: bos is put first"
                    .into(),
            );
            Some(true)
        }
        (None, _) => Some(false),
    };
    let chat_template = chat_template(beside);
    Ok(HfTokenizer {
        vocabulary: Vocabulary {
            tokens,
            kinds,
            merges,
            bos: special.bos,
            eos: special.eos,
            eot: special.eot,
            pre: Some(pre),
            add_bos,
            chat_template,
        },
        warnings,
    })
}

fn shown(text: &str) -> String {
    let mut out: String = text.chars().take(160).flat_map(char::escape_debug).collect();
    if text.chars().nth(160).is_some() {
        out.push('…');
    }
    out
}

fn check_model(model: &Model) -> Result<(), HfTokenizerError> {
    let refuse = |field, value: String, need: &str| Err(HfTokenizerError::Field { field, value, need: need.into() });
    // Old files leave the type out; merges tell BPE.
    match model.kind.as_deref() {
        Some("BPE") => {}
        None if !model.merges.0.is_empty() => {}
        other => {
            return refuse("model.type", format!("{other:?}"), "only byte-level BPE can be carried over");
        }
    }
    if model.byte_fallback {
        return refuse("model.byte_fallback", "true".into(), "that is SentencePiece's way; byte-level BPE is needed");
    }
    if model.dropout.is_some_and(|p| p != 0.0) {
        return refuse("model.dropout", format!("{:?}", model.dropout), "random merges cannot be reproduced");
    }
    for (field, value) in [
        ("model.continuing_subword_prefix", &model.continuing_subword_prefix),
        ("model.end_of_word_suffix", &model.end_of_word_suffix),
    ] {
        if let Some(text) = value.as_deref().filter(|text| !text.is_empty()) {
            return refuse(field, format!("'{}'", shown(text)), "the engine adds nothing to subwords");
        }
    }
    Ok(())
}

fn normalizer_check(normalizer: &Json, warnings: &mut Vec<String>) -> Result<(), HfTokenizerError> {
    match normalizer.get("type").and_then(Json::as_str) {
        Some("NFC") => {
            warnings.push("the normalizer NFC is not applied by the engine: text must come composed already".into());
            Ok(())
        }
        Some("Sequence") => match normalizer.get("normalizers").and_then(Json::as_array).map(Vec::as_slice) {
            Some([]) => Ok(()),
            Some([one]) if one.get("type").and_then(Json::as_str) != Some("Sequence") => {
                normalizer_check(one, warnings)
            }
            _ => Err(HfTokenizerError::Field {
                field: "normalizer",
                value: shown(&normalizer.to_string()),
                need: "the engine normalizes nothing for byte-level BPE".into(),
            }),
        },
        _ if normalizer.is_null() => Ok(()),
        _ => Err(HfTokenizerError::Field {
            field: "normalizer",
            value: shown(&normalizer.to_string()),
            need: "the engine normalizes nothing for byte-level BPE".into(),
        }),
    }
}

/// The engine's name for a pre-tokenizer.
fn pre_tokenizer(found: Option<&Json>) -> Result<&'static str, HfTokenizerError> {
    let found = found.unwrap_or(&Json::Null);
    let unknown = || HfTokenizerError::PreTokenizer { found: shown(&found.to_string()) };
    let steps: Vec<&Json> = match found.get("type").and_then(Json::as_str) {
        Some("Sequence") => found.get("pretokenizers").and_then(Json::as_array).ok_or_else(unknown)?.iter().collect(),
        Some(_) => vec![found],
        None => return Err(unknown()),
    };
    let mut spelled = Vec::new();
    for step in steps {
        let text = |key: &str| step.get(key).and_then(Json::as_str).unwrap_or_default();
        let flag = |key: &str| step.get(key).and_then(Json::as_bool);
        spelled.push(match text("type") {
            "Split" if text("behavior") == "Isolated" && flag("invert") != Some(true) => {
                let pattern = step.get("pattern").and_then(|p| p.get("Regex")).and_then(Json::as_str);
                format!("split {}", pattern.ok_or_else(unknown)?)
            }
            // Left out, both are true.
            "ByteLevel" if flag("add_prefix_space") == Some(false) => match flag("use_regex") {
                Some(false) => "bytes".to_owned(),
                _ => "gpt-2".to_owned(),
            },
            "Digits" => format!("digits {}", flag("individual_digits") == Some(true)),
            "Punctuation" => format!("punctuation {}", text("behavior")),
            _ => return Err(unknown()),
        });
    }
    let spelled: Vec<&str> = spelled.iter().map(String::as_str).collect();
    let split = |pattern: &str| {
        spelled.len() == 2 && spelled[0].strip_prefix("split ") == Some(pattern) && spelled[1] == "bytes"
    };
    Ok(match spelled.as_slice() {
        _ if split(LLAMA_3) => "llama-bpe",
        _ if split(QWEN_2) => "qwen2",
        ["gpt-2"] => "gpt-2",
        ["digits true", "gpt-2"] => "smollm",
        ["punctuation Contiguous", "gpt-2", "digits true"] => "falcon3",
        ["punctuation Contiguous", "gpt-2", "digits false", "split [0-9][0-9][0-9]"] => "falcon",
        _ => return Err(unknown()),
    })
}

fn tokens(file: &File, n_vocab: Option<u32>) -> Result<(Vec<String>, Vec<i32>), HfTokenizerError> {
    let limit = n_vocab.unwrap_or(MAX_TOKENS);
    let mut by_id: BTreeMap<u32, (&str, i32)> = BTreeMap::new();
    let put = |id: u32, text: &str| -> Result<(), HfTokenizerError> {
        if id >= limit {
            return Err(HfTokenizerError::IdTooLarge { token: shown(text), id, limit });
        }
        Ok(())
    };
    for (text, &id) in &file.model.vocab.0 {
        put(id, text)?;
        if let Some((first, _)) = by_id.insert(id, (text, NORMAL)) {
            return Err(HfTokenizerError::SharedId { id, first: shown(first), second: shown(text) });
        }
    }
    for added in &file.added_tokens.0 {
        put(added.id, &added.content)?;
        let kind = if added.special { CONTROL } else { USER_DEFINED };
        // An added token may stand in the model's vocabulary as well, under the same id.
        if let Some((first, _)) = by_id.insert(added.id, (&added.content, kind))
            && first != added.content
        {
            return Err(HfTokenizerError::SharedId {
                id: added.id,
                first: shown(first),
                second: shown(&added.content),
            });
        }
    }
    let highest = by_id.keys().next_back().map_or(0, |id| id + 1);
    let size = n_vocab.unwrap_or(highest);
    // Ids are below the limit, but a handful of tokens must not ask for millions of fillers.
    if n_vocab.is_none() && u64::from(size) > 2 * by_id.len() as u64 + 1024 {
        return Err(HfTokenizerError::Field {
            field: "model.vocab",
            value: format!("{} tokens with ids up to {}", by_id.len(), highest.saturating_sub(1)),
            need: "ids without such holes".into(),
        });
    }
    let mut texts = Vec::with_capacity(size as usize);
    let mut kinds = Vec::with_capacity(size as usize);
    for id in 0..size {
        match by_id.get(&id) {
            Some(&(text, kind)) => {
                texts.push(text.to_owned());
                kinds.push(kind);
            }
            None => {
                texts.push(format!("[PAD{id}]"));
                kinds.push(UNUSED);
            }
        }
    }
    Ok((texts, kinds))
}

fn merges(model: &Model) -> Result<Vec<String>, HfTokenizerError> {
    let mut out = Vec::with_capacity(model.merges.0.len());
    for (index, merge) in model.merges.0.iter().enumerate() {
        let (left, right) = match merge {
            Merge::Pair(left, right) => (left.as_str(), right.as_str()),
            Merge::Text(text) => text.split_once(' ').unwrap_or((text.as_str(), "")),
        };
        let bad = |problem| Err(HfTokenizerError::Merge { index, left: shown(left), right: shown(right), problem });
        if left.is_empty() || right.is_empty() {
            return bad("has not two parts");
        }
        if left.contains(' ') || right.contains(' ') {
            return bad("has a space inside a part, which a GGUF merge cannot hold");
        }
        let whole = format!("{left}{right}");
        if !model.vocab.0.contains_key(&whole) {
            return bad("makes no token of the vocabulary");
        }
        out.push(format!("{left} {right}"));
    }
    Ok(out)
}

struct Specials {
    bos: Option<u32>,
    eos: Option<u32>,
    eot: Option<u32>,
}

/// `eos` ends a text, `eot` a turn. Files name one, the other or both as "eos".
fn special(
    ids: &HashMap<&str, u32>,
    tokens: &[String],
    beside: &Neighbours,
    warnings: &mut Vec<String>,
) -> Result<Specials, HfTokenizerError> {
    let by_text = |field: &'static str, key: &str| -> Result<Option<u32>, HfTokenizerError> {
        let Some(value) = beside.tokenizer_config.as_ref().and_then(|c| c.get(key)) else { return Ok(None) };
        let text = value.as_str().or_else(|| value.get("content").and_then(Json::as_str));
        match text {
            None => Ok(None),
            Some(text) => match ids.get(text) {
                Some(&id) => Ok(Some(id)),
                None => Err(HfTokenizerError::UnknownSpecial { field, token: shown(text) }),
            },
        }
    };
    let by_id = |config: &Option<Json>, key: &str| -> Result<Vec<u32>, HfTokenizerError> {
        let Some(value) = config.as_ref().and_then(|c| c.get(key)) else { return Ok(Vec::new()) };
        let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        let mut out = Vec::new();
        for value in values.iter().filter(|v| !v.is_null()).take(64) {
            match value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| (*id as usize) < ids.len()) {
                Some(id) => out.push(id),
                None => {
                    return Err(HfTokenizerError::UnknownSpecial {
                        field: "a …_token_id of config.json or generation_config.json",
                        token: shown(&value.to_string()),
                    });
                }
            }
        }
        Ok(out)
    };
    let ends_generated = by_id(&beside.generation_config, "eos_token_id")?;
    let ends_config = by_id(&beside.config, "eos_token_id")?;
    let bos = match by_text("tokenizer_config.json: bos_token", "bos_token")? {
        Some(id) => Some(id),
        None => by_id(&beside.config, "bos_token_id")?.first().copied(),
    };
    let named_eos = by_text("tokenizer_config.json: eos_token", "eos_token")?;
    let turn = ["<|eot_id|>", "<|im_end|>", "<|end_of_turn|>"].iter().find_map(|text| ids.get(text).copied());
    let candidates: Vec<u32> = ends_config.into_iter().chain(ends_generated).chain(named_eos).collect();
    // The end of a text is the first end that is not the end of a turn.
    let eos = candidates.iter().copied().find(|&id| Some(id) != turn).or(candidates.first().copied());
    let eot = turn.or_else(|| candidates.iter().copied().find(|&id| Some(id) != eos));
    // A GGUF names two ends; of others the engine knows these by their text (`special_eog_ids` in llama-vocab.cpp).
    let known = ["<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "< EOT >"];
    let mut lost: Vec<u32> = candidates
        .into_iter()
        .filter(|id| ![eos, eot].contains(&Some(*id)))
        .filter(|id| tokens.get(*id as usize).is_none_or(|text| !known.contains(&text.as_str())))
        .collect();
    lost.sort_unstable();
    lost.dedup();
    if !lost.is_empty() {
        let named: Vec<String> = lost
            .iter()
            .map(|id| format!("{id} ('{}')", shown(tokens.get(*id as usize).map_or("", String::as_str))))
            .collect();
        warnings.push(format!(
            "eos_token_id: {} also ends generation there, and a GGUF names no more than two ends: generation goes on behind it",
            named.join(", ")
        ));
    }
    Ok(Specials { bos, eos, eot })
}

/// What an added token asks for and the engine does not do.
fn added_flags(added: &[AddedToken], warnings: &mut Vec<String>) {
    type Flag = fn(&AddedToken) -> bool;
    let flags: [(&str, Flag, &str); 3] = [
        ("lstrip", |t| t.lstrip, "takes white space before it"),
        ("rstrip", |t| t.rstrip, "takes white space behind it"),
        ("single_word", |t| t.single_word, "is found as a word of its own only"),
    ];
    for (name, holds, what) in flags {
        let mut asking = added.iter().filter(|t| holds(t));
        if let Some(first) = asking.next() {
            let more = asking.count();
            warnings.push(format!(
                "added_tokens.{name}: '{}'{} {what}, which the engine does not do: other ids around it",
                shown(&first.content),
                if more == 0 { String::new() } else { format!(" and {more} more") },
            ));
        }
    }
}

/// Settings of `tokenizer_config.json` by which transformers changes what `tokenizer.json` does.
fn config_flags(beside: &Neighbours) -> Result<(), HfTokenizerError> {
    for (field, key, need) in [
        (
            "tokenizer_config.json: add_eos_token",
            "add_eos_token",
            "an end behind every prompt ends it before its answer",
        ),
        ("tokenizer_config.json: add_prefix_space", "add_prefix_space", "the engine adds no space to byte-level BPE"),
    ] {
        let value = beside.tokenizer_config.as_ref().and_then(|c| c.get(key));
        if value.and_then(Json::as_bool) == Some(true) {
            return Err(HfTokenizerError::Field { field, value: "true".into(), need: need.into() });
        }
    }
    Ok(())
}

/// The text of the token that the post-processor puts before a single sequence. Anything else that it adds is refused.
fn first_added(processor: Option<&Json>) -> Result<Option<String>, HfTokenizerError> {
    let Some(processor) = processor.filter(|p| !p.is_null()) else { return Ok(None) };
    let refuse = |what: &Json, need: &str| {
        Err(HfTokenizerError::Field { field: "post_processor", value: shown(&what.to_string()), need: need.into() })
    };
    match processor.get("type").and_then(Json::as_str) {
        // It only moves offsets.
        Some("ByteLevel") => Ok(None),
        Some("Sequence") => {
            let mut first = None;
            for step in processor.get("processors").and_then(Json::as_array).into_iter().flatten() {
                if let Some(text) = first_added(Some(step))?
                    && first.replace(text).is_some()
                {
                    return refuse(processor, "the engine puts one token first at most");
                }
            }
            Ok(first)
        }
        Some("TemplateProcessing") => {
            let pieces = processor.get("single").and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
            let token = |piece: &Json| Some(piece.get("SpecialToken")?.get("id")?.as_str()?.to_owned());
            let text = |piece: &Json| piece.get("Sequence").is_some();
            match pieces {
                [one] if text(one) => Ok(None),
                [first, one] if text(one) => match token(first) {
                    Some(first) => Ok(Some(first)),
                    None => refuse(processor, "a token and the text behind it"),
                },
                _ => refuse(processor, "the engine adds nothing but one token before the text"),
            }
        }
        _ => refuse(processor, "ByteLevel and TemplateProcessing can be carried over"),
    }
}

fn chat_template(beside: &Neighbours) -> Option<String> {
    if let Some(text) = beside.chat_template.as_ref().filter(|text| !text.is_empty()) {
        return Some(text.clone());
    }
    let value = beside.tokenizer_config.as_ref()?.get("chat_template")?;
    if let Some(text) = value.as_str() {
        return Some(text.to_owned());
    }
    // A list of named templates.
    let named = value.as_array()?.iter().find(|entry| entry.get("name").and_then(Json::as_str) == Some("default"))?;
    Some(named.get("template")?.as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tokenizer() -> Json {
        json!({
            "added_tokens": [
                {"id": 4, "content": "<s>", "special": true}, {"id": 6, "content": "<tool>", "special": false}
            ],
            "normalizer": null,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": LLAMA_3}, "behavior": "Isolated", "invert": false},
                {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]},
            "post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel"}, {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]}]},
            "model": {"type": "BPE", "ignore_merges": true, "vocab": {"a": 0, "b": 1, "ab": 2, "aba": 3},
                "merges": [["a", "b"], "ab a"]}
        })
    }

    fn config() -> Neighbours {
        Neighbours {
            tokenizer_config: Some(json!({"bos_token": "<s>", "eos_token": {"content": "<tool>"}})),
            ..Neighbours::default()
        }
    }

    fn read_json(value: &Json, n_vocab: Option<u32>) -> Result<HfTokenizer, HfTokenizerError> {
        read(value.to_string().as_bytes(), &config(), n_vocab, None)
    }

    #[test]
    fn tokens_types_merges_and_specials() {
        let read = read_json(&tokenizer(), Some(8)).unwrap();
        let v = read.vocabulary;
        assert_eq!(v.tokens, ["a", "b", "ab", "aba", "<s>", "[PAD5]", "<tool>", "[PAD7]"]);
        assert_eq!(v.kinds, [1, 1, 1, 1, 3, 5, 4, 5]);
        assert_eq!(v.merges, ["a b", "ab a"]);
        assert_eq!((v.bos, v.eos, v.eot), (Some(4), Some(6), None));
        assert_eq!(v.pre.as_deref(), Some("llama-bpe"));
        assert_eq!(v.add_bos, Some(true));
        let mut silent = tokenizer();
        silent["post_processor"] = json!(null);
        assert_eq!(read_json(&silent, None).unwrap().vocabulary.add_bos, Some(false));
        assert!(read.warnings.is_empty(), "{:?}", read.warnings);
    }

    #[test]
    fn the_end_of_a_turn_is_not_the_end_of_the_text() {
        let mut t = tokenizer();
        t["added_tokens"] = json!([{"id": 4, "content": "<s>", "special": true},
            {"id": 5, "content": "<|end_of_text|>", "special": true}, {"id": 6, "content": "<|eot_id|>", "special": true}]);
        let beside = Neighbours {
            tokenizer_config: Some(json!({"bos_token": "<s>", "eos_token": "<|eot_id|>"})),
            config: Some(json!({"eos_token_id": [5, 6]})),
            ..Neighbours::default()
        };
        let v = read(t.to_string().as_bytes(), &beside, None, None).unwrap().vocabulary;
        assert_eq!((v.eos, v.eot), (Some(5), Some(6)));
    }

    #[test]
    fn an_end_that_a_gguf_cannot_name_is_said() {
        let mut t = tokenizer();
        let text = ["<s>", "<|end_of_text|>", "<|eot_id|>", "<stop>", "<|eom_id|>"];
        t["added_tokens"] = (4..9).map(|id| json!({"id": id, "content": text[id - 4], "special": true})).collect();
        let beside = |config: Json, generation: Json| Neighbours {
            tokenizer_config: Some(json!({"bos_token": "<s>", "eos_token": "<|eot_id|>"})),
            config: Some(json!({"eos_token_id": config})),
            generation_config: Some(json!({"eos_token_id": generation})),
            ..Neighbours::default()
        };
        let warnings = |config, generation| {
            let beside = beside(config, generation);
            super::read(t.to_string().as_bytes(), &beside, None, None).unwrap().warnings
        };
        assert!(warnings(json!([5, 6]), json!([5, 6, 8])).is_empty(), "the engine knows 8 by its text");
        for (config, generation) in [(json!([5, 6, 7]), json!(null)), (json!(5), json!([6, 7]))] {
            let said = warnings(config, generation);
            assert!(said.len() == 1 && said[0].contains("eos_token_id: 7 ('<stop>')"), "{said:?}");
        }
    }

    #[test]
    fn what_the_tokenizer_adds_elsewhere_and_unknown_fields_are_refused() {
        type Change = fn(&mut Json);
        let cases: [(&str, Change); 4] = [
            ("post_processor", |t| {
                t["post_processor"] = json!({"type": "BertProcessing", "sep": ["<s>", 4], "cls": ["<s>", 4]})
            }),
            ("post_processor", |t| {
                t["post_processor"] = json!({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}},
                    {"SpecialToken": {"id": "<s>"}}]});
            }),
            ("unknown field `post_tokenizer`", |t| t["post_tokenizer"] = json!({})),
            ("unknown field `glued`", |t| t["added_tokens"][0]["glued"] = json!(true)),
        ];
        for (part, change) in cases {
            let mut t = tokenizer();
            change(&mut t);
            let err = read_json(&t, None).unwrap_err().to_string();
            assert!(err.contains(part), "{part}: {err}");
        }
        for key in ["add_eos_token", "add_prefix_space"] {
            let beside =
                Neighbours { tokenizer_config: Some(json!({"bos_token": "<s>", key: true})), ..Neighbours::default() };
            let err = super::read(tokenizer().to_string().as_bytes(), &beside, None, None).unwrap_err().to_string();
            assert!(err.contains(key), "{err}");
        }
    }

    #[test]
    fn pre_tokenizers_by_their_rule() {
        let mut t = tokenizer();
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true});
        for (rule, name) in [
            (json!(bytes), "gpt-2"),
            (
                json!({"type": "Sequence", "pretokenizers": [
                    {"type": "Punctuation", "behavior": "Contiguous"}, bytes, {"type": "Digits", "individual_digits": true}]}),
                "falcon3",
            ),
        ] {
            t["pre_tokenizer"] = rule;
            assert_eq!(read_json(&t, None).unwrap().vocabulary.pre.as_deref(), Some(name));
        }
        for unknown in [
            json!({"type": "ByteLevel", "add_prefix_space": true, "use_regex": true}),
            json!({"type": "Whitespace"}),
            json!(null),
        ] {
            t["pre_tokenizer"] = unknown;
            let err = read_json(&t, None).unwrap_err();
            assert!(matches!(err, HfTokenizerError::PreTokenizer { .. }) && err.to_string().contains("--pre"), "{err}");
            let stated = read(t.to_string().as_bytes(), &config(), None, Some("falcon3")).unwrap();
            assert_eq!(stated.vocabulary.pre.as_deref(), Some("falcon3"));
            assert!(stated.warnings[0].contains("nothing here proves"), "{:?}", stated.warnings);
        }
    }

    #[test]
    fn what_cannot_be_carried_over_is_refused_by_field() {
        type Change = fn(&mut Json);
        let cases: [(&str, Change); 10] = [
            ("model.type", |t| t["model"]["type"] = json!("Unigram")),
            ("byte_fallback", |t| t["model"]["byte_fallback"] = json!(true)),
            ("normalizer", |t| t["normalizer"] = json!({"type": "Lowercase"})),
            ("id 2 belongs to", |t| t["model"]["vocab"]["c"] = json!(2)),
            ("id 4 belongs to", |t| t["model"]["vocab"]["c"] = json!(4)),
            ("ids without such holes", |t| t["model"]["vocab"]["c"] = json!(999_999)),
            ("has the id 4000000000", |t| t["model"]["vocab"]["c"] = json!(4_000_000_000_u32)),
            ("has not two parts", |t| t["model"]["merges"] = json!(["ab"])),
            ("makes no token", |t| t["model"]["merges"] = json!([["b", "b"]])),
            ("space inside", |t| t["model"]["merges"] = json!([["a b", "b"]])),
        ];
        for (part, change) in cases {
            let mut t = tokenizer();
            change(&mut t);
            let err = read_json(&t, None).unwrap_err().to_string();
            assert!(err.contains(part), "{part}: {err}");
        }
        let mut t = tokenizer();
        t["added_tokens"][0] = json!({"id": 5, "content": "ab"});
        assert!(read_json(&t, None).unwrap_err().to_string().contains("token 'ab' has the ids 2 and 5"));
        let twice = tokenizer().to_string().replace(r#""ab":2"#, r#""ab":2,"ab":7"#);
        let err = read(twice.as_bytes(), &config(), None, None).unwrap_err().to_string();
        assert!(err.contains("the token 'ab' twice"), "{err}");
        let mut t = tokenizer();
        t["normalizer"] = json!(vec![0; 1 << 20]);
        assert!(read_json(&t, None).unwrap_err().to_string().contains("normalizer is 2097153 bytes long"));
        let err = read_json(&tokenizer(), Some(6)).unwrap_err().to_string();
        assert!(err.contains("'<tool>'") && err.contains("6 tokens"), "{err}");
        assert!(matches!(read(b"{", &config(), None, None), Err(HfTokenizerError::Json { .. })));
    }
}
