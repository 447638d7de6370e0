//! Each of the ten gates switched off in turn: something must notice.

use serde::Serialize;

use super::case_runs::{House, run};
use super::opt_in::{self, Operator};
use super::suite::Suite;
use crate::gate_engine::{GateSet, SelfCheck};
use crate::policy::Policy;
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
