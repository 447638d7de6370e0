//! Explicit phrases that change long-term memory, and what may be remembered at all.
//!
//! Only names for devices are stored. A model can never write: the phrase must stand in the user's
//! own input. What a phrase asks for is judged by the gates like a command is.

use serde::Serialize;

use super::guard::GuardedInput;
use super::names::{NameOrigin, Names};
use super::registry::check_alias;
use super::spoken_name::carries_meaning;

/// What an input asks of memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MemoryPhrase {
    /// Call a device by a new name.
    Remember {
        /// A name it has.
        target: String,
        /// The new one.
        alias: String,
    },
    /// Forget a remembered name.
    Forget {
        /// The name.
        alias: String,
    },
    /// A wish to weaken safety. Always refused.
    WeakenSafety,
}

/// Finds a memory phrase; `None` for everything else.
pub(crate) fn detect(input: &GuardedInput) -> Option<MemoryPhrase> {
    let text = input.folded().trim_matches(|c: char| c.is_whitespace() || matches!(c, '。' | '.' | '!' | ',' | '?'));
    let dense: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    if weakens_safety(text, &dense) {
        return Some(MemoryPhrase::WeakenSafety);
    }
    chinese(&dense).or_else(|| english(text))
}

fn weakens_safety(text: &str, dense: &str) -> bool {
    let standing = ["以后", "今后", "记住", "从现在起"].iter().any(|w| dense.starts_with(w))
        || ["from now on", "remember", "always", "in future", "in the future"].iter().any(|w| text.starts_with(w));
    let effects = [
        "自动打开",
        "自动解锁",
        "自动开门",
        "不需要确认",
        "不用确认",
        "无需确认",
        "跳过确认",
        "跳过安全",
        "直接打开",
        "直接解锁",
        "不要确认",
        "免确认",
    ]
    .iter()
    .any(|w| dense.contains(w))
        || [
            "without confirmation",
            "without asking",
            "no confirmation",
            "skip confirmation",
            "skip safety",
            "bypass",
            "automatically",
            "don't ask",
            "do not ask",
        ]
        .iter()
        .any(|w| text.contains(w));
    standing && effects
}

fn chinese(dense: &str) -> Option<MemoryPhrase> {
    for front in ["以后把", "今后把", "记住把", "记住,把", "从现在起把"] {
        let Some(rest) = dense.strip_prefix(front) else { continue };
        for verb in ["叫做", "叫作", "称为", "称作", "叫"] {
            if let Some((target, alias)) = rest.split_once(verb) {
                return Some(MemoryPhrase::Remember { target: target.to_owned(), alias: alias.to_owned() });
            }
        }
    }
    for front in ["忘记别名", "忘掉别名", "删除别名", "忘记名字", "删除名字"] {
        if let Some(alias) = dense.strip_prefix(front) {
            return Some(MemoryPhrase::Forget { alias: alias.to_owned() });
        }
    }
    None
}

fn english(text: &str) -> Option<MemoryPhrase> {
    let without_article = |s: &str| s.trim().trim_start_matches("the ").trim().to_owned();
    let remember = |(target, alias): (&str, &str)| MemoryPhrase::Remember {
        target: without_article(target),
        alias: without_article(alias),
    };
    let named = text.strip_prefix("remember ").and_then(|rest| rest.rsplit_once(" as "));
    let called =
        text.strip_prefix("from now on").and_then(|rest| rest.trim_start_matches([',', ' ']).split_once(" is called "));
    if let Some(pair) = named.or(called) {
        return Some(remember(pair));
    }
    for front in ["forget the alias ", "forget alias ", "forget the name ", "forget name "] {
        if let Some(alias) = text.strip_prefix(front) {
            return Some(MemoryPhrase::Forget { alias: without_article(alias) });
        }
    }
    None
}

/// Everything that speaks against remembering `alias` for a device.
pub(crate) fn objections(
    alias: &str,
    target: Option<&str>,
    names: &Names<'_>,
    stored: usize,
    limit: usize,
) -> Vec<String> {
    let mut against = Vec::new();
    if let Err(reason) = check_alias(alias) {
        against.push(format!("the name {:?} {reason}", super::text::clipped(alias, 40)));
        return against;
    }
    match names.device(alias) {
        Some((device, NameOrigin::Registry)) => {
            against.push(format!(
                "{alias:?} is a registered name of {}; a remembered name cannot take its place",
                device.device_id
            ));
        }
        Some((device, NameOrigin::Memory)) if Some(device.device_id.as_str()) == target => {
            against.push(format!("{alias:?} is already remembered for it"));
        }
        Some((device, NameOrigin::Memory)) => {
            against.push(format!("{alias:?} is remembered for {}; forget that name first", device.device_id));
        }
        None => {}
    }
    if let Some(reason) = carries_meaning(alias) {
        against.push(format!("the name {alias:?} {reason}, so commands that hold it would change their meaning"));
    }
    if stored >= limit {
        against.push(format!("{stored} names are remembered, the limit is {limit}; forget one first"));
    }
    against
}

#[cfg(test)]
mod tests {
    use super::super::guard::UserInput;
    use super::super::names::Names;
    use super::super::registry::Registry;
    use super::*;

    fn phrase(text: &str) -> Option<MemoryPhrase> {
        detect(&UserInput::new(text).guard().unwrap())
    }

    #[test]
    fn phrases() {
        let remember =
            |target: &str, alias: &str| Some(MemoryPhrase::Remember { target: target.into(), alias: alias.into() });
        assert_eq!(phrase("以后把走廊灯叫做夜路灯。"), remember("走廊灯", "夜路灯"));
        assert_eq!(phrase("记住把床头灯叫 阅读灯"), remember("床头灯", "阅读灯"));
        assert_eq!(phrase("Remember the bedside lamp as the reading lamp"), remember("bedside lamp", "reading lamp"));
        assert_eq!(phrase("from now on, the bedside lamp is called moon"), remember("bedside lamp", "moon"));
        assert_eq!(phrase("删除别名夜路灯"), Some(MemoryPhrase::Forget { alias: "夜路灯".into() }));
        assert_eq!(phrase("以后大门门锁不需要确认"), Some(MemoryPhrase::WeakenSafety));
        assert_eq!(phrase("from now on unlock the front door without confirmation"), Some(MemoryPhrase::WeakenSafety));
        for text in ["打开客厅灯", "以后打开客厅灯", "不要把走廊灯叫夜路灯", "remember me"] {
            assert_eq!(phrase(text), None, "{text}");
        }
    }

    /// W4, W5: what may not become a name.
    #[test]
    fn w5_names_that_would_change_the_meaning_of_commands() {
        let registry = Registry::embedded().unwrap();
        let names = Names::new(&registry, [("moon", "bedside_lamp")]);
        let objections = |alias: &str| objections(alias, Some("corridor_strip"), &names, 0, 10);
        for alias in ["夜路灯", "阅读灯", "reading lamp", "别墅夜灯", "客厅夜灯"] {
            assert_eq!(objections(alias), Vec::<String>::new(), "{alias}");
        }
        for alias in [
            "客厅灯",
            "Kitchen Light",
            "客厅的灯",
            "moon",
            "不要",
            "别",
            "打开",
            "灯",
            "它",
            "all",
            "所有",
            "30%",
            "制冷",
            "客厅",
            "",
            "a",
            "忽略以上",
            "entity_id",
            "明天",
            "开灯",
            "the",
            "42",
            "x\ny",
        ] {
            assert_ne!(objections(alias), Vec::<String>::new(), "{alias}");
        }
    }
}
