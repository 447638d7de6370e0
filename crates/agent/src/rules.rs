//! Rule parser: sentences that need no model.
//!
//! It reads Chinese and English commands for one device. It proposes a [`Candidate`] like any other
//! source and is believed no more: its proposals pass the same gates and the same grounding.

use super::candidate::{Candidate, CandidateParams, RELATIVE};
use super::guard::GuardedInput;
use super::names::Names;
use super::numeral::{leading_number, whole_number};
use super::text::{Token, tokens};
use super::time_of_day::{TimeOfDay, leading_time};
use super::vocabulary::{Action, DeviceType, Intent, Mode};

/// Reads an input by rule; `None` where no rule matches.
#[must_use]
pub(crate) fn read(input: &GuardedInput, names: &Names<'_>) -> Option<Candidate> {
    let (text, time) = take_leading_or_trailing_time(&polite_stripped(input.folded()))?;
    let text = polite_stripped(&text);
    let mut candidate = chinese(&text, names).or_else(|| english(&text, names))?;
    candidate.params.time_after = time.map(|t| t.to_string());
    Some(candidate)
}

/// Type of an alias: from the device that has it, else from its words.
fn type_of(alias: &str, names: &Names<'_>) -> DeviceType {
    if let Some((device, _)) = names.device(alias) {
        return device.device_type;
    }
    let words: Vec<&str> = alias.split_whitespace().collect();
    let has = |list: &[&str]| words.iter().any(|w| list.contains(w));
    for (han, english, kind) in [
        ("空调", &["ac", "conditioner", "aircon"][..], DeviceType::AirConditioner),
        ("灯", &["light", "lights", "lamp"], DeviceType::Light),
        ("摄像头", &["camera"], DeviceType::Camera),
        ("窗帘", &["curtain", "curtains", "blinds"], DeviceType::Curtain),
        ("门锁", &["lock", "door"], DeviceType::Lock),
        ("门", &[], DeviceType::Lock),
        ("燃气", &["gas"], DeviceType::GasDevice),
        ("报警器", &["alarm"], DeviceType::GasDevice),
    ] {
        if alias.contains(han) || has(english) {
            return kind;
        }
    }
    DeviceType::Unknown
}

/// What on/off or open/close means for a type; `None` for an unknown one.
fn switching(kind: DeviceType, on: bool) -> Option<Action> {
    Some(match (kind, on) {
        (DeviceType::Unknown, _) => return None,
        (DeviceType::Lock, true) => Action::Unlock,
        (DeviceType::Lock, false) => Action::Lock,
        (DeviceType::Curtain, true) => Action::Open,
        (DeviceType::Curtain, false) => Action::Close,
        (_, true) => Action::TurnOn,
        (_, false) => Action::TurnOff,
    })
}

/// A phrase that stands for an earlier target, with the type it names (unknown for "it").
fn relative(phrase: &str) -> Option<DeviceType> {
    let mut rest = phrase.trim();
    let mut refers = rest.is_empty();
    for word in ["刚才的", "刚才", "刚刚的", "刚刚", "那个", "这个", "那盏", "它", "再"] {
        if let Some(after) = rest.strip_prefix(word) {
            rest = after;
            refers = true;
        }
    }
    for word in ["那个", "这个", "那盏"] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    match rest {
        "" if refers => Some(DeviceType::Unknown),
        "灯" | "light" | "lights" | "lamp" => Some(DeviceType::Light),
        "空调" | "ac" | "air conditioner" => Some(DeviceType::AirConditioner),
        "窗帘" | "curtain" | "curtains" | "blinds" => Some(DeviceType::Curtain),
        "it" | "that" | "this" | "that one" => Some(DeviceType::Unknown),
        _ => None,
    }
}

fn command(phrase: &str, kind: DeviceType, action: Action, params: CandidateParams) -> Candidate {
    Candidate {
        intent: Intent::ControlDevice,
        device_alias: Some(phrase.to_owned()),
        device_type: kind,
        action,
        params,
        ..Candidate::default()
    }
}

