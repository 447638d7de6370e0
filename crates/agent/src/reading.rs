//! What the input itself says, found without any model.
//!
//! A [`Reading`] lists the devices, rooms, actions, numbers and times that stand in the text. It is
//! no command; it is the yardstick for candidates: a candidate may pick among the things that the
//! input says, never add one (`grounding`). It also finds what makes a text no command at all:
//! negation, "all", several commands, questions, conditions other than a clock time.

use std::collections::BTreeSet;

use super::guard::{GuardedInput, InputFlag};
use super::names::Names;
use super::numeral::leading_number;
use super::text::{Token, tokens};
use super::time_of_day::{TimeOfDay, leading_time};
use super::vocabulary::{Action, DeviceType, Mode, Room};

/// Facts of one input.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reading {
    /// What makes it no command, in the order of [`InputFlag`].
    pub(crate) flags: Vec<InputFlag>,
    /// Ids of the devices that it names.
    pub(crate) devices: BTreeSet<String>,
    /// Rooms named outside device names.
    pub(crate) rooms: BTreeSet<Room>,
    /// A room outside the vocabulary (书房, garage) is named.
    pub(crate) elsewhere: bool,
    /// Device types named by a bare noun.
    pub(crate) types: BTreeSet<DeviceType>,
    /// It refers back (刚才, it, 再 …).
    pub(crate) refers_back: bool,
    /// Actions that its words can mean.
    pub(crate) actions: BTreeSet<Action>,
    /// Numbers with %.
    pub(crate) percents: BTreeSet<i64>,
    /// Numbers with degrees.
    pub(crate) degrees: BTreeSet<i64>,
    /// Numbers with no unit.
    pub(crate) numbers: BTreeSet<i64>,
    /// Modes named.
    pub(crate) modes: BTreeSet<Mode>,
    /// "after" times.
    pub(crate) time_after: Option<TimeOfDay>,
}

/// Stands where something was read and taken out.
const TIME: char = '\u{1}';
const NUMBER: char = '\u{2}';
const DEVICE: char = '\u{3}';

/// Text that may stand directly before a device name, so that the name is the whole noun
/// ("书房摄像头" does not name "摄像头").
const BEFORE_HAN: &[&str] = &[
    "把", "将", "打开", "开启", "开", "关闭", "关掉", "关上", "关", "锁上", "锁", "解锁", "拉开", "拉上", "合上", "请",
    "我", "帮我", "的", "后", "和", "与", "跟", "及", "让", "给", "对", "使", "调亮", "调暗", "调", "设", "个", "有",
    "要", "别", "用", "都", "部", "下", "忙", "再", "才", "你", "快", "动", "闭", "现在",
];
/// Text that may stand directly after one.
const AFTER_HAN: &[&str] = &[
    "打", "开", "关", "调", "切", "设", "锁", "解", "再", "亮", "暗", "的", "到", "吧", "一", "和", "与", "跟", "及",
    "都", "变", "换", "拉", "合", "温", "给", "在", "是", "叫", "还", "不", "也", "吗", "全", "熄", "就", "请", "然",
    "谢", "别",
];
const BEFORE_WORDS: &[&str] = &[
    "the", "my", "our", "a", "on", "off", "lock", "unlock", "open", "close", "shut", "dim", "brighten", "darken",
    "set", "switch", "turn", "make", "put", "of", "start", "stop", "please", "and", "or", "adjust", "change", "is",
    "are", "with", "this", "that", "both", "all", "every", "each", "in", "for", "kill",
];
const AFTER_WORDS: &[&str] = &[
    "on", "off", "to", "up", "down", "please", "a", "brighter", "dimmer", "darker", "at", "now", "after", "and", "or",
    "mode", "in", "is", "when", "if", "before", "again", "then", "by", "of", "open", "closed", "locked", "for",
    "cooler", "warmer", "with", "using", "because", "without", "every", "until", "unless", "thanks", "thank",
];

