//! Conversations with a model: what a command, an agent or a server stands on.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use bitnet_rs::{CancelHandle, Context, ContextParams, EffectiveParams, Model, Pos, SeqId, Special, TokenId};
use cartridge::{Cartridge, CartridgeError, Level, ModelLock, Rounding};
use files::stamps::StampStore;
use grammar::TokenTrie;

use super::{
    ChatTemplate, DraftCounts, Ending, Event, GenerateError, Generator, GeneratorParams, Message, Mount as _,
    MountError, Mounted, TemplateSandbox, Validation, fits_context, known_lock, lock_of,
};

/// How to open a [`Session`].
#[derive(Debug, Clone)]
pub struct SessionParams {
    /// The context; `n_seq_max` is how many conversations it holds at once.
    pub context: ContextParams,
    /// The chat template, where it is not the model's own.
    pub template: Option<ChatTemplate>,
    /// Where the model's own template is rendered.
    pub sandbox: TemplateSandbox,
    /// Where the hash of the weights is looked up before it is computed; see [`files::stamps`].
    pub known: StampStore,
    /// Computes the hash of the weights whatever `known` says, and corrects it.
    pub verify_model: bool,
}

/// Why a session does not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// Nothing, or nothing more, was generated.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// A cartridge was not mounted.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// Every sequence of the context belongs to a conversation.
    #[error("{n_seq_max} conversations are open, as many as the context has sequences; end one first")]
    NoFreeSequence {
        /// Sequences of the context.
        n_seq_max: u32,
    },
    /// The conversation was ended, or belongs to another session.
    #[error("the conversation is not open")]
    NotOpen,
    /// The chat template makes nothing of the messages.
    #[error("chat template ({source_name}) renders nothing")]
    NothingRendered {
        /// Where the template is from.
        source_name: String,
    },
}

impl From<bitnet_rs::Error> for SessionError {
    fn from(e: bitnet_rs::Error) -> Self {
        Self::Generate(e.into())
    }
}

/// An open conversation of a [`Session`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conversation {
    seq: SeqId,
    /// Tells it from earlier conversations on the same sequence.
    number: u64,
}

/// What a session knows of one conversation.
#[derive(Debug, Clone)]
struct Turns {
    number: u64,
    /// Where it begins: behind the mounted cartridge.
    base: Pos,
    /// The tokens that the cartridge stands for.
    mounted: Vec<TokenId>,
    messages: Vec<Message>,
    /// What was decoded behind `base`; the sequence may hold less of it, never anything else.
    decoded: Vec<TokenId>,
}

/// A model, a context and the conversations in it.
///
/// One context, so one decode at a time; a conversation is a sequence of it. What the turns of a conversation have in
/// common is decoded once, and what was mounted is never decoded.
///
/// ```no_run
/// use bitnet_rs::{ContextParams, Model, ModelParams};
/// use cartridge::{Cartridge, Rounding};
/// use files::stamps::StampStore;
/// use session::{GeneratorParams, Session, SessionParams, TemplateSandbox};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let model = Model::load("model.gguf", ModelParams::default())?;
/// let mut session = Session::open(&model, SessionParams {
///     context: ContextParams::default(),
///     template: None,
///     sandbox: TemplateSandbox::InProcess,
///     known: StampStore::of_user(),
///     verify_model: false,
/// })?;
/// let talk = session.begin()?;
/// session.mount(talk, &Cartridge::open("devices.safetensors")?, Rounding::Exact)?;
/// let said = session.say(talk, "turn on lumo", GeneratorParams::default())?.finish(&mut |piece| print!("{piece}"))?;
/// println!("\n{} tokens", said.tokens.len());
/// # Ok(())
/// # }
/// ```
pub struct Session {
    context: Context,
    template: Option<ChatTemplate>,
    sandbox: TemplateSandbox,
    known: StampStore,
    verify_model: bool,
    lock: Option<ModelLock>,
    trie: Option<TokenTrie>,
    /// By sequence.
    talks: Vec<Option<Turns>>,
    /// Conversations begun so far.
    begun: u64,
}

