//! From subschemas to shapes: a small language of values that a grammar can be written down from.
//!
//! A shape belongs to a *conjunction* of conditions on one value: subschemas that must hold, subschemas that must not,
//! and what follows from them. A conjunction is expanded into branches without combinators (`anyOf`, `not`, `if`,
//! dependencies become alternatives), each branch gives one shape per type. Recursion closes because equal
//! conjunctions share a shape.
//!
//! The law: **a shape never leaves out a value that the conjunction allows**, except in the ways that
//! [`Mode`](super::Mode) and the spelling name. What cannot be written down is left out of the conjunction and its place
//! is noted in [`Shapes::inexact`]; the validator decides it later.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use llguidance::derivre::RegexAst;

use super::error::{Place, SchemaError, SchemaErrorKind};
use super::formats::Format;
use super::json::Json;
use super::judge::Judge;
use super::limits::SchemaLimits;
use super::numbers::{NumberForm, NumberRange};
use super::options::Mode;
use super::pattern::{Pattern, anything, matcher_of};
use super::read::{Bound, Keywords, Meaning, NodeId, Table, kind};

pub(crate) type ShapeId = u32;

/// A set of JSON values.
#[derive(Debug)]
pub(crate) enum Shape {
    /// Still to be filled in.
    Pending,
    Never,
    /// A scalar's whole text.
    Text(RegexAst),
    /// A string with these contents.
    String(RegexAst),
    Either(Vec<ShapeId>),
    Array {
        prefix: Vec<ShapeId>,
        rest: Option<ShapeId>,
        min: u64,
        max: Option<u64>,
    },
    /// Items of `rest` with at least one of `hit` among them.
    Containing {
        rest: ShapeId,
        hit: ShapeId,
    },
    Object {
        fields: Vec<Field>,
        free: Vec<(RegexAst, ShapeId)>,
        min: u64,
        max: Option<u64>,
        order: Order,
    },
}

/// In which order an object's properties come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// That of `fields`.
    Written,
    /// Any. The first `tracked` fields come at most once, and those of them that are required come.
    Any { tracked: usize },
}

/// Fields that a grammar of any order keeps track of; it grows by a factor of two with each.
const MAX_TRACKED: usize = 4;

/// A property with a name of its own.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: Arc<str>,
    pub(crate) value: ShapeId,
    pub(crate) required: bool,
}

/// All shapes of a schema.
pub(crate) struct Shapes {
    pub(crate) all: Vec<Shape>,
    pub(crate) root: ShapeId,
    /// Keywords that the shapes leave to the validator.
    pub(crate) inexact: BTreeSet<Place>,
}

/// A condition on a value. A conjunction is a sorted list of them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Condition {
    Holds(NodeId),
    Fails(NodeId),
    /// One of these types.
    Kinds(u8),
    /// An object has (not) this property.
    Has(Arc<str>),
    HasNot(Arc<str>),
    /// An object's property fails a schema.
    FieldFails(Arc<str>, NodeId),
    /// One assertion of a schema fails.
    Violates(NodeId, Assertion),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Assertion {
    Constant(usize),
    Lower(usize),
    Upper(usize),
    MultipleOf,
    MinLength,
    MaxLength,
    Pattern,
    Format,
    MinItems,
    MaxItems,
    MinProperties,
    MaxProperties,
}

type Conjunction = Vec<Condition>;

/// A conjunction without combinators.
#[derive(Debug, Clone)]
struct Branch {
    conditions: BTreeSet<Condition>,
    kinds: u8,
}

struct Choice {
    alternatives: Vec<Conjunction>,
    keyword: &'static str,
    at: NodeId,
    /// Types for which it matters.
    kinds: u8,
}

struct Partial {
    todo: Vec<Condition>,
    branch: Branch,
    choices: VecDeque<Choice>,
}

/// Members of one `oneOf` that are compared.
const MAX_COMPARED: usize = 40;
/// Alternatives that a negated branch of `oneOf` may bring.
const MAX_NEGATIONS: usize = 12;
/// Alternatives of a single combinator.
const MAX_SINGLE: usize = 4_096;
/// Different patterns of one object, and classes of keys that they make.
const MAX_PATTERNS: usize = 16;
/// Steps of counting properties.
const MAX_COUNTED: u64 = 3_000;

pub(crate) struct Shaper<'t> {
    table: &'t Table,
    limits: &'t SchemaLimits,
    mode: Mode,
    shapes: Vec<Shape>,
    known: HashMap<Conjunction, ShapeId>,
    queue: Vec<(Conjunction, ShapeId)>,
    inexact: BTreeSet<Place>,
    /// The first contradiction that was met.
    reason: Option<SchemaError>,
    steps: usize,
    judge: Judge<'t>,
    /// Why a schema is negated.
    negated_by: HashMap<NodeId, (&'static str, NodeId)>,
    /// `oneOf`s that were looked at: what to add to each member.
    exclusive: HashMap<NodeId, Vec<Conjunction>>,
    anything: Option<ShapeId>,
    /// Notes of what is inexact and why nothing fits are not taken while asking.
    asking: usize,
}

impl<'t> Shaper<'t> {
    pub(crate) fn new(table: &'t Table, limits: &'t SchemaLimits, mode: Mode) -> Self {
        Self {
            table,
            limits,
            mode,
            shapes: Vec::new(),
            known: HashMap::new(),
            queue: Vec::new(),
            inexact: BTreeSet::new(),
            reason: None,
            steps: 0,
            judge: Judge::new(table, limits.max_validation_steps),
            negated_by: HashMap::new(),
            exclusive: HashMap::new(),
            anything: None,
            asking: 0,
        }
    }

    /// The shapes of the root schema.
    pub(crate) fn run(mut self, kinds: u8) -> Result<Shapes, SchemaError> {
        let mut conditions = vec![Condition::Holds(0)];
        if kinds != kind::ALL {
            conditions.push(Condition::Kinds(kinds));
        }
        let root = self.shape(conditions)?;
        while let Some((conjunction, id)) = self.queue.pop() {
            let shape = self.conjunction(&conjunction)?;
            self.shapes[id as usize] = shape;
        }
        prune(&mut self.shapes);
        if matches!(self.shapes[root as usize], Shape::Never) {
            return Err(self.reason.unwrap_or_else(|| {
                SchemaError::new(SchemaErrorKind::Unsatisfiable, "", "(schema)", "allows no value")
            }));
        }
        Ok(Shapes { all: self.shapes, root, inexact: self.inexact })
    }

    // ---- notes ----

    fn inexact(&mut self, at: NodeId, keyword: &str) {
        if self.asking == 0 {
            self.inexact.insert(Place { keyword: keyword.to_owned(), pointer: self.table.pointer(at).to_owned() });
        }
    }

    fn nothing_fits(&mut self, at: NodeId, keyword: &str, reason: &str) {
        if self.reason.is_none() && self.asking == 0 {
            let reason = format!("no value fits: {reason}");
            self.reason =
                Some(SchemaError::new(SchemaErrorKind::Unsatisfiable, self.table.pointer(at), keyword, reason));
        }
    }

    fn step(&mut self) -> Result<(), SchemaError> {
        self.steps += 1;
        if self.steps > self.limits.max_expansion {
            let max = self.limits.max_expansion as u64;
            return Err(SchemaError::too_large("", "(schema)", "steps of combining subschemas", max + 1, max));
        }
        Ok(())
    }

