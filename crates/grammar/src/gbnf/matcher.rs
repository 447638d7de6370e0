//! Incremental matching with a set of pushdown stacks, and the full-vocabulary mask.
//!
//! A stack is the engine's: the place of the next character, below it the places to return to
//! when rules end. Stacks share their lower parts and are numbered, sets of stacks too, so that a
//! character's effect on a set is computed once and then a table lookup. This is what makes the
//! mask over a whole vocabulary affordable.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use super::Grammar;
use super::alphabet::{BETWEEN, NO_SYMBOL, Step, Symbol, Utf8State};
use super::compile::{Cost, Elem};
use super::error::MatchError;
use super::limits::{GrammarLimit, GrammarLimits};
use super::mask::TokenMask;
use super::trie::TokenTrie;

/// Where a matcher stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GrammarState {
    /// More text is needed.
    Active,
    /// The text is a sentence, and a longer text can be one too.
    MayEnd,
    /// The text is a sentence, and nothing can follow: stop.
    Complete,
    /// An end-of-generation token was accepted.
    Ended,
    /// An error occurred; every further call repeats it.
    Failed,
}

/// Reads a text byte by byte along a grammar.
///
/// Characters may be cut anywhere between calls. The accepted bytes are always a prefix of
/// well-formed UTF-8, and as long as no error was returned some sentence begins with them.
pub struct Matcher {
    grammar: Grammar,
    tables: Tables,
    at: Place,
    offset: u64,
    ended: bool,
    failed: Option<MatchError>,
}

/// A set of stacks, and how far the current character is decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Place {
    set: SetId,
    utf8: Utf8State,
}

/// Number of a stack set; below [`FIRST_SET`] a reason why there is none.
type SetId = u32;
/// Not computed yet.
const UNKNOWN: SetId = 0;
/// No stack is left.
const DEAD: SetId = 1;
const FIRST_SET: SetId = 8;
/// Reasons of the numbers from 2 on.
const LIMITS: [GrammarLimit; 5] = [
    GrammarLimit::Stacks,
    GrammarLimit::StackDepth,
    GrammarLimit::Expansion,
    GrammarLimit::Recursion,
    GrammarLimit::TableBytes,
];

fn limit_of(set: SetId) -> Option<GrammarLimit> {
    LIMITS.get((set as usize).checked_sub(2)?).copied()
}

fn code_of(limit: GrammarLimit) -> SetId {
    LIMITS.iter().zip(2..).find_map(|(&known, code)| (known == limit).then_some(code)).unwrap_or(DEAD)
}

/// Number of a stack; 0 is the empty one.
type StackId = u32;
const EMPTY: StackId = 0;

#[derive(Debug, Clone, Copy)]
struct Stack {
    /// Element on top.
    pos: u32,
    /// The stack below.
    parent: StackId,
    depth: u32,
    /// What expanding it costs the engine.
    cost: Cost,
}

struct StackSet {
    stacks: Arc<[StackId]>,
    accepting: bool,
    can_continue: bool,
}

/// Bits of what is known of a set inside a character.
const KNOWN: u8 = 1;
/// Some character that can still come out is allowed.
const ALIVE: u8 = 2;
/// The engine would allow a token to be cut here.
const CUT_OK: u8 = 4;

/// Symbols with a dense transition table; the rest is hashed.
const MAX_DENSE: u32 = 192;
/// Decoder states with a dense table per set; with more of them it is hashed.
const MAX_DENSE_STATES: usize = 192;

/// Mixes small integers well enough for hash tables; not for untrusted keys, and there are none:
/// keys are numbers that this module gave out.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 29);
    }
}

type Map<K, V> = HashMap<K, V, BuildHasherDefault<Mixer>>;