impl Reading {
    /// Reads a guarded input with the names that devices have now.
    pub(crate) fn of(input: &GuardedInput, names: &Names<'_>) -> Self {
        let mut reading = Reading::default();
        let mut flags: BTreeSet<InputFlag> = input.flags().iter().copied().collect();
        let (text, times) = take_times(input.folded());
        let text = reading.take_numbers(&text);
        let tokens = tokens(&text);
        let rest = reading.take_devices(&tokens, names);
        reading.read_rooms_and_types(&rest);
        let words: Vec<&str> = rest.iter().map(|t| if let Token::Word(w) = t { w.as_str() } else { "" }).collect();
        let has = |list: &[&str]| words.iter().any(|w| list.contains(w));
        let han = han_text(&rest);
        let says = |list: &[&str]| list.iter().any(|p| han.contains(p));

        reading.read_actions(&rest, &words, &han);
        for word in words.iter().filter(|w| !w.is_empty()) {
            reading.modes.extend(Mode::from_text(word));
        }
        for (word, mode) in
            [("制冷", Mode::Cool), ("制热", Mode::Heat), ("除湿", Mode::Dry), ("送风", Mode::Fan), ("自动", Mode::Auto)]
        {
            if han.contains(word) {
                reading.modes.insert(mode);
            }
        }
        if !reading.modes.is_empty() {
            reading.actions.insert(Action::SetMode);
        }
        reading.refers_back = says(&["刚才", "刚刚", "那个", "这个", "它", "再", "继续"])
            || has(&["it", "that", "this", "again", "more", "bit", "brighter", "dimmer", "darker"])
            || (reading.devices.is_empty() && !reading.types.is_empty());

        if negated(&words, &han) {
            flags.insert(InputFlag::NegatedCommand);
        }
        if says(&["所有", "全部", "全屋", "全家", "整个", "每个", "每一", "每盏", "每间", "都", "一切", "统统", "通通"])
            || has(&["all", "every", "everything", "everywhere", "each", "both"])
        {
            flags.insert(InputFlag::AllTargets);
        }
        let on = reading.actions.contains(&Action::TurnOn);
        let off = reading.actions.contains(&Action::TurnOff);
        // "打开空调调到26度" is two commands as well: one of them would be dropped silently.
        let valued = !reading.percents.is_empty()
            || !reading.degrees.is_empty()
            || !reading.numbers.is_empty()
            || !reading.modes.is_empty();
        let opposite = (on && off)
            || ((on || off) && valued)
            || (reading.actions.contains(&Action::IncreaseBrightness)
                && reading.actions.contains(&Action::DecreaseBrightness));
        if reading.devices.len() > 1 || opposite || reading.percents.len() > 1 || reading.degrees.len() > 1 {
            flags.insert(InputFlag::SeveralCommands);
        }
        if is_question(&words, &han) {
            flags.insert(InputFlag::Question);
        }
        if times.unsupported || unsupported_condition(&words, &han) {
            flags.insert(InputFlag::UnsupportedCondition);
        }
        reading.time_after = times.after;
        reading.flags = flags.into_iter().collect();
        reading
    }

    /// Takes numbers out: with %, with degrees, without unit.
    fn take_numbers(&mut self, text: &str) -> String {
        let chars: Vec<char> = text.chars().collect();
        let mut out = String::with_capacity(text.len());
        let mut at = 0;
        while at < chars.len() {
            let rest = &chars[at..];
            let hundredths = rest.starts_with(&['百', '分', '之']);
            let start = if hundredths { 3 } else { 0 };
            let inside_word = at > 0 && chars[at - 1].is_ascii_alphanumeric();
            let number = if inside_word && !hundredths { None } else { leading_number(&rest[start..]) };
            let Some((value, used)) = number else {
                // digits too long to be a number must not leave a shorter number behind
                let run = chars[at..].iter().take_while(|c| c.is_ascii_digit()).count().max(1);
                out.extend(&chars[at..at + run]);
                at += run;
                continue;
            };
            let end = start + used;
            let tail: String = rest[end..].iter().collect();
            let unit = tail.trim_start();
            let value = i64::from(value);
            let digits = rest[start].is_ascii_digit();
            let starts_word = |word: &str| {
                unit.strip_prefix(word).is_some_and(|after| !after.starts_with(|c: char| c.is_ascii_alphanumeric()))
            };
            let minus =
                out.trim_end().ends_with('-') || out.trim_end().ends_with("零下") || out.trim_end().ends_with("minus");
            let signed = if minus { -value } else { value };
            if hundredths || unit.starts_with('%') || starts_word("percent") {
                self.percents.insert(signed);
            } else if unit.starts_with('度')
                || unit.starts_with("摄氏")
                || unit.starts_with('°')
                || starts_word("degrees")
                || starts_word("degree")
                || starts_word("c")
                || starts_word("celsius")
            {
                self.degrees.insert(signed);
            } else if digits {
                self.numbers.insert(signed);
            } else {
                // a Chinese numeral without a unit is as a rule no number (一点, 一下)
                out.extend(&rest[..end]);
                at += end;
                continue;
            }
            out.push(NUMBER);
            at += end;
        }
        out
    }

