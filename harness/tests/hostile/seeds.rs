//! Seed corpora of the fuzz targets: small sound inputs, made by the same fixtures as the tables.

use std::path::Path;

use gguf::Architecture;
use gguf::fixture::tiny_model;

use crate::cartridge;

/// Writes `fuzz/seeds`; run once after a format changed.
#[test]
#[ignore = "writes into the source tree: cargo test -p harness --test hostile -- --ignored write_seeds"]
fn write_seeds() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds");
    let put = |target: &str, name: &str, bytes: &[u8]| {
        let folder = seeds.join(target);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(name), bytes).unwrap();
    };
    for architecture in [Architecture::BitNetB158, Architecture::Llama] {
        put("gguf", architecture.name(), &tiny_model(architecture).encode_header());
    }
    put("cartridge", "native", &cartridge::sound());
    put("state_blob", "transposed", &[&[0], &cartridge::blob()[..]].concat());
    for (name, text) in [
        ("literal", "root ::= \"ok\"\nok"),
        ("classes", "root ::= [a-z]+ ([^\\n\\x00-\\x1F] | \"\\u00e9\"){0,3}\nab"),
        (
            "rules",
            "root ::= object\nobject ::= \"{\" (pair (\",\" pair)*)? \"}\"\npair ::= \"\\\"\" [a-z]* \"\\\":\" num\nnum ::= \"-\"? [0-9]{1,9}\n{}",
        ),
        ("comment", "# c\nroot ::= (\"a\" | b)*  # d\nb ::= \"b\"?\nc ::= b c?\nab"),
    ] {
        put("grammar", name, text.as_bytes());
    }
    for (name, text) in [
        (
            "object",
            r##"{"type":"object","additionalProperties":false,"required":["a"],"properties":{"a":{"type":"integer","minimum":-5,"maximum":99},"b":{"enum":["x","ü"]}}}"##,
        ),
        (
            "array",
            r##"{"type":"array","items":{"$ref":"#/$defs/n"},"minItems":1,"maxItems":3,"$defs":{"n":{"anyOf":[{"type":"null"},{"type":"string","pattern":"^[a-f]{2,4}$"}]}}}"##,
        ),
        ("format", r##"{"type":"string","format":"date-time"}"##),
        (
            "registry.json",
            r##"{"tools":[{"name":"t","description":"d","parameters":{"type":"object","additionalProperties":false,"properties":{"n":{"type":"number"}}}}]}"##,
        ),
        (
            "registry.toml",
            "[[tools]]\nname = \"t\"\ndescription = \"d\"\n[tools.parameters]\ntype = \"object\"\nadditionalProperties = false\n",
        ),
    ] {
        put("json_schema", name, text.as_bytes());
    }
    let policy = include_str!("../../../gates/agent/policy.toml");
    let device = "devices:\n  - device_id: a\n    aliases: [\"lamp\"]\n    room: kitchen\n    device_type: light\n    backend: mock\n    backend_entity_id: s\n    risk_level: low\ncapabilities: {light: [{action: turn_on}]}\n";
    let case = "schema: bitnet-harness.agent-cases/1\ncases:\n- {id: a, input: b, setup: {say: [c], elapsed_s: 1}, expected: {dry_run_ready: false}}\n";
    let candidate =
        r#"{"intent":"control_device","room":"kitchen","device_type":"light","action":"turn_on","params":{}}"#;
    for (which, name, text) in
        [(0u8, "devices", device), (1, "policy", policy), (2, "cases", case), (3, "candidate", candidate)]
    {
        put("agent_files", name, &[&[which], text.as_bytes()].concat());
    }
}