#[derive(Default)]
struct Tables {
    stacks: Vec<Stack>,
    stack_ids: Map<(u32, StackId), StackId>,
    /// `sets[0]` is number [`FIRST_SET`].
    sets: Vec<StackSet>,
    set_ids: Map<Arc<[StackId]>, SetId>,
    dense: u32,
    /// `dense` entries per set.
    rows: Vec<SetId>,
    sparse: Map<(SetId, Symbol), SetId>,
    dense_states: usize,
    /// `dense_states` entries per set.
    inside: Vec<u8>,
    inside_sparse: Map<(SetId, Utf8State), u8>,
    bytes: usize,
    /// Masks of one vocabulary, oldest first in `mask_order`.
    masks: Map<(SetId, Utf8State), Arc<TokenMask>>,
    mask_order: VecDeque<(SetId, Utf8State)>,
    vocabulary: Option<u64>,
    // Reused buffers.
    work: Vec<StackId>,
    seen: HashSet<StackId, BuildHasherDefault<Mixer>>,
    found: Vec<StackId>,
}

impl Tables {
    fn new(grammar: &Grammar) -> Self {
        let alphabet = grammar.alphabet();
        let states = alphabet.state_count();
        let mut tables = Self {
            dense: alphabet.symbol_count().min(MAX_DENSE),
            dense_states: if states <= MAX_DENSE_STATES { states } else { 0 },
            ..Self::default()
        };
        let empty = Stack { pos: u32::MAX, parent: EMPTY, depth: 0, cost: Cost::EMPTY };
        tables.stacks.push(empty);
        tables
    }

    fn set(&self, set: SetId) -> &StackSet {
        &self.sets[(set - FIRST_SET) as usize]
    }

    /// The stack with element `pos` on `parent`.
    fn stack(&mut self, grammar: &Grammar, pos: u32, parent: StackId) -> Result<StackId, GrammarLimit> {
        if let Some(&id) = self.stack_ids.get(&(pos, parent)) {
            return Ok(id);
        }
        let limits = grammar.limits();
        let below = self.stacks[parent as usize];
        let depth = below.depth + 1;
        if depth > limits.max_stack_depth {
            return Err(GrammarLimit::StackDepth);
        }
        self.grow(std::mem::size_of::<Stack>() + 24, limits)?;
        let cost = grammar.rules().costs[pos as usize].then(below.cost);
        let id = StackId::try_from(self.stacks.len()).map_err(|_| GrammarLimit::TableBytes)?;
        self.stacks.push(Stack { pos, parent, depth, cost });
        self.stack_ids.insert((pos, parent), id);
        Ok(id)
    }

    fn grow(&mut self, bytes: usize, limits: &GrammarLimits) -> Result<(), GrammarLimit> {
        self.bytes += bytes;
        if self.bytes > limits.max_table_bytes { Err(GrammarLimit::TableBytes) } else { Ok(()) }
    }

    /// The stack after the element at `pos`.
    fn after(&mut self, grammar: &Grammar, pos: u32, parent: StackId) -> Result<StackId, GrammarLimit> {
        if grammar.rules().elems[pos as usize + 1].is_end() { Ok(parent) } else { self.stack(grammar, pos + 1, parent) }
    }

    fn visit(&mut self, stack: StackId) {
        if self.seen.insert(stack) {
            self.work.push(stack);
        }
    }

    /// Expands the stacks in `work` until all have a character on top; into `found`.
    fn expand(&mut self, grammar: &Grammar) -> Result<(), GrammarLimit> {
        let rules = grammar.rules();
        let limits = grammar.limits();
        while let Some(id) = self.work.pop() {
            if id == EMPTY {
                self.found.push(id);
                continue;
            }
            let Stack { pos, parent, .. } = self.stacks[id as usize];
            match rules.elems[pos as usize] {
                Elem::Char(_) => {
                    self.found.push(id);
                    if self.found.len() > limits.max_stacks {
                        return Err(GrammarLimit::Stacks);
                    }
                }
                Elem::Ref(rule) => {
                    let rest = self.after(grammar, pos, parent)?;
                    for &start in rules.alternates_of(rule) {
                        let next =
                            if rules.elems[start as usize].is_end() { rest } else { self.stack(grammar, start, rest)? };
                        self.visit(next);
                    }
                }
                // Stacks never rest on an end; see `after`.
                Elem::Alt | Elem::End => {}
            }
        }
        Ok(())
    }