impl Session {
    /// Makes a context for conversations with `model`.
    ///
    /// # Errors
    /// The errors of [`Context::new`].
    pub fn open(model: &Model, params: SessionParams) -> Result<Self, SessionError> {
        let context = Context::new(model, &params.context)?;
        let talks = vec![None; context.params().n_seq_max as usize];
        let SessionParams { template, sandbox, known, verify_model, .. } = params;
        Ok(Self { context, template, sandbox, known, verify_model, lock: None, trie: None, talks, begun: 0 })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        self.context.model()
    }

    /// The context's parameters as they took effect.
    pub fn params(&self) -> &EffectiveParams {
        self.context.params()
    }

    /// Stops whatever is decoded, from any thread.
    pub fn cancel_handle(&self) -> CancelHandle {
        self.context.cancel_handle()
    }

    /// The chat template: the one that was given, or the model's.
    ///
    /// # Errors
    /// [`GenerateError::NoTemplate`], [`GenerateError::Template`].
    pub fn template(&mut self) -> Result<&ChatTemplate, SessionError> {
        let template = match self.template.take() {
            Some(template) => template,
            None => ChatTemplate::of_model(self.context.model(), &self.sandbox)?,
        };
        Ok(self.template.insert(template))
    }

    /// Begins a conversation on a free sequence.
    ///
    /// # Errors
    /// [`SessionError::NoFreeSequence`].
    pub fn begin(&mut self) -> Result<Conversation, SessionError> {
        let turns = Turns {
            number: self.begun,
            base: Pos::ZERO,
            mounted: Vec::new(),
            messages: Vec::new(),
            decoded: Vec::new(),
        };
        self.take_sequence(turns)
    }

    fn take_sequence(&mut self, turns: Turns) -> Result<Conversation, SessionError> {
        let full = SessionError::NoFreeSequence { n_seq_max: self.context.params().n_seq_max };
        let index = self.talks.iter().position(Option::is_none).ok_or(full)?;
        let conversation =
            Conversation { seq: SeqId::new(i32::try_from(index).unwrap_or(i32::MAX))?, number: self.begun };
        self.talks[index] = Some(Turns { number: self.begun, ..turns });
        self.begun += 1;
        Ok(conversation)
    }

    /// Begins another conversation with everything that this one has heard, said and mounted. The two share their cells
    /// (`llama_kv_cache_seq_cp`) and go on apart.
    ///
    /// # Errors
    /// [`SessionError::NoFreeSequence`], [`SessionError::NotOpen`].
    pub fn fork(&mut self, from: Conversation) -> Result<Conversation, SessionError> {
        let turns = self.turns(from)?.clone();
        let to = self.take_sequence(turns)?;
        let copied = match self.context.positions(from.seq)?.last() {
            Some(_) => self.context.copy(from.seq, to.seq, None),
            None => Ok(()),
        };
        if let Err(e) = copied {
            self.talks[to.seq.index()] = None;
            return Err(e.into());
        }
        Ok(to)
    }

    /// Ends a conversation and frees its cells.
    ///
    /// # Errors
    /// [`SessionError::NotOpen`].
    pub fn end(&mut self, conversation: Conversation) -> Result<(), SessionError> {
        self.turns(conversation)?;
        let end = self.context.next_pos(conversation.seq)?;
        self.context.remove(conversation.seq, Pos::ZERO..end)?;
        self.talks[conversation.seq.index()] = None;
        Ok(())
    }

    /// Takes a conversation back to where it began: behind its cartridge, with nothing said.
    ///
    /// # Errors
    /// [`SessionError::NotOpen`].
    pub fn reset(&mut self, conversation: Conversation) -> Result<(), SessionError> {
        let base = self.turns(conversation)?.base;
        let end = self.context.next_pos(conversation.seq)?;
        self.context.remove(conversation.seq, base..end)?;
        let turns = self.turns(conversation)?;
        turns.messages.clear();
        turns.decoded.clear();
        Ok(())
    }

