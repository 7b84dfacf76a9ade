//! The office: what all desks of one opening share, and how a verb becomes a transaction.
//!
//! A transaction that was rolled back because of somebody else is done again; so is one whose connection was cut before
//! its COMMIT was sent, while there is patience. One whose COMMIT was sent and not answered is done again under the number
//! of the first ([`super::once`]), unless whoever asked knows its own rows again ([`Trouble::Unknown`]).

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redrive_core::Event;
use redrive_core::entry::{Entry, StreamId};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{Connection, PgConnection, PgPool};
use tokio::sync::{Notify, RwLock};

use super::aside::AtHand;
use super::at_once::Newness;
use super::desk::{Desk, For};
use super::faults::{Fault, Kind, Step, kind, not_done, rolled_back, undecided};
use super::forget::Cursor;
use super::lent::Home;
use super::names::Names;
use super::once::{Earlier, Number, Numbers, numbers};
use super::places::Places;
use super::rows::Stream;
use super::schema::Schema;
use super::telling::{Open, Own, Tellings};
use crate::error::StoreError;
use crate::nodes::Tenure;
use crate::store::{Arrivals, QueueSpec, Watcher};
use crate::stores::shared::rules::Seen;

/// How often a call is done again because of somebody else.
const TRIES_MAX: u32 = 30;
/// The first wait between two tries; each is twice as long as the one before, up to [`WAIT_MAX`].
const WAIT: Duration = Duration::from_millis(1);
const WAIT_MAX: Duration = Duration::from_millis(200);

/// What a verb does at a desk.
pub(super) type Doing<'a, T> = Pin<Box<dyn Future<Output = Step<T>> + Send + 'a>>;

/// What all desks share.
pub(super) struct Office {
    /// For desks.
    pub(super) pool: PgPool,
    /// For statements that are transactions by themselves: some of those of the pool, kept.
    pub(super) at_hand: Arc<AtHand>,
    /// For what must not wait for a desk: heartbeats, new streams, hints.
    pub(super) side: PgPool,
    pub(super) schema: Schema,
    /// Where the database is, without what is secret.
    pub(super) place: String,
    /// Which database it is, and which life of it.
    pub(super) home: Home,
    /// Whether every transaction has a session of its own: nothing may be left in one for the next.
    pub(super) pooled: bool,
    /// How a transaction that writes begins.
    pub(super) begin: String,
    /// How long this process owns its shards after it was heard of last.
    pub(super) lease: Duration,
    /// How long a call goes on trying to reach the database.
    pub(super) patience: Duration,
    /// How long a commit waits for somebody else's lock.
    pub(super) lock_wait: Duration,
    pub(super) shards: u32,
    /// The number of this process among those that share the database.
    pub(super) node: i64,
    /// Its lease, as this process sees it.
    pub(super) tenure: Arc<Tenure>,
    pub(super) seen: Seen,
    pub(super) names: Names,
    pub(super) numbers: Numbers,
    pub(super) places: Places,
    pub(super) newness: Newness,
    pub(super) tellings: Tellings,
    pub(super) own: Own,
    pub(super) watcher: Mutex<Option<Watcher>>,
    pub(super) cursor: Mutex<Cursor>,
    /// The stream of a queue that was leased from last.
    pub(super) served: Mutex<HashMap<String, StreamId>>,
    /// Up to where dead letters of a stream were looked at, whether they hold up too many.
    pub(super) relieved: Mutex<HashMap<StreamId, i64>>,
    /// Queues as they were read last. Whoever relies on one has the database compare it.
    pub(super) specs: Mutex<HashMap<String, Arc<QueueSpec>>>,
    /// How many causes streams have, as far as this process knows.
    pub(super) causes: Mutex<HashMap<StreamId, u32>>,
    /// Whether there are others who may want to know of something.
    pub(super) has_company: AtomicBool,
    /// Something was committed that others may want to know of.
    pub(super) hint: Notify,
    pub(super) is_closed: AtomicBool,
    /// Held while this process says that it lives.
    pub(super) beating: tokio::sync::Mutex<()>,
    /// Held by every call; who closes waits for all of them.
    pub(super) gate: Arc<RwLock<()>>,
}

