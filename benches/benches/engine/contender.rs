//! The contenders of a race, and how a turn is run.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use redrive_benches::contender_process::finish;
use redrive_benches::syncs;
use redrive_benches::turn::{Outcome, Publisher, Setup, Turn, WARM_UP, Work};

use crate::rivals::Rival;
use crate::{redrive_contender, sqlite_baseline};

/// Selects the contender that this process is.
pub(crate) const FLAG: &str = "--contender";

/// Time allowed beyond warm-up and measuring: set-up, a last checkpoint, a busy machine.
const GRACE: Duration = Duration::from_secs(20);

/// A contender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contender {
    Ours(Publisher),
    Raw(Batch),
    Rival(Rival, Setup, Publisher),
}

/// How many writes the raw line has in a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Batch {
    Of(usize),
    /// As many as ours had in the turn before, when its events were handed in this way.
    AsOurs(Publisher),
}

impl Contender {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Ours(publisher) => format!("redrive{}", how(publisher)),
            Self::Raw(Batch::AsOurs(publisher)) => format!("raw, same batch{}", how(publisher)),
            Self::Raw(Batch::Of(batch)) => format!("raw, batch {batch}"),
            Self::Rival(rival, setup, publisher) => {
                let setup = match setup {
                    Setup::Shipped => "as it ships",
                    Setup::Full => "FULL",
                };
                format!("{}, {setup}{}", rival.name(), how(publisher))
            }
        }
    }

    /// Whether it is a rival as durable as we are.
    pub(crate) fn is_durable_rival(self) -> bool {
        matches!(self, Self::Rival(_, Setup::Full, _))
    }

    pub(crate) fn turn(self, work: Work, callers: usize, batch: usize, time: Duration) -> TurnRequest {
        let (setup, publisher) = match self {
            Self::Ours(publisher) => (Setup::Full, publisher),
            Self::Raw(_) => (Setup::Full, Publisher::Each),
            Self::Rival(_, setup, publisher) => (setup, publisher),
        };
        TurnRequest {
            who: self,
            turn: Turn { work, setup, publisher, callers, batch, time, folder: "".into() },
        }
    }

    fn command(self) -> Result<Command, String> {
        let ours = |name| {
            let program = std::env::current_exe().map_err(|error| format!("where am I: {error}"))?;
            let mut command = Command::new(program);
            command.args([FLAG, name]);
            Ok(command)
        };
        match self {
            Self::Ours(_) => ours(redrive_contender::NAME),
            Self::Raw(_) => ours(sqlite_baseline::NAME),
            Self::Rival(rival, ..) => Ok(Command::new(rival.program())),
        }
    }
}

const fn how(publisher: Publisher) -> &'static str {
    match publisher {
        Publisher::Each => "",
        Publisher::Bulk => ", in bulk",
    }
}

/// The parameters of a turn.
#[derive(Debug, Clone)]
pub(crate) struct TurnRequest {
    who: Contender,
    turn: Turn,
}

impl TurnRequest {
    /// Runs the turn in a fresh folder below this one. A rival that hangs gets a second try, so that a rare hang does
    /// not end minutes of measuring. The hang is reported.
    pub(crate) fn run(self, base: &Path) -> Result<Outcome, String> {
        let again = matches!(self.who, Contender::Rival(..)).then(|| self.clone());
        let outcome = self.take(base);
        match (outcome, again) {
            (Err(error), Some(again)) => {
                eprintln!("bench: {error}; once more");
                again.take(base)
            }
            (outcome, _) => outcome,
        }
    }

    fn take(self, base: &Path) -> Result<Outcome, String> {
        self.with_folder(base, |mut command, _, limit| finish(&mut command, limit))
    }

    /// Takes it under a tracer, and says how many syncs there were for one transaction.
    pub(crate) fn syncs_each(self, base: &Path) -> Result<f64, String> {
        self.with_folder(base, |command, folder, limit| {
            let log = folder.join("syncs.log");
            let outcome = finish(&mut syncs::traced(&command, &log), limit)?;
            let log = std::fs::read_to_string(&log).map_err(|error| format!("{}: {error}", log.display()))?;
            let syncs = syncs::between(&log, outcome.from, outcome.to);
            Ok(f64::from(syncs) / (outcome.to - outcome.from) / outcome.transaction_rate())
        })
    }

    /// The folder is removed afterwards, and the disk has finished with it before the next turn.
    fn with_folder<T>(
        mut self,
        base: &Path,
        run: impl FnOnce(Command, &Path, Duration) -> Result<T, String>,
    ) -> Result<T, String> {
        let name = self.who.name();
        let folder = tempfile::tempdir_in(base).map_err(|error| format!("{}: {error}", base.display()))?;
        self.turn.folder = folder.path().to_owned();
        let mut command = self.who.command()?;
        command.args(self.turn.to_args());
        let outcome = run(command, folder.path(), 2 * WARM_UP + self.turn.time + GRACE);
        let cleared = folder.close().and_then(|()| File::open(base)?.sync_all());
        cleared.map_err(|error| format!("{}: {error}", base.display()))?;
        outcome.map_err(|error| format!("{name}: {error}"))
    }
}
