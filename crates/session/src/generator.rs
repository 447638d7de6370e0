//! The generator: an iterator of events over a context that it borrows.

use std::collections::VecDeque;

use bitnet_rs::{Batch, Context, Error, Pos, SamplingParams, SeqId, TextStream, TokenId};
use grammar::schema::{Exactness, MAX_TRIES, Verdict};
use grammar::{Language, TokenMask, TokenTrie};

use super::draft::{DraftCounts, Drafts};
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
    /// The output is a sentence of this grammar, or a value of this schema, or incomplete.
    ///
    /// A schema that its grammar does not decide alone is answered by generating and validating: nothing is given out
    /// before the whole answer is valid or [`MAX_TRIES`] answers were not. A second try is sampled at a temperature of
    /// at least 0.7, with the next seed.
    pub grammar: Option<Language>,
    /// The model's token tree, if the caller keeps one; built otherwise when a grammar is given.
    pub trie: Option<TokenTrie>,
    /// Most tokens guessed ahead by prompt lookup and verified in one batch; 0 guesses none. The output is the same
    /// tokens; log-probabilities differ in the last digits. Needs flash attention, without which the cache depends on
    /// how a batch is split, and greedy choice: temperature 0 and no penalty.
    pub draft_lookup: usize,
    /// Tokens before the prompt that guesses may be copied from, e.g. those of a mounted cartridge.
    pub draft_history: Vec<TokenId>,
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
    /// The time limit of a request.
    TimeLimit,
}

/// The name that it has in JSON.
impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::EndOfGeneration => "end_of_generation",
            Self::GrammarComplete => "grammar_complete",
            Self::Stop => "stop",
            Self::MaxTokens => "max_tokens",
            Self::ContextFull => "context_full",
            Self::Cancelled => "cancelled",
            Self::TimeLimit => "time_limit",
        })
    }
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
        /// With a schema: how the finished output was judged.
        validation: Option<Validation>,
    },
}

/// How a finished output was judged by its schema.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Validation {
    /// Outputs that were generated, this one included; one where the schema's grammar is exact.
    pub tries: usize,
    /// What this one is.
    pub verdict: Verdict,
}

