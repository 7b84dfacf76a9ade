//! Child processes: how to call cargo, and how to read a child's output as it comes.
//!
//! Children stay in our process group, so that Ctrl-C ends them along with us.

use std::env;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

/// The cargo that runs us, with an environment as if called from a shell.
///
/// `cargo run` tells us about our own package in `CARGO_PKG_*` and the like. Passed on, they would differ
/// from those of a plain `cargo build`, and build scripts that watch them would run again at each change
/// between the two.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in env::vars_os() {
        let known = name.to_string_lossy();
        if known.starts_with("CARGO_PKG_") || known.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Adds words to a variable of flags, such as `RUSTFLAGS`, and keeps those the user has set.
pub(crate) fn add_flags(command: &mut Command, variable: &str, flags: &str) {
    let flags = match env::var(variable) {
        Ok(set) if !set.is_empty() => format!("{set} {flags}"),
        _ => flags.to_owned(),
    };
    command.env(variable, flags);
}

/// Runs a child, hands over its stdout line by line, and leaves its stderr alone.
pub(crate) fn stream(command: &mut Command, mut on_line: impl FnMut(&str)) -> io::Result<ExitStatus> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    if let Some(stdout) = child.stdout.take() {
        let mut stdout = BufReader::new(stdout);
        let mut line = Vec::new();
        while stdout.read_until(b'\n', &mut line)? > 0 {
            on_line(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']));
            line.clear();
        }
    }
    child.wait()
}

/// The command as typed in a shell, with the variables it sets.
pub(crate) fn describe(command: &Command) -> String {
    let set = command.get_envs().filter_map(|(name, value)| {
        value.map(|value| format!("{}={:?}", name.to_string_lossy(), value.to_string_lossy()))
    });
    let program = Path::new(command.get_program()).file_name().unwrap_or(OsStr::new("?"));
    let words = command.get_args().map(|word| word.to_string_lossy().into_owned());
    let words: Vec<String> = set.chain([program.to_string_lossy().into_owned()]).chain(words).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_arrive_one_by_one_and_the_status_last() {
        let mut lines = Vec::new();
        let mut shell = Command::new("sh");
        let status = stream(shell.args(["-c", "echo one; printf two; exit 3"]), |line| {
            lines.push(line.to_owned());
        });
        assert_eq!(lines, ["one", "two"]);
        assert_eq!(status.unwrap().code(), Some(3));
    }

    #[test]
    fn a_command_is_described_as_typed() {
        let mut command = Command::new("/somewhere/bin/cargo");
        command.args(["test", "--doc"]).env("RUSTFLAGS", "--cfg loom").env_remove("CARGO_PKG_NAME");
        assert_eq!(describe(&command), r#"RUSTFLAGS="--cfg loom" cargo test --doc"#);
    }
}
