//! Publishing: receipt and event together, many with one statement.
//!
//! Receipts are inserted first and without a look, in the order of their identities, so that two groups never wait for
//! each other in a circle. The unique index says who is new; whoever is about to commit the same identity is waited
//! for. Only for those that are not new, somebody looks why.
//!
//! A publisher knows nothing of the order of keys: it puts events where they may run, and whoever loads hands out the
//! heads alone. So a publisher locks nothing that an owner needs.
//!
//! Seqs are drawn in the order of coming, before it is known who is new. One that was there before leaves its place
//! unused.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use redrive_core::entry::{Seq, StreamId};
use redrive_core::event::EventError;
use sqlx::Row;

use super::desk::{DeskAt, maybe, rows};
use super::faults::{Fault, Step};
use super::held::{Held, Stand};
use super::office::News;
use super::receipt::Receipt;
use super::rows::{EventRow, Parts, Stream};
use crate::error::{PublishError, StoreError};
use crate::store::{New, Published, QueueSpec};
use crate::stores::shared::cells::Cells;
use crate::stores::shared::numbers::{bits, column, from_moment, seq};
use crate::stores::shared::receipt::{fresh_sum, times};

pub(super) type Answer = Result<Published, PublishError>;

/// Which event was given which seq by a commit that may have happened: such a one is no duplicate of itself.
pub(super) type Given = HashMap<Seq, usize>;

/// An event that can be kept, and where.
pub(super) struct Item<'a> {
    pub(super) at: usize,
    pub(super) new: &'a New,
    pub(super) stream: Arc<Stream>,
    pub(super) spec: Arc<QueueSpec>,
    pub(super) seq: Seq,
    pub(super) shard: u32,
}

