//! The rival's store, set up as asked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use apalis_sqlite::callback::HookCallbackListener;
use apalis_sqlite::{Config, SqlitePool, SqliteStorage};
use redrive_benches::turn::{Publisher, Setup, Turn, Work};
use sqlx::{Connection, SqliteConnection};

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What a worker and its publishers need.
pub(crate) struct Store {
    pub(crate) pool: SqlitePool,
    pub(crate) listener: HookCallbackListener,
    pub(crate) config: Config,
    /// The settings that are in force.
    pub(crate) settings: String,
    /// Reads without waiting for a place in the pool among a thousand callers.
    observer: SqliteConnection,
    commits: Arc<AtomicU64>,
}

impl Store {
    pub(crate) async fn open(turn: &Turn) -> Result<Self, Failure> {
        let file = turn.folder.join("apalis.db");
        let url = format!("sqlite://{}?mode=rwc", file.display());
        let (pool, listener) = SqliteStorage::connect_with_callback(&url)?;
        SqliteStorage::setup(&pool).await?;
        let mut config = Config::default().queue("events");
        if turn.setup == Setup::Full {
            // Where callers come one by one, larger ones are no faster, and finish a thousand at a time.
            let share = if turn.publisher == Publisher::Bulk { 1 } else { 10 };
            config = config.batch_size(turn.callers.div_ceil(share));
        }
        let commits = Arc::new(AtomicU64::new(0));
        let settings = settle(&pool, turn.setup, &commits).await?;
        let observer = SqliteConnection::connect(&url).await?;
        Ok(Self { pool, listener, config, settings, observer, commits })
    }

    /// Lets SQLite count its rows, once there are some.
    pub(crate) async fn analyze(&self) -> Result<(), Failure> {
        sqlx::query("ANALYZE").execute(&self.pool).await?;
        Ok(())
    }

    /// How many are done: handled and acknowledged in the database, or published.
    pub(crate) async fn done(&mut self, work: Work) -> Result<u64, Failure> {
        let status = if work == Work::Life { "Done" } else { "Pending" };
        let count = sqlx::query_scalar("SELECT count(*) FROM Jobs WHERE status = ?").bind(status);
        Ok(u64::try_from(count.fetch_one(&mut self.observer).await.map(|count: i64| count)?)?)
    }

    /// Committed write transactions.
    pub(crate) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }
}

/// Opens every connection that the pool may have, counts its commits from now on, and says what it is set to.
async fn settle(pool: &SqlitePool, setup: Setup, commits: &Arc<AtomicU64>) -> Result<String, Failure> {
    let mut connections = Vec::new();
    for _ in 0..pool.options().get_max_connections() {
        connections.push(pool.acquire().await?);
    }
    let mut levels = BTreeMap::<i64, usize>::new();
    let mut journal = String::new();
    for connection in &mut connections {
        if setup == Setup::Full {
            sqlx::query("PRAGMA synchronous = FULL").execute(&mut **connection).await?;
        }
        journal = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&mut **connection).await?;
        let level = sqlx::query_scalar("PRAGMA synchronous").fetch_one(&mut **connection).await?;
        *levels.entry(level).or_default() += 1;
        let commits = Arc::clone(commits);
        connection.lock_handle().await?.set_commit_hook(move || {
            commits.fetch_add(1, Ordering::Relaxed);
            true
        });
    }
    let levels: Vec<_> = levels.iter().map(|(level, count)| format!("{} on {count}", name(*level))).collect();
    Ok(format!("journal_mode={journal}, synchronous={}", levels.join(", ")))
}

fn name(level: i64) -> &'static str {
    match level {
        0 => "OFF",
        1 => "NORMAL",
        2 => "FULL",
        _ => "EXTRA",
    }
}
