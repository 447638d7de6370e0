//! An executor takes an authorized plan only, and only the execution stage makes one.
use agent::executor::Executor;
use agent::permit::{AuthorizedPlan, ExecutePermit};
use agent::pipeline::Agent;
use agent::plan::ExecutionPlan;

fn plain(executor: &dyn Executor, plan: ExecutionPlan) {
    let _ = executor.execute(plan);
}

fn bound_by_hand(permit: ExecutePermit, plan: ExecutionPlan) -> Option<AuthorizedPlan> {
    permit.bind(plan)
}

fn without_permit(agent: &mut Agent, executor: &dyn Executor) {
    let _ = agent.execute("tr_1", None, executor);
}

fn main() {}
