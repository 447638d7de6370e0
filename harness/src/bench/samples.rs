//! A few measured values and what they say.

use serde::Serialize;

/// Raw samples with their median and spread.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Samples {
    /// Middle value; the mean of the two middle ones where their number is even.
    pub median: f64,
    /// Sample standard deviation (n − 1); absent for a single sample, which has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdev: Option<f64>,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// In the order they were taken.
    pub samples: Vec<f64>,
}

impl Samples {
    /// Sums up `samples`; `None` where there is none or one is not finite.
    pub fn of(samples: Vec<f64>) -> Option<Self> {
        if samples.is_empty() || samples.iter().any(|x| !x.is_finite()) {
            return None;
        }
        let mut sorted = samples.clone();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let median = if n % 2 == 1 { sorted[n / 2] } else { (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0 };
        let mean = samples.iter().sum::<f64>() / n as f64;
        let squares: f64 = samples.iter().map(|x| (x - mean) * (x - mean)).sum();
        let stdev = (n > 1).then(|| (squares / (n - 1) as f64).sqrt());
        Some(Self { median, stdev, min: sorted[0], max: sorted[n - 1], samples })
    }

    /// The smallest sample that at least the share `q` of all does not exceed (nearest rank).
    pub fn quantile(&self, q: f64) -> f64 {
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (q.clamp(0.0, 1.0) * sorted.len() as f64).ceil() as usize;
        sorted[rank.saturating_sub(1).min(sorted.len() - 1)] // never empty
    }

    /// `median ± stdev` with `digits` behind the point; the median alone where there is no spread.
    pub fn text(&self, digits: usize) -> String {
        match self.stdev {
            Some(s) => format!("{:.digits$} ± {s:.digits$}", self.median),
            None => format!("{:.digits$}", self.median),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Samples;

    #[test]
    fn median_and_spread_of_known_values() {
        let s = Samples::of(vec![4.0, 1.0, 2.0]).unwrap();
        assert_eq!((s.median, s.min, s.max), (2.0, 1.0, 4.0));
        // Mean 7/3; squares 25/9 + 16/9 + 1/9 = 42/9; over 2: 7/3.
        assert!((s.stdev.unwrap() - (7.0f64 / 3.0).sqrt()).abs() < 1e-12);
        assert_eq!(s.samples, [4.0, 1.0, 2.0]);
        assert_eq!(Samples::of(vec![1.0, 9.0, 3.0, 5.0]).unwrap().median, 4.0);
        assert_eq!(s.text(1), "2.0 ± 1.5");
    }

    #[test]
    fn one_sample_has_no_spread_and_none_has_nothing() {
        let s = Samples::of(vec![5.0]).unwrap();
        assert_eq!((s.median, s.stdev, s.text(2).as_str()), (5.0, None, "5.00"));
        assert!(!serde_json::to_string(&s).unwrap().contains("stdev"));
        assert_eq!(Samples::of(vec![]), None);
        assert_eq!(Samples::of(vec![1.0, f64::NAN]), None);
    }

    #[test]
    fn quantiles_are_nearest_ranks() {
        let s = Samples::of((1..=200).rev().map(f64::from).collect()).unwrap();
        assert_eq!([0.0, 0.5, 0.99, 1.0].map(|q| s.quantile(q)), [1.0, 100.0, 198.0, 200.0]);
    }
}
