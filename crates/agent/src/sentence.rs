//! One command, read from the whole of a text: every token has its part in it, and the parts stand in an order that people
//! use. What does not fit as a whole is not read.

use std::sync::OnceLock;

use super::lexicon::{Entry, Word, entries_at};
use super::names::Names;
use super::quantity::{Quantity, Unit, quantity_at};
use super::recent_command::RecentCommand;
use super::registry::{Device, Registry};
use super::spans::{Token, TokenKind};
use super::time_of_day::{TimeOfDay, leading_time};
use super::vocabulary::{Action, DeviceType, Mode, Room};
use super::words::{FillerKind, Place, Words};

/// What a command is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// A device by its name.
    Device(String),
    /// The device of a type in a room.
    RoomType(Room, DeviceType),
    /// A bare type: the only device of it, or the one spoken of last.
    Type(DeviceType),
    /// The device spoken of last, of a type if one is named.
    Referred(Option<DeviceType>),
}

/// What is to be done; the device's type makes an [`Action`] of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    /// turn on; 打开 means more.
    On,
    Off,
    /// 打开, open: whatever on or open is for the type.
    OpenUp,
    /// 关闭, close.
    ShutDown,
    /// 拉开, of curtains.
    Draw(bool),
    Lock,
    Unlock,
    Brighter,
    Dimmer,
    /// raise, lower: curtains and lights.
    Raise,
    Lower,
    Set,
}

/// A value of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Amount {
    None,
    Brightness(i64),
    Temperature(i64),
    /// A bare number: what the type takes.
    Number(i64),
    Mode(Mode),
    /// A mode outside the closed list, as said.
    OtherMode(String),
}

/// A command as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) target: Target,
    pub(crate) deed: Deed,
    pub(crate) amount: Amount,
    pub(crate) time_after: Option<TimeOfDay>,
}

impl Command {
    /// The device that the command is for, given what was spoken of before.
    pub(crate) fn device<'r>(&self, registry: &'r Registry, recent: &[RecentCommand]) -> Option<&'r Device> {
        let newest = |kind: Option<DeviceType>| {
            recent
                .iter()
                .filter_map(|r| registry.device(&r.device_id))
                .find(|d| kind.is_none_or(|kind| d.device_type == kind))
        };
        match &self.target {
            Target::Device(id) => registry.device(id),
            Target::RoomType(room, kind) => registry.only(*room, *kind),
            Target::Type(kind) => only_of(registry, *kind).or_else(|| newest(Some(*kind))),
            Target::Referred(kind) => newest(*kind),
        }
    }

    /// What the deed is for a type; `None` where it is nothing.
    pub(crate) fn action(&self, kind: DeviceType) -> Option<Action> {
        use DeviceType as T;
        Some(match (self.deed, kind) {
            (_, T::Unknown) => return None,
            (Deed::On | Deed::Off, T::Lock | T::Curtain) => return None,
            (Deed::Draw(open), T::Curtain) => {
                if open {
                    Action::Open
                } else {
                    Action::Close
                }
            }
            (Deed::Draw(_), _) => return None,
            (Deed::OpenUp, T::Curtain) => Action::Open,
            (Deed::ShutDown, T::Curtain) => Action::Close,
            (Deed::OpenUp, T::Lock) | (Deed::Unlock, _) => Action::Unlock,
            (Deed::ShutDown, T::Lock) | (Deed::Lock, _) => Action::Lock,
            (Deed::On | Deed::OpenUp, _) => Action::TurnOn,
            (Deed::Off | Deed::ShutDown, _) => Action::TurnOff,
            (Deed::Brighter, _) | (Deed::Raise, T::Light) => Action::IncreaseBrightness,
            (Deed::Dimmer, _) | (Deed::Lower, T::Light) => Action::DecreaseBrightness,
            (Deed::Raise, T::Curtain) => Action::Open,
            (Deed::Lower, T::Curtain) => Action::Close,
            (Deed::Raise | Deed::Lower, _) => return None,
            (Deed::Set, _) => match &self.amount {
                Amount::Brightness(_) => Action::SetBrightness,
                Amount::Temperature(_) => Action::SetTemperature,
                Amount::Number(_) if kind == T::AirConditioner => Action::SetTemperature,
                Amount::Number(_) => Action::SetBrightness,
                Amount::Mode(_) | Amount::OtherMode(_) => Action::SetMode,
                Amount::None => return None,
            },
        })
    }

    /// The brightness that it sets on a type.
    pub(crate) fn brightness(&self, kind: DeviceType) -> Option<i64> {
        match self.amount {
            Amount::Brightness(n) => Some(n),
            Amount::Number(n) if kind != DeviceType::AirConditioner => Some(n),
            _ => None,
        }
    }

    /// The temperature that it sets on a type.
    pub(crate) fn temperature(&self, kind: DeviceType) -> Option<i64> {
        match self.amount {
            Amount::Temperature(n) => Some(n),
            Amount::Number(n) if kind == DeviceType::AirConditioner => Some(n),
            _ => None,
        }
    }
}