    /// Finds device names that stand as whole nouns; returns the tokens with a placeholder for each.
    fn take_devices(&mut self, tokens: &[Token], names: &Names<'_>) -> Vec<Token> {
        let mut rest: Vec<Token> = Vec::with_capacity(tokens.len());
        let mut at = 0;
        while at < tokens.len() {
            let longest = names
                .keys()
                .filter_map(|(key, id)| match_key(&tokens[at..], key).map(|used| (used, id)))
                .max_by_key(|(used, _)| *used);
            match longest {
                Some((used, id)) if bounded_before(&rest) && bounded_after(&tokens[at + used..], names) => {
                    self.devices.insert(id.to_owned());
                    rest.push(Token::Mark(DEVICE));
                    at += used;
                }
                _ => {
                    rest.push(tokens[at].clone());
                    at += 1;
                }
            }
        }
        rest
    }

    fn read_rooms_and_types(&mut self, rest: &[Token]) {
        const ROOMS: &[(&[&str], Room)] = &[
            (&["客厅", "livingroom", "lounge"], Room::LivingRoom),
            (&["卧室", "主卧", "睡房", "bedroom"], Room::Bedroom),
            (&["走廊", "玄关", "过道", "hallway", "corridor", "hall"], Room::Hallway),
            (&["厨房", "kitchen"], Room::Kitchen),
            (&["浴室", "卫生间", "洗手间", "bathroom"], Room::Bathroom),
            (&["入户门", "前门", "大门", "门口", "entrance", "frontdoor", "porch"], Room::Entrance),
        ];
        const ELSEWHERE: &[&str] = &[
            "书房",
            "阳台",
            "车库",
            "儿童房",
            "客房",
            "次卧",
            "餐厅",
            "地下室",
            "花园",
            "院子",
            "阁楼",
            "储藏室",
            "办公室",
            "后门",
            "楼上",
            "楼下",
            "study",
            "office",
            "garage",
            "balcony",
            "guest",
            "basement",
            "garden",
            "attic",
            "diningroom",
            "nursery",
            "backdoor",
            "upstairs",
            "downstairs",
            "shed",
            "cellar",
            "neighbour",
            "neighbor",
            "neighbours",
            "neighbors",
        ];
        const TYPES: &[(&[&str], DeviceType)] = &[
            (&["空调", "airconditioner", "aircon", "ac"], DeviceType::AirConditioner),
            (&["灯", "light", "lights", "lamp", "lamps"], DeviceType::Light),
            (&["窗帘", "curtain", "curtains", "blinds"], DeviceType::Curtain),
            (&["摄像头", "camera", "cameras"], DeviceType::Camera),
            (&["门锁", "门", "锁", "lock", "door"], DeviceType::Lock),
            (&["燃气", "gas"], DeviceType::GasDevice),
        ];
        let mut after_room = false;
        let mut at = 0;
        while at < rest.len() {
            let tail = &rest[at..];
            if let Some(used) = ELSEWHERE.iter().filter_map(|w| match_key(tail, w)).max() {
                self.elsewhere = true;
                after_room = true;
                at += used;
                continue;
            }
            let room = ROOMS.iter().find_map(|(words, room)| {
                words.iter().filter_map(|w| match_key(tail, w)).max().map(|used| (used, *room))
            });
            if let Some((used, room)) = room {
                self.rooms.insert(room);
                after_room = true;
                at += used;
                continue;
            }
            let kind = TYPES.iter().find_map(|(words, kind)| {
                words.iter().filter_map(|w| match_key(tail, w)).max().map(|used| (used, *kind))
            });
            match kind {
                Some((used, kind))
                    if (after_room || bounded_before(&rest[..at])) && plain_after(&rest[at + used..]) =>
                {
                    // "lock" before a noun is the verb
                    let verb = kind == DeviceType::Lock
                        && matches!(&rest[at], Token::Word(w) if w == "lock")
                        && rest.get(at + used).is_some();
                    if !verb {
                        self.types.insert(kind);
                    }
                    at += used;
                }
                _ => at += 1,
            }
            after_room = false;
        }
    }