    /// Mounts a cartridge under a conversation in which nothing was said yet, after looking at all of its content.
    ///
    /// The model's weights are hashed at most once per session, and not at all where an earlier run knew them. A
    /// mismatch is never believed of a remembered hash: it is computed anew first.
    ///
    /// # Errors
    /// [`MountError`]; nothing is mounted then.
    pub fn mount(
        &mut self,
        conversation: Conversation,
        cartridge: &Cartridge,
        rounding: Rounding,
    ) -> Result<Mounted, SessionError> {
        self.turns(conversation)?;
        let seq = conversation.seq;
        cartridge.validate(Level::Full).map_err(MountError::from)?;
        let keep_on: &mut dyn FnMut(u64, u64) -> ControlFlow<()> = &mut |_, _| ControlFlow::Continue(());
        let (lock, remembered) = match &self.lock {
            Some(lock) => (lock.clone(), false),
            None => {
                known_lock(self.context.model(), &self.known, self.verify_model, keep_on).map_err(MountError::from)?
            }
        };
        let mut lock = self.lock.insert(lock);
        let mut mounted = cartridge.mount(&mut self.context, seq, lock, rounding);
        if remembered && matches!(mounted, Err(MountError::Cartridge(CartridgeError::Lock(_)))) {
            lock = self.lock.insert(lock_of(self.context.model(), keep_on).map_err(MountError::from)?);
            mounted = cartridge.mount(&mut self.context, seq, lock, rounding);
        }
        let mounted = mounted?;
        let model = self.context.model().clone();
        let base = self.context.next_pos(seq)?;
        let turns = self.turns(conversation)?;
        turns.base = base;
        turns.mounted = cartridge.tokens().filter_map(|id| model.token(id).ok()).collect();
        Ok(mounted)
    }

    /// Adds a message that is read with the next turn, a system message for example.
    ///
    /// # Errors
    /// [`SessionError::NotOpen`].
    pub fn hear(&mut self, conversation: Conversation, message: Message) -> Result<(), SessionError> {
        self.turns(conversation)?.messages.push(message);
        Ok(())
    }

    /// What was heard and said.
    ///
    /// # Errors
    /// [`SessionError::NotOpen`].
    pub fn messages(&self, conversation: Conversation) -> Result<&[Message], SessionError> {
        Ok(&self.known_turns(conversation)?.messages)
    }

    /// How many tokens the conversation holds, those of its cartridge included.
    ///
    /// # Errors
    /// [`SessionError::NotOpen`].
    pub fn tokens_held(&self, conversation: Conversation) -> Result<usize, SessionError> {
        self.known_turns(conversation)?;
        Ok(self.context.next_pos(conversation.seq)?.get().unsigned_abs() as usize)
    }

