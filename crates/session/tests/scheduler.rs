//! The scheduler through the real engine. What is expected comes from a [`Session`], which decodes one request at a time,
//! or from the wrapper alone.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bitnet_rs::{Batch, Context, ContextParams, Model, ModelParams, Pos, SamplingParams, SeqId, Special, TokenId};
use cartridge::{Cartridge, Overwrite, Provenance};
use files::stamps::StampStore;
use grammar::{Grammar, GrammarLimits};
use session::scheduler::{
    Failure, Observer, Padding, Refusal, Request, Scheduler, SchedulerParams, SharedCartridge, Step, StreamEvent,
    Ticket, Usage,
};
use session::{
    ChatTemplate, Ending, Event, GeneratorParams, Message, Session, SessionParams, TemplateSandbox, lock_of,
};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../gates/models/bitnet-harness-home.gguf");
const PROMPTS: [&str; 6] = [
    "switch pixa on",
    "turn off the kitchen light",
    "what is on in the hallway?",
    "close the blinds in the living room please",
    "set the bedroom to 21 degrees",
    "Tell me which devices you know, and where they are, one after the other.",
];

fn model() -> Model {
    Model::load(MODEL, ModelParams::default()).unwrap()
}

fn context() -> ContextParams {
    ContextParams { n_ctx: 1024, n_threads: 1, ..Default::default() }
}

fn params() -> SchedulerParams {
    SchedulerParams { context: context(), parallel: 4, ..Default::default() }
}

fn start(params: SchedulerParams) -> Scheduler {
    Scheduler::start(&model(), params, None).unwrap()
}

fn chat(text: &str) -> Vec<TokenId> {
    let model = model();
    let template = ChatTemplate::of_model(&model, &TemplateSandbox::InProcess).unwrap();
    template.tokens(&model, &[Message::new("user", text)], true).unwrap()
}

fn request(text: &str, max_tokens: usize) -> Request {
    Request { max_tokens: Some(max_tokens), logprobs: Some(3), ..Request::new(chat(text)) }
}

/// What came of one request.
#[derive(Debug, Default, Clone)]
struct Heard {
    ids: BTreeMap<u32, Vec<TokenId>>,
    logprobs: BTreeMap<u32, Vec<f64>>,
    text: BTreeMap<u32, String>,
    endings: BTreeMap<u32, (Ending, bool)>,
    usage: Usage,
    failed: Option<Failure>,
}

fn hear(events: impl IntoIterator<Item = StreamEvent>) -> Heard {
    let mut heard = Heard::default();
    let mut over = false;
    for event in events {
        assert!(!over, "{event:?} behind the last event");
        match event {
            StreamEvent::Token { choice, id, text, logprobs } => {
                assert!(!heard.endings.contains_key(&choice));
                heard.ids.entry(choice).or_default().push(id);
                heard.text.entry(choice).or_default().push_str(&text);
                if let Some(l) = logprobs {
                    heard.logprobs.entry(choice).or_default().push(l.chosen);
                }
            }
            StreamEvent::End { choice, ending, complete, text } => {
                heard.text.entry(choice).or_default().push_str(&text);
                assert_eq!(heard.endings.insert(choice, (ending, complete)), None);
            }
            StreamEvent::Done { usage } => (heard.usage, over) = (usage, true),
            StreamEvent::Failed(failure) => (heard.failed, over) = (Some(failure), true),
            _ => {}
        }
    }
    assert!(over, "no last event");
    heard
}

fn submit(scheduler: &Scheduler, request: Request) -> (Ticket, Receiver<StreamEvent>) {
    scheduler.submit_to_channel(request).unwrap()
}

fn answer(scheduler: &Scheduler, request: Request) -> Heard {
    let (_ticket, events) = submit(scheduler, request);
    hear(events)
}

/// The answer of a [`Session`], alone in a fresh context.
fn alone(text: &str, params: GeneratorParams) -> session::Said {
    with_context(&context(), text, params)
}

fn with_context(context: &ContextParams, text: &str, params: GeneratorParams) -> session::Said {
    let mut session = Session::open(
        &model(),
        SessionParams {
            context: context.clone(),
            template: None,
            sandbox: TemplateSandbox::InProcess,
            known: StampStore::none(),
            verify_model: false,
        },
    )
    .unwrap();
    let talk = session.begin().unwrap();
    session.say(talk, text, params).unwrap().finish(&mut |_| {}).unwrap()
}

