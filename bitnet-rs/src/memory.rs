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
    let row = |kv: kv::KvType, n: u32| kv.row_bytes(n).unwrap_or(u64::from(n) * 4);
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

/// Memory that this process may still take: the kernel's `MemAvailable`, bounded by the cgroup (v2) and by the
/// limit on its address space (`ulimit -v`).
pub fn available() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let host = mem_available(&meminfo)?;
    let read = |name: &str| fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?.trim().parse::<u64>().ok();
    let group = read("memory.max").zip(read("memory.current")).map(|(max, current)| max.saturating_sub(current));
    let host = group.map_or(host, |g| g.min(host));
    Some(address_space().map_or(host, |left| left.min(host)))
}

/// What `RLIMIT_AS` leaves beyond the address space in use; `None` where it is unlimited.
fn address_space() -> Option<u64> {
    let limit = address_space_limit(&fs::read_to_string("/proc/self/limits").ok()?)?;
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    // SAFETY: takes a number.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
    let used = statm.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(page)?;
    Some(limit.saturating_sub(used))
}

/// The soft limit in `/proc/self/limits`.
fn address_space_limit(limits: &str) -> Option<u64> {
    limits.lines().find_map(|l| l.strip_prefix("Max address space"))?.split_whitespace().next()?.parse().ok()
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|l| l.starts_with("MemAvailable:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::{address_space_limit, mem_available};

    #[test]
    fn reads_the_kernels_table() {
        assert_eq!(mem_available("MemTotal: 10 kB\nMemAvailable:   2048 kB\n"), Some(2 << 20));
        assert_eq!(mem_available("MemTotal: 10 kB\n"), None);
    }

    #[test]
    fn reads_the_address_space_limit() {
        let limits =
            |soft| format!("Max processes 1 1 processes\nMax address space         {soft}  unlimited  bytes\n");
        assert_eq!(address_space_limit(&limits("4194304")), Some(4 << 20));
        assert_eq!(address_space_limit(&limits("unlimited")), None);
    }
}
