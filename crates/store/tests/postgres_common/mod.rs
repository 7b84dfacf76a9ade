//! Shared by the tests of the PostgreSQL store: processes that share a database, and direct connections to it.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use redrive_core::event::Mode;
use redrive_core::queue_entry::{
    EventChange, EventProgress, LoadRequest, QueueEntry, SettleRequest, SettleResult, TakenShard,
};
use redrive_core::{Event, Moment};
use redrive_store::postgres::PostgresSettings;
use redrive_store::postgres::sqlx::{self, AssertSqlSafe, Connection, PgConnection, Row};
use redrive_store::{
    DeclaredBy, NewEvent, Postgres, PublishError, Published, QueueSpec, Tx, TxJob, TxOutcome, TxSettle,
    prelude::*,
};
use redrive_testkit::postgres::{Server, a_name};

#[cfg(feature = "planted")]
pub(crate) mod steps;

pub(crate) const ORDERS: &str = "orders";

/// How long a test waits at most, however slow the machine is.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A moment, in seconds.
pub(crate) fn at(secs: u64) -> Moment {
    Moment::from_nanos((1_800_000_000 + secs) * 1_000_000_000)
}

/// A schema that several processes share.
#[derive(Debug, Clone)]
pub(crate) struct TestStore {
    pub(crate) url: String,
    pub(crate) schema: String,
    pub(crate) lock_wait: Duration,
    pub(crate) patience: Duration,
}

impl TestStore {
    pub(crate) fn new() -> Self {
        Self::at(&Server::shared().url())
    }

    pub(crate) fn at(url: &str) -> Self {
        let (lock_wait, patience) = (Duration::from_secs(20), Duration::from_secs(5));
        Self { url: url.to_owned(), schema: a_name("shared"), lock_wait, patience }
    }

    pub(crate) fn settings(&self) -> PostgresSettings {
        let mut settings = PostgresSettings::default();
        settings.schema.clone_from(&self.schema);
        settings.shards = 2;
        settings.connections = 8;
        settings.lease = Duration::from_secs(60);
        settings.lock_wait = self.lock_wait;
        settings.patience = self.patience;
        settings
    }

    /// A process, with a queue that keeps order.
    pub(crate) async fn node(&self) -> Node {
        self.node_at(&self.url).await
    }

    /// The same through another address.
    pub(crate) async fn node_at(&self, url: &str) -> Node {
        let store = Arc::new(Postgres::open(url, self.settings()).await.unwrap());
        let hour = Duration::from_secs(3600);
        let (name, ordered) = (ORDERS.to_owned(), true);
        let queue = QueueSpec { name, ordered, window: hour, horizon: hour, ..QueueSpec::default() };
        store.declare(queue, DeclaredBy::Runner).await.unwrap();
        Node { store, taken: Vec::new() }
    }

    /// A direct connection to the database.
    pub(crate) async fn raw(&self) -> Raw {
        Raw { conn: PgConnection::connect(&self.url).await.unwrap(), schema: self.schema.clone() }
    }
}

/// A direct connection to the database.
pub(crate) struct Raw {
    pub(crate) conn: PgConnection,
    schema: String,
}

impl Raw {
    /// A statement with the schema of the test for `redrive`.
    pub(crate) fn named(&self, sql: &str) -> String {
        sql.replace("redrive.", &format!("{}.", self.schema))
    }

    /// Runs a statement; `redrive.` is the schema of the test.
    pub(crate) async fn say(&mut self, sql: &str) -> sqlx::Result<Vec<sqlx::postgres::PgRow>> {
        let sql = self.named(sql);
        sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut self.conn).await
    }

    /// The number that a statement returns.
    pub(crate) async fn number(&mut self, sql: &str) -> i64 {
        self.say(sql).await.unwrap()[0].get(0)
    }

    /// Returns when a statement about this schema waits for a lock.
    pub(crate) async fn until_somebody_waits(&mut self) {
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%redrive.%'";
        let began = std::time::Instant::now();
        while self.number(waits).await == 0 {
            assert!(began.elapsed() < PATIENCE, "no statement waits for a lock");
            tokio::task::yield_now().await;
        }
    }

    /// Time passes in which no process renews its lease.
    pub(crate) async fn expire_all(&mut self) {
        self.say("UPDATE redrive.node SET until = clock_timestamp() - interval '1 s'").await.unwrap();
    }
}

/// A process.
pub(crate) struct Node {
    pub(crate) store: Arc<Postgres>,
    pub(crate) taken: Vec<TakenShard>,
}

