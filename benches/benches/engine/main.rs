//! What a durable life cycle costs: through SQLite alone, through Redrive's engine, through its rivals.
//!
//! `cargo bench -p redrive-benches --bench engine`. Prints tables, then a line for each target, then all
//! figures as JSON. Every turn of every contender is a process of its own; with `--contender` this program is
//! that process.

mod contender;

mod disk;

mod redrive_contender;

mod report;

mod race;

mod sqlite_baseline;

mod rivals;

mod run;

use std::process::ExitCode;

use redrive_benches::program;
use redrive_benches::turn::Turn;

fn main() -> ExitCode {
    program::run(contender::FLAG, contend, run::all)
}

/// One turn of a contender that lives in this program.
fn contend(name: &str, args: &[String]) -> Result<(), String> {
    let turn = Turn::from_args(args)?;
    let outcome = match name {
        redrive_contender::NAME => redrive_contender::measure(&turn)?,
        sqlite_baseline::NAME => sqlite_baseline::measure(&turn)?,
        other => return Err(format!("no contender is called {other}")),
    };
    println!("{}", outcome.to_line());
    Ok(())
}
