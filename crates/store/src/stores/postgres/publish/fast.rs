//! A publish as one statement, which is its own transaction; settles are in `settle/fast.rs`.
//!
//! Most events are simply new, and need no lookup. A function in the database does all of it (`schema/1-fast.sql`): one
//! round trip, and a process that stands still cannot leave a transaction open. All other events are handed back, for a
//! transaction.
//!
//! Seqs are drawn first, because a row's checksum covers its seq; if no order is to be kept, the previous publish has
//! reserved them ([`crate::stores::postgres::database::seq_reserve`]).
//!
//! Behind a pooler a statement is prepared in one session and run in another, so there everything is handed back.
//!
//! If the reply is lost, the outcome is unknown, even if the connection was broken before: the statement was the first
//! one on it. It is repeated like any other commit of unknown outcome.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use redrive_core::queue_entry::Seq;
use sqlx::{PgConnection, Row};

use super::slow::{Answer, Given, Item, Lives, Receipts};
use crate::error::StoreError;
use crate::store::{DeclaredBy, NewEvent, Published, QueueSpec};
use crate::stores::postgres::database::{CommitNews, Database, Retries, TxError};
use crate::stores::postgres::events::fresh::EventRow;
use crate::stores::postgres::faults::{Fault, Kind, kind};
use crate::stores::postgres::keys::heads::Keys;
use crate::stores::postgres::tx::{READ_SPECS, spec_of};
use crate::stores::postgres::writer::LOCKED;
use crate::stores::shared::numbers::{bits, column, nanos, seq};

/// How long a group waits for another transaction's lock before it is split.
pub(in crate::stores::postgres) const SHORTLY: Duration = Duration::from_millis(100);

/// How many queues are cached.
const SPECS_MAX: usize = 10_000;

/// The error codes of the functions: a fencing token is not current; a queue was declared anew.
pub(in crate::stores::postgres) const LOST: &str = "RD001";
const ANEW: &str = "RD002";

impl Database {
    /// How long a statement waits for locks.
    pub(in crate::stores::postgres) fn lock_wait(&self, is_shared: bool) -> i64 {
        let wait = if is_shared { SHORTLY.min(self.lock_wait) } else { self.lock_wait };
        i64::try_from(wait.as_millis()).unwrap_or(i64::MAX)
    }

    /// Publishes new events in one commit, and leaves the others unanswered. `given` has the seqs that it may have
    /// used if it was not answered.
    pub(in crate::stores::postgres) async fn publish_fast(
        self: &Arc<Self>,
        events: &[&NewEvent],
        is_shared: bool,
        given: &mut Given,
    ) -> Result<Vec<Option<Answer>>, TxError> {
        if self.pooled {
            return Ok(events.iter().map(|_| None).collect());
        }
        let mut tries = Retries::new(self.patience);
        loop {
            match self.publish_once(events, self.lock_wait(is_shared), given).await {
                Err(TxError::No(Fault::Sql(error))) if tries.may_go_on(&error) => tries.wait().await,
                done => return done,
            }
        }
    }

    async fn publish_once(
        self: &Arc<Self>,
        events: &[&NewEvent],
        wait: i64,
        given: &mut Given,
    ) -> Result<Vec<Option<Answer>>, TxError> {
        let mut answers: Vec<Option<Answer>> = events.iter().map(|_| None).collect();
        let mut items = self.simple(events).await?;
        if items.is_empty() {
            return Ok(answers);
        }
        let mut autocommit = self.autocommit.take(&self.pool).await.map_err(Fault::Sql)?;
        let asked = Instant::now();
        // Within a key, an event that comes later has a larger seq.
        let ahead = if items.iter().any(|item| item.key().is_some()) {
            None
        } else {
            self.cache.seq_reserve.take(items.len())
        };
        let places = match ahead {
            Some(places) => places,
            None => {
                autocommit.say(async |conn| self.draw(conn, items.len()).await).await.map_err(Fault::Sql)?
            }
        };
        for (item, place) in items.iter_mut().zip(places) {
            item.seq = seq(item.stream.id, bits(place));
        }
        if let Some(at) = items.iter().map(|item| item.new.at).max() {
            self.clock.advance(at);
        }
        items.sort_by(|a, b| a.identity().cmp(&b.identity()).then(a.at.cmp(&b.at)));
        let open = self.notifier.pending.begin();
        match autocommit.say(async |conn| self.keep(conn, &items, wait).await).await {
            Ok(Done { taken, number, drawn }) => {
                self.cache.seq_reserve.add(drawn, asked);
                let is_near = items.iter().all(Item::is_near);
                let mut news = CommitNews { number, is_near, ..CommitNews::default() };
                let mut keys = Keys::new();
                items.sort_by_key(|item| item.at);
                for item in items.iter().filter(|item| !taken.contains(&item.seq)) {
                    match item.key().filter(|_| !item.spec.pull) {
                        Some(key) => drop(keys.insert((item.stream.id, key.to_owned()), item.stream.clone())),
                        None => item.tell(&mut news),
                    }
                    answers[item.at] = Some(Ok(Published::Accepted(item.seq)));
                }
                let ours: HashSet<Seq> = if keys.is_empty() {
                    HashSet::new()
                } else {
                    items.iter().map(|item| item.seq).collect()
                };
                let ours = |seq: Seq| ours.contains(&seq) && !taken.contains(&seq);
                let _ = autocommit.say(async |conn| self.tell_heads(conn, keys, &mut news, ours).await).await;
                self.tell_of(open, news);
                Ok(answers)
            }
            Err(error) if says(&error, ANEW) => {
                self.cache.specs.lock().unwrap_or_else(PoisonError::into_inner).clear();
                Ok(answers)
            }
            Err(error) if kind(&error) == Kind::Cut => {
                let mut news = CommitNews::default();
                items.iter().for_each(|item| item.tell(&mut news));
                self.tell_of(open, news.in_doubt());
                given.extend(items.iter().map(|item| (item.seq, item.at)));
                Err(TxError::Unknown(error))
            }
            Err(error) => Err(Fault::Sql(error).into()),
        }
    }

