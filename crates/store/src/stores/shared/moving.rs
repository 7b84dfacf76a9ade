//! Moving a store: the two sides of a move, and the move itself.
//!
//! The order of commits allows an interruption at any point:
//!
//! | commit | from then on |
//! |---|---|
//! | the source is fenced, with the number of the move | it refuses writes |
//! | the target has that number | it refuses writes, and to be opened |
//! | a batch, with the progress of its table | it is not written again |
//! | the counters | the next seq is larger than any that was moved |
//! | the target is done, after both were compared | it can be opened |
//! | the source is marked as moved, or freed | |

pub(in crate::stores) mod row;

pub(in crate::stores) mod table;

mod drive;

use std::collections::HashMap;
use std::sync::Arc;

use redrive_core::queue_entry::{Seq, StreamId};

pub(in crate::stores) use drive::not_empty;
pub(crate) use drive::{known, run, undo};
use row::Row;
use table::Table;

use crate::error::StoreError;
use crate::moving::MoveError;
use crate::sql::Value;
use crate::stores::shared::rows::Stream;

/// By how much epochs jump in a new incarnation: by more owners than the previous one can have had since.
pub(in crate::stores) const EPOCH_LEAP: i64 = 1 << 20;
/// How many rows a batch has at most by default.
const BATCH_ROWS: usize = 1000;
/// How many bytes a batch has at least; its last row may exceed it.
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

/// A side's record of a move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::stores) struct Mark {
    /// The number of the move: the same on both sides.
    pub(in crate::stores) id: String,
    /// The address of the other side, without secrets.
    pub(in crate::stores) place: String,
    /// The incarnation of the source: another store at the same address has another one.
    pub(in crate::stores) life: i64,
    pub(in crate::stores) is_done: bool,
}

/// The counters of a store, beside its rows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::stores) struct Counters {
    /// The largest epoch that was used.
    pub(in crate::stores) epoch: i64,
    /// The largest number of an event within a stream.
    pub(in crate::stores) place: i64,
    pub(in crate::stores) deaths: i64,
    pub(in crate::stores) orders: i64,
    pub(in crate::stores) lines: i64,
    pub(in crate::stores) jobs: i64,
    /// The note of an owner that died, if one did.
    pub(in crate::stores) unclean: Option<Vec<Seq>>,
}

/// The progress of each table.
pub(in crate::stores) type Cursors = HashMap<String, String>;

/// One side of a move. The move has it exclusively.
pub(in crate::stores) trait Side {
    /// Its address, without secrets.
    fn place(&self) -> String;

    /// How many shards it has.
    fn shards(&self) -> u32;

    /// Whether it refuses a zero byte in a text.
    fn refuses_zero(&self) -> bool {
        false
    }

    /// The record of a move, if there is one.
    fn mark(&mut self, role: Role) -> Result<Option<Mark>, StoreError>;

    /// The source: its incarnation.
    fn life(&mut self) -> Result<i64, StoreError>;

    /// The source: refuses writes from now on.
    fn fence(&mut self, mark: &Mark) -> Result<(), MoveError>;

    /// The source: marks it as moved, so that only the target can be used.
    fn leave(&mut self) -> Result<(), StoreError>;

    /// The source: allows its use again.
    fn free(&mut self) -> Result<(), StoreError>;

    /// The source: its counters.
    fn counters(&mut self) -> Result<Counters, StoreError>;

    /// The source: tables that are not ours.
    fn others(&mut self) -> Result<Vec<String>, StoreError>;

    /// The target: refuses writes, and to be opened, from now on. It must be empty.
    fn begin(&mut self, mark: &Mark, tables: &[Table]) -> Result<(), MoveError>;

    /// The target: deletes the rows and the record of this move; all of it, or nothing.
    fn empty(&mut self, mark: &Mark, tables: &[Table]) -> Result<(), StoreError>;

    /// The target: the progress of each table.
    fn cursors(&mut self) -> Result<Cursors, StoreError>;

    /// The target: writes rows, together with the progress of the table.
    fn put(&mut self, table: &Table, rows: Vec<Row>, cursor: &str) -> Result<(), StoreError>;

    /// The target: continues the counters of the source, in a new incarnation.
    fn count_on(&mut self, counters: &Counters) -> Result<(), StoreError>;

    /// The target: allows it to be opened.
    fn done(&mut self) -> Result<(), StoreError>;

    /// How many rows a table has.
    fn count(&mut self, table: &Table) -> Result<u64, StoreError>;

    /// The rows of a table after a key, in order: at most so many, and no more than the bytes of a batch.
    fn read(
        &mut self,
        table: &Table,
        after: Option<&[Value]>,
        most: usize,
    ) -> Result<Vec<Values>, StoreError>;

    /// The stream with this number.
    fn stream(&mut self, id: StreamId) -> Result<Option<Arc<Stream>>, StoreError>;
}
