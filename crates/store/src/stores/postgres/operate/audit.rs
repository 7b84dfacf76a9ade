//! The audit: which operator did what, to how many events. A line commits with the change that it describes, and the
//! table refuses to change or delete one. Numbers grow, and may have gaps: a command that was rolled back took one.

use redrive_core::Moment;
use redrive_core::triage::Operator;
use sqlx::Row;

use crate::operate::{AuditEntry, AuditLine, lines_asked};
use crate::stores::postgres::faults::Step;
use crate::stores::postgres::tx::{OwnTx, one, rows, run};
use crate::stores::shared::numbers::{bits, column, from_moment, to_moment};

impl OwnTx {
    /// The number of the next line.
    pub(in crate::stores::postgres) async fn next_line(&mut self) -> sqlx::Result<u64> {
        one!(self, "SELECT nextval('redrive.line')").map(bits)
    }

    /// Writes a line.
    pub(in crate::stores::postgres) async fn write_line(
        &mut self,
        number: u64,
        by: &Operator,
        at: Moment,
        deed: &AuditEntry,
    ) -> sqlx::Result<()> {
        let AuditEntry { verb, target, count, note } = deed;
        run!(
            self,
            "INSERT INTO redrive.audit (number, at, who, place, verb, target, count, note) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
            column(number),
            from_moment(at),
            &by.who,
            &by.from,
            verb,
            target,
            column(*count),
            note
        )
        .map(drop)
    }

    /// The lines before a number, the latest first.
    pub(in crate::stores::postgres) async fn lines(
        &mut self,
        before: Option<u64>,
        limit: usize,
    ) -> Step<Vec<AuditLine>> {
        let found = rows!(
            self,
            "SELECT number, at, who, place, verb, target, count, note FROM redrive.audit WHERE number < $1 \
             ORDER BY number DESC LIMIT $2",
            before.map_or(i64::MAX, column),
            column(lines_asked(limit) as u64)
        )?;
        let line = |row: &sqlx::postgres::PgRow| {
            Ok(AuditLine {
                number: bits(row.try_get(0)?),
                at: to_moment(row.try_get(1)?),
                by: Operator { who: row.try_get(2)?, from: row.try_get(3)? },
                verb: row.try_get(4)?,
                target: row.try_get(5)?,
                count: bits(row.try_get(6)?),
                note: row.try_get(7)?,
            })
        };
        Ok(found.iter().map(line).collect::<sqlx::Result<_>>()?)
    }
}
