//! The published EdgeHome cases, run with our stricter pipeline where their files are at hand.
//!
//! The files are third-party and not part of this repository. They are looked for in
//! `EDGEHOME_DATA_DIR`, else in `shared/edgehome` beside the repository. Where they are absent the
//! test says so and counts what it did not run.

use std::path::PathBuf;

use agent::evaluation::{EvaluationInputs, Verdict, run};

fn data_dir() -> PathBuf {
    std::env::var_os("EDGEHOME_DATA_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/edgehome"), PathBuf::from)
}

#[test]
fn the_published_15_cases_pass() {
    let dir = data_dir();
    let cases = dir.join("zh-home.yaml");
    if !cases.is_file() || !dir.join("devices.yaml").is_file() {
        eprintln!(
            "SKIPPED: 15 published EdgeHome cases not run, no zh-home.yaml and devices.yaml in EDGEHOME_DATA_DIR"
        );
        return;
    }
    let report = run(&EvaluationInputs { cases: Some(cases), ..EvaluationInputs::default() }).expect("gate 5 runs");
    let further = report.further_suite.as_ref().expect("the further suite was run");
    assert_eq!(
        further.failed.iter().map(|c| format!("{}: {:?}", c.id, c.differences)).collect::<Vec<_>>(),
        Vec::<String>::new()
    );
    assert_eq!((further.metrics.total_cases, further.metrics.pass_rate.hits), (15, 15));
    assert_eq!((further.metrics.blocked_cases, further.metrics.fail_closed_rate.hits), (5, 5));
    assert_eq!(further.metrics.unchecked_cases, 1, "the memory write expects nothing upstream");
    assert_eq!(further.executor_calls, 0);
    // One registry per suite, and the report says which.
    assert!(further.inputs.iter().any(|i| i.name == "devices" && i.source == "devices.yaml"));
    assert_ne!(report.verdict, Verdict::Fail, "{:?}", report.findings);
}
