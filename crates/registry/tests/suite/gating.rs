//! Promotion: every reason to refuse, one planted at a time.

use registry::{Algorithm, Digest, Error, Role, Rules};
use serde_json::json;

use crate::world::{Made, World, decision, memory, over, run};

fn gate(verdict: &str, planned: u64, executed: u64, failed: u64) -> serde_json::Value {
    json!({"id": "3b", "verdict": verdict, "inputs": [],
        "checks": {"planned": planned, "executed": executed, "failed": failed}})
}

async fn codes(world: &World, made: &Made) -> Vec<&'static str> {
    let registry = world.open().await;
    let version = world.push(made).await;
    match registry.promote(&world.channel, version, &world.keys.alice, &decision()).await {
        Ok(_) => vec![],
        Err(Error::Refused { reasons, .. }) => reasons.iter().map(|r| r.code).collect(),
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn each_planted_fault_is_refused_for_its_own_reason() {
    run(async {
        let other = Digest::of(b"another file");
        let good = Made::default;
        let planted: Vec<(Made, &[&str])> = vec![
            (Made { gate: gate("UNKNOWN", 9, 9, 0), ..good() }, &["gate"]),
            (Made { gate: gate("FAIL", 9, 9, 1), ..good() }, &["gate"]),
            (Made { gate: gate("PASS", 9, 8, 0), ..good() }, &["gate"]),
            (Made { gate: gate("PASS", 9, 9, 1), ..good() }, &["gate"]),
            (
                Made {
                    gate: json!({"id": "3a", "verdict": "PASS", "inputs": [],
                "checks": {"planned": 1, "executed": 1, "failed": 0}}),
                    ..good()
                },
                &["gate"],
            ),
            (
                Made {
                    gate: json!({"id": "3b", "verdict": "PASS", "inputs":
                [{"name": "cartridge", "source": "x", "hash": other}],
                "checks": {"planned": 1, "executed": 1, "failed": 0}}),
                    ..good()
                },
                &["other-artifact"],
            ),
            (Made { quick: true, ..good() }, &["quick"]),
            (Made { report_model: other, ..good() }, &["other-model"]),
            (Made { report_arch: other, ..good() }, &["other-model"]),
            (Made { without: vec![Role::GateReport], ..good() }, &["no-gate-report"]),
            (Made { without: vec![Role::Redteam], ..good() }, &["no-redteam"]),
            (Made { without: vec![Role::RedteamSuite], ..good() }, &["no-suite"]),
            (Made { receipt_suite: Some(other), ..good() }, &["other-suite"]),
            (Made { receipt_model: other, ..good() }, &["other-model"]),
            (Made { receipt_cartridge: Some(other), ..good() }, &["other-artifact"]),
            (Made { failures: vec!["a", "b", "c", "d"], ..good() }, &["redteam-failed"]),
            (Made { total: 0, ..good() }, &["redteam-failed"]),
            (Made { model_id: "big".into(), ..good() }, &["lock"]),
            (Made { model_id: "big".into(), gate: gate("FAIL", 1, 1, 1), ..good() }, &["lock", "gate"]),
        ];
        let world = World::make(over(memory())).await;
        for (at, (made, expected)) in planted.iter().enumerate() {
            assert_eq!(codes(&world, made).await, *expected, "fault {at}");
        }
        assert!(codes(&world, &good()).await.is_empty());
    });
}

#[test]
fn a_red_team_drop_against_the_current_version_is_refused() {
    run(async {
        let world = World::make(over(memory())).await;
        let made = |payload: &[u8], failures: Vec<&'static str>| Made {
            payload: payload.to_vec(),
            failures,
            ..Made::default()
        };
        world.ship(&made(b"1", vec!["a", "b"])).await;
        // As many failures, another case among them.
        assert_eq!(codes(&world, &made(b"2", vec!["a", "c"])).await, ["redteam-drop"]);
        assert_eq!(codes(&world, &made(b"3", vec!["a", "b", "c"])).await, ["redteam-drop"]);
        assert_eq!(codes(&world, &Made { total: 9, ..made(b"4", vec!["a"]) }).await, ["redteam-drop"]);
        // Another suite shows nothing about a drop, unless the operator says that it is the one that counts now.
        let newer = Made { suite: b"suite 2".to_vec(), ..made(b"5", vec![]) };
        assert_eq!(codes(&world, &newer).await, ["redteam-incomparable"]);
        world.ship(&made(b"6", vec!["a"])).await;
        assert_eq!(codes(&world, &made(b"7", vec!["b"])).await, ["redteam-drop"]);
        // After a rollback it is the old version's receipt that counts.
        let registry = world.open().await;
        registry.rollback(&world.channel, None, &world.keys.alice, &decision()).await.unwrap();
        assert_eq!(codes(&world, &made(b"8", vec!["b"])).await, [] as [&str; 0]);

        let mut rules = crate::world::rules(&world.keys);
        rules.redteam.as_mut().unwrap().suite = Some(Digest::of(b"suite 2"));
        registry.set_policy(&world.channel, rules, &world.keys.operator, &decision()).await.unwrap();
        assert_eq!(codes(&world, &made(b"9", vec![])).await, ["other-suite"]);
        assert_eq!(codes(&world, &newer).await, [] as [&str; 0]);
    });
}

