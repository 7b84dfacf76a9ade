//! A contender as a separate process: started by the benchmark, it prints a line on its standard output, and lives
//! until the pipe closes.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

/// A side that runs. Ends when it is dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Running {
    /// Starts a program as a side.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn start(command: &mut Command) -> Result<Self, String> {
        let what = format!("{}", command.get_program().display());
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| format!("{what}: {error}"))?;
        let lines = BufReader::new(child.stdout.take().ok_or("no output")?);
        Ok(Self { child, lines })
    }

    /// What it says next.
    ///
    /// # Errors
    /// Where it says nothing more.
    pub fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        self.lines.read_line(&mut line).map_err(|error| error.to_string())?;
        let line = line.trim().to_owned();
        if line.is_empty() { Err("a side ended without a word".to_owned()) } else { Ok(line) }
    }

    /// Its process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Says a line to the one that started this.
pub fn say(line: impl std::fmt::Display) {
    println!("{line}");
    let _ = std::io::stdout().flush();
}

/// Returns when the one that started this is gone. Blocks.
pub fn until_alone() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// How much of a processor a process has used, all its threads together, in seconds. `None` where the system does not
/// say.
#[must_use]
pub fn used(process: u32) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // What stands in brackets is the program's name, and may have spaces in it.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u32>().ok()).map(f64::from);
    // A hundredth of a second, on every common Linux.
    Some((ticks(11)? + ticks(12)?) / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_works_has_used_something() {
        let before = used(std::process::id()).unwrap();
        let mut sum = 0_u64;
        while used(std::process::id()).unwrap() < before + 0.05 {
            sum = (0..1_000_000_u64).fold(sum, |sum, number| sum.wrapping_mul(31).wrapping_add(number));
        }
        std::hint::black_box(sum);
    }
}