impl Node {
    pub(crate) async fn take(&mut self) {
        self.taken.clear();
        for shard in 0..self.store.shards() {
            self.taken.push(self.store.take(shard, at(0)).await.unwrap());
        }
    }

    pub(crate) async fn publish(&self, id: &str, key: Option<&str>) -> Result<Published, PublishError> {
        publish(&self.store, id, key).await
    }

    /// The runnable events.
    pub(crate) async fn due(&self, until: Moment) -> Vec<QueueEntry> {
        self.due_up_to(1000, until).await
    }

    /// The same, at most this many of each stream in a shard.
    pub(crate) async fn due_up_to(&self, live_max: usize, until: Moment) -> Vec<QueueEntry> {
        let mut due = Vec::new();
        for taken in &self.taken {
            for stream in 1..=9 {
                let load = LoadRequest {
                    token: taken.token,
                    stream: redrive_core::queue_entry::StreamId(stream),
                    until,
                    live_max,
                    retry_max: 1000,
                    bytes_max: usize::MAX,
                    except: Vec::new(),
                };
                due.extend(self.store.load(load).await.unwrap().entries);
            }
        }
        due.sort_by_key(|entry| entry.seq);
        due
    }

    pub(crate) async fn due_ids(&self, until: Moment) -> Vec<String> {
        self.due(until).await.into_iter().map(|entry| entry.event.id.clone()).collect()
    }

    pub(crate) async fn one(&self, id: &str) -> QueueEntry {
        let due = self.due(at(1000)).await;
        due.iter().find(|entry| entry.event.id == id).cloned().unwrap_or_else(|| panic!("{id}: {due:?}"))
    }

    pub(crate) fn settling(&self, entry: &QueueEntry, change: EventChange) -> SettleRequest {
        let token = self.taken[usize::try_from(entry.shard).unwrap()].token;
        SettleRequest { token, seq: entry.seq, rev: entry.rev, at: at(1), change }
    }

    pub(crate) async fn settle(&self, entry: &QueueEntry, change: EventChange) -> SettleResult {
        self.store.settle(vec![self.settling(entry, change)]).await.unwrap().remove(0)
    }

    pub(crate) fn claim(&self, entry: &QueueEntry) -> TxSettle {
        let SettleRequest { token, seq, rev, at, .. } = self.settling(entry, EventChange::Done);
        TxSettle { token, seq, rev, at, attempts: 1, history: None }
    }
}

pub(crate) async fn publish(
    store: &Arc<Postgres>,
    id: &str,
    key: Option<&str>,
) -> Result<Published, PublishError> {
    let event = event(id, key);
    store.publish(vec![NewEvent::at(event, at(0))]).await.map_err(PublishError::Store)?.remove(0)
}

pub(crate) fn event(id: &str, key: Option<&str>) -> Event {
    let event = Event::new(ORDERS, id).payload(id.as_bytes());
    if let Some(key) = key { event.key(key) } else { event }
}

/// A retry at a time.
pub(crate) fn again(due: u64) -> EventChange {
    EventChange::Retry(EventProgress { attempts: 1, mode: Mode::Retry, ..EventProgress::fresh(at(due)) })
}

/// A transaction that stays open until the test ends it.
pub(crate) struct Open {
    go: Sender<bool>,
    pub(crate) done: tokio::task::JoinHandle<TxOutcome>,
}

impl Open {
    /// Does some work in a transaction, which then stays open.
    pub(crate) async fn with(
        store: &Arc<Postgres>,
        claim: Option<TxSettle>,
        mut work: impl FnMut(&mut dyn Tx) + Send + 'static,
    ) -> Self {
        let (go, goes): (Sender<bool>, Receiver<bool>) = channel();
        let (began, begun) = tokio::sync::oneshot::channel();
        let mut began = Some(began);
        let work = move |tx: &mut dyn Tx| {
            work(tx);
            if let Some(began) = began.take() {
                began.send(()).unwrap();
            }
            if goes.recv().unwrap() { Ok(None) } else { Err("told so".into()) }
        };
        let job = TxJob { work: Box::new(work), claim, time: Duration::from_secs(60), alone: false };
        let transact = store.transact(job);
        let done = tokio::spawn(async move { transact.await.unwrap() });
        begun.await.unwrap();
        Self { go, done }
    }

    pub(crate) async fn commit(self) -> TxOutcome {
        self.go.send(true).unwrap();
        self.done.await.unwrap()
    }

    pub(crate) async fn roll_back(self) -> TxOutcome {
        self.go.send(false).unwrap();
        self.done.await.unwrap()
    }
}
