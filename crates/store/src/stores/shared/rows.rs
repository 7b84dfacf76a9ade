//! Events as rows: the columns that never change.
//!
//! Every row has a checksum over its columns, with lengths and with the names of its stream, so that a flipped bit on
//! the disk is an error and not another payload. It is computed once at publish and once at load, at some gigabytes a
//! second.
//!
//! Fields that most events do not have (headers, a delay, an expiry) are JSON in one column, as they were given: a
//! load returns exactly what was published.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::event::{Expiry, Meta, When};
use redrive_core::queue_entry::{EventProgress, QueueEntry, Seq, StreamId};
use redrive_core::{Event, Moment};

use super::cells::{Cells, Damage};
use super::numbers::{column, from_moment, nanos, to_moment};

/// The columns that both tables of events have, in order.
macro_rules! event_columns {
    () => {
        "seq, id, key, tag, payload, extra, published, dedupe_ok_until, crc"
    };
}
pub(in crate::stores) use event_columns;

/// How many there are.
pub(in crate::stores) const EVENT_COLUMNS: usize = 9;

/// The names of a stream. They never change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::stores) struct Stream {
    pub(in crate::stores) id: StreamId,
    pub(in crate::stores) queue: String,
    pub(in crate::stores) tenant: String,
}

impl Stream {
    /// Its number and names.
    #[cfg(feature = "postgres")]
    pub(in crate::stores) fn named(&self) -> (StreamId, String, String) {
        (self.id, self.queue.clone(), self.tenant.clone())
    }

    /// Whether these are its names.
    #[cfg(feature = "sqlite")]
    pub(in crate::stores) fn is(&self, queue: &str, tenant: &str) -> bool {
        self.queue == queue && self.tenant == tenant
    }
}

/// A row of an event.
#[derive(Debug, Clone)]
pub(in crate::stores) struct EventRow {
    pub(in crate::stores) seq: Seq,
    pub(in crate::stores) event: Arc<Event>,
    /// Whether the queue keeps the order of its key.
    pub(in crate::stores) ordered: bool,
    pub(in crate::stores) published: Moment,
    /// If settled by then, the dedupe record lasts long enough as it is.
    pub(in crate::stores) dedupe_ok_until: Moment,
    /// Its shard: set at publish, and inherited by its replacement.
    pub(in crate::stores) shard: u32,
}

impl EventRow {
    /// The key, if the queue keeps its order.
    pub(in crate::stores) fn key(&self) -> Option<&str> {
        self.event.key.as_deref().filter(|_| self.ordered)
    }

    /// The same as an entry that has not run.
    pub(in crate::stores) fn entry(self, stream: StreamId) -> QueueEntry {
        let due = self.event.when.moment(self.published);
        QueueEntry {
            seq: self.seq,
            rev: 0,
            stream,
            shard: self.shard,
            published: self.published,
            expires: self.event.expires.map(|expiry| expiry.moment(self.published)),
            event: self.event,
            progress: EventProgress::fresh(due),
        }
    }

