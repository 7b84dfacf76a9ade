//! Shared by the tests of the SQLite store.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use redrive_core::event::{AttemptHistory, AttemptRecord, Mode};
use redrive_core::queue_entry::{
    EventChange, FencingToken, LoadRequest, QueueEntry, SettleRequest, StreamId,
};
use redrive_core::{Event, Moment};
use redrive_store::sqlite::{self, SqliteSettings};
use redrive_store::{
    DeclaredBy, NewEvent, PublishError, Published, QueueSpec, Sqlite, StoreError, Tx, TxJob, prelude::*,
};
use rusqlite::Connection;

/// When everything happens.
pub(crate) const AT: Moment = Moment::from_nanos(1_000);

/// A folder with a file in it.
pub(crate) struct TestStore {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

impl TestStore {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db");
        Self { folder, path }
    }

    /// Opens the store, with the queue `orders` in it.
    pub(crate) async fn open(&self) -> Arc<Sqlite> {
        let store = Arc::new(self.try_open().unwrap());
        store.declare(orders(), DeclaredBy::Runner).await.unwrap();
        store
    }

    pub(crate) fn try_open(&self) -> Result<Sqlite, StoreError> {
        let mut settings = SqliteSettings::default();
        settings.disk_least = 0;
        Sqlite::open(&self.path, settings)
    }

    /// A direct connection to the file.
    pub(crate) fn raw(&self) -> Connection {
        Connection::open(&self.path).unwrap()
    }
}

pub(crate) fn orders() -> QueueSpec {
    let second = Duration::from_secs(1);
    QueueSpec {
        name: "orders".to_owned(),
        ordered: true,
        window: second,
        horizon: second,
        ..QueueSpec::default()
    }
}

pub(crate) async fn publish(store: &Sqlite, event: Event) -> Result<Published, PublishError> {
    store.publish(vec![NewEvent::at(event, AT)]).await?.remove(0)
}

pub(crate) async fn due(store: &Sqlite, token: FencingToken) -> Vec<QueueEntry> {
    let load = LoadRequest {
        token,
        stream: StreamId(1),
        until: AT,
        live_max: 99,
        retry_max: 99,
        bytes_max: 1 << 30,
        except: vec![],
    };
    store.load(load).await.unwrap().entries
}

pub(crate) const fn settle(token: FencingToken, entry: &QueueEntry, change: EventChange) -> SettleRequest {
    SettleRequest { token, seq: entry.seq, rev: entry.rev, at: AT, change }
}

/// One attempt that failed.
pub(crate) fn history(attempt: u32) -> Option<Arc<AttemptHistory>> {
    let record = AttemptRecord {
        attempt,
        mode: Mode::Live.as_str().to_owned(),
        at_ms: 7,
        took_ms: 1,
        disposition: "retry".to_owned(),
        executed: None,
        cause: None,
        delay_ms: None,
    };
    Some(Arc::new(AttemptHistory::default().with(record)))
}

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// A job without a claim that works with the connection.
pub(crate) fn job(mut work: impl FnMut(&Connection) -> Outcome + Send + 'static) -> TxJob {
    let work = move |tx: &mut dyn Tx| {
        let conn = sqlite::connection(tx).ok_or("not in SQLite")?;
        work(conn).map(|()| None)
    };
    TxJob { work: Box::new(work), claim: None, time: Duration::from_secs(10), alone: false }
}

/// All selected rows.
pub(crate) fn rows(store_dir: &TestStore, select: &str) -> Vec<Vec<rusqlite::types::Value>> {
    let conn = store_dir.raw();
    let mut select = conn.prepare(select).unwrap();
    let columns = select.column_count();
    let read = |row: &rusqlite::Row<'_>| (0..columns).map(|at| row.get(at)).collect();
    select.query_map([], read).unwrap().map(Result::unwrap).collect()
}
