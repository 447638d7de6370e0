//! The opt-in matrix: for every opt-in, all others present and it alone missing: refused, no call.
//! All present: exactly one call.

use std::path::Path;

use serde::Serialize;

use super::case_runs::House;
use crate::execute::ExecuteError;
use crate::executor::MockExecutor;
use crate::gate_engine::GateSet;
use crate::guard::UserInput;
use crate::permit::{Confirmation, ExecuteFlag, ExecutePermit, OperatorConfig, PermitError};
use crate::plan::PlanHash;
use crate::policy::Policy;
use crate::registry::Registry;
use crate::store::Store;
use crate::vocabulary::{Decision, DeviceType, Risk};

/// One row of the matrix.
#[derive(Debug, Clone, Serialize)]
pub struct OptInRow {
    /// What is missing, or that nothing is.
    pub case: &'static str,
    /// Calls that the executor must have seen.
    pub expected_calls: usize,
    /// Calls that it saw.
    pub calls: usize,
    /// What happened.
    pub outcome: String,
    /// Calls as expected, and refused where nothing may happen.
    pub ok: bool,
}

/// The operator's side: files with and without the permission.
pub(crate) struct Operator {
    pub(crate) on: OperatorConfig,
    off: OperatorConfig,
    other_backend: OperatorConfig,
}

/// Writes an operator file that only its owner can write.
fn operator_file(path: &Path, text: &str) -> std::io::Result<()> {
    std::fs::write(path, text)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    }
    Ok(())
}

impl Operator {
    /// Loads three configurations from one file in `dir`, which is removed again.
    pub(crate) fn in_dir(dir: &Path) -> Result<Self, PermitError> {
        let path = dir.join("operator.toml");
        let load = |text: &str| -> Result<OperatorConfig, PermitError> {
            let file = |source| PermitError::Read(crate::registry::RegistryError::Read { path: path.clone(), source });
            operator_file(&path, text).map_err(file)?;
            let config = OperatorConfig::load(&path);
            std::fs::remove_file(&path).map_err(file)?;
            config
        };
        Ok(Operator {
            on: load("[execute]\nenabled = true\nbackends = [\"mock\"]\n")?,
            off: load("[execute]\nenabled = false\nbackends = [\"mock\"]\n")?,
            other_backend: load("[execute]\nenabled = true\nbackends = [\"mqtt\"]\n")?,
        })
    }
}

/// A permit of the operator.
pub(crate) fn permit(config: &OperatorConfig, given: bool) -> Result<ExecutePermit, PermitError> {
    ExecutePermit::grant(config, &if given { ExecuteFlag::given() } else { ExecuteFlag::absent() })
}

struct Scene {
    house: House,
    executor: MockExecutor,
    low: String,
    high: String,
    high_hash: Option<PlanHash>,
    low_hash: Option<PlanHash>,
}

