//! The file of a window: a row for every commit, with the marks of all ids that shared it.
//!
//! Not a row for every id: so SQLite writes and reads a quarter of the bytes, and ten million ids are loaded in the
//! time of some thousand rows. The oldest rows are deleted when all of their ids have expired, or when later ids fill
//! the window by themselves; a few with every commit, so that expiry costs no sync of its own.

use std::path::Path;

use redrive_core::Moment;
use redrive_core::window::{IdMark, WindowSettings, WindowState};
use rusqlite::wal::CheckpointMode;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use crate::error::StoreError;
use crate::stores::sqlite::faults::damaged_row;
use crate::stores::sqlite::open;
use crate::stores::sqlite::open::lock::Ownership;
use crate::stores::sqlite::writer::crash;

/// The number of the schema that this program knows.
const KNOWN: u32 = 1;
/// How many rows are deleted with one commit. More than the one that is added, so that it catches up.
const FORGOTTEN_PER_COMMIT: usize = 8;
/// Bytes of a mark.
const MARK_BYTES: usize = 16;

/// An open file that this process owns.
pub(super) struct File {
    pub(super) conn: Connection,
    pub(super) ownership: Ownership,
    settings: WindowSettings,
    next: i64,
    /// The time of the last row.
    last: i64,
    /// How many ids are in the file.
    ids: u64,
    oldest: Option<Row>,
}

/// A row without its marks.
#[derive(Debug, Clone, Copy)]
struct Row {
    n: i64,
    at: i64,
    ids: u64,
}

impl File {
    /// Opens a file, creates it if there is none, and reads its ids into `window`. Returns the rows that cannot be
    /// read: their ids are lost.
    pub(super) fn open(
        path: &Path,
        window: &mut WindowState,
        now: Moment,
    ) -> Result<(Self, Vec<String>), StoreError> {
        let failed = |error| open::explain(path, error);
        let mut conn = open::open_to_write(path)?;
        let mut ownership = Ownership::of(path);
        ownership.take().map_err(|error| not_ours(path, error))?;
        migrate(&mut conn, path)?;
        // After an unclean stop, visible data may not be on the disk yet. No call is answered before it is.
        conn.wal_checkpoint_v2(None::<&str>, CheckpointMode::TRUNCATE).map_err(failed)?;
        let settings = *window.settings();
        let mut file = Self { conn, ownership, settings, next: 1, last: 0, ids: 0, oldest: None };
        let damaged = file.load(window, now).map_err(failed)?;
        file.oldest = file.look_for_oldest().map_err(failed)?;
        Ok((file, damaged))
    }

