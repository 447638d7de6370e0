//! What the input itself says, found without any model, with every character accounted for.
//!
//! A [`Reading`] is the yardstick for candidates (`grounding`): it holds the one command that the whole of the input is, if
//! it is one. The world is closed: a token that is not a name, a word of the command language, a value, a time or a filler
//! of the reviewed list is *unexplained*, and a command is allowed only if nothing is. Unexplained words beside a command
//! lead to a confirmation that names them if they are few, stand apart and are not cautions (`words`); else to a refusal.

use std::collections::BTreeSet;

use super::guard::{GuardedInput, InputFlag};
use super::lexicon::Entry;
use super::names::Names;
use super::sentence::{Command, Grammar, Item, Parse};
use super::spans::{Token, TokenKind, tokens};
use super::time_of_day::TimeOfDay;
use super::vocabulary::Room;
use super::words::{FillerKind, Words};

/// What the self-check of gate 5 takes away from the reader. Nothing, otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ReaderFault {
    /// A whole reader.
    #[default]
    None,
    /// Unexplained words are passed over.
    ClosedWorldOff,
    /// One more word counts as a filler.
    WiderFillers(&'static str),
    /// Whatever unit stands behind a number is passed over.
    UnitsIgnored,
}

/// Facts of one input.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reading {
    /// What makes it no command, in the order of [`InputFlag`].
    pub(crate) flags: Vec<InputFlag>,
    /// The one command that it is.
    pub(crate) command: Option<Command>,
    /// What nothing accounts for, as it stands there, run by run.
    pub(crate) unexplained: Vec<String>,
    /// Rooms named outside device names.
    pub(crate) rooms: BTreeSet<Room>,
    /// A room outside the vocabulary (书房, garage) is named.
    pub(crate) elsewhere: bool,
    /// Numbers that stand in it, for the search over candidates.
    pub(crate) numbers: BTreeSet<i64>,
}

/// Longest text that is read as a command, in tokens. Nobody says a longer one, and reading has a price.
const MAX_TOKENS: usize = 80;
/// Most tokens of any kind beside a command.
const MAX_ASIDE: usize = 8;
/// Most unexplained words beside a command that a person is asked about: more is a story, not a command.
const MAX_ASIDE_WORDS: usize = 3;
/// The same for Chinese characters.
const MAX_ASIDE_HAN: usize = 4;

impl Reading {
    /// Reads a guarded input with the names that devices have now.
    pub(crate) fn of(input: &GuardedInput, names: &Names<'_>) -> Self {
        Self::with_fault(input, names, ReaderFault::None)
    }

    /// [`Reading::of`] with a planted fault.
    pub(crate) fn with_fault(input: &GuardedInput, names: &Names<'_>, fault: ReaderFault) -> Self {
        let Ok(words) = Words::shared() else {
            // The embedded lists are tested; a reader without them understands nothing.
            return Reading { flags: vec![InputFlag::NotUnderstood], ..Reading::default() };
        };
        match fault {
            ReaderFault::WiderFillers(word) => read(input, names, &words.widened(word), fault),
            _ => read(input, names, words, fault),
        }
    }
}

fn read(input: &GuardedInput, names: &Names<'_>, words: &Words, fault: ReaderFault) -> Reading {
    let chars: Vec<char> = input.folded().chars().collect();
    let all = tokens(input.folded());
    let grammar = Grammar { words, names, chars: &chars, units_ignored: fault == ReaderFault::UnitsIgnored };
    let mut reading = Reading::default();
    let mut flags: BTreeSet<InputFlag> = input.flags().iter().copied().collect();
    let survey = Survey::of(&grammar, &all);
    reading.rooms = survey.rooms;
    reading.elsewhere = survey.elsewhere;
    reading.numbers = all.iter().filter(|t| t.kind == TokenKind::Digits).filter_map(|t| t.text.parse().ok()).collect();
    let kept: Vec<Token> = if fault == ReaderFault::ClosedWorldOff {
        all.iter().zip(&survey.unexplained).filter(|(_, u)| !**u).map(|(t, _)| t.clone()).collect()
    } else {
        all.clone()
    };
    let parse = if all.len() > MAX_TOKENS { Parse::Ambiguous } else { grammar.parse(&kept) };
    match parse {
        Parse::One(command) => {
            if digits_of_two_kinds(input.raw()) {
                flags.insert(InputFlag::UnclearValue);
            }
            reading.command = Some(command);
        }
        Parse::Ambiguous => {
            flags.insert(InputFlag::NotUnderstood);
        }
        Parse::Nothing => {
            flags.extend(words.cautions_in(&all, &survey.unexplained));
            if survey.asks {
                flags.insert(InputFlag::Question);
            }
            if survey.devices.len() > 1 {
                flags.insert(InputFlag::SeveralCommands);
            }
            reading.unexplained = runs(&all, &survey.unexplained);
            match aside(&grammar, &all, &survey.unexplained) {
                Some(command) if flags.is_empty() => reading.command = Some(command),
                _ => {
                    flags.insert(InputFlag::NotUnderstood);
                }
            }
        }
    }
    reading.flags = flags.into_iter().collect();
    reading
}

