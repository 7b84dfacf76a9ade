//! Events that other processes wrote, found by their stamps.
//!
//! A process that writes an event and does not own its shard stamps the event with the number of its transaction.
//! Exactly those events arrived since a snapshot whose stamp was in progress in it or began after it, however long a
//! transaction was open; a cursor over seqs would miss them. The watcher was notified of this process's own events
//! when they were committed.
//!
//! A process that is alone sends no hints, and ignores its own.
//!
//! A notification of the database (`NOTIFY`) is a hint that there may be arrivals. It is sent after the commit and not
//! in it, at most once in [`HINT_EVERY`] per process. Only the look matters, and a process looks every [`LOOK_EVERY`]
//! in any case.
//!
//! Every role that may connect can send notifications, so they prove nothing and may be many. They are read beside the
//! looks and as fast as they come: the database keeps what a listener has not read, for all of its listeners, and
//! refuses commits that notify once that is too much.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use redrive_core::queue_entry::StreamId;
use sqlx::Row;
use sqlx::postgres::{PgListener, PgNotification};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Database, TxFuture};
use crate::error::StoreError;
use crate::store::Arrivals;
use crate::stores::postgres::faults::{Fault, Step, not_done};
use crate::stores::postgres::nodes::NODES;
use crate::stores::postgres::tx::{OwnTx, one};

/// How often a process looks, whatever notifications it got.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long to wait at least between two looks.
const LOOK_LEAST: Duration = Duration::from_millis(5);
/// How often other processes are notified that there may be arrivals.
const HINT_EVERY: Duration = Duration::from_millis(5);
/// How long to wait before a listener is connected again.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

/// Looks for events that other processes wrote, as long as the store is open.
pub(in crate::stores::postgres) async fn look_around(db: Arc<Database>) {
    let hints = Hints::default();
    tokio::select! {
        () = hear(&db, &hints) => {}
        () = look_now_and_then(&db, &hints) => {}
    }
}

/// What notifications said since the last look.
#[derive(Debug, Default)]
struct Hints {
    /// There may be something to look for.
    any: Notify,
    /// Shards may have changed owners.
    nodes: AtomicBool,
}

/// Reads notifications. It never ends by itself.
async fn hear(db: &Database, hints: &Hints) {
    let own = db.node.to_string();
    loop {
        let listen_after = Instant::now() + LISTEN_AGAIN;
        let listener = listen(db).await;
        // Notifications sent meanwhile are lost.
        hints.nodes.store(true, Relaxed);
        hints.any.notify_one();
        if let Some(mut listener) = listener {
            while let Ok(notice) = listener.try_recv().await {
                match notice.as_ref().map(PgNotification::payload) {
                    // The watcher already knows this process's own events.
                    Some(payload) if payload == own => continue,
                    Some(NODES) => hints.nodes.store(true, Relaxed),
                    _ => {}
                }
                hints.any.notify_one();
            }
        }
        tokio::time::sleep_until(listen_after).await;
    }
}

async fn look_now_and_then(db: &Arc<Database>, hints: &Hints) {
    let mut since: Option<Since> = None;
    let mut looked_at = Instant::now();
    loop {
        let _ = tokio::time::timeout_at(looked_at + LOOK_EVERY, hints.any.notified()).await;
        // Many notifications at once are one look.
        tokio::time::sleep_until(looked_at + LOOK_LEAST).await;
        looked_at = Instant::now();
        if hints.nodes.swap(false, Relaxed) {
            db.node_lease.stir();
        }
        if db.check().is_err() {
            return;
        }
        if !db.is_watched() {
            since = None;
            continue;
        }
        // If the look fails, the next one starts from the same snapshot.
        if let Ok(now) = look(db, since.clone()).await {
            since = Some(now);
        }
    }
}

/// Notifies other processes that there may be arrivals.
pub(in crate::stores::postgres) async fn send_hints(db: Arc<Database>) {
    loop {
        db.notifier.hint.notified().await;
        if db.check().is_err() {
            return;
        }
        if !db.notifier.has_company.load(Relaxed) {
            continue;
        }
        // The notification does not wait for the disk.
        let notify = sqlx::query("SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)");
        let notify = notify.bind(channel(&db)).bind(db.node.to_string());
        let sent = db.alone(&db.side, notify).await;
        // A lost hint delays the event until the next look.
        drop(sent);
        tokio::time::sleep(HINT_EVERY).await;
    }
}

async fn listen(db: &Database) -> Option<PgListener> {
    // Behind a pooler, the next user of the session would receive it.
    if db.pooled {
        return None;
    }
    let mut listener = PgListener::connect_with(&db.side).await.ok()?;
    listener.listen(&channel(db)).await.ok()?;
    Some(listener)
}

pub(in crate::stores::postgres) fn channel(db: &Database) -> String {
    format!("redrive_{}", db.schema.name())
}

/// The last look: its snapshot, and the number of commands until then.
#[derive(Debug, Clone)]
pub(in crate::stores::postgres) struct Since {
    snapshot: String,
    orders: i64,
}

/// Notifies the watcher of events that other processes wrote since.
async fn look(db: &Arc<Database>, since: Option<Since>) -> Result<Since, StoreError> {
    let open = db.notifier.pending.begin();
    let (now, arrivals) = match since {
        Some(since) => db.arrivals(&since).await.map_err(not_done)?,
        None => db.look(|tx| -> TxFuture<'_, (Since, Arrivals)> { Box::pin(tx.all_streams()) }).await?,
    };
    if arrivals.missed || arrivals.recall {
        let watcher = db.notifier.watcher.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        if let Some(watcher) = watcher {
            open.tell(arrivals, &watcher);
        }
    }
    Ok(now)
}

impl Database {
    /// The streams in which other processes wrote events since, and whether operators issued commands.
    ///
    /// Events with a stamp that was in progress are selected by those stamps, and not by the smallest of them: with a
    /// transaction that stays open for hours, every look would read all rows written since it began.
    async fn arrivals(&self, since: &Since) -> Result<(Since, Arrivals), Fault> {
        let own = self.notifier.own.since(&since.snapshot);
        let look = "SELECT snapshot, orders, company, streams FROM redrive.arrivals($1, $2, $3)";
        let look = sqlx::query(self.schema.sql(look)).bind(since.snapshot.clone()).bind(own).bind(self.node);
        let found = self.alone(&self.pool, look).await?;
        let row = found.first().ok_or(sqlx::Error::RowNotFound)?;
        let now = Since { snapshot: row.try_get(0)?, orders: row.try_get(1)? };
        self.notifier.has_company.store(row.try_get(2)?, Relaxed);
        let mut arrivals = Arrivals { recall: since.orders != now.orders, ..Arrivals::default() };
        for id in row.try_get::<Vec<i64>, _>(3)? {
            let id = StreamId(u32::try_from(id).unwrap_or_default());
            arrivals.streams.extend(self.stream_of(id).await?.map(|stream| stream.named()));
        }
        arrivals.missed = !arrivals.streams.is_empty();
        Ok((now, arrivals))
    }
}

impl OwnTx {
    /// A new watcher has not been notified of anything yet.
    async fn all_streams(&mut self) -> Step<(Since, Arrivals)> {
        let snapshot: String = one!(self, "SELECT pg_current_snapshot()::text")?;
        let orders: i64 = one!(self, "SELECT orders FROM redrive.meta")?;
        let all = self.streams(None, None).await?;
        let streams = all.iter().map(|stream| stream.named()).collect();
        Ok((Since { snapshot, orders }, Arrivals { streams, missed: true, ..Arrivals::default() }))
    }
}
