//! Syntax tree to the engine's own flat rules, and the checks that need them.
//!
//! Groups and repetitions are expanded exactly as the engine expands them, so that the sizes,
//! the stacks and the costs computed here are the engine's.

use std::collections::HashMap;

use super::charset::CharClass;
use super::error::{GrammarError, Position, shorten};
use super::limits::{GrammarLimit, GrammarLimits};
use super::syntax::{Ast, Item, ItemKind, NameId, Sequence};

pub(super) type ClassId = u32;
pub(super) type RuleId = u32;

/// One element of a flat rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Elem {
    /// One character of a class.
    Char(ClassId),
    /// A rule.
    Ref(RuleId),
    /// End of an alternate, another follows.
    Alt,
    /// End of the rule.
    End,
}

impl Elem {
    pub(super) fn is_end(self) -> bool {
        matches!(self, Self::Alt | Self::End)
    }
}

/// What the engine's expansion costs from one place to the end of its alternate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    /// Calls of the engine's recursive expansion.
    pub(super) calls: u32,
    /// Ways in which everything up to the end of the alternate can be empty.
    pub(super) empty_ways: u32,
    /// Depth of the recursion.
    pub(super) depth: u32,
    /// Depth of the recursion when it passes through to the end of the alternate.
    pub(super) empty_depth: u32,
}

/// Compiled rules.
pub(super) struct Rules {
    pub(super) elems: Vec<Elem>,
    /// Per rule, where its alternates lie in `alternates`.
    pub(super) alternate_range: Vec<(u32, u32)>,
    /// Starts of alternates in `elems`.
    pub(super) alternates: Vec<u32>,
    /// Per rule, start of an alternate whose references all finish earlier than the rule itself.
    pub(super) exit: Vec<u32>,
    /// Per element.
    pub(super) costs: Vec<Cost>,
    pub(super) classes: Vec<CharClass>,
    /// Per class, the scalar values that match ([`CharClass::scalars`]).
    pub(super) scalars: Vec<Vec<(u32, u32)>>,
    pub(super) root: RuleId,
}

impl Rules {
    pub(super) fn alternates_of(&self, rule: RuleId) -> &[u32] {
        let (start, end) = self.alternate_range[rule as usize];
        &self.alternates[start as usize..end as usize]
    }
}

pub(super) fn compile(ast: &Ast, root: NameId, text: &str, limits: &GrammarLimits) -> Result<Rules, GrammarError> {
    let mut compiler = Compiler {
        text,
        limits,
        rules: Vec::new(),
        origins: Vec::new(),
        classes: Vec::new(),
        class_ids: HashMap::new(),
        repeats: Vec::new(),
        spent: 0,
    };
    for (name, definition) in ast.rules.iter().enumerate() {
        compiler.add_rule(name, definition.at)?;
    }
    for (name, definition) in ast.rules.iter().enumerate() {
        compiler.alternates(&definition.alternates, name, name, 1)?;
    }
    let Compiler { rules, origins, classes, repeats, .. } = compiler;
    let analysis = Analysis { ast, text, limits, origins };
    analysis.run(&rules, repeats, classes, root)
}

/// Where a flat rule comes from: the named rule, and a byte offset.
#[derive(Clone, Copy)]
struct Origin {
    name: NameId,
    at: usize,
}

/// A repetition of more than one turn, to be checked for emptiness.
struct Repeat {
    origin: Origin,
    body: Vec<Elem>,
}

struct Compiler<'a> {
    text: &'a str,
    limits: &'a GrammarLimits,
    rules: Vec<Vec<Elem>>,
    origins: Vec<Origin>,
    classes: Vec<CharClass>,
    class_ids: HashMap<CharClass, ClassId>,
    repeats: Vec<Repeat>,
    spent: usize,
}

