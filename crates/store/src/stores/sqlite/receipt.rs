//! Receipts: identities, and what became of them.
//!
//! A receipt is written once, with the event, and touched again only where its event is taken away or edited, or ends so
//! late that the receipt would not last. What else its event's absence does not say (another end than "done", a result,
//! attempts before it) is [beside it](super::ends).

use std::sync::LazyLock;

use redrive_core::Moment;
use redrive_core::entry::{Seq, StreamId};
use redrive_core::event::Fingerprint;
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use super::ends::delete_end;
use super::faults::{Step, damaged};
use super::numbers::{bits, column, from_moment};
use super::rows::{Damage, values};
pub(super) use crate::stores::shared::receipt::{End, Ended, Receipt, ending_of, fresh_sum};

/// How many columns a receipt without an end has.
const FRESH_COLUMNS: usize = 7;

impl Receipt {
    /// The statement that writes receipts without an end.
    pub(super) fn inserting(conn: &Connection) -> rusqlite::Result<CachedStatement<'_>> {
        conn.prepare_cached(
            "INSERT INTO redrive_receipt (stream, id, fingerprint, seq, published, until, crc) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING",
        )
    }

    /// The same for [`ROWS`](super::rows::ROWS) of them.
    pub(super) fn inserting_many(conn: &Connection) -> rusqlite::Result<CachedStatement<'_>> {
        static SQL: LazyLock<String> = LazyLock::new(|| {
            let columns = "stream, id, fingerprint, seq, published, until, crc";
            format!(
                "INSERT OR FAIL INTO redrive_receipt ({columns}) VALUES {} ON CONFLICT DO NOTHING",
                values(FRESH_COLUMNS)
            )
        });
        conn.prepare_cached(&SQL)
    }

    /// Writes a receipt without an end. `false` where the identity has one already.
    pub(super) fn insert(
        insert: &mut CachedStatement<'_>,
        identity: (StreamId, &str),
        fingerprint: Fingerprint,
        seq: Seq,
        times: (Moment, Moment),
    ) -> rusqlite::Result<bool> {
        Self::bind(insert, 0, identity, fingerprint, seq, times)?;
        Ok(insert.raw_execute()? == 1)
    }

    /// Binds a receipt without an end as the row `row` of a statement that writes such.
    pub(super) fn bind(
        insert: &mut CachedStatement<'_>,
        row: usize,
        (stream, id): (StreamId, &str),
        fingerprint: Fingerprint,
        seq: Seq,
        (published, until): (Moment, Moment),
    ) -> rusqlite::Result<()> {
        let (seq, published, until) = (column(seq.0), from_moment(published), from_moment(until));
        let crc = fresh_sum((stream, id), &fingerprint.0, (seq, published, until));
        let before = row * FRESH_COLUMNS;
        insert.raw_bind_parameter(before + 1, stream.0)?;
        insert.raw_bind_parameter(before + 2, id)?;
        insert.raw_bind_parameter(before + 3, fingerprint.0)?;
        insert.raw_bind_parameter(before + 4, seq)?;
        insert.raw_bind_parameter(before + 5, published)?;
        insert.raw_bind_parameter(before + 6, until)?;
        insert.raw_bind_parameter(before + 7, crc)
    }

    /// The seq that an identity's receipt names.
    pub(super) fn seq(conn: &Connection, stream: StreamId, id: &str) -> rusqlite::Result<Option<Seq>> {
        conn.prepare_cached("SELECT seq FROM redrive_receipt WHERE stream = ?1 AND id = ?2")?
            .query_row(params![stream.0, id], |row| row.get(0).map(|seq| Seq(bits(seq))))
            .optional()
    }

    /// The receipt of an identity.
    pub(super) fn find(conn: &Connection, stream: StreamId, id: &str) -> Step<Option<Self>> {
        let mut select = conn.prepare_cached(
            "SELECT fingerprint, seq, published, until, state, ended, attempts, story, result, became, crc \
             FROM redrive_receipt WHERE stream = ?1 AND id = ?2",
        )?;
        let found =
            select.query_row(params![stream.0, id], |row| Ok(Self::read(row, stream, id))).optional()?;
        let damaged = |Damage| damaged("redrive_receipt", format!("{} {id}", stream.0));
        let Some(mut receipt) = found.transpose().map_err(damaged)? else { return Ok(None) };
        if receipt.end.is_none() {
            receipt.end = End::find(conn, receipt.seq)?;
        }
        Ok(Some(receipt))
    }

    /// Writes how it ended, and until when it is remembered.
    pub(super) fn update(&self, conn: &Connection) -> rusqlite::Result<()> {
        let end = self.end.as_ref();
        let result = end.and_then(|end| end.result.as_deref());
        let became = end.and_then(|end| end.became.as_deref());
        let (stream, id) = (i64::from(self.stream.0), self.id.as_str());
        let Ended { until, state, at, attempts, story, crc } = self.ended();
        let mut update = conn.prepare_cached(
            "UPDATE redrive_receipt SET until = ?3, state = ?4, ended = ?5, attempts = ?6, story = ?7, \
             result = ?8, became = ?9, crc = ?10 WHERE stream = ?1 AND id = ?2",
        )?;
        update.execute(params![stream, id, until, state, at, attempts, story, result, became, crc]).map(drop)
    }

    /// Forgets an identity, and how its event ended.
    pub(super) fn delete(conn: &Connection, stream: StreamId, id: &str) -> rusqlite::Result<()> {
        delete_end(conn, stream.0, id)?;
        let mut delete = conn.prepare_cached("DELETE FROM redrive_receipt WHERE stream = ?1 AND id = ?2")?;
        delete.execute(params![stream.0, id]).map(drop)
    }
}
