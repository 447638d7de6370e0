//! The engine as the agent's source of candidates: constrained decoding over the candidate schema.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bitnet_rs::{ContextParams, Model, SamplingParams};
use cartridge::{Cartridge, Rounding};
use files::stamps::StampStore;
use grammar::Language;

use agent::source::{CandidateSource, SourceAnswer, SourceError, SourceRequest};
use grammar::schema::{Schema, SchemaOptions};
use session::{Conversation, GenerateError, GeneratorParams, Session, SessionError, SessionParams, TemplateSandbox};

/// JSON Schema of a candidate (`model_output.v1`); its grammar is what the model may say.
pub const CANDIDATE_SCHEMA: &str = include_str!("../../../gates/grammars/home-candidate.schema.json");

/// Most tokens of a candidate.
const MAX_TOKENS: usize = 160;

/// Answers by input and attempt: a deterministic model need not be asked twice.
pub type Answers = Arc<Mutex<HashMap<(String, u32), Result<SourceAnswer, SourceError>>>>;

/// A model that proposes candidates. What it says is still only a candidate.
pub struct EngineSource {
    session: Session,
    grammar: Language,
    answers: Option<Answers>,
    /// The conversation under which a cartridge is mounted; every sentence begins behind it.
    mounted: Option<Conversation>,
}

impl EngineSource {
    /// Gets a model ready.
    ///
    /// # Errors
    /// The engine's errors; [`GenerateError::NoTemplate`].
    pub fn new(model: &Model, params: &ContextParams, sandbox: &TemplateSandbox) -> Result<Self, SessionError> {
        let schema = Schema::parse(CANDIDATE_SCHEMA, &SchemaOptions::default())
            .map_err(|e| GenerateError::Template(e.to_string()))?;
        let params = SessionParams {
            context: params.clone(),
            template: None,
            sandbox: sandbox.clone(),
            known: StampStore::none(),
            verify_model: false,
        };
        let mut session = Session::open(model, params)?;
        // Refused now rather than at the first sentence.
        session.template()?;
        Ok(Self { session, grammar: schema.into(), answers: None, mounted: None })
    }

    /// Mounts a cartridge under every sentence. The context must have room for both.
    ///
    /// # Errors
    /// What a mount can end with; nothing is mounted then.
    pub fn with_cartridge(mut self, cartridge: &Cartridge) -> Result<Self, SessionError> {
        let talk = self.session.begin()?;
        self.session.mount(talk, cartridge, Rounding::Exact)?;
        self.mounted = Some(talk);
        Ok(self)
    }

    /// Shares answers with other sources of the same model.
    #[must_use]
    pub fn with_answers(self, answers: Answers) -> Self {
        Self { answers: Some(answers), ..self }
    }

    fn answer(&mut self, request: &SourceRequest<'_>) -> Result<SourceAnswer, SourceError> {
        let failed = |e: SessionError| SourceError::Failed(e.to_string());
        let talk = match self.mounted {
            Some(talk) => talk,
            None => self.session.begin().map_err(failed)?,
        };
        let params = GeneratorParams {
            // A second try must not repeat the first.
            sampling: SamplingParams {
                temperature: if request.attempt() == 0 { 0.0 } else { 0.7 },
                seed: request.attempt(),
                ..Default::default()
            },
            max_tokens: MAX_TOKENS,
            grammar: Some(self.grammar.clone()),
            ..Default::default()
        };
        let said = self.session.say(talk, request.input(), params).and_then(|answer| answer.finish(&mut |_| {}));
        // A sentence is judged by itself, whatever was said before.
        match self.mounted {
            Some(talk) => self.session.reset(talk),
            None => self.session.end(talk),
        }
        .map_err(failed)?;
        let said = said.map_err(failed)?;
        if said.complete {
            Ok(SourceAnswer::Text(said.text))
        } else {
            Err(SourceError::Incomplete { reason: format!("{:?}", said.ending), text: said.text })
        }
    }
}

impl CandidateSource for EngineSource {
    fn name(&self) -> &str {
        "engine"
    }

    fn produce(&mut self, request: &SourceRequest<'_>) -> Result<SourceAnswer, SourceError> {
        let key = (request.input().to_owned(), request.attempt());
        if let Some(known) = self.answers.as_ref().and_then(|a| a.lock().ok()?.get(&key).cloned()) {
            return known;
        }
        let answer = self.answer(request);
        if let Some(Ok(mut answers)) = self.answers.as_ref().map(|a| a.lock()) {
            answers.insert(key, answer.clone());
        }
        answer
    }
}