    fn check_cost(&self, grammar: &Grammar, stack: StackId) -> Result<(), GrammarLimit> {
        let cost = self.stacks[stack as usize].cost;
        if cost.calls > grammar.limits().max_expansion {
            return Err(GrammarLimit::Expansion);
        }
        if cost.depth > grammar.limits().max_recursion {
            return Err(GrammarLimit::Recursion);
        }
        Ok(())
    }

    fn clear_buffers(&mut self) {
        self.work.clear();
        self.seen.clear();
        self.found.clear();
    }

    fn start(&mut self, grammar: &Grammar) -> Result<SetId, GrammarLimit> {
        self.clear_buffers();
        let rules = grammar.rules();
        for &start in rules.alternates_of(rules.root) {
            let stack = if rules.elems[start as usize].is_end() { EMPTY } else { self.stack(grammar, start, EMPTY)? };
            self.visit(stack);
        }
        self.expand(grammar)?;
        self.intern_found(grammar)
    }

    /// Numbers the set in `found`.
    fn intern_found(&mut self, grammar: &Grammar) -> Result<SetId, GrammarLimit> {
        if self.found.is_empty() {
            return Ok(DEAD);
        }
        self.found.sort_unstable();
        if let Some(&id) = self.set_ids.get(self.found.as_slice()) {
            return Ok(id);
        }
        let bytes = 96 + self.found.len() * 4 + self.dense as usize * 4 + self.dense_states;
        self.grow(bytes, grammar.limits())?;
        let index = SetId::try_from(self.sets.len()).map_err(|_| GrammarLimit::TableBytes)?;
        let id = index.checked_add(FIRST_SET).ok_or(GrammarLimit::TableBytes)?;
        let stacks: Arc<[StackId]> = self.found.as_slice().into();
        self.sets.push(StackSet {
            accepting: stacks[0] == EMPTY,
            can_continue: stacks.len() > 1 || stacks[0] != EMPTY,
            stacks: Arc::clone(&stacks),
        });
        self.set_ids.insert(stacks, id);
        self.rows.resize(self.rows.len() + self.dense as usize, UNKNOWN);
        self.inside.resize(self.inside.len() + self.dense_states, 0);
        Ok(id)
    }

    /// The set after a whole character.
    #[inline]
    fn transition(&mut self, grammar: &Grammar, set: SetId, symbol: Symbol) -> SetId {
        if symbol < self.dense {
            let index = (set - FIRST_SET) as usize * self.dense as usize + symbol as usize;
            let known = self.rows[index];
            if known != UNKNOWN {
                return known;
            }
            let next = self.compute(grammar, set, symbol);
            if limit_of(next) != Some(GrammarLimit::TableBytes) {
                self.rows[index] = next;
            }
            return next;
        }
        if let Some(&known) = self.sparse.get(&(set, symbol)) {
            return known;
        }
        let next = self.compute(grammar, set, symbol);
        if limit_of(next) != Some(GrammarLimit::TableBytes) {
            if self.grow(24, grammar.limits()).is_err() {
                return code_of(GrammarLimit::TableBytes);
            }
            self.sparse.insert((set, symbol), next);
        }
        next
    }

    fn compute(&mut self, grammar: &Grammar, set: SetId, symbol: Symbol) -> SetId {
        self.clear_buffers();
        self.try_compute(grammar, set, symbol).unwrap_or_else(code_of)
    }

    fn try_compute(&mut self, grammar: &Grammar, set: SetId, symbol: Symbol) -> Result<SetId, GrammarLimit> {
        let stacks = Arc::clone(&self.set(set).stacks);
        for &id in stacks.iter() {
            if id == EMPTY {
                continue;
            }
            let Stack { pos, parent, .. } = self.stacks[id as usize];
            if let Elem::Char(class) = grammar.rules().elems[pos as usize]
                && grammar.alphabet().contains(class, symbol)
            {
                let next = self.after(grammar, pos, parent)?;
                self.check_cost(grammar, next)?;
                self.visit(next);
            }
        }
        self.expand(grammar)?;
        self.intern_found(grammar)
    }