impl Compiler<'_> {
    fn over(&self, limit: GrammarLimit, value: u64, max: usize, at: usize) -> GrammarError {
        let at = Position::of(self.text, at);
        GrammarError::Limit { limit, value, max: max as u64, at }
    }

    fn spend(&mut self, elements: usize, at: usize) -> Result<(), GrammarError> {
        self.spent = self.spent.saturating_add(elements);
        if self.spent > self.limits.max_elements {
            let (value, max) = (self.spent as u64, self.limits.max_elements);
            return Err(self.over(GrammarLimit::Elements, value, max, at));
        }
        Ok(())
    }

    fn add_rule(&mut self, name: NameId, at: usize) -> Result<usize, GrammarError> {
        let id = self.rules.len();
        if id >= self.limits.max_rules {
            let (value, max) = (id as u64 + 1, self.limits.max_rules);
            return Err(self.over(GrammarLimit::Rules, value, max, at));
        }
        self.rules.push(Vec::new());
        self.origins.push(Origin { name, at });
        Ok(id)
    }

    fn class(&mut self, class: &CharClass, at: usize) -> Result<ClassId, GrammarError> {
        if let Some(&id) = self.class_ids.get(class) {
            return Ok(id);
        }
        let count = self.classes.len();
        if count >= self.limits.max_classes {
            let (value, max) = (count as u64 + 1, self.limits.max_classes);
            return Err(self.over(GrammarLimit::Classes, value, max, at));
        }
        let id = ClassId::try_from(count).unwrap_or(ClassId::MAX);
        self.classes.push(class.clone());
        self.class_ids.insert(class.clone(), id);
        Ok(id)
    }

    /// Compiles the alternates of flat rule `rule`; `turns` is the product of the enclosing
    /// repetition counts.
    fn alternates(
        &mut self,
        alternates: &[Sequence],
        rule: usize,
        name: NameId,
        turns: u64,
    ) -> Result<(), GrammarError> {
        let at = self.origins[rule].at;
        let mut out = Vec::new();
        for (index, sequence) in alternates.iter().enumerate() {
            if index > 0 {
                self.spend(1, at)?;
                out.push(Elem::Alt);
            }
            for item in sequence {
                self.item(item, &mut out, name, turns)?;
            }
        }
        self.spend(1, at)?;
        out.push(Elem::End);
        self.rules[rule] = out;
        Ok(())
    }

    fn item(&mut self, item: &Item, out: &mut Vec<Elem>, name: NameId, turns: u64) -> Result<(), GrammarError> {
        match &item.kind {
            ItemKind::Literal(characters) => {
                self.spend(characters.len(), item.at)?;
                for &character in characters {
                    let class = self.class(&CharClass::single(character), item.at)?;
                    out.push(Elem::Char(class));
                }
            }
            ItemKind::Class(class) => {
                self.spend(1, item.at)?;
                let class = self.class(class, item.at)?;
                out.push(Elem::Char(class));
            }
            ItemKind::Reference(rule) => {
                self.spend(1, item.at)?;
                out.push(Elem::Ref(rule_id(*rule)));
            }
            ItemKind::Group(alternates) => {
                self.spend(1, item.at)?;
                let rule = self.add_rule(name, item.at)?;
                self.alternates(alternates, rule, name, turns)?;
                out.push(Elem::Ref(rule_id(rule)));
            }
            ItemKind::Repeat { body, min, max } => {
                let most = max.unwrap_or(*min).max(1);
                let turns = turns.saturating_mul(u64::from(most));
                if turns > self.limits.max_repetition_product {
                    let at = Position::of(self.text, item.at);
                    return Err(GrammarError::Limit {
                        limit: GrammarLimit::RepetitionProduct,
                        value: turns,
                        max: self.limits.max_repetition_product,
                        at,
                    });
                }
                self.repeat(body, *min, *max, out, name, turns)?;
            }
        }
        Ok(())
    }

    /// The engine's rewriting: `S{m,n}` becomes m times `S`, then a chain of n − m rules
    /// `S'(k) ::= S S'(k-1) |`; without end it is one rule `S' ::= S S' |`.
    fn repeat(
        &mut self,
        body: &Item,
        min: u32,
        max: Option<u32>,
        out: &mut Vec<Elem>,
        name: NameId,
        turns: u64,
    ) -> Result<(), GrammarError> {
        let start = out.len();
        self.item(body, out, name, turns)?;
        let elems = out[start..].to_vec();
        if min == 0 {
            out.truncate(start);
        }
        for _ in 1..min {
            self.spend(elems.len(), body.at)?;
            out.extend_from_slice(&elems);
        }
        let optional = max.map_or(1, |max| max - min);
        let mut last = None;
        for _ in 0..optional {
            self.spend(elems.len() + 3, body.at)?;
            let rule = self.add_rule(name, body.at)?;
            let mut flat = elems.clone();
            match (max, last) {
                (None, _) => flat.push(Elem::Ref(rule_id(rule))),
                (Some(_), Some(last)) => flat.push(Elem::Ref(rule_id(last))),
                (Some(_), None) => {}
            }
            flat.extend([Elem::Alt, Elem::End]);
            self.rules[rule] = flat;
            last = Some(rule);
        }
        if let Some(last) = last {
            out.push(Elem::Ref(rule_id(last)));
        }
        if max.is_none_or(|max| max > 1) {
            self.spend(elems.len(), body.at)?;
            self.repeats.push(Repeat { origin: Origin { name, at: body.at }, body: elems });
        }
        Ok(())
    }
}

