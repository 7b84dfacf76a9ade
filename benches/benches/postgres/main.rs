//! What a durable life cycle costs in PostgreSQL: through plain SQL, through Redrive's engine with one node and with
//! three, through a queue of row locks, through a rival.
//!
//! `cargo bench -p redrive-benches --bench postgres`. Prints tables, then a line for each target, then all figures as
//! JSON. One private server for the whole run, a database of its own for every turn, and every turn a process of its
//! own; with `--contender` this program is that process.

mod contender;

mod backlog;

mod progress_reader;

mod redrive_contender;

mod pg_server;

mod skip_locked;

mod report;

mod race;

mod sql_baseline;

mod rival;

mod run;

mod turn_args;

use std::process::ExitCode;

use redrive_benches::program;

use turn_args::TurnArgs;

/// Everything here fails for one reason: something that should work does not.
pub(crate) type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> ExitCode {
    program::run(contender::FLAG, contend, run::all)
}

/// One turn of a contender that lives in this program.
fn contend(name: &str, args: &[String]) -> Result<(), String> {
    let told = TurnArgs::from_args(args)?;
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    let outcome = runtime.block_on(async {
        match name {
            redrive_contender::NAME => redrive_contender::measure(&told).await,
            sql_baseline::NAME => sql_baseline::measure(&told).await,
            skip_locked::NAME => skip_locked::measure(&told).await,
            backlog::NAME => backlog::fill(&told).await,
            other => Err(format!("no contender is called {other}").into()),
        }
    });
    // The process ends here, and with it the publishers.
    runtime.shutdown_background();
    println!("{}", outcome.map_err(|error| format!("{name}: {error}"))?.to_line());
    Ok(())
}
