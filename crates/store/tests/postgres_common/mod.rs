//! What the tests of the PostgreSQL store share: processes that share a database, and connections past them.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use redrive_core::entry::{Change, Entry, Load, Progress, Settle, Settled, Taken};
use redrive_core::event::Mode;
use redrive_core::{Event, Moment};
use redrive_store::postgres::Settings;
use redrive_store::postgres::sqlx::{self, AssertSqlSafe, Connection, PgConnection, Row};
use redrive_store::{
    By, Claim, Job, New, Postgres, PublishError, Published, QueueSpec, Store, Transacted, Tx,
};
use redrive_testkit::postgres::{Server, a_name};

#[cfg(feature = "planted")]
pub(crate) mod steps;

pub(crate) const ORDERS: &str = "orders";

/// How long a test waits for what must happen, however slow the machine is.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A moment, in seconds.
pub(crate) fn at(secs: u64) -> Moment {
    Moment::from_nanos((1_800_000_000 + secs) * 1_000_000_000)
}

/// A schema that several processes share.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) url: String,
    pub(crate) schema: String,
    pub(crate) lock_wait: Duration,
    pub(crate) patience: Duration,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self::at(&Server::shared().url())
    }

    pub(crate) fn at(url: &str) -> Self {
        let (lock_wait, patience) = (Duration::from_secs(20), Duration::from_secs(5));
        Self { url: url.to_owned(), schema: a_name("shared"), lock_wait, patience }
    }

    pub(crate) fn settings(&self) -> Settings {
        let mut settings = Settings::default();
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

    /// The same by another way.
    pub(crate) async fn node_at(&self, url: &str) -> Node {
        let store = Arc::new(Postgres::open(url, self.settings()).await.unwrap());
        let hour = Duration::from_secs(3600);
        let (name, ordered) = (ORDERS.to_owned(), true);
        let queue = QueueSpec { name, ordered, window: hour, horizon: hour, ..QueueSpec::default() };
        store.declare(queue, By::Runner).await.unwrap();
        Node { store, taken: Vec::new() }
    }

    /// A connection past the store.
    pub(crate) async fn raw(&self) -> Raw {
        Raw { conn: PgConnection::connect(&self.url).await.unwrap(), schema: self.schema.clone() }
    }
}

/// A connection past the store.
pub(crate) struct Raw {
    pub(crate) conn: PgConnection,
    schema: String,
}

impl Raw {
    /// A statement with the schema of the test for `redrive`.
    pub(crate) fn named(&self, sql: &str) -> String {
        sql.replace("redrive.", &format!("{}.", self.schema))
    }

    /// Says something; `redrive.` is the schema of the test.
    pub(crate) async fn say(&mut self, sql: &str) -> sqlx::Result<Vec<sqlx::postgres::PgRow>> {
        let sql = self.named(sql);
        sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut self.conn).await
    }

    /// The number that a statement gives.
    pub(crate) async fn number(&mut self, sql: &str) -> i64 {
        self.say(sql).await.unwrap()[0].get(0)
    }

    /// Returns when somebody waits for a lock, in a statement about this schema.
    pub(crate) async fn until_somebody_waits(&mut self) {
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%redrive.%'";
        let began = std::time::Instant::now();
        while self.number(waits).await == 0 {
            assert!(began.elapsed() < PATIENCE, "nobody waits for a lock");
            tokio::task::yield_now().await;
        }
    }

    /// Time passes, in which nobody was heard of.
    pub(crate) async fn expire_all(&mut self) {
        self.say("UPDATE redrive.node SET until = clock_timestamp() - interval '1 s'").await.unwrap();
    }
}

/// A process.
pub(crate) struct Node {
    pub(crate) store: Arc<Postgres>,
    pub(crate) taken: Vec<Taken>,
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

    /// What may run.
    pub(crate) async fn due(&self, until: Moment) -> Vec<Entry> {
        self.due_up_to(1000, until).await
    }

    /// The same, so many of each stream in a shard.
    pub(crate) async fn due_up_to(&self, live_max: usize, until: Moment) -> Vec<Entry> {
        let mut due = Vec::new();
        for taken in &self.taken {
            for stream in 1..=9 {
                let load = Load {
                    grant: taken.grant,
                    stream: redrive_core::entry::StreamId(stream),
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

    pub(crate) async fn one(&self, id: &str) -> Entry {
        let due = self.due(at(1000)).await;
        due.iter().find(|entry| entry.event.id == id).cloned().unwrap_or_else(|| panic!("{id}: {due:?}"))
    }

    pub(crate) fn settling(&self, entry: &Entry, change: Change) -> Settle {
        let grant = self.taken[usize::try_from(entry.shard).unwrap()].grant;
        Settle { grant, seq: entry.seq, rev: entry.rev, at: at(1), change }
    }

    pub(crate) async fn settle(&self, entry: &Entry, change: Change) -> Settled {
        self.store.settle(vec![self.settling(entry, change)]).await.unwrap().remove(0)
    }

    pub(crate) fn claim(&self, entry: &Entry) -> Claim {
        let Settle { grant, seq, rev, at, .. } = self.settling(entry, Change::Done);
        Claim { grant, seq, rev, at, attempts: 1, story: None }
    }
}

pub(crate) async fn publish(
    store: &Arc<Postgres>,
    id: &str,
    key: Option<&str>,
) -> Result<Published, PublishError> {
    let event = event(id, key);
    store.publish(vec![New::at(event, at(0))]).await.map_err(PublishError::Store)?.remove(0)
}

pub(crate) fn event(id: &str, key: Option<&str>) -> Event {
    let event = Event::new(ORDERS, id).payload(id.as_bytes());
    if let Some(key) = key { event.key(key) } else { event }
}

/// To run again at a time.
pub(crate) fn again(due: u64) -> Change {
    Change::Again(Progress { attempts: 1, mode: Mode::Retry, ..Progress::fresh(at(due)) })
}

/// A transaction that stays open until it is told to end.
pub(crate) struct Open {
    go: Sender<bool>,
    pub(crate) done: tokio::task::JoinHandle<Transacted>,
}

impl Open {
    /// Does some work in a transaction, which then stays open.
    pub(crate) async fn with(
        store: &Arc<Postgres>,
        claim: Option<Claim>,
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
        let job = Job { work: Box::new(work), claim, time: Duration::from_secs(60), alone: false };
        let transact = store.transact(job);
        let done = tokio::spawn(async move { transact.await.unwrap() });
        begun.await.unwrap();
        Self { go, done }
    }

    pub(crate) async fn commit(self) -> Transacted {
        self.go.send(true).unwrap();
        self.done.await.unwrap()
    }

    pub(crate) async fn roll_back(self) -> Transacted {
        self.go.send(false).unwrap();
        self.done.await.unwrap()
    }
}
