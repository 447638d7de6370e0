//! How well an engine's logits agree with stored reference logits.
//!
//! Per position: whether both put the same token first, the Kullback–Leibler divergence D(reference‖engine) in
//! nats, the largest |Δ| of a stored logit, and how the engine orders the reference's best five. Over positions:
//! shares, mean, 99th percentile, maximum ([`Agreement`]).

use super::likelihood;
use super::reference_file::StoredRun;

/// Best tokens whose order is compared.
const RANKED: usize = 5;

/// One position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowAgreement {
    /// Same token first (of equal logits the lower id).
    pub top1: bool,
    /// The reference's first logit over its second; infinite where only one is stored.
    pub margin: f64,
    /// D(reference‖engine), nats: of the whole row where it is stored, otherwise [`kl_top_k`].
    pub kl: f64,
    /// [`kl_top_k`] in any case; differs from `kl` only where the whole row is stored.
    pub kl_top_k: f64,
    /// The reference's probability outside the stored ids.
    pub rest: f64,
    /// Largest |Δ| over the stored logits.
    pub max_abs: f64,
    /// Pairs among the reference's best five, and how many of them the engine orders alike.
    pub pairs: (u32, u32),
}

/// Divergence from a top-k row: Σ p (ln p − ln q) over the stored ids, plus r ln(r/s) for all other tokens taken as
/// one, with r and s their probabilities under reference and engine. No larger than the whole divergence.
///
/// `p` and `q` are the log-probabilities of the stored ids. Infinite where the engine leaves nothing for a rest that
/// the reference has. Returns the divergence and r.
pub fn kl_top_k(p: &[f64], q: &[f64]) -> (f64, f64) {
    let rest = |l: &[f64]| (1.0 - l.iter().map(|l| l.exp()).sum::<f64>()).max(0.0);
    let (r, s) = (rest(p), rest(q));
    let stored: f64 = p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum();
    // The reference's log-sum-exp is stored as f32: what is below its rounding is no rest.
    let other = if r <= REST_ROUNDING { 0.0 } else { r * (r / s.max(f64::MIN_POSITIVE)).ln() };
    (stored + other, r)
}

/// A log-sum-exp of magnitude up to 32 in f32 is off by at most 1e-6, and so is a sum of probabilities.
const REST_ROUNDING: f64 = 2e-6;

impl RowAgreement {
    /// Compares the engine's whole row, and its log-probabilities, with the reference's stored position. `None` where
    /// the reference lacks the position, or the row is not finite or too short for the stored ids.
    pub fn of(run: &StoredRun, position: usize, engine: &[f32], log_q: &[f64]) -> Option<Self> {
        if !engine.iter().all(|l| l.is_finite()) {
            return None;
        }
        let (ids, reference) = run.top(position)?;
        let logsumexp = f64::from(*run.logsumexp.get(position)?);
        let index = |id: &i32| usize::try_from(*id).ok();
        let q: Vec<f64> = ids.iter().map(|id| log_q.get(index(id)?).copied()).collect::<Option<_>>()?;
        let found: Vec<f32> = ids.iter().map(|id| engine.get(index(id)?).copied()).collect::<Option<_>>()?;
        let p: Vec<f64> = reference.iter().map(|&l| f64::from(l) - logsumexp).collect();
        let (kl_top_k, rest) = kl_top_k(&p, &q);
        let delta = |a: &[f32], b: &[f32]| {
            a.iter().zip(b).fold(0.0_f64, |max, (&a, &b)| max.max((f64::from(a) - f64::from(b)).abs()))
        };
        let mut kl = kl_top_k;
        let mut max_abs = delta(reference, &found);
        if let Some(whole) = run.full(position, engine.len()) {
            kl = likelihood::kl_divergence(whole, engine);
            max_abs = max_abs.max(delta(whole, engine));
        }
        let ranked = ids.len().min(RANKED);
        let (mut pairs, mut alike) = (0, 0);
        for i in 0..ranked {
            for j in i + 1..ranked {
                // Equal logits have no order.
                if reference[i] > reference[j] {
                    pairs += 1;
                    alike += u32::from(found[i] > found[j]);
                }
            }
        }
        Some(Self {
            top1: first(engine).is_some_and(|id| index(&ids[0]) == Some(id)),
            margin: reference.get(1).map_or(f64::INFINITY, |second| f64::from(reference[0]) - f64::from(*second)),
            kl,
            kl_top_k,
            rest,
            max_abs,
            pairs: (pairs, alike),
        })
    }
}

/// Index of the largest logit, of equal ones the lowest.
pub fn first(row: &[f32]) -> Option<usize> {
    let mut best: Option<(usize, f32)> = None;
    for (i, &l) in row.iter().enumerate() {
        if best.is_none_or(|(_, b)| l > b) {
            best = Some((i, l));
        }
    }
    best.map(|(i, _)| i)
}

/// Agreement over positions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Agreement {
    rows: Vec<RowAgreement>,
}

impl Agreement {
    /// Adds a position.
    pub fn push(&mut self, row: RowAgreement) {
        self.rows.push(row);
    }

