//! A publish as one statement, which is its own transaction; settles are in `settle_at_once.rs`.
//!
//! Most events are simply new. Those need nobody to look at anything, so a function in the database does all of it
//! (`schema/1-at-once.sql`): one round trip, and a process that stands still cannot leave it open. What is not so simple
//! is handed back, for a desk.
//!
//! Places are drawn first, because a row's checksum has its place in it; where no order is to be kept, they were drawn
//! along with the publish before ([`super::places`]).
//!
//! Behind a pooler a statement is prepared in one session and run in another, so there everything is handed back.
//!
//! Whoever is not answered does not know whether it happened, also where the connection was broken before: nothing was
//! said on it that would have told. It is repeated like any other commit of unknown fate.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use redrive_core::entry::Seq;
use sqlx::{PgConnection, Row};

use super::desk::{READ_SPECS, spec_of};
use super::faults::{Fault, Kind, kind};
use super::heads::Keys;
use super::office::{News, Office, Tries, Trouble};
use super::publish::{Answer, Given, Item, Lives, Receipts};
use super::rows::EventRow;
use super::writer::LOCKED;
use crate::error::StoreError;
use crate::store::{By, New, Published, QueueSpec};
use crate::stores::shared::numbers::{bits, column, nanos, seq};

/// How long a group waits for somebody else's lock before it is split.
pub(super) const SHORTLY: Duration = Duration::from_millis(100);

/// How many queues are remembered as they were read last.
const SPECS_MAX: usize = 10_000;

/// What the functions say where a grant is not current, and where a queue was declared anew.
pub(super) const LOST: &str = "RD001";
const ANEW: &str = "RD002";

impl Office {
    /// How long a statement waits for locks.
    pub(super) fn lock_wait(&self, is_shared: bool) -> i64 {
        let wait = if is_shared { SHORTLY.min(self.lock_wait) } else { self.lock_wait };
        i64::try_from(wait.as_millis()).unwrap_or(i64::MAX)
    }

    /// Publishes what is simply new, in one commit. Nothing is said of the others. `given` is what it may have done
    /// where it was not answered.
    pub(super) async fn publish_at_once(
        self: &Arc<Self>,
        events: &[&New],
        is_shared: bool,
        given: &mut Given,
    ) -> Result<Vec<Option<Answer>>, Trouble> {
        if self.pooled {
            return Ok(events.iter().map(|_| None).collect());
        }
        let mut tries = Tries::new(self.patience);
        loop {
            match self.publish_once(events, self.lock_wait(is_shared), given).await {
                Err(Trouble::No(Fault::Sql(error))) if tries.may_go_on(&error) => tries.wait().await,
                done => return done,
            }
        }
    }

    async fn publish_once(
        self: &Arc<Self>,
        events: &[&New],
        wait: i64,
        given: &mut Given,
    ) -> Result<Vec<Option<Answer>>, Trouble> {
        let mut answers: Vec<Option<Answer>> = events.iter().map(|_| None).collect();
        let mut items = self.simple(events).await?;
        if items.is_empty() {
            return Ok(answers);
        }
        let mut aside = self.at_hand.take(&self.pool).await.map_err(Fault::Sql)?;
        let asked = Instant::now();
        // Within a key, whoever comes later has a later place.
        let ahead =
            if items.iter().any(|item| item.key().is_some()) { None } else { self.places.take(items.len()) };
        let places = match ahead {
            Some(places) => places,
            None => aside.say(async |conn| self.draw(conn, items.len()).await).await.map_err(Fault::Sql)?,
        };
        for (item, place) in items.iter_mut().zip(places) {
            item.seq = seq(item.stream.id, bits(place));
        }
        if let Some(at) = items.iter().map(|item| item.new.at).max() {
            self.seen.see(at);
        }
        items.sort_by(|a, b| a.identity().cmp(&b.identity()).then(a.at.cmp(&b.at)));
        let open = self.tellings.begin();
        match aside.say(async |conn| self.keep(conn, &items, wait).await).await {
            Ok(Done { taken, number, drawn }) => {
                self.places.add(drawn, asked);
                let is_near = items.iter().all(Item::is_near);
                let mut news = News { number, is_near, ..News::default() };
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
                let _ = aside.say(async |conn| self.tell_heads(conn, keys, &mut news, ours).await).await;
                self.tell_of(open, news);
                Ok(answers)
            }
            Err(error) if says(&error, ANEW) => {
                self.specs.lock().unwrap_or_else(PoisonError::into_inner).clear();
                Ok(answers)
            }
            Err(error) if kind(&error) == Kind::Cut => {
                let mut news = News::default();
                items.iter().for_each(|item| item.tell(&mut news));
                self.tell_of(open, news.in_doubt());
                given.extend(items.iter().map(|item| (item.seq, item.at)));
                Err(Trouble::Unknown(error))
            }
            Err(error) => Err(Fault::Sql(error).into()),
        }
    }

    /// Declares a queue, and remembers it: whoever only runs it publishes nothing that it would be read for.
    pub(super) async fn declare(self: &Arc<Self>, queue: QueueSpec, by: By) -> Result<(), StoreError> {
        let queue = Arc::new(queue);
        let declared = Arc::clone(&queue);
        self.write(move |desk| {
            let queue = Arc::clone(&declared);
            Box::pin(async move { Ok(desk.declare(&queue, by).await?) })
        })
        .await?;
        self.remember(&queue);
        Ok(())
    }

    /// Remembers a queue as it was read.
    pub(super) fn remember(&self, spec: &Arc<QueueSpec>) {
        let mut known = self.specs.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= SPECS_MAX {
            known.clear();
        }
        known.insert(spec.name.clone(), Arc::clone(spec));
    }

