//! Chat templates: programs in a file. BR-09, BR-38.

use crate::attempt::{Attempt, harness};

const AREA: &str = "chat template";

fn run(name: &str, text: impl Into<Vec<u8>>) -> Attempt {
    let args = ["generate", "--chat", "--chat-template", "t", "--prompt", "hi", "--max-tokens", "2", "--threads", "1"];
    harness(AREA, name, args).file("t", text)
}

pub(crate) fn table() -> Vec<Attempt> {
    let mut all = Vec::new();
    for (name, text, says) in [
        ("open block", "{% for", "template"),
        ("no end", "{% for m in messages %}x", "template"),
        ("unknown filter", "{{ 1 | frobnicate }}", "template"),
        ("unknown method", "{{ 'a'.frobnicate() }}", "template"),
        ("raises", "{{ raise_exception('not like this') }}", "not like this"),
        ("division by zero", "{{ 1 // 0 }}", "template"),
        (
            "loops for ever",
            "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}x{% endfor %}{% endfor %}{% endfor %}",
            "fuel",
        ),
        ("range of 2^62", "{% for a in range(4611686018427387904) %}x{% endfor %}", "template"),
        ("includes a file", "{% include '/etc/passwd' %}", "template"),
        ("imports", "{% import '/etc/passwd' as p %}{{ p }}", "template"),
        ("extends", "{% extends '/etc/passwd' %}", "template"),
        ("macro that calls itself", "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "template"),
        ("string times 10^9", "{{ 'x' * 1000000000 }}", "template"),
        ("list times 10^9", "{{ ([1] * 1000000000) | join('x') }}", "template"),
        (
            "doubling string",
            "{% set ns = namespace(s='xxxxxxxxxxxxxxxx') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
            "template",
        ),
        (
            "doubling list",
            "{% set ns = namespace(s=[1,2,3,4]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s | length }}",
            "template",
        ),
        (
            "doubling by replace",
            "{% set ns = namespace(s='xxxx') %}{% for i in range(40) %}{% set ns.s = ns.s | replace('x', 'xx') %}{% endfor %}{{ ns.s }}",
            "template",
        ),
        (
            "doubling by join",
            "{% set ns = namespace(s='xxxx') %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] | join(ns.s) %}{% endfor %}{{ ns.s }}",
            "template",
        ),
        ("indent 10^9", "{{ 'a\nb' | indent(1000000000) }}", "template"),
        ("center 10^9", "{{ 'a' | center(1000000000) }}", "template"),
        ("format width 10^9", "{{ '%1000000000d' | format(1) }}", "template"),
        ("batch of 10^9", "{{ [1] | batch(1000000000, 0) | list | length }}", "template"),
        ("slice of 10^9", "{{ [1] | slice(1000000000) | list | length }}", "template"),
    ] {
        all.push(run(name, text).refused(says));
    }
    all.push(run("renders nothing", "{% if false %}x{% endif %}").usage("empty"));
    all.push(run("empty", "").usage("empty"));
    all.push(run("300 kB", "x".repeat(300 << 10)).refused("bytes"));
    all.push(run("20 MB", "x".repeat(20 << 20)).refused("bytes"));
    all.push(run("no UTF-8", b"{{ '\xff' }}".to_vec()).refused("UTF-8"));
    for (name, open, close) in
        [("brackets", "[", "]"), ("parentheses", "(", ")"), ("negations", "-", ""), ("nots", "not ", "")]
    {
        all.push(
            run(&format!("50,000 {name}"), format!("{{{{ {}1{} }}}}", open.repeat(20_000), close.repeat(20_000)))
                .ends_any(),
        );
    }
    all.push(run("5,000 blocks", "{% if true %}".repeat(5_000) + &"{% endif %}".repeat(5_000)).ends_any());
    all.push(run("long chain of operators", format!("{{{{ 1{} }}}}", "+1".repeat(60_000))).ends_any());
    all.push(run("long chain of filters", format!("{{{{ 'x'{} }}}}", "|upper".repeat(30_000))).ends_any());
    all.push(run("long chain of attributes", format!("{{{{ messages{} }}}}", ".a".repeat(60_000))).ends_any());
    all.push(run("long chain of subscripts", format!("{{{{ messages{} }}}}", "[0]".repeat(60_000))).ends_any());
    all.push(run("long chain of calls", format!("{{{{ messages{} }}}}", "()".repeat(60_000))).ends_any());
    all.push(run("long concatenation", format!("{{{{ 'a'{} }}}}", "~'b'".repeat(30_000))).ends_any());
    all.push(
        run("4,000 else-ifs", "{% if false %}".to_owned() + &"{% elif false %}".repeat(10_000) + "{% endif %}")
            .ends_any(),
    );
    all.push(run("longer than the context", "word ".repeat(50_000)).usage("context"));
    all.push(run("sound", "{% for m in messages %}{{ m.content }}{% endfor %}"));
    all.push(run("content cannot speak for the template", "{{ messages[0].content }}<|eot_id|>"));
    all.push(
        harness(AREA, "chat: renders nothing", ["chat", "--chat-template", "t"])
            .file("t", "")
            .stdin("hi\n")
            .refused("nothing"),
    );
    all
}