    /// Adds all positions of another.
    pub fn extend(&mut self, other: &Self) {
        self.rows.extend_from_slice(&other.rows);
    }

    /// Number of positions.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Holds it no position?
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Share of positions with the same first token.
    pub fn top1(&self) -> f64 {
        share(self.rows.iter().filter(|r| r.top1).count(), self.rows.len())
    }

    /// The same over positions where the reference's first logit leads by at least `margin`, and how many those are.
    pub fn top1_decided(&self, margin: f64) -> (f64, usize) {
        let decided: Vec<&RowAgreement> = self.rows.iter().filter(|r| r.margin >= margin).collect();
        (share(decided.iter().filter(|r| r.top1).count(), decided.len()), decided.len())
    }

    /// Mean divergence, nats.
    pub fn mean_kl(&self) -> f64 {
        self.rows.iter().map(|r| r.kl).sum::<f64>() / self.rows.len().max(1) as f64
    }

    /// 99th percentile of the divergence (nearest rank), nats.
    pub fn p99_kl(&self) -> f64 {
        let mut all: Vec<f64> = self.rows.iter().map(|r| r.kl).collect();
        all.sort_by(f64::total_cmp);
        let rank = (all.len() * 99).div_ceil(100);
        all.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
    }

    /// Largest divergence, nats.
    pub fn max_kl(&self) -> f64 {
        self.largest(|r| r.kl)
    }

    /// Largest |Δ| of a stored logit.
    pub fn max_abs(&self) -> f64 {
        self.largest(|r| r.max_abs)
    }

    /// Largest probability that a top-k row leaves out.
    pub fn max_rest(&self) -> f64 {
        self.largest(|r| r.rest)
    }

    /// Largest amount by which the top-k divergence of a row differs from that of the whole row.
    pub fn max_top_k_error(&self) -> f64 {
        self.largest(|r| (r.kl - r.kl_top_k).abs())
    }

    /// Share of ordered pairs among the reference's best five that the engine orders alike.
    pub fn rank_agreement(&self) -> f64 {
        let (all, alike) = self.rows.iter().fold((0, 0), |(a, b), r| (a + r.pairs.0 as usize, b + r.pairs.1 as usize));
        share(alike, all)
    }

    fn largest(&self, of: impl Fn(&RowAgreement) -> f64) -> f64 {
        self.rows.iter().map(of).fold(0.0, f64::max)
    }
}

/// Of nothing, nothing agrees.
fn share(part: usize, all: usize) -> f64 {
    if all == 0 { 0.0 } else { part as f64 / all as f64 }
}