/// What a commit brings that others want to know of.
#[derive(Debug, Default)]
pub(super) struct News {
    /// What became runnable.
    pub(super) arrived: Vec<Entry>,
    /// Streams in which something became runnable that is not in `arrived`.
    pub(super) missed: BTreeMap<StreamId, Arc<Stream>>,
    /// Whether an order took something out of an owner's hands.
    pub(super) recall: bool,
    /// The number of the transaction, where all that others want to know of it is told.
    pub(super) number: Option<u64>,
    /// Whether all of it is in shards of this process, as far as it knows: others have nothing to look for. Where it is
    /// wrong about that, their next look finds it.
    pub(super) is_near: bool,
}

impl News {
    /// Nobody knows whether they are there: a load will tell.
    pub(super) fn in_doubt(mut self) -> Self {
        for entry in self.arrived.drain(..) {
            let Event { queue, tenant, .. } = &*entry.event;
            let (queue, tenant) = (queue.clone(), tenant.clone());
            let stream = || Arc::new(Stream { id: entry.stream, queue, tenant });
            self.missed.entry(entry.stream).or_insert_with(stream);
        }
        Self { number: None, is_near: false, ..self }
    }
}

/// Why a transaction did not happen, or may not have.
#[derive(Debug)]
pub(super) enum Trouble {
    /// It did not.
    No(Fault),
    /// Its COMMIT was not answered.
    Unknown(sqlx::Error),
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Self {
        Self::No(fault)
    }
}

