//! Events as rows: what never changes of them.
//!
//! Every row has a checksum over its columns, with lengths and with the names of its stream, so that a bit
//! that the disk turned over is an error and not another payload. It is computed once at publish and once at
//! load, at some gigabytes a second.
//!
//! What most events do not have (headers, a delay, an expiry) is JSON in one column, as it was given: what a
//! load returns equals what was published.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redrive_core::entry::{Entry, Progress, Seq, StreamId};
use redrive_core::event::{Expiry, Meta, When};
use redrive_core::{Event, Moment};
use rusqlite::{CachedStatement, Connection, Row, params};

use super::numbers::{column, from_moment, nanos, to_moment};

/// The columns that both tables of events have, in order.
macro_rules! event_columns {
    () => {
        "seq, id, key, tag, payload, extra, published, calm, crc"
    };
}
pub(super) use event_columns;

/// How many they are.
pub(super) const EVENT_COLUMNS: usize = 9;

/// How many rows a statement for many writes. To begin and end a statement costs about a quarter of what a
/// row does.
pub(super) const ROWS: usize = 16;

/// The values of such a statement, each row with so many columns. Such a statement says `OR FAIL`: to undo it alone,
/// which nobody wants because all is rolled back with it, SQLite would copy each page that it changes.
pub(super) fn values(columns: usize) -> String {
    let row = format!("({})", vec!["?"; columns].join(", "));
    vec![row; ROWS].join(", ")
}

/// The names of a stream. They never change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stream {
    pub(super) id: StreamId,
    pub(super) queue: String,
    pub(super) tenant: String,
}

impl Stream {
    /// Whether these are its names.
    pub(super) fn is(&self, queue: &str, tenant: &str) -> bool {
        self.queue == queue && self.tenant == tenant
    }
}

/// A row that cannot be what was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Damage;

/// A row of an event.
#[derive(Debug, Clone)]
pub(super) struct EventRow {
    pub(super) seq: Seq,
    pub(super) event: Arc<Event>,
    /// Whether order is kept within its key.
    pub(super) ordered: bool,
    pub(super) published: Moment,
    /// Settled by then, the receipt lasts long enough as it is.
    pub(super) calm: Moment,
}

impl EventRow {
    /// The key within which order is kept.
    pub(super) fn key(&self) -> Option<&str> {
        self.event.key.as_deref().filter(|_| self.ordered)
    }

    /// The same as an entry that has not run.
    pub(super) fn entry(self, stream: StreamId) -> Entry {
        let due = self.event.when.moment(self.published);
        Entry {
            seq: self.seq,
            rev: 0,
            stream,
            shard: 0,
            published: self.published,
            expires: self.event.expires.map(|expiry| expiry.moment(self.published)),
            event: self.event,
            progress: Progress::fresh(due),
        }
    }

    /// The statement that puts events among those that may run.
    pub(super) fn inserting(conn: &Connection) -> rusqlite::Result<CachedStatement<'_>> {
        conn.prepare_cached(concat!(
            "INSERT INTO redrive_live (",
            event_columns!(),
            ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)"
        ))
    }

    /// The same for [`ROWS`] of them.
    pub(super) fn inserting_many(conn: &Connection) -> rusqlite::Result<CachedStatement<'_>> {
        static SQL: LazyLock<String> = LazyLock::new(|| {
            let columns = event_columns!();
            format!("INSERT OR FAIL INTO redrive_live ({columns}) VALUES {}", values(EVENT_COLUMNS))
        });
        conn.prepare_cached(&SQL)
    }

    /// Puts it among those that may run.
    pub(super) fn insert(&self, insert: &mut CachedStatement<'_>) -> rusqlite::Result<()> {
        self.bind(insert)?;
        insert.raw_execute().map(drop)
    }

    /// Binds the columns, as the first of a statement.
    pub(super) fn bind(&self, statement: &mut CachedStatement<'_>) -> rusqlite::Result<()> {
        self.bind_as(0, statement)
    }

    /// Binds the columns as the row `row` of a statement that writes several.
    pub(super) fn bind_as(&self, row: usize, statement: &mut CachedStatement<'_>) -> rusqlite::Result<()> {
        let event = &*self.event;
        let extra = encode_extra(event);
        let (key, tag) = split(event.key.as_deref(), self.ordered);
        let (published, calm) = (from_moment(self.published), from_moment(self.calm));
        let seq = column(self.seq.0);
        let crc = Sum::new()
            .text(&event.queue)
            .text(&event.tenant)
            .number(seq)
            .text(&event.id)
            .maybe(key.map(str::as_bytes))
            .maybe(tag.map(str::as_bytes))
            .bytes(&event.payload)
            .maybe(extra.as_deref())
            .number(published)
            .number(calm)
            .end();
        let before = row * EVENT_COLUMNS;
        statement.raw_bind_parameter(before + 1, seq)?;
        statement.raw_bind_parameter(before + 2, &event.id)?;
        statement.raw_bind_parameter(before + 3, key)?;
        statement.raw_bind_parameter(before + 4, tag)?;
        statement.raw_bind_parameter(before + 5, &event.payload)?;
        statement.raw_bind_parameter(before + 6, extra)?;
        statement.raw_bind_parameter(before + 7, published)?;
        statement.raw_bind_parameter(before + 8, calm)?;
        statement.raw_bind_parameter(before + 9, crc)
    }

    /// Reads the columns, the first of a row.
    pub(super) fn read(row: &Row<'_>, stream: &Stream) -> Result<Self, Damage> {
        let number = |at: usize| row.get::<_, i64>(at).map_err(|_| Damage);
        let seq = number(0)?;
        let id: String = row.get(1).map_err(|_| Damage)?;
        let key: Option<String> = row.get(2).map_err(|_| Damage)?;
        let tag: Option<String> = row.get(3).map_err(|_| Damage)?;
        let payload: Vec<u8> = row.get(4).map_err(|_| Damage)?;
        let extra: Option<Vec<u8>> = row.get(5).map_err(|_| Damage)?;
        let (published, calm) = (number(6)?, number(7)?);
        let crc = Sum::new()
            .text(&stream.queue)
            .text(&stream.tenant)
            .number(seq)
            .text(&id)
            .maybe(key.as_deref().map(str::as_bytes))
            .maybe(tag.as_deref().map(str::as_bytes))
            .bytes(&payload)
            .maybe(extra.as_deref())
            .number(published)
            .number(calm)
            .end();
        if crc != number(8)? {
            return Err(Damage);
        }
        let (meta, when, expires) = decode_extra(extra.as_deref())?;
        let (tenant, queue) = (stream.tenant.clone(), stream.queue.clone());
        let ordered = key.is_some();
        let event = Event { tenant, queue, id, key: key.or(tag), payload, when, expires, meta };
        Ok(Self {
            seq: Seq(u64::try_from(seq).map_err(|_| Damage)?),
            event: Arc::new(event),
            ordered,
            published: to_moment(published),
            calm: to_moment(calm),
        })
    }
}