/// Rules number at most `max_rules`; a limit raised beyond 32 bits would need that much text.
fn rule_id(index: usize) -> RuleId {
    RuleId::try_from(index).unwrap_or(RuleId::MAX)
}

fn index32(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

struct Analysis<'a> {
    ast: &'a Ast,
    text: &'a str,
    limits: &'a GrammarLimits,
    origins: Vec<Origin>,
}

impl Analysis<'_> {
    fn at(&self, rule: usize) -> Position {
        Position::of(self.text, self.origins[rule].at)
    }

    fn name(&self, rule: usize) -> String {
        shorten(&self.ast.names[self.origins[rule].name])
    }

    fn run(
        &self,
        rules: &[Vec<Elem>],
        repeats: Vec<Repeat>,
        classes: Vec<CharClass>,
        root: NameId,
    ) -> Result<Rules, GrammarError> {
        let mut flat = Rules {
            elems: Vec::new(),
            alternate_range: Vec::with_capacity(rules.len()),
            alternates: Vec::new(),
            exit: vec![0; rules.len()],
            costs: Vec::new(),
            scalars: classes.iter().map(CharClass::scalars).collect(),
            classes,
            root: rule_id(root),
        };
        for rule in rules {
            let first = index32(flat.alternates.len());
            flat.alternates.push(index32(flat.elems.len()));
            for &elem in rule {
                flat.elems.push(elem);
                if elem == Elem::Alt {
                    flat.alternates.push(index32(flat.elems.len()));
                }
            }
            flat.alternate_range.push((first, index32(flat.alternates.len())));
        }
        let count = rules.len();

        let nullable = reachable_from_leaves(&flat, count, false);
        for repeat in &repeats {
            let empty = repeat.body.iter().all(|elem| match elem {
                Elem::Ref(rule) => nullable[*rule as usize].is_some(),
                _ => false,
            });
            if empty {
                return Err(GrammarError::EmptyRepetition {
                    rule: shorten(&self.ast.names[repeat.origin.name]),
                    at: Position::of(self.text, repeat.origin.at),
                });
            }
        }

        let finishing = reachable_from_leaves(&flat, count, true);
        for (rule, exit) in finishing.iter().enumerate() {
            match exit {
                Some(start) => flat.exit[rule] = *start,
                None => {
                    return Err(GrammarError::NeverFinishes { rule: self.name(rule), at: self.at(rule) });
                }
            }
        }

        let order = self.left_corner_order(&flat, &nullable)?;
        self.costs(&mut flat, &nullable, &order)?;
        Ok(flat)
    }

    /// Rules in an order in which everything a rule can begin with comes before it.
    fn left_corner_order(&self, flat: &Rules, nullable: &[Option<u32>]) -> Result<Vec<usize>, GrammarError> {
        let count = nullable.len();
        let corners: Vec<Vec<RuleId>> = (0..count)
            .map(|rule| {
                let mut refs = Vec::new();
                for &start in flat.alternates_of(rule_id(rule)) {
                    for elem in &flat.elems[start as usize..] {
                        let Elem::Ref(target) = *elem else { break };
                        refs.push(target);
                        if nullable[target as usize].is_none() {
                            break;
                        }
                    }
                }
                refs.sort_unstable();
                refs.dedup();
                refs
            })
            .collect();

        #[derive(Clone, Copy, PartialEq)]
        enum Mark {
            New,
            Open,
            Done,
        }
        let mut marks = vec![Mark::New; count];
        let mut order = Vec::with_capacity(count);
        for start in 0..count {
            if marks[start] != Mark::New {
                continue;
            }
            let mut path = vec![(start, 0)];
            marks[start] = Mark::Open;
            while let Some((rule, next)) = path.last_mut() {
                let Some(&target) = corners[*rule].get(*next) else {
                    marks[*rule] = Mark::Done;
                    order.push(*rule);
                    path.pop();
                    continue;
                };
                *next += 1;
                let target = target as usize;
                match marks[target] {
                    Mark::Done => {}
                    Mark::New => {
                        marks[target] = Mark::Open;
                        path.push((target, 0));
                    }
                    Mark::Open => {
                        let from = path.iter().position(|&(rule, _)| rule == target).unwrap_or(0);
                        return Err(self.left_recursion(&path[from..]));
                    }
                }
            }
        }
        Ok(order)
    }

    fn left_recursion(&self, path: &[(usize, usize)]) -> GrammarError {
        let mut names: Vec<NameId> = path.iter().map(|&(rule, _)| self.origins[rule].name).collect();
        names.dedup();
        if names.len() > 1 && names.first() == names.last() {
            names.pop();
        }
        // Start with the rule that the text defines first, so that the message is stable.
        let first =
            names.iter().enumerate().min_by_key(|&(_, &name)| self.ast.rules[name].at).map_or(0, |(index, _)| index);
        names.rotate_left(first);
        let start = names.first().copied().unwrap_or(0);
        names.push(start);
        let cycle: Vec<&str> = names.iter().map(|&name| self.ast.names[name].as_str()).collect();
        GrammarError::LeftRecursion {
            at: Position::of(self.text, self.ast.rules[start].at),
            cycle: shorten(&cycle.join(" -> ")),
        }
    }

    /// Costs of the engine's expansion (`llama_grammar_advance_stack`, and its check for left
    /// recursion, which walks the same paths), per element and bounded.
    fn costs(&self, flat: &mut Rules, nullable: &[Option<u32>], order: &[usize]) -> Result<(), GrammarError> {
        let end = Cost { calls: 1, empty_ways: 1, depth: 1, empty_depth: 0 };
        let mut of_rule = vec![end; nullable.len()];
        for &rule in order {
            let mut total = Cost { calls: 1, empty_ways: 0, depth: 1, empty_depth: 0 };
            for &start in flat.alternates_of(rule_id(rule)) {
                let cost = first_costs(flat, start as usize, nullable, &of_rule);
                total.calls = total.calls.saturating_add(cost.calls);
                total.empty_ways = total.empty_ways.saturating_add(cost.empty_ways);
                total.depth = total.depth.max(cost.depth.saturating_add(1));
                total.empty_depth = total.empty_depth.max(cost.empty_depth.saturating_add(1));
            }
            for (limit, value, max) in [
                (GrammarLimit::Expansion, total.calls, self.limits.max_expansion),
                (GrammarLimit::Recursion, total.depth, self.limits.max_recursion),
            ] {
                if value > max {
                    let (value, max) = (value.into(), max.into());
                    return Err(GrammarError::Limit { limit, value, max, at: self.at(rule) });
                }
            }
            of_rule[rule] = total;
        }
        // The engine's check walks from every rule anew.
        let total = of_rule.iter().fold(0_u64, |sum, cost| sum + u64::from(cost.calls));
        let max = u64::from(self.limits.max_expansion) << 9;
        if total > max {
            let limit = GrammarLimit::Expansion;
            return Err(GrammarError::Limit { limit, value: total, max, at: self.at(0) });
        }

        // From each element to the end of its alternate, back to front.
        let mut costs = vec![end; flat.elems.len()];
        for index in (0..flat.elems.len()).rev() {
            costs[index] = match flat.elems[index] {
                Elem::Alt | Elem::End => end,
                Elem::Char(_) => Cost { calls: 1, empty_ways: 0, depth: 1, empty_depth: 0 },
                Elem::Ref(rule) => chain(of_rule[rule as usize], costs[index + 1]),
            };
        }
        flat.costs = costs;
        Ok(())
    }
}

