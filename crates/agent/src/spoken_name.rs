//! What a name may be, registered or remembered.
//!
//! Names are read before numbers and words, so that a device may be called 'lamp 2'. A name must therefore not hold what a
//! command is made of: 不要 as a name would hide every negation, 打开灯 would take the verb with it.

use super::lexicon::{Entry, entries_at};
use super::quantity::quantity_at;
use super::spans::{Token, TokenKind, tokens};
use super::text::folded;
use super::time_of_day::leading_time;
use super::words::Words;

/// Why a name would take the place of something that commands say; `None` for a name that names.
pub(crate) fn carries_command(name: &str) -> Option<String> {
    let text = folded(name);
    let chars: Vec<char> = text.chars().collect();
    let tokens = tokens(&text);
    let Ok(words) = Words::shared() else { return Some("cannot be checked".to_owned()) };
    if !tokens.iter().any(|t| t.kind.is_letters()) {
        return Some("has no letter".to_owned());
    }
    if let Some(word) = words.forbidden_in_name(&tokens) {
        return Some(format!("holds {word:?}, which negates, postpones, counts or refers"));
    }
    // 吃饭后, 三天, 十点
    let of_time = |t: &Token| {
        matches!(t.text.as_str(), "点" | "分" | "秒" | "刻" | "号" | "日" | "天" | "周" | "月" | "年" | "时")
    };
    if tokens.last().is_some_and(|t| matches!(t.text.as_str(), "后" | "前" | "时"))
        || tokens.windows(2).any(|w| (is_numeral(&w[0]) || w[0].kind == TokenKind::Digits) && of_time(&w[1]))
    {
        return Some("holds a time".to_owned());
    }
    let mut at = 0;
    while at < tokens.len() {
        let rest = &tokens[at..];
        if leading_time(&chars[tokens[at].start..]).is_some() {
            return Some("holds a time".to_owned());
        }
        if let Some((used, _)) = quantity_at(rest, None)
            && used > 1
            && tokens[at + used - 1].kind != TokenKind::Digits
            && !tokens[at..at + used].iter().all(is_numeral)
        {
            return Some("holds a value with a unit".to_owned());
        }
        let entries = entries_at(rest);
        let noun = entries
            .iter()
            .find(|(_, e)| matches!(e, Entry::Room(_) | Entry::Type(_) | Entry::Noun(..) | Entry::Elsewhere));
        let longest = entries.first().map_or(0, |(used, _)| *used);
        match (noun, entries.first()) {
            (Some((used, _)), _) if *used == longest => at += used,
            // Two Chinese characters or more, or one at the end of the name where verbs stand; an English word always.
            (_, Some((used, Entry::Word(_) | Entry::Mode(_) | Entry::Refer)))
                if *used > 1 || tokens[at].kind == TokenKind::Word || (tokens.len() > 1 && verb_place(&tokens, at)) =>
            {
                let word: String = tokens[at..at + used].iter().map(|t| t.text.as_str()).collect();
                if glue(&word) {
                    at += used;
                } else {
                    return Some(format!("holds {word:?}, a word of commands"));
                }
            }
            _ => at += 1,
        }
    }
    None
}

/// Words of commands that names are full of and that say nothing of their own in one.
fn glue(word: &str) -> bool {
    matches!(word, "the" | "my" | "our" | "of" | "in" | "at" | "up" | "down" | "back" | "bright" | "的")
}

fn is_numeral(token: &Token) -> bool {
    token.kind == TokenKind::Han && token.text.chars().next().is_some_and(super::numeral::is_numeral)
}

/// 开灯, 灯关: a verb of one character stands at an end.
fn verb_place(tokens: &[Token], at: usize) -> bool {
    let verb =
        matches!(tokens[at].text.as_str(), "开" | "关" | "锁" | "调" | "把" | "将" | "熄" | "再" | "用" | "到" | "了");
    verb && (at == 0 || at + 1 == tokens.len())
}

/// The same for a name that is remembered, which must not be a plain word of the house either.
pub(crate) fn carries_meaning(name: &str) -> Option<String> {
    if let Some(reason) = carries_command(name) {
        return Some(reason);
    }
    let tokens = tokens(&folded(name));
    let Ok(words) = Words::shared() else { return Some("cannot be checked".to_owned()) };
    if tokens.len() < 2 && tokens.iter().all(|t| t.text.chars().count() < 2) {
        return Some("is one letter".to_owned());
    }
    let whole = |used: &usize| *used == tokens.len();
    if entries_at(&tokens).iter().any(|(used, _)| whole(used)) {
        return Some("is a plain word for a kind of device or a room".to_owned());
    }
    let mut at = 0;
    while at < tokens.len() {
        if words.fillers_at(&tokens[at..]).any(|(used, _)| used > 1 || tokens[at].kind == TokenKind::Word) {
            return Some("holds a word of politeness".to_owned());
        }
        at += 1;
    }
    let all = vec![true; tokens.len()];
    let flags = words.cautions_in(&tokens, &all);
    if flags.contains(&super::guard::InputFlag::AllTargets) {
        return Some("counts".to_owned());
    }
    None
}
