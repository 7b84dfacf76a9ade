//! A publish as one statement, which is its own transaction; settles are in `settle_at_once.rs`.
//!
//! Most events are simply new. Those need nobody to look at anything, so a function in the database does all of it
//! (`schema/1-at-once.sql`): one round trip, and a process that stands still cannot leave it open. What is not so simple
//! is handed back, for a desk.
//!
//! A publish is two round trips: places are drawn first, because a row's checksum has its place in it.
//!
//! Behind a pooler a statement is prepared in one session and run in another, so there everything is handed back.
//!
//! Whoever is not answered does not know whether it happened, also where the connection was broken before: nothing was
//! said on it that would have told. It is repeated like any other commit of unknown fate.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use redrive_core::entry::Seq;
use redrive_core::event::identity;
use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, Postgres, Row};

use super::desk::{READ_SPECS, spec_of};
use super::faults::{Fault, Kind, kind};
use super::heads::Keys;
use super::office::{News, Office, Tries, Trouble};
use super::publish::{Answer, Given, Item, Lives, Receipts};
use super::writer::LOCKED;
use crate::store::{New, Published, QueueSpec};
use crate::stores::shared::numbers::{bits, column, nanos, seq};

/// How long a group waits for somebody else's lock before it is split.
pub(super) const SHORTLY: Duration = Duration::from_millis(100);

/// How many queues are remembered as they were read last.
const SPECS_MAX: usize = 10_000;

/// What the functions say where a grant is not current, and where a queue was declared anew.
pub(super) const LOST: &str = "RD001";
const ANEW: &str = "RD002";

/// A connection on which a statement is its own transaction.
pub(super) struct Aside {
    pub(super) conn: PoolConnection<Postgres>,
    is_busy: bool,
}

impl Aside {
    pub(super) async fn take(office: &Office) -> sqlx::Result<Self> {
        Ok(Self { conn: office.pool.acquire().await?, is_busy: false })
    }