fn said(text: &str, max_tokens: usize) -> session::Said {
    alone(text, GeneratorParams { max_tokens, ..Default::default() })
}

fn same_tokens(heard: &Heard, said: &session::Said) {
    let ids: Vec<TokenId> = said.tokens.iter().map(|(id, _)| *id).collect();
    assert_eq!(heard.ids[&0], ids, "{:?} / {:?}", heard.text[&0], said.text);
    assert_eq!(heard.text[&0], said.text);
    assert_eq!(heard.endings[&0], (said.ending, said.complete));
}

/// Every sequence is free, and only what is kept or mounted holds cells.
fn all_free(scheduler: &Scheduler) {
    assert!(scheduler.wait_until_idle(Duration::from_secs(60)));
    let stats = scheduler.stats();
    assert_eq!((stats.running, stats.waiting), (0, 0), "{stats:?}");
    if stats.kept == 0 && stats.mounted == 0 {
        assert_eq!(stats.free_cells, stats.n_ctx, "{stats:?}");
    }
}

#[test]
fn streams_beside_each_other_say_what_each_says_alone() {
    let paddings = [Padding::Off, Padding::Three, Padding::Two, Padding::Any];
    for (padding, flash_attn) in paddings.into_iter().flat_map(|p| [(p, false), (p, true)]) {
        let context = ContextParams { flash_attn, ..context() };
        let scheduler = start(SchedulerParams { padding, prefill_budget: 7, context: context.clone(), ..params() });
        let mut largest = 0f64;
        let streams: Vec<_> = PROMPTS.iter().map(|p| submit(&scheduler, request(p, 24))).collect();
        for ((_ticket, events), prompt) in streams.into_iter().zip(PROMPTS) {
            let heard = hear(events);
            let said = with_context(&context, prompt, GeneratorParams { max_tokens: 24, ..Default::default() });
            same_tokens(&heard, &said);
            assert_eq!(heard.usage.completion_tokens, said.tokens.len());
            for (batched, (_, alone)) in heard.logprobs[&0].iter().zip(&said.tokens) {
                largest = largest.max((batched - alone).abs());
            }
        }
        println!("{padding:?}, flash attention {flash_attn}: {largest}");
        assert!(largest < if flash_attn { 2e-3 } else { 2e-2 }, "{padding:?} {flash_attn}: {largest}");
        all_free(&scheduler);
    }
}

#[test]
fn deterministic_answers_have_the_bits_of_a_session() {
    let scheduler = start(SchedulerParams { deterministic: true, ..params() });
    // Longer than a micro-batch, and by one token: the place where splitting matters.
    let long = "word ".repeat(300);
    let ubatch = scheduler.context().n_ubatch as usize;
    let mut texts: Vec<String> = PROMPTS.iter().map(|p| (*p).to_owned()).collect();
    texts.push(long);
    texts.extend((0..4).map(|n| "on ".repeat(ubatch.min(512).saturating_sub(chat("").len() + n))));
    let streams: Vec<_> = texts.iter().map(|p| submit(&scheduler, request(p, 10))).collect();
    for ((_ticket, events), text) in streams.into_iter().zip(&texts) {
        let (heard, said) = (hear(events), said(text, 10));
        same_tokens(&heard, &said);
        let alone: Vec<f64> = said.tokens.iter().map(|(_, l)| *l).collect();
        assert_eq!(heard.logprobs[&0], alone, "{text}");
        assert_eq!(heard.usage.reused_tokens, 0);
    }
    let sampling = SamplingParams { temperature: 1.2, seed: 7, top_p: 0.95, ..Default::default() };
    let drawn = answer(&scheduler, Request { sampling: sampling.clone(), ..request("tell me more", 16) });
    same_tokens(&drawn, &alone("tell me more", GeneratorParams { sampling, max_tokens: 16, ..Default::default() }));
}

/// A sink that stops the engine's thread in front of every event until it is let on.
fn held() -> (session::scheduler::Sink, mpsc::Sender<()>, Receiver<StreamEvent>) {
    let (go, wait) = mpsc::channel::<()>();
    let (send, events) = mpsc::channel();
    let sink = Box::new(move |event| {
        send.send(event).is_ok() && {
            // Without a hand on the other side it runs on.
            let _ = wait.recv();
            true
        }
    });
    (sink, go, events)
}