/// Takes an event out of those that may run.
pub(super) fn delete_live(conn: &Connection, seq: Seq) -> rusqlite::Result<usize> {
    conn.prepare_cached("DELETE FROM redrive_live WHERE seq = ?1")?.execute(params![column(seq.0)])
}

/// A key that means something, and one that does not.
const fn split(key: Option<&str>, ordered: bool) -> (Option<&str>, Option<&str>) {
    if ordered { (key, None) } else { (None, key) }
}

type Point<S> = Option<(S, u64)>;
type Extra = (Option<Box<Meta>>, When, Option<Expiry>);

fn encode_extra(event: &Event) -> Option<Vec<u8>> {
    let when: Point<&str> = match event.when {
        When::Now => None,
        When::After(delay) => Some(("after", nanos(delay))),
        When::At(at) => Some(("at", at.as_nanos())),
    };
    let expires: Point<&str> = event.expires.map(|expiry| match expiry {
        Expiry::After(time) => ("after", nanos(time)),
        Expiry::At(at) => ("at", at.as_nanos()),
    });
    if event.meta.is_none() && when.is_none() && expires.is_none() {
        return None;
    }
    // Maps with keys that are no text and the like cannot be in there, so this does not fail.
    serde_json::to_vec(&(&event.meta, when, expires)).ok()
}

fn decode_extra(extra: Option<&[u8]>) -> Result<Extra, Damage> {
    let Some(extra) = extra else { return Ok((None, When::Now, None)) };
    let (meta, when, expires): (Option<Box<Meta>>, Point<String>, Point<String>) =
        serde_json::from_slice(extra).map_err(|_| Damage)?;
    let when = when.map_or(When::Now, |(form, nanos)| match form.as_str() {
        "after" => When::After(Duration::from_nanos(nanos)),
        _ => When::At(Moment::from_nanos(nanos)),
    });
    let expires = expires.map(|(form, nanos)| match form.as_str() {
        "after" => Expiry::After(Duration::from_nanos(nanos)),
        _ => Expiry::At(Moment::from_nanos(nanos)),
    });
    Ok((meta, when, expires))
}

/// What type of event it is, by such a column alone.
pub(super) fn kind_of(extra: &[u8]) -> Option<String> {
    let (meta, _, _) = decode_extra(Some(extra)).ok()?;
    meta?.kind().map(str::to_owned)
}

/// A checksum of columns, with their lengths. Small ones are gathered first: a call for each of them would cost
/// more than the checksum does.
pub(super) struct Sum {
    of: crc32fast::Hasher,
    small: [u8; SMALL],
    filled: usize,
}

/// How much is gathered: a receipt with an id of usual length.
const SMALL: usize = 192;

impl Sum {
    pub(super) fn new() -> Self {
        Self { of: crc32fast::Hasher::new(), small: [0; SMALL], filled: 0 }
    }

    fn add(&mut self, bytes: &[u8]) {
        if self.filled + bytes.len() > SMALL {
            self.of.update(&self.small[..self.filled]);
            self.filled = 0;
            if bytes.len() > SMALL {
                self.of.update(bytes);
                return;
            }
        }
        self.small[self.filled..self.filled + bytes.len()].copy_from_slice(bytes);
        self.filled += bytes.len();
    }

    pub(super) fn number(&mut self, number: i64) -> &mut Self {
        self.add(&number.to_le_bytes());
        self
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.add(&(bytes.len() as u64).to_le_bytes());
        self.add(bytes);
        self
    }

    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    pub(super) fn maybe(&mut self, bytes: Option<&[u8]>) -> &mut Self {
        match bytes {
            Some(bytes) => self.bytes(bytes),
            None => self.number(-1),
        }
    }

    pub(super) fn maybe_number(&mut self, number: Option<i64>) -> &mut Self {
        match number {
            Some(number) => self.number(1).number(number),
            None => self.number(0),
        }
    }

    pub(super) fn end(&mut self) -> i64 {
        self.of.update(&self.small[..self.filled]);
        self.filled = 0;
        i64::from(self.of.clone().finalize())
    }
}
