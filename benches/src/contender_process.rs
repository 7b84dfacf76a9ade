//! A contender's turn as a process: started, waited for, and its answer read.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::turn::Outcome;

/// Runs to the end and reads the answer; its talk goes to our stderr. One that takes longer is ended.
///
/// # Errors
/// Where it cannot be started, does not end well or in time, or says nothing of its outcome.
pub fn finish(command: &mut Command, limit: Duration) -> Result<Outcome, String> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot run {}: {error}", command.get_program().display()))?;
    let ended = wait(&mut child, limit);
    if ended.is_err() {
        // Gone already, or it goes now; what matters is said below.
        let _ = child.kill();
        let _ = child.wait();
    }
    ended?;
    let mut output = String::new();
    // What it says fits into a pipe, so that it can end before it is read.
    if let Some(mut said) = child.stdout.take() {
        said.read_to_string(&mut output).map_err(|error| error.to_string())?;
    }
    Outcome::from_output(&output)
}

fn wait(child: &mut Child, limit: Duration) -> Result<(), String> {
    let began = Instant::now();
    loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(format!("{status}")),
            None if began.elapsed() > limit => return Err(format!("not done after {limit:?}")),
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}