pub(crate) fn only_of(registry: &Registry, kind: DeviceType) -> Option<&Device> {
    let mut found = registry.devices().iter().filter(|d| d.device_type == kind);
    match (found.next(), found.next()) {
        (Some(device), None) => Some(device),
        _ => None,
    }
}

/// What a run of tokens can be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Item {
    Device(String),
    Entry(Entry),
    OtherMode(String),
    Value(Quantity),
    Time(TimeOfDay),
    Filler(Place, FillerKind),
    Comma,
    Stop,
    Ask,
}

/// What parsing needs besides the tokens.
pub(crate) struct Grammar<'a> {
    pub(crate) words: &'a Words,
    pub(crate) names: &'a Names<'a>,
    /// The folded text that the tokens are of.
    pub(crate) chars: &'a [char],
    /// The planted fault of gate 5: whatever unit stands behind a number is passed over.
    pub(crate) units_ignored: bool,
}

/// What the whole of some tokens means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Parse {
    /// Not one command.
    Nothing,
    /// More than one meaning.
    Ambiguous,
    /// Exactly one.
    One(Command),
}

/// Steps of the search; a sentence of ordinary length takes some hundred.
const MAX_STEPS: usize = 20_000;

impl Grammar<'_> {
    /// Everything that the tokens from `at` on can begin with, with lengths, longest first; names before words.
    pub(crate) fn items_at(&self, tokens: &[Token], at: usize) -> Vec<(usize, Item)> {
        let rest = &tokens[at..];
        let mut items: Vec<(usize, Item)> =
            self.names.spoken_at(rest).into_iter().map(|(used, id)| (used, Item::Device(id.to_owned()))).collect();
        items.extend(self.time_at(tokens, at));
        if let Some((mut used, value)) = quantity_at(rest, at.checked_sub(1).map(|i| &tokens[i])) {
            if self.units_ignored
                && let Some(next) = rest.get(used)
                && matches!(next.kind, TokenKind::Word | TokenKind::Han)
                && entries_at(&rest[used..]).is_empty()
            {
                used += 1;
            }
            items.push((used, Item::Value(value)));
        }
        items.extend(self.words.fillers_at(rest).map(|(used, f)| (used, Item::Filler(f.place, f.kind))));
        items.extend(entries_at(rest).into_iter().map(|(used, entry)| (used, Item::Entry(entry))));
        let mark = match rest[0].text.as_str() {
            "," | "、" => Some(Item::Comma),
            "." | "!" | "。" | ";" => Some(Item::Stop),
            "?" => Some(Item::Ask),
            // As people end a friendly line; never beside a number.
            "~" if rest.len() == 1 && at > 0 && tokens[at - 1].kind == TokenKind::Han => Some(Item::Stop),
            _ => None,
        };
        items.extend(mark.map(|m| (1, m)));
        items.sort_by_key(|(used, item)| (std::cmp::Reverse(*used), !matches!(item, Item::Device(_))));
        items
    }

    /// `after 10 pm`, `晚上十点后`, whole.
    fn time_at(&self, tokens: &[Token], at: usize) -> Option<(usize, Item)> {
        let leads = tokens[at].is("after");
        let first = at + usize::from(leads) + usize::from(tokens[at].is("在"));
        let start = tokens.get(first)?.start;
        let (time, length) = leading_time(&self.chars[start..])?;
        let end = start + length;
        let behind = tokens.iter().position(|t| t.start >= end).unwrap_or(tokens.len());
        // A clock time ends where a token ends, and no digit or mark clings to it.
        if tokens[..behind].last()?.end != end
            || tokens.get(behind).is_some_and(|t| {
                !t.spaced && (t.kind == TokenKind::Digits || matches!(t.text.as_str(), ":" | "-" | "/" | "~" | "+"))
            })
        {
            return None;
        }
        if leads {
            return Some((behind - at, Item::Time(time)));
        }
        [&["以", "后"][..], &["之", "后"], &["过", "后"], &["后"]]
            .into_iter()
            .find(|w| w.len() <= tokens.len() - behind && w.iter().zip(&tokens[behind..]).all(|(w, t)| t.is(w)))
            .map(|w| (behind + w.len() - at, Item::Time(time)))
    }

    /// Reads all of the tokens as one command.
    pub(crate) fn parse(&self, tokens: &[Token]) -> Parse {
        let options: Vec<Vec<(usize, Item)>> = (0..tokens.len()).map(|at| self.items_at(tokens, at)).collect();
        let mut search =
            Search { grammar: self, tokens, options: &options, found: Vec::new(), steps: 0, items: Vec::new() };
        search.descend(0, 0);
        if search.steps >= MAX_STEPS {
            return Parse::Ambiguous;
        }
        // A name is the whole noun: 客厅灯 is the device of that name before it is a room and a type.
        let most = search.found.iter().map(|(named, _)| *named).max();
        let mut commands: Vec<Command> =
            search.found.into_iter().filter(|(named, _)| Some(*named) == most).map(|(_, c)| c).collect();
        commands.dedup();
        match commands.len() {
            0 => Parse::Nothing,
            1 => commands.pop().map_or(Parse::Nothing, Parse::One),
            _ => {
                let first = commands[0].clone();
                if commands.iter().all(|c| *c == first) { Parse::One(first) } else { Parse::Ambiguous }
            }
        }
    }
}

