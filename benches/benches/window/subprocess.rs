//! A side in a process of its own, that is told what to do line by line and answers each with a number.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::contenders::Order;

/// Says which side this program is to be.
pub(crate) const FLAG: &str = "--side";

/// A side that waits for its turn.
pub(crate) struct Side {
    pub(crate) name: &'static str,
    process: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Side {
    pub(crate) fn start(name: &'static str, order: Order, ids: usize) -> Result<Self, String> {
        let fault = |error| format!("{name}: {error}");
        let program = std::env::current_exe().map_err(fault)?;
        let mut command = Command::new(program);
        command.args([FLAG, name, "--order", order.name(), "--ids", &ids.to_string()]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(fault)?;
        let (Some(ask), Some(answers)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(format!("{name}: no pipes"));
        };
        Ok(Self { name, process, ask, answers: BufReader::new(answers) })
    }

    /// Has it do something, and waits for the number.
    pub(crate) fn ask(&mut self, what: &str) -> Result<f64, String> {
        let name = self.name;
        let fault = |error| format!("{name}: {error}");
        writeln!(self.ask, "{what}").and_then(|()| self.ask.flush()).map_err(fault)?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer).map_err(fault)?;
        answer
            .trim()
            .parse()
            .map_err(|error| format!("{name} answered `{}` to {what}: {error}", answer.trim()))
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
