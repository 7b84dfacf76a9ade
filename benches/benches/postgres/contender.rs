//! The contenders, and how a turn is run.

use std::process::Command;
use std::time::Duration;

use redrive_benches::contender_process::finish;
use redrive_benches::turn::{Outcome, Publisher, Setup, Turn, WARM_UP, Work};

use crate::pg_server::PgServer;
use crate::turn_args::TurnArgs;
use crate::{backlog, redrive_contender, rival, skip_locked, sql_baseline};

/// Says which contender this program is to be.
pub(crate) const FLAG: &str = "--contender";

/// Events in flight.
pub(crate) const IN_FLIGHT: usize = 1_000;

/// Connections that work at once: so many as ours has by default, without those beside.
pub(crate) const CONNECTIONS: usize = 9;

/// What a turn may take beyond its warm-up and its measuring.
const GRACE: Duration = Duration::from_secs(60);

/// Whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contender {
    /// So many nodes.
    Ours(Publisher, usize),
    /// With the batch that so many nodes of ours had in the turn before.
    Raw(Publisher, usize),
    /// So many rows are fetched at once.
    Plain(Publisher, usize),
    Rival(Setup),
}

impl Contender {
    pub(crate) fn name(self) -> String {
        let how = |publisher| if publisher == Publisher::Bulk { ", in bulk" } else { "" };
        match self {
            Self::Ours(publisher, 1) => format!("redrive{}", how(publisher)),
            Self::Ours(publisher, nodes) => format!("redrive, {nodes} nodes{}", how(publisher)),
            Self::Raw(publisher, 1) => format!("raw, same batch{}", how(publisher)),
            Self::Raw(publisher, nodes) => format!("raw, batch of {nodes} nodes{}", how(publisher)),
            Self::Plain(publisher, batch) => format!("SKIP LOCKED, fetches {batch}{}", how(publisher)),
            Self::Rival(Setup::Shipped) => format!("{}, defaults", rival::NAME),
            Self::Rival(Setup::Full) => format!("{}, as its bench", rival::NAME),
        }
    }

    fn command(self) -> Result<Command, String> {
        let name = match self {
            Self::Ours(..) => redrive_contender::NAME,
            Self::Raw(..) => sql_baseline::NAME,
            Self::Plain(..) => skip_locked::NAME,
            Self::Rival(_) => return Ok(Command::new(rival::program())),
        };
        ourselves(name)
    }

    /// What it is told: the batch is for whom it concerns.
    pub(crate) fn told(self, batch: usize, time: Duration) -> TurnArgs {
        let (setup, publisher, batch, nodes) = match self {
            Self::Ours(publisher, nodes) => (Setup::Full, publisher, batch, nodes),
            Self::Raw(publisher, _) => (Setup::Full, publisher, batch, 1),
            Self::Plain(publisher, fetches) => (Setup::Full, publisher, fetches, 1),
            Self::Rival(setup) => (setup, Publisher::Bulk, batch, 1),
        };
        let turn =
            Turn { work: Work::Life, setup, publisher, callers: IN_FLIGHT, batch, time, folder: "-".into() };
        TurnArgs { turn, url: String::new(), waiting: None, nodes, connections: CONNECTIONS, first: 1 }
    }

    /// Takes a turn in a database that is there.
    pub(crate) fn run(self, told: &TurnArgs) -> Result<Outcome, String> {
        let mut command = self.command()?;
        command.args(told.to_args());
        // A turn that drains a backlog has no time limit.
        let grace = if told.waiting.is_some() { 5 * GRACE } else { GRACE };
        finish(&mut command, 2 * WARM_UP + told.turn.time + grace)
            .map_err(|error| format!("{}: {error}", self.name()))
    }

    /// Takes a turn in a database of its own.
    pub(crate) fn run_in(self, place: &PgServer, told: TurnArgs) -> Result<Outcome, String> {
        let fault = |error| format!("{}: {error}", self.name());
        let url = place.make("turn").map_err(fault)?;
        let outcome = self.run(&TurnArgs { url, ..told });
        place.remove("turn").map_err(fault)?;
        outcome
    }
}

/// Fills a database with so many that wait.
pub(crate) fn fill(url: &str, waiting: u64) -> Result<Outcome, String> {
    let told = Contender::Ours(Publisher::Each, 1).told(1, Duration::from_secs(3600));
    let told = TurnArgs { url: url.to_owned(), waiting: Some(waiting), ..told };
    let mut command = ourselves(backlog::NAME)?;
    command.args(told.to_args());
    finish(&mut command, told.turn.time)
}

fn ourselves(name: &str) -> Result<Command, String> {
    let program = std::env::current_exe().map_err(|error| format!("where am I: {error}"))?;
    let mut command = Command::new(program);
    command.args([FLAG, name]);
    Ok(command)
}
