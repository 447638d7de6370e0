//! Logits that no model would give and every sampler must survive.

use bitnet_rs::{Error, Model, SamplingParams};
use grammar::TokenTrie;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use session::TokenSelector;

/// A kind of adversarial logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Adversary {
    /// Everything is equally likely.
    Uniform,
    /// All weight on tokens that the grammar forbids.
    PeakedOnIllegal,
    /// Differences of a few units in the last place, chosen greedily.
    NearTies,
    /// End of generation before everything else.
    AlwaysEnd,
    /// Never an end, and nothing that closes a string, an array or an object, where anything else is allowed.
    NeverEnd,
}

impl Adversary {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Uniform, Self::PeakedOnIllegal, Self::NearTies, Self::AlwaysEnd, Self::NeverEnd];

    /// Sampling options that go with it, drawn over what users set.
    pub fn sampling(self, rng: &mut ChaCha8Rng) -> SamplingParams {
        let mut pick = |values: &[f32]| values[rng.random_range(0..values.len())];
        let mut params = SamplingParams {
            temperature: pick(&[0.0, 0.5, 1.0, 2.0]),
            top_k: pick(&[0.0, 1.0, 40.0]) as u32,
            top_p: pick(&[1.0, 0.95, 0.5]),
            min_p: pick(&[0.0, 0.05]),
            repeat_penalty: pick(&[1.0, 1.3]),
            ..Default::default()
        };
        match self {
            Self::Uniform => params = SamplingParams { temperature: 1.0, ..Default::default() },
            Self::NearTies => params = SamplingParams::default(),
            // At temperature 0 they would say the same each time.
            Self::PeakedOnIllegal | Self::AlwaysEnd | Self::NeverEnd => {
                params.temperature = params.temperature.max(0.5);
            }
        }
        params.seed = rng.random();
        params
    }
}

/// Rows of noise are windows of one longer row: drawing each anew would cost more than all that is under test on a
/// vocabulary of 128k.
const WINDOWS: usize = 1 << 16;

/// Makes rows of logits for one vocabulary.
pub struct LogitSource {
    ends: Vec<usize>,
    closing: Vec<usize>,
    noise: Vec<f32>,
    ties: Vec<f32>,
    row: Vec<f32>,
}

impl LogitSource {
    /// Reads what the vocabulary's tokens mean.
    pub fn new(model: &Model, trie: &TokenTrie) -> Self {
        let n_vocab = model.n_vocab() as usize;
        let ids = || 0..u32::try_from(n_vocab).unwrap_or(u32::MAX);
        let closes = |id: &u32| trie.text(*id).is_some_and(|t| t.iter().any(|b| b"\"}]".contains(b)));
        // The same for all workers: a generation depends on its own seed alone.
        let mut rng = ChaCha8Rng::seed_from_u64(0);
        let n = n_vocab + WINDOWS;
        Self {
            ends: ids().filter(|&id| trie.is_end(id)).map(|id| id as usize).collect(),
            closing: ids().filter(closes).map(|id| id as usize).collect(),
            noise: (0..n).map(|_| rng.random_range(-4.0..4.0)).collect(),
            ties: (0..n).map(|_| 1.0 + f32::EPSILON * rng.random_range(0..4) as f32).collect(),
            row: vec![0.0; n_vocab],
        }
    }

    /// The next row.
    ///
    /// # Errors
    /// The selector's, when it is asked what is allowed.
    pub fn row(
        &mut self,
        kind: Adversary,
        rng: &mut ChaCha8Rng,
        selector: &mut TokenSelector,
    ) -> Result<&[f32], Error> {
        let at = rng.random_range(0..WINDOWS);
        let window = at..at + self.row.len();
        match kind {
            Adversary::Uniform => self.row.fill(0.0),
            Adversary::NearTies => self.row.copy_from_slice(&self.ties[window]),
            _ => self.row.copy_from_slice(&self.noise[window]),
        }
        match kind {
            Adversary::Uniform | Adversary::NearTies => {}
            Adversary::PeakedOnIllegal => {
                if let Some(allowed) = selector.allowed()? {
                    self.row.iter_mut().for_each(|x| *x += 1e4);
                    allowed.iter().for_each(|id| self.row[id as usize] -= 1e4);
                }
            }
            Adversary::AlwaysEnd => self.ends.iter().for_each(|&id| self.row[id] = 1e4),
            Adversary::NeverEnd => {
                self.ends.iter().for_each(|&id| self.row[id] = f32::MIN);
                self.closing.iter().for_each(|&id| self.row[id] = -1e4);
            }
        }
        Ok(&self.row)
    }
}