    /// These queues, as far as they exist: as they were read last, or read now.
    async fn specs_of<'a>(
        &self,
        names: BTreeSet<&'a str>,
    ) -> Result<BTreeMap<&'a str, Arc<QueueSpec>>, Fault> {
        let mut specs = BTreeMap::new();
        let mut new: Vec<&'a str> = Vec::new();
        {
            let known = self.specs.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Those that can be kept, and need not wait for their time, in queues that are known here.
    async fn simple<'a>(&self, events: &[&'a New]) -> Result<Vec<Item<'a>>, Fault> {
        let mut items = Vec::with_capacity(events.len());
        let specs = self.specs_of(events.iter().map(|new| new.event.queue.as_str()).collect()).await?;
        // Somebody is about to make a stream: it is waited for once, and by all others not at all.
        let mut is_held_up = false;
        for (at, new) in events.iter().enumerate() {
            let event = &new.event;
            let Some(spec) = specs.get(event.queue.as_str()) else { continue };
            if event.check().is_err() {
                continue;
            }
            let stream = match self.names.named(&event.queue, &event.tenant) {
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

    /// Places, drawn now.
    async fn draw(&self, conn: &mut PgConnection, count: usize) -> sqlx::Result<Vec<i64>> {
        let draw = self.schema.sql("SELECT nextval('redrive.place') FROM generate_series(1, $1)");
        sqlx::query_scalar(draw).bind(column(count as u64)).fetch_all(conn).await
    }

    /// Keeps those that are new, which are in the order of their identities.
    async fn keep(&self, conn: &mut PgConnection, items: &[Item<'_>], wait: i64) -> sqlx::Result<Done> {
        let specs: BTreeMap<&str, &QueueSpec> =
            items.iter().map(|item| (item.spec.name.as_str(), &*item.spec)).collect();
        let specs = Specs::of(specs.into_values());
        let receipts = Receipts::of(items.iter());
        let rows: Vec<EventRow> = items.iter().map(Item::row).collect();
        let mut live = Lives::default();
        for (row, item) in rows.iter().zip(items) {
            live.push(row, item);
        }
        let all_new = self.newness.is_likely();
        let draw = self.places.wanted(items.len());
        let keep = "SELECT fresh, number, drawn FROM redrive.publish_at_once($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, \
                    $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22)";
        let row = sqlx::query(self.schema.sql(keep))
            .bind(wait)
            .bind(all_new)
            .bind(column(draw as u64))
            .bind(specs.names)
            .bind(specs.ordered)
            .bind(specs.remembered)
            .bind(specs.horizons)
            .bind(specs.pulls)
            .bind(&receipts.ids)
            .bind(&receipts.streams)
            .bind(&receipts.prints)
            .bind(&receipts.seqs)
            .bind(&receipts.published)
            .bind(&receipts.untils)
            .bind(&receipts.sums)
            .bind(&live.keys)
            .bind(&live.tags)
            .bind(&live.payloads)
            .bind(&live.extras)
            .bind(&live.calms)
            .bind(&live.sums)
            .bind(&live.shards)
            .fetch_one(conn)
            .await?;
        let mut taken = HashSet::new();
        if let Some(fresh) = row.try_get::<Option<Vec<i64>>, _>(0)? {
            let fresh: HashSet<i64> = fresh.into_iter().collect();
            taken.extend(items.iter().map(|item| item.seq).filter(|seq| !fresh.contains(&column(seq.0))));
        }
        self.newness.seen(taken.is_empty());
        let number = row.try_get::<String, _>(1)?.parse().ok();
        let drawn = row.try_get::<Option<Vec<i64>>, _>(2)?.unwrap_or_default();
        Ok(Done { taken, number, drawn })
    }
}

/// What a publish did.
struct Done {
    /// Those whose identities were there before.
    taken: HashSet<Seq>,
    /// The number of the transaction.
    number: Option<u64>,
    /// Places for others.
    drawn: Vec<i64>,
}

/// Whether events are likely to be new, all of a group. To insert what is thought to be new is cheaper than to look for
/// each first, and dearer where that was wrong.
#[derive(Debug, Default)]
pub(super) struct Newness {
    /// How many groups have to be new before this is thought again.
    doubts: AtomicU32,
}

/// How many groups are looked at after one that had something in it that was not new.
const DOUBTS: u32 = 32;

impl Newness {
    fn is_likely(&self) -> bool {
        self.doubts.load(Relaxed) == 0
    }

    fn seen(&self, all_new: bool) {
        if !all_new {
            self.doubts.store(DOUBTS, Relaxed);
        } else if !self.is_likely() {
            // Two at once may count for one.
            let _ = self.doubts.fetch_update(Relaxed, Relaxed, |doubts| doubts.checked_sub(1));
        }
    }
}

/// Queues as arrays: as they are thought to be.
#[derive(Default)]
struct Specs {
    names: Vec<String>,
    ordered: Vec<i64>,
    remembered: Vec<i64>,
    horizons: Vec<i64>,
    pulls: Vec<i64>,
}

impl Specs {
    fn of<'a>(specs: impl Iterator<Item = &'a QueueSpec>) -> Self {
        let mut all = Self::default();
        for spec in specs {
            all.names.push(spec.name.clone());
            all.ordered.push(i64::from(spec.ordered));
            all.remembered.push(column(nanos(spec.window)));
            all.horizons.push(column(nanos(spec.horizon)));
            all.pulls.push(i64::from(spec.pull));
        }
        all
    }
}

/// Whether the database said this.
pub(super) fn says(error: &sqlx::Error, code: &str) -> bool {
    error.as_database_error().is_some_and(|said| said.code().as_deref() == Some(code))
}
