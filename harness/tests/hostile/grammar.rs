//! GBNF: what the engine would swallow, loop on or die of. BR-44, BR-47, BR-50 to BR-52.

use crate::attempt::{Attempt, harness};

const AREA: &str = "grammar";

fn run(name: &str, text: impl Into<Vec<u8>>) -> Attempt {
    let args = ["generate", "--grammar", "g", "--prompt", "x", "--max-tokens", "12", "--threads", "1"];
    harness(AREA, name, args).file("g", text)
}

pub(crate) fn table() -> Vec<Attempt> {
    let mut all = Vec::new();
    for (name, text, says) in [
        // syntax, with line and column
        ("empty", "", "root"),
        ("only a comment", "# nothing\n", "root"),
        ("no root", "other ::= \"a\"\n", "root"),
        ("open literal", "root ::= \"a\n", "close the literal"),
        ("open class", "root ::= [a-z\n", "close the class"),
        ("open group", "root ::= (\"a\"\n", "expected"),
        ("closing group", "root ::= \"a\")\n", "line 1, column"),
        ("no arrow", "root = \"a\"\n", "line 1, column"),
        ("half an arrow", "root :: \"a\"\n", "line 1, column"),
        ("bad escape", "root ::= \"\\q\"\n", "line 1, column"),
        ("cut escape", "root ::= \"\\x4\"\n", "line 1, column"),
        ("escape beyond Unicode", "root ::= \"\\UFFFFFFFF\"\n", "line 1, column"),
        ("surrogate", "root ::= \"\\uD800\"\n", "line 1, column"),
        ("NUL", "root ::= \"\\x00\"\n", "line 1, column"),
        ("reversed range", "root ::= [z-a]\n", "reversed"),
        ("empty class", "root ::= []\n", "line 1, column"),
        ("class that excludes all", "root ::= [^\\x01-\\U0010FFFF]\n", "never"),
        ("star of nothing", "root ::= *\n", "line 1, column"),
        ("star at the start of an alternative", "root ::= \"a\" | +\n", "line 1, column"),
        ("repetition without bounds", "root ::= \"a\"{}\n", "line 1, column"),
        ("reversed repetition", "root ::= \"a\"{3,2}\n", "reversed"),
        ("negative repetition", "root ::= \"a\"{-1}\n", "line 1, column"),
        ("repetition over 32 bits", "root ::= \"a\"{4294967297}\n", "repetition"),
        ("repetition of 20 digits", "root ::= \"a\"{99999999999999999999}\n", "repetition"),
        ("undefined rule", "root ::= thing\n", "thing"),
        ("rule twice", "root ::= \"a\"\nroot ::= \"b\"\n", "root"),
        ("text behind the rules", "root ::= \"a\"\n}{", "line 2, column"),
        // rules that cannot be read
        ("BR-44 left recursion", "root ::= e\ne ::= e \"+\" d | d\nd ::= [0-9]\n", "left"),
        ("BR-44 behind an optional", "root ::= e\ne ::= opt e \"x\" | \"y\"\nopt ::= \"-\" | \"\"\n", "left"),
        (
            "left recursion through three rules",
            "root ::= a\na ::= b \"1\"\nb ::= c \"2\"\nc ::= a \"3\" | \"z\"\n",
            "left",
        ),
        ("left recursion in a group", "root ::= (root \"a\")? \"b\"\n", "left"),
        ("self", "root ::= root\n", "root"),
        ("never ends", "root ::= \"a\" root\n", "never finish"),
        ("BR-47 nested empty-able", "root ::= (((\"z\"?)+)*)\n", "empty"),
        ("BR-47 of a rule", "root ::= (w)* \"end\"\nw ::= \" \"*\n", "empty"),
        ("empty literal repeated", "root ::= (\"\")* \"a\"\n", "empty"),
        ("nested counts", "root ::= (((\"a\"{0,1000}){0,1000}){0,1000}){0,1000}\n", "repetition"),
        ("counts beyond the limit", "root ::= [a-z]{20000}\n", "repetition"),
    ] {
        all.push(run(name, text).refused(says));
    }
    for depth in [129, 5_000, 200_000] {
        all.push(
            run(&format!("{depth} groups"), format!("root ::= {}\"a\"{}\n", "(".repeat(depth), ")".repeat(depth)))
                .refused("nesting"),
        );
    }
    all.push(run("100,000 open groups", format!("root ::= {}", "(".repeat(100_000))).refused("nesting"));
    all.push(run("stacked operators", format!("root ::= \"a\"{}\n", "?".repeat(1000))).refused("line 1, column"));
    all.push(
        run("2 MB of text", "root ::= \"a\"\n#".to_owned() + &"x".repeat(2 << 20)).refused("bytes of grammar text"),
    );
    all.push(run("20 MB of text", "x".repeat(20 << 20)).refused("bytes"));
    let chain: String = (0..50_000).map(|i| format!("r{i} ::= r{}\n", i + 1)).collect();
    all.push(run("chain of 50,000 rules", format!("root ::= r0\n{chain}r50000 ::= \"a\"\n")).refused("grammar"));
    let doubling: String = (0..64).map(|i| format!("r{i} ::= r{} r{}\n", i + 1, i + 1)).collect();
    all.push(run("2^64 expansions", format!("root ::= r0\n{doubling}r64 ::= \"a\"?\n")).refused("grammar"));
    let wide: String = (0..70_000).map(|i| format!("\"a{i}\" | ")).collect();
    all.push(run("70,000 alternatives", format!("root ::= {wide}\"z\"\n")).refused("grammar"));
    all.push(run("invalid UTF-8", b"root ::= \"\xff\"\n".to_vec()).refused("UTF-8"));
    all.push(run("NUL in the text", b"root ::= \"a\"\0\n".to_vec()).refused("line 1, column"));
    all.push(
        run("long rule name in the message", format!("root ::= {}\n", "n".repeat(100_000))).refused("not defined"),
    );
    all.push(run("terminal control in a name", "root ::= \u{1b}[2Jx\n").refused("line 1, column"));
    // the root that is asked for
    for root in ["nope", "", "ROOT", "root\n", "räuber", "--"] {
        let root_option = format!("--grammar-root={root}");
        let args = ["generate", "--grammar", "g", &root_option, "--prompt", "x", "--max-tokens", "4"];
        all.push(harness(AREA, format!("root {root:?}"), args).file("g", "root ::= \"a\"\n").refused("no rule"));
    }
    all.extend(accepted());
    all
}

