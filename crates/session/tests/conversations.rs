//! Conversations through the real engine. What is expected comes from the wrapper alone: a fresh context that decodes
//! the rendered messages in one piece and takes the likeliest token each time.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use bitnet_rs::{Batch, Context, ContextParams, Error, Model, ModelParams, Pos, SeqId, Special, TokenId, greedy};
use cartridge::{Cartridge, CartridgeError, Overwrite, Provenance, Rounding};
use files::stamps::StampStore;
use session::{
    ChatTemplate, Ending, Event, GenerateError, GeneratorParams, Message, MountError, Session, SessionError,
    SessionParams, TemplateSandbox, lock_of,
};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../gates/models/bitnet-harness-home.gguf");
const DEVICES: &str = "Devices:\n- pixa: camera, hallway";

fn model() -> Model {
    Model::load(MODEL, ModelParams::default()).unwrap()
}

fn params(n_seq_max: u32) -> SessionParams {
    SessionParams {
        context: ContextParams { n_ctx: 256, n_threads: 1, n_seq_max, ..Default::default() },
        template: None,
        sandbox: TemplateSandbox::InProcess,
        known: StampStore::none(),
        verify_model: false,
    }
}

fn session(n_seq_max: u32) -> Session {
    Session::open(&model(), params(n_seq_max)).unwrap()
}

fn short() -> GeneratorParams {
    GeneratorParams { max_tokens: 12, ..Default::default() }
}

/// The likeliest tokens behind `messages`, from a context of their own.
fn expected(messages: &[(&str, &str)]) -> Vec<TokenId> {
    let messages: Vec<Message> = messages.iter().map(|(role, text)| Message::new(role, *text)).collect();
    let template = ChatTemplate::of_model(&model(), &TemplateSandbox::InProcess).unwrap();
    likeliest(template.tokens(&model(), &messages, true).unwrap(), short().max_tokens)
}

fn likeliest(mut tokens: Vec<TokenId>, n: usize) -> Vec<TokenId> {
    let model = model();
    let mut context = Context::new(&model, &params(1).context).unwrap();
    let mut said = Vec::new();
    for _ in 0..n {
        let at = context.next_pos(SeqId::ZERO).unwrap();
        let logits = context.decode(&Batch::prompt(&tokens, at, SeqId::ZERO).unwrap()).unwrap();
        let id = greedy(logits.last().unwrap()).unwrap();
        if model.is_end_of_generation(id) {
            break;
        }
        said.push(id);
        tokens = vec![id];
    }
    said
}

fn ids(said: &session::Said) -> Vec<TokenId> {
    said.tokens.iter().map(|(id, _)| *id).collect()
}

