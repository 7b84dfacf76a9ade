//! Publishing: dedupe record and event together, many with one statement.
//!
//! Dedupe records are inserted first and without a lookup, in the order of their identities, so that two groups never
//! deadlock. The unique index says which identities are new, and waits for a transaction that is about to commit the
//! same one. Only the others are looked up.
//!
//! A publisher knows nothing of the order of keys: it inserts events as runnable, and a load hands out only the heads.
//! So a publisher locks nothing that an owner needs.
//!
//! Seqs are drawn in the order of arrival, before it is known which events are new. A duplicate leaves its seq unused.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use redrive_core::event::EventError;
use redrive_core::queue_entry::{Seq, StreamId};
use sqlx::Row;

use crate::error::{PublishError, StoreError};
use crate::store::{NewEvent, Published, QueueSpec};
use crate::stores::postgres::database::CommitNews;
use crate::stores::postgres::events::dedupe::DedupeRecord;
use crate::stores::postgres::events::fresh::{EventRow, Parts, Stream};
use crate::stores::postgres::events::tracked::{RowState, TrackedEvent};
use crate::stores::postgres::faults::{Fault, Step};
use crate::stores::postgres::tx::{PgTx, maybe, rows};
use crate::stores::shared::cells::Cells;
use crate::stores::shared::dedupe::{fresh_sum, times};
use crate::stores::shared::numbers::{bits, column, from_moment, seq};
use crate::stores::shared::tracked::states;

pub(in crate::stores::postgres) type Answer = Result<Published, PublishError>;

/// The seqs that a commit of unknown outcome may have given to events: such an event is no duplicate of itself.
pub(in crate::stores::postgres) type Given = HashMap<Seq, usize>;

/// A valid event, and its destination.
pub(in crate::stores::postgres) struct Item<'a> {
    pub(in crate::stores::postgres) at: usize,
    pub(in crate::stores::postgres) new: &'a NewEvent,
    pub(in crate::stores::postgres) stream: Arc<Stream>,
    pub(in crate::stores::postgres) spec: Arc<QueueSpec>,
    pub(in crate::stores::postgres) seq: Seq,
    pub(in crate::stores::postgres) shard: u32,
}

impl Item<'_> {
    pub(in crate::stores::postgres) fn identity(&self) -> (&str, StreamId) {
        (&self.new.event.id, self.stream.id)
    }

    pub(in crate::stores::postgres) fn row(&self) -> EventRow {
        let event = Arc::clone(&self.new.event);
        let ordered = self.spec.ordered && event.key.is_some();
        EventRow {
            seq: self.seq,
            event,
            ordered,
            published: self.new.at,
            dedupe_ok_until: times(&self.spec, self.new).0,
            shard: self.shard,
        }
    }

    /// The key, if the queue keeps its order.
    pub(in crate::stores::postgres) fn key(&self) -> Option<&str> {
        self.new.event.key.as_deref().filter(|_| self.spec.ordered)
    }

    /// Whether it is in a shard that its publisher owns, as far as the publisher knows.
    pub(in crate::stores::postgres) fn is_near(&self) -> bool {
        self.new.local_shard == Some(self.shard) && self.new.event.key.is_none()
    }

    /// Whether it has to wait for its time.
    pub(in crate::stores::postgres) fn is_delayed(&self) -> bool {
        self.new.event.when.moment(self.new.at) > self.new.at
    }

    /// An event that keeps no order may run, and is announced; for a keyed one it is unknown here whether it is the
    /// head.
    pub(in crate::stores::postgres) fn tell(&self, news: &mut CommitNews) {
        if self.spec.pull {
            return;
        }
        let row = self.row();
        if row.ordered {
            news.missed.entry(self.stream.id).or_insert_with(|| Arc::clone(&self.stream));
        } else {
            news.arrived.push(row.entry(self.stream.id));
        }
    }
}

