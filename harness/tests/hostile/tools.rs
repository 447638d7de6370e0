//! Tool registries.

use crate::attempt::{Attempt, harness};

const AREA: &str = "tool registry";

fn run(name: &str, file: &str, text: impl Into<Vec<u8>>) -> Attempt {
    let args = ["generate", "--tools", file, "--prompt", "x", "--max-tokens", "60", "--threads", "1"];
    harness(AREA, name, args).file(file, text)
}

fn tool(name: &str) -> String {
    format!(
        "[[tools]]\nname = {name}\ndescription = \"d\"\n[tools.parameters]\ntype = \"object\"\nadditionalProperties = false\n"
    )
}

pub(crate) fn table() -> Vec<Attempt> {
    let mut all = Vec::new();
    for (name, text, says) in [
        ("empty", String::new(), "tools"),
        ("no tools", "tools = []\n".into(), "no tools"),
        ("tools as text", "tools = \"x\"\n".into(), "must be a list of tools"),
        ("no TOML", "[[tools\n".into(), "TOML"),
        ("key twice", "title = \"a\"\ntitle = \"b\"\n".into(), "TOML"),
        ("unknown field", tool("\"a\"") + "[more]\nx = 1\n", "more"),
        ("name as a number", tool("7"), "must be a string"),
        ("empty name", tool("\"\""), "is not a tool's name"),
        ("name with a blank", tool("\"a b\""), "a b"),
        ("name with a quote", tool("'a\"b'"), "is not a tool's name"),
        ("name of 129", tool(&format!("\"{}\"", "n".repeat(129))), "is not a tool's name"),
        ("name of 100,000", tool(&format!("\"{}\"", "n".repeat(100_000))), "is not a tool's name"),
        ("name with terminal control", tool("\"\\u001b[2J\""), "is not a tool's name"),
        ("name in Greek", tool("\"ά\""), "is not a tool's name"),
        ("name twice", tool("\"a\"") + &tool("\"a\""), "twice"),
        ("parameters as a list", "[[tools]]\nname = \"a\"\ndescription = \"d\"\nparameters = []\n".into(), "a"),
        (
            "parameters of an array",
            "[[tools]]\nname = \"a\"\ndescription = \"d\"\n[tools.parameters]\ntype = \"array\"\n".into(),
            "a",
        ),
        (
            "bad pattern",
            tool("\"a\"") + "[tools.parameters.properties.p]\ntype = \"string\"\npattern = \"(\"\n",
            "pattern",
        ),
        ("deep tables", format!("[{}]\n", vec!["a"; 20_000].join(".")), "t.toml"),
        ("deep arrays", format!("x = {}{}\n", "[".repeat(20_000), "]".repeat(20_000)), "TOML"),
        ("deep inline tables", format!("x = {}1{}\n", "{a=".repeat(20_000), "}".repeat(20_000)), "TOML"),
        ("date out of range", "x = 2024-99-99\n".into(), "TOML"),
        ("integer over 64 bits", "x = 99999999999999999999\n".into(), "TOML"),
        ("5 MB", format!("# {}\n", "x".repeat(5 << 20)), "bytes"),
    ] {
        all.push(run(name, "t.toml", text).refused(says));
    }
    // What objects leave open is not generated, so nothing has to be refused.
    let open = "[[tools]]\nname = \"a\"\ndescription = \"d\"\n[tools.parameters]\ntype = \"object\"\n";
    all.push(run("parameters open", "t.toml", open.to_owned()).ends_any());
    all.push(run("name of 128", "t.toml", tool(&format!("\"{}\"", "n".repeat(128)))).ends_any());
    all.push(run("TOML that is no UTF-8", "t.toml", b"title = \"\xff\"\n".to_vec()).refused("UTF-8"));
    for (name, text) in [
        ("JSON: empty", ""),
        ("JSON: cut", "{\"tools\": ["),
        ("JSON: list", "[]"),
        ("JSON: tools as an object", "{\"tools\": {}}"),
        ("JSON: key twice", "{\"tools\": [], \"tools\": []}"),
        ("JSON: null", "{\"tools\": null}"),
    ] {
        all.push(run(name, "t.json", text).refused("t.json"));
    }
    all.push(run("JSON: 100,000 lists", "t.json", "[".repeat(100_000)).refused("t.json"));
    all.push(run("another kind of file", "t.yaml", "tools: []\n").refused(".toml or .json"));
    all.push(run("no extension", "tools", "tools: []\n").refused(".toml or .json"));
    let many: String = (0..3_000).map(|i| tool(&format!("\"tool_{i}\""))).collect();
    all.push(run("3,000 tools", "t.toml", many).ends_any());
    all.push(run("sound", "t.toml", tool("\"a\"")));
    all
}