fn relative_command(kind: DeviceType, action: Action, params: CandidateParams) -> Candidate {
    command(
        &format!("relative:{kind}"),
        kind,
        action,
        CandidateParams { raw_value: Some(RELATIVE.to_owned()), ..params },
    )
}

/// A command on a named device or on an earlier target. `action` decides from the type.
fn targeted(
    phrase: &str,
    names: &Names<'_>,
    params: CandidateParams,
    action: impl Fn(DeviceType) -> Option<Action>,
) -> Option<Candidate> {
    let phrase = phrase.trim();
    if phrase.chars().count() > super::candidate::MAX_TEXT_CHARS {
        return None;
    }
    if names.device(phrase).is_none()
        && let Some(kind) = relative(phrase)
    {
        // "it" may be anything; on and off are then the plain ones
        let assumed = if kind == DeviceType::Unknown { DeviceType::Switch } else { kind };
        return action(assumed).map(|a| relative_command(kind, a, params));
    }
    let kind = type_of(phrase, names);
    action(kind).map(|a| command(phrase, kind, a, params))
}

fn brightness_params(value: u32) -> Option<CandidateParams> {
    // above 255 no brightness at all; 101..=255 reach the gates and are denied there
    u8::try_from(value).ok().map(|v| CandidateParams { brightness: Some(v), ..CandidateParams::default() })
}

fn temperature_params(value: i64) -> Option<CandidateParams> {
    i16::try_from(value).ok().map(|v| CandidateParams { temperature: Some(v), ..CandidateParams::default() })
}

fn mode_params(mode: &str) -> CandidateParams {
    // The user's word: an unknown mode reaches the gates and is named there.
    CandidateParams { mode: Some(mode.to_owned()), ..CandidateParams::default() }
}

// ------------------------------------------------------------------ Chinese

fn chinese(text: &str, names: &Names<'_>) -> Option<Candidate> {
    let dense: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    if dense.is_ascii() {
        return None;
    }
    let body = dense.strip_prefix('把').or_else(|| dense.strip_prefix('将')).unwrap_or(&dense);
    setting(body, names).or_else(|| step(body, names)).or_else(|| locking(body, names)).or_else(|| on_off(body, names))
}

/// `<alias>调到<n>%`, `<alias>调到<n>度`, `<alias>切换到<mode>`.
fn setting(body: &str, names: &Names<'_>) -> Option<Candidate> {
    const VERBS: &[&str] = &[
        "调节到",
        "调整到",
        "切换到",
        "切换成",
        "设置为",
        "设置成",
        "设置到",
        "调到",
        "调成",
        "调至",
        "设到",
        "设为",
        "设成",
        "切到",
        "切成",
        "改成",
    ];
    let (at, verb) = VERBS
        .iter()
        .filter_map(|v| body.find(v).map(|at| (at, *v)))
        .min_by_key(|(at, v)| (*at, usize::MAX - v.len()))?;
    let mut alias = &body[..at];
    let value = body[at + verb.len()..].trim_end_matches("模式");
    for suffix in ["的亮度", "亮度", "的温度", "温度", "的模式", "模式"] {
        if names.device(alias).is_none()
            && let Some(shorter) = alias.strip_suffix(suffix)
        {
            alias = shorter;
        }
    }
    if let Some(number) = value.strip_suffix('%').or_else(|| value.strip_prefix("百分之")) {
        let params = brightness_params(whole_number(number)?)?;
        return targeted(alias, names, params, |_| Some(Action::SetBrightness));
    }
    if let Some(number) = ["摄氏度", "度", "°c"].iter().find_map(|u| value.strip_suffix(u)) {
        let (digits, sign) = match number.strip_prefix('-').or_else(|| number.strip_prefix("零下")) {
            Some(digits) => (digits, -1),
            None => (number, 1),
        };
        let params = temperature_params(i64::from(whole_number(digits)?) * sign)?;
        return targeted(alias, names, params, |_| Some(Action::SetTemperature));
    }
    if value.is_empty() || value.chars().any(|c| c.is_ascii_digit()) || value.chars().count() > 8 {
        return None;
    }
    targeted(alias, names, mode_params(value), |_| Some(Action::SetMode))
}

