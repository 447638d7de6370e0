//! A schema's text as a table of subschemas with their references resolved.
//!
//! Nothing here says what a keyword means for the output; keywords are only checked for their form. Drafts 4, 6, 7,
//! 2019-09 and 2020-12 are read; a schema without `$schema` is read as 2020-12 with the older spellings (`definitions`,
//! `dependencies`, lists in `items`, `exclusiveMinimum: true`). A keyword that its draft does not know is an annotation
//! there, and is named in a remark.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use super::decimal::Decimal;
use super::error::{Place, Remark, SchemaError, SchemaErrorKind};
use super::formats::{self, Format};
use super::json::{Json, push_pointer};
use super::limits::SchemaLimits;
use super::pattern::{Pattern, matcher_of};

/// Number of a subschema.
pub(crate) type NodeId = u32;

/// Types as bits; a number is whole or not.
pub(crate) mod kind {
    pub(crate) const NULL: u8 = 1;
    pub(crate) const BOOLEAN: u8 = 2;
    pub(crate) const INTEGER: u8 = 4;
    pub(crate) const FRACTION: u8 = 8;
    pub(crate) const NUMBER: u8 = INTEGER | FRACTION;
    pub(crate) const STRING: u8 = 16;
    pub(crate) const ARRAY: u8 = 32;
    pub(crate) const OBJECT: u8 = 64;
    pub(crate) const ALL: u8 = 127;

    pub(crate) fn of(value: &crate::schema::json::Json) -> u8 {
        use crate::schema::json::Json;
        match value {
            Json::Null => NULL,
            Json::Bool(_) => BOOLEAN,
            Json::Number(n) if n.is_integer() => INTEGER,
            Json::Number(_) => FRACTION,
            Json::String(_) => STRING,
            Json::Array(_) => ARRAY,
            Json::Object(_) => OBJECT,
        }
    }
}

/// A format that is asserted.
pub(crate) struct FormatRule {
    pub(crate) name: String,
    pub(crate) format: Format,
    matcher: std::sync::Mutex<Option<llguidance::derivre::Regex>>,
}

impl std::fmt::Debug for FormatRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("FormatRule").field(&self.name).finish()
    }
}

impl FormatRule {
    /// `None`: undecided within the limits.
    pub(crate) fn holds(&self, text: &str) -> Option<bool> {
        match &self.format {
            Format::Regex => Some(Pattern::parse(text, 4096).is_ok()),
            Format::Language(language) => {
                let mut matcher = self.matcher.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                if matcher.is_none() {
                    *matcher = matcher_of(language, 2_000_000);
                }
                Some(matcher.as_mut()?.is_match(text))
            }
        }
    }
}

/// A bound of numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bound {
    pub(crate) value: Decimal,
    pub(crate) exclusive: bool,
}

/// `additionalProperties`-like keywords and the rest of an object schema.
#[derive(Debug, Default)]
pub(crate) struct Keywords {
    pub(crate) reference: Option<NodeId>,
    /// `$dynamicRef` that the dynamic scope may lead elsewhere: the anchor's name.
    pub(crate) dynamic: Option<String>,
    pub(crate) types: Option<u8>,
    pub(crate) constants: Option<Vec<Json>>,
    /// `enum` or `const`.
    pub(crate) constants_keyword: &'static str,
    pub(crate) all_of: Vec<NodeId>,
    pub(crate) any_of: Option<Vec<NodeId>>,
    pub(crate) one_of: Option<Vec<NodeId>>,
    pub(crate) not: Option<NodeId>,
    pub(crate) if_: Option<NodeId>,
    pub(crate) then: Option<NodeId>,
    pub(crate) else_: Option<NodeId>,
    pub(crate) lower: Vec<(&'static str, Bound)>,
    pub(crate) upper: Vec<(&'static str, Bound)>,
    pub(crate) multiple_of: Option<Decimal>,
    pub(crate) min_length: Option<u64>,
    pub(crate) max_length: Option<u64>,
    pub(crate) pattern: Option<Arc<Pattern>>,
    pub(crate) format: Option<Arc<FormatRule>>,
    pub(crate) prefix: Vec<NodeId>,
    pub(crate) items: Option<NodeId>,
    pub(crate) contains: Option<NodeId>,
    /// What `contains` finds is evaluated for `unevaluatedItems`: since 2020-12.
    pub(crate) contains_evaluates: bool,
    pub(crate) min_contains: Option<u64>,
    pub(crate) max_contains: Option<u64>,
    pub(crate) min_items: Option<u64>,
    pub(crate) max_items: Option<u64>,
    pub(crate) unique: bool,
    pub(crate) unevaluated_items: Option<NodeId>,
    pub(crate) properties: Vec<(Arc<str>, NodeId)>,
    pub(crate) property_index: HashMap<Arc<str>, NodeId>,
    /// There is `properties`, if only an empty one.
    pub(crate) declares: bool,
    /// Its properties come in the order of the text in every mode.
    pub(crate) ordered: bool,
    pub(crate) patterns: Vec<(Arc<Pattern>, NodeId)>,
    pub(crate) additional: Option<NodeId>,
    pub(crate) required: Vec<Arc<str>>,
    pub(crate) names: Option<NodeId>,
    pub(crate) min_properties: Option<u64>,
    pub(crate) max_properties: Option<u64>,
    pub(crate) dependent_required: Vec<(Arc<str>, Vec<Arc<str>>)>,
    pub(crate) dependent_schemas: Vec<(Arc<str>, NodeId)>,
    pub(crate) unevaluated_properties: Option<NodeId>,
    /// `dependencies` instead of the two newer keywords.
    pub(crate) old_dependencies: bool,
}

#[derive(Debug)]
pub(crate) enum Meaning {
    Bool(bool),
    Keywords(Box<Keywords>),
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) pointer: String,
    pub(crate) meaning: Meaning,
    /// The resource (`$id`) that the node belongs to.
    pub(crate) resource: u32,
}

/// All subschemas of a schema; 0 is the root.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) nodes: Vec<Node>,
    pub(crate) remarks: Vec<Remark>,
    /// `$dynamicAnchor`s by resource and name.
    pub(crate) dynamic_anchors: HashMap<(u32, String), NodeId>,
}