struct Search<'a> {
    grammar: &'a Grammar<'a>,
    tokens: &'a [Token],
    options: &'a [Vec<(usize, Item)>],
    items: Vec<Item>,
    /// Commands, with the number of tokens that are names.
    found: Vec<(usize, Command)>,
    steps: usize,
}

impl Search<'_> {
    fn descend(&mut self, at: usize, named: usize) {
        self.steps += 1;
        if self.steps >= MAX_STEPS {
            return;
        }
        if at == self.tokens.len() {
            if let Some(command) = shape(&self.items, self.grammar.names.registry()) {
                self.found.push((named, command));
            }
            return;
        }
        let options = self.options;
        for (used, item) in &options[at] {
            let device = if matches!(item, Item::Device(_)) { *used } else { 0 };
            self.items.push(item.clone());
            self.descend(at + used, named + device);
            self.items.pop();
        }
        if let Some((used, mode)) = self.other_mode(at) {
            self.items.push(Item::OtherMode(mode));
            self.descend(at + used, named);
            self.items.pop();
        }
    }

    /// `涡轮` in 切到涡轮模式, `turbo` in `to turbo mode`: a mode that nobody knows is named by the gates.
    fn other_mode(&self, at: usize) -> Option<(usize, String)> {
        let sets =
            matches!(self.items.last(), Some(Item::Entry(Entry::Word(Word::SetTo | Word::To | Word::In | Word::Use))));
        if !sets {
            return None;
        }
        let end = (at + 1..self.tokens.len().min(at + 5)).find(|end| {
            self.tokens[*end].is("mode")
                || (self.tokens[*end].is("模") && self.tokens.get(end + 1).is_some_and(|t| t.is("式")))
        })?;
        let known = (at..end).any(|i| !self.options[i].is_empty() || !self.tokens[i].kind.is_letters());
        let text: String = self.tokens[at..end].iter().map(|t| t.text.as_str()).collect();
        (!known).then_some((end - at, text))
    }
}

