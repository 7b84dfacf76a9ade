//! Moving a store: what a side of a move does, and the move itself.
//!
//! The order of commits is what makes a move one that can be cut off anywhere:
//!
//! | commit | from then on |
//! |---|---|
//! | the source is fenced, with the number of the move | nobody writes to it |
//! | the target has that number | nobody opens it, nor writes to it |
//! | a batch, with how far its table is | it is not written again |
//! | the counters | the next seq is larger than any that was moved |
//! | the target is done, after both were compared | it can be opened |
//! | the source is marked as moved, or freed | |

pub(in crate::stores) mod row;

pub(in crate::stores) mod table;

mod drive;

use std::collections::HashMap;
use std::sync::Arc;

use redrive_core::entry::{Seq, StreamId};

pub(in crate::stores) use drive::not_empty;
pub(crate) use drive::{known, run, undo};
use row::Row;
use table::Table;

use crate::error::StoreError;
use crate::moving::MoveError;
use crate::sql::Value;
use crate::stores::shared::rows::Stream;

/// By how much epochs leap in a new life: by more owners than the one before can have had since.
pub(in crate::stores) const EPOCH_LEAP: i64 = 1 << 20;
/// How many rows a batch has at most, where nobody says.
const BATCH_ROWS: usize = 1000;
/// How many bytes of a batch are enough; the last row may go beyond.
pub(in crate::stores) const BATCH_BYTES: usize = 4 << 20;

/// A row as it is read.
pub(in crate::stores) type Values = Vec<Value>;

/// Which side of a move a store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stores) enum Role {
    From,
    Into,
}

impl Role {
    pub(in crate::stores) const fn as_str(self) -> &'static str {
        match self {
            Self::From => "from",
            Self::Into => "into",
        }
    }
}

/// What a side has written down of a move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::stores) struct Mark {
    /// The number of the move: the same on both sides.
    pub(in crate::stores) id: String,
    /// Where the other side is, without what is secret.
    pub(in crate::stores) place: String,
    /// The life of the source: another store at the same place has another one.
    pub(in crate::stores) life: i64,
    pub(in crate::stores) is_done: bool,
}

/// What a store counts, beside its rows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::stores) struct Counters {
    /// The largest epoch that was given out.
    pub(in crate::stores) epoch: i64,
    /// The largest number of an event within a stream.
    pub(in crate::stores) place: i64,
    pub(in crate::stores) deaths: i64,
    pub(in crate::stores) orders: i64,
    pub(in crate::stores) lines: i64,
    pub(in crate::stores) jobs: i64,
    /// Whether an owner died, and what it had noted.
    pub(in crate::stores) unclean: Option<Vec<Seq>>,
}

/// How far a table is.
pub(in crate::stores) type Cursors = HashMap<String, String>;

/// One side of a move. Nobody else has it meanwhile.
pub(in crate::stores) trait Side {
    /// Where it is, without what is secret.
    fn place(&self) -> String;

    /// How many shards it has.
    fn shards(&self) -> u32;

    /// Whether a text may have no zero byte in it.
    fn refuses_zero(&self) -> bool {
        false
    }

    /// What is written down of a move, if there is one.
    fn mark(&mut self, role: Role) -> Result<Option<Mark>, StoreError>;

    /// The source: its incarnation.
    fn life(&mut self) -> Result<i64, StoreError>;

    /// The source: nobody can write to it from now on.
    fn fence(&mut self, mark: &Mark) -> Result<(), MoveError>;

    /// The source: what it was moved to is all that can be used.
    fn leave(&mut self) -> Result<(), StoreError>;

    /// The source: it can be used again.
    fn free(&mut self) -> Result<(), StoreError>;

    /// The source: what it counts.
    fn counters(&mut self) -> Result<Counters, StoreError>;

    /// The source: tables that are not ours.
    fn others(&mut self) -> Result<Vec<String>, StoreError>;

    /// The target: nobody can open it, nor write to it, from now on. It must be empty.
    fn begin(&mut self, mark: &Mark, tables: &[Table]) -> Result<(), MoveError>;

    /// The target: takes away what this move has put there, and that it was begun; all of it, or nothing.
    fn empty(&mut self, mark: &Mark, tables: &[Table]) -> Result<(), StoreError>;

    /// The target: how far each table is.
    fn cursors(&mut self) -> Result<Cursors, StoreError>;

    /// The target: puts rows, and with them how far the table is.
    fn put(&mut self, table: &Table, rows: Vec<Row>, cursor: &str) -> Result<(), StoreError>;

    /// The target: goes on counting where the source stopped, as a new life.
    fn count_on(&mut self, counters: &Counters) -> Result<(), StoreError>;

    /// The target: it can be opened.
    fn done(&mut self) -> Result<(), StoreError>;

    /// How many rows a table has.
    fn count(&mut self, table: &Table) -> Result<u64, StoreError>;

    /// The rows of a table after a key, in their order: at most so many, and no more than a batch has bytes.
    fn read(
        &mut self,
        table: &Table,
        after: Option<&[Value]>,
        most: usize,
    ) -> Result<Vec<Values>, StoreError>;

    /// The stream with this number.
    fn stream(&mut self, id: StreamId) -> Result<Option<Arc<Stream>>, StoreError>;
}
