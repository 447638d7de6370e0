//! The word lists of the reader: fillers and cautions (`gates/agent/fillers.toml`, `gates/agent/cautions.toml`).
//!
//! Both are data with reasons, reviewed like code and pinned by hash. Fillers are the only words without a meaning that an
//! allowed command may hold. Cautions decide whether words that nobody understood are refused or asked about.

use serde::Deserialize;

use super::guard::InputFlag;
use super::spans::{Token, TokenKind, tokens};

/// Where a filler may stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Place {
    /// Anywhere between the parts of a command.
    Any,
    /// Before the command.
    Front,
    /// Behind it.
    Back,
}

/// What else a filler does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FillerKind {
    /// Nothing.
    #[default]
    Plain,
    /// It makes an order of what stands before it.
    Softens,
    /// It makes the sentence a polite question.
    Request,
    /// A request only where the sentence ends as a question.
    Half,
    /// It ends a polite question.
    Asks,
    /// It says when: at once.
    Now,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FillerEntry {
    place: Place,
    #[serde(default)]
    kind: FillerKind,
    words: Vec<String>,
    reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FillerFile {
    schema: String,
    filler: Vec<FillerEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CautionEntry {
    flag: InputFlag,
    words: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NameEntry {
    forbidden: Vec<String>,
    harmless: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CautionFile {
    schema: String,
    caution: Vec<CautionEntry>,
    names: NameEntry,
}

const FILLERS_SCHEMA: &str = "bitnet-harness.agent-fillers/1";
const CAUTIONS_SCHEMA: &str = "bitnet-harness.agent-cautions/1";
const FILLERS: &str = include_str!("../../../gates/agent/fillers.toml");
const CAUTIONS: &str = include_str!("../../../gates/agent/cautions.toml");

/// Why a word list is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum WordsError {
    /// Not the expected TOML.
    #[error("{list}: {problem}")]
    Form {
        /// Which list.
        list: &'static str,
        /// What is wrong.
        problem: String,
    },
}

/// A filler as tokens.
#[derive(Debug, Clone)]
pub(crate) struct Filler {
    words: Vec<String>,
    pub(crate) place: Place,
    pub(crate) kind: FillerKind,
}

#[derive(Debug, Clone)]
struct Caution {
    words: Vec<String>,
    /// The last word may go on.
    open: bool,
    flag: InputFlag,
}

/// The lists, checked.
#[derive(Debug, Clone)]
pub(crate) struct Words {
    fillers: Vec<Filler>,
    cautions: Vec<Caution>,
    forbidden: Vec<Vec<String>>,
    harmless: Vec<Vec<String>>,
}

fn texts(phrase: &str) -> Vec<String> {
    tokens(&super::text::folded(phrase)).into_iter().map(|t| t.text).collect()
}

/// How many tokens of `at` spell the phrase.
fn spelled(at: &[Token], phrase: &[String], open: bool) -> Option<usize> {
    if at.len() < phrase.len() {
        return None;
    }
    let last = phrase.len().checked_sub(1)?;
    let fits = phrase.iter().zip(at).enumerate().all(|(index, (wanted, token))| {
        token.text == *wanted || (open && index == last && token.text.starts_with(wanted.as_str()))
    });
    fits.then_some(phrase.len())
}

impl Words {
    /// The embedded lists.
    ///
    /// # Errors
    /// [`WordsError`] only if an embedded list is broken; tested.
    pub(crate) fn embedded() -> Result<Self, WordsError> {
        Self::parse(FILLERS, CAUTIONS)
    }

    /// The embedded lists, read once.
    ///
    /// # Errors
    /// As [`Words::embedded`].
    pub(crate) fn shared() -> Result<&'static Self, WordsError> {
        static WORDS: std::sync::OnceLock<Result<Words, WordsError>> = std::sync::OnceLock::new();
        WORDS.get_or_init(Self::embedded).as_ref().map_err(Clone::clone)
    }

    fn parse(fillers: &str, cautions: &str) -> Result<Self, WordsError> {
        let form = |list, problem: String| WordsError::Form { list, problem };
        let file: FillerFile = toml::from_str(fillers).map_err(|e| form("fillers", e.to_string()))?;
        let list: CautionFile = toml::from_str(cautions).map_err(|e| form("cautions", e.to_string()))?;
        for (name, found, wanted) in
            [("fillers", &file.schema, FILLERS_SCHEMA), ("cautions", &list.schema, CAUTIONS_SCHEMA)]
        {
            if found != wanted {
                return Err(form(name, format!("schema is {found:?}, not {wanted:?}")));
            }
        }
        let mut words =
            Words { fillers: Vec::new(), cautions: Vec::new(), forbidden: Vec::new(), harmless: Vec::new() };
        for entry in &file.filler {
            if entry.reason.trim().is_empty() {
                return Err(form("fillers", format!("{:?} has no reason", entry.words)));
            }
            for word in &entry.words {
                let phrase = texts(word);
                if phrase.is_empty() {
                    return Err(form("fillers", format!("{word:?} has no letter")));
                }
                words.fillers.push(Filler { words: phrase, place: entry.place, kind: entry.kind });
            }
        }
        for entry in &list.caution {
            for word in &entry.words {
                let phrase = texts(word.trim_end_matches('*'));
                if phrase.is_empty() {
                    return Err(form("cautions", format!("{word:?} has no letter")));
                }
                words.cautions.push(Caution { words: phrase, open: word.ends_with('*'), flag: entry.flag });
            }
        }
        words.forbidden = list.names.forbidden.iter().map(|w| texts(w)).collect();
        words.harmless = list.names.harmless.iter().map(|w| texts(w)).collect();
        Ok(words)
    }

    /// BLAKE3 of the embedded lists, in hex: fillers, cautions.
    pub(crate) fn hashes() -> [String; 2] {
        [FILLERS, CAUTIONS].map(|text| blake3::hash(text.as_bytes()).to_hex().to_string())
    }

    /// The lists with one more filler that may stand anywhere: the planted fault of gate 5.
    pub(crate) fn widened(&self, word: &str) -> Self {
        let mut words = self.clone();
        words.fillers.push(Filler { words: texts(word), place: Place::Any, kind: FillerKind::Plain });
        words
    }

    /// Fillers that begin at the first token, with their lengths.
    pub(crate) fn fillers_at<'a>(&'a self, at: &'a [Token]) -> impl Iterator<Item = (usize, &'a Filler)> {
        self.fillers.iter().filter_map(move |f| spelled(at, &f.words, false).map(|used| (used, f)))
    }

    /// What the cautions say of tokens of which some are unexplained.
    pub(crate) fn cautions_in(&self, tokens: &[Token], unexplained: &[bool]) -> Vec<InputFlag> {
        let mut flags = Vec::new();
        for at in 0..tokens.len() {
            for caution in &self.cautions {
                if let Some(used) = spelled(&tokens[at..], &caution.words, caution.open)
                    && unexplained[at..at + used].iter().any(|u| *u)
                {
                    flags.push(caution.flag);
                }
            }
            if !unexplained[at] {
                continue;
            }
            let token = &tokens[at];
            match token.kind {
                // Numbers in scripts, or at places, that no reader knows.
                TokenKind::Digits => flags.push(InputFlag::UnclearValue),
                _ if token.text.chars().any(char::is_numeric) => flags.push(InputFlag::UnclearValue),
                TokenKind::Word if !token.text.is_ascii() => flags.push(InputFlag::NotUnderstood),
                TokenKind::Word if token.text.ends_with("n't") => flags.push(InputFlag::NegatedCommand),
                // Adverbs of time and manner, things that go on, things that are past.
                TokenKind::Word if token.text.len() > 4 && token.text.ends_with("ly") => {
                    flags.push(InputFlag::UnsupportedCondition);
                }
                TokenKind::Word
                    if token.text.len() > 4 && (token.text.ends_with("ing") || token.text.ends_with("ed")) =>
                {
                    flags.push(InputFlag::ReportedSpeech);
                }
                TokenKind::Han if super::numeral::is_numeral(token.text.chars().next().unwrap_or(' ')) => {
                    flags.push(InputFlag::UnclearValue);
                }
                TokenKind::Other => flags.push(InputFlag::NotUnderstood),
                TokenKind::Mark => flags.push(match token.text.as_str() {
                    "\"" | "“" | "”" | "「" | "」" | "『" | "』" | "«" | "»" | "'" | "`" | ":" => {
                        InputFlag::ReportedSpeech
                    }
                    "?" => InputFlag::Question,
                    "%" | "°" | "+" | "~" | "/" | "‰" => InputFlag::UnclearValue,
                    _ => InputFlag::NotUnderstood,
                }),
                _ => {}
            }
        }
        flags.sort_unstable();
        flags.dedup();
        flags
    }

    /// The first word of a name that no name may hold.
    pub(crate) fn forbidden_in_name(&self, name: &[Token]) -> Option<String> {
        let mut at = 0;
        while at < name.len() {
            if let Some(used) = self.harmless.iter().find_map(|w| spelled(&name[at..], w, false)) {
                at += used;
                continue;
            }
            if let Some(words) = self.forbidden.iter().find(|w| spelled(&name[at..], w, false).is_some()) {
                return Some(words.concat());
            }
            at += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_lists_are_lists() {
        let words = Words::embedded().unwrap();
        assert!(words.fillers.len() > 50 && words.cautions.len() > 300);
    }

    #[test]
    fn a_list_says_what_is_wrong_with_it() {
        let fillers = "schema = \"bitnet-harness.agent-fillers/1\"\n[[filler]]\nplace = \"any\"\nwords = [\"x\"]\nreason = \"\"\n";
        assert!(Words::parse(fillers, CAUTIONS).unwrap_err().to_string().contains("has no reason"));
        let other = fillers.replace("place = \"any\"", "place = \"nowhere\"");
        assert!(Words::parse(&other, CAUTIONS).unwrap_err().to_string().contains("nowhere"));
        let empty = fillers.replace("\"x\"", "\" \"").replace("reason = \"\"", "reason = \"r\"");
        assert!(Words::parse(&empty, CAUTIONS).unwrap_err().to_string().contains("no letter"));
    }
}