impl Item<'_> {
    pub(super) fn identity(&self) -> (&str, StreamId) {
        (&self.new.event.id, self.stream.id)
    }

    pub(super) fn row(&self) -> EventRow {
        let event = Arc::clone(&self.new.event);
        let ordered = self.spec.ordered && event.key.is_some();
        EventRow {
            seq: self.seq,
            event,
            ordered,
            published: self.new.at,
            calm: times(&self.spec, self.new).0,
            shard: self.shard,
        }
    }

    /// The key within which order is kept.
    pub(super) fn key(&self) -> Option<&str> {
        self.new.event.key.as_deref().filter(|_| self.spec.ordered)
    }

    /// Whether it is in a shard that its publisher runs, by what that one knows.
    pub(super) fn is_near(&self) -> bool {
        self.new.near == Some(self.shard) && self.new.event.key.is_none()
    }

    /// Whether it has to wait for its time.
    pub(super) fn is_delayed(&self) -> bool {
        self.new.event.when.moment(self.new.at) > self.new.at
    }

    /// What keeps no order may run, and is told; of a key nobody knows here whether it is the head.
    pub(super) fn tell(&self, news: &mut News) {
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

impl DeskAt<'_> {
    /// Keeps events that can be kept, and answers each. `given` is what an earlier try may have done, and what this one
    /// is about to do.
    pub(super) async fn publish_all(&mut self, events: &[&New], given: &mut Given) -> Step<Vec<Answer>> {
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
                        shard: events[at].shard(self.office.shards),
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
            self.see(item.new.at);
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
        let missing = || Err(PublishError::Store(super::faults::broken("an event was not answered")));
        Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(missing)).collect())
    }

    /// Gives each its place, in the order of coming.
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

    /// Writes receipts, and the events of those that are new. Who is new.
    async fn insert_new(&mut self, items: &[Item<'_>]) -> Step<BTreeSet<Seq>> {
        if items.is_empty() {
            return Ok(BTreeSet::new());
        }
        let mut sorted: Vec<&Item<'_>> = items.iter().collect();
        sorted.sort_by(|a, b| a.identity().cmp(&b.identity()).then(a.at.cmp(&b.at)));
        let receipts = Receipts::of(sorted.into_iter());
        let rows: Vec<(EventRow, &Item<'_>)> =
            items.iter().filter(|item| !item.is_delayed()).map(|item| (item.row(), item)).collect();
        let mut live = Lives::default();
        for (row, item) in &rows {
            live.push(row, item);
        }
        let new = rows!(
            self,
            "WITH new AS (INSERT INTO redrive.receipt (id, stream, fingerprint, seq, published, until, crc) \
             SELECT * FROM unnest($1::text[], $2::bigint[], $3::bytea[], $4::bigint[], $5::bigint[], $6::bigint[], \
             $7::bigint[]) ON CONFLICT DO NOTHING RETURNING seq), \
             run AS (INSERT INTO redrive.live (seq, id, key, tag, payload, extra, published, calm, crc, stream, shard) \
             SELECT event.* FROM unnest($8::bigint[], $9::text[], $10::text[], $11::text[], $12::bytea[], $13::bytea[], \
             $14::bigint[], $15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[]) \
             AS event (seq, id, key, tag, payload, extra, published, calm, crc, stream, shard) \
             WHERE event.seq IN (SELECT seq FROM new) ORDER BY event.seq) \
             SELECT seq, pg_current_xact_id()::text FROM new",
            receipts.ids,
            receipts.streams,
            receipts.prints,
            receipts.seqs,
            receipts.published,
            receipts.untils,
            receipts.sums,
            live.seqs,
            live.ids,
            live.keys,
            live.tags,
            live.payloads,
            live.extras,
            live.published,
            live.calms,
            live.sums,
            live.streams,
            live.shards
        )?;
        if let Some(row) = new.first() {
            self.number = row.try_get::<String, _>(1)?.parse().ok();
        }
        let new: BTreeSet<Seq> =
            new.iter().map(|row| row.try_get(0).map(|seq| Seq(bits(seq)))).collect::<sqlx::Result<_>>()?;
        for item in items.iter().filter(|item| item.is_delayed() && new.contains(&item.seq)) {
            self.insert_held(&Held::fresh(item.row(), Stand::Waits)).await?;
        }
        for item in items.iter().filter(|item| new.contains(&item.seq)) {
            self.tell_new(item);
        }
        Ok(new)
    }

    fn tell_new(&mut self, item: &Item<'_>) {
        let mut news = News::default();
        item.tell(&mut news);
        self.arrived.extend(news.arrived);
        self.missed.extend(news.missed);
    }

    /// Keeps an event whose identity was taken, or says what became of it before.
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
            // Somebody else may have been quicker: then it is a duplicate of theirs.
            if self.insert_receipt((stream, id), print, item.seq, (item.new.at, until)).await? {
                let held = Held::fresh(item.row(), Stand::Waits);
                self.insert_held(&held).await?;
                self.tell_new(item);
                return Ok(Ok(Published::Accepted(item.seq)));
            }
        }
    }

    /// What became of this identity before. None where that need not be remembered any more, and is forgotten.
    async fn before(&mut self, item: &Item<'_>, earlier: &Given) -> Step<Option<Answer>> {
        let (id, stream) = item.identity();
        // A duplicate is told what there is, and nothing is locked for it.
        let writes = std::mem::replace(&mut self.writes, false);
        let known = self.known(item, earlier, (stream, id)).await;
        self.writes = writes;
        match known? {
            Ok(answer) => Ok(Some(answer)),
            Err(None) => Ok(None),
            Err(Some(over)) if self.is_lent() => {
                // The locks that this takes are not to be held until somebody else ends their transaction.
                self.over = Some(over);
                let what = "what was published under this id before is being forgotten".to_owned();
                Err(StoreError::Passing { what, source: None }.into())
            }
            Err(Some(over)) => {
                // What was discarded goes with it, so this changes an event.
                self.lock_shards().await?;
                if self.is_over(&over).await? {
                    self.delete_receipt_at(stream, id, over.seq).await?;
                }
                Ok(None)
            }
        }
    }

    /// What is known of an identity; or nothing, or a receipt that may be forgotten.
    async fn known(
        &mut self,
        item: &Item<'_>,
        earlier: &Given,
        (stream, id): (StreamId, &str),
    ) -> Step<Result<Answer, Option<Receipt>>> {
        let Some(receipt) = self.receipt(stream, id).await? else { return Ok(Err(None)) };
        if earlier.get(&receipt.seq) == Some(&item.at) {
            return Ok(Ok(Ok(Published::Accepted(receipt.seq))));
        }
        if receipt.until < item.new.at && self.remains(receipt.seq, id).await? != Some(false) {
            return Ok(Err(Some(receipt)));
        }
        if receipt.fingerprint != item.new.fingerprint {
            let (queue, id) = (item.new.event.queue.clone(), item.new.event.id.clone());
            return Ok(Ok(Err(PublishError::IdReused { queue, id })));
        }
        let view = self.view().await?;
        let found = self.found(receipt, &view).await?;
        Ok(Ok(Ok(Published::Duplicate(Box::new(found)))))
    }

    /// Whether nothing is left of an event but its receipt. What was discarded goes now: nobody may restore it
    /// any more. Only under the shards' locks.
    pub(super) async fn is_over(&mut self, receipt: &Receipt) -> sqlx::Result<bool> {
        match self.remains(receipt.seq, &receipt.id).await? {
            None => Ok(true),
            Some(true) => self.delete_held(receipt.seq).await.map(|_| true),
            Some(false) => Ok(false),
        }
    }

    /// Whether there is an event with this seq and id, and whether it was discarded.
    pub(super) async fn remains(&mut self, seq: Seq, id: &str) -> sqlx::Result<Option<bool>> {
        let found = maybe!(
            self,
            "SELECT false FROM redrive.live WHERE seq = $1 AND id = $2 \
             UNION ALL SELECT state = 5 FROM redrive.held WHERE seq = $1 AND id = $2",
            column(seq.0),
            id
        )?;
        found.map(|row| row.try_get(0)).transpose()
    }

    async fn queue_names(&mut self) -> sqlx::Result<Vec<String>> {
        let names = rows!(self, "SELECT name FROM redrive.queue ORDER BY name")?;
        Ok(names.iter().filter_map(|row| row.text(0).ok()).collect())
    }
}

