//! What a durable life cycle costs in PostgreSQL: through plain SQL, through Redrive's engine with one node and with
//! three, through a queue of row locks, through a rival.
//!
//! `cargo bench -p redrive-benches --bench postgres`. Prints tables, then a line for each target, then all figures as
//! JSON. One private server for the whole run, a database of its own for every turn, and every turn a process of its
//! own; with `--contender` this program is that process.

mod contender;

mod depth;

mod gauge;

mod ours;

mod place;

mod plain;

mod print;

mod race;

mod raw;

mod rival;

mod run;

mod told;

use std::process::ExitCode;

use redrive_benches::program;

use told::Told;

/// Everything here fails for one reason: something that should work does not.
pub(crate) type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> ExitCode {
    program::run(contender::FLAG, contend, run::all)
}

/// One turn of a contender that lives in this program.
fn contend(name: &str, args: &[String]) -> Result<(), String> {
    let told = Told::from_args(args)?;
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    let outcome = runtime.block_on(async {
        match name {
            ours::NAME => ours::measure(&told).await,
            raw::NAME => raw::measure(&told).await,
            plain::NAME => plain::measure(&told).await,
            depth::NAME => depth::fill(&told).await,
            other => Err(format!("no contender is called {other}").into()),
        }
    });
    // The process ends here, and with it whoever still publishes.
    runtime.shutdown_background();
    println!("{}", outcome.map_err(|error| format!("{name}: {error}"))?.to_line());
    Ok(())
}