#[test]
fn whoever_leaves_frees_the_sequence_in_the_queue_in_the_prompt_and_in_the_answer() {
    let scheduler = start(SchedulerParams { parallel: 1, queue: 3, prefill_budget: 4, ..params() });
    // In the answer.
    let (sink, go, events) = held();
    let first = scheduler.submit(request("switch pixa on", 200), sink).unwrap();
    assert!(matches!(events.recv().unwrap(), StreamEvent::Begun { .. }));
    go.send(()).unwrap();
    assert!(matches!(events.recv().unwrap(), StreamEvent::Token { .. }));
    // In the queue, behind it.
    let (second, queued) = submit(&scheduler, request("close the blinds", 5));
    assert_eq!(scheduler.stats().waiting, 1);
    drop(second);
    assert_eq!(scheduler.stats().waiting, 0);
    assert!(queued.try_iter().next().is_none(), "it never began");
    first.cancel();
    drop(go);
    let rest: Vec<StreamEvent> = events.iter().collect();
    assert!(rest.iter().all(|e| !matches!(e, StreamEvent::Token { .. })), "{rest:?}");
    all_free(&scheduler);
    assert_eq!(scheduler.stats().kept, 0);

    // In the prompt: beside nobody it is decoded in pieces as large as a micro-batch, so it is stopped before its first.
    let long = request(&"word ".repeat(150), 5);
    let (sink, go, events) = held();
    let third = scheduler.submit(long, sink).unwrap();
    assert!(matches!(events.recv().unwrap(), StreamEvent::Begun { .. }));
    third.cancel();
    drop(go);
    assert!(events.iter().all(|e| !matches!(e, StreamEvent::Token { .. } | StreamEvent::End { .. })));
    all_free(&scheduler);
    let stats = scheduler.stats();
    assert_eq!((stats.kept, stats.free_cells), (0, stats.n_ctx));
    // And all is well afterwards.
    same_tokens(&answer(&scheduler, request("switch pixa on", 12)), &said("switch pixa on", 12));
}

#[test]
fn a_client_that_does_not_listen_any_more_is_gone() {
    let scheduler = start(params());
    let (_ticket, events) = submit(&scheduler, request("switch pixa on", 400));
    drop(events);
    all_free(&scheduler);
    assert_eq!(scheduler.stats().kept, 0);
}

#[test]
fn the_queue_has_an_end_and_a_stopped_scheduler_takes_nothing() {
    let scheduler = start(SchedulerParams { parallel: 1, queue: 2, ..params() });
    let (sink, go, events) = held();
    let _first = scheduler.submit(request("switch pixa on", 30), sink).unwrap();
    events.recv().unwrap();
    let waiting: Vec<_> = (0..2).map(|_| submit(&scheduler, request("close the blinds", 3))).collect();
    let refused = scheduler.submit_to_channel(request("close the blinds", 3)).unwrap_err();
    assert!(matches!(refused, Refusal::QueueFull { waiting: 2 }), "{refused}");
    scheduler.stop_taking();
    assert!(matches!(scheduler.submit_to_channel(request("x", 3)), Err(Refusal::Stopping)));
    drop(go);
    for (_ticket, events) in waiting {
        // Those that were taken are answered.
        same_tokens(&hear(events), &said("close the blinds", 3));
    }
    all_free(&scheduler);
}

#[test]
fn a_deadline_ends_the_waiting_and_the_answer() {
    let scheduler = start(SchedulerParams { parallel: 1, ..params() });
    let past = Some(Instant::now());
    let heard = answer(&scheduler, Request { deadline: past, ..request("switch pixa on", 5) });
    assert_eq!(heard.failed, Some(Failure::Deadline));
    // One whose deadline passes while the engine's thread is held behind its first token.
    let (sink, go, events) = held();
    let deadline = Instant::now() + Duration::from_secs(2);
    let _ticket =
        scheduler.submit(Request { deadline: Some(deadline), ..request("switch pixa on", 300) }, sink).unwrap();
    let mut all = vec![events.recv().unwrap()];
    go.send(()).unwrap();
    all.push(events.recv().unwrap());
    assert!(matches!(all[1], StreamEvent::Token { .. }), "{all:?}");
    while Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(go);
    all.extend(events.iter());
    let heard = hear(all);
    assert_eq!(heard.endings[&0], (Ending::TimeLimit, false));
    all_free(&scheduler);
}