impl Reading {
    /// The time that the command is meant for.
    pub(crate) fn time_after(&self) -> Option<TimeOfDay> {
        self.command.as_ref().and_then(|c| c.time_after)
    }
}

/// What the tokens are, one by one, where they are not a whole.
struct Survey {
    unexplained: Vec<bool>,
    devices: BTreeSet<String>,
    rooms: BTreeSet<Room>,
    elsewhere: bool,
    /// It ends as a question that is not a request.
    asks: bool,
}

impl Survey {
    fn of(grammar: &Grammar<'_>, all: &[Token]) -> Self {
        let mut survey = Survey {
            unexplained: vec![true; all.len()],
            devices: BTreeSet::new(),
            rooms: BTreeSet::new(),
            elsewhere: false,
            asks: false,
        };
        let mut request = false;
        let mut at = 0;
        while at < all.len() {
            let items = grammar.items_at(all, at);
            // A filler is one only where it is nothing else, and a name before all.
            let Some((used, item)) = items.first() else {
                at += 1;
                continue;
            };
            match item {
                Item::Device(id) => {
                    survey.devices.insert(id.clone());
                }
                Item::Entry(Entry::Room(room) | Entry::Noun(room, _)) => {
                    survey.rooms.insert(*room);
                }
                Item::Entry(Entry::Elsewhere) => survey.elsewhere = true,
                Item::Ask | Item::Filler(_, FillerKind::Asks) => survey.asks = true,
                Item::Filler(_, FillerKind::Request | FillerKind::Half) => request = true,
                _ => {}
            }
            survey.unexplained[at..at + used].fill(false);
            at += used;
        }
        survey.asks &= !request;
        survey
    }
}

/// Unexplained tokens as the input spells them, neighbours together.
fn runs(all: &[Token], unexplained: &[bool]) -> Vec<String> {
    let mut runs: Vec<String> = Vec::new();
    for (at, token) in all.iter().enumerate().filter(|(at, _)| unexplained[*at]) {
        match runs.last_mut() {
            Some(run) if at > 0 && unexplained[at - 1] => {
                if token.spaced {
                    run.push(' ');
                }
                run.push_str(&token.text);
            }
            _ => runs.push(token.text.clone()),
        }
    }
    runs
}

