//! Registries of tools, and calls of them.

use std::collections::HashSet;
use std::path::Path;

use files::input_file;
use serde_json::{Map, Value};

use super::error::{CallError, RegistryError};
use crate::language::Language;
use crate::schema::{Json, MAX_ANSWER_DEPTH, Remark, Schema, SchemaError, SchemaOptions, Verdict, push_pointer};

/// Largest registry file.
const MAX_REGISTRY_BYTES: u64 = 4 << 20;
/// Most tools of one registry: a place in the call's grammar each.
const MAX_TOOLS: usize = 512;
/// Longest name, as MCP has it.
const MAX_NAME: usize = 128;

/// A set of tools that can all be called: every parameter schema can be answered, and so can the set.
///
/// A call is `{"tool": "<name>", "arguments": {…}}`, with the keys in this order.
#[derive(Debug)]
pub struct ToolRegistry {
    title: Option<String>,
    tools: Vec<Tool>,
    schema: Schema,
    remarks: Vec<Remark>,
}

/// One tool.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Tool {
    /// 1 to 128 of `a-z A-Z 0-9 _ - .`.
    pub name: String,
    /// What it does, for the prompt; may be empty.
    pub description: String,
    /// JSON Schema of the arguments, as other programs read it.
    pub parameters: Value,
}

/// A call that its registry's schema allows. It is still a candidate: nothing here executes it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ToolCall {
    /// The tool's name.
    pub tool: String,
    /// Its arguments.
    pub arguments: Map<String, Value>,
}

/// Where a list of tools lies in a document, and how its entries are written.
const LISTS: [&str; 2] = ["tools", "functions"];
/// What stands beside a list and says nothing of what can be called.
const BESIDE_LIST: [&str; 5] = ["title", "jsonrpc", "id", "_meta", "$schema"];
/// What a tool says of itself that has no part in a call.
const ABOUT_TOOL: [&str; 8] =
    ["title", "strict", "annotations", "icons", "_meta", "execution", "cache_control", "$comment"];
/// Names of the arguments' schema: OpenAI's, MCP's, Anthropic's.
const PARAMETERS: [&str; 3] = ["parameters", "inputSchema", "input_schema"];