    fn read_actions(&mut self, rest: &[Token], words: &[&str], han: &str) {
        let has = |list: &[&str]| words.iter().any(|w| list.contains(w));
        let mut plain = han.to_owned();
        for word in ["开关", "关于", "关心", "有关", "离开", "开着", "关着", "开了没", "关了没", "公开", "开心", "门锁"]
        {
            plain = plain.replace(word, "\u{4}");
        }
        // "on" is a switch word after a verb or a name ("turn on", "turn X on"), not a preposition
        let on = words.iter().enumerate().any(|(at, word)| {
            *word == "on" && {
                let previous = at.checked_sub(1).map(|i| &rest[i]);
                let verb = matches!(previous, Some(Token::Word(w)) if matches!(w.as_str(), "turn" | "switch" | "power" | "put"));
                let name = matches!(previous, Some(Token::Mark(DEVICE)))
                    || matches!(previous, Some(Token::Word(w)) if matches!(w.as_str(), "it" | "that" | "light" | "lights" | "ac" | "lamp" | "camera" | "conditioner"));
                verb || (name && !matches!(rest.get(at + 1), Some(Token::Word(w)) if w == "the"))
            }
        });
        let opens = plain.contains('开') || plain.contains("启动");
        let closes = ["关", "熄", "合上", "拉上"].iter().any(|p| plain.contains(p));
        if opens || on || has(&["open", "start", "enable", "activate", "unlock", "raise"]) || plain.contains("解锁") {
            self.actions.extend([Action::TurnOn, Action::Open, Action::Unlock]);
        }
        if closes || has(&["off", "close", "shut", "stop", "disable", "deactivate", "lock"]) {
            self.actions.extend([Action::TurnOff, Action::Close, Action::Lock]);
        }
        let locks = plain.replace("解锁", "\u{4}").replace("开锁", "\u{4}");
        if locks.contains("锁上")
            || locks.contains("锁住")
            || locks.contains("上锁")
            || locks.ends_with('锁')
            || locks.contains("锁\u{3}")
        {
            self.actions.extend([Action::TurnOff, Action::Close, Action::Lock]);
        }
        if plain.contains('亮') && !plain.contains("亮度") || has(&["brighten", "brighter"]) {
            self.actions.insert(Action::IncreaseBrightness);
        }
        if plain.contains('暗') || has(&["dim", "dimmer", "darken", "darker"]) {
            self.actions.insert(Action::DecreaseBrightness);
        }
        if !self.percents.is_empty() || !self.numbers.is_empty() {
            // "dim to 15 %" is a setting, not a step
            self.actions.remove(&Action::IncreaseBrightness);
            self.actions.remove(&Action::DecreaseBrightness);
            self.actions.insert(Action::SetBrightness);
        }
        if !self.degrees.is_empty() || !self.numbers.is_empty() {
            self.actions.insert(Action::SetTemperature);
        }
    }
}

struct Times {
    after: Option<TimeOfDay>,
    unsupported: bool,
}