/// What is right stays right, and a cut text is no call.
fn accepted() -> Vec<Attempt> {
    let mut all = vec![
        run("BR-50: stops behind the literal", "root ::= \"ok\"\n"),
        run("BR-47: one level is fine", "root ::= \"a\"? \"b\"\n"),
        run("no body is the empty text", "root ::="),
        run("any root name", "root ::= other\nother ::= \"b\"\n"),
        run("right recursion", "root ::= \"a\" | \"ab\" \"b\"?\n"),
        run("BR-51: characters over tokens", "root ::= [😀-🙏]\n"),
        run("BR-51: excluded class", "root ::= [^a-z]{1,2}\n").ends(0, ""),
        run("BR-52: cut", "root ::= [a-z]{200}\n").ends(5, ""),
        run("many ways to read a text", "root ::= ([a-z]{0,1000}) ([a-z]{0,1000}) ([a-z]{0,1000}) \"!\"\n").ends(5, ""),
        run("Catalan many ways", "root ::= s \"!\"\ns ::= [a-z] s | [a-z] s s | [a-z]\n").ends(5, ""),
        run("empty text allowed", "root ::= \"\"\n"),
        run("CRLF", "root ::= \"a\"\r\n"),
    ];
    let args = ["generate", "--grammar", "g", "--prompt", "x", "--max-tokens", "3", "--format", "json"];
    all.push(harness(AREA, "BR-36: JSON with a bad grammar", args).file("g", "root ::= e\ne ::= e\n").refused("g"));
    all
}
