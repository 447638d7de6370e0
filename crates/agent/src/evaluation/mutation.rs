//! Each of the ten gates switched off in turn: something must notice.

use serde::Serialize;

use super::case_runs::{House, run};
use super::opt_in::{self, Operator};
use super::suite::Suite;
use crate::gate_engine::{GateSet, SelfCheck};
use crate::policy::Policy;
use crate::reading::ReaderFault;
use crate::registry::Registry;
use crate::store::{Store, StoreError};
use crate::vocabulary::Gate;

/// What noticed a missing gate.
#[derive(Debug, Clone, Serialize)]
pub struct MutationResult {
    /// The gate that was off.
    pub gate: Gate,
    /// Something noticed.
    pub caught: bool,
    /// Number of cases that noticed.
    pub cases: usize,
    /// Of them those in which something came through that must not: another decision, a plan, a
    /// change of memory. 0 where another stage stops it as well (the planner behind `dry_run`).
    pub let_through: usize,
    /// The first of them.
    pub first_cases: Vec<String>,
    /// Rows of the opt-in matrix that noticed.
    pub opt_in_rows: Vec<&'static str>,
}

/// What noticed a fault of the reader.
#[derive(Debug, Clone, Serialize)]
pub struct ReaderMutation {
    /// The fault.
    pub fault: String,
    /// Cases of the pinned suite noticed it, and it let something through.
    pub caught: bool,
    /// Number of cases in which something came through that must not.
    pub let_through: usize,
    /// The first of them.
    pub first_cases: Vec<String>,
}

/// Faults that are planted in the reader, with their names.
const READERS: &[(&str, ReaderFault)] = &[
    ("the closed world off", ReaderFault::ClosedWorldOff),
    ("units ignored", ReaderFault::UnitsIgnored),
    ("'not' as a filler", ReaderFault::WiderFillers("not")),
    ("'tomorrow' as a filler", ReaderFault::WiderFillers("tomorrow")),
    ("'cancel' as a filler", ReaderFault::WiderFillers("cancel")),
    ("'不要' as a filler", ReaderFault::WiderFillers("不要")),
    ("'两天后' as a filler", ReaderFault::WiderFillers("两天后")),
    ("'妈妈说' as a filler", ReaderFault::WiderFillers("妈妈说")),
];

/// Runs the suite with each fault of the reader planted.
pub(crate) fn run_readers(
    registry: &Registry,
    policy: &Policy,
    suite: &Suite,
) -> Result<Vec<ReaderMutation>, StoreError> {
    let key = SelfCheck::planting();
    READERS
        .iter()
        .map(|(name, fault)| {
            let gates = GateSet::with_reader(*fault, &key);
            let mut house = House::new(registry.clone(), policy.clone(), Store::in_memory()?, gates);
            let suite_run = run(&mut house, suite);
            let through: Vec<String> = suite_run
                .failed()
                .filter(|r| r.differences.iter().any(|d| d.starts_with("fail closed")))
                .map(|r| r.id.clone())
                .collect();
            Ok(ReaderMutation {
                fault: (*name).to_owned(),
                caught: !through.is_empty(),
                let_through: through.len(),
                first_cases: through.into_iter().take(5).collect(),
            })
        })
        .collect()
}

/// Runs suite and matrix with each gate off.
pub(crate) fn run_all(
    registry: &Registry,
    policy: &Policy,
    suite: &Suite,
    operator: &Operator,
) -> Result<Vec<MutationResult>, StoreError> {
    let key = SelfCheck::planting();
    let mut results = Vec::new();
    for gate in Gate::ALL {
        let gates = GateSet::without(*gate, &key);
        let mut house = House::new(registry.clone(), policy.clone(), Store::in_memory()?, gates);
        let suite_run = run(&mut house, suite);
        let noticed: Vec<String> = suite_run.failed().map(|r| r.id.clone()).collect();
        let let_through =
            suite_run.failed().filter(|r| r.differences.iter().any(|d| !d.starts_with("blocked_by"))).count();
        let rows: Vec<&'static str> =
            opt_in::run(registry, policy, operator, gates).into_iter().filter(|r| !r.ok).map(|r| r.case).collect();
        results.push(MutationResult {
            gate: *gate,
            caught: !noticed.is_empty() || !rows.is_empty(),
            cases: noticed.len(),
            let_through,
            first_cases: noticed.into_iter().take(5).collect(),
            opt_in_rows: rows,
        });
    }
    Ok(results)
}