/// A part of a command's core.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Thing(Target),
    Room(Room),
    Value(Quantity),
    Mode(Mode),
    OtherMode(String),
    Word(Word),
    Comma,
}

/// Puts items together to one command, if they are one.
fn shape(items: &[Item], registry: &Registry) -> Option<Command> {
    let outside = |item: &Item| matches!(item, Item::Filler(..) | Item::Comma | Item::Stop | Item::Ask | Item::Time(_));
    // A sign in front ends nothing: '!' negates where people write code.
    if matches!(items.first(), Some(Item::Stop | Item::Ask)) {
        return None;
    }
    let first = items.iter().position(|i| !outside(i))?;
    let last = items.iter().rposition(|i| !outside(i))?;
    // "the kitchen light, could you …": what stands before a command may stand behind its topic as well.
    let topic_end = items[first..].iter().position(|i| *i == Item::Comma).map(|comma| first + comma).filter(|comma| {
        items[first..*comma].iter().all(|i| {
            matches!(
                i,
                Item::Device(_)
                    | Item::Entry(
                        Entry::Room(_) | Entry::Type(_) | Entry::Noun(..) | Entry::Word(Word::Det | Word::De)
                    )
            )
        })
    });
    let opening = topic_end.and_then(|comma| (comma..items.len()).find(|at| !outside(&items[*at])));
    let (mut request, mut half, mut asks, mut now, mut softened) = (false, false, false, false, false);
    let mut time = None;
    let mut core: Vec<Part> = Vec::new();
    let mut flat: Vec<&Item> = Vec::new();
    for (at, item) in items.iter().enumerate() {
        match item {
            Item::Filler(place, kind) => {
                let stands = match place {
                    Place::Any => true,
                    Place::Front => {
                        at < first || (topic_end.is_some_and(|c| at > c) && opening.is_some_and(|o| at < o))
                    }
                    Place::Back => at > last,
                };
                if !stands {
                    return None;
                }
                match kind {
                    FillerKind::Plain => {}
                    FillerKind::Softens => softened = true,
                    FillerKind::Request => request = true,
                    FillerKind::Half => half = true,
                    FillerKind::Asks => asks = true,
                    FillerKind::Now => now = true,
                }
            }
            Item::Time(t) => {
                if time.is_some() || (at > first && at < last) {
                    return None;
                }
                time = Some(*t);
            }
            // A sentence ends behind the command, or behind a greeting; it does not end inside it.
            Item::Stop if at > first && at < last => return None,
            Item::Stop => {}
            Item::Ask if at < last => return None,
            Item::Ask => asks = true,
            _ => flat.push(item),
        }
    }
    // A question needs a request, and 'can' alone is one only in a question.
    if (asks && !request && !half) || (half && !asks) || (now && time.is_some()) {
        return None;
    }
    noun_phrases(&flat, registry, &mut core)?;
    let core = place(core, registry)?;
    // 'curtain closed' is how people order in a hurry; 'the curtain closed' tells what happened.
    let article = flat.iter().any(|item| **item == Item::Entry(Entry::Word(Word::Det)));
    if article && matches!(core.as_slice(), [Part::Thing(_), Part::Word(Word::Open | Word::Close | Word::Closed), ..]) {
        return None;
    }
    let mut command = meaning(&core, softened)?;
    command.time_after = time;
    // One device of the type or room: the same command, however it is said.
    let resolved = match &command.target {
        Target::RoomType(room, kind) => registry.only(*room, *kind),
        Target::Type(kind) => only_of(registry, *kind),
        _ => None,
    };
    if let Some(device) = resolved {
        command.target = Target::Device(device.device_id.clone());
    }
    Some(command)
}