#[test]
fn refusals_name_what_is_wrong_and_keep_nothing() {
    let scheduler = start(params());
    let refused = |request: Request| scheduler.submit_to_channel(request).unwrap_err();
    assert!(matches!(refused(Request::new(Vec::new())), Refusal::EmptyPrompt));
    assert!(matches!(
        refused(Request { choices: 5, ..request("x", 1) }),
        Refusal::TooManyChoices { asked: 5, limit: 4 }
    ));
    assert!(matches!(refused(Request { choices: 0, ..request("x", 1) }), Refusal::TooManyChoices { .. }));
    let sampling = SamplingParams { temperature: -1.0, ..Default::default() };
    assert!(matches!(refused(Request { sampling, ..request("x", 1) }), Refusal::Engine(_)));
    let token = chat("x")[0];
    for length in [1022, 1023, 1024, 4000] {
        let r = Request { prompt: vec![token; length], ..request("x", 1) };
        assert!(matches!(refused(r), Refusal::TooLong { .. }), "{length}");
    }
    let longest = answer(&scheduler, Request { prompt: vec![token; 1020], ..request("x", 500) });
    assert_eq!((longest.ids[&0].len(), longest.endings[&0].0), (1, Ending::MaxTokens));
    all_free(&scheduler);
}

#[test]
fn several_answers_to_one_prompt_are_those_of_their_seeds() {
    let scheduler = start(params());
    let sampling = SamplingParams { temperature: 1.5, seed: 11, ..Default::default() };
    let heard = answer(&scheduler, Request { choices: 3, sampling: sampling.clone(), ..request("tell me more", 12) });
    assert_eq!(heard.ids.len(), 3);
    for n in 0..3u32 {
        let sampling = SamplingParams { seed: 11 + n, ..sampling.clone() };
        let alone = alone("tell me more", GeneratorParams { sampling, max_tokens: 12, ..Default::default() });
        let ids: Vec<TokenId> = alone.tokens.iter().map(|(id, _)| *id).collect();
        assert_eq!(heard.ids[&n], ids, "answer {n}");
    }
    assert_eq!(heard.usage.completion_tokens, heard.ids.values().map(Vec::len).sum::<usize>());
    all_free(&scheduler);
}

#[test]
fn stop_texts_and_grammars_hold_as_they_do_alone() {
    let scheduler = start(params());
    let text = said("switch pixa on", 24).text;
    let stop: String = text.chars().skip(text.chars().count() / 2).take(3).collect();
    let params = GeneratorParams { max_tokens: 24, stop: vec![stop.clone()], ..Default::default() };
    let heard = answer(&scheduler, Request { stop: vec![stop.clone()], ..request("switch pixa on", 24) });
    same_tokens(&heard, &alone("switch pixa on", params));
    assert_eq!(heard.endings[&0].0, Ending::Stop);
    assert!(!heard.text[&0].contains(&stop));
    let grammar = Grammar::parse("root ::= \"{\" [a-z]{1,4} \"}\"", "root", &GrammarLimits::default()).unwrap();
    let heard = answer(&scheduler, Request { grammar: Some(grammar.clone().into()), ..request("switch pixa on", 24) });
    assert!(grammar.matches(heard.text[&0].as_bytes()), "{:?}", heard.text);
    assert_eq!(heard.endings[&0], (Ending::GrammarComplete, true));
    let cut = answer(&scheduler, Request { grammar: Some(grammar.into()), ..request("switch pixa on", 1) });
    assert_eq!(cut.endings[&0], (Ending::MaxTokens, false));
}

#[test]
fn a_conversation_goes_on_from_what_was_decoded_and_only_its_owner_s() {
    let scheduler = start(params());
    let model = model();
    let template = ChatTemplate::of_model(&model, &TemplateSandbox::InProcess).unwrap();
    let mut messages =
        vec![Message::new("system", "Devices:\n- pixa: camera, hallway"), Message::new("user", "switch pixa on")];
    let turn = |messages: &[Message], owner| {
        let prompt = template.tokens(&model, messages, true).unwrap();
        answer(&scheduler, Request { owner, ..Request { prompt, ..request("", 16) } })
    };
    let first = turn(&messages, 1);
    assert_eq!(first.usage.reused_tokens, 0);
    messages.push(Message::new("assistant", first.text[&0].clone()));
    messages.push(Message::new("user", "and off again"));
    let other = turn(&messages, 2);
    assert_eq!(other.usage.reused_tokens, 0, "another owner's prompt is not shared");
    let second = turn(&messages, 1);
    assert!(second.usage.reused_tokens >= first.usage.prompt_tokens - 1, "{:?}", second.usage);
    assert_eq!(second.ids, other.ids, "reuse does not change the answer");
    all_free(&scheduler);
}