#[test]
fn the_turns_of_a_conversation_are_decoded_once_and_answered_as_if_from_the_start() {
    let mut session = session(1);
    let talk = session.begin().unwrap();
    session.hear(talk, Message::new("system", DEVICES)).unwrap();
    let first = session.say(talk, "switch pixa on", short()).unwrap().finish(&mut |_| {}).unwrap();
    assert_eq!(ids(&first), expected(&[("system", DEVICES), ("user", "switch pixa on")]));
    assert_eq!(first.reused_tokens, 0);
    let held = session.tokens_held(talk).unwrap();
    let second = session.say(talk, "and off again", short()).unwrap().finish(&mut |_| {}).unwrap();
    let history =
        [("system", DEVICES), ("user", "switch pixa on"), ("assistant", &first.text), ("user", "and off again")];
    assert_eq!(ids(&second), expected(&history));
    // The first turn's prompt stayed; what the template makes of its answer may be other tokens.
    assert!(second.reused_tokens >= first.prompt_tokens && second.reused_tokens <= held, "{second:?}");
    let roles: Vec<&str> = session.messages(talk).unwrap().iter().map(|m| m.role.as_str()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user", "assistant"]);
}

#[test]
fn conversations_do_not_hear_each_other_and_a_fork_goes_its_own_way() {
    let mut session = session(3);
    let one = session.begin().unwrap();
    let two = session.begin().unwrap();
    let a = session.say(one, "switch pixa on", short()).unwrap().finish(&mut |_| {}).unwrap();
    let b = session.say(two, "close the blinds", short()).unwrap().finish(&mut |_| {}).unwrap();
    assert_eq!(ids(&a), expected(&[("user", "switch pixa on")]));
    assert_eq!(ids(&b), expected(&[("user", "close the blinds")]));
    let fork = session.fork(one).unwrap();
    assert!(matches!(session.begin(), Err(SessionError::NoFreeSequence { n_seq_max: 3 })));
    let history = [("user", "switch pixa on"), ("assistant", a.text.as_str())];
    for (talk, text) in [(fork, "thanks"), (one, "and off again")] {
        let said = session.say(talk, text, short()).unwrap().finish(&mut |_| {}).unwrap();
        assert!(said.reused_tokens > 0);
        assert_eq!(ids(&said), expected(&[&history[..], &[("user", text)]].concat()), "{text}");
    }
    session.end(two).unwrap();
    assert!(matches!(session.say(two, "hello", short()), Err(SessionError::NotOpen)));
    let again = session.begin().unwrap();
    assert_ne!(again, two);
    assert!(matches!(session.messages(two), Err(SessionError::NotOpen)));
    assert_eq!(session.tokens_held(again).unwrap(), 0);
    let b = session.say(again, "close the blinds", short()).unwrap().finish(&mut |_| {}).unwrap();
    assert_eq!(ids(&b), expected(&[("user", "close the blinds")]));
}

#[test]
fn an_answer_that_is_dropped_was_said_as_far_as_it_went() {
    let mut session = session(1);
    let talk = session.begin().unwrap();
    let mut answer = session.say(talk, "switch pixa on", short()).unwrap();
    let mut heard = String::new();
    for event in answer.by_ref().take(3) {
        if let Event::Token { text, .. } = event.unwrap() {
            heard.push_str(&text);
        }
    }
    drop(answer);
    assert_eq!(session.messages(talk).unwrap()[1], Message::new("assistant", heard.clone()));
    let next = session.say(talk, "go on", short()).unwrap().finish(&mut |_| {}).unwrap();
    assert_eq!(ids(&next), expected(&[("user", "switch pixa on"), ("assistant", &heard), ("user", "go on")]));
    // One that never began was not said.
    session.reset(talk).unwrap();
    drop(session.say(talk, "switch pixa on", short()).unwrap());
    assert!(session.messages(talk).unwrap().is_empty());
}

#[test]
fn a_cancelled_turn_leaves_the_conversation_as_it_was() {
    let mut session = session(1);
    let talk = session.begin().unwrap();
    let first = session.say(talk, "switch pixa on", short()).unwrap().finish(&mut |_| {}).unwrap();
    session.cancel_handle().cancel();
    let error = session.say(talk, "and off again", short()).unwrap_err();
    assert!(matches!(error, SessionError::Generate(GenerateError::Engine(Error::Cancelled))), "{error}");
    let history = [("user", "switch pixa on"), ("assistant", first.text.as_str()), ("user", "and off again")];
    let cancel = session.cancel_handle();
    let mut answer = session.say(talk, "and off again", short()).unwrap();
    let mut stopped = Vec::new();
    for event in answer.by_ref() {
        match event.unwrap() {
            Event::Token { id, .. } => {
                stopped.push(id);
                if stopped.len() == 2 {
                    cancel.cancel();
                }
            }
            Event::End { ending, .. } => assert_eq!(ending, Ending::Cancelled),
        }
    }
    drop(answer);
    let wanted = expected(&history);
    assert_eq!(stopped, wanted[..stopped.len()]);
    assert!((2..wanted.len()).contains(&stopped.len()), "{stopped:?}");
    assert_eq!(session.messages(talk).unwrap().len(), 4);
}

#[test]
fn a_full_context_is_said_and_a_reset_goes_back_to_the_beginning() {
    let mut session = session(1);
    let talk = session.begin().unwrap();
    let wanted = session.say(talk, "switch pixa on", short()).unwrap().finish(&mut |_| {}).unwrap();
    let long = "lamp ".repeat(400);
    let error = session.say(talk, &long, short()).unwrap_err();
    assert!(matches!(error, SessionError::Generate(GenerateError::Engine(Error::ContextFull { .. }))), "{error}");
    assert_eq!(session.messages(talk).unwrap().len(), 2);
    session.reset(talk).unwrap();
    assert_eq!(session.tokens_held(talk).unwrap(), 0);
    let said = session.say(talk, "switch pixa on", short()).unwrap().finish(&mut |_| {}).unwrap();
    assert_eq!((ids(&said), said.reused_tokens), (ids(&wanted), 0));
}

#[test]
fn plain_text_goes_on_where_it_stopped() {
    let mut session = session(1);
    let talk = session.begin().unwrap();
    let three = || GeneratorParams { max_tokens: 3, ..Default::default() };
    let quiet: &mut dyn FnMut(usize, usize) = &mut |_, _| {};
    let first = session.continue_text(talk, "switch", three(), quiet).unwrap().finish(&mut |_| {}).unwrap();
    let mut tokens = model().tokenize("switch", Special::ContentWithBos).unwrap();
    assert_eq!(ids(&first), likeliest(tokens.clone(), 3));
    assert_eq!(first.ending, Ending::MaxTokens);
    let error = session.continue_text(talk, "", three(), quiet).unwrap_err();
    assert!(matches!(error, SessionError::Generate(GenerateError::EmptyPrompt)), "{error}");
    // The last token was said and never decoded; it is now.
    let second = session.continue_text(talk, " on", three(), quiet).unwrap().finish(&mut |_| {}).unwrap();
    tokens.extend(ids(&first));
    tokens.extend(model().tokenize(" on", Special::Content).unwrap());
    assert_eq!(ids(&second), likeliest(tokens, 3));
    assert!(session.messages(talk).unwrap().is_empty());
}

/// A cartridge of the devices, made by hand.
fn devices(folder: &Path) -> (PathBuf, usize) {
    let model = model();
    let template = ChatTemplate::of_model(&model, &TemplateSandbox::InProcess).unwrap();
    let tokens = template.tokens(&model, &[Message::new("system", DEVICES)], false).unwrap();
    let mut context = Context::new(&model, &params(1).context).unwrap();
    context.decode(&Batch::prompt(&tokens, Pos::ZERO, SeqId::ZERO).unwrap()).unwrap();
    let path = folder.join("devices.safetensors");
    let lock = lock_of(&model, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let provenance = Provenance::default();
    session::capture(&path, &mut context, SeqId::ZERO, &tokens, &lock, &provenance, Overwrite::Refuse).unwrap();
    (path, tokens.len())
}

#[test]
fn behind_a_cartridge_a_conversation_is_answered_as_behind_its_text() {
    let folder = tempfile::tempdir().unwrap();
    let (path, n) = devices(folder.path());
    let mut session = session(2);
    let cartridge = Cartridge::open(path).unwrap();
    let talk = session.begin().unwrap();
    let mounted = session.mount(talk, &cartridge, Rounding::Exact).unwrap();
    assert_eq!((mounted.next_pos as usize, session.tokens_held(talk).unwrap()), (n, n));
    let fork = session.fork(talk).unwrap();
    let wanted = expected(&[("system", DEVICES), ("user", "switch pixa on")]);
    for talk in [talk, fork] {
        let said = session.say(talk, "switch pixa on", short()).unwrap().finish(&mut |_| {}).unwrap();
        assert_eq!(ids(&said), wanted);
        assert!(said.prompt_tokens < 20, "the cartridge's tokens were decoded: {said:?}");
        // Reset goes back to the cartridge, not to nothing.
        session.reset(talk).unwrap();
        assert_eq!(session.tokens_held(talk).unwrap(), n);
        let said = session.say(talk, "switch pixa on", short()).unwrap().finish(&mut |_| {}).unwrap();
        assert_eq!(ids(&said), wanted);
        let error = session.mount(talk, &cartridge, Rounding::Exact).unwrap_err();
        assert!(matches!(error, SessionError::Mount(MountError::Occupied { .. })), "{error}");
    }
}

fn entries(cache: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(cache).map_or(Vec::new(), |d| d.map(|e| e.unwrap().path()).collect())
}

#[test]
fn a_remembered_hash_saves_the_work_and_a_false_one_refuses_nothing_that_fits() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = devices(folder.path());
    let cartridge = Cartridge::open(&path).unwrap();
    let (cache, file) = (folder.path().join("cache"), folder.path().join("model.gguf"));
    std::fs::copy(MODEL, &file).unwrap();
    let mount = |verify_model: bool, cartridge: &Cartridge| {
        let model = Model::load(&file, ModelParams::default()).unwrap();
        let known = StampStore::at(&cache);
        let mut session = Session::open(&model, SessionParams { known, verify_model, ..params(1) }).unwrap();
        let talk = session.begin().unwrap();
        session.mount(talk, cartridge, Rounding::Exact)
    };
    // A file that was only just written may be written again in the same tick of the clock.
    mount(false, &cartridge).unwrap();
    assert_eq!(entries(&cache).len(), 0);
    std::thread::sleep(std::time::Duration::from_secs(4));
    mount(false, &cartridge).unwrap();
    let entry = entries(&cache).remove(0);
    let truth = std::fs::read_to_string(&entry).unwrap();
    let weights = lock_of(&model(), &mut |_, _| ControlFlow::Continue(())).unwrap().model_weights_hash;
    assert!(truth.contains(&weights));

    // Cartridges of another model: of the same shape, with other weights.
    let other = format!("sha256:{}", "ab".repeat(32));
    let stranger = folder.path().join("stranger.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(weights.len()).position(|w| w == weights.as_bytes()).unwrap();
    std::fs::write(&stranger, [&bytes[..at], other.as_bytes(), &bytes[at + weights.len()..]].concat()).unwrap();
    let stranger = Cartridge::open(&stranger).unwrap();
    let refused = |result: Result<_, SessionError>| match result.map(|_: session::Mounted| ()) {
        Err(SessionError::Mount(MountError::Cartridge(CartridgeError::Lock(differs)))) => {
            format!("{differs:?}").contains("model_weights_hash")
        }
        other => panic!("{other:?}"),
    };
    assert!(refused(mount(false, &stranger)));

    // An entry that takes the model for another one, forged by the user's own hand: it is believed of a cartridge that
    // fits what it says, which shows that nothing was hashed, and of nothing else.
    let forged = truth.replace(&weights, &other);
    std::fs::write(&entry, &forged).unwrap();
    mount(false, &stranger).unwrap();
    mount(false, &cartridge).unwrap();
    assert_eq!(std::fs::read_to_string(&entry).unwrap(), forged);
    // Who asks for it gets the truth, and so does the store.
    assert!(refused(mount(true, &stranger)));
    assert_eq!(std::fs::read_to_string(&entry).unwrap(), truth);
    assert!(refused(mount(false, &stranger)));

    // Nonsense costs one hash.
    std::fs::write(&entry, truth.replace(&weights, "sha256:xyz")).unwrap();
    mount(false, &cartridge).unwrap();
    assert_eq!(std::fs::read_to_string(&entry).unwrap(), truth);

    // Another content under the same name, size and times as far as they can be set: not what the entry speaks of.
    let times = std::fs::metadata(&file).unwrap().modified().unwrap();
    let mut content = std::fs::read(&file).unwrap();
    let last = content.len() - 40_000;
    content[last] ^= 1;
    std::fs::write(&file, content).unwrap();
    std::fs::File::options().write(true).open(&file).unwrap().set_modified(times).unwrap();
    assert!(refused(mount(false, &cartridge)));
}