    /// What is known of `set` inside a character: bits [`ALIVE`] and [`CUT_OK`].
    #[inline]
    fn inside(&mut self, grammar: &Grammar, set: SetId, utf8: Utf8State) -> u8 {
        if self.dense_states > 0 {
            let index = (set - FIRST_SET) as usize * self.dense_states + utf8 as usize;
            let known = self.inside[index];
            if known != 0 {
                return known;
            }
            let bits = self.look_inside(grammar, set, utf8);
            self.inside[index] = bits;
            return bits;
        }
        if let Some(&known) = self.inside_sparse.get(&(set, utf8)) {
            return known;
        }
        let bits = self.look_inside(grammar, set, utf8);
        // Without room the answer is just not kept.
        if self.grow(24, grammar.limits()).is_ok() {
            self.inside_sparse.insert((set, utf8), bits);
        }
        bits
    }

    fn look_inside(&self, grammar: &Grammar, set: SetId, utf8: Utf8State) -> u8 {
        let rules = grammar.rules();
        let alphabet = grammar.alphabet();
        let (low, high) = alphabet.span(utf8);
        let mut bits = KNOWN;
        for &id in self.set(set).stacks.iter() {
            if id == EMPTY {
                continue;
            }
            if let Elem::Char(class) = rules.elems[self.stacks[id as usize].pos as usize]
                && alphabet.can_become(utf8, class, &rules.scalars[class as usize])
            {
                bits |= ALIVE;
                if rules.classes[class as usize].engine_accepts_partial(low, high) {
                    bits |= CUT_OK;
                }
            }
        }
        bits
    }

    /// One byte further.
    #[inline]
    fn step(&mut self, grammar: &Grammar, at: Place, byte: u8) -> Result<Place, Stop> {
        match grammar.alphabet().step(at.utf8, byte) {
            Step::Symbol(symbol) if symbol != NO_SYMBOL => {
                let set = self.transition(grammar, at.set, symbol);
                if set >= FIRST_SET {
                    return Ok(Place { set, utf8: BETWEEN });
                }
                Err(limit_of(set).map_or(Stop::Dead, Stop::Limit))
            }
            Step::Inside(utf8) => {
                if self.inside(grammar, at.set, utf8) & ALIVE != 0 {
                    Ok(Place { set: at.set, utf8 })
                } else {
                    Err(Stop::Dead)
                }
            }
            _ => Err(if byte == 0 { Stop::Dead } else { Stop::NotUtf8 }),
        }
    }

    /// The stacks of a set as element lists, to be taken over into fresh tables.
    fn export(&self, set: SetId) -> Vec<Vec<u32>> {
        self.set(set)
            .stacks
            .iter()
            .map(|&id| {
                let mut id = id;
                let mut elements = Vec::new();
                while id != EMPTY {
                    let stack = self.stacks[id as usize];
                    elements.push(stack.pos);
                    id = stack.parent;
                }
                elements.reverse();
                elements
            })
            .collect()
    }

    fn import(&mut self, grammar: &Grammar, stacks: &[Vec<u32>]) -> Result<SetId, GrammarLimit> {
        self.clear_buffers();
        for elements in stacks {
            let mut id = EMPTY;
            for &pos in elements {
                id = self.stack(grammar, pos, id)?;
            }
            self.found.push(id);
        }
        self.intern_found(grammar)
    }
}

enum Stop {
    Dead,
    NotUtf8,
    Limit(GrammarLimit),
}

impl Grammar {
    /// A fresh matcher at the start of the text.
    #[must_use]
    pub fn matcher(&self) -> Matcher {
        Matcher::new(self.clone())
    }

    /// Whether the whole of `text` is one sentence of the grammar.
    ///
    /// Texts that hit a limit of the matcher count as not matching.
    #[must_use]
    pub fn matches(&self, text: &[u8]) -> bool {
        let mut matcher = self.matcher();
        matcher.accept_bytes(text).is_ok() && matcher.may_end()
    }
}