    /// One turn: the user's message through the chat template, then the answer.
    ///
    /// What the conversation has decoded already is kept as far as the template renders the same tokens again. Refused
    /// or stopped before its first token, the turn is as if it had not been said; stopped later, what was said so far
    /// was said.
    ///
    /// # Errors
    /// [`SessionError::NothingRendered`], [`SessionError::Generate`]; the conversation can go on.
    pub fn say(
        &mut self,
        conversation: Conversation,
        text: &str,
        params: GeneratorParams,
    ) -> Result<Answer<'_>, SessionError> {
        self.say_with_progress(conversation, text, params, &mut |_, _| {})
    }

    /// As [`Session::say`]; `progress` is told how many tokens of how many are decoded before the answer begins.
    ///
    /// # Errors
    /// As [`Session::say`].
    pub fn say_with_progress(
        &mut self,
        conversation: Conversation,
        text: &str,
        params: GeneratorParams,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Answer<'_>, SessionError> {
        let mut messages = self.turns(conversation)?.messages.clone();
        messages.push(Message::new("user", text));
        let model = self.context.model().clone();
        let template = self.template()?;
        let mut tokens = template.tokens(&model, &messages, true)?;
        let source_name = template.source.clone();
        if self.turns(conversation)?.base != Pos::ZERO && tokens.first().copied() == model.bos() {
            // Behind a cartridge the text goes on; it does not begin again.
            tokens.remove(0);
        }
        if tokens.is_empty() {
            return Err(SessionError::NothingRendered { source_name });
        }
        let same = self.keep_common(conversation, &tokens)?;
        self.answer(conversation, tokens, same, Some(messages), params, progress)
    }

    /// Goes on with a text as it is, without a chat template.
    ///
    /// # Errors
    /// [`GenerateError::EmptyPrompt`], [`SessionError::Generate`].
    pub fn continue_text(
        &mut self,
        conversation: Conversation,
        text: &str,
        params: GeneratorParams,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Answer<'_>, SessionError> {
        self.turns(conversation)?;
        let model = self.context.model().clone();
        let begins = self.context.next_pos(conversation.seq)? == Pos::ZERO;
        fits_context(&model, text.len())?;
        let new = model.tokenize(text, if begins { Special::ContentWithBos } else { Special::Content })?;
        // The last token that was said may not be in the cache yet: nothing was chosen behind it.
        let held = self.tokens_behind_base(conversation)?;
        let mut tokens = self.turns(conversation)?.decoded.clone();
        let same = tokens.len().min(held);
        if new.is_empty() {
            return Err(GenerateError::EmptyPrompt.into());
        }
        tokens.extend(new);
        self.answer(conversation, tokens, same, None, params, progress)
    }

    /// Decodes `tokens` from `same` on and gets an answer ready; the first `same` are in the cache.
    fn answer(
        &mut self,
        conversation: Conversation,
        tokens: Vec<TokenId>,
        same: usize,
        messages: Option<Vec<Message>>,
        mut params: GeneratorParams,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Answer<'_>, SessionError> {
        let started = Instant::now();
        let prompt = &tokens[same..];
        if params.grammar.is_some() && params.trie.is_none() {
            if self.trie.is_none() {
                self.trie = Some(bitnet_rs::vocabulary_trie(self.context.model())?);
            }
            params.trie.clone_from(&self.trie);
        }
        let slot = self.talks.get_mut(conversation.seq.index()).and_then(Option::as_mut);
        let turns = slot.filter(|t| t.number == conversation.number).ok_or(SessionError::NotOpen)?;
        if params.draft_lookup > 0 && params.draft_history.is_empty() {
            params.draft_history = turns.mounted.iter().chain(&tokens[..same]).copied().collect();
        }
        let total = prompt.len();
        let generator = Generator::with_progress(&mut self.context, conversation.seq, prompt, params, &mut |done| {
            progress(done, total);
        })?;
        turns.decoded = tokens;
        let prefill = started.elapsed();
        Ok(Answer {
            generator,
            turns,
            messages,
            said: Said {
                text: String::new(),
                tokens: Vec::new(),
                ending: Ending::Cancelled,
                complete: false,
                validation: None,
                prompt_tokens: total,
                reused_tokens: same,
                prefill,
                decode: Duration::ZERO,
                draft: DraftCounts::default(),
            },
            started: Instant::now(),
        })
    }

    /// Drops from the cache what differs from `tokens`; returns how many of them stay. At least one is left to decode,
    /// since the answer begins with the logits behind it.
    fn keep_common(&mut self, conversation: Conversation, tokens: &[TokenId]) -> Result<usize, SessionError> {
        self.forget_undecoded(conversation)?;
        let turns = self.turns(conversation)?;
        let same = turns.decoded.iter().zip(tokens).take_while(|(a, b)| a == b).count().min(tokens.len() - 1);
        turns.decoded.truncate(same);
        let from = turns.base.forward(same)?;
        let end = self.context.next_pos(conversation.seq)?;
        self.context.remove(conversation.seq, from..end)?;
        Ok(same)
    }

    /// What was said last or was cancelled in between may not be in the cache.
    fn forget_undecoded(&mut self, conversation: Conversation) -> Result<(), SessionError> {
        let held = self.tokens_behind_base(conversation)?;
        self.turns(conversation)?.decoded.truncate(held);
        Ok(())
    }

    fn tokens_behind_base(&self, conversation: Conversation) -> Result<usize, SessionError> {
        let base = self.known_turns(conversation)?.base;
        let end = self.context.next_pos(conversation.seq)?;
        Ok(usize::try_from(end.get() - base.get()).unwrap_or(0))
    }

    fn known_turns(&self, conversation: Conversation) -> Result<&Turns, SessionError> {
        let turns = self.talks.get(conversation.seq.index()).and_then(Option::as_ref);
        turns.filter(|t| t.number == conversation.number).ok_or(SessionError::NotOpen)
    }

    fn turns(&mut self, conversation: Conversation) -> Result<&mut Turns, SessionError> {
        let turns = self.talks.get_mut(conversation.seq.index()).and_then(Option::as_mut);
        turns.filter(|t| t.number == conversation.number).ok_or(SessionError::NotOpen)
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let open = self.talks.iter().flatten().count();
        f.debug_struct("Session").field("params", self.context.params()).field("open", &open).finish_non_exhaustive()
    }
}

