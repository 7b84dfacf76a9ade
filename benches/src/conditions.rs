//! Under which conditions a figure was measured: without them it says nothing.

use std::fmt;
use std::process::Command;

/// The machine and the compiler.
#[derive(Debug, Clone)]
pub struct Conditions {
    /// The processor's name, as the system gives it.
    pub cpu: String,
    /// How many of its cores this process may use.
    pub cores: usize,
    /// The compiler's version.
    pub rustc: String,
}

const UNKNOWN: &str = "unknown";

impl Conditions {
    /// Looks.
    #[must_use]
    pub fn here() -> Self {
        Self {
            cpu: cpu().unwrap_or_else(|| UNKNOWN.to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            rustc: rustc().unwrap_or_else(|| UNKNOWN.to_owned()),
        }
    }
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpu, cores, rustc } = self;
        write!(f, "{cpu}, {cores} cores, {rustc}")
    }
}

/// How many processes wanted a processor over the last minute, on average; none where the system does not say.
#[must_use]
pub fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

fn cpu() -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn rustc() -> Option<String> {
    let said = Command::new("rustc").arg("--version").output().ok()?;
    Some(String::from_utf8(said.stdout).ok()?.trim().to_owned())
}
