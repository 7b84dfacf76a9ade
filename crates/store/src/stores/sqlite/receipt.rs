//! Receipts: identities, and what became of them.
//!
//! A receipt is written once, with the event, and touched again only where its event is taken away or edited, or ends so
//! late that the receipt would not last. What else its event's absence does not say (another end than "done", a result,
//! attempts before it) is [beside it](super::ends).

use std::sync::{Arc, LazyLock};

use redrive_core::Moment;
use redrive_core::entry::{Seq, StreamId};
use redrive_core::event::{Fingerprint, State, Story};
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use super::ends::delete_end;
use super::faults::{Step, damaged};
use super::numbers::{bits, column, from_moment, to_moment};
use super::rows::{Damage, Sum, values};
use super::stories::{read_story, write_story};
use crate::lease::TokenHash;

/// How many columns a receipt without an end has.
const FRESH_COLUMNS: usize = 7;

/// What is known of an identity.
#[derive(Debug, Clone)]
pub(super) struct Receipt {
    pub(super) stream: StreamId,
    pub(super) id: String,
    pub(super) fingerprint: Fingerprint,
    pub(super) seq: Seq,
    pub(super) published: Moment,
    pub(super) until: Moment,
    pub(super) end: Option<End>,
}

/// How an event ended.
#[derive(Debug, Clone)]
pub(super) struct End {
    pub(super) state: State,
    pub(super) at: Moment,
    pub(super) attempts: u32,
    pub(super) story: Option<Arc<Story>>,
    pub(super) result: Option<Vec<u8>>,
    /// The id under which it goes on, where an edit gave its place to another.
    pub(super) became: Option<String>,
    /// Whose lease did it, where it was leased and is done. Such an end is beside the receipt.
    pub(super) token: Option<TokenHash>,
}

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
        let crc = Columns { stream: i64::from(stream.0), id, print: &fingerprint.0, seq, published, until }
            .sum(None, None, None, None, None, None);
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
        let (seq, published, until) =
            (column(self.seq.0), from_moment(self.published), from_moment(self.until));
        let state = end.map(|end| end.state.as_str());
        let ended = end.map(|end| from_moment(end.at));
        let attempts = end.map(|end| i64::from(end.attempts));
        let story = end.and_then(|end| write_story(end.story.as_deref()));
        let result = end.and_then(|end| end.result.as_deref());
        let became = end.and_then(|end| end.became.as_deref());
        let (stream, id, print) = (i64::from(self.stream.0), self.id.as_str(), &self.fingerprint.0);
        let crc = Columns { stream, id, print, seq, published, until }.sum(
            state,
            ended,
            attempts,
            story.as_deref(),
            result,
            became,
        );
        let mut update = conn.prepare_cached(
            "UPDATE redrive_receipt SET until = ?3, state = ?4, ended = ?5, attempts = ?6, story = ?7, \
             result = ?8, became = ?9, crc = ?10 WHERE stream = ?1 AND id = ?2",
        )?;
        update
            .execute(params![stream, id, until, state, ended, attempts, story, result, became, crc])
            .map(drop)
    }

    /// Forgets an identity, and how its event ended.
    pub(super) fn delete(conn: &Connection, stream: StreamId, id: &str) -> rusqlite::Result<()> {
        delete_end(conn, stream.0, id)?;
        let mut delete = conn.prepare_cached("DELETE FROM redrive_receipt WHERE stream = ?1 AND id = ?2")?;
        delete.execute(params![stream.0, id]).map(drop)
    }

    pub(super) fn read(row: &rusqlite::Row<'_>, stream: StreamId, id: &str) -> Result<Self, Damage> {
        let number = |at: usize| row.get::<_, i64>(at).map_err(|_| Damage);
        let maybe = |at: usize| row.get::<_, Option<i64>>(at).map_err(|_| Damage);
        let print: [u8; 16] = row.get(0).map_err(|_| Damage)?;
        let (seq, published, until) = (number(1)?, number(2)?, number(3)?);
        let state: Option<String> = row.get(4).map_err(|_| Damage)?;
        let (ended, attempts) = (maybe(5)?, maybe(6)?);
        let story: Option<String> = row.get(7).map_err(|_| Damage)?;
        let result: Option<Vec<u8>> = row.get(8).map_err(|_| Damage)?;
        let became: Option<String> = row.get(9).map_err(|_| Damage)?;
        let columns = Columns { stream: i64::from(stream.0), id, print: &print, seq, published, until };
        let left = (result.as_deref(), became.as_deref());
        if columns.sum(state.as_deref(), ended, attempts, story.as_deref(), left.0, left.1) != number(10)? {
            return Err(Damage);
        }
        let end = match state {
            None => None,
            Some(word) => Some(End {
                state: State::from_word(&word).ok_or(Damage)?,
                at: to_moment(ended.ok_or(Damage)?),
                attempts: u32::try_from(attempts.unwrap_or(0)).map_err(|_| Damage)?,
                story: read_story(story.as_deref())?,
                result,
                became,
                token: None,
            }),
        };
        Ok(Self {
            stream,
            id: id.to_owned(),
            fingerprint: Fingerprint(print),
            seq: Seq(u64::try_from(seq).map_err(|_| Damage)?),
            published: to_moment(published),
            until: to_moment(until),
            end,
        })
    }
}

struct Columns<'a> {
    stream: i64,
    id: &'a str,
    print: &'a [u8; 16],
    seq: i64,
    published: i64,
    until: i64,
}

impl Columns<'_> {
    fn sum(
        &self,
        state: Option<&str>,
        ended: Option<i64>,
        attempts: Option<i64>,
        story: Option<&str>,
        result: Option<&[u8]>,
        became: Option<&str>,
    ) -> i64 {
        Sum::new()
            .number(self.stream)
            .text(self.id)
            .bytes(self.print)
            .number(self.seq)
            .number(self.published)
            .number(self.until)
            .maybe(state.map(str::as_bytes))
            .maybe_number(ended)
            .maybe_number(attempts)
            .maybe(story.map(str::as_bytes))
            .maybe(result)
            .maybe(became.map(str::as_bytes))
            .end()
    }
}
