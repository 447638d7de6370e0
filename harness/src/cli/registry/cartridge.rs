//! `--cartridge registry:CHANNEL`: what a channel points at, verified and from the user's cache.

use std::path::Path;

use registry::{ChannelName, Held, Kind};

use super::place::{Where, failed};
use crate::cli::{CliError, output};

/// What comes before a channel's name where a file's is expected.
const PREFIX: &str = "registry:";

/// The file of a cartridge that is named `registry:CHANNEL`; `None` for any other name. It stays in the cache while the
/// result is alive.
pub(in crate::cli) fn from_registry(name: Option<&Path>, place: &Where) -> Result<Option<Held>, CliError> {
    let Some(channel) = name.and_then(|name| name.to_str()?.strip_prefix(PREFIX)) else {
        if place.registry.is_some() || !place.operator.is_empty() {
            let problem = format!("--registry and --operator are for --cartridge {PREFIX}CHANNEL, which was not given");
            return Err(CliError::Usage(problem));
        }
        return Ok(None);
    };
    let channel = ChannelName::parse(channel).map_err(failed)?;
    let registry = place.open()?;
    let served = registry.served(&channel).map_err(failed)?;
    for warning in &served.channel.warnings {
        output::note(format_args!("warning: {}", output::for_terminal(warning)));
    }
    let version = served.manifest.version();
    if version.kind != Kind::Cartridge {
        return Err(CliError::Usage(format!("--cartridge {PREFIX}{channel}: the channel carries models")));
    }
    let held = registry.serve_held(&served).map_err(failed)?;
    output::note(format_args!(
        "cartridge: {} {} (record {} of {channel})",
        version.name,
        served.manifest.digest(),
        served.number
    ));
    Ok(Some(held))
}
