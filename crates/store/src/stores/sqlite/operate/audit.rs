//! The audit: which operator did what, to how many events. A line commits with the change that it describes, and the
//! table refuses to change or delete one.

use redrive_core::Moment;
use redrive_core::triage::Operator;
use rusqlite::{Connection, params};

use crate::operate::{AuditEntry, AuditLine, lines_asked};
use crate::stores::shared::numbers::{bits, column, from_moment, to_moment};
use crate::stores::sqlite::faults::Step;
use crate::stores::sqlite::writer::tx::WriterTx;

impl WriterTx {
    /// The number of the next line.
    pub(in crate::stores::sqlite) fn next_line(&self) -> rusqlite::Result<u64> {
        self.conn
            .prepare_cached("SELECT coalesce(max(number), 0) + 1 FROM redrive_audit")?
            .query_row([], |row| row.get(0).map(bits))
    }

    /// Writes a line.
    pub(in crate::stores::sqlite) fn write_line(
        &self,
        number: u64,
        by: &Operator,
        at: Moment,
        deed: &AuditEntry,
    ) -> rusqlite::Result<()> {
        let AuditEntry { verb, target, count, note } = deed;
        self.conn
            .prepare_cached(
                "INSERT INTO redrive_audit (number, at, who, place, verb, target, count, note) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?
            .execute(params![
                column(number),
                from_moment(at),
                by.who,
                by.from,
                verb,
                target,
                column(*count),
                note
            ])
            .map(drop)
    }
}

/// The lines before a number, the latest first.
pub(in crate::stores::sqlite) fn lines(
    conn: &Connection,
    before: Option<u64>,
    limit: usize,
) -> Step<Vec<AuditLine>> {
    let limit = lines_asked(limit);
    let mut select = conn.prepare_cached(
        "SELECT number, at, who, place, verb, target, count, note FROM redrive_audit WHERE number < ?1 \
         ORDER BY number DESC LIMIT ?2",
    )?;
    let lines = select.query_map(params![before.map_or(i64::MAX, column), column(limit as u64)], |row| {
        Ok(AuditLine {
            number: bits(row.get(0)?),
            at: to_moment(row.get(1)?),
            by: Operator { who: row.get(2)?, from: row.get(3)? },
            verb: row.get(4)?,
            target: row.get(5)?,
            count: bits(row.get(6)?),
            note: row.get(7)?,
        })
    })?;
    Ok(lines.collect::<rusqlite::Result<_>>()?)
}
