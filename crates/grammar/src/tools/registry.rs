//! Registries of tools, and calls of them.

use std::collections::HashSet;
use std::path::Path;

use crate::Grammar;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::error::{CallError, RegistryError, SchemaError};
use super::schema::{SchemaOptions, schema_to_gbnf};
use files::input_file;

/// Largest registry file.
const MAX_REGISTRY_BYTES: u64 = 4 << 20;

/// A set of tools that can all be called: every parameter schema has a grammar, and so has the set.
///
/// A call is `{"tool": "<name>", "arguments": {…}}`, with the keys in this order.
#[derive(Debug)]
pub struct ToolRegistry {
    title: Option<String>,
    tools: Vec<Tool>,
    schema: Value,
    gbnf: String,
    grammar: Grammar,
    validator: jsonschema::Validator,
}

/// One tool.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Tool {
    /// 1 to 64 of `a-z A-Z 0-9 _ -`.
    pub name: String,
    /// What it does, for the prompt.
    pub description: String,
    /// JSON Schema of the arguments: an object with `additionalProperties: false`. Without it there are none.
    #[serde(default = "no_parameters")]
    pub parameters: Value,
}

fn no_parameters() -> Value {
    json!({ "type": "object", "additionalProperties": false })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RegistryFile {
    title: Option<String>,
    tools: Vec<Tool>,
}

/// A call that validated against its registry. It is still a candidate: nothing here executes it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ToolCall {
    /// The tool's name.
    pub tool: String,
    /// Its arguments.
    pub arguments: Map<String, Value>,
}

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

    /// Reads TOML: `[[tools]]` with `name`, `description` and `parameters`.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub fn from_toml(text: &str, options: &SchemaOptions) -> Result<Self, RegistryError> {
        check_size(text)?;
        let file: RegistryFile = toml::from_str(text).map_err(Box::new)?;
        Self::new(file.title, file.tools, options)
    }

    /// Reads JSON: `{"tools": [{"name", "description", "parameters"}]}`.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub fn from_json(text: &str, options: &SchemaOptions) -> Result<Self, RegistryError> {
        check_size(text)?;
        let file: RegistryFile = serde_json::from_str(text)?;
        Self::new(file.title, file.tools, options)
    }

    fn new(title: Option<String>, tools: Vec<Tool>, options: &SchemaOptions) -> Result<Self, RegistryError> {
        if tools.is_empty() {
            return Err(RegistryError::Empty);
        }
        let mut names = HashSet::new();
        for tool in &tools {
            let name = &tool.name;
            let fits = (1..=64).contains(&name.len())
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
            if !fits {
                return Err(RegistryError::BadName { name: name.chars().take(80).collect() });
            }
            if !names.insert(name.as_str()) {
                return Err(RegistryError::DuplicateTool { name: name.clone() });
            }
            check_parameters(&tool.parameters, options)
                .map_err(|source| RegistryError::Parameters { tool: name.clone(), source })?;
        }
        let schema = call_schema(&tools);
        let gbnf = schema_to_gbnf(&schema, options).map_err(RegistryError::Together)?;
        let grammar = Grammar::parse(&gbnf, "root", &options.grammar_limits)
            .map_err(|error| RegistryError::Together(error.into()))?;
        let validator = jsonschema::options()
            .with_draft(jsonschema::Draft::Draft202012)
            .should_validate_formats(true)
            .build(&schema)
            .map_err(|error| RegistryError::Validator(error.to_string()))?;
        Ok(Self { title, tools, schema, gbnf, grammar, validator })
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

    /// JSON Schema (draft 2020-12) of a call, for independent validators.
    #[must_use]
    pub fn schema(&self) -> &Value {
        &self.schema
    }

    /// GBNF of a call; its root is `root`.
    #[must_use]
    pub fn gbnf(&self) -> &str {
        &self.gbnf
    }

    /// The checked grammar of [`Self::gbnf`].
    #[must_use]
    pub fn grammar(&self) -> &Grammar {
        &self.grammar
    }

    /// Reads one call and validates it with the `jsonschema` crate, which knows nothing of the grammar.
    ///
    /// # Errors
    /// [`CallError`]: not JSON, or not a call of one of the tools.
    pub fn parse_call(&self, text: &str) -> Result<ToolCall, CallError> {
        let value: Value = serde_json::from_str(text)?;
        if let Err(error) = self.validator.validate(&value) {
            return Err(CallError::Invalid {
                pointer: error.instance_path.to_string(),
                problem: error.to_string().chars().take(400).collect(),
            });
        }
        let invalid = |problem: &str| CallError::Invalid { pointer: String::new(), problem: problem.to_owned() };
        // The schema has just said so.
        let Value::Object(mut call) = value else { return Err(invalid("not an object")) };
        match (call.remove("tool"), call.remove("arguments")) {
            (Some(Value::String(tool)), Some(Value::Object(arguments))) => Ok(ToolCall { tool, arguments }),
            _ => Err(invalid("not a tool with arguments")),
        }
    }
}