impl PgTx<'_> {
    /// Stores valid events, and answers each. `given` has the seqs that an earlier try may have used, and those of
    /// this one.
    pub(in crate::stores::postgres) async fn publish_all(
        &mut self,
        events: &[&NewEvent],
        given: &mut Given,
    ) -> Step<Vec<Answer>> {
        let refused: HashMap<usize, EventError> =
            events.iter().enumerate().filter_map(|(at, new)| Some((at, new.event.check().err()?))).collect();
        let good: Vec<usize> = (0..events.len()).filter(|at| !refused.contains_key(at)).collect();
        let queues: BTreeSet<String> = good.iter().map(|at| events[*at].event.queue.clone()).collect();
        let queues: Vec<String> = queues.into_iter().collect();
        self.read_specs(&queues).await?;

        let mut answers: Vec<Option<Answer>> =
            (0..events.len()).map(|at| refused.get(&at).map(|error| Err(error.clone().into()))).collect();
        let mut items = Vec::with_capacity(good.len());
        for at in good {
            let event = &events[at].event;
            match self.spec(&event.queue).await? {
                Some(spec) => {
                    let stream = self.open_stream(&event.queue, &event.tenant).await?;
                    items.push(Item {
                        at,
                        new: events[at],
                        stream,
                        spec,
                        seq: Seq(0),
                        shard: events[at].shard(self.db.shards),
                    });
                }
                None => {
                    let (queue, known) = (event.queue.clone(), self.queue_names().await?);
                    answers[at] = Some(Err(PublishError::NoQueue { queue, known }));
                }
            }
        }
        self.draw(&mut items).await?;
        let earlier = given.clone();
        given.extend(items.iter().map(|item| (item.seq, item.at)));
        for item in &items {
            self.advance_clock(item.new.at);
        }
        let is_new = self.insert_new(&items).await?;
        for item in &items {
            let answer = if is_new.contains(&item.seq) {
                Ok(Published::Accepted(item.seq))
            } else {
                self.keep_known(item, &earlier).await?
            };
            answers[item.at] = Some(answer);
        }
        let missing =
            || Err(PublishError::Store(crate::stores::postgres::faults::broken("an event was not answered")));
        Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(missing)).collect())
    }

    /// Draws their seqs, in the order of arrival.
    async fn draw(&mut self, items: &mut [Item<'_>]) -> Step<()> {
        if items.is_empty() {
            return Ok(());
        }
        let count = column(items.len() as u64);
        let places = rows!(self, "SELECT nextval('redrive.place') FROM generate_series(1, $1)", count)?;
        for (item, row) in items.iter_mut().zip(places) {
            item.seq = seq(item.stream.id, bits(row.try_get(0)?));
        }
        Ok(())
    }

    /// Writes dedupe records, and the events that are new. Returns which those are.
    async fn insert_new(&mut self, items: &[Item<'_>]) -> Step<BTreeSet<Seq>> {
        if items.is_empty() {
            return Ok(BTreeSet::new());
        }
        let mut sorted: Vec<&Item<'_>> = items.iter().collect();
        sorted.sort_by(|a, b| a.identity().cmp(&b.identity()).then(a.at.cmp(&b.at)));
        let dedupe_records = Receipts::of(sorted.into_iter());
        let rows: Vec<(EventRow, &Item<'_>)> =
            items.iter().filter(|item| !item.is_delayed()).map(|item| (item.row(), item)).collect();
        let mut fresh = Lives::default();
        for (row, item) in &rows {
            fresh.push(row, item);
        }
        let new = rows!(
            self,
            "WITH new AS (INSERT INTO redrive.dedupe (id, stream, fingerprint, seq, published, until, crc) \
             SELECT * FROM unnest($1::text[], $2::bigint[], $3::bytea[], $4::bigint[], $5::bigint[], $6::bigint[], \
             $7::bigint[]) ON CONFLICT DO NOTHING RETURNING seq), \
             run AS (INSERT INTO redrive.fresh (seq, id, key, tag, payload, extra, published, dedupe_ok_until, crc, stream, shard) \
             SELECT event.* FROM unnest($8::bigint[], $9::text[], $10::text[], $11::text[], $12::bytea[], $13::bytea[], \
             $14::bigint[], $15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[]) \
             AS event (seq, id, key, tag, payload, extra, published, dedupe_ok_until, crc, stream, shard) \
             WHERE event.seq IN (SELECT seq FROM new) ORDER BY event.seq) \
             SELECT seq, pg_current_xact_id()::text FROM new",
            dedupe_records.ids,
            dedupe_records.streams,
            dedupe_records.prints,
            dedupe_records.seqs,
            dedupe_records.published,
            dedupe_records.untils,
            dedupe_records.sums,
            fresh.seqs,
            fresh.ids,
            fresh.keys,
            fresh.tags,
            fresh.payloads,
            fresh.extras,
            fresh.published,
            fresh.calms,
            fresh.sums,
            fresh.streams,
            fresh.shards
        )?;
        if let Some(row) = new.first() {
            self.number = row.try_get::<String, _>(1)?.parse().ok();
        }
        let new: BTreeSet<Seq> =
            new.iter().map(|row| row.try_get(0).map(|seq| Seq(bits(seq)))).collect::<sqlx::Result<_>>()?;
        for item in items.iter().filter(|item| item.is_delayed() && new.contains(&item.seq)) {
            self.insert_tracked(&TrackedEvent::fresh(item.row(), RowState::Waiting)).await?;
        }
        for item in items.iter().filter(|item| new.contains(&item.seq)) {
            self.tell_new(item);
        }
        Ok(new)
    }

    fn tell_new(&mut self, item: &Item<'_>) {
        let mut news = CommitNews::default();
        item.tell(&mut news);
        self.arrived.extend(news.arrived);
        self.missed.extend(news.missed);
    }

    /// Stores an event whose identity was taken, or returns the status of the first one.
    async fn keep_known(&mut self, item: &Item<'_>, earlier: &Given) -> Step<Answer> {
        let (id, stream) = item.identity();
        loop {
            match self.before(item, earlier).await {
                Ok(Some(before)) => return Ok(before),
                Ok(None) => {}
                Err(Fault::Refused(error)) => return Ok(Err(error.into())),
                Err(fault) => return Err(fault),
            }
            let (_, until) = times(&item.spec, item.new);
            let print = item.new.fingerprint;
            // Another publisher may have been quicker: then this is a duplicate of its event.
            if self.insert_dedupe((stream, id), print, item.seq, (item.new.at, until)).await? {
                let tracked = TrackedEvent::fresh(item.row(), RowState::Waiting);
                self.insert_tracked(&tracked).await?;
                self.tell_new(item);
                return Ok(Ok(Published::Accepted(item.seq)));
            }
        }
    }

    /// The status of the first event with this identity. `None` if that has expired, and is deleted.
    async fn before(&mut self, item: &Item<'_>, earlier: &Given) -> Step<Option<Answer>> {
        let (id, stream) = item.identity();
        // A duplicate gets the status, without any locks.
        let writes = std::mem::replace(&mut self.writes, false);
        let known = self.known(item, earlier, (stream, id)).await;
        self.writes = writes;
        match known? {
            Ok(answer) => Ok(Some(answer)),
            Err(None) => Ok(None),
            Err(Some(over)) if self.is_callers() => {
                // The locks of this deletion must not be held until the caller ends its transaction.
                self.over = Some(over);
                let what = "an expired event with this id is being deleted".to_owned();
                Err(StoreError::Passing { what, source: None }.into())
            }
            Err(Some(over)) => {
                // A discarded event is deleted with it, so this changes an event.
                self.lock_shards().await?;
                if self.is_over(&over).await? {
                    self.delete_dedupe_at(stream, id, over.seq).await?;
                }
                Ok(None)
            }
        }
    }

    /// The status of an identity; `None`; or a dedupe record that may be deleted.
    async fn known(
        &mut self,
        item: &Item<'_>,
        earlier: &Given,
        (stream, id): (StreamId, &str),
    ) -> Step<Result<Answer, Option<DedupeRecord>>> {
        let Some(dedupe) = self.dedupe(stream, id).await? else { return Ok(Err(None)) };
        if earlier.get(&dedupe.seq) == Some(&item.at) {
            return Ok(Ok(Ok(Published::Accepted(dedupe.seq))));
        }
        if dedupe.until < item.new.at && self.remains(dedupe.seq, id).await? != Some(false) {
            return Ok(Err(Some(dedupe)));
        }
        if dedupe.fingerprint != item.new.fingerprint {
            let (queue, id) = (item.new.event.queue.clone(), item.new.event.id.clone());
            return Ok(Ok(Err(PublishError::IdReused { queue, id })));
        }
        let view = self.view().await?;
        let found = self.found(dedupe, &view).await?;
        Ok(Ok(Ok(Published::Duplicate(Box::new(found)))))
    }

    /// Whether only the dedupe record is left of an event. A discarded event is deleted now: its time to be restored
    /// is over. Only under the locks of the shards.
    pub(in crate::stores::postgres) async fn is_over(&mut self, dedupe: &DedupeRecord) -> sqlx::Result<bool> {
        match self.remains(dedupe.seq, &dedupe.id).await? {
            None => Ok(true),
            Some(true) => self.delete_tracked(dedupe.seq).await.map(|_| true),
            Some(false) => Ok(false),
        }
    }

    /// Whether there is an event with this seq and id, and whether it was discarded.
    pub(in crate::stores::postgres) async fn remains(
        &mut self,
        seq: Seq,
        id: &str,
    ) -> sqlx::Result<Option<bool>> {
        let found = maybe!(
            self,
            concat!(
                "SELECT false FROM redrive.fresh WHERE seq = $1 AND id = $2 \
             UNION ALL SELECT state = ",
                states!(Discarded),
                " FROM redrive.tracked WHERE seq = $1 AND id = $2"
            ),
            column(seq.0),
            id
        )?;
        found.map(|row| row.try_get(0)).transpose()
    }

    pub(in crate::stores::postgres) async fn queue_names(&mut self) -> sqlx::Result<Vec<String>> {
        let names = rows!(self, "SELECT name FROM redrive.queue ORDER BY name")?;
        Ok(names.iter().filter_map(|row| row.text(0).ok()).collect())
    }
}

/// Dedupe records as arrays.
#[derive(Default)]
pub(in crate::stores::postgres) struct Receipts<'a> {
    pub(in crate::stores::postgres) ids: Vec<&'a str>,
    pub(in crate::stores::postgres) streams: Vec<i64>,
    pub(in crate::stores::postgres) prints: Vec<&'a [u8]>,
    pub(in crate::stores::postgres) seqs: Vec<i64>,
    pub(in crate::stores::postgres) published: Vec<i64>,
    pub(in crate::stores::postgres) untils: Vec<i64>,
    pub(in crate::stores::postgres) sums: Vec<i64>,
}

impl<'a> Receipts<'a> {
    pub(in crate::stores::postgres) fn of(items: impl Iterator<Item = &'a Item<'a>>) -> Self {
        let mut all = Self::default();
        for item in items {
            let (id, stream) = item.identity();
            let print = &item.new.fingerprint.0;
            let (seq, published) = (column(item.seq.0), from_moment(item.new.at));
            let until = from_moment(times(&item.spec, item.new).1);
            all.sums.push(fresh_sum((stream, id), print, (seq, published, until)));
            all.ids.push(id);
            all.streams.push(i64::from(stream.0));
            all.prints.push(print);
            all.seqs.push(seq);
            all.published.push(published);
            all.untils.push(until);
        }
        all
    }
}

/// Events that may run, as arrays.
#[derive(Default)]
pub(in crate::stores::postgres) struct Lives<'a> {
    pub(in crate::stores::postgres) seqs: Vec<i64>,
    pub(in crate::stores::postgres) ids: Vec<&'a str>,
    pub(in crate::stores::postgres) keys: Vec<Option<&'a str>>,
    pub(in crate::stores::postgres) tags: Vec<Option<&'a str>>,
    pub(in crate::stores::postgres) payloads: Vec<&'a [u8]>,
    pub(in crate::stores::postgres) extras: Vec<Option<Vec<u8>>>,
    pub(in crate::stores::postgres) published: Vec<i64>,
    pub(in crate::stores::postgres) calms: Vec<i64>,
    pub(in crate::stores::postgres) sums: Vec<i64>,
    pub(in crate::stores::postgres) streams: Vec<i64>,
    pub(in crate::stores::postgres) shards: Vec<i64>,
}

impl<'a> Lives<'a> {
    pub(in crate::stores::postgres) fn push(&mut self, row: &'a EventRow, item: &Item<'_>) {
        let Parts { key, tag, extra, published, dedupe_ok_until, crc } = row.parts();
        self.seqs.push(column(row.seq.0));
        self.ids.push(&row.event.id);
        self.keys.push(key);
        self.tags.push(tag);
        self.payloads.push(&row.event.payload);
        self.extras.push(extra);
        self.published.push(published);
        self.calms.push(dedupe_ok_until);
        self.sums.push(crc);
        self.streams.push(i64::from(item.stream.id.0));
        self.shards.push(i64::from(item.shard));
    }
}