/// Generates one output. Dropping it stops.
pub struct Generator<'a> {
    context: &'a mut Context,
    seq: SeqId,
    selector: TokenSelector,
    max_tokens: usize,
    stop: Vec<String>,
    produced: usize,
    /// Which token of the last batch the next one is chosen behind.
    row: usize,
    drafts: Drafts,
    stream: TextStream,
    /// Text not yet given out, since a stop text may have begun in it.
    held: String,
    /// How it ends after the last token.
    pending: Option<Ending>,
    done: bool,
    /// Outputs begun.
    tries: usize,
    /// How many may be.
    max_tries: usize,
    /// Of an output that is validated before it is given out.
    ready: VecDeque<Result<Event, GenerateError>>,
    sampling: SamplingParams,
    /// The last token before the output, and the position behind it.
    behind: (TokenId, Pos),
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
        Self::with_progress(context, seq, prompt, params, &mut |_| {})
    }

    /// As [`Generator::new`]; `progress` is told how many tokens of the prompt are decoded.
    ///
    /// # Errors
    /// As [`Generator::new`].
    pub fn with_progress(
        context: &'a mut Context,
        seq: SeqId,
        prompt: &[TokenId],
        params: GeneratorParams,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Self, GenerateError> {
        if prompt.is_empty() {
            return Err(GenerateError::EmptyPrompt);
        }
        if params.draft_lookup > 0 {
            if !context.params().flash_attn {
                return Err(GenerateError::DraftNeedsFlashAttention);
            }
            if params.sampling.temperature != 0.0 || params.sampling.repeat_penalty != 1.0 {
                return Err(GenerateError::DraftNeedsGreedy);
            }
        }
        let selector = TokenSelector::new(context.model(), &params.sampling, params.grammar.as_ref(), params.trie)?;
        let schema = params.grammar.as_ref().and_then(Language::schema);
        let by_validation = schema.is_some_and(|s| *s.exactness() != Exactness::ByGrammar);
        let first = context.next_pos(seq)?;
        context.decode_with_progress(&Batch::prompt(prompt, first, seq)?, progress)?;
        let behind = (prompt[prompt.len() - 1], context.next_pos(seq)?);
        Ok(Self {
            context,
            seq,
            selector,
            max_tokens: if params.max_tokens == 0 { usize::MAX } else { params.max_tokens },
            stop: params.stop.into_iter().filter(|s| !s.is_empty()).collect(),
            produced: 0,
            row: prompt.len() - 1,
            drafts: Drafts::new(params.draft_lookup, params.draft_history, prompt),
            stream: TextStream::new(),
            held: String::new(),
            pending: None,
            done: false,
            tries: 1,
            max_tries: if by_validation { MAX_TRIES } else { 1 },
            ready: VecDeque::new(),
            sampling: params.sampling,
            behind,
        })
    }

    /// Takes the output back and begins another.
    fn begin_again(&mut self) -> Result<(), GenerateError> {
        self.forget_draft()?;
        let (last, start) = self.behind;
        let from = Pos::new(start.get() - 1)?;
        let end = self.context.next_pos(self.seq)?;
        self.context.remove(self.seq, from..end)?;
        self.context.decode(&Batch::prompt(&[last], from, self.seq)?)?;
        // Greedy choice would say the same again.
        self.sampling.temperature = self.sampling.temperature.max(0.7);
        self.sampling.seed = self.sampling.seed.wrapping_add(1);
        self.selector.restart(&self.sampling)?;
        self.drafts = Drafts::new(0, Vec::new(), &[last]);
        (self.row, self.produced, self.pending, self.done) = (0, 0, None, false);
        self.stream = TextStream::new();
        self.held.clear();
        self.ready.clear();
        self.tries += 1;
        Ok(())
    }

    /// One output to its end, kept back until it is known to be an answer.
    fn fill(&mut self) {
        while let Some(event) = self.next_event() {
            let ended_by_itself =
                matches!(&event, Ok(Event::End { ending: Ending::EndOfGeneration | Ending::GrammarComplete, .. }));
            let again = ended_by_itself
                && matches!(&event, Ok(Event::End { complete: false, .. }))
                && self.tries < self.max_tries;
            if again {
                if let Err(e) = self.begin_again() {
                    self.done = true;
                    self.ready.push_back(Err(e));
                }
                continue;
            }
            self.ready.push_back(event);
        }
    }

    fn end(&mut self, ending: Ending) -> Event {
        self.done = true;
        let verdict = self.selector.verdict().filter(|_| self.selector.is_sentence() == Some(true));
        let complete = self.selector.is_sentence().unwrap_or(matches!(ending, Ending::EndOfGeneration | Ending::Stop))
            && verdict.as_ref().is_none_or(|verdict| *verdict == Verdict::Valid);
        let mut text = std::mem::take(&mut self.held);
        if ending == Ending::Stop {
            text.clear();
        } else {
            text.push_str(self.stream.finish());
        }
        let validation = verdict.map(|verdict| Validation { tries: self.tries, verdict });
        Event::End { ending, complete, text, validation }
    }

    /// How the drafts fared so far.
    pub fn draft_counts(&self) -> DraftCounts {
        self.drafts.counts
    }

    /// Makes the logits behind `id` ready: they are there already if it was guessed.
    fn advance(&mut self, id: TokenId) -> Result<(), Error> {
        if self.drafts.chose(id) {
            self.row += 1;
            return Ok(());
        }
        self.forget_draft()?;
        let next = self.context.next_pos(self.seq)?;
        let train = self.context.model().info().hyperparameters().n_ctx_train as usize;
        let positions = train.saturating_sub(next.get().unsigned_abs() as usize + 1);
        let room = self.context.free_cells().saturating_sub(1).min(positions).min(self.max_tokens - self.produced);
        let draft = self.drafts.guess(room);
        let mut tokens = vec![id];
        tokens.extend_from_slice(&draft);
        self.context.decode(&Batch::scored(&tokens, next, self.seq)?)?;
        self.row = 0;
        self.drafts.verifying = !draft.is_empty();
        self.drafts.counts.decodes += 1;
        self.drafts.counts.drafted += draft.len();
        self.drafts.ahead = draft.into();
        Ok(())
    }

    /// Decodes the last token alone, as it would have been without drafts.
    fn decode_again(&mut self) -> Result<(), Error> {
        self.forget_draft()?;
        let Some(last) = self.drafts.last() else { return Ok(()) };
        let end = self.context.next_pos(self.seq)?;
        let at = Pos::new(end.get() - 1)?;
        self.context.remove(self.seq, at..end)?;
        self.context.decode(&Batch::prompt(&[last], at, self.seq)?)?;
        self.row = 0;
        self.drafts.verifying = false;
        self.drafts.counts.decodes += 1;
        Ok(())
    }

    /// Takes guesses that were not chosen out of the cache.
    fn forget_draft(&mut self) -> Result<(), Error> {
        let n = self.drafts.ahead.len();
        if n > 0 {
            let end = self.context.next_pos(self.seq)?;
            let first = Pos::new(end.get() - i32::try_from(n).unwrap_or(i32::MAX))?;
            self.context.remove(self.seq, first..end)?;
            self.drafts.ahead.clear();
        }
        Ok(())
    }

    fn step(&mut self) -> Result<Event, GenerateError> {
        if self.produced >= self.max_tokens {
            return Ok(self.end(Ending::MaxTokens));
        }
        if self.drafts.verifying {
            let allowed = self.selector.allowed()?;
            if lead(self.context.logits()?.row(self.row)?, allowed.as_deref()) < NEAR_TIE {
                match self.decode_again() {
                    Err(Error::Cancelled) => return Ok(self.end(Ending::Cancelled)),
                    other => other?,
                }
            }
        }
        let logits = self.context.logits()?.row(self.row)?;
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
            match self.advance(id) {
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

/// The output matrix sums in another order for several rows than for one, which moves logits by up to 2e-4 on the
/// embedded model (the cache is the same bit for bit). Choices with less of a lead than this are not left to it.
const NEAR_TIE: f32 = 0.05;

/// How far the best allowed logit leads the second; 0 where one is not a number.
fn lead(logits: &[f32], mask: Option<&TokenMask>) -> f32 {
    let (mut best, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
    for (id, &x) in (0u32..).zip(logits) {
        if x.is_nan() {
            return 0.0;
        }
        if x > second && mask.is_none_or(|m| m.allows(id)) {
            (best, second) = if x > best { (x, best) } else { (best, x) };
        }
    }
    if best == second { 0.0 } else { best - second }
}

/// How many bytes at the end of `text` may begin `stop`.
pub(super) fn overlap(text: &str, stop: &str) -> usize {
    (1..stop.len().min(text.len() + 1))
        .rev()
        .find(|&n| text.is_char_boundary(text.len() - n) && stop.is_char_boundary(n) && text.ends_with(&stop[..n]))
        .unwrap_or(0)
}

/// ln p of a token under the softmax of `logits`.
pub(super) fn log_probability(logits: &[f32], id: TokenId) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
    logits.get(id.index()).map_or(f64::NEG_INFINITY, |&x| f64::from(x - max) - sum.ln())
}

impl std::fmt::Debug for Generator<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Generator").field("seq", &self.seq).field("produced", &self.produced).finish_non_exhaustive()
    }
}

impl Drop for Generator<'_> {
    fn drop(&mut self) {
        // Nobody looks at an error here; a context that cannot remove is poisoned and says so at its next use.
        let _ = self.forget_draft();
        // Nor at what was kept back and never given out.
        let kept = self.ready.iter().filter(|e| matches!(e, Ok(Event::Token { .. }))).count();
        if kept > 0
            && let Ok(given) = i32::try_from(self.produced - kept)
            && let (Ok(from), Ok(end)) = (Pos::new(self.behind.1.get() + given), self.context.next_pos(self.seq))
            && from < end
        {
            let _ = self.context.remove(self.seq, from..end);
        }
    }
}

impl Iterator for Generator<'_> {
    type Item = Result<Event, GenerateError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.max_tries <= 1 {
            return self.next_event();
        }
        if self.ready.is_empty() && !self.done {
            self.fill();
        }
        self.ready.pop_front()
    }
}

impl Generator<'_> {
    fn next_event(&mut self) -> Option<Result<Event, GenerateError>> {
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
    fn the_lead_is_over_the_second_best_of_those_allowed() {
        assert_eq!(lead(&[1.0, 4.0, 3.5, -2.0], None), 0.5);
        assert_eq!(lead(&[4.0, 1.0], None), 3.0);
        assert_eq!(lead(&[2.0, 2.0], None), 0.0);
        assert_eq!(lead(&[2.0, f32::NAN], None), 0.0);
        assert_eq!(lead(&[2.0], None), f32::INFINITY);
        assert_eq!(lead(&[f32::NEG_INFINITY; 2], None), 0.0);
    }

    #[test]
    fn log_probability_of_two_equal_logits_is_ln_half() {
        let id = TokenId::new(1, 2).unwrap();
        assert!((log_probability(&[3.0, 3.0], id) - 0.5f64.ln()).abs() < 1e-12);
    }
}