/// Joins the words that name one thing.
fn noun_phrases(flat: &[&Item], registry: &Registry, core: &mut Vec<Part>) -> Option<()> {
    let entry = |at: usize| match flat.get(at) {
        Some(Item::Entry(entry)) => Some(*entry),
        _ => None,
    };
    let word = |at: usize, wanted: Word| entry(at) == Some(Entry::Word(wanted));
    let mut at = 0;
    while at < flat.len() {
        match flat[at] {
            Item::Comma => core.push(Part::Comma),
            Item::Device(id) => core.push(Part::Thing(Target::Device(id.clone()))),
            Item::Value(quantity) => core.push(Part::Value(*quantity)),
            Item::OtherMode(mode) => core.push(Part::OtherMode(mode.clone())),
            Item::Entry(Entry::Mode(mode)) => core.push(Part::Mode(*mode)),
            Item::Entry(Entry::Noun(room, kind)) => core.push(Part::Thing(Target::RoomType(*room, *kind))),
            Item::Entry(Entry::Type(kind)) => {
                // the light in the kitchen
                let room_at = at + 2 + usize::from(word(at + 2, Word::Det));
                match entry(room_at) {
                    Some(Entry::Room(room)) if word(at + 1, Word::In) => {
                        core.push(Part::Thing(Target::RoomType(room, *kind)));
                        at = room_at;
                    }
                    _ => core.push(Part::Thing(Target::Type(*kind))),
                }
            }
            Item::Entry(Entry::Refer) => {
                let kind = match entry(at + 1) {
                    Some(Entry::Type(kind)) => {
                        at += 1;
                        Some(kind)
                    }
                    _ => None,
                };
                core.push(Part::Thing(Target::Referred(kind)));
            }
            // bedroom temperature, 客厅亮度: of what has one there
            Item::Entry(Entry::Room(room)) if property(entry(at + 1)).is_some() => {
                core.push(Part::Thing(Target::RoomType(*room, property(entry(at + 1))?)));
            }
            // the temperature in the bedroom
            Item::Entry(Entry::Word(word_here @ (Word::Brightness | Word::Temperature))) if word(at + 1, Word::In) => {
                let room_at = at + 2 + usize::from(word(at + 2, Word::Det));
                let Some(Entry::Room(room)) = entry(room_at) else { return None };
                core.push(Part::Word(*word_here));
                core.push(Part::Word(Word::Of));
                core.push(Part::Thing(Target::RoomType(room, property(entry(at))?)));
                at = room_at;
            }
            Item::Entry(Entry::Room(room)) => {
                let next = at + 1 + usize::from(word(at + 1, Word::De));
                match (entry(next), flat.get(next)) {
                    (Some(Entry::Type(kind)), _) => {
                        core.push(Part::Thing(Target::RoomType(*room, kind)));
                        at = next;
                    }
                    // A room said beside a name must be the device's own; it adds nothing then.
                    (_, Some(Item::Device(id))) if registry.device(id).is_some_and(|d| d.room == *room) => {
                        core.push(Part::Thing(Target::Device(id.clone())));
                        at = next;
                    }
                    _ => core.push(Part::Room(*room)),
                }
            }
            // An article stands before a noun and nowhere else.
            Item::Entry(Entry::Word(Word::Det)) => {
                let noun = matches!(
                    flat.get(at + 1),
                    Some(
                        Item::Device(_)
                            | Item::Entry(
                                Entry::Type(_)
                                    | Entry::Room(_)
                                    | Entry::Noun(..)
                                    | Entry::Word(Word::Brightness | Word::Temperature | Word::ModeNoun)
                            )
                    )
                );
                if !noun {
                    return None;
                }
            }
            Item::Entry(Entry::Word(word)) => core.push(Part::Word(*word)),
            Item::Entry(Entry::Elsewhere) => return None,
            Item::Filler(..) | Item::Stop | Item::Ask | Item::Time(_) => {}
        }
        at += 1;
    }
    Some(())
}

/// The type that has a brightness or a temperature.
fn property(entry: Option<Entry>) -> Option<DeviceType> {
    match entry? {
        Entry::Word(Word::Brightness) => Some(DeviceType::Light),
        Entry::Word(Word::Temperature) => Some(DeviceType::AirConditioner),
        _ => None,
    }
}