/// Counts cartridges that were found mounted, and those that were not.
#[derive(Default)]
struct Counts {
    hits: AtomicUsize,
    misses: AtomicUsize,
    steps: Mutex<Vec<Step>>,
}

impl Observer for Counts {
    fn step(&self, step: &Step) {
        self.steps.lock().unwrap().push(*step);
    }

    fn cartridge(&self, mounted_already: bool) {
        let counter = if mounted_already { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::SeqCst);
    }
}

fn capture(folder: &std::path::Path, name: &str, text: &str) -> Arc<SharedCartridge> {
    let model = model();
    let lock = lock_of(&model, &mut |_, _| std::ops::ControlFlow::Continue(())).unwrap();
    let mut context = Context::new(&model, &context()).unwrap();
    let tokens = model.tokenize(text, Special::ContentWithBos).unwrap();
    context.decode(&Batch::prompt(&tokens, Pos::ZERO, SeqId::ZERO).unwrap()).unwrap();
    let path = folder.join(name);
    session::capture(&path, &mut context, SeqId::ZERO, &tokens, &lock, &Provenance::default(), Overwrite::Refuse)
        .unwrap();
    Arc::new(SharedCartridge { cartridge: Cartridge::open(&path).unwrap(), lock })
}

#[test]
fn users_of_a_cartridge_share_its_cells_and_answer_as_behind_it_alone() {
    let folder = tempfile::tempdir().unwrap();
    let devices = capture(folder.path(), "a", &"Devices: pixa is a camera in the hallway. ".repeat(8));
    let rooms = capture(folder.path(), "b", "Rooms: kitchen, hallway, bedroom.");
    let counts = Arc::new(Counts::default());
    let observer: Arc<dyn Observer> = Arc::<Counts>::clone(&counts);
    let scheduler = Scheduler::start(&model(), params(), Some(observer)).unwrap();
    for c in [&devices, &rooms] {
        scheduler.check_cartridge(&c.cartridge, &c.lock).unwrap();
    }
    let expected = |c: &SharedCartridge, text: &str| {
        let mut session = Session::open(
            &model(),
            SessionParams {
                context: context(),
                template: None,
                sandbox: TemplateSandbox::InProcess,
                known: StampStore::none(),
                verify_model: false,
            },
        )
        .unwrap();
        let talk = session.begin().unwrap();
        session.mount(talk, &c.cartridge, cartridge::Rounding::Exact).unwrap();
        let params = GeneratorParams { max_tokens: 16, ..Default::default() };
        session.say(talk, text, params).unwrap().finish(&mut |_| {}).unwrap()
    };
    let behind = |c: &Arc<SharedCartridge>, text: &str| {
        let mut r = Request { cartridge: Some(Arc::clone(c)), ..request(text, 16) };
        // Behind a cartridge the text goes on.
        r.prompt.remove(0);
        r
    };
    let order = [(&devices, 0), (&devices, 1), (&rooms, 2), (&devices, 3), (&rooms, 4), (&devices, 5)];
    let streams: Vec<_> = order.iter().map(|(c, p)| submit(&scheduler, behind(c, PROMPTS[*p]))).collect();
    for ((_ticket, events), (c, p)) in streams.into_iter().zip(order) {
        let heard = hear(events);
        same_tokens(&heard, &expected(c, PROMPTS[p]));
        assert_eq!(heard.usage.cartridge_tokens, c.cartridge.fields().n_tokens as usize);
    }
    let count = |n: &AtomicUsize| n.load(Ordering::SeqCst);
    assert_eq!((count(&counts.misses), count(&counts.hits)), (2, 4));
    assert_eq!(scheduler.stats().mounted, 2);
    all_free(&scheduler);

    // Alone and from an empty cache, with the very bits.
    let alone = start(SchedulerParams { deterministic: true, ..params() });
    let heard = answer(&alone, behind(&devices, PROMPTS[0]));
    let said = expected(&devices, PROMPTS[0]);
    same_tokens(&heard, &said);
    assert_eq!(heard.logprobs[&0], said.tokens.iter().map(|(_, l)| *l).collect::<Vec<_>>());
}