/// Takes clock times out. Only one time, and only "after" it, is a condition that can be carried.
fn take_times(folded: &str) -> (String, Times) {
    let chars: Vec<char> = folded.chars().collect();
    let mut out = String::with_capacity(folded.len());
    let mut times = Times { after: None, unsupported: false };
    let mut at = 0;
    while at < chars.len() {
        let inside_number = at > 0
            && (chars[at - 1].is_ascii_alphanumeric() || chars[at - 1] == ':')
            && chars[at].is_ascii_alphanumeric();
        let found = if inside_number { None } else { leading_time(&chars[at..]) };
        let Some((time, used)) = found else {
            // an hour that could not be read: 十点, 10点; 一点 alone is "a bit"
            if !inside_number
                && let Some((_, digits)) = leading_number(&chars[at..])
                && chars.get(at + digits) == Some(&'点')
                && !(digits == 1 && chars[at] == '一')
            {
                times.unsupported = true;
            }
            out.push(chars[at]);
            at += 1;
            continue;
        };
        let tail: String = chars[at + used..].iter().collect();
        let after = ["后", "以后", "之后"].iter().any(|w| tail.trim_start().starts_with(w))
            || out.trim_end().ends_with("after");
        if times.after.is_some() || !after {
            times.unsupported = true;
        }
        times.after = times.after.or(Some(time));
        out.push(TIME);
        at += used;
    }
    (out, times)
}

/// How many tokens spell the key; 的 between them does not count, nor does spacing.
fn match_key(tokens: &[Token], key: &str) -> Option<usize> {
    let mut left = key;
    for (index, token) in tokens.iter().enumerate() {
        if index > 0 && *token == Token::Letter('的') {
            continue;
        }
        left = left.strip_prefix(token.text().as_str())?;
        if left.is_empty() {
            return Some(index + 1);
        }
    }
    None
}

fn bounded_before(before: &[Token]) -> bool {
    match before.last() {
        None | Some(Token::Mark(_)) => true,
        Some(Token::Word(word)) => BEFORE_WORDS.contains(&word.as_str()),
        Some(Token::Letter(_)) => {
            let text = han_text(&before[before.len().saturating_sub(3)..]);
            // 的 binds to what stands before it (客厅的, 书房的): rooms are read and checked there
            BEFORE_HAN.iter().any(|w| text.ends_with(w))
        }
    }
}

fn bounded_after(after: &[Token], names: &Names<'_>) -> bool {
    plain_after(after) || names.keys().any(|(key, _)| match_key(after, key).is_some())
}

fn plain_after(after: &[Token]) -> bool {
    match after.first() {
        None | Some(Token::Mark(_)) => true,
        Some(Token::Word(word)) => AFTER_WORDS.contains(&word.as_str()),
        Some(Token::Letter(_)) => {
            let text = han_text(&after[..after.len().min(2)]);
            AFTER_HAN.iter().any(|w| text.starts_with(w))
        }
    }
}

/// All tokens in one string, words surrounded by spaces.
fn han_text(tokens: &[Token]) -> String {
    let mut out = String::new();
    for token in tokens {
        match token {
            Token::Word(word) => {
                out.push(' ');
                out.push_str(word);
                out.push(' ');
            }
            Token::Letter(c) | Token::Mark(c) => out.push(*c),
        }
    }
    out
}

fn negated(words: &[&str], han: &str) -> bool {
    let mut plain = han.to_owned();
    for word in [
        "特别",
        "分别",
        "别墅",
        "区别",
        "级别",
        "别的",
        "别人",
        "告别",
        "可不可以",
        "能不能",
        "是不是",
        "要不要",
        "不过",
        "不好意思",
        "差不多",
        "对不起",
    ] {
        plain = plain.replace(word, "\u{4}");
    }
    plain.contains(['不', '别', '勿', '莫', '甭', '禁', '休'])
        || ["无需", "没必要", "没让", "停止"].iter().any(|w| plain.contains(w))
        || words.iter().any(|w| {
            matches!(
                *w,
                "dont" | "not" | "never" | "no" | "without" | "avoid" | "nobody" | "none" | "cannot" | "refrain"
            ) || w.ends_with("n't")
        })
}