/// Settles where a bare type stands: `I'm in the kitchen, …`, `… in the bedroom`, `the front door lock, lock it`.
fn place(mut core: Vec<Part>, registry: &Registry) -> Option<Vec<Part>> {
    let mut room = None;
    if let [Part::Word(Word::IAmIn), Part::Room(here), ..] = core.as_slice() {
        room = Some(*here);
        core.drain(..2);
    } else if let [.., Part::Word(Word::In), Part::Room(there)] = core.as_slice() {
        room = Some(*there);
        core.truncate(core.len() - 2);
    }
    let valued = core.iter().find_map(|p| match p {
        Part::Value(Quantity { unit: Unit::Degrees, .. }) => Some(DeviceType::AirConditioner),
        Part::Value(Quantity { unit: Unit::Percent, .. }) => Some(DeviceType::Light),
        _ => None,
    });
    // 客厅开灯; living room, lights off; set the bedroom to 22 degrees
    let things: Vec<Target> =
        core.iter().filter_map(|p| if let Part::Thing(t) = p { Some(t.clone()) } else { None }).collect();
    let rooms: Vec<usize> = (0..core.len()).filter(|at| matches!(core[*at], Part::Room(_))).collect();
    if let ([at], None) = (rooms.as_slice(), room)
        && let Part::Room(said) = core[*at]
    {
        match (things.as_slice(), valued) {
            ([Target::Type(_)], _) if *at == 0 => {
                core.remove(0);
                room = Some(said);
            }
            ([], Some(kind)) => core[*at] = Part::Thing(Target::RoomType(said, kind)),
            _ => {}
        }
    }
    let here = core.contains(&Part::Word(Word::Here));
    if here {
        room?;
        core.retain(|p| *p != Part::Word(Word::Here));
    }
    // A topic before a comma, and a pronoun for it behind.
    if let [Part::Thing(topic), Part::Comma, ..] = core.as_slice() {
        let topic = topic.clone();
        let pronoun = core.iter().position(|p| *p == Part::Thing(Target::Referred(None)));
        if let Some(pronoun) = pronoun {
            core[pronoun] = Part::Thing(topic);
            core.remove(0);
        }
    }
    core.retain(|p| *p != Part::Comma);
    if let Some(room) = room {
        if !core.iter().any(|p| matches!(p, Part::Thing(_))) {
            // set brightness to 40% in the kitchen
            let (at, kind) = core.iter().enumerate().find_map(|(at, p)| match p {
                Part::Word(word) => property(Some(Entry::Word(*word))).map(|kind| (at, kind)),
                _ => None,
            })?;
            core.insert(at, Part::Thing(Target::RoomType(room, kind)));
            return Some(core);
        }
        let thing = core.iter_mut().find_map(|p| if let Part::Thing(target) = p { Some(target) } else { None })?;
        match thing {
            Target::Type(kind) => *thing = Target::RoomType(room, *kind),
            // make it 22 degrees in the bedroom
            Target::Referred(None) if valued.is_some() => *thing = Target::RoomType(room, valued?),
            // Said twice, and the same.
            Target::Device(id) if registry.device(id).is_some_and(|d| d.room == room) => {}
            Target::RoomType(there, _) if *there == room => {}
            _ => return None,
        }
    }
    Some(core)
}