/// `<alias>调亮一点`, `再暗一点`.
fn step(body: &str, names: &Names<'_>) -> Option<Candidate> {
    for (word, action) in [('亮', Action::IncreaseBrightness), ('暗', Action::DecreaseBrightness)] {
        for tail in ["一点儿", "一点", "一些", "点", "些", ""] {
            let Some(front) = body.strip_suffix(&format!("{word}{tail}")) else { continue };
            let front = front.strip_suffix('调').or_else(|| front.strip_suffix('变')).or(if tail.is_empty() {
                None
            } else {
                Some(front)
            })?;
            let alias = front.strip_suffix('再').or_else(|| front.strip_suffix("稍微")).unwrap_or(front);
            // Only lights have brightness, so a missing target means a light.
            if alias.is_empty() {
                return Some(relative_command(DeviceType::Light, action, CandidateParams::default()));
            }
            return targeted(alias, names, CandidateParams::default(), |_| Some(action));
        }
    }
    None
}

/// 锁上`<alias>`, 把`<alias>`锁上, 解锁`<alias>`, 把`<alias>`解锁.
fn locking(body: &str, names: &Names<'_>) -> Option<Candidate> {
    for (word, action) in [("锁上", Action::Lock), ("锁住", Action::Lock), ("解锁", Action::Unlock)] {
        if let Some(alias) = body.strip_prefix(word).or_else(|| body.strip_suffix(word)) {
            return targeted(alias, names, CandidateParams::default(), |kind| {
                (kind == DeviceType::Lock).then_some(action)
            });
        }
    }
    None
}

/// 打开`<alias>`, 把`<alias>`打开, 关闭…, 拉上….
fn on_off(body: &str, names: &Names<'_>) -> Option<Candidate> {
    const ON: &[&str] = &["打开", "开启", "拉开", "开开", "开"];
    const OFF: &[&str] = &["关闭", "关掉", "关上", "拉上", "合上", "关了", "关"];
    for (words, on) in [(ON, true), (OFF, false)] {
        for word in words {
            if let Some(alias) = body.strip_prefix(word).or_else(|| body.strip_suffix(word)) {
                return targeted(alias, names, CandidateParams::default(), |kind| switching(kind, on));
            }
        }
    }
    None
}

// ------------------------------------------------------------------ English

