//! What HTTP costs around the engine: publishing, single and in batches, and deliveries to a receiver.
//!
//! `cargo bench -p redrive-benches --bench server`. Prints a table, then a line for each target, then all figures as
//! JSON. Every side is a process of its own and all take turns; this one is the client, and the receiver.

mod load;

mod report;

mod receiver;

mod contenders;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use redrive_benches::conditions::{self, Conditions};
use redrive_benches::program;
use redrive_benches::turn::value;

use contenders::Side;
use report::{Row, Run};

/// Connections at once.
const CONNECTIONS: usize = 64;

/// Events in a batch.
const BATCH: usize = 100;

fn main() -> ExitCode {
    program::run(contenders::FLAG, contenders::be, run)
}

fn run(args: &[String]) -> Result<(), String> {
    let number = |word, otherwise: u32| match value(args, word) {
        Ok(text) => text.parse().map_err(|error| format!("{word} {text}: {error}")),
        Err(_) => Ok(otherwise),
    };
    let (rounds, deliveries) = (number("--rounds", 5)?, number("--deliveries", 20_000)?);
    let time = Duration::from_secs(u64::from(number("--seconds", 2)?));
    let folder = value(args, "--folder").unwrap_or(env!("CARGO_TARGET_TMPDIR"));
    std::fs::create_dir_all(folder).map_err(|error| format!("{folder}: {error}"))?;
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;

    let (load, started) = (conditions::load(), Instant::now());
    let mut rows = Row::all();
    for _ in 0..rounds {
        let folder = tempfile::tempdir_in(folder).map_err(|error| format!("{folder}: {error}"))?;
        runtime.block_on(round(&mut rows, folder.path(), time, deliveries))?;
    }
    let conditions = Conditions::here();
    report::report(&Run { conditions, load, rounds, time, deliveries, took: started.elapsed(), rows });
    Ok(())
}

/// Every side once.
async fn round(
    rows: &mut [Row],
    folder: &std::path::Path,
    time: Duration,
    deliveries: u32,
) -> Result<(), String> {
    for row in rows {
        let folder = tempfile::tempdir_in(folder).map_err(|error| error.to_string())?;
        let rate = match row.side {
            Side::Plain | Side::Server => {
                let mut child = contenders::start(row.side, folder.path(), &[])?;
                let address = child.line()?;
                load::posts(&address, CONNECTIONS, row.batch, time).await?
            }
            Side::Engine => {
                let millis = time.as_millis().to_string();
                let batch = row.batch.to_string();
                let words = ["--millis", &millis, "--batch", &batch];
                number(&contenders::start(row.side, folder.path(), &words)?.line()?)?
            }
            Side::Sender | Side::Push => {
                let receiver = receiver::Receiver::start().await?;
                let count = deliveries.to_string();
                let words = ["--url", receiver.url(), "--count", &count];
                let mut child = contenders::start(row.side, folder.path(), &words)?;
                let rate = receiver.rate(u64::from(deliveries)).await;
                child.line()?;
                rate
            }
        };
        row.rates.push(rate);
    }
    Ok(())
}

fn number(text: &str) -> Result<f64, String> {
    text.trim().parse().map_err(|error| format!("`{text}`: {error}"))
}