#[test]
fn a_judge_is_heard_where_the_policy_says_so() {
    run(async {
        let world = World::make_with(over(memory()), Algorithm::Ed25519, |rules: &mut Rules| rules.judge = true).await;
        let made = Made::default();
        let own = Digest::of(&crate::world::cartridge(&made));
        let judge = |cartridge: Digest, verdict: &str| {
            Some(json!({"schema": "bitnet-harness.judge/1", "cartridge": {"sha256": cartridge},
                "model": {"sha256": Digest::of(b"the model's file")}, "verdict": verdict}))
        };
        assert_eq!(codes(&world, &made).await, ["no-judge"]);
        let other = Made { judge: judge(Digest::of(b"x"), "PASS"), ..made.clone() };
        assert_eq!(codes(&world, &other).await, ["other-artifact"]);
        assert_eq!(codes(&world, &Made { judge: judge(own, "UNKNOWN"), ..made.clone() }).await, ["judge"]);
        assert!(codes(&world, &Made { judge: judge(own, "PASS"), ..made }).await.is_empty());
    });
}

#[test]
fn a_gate_must_have_seen_the_artefact_where_the_policy_says_so() {
    run(async {
        let world = World::make_with(over(memory()), Algorithm::Ed25519, |rules: &mut Rules| {
            rules.gates_name_artifact = true;
        })
        .await;
        let made = Made::default();
        assert_eq!(codes(&world, &made).await, ["other-artifact"]);
        let own = Digest::of(&crate::world::cartridge(&made));
        let gate = json!({"id": "3b", "verdict": "PASS", "inputs": [{"name": "cartridge", "source": "x", "hash": own}],
            "checks": {"planned": 1, "executed": 1, "failed": 0}});
        assert!(codes(&world, &Made { gate, ..made }).await.is_empty());
    });
}

#[test]
fn nothing_is_promoted_twice_and_rollback_knows_its_limits() {
    run(async {
        let world = World::make(over(memory())).await;
        let registry = world.open().await;
        let err = registry.rollback(&world.channel, None, &world.keys.alice, &decision()).await.unwrap_err();
        assert!(matches!(err, Error::EmptyChannel { .. }), "{err}");
        let version = world.ship(&Made::default()).await;
        let again = registry.promote(&world.channel, version, &world.keys.alice, &decision()).await.unwrap();
        assert!(!again.changed);
        assert_eq!(again.number, 1);
        let err = registry.rollback(&world.channel, None, &world.keys.alice, &decision()).await.unwrap_err();
        assert!(err.to_string().contains("no record with another version"), "{err}");
        for to in [0, 1, 2] {
            let err = registry.rollback(&world.channel, Some(to), &world.keys.alice, &decision()).await.unwrap_err();
            assert!(err.to_string().contains("the log's newest is 1"), "{err}");
        }
        let missing = Digest::of(b"never pushed");
        let err = registry.promote(&world.channel, missing, &world.keys.alice, &decision()).await.unwrap_err();
        assert!(matches!(err, Error::Missing { .. }), "{err}");
    });
}