impl Matcher {
    pub(super) fn new(grammar: Grammar) -> Self {
        let mut matcher = Self {
            tables: Tables::new(&grammar),
            grammar,
            at: Place { set: DEAD, utf8: BETWEEN },
            offset: 0,
            ended: false,
            failed: None,
        };
        matcher.reset();
        matcher
    }

    /// Back to the start; the tables stay filled.
    pub fn reset(&mut self) {
        self.offset = 0;
        self.ended = false;
        self.failed = None;
        self.at.utf8 = BETWEEN;
        let start = match self.tables.start(&self.grammar) {
            Err(GrammarLimit::TableBytes) => {
                self.tables = Tables::new(&self.grammar);
                self.tables.start(&self.grammar)
            }
            other => other,
        };
        match start {
            Ok(set) => self.at.set = set,
            Err(limit) => self.failed = Some(self.limit_error(limit)),
        }
    }

    /// The grammar.
    #[must_use]
    pub fn grammar(&self) -> &Grammar {
        &self.grammar
    }

    /// Bytes accepted since the start.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Where the matcher stands.
    #[must_use]
    pub fn state(&self) -> GrammarState {
        if self.failed.is_some() {
            return GrammarState::Failed;
        }
        if self.ended {
            return GrammarState::Ended;
        }
        match (self.may_end(), self.can_continue()) {
            (false, _) => GrammarState::Active,
            (true, true) => GrammarState::MayEnd,
            (true, false) => GrammarState::Complete,
        }
    }

    /// Whether the text so far is a sentence of the grammar (also after an end token).
    #[must_use]
    pub fn may_end(&self) -> bool {
        self.failed.is_none() && self.at.utf8 == BETWEEN && self.tables.set(self.at.set).accepting
    }

    /// Whether some text can follow.
    #[must_use]
    pub fn can_continue(&self) -> bool {
        self.failed.is_none() && !self.ended && self.tables.set(self.at.set).can_continue
    }

    /// The error that the matcher is stuck in.
    #[must_use]
    pub fn error(&self) -> Option<&MatchError> {
        self.failed.as_ref()
    }

    /// Reads further bytes of the text.
    ///
    /// # Errors
    /// The first byte that does not fit, or a limit; every further call repeats the error.
    pub fn accept_bytes(&mut self, bytes: &[u8]) -> Result<GrammarState, MatchError> {
        self.check_open()?;
        self.run(bytes)?;
        self.make_room()?;
        Ok(self.state())
    }

    /// Reads a token's text, or its end of generation.
    ///
    /// Exactly the tokens that [`Self::mask`] allows are accepted.
    ///
    /// # Errors
    /// A token that may not come next; every further call repeats the error.
    pub fn accept_token(&mut self, trie: &TokenTrie, token: u32) -> Result<GrammarState, MatchError> {
        self.check_open()?;
        let Some(text) = trie.text(token) else {
            let vocabulary = u32::try_from(trie.vocabulary_len()).unwrap_or(u32::MAX);
            return Err(self.fail(MatchError::UnknownToken { token, vocabulary }));
        };
        if trie.is_end(token) {
            if !self.may_end() {
                return Err(self.fail(MatchError::EndTooEarly { offset: self.offset }));
            }
            self.ended = true;
            return Ok(GrammarState::Ended);
        }
        if text.is_empty() {
            return Err(self.fail(MatchError::NotText { token }));
        }
        self.run(text)?;
        if !self.cut_ok(self.at) {
            return Err(self.fail(MatchError::CutCharacter { token }));
        }
        self.make_room()?;
        Ok(self.state())
    }

    /// Whether the bytes fit at this place; the place does not change.
    pub fn allows_bytes(&mut self, bytes: &[u8]) -> bool {
        self.check_closed().is_none() && self.probe(bytes).is_some()
    }

