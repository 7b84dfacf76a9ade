//! Moving a whole store to another file or database.
//!
//! A move reads rows in the order of their keys, checks them, and writes them in batches. Each batch commits together
//! with its progress, so an interrupted move continues there. Until the move ends neither side can be used: both
//! refuse every write, and the target refuses to be opened. At the end the move reads both sides once more; if they do
//! not match in number and sum, the target stays closed.
//!
//! Seqs, identities, revs and the numbers of streams stay the same. The shard of an event is computed anew. The target
//! has a new incarnation, and epochs larger than any of the source.
//!
//! It costs two reads of the source, two of the target, and memory for one batch.

#[cfg(feature = "sqlite")]
use std::path::PathBuf;

use crate::error::StoreError;
#[cfg(feature = "postgres")]
use crate::stores::postgres;
use crate::stores::shared::moving as drive;

/// The location of a store.
#[derive(Clone)]
#[non_exhaustive]
pub enum StoreLocation {
    /// A SQLite file.
    #[cfg(feature = "sqlite")]
    File(PathBuf),
    /// A PostgreSQL database, by its URL.
    #[cfg(feature = "postgres")]
    Database(String, postgres::PostgresSettings),
}

impl std::fmt::Debug for StoreLocation {
    /// The URL of a database may contain a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            #[cfg(feature = "sqlite")]
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            #[cfg(feature = "postgres")]
            Self::Database(_, settings) => f.debug_tuple("Database").field(settings).finish_non_exhaustive(),
        }
    }
}

/// Options of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct MoveOptions {
    /// Whether the source can be used again after the copy. Both stores then have the same events, and both run them.
    pub keep_source: bool,
    /// Whether damaged rows are copied as they are.
    pub even_damaged: bool,
    /// Whether to empty the target first, if it contains nothing but an unfinished move of this source.
    pub start_over: bool,
    /// How many rows one commit has at most; 0 for a thousand.
    pub batch_rows: usize,
}

/// The progress of a move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoveProgress {
    /// The present step.
    pub step: MoveStep,
    /// The table.
    pub table: &'static str,
    /// How many of its rows are done.
    pub rows: u64,
    /// How many rows it has.
    pub of: u64,
}

/// The steps of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveStep {
    /// Rows are written to the target.
    Copy,
    /// Both sides are compared.
    Compare,
}

/// Whether to continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveControl {
    /// Continue.
    On,
    /// Stop: committed rows stay, and the same move may continue later.
    Stop,
}

/// The result of a move.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MoveReport {
    /// The source, without secrets.
    pub from: String,
    /// The target, without secrets.
    pub to: String,
    /// Each table, the same on both sides. Empty if an earlier run had compared them already.
    pub tables: Vec<ComparedTable>,
    /// Damaged rows: the first of them, and how many there are.
    pub damaged: (Vec<String>, u64),
    /// The user's own tables, which are not moved.
    pub left: Vec<String>,
}

/// A table that is the same on both sides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComparedTable {
    /// Its name.
    pub table: &'static str,
    /// How many rows it has.
    pub rows: u64,
    /// The checksum over all of them.
    pub sum: u128,
}

/// Why a store was not moved.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum MoveError {
    /// One of the stores failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The move is refused, and nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// A row is damaged.
    #[error("{row} is damaged; use `--even-damaged` to copy such rows as they are")]
    Damaged {
        /// The row's table and number.
        row: String,
    },
    /// A row cannot be written to the target.
    #[error("{row} cannot be stored there: {why}")]
    Unfit {
        /// The row's table and number.
        row: String,
        /// Why.
        why: String,
    },
    /// A table is not the same on both sides.
    #[error(
        "{table}: {from} rows there and {to} here, and they differ; the target stays closed. `--start-over` empties it and \
         begins again"
    )]
    Differs {
        /// The table.
        table: &'static str,
        /// How many rows the source has.
        from: u64,
        /// How many rows the target has.
        to: u64,
    },
    /// The caller stopped the move.
    #[error("stopped; run the same command to continue")]
    Stopped,
}

/// Moves a store. Blocks until it is done, and may be called again however it ended.
///
/// # Errors
/// If a side is in use or cannot be reached, the target is neither empty nor an unfinished move of this source, a row
/// is damaged, or the sides differ at the end.
pub fn run(
    from: &StoreLocation,
    to: &StoreLocation,
    options: &MoveOptions,
    mut told: impl FnMut(&MoveProgress) -> MoveControl,
) -> Result<MoveReport, MoveError> {
    drive::run(from, to, options, &mut told)
}

/// Removes the mark of a move from a source, so that it can be used again. Returns where it had been moved to, if it
/// had.
///
/// # Errors If another process has it, or it cannot be reached.
pub fn undo(from: &StoreLocation) -> Result<Option<String>, MoveError> {
    drive::undo(from)
}

/// The tables that are moved, for the test that finds missing ones: each table's names in SQLite and PostgreSQL, and
/// its columns.
#[doc(hidden)]
#[must_use]
pub fn known() -> Vec<(&'static str, &'static str, Vec<&'static str>)> {
    drive::known()
}