/// A finished answer.
#[derive(Debug, Clone)]
pub struct Said {
    /// The answer.
    pub text: String,
    /// Its tokens with their log-probabilities under the model.
    pub tokens: Vec<(TokenId, f64)>,
    /// Why it ended.
    pub ending: Ending,
    /// As [`Event::End`] says.
    pub complete: bool,
    /// As [`Event::End`] says.
    pub validation: Option<Validation>,
    /// Tokens that were decoded before the answer.
    pub prompt_tokens: usize,
    /// Tokens before those that were in the cache already, without the cartridge's.
    pub reused_tokens: usize,
    /// How long they took.
    pub prefill: Duration,
    /// How long the answer took.
    pub decode: Duration,
    /// How guesses fared.
    pub draft: DraftCounts,
}

/// An answer on its way: an iterator of [`Event`]s. Dropping it stops; what was said so far stays said.
#[derive(Debug)]
pub struct Answer<'a> {
    generator: Generator<'a>,
    turns: &'a mut Turns,
    /// The messages that it answers; `None` for plain text.
    messages: Option<Vec<Message>>,
    said: Said,
    started: Instant,
}

impl Answer<'_> {
    /// Takes the rest; `piece` sees the text as it comes.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn finish(mut self, piece: &mut dyn FnMut(&str)) -> Result<Said, SessionError> {
        for event in self.by_ref() {
            let (Event::Token { text, .. } | Event::End { text, .. }) = event?;
            piece(&text);
        }
        Ok(self.said.clone())
    }

    /// What was said so far.
    pub fn so_far(&self) -> &Said {
        &self.said
    }
}

impl Iterator for Answer<'_> {
    type Item = Result<Event, SessionError>;

    fn next(&mut self) -> Option<Self::Item> {
        let event = self.generator.next()?;
        if let Ok(event) = &event {
            match event {
                Event::Token { id, logprob, text } => {
                    self.said.tokens.push((*id, *logprob));
                    self.said.text.push_str(text);
                    self.turns.decoded.push(*id);
                }
                Event::End { ending, complete, text, validation } => {
                    (self.said.ending, self.said.complete) = (*ending, *complete);
                    self.said.validation.clone_from(validation);
                    self.said.text.push_str(text);
                }
            }
            self.said.decode = self.started.elapsed();
            self.said.draft = self.generator.draft_counts();
        }
        Some(event.map_err(SessionError::from))
    }
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        if let Some(mut messages) = self.messages.take()
            && !self.said.tokens.is_empty()
        {
            messages.push(Message::new("assistant", std::mem::take(&mut self.said.text)));
            self.turns.messages = messages;
        }
    }
}
