//! A file as one side of a move.
//!
//! The move owns the file, as a server would, and writes the state of the move in a table of its own. A process that
//! only publishes need not own the file, and may have it open; so both sides also have triggers that refuse every
//! write, which every connection obeys from its next statement on. The move itself writes to a target with a row in a
//! table of passes, which it inserts and deletes in each of its transactions: no other connection ever sees it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use redrive_core::queue_entry::{FencingToken, StreamId};
use rusqlite::types::ValueRef;
use rusqlite::wal::CheckpointMode;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use super::events::fresh::Stream;
use super::events::stream_names::StreamNames;
use super::faults::rolled_back;
use super::nodes::notes::InFlightNotes;
use super::open::lock::Ownership;
use super::open::schema::has_table;
use super::open::{Opened, open_any};
use super::operate::rules::Rules;
use super::{FileRole as Owning, SqliteSettings};
use crate::error::StoreError;
use crate::moving::MoveError;
use crate::sql::Value;
use crate::stores::shared::moving::row::{Row, bytes};
use crate::stores::shared::moving::table::{Form, Table};
use crate::stores::shared::moving::{
    BATCH_BYTES, Counters, Cursors, EPOCH_LEAP, Mark, Role, Side, Values, not_empty,
};
use crate::stores::shared::numbers::bits;

mod put;

/// The records of moves.
const MARKS: &str = "redrive_moving";
/// The progress of each table.
const CURSORS: &str = "redrive_moving_table";
/// Has a row in the transactions of a move that may write to a target.
const PASS: &str = "redrive_moving_pass";
/// The prefix of the triggers that refuse writes.
const FENCE: &str = "redrive_moved_";

/// A file that a move holds exclusively.
pub(in crate::stores) struct File {
    path: PathBuf,
    conn: Connection,
    names: StreamNames,
    /// The rules, once events are written.
    rules: Option<Rules>,
    _ownership: Ownership,
}

impl File {
    pub(in crate::stores) fn open(path: &Path, role: Role) -> Result<Self, MoveError> {
        if role == Role::From && !path.is_file() {
            return Err(MoveError::Refused(format!("there is no file {}", path.display())));
        }
        let settings = SqliteSettings { role: Owning::Owner, ..SqliteSettings::default() };
        let Opened { writer, ownership, .. } = open_any(path, &settings, 0).map_err(in_use)?;
        let names = StreamNames::default();
        Ok(Self { path: path.to_owned(), conn: writer, names, rules: None, _ownership: ownership })
    }

    fn in_one<T>(&mut self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        let tx = self.conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(rolled_back)?;
        let done = work(&tx).map_err(rolled_back)?;
        tx.commit().map_err(rolled_back)?;
        Ok(done)
    }

    /// The same, for a connection that may write to an unfinished target.
    fn put_in_one<T>(
        &mut self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        self.in_one(|conn| {
            conn.execute("INSERT INTO redrive_moving_pass (one) VALUES (1)", [])?;
            let done = work(conn)?;
            conn.execute("DELETE FROM redrive_moving_pass", [])?;
            Ok(done)
        })
    }

    /// Writes the log back into the file: there is no writer that usually does so.
    fn checkpoint(&self, mode: CheckpointMode) -> Result<(), StoreError> {
        self.conn.wal_checkpoint_v2(None::<&str>, mode).map(drop).map_err(rolled_back)
    }
}

fn in_use(error: StoreError) -> MoveError {
    match error {
        StoreError::NotOwner { path, pid } => {
            let pid = pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
            MoveError::Refused(format!("a server runs on {}{pid}; stop it first", path.display()))
        }
        error => MoveError::Store(error),
    }
}

/// Why a file may not be opened, if it was moved or is being moved.
pub(super) fn why_closed(conn: &Connection, path: &Path) -> rusqlite::Result<Option<String>> {
    if !has_table(conn, MARKS)? {
        return Ok(None);
    }
    let undo = format!("`redrive move --undo --from sqlite:{}`", path.display());
    let mut select = conn.prepare("SELECT role, place, done FROM redrive_moving")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let (role, place, is_done): (String, String, bool) = (row.get(0)?, row.get(1)?, row.get(2)?);
        match (role.as_str(), is_done) {
            ("from", true) => {
                return Ok(Some(format!(
                    "it was moved to {place}; open that store, or use this one again with {undo}"
                )));
            }
            ("from", false) => {
                return Ok(Some(format!(
                    "a move of it to {place} has begun; run the same `redrive move` again to continue, or abandon it with {undo}"
                )));
            }
            (_, false) => {
                return Ok(Some(unfinished(&place)));
            }
            _ => {}
        }
    }
    Ok(None)
}