/// The cost of `first` followed by `rest`.
fn chain(first: Cost, rest: Cost) -> Cost {
    if first.empty_ways == 0 {
        return first;
    }
    Cost {
        calls: first.calls.saturating_add(first.empty_ways.saturating_mul(rest.calls)),
        empty_ways: first.empty_ways.saturating_mul(rest.empty_ways),
        depth: first.depth.max(first.empty_depth.saturating_add(rest.depth)),
        empty_depth: first.empty_depth.saturating_add(rest.empty_depth),
    }
}

impl Cost {
    /// The cost of a stack whose top is this and whose rest costs `parent`.
    pub(super) fn then(self, parent: Self) -> Self {
        chain(self, parent)
    }

    /// An empty stack.
    pub(super) const EMPTY: Self = Self { calls: 1, empty_ways: 1, depth: 1, empty_depth: 0 };
}

/// Cost of the alternate at `start`; only what can come first is looked at.
fn first_costs(flat: &Rules, start: usize, nullable: &[Option<u32>], of_rule: &[Cost]) -> Cost {
    let mut firsts = Vec::new();
    let mut last = Cost::EMPTY;
    for elem in &flat.elems[start..] {
        match *elem {
            Elem::Alt | Elem::End => break,
            Elem::Char(_) => {
                last = Cost { calls: 1, empty_ways: 0, depth: 1, empty_depth: 0 };
                break;
            }
            Elem::Ref(rule) => {
                firsts.push(of_rule[rule as usize]);
                if nullable[rule as usize].is_none() {
                    break;
                }
            }
        }
    }
    firsts.into_iter().rev().fold(last, |rest, first| chain(first, rest))
}

