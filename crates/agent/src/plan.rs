//! Planner: [`GatedCommand`] → [`ExecutionPlan`], the dry-run.
//!
//! A plan is made from the registry and the gated command only, by the adapter of the device's back
//! end. A back end without an adapter is an error, never a fall-back to another one.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::command::CommandParams;
use super::gate_engine::GatedCommand;
use super::registry::Device;
use super::vocabulary::{Action, Backend, Decision, Risk};

/// BLAKE3 of a plan, the thing that a confirmation is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanHash(blake3::Hash);

impl PlanHash {
    /// Parses 64 hex digits.
    #[must_use]
    pub fn parse(hex: &str) -> Option<Self> {
        blake3::Hash::from_hex(hex.trim()).ok().map(PlanHash)
    }
}

impl std::fmt::Display for PlanHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.to_hex())
    }
}

/// What would be done. Private fields, no constructor but the planner, no `Deserialize`: a stored
/// plan never becomes one again, it is only compared with a plan that the gates made anew.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExecutionPlan {
    trace_id: String,
    dry_run: bool,
    device_id: String,
    action: Action,
    params: CommandParams,
    decision: Decision,
    risk: Risk,
    backend: Backend,
    payload: Value,
}

impl ExecutionPlan {
    /// The run it belongs to.
    #[must_use]
    pub fn trace_id(&self) -> &str {
        &self.trace_id
    }

    /// Target.
    #[must_use]
    pub fn device_id(&self) -> &str {
        &self.device_id
    }

    /// Action.
    #[must_use]
    pub fn action(&self) -> Action {
        self.action
    }

    /// Parameters.
    #[must_use]
    pub fn params(&self) -> &CommandParams {
        &self.params
    }

    /// Decision of the gates.
    #[must_use]
    pub fn decision(&self) -> Decision {
        self.decision
    }

    /// Risk by the registry.
    #[must_use]
    pub fn risk(&self) -> Risk {
        self.risk
    }

    /// Back end by the registry.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// What the adapter would send.
    #[must_use]
    pub fn payload(&self) -> &Value {
        &self.payload
    }

    /// Whether it carries a condition; such a plan is never executed here (nothing schedules).
    #[must_use]
    pub fn is_conditioned(&self) -> bool {
        self.params.time_after.is_some()
    }

    /// Hash of everything in it.
    #[must_use]
    pub fn hash(&self) -> PlanHash {
        // Field order is the struct's, map order the adapter's: the same plan has the same bytes.
        PlanHash(blake3::hash(&serde_json::to_vec(self).unwrap_or_default()))
    }
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Nothing here speaks to the back end.
    #[error("device {device_id} is reached by {backend}, and there is no adapter for it")]
    NoAdapter {
        /// Device.
        device_id: String,
        /// Its back end.
        backend: Backend,
    },
}

/// Makes plans. It has the adapters; only `mock` exists.
#[derive(Debug, Default, Clone, Copy)]
pub struct Planner;

impl Planner {
    /// Whether a device can be planned for.
    ///
    /// # Errors
    /// [`PlanError::NoAdapter`].
    pub fn ready(self, device: &Device) -> Result<(), PlanError> {
        match device.backend {
            Backend::Mock => Ok(()),
            backend => Err(PlanError::NoAdapter { device_id: device.device_id.clone(), backend }),
        }
    }

    /// The plan for a gated command.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn plan(self, gated: GatedCommand, trace_id: &str) -> Result<ExecutionPlan, PlanError> {
        self.ready(gated.device())?;
        let device = gated.device();
        let command = gated.command();
        Ok(ExecutionPlan {
            trace_id: trace_id.to_owned(),
            dry_run: true,
            device_id: device.device_id.clone(),
            action: command.action(),
            params: command.params().clone(),
            decision: gated.evaluation().decision(),
            risk: device.risk_level,
            backend: device.backend,
            payload: mock_payload(device, command.action(), command.params()),
        })
    }
}

fn mock_payload(device: &Device, action: Action, params: &CommandParams) -> Value {
    let operation = match action {
        Action::TurnOn => "set_power_on",
        Action::TurnOff => "set_power_off",
        other => other.as_str(),
    };
    let mut values = Map::new();
    if let Some(brightness) = params.brightness {
        values.insert("brightness".into(), json!(brightness));
    }
    if let Some(temperature) = params.temperature {
        values.insert("temperature".into(), json!(temperature));
    }
    if let Some(mode) = params.mode {
        values.insert("mode".into(), json!(mode));
    }
    let mut payload = json!({
        "backend": device.backend,
        "device_id": device.device_id,
        "backend_entity_id": device.backend_entity_id,
        "room": device.room,
        "device_type": device.device_type,
        "operation": operation,
        "params": values,
    });
    if let Some(time) = params.time_after {
        payload["condition"] = json!({ "time_after": time });
    }
    payload
}