/// Orders in which the parts of a command stand, and what they say. `X` is the thing, `V` a value, `M` a mode; `a|b` one of
/// them, `?` may be missing.
const SHAPES: &[(Deed, &[&str])] = &[
    (Deed::On, &["turn|put on X", "turn|put X on", "turn X back on", "turn back on X", "X on", "start X", "lightup X"]),
    (Deed::Off, &["turn off X", "turn|put X off", "turn X back off", "X off", "kill X", "close X off"]),
    (
        Deed::OpenUp,
        &[
            "open up? X",
            "X open up?",
            "pull|put X open",
            "pull open X",
            "pull back X",
            "pull X back",
            "pull X up",
            "pull up X",
            "ba? X switchon",
            "ba X onle",
            "switchon X",
        ],
    ),
    (
        Deed::ShutDown,
        &[
            "close X",
            "X closed",
            "X close",
            "pull|put X closed",
            "pull closed X",
            "pull X down",
            "pull down X",
            "ba? X switchoff",
            "ba X offle",
            "switchoff X",
        ],
    ),
    (Deed::Draw(true), &["ba? X drawopen", "drawopen X"]),
    (Deed::Draw(false), &["ba? X drawclose", "drawclose X"]),
    (Deed::Lock, &["lock up? X", "ba? X lockzh", "ba X lockle", "ba X lockbare", "lockzh|lockbare X"]),
    (Deed::Unlock, &["unlock X", "ba? X unlock"]),
    (
        Deed::Dimmer,
        &[
            "dim down? X brightness? bit?",
            "dim X down bit?",
            "bit? dim X bit?",
            "make X bit? dimmer",
            "X bit? dimmer",
            "bit? dimmer",
            "turn|put X bit? dimmer",
            "lower|dim brightness of X bit?",
            "lower X brightness bit?",
            "turn down brightness of X bit?",
            "turn brightness of X down bit?",
            "turn X brightness down bit?",
            "turn down X brightness bit?",
            "ba? X again? makedimmer bit?",
            "ba? X de? brightness again? makedimmer|lowerzh bit?",
            "X again? darkhan bit",
            "ba X again? darkhan bit",
            "again? makedimmer bit? X",
            "again? lowerzh X de? brightness bit?",
            "again? darkhan bit",
            "again? makedimmer bit?",
            "ba? X again? lowerzh bit? brightness",
            "brightness again? makedimmer|lowerzh bit?",
        ],
    ),
    (
        Deed::Brighter,
        &[
            "brighten up? X brightness? bit?",
            "brighten X up bit?",
            "make X bit? brighter",
            "X bit? brighter",
            "bit? brighter",
            "turn|put X bit? brighter",
            "raise brightness of X bit?",
            "raise X brightness bit?",
            "turn up brightness of X bit?",
            "turn brightness of X up bit?",
            "turn X brightness up bit?",
            "turn up X brightness bit?",
            "ba? X again? makebrighter bit?",
            "ba? X de? brightness again? makebrighter|raisezh bit?",
            "X again? brighthan bit",
            "ba X again? brighthan bit",
            "again? makebrighter bit? X",
            "again? raisezh X de? brightness bit?",
            "again? brighthan bit",
            "again? makebrighter bit?",
            "brightness again? makebrighter|raisezh bit?",
        ],
    ),
    (Deed::Lower, &["lower X bit?", "turn down X bit?", "turn X down bit?", "turn X bit? lower", "ba? X lowerzh bit?"]),
    (Deed::Raise, &["raise X bit?", "turn up X bit?", "turn X up bit?", "ba? X raisezh bit?"]),
    (
        Deed::Set,
        &[
            "set|put|make X brightness|temperature? to|at|on? V bright?",
            "turn X brightness|temperature? to|at V bright?",
            "put up|down X to|at V",
            "set|put|make X to|at V brightness|temperature",
            "set brightness|temperature of X to|at? V",
            "set|put|turn X up|down to V",
            "turn up|down X brightness|temperature? to V",
            "turn up|down brightness|temperature of X to V",
            "turn X brightness|temperature up|down to V",
            "turn brightness|temperature of X up|down to V",
            "put brightness|temperature of X up|down? to|at V",
            "dim|brighten up|down? X brightness? to|at V",
            "lower|raise X brightness|temperature? to V",
            "lower|raise brightness|temperature of X to V",
            "X brightness|temperature? to|at? V bright?",
            "X up|down to V",
            "brightness|temperature of X to|at? V",
            "ba? X de? brightness|temperature? setto|onto V",
            "X de? brightness|temperature? V",
            "ba? X V",
            "adjust X de? brightness|temperature? until V",
            "ba? X de? brightness|temperature? again? makebrighter|makedimmer|raisezh|lowerzh until V",
            "ba? brightness|temperature setto V",
            "set brightness|temperature to|at V",
            "set|put|turn X to|in M modenoun?",
            "set|put X on M modenoun?",
            "set|turn X modenoun to M modenoun?",
            "X switchon M",
            "ba? X adjust M modenoun?",
            "set|put M modenoun on|in X",
            "use M modenoun on|in X",
            "set modenoun of X to M modenoun?",
            "set X M modenoun",
            "X to|in|on M modenoun?",
            "X M modenoun?",
            "ba? X de? M modenoun switchon",
            "switchon X de? M modenoun",
            "X switchon M modenoun",
            "ba? X setto V de? brightness|temperature",
            "ba? X de? modenoun? setto M modenoun?",
            "ba? X use M modenoun?",
            "X de? modenoun setto? M",
        ],
    ),
];

