//! One life of a worker: from its start to the crash, or to the end of its work.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use redrive::{RandomSource, SeededRandom};

use crate::witness::Witness;

/// How many intents a worker has. Three or more crash points each make more than twenty.
pub(crate) const ITEMS: u64 = 7;

/// Whether the guard of a configuration is in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guard {
    Off,
    On,
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::On => "on",
        })
    }
}

/// A life of a worker.
pub(crate) struct Life {
    pub(crate) guard: Guard,
    pub(crate) folder: PathBuf,
    pub(crate) witness: Witness,
    crash_at: u64,
    seed: u64,
    points: AtomicU64,
}

impl Life {
    pub(crate) fn new(
        guard: Guard,
        folder: PathBuf,
        witness: SocketAddr,
        run: String,
        crash_at: u64,
        seed: u64,
    ) -> Self {
        let witness = Witness::new(witness, run);
        Self { guard, folder, witness, crash_at, seed, points: AtomicU64::new(0) }
    }

    pub(crate) fn is_guarded(&self) -> bool {
        self.guard == Guard::On
    }

    /// A point at which the process may die: nothing of it but files outlives it.
    pub(crate) fn crash_point(&self) {
        if self.points.fetch_add(1, Ordering::SeqCst) + 1 == self.crash_at {
            std::process::exit(crate::runner::CRASHED);
        }
    }

    /// The intents, each with a name.
    pub(crate) fn items() -> impl Iterator<Item = String> {
        (0..ITEMS).map(|n| format!("item-{n}"))
    }

    /// Whether the schedule has something happen to this item: the same with the guard off and on.
    pub(crate) fn happens(&self, what: &str, item: &str, one_in: u64) -> bool {
        let bytes = what.bytes().chain(item.bytes());
        let hash = bytes.fold(self.seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        SeededRandom::new(hash).roll().is_multiple_of(one_in)
    }

    pub(crate) fn address(&self, file: &str) -> String {
        format!("sqlite:{}", self.folder.join(file).display())
    }

    /// Notes a line in a file that outlives the process.
    pub(crate) fn note(&self, file: &str, line: &str) -> Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).open(self.folder.join(file))?;
        writeln!(file, "{line}")?;
        Ok(())
    }

    /// The lines that were noted in a file.
    pub(crate) fn noted(&self, file: &str) -> BTreeSet<String> {
        let text = std::fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}