    /// Whether the token fits at this place, as [`Self::mask`] has it; the place does not change.
    pub fn allows_token(&mut self, trie: &TokenTrie, token: u32) -> bool {
        if self.check_closed().is_some() {
            return false;
        }
        if trie.is_end(token) {
            return self.may_end();
        }
        let Some(text) = trie.text(token).filter(|text| !text.is_empty()) else { return false };
        self.probe(text).is_some_and(|at| self.cut_ok(at))
    }

    /// The tokens that may come next.
    ///
    /// A token is allowed if its whole text fits, and, if its text ends inside a character, if the
    /// engine's own grammar would allow it there (it refuses some cuts that could still turn out
    /// well, so that this mask is never wider than the engine's). End-of-generation tokens are
    /// allowed exactly when the text so far is a sentence; tokens without text never are.
    ///
    /// Masks are cached for the places of this grammar and vocabulary.
    ///
    /// # Errors
    /// The error that the matcher is stuck in, or [`MatchError::AlreadyEnded`].
    pub fn mask(&mut self, trie: &TokenTrie) -> Result<Arc<TokenMask>, MatchError> {
        if let Some(error) = self.check_closed() {
            return Err(error);
        }
        if self.tables.vocabulary != Some(trie.id()) {
            self.tables.masks.clear();
            self.tables.mask_order.clear();
            self.tables.vocabulary = Some(trie.id());
        }
        if let Some(mask) = self.tables.masks.get(&(self.at.set, self.at.utf8)) {
            return Ok(Arc::clone(mask));
        }
        let (mut mask, mut out_of_room) = self.walk(trie);
        if out_of_room {
            self.rebuild()?;
            (mask, out_of_room) = self.walk(trie);
        }
        let mask = Arc::new(mask);
        if !out_of_room {
            let key = (self.at.set, self.at.utf8);
            if self.tables.mask_order.len() >= self.grammar.limits().max_cached_masks
                && let Some(oldest) = self.tables.mask_order.pop_front()
                && let Some(old) = self.tables.masks.remove(&oldest)
            {
                self.tables.bytes = self.tables.bytes.saturating_sub(old.size());
            }
            if self.grammar.limits().max_cached_masks > 0 {
                self.tables.bytes += mask.size();
                self.tables.masks.insert(key, Arc::clone(&mask));
                self.tables.mask_order.push_back(key);
            }
        }
        self.make_room()?;
        Ok(mask)
    }

    /// Walks the tree of texts; also says whether the tables ran out of room.
    fn walk(&mut self, trie: &TokenTrie) -> (TokenMask, bool) {
        let mut mask = TokenMask::none(trie.vocabulary_len());
        let mut out_of_room = false;
        if self.may_end() {
            for &token in trie.ends() {
                mask.allow(token);
            }
        }
        let grammar = &self.grammar;
        let tables = &mut self.tables;
        // Places by depth; a node's parent is the last node one level up.
        let mut path = vec![self.at; trie.max_depth() + 1];
        let nodes = trie.nodes();
        let mut index = 0;
        while let Some(node) = nodes.get(index) {
            let depth = usize::from(node.depth);
            match tables.step(grammar, path[depth - 1], node.byte) {
                Ok(at) => {
                    path[depth] = at;
                    let tokens = trie.tokens_at(node);
                    if !tokens.is_empty()
                        && (at.utf8 == BETWEEN || tables.inside(grammar, at.set, at.utf8) & CUT_OK != 0)
                    {
                        for &token in tokens {
                            mask.allow(token);
                        }
                    }
                    index += 1;
                }
                Err(stop) => {
                    if let Stop::Limit(limit) = stop {
                        mask.set_limited();
                        if limit == GrammarLimit::TableBytes {
                            out_of_room = true;
                            break;
                        }
                    }
                    index = node.skip as usize;
                }
            }
        }
        (mask, out_of_room)
    }

    fn cut_ok(&mut self, at: Place) -> bool {
        let Place { set, utf8 } = at;
        utf8 == BETWEEN || self.tables.inside(&self.grammar, set, utf8) & CUT_OK != 0
    }