/// Receipts as arrays.
#[derive(Default)]
pub(super) struct Receipts<'a> {
    pub(super) ids: Vec<&'a str>,
    pub(super) streams: Vec<i64>,
    pub(super) prints: Vec<&'a [u8]>,
    pub(super) seqs: Vec<i64>,
    pub(super) published: Vec<i64>,
    pub(super) untils: Vec<i64>,
    pub(super) sums: Vec<i64>,
}

impl<'a> Receipts<'a> {
    pub(super) fn of(items: impl Iterator<Item = &'a Item<'a>>) -> Self {
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
pub(super) struct Lives<'a> {
    pub(super) seqs: Vec<i64>,
    pub(super) ids: Vec<&'a str>,
    pub(super) keys: Vec<Option<&'a str>>,
    pub(super) tags: Vec<Option<&'a str>>,
    pub(super) payloads: Vec<&'a [u8]>,
    pub(super) extras: Vec<Option<Vec<u8>>>,
    pub(super) published: Vec<i64>,
    pub(super) calms: Vec<i64>,
    pub(super) sums: Vec<i64>,
    pub(super) streams: Vec<i64>,
    pub(super) shards: Vec<i64>,
}

impl<'a> Lives<'a> {
    pub(super) fn push(&mut self, row: &'a EventRow, item: &Item<'_>) {
        let Parts { key, tag, extra, published, calm, crc } = row.parts();
        self.seqs.push(column(row.seq.0));
        self.ids.push(&row.event.id);
        self.keys.push(key);
        self.tags.push(tag);
        self.payloads.push(&row.event.payload);
        self.extras.push(extra);
        self.published.push(published);
        self.calms.push(calm);
        self.sums.push(crc);
        self.streams.push(i64::from(item.stream.id.0));
        self.shards.push(i64::from(item.shard));
    }
}
