//! Prompt-lookup drafts change nothing but the number of decodes.

use bitnet_rs::{Context, ContextParams, Model, ModelParams, Pos, SamplingParams, SeqId, Special, TokenId};
use grammar::{Grammar, GrammarLimits};
use models::source::ModelSource;
use session::{ChatTemplate, DraftCounts, Event, GenerateError, Generator, GeneratorParams, Message, TemplateSandbox};

fn model() -> Model {
    let path = ModelSource::Embedded.path().unwrap();
    Model::load(path.as_path(), ModelParams::default()).unwrap()
}

fn context(model: &Model, n_ctx: u32, flash_attn: bool) -> Context {
    Context::new(model, &ContextParams { n_ctx, n_threads: 1, flash_attn, ..Default::default() }).unwrap()
}

/// All events, the next position, and how the drafts fared.
fn generate(
    model: &Model,
    n_ctx: u32,
    prompt: &[TokenId],
    params: &GeneratorParams,
    draft_lookup: usize,
) -> (Vec<Event>, Pos, DraftCounts) {
    let mut context = context(model, n_ctx, true);
    let params = GeneratorParams { draft_lookup, ..params.clone() };
    let mut generator = Generator::new(&mut context, SeqId::ZERO, prompt, params).unwrap();
    let events = (&mut generator).map(Result::unwrap).collect();
    let counts = generator.draft_counts();
    drop(generator);
    (events, context.next_pos(SeqId::ZERO).unwrap(), counts)
}

fn repeated() -> Grammar {
    Grammar::parse("root ::= (\"ab \"){24}", "root", &GrammarLimits::default()).unwrap()
}

#[test]
fn the_output_is_the_same_with_any_draft() {
    let model = model();
    let chat = |messages: &[(&str, &str)]| {
        let messages: Vec<Message> = messages.iter().map(|(role, text)| Message::new(role, *text)).collect();
        ChatTemplate::of_model(&model, &TemplateSandbox::InProcess).unwrap().tokens(&model, &messages, true).unwrap()
    };
    let plain = |text: &str| model.tokenize(text, Special::ContentWithBos).unwrap();
    let list = "Devices:\n- pixa: camera, hallway\n- lumo: light, kitchen";
    let earlier = chat(&[("system", list), ("user", "switch pixa on")]);
    // The same command twice in a conversation: its answer is copied.
    let (said, ..) = generate(&model, 512, &earlier, &GeneratorParams::default(), 0);
    let answer: String = said
        .iter()
        .map(|e| match e {
            Event::Token { text, .. } | Event::End { text, .. } => text.as_str(),
        })
        .collect();
    let again =
        chat(&[("system", list), ("user", "switch pixa on"), ("assistant", &answer), ("user", "switch pixa on")]);
    let grammar =
        Grammar::parse("root ::= \"ab \" \"ab ab ab \" [a-z ]{30}", "root", &GrammarLimits::default()).unwrap();
    let greedy = GeneratorParams { max_tokens: 80, ..Default::default() };
    let cases: [(&str, Vec<TokenId>, u32, GeneratorParams); 6] = [
        ("copy", again.clone(), 512, greedy.clone()),
        ("answer", earlier, 512, greedy.clone()),
        ("story", plain("The lamp in the kitchen. The lamp in the"), 512, greedy.clone()),
        ("grammar", plain("ab ab ab ab"), 512, GeneratorParams { grammar: Some(grammar.into()), ..greedy.clone() }),
        ("stop", again.clone(), 512, GeneratorParams { stop: vec!["device_type".into()], ..greedy.clone() }),
        // The context ends in the middle of an answer.
        ("full", again.clone(), again.len() as u32 + 24, greedy.clone()),
    ];
    for (what, prompt, n_ctx, params) in &cases {
        let (expected, next, none) = generate(&model, *n_ctx, prompt, params, 0);
        assert_eq!((none.drafted, none.accepted), (0, 0));
        for draft in [1, 4, 16] {
            let (found, at, counts) = generate(&model, *n_ctx, prompt, params, draft);
            assert_eq!(found.len(), expected.len(), "{what} with drafts of {draft}");
            for (a, b) in found.iter().zip(&expected) {
                match (a, b) {
                    (Event::Token { id: x, text: s, logprob: p }, Event::Token { id: y, text: t, logprob: q }) => {
                        assert_eq!((x, s), (y, t), "{what} with drafts of {draft}");
                        // The output matrix sums in another order for several rows.
                        assert!((p - q).abs() < 5e-3, "{what} with drafts of {draft}: {p} {q}");
                    }
                    _ => assert_eq!(a, b, "{what} with drafts of {draft}"),
                }
            }
            assert_eq!(at, next, "{what}: the cache holds what was said and nothing else");
            assert!(
                counts.accepted <= counts.drafted && counts.decodes + counts.accepted >= none.decodes,
                "{counts:?}"
            );
        }
    }
    // Whatever the model would rather say, it says the same words again and again.
    let params = GeneratorParams { grammar: Some(repeated().into()), ..greedy };
    let prompt = plain("ab ab ab ab");
    let (_, _, none) = generate(&model, 512, &prompt, &params, 0);
    let (_, _, drafted) = generate(&model, 512, &prompt, &params, 8);
    assert!(drafted.accepted > 20 && drafted.decodes * 2 < none.decodes, "copying: {drafted:?} for {none:?}");
}

#[test]
fn a_draft_that_is_dropped_leaves_no_guess_behind() {
    let model = model();
    let prompt = model.tokenize("ab ab ab ab", Special::ContentWithBos).unwrap();
    let mut context = context(&model, 256, true);
    let params = GeneratorParams { draft_lookup: 8, grammar: Some(repeated().into()), ..Default::default() };
    let mut generator = Generator::new(&mut context, SeqId::ZERO, &prompt, params).unwrap();
    let mut chosen = 0;
    // Up to the first draft, of which most lies unread in the cache then.
    while generator.draft_counts().drafted < 2 {
        assert!(matches!(generator.next(), Some(Ok(Event::Token { .. }))), "no draft in {chosen} tokens");
        chosen += 1;
    }
    drop(generator);
    assert_eq!(context.next_pos(SeqId::ZERO).unwrap().get() as usize, prompt.len() + chosen);
}

#[test]
fn where_a_batch_could_change_the_output_drafts_are_refused() {
    let model = model();
    let prompt = model.tokenize("x", Special::ContentWithBos).unwrap();
    let try_with = |flash_attn, sampling| {
        let mut context = context(&model, 64, flash_attn);
        let params = GeneratorParams { draft_lookup: 1, sampling, ..Default::default() };
        Generator::new(&mut context, SeqId::ZERO, &prompt, params).map(|_| ())
    };
    let greedy = SamplingParams::default();
    assert!(try_with(true, greedy.clone()).is_ok());
    assert!(matches!(try_with(false, greedy.clone()), Err(GenerateError::DraftNeedsFlashAttention)));
    for sampling in
        [SamplingParams { temperature: 1.0, ..greedy.clone() }, SamplingParams { repeat_penalty: 1.3, ..greedy }]
    {
        assert!(matches!(try_with(true, sampling), Err(GenerateError::DraftNeedsGreedy)));
    }
}
