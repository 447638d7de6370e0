//! What a device type can do, and which parameter each action needs.

use super::command::NormalizedCommand;
use super::registry::Registry;
use super::vocabulary::{Action, DeviceType};

/// Checks action and parameters of a command against the tables. Every action needs exactly its own
/// parameter: a missing one is not a default, a foreign one is not ignored.
///
/// # Errors
/// Says what does not fit.
pub(crate) fn check(command: &NormalizedCommand, registry: &Registry) -> Result<(), String> {
    let kind = command.device_type();
    if kind == DeviceType::Unknown {
        return Err("no device type, so nothing is known of what it can do".to_owned());
    }
    let action = command.action();
    let Some(capability) = registry.capability(kind, action) else {
        return Err(format!("a {kind} cannot {action}"));
    };
    let params = command.params();
    let range = |name: &str, value: Option<i32>| -> Result<(), String> {
        let Some(value) = value else { return Err(format!("{action} needs {name}")) };
        match (capability.min, capability.max) {
            (Some(min), Some(max)) if (min..=max).contains(&value) => Ok(()),
            (Some(min), Some(max)) => Err(format!("{name} {value} is outside {min}..={max}")),
            // The registry refuses such tables at load; without limits nothing is inside.
            _ => Err(format!("{name} has no limits in the registry")),
        }
    };
    match action {
        Action::SetBrightness => range("brightness", params.brightness.map(i32::from))?,
        Action::SetTemperature => range("temperature", params.temperature.map(i32::from))?,
        Action::SetMode => match (params.mode, &capability.modes) {
            (None, _) => return Err("set_mode needs a mode".to_owned()),
            (Some(mode), Some(modes)) if !modes.contains(&mode) => {
                return Err(format!("mode {mode} is not one of this {kind}'s"));
            }
            _ => {}
        },
        _ => {}
    }
    for (name, present, belongs) in [
        ("brightness", params.brightness.is_some(), Action::SetBrightness),
        ("temperature", params.temperature.is_some(), Action::SetTemperature),
        ("mode", params.mode.is_some(), Action::SetMode),
    ] {
        if present && action != belongs {
            return Err(format!("{action} takes no {name}"));
        }
    }
    Ok(())
}
