//! Dedupe records: identities, and the ends of their events.
//!
//! A dedupe record is written once, with the event, and again only if its event is discarded or edited, or ends so
//! late that the record would expire too early. Any other end than "done at the first attempt" is [beside
//! it](super::endings).

use std::sync::LazyLock;

use redrive_core::Moment;
use redrive_core::event::Fingerprint;
use redrive_core::queue_entry::{Seq, StreamId};
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use super::endings::delete_end;
use super::fresh::{Damage, values};
pub(in crate::stores::sqlite) use crate::stores::shared::dedupe::{
    DedupeRecord, End, Ended, ending_of, fresh_sum,
};
use crate::stores::shared::numbers::{bits, column, from_moment};
use crate::stores::sqlite::faults::{Step, damaged};

/// How many columns a dedupe record without an end has.
const FRESH_COLUMNS: usize = 7;

impl DedupeRecord {
    /// The statement that writes dedupe records without an end.
    pub(in crate::stores::sqlite) fn inserting(conn: &Connection) -> rusqlite::Result<CachedStatement<'_>> {
        conn.prepare_cached(
            "INSERT INTO redrive_dedupe (stream, id, fingerprint, seq, published, until, crc) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING",
        )
    }

    /// The same for [`ROWS`](super::fresh::ROWS) of them.
    pub(in crate::stores::sqlite) fn inserting_many(
        conn: &Connection,
    ) -> rusqlite::Result<CachedStatement<'_>> {
        static SQL: LazyLock<String> = LazyLock::new(|| {
            let columns = "stream, id, fingerprint, seq, published, until, crc";
            format!(
                "INSERT OR FAIL INTO redrive_dedupe ({columns}) VALUES {} ON CONFLICT DO NOTHING",
                values(FRESH_COLUMNS)
            )
        });
        conn.prepare_cached(&SQL)
    }

    /// Writes a dedupe record without an end. `false` if the identity has one already.
    pub(in crate::stores::sqlite) fn insert(
        insert: &mut CachedStatement<'_>,
        identity: (StreamId, &str),
        fingerprint: Fingerprint,
        seq: Seq,
        times: (Moment, Moment),
    ) -> rusqlite::Result<bool> {
        Self::bind(insert, 0, identity, fingerprint, seq, times)?;
        Ok(insert.raw_execute()? == 1)
    }

    /// Binds a dedupe record without an end as the row `row` of a statement that writes such.
    pub(in crate::stores::sqlite) fn bind(
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

    /// The seq that an identity's dedupe record names.
    pub(in crate::stores::sqlite) fn seq(
        conn: &Connection,
        stream: StreamId,
        id: &str,
    ) -> rusqlite::Result<Option<Seq>> {
        conn.prepare_cached("SELECT seq FROM redrive_dedupe WHERE stream = ?1 AND id = ?2")?
            .query_row(params![stream.0, id], |row| row.get(0).map(|seq| Seq(bits(seq))))
            .optional()
    }

    /// The dedupe record of an identity.
    pub(in crate::stores::sqlite) fn find(
        conn: &Connection,
        stream: StreamId,
        id: &str,
    ) -> Step<Option<Self>> {
        let mut select = conn.prepare_cached(
            "SELECT fingerprint, seq, published, until, state, ended, attempts, history, result, became, crc \
             FROM redrive_dedupe WHERE stream = ?1 AND id = ?2",
        )?;
        let found =
            select.query_row(params![stream.0, id], |row| Ok(Self::read(row, stream, id))).optional()?;
        let damaged = |Damage| damaged("redrive_dedupe", format!("{} {id}", stream.0));
        let Some(mut dedupe) = found.transpose().map_err(damaged)? else { return Ok(None) };
        if dedupe.end.is_none() {
            dedupe.end = End::find(conn, dedupe.seq)?;
        }
        Ok(Some(dedupe))
    }

    /// Writes how it ended, and until when it is remembered.
    pub(in crate::stores::sqlite) fn update(&self, conn: &Connection) -> rusqlite::Result<()> {
        let end = self.end.as_ref();
        let result = end.and_then(|end| end.result.as_deref());
        let became = end.and_then(|end| end.became.as_deref());
        let (stream, id) = (i64::from(self.stream.0), self.id.as_str());
        let Ended { until, state, at, attempts, history, crc } = self.ended();
        let mut update = conn.prepare_cached(
            "UPDATE redrive_dedupe SET until = ?3, state = ?4, ended = ?5, attempts = ?6, history = ?7, \
             result = ?8, became = ?9, crc = ?10 WHERE stream = ?1 AND id = ?2",
        )?;
        update
            .execute(params![stream, id, until, state, at, attempts, history, result, became, crc])
            .map(drop)
    }

    /// Deletes the dedupe record and the end of an identity.
    pub(in crate::stores::sqlite) fn delete(
        conn: &Connection,
        stream: StreamId,
        id: &str,
    ) -> rusqlite::Result<()> {
        delete_end(conn, stream.0, id)?;
        let mut delete = conn.prepare_cached("DELETE FROM redrive_dedupe WHERE stream = ?1 AND id = ?2")?;
        delete.execute(params![stream.0, id]).map(drop)
    }
}
