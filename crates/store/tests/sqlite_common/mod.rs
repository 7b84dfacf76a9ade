//! What the tests of the SQLite store share.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use redrive_core::entry::{Change, Entry, Grant, Load, Settle, StreamId};
use redrive_core::event::{Mode, Record, Story};
use redrive_core::{Event, Moment};
use redrive_store::sqlite::{self, Settings};
use redrive_store::{By, Job, New, PublishError, Published, QueueSpec, Sqlite, Store, StoreError, Tx};
use rusqlite::Connection;

/// When everything happens.
pub(crate) const AT: Moment = Moment::from_nanos(1_000);

/// A folder with a file in it.
pub(crate) struct Place {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

impl Place {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db");
        Self { folder, path }
    }

    /// Opens the store, with the queue `orders` in it.
    pub(crate) async fn open(&self) -> Arc<Sqlite> {
        let store = Arc::new(self.try_open().unwrap());
        store.declare(orders(), By::Runner).await.unwrap();
        store
    }

    pub(crate) fn try_open(&self) -> Result<Sqlite, StoreError> {
        let mut settings = Settings::default();
        settings.disk_least = 0;
        Sqlite::open(&self.path, settings)
    }

    /// A connection past the store.
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
    store.publish(vec![New::at(event, AT)]).await?.remove(0)
}

pub(crate) async fn due(store: &Sqlite, grant: Grant) -> Vec<Entry> {
    let load = Load {
        grant,
        stream: StreamId(1),
        until: AT,
        live_max: 99,
        retry_max: 99,
        bytes_max: 1 << 30,
        except: vec![],
    };
    store.load(load).await.unwrap().entries
}

pub(crate) const fn settle(grant: Grant, entry: &Entry, change: Change) -> Settle {
    Settle { grant, seq: entry.seq, rev: entry.rev, at: AT, change }
}

/// One attempt that failed.
pub(crate) fn story(attempt: u32) -> Option<Arc<Story>> {
    let record = Record {
        attempt,
        mode: Mode::Live.as_str().to_owned(),
        at_ms: 7,
        took_ms: 1,
        disposition: "retry".to_owned(),
        executed: None,
        cause: None,
        delay_ms: None,
    };
    Some(Arc::new(Story::default().with(record)))
}

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// A job without a claim that works with the connection.
pub(crate) fn job(mut work: impl FnMut(&Connection) -> Outcome + Send + 'static) -> Job {
    let work = move |tx: &mut dyn Tx| {
        let conn = sqlite::connection(tx).ok_or("not in SQLite")?;
        work(conn).map(|()| None)
    };
    Job { work: Box::new(work), claim: None, time: Duration::from_secs(10), alone: false }
}

/// All that is selected.
pub(crate) fn rows(place: &Place, select: &str) -> Vec<Vec<rusqlite::types::Value>> {
    let conn = place.raw();
    let mut select = conn.prepare(select).unwrap();
    let columns = select.column_count();
    let read = |row: &rusqlite::Row<'_>| (0..columns).map(|at| row.get(at)).collect();
    select.query_map([], read).unwrap().map(Result::unwrap).collect()
}