impl Office {
    /// Looks at something: everything is seen as of one commit.
    pub(super) async fn look<T>(
        self: &Arc<Self>,
        look: impl for<'a> Fn(&'a mut Desk) -> Doing<'a, T>,
    ) -> Result<T, StoreError> {
        let mut tries = Tries::new(self.patience);
        loop {
            match self.look_once(&look).await {
                Ok(seen) => return Ok(seen),
                Err(Fault::Sql(error)) if tries.may_go_on(&error) => tries.wait().await,
                Err(fault) => return Err(not_done(fault)),
            }
        }
    }

    async fn look_once<T>(self: &Arc<Self>, look: &impl for<'a> Fn(&'a mut Desk) -> Doing<'a, T>) -> Step<T> {
        let mut desk = Desk::begin(self, For::Looking).await?;
        let seen = look(&mut desk).await;
        desk.roll_back().await;
        seen
    }

    /// Writes something, in one commit. One whose COMMIT was not answered is repeated, and says what the first has said
    /// where that has happened. Where nobody can tell while there is patience, the caller is told so.
    pub(super) async fn write<T>(
        self: &Arc<Self>,
        run: impl for<'a> Fn(&'a mut Desk) -> Doing<'a, T>,
    ) -> Result<T, StoreError> {
        self.write_or_leave(run).await.map_err(|(error, _)| error)
    }

    /// The same; with the error comes what may still have happened.
    pub(super) async fn write_or_leave<T>(
        self: &Arc<Self>,
        run: impl for<'a> Fn(&'a mut Desk) -> Doing<'a, T>,
    ) -> Result<T, (StoreError, Vec<Earlier<T>>)> {
        let mut earlier = Vec::new();
        let mut tries = Tries::new(self.patience);
        loop {
            let fault = match self.write_as(&run, &mut earlier).await {
                Ok(done) => return Ok(done),
                Err(Trouble::No(fault)) => fault,
                Err(Trouble::Unknown(error)) => Fault::Sql(error),
            };
            let goes_on = match &fault {
                Fault::Sql(error) => tries.may_go_on(error) || (!earlier.is_empty() && tries.may_ask(error)),
                Fault::Lost => tries.count < TRIES_MAX,
                Fault::Refused(_) => false,
            };
            if goes_on {
                tries.wait().await;
                continue;
            }
            // What was said just now counts only where none of the tries before can happen any more.
            return match self.find_out(&numbers(&earlier)).await {
                Ok(Some(at)) => Ok(earlier.swap_remove(at).did),
                Ok(None) => Err((not_done(fault), Vec::new())),
                Err(_) => Err((undecided(fault), earlier)),
            };
        }
    }

    /// A try with a number, after those before it.
    async fn write_as<T>(
        self: &Arc<Self>,
        run: &impl for<'a> Fn(&'a mut Desk) -> Doing<'a, T>,
        earlier: &mut Vec<Earlier<T>>,
    ) -> Result<T, Trouble> {
        let mut desk = Desk::begin(self, For::Writing).await?;
        match desk.recognise(&numbers(earlier)).await {
            Ok(None) => {}
            Ok(Some(at)) => {
                desk.roll_back().await;
                return Ok(earlier.swap_remove(at).did);
            }
            Err(fault) => {
                desk.roll_back().await;
                return Err(fault.into());
            }
        }
        let did = match run(&mut desk).await {
            Ok(did) => desk.finish().await.map(|()| did),
            Err(fault) => Err(fault),
        };
        match did {
            Ok(did) => {
                let number = self.numbers.next();
                match self.commit(&mut desk, Some(number)).await {
                    Ok(()) => {
                        self.numbers.answered(earlier.drain(..).map(|one| one.number));
                        Ok(did)
                    }
                    Err(trouble) => {
                        if matches!(trouble, Trouble::Unknown(_)) {
                            earlier.push(Earlier { number, did });
                        }
                        Err(trouble)
                    }
                }
            }
            Err(fault) => {
                desk.roll_back().await;
                Err(fault.into())
            }
        }
    }

    /// Finds out which of these tries was committed, if one was; none of the others ever will be.
    pub(super) async fn find_out(self: &Arc<Self>, earlier: &[Number]) -> Result<Option<usize>, StoreError> {
        if earlier.is_empty() {
            return Ok(None);
        }
        let mut desk = Desk::begin(self, For::Writing).await.map_err(not_done)?;
        let found = desk.recognise(earlier).await.map_err(not_done)?;
        match found {
            Some(_) => desk.roll_back().await,
            // Where this is not answered, it is asked again.
            None => desk.commit().await.map_err(rolled_back)?,
        }
        Ok(found)
    }

    /// The same for somebody who knows what to do where it is not known.
    pub(super) async fn try_to_write<T>(
        self: &Arc<Self>,
        run: impl for<'a> Fn(&'a mut Desk) -> Doing<'a, T>,
    ) -> Result<T, Trouble> {
        let mut tries = Tries::new(self.patience);
        loop {
            match self.write_once(&run).await {
                Err(Trouble::No(Fault::Sql(error))) if tries.may_go_on(&error) => tries.wait().await,
                // Somebody took a shard: what is still ours is found out anew.
                Err(Trouble::No(Fault::Lost)) if tries.count < TRIES_MAX => tries.wait().await,
                done => return done,
            }
        }
    }

    async fn write_once<T>(
        self: &Arc<Self>,
        run: &impl for<'a> Fn(&'a mut Desk) -> Doing<'a, T>,
    ) -> Result<T, Trouble> {
        let mut desk = Desk::begin(self, For::Writing).await?;
        let did = match run(&mut desk).await {
            Ok(did) => desk.finish().await.map(|()| did),
            Err(fault) => Err(fault),
        };
        match did {
            Ok(did) => self.commit(&mut desk, None).await.map(|()| did),
            Err(fault) => {
                desk.roll_back().await;
                Err(fault.into())
            }
        }
    }

    /// Commits what is on a desk, and tells whoever watches before anybody is answered.
    pub(super) async fn commit(&self, desk: &mut Desk, number: Option<Number>) -> Result<(), Trouble> {
        let open = self.tellings.begin();
        let committed = match number {
            Some(number) => desk.commit_as(number).await,
            None => desk.commit().await,
        };
        let is_unknown = match &committed {
            Ok(()) => false,
            Err(error) if kind(error) == Kind::Cut => true,
            Err(_) => return committed.map_err(|error| Fault::Sql(error).into()),
        };
        let mut news = News {
            arrived: std::mem::take(&mut desk.arrived),
            missed: std::mem::take(&mut desk.missed),
            recall: desk.recall,
            number: desk.number,
            is_near: false,
        };
        let freed = std::mem::take(&mut desk.freed);
        if is_unknown {
            news.missed.extend(freed.into_iter().map(|((id, _), stream)| (id, stream)));
            news = news.in_doubt();
        } else {
            let _ = self.tell_heads(&mut desk.conn, freed, &mut news, |_| true).await;
        }
        self.tell_of(open, news);
        committed.map_err(Trouble::Unknown)
    }

    /// Tells what a commit brought.
    pub(super) fn tell_of(&self, open: Open<'_>, news: News) {
        let News { arrived, missed, recall, number, is_near } = news;
        // Where nobody watches, nobody looks, and whoever begins to watch looks at everything.
        if let Some(number) = number.filter(|_| self.is_watched()) {
            self.own.add(number);
        }
        let streams = missed.values().map(|stream| stream.named()).collect();
        let missed = !missed.is_empty();
        let is_near = is_near && !missed && !recall && !arrived.is_empty();
        let arrivals = Arrivals { entries: arrived, missed, recall, streams, ..Arrivals::default() };
        if is_near { self.tell_here(open, arrivals) } else { self.tell(open, arrivals) }
    }

    /// Tells whoever watches, and has the others told.
    pub(super) fn tell(&self, open: Open<'_>, arrivals: Arrivals) {
        if arrivals.entries.is_empty() && !arrivals.missed && !arrivals.recall {
            return;
        }
        self.hint.notify_one();
        self.tell_here(open, arrivals);
    }

    /// Tells whoever watches.
    fn tell_here(&self, open: Open<'_>, arrivals: Arrivals) {
        let watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(watcher) = watcher {
            open.tell(arrivals, &watcher);
        }
    }

    /// The rows of a statement that is a transaction by itself. Behind a pooler it is prepared and run in one, so that
    /// both meet the same session.
    pub(super) async fn alone_on(
        &self,
        conn: &mut PgConnection,
        query: Query<'_, sqlx::Postgres, PgArguments>,
    ) -> sqlx::Result<Vec<PgRow>> {
        if !self.pooled {
            return query.fetch_all(conn).await;
        }
        let mut tx = conn.begin().await?;
        let rows = query.persistent(false).fetch_all(&mut *tx).await?;
        tx.commit().await?;
        Ok(rows)
    }

    /// The same on a connection of a pool.
    pub(super) async fn alone(
        &self,
        pool: &PgPool,
        query: Query<'_, sqlx::Postgres, PgArguments>,
    ) -> sqlx::Result<Vec<PgRow>> {
        let mut conn = pool.acquire().await?;
        self.alone_on(&mut conn, query).await
    }

    /// Nothing, while it is open.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        if self.is_closed.load(Relaxed) { Err(StoreError::Closed) } else { Ok(()) }
    }
}

