//! What the idempotent layer costs: fresh and replayed POSTs through it, beside the same handler without it, the raw
//! commits of the same rows, and a rival.
//!
//! `cargo bench -p redrive-benches --bench ledger`. Prints a table, then a line for each target, then all figures as
//! JSON. Every side is a process of its own and all take turns; this one is the client. What a request costs is what the
//! side's process used of a processor, by the system's own count; the client's part is not in it.

mod load;

mod report;

mod sqlite_baseline;

mod rival;

mod contenders;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use redrive_benches::conditions::{self, Conditions};
use redrive_benches::program;
use redrive_benches::turn::value;

use load::{Keys, Load};
use report::{Row, Run};

/// Connections at once, and requests in a raw commit.
const CONNECTIONS: usize = 64;

/// Keys that are replayed.
const REPLAYED: usize = 1024;

fn main() -> ExitCode {
    program::run(contenders::FLAG, contenders::be, run)
}

fn run(args: &[String]) -> Result<(), String> {
    let number = |word, otherwise: u32| match value(args, word) {
        Ok(text) => text.parse().map_err(|error| format!("{word} {text}: {error}")),
        Err(_) => Ok(otherwise),
    };
    let rounds = number("--rounds", 5)?;
    let time = Duration::from_secs(u64::from(number("--seconds", 2)?));
    let folder = value(args, "--folder").unwrap_or(env!("CARGO_TARGET_TMPDIR"));
    std::fs::create_dir_all(folder).map_err(|error| format!("{folder}: {error}"))?;
    let rivals = !args.iter().any(|arg| arg == "--no-rivals");
    if rivals {
        rival::build()?;
    }
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;

    let (load, started) = (conditions::load(), Instant::now());
    let mut rows = Row::all(rivals);
    for _ in 0..rounds {
        let folder = tempfile::tempdir_in(folder).map_err(|error| format!("{folder}: {error}"))?;
        runtime.block_on(round(&mut rows, folder.path(), time))?;
    }
    let conditions = Conditions::here();
    report::report(&Run { conditions, load, rounds, time, took: started.elapsed(), rows });
    Ok(())
}

/// Every side once.
async fn round(rows: &mut [Row], folder: &Path, time: Duration) -> Result<(), String> {
    for row in rows {
        let folder = tempfile::tempdir_in(folder).map_err(|error| error.to_string())?;
        let mut side = contenders::start(row.side, folder.path(), time)?;
        let first = side.line()?;
        let measured = match row.keys {
            // It measures itself.
            None => load::Measured { rate: number(&first)?, micros: None },
            Some(keys) => {
                let load = Load { address: first, connections: CONNECTIONS, keys, time, server: side.id() };
                load.run().await?
            }
        };
        row.rates.push(measured.rate);
        row.micros.extend(measured.micros);
    }
    Ok(())
}

fn number(text: &str) -> Result<f64, String> {
    text.trim().parse().map_err(|error| format!("`{text}`: {error}"))
}

impl Keys {
    /// The key of a connection's request.
    fn key(self, connection: usize, turn: usize) -> String {
        match self {
            Self::Fresh => format!("{connection:04}-{turn:012}"),
            Self::Replayed => format!("{connection:04}-{:012}", turn % (REPLAYED / CONNECTIONS)),
        }
    }
}