impl ToolRegistry {
    /// Reads a `.toml` or `.json` file.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub fn load(path: &Path, options: &SchemaOptions) -> Result<Self, RegistryError> {
        let read = |source| RegistryError::Read { path: path.display().to_string(), source };
        let text = input_file::read_text(path, MAX_REGISTRY_BYTES).map_err(|e| read(e.into()))?;
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("toml") => Self::from_toml(&text, options),
            Some("json") => Self::from_json(&text, options),
            _ => Err(RegistryError::UnknownFormat { path: path.display().to_string() }),
        }
    }

    /// Reads TOML: `[[tools]]` with `name`, `description` and `parameters`, and a `title`.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub fn from_toml(text: &str, options: &SchemaOptions) -> Result<Self, RegistryError> {
        check_size(text)?;
        let value: Value = toml::from_str(text).map_err(Box::new)?;
        let json = Json::from_value(&value, options.limits.max_depth + OUTER_DEPTH).map_err(json_error)?;
        Self::from_document(&json, options)
    }

    /// Reads a list of tools as frameworks write it, or an object that holds one under `tools` or `functions`:
    ///
    /// - `{"name", "description", "parameters"}`: a bare function;
    /// - `{"type": "function", "function": {…}}` and `{"type": "function", "name", …}`: OpenAI's `tools`;
    /// - `{"name", "description", "inputSchema"}`: MCP's `tools/list`, with or without the JSON-RPC around it;
    /// - `{"name", "description", "input_schema"}`: Anthropic's.
    ///
    /// Descriptions are optional. A tool without parameters takes none. Anything else is refused by its place.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub fn from_json(text: &str, options: &SchemaOptions) -> Result<Self, RegistryError> {
        check_size(text)?;
        let json = Json::parse(text, options.limits.max_depth + OUTER_DEPTH).map_err(json_error)?;
        Self::from_document(&json, options)
    }

    fn from_document(json: &Json, options: &SchemaOptions) -> Result<Self, RegistryError> {
        let mut remarks = Vec::new();
        let (title, list, place) = find_list(json, &mut remarks)?;
        if list.is_empty() {
            return Err(RegistryError::Empty);
        }
        if list.len() > MAX_TOOLS {
            return Err(RegistryError::TooMany { tools: list.len(), max: MAX_TOOLS });
        }
        let mut names = HashSet::new();
        let mut tools = Vec::new();
        let mut schemas: Vec<(String, Json)> = Vec::new();
        for (i, entry) in list.iter().enumerate() {
            let place = format!("{place}/{i}");
            let (tool, parameters) = read_tool(entry, &place, options, &mut remarks)?;
            if !names.insert(tool.name.clone()) {
                return Err(RegistryError::DuplicateTool { name: tool.name, pointer: place });
            }
            schemas.push((tool.name.clone(), parameters));
            tools.push(tool);
        }
        let schema = Schema::of_calls(&schemas, options).map_err(|e| RegistryError::Together(Box::new(e)))?;
        remarks.extend(schema.remarks().iter().cloned());
        Ok(Self { title, tools, schema, remarks })
    }

    /// The registry's title.
    #[must_use]
    pub fn title(&self) -> Option<&str> {
        self.title.as_deref()
    }

    /// The tools in the file's order.
    #[must_use]
    pub fn tools(&self) -> &[Tool] {
        &self.tools
    }

    /// The tool of a name.
    #[must_use]
    pub fn tool(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// What a call has to be.
    #[must_use]
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// The same, to constrain an output with.
    #[must_use]
    pub fn language(&self) -> Language {
        Language::Schema(self.schema.clone())
    }

    /// What the file says and no call shows, by place.
    #[must_use]
    pub fn remarks(&self) -> &[Remark] {
        &self.remarks
    }

    /// Reads one call and validates it. The grammar has no part in it.
    ///
    /// # Errors
    /// [`CallError`]: not JSON, not a call of one of the tools, or one with a number that would not survive.
    pub fn parse_call(&self, text: &str) -> Result<ToolCall, CallError> {
        match self.schema.judge(text) {
            Verdict::Valid => {}
            Verdict::NotJson { problem } => return Err(CallError::Json { problem }),
            Verdict::Invalid { place, instance } => {
                return Err(CallError::Invalid {
                    pointer: instance,
                    problem: format!("the schema at '{}' does not allow it: '{}'", place.pointer, place.keyword),
                });
            }
            Verdict::Undecided { place } => {
                return Err(CallError::Invalid {
                    pointer: String::new(),
                    problem: format!("'{}' at '{}' could not be decided", place.keyword, place.pointer),
                });
            }
        }
        let json = Json::parse(text, MAX_ANSWER_DEPTH).map_err(|e| CallError::Json { problem: e.problem })?;
        if let Err(number) = json.check_numbers() {
            return Err(CallError::Invalid {
                pointer: String::new(),
                problem: format!("programs that read JSON do not keep the number {number}"),
            });
        }
        let invalid = |problem: &str| CallError::Invalid { pointer: String::new(), problem: problem.to_owned() };
        let value: Value = serde_json::from_str(text).map_err(|e| CallError::Json { problem: e.to_string() })?;
        // The schema has just said so.
        let Value::Object(mut call) = value else { return Err(invalid("not an object")) };
        match (call.remove("tool"), call.remove("arguments")) {
            (Some(Value::String(tool)), Some(Value::Object(arguments))) => Ok(ToolCall { tool, arguments }),
            _ => Err(invalid("not a tool with arguments")),
        }
    }
}

/// Depth of a tool's schema in its file.
const OUTER_DEPTH: usize = 8;

fn check_size(text: &str) -> Result<(), RegistryError> {
    let bytes = text.len() as u64;
    if bytes > MAX_REGISTRY_BYTES {
        return Err(RegistryError::TooLarge { bytes, max: MAX_REGISTRY_BYTES });
    }
    Ok(())
}

fn json_error(error: crate::schema::JsonError) -> RegistryError {
    RegistryError::Json { pointer: error.pointer, problem: error.problem }
}

fn bad(pointer: &str, problem: impl Into<String>) -> RegistryError {
    RegistryError::Tool { pointer: pointer.to_owned(), problem: problem.into() }
}

/// The list of tools in a document: title, entries, place.
fn find_list<'j>(
    json: &'j Json,
    remarks: &mut Vec<Remark>,
) -> Result<(Option<String>, &'j [Json], String), RegistryError> {
    let (mut at, mut place) = (json, String::new());
    // MCP's answer: the list lies in the result.
    if let (Some(result), None) = (json.get("result"), json.get("tools"))
        && json.get("jsonrpc").is_some()
    {
        check_beside(json, "", &["result"], remarks)?;
        (at, place) = (result, "/result".to_owned());
    }
    let fields = match at {
        Json::Array(list) => return Ok((None, list, place)),
        Json::Object(fields) => fields,
        _ => return Err(bad(&place, "a list of tools is a list, or an object with 'tools'")),
    };
    let lists: Vec<&str> = LISTS.into_iter().filter(|name| fields.iter().any(|(key, _)| key == name)).collect();
    let name = match lists.as_slice() {
        [name] => *name,
        [] => return Err(bad(&place, "there is no 'tools' and no 'functions'")),
        _ => return Err(bad(&place, "there are 'tools' and 'functions'; leave one")),
    };
    check_beside(at, &place, &LISTS, remarks)?;
    let title = match at.get("title") {
        None => None,
        Some(Json::String(title)) => Some(title.clone()),
        Some(_) => return Err(bad(&push_pointer(&place, "title"), "must be a string")),
    };
    let place = push_pointer(&place, name);
    match at.get(name) {
        Some(Json::Array(list)) => Ok((title, list, place)),
        _ => Err(bad(&place, "must be a list of tools")),
    }
}

