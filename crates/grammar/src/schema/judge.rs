//! The validator: decides whole values against a schema, exactly or not at all.
//!
//! It shares the reader of schemas with the grammar, and nothing else. Numbers are compared as decimals, strings by
//! Unicode characters, and what cannot be decided within the limits is undecided, never valid.

use std::collections::HashSet;

use super::error::Place;
use super::json::{Json, push_pointer};
use super::read::{Keywords, Meaning, NodeId, Table, kind};

/// In-place and downward steps below one another.
const MAX_NESTING: usize = 600;

/// A verdict that could not be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Undecided {
    pub(crate) place: Place,
}

/// What failed first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) place: Place,
    /// Where in the value.
    pub(crate) instance: String,
}

/// Validates values against one schema.
pub(crate) struct Judge<'t> {
    table: &'t Table,
    steps: u64,
    nesting: usize,
    /// Resources on the way to here.
    scope: Vec<u32>,
    path: Vec<String>,
    failure: Option<Failure>,
    tracks: bool,
}

/// Which parts of a value some keyword has looked at.
#[derive(Default, Clone)]
struct Evaluated {
    names: HashSet<String>,
    all_names: bool,
    items: HashSet<usize>,
    prefix: usize,
    all_items: bool,
}

impl Evaluated {
    fn merge(&mut self, other: Self) {
        self.names.extend(other.names);
        self.all_names |= other.all_names;
        self.items.extend(other.items);
        self.prefix = self.prefix.max(other.prefix);
        self.all_items |= other.all_items;
    }
}

impl<'t> Judge<'t> {
    pub(crate) fn new(table: &'t Table, steps: u64) -> Self {
        let tracks = (0..table.nodes.len()).any(|id| {
            table
                .keywords(u32::try_from(id).unwrap_or(0))
                .is_some_and(|k| k.unevaluated_items.is_some() || k.unevaluated_properties.is_some())
        });
        Self { table, steps, nesting: 0, scope: Vec::new(), path: Vec::new(), failure: None, tracks }
    }

    /// Does the value fit?
    pub(crate) fn holds(&mut self, id: NodeId, value: &Json) -> Result<bool, Undecided> {
        self.failure = None;
        self.node(id, value, &mut Evaluated::default())
    }

