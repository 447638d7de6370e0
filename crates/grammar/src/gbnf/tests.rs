//! Tests of the grammar front against its documented meaning and an oracle of its own.

use std::collections::BTreeSet;

use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;

use super::*;

static_assertions::assert_impl_all!(Grammar: Send, Sync, Clone);
static_assertions::assert_impl_all!(TokenTrie: Send, Sync, Clone);
static_assertions::assert_impl_all!(TokenMask: Send, Sync);
static_assertions::assert_impl_all!(Matcher: Send);

fn grammar(text: &str) -> Grammar {
    Grammar::parse(text, "root", &GrammarLimits::default()).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn refusal(text: &str) -> GrammarError {
    match Grammar::parse(text, "root", &GrammarLimits::default()) {
        Err(error) => error,
        Ok(_) => panic!("accepted: {text}"),
    }
}

fn limit_in(error: &GrammarError) -> Option<GrammarLimit> {
    match error {
        GrammarError::Limit { limit, .. } => Some(*limit),
        _ => None,
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Conformance {
    grammar: Vec<Accepted>,
    refused: Vec<Refused>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Accepted {
    name: String,
    text: String,
    #[serde(default = "root")]
    root: String,
    r#match: Vec<String>,
    no_match: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(
    dead_code,
    reason = "`engine` and `why` are for readers of the file: what the engine dies of cannot be asked of it here"
)]
struct Refused {
    name: String,
    text: String,
    #[serde(default = "root")]
    root: String,
    error: String,
    at: Option<String>,
    engine: String,
    why: Option<String>,
}

fn root() -> String {
    "root".to_owned()
}

fn conformance() -> Conformance {
    toml::from_str(include_str!("../../../../gates/grammars/conformance.toml")).unwrap()
}

#[test]
fn documented_meaning() {
    let cases = conformance();
    assert!(cases.grammar.len() >= 40);
    for case in cases.grammar {
        let grammar = Grammar::parse(&case.text, &case.root, &GrammarLimits::default())
            .unwrap_or_else(|error| panic!("{}: {error}", case.name));
        for text in &case.r#match {
            assert!(grammar.matches(text.as_bytes()), "{}: {text:?} should match", case.name);
        }
        for text in &case.no_match {
            assert!(!grammar.matches(text.as_bytes()), "{}: {text:?} should not match", case.name);
        }
    }
}

#[test]
fn documented_refusals() {
    let cases = conformance();
    assert!(cases.refused.len() >= 40);
    for case in cases.refused {
        let error = Grammar::parse(&case.text, &case.root, &GrammarLimits::default())
            .err()
            .unwrap_or_else(|| panic!("{}: accepted", case.name));
        let message = error.to_string();
        assert!(message.contains(&case.error), "{}: {message}", case.name);
        if let Some((line, column)) = case.at.as_deref().and_then(|at| at.split_once(':')) {
            let place = format!("line {line}, column {column}:");
            assert!(message.contains(&place), "{}: {message}", case.name);
        }
    }
}

#[test]
fn columns_count_characters() {
    let error = refusal("root ::= \"客厅灯\" ;");
    assert!(matches!(error, GrammarError::Syntax { at: Position { line: 1, column: 16 }, .. }), "{error}");
}

/// What exhausts the engine's stack or memory is refused, by the limit that stands for it.
#[test]
fn hostile_texts_are_refused_promptly() {
    let groups = format!("root ::= {}\"a\"{}", "(".repeat(200_000), ")".repeat(200_000));
    assert_eq!(limit_in(&refusal(&groups)), Some(GrammarLimit::Nesting));
    let operators = format!("root ::= \"a\"{}", "?".repeat(200_000));
    assert_eq!(limit_in(&refusal(&operators)), Some(GrammarLimit::Nesting));

    assert!(matches!(
        refusal("root ::= (((\"a\"{0,1000}){0,1000}){0,1000}){0,1000}"),
        GrammarError::EmptyRepetition { .. } | GrammarError::Limit { .. }
    ));
    assert!(matches!(refusal("root ::= ((\"a\"{0,9}){0,9})"), GrammarError::EmptyRepetition { .. }));
    let product = refusal("root ::= (((\"a\"{1,1000}){1,1000}){1,1000})");
    assert_eq!(limit_in(&product), Some(GrammarLimit::RepetitionProduct));
    let inline = refusal("root ::= \"abcdefgh\"{1000}{1000}");
    assert_eq!(limit_in(&inline), Some(GrammarLimit::Elements));

    // A chain of rules is recursion depth in the engine, whichever end is defined first.
    let mut chain = String::from("root ::= r0\n");
    for i in 0..20_000 {
        chain.push_str(&format!("r{i} ::= r{}\n", i + 1));
    }
    chain.push_str("r20000 ::= \"x\"\n");
    assert_eq!(limit_in(&refusal(&chain)), Some(GrammarLimit::Recursion));

    // Every path is walked by the engine: 2^24 of them here.
    let mut paths = String::from("root ::= r0 \"!\"\n");
    for i in 0..24 {
        paths.push_str(&format!("r{i} ::= r{0} \"1\" | r{0} \"2\"\n", i + 1));
    }
    paths.push_str("r24 ::= \"x\"\n");
    assert_eq!(limit_in(&refusal(&paths)), Some(GrammarLimit::Expansion));

    let many = "a".repeat((1 << 20) + 1);
    assert_eq!(limit_in(&refusal(&many)), Some(GrammarLimit::TextBytes));
    let long_name = format!("root ::= {}", "n".repeat(100_000));
    let message = refusal(&long_name).to_string();
    assert!(message.len() < 400, "{}", message.len());
}

#[test]
fn left_recursion_names_the_cycle() {
    let text = "root ::= \"x\" | c\nc ::= (a | \"1\") \"2\"\na ::= b? c\nb ::= \"b\"\n";
    let GrammarError::LeftRecursion { cycle, at } = refusal(text) else { panic!() };
    assert_eq!(cycle, "c -> a -> c");
    assert_eq!(at, Position { line: 2, column: 1 });
}

#[test]
fn states_and_sticky_errors() {
    let trie = TokenTrie::build([
        TokenRole::Text(b"o"),
        TokenRole::Text(b"k"),
        TokenRole::Text(b"ok"),
        TokenRole::End,
        TokenRole::Excluded,
        TokenRole::Text(b""),
        TokenRole::Text(b"ok\0"),
    ])
    .unwrap();
    let grammar = grammar("root ::= \"ok\"");

    let mut matcher = grammar.matcher();
    assert_eq!(matcher.state(), GrammarState::Active);
    assert_eq!(matcher.mask(&trie).unwrap().iter().collect::<Vec<_>>(), [0, 2]);
    assert_eq!(matcher.accept_token(&trie, 2), Ok(GrammarState::Complete));
    assert_eq!(matcher.mask(&trie).unwrap().iter().collect::<Vec<_>>(), [3]);
    assert_eq!(matcher.accept_token(&trie, 3), Ok(GrammarState::Ended));
    assert!(matcher.may_end());
    assert_eq!(matcher.mask(&trie), Err(MatchError::AlreadyEnded));
    // Accepted twice.
    assert_eq!(matcher.accept_token(&trie, 3), Err(MatchError::AlreadyEnded));
    assert_eq!(matcher.state(), GrammarState::Failed);
    assert!(!matcher.may_end());

    // The end first; then everything repeats the first error.
    matcher.reset();
    let early = Err(MatchError::EndTooEarly { offset: 0 });
    assert_eq!(matcher.accept_token(&trie, 3), early);
    assert_eq!(matcher.accept_token(&trie, 2), early);
    assert_eq!(matcher.accept_bytes(b"ok"), early);
    assert_eq!(matcher.mask(&trie).map(|_| ()), early.map(|_| ()));
    assert!(!matcher.allows_bytes(b"ok"));

    for (token, error) in [
        (4, MatchError::NotText { token: 4 }),
        (5, MatchError::NotText { token: 5 }),
        (6, MatchError::NotText { token: 6 }),
        (7, MatchError::UnknownToken { token: 7, vocabulary: 7 }),
        (u32::MAX, MatchError::UnknownToken { token: u32::MAX, vocabulary: 7 }),
        (1, MatchError::Rejected { offset: 0, byte: b'k' }),
    ] {
        matcher.reset();
        assert_eq!(matcher.accept_token(&trie, token), Err(error));
    }

    // The same token twice.
    matcher.reset();
    assert_eq!(matcher.accept_token(&trie, 0), Ok(GrammarState::Active));
    assert_eq!(matcher.accept_token(&trie, 0), Err(MatchError::Rejected { offset: 1, byte: b'o' }));
}

#[test]
fn a_copy_goes_its_own_way() {
    let grammar = grammar("root ::= \"(\" root \")\" | [a-z]+");
    let mut one = grammar.matcher();
    one.accept_bytes(b"((ab").unwrap();
    let mut two = one.clone();
    assert_eq!(one.accept_bytes(b"))"), Ok(GrammarState::Complete));
    assert_eq!(two.accept_bytes(b"c)"), Ok(GrammarState::Active));
    assert_eq!(two.offset(), 6);
    assert!(two.accept_bytes(b"d").is_err());
}

#[test]
fn characters_may_be_cut_anywhere_but_must_be_text() {
    let grammar = grammar("root ::= [^a-z]{2} \"語\"");
    let text = "é😀語".as_bytes();
    for cut in 0..=text.len() {
        let mut matcher = grammar.matcher();
        matcher.accept_bytes(&text[..cut]).unwrap();
        assert_eq!(matcher.accept_bytes(&text[cut..]), Ok(GrammarState::Complete), "cut at {cut}");
    }
    // Lone continuation, overlong, surrogate, above the last code point, cut by ASCII, NUL.
    for bytes in
        [&b"\x80"[..], b"\xC0\x80", b"\xE0\x80\x80", b"\xED\xA0\x80", b"\xF4\x90\x80\x80", b"\xF8", b"\xFF", b"\xC3A"]
    {
        let mut matcher = grammar.matcher();
        let error = matcher.accept_bytes(bytes).unwrap_err();
        assert!(matches!(error, MatchError::InvalidUtf8 { .. }), "{bytes:x?}: {error}");
    }
    assert!(matches!(grammar.matcher().accept_bytes(b"\0"), Err(MatchError::Rejected { .. })));
}

/// A cut character never counts as finished text.
#[test]
fn nothing_ends_inside_a_character() {
    let trie = TokenTrie::build([TokenRole::Text(b"\xF0\x9F"), TokenRole::Text(b"\x98\x80"), TokenRole::End]).unwrap();
    let mut matcher = grammar("root ::= \"\" | .").matcher();
    assert_eq!(matcher.mask(&trie).unwrap().iter().collect::<Vec<_>>(), [0, 2]);
    assert_eq!(matcher.accept_token(&trie, 0), Ok(GrammarState::Active));
    assert!(!matcher.may_end());
    assert_eq!(matcher.mask(&trie).unwrap().iter().collect::<Vec<_>>(), [1]);
    assert_eq!(matcher.accept_token(&trie, 1), Ok(GrammarState::Complete));
}

/// The engine refuses to cut a character where a negated class excludes one of the possible
/// characters; so does the mask, though the bytes alone would fit.
#[test]
fn cuts_follow_the_engine() {
    let trie = TokenTrie::build([
        TokenRole::Text(b"\xC3"),        // U+00C0..U+00FF
        TokenRole::Text("è".as_bytes()), // U+00E8
        TokenRole::Text("é".as_bytes()), // U+00E9
        TokenRole::Text(b"\xC4"),        // U+0100..U+013F
        TokenRole::Text(b"\xED"),        // U+D000..U+D7FF, for the engine ..U+DFFF
        TokenRole::Text("é\u{e8}\u{c3}".as_bytes()),
    ])
    .unwrap();
    let mut matcher = grammar("root ::= [^é\\uD800-\\uDFFF] .*").matcher();
    assert_eq!(matcher.mask(&trie).unwrap().iter().collect::<Vec<_>>(), [1, 3]);
    assert!(matcher.allows_bytes(b"\xC3"));
    assert_eq!(matcher.accept_token(&trie, 0), Err(MatchError::CutCharacter { token: 0 }));
    let mut listed = grammar("root ::= [è-é]").matcher();
    assert_eq!(listed.mask(&trie).unwrap().iter().collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn nesting_of_the_text_is_bounded() {
    let limits = GrammarLimits { max_stack_depth: 8, ..GrammarLimits::default() };
    let grammar = Grammar::parse("root ::= \"(\" root \")\" | \"x\"", "root", &limits).unwrap();
    assert!(grammar.matches(b"((((((x))))))"));
    let mut matcher = grammar.matcher();
    let error = matcher.accept_bytes(&[b'('; 20]).unwrap_err();
    assert!(
        matches!(error, MatchError::Limit { limit: GrammarLimit::StackDepth, max: 8, offset } if offset < 9),
        "{error}"
    );
    // In a mask the same thing bars the token and says so.
    let trie = TokenTrie::build([TokenRole::Text(b"(("), TokenRole::Text(b"((((((((((((")]).unwrap();
    let mut matcher = grammar.matcher();
    let mask = matcher.mask(&trie).unwrap();
    assert_eq!(mask.iter().collect::<Vec<_>>(), [0]);
    assert!(mask.is_limited());
}

#[test]
fn parallel_readings_are_bounded() {
    let limits = GrammarLimits { max_stacks: 4, ..GrammarLimits::default() };
    let text = "root ::= \"a\" (\"b\" | \"c\" | \"d\" | \"e\" | \"f\") | \"x\"";
    let grammar = Grammar::parse(text, "root", &limits).unwrap();
    let error = grammar.matcher().accept_bytes(b"a").unwrap_err();
    assert!(matches!(error, MatchError::Limit { limit: GrammarLimit::Stacks, max: 4, offset: 0 }), "{error}");
    assert!(grammar.matches(b"x"));
    let start = Grammar::parse("root ::= \"a\" | \"b\" | \"c\" | \"d\" | \"e\"", "root", &limits);
    assert_eq!(start.err().as_ref().and_then(limit_in), Some(GrammarLimit::Stacks));
}

/// With two ways of being empty per open rule the engine walks 2^depth paths at the end.
#[test]
fn work_behind_many_empty_rests_is_bounded() {
    let grammar = grammar("root ::= \"(\" root o | \"x\"\no ::= \"\" | \"y\" | \"\"");
    assert!(grammar.matches(b"((((x"));
    let mut deep = vec![b'('; 40];
    deep.push(b'x');
    let error = grammar.matcher().accept_bytes(&deep).unwrap_err();
    assert!(matches!(error, MatchError::Limit { limit: GrammarLimit::Expansion, .. }), "{error}");
}

/// Tables that are too small for a text are emptied on the way and change no answer.
#[test]
fn small_tables_change_nothing() {
    let text = "root ::= (word \" \"){1,200}\nword ::= [a-z]{1,9} | [0-9]{2,7}\n";
    let roomy = grammar(text);
    let limits = GrammarLimits { max_table_bytes: 40_000, max_cached_masks: 2, ..GrammarLimits::default() };
    let tight = Grammar::parse(text, "root", &limits).unwrap();
    let vocabulary: Vec<Vec<u8>> = (b'0'..=b'z').map(|b| vec![b]).chain([b" ".to_vec(), b"ab ".to_vec()]).collect();
    let trie = TokenTrie::build(vocabulary.iter().map(|t| TokenRole::Text(t))).unwrap();
    let (mut one, mut two) = (roomy.matcher(), tight.matcher());
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    for _ in 0..300 {
        let mask = one.mask(&trie).unwrap();
        assert_eq!(mask, two.mask(&trie).unwrap());
        let allowed: Vec<u32> = mask.iter().collect();
        let token = allowed[rng.random_range(0..allowed.len())];
        assert_eq!(one.accept_token(&trie, token), two.accept_token(&trie, token));
        assert!(two.allows_bytes(b"") && one.allows_bytes(b""));
    }
}

/// A vocabulary with every byte, some words, cut and broken characters, and special tokens.
fn vocabulary() -> Vec<Vec<u8>> {
    let mut texts: Vec<Vec<u8>> = (1..=255).map(|b| vec![b]).collect();
    for word in [
        "ab", "abc", "ba", "aab", "é", "éa", "語", "aé語", "语", "😀", "😀🙏", "{\"", "\":", "true", "null", "12",
        ",1", "\n\n", "  ", "))", "((",
    ] {
        texts.push(word.as_bytes().to_vec());
    }
    for bytes in [
        &b"a\xC3"[..],
        b"\xA9b",
        b"\xE8\xAA",
        b"\x9E",
        b"\xF0\x9F\x98",
        b"\x9F\x98",
        b"\x80a",
        b"\xC3a",
        b"\xED\xA0",
        b"a\xF0",
        b"\x80\xC3",
        b"ab",
    ] {
        texts.push(bytes.to_vec());
    }
    texts
}

fn trie_of(texts: &[Vec<u8>]) -> TokenTrie {
    let special = [TokenRole::End, TokenRole::Excluded, TokenRole::Text(b""), TokenRole::End];
    TokenTrie::build(texts.iter().map(|text| TokenRole::Text(text)).chain(special)).unwrap()
}

fn check_mask(matcher: &mut Matcher, trie: &TokenTrie) -> Result<(), TestCaseError> {
    let mask = matcher.mask(trie).unwrap();
    prop_assert!(!mask.is_limited());
    for token in 0..u32::try_from(trie.vocabulary_len()).unwrap() {
        let mut copy = matcher.clone();
        let accepted = copy.accept_token(trie, token).is_ok();
        prop_assert_eq!(mask.allows(token), accepted, "token {} {:?}", token, trie.text(token));
        prop_assert_eq!(matcher.allows_token(trie, token), accepted);
    }
    prop_assert_eq!(mask.count(), mask.iter().count());
    let mut logits = vec![1.0_f32; trie.vocabulary_len() + 3];
    mask.apply(&mut logits);
    for (token, logit) in logits.iter().enumerate() {
        let allowed = u32::try_from(token).is_ok_and(|token| mask.allows(token));
        prop_assert_eq!(*logit == 1.0, allowed);
        prop_assert!(allowed || *logit == f32::NEG_INFINITY);
    }
    Ok(())
}

/// Tokens drawn from the mask alone give well-formed text of the grammar.
#[test]
fn masked_noise_is_always_text() {
    let trie = trie_of(&vocabulary());
    type Check = fn(&str) -> bool;
    let cases: [(&str, Check); 2] = [
        ("root ::= [😀-🙏]{3}", |t| t.chars().count() == 3 && t.chars().all(|c| ('😀'..='🙏').contains(&c))),
        ("root ::= [^a-z]{8}", |t| t.chars().count() == 8 && !t.chars().any(|c| c.is_ascii_lowercase())),
    ];
    for (text, check) in cases {
        let mut matcher = grammar(text).matcher();
        for seed in 0..200 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            matcher.reset();
            let mut output = Vec::new();
            loop {
                let mask = matcher.mask(&trie).unwrap();
                let allowed: Vec<u32> = mask.iter().collect();
                assert!(!allowed.is_empty(), "dead end after {output:x?}");
                let token = allowed[rng.random_range(0..allowed.len())];
                if matcher.accept_token(&trie, token).unwrap() == GrammarState::Ended {
                    break;
                }
                output.extend_from_slice(trie.text(token).unwrap());
            }
            let output = String::from_utf8(output).unwrap();
            assert!(check(&output), "{output:?}");
        }
    }
}

// ------------------------------------------------------------------ an oracle of its own

/// A grammar as the tests write it; references only go to later rules.
#[derive(Debug, Clone)]
enum Shape {
    Literal(String),
    Class(bool, Vec<(char, char)>),
    Any,
    Rule(usize),
    Sequence(Vec<Shape>),
    Choice(Vec<Shape>),
    Repeat(Box<Shape>, usize, Option<usize>),
}

impl Shape {
    fn render(&self, rules: usize, own: usize, out: &mut String) {
        match self {
            Self::Literal(text) => {
                out.push('"');
                for c in text.chars() {
                    match c {
                        '\n' => out.push_str("\\n"),
                        'é' => out.push_str("\\xe9"),
                        c => out.push(c),
                    }
                }
                out.push('"');
            }
            Self::Class(negated, ranges) => {
                out.push_str(if *negated { "[^" } else { "[" });
                for (low, high) in ranges {
                    out.push_str(&format!("\\U{:08x}-{high}", u32::from(*low)));
                }
                out.push(']');
            }
            Self::Any => out.push('.'),
            Self::Rule(index) => match Self::target(*index, rules, own) {
                Some(rule) => out.push_str(&format!("r{rule}")),
                None => out.push_str("\"a\""),
            },
            Self::Sequence(parts) => {
                for part in parts {
                    part.render_grouped(rules, own, out);
                    out.push(' ');
                }
            }
            Self::Choice(parts) => {
                for (index, part) in parts.iter().enumerate() {
                    if index > 0 {
                        out.push_str(" | ");
                    }
                    part.render(rules, own, out);
                }
            }
            Self::Repeat(body, min, max) => {
                out.push('(');
                body.render(rules, own, out);
                out.push(')');
                out.push_str(&match (min, max) {
                    (0, None) => "*".to_owned(),
                    (1, None) => "+".to_owned(),
                    (0, Some(1)) => "?".to_owned(),
                    (min, None) => format!("{{{min},}}"),
                    (min, Some(max)) if min == max => format!("{{{min}}}"),
                    (min, Some(max)) => format!("{{{min},{max}}}"),
                });
            }
        }
    }

    fn render_grouped(&self, rules: usize, own: usize, out: &mut String) {
        if matches!(self, Self::Choice(_)) {
            out.push('(');
            self.render(rules, own, out);
            out.push(')');
        } else {
            self.render(rules, own, out);
        }
    }

    fn target(index: usize, rules: usize, own: usize) -> Option<usize> {
        let later = rules - own - 1;
        (later > 0).then(|| own + 1 + index % later)
    }

    /// Every place where a match beginning at `from` can end.
    fn ends(&self, rules: &[Shape], own: usize, text: &[char], from: usize) -> BTreeSet<usize> {
        let one = |fits: bool| if fits { BTreeSet::from([from + 1]) } else { BTreeSet::new() };
        match self {
            Self::Literal(literal) => {
                let literal: Vec<char> = literal.chars().collect();
                if text[from..].starts_with(&literal) {
                    BTreeSet::from([from + literal.len()])
                } else {
                    BTreeSet::new()
                }
            }
            Self::Class(negated, ranges) => one(text
                .get(from)
                .is_some_and(|c| ranges.iter().any(|(low, high)| (low..=high).contains(&c)) != *negated)),
            Self::Any => one(from < text.len()),
            Self::Rule(index) => match Self::target(*index, rules.len(), own) {
                Some(rule) => rules[rule].ends(rules, rule, text, from),
                None => one(text.get(from) == Some(&'a')),
            },
            Self::Sequence(parts) => parts.iter().fold(BTreeSet::from([from]), |places, part| {
                places.iter().flat_map(|&place| part.ends(rules, own, text, place)).collect()
            }),
            Self::Choice(parts) => parts.iter().flat_map(|part| part.ends(rules, own, text, from)).collect(),
            Self::Repeat(body, min, max) => {
                let mut all = BTreeSet::new();
                let mut places = BTreeSet::from([from]);
                let mut turn = 0;
                while !places.is_empty() && max.is_none_or(|max| turn <= max) && turn <= text.len() + min + 1 {
                    if turn >= *min {
                        all.extend(places.iter().copied());
                    }
                    places = places.iter().flat_map(|&place| body.ends(rules, own, text, place)).collect();
                    turn += 1;
                }
                all
            }
        }
    }

    fn repeats_empty(&self, rules: &[Shape], own: usize) -> bool {
        match self {
            Self::Sequence(parts) | Self::Choice(parts) => parts.iter().any(|part| part.repeats_empty(rules, own)),
            Self::Repeat(body, _, max) => {
                let more = max.is_none_or(|max| max > 1);
                (more && body.ends(rules, own, &[], 0).contains(&0)) || body.repeats_empty(rules, own)
            }
            _ => false,
        }
    }
}

const LETTERS: [char; 7] = ['a', 'b', 'c', '\n', 'é', '語', '😀'];

fn shape() -> impl Strategy<Value = Shape> {
    let letter = prop::sample::select(LETTERS.to_vec());
    let range = (prop::sample::select(vec!['a', 'b', 'é', '語']), prop::sample::select(vec!['c', 'é', '語', '😀']))
        .prop_map(|(low, high)| if low <= high { (low, high) } else { (high, low) });
    let leaf = prop_oneof![
        3 => prop::collection::vec(letter, 0..3).prop_map(|l| Shape::Literal(l.into_iter().collect())),
        2 => (any::<bool>(), prop::collection::vec(range, 1..3)).prop_map(|(n, r)| Shape::Class(n, r)),
        1 => Just(Shape::Any),
        2 => (0..4_usize).prop_map(Shape::Rule),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            3 => prop::collection::vec(inner.clone(), 1..4).prop_map(Shape::Sequence),
            2 => prop::collection::vec(inner.clone(), 1..4).prop_map(Shape::Choice),
            2 => (inner, 0..3_usize, prop::option::of(0..3_usize))
                .prop_map(|(body, min, more)| Shape::Repeat(Box::new(body), min, more.map(|more| min + more))),
        ]
    })
}

fn written(rules: &[Shape]) -> String {
    let mut text = String::from("root ::= r0\n");
    for (own, rule) in rules.iter().enumerate() {
        text.push_str(&format!("r{own} ::= "));
        rule.render(rules.len(), own, &mut text);
        text.push('\n');
    }
    text
}

fn oracle(rules: &[Shape], text: &str) -> bool {
    let characters: Vec<char> = text.chars().collect();
    rules[0].ends(rules, 0, &characters, 0).contains(&characters.len())
}

/// The random grammar, unless it repeats something empty, which must then be refused.
fn checked(rules: &[Shape]) -> Result<Option<Grammar>, TestCaseError> {
    let text = written(rules);
    let empty = rules.iter().enumerate().any(|(own, rule)| rule.repeats_empty(rules, own));
    match Grammar::parse(&text, "root", &GrammarLimits::default()) {
        Ok(grammar) => {
            prop_assert!(!empty, "repeats something empty: {}", text);
            Ok(Some(grammar))
        }
        Err(GrammarError::EmptyRepetition { .. }) => {
            prop_assert!(empty, "repeats nothing empty: {}", text);
            Ok(None)
        }
        Err(GrammarError::Limit { limit: GrammarLimit::Expansion, .. }) => Ok(None),
        Err(error) => Err(TestCaseError::fail(format!("{error}\n{text}"))),
    }
}

fn noise(max: usize) -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(LETTERS.to_vec()), 0..max).prop_map(|l| l.into_iter().collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// The matcher agrees with backtracking on the tests' own tree, on derived, changed and random
    /// texts.
    #[test]
    fn agrees_with_backtracking(
        rules in prop::collection::vec(shape(), 1..4),
        texts in prop::collection::vec(noise(7), 8),
        seed in any::<u64>(),
    ) {
        let Some(grammar) = checked(&rules)? else { return Ok(()) };
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut texts = texts;
        for _ in 0..4 {
            // Any character of a negated class may come out: at most 16 of them keep this quick.
            if let Some(text) = grammar.derive(&mut |n| rng.random_range(0..n), 6, 64) {
                prop_assert!(grammar.matches(text.as_bytes()), "derived {:?} from {}", text, grammar.text());
                let mut changed: Vec<char> = text.chars().collect();
                if changed.len() <= 16 {
                    prop_assert!(oracle(&rules, &text), "oracle on {:?} from {}", text, grammar.text());
                    if !changed.is_empty() {
                        let at = rng.random_range(0..changed.len());
                        match rng.random_range(0..3) {
                            0 => { changed.remove(at); }
                            1 => changed[at] = LETTERS[rng.random_range(0..LETTERS.len())],
                            _ => changed.insert(at, LETTERS[rng.random_range(0..LETTERS.len())]),
                        }
                    }
                    texts.push(changed.into_iter().collect());
                }
            }
        }
        for text in &texts {
            prop_assert_eq!(
                grammar.matches(text.as_bytes()), oracle(&rules, text), "{:?} in {}", text, grammar.text()
            );
        }
    }

    /// Reading byte by byte, in pieces or at once is the same.
    #[test]
    fn pieces_do_not_matter(
        rules in prop::collection::vec(shape(), 1..4),
        text in noise(8),
        cut in any::<prop::sample::Index>(),
    ) {
        let Some(grammar) = checked(&rules)? else { return Ok(()) };
        let bytes = text.as_bytes();
        let cut = cut.index(bytes.len() + 1);
        let mut whole = grammar.matcher();
        let mut pieces = grammar.matcher();
        let at_once = whole.accept_bytes(bytes);
        let in_two = pieces.accept_bytes(&bytes[..cut]).and_then(|_| pieces.accept_bytes(&bytes[cut..]));
        prop_assert_eq!(at_once, in_two);
        prop_assert_eq!(whole.offset(), pieces.offset());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The mask is what accepting every token on its own says, along a random generation.
    #[test]
    fn mask_is_token_by_token(rules in prop::collection::vec(shape(), 1..4), seed in any::<u64>()) {
        let Some(grammar) = checked(&rules)? else { return Ok(()) };
        let trie = trie_of(&vocabulary());
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut matcher = grammar.matcher();
        for _ in 0..6 {
            check_mask(&mut matcher, &trie)?;
            let allowed: Vec<u32> = matcher.mask(&trie).unwrap().iter().collect();
            if allowed.is_empty() {
                // Only a vocabulary of whole characters could go on.
                break;
            }
            let token = allowed[rng.random_range(0..allowed.len())];
            if matcher.accept_token(&trie, token).unwrap() == GrammarState::Ended {
                break;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any text is a grammar or an error, and an accepted one can be used.
    #[test]
    fn any_text_is_a_grammar_or_an_error(
        parts in prop::collection::vec(
            prop::sample::select(vec![
                "root", "a", "b-1", "::=", " ::= ", "\n", "\r\n", " ", "|", "(", ")", "[", "]", "[^", "-", "\"", "\\",
                "\\x41", "\\uD800", "\\U0010FFFF", "\\n", "*", "+", "?", "{", "}", "{2,3}", "{0,}", ",", "9", ".", "#",
                "\"a\"", "[a-z]", "é", "😀", "\0", "\t", "root ::= ", "\na ::= ", "\nb-1 ::= ",
            ]),
            0..40,
        ),
        bytes in prop::collection::vec(any::<u8>(), 0..12),
    ) {
        let text = parts.concat();
        if let Ok(grammar) = Grammar::parse(&text, "root", &GrammarLimits::default()) {
            let mut matcher = grammar.matcher();
            let first = matcher.accept_bytes(&bytes);
            if first.is_err() {
                prop_assert_eq!(matcher.accept_bytes(b"a"), first);
            }
            let shortest = grammar.derive(&mut |_| 0, 0, 1 << 16);
            if let Some(text) = shortest {
                prop_assert!(grammar.matches(text.as_bytes()), "{:?}", text);
            }
        }
    }

    /// The same with arbitrary characters.
    #[test]
    fn any_characters_are_a_grammar_or_an_error(text in ".{0,60}") {
        let _ = Grammar::parse(&text, "root", &GrammarLimits::default());
        let _ = Grammar::parse(&format!("root ::= {text}"), "root", &GrammarLimits::default());
    }
}
