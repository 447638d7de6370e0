//! Probabilities from logits, in f64.

/// Log-probabilities of one row of logits: x − max − ln Σ exp(x − max).
pub fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().fold(f64::NEG_INFINITY, |max, &x| max.max(f64::from(x)));
    let sum: f64 = logits.iter().map(|&x| (f64::from(x) - max).exp()).sum();
    let log_sum = max + sum.ln();
    logits.iter().map(|&x| f64::from(x) - log_sum).collect()
}

/// Kullback–Leibler divergence D(p‖q) in nats between the distributions of two rows of logits of
/// the same length.
pub fn kl_divergence(p: &[f32], q: &[f32]) -> f64 {
    log_softmax(p)
        .iter()
        .zip(log_softmax(q))
        .map(|(&p, q)| if p == f64::NEG_INFINITY { 0.0 } else { p.exp() * (p - q) })
        .sum()
}

/// Perplexity of a text: exp of the mean negative log-probability of each token after the first,
/// given the ones before.
///
/// `logits` are `[token][vocabulary]`, row t predicting token t + 1; the last row is not used.
/// `None` with fewer than two tokens, a row count that differs, or an id outside the vocabulary.
pub fn perplexity(logits: &[f32], tokens: &[i32], n_vocab: usize) -> Option<f64> {
    if tokens.len() < 2 || n_vocab == 0 || logits.len() != tokens.len().checked_mul(n_vocab)? {
        return None;
    }
    let mut total = 0.0;
    for (row, &next) in logits.chunks_exact(n_vocab).zip(&tokens[1..]) {
        total -= log_softmax(row).get(usize::try_from(next).ok()?)?;
    }
    Some((total / (tokens.len() - 1) as f64).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use approx::assert_relative_eq;

    #[test]
    fn known_distributions() {
        // Logits ln 1, ln 2, ln 5 are the probabilities 1/8, 2/8, 5/8.
        let logits = [0.0, 2_f32.ln(), 5_f32.ln()];
        let p: Vec<f64> = log_softmax(&logits).iter().map(|l| l.exp()).collect();
        assert_relative_eq!(p[0], 0.125, epsilon = 1e-7);
        assert_relative_eq!(p[2], 0.625, epsilon = 1e-7);
        // A shift changes nothing, and large logits do not overflow.
        let shifted: Vec<f32> = logits.iter().map(|l| l + 1000.0).collect();
        assert_relative_eq!(log_softmax(&shifted)[1].exp(), 0.25, epsilon = 1e-4);
    }

    #[test]
    fn divergence_by_hand() {
        // p = (1/2, 1/2), q = (1/4, 3/4): ½ ln 2 + ½ ln ⅔ = 0.143841.
        let q = [0.0, 3_f32.ln()];
        assert_relative_eq!(kl_divergence(&[0.0, 0.0], &q), 0.143_841, epsilon = 1e-6);
        assert_eq!(kl_divergence(&q, &q), 0.0);
        // An impossible outcome of p adds nothing.
        let p = [0.0, f32::NEG_INFINITY];
        assert_relative_eq!(kl_divergence(&p, &[0.0, 0.0]), 2_f64.ln(), epsilon = 1e-12);
    }

    #[test]
    fn perplexity_by_hand() {
        // Uniform over 8: perplexity 8.
        assert_relative_eq!(perplexity(&[0.0; 24], &[0, 7, 3], 8).unwrap(), 8.0);
        // Probabilities 1/4 and 3/4 of the tokens met: 1/√(3/16).
        let logits = [0.0, 3_f32.ln(), 0.0, 3_f32.ln(), 9.0, 9.0];
        let expected = 1.0 / (3.0_f64 / 16.0).sqrt();
        let found = perplexity(&logits, &[1, 0, 1], 2).unwrap();
        assert_relative_eq!(found, expected, epsilon = 1e-6);
        assert_eq!(perplexity(&[0.0; 2], &[0], 2), None);
        assert_eq!(perplexity(&[0.0; 4], &[0, 2], 2), None);
        assert_eq!(perplexity(&[0.0; 4], &[0, -1], 2), None);
        assert_eq!(perplexity(&[0.0; 3], &[0, 1], 2), None);
    }
}
