//! The generator: an iterator of events over a context that it borrows.

use bitnet_rs::grammar::{Grammar, TokenTrie};
use bitnet_rs::{Batch, Context, Error, SamplingParams, SeqId, TextStream, TokenId};

use super::{GenerateError, TokenSelector};

/// How to generate.
#[derive(Clone, Debug, Default)]
pub struct GeneratorParams {
    /// How to choose tokens.
    pub sampling: SamplingParams,
    /// Most tokens; 0 means as many as the context holds.
    pub max_tokens: usize,
    /// Texts that end the output; they are not part of it.
    pub stop: Vec<String>,
    /// The output is a sentence of this grammar, or incomplete.
    pub grammar: Option<Grammar>,
    /// The model's token tree, if the caller keeps one; built otherwise when a grammar is given.
    pub trie: Option<TokenTrie>,
}

/// Why an output ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The model ended it. With a grammar: in an accepting state.
    EndOfGeneration,
    /// The grammar is complete and nothing can follow.
    GrammarComplete,
    /// A stop text came up.
    Stop,
    /// The token limit. With a grammar the output is not a sentence of it unless its state was accepting.
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// A cancel handle was used.
    Cancelled,
}

/// What happens while generating.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// One token.
    Token {
        /// Its id.
        id: TokenId,
        /// Its probability's logarithm under the model, before masks and samplers.
        logprob: f64,
        /// The text that it completes; may be empty in the middle of a character.
        text: String,
    },
    /// The end; the last event.
    End {
        /// Why.
        ending: Ending,
        /// With a grammar: is the output one of its sentences? Only then is it a tool call. Without: `true`
        /// unless it was cut.
        complete: bool,
        /// Text that was held back because a stop text might have begun.
        text: String,
    },
}

/// Generates one output. Dropping it stops.
pub struct Generator<'a> {
    context: &'a mut Context,
    seq: SeqId,
    selector: TokenSelector,
    max_tokens: usize,
    stop: Vec<String>,
    produced: usize,
    stream: TextStream,
    /// Text not yet given out, since a stop text may have begun in it.
    held: String,
    /// How it ends after the last token.
    pending: Option<Ending>,
    done: bool,
}

impl<'a> Generator<'a> {
    /// Decodes `prompt` behind what `seq` holds and gets ready.
    ///
    /// # Errors
    /// [`GenerateError::EmptyPrompt`], and the engine's.
    pub fn new(
        context: &'a mut Context,
        seq: SeqId,
        prompt: &[TokenId],
        params: GeneratorParams,
    ) -> Result<Self, GenerateError> {
        if prompt.is_empty() {
            return Err(GenerateError::EmptyPrompt);
        }
        let selector = TokenSelector::new(context.model(), &params.sampling, params.grammar.as_ref(), params.trie)?;
        let first = context.next_pos(seq)?;
        context.decode(&Batch::prompt(prompt, first, seq)?)?;
        Ok(Self {
            context,
            seq,
            selector,
            max_tokens: if params.max_tokens == 0 { usize::MAX } else { params.max_tokens },
            stop: params.stop.into_iter().filter(|s| !s.is_empty()).collect(),
            produced: 0,
            stream: TextStream::new(),
            held: String::new(),
            pending: None,
            done: false,
        })
    }

    fn end(&mut self, ending: Ending) -> Event {
        self.done = true;
        let complete = self.selector.is_sentence().unwrap_or(matches!(ending, Ending::EndOfGeneration | Ending::Stop));
        let mut text = std::mem::take(&mut self.held);
        if ending == Ending::Stop {
            text.clear();
        } else {
            text.push_str(self.stream.finish());
        }
        Event::End { ending, complete, text }
    }

    fn step(&mut self) -> Result<Event, GenerateError> {
        if self.produced >= self.max_tokens {
            return Ok(self.end(Ending::MaxTokens));
        }
        let logits = self.context.logits()?.last()?;
        let selected = self.selector.select(logits)?;
        let (id, logprob) = (selected.id, log_probability(logits, selected.id));
        if selected.end {
            return Ok(self.end(Ending::EndOfGeneration));
        }
        self.produced += 1;
        let bytes = self.context.model().token_bytes(id, !self.selector.is_constrained())?;
        let piece = self.stream.push(&bytes);
        self.held.push_str(&piece);
        if let Some(at) = self.stop.iter().filter_map(|s| self.held.find(s.as_str())).min() {
            // What came before the stop text is still output.
            let text = self.held[..at].to_owned();
            self.held.clear();
            self.pending = Some(Ending::Stop);
            return Ok(Event::Token { id, logprob, text });
        }
        let keep = self.stop.iter().map(|s| overlap(&self.held, s)).max().unwrap_or(0);
        let text: String = self.held.drain(..self.held.len() - keep).collect();
        // Behind a complete sentence, or the last token, nothing is sampled: its logits are not needed.
        if !self.selector.is_complete() && self.produced < self.max_tokens {
            let next = self.context.next_pos(self.seq)?;
            match self.context.decode(&Batch::prompt(&[id], next, self.seq)?).map(|_| ()) {
                // The token itself was chosen and counts.
                Err(Error::ContextFull { .. } | Error::PositionPastTraining { .. }) => {
                    self.pending = Some(Ending::ContextFull);
                }
                Err(Error::Cancelled) => self.pending = Some(Ending::Cancelled),
                other => other?,
            }
        }
        Ok(Event::Token { id, logprob, text })
    }
}

/// How many bytes at the end of `text` may begin `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    (1..stop.len().min(text.len() + 1))
        .rev()
        .find(|&n| text.is_char_boundary(text.len() - n) && stop.is_char_boundary(n) && text.ends_with(&stop[..n]))
        .unwrap_or(0)
}

/// ln p of a token under the softmax of `logits`.
fn log_probability(logits: &[f32], id: TokenId) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
    logits.get(id.index()).map_or(f64::NEG_INFINITY, |&x| f64::from(x - max) - sum.ln())
}

impl Iterator for Generator<'_> {
    type Item = Result<Event, GenerateError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        if let Some(ending) = self.pending.take() {
            return Some(Ok(self.end(ending)));
        }
        if self.selector.is_complete() && self.produced > 0 {
            return Some(Ok(self.end(Ending::GrammarComplete)));
        }
        let event = self.step();
        self.done |= event.is_err();
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlap_holds_back_what_may_become_a_stop_text() {
        assert_eq!(overlap("abc<|e", "<|end|>"), 3);
        assert_eq!(overlap("abc", "<|end|>"), 0);
        assert_eq!(overlap("灯灯", "灯火"), 3);
        assert_eq!(overlap("aa", "aaa"), 2);
        assert_eq!(overlap("", "x"), 0);
    }

    #[test]
    fn log_probability_of_two_equal_logits_is_ln_half() {
        let id = TokenId::new(1, 2).unwrap();
        assert!((log_probability(&[3.0, 3.0], id) - 0.5f64.ln()).abs() < 1e-12);
    }
}