impl Table {
    pub(crate) fn keywords(&self, id: NodeId) -> Option<&Keywords> {
        match &self.nodes[id as usize].meaning {
            Meaning::Keywords(keywords) => Some(keywords),
            Meaning::Bool(_) => None,
        }
    }

    pub(crate) fn pointer(&self, id: NodeId) -> &str {
        &self.nodes[id as usize].pointer
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Draft {
    D4,
    D6,
    D7,
    D2019,
    D2020,
    /// No `$schema`.
    Unsaid,
}

/// The place of a schema that is still to be read.
#[derive(Clone)]
struct Task<'d> {
    id: NodeId,
    value: &'d Json,
    document: usize,
    pointer: String,
    base: String,
    resource: u32,
    draft: Draft,
    depth: usize,
}

struct Reader<'d> {
    limits: &'d SchemaLimits,
    documents: Vec<&'d Json>,
    /// Names of documents other than the root, for messages.
    document_names: Vec<String>,
    /// Which documents know of each other's addresses: those of one number.
    spaces: Vec<u32>,
    nodes: Vec<Option<Node>>,
    /// By document and pointer.
    by_place: HashMap<(usize, String), NodeId>,
    tasks: Vec<Task<'d>>,
    /// Resources by space and address: document, pointer of its root, number.
    resources: HashMap<(u32, String), (usize, String, u32)>,
    resource_count: u32,
    /// By space, address and name.
    anchors: HashMap<(u32, String, String), NodeId>,
    dynamic_anchors: HashMap<(u32, String), NodeId>,
    references: Vec<Reference>,
    remarks: BTreeSet<Remark>,
    patterns: HashMap<String, Arc<Pattern>>,
    formats: HashMap<String, Option<Arc<FormatRule>>>,
    constant_bytes: usize,
    constant_values: usize,
    /// The objects of the root document keep their order.
    ordered: bool,
}

struct Reference {
    from: NodeId,
    keyword: &'static str,
    text: String,
    base: String,
    document: usize,
    draft: Draft,
}

const KNOWN: &[&str] = &[
    "$schema",
    "$id",
    "id",
    "$anchor",
    "$dynamicAnchor",
    "$recursiveAnchor",
    "$ref",
    "$dynamicRef",
    "$recursiveRef",
    "$defs",
    "definitions",
    "$comment",
    "$vocabulary",
    "type",
    "enum",
    "const",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "prefixItems",
    "items",
    "additionalItems",
    "contains",
    "minContains",
    "maxContains",
    "minItems",
    "maxItems",
    "uniqueItems",
    "unevaluatedItems",
    "properties",
    "patternProperties",
    "additionalProperties",
    "required",
    "propertyNames",
    "minProperties",
    "maxProperties",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedProperties",
];

/// Keywords that say nothing about which values are valid, by the specification or by wide use.
const ANNOTATIONS: &[&str] = &[
    "$schema",
    "$comment",
    "$vocabulary",
    "$defs",
    "definitions",
    "title",
    "description",
    "default",
    "examples",
    "example",
    "deprecated",
    "readOnly",
    "writeOnly",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "nullable",
    "discriminator",
    "externalDocs",
    "xml",
];

const MAX_REFERENCE_LEN: usize = 2_000;

/// Reads a schema.
pub(crate) fn read(root: &Json, limits: &SchemaLimits) -> Result<Table, SchemaError> {
    read_all(root, &[], limits)
}

/// Reads a schema that refers to `others` by address. They know nothing of each other: every one is a schema by itself,
/// whatever `$id` and anchors it has.
pub(crate) fn read_all(root: &Json, others: &[(String, &Json)], limits: &SchemaLimits) -> Result<Table, SchemaError> {
    if !matches!(root, Json::Object(_) | Json::Bool(_)) {
        return Err(SchemaError::malformed("", "(schema)", "must be an object or a boolean"));
    }
    let mut reader = Reader {
        limits,
        documents: vec![root],
        document_names: vec![String::new()],
        spaces: vec![0],
        nodes: Vec::new(),
        by_place: HashMap::new(),
        tasks: Vec::new(),
        resources: HashMap::new(),
        resource_count: 0,
        anchors: HashMap::new(),
        dynamic_anchors: HashMap::new(),
        references: Vec::new(),
        remarks: BTreeSet::new(),
        patterns: HashMap::new(),
        formats: HashMap::new(),
        constant_bytes: 0,
        constant_values: 0,
        ordered: false,
    };
    reader.document_root(0, String::new())?;
    for (space, (address, json)) in (1_u32..).zip(others) {
        let document = reader.documents.len();
        reader.documents.push(json);
        reader.document_names.push(format!("<{address}>#"));
        reader.spaces.push(space);
        let resource = reader.resource_count;
        reader.document_root(document, String::new())?;
        reader.resources.insert((0, address.clone()), (document, String::new(), resource));
    }
    // Only the root says how a call is written down.
    reader.ordered = !others.is_empty();
    reader.run()?;
    let mut next = 0;
    while next < reader.references.len() {
        reader.resolve(next)?;
        reader.run()?;
        next += 1;
    }
    reader.finish()
}

impl<'d> Reader<'d> {
    fn place(&self, document: usize, pointer: &str) -> String {
        format!("{}{pointer}", self.document_names[document])
    }

