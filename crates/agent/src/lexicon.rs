//! The words that commands are made of, in Chinese and English, and what each one is.

use std::sync::OnceLock;

use super::spans::{Token, tokens};
use super::vocabulary::{DeviceType, Mode, Room};

/// A word of the command language. The patterns of `sentence` name them in lower case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    // English verbs
    Turn,
    Put,
    Pull,
    Set,
    Make,
    Raise,
    Lower,
    Dim,
    Brighten,
    Start,
    Kill,
    LightUp,
    Open,
    Close,
    Lock,
    LockZh,
    LockBare,
    Unlock,
    // … and what goes with them
    On,
    Off,
    Up,
    Down,
    Back,
    Closed,
    Brighter,
    Dimmer,
    Bright,
    To,
    At,
    In,
    Of,
    Det,
    Bit,
    Here,
    IAmIn,
    Brightness,
    Temperature,
    ModeNoun,
    // Chinese
    Ba,
    De,
    OnLe,
    OffLe,
    LockLe,
    Again,
    Use,
    SwitchOn,
    SwitchOff,
    DrawOpen,
    DrawClose,
    SetTo,
    OnTo,
    Until,
    Adjust,
    MakeBrighter,
    MakeDimmer,
    BrightHan,
    DarkHan,
    RaiseZh,
    LowerZh,
}

/// What a phrase is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    Word(Word),
    Room(Room),
    /// A room that no device stands in.
    Elsewhere,
    Type(DeviceType),
    /// Room and type in one word.
    Noun(Room, DeviceType),
    /// it, 那个.
    Refer,
    Mode(Mode),
}

struct Phrase {
    words: Vec<String>,
    entry: Entry,
}

