//! The closed world, tried: one unknown word anywhere in an allowed input, and it is allowed no more.

use serde::Serialize;

use super::case_runs::House;
use super::sentences::{self, Listener, SentencesError};
use super::suite::Suite;
use crate::assess::{Bench, StateKnowledge, judge};
use crate::candidate::Candidate;
use crate::gate_engine::GateSet;
use crate::guard::UserInput;
use crate::memory_write::detect;
use crate::names::Names;
use crate::policy::Policy;
use crate::reading::Reading;
use crate::registry::Registry;
use crate::rules;
use crate::spans::is_han;
use crate::store::{Store, StoreError};
use crate::vocabulary::Decision;

/// What came of the insertions.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Insertions {
    /// Inputs that are allowed as they stand.
    pub inputs: usize,
    /// Inputs with one word more.
    pub insertions: usize,
    /// Of them with a word of Chinese characters.
    pub chinese: usize,
    /// Insertions after which the input was still allowed.
    pub allowed: usize,
    /// The first of them.
    pub findings: Vec<String>,
}

/// Words that mean nothing in a house: made of syllables, and of characters that no command holds.
fn unknown_words(seed: &str) -> [String; 2] {
    const ONSETS: &[&str] = &["bl", "gr", "qu", "fl", "z", "v", "sk", "dr", "j", "kl"];
    const RHYMES: &[&str] = &["orf", "imp", "agg", "usk", "ont", "erb", "ovv", "ild"];
    const HAN: &[char] = &[
        '鲸', '琴', '橘', '蓝', '鹿', '桃', '杏', '竹', '梅', '兰', '荷', '蝶', '燕', '鹤', '瓷', '帆', '麦', '糖',
        '珠', '砚',
    ];
    let hash = blake3::hash(seed.as_bytes());
    let pick = |at: usize, of: usize| usize::from(hash.as_bytes()[at]) % of;
    [
        format!("{}{}{}", ONSETS[pick(0, ONSETS.len())], RHYMES[pick(1, RHYMES.len())], RHYMES[pick(2, RHYMES.len())]),
        [HAN[pick(3, HAN.len())], HAN[pick(4, HAN.len())]].iter().collect(),
    ]
}

/// Every place of a text where a word may stand: between words, and between Chinese characters.
fn places(text: &str) -> Vec<usize> {
    let chars: Vec<(usize, char)> = text.char_indices().collect();
    let mut places = vec![0];
    for pair in chars.windows(2) {
        let ((_, before), (at, after)) = (pair[0], pair[1]);
        if is_han(before) || is_han(after) || before.is_whitespace() || !before.is_alphanumeric() {
            places.push(at);
        }
    }
    places.push(text.len());
    places
}

/// The texts with one unknown word more.
fn insertions(text: &str) -> Vec<(String, bool)> {
    let mut all = Vec::new();
    for at in places(text) {
        let [word, han] = unknown_words(&format!("{text}{at}"));
        let (front, back) = text.split_at(at);
        all.push((format!("{front} {word} {back}"), false));
        all.push((format!("{front}{han}{back}"), true));
    }
    all
}

impl Insertions {
    fn note(&mut self, text: &str, chinese: bool, allowed: bool) {
        self.insertions += 1;
        self.chinese += usize::from(chinese);
        if allowed {
            self.allowed += 1;
            if self.findings.len() < 20 {
                self.findings.push(text.to_owned());
            }
        }
    }
}

/// Why the insertions could not be tried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InsertionsError {
    /// Trace store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Sentence files.
    #[error(transparent)]
    Sentences(#[from] SentencesError),
}

/// Tries every allowed case of a suite and every allowed plain command. After an insertion both the rule parser's proposal
/// and the one for the text without the word (a model that does not see it) are judged.
pub(crate) fn run(registry: &Registry, policy: &Policy, suite: &Suite) -> Result<Insertions, InsertionsError> {
    let mut result = Insertions::default();
    let mut house = House::new(registry.clone(), policy.clone(), Store::in_memory()?, GateSet::default());
    for case in suite.cases.iter().filter(|c| c.expects_plan() && c.holds_for_any_candidate()) {
        house.prepare(suite, case)?;
        let remembered = house.agent.store().aliases()?;
        let names = Names::new(registry, remembered.iter().map(|r| (r.alias.as_str(), r.device_id.as_str())));
        let memory = policy.memory();
        let now_ms = house.now_ms();
        let oldest = now_ms - i64::from(memory.short_max_age_s) * 1000;
        let recent = house.agent.store().recent(&case.id, oldest, now_ms, memory.short_items)?;
        let bench = Bench {
            registry,
            policy,
            planner: house.agent.planner,
            gates: GateSet::default(),
            names: &names,
            recent: &recent,
            states: StateKnowledge::Live { source: house.states.as_ref(), now_ms },
        };
        let decide = |text: &str, blind: Option<&Candidate>| -> (Decision, Option<Candidate>) {
            let Ok(input) = UserInput::new(text).guard() else { return (Decision::Deny, None) };
            if detect(&input).is_some() {
                return (Decision::Deny, None);
            }
            let reading = Reading::of(&input, &names);
            let own = rules::candidate(&reading, registry, &recent);
            let allowed = [own.as_ref(), blind]
                .into_iter()
                .flatten()
                .any(|c| judge(&bench, &reading, c, None).evaluation.decision() == Decision::Allow);
            (if allowed { Decision::Allow } else { Decision::Deny }, own)
        };
        let (decision, candidate) = decide(&case.input, None);
        if decision != Decision::Allow {
            continue;
        }
        result.inputs += 1;
        for (text, chinese) in insertions(&case.input) {
            let (decision, _) = decide(&text, candidate.as_ref());
            result.note(&text, chinese, decision == Decision::Allow);
        }
    }
    let listener = Listener::new(registry, policy, GateSet::default());
    for text in sentences::plain_texts()? {
        if listener.hear(&text).decision != Decision::Allow {
            continue;
        }
        result.inputs += 1;
        for (longer, chinese) in insertions(&text) {
            let decision = listener.hear(&longer).decision;
            result.note(&longer, chinese, decision == Decision::Allow);
        }
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_word_anywhere_keeps_an_input_from_being_allowed() {
        let result =
            run(&Registry::embedded().unwrap(), &Policy::embedded().unwrap(), &Suite::embedded().unwrap()).unwrap();
        assert_eq!(result.findings, Vec::<String>::new());
        assert!(result.inputs > 200 && result.insertions > 4000 && result.chinese > 2000, "{result:?}");
    }

    #[test]
    fn places_are_between_words_and_characters() {
        assert_eq!(insertions("turn on 灯"), insertions("turn on 灯"));
        assert_eq!(places("ab c灯x").len(), 5, "the ends, before c, before and behind 灯");
    }
}