type Pattern = Vec<(Vec<&'static str>, bool)>;

fn shapes() -> &'static [(Deed, Pattern)] {
    static SHAPES_READ: OnceLock<Vec<(Deed, Pattern)>> = OnceLock::new();
    SHAPES_READ.get_or_init(|| {
        SHAPES
            .iter()
            .flat_map(|(deed, texts)| {
                texts.iter().map(|text| {
                    let pattern = text
                        .split(' ')
                        .map(|part| {
                            let (part, optional) = part.strip_suffix('?').map_or((part, false), |p| (p, true));
                            (part.split('|').collect(), optional)
                        })
                        .collect();
                    (*deed, pattern)
                })
            })
            .collect()
    })
}

fn fits(core: &[Part], pattern: &[(Vec<&'static str>, bool)]) -> bool {
    let Some(((wanted, optional), rest)) = pattern.split_first() else { return core.is_empty() };
    if let Some((part, others)) = core.split_first()
        && wanted.iter().any(|w| is(part, w))
        && fits(others, rest)
    {
        return true;
    }
    *optional && fits(core, rest)
}

fn is(part: &Part, symbol: &str) -> bool {
    match (part, symbol) {
        (Part::Thing(_), "X") | (Part::Value(_), "V") | (Part::Mode(_) | Part::OtherMode(_), "M") => true,
        (Part::Word(word), symbol) => format!("{word:?}").eq_ignore_ascii_case(symbol),
        _ => false,
    }
}

fn meaning(core: &[Part], softened: bool) -> Option<Command> {
    // 关了吧 orders where 关了 reports: as if 把 stood before it.
    let reported = softened && matches!(core.last(), Some(Part::Word(Word::OnLe | Word::OffLe | Word::LockLe)));
    let ordered: Vec<Part>;
    let core = if reported && core.first() != Some(&Part::Word(Word::Ba)) {
        ordered = std::iter::once(Part::Word(Word::Ba)).chain(core.iter().cloned()).collect();
        ordered.as_slice()
    } else {
        core
    };
    let deed = shapes().iter().find(|(_, pattern)| fits(core, pattern))?.0;
    let mut target = None;
    let mut amount = Amount::None;
    let has = |word: Word| core.contains(&Part::Word(word));
    let (brightness, temperature) = (has(Word::Brightness) || has(Word::Bright), has(Word::Temperature));
    for part in core {
        match part {
            Part::Thing(thing) if target.is_none() => target = Some(thing.clone()),
            Part::Thing(_) => return None,
            Part::Value(Quantity { amount: n, unit }) => {
                amount = match unit {
                    Unit::Percent if !temperature => Amount::Brightness(*n),
                    Unit::Degrees if !brightness => Amount::Temperature(*n),
                    Unit::Bare if brightness => Amount::Brightness(*n),
                    Unit::Bare if temperature => Amount::Temperature(*n),
                    Unit::Bare => Amount::Number(*n),
                    // a brightness in degrees, a temperature in percent
                    Unit::Percent | Unit::Degrees => return None,
                }
            }
            Part::Mode(mode) => amount = Amount::Mode(*mode),
            Part::OtherMode(mode) => amount = Amount::OtherMode(mode.clone()),
            Part::Word(_) | Part::Room(_) | Part::Comma => {}
        }
    }
    // Steps and settings without a thing are for the light, or what has a temperature, that was spoken of last.
    let target = target.unwrap_or(Target::Referred(Some(if temperature {
        DeviceType::AirConditioner
    } else {
        DeviceType::Light
    })));
    Some(Command { target, deed, amount, time_after: None })
}