const WORDS: &[(Word, &[&str])] = &[
    (Word::Turn, &["turn", "switch", "power", "flip", "flick", "pop"]),
    (Word::Put, &["put", "bring"]),
    (Word::Pull, &["pull", "draw", "roll"]),
    (Word::Set, &["set", "adjust", "change"]),
    (Word::Make, &["make"]),
    (Word::Raise, &["raise", "increase"]),
    (Word::Lower, &["lower", "decrease", "reduce"]),
    (Word::Dim, &["dim", "darken"]),
    (Word::Brighten, &["brighten"]),
    (Word::Start, &["start", "activate", "enable"]),
    (Word::Kill, &["kill", "shut off", "shut down", "turn out", "put out", "deactivate", "disable"]),
    (Word::LightUp, &["light up", "illuminate"]),
    (Word::Open, &["open"]),
    (Word::Close, &["close", "shut"]),
    (Word::Lock, &["lock"]),
    (Word::LockZh, &["锁上", "锁好", "锁住", "上锁", "锁一下", "锁下", "锁上一下"]),
    (Word::LockBare, &["锁"]),
    (Word::Unlock, &["unlock", "解锁", "开锁", "解开"]),
    (Word::On, &["on"]),
    (Word::Off, &["off"]),
    (Word::Up, &["up"]),
    (Word::Down, &["down"]),
    (Word::Back, &["back"]),
    (Word::Closed, &["closed", "shut"]),
    (Word::Brighter, &["brighter"]),
    (Word::Dimmer, &["dimmer", "darker"]),
    (Word::Bright, &["bright"]),
    (Word::To, &["to"]),
    (Word::At, &["at"]),
    (Word::In, &["in"]),
    (Word::Of, &["of"]),
    (Word::Det, &["the", "my", "our"]),
    (
        Word::Bit,
        &[
            "a bit",
            "a little",
            "a little bit",
            "slightly",
            "a tad",
            "一点",
            "一点儿",
            "一点点",
            "点",
            "点儿",
            "一些",
            "些",
            "一丢丢",
        ],
    ),
    (Word::Here, &["here", "in here", "这里的", "这儿的", "这边的"]),
    (Word::IAmIn, &["i'm in", "i am in", "im in", "我在"]),
    (Word::Brightness, &["brightness", "brightness level", "亮度", "灯光亮度"]),
    (Word::Temperature, &["temperature", "temp", "温度"]),
    (Word::ModeNoun, &["mode", "模式"]),
    (Word::Ba, &["把", "将"]),
    (Word::De, &["的", "里的", "里面的", "里"]),
    (Word::OnLe, &["开了"]),
    (Word::OffLe, &["关了", "熄了"]),
    (Word::LockLe, &["锁了"]),
    (Word::Again, &["再", "稍微"]),
    (Word::Use, &["用", "use"]),
    (Word::SwitchOn, &["打开", "开启", "开开", "开", "开下", "启动", "点亮", "打开下", "开起来", "亮起来"]),
    (Word::SwitchOff, &["关闭", "关掉", "关上", "关", "关下", "关关", "熄灭", "熄掉", "熄", "关掉下", "关起来"]),
    (Word::DrawOpen, &["拉开", "拉开下"]),
    (Word::DrawClose, &["拉上", "合上", "拉起来", "拉好"]),
    (
        Word::SetTo,
        &[
            "调到",
            "调至",
            "调成",
            "调为",
            "调节到",
            "调节成",
            "调节为",
            "调节至",
            "调整到",
            "调整为",
            "调整成",
            "调整至",
            "设为",
            "设成",
            "设到",
            "设置为",
            "设置成",
            "设置到",
            "设置在",
            "设定",
            "设置",
            "设定在",
            "设定为",
            "设定成",
            "设定到",
            "设在",
            "改成",
            "改为",
            "改到",
            "切到",
            "切成",
            "切换",
            "切换到",
            "切换成",
            "切换为",
            "切换至",
            "换到",
            "换成",
            "降到",
            "降至",
            "降低到",
            "降低至",
            "降为",
            "升到",
            "升至",
            "升高到",
            "提高到",
            "提升到",
            "调高到",
            "调高至",
            "调低到",
            "调低至",
            "调亮到",
            "调暗到",
            "调大到",
            "调小到",
            "加到",
            "减到",
            "弄到",
            "弄成",
        ],
    ),
    (Word::OnTo, &["开到", "开成"]),
    (Word::Until, &["到", "至"]),
    (Word::Adjust, &["调", "调节", "调整", "设置", "设定"]),
    (Word::MakeBrighter, &["调亮", "弄亮", "变亮", "加亮", "开亮"]),
    (Word::MakeDimmer, &["调暗", "弄暗", "变暗"]),
    (Word::BrightHan, &["亮"]),
    (Word::DarkHan, &["暗"]),
    (Word::RaiseZh, &["调高", "提高", "升高", "调大", "加大", "增加", "增大", "提升"]),
    (Word::LowerZh, &["调低", "降低", "减小", "减少", "调小", "减弱"]),
];

const ROOMS: &[(Room, &[&str])] = &[
    (Room::LivingRoom, &["客厅", "living room", "livingroom", "lounge"]),
    (Room::Bedroom, &["卧室", "主卧", "睡房", "bedroom"]),
    (Room::Hallway, &["走廊", "玄关", "过道", "hallway", "corridor", "hall"]),
    (Room::Kitchen, &["厨房", "kitchen"]),
    (Room::Bathroom, &["浴室", "卫生间", "洗手间", "bathroom"]),
    (Room::Entrance, &["入户门", "前门", "大门", "门口", "entrance", "porch"]),
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
    "dining room",
    "nursery",
    "back door",
    "upstairs",
    "downstairs",
    "shed",
    "cellar",
    "neighbour",
    "neighbor",
    "neighbours",
    "neighbors",
];