    fn document_root(&mut self, document: usize, address: String) -> Result<NodeId, SchemaError> {
        let resource = self.resource_count;
        self.resource_count += 1;
        self.resources.insert((self.spaces[document], address.clone()), (document, String::new(), resource));
        self.schedule(Task {
            id: 0,
            value: self.documents[document],
            document,
            pointer: String::new(),
            base: address,
            resource,
            draft: Draft::Unsaid,
            depth: 0,
        })
    }

    fn schedule(&mut self, mut task: Task<'d>) -> Result<NodeId, SchemaError> {
        let key = (task.document, task.pointer.clone());
        if let Some(&id) = self.by_place.get(&key) {
            return Ok(id);
        }
        let id = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        if self.nodes.len() >= self.limits.max_schemas {
            let max = self.limits.max_schemas as u64;
            return Err(SchemaError::too_large(&task.pointer, "(schema)", "subschemas", max + 1, max));
        }
        self.nodes.push(None);
        self.by_place.insert(key, id);
        task.id = id;
        self.tasks.push(task);
        Ok(id)
    }

    /// Reads what is scheduled. Children are numbered in the order of the text.
    fn run(&mut self) -> Result<(), SchemaError> {
        while let Some(task) = self.tasks.pop() {
            let before = self.tasks.len();
            self.node(task)?;
            self.tasks[before..].reverse();
        }
        Ok(())
    }

    fn remark(&mut self, pointer: &str, keyword: &str, reason: &str) {
        if self.remarks.len() < 1_000 {
            let place = Place { keyword: keyword.chars().take(80).collect(), pointer: pointer.to_owned() };
            self.remarks.insert(Remark { place, reason: reason.to_owned() });
        }
    }

    fn node(&mut self, mut task: Task<'d>) -> Result<(), SchemaError> {
        let at = self.place(task.document, &task.pointer);
        let fields = match task.value {
            Json::Bool(b) => {
                let node = Node { pointer: at, meaning: Meaning::Bool(*b), resource: task.resource };
                self.nodes[task.id as usize] = Some(node);
                return Ok(());
            }
            Json::Object(fields) => fields,
            _ => return Err(SchemaError::malformed(&at, "(schema)", "must be an object or a boolean")),
        };
        let find = |key: &str| fields.iter().find(|(k, _)| k == key).map(|(_, v)| v);
        if let Some(draft) = find("$schema") {
            let known = self.draft(draft, &at)?;
            if task.pointer.is_empty() || find("$id").is_some() {
                task.draft = known;
            }
        }
        let draft = task.draft;
        let has_ref = matches!(find("$ref"), Some(Json::String(_)));
        let ref_alone = has_ref && draft <= Draft::D7;
        self.identify(&mut task, fields, &at, ref_alone)?;

        let ordered = self.ordered && task.document == 0;
        let mut keywords = Keywords { constants_keyword: "enum", ordered, ..Keywords::default() };
        for (name, value) in fields {
            if ref_alone && name != "$ref" && name != "definitions" && name != "$defs" && name != "$schema" {
                if KNOWN.contains(&name.as_str())
                    && !ANNOTATIONS.contains(&name.as_str())
                    && name != "$id"
                    && name != "id"
                {
                    self.remark(&at, name, "beside $ref it has no effect before draft 2019-09");
                }
                continue;
            }
            self.keyword(&mut keywords, &task, name, value, &at, fields)?;
        }
        if keywords.if_.is_none() {
            keywords.then = None;
            keywords.else_ = None;
        }
        if keywords.contains.is_none() {
            keywords.min_contains = None;
            keywords.max_contains = None;
        }
        self.nodes[task.id as usize] =
            Some(Node { pointer: at, meaning: Meaning::Keywords(Box::new(keywords)), resource: task.resource });
        Ok(())
    }

    fn draft(&mut self, value: &Json, at: &str) -> Result<Draft, SchemaError> {
        let Some(text) = value.as_str() else { return Err(SchemaError::malformed(at, "$schema", "must be a string")) };
        let address = text.trim_end_matches('#');
        let address = address.strip_prefix("https://").or_else(|| address.strip_prefix("http://")).unwrap_or(address);
        Ok(match address {
            "json-schema.org/draft-04/schema" => Draft::D4,
            "json-schema.org/draft-06/schema" => Draft::D6,
            "json-schema.org/draft-07/schema" => Draft::D7,
            "json-schema.org/draft/2019-09/schema" => Draft::D2019,
            "json-schema.org/draft/2020-12/schema" => Draft::D2020,
            _ => {
                self.remark(at, "$schema", "names no draft that is known here; read as if it were absent");
                Draft::Unsaid
            }
        })
    }