    /// Says something, and hears the answer. Who goes away in between leaves the connection to nobody.
    pub(super) async fn say<T>(
        &mut self,
        what: impl AsyncFnOnce(&mut PgConnection) -> sqlx::Result<T>,
    ) -> sqlx::Result<T> {
        self.is_busy = true;
        let said = what(&mut self.conn).await;
        self.is_busy = matches!(&said, Err(error) if kind(error) == Kind::Cut);
        said
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if self.is_busy {
            self.conn.close_on_drop();
        }
    }
}

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
        events: &[New],
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
        events: &[New],
        wait: i64,
        given: &mut Given,
    ) -> Result<Vec<Option<Answer>>, Trouble> {
        let mut answers: Vec<Option<Answer>> = events.iter().map(|_| None).collect();
        let mut items = self.simple(events).await?;
        if items.is_empty() {
            return Ok(answers);
        }
        let mut aside = Aside::take(self).await.map_err(Fault::Sql)?;
        let draw = self.schema.sql("SELECT nextval('redrive.place') FROM generate_series(1, $1)");
        let count = column(items.len() as u64);
        let drawn = aside.say(async |conn| sqlx::query_scalar(draw).bind(count).fetch_all(conn).await).await;
        let places: Vec<i64> = drawn.map_err(Fault::Sql)?;
        for (item, place) in items.iter_mut().zip(places) {
            item.seq = seq(item.stream.id, bits(place));
        }
        if let Some(at) = items.iter().map(|item| item.new.at).max() {
            self.seen.see(at);
        }
        items.sort_by(|a, b| a.identity().cmp(&b.identity()).then(a.at.cmp(&b.at)));
        let open = self.tellings.begin();
        match aside.say(async |conn| self.keep(conn, &items, wait).await).await {
            Ok((fresh, number)) => {
                let mut news = News { number, ..News::default() };
                let mut keys = Keys::new();
                items.sort_by_key(|item| item.at);
                for item in items.iter().filter(|item| fresh.contains(&item.seq)) {
                    match item.key().filter(|_| !item.spec.pull) {
                        Some(key) => drop(keys.insert((item.stream.id, key.to_owned()), item.stream.clone())),
                        None => item.tell(&mut news),
                    }
                    answers[item.at] = Some(Ok(Published::Accepted(item.seq)));
                }
                self.tell_heads(&mut aside.conn, keys, &mut news, |seq| fresh.contains(&seq)).await;
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

    /// Remembers a queue as it was read.
    pub(super) fn remember(&self, spec: &Arc<QueueSpec>) {
        let mut known = self.specs.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= SPECS_MAX {
            known.clear();
        }
        known.insert(spec.name.clone(), Arc::clone(spec));
    }

    /// Those that can be kept, and need not wait for their time, in queues that are known here.
    async fn simple<'a>(&self, events: &'a [New]) -> Result<Vec<Item<'a>>, Fault> {
        let mut items = Vec::with_capacity(events.len());
        let mut specs = self.specs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let names = events.iter().map(|new| new.event.queue.as_str());
        let new: BTreeSet<&str> = names.filter(|name| !specs.contains_key(*name)).collect();
        if !new.is_empty() {
            let new: Vec<&str> = new.into_iter().collect();
            let found = sqlx::query(self.schema.sql(READ_SPECS)).bind(new).fetch_all(&self.pool).await?;
            for row in found {
                let spec = Arc::new(spec_of(&row)?);
                self.remember(&spec);
                specs.insert(spec.name.clone(), spec);
            }
        }
        // Somebody is about to make a stream: it is waited for once, and by all others not at all.
        let mut is_held_up = false;
        for (at, new) in events.iter().enumerate() {
            let event = &new.event;
            let Some(spec) = specs.get(&event.queue) else { continue };
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
            let shard = identity::shard(event, self.shards);
            let item = Item { at, new, stream, spec: Arc::clone(spec), seq: Seq(0), shard };
            if !item.is_delayed() {
                items.push(item);
            }
        }
        Ok(items)
    }

    /// Which of them were new, and the number of the transaction.
    async fn keep(
        &self,
        conn: &mut PgConnection,
        items: &[Item<'_>],
        wait: i64,
    ) -> sqlx::Result<(HashSet<Seq>, Option<u64>)> {
        let specs: BTreeMap<&str, &QueueSpec> =
            items.iter().map(|item| (item.spec.name.as_str(), &*item.spec)).collect();
        let specs = Specs::of(specs.into_values());
        let sorted: Vec<&Item<'_>> = items.iter().collect();
        let receipts = Receipts::of(&sorted);
        let mut live = Lives::default();
        for item in items {
            live.push(&item.row(), item);
        }
        let keep = "SELECT fresh, number FROM redrive.publish_at_once($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, \
                    $12, $13, $14, $15, $16, $17, $18, $19, $20)";
        let row = sqlx::query(self.schema.sql(keep))
            .bind(wait)
            .bind(specs.names)
            .bind(specs.ordered)
            .bind(specs.remembered)
            .bind(specs.horizons)
            .bind(specs.pulls)
            .bind(receipts.ids)
            .bind(receipts.streams)
            .bind(receipts.prints)
            .bind(receipts.seqs)
            .bind(receipts.published)
            .bind(receipts.untils)
            .bind(receipts.sums)
            .bind(live.keys)
            .bind(live.tags)
            .bind(live.payloads)
            .bind(live.extras)
            .bind(live.calms)
            .bind(live.sums)
            .bind(live.shards)
            .fetch_one(conn)
            .await?;
        let fresh: Option<Vec<i64>> = row.try_get(0)?;
        let number = row.try_get::<String, _>(1)?.parse().ok();
        Ok((fresh.into_iter().flatten().map(|seq| Seq(bits(seq))).collect(), number))
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
