//! One answer on its way: choosing, text, stop texts, log-probabilities.

use std::time::Instant;

use bitnet_rs::{Error, Model, TextStream, TokenId};

use super::types::{StreamEvent, TokenLogprobs};
use crate::generator::{log_probability, overlap};
use crate::{Ending, TokenSelector};

/// What chooses an answer's tokens.
pub(crate) struct Selection {
    pub(crate) now: TokenSelector,
    /// What chooses them from the start on if the answer's first byte is this one.
    pub(crate) later: Option<(u8, TokenSelector)>,
}

pub(crate) struct Output {
    pub(crate) choice: u32,
    /// Index of the sequence that it is decoded in.
    pub(crate) slot: usize,
    selector: TokenSelector,
    /// As in [`Selection`], until the first byte is known.
    later: Option<(u8, TokenSelector)>,
    /// The answer began as a grammar asks for, and is bound by it.
    bound: bool,
    stream: TextStream,
    held: String,
    pub(crate) produced: usize,
    /// The token that was chosen and is decoded next.
    pub(crate) pending: Option<TokenId>,
    pub(crate) ended: bool,
    /// When its last token came.
    pub(crate) last: Option<Instant>,
}

impl Output {
    pub(crate) fn new(choice: u32, slot: usize, selection: Selection) -> Self {
        Self {
            choice,
            slot,
            selector: selection.now,
            later: selection.later,
            bound: false,
            stream: TextStream::new(),
            held: String::new(),
            produced: 0,
            pending: None,
            ended: false,
            last: None,
        }
    }

    /// Ends the answer.
    pub(crate) fn end(&mut self, ending: Ending) -> StreamEvent {
        (self.ended, self.pending) = (true, None);
        let complete = self.selector.is_answer().unwrap_or(matches!(ending, Ending::EndOfGeneration | Ending::Stop));
        let mut text = std::mem::take(&mut self.held);
        if ending == Ending::Stop {
            text.clear();
        } else {
            text.push_str(self.stream.finish());
        }
        StreamEvent::End { choice: self.choice, ending, complete, text }
    }

    /// Chooses the next token; one or two events. What a [`Generator`](crate::Generator) does, step by step.
    pub(crate) fn choose(
        &mut self,
        model: &Model,
        logits: &[f32],
        stop: &[String],
        max_tokens: usize,
        logprobs: Option<usize>,
    ) -> Result<Vec<StreamEvent>, Error> {
        self.pending = None;
        let mut selected = self.selector.select(logits)?;
        if let Some((first, bound)) = self.later.take()
            && !selected.end
        {
            match model.token_bytes(selected.id, true)?.first() {
                // The grammar chooses this token too: what follows its first byte may not be a beginning of a sentence.
                Some(byte) if *byte == first => {
                    (self.selector, self.bound) = (bound, true);
                    selected = self.selector.select(logits)?;
                }
                Some(_) => {}
                None => self.later = Some((first, bound)),
            }
        }
        if selected.end {
            return Ok(vec![self.end(Ending::EndOfGeneration)]);
        }
        let id = selected.id;
        self.produced += 1;
        let logprobs = logprobs.map(|n| logprobs_of(model, logits, id, n)).transpose()?;
        let bytes = model.token_bytes(id, !self.selector.is_constrained())?;
        let piece = self.stream.push(&bytes);
        self.held.push_str(&piece);
        let choice = self.choice;
        let stop: &[String] = if self.bound { &[] } else { stop };
        if let Some(at) = stop.iter().filter_map(|s| self.held.find(s.as_str())).min() {
            let text = self.held[..at].to_owned();
            self.held.clear();
            return Ok(vec![StreamEvent::Token { choice, id, text, logprobs }, self.end(Ending::Stop)]);
        }
        let keep = stop.iter().map(|s| overlap(&self.held, s)).max().unwrap_or(0);
        let text: String = self.held.drain(..self.held.len() - keep).collect();
        let token = StreamEvent::Token { choice, id, text, logprobs };
        if self.selector.is_complete() {
            return Ok(vec![token, self.end(Ending::GrammarComplete)]);
        }
        if self.produced >= max_tokens {
            return Ok(vec![token, self.end(Ending::MaxTokens)]);
        }
        self.pending = Some(id);
        Ok(vec![token])
    }
}

fn logprobs_of(model: &Model, logits: &[f32], id: TokenId, n: usize) -> Result<TokenLogprobs, Error> {
    let chosen = log_probability(logits, id);
    let mut best: Vec<usize> = Vec::new();
    if n > 0 {
        best = (0..logits.len()).collect();
        // The larger logit first, the lower id among equals.
        let order = |a: &usize, b: &usize| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b));
        let n = n.min(best.len());
        if n < best.len() {
            best.select_nth_unstable_by(n - 1, order);
            best.truncate(n);
        }
        best.sort_unstable_by(order);
    }
    let shift = chosen - logits.get(id.index()).map_or(0.0, |&x| f64::from(x));
    let top = best.into_iter().map(|i| {
        let token = model.token(i32::try_from(i).unwrap_or(i32::MAX))?;
        Ok((token, f64::from(logits[i]) + shift))
    });
    Ok(TokenLogprobs { chosen, top: top.collect::<Result<_, Error>>()? })
}
