//! Sampling: the allowed set first, then the engine's samplers over it.

use std::ptr::NonNull;

use bitnet_sys as sys;

use crate::ids::TokenId;
use crate::logits::greedy;
use crate::model::Model;
use crate::{Error, status};
use grammar::TokenMask;

/// How to choose the next token; the field's usual names.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy: the largest logit, the lowest id among equals.
    pub temperature: f32,
    /// Keep the k largest logits; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set whose probabilities sum to p; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less probable than this share of the most probable; 0 keeps all.
    pub min_p: f32,
    /// Divide positive and multiply negative logits of recent tokens by this; 1 changes nothing.
    pub repeat_penalty: f32,
    /// How many recent tokens the penalty looks at.
    pub repeat_last_n: u32,
    /// Seed of the random choice.
    pub seed: u32,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, repeat_penalty: 1.0, repeat_last_n: 64, seed: 0 }
    }
}

impl SamplingParams {
    fn check(&self) -> Result<(), Error> {
        let ranges = [
            ("temperature", self.temperature, 0.0, 100.0),
            ("top_p", self.top_p, 0.0, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("repeat_penalty", self.repeat_penalty, 0.01, 100.0),
        ];
        for (name, value, min, max) in ranges {
            if !(min..=max).contains(&value) {
                return Err(Error::Sampler(format!("{name} = {value}: must be {min} to {max}")));
            }
        }
        if self.top_k > i32::MAX as u32 || self.repeat_last_n > 1 << 20 {
            return Err(Error::Sampler("top_k or repeat_last_n is too large".into()));
        }
        Ok(())
    }
}

/// A chain of the engine's samplers (`llama_sampler_*`): penalties, top-k, top-p, min-p, temperature, choice.
///
/// It keeps its model alive, since the engine's samplers point into the vocabulary.
pub struct Sampler {
    chain: Vec<Native>,
    /// Kept alive, and for the range of ids.
    model: Model,
    greedy: bool,
    candidates: Vec<sys::llama_token_data>,
}

struct Native(NonNull<sys::llama_sampler>);

impl Drop for Native {
    fn drop(&mut self) {
        // SAFETY: made by an init function of the engine and freed once.
        unsafe { sys::llama_sampler_free(self.0.as_ptr()) };
    }
}

// SAFETY: a sampler's state is its own heap object, without thread affinity; it is used through &mut only.
unsafe impl Send for Native {}

impl Sampler {
    /// Builds the chain.
    ///
    /// # Errors
    /// [`Error::Sampler`] names a parameter outside its range.
    pub fn new(model: &Model, params: &SamplingParams) -> Result<Self, Error> {
        params.check()?;
        let mut chain = Vec::new();
        let mut add = |raw: *mut sys::llama_sampler| {
            NonNull::new(raw)
                .map(|s| chain.push(Native(s)))
                .ok_or_else(|| Error::Sampler("the engine made none".into()))
        };
        // SAFETY: plain numbers, range-checked; each call allocates one sampler.
        unsafe {
            if params.repeat_penalty != 1.0 && params.repeat_last_n > 0 {
                let (n_vocab, last_n) = (model.n_vocab() as i32, params.repeat_last_n as i32);
                // Special ids only matter for flags that are off; newlines are penalized like any token.
                add(sys::llama_sampler_init_penalties(
                    n_vocab,
                    0,
                    0,
                    last_n,
                    params.repeat_penalty,
                    0.0,
                    0.0,
                    true,
                    false,
                ))?;
            }
            if params.temperature > 0.0 {
                if params.top_k > 0 {
                    add(sys::llama_sampler_init_top_k(params.top_k as i32))?;
                }
                if params.top_p < 1.0 {
                    add(sys::llama_sampler_init_top_p(params.top_p, 1))?;
                }
                if params.min_p > 0.0 {
                    add(sys::llama_sampler_init_min_p(params.min_p, 1))?;
                }
                add(sys::llama_sampler_init_temp(params.temperature))?;
                // The choice reads probabilities, which only this step fills in.
                add(sys::llama_sampler_init_softmax())?;
                add(sys::llama_sampler_init_dist(params.seed))?;
            }
        }
        Ok(Self { chain, model: model.clone(), greedy: params.temperature == 0.0, candidates: Vec::new() })
    }

