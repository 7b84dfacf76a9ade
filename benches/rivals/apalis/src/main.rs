//! apalis-sqlite under the load of the engine's benchmark: `rival-apalis --work life …` measures one turn and
//! prints its outcome.
//!
//! As it ships: the pool, the set-up and the event-driven worker of its README, with every default. Its set-up
//! turns `synchronous` off, but on one connection of its pool's ten; the others keep SQLite's FULL. What a
//! power cut takes with it depends on which connection committed. And its acknowledgement looks through all
//! rows that its worker ever had, because a database without statistics finds that the better plan; so it
//! slows down as rows come in.
//!
//! At its best with FULL: that on every connection, batches as large as the load, and statistics, with which
//! the acknowledgement finds its rows by their keys.

mod load;

mod store;

use std::process::ExitCode;

use redrive_benches::turn::Turn;

#[tokio::main]
async fn main() -> ExitCode {
    let measured = match Turn::from_command_line() {
        Ok(turn) => load::measure(turn).await,
        Err(error) => Err(error.into()),
    };
    match measured {
        Ok(outcome) => {
            println!("{}", outcome.to_line());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