    /// `$id`, `id` and anchors.
    fn identify(
        &mut self,
        task: &mut Task<'d>,
        fields: &[(String, Json)],
        at: &str,
        ref_alone: bool,
    ) -> Result<(), SchemaError> {
        let key = if task.draft == Draft::D4 { "id" } else { "$id" };
        let space = self.spaces[task.document];
        for (name, value) in fields {
            match (name.as_str(), value) {
                (name, Json::String(text)) if name == key && !ref_alone => {
                    let (address, fragment) = split(text);
                    let resolved = resolve_address(&task.base, address);
                    if !fragment.is_empty() {
                        self.anchors.entry((space, resolved.clone(), fragment.to_owned())).or_insert(task.id);
                    }
                    if !address.is_empty() {
                        let resource = if task.pointer.is_empty() { task.resource } else { self.resource_count };
                        if !task.pointer.is_empty() {
                            self.resource_count += 1;
                        }
                        self.resources
                            .entry((space, resolved.clone()))
                            .or_insert_with(|| (task.document, task.pointer.clone(), resource));
                        task.base = resolved;
                        task.resource = resource;
                    }
                }
                ("$id", Json::String(_)) => {}
                ("$id", _) if task.draft != Draft::D4 => {
                    return Err(SchemaError::malformed(at, "$id", "must be a string"));
                }
                // Older files name places so in every draft.
                ("id", Json::String(text)) if text.starts_with('#') && text.len() > 1 => {
                    self.anchors.entry((space, task.base.clone(), text[1..].to_owned())).or_insert(task.id);
                }
                ("$anchor", Json::String(text)) if task.draft >= Draft::D2019 => {
                    self.anchors.insert((space, task.base.clone(), text.clone()), task.id);
                }
                ("$dynamicAnchor", Json::String(text)) if task.draft >= Draft::D2020 => {
                    self.anchors.insert((space, task.base.clone(), text.clone()), task.id);
                    self.dynamic_anchors.insert((task.resource, text.clone()), task.id);
                }
                ("$recursiveAnchor", Json::Bool(true)) if task.draft == Draft::D2019 => {
                    self.dynamic_anchors.insert((task.resource, String::new()), task.id);
                }
                ("$anchor" | "$dynamicAnchor", value) if !matches!(value, Json::String(_)) => {
                    return Err(SchemaError::malformed(at, name, "must be a string"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn child(&mut self, task: &Task<'d>, names: &[&str], value: &'d Json) -> Result<NodeId, SchemaError> {
        let mut pointer = task.pointer.clone();
        for name in names {
            pointer = push_pointer(&pointer, name);
        }
        if task.depth + 1 > self.limits.max_depth {
            let max = self.limits.max_depth as u64;
            return Err(SchemaError::too_large(&task.pointer, "(schema)", "schemas in one another", max + 1, max));
        }
        self.schedule(Task { id: 0, value, pointer, depth: task.depth + 1, ..task.clone() })
    }

    fn children(&mut self, task: &Task<'d>, name: &str, value: &'d Json, at: &str) -> Result<Vec<NodeId>, SchemaError> {
        match value {
            Json::Array(items) if !items.is_empty() => {
                items.iter().enumerate().map(|(i, item)| self.child(task, &[name, &i.to_string()], item)).collect()
            }
            _ => Err(SchemaError::malformed(at, name, "must be a list of at least one schema")),
        }
    }

    fn named_children(
        &mut self,
        task: &Task<'d>,
        name: &str,
        value: &'d Json,
        at: &str,
    ) -> Result<Vec<(Arc<str>, NodeId)>, SchemaError> {
        match value {
            Json::Object(fields) => fields
                .iter()
                .map(|(key, v)| Ok((Arc::from(key.as_str()), self.child(task, &[name, key], v)?)))
                .collect(),
            _ => Err(SchemaError::malformed(at, name, "must be an object of schemas")),
        }
    }

    fn pattern(&mut self, text: &str, at: &str, keyword: &str) -> Result<Arc<Pattern>, SchemaError> {
        if let Some(known) = self.patterns.get(text) {
            return Ok(Arc::clone(known));
        }
        let pattern = Pattern::parse(text, self.limits.max_pattern_chars)
            .map_err(|e| SchemaError::new(SchemaErrorKind::Unsupported, at, keyword, format!("pattern, {}", e.0)))?;
        if pattern.language().is_none() && !pattern.is_decidable() {
            let reason = "is a regular expression that neither the grammar nor the validator can decide";
            return Err(SchemaError::new(SchemaErrorKind::Unsupported, at, keyword, reason));
        }
        let pattern = Arc::new(pattern);
        self.patterns.insert(text.to_owned(), Arc::clone(&pattern));
        Ok(pattern)
    }

    #[expect(clippy::too_many_lines, reason = "one arm per keyword")]
    fn keyword(
        &mut self,
        k: &mut Keywords,
        task: &Task<'d>,
        name: &str,
        value: &'d Json,
        at: &str,
        fields: &[(String, Json)],
    ) -> Result<(), SchemaError> {
        let draft = task.draft;
        let since = |first: Draft| draft >= first;
        let malformed = |reason: &str| SchemaError::malformed(at, name, reason);
        let too_old = match name {
            "const" | "contains" | "propertyNames" => !since(Draft::D6),
            "if" | "then" | "else" => !since(Draft::D7),
            "dependentRequired"
            | "dependentSchemas"
            | "minContains"
            | "maxContains"
            | "unevaluatedItems"
            | "unevaluatedProperties" => !since(Draft::D2019),
            "prefixItems" | "$dynamicRef" => !since(Draft::D2020),
            "$recursiveRef" => draft != Draft::D2019,
            "dependencies" => matches!(draft, Draft::D2020 | Draft::D2019),
            _ => false,
        };
        if too_old {
            self.remark(at, name, "is no keyword of the schema's draft");
            return Ok(());
        }
        match name {
            "$ref" => {
                let text = value.as_str().ok_or_else(|| malformed("must be a string"))?;
                self.reference(task, "$ref", text, at)?;
            }
            "$dynamicRef" => {
                let text = value.as_str().ok_or_else(|| malformed("must be a string"))?;
                self.reference(task, "$dynamicRef", text, at)?;
            }
            "$recursiveRef" => {
                if value.as_str() != Some("#") {
                    return Err(malformed("must be '#'"));
                }
                self.reference(task, "$recursiveRef", "#", at)?;
            }
            "$defs" | "definitions" => {
                let Json::Object(definitions) = value else { return Err(malformed("must be an object of schemas")) };
                for (key, definition) in definitions {
                    // Other things lie here too; a reference to one of them is looked at when it comes.
                    if matches!(definition, Json::Object(_) | Json::Bool(_)) {
                        self.child(task, &[name, key], definition)?;
                    }
                }
            }
            "type" => {
                k.types = Some(
                    types(value)
                        .ok_or_else(|| malformed("must be a type of JSON Schema, or a list of different ones"))?,
                )
            }
            "enum" => {
                let Json::Array(values) = value else { return Err(malformed("must be a list")) };
                if values.is_empty() {
                    return Err(malformed("must be a list of at least one value"));
                }
                if values.len() > self.limits.max_enum {
                    let (n, max) = (values.len() as u64, self.limits.max_enum as u64);
                    return Err(SchemaError::too_large(at, name, "values", n, max));
                }
                self.constants(k, values, "enum", at)?;
            }
            "const" => self.constants(k, std::slice::from_ref(value), "const", at)?,
            "allOf" => k.all_of = self.children(task, name, value, at)?,
            "anyOf" => k.any_of = Some(self.children(task, name, value, at)?),
            "oneOf" => k.one_of = Some(self.children(task, name, value, at)?),
            "not" => k.not = Some(self.child(task, &[name], value)?),
            "if" => k.if_ = Some(self.child(task, &[name], value)?),
            "then" => k.then = Some(self.child(task, &[name], value)?),
            "else" => k.else_ = Some(self.child(task, &[name], value)?),
            "minimum" | "maximum" => {
                let Json::Number(bound) = value else { return Err(malformed("must be a number")) };
                let other = if name == "minimum" { "exclusiveMinimum" } else { "exclusiveMaximum" };
                let exclusive = draft_4_exclusive(fields, other);
                let bound = Bound { value: bound.clone(), exclusive };
                if name == "minimum" { k.lower.push(("minimum", bound)) } else { k.upper.push(("maximum", bound)) }
            }
            "exclusiveMinimum" | "exclusiveMaximum" => match value {
                Json::Bool(flag) => {
                    let partner = if name == "exclusiveMinimum" { "minimum" } else { "maximum" };
                    if *flag && !fields.iter().any(|(k, _)| k == partner) {
                        self.remark(at, name, "has no effect without the bound that it speaks of");
                    }
                }
                Json::Number(bound) if draft != Draft::D4 => {
                    let bound = Bound { value: bound.clone(), exclusive: true };
                    if name == "exclusiveMinimum" {
                        k.lower.push(("exclusiveMinimum", bound));
                    } else {
                        k.upper.push(("exclusiveMaximum", bound));
                    }
                }
                _ => return Err(malformed("must be a number (a boolean in draft 4)")),
            },
            "multipleOf" => {
                let Json::Number(of) = value else { return Err(malformed("must be a number")) };
                if of.is_negative() || of.is_zero() {
                    return Err(malformed("must be above 0"));
                }
                if of.as_divisor().is_none() {
                    return Err(SchemaError::too_large(at, name, "digits", of.precision() as u64, 30));
                }
                k.multiple_of = Some(of.clone());
            }
            "minLength" => k.min_length = Some(self.count(value, at, name, true)?),
            "maxLength" => k.max_length = Some(self.count(value, at, name, false)?),
            "minItems" => k.min_items = Some(self.count(value, at, name, true)?),
            "maxItems" => k.max_items = Some(self.count(value, at, name, false)?),
            "minProperties" => k.min_properties = Some(self.count(value, at, name, true)?),
            "maxProperties" => k.max_properties = Some(self.count(value, at, name, false)?),
            "minContains" => k.min_contains = Some(self.count(value, at, name, true)?),
            "maxContains" => k.max_contains = Some(self.count(value, at, name, false)?),
            "pattern" => {
                let text = value.as_str().ok_or_else(|| malformed("must be a string"))?;
                k.pattern = Some(self.pattern(text, at, name)?);
            }
            "format" => {
                let text = value.as_str().ok_or_else(|| malformed("must be a string"))?;
                let known = self.formats.entry(text.to_owned()).or_insert_with(|| {
                    formats::lookup(text).map(|format| {
                        Arc::new(FormatRule { name: text.to_owned(), format, matcher: std::sync::Mutex::default() })
                    })
                });
                k.format.clone_from(known);
                if k.format.is_none() {
                    let reason = format!(
                        "'{}' is no format that is known here: an annotation",
                        text.chars().take(60).collect::<String>()
                    );
                    self.remark(at, name, &reason);
                }
            }
            "prefixItems" => k.prefix = self.children(task, name, value, at)?,
            "items" => match value {
                Json::Array(list) => {
                    if draft == Draft::D2020 {
                        self.remark(at, name, "a list is read as prefixItems, as in older drafts");
                    }
                    if !list.is_empty() {
                        k.prefix = self.children(task, name, value, at)?;
                    }
                }
                _ => k.items = Some(self.child(task, &[name], value)?),
            },
            "additionalItems" => {
                let list = fields.iter().any(|(k, v)| k == "items" && matches!(v, Json::Array(_)));
                if list {
                    k.items = Some(self.child(task, &[name], value)?);
                } else {
                    self.remark(at, name, "has no effect without a list in items");
                }
            }
            "contains" => {
                k.contains = Some(self.child(task, &[name], value)?);
                k.contains_evaluates = task.draft >= Draft::D2020;
            }
            "uniqueItems" => match value {
                Json::Bool(flag) => k.unique = *flag,
                _ => return Err(malformed("must be a boolean")),
            },
            "unevaluatedItems" => k.unevaluated_items = Some(self.child(task, &[name], value)?),
            "properties" => {
                k.declares = true;
                k.properties = self.named_children(task, name, value, at)?;
                k.property_index = k.properties.iter().cloned().collect();
            }
            "patternProperties" => {
                for (key, id) in self.named_children(task, name, value, at)? {
                    let pattern = self.pattern(&key, at, name)?;
                    k.patterns.push((pattern, id));
                }
            }
            "additionalProperties" => k.additional = Some(self.child(task, &[name], value)?),
            "required" => k.required = names(value).ok_or_else(|| malformed("must be a list of different names"))?,
            "propertyNames" => k.names = Some(self.child(task, &[name], value)?),
            "dependentRequired" => {
                let Json::Object(all) = value else { return Err(malformed("must be an object of lists of names")) };
                for (key, list) in all {
                    let list = names(list).ok_or_else(|| malformed("must be an object of lists of names"))?;
                    k.dependent_required.push((Arc::from(key.as_str()), list));
                }
            }
            "dependentSchemas" => k.dependent_schemas = self.named_children(task, name, value, at)?,
            "dependencies" => {
                k.old_dependencies = true;
                let Json::Object(all) = value else { return Err(malformed("must be an object")) };
                for (key, dependency) in all {
                    let key_name: Arc<str> = Arc::from(key.as_str());
                    match dependency {
                        Json::Array(_) => {
                            let list =
                                names(dependency).ok_or_else(|| malformed("must hold lists of different names"))?;
                            k.dependent_required.push((key_name, list));
                        }
                        _ => {
                            let id = self.child(task, &[name, key], dependency)?;
                            k.dependent_schemas.push((key_name, id));
                        }
                    }
                }
            }
            "unevaluatedProperties" => k.unevaluated_properties = Some(self.child(task, &[name], value)?),
            "$schema" | "$id" | "id" | "$anchor" | "$dynamicAnchor" | "$recursiveAnchor" => {}
            name if ANNOTATIONS.contains(&name) || name.starts_with("x-") => {}
            _ => self.remark(at, name, "is no keyword of JSON Schema"),
        }
        Ok(())
    }

    fn count(&mut self, value: &Json, at: &str, name: &str, lower: bool) -> Result<u64, SchemaError> {
        let Json::Number(number) = value else {
            return Err(SchemaError::malformed(at, name, "must be a whole number of at least 0"));
        };
        if !number.is_integer() || number.is_negative() {
            return Err(SchemaError::malformed(at, name, "must be a whole number of at least 0"));
        }
        let count = number.as_u64().unwrap_or(u64::MAX);
        let max = self.limits.max_minimum;
        if lower && count > max {
            let what = match name {
                "minLength" => "characters of a string",
                "minItems" | "minContains" => "items of an array",
                _ => "properties of an object",
            };
            return Err(SchemaError::too_large(at, name, what, count, max));
        }
        Ok(count)
    }

    fn constants(
        &mut self,
        k: &mut Keywords,
        values: &[Json],
        keyword: &'static str,
        at: &str,
    ) -> Result<(), SchemaError> {
        for value in values {
            value.check_numbers().map_err(|number| {
                let reason = format!(
                    "holds {}, which programs that read JSON do not keep: whole numbers have 64 bits, others those of a double",
                    number.chars().take(60).collect::<String>()
                );
                SchemaError::new(SchemaErrorKind::Unsupported, at, keyword, reason)
            })?;
            self.constant_bytes += value.key().len();
            self.constant_values += value.count();
        }
        let (count, max) = (self.constant_values as u64, self.limits.max_constant_values as u64);
        if count > max {
            return Err(SchemaError::too_large(at, keyword, "values of constants", count, max));
        }
        let max = self.limits.max_constant_bytes;
        if self.constant_bytes > max {
            return Err(SchemaError::too_large(
                at,
                keyword,
                "bytes of constants",
                self.constant_bytes as u64,
                max as u64,
            ));
        }
        let mut seen = HashSet::new();
        let mut kept: Vec<Json> = values.iter().filter(|value| seen.insert(value.key())).cloned().collect();
        if let Some(before) = &k.constants {
            let both: HashSet<String> = before.iter().map(Json::key).collect();
            kept.retain(|value| both.contains(&value.key()));
        } else {
            k.constants_keyword = keyword;
        }
        k.constants = Some(kept);
        Ok(())
    }

    // ---- references ----

    fn reference(&mut self, task: &Task<'_>, keyword: &'static str, text: &str, at: &str) -> Result<(), SchemaError> {
        if text.len() > MAX_REFERENCE_LEN {
            return Err(SchemaError::too_large(at, keyword, "bytes", text.len() as u64, MAX_REFERENCE_LEN as u64));
        }
        self.references.push(Reference {
            from: task.id,
            keyword,
            text: text.to_owned(),
            base: task.base.clone(),
            document: task.document,
            draft: task.draft,
        });
        Ok(())
    }

    fn resolve(&mut self, index: usize) -> Result<(), SchemaError> {
        let Reference { from, keyword, ref text, ref base, document, draft } = self.references[index];
        let (text, base) = (text.clone(), base.clone());
        let (address, fragment) = split(&text);
        let resolved = if address.is_empty() { base } else { resolve_address(&base, address) };
        let at = self.nodes[from as usize].as_ref().map(|n| n.pointer.clone()).unwrap_or_default();
        let unknown = || {
            SchemaError::new(SchemaErrorKind::Reference, &at, keyword, format!("'{text}' is no place in this schema"))
        };
        let space = self.spaces[document];
        if !self.resources.contains_key(&(space, resolved.clone())) {
            let Some(known) = metaschema(&resolved) else {
                return Err(SchemaError::new(
                    SchemaErrorKind::Reference,
                    &at,
                    keyword,
                    format!(
                        "'{text}' is no place in this schema, and nothing is fetched; put what it means into '$defs'"
                    ),
                ));
            };
            self.documents.push(known);
            self.document_names.push(format!("<{resolved}>#"));
            self.spaces.push(space);
            self.document_root(self.documents.len() - 1, resolved.clone())?;
            self.run()?;
        }
        let (target_document, root, resource) = self.resources[&(space, resolved.clone())].clone();
        let fragment = percent_decoded(fragment).ok_or_else(unknown)?;
        let target = if fragment.is_empty() || fragment.starts_with('/') {
            if fragment.split('~').skip(1).any(|rest| !rest.starts_with(['0', '1'])) {
                return Err(unknown());
            }
            let in_resource = format!("{root}{fragment}");
            // Files number their parts with `id`s that are no addresses; what isn't below one is looked up from the top.
            let candidates = [(target_document, in_resource), (document, fragment.clone())];
            let found = candidates.into_iter().find_map(|(document, pointer)| {
                let value = self.documents[document].pointer(&pointer)?;
                matches!(value, Json::Object(_) | Json::Bool(_)).then_some((document, pointer, value))
            });
            let (found_document, pointer, value) = found.ok_or_else(unknown)?;
            if !root.is_empty() && !pointer.starts_with(&root) {
                self.remark(
                    &at,
                    keyword,
                    "is followed from the schema's root, since its own resource has no such place",
                );
            }
            match self.by_place.get(&(found_document, pointer.clone())) {
                Some(&id) => id,
                // A place that no keyword leads to: read it as a schema.
                None => self.schedule(Task {
                    id: 0,
                    value,
                    document: found_document,
                    pointer,
                    base: resolved.clone(),
                    resource,
                    draft,
                    depth: 1,
                })?,
            }
        } else {
            *self.anchors.get(&(space, resolved.clone(), fragment.clone())).ok_or_else(unknown)?
        };
        let dynamic = match keyword {
            "$dynamicRef" => {
                let is_dynamic = self.dynamic_anchors.get(&(resource, fragment.clone())) == Some(&target);
                is_dynamic.then_some(fragment)
            }
            "$recursiveRef" => self.dynamic_anchors.contains_key(&(resource, String::new())).then(String::new),
            _ => None,
        };
        self.run()?;
        let Some(Node { meaning: Meaning::Keywords(keywords), .. }) = &mut self.nodes[from as usize] else {
            return Ok(());
        };
        if keywords.reference.is_some() {
            // `$ref` beside `$dynamicRef`.
            keywords.all_of.push(target);
        } else {
            keywords.reference = Some(target);
        }
        if dynamic.is_some() {
            keywords.dynamic = dynamic;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Table, SchemaError> {
        // With one anchor of a name the dynamic scope has no choice.
        let mut counts: HashMap<String, usize> = HashMap::new();
        for (_, name) in self.dynamic_anchors.keys() {
            *counts.entry(name.clone()).or_default() += 1;
        }
        let mut nodes = Vec::with_capacity(self.nodes.len());
        for node in std::mem::take(&mut self.nodes) {
            let Some(mut node) = node else {
                return Err(SchemaError::malformed("", "(schema)", "could not be read"));
            };
            if let Meaning::Keywords(keywords) = &mut node.meaning
                && keywords.dynamic.as_ref().is_some_and(|name| counts.get(name).copied().unwrap_or(0) <= 1)
            {
                keywords.dynamic = None;
            }
            nodes.push(node);
        }
        let table = Table { nodes, remarks: self.remarks.into_iter().collect(), dynamic_anchors: self.dynamic_anchors };
        check_cycles(&table)?;
        Ok(table)
    }
}

/// A schema that applies itself to the same value says nothing, and would keep every validator busy for ever.
fn check_cycles(table: &Table) -> Result<(), SchemaError> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        New,
        Open,
        Done,
    }
    let mut marks = vec![Mark::New; table.nodes.len()];
    for start in 0..table.nodes.len() {
        if marks[start] != Mark::New {
            continue;
        }
        let start = u32::try_from(start).unwrap_or(0);
        let mut stack = vec![(start, in_place(table, start), 0)];
        marks[start as usize] = Mark::Open;
        while let Some((node, next, at)) = stack.last_mut() {
            let Some(&to) = next.get(*at) else {
                marks[*node as usize] = Mark::Done;
                stack.pop();
                continue;
            };
            *at += 1;
            match marks[to as usize] {
                Mark::Done => {}
                Mark::Open => {
                    // Name the reference in the circle.
                    let from = stack
                        .iter()
                        .rev()
                        .map(|(n, _, _)| *n)
                        .find(|&n| table.keywords(n).is_some_and(|k| k.reference.is_some()));
                    let at = table.pointer(from.unwrap_or(to));
                    return Err(SchemaError::new(
                        SchemaErrorKind::Reference,
                        at,
                        "$ref",
                        "refers to itself without going into a property or an item: it says nothing",
                    ));
                }
                Mark::New => {
                    marks[to as usize] = Mark::Open;
                    stack.push((to, in_place(table, to), 0));
                }
            }
        }
    }
    Ok(())
}

/// Subschemas that apply to the same value.
fn in_place(table: &Table, id: NodeId) -> Vec<NodeId> {
    let Some(k) = table.keywords(id) else { return Vec::new() };
    let mut out: Vec<NodeId> = k.reference.into_iter().chain(k.all_of.iter().copied()).collect();
    out.extend(k.any_of.iter().flatten());
    out.extend(k.one_of.iter().flatten());
    out.extend(k.not.into_iter().chain(k.if_).chain(k.then).chain(k.else_));
    out.extend(k.dependent_schemas.iter().map(|(_, id)| id));
    out
}

fn draft_4_exclusive(fields: &[(String, Json)], keyword: &str) -> bool {
    fields.iter().any(|(k, v)| k == keyword && matches!(v, Json::Bool(true)))
}

fn types(value: &Json) -> Option<u8> {
    let one = |value: &Json| {
        Some(match value.as_str()? {
            "null" => kind::NULL,
            "boolean" => kind::BOOLEAN,
            "integer" => kind::INTEGER,
            "number" => kind::NUMBER,
            "string" => kind::STRING,
            "array" => kind::ARRAY,
            "object" => kind::OBJECT,
            _ => return None,
        })
    };
    match value {
        Json::Array(list) if !list.is_empty() => list.iter().try_fold(0, |all, value| Some(all | one(value)?)),
        Json::Array(_) => None,
        value => one(value),
    }
}

fn names(value: &Json) -> Option<Vec<Arc<str>>> {
    let Json::Array(list) = value else { return None };
    let mut out: Vec<Arc<str>> = Vec::new();
    let mut seen = HashSet::new();
    for name in list {
        let name = name.as_str()?;
        if seen.insert(name) {
            out.push(Arc::from(name));
        }
    }
    Some(out)
}

// ---- addresses ----

fn split(reference: &str) -> (&str, &str) {
    reference.split_once('#').unwrap_or((reference, ""))
}

fn scheme_end(address: &str) -> Option<usize> {
    let end = address.find(':')?;
    let scheme = &address[..end];
    let fits = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
    fits.then_some(end)
}

/// RFC 3986, section 5, for addresses without fragment.
fn resolve_address(base: &str, reference: &str) -> String {
    if reference.is_empty() {
        return base.to_owned();
    }
    if scheme_end(reference).is_some() {
        return reference.to_owned();
    }
    let (origin, path) = match scheme_end(base) {
        Some(end) => {
            let rest = &base[end + 1..];
            if let Some(authority) = rest.strip_prefix("//") {
                let host_end = authority.find('/').unwrap_or(authority.len());
                (&base[..end + 3 + host_end], &authority[host_end..])
            } else {
                (&base[..=end], rest)
            }
        }
        None => ("", base),
    };
    if let Some(rest) = reference.strip_prefix("//") {
        let scheme = scheme_end(base).map_or("", |end| &base[..=end]);
        return format!("{scheme}//{rest}");
    }
    let merged = if reference.starts_with('/') {
        reference.to_owned()
    } else {
        let path = path.split('?').next().unwrap_or("");
        let directory = path.rfind('/').map_or("", |at| &path[..=at]);
        let directory = if directory.is_empty() && origin.contains("//") { "/" } else { directory };
        format!("{directory}{reference}")
    };
    let (merged, query) = merged.split_once('?').map_or((merged.as_str(), None), |(p, q)| (p, Some(q)));
    let mut out: Vec<&str> = Vec::new();
    let parts: Vec<&str> = merged.split('/').collect();
    for (i, part) in parts.iter().enumerate() {
        let last = i + 1 == parts.len();
        match *part {
            "." => {
                if last {
                    out.push("")
                }
            }
            ".." => {
                if out.len() > 1 || out.first().is_some_and(|first| !first.is_empty()) {
                    out.pop();
                }
                if last {
                    out.push("");
                }
            }
            part => out.push(part),
        }
    }
    let query = query.map(|q| format!("?{q}")).unwrap_or_default();
    format!("{origin}{}{query}", out.join("/"))
}

fn percent_decoded(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_owned());
    }
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let high = char::from(bytes.next()?).to_digit(16)?;
            let low = char::from(bytes.next()?).to_digit(16)?;
            out.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}

/// The drafts' own schemas, which schemas refer to.
fn metaschema(address: &str) -> Option<&'static Json> {
    static ALL: OnceLock<HashMap<String, Json>> = OnceLock::new();
    ALL.get_or_init(metaschemas).get(address.trim_end_matches('#'))
}

fn metaschemas() -> HashMap<String, Json> {
    use referencing::meta;
    let all: [&serde_json::Value; 18] = [
        &meta::DRAFT4,
        &meta::DRAFT6,
        &meta::DRAFT7,
        &meta::DRAFT201909,
        &meta::DRAFT201909_APPLICATOR,
        &meta::DRAFT201909_CONTENT,
        &meta::DRAFT201909_CORE,
        &meta::DRAFT201909_FORMAT,
        &meta::DRAFT201909_META_DATA,
        &meta::DRAFT201909_VALIDATION,
        &meta::DRAFT202012,
        &meta::DRAFT202012_CORE,
        &meta::DRAFT202012_APPLICATOR,
        &meta::DRAFT202012_UNEVALUATED,
        &meta::DRAFT202012_VALIDATION,
        &meta::DRAFT202012_META_DATA,
        &meta::DRAFT202012_FORMAT_ANNOTATION,
        &meta::DRAFT202012_CONTENT,
    ];
    all.into_iter()
        .filter_map(|value| {
            let address = value.get("$id").or_else(|| value.get("id"))?.as_str()?;
            Some((address.trim_end_matches('#').to_owned(), Json::from_value(value, 64).ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{percent_decoded, resolve_address};

    /// RFC 3986, 5.4.
    #[test]
    fn addresses_resolve() {
        let base = "http://a/b/c/d;p?q";
        for (reference, resolved) in [
            ("g:h", "g:h"),
            ("g", "http://a/b/c/g"),
            ("./g", "http://a/b/c/g"),
            ("g/", "http://a/b/c/g/"),
            ("/g", "http://a/g"),
            ("//g", "http://g"),
            (".", "http://a/b/c/"),
            ("..", "http://a/b/"),
            ("../g", "http://a/b/g"),
            ("../../g", "http://a/g"),
            ("../../../g", "http://a/g"),
            ("g?y", "http://a/b/c/g?y"),
            ("", base),
        ] {
            assert_eq!(resolve_address(base, reference), resolved, "{reference}");
        }
        assert_eq!(resolve_address("", "item.json"), "item.json");
        assert_eq!(resolve_address("http://x.y", "z"), "http://x.y/z");
    }

    #[test]
    fn fragments_are_decoded() {
        assert_eq!(percent_decoded("/a%25b%20c").as_deref(), Some("/a%b c"));
        assert_eq!(percent_decoded("%zz"), None);
        assert_eq!(percent_decoded("%ff"), None);
    }
}
