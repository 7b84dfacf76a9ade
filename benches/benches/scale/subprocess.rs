//! A part of the run in a process of its own: what it is asked, and what it answers.

use std::path::Path;
use std::process::{Command, Stdio};

use redrive_benches::turn::value;
use serde_json::Value;

use crate::{Fallible, fill, lateness, life_cycles, operator_lists, redrive_all, reopen};

/// Says which part this program is to be.
pub(crate) const FLAG: &str = "--part";

/// A part, asked for.
pub(crate) struct Part<'a> {
    pub(crate) name: &'a str,
    pub(crate) file: &'a Path,
    /// Numbers with their names.
    pub(crate) numbers: &'a [(&'a str, u64)],
}

impl Part<'_> {
    /// Runs it to its end and reads its answer; its talk goes to our stderr.
    pub(crate) fn run(&self) -> Result<Value, String> {
        let program = std::env::current_exe().map_err(|error| format!("where am I: {error}"))?;
        let mut command = Command::new(program);
        command.args([FLAG, self.name, "--file"]).arg(self.file);
        for (name, number) in self.numbers {
            command.arg(format!("--{name}")).arg(number.to_string());
        }
        let said = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
        let said = said.map_err(|error| format!("{}: {error}", self.name))?;
        if !said.status.success() {
            return Err(format!("{}: {}", self.name, said.status));
        }
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let line = said.lines().find_map(|line| line.strip_prefix("outcome "));
        let line = line.ok_or_else(|| format!("{}: no line `outcome …`", self.name))?;
        serde_json::from_str(line).map_err(|error| format!("{}: {error}", self.name))
    }
}

/// The arguments of a part.
pub(crate) struct PartArgs<'a> {
    pub(crate) file: &'a Path,
    args: &'a [String],
}

impl PartArgs<'_> {
    pub(crate) fn number(&self, name: &str) -> Fallible<u64> {
        Ok(value(self.args, &format!("--{name}"))?.parse()?)
    }
}

/// Is this part.
pub(crate) fn be(name: &str, args: &[String]) -> Fallible<()> {
    let told = PartArgs { file: Path::new(value(args, "--file")?), args };
    let runtime = tokio::runtime::Runtime::new()?;
    let outcome = runtime.block_on(async {
        match name {
            "fill-waiting" => fill::waiting(&told).await,
            "fill-dead" => fill::dead(&told).await,
            "life" => life_cycles::measure(&told).await,
            "reopen" => reopen::measure(&told).await,
            "due" => lateness::measure(&told).await,
            "pages" => operator_lists::measure(&told).await,
            "put-back" => redrive_all::measure(&told).await,
            other => Err(format!("no part is called {other}").into()),
        }
    });
    // The process ends here, and with it the publishers.
    runtime.shutdown_background();
    println!("outcome {}", outcome?);
    Ok(())
}