    /// Declares a queue, and caches it: a process that only runs the queue never reads it for a publish.
    pub(in crate::stores::postgres) async fn declare(
        self: &Arc<Self>,
        queue: QueueSpec,
        by: DeclaredBy,
    ) -> Result<(), StoreError> {
        let queue = Arc::new(queue);
        let declared = Arc::clone(&queue);
        self.write(move |tx| {
            let queue = Arc::clone(&declared);
            Box::pin(async move { Ok(tx.declare(&queue, by).await?) })
        })
        .await?;
        self.remember(&queue);
        Ok(())
    }

    /// Caches a queue as it was read.
    pub(in crate::stores::postgres) fn remember(&self, spec: &Arc<QueueSpec>) {
        let mut known = self.cache.specs.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= SPECS_MAX {
            known.clear();
        }
        known.insert(spec.name.clone(), Arc::clone(spec));
    }

    /// These queues, if they exist: from the cache, or read now.
    async fn specs_of<'a>(
        &self,
        names: BTreeSet<&'a str>,
    ) -> Result<BTreeMap<&'a str, Arc<QueueSpec>>, Fault> {
        let mut specs = BTreeMap::new();
        let mut new: Vec<&'a str> = Vec::new();
        {
            let known = self.cache.specs.lock().unwrap_or_else(PoisonError::into_inner);
            for name in names {
                match known.get(name) {
                    Some(spec) => drop(specs.insert(name, Arc::clone(spec))),
                    None => new.push(name),
                }
            }
        }
        if !new.is_empty() {
            let found = sqlx::query(self.schema.sql(READ_SPECS)).bind(&new).fetch_all(&self.pool).await?;
            for row in found {
                let spec = Arc::new(spec_of(&row)?);
                self.remember(&spec);
                specs.extend(
                    new.iter().find(|name| **name == spec.name).map(|name| (*name, Arc::clone(&spec))),
                );
            }
        }
        Ok(specs)
    }

    /// The valid events that need not wait for their time, in queues that are known here.
    async fn simple<'a>(&self, events: &[&'a NewEvent]) -> Result<Vec<Item<'a>>, Fault> {
        let mut items = Vec::with_capacity(events.len());
        let specs = self.specs_of(events.iter().map(|new| new.event.queue.as_str()).collect()).await?;
        // Another transaction is creating the stream: one caller waits for it, and the others do not.
        let mut is_held_up = false;
        for (at, new) in events.iter().enumerate() {
            let event = &new.event;
            let Some(spec) = specs.get(event.queue.as_str()) else { continue };
            if event.check().is_err() {
                continue;
            }
            let stream = match self.cache.names.named(&event.queue, &event.tenant) {
                Some(known) => known,
                None if is_held_up => continue,
                None => match self.open_stream(&event.queue, &event.tenant).await {
                    Err(error) if says(&error, LOCKED) => {
                        is_held_up = true;
                        continue;
                    }
                    stream => stream?,
                },
            };
            let shard = new.shard(self.shards);
            let item = Item { at, new, stream, spec: Arc::clone(spec), seq: Seq(0), shard };
            if !item.is_delayed() {
                items.push(item);
            }
        }
        Ok(items)
    }

    /// Seqs, drawn now.
    async fn draw(&self, conn: &mut PgConnection, count: usize) -> sqlx::Result<Vec<i64>> {
        let draw = self.schema.sql("SELECT nextval('redrive.place') FROM generate_series(1, $1)");
        sqlx::query_scalar(draw).bind(column(count as u64)).fetch_all(conn).await
    }

    /// Stores the new ones, which are in the order of their identities.
    async fn keep(&self, conn: &mut PgConnection, items: &[Item<'_>], wait: i64) -> sqlx::Result<Done> {
        let specs: BTreeMap<&str, &QueueSpec> =
            items.iter().map(|item| (item.spec.name.as_str(), &*item.spec)).collect();
        let specs = Specs::of(specs.into_values());
        let dedupe_records = Receipts::of(items.iter());
        let rows: Vec<EventRow> = items.iter().map(Item::row).collect();
        let mut fresh = Lives::default();
        for (row, item) in rows.iter().zip(items) {
            fresh.push(row, item);
        }
        let all_new = self.cache.new_event_guess.is_likely();
        let draw = self.cache.seq_reserve.wanted(items.len());
        let keep = "SELECT accepted, number, drawn FROM redrive.publish_fast($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, \
                    $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22)";
        let row = sqlx::query(self.schema.sql(keep))
            .bind(wait)
            .bind(all_new)
            .bind(column(draw as u64))
            .bind(specs.names)
            .bind(specs.ordered)
            .bind(specs.dedupe_window)
            .bind(specs.horizons)
            .bind(specs.pulls)
            .bind(&dedupe_records.ids)
            .bind(&dedupe_records.streams)
            .bind(&dedupe_records.prints)
            .bind(&dedupe_records.seqs)
            .bind(&dedupe_records.published)
            .bind(&dedupe_records.untils)
            .bind(&dedupe_records.sums)
            .bind(&fresh.keys)
            .bind(&fresh.tags)
            .bind(&fresh.payloads)
            .bind(&fresh.extras)
            .bind(&fresh.calms)
            .bind(&fresh.sums)
            .bind(&fresh.shards)
            .fetch_one(conn)
            .await?;
        let mut taken = HashSet::new();
        if let Some(fresh) = row.try_get::<Option<Vec<i64>>, _>(0)? {
            let fresh: HashSet<i64> = fresh.into_iter().collect();
            taken.extend(items.iter().map(|item| item.seq).filter(|seq| !fresh.contains(&column(seq.0))));
        }
        self.cache.new_event_guess.learn(taken.is_empty());
        let number = row.try_get::<String, _>(1)?.parse().ok();
        let drawn = row.try_get::<Option<Vec<i64>>, _>(2)?.unwrap_or_default();
        Ok(Done { taken, number, drawn })
    }
}