/// The names of schema objects of a kind, in order.
fn things(conn: &Connection, kind: &str) -> rusqlite::Result<Vec<String>> {
    let mut select = conn.prepare("SELECT name FROM sqlite_schema WHERE type = ?1 ORDER BY name")?;
    select.query_map([kind], |row| row.get(0))?.collect()
}

fn write_mark(conn: &Connection, role: Role, mark: &Mark) -> rusqlite::Result<()> {
    conn.execute_batch(
        "CREATE TABLE IF NOT EXISTS redrive_moving (role TEXT PRIMARY KEY, id TEXT NOT NULL, place TEXT NOT NULL, \
         life INTEGER NOT NULL, done INTEGER NOT NULL) STRICT",
    )?;
    conn.execute(
        "INSERT OR REPLACE INTO redrive_moving (role, id, place, life, done) VALUES (?1, ?2, ?3, ?4, ?5)",
        params![role.as_str(), mark.id, mark.place, mark.life, mark.is_done],
    )
    .map(drop)
}

/// Refuses every write to the tables of the store, under a condition.
fn refuse(conn: &Connection, why: &str, when: &str) -> rusqlite::Result<()> {
    let why = why.replace('\'', "''");
    let ours = things(conn, "table")?;
    for table in ours.iter().filter(|name| name.starts_with("redrive_") && !name.starts_with(MARKS)) {
        for verb in ["INSERT", "UPDATE", "DELETE"] {
            conn.execute_batch(&format!(
                "CREATE TRIGGER {FENCE}{table}_{verb} BEFORE {verb} ON {table} {when} \
                 BEGIN SELECT RAISE(ABORT, '{why}'); END"
            ))?;
        }
    }
    Ok(())
}

/// Allows writes again.
fn let_in(conn: &Connection) -> rusqlite::Result<()> {
    for trigger in things(conn, "trigger")?.iter().filter(|name| name.starts_with(FENCE)) {
        conn.execute_batch(&format!("DROP TRIGGER {trigger}"))?;
    }
    Ok(())
}

/// The refusal of an unfinished target.
fn unfinished(place: &str) -> String {
    format!("a move of {place} into it is not finished; run the same `redrive move` again to continue")
}

impl Side for File {
    fn place(&self) -> String {
        // One file under two names is one file.
        let path = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        format!("sqlite:{}", path.display())
    }

    fn shards(&self) -> u32 {
        1
    }

    fn mark(&mut self, role: Role) -> Result<Option<Mark>, StoreError> {
        let find = |conn: &Connection| {
            if !has_table(conn, MARKS)? {
                return Ok(None);
            }
            conn.query_row(
                "SELECT id, place, life, done FROM redrive_moving WHERE role = ?1",
                [role.as_str()],
                |row| {
                    let (id, place) = (row.get(0)?, row.get(1)?);
                    Ok(Mark { id, place, life: row.get(2)?, is_done: row.get(3)? })
                },
            )
            .optional()
        };
        find(&self.conn).map_err(rolled_back)
    }

    fn life(&mut self) -> Result<i64, StoreError> {
        let life = "SELECT incarnation FROM redrive_meta";
        self.conn.query_row(life, [], |row| row.get(0)).map_err(rolled_back)
    }

    fn fence(&mut self, mark: &Mark) -> Result<(), MoveError> {
        let why = format!("this store was moved, or is being moved, to {}", mark.place);
        self.in_one(|conn| {
            write_mark(conn, Role::From, mark)?;
            refuse(conn, &why, "")
        })?;
        Ok(())
    }

    fn leave(&mut self) -> Result<(), StoreError> {
        self.in_one(|conn| {
            conn.execute("UPDATE redrive_moving SET done = 1 WHERE role = 'from'", []).map(drop)
        })?;
        self.checkpoint(CheckpointMode::TRUNCATE)
    }