    /// Why the last value did not fit.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    fn undecided(&self, id: NodeId, keyword: &str) -> Undecided {
        Undecided { place: Place { keyword: keyword.to_owned(), pointer: self.table.pointer(id).to_owned() } }
    }

    fn fail(&mut self, id: NodeId, keyword: &str) -> bool {
        if self.failure.is_none() {
            let mut instance = String::new();
            for part in &self.path {
                instance = push_pointer(&instance, part);
            }
            let place = Place { keyword: keyword.to_owned(), pointer: self.table.pointer(id).to_owned() };
            self.failure = Some(Failure { place, instance });
        }
        false
    }

    fn node(&mut self, id: NodeId, value: &Json, seen: &mut Evaluated) -> Result<bool, Undecided> {
        self.steps = self.steps.checked_sub(1).ok_or_else(|| self.undecided(id, "(schema)"))?;
        if self.nesting >= MAX_NESTING {
            return Err(self.undecided(id, "(schema)"));
        }
        let table = self.table;
        let node = &table.nodes[id as usize];
        let k = match &node.meaning {
            Meaning::Bool(true) => return Ok(true),
            Meaning::Bool(false) => return Ok(self.fail(id, "false")),
            Meaning::Keywords(k) => k,
        };
        self.nesting += 1;
        let enters = self.scope.last() != Some(&node.resource);
        if enters {
            self.scope.push(node.resource);
        }
        let mut own = Evaluated::default();
        let result = self.keywords(id, k, value, &mut own);
        if enters {
            self.scope.pop();
        }
        self.nesting -= 1;
        if result == Ok(true) && self.tracks {
            seen.merge(own);
        }
        result
    }

    /// A part of the value.
    fn part(&mut self, id: NodeId, value: &Json, name: impl FnOnce() -> String) -> Result<bool, Undecided> {
        self.path.push(name());
        let result = self.node(id, value, &mut Evaluated::default());
        self.path.pop();
        result
    }

    /// Tries a schema; its failure is none of ours.
    fn attempt(&mut self, id: NodeId, value: &Json, seen: &mut Evaluated) -> Result<bool, Undecided> {
        let before = self.failure.clone();
        let result = self.node(id, value, seen);
        self.failure = before;
        result
    }

    fn keywords(&mut self, id: NodeId, k: &'t Keywords, value: &Json, seen: &mut Evaluated) -> Result<bool, Undecided> {
        if let Some(types) = k.types
            && types & kind::of(value) == 0
        {
            return Ok(self.fail(id, "type"));
        }
        if let Some(constants) = &k.constants
            && !constants.iter().any(|constant| constant.same(value))
        {
            return Ok(self.fail(id, k.constants_keyword));
        }
        let fits = match value {
            Json::Number(number) => {
                for (keyword, bound) in &k.lower {
                    if *number < bound.value || (bound.exclusive && *number == bound.value) {
                        return Ok(self.fail(id, keyword));
                    }
                }
                for (keyword, bound) in &k.upper {
                    if *number > bound.value || (bound.exclusive && *number == bound.value) {
                        return Ok(self.fail(id, keyword));
                    }
                }
                match &k.multiple_of {
                    Some(of) => {
                        let fits = number.is_multiple_of(of).ok_or_else(|| self.undecided(id, "multipleOf"))?;
                        fits || self.fail(id, "multipleOf")
                    }
                    None => true,
                }
            }
            Json::String(text) => self.string(id, k, text)?,
            Json::Array(items) => self.array(id, k, items, seen)?,
            Json::Object(fields) => self.object(id, k, value, fields, seen)?,
            _ => true,
        };
        if !fits || !self.combined(id, k, value, seen)? {
            return Ok(false);
        }
        match value {
            Json::Array(items) => self.unevaluated_items(id, k, items, seen),
            Json::Object(fields) => self.unevaluated_properties(id, k, fields, seen),
            _ => Ok(true),
        }
    }

    fn string(&mut self, id: NodeId, k: &Keywords, text: &str) -> Result<bool, Undecided> {
        if k.min_length.is_some() || k.max_length.is_some() {
            let length = text.chars().count() as u64;
            if k.min_length.is_some_and(|min| length < min) {
                return Ok(self.fail(id, "minLength"));
            }
            if k.max_length.is_some_and(|max| length > max) {
                return Ok(self.fail(id, "maxLength"));
            }
        }
        if let Some(pattern) = &k.pattern
            && !pattern.is_match(text).ok_or_else(|| self.undecided(id, "pattern"))?
        {
            return Ok(self.fail(id, "pattern"));
        }
        if let Some(format) = &k.format
            && !format.holds(text).ok_or_else(|| self.undecided(id, "format"))?
        {
            return Ok(self.fail(id, "format"));
        }
        Ok(true)
    }

    fn array(&mut self, id: NodeId, k: &Keywords, items: &[Json], seen: &mut Evaluated) -> Result<bool, Undecided> {
        let length = items.len() as u64;
        if k.min_items.is_some_and(|min| length < min) {
            return Ok(self.fail(id, "minItems"));
        }
        if k.max_items.is_some_and(|max| length > max) {
            return Ok(self.fail(id, "maxItems"));
        }
        for (i, item) in items.iter().enumerate() {
            let Some(schema) = k.prefix.get(i).copied().or(k.items) else { break };
            if !self.part(schema, item, || i.to_string())? {
                return Ok(false);
            }
        }
        seen.prefix = seen.prefix.max(k.prefix.len());
        seen.all_items |= k.items.is_some();
        if let Some(contains) = k.contains {
            let mut hits = 0;
            for (i, item) in items.iter().enumerate() {
                if self.attempt(contains, item, &mut Evaluated::default())? {
                    hits += 1;
                    if k.contains_evaluates {
                        seen.items.insert(i);
                    }
                }
            }
            if hits < k.min_contains.unwrap_or(1) {
                return Ok(self.fail(id, if k.min_contains.is_some() { "minContains" } else { "contains" }));
            }
            if k.max_contains.is_some_and(|max| hits > max) {
                return Ok(self.fail(id, "maxContains"));
            }
        }
        if k.unique {
            let mut known = HashSet::new();
            if !items.iter().all(|item| known.insert(item.key())) {
                return Ok(self.fail(id, "uniqueItems"));
            }
        }
        Ok(true)
    }

    fn object(
        &mut self,
        id: NodeId,
        k: &Keywords,
        value: &Json,
        fields: &[(String, Json)],
        seen: &mut Evaluated,
    ) -> Result<bool, Undecided> {
        let count = fields.len() as u64;
        if k.min_properties.is_some_and(|min| count < min) {
            return Ok(self.fail(id, "minProperties"));
        }
        if k.max_properties.is_some_and(|max| count > max) {
            return Ok(self.fail(id, "maxProperties"));
        }
        if k.required.iter().any(|name| value.get(name).is_none()) {
            return Ok(self.fail(id, "required"));
        }
        for (name, needed) in &k.dependent_required {
            if value.get(name).is_some() && needed.iter().any(|name| value.get(name).is_none()) {
                let keyword = if k.old_dependencies { "dependencies" } else { "dependentRequired" };
                return Ok(self.fail(id, keyword));
            }
        }
        let looks = !k.properties.is_empty() || !k.patterns.is_empty() || k.additional.is_some() || k.names.is_some();
        if !looks {
            return Ok(true);
        }
        for (name, field) in fields {
            let mut known = false;
            if let Some(&schema) = k.property_index.get(name.as_str()) {
                known = true;
                if !self.part(schema, field, || name.clone())? {
                    return Ok(false);
                }
            }
            for (pattern, schema) in &k.patterns {
                if pattern.is_match(name).ok_or_else(|| self.undecided(id, "patternProperties"))? {
                    known = true;
                    if !self.part(*schema, field, || name.clone())? {
                        return Ok(false);
                    }
                }
            }
            if !known && let Some(schema) = k.additional {
                known = true;
                if !self.part(schema, field, || name.clone())? {
                    if matches!(self.table.nodes[schema as usize].meaning, Meaning::Bool(false)) {
                        self.failure = None;
                        return Ok(self.fail(id, "additionalProperties"));
                    }
                    return Ok(false);
                }
            }
            if known && self.tracks {
                seen.names.insert(name.clone());
            }
            if let Some(names) = k.names
                && !self.attempt(names, &Json::String(name.clone()), &mut Evaluated::default())?
            {
                return Ok(self.fail(id, "propertyNames"));
            }
        }
        Ok(true)
    }

    fn combined(&mut self, id: NodeId, k: &Keywords, value: &Json, seen: &mut Evaluated) -> Result<bool, Undecided> {
        if let Some(target) = k.reference {
            let target = k.dynamic.as_ref().map_or(target, |name| {
                let find = |resource: &u32| self.table.dynamic_anchors.get(&(*resource, name.clone())).copied();
                self.scope.iter().find_map(find).unwrap_or(target)
            });
            if !self.node(target, value, seen)? {
                return Ok(false);
            }
        }
        for &part in &k.all_of {
            if !self.node(part, value, seen)? {
                return Ok(false);
            }
        }
        if let Some(parts) = &k.any_of {
            let mut found = false;
            for &part in parts {
                found |= self.attempt(part, value, seen)?;
                if found && !self.tracks {
                    break;
                }
            }
            if !found {
                return Ok(self.fail(id, "anyOf"));
            }
        }
        if let Some(parts) = &k.one_of {
            let mut found = 0;
            for &part in parts {
                found += u32::from(self.attempt(part, value, seen)?);
                if found > 1 {
                    break;
                }
            }
            if found != 1 {
                return Ok(self.fail(id, "oneOf"));
            }
        }
        if let Some(part) = k.not
            && self.attempt(part, value, &mut Evaluated::default())?
        {
            return Ok(self.fail(id, "not"));
        }
        if let Some(condition) = k.if_ {
            let branch = if self.attempt(condition, value, seen)? { k.then } else { k.else_ };
            if let Some(branch) = branch
                && !self.node(branch, value, seen)?
            {
                return Ok(false);
            }
        }
        if matches!(value, Json::Object(_)) {
            for (name, schema) in &k.dependent_schemas {
                if value.get(name).is_some() && !self.node(*schema, value, seen)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn unevaluated_items(
        &mut self,
        id: NodeId,
        k: &Keywords,
        items: &[Json],
        seen: &mut Evaluated,
    ) -> Result<bool, Undecided> {
        let Some(schema) = k.unevaluated_items else { return Ok(true) };
        if !seen.all_items {
            for (i, item) in items.iter().enumerate().skip(seen.prefix) {
                if !seen.items.contains(&i) && !self.part(schema, item, || i.to_string())? {
                    self.failure = None;
                    return Ok(self.fail(id, "unevaluatedItems"));
                }
            }
        }
        seen.all_items = true;
        Ok(true)
    }

    fn unevaluated_properties(
        &mut self,
        id: NodeId,
        k: &Keywords,
        fields: &[(String, Json)],
        seen: &mut Evaluated,
    ) -> Result<bool, Undecided> {
        let Some(schema) = k.unevaluated_properties else { return Ok(true) };
        if !seen.all_names {
            for (name, field) in fields {
                if !seen.names.contains(name) && !self.part(schema, field, || name.clone())? {
                    self.failure = None;
                    return Ok(self.fail(id, "unevaluatedProperties"));
                }
            }
        }
        seen.all_names = true;
        Ok(true)
    }
}