/// Do the engine's first tokens fit the reference better when read some positions later or earlier?
///
/// `firsts` and `reference` are the first tokens per position, prompt by prompt. Counts how often the engine's row i
/// equals the reference's row i + s for s = −1, 0, 1; an answer needs a shift that fits at least twice as often as
/// none, on at least half of the positions.
pub fn shift_hint(prompts: &[(Vec<i32>, Vec<i32>)]) -> Option<i32> {
    let fits = |s: i32| {
        let (mut alike, mut all) = (0, 0);
        for (engine, reference) in prompts {
            for (i, e) in engine.iter().enumerate() {
                let at = i64::try_from(i).unwrap_or(i64::MAX).saturating_add(i64::from(s));
                if let Some(r) = usize::try_from(at).ok().and_then(|at| reference.get(at)) {
                    all += 1;
                    alike += usize::from(e == r);
                }
            }
        }
        share(alike, all)
    };
    let straight = fits(0);
    [-1, 1]
        .into_iter()
        .filter(|&s| fits(s) >= 0.5 && fits(s) >= 2.0 * straight)
        .max_by(|&a, &b| fits(a).total_cmp(&fits(b)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use approx::assert_relative_eq;

    /// Vocabulary of four, two stored. Probabilities ½, ¼, ⅛, ⅛ from logits ln 4, ln 2, 0, 0 (Σ exp = 8).
    fn run() -> StoredRun {
        StoredRun {
            k: 2,
            logsumexp: vec![8_f32.ln(); 2],
            top_ids: vec![3, 1, 3, 1],
            top_logits: vec![4_f32.ln(), 2_f32.ln(), 4_f32.ln(), 2_f32.ln()],
            next: vec![2_f32.ln() - 8_f32.ln()],
            full_positions: vec![1],
            full_logits: vec![0.0, 2_f32.ln(), 0.0, 4_f32.ln()],
        }
    }

    fn of(position: usize, engine: &[f32]) -> Option<RowAgreement> {
        RowAgreement::of(&run(), position, engine, &likelihood::log_softmax(engine))
    }

    #[test]
    fn divergence_of_a_top_k_row_by_hand() {
        // p = (½, ¼ | ¼), q = (¼, ¼ | ½): ½ ln 2 + 0 + ¼ ln ½ = ¼ ln 2.
        let (kl, rest) = kl_top_k(&[0.5_f64.ln(), 0.25_f64.ln()], &[0.25_f64.ln(), 0.25_f64.ln()]);
        assert_relative_eq!(kl, 0.25 * 2_f64.ln(), epsilon = 1e-12);
        assert_relative_eq!(rest, 0.25, epsilon = 1e-12);
        // Nothing left over: the second term is gone, whatever the engine leaves.
        let (kl, rest) = kl_top_k(&[0.5_f64.ln(), 0.5_f64.ln()], &[0.25_f64.ln(), 0.25_f64.ln()]);
        assert_relative_eq!(kl, 2_f64.ln(), epsilon = 1e-12);
        assert!(rest < 1e-12);
    }

    #[test]
    fn a_row_by_hand() {
        // Engine: uniform over four, logits 0. First is id 0, the reference's is 3.
        let row = of(0, &[0.0; 4]).unwrap();
        assert!(!row.top1);
        assert_relative_eq!(row.margin, 2_f64.ln(), epsilon = 1e-6);
        assert_relative_eq!(row.max_abs, 4_f64.ln(), epsilon = 1e-6);
        assert_eq!(row.pairs, (1, 0));
        // ½ ln(½/¼) + ¼ ln(¼/¼) + ¼ ln(¼/½) = ¼ ln 2.
        assert_relative_eq!(row.kl, 0.25 * 2_f64.ln(), epsilon = 1e-6);
        // The whole row: ½ ln 2 + ¼ ln 1 + 2 · ⅛ ln ½ = ¼ ln 2 too: the engine is flat outside.
        let whole = of(1, &[0.0; 4]).unwrap();
        assert_relative_eq!(whole.kl, 0.25 * 2_f64.ln(), epsilon = 1e-6);
        // A rest that is not flat is seen by the whole row only: q = (2, 2, 4, 8)/16 has the same three sums
        // as p but for ids 0 and 2. KL = ½ ln 1 + ¼ ln 2 + ⅛ ln 1 + ⅛ ln ½ = ⅛ ln 2; top-k ½·0 + ¼ ln 2 + ¼ ln(2/3).
        let engine = [2_f32.ln(), 2_f32.ln(), 4_f32.ln(), 8_f32.ln()];
        let whole = of(1, &engine).unwrap();
        assert_relative_eq!(whole.kl, 0.125 * 2_f64.ln(), epsilon = 1e-6);
        assert_relative_eq!(whole.kl_top_k, 0.25 * 2_f64.ln() + 0.25 * (2.0_f64 / 3.0).ln(), epsilon = 1e-6);
        assert!(whole.top1 && whole.kl_top_k <= whole.kl);
    }

    #[test]
    fn equal_rows_agree_and_unusable_ones_are_no_rows() {
        let row = of(1, &[0.0, 2_f32.ln(), 0.0, 4_f32.ln()]).unwrap();
        assert!(row.top1 && row.max_abs == 0.0 && row.pairs == (1, 1));
        assert_relative_eq!(row.kl, 0.0, epsilon = 1e-12);
        assert_eq!(of(0, &[f32::NAN; 4]), None);
        assert_eq!(of(2, &[0.0; 4]), None);
        assert_eq!(of(0, &[0.0; 3]), None);
    }

    #[test]
    fn figures_over_positions() {
        let row = |top1, margin, kl| RowAgreement {
            top1,
            margin,
            kl,
            kl_top_k: kl,
            rest: kl / 2.0,
            max_abs: kl,
            pairs: (4, 3),
        };
        let mut all = Agreement::default();
        for i in 1..=200 {
            all.push(row(i > 10, if i > 8 { 1.0 } else { 0.01 }, f64::from(i)));
        }
        assert_relative_eq!(all.top1(), 0.95);
        assert_eq!(all.top1_decided(0.05), (190.0 / 192.0, 192));
        assert_relative_eq!(all.mean_kl(), 100.5);
        assert_eq!((all.p99_kl(), all.max_kl(), all.max_rest()), (198.0, 200.0, 100.0));
        assert_relative_eq!(all.rank_agreement(), 0.75);
        // Nothing compared is no agreement.
        assert_eq!(Agreement::default().top1(), 0.0);
        assert_eq!(Agreement::default().rank_agreement(), 0.0);
    }

    #[test]
    fn a_shift_is_hinted_at_in_its_direction() {
        let reference: Vec<i32> = (0..20).map(|i| i * 7 % 13).collect();
        let later: Vec<i32> = reference[1..].to_vec();
        let earlier: Vec<i32> = std::iter::once(99).chain(reference[..19].iter().copied()).collect();
        assert_eq!(shift_hint(&[(later, reference.clone())]), Some(1));
        assert_eq!(shift_hint(&[(earlier, reference.clone())]), Some(-1));
        assert_eq!(shift_hint(&[(reference.clone(), reference.clone())]), None);
        assert_eq!(shift_hint(&[(vec![50; 20], reference)]), None);
        // One token for ever agrees with every shift: no hint.
        assert_eq!(shift_hint(&[(vec![1; 9], vec![1; 9])]), None);
    }
}