fn check_beside(json: &Json, place: &str, known: &[&str], remarks: &mut Vec<Remark>) -> Result<(), RegistryError> {
    let Json::Object(fields) = json else { return Ok(()) };
    for (key, value) in fields {
        if known.contains(&key.as_str()) || BESIDE_LIST.contains(&key.as_str()) {
            continue;
        }
        match (key.as_str(), value) {
            ("nextCursor", Json::Null) => {}
            ("nextCursor", _) => {
                remarks.push(Remark::new(
                    key,
                    place,
                    "the list goes on elsewhere; only the tools given here can be called",
                ));
            }
            _ => return Err(bad(&push_pointer(place, key), "is not known beside a list of tools; remove it")),
        }
    }
    Ok(())
}

fn read_tool(
    entry: &Json,
    place: &str,
    options: &SchemaOptions,
    remarks: &mut Vec<Remark>,
) -> Result<(Tool, Json), RegistryError> {
    let Json::Object(outer) = entry else { return Err(bad(place, "a tool is an object")) };
    match entry.get("type") {
        None => {}
        Some(Json::String(kind)) if kind == "function" => {}
        // Anthropic's; OpenAI's kind of this name takes free text and has no schema.
        Some(Json::String(kind)) if kind == "custom" && entry.get("input_schema").is_some() => {}
        Some(Json::String(kind)) => {
            let problem = format!(
                "'{}' is a kind of tool that is not called with JSON",
                kind.chars().take(60).collect::<String>()
            );
            return Err(bad(&push_pointer(place, "type"), problem));
        }
        Some(_) => return Err(bad(&push_pointer(place, "type"), "must be a string")),
    }
    // OpenAI's older form wraps the function.
    let wrapped = entry.get("function");
    let (fields, place) = match wrapped {
        Some(Json::Object(inner)) => {
            for (key, _) in outer {
                if !matches!(key.as_str(), "type" | "function") && !ABOUT_TOOL.contains(&key.as_str()) {
                    return Err(bad(&push_pointer(place, key), "is not known beside 'function'; remove it"));
                }
            }
            (inner, push_pointer(place, "function"))
        }
        Some(_) => return Err(bad(&push_pointer(place, "function"), "must be an object")),
        None => (outer, place.to_owned()),
    };
    let place = place.as_str();
    let (mut name, mut description, mut parameters) = (None, String::new(), None);
    for (key, value) in fields {
        let at = || push_pointer(place, key);
        match (key.as_str(), value) {
            ("name", Json::String(text)) => name = Some(text.clone()),
            ("name", _) => return Err(bad(&at(), "must be a string")),
            ("description", Json::String(text)) => description.clone_from(text),
            ("description", Json::Null) => {}
            ("description", _) => return Err(bad(&at(), "must be a string")),
            ("type", _) if wrapped.is_none() => {}
            (key, value) if PARAMETERS.contains(&key) => {
                if parameters.is_some() {
                    return Err(bad(&at(), "the arguments have a schema already"));
                }
                parameters = Some((key, value));
            }
            (key @ ("outputSchema" | "returns"), _) => {
                remarks.push(Remark::new(key, place, "says what the tool answers; a call does not show it"));
            }
            (key, _) if ABOUT_TOOL.contains(&key) => {}
            _ => return Err(bad(&at(), "is not known of a tool; remove it")),
        }
    }
    let name = name.ok_or_else(|| bad(place, "a tool needs a 'name'"))?;
    let fits = (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'));
    if !fits {
        return Err(RegistryError::BadName {
            name: name.chars().take(80).collect(),
            pointer: push_pointer(place, "name"),
        });
    }
    let none = || {
        Json::Object(vec![
            ("type".to_owned(), Json::String("object".to_owned())),
            ("additionalProperties".to_owned(), Json::Bool(false)),
        ])
    };
    let (key, parameters) = match parameters {
        None | Some((_, Json::Null)) => ("parameters", none()),
        Some((key, json @ Json::Object(fields))) => (key, if fields.is_empty() { none() } else { json.clone() }),
        Some((key, _)) => return Err(bad(&push_pointer(place, key), "must be an object, a JSON Schema")),
    };
    let refused = |source: SchemaError| RegistryError::Parameters {
        tool: name.clone(),
        pointer: push_pointer(place, key),
        source: Box::new(source),
    };
    Schema::of_arguments(&parameters, options).map_err(refused)?;
    let value = parameters.to_value();
    Ok((Tool { name: name.clone(), description, parameters: value }, parameters))
}