/// The command that is left when what stands before and behind it is set aside: a few words that are not part of it.
/// Before the command they must not touch a noun or a value; behind it a comma or a full stop must stand before them.
fn aside(grammar: &Grammar<'_>, all: &[Token], unexplained: &[bool]) -> Option<Command> {
    let few = |from: usize, to: usize| {
        let range = &all[from..to];
        let count = |kind| range.iter().zip(&unexplained[from..to]).filter(|(t, u)| **u && t.kind == kind).count();
        let (words, han) = (count(TokenKind::Word), count(TokenKind::Han));
        range.len() <= MAX_ASIDE && words <= MAX_ASIDE_WORDS && han <= MAX_ASIDE_HAN && (words == 0 || han == 0)
    };
    let divides = |t: &Token| matches!(t.text.as_str(), "," | "." | "!" | "、" | "。" | ";");
    let first = unexplained.iter().position(|u| *u)?;
    let last = unexplained.iter().rposition(|u| *u)?;
    let mut cuts: Vec<(usize, usize)> = Vec::new();
    // In front: up to the last unexplained token before the command; behind: from the comma before the first one.
    let fronts = std::iter::once(0).chain((1..=all.len()).filter(|end| unexplained[end - 1]));
    for front in fronts {
        let backs = std::iter::once(all.len())
            .chain((front..all.len()).filter(|at| divides(&all[*at]) && all.get(at + 1).is_some()));
        cuts.extend(backs.map(|back| (front, back)));
    }
    for (front, back) in cuts {
        let covered = (first >= back || first < front) && (last >= back || last < front);
        let inner_explained = !unexplained[front.min(back)..back].iter().any(|u| *u);
        if !covered || !inner_explained || front >= back || !few(0, front) || !few(back, all.len()) {
            continue;
        }
        let core = &all[front..back];
        // Set apart by a comma, or one English word before a verb: Chinese characters before a verb are as a rule its
        // subject, its time or its manner.
        if front > 0 && !core.first().is_some_and(divides) {
            let words = (0..front).filter(|at| unexplained[*at] && all[*at].kind == TokenKind::Word).count();
            let noun = grammar.items_at(all, front).first().is_some_and(|(_, item)| {
                matches!(
                    item,
                    Item::Device(_)
                        | Item::Value(_)
                        | Item::Time(_)
                        | Item::Entry(
                            Entry::Room(_)
                                | Entry::Type(_)
                                | Entry::Noun(..)
                                | Entry::Elsewhere
                                | Entry::Mode(_)
                                | Entry::Refer
                                | Entry::Word(super::lexicon::Word::Det)
                        )
                )
            });
            let han = (0..front).any(|at| unexplained[at] && all[at].kind == TokenKind::Han);
            if noun || han || words > 1 {
                continue;
            }
        }
        if let Parse::One(command) = grammar.parse(core) {
            // A condition is whole, or it is not one: words that nobody understood may belong to it.
            return command.time_after.is_none().then_some(command);
        }
    }
    None
}