/// Runs the matrix on the first light, lock and blocked device of the embedded registry's kind.
pub(crate) fn run(registry: &Registry, policy: &Policy, operator: &Operator, gates: GateSet) -> Vec<OptInRow> {
    type Act = fn(&mut Scene, &Operator) -> Result<String, String>;
    let rows: &[(&'static str, usize, Act)] = &[
        ("all present, low risk", 1, |s, o| s.execute_low(o)),
        ("all present, high risk, confirmed", 1, |s, o| s.execute_high(o, s.high_hash)),
        ("operator configuration disabled", 0, |s, o| {
            let permit = permit(&o.off, true).map_err(|e| e.to_string())?;
            s.execute(&s.low.clone(), permit, None)
        }),
        ("--execute not given", 0, |s, o| {
            let permit = permit(&o.on, false).map_err(|e| e.to_string())?;
            s.execute(&s.low.clone(), permit, None)
        }),
        ("back end not in the operator's list", 0, |s, o| {
            let permit = permit(&o.other_backend, true).map_err(|e| e.to_string())?;
            s.execute(&s.low.clone(), permit, None)
        }),
        ("no recorded run", 0, |s, o| s.execute("tr_0000000000000000", on(o)?, None)),
        ("recorded run without a plan", 0, |s, o| {
            let trace = s.say("打开阳台灯")?;
            s.execute(&trace, on(o)?, None)
        }),
        ("executed before", 1, |s, o| {
            s.execute_low(o)?;
            s.house.clock.advance_ms(5_000);
            s.execute_low(o)
        }),
        ("dry-run too old", 0, |s, o| {
            s.house.clock.advance_ms(601_000);
            s.execute_low(o)
        }),
        ("dry-run from the future", 0, |s, o| {
            s.house.clock.advance_ms(-60_000);
            s.execute_low(o)
        }),
        ("target no longer registered", 0, |s, o| {
            s.change_registry(|yaml| yaml.replace("lounge_ceiling_light", "replaced_light"));
            s.execute_low(o)
        }),
        ("target moved to another back-end id", 0, |s, o| {
            s.change_registry(|yaml| yaml.replace("sim.light.lounge", "sim.light.other"));
            s.execute_low(o)
        }),
        ("risk raised to blocked since", 0, |s, o| {
            s.change_registry(|yaml| yaml.replacen("risk_level: low", "risk_level: blocked", 1));
            s.execute_low(o)
        }),
        ("policy stricter since", 0, |s, o| {
            let text = include_str!("../../../../gates/agent/policy.toml")
                .replace("high = \"require_confirmation\"", "high = \"deny\"");
            s.house.agent.policy = Policy::from_toml(&text).map_err(|e| e.to_string())?;
            s.execute_high(o, s.high_hash)
        }),
        ("state expired since", 0, |s, o| {
            s.house.states.set_age("lounge_ceiling_light", Some(4000));
            s.execute_low(o)
        }),
        ("confirmation missing", 0, |s, o| s.execute_high(o, None)),
        ("confirmation of another plan", 0, |s, o| s.execute_high(o, s.low_hash)),
        ("time condition", 0, |s, o| {
            let trace = s.say("晚上十点后打开走廊灯")?;
            s.execute(&trace, on(o)?, None)
        }),
        ("same action a moment ago", 1, |s, o| {
            s.execute_low(o)?;
            let again = s.say("打开客厅灯")?;
            s.execute(&again, on(o)?, None)
        }),
        ("stored plan changed", 0, |s, o| {
            s.house
                .agent
                .store
                .rewrite_plan(&s.low, |plan| plan.replace("turn_on", "turn_off"))
                .map_err(|e| e.to_string())?;
            s.execute_low(o)
        }),
        ("stored plan changed with its hash", 0, |s, o| {
            s.house
                .agent
                .store
                .rewrite_plan_and_hash(&s.low, |plan| plan.replace("turn_on", "turn_off"))
                .map_err(|e| e.to_string())?;
            s.execute_low(o)
        }),
        ("name forgotten since", 0, |s, o| {
            s.say("以后把走廊灯叫做夜路灯")?;
            let trace = s.say("打开夜路灯")?;
            s.say("删除别名夜路灯")?;
            s.execute(&trace, on(o)?, None)
        }),
    ];
    rows.iter()
        .map(|(case, expected_calls, act)| {
            let outcome = Scene::new(registry, policy, gates).map(|mut scene| {
                let result = act(&mut scene, operator);
                (result, scene.executor.calls())
            });
            match outcome {
                Ok((result, calls)) => {
                    // In every row but the first two the last thing that is tried must be refused.
                    let wanted_success = case.starts_with("all present");
                    OptInRow {
                        case,
                        expected_calls: *expected_calls,
                        calls,
                        ok: calls == *expected_calls && result.is_ok() == wanted_success,
                        outcome: result.unwrap_or_else(|refusal| refusal),
                    }
                }
                Err(error) => OptInRow {
                    case,
                    expected_calls: *expected_calls,
                    calls: 0,
                    outcome: format!("no scene: {error}"),
                    ok: false,
                },
            }
        })
        .collect()
}

fn on(operator: &Operator) -> Result<ExecutePermit, String> {
    permit(&operator.on, true).map_err(|e| e.to_string())
}

impl Scene {
    fn new(registry: &Registry, policy: &Policy, gates: GateSet) -> Result<Self, String> {
        let store = Store::in_memory().map_err(|e| e.to_string())?;
        let mut house = House::new(registry.clone(), policy.clone(), store, gates);
        house.agent.set_session("matrix");
        let mut scene = Scene {
            house,
            executor: MockExecutor::default(),
            low: String::new(),
            high: String::new(),
            high_hash: None,
            low_hash: None,
        };
        scene.low = scene.say("打开客厅灯")?;
        scene.low_hash = scene.hash_of(&scene.low)?;
        scene.high = scene.say("打开大门门锁")?;
        scene.high_hash = scene.hash_of(&scene.high)?;
        Ok(scene)
    }

    fn say(&mut self, text: &str) -> Result<String, String> {
        self.house.agent.run(UserInput::new(text)).map(|o| o.trace_id).map_err(|e| e.to_string())
    }

    fn hash_of(&self, trace_id: &str) -> Result<Option<PlanHash>, String> {
        let trace = self.house.agent.store().trace(trace_id).map_err(|e| e.to_string())?;
        Ok(trace.and_then(|t| t.plan).and_then(|p| PlanHash::parse(&p.hash)))
    }

    fn execute(&mut self, trace_id: &str, permit: ExecutePermit, confirm: Option<PlanHash>) -> Result<String, String> {
        self.house
            .agent
            .execute(trace_id, permit, confirm.map(Confirmation::of), &self.executor)
            .map(|e| e.message)
            .map_err(|e: ExecuteError| e.to_string())
    }

    fn execute_low(&mut self, operator: &Operator) -> Result<String, String> {
        self.execute(&self.low.clone(), on(operator)?, None)
    }

    fn execute_high(&mut self, operator: &Operator, confirm: Option<PlanHash>) -> Result<String, String> {
        self.execute(&self.high.clone(), on(operator)?, confirm)
    }

    fn change_registry(&mut self, change: impl Fn(&str) -> String) {
        if let Ok(registry) = Registry::from_yaml(&change(include_str!("../../../../gates/agent/devices.yaml"))) {
            self.house.agent.registry = registry;
        }
    }
}

/// Tries to execute recorded runs with every opt-in given; returns how many calls came through.
pub(crate) fn try_all(house: &mut House, traces: &[String], operator: &Operator) -> Result<usize, String> {
    let executor = MockExecutor::default();
    for trace in traces {
        let stored = house.agent.store().trace(trace).map_err(|e| e.to_string())?;
        let confirm = stored.and_then(|t| t.plan).and_then(|p| PlanHash::parse(&p.hash)).map(Confirmation::of);
        // Refusals are what is expected; the calls are what is counted.
        let _ = house.agent.execute(trace, on(operator)?, confirm, &executor);
    }
    Ok(executor.calls())
}

/// Whether the registry has what the matrix speaks of.
pub(crate) fn fits(registry: &Registry, policy: &Policy) -> bool {
    let low = registry
        .by_alias("客厅灯")
        .is_some_and(|d| d.device_type == DeviceType::Light && policy.decide(d.risk_level) == Decision::Allow);
    let high = registry.by_alias("大门门锁").is_some_and(|d| d.risk_level == Risk::High);
    low && high
}