fn check_size(text: &str) -> Result<(), RegistryError> {
    let bytes = text.len() as u64;
    if bytes > MAX_REGISTRY_BYTES {
        return Err(RegistryError::TooLarge { bytes, max: MAX_REGISTRY_BYTES });
    }
    Ok(())
}

fn check_parameters(parameters: &Value, options: &SchemaOptions) -> Result<(), SchemaError> {
    if parameters.get("type").and_then(Value::as_str) != Some("object") {
        return Err(SchemaError::Malformed {
            pointer: String::new(),
            keyword: "type".to_owned(),
            problem: "must be \"object\": arguments have names".to_owned(),
        });
    }
    schema_to_gbnf(parameters, options).map(|_| ())
}

/// The schema of a call: one branch per tool, told apart by the tool's name. Parameter schemas move to the definitions,
/// their own definitions beside them, and their references follow.
fn call_schema(tools: &[Tool]) -> Value {
    let mut branches = Vec::new();
    let mut definitions = Map::new();
    for tool in tools {
        let name = tool.name.as_str();
        branches.push(json!({
            "type": "object",
            "properties": {
                "tool": { "const": name },
                "arguments": { "$ref": format!("#/$defs/{name}") },
            },
            "required": ["tool", "arguments"],
            "additionalProperties": false,
        }));
        let mut parameters = tool.parameters.clone();
        rebase(&mut parameters, name);
        if let Value::Object(parameters) = &mut parameters {
            parameters.remove("$schema");
            parameters.remove("$id");
            for group in ["$defs", "definitions"] {
                if let Some(Value::Object(own)) = parameters.remove(group) {
                    for (key, mut schema) in own {
                        rebase(&mut schema, name);
                        definitions.insert(format!("{name}.{group}.{key}"), schema);
                    }
                }
            }
        }
        definitions.insert(name.to_owned(), parameters);
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "oneOf": branches,
        "$defs": definitions,
    })
}

/// Points the references of a checked schema to its new place under `name`. Checked schemas nest by these keywords only,
/// to a small depth.
fn rebase(schema: &mut Value, name: &str) {
    let Value::Object(object) = schema else { return };
    for (keyword, value) in object.iter_mut() {
        match (keyword.as_str(), value) {
            ("$ref", Value::String(reference)) => {
                let place = reference.trim_start_matches('#');
                let moved = ["$defs", "definitions"].iter().find_map(|group| {
                    let rest = place.strip_prefix('/')?.strip_prefix(group)?.strip_prefix('/')?;
                    Some(format!("#/$defs/{name}.{group}.{rest}"))
                });
                *reference = moved.unwrap_or_else(|| format!("#/$defs/{name}{place}"));
            }
            ("properties", Value::Object(schemas)) => schemas.values_mut().for_each(|schema| rebase(schema, name)),
            ("items", schema) => rebase(schema, name),
            ("oneOf" | "anyOf" | "allOf", Value::Array(schemas)) => {
                schemas.iter_mut().for_each(|schema| rebase(schema, name));
            }
            _ => {}
        }
    }
}