    /// Chooses a token. With a mask only its tokens are candidates, before anything else happens to the logits.
    ///
    /// # Errors
    /// [`Error::Sampler`] when logits are NaN, of the wrong length, or nothing is allowed.
    pub fn sample(&mut self, logits: &[f32], mask: Option<&TokenMask>) -> Result<TokenId, Error> {
        let n_vocab = self.model.n_vocab() as usize;
        if logits.len() != n_vocab {
            return Err(Error::Sampler(format!("{} logits for a vocabulary of {n_vocab}", logits.len())));
        }
        if self.greedy && self.chain.is_empty() && mask.is_none() {
            return greedy(logits).ok_or_else(|| Error::Sampler("no finite logit to choose".into()));
        }
        self.candidates.clear();
        let mut add = |id: usize| {
            let logit = logits[id];
            // −∞ means excluded; NaN would make the engine's sort undefined.
            if logit.is_nan() {
                return Err(Error::Sampler(format!("the logit of token {id} is NaN")));
            }
            if logit > f32::NEG_INFINITY {
                self.candidates.push(sys::llama_token_data { id: id as i32, logit, p: 0.0 });
            }
            Ok(())
        };
        match mask {
            Some(mask) => mask.iter().map(|id| id as usize).filter(|&id| id < n_vocab).try_for_each(&mut add)?,
            None => (0..n_vocab).try_for_each(&mut add)?,
        }
        if self.candidates.is_empty() {
            let limited = mask.is_some_and(TokenMask::is_limited);
            return Err(Error::Sampler(match limited {
                true => "no token is allowed here: the grammar has more readings at this place than the matcher \
                         follows (GrammarLimits); give its alternatives a common beginning"
                    .into(),
                false => "no token is allowed here (dead end)".into(),
            }));
        }
        let mut array = sys::llama_token_data_array {
            data: self.candidates.as_mut_ptr(),
            size: self.candidates.len(),
            selected: -1,
            sorted: false,
        };
        for (i, sampler) in self.chain.iter().enumerate() {
            // The last but one, softmax, sorts what is not sorted yet, which on a vocabulary of 128k takes as long as a
            // layer. All that it and the choice need of the order is the largest logit in front.
            if !self.greedy && i + 2 == self.chain.len() && !array.sorted {
                let live = self.candidates.get_mut(..array.size).unwrap_or_default();
                if let Some(largest) = (0..live.len()).reduce(|a, b| if live[b].logit > live[a].logit { b } else { a })
                {
                    live.swap(0, largest);
                    array.sorted = true;
                }
                array.data = self.candidates.as_mut_ptr();
            }
            status::checked("llama_sampler_apply", |st| {
                // SAFETY: the array points at `size` initialised candidates owned by self; samplers shrink size
                // or reorder, never grow.
                unsafe { sys::bn_sampler_apply(sampler.0.as_ptr(), &raw mut array, st) };
            })?;
        }
        let left = &self.candidates[..array.size.min(self.candidates.len())];
        let chosen = if self.greedy {
            left.iter().reduce(|a, b| if b.logit > a.logit || (b.logit == a.logit && b.id < a.id) { b } else { a })
        } else {
            usize::try_from(array.selected).ok().and_then(|i| left.get(i))
        };
        let chosen = chosen.ok_or_else(|| Error::Sampler("the engine's samplers chose nothing".into()))?;
        self.model.token(chosen.id)
    }

    /// Tells the chain which token was taken; exactly once per token.
    ///
    /// # Errors
    /// [`Error::TokenOutOfRange`] for a token of another model.
    pub fn accept(&mut self, token: TokenId) -> Result<(), Error> {
        self.model.token(token.get())?;
        for sampler in &self.chain {
            status::checked("llama_sampler_accept", |st| {
                // SAFETY: a valid sampler and an id inside the vocabulary.
                unsafe { sys::bn_sampler_accept(sampler.0.as_ptr(), token.get(), st) };
            })?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Sampler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sampler").field("samplers", &self.chain.len()).finish_non_exhaustive()
    }
}
