//! Judges that know nothing of what constrained an output: serde_json and the crate jsonschema.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use grammar::tools::ToolRegistry;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Decides whole outputs of one subject.
pub enum Validator {
    /// Calls of these tools: a validator of the arguments for each.
    Calls(BTreeMap<String, jsonschema::Validator>),
    /// Values of one schema, by its name.
    Values(String, Box<jsonschema::Validator>),
}

fn build(schema: &Value) -> Result<jsonschema::Validator, String> {
    // A schema that names no draft is read as 2020-12, which asserts no format by itself.
    jsonschema::options().should_validate_formats(true).build(schema).map_err(|e| e.to_string())
}

impl Validator {
    /// Of a registry's calls.
    ///
    /// # Errors
    /// The crate's reason why it takes no validator of a schema.
    pub fn of_calls(registry: &ToolRegistry) -> Result<Self, String> {
        let tools = registry.tools().iter().map(|tool| Ok((tool.name.clone(), build(&tool.parameters)?)));
        Ok(Self::Calls(tools.collect::<Result<_, String>>()?))
    }

    /// Of a schema's values.
    ///
    /// # Errors
    /// As [`Self::of_calls`].
    pub fn of_values(name: &str, schema: &Value) -> Result<Self, String> {
        Ok(Self::Values(name.to_owned(), Box::new(build(schema)?)))
    }

    /// What must come up at least once in a run: the tools, or the schema.
    pub fn names(&self) -> Vec<&str> {
        match self {
            Self::Calls(tools) => tools.keys().map(String::as_str).collect(),
            Self::Values(name, _) => vec![name],
        }
    }

    /// The name of the tool that a text calls, or of the schema that it answers.
    ///
    /// # Errors
    /// Why it does neither.
    pub fn read(&self, text: &str) -> Result<String, String> {
        let value = strict(text)?;
        let check = |validator: &jsonschema::Validator, value: &Value| {
            validator.validate(value).map_err(|e| {
                format!("at '{}': {}", e.instance_path, e.to_string().chars().take(400).collect::<String>())
            })
        };
        let tools = match self {
            Self::Values(name, validator) => return check(validator, &value).map(|()| name.clone()),
            Self::Calls(tools) => tools,
        };
        let Value::Object(call) = value else { return Err("not an object".into()) };
        let keys: Vec<&str> = call.keys().map(String::as_str).collect();
        if keys != ["tool", "arguments"] {
            return Err(format!("the keys of the call are {keys:?}"));
        }
        let name = call["tool"].as_str().unwrap_or_default();
        let validator = tools.get(name).ok_or_else(|| format!("there is no tool {name:?}"))?;
        check(validator, &call["arguments"]).map(|()| name.to_owned())
    }
}

/// Reads JSON in which no key comes twice.
fn strict(text: &str) -> Result<Value, String> {
    struct Strict;

    impl<'de> DeserializeSeed<'de> for Strict {
        type Value = Value;

        fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
            deserializer.deserialize_any(self)
        }
    }

    impl<'de> Visitor<'de> for Strict {
        type Value = Value;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("JSON")
        }

        fn visit_unit<E>(self) -> Result<Value, E> {
            Ok(Value::Null)
        }

        fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
            Ok(v.into())
        }

        fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
            Ok(v.into())
        }

        fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
            Ok(v.into())
        }

        fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
            Ok(v.into())
        }

        fn visit_str<E>(self, v: &str) -> Result<Value, E> {
            Ok(v.into())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
            let mut out = Vec::new();
            while let Some(item) = items.next_element_seed(Strict)? {
                out.push(item);
            }
            Ok(Value::Array(out))
        }

        fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
            let (mut out, mut seen) = (Map::new(), HashSet::new());
            while let Some(key) = fields.next_key::<String>()? {
                if !seen.insert(key.clone()) {
                    return Err(A::Error::custom(format!("the key {key:?} comes twice")));
                }
                let value = fields.next_value_seed(Strict)?;
                out.insert(key, value);
            }
            Ok(Value::Object(out))
        }
    }

    let mut reader = serde_json::Deserializer::from_str(text);
    let value = Strict.deserialize(&mut reader).map_err(|e| e.to_string())?;
    reader.end().map_err(|e| e.to_string())?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::{Validator, strict};
    use serde_json::json;

    #[test]
    fn a_key_that_comes_twice_is_not_read() {
        assert_eq!(
            strict(r#"{"a":[1,-2.5,null,true,"x"],"b":{}}"#).unwrap(),
            json!({"a":[1,-2.5,null,true,"x"],"b":{}})
        );
        for text in [r#"{"a":1,"a":1}"#, r#"[{"b":{"a":1,"a":2}}]"#, "", "1 2", "{"] {
            assert!(strict(text).is_err(), "{text}");
        }
    }

    #[test]
    fn values_are_judged_by_their_schema() {
        let validator = Validator::of_values("digits", &json!({"type": "string", "pattern": "^[0-9]+$"})).unwrap();
        assert_eq!(validator.read("\"07\"").as_deref(), Ok("digits"));
        assert!(validator.read("\"a\"").is_err() && validator.read("7").is_err());
    }
}
