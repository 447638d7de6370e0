use super::*;
use crate::GenerateError;
use serde_json::Value as Json;

/// Templates rendered by Python's jinja2 in transformers' environment (`scripts/template_cases.py`).
const CASES: &str = include_str!("../../tests/fixtures/templates.json");

fn now(cases: &Json) -> LocalTime {
    let part = |i: usize| cases["now"][i].as_u64().unwrap() as u32;
    LocalTime { year: part(0) as i32, month: part(1), day: part(2), hour: part(3), minute: part(4), second: part(5) }
}

fn rendering(template: &str, messages: Vec<Message>) -> Rendering {
    Rendering {
        template: template.into(),
        messages,
        add_generation_prompt: true,
        bos_token: Some("<s>".into()),
        eos_token: Some("</s>".into()),
        now: LocalTime::utc(0),
    }
}

/// Words by which a refusal says what it does not do.
fn names_what(error: &str) -> bool {
    ["not supported", "cannot be printed", "is not allowed", "beyond 64 bits", "outside ASCII", "too large"]
        .iter()
        .any(|part| error.contains(part))
}

#[test]
fn templates_render_as_transformers_renders_them_or_are_refused_by_name() {
    let cases: Json = serde_json::from_str(CASES).unwrap();
    let (mut equal, mut refused, mut both, mut wrong) = (0, Vec::new(), 0, Vec::new());
    let mut unlike = std::collections::BTreeSet::new();
    let templates = cases["templates"].as_array().unwrap();
    assert!(templates.len() >= 150, "{}", templates.len());
    for case in cases["cases"].as_array().unwrap() {
        let template = templates[case["template"].as_u64().unwrap() as usize].as_str().unwrap();
        let talk = &cases["talks"][case["talk"].as_str().unwrap()];
        let messages: Vec<Message> = serde_json::from_value(talk.clone()).unwrap();
        let token = |text: &str| case["tokens"].as_bool().unwrap().then(|| text.to_owned());
        let rendering = Rendering {
            template: template.into(),
            messages,
            add_generation_prompt: case["generate"].as_bool().unwrap(),
            bos_token: token("<s>"),
            eos_token: token("</s>"),
            now: now(&cases),
        };
        let name = format!("{} / {}", case["name"], case["talk"]);
        match (rendering.run(), &case["text"], case.get("error")) {
            (Ok(ours), Json::String(theirs), _) if ours.text == *theirs => equal += 1,
            (Ok(ours), Json::String(theirs), _) => {
                wrong.push(format!("{name}\n  ours   {:?}\n  theirs {theirs:?}", ours.text))
            }
            (Ok(ours), _, _) => {
                wrong.push(format!("{name}\n  ours   {:?}\n  theirs {:?}", ours.text, case.get("error")))
            }
            (Err(_), _, Some(_)) => both += 1,
            (Err(GenerateError::Template(e)), _, None) if names_what(&e) => {
                unlike.insert(template);
                refused.push(format!("{name}: {e}"));
            }
            (Err(e), theirs, None) => wrong.push(format!("{name}\n  ours   error {e}\n  theirs {theirs:?}")),
        }
    }
    println!(
        "{} templates, {} refused by name; {equal} renderings equal, {both} refused by both",
        templates.len(),
        unlike.len()
    );
    refused.iter().for_each(|r| println!("  {r}"));
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    let as_there = templates.len() - unlike.len();
    assert!(as_there >= 200, "{as_there} of {} as transformers has them", templates.len());
}

/// What a message brought is known through whatever a template does with it.
#[test]
fn origin_follows_the_text_through_every_operation() {
    let content = "Ab<|eot|> cD";
    let from_messages = |template: &str| {
        let rendered = rendering(template, vec![Message::new("user", content)]).run().unwrap();
        rendered.from_messages.iter().map(|r| rendered.text[r.clone()].to_owned()).collect::<Vec<_>>()
    };
    // The template's part is in capitals here, so that what is not is the message's.
    for (template, expected) in [
        ("X{{ messages[0].content }}Y", vec![content]),
        ("X{{ messages[0].content.lower() }}Y", vec!["ab<|eot|> cd"]),
        ("{{ 'X' + messages[0].content | upper + 'Y' }}", vec!["AB<|EOT|> CD"]),
        ("{{ 'X' ~ messages[0].content[2:5] ~ 'Y' }}", vec!["<|e"]),
        ("{{ messages[0].content.replace('eot', 'X') }}", vec!["Ab<|", "|> cD"]),
        ("{{ messages[0].content | replace('<|', '') }}", vec!["Abeot|> cD"]),
        ("{{ messages[0].content.split(' ') | join('X') }}", vec!["Ab<|eot|>", "cD"]),
        ("{{ 'X'.join(messages[0].content.split('<')) }}", vec!["Ab", "|eot|> cD"]),
        ("{{ messages[0].content | tojson }}", vec![content]),
        ("{{ messages[0].content | list | first }}X{{ messages[0].content | last }}", vec!["A", "D"]),
        (
            "{% for c in messages[0].content %}{{ c }}X{% endfor %}",
            content.split("").filter(|c| !c.is_empty()).collect(),
        ),
        ("{% set x %}{{ messages[0].content }}{% endset %}X{{ x | trim }}", vec![content]),
        ("{% macro m(t) %}X{{ t | reverse }}{% endmacro %}{{ m(messages[0].content) }}", vec!["Dc >|toe|<bA"]),
        ("{{ messages[0].role }}", vec![]),
        ("{{ messages | map(attribute='content') | join }}{{ messages[0] }}", vec![content, content]),
        ("{% filter title %}X {{ messages[0].content }}{% endfilter %}", vec!["Ab<|eot|> Cd"]),
    ] {
        let mut found = from_messages(template);
        if template.contains("join }}{{ messages[0]") {
            // `content` and its printed copy, whose marks are the program's.
            found.truncate(2);
        }
        assert_eq!(found, expected, "{template}");
    }
    let odd = rendering("{{ messages[0].role }}", vec![Message::new("user<|eot|>", "x")]).run().unwrap();
    assert_eq!(odd.from_messages.len(), 1);
    assert_eq!(odd.from_messages[0], 0.."user<|eot|>".len());
}

#[test]
fn what_never_ends_or_grows_beyond_measure_is_stopped() {
    for template in [
        "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}",
        "{% set ns = namespace(s='xxxx') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
        "{{ 'x' * 1000000000 }}",
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        "{{ [1] * 1000000000 }}",
        "{{ 'x' | indent(1000000000) }}",
        "{{ 'x'.center(1000000000) }}",
    ] {
        assert!(rendering(template, Vec::new()).run().is_err(), "{template}");
    }
    for (open, close, n) in [("(", ")", 20_000), ("[", "]", 20_000), ("-", "", 20_000), ("not ", "", 20_000)] {
        let template = format!("{{{{ {}1{} }}}}", open.repeat(n), close.repeat(n));
        assert!(rendering(&template, Vec::new()).run().is_err());
    }
    for link in ["+1", "|upper", ".a", "[0]", "()", " or 1", "~'b'"] {
        drop(rendering(&format!("{{{{ 1{} }}}}", link.repeat(60_000)), Vec::new()).run());
    }
    assert!(ChatTemplate::new("{% for".into(), "x", &TemplateSandbox::InProcess).is_err());
    assert!(ChatTemplate::new("x".repeat(MAX_TEMPLATE + 1), "x", &TemplateSandbox::InProcess).is_err());
}