fn is_question(words: &[&str], han: &str) -> bool {
    let spoken: Vec<&str> = words.iter().copied().filter(|w| !w.is_empty()).collect();
    let bare = han.trim_end_matches(|c: char| !c.is_alphanumeric());
    let polite =
        ["可以", "能", "可不可以", "能不能", "麻烦", "请", "好", "帮"].iter().any(|w| bare.trim_start().starts_with(w));
    let asks = ["吗", "么", "呢", "没有", "了没"].iter().any(|w| bare.ends_with(w));
    (asks && !polite)
        || ["是不是", "有没有", "是否", "为什么", "怎么", "多少", "几度", "什么", "谁", "哪"]
            .iter()
            .any(|w| han.contains(w))
        || spoken.first().is_some_and(|w| {
            matches!(
                *w,
                "is" | "are"
                    | "was"
                    | "were"
                    | "what"
                    | "why"
                    | "how"
                    | "did"
                    | "does"
                    | "do"
                    | "who"
                    | "when"
                    | "which"
                    | "where"
                    | "has"
                    | "have"
                    | "should"
            )
        }) && !matches!(spoken.as_slice(), ["do", "not", ..])
}

fn unsupported_condition(words: &[&str], han: &str) -> bool {
    // A standing wish (以后…, from now on …) is no command for now.
    let bare = han.trim_start();
    let standing = ["以后", "今后", "记住", "从现在起"].iter().any(|w| bare.starts_with(w))
        || words.windows(3).any(|w| w == ["from", "now", "on"])
        || words.first() == Some(&"remember");
    standing
        || [
            "如果",
            "要是",
            "假如",
            "若是",
            "分钟",
            "小时",
            "秒",
            "明天",
            "明早",
            "明晚",
            "每天",
            "每晚",
            "每周",
            "工作日",
            "周末",
            "的时候",
            "之前",
            "以前",
            "直到",
            "等到",
            "除非",
            "一旦",
            "\u{1}前",
            "稍后",
            "过一会",
            "待会",
            "等会",
        ]
        .iter()
        .any(|w| han.contains(w))
        || words.iter().any(|w| {
            matches!(
                *w,
                "if" | "when"
                    | "unless"
                    | "until"
                    | "before"
                    | "tomorrow"
                    | "daily"
                    | "minutes"
                    | "minute"
                    | "hours"
                    | "hour"
                    | "seconds"
                    | "later"
                    | "while"
                    | "once"
                    | "tonight"
                    | "whenever"
                    | "sunset"
                    | "sunrise"
                    | "weekdays"
                    | "every"
            )
        })
}

#[cfg(test)]
mod tests {
    use super::super::guard::UserInput;
    use super::super::registry::Registry;
    use super::*;

    fn read(text: &str) -> Reading {
        let registry = Registry::embedded().unwrap();
        let names = Names::new(&registry, []);
        Reading::of(&UserInput::new(text).guard().unwrap(), &names)
    }

    fn devices(text: &str) -> Vec<String> {
        read(text).devices.into_iter().collect()
    }

    #[test]
    fn device_names_are_whole_nouns() {
        assert_eq!(devices("把客厅灯关掉"), ["lounge_ceiling_light"]);
        assert_eq!(devices("把客厅的灯关掉"), ["lounge_ceiling_light"]);
        assert_eq!(devices("please turn the Living Room light off"), ["lounge_ceiling_light"]);
        assert_eq!(devices("打开过道灯带"), ["corridor_strip"]);
        for text in
            ["打开书房客厅灯", "打开客厅灯箱", "turn on the guest living room light", "turn on the kitchen light strip"]
        {
            assert_eq!(devices(text), Vec::<String>::new(), "{text}");
        }
    }

