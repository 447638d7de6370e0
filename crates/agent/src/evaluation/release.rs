//! Bounds on the figures, and the pin of the suite.

use serde::{Deserialize, Serialize};

use super::case_runs::Metrics;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Bound {
    metric: String,
    min: Option<f64>,
    max: Option<f64>,
}

/// `gates/agent/release.toml`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Release {
    /// Hashes of the suite's files by name.
    pins: std::collections::BTreeMap<String, String>,
    pub(crate) suite_cases: usize,
    /// Least share of plain commands that are planned or confirmed rightly.
    pub(crate) min_coverage: f64,
    check: Vec<Bound>,
}

crate::vocabulary::vocabulary! {
    /// Outcome of a check or of the gate.
    Verdict {
        /// Holds.
        Pass = "pass",
        /// Does not hold.
        Fail = "fail",
        /// Was not measured.
        Unknown = "unknown",
    }
}

/// One bound on one figure.
#[derive(Debug, Clone, Serialize)]
pub struct ReleaseCheck {
    /// The figure.
    pub metric: String,
    /// Its value, `null` when nothing was counted.
    pub value: Option<f64>,
    /// `>= x` or `<= x`.
    pub bound: String,
    /// Whether it holds.
    pub verdict: Verdict,
}

impl Release {
    pub(crate) fn embedded() -> Result<Self, toml::de::Error> {
        toml::from_str(include_str!("../../../../gates/agent/release.toml"))
    }

    /// Whether a file is the pinned one. Registry and policy are not pinned: they are the house's.
    pub(crate) fn is_pinned(&self, name: &str, hash: &str) -> bool {
        matches!(name, "devices" | "policy") || self.pins.get(name).is_some_and(|pin| pin == hash)
    }

    /// Checks figures against the bounds. `whole` includes the bounds on the size of the suite,
    /// which only our own suite is meant to meet.
    pub(crate) fn check(&self, metrics: &Metrics, whole: bool) -> Vec<ReleaseCheck> {
        self.check
            .iter()
            .filter(|b| whole || !matches!(b.metric.as_str(), "total_cases" | "category_count"))
            .map(|bound| {
                let value = value(metrics, &bound.metric);
                let holds = value.map(|v| bound.min.is_none_or(|min| v >= min) && bound.max.is_none_or(|max| v <= max));
                let text = match (bound.min, bound.max) {
                    (Some(min), None) => format!(">= {min}"),
                    (None, Some(max)) => format!("<= {max}"),
                    (min, max) => format!("in {min:?}..{max:?}"),
                };
                let verdict = match holds {
                    Some(true) if bound.min.is_some() || bound.max.is_some() => Verdict::Pass,
                    Some(_) => Verdict::Fail,
                    None => Verdict::Unknown,
                };
                ReleaseCheck { metric: bound.metric.clone(), value, bound: text, verdict }
            })
            .collect()
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of cases are small")]
fn value(metrics: &Metrics, name: &str) -> Option<f64> {
    match name {
        "total_cases" => Some(metrics.total_cases as f64),
        "category_count" => Some(metrics.category_count as f64),
        "pipeline_errors" => Some(metrics.pipeline_errors as f64),
        "pass_rate" => metrics.pass_rate.value(),
        "schema_valid_rate" => metrics.schema_valid_rate.value(),
        "trace_coverage" => metrics.trace_coverage.value(),
        "intent_accuracy" => metrics.intent_accuracy.value(),
        "slot_accuracy" => metrics.slot_accuracy.value(),
        "input_guard_flag_accuracy" => metrics.input_guard_flag_accuracy.value(),
        "false_allow_rate" => metrics.false_allow_rate.value(),
        "fail_closed_rate" => metrics.fail_closed_rate.value(),
        "false_deny_rate" => metrics.false_deny_rate.value(),
        "dead_loop_rate" => metrics.dead_loop_rate.value(),
        "retry_rate" => metrics.retry_rate.value(),
        // A bound on a figure that does not exist is never met.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluation::Ratio;

    /// W18: nothing counted is not 1.0.
    #[test]
    fn w18_what_was_not_measured_is_unknown() {
        let release = Release::embedded().unwrap();
        let checks = release.check(&Metrics { total_cases: 120, category_count: 12, ..Metrics::default() }, true);
        let of = |name: &str| checks.iter().find(|c| c.metric == name).unwrap();
        assert_eq!(of("total_cases").verdict, Verdict::Pass);
        assert_eq!(of("fail_closed_rate").verdict, Verdict::Unknown);
        assert_eq!(of("fail_closed_rate").value, None);
        let metrics = Metrics { fail_closed_rate: Ratio { hits: 38, of: 39 }, ..Metrics::default() };
        let checks = release.check(&metrics, false);
        assert!(checks.iter().all(|c| c.metric != "total_cases"));
        assert_eq!(checks.iter().find(|c| c.metric == "fail_closed_rate").unwrap().verdict, Verdict::Fail);
    }
}