#[test]
fn more_cartridges_than_fit_take_turns() {
    let folder = tempfile::tempdir().unwrap();
    let text = |n: usize| format!("Room {n}: lamps. ").repeat(20);
    let all: Vec<_> = (0..5).map(|n| capture(folder.path(), &n.to_string(), &text(n))).collect();
    let scheduler = start(SchedulerParams { mounts: 2, parallel: 3, ..params() });
    let streams: Vec<_> = (0..15)
        .map(|n| {
            let cartridge = Some(Arc::clone(&all[n % 5]));
            submit(&scheduler, Request { cartridge, owner: n as u64 % 3, ..request(PROMPTS[n % 6], 6) })
        })
        .collect();
    for (_ticket, events) in streams {
        let heard = hear(events);
        assert_eq!(heard.failed, None);
        assert!(!heard.ids[&0].is_empty());
    }
    assert!(scheduler.stats().mounted <= 2);
    all_free(&scheduler);
}

#[test]
fn a_long_prompt_goes_in_beside_answers_in_pieces_of_the_budget() {
    let counts = Arc::new(Counts::default());
    let observer: Arc<dyn Observer> = Arc::<Counts>::clone(&counts);
    let scheduler =
        Scheduler::start(&model(), SchedulerParams { prefill_budget: 16, ..params() }, Some(observer)).unwrap();
    let (sink, go, events) = held();
    let _first = scheduler.submit(request("switch pixa on", 60), sink).unwrap();
    events.recv().unwrap();
    go.send(()).unwrap();
    events.recv().unwrap();
    let (_second, long) = submit(&scheduler, request(&"word ".repeat(150), 4));
    drop(go);
    assert_eq!(hear(long).failed, None);
    drop(events);
    all_free(&scheduler);
    let steps = counts.steps.lock().unwrap();
    let beside: Vec<&Step> = steps.iter().filter(|s| s.decode_rows > 0 && s.prefill_rows > 0).collect();
    assert!(!beside.is_empty());
    assert!(beside.iter().all(|s| s.prefill_rows <= 16), "{beside:?}");
    for s in steps.iter() {
        let rows = s.decode_rows + s.prefill_rows;
        assert_eq!(s.padding_rows, Padding::Three.rows(rows), "{s:?}");
    }
}

#[test]
fn everything_at_once_ends_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let cartridges =
        [capture(folder.path(), "a", "Devices: pixa."), capture(folder.path(), "b", &"Rooms. ".repeat(40))];
    let scheduler = start(SchedulerParams { queue: 1000, prefill_budget: 5, ..params() });
    let mut streams = Vec::new();
    for n in 0..60usize {
        let prompt = PROMPTS[n % 6].repeat(1 + n % 7);
        let r = Request {
            cartridge: (n % 3 > 0).then(|| Arc::clone(&cartridges[n % 2])),
            owner: (n % 4) as u64,
            choices: 1 + u32::from(n % 5 == 0) * (n as u32 % 3),
            sampling: SamplingParams { temperature: (n % 2) as f32, seed: n as u32, ..Default::default() },
            ..request(&prompt, 1 + n % 30)
        };
        let (ticket, events) = submit(&scheduler, r);
        // A fifth leaves at once, another fifth later on.
        if n % 5 != 1 {
            streams.push((n, ticket, events));
        }
    }
    for (n, ticket, events) in streams {
        if n % 5 == 2 {
            let _ = events.recv();
            drop((ticket, events));
            continue;
        }
        let heard = hear(events);
        assert_eq!(heard.failed, None, "{n}");
        assert!(heard.endings.len() == heard.ids.len().max(1), "{n}: {heard:?}");
    }
    all_free(&scheduler);
}

#[test]
fn a_session_s_events_and_the_scheduler_s_are_the_same_texts() {
    let scheduler = start(params());
    let heard = answer(&scheduler, request("switch pixa on", 24));
    let model = model();
    let mut context = Context::new(&model, &context()).unwrap();
    let prompt = chat("switch pixa on");
    let params = GeneratorParams { max_tokens: 24, ..Default::default() };
    let mut text = String::new();
    for event in session::Generator::new(&mut context, SeqId::ZERO, &prompt, params).unwrap() {
        let (Event::Token { text: piece, .. } | Event::End { text: piece, .. }) = event.unwrap();
        text.push_str(&piece);
    }
    assert_eq!(heard.text[&0], text);
}
