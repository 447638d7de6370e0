//! Will a context fit? Asked before the engine allocates: its own answer is an abort or the kernel's OOM killer.

use std::fs;

use crate::Error;
use crate::context_params::EffectiveParams;
use crate::model::Model;

/// Graphs, output rows, allocator slack.
const FIXED: u64 = 64 << 20;

/// Estimated bytes of a context beside the model: KV cache and the largest attention scratch.
pub(crate) fn estimate(model: &Model, params: &EffectiveParams) -> u64 {
    let n_ctx = u64::from(params.n_ctx);
    let row = |kv: crate::state::KvType, n: u32| kv.row_bytes(n).unwrap_or(u64::from(n) * 4);
    let per_cell: u64 = model
        .layer_geometry()
        .iter()
        .map(|l| row(params.type_k, l.n_embd_k()) + row(params.type_v, l.n_embd_v()))
        .fold(0, u64::saturating_add);
    let heads = u64::from(model.info().hyperparameters().n_head);
    let scores = if params.flash_attn { 0 } else { heads * 4 * u64::from(params.n_ubatch) };
    n_ctx.saturating_mul(per_cell.saturating_add(scores)).saturating_add(FIXED)
}

pub(crate) fn require(model: &Model, params: &EffectiveParams, allow_overcommit: bool) -> Result<(), Error> {
    let needed = estimate(model, params);
    match available() {
        Some(available) if needed > available && !allow_overcommit => {
            Err(Error::ContextMemory { n_ctx: params.n_ctx, needed, available })
        }
        _ => Ok(()),
    }
}

/// Memory that this process may still take: the kernel's `MemAvailable`, bounded by the cgroup (v2).
pub fn available() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let host = mem_available(&meminfo)?;
    let read = |name: &str| fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?.trim().parse::<u64>().ok();
    let group = read("memory.max").zip(read("memory.current")).map(|(max, current)| max.saturating_sub(current));
    Some(group.map_or(host, |g| g.min(host)))
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|l| l.starts_with("MemAvailable:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::mem_available;

    #[test]
    fn reads_the_kernels_table() {
        assert_eq!(mem_available("MemTotal: 10 kB\nMemAvailable:   2048 kB\n"), Some(2 << 20));
        assert_eq!(mem_available("MemTotal: 10 kB\n"), None);
    }
}
