//! How often the disk was made to keep what it was given.
//!
//! Counted from outside with `strace`, which sees every `fsync` and `fdatasync` of every library alike. Each
//! costs a stop of the thread, so this is a run of its own beside the measured ones. With `--seccomp-bpf` no
//! other call is stopped.

use std::path::Path;
use std::process::Command;

const TRACER: &str = "strace";

/// Whether syncs can be counted here.
#[must_use]
pub fn can_be_counted() -> bool {
    Command::new(TRACER).arg("--version").output().is_ok_and(|said| said.status.success())
}

/// The same command under the eyes of the tracer, which writes to `log`.
#[must_use]
pub fn traced(command: &Command, log: &Path) -> Command {
    let mut traced = Command::new(TRACER);
    traced.args(["--seccomp-bpf", "-f", "-ttt", "-e", "trace=fsync,fdatasync", "-e", "signal=none", "-o"]);
    traced.arg(log).arg(command.get_program()).args(command.get_args());
    traced
}

/// How many syncs began between two times, in seconds since 1970.
#[must_use]
pub fn between(log: &str, from: f64, to: f64) -> u32 {
    let began = log.lines().filter_map(began).filter(|time| (from..to).contains(time));
    u32::try_from(began.count()).unwrap_or(u32::MAX)
}

/// When the sync of this line began; none for a line that says how one ended, or that a thread did.
fn began(line: &str) -> Option<f64> {
    let mut words = line.split_whitespace().skip(1);
    let (time, call) = (words.next()?, words.next()?);
    (call.starts_with("fsync(") || call.starts_with("fdatasync(")).then(|| time.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
17 100.000100 fsync(3)                = 0
17 101.000000 fdatasync(4 <unfinished ...>
18 101.500000 fsync(5)                = 0
17 101.600000 <... fdatasync resumed>) = 0
18 102.000000 fsync(5)                = 0
18 102.100000 +++ exited with 0 +++
";

    #[test]
    fn syncs_count_once_and_only_while_the_clock_ran() {
        assert_eq!(between(LOG, 0.0, 200.0), 4);
        assert_eq!(between(LOG, 101.0, 102.0), 2);
        assert_eq!(between(LOG, 103.0, 200.0), 0);
    }

    #[test]
    fn a_command_is_traced_with_all_its_words() {
        let mut command = Command::new("engine");
        command.args(["--contender", "raw"]);
        let traced = traced(&command, Path::new("log"));
        let words: Vec<_> = traced.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        assert_eq!(words[words.len() - 4..], ["log", "engine", "--contender", "raw"]);
    }
}