fn english(text: &str, names: &Names<'_>) -> Option<Candidate> {
    let mut words: Vec<String> = Vec::new();
    for token in tokens(text) {
        match token {
            Token::Word(word) if matches!(word.as_str(), "the" | "my" | "our") => {}
            Token::Word(word) => words.push(word),
            Token::Mark(mark @ ('%' | '°')) => words.push(mark.to_string()),
            Token::Mark('-') => words.push("-".to_owned()),
            Token::Mark(_) => {}
            Token::Letter(_) => return None,
        }
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let none = CandidateParams::default;
    match words.as_slice() {
        ["turn" | "switch" | "power", "on", alias @ ..] | ["turn" | "switch" | "power", alias @ .., "on"] => {
            targeted(&alias.join(" "), names, none(), |kind| switching(kind, true))
        }
        ["turn" | "switch" | "power", "off", alias @ ..] | ["turn" | "switch" | "power", alias @ .., "off"] => {
            targeted(&alias.join(" "), names, none(), |kind| switching(kind, false))
        }
        ["lock", alias @ ..] => {
            targeted(&alias.join(" "), names, none(), |kind| (kind == DeviceType::Lock).then_some(Action::Lock))
        }
        ["unlock", alias @ ..] => {
            targeted(&alias.join(" "), names, none(), |kind| (kind == DeviceType::Lock).then_some(Action::Unlock))
        }
        ["open", alias @ ..] => targeted(&alias.join(" "), names, none(), |kind| switching(kind, true)),
        ["close" | "shut", alias @ ..] => targeted(&alias.join(" "), names, none(), |kind| switching(kind, false)),
        ["a", "bit" | "little", word] | ["make", "it", word] | ["make", "it", "a", "bit" | "little", word] | [word]
            if step_word(word).is_some() =>
        {
            step_word(word).map(|action| relative_command(DeviceType::Light, action, none()))
        }
        ["make", alias @ .., "a", "bit" | "little", word] | ["make", alias @ .., word] if step_word(word).is_some() => {
            targeted(&alias.join(" "), names, none(), |_| step_word(word))
        }
        ["set" | "dim" | "brighten" | "adjust" | "change" | "switch" | "turn" | "put", rest @ ..]
            if rest.iter().any(|w| matches!(*w, "to" | "in")) =>
        {
            let at = rest.iter().rposition(|w| matches!(*w, "to" | "in"))?;
            english_setting(&rest[..at], &rest[at + 1..], names)
        }
        ["dim" | "darken", alias @ ..] => {
            targeted(&alias.join(" "), names, none(), |_| Some(Action::DecreaseBrightness))
        }
        ["brighten", alias @ ..] => targeted(&alias.join(" "), names, none(), |_| Some(Action::IncreaseBrightness)),
        _ => None,
    }
}

fn step_word(word: &str) -> Option<Action> {
    match word {
        "brighter" => Some(Action::IncreaseBrightness),
        "dimmer" | "darker" => Some(Action::DecreaseBrightness),
        _ => None,
    }
}

fn english_setting(alias: &[&str], value: &[&str], names: &Names<'_>) -> Option<Candidate> {
    let alias = match alias {
        ["brightness" | "temperature" | "mode", "of", rest @ ..]
        | [rest @ .., "brightness" | "temperature" | "mode"] => rest,
        all => all,
    };
    let alias = alias.join(" ");
    let (value, sign) = match value {
        ["-" | "minus", rest @ ..] => (rest, -1),
        all => (all, 1),
    };
    if let [first, unit @ ..] = value {
        let chars: Vec<char> = first.chars().collect();
        if let Some((number, used)) = leading_number(&chars) {
            let stuck: String = chars[used..].iter().collect();
            let unit = if stuck.is_empty() { unit.join("") } else { stuck };
            let temperature = match unit.as_str() {
                "%" | "percent" => false,
                "degrees" | "degree" | "degreescelsius" | "°c" | "°" | "c" | "celsius" => true,
                "" => type_of(&alias, names) == DeviceType::AirConditioner,
                _ => return None,
            };
            return if temperature {
                targeted(&alias, names, temperature_params(i64::from(number) * sign)?, |_| Some(Action::SetTemperature))
            } else {
                targeted(&alias, names, brightness_params(if sign < 0 { return None } else { number })?, |_| {
                    Some(Action::SetBrightness)
                })
            };
        }
    }
    let mode = match value {
        [mode, "mode"] | [mode] => *mode,
        _ => return None,
    };
    Mode::from_text(mode)
        .map_or_else(
            // An unknown mode is a mode only where a mode makes sense.
            || (type_of(&alias, names) == DeviceType::AirConditioner).then_some(mode_params(mode)),
            |_| Some(mode_params(mode)),
        )
        .and_then(|params| targeted(&alias, names, params, |_| Some(Action::SetMode)))
}

// ------------------------------------------------------------------ around the command

/// Without politeness around it and final punctuation.
fn polite_stripped(text: &str) -> String {
    const FRONT: &[&str] = &[
        "请问",
        "请",
        "麻烦你",
        "麻烦",
        "帮我",
        "帮忙",
        "劳驾",
        "给我",
        "你好",
        "可不可以",
        "能不能",
        "能否",
        "可以",
        "不好意思",
        "please ",
        "kindly ",
        "could you ",
        "can you ",
        "would you ",
        "will you ",
        "hey ",
        "ok ",
        "okay ",
        "hi ",
    ];
    const BACK: &[&str] = &[
        "谢谢你",
        "谢谢",
        "好吗",
        "可以吗",
        "行吗",
        "一下",
        "吧",
        "吗",
        "哦",
        "呀",
        "啊",
        "啦",
        "呗",
        " please",
        " thanks",
        " thank you",
        " now",
        " for me",
        "拜托",
    ];
    let is_mark =
        |c: char| c.is_whitespace() || matches!(c, '。' | '.' | '!' | '?' | ',' | '、' | '~' | ';' | '…' | ':');
    let mut rest = text.trim_matches(is_mark);
    loop {
        let before = rest;
        for word in FRONT {
            // 可以 and 能 are only polite in front of more
            rest = rest
                .strip_prefix(word)
                .filter(|r| !r.trim_matches(is_mark).is_empty())
                .unwrap_or(rest)
                .trim_start_matches(is_mark);
        }
        for word in BACK {
            rest = rest
                .strip_suffix(word)
                .filter(|r| !r.trim_matches(is_mark).is_empty())
                .unwrap_or(rest)
                .trim_end_matches(is_mark);
        }
        if rest == before {
            return rest.to_owned();
        }
    }
}

/// Takes `<time>后` from the front or `after <time>` from either end. `None` when a time stands
/// there that does not fit the form, so that no rule goes on without the condition.
fn take_leading_or_trailing_time(text: &str) -> Option<(String, Option<TimeOfDay>)> {
    let chars: Vec<char> = text.chars().collect();
    if let Some((time, used)) = leading_time(&chars) {
        let rest: String = chars[used..].iter().collect();
        let rest = rest.trim_start();
        let rest = ["以后", "之后", "后"].iter().find_map(|w| rest.strip_prefix(w))?;
        return Some((rest.trim_start_matches([' ', ',', '、']).to_owned(), Some(time)));
    }
    if let Some(at) = text.rfind("after ") {
        let tail: Vec<char> = text[at + "after ".len()..].trim_start().chars().collect();
        let (time, used) = leading_time(&tail)?;
        let behind: String = tail[used..].iter().collect();
        let behind = behind.trim_start_matches([' ', ',']);
        let front = text[..at].trim_end_matches([' ', ',']);
        return match (front.is_empty(), behind.is_empty()) {
            (true, false) => Some((behind.to_owned(), Some(time))),
            (false, true) => Some((front.to_owned(), Some(time))),
            _ => None,
        };
    }
    Some((text.to_owned(), None))
}

#[cfg(test)]
mod tests {
    use super::super::guard::UserInput;
    use super::super::registry::Registry;
    use super::*;

    fn rule(text: &str) -> Option<Candidate> {
        let registry = Registry::embedded().unwrap();
        let names = Names::new(&registry, []);
        read(&UserInput::new(text).guard().unwrap(), &names)
    }

    #[track_caller]
    fn check(text: &str, alias: &str, action: Action) -> CandidateParams {
        let candidate = rule(text).unwrap_or_else(|| panic!("no rule for {text}"));
        assert_eq!((candidate.device_alias.as_deref(), candidate.action), (Some(alias), action), "{text}");
        candidate.params
    }

    #[test]
    fn chinese_commands() {
        check("把客厅灯关掉", "客厅灯", Action::TurnOff);
        check("请帮我打开厨房灯。", "厨房灯", Action::TurnOn);
        check("麻烦把走廊灯打开一下，谢谢！", "走廊灯", Action::TurnOn);
        check("能不能关一下客厅灯吗".replace("一下", "").as_str(), "客厅灯", Action::TurnOff);
        check("打开大门门锁", "大门门锁", Action::Unlock);
        check("锁上大门门锁", "大门门锁", Action::Lock);
        check("把大门门锁解锁", "大门门锁", Action::Unlock);
        check("拉上客厅窗帘", "客厅窗帘", Action::Close);
        check("把过道灯再调亮一点", "过道灯", Action::IncreaseBrightness);
        assert_eq!(check("把走廊灯的亮度调到三十%", "走廊灯", Action::SetBrightness).brightness, Some(30));
        assert_eq!(check("走廊灯调到百分之四十", "走廊灯", Action::SetBrightness).brightness, Some(40));
        assert_eq!(check("把卧室空调调到零下5度", "卧室空调", Action::SetTemperature).temperature, Some(-5));
        assert_eq!(check("把卧室空调切换到制冷模式", "卧室空调", Action::SetMode).mode.as_deref(), Some("制冷"));
        let params = check("晚上九点半后，把走廊灯调到10%", "走廊灯", Action::SetBrightness);
        assert_eq!((params.brightness, params.time_after.as_deref()), (Some(10), Some("21:30")));
        check("打开书房灯", "书房灯", Action::TurnOn);
    }

    #[test]
    fn english_commands() {
        check("Turn off the living room light", "living room light", Action::TurnOff);
        check("could you switch the kitchen light on, please?", "kitchen light", Action::TurnOn);
        check("unlock the front door", "front door", Action::Unlock);
        check("close the living room curtain", "living room curtain", Action::Close);
        check("dim the bedside lamp", "bedside lamp", Action::DecreaseBrightness);
        check("make the bedside lamp a bit brighter", "bedside lamp", Action::IncreaseBrightness);
        assert_eq!(check("set the kitchen light to 40%", "kitchen light", Action::SetBrightness).brightness, Some(40));
        assert_eq!(
            check("dim the kitchen light to 15 percent", "kitchen light", Action::SetBrightness).brightness,
            Some(15)
        );
        assert_eq!(check("set the bedroom ac to 24", "bedroom ac", Action::SetTemperature).temperature, Some(24));
        assert_eq!(check("set the bedroom ac to 22°C", "bedroom ac", Action::SetTemperature).temperature, Some(22));
        assert_eq!(
            check("switch the bedroom ac to heat mode", "bedroom ac", Action::SetMode).mode.as_deref(),
            Some("heat")
        );
        let params = check("after 10 pm, turn on the hallway light", "hallway light", Action::TurnOn);
        assert_eq!(params.time_after.as_deref(), Some("22:00"));
        let params = check("turn on the hallway light after 22:30", "hallway light", Action::TurnOn);
        assert_eq!(params.time_after.as_deref(), Some("22:30"));
    }

    #[test]
    fn relative_commands() {
        for (text, alias, action) in [
            ("再暗一点", "relative:light", Action::DecreaseBrightness),
            ("再亮一点", "relative:light", Action::IncreaseBrightness),
            ("把刚才那个灯再调暗一点", "relative:light", Action::DecreaseBrightness),
            ("把刚才那个关掉", "relative:unknown", Action::TurnOff),
            ("关闭空调", "relative:air_conditioner", Action::TurnOff),
            ("把空调关掉", "relative:air_conditioner", Action::TurnOff),
            ("a bit brighter", "relative:light", Action::IncreaseBrightness),
            ("turn it off", "relative:unknown", Action::TurnOff),
        ] {
            let params = check(text, alias, action);
            assert_eq!(params.raw_value.as_deref(), Some(RELATIVE), "{text}");
        }
    }

    #[test]
    fn sentences_without_a_rule() {
        for text in ["你好", "今天天气怎么样", "open", "把", "打开水龙头的秘密", "tell me a joke", "十分钟后"]
        {
            assert_eq!(rule(text).filter(|c| c.device_type != DeviceType::Unknown || !c.is_relative()), None, "{text}");
        }
        // 300 % is no brightness; 10 点 is no time; both must not be read as something smaller
        assert_eq!(rule("把客厅灯调到300%"), None);
        assert_eq!(rule("晚上十点打开客厅灯"), None);
    }
}