/// Digits that are made plain by normalization (²³, ㉒, ③) or of two widths in one number (4０): nobody writes a value so.
fn digits_of_two_kinds(raw: &str) -> bool {
    use unicode_normalization::UnicodeNormalization as _;
    let wide = |c: char| matches!(c, '\u{FF10}'..='\u{FF19}');
    let chars: Vec<char> = raw.chars().collect();
    let mixed =
        chars.windows(2).any(|w| (w[0].is_ascii_digit() && wide(w[1])) || (wide(w[0]) && w[1].is_ascii_digit()));
    mixed
        || chars
            .iter()
            .any(|c| !c.is_ascii_digit() && !wide(*c) && std::iter::once(*c).nfkc().any(|c| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::super::guard::UserInput;
    use super::super::registry::Registry;
    use super::super::sentence::{Amount, Target};
    use super::super::vocabulary::Action;
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Reading {
        let registry = Registry::embedded().unwrap();
        let names = Names::new(&registry, []);
        Reading::of(&UserInput::new(text).guard().unwrap(), &names)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn any_text_is_read_or_refused(
            words in proptest::collection::vec(
                prop_oneof![
                    Just("turn"), Just("on"), Just("the kitchen light"), Just("after"), Just("10 pm"), Just("30%"), Just("把"), Just("客厅灯"),
                    Just("调到"), Just("三十"), Just("一点"), Just("打开"), Just(","), Just("honey"), Just("please"), Just("?"), Just("the"), Just("再"),
                ],
                0..14,
            ),
            tail in "\\PC{0,12}",
        ) {
            let text = format!("{} {tail}", words.join(" "));
            if let Ok(input) = UserInput::new(text).guard() {
                let registry = Registry::embedded().unwrap();
                let names = Names::new(&registry, []);
                let reading = Reading::of(&input, &names);
                // A command with something left over is asked about; one that is flagged is refused; nothing else is left.
                prop_assert!(reading.command.is_some() || !reading.flags.is_empty());
            }
        }
    }

    /// Understood as a whole: device and action, with nothing left.
    #[track_caller]
    fn check(text: &str, device: &str, action: Action) -> Command {
        let registry = Registry::embedded().unwrap();
        let reading = read(text);
        let command =
            reading.command.unwrap_or_else(|| panic!("{text}: {:?} {:?}", reading.flags, reading.unexplained));
        assert_eq!((reading.flags, reading.unexplained), (vec![], vec![]), "{text}");
        let found = command.device(&registry, &[]).unwrap_or_else(|| panic!("{text}: no device"));
        assert_eq!((found.device_id.as_str(), command.action(found.device_type)), (device, Some(action)), "{text}");
        command
    }

    #[test]
    fn chinese_commands() {
        check("把客厅灯关掉", "lounge_ceiling_light", Action::TurnOff);
        check("请帮我打开厨房灯。", "kitchen_spots", Action::TurnOn);
        check("麻烦把走廊灯打开一下，谢谢！", "corridor_strip", Action::TurnOn);
        check("能不能关一下客厅灯", "lounge_ceiling_light", Action::TurnOff);
        check("打开大门门锁", "main_door_lock", Action::Unlock);
        check("把大门锁上", "main_door_lock", Action::Lock);
        check("把大门门锁解锁", "main_door_lock", Action::Unlock);
        check("拉上客厅窗帘", "lounge_curtain", Action::Close);
        check("把过道灯再调亮一点", "corridor_strip", Action::IncreaseBrightness);
        check("把客厅的灯关掉", "lounge_ceiling_light", Action::TurnOff);
        check("我在卧室，把这里的空调打开", "bedroom_climate", Action::TurnOn);
        assert_eq!(
            check("把走廊灯的亮度调到三十%", "corridor_strip", Action::SetBrightness).amount,
            Amount::Brightness(30)
        );
        assert_eq!(
            check("走廊灯调到百分之四十", "corridor_strip", Action::SetBrightness).amount,
            Amount::Brightness(40)
        );
        assert_eq!(
            check("把卧室空调调到零下5度", "bedroom_climate", Action::SetTemperature).amount,
            Amount::Temperature(-5)
        );
        assert_eq!(
            check("把卧室空调切换到制冷模式", "bedroom_climate", Action::SetMode).amount,
            Amount::Mode(super::super::vocabulary::Mode::Cool)
        );
        assert_eq!(
            check("把卧室空调切到涡轮模式", "bedroom_climate", Action::SetMode).amount,
            Amount::OtherMode("涡轮".into())
        );
        let command = check("晚上九点半后，把走廊灯调到10%", "corridor_strip", Action::SetBrightness);
        assert_eq!(command.time_after.unwrap().to_string(), "21:30");
    }

    #[test]
    fn english_commands() {
        check("Turn off the living room light", "lounge_ceiling_light", Action::TurnOff);
        check("could you switch the kitchen light on, please?", "kitchen_spots", Action::TurnOn);
        check("unlock the front door", "main_door_lock", Action::Unlock);
        check("close the living room curtain", "lounge_curtain", Action::Close);
        check("dim the bedside lamp", "bedside_lamp", Action::DecreaseBrightness);
        check("make the bedside lamp a bit brighter", "bedside_lamp", Action::IncreaseBrightness);
        check("turn the lights off in the living room", "lounge_ceiling_light", Action::TurnOff);
        check("I'm in the kitchen, turn on the light", "kitchen_spots", Action::TurnOn);
        check("front door lock, please lock it", "main_door_lock", Action::Lock);
        check("living room curtain closed please", "lounge_curtain", Action::Close);
        for told in ["the living room curtain closed", "the front door open", "my living room blinds closed."] {
            assert!(read(told).command.is_none(), "{told}");
        }
        for (text, device, action, amount) in [
            ("set the kitchen light to 40%", "kitchen_spots", Action::SetBrightness, Amount::Brightness(40)),
            ("dim the kitchen light to 15 percent", "kitchen_spots", Action::SetBrightness, Amount::Brightness(15)),
            ("set the bedroom ac to 24", "bedroom_climate", Action::SetTemperature, Amount::Number(24)),
            ("set the bedroom ac to 22°C", "bedroom_climate", Action::SetTemperature, Amount::Temperature(22)),
        ] {
            assert_eq!(check(text, device, action).amount, amount, "{text}");
        }
        for (text, time) in
            [("after 10 pm, turn on the hallway light", "22:00"), ("turn on the hallway light after 22:30", "22:30")]
        {
            let command = check(text, "corridor_strip", Action::TurnOn);
            assert_eq!(command.time_after.unwrap().to_string(), time);
        }
    }

    #[test]
    fn references() {
        use super::super::vocabulary::DeviceType as T;
        for (text, target) in [
            ("再暗一点", Target::Referred(Some(T::Light))),
            ("把刚才那个灯再调暗一点", Target::Referred(Some(T::Light))),
            ("把刚才那个关掉", Target::Referred(None)),
            ("关闭空调", Target::Type(T::AirConditioner)),
            ("a bit brighter", Target::Referred(Some(T::Light))),
            ("turn it off", Target::Referred(None)),
        ] {
            let reading = read(text);
            assert_eq!(reading.command.unwrap_or_else(|| panic!("{text}")).target, target, "{text}");
        }
    }

    #[test]
    fn device_names_are_whole_nouns() {
        for text in [
            "打开书房客厅灯",
            "打开客厅灯箱",
            "turn on the guest living room light",
            "turn on the kitchen light strip",
            "打开第二个床头灯",
        ] {
            let reading = read(text);
            assert!(reading.command.is_none() && !reading.flags.is_empty(), "{text}");
        }
    }

    #[track_caller]
    fn flagged(text: &str, flag: InputFlag) {
        let reading = read(text);
        assert!(reading.command.is_none(), "{text}");
        assert!(reading.flags.contains(&flag), "{text}: {:?}", reading.flags);
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
            "我没有让你打开客厅灯",
            "nor turn on the kitchen light",
        ] {
            flagged(text, InputFlag::NegatedCommand);
        }
        for text in ["能不能打开客厅灯", "不好意思，打开厨房灯", "turn on the kitchen light now"] {
            assert!(read(text).command.is_some() && read(text).flags.is_empty(), "{text}");
        }
    }

    /// W15: "all" and several targets.
    #[test]
    fn w15_all_and_several() {
        for text in ["关闭所有灯", "把灯都关掉", "turn off all the lights", "turn everything off", "打开每盏灯"]
        {
            flagged(text, InputFlag::AllTargets);
        }
        for text in ["打开客厅灯和厨房灯", "turn on the kitchen light and the hallway light"] {
            flagged(text, InputFlag::SeveralCommands);
        }
        flagged("打开客厅灯然后关掉", InputFlag::UnsupportedCondition);
    }

    #[test]
    fn questions_conditions_withdrawals_and_values() {
        for text in ["客厅灯开着吗", "is the kitchen light on?", "现在卧室多少度"] {
            flagged(text, InputFlag::Question);
        }
        for text in [
            "十分钟后打开客厅灯",
            "两天后打开客厅灯",
            "如果下雨就关闭客厅窗帘",
            "十点后打开客厅灯",
            "晚上十点前打开客厅灯",
            "turn on the kitchen light if I am late",
            "晚上十点打开客厅灯",
            "turn off the kitchen light in 5 minutes",
            "after dinner turn on the living room light",
            "tomorrow after 10 pm turn on the kitchen light",
            "早上晚上十点后打开客厅灯",
            "turn on the kitchen light after 10 pm EST tomorrow",
        ] {
            flagged(text, InputFlag::UnsupportedCondition);
        }
        flagged("cancel: turn on the kitchen light", InputFlag::WithdrawnCommand);
        for text in [
            "set the bedroom ac to 70°F",
            "把客厅灯调亮20%",
            "lower the kitchen light by 20",
            "把客厅灯调到050%",
            "把客厅灯调到50%%",
            "set the kitchen light to 1,0",
            "set the kitchen light to 20~40%",
        ] {
            let reading = read(text);
            assert!(reading.command.is_none() && !reading.flags.is_empty(), "{text}");
        }
        for text in ["把客厅灯调到²³%", "把客厅灯调到4０%", "把客厅灯调到㉒%"] {
            assert!(read(text).flags.contains(&InputFlag::UnclearValue), "{text}");
        }
    }

    #[test]
    fn a_few_words_aside_are_asked_about_and_named() {
        for (text, words) in [
            ("honey, turn on the kitchen light", "honey"),
            ("turn on the kitchen light, sweetheart", "sweetheart"),
            ("小爱同学，打开客厅灯", "小爱同学"),
        ] {
            let reading = read(text);
            assert!(reading.command.is_some() && reading.flags.is_empty(), "{text}: {:?}", reading.flags);
            assert_eq!(reading.unexplained, [words], "{text}");
        }
        for text in [
            "turn on the kitchen light honey",
            "honey kitchen light on",
            "turn honey on the kitchen light",
            "unplug the kitchen light on",
            "元旦打开客厅灯",
            "刚打开客厅灯",
        ] {
            assert!(read(text).command.is_none(), "{text}");
        }
    }

    #[test]
    fn one_command_and_no_more() {
        for text in [
            "turn on the kitchen light off",
            "turn on turn on the kitchen light",
            "把过道灯调亮调暗",
            "打开空调调到26度",
            "front door lock",
            "大门锁",
            "客厅灯打开了",
            "turn on the kitchen light?",
            "打开客厅灯吗",
            "可以打开客厅灯",
        ] {
            assert!(read(text).command.is_none(), "{text}");
        }
    }
}
