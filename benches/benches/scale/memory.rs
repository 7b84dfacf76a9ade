//! How much of the machine's memory this process has, as the system says.

use crate::Fallible;

/// The most that it ever had, in MB.
pub(crate) fn most_mb() -> Fallible<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM here")?;
    let kib: u32 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(f64::from(kib) * 1024.0 / 1e6)
}
