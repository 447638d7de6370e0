//! The whole suite as `harness gates --quick --self-check` runs it: every gate passes and every planted fault is caught.

use assert_cmd::Command;
use serde_json::Value;

#[test]
fn every_gate_passes_and_every_planted_fault_is_caught() {
    let output = Command::cargo_bin("harness")
        .unwrap()
        .args(["gates", "--quick", "--self-check", "--format", "json"])
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for gate in report["gates"].as_array().unwrap() {
        println!("gate {} {}: {}", gate["id"], gate["verdict"], gate["summary"]);
    }
    let verdicts: Vec<(&str, &str)> = report["gates"]
        .as_array()
        .unwrap()
        .iter()
        .map(|g| (g["id"].as_str().unwrap(), g["verdict"].as_str().unwrap()))
        .collect();
    let all = ["0", "1", "2", "3a", "3b", "4", "5"];
    assert_eq!(verdicts, all.map(|id| (id, "PASS")), "{:#}", report["gates"]);
    let faults = report["self_check"].as_array().unwrap();
    let missed: Vec<_> = faults.iter().filter(|f| f["caught"] != true).collect();
    assert!(missed.is_empty(), "{missed:#?}");
    assert!(faults.len() >= 37, "{} faults planted", faults.len());
    assert_eq!(report["p0"]["decision"], "GO");
    assert_eq!(output.status.code(), Some(0));
}
