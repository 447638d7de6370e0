//! Peak memory of a piece of work.

use std::fs;

/// Watches the process's resident memory from [`PeakMemory::start`] on.
///
/// The kernel's high-water mark (`VmHWM`) is set back to what is resident now (`/proc/self/clear_refs`, 5), so the
/// difference is what the work took at most: heap, mapped files that were read, everything.
#[derive(Debug)]
pub struct PeakMemory {
    before: u64,
}

impl PeakMemory {
    /// Starts watching; `None` where the kernel does not allow it.
    pub fn start() -> Option<Self> {
        fs::write("/proc/self/clear_refs", "5").ok()?;
        Some(Self { before: field(&status()?, "VmRSS:")? })
    }

    /// Bytes beyond what was resident at the start, at most.
    pub fn peak(&self) -> Option<u64> {
        Some(field(&status()?, "VmHWM:")?.saturating_sub(self.before))
    }
}

fn status() -> Option<String> {
    fs::read_to_string("/proc/self/status").ok()
}

/// A field of `/proc/self/status`, in bytes.
fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find(|l| l.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::{PeakMemory, field};

    #[test]
    fn reads_the_kernels_table() {
        let table = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t 7 kB\n";
        assert_eq!((field(table, "VmHWM:"), field(table, "VmRSS:")), (Some(2 << 20), Some(7168)));
        assert_eq!(field(table, "VmPeak:"), None);
    }

    #[test]
    fn a_touched_allocation_shows() {
        const N: usize = 64 << 20;
        let Some(meter) = PeakMemory::start() else { return };
        let block = vec![1u8; N];
        assert_eq!(std::hint::black_box(&block)[N - 1], 1);
        drop(block);
        let peak = meter.peak().unwrap();
        assert!(peak >= (N as u64) / 10 * 9, "{peak}");
    }
}