    /// The place after `bytes`, without going there; `None` if they don't fit.
    fn probe(&mut self, bytes: &[u8]) -> Option<Place> {
        self.make_room().ok()?;
        for attempt in 0..2 {
            let mut at = Ok(self.at);
            for &byte in bytes {
                let Ok(from) = at else { break };
                at = self.tables.step(&self.grammar, from, byte);
            }
            match at {
                Err(Stop::Limit(GrammarLimit::TableBytes)) if attempt == 0 => {
                    self.rebuild().ok()?;
                }
                other => return other.ok(),
            }
        }
        None
    }

    fn run(&mut self, bytes: &[u8]) -> Result<(), MatchError> {
        for &byte in bytes {
            let mut step = self.tables.step(&self.grammar, self.at, byte);
            if matches!(step, Err(Stop::Limit(GrammarLimit::TableBytes))) {
                self.rebuild()?;
                step = self.tables.step(&self.grammar, self.at, byte);
            }
            let offset = self.offset;
            match step {
                Ok(at) => {
                    self.at = at;
                    self.offset += 1;
                }
                Err(Stop::Dead) => return Err(self.fail(MatchError::Rejected { offset, byte })),
                Err(Stop::NotUtf8) => {
                    return Err(self.fail(MatchError::InvalidUtf8 { offset, byte }));
                }
                Err(Stop::Limit(limit)) => {
                    let error = self.limit_error(limit);
                    return Err(self.fail(error));
                }
            }
        }
        Ok(())
    }

    fn limit_error(&self, limit: GrammarLimit) -> MatchError {
        let limits = self.grammar.limits();
        let max = match limit {
            GrammarLimit::Stacks => limits.max_stacks as u64,
            GrammarLimit::StackDepth => limits.max_stack_depth.into(),
            GrammarLimit::Expansion => limits.max_expansion.into(),
            GrammarLimit::Recursion => limits.max_recursion.into(),
            _ => limits.max_table_bytes as u64,
        };
        MatchError::Limit { limit, max, offset: self.offset }
    }

    fn fail(&mut self, error: MatchError) -> MatchError {
        self.failed = Some(error.clone());
        error
    }

    fn check_closed(&self) -> Option<MatchError> {
        self.failed.clone().or_else(|| self.ended.then_some(MatchError::AlreadyEnded))
    }

    fn check_open(&mut self) -> Result<(), MatchError> {
        match self.check_closed() {
            Some(error) => Err(self.fail(error)),
            None => Ok(()),
        }
    }

    /// Empties the tables when they are half full.
    fn make_room(&mut self) -> Result<(), MatchError> {
        if self.tables.bytes > self.grammar.limits().max_table_bytes / 2 {
            self.rebuild()?;
        }
        Ok(())
    }

    /// Fresh tables that know only the present place.
    fn rebuild(&mut self) -> Result<(), MatchError> {
        let stacks = self.tables.export(self.at.set);
        self.tables = Tables::new(&self.grammar);
        match self.tables.import(&self.grammar, &stacks) {
            Ok(set) => {
                self.at.set = set;
                Ok(())
            }
            Err(limit) => {
                let error = self.limit_error(limit);
                Err(self.fail(error))
            }
        }
    }
}

impl Clone for Matcher {
    /// A matcher at the same place, with tables of its own.
    fn clone(&self) -> Self {
        let mut tables = Tables::new(&self.grammar);
        let mut at = self.at;
        let mut failed = self.failed.clone();
        if failed.is_none() {
            match tables.import(&self.grammar, &self.tables.export(self.at.set)) {
                Ok(set) => at.set = set,
                Err(limit) => failed = Some(self.limit_error(limit)),
            }
        }
        let grammar = self.grammar.clone();
        Self { grammar, tables, at, offset: self.offset, ended: self.ended, failed }
    }
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher")
            .field("state", &self.state())
            .field("offset", &self.offset)
            .field("error", &self.failed)
            .finish_non_exhaustive()
    }
}