    fn load(&mut self, window: &mut WindowState, now: Moment) -> rusqlite::Result<Vec<String>> {
        let (mut damaged, mut ahead) = (Vec::new(), Vec::new());
        let mut statement = self.conn.prepare("SELECT n, at, crc, marks FROM redrive_window ORDER BY n")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let (n, at): (i64, i64) = (row.get(0)?, row.get(1)?);
            let (crc, marks) = (row.get::<_, u32>(2), row.get_ref(3)?.as_blob().unwrap_or_default());
            self.next = n + 1;
            self.ids += (marks.len() / MARK_BYTES) as u64;
            if crc != Ok(checksum(n, at, marks)) {
                damaged.push(damaged_row("redrive_window", n));
                continue;
            }
            if at > nanos(now) {
                ahead.push((n, checksum(n, nanos(now), marks)));
            }
            self.last = self.last.max(at.min(nanos(now)));
            let at = Moment::from_nanos(at.unsigned_abs());
            for mark in marks.as_chunks::<MARK_BYTES>().0 {
                window.restore(IdMark(*mark), at, now);
            }
        }
        drop(rows);
        drop(statement);
        self.set_right(&ahead, now)?;
        Ok(damaged)
    }

    /// Rows of a clock that ran ahead count from now, in the file as in memory: they would outlive their time, and
    /// keep the rows behind them.
    fn set_right(&mut self, ahead: &[(i64, u32)], now: Moment) -> rusqlite::Result<()> {
        let tx = self.conn.transaction()?;
        for (n, crc) in ahead {
            let update = "UPDATE redrive_window SET at = ?2, crc = ?3 WHERE n = ?1";
            tx.prepare_cached(update)?.execute((n, nanos(now), crc))?;
        }
        tx.commit()
    }

    /// Writes a commit: the marks of all ids that share it. Returns the moment that it counts from.
    pub(super) fn append(&mut self, marks: &[u8], now: Moment) -> Result<Moment, Failed> {
        self.write(marks, now).map_err(Failed::Before)?;
        crash::point("window-before-commit");
        self.conn.execute_batch("COMMIT").map_err(Failed::Commit)?;
        crash::point("window-after-commit");
        Ok(Moment::from_nanos(self.last.unsigned_abs()))
    }

    fn write(&mut self, marks: &[u8], now: Moment) -> rusqlite::Result<()> {
        self.conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let (n, at) = (self.next, nanos(now).max(self.last));
        let crc = checksum(n, at, marks);
        let insert = "INSERT INTO redrive_window (n, at, crc, marks) VALUES (?1, ?2, ?3, ?4)";
        self.conn.prepare_cached(insert)?.execute((n, at, crc, marks))?;
        let ids = (marks.len() / MARK_BYTES) as u64;
        (self.next, self.last, self.ids) = (n + 1, at, self.ids + ids);
        self.oldest.get_or_insert(Row { n, at, ids });
        for _ in 0..FORGOTTEN_PER_COMMIT {
            let Some(row) = self.oldest.filter(|row| self.is_over(row, at)) else { break };
            self.conn.prepare_cached("DELETE FROM redrive_window WHERE n = ?1")?.execute([row.n])?;
            self.ids -= row.ids;
            self.oldest = self.look_for_oldest()?;
        }
        Ok(())
    }

    /// Whether a row has expired.
    fn is_over(&self, row: &Row, now: i64) -> bool {
        let age = Moment::from_nanos(now.unsigned_abs()).since(Moment::from_nanos(row.at.unsigned_abs()));
        age >= self.settings.time || self.ids - row.ids >= self.settings.count as u64
    }

    fn look_for_oldest(&self) -> rusqlite::Result<Option<Row>> {
        let oldest = "SELECT n, at, length(marks) / 16 FROM redrive_window ORDER BY n LIMIT 1";
        let row = |row: &rusqlite::Row<'_>| {
            let ids: u32 = row.get(2)?;
            Ok(Row { n: row.get(0)?, at: row.get(1)?, ids: u64::from(ids) })
        };
        self.conn.prepare_cached(oldest)?.query_row([], row).optional()
    }

    /// After a commit that did not happen: back to the state of the file.
    pub(super) fn roll_back(&mut self) -> rusqlite::Result<()> {
        if !self.conn.is_autocommit() {
            self.conn.execute_batch("ROLLBACK")?;
        }
        let totals =
            "SELECT coalesce(max(n), 0) + 1, coalesce(sum(length(marks) / 16), 0) FROM redrive_window";
        let (next, ids): (i64, i64) =
            self.conn.query_row(totals, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        self.next = self.next.max(next);
        self.ids = ids.unsigned_abs();
        self.oldest = self.look_for_oldest()?;
        Ok(())
    }
}

/// Where a commit failed.
pub(super) enum Failed {
    /// Before the COMMIT: it is certain that nothing was written.
    Before(rusqlite::Error),
    /// At it.
    Commit(rusqlite::Error),
}

fn migrate(conn: &mut Connection, path: &Path) -> Result<(), StoreError> {
    let failed = |error| open::explain(path, error);
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    let there = |table: &str| {
        let sql = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1";
        tx.query_row(sql, [table], |_| Ok(())).optional().map(|row| row.is_some())
    };
    if there("redrive_meta").map_err(failed)? {
        let why = "it is a store of events; give the window a file of its own";
        return Err(open::cannot(path, why, None));
    }
    if there("redrive_window_meta").map_err(failed)? {
        let sql = "SELECT schema FROM redrive_window_meta";
        let found: u32 = tx.query_row(sql, [], |row| row.get(0)).map_err(failed)?;
        if found > KNOWN {
            return Err(StoreError::Newer { path: path.to_owned(), found, known: KNOWN });
        }
        return Ok(());
    }
    tx.execute_batch(include_str!("1.sql")).and_then(|()| tx.commit()).map_err(failed)
}

/// A window serves one process, which has all claims in memory.
fn not_ours(path: &Path, error: StoreError) -> StoreError {
    match error {
        StoreError::NotOwner { pid, .. } => {
            let who = pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
            let why = format!(
                "another process has it open{who}, with claims in its memory; end that process, or give each process a file of its own and send each id to one of them"
            );
            open::cannot(path, &why, None)
        }
        error => error,
    }
}

fn checksum(n: i64, at: i64, marks: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&n.to_be_bytes());
    hasher.update(&at.to_be_bytes());
    hasher.update(marks);
    hasher.finalize()
}

/// A moment as SQLite stores it; the last one is in the year 2262.
fn nanos(moment: Moment) -> i64 {
    i64::try_from(moment.as_nanos()).unwrap_or(i64::MAX)
}
