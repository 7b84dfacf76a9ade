//! effectum under the load of the engine's benchmark: `rival-effectum --work life …` measures one turn and
//! prints its outcome.
//!
//! As it ships: it asks for `PRAGMA journal = wal`, which does not exist (`journal_mode` does), and SQLite
//! ignores what it does not know. So it runs with a rollback journal, and with `synchronous=NORMAL`.
//!
//! At its best with FULL: the file is made in WAL mode before, which it then keeps, and the request for
//! NORMAL is turned away where SQLite asks whether it is allowed.

mod load;

mod connections;

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