    fn free(&mut self) -> Result<(), StoreError> {
        self.in_one(|conn| {
            let_in(conn)?;
            conn.execute("DELETE FROM redrive_moving WHERE role = 'from'", []).map(drop)
        })?;
        self.checkpoint(CheckpointMode::TRUNCATE)
    }

    fn counters(&mut self) -> Result<Counters, StoreError> {
        let (mut counters, incarnation, is_clean) = self
            .conn
            .query_row(
                "SELECT epoch, deaths, orders, (SELECT coalesce(max(next), 0) FROM redrive_stream), \
                 (SELECT coalesce(max(number), 0) FROM redrive_audit), \
                 (SELECT coalesce(max(id), 0) FROM redrive_job), incarnation, clean FROM redrive_meta",
                [],
                |row| {
                    let counters = Counters {
                        epoch: row.get(0)?,
                        deaths: row.get(1)?,
                        orders: row.get(2)?,
                        place: row.get(3)?,
                        lines: row.get(4)?,
                        jobs: row.get(5)?,
                        unclean: None,
                    };
                    Ok((counters, row.get(6)?, row.get::<_, bool>(7)?))
                },
            )
            .map_err(rolled_back)?;
        if !is_clean {
            counters.unclean =
                Some(InFlightNotes::of(&self.path).read(bits(counters.epoch), bits(incarnation)));
        }
        Ok(counters)
    }

    fn others(&mut self) -> Result<Vec<String>, StoreError> {
        let mut others = things(&self.conn, "table").map_err(rolled_back)?;
        others.retain(|name| !name.starts_with("redrive_") && !name.starts_with("sqlite_"));
        Ok(others)
    }

    fn begin(&mut self, mark: &Mark, tables: &[Table]) -> Result<(), MoveError> {
        let full = self.in_one(|conn| {
            for table in tables {
                if count(conn, table)? > 0 {
                    return Ok(Some(table.name));
                }
            }
            write_mark(conn, Role::Into, mark)?;
            conn.execute_batch(&format!(
                "CREATE TABLE {CURSORS} (name TEXT PRIMARY KEY, cursor TEXT NOT NULL) STRICT; \
                 CREATE TABLE {PASS} (one INTEGER PRIMARY KEY) STRICT"
            ))?;
            refuse(conn, &unfinished(&mark.place), &format!("WHEN NOT EXISTS (SELECT 1 FROM {PASS})"))?;
            Ok(None)
        })?;
        full.map_or(Ok(()), |table| Err(not_empty(&self.place(), table)))
    }

    fn empty(&mut self, mark: &Mark, tables: &[Table]) -> Result<(), StoreError> {
        self.in_one(|conn| {
            let mine = "DELETE FROM redrive_moving WHERE role = 'into' AND id = ?1 AND NOT done";
            if conn.execute(mine, [&mark.id])? == 0 {
                return Err(rusqlite::Error::QueryReturnedNoRows);
            }
            let_in(conn)?;
            // The audit is append-only; this is a copy of a part of one.
            let audit =
                "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'redrive_audit'";
            let kept: Vec<(String, String)> = conn
                .prepare(audit)?
                .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect::<rusqlite::Result<_>>()?;
            for (name, _) in &kept {
                conn.execute_batch(&format!("DROP TRIGGER {name}"))?;
            }
            for table in tables.iter().map(|table| table.sqlite).chain(["redrive_fresh"]) {
                conn.execute_batch(&format!("DELETE FROM {table}"))?;
            }
            for (_, sql) in &kept {
                conn.execute_batch(sql)?;
            }
            conn.execute_batch(&format!("DROP TABLE {CURSORS}; DROP TABLE {PASS}"))
        })?;
        self.checkpoint(CheckpointMode::TRUNCATE)
    }

    fn cursors(&mut self) -> Result<Cursors, StoreError> {
        let read = |conn: &Connection| {
            let mut select = conn.prepare(&format!("SELECT name, cursor FROM {CURSORS}"))?;
            select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<rusqlite::Result<Cursors>>()
        };
        read(&self.conn).map_err(rolled_back)
    }

