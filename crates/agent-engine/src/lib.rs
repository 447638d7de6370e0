//! The engine as the agent's source of candidates: constrained decoding over the candidate schema.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bitnet_rs::{Context, ContextParams, Model, SamplingParams, SeqId, vocabulary_trie};
use grammar::{Grammar, GrammarLimits, TokenTrie};

use agent::source::{CandidateSource, SourceAnswer, SourceError, SourceRequest};
use grammar::tools::{SchemaOptions, schema_to_gbnf};
use session::{ChatTemplate, Event, GenerateError, Generator, GeneratorParams, Message};

/// JSON Schema of a candidate (`model_output.v1`); its grammar is what the model may say.
pub const CANDIDATE_SCHEMA: &str = include_str!("../../../gates/grammars/home-candidate.schema.json");

/// Most tokens of a candidate.
const MAX_TOKENS: usize = 160;

/// Answers by input and attempt: a deterministic model need not be asked twice.
pub type Answers = Arc<Mutex<HashMap<(String, u32), Result<SourceAnswer, SourceError>>>>;

/// A model that proposes candidates. What it says is still only a candidate.
pub struct EngineSource {
    context: Context,
    template: ChatTemplate,
    grammar: Grammar,
    trie: TokenTrie,
    answers: Option<Answers>,
}

impl EngineSource {
    /// Gets a model ready.
    ///
    /// # Errors
    /// The engine's errors; [`GenerateError::NoTemplate`].
    pub fn new(model: &Model, params: &ContextParams) -> Result<Self, GenerateError> {
        let schema = serde_json::from_str(CANDIDATE_SCHEMA).map_err(|e| GenerateError::Template(e.to_string()))?;
        let text =
            schema_to_gbnf(&schema, &SchemaOptions::default()).map_err(|e| GenerateError::Template(e.to_string()))?;
        let grammar = Grammar::parse(&text, "root", &GrammarLimits::default()).map_err(bitnet_rs::Error::from)?;
        Ok(Self {
            context: Context::new(model, params)?,
            template: ChatTemplate::of_model(model)?,
            grammar,
            trie: vocabulary_trie(model)?,
            answers: None,
        })
    }

    /// Shares answers with other sources of the same model.
    #[must_use]
    pub fn with_answers(self, answers: Answers) -> Self {
        Self { answers: Some(answers), ..self }
    }

    fn answer(&mut self, request: &SourceRequest<'_>) -> Result<SourceAnswer, SourceError> {
        let failed = |e: GenerateError| SourceError::Failed(e.to_string());
        let model = self.context.model().clone();
        let messages = [Message::new("user", request.input())];
        let prompt = self.template.tokens(&model, &messages, true).map_err(failed)?;
        self.context.clear().map_err(|e| failed(e.into()))?;
        let params = GeneratorParams {
            // A second try must not repeat the first.
            sampling: SamplingParams {
                temperature: if request.attempt() == 0 { 0.0 } else { 0.7 },
                seed: request.attempt(),
                ..Default::default()
            },
            max_tokens: MAX_TOKENS,
            grammar: Some(self.grammar.clone()),
            trie: Some(self.trie.clone()),
            ..Default::default()
        };
        let mut text = String::new();
        for event in Generator::new(&mut self.context, SeqId::ZERO, &prompt, params).map_err(failed)? {
            match event.map_err(failed)? {
                Event::Token { text: piece, .. } => text.push_str(&piece),
                Event::End { complete: true, text: piece, .. } => text.push_str(&piece),
                Event::End { ending, .. } => {
                    return Err(SourceError::Incomplete { reason: format!("{ending:?}"), text });
                }
            }
        }
        Ok(SourceAnswer::Text(text))
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