    fn k(&self, id: NodeId) -> Option<&'t Keywords> {
        self.table.keywords(id)
    }

    fn is_true(&self, id: NodeId) -> bool {
        match &self.table.nodes[id as usize].meaning {
            Meaning::Bool(b) => *b,
            Meaning::Keywords(_) => false,
        }
    }

    fn is_false(&self, id: NodeId) -> bool {
        matches!(self.table.nodes[id as usize].meaning, Meaning::Bool(false))
    }

    // ---- shapes ----

    fn push(&mut self, shape: Shape) -> ShapeId {
        self.shapes.push(shape);
        u32::try_from(self.shapes.len() - 1).unwrap_or(u32::MAX)
    }

    fn shape(&mut self, mut conjunction: Conjunction) -> Result<ShapeId, SchemaError> {
        conjunction.retain(|c| !matches!(c, Condition::Holds(id) if self.is_true(*id)));
        conjunction.sort();
        conjunction.dedup();
        if conjunction.is_empty() {
            return Ok(self.any());
        }
        if let Some(&id) = self.known.get(&conjunction) {
            return Ok(id);
        }
        if self.known.len() >= self.limits.max_conjunctions {
            let max = self.limits.max_conjunctions as u64;
            return Err(SchemaError::too_large("", "(schema)", "combinations of subschemas", max + 1, max));
        }
        let id = self.push(Shape::Pending);
        self.known.insert(conjunction.clone(), id);
        self.queue.push((conjunction, id));
        Ok(id)
    }

    fn number_form(&self) -> NumberForm {
        match self.mode {
            Mode::Declared => NumberForm::Plain,
            Mode::Open => NumberForm::Any,
        }
    }

    /// Any JSON value.
    fn any(&mut self) -> ShapeId {
        if let Some(id) = self.anything {
            return id;
        }
        let id = self.push(Shape::Pending);
        self.anything = Some(id);
        let (number, _) = NumberRange { kinds: kind::NUMBER, ..NumberRange::default() }.language(self.number_form());
        let words = ["null", "true", "false"].map(|word| RegexAst::Literal(word.to_owned()));
        let scalar = self.push(Shape::Text(RegexAst::Or(words.into_iter().chain([number]).collect())));
        let string = self.push(Shape::String(anything()));
        let array = self.push(Shape::Array { prefix: Vec::new(), rest: Some(id), min: 0, max: None });
        let object = self.push(Shape::Object {
            fields: Vec::new(),
            free: vec![(anything(), id)],
            min: 0,
            max: None,
            order: Order::Written,
        });
        self.shapes[id as usize] = Shape::Either(vec![scalar, string, array, object]);
        id
    }

    fn conjunction(&mut self, conjunction: &Conjunction) -> Result<Shape, SchemaError> {
        let mut ways = Vec::new();
        for branch in self.expand(conjunction)? {
            self.branch(&branch, &mut ways)?;
        }
        Ok(match ways.len() {
            0 => Shape::Never,
            1 => ways.swap_remove(0),
            _ => Shape::Either(ways.into_iter().map(|way| self.push(way)).collect()),
        })
    }

    // ---- combinators ----

    fn expand(&mut self, conjunction: &Conjunction) -> Result<Vec<Branch>, SchemaError> {
        let mut done: Vec<Branch> = Vec::new();
        let mut todo = conjunction.clone();
        todo.reverse();
        let branch = Branch { conditions: BTreeSet::new(), kinds: kind::ALL };
        let mut open = vec![Partial { todo, branch, choices: VecDeque::new() }];
        while let Some(mut partial) = open.pop() {
            while let Some(condition) = partial.todo.pop() {
                self.step()?;
                self.take(condition, &mut partial)?;
                if partial.branch.kinds == 0 {
                    break;
                }
            }
            self.settle(&mut partial.branch);
            if partial.branch.kinds == 0 {
                continue;
            }
            let Some(choice) = partial.choices.pop_front() else {
                if !done.iter().any(|b| b.kinds == partial.branch.kinds && b.conditions == partial.branch.conditions) {
                    done.push(partial.branch);
                }
                continue;
            };
            if choice.kinds & partial.branch.kinds == 0 || choice.alternatives.iter().any(Vec::is_empty) {
                open.push(partial);
                continue;
            }
            let ways = choice.alternatives.len();
            let others = open.len() + done.len();
            let fits =
                (others + 1).saturating_mul(ways) <= self.limits.max_branches || (others == 0 && ways <= MAX_SINGLE);
            if !fits {
                self.inexact(choice.at, choice.keyword);
                open.push(partial);
                continue;
            }
            for alternative in choice.alternatives.into_iter().rev() {
                let mut todo = alternative;
                todo.reverse();
                open.push(Partial {
                    todo,
                    branch: partial.branch.clone(),
                    choices: partial
                        .choices
                        .iter()
                        .map(|c| Choice { alternatives: c.alternatives.clone(), ..*c })
                        .collect(),
                });
            }
        }
        Ok(done)
    }

    /// Contradictions between properties that must and must not be there.
    fn settle(&mut self, branch: &mut Branch) {
        if branch.kinds & kind::OBJECT == 0 {
            return;
        }
        for condition in &branch.conditions {
            if let Condition::HasNot(name) = condition {
                let needed = branch.conditions.iter().any(|c| match c {
                    Condition::Has(other) => other == name,
                    Condition::Holds(id) => self.k(*id).is_some_and(|k| k.required.contains(name)),
                    _ => false,
                });
                if needed {
                    branch.kinds &= !kind::OBJECT;
                    return;
                }
            }
        }
    }

    fn take(&mut self, condition: Condition, partial: &mut Partial) -> Result<(), SchemaError> {
        if !partial.branch.conditions.insert(condition.clone()) {
            return Ok(());
        }
        match condition {
            Condition::Kinds(kinds) => {
                partial.branch.conditions.remove(&condition);
                partial.branch.kinds &= kinds;
            }
            Condition::Holds(id) => self.take_holds(id, partial)?,
            Condition::Fails(id) => self.take_fails(id, partial),
            _ => {}
        }
        Ok(())
    }

    fn take_holds(&mut self, id: NodeId, partial: &mut Partial) -> Result<(), SchemaError> {
        let k = match &self.table.nodes[id as usize].meaning {
            Meaning::Bool(true) => return Ok(()),
            Meaning::Bool(false) => {
                partial.branch.kinds = 0;
                self.nothing_fits(id, "false", "the schema is 'false'");
                return Ok(());
            }
            Meaning::Keywords(k) => k,
        };
        if let Some(types) = k.types {
            if partial.branch.kinds & types == 0 {
                self.nothing_fits(id, "type", "the types contradict each other");
            }
            partial.branch.kinds &= types;
        }
        if k.dynamic.is_some() {
            self.inexact(id, "$dynamicRef");
        } else if let Some(target) = k.reference {
            partial.todo.push(Condition::Holds(target));
        }
        partial.todo.extend(k.all_of.iter().rev().map(|&part| Condition::Holds(part)));
        let mut choose = |alternatives: Vec<Conjunction>, keyword, kinds| {
            partial.choices.push_back(Choice { alternatives, keyword, at: id, kinds });
        };
        if let Some(parts) = &k.any_of {
            let alternatives =
                parts.iter().map(|&part| if self.is_true(part) { vec![] } else { vec![Condition::Holds(part)] });
            choose(alternatives.collect(), "anyOf", kind::ALL);
        }
        if let Some(condition) = k.if_
            && (k.then.is_some() || k.else_.is_some())
        {
            self.negated_by.entry(condition).or_insert(("if", id));
            let then = [Some(condition), k.then].into_iter().flatten().map(Condition::Holds).collect();
            let otherwise =
                [Some(Condition::Fails(condition)), k.else_.map(Condition::Holds)].into_iter().flatten().collect();
            choose(vec![then, otherwise], "if", kind::ALL);
        }
        for (name, needed) in &k.dependent_required {
            let has = std::iter::once(name).chain(needed).map(|name| Condition::Has(Arc::clone(name))).collect();
            let keyword = if k.old_dependencies { "dependencies" } else { "dependentRequired" };
            choose(vec![vec![Condition::HasNot(Arc::clone(name))], has], keyword, kind::OBJECT);
        }
        for (name, schema) in &k.dependent_schemas {
            let has = vec![Condition::Has(Arc::clone(name)), Condition::Holds(*schema)];
            let keyword = if k.old_dependencies { "dependencies" } else { "dependentSchemas" };
            choose(vec![vec![Condition::HasNot(Arc::clone(name))], has], keyword, kind::OBJECT);
        }
        if let Some(not) = k.not {
            self.negated_by.entry(not).or_insert(("not", id));
            partial.todo.push(Condition::Fails(not));
        }
        if let Some(parts) = &k.one_of {
            let alternatives = self.one_of(id, parts)?;
            partial.choices.push_back(Choice { alternatives, keyword: "oneOf", at: id, kinds: kind::ALL });
        }
        Ok(())
    }

    /// The members of a `oneOf`, each with what keeps the others away.
    fn one_of(&mut self, id: NodeId, parts: &[NodeId]) -> Result<Vec<Conjunction>, SchemaError> {
        if let Some(known) = self.exclusive.get(&id) {
            return Ok(known.clone());
        }
        // A `oneOf` in the course of comparing another is taken as it comes: larger, never smaller.
        let plain: Vec<Conjunction> = parts.iter().map(|&part| vec![Condition::Holds(part)]).collect();
        if self.asking > 0 {
            return Ok(plain);
        }
        let mut alternatives = plain;
        if parts.len() > MAX_COMPARED {
            self.inexact(id, "oneOf");
        } else {
            for i in 0..parts.len() {
                for j in i + 1..parts.len() {
                    if self.is_empty(&vec![Condition::Holds(parts[i]), Condition::Holds(parts[j])], 4)? {
                        continue;
                    }
                    for (one, other) in [(i, j), (j, i)] {
                        self.negated_by.entry(parts[other]).or_insert(("oneOf", id));
                        let (ways, exact) = self.negation(parts[other]);
                        if ways.len() <= MAX_NEGATIONS {
                            alternatives[one].push(Condition::Fails(parts[other]));
                        }
                        if !exact || ways.len() > MAX_NEGATIONS {
                            self.inexact(id, "oneOf");
                        }
                    }
                }
            }
        }
        self.exclusive.insert(id, alternatives.clone());
        Ok(alternatives)
    }

    /// Ways in which a schema can fail. The list may allow more; then it is not exact.
    fn negation(&mut self, id: NodeId) -> (Vec<Conjunction>, bool) {
        use Condition::{Fails, FieldFails, Has, HasNot, Holds, Kinds, Violates};
        let k = match &self.table.nodes[id as usize].meaning {
            Meaning::Bool(true) => return (Vec::new(), true),
            Meaning::Bool(false) => return (vec![Vec::new()], true),
            Meaning::Keywords(k) => k,
        };
        let mut ways: Vec<Conjunction> = Vec::new();
        let mut exact = true;
        if let Some(types) = k.types {
            ways.push(vec![Kinds(kind::ALL & !types)]);
        }
        if let Some(constants) = &k.constants {
            let objects = constants.iter().any(|c| matches!(c, Json::Array(_) | Json::Object(_)));
            exact &= !objects;
            ways.push((0..constants.len()).map(|i| Violates(id, Assertion::Constant(i))).collect());
        }
        if k.dynamic.is_some() || k.one_of.is_some() {
            return (vec![Vec::new()], false);
        }
        let via = self.negated_by.get(&id).copied();
        let mut negated = |part: NodeId| {
            if let Some(via) = via {
                self.negated_by.entry(part).or_insert(via);
            }
            Fails(part)
        };
        ways.extend(k.reference.map(|target| vec![negated(target)]));
        ways.extend(k.all_of.iter().map(|&part| vec![negated(part)]));
        if let Some(parts) = &k.any_of {
            ways.push(parts.iter().map(|&part| negated(part)).collect());
        }
        ways.extend(k.not.map(|part| vec![Holds(part)]));
        if let Some(condition) = k.if_ {
            ways.extend(k.then.map(|then| vec![Holds(condition), negated(then)]));
            ways.extend(k.else_.map(|otherwise| vec![negated(condition), negated(otherwise)]));
        }
        let mut assertion = |kinds: u8, assertion: Assertion| ways.push(vec![Kinds(kinds), Violates(id, assertion)]);
        (0..k.lower.len()).for_each(|i| assertion(kind::NUMBER, Assertion::Lower(i)));
        (0..k.upper.len()).for_each(|i| assertion(kind::NUMBER, Assertion::Upper(i)));
        for (present, kinds, what) in [
            (k.multiple_of.is_some(), kind::NUMBER, Assertion::MultipleOf),
            (k.min_length.is_some(), kind::STRING, Assertion::MinLength),
            (k.max_length.is_some(), kind::STRING, Assertion::MaxLength),
            (k.pattern.is_some(), kind::STRING, Assertion::Pattern),
            (k.format.is_some(), kind::STRING, Assertion::Format),
            (k.min_items.is_some(), kind::ARRAY, Assertion::MinItems),
            (k.max_items.is_some(), kind::ARRAY, Assertion::MaxItems),
            (k.min_properties.is_some(), kind::OBJECT, Assertion::MinProperties),
            (k.max_properties.is_some(), kind::OBJECT, Assertion::MaxProperties),
        ] {
            if present {
                assertion(kinds, what);
            }
        }
        for name in &k.required {
            ways.push(vec![Kinds(kind::OBJECT), HasNot(Arc::clone(name))]);
        }
        for (name, schema) in &k.properties {
            if !self.is_true(*schema) {
                ways.push(vec![Kinds(kind::OBJECT), Has(Arc::clone(name)), FieldFails(Arc::clone(name), *schema)]);
            }
        }
        for (name, needed) in &k.dependent_required {
            for other in needed {
                ways.push(vec![Kinds(kind::OBJECT), Has(Arc::clone(name)), HasNot(Arc::clone(other))]);
            }
        }
        let says = |id: &Option<NodeId>| id.is_some_and(|id| !self.is_true(id));
        if k.prefix.iter().any(|&id| !self.is_true(id))
            || says(&k.items)
            || k.contains.is_some()
            || k.unique
            || says(&k.unevaluated_items)
        {
            exact = false;
            ways.push(vec![Kinds(kind::ARRAY)]);
        }
        if !k.patterns.is_empty()
            || says(&k.additional)
            || says(&k.names)
            || !k.dependent_schemas.is_empty()
            || says(&k.unevaluated_properties)
        {
            exact = false;
            ways.push(vec![Kinds(kind::OBJECT)]);
        }
        (ways, exact)
    }

    fn take_fails(&mut self, id: NodeId, partial: &mut Partial) {
        let (mut ways, exact) = self.negation(id);
        let (keyword, at) = self.negated_by.get(&id).copied().unwrap_or(("not", id));
        if !exact {
            self.inexact(at, keyword);
        }
        match ways.len() {
            0 => {
                partial.branch.kinds = 0;
                self.nothing_fits(at, keyword, "everything is excluded");
            }
            1 => partial.todo.extend(ways.swap_remove(0)),
            _ => partial.choices.push_back(Choice { alternatives: ways, keyword, at, kinds: kind::ALL }),
        }
    }

    // ---- questions ----

    /// No value meets the conjunction; `false` when that isn't sure.
    fn is_empty(&mut self, conjunction: &Conjunction, depth: usize) -> Result<bool, SchemaError> {
        self.asking += 1;
        let answer = self.is_empty_inner(conjunction, depth);
        self.asking -= 1;
        answer
    }

    fn is_empty_inner(&mut self, conjunction: &Conjunction, depth: usize) -> Result<bool, SchemaError> {
        if depth == 0 {
            return Ok(false);
        }
        // Types decide most questions.
        let mut kinds = kind::ALL;
        for condition in conjunction {
            if let Condition::Holds(id) = condition
                && let Some(types) = self.k(*id).and_then(|k| k.types)
            {
                kinds &= types;
            }
        }
        if kinds == 0 {
            return Ok(true);
        }
        let branches = self.expand(conjunction)?;
        for branch in &branches {
            if !self.is_empty_branch(branch, depth)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_empty_branch(&mut self, branch: &Branch, depth: usize) -> Result<bool, SchemaError> {
        if let Some(values) = self.constants(branch) {
            return Ok(values.is_empty());
        }
        if branch.kinds & (kind::NULL | kind::BOOLEAN) != 0 {
            return Ok(false);
        }
        if branch.kinds & kind::NUMBER != 0 {
            let range = self.range(branch);
            let (language, _) = range.language(NumberForm::Any);
            if !self.is_empty_language(&language) {
                return Ok(false);
            }
        }
        if branch.kinds & kind::STRING != 0 {
            let empty = match self.string(branch) {
                None => true,
                Some(language) => self.is_empty_language(&language),
            };
            if !empty {
                return Ok(false);
            }
        }
        if branch.kinds & kind::ARRAY != 0 {
            let (min, max) = self.item_bounds(branch);
            if max.is_none_or(|max| min <= max) {
                return Ok(false);
            }
        }
        if branch.kinds & kind::OBJECT != 0 {
            for name in self.required(branch) {
                let conditions = self.field(branch, &name);
                match conditions {
                    None => return Ok(true),
                    Some(conditions) => {
                        if self.is_empty_inner(&conditions, depth - 1)? {
                            return Ok(true);
                        }
                    }
                }
            }
            return Ok(false);
        }
        Ok(true)
    }

    fn is_empty_language(&self, language: &RegexAst) -> bool {
        matcher_of(language, self.limits.max_regex_fuel).is_some_and(|mut regex| regex.always_empty())
    }

    // ---- branches ----

    fn holding<'b>(&self, branch: &'b Branch) -> impl Iterator<Item = (NodeId, &'t Keywords)> + use<'b, 't> {
        let table = self.table;
        branch.conditions.iter().filter_map(move |c| match c {
            Condition::Holds(id) => Some((*id, table.keywords(*id)?)),
            _ => None,
        })
    }

    /// The values of `enum` and `const` that meet the branch; `None` where there is neither.
    fn constants(&mut self, branch: &Branch) -> Option<Vec<&'t Json>> {
        let (_, k) = self
            .holding(branch)
            .filter(|(_, k)| k.constants.is_some())
            .min_by_key(|(_, k)| k.constants.as_ref().map_or(usize::MAX, Vec::len))?;
        let values = k.constants.as_ref()?;
        Some(values.iter().filter(|value| self.meets(branch, value)).collect())
    }

    /// Does a value meet every condition? What is undecided counts as met.
    fn meets(&mut self, branch: &Branch, value: &Json) -> bool {
        if branch.kinds & kind::of(value) == 0 {
            return false;
        }
        branch.conditions.iter().all(|condition| match condition {
            Condition::Holds(id) => self.judge.holds(*id, value).unwrap_or(true),
            Condition::Fails(id) => !self.judge.holds(*id, value).unwrap_or(false),
            Condition::Kinds(kinds) => kinds & kind::of(value) != 0,
            Condition::Has(name) => !matches!(value, Json::Object(_)) || value.get(name).is_some(),
            Condition::HasNot(name) => !matches!(value, Json::Object(_)) || value.get(name).is_none(),
            Condition::FieldFails(name, id) => {
                value.get(name).is_none_or(|field| !self.judge.holds(*id, field).unwrap_or(false))
            }
            Condition::Violates(id, Assertion::Constant(i)) => {
                self.table.keywords(*id).and_then(|k| k.constants.as_ref()).is_none_or(|all| !all[*i].same(value))
            }
            // The schema that fails by this assertion is among the conditions.
            Condition::Violates(..) => true,
        })
    }

    fn branch(&mut self, branch: &Branch, ways: &mut Vec<Shape>) -> Result<(), SchemaError> {
        if let Some(values) = self.constants(branch) {
            if values.is_empty()
                && let Some((id, k)) = self.holding(branch).find(|(_, k)| k.constants.is_some())
            {
                self.nothing_fits(id, k.constants_keyword, "none of the listed values meets the other keywords");
            }
            let values: Vec<Json> = values.into_iter().cloned().collect();
            let at = self.holding(branch).find(|(_, k)| k.constants.is_some());
            self.fixed(&values, at.map_or((0, "enum"), |(id, k)| (id, k.constants_keyword)), ways);
            return Ok(());
        }
        let mut words = Vec::new();
        if branch.kinds & kind::NULL != 0 && !self.excludes(branch, &Json::Null) {
            words.push("null");
        }
        if branch.kinds & kind::BOOLEAN != 0 {
            for (word, value) in [("true", true), ("false", false)] {
                if !self.excludes(branch, &Json::Bool(value)) {
                    words.push(word);
                }
            }
        }
        let mut texts: Vec<RegexAst> = words.into_iter().map(|word| RegexAst::Literal(word.to_owned())).collect();
        if branch.kinds & kind::NUMBER != 0 {
            self.numbers(branch, &mut texts);
        }
        if !texts.is_empty() {
            ways.push(Shape::Text(if texts.len() == 1 { texts.swap_remove(0) } else { RegexAst::Or(texts) }));
        }
        if branch.kinds & kind::STRING != 0
            && let Some(language) = self.strings(branch)
        {
            ways.push(Shape::String(language));
        }
        if branch.kinds & kind::ARRAY != 0
            && let Some(shape) = self.array(branch)?
        {
            ways.push(shape);
        }
        if branch.kinds & kind::OBJECT != 0
            && let Some(shape) = self.object(branch)?
        {
            ways.push(shape);
        }
        Ok(())
    }

    fn excludes(&self, branch: &Branch, value: &Json) -> bool {
        self.excluded(branch).any(|other| other.same(value))
    }

    fn excluded<'b>(&self, branch: &'b Branch) -> impl Iterator<Item = &'t Json> + use<'b, 't> {
        let table = self.table;
        branch.conditions.iter().filter_map(move |c| match c {
            Condition::Violates(id, Assertion::Constant(i)) => table.keywords(*id)?.constants.as_ref()?.get(*i),
            _ => None,
        })
    }

    fn violated<'b>(
        &self,
        branch: &'b Branch,
    ) -> impl Iterator<Item = (NodeId, &'t Keywords, Assertion)> + use<'b, 't> {
        let table = self.table;
        branch.conditions.iter().filter_map(move |c| match c {
            Condition::Violates(id, assertion) => Some((*id, table.keywords(*id)?, *assertion)),
            _ => None,
        })
    }

    /// Shapes of fixed values.
    fn fixed(&mut self, values: &[Json], at: (NodeId, &'static str), ways: &mut Vec<Shape>) {
        let mut texts = Vec::new();
        for value in values {
            match value {
                Json::Array(_) | Json::Object(_) => {
                    let shape = self.fixed_shape(value, at);
                    ways.push(shape);
                }
                scalar => texts.push(self.scalar(scalar)),
            }
        }
        if !texts.is_empty() {
            ways.push(Shape::Text(if texts.len() == 1 { texts.swap_remove(0) } else { RegexAst::Or(texts) }));
        }
    }

    fn fixed_shape(&mut self, value: &Json, at: (NodeId, &'static str)) -> Shape {
        match value {
            Json::Array(items) => {
                let prefix: Vec<ShapeId> = items
                    .iter()
                    .map(|item| {
                        let shape = self.fixed_shape(item, at);
                        self.push(shape)
                    })
                    .collect();
                let count = prefix.len() as u64;
                Shape::Array { prefix, rest: None, min: count, max: Some(count) }
            }
            Json::Object(fields) => {
                let fields: Vec<Field> = fields
                    .iter()
                    .map(|(name, value)| {
                        let shape = self.fixed_shape(value, at);
                        Field { name: Arc::from(name.as_str()), value: self.push(shape), required: true }
                    })
                    .collect();
                let order = match self.mode {
                    Mode::Open if fields.len() > 1 => Order::Any { tracked: fields.len().min(MAX_TRACKED) },
                    _ => Order::Written,
                };
                if matches!(order, Order::Any { tracked } if tracked < fields.len()) {
                    self.inexact(at.0, at.1);
                }
                Shape::Object { fields, free: Vec::new(), min: 0, max: None, order }
            }
            scalar => Shape::Text(self.scalar(scalar)),
        }
    }

    fn scalar(&self, value: &Json) -> RegexAst {
        if let (Json::Number(number), Mode::Open) = (value, self.mode) {
            // 1 is 1.0.
            let zeros = if number.is_integer() { "(?:\\.0{1,20})?" } else { "0{0,20}" };
            let text = RegexAst::Literal(number.to_string());
            return RegexAst::Concat(vec![text, RegexAst::Regex(zeros.to_owned())]);
        }
        RegexAst::Literal(value.key())
    }

    // ---- numbers ----

    fn range(&self, branch: &Branch) -> NumberRange {
        let mut range = NumberRange { kinds: branch.kinds & kind::NUMBER, ..NumberRange::default() };
        for (_, k) in self.holding(branch) {
            k.lower.iter().for_each(|(_, bound)| range.above(bound));
            k.upper.iter().for_each(|(_, bound)| range.below(bound));
            range.multiples.extend(k.multiple_of.clone());
        }
        for (_, k, assertion) in self.violated(branch) {
            let flip = |bound: &Bound| Bound { value: bound.value.clone(), exclusive: !bound.exclusive };
            match assertion {
                Assertion::Lower(i) => range.below(&flip(&k.lower[i].1)),
                Assertion::Upper(i) => range.above(&flip(&k.upper[i].1)),
                _ => {}
            }
        }
        for value in self.excluded(branch) {
            if let Json::Number(number) = value {
                range.not.push(number.clone());
            }
        }
        range.multiples.dedup();
        range
    }

    fn numbers(&mut self, branch: &Branch, texts: &mut Vec<RegexAst>) {
        let range = self.range(branch);
        let (language, exact) = range.language(self.number_form());
        let place = self.holding(branch).find(|(_, k)| k.multiple_of.is_some()).map(|(id, _)| id);
        if !exact && let Some(id) = place {
            self.inexact(id, "multipleOf");
        }
        for (id, _, assertion) in self.violated(branch) {
            if assertion == Assertion::MultipleOf {
                let (keyword, at) = self.negated_by.get(&id).copied().unwrap_or(("not", id));
                self.inexact(at, keyword);
            }
        }
        let bounded =
            range.lower.is_some() || range.upper.is_some() || !range.multiples.is_empty() || !range.not.is_empty();
        if bounded && self.is_empty_language(&language) {
            let bound = self
                .holding(branch)
                .find(|(_, k)| !k.lower.is_empty() || !k.upper.is_empty() || k.multiple_of.is_some());
            if let Some((id, k)) = bound {
                let keyword = k.lower.first().or(k.upper.first()).map_or("multipleOf", |(keyword, _)| keyword);
                self.nothing_fits(id, keyword, "the bounds leave no number (of the digits that are written)");
            }
            return;
        }
        texts.push(language);
    }

    // ---- strings ----

    /// The contents; `None`: the lengths contradict each other.
    fn string(&mut self, branch: &Branch) -> Option<RegexAst> {
        let mut parts = Vec::new();
        let (mut min, mut max) = (0, None::<u64>);
        let lower = |max: &mut Option<u64>, value: u64| *max = Some(max.map_or(value, |old| old.min(value)));
        for (id, k) in self.holding(branch).collect::<Vec<_>>() {
            min = min.max(k.min_length.unwrap_or(0));
            if let Some(value) = k.max_length {
                lower(&mut max, value);
            }
            if let Some(pattern) = &k.pattern {
                match pattern.language() {
                    Some(language) => parts.push(language.clone()),
                    None => self.inexact(id, "pattern"),
                }
            }
            match k.format.as_ref().map(|f| &f.format) {
                Some(Format::Language(language)) => parts.push(language.clone()),
                Some(Format::Regex) => self.inexact(id, "format"),
                None => {}
            }
        }
        for (id, k, assertion) in self.violated(branch).collect::<Vec<_>>() {
            let (keyword, at) = self.negated_by.get(&id).copied().unwrap_or(("not", id));
            let language = match assertion {
                Assertion::MinLength => {
                    match k.min_length.unwrap_or(0).checked_sub(1) {
                        Some(value) => lower(&mut max, value),
                        None => return None,
                    }
                    continue;
                }
                Assertion::MaxLength => {
                    min = min.max(k.max_length.unwrap_or(u64::MAX).saturating_add(1));
                    continue;
                }
                Assertion::Pattern => k.pattern.as_ref().and_then(|p| p.language()),
                Assertion::Format => match k.format.as_ref().map(|f| &f.format) {
                    Some(Format::Language(language)) => Some(language),
                    _ => None,
                },
                _ => continue,
            };
            match language {
                Some(language) => parts.push(RegexAst::Not(Box::new(language.clone()))),
                None => self.inexact(at, keyword),
            }
        }
        for value in self.excluded(branch) {
            if let Json::String(text) = value {
                parts.push(RegexAst::Not(Box::new(RegexAst::Literal(text.clone()))));
            }
        }
        if max.is_some_and(|max| min > max) {
            return None;
        }
        if min > 0 || max.is_some() {
            let count = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
            parts.insert(
                0,
                RegexAst::Repeat(
                    Box::new(RegexAst::Regex("(?s:.)".to_owned())),
                    count(min),
                    max.map_or(u32::MAX, count),
                ),
            );
        }
        let positive = parts.iter().any(|part| !matches!(part, RegexAst::Not(_)));
        if !positive {
            parts.insert(0, anything());
        }
        Some(if parts.len() == 1 { parts.swap_remove(0) } else { RegexAst::And(parts) })
    }

    fn strings(&mut self, branch: &Branch) -> Option<RegexAst> {
        let place = self.holding(branch).find(|(_, k)| {
            k.min_length.is_some() || k.max_length.is_some() || k.pattern.is_some() || k.format.is_some()
        });
        let language = self.string(branch);
        let keyword = place.map_or("type", |(_, k)| {
            if k.pattern.is_some() {
                "pattern"
            } else if k.format.is_some() {
                "format"
            } else {
                "minLength"
            }
        });
        let at = place.map_or(0, |(id, _)| id);
        let Some(language) = language else {
            self.nothing_fits(at, "minLength", "the lengths contradict each other");
            return None;
        };
        let simple = matches!(language, RegexAst::Repeat(..) | RegexAst::Regex(_));
        if !simple {
            match matcher_of(&language, self.limits.max_regex_fuel) {
                Some(mut regex) => {
                    if regex.always_empty() {
                        self.nothing_fits(at, keyword, "no string matches");
                        return None;
                    }
                }
                // Too much to combine: what follows the first part is left to the validator.
                None => {
                    if let RegexAst::And(parts) = language {
                        self.inexact(at, keyword);
                        return parts
                            .into_iter()
                            .find(|part| !matches!(part, RegexAst::Not(_) | RegexAst::Repeat(..)))
                            .or_else(|| Some(anything()));
                    }
                }
            }
        }
        Some(language)
    }

    // ---- arrays ----

    fn item_bounds(&self, branch: &Branch) -> (u64, Option<u64>) {
        let (mut min, mut max) = (0, None::<u64>);
        let mut lower = |value: u64| max = Some(max.map_or(value, |old: u64| old.min(value)));
        let mut impossible = false;
        for (_, k) in self.holding(branch) {
            min = min.max(k.min_items.unwrap_or(0));
            k.max_items.into_iter().for_each(&mut lower);
        }
        for (_, k, assertion) in self.violated(branch) {
            match assertion {
                Assertion::MinItems => match k.min_items.unwrap_or(0).checked_sub(1) {
                    Some(value) => lower(value),
                    None => impossible = true,
                },
                Assertion::MaxItems => min = min.max(k.max_items.unwrap_or(u64::MAX).saturating_add(1)),
                _ => {}
            }
        }
        if impossible { (1, Some(0)) } else { (min, max) }
    }

    fn array(&mut self, branch: &Branch) -> Result<Option<Shape>, SchemaError> {
        let (min, max) = self.item_bounds(branch);
        let nodes: Vec<(NodeId, &'t Keywords)> = self.holding(branch).collect();
        if max.is_some_and(|max| min > max) {
            if let Some((id, _)) = nodes.iter().find(|(_, k)| k.min_items.is_some() || k.max_items.is_some()) {
                self.nothing_fits(*id, "minItems", "the numbers of items contradict each other");
            }
            return Ok(None);
        }
        if min > self.limits.max_minimum {
            // A negated maximum.
            return Ok(None);
        }
        let longest = nodes.iter().map(|(_, k)| k.prefix.len()).max().unwrap_or(0);
        let mut prefix = Vec::new();
        for i in 0..longest {
            let conditions =
                nodes.iter().filter_map(|(_, k)| k.prefix.get(i).copied().or(k.items)).map(Condition::Holds);
            let conditions = conditions.collect();
            prefix.push(self.shape(conditions)?);
        }
        let conditions: Conjunction = nodes.iter().filter_map(|(_, k)| k.items).map(Condition::Holds).collect();
        let mut contains: Vec<(NodeId, NodeId)> = Vec::new();
        for (id, k) in &nodes {
            let single = max.is_some_and(|max| max <= 1);
            if k.unique && !single {
                self.inexact(*id, "uniqueItems");
            }
            if k.unevaluated_items.is_some_and(|id| !self.is_true(id)) {
                self.inexact(*id, "unevaluatedItems");
            }
            if let Some(hit) = k.contains {
                if k.max_contains.is_some() {
                    self.inexact(*id, "maxContains");
                }
                match k.min_contains.unwrap_or(1) {
                    0 => {}
                    1 if contains.is_empty() => contains.push((*id, hit)),
                    _ => self.inexact(*id, "contains"),
                }
            }
        }
        let rest = self.shape(conditions.clone())?;
        if let Some((id, hit)) = contains.pop() {
            if longest == 0 && min <= 1 && max.is_none() {
                let hit = conditions.into_iter().chain([Condition::Holds(hit)]).collect();
                let hit = self.shape(hit)?;
                return Ok(Some(Shape::Containing { rest, hit }));
            }
            self.inexact(id, "contains");
        }
        Ok(Some(Shape::Array { prefix, rest: Some(rest), min, max }))
    }

    // ---- objects ----

    fn required(&self, branch: &Branch) -> Vec<Arc<str>> {
        let mut out: Vec<Arc<str>> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        let mut add = |name: &Arc<str>| {
            if seen.insert(Arc::clone(name)) {
                out.push(Arc::clone(name));
            }
        };
        for (_, k) in self.holding(branch) {
            k.required.iter().for_each(&mut add);
        }
        for condition in &branch.conditions {
            if let Condition::Has(name) = condition {
                add(name);
            }
        }
        out
    }

    /// The conditions on a property; `None`: it may not be there.
    fn field(&mut self, branch: &Branch, name: &Arc<str>) -> Option<Conjunction> {
        if branch.conditions.contains(&Condition::HasNot(Arc::clone(name))) {
            return None;
        }
        let mut out: Conjunction = Vec::new();
        for (id, k) in self.holding(branch).collect::<Vec<_>>() {
            let mut known = false;
            if let Some(&schema) = k.property_index.get(name) {
                known = true;
                out.push(Condition::Holds(schema));
            }
            for (pattern, schema) in &k.patterns {
                match pattern.is_match(name) {
                    Some(true) => {
                        known = true;
                        out.push(Condition::Holds(*schema));
                    }
                    Some(false) => {}
                    None => {
                        known = true;
                        self.inexact(id, "patternProperties");
                    }
                }
            }
            if !known && let Some(schema) = k.additional {
                out.push(Condition::Holds(schema));
            }
            if let Some(names) = k.names {
                match self.judge.holds(names, &Json::String(name.to_string())) {
                    Ok(true) => {}
                    Ok(false) => return None,
                    Err(_) => self.inexact(id, "propertyNames"),
                }
            }
        }
        if out.iter().any(|c| matches!(c, Condition::Holds(id) if self.is_false(*id))) {
            return None;
        }
        for condition in &branch.conditions {
            if let Condition::FieldFails(other, id) = condition
                && other == name
            {
                out.push(Condition::Fails(*id));
            }
        }
        Some(out)
    }

    fn object(&mut self, branch: &Branch) -> Result<Option<Shape>, SchemaError> {
        let nodes: Vec<(NodeId, &'t Keywords)> = self.holding(branch).collect();
        let required = self.required(branch);
        let needed: std::collections::HashSet<&Arc<str>> = required.iter().collect();
        let mut names: Vec<Arc<str>> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for name in nodes.iter().flat_map(|(_, k)| k.properties.iter().map(|(name, _)| name)).chain(&required) {
            if seen.insert(Arc::clone(name)) {
                names.push(Arc::clone(name));
            }
        }
        if names.len() > self.limits.max_named_properties {
            let most = nodes.iter().max_by_key(|(_, k)| k.properties.len()).map_or(0, |(id, _)| *id);
            let (n, max) = (names.len() as u64, self.limits.max_named_properties as u64);
            return Err(SchemaError::too_large(
                self.table.pointer(most),
                "properties",
                "properties of one object",
                n,
                max,
            ));
        }
        let mut fields = Vec::new();
        let declared_none = names.is_empty() && !nodes.iter().any(|(_, k)| k.declares);
        for name in &names {
            let required = needed.contains(name);
            match self.field(branch, name) {
                Some(conditions) => {
                    let value = self.shape(conditions)?;
                    fields.push(Field { name: Arc::clone(name), value, required });
                }
                None if required => {
                    let at = nodes.iter().find(|(_, k)| k.required.contains(name)).map_or(0, |(id, _)| *id);
                    self.nothing_fits(
                        at,
                        "required",
                        &format!(
                            "the property '{}' is required and not allowed",
                            name.chars().take(80).collect::<String>()
                        ),
                    );
                    return Ok(None);
                }
                None => {}
            }
        }
        for condition in &branch.conditions {
            if let Condition::HasNot(name) = condition
                && seen.insert(Arc::clone(name))
            {
                names.push(Arc::clone(name));
            }
        }
        let (mut min, mut max) = self.property_bounds(branch);
        if max.is_some_and(|max| min > max) {
            if let Some((id, _)) = nodes.iter().find(|(_, k)| k.min_properties.is_some() || k.max_properties.is_some())
            {
                self.nothing_fits(*id, "minProperties", "the numbers of properties contradict each other");
            }
            return Ok(None);
        }
        for (id, k) in &nodes {
            if k.unevaluated_properties.is_some_and(|id| !self.is_true(id)) {
                self.inexact(*id, "unevaluatedProperties");
            }
        }
        let free = self.free_keys(branch, &nodes, &names, declared_none, min, fields.len() as u64)?;
        // Counting gets expensive with many properties.
        let required_count = fields.iter().filter(|f| f.required).count() as u64;
        if min <= required_count {
            min = 0;
        }
        if free.is_empty() && max.is_some_and(|max| max >= fields.len() as u64) {
            max = None;
        }
        let ordered = self.mode == Mode::Declared || nodes.iter().any(|(_, k)| k.ordered);
        let mut order = Order::Written;
        let mut countable = true;
        if !ordered && fields.len() + free.len() > 1 && !fields.is_empty() {
            // What is required is tracked first.
            fields.sort_by_key(|field| !field.required);
            let tracked = fields.len().min(MAX_TRACKED);
            order = Order::Any { tracked };
            countable = tracked == fields.len() && free.is_empty();
            if required_count > tracked as u64 {
                let at = nodes.iter().find(|(_, k)| !k.required.is_empty()).map_or(0, |(id, _)| *id);
                self.inexact(at, "required");
            }
            if tracked < fields.len() {
                self.inexact(nodes.first().map_or(0, |(id, _)| *id), UNIQUE_KEYS);
            }
        }
        let steps = (fields.len() as u64 + 1).saturating_mul(max.unwrap_or(min).saturating_add(1));
        if (min > 0 || max.is_some()) && (steps > MAX_COUNTED || !countable) {
            let bounds = nodes.iter().find(|(_, k)| k.min_properties.is_some() || k.max_properties.is_some());
            if let Some((id, k)) = bounds {
                self.inexact(*id, if k.max_properties.is_some() { "maxProperties" } else { "minProperties" });
            }
            (min, max) = (0, None);
        }
        if !free.is_empty() && max.is_none_or(|max| max > 1) {
            let at = nodes.first().map_or(0, |(id, _)| *id);
            self.inexact(at, UNIQUE_KEYS);
        }
        Ok(Some(Shape::Object { fields, free, min, max, order }))
    }

    fn property_bounds(&self, branch: &Branch) -> (u64, Option<u64>) {
        let (mut min, mut max) = (0, None::<u64>);
        let mut lower = |value: u64| max = Some(max.map_or(value, |old: u64| old.min(value)));
        let mut impossible = false;
        for (_, k) in self.holding(branch) {
            min = min.max(k.min_properties.unwrap_or(0));
            k.max_properties.into_iter().for_each(&mut lower);
        }
        for (_, k, assertion) in self.violated(branch) {
            match assertion {
                Assertion::MinProperties => match k.min_properties.unwrap_or(0).checked_sub(1) {
                    Some(value) => lower(value),
                    None => impossible = true,
                },
                Assertion::MaxProperties => min = min.max(k.max_properties.unwrap_or(u64::MAX).saturating_add(1)),
                _ => {}
            }
        }
        if impossible { (1, Some(0)) } else { (min, max) }
    }

    /// Keys without a name of their own, by class.
    fn free_keys(
        &mut self,
        branch: &Branch,
        nodes: &[(NodeId, &'t Keywords)],
        names: &[Arc<str>],
        declared_none: bool,
        min: u64,
        declared: u64,
    ) -> Result<Vec<(RegexAst, ShapeId)>, SchemaError> {
        // Nothing else is allowed: the usual case.
        let closed =
            nodes.iter().any(|(_, k)| k.patterns.is_empty() && k.additional.is_some_and(|id| self.is_false(id)));
        if closed {
            return Ok(Vec::new());
        }
        let says_more = nodes.iter().any(|(_, k)| !k.patterns.is_empty() || k.additional.is_some());
        let wants_all = match self.mode {
            Mode::Open => true,
            Mode::Declared => (declared_none && !says_more) || min > declared,
        };
        let explicit =
            nodes.iter().any(|(_, k)| !k.patterns.is_empty() || k.additional.is_some_and(|id| self.says_something(id)));
        if !wants_all && !explicit {
            return Ok(Vec::new());
        }
        // What every free key has to be.
        let mut common: Vec<RegexAst> = Vec::new();
        for (id, k) in nodes {
            if let Some(names) = k.names {
                match self.key_language(names)? {
                    Some((language, exact)) => {
                        if !exact {
                            self.inexact(*id, "propertyNames");
                        }
                        common.push(language);
                    }
                    None => return Ok(Vec::new()),
                }
            }
        }
        if !names.is_empty() {
            let taken = names.iter().map(|name| RegexAst::Literal(name.to_string())).collect();
            common.push(RegexAst::Not(Box::new(RegexAst::Or(taken))));
        }
        let mut patterns: Vec<&'t Arc<Pattern>> = Vec::new();
        for (id, k) in nodes {
            for (pattern, _) in &k.patterns {
                if pattern.language().is_none() {
                    self.inexact(*id, "patternProperties");
                } else if !patterns.iter().any(|known| Arc::ptr_eq(known, pattern)) {
                    patterns.push(pattern);
                }
            }
        }
        let mut classes: Vec<(Vec<RegexAst>, Vec<bool>)> = vec![(common, Vec::new())];
        let mut relaxed = patterns.len() > MAX_PATTERNS;
        for pattern in patterns.iter().take(MAX_PATTERNS) {
            let Some(language) = pattern.language() else { continue };
            let mut next = Vec::new();
            for (parts, hits) in classes {
                for hit in [true, false] {
                    let part = if hit { language.clone() } else { RegexAst::Not(Box::new(language.clone())) };
                    let mut parts = parts.clone();
                    parts.push(part);
                    // A class that is not known to be empty stays: it only names the same keys more finely.
                    if !self.is_empty_language(&key(&parts)) {
                        let mut hits = hits.clone();
                        hits.push(hit);
                        next.push((parts, hits));
                    }
                }
            }
            classes = next;
            if classes.len() > MAX_PATTERNS {
                relaxed = true;
                break;
            }
        }
        if relaxed {
            // One class for all keys, with any value.
            if let Some((id, _)) = nodes.iter().find(|(_, k)| !k.patterns.is_empty()) {
                self.inexact(*id, "patternProperties");
            }
            let any = self.any();
            let taken = names.iter().map(|name| RegexAst::Literal(name.to_string())).collect();
            let language =
                if names.is_empty() { anything() } else { key(&[RegexAst::Not(Box::new(RegexAst::Or(taken)))]) };
            return Ok(vec![(language, any)]);
        }
        let mut out: Vec<(RegexAst, ShapeId)> = Vec::new();
        for (parts, hits) in classes {
            let matched = |pattern: &Arc<Pattern>| {
                patterns.iter().zip(&hits).any(|(known, &hit)| hit && Arc::ptr_eq(known, pattern))
            };
            let mut conditions: Conjunction = Vec::new();
            let mut named = false;
            for (_, k) in nodes {
                let mut known = false;
                for (pattern, schema) in &k.patterns {
                    if pattern.language().is_none() {
                        // It may match: nothing is known of what isn't matched.
                        known = true;
                    } else if matched(pattern) {
                        known = true;
                        named = true;
                        conditions.push(Condition::Holds(*schema));
                    }
                }
                if !known && let Some(schema) = k.additional {
                    named |= self.says_something(schema);
                    conditions.push(Condition::Holds(schema));
                }
            }
            let never = conditions.iter().any(|c| matches!(c, Condition::Holds(id) if self.is_false(*id)));
            if never || (!named && !wants_all) {
                continue;
            }
            let value = self.shape(conditions)?;
            out.push((key(&parts), value));
        }
        let _ = branch;
        Ok(out)
    }

    /// More than `true` or `{}`.
    fn says_something(&self, id: NodeId) -> bool {
        match &self.table.nodes[id as usize].meaning {
            Meaning::Bool(_) => false,
            Meaning::Keywords(k) => {
                k.types.is_some()
                    || k.constants.is_some()
                    || k.reference.is_some()
                    || !k.all_of.is_empty()
                    || k.any_of.is_some()
                    || k.one_of.is_some()
                    || k.not.is_some()
                    || k.if_.is_some()
                    || !k.properties.is_empty()
                    || !k.patterns.is_empty()
                    || k.additional.is_some()
                    || !k.required.is_empty()
                    || k.items.is_some()
                    || !k.prefix.is_empty()
                    || k.pattern.is_some()
                    || k.format.is_some()
                    || !k.lower.is_empty()
                    || !k.upper.is_empty()
                    || k.min_length.is_some()
                    || k.max_length.is_some()
            }
        }
    }

    /// Names that a `propertyNames` schema allows; `None`: none.
    fn key_language(&mut self, id: NodeId) -> Result<Option<(RegexAst, bool)>, SchemaError> {
        let before = self.inexact.len();
        let conjunction = vec![Condition::Holds(id), Condition::Kinds(kind::STRING)];
        let mut ways = Vec::new();
        for branch in self.expand(&conjunction)? {
            if let Some(values) = self.constants(&branch) {
                ways.extend(values.into_iter().filter_map(Json::as_str).map(|text| RegexAst::Literal(text.to_owned())));
            } else if let Some(language) = self.string(&branch) {
                ways.push(language);
            }
        }
        let exact = self.inexact.len() == before;
        Ok(match ways.len() {
            0 => None,
            1 => Some((ways.swap_remove(0), exact)),
            _ => Some((RegexAst::Or(ways), exact)),
        })
    }
}

/// The place that stands for keys that may come twice, where a grammar leaves keys free.
pub(crate) const UNIQUE_KEYS: &str = "(unique keys)";

fn key(parts: &[RegexAst]) -> RegexAst {
    let positive = parts.iter().any(|part| !matches!(part, RegexAst::Not(_)));
    let mut parts = parts.to_vec();
    if !positive {
        parts.insert(0, anything());
    }
    if parts.len() == 1 { parts.swap_remove(0) } else { RegexAst::And(parts) }
}

/// Takes out what can never be finished.
fn prune(shapes: &mut [Shape]) {
    let mut alive = vec![false; shapes.len()];
    loop {
        let mut changed = false;
        for i in 0..shapes.len() {
            if !alive[i] && finishes(&shapes[i], &alive) {
                alive[i] = true;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    for (i, shape) in shapes.iter_mut().enumerate() {
        let live = |id: &ShapeId| alive[*id as usize];
        if !alive[i] {
            *shape = Shape::Never;
            continue;
        }
        match shape {
            Shape::Either(ways) => ways.retain(live),
            Shape::Array { prefix, rest, max, .. } => {
                if let Some(at) = prefix.iter().position(|id| !live(id)) {
                    prefix.truncate(at);
                    let at = at as u64;
                    *max = Some(max.map_or(at, |max| max.min(at)));
                    *rest = None;
                }
                if rest.is_some_and(|id| !live(&id)) {
                    *rest = None;
                }
                if rest.is_none() {
                    let count = prefix.len() as u64;
                    *max = Some(max.map_or(count, |max| max.min(count)));
                }
            }
            Shape::Object { fields, free, order, .. } => {
                if let Order::Any { tracked } = order {
                    *tracked = fields.iter().take(*tracked).filter(|field| live(&field.value)).count();
                }
                fields.retain(|field| live(&field.value));
                free.retain(|(_, value)| live(value));
            }
            _ => {}
        }
    }
}

fn finishes(shape: &Shape, alive: &[bool]) -> bool {
    let live = |id: &ShapeId| alive[*id as usize];
    match shape {
        Shape::Pending | Shape::Never => false,
        Shape::Text(_) | Shape::String(_) => true,
        Shape::Either(ways) => ways.iter().any(live),
        Shape::Array { prefix, rest, min, .. } => {
            let needed = usize::try_from(*min).unwrap_or(usize::MAX);
            prefix.iter().take(needed).all(live) && (needed <= prefix.len() || rest.as_ref().is_some_and(live))
        }
        Shape::Containing { hit, .. } => live(hit),
        Shape::Object { fields, free, min, max, .. } => {
            let required = fields.iter().filter(|f| f.required).count() as u64;
            let possible = fields.iter().filter(|f| live(&f.value)).count() as u64;
            fields.iter().all(|f| !f.required || live(&f.value))
                && max.is_none_or(|max| required <= max)
                && (*min <= possible || free.iter().any(|(_, value)| live(value)))
        }
    }
}
