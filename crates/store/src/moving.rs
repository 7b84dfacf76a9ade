//! Taking a whole store along, to another place.
//!
//! Rows are read in the order of their keys, checked, and written in batches; where the target stands is committed with
//! each batch, so that a move that was cut off goes on where it was. In between neither side can be used: both refuse
//! every write, whoever has them open, and the target refuses to be opened. At the end both sides are read once more, and
//! are the same in number and sum, or the target stays closed.
//!
//! Seqs, identities, revs and the numbers of streams stay what they are. The shard of an event is worked out anew. The
//! target is a life of its own: another incarnation, and epochs that are larger than any the source gave out.
//!
//! It costs two looks at the source, two at the target, and memory for one batch.

#[cfg(feature = "sqlite")]
use std::path::PathBuf;

use crate::error::StoreError;
#[cfg(feature = "postgres")]
use crate::stores::postgres;
use crate::stores::shared::moving as drive;

/// Where a store is.
#[derive(Clone)]
#[non_exhaustive]
pub enum Place {
    /// A SQLite file.
    #[cfg(feature = "sqlite")]
    File(PathBuf),
    /// A PostgreSQL database, by its URL.
    #[cfg(feature = "postgres")]
    Database(String, postgres::Settings),
}

impl std::fmt::Debug for Place {
    /// The URL of a database may have a password in it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            #[cfg(feature = "sqlite")]
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            #[cfg(feature = "postgres")]
            Self::Database(_, settings) => f.debug_tuple("Database").field(settings).finish_non_exhaustive(),
        }
    }
}

/// How a store is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Options {
    /// Whether the source can be used again once it is copied. Both then have the same events, and run them both.
    pub keep_source: bool,
    /// Whether rows are taken along, as they are, that are not what was written.
    pub even_damaged: bool,
    /// Whether a target is emptied first that has nothing in it but a move of this source that was not finished.
    pub start_over: bool,
    /// How many rows are one commit at most; a thousand where it is 0.
    pub batch_rows: usize,
}

/// How far a move is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// What is done now.
    pub step: Step,
    /// Of which table.
    pub table: &'static str,
    /// How many rows of it are done.
    pub rows: u64,
    /// How many it has.
    pub of: u64,
}

/// What a move does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Rows are written to the target.
    Copy,
    /// Both sides are compared.
    Compare,
}

/// Whether to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Go {
    /// Yes.
    On,
    /// No: what is committed stays, and the same move may go on later.
    Stop,
}

/// What was moved.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Moved {
    /// Where it was, without what is secret.
    pub from: String,
    /// Where it is, without what is secret.
    pub to: String,
    /// Each table, the same on both sides. Empty where an earlier run had compared them already.
    pub tables: Vec<Compared>,
    /// Rows that are not what was written: the first of them, and how many there are.
    pub damaged: (Vec<String>, u64),
    /// Tables of the user's own, which stay where they are.
    pub left: Vec<String>,
}

/// A table that is the same on both sides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compared {
    /// Its name.
    pub table: &'static str,
    /// How many rows it has.
    pub rows: u64,
    /// The sum over all of them.
    pub sum: u128,
}

/// Why a store was not moved.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum MoveError {
    /// One of the stores could not.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It is refused, and nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// A row is not what was written.
    #[error("{row} is damaged; `--even-damaged` takes such rows along as they are")]
    Damaged {
        /// Its table and number.
        row: String,
    },
    /// A row cannot be written to the target.
    #[error("{row} cannot be kept there: {why}")]
    Unfit {
        /// Its table and number.
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
        /// Which.
        table: &'static str,
        /// How many rows the source has.
        from: u64,
        /// How many rows the target has.
        to: u64,
    },
    /// Whoever was told of it wanted to stop.
    #[error("stopped; the same command goes on where it was")]
    Stopped,
}

/// Takes a store along. Blocks for as long as it takes, and may be called again after whatever end.
///
/// # Errors
/// Where a side is in use or cannot be reached, the target is neither empty nor a begun move of this source, a row is
/// damaged, or the sides are not the same in the end.
pub fn run(
    from: &Place,
    to: &Place,
    options: &Options,
    mut told: impl FnMut(&Progress) -> Go,
) -> Result<Moved, MoveError> {
    drive::run(from, to, options, &mut told)
}

/// Takes the mark off a source, so that it can be used again. Gives where it had been moved to, if it had.
///
/// # Errors
/// Where somebody else has it, or it cannot be reached.
pub fn undo(from: &Place) -> Result<Option<String>, MoveError> {
    drive::undo(from)
}

/// What is moved, for the test that looks for what is not: each table's names in SQLite and PostgreSQL, and its columns.
#[doc(hidden)]
#[must_use]
pub fn known() -> Vec<(&'static str, &'static str, Vec<&'static str>)> {
    drive::known()
}
