//! Will a context fit? Asked before the engine allocates: its own answer is an abort or the kernel's OOM killer.

use std::fs;
use std::path::{Path, PathBuf};

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
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = control_groups(&groups).iter().filter_map(|folder| group_memory(folder)).min();
    Some([group, address_space()].into_iter().flatten().fold(host, u64::min))
}

/// The folder of this process's control group (v2) and of every group around it: the limit of each one holds.
fn control_groups(proc_self_cgroup: &str) -> Vec<PathBuf> {
    let Some(own) = proc_self_cgroup.lines().find_map(|line| line.strip_prefix("0::/")) else { return Vec::new() };
    let root = Path::new("/sys/fs/cgroup");
    root.join(own).ancestors().take_while(|folder| folder.starts_with(root)).map(Path::to_owned).collect()
}

/// What a control group may still take; `None` where it is not limited.
fn group_memory(folder: &Path) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    Some(read("memory.max")?.saturating_sub(read("memory.current")?))
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
    use super::{address_space_limit, control_groups, group_memory, mem_available};
    use std::path::{Path, PathBuf};

    #[test]
    fn the_limits_of_all_groups_around_this_process_hold() {
        let folders = |text: &str| control_groups(text);
        let named = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        let all = ["/sys/fs/cgroup/user.slice/a.scope", "/sys/fs/cgroup/user.slice", "/sys/fs/cgroup"];
        assert_eq!(folders("12:cpu:/old\n0::/user.slice/a.scope\n"), named(&all));
        assert_eq!(folders("0::/\n"), named(&["/sys/fs/cgroup/"]));
        assert_eq!(folders("3:memory:/v1/only\n"), named(&[]), "version 1 has other files");
    }

    #[test]
    fn a_group_without_a_limit_bounds_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        assert_eq!(group_memory(folder.path()), None);
        write("memory.current", "300\n");
        write("memory.max", "max\n");
        assert_eq!(group_memory(folder.path()), None);
        write("memory.max", "1000\n");
        assert_eq!(group_memory(folder.path()), Some(700));
        write("memory.max", "200\n");
        assert_eq!(group_memory(folder.path()), Some(0), "more is used than allowed since the limit was lowered");
        assert_eq!(group_memory(Path::new("/nowhere")), None);
    }

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