    /// W7: negation is found whatever a model makes of it; words that only contain 别 or 不 are not.
    #[test]
    fn w7_negation() {
        for text in [
            "不要打开客厅灯",
            "别开厨房灯",
            "请勿打开大门门锁",
            "don't turn on the kitchen light",
            "do not unlock the front door",
            "never open the front door",
            "Don’t turn on the kitchen light",
            "先别关走廊灯",
            "我不想开空调",
        ] {
            assert!(read(text).flags.contains(&InputFlag::NegatedCommand), "{text}");
        }
        for text in ["能不能打开客厅灯", "打开别墅灯", "不好意思，打开厨房灯", "turn on the kitchen light now"]
        {
            assert!(!read(text).flags.contains(&InputFlag::NegatedCommand), "{text}");
        }
    }

    /// W15: "all" and several targets.
    #[test]
    fn w15_all_and_several() {
        for text in ["关闭所有灯", "把灯都关掉", "turn off all the lights", "turn everything off", "打开每盏灯"]
        {
            assert!(read(text).flags.contains(&InputFlag::AllTargets), "{text}");
        }
        for text in ["打开客厅灯和厨房灯", "turn on the kitchen light and the hallway light", "打开客厅灯然后关掉"]
        {
            assert!(read(text).flags.contains(&InputFlag::SeveralCommands), "{text}");
        }
    }

    #[test]
    fn questions_and_conditions() {
        for text in ["客厅灯开着吗", "is the kitchen light on?", "现在卧室多少度"] {
            assert!(read(text).flags.contains(&InputFlag::Question), "{text}");
        }
        for text in ["可以打开客厅灯吗", "could you turn on the kitchen light?"] {
            assert!(!read(text).flags.contains(&InputFlag::Question), "{text}");
        }
        for text in [
            "十分钟后打开客厅灯",
            "如果下雨就关闭客厅窗帘",
            "十点后打开客厅灯",
            "晚上十点前打开客厅灯",
            "turn on the kitchen light if I am late",
            "晚上十点打开客厅灯",
            "turn off the kitchen light in 5 minutes",
        ] {
            assert!(read(text).flags.contains(&InputFlag::UnsupportedCondition), "{text}");
        }
        assert_eq!(read("晚上十点后打开客厅灯").time_after.unwrap().to_string(), "22:00");
        assert_eq!(read("after 10 pm turn on the kitchen light").time_after.unwrap().to_string(), "22:00");
        assert!(read("晚上十点后把走廊灯调到30%").flags.is_empty());
        assert!(read("把走廊灯再调亮一点").flags.is_empty());
    }

    #[test]
    fn numbers_keep_their_units() {
        let r = read("把走廊灯调到百分之三十");
        assert_eq!(r.percents.into_iter().collect::<Vec<_>>(), [30]);
        let r = read("set the bedroom ac to 26 degrees");
        assert_eq!(r.degrees.into_iter().collect::<Vec<_>>(), [26]);
        let r = read("晚上十点后把卧室空调调到二十六度");
        assert_eq!((r.degrees.into_iter().collect::<Vec<_>>(), r.numbers.len()), (vec![26], 0));
        let r = read("set the kitchen light to 1234567%");
        assert!(r.percents.is_empty() && r.numbers.is_empty());
        let r = read("把卧室空调调到-5度");
        assert_eq!(r.degrees.into_iter().collect::<Vec<_>>(), [-5]);
    }

    #[test]
    fn actions_come_from_words() {
        let unlock = read("打开大门门锁").actions;
        assert!(unlock.contains(&Action::Unlock) && !unlock.contains(&Action::Lock));
        let lock = read("锁上大门门锁").actions;
        assert!(lock.contains(&Action::Lock) && !lock.contains(&Action::Unlock));
        let off = read("turn off the light on the porch").actions;
        assert!(off.contains(&Action::TurnOff) && !off.contains(&Action::TurnOn));
        assert!(read("把卧室空调调到26度").actions.iter().eq([Action::SetTemperature].iter()));
    }

    #[test]
    fn rooms_outside_names() {
        assert!(read("打开书房灯").elsewhere);
        assert!(read("打开卧室的走廊灯").rooms.contains(&Room::Bedroom));
        assert!(read("打开客厅灯").rooms.is_empty());
    }
}