/// The result of a publish.
struct Done {
    /// Events whose identities were there before.
    taken: HashSet<Seq>,
    /// The number of the transaction.
    number: Option<u64>,
    /// Seqs for later groups.
    drawn: Vec<i64>,
}

/// Whether all events of a group are likely to be new. Inserting on that assumption is cheaper than a lookup for each,
/// and more expensive if it is wrong.
#[derive(Debug, Default)]
pub(in crate::stores::postgres) struct NewEventGuess {
    /// How many groups have to be new before this is assumed again.
    doubts: AtomicU32,
}

/// How many groups are looked up first after a group with a duplicate.
const DOUBTS: u32 = 32;

impl NewEventGuess {
    fn is_likely(&self) -> bool {
        self.doubts.load(Relaxed) == 0
    }

    fn learn(&self, all_new: bool) {
        if !all_new {
            self.doubts.store(DOUBTS, Relaxed);
        } else if !self.is_likely() {
            // Two concurrent updates may count as one.
            let _ = self.doubts.fetch_update(Relaxed, Relaxed, |doubts| doubts.checked_sub(1));
        }
    }
}

/// Queues as arrays, as this process assumes them to be.
#[derive(Default)]
struct Specs {
    names: Vec<String>,
    ordered: Vec<i64>,
    dedupe_window: Vec<i64>,
    horizons: Vec<i64>,
    pulls: Vec<i64>,
}

impl Specs {
    fn of<'a>(specs: impl Iterator<Item = &'a QueueSpec>) -> Self {
        let mut all = Self::default();
        for spec in specs {
            all.names.push(spec.name.clone());
            all.ordered.push(i64::from(spec.ordered));
            all.dedupe_window.push(column(nanos(spec.window)));
            all.horizons.push(column(nanos(spec.horizon)));
            all.pulls.push(i64::from(spec.pull));
        }
        all
    }
}

/// Whether the database returned this error code.
pub(in crate::stores::postgres) fn says(error: &sqlx::Error, code: &str) -> bool {
    error.as_database_error().is_some_and(|said| said.code().as_deref() == Some(code))
}