const TYPES: &[(DeviceType, &[&str])] = &[
    (
        DeviceType::AirConditioner,
        &["空调", "冷气", "air conditioner", "air conditioning", "aircon", "ac", "air con", "ac unit"],
    ),
    (DeviceType::Light, &["灯", "电灯", "灯光", "light", "lights", "lamp", "lamps"]),
    (DeviceType::Curtain, &["窗帘", "curtain", "curtains", "blinds", "blind", "drapes"]),
    (DeviceType::Camera, &["摄像头", "camera", "cameras"]),
    (DeviceType::Lock, &["门锁", "门", "锁", "lock", "door"]),
    (DeviceType::GasDevice, &["燃气", "gas"]),
    (DeviceType::Switch, &["开关"]),
];

const NOUNS: &[(Room, DeviceType, &[&str])] =
    &[(Room::Entrance, DeviceType::Lock, &["大门", "前门", "入户门", "front door", "大门的锁", "前门的锁"])];

const REFERS: &[&str] = &[
    "it",
    "that",
    "this",
    "that one",
    "this one",
    "它",
    "那个",
    "这个",
    "刚才那个",
    "刚刚那个",
    "刚才的那个",
    "刚才的",
    "刚刚的",
    "那盏",
    "这盏",
    "刚才那盏",
];

const MODES: &[(Mode, &[&str])] = &[
    (Mode::Cool, &["制冷", "cool", "cooling"]),
    (Mode::Heat, &["制热", "heat", "heating", "制暖"]),
    (Mode::Dry, &["除湿", "dry", "drying", "dehumidify", "抽湿"]),
    (Mode::Fan, &["送风", "fan", "fan only"]),
    (Mode::Auto, &["自动", "auto", "automatic"]),
];

fn phrases() -> &'static [Phrase] {
    static PHRASES: OnceLock<Vec<Phrase>> = OnceLock::new();
    PHRASES.get_or_init(|| {
        let mut all: Vec<Phrase> = Vec::new();
        let mut add = |list: &[&str], entry: Entry| {
            for phrase in list {
                all.push(Phrase { words: tokens(phrase).into_iter().map(|t| t.text).collect(), entry });
            }
        };
        for (word, list) in WORDS {
            add(list, Entry::Word(*word));
        }
        for (room, list) in ROOMS {
            add(list, Entry::Room(*room));
        }
        add(ELSEWHERE, Entry::Elsewhere);
        for (kind, list) in TYPES {
            add(list, Entry::Type(*kind));
        }
        for (room, kind, list) in NOUNS {
            add(list, Entry::Noun(*room, *kind));
        }
        add(REFERS, Entry::Refer);
        for (mode, list) in MODES {
            add(list, Entry::Mode(*mode));
        }
        all
    })
}

/// Everything that begins at the first token, with lengths, longest first.
pub(crate) fn entries_at(at: &[Token]) -> Vec<(usize, Entry)> {
    let mut found: Vec<(usize, Entry)> = phrases()
        .iter()
        .filter(|p| p.words.len() <= at.len() && p.words.iter().zip(at).all(|(word, token)| token.text == *word))
        .map(|p| (p.words.len(), p.entry))
        .collect();
    found.sort_by_key(|(used, _)| std::cmp::Reverse(*used));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_can_be_several_things() {
        let found = |text: &str| entries_at(&tokens(text));
        assert_eq!(found("lock"), [(1, Entry::Word(Word::Lock)), (1, Entry::Type(DeviceType::Lock))]);
        assert_eq!(found("调到三十")[0], (2, Entry::Word(Word::SetTo)));
        assert_eq!(found("nonsense"), []);
    }

    /// 'on' is not part of a phrase that reverses, and no phrase is listed twice for one meaning.
    #[test]
    fn no_phrase_has_the_same_meaning_twice() {
        let mut seen = std::collections::BTreeSet::new();
        for phrase in phrases() {
            assert!(!phrase.words.is_empty());
            assert!(seen.insert((phrase.words.clone(), format!("{:?}", phrase.entry))), "{:?}", phrase.words);
        }
    }
}