    /// The columns that are computed from the event.
    pub(in crate::stores) fn parts(&self) -> Parts<'_> {
        let event = &*self.event;
        let extra = encode_extra(event);
        let (key, tag) = split(event.key.as_deref(), self.ordered);
        let (published, dedupe_ok_until) = (from_moment(self.published), from_moment(self.dedupe_ok_until));
        let names = (event.queue.as_str(), event.tenant.as_str());
        let place = (column(self.seq.0), event.id.as_str());
        let crc =
            sum(names, place, (key, tag), (&event.payload, extra.as_deref()), (published, dedupe_ok_until));
        Parts { key, tag, extra, published, dedupe_ok_until, crc }
    }

    /// Reads the columns, the first of a row. With several shards, the shard is beside them.
    pub(in crate::stores) fn read(row: &impl Cells, stream: &Stream) -> Result<Self, Damage> {
        let seq = row.number(0)?;
        let id = row.text(1)?;
        let (key, tag) = (row.maybe_text(2)?, row.maybe_text(3)?);
        let payload = row.bytes(4)?;
        let extra = row.blob(5)?;
        let (published, dedupe_ok_until) = (row.number(6)?, row.number(7)?);
        let names = (stream.queue.as_str(), stream.tenant.as_str());
        let keys = (key.as_deref(), tag.as_deref());
        if sum(names, (seq, &id), keys, (&payload, extra), (published, dedupe_ok_until)) != row.number(8)? {
            return Err(Damage);
        }
        let (meta, when, expires) = decode_extra(extra)?;
        let (tenant, queue) = (stream.tenant.clone(), stream.queue.clone());
        let ordered = key.is_some();
        let event = Event { tenant, queue, id, key: key.or(tag), payload, when, expires, meta };
        Ok(Self {
            seq: Seq(u64::try_from(seq).map_err(|_| Damage)?),
            event: Arc::new(event),
            ordered,
            published: to_moment(published),
            dedupe_ok_until: to_moment(dedupe_ok_until),
            shard: 0,
        })
    }
}

/// The columns of an event that are made of it.
pub(in crate::stores) struct Parts<'a> {
    pub(in crate::stores) key: Option<&'a str>,
    pub(in crate::stores) tag: Option<&'a str>,
    pub(in crate::stores) extra: Option<Vec<u8>>,
    pub(in crate::stores) published: i64,
    pub(in crate::stores) dedupe_ok_until: i64,
    pub(in crate::stores) crc: i64,
}

fn sum(
    (queue, tenant): (&str, &str),
    (seq, id): (i64, &str),
    (key, tag): (Option<&str>, Option<&str>),
    (payload, extra): (&[u8], Option<&[u8]>),
    (published, dedupe_ok_until): (i64, i64),
) -> i64 {
    Sum::new()
        .text(queue)
        .text(tenant)
        .number(seq)
        .text(id)
        .maybe(key.map(str::as_bytes))
        .maybe(tag.map(str::as_bytes))
        .bytes(payload)
        .maybe(extra)
        .number(published)
        .number(dedupe_ok_until)
        .end()
}

/// Splits a key into the columns `key` (ordered) and `tag` (not ordered).
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
    // There are no maps with non-text keys and the like in it, so this does not fail.
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

/// The type of an event, from such a column alone.
pub(in crate::stores) fn kind_of(extra: &[u8]) -> Option<String> {
    let (meta, _, _) = decode_extra(Some(extra)).ok()?;
    meta?.kind().map(str::to_owned)
}

/// A checksum of columns, with their lengths. Small ones are buffered: a call for each of them would cost more than
/// the checksum does.
pub(in crate::stores) struct Sum {
    of: crc32fast::Hasher,
    small: [u8; SMALL],
    filled: usize,
}

/// The size of the buffer: a dedupe record with an id of usual length.
const SMALL: usize = 192;

impl Sum {
    pub(in crate::stores) fn new() -> Self {
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

    pub(in crate::stores) fn number(&mut self, number: i64) -> &mut Self {
        self.add(&number.to_le_bytes());
        self
    }

    pub(in crate::stores) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.add(&(bytes.len() as u64).to_le_bytes());
        self.add(bytes);
        self
    }

    pub(in crate::stores) fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    pub(in crate::stores) fn maybe(&mut self, bytes: Option<&[u8]>) -> &mut Self {
        match bytes {
            Some(bytes) => self.bytes(bytes),
            None => self.number(-1),
        }
    }

    pub(in crate::stores) fn maybe_number(&mut self, number: Option<i64>) -> &mut Self {
        match number {
            Some(number) => self.number(1).number(number),
            None => self.number(0),
        }
    }

    pub(in crate::stores) fn end(&mut self) -> i64 {
        self.of.update(&self.small[..self.filled]);
        self.filled = 0;
        i64::from(self.of.clone().finalize())
    }
}