/// Least fixpoint from below: per rule, the start of the alternate that first qualified.
///
/// With `characters`, an alternate qualifies when all its references do (the rule has a finite
/// text); without, when moreover it has no characters (the rule may be empty).
fn reachable_from_leaves(flat: &Rules, count: usize, characters: bool) -> Vec<Option<u32>> {
    let mut found = vec![None; count];
    let mut ready = std::collections::VecDeque::new();
    // Per alternate: its rule and the references that do not qualify yet.
    let mut waiting: Vec<(usize, u32)> = Vec::with_capacity(flat.alternates.len());
    let mut uses: Vec<Vec<u32>> = vec![Vec::new(); count];
    for (rule, slot) in found.iter_mut().enumerate() {
        for &start in flat.alternates_of(rule_id(rule)) {
            let alternate = index32(waiting.len());
            let mut open = 0;
            let mut blocked = false;
            for elem in &flat.elems[start as usize..] {
                match *elem {
                    Elem::Alt | Elem::End => break,
                    Elem::Char(_) => blocked |= !characters,
                    Elem::Ref(target) => {
                        open += 1;
                        uses[target as usize].push(alternate);
                    }
                }
            }
            if blocked {
                open = u32::MAX;
            } else if open == 0 && slot.is_none() {
                *slot = Some(start);
                ready.push_back(rule);
            }
            waiting.push((rule, open));
        }
    }
    while let Some(rule) = ready.pop_front() {
        for &alternate in &uses[rule] {
            let (user, open) = &mut waiting[alternate as usize];
            if *open == u32::MAX {
                continue;
            }
            *open -= 1;
            if *open == 0 && found[*user].is_none() {
                found[*user] = Some(flat.alternates[alternate as usize]);
                ready.push_back(*user);
            }
        }
    }
    found
}