/// How often something was tried, and for how long.
pub(super) struct Tries {
    began: Instant,
    patience: Duration,
    count: u32,
}

impl Tries {
    pub(super) fn new(patience: Duration) -> Self {
        Self { began: Instant::now(), patience, count: 0 }
    }

    pub(super) fn may_go_on(&self, error: &sqlx::Error) -> bool {
        match kind(error) {
            Kind::Again => self.count < TRIES_MAX,
            Kind::Cut | Kind::Busy => self.began.elapsed() < self.patience,
            Kind::Passing | Kind::Other => false,
        }
    }

    /// Whether a try whose fate is not known is still to be asked for: also where the first one is in the way.
    fn may_ask(&self, error: &sqlx::Error) -> bool {
        kind(error) != Kind::Other && self.began.elapsed() < self.patience
    }

    pub(super) async fn wait(&mut self) {
        let wait = WAIT.saturating_mul(1 << self.count.min(16)).min(WAIT_MAX);
        // Two that met at the same rows must not meet there again: each waits for another part of it.
        let spread = self.began.elapsed().subsec_nanos() % 1000;
        self.count += 1;
        tokio::time::sleep(wait.mul_f64(0.5 + f64::from(spread) / 2000.0)).await;
    }
}

/// The error of a step that was taken outside a desk.
pub(super) fn aside(error: sqlx::Error) -> StoreError {
    rolled_back(error)
}