    fn put(&mut self, table: &Table, rows: Vec<Row>, cursor: &str) -> Result<(), StoreError> {
        let rules = match self.rules.take() {
            Some(rules) => rules,
            None if table.form == Form::Event => Rules::read(&self.conn).map_err(rolled_back)?,
            None => Rules::new(redrive_core::triage::ActiveRules::default()),
        };
        self.put_in_one(|conn| {
            put::rows(conn, table, rows, &rules)?;
            conn.prepare_cached("INSERT OR REPLACE INTO redrive_moving_table (name, cursor) VALUES (?1, ?2)")?
                .execute([table.name, cursor])
                .map(drop)
        })?;
        self.rules = (table.form == Form::Event).then_some(rules);
        self.checkpoint(CheckpointMode::PASSIVE)
    }

    fn count_on(&mut self, counters: &Counters) -> Result<(), StoreError> {
        let epoch = counters.epoch + EPOCH_LEAP;
        let incarnation = self.put_in_one(|conn| {
            conn.execute(
                "UPDATE redrive_meta SET epoch = ?1, deaths = ?2, orders = ?3, clean = ?4",
                params![epoch, counters.deaths, counters.orders, counters.unclean.is_none()],
            )?;
            conn.execute("UPDATE redrive_stream SET next = ?1", [counters.place + 1])?;
            conn.query_row("SELECT incarnation FROM redrive_meta", [], |row| row.get(0))
        })?;
        if let Some(noted) = &counters.unclean {
            let token = FencingToken { shard: 0, epoch: bits(epoch), incarnation: bits(incarnation) };
            let notes = InFlightNotes::of(&self.path);
            notes.begin(token);
            notes.write(token, noted, &self.path)?;
        }
        Ok(())
    }

    fn done(&mut self) -> Result<(), StoreError> {
        self.in_one(|conn| {
            let_in(conn)?;
            conn.execute_batch(&format!("DROP TABLE {CURSORS}; DROP TABLE {PASS}"))?;
            conn.execute("UPDATE redrive_moving SET done = 1 WHERE role = 'into'", []).map(drop)
        })?;
        self.checkpoint(CheckpointMode::TRUNCATE)
    }

    fn count(&mut self, table: &Table) -> Result<u64, StoreError> {
        count(&self.conn, table).map_err(rolled_back)
    }

    fn read(
        &mut self,
        table: &Table,
        after: Option<&[Value]>,
        most: usize,
    ) -> Result<Vec<Values>, StoreError> {
        let read = |conn: &Connection| {
            let mut select = conn.prepare_cached(&put::select(table, after.is_some()))?;
            for (at, value) in after.unwrap_or_default().iter().enumerate() {
                put::bind(&mut select, at + 1, value)?;
            }
            let (mut rows, mut read, mut size) = (select.raw_query(), Vec::new(), 0);
            while let Some(row) = rows.next()? {
                let values: Values = (0..table.columns.len())
                    .map(|at| row.get_ref(at).map(value))
                    .collect::<rusqlite::Result<_>>()?;
                size += bytes(&values);
                read.push(values);
                if size >= BATCH_BYTES || read.len() >= most {
                    break;
                }
            }
            Ok(read)
        };
        read(&self.conn).map_err(rolled_back)
    }

    fn stream(&mut self, id: StreamId) -> Result<Option<Arc<Stream>>, StoreError> {
        self.names.of(&self.conn, id).map_err(rolled_back)
    }
}

fn count(conn: &Connection, table: &Table) -> rusqlite::Result<u64> {
    let select = match table.form {
        Form::Event => {
            "SELECT (SELECT count(*) FROM redrive_fresh) + (SELECT count(*) FROM redrive_tracked)".to_owned()
        }
        _ => format!("SELECT count(*) FROM {}", table.sqlite),
    };
    conn.query_row(&select, [], |row| row.get(0).map(bits))
}

/// A value as it is. Invalid UTF-8 becomes bytes, which no text column takes.
fn value(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => Value::Integer(number),
        ValueRef::Real(number) => Value::Real(number),
        ValueRef::Text(text) => match std::str::from_utf8(text) {
            Ok(text) => Value::Text(text.to_owned()),
            Err(_) => Value::Bytes(text.to_vec()),
        },
        ValueRef::Blob(bytes) => Value::Bytes(bytes.to_vec()),
    }
}
